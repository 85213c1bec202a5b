"""Rows of results, the targets that are judged on them, and the tables made of them."""

import csv
import dataclasses
from pathlib import Path

import pytest

from benchmarks import cells, cli, gather, rows, runner, table, table_cpu, table_parts, targets

ROOT = Path(__file__).resolve().parents[2]

# ---- rows ------------------------------------------------------------------------------------------------------------------------


def row_of(backend, ms, dtype="bf16", **changes):
    values = dict(
        family="spmm", op="copy_u_sum", direction="forward", backend=backend, dtype=dtype, graph=targets.GRAPHS[0],
        num_nodes=10, num_edges=20, order="insertion", heads=1, dim=128, idtype="int64", device="cpu", threads=2, cache="", ms=ms,
        ms_p20=ms, ms_p80=ms, runs=3, date="2026-01-01T00:00:00Z", commit="abc", cpu="C", torch="2", dgl="1",
        command="python -m benchmarks spmm",
    )  # fmt: skip
    return rows.Row(**{**values, **changes})


def test_rows_survive_the_file(tmp_path):
    made = [row_of("halfgnn", 1.25, error=0.5), row_of("dgl", None, note='refused: "a, b"', runs=0)]
    rows.append(tmp_path / "folder" / "cpu.csv", made[:1])
    rows.append(tmp_path / "folder" / "cpu.csv", made[1:])
    assert rows.read(tmp_path / "folder" / "cpu.csv") == made


def test_rows_from_before_a_field_are_read(tmp_path):
    made = row_of("halfgnn", 1.25, cpu_flags="avx2", kernels="avx2")
    rows.append(tmp_path / "cpu.csv", [made])
    old = (tmp_path / "cpu.csv").read_text().replace("cpu_flags,kernels,", "").replace(",avx2,avx2,", ",")
    (tmp_path / "cpu.csv").write_text(old)
    assert rows.read(tmp_path / "cpu.csv") == [dataclasses.replace(made, cpu_flags="", kernels="")]
    with pytest.raises(ValueError, match="has columns"):
        rows.append(tmp_path / "cpu.csv", [made])


def test_half_a_line_is_named(tmp_path):
    rows.append(tmp_path / "cpu.csv", [row_of("halfgnn", 1.0), row_of("dgl", 1.0)])
    text = (tmp_path / "cpu.csv").read_text()
    (tmp_path / "cpu.csv").write_text(text[:-100])
    with pytest.raises(ValueError, match=r"cpu.csv, line 3: \d+ fields, of \d+"):
        rows.read(tmp_path / "cpu.csv")


def test_wrong_results_are_marked_and_not_in_the_means():
    found = [row_of("halfgnn", 2.0), row_of("dgl", 8.0, error=0.2), row_of("halfgnn", 2.0, op="copy_u_max"),
             row_of("dgl", 6.0, op="copy_u_max", error=0.01)]  # fmt: skip
    text = table.render(found)
    assert "| 2.00 | - | - | - |" in text and "| 8.00* | - |" in text and "| 2.00 | 6.00 dgl | 3.00 x | - |" in text
    assert "| geometric mean |  |  |  |  |  |  | 3.00 x |" in text


def test_a_file_with_other_columns_is_refused(tmp_path):
    (tmp_path / "cpu.csv").write_text("family,op\nspmm,x\n")
    with pytest.raises(ValueError, match="has columns"):
        rows.read(tmp_path / "cpu.csv")
    with pytest.raises(ValueError, match="has columns"):
        rows.append(tmp_path / "cpu.csv", [row_of("halfgnn", 1.0)])


def test_share_of_the_gather_is_that_of_the_same_dtype():
    found = [row_of("halfgnn", 4.0), row_of(gather.LIMIT, 3.0), row_of("halfgnn", 8.0, "fp32"), row_of("dgl", None)]
    assert [row.limit_share for row in runner._with_shares(found)] == [0.75, None, None, None]


