"""Results that several edge types have for the same nodes, as one."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from .base import DGLError
from .topology import Relation

_IDENTITY = {"max": float("-inf"), "min": float("inf")}
_MERGES: dict[str, Callable[[list[Tensor]], Tensor]] = {
    "sum": lambda results: functools.reduce(torch.add, results),
    "mean": lambda results: torch.stack(results).mean(0),
    "max": lambda results: torch.stack(results).amax(0),
    "min": lambda results: torch.stack(results).amin(0),
    "stack": lambda results: torch.stack(results, 1),
}


def reduced(results: Sequence[tuple[Tensor, Relation]], reduce: str) -> Tensor:
    """The sum, max or min over all edges, of those over the edges of each type, which are 0 for nodes without edges."""
    if len(results) == 1:
        return results[0][0]
    if reduce == "sum":
        return _MERGES["sum"]([result for result, _ in results])
    if reduce not in _IDENTITY:
        raise NotImplementedError(
            f"{reduce} over several edge types is not available; use sum, max or min, or multi_update_all with a cross reducer"
        )
    merged = _MERGES[reduce]([without_edges(*result, reduce) for result in results])
    return without_isolated(merged, [relation for _, relation in results])


def without_edges(result: Tensor, relation: Relation, reduce: str) -> Tensor:
    """With infinities that max or min leaves out, for nodes that have no edge of this type."""
    return result.masked_fill(_isolated([relation], result), _IDENTITY[reduce])


def without_isolated(result: Tensor, relations: Sequence[Relation]) -> Tensor:
    """With 0 for nodes that have no edge of any of these types. Infinities of other nodes stay."""
    return result.masked_fill(_isolated(relations, result), 0)


def _isolated(relations: Sequence[Relation], like: Tensor) -> Tensor:
    masks = [relation.graph().csc().indptr.diff() == 0 for relation in relations]
    return functools.reduce(torch.logical_and, masks).reshape(-1, *[1] * (like.dim() - 1))


def merged(
    results: Sequence[Mapping[str, Tensor]], reducer: str | Callable[[list[Tensor]], Tensor], order: Sequence[int]
) -> Mapping[str, Tensor]:
    """The features of several edge types as one, by a reducer of ``multi_update_all``, in the order of the types' ids."""
    if not callable(reducer) and reducer not in _MERGES:
        raise DGLError(
            f"cross_reducer is {reducer!r}; expected one of {list(_MERGES)}, or a function of a list of tensors"
        )
    if len(results) == 1 and reducer != "stack":
        return results[0]
    if reducer == "stack":
        results = [results[i] for i in sorted(range(len(results)), key=lambda i: order[i])]
    merge = reducer if callable(reducer) else _MERGES[reducer]
    names = dict.fromkeys(name for result in results for name in result)
    tensors = {name: [result[name] for result in results if name in result] for name in names}
    return {name: merge(parts) if len(parts) > 1 or reducer == "stack" else parts[0] for name, parts in tensors.items()}
