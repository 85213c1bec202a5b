"""Halves on the CPU under halfgnn.pyg.patch(): no call adds them up in half, whatever its size. PyTorch alone does in some.

Each case has sizes on both sides of the limits below which calls stay PyTorch's, and is compared with float64.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch_geometric.nn as upstream
from torch.nn import functional
from torch_geometric import utils

import halfgnn.pyg
from halfgnn.pyg.drop_in import thresholds
from tests import support

pytestmark = pytest.mark.skipif(not support.supports("cpu", torch.bfloat16), reason="needs bfloat16")
LIMITS = {name: getattr(thresholds, name) for name in ("LIMITS", *support.ROUTED_FROM)}  # of users, not of tests
SIZES = [(600, 2), (5000, 1), (5000, 8), (5000, 64)]  # rows and columns; the last is above every limit
HALVES = [torch.bfloat16, torch.float16]
NODES = 3


@pytest.fixture(autouse=True)
def _users_sizes(monkeypatch, _routes_small_calls):
    for name, value in LIMITS.items():
        monkeypatch.setattr(thresholds, name, value)


def values(*shape, seed):
    """Values that mostly add up, so that a sum in half stops growing."""
    return 0.5 + torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


def ids(num, dtype=torch.int64):
    """Most of them 0."""
    index = torch.zeros(num, dtype=dtype)
    index[: num // 8] = torch.arange(num // 8) % NODES
    return index


def offsets(num):
    return torch.tensor([0, num // 16, num // 16, num])


# name -> (function of x (rows, columns) and the number of rows; whether x is of nodes)
SUMS = {
    "segment sum": lambda x, n: utils.segment(x, offsets(n), "sum"),
    "segment mean": lambda x, n: utils.segment(x, offsets(n), "mean"),
    "scatter sum": lambda x, n: utils.scatter(x, ids(n), 0, NODES),
    "scatter mean": lambda x, n: utils.scatter(x, ids(n), 0, NODES, "mean"),
    "scatter mean of another dimension": lambda x, n: utils.scatter(x.t(), ids(n), 1, NODES, "mean"),
    "scatter mean of vectors": lambda x, n: utils.scatter(x[:, 0], ids(n), 0, NODES, "mean"),
    "softmax by ptr": lambda x, n: n * utils.softmax(x, ptr=offsets(n)),
    "softmax by index": lambda x, n: n * utils.softmax(x, ids(n), num_nodes=NODES),
    "softmax of vectors": lambda x, n: n * utils.softmax(x[:, 0], ids(n), num_nodes=NODES),
    "softmax of another dimension": lambda x, n: n * utils.softmax(x.t(), ids(n), num_nodes=NODES, dim=1),
    "SoftmaxAggregation": lambda x, n: upstream.SoftmaxAggregation()(x, ptr=offsets(n)),
    "SoftmaxAggregation by index": lambda x, n: upstream.SoftmaxAggregation()(x, ids(n), dim_size=NODES),
    "PowerMeanAggregation": lambda x, n: upstream.PowerMeanAggregation()(x, ptr=offsets(n)),
    "MeanAggregation": lambda x, n: upstream.MeanAggregation()(x, ptr=offsets(n)),
    "MultiAggregation": lambda x, n: upstream.MultiAggregation(["mean", "std"])(x, ids(n), dim_size=NODES),
    "index_add": lambda x, n: x.new_zeros(NODES, x.shape[1]).index_add(0, ids(n), x),
    "index_add_ of vectors": lambda x, n: x.new_zeros(NODES).index_add_(0, ids(n), x[:, 0]),
    "index_add of int32": lambda x, n: x.new_zeros(NODES, x.shape[1]).index_add(0, ids(n, torch.int32), x),
    "index_add of another dimension": lambda x, n: torch.index_add(x.new_zeros(x.shape[1], NODES), 1, ids(n), x.t()),
    "index_add with alpha": lambda x, n: x.new_ones(NODES, x.shape[1]).index_add(0, ids(n), x, alpha=2),
    "scatter_add": lambda x, n: x.new_zeros(NODES, x.shape[1]).scatter_add(0, ids(n)[:, None].expand_as(x), x),
    "scatter_reduce": lambda x, n: x.new_zeros(NODES, x.shape[1]).scatter_reduce(
        0, ids(n)[:, None].expand_as(x), x, "mean", include_self=False
    ),
}
TAKES = {
    "x[index]": lambda x, n: x[ids(n)],
    "x[index] of vectors": lambda x, n: x[:, 0].contiguous()[ids(n)],
    "x[negative index]": lambda x, n: x[ids(n) - NODES],
    "x[int32 index]": lambda x, n: x[ids(n, torch.int32)],
    "x[edge_index]": lambda x, n: x[torch.stack([ids(n), ids(n)])],
    "x[list]": lambda x, n: x[ids(n).tolist()],
    "x[index, :]": lambda x, n: x[ids(n), :],
    "x[:, index]": lambda x, n: x.t()[:, ids(n)],
    "x[index, None]": lambda x, n: x[ids(n), None, :1],
    "index_select": lambda x, n: x.index_select(0, ids(n)),
    "torch.index_select of int32": lambda x, n: torch.index_select(x, 0, ids(n, torch.int32)),
    "index_select of vectors": lambda x, n: x[:, 0].index_select(0, ids(n)),
    "index_select of another dimension": lambda x, n: x.t().index_select(-1, ids(n)),
    "embedding": lambda x, n: functional.embedding(ids(n), x),
    "embedding of a matrix of ids": lambda x, n: functional.embedding(ids(n).view(-1, 4), x),
    "spmm of a matrix": lambda x, n: utils.spmm(matrix(n, x.dtype), x),
    "spmm of a matrix in CSR": lambda x, n: utils.spmm(matrix(n, x.dtype).to_sparse_csr(), x),
    "SimpleConv": lambda x, n: upstream.SimpleConv("mean")(x, edges(n), size=(NODES, NODES)),
    "SimpleConv of int32": lambda x, n: upstream.SimpleConv()(x, short(edges(n), x), size=(NODES, NODES)),
    "GATConv": lambda x, n: attention(x)(x, edges(n)),
}


def edges(num):
    """From all nodes to node 1, mostly from node 0."""
    return torch.stack([ids(num), torch.ones(num, dtype=torch.int64)])


def short(edge_index, x):
    """Ids of int32, which torch_geometric alone does not take: the reference gets others."""
    return edge_index.int() if x.dtype is not torch.float64 else edge_index


def matrix(num, dtype):
    """Of one column of nodes that most rows read."""
    return torch.sparse_coo_tensor(
        torch.stack([torch.arange(num), ids(num)]), torch.ones(num, dtype=dtype), (num, NODES)
    )


def attention(x):
    torch.manual_seed(1)
    return upstream.GATConv(x.shape[1], 4).to(x.dtype)


def assert_rounded_once(actual, expected, tolerance):
    assert all(torch.isfinite(x).all() for x in actual)
    for a, b in zip(actual, expected, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=tolerance, atol=tolerance * b.abs().max().item())


def sums_of(function, x, num):
    x = x.detach().requires_grad_()
    out = function(x, num)
    weights = values(*out.shape, seed=3).to(out.dtype)
    return [out.detach(), *torch.autograd.grad(out, x, weights)]


@pytest.mark.filterwarnings("ignore:.*(Sparse|sparse)")
@pytest.mark.parametrize("name", [*SUMS, *TAKES])
def test_values_and_gradients(name):
    function = (SUMS | TAKES)[name]
    is_of_several_steps = "Aggregation" in name or "softmax" in name or "Conv" in name
    with halfgnn.pyg.accelerate():
        for rows, columns in SIZES:
            for dtype in HALVES:
                x = values(rows if name in SUMS else NODES, columns, seed=1).to(dtype)
                actual = sums_of(function, x, rows)
                expected = sums_of(function, x.double(), rows)  # is checked elsewhere
                assert [a.dtype for a in actual] == [dtype] * 2
                assert_rounded_once(actual, expected, 0.05 if is_of_several_steps else 0.02)


def test_numbers_of_the_report():
    ones = torch.ones(512, 8, dtype=torch.bfloat16)
    with halfgnn.pyg.accelerate():
        assert (upstream.SoftmaxAggregation()(ones, ptr=torch.tensor([0, 512])) == 1).all()
        assert (upstream.SoftmaxAggregation()(torch.ones(4000, 2).bfloat16(), ptr=torch.tensor([0, 4000])) == 1).all()
        assert (upstream.MeanAggregation()(torch.ones(5000, 1).bfloat16(), ptr=torch.tensor([0, 5000])) == 1).all()
        many = torch.full((70_000, 1), 2.0, dtype=torch.float16)
        assert (utils.scatter(many, torch.zeros(70_000).long(), 0, 1, "mean") == 2).all(), "its sum overflows"
    assert halfgnn.pyg.stats()["routed"]["fp32:segment"] >= 2


OPTIONS = {
    "padding_idx": {"padding_idx": -2},
    "scale_grad_by_freq": {"scale_grad_by_freq": True},
    "max_norm": {"max_norm": 1.0},
    "all": {"padding_idx": 0, "scale_grad_by_freq": True, "max_norm": 0.5},
}


@pytest.mark.parametrize("num", [600, 5000])
@pytest.mark.parametrize("name", OPTIONS)
def test_options_of_embeddings(name, num):
    def run(dtype):
        table = torch.nn.Embedding(NODES, 4, dtype=dtype, **OPTIONS[name])
        with torch.no_grad():
            table.weight.copy_(values(NODES, 4, seed=1))
        out = table(ids(num))
        return [out.detach(), *torch.autograd.grad(out.sum(), table.weight), table.weight.detach()]

    expected = run(torch.float64)
    with halfgnn.pyg.accelerate():
        assert_rounded_once(run(torch.bfloat16), expected, 0.02)
    assert halfgnn.pyg.stats()["routed"] == {"fp32:embedding": 1}


def test_a_negative_padding_idx():
    """nn.Embedding counts it from the front, the function does not."""

    def gradient(dtype):
        weight = values(NODES, 4, seed=1).to(dtype).requires_grad_()
        out = functional.embedding(ids(600), weight, padding_idx=-2)
        return torch.autograd.grad(out.sum(), weight)[0]

    with halfgnn.pyg.accelerate():
        assert_rounded_once([gradient(torch.bfloat16)], [gradient(torch.float64)], 0.02)


def test_sparse_gradients_and_scripted_embeddings_are_pytorchs():
    table = torch.nn.Embedding(NODES, 4, sparse=True, dtype=torch.bfloat16)
    with halfgnn.pyg.accelerate():
        (grad,) = torch.autograd.grad(table(ids(10)).sum(), table.weight)
        scripted = torch.jit.script(torch.nn.Embedding(NODES, 4, dtype=torch.bfloat16))
        assert scripted(ids(10)).shape == (10, 4)
    assert grad.is_sparse and halfgnn.pyg.stats()["routed"] == {}


TWICE = {
    "x[index]": lambda x, i: x[i],
    "x[index, :]": lambda x, i: x[i, :],
    "index_select": lambda x, i: x.index_select(0, i),
    "embedding": lambda x, i: functional.embedding(i, x),
    "index_add": lambda x, i: x.new_zeros(NODES, x.shape[1]).index_add(0, i, x[i]),
}


@pytest.mark.parametrize("name", TWICE)
def test_second_derivatives(name):
    def run(dtype):
        x = values(NODES, 4, seed=1).bfloat16().to(dtype).requires_grad_()
        (grad,) = torch.autograd.grad(TWICE[name](x, ids(600)).pow(3).sum(), x, create_graph=True)
        return [grad.detach(), *torch.autograd.grad(grad.sum(), x)]

    expected = run(torch.float64)
    with halfgnn.pyg.accelerate():
        assert_rounded_once(run(torch.bfloat16), expected, 0.05)


def test_an_index_may_not_be_written_to_before_the_backward():
    index, x = ids(600), values(NODES, 4, seed=1).bfloat16().requires_grad_()
    with halfgnn.pyg.accelerate():
        rows = x[index]
        index += 1
        with pytest.raises(RuntimeError, match="inplace operation"):
            rows.sum().backward()


class Third:
    def __index__(self):
        return 2


SINGLE = {
    "tensor": torch.tensor(2), "numpy": np.int64(2), "__index__": Third(), "column": (slice(None), np.int64(1)),
    "tensor and number": (torch.tensor(2), 1), "slice and numpy": (slice(1, None), np.int64(1)), "number": 2, "slice": slice(1, 3),
}  # fmt: skip


@pytest.mark.parametrize("name", SINGLE)
def test_a_view_can_be_written_to(name):
    """Rows by single integers of any kind share the memory of x."""
    expected, found = (values(4, 3, seed=1).bfloat16().requires_grad_() * 1 for _ in range(2))
    expected[SINGLE[name]].add_(1)
    with halfgnn.pyg.accelerate():
        found[SINGLE[name]].add_(1)
        assert found[SINGLE[name]]._is_view()
    assert torch.equal(found, expected)


SCALED = {  # input, alpha, what each row holds
    "alpha": (0.0, 0.01, 1000.0),
    "large and negative": (-60000.0, 1, 1000.0),
    "alpha of 0": (1.0, 0, 60000.0),
    "a quarter": (0.0, 0.25, 2000.0),
}


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("name", SCALED)
def test_index_add_overflows_where_its_result_does(name, in_place):
    there, alpha, value = SCALED[name]

    def run(dtype):
        input, source = torch.full((2, 4), there, dtype=dtype), torch.full((20, 4), value, dtype=dtype).requires_grad_()
        out = getattr(input, "index_add_" if in_place else "index_add")(0, torch.zeros(20).long(), source, alpha=alpha)
        assert out is input or not in_place
        return [out.detach(), *torch.autograd.grad(out.sum(), source)]

    expected = run(torch.float64)
    with halfgnn.pyg.accelerate():
        assert_rounded_once(run(torch.float16), expected, 1e-3)


def test_index_add_of_other_calls():
    index = torch.zeros(600).long()
    with halfgnn.pyg.accelerate():
        with torch.device("meta"):
            out = (
                torch.zeros(2, 4, device="cpu")
                .bfloat16()
                .index_add(0, index, torch.ones(600, 4, device="cpu").bfloat16())
            )
        assert out.tolist() == [[600.0] * 4, [0.0] * 4]
        x = torch.ones(8, 2).bfloat16()
        with pytest.raises(RuntimeError):  # source and result share memory
            x.index_add_(0, torch.tensor([0, 0]), x[2:4])
        with pytest.raises(RuntimeError, match=r"2, 1"):
            torch.zeros(3, 2).bfloat16().index_add(0, torch.tensor([0, 0]), torch.ones(2, 1).bfloat16())
        leaf = torch.zeros(3, 2).bfloat16().requires_grad_()
        with pytest.raises(RuntimeError, match="leaf"):
            leaf.index_add_(0, torch.tensor([0, 0]), torch.ones(2, 2).bfloat16())


def test_few_rows_into_many():
    """The other rows are neither copied nor rounded."""
    out, index = torch.zeros(100_000, 8, dtype=torch.bfloat16), ids(512)
    version, place = out._version, out.data_ptr()
    with halfgnn.pyg.accelerate():
        assert out.index_add_(0, index, torch.ones(512, 8, dtype=torch.bfloat16)) is out
    assert out.data_ptr() == place and out._version > version
    assert out[0, 0] == torch.tensor((index == 0).sum()).bfloat16()


def test_other_calls_of_halves_are_left_alone():
    """Masks and slices take no row twice, and without a gradient nothing is added up."""
    x = values(NODES, 4, seed=1).bfloat16().requires_grad_()
    with halfgnn.pyg.accelerate():
        _ = x[0], x[1:], x[None], x[..., 0], x[x.detach()[:, 0] > 0], x[:, 1:], x[torch.tensor([True, False, True])]
        with torch.no_grad():
            _ = x[ids(600)], x.index_select(0, ids(600)), functional.embedding(ids(600), x)
        with pytest.raises(IndexError):
            x[torch.tensor([NODES])]
        with pytest.raises(RuntimeError):
            x.new_zeros(2, 4).index_add(0, torch.tensor([0, 2, 1]), x)
    assert sum(halfgnn.pyg.stats()["routed"].values()) <= 2, "those that raise"


@pytest.mark.filterwarnings("ignore:.*trace")
@pytest.mark.parametrize("name", ["x[index]", "index_select", "embedding"])
def test_code_that_is_compiled_traced_or_transformed(name):
    x, index = values(NODES, 4, seed=1).bfloat16(), ids(20)
    expected = TWICE[name](x, index)
    with halfgnn.pyg.accelerate():
        leaf = x.clone().requires_grad_()
        compiled = torch.compile(lambda y: TWICE[name](y, index), backend="eager", fullgraph=True)(leaf)
        traced = torch.jit.trace(lambda y: TWICE[name](y, index), (leaf,))(leaf)
        transformed = torch.func.grad(lambda y: TWICE[name](y, index).sum())(x)
    assert torch.equal(compiled, expected) and torch.equal(traced, expected)
    assert transformed.dtype is torch.bfloat16
