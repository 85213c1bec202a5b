"""Constants, global and shared memory, shuffles, votes and special registers."""

from __future__ import annotations

import os
import re
from bisect import bisect

import numpy as np

from .operands import (
    LANES,
    EmulatorError,
    Execute,
    ballot,
    instruction,
    is_predicate,
    predicate,
    u32,
    write,
    write_predicate,
)

U32, I64 = np.uint32, np.int64
LANE = np.arange(LANES, dtype=U32)
WIDTHS = {"U8": 1, "S8": 1, "U16": 2, "S16": 2, "64": 8, "128": 16}
_CACHING = "E EF EL LU EU NA CONSTANT STRONG WEAK GPU SYS CTA SM LTC64B LTC128B LTC256B"
_SIZES = " ".join(["32", *WIDTHS])

# ---- global memory -------------------------------------------------------------------------------

_FIRST = 1 << 16  # nothing is at lower addresses
_SHADOW = 0x7FFF8000  # AddressSanitizer's shadow memory on x86-64 Linux: a byte for eight


class _Whole:
    """This process's memory from _FIRST on, as an array of numpy."""

    def __init__(self, kind: str):
        count = ((1 << 47) - _FIRST) // np.dtype(kind).itemsize
        self.__array_interface__ = {"shape": (count,), "typestr": kind, "data": (_FIRST, False), "version": 3}


_MEMORY = {size: np.asarray(_Whole(f"<u{size}")) for size in (1, 2, 4)}
_WATCHED = "libasan" in os.environ.get("LD_PRELOAD", "")


class _Mapped:
    """Where this process has memory to read and write."""

    def __init__(self):
        self.starts = self.ends = np.zeros(0, np.int64)

    def look(self) -> None:
        starts, ends = [], []
        with open("/proc/self/maps") as maps:
            for line in maps:
                addresses, mode, *_ = line.split()
                start, end = (int(address, 16) for address in addresses.split("-"))
                if not mode.startswith("rw") or end > 1 << 47:
                    continue
                if ends and ends[-1] == start:
                    ends[-1] = end
                else:
                    starts.append(start)
                    ends.append(end)
        self.starts, self.ends = np.array(starts, np.int64), np.array(ends, np.int64)

    def missing(self, addresses: np.ndarray, size: int) -> int | None:
        """One of these addresses without memory; None if all have some."""
        lowest, highest = addresses.min(), addresses.max()
        k = bisect(self.starts, lowest) - 1
        if k >= 0 and highest + size <= self.ends[k]:
            return None
        places = np.searchsorted(self.starts, addresses, "right") - 1
        outside = (places < 0) | (addresses > self.ends[places] - size)
        return int(addresses[outside][0]) if outside.any() else None


_mapped = _Mapped()
look_for_memory = _mapped.look  # before each launch


def _check_global(addresses: np.ndarray, size: int, text: str) -> None:
    """Under AddressSanitizer it knows which bytes belong to an allocation: a shadow of 0 says all eight, k the first k."""
    if (addresses & (size - 1)).any():
        raise EmulatorError(f"a misaligned address: {text}")
    if (missing := _mapped.missing(addresses, size)) is not None:
        raise EmulatorError(f"an address without memory, {missing:#x}: {text}")
    if not _WATCHED:
        return
    last = addresses + (size - 1)
    for byte in (addresses, last) if size == 16 else (last,):
        shadow = _MEMORY[1][(byte >> 3) + (_SHADOW - _FIRST)].view(np.int8)
        if shadow.any() and ((shadow != 0) & ((byte & 7) >= shadow)).any():
            raise EmulatorError(f"outside of an allocation: {text}")


# ---- addresses -----------------------------------------------------------------------------------


