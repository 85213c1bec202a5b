"""The operator edge_network: its autograd Function, its formula by other operators, and its checks."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ...common.autograd import apply, is_recorded, pull_back, recorded, saved_tensors
from ...common.precision import without_autocast
from ...graph import Graph
from ...graph_argument import GraphLike, as_graph
from .._operands import graph_of, needs_grad
from ..sddmm import gsddmm
from ..spmm import gspmm
from . import _raw  # noqa: F401  (registers the raw operators)
from ._kernels import Operands
from ._layers import Layers, wide_type
from .inputs import EdgeInputs, EdgeOptions, checked_options, checked_tensors

_forward = torch.ops.halfgnn.edge_network.default
_backward = torch.ops.halfgnn.edge_network_backward.default

_OPERANDS = len(Operands._fields)
_TENSORS = _OPERANDS + 2  # and norm's; then come those of layers
# Edges of a tile on a CPU, whose rows then stay in its caches; and on CUDA, of so many parts of all edges.
_CPU_TILE, _CUDA_TILES, _CUDA_TILE = 8192, 32, (1 << 16, 1 << 18)


def tile_edges(num_edges: int, is_cpu: bool) -> int:
    """Edges of a tile, from the number of edges alone."""
    if is_cpu:
        return _CPU_TILE
    least, most = _CUDA_TILE
    return min(most, max(least, -(-num_edges // _CUDA_TILES)))


# ---- autograd ----------------------------------------------------------------------------------------------------------------

# Among the arguments of the Function, which are those of the raw operator; but options come before the tensors of layers.
_AT_OPTIONS = 3 + _TENSORS
_AT_LAYERS = _AT_OPTIONS + len(EdgeOptions._fields)


def _split(layers: Sequence) -> tuple[list, list]:
    """weights and biases"""
    count = len(layers) // 2
    return list(layers[:count]), list(layers[count:])


class _EdgeNetwork(torch.autograd.Function):
    @staticmethod
    def forward(*args):
        return _forward(*args[:_AT_OPTIONS], *_split(args[_AT_LAYERS:]), *args[_AT_OPTIONS:_AT_LAYERS])

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.mark_non_differentiable(output[2])
        ctx.options = EdgeOptions(*inputs[_AT_OPTIONS:_AT_LAYERS])
        if ctx.options.reduce == "none":
            ctx.mark_non_differentiable(output[0], output[2])
        if not ctx.options.return_edges:
            ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs[:_AT_OPTIONS], *inputs[_AT_LAYERS:], output[2])

    @staticmethod
    def backward(ctx, grad, grad_edges, _):
        options, count = ctx.options, len(ctx.needs_input_grad)
        grad = None if options.reduce == "none" else grad  # compiled code gives gradients of empty results too
        grad_edges = grad_edges if options.return_edges else None
        if grad is None and grad_edges is None:
            return (None,) * count
        *saved, position = saved_tensors(ctx, "edge_network")
        needs = [*ctx.needs_input_grad[3:_AT_OPTIONS], *ctx.needs_input_grad[_AT_LAYERS:]]
        args = options, needs, position, grad, grad_edges, *saved
        if is_recorded():
            again = functools.partial(_composed_gradients, options, needs)
            gradients = recorded("edge_network", _gradients, args, again, (*saved, grad, grad_edges))
        else:
            gradients = _gradients(*args)
        kept = [x if need else None for x, need in zip(gradients, needs)]
        return (None, None, None, *kept[:_TENSORS], *[None] * len(EdgeOptions._fields), *kept[_TENSORS:])


def _gradients(options: EdgeOptions, needs, position, grad, grad_edges, *saved) -> tuple[Tensor, ...]:
    """Those of operands, norm, weights and biases. One that is not needed is empty."""
    of_operands = [bool(x) for x in needs[:_OPERANDS]]
    layers = _split(saved[_AT_OPTIONS:])
    return tuple(_backward(*saved[:_AT_OPTIONS], *layers, position, grad, grad_edges, of_operands, *options))


def _composed_gradients(options: EdgeOptions, needs, *saved):
    """The same as functions of what was given and of the results' gradients, which autograd differentiates."""
    *given_tensors, grad, grad_edges = saved
    csc, inputs = given_tensors[:3], given_tensors[3:]
    x = Operands(*inputs[:_OPERANDS])
    num_src = next((t.shape[0] for t in (x.src, x.factor, x.src_position) if t is not None), 1)  # else it is not read
    g = graph_of(csc, None, num_src, csc[0].shape[0] - 1)

    def results(*tensors):
        return composed(g, *_parts(tensors, options), options)

    cotangents = None if options.reduce == "none" else grad, grad_edges if options.return_edges else None
    return pull_back(results, inputs, needs, cotangents)


