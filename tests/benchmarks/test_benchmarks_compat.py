"""python -m benchmarks compat: rows of every backend, right results, and their tables."""

import dataclasses

import pytest

from benchmarks import cli, compat, compat_cases, records
from benchmarks.optional import Unavailable
from halfgnn.compat import torch_scatter

CASES = [*compat_cases.of_rows(compat_cases.QUICK), *compat_cases.of_graphs(compat_cases.QUICK)]


def test_rows_and_their_tables(tmp_path, capsys):
    pytest.importorskip("dgl")
    assert cli.main(["compat", "--quick", "--only", "scatter_m", "GIN", "unbatch", "--out", str(tmp_path)]) == 0
    found = records.read(tmp_path / compat.KEPT, compat.CompatRow)
    assert {row.what for row in found} == {"scatter_mean", "scatter_max", "GINConv", "dgl.unbatch"}
    assert {row.backend for row in found if row.interface == "dgl"} == {"halfgnn", "dgl"}
    assert {row.backend for row in found if row.interface == "torch_scatter"} >= {"halfgnn", "pytorch"}
    assert all(row.runs and 0 < row.ms <= row.ms_p50 and row.others >= 0 for row in found if not row.note)
    printed = capsys.readouterr().out
    assert compat.render_rows(found) in printed and compat.render_graphs(found) in printed


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.what}, {case.size}, {case.direction}")
def test_halfgnn_is_right(case):
    pytest.importorskip("dgl")
    expected = compat._expected(case)
    for dtype, most in zip(case.dtypes, (2e-3, 0.06)):  # a ReLU of nearly 0 may be on either side
        result = case.compared(case.make(compat_cases.HALFGNN, dtype)())
        assert max(compat.Values(compat.tensors_in(result), []).errors(expected)) <= most


def test_a_library_that_is_halfgnns_takes_no_part(monkeypatch):
    monkeypatch.setattr(compat_cases, "import_package", lambda name: torch_scatter)  # as after halfgnn.compat.install
    with pytest.raises(Unavailable, match=r"torch_scatter is halfgnn\.compat\.torch_scatter"):
        compat_cases._package("torch_scatter", "torch_scatter")


def _row(backend, ms, **changes):
    values = dict(
        interface="dgl", what="A", size="1 node", direction="step", dtype="fp32", backend=backend, threads=1, clock="cpu", ms=ms,
        ms_p50=ms, runs=1, error=0.0, others=0.5, date="2026-01-01T00:00:00Z", commit="abc", cpu="C (family 1)", kernels="avx2",
        torch="2", library="1.1.3", command="python -m benchmarks compat",
    )  # fmt: skip
    return compat.CompatRow(**{**values, **changes})


def test_tables_mark_losses_and_wrong_results_and_name_their_source():
    found = [
        _row("halfgnn", 9.0, date="2025-01-01"), _row("halfgnn", 2.0), _row("dgl", 1.0),
        _row("halfgnn", 4.0, dtype="bf16", error=0.2), _row("dgl", None, dtype="bf16", note="refused"),
    ]  # fmt: skip
    text = " ".join(compat.render_graphs(found).split())
    assert "| A | 1 node | 1.00 | 2.00 | **0.500 x** | - | 4.00* | - |" in text
    assert (
        "the process's CPU time, the fastest call; C, kernels avx2, 1 thread; 2026-01-01, torch 2, dgl 1.1.3;" in text
    )
    assert "other processes kept 0.5 processors busy" in text and compat.render_rows(found) == ""
    scattered = [
        dataclasses.replace(row, interface="torch_scatter", direction=direction, backend=backend)
        for row in found[1:2] for direction, backend in (("forward", "halfgnn"), ("backward", "pytorch"))
    ]  # fmt: skip
    assert "| A | 1 node | 2.00 / - | - / - | - / 2.00 | - / - | - / - | - / - |" in compat.render_rows(scattered)
