"""turbo_gnn: maxima, GATv2 and dot attention by its own kernels, sums by cuSPARSE. Written from its version 0.1.0rc4.
Parameters are its defaults, because its autotuner tries some thousand combinations per case."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..graphs import BenchGraph
from ..operators import Problem
from ..optional import Unavailable, import_package
from .composed import SLOPE
from .registry import ANY_DIRECTION, competitor

HEAD_DIMS = (32, 64, 128, 256)
DEFAULT_WARPS = 8  # per block of the kernel for maxima, which warns at every call if a row has no work for so many


_adjacencies: weakref.WeakKeyDictionary[BenchGraph, Any] = weakref.WeakKeyDictionary()


def _adjacency(graph: BenchGraph) -> Any:
    if graph not in _adjacencies:
        csc, csr = graph.halfgnn.csc(), graph.halfgnn.csr()
        made = import_package("turbo_gnn").AdjacencyForwardBackwardWithNodeBuckets
        _adjacencies[graph] = made.from_csr(csc.indptr, csc.indices, csr.indptr, csr.indices)
    return _adjacencies[graph]


turbo = competitor("turbo_gnn")


@turbo.does("copy_u_sum", one_head=True, devices=("cuda",))
def _sum(problem: Problem, x: Tensor) -> Callable[..., Tensor]:
    library = import_package("turbo_gnn")
    # cuSPARSE does not take an fp32 matrix with half features, and the failure would end the process.
    if problem.dtype != torch.float32:
        raise Unavailable("its sums are fp32 only")
    # It keeps one workspace per adjacency, and does not check the width for which the workspace was made.
    import_package("turbo_gnn._C").clear_graph_cache()
    indptr, indices, _ = (t if t is None else t.int() for t in problem.graph.halfgnn.csc())
    return lambda x: library.spmm_aggr(x, indptr, indices, "none", -1, 256)


@turbo.does("copy_u_max", one_head=True, devices=("cuda",))
def _max(problem: Problem, x: Tensor) -> Callable[..., Tensor]:
    library = import_package("turbo_gnn")
    warps = math.ceil(problem.width * problem.dtype.itemsize / 4 / 32)  # four bytes per thread
    warps = min(DEFAULT_WARPS, 1 << (warps - 1).bit_length())
    graph = _adjacency(problem.graph)
    return lambda x: library.reduction_aggr(graph, x, warps_per_block=warps, reduce="max")


def _check_dim(problem: Problem) -> None:
    if problem.dim not in HEAD_DIMS:
        raise Unavailable(f"heads of width {problem.dim}; it has those of {', '.join(map(str, HEAD_DIMS))}")


@turbo.does("gatv2_attention", directions=ANY_DIRECTION, devices=("cuda",))
def _gatv2(problem: Problem, *operands: Tensor) -> Callable[..., Tensor]:
    library = import_package("turbo_gnn")
    _check_dim(problem)
    graph = _adjacency(problem.graph)

    def work(x_src: Tensor, x_dst: Tensor, attn: Tensor) -> Tensor:
        return library.gatv2_aggr(graph, x_dst, x_neighbors=x_src, attention_weights=attn, negative_slope=SLOPE).view(
            x_src.shape
        )

    return work


@turbo.does("dot_attention", directions=ANY_DIRECTION, devices=("cuda",))
def _dot(problem: Problem, *operands: Tensor) -> Callable[..., Tensor]:
    library = import_package("turbo_gnn")
    _check_dim(problem)
    graph, scale = _adjacency(problem.graph), problem.dim**-0.5

    def work(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Its Q belongs to the source and its K to the destination."""
        out = library.graph_transformer_aggr(graph, query.flatten(1), Q=key, K=query, V=value, scale=scale)
        return out.view(query.shape)

    return work
