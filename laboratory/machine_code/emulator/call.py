"""A launch: what a kernel is called with, and what it executed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from .data import look_for_memory
from .program import PARAMETERS, Program
from .warp import Warps

TOGETHER = 64  # warps that run at a time, about


@dataclass(frozen=True)
class Call:
    program: Program
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int  # dynamic
    parameters: bytes

    @property
    def blocks(self) -> int:
        return self.grid[0] * self.grid[1] * self.grid[2]

    @property
    def warps_of_block(self) -> int:
        return -(-self.block[0] * self.block[1] * self.block[2] // 32)

    def bank(self) -> np.ndarray:
        """Constant bank 0: the shape of the launch, then its parameters."""
        bank = np.zeros(PARAMETERS + max(len(self.parameters), 16), np.uint8)
        bank[: 6 * 4].view(np.uint32)[:] = [*self.block, *self.grid]
        bank[PARAMETERS : PARAMETERS + len(self.parameters)] = np.frombuffer(self.parameters, np.uint8)
        return bank


@dataclass
class Counts:
    """What some blocks of a launch executed."""

    call: Call
    blocks: int
    issued: np.ndarray  # by instruction: how many warps issued it

    @property
    def total(self) -> int:
        return int(self.issued.sum())

    def by_opcode(self) -> Counter:
        found: Counter = Counter()
        for instruction, count in zip(self.call.program.instructions, self.issued):
            found[instruction.opcode] += int(count)
        return found


def run(call: Call, blocks: Iterable[int] | None = None) -> Counts:
    """Executes a launch, or some blocks of it."""
    look_for_memory()
    chosen = list(range(call.blocks) if blocks is None else blocks)
    issued = np.zeros(len(call.program.instructions), np.int64)
    bank, at_once = call.bank(), max(1, TOGETHER // call.warps_of_block)
    x, y, _ = call.grid
    for first in range(0, len(chosen), at_once):
        indices = [(b % x, b // x % y, b // (x * y)) for b in chosen[first : first + at_once]]
        warps = Warps(call.program, bank, indices, call.block, call.shared_bytes)
        warps.run()
        issued += warps.issued
    return Counts(call, len(chosen), issued)
