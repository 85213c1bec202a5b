"""Graph convolution, and the normalisation of edge weights for it."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import ops
from ..common.arguments import check_number, checked_size
from ..common.compat import is_exporting
from ..common.operands import check_columns, check_operand, check_pair, check_parameter, check_tensor
from ..common.precision import without_autocast
from ..graph import Graph
from ..graph_argument import GraphLike, as_graph
from ..ops.codes import Codes
from .checks import check_edge_numbers
from .codes import check_width_of_codes, for_layer
from .features import checked_graph, unrounded
from .projections import linear, trimmed, widened
from .sums import aggregate, padded_width, scaled


class EdgeWeightNorm(nn.Module):
    """Normalises positive scalar edge weights for GraphConv(norm="none"), as dgl.nn.pytorch.EdgeWeightNorm.

    Args:
        norm: "both" divides the weight of e = (u, v) by the root of the product of two sums: the weights of u's out-edges, and
            those of v's in-edges. "right" divides it by the sum of v's in-edges. "none" leaves it.
        eps: added to the sums.
    """

    def __init__(self, norm="both", eps=0.0):
        super().__init__()
        if norm not in ("none", "both", "right"):
            raise ValueError(f"norm is {norm!r}; expected 'none', 'both' or 'right'")
        self._norm = norm
        self._eps = check_number(eps, "eps")

    def forward(self, graph: GraphLike, edge_weight):
        """edge_weight (E,) normalised, (E,).

        Raises:
            ValueError: edge_weight has another shape, or values that are not positive under norm="both".
            TypeError: edge_weight is no floating-point tensor.
        """
        g = as_graph(graph, "graph")
        check_edge_numbers(g, edge_weight)
        if not edge_weight.is_floating_point():
            raise TypeError(f"edge_weight has dtype {edge_weight.dtype}; expected a floating-point type")
        if self._norm == "both":
            _check_positive(edge_weight)
        if self._norm == "none":
            return edge_weight
        weight = widened(edge_weight)
        with without_autocast(weight.device):
            into = ops.copy_e_sum(g, weight) + self._eps
            if self._norm == "both":
                out_of = ops.copy_e_sum(g.reverse(), weight) + self._eps
                factor = ops.u_mul_v(g, out_of.pow(-0.5), into.pow(-0.5))
            else:
                factor = ops.copy_v(g, 1 / into)
            return (factor * weight).to(edge_weight.dtype)

    def extra_repr(self) -> str:
        return f"norm={self._norm}, eps={self._eps}"


class GraphConv(nn.Module):
    """Graph convolution (Kipf and Welling, 2017), as dgl.nn.pytorch.GraphConv.

    Args:
        in_feats, out_feats: widths of input and output.
        norm: "both" scales by the roots of out-degrees and in-degrees, "right" divides by in-degrees, "left" by out-degrees,
            "none" does not scale.
        weight: have a weight matrix. Without it, forward may be given one; otherwise none is applied.
        bias: add a bias.
        activation: function applied at the end.
        allow_zero_in_degree: accept nodes without in-edges. Their sum over edges is zero.
    """

    weight: nn.Parameter | None
    bias: nn.Parameter | None
    zero_in_degree_error: type[Exception] = ValueError

    def __init__(
        self,
        in_feats,
        out_feats,
        norm="both",
        weight=True,
        bias=True,
        activation=None,
        allow_zero_in_degree=False,
    ):
        super().__init__()
        if norm not in ("none", "both", "right", "left"):
            raise ValueError(f"norm is {norm!r}; expected 'none', 'both', 'right' or 'left'")
        self._in_feats = checked_size(in_feats, "in_feats")
        self._out_feats = checked_size(out_feats, "out_feats")
        self._norm = norm
        self._allow_zero_in_degree = allow_zero_in_degree
        self.register_parameter("weight", nn.Parameter(torch.empty(in_feats, out_feats)) if weight else None)
        self.register_parameter("bias", nn.Parameter(torch.empty(out_feats)) if bias else None)
        self.reset_parameters()
        self._activation = activation

    def reset_parameters(self) -> None:
        """Glorot uniform, bias zero."""
        if self.weight is not None and sum(self.weight.shape) > 0:
            nn.init.xavier_uniform_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def set_allow_zero_in_degree(self, set_value: bool) -> None:
        """Whether nodes without in-edges are accepted."""
        self._allow_zero_in_degree = set_value

    def forward(self, graph: GraphLike, feat, weight=None, edge_weight=None):
        """Normalised sum over the in-edges of every destination, of features times weight.

        Args:
            graph: Graph, DGLGraph or block.
            feat: (num_src, *, in_feats), or the pair of it and (num_dst, *, in_feats). The second is not read.
                The sources' features may be :class:`halfgnn.dataloading.Codes`, summed as they are read, without a gradient.
            weight: (in_feats, out_feats), if the module has none.
            edge_weight: (E,), or another shape that broadcasts with the features; multiplies the messages.

        Degrees are fp32, and half sums are scaled before they are rounded.

        Returns:
            (num_dst, *, out_feats)

        Raises:
            ValueError: the graph has nodes without in-edges, or weight is given to a module that has one; wrong shapes or devices.
            TypeError: wrong dtypes.
        """
        g = checked_graph(graph, self._allow_zero_in_degree, self.zero_in_degree_error)
        if weight is not None and self.weight is not None:
            raise ValueError(
                "weight is given, but the module has its own; expected None, or a module made with weight=False"
            )
        weight = self.weight if weight is None else weight
        h = _sources(g, feat, weight)
        if edge_weight is not None:
            check_operand(edge_weight, "edge_weight", g, "e")
        power = {"left": -1.0, "both": -0.5}.get(self._norm)
        if isinstance(h, Codes):
            if power is not None:
                edge_weight = _scaled_weights(g, edge_weight, power)
        elif power is not None:
            h = scaled(h, g.out_degrees(), power)
        # The projection comes first if it makes the rows of the sum shorter.
        if weight is None:
            rst = self._sum(g, h, edge_weight)
        elif isinstance(h, Codes):
            rst = linear(self._sum(g, h, edge_weight).to(weight.dtype), weight.t(), None)
        elif weight.shape[0] > weight.shape[1]:
            projected = linear(h, _widened(weight, h, edge_weight).t(), None)
            rst = trimmed(self._sum(g, projected, edge_weight), weight.shape[1])
        else:
            rst = linear(self._sum(g, h, edge_weight), weight.t(), None)
        if self.bias is not None:
            rst = rst + self.bias
        rst = rst.contiguous()
        return rst if self._activation is None else self._activation(rst)

    def _sum(self, g, h: Tensor | Codes, edge_weight: Tensor | None) -> Tensor:
        """The normalised sum of h, or of its products with edge_weight."""
        if self._norm == "right":
            return aggregate(g, "mean", h, edge_weight)
        if self._norm != "both":
            return aggregate(g, "sum", h, edge_weight)
        rst = aggregate(g, "sum", h, edge_weight, unrounded(h))
        return scaled(rst, g.in_degrees(), -0.5).to(h.dtype)

    def extra_repr(self) -> str:
        activation = "" if self._activation is None else f", activation={self._activation}"
        return f"in={self._in_feats}, out={self._out_feats}, normalization={self._norm}{activation}"


def _check_positive(edge_weight: Tensor) -> None:
    """An exported program raises RuntimeError. AOTInductor cannot write double quotes of a message."""
    message = "edge_weight has values that are not positive; expected positive values for norm='both'"
    if is_exporting():
        torch.ops.aten._assert_async.msg((edge_weight > 0).all(), message)
    elif bool((edge_weight <= 0).any()):
        raise ValueError(message)


def _sources(g: Graph, feat: Any, weight: Any) -> Tensor | Codes:
    """The features of the sources in feat, checked together with the matrix that multiplies them."""
    name = "feat"
    if isinstance(feat, tuple):
        check_pair(feat, "feat")
        name, feat = "feat[0]", feat[0]
    is_codes = isinstance(feat, Codes)
    check_operand(feat.data if is_codes else feat, name, g, "u")
    if weight is not None:
        check_tensor(weight, "weight")
        if weight.dim() != 2:
            raise ValueError(f"weight has shape {tuple(weight.shape)}; expected (in_feats, out_feats)")
        if is_codes:
            check_width_of_codes(feat, name, weight.shape[0])
            return for_layer(feat, weight)
        else:
            check_columns(feat, name, weight.shape[0], None)
            check_parameter(feat, name, weight)
    return feat


def _scaled_weights(g: Graph, edge_weight: Tensor | None, power: float) -> Tensor:
    """(E, *): edge_weight, or 1, times max(out-degree of the source, 1) ** power."""
    factor = ops.copy_u(g, g.out_degrees().clamp(min=1).to(torch.float32).pow(power))
    if edge_weight is None:
        return factor
    return factor.view(-1, *[1] * (edge_weight.dim() - 1)) * edge_weight


def _widened(weight: Tensor, h: Tensor, edge_weight: Tensor | None) -> Tensor:
    """weight (in, out), with columns of zeros if the rows of its product with h are padded."""
    extra = padded_width(weight.shape[1], h, edge_weight) - weight.shape[1]
    return F.pad(weight, (0, extra)) if extra else weight
