"""The fused attentions, the same attentions made of halfgnn's separate operators, and those of competitors."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from halfgnn import ops, reference

from . import gather, verify
from .baselines import Problem, check_messages
from .baselines.composed import COMPOSED, MESSAGES, operators_of
from .case import Case, Config, Contestant, directed, normal, with_backward
from .graphs import BenchGraph
from .rivals import rivals

FUSED, UNFUSED = "halfgnn", "halfgnn unfused"


@dataclass(frozen=True)
class Kind:
    name: str
    shapes: tuple[str, ...]  # of the operands: "hd" (heads, dim), "h" (heads,)
    targets: tuple[str, ...]  # of the operands: "u" a row per source, "v" a row per destination, "" no rows
    fused: Callable[..., Tensor]
    formula: Callable[..., Tensor]
    gathered: int = 1  # rows of features per edge


KINDS = (
    Kind("gat_attention", ("hd", "h", "h"), ("u", "u", "v"), ops.gat_attention, reference.gat_attention),
    Kind(
        "gatv2_attention", ("hd", "hd", "hd"), ("u", "v", ""), ops.gatv2_attention, reference.gatv2_attention,
    ),
    Kind(
        "dot_attention", ("hd", "hd", "hd"), ("v", "u", "u"), ops.dot_attention,
        lambda g, q, k, v: reference.dot_attention(g, q, k, v, q.shape[-1] ** -0.5), gathered=2,
    ),
)  # fmt: skip


def _tensors(kind: Kind, graph: BenchGraph, heads: int, dim: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    made = []
    for i, (shape, target) in enumerate(zip(kind.shapes, kind.targets)):
        rows = (graph.num_nodes,) if target else ()
        made.append(normal((*rows, heads, *((dim,) if shape == "hd" else ())), dtype, 1 + i, graph.device))
    if kind.name == "gat_attention":  # as in a model, logits of sources are products of the features that are summed
        attn = normal((heads, dim), torch.float32, 9, graph.device) * dim**-0.5
        made[1] = torch.einsum("nhd,hd->nh", made[0], attn.to(dtype))
    return tuple(made)


def _function(kind: Kind, name: str, problem: Problem) -> Callable[..., Tensor]:
    graph = problem.graph
    if name == FUSED:
        return functools.partial(kind.fused, graph.halfgnn)
    needed = MESSAGES[kind.name] + (0 if problem.is_forward else 2)  # with their gradients
    check_messages(needed * problem.message_bytes, graph.device)
    return functools.partial(COMPOSED[kind.name], operators_of(ops, graph.halfgnn))


def _contestants(kind: Kind, config: Config, graph: BenchGraph, heads: int, dim: int, direction: str):
    for dtype in config.torch_dtypes(heads * dim):
        operands = functools.partial(_tensors, kind, graph, heads, dim, dtype)
        problem = Problem(kind.name, direction, graph, heads, dim, dtype)
        ids = graph.num_edges * graph.src.element_size()
        moved = kind.gathered * problem.message_bytes + ids if problem.is_forward else 0

        def check(out: Tensor, strict: bool = False, dtype=dtype, operands=operands) -> float:
            part = verify.sample(graph)
            ids = {"u": part.sources, "v": part.rows}
            sampled = [verify.take(x, ids[t]) if t else x.cpu() for x, t in zip(operands(), kind.targets)]
            truth, result = kind.formula(part.graph, *(x.double() for x in sampled)), verify.take(out, part.rows)
            if strict:
                bound = (truth.abs().amax() * 64).expand_as(truth)
                return verify.check_rounded_once(result, truth, bound, f"{kind.name} {dtype}")
            return verify.relative_error(result.reshape(truth.shape), truth)

        for name in (FUSED, UNFUSED):

            def make(name=name, problem=problem, operands=operands):
                return directed(direction, _function(kind, name, problem), operands(), 5)

            checked = functools.partial(check, strict=name == FUSED) if problem.is_forward else None
            yield Contestant(name, dtype, make, checked, bytes_moved=moved)
        yield from rivals(config, problem, operands, check, moved)


def _check_gradients(kind: Kind, config: Config, heads: int, dim: int, order: str) -> None:
    graph = verify.miniature(order, config.idtype, config.device)

    def run(function: Callable[..., Tensor]) -> Callable[[tuple[Tensor, ...]], Sequence[Tensor]]:
        return lambda t: with_backward(lambda *x: function(graph.halfgnn, *x), t, 5)()

    for dtype in config.torch_dtypes():
        inputs = _tensors(kind, graph, heads, dim, dtype)
        # Gradients of logits are differences of fp32 sums with some tens of terms each.
        units = 16 if dtype == torch.float32 else 1
        what = f"{kind.name} with gradients, {dtype}"
        verify.check_like_formula(run(kind.fused), run(kind.formula), inputs, what, units)


def cases(config: Config) -> Iterator[Case]:
    if not torch._C._dispatch_has_kernel_for_dispatch_key("halfgnn::gat_attention", config.device.upper()):
        print(f"attention: no kernels on {config.device}")
        return
    for graph in config.ordered_graphs():
        if not config.main_order(graph):
            continue
        for kind in KINDS:
            for feat in config.dims:
                for heads in config.heads:
                    for direction in config.directions:
                        dim = feat // heads

                        def before(kind=kind, heads=heads, dim=dim, direction=direction, order=graph.order) -> None:
                            if direction != "forward":
                                _check_gradients(kind, config, heads, dim, order)

                        contestants = list(_contestants(kind, config, graph, heads, dim, direction))
                        case = Case("attention", kind.name, direction, graph, heads, dim, contestants, before)
                        yield gather.beside(case, by_src=direction != "forward", rows_per_edge=kind.gathered)
