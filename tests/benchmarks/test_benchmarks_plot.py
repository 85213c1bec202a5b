"""Pictures of rows: their contents are right, the same rows give the same file, and committed pictures show the
committed rows."""

import dataclasses
import re
from pathlib import Path

import pytest

matplotlib = pytest.importorskip("matplotlib")
ROOT = Path(__file__).resolve().parents[2]

from benchmarks import charts, cli, gather, plot, rows  # noqa: E402
from benchmarks.table_programs import MODELS  # noqa: E402
from tests.benchmarks.test_benchmarks_rows import row_of  # noqa: E402

IMAGES = ROOT / "docs" / "images"


def _row(backend, ms, dtype="bf16", **changes):
    usual = dict(
        op="u_mul_e_sum", graph="arxiv (synthetic)", num_edges=1000, gb_per_s=1.0 if ms else None, cpu="C (family 1)"
    )
    return row_of(backend, ms, dtype, **{**usual, **changes})


OPERATORS = [
    _row("halfgnn", 2.0), _row("dgl", 8.0), _row("halfgnn", 4.0, "fp16"), _row("dgl", None, "fp16", note="no fp16"),
    _row("halfgnn", 3.0, "fp32"), _row("dgl", 1.5, "fp32"), _row("torch.sparse", 6.0, "fp32"), _row("dgl copy_u_sum", 1.0),
]  # fmt: skip
LIMITS = [_row("copy, memory", 1.0, family="limits", gb_per_s=speed) for speed in (11.0, 12.0)]
TRAINING = [
    _row(name, ms, family="train", op="GAT", direction="step", heads=heads, dim=256)
    for heads in (1, 2)
    for name, ms in (("halfgnn", 100.0), ("dgl", 900.0))
]
OVERHEAD = [
    _row(name, edges / 1e4, dtype, family="overhead", graph=f"{edges} edges", num_edges=edges)
    for name in ("halfgnn.ops", "dgl update_all")
    for dtype, edges in (("bf16", 100), ("bf16", 3000), ("fp32", 100))
]
ALL = [*OPERATORS, *LIMITS, *TRAINING, *OVERHEAD]


def names(found):
    return [picture.name for picture in plot.pictures(found)]


def test_a_picture_is_drawn_where_its_rows_are():
    assert names(ALL) == ["cpu-arxiv-operators", "cpu-roofline", "cpu-arxiv-training", "cpu-overhead"]
    assert names(OPERATORS) == ["cpu-arxiv-operators"]
    assert names(TRAINING) == ["cpu-arxiv-training"]
    assert names([*LIMITS, _row("halfgnn", 2.0)]) == []  # nothing to compare with
    assert names([_row("halfgnn", 2.0), _row("dgl", 1.0, "fp32")]) == []
    assert names([]) == []


def _bars(found):
    """Width of every bar of the only picture, by its text, and the texts."""
    (picture,) = plot.pictures(found)
    figure = picture.draw(picture.rows)
    return [
        [(round(bar.get_x() + bar.get_width(), 4), text.get_text()) for bar, text in zip(axes.patches, axes.texts)]
        for axes in figure.axes
    ]


def test_bars_are_factors_over_the_fastest_rival_in_the_same_precision():
    assert _bars(OPERATORS) == [[(4.0, "4.00")], [(0.5, "0.500")]]
    bag = _row("embedding_bag", 1.0)
    assert _bars([*OPERATORS, bag]) == [[(0.5, "0.500"), (0.125, "0.125")], [(0.5, "0.500")]]


def test_a_second_processor_has_pictures_of_its_own():
    other = [dataclasses.replace(row, cpu="D 9 (family 2)", kernels="avx512") for row in OPERATORS]
    assert names([*OPERATORS, *other]) == ["cpu-arxiv-operators", "cpu-D-9-avx512-arxiv-operators"]


def test_bars_on_a_gpu_are_shares_of_the_pure_gather():
    gpu = dict(device="cuda", gpu="NVIDIA H100", order="sorted", cache="warm")
    found = [
        _row("halfgnn", 2.0, **gpu),
        _row(gather.LIMIT, 1.5, **gpu),
        _row("halfgnn", 9.0, **{**gpu, "cache": "cold"}),
    ]
    assert _bars(found) == [[(0.75, "0.750")]]
    assert names(found) == ["cuda-arxiv-operators"]


