"""What the modules share: whose forward takes a call, checks of their arguments, sums, and the parts of the attentions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch_geometric.nn import Linear, MessagePassing, aggr
from torch_geometric.typing import SparseTensor

from ... import ops
from ...common.layers import check_layer, is_hooked
from ...common.operands import (
    LINEARS,
    as_floats,
    check_columns,
    check_dense,
    check_one_width,
    check_operand,
    check_pair,
    check_parameter_device,
    check_tensor,
    width_of,
    widths_of,
)
from ...common.precision import autocast, may_mix, without_autocast
from ...drop_in.gate import Reason, tracing_reason
from ...graph import Graph
from ...graph_argument import as_graph, is_graph
from ...graphs_by_tensor import traced_loops  # noqa: F401  (defines operators that compiled code calls)
from ...graphs_by_tensor.edge_index import edge_index_of, graph_of
from ...graphs_by_tensor.loops import with_self_loops
from ...nn.attention import safe_to_modify
from ...nn.projections import applied, is_just, linear, trimmed
from ..drop_in.accounts import fell_back
from ..drop_in.call import module_reason

LINEARS.append(Linear)

_REDUCTIONS = {
    aggr.SumAggregation: "sum",
    aggr.MeanAggregation: "mean",
    aggr.MinAggregation: "min",
    aggr.MaxAggregation: "max",
    aggr.VarAggregation: "var",
    aggr.StdAggregation: "std",
}
ONE_PASS = ("sum", "mean", "max", "min")  # reductions of ops.gspmm
_STEPS = ("message", "edge_update", "aggregate", "update", "message_and_aggregate")


# ---- whose forward -----------------------------------------------------------------------------------------------------------


class UpstreamModule:
    """Base of the modules, beside torch_geometric's class.

    That class replaces its own propagate and edge_updater when the first module is made, by functions that cannot explain. A
    subclass that inherits them would take them for the originals.
    """

    own_class: type  # the class here, of which the module's class may be a subclass

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if UpstreamModule in cls.__bases__:
            cls.own_class = cls
            cls.propagate = MessagePassing.propagate  # type: ignore[attr-defined]
            cls.edge_updater = MessagePassing.edge_updater  # type: ignore[attr-defined]

    def __prepare_scriptable__(self) -> Any:
        """What torch.jit.script compiles: torch_geometric's module of the same parameters, which it can read."""
        cls = type(self)
        if cls is not self.own_class:
            return self
        host = next(base for base in cls.__mro__ if base.__module__.startswith("torch_geometric."))
        module: Any = object.__new__(host)
        module.__setstate__(self.__dict__.copy())  # which also replaces that class's propagate
        return module


def reduction_of(aggregation: Any) -> str | None:
    """halfgnn's name of what a module of torch_geometric.nn.aggr computes; None if it has none."""
    name = _REDUCTIONS.get(type(aggregation))
    if name in ("var", "std"):
        variance = getattr(aggregation, "var_aggr", aggregation)  # what StdAggregation calls
        if variance.semi_grad or is_hooked(variance):
            return None
    return None if is_hooked(aggregation) else name


def options_reason(conv: Any, kind: type, reductions: tuple[str, ...] | None = ("sum",)) -> str | None:
    """Why a module, of class `kind` or a subclass, computes something else than that class does.

    reductions: those that are taken; None: any.
    """
    if reductions is not None and reduction_of(conv.aggr_module) not in reductions:
        return Reason.AGGREGATION
    if conv.flow != "source_to_target" or conv.node_dim not in (0, -2) or conv.decomposed_layers != 1:
        return Reason.OPTIONS
    attributes, cls = conv.__dict__, type(conv)
    if any([step in attributes for step in _STEPS]):
        return Reason.SUBCLASS
    is_own = getattr(cls, "own_class", None) is cls  # mostly
    if not is_own and any(getattr(cls, step) is not getattr(kind, step) for step in _STEPS):
        return Reason.SUBCLASS
    # Dynamo does not read the module of a method.
    return None if is_own or torch.compiler.is_compiling() or propagates(conv) else Reason.SUBCLASS


