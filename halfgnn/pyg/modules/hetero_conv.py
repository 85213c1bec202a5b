"""HeteroConv of torch_geometric."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch_geometric import nn
from torch_geometric.nn.conv.hetero_conv import group

from ...common.layers import is_plain
from ...common.precision import autocast, computed_type
from ...graph import Graph
from ...heterograph import EdgeType, HeteroGraph
from ...nn.projections import is_just
from ...nn.relation_attention import attend_together
from ...nn.relation_rows import joined, taken
from .base import ONE_PASS, call_reason, checked_graph, projects_first, reduced
from .gat_conv import GATConv
from .gcn_conv import GCNConv
from .gin_conv import GINConv
from .graph_conv import GraphConv
from .sage_conv import SAGEConv

_SUMS = {SAGEConv: nn.SAGEConv, GraphConv: nn.GraphConv, GINConv: nn.GINConv, GCNConv: nn.GCNConv}

Convs = dict[EdgeType, Any]
Ends = dict[EdgeType, tuple[Tensor, Tensor]]  # features of each relation's sources and destinations
Results = dict[EdgeType, Tensor]


class HeteroConv(nn.HeteroConv):
    """A module for each edge type, torch_geometric.nn.HeteroConv.

    Modules that differ only in their parameters run together, on the stack of their relations. :class:`halfgnn.pyg.GATConv` is
    one :func:`halfgnn.ops.gat_attention`. SAGEConv, GraphConv, GINConv and GCNConv are one :func:`halfgnn.ops.gspmm`, if they
    have one aggregation and gather rows of one width, on a CPU if these are few. Otherwise modules run one after the other.
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
            run = _together(convs, x_dict, edges)
            if run is not None:
                results = run(convs, x_dict, edges, self.aggr)
                out: dict[str, list[Tensor]] = {}
                for etype in convs:
                    out.setdefault(etype[2], []).append(results[etype])
                return {ntype: group(parts, self.aggr) for ntype, parts in out.items()}
        return super().forward(*args_dict, **kwargs_dict)


def _together(convs: Convs, x_dict: Any, edges: Any) -> Callable[..., Results] | None:
    """The function that runs all modules together; None if there is none."""
    types = {ntype for source, _, target in convs for ntype in (source, target)}
    if len(convs) < 2 or any(x_dict.get(ntype) is None for ntype in types):
        return None
    if any(_is_lazy(conv) for conv in convs.values()):
        return None
    if _attend_alike(convs, x_dict, edges):
        return _attended
    return _summed if _sum_alike(convs, x_dict, edges) else None


def _is_lazy(conv: Any) -> bool:
    """Whether a layer has no parameters yet. Modules that run one by one draw them in torch_geometric's order."""
    return any(hasattr(layer, "initialize_parameters") and hasattr(layer, "_hook") for layer in conv.children())


def _ends_of(convs: Convs, x_dict: Any) -> Ends:
    """Checked features, which autocast casts once for all relations."""
    types = {ntype for source, _, target in convs for ntype in (source, target)}
    features = {ntype: autocast(x) if isinstance(x, Tensor) else x for ntype, x in x_dict.items() if ntype in types}
    return {
        etype: conv._ends(features[etype[0]] if etype[0] == etype[2] else (features[etype[0]], features[etype[2]]))
        for etype, conv in convs.items()
    }


# ---- attentions --------------------------------------------------------------------------------------------------------------


def _attend_alike(convs: Convs, x_dict: Any, edges: Any) -> bool:
    """Whether the modules are GATConvs without edge features that differ in nothing but their parameters."""
    if any(not is_just(conv, GATConv) or conv.lin_edge is not None for conv in convs.values()):
        return False
    # Modules that run one by one call each layer as often as torch_geometric: hooks and parametrizations may count that.
    if not all(is_plain(layer) for conv in convs.values() for layer in conv._projections()):
        return False
    if any(call_reason(conv, nn.GATConv, edges[etype], x_dict[etype[0]]) is not None for etype, conv in convs.items()):
        return False
    return (
        len({(conv.heads, conv.out_channels, conv.negative_slope, conv._dropout_p()) for conv in convs.values()}) == 1
    )


