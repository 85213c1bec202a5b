"""Operands of instructions, and the table of what instructions do.

A function of the table takes the warps that run (warp.Warps) and a parsed instruction, and returns what executes it: a function
of the guard, the lanes that it is for. The guard is None for all lanes. Arrays are (warps, 32); those of uniform registers are
(warps, 1) and broadcast.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

Guard = np.ndarray | None
Execute = Callable[[Guard], None]
Read = Callable[[], np.ndarray]

LANES = 32
RZ, URZ, PT = 255, 63, 7  # registers that are constants


class EmulatorError(RuntimeError):
    """What the machine would not do, or what the emulator does not know."""


TABLE: dict[str, tuple[Callable, frozenset[str]]] = {}


def instruction(*opcodes: str, modifiers: str = ""):
    """Enters a function in the table, with the modifiers that it knows."""

    def enter(function):
        for opcode in opcodes:
            TABLE[opcode] = (function, frozenset(modifiers.split()))
        return function

    return enter


def decode(warps, parsed) -> Execute:
    if parsed.opcode not in TABLE:
        raise EmulatorError(f"unknown instruction: {parsed.text}")
    function, known = TABLE[parsed.opcode]
    if unknown := [name for name in parsed.modifiers if name not in known]:
        raise EmulatorError(f"unknown modifier .{unknown[0]}: {parsed.text}")
    try:
        return function(warps, parsed)
    except (ValueError, AttributeError, IndexError, TypeError) as error:
        raise EmulatorError(f"operands that are not understood: {parsed.text} ({error})") from error


def is_predicate(text: str) -> bool:
    return re.fullmatch(r"!?U?P(\d|T)", text) is not None


def is_uniform(text: str) -> bool:
    return re.match(r"UR", text) is not None


def _sign(text: str) -> tuple[str, str, bool]:
    """Prefix (-, ~ or nothing), the rest, whether its magnitude is meant."""
    prefix = text[0] if text[0] in "-~" else ""
    rest = text[len(prefix) :]
    if rest.startswith("|"):
        return prefix, rest.strip("|"), True
    return prefix, rest, False


_REGISTER = re.compile(r"(U?)R(\d+|Z)((?:\.\w+)*)$")


def _array(warps, text: str, offset: int = 0):
    """The registers of all warps that a name without modifiers stands for; None if it is no register."""
    match = _REGISTER.match(text)
    if match is None or match.group(3) not in ("", ".64"):
        return None
    uniform, number = match.group(1), match.group(2)
    if number == "Z":
        return warps.uniform[URZ] if uniform else warps.registers[RZ]
    return (warps.uniform if uniform else warps.registers)[int(number) + offset]


# ---- sources -------------------------------------------------------------------------------------


def u32(warps, text: str, offset: int = 0) -> Read:
    """Bits of a register, an immediate value or a constant; - and ~ as for integers. offset: the registers that follow."""
    prefix, name, magnitude = _sign(text)
    if magnitude:
        raise EmulatorError(f"the magnitude of an integer: {text}")
    array = _array(warps, name, offset)
    if array is None:
        value = _scalar(warps, name, offset)
        if prefix:
            value = np.uint32((~int(value) + (prefix == "-")) & 0xFFFFFFFF)
        return lambda: value
    if prefix == "-":
        return lambda: np.negative(array)
    if prefix == "~":
        return lambda: np.invert(array)
    return lambda: array


def _scalar(warps, name: str, offset: int = 0) -> np.uint32:
    if match := re.fullmatch(r"c\[0x0\]\[(0x[0-9a-f]+)\]", name):
        return warps.constant(int(match.group(1), 16) + 4 * offset)
    return np.uint32(int(name, 0) & 0xFFFFFFFF) if offset == 0 else np.uint32(0)


def i32(warps, text: str) -> Read:
    read = u32(warps, text)
    return lambda: read().view(np.int32)


def u64(warps, text: str) -> Read:
    """A register and the next one; an immediate value or RZ is extended by zeros."""
    prefix, name, _ = _sign(text)
    low, high = u32(warps, name), u32(warps, name, 1)
    if prefix:
        raise EmulatorError(f"64 bits with a sign: {text}")
    return lambda: low().astype(np.uint64) | high().astype(np.uint64) << np.uint64(32)


def f32(warps, text: str) -> Read:
    prefix, name, magnitude = _sign(text)
    array = _array(warps, name)
    if array is None:
        value = np.float32(_float(name)) if not name.startswith("c[") else _scalar(warps, name).view(np.float32)
        value = np.abs(value) if magnitude else value
        value = np.negative(value) if prefix == "-" else value
        return lambda: value
    values = array.view(np.float32)
    if magnitude:
        return (lambda: -np.abs(values)) if prefix == "-" else (lambda: np.abs(values))
    return (lambda: np.negative(values)) if prefix == "-" else (lambda: values)


def _float(name: str) -> float:
    name = name.lstrip("+")
    if name in ("QNAN", "SNAN"):
        return float("nan")
    return float(int(name, 16)) if name.startswith("0x") else float(name)


def f64(warps, text: str) -> Read:
    prefix, name, magnitude = _sign(text)
    if _array(warps, name) is None:
        value = np.float64(_float(name))
        value = np.abs(value) if magnitude else value
        return lambda: -value if prefix == "-" else value
    bits = u64(warps, name)

    def read():
        values = bits().view(np.float64)
        values = np.abs(values) if magnitude else values
        return -values if prefix == "-" else values

    return read


def predicate(warps, text: str) -> Read:
    negated, name = text.startswith("!"), text.lstrip("!")
    uniform, number = name.startswith("U"), name[-1]
    array = (warps.uniform_predicates if uniform else warps.predicates)[PT if number == "T" else int(number)]
    return (lambda: ~array) if negated else (lambda: array)


# ---- destinations --------------------------------------------------------------------------------


def put(array: np.ndarray, values, guard: Guard) -> None:
    if guard is None:
        array[...] = values
    elif guard.shape[1] == array.shape[1]:
        np.copyto(array, values, where=guard)
    elif array.shape[1] == 1:  # a uniform register, written for the warps that have such a lane
        np.copyto(array, values, where=guard.any(1, keepdims=True))
    else:
        raise EmulatorError("a uniform instruction writes the registers of lanes")


def write(warps, text: str, offset: int = 0) -> Callable:
    """What puts bits in a register: uint32, int32 or float32."""
    array = _array(warps, text, offset)
    if text.endswith("RZ"):
        return lambda values, guard: None

    def store(values, guard):
        put(array, values.view(np.uint32), guard)

    return store


def write_pair(warps, text: str) -> Callable:
    low, high = write(warps, text), write(warps, text, 1)

    def store(values, guard):
        bits = values.view(np.uint64)
        low(bits.astype(np.uint32), guard)
        high((bits >> np.uint64(32)).astype(np.uint32), guard)

    return store


def write_predicate(warps, text: str) -> Callable:
    number = text[-1]
    if number == "T":
        return lambda values, guard: None
    array = (warps.uniform_predicates if text.startswith("U") else warps.predicates)[int(number)]
    return lambda values, guard: put(array, values, guard)


def leading_predicates(operands) -> tuple[list[str], list[str]]:
    """The destination, then predicates that are destinations too: split from the sources that follow."""
    count = 1
    while count < len(operands) and is_predicate(operands[count]):
        count += 1
    return list(operands[1:count]), list(operands[count:])


def ballot(lanes: np.ndarray) -> np.ndarray:
    """(warps, 1) words with a bit for each lane."""
    return np.packbits(lanes, axis=1, bitorder="little").view(np.uint32)


def lanes_of(word: np.ndarray) -> np.ndarray:
    """The lanes whose bits are set in (warps, 1) words."""
    return (word >> np.arange(LANES, dtype=np.uint32) & np.uint32(1)).astype(bool)
