"""Instructions on fp32, fp64 and pairs of halves. Results are rounded once, to nearest, but as noted.

The approximations of the machine's function unit (MUFU) are replaced by correctly rounded values. Fused products of fp64 are
rounded from 64 bits of mantissa.
"""

from __future__ import annotations

import functools
import operator

import numpy as np

from .operands import (
    EmulatorError,
    Execute,
    _float,
    f32,
    f64,
    instruction,
    predicate,
    u32,
    u64,
    write,
    write_pair,
    write_predicate,
)

F32, F64, U32, U64 = np.float32, np.float64, np.uint32, np.uint64


# ---- fp32 ----------------------------------------------------------------------------------------


def _finished(values: np.ndarray, modifiers) -> np.ndarray:
    return np.fmin(np.fmax(values, F32(0)), F32(1)) if "SAT" in modifiers else values


@instruction("FADD", modifiers="FTZ SAT")
def _fadd(warps, i) -> Execute:
    store, a, b = write(warps, i.operands[0]), f32(warps, i.operands[1]), f32(warps, i.operands[2])
    return lambda guard: store(_finished(a() + b(), i.modifiers), guard)


@instruction("FMUL", modifiers="FTZ SAT")
def _fmul(warps, i) -> Execute:
    store, a, b = write(warps, i.operands[0]), f32(warps, i.operands[1]), f32(warps, i.operands[2])
    return lambda guard: store(_finished(a() * b(), i.modifiers), guard)


def fused(a, b, c, rounding: str = "RN") -> np.ndarray:
    """a * b + c of fp32 values, rounded once (below the smallest normal number: perhaps twice)."""
    product = np.multiply(a, b, dtype=F64)  # exact
    total = product + c
    if rounding != "RN":
        return _directed(total, rounding)
    tie = total.view(U64) & U64(0x1FFFFFFF) == U64(0x10000000)
    if tie.any():  # it may be one because of the first rounding: step to where the rest lies
        back = total - product
        rest = (product - (total - back)) + (c - back)
        towards = np.where(rest > 0, np.inf, -np.inf)
        total = np.where(tie & (rest != 0) & np.isfinite(total), np.nextafter(total, towards), total)
    return total.astype(F32)


def _directed(values: np.ndarray, rounding: str, kind=F32) -> np.ndarray:
    nearest = values.astype(kind)
    if rounding == "RN":
        return nearest
    if rounding == "RP":
        return np.where(nearest < values, np.nextafter(nearest, kind(np.inf)), nearest)
    if rounding == "RM":
        return np.where(nearest > values, np.nextafter(nearest, kind(-np.inf)), nearest)
    return np.where(np.abs(nearest) > np.abs(values), np.nextafter(nearest, kind(0)), nearest)


def _rounding(modifiers) -> str:
    return next((name for name in modifiers if name in ("RP", "RM", "RZ")), "RN")


@instruction("FFMA", modifiers="FTZ SAT RP RM RZ")
def _ffma(warps, i) -> Execute:
    store, (a, b, c) = write(warps, i.operands[0]), (f32(warps, text) for text in i.operands[1:])
    rounding = _rounding(i.modifiers)
    return lambda guard: store(_finished(fused(a(), b(), c(), rounding), i.modifiers), guard)


@instruction("FMNMX", modifiers="FTZ NAN")
def _fmnmx(warps, i) -> Execute:
    d, a_text, b_text, p = i.operands
    store, a, b, smaller = write(warps, d), f32(warps, a_text), f32(warps, b_text), predicate(warps, p)
    least, most = (np.minimum, np.maximum) if "NAN" in i.modifiers else (np.fmin, np.fmax)
    return lambda guard: store(np.where(smaller(), least(a(), b()), most(a(), b())), guard)


@instruction("FSEL", modifiers="FTZ")
def _fsel(warps, i) -> Execute:
    d, a_text, b_text, p = i.operands
    store, a, b, first = write(warps, d), f32(warps, a_text), f32(warps, b_text), predicate(warps, p)
    return lambda guard: store(np.where(first(), a(), b()), guard)


_ORDERED = {
    "LT": operator.lt, "LE": operator.le, "GT": operator.gt, "GE": operator.ge, "EQ": operator.eq,
    "NE": lambda a, b: (a < b) | (a > b), "NUM": lambda a, b: (a == a) & (b == b),
}  # fmt: skip
_OPPOSITE = {"LTU": "GE", "LEU": "GT", "GTU": "LE", "GEU": "LT", "EQU": "NE", "NEU": "EQ", "NAN": "NUM"}


