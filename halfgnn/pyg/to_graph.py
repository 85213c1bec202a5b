"""A transform of loaders that makes graphs."""

from __future__ import annotations

from typing import Any

from torch_geometric.transforms import BaseTransform

from ..graphs_by_tensor.edge_index import graph_of
from ..graphs_by_tensor.loops import with_self_loops


class ToGraph(BaseTransform):
    """Adds the :class:`halfgnn.Graph` of every edge_index to a Data or HeteroData: edges are sorted where the batch is made.

    ::

        loader = NeighborLoader(data, num_neighbors=[10, 10], transform=halfgnn.pyg.ToGraph())
        for batch in halfgnn.dataloading.Prefetcher(loader, "cuda"):  # or a loop over the loader, or its workers
            out = model(batch.x, batch.graph)  # of HeteroData: model(batch.x_dict, batch.graph_dict)

    Modules of halfgnn.pyg take the Graph in place of edge_index. `batch.to(device)` moves it, and workers send it. Unmodified
    modules under :func:`halfgnn.pyg.patch` find it by its edge_index, as long as that tensor has not been moved.

    Args:
        attr: the attribute of the data, or of every edge type, that is given the Graph.
        self_loops: replace the graph's self-loops by one at each node, for modules made with add_self_loops=False. Only edge types
            within one node type get them.

    Raises:
        ValueError: ids out of range; self_loops for edges with edge_attr or edge_weight, whose rows would not fit.
    """

    def __init__(self, attr: str = "graph", self_loops: bool = False) -> None:
        self.attr = attr
        self.self_loops = self_loops

    def forward(self, data: Any) -> Any:
        for store in data.edge_stores:
            if "edge_index" not in store:
                continue
            num_src, num_dst = store.size()
            g = graph_of(store.edge_index, num_src, num_dst)
            source, *_, target = getattr(store, "_key", None) or ("", "")
            if self.self_loops and source == target:
                for name in ("edge_attr", "edge_weight"):
                    if name in store:
                        raise ValueError(
                            f"the edges have {name}; expected none with self_loops, which change the edges"
                        )
                g = with_self_loops(g, num_dst).graph
            g.csr()  # the backward reads it
            store[self.attr] = g
        return data

    def __repr__(self) -> str:
        return f"{type(self).__name__}(attr={self.attr!r}, self_loops={self.self_loops})"
