"""The fused attentions, beside the same from message-passing operators: halfgnn's own, DGL's, PyG's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from halfgnn import ops, reference

from . import baselines, gather, verify
from .case import Case, Config, Contestant, Unavailable, directed, normal, with_backward
from .graphs import BenchGraph

SLOPE = 0.2
FUSED, UNFUSED = "halfgnn", "halfgnn unfused"


def _leaky(x: Tensor) -> Tensor:
    return torch.nn.functional.leaky_relu(x, SLOPE)


# The attentions as models write them. `on` has the operators, of a library that takes its own kind of graph.


def _unfused_gat(on: Any, g: Any, x: Tensor, src: Tensor, dst: Tensor) -> Tensor:
    alpha = on.edge_softmax(g, _leaky(on.u_add_v(g, src.unsqueeze(-1), dst.unsqueeze(-1))))
    return on.u_mul_e_sum(g, x, alpha)


def _unfused_gatv2(on: Any, g: Any, x_src: Tensor, x_dst: Tensor, attn: Tensor) -> Tensor:
    logits = (_leaky(on.u_add_v(g, x_src, x_dst)) * attn).sum(-1, keepdim=True)
    return on.u_mul_e_sum(g, x_src, on.edge_softmax(g, logits))


def _unfused_dot(on: Any, g: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    logits = on.u_dot_v(g, key, query) * query.shape[-1] ** -0.5
    return on.u_mul_e_sum(g, value, on.edge_softmax(g, logits))


@dataclass(frozen=True)
class Kind:
    name: str
    shapes: tuple[str, ...]  # of the operands: u, v: features of heads; a: logits; p: a parameter of heads
    targets: tuple[str, ...]  # whose rows they have
    fused: Callable[..., Tensor]
    unfused: Callable[..., Tensor]
    formula: Callable[..., Tensor]
    edge_features: bool = False  # the unfused form has messages of E x H x D


KINDS = (
    Kind("gat_attention", ("hd", "h", "h"), ("u", "u", "v"), ops.gat_attention, _unfused_gat, reference.gat_attention),
    Kind(
        "gatv2_attention", ("hd", "hd", "hd"), ("u", "v", ""), ops.gatv2_attention, _unfused_gatv2,
        reference.gatv2_attention, edge_features=True,
    ),
    Kind(
        "dot_attention", ("hd", "hd", "hd"), ("v", "u", "u"), ops.dot_attention, _unfused_dot,
        lambda g, q, k, v: reference.dot_attention(g, q, k, v, q.shape[-1] ** -0.5),
    ),
)  # fmt: skip


def _tensors(kind: Kind, graph: BenchGraph, heads: int, dim: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    made = []
    for i, (shape, target) in enumerate(zip(kind.shapes, kind.targets)):
        rows = (graph.num_nodes,) if target else ()
        made.append(normal((*rows, heads, *((dim,) if shape == "hd" else ())), dtype, 1 + i, graph.device))
    return tuple(made)


def _pyg_operators(graph: BenchGraph) -> Any:
    """The operators as PyG has them: indexing, torch_geometric's softmax and scatter. They ignore their graph argument."""
    softmax, scatter = baselines.pyg_softmax(graph), baselines.import_pyg().utils.scatter
    src, dst = graph.edge_index
    return SimpleNamespace(
        u_add_v=lambda g, x, y: x.index_select(0, src) + y.index_select(0, dst),
        u_dot_v=lambda g, x, y: (x.index_select(0, src) * y.index_select(0, dst)).sum(-1, keepdim=True),
        edge_softmax=lambda g, logits: softmax(logits),
        u_mul_e_sum=lambda g, x, w: scatter(x.index_select(0, src) * w, dst, 0, graph.num_nodes, "sum"),
    )


def _work(kind: Kind, graph: BenchGraph, name: str, dtype: torch.dtype, row: int) -> Callable[..., Tensor]:
    """row: elements of a row of features."""
    if name == FUSED:
        return lambda *tensors: kind.fused(graph.halfgnn, *tensors)
    if kind.edge_features:
        baselines.check_messages(3 * graph.num_edges * row * dtype.itemsize, graph.device)
    if name == UNFUSED:
        return lambda *tensors: kind.unfused(ops, graph.halfgnn, *tensors)
    if name == "dgl":
        if dtype == torch.float16 and graph.device == "cpu":
            raise Unavailable("DGL has no fp16 on the CPU")
        if not baselines.dgl_runs_on(graph.device):
            raise Unavailable(f"this DGL has no {graph.device}")
        return lambda *tensors: kind.unfused(baselines.import_dgl().ops, graph.dgl, *tensors)
    baselines.check_messages(3 * graph.num_edges * row * dtype.itemsize, graph.device)
    operators = _pyg_operators(graph)
    return lambda *tensors: kind.unfused(operators, None, *tensors)


def _contestant(kind: Kind, graph: BenchGraph, heads: int, dim: int, name: str, dtype, direction: str) -> Contestant:
    def tensors() -> tuple[Tensor, ...]:
        return _tensors(kind, graph, heads, dim, dtype)

    def check(out: Tensor) -> float:
        part = verify.sample(graph)
        ids = {"u": part.sources, "v": part.rows}
        sampled = [verify.take(x, ids[t]) if t else x.cpu() for x, t in zip(tensors(), kind.targets)]
        truth, result = kind.formula(part.graph, *(x.double() for x in sampled)), verify.take(out, part.rows)
        if name == FUSED:
            bound = kind.formula(part.graph, *(x.double() for x in sampled)).abs().amax() * 64
            return verify.check_rounded_once(result, truth, bound.expand_as(truth), f"{kind.name} {dtype}")
        return verify.relative_error(result, truth)

    def make():
        return directed(direction, _work(kind, graph, name, dtype, heads * dim), tensors(), 5)

    gathers = 2 if kind.name == "dot_attention" else 1
    moved = graph.num_edges * gathers * heads * dim * dtype.itemsize if direction == "forward" else 0
    return Contestant(name, dtype, make, check if direction == "forward" else None, bytes_moved=moved)


def _check_gradients(kind: Kind, config: Config, heads: int, dim: int, order: str) -> None:
    graph = verify.miniature(order, config.idtype, config.device)

    def run(function: Callable[..., Tensor]) -> Callable[[tuple[Tensor, ...]], Sequence[Tensor]]:
        return lambda t: with_backward(lambda *x: function(graph.halfgnn, *x), t, 5)()

    for dtype in config.torch_dtypes():
        inputs = _tensors(kind, graph, heads, dim, dtype)
        # Gradients of logits are differences of sums, in fp32 of some tens of terms each.
        units = 16 if dtype == torch.float32 else 1
        what = f"{kind.name} with gradients, {dtype}"
        verify.check_like_formula(run(kind.fused), run(kind.formula), inputs, what, units)


def cases(config: Config) -> Iterator[Case]:
    if not torch._C._dispatch_has_kernel_for_dispatch_key("halfgnn::gat_attention", config.device.upper()):
        print(f"attention: no kernels on {config.device}")
        return
    names = [FUSED, UNFUSED, *(name for name in ("dgl", "pyg") if name in config.baselines)]
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

                        contestants = [
                            _contestant(kind, graph, heads, dim, name, dtype, direction)
                            for dtype in config.torch_dtypes(feat)
                            for name in names
                            if not (name == "pyg" and not config.has("pyg", feat, dtype))
                        ]
                        case = Case("attention", kind.name, direction, graph, heads, dim, contestants, before)
                        yield gather.beside(case, by_src=direction != "forward")
