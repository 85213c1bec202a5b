"""What a program computes with and without the drop-in, and whether that is the same."""

from __future__ import annotations

import contextlib
import warnings
from typing import Any

import torch
from torch import Tensor
from torch_geometric.nn import MessagePassing
from torch_geometric.nn.aggr import SoftmaxAggregation
from torch_geometric.utils import scatter, softmax

import halfgnn.pyg

from .draw import Program

TOLERANCE = 1e-8
# Errors where torch_geometric has none, which docs/pyg.md names.
REFUSED = ("was reduced without being formed", "is read after the features that it was made of were modified in place")
Outcome = list[Any]  # a tensor or None per result; or the type of what was raised


class _Layer(MessagePassing):
    def __init__(self, function: Any, aggr: str, flow: str) -> None:
        super().__init__(aggr=SoftmaxAggregation() if aggr == "softmax" else aggr, flow=flow, node_dim=0)
        self.function = function

    def forward(self, x: Any, edge_index: Tensor, e: Tensor, w: Tensor, p: Tensor, m: Tensor) -> Tensor:
        return self.propagate(edge_index, x=x, e=e, w=w, p=p, m=m)

    def message(self, x_i, x_j, e, w, p, m, index, size_i):  # type: ignore[no-untyped-def]
        return self.function(x_i, x_j, e, w, p, m, index, size_i)


def _gradient(y: Tensor, x: Tensor) -> Tensor:
    """Of the sum of y, which the message goes on with; zeros where y does not depend on x."""
    if not y.requires_grad or not x.requires_grad:
        return torch.zeros_like(x)
    (found,) = torch.autograd.grad(y.sum(), x, create_graph=True, allow_unused=True)
    return torch.zeros_like(x) if found is None else found


def _compiled(program: Program) -> Any:
    names: dict[str, Any] = {"torch": torch, "softmax": softmax, "gradient": _gradient}
    exec(compile(program.source(), "<program>", "exec"), names)
    return names["message"]


def _inputs(program: Program, seed: int, is_leaf: bool) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    (num_src, num_dst), num_edges, f = program.num_nodes, program.num_edges, program.width
    shapes = [(num_src, f), (num_dst, f), (num_edges, f), (num_edges, 1), (f,), (f, f)]
    made = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    rows = [torch.randint(n, (num_edges,), generator=generator) for n in program.num_nodes]
    return [torch.stack(rows), *(x.requires_grad_(is_leaf) for x in made)]


def _out(program: Program, edge_index: Tensor, x: Tensor, x_dst: Tensor, *rest: Tensor) -> Tensor:
    message, x_dst = _compiled(program), x_dst if program.is_bipartite else x
    if program.style == "propagate":
        is_reversed = program.flow == "target_to_source"
        both = (x, x_dst) if program.is_bipartite else x
        return _Layer(message, program.aggr, program.flow)(
            both, edge_index.flip(0) if is_reversed else edge_index, *rest
        )
    (src, dst), n = edge_index, program.num_nodes[1]
    rows = message(x_dst[dst], x.index_select(0, src), *rest, dst, n)
    if program.style == "scatter":
        return scatter(rows, dst, dim=0, dim_size=n, reduce=program.aggr)
    return rows.new_zeros(n, *rows.shape[1:]).index_add_(0, dst, rows)


def _run(program: Program, seed: int, order: int) -> Outcome:
    """order: of the derivatives; 0: without gradients."""
    edge_index, *leaves = _inputs(program, seed, order > 0)
    try:
        with contextlib.nullcontext() if order else torch.no_grad():
            out = _out(program, edge_index, *[x * 1 for x in leaves])
            exec(program.after, {"out": out})
        strides = [stride for stride, size in zip(out.stride(), out.shape) if size > 1]
        results: Outcome = [out.detach().clone(), strides if out.numel() > 1 else [], out.requires_grad]
        if order == 0 or not out.requires_grad:
            return results
        cotangent = torch.randn(out.shape, generator=torch.Generator().manual_seed(7), dtype=out.dtype)
        grads = torch.autograd.grad(out, leaves, cotangent, create_graph=order > 1, allow_unused=True)
        results += grads
        force = grads[0]
        if order > 1 and force is not None and force.requires_grad:
            results += torch.autograd.grad(force.square().sum(), leaves, allow_unused=True)
        return results
    except Exception as error:
        return [type(error), str(error)]


def _differ(actual: Outcome, expected: Outcome, has_ties: bool) -> str | None:
    if isinstance(expected[0], type) or isinstance(actual[0], type):
        known = expected[0] is actual[0] or (isinstance(expected[0], type) and "inplace operation" in expected[1])
        if known or (isinstance(actual[0], type) and any(words in actual[1] for words in REFUSED)):
            return None
        return f"{actual[:2] if isinstance(actual[0], type) else 'a result'} where torch_geometric has {expected[:2]}"
    for place, (a, b) in enumerate(zip(actual, expected)):
        if has_ties and place > 2:
            return None  # extremes of equal messages: halfgnn gives the first one the gradient
        name = ("result", "strides", "requires_grad")[place] if place < 3 else f"gradient {place - 3}"
        if not isinstance(a, Tensor) or not isinstance(b, Tensor):
            if not (a is b or a == b):
                return f"{name}: {_short(a)}, expected {_short(b)}"
        elif a.shape != b.shape or a.dtype is not b.dtype:
            return f"{name}: {tuple(a.shape)} {a.dtype}, expected {tuple(b.shape)} {b.dtype}"
        elif not torch.allclose(a, b, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True):
            return f"{name}: error {float((a - b).abs().max()):.2g} of {float(b.abs().max()):.2g}"
    return None if len(actual) == len(expected) else f"{len(actual)} results, expected {len(expected)}"


def _short(x: Any) -> str:
    return f"a tensor {tuple(x.shape)}" if isinstance(x, Tensor) else str(x)


def fault(program: Program, seed: int) -> str | None:
    """How a program differs under the drop-in, in words; None if it does not."""
    order, fuse = seed % 3, (None, True, False)[seed // 3 % 3]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = _run(program, seed, order)
        with halfgnn.pyg.accelerate(fuse=fuse):
            actual = _run(program, seed, order)
    difference = _differ(actual, expected, program.has_ties and program.aggr in ("max", "min"))
    return difference and f"fuse={fuse}, derivatives of order {order}: {difference}"
