"""How far copy_u_sum is from what the machine can do. No comparator is a strict bound:

* ``embedding_bag``: torch.nn.functional.embedding_bag with mode="sum" over the same indices. The
  same gather and sum, by FBGEMM's or PyTorch's own kernel.
* ``index_select``: the rows gathered over the same indices and written out, one an edge: a gather
  without arithmetic, but its writes move as many bytes again.
* ``halfgnn, in sequence``: copy_u_sum over equal row lengths with indices 0, 1, 2, ... instead: the
  same bytes and arithmetic without random access.
* ``copy, cached``: Tensor.copy_ of the feature matrix, over and over: streaming bandwidth of the
  cache that the features fit in. ``copy, memory``: of 256 MiB (a GPU: 2 GiB), beyond any cache. Both are scaled to
  the bytes that the gather reads; a copy also writes as much, so reading alone may be faster.
* ``gather limit``: a kernel that reads the same rows and does nothing else; on a GPU (see gather.py).

GB/s counts an index and a feature row for every edge, for all of them.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

import halfgnn
from halfgnn import ops, reference

from . import baselines, gather, verify
from .case import Case, Config, Contestant
from .graphs import BenchGraph
from .spmm import features, gathered_bytes

COPY_BYTES = {"cpu": 256 << 20, "cuda": 2 << 30}


def _in_sequence(graph: BenchGraph) -> halfgnn.Graph:
    indptr = graph.halfgnn.csc().indptr
    indices = torch.arange(graph.num_edges, dtype=indptr.dtype, device=indptr.device) % graph.num_nodes
    return halfgnn.Graph.from_csc(indptr, indices, num_src=graph.num_nodes)


def _gather(graph: BenchGraph, dim: int, dtype: torch.dtype, name: str):
    """The work of comparator `name`."""
    x = features(graph, 1, dim, dtype)
    indptr, indices, _ = graph.halfgnn.csc()
    if name == "halfgnn":
        return lambda: ops.copy_u_sum(graph.halfgnn, x)
    if name == "halfgnn, in sequence":
        sequence = _in_sequence(graph)
        return lambda: ops.copy_u_sum(sequence, x)
    if name == "dgl":
        function = baselines.dgl_op(graph, "copy_u_sum", x)
        return lambda: function(x)
    if name == "embedding_bag":
        bag = torch.nn.functional.embedding_bag
        return lambda: bag(indices, x, indptr, mode="sum", include_last_offset=True)
    needed = graph.num_edges * dim * dtype.itemsize
    baselines.check_messages(needed, graph.device)
    out = x.new_empty((graph.num_edges, dim))
    return lambda: torch.index_select(x, 0, indices, out=out)


def _gather_contestant(graph: BenchGraph, dim: int, name: str, dtype: torch.dtype) -> Contestant:
    def check(out) -> float:
        part = verify.sample(graph)
        x = verify.take(features(graph, 1, dim, dtype), part.sources).double()
        truth = reference.gspmm(part.graph, "copy_lhs", "sum", x, None)
        if name == "halfgnn":
            magnitude = reference.gspmm(part.graph, "copy_lhs", "sum", x.abs(), None)
            what = f"copy_u_sum {dtype}"
            return verify.check_rounded_once(verify.take(out, part.rows), truth, magnitude, what)
        return verify.relative_error(verify.take(out, part.rows), truth)

    sums = name in ("halfgnn", "dgl", "embedding_bag")
    return Contestant(
        name,
        dtype,
        lambda: _gather(graph, dim, dtype, name),
        check if sums else None,
        bytes_moved=gathered_bytes(graph, dim, 0, dtype),
    )


def _copy_contestant(graph: BenchGraph, dim: int, name: str, dtype: torch.dtype) -> Contestant:
    """Copies as many bytes as the gather reads, a whole number of buffers."""
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


GATHERS = ("halfgnn", "halfgnn, in sequence", "dgl", "embedding_bag", "index_select")
COPIES = ("copy, cached", "copy, memory")


def cases(config: Config) -> Iterator[Case]:
    for name in config.graphs:
        graph = config.graph(name, config.orders[0])
        for dim in config.dims:
            contestants = []
            for dtype in config.torch_dtypes(dim):
                contestants += [
                    _gather_contestant(graph, dim, way, dtype)
                    for way in GATHERS
                    if way != "dgl" or "dgl" in config.baselines
                ]
                contestants += [_copy_contestant(graph, dim, copy, dtype) for copy in COPIES]
            yield gather.beside(Case("limits", "copy_u_sum", "forward", graph, 1, dim, contestants))
