"""Modules for graphs of several types of nodes and edges."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from halfgnn import nn as halfgnn_nn
from halfgnn.heterograph import EdgeType, HeteroGraph
from halfgnn.nn.projections import applied

__all__ = ["HeteroEmbedding", "HeteroGraphConv", "HeteroLinear"]


class HeteroGraphConv(halfgnn_nn.HeteroGraphConv):
    """:class:`halfgnn.nn.HeteroGraphConv`. Modules get relations of the user's graph, with what it can do."""

    def relation(self, g: Any, graph: HeteroGraph, etype: EdgeType) -> Any:
        """See the base class."""
        return g[etype] if hasattr(g, "canonical_etypes") else graph[etype]


class HeteroLinear(nn.Module):
    """A linear layer for each type.

    Args:
        in_size: {type: width of the input}.
        out_size: width of the output.
        bias: add biases.
    """

    def __init__(self, in_size: Mapping[Any, int], out_size: int, bias: bool = True):
        super().__init__()
        self.linears = nn.ModuleDict(
            {str(name): nn.Linear(size, out_size, bias=bias) for name, size in in_size.items()}
        )

    def forward(self, feat: Mapping[Any, Tensor]) -> dict[Any, Tensor]:
        """{type: (N, width)}: {type: (N, out_size)}"""
        return {name: applied(_of(self.linears, name), x) for name, x in feat.items()}


class HeteroEmbedding(nn.Module):
    """A table of embeddings for each type.

    Args:
        num_embeddings: {type: number of rows}.
        embedding_dim: width of a row.
    """

    def __init__(self, num_embeddings: Mapping[Any, int], embedding_dim: int):
        super().__init__()
        self.embeds = nn.ModuleDict(
            {str(name): nn.Embedding(rows, embedding_dim) for name, rows in num_embeddings.items()}
        )
        self.raw_keys = {str(name): name for name in num_embeddings}

    @property
    def weight(self) -> dict[Any, Tensor]:
        """{type: its table}"""
        return {self.raw_keys[name]: table.weight for name, table in self.embeds.items()}  # type: ignore[misc]

    def reset_parameters(self) -> None:
        """Glorot uniform."""
        for table in self.embeds.values():
            nn.init.xavier_uniform_(table.weight)  # type: ignore[arg-type]

    def forward(self, input_ids: Mapping[Any, Tensor]) -> dict[Any, Tensor]:
        """{type: ids (N,)}: {type: (N, embedding_dim)}"""
        return {name: _of(self.embeds, name)(ids) for name, ids in input_ids.items()}


def _of(modules: nn.ModuleDict, name: Any) -> nn.Module:
    if str(name) not in modules:
        raise KeyError(f"no module for type {name!r}; there are {list(modules)}")
    return modules[str(name)]