def _parts(tensors: Sequence[Any], options: EdgeOptions) -> tuple[Operands, Layers]:
    """Of operands, norm, weights and biases."""
    weights, biases = _split(tensors[_TENSORS:])
    norm_weight, norm_bias = tensors[_OPERANDS:_TENSORS]
    layers = Layers(weights, biases, norm_weight, norm_bias, options.activation, options.slope, options.eps)
    return Operands(*tensors[:_OPERANDS]), layers


def composed(g, x: Operands, layers: Layers, options: EdgeOptions) -> tuple[Tensor | None, Tensor | None]:
    """(out, edges) by operators that keep rows of all edges."""
    dtype, wide = x.dtype, wide_type(x.dtype)
    x, layers = Operands(*(t if t is None else t.to(wide) for t in x)), layers.to(wide)
    terms = []
    with without_autocast(next(t for t in x if t is not None).device):
        if x.src is not None:
            terms.append(gsddmm(g, "copy_lhs", x.src, None, "u", "e"))
        if x.dst is not None:
            terms.append(gsddmm(g, "copy_lhs", x.dst, None, "v", "e"))
        if x.edge_feat is not None:
            terms.append(F.linear(x.edge_feat, x.edge_weight))
        if x.src_position is not None:
            offsets = gsddmm(g, "sub", x.src_position, x.dst_position, "u", "v")
            square = offsets.square().sum(1, keepdim=True)
            distance = torch.linalg.vector_norm(offsets, dim=1, keepdim=True) if options.euclidean else square
            terms.append(distance * x.position_weight)
        message = layers.forward(sum(terms[1:], terms[0]))
        edges = (message + x.edge_feat if options.residual else message).to(dtype) if options.return_edges else None
        if options.reduce == "none":
            return None, edges
        if x.factor is not None:
            message = message * gsddmm(g, "copy_lhs", x.factor, None, "u", "e")
        if x.edge_factor is not None:
            message = message * x.edge_factor.unsqueeze(1)
        return gspmm(g, "copy_rhs", options.reduce, None, message).to(dtype), edges


# ---- the operator ------------------------------------------------------------------------------------------------------------


