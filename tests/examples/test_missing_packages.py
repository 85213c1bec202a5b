"""What the examples say and do without DGL, matplotlib and other packages, which are hidden from them."""

import importlib.util
import os
import subprocess
import sys
import types

import datasets
import numpy as np
import pytest
import torch
from report import draw

from tests.examples.support import PLANETOID, ROOT, needs_planetoid

PROGRAM = """
import runpy, sys
sys.modules[{hidden!r}] = None
sys.argv = [{program!r}]
runpy.run_path({program!r}, run_name="__main__")
"""


@pytest.mark.parametrize(
    ("program", "hidden"),
    [
        ("dgl_half_precision", "dgl"),
        ("gat_amp", "dgl"),
        ("mag240m/train", "tqdm"),
        ("planetoid_accuracy", "dgl"),
        ("sage_minibatch", "tqdm"),
        ("pyg_amp", "torch_geometric"),
    ],
)
def test_program_ends_in_one_sentence(program, hidden, tmp_path):
    path = str(ROOT / "examples" / f"{program}.py")
    code = PROGRAM.format(hidden=hidden, program=path)
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "examples")}
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 1 and "Traceback" not in result.stderr
    (line,) = result.stderr.strip().splitlines()
    name = program.partition("/")[0]
    assert line.startswith(f"{name}: {hidden} is needed and not installed: `pip install {hidden}")


def test_no_picture_without_matplotlib(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    draw([], "title", tmp_path / "loss.png")
    (line,) = capsys.readouterr().out.splitlines()
    assert "matplotlib is not installed" in line and not list(tmp_path.iterdir())


@pytest.fixture
def without_dgl(monkeypatch):
    monkeypatch.setitem(sys.modules, "dgl", None)


@needs_planetoid
def test_planetoid_without_dgl(without_dgl):
    pytest.importorskip("torch_geometric")
    data = datasets.load("cora", PLANETOID)
    assert "torch_geometric" in data.source
    assert (data.num_nodes, len(data.src), data.num_classes) == (2708, 10556 + 2708, 7)
    assert [len(part) for part in (data.train, data.val, data.test)] == [140, 500, 1000]
    torch.testing.assert_close(data.features.sum(1), torch.ones(2708))


@needs_planetoid
@pytest.mark.skipif(importlib.util.find_spec("dgl") is None, reason="DGL is not installed")
@pytest.mark.parametrize("name", ["cora", "citeseer"])
def test_planetoid_is_the_same_from_both_libraries(name, monkeypatch):
    pytest.importorskip("torch_geometric")
    of_dgl = datasets.load(name, PLANETOID)
    monkeypatch.setitem(sys.modules, "dgl", None)
    of_pyg = datasets.load(name, PLANETOID)
    for part in ("features", "labels", "train", "val", "test"):
        torch.testing.assert_close(getattr(of_pyg, part), getattr(of_dgl, part))
    edges = [set(zip(data.src.tolist(), data.dst.tolist())) for data in (of_dgl, of_pyg)]
    assert edges[0] == edges[1] and len(of_dgl.src) == len(of_pyg.src)


def test_neither_library(without_dgl, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "torch_geometric", None)
    for name in ("pubmed", "reddit"):
        with pytest.raises(datasets.DataError, match="neither is installed: `pip install torch_geometric`"):
            datasets.load(name, tmp_path)


def test_arxiv_needs_ogb_alone(without_dgl, monkeypatch):
    """ogb's arrays, of a directed graph of four nodes. An edge in both directions stays one per direction."""
    graph = {
        "edge_index": np.array([[0, 1, 2, 0], [1, 0, 0, 3]]),
        "num_nodes": 4,
        "node_feat": np.eye(4, dtype="float32"),
    }

    class Dataset:
        def __init__(self, name, root):
            assert name == "ogbn-arxiv"

        def __getitem__(self, index):
            return graph, np.array([[0], [1], [2], [0]])

        def get_idx_split(self):
            return {"train": np.array([0, 1]), "valid": np.array([2]), "test": np.array([3])}

    module = types.ModuleType("ogb.nodeproppred")
    module.NodePropPredDataset = Dataset
    package = types.ModuleType("ogb")
    package.__spec__ = importlib.util.spec_from_loader("ogb", loader=None)
    monkeypatch.setitem(sys.modules, "ogb", package)
    monkeypatch.setitem(sys.modules, "ogb.nodeproppred", module)
    data = datasets.load("ogbn-arxiv")
    edges = sorted(zip(data.src.tolist(), data.dst.tolist()))
    assert edges == [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 1), (2, 0), (2, 2), (3, 0), (3, 3)]
    assert data.labels.tolist() == [0, 1, 2, 0] and data.val.tolist() == [2] and data.num_classes == 3
