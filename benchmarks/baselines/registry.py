"""Competitors, and the list of all of them.

A plug-in makes a :class:`Competitor`. For each of its operators it decorates a function that prepares the work. The
operands are those that operators.py draws::

    ours = competitor("index_add")

    @ours.does("copy_u_sum", one_head=True)
    def _(problem, x):
        check_messages(problem.message_bytes, problem.graph.device)
        return lambda x: x.new_zeros(x.shape).index_add_(0, problem.graph.dst, x.index_select(0, problem.graph.src))

If it cannot do a case, it raises :class:`Unavailable` with the reason, which becomes the note of its row. An operator,
direction or device that it does not support gives no row. If a library raises an error only when it is called, the
runner notes that error in the same way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..operators import OPERATORS, Problem
from ..optional import Unavailable

Function = Callable[..., Tensor]  # of the operands; differentiable if the direction has a backward


@dataclass(frozen=True)
class _Ability:
    prepare: Callable[..., Function]  # of the problem and its operands; not timed
    directions: tuple[str, ...]
    devices: tuple[str, ...]
    one_head: bool

    def covers(self, problem: Problem) -> bool:
        fits = problem.direction in self.directions and problem.graph.device in self.devices
        return fits and (problem.heads == 1 or not self.one_head)


@dataclass(frozen=True)
class Competitor:
    """name: the name in its rows. option: the name in --baselines. checked: its results are those of the operator.

    everywhere: devices on which it takes part in every case. Elsewhere it takes part only for the main order of edge
    data at main_dim and, on a GPU, only in two dtypes.
    """

    name: str
    option: str
    everywhere: tuple[str, ...] = ()
    checked: bool = True
    abilities: dict[str, _Ability] = field(default_factory=dict)

    def does(
        self,
        *ops: str,
        directions: tuple[str, ...] = ("forward",),
        devices: tuple[str, ...] = ("cpu", "cuda"),
        one_head: bool = False,
    ) -> Callable[[Callable[..., Function]], Callable[..., Function]]:
        """Registers prepare(problem, *operands) for these operators. one_head: only for cases with one head."""
        unknown = set(ops) - set(OPERATORS)
        if unknown:
            raise ValueError(f"{self.name} does {sorted(unknown)}; expected some of {tuple(OPERATORS)}")

        def register(prepare: Callable[..., Function]) -> Callable[..., Function]:
            self.abilities.update(dict.fromkeys(ops, _Ability(prepare, directions, devices, one_head)))
            return prepare

        return register

    def offers(self, problem: Problem) -> bool:
        ability = self.abilities.get(problem.op)
        return ability is not None and ability.covers(problem)

    def prepare(self, problem: Problem, operands: tuple[Tensor, ...]) -> Function:
        """The function that is timed. Raises Unavailable with the reason if it cannot do the problem."""
        return self.abilities[problem.op].prepare(problem, *operands)


ALL: list[Competitor] = []  # in the order of their rows
ANY_DIRECTION = ("forward", "forward+backward", "backward")


def competitor(name: str, option: str = "", everywhere: tuple[str, ...] = (), checked: bool = True) -> Competitor:
    """A new entry of ALL."""
    ALL.append(Competitor(name, option or name, everywhere, checked))
    return ALL[-1]


MESSAGE_BYTES = 2 << 30  # limit on a CPU for one row of features per edge
_WORKING_BYTES = 8 << 30  # that stay free on a GPU, for the results of all backends


def check_messages(needed: int, device: str) -> None:
    """Raises Unavailable if messages of `needed` bytes do not fit."""
    room = MESSAGE_BYTES
    if device == "cuda":
        room = (
            torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved() - torch.cuda.memory_allocated() - _WORKING_BYTES
        )
    if needed > room:
        raise Unavailable(f"its messages would take {needed / 2**30:.1f} GiB")
