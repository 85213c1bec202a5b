"""Columns of an edge_index that a mask selects at every call, under halfgnn.pyg.patch(): they are selected once."""

from __future__ import annotations

import pytest
import torch
import torch_geometric.nn as upstream

import halfgnn.pyg
from halfgnn.graphs_by_tensor import store
from halfgnn.pyg.drop_in.adapters import indexing
from tests import support
from tests.pyg.test_patch_modules import NUM_EDGES as EDGES
from tests.pyg.test_patch_modules import NUM_NODES, WIDTH, assert_same, edges, randn

pytestmark = pytest.mark.skipif(not support.supports("cpu", torch.float64), reason="needs float64")
FEW = 3  # relations, of which the last two have no edge


def types():
    return torch.arange(EDGES) % 5 // 4 * FEW


def along(conv, x, edge_index, edge_type, relation):
    """A sum along the columns of a relation, as programs write it."""
    return conv(x, edge_index[:, edge_type == relation])


def test_an_equal_mask_selects_the_same_columns(monkeypatch):
    """The second selection reads nothing of the edges; what it returns may be modified."""
    conv, x, edge_index, edge_type = upstream.SimpleConv(), randn(NUM_NODES, WIDTH, seed=1), edges(), types()
    expected = [along(conv, x, edge_index, edge_type, i) for i in range(FEW)]
    copies = []
    make = indexing.shared_copy
    monkeypatch.setattr(indexing, "shared_copy", lambda y: copies.append(y) or make(y))
    with halfgnn.pyg.accelerate():
        for count in range(3):
            copies.clear()
            assert_same([along(conv, x, edge_index, edge_type, i) for i in range(FEW)], expected)
            assert len(copies) == (FEW - 2 if count else 0)  # two relations have no edge
        selected = edge_index[:, edge_type == 0]
        selected += 1
        assert_same([along(conv, x, edge_index, edge_type, 0)], expected[:1])
        order = torch.arange(EDGES).flip(0)
        for _ in range(2):
            assert_same([conv(x, edge_index[:, order])], [conv(x, edge_index)])
            assert torch.equal(edge_index[:, order], edge_index.flip(1))


@pytest.mark.parametrize("written", ["edge_index", "edge_type", "mask", "columns"])
def test_selections_after_a_change_in_place(written):
    conv, x, edge_index, edge_type = upstream.SimpleConv(), randn(NUM_NODES, WIDTH, seed=1), edges(), types()
    with halfgnn.pyg.accelerate():
        mask = edge_type == 0
        columns = edge_index[:, mask]
        conv(x, columns)
        {"edge_index": edge_index, "edge_type": edge_type, "mask": mask, "columns": columns}[written].copy_(
            {
                "edge_index": edge_index.flip(0),
                "edge_type": edge_type.flip(0),
                "mask": mask.flip(0),
                "columns": columns.flip(0),
            }[written]
        )
        for at in (mask, edge_type == 0, (edge_type == 0).flip(0)):
            src, dst = edge_index
            expected = torch.stack([src[at.nonzero().view(-1)], dst[at.nonzero().view(-1)]])
            selected = edge_index[:, at]
            assert torch.equal(selected, expected)
            actual = conv(x, selected)
            assert_same([actual], [torch.zeros_like(x).index_add_(0, expected[1], x[expected[0]])])


@pytest.mark.parametrize("written", ["mask", "columns"])
def test_selections_after_a_change_that_pytorch_does_not_count(written):
    """NumPy writes to the mask, or to the columns that were returned."""
    conv, x, edge_index, mask = upstream.SimpleConv(), randn(NUM_NODES, WIDTH, seed=1), edges(), types() == 0
    with halfgnn.pyg.accelerate():
        for _ in range(3):
            columns = edge_index[:, mask]
            conv(x, columns)
            {"mask": mask, "columns": columns}[written].numpy()[..., :50] = False
            ids = mask.nonzero().view(-1)
            assert torch.equal(edge_index[:, mask], torch.stack([row[ids] for row in edge_index]))


def test_a_large_mask_is_not_held():
    conv, x, edge_index = upstream.SimpleConv(), randn(NUM_NODES, WIDTH, seed=1), edges()
    mask = torch.zeros(EDGES, dtype=torch.bool)
    mask[:2] = True
    with halfgnn.pyg.accelerate():
        conv(x, edge_index[:, mask])
    (selection,) = store.topology_of(edge_index).selections
    assert selection.by is None


@pytest.mark.parametrize("count", [1, 8, 13, 64, 67])
def test_masks_are_compared_whole(count):
    """Also those that do not begin at a multiple of eight bytes, or whose entries are apart."""
    base = torch.rand(2 * count + 3, generator=torch.Generator().manual_seed(count)) < 0.5
    memory = torch.frombuffer(bytearray(count + 16), dtype=torch.bool, offset=3)[
        5:
    ]  # not from a multiple of eight of its entries
    for mask in (base[:count], base[3 : 3 + count], base[: 2 * count : 2], memory[:count].copy_(base[:count])):
        for other in (mask.clone(), base.clone()[: 2 * count : 2].copy_(mask)):
            assert store._are_equal(mask, other)
            for place in {0, count // 2, count - 1}:
                changed = other.clone()
                changed[place] = not changed[place]
                assert not store._are_equal(mask, changed)


def test_a_mask_that_changed_before_its_columns_are_used_is_not_held():
    """What it selects from then on are other columns."""
    conv, x, edge_index = upstream.SimpleConv(), randn(NUM_NODES, WIDTH, seed=1), edges()
    mask = types() == 0
    before, expected = edge_index[:, mask], edge_index[:, ~mask]
    with halfgnn.pyg.accelerate():
        columns = edge_index[:, mask]
        mask.logical_not_()
        conv(x, columns)
        assert torch.equal(edge_index[:, mask], expected) and torch.equal(edge_index[:, ~mask], before)


def test_selections_are_held_for_twice_the_edges():
    """A program that draws other edges at every step keeps no more than that."""
    conv, x, edge_index = upstream.SimpleConv(), randn(NUM_NODES, WIDTH, seed=1), edges()
    draw = torch.Generator().manual_seed(0)
    with halfgnn.pyg.accelerate():
        for _ in range(12):
            conv(x, edge_index[:, torch.rand(EDGES, generator=draw) < 0.6])
    held = [selection.columns.shape[1] for selection in store.known.get(edge_index).selections]
    assert len(held) > 1 and EDGES < sum(held) <= store.SELECTED * EDGES


def test_masks_of_inference_mode_are_not_held():
    """Modifications of them are not counted."""
    conv, x, edge_index = upstream.SimpleConv(), randn(NUM_NODES, WIDTH, seed=1), edges()
    with torch.inference_mode():
        mask = types() == 0
    expected = edge_index[:, mask]
    with halfgnn.pyg.accelerate():
        for _ in range(2):
            columns = edge_index[:, mask]
            conv(x, columns)
            assert torch.equal(columns, expected)
        selections = store.known.get(edge_index).selections
        assert selections and all(selection.by is None for selection in selections)


def test_columns_in_a_matrix_of_ids_are_not_noted():
    """They are no edge_index."""
    edge_index = edges()
    with halfgnn.pyg.accelerate():
        for ids in (torch.arange(6).view(2, 3), torch.arange(6)):
            columns = edge_index[:, ids]
            assert columns.shape == (2, *ids.shape) and store.is_heard_of(columns) == (ids.dim() == 1)
