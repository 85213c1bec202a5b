"""Sums of rows whose gradient Inductor fuses with what reads it; relu of rows, where Inductor's is slow."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import ops
from ..common.fake import register_fake
from ..common.precision import without_autocast
from ..graph import Graph
from ..graphs_by_tensor.edge_index import library


class SumRows(torch.autograd.Function):
    """The sum of rows (E, *) by an index, of which g is a Graph."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor, g: Graph) -> Tensor:
        ctx.save_for_backward(index)
        with without_autocast(x.device):
            return ops.gspmm(g, "copy_rhs", "sum", None, x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        (index,) = ctx.saved_tensors
        return grad.index_select(0, index), None, None


# ---- relu --------------------------------------------------------------------------------------------------------------------

library.define("relu(Tensor x) -> Tensor")
library.define("relu_backward(Tensor grad, Tensor out) -> Tensor")
library.impl("relu", torch.relu, "CompositeExplicitAutograd")
library.impl(
    "relu_backward", lambda grad, out: torch.ops.aten.threshold_backward(grad, out, 0), "CompositeExplicitAutograd"
)


@register_fake("relu", namespace="halfgnn_pyg")
def _(x):
    return torch.empty_like(x)


@register_fake("relu_backward", namespace="halfgnn_pyg")
def _(grad, out):
    return torch.empty_like(grad)


def is_slow_in_inductor(x: Tensor) -> bool:
    """Whether Inductor's relu of x takes several times as long as PyTorch's: it keeps a mask for the gradient, and stores its bytes
    one by one where there is no AVX-512 (findings/inductor_relu_mask.sh)."""
    return (
        x.is_cpu and x.requires_grad and torch.is_grad_enabled() and torch.backends.cpu.get_cpu_capability() != "AVX512"
    )


class Relu(torch.autograd.Function):
    """relu that keeps its result, which a sum of the rows reads anyway, and no mask."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        out = torch.ops.halfgnn_pyg.relu(x)
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (out,) = ctx.saved_tensors
        return torch.ops.halfgnn_pyg.relu_backward(grad.contiguous(), out)