def propagates(conv: Any) -> bool:
    """Whether propagate of a module or class is torch_geometric's, or what it generated for the class, and not one of its own."""
    return conv.propagate.__module__.endswith(("_propagate", ".message_passing"))


def call_reason(
    conv: Any, kind: type, edge_index: Any, x: Any, reductions: tuple[str, ...] | None = ("sum",)
) -> str | None:
    """Why a call is left to the forward of `kind`, torch_geometric's class. reductions: see options_reason."""
    reason = module_reason(conv) or options_reason(conv, kind, reductions)
    if reason is None and not torch.compiler.is_compiling():
        reason = tracing_reason()
    if reason is not None:
        return reason
    if isinstance(edge_index, SparseTensor) or getattr(edge_index, "layout", torch.strided) != torch.strided:
        return Reason.SPARSE_EDGE_INDEX
    is_static = conv.node_dim == -2 and isinstance(x, Tensor) and x.dim() > 2  # one graph, several features
    return Reason.MORE_DIMENSIONS if is_static else None


def edge_index_if_unsupported(
    conv: Any,
    kind: type,
    edge_index: Any,
    x: Any,
    reductions: tuple[str, ...] | None = ("sum",),
    reason: str | None = None,
) -> Any:
    """edge_index for torch_geometric's forward, if that takes the call, which is then counted; None if halfgnn does.

    reason: why it takes the call, if the module knows one.
    """
    _check_order(x, edge_index)
    reason = reason or call_reason(conv, kind, edge_index, x, reductions)
    if reason is None:
        return None
    if not torch.compiler.is_compiling():
        fell_back[f"forward:{kind.__name__}", reason] += 1
    if isinstance(edge_index, (Tensor, SparseTensor)):
        return edge_index
    return edge_index_of(as_graph(edge_index, "edge_index"))


def _check_order(x: Any, edge_index: Any) -> None:
    """Raises if x is no features: what torch_geometric's forward would take for a pair, or edge_index in the place of x."""
    if isinstance(x, Tensor):
        if isinstance(edge_index, Tensor) and edge_index.is_floating_point() and not x.is_floating_point():
            raise TypeError(
                f"x has dtype {x.dtype} and edge_index {edge_index.dtype}; expected features and integers: the order of "
                "arguments is (x, edge_index)"
            )
    elif isinstance(x, (tuple, list)):  # a pair, mostly
        if x and isinstance(x[0], (int, float, list)):
            check_tensor(x, "x")
    elif is_graph(x):
        raise TypeError(
            f"x is a {type(x).__name__}; expected a torch.Tensor: the order of arguments is (x, edge_index)"
        )
    elif x is not None:
        check_tensor(x, "x")


# ---- arguments ---------------------------------------------------------------------------------------------------------------


def checked_pair(x: Any, lin_src: Any, lin_dst: Any, optional: bool = False) -> Any:
    """x of sources and of destinations, cast once as autocast would cast them for each projection.

    optional: x of destinations may be None.
    """
    width, dst_width = widths_of(lin_src, lin_dst)
    if not isinstance(x, (tuple, list)):
        _check_features(x, "x", width)
        check_one_width("x", width, dst_width)
        check_layer(x, "x", lin_src)
        x = autocast(x)
        return x, x
    check_pair(x, "x")
    src, dst = x
    _check_features(src, "x[0]", width)
    if dst is not None or not optional:
        _check_features(dst, "x[1]", dst_width)
        if dst.device != src.device:
            raise ValueError(f"x[1] is on {dst.device}; expected the device of x[0], {src.device}")
    check_layer(src, "x[0]", lin_src)
    if dst is not None:
        check_layer(dst, "x[1]", lin_src if lin_dst is None else lin_dst)
    return autocast(src), autocast(dst)


