"""A network on every edge as a module: a torch.nn.Sequential whose layers ops.edge_network runs on tiles of edges."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import UninitializedParameter

from ..common.arguments import check_name, checked_flag
from ..common.layers import is_hooked
from ..common.operands import check_operand, check_pair, check_parameter, is_linear
from ..common.precision import computed_type
from ..graph_argument import GraphLike, as_graph
from ..ops import edge_network
from ..ops.edge_network.inputs import REDUCES
from .projections import linear

Ends = tuple[Tensor | None, Tensor | None]  # of sources and of destinations
PARTS = ("src", "dst", "edge")
# Of an activation's module: its name in the operator, and whether it has the parameters that the operator has.
_ACTIVATIONS: dict[type[nn.Module], tuple[str, Callable[[Any], bool]]] = {
    nn.ReLU: ("relu", lambda _: True),
    nn.SiLU: ("silu", lambda _: True),
    nn.Tanh: ("tanh", lambda _: True),
    nn.GELU: ("gelu", lambda m: m.approximate == "none"),
    nn.Softplus: ("softplus", lambda m: (m.beta, m.threshold) == (1, 20)),
    nn.LeakyReLU: ("leaky_relu", lambda _: True),
}


class Reading(NamedTuple):
    """What a Sequential computes: the first layer, those behind an activation each, and the norm behind the last."""

    first: nn.Linear
    others: list[nn.Linear]
    activation: nn.Module | None
    norm: nn.LayerNorm | None

    def options(self, shift: float = 0.0, dtype: torch.dtype | None = None) -> dict[str, Any]:
        """Arguments of the operator, parameters in that dtype if there is one. shift: what is subtracted from each result of the
        activation, which biases take over."""

        def cast(x: Tensor | None) -> Tensor | None:
            return x if x is None or dtype is None else x.to(dtype)

        layers = [(cast(layer.weight), cast(_shifted(layer, shift))) for layer in self.others]
        found: dict[str, Any] = {"layers": layers}
        if is_activation(self.activation):
            found["activation"] = _ACTIVATIONS[type(self.activation)][0]  # type: ignore[index]
        if isinstance(self.activation, nn.LeakyReLU):
            found["negative_slope"] = self.activation.negative_slope
        if self.norm is not None:
            found |= {"norm": (cast(self.norm.weight), cast(self.norm.bias)), "eps": self.norm.eps}
        return found

    def split(self, widths: Sequence[int]) -> tuple[Tensor, ...]:
        """The columns of the first layer's weight."""
        return self.first.weight.split(list(widths), dim=1)


def _shifted(layer: nn.Linear, shift: float) -> Tensor | None:
    if shift == 0:
        return layer.bias
    moved = -shift * layer.weight.sum(1)
    return moved if layer.bias is None else layer.bias + moved


def is_activation(layer: Any) -> bool:
    name, takes = _ACTIVATIONS.get(type(layer), ("", lambda _: False))
    return bool(name) and takes(layer)


def read(
    layers: Sequence[nn.Module], is_activation: Callable[[Any], bool] = is_activation
) -> tuple[Reading | None, str]:
    """What the layers compute; or None, and why the operator does not compute it."""
    rest = list(layers)
    norm: Any = rest.pop() if rest and isinstance(rest[-1], nn.LayerNorm) else None
    linears: list[Any] = rest[::2]
    activations = rest[1::2]
    if not linears or len(linears) != len(activations) + 1:
        return (
            None,
            "expected linear layers with an activation between each two, and behind the last a LayerNorm or none",
        )
    for i, layer in enumerate(linears):
        if not is_linear(layer) or isinstance(layer.weight, UninitializedParameter):
            return None, f"{type(layer).__name__} is no linear layer, or has no weight yet"
        if i > 0 and layer.weight.shape[1] != linears[i - 1].weight.shape[0]:
            return None, f"linear layer {i} takes {layer.weight.shape[1]} features of {linears[i - 1].weight.shape[0]}"
    for activation in activations:
        if not is_activation(activation):
            return None, f"{type(activation).__name__} is no activation that the operator has"
        if vars_of(activation) != vars_of(activations[0]):
            return None, "there are two different activations"
    if norm is not None and (norm.weight is None or norm.normalized_shape != (linears[-1].out_features,)):
        return None, "the LayerNorm is not one of rows with a weight"
    called = [*linears, *activations, *([] if norm is None else [norm])]
    if any(is_hooked(x) or "parametrizations" in x._modules for x in called):
        return None, "a layer has hooks or a parametrization"
    return Reading(linears[0], linears[1:], activations[0] if activations else None, norm), ""


def vars_of(activation: nn.Module) -> tuple:
    return type(activation), getattr(activation, "negative_slope", None)


