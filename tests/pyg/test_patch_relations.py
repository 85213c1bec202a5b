"""Layers of several relations under halfgnn.pyg.patch(): edges of a relation that are selected at every call."""

from __future__ import annotations

import gc

import pytest
import torch
import torch_geometric.nn as theirs

import halfgnn.pyg
from tests import support
from tests.pyg.test_patch_modules import NUM_EDGES, NUM_NODES, WIDTH, assert_same, edges, randn

pytestmark = pytest.mark.skipif(not support.supports("cpu", torch.float64), reason="needs float64")
NUM_RELATIONS = 3


def types():
    return torch.arange(NUM_EDGES) % NUM_RELATIONS


@pytest.fixture
def made(monkeypatch):
    """The edge_index of each Graph that was made."""
    found = []
    make = halfgnn.pyg._graph._make
    monkeypatch.setattr(halfgnn.pyg._graph, "_make", lambda *args: found.append(args[0]) or make(*args))
    return found


@pytest.mark.parametrize("layer", [theirs.RGCNConv, theirs.FiLMConv])
def test_edges_of_a_relation_are_sorted_once(made, layer):
    conv = layer(WIDTH, 4, num_relations=NUM_RELATIONS).double()
    x, edge_index, known = randn(NUM_NODES, WIDTH, seed=1), edges(), len(halfgnn.pyg._graph._known)
    expected = [conv(x, edge_index, edge_type) for edge_type in (types(), types().flip(0))]
    with halfgnn.pyg.accelerate():
        for _ in range(3):
            assert_same([conv(x, edge_index, types())], expected[:1])
        assert len(made) == NUM_RELATIONS
        assert_same([conv(x, edge_index, types().flip(0))], expected[1:])  # other edges, as many
    made.clear()
    del edge_index
    gc.collect()
    assert len(halfgnn.pyg._graph._known) == known


def test_selected_edges_that_are_written_to_are_new():
    conv, x, edge_index = theirs.SAGEConv(WIDTH, 4).double(), randn(NUM_NODES, WIDTH, seed=1), edges()
    with halfgnn.pyg.accelerate():
        for k in range(4):
            selected = edge_index[:, types() == 0]
            conv(x, selected)
            selected.copy_(selected.roll(1 + k, 1).flip(0))
            actual = conv(x, selected)
            with torch.no_grad():
                mean = torch.zeros(NUM_NODES, NUM_NODES).double()
                mean.index_put_((selected[1], selected[0]), torch.ones(()).double(), accumulate=True)
                mean /= mean.sum(1, keepdim=True).clamp(min=1)
                assert_same([actual], [conv.lin_l(mean @ x) + conv.lin_r(x)])


def test_few_selections_are_kept():
    conv, x, edge_index = theirs.SAGEConv(WIDTH, 4).double(), randn(NUM_NODES, WIDTH, seed=1), edges()
    with halfgnn.pyg.accelerate():
        for k in range(20):
            conv(x, edge_index[:, torch.arange(NUM_EDGES) % 20 != k])
    kept = [columns.shape[1] for columns, *_ in halfgnn.pyg._graph.topology_of(edge_index).selections]
    assert 0 < sum(kept) <= halfgnn.pyg._graph._SELECTED * NUM_EDGES
