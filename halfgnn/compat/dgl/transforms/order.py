"""reorder_graph: a graph with its nodes and edges in another order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..base import EID, NID, DGLError
from ..heterograph import DGLGraph
from ..subgraph import edge_subgraph, node_subgraph

__all__ = ["reorder_graph"]


def reorder_graph(
    g: DGLGraph,
    node_permute_algo: str | None = None,
    edge_permute_algo: str = "src",
    store_ids: bool = True,
    permute_config: Mapping[str, Any] | None = None,
) -> DGLGraph:
    """The graph with nodes and edges in another order.

    Args:
        node_permute_algo: "rcmk" (reverse Cuthill-McKee), "custom" for permute_config["nodes_perm"], or None to keep the order.
        edge_permute_algo: "src" or "dst" by these ends, or "custom" for permute_config["edges_perm"].
        store_ids: keep former ids in ``dgl.NID`` and ``dgl.EID``.
    """
    if not g.is_homogeneous:
        raise DGLError(f"g has the types {g.ntypes} and {g.etypes}; expected one of nodes and one of edges")
    config = permute_config or {}
    nodes = _order_of_nodes(g, node_permute_algo, config)
    made = node_subgraph(g, nodes)
    former = made.edata[EID]
    if edge_permute_algo == "custom":
        wanted = _custom(config, "edges_perm", g.num_edges(), g)
        place = torch.empty_like(former).index_copy(
            0, former.long(), torch.arange(len(former), dtype=g.idtype, device=g.device)
        )
        order = place[wanted.long()]
    elif edge_permute_algo in ("src", "dst"):
        ends = made.all_edges()[edge_permute_algo == "dst"]
        by_id = former.argsort()
        order = by_id[ends[by_id].argsort(stable=True)]
    else:
        raise DGLError(f"edge_permute_algo is {edge_permute_algo!r}; expected 'src', 'dst' or 'custom'")
    made = edge_subgraph(made, order, relabel_nodes=False, store_ids=False)
    if not store_ids:
        del made.ndata[NID], made.edata[EID]
    return made


def _order_of_nodes(g: DGLGraph, algorithm: str | None, config: Mapping[str, Any]) -> Tensor:
    if algorithm is None:
        return g.nodes()
    if algorithm == "custom":
        return _custom(config, "nodes_perm", g.num_nodes(), g)
    if algorithm == "rcmk":
        from scipy.sparse import csgraph

        order = csgraph.reverse_cuthill_mckee(g.adj_external(scipy_fmt="csr"))
        return torch.from_numpy(order.copy()).to(g.device, g.idtype)
    if algorithm == "metis":
        raise DGLError(
            "node_permute_algo 'metis' is not available; 'rcmk', 'custom' or halfgnn.node_order do without METIS"
        )
    raise DGLError(f"node_permute_algo is {algorithm!r}; expected None, 'rcmk' or 'custom'")


def _custom(config: Mapping[str, Any], name: str, count: int, g: DGLGraph) -> Tensor:
    if name not in config:
        raise DGLError(f"permute_config has no {name!r}; expected the order of all {count}")
    order = torch.as_tensor(config[name]).to(g.device, g.idtype)
    if order.shape != (count,):
        raise DGLError(f"permute_config[{name!r}] has shape {tuple(order.shape)}; expected ({count},)")
    return order
