"""The operator edge_network: its autograd Function, its formula by other operators, and its checks."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ...common.arguments import check_name, check_number, checked_flag
from ...common.autograd import apply, is_recorded, pull_back, recorded, saved_tensors
from ...common.operands import check_dense, check_operand, check_tensor
from ...common.precision import HALF, autocast_all, without_autocast
from ...graph_argument import GraphLike, as_graph
from .._operands import graph_of, needs_grad
from ..sddmm import gsddmm
from ..spmm import gspmm
from . import _raw  # noqa: F401  (registers the raw operators)
from ._kernels import Operands
from ._layers import ACTIVATIONS, Layers, wide_type

_forward = torch.ops.halfgnn.edge_network.default
_backward = torch.ops.halfgnn.edge_network_backward.default

REDUCES = ("sum", "mean", "max", "none")
_OPERANDS = len(Operands._fields)
# Edges of a tile on a CPU, whose rows then stay in its caches; and on CUDA, of so many parts of all edges.
_CPU_TILE, _CUDA_TILES, _CUDA_TILE = 8192, 32, (1 << 16, 1 << 18)


def tile_edges(num_edges: int, is_cpu: bool) -> int:
    """Edges of a tile, from the number of edges alone."""
    if is_cpu:
        return _CPU_TILE
    least, most = _CUDA_TILE
    return min(most, max(least, -(-num_edges // _CUDA_TILES)))


# ---- autograd ----------------------------------------------------------------------------------------------------------------


class _Given(NamedTuple):
    """Arguments of the Function behind the adjacency, operands and norm: options of the raw operators, then weights and biases."""

    activation: str
    slope: float
    eps: float
    reduce: str
    residual: bool
    return_edges: bool
    euclidean: bool
    tile_edges: int


_AT_OPTIONS = 3 + _OPERANDS + 2
_AT_LAYERS = _AT_OPTIONS + len(_Given._fields)


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
        ctx.given = _Given(*inputs[_AT_OPTIONS:_AT_LAYERS])
        if ctx.given.reduce == "none":
            ctx.mark_non_differentiable(output[0], output[2])
        if not ctx.given.return_edges:
            ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs[:_AT_OPTIONS], *inputs[_AT_LAYERS:], output[2])

    @staticmethod
    def backward(ctx, grad, grad_edges, _):
        given, count = ctx.given, len(ctx.needs_input_grad)
        grad = None if given.reduce == "none" else grad  # compiled code gives gradients of empty results too
        grad_edges = grad_edges if given.return_edges else None
        if grad is None and grad_edges is None:
            return (None,) * count
        *saved, position = saved_tensors(ctx, "edge_network")
        needs = [*ctx.needs_input_grad[3:_AT_OPTIONS], *ctx.needs_input_grad[_AT_LAYERS:]]
        args = given, needs, position, grad, grad_edges, *saved
        if is_recorded():
            again = functools.partial(_composed_gradients, given, needs)
            gradients = recorded("edge_network", _gradients, args, again, (*saved, grad, grad_edges))
        else:
            gradients = _gradients(*args)
        kept = [x if need else None for x, need in zip(gradients, needs)]
        options = [None] * len(_Given._fields)
        return (None, None, None, *kept[: _OPERANDS + 2], *options, *kept[_OPERANDS + 2 :])


def _gradients(given: _Given, needs, position, grad, grad_edges, *saved) -> tuple[Tensor, ...]:
    """Those of operands, norm, weights and biases. One that is not needed is empty."""
    of_operands = [bool(x) for x in needs[:_OPERANDS]]
    layers = _split(saved[_AT_OPTIONS:])
    return tuple(_backward(*saved[:_AT_OPTIONS], *layers, position, grad, grad_edges, of_operands, *given))


def _composed_gradients(given: _Given, needs, *saved):
    """The same as functions of what was given and of the results' gradients, which autograd differentiates."""
    *given_tensors, grad, grad_edges = saved
    csc, inputs = given_tensors[:3], given_tensors[3:]
    x = Operands(*inputs[:_OPERANDS])
    num_src = next((t.shape[0] for t in (x.src, x.factor, x.src_position) if t is not None), 1)  # else it is not read
    g = graph_of(csc, None, num_src, csc[0].shape[0] - 1)

    def results(*tensors):
        return composed(g, *_parts(tensors, given), given)

    cotangents = None if given.reduce == "none" else grad, grad_edges if given.return_edges else None
    return pull_back(results, inputs, needs, cotangents)