class EdgeNetwork(nn.Sequential):
    """A network on every edge: linear layers, an activation between each two, and a LayerNorm behind the last or none.

    It is the torch.nn.Sequential of its layers, with the same state dict; the first takes the features of both ends and of the edge
    side by side. :func:`halfgnn.ops.edge_network` runs it: the first layer is applied to nodes once, and nothing of the size of the
    edges is saved for the backward but their features.

    Args:
        layers: nn.Linear, and one of nn.ReLU, SiLU, Tanh, GELU, Softplus and LeakyReLU throughout.
        order: which features lie in which columns of the first layer: some of src, dst and edge.
        reduce: sum, mean, max, or none for the edges alone.
        return_edges: also return the messages; with residual edge_feat + messages, the next features of the edges.

    Raises:
        TypeError: layers of other kinds. ValueError: a name that is none.

    Example, an interaction network::

        net = EdgeNetwork(nn.Linear(3 * 64, 64), nn.SiLU(), nn.Linear(64, 64), nn.LayerNorm(64), return_edges=True, residual=True)
        out, edges = net(g, x, edges)
    """

    def __init__(
        self,
        *layers: nn.Module,
        order: Sequence[str] = PARTS,
        reduce: str = "sum",
        return_edges: bool = False,
        residual: bool = False,
    ):
        super().__init__(*layers)
        _, problem = read(list(self))
        if problem:
            raise TypeError(f"layers: {problem}")
        if isinstance(order, str) or not isinstance(order, Sequence):
            raise TypeError(f"order is {order!r}; expected some of {', '.join(PARTS)}")
        for part in order:
            check_name(part, "an element of order", PARTS)
        if len(set(order)) != len(order) or not order:
            raise ValueError(f"order is {tuple(order)}; expected some of {', '.join(PARTS)}, each once")
        check_name(reduce, "reduce", REDUCES)
        if not return_edges and (residual or reduce == "none"):
            raise ValueError(f"return_edges is False; expected True with residual={residual} and reduce={reduce!r}")
        self.order, self.reduce = tuple(order), reduce
        self.return_edges, self.residual = (
            checked_flag(return_edges, "return_edges"),
            checked_flag(residual, "residual"),
        )

    def __getitem__(self, which):  # type: ignore[override]
        """A layer; of several layers a plain Sequential."""
        return nn.Sequential(*list(self)[which]) if isinstance(which, slice) else super().__getitem__(which)

    def forward(self, graph: GraphLike, feat=None, edge_feat: Tensor | None = None):  # type: ignore[override]
        """reduce over in-edges e = (u, v) of net(feat[u], feat[v], edge_feat[e]), in the columns that `order` says.

        Args:
            graph: Graph, DGLGraph or block.
            feat: (N, width), the pair of (num_src, width) and (num_dst, width), or None if order has no nodes.
            edge_feat: (E, width), or None if order has no edge.

        Returns:
            (num_dst, out), with return_edges the pair of it and (E, out), or the latter alone if reduce is none.

        Raises:
            ValueError: wrong shapes or devices. TypeError: wrong dtypes, layers that were replaced by others.
        """
        g = as_graph(graph, "graph")
        reading, problem = read(list(self))
        if reading is None:
            raise TypeError(f"layers: {problem}")
        if isinstance(feat, (tuple, list)):
            check_pair(feat, "feat")
        src, dst = feat if isinstance(feat, (tuple, list)) else (feat, feat)
        given = {"src": (src, "u"), "dst": (dst, "v"), "edge": (edge_feat, "e")}
        if "edge" not in self.order and edge_feat is not None:
            raise ValueError(f"edge_feat is given, and order is {self.order}; expected None")
        if self.order == ("edge",) and feat is not None:
            raise ValueError(f"feat is given, and order is {self.order}; expected None")
        rows = {part: self._checked(g, part, *given[part]) for part in self.order}
        widths = [x.shape[1] for x in rows.values()]
        if sum(widths) != reading.first.in_features:
            raise ValueError(
                f"{', '.join(self.order)} have {', '.join(map(str, widths))} features; expected {reading.first.in_features} in all"
            )
        weights = dict(zip(rows, reading.split(widths)))
        options = reading.options() | {
            "reduce": self.reduce,
            "return_edges": self.return_edges,
            "residual": self.residual,
        }
        if "edge" in rows:
            options |= {"edge_feat": edge_feat, "edge_weight": weights["edge"]}
        # Under autocast the sum with edge_feat keeps its type, as in a plain residual.
        adds = self.residual and edge_feat is not None and computed_type(edge_feat) != edge_feat.dtype
        options["residual"] = self.residual and not adds
        of_src, of_dst = first_sums(g, reading.first.bias, rows, weights)
        results: Any = edge_network(g, of_src, of_dst, **options)
        if not adds or edge_feat is None:
            return results
        return edge_feat + results if self.reduce == "none" else (results[0], edge_feat + results[1])

    def _checked(self, g, part: str, x: Any, target: str) -> Tensor:
        name = "edge_feat" if part == "edge" else f"feat of {part}"
        check_operand(x, name, g, target)
        if x.dim() != 2:
            raise ValueError(f"{name} has shape {tuple(x.shape)}; expected (rows, width)")
        check_parameter(x, name, self[0].weight)
        return x

    def extra_repr(self) -> str:
        return f"order={self.order}, reduce={self.reduce!r}, return_edges={self.return_edges}, residual={self.residual}"


def first_sums(g, bias: Tensor | None, rows: dict[str, Tensor], weights: dict[str, Tensor]) -> Ends:
    """What the first layer makes of sources and of destinations, which take the bias."""
    src = linear(rows["src"], weights["src"], None) if "src" in rows else None
    if "dst" in rows:
        return src, linear(rows["dst"], weights["dst"], bias)
    return src, None if bias is None else bias.expand(g.num_dst, -1)
