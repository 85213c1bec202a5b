"""Graph convolution with initial residual and identity mapping."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from halfgnn.common.arguments import check_number, checked_size
from halfgnn.common.operands import check_columns, check_parameter, check_tensor
from halfgnn.graph_argument import GraphLike
from halfgnn.nn.projections import linear

from ._propagation import Propagation, checked_homograph


class GCN2Conv(nn.Module):
    """Graph convolution with initial residual and identity mapping, GCNII (Chen et al., 2020).

    Args:
        in_feats: width of input and output.
        layer: number of this layer, from 1 on.
        alpha: share of the initial features.
        lambda_: beta = log(lambda_ / layer + 1) is the share of the projection.
        project_initial_features: project propagated and initial features by one matrix, otherwise each by its own.
        allow_zero_in_degree: accept nodes without in-edges.
        bias: add a bias.
        activation: function applied at the end, or None.
    """

    weight2: nn.Parameter | None
    bias: nn.Parameter | None

    def __init__(
        self,
        in_feats,
        layer,
        alpha=0.1,
        lambda_=1,
        project_initial_features=True,
        allow_zero_in_degree=False,
        bias=True,
        activation=None,
    ):
        super().__init__()
        self._in_feats = checked_size(in_feats, "in_feats")
        self._project_initial_features = project_initial_features
        self.alpha = check_number(alpha, "alpha")
        if check_number(lambda_, "lambda_") < 0:
            raise ValueError(f"lambda_ is {lambda_}; expected a number of at least 0")
        self.beta = math.log(lambda_ / checked_size(layer, "layer", least=1) + 1)
        self._bias = bias
        self._activation = activation
        self._allow_zero_in_degree = allow_zero_in_degree
        self.weight1 = nn.Parameter(torch.empty(in_feats, in_feats))
        own = None if project_initial_features else nn.Parameter(torch.empty(in_feats, in_feats))
        self.register_parameter("weight2", own)
        self.register_parameter("bias", nn.Parameter(torch.empty(in_feats)) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Standard normal, bias zero."""
        nn.init.normal_(self.weight1)
        if self.weight2 is not None:
            nn.init.normal_(self.weight2)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def set_allow_zero_in_degree(self, set_value: bool) -> None:
        """Whether nodes without in-edges are accepted."""
        self._allow_zero_in_degree = set_value

    def forward(self, graph: GraphLike, feat: Tensor, feat_0: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        """feat (N, in_feats), feat_0 (at least N, in_feats), edge_weight (E,) positive or None: (N, in_feats).

        Raises:
            DGLError: the graph has nodes without in-edges. ValueError, TypeError: wrong shapes, devices or dtypes.
        """
        g = checked_homograph(graph, feat, self._allow_zero_in_degree)
        check_tensor(feat_0, "feat_0")
        for x, name in ((feat, "feat"), (feat_0, "feat_0")):
            check_columns(x, name, self._in_feats)
            check_parameter(x, name, self.weight1)
        h = Propagation(g, edge_weight)(feat) * (1 - self.alpha)
        initial = feat_0[: g.num_dst] * self.alpha
        summed = h + initial
        if self.weight2 is None:
            projected = linear(summed, self.weight1.t(), None)
        else:
            projected = linear(h, self.weight1.t(), None) + linear(initial, self.weight2.t(), None)
        rst = (1 - self.beta) * summed + self.beta * projected
        if self.bias is not None:
            rst = rst + self.bias
        return rst if self._activation is None else self._activation(rst)

    def extra_repr(self) -> str:
        return f"in={self._in_feats}, share_weight={self.weight2 is None}, alpha={self.alpha}, beta={self.beta}"
