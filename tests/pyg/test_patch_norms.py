"""Norms of each graph of a batch, and pools that weigh nodes, under halfgnn.pyg.patch(), beside torch_geometric's."""

from __future__ import annotations

import contextlib

import pytest
import torch
import torch_geometric.nn as upstream
from torch import nn

import halfgnn.pyg
from tests import support
from tests.pyg.test_patch_modules import WIDTH, assert_same, made, randn, routed, run

pytestmark = pytest.mark.skipif(not support.supports("cpu", torch.float64), reason="needs float64")
ROWS, GROUPS = 70, 6  # of which one is empty, and one has one row
NORMS = {
    "GraphNorm": lambda: upstream.GraphNorm(WIDTH),
    "InstanceNorm": lambda: upstream.InstanceNorm(WIDTH),
    "InstanceNorm, affine": lambda: upstream.InstanceNorm(WIDTH, affine=True, eps=1e-3),
    "LayerNorm": lambda: upstream.LayerNorm(WIDTH),
    "LayerNorm, plain": lambda: upstream.LayerNorm(WIDTH, affine=False),
    "PairNorm": lambda: upstream.PairNorm(scale=1.5),
}
POOLS = {
    "Set2Set": lambda: upstream.Set2Set(WIDTH, processing_steps=3),
    "AttentionalAggregation": lambda: upstream.AttentionalAggregation(nn.Linear(WIDTH, 1), nn.Linear(WIDTH, 5)),
    "AttentionalAggregation, plain": lambda: upstream.AttentionalAggregation(nn.Linear(WIDTH, 1)),
}
LEFT = {
    "InstanceNorm of running statistics": lambda: upstream.InstanceNorm(WIDTH, track_running_stats=True),
    "LayerNorm of nodes": lambda: upstream.LayerNorm(WIDTH, mode="node"),
    "PairNorm of nodes": lambda: upstream.PairNorm(scale_individually=True),
    "AttentionalAggregation of columns": lambda: upstream.AttentionalAggregation(nn.Linear(WIDTH, WIDTH)),
}


def batch(is_sorted=True):
    ids = torch.cat([torch.tensor([0]), torch.arange(ROWS - 1) % (GROUPS - 2) + 2])
    return ids.sort()[0] if is_sorted else ids.flip(0)


def module(make):
    found = made(make)
    for i, p in enumerate(found.parameters()):
        nn.init.constant_(p, 0.5) if p.dim() == 0 else p.data.copy_(0.5 * randn(*p.shape, seed=i))
    return found


def names():
    return {name for name in routed() if name.startswith(("norm:", "pool:"))}


@pytest.mark.parametrize("is_sorted", [True, False], ids=["sorted", "unsorted"])
@pytest.mark.parametrize("name", [*NORMS, *POOLS, *LEFT])
def test_results_are_torch_geometrics(name, is_sorted):
    layer, x, index = module({**NORMS, **POOLS, **LEFT}[name]), 3 + randn(ROWS, WIDTH, seed=1), batch(is_sorted)
    expected = run(layer, [x], index)
    with halfgnn.pyg.accelerate():
        for _ in range(2):
            assert_same(run(layer, [x], index), expected)
    kind = name.partition(",")[0]
    assert names() == (set() if name in LEFT else {f"{'norm' if name in NORMS else 'pool'}:{kind}"})


@pytest.mark.parametrize("name", NORMS)
def test_second_derivatives(name):
    layer, x, index = module(NORMS[name]), randn(ROWS, WIDTH, seed=1).requires_grad_(), batch()

    def penalty():
        out = layer(x, index, GROUPS)
        (grad,) = torch.autograd.grad(out.pow(3).sum(), x, create_graph=True)
        inputs = [x, *(p for p in layer.parameters() if p.requires_grad)]
        return torch.autograd.grad(grad.pow(2).sum(), inputs, allow_unused=True)

    expected = penalty()
    with halfgnn.pyg.accelerate():
        actual = penalty()
    assert names()
    for a, b in zip(actual, expected, strict=True):
        assert_same([torch.zeros(()) if a is None else a], [torch.zeros(()) if b is None else b])


