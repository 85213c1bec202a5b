"""User-defined functions: the batches of edges and nodes that they are given, and nodes grouped by in-degree."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from ...graph import Graph
from .base import EdgeType
from .frame import Frame, rows_of


class EdgeBatch:
    """Edges of one type.

    Attributes:
        src, dst: features of their ends, {name: (E, *)}.
        data: their own features.
    """

    def __init__(
        self,
        graph: Any,
        eid: Tensor,
        etype: EdgeType,
        src_data: Frame,
        edge_data: Frame,
        dst_data: Frame,
        ends: Any = None,
    ):
        self._graph, self._eid, self._etype = graph, eid, etype
        self.src, self.data, self.dst = src_data, edge_data, dst_data
        self._ends = ends

    def edges(self) -> tuple[Tensor, Tensor, Tensor]:
        """Sources, destinations and ids (E,)."""
        src, dst = self._graph.find_edges(self._eid, etype=self._etype) if self._ends is None else self._ends
        return src, dst, self._eid

    def batch_size(self) -> int:
        """Number of edges."""
        return self._eid.shape[0]

    def __len__(self) -> int:
        return self.batch_size()

    @property
    def canonical_etype(self) -> EdgeType:
        """The triple of their type."""
        return self._etype


class NodeBatch:
    """Nodes of one type, in a reduce function of one in-degree.

    Attributes:
        data: their features, {name: (N, *)}.
        mailbox: in a reduce function their messages, {name: (N, degree, *)}, by edge id.
    """

    def __init__(self, graph: Any, nodes: Tensor, ntype: str, data: Any, msgs: Mapping[str, Tensor] | None = None):
        self._graph, self._nodes, self._ntype = graph, nodes, ntype
        self.data = data
        self.mailbox = msgs

    def nodes(self) -> Tensor:
        """Ids (N,)."""
        return self._nodes

    def batch_size(self) -> int:
        """Number of nodes."""
        return self._nodes.shape[0]

    def __len__(self) -> int:
        return self.batch_size()

    @property
    def ntype(self) -> str:
        """The name of their type."""
        return self._ntype


def reduced_by_degree(
    graph: Any, topology: Graph, ntype: str, dst: Frame, ids: Tensor, messages: Mapping[str, Tensor], func: Callable
) -> Frame:
    """The results of a reduce function, which is called once per in-degree. Nodes without messages have initial features.

    Args:
        dst: features of the destinations. ids: of the destinations, as the function is told. messages: {name: (E, *)}.
    """
    results, nodes = [], []
    for members, edges in _buckets(topology):
        mailbox = {
            name: rows_of(message, edges.flatten()).reshape(*edges.shape, *message.shape[1:])
            for name, message in messages.items()
        }
        batch = NodeBatch(graph, ids[members], ntype, dst.subframe(members), mailbox)
        results.append(func(batch))
        nodes.append(members)
    reduced = dst._like({}, dst.num_rows)
    if results:
        merged = {name: torch.cat([result[name] for result in results]) for name in results[0]}
        reduced.update_rows(torch.cat(nodes), merged)
    return reduced


def _buckets(topology: Graph) -> Iterator[tuple[Tensor, Tensor]]:
    """Per in-degree above 0: the nodes (N,), and the ids of their in-edges (N, degree), which rise."""
    indptr, _, edge_ids = topology.csc()
    degrees = indptr.diff()
    for degree in torch.unique(degrees).tolist():
        if degree == 0:
            continue
        nodes = (degrees == degree).nonzero().squeeze(1)
        places = indptr[nodes].long().unsqueeze(1) + torch.arange(degree, device=indptr.device)
        edges = places if edge_ids is None else edge_ids[places].sort(1).values
        yield nodes, edges
