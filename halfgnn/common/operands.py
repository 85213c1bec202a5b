"""Checks of the tensors that operators and modules take. Errors name the user's argument."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor, nn


class Rows(Protocol):
    """The attributes of a Graph that these checks read."""

    num_src: int
    num_dst: int
    num_edges: int

    @property
    def device(self) -> torch.device: ...


def check_tensor(x: Any, name: str) -> None:
    """Raises unless x is a tensor."""
    if not isinstance(x, Tensor):
        what = "None" if x is None else f"a {type(x).__name__}"
        raise TypeError(f"{name} is {what}; expected a torch.Tensor{as_tensor(x, name)}")


def as_tensor(x: Any, name: str) -> str:
    """How to make a tensor of what was given in place of one, if that is clear."""
    if type(x).__name__ == "Codes":
        return f": {name}.values()"
    if type(x).__module__.partition(".")[0] == "numpy":
        return f": torch.from_numpy({name})" if type(x).__name__ == "ndarray" else f": torch.as_tensor({name})"
    if isinstance(x, (list, tuple)) and x and all(isinstance(part, (bool, int, float, list, tuple)) for part in x):
        return f": torch.tensor({name})"
    return ""


def as_floats(x: Tensor, name: str) -> str:
    """How to make floating-point numbers of other ones, for an error."""
    return "" if x.is_complex() else f": {name}.float()"


def check_dense(x: Tensor, name: str) -> None:
    """Raises for sparse tensors."""
    if x.layout != torch.strided:
        raise TypeError(f"{name} has layout {x.layout}; expected a dense tensor")


def check_operand(data: Tensor | None, name: str, g: Rows, target: str) -> None:
    """Raises unless data is a tensor on the graph's device with one row per node or edge of `target`."""
    rows = g.num_edges if target == "e" else g.num_src if target == "u" else g.num_dst
    check_rows(data, name, rows, target, g.device)


def check_rows(data: Tensor | None, name: str, rows: int, target: str, device: torch.device) -> None:
    """Raises unless data is a tensor on the graph's `device` with `rows` rows, those of `target`."""
    if not isinstance(data, Tensor):  # every operator comes here: calls of check_tensor and check_dense cost
        return check_tensor(data, name)
    if data.dim() == 0 or data.shape[0] != rows:
        what = {"u": "one per source node", "v": "one per destination node", "e": "one per edge"}[target]
        raise ValueError(f"{name} has shape {tuple(data.shape)}; expected {rows} rows, {what}")
    if data.layout != torch.strided:
        check_dense(data, name)
    if data.device != device:
        raise ValueError(f"{name} is on {data.device}; expected the graph's device, {device}")


def check_columns(x: Tensor, name: str, width: int | None, dim: int | None = 2) -> None:
    """Raises unless x (rows, *, width) has `dim` dimensions (None: at least two) and can be projected."""
    if width is None and dim is None:
        return
    fits = x.dim() == dim if dim is not None else x.dim() > 1
    if not fits or (width is not None and x.shape[-1] != width):
        shape = ", ".join([str(x.shape[0]), *["*"] * (dim is None), "columns" if width is None else str(width)])
        raise ValueError(f"{name} has shape {tuple(x.shape)}; expected ({shape})")
    if width is not None and not x.is_floating_point():
        raise TypeError(f"{name} has dtype {x.dtype}; expected a floating-point type{as_floats(x, name)}")


def check_parameter_device(x: Tensor, name: str, parameter: Tensor) -> None:
    """Raises unless x is on the device of a module's parameter."""
    if x.device != parameter.device:
        raise ValueError(
            f"{name} is on {x.device}, but the module's parameters are on {parameter.device}; expected one device"
        )


def check_parameter(x: Tensor, name: str, weight: Tensor) -> None:
    """Raises unless x and the parameter `weight` can be multiplied: they have one device, and one dtype unless autocast is on."""
    check_parameter_device(x, name, weight)
    if x.dtype != weight.dtype and not torch.is_autocast_enabled(x.device.type):
        raise TypeError(
            f"{name} has dtype {x.dtype} and the module's parameters have {weight.dtype}; expected one dtype, or a call under "
            "torch.autocast"
        )


def check_pair(feat: Any, name: str) -> None:
    """Raises unless the tuple feat is a pair."""
    if len(feat) != 2:
        raise ValueError(
            f"{name} is a {type(feat).__name__} of {len(feat)}; expected a tensor or the pair "
            f"(of the sources, of the destinations){as_tensor(feat, name)}"
        )


def check_one_width(name: str, width: int | None, dst_width: int | None) -> None:
    """Raises unless one tensor can have the features of both sides."""
    if width != dst_width and None not in (width, dst_width):
        raise ValueError(
            f"{name} is one tensor, but the module takes {width} features of sources and {dst_width} of destinations; "
            "expected a pair"
        )


# Classes of layers whose forward is F.linear of weight and bias. halfgnn.pyg adds torch_geometric's Linear.
LINEARS: list[type[nn.Module]] = [nn.Linear]


def is_linear(layer: Any) -> bool:
    """Whether the layer's class computes F.linear of weight and bias. It may have hooks."""
    return any(isinstance(layer, kind) and type(layer).forward is kind.forward for kind in LINEARS)


def width_of(layer: Any) -> int | None:
    """The number of features that a projection takes. None if there is none, or if it may change its input first."""
    if not is_linear(layer) or layer._forward_pre_hooks:
        return None
    return layer.in_features if isinstance(layer, nn.Linear) else layer.in_channels


def widths_of(src: Any, dst: Any) -> tuple[int | None, int | None]:
    """width_of the projections of sources and destinations."""
    width = width_of(src)
    return width, width if dst is src else width_of(dst)


def operand_errors() -> tuple[type[Exception], ...]:
    """The errors to which name_operands applies. None while compiled code is traced, in which errors cannot be changed."""
    return () if torch.compiler.is_dynamo_compiling() else (TypeError, ValueError)


def name_operands(error: Exception, **names: str) -> None:
    """Replaces the names of gspmm's and gsddmm's operands in an error's message by those of the operator that the caller used."""
    message = str(error)
    for name, callers_name in names.items():
        message = message.replace(name, callers_name)
    error.args = (message,)