def test_bars_of_training_are_milliseconds():
    assert _bars(TRAINING) == [[(100.0, "100"), (900.0, "900")] * 2]


def test_roofline_has_flops_of_an_operator_and_roofs_of_rows():
    (picture,) = (p for p in plot.pictures(ALL) if p.name == "cpu-roofline")
    (axes,) = picture.draw(picture.rows).axes
    roof, *points = axes.lines
    assert roof.get_label() == "copy, memory: 12 GB/s"
    assert [y / x for x, y in roof.get_xydata()] == pytest.approx([12.0, 12.0])
    flops = 2 * 1000 * 128
    assert points[0].get_xydata().tolist() == [pytest.approx([flops / 2e6, flops / 2e6])]  # 2 ms at 1 GB/s
    assert len(points) == len([row for row in OPERATORS if row.ms]) - 1  # without the yardstick


def test_lines_of_overhead_are_of_a_dtype_with_several_sizes():
    (picture,) = plot.pictures(OVERHEAD)
    (axes,) = picture.draw(picture.rows).axes
    assert axes.get_title() == "u_mul_e_sum, forward, bf16"
    assert [line.get_xydata().tolist() for line in axes.lines] == [[[100, 10], [3000, 300]]] * 2


def test_backends_of_the_same_cases_have_colours_of_their_own():
    for together in (
        ("halfgnn", "halfgnn fused", "halfgnn unfused", "halfgnn drop-in", "dgl", "pyg", "torch.compile"),
        ("halfgnn", "dgl", "torch.sparse", "index_add", "pyg scatter", "pyg conv", "torch.compile", "cudnn.gnn", "turbo_gnn"),
        ("halfgnn update_all", "halfgnn.ops, DGLGraph", "halfgnn.ops", "halfgnn torch.ops", "halfgnn, compiled",
         "halfgnn, CUDA graph", "dgl update_all", "index_add", "pyg scatter"),
    ):  # fmt: skip
        assert len({charts.colour(name) for name in together} - {charts.OTHER}) == len(together)


def test_the_same_rows_give_the_same_files(tmp_path, capsys):
    rows.append(tmp_path / "cpu.csv", ALL)
    assert cli.main(["plot", "--rows", str(tmp_path / "cpu.csv"), "--into", str(tmp_path / "a")]) == 0
    assert str(tmp_path / "a" / "cpu-roofline.svg") in capsys.readouterr().out
    found = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert found == sorted(f"{name}.svg" for name in names(ALL))
    for picture in plot.pictures(rows.read(tmp_path / "cpu.csv")):
        if picture.name in ("cpu-arxiv-operators", "cpu-overhead"):  # bars and lines
            picture.save(tmp_path / "b")
    again = list((tmp_path / "b").iterdir())
    assert len(again) == 2 and all(path.read_bytes() == (tmp_path / "a" / path.name).read_bytes() for path in again)


def test_a_digest_is_of_the_rows():
    (picture,), (other,) = plot.pictures(OPERATORS), plot.pictures([*OPERATORS[1:], _row("halfgnn", 2.1)])
    (again,) = plot.pictures(OPERATORS[::-1])
    assert picture.digest == again.digest != other.digest


def _digest(path):
    found = re.search(rb"rows sha256:([0-9a-f]{64})", path.read_bytes())
    return found and found.group(1).decode()


@pytest.mark.skipif(not IMAGES.exists(), reason="no pictures in this copy")
def test_committed_pictures_are_of_the_committed_rows():
    expected = {picture.name: picture.digest for picture in plot.shown(rows.RESULTS)}
    found = {image.stem: digest for image in IMAGES.glob("*.svg") if (digest := _digest(image))}
    assert found == expected, "run `python -m benchmarks plot`"


def test_the_layers_have_a_bar_without_and_one_with_halfgnn():
    picture = next(plot.shown(rows.RESULTS))
    (axes,) = picture.draw(picture.rows).axes
    widths = [bar.get_width() for bars in axes.containers for bar in bars]
    assert widths == [row.ms_without for row in picture.rows] + [row.ms_with for row in picture.rows]
    assert [text.get_text() for text in axes.get_yticklabels()] == [MODELS[row.program] for row in picture.rows]
    assert "lower is better" in axes.get_xlabel() and "400,000 edges" in axes.get_title()
