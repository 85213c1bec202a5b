"""Sums over in-edges, one process's rows after another: those of ghosts are dropped once they are summed, and travel meanwhile."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .. import ops
from ..common.precision import HALF, without_autocast
from ..graph import Graph
from .exchange import Exchange


class Block(NamedTuple):
    """The edges whose sources one process owns.

    graph: from those of them that this process reads to its own nodes. edges (E_block,): which of its edges they are.
    """

    graph: Graph
    edges: Tensor


def blocks_of(graph: Graph, num_own: int, ghost_counts: list[int], rank: int) -> list[Block]:
    """By process. graph: of a DistGraph, whose edges are in the order of destinations."""
    src, dst = (x.long() for x in graph.edges())
    counts = [num_own if process == rank else count for process, count in enumerate(ghost_counts)]
    starts, ghosts = [], num_own
    for process, count in enumerate(ghost_counts):
        starts.append(0 if process == rank else ghosts)
        ghosts += count
    blocks = []
    for start, count in zip(starts, counts):
        edges = ((src >= start) & (src < start + count)).nonzero().view(-1)
        ends = [(ids[edges] - first).to(graph.idtype) for ids, first in ((src, start), (dst, 0))]
        blocks.append(Block(Graph.from_edges(*ends, num_src=count, num_dst=num_own, check=False), edges))
    return blocks


class Aggregate(torch.autograd.Function):
    """The sum of x[u], or of weight[e] * x[u], over the in-edges of each node, in fp32, times scale.

    x (num_own, *, D); weight (E, *, 1) or None; scale (num_own, *) in fp32, or None. The backward fetches rows again if the weight
    has a gradient.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, scale: Tensor | None, exchange: Exchange, blocks: list[Block]
    ) -> Tensor:
        ctx.exchange, ctx.blocks = exchange, blocks
        ctx.save_for_backward(x if ctx.needs_input_grad[1] else None, weight, scale)
        total = None
        with without_autocast(x.device):
            for process, rows in exchange.rows_by_process(x):
                block = blocks[process]
                part = _summed(block.graph, rows, None if weight is None else weight[block.edges])
                total = part if total is None else total.add_(part)
        assert total is not None
        return (total if scale is None else total.mul_(scale)).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, weight, scale = ctx.saved_tensors
        grad = grad.contiguous() if scale is None else (grad * scale).to(grad.dtype)
        with without_autocast(grad.device):
            x_grad = _grad_of_rows(ctx, grad, weight) if ctx.needs_input_grad[0] else None
            weight_grad = _grad_of_weight(ctx, grad, x, weight) if ctx.needs_input_grad[1] else None
        return x_grad, weight_grad, None, None, None


def _summed(g: Graph, rows: Tensor, weight: Tensor | None) -> Tensor:
    """In fp32, or in fp64."""
    op = "copy_lhs" if weight is None else "mul"
    return ops.gspmm(g, op, "sum", rows, weight, out_dtype=torch.float32 if rows.dtype in HALF else None)


def _grad_of_rows(ctx: Any, grad: Tensor, weight: Tensor | None) -> Tensor:
    def of(process: int) -> Tensor:
        block = ctx.blocks[process]
        return _summed(block.graph.reverse(), grad, None if weight is None else weight[block.edges])

    return ctx.exchange.summed_at_owners(of, grad.dtype)


def _grad_of_weight(ctx: Any, grad: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    out = torch.empty_like(weight)
    for process, rows in ctx.exchange.rows_by_process(x):
        block = ctx.blocks[process]
        out[block.edges] = ops.gsddmm(block.graph, "dot", rows, grad).to(out.dtype)
    return out