def _address(warps, text: str):
    """[R2.64+UR4+0x10] and the like, without a descriptor."""
    inside = re.search(r"\[([^\[\]]*)\]$", text).group(1)
    terms = re.findall(r"([^+]+)", inside)
    reads, constant, scale = [], 0, 1
    wide = ".64" in inside
    for term in terms:
        name, *parts = term.split(".")
        if re.match(r"-?0x", name):
            constant += int(name, 16)
        elif re.match(r"U?R", name):
            if unknown := [part for part in parts if part not in ("64", "U32", "X4", "X8", "X16")]:
                raise EmulatorError(f"a part .{unknown[0]} of an address")
            scale = next((int(part[1:]) for part in parts if part[0] == "X"), 1)
            is_pair = "64" in parts or (wide and name.startswith("U"))
            reads.append((u32(warps, name), u32(warps, name, 1) if is_pair else None, I64(scale)))
        else:
            raise EmulatorError(f"an address of {term}")

    def read() -> np.ndarray:
        total = I64(constant)
        for low, high, factor in reads:
            value = low().astype(I64)
            if high is not None:
                value = value | high().astype(I64) << 32
            total = total + (value if factor == 1 else value * factor)
        return total if wide else total & 0xFFFFFFFF

    return read


def _size(i) -> int:
    return next((WIDTHS[name] for name in i.modifiers if name in WIDTHS), 4)


def _extended(values: np.ndarray, modifiers) -> np.ndarray:
    if "S8" in modifiers:
        return values.astype(np.int8).astype(np.int32).view(U32)
    if "S16" in modifiers:
        return values.astype(np.int16).astype(np.int32).view(U32)
    return values.astype(U32)


_DUMMY = np.zeros(64, np.uint8)  # what lanes that take no part read


