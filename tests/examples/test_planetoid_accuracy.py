"""examples/planetoid_accuracy.py: its table and its rows."""

import re

import pytest

pytest.importorskip("dgl")

import datasets
import planetoid_accuracy

from tests.examples.support import random_data


def test_accuracy_of_fused_modules_is_tabulated(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(datasets, "load", lambda name, folder: random_data())
    rows = tmp_path / "new" / "rows.csv"
    planetoid_accuracy.main(["--datasets", "cora", "--seeds", "2", "--epochs", "3", "--out", str(rows)])
    lines = [line.split("|")[1:-1] for line in capsys.readouterr().out.splitlines()[3:]]
    assert [(line[1].strip(), line[2].strip(), line[3].strip()) for line in lines] == [
        (module, *run) for module in ("GATConv", "GATv2Conv") for run in planetoid_accuracy.RUNS
    ]
    assert all(re.fullmatch(r" \d+\.\d\d ± \d+\.\d\d ", line[4]) for line in lines)
    written = rows.read_text().splitlines()
    assert len(written) == 1 + 12 and written[0] == ",".join(planetoid_accuracy.COLUMNS)


def test_a_folder_is_no_place_for_rows(tmp_path):
    with pytest.raises(SystemExit, match="is a folder; expected a CSV file"):
        planetoid_accuracy.main(["--out", str(tmp_path)])
