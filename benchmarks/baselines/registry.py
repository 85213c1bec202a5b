"""What a competitor is, and the list of them.

A plug-in makes a :class:`Competitor` and decorates, for each operator that it has, a function that prepares the work::

    ours = competitor("index_add")

    @ours.does("copy_u_sum", one_head=True)
    def _(problem, x):
        check_messages(problem.message_bytes, problem.graph.device)
        return lambda x: x.new_zeros(x.shape).index_add_(0, problem.graph.dst, x.index_select(0, problem.graph.src))

What it cannot do raises :class:`Unavailable` with the reason, which becomes the note of its row; an operator, a direction or a
device that it never has gives no row. What a library refuses only when called is noted by the runner in the same way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..graphs import BenchGraph
from ..optional import Unavailable, first_line

# Operands, as halfgnn.ops has them. Features are (N, F) of one head, else (N, H, D); of the attentions (N, H, D).
OPERATORS = (
    "copy_u_sum", "copy_u_max",  # x
    "u_mul_e_sum",  # x; weights (E, 1) or (E, H, 1)
    "u_dot_v", "u_add_v",  # x, y -> (E, 1) or (E, H, 1); (E, ...)
    "edge_softmax",  # logits (E, H, 1)
    "copy_e_sum", "e_sub_v", "e_div_v",  # x (E, H); y (N, H)
    "gat_attention",  # x, logits of sources (x times a vector a head) and of destinations (N, H)
    "gatv2_attention",  # x of sources, of destinations, attn (H, D)
    "dot_attention",  # queries of destinations, keys and values of sources
)  # fmt: skip
ATTENTIONS = OPERATORS[-3:]
WIDE = (*OPERATORS[:4], *ATTENTIONS)  # those with rows of features; the others have a number a head


@dataclass(frozen=True)
class Problem:
    """What a case asks of a competitor."""

    op: str
    direction: str
    graph: BenchGraph
    heads: int
    dim: int  # a head
    dtype: torch.dtype

    @property
    def is_forward(self) -> bool:
        return self.direction == "forward"

    @property
    def width(self) -> int:
        """Features, all heads."""
        return self.heads * self.dim

    @property
    def message_bytes(self) -> int:
        """Of one row of features an edge."""
        return self.graph.num_edges * self.width * self.dtype.itemsize


Function = Callable[..., Tensor]  # of the operands; differentiable where the direction asks for it


@dataclass(frozen=True)
class _Ability:
    prepare: Callable[..., Function]  # of the problem and its operands; nothing of it is timed
    directions: tuple[str, ...]
    devices: tuple[str, ...]
    one_head: bool

    def covers(self, problem: Problem) -> bool:
        fits = problem.direction in self.directions and problem.graph.device in self.devices
        return fits and (problem.heads == 1 or not self.one_head)


@dataclass(frozen=True)
class Competitor:
    """name: of its rows. option: of --baselines. everywhere: it takes part in every case, the others only in those of the main
    order of edge data and, on a GPU, of main_dim and two dtypes. checked: its results are those of the operator."""

    name: str
    option: str
    everywhere: bool = False
    checked: bool = True
    abilities: dict[str, _Ability] = field(default_factory=dict)

    def does(
        self,
        *ops: str,
        directions: tuple[str, ...] = ("forward",),
        devices: tuple[str, ...] = ("cpu", "cuda"),
        one_head: bool = False,
    ) -> Callable[[Callable[..., Function]], Callable[..., Function]]:
        """Registers prepare(problem, *operands) for these operators. one_head: nothing else is asked of it."""
        unknown = set(ops) - set(OPERATORS)
        if unknown:
            raise ValueError(f"{self.name} does {sorted(unknown)}; expected some of {OPERATORS}")

        def register(prepare: Callable[..., Function]) -> Callable[..., Function]:
            self.abilities.update(dict.fromkeys(ops, _Ability(prepare, directions, devices, one_head)))
            return prepare

        return register

    def offers(self, problem: Problem) -> bool:
        ability = self.abilities.get(problem.op)
        return ability is not None and ability.covers(problem)

    def prepare(self, problem: Problem, operands: tuple[Tensor, ...]) -> Function:
        """The function that is timed. Unavailable: it cannot, and why."""
        return self.abilities[problem.op].prepare(problem, *operands)


ALL: list[Competitor] = []  # in the order of their rows
ANY_DIRECTION = ("forward", "forward+backward", "backward")


def competitor(name: str, option: str = "", everywhere: bool = False, checked: bool = True) -> Competitor:
    """A new entry of ALL."""
    ALL.append(Competitor(name, option or name, everywhere, checked))
    return ALL[-1]


MESSAGE_BYTES = 1 << 30  # a row of features for every edge: no more memory than this, on a CPU


def check_messages(needed: int, device: str) -> None:
    """Raises Unavailable where messages of so many bytes are too many."""
    room = MESSAGE_BYTES
    if device == "cuda":
        room = torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved() - torch.cuda.memory_allocated() - (2 << 30)
    if needed > room:
        raise Unavailable(f"its messages would take {needed / 2**30:.1f} GiB")


def reason(error: BaseException) -> str:
    """Why a contestant did not take part, in a line."""
    if isinstance(error, Unavailable):
        return str(error)
    text = next((x for x in str(error).splitlines() if "Check failed" in x), first_line(error))
    return f"refused: {type(error).__name__}: {text[-160:].strip()}"
