"""Graph isomorphism network."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..common.arguments import check_number
from ..common.operands import check_operand, check_parameter_device
from ..graph_argument import GraphLike, as_graph
from ..ops.codes import Codes
from .checks import checked_features
from .codes import are_codes, check_reads_codes, sides_of_codes
from .features import both_sides
from .projections import applied
from .sums import aggregate


class GINConv(nn.Module):
    """Graph isomorphism layer (Xu et al., 2019), as dgl.nn.pytorch.GINConv.

    Args:
        apply_func: function or module applied to the sum, or None.
        aggregator_type: "sum", "max" or "mean".
        init_eps: eps, which is added to the weight 1 of a destination's own features.
        learn_eps: make eps a parameter.
        activation: function applied at the end.
    """

    def __init__(self, apply_func=None, aggregator_type="sum", init_eps=0, learn_eps=False, activation=None):
        super().__init__()
        if aggregator_type not in ("sum", "max", "mean"):
            raise ValueError(f"aggregator_type is {aggregator_type!r}; expected 'sum', 'max' or 'mean'")
        if apply_func is not None and not callable(apply_func):
            raise TypeError(f"apply_func is {apply_func!r}; expected a module, another callable, or None")
        self.apply_func = apply_func
        self._aggregator_type = aggregator_type
        self.activation = activation
        eps = torch.tensor([check_number(init_eps, "init_eps")])
        if learn_eps:
            self.eps = nn.Parameter(eps)
        else:
            self.register_buffer("eps", eps)

    def forward(self, graph: GraphLike, feat, edge_weight=None):
        """apply_func((1 + eps) feat[v] + aggregate of feat[u] edge_weight[e] over in-edges e = (u, v)).

        Args:
            graph: Graph, DGLGraph or block.
            feat: (num_src, in_feats), or the pair of it and (num_dst, in_feats). For "sum" and "mean", the sources' features may be
                :class:`halfgnn.dataloading.Codes`, which are summed as they are read, and have no gradient.
            edge_weight: (E, 1), or another shape that broadcasts with the features; multiplies the messages.

        Returns:
            The result of apply_func for (num_dst, in_feats).

        Raises:
            ValueError: wrong shapes or devices. TypeError: wrong dtypes.
        """
        g = as_graph(graph, "graph")
        h_src: Tensor | Codes
        if are_codes(feat):
            check_reads_codes("feat", self._aggregator_type != "max", "by the aggregators sum and mean")
            h_src, h_dst = sides_of_codes(g, feat, self.apply_func, None)
        else:
            features = checked_features(g, feat)
            check_parameter_device(features.src, "feat", self.eps)
            h_src, h_dst = both_sides(graph, g, features)
        if edge_weight is not None:
            check_operand(edge_weight, "edge_weight", g, "e")
        if h_src.shape[1:] != h_dst.shape[1:]:
            raise ValueError(
                f"feat[0] and feat[1] have shapes {tuple(h_src.shape)} and {tuple(h_dst.shape)}; expected one width"
            )
        rst = (1 + self.eps) * h_dst + aggregate(g, self._aggregator_type, h_src, edge_weight)
        if self.apply_func is not None:
            rst = applied(self.apply_func, rst)
        return rst if self.activation is None else self.activation(rst)

    def extra_repr(self) -> str:
        return f"{self._aggregator_type}"
