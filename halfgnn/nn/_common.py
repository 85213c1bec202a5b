"""What all modules share: the graph and its two sides, nodes without in-edges, half precision, padded projections."""

from __future__ import annotations

import contextlib
import platform
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..graph import Graph, ordinary_tensors
from ..ops._common import apply, as_graph, autocast

HALF = (torch.float16, torch.bfloat16)
_HAS_ISOLATED = "_has_isolated"  # kept on a Graph: whether a node has no in-edge
_ZERO_IN_DEGREE = (
    "There are 0-in-degree nodes in the graph, output for those nodes will be invalid. Add a self-loop to every node, or "
    "construct the module with allow_zero_in_degree=True, which leaves them zero before residual and bias."
)


# ---- graphs ------------------------------------------------------------------------------------------------------------------


@torch.compiler.assume_constant_result
def _any_empty(indptr: Tensor) -> bool:
    return bool((indptr[1:] == indptr[:-1]).any())


def check_in_degrees(g: Graph, error: type[Exception] = ValueError) -> None:
    """Raises `error` if a node has no in-edge.

    The answer is kept with the graph: the device is asked once. Compiled code asks while it is traced.
    """
    isolated = getattr(g, _HAS_ISOLATED, None)
    if isolated is None:
        with ordinary_tensors():
            isolated = _any_empty(g.csc().indptr)
        if not torch.compiler.is_compiling():
            object.__setattr__(g, _HAS_ISOLATED, isolated)
    if isolated:
        raise error(_ZERO_IN_DEGREE)


def checked_graph(graph: Any, allow_zero_in_degree: bool) -> Graph:
    """The Graph of `graph`, a Graph or DGLGraph."""
    g = as_graph(graph)
    if not allow_zero_in_degree:
        check_in_degrees(g)
    return g


def both_sides(
    graph: Any, g: Graph, feat: Any, drop: Callable[[Tensor], Tensor] | None = None
) -> tuple[Tensor, Tensor]:
    """Features of source and destination nodes, after dropout.

    One tensor serves both. In a block, and in a Graph of fewer destinations than sources, destinations are the first sources.
    """
    if isinstance(feat, tuple):
        src, dst = feat
        return (src, dst) if drop is None else (drop(src), drop(dst))
    feat = feat if drop is None else drop(feat)
    if g.num_dst == g.num_src:
        return feat, feat
    if not getattr(graph, "is_block", g.num_dst < g.num_src):
        raise ValueError(
            f"feat is one tensor, but the graph has {g.num_src} source and {g.num_dst} destination nodes; "
            "expected a pair (of the sources, of the destinations)"
        )
    return feat, feat[: g.num_dst]


def cast_once(g: Graph, feat: Any, h_src: Tensor, h_dst: Tensor) -> tuple[Tensor, Tensor]:
    """What both_sides made of feat, as autocast would cast it for each of several projections."""
    src = autocast(h_src)
    return src, autocast(h_dst) if isinstance(feat, tuple) else src[: g.num_dst]


def pair_of_widths(widths: int | tuple[int, int]) -> tuple[int, int]:
    """(of the sources, of the destinations)"""
    return widths if isinstance(widths, tuple) else (widths, widths)


def shown(src: int, dst: int) -> str:
    """A pair of widths in a repr."""
    return f"in_feats={src if src == dst else (src, dst)}"


# ---- precision ---------------------------------------------------------------------------------------------------------------


def _autocasts(device: torch.device) -> bool:
    return device.type in ("cpu", "cuda") and torch.is_autocast_enabled(device.type)


def computed_type(x: Tensor) -> torch.dtype:
    """The dtype in which an operator computes on x: autocast's where that is on."""
    if x.dtype != torch.float64 and _autocasts(x.device):
        return torch.get_autocast_dtype(x.device.type)
    return x.dtype


def unrounded(x: Tensor) -> torch.dtype | None:
    """out_dtype for a sum over x that is scaled before it is rounded."""
    return torch.float32 if computed_type(x) in HALF else None


def widened(x: Tensor) -> Tensor:
    """In fp32 if half."""
    return x.float() if x.dtype in HALF else x


def without_autocast(device: torch.device) -> contextlib.AbstractContextManager:
    if _autocasts(device):
        return torch.autocast(device.type, enabled=False)
    return contextlib.nullcontext()


# ---- matrix products --------------------------------------------------------------------------------------------------------


