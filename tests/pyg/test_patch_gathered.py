"""Rows that programs take, x[src] and x.index_select(0, src): under halfgnn.pyg.patch(fuse=True) they may stay unformed."""

from __future__ import annotations

import pytest
import torch
from torch_geometric import utils

import halfgnn.pyg
from halfgnn.pyg.drop_in.message import Message
from tests import support
from tests.pyg.support_pyg import Layer
from tests.pyg.test_patch_messages import MESSAGES
from tests.pyg.test_patch_modules import NUM_EDGES, NUM_NODES, WIDTH, assert_same, edges, randn, routed
from tests.pyg.test_patch_products import PRODUCTS

pytestmark = pytest.mark.skipif(not support.supports("cpu", torch.float64), reason="needs float64")


def expanded(index, x):
    return index.view(-1, *[1] * (x.dim() - 1)).expand_as(x)


SUMS = {
    "scatter": lambda x, index: utils.scatter(x, index, 0, NUM_NODES),
    "index_add_": lambda x, index: x.new_zeros(NUM_NODES, *x.shape[1:]).index_add_(0, index, x),
    "scatter_add": lambda x, index: x.new_zeros(NUM_NODES, *x.shape[1:]).scatter_add(0, expanded(index, x), x),
    "scatter_reduce_": lambda x, index: x.new_zeros(NUM_NODES, *x.shape[1:]).scatter_reduce_(
        0, expanded(index, x), x, "mean", include_self=False
    ),
}
TAKES = {
    "x[src]": lambda x, index: x[index],
    "index_select": lambda x, index: x.index_select(0, index),
    "torch.index_select": lambda x, index: torch.index_select(x, 0, index),
}


def summed(function, take, add, requires_grad):
    """function(x[src], weights) added up at dst, and its gradients. Features are an operator's result, as in a network."""
    src, dst = edges()
    leaf, w = (randn(rows, width, seed=rows).abs() + 0.5 for rows, width in ((NUM_NODES, WIDTH), (NUM_EDGES, 1)))
    leaf, w = leaf.requires_grad_(requires_grad), w.requires_grad_(requires_grad)
    out = add(function(take(leaf * 1, src), w), dst)
    grads = []
    if out.requires_grad:
        grads = torch.autograd.grad(out, (leaf, w), randn(*out.shape, seed=4), allow_unused=True)
    return [out.requires_grad, out.detach(), *grads]