@pytest.mark.parametrize("name", [*NORMS, *POOLS])
@pytest.mark.parametrize("kind", ["float32", "autocast", "bfloat16"])
def test_dtypes_are_torch_geometrics(name, kind):
    """Layers in half precision fall back, but for norms without parameters. Features far from 0 have variances far below them."""
    layer, x, index = module({**NORMS, **POOLS}[name]), 30 + randn(ROWS, WIDTH, seed=1), batch()
    x = x if kind == "float32" and name in NORMS else x - 30
    truth = run(layer, [x], index)
    dtype = torch.bfloat16 if kind == "bfloat16" else torch.float32
    layer, x = layer.to(dtype), x.to(dtype)
    with torch.autocast("cpu", torch.bfloat16) if kind == "autocast" else contextlib.nullcontext():
        expected = run(layer, [x], index)
        with halfgnn.pyg.accelerate():
            actual = run(layer, [x], index)
    assert kind == "autocast" or bool(names()) == (
        kind == "float32" or (name in NORMS and not list(layer.parameters()))
    )
    for mine, other, right in zip(actual, expected, truth, strict=True):
        assert mine.dtype is other.dtype and mine.stride() == other.stride()
        error, other_error = ((y.double() - right).abs().max() for y in (mine, other))
        assert error <= 2 * other_error + (1e-5 if kind == "float32" else 2e-2) * (1 + right.abs().max())


@pytest.mark.parametrize("with_autocast", [False, True], ids=["", "autocast"])
@pytest.mark.parametrize("dtype", support.HALVES, ids=str)
@pytest.mark.parametrize("name", NORMS)
def test_half_rows_are_normalized_in_fp32(name, dtype, with_autocast):
    """As a layer under autocast makes them. PyG rounds at every step, so that features far from 0 lose their digits."""
    layer, x, index = module(NORMS[name]), (3 + randn(ROWS, WIDTH, seed=1)).to(dtype), batch()
    truth = run(layer, [x.double()], index)
    layer = layer.float()
    with torch.autocast("cpu", torch.bfloat16) if with_autocast else contextlib.nullcontext():
        expected = run(layer, [x], index)
        with halfgnn.pyg.accelerate():
            actual = run(layer, [x], index)
    assert names() == {f"norm:{name.partition(',')[0]}"}
    for mine, other, right in zip(actual, expected, truth, strict=True):
        assert mine.dtype is other.dtype
        error, other_error = ((y.double() - right).abs().max() for y in (mine, other))
        eps = torch.finfo(mine.dtype).eps if mine.dtype != torch.float32 else 1e-5
        assert error <= other_error / 4 or error <= eps * (1 + right.abs().max()), (error, other_error)


def test_in_place_changes():
    layer, x, index = module(NORMS["GraphNorm"]), randn(ROWS, WIDTH, seed=1), batch()

    def step():
        leaf = x.clone().requires_grad_()
        features = leaf * 1
        out = layer(features, index)
        features += 5  # no backward of torch_geometric's reads it
        out.relu_().sum().backward()
        return out.detach(), leaf.grad

    for change in (lambda: None, lambda: index.copy_(batch(False))):
        change()
        expected = step()
        with halfgnn.pyg.accelerate():
            assert_same(step(), expected)
    assert names()


def test_errors_are_torch_geometrics():
    layer, x = module(NORMS["GraphNorm"]), randn(ROWS, WIDTH, seed=1)
    with halfgnn.pyg.accelerate():
        with pytest.raises(RuntimeError):
            layer(x, batch(), GROUPS - 1)
        with pytest.raises(RuntimeError):
            layer(x[:, :3], batch())
        empty = layer(x[:0], batch()[:0], 0)
    assert empty.shape == (0, WIDTH) and not names()


@pytest.mark.parametrize("size", [1e-13, 1e13])
def test_gradients_of_small_and_large_features(size):
    """The third power of a deviation is out of the range of fp32. There is no eps for the groups that are empty."""
    layer, x, index = module(lambda: upstream.GraphNorm(WIDTH, eps=0.0)), size * randn(ROWS, WIDTH, seed=1), batch()
    index = index.clamp(min=2)  # the deviation of a single row is 0
    truth = run(layer, [x], index)
    with halfgnn.pyg.accelerate():
        actual = run(layer.float(), [x.float()], index)
    assert names()
    for mine, right in zip(actual, truth, strict=True):
        assert (mine.double() - right).abs().max() <= 1e-4 * right.abs().max()


@pytest.mark.parametrize("width", [1, WIDTH - 1])
def test_features_of_another_width_than_that_of_set2set(width):
    layer, x, index = module(POOLS["Set2Set"]), randn(ROWS, width, seed=1), batch()

    def error():
        with pytest.raises(RuntimeError) as caught:
            layer(x, index, dim_size=GROUPS)
        return str(caught.value)

    expected = error()
    with halfgnn.pyg.accelerate():
        assert error() == expected
