"""examples/gat_amp.py as a program, and its arguments."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("dgl")

import datasets
import gat_amp

from tests.examples.support import PLANETOID, ROOT, has_planetoid, needs_cora, random_data

PROGRAM = Path(gat_amp.__file__)


def run_program(*arguments):
    environment = {key: value for key, value in os.environ.items() if key != "HALFGNN_DATA"}
    if has_planetoid:
        environment["HALFGNN_DATA"] = str(PLANETOID)
    environment["OMP_NUM_THREADS"] = "1"
    path = [str(ROOT), environment.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(entry for entry in path if entry)
    command = [sys.executable, str(PROGRAM), *map(str, arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)


ROW = re.compile(
    r"^(?P<run>\w+ \w+ cpu) +(?P<first>[\d.]+) -> (?P<last>[\d.]+) +(?P<val>[\d.]+)"
    r" +(?P<test>[\d.]+) +(?P<ms>[\d.]+) +(?P<matmul>[\d.]+) +(?P<mib>[\d.]+) +(?P<skipped>\d+)$",
    re.MULTILINE,
)


def table_rows(text):
    return {row["run"]: {key: float(row[key]) for key in row.groupdict() if key != "run"} for row in ROW.finditer(text)}


@needs_cora
def test_the_program_trains_on_cora_with_both_backends(tmp_path):
    picture = tmp_path / "made" / "loss.png"
    options = ["--dataset", "cora", "--backend", "both", "--device", "cpu", "--epochs", "3", "--hidden", "32"]
    done = run_program(*options, "--dtype", "bf16", "--out", picture)
    assert done.returncode == 0, done.stderr
    check_report(done.stdout, "bf16", calls=3 * (3 + 3))
    assert "3/3" in done.stderr  # the progress bar
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("options", "calls"),  # calls: layers * (training + evaluation)
    [
        ("--dtype fp16 --clip-norm 1.0 --accumulate 2 --heads 2 1 --dropout 0.1", 2 * (3 * 2 + 3)),
        ("--dtype fp32 --heads 1 --layers 2 --accumulate 2", 2 * (3 * 2 + 3)),
    ],
)
def test_both_backends_train_and_are_compared(options, calls, tmp_path, monkeypatch, capsys):
    """On a small graph, in this process."""
    monkeypatch.setattr(datasets, "load", lambda name, folder: random_data(600, 4000, 100))
    picture = tmp_path / "loss.png"
    common = ["--device", "cpu", "--epochs", "3", "--hidden", "32", "--out", str(picture)]
    gat_amp.main([*common, *options.split()])
    printed = capsys.readouterr()
    check_report(printed.out, options.split()[1], calls)
    assert "3/3" in printed.err
    assert picture.read_bytes().startswith(b"\x89PNG")


def check_report(text, dtype, calls):
    """The table of both backends, which start from the same weights, and halfgnn's calls."""
    rows = table_rows(text)
    assert list(rows) == ["dgl fp32 cpu", f"halfgnn {dtype} cpu"]
    for row in rows.values():
        assert row["last"] < row["first"]
        assert row["skipped"] == 0
        assert 0 < row["test"] <= 1
        assert row["ms"] > 0 and row["matmul"] > 0 and row["mib"] > 0
    first = [row["first"] for row in rows.values()]
    assert abs(first[0] - first[1]) < 0.01
    assert ("dgl runs fp32 cpu, because DGLError" in text) == (dtype != "fp32")
    assert "halfgnn runs" not in text  # it runs in the requested mode
    assert f"gspmm:u_mul_e_sum {calls}" in text
    assert "calls left to DGL: none" in text


def test_fuse_runs_whole_modules(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(datasets, "load", lambda name, folder: random_data(600, 4000, 100))
    common = ["--device", "cpu", "--epochs", "3", "--hidden", "8", "--out", str(tmp_path / "loss.png")]
    (plain,) = gat_amp.main([*common, "--backend", "halfgnn"])
    (fused,) = gat_amp.main([*common, "--backend", "halfgnn", "--fuse"])
    text = capsys.readouterr().out
    assert f"fused:GATConv {3 * (3 + 3)}" in text and fused.label == "halfgnn bf16 cpu fused"
    assert "gspmm" not in "".join(fused.stats["routed"]) and not fused.stats["fell_back"]
    assert fused.history.losses == pytest.approx(plain.history.losses, rel=0.02)


@needs_cora
def test_default_picture_is_named_after_data_and_dtype(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    if has_planetoid:
        monkeypatch.setenv("HALFGNN_DATA", str(PLANETOID))
    options = [
        "--backend",
        "dgl",
        "--dtype",
        "fp32",
        "--device",
        "cpu",
        "--epochs",
        "1",
        "--hidden",
        "4",
    ]
    (run,) = gat_amp.main(options)
    assert len(run.history.losses) == 1
    assert (tmp_path / "out" / "gat_amp_cora_fp32.png").is_file()


def test_wrong_arguments_end_the_program_with_a_message(capsys):
    with pytest.raises(SystemExit) as end:
        gat_amp.main(["--dataset", "corra"])
    assert end.value.code == 2
    assert "argument --dataset: invalid choice: 'corra'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--dtype", "fp8"], "argument --dtype: invalid choice: 'fp8'"),
        (["--backend", "pyg"], "argument --backend: invalid choice: 'pyg'"),
        (["--heads"], "argument --heads: expected at least one argument"),
        (["--heads", "1", "0"], "argument --heads: must be >= 1, got 0"),
        (["--heads", "two"], "argument --heads: invalid int value: 'two'"),
        (["--heads", "1", "1", "--layers", "3"], "argument --heads: 2 numbers for --layers 3"),
        (["--layers", "0"], "argument --layers: must be >= 1, got 0"),
        (["--hidden", "-4"], "argument --hidden: must be >= 1, got -4"),
        (["--epochs", "0"], "argument --epochs: must be >= 1, got 0"),
        (["--eval-every", "0"], "argument --eval-every: must be >= 1, got 0"),
        (["--accumulate", "0"], "argument --accumulate: must be >= 1, got 0"),
        (["--clip-norm", "0"], "argument --clip-norm: must be > 0.0, got 0"),
        (["--lr", "nan"], "argument --lr: must be > 0.0, got nan"),
        (["--weight-decay", "-1"], "argument --weight-decay: must be >= 0.0, got -1"),
        (["--fuse", "--backend", "dgl"], "argument --fuse: needs the backend halfgnn"),
        (["--dropout", "1"], "argument --dropout: must be >= 0.0 and < 1.0, got 1"),
        (["--device", "cuda"], "argument --device: cuda was requested, but PyTorch sees no GPU"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_arguments(options, message, capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit) as end:
        gat_amp.parse(options)
    assert end.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "heads"),
    [
        ([], [1, 1, 1]),
        (["--heads", "8", "1"], [8, 1]),
        (["--layers", "2"], [1, 1]),
        (["--heads", "4", "--layers", "3"], [4] * 3),
    ],
)
def test_heads_give_the_layers(options, heads):
    args = gat_amp.parse(options)
    assert args.heads == heads
    model = gat_amp.GAT(16, 8, 5, args.heads)
    assert [layer._num_heads for layer in model.layers] == heads
    assert [layer._out_feats for layer in model.layers] == [8] * (len(heads) - 1) + [5]