def _check_features(x: Any, name: str, width: int | None) -> None:
    check_tensor(x, name)
    check_dense(x, name)
    if x.dim() != 2:
        columns = "columns" if width is None else width
        raise ValueError(f"{name} has shape {tuple(x.shape)}; expected (nodes, {columns})")
    check_columns(x, name, width)


def checked_features(x: Any, eps: Tensor) -> tuple[Tensor, Tensor | None]:
    """x of sources and of destinations, for the modules that do not project them. eps: their own parameter."""
    is_pair = isinstance(x, (tuple, list))
    if is_pair:
        check_pair(x, "x")
    x_src, x_dst = x if is_pair else (x, x)
    src_name = "x[0]" if is_pair else "x"
    for part, name in ((x_src, src_name), (x_dst, "x[1]")):
        if part is not None or name == src_name:
            check_tensor(part, name)
            check_dense(part, name)
            if not part.is_floating_point():
                raise TypeError(f"{name} has dtype {part.dtype}; expected a floating-point type{as_floats(part, name)}")
    check_parameter_device(x_src, src_name, eps)
    return x_src, x_dst


def checked_graph(edge_index: Any, x: Tensor, num_src: int, num_dst: int) -> Graph:
    """The Graph of edge_index, which must be on the device of x."""
    topology = edge_index if isinstance(edge_index, Tensor) else graph_of(edge_index, num_src, num_dst)
    if topology.device != x.device:
        raise ValueError(f"edge_index is on {topology.device}; expected the device of x, {x.device}")
    return graph_of(topology, num_src, num_dst) if isinstance(topology, Tensor) else topology


def node_counts(size: Any, x_src: Tensor, x_dst: Tensor | None) -> tuple[int, int]:
    """The numbers of source and destination nodes: the rows of x, or `size` if x of the destinations is None."""
    rows = x_src.shape[0], x_src.shape[0] if x_dst is None else x_dst.shape[0]
    if size is None:
        return rows
    if not isinstance(size, (tuple, list)) or len(size) != 2 or not all(isinstance(n, int) for n in size):
        raise TypeError(f"size is {size!r}; expected two integers, (num_src, num_dst)")
    if size[0] != rows[0] or size[1] < 0 or (x_dst is not None and size[1] != rows[1]):
        raise ValueError(
            f"size is {tuple(size)}; expected the rows of x, {rows if x_dst is not None else f'({rows[0]}, num_dst)'}"
        )
    return size[0], size[1]


def checked_edge_attr(g: Graph, edge_attr: Any, lin: Any) -> Tensor:
    """edge_attr as (E, edge_dim)."""
    check_operand(edge_attr, "edge_attr", g, "e")
    width = width_of(lin)
    if edge_attr.dim() == 1 and width in (1, None):
        edge_attr = edge_attr.view(-1, 1)
    check_columns(edge_attr, "edge_attr", width)
    return edge_attr


# ---- sums --------------------------------------------------------------------------------------------------------------------


def checked_weight(g: Graph, edge_weight: Any) -> Tensor | None:
    """edge_weight as (E, 1)."""
    if edge_weight is None:
        return None
    check_operand(edge_weight, "edge_weight", g, "e")
    if edge_weight.numel() != g.num_edges:
        raise ValueError(f"edge_weight has shape {tuple(edge_weight.shape)}; expected ({g.num_edges},)")
    return edge_weight.view(-1, 1)


def reduced(g: Graph, reduction: str, x: Tensor, weight: Tensor | None = None) -> Tensor:
    """x (num_src, *) of the sources, times weight (E, 1) unless that is None, reduced into destinations.

    The result has the dtype in which autocast takes x. Weights keep their dtype if gspmm takes it beside that of x.
    """
    x = autocast(x)
    if weight is None:
        return ops.gspmm(g, "copy_lhs", reduction, x, None)
    if not may_mix(weight.dtype, x.dtype):
        weight = weight.to(x.dtype)
    with without_autocast(x.device):
        return ops.gspmm(g, "mul", reduction, x, weight)