def test_a_case_is_never_put_together_from_two_runs():
    old = [row_of("halfgnn", 9.0), row_of("dgl", 9.0), row_of("dgl", 9.0, op="u_mul_e_sum")]
    new = [row_of("halfgnn", 1.0, date="2026-02-01T00:00:00Z")]
    assert rows.latest([*old, *new]) == [old[2], *new]


# ---- targets ---------------------------------------------------------------------------------------------------------------------


def _findings(found, start):
    return [(f.ratio, f.holds) for f in targets.judge(found) if f.target.text.startswith(start)]


def test_target_on_time_holds_up_to_its_limit_and_not_beyond():
    mul = dict(op="u_mul_e_sum")
    for ms, holds in ((1.29, True), (1.3, True), (1.31, False)):
        found = [row_of("halfgnn", ms, **mul), row_of(rows.FASTEST_COPY, 1.0, **mul), row_of("dgl", 0.1, **mul)]
        assert _findings(found, "u_mul_e_sum, bf16") == [(ms, holds)]
        assert len(targets.missed(found)) == (0 if holds else 1)


def test_target_on_copies_is_against_the_fastest_right_one():
    found = [
        row_of("halfgnn", 3.0),
        row_of("dgl", 9.0),
        row_of("embedding_bag", 2.0),
        row_of("torch.sparse", 1.0, error=0.5),
    ]
    assert _findings(found, "copy_u_sum, bf16") == [(1.5, False)]
    assert _findings([*found, row_of(rows.INDEXED_COPY, 1.0)], "copy_u_sum, bf16") == [(3.0, False)]
    assert _findings([*found, row_of("halfgnn", 1.0, "fp32"), row_of("scipy", 2.0, "fp32")], "copy_u_sum, fp32") == [
        (0.5, True)
    ]


def test_target_on_heads_is_against_one_head_of_the_same_width():
    mul = dict(op="u_mul_e_sum")
    found = [row_of("halfgnn", 2.0, **mul), row_of("halfgnn", 2.3, heads=4, dim=32, **mul)]
    assert _findings(found, "u_mul_e_sum of several heads, bf16") == [(pytest.approx(1.15), False)]
    for change in (dict(cpu="D"), dict(idtype="int32"), dict(order="sorted")):
        other = [row_of("halfgnn", 2.0, **{**mul, **change}), found[1]]
        assert _findings(other, "u_mul_e_sum of several heads, bf16") == [(None, None)]


def test_target_on_speed_asks_for_the_factor():
    step = dict(family="layer", op="GATConv", direction="forward+backward", heads=4, dim=32)
    for theirs, holds in ((8.1, True), (7.9, False)):
        found = [row_of("halfgnn drop-in", 1.0, **step), row_of("dgl", theirs, **step)]
        assert _findings(found, "GATConv step, bf16") == [(pytest.approx(1 / theirs), holds)]


def test_every_case_is_judged_and_one_loss_is_a_loss():
    good = [row_of("halfgnn", 1.0), row_of("dgl", 2.0)]
    bad = [row_of("halfgnn", 3.0, graph=targets.GRAPHS[1]), row_of("dgl", 2.0, graph=targets.GRAPHS[1])]
    assert _findings([*good, *bad], "copy_u_sum, bf16") == [(0.5, True), (1.5, False)]
    assert [finding.row.graph for finding in targets.missed([*good, *bad])] == [targets.GRAPHS[1]]


@pytest.mark.parametrize("change", [dict(threads=1), dict(graph="cora (synthetic)"), dict(dim=32), dict(device="cuda")])
def test_marks_cover_only_what_they_were_set_for(change):
    assert _findings([row_of("halfgnn", 3.0, **change), row_of("dgl", 2.0, **change)], "copy_u_sum, bf16") == []


