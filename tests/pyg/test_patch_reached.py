"""SAGEConv and GraphConv of torch_geometric under halfgnn.pyg.patch(), where edges reach few nodes; and sums over edge types."""

from __future__ import annotations

import contextlib

import pytest
import torch
import torch_geometric.nn as upstream

import halfgnn.pyg
from halfgnn.pyg.drop_in import thresholds
from tests import support
from tests.pyg.test_patch_modules import WIDTH, assert_same, check, made, randn, routed, run

pytestmark = pytest.mark.skipif(not support.supports("cpu", torch.float64), reason="needs float64")
NODES, REACHED, EDGES = 40, 9, 60
SAVED = "products of reached nodes"


@pytest.fixture(autouse=True)
def _any_product(monkeypatch):
    monkeypatch.setattr(thresholds, "PRODUCTS_SAVED", 1)


def edges(num_src=NODES, num_reached=REACHED):
    """Unsorted. No edge twice; one of the first nodes, and those behind num_reached, have no in-edges."""
    ids = torch.randperm(num_src * num_reached, generator=torch.Generator().manual_seed(0))[:EDGES]
    dst = ids // num_src
    return torch.stack([ids % num_src, torch.where(dst == 2, num_reached - 1, dst)])


def weights():
    return randn(EDGES, seed=7).abs() + 0.1


LAYERS = {  # name: (constructor, further arguments)
    "SAGE": (lambda: upstream.SAGEConv(WIDTH, 5), []),
    "SAGE sum": (lambda: upstream.SAGEConv(WIDTH, 5, aggr="sum"), []),
    "SAGE max": (lambda: upstream.SAGEConv(WIDTH, 5, aggr="max", normalize=True), []),
    "SAGE without bias": (lambda: upstream.SAGEConv(WIDTH, 5, bias=False), []),
    "SAGE without root": (lambda: upstream.SAGEConv(WIDTH, 5, root_weight=False), []),
    "SAGE without both": (lambda: upstream.SAGEConv(WIDTH, 5, root_weight=False, bias=False), []),
    "GraphConv": (lambda: upstream.GraphConv(WIDTH, 5), []),
    "GraphConv weighted": (lambda: upstream.GraphConv(WIDTH, 5, aggr="mean"), [weights]),
}


@pytest.mark.parametrize("name", LAYERS)
def test_only_reached_nodes_are_multiplied(name):
    make, further = LAYERS[name]
    conv, x = made(make), randn(NODES, WIDTH, seed=1)
    check(conv, [x], edges(), *(arg() for arg in further), fuse=None)
    assert SAVED in routed()
    halfgnn.pyg.reset_stats()
    check(conv, [x], edges(num_reached=NODES), *(arg() for arg in further), fuse=None)
    assert SAVED not in routed()


@pytest.mark.parametrize("kind", [upstream.SAGEConv, upstream.GraphConv])
def test_bipartite(kind):
    conv = made(lambda: kind((WIDTH, 6), 5))
    check(conv, [randn(20, WIDTH, seed=1), randn(NODES, 6, seed=2)], edges(20), fuse=None)
    assert SAVED in routed()


@pytest.mark.parametrize("kind", ["float32", "autocast", "bfloat16"])
def test_dtypes_are_torch_geometrics(kind):
    conv, x = made(lambda: upstream.SAGEConv(WIDTH, 5)), randn(NODES, WIDTH, seed=1)
    truth = run(conv, [x], edges())
    dtype = torch.bfloat16 if kind == "bfloat16" else torch.float32
    conv, x = conv.to(dtype), x.to(dtype)
    with torch.autocast("cpu", torch.bfloat16) if kind == "autocast" else contextlib.nullcontext():
        expected = run(conv, [x], edges())
        with halfgnn.pyg.accelerate():
            actual = run(conv, [x], edges())
    assert SAVED in routed()
    for mine, other, right in zip(actual, expected, truth, strict=True):
        assert mine.dtype is other.dtype
        error, other_error = ((y.double() - right).abs().max() / right.abs().max() for y in (mine, other))
        assert error <= 1.5 * other_error + (1e-6 if kind == "float32" else 8e-3)


