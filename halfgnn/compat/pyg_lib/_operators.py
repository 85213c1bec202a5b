"""torch.ops.pyg: torch_geometric calls pyg-lib's operators there."""

from __future__ import annotations

from collections.abc import Callable

import torch

_DICT, _OPTIONAL_DICT = "Dict(str, Tensor)", "Dict(str, Tensor)?"
_OPTIONS = (
    "bool csc=False, bool replace=False, bool directed=True, bool disjoint=False, str temporal_strategy='uniform', "
    "bool return_edge_id=True"
)
_SCHEMAS = {
    "neighbor_sample": (
        "(Tensor rowptr, Tensor col, Tensor seed, int[] num_neighbors, Tensor? node_time=None, Tensor? edge_time=None, "
        f"Tensor? seed_time=None, Tensor? edge_weight=None, {_OPTIONS}) -> (Tensor, Tensor, Tensor, Tensor?, int[], int[])"
    ),
    "hetero_neighbor_sample": (
        f"(str[] node_types, (str, str, str)[] edge_types, {_DICT} rowptr_dict, {_DICT} col_dict, {_DICT} seed_dict, "
        f"Dict(str, int[]) num_neighbors_dict, {_OPTIONAL_DICT} node_time_dict=None, {_OPTIONAL_DICT} edge_time_dict=None, "
        f"{_OPTIONAL_DICT} seed_time_dict=None, {_OPTIONAL_DICT} edge_weight_dict=None, {_OPTIONS}) "
        f"-> ({_DICT}, {_DICT}, {_DICT}, {_OPTIONAL_DICT}, Dict(str, int[]), Dict(str, int[]))"
    ),
    "subgraph": "(Tensor rowptr, Tensor col, Tensor nodes, bool return_edge_id=True) -> (Tensor, Tensor, Tensor?)",
    "random_walk": "(Tensor rowptr, Tensor col, Tensor seed, int walk_length, float p=1, float q=1) -> Tensor",
}
_library: torch.library.Library | None = None  # kept: its operators end with it


def register(**functions: Callable) -> None:
    """Defines the operators of these names, unless pyg-lib's own are there."""
    global _library
    if _library is not None or hasattr(torch.ops.pyg, next(iter(functions))):
        return
    _library = torch.library.Library("pyg", "FRAGMENT")
    for name, function in functions.items():
        _library.define(name + _SCHEMAS[name])
        _library.impl(name, function, "CompositeExplicitAutograd")