def test_softmax_has_no_features_to_count():
    soft = dict(family="softmax", op="edge_softmax", heads=4, dim=1)
    found = [row_of("halfgnn", 1.0, **soft), row_of("dgl", 6.0, **soft), row_of("halfgnn", 1.5, "fp16", **soft)]
    assert _findings(found, "edge_softmax, bf16") == [(pytest.approx(1 / 6), True)]
    assert _findings(found, "fp16 within 1.2 x of bf16, operators") == [(1.5, False)]


def test_what_was_not_measured_neither_holds_nor_is_missed():
    found = [row_of("halfgnn", 1.0), row_of("dgl", None, note="refused")]
    assert _findings(found, "copy_u_sum, bf16") == [(None, None)]
    assert not targets.missed(found) and len(targets.unmeasured(found)) == len(targets.TARGETS)


def test_targets_command_tells_a_loss_by_its_exit_status(tmp_path, capsys):
    for ms, status in ((1.0, 0), (3.0, 1)):
        path = tmp_path / f"{ms}.csv"
        rows.append(path, [row_of("halfgnn", ms), row_of("dgl", 2.0)])
        assert cli.main(["targets", "--rows", str(path)]) == status
    assert "**missed**" in capsys.readouterr().out


def test_targets_command_says_when_nothing_was_measured(tmp_path, capsys):
    rows.append(tmp_path / "cpu.csv", [row_of("halfgnn", 1.0, graph="tiny (synthetic)")])
    assert cli.main(["targets", "--rows", str(tmp_path / "cpu.csv")]) == 2
    assert "no target was measured" in capsys.readouterr().out


def _gpu_row(backend, ms, dtype="fp16", **changes):
    values = dict(
        device="cuda", gpu="NVIDIA H100 80GB HBM3", driver="1", graph="reddit-size (synthetic)", op="u_mul_e_sum", order="sorted",
        idtype="int32", cache="warm", num_edges=1000,
    )  # fmt: skip
    return row_of(backend, ms, dtype, **{**values, **changes})


@pytest.mark.parametrize("ms,holds", [(3.4, True), (3.6, False)])
def test_gpu_targets_are_milliseconds(ms, holds):
    found = [_gpu_row("halfgnn", ms)]
    assert _findings(found, "u_mul_e_sum, fp16, reddit-size") == [(pytest.approx(ms / 3.5), holds)]
    for change in (dict(dim=64), dict(heads=4), dict(cache="cold"), dict(gpu="NVIDIA T4")):
        assert _findings([_gpu_row("halfgnn", ms, **change)], "u_mul_e_sum, fp16, reddit-size") == []


def test_guide_is_held_to_time_and_to_memory():
    step = dict(family="train", op="GAT", direction="step", dim=256)
    for heads, peak, holds in (
        (1, 3300, [True, True]),
        (1, 3400, [True, False]),
        (8, 15000, [True]),
        (8, 15300, [False]),
    ):
        found = [_gpu_row("halfgnn", 59.0, heads=heads, peak_mb=peak, **step)]
        assert [held for _, held in _findings(found, "training a GAT")] == holds


@pytest.mark.parametrize("ms,holds", [(2.05, True), (2.2, False)])
def test_hub_is_held_to_the_time_of_its_edges(ms, holds):
    plain = _gpu_row("halfgnn", 1.0, graph="arxiv-size (synthetic)")
    hub = _gpu_row("halfgnn", ms, graph="arxiv-size-hub (synthetic)", num_edges=2000)
    assert _findings([plain, hub], "SpMM") == [(pytest.approx(ms - 1), holds)]
    assert _findings([hub], "SpMM") == [(None, None)]


# ---- tables ----------------------------------------------------------------------------------------------------------------------