class _HalfLinear(torch.autograd.Function):
    """F.linear of half h (*, in) and fp32 weight (out, in), in fp32. What is kept of h is half, as for the projection of h.

    On CUDA the products are of halves and summed in fp32; elsewhere h is widened.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(h, weight):
        return _product(h.flatten(0, -2), weight.t(), h.dtype).view(*h.shape[:-1], weight.shape[0])

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad):
        h, weight = ctx.saved_tensors
        grad = grad.flatten(0, -2)
        grad_h = grad_weight = None
        if ctx.needs_input_grad[0]:
            grad_h = (grad.to(h.dtype) @ weight.to(h.dtype) if h.is_cuda else (grad @ weight).to(h.dtype)).view(h.shape)
        if ctx.needs_input_grad[1]:
            grad_weight = _product(grad.t(), h.flatten(0, -2), h.dtype)
        return grad_h, grad_weight


# Since torch 2.8, on CUDA.
_SUMS_HALVES_IN_FP32 = "dtype" in torch.ops.aten.mm.overloads()


def _product(a: Tensor, b: Tensor, half: torch.dtype) -> Tensor:
    """a @ b in fp32. `half`: to which they are rounded where halves are multiplied."""
    if a.is_cuda and _SUMS_HALVES_IN_FP32 and not torch.compiler.is_compiling():
        return torch.mm(a.to(half), b.to(half), out_dtype=torch.float32)
    return a.float() @ b.float()


def wide_linear(h: Tensor, weight: Tensor) -> Tensor:
    """h (*, in), half, times weight (out, in), fp32: (*, out) in fp32, unrounded."""
    return apply(_HalfLinear, h, weight)


def _multiplied_by_cpu() -> tuple[torch.dtype, ...]:
    """Half types that this processor's matrix products are fast in. Elsewhere PyTorch's take 5 to 10 times those of fp32."""
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return HALF
    has = {name: getattr(torch.cpu, name, bool)() for name in ("_is_avx512_bf16_supported", "_is_amx_fp16_supported")}
    return tuple(dtype for dtype, found in zip((torch.bfloat16, torch.float16), has.values()) if found)


_MULTIPLIED_BY_CPU = _multiplied_by_cpu()


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """F.linear. On processors without half matrix units half products are made in fp32, of the unrounded weight, and rounded."""
    dtype = computed_type(x)
    is_mixed = x.dtype != weight.dtype and not torch.is_autocast_enabled(x.device.type)  # which F.linear refuses
    if x.device.type != "cpu" or dtype not in HALF or dtype in _MULTIPLIED_BY_CPU or is_mixed:
        return F.linear(x, weight, bias)
    with without_autocast(x.device):
        out = wide_linear(x.to(dtype), weight.float())
        return (out if bias is None else out + bias.float()).to(dtype)


# ---- projections -------------------------------------------------------------------------------------------------------------


def padded(dim: int, x: Tensor, weighted: bool = True) -> int:
    """The width to which rows of `dim` values a head, made from x, are padded with zeros: `dim`, or a multiple of 8.

    weighted: an attention or weighted sum reads them, not a plain sum.
    """
    return dim + -dim % 8 if dim % 8 and _padding_pays(dim, x, weighted) else dim


def _padding_pays(dim: int, x: Tensor, weighted: bool) -> bool:
    """On CUDA halves are read 16 bytes at a time only where 8 divides the width of a head, and no more than 2 or 4 bytes at a time
    where not even 4 does: 41 classes cost less as 48. The CPU's vector kernels begin at 8 values, and then take any width."""
    dtype = computed_type(x)
    if x.is_cuda:
        return dtype in HALF and dim > 4 and dim % 4 != 0
    return dtype != torch.float64 and weighted and 2 < dim < 8


def is_plain(layer: nn.Module) -> bool:
    """Whether calling it is F.linear on its weight and bias and nothing more: no wrapper, no hook."""
    hooks = layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks or layer._backward_pre_hooks
    return isinstance(layer, nn.Linear) and type(layer).forward is nn.Linear.forward and not hooks


def project(layer: nn.Module, x: Tensor, heads: int, dim: int, width: int) -> Tensor:
    """layer(x) (*, heads * dim) as (*, heads, width), its heads followed by zeros if width > dim."""
    if not is_plain(layer):
        return F.pad(layer(x).unflatten(-1, (heads, dim)), (0, width - dim))
    weight: Any = layer.weight
    bias: Any = layer.bias
    if width == dim:
        return linear(x, weight, bias).unflatten(-1, (heads, dim))
    weight = F.pad(weight.unflatten(0, (heads, dim)), (0, 0, 0, width - dim)).flatten(0, 1)
    if bias is not None:
        bias = F.pad(bias.unflatten(0, (heads, dim)), (0, width - dim)).flatten()
    return linear(x, weight, bias).unflatten(-1, (heads, width))


def trimmed(x: Tensor, dim: int) -> Tensor:
    """x (*, width) without what padding added: (*, dim), a view."""
    return x if x.shape[-1] == dim else x[..., :dim]
