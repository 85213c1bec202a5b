"""HeteroConv of torch_geometric."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from torch import Tensor
from torch_geometric import nn
from torch_geometric.nn.conv.hetero_conv import group

from ..common.kept import may_keep
from ..graph import Graph
from ..heterograph import EdgeType, HeteroGraph
from ..nn.projections import is_just
from ..nn.relation_attention import attend_together
from ._conv import checked_pair, refuse
from .gat_conv import GATConv

_STACKED = "_stacked"  # kept on a Graph: the last HeteroGraph whose first relation it is, and the relations


class HeteroConv(nn.HeteroConv):
    """A module for each edge type, torch_geometric.nn.HeteroConv.

    If all modules are :class:`halfgnn.pyg.GATConv` that differ only in their parameters, one
    :func:`halfgnn.ops.gat_attention` on the stack of their relations runs them together. Otherwise they run one after the other.
    """

    def forward(self, *args_dict, **kwargs_dict):
        """
        Args:
            args_dict: {node type: features} and {edge type: edge_index}, then further arguments of the modules.
            kwargs_dict: the same by name, with the ending _dict.

        Returns:
            {node type: features} of the types that an edge type ends in.

        Raises:
            ValueError, TypeError: those of the modules.
        """
        if len(args_dict) == 2 and not kwargs_dict:
            x_dict, edges = args_dict
            convs = {etype: conv for etype, conv in self.convs.items() if etype in edges}
            if len(convs) > 1 and _attend_alike(convs, x_dict, edges):
                return self._together(convs, x_dict, edges)
        return super().forward(*args_dict, **kwargs_dict)

    def _together(self, convs: dict[EdgeType, Any], x_dict: Any, edges: Any) -> dict[str, Tensor]:
        ends, relations = {}, {}
        for etype, conv in convs.items():
            x = x_dict[etype[0]] if etype[0] == etype[2] else (x_dict[etype[0]], x_dict[etype[2]])
            ends[etype] = checked_pair(x, *conv._projections())
            sizes = ends[etype][0].shape[0], ends[etype][1].shape[0]
            relations[etype], _ = conv._graph(edges[etype], ends[etype][0], sizes, None)
        g = _stacked(relations)
        src = {etype[0]: pair[0] for etype, pair in ends.items()}
        dst = {etype[2]: pair[1] for etype, pair in ends.items()}
        results = attend_together({etype: _as_attention(conv) for etype, conv in convs.items()}, g, src, dst)
        out: dict[str, list[Tensor]] = {}
        order = g.stack(tuple(convs)).etypes
        for etype, conv in convs.items():
            ntype = etype[2]
            place = [other for other in order if other[2] == ntype].index(etype)
            is_new = self.aggr is not None and results[ntype].shape[0] > 1  # they are aggregated into a new tensor
            out.setdefault(ntype, []).append(conv._finish(results[ntype][place], ends[etype][1], is_new))
        return {ntype: group(parts, self.aggr) for ntype, parts in out.items()}


def _attend_alike(convs: dict[EdgeType, Any], x_dict: Any, edges: Any) -> bool:
    """Whether the modules are GATConvs without edge features that differ in nothing but their parameters."""
    for (source, _, target), conv in convs.items():
        if not is_just(conv, GATConv) or conv.lin_edge is not None or source not in x_dict or target not in x_dict:
            return False
    if any(refuse(conv, nn.GATConv, edges[etype], x_dict[etype[0]]) is not None for etype, conv in convs.items()):
        return False
    return (
        len({(conv.heads, conv.out_channels, conv.negative_slope, conv._dropout_p()) for conv in convs.values()}) == 1
    )


def _as_attention(conv: Any) -> Any:
    """PyG's module with the names that attend_together reads, which are DGL's."""
    projections = {"fc": conv.lin} if conv.lin is not None else {"fc_src": conv.lin_src, "fc_dst": conv.lin_dst}
    return SimpleNamespace(
        _num_heads=conv.heads,
        _out_feats=conv.out_channels,
        attn_l=conv.att_src,
        attn_r=conv.att_dst,
        feat_drop=SimpleNamespace(p=0.0, training=False),
        attn_drop=SimpleNamespace(p=conv.dropout, training=conv.training),
        leaky_relu=SimpleNamespace(negative_slope=conv.negative_slope),
        **projections,
    )


def _stacked(relations: dict[EdgeType, Graph]) -> HeteroGraph:
    """Kept with the first relation, as long as the same others come."""
    first = next(iter(relations.values()))
    known = getattr(first, _STACKED, None)
    if known is not None and known[0].items() == relations.items():  # a Graph equals itself only
        return known[1]
    is_mixed = len({graph.idtype for graph in relations.values()}) > 1
    made = HeteroGraph({etype: graph.long() if is_mixed else graph for etype, graph in relations.items()})
    if may_keep(first.device):
        object.__setattr__(first, _STACKED, (relations, made))
    return made
