"""How far copy_u_sum is from the limits of the machine. No comparator is a strict bound:

* the competitors that take part everywhere; among them, on a CPU, ``embedding_bag``, which is the same gather and sum,
  and ``indexed copy``, which is the same gather without a sum.
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

GB/s counts one index and one feature row per edge, for all backends.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from halfgnn import Graph, ops

from . import gather, sweep
from .case import Backend, Case, Config
from .operators import Problem

RESIDENT_BYTES = {"cpu": 256 << 10, "cuda": 16 << 20}
COPY_BYTES = {"cpu": 256 << 20, "cuda": 2 << 30}
GATHERS = ("halfgnn", "halfgnn, in sequence", "halfgnn, resident")
COPIES = ("copy, cached", "copy, memory")


def _resident_rows(problem: Problem) -> int:
    rows = RESIDENT_BYTES[problem.graph.device] // (problem.dim * problem.dtype.itemsize)
    return max(1, min(problem.graph.num_nodes, rows))


def _gather(problem: Problem, name: str) -> Callable[[], Any]:
    """The work of the comparator `name`."""
    graph, x = problem.graph, problem.features()
    indptr, indices, _ = graph.halfgnn.csc()
    if name == "halfgnn":
        return lambda: ops.copy_u_sum(graph.halfgnn, x)
    if name == "halfgnn, in sequence":
        in_sequence = torch.arange(graph.num_edges, dtype=indptr.dtype, device=indptr.device) % graph.num_nodes
        sequence = Graph.from_csc(indptr, in_sequence, num_src=graph.num_nodes)
        return lambda: ops.copy_u_sum(sequence, x)
    rows = _resident_rows(problem)
    resident, few = Graph.from_csc(indptr, indices % rows, num_src=rows), x[:rows]
    return lambda: ops.copy_u_sum(resident, few)


def _copy(problem: Problem, name: str) -> Backend:
    """Copies about as many bytes as the gather reads: a whole number of buffers."""
    graph, itemsize = problem.graph, problem.dtype.itemsize
    buffer = graph.num_nodes * problem.dim * itemsize
    if name == "copy, memory":
        buffer = min(COPY_BYTES[graph.device], problem.moved_bytes)
    times = max(1, round(problem.moved_bytes / buffer))

    def make() -> Callable[[], None]:
        source = torch.ones(buffer // itemsize, dtype=problem.dtype, device=graph.device)
        target = torch.empty_like(source)

        def work() -> None:
            for _ in range(times):
                target.copy_(source)

        return work

    return Backend(name, problem.dtype, make, bytes_moved=times * (buffer // itemsize) * itemsize)


def _backends(config: Config, problem: Problem) -> Iterator[Backend]:
    for name in GATHERS:
        check = functools.partial(sweep.check, problem) if name == "halfgnn" else None
        make = functools.partial(_gather, problem, name)
        yield Backend(name, problem.dtype, make, check, bytes_moved=problem.moved_bytes)
    yield from sweep.rivals(config, problem, others=False)
    yield from (_copy(problem, name) for name in COPIES)
    if config.on_gpu:
        yield gather.backend(problem.graph, problem.dim, problem.dtype, rows=_resident_rows(problem))


def cases(config: Config) -> Iterator[Case]:
    for name in config.graphs:
        graph = config.graph(name, config.orders[0])
        for dim in config.dims:
            problems = [Problem("copy_u_sum", "forward", graph, 1, dim, dtype) for dtype in config.torch_dtypes(dim)]
            backends = [backend for problem in problems for backend in _backends(config, problem)]
            case = Case("limits", "copy_u_sum", "forward", graph, 1, dim, backends)
            gather.add_to(case)
            yield case
