"""Dot attention whose kernels project columns of edges, as those of the CPU do, beside products outside of the raw operators."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

from halfgnn import Graph, ops
from halfgnn.common import products
from halfgnn.ops.attention import dot
from tests import support

pytestmark = pytest.mark.skipif(
    support.SIMULATED or "cpu" not in support.DEVICES,
    reason="kernels for CUDA are given products that were made outside",
)
raw = torch.ops.halfgnn
SCALE = 0.3
NODES, HUB = 30, 700  # in-edges of the last destination, more than a tile has
TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def graph() -> Graph:
    """Destinations with 0 to 4 in-edges, and a hub. Edges are in random order."""
    draw = torch.Generator().manual_seed(3)
    dst = torch.cat(
        [torch.arange(NODES - 1).repeat_interleave(torch.arange(NODES - 1) % 5), torch.full((HUB,), NODES - 1)]
    )
    src = torch.randint(NODES, dst.shape, generator=draw)
    order = torch.randperm(len(dst), generator=draw)
    return Graph.from_edges(src[order], dst[order], num_src=NODES, num_dst=NODES)


def operands(g: Graph, heads: int, dim: int, columns: int, dtype: torch.dtype) -> list[Tensor]:
    """query, key, value, edge_feat, and the two weights."""
    torch.manual_seed(5)
    rows = [torch.randn(NODES, heads, dim) for _ in range(3)]
    weights = [torch.randn(heads, dim, columns) / columns for _ in range(2)]
    return [x.to(dtype) for x in (*rows, torch.randn(g.num_edges, columns), *weights)]


def wide(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


def to_columns(rows: Tensor, weight: Tensor) -> Tensor:
    return torch.einsum("nhd,hdc->nhc", wide(rows), wide(weight)).contiguous()


def from_columns(columns: Tensor, weight: Tensor) -> Tensor:
    return torch.einsum("nhc,hdc->nhd", columns, wide(weight))


def assert_near(name: str, got: Tensor, want: Tensor, dtype: torch.dtype) -> None:
    assert got.shape == want.shape, name
    if got.numel() == 0:
        return
    error = (got.double() - want.double()).abs().max().item()
    assert error <= TOLERANCE[dtype] * max(1.0, want.double().abs().max().item()), (name, error)


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize("heads,dim,columns", [(1, 5, 3), (2, 16, 16), (4, 40, 20), (3, 70, 1)])
@pytest.mark.parametrize("which", ["keys", "values", "both", "one weight"])
def test_the_same_as_products_outside(dtype, heads, dim, columns, which):
    """A destination without edges has zeros. A gradient of columns meets the numbers of every row of a tile."""
    g = graph()
    query, key, value, feat, key_weight, value_weight = operands(g, heads, dim, columns, dtype)
    key_weight = None if which == "values" else key_weight
    value_weight = {"keys": None, "one weight": key_weight}.get(which, value_weight)
    nodes, rest = (*g.csc(), query, key, value, SCALE, 0.0, None), {"edge_feat": feat}
    weights = {"edge_key_weight": key_weight, "edge_value_weight": value_weight}
    edge_query = None if key_weight is None else to_columns(query, key_weight)

    out, lse, residual, edge_out = raw.dot_attention(
        *nodes, True, True, need_edge_out=value_weight is not None, **rest, **weights
    )
    want, want_lse, _, want_edge_out = raw.dot_attention(
        *nodes, True, True, edge_query=edge_query, need_edge_out=value_weight is not None, **rest
    )
    if value_weight is not None:
        want = want + from_columns(want_edge_out, value_weight)
        assert_near("edge_out", edge_out, want_edge_out, dtype)
        assert torch.equal(
            out, raw.dot_attention(*nodes, True, True, **rest, **weights)[0]
        )  # whether it is returned or not
    assert out.dtype == dtype
    assert residual.shape == (out.shape if dtype.itemsize == 2 else (0,))
    assert_near("out", out, want, dtype)
    assert_near("lse", lse, want_lse, torch.float32 if dtype.itemsize == 2 else dtype)
    if dtype.itemsize == 2 and value_weight is not None:  # together they are as near as fp32
        assert_near("out and residual", out.float() + residual.float(), want, torch.float32)

    grad = torch.randn(out.shape).to(dtype)
    sides = (*g.csc(), *g.csr(), query, key, value, SCALE, 0.0, None, grad, out, lse, residual)
    got = raw.dot_attention_backward(*sides, need_edge_feat=True, **rest, **weights)
    grad_edge_out = None if value_weight is None else to_columns(grad, value_weight)
    wanted = list(
        raw.dot_attention_backward(
            *sides, edge_query=edge_query, grad_edge_out=grad_edge_out, need_edge_feat=True, **rest
        )
    )
    if key_weight is not None:
        wanted[0] = wanted[0] + from_columns(wanted[7], key_weight)
    names = ("query", "key", "value", "bias", "edge_key", "edge_value", "feat", "edge_query")
    assert got[0].dtype == got[6].dtype == dtype
    for name, x, y in zip(names, got, wanted):
        assert_near(f"grad of {name}", x, y, dtype)
    few = raw.dot_attention_backward(*sides, **rest, **weights)  # without the gradient of columns
    for name, x, y in zip(names[:3], few, got):
        assert torch.equal(x, y), name
    empty = g.in_degrees() == 0
    assert empty.any() and not out[empty].any() and not got[0][empty].any()


@pytest.mark.parametrize(
    "change,message",
    [
        ({"edge_query": torch.zeros(NODES, 2, 3)}, "edge_key_weight and edge_query are given; expected one of them"),
        ({"edge_feat": None}, "edge_key_weight is given, but edge_feat is None"),
        ({"edge_feat": None, "edge_key_weight": None}, "edge_value_weight is given, but edge_feat is None"),
        (
            {"edge_key_weight": torch.zeros(2, 8, 4)},
            r"edge_key_weight has shape \[2, 8, 4\]; expected .*columns of edge_feat",
        ),
        ({"edge_value_weight": torch.zeros(8, 2, 3)}, r"edge_value_weight has shape \[8, 2, 3\]; expected"),
    ],
    ids=lambda x: ", ".join(x) if isinstance(x, dict) else "",
)
def test_wrong_weights(change, message):
    g = graph()
    query, key, value, feat, key_weight, value_weight = operands(g, 2, 8, 3, torch.float32)
    terms = {"edge_feat": feat, "edge_key_weight": key_weight, "edge_value_weight": value_weight, **change}
    with pytest.raises(ValueError, match=message):
        raw.dot_attention(*g.csc(), query, key, value, SCALE, 0.0, None, False, False, **terms)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_large_weights_are_multiplied_outside(monkeypatch, dtype):
    """Results and gradients are the same, by kernels that are given weights or not."""
    g = graph()
    tensors = [x.requires_grad_() for x in operands(g, 2, 8, 3, dtype)]
    given = []
    raw_dot = dot._dot
    monkeypatch.setattr(dot, "_dot", lambda *args: given.append(args) or raw_dot(*args))

    def results():
        query, key, value, feat, key_weight, value_weight = tensors
        out = ops.dot_attention(
            g, query, key, value, SCALE, edge_feat=feat, edge_key_weight=key_weight, edge_value_weight=value_weight
        )
        return out, *torch.autograd.grad(out.square().sum(), tensors)

    monkeypatch.setattr(dot, "_MOST_INSIDE", 2 * 8 * 3)
    inside = results()
    monkeypatch.setattr(dot, "_MOST_INSIDE", 2 * 8 * 3 - 1)
    outside = results()
    assert len(given[0]) == len(given[1]) + 2
    for name, x, y in zip(("out", "query", "key", "value", "feat", "key_weight", "value_weight"), inside, outside):
        assert x.dtype is y.dtype
        assert_near(name, x, y, dtype)


@pytest.mark.parametrize("which", ["edge_key_weight", "edge_value_weight"])
@pytest.mark.parametrize("needs_gradient", [True, False])
def test_what_kernels_are_given(monkeypatch, which, needs_gradient):
    """One of the weights may be missing. Sums of columns are stored if the gradient of a weight is made of them."""
    g = graph()
    query, key, value, feat, weight, _ = operands(g, 2, 8, 3, torch.float32)
    given = []
    raw_dot = dot._dot
    monkeypatch.setattr(dot, "_dot", lambda *args: given.append(args) or raw_dot(*args))
    ops.dot_attention(g, query, key, value, edge_feat=feat, **{which: weight.requires_grad_(needs_gradient)})
    *_, edge_query, need_edge_out, key_weight, value_weight = given[0]
    assert edge_query is None and (key_weight is None) == (which != "edge_key_weight")
    assert (value_weight is None) == (which != "edge_value_weight")
    assert need_edge_out is (needs_gradient and which == "edge_value_weight")


def test_gradients_of_weights_are_summed_over_chunks(monkeypatch):
    """Of 256 rows, with this size. The last one has fewer."""
    monkeypatch.setattr(products, "_CHUNK", 1)
    torch.manual_seed(7)
    rows, columns = torch.randn(600, 2, 8, dtype=torch.float64), torch.randn(600, 2, 3, dtype=torch.float64)
    torch.testing.assert_close(dot._of_weight(rows, columns), torch.einsum("nhd,nhc->hdc", rows, columns))
    assert dot._of_weight(rows[:0], columns[:0]).tolist() == torch.zeros(2, 8, 3).tolist()


@pytest.mark.parametrize("which", ["keys", "values", "both"])
def test_fake_kernels(which):
    g = graph()
    query, key, value, feat, key_weight, value_weight = operands(g, 2, 8, 3, torch.bfloat16)
    nodes, terms = (*g.csc(), query, key, value, SCALE, 0.0, None), {"edge_feat": feat}
    if which != "values":
        terms["edge_key_weight"] = key_weight
    if which != "keys":
        terms["edge_value_weight"] = value_weight
    forward = functools.partial(raw.dot_attention, need_edge_out=which != "keys")
    out, lse, residual, _ = forward(*nodes, True, True, **terms)
    saved = (*g.csc(), *g.csr(), *nodes[3:], out, out, lse, residual)
    calls = [(forward, (*nodes, True, True)), (raw.dot_attention_backward, saved)]
    for function, args in calls:
        real = function(*args, **terms)
        with FakeTensorMode() as mode:
            args, options = pytree.tree_map_only(Tensor, mode.from_tensor, (args, terms))
            fake = function(*args, **options)
        for x, y in zip(fake, real, strict=True):
            assert (x.shape, x.dtype, x.stride()) == (y.shape, y.dtype, y.stride())


def test_wrong_dtypes_and_gradients():
    g = graph()
    query, key, value, feat, _, value_weight = operands(g, 2, 8, 3, torch.float32)
    nodes = (*g.csc(), query, key, value, SCALE, 0.0, None)
    with pytest.raises(TypeError, match=r"edge_value_weight has dtype torch\.float16; expected that of the features"):
        raw.dot_attention(*nodes, False, False, edge_feat=feat, edge_value_weight=value_weight.half())
    out, lse, residual, _ = raw.dot_attention(*nodes, True, True, edge_feat=feat, edge_value_weight=value_weight)
    sides = (*g.csc(), *g.csr(), query, key, value, SCALE, 0.0, None, out, out, lse, residual)
    with pytest.raises(ValueError, match="grad_edge_out and edge_value_weight are given; expected one of them"):
        raw.dot_attention_backward(
            *sides, edge_feat=feat, grad_edge_out=torch.zeros(NODES, 2, 3), edge_value_weight=value_weight
        )