def _parts(tensors: Sequence[Any], given: _Given) -> tuple[Operands, Layers]:
    """Of operands, norm, weights and biases."""
    weights, biases = _split(tensors[_OPERANDS + 2 :])
    norm_weight, norm_bias = tensors[_OPERANDS : _OPERANDS + 2]
    layers = Layers(weights, biases, norm_weight, norm_bias, given.activation, given.slope, given.eps)
    return Operands(*tensors[:_OPERANDS]), layers


def composed(g, x: Operands, layers: Layers, given: _Given) -> tuple[Tensor | None, Tensor | None]:
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
            distance = torch.linalg.vector_norm(offsets, dim=1, keepdim=True) if given.euclidean else square
            terms.append(distance * x.position_weight)
        message = layers.forward(sum(terms[1:], terms[0]))
        edges = (message + x.edge_feat if given.residual else message).to(dtype) if given.return_edges else None
        if given.reduce == "none":
            return None, edges
        if x.factor is not None:
            message = message * gsddmm(g, "copy_lhs", x.factor, None, "u", "e")
        if x.edge_factor is not None:
            message = message * x.edge_factor.unsqueeze(1)
        return gspmm(g, "copy_rhs", given.reduce, None, message).to(dtype), edges


# ---- the operator ------------------------------------------------------------------------------------------------------------


def _check_vector(x: Tensor | None, name: str, size: int) -> None:
    if x is None:
        return
    check_tensor(x, name)
    check_dense(x, name)
    if tuple(x.shape) != (size,):
        raise ValueError(f"{name} has shape {tuple(x.shape)}; expected ({size},)")


def _check_rows_of(x: Any, name: str, g, target: str, width: int | None) -> Any:
    """The width of rows (nodes or edges, width)."""
    if x is None:
        return width
    check_operand(x, name, g, target)
    if x.dim() != 2 or (width is not None and x.shape[1] != width):
        raise ValueError(
            f"{name} has shape {tuple(x.shape)}; expected ({x.shape[0]}, {'columns' if width is None else width})"
        )
    return x.shape[1]


def _check_weight(x: Any, name: str, rows: int | None, columns: int) -> int:
    check_tensor(x, name)
    check_dense(x, name)
    if x.dim() != 2 or x.shape[1] != columns or (rows is not None and x.shape[0] != rows):
        raise ValueError(
            f"{name} has shape {tuple(x.shape)}; expected ({'outputs' if rows is None else rows}, {columns})"
        )
    return x.shape[0]


def _checked_layers(layers, width: int) -> tuple[list[Tensor], list[Tensor | None], int]:
    """weights, biases, and the width of what comes out."""
    weights, biases = [], []
    if not isinstance(layers, (tuple, list)):
        raise TypeError(f"layers is a {type(layers).__name__}; expected a list of pairs of weight and bias")
    for i, layer in enumerate(layers):
        if not isinstance(layer, (tuple, list)) or len(layer) != 2:
            raise TypeError(f"layers[{i}] is {type(layer).__name__}; expected a pair of weight and bias")
        width = _check_weight(layer[0], f"the weight of layers[{i}]", None, width)
        _check_vector(layer[1], f"the bias of layers[{i}]", width)
        weights.append(layer[0])
        biases.append(layer[1])
    return weights, biases, width


def _checked_operands(g, x: Operands) -> int:
    """The width of the first sums."""
    width = _check_rows_of(x.dst, "dst", g, "v", _check_rows_of(x.src, "src", g, "u", None))
    if (x.edge_feat is None) != (x.edge_weight is None):
        missing = "edge_weight" if x.edge_weight is None else "edge_feat"
        raise ValueError(f"{missing} is None; expected both edge_feat and edge_weight, or none of them")
    if x.edge_feat is not None:
        columns = _check_rows_of(x.edge_feat, "edge_feat", g, "e", None)
        width = _check_weight(x.edge_weight, "edge_weight", width, columns)
    if width is None:
        raise ValueError("src, dst and edge_feat are None; expected one of them")
    if x.src_position is not None:
        dim = _check_rows_of(x.src_position, "positions[0]", g, "u", None)
        _check_rows_of(x.dst_position, "positions[1]", g, "v", dim)
        check_tensor(x.position_weight, "distance_weight")
        _check_vector(x.position_weight, "distance_weight", width)
    return width


def _pair(value: Any, name: str, expected: str) -> tuple[Any, Any]:
    """The pair, whose first element is a tensor; two times None for None."""
    if value is None:
        return None, None
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise TypeError(f"{name} is a {type(value).__name__} and no pair; expected {expected}")
    check_tensor(value[0], f"{name}[0]")
    return value[0], value[1]


