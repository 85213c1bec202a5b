"""The notebook's cells run, one after the other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch_geometric")

NOTEBOOK = Path(__file__).resolve().parents[2] / "examples" / "first_five_minutes.ipynb"


def test_the_first_five_minutes(capsys):
    names: dict = {}
    for cell in json.loads(NOTEBOOK.read_text())["cells"]:
        if cell["cell_type"] == "code":
            assert not cell["outputs"]  # of a machine that nobody knows
            exec(compile("".join(cell["source"]), NOTEBOOK.name, "exec"), names)
    assert names["loss_after"] == pytest.approx(names["loss_before"], rel=0.02)
    assert (names["out"] - names["fused"]).abs().max() < 0.05
    assert "with halfgnn" in capsys.readouterr().out