class _Global:
    """Loads and stores of a warp's lanes in this process's memory."""

    def __init__(self, i):
        self.text, self.size, self.unit = i.text, _size(i), min(_size(i), 4)
        self.memory, self.words = _MEMORY[self.unit], max(1, _size(i) // 4)
        self.dummy = (_DUMMY.ctypes.data + 15) & ~15

    def places(self, addresses, guard, warps) -> np.ndarray:
        """Indices of the words: (words, warps, 32)."""
        if guard is not None:
            addresses = np.where(guard, addresses, self.dummy)
        _check_global(addresses, self.size, self.text)
        first = addresses - _FIRST >> self.unit.bit_length() - 1
        return first + np.arange(self.words).reshape(-1, 1, 1)


class _Shared(_Global):
    """In the shared memory of a warp's block."""

    def places(self, addresses, guard, warps):
        if guard is not None:
            addresses = np.where(guard, addresses, warps.shared_reserved)
        if (addresses & (self.size - 1)).any():
            raise EmulatorError(f"a misaligned address: {self.text}")
        if ((addresses < warps.shared_reserved) | (addresses + self.size > warps.shared_bytes)).any():
            raise EmulatorError(f"outside of shared memory: {self.text}")
        self.memory = warps.shared.view(f"u{self.unit}")
        first = addresses + warps.shared_starts >> self.unit.bit_length() - 1
        return first + np.arange(self.words).reshape(-1, 1, 1)


@instruction("LDG", "LD", "LDS", modifiers=f"{_CACHING} {_SIZES}")
def _load(warps, i) -> Execute:
    d, text = i.operands
    address, access = _address(warps, text), (_Shared if i.opcode == "LDS" else _Global)(i)
    stores = [write(warps, d, k) for k in range(access.words)]

    def execute(guard):
        places = access.places(np.broadcast_to(address(), warps.shape), guard, warps)
        values = access.memory[places]
        for store, word in zip(stores, values):
            store(_extended(word, i.modifiers), guard)

    return execute


@instruction("STG", "ST", "STS", modifiers=f"{_CACHING} {_SIZES}")
def _store(warps, i) -> Execute:
    text, source = i.operands
    address, access = _address(warps, text), (_Shared if i.opcode == "STS" else _Global)(i)
    reads = [u32(warps, source, k) for k in range(access.words)]
    kind = np.dtype(f"u{access.unit}")

    def execute(guard):
        places = access.places(np.broadcast_to(address(), warps.shape), guard, warps)
        for place, read in zip(places, reads):
            word = np.broadcast_to(read(), warps.shape).astype(kind)
            if guard is None:
                access.memory[place] = word
            else:
                access.memory[place[guard]] = word[guard]

    return execute


@instruction("LDGSTS", modifiers=f"BYPASS {_CACHING} {_SIZES}")
def _copy(warps, i) -> Execute:
    """Done at once: that they are waited for is the simulator's to see."""
    target, source, *exists = i.operands
    to, at, into, access = _address(warps, target), _address(warps, source), _Shared(i), _Global(i)

    holds = predicate(warps, exists[0]) if exists else None

    def execute(guard):
        reads = guard if holds is None else _all(warps, guard) & holds()
        values = access.memory[access.places(np.broadcast_to(at(), warps.shape), reads, warps)]
        values = values if holds is None else values * holds()
        places = into.places(np.broadcast_to(to(), warps.shape), guard, warps)
        for place, word in zip(places, values):
            lanes = slice(None) if guard is None else guard
            into.memory[place[lanes]] = word[lanes]

    return execute


@instruction("CCTL", modifiers="E PF2 IVALL")
def _cache_control(warps, i) -> Execute:
    """Changes nothing, but what is prefetched has to exist."""
    if "PF2" not in i.modifiers:
        return lambda guard: None
    at = _address(warps, i.operands[0].replace("]", ".64]"))

    def execute(guard):
        addresses = np.broadcast_to(at(), warps.shape)
        _check_global(addresses[_all(warps, guard)], 1, i.text)

    return execute


@instruction("ATOMG", modifiers="E ADD STRONG GPU")
def _atomic_add(warps, i) -> Execute:
    """Of 32 bits. Lanes come one after the other."""
    out, d, text, source = i.operands
    if out != "PT" or "ADD" not in i.modifiers:
        raise EmulatorError(f"an atomic of another kind: {i.text}")
    address, access, value, store = _address(warps, text), _Global(i), u32(warps, source), write(warps, d)

    def execute(guard):
        places = access.places(np.broadcast_to(address(), warps.shape), guard, warps)[0]
        added, before = np.broadcast_to(value(), warps.shape), np.zeros(warps.shape, U32)
        for lane in zip(*_all(warps, guard).nonzero()):
            before[lane] = access.memory[places[lane]]
            access.memory[places[lane]] = before[lane] + added[lane]
        store(before, guard)

    return execute


# ---- constants -----------------------------------------------------------------------------------


@instruction("LDC", "ULDC", modifiers=_SIZES)
def _constant(warps, i) -> Execute:
    """Of bank 0, at an offset that a register may add to."""
    d, text = i.operands
    match = re.fullmatch(r"c\[0x0\]\[(?:(U?R\w+)\+?)?(-?0x[0-9a-f]+)?\]", text)
    if match is None:
        raise EmulatorError(f"a constant of another bank: {text}")
    size, offset = _size(i), int(match.group(2) or "0", 16)
    register = u32(warps, match.group(1)) if match.group(1) else None
    stores = [write(warps, d, k) for k in range(max(1, size // 4))]
    if register is None and size >= 4:
        values = [warps.constant(offset + 4 * k) for k in range(len(stores))]

        def execute(guard):
            for store, value in zip(stores, values):
                store(value, guard)

        return execute
    bank = warps.bank

    def at_register(guard):
        start = np.asarray(I64(offset) if register is None else register().astype(I64) + offset)
        if guard is not None and start.ndim and start.shape[1] == LANES:
            start = np.where(guard, start, 0)
        for k, store in enumerate(stores):
            octets = [bank[start + 4 * k + n].astype(U32) << U32(8 * n) for n in range(min(size, 4))]
            store(_extended(np.bitwise_or.reduce(octets), i.modifiers), guard)

    return at_register


# ---- special registers ---------------------------------------------------------------------------


@instruction("S2R", "S2UR")
def _special(warps, i) -> Execute:
    store, name = write(warps, i.operands[0]), i.operands[1].rstrip("]").removeprefix("SR_")
    if name not in warps.special:
        raise EmulatorError(f"unknown special register: {i.text}")
    values = warps.special[name]
    if i.opcode == "S2UR":
        values = values[:, :1]
    return lambda guard: store(values, guard)


@instruction("CS2R", modifiers="32")
def _clear(warps, i) -> Execute:
    d, name = i.operands
    if name != "SRZ":
        raise EmulatorError(f"unknown special register: {i.text}")
    stores = [write(warps, d, k) for k in range(1 if "32" in i.modifiers else 2)]

    def execute(guard):
        for store in stores:
            store(U32(0), guard)

    return execute


# ---- between lanes -------------------------------------------------------------------------------


def _all(warps, guard) -> np.ndarray:
    return np.ones(warps.shape, bool) if guard is None else guard


@instruction("SHFL", modifiers="IDX UP DOWN BFLY")
def _shuffle(warps, i) -> Execute:
    out, d, a_text, b_text, c_text = i.operands
    mode = i.modifiers[0]
    a, b, c = u32(warps, a_text), u32(warps, b_text), u32(warps, c_text)
    store, valid = write(warps, d), write_predicate(warps, out)

    def execute(guard):
        lane, clamp = b() & U32(31), c()
        segment = clamp >> U32(8) & U32(31)
        lowest, highest = LANE & segment, (LANE & segment) | (clamp & U32(31) & ~segment)
        if mode == "IDX":
            source = lowest | (lane & ~segment)
        elif mode == "BFLY":
            source = LANE ^ lane
        else:
            source = LANE.astype(np.int32) + (lane.astype(np.int32) if mode == "DOWN" else -lane.astype(np.int32))
        inside = source >= highest.astype(np.int32) if mode == "UP" else source <= highest
        source = np.broadcast_to(np.where(inside, source, LANE).astype(np.intp), warps.shape)
        if guard is not None and (guard & ~np.take_along_axis(guard, source, 1)).any():
            raise EmulatorError(f"a lane shuffles from one that does not take part: {i.text}")
        values = np.take_along_axis(np.broadcast_to(a(), warps.shape), source, 1)
        store(values, guard)
        valid(inside, guard)

    return execute


@instruction("VOTE", "VOTEU", modifiers="ANY ALL EQ")
def _vote(warps, i) -> Execute:
    *outs, source = i.operands
    read, mode = predicate(warps, source), i.modifiers[0]
    words = [write(warps, out) for out in outs if not is_predicate(out)]
    votes = [write_predicate(warps, out) for out in outs if is_predicate(out)]

    def execute(guard):
        lanes = _all(warps, guard)
        holds = lanes & read()
        for store in words:
            store(ballot(holds), guard)
        any_, all_ = holds.any(1, keepdims=True), (holds == lanes).all(1, keepdims=True)
        result = any_ if mode == "ANY" else all_ if mode == "ALL" else all_ | ~any_
        for store in votes:
            store(result, guard)

    return execute


@instruction("R2UR")
def _to_uniform(warps, i) -> Execute:
    """Of the first lane that takes part."""
    store, a = write(warps, i.operands[0]), u32(warps, i.operands[1])

    def execute(guard):
        first = _all(warps, guard).argmax(1)[:, None]
        store(np.take_along_axis(np.broadcast_to(a(), warps.shape), first, 1), guard)

    return execute


_REDUCE = {
    "MAX": np.maximum,
    "MIN": np.minimum,
    "SUM": np.add,
    "OR": np.bitwise_or,
    "AND": np.bitwise_and,
    "XOR": np.bitwise_xor,
}


@instruction("REDUX", modifiers="S32 " + " ".join(_REDUCE))
def _redux(warps, i) -> Execute:
    store, a = write(warps, i.operands[0]), u32(warps, i.operands[1])
    function = _REDUCE[next((name for name in i.modifiers if name in _REDUCE), "SUM")]
    kind = np.int32 if "S32" in i.modifiers else U32
    # What changes nothing, for lanes that take no part.
    ends = np.iinfo(kind)
    idle = {np.maximum: ends.min, np.minimum: ends.max, np.bitwise_and: -1 if kind is np.int32 else ends.max}.get(
        function, 0
    )

    def execute(guard):
        values = np.where(_all(warps, guard), a().view(kind), kind(idle))
        store(function.reduce(values, axis=1, keepdims=True, dtype=kind), guard)

    return execute
