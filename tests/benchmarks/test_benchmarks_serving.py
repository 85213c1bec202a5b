"""python -m benchmarks serving: rows and their tables, wrong results, callers at once, and memory that grows."""

import dataclasses
import os

import pytest
import torch

pytest.importorskip("torch_geometric")

from benchmarks import cli, records, serving, serving_models, serving_soak
from benchmarks.serving_models import DROP_IN, OURS, OURS_AOTI, PYG, PYG_AOTI, Backend

COMPILES = bool(os.environ.get("HALFGNN_TEST_ALL"))  # a package takes half a minute
OPTIONS = [
    "--graph",
    "tiny",
    "--edges",
    "60",
    "--models",
    "SAGE",
    "--dtypes",
    "bf16",
    "--requests",
    "3",
    "--threads",
    "1",
]


def run(tmp_path, backends, *more):
    return cli.main(["serving", *OPTIONS, "--backends", *backends, *more, "--out", str(tmp_path)])


def test_rows_and_their_tables(tmp_path, capsys):
    eager = (PYG, DROP_IN, OURS)
    assert run(tmp_path, eager, "--calls", "4", "--callers", "1", "3", "--seconds", "0.05") == 0
    found = records.read(tmp_path / serving.KEPT, serving.ServingRow)
    assert [(row.what, row.backend, row.callers) for row in found] == [
        *(("latency", name, 1) for name in eager),
        *(("throughput", name, callers) for callers in (1, 3) for name in eager),
    ]
    assert all(row.num_edges >= 60 and row.error < 0.1 and 0 < row.ms_p20 <= row.ms <= row.ms_p99 for row in found)
    assert all((row.calls == 4) is (row.what == "latency") or row.calls >= row.callers for row in found)
    assert all("--models SAGE" in row.command and row.torch_geometric and row.commit for row in found)
    shown = capsys.readouterr().out
    assert shown.strip() == serving.render(found).strip() and shown.count("| SAGE | bf16 |") == 3


def test_a_row_is_shown_as_the_file_has_it(tmp_path):
    values = {f.name: "x" if f.type == "str" else 1 for f in dataclasses.fields(serving.ServingRow)}
    row = serving.ServingRow(**{**values, "ms": 1270.4961, "error": None, "per_second": 1270.5})
    kept = records.as_kept(row)
    records.append(tmp_path / "rows.csv", serving.ServingRow, [row])
    assert records.read(tmp_path / "rows.csv", serving.ServingRow) == [kept]
    assert kept.ms == 1270.5 and kept.error is None and kept.calls == 1


@pytest.mark.skipif(not COMPILES, reason="it compiles; HALFGNN_TEST_ALL=1 (make test-all) runs it")
def test_packages_are_compiled_once_and_soaked(tmp_path, capsys):
    compiled = (PYG_AOTI, OURS_AOTI)
    assert run(tmp_path, compiled, "--calls", "2", "--callers", "2", "--seconds", "0.05") == 0
    files = sorted(tmp_path.glob("packages/*/*.pt2"))
    times = [file.stat().st_mtime_ns for file in files]
    found = records.read(tmp_path / serving.KEPT, serving.ServingRow)
    assert len(files) == 2 and {row.backend for row in found if row.ms} == set(compiled)
    assert run(tmp_path, [OURS_AOTI], "--soak", "3") == 0
    assert [file.stat().st_mtime_ns for file in files] == times
    assert "halfgnn.pyg AOTInductor: " in capsys.readouterr().out


def made(call, name=OURS):
    return Backend(name, call)


def test_wrong_results_are_named():
    requests = serving_models.requests("tiny", 40, 2)
    requests = [serving_models.for_model(request, "SAGE", torch.float32) for request in requests]
    expected = serving.expected_of("SAGE", "fp32", requests)
    right = serving_models.model("SAGE", serving.import_pyg().nn, torch.float32)
    assert serving.check(made(right), "fp32", requests, expected) < 1e-5
    with pytest.raises(ValueError, match=r"halfgnn\.pyg in fp32 is off by"):
        serving.check(made(lambda *request: right(*request) * 1.1), "fp32", requests, expected)


