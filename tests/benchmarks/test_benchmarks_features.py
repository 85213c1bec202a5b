"""python -m benchmarks features: rows of every type, in memory and in files, and their table."""

from benchmarks import cli, features, records


def test_rows_and_their_table(tmp_path, capsys):
    options = [
        "--rows",
        "300",
        "--width",
        "64",
        "--ids",
        "50",
        "--repeats",
        "2",
        "--threads",
        "1",
        "--out",
        str(tmp_path),
    ]
    assert cli.main(["features", *options]) == 0
    assert cli.main(["features", *options, "--file", "--folder", str(tmp_path)]) == 0
    found = records.read(tmp_path / features.KEPT, features.FeatureRow)
    in_memory, in_files = ([row for row in found if row.place == place] for place in ("memory", "file"))
    assert [(row.stored, row.scale) for row in in_memory] == list(features._kinds())
    assert [(row.stored, row.scale) for row in in_files] == [("fp16", ""), ("uint8", "row"), ("e4m3", "tensor")]
    assert all(row.ms > 0 and row.repeats == 2 for row in found)
    num_bytes = {(row.stored, row.scale): row.mbytes * 1e6 for row in found}
    assert num_bytes["fp16", ""] == 50 * 128 and num_bytes["e4m3", "tensor"] == 50 * 64
    assert num_bytes["uint8", "row"] == 50 * (64 + 8) and num_bytes["int8", "row"] == 50 * (64 + 4)
    assert features.render(in_memory) in capsys.readouterr().out
    assert [p.name for p in tmp_path.iterdir()] == [features.KEPT]  # no files of rows are left
