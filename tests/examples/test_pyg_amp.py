"""examples/pyg_amp.py in this process, on a small graph, and its arguments."""

import re
import sys

import datasets
import pytest

pytest.importorskip("torch_geometric")

import pyg_amp

from tests import support
from tests.examples.support import random_data

SMALL = ["--device", "cpu", "--epochs", "3", "--hidden", "8", "--heads", "2", "--dropout", "0"]


@pytest.fixture(autouse=True)
def _small_graph(monkeypatch):
    monkeypatch.setattr(datasets, "load", lambda name, folder: random_data(300, 2000, 20))


@pytest.fixture(autouse=True)
def _routes_small_calls(monkeypatch):
    support.route_small_calls(monkeypatch)


@pytest.mark.parametrize("options", ["--dtype bf16", "--dtype fp16 --clip-norm 1.0", "--dtype fp32 --fuse"])
def test_both_models_train_with_and_without_halfgnn(options, tmp_path, capsys):
    picture = tmp_path / "made" / "loss.png"
    runs = pyg_amp.main([*SMALL, *options.split(), "--out", str(picture)])
    assert [run.backend for run in runs] == ["GraphSAGE pyg", "GraphSAGE halfgnn", "GAT pyg", "GAT halfgnn"]
    for theirs, ours in (runs[:2], runs[2:]):
        assert ours.history.losses == pytest.approx(theirs.history.losses, rel=0.05)
        assert ours.history.losses[-1] < ours.history.losses[0] and ours.peak_bytes > 0
        # Under fuse=True the rows that the loss takes are counted, which are by no row of an edge_index.
        assert theirs.stats is None and ours.stats["fell_back"].keys() <= (
            {"fused:x[index]"} if "--fuse" in options else set()
        )
    calls = 2 * (3 + 3)  # attention without dropout is fused by default too
    assert runs[1].stats["routed"]["gspmm:copy_u_mean"] == runs[3].stats["routed"]["fused:GATConv"] == calls
    text = capsys.readouterr().out
    assert ("calls left to PyG: none" in text or "--fuse" in options) and len(re.findall(r" -> ", text)) == 4
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_table_without_matplotlib(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    picture = tmp_path / "loss.png"
    pyg_amp.main([*SMALL, "--model", "GraphSAGE", "--backend", "pyg", "--out", str(picture)])
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("GraphSAGE pyg") and " -> " in line for line in lines)
    assert "matplotlib is not installed" in lines[-1] and not picture.exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--dtype", "fp8"], "argument --dtype: invalid choice: 'fp8'"),
        (["--heads", "3"], "argument --hidden: 8 is not a multiple of --heads, 3"),
        (["--fuse", "--backend", "pyg"], "argument --fuse: needs the backend halfgnn"),
    ],
)
def test_wrong_arguments_end_the_program_with_a_message(options, message, capsys):
    with pytest.raises(SystemExit) as end:
        pyg_amp.main([*SMALL, *options])
    assert end.value.code == 2 and message in capsys.readouterr().err