def _comparison(name: str):
    """Those that end in U hold for NaN too."""
    if name in _OPPOSITE:
        opposite = _ORDERED[_OPPOSITE[name]]
        return lambda a, b: ~opposite(a, b)
    return _ORDERED[name]


_COMPARISONS = " ".join([*_ORDERED, *_OPPOSITE])
_COMBINE = {"AND": np.logical_and, "OR": np.logical_or, "XOR": np.logical_xor}


def _compare(modifiers):
    name = next(name for name in modifiers if name in _ORDERED or name in _OPPOSITE)
    return _comparison(name), next(_COMBINE[name] for name in modifiers if name in _COMBINE)


@instruction("FSETP", "DSETP", modifiers="FTZ AND OR XOR " + _COMPARISONS)
def _fsetp(warps, i) -> Execute:
    compare, combine = _compare(i.modifiers)
    first, second, a_text, b_text, with_text = i.operands
    read = f64 if i.opcode == "DSETP" else f32
    a, b, other = read(warps, a_text), read(warps, b_text), predicate(warps, with_text)
    stores = write_predicate(warps, first), write_predicate(warps, second)

    def execute(guard):
        found, combined = compare(a(), b()), other()
        results = combine(found, combined), combine(~found, combined)
        for store, result in zip(stores, results):
            store(result, guard)

    return execute


_FUNCTIONS = {
    "EX2": np.exp2, "LG2": np.log2, "RCP": lambda x: 1 / x, "RSQ": lambda x: 1 / np.sqrt(x), "SQRT": np.sqrt,
    "SIN": np.sin, "COS": np.cos, "TANH": np.tanh,
}  # fmt: skip


@instruction("MUFU", modifiers="RCP64H " + " ".join(_FUNCTIONS))
def _mufu(warps, i) -> Execute:
    store = write(warps, i.operands[0])
    if i.modifiers == ("RCP64H",):  # the upper word of 1 / x, of which the upper word is given
        upper = u32(warps, i.operands[1])

        def execute(guard):
            value = 1 / (upper().astype(U64) << U64(32)).view(F64)
            store((value.view(U64) >> U64(32)).astype(U32), guard)

        return execute
    function, a = _FUNCTIONS[i.modifiers[0]], f32(warps, i.operands[1])
    return lambda guard: store(function(a().astype(F64)).astype(F32), guard)


@instruction("FCHK")
def _fchk(warps, i) -> Execute:
    """Whether a division needs its slow path: for operands or results near the ends of the range, and divisors of zero."""
    store, a, b = write_predicate(warps, i.operands[0]), f32(warps, i.operands[1]), f32(warps, i.operands[2])

    def execute(guard):
        x, y = ((v().view(U32) >> U32(23) & U32(255)).astype(np.int32) for v in (a, b))
        extreme = (x == 255) | (y == 0) | (y >= 253)
        store(extreme | ((a() != 0) & ((x <= 24) | (x - y >= 126) | (x - y <= -125))), guard)

    return execute


# ---- fp64 ----------------------------------------------------------------------------------------


@instruction("DADD", "DMUL", "DFMA", modifiers="RP RM RZ")
def _double(warps, i) -> Execute:
    store, reads = write_pair(warps, i.operands[0]), [f64(warps, text) for text in i.operands[1:]]
    functions = {"DADD": operator.add, "DMUL": operator.mul, "DFMA": lambda a, b, c: a * b + c}
    function, rounding = functions[i.opcode], _rounding(i.modifiers)

    def execute(guard):
        values = function(*(np.asarray(read(), np.longdouble) for read in reads))
        store(_directed(values, rounding, F64), guard)

    return execute


# ---- pairs of halves -----------------------------------------------------------------------------


def widen(bits: np.ndarray, is_bf16: bool) -> tuple[np.ndarray, np.ndarray]:
    """The lower and the upper half of words, as fp32."""
    if is_bf16:
        return (bits << U32(16)).view(F32), (bits & U32(0xFFFF0000)).view(F32)
    low, high = bits.astype(np.uint16), (bits >> U32(16)).astype(np.uint16)
    return low.view(np.float16).astype(F32), high.view(np.float16).astype(F32)


