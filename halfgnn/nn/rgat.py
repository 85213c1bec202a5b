"""A relational graph attention network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..common.arguments import check_name, check_probability, checked_size
from ..common.layers import is_plain
from ..common.operands import check_rows
from ..graph_argument import HeteroGraphLike, as_heterograph
from ..heterograph import EdgeType, HeteroGraph, check_etype
from . import relation_attention
from .gatconv import GATConv
from .projections import applied, linear

NORMS = {"batch": nn.BatchNorm1d, "layer": nn.LayerNorm, "none": nn.Identity}


class RGAT(nn.Module):
    """The relational GAT that is the baseline of OGB-LSC for MAG240M (Hu et al., 2021), on blocks or whole heterographs.

    Each relation of a layer has a :class:`GATConv`. A node takes the sum of those that end in its type, adds a projection of its
    own features, normalises, and applies ELU and dropout. An MLP makes the classes from the last layer. All node types share
    projection, normalisation and MLP. A layer has only the relations that the layers after it need: the last has those that end in
    `target`.

    It computes what the baseline's program computes, in less time. All relations of a layer are one attention. A relation projects
    only its own sources, or its sums if they are fewer. Biases are added once.

    Args:
        in_feats: width of the input, of every node type.
        hidden_feats: width of each hidden layer, a multiple of num_heads.
        num_classes: width of the output.
        etypes: edge types, triples (source type, relation, destination type).
        target: the node type that is classified.
        num_layers, num_heads: numbers of layers, and of heads per layer.
        dropout: probability after each layer and in the MLP.
        norm: "batch", as in the baseline; "layer", which does not depend on the other nodes of a batch; or "none".

    Raises:
        ValueError: no relation ends in `target`, or hidden_feats is no multiple of num_heads. TypeError: wrong edge types.
    """

    def __init__(
        self,
        in_feats: int,
        hidden_feats: int,
        num_classes: int,
        etypes: Sequence[EdgeType],
        target: str,
        *,
        num_layers: int = 2,
        num_heads: int = 4,
        dropout: float = 0.5,
        norm: str = "batch",
    ):
        super().__init__()
        checked_size(in_feats, "in_feats", least=1)
        heads = checked_size(num_heads, "num_heads", least=1)
        checked_size(num_layers, "num_layers", least=1)
        if checked_size(hidden_feats, "hidden_feats", least=1) % heads:
            raise ValueError(f"hidden_feats is {hidden_feats}; expected a multiple of num_heads, {heads}")
        check_name(norm, "norm", tuple(NORMS))
        check_probability(dropout, "dropout")
        self.target = target
        self.convs, self.norms, self.skips = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        self._plan = _plan(etypes, target, num_layers)
        for layer, (relations, _) in enumerate(self._plan):
            width = hidden_feats if layer else in_feats
            dim = hidden_feats // heads
            convs = {str(etype): GATConv(width, dim, heads, allow_zero_in_degree=True) for etype in relations}
            self.convs.append(nn.ModuleDict(convs))
            self.norms.append(NORMS[norm](hidden_feats))
            self.skips.append(nn.Linear(width, hidden_feats))
        self.mlp = nn.Sequential(
            nn.Linear(hidden_feats, hidden_feats),
            NORMS[norm](hidden_feats),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(hidden_feats, num_classes),
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, blocks: HeteroGraphLike | Sequence[HeteroGraphLike], feats: Mapping[str, Tensor]) -> Tensor:
        """
        Args:
            blocks: a HeteroGraph, DGLGraph or block for each layer, the first for the input. The destinations of one are the
                sources of the next. A single graph is taken for all layers.
            feats: {node type: (num_src, in_feats)} of the sources of blocks[0].

        Returns:
            (num_dst, num_classes) of the destinations of type `target` of the last block.

        Raises:
            ValueError, TypeError, KeyError: a wrong number of blocks, features of a wrong shape, missing features or edge types.
        """
        if not isinstance(blocks, (list, tuple)):
            blocks = [as_heterograph(blocks, "blocks")] * len(self.convs)
        if len(blocks) != len(self.convs):
            raise ValueError(f"blocks has {len(blocks)} graphs; expected {len(self.convs)}, one per layer")
        h = dict(feats)
        for layer, block in enumerate(blocks):
            h = self._layer(layer, as_heterograph(block, f"blocks[{layer}]"), h)
        return applied(self.mlp, h[self.target])

    def _layer(self, layer: int, g: HeteroGraph, h: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Features of the destinations, from those of the sources, by node type."""
        relations, ntypes = self._plan[layer]
        name = f"the result of blocks[{layer - 1}]" if layer else "feats"
        _check_block(g, f"blocks[{layer}]", relations)
        sources = dict.fromkeys((*ntypes, *(etype[0] for etype in relations)))
        for ntype in sources:
            if ntype not in h:
                raise KeyError(f"{name} has no {ntype!r}; expected {sorted(sources)}")
            check_rows(h[ntype], f"{name}[{ntype!r}]", g.num_src[ntype], "u", g.device)
        convs: dict[EdgeType, Any] = {etype: self.convs[layer][str(etype)] for etype in relations}  # type: ignore[index]
        dst = {ntype: h[ntype][: g.num_dst[ntype]] for ntype in ntypes}
        relation_attention.check_inputs(g, convs, h, dst, name)
        together = relation_attention.may_attend_together(convs.values())
        rsts = relation_attention.attend_together(convs, g, h, dst) if together else _one_by_one(convs, g, h, dst)
        biases = convs if together else {}  # those that rsts does not include yet
        parts = [self._with_skip(layer, dst[ntype], rsts.get(ntype), _biases(biases, ntype)) for ntype in ntypes]
        x = torch.cat(parts) if len(parts) > 1 else parts[0]
        x = self.dropout(F.elu(self.norms[layer](x)))
        return dict(zip(ntypes, x.split([part.shape[0] for part in parts])))

    def _with_skip(self, layer: int, x: Tensor, rsts: Tensor | None, biases: list[Tensor]) -> Tensor:
        """The projection of a type's own features x (N, in), plus the results rsts (R, N, H, D) of its relations, plus biases."""
        skip: Any = self.skips[layer]
        if is_plain(skip) and skip.bias is not None:
            out = linear(x, skip.weight, torch.stack([skip.bias, *biases]).sum(0))
        else:
            out = applied(skip, x)
            out = out + torch.stack(biases).sum(0).to(out.dtype) if biases else out
        if rsts is None:
            return out
        return out + (rsts[0] if rsts.shape[0] == 1 else rsts.sum(0)).flatten(1)


