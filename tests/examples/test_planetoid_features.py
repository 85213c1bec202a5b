"""examples/planetoid_features.py: its table and its rows."""

import csv
import re

import pytest

pytest.importorskip("dgl")

import datasets
import planetoid_features

from tests.examples.support import random_data


def test_accuracy_of_every_type_is_tabulated(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(datasets, "load", lambda name, folder: random_data())
    rows = tmp_path / "rows.csv"
    planetoid_features.main(
        ["--datasets", "cora", "--seeds", "2", "--epochs", "3", "--scale", "column", "--out", str(rows)]
    )
    lines = [line.split("|")[1:-1] for line in capsys.readouterr().out.splitlines()[3:]]
    assert [line[1].strip() for line in lines] == ["GCN", "SAGE"]
    assert all(re.fullmatch(r" \d+\.\d\d ± \d+\.\d\d ", cell) for line in lines for cell in line[2:])
    with rows.open() as file:
        found = list(csv.DictReader(file))
    assert len(found) == 5 * 2 * 2 and {row["scale"] for row in found} == {"column"}
    errors = {row["features"]: float(row["mean_error"]) for row in found}
    assert errors["float32"] == 0 and 0 < errors["uint8"] < errors["float8_e4m3fn"] < errors["float8_e5m2"]
