"""PNAConv of torch_geometric."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch_geometric import nn
from torch_geometric.nn import aggr

from ...common.layers import check_layer, is_hooked
from ...common.operands import check_columns, check_operand, check_tensor
from ...common.precision import autocast
from ...drop_in.gate import Reason
from ...graph import Graph
from ...nn.principal import Aggregates, degrees, of_ends, of_messages, scaled, split_linear
from ...nn.projections import applied, linear
from ...ops.copy_u_reduce import STD_EPS
from ...tiles import sizes, tiled
from ..drop_in.accounts import fell_back, routed
from ..drop_in.gate import FallBack
from ..drop_in.options import ON
from ..drop_in.tile_call import Modules
from ..drop_in.tile_plans import normalizes_edges, refuse_modules
from .base import UpstreamModule, checked_graph, edge_index_if_unsupported, reduction_of


class PNAConv(UpstreamModule, nn.PNAConv):
    """Principal neighbourhood aggregation, torch_geometric.nn.PNAConv on :func:`halfgnn.ops.copy_u_reduce`.

    With one layer before the aggregation, messages are linear in the features of both ends, so they are not materialized: the part
    of the sources is reduced once for all towers. Edge features, more such layers, and hooks on them need the messages (E, towers,
    features).
    Aggregators other than sum, mean, min, max, var and std are torch_geometric's, whose forward is in tiles under patch(tile=...)
    alone.

    Args:
        tile: a memory cap of these messages, as of patch(tile=...): the most edges of a tile, a size such as "512MiB", or "auto".
            None: that of patch(), if there is one.

    The others are torch_geometric's. Raises TypeError, ValueError: tile is none of these.
    """

    tile: int | str | None = None

    def __init__(self, *args: Any, tile: int | str | None = None, **options: Any) -> None:
        super().__init__(*args, **options)
        self.tile = None if tile is None else sizes.checked_tile(tile)

    def forward(self, x, edge_index, edge_attr=None):
        """The layer over the in-edges of every node.

        Args:
            x: (N, in_channels).
            edge_index: (2, E), or a Graph or DGLGraph.
            edge_attr: (E, edge_dim), if edge_dim is given.

        Returns:
            (N, out_channels)

        Raises:
            ValueError: wrong shapes or devices. TypeError: wrong dtypes.
        """
        names = _names_of(self.aggr_module)
        unsupported = edge_index_if_unsupported(self, nn.PNAConv, edge_index, x, () if names is None else None)
        if unsupported is not None:
            # propagate_type: (x: Tensor, edge_attr: OptTensor)
            return super().forward(x, unsupported, edge_attr)
        check_tensor(x, "x")
        check_columns(x, "x", self.in_channels)
        check_layer(x, "x", self.lin)
        g = checked_graph(edge_index, x, x.shape[0], x.shape[0])
        if (edge_attr is None) != (self.edge_dim is None):
            expected = "None, as edge_dim is" if self.edge_dim is None else f"(E, {self.edge_dim})"
            raise ValueError(f"edge_attr is {'None' if edge_attr is None else 'given'}; expected {expected}")
        if edge_attr is not None:
            check_operand(edge_attr, "edge_attr", g, "e")
            check_columns(edge_attr, "edge_attr", self.edge_dim)
            check_layer(edge_attr, "edge_attr", self.edge_encoder)
        x = autocast(x)
        parts = self.towers if self.divide_input else 1
        h = x.view(-1, parts, self.F_in).expand(-1, self.towers, -1)
        out = torch.cat([h, self._reduce(g, h, autocast(edge_attr), names)], -1)
        towers = [applied(layers, out[:, i]) for i, layers in enumerate(self.post_nns)]
        return applied(self.lin, torch.cat(towers, 1))

    def _reduce(self, g: Graph, h: Tensor, edge_attr: Tensor | None, names: Any) -> Tensor:
        """(N, towers, aggregators * scalers * F_in)"""
        split = [split_linear(layers, self.F_in) for layers in self.pre_nns]  # of the destination, then of the source
        if edge_attr is not None or None in split:
            reduced = self._reduced_messages(g, h, edge_attr, names)
        else:
            ends = [
                (linear(h[:, i], of_src, None), linear(h[:, i], of_dst, bias))
                for i, (of_dst, of_src, bias) in enumerate(part for part in split if part is not None)
            ]
            src, dst = (torch.stack(side, 1) for side in zip(*ends))
            reduced = of_ends(g, src, dst, names, STD_EPS)
        scaler = self.aggr_module
        return scaled(reduced, names, scaler.scaler, degrees(g, h), scaler.avg_deg_log, scaler.avg_deg_lin)

    def _reduced_messages(self, g: Graph, h: Tensor, edge_attr: Tensor | None, names: Sequence[str]) -> Aggregates:
        tile = self._tile(g)
        if tile is None:
            return of_messages(g, self._messages(g, h, h, edge_attr), names, STD_EPS)
        distinct, modules = [*dict.fromkeys(names)], Modules(self)

        def on_tile(g: Graph, src: Tensor, dst: Tensor, edge_attr: Tensor | None = None) -> list[Tensor]:
            with modules.as_they_were():
                rows = of_messages(g, self._messages(g, src, dst, edge_attr), distinct, STD_EPS)
            return [rows[name] for name in distinct]

        edge = () if edge_attr is None else (edge_attr,)
        found = tiled(on_tile, g, src=(h,), dst=(h,), edge=edge, returns=["dst"] * len(distinct), tile=tile)
        routed["tile:PNAConv"] += 1
        return dict(zip(distinct, found))

    def _tile(self, g: Graph) -> int | str | None:
        """How many edges have messages at a time; None: all."""
        tile = ON.tile if self.tile is None else self.tile
        if (
            tile is None
            or torch.compiler.is_compiling()
            or g.num_edges <= (tile if isinstance(tile, int) else sizes.PROBED)
        ):
            return None
        modules = [*self.modules()]
        try:
            refuse_modules(modules)
            if any(normalizes_edges(x) for x in modules):
                raise FallBack(Reason.BATCH_NORM)
        except FallBack as left:
            fell_back["tile:PNAConv", left.reason] += 1
            return None
        return tile

    def _messages(self, g: Graph, h_src: Tensor, h_dst: Tensor, edge_attr: Tensor | None) -> Tensor:
        src, dst = (end.long() for end in g.edges())
        parts = [h_dst[dst], h_src[src]]
        if edge_attr is not None:
            parts.append(applied(self.edge_encoder, edge_attr).unsqueeze(1).expand(-1, self.towers, -1))
        ends = torch.cat(parts, -1)
        return torch.stack([applied(layers, ends[:, i]) for i, layers in enumerate(self.pre_nns)], 1)


def _names_of(scaler: Any) -> list[str] | None:
    """What is reduced; None if halfgnn has no such reduction."""
    several = scaler.aggr
    if is_hooked(scaler) or is_hooked(several):
        return None
    if type(several) is aggr.MultiAggregation and several.mode == "cat":
        names = [reduction_of(module) for module in several.aggrs]
    else:
        names = [reduction_of(several)]
    return None if None in names else names  # type: ignore[return-value]
