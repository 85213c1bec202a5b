"""python -m benchmarks code-sums: rows of every type, and their table."""

from benchmarks import cli, code_sums, records


def test_rows_and_their_table(tmp_path, capsys):
    options = ["--graph", "tiny", "--width", "16", "--repeats", "2", "--threads", "1", "--out", str(tmp_path)]
    assert cli.main(["code-sums", *options]) == 0
    found = records.read(tmp_path / code_sums.KEPT, code_sums.CodeSumRow)
    stored = [(row.stored, row.scale) for row in found if row.operator == "copy_u_sum"]
    assert stored[:2] == [("bf16", ""), ("fp32", "")] and len(stored) == 2 + sum(map(len, code_sums.PER.values()))
    assert {row.stored for row in found if row.operator == "u_mul_e_sum"} == {"bf16", "fp32", "uint8", "e5m2"}
    assert all(row.ms > 0 and row.ms_bf16 > 0 and row.repeats == 2 for row in found)
    assert code_sums.render(found) in capsys.readouterr().out
