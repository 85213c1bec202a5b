"""A module for each edge type."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..common.arguments import check_name
from ..common.operands import check_rows
from ..graph_argument import HeteroGraphLike, as_heterograph
from ..heterograph import EdgeType, HeteroGraph
from . import relation_attention
from .attention import finished, safe_to_modify

AGGREGATES = ("sum", "max", "min", "mean", "stack")


class HeteroGraphConv(nn.Module):
    """Runs a module on each edge type and aggregates what arrives at a node type, as dgl.nn.pytorch.HeteroGraphConv.

    If all modules are :class:`GATConv` and differ only in their parameters, one fused attention on the stack of their relations
    runs them together. Otherwise they run one after the other.

    Args:
        mods: {edge type: module}; the edge type is a triple or the name of its relation. A module is called as
            module(graph, (features of sources, features of destinations), *args, **kwargs). If it has set_allow_zero_in_degree,
            that is called with True.
        aggregate: "sum", "max", "min", "mean" or "stack" (along dimension 1), or a function of (list of tensors, node type).

    Raises:
        ValueError: an unknown aggregate.
    """

    def __init__(self, mods: Mapping[Any, nn.Module], aggregate: str | Callable[[list[Tensor], str], Any] = "sum"):
        super().__init__()
        for etype, module in mods.items():
            relation_attention.check_module_name(etype)
            if not isinstance(module, nn.Module):
                raise TypeError(f"mods[{etype!r}] is {module!r}; expected a torch.nn.Module")
        self.mod_dict = mods
        self.mods = nn.ModuleDict({str(etype): module for etype, module in mods.items()})
        for module in self.mods.values():
            allow = getattr(module, "set_allow_zero_in_degree", None)
            if callable(allow):
                allow(True)
        if not callable(aggregate):
            check_name(aggregate, "aggregate", AGGREGATES)
        self.aggregate = aggregate

    def forward(self, g: HeteroGraphLike, inputs, mod_args=None, mod_kwargs=None) -> dict[str, Any]:
        """
        Args:
            g: HeteroGraph, DGLGraph or block.
            inputs: {node type: features (num_nodes, *)}, or the pair of those of sources and of destinations. In a block the
                destinations are the first of the sources. Relations whose ends have no features are left out.
            mod_args, mod_kwargs: {relation: further arguments of its module}.

        Returns:
            {node type: features} of the types that a relation ends in.

        Raises:
            KeyError: an edge type without a module. ValueError, TypeError: wrong features, and errors of the modules.
        """
        graph = as_heterograph(g)
        mod_args, mod_kwargs = mod_args or {}, mod_kwargs or {}
        src, dst = _sides(graph, inputs)
        etypes = [etype for etype in graph.canonical_etypes if etype[0] in src and etype[2] in dst]
        convs = {etype: self._module_of(etype) for etype in etypes}
        has_arguments = any(etype[1] in arguments for etype in etypes for arguments in (mod_args, mod_kwargs))
        are_matrices = all(_is_matrix(src[etype[0]]) and _is_matrix(dst[etype[2]]) for etype in etypes)
        if (
            len(etypes) > 1
            and are_matrices
            and not has_arguments
            and relation_attention.may_attend_together(convs.values())
        ):
            relation_attention.check_inputs(graph, convs, src, dst)
            return self._together(graph, convs, src, dst)
        outputs: dict[str, list[Tensor]] = {}
        for etype, conv in convs.items():
            feats = (src[etype[0]], dst[etype[2]])
            rst = conv(
                self.relation(g, graph, etype), feats, *mod_args.get(etype[1], ()), **mod_kwargs.get(etype[1], {})
            )
            outputs.setdefault(etype[2], []).append(rst)
        return {ntype: _aggregate(self.aggregate, parts, ntype) for ntype, parts in _in_order(graph, outputs)}

    def relation(self, g: Any, graph: HeteroGraph, etype: EdgeType) -> Any:
        """What a module gets as its graph: the relation `etype` of g, the user's graph, and of `graph`, its HeteroGraph."""
        return graph[etype]

    def _module_of(self, etype: EdgeType) -> Any:
        for key in (etype, etype[1], str(etype)):
            if key in self.mod_dict:
                return self.mod_dict[key]
        raise KeyError(f"no module for edge type {etype}; there are {list(self.mod_dict)}")

    def _together(self, g: HeteroGraph, convs: Mapping[EdgeType, Any], src: dict, dst: dict) -> dict[str, Any]:
        out = {}
        etypes = g.stack(tuple(convs)).etypes
        for ntype, rsts in _in_order(g, relation_attention.attend_together(convs, g, src, dst)):
            type_convs = [convs[etype] for etype in etypes if etype[2] == ntype]
            if self.aggregate in ("sum", "mean") and all(_adds_bias_alone(conv) for conv in type_convs):
                out[ntype] = _reduced(self.aggregate, rsts, [conv.bias for conv in type_convs])
                continue
            parts = [
                finished(conv, rst, dst[ntype], conv.activation is None and not callable(self.aggregate), conv.bias)
                for conv, rst in zip(type_convs, rsts)
            ]
            out[ntype] = _aggregate(self.aggregate, parts, ntype)
        return out


