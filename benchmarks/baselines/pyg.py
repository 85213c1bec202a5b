"""torch_geometric: its scatter, its softmax, and a layer written with MessagePassing."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from ..operators import Problem
from ..optional import import_pyg
from . import composed
from .registry import ANY_DIRECTION, check_messages, competitor

scatter = competitor("pyg scatter", option="pyg")


@scatter.does("copy_u_sum", "copy_u_max", "u_mul_e_sum")
def _scatter(problem: Problem, *operands: Tensor) -> Callable[..., Tensor]:
    reduce, graph = problem.op.rpartition("_")[2], problem.graph
    by_pyg = import_pyg().utils.scatter
    # A maximum copies the messages and expands its indices.
    check_messages((2 if reduce == "max" else 1) * problem.message_bytes, graph.device)
    src, dst = graph.edge_index

    def work(x: Tensor, weight: Tensor | None = None) -> Tensor:
        messages = x.index_select(0, src)
        if weight is not None:
            messages.mul_(weight)
        return by_pyg(messages, dst, 0, graph.num_nodes, reduce)

    return work


conv = competitor("pyg conv", option="pyg")


@conv.does("copy_u_sum", "u_mul_e_sum", one_head=True)
def _conv(problem: Problem, *operands: Tensor) -> Callable[..., Tensor]:
    base, graph = import_pyg().nn.MessagePassing, problem.graph
    check_messages(2 * problem.message_bytes, graph.device)

    class Sum(base):
        def forward(self, edge_index, x, weight):
            return self.propagate(edge_index, x=x, weight=weight)

        def message(self, x_j, weight):
            return x_j if weight is None else x_j * weight

    layer = Sum(aggr="sum", node_dim=0)
    return lambda x, weight=None: layer(graph.edge_index, x, weight)


softmax = competitor("pyg softmax", option="pyg")


@softmax.does("edge_softmax", directions=ANY_DIRECTION)
def _softmax(problem: Problem, *operands: Tensor) -> Callable[..., Tensor]:
    by_pyg, graph = import_pyg().utils.softmax, problem.graph
    return lambda logits: by_pyg(logits, graph.edge_index[1], num_nodes=graph.num_nodes)


composition = competitor("pyg")


@composition.does(*composed.COMPOSED, directions=ANY_DIRECTION)
def _composed(problem: Problem, *operands: Tensor) -> Callable[..., Tensor]:
    graph, utils = problem.graph, import_pyg().utils
    src, dst = graph.edge_index
    on = composed.gather_scatter(src, dst, graph.num_nodes)
    on.edge_softmax = lambda logits: utils.softmax(logits, dst, num_nodes=graph.num_nodes)
    on.u_mul_e_sum = lambda x, w: utils.scatter(x.index_select(0, src) * w, dst, 0, graph.num_nodes, "sum")
    on.copy_e_sum = lambda x: utils.scatter(x, dst, 0, graph.num_nodes, "sum")
    return composed.made_of(problem, on, messages=3)