def test_changes_in_place_are_seen():
    """Also one that lets edges reach other nodes."""
    conv, x, edge_index = made(lambda: upstream.SAGEConv(WIDTH, 5)), randn(NODES, WIDTH, seed=1), edges()
    with halfgnn.pyg.accelerate():
        for others in (edges(num_reached=20), edges(num_reached=NODES), edges().flip(0), edges()):
            conv(x, edge_index)
            edge_index.copy_(others)
            actual = conv(x, edge_index)
            assert_same([actual], [conv(x, others)])
    assert_same([actual], [conv(x, edge_index)])


def test_what_falls_back():
    conv, x = made(lambda: upstream.SAGEConv(WIDTH, 5)), randn(NODES, WIDTH, seed=1)
    check(conv, [x], torch.empty(2, 0, dtype=torch.int64), fuse=None)
    check(made(lambda: upstream.SAGEConv(WIDTH, WIDTH, project=True)), [x], edges(), fuse=None)
    check(made(lambda: upstream.SAGEConv(WIDTH, 5, aggr=["mean", "max"])), [x], edges(), fuse=None)
    check(made(lambda: upstream.SAGEConv(WIDTH, 5, flow="target_to_source")), [x], edges(), fuse=None)
    calls = []
    hooked = made(lambda: upstream.SAGEConv(WIDTH, 5))
    hooked.lin_l.register_forward_hook(lambda *args: calls.append(args[1][0].shape[0]))
    check(hooked, [x], edges(), fuse=None)
    assert calls == [NODES] * 3 and SAVED not in routed()
    with halfgnn.pyg.accelerate(), pytest.raises((IndexError, RuntimeError)):
        conv(x[:REACHED], edges())  # sources that are not there


@pytest.mark.parametrize("width, bias", [(5, True), (1, False)])
def test_a_root_layer_of_the_programs(width, bias):
    conv, x = made(lambda: upstream.SAGEConv(WIDTH, 5)), randn(NODES, WIDTH, seed=1)
    conv.lin_r = made(lambda: upstream.Linear(WIDTH, width, bias=bias))
    check(conv, [x], edges(), fuse=None)
    assert SAVED not in routed()


def test_errors_of_sizes():
    conv, x = made(lambda: upstream.GraphConv(WIDTH, 5)), randn(NODES, WIDTH, seed=1)
    with halfgnn.pyg.accelerate():
        for args in ((None, (NODES, NODES + 1)), (weights()[:-1],)):
            with pytest.raises((ValueError, RuntimeError)):
                conv(x, edges(), *args)
    assert SAVED not in routed()


def test_edges_that_are_known():
    """Their last destination is not looked for again."""
    conv, x, edge_index = made(lambda: upstream.SAGEConv(WIDTH, 5)), randn(NODES, WIDTH, seed=1), edges()
    with halfgnn.pyg.accelerate():
        for _ in range(3):
            conv(x, edge_index)
    assert halfgnn.pyg.stats()["routed"][SAVED] == 3


def test_weighted_features_that_are_modified_later():
    conv = made(lambda: upstream.GraphConv(WIDTH, 5))

    def step():
        x, w = randn(NODES, WIDTH, seed=1).requires_grad_(), weights().requires_grad_()
        features, weight = x * 1, w * 1
        out = conv((features, randn(NODES, WIDTH, seed=2)), edges(), weight)
        features += 1
        weight += 1
        return out, *torch.autograd.grad(out.sum(), [x, w])

    with halfgnn.pyg.accelerate():
        actual = step()
    assert SAVED in routed()
    x, w = randn(NODES, WIDTH, seed=1).requires_grad_(), weights().requires_grad_()
    out = conv((x, randn(NODES, WIDTH, seed=2)), edges(), w)
    assert_same(actual, [out, *torch.autograd.grad(out.sum(), [x, w])])


class Doubled(upstream.SAGEConv):
    def propagate(self, edge_index, **kwargs):
        return 2 * super().propagate(edge_index, **kwargs)


def test_a_propagate_of_the_programs():
    x = randn(NODES, WIDTH, seed=1)
    check(made(lambda: Doubled(WIDTH, 5)), [x], edges(), fuse=None)
    conv = made(lambda: upstream.SAGEConv(WIDTH, 5))
    conv.propagate = lambda edge_index, x, size: x[1] + 1
    check(conv, [x], edges(), fuse=None)
    assert SAVED not in routed()


class Subclass(halfgnn.pyg.SAGEConv):
    pass