def _attended(convs: Convs, x_dict: Any, edges: Any, aggr: Any) -> Results:
    ends, relations = _ends_of(convs, x_dict), {}
    for etype, conv in convs.items():
        x_src, x_dst = ends[etype]
        relations[etype], _ = conv._graph(edges[etype], x_src, (x_src.shape[0], x_dst.shape[0]), None)
    g = _stacked(relations)
    src = {etype[0]: pair[0] for etype, pair in ends.items()}
    dst = {etype[2]: pair[1] for etype, pair in ends.items()}
    parts = attend_together({etype: _as_attention(conv) for etype, conv in convs.items()}, g, src, dst)
    results, order = {}, g.stack(tuple(convs)).etypes
    for etype, conv in convs.items():
        ntype = etype[2]
        place = [other for other in order if other[2] == ntype].index(etype)
        is_new = aggr is not None and parts[ntype].shape[0] > 1  # they are aggregated into a new tensor
        results[etype] = conv._finish(parts[ntype][place], ends[etype][1], is_new)
    return results


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


# ---- sums --------------------------------------------------------------------------------------------------------------------


# Bytes of joined rows beyond which a CPU reduces relations one by one: rows of one relation stay in its cache. With 6 relations and
# one thread, joined rows of 0.1 MB were 1.2 to 1.4 times as fast as the modules, those of 1.5 MB 1 to 1.1 times, of 3 MB 0.96 to 1.
_JOINED = 2 << 20


def _sum_alike(convs: Convs, x_dict: Any, edges: Any) -> bool:
    """Whether the modules reduce rows of one width and dtype in the same way, and joining these rows takes less than it saves.

    Compiled code saves nothing: what a call of an operator costs beside its kernel is Python's.
    """
    gathered, size = set(), 0
    if torch.compiler.is_compiling():
        return False
    for etype, conv in convs.items():
        x, kind = x_dict[etype[0]], _SUMS.get(type(conv))
        if kind is None or not is_just(conv, type(conv)) or not isinstance(x, Tensor) or x.dim() != 2:
            return False
        is_weighted = kind is nn.GCNConv
        if is_weighted and (etype[0] != etype[2] or not conv._may_project_last()):
            return False
        if call_reason(conv, kind, edges[etype], x, ONE_PASS) is not None:
            return False
        lin, reduction = conv._projection(), conv._reduction
        width = lin.out_channels if projects_first(lin, reduction) else x.shape[1]
        gathered.add((reduction, width, x.dtype, is_weighted and conv.normalize))
        size += x.shape[0] * width * computed_type(x).itemsize
        if x.device.type == "cpu" and size > _JOINED:
            return False
    return len(gathered) == 1


def _summed(convs: Convs, x_dict: Any, edges: Any, aggr: Any) -> Results:
    ends, relations, weights = _ends_of(convs, x_dict), {}, {}
    for etype, conv in convs.items():
        x_src, x_dst = ends[etype]
        g = checked_graph(edges[etype], x_src, x_src.shape[0], x_dst.shape[0])
        relations[etype], weights[etype] = conv._weighted(g, None, x_src.dtype)
    stack = _stacked(relations).stack(tuple(convs))
    rows = [
        convs[etype]._before(taken(ends[etype][0], count, ids))
        for etype, count, ids in zip(stack.etypes, stack.num_src, stack.src_ids)
    ]
    is_weighted = weights[stack.etypes[0]] is not None
    weight = joined([weights[etype] for etype in stack.etypes]) if is_weighted else None
    reduction = convs[stack.etypes[0]]._reduction
    parts = reduced(stack.graph, reduction, joined(rows), weight).split(stack.num_dst)
    sums = dict(zip(stack.etypes, parts))
    return {
        etype: _safe_to_modify(conv._after(sums[etype], ends[etype][1]), sums[etype]) for etype, conv in convs.items()
    }


def _safe_to_modify(out: Tensor, part: Tensor) -> Tensor:
    """out, or a copy of it if it is a view of all sums: autograd takes no write into one of them."""
    return out.clone() if out is part and out.requires_grad else out


# ---- the stack ---------------------------------------------------------------------------------------------------------------


def _stacked(relations: dict[EdgeType, Graph]) -> HeteroGraph:
    """Cached with the first relation, as long as the same others come."""

    def make(_: Graph) -> HeteroGraph:
        is_mixed = len({graph.idtype for graph in relations.values()}) > 1
        return HeteroGraph({etype: graph.long() if is_mixed else graph for etype, graph in relations.items()})

    first = next(iter(relations.values()))
    return first.cached("_stacked", make, tuple(relations.items()), only_last=True, when_traced=True)