def _check_block(g: HeteroGraph, name: str, etypes: Sequence[EdgeType]) -> None:
    for etype in etypes:
        if etype not in g.canonical_etypes:
            raise KeyError(f"{name} has no edge type {etype}; it has {list(g.canonical_etypes)}")


def _one_by_one(
    convs: Mapping[EdgeType, Any], g: HeteroGraph, src: Mapping[str, Tensor], dst: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """The results of the modules, (R, N, H, D) by node type, if a user has changed their options or submodules."""
    parts: dict[str, list[Tensor]] = {}
    for etype, conv in convs.items():
        parts.setdefault(etype[2], []).append(conv(g[etype], (src[etype[0]], dst[etype[2]])))
    return {ntype: torch.stack(rsts) for ntype, rsts in parts.items()}


def _biases(convs: Mapping[EdgeType, Any], ntype: str) -> list[Tensor]:
    return [conv.bias for etype, conv in convs.items() if etype[2] == ntype]


def _plan(
    etypes: Sequence[EdgeType], target: str, num_layers: int
) -> list[tuple[tuple[EdgeType, ...], tuple[str, ...]]]:
    """For each layer the relations that it has, and the node types in which they end, whose results the next layer reads."""
    for etype in etypes:
        check_etype(etype)
        relation_attention.check_module_name(etype)
    layers: list[tuple[tuple[EdgeType, ...], tuple[str, ...]]] = []
    ntypes: tuple[str, ...] = (target,)
    for _ in range(num_layers):
        relations = tuple(etype for etype in etypes if etype[2] in ntypes)
        if not relations:
            raise ValueError(f"target is {target!r}; expected a type in which an edge type ends, of {list(etypes)}")
        layers.append((relations, ntypes))
        ntypes = tuple(dict.fromkeys((*ntypes, *(etype[0] for etype in relations))))
    return layers[::-1]
