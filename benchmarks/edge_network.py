"""A step of the edges of a MeshGraphNet: a network of two hidden layers with a norm on both ends and the edge, whose messages are
summed at destinations and added to the edges' features.

``plain`` is what models of torch_geometric and others do, rows of all edges in each layer; ``plain compiled`` the same under
torch.compile, ``checkpoint`` under torch.utils.checkpoint, which keeps as little as ``halfgnn`` (nn.EdgeNetwork).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

from halfgnn.nn import EdgeNetwork

from . import verify
from .baselines import check_messages
from .case import Backend, Case, Config, name_of
from .graphs import BenchGraph
from .inputs import normal

OURS, PLAIN, COMPILED, CHECKPOINT = "halfgnn", "plain", "plain compiled", "checkpoint"
OP = "MeshGraphNet's edges"
_MESSAGES = 12  # rows of features per edge that a plain step has at once, at least


def _layers(feat: int, dtype: torch.dtype, device: str) -> list[nn.Module]:
    torch.manual_seed(7)
    layers = [nn.Linear(3 * feat, feat), nn.SiLU(), nn.Linear(feat, feat), nn.SiLU(), nn.Linear(feat, feat)]
    return [layer.to(device, dtype) for layer in (*layers, nn.LayerNorm(feat))]


class _Plain(nn.Sequential):
    def forward(self, edge_index: Tensor, x: Tensor, edges: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        src, dst = edge_index
        message = super().forward(torch.cat([x[src], x[dst], edges], 1))
        return torch.zeros_like(x).index_add_(0, dst, message), edges + message


def _module(name: str, graph: BenchGraph, feat: int, dtype: torch.dtype) -> tuple[nn.Module, Callable[..., Any]]:
    """The module, and a function of its parameters, features and edges."""
    layers = _layers(feat, dtype, graph.device)
    if name == OURS:
        net = EdgeNetwork(*layers, return_edges=True, residual=True)
        return net, lambda given, *x: functional_call(net, given, (graph.halfgnn, *x))
    plain, edge_index = _Plain(*layers), graph.edge_index
    if name == CHECKPOINT:
        run = lambda given, *x: functional_call(plain, given, (edge_index, *x))  # noqa: E731
        return plain, lambda given, *x: checkpoint(run, given, *x, use_reentrant=False)
    call = torch.compile(plain) if name == COMPILED else plain
    return plain, lambda given, *x: call(edge_index, *x)


def _step(name: str, graph: BenchGraph, feat: int, dtype: torch.dtype) -> Callable[[], tuple[Tensor, ...]]:
    """The results, and the gradients of features, edges and parameters."""
    module, function = _module(name, graph, feat, dtype)
    parameters = dict(module.named_parameters())
    data = [normal((n, feat), dtype, 1 + i, graph.device) for i, n in enumerate((graph.num_nodes, graph.num_edges))]
    upstream = [normal(tuple(x.shape), dtype, 5 + i, graph.device) for i, x in enumerate(data)]
    leaves = [x.clone().requires_grad_() for x in data]

    def work() -> tuple[Tensor, ...]:
        results = function(parameters, *leaves)
        gradients = torch.autograd.grad(results, [*leaves, *parameters.values()], upstream)
        return (*(x.detach() for x in results), *gradients)

    return work


def _backend(name: str, graph: BenchGraph, feat: int, dtype: torch.dtype) -> Backend:
    def make() -> Callable[[], Any]:
        if name != OURS:
            check_messages(_MESSAGES * graph.num_edges * feat * dtype.itemsize // 2, graph.device)
        return _step(name, graph, feat, dtype)

    return Backend(name, dtype, make)


def _check(config: Config, feat: int, order: str) -> None:
    """Compares with the plain network in float64, on a small graph."""
    graph = verify.miniature(order, config.idtype, config.device)
    for dtype in config.torch_dtypes():
        ours, plain = (_step(name, graph, feat, dtype)() for name in (OURS, PLAIN))
        truth = _step(PLAIN, graph, feat, torch.float64)()
        for i, (mine, same_type, exact) in enumerate(zip(ours, plain, truth)):
            # Inputs in a half type are rounded, for both alike.
            error, allowed = verify.relative_error(mine, exact), 3 * verify.relative_error(same_type, exact)
            if not error <= allowed + 16 * torch.finfo(dtype).eps:
                raise verify.WrongResult(f"{OP}, {name_of(dtype)}, result {i}: {error:.3g} > {allowed:.3g}")


def cases(config: Config) -> Iterator[Case]:
    names = [OURS, PLAIN, CHECKPOINT, *([] if config.eager else [COMPILED])]
    for graph in (config.graph(name, config.orders[0]) for name in config.graphs):
        for feat in config.dims:
            found = [_backend(name, graph, feat, dtype) for dtype in config.torch_dtypes() for name in names]
            before = lambda feat=feat, order=graph.order: _check(config, feat, order)  # noqa: E731
            yield Case("edge_network", OP, "forward+backward", graph, 1, feat, found, before)
