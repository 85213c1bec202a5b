"""Warps that run a program together: their registers, and how their lanes part, meet and wait.

The lanes that run next are those, of all warps, at the lowest address; they run until they part, wait or come to where others
are. So warps that do the same do it at the same time. Lanes of a warp that have parted are together again where the program
says so (BSYNC, WARPSYNC). Lanes that wait for others that never come are an error.
"""

from __future__ import annotations

import numpy as np

from . import data, floats, integers, matrices  # noqa: F401 (they fill the table of instructions)
from .operands import LANES, PT, RZ, URZ, EmulatorError, ballot, decode, predicate, u32
from .program import RESERVED_SHARED, Program

GARBAGE = 0xCDCDCDCD  # what registers and shared memory begin with
NOTHING = -1  # what a lane waits for; or the number of its barrier
SYNC_WARP, SYNC_BLOCK = 16, 17
_FAR = 1 << 30
_CONTROL = ("BRA", "EXIT", "CALL", "RET", "BSSY", "BSYNC", "BREAK", "WARPSYNC", "BAR")
_IDLE = ("NOP", "YIELD", "ENDCOLLECTIVE", "ERRBAR", "CGAERRBAR", "MEMBAR", "LDGDEPBAR", "DEPBAR")


class Warps:
    """Whole blocks of a launch, with the state of their lanes."""

    def __init__(
        self, program: Program, bank: np.ndarray, blocks: list[tuple[int, int, int]], block_shape, shared_bytes: int
    ):
        threads = int(np.prod(block_shape))
        per_block = -(-threads // LANES)
        self.program, self.bank, self.per_block = program, bank, per_block
        self.count = len(blocks) * per_block
        self.shape = (self.count, LANES)
        self.registers = np.full((256, *self.shape), GARBAGE, np.uint32)
        self.registers[RZ] = 0
        self.uniform = np.full((64, self.count, 1), GARBAGE, np.uint32)
        self.uniform[URZ] = 0
        self.predicates, self.uniform_predicates = (np.zeros((8, self.count, n), bool) for n in (LANES, 1))
        self.predicates[PT] = self.uniform_predicates[PT] = True
        self.shared_reserved = RESERVED_SHARED
        self.shared_bytes = -(-(program.shared_bytes + shared_bytes) // 16) * 16
        self.shared = np.full(len(blocks) * self.shared_bytes // 4, GARBAGE, np.uint32)
        block_of = np.arange(self.count) // per_block
        self.shared_starts = (block_of * self.shared_bytes)[:, None]
        thread = np.arange(self.count * LANES).reshape(self.shape) % (per_block * LANES)
        self.special = self._special(thread, np.asarray(blocks)[block_of], block_shape)
        # Of every lane: where it is, whether it is over, what it waits for.
        self.at = np.zeros(self.shape, np.int32)
        self.exited = thread >= threads
        self.waits = np.full(self.shape, NOTHING, np.int8)
        self.group = np.zeros(self.shape, np.int32)  # lanes of a warp that are together
        self._groups = 0
        self.masks = np.zeros((SYNC_WARP + 1, *self.shape), np.uint32)  # lanes to meet, by barrier
        self.meeting = np.zeros((SYNC_WARP + 1, *self.shape), np.int32)  # and where to go on
        self.issued = np.zeros(len(program.instructions), np.int64)
        self._decoded: list = [None] * len(program.instructions)
        self._alone = False  # whether no other lanes can run

    @staticmethod
    def _special(thread, block, block_shape) -> dict[str, np.ndarray]:
        lane = np.broadcast_to(np.arange(LANES, dtype=np.uint32), thread.shape)
        found = {"LANEID": lane, "CgaCtaId": np.zeros_like(lane), "EQMASK": np.uint32(1) << lane}
        found["LTMASK"] = found["EQMASK"] - np.uint32(1)
        x, y = block_shape[:2]
        for name, index in zip("XYZ", (thread % x, thread // x % y, thread // (x * y))):
            found[f"TID.{name}"] = index.astype(np.uint32)
        for k, name in enumerate("XYZ"):
            found[f"CTAID.{name}"] = np.broadcast_to(block[:, k : k + 1], thread.shape).astype(np.uint32)
        return found

    def constant(self, offset: int) -> np.uint32:
        if not 0 <= offset <= len(self.bank) - 4:
            raise EmulatorError(f"c[0x0][{offset:#x}] is beyond the parameters of {self.program.name}")
        return self.bank[offset : offset + 4].view(np.uint32)[0]

    # ---- running -----------------------------------------------------------------------------

    def run(self) -> None:
        with np.errstate(all="ignore"):
            while True:
                runnable = ~self.exited & (self.waits == NOTHING)
                if not runnable.any():
                    if self.exited.all():
                        return
                    raise EmulatorError(
                        f"{self.program.name}: lanes wait for others that never come\n{self._describe()}"
                    )
                at = int(self.at[runnable].min())
                active = runnable & (self.at == at)
                active &= self.group == np.where(active, self.group, _FAR).min(1, keepdims=True)
                others = self.at[runnable & ~active]
                self._alone = len(others) == 0
                others = others[others > at]
                self._run(at, active, int(others.min()) if len(others) else _FAR)

    def _run(self, at: int, active: np.ndarray, limit: int) -> None:
        """Until these lanes part or wait, or are at `limit` or beyond."""
        of_warps = active.any(1, keepdims=True)
        running = int(of_warps.sum())
        lanes = None if active.all() else active
        warps = None if running == self.count else of_warps
        first = at
        while at is not None and at < limit:
            execute = self._decoded[at] or self._decode(at)
            if execute.__class__ is tuple:  # a jump, a barrier
                self.issued[first : at + 1] += running
                at = first = execute[0](at, active)
            else:
                execute(lanes, warps)
                at += 1
        if at is not None:
            self.issued[first:at] += running
            self.at[active] = at

    def _decode(self, at: int):
        i = self.program.instructions[at]
        if i.opcode in _CONTROL:
            made = (getattr(self, f"_{i.opcode.lower()}")(i),)
        elif i.opcode in _IDLE:
            made = lambda lanes, warps: None  # noqa: E731
        else:
            made = self._guarded(i, decode(self, i))
        self._decoded[at] = made
        return made

    def _guarded(self, i, execute):
        """With the lanes, or the warps, that the instruction is for."""
        of_warps = i.opcode.startswith("U") or (i.predicate or "").lstrip("!").startswith("U")
        if i.predicate is None:
            return (lambda lanes, warps: execute(warps)) if of_warps else (lambda lanes, warps: execute(lanes))
        read = predicate(self, i.predicate)
        # An instruction may write its own predicate, a carry, before it has written the rest.
        holds = (lambda: read().copy()) if i.predicate in i.operands else read

        def guarded(lanes, warps):
            active = warps if of_warps else lanes
            guard = holds() if active is None else holds() & active
            if guard.any():
                execute(guard)

        return guarded

    # ---- jumps -------------------------------------------------------------------------------

    def _taken(self, i):
        """A function of the lanes that run: those for which the instruction's predicates hold."""
        names = [i.predicate] if i.predicate else []
        names += [text for text in i.operands if text.lstrip("!U").startswith("P")]
        holds = [predicate(self, name) for name in names]

        def taken(active):
            for read in holds:
                active = active & read()
            return active

        return taken

    def _target(self, i) -> int:
        label = i.operands[-1].strip("`()")
        if label not in self.program.labels:
            raise EmulatorError(f"unknown label: {i.text}")
        return self.program.labels[label]

    def _go(self, at: int, active, taken, target: int) -> int | None:
        count = np.count_nonzero(taken)
        if count == 0:
            return at + 1
        if count == np.count_nonzero(active):
            if target > at or self._alone:
                return target
            self.at[active] = target  # backwards: others may be there
            return None
        self.at[active] = at + 1
        self.at[taken] = target
        self.group[taken] = self._new_group()
        return None

    def _new_group(self) -> int:
        self._groups += 1
        return self._groups

    def _bra(self, i):
        target = self._target(i)
        if unknown := [name for name in i.modifiers if name not in ("U", "DIV", "CONV")]:
            raise EmulatorError(f"unknown modifier .{unknown[0]}: {i.text}")
        if "DIV" in i.modifiers or "CONV" in i.modifiers:
            return self._bra_divergent(i, target)
        taken = self._taken(i)
        return lambda at, active: self._go(at, active, taken(active), target)

    def _bra_divergent(self, i, target: int):
        """DIV: taken by warps of which not all the lanes that the first operand names run together."""
        mask, taken = u32(self, i.operands[0].lstrip("~")), self._taken(i)
        inverted = i.operands[0].startswith("~")

        def execute(at, active):
            named = ~mask() if inverted else mask()
            apart = (named & ~ballot(active)) != 0
            apart = apart if "DIV" in i.modifiers else ~apart
            return self._go(at, active, taken(active) & apart, target)

        return execute

    def _call(self, i):
        if "REL" not in i.modifiers:
            raise EmulatorError(f"unknown instruction: {i.text}")
        target, taken = self._target(i), self._taken(i)
        return lambda at, active: self._go(at, active, taken(active), target)

    def _ret(self, i):
        address, taken = u32(self, i.operands[0]), self._taken(i)

        def execute(at, active):
            lanes, places = taken(active), (address() >> np.uint32(4)).astype(np.int32)
            self.at[active] = at + 1
            self.at[lanes] = places[lanes]
            for place in np.unique(places[lanes]):
                self.group[lanes & (places == place)] = self._new_group()

        return execute

    def _exit(self, i):
        taken = self._taken(i)

        def execute(at, active):
            lanes = taken(active)
            if not lanes.any():
                return at + 1
            self.at[active] = at + 1
            self.exited |= lanes
            for barrier in np.unique(self.waits[~self.exited]):
                self._release(int(barrier))
            return None

        return execute

    # ---- barriers ----------------------------------------------------------------------------

    def _bssy(self, i):
        barrier, target = int(i.operands[0][1:]), self._target(i)

        def execute(at, active):
            np.copyto(self.masks[barrier], ballot(active), where=active)
            np.copyto(self.meeting[barrier], target, where=active)
            return at + 1

        return execute

    def _bsync(self, i):
        barrier, taken = int(i.operands[0][1:]), self._taken(i)
        masks, meeting = self.masks[barrier], self.meeting[barrier]

        def execute(at, active):
            lanes = taken(active)
            places = meeting[lanes]
            self.at[active] = at + 1
            if not len(places):
                return at + 1
            self.at[lanes] = places
            together = (masks == ballot(lanes))[lanes].all()
            if together and lanes is active and (places == at + 1).all():
                return at + 1
            if not together:
                self.waits[lanes] = barrier
                self._release(barrier)
            return None

        return execute

    def _break(self, i):
        barrier, taken = int(i.operands[-1][1:]), self._taken(i)

        def execute(at, active):
            gone, masks = ballot(taken(active)), self.masks[barrier]
            shared = (masks & gone) != 0
            np.copyto(masks, masks & ~gone, where=shared)
            self._release(barrier)
            return at + 1

        return execute

    def _warpsync(self, i):
        named = np.uint32(0xFFFFFFFF)
        read = (lambda: named) if "ALL" in i.modifiers else u32(self, i.operands[0])
        taken = self._taken(i)

        def execute(at, active):
            lanes, mask = taken(active), np.broadcast_to(read(), self.shape)
            self.at[active] = at + 1
            if not (mask & lanes_bits)[lanes].all():
                raise EmulatorError(f"a lane that its mask does not name: {i.text}")
            if (mask & ~ballot(lanes))[lanes].any():
                np.copyto(self.masks[SYNC_WARP], mask, where=lanes)
                self.waits[lanes] = SYNC_WARP
                self._release(SYNC_WARP)
                return None
            return at + 1

        lanes_bits = np.uint32(1) << np.arange(LANES, dtype=np.uint32)
        return execute

    def _bar(self, i):
        if i.modifiers != ("SYNC", "DEFER_BLOCKING") or len(i.operands) != 1:
            raise EmulatorError(f"unknown instruction: {i.text}")
        taken = self._taken(i)

        def execute(at, active):
            self.at[active] = at + 1
            self.waits[taken(active)] = SYNC_BLOCK
            self._release(SYNC_BLOCK)

        return execute

    def _release(self, barrier: int) -> None:
        """Those of a barrier whose lanes have all arrived or exited."""
        if barrier == NOTHING:
            return
        waiting = self.waits == barrier
        if barrier == SYNC_BLOCK:
            arrived = (waiting | self.exited).reshape(-1, self.per_block * LANES).all(1)
            self.waits[waiting & np.repeat(arrived, self.per_block)[:, None]] = NOTHING
            return
        masks, gone = self.masks[barrier], ballot(self.exited)
        for warp in np.flatnonzero(waiting.any(1)):
            for mask in np.unique(masks[warp][waiting[warp]]):
                here = waiting[warp] & (masks[warp] == mask)
                if mask & ~(ballot(here[None])[0, 0] | gone[warp, 0]) == 0:
                    self.waits[warp, here] = NOTHING
                    self.group[warp, here] = self._new_group()

    def _describe(self) -> str:
        lines = []
        for warp in np.flatnonzero(~self.exited.all(1))[:4]:
            for at in np.unique(self.at[warp][~self.exited[warp]]):
                here = ~self.exited[warp] & (self.at[warp] == at)
                text = self.program.instructions[max(at - 1, 0)].text
                lines.append(f"warp {warp}, lanes {ballot(here[None])[0, 0]:#010x} after {text}")
        return "\n".join(lines)
