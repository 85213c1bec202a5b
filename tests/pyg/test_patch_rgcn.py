"""RGCNConv of torch_geometric under halfgnn.pyg.patch(), whose relations are reduced at once."""

from __future__ import annotations

import contextlib

import pytest
import torch
import torch_geometric
import torch_geometric.nn as upstream

import halfgnn.pyg
from tests import support
from tests.pyg.test_patch_modules import NUM_NODES, WIDTH, assert_same, check, fell_back, made, randn, routed, run

pytestmark = pytest.mark.skipif(not support.supports("cpu", torch.float64), reason="needs float64")
FEW, MANY, EDGES = 4, 12, 300  # relations: fewer and more pairs of one and a node than edges
OPTIONS = {
    "plain": {},
    "bases": {"num_bases": 2},
    "blocks": {"num_blocks": 2},
    "sum": {"aggr": "add", "root_weight": False, "bias": False},
    "max": {"aggr": "max"},
}
AT_ONCE = {"fused:RGCNConv"}


def edges(seed=1, num_dst=NUM_NODES):
    """Unsorted. No edge twice, and the last nodes have no in-edges."""
    ids = torch.randperm(NUM_NODES * (num_dst - 4), generator=torch.Generator().manual_seed(seed))[:EDGES]
    return torch.stack([ids % NUM_NODES, ids // NUM_NODES])


def types(num_relations):
    """The last relation, and one between, have no edge."""
    found = torch.randint(num_relations - 1, (EDGES,), generator=torch.Generator().manual_seed(2))
    return torch.where(found == 1, 0, found)


def conv_of(num_relations, name="plain", width=WIDTH):
    return made(lambda: upstream.RGCNConv(width, 6, num_relations, **OPTIONS[name]))


@pytest.mark.parametrize("num_relations", [FEW, MANY])
@pytest.mark.parametrize("name", OPTIONS)
def test_relations_at_once(name, num_relations):
    conv, x = conv_of(num_relations, name), randn(NUM_NODES, WIDTH, seed=1)
    check(conv, [x], edges(), types(num_relations), fuse=None)
    assert routed() == AT_ONCE and not fell_back()


@pytest.mark.parametrize("num_relations", [FEW, MANY])
def test_bipartite_relations_at_once(num_relations):
    conv, x = conv_of(num_relations, width=(WIDTH, 4)), [randn(NUM_NODES, WIDTH, seed=1), randn(20, 4, seed=2)]
    check(conv, x, edges(num_dst=20), types(num_relations), fuse=None)
    assert routed() == AT_ONCE


@pytest.mark.parametrize("num_relations", [FEW, MANY])
@pytest.mark.parametrize("kind", ["float32", "autocast", "bfloat16", "half=True"])
def test_dtypes_are_torch_geometrics(kind, num_relations):
    """Errors are at most those of torch_geometric and a rounding of the result."""
    conv, x, args = conv_of(num_relations), randn(NUM_NODES, WIDTH, seed=1), (edges(), types(num_relations))
    truth = run(conv, [x], *args)
    dtype = torch.bfloat16 if kind == "bfloat16" else torch.float32
    casts = torch.autocast("cpu", torch.bfloat16) if kind in ("autocast", "half=True") else contextlib.nullcontext()
    conv, x = conv.to(dtype), x.to(dtype)
    with casts:
        expected = run(conv, [x], *args)
        with halfgnn.pyg.accelerate(half=kind == "half=True"):
            actual = run(conv, [x], *args)
    assert routed() == AT_ONCE
    for mine, other, right in zip(actual, expected, truth, strict=True):
        assert mine.dtype == other.dtype or (kind == "half=True" and mine is actual[0])
        error, other_error = ((y.double() - right).abs().max() / right.abs().max() for y in (mine, other))
        assert error <= 1.5 * other_error + (1e-6 if kind == "float32" else 8e-3)


@pytest.mark.parametrize("num_relations", [FEW, MANY])
def test_changes_in_place_are_seen(num_relations):
    conv, x = conv_of(num_relations), randn(NUM_NODES, WIDTH, seed=1)
    edge_index, edge_type = edges(), types(num_relations)
    with halfgnn.pyg.accelerate():
        for change in (lambda: edge_type.copy_(edge_type.flip(0)), lambda: edge_index.copy_(edge_index.flip(0))):
            conv(x, edge_index, edge_type)
            change()
            actual = conv(x, edge_index, edge_type)
            assert_same([actual], [conv.to(torch.float64)(x, edge_index.clone(), edge_type.clone())])
    assert_same([actual], [conv(x, edge_index, edge_type)])


def test_what_falls_back():
    conv, x = conv_of(FEW), randn(NUM_NODES, WIDTH, seed=1)
    none = torch.empty(2, 0, dtype=torch.int64)
    check(conv, [x], none, none[0], fuse=None)
    ids = upstream.RGCNConv(NUM_NODES, 6, FEW).double()
    expected = ids(None, edges(), types(FEW))
    with halfgnn.pyg.accelerate():
        assert_same([ids(None, edges(), types(FEW))], [expected])
        with pytest.raises(RuntimeError):  # PyTorch's own
            conv(x, edges(), types(FEW) + FEW)
    assert not routed() & AT_ONCE

    class Negated(upstream.RGCNConv):
        def message(self, x_j, edge_type_ptr):
            return -x_j

    check(made(lambda: Negated(WIDTH, 6, FEW)), [x], edges(), types(FEW), fuse=None)
    assert not routed() & AT_ONCE and "fused:RGCNConv" in fell_back()


def test_errors_are_pytorchs():
    conv, x = conv_of(FEW), randn(NUM_NODES, WIDTH, seed=1)
    with halfgnn.pyg.accelerate():
        for features, edge_type in ((x.float(), types(FEW)), (x, types(FEW)[:-1])):
            with pytest.raises((IndexError, RuntimeError)):
                conv(features, edges(), edge_type)
    assert not routed() & AT_ONCE


def test_types_of_the_same_edges():
    """Each has pairs of its own."""
    conv, x, edge_index = conv_of(FEW), randn(NUM_NODES, WIDTH, seed=1), edges()
    every = [types(FEW), types(FEW).flip(0)]
    expected = [conv(x, edge_index, edge_type) for edge_type in every]
    with halfgnn.pyg.accelerate():
        for _ in range(2):
            assert_same([conv(x, edge_index, edge_type) for edge_type in every], expected)
    assert routed() == AT_ONCE


def test_what_programs_change_falls_back():
    x, fewer, other = randn(NUM_NODES, WIDTH, seed=1), conv_of(FEW), conv_of(FEW)
    fewer.num_relations = FEW - 1  # edges of the last relation are ignored
    check(fewer, [x], edges(), types(FEW) % (FEW - 1), fuse=None)
    other.propagate = lambda edge_index, x, size, edge_type_ptr: x + edge_index.sum()
    check(other, [x], edges(), types(FEW), fuse=None)
    assert not routed() & AT_ONCE


def test_means_of_all_relations_together(monkeypatch):
    """torch_geometric's, where pyg_lib multiplies each edge's source."""
    from halfgnn.compat import pyg_lib

    monkeypatch.setattr(torch_geometric.typing, "WITH_SEGMM", True)
    monkeypatch.setattr(torch_geometric.nn.conv.rgcn_conv, "pyg_lib", pyg_lib, raising=False)
    monkeypatch.setattr(torch_geometric.backend, "use_segment_matmul", True)
    x, counts = randn(NUM_NODES, WIDTH, seed=1), []
    for name in ("plain", "sum", "bases"):
        check(conv_of(FEW, name), [x], edges(), types(FEW), fuse=None)
        counts.append(routed() >= AT_ONCE)
    assert counts == [False, True, True]
