"""Calls of MessagePassing in tiles of destinations, for patch(tile=...): messages exist for one tile at a time."""

from __future__ import annotations

from typing import Any

from ...drop_in.gate import Reason, index_reason, mode_reason
from ...tiles import sizes
from ...tiles.tiled import run_tiles
from .call import module_reason
from .gate import FallBack, require
from .tile_call import Step, TiledCall
from .tile_plans import plan_of

_SMALLEST = 64  # bytes per edge: what keeps less than so many is not materialized, but for logits and the like


def in_tiles(conv: Any, step: Step, edge_index: Any, size: Any, kwargs: dict[str, Any], tile: int | str) -> Any:
    """The results of a call of a module. Raises FallBack if it is not done in tiles."""
    require(mode_reason() or index_reason(edge_index))
    if edge_index.dim() != 2 or edge_index.shape[0] != 2:
        raise FallBack(Reason.NO_EDGE_INDEX)
    num_edges = edge_index.shape[1]
    if num_edges <= (tile if isinstance(tile, int) else sizes.PROBED):
        raise FallBack(Reason.FEW_VALUES)
    require(module_reason(conv))
    if conv.decomposed_layers > 1:
        raise FallBack(Reason.OPTIONS)
    call = TiledCall(conv, step, edge_index, size, kwargs)
    g = call.graph()
    plan = plan_of(call, g, _SMALLEST)
    require(plan.refusal)
    if isinstance(tile, str):
        tile = sizes.edges_in(sizes.memory_for(tile, g.device), plan.per_edge)
    if plan.per_edge < _SMALLEST or tile >= num_edges:
        raise FallBack(Reason.FEW_VALUES)
    found = run_tiles(g, tile, call.on_tile, [*call.dst.values()], [*call.edge.values()], plan.results)
    return tuple(found) if plan.is_tuple else found[0]