def test_table_shows_times_rivals_and_losses():
    found = [row_of("halfgnn", 2.0), row_of("dgl", 8.0), row_of("embedding_bag", 1.0), row_of("halfgnn", 3.0, "fp32"),
             row_of("dgl", 6.0, "fp32"), row_of(rows.INDEXED_COPY, 0.5, "fp32")]  # fmt: skip
    text = table.render(found)
    assert (
        "| 128 | 2.00 | 1.00 embedding_bag | **0.500 x** | 3.00 x | - | - | - | - | 3.00 | 6.00 dgl | 2.00 x |" in text
    )
    assert "| 8.00 | 6.00 | bf16 **2.00 of 1**, fp32 **6.00 of 1** |" in text
    assert "2026-01-01, commit abc, C, 2 threads, torch 2, DGL 1: `python -m benchmarks spmm`" in text
    assert "2 | 2.00 x | 2.00 x | **missed** |" not in text and "| 1 | 2.00 x | 2.00 x | **missed** |" in text


def test_processors_have_tables_of_their_own():
    other = dict(cpu="D (family 2)", cpu_flags="avx2 avx512f", kernels="avx512")
    found = [row_of("halfgnn", 2.0), row_of("dgl", 8.0), row_of("halfgnn", 1.0, **other), row_of("dgl", 9.0, **other)]
    assert len(rows.by_case(found)) == 2
    text, short = table.render(found), table.summary(found)
    assert "**C, 2 threads**" in text and "**D, avx2 avx512f, kernels avx512, 2 threads**" in text
    first, second = short.split("D, avx2 avx512f, kernels avx512, 2 threads.\n\n|", 1)
    assert "C, 2 threads." in first and "| copy_u_sum | forward | 128 | dgl | 2.00 | 8.00 | 4.00 x | - |" in first
    assert "| copy_u_sum | forward | 128 | dgl | 1.00 | 9.00 | 9.00 x | - |" in second


def test_threads_have_a_table_and_the_others_show_those_of_the_targets():
    found = [row_of(name, ms / threads, threads=threads)
             for threads in (1, 2, 4) for name, ms in (("halfgnn", 4.0), ("dgl", 12.0), ("embedding_bag", 2.0))]  # fmt: skip
    text = table.render(found)
    assert "| dtype | threads | halfgnn, ms | than DGL | than the fastest rival |" in text
    for threads, ms in ((1, "4.00"), (2, "2.00"), (4, "1.00")):
        assert f"| 128 | bf16 | {threads} | {ms} | 3.00 x | **0.500 x** |" in text
    assert {row.threads for row in table_cpu.published(found)} == {2}
    assert {row.threads for row in table_cpu.published([row for row in found if row.threads != 2])} == {4}


def test_geometric_mean_of_the_factors():
    ours = {("halfgnn", "bf16"): row_of("halfgnn", 1.0)}
    cases = [rows.Measured({**ours, ("dgl", "bf16"): row_of("dgl", ms)}) for ms in (2.0, 8.0)]
    alone = rows.Measured(ours)
    assert table_cpu.mean([*cases, alone], "bf16") == "4.00 x"
    assert table_cpu.mean([alone], "bf16") == "-"


def test_number_has_three_digits():
    assert [cells.number(x) for x in (0.01234, 0.5, 9.876, 98.76, 987.6, 9876.0, None)] == [
        "0.0123", "0.500", "9.88", "98.8", "988", "9876", "-",
    ]  # fmt: skip


def test_missed_targets_are_bold_beside_their_figures():
    found = [row_of("halfgnn", 3.0), row_of("dgl", 2.0), row_of("halfgnn", 3.9, "fp16")]
    beside = cells.TargetsBeside(found)
    assert beside.cell(found[0].case, ("halfgnn",)) == "bf16 **1.50 of 1**, fp16 **1.30 of 1.2**"
    assert beside.cell(found[0].case, ("halfgnn fused",)) == ""


def test_missed_targets_are_listed_with_the_worst_case_of_each_type():
    found = [
        *(row_of(name, ms, dtype, dim=dim) for dtype in ("bf16", "fp32") for dim, ours in ((64, 3.0), (128, 5.0))
          for name, ms in (("halfgnn", ours), ("dgl", 2.0))),
        row_of("halfgnn", 3.0, "fp16"),
    ]  # fmt: skip
    (line,) = table_parts.missed_targets(found).splitlines()[2:]
    assert line.startswith("* copy_u_sum: at most 1.0 x the time of the fastest") and line.endswith(
        "(bf16 2.50 x, fp32 2.50 x)"
    )
    assert table_parts.missed_targets([row_of("halfgnn", 1.0), row_of("dgl", 2.0)]) == ""


