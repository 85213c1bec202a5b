"""Comparison with halfgnn.reference in float64, before anything is timed.

Forward results are compared on the timed graph, for a sample of destination nodes with all their in-edges. The sample
includes the node of highest in-degree. Gradients and whole layers are compared on a small graph of the same kind: a
sample of rows says little about them, and float64 tensors of all edges do not fit in memory.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from halfgnn import Graph

from . import graphs
from .graphs import BenchGraph

SAMPLE_EDGES = 30_000
Gradients = Callable[[tuple[Tensor, ...]], Sequence[Tensor]]


class WrongResult(AssertionError):
    """halfgnn's result is off by more than rounding."""


def _take(tensor: Tensor, ids: Tensor) -> Tensor:
    """Rows of a tensor on any device, copied to the CPU."""
    return tensor[ids.to(tensor.device)].cpu()


@dataclass(frozen=True)
class Sample:
    """Some destination nodes of a graph (`rows`), their in-edges (`edges`), the sources of these edges, and the graph
    of all of them. Always on the CPU."""

    rows: Tensor
    edges: Tensor  # rows of edge data
    sources: Tensor
    graph: Graph  # its destinations are `rows`, its sources `sources`, its edge data is in the order of `edges`

    def take(self, tensor: Tensor, target: str) -> Tensor:
        """The sampled rows of a tensor that has a row for every source "u", destination "v" or edge "e", or the whole
        tensor if it has no such rows (".")."""
        ids = {"u": self.sources, "v": self.rows, "e": self.edges}.get(target)
        return tensor.cpu() if ids is None else _take(tensor, ids)


def _choose(degree: Tensor, generator: torch.Generator) -> Tensor:
    """Random rows with about SAMPLE_EDGES in-edges, and the row of highest degree."""
    shuffled = torch.randperm(degree.numel(), generator=generator)
    fits = degree[shuffled].cumsum(0) <= SAMPLE_EDGES
    return torch.cat([shuffled[fits], degree.argmax().view(1)]).unique()


@functools.lru_cache(maxsize=2)
def sample(graph: BenchGraph) -> Sample:
    indptr, indices, edge_ids = graph.halfgnn.csc()
    indptr = indptr.cpu()
    degree = indptr.diff()
    rows = _choose(degree, torch.Generator().manual_seed(1))
    counts = degree[rows]
    starts = torch.repeat_interleave(indptr[rows], counts)
    offsets = torch.nn.functional.pad(counts.cumsum(0), (1, 0)).to(indptr.dtype)
    within = torch.arange(int(offsets[-1]), dtype=indptr.dtype)
    positions = (starts + within - torch.repeat_interleave(offsets[:-1], counts)).long()
    edges = positions if edge_ids is None else _take(edge_ids, positions).long()
    sources, compact = _take(indices, positions).unique(return_inverse=True)
    part = Graph.from_csc(offsets, compact.to(indptr.dtype), num_src=sources.numel())
    return Sample(rows, edges, sources.long(), part)


def relative_error(result: Tensor, truth: Tensor) -> float:
    """Largest difference, relative to the largest value of the truth."""
    if result.numel() == 0:
        return 0.0
    return float((result.double() - truth).abs().max() / truth.abs().max().clamp(min=1e-300))


def check_rounded_once(result: Tensor, truth: Tensor, magnitude: Tensor, what: str) -> float:
    """The relative error of `result`, which must come from fp32 arithmetic and one rounding.

    magnitude: for each value, the sum of the magnitudes of its terms. The error of fp32 arithmetic is proportional to
        it.

    Raises:
        WrongResult: the shape is another one, an error is larger, or a value is not finite.
    """
    if result.shape != truth.shape:
        raise WrongResult(f"{what}: shape {tuple(result.shape)}, expected {tuple(truth.shape)}")
    info = torch.finfo(result.dtype)
    half_unit = 0.5 * info.eps * truth.abs() + 0.5 * info.eps * info.smallest_normal
    arithmetic = 4 * torch.finfo(torch.float32).eps * magnitude
    right = (result.double() - truth).abs() <= 1.01 * half_unit + arithmetic  # NaN: not right
    error = relative_error(result, truth)
    if not bool(right.all()):
        raise WrongResult(f"{what}: {int((~right).sum())} values off, relative error {error:.3g}")
    return error


def check_like_formula(
    ours: Gradients, formula: Gradients, inputs: tuple[Tensor, ...], what: str, units: float = 1
) -> None:
    """Raises WrongResult unless ours(inputs) is about as accurate as `formula` in the same dtype.

    Both return results and gradients. The rule is flash-attention's: the error against the formula in float64 is at
    most twice the error of the formula in the inputs' dtype, plus `units` units of rounding.
    """
    truth = formula(tuple(x.double() for x in inputs))
    plain = formula(inputs)
    eps = torch.finfo(inputs[0].dtype).eps
    for i, (mine, same_type, exact) in enumerate(zip(ours(inputs), plain, truth)):
        error, allowed = relative_error(mine, exact), 2 * relative_error(same_type, exact) + units * eps
        if not error <= allowed:  # not: NaN fails
            raise WrongResult(f"{what}, result {i}: relative error {error:.3g} > {allowed:.3g}")


def miniature(order: str, idtype: torch.dtype, device: str = "cpu") -> BenchGraph:
    return graphs.make(graphs.MINIATURE, "miniature (synthetic)", order, idtype, seed=3, device=device)