_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def _cast(tensors: Sequence[Tensor | None], names: Sequence[str], device: torch.device) -> list[Tensor | None]:
    """The tensors in autocast's dtype. Raises unless they have one dtype, and are on the device. Positions may be fp32 beside
    halves, and autocast leaves them as they are."""
    for x, name in zip(tensors, names):
        if x is not None and x.device != device:
            raise ValueError(f"{name} is on {x.device}; expected the graph's device, {device}")
        if x is not None and x.dtype not in _FLOATS:
            raise TypeError(f"{name} has dtype {x.dtype}; expected a floating-point type of 16, 32 or 64 bits")
    found = list(autocast_all(device, *tensors))
    first = next((x, name) for x, name in zip(found, names) if x is not None)
    for i, (x, name) in enumerate(zip(found, names)):
        if name.startswith("positions"):
            x = found[i] = tensors[i]
            if x is not None and x.dtype == torch.float32 and first[0].dtype in HALF:
                continue
        if x is not None and x.dtype != first[0].dtype:
            raise TypeError(f"{name} has dtype {x.dtype}; expected that of {first[1]}, {first[0].dtype}")
    return found


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

    All tensors are fp16, bf16 or fp32 (fp64 on the CPU), of one dtype; autocast casts them. Positions may be fp32 beside halves,
    and autocast leaves them. Sums over edges are made in fp32 and rounded once; the rows of a tile, and the products that make a
    weight's gradient of a tile, are rounded as PyTorch rounds them. On CPUs with slow products of halves tiles are computed in
    fp32. Equal calls give equal bits, with one number of threads: PyTorch's products depend on it. A tile has 8,192 edges on a
    CPU, and on CUDA a 32nd of all edges, 2^16 to 2^18; its rows take about ten times that times F elements. Derivatives of every
    order exist; a second one, and a call under torch.func, keep rows of all edges.

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
    check_name(activation, "activation", tuple(ACTIVATIONS))
    check_name(reduce, "reduce", REDUCES)
    squared, return_edges = checked_flag(squared, "squared"), checked_flag(return_edges, "return_edges")
    residual = checked_flag(residual, "residual")
    negative_slope, eps = check_number(negative_slope, "negative_slope"), check_number(eps, "eps")
    src_position, dst_position = _pair(positions, "positions", "those of sources and of destinations")
    if positions is None and distance_weight is not None:
        raise ValueError("positions is None; expected them with distance_weight")
    x = Operands(src, dst, edge_feat, edge_weight, factor, edge_factor, src_position, dst_position, distance_weight)
    width = _checked_operands(g, x)
    weights, biases, outputs = _checked_layers(layers, width)
    _check_rows_of(factor, "factor", g, "u", outputs)
    _check_vector(edge_factor, "edge_factor", g.num_edges)
    of_norm = _pair(norm, "norm", "its weight and bias")
    _check_vector(of_norm[0], "the weight of norm", outputs)
    _check_vector(of_norm[1], "the bias of norm", outputs)
    if residual and (not return_edges or edge_feat is None or edge_feat.shape[1] != outputs):
        raise ValueError(f"residual is True; expected return_edges=True and edge_feat with {outputs} columns")
    if reduce == "none" and not (return_edges and factor is edge_factor is None):
        raise ValueError("reduce is 'none'; expected return_edges=True, and neither factor nor edge_factor")
    names = [*_NAMES, *(f"the weight of layers[{i}]" for i in range(len(weights)))]
    names += [f"the bias of layers[{i}]" for i in range(len(weights))]
    cast = _cast([*x, *of_norm, *weights, *biases], names, g.device)
    options = _Given(
        activation,
        negative_slope,
        eps,
        reduce,
        residual,
        return_edges,
        not squared,
        tile_edges(g.num_edges, g.device.type != "cuda"),
    )
    parts = *g.csc(), *cast[: _OPERANDS + 2], *options, *cast[_OPERANDS + 2 :]
    if torch._C._are_functorch_transforms_active() and not torch.compiler.is_compiling():
        out, edges = composed(g, *_parts(cast, options), options)
    elif needs_grad(*cast):
        out, edges, _ = apply(_EdgeNetwork, *parts)
    else:
        out, edges, _ = _EdgeNetwork.forward(*parts)
    return edges if reduce == "none" else (out, edges) if return_edges else out  # type: ignore[return-value]


_NAMES = ("src", "dst", "edge_feat", "edge_weight", "factor", "edge_factor", "positions[0]", "positions[1]", "distance_weight",
          "the weight of norm", "the bias of norm")  # fmt: skip
