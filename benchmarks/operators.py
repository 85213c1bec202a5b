"""The operators that are timed, one declaration each. sweep.py makes cases of them, baselines/ has their competitors."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from halfgnn import reference

from .graphs import BenchGraph
from .inputs import normal, only_shapes, uniform


@dataclass(frozen=True)
class Problem:
    """An operator on inputs of one size and dtype."""

    op: str
    direction: str
    graph: BenchGraph
    heads: int
    dim: int  # per head
    dtype: torch.dtype

    @property
    def is_forward(self) -> bool:
        return self.direction == "forward"

    @property
    def width(self) -> int:
        """Features of all heads together."""
        return self.heads * self.dim

    @property
    def message_bytes(self) -> int:
        """Bytes of one row of features per edge."""
        return self.graph.num_edges * self.width * self.dtype.itemsize

    @property
    def moved_bytes(self) -> int:
        """The least number of bytes that the operator moves; 0 if it is not known for this direction."""
        operator = OPERATORS[self.op]
        if self.direction not in operator.moves_in:
            return 0
        ids = self.graph.src.element_size() if "u" in operator.reads else 0
        elements = operator.gathers * self.width + operator.numbers * self.heads
        return self.graph.num_edges * (ids + elements * self.dtype.itemsize)

    @property
    def operand_bytes(self) -> int:
        with only_shapes():
            return sum(x.nbytes for x in self.operands())

    @property
    def result_bytes(self) -> int:
        operator = OPERATORS[self.op]
        rows = self.graph.num_edges if operator.gives == "e" else self.graph.num_nodes
        has_numbers = not operator.is_wide or (operator.gives == "e" and operator.numbers > 0)
        return rows * (self.heads if has_numbers else self.width) * self.dtype.itemsize

    def operands(self) -> tuple[Tensor, ...]:
        return OPERATORS[self.op].draw(self)

    def normal(self, rows: int, *trailing: int, seed: int = 1) -> Tensor:
        return normal((rows, *trailing), self.dtype, seed, self.graph.device)

    def edge_features(self) -> Tensor:
        return self.normal(self.graph.num_edges, self.dim, seed=4)

    def features(self, seed: int = 1) -> Tensor:
        """(N, F) for one head, otherwise (N, H, D)."""
        trailing = (self.heads, self.dim) if self.heads > 1 else (self.dim,)
        return self.normal(self.graph.num_nodes, *trailing, seed=seed)


@dataclass(frozen=True)
class Operator:
    """Its function is the one of halfgnn.ops with the same name.

    reads: for each operand what it has a row for: every source "u", destination "v" or edge "e", or none ".".
    gives: the same for the result.
    draw: makes the operands of a problem.
    formula(graph, *operands): the result by halfgnn.reference, in the dtype of the operands.
    magnitude(truth, graph, *operands): for each value, the sum of the magnitudes of its terms. The error of fp32
        arithmetic is proportional to it. By default the formula of the operands' magnitudes.
    """

    name: str
    family: str
    reads: str
    gives: str
    draw: Callable[[Problem], tuple[Tensor, ...]]
    formula: Callable[..., Tensor]
    magnitude: Callable[..., Tensor] | None = None
    gathers: int = 0  # rows of features that every edge reads
    numbers: int = 0  # numbers that every edge reads or writes per head, besides
    heads: str = "all"  # that are timed: "all" of --heads, the "most" of them, or "one"
    backward: str = (
        ""  # heads whose backward is timed: "all", the "most", its "ends" (on a GPU also the fewest), or none
    )
    moves_in: tuple[str, ...] = ("forward",)  # directions whose bytes are known
    function: str = ""  # of halfgnn.ops, if its name is another one
    fp32_units: int = 1  # of rounding by which gradients in fp32 may be off, beyond the error of the formula

    def of(self, ops: Any) -> Callable[..., Tensor]:
        """The operator of halfgnn.ops."""
        return getattr(ops, self.function or self.name)

    @property
    def is_wide(self) -> bool:
        """Whether it works on rows of features. The others have one number per head."""
        return self.gathers > 0

    @property
    def has_edge_data(self) -> bool:
        return "e" in self.reads + self.gives


def _weights(problem: Problem) -> Tensor:
    """(E, 1) for one head, otherwise (E, H, 1)."""
    trailing = (problem.heads, 1) if problem.heads > 1 else (1,)
    return uniform((problem.graph.num_edges, *trailing), problem.dtype, 2, problem.graph.device)


def _per_edge(problem: Problem) -> Tensor:
    return problem.normal(problem.graph.num_edges, problem.heads)


def _per_edge_and_node(problem: Problem) -> tuple[Tensor, Tensor]:
    """The numbers per node are at least 0.5, because e_div_v divides by them."""
    graph = problem.graph
    nodes = uniform((graph.num_nodes, problem.heads), torch.float32, 2, graph.device) + 0.5
    return _per_edge(problem), nodes.to(problem.dtype)


def _rows(problem: Problem, seed: int) -> Tensor:
    """(N, H, D), also for one head: the features of attentions."""
    return problem.normal(problem.graph.num_nodes, problem.heads, problem.dim, seed=seed)


def _gat(problem: Problem) -> tuple[Tensor, Tensor, Tensor]:
    """As in a model, the logits of sources are products of the features that are summed."""
    x = _rows(problem, 1)
    attn = normal((problem.heads, problem.dim), torch.float32, 9, x.device.type) * problem.dim**-0.5
    logits = torch.einsum("nhd,hd->nh", x, attn.to(problem.dtype))
    return x, logits, problem.normal(problem.graph.num_nodes, problem.heads, seed=3)


def _spmm(op: str, reduce: str) -> Callable[..., Tensor]:
    return lambda g, x, w=None: reference.gspmm(g, op, reduce, x, w)


def _sddmm(op: str, x_target: str = "u") -> Callable[..., Tensor]:
    return lambda g, x, y: reference.gsddmm(g, op, x, y, x_target, "v")


def _dot_attention(g, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return reference.dot_attention(g, query, key, value, query.shape[-1] ** -0.5)


# What the operators of a family have in common.
_copy_u = functools.partial(
    Operator, family="spmm", reads="u", gives="v", draw=lambda p: (p.features(),), gathers=1,
    heads="one", backward="",  # it is the forward on the reverse graph
)  # fmt: skip
_sddmm_u_v = functools.partial(
    Operator, family="sddmm", reads="uv", gives="e", draw=lambda p: (p.features(1), p.features(2)), backward="most"
)
_message = functools.partial(
    Operator, family="messages", reads="ue", gives="v", draw=lambda p: (p.features(), p.edge_features()), gathers=2,
    heads="one", backward="all",
)  # fmt: skip
_part_of_softmax = functools.partial(Operator, family="edges", heads="most")
_attention = functools.partial(
    Operator, family="attention", gives="v", magnitude=lambda truth, *_: (64 * truth.abs().amax()).expand_as(truth),
    gathers=1, backward="all", fp32_units=16,  # gradients of logits are differences of fp32 sums with some tens of terms
)  # fmt: skip

OPERATORS = {operator.name: operator for operator in (
    _copy_u("copy_u_sum", formula=_spmm("copy_lhs", "sum")),
    _copy_u("copy_u_max", formula=_spmm("copy_lhs", "max")),
    Operator("u_mul_e_sum", family="spmm", reads="ue", gives="v", draw=lambda p: (p.features(), _weights(p)),
             formula=_spmm("mul", "sum"), gathers=1, numbers=1, backward="ends", moves_in=("forward", "backward")),
    # Rows of nodes with rows of edges of the same width.
    _message("u_add_e_sum", formula=_spmm("add", "sum")),
    _message("u_relu_add_e_sum", formula=_spmm("relu_add", "sum")),
    _message("u_mul_e_sum_of_rows", function="u_mul_e_sum", formula=_spmm("mul", "sum")),
    _message("u_add_v_add_e", reads="uve", gives="e", formula=reference.u_add_v_add_e, gathers=3,
             draw=lambda p: (p.features(1), p.features(2), p.edge_features())),
    _message("gated_sum", reads="uuve", formula=reference.gated_sum, gathers=3,
             draw=lambda p: (p.features(1), p.features(2), p.features(3), p.edge_features())),
    _sddmm_u_v("u_dot_v", formula=_sddmm("dot"), gathers=1, numbers=1),
    _sddmm_u_v("u_add_v", formula=_sddmm("add"), numbers=2, heads="most"),  # the logits of GAT
    # exp turns the rounding error of its argument, a few units, into a relative error.
    Operator("edge_softmax", family="softmax", reads="e", gives="e", draw=lambda p: (_per_edge(p).unsqueeze(2),),
             formula=reference.edge_softmax, magnitude=lambda truth, *_: 16 * truth, numbers=2, backward="most"),
    _part_of_softmax("copy_e_sum", reads="e", gives="v", draw=lambda p: (_per_edge(p),), numbers=1,
                     formula=lambda g, x: reference.gspmm(g, "copy_rhs", "sum", None, x)),
    _part_of_softmax("e_sub_v", reads="ev", gives="e", draw=_per_edge_and_node, numbers=2, formula=_sddmm("sub", "e"),
                     magnitude=lambda _, g, x, y: _sddmm("add", "e")(g, x.abs(), y.abs())),
    _part_of_softmax("e_div_v", reads="ev", gives="e", draw=_per_edge_and_node, numbers=2, formula=_sddmm("div", "e")),
    # Features and logits of sources, logits of destinations.
    _attention("gat_attention", reads="uuv", draw=_gat, formula=reference.gat_attention),
    # Features of sources, features of destinations, one vector per head.
    _attention("gatv2_attention", reads="uv.", formula=reference.gatv2_attention,
               draw=lambda p: (_rows(p, 1), _rows(p, 2), p.normal(p.heads, p.dim, seed=3))),
    # Queries of destinations, keys and values of sources.
    _attention("dot_attention", reads="vuu", formula=_dot_attention, gathers=2,
               draw=lambda p: (_rows(p, 1), _rows(p, 2), _rows(p, 3))),
)}  # fmt: skip
ATTENTIONS = tuple(name for name, operator in OPERATORS.items() if operator.family == "attention")