def _sides(g: HeteroGraph, inputs: Any) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Features of source and destination nodes by type."""
    if isinstance(inputs, tuple):
        if len(inputs) != 2 or not all(isinstance(side, Mapping) for side in inputs):
            raise TypeError(
                "inputs is a tuple; expected the pair of features of sources and of destinations, by node type"
            )
        return dict(inputs[0]), dict(inputs[1])
    if not isinstance(inputs, Mapping):
        raise TypeError(f"inputs is a {type(inputs).__name__}; expected features by node type, or a pair of those")
    dst = {}
    for ntype, feat in inputs.items():
        if ntype in g.num_src:
            check_rows(feat, f"inputs[{ntype!r}]", g.num_src[ntype], "u", g.device)
        if ntype in g.num_dst:
            dst[ntype] = feat[: g.num_dst[ntype]]
    return dict(inputs), dst


def _is_matrix(x: Any) -> bool:
    return isinstance(x, Tensor) and x.dim() == 2


def _in_order(g: HeteroGraph, by_type: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [(ntype, by_type[ntype]) for ntype in g.num_dst if ntype in by_type]


def _adds_bias_alone(conv: Any) -> bool:
    """Whether nothing but a bias, if any, comes after the attention of a GATConv."""
    return conv.res_fc is None and conv.activation is None


def _reduced(aggregate: Any, rsts: Tensor, biases: list[Tensor | None]) -> Tensor:
    """Sum or mean over relations of rsts (R, N, H, D) and their biases (H * D,), in fp32, and rounded once if there is no bias.

    It is a new tensor, because the backward may keep rsts.
    """
    present = [bias for bias in biases if bias is not None]
    dtype = torch.promote_types(rsts.dtype, present[0].dtype) if present else rsts.dtype
    out = rsts[0].to(dtype) if rsts.shape[0] == 1 else rsts.sum(0, dtype=dtype)
    if present:
        out = out + torch.stack(present).sum(0).view(rsts.shape[2:])
    out = safe_to_modify(out, is_new=bool(present) or rsts.shape[0] > 1)
    return out / rsts.shape[0] if aggregate == "mean" and rsts.shape[0] > 1 else out


def _aggregate(aggregate: Any, parts: list[Tensor], ntype: str) -> Any:
    if callable(aggregate):
        return aggregate(parts, ntype)
    if aggregate == "stack":
        return torch.stack(parts, 1)
    stacked = torch.stack(parts)
    return getattr(stacked, aggregate)(0)[0] if aggregate in ("max", "min") else getattr(stacked, aggregate)(0)
