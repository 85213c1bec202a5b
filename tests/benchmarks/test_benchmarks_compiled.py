"""``python -m benchmarks compiled``, whose graphs PyTorch's operators run here."""

from __future__ import annotations

import pytest
import torch

from tests import support

pytest.importorskip("torch_geometric")
from benchmarks.cli import main
from tests.support_compiled import lowered

pytestmark = pytest.mark.skipif(support.SIMULATED, reason="about torch.compile")


@pytest.fixture
def without_inductor(monkeypatch):
    compile = torch.compile
    monkeypatch.setattr(torch, "compile", lambda model, **options: compile(model, backend=lowered, **options))


def test_a_row(without_inductor, tmp_path, capsys):
    assert main(["compiled", "--only", "GINConv", "--size", "tiny", "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert (
        "GINConv" in printed
        and "beside the fastest of them: " in printed
        and "without a graph break: 1 of 1" in printed
    )
    (header, row) = (tmp_path / "compiled.csv").read_text().splitlines()
    values = dict(zip(header.split(","), row.split(",")))
    assert values["right"] == "yes" and float(values["ms_both"]) > 0 and values["breaks_both"] == "0"