def test_summary_has_a_line_per_operator_and_a_table_per_graph():
    found = [
        row_of("halfgnn", 2.0), row_of("dgl", 8.0),
        row_of("halfgnn", 9.0, graph=targets.GRAPHS[1]), row_of("dgl", 3.0, graph=targets.GRAPHS[1]),
        row_of("halfgnn", 1.0, order="sorted"), row_of("dgl", 1.0, order="sorted"),
    ]  # fmt: skip
    text = table.summary(found)
    assert "| copy_u_sum | forward | 128 | dgl | 2.00 | 8.00 | 4.00 x | - |" in text
    assert "| copy_u_sum | forward | 128 | dgl | 9.00 | 3.00 | **0.333 x** | - |" in text
    assert "| geometric mean of all cases |  |  |  |  |  | 2.00 x | - |" in text
    assert "sorted" not in text


def test_training_table_compares_losses_after_the_same_number_of_steps():
    step = dict(family="train", op="GAT", direction="step", graph="reddit-tenth (synthetic)", dim=256)
    found = [
        row_of("halfgnn", 100.0, losses="3 2 1", peak_mb=50.0, **step),
        row_of("dgl", 500.0, losses="3.1 2.1", peak_mb=200.0, **step),
        row_of("dgl", 80.0, "fp32", losses="3 2.2 1.1 0.5", peak_mb=300.0, **step),
    ]  # fmt: skip
    expected = "| GAT | reddit-tenth | 256 | bf16 | 100 | - | - | 500 | - | 5.00 x | **0.800 x** | 50.0 | 200 |"
    assert f"{expected} 2 | 2 | 2.1 | 2.2 |  |" in table.render(found)


def test_overhead_table_has_a_column_a_size():
    call = dict(family="overhead", op="u_mul_e_sum")
    found = [
        row_of("halfgnn.ops", 0.05, graph=targets.SMALLEST, num_edges=100, **call),
        row_of("halfgnn.ops", 2.0, graph="400 nodes (synthetic)", num_edges=4000, **call),
    ]
    text = table.render(found)
    assert (
        "| u_mul_e_sum, forward, bf16 | 100 edges | 4,000 edges |" in text and "| halfgnn.ops | 50.0 | 2000 |" in text
    )


def test_table_of_orders():
    case = dict(family="reorder", op="copy_u_sum", graph="arxiv-size (synthetic)", num_nodes=1000, num_edges=9000)
    found = [
        row_of("halfgnn", 6.0, note="locality 0.0480", **case),
        row_of("halfgnn, reordered", 4.0, note="locality 0.3210", **case),
        row_of("halfgnn, by degree", 12.0, note="locality 0.0500", **case),
        row_of("halfgnn, Cuthill-McKee", None, note="needs scipy", **case),
        row_of("reorder", 60.0, **case),
    ]
    text = table_parts.orders_table(found)
    assert "| arxiv-size | 1,000 | 9,000 | 4.8% | 32.1%, 1.50 x | - | 5.0%, **0.500 x** | - | 10.0 | - |" in text
    assert "bf16, F = " in text and text.endswith("`")
    assert table_parts.orders_table([row_of("halfgnn", 1.0)]) == ""


