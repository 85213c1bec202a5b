"""python -m benchmarks sampling: rows of both samplers, their table, and samples of unlike sizes."""

import dataclasses

import pytest

from benchmarks import cli, records, sampling


def test_rows_and_their_table(tmp_path, capsys):
    pytest.importorskip("dgl")
    options = [
        "--batches",
        "12",
        "--batch-size",
        "400",
        "--fanouts",
        "3",
        "2",
        "--threads",
        "1",
        "--out",
        str(tmp_path),
    ]
    assert cli.main(["sampling", "tiny", *options]) == 0
    found = records.read(tmp_path / sampling.KEPT, sampling.SamplingRow)
    assert [(row.backend, row.idtype) for row in found] == [
        ("halfgnn", "int32"),
        ("halfgnn", "int64"),
        ("dgl", "int64"),
    ]
    assert all(row.batches == 12 and 0 < row.ms_p20 <= row.ms <= row.ms_p80 for row in found)
    assert capsys.readouterr().out.startswith(sampling.render(found)[:40])
    unlike = [found[0], dataclasses.replace(found[1], input_nodes=found[0].input_nodes * 1.1)]
    with pytest.raises(ValueError, match="nodes per batch; expected about the same"):
        sampling._check_sizes(unlike)
