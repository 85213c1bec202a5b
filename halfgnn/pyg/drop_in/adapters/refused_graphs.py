"""The error for a Graph that is given to a module of torch_geometric itself, which reads edge_index as a tensor."""

from __future__ import annotations

import sys
from typing import Any

from torch_geometric import typing

from ....graph_argument import is_graph


def refuse_graph(module: Any, edge_index: Any) -> None:
    """Raises TypeError if edge_index is a Graph or stands for one. The error says which module takes it.

    torch_geometric takes a SparseTensor, which stands for a Graph too.
    """
    if not is_graph(edge_index) or isinstance(edge_index, typing.SparseTensor):
        return
    name, kind = type(module).__name__, type(edge_index).__name__
    own = _own_module(module)
    takes = (
        f"halfgnn.pyg.{own} takes a Graph"
        if own
        else "halfgnn.pyg has no module of that name, which could take a Graph"
    )
    raise TypeError(
        f"edge_index of {name}, a module of torch_geometric, is a {kind}; expected a tensor (2, E): {takes}, and "
        "torch.stack(g.edges()).long() is the edge_index of a Graph g"
    )


def _own_module(module: Any) -> str | None:
    """The name of halfgnn.pyg's module in place of this one."""
    ours = sys.modules["halfgnn.pyg"]
    names = (cls.__name__ for cls in type(module).__mro__ if cls.__module__.startswith("torch_geometric."))
    return next((name for name in names if name in ours.__all__), None)