def projects_first(lin: Any, reduction: str) -> bool:
    """Whether sources are projected before they are reduced: those of a sum or mean, if that makes the gathered rows narrower."""
    return reduction in ("sum", "mean") and is_just(lin, Linear) and lin.out_channels < lin.in_channels


class Sums:
    """What the modules share that reduce the features of sources by :func:`reduced`, between a step before and one after it.

    HeteroConv reduces those of several modules together.
    """

    aggr_module: Any

    @property
    def _reduction(self) -> str:
        return str(reduction_of(self.aggr_module))

    def _projection(self) -> Any:
        """The layer that is applied to sources or to their reduction, whichever has fewer columns; None if there is none."""
        raise NotImplementedError

    def _ends(self, x: Any) -> Any:
        """x of sources and of destinations, checked."""
        raise NotImplementedError

    def _weighted(self, g: Graph, weight: Tensor | None, dtype: torch.dtype) -> tuple[Graph, Tensor | None]:
        """The graph of the edges that are summed, and their weights (E, 1), made of those that were given."""
        return g, weight

    def _before(self, x_src: Tensor) -> Tensor:
        """The rows that are reduced."""
        lin = self._projection()
        return linear(x_src, lin.weight, None) if projects_first(lin, self._reduction) else x_src

    def _after(self, out: Tensor, x_dst: Tensor | None) -> Tensor:
        """The module's result. out: the reduced rows."""
        raise NotImplementedError

    def _projected(self, out: Tensor) -> Tensor:
        """What is left of the projection after the reduction."""
        lin = self._projection()
        if not projects_first(lin, self._reduction):
            return applied(lin, out)
        return out if lin.bias is None else out + lin.bias.to(out.dtype)

    def _sum(self, g: Graph, x_src: Tensor, x_dst: Tensor | None, weight: Tensor | None = None) -> Tensor:
        """The module's result of checked arguments."""
        return self._after(reduced(g, self._reduction, self._before(x_src), weight), x_dst)


# ---- attentions --------------------------------------------------------------------------------------------------------------


class Attention:
    """What GATConv and GATv2Conv share."""

    add_self_loops: bool
    fill_value: Any
    lin_edge: Any
    res: Any
    bias: Any
    out_channels: int
    concat: bool
    dropout: float
    training: bool

    def _graph(self, edge_index: Any, x: Tensor, size: tuple[int, int], edge_attr: Any) -> tuple[Graph, Tensor | None]:
        """The Graph, with self-loops if they are wanted, and its edge features (E, edge_dim)."""
        g = checked_graph(edge_index, x, *size)
        edge_attr = None if self.lin_edge is None else edge_attr
        if edge_attr is not None:
            edge_attr = checked_edge_attr(g, edge_attr, self.lin_edge)
        if not self.add_self_loops:
            return g, edge_attr
        looped = with_self_loops(g, min(size))
        if edge_attr is not None:
            edge_attr = looped.edge_data(edge_attr, self.fill_value)
        return looped.graph, edge_attr

    def _finish(self, out: Tensor, x_dst: Tensor | None, is_new: bool = False) -> Tensor:
        """Takes padding off, joins the heads, and adds residual and bias. is_new: out is kept for no backward."""
        out = trimmed(out, self.out_channels)
        out, is_new = (out.flatten(1), is_new) if self.concat else (out.mean(1), True)
        if self.res is not None and x_dst is not None:
            out, is_new = out + applied(self.res, x_dst), True
        return safe_to_modify(out, is_new) if self.bias is None else out + self.bias

    def _initialize(self, x_dst: Tensor | None) -> None:
        """Draws the residual's parameters if it has a width of -1: torch_geometric applies it before the other layers."""
        if x_dst is not None and hasattr(self.res, "_hook"):
            self.res.initialize_parameters(self.res, (x_dst,))

    def _dropout_p(self) -> float:
        return self.dropout if self.training else 0.0
