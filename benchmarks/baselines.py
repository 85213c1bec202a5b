"""The competitors: DGL's own operators, torch.sparse, gather-multiply-index_add in PyTorch, and PyG's scatter.

A baseline that is not importable, or that has no such operator or dtype, raises
:class:`~benchmarks.case.Unavailable` with the reason, which becomes the note of its row. What a
library refuses only when called is noted by the runner in the same way.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .case import Unavailable
from .graphs import BenchGraph

MESSAGE_BYTES = 1 << 30  # index_add holds one message an edge: no more memory than this, on a CPU


def check_messages(needed: int, device: str) -> None:
    """Raises Unavailable where messages of so many bytes are too many."""
    room = MESSAGE_BYTES
    if device == "cuda":
        room = torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved() - torch.cuda.memory_allocated() - (2 << 30)
    if needed > room:
        raise Unavailable(f"its messages would take {needed / 2**30:.1f} GiB")


@functools.cache
def import_pyg() -> Any:
    """The torch_geometric package."""
    try:
        return importlib.import_module("torch_geometric")
    except Exception as error:
        raise Unavailable(f"torch_geometric cannot be imported: {_first_line(error)}") from error


@functools.cache
def dgl_runs_on(device: str) -> bool:
    """Whether this DGL has graphs there: PyPI's has them on the CPU alone."""
    if device == "cpu":
        return True
    try:
        import_dgl().graph((torch.zeros(1).long(), torch.zeros(1).long())).to(device)
    except Unavailable:
        raise
    except Exception:
        return False
    return True


@functools.cache
def import_dgl() -> Any:
    """The dgl package on its PyTorch backend."""
    os.environ.setdefault("DGLBACKEND", "pytorch")  # else the first import writes a file
    try:
        return importlib.import_module("dgl")
    except Exception as error:  # a wheel of another torch fails in its own ways
        raise Unavailable(f"dgl cannot be imported: {_first_line(error)}") from error


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def reason(error: BaseException) -> str:
    """Why a contestant did not take part, in a line."""
    if isinstance(error, Unavailable):
        return str(error)
    text = next((x for x in str(error).splitlines() if "Check failed" in x), _first_line(error))
    return f"refused: {type(error).__name__}: {text[-160:].strip()}"


def set_threads(count: int) -> None:
    """Threads of PyTorch, halfgnn and, where it is there, DGL."""
    torch.set_num_threads(count)
    with contextlib.suppress(Unavailable):
        import_dgl().utils.set_num_threads(count)


def dgl_op(graph: BenchGraph, name: str, *inputs: Tensor) -> Callable[..., Tensor]:
    """DGL's own operator `name` on the graph, as a function of its tensors."""
    if inputs and inputs[0].dtype == torch.float16 and inputs[0].device.type == "cpu":
        raise Unavailable("DGL has no fp16 on the CPU")
    if not dgl_runs_on(graph.device):
        raise Unavailable(f"this DGL has no {graph.device}")
    return functools.partial(getattr(import_dgl().ops, name), graph.dgl)


def sparse_matmul(graph: BenchGraph, x: Tensor, weight: Tensor | None) -> Callable[[], Tensor]:
    """A @ x by torch.sparse; A holds the weights (E,), or ones. Its values are set before timing."""
    if x.dim() != 2:
        raise Unavailable("a sparse matrix has one weight an edge")
    indptr, indices, edge_ids = graph.halfgnn.csc()
    if weight is None:
        values = x.new_ones(graph.num_edges)
    else:
        flat = weight.reshape(-1)
        values = flat if edge_ids is None else flat[edge_ids.long()]
    size = (graph.num_nodes, graph.num_nodes)
    matrix = torch.sparse_csr_tensor(indptr, indices, values, size, check_invariants=False)
    return lambda: matrix @ x


def _message_bytes(graph: BenchGraph, x: Tensor) -> int:
    return graph.num_edges * x[0].numel() * x.element_size()


def index_add(graph: BenchGraph, x: Tensor, weight: Tensor | None) -> Callable[[], Tensor]:
    """x[src], times weights, index_add'ed by destination."""
    check_messages(_message_bytes(graph, x), graph.device)

    def work() -> Tensor:
        messages = x.index_select(0, graph.src)
        if weight is not None:
            messages.mul_(weight)
        return x.new_zeros(x.shape).index_add_(0, graph.dst, messages)

    return work


def gathered_dot(graph: BenchGraph, x: Tensor, y: Tensor) -> Callable[[], Tensor]:
    """(x[src] * y[dst]).sum(-1) by PyTorch."""
    check_messages(2 * _message_bytes(graph, x), graph.device)

    def work() -> Tensor:
        gathered = x.index_select(0, graph.src).mul_(y.index_select(0, graph.dst))
        return gathered.sum(-1, keepdim=True)

    return work


def sampled_addmm(graph: BenchGraph, x: Tensor, y: Tensor) -> Callable[[], Tensor]:
    """The dots by torch.sparse, in the order of the adjacency, which must be that of edge data."""
    indptr, indices, edge_ids = graph.halfgnn.csc()
    if edge_ids is not None or x.dim() != 2:
        raise Unavailable("its results are those of one head, in the order of the adjacency")
    size = (graph.num_nodes, graph.num_nodes)
    matrix = torch.sparse_csr_tensor(indptr, indices, x.new_zeros(graph.num_edges), size, check_invariants=False)
    return lambda: torch.sparse.sampled_addmm(matrix, y, x.t(), beta=0.0).values().unsqueeze(1)


def pyg_scatter(graph: BenchGraph, x: Tensor, weight: Tensor | None, reduce: str) -> Callable[[], Tensor]:
    """x[src], times weights, by torch_geometric.utils.scatter."""
    scatter = import_pyg().utils.scatter
    # A maximum works on a copy, and expands its indices.
    check_messages((2 if reduce == "max" else 1) * _message_bytes(graph, x), graph.device)

    def work() -> Tensor:
        src, dst = graph.edge_index
        messages = x.index_select(0, src)
        if weight is not None:
            messages.mul_(weight)
        return scatter(messages, dst, 0, graph.num_nodes, reduce)

    return work


def pyg_conv(graph: BenchGraph, x: Tensor, weight: Tensor | None) -> Callable[[], Tensor]:
    """The same by torch_geometric's MessagePassing, as one writes a layer."""
    base = import_pyg().nn.MessagePassing
    check_messages(2 * _message_bytes(graph, x), graph.device)

    class Sum(base):
        def forward(self, edge_index, x, weight):
            return self.propagate(edge_index, x=x, weight=weight)

        def message(self, x_j, weight):
            return x_j if weight is None else x_j * weight

    layer = Sum(aggr="sum", node_dim=0)
    return lambda: layer(graph.edge_index, x, weight)


def pyg_softmax(graph: BenchGraph) -> Callable[[Tensor], Tensor]:
    """torch_geometric.utils.softmax."""
    softmax = import_pyg().utils.softmax
    return lambda logits: softmax(logits, graph.edge_index[1], num_nodes=graph.num_nodes)
