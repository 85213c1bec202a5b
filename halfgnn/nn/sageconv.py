"""GraphSAGE."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..common.arguments import check_probability, checked_size, checked_widths
from ..common.compat import able_to_run_lstm, is_exporting
from ..common.operands import check_operand
from ..graph import Graph
from ..graph_argument import GraphLike, as_graph
from .checks import check_edge_weight, checked_features
from .codes import are_codes, check_reads_codes, sides_of_codes
from .exported_lstm import exported_lstm
from .features import Features, cast_sides, shown, unrounded
from .projections import applied, is_quantised, project, trimmed, widened
from .sums import aggregate, padded_width

_AGGREGATORS = ("mean", "gcn", "pool", "lstm")


class SAGEConv(nn.Module):
    """GraphSAGE layer (Hamilton, Ying and Leskovec, 2017), as dgl.nn.pytorch.SAGEConv.

    Args:
        in_feats: width of the input; a pair for sources and destinations with features of their own.
        out_feats: width of the output.
        aggregator_type: "mean", "gcn", "pool" (a maximum) or "lstm" (by degrees, with a device synchronisation).
        feat_drop: dropout of the features.
        bias: add a bias.
        norm, activation: functions applied at the end, first activation, then norm.
    """

    def __init__(self, in_feats, out_feats, aggregator_type, feat_drop=0.0, bias=True, norm=None, activation=None):
        super().__init__()
        if aggregator_type not in _AGGREGATORS:
            raise ValueError(f"aggregator_type is {aggregator_type!r}; expected one of {', '.join(_AGGREGATORS)}")
        self._in_src_feats, self._in_dst_feats = checked_widths(in_feats, "in_feats")
        self._out_feats = checked_size(out_feats, "out_feats")
        check_probability(feat_drop, "feat_drop")
        self._aggre_type = aggregator_type
        self.norm = norm
        self.feat_drop = nn.Dropout(feat_drop)
        self.activation = activation
        if aggregator_type == "pool":
            self.fc_pool = nn.Linear(self._in_src_feats, self._in_src_feats)
        if aggregator_type == "lstm":
            self.lstm = nn.LSTM(self._in_src_feats, self._in_src_feats, batch_first=True)
        self.fc_neigh = nn.Linear(self._in_src_feats, out_feats, bias=False)
        if aggregator_type != "gcn":
            self.fc_self = nn.Linear(self._in_dst_feats, out_feats, bias=bias)
        elif bias:
            self.bias = nn.Parameter(torch.zeros(out_feats))
        else:
            self.register_buffer("bias", None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Glorot uniform; PyTorch's defaults for the LSTM and the biases."""
        if self._aggre_type == "pool":
            _draw(self.fc_pool.weight)
        if self._aggre_type == "lstm":
            self.lstm.reset_parameters()
        if self._aggre_type != "gcn":
            _draw(self.fc_self.weight)
        _draw(self.fc_neigh.weight)

    def forward(self, graph: GraphLike, feat, edge_weight=None):
        """The sum of two projections: of a destination's own features, and of the aggregate of its in-edges.

        Args:
            graph: Graph, DGLGraph or block.
            feat: (num_src, in_feats), or the pair of it and (num_dst, in_feats). For "mean", the sources' features may be
                :class:`halfgnn.dataloading.Codes`, which are summed as they are read, and have no gradient.
            edge_weight: (E,), or another shape that broadcasts with the features; multiplies the messages.

        Returns:
            (num_dst, out_feats)

        Raises:
            ValueError: wrong shapes or devices. TypeError: wrong dtypes.
        """
        g = as_graph(graph, "graph")
        if are_codes(feat):
            rst = self._of_codes(g, feat, edge_weight)
        else:
            x = cast_sides(graph, g, self._checked(g, feat, edge_weight), self.feat_drop)
            aggregate_and_project = getattr(self, f"_{self._aggre_type}")
            rst = aggregate_and_project(g, x.src, x.own_dst, edge_weight)
            if self._aggre_type != "gcn":
                rst = applied(self.fc_self, x.dst) + rst
        if self._aggre_type == "gcn" and self.bias is not None:
            rst = rst + self.bias
        rst = rst.contiguous()
        rst = rst if self.activation is None else self.activation(rst)
        return rst if self.norm is None else self.norm(rst)

    def _of_codes(self, g: Graph, feat: Any, edge_weight: Any) -> Tensor:
        """forward() up to its bias, where the sources' features are codes: their mean is made before it is projected."""
        drops = self.training and self.feat_drop.p > 0
        check_reads_codes("feat", self._aggre_type == "mean" and not drops, "by the aggregator mean without dropout")
        codes, h_dst = sides_of_codes(g, feat, self.fc_neigh, self.fc_self)
        if edge_weight is not None:
            check_operand(edge_weight, "edge_weight", g, "e")
        mean = aggregate(g, "mean", codes, edge_weight)
        return applied(self.fc_self, h_dst) + applied(self.fc_neigh, mean.to(h_dst.dtype))

    def _checked(self, g: Graph, feat: Any, edge_weight: Any) -> Features:
        src = self.fc_pool if self._aggre_type == "pool" else self.fc_neigh
        dst = self.fc_neigh if self._aggre_type == "gcn" else self.fc_self
        features = checked_features(g, feat, src, dst, 2 if self._aggre_type == "lstm" else None)
        if edge_weight is not None:
            check_operand(edge_weight, "edge_weight", g, "e")
        return features

    # ---- one method per aggregator: the aggregate of the in-edges, projected. h_dst: None if destinations are the first sources
    # ---

    @property
    def _projects_first(self) -> bool:
        return self._in_src_feats > self._out_feats

    def _project(self, h: Tensor, edge_weight: Tensor | None) -> Tensor:
        """fc_neigh(h), padded."""
        width = padded_width(self._out_feats, h, edge_weight)
        return project(self.fc_neigh, h, 1, self._out_feats, width).squeeze(-2)

    def _mean(self, g: Graph, h_src: Tensor, h_dst: Tensor | None, edge_weight: Tensor | None) -> Tensor:
        if self._projects_first:
            return trimmed(aggregate(g, "mean", self._project(h_src, edge_weight), edge_weight), self._out_feats)
        return applied(self.fc_neigh, aggregate(g, "mean", h_src, edge_weight))

    def _gcn(self, g: Graph, h_src: Tensor, h_dst: Tensor | None, edge_weight: Tensor | None) -> Tensor:
        if h_dst is not None and h_src.shape[1:] != h_dst.shape[1:]:
            raise ValueError(
                f"feat[0] and feat[1] have shapes {tuple(h_src.shape)} and {tuple(h_dst.shape)}; "
                "expected one width for the aggregator gcn"
            )
        if self._projects_first:
            h_src = self._project(h_src, edge_weight)
            h_dst = None if h_dst is None else self._project(h_dst, edge_weight)
        h_dst = h_src[: g.num_dst] if h_dst is None else h_dst
        total = aggregate(g, "sum", h_src, edge_weight, unrounded(h_src)) + h_dst
        degrees = g.in_degrees().to(total.dtype).view(-1, *[1] * (total.dim() - 1))
        rst = (total / (degrees + 1)).to(h_src.dtype)
        return trimmed(rst, self._out_feats) if self._projects_first else applied(self.fc_neigh, rst)

    def _pool(self, g: Graph, h_src: Tensor, h_dst: Tensor | None, edge_weight: Tensor | None) -> Tensor:
        return applied(self.fc_neigh, aggregate(g, "max", torch.relu(applied(self.fc_pool, h_src)), edge_weight))

    def _lstm(self, g: Graph, h_src: Tensor, h_dst: Tensor | None, edge_weight: Tensor | None) -> Tensor:
        """Nodes of one in-degree are one batch. A node's edges are read in the order of the graph's in-edges."""
        if is_exporting():
            return applied(self.fc_neigh, exported_lstm(self.lstm, g, h_src, edge_weight))
        indptr, indices, edge_ids = g.csc()
        degrees = g.in_degrees()
        if edge_weight is not None:
            check_edge_weight(g, edge_weight, h_src)
        rst = h_src.new_zeros((g.num_dst, self._in_src_feats))
        positive = [degree for degree in degrees.unique().tolist() if degree > 0]
        if not positive:  # the LSTM runs all the same, so that its parameters get gradients of zero, like the others
            last = self._last_state(h_src.new_zeros((1, 1, self._in_src_feats)))
            rst = rst + last[:0].sum(0).to(rst.dtype)
        for degree in positive:
            nodes = (degrees == degree).nonzero().squeeze(1)
            positions = indptr[nodes].unsqueeze(1) + torch.arange(degree, device=indptr.device)
            messages = h_src[indices[positions]]
            if edge_weight is not None:
                weight = edge_weight[positions if edge_ids is None else edge_ids[positions]]
                messages = (messages * weight.view(*positions.shape, -1)).to(h_src.dtype)
            rst = rst.index_copy(0, nodes, self._last_state(messages).to(rst.dtype))
        return applied(self.fc_neigh, rst)

    def _last_state(self, messages: Tensor) -> Tensor:
        """The state (num_nodes, width) of the LSTM after messages (num_nodes, degree, width)."""
        if is_quantised(self.lstm):
            messages = widened(messages)
        with able_to_run_lstm(messages):
            _, (last, _) = self.lstm(messages)
        return last.squeeze(0)

    def extra_repr(self) -> str:
        in_feats = shown(self._in_src_feats, self._in_dst_feats)
        return f"{in_feats}, out_feats={self._out_feats}, aggregator_type={self._aggre_type}"


def _draw(weight: Tensor) -> None:
    if sum(weight.shape) > 0:  # otherwise there is no variance
        nn.init.xavier_uniform_(weight, gain=nn.init.calculate_gain("relu"))