def edge_network(
    g: GraphLike,
    src: Tensor | None = None,
    dst: Tensor | None = None,
    layers: Sequence[tuple[Tensor, Tensor | None]] = (),
    *,
    edge_feat: Tensor | None = None,
    edge_weight: Tensor | None = None,
    positions: tuple[Tensor, Tensor] | None = None,
    distance_weight: Tensor | None = None,
    squared: bool = True,
    activation: str = "silu",
    negative_slope: float = 0.01,
    norm: tuple[Tensor, Tensor | None] | None = None,
    eps: float = 1e-5,
    factor: Tensor | None = None,
    edge_factor: Tensor | None = None,
    reduce: str = "sum",
    return_edges: bool = False,
    residual: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """out[v] = reduce over in-edges e = (u, v) of factor[u] edge_factor[e] m[e]; a network makes m[e] of both ends and the edge.

        z[e] = src[u] + dst[v] + edge_weight edge_feat[e] + |positions[0][u] - positions[1][v]|^2 distance_weight
        m[e] = norm(W_n activation(... W_1 activation(z[e]) + b_1 ...) + b_n)

    The first linear layer of a network on cat(x[u], x[v], f[e]) is split: nodes are projected once, into src and dst (with the
    bias), and edge_weight is the layer's part for edges. Edges run through in tiles, forward and backward, and the backward runs
    the network again: of the size of the edges nothing is made but the results and gradients that have it, and nothing is kept but
    edge_feat. A plain network keeps each layer's rows of all edges.

    Args:
        g: Graph or DGLGraph.
        src: (num_src, F), dst: (num_dst, F). None for no such term; one of src, dst and edge_feat is needed.
        layers: pairs of a weight (outputs, inputs), as nn.Linear's, and a bias (outputs,) or None. The activation is before each.
        edge_feat: (E, C), edge_weight: (F, C).
        positions: (num_src, P) and (num_dst, P), with distance_weight: (F,). squared=False takes the distance itself.
        activation: relu, silu, gelu, tanh, softplus or leaky_relu (with negative_slope).
        norm: weight and bias (or None) of a LayerNorm behind the last layer, with eps.
        factor: (num_src, outputs), edge_factor: (E,), what messages are multiplied by before they are reduced (SchNet's continuous
            filters, and their cutoff).
        reduce: sum, mean, max, or none (with return_edges). Nodes without in-edges get 0.
        return_edges: also return m (E, outputs); with residual edge_feat + m, the next features of the edges (MeshGraphNet).

    All tensors are fp16, bf16 or fp32 (fp64 on the CPU), of one dtype; autocast casts them. Positions may be fp32 beside half
    types, and autocast leaves them. Sums over edges are made in fp32 and rounded once; the rows of a tile, and the products that
    make a weight's gradient of a tile, are rounded as PyTorch rounds them. On CPUs with slow half-precision products tiles are
    computed in fp32. Equal calls give equal bits, with one number of threads: PyTorch's products depend on it. A tile has 8,192
    edges on a CPU, and on CUDA a 32nd of all edges, 2^16 to 2^18; its rows take about ten times that times F elements. Derivatives
    of every order exist; a second one, and a call under torch.func, keep rows of all edges.

    Returns:
        (num_dst, outputs), with return_edges the pair of it and (E, outputs), or the latter alone if reduce is none.

    Raises:
        TypeError: wrong or mixed dtypes. ValueError: wrong shapes, devices or names.

    Example, the edges of MeshGraphNet (Pfaff et al., 2021)::

        out, edges = ops.edge_network(
            g, x @ W_s.T, x @ W_d.T + b, [(W_1, b_1), (W_2, b_2)], edge_feat=edges, edge_weight=W_e, activation="relu",
            norm=(gamma, beta), return_edges=True, residual=True,
        )
    """
    g = as_graph(g)
    given = EdgeInputs(
        src, dst, layers, edge_feat, edge_weight, positions, distance_weight, squared, activation, negative_slope, norm, eps,
        factor, edge_factor, reduce, return_edges, residual,
    )  # fmt: skip
    options = checked_options(given, tile_edges(g.num_edges, g.device.type != "cuda"))
    out, edges = _computed(g, checked_tensors(g, given, options), options)
    return edges if reduce == "none" else (out, edges) if options.return_edges else out  # type: ignore[return-value]


def _computed(g: Graph, tensors: list[Any], options: EdgeOptions) -> tuple[Tensor | None, Tensor | None]:
    """(out, edges). tensors: operands, norm, weights and biases, as cast."""
    if torch._C._are_functorch_transforms_active() and not torch.compiler.is_compiling():
        return composed(g, *_parts(tensors, options), options)
    parts = *g.csc(), *tensors[:_TENSORS], *options, *tensors[_TENSORS:]
    out, edges, _ = apply(_EdgeNetwork, *parts) if needs_grad(*tensors) else _EdgeNetwork.forward(*parts)
    return out, edges