def test_callers_at_once_that_disturb_one_another_are_found():
    requests = [(torch.full((1,), float(i)),) for i in range(4)]
    serving.check_callers(made(lambda x: x * 2), requests, 8)
    count = iter(range(10_000))
    with pytest.raises(ValueError, match="8 callers at once get other results than one"):
        serving.check_callers(made(lambda x: x * 2 + (next(count) == 20)), requests, 8)

    def fails(x):
        if next(count) > 40:
            raise RuntimeError("refused")
        return x * 2

    with pytest.raises(RuntimeError, match="refused"):
        serving.check_callers(made(fails), requests, 8)


def test_requests_have_about_the_edges_that_were_asked_for():
    found = serving_models.requests("tiny", 50, 5)
    assert len(found) == 5
    for x, edge_index, edge_attr in found:
        assert 50 <= edge_index.shape[1] == len(edge_attr) < 50 + 15 * 11 and int(edge_index.max()) < len(x)
    assert not torch.equal(found[0][1], found[1][1])
    with pytest.raises(ValueError, match="no block of 100,000,000 edges"):
        serving_models.requests("tiny", 100_000_000, 1)


def test_a_soak_sees_memory_that_grows():
    kept = []

    def leaks(x):
        kept.append(torch.ones(100_000))
        return x

    request = (torch.ones(1),)
    found = serving_soak.soak([(leaks, request)], 2, 1.0)
    assert found.calls == len(kept) and found.growth("allocated") > 1 and found.slope("allocated") > 0
    assert "what is allocated grew by" in found.complaint() and "allocated " in str(found)
    even = serving_soak.soak([(lambda x: x + 1, request)], 2, 1.0)
    assert len(serving_soak.soak([(lambda x: x + 1, request)], 2, 0.0).readings) == serving_soak.LEAST_READINGS
    assert even.calls and abs(even.growth("allocated")) < 1 and even.complaint() is None
    with pytest.raises(RuntimeError, match="refused"):
        serving_soak.soak([(refuses, request)], 2, 5.0)


def test_a_soak_tells_what_is_left_from_what_is_free():
    def of(allocated, left):
        readings = [serving_soak.Reading(float(at), 90.0 + at, value) for at, value in enumerate(allocated)]
        return serving_soak.Soak(9, readings, left)

    assert of([50.0, 50.5] * 4, (80.0, 90.0)).complaint() is None
    assert "what stays in memory grew by 20.0 MiB" in of([None] * 8, (80.0, 100.0)).complaint()
    assert "what is allocated grew by 4.0 MiB" in of([50.0] * 4 + [54.0] * 4, (80.0, 80.0)).complaint()
    assert "resident 90.0 to 97.0 MiB, growth +6.00 MiB, slope +60.000 MiB per minute" in str(
        of([None] * 8, (80.0, 81.0))
    )


def refuses(x):
    raise RuntimeError("refused")


def test_the_table_shows_losses_and_who_is_absent():
    values = dict(
        what="latency", model="GAT", dtype="fp32", graph="tiny", num_nodes=9, num_edges=1000, callers=1, threads=1, ms_p20=1.0,
        ms_p80=1.0, ms_p99=1.0, per_second=None, calls=3, error=0.0, date="2026-01-01",
    )  # fmt: skip
    row = lambda name, ms, **more: serving.ServingRow(backend=name, ms=ms, **{**values, **more})  # noqa: E731
    found = [row(PYG, 4.0), row(PYG_AOTI, None, note="does not compile"), row(OURS_AOTI, 2.0)]
    assert "| GAT | fp32 | 9 | 1,000 | 1 | 4.00 | - | - | - | 2.00 | 2.00 x | - |" in serving.render(found)
    newer = row(OURS_AOTI, 5.0, date="2026-01-02"), row(PYG, 4.0, date="2026-01-02")
    assert "| 4.00 | - | - | - | 5.00 | **0.800 x** | - |" in serving.render([*found, *newer])