def test_document_agrees_only_with_the_rows_it_was_made_from(tmp_path, monkeypatch):
    path = tmp_path / "README.md"
    rows.append(tmp_path / "cpu.csv", [row_of("halfgnn", 2.0), row_of("dgl", 8.0)])
    empty = "<!-- benchmarks: begin {0} -->\nstale rows\n<!-- benchmarks: end {0} -->\n"
    path.write_text("# A\n\n" + empty.format("summary") + "between\n" + empty.format("cuda") + "\ntail\n")
    assert not table.agrees(path.read_text(), tmp_path)
    monkeypatch.setattr(rows, "RESULTS", tmp_path)
    assert cli.main(["table", "--into", str(path)]) == 0
    text = path.read_text()
    assert text.startswith("# A\n") and text.endswith("\ntail\n") and "between" in text and "stale" not in text
    assert "<!-- benchmarks: begin cuda -->\n<!-- benchmarks: end cuda -->" in text
    assert table.agrees(text, tmp_path)
    assert not table.agrees(text.replace("8.00", "9.00"), tmp_path)
    with pytest.raises(ValueError, match="lacks lines"):
        table.replaced("no markers", tmp_path)
    with pytest.raises(ValueError, match="has a section 'other'"):
        table.replaced(empty.format("other"), tmp_path)


def test_gpu_table_shows_times_shares_and_factors():
    found = [
        _gpu_row("halfgnn", 2.0, limit_share=0.8, gb_per_s=5000.0, peak_mb=60.0), _gpu_row(gather.LIMIT, 1.6),
        _gpu_row("torch.sparse", 8.0), _gpu_row("index_add", 1.0), _gpu_row("halfgnn", 3.0, "fp32"),
        _gpu_row("halfgnn", 2.5, cache="cold"), _gpu_row("pyg scatter", None, note="too large"),
    ]  # fmt: skip
    text = table.render(found)
    expected = (
        "| u_mul_e_sum | forward | 128 | 2.00 | 2.50 | 5000 | 80% | 60.0 | - | 3.00 | - | - | 4.00 x | **0.500 x** |"
    )
    assert expected in text and "| - | fp16 0.571 of 1 |" in text
    assert "| geometric mean |  |  |  |  |  |  |  |  |  | - | - | 4.00 x | 0.500 x | - |" in text
    assert "commit abc, NVIDIA H100 80GB HBM3, driver 1, torch 2, DGL 1: `python -m benchmarks spmm`" in text
    assert "| u_mul_e_sum, fp16, reddit-size: at most 3.5 ms | 1 | 0.571 x | 0.571 x | holds |" in text


def test_table_of_rows(tmp_path, capsys):
    rows.append(tmp_path / "cpu.csv", [row_of("halfgnn", 1.0)])
    assert cli.main(["table", "--rows", str(tmp_path / "cpu.csv")]) == 0
    assert capsys.readouterr().out == table.render(rows.read(tmp_path / "cpu.csv"))


def test_a_row_names_what_was_measured_and_no_folder():
    argv = ["spmm", "--dims", "128", "--out", "/somewhere/rows", "--budget", "0.1"]
    assert rows.provenance(argv)["command"] == "python -m benchmarks spmm --dims 128 --budget 0.1"
    assert rows.provenance(["spmm", "--out=/somewhere"])["command"] == "python -m benchmarks spmm"


@pytest.mark.parametrize("path", sorted(rows.RESULTS.glob("*.csv")), ids=lambda path: path.name)
def test_committed_rows_name_no_path_of_a_machine(path):
    with open(path, newline="") as file:
        commands = {line.get("command") or "" for line in csv.DictReader(file)}
    assert not [text for text in commands if " /" in text or "=/" in text]


def test_no_rows_make_no_table():
    assert table.render([]) == ""


@pytest.mark.parametrize(
    "document",
    [
        "README.md",
        "docs/benchmarks.md",
        "docs/compat.md",
        "docs/eight_bits.md",
        "docs/minibatches.md",
        "docs/reorder.md",
        "docs/serving.md",
    ],
)
def test_documents_show_the_committed_rows(document):
    path = ROOT / document
    if not path.exists():
        pytest.skip("no documents in this copy")
    assert table.agrees(path.read_text(), rows.RESULTS), f"run `python -m benchmarks table --into {document}`"
