"""The arguments of edge_network and their checks. Errors name the caller's argument."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...common.arguments import check_name, check_number, checked_flag
from ...common.operands import check_dense, check_operand, check_tensor
from ...common.precision import HALF, autocast_all
from ._kernels import Operands
from ._layers import ACTIVATIONS

REDUCES = ("sum", "mean", "max", "none")


class EdgeInputs(NamedTuple):
    """The arguments of edge_network behind the graph, as the caller gave them."""

    src: Tensor | None
    dst: Tensor | None
    layers: Sequence[tuple[Tensor, Tensor | None]]
    edge_feat: Tensor | None
    edge_weight: Tensor | None
    positions: tuple[Tensor, Tensor] | None
    distance_weight: Tensor | None
    squared: bool
    activation: str
    negative_slope: float
    norm: tuple[Tensor, Tensor | None] | None
    eps: float
    factor: Tensor | None
    edge_factor: Tensor | None
    reduce: str
    return_edges: bool
    residual: bool


class EdgeOptions(NamedTuple):
    """The options of the raw operators, in their order."""

    activation: str
    slope: float
    eps: float
    reduce: str
    residual: bool
    return_edges: bool
    euclidean: bool
    tile_edges: int


def checked_options(given: EdgeInputs, tile_edges: int) -> EdgeOptions:
    """Raises ValueError for names and numbers that are none, TypeError for what is no flag or number."""
    check_name(given.activation, "activation", tuple(ACTIVATIONS))
    check_name(given.reduce, "reduce", REDUCES)
    squared = checked_flag(given.squared, "squared")
    return_edges, residual = checked_flag(given.return_edges, "return_edges"), checked_flag(given.residual, "residual")
    slope, eps = check_number(given.negative_slope, "negative_slope"), check_number(given.eps, "eps")
    return EdgeOptions(given.activation, slope, eps, given.reduce, residual, return_edges, not squared, tile_edges)


def checked_tensors(g, given: EdgeInputs, options: EdgeOptions) -> list[Tensor | None]:
    """Operands, weight and bias of the norm, weights, biases: as autocast casts them.

    Raises:
        TypeError: wrong or mixed dtypes. ValueError: wrong shapes or devices, or tensors that do not go together.
    """
    x = _operands(given)
    weights, biases, outputs = _checked_layers(given.layers, _checked_operands(g, x))
    _check_rows_of(x.factor, "factor", g, "u", outputs)
    _check_vector(x.edge_factor, "edge_factor", g.num_edges)
    norm = _pair(given.norm, "norm", "its weight and bias")
    _check_vector(norm[0], "the weight of norm", outputs)
    _check_vector(norm[1], "the bias of norm", outputs)
    _check_results(x, options, outputs)
    names = [*_NAMES, *(f"the weight of layers[{i}]" for i in range(len(weights)))]
    names += [f"the bias of layers[{i}]" for i in range(len(weights))]
    return _cast([*x, *norm, *weights, *biases], names, g.device)


_NAMES = ("src", "dst", "edge_feat", "edge_weight", "factor", "edge_factor", "positions[0]", "positions[1]", "distance_weight",
          "the weight of norm", "the bias of norm")  # fmt: skip


def _operands(given: EdgeInputs) -> Operands:
    positions = _pair(given.positions, "positions", "those of sources and of destinations")
    if given.positions is None and given.distance_weight is not None:
        raise ValueError("positions is None; expected them with distance_weight")
    return Operands(
        given.src, given.dst, given.edge_feat, given.edge_weight, given.factor, given.edge_factor, *positions,
        given.distance_weight,
    )  # fmt: skip


def _check_results(x: Operands, options: EdgeOptions, outputs: int) -> None:
    """Raises unless what is asked for can be returned. outputs: the width of messages."""
    residual, return_edges = options.residual, options.return_edges
    if residual and (not return_edges or x.edge_feat is None or x.edge_feat.shape[1] != outputs):
        raise ValueError(f"residual is True; expected return_edges=True and edge_feat with {outputs} columns")
    if options.reduce == "none" and not (return_edges and x.factor is x.edge_factor is None):
        raise ValueError("reduce is 'none'; expected return_edges=True, and neither factor nor edge_factor")


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
    half types, and autocast leaves them as they are."""
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