def narrow(values: np.ndarray, is_bf16: bool) -> np.ndarray:
    """Bits of fp32 or fp64 values, rounded to a half, as words."""
    if not is_bf16:
        return values.astype(np.float16).view(np.uint16).astype(U32)
    bits = values.astype(F64).view(U64)  # keeps 7 bits of mantissa, to nearest even
    rounded = bits + U64((1 << 44) - 1) + (bits >> U64(45) & U64(1)) & ~U64((1 << 45) - 1)
    result = rounded.view(F64).astype(F32).view(U32) >> U32(16)
    small = np.abs(values) < 2.0**-126
    if small.any():  # their mantissa is shorter
        word = values.astype(F32).view(U32)
        result = np.where(small, word + U32(0x7FFF) + (word >> U32(16) & U32(1)) >> U32(16), result)
    return np.where(np.isnan(values), U32(0x7FFF), result).astype(U32)


def pack(low: np.ndarray, high: np.ndarray, is_bf16: bool) -> np.ndarray:
    return narrow(low, is_bf16) | narrow(high, is_bf16) << U32(16)


def _halves(warps, texts: list[str], is_bf16: bool):
    """Reads each operand as its lower and its upper half; two immediate values are upper and lower of one operand."""
    reads, k = [], 0
    while k < len(texts):
        text, k = texts[k], k + 1
        name, _, part = text.strip("-|").partition(".")
        if "R" not in name and not name.startswith(("c[", "0x")):
            high, low = F32(_float(text)), F32(_float(texts[k]))
            k += 1
            reads.append(functools.partial(lambda low, high: (low, high), low, high))
            continue
        reads.append(_half(u32(warps, name), is_bf16, part.rstrip("|"), "|" in text, text.startswith("-")))
    return reads


def _half(bits, is_bf16: bool, part: str, magnitude: bool, negated: bool):
    if part not in ("", "H0_H0", "H1_H1", "F32"):
        raise EmulatorError(f"a part .{part} of a register")

    def read():
        word = bits()
        pair = (word.view(F32),) * 2 if part == "F32" else widen(word, is_bf16)
        pair = {"H0_H0": (pair[0], pair[0]), "H1_H1": (pair[1], pair[1])}.get(part, pair)
        pair = tuple(map(np.abs, pair)) if magnitude else pair
        return tuple(map(np.negative, pair)) if negated else pair

    return read


_ARITHMETIC = {
    "HADD2": lambda a, b: np.add(a, b, dtype=F64),
    "HMUL2": lambda a, b: np.multiply(a, b, dtype=F64),
    "HFMA2": lambda a, b, c: np.multiply(a, b, dtype=F64) + c,
}


@instruction("HADD2", "HMUL2", "HFMA2", modifiers="MMA BF16_V2 F32 RELU SAT FTZ")
def _half2(warps, i) -> Execute:
    """F32: the result is the fp32 sum of the lower halves."""
    is_bf16, store = "BF16_V2" in i.modifiers, write(warps, i.operands[0])
    reads, function = _halves(warps, list(i.operands[1:]), is_bf16), _ARITHMETIC[i.opcode]
    if "F32" in i.modifiers:
        return lambda guard: store(function(*(read()[0] for read in reads)).astype(F32), guard)

    def execute(guard):
        values = [read() for read in reads]
        results = [function(*(value[k] for value in values)) for k in (0, 1)]
        if "RELU" in i.modifiers:
            results = [np.fmax(result, 0) for result in results]
        results = [_finished(result, i.modifiers) for result in results]
        store(pack(*map(np.asarray, results), is_bf16), guard)

    return execute


@instruction("HMNMX2", modifiers="BF16_V2 NAN")
def _half_minimum(warps, i) -> Execute:
    """NAN: the result is NaN if one of the operands is."""
    is_bf16, (d, *texts, p) = "BF16_V2" in i.modifiers, i.operands
    store, smaller, (a, b) = write(warps, d), predicate(warps, p), _halves(warps, texts, is_bf16)
    least, largest = (np.minimum, np.maximum) if "NAN" in i.modifiers else (np.fmin, np.fmax)

    def execute(guard):
        results = [np.where(smaller(), least(x, y), largest(x, y)) for x, y in zip(a(), b())]
        store(pack(*results, is_bf16), guard)

    return execute


@instruction("HSETP2", modifiers="BF16_V2 FTZ AND OR XOR " + _COMPARISONS)
def _hsetp2(warps, i) -> Execute:
    """One predicate for each half."""
    compare, combine = _compare(i.modifiers)
    first, second, *texts, with_text = i.operands
    a, b = _halves(warps, texts, "BF16_V2" in i.modifiers)
    other, stores = predicate(warps, with_text), (write_predicate(warps, first), write_predicate(warps, second))

    def execute(guard):
        combined = other()
        results = [combine(compare(x, y), combined) for x, y in zip(a(), b())]
        for store, result in zip(stores, results):
            store(result, guard)

    return execute


