"""Transforms: graphs made of graphs, as functions and as objects."""

from typing import Any

from . import diffusion, functional, module
from .diffusion import *  # noqa: F403
from .functional import *  # noqa: F403
from .module import *  # noqa: F403
from .to_block import to_block

__all__ = [*diffusion.__all__, *functional.__all__, *module.__all__, "to_block"]

_METIS = "halfgnn has no METIS; halfgnn.node_order and dgl.reorder_graph(g, 'rcmk') put neighbours side by side"
LACKING = {
    "metis_partition": _METIS,
    "metis_partition_assignment": _METIS,
    "partition_graph_with_halo": "dgl.in_subgraph and dgl.khop_in_subgraph give parts with their neighbours",
    "sort_csc_by_tag": "biased sampling by tags is not available",
    "sort_csr_by_tag": "biased sampling by tags is not available",
}


def __getattr__(name: str) -> Any:
    if name in LACKING:
        raise AttributeError(f"dgl.{name} is not available in halfgnn.compat.dgl: {LACKING[name]}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
