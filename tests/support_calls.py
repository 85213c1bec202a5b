"""One call of every operator of each kind that launches kernels of its own, forward and backward, with its operands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from halfgnn import Graph, ops
from tests import support
from tests.support import randn

HEADS, DIM = 2, 8


@dataclass(frozen=True)
class Call:
    """An operator. shapes: target and trailing shape of each operand. The target of a parameter is None."""

    name: str
    run: Callable  # (g, *operands)
    shapes: list[tuple[str | None, tuple[int, ...]]]

    def operands(self, g, dtype, device="cpu"):
        rows = [() if target is None else (support.rows_of(g, target),) for target, _ in self.shapes]
        return [randn(*first, *shape, dtype=dtype, device=device) for first, (_, shape) in zip(rows, self.shapes)]

    def evaluate(self, g, operands, grad):
        """The result and the gradients of all operands."""
        out, grads = support.evaluate(lambda *x: self.run(g, *x), operands, grad)
        return [out, *grads]


_ROW, _HEAD = (HEADS, DIM), (HEADS, 1)


def _several(g, x):
    """Of four reductions; the gradient is that of the one whose terms are the most."""
    return ops.copy_u_reduce(g, x, ("mean", "max", "min", "std"))[-1]


CALLS = [
    Call("copy_u_sum", ops.copy_u_sum, [("u", _ROW)]),
    Call("copy_u_mean", ops.copy_u_mean, [("u", _ROW)]),
    Call("copy_e_sum", ops.copy_e_sum, [("e", _ROW)]),
    Call("copy_e_mean", ops.copy_e_mean, [("e", _ROW)]),
    Call("u_mul_e_sum", ops.u_mul_e_sum, [("u", _ROW), ("e", _HEAD)]),
    Call("u_mul_e_mean", ops.u_mul_e_mean, [("u", _ROW), ("e", _HEAD)]),
    Call("u_add_e_sum", ops.u_add_e_sum, [("u", _ROW), ("e", _HEAD)]),
    Call("u_add_e_mean", ops.u_add_e_mean, [("u", _ROW), ("e", _HEAD)]),
    Call("copy_u_max", ops.copy_u_max, [("u", _ROW)]),
    Call("copy_u_reduce", _several, [("u", _ROW)]),
    Call("u_mul_e_max", ops.u_mul_e_max, [("u", _ROW), ("e", _HEAD)]),
    Call("u_dot_v", ops.u_dot_v, [("u", _ROW), ("v", _ROW)]),
    Call("u_add_v", ops.u_add_v, [("u", _ROW), ("v", _ROW)]),
    Call("u_mul_v", ops.u_mul_v, [("u", _ROW), ("v", _HEAD)]),
    Call("edge_softmax", ops.edge_softmax, [("e", (HEADS,))]),
    Call("gat_attention", ops.gat_attention, [("u", _ROW), ("u", (HEADS,)), ("v", (HEADS,))]),
    Call("gatv2_attention", ops.gatv2_attention, [("u", _ROW), ("v", _ROW), (None, _ROW)]),
    Call("dot_attention", ops.dot_attention, [("v", _ROW), ("u", _ROW), ("u", _ROW)]),
]


def graph_of_degrees(hub: int, num_edges: int, device="cpu") -> Graph:
    """A graph one of whose destinations has `hub` in-edges and one of whose sources `hub` out-edges. Other nodes have few."""
    others = torch.arange(num_edges - 2 * hub)
    src = torch.cat([torch.arange(hub) % 61 + 1, torch.zeros(hub, dtype=torch.int64), others % 61 + 1])
    dst = torch.cat([torch.zeros(hub, dtype=torch.int64), torch.arange(hub) % 53 + 1, others % 53 + 1])
    return Graph.from_edges(src.to(device, torch.int32), dst.to(device, torch.int32), num_src=64, num_dst=56)


def told(g: Graph, max_in_degree: int | None, max_out_degree: int | None) -> Graph:
    """The graph with these bounds, true or not."""
    return Graph(g.num_src, g.num_dst, g.csc(), g.csr(), max_in_degree, max_out_degree)