@instruction("HSET2", modifiers="BF16_V2 BF FTZ AND OR XOR " + _COMPARISONS)
def _hset2(warps, i) -> Execute:
    """All bits of each half for which the comparison holds; BF: 1 as a number."""
    compare, combine = _compare(i.modifiers)
    true = U32(0xFFFF)
    if "BF" in i.modifiers:
        true = U32(0x3F80 if "BF16_V2" in i.modifiers else 0x3C00)
    d, *texts, with_text = i.operands
    a, b = _halves(warps, texts, "BF16_V2" in i.modifiers)
    other, store = predicate(warps, with_text), write(warps, d)

    def execute(guard):
        low, high = (np.where(combine(compare(x, y), other()), true, U32(0)) for x, y in zip(a(), b()))
        store((low | high << U32(16)).astype(U32), guard)

    return execute


# ---- conversions ---------------------------------------------------------------------------------


@instruction("F2FP", modifiers="F16 BF16 F32 PACK_AB RELU")
def _f2fp(warps, i) -> Execute:
    """Two fp32 values as halves: the first is the upper one."""
    d, high_text, low_text = i.operands
    store, high, low, is_bf16 = write(warps, d), f32(warps, high_text), f32(warps, low_text), "BF16" in i.modifiers
    floor = F32(0) if "RELU" in i.modifiers else F32(-np.inf)
    if "RELU" in i.modifiers:
        return lambda guard: store(pack(np.fmax(low(), floor), np.fmax(high(), floor), is_bf16), guard)
    return lambda guard: store(pack(low(), high(), is_bf16), guard)


@instruction("F2F", modifiers="F16 BF16 F32 F64")
def _f2f(warps, i) -> Execute:
    to, source = i.modifiers
    if source == "F16":
        half = u32(warps, i.operands[1])
        read = lambda: widen(half(), False)[0]  # noqa: E731
    else:
        read = {"F32": f32, "F64": f64}[source](warps, i.operands[1])
    if to == "F64":
        store = write_pair(warps, i.operands[0])
        return lambda guard: store(read().astype(F64), guard)
    store = write(warps, i.operands[0])
    if to == "F32":
        return lambda guard: store(read().astype(F32), guard)
    return lambda guard: store(narrow(read(), to == "BF16"), guard)


@instruction("I2F", "I2FP", modifiers="F32 F64 U32 S32 U64 S64 RP RM RZ")
def _i2f(warps, i) -> Execute:
    source = next((name for name in i.modifiers if name[0] in "US"), "S32")
    bits = (u64 if source.endswith("64") else u32)(warps, i.operands[1])
    kind = np.dtype(f"{'u' if source[0] == 'U' else 'i'}{int(source[1:]) // 8}")
    if "F64" in i.modifiers:
        pair = write_pair(warps, i.operands[0])
        return lambda guard: pair(bits().view(kind).astype(F64), guard)
    store, rounding = write(warps, i.operands[0]), _rounding(i.modifiers)

    def execute(guard):
        store(_directed(bits().view(kind).astype(np.longdouble), rounding), guard)

    return execute


@instruction("F2I", modifiers="FTZ U32 S32 U64 S64 F64 TRUNC FLOOR CEIL NTZ")
def _f2i(warps, i) -> Execute:
    """Values out of range become the nearest that there is, NaN zero."""
    to = next((name for name in i.modifiers if name in ("U32", "S32", "U64", "S64")), "S32")
    kind = np.dtype(f"{'u' if to[0] == 'U' else 'i'}{int(to[1:]) // 8}")
    read = (f64 if "F64" in i.modifiers else f32)(warps, i.operands[1])
    function = {"TRUNC": np.trunc, "FLOOR": np.floor, "CEIL": np.ceil}
    whole = next((function[name] for name in i.modifiers if name in function), np.rint)
    store = (write_pair if to.endswith("64") else write)(warps, i.operands[0])
    least, most = np.iinfo(kind).min, np.iinfo(kind).max

    def execute(guard):
        value = np.nan_to_num(whole(read().astype(np.longdouble)), nan=0.0, posinf=2.0**65, neginf=-(2.0**65))
        store(np.clip(value, least, most).astype(kind), guard)

    return execute


@instruction("FRND", modifiers="FLOOR CEIL TRUNC FTZ")
def _frnd(warps, i) -> Execute:
    function = {"TRUNC": np.trunc, "FLOOR": np.floor, "CEIL": np.ceil}
    whole = next((function[name] for name in i.modifiers if name in function), np.rint)
    store, a = write(warps, i.operands[0]), f32(warps, i.operands[1])
    return lambda guard: store(whole(a()), guard)