def test_subclasses_are_compiled():
    """The question whose propagate a module has breaks no graph."""
    conv, x = made(lambda: Subclass(WIDTH, 5)), randn(NODES, WIDTH, seed=1)
    assert_same([torch.compile(conv, backend="eager", fullgraph=True)(x, edges())], [conv(x, edges())])


def test_results_may_be_modified_in_place():
    conv, x = made(lambda: upstream.SAGEConv(WIDTH, WIDTH)), randn(NODES, WIDTH, seed=1)

    def forward(y, edge_index):
        y = y + conv(y, edge_index).relu_()
        return conv(y, edge_index).tanh_()

    inputs = x.clone().requires_grad_(), x.clone().requires_grad_()
    expected = forward(inputs[0], edges())
    expected.sum().backward()
    with halfgnn.pyg.accelerate():
        actual = forward(inputs[1], edges())
        actual.sum().backward()
    assert_same([actual, inputs[1].grad], [expected, inputs[0].grad])


@pytest.mark.parametrize("aggr", ["sum", "mean", "max", "min", "cat", None])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_results_of_edge_types_are_added(aggr, dtype):
    from torch_geometric.nn.conv import hetero_conv

    for count in (1, 2, 3):
        parts = [randn(4, 3, seed=i).to(dtype).requires_grad_() for i in range(count)]
        expected = hetero_conv.group(parts, aggr)
        grad = randn(*expected.shape, seed=9).to(dtype)
        with halfgnn.pyg.accelerate():
            actual = hetero_conv.group(parts, aggr)
        grads = [torch.autograd.grad(out, parts, grad, retain_graph=True) for out in (actual, expected)]
        assert_same([actual, *grads[0]], [expected, *grads[1]])
        assert all(torch.equal(x, randn(4, 3, seed=i).to(dtype)) for i, x in enumerate(parts))  # unmodified
    columns = [randn(3, 4, seed=i).t() for i in range(3)]
    with halfgnn.pyg.accelerate():
        assert aggr is None or hetero_conv.group(columns, aggr).is_contiguous()
    with halfgnn.pyg.accelerate(), pytest.raises((RuntimeError, TypeError)):
        hetero_conv.group([parts[0], parts[1][:1]], "sum")


@pytest.mark.parametrize("reached, is_routed", [(30, True), (31, False)])
def test_three_quarters_of_the_nodes_are_few(reached, is_routed):
    """To multiply nearly all rows one by one, and copy them, takes as long as to multiply all."""
    conv, x = made(lambda: upstream.SAGEConv(WIDTH, 5)), randn(NODES, WIDTH, seed=1)
    check(conv, [x], edges(num_reached=reached), fuse=None)
    assert (SAVED in routed()) is is_routed


def test_a_checkpoint_is_torch_geometrics():
    """What is known of an edge_index may differ when a checkpoint is recomputed."""
    conv, x = made(lambda: upstream.SAGEConv(WIDTH, 5)), randn(NODES, WIDTH, seed=1)
    expected = run(conv, [x], edges())

    def checkpointed(*args):
        return torch.utils.checkpoint.checkpoint(conv, *args, use_reentrant=False)

    with halfgnn.pyg.accelerate():
        x = x.requires_grad_()
        out = checkpointed(x, edges())
        assert SAVED not in routed()
        torch.autograd.grad(out.sum(), x)
        assert SAVED not in routed()
        conv(x, edges())
    assert SAVED in routed()
    assert_same([out], expected[:1])


def test_weights_in_fp32_of_features_in_half_precision():
    """Their products are fp32, which a layer in half precision takes under autocast alone."""
    x, weight = randn(NODES, WIDTH, seed=1).bfloat16(), weights().float()
    conv = made(lambda: upstream.GraphConv(WIDTH, 5)).bfloat16()
    for context in (contextlib.nullcontext(), halfgnn.pyg.accelerate()):
        with context, pytest.raises(RuntimeError, match="same dtype"):
            conv(x, edges(), weight)
    with torch.autocast("cpu", torch.bfloat16):
        expected = conv(x, edges(), weight)
        with halfgnn.pyg.accelerate():
            actual = conv(x, edges(), weight)
    assert SAVED in routed() and actual.dtype is expected.dtype
    torch.testing.assert_close(actual, expected, rtol=2e-2, atol=2e-2)