def assert_alike(actual, expected):
    assert actual[0] == expected[0]
    for a, b in zip(actual[1:], expected[1:], strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("requires_grad", [True, False])
@pytest.mark.parametrize("name", MESSAGES)
def test_any_function_of_taken_rows(name, requires_grad):
    function, operator = MESSAGES[name]
    if name.startswith("pickled whole") and requires_grad:
        pytest.skip("PyTorch warns about it")
    arguments = function, TAKES["x[src]"], SUMS["scatter"], requires_grad
    expected = summed(*arguments)
    with halfgnn.pyg.accelerate(fuse=True):
        assert_alike(summed(*arguments), expected)
    if operator is not None:
        assert operator.format("sum") in routed()


@pytest.mark.parametrize("take", TAKES)
@pytest.mark.parametrize("add", SUMS)
def test_rows_that_are_only_summed_are_not_formed(take, add):
    arguments = lambda x, w: w * x, TAKES[take], SUMS[add], True
    expected = summed(*arguments)
    with halfgnn.pyg.accelerate(fuse=True):
        assert_alike(summed(*arguments), expected)
    assert f"gspmm:u_mul_e_{'mean' if add == 'scatter_reduce_' else 'sum'}" in routed()
    assert not any(name.startswith("message:") for name in halfgnn.pyg.stats()["fell_back"])


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_of_both_ends(name):
    function, names = PRODUCTS[name]
    src, dst = edges()

    def run():
        leaf = randn(NUM_NODES, WIDTH, seed=1).requires_grad_()
        x = leaf * 1
        out = SUMS["index_add_"](function(x[dst], x[src]), dst)
        return out.detach(), *torch.autograd.grad(out, leaf, randn(*out.shape, seed=4))

    expected = run()
    with halfgnn.pyg.accelerate(fuse=True):
        assert_same(run(), expected)
    assert {name for name in routed() if name.startswith("gsddmm")} == names


@pytest.mark.parametrize("is_read_before", [False, True])
@pytest.mark.parametrize("requires_grad", [True, False])
def test_features_may_change_before_rows_are_read(requires_grad, is_read_before):
    """PyTorch's x[src] is a copy. Nothing may raise here: the program does not know of messages."""
    src, dst = edges()

    def run():
        leaf = randn(NUM_NODES, WIDTH, seed=1).requires_grad_(requires_grad)
        x = leaf * 1
        rows = x[src]
        product = rows * 2
        if is_read_before:
            product.sum()
        x += 1
        out = SUMS["index_add_"](product, dst) + x
        return [out.requires_grad, out.detach(), *(torch.autograd.grad(out.sum(), leaf) if requires_grad else [])]

    expected = run()
    with halfgnn.pyg.accelerate(fuse=True):
        assert_alike(run(), expected)


@pytest.mark.parametrize("requires_grad", [True, False])
def test_views_with_the_negative_bit(requires_grad):
    src, dst = edges()

    def run():
        parts = [randn(NUM_NODES, WIDTH, seed=seed).requires_grad_(requires_grad) for seed in (1, 2)]
        x = torch.complex(*parts).conj().imag
        assert x.is_neg()
        rows = x[src]
        out = SUMS["index_add_"](rows.exp() * 2, dst) + rows.sum()
        return [out.requires_grad, out.detach(), *(torch.autograd.grad(out.sum(), parts[1]) if requires_grad else [])]

    expected = run()
    with halfgnn.pyg.accelerate(fuse=True):
        assert_alike(run(), expected)


FEATURES = {
    "a parameter": lambda: torch.nn.Parameter(randn(NUM_NODES, WIDTH, seed=1)),
    "of NumPy": lambda: torch.from_numpy(randn(NUM_NODES, WIDTH, seed=1).numpy()),
}


@pytest.mark.parametrize("name", FEATURES)
def test_features_whose_memory_cannot_be_shared_are_gathered(name):
    src, _ = edges()
    x = FEATURES[name]()
    with halfgnn.pyg.accelerate(fuse=True):
        rows = x[src]
        with torch.no_grad():
            before, _ = rows.clone(), x.add_(1)
            assert type(rows) is torch.Tensor and torch.equal(rows, before)


def test_what_is_taken():
    edge_index, x = edges(), randn(NUM_NODES, WIDTH, seed=1).requires_grad_() * 1
    with halfgnn.pyg.accelerate(fuse=True):
        assert type(x[edge_index[0]]) is Message
        assert type(x[edge_index[0].clone()]) is torch.Tensor, "not a row of an edge_index"
        assert type(x[edge_index[1, 1:]]) is torch.Tensor, "a part of a row"
        assert type(x[:, edge_index[0] % WIDTH]) is torch.Tensor
        assert type(x[edge_index]) is torch.Tensor
        assert type(x.long()[edge_index[0]]) is torch.Tensor
        with torch.inference_mode():
            assert type((x * 1)[edge_index[0]]) is torch.Tensor
        with pytest.raises(IndexError):
            x[: int(edge_index[0].max())][edge_index[0]]
    assert type(x[edge_index[0]]) is torch.Tensor


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_functions_take_rows(backend):
    torch.compiler.reset()
    function = torch.compile(lambda x, w: (x * w).relu() + 1, backend=backend)
    arguments = function, TAKES["x[src]"], SUMS["index_add_"], True
    expected = summed(*arguments)
    with halfgnn.pyg.accelerate(fuse=True):
        assert_alike(summed(*arguments), expected)


def test_second_derivatives_by_positions():
    """Forces, and a loss of them: as in potentials of molecules."""
    src, dst = edges()

    def run():
        leaf = randn(NUM_NODES, 3, seed=1).requires_grad_()
        position = leaf * 1
        distance = (position[src] - position[dst]).pow(2).sum(-1, keepdim=True)
        energy = SUMS["index_add_"]((-distance).exp(), dst).sum()
        (force,) = torch.autograd.grad(energy, position, create_graph=True)
        return [force.detach(), *torch.autograd.grad(force.pow(2).sum(), leaf)]

    expected = run()
    with halfgnn.pyg.accelerate(fuse=True):
        assert_same(run(), expected)


def gradient_of_rows(before):
    src, dst = edges()
    rows = (randn(NUM_NODES, WIDTH, seed=1).requires_grad_() * 1)[src]
    before(rows)
    return torch.autograd.grad(SUMS["index_add_"](rows.tanh() * 2, dst).pow(2).sum(), rows)


def test_a_gradient_of_rows_is_whole_or_refused():
    expected = gradient_of_rows(lambda rows: None)
    with halfgnn.pyg.accelerate(fuse=True):
        with pytest.raises(RuntimeError, match=r"reduced without being materialized.*retain_grad\(\)"):
            gradient_of_rows(lambda rows: None)
        assert_same(gradient_of_rows(lambda rows: rows.retain_grad()), expected)
    with halfgnn.pyg.accelerate():
        assert_same(gradient_of_rows(lambda rows: None), expected)


WAYS_TO_A_GRADIENT = {
    "a list": lambda total, rows: torch.autograd.grad(total, [rows]),
    "a generator": lambda total, rows: torch.autograd.grad(total, (x for x in [rows])),
    "backward(inputs)": lambda total, rows: total.backward(inputs=[rows]),
    "torch.autograd.backward": lambda total, rows: torch.autograd.backward(total, inputs=rows),
    "retain_grad afterwards": lambda total, rows: (rows.retain_grad(), total.backward()),
    "a hook afterwards": lambda total, rows: (rows.register_hook(print), total.backward()),
}


@pytest.mark.parametrize("way", WAYS_TO_A_GRADIENT)
def test_a_part_of_a_gradient_is_refused(way):
    src, dst = edges()
    with halfgnn.pyg.accelerate(fuse=True):
        rows = (randn(NUM_NODES, WIDTH, seed=1).requires_grad_() * 1)[src]
        total = SUMS["index_add_"](rows * 2, dst).pow(2).sum() + rows.sum()
        with pytest.raises(RuntimeError, match=r"reduced without being materialized.*retain_grad\(\)"):
            WAYS_TO_A_GRADIENT[way](total, rows)


PARTS = {
    "a column of two side by side": lambda x, e: torch.cat([x, e], -1).select(1, 0),
    "columns of two side by side": lambda x, e: torch.cat([x, e], -1)[:, :2],
    "a view of a sum": lambda x, e: (x.view(-1, 2, WIDTH // 2) * e.view(-1, 2, WIDTH // 2)).sum(1).unsqueeze(1),
}


@pytest.mark.parametrize("name", PARTS)
def test_the_gradient_of_a_part_of_a_message_is_refused(name):
    """Views and sums after the dimension of edges are those of the result: it was None."""
    kept = []
    layer = Layer(lambda x_j, w: kept.append(PARTS[name](x_j, w)) or kept[-1], node_dim=0)
    x, e = (randn(n, WIDTH, seed=n).requires_grad_() for n in (NUM_NODES, NUM_EDGES))
    with halfgnn.pyg.accelerate():
        total = layer(x * 1, edges(), e * 1).sum()
        with pytest.raises(RuntimeError, match=r"reduced without being materialized.*retain_grad\(\)"):
            torch.autograd.grad(total, kept, allow_unused=True)


def test_a_hook_is_not_called_without_a_gradient():
    """A second backward may give messages none."""

    def doubled(x_j, w):
        x_j.register_hook(lambda grad: 2 * grad)
        return x_j * w

    def run():
        x, e = (randn(n, WIDTH, seed=n).requires_grad_() for n in (NUM_NODES, NUM_EDGES))
        out = Layer(doubled)(x * 1, edges(), e * 1)
        first = torch.autograd.grad(out, [x, e], randn(*out.shape, seed=7), create_graph=True)
        return [*first, torch.autograd.grad(first[0].square().sum(), [x, e], allow_unused=True)[1]]

    expected = run()
    with halfgnn.pyg.accelerate():
        assert_same(run(), expected)


@pytest.mark.parametrize("is_formed", [False, True])
def test_edges_that_change_after_rows_were_taken(is_formed):
    """PyTorch's rows are a copy, and its backward raises. What is materialized has its graph, and other rows the edges alone."""
    edge_index, x = edges().clone(), randn(NUM_NODES, WIDTH, seed=1).requires_grad_()
    expected = torch.autograd.grad(x[edge_index[0]].sum(0).exp().sum(), x)
    with halfgnn.pyg.accelerate(fuse=True):
        rows = (x * 1)[edge_index[0]]
        total = rows.sum(0).exp().sum() if is_formed else None
        edge_index[0] = 0
        if is_formed:
            assert_same(torch.autograd.grad(total, x), expected)
            return
        with pytest.raises(RuntimeError, match="edge_index by which it was made was modified"):
            rows.sum(0)
