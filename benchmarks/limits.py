"""How far copy_u_sum is from the limits of the machine. No comparator is a strict bound:

* ``embedding_bag``: torch.nn.functional.embedding_bag with mode="sum" over the same indices. The same gather and sum,
  by FBGEMM's or PyTorch's own kernel.
* ``index_select``: gathers the rows over the same indices and writes one row per edge. It has no arithmetic, but its
  writes move as many bytes again.
* ``halfgnn, in sequence``: copy_u_sum over rows of the same lengths with indices 0, 1, 2, ... instead. The same bytes
  and arithmetic without random access.
* ``halfgnn, resident``: copy_u_sum over the same adjacency with ids modulo a number of rows that fit into a cache (that
  of a CPU's core, or easily the L2 cache of a GPU). The same work without misses.
* ``copy, cached``: Tensor.copy_ of the feature matrix, repeatedly: the streaming bandwidth of the cache that holds the
  features.
* ``copy, memory``: Tensor.copy_ of 256 MiB (a GPU: 2 GiB), more than any cache holds. Both copies are scaled to the
  bytes that the gather reads. A copy also writes as many bytes, so reading alone may be faster.
* ``gather limit``, on a GPU: a kernel that reads the same rows and does nothing else (see gather.py).
* ``gather limit, resident``, on a GPU: the same with few rows, as above.

GB/s counts one index and one feature row per edge, for all contestants.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

import torch
from torch import Tensor

import halfgnn
from halfgnn import ops, reference

from . import gather, verify
from .baselines import Problem, check_messages
from .case import Case, Config, Contestant
from .graphs import BenchGraph
from .rivals import rivals
from .spmm import features, gathered_bytes

RESIDENT_BYTES = {"cpu": 256 << 10, "cuda": 16 << 20}
COPY_BYTES = {"cpu": 256 << 20, "cuda": 2 << 30}


def _in_sequence(graph: BenchGraph) -> halfgnn.Graph:
    indptr = graph.halfgnn.csc().indptr
    indices = torch.arange(graph.num_edges, dtype=indptr.dtype, device=indptr.device) % graph.num_nodes
    return halfgnn.Graph.from_csc(indptr, indices, num_src=graph.num_nodes)


def _resident_rows(graph: BenchGraph, dim: int, dtype: torch.dtype) -> int:
    return max(1, min(graph.num_nodes, RESIDENT_BYTES[graph.device] // (dim * dtype.itemsize)))


def _resident(graph: BenchGraph, rows: int) -> halfgnn.Graph:
    indptr, indices, _ = graph.halfgnn.csc()
    return halfgnn.Graph.from_csc(indptr, indices % rows, num_src=rows)


def _gather(graph: BenchGraph, dim: int, dtype: torch.dtype, name: str):
    """The work of the comparator `name`."""
    x = features(graph, 1, dim, dtype)
    indptr, indices, _ = graph.halfgnn.csc()
    if name == "halfgnn":
        return lambda: ops.copy_u_sum(graph.halfgnn, x)
    if name == "halfgnn, in sequence":
        sequence = _in_sequence(graph)
        return lambda: ops.copy_u_sum(sequence, x)
    if name == "halfgnn, resident":
        rows = _resident_rows(graph, dim, dtype)
        resident, few = _resident(graph, rows), x[:rows]
        return lambda: ops.copy_u_sum(resident, few)
    if name == "embedding_bag":
        bag = torch.nn.functional.embedding_bag
        return lambda: bag(indices, x, indptr, mode="sum", include_last_offset=True)
    needed = graph.num_edges * dim * dtype.itemsize
    check_messages(needed, graph.device)
    out = x.new_empty((graph.num_edges, dim))
    return lambda: torch.index_select(x, 0, indices, out=out)


def _check(graph: BenchGraph, dim: int, dtype: torch.dtype, strict: bool, out: Tensor) -> float:
    part = verify.sample(graph)
    x = verify.take(features(graph, 1, dim, dtype), part.sources).double()
    truth, result = reference.gspmm(part.graph, "copy_lhs", "sum", x, None), verify.take(out, part.rows)
    if strict:
        magnitude = reference.gspmm(part.graph, "copy_lhs", "sum", x.abs(), None)
        return verify.check_rounded_once(result, truth, magnitude, f"copy_u_sum {dtype}")
    return verify.relative_error(result, truth)


def _gathers(config: Config, graph: BenchGraph, dim: int, dtype: torch.dtype) -> Iterator[Contestant]:
    moved, check = gathered_bytes(graph, dim, 0, dtype), functools.partial(_check, graph, dim, dtype)
    for name in GATHERS:
        checked = functools.partial(check, name == "halfgnn") if name in SUMS else None
        yield Contestant(name, dtype, functools.partial(_gather, graph, dim, dtype, name), checked, bytes_moved=moved)
    problem = Problem("copy_u_sum", "forward", graph, 1, dim, dtype)
    operands = functools.partial(features, graph, 1, dim, dtype)
    yield from rivals(config, problem, lambda: (operands(),), functools.partial(check, False), moved, others=False)


def _copy_contestant(graph: BenchGraph, dim: int, name: str, dtype: torch.dtype) -> Contestant:
    """Copies about as many bytes as the gather reads: a whole number of buffers."""
    gathered = gathered_bytes(graph, dim, 0, dtype)
    buffer = graph.num_nodes * dim * dtype.itemsize
    if name == "copy, memory":
        buffer = min(COPY_BYTES[graph.device], gathered)
    times = max(1, round(gathered / buffer))

    def make():
        source = torch.ones(buffer // dtype.itemsize, dtype=dtype, device=graph.device)
        target = torch.empty_like(source)

        def work() -> None:
            for _ in range(times):
                target.copy_(source)

        return work

    return Contestant(name, dtype, make, bytes_moved=times * (buffer // dtype.itemsize) * dtype.itemsize)


GATHERS = ("halfgnn", "halfgnn, in sequence", "halfgnn, resident", "embedding_bag", "index_select")
SUMS = ("halfgnn", "embedding_bag")
COPIES = ("copy, cached", "copy, memory")


def cases(config: Config) -> Iterator[Case]:
    for name in config.graphs:
        graph = config.graph(name, config.orders[0])
        for dim in config.dims:
            contestants = []
            for dtype in config.torch_dtypes(dim):
                contestants += _gathers(config, graph, dim, dtype)
                contestants += [_copy_contestant(graph, dim, copy, dtype) for copy in COPIES]
                if config.on_gpu:
                    contestants.append(gather.contestant(graph, dim, dtype, rows=_resident_rows(graph, dim, dtype)))
            yield gather.beside(Case("limits", "copy_u_sum", "forward", graph, 1, dim, contestants))
