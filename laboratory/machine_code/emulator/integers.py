"""Instructions on integers, bits and predicates; those on uniform registers differ in their operands alone."""

from __future__ import annotations

import functools
import operator

import numpy as np

from .operands import (
    EmulatorError,
    Execute,
    i32,
    instruction,
    is_predicate,
    leading_predicates,
    predicate,
    u32,
    u64,
    write,
    write_pair,
    write_predicate,
)

U32, U64 = np.uint32, np.uint64
ONES = U64(0xFFFFFFFF)
S32 = U64(32)


def _wide(read, signed: bool = False):
    if signed:
        return lambda: read().view(np.int32).astype(np.int64).view(U64)
    return lambda: read().astype(U64)


# ---- sums and products ---------------------------------------------------------------------------


@instruction("MOV", "UMOV")
def _mov(warps, i) -> Execute:
    store, read = write(warps, i.operands[0]), u32(warps, i.operands[1])
    return lambda guard: store(read(), guard)


@instruction("VIADD")
def _viadd(warps, i) -> Execute:
    store, a, b = write(warps, i.operands[0]), u32(warps, i.operands[1]), u32(warps, i.operands[2])
    return lambda guard: store(a() + b(), guard)


@instruction("IABS")
def _iabs(warps, i) -> Execute:
    store, a = write(warps, i.operands[0]), i32(warps, i.operands[1])
    return lambda guard: store(np.abs(a()), guard)


def _terms(warps, texts: list[str], extended: bool):
    """Operands as 64-bit terms: a negated one counts as its complement, and one more unless carries come in."""
    reads, more = [], 0
    for text in texts:
        negated = text.startswith("-") and not text.startswith("-0x")
        if negated and extended:
            raise EmulatorError(f"- in a sum with carries: {text}")
        reads.append(u32(warps, "~" + text[1:] if negated else text))
        more += negated
    return reads, more


@instruction("IADD3", "UIADD3", modifiers="X")
def _iadd3(warps, i) -> Execute:
    outs, rest = leading_predicates(i.operands)
    extended = "X" in i.modifiers
    reads, more = _terms(warps, rest[:3], extended)
    carries = [predicate(warps, text) for text in rest[3:]]
    store = write(warps, i.operands[0])
    if not outs and not carries:
        plain = [u32(warps, text) for text in rest[:3]]
        plain = [read for read, text in zip(plain, rest) if text not in ("RZ", "URZ")] or plain[:1]
        return lambda guard: store(functools.reduce(operator.add, [read() for read in plain]), guard)
    carry_out = [write_predicate(warps, text) for text in outs]

    def execute(guard):
        total = U64(more)
        for read in (*reads, *carries):
            total = total + read().astype(U64)
        for k, put_carry in enumerate(carry_out):
            put_carry(total >> S32 > U64(k), guard)
        store(total.astype(U32), guard)

    return execute


@instruction("IMAD", "UIMAD", modifiers="MOV U32 SHL IADD WIDE HI X")
def _imad(warps, i) -> Execute:
    outs, (a_text, b_text, c_text, *carry_texts) = leading_predicates(i.operands)
    if "WIDE" in i.modifiers or "HI" in i.modifiers:
        return _imad_wide(warps, i, outs, (a_text, b_text, c_text, *carry_texts))
    store = write(warps, i.operands[0])
    a, b, c = (u32(warps, text) for text in (a_text, b_text, c_text))
    if outs:
        raise EmulatorError("a carry of 32-bit IMAD")
    if carry_texts:
        carry = predicate(warps, carry_texts[0])
        return lambda guard: store(a() * b() + c() + carry().astype(U32), guard)
    if a_text in ("RZ", "URZ") or b_text in ("RZ", "URZ"):
        return lambda guard: store(c(), guard)
    return lambda guard: store(a() * b() + c(), guard)


def _imad_wide(warps, i, outs, texts) -> Execute:
    """64 bits of a product and a sum with a pair of registers: both words of it (WIDE) or the upper (HI)."""
    signed = "U32" not in i.modifiers
    a, b = (_wide(u32(warps, text), signed) for text in texts[:2])
    c = u64(warps, texts[2])
    carry = predicate(warps, texts[3]) if len(texts) > 3 else None
    carry_out = [write_predicate(warps, text) for text in outs]
    high = "HI" in i.modifiers
    store = write(warps, i.operands[0]) if high else write_pair(warps, i.operands[0])
    if outs and signed:
        raise EmulatorError("a carry of a signed product")

    def execute(guard):
        product, addend = a() * b(), c()
        total = product + addend
        overflow = total < addend
        if carry is not None:
            with_carry = total + carry().astype(U64)
            overflow = overflow | (with_carry < total)
            total = with_carry
        for put_carry in carry_out:
            put_carry(overflow, guard)
        store((total >> S32).astype(U32) if high else total, guard)

    return execute


@instruction("LEA", "ULEA", modifiers="HI X SX32")
def _lea(warps, i) -> Execute:
    """(a << shift) + b; HI: the upper word of the shifted pair {a, c}, or of a with its sign."""
    outs, (a_text, b_text, *rest) = leading_predicates(i.operands)
    store, b = write(warps, i.operands[0]), u32(warps, b_text)
    carry_out = [write_predicate(warps, text) for text in outs]
    high, sign = "HI" in i.modifiers, "SX32" in i.modifiers
    if (high or outs) and a_text[0] in "-~":
        raise EmulatorError("a sign of LEA.HI")
    upper = u32(warps, rest.pop(0)) if high and not sign else None
    shift = U64(int(rest.pop(0), 0))
    carry = predicate(warps, rest.pop(0)) if rest else None
    a = _wide(u32(warps, a_text), signed=sign)

    def execute(guard):
        value = a()
        if upper is not None:
            value = value | upper().astype(U64) << S32
        value = value << shift
        total = (value >> S32 if high else value & ONES) + b().astype(U64)
        total = total if carry is None else total + carry().astype(U64)
        for put_carry in carry_out:
            put_carry(total >> S32 != 0, guard)
        store(total.astype(U32), guard)

    return execute


# ---- comparisons and choices ---------------------------------------------------------------------

COMPARE = {
    "LT": operator.lt, "LE": operator.le, "GT": operator.gt, "GE": operator.ge, "EQ": operator.eq, "NE": operator.ne,
}  # fmt: skip
COMBINE = {"AND": np.logical_and, "OR": np.logical_or, "XOR": np.logical_xor}


@instruction("ISETP", "UISETP", modifiers="LT LE GT GE EQ NE AND OR XOR U32 EX")
def _isetp(warps, i) -> Execute:
    """EX: of 64 bits, with the comparison of the lower words in the last operand."""
    name, *others = i.modifiers
    compare = COMPARE[name]
    combine = next(COMBINE[other] for other in others if other in COMBINE)
    first, second, a_text, b_text, with_text, *lower_text = i.operands
    read = u32 if "U32" in others else i32
    a, b, other = read(warps, a_text), read(warps, b_text), predicate(warps, with_text)
    stores = write_predicate(warps, first), write_predicate(warps, second)
    lower = predicate(warps, lower_text[0]) if "EX" in others else None
    strict = COMPARE[{"LE": "LT", "GE": "GT"}.get(name, name)]

    def execute(guard):
        x, y = a(), b()
        if lower is None:
            found = compare(x, y)
        elif name == "NE":
            found = (x != y) | lower()
        else:
            found = ((x == y) & lower()) if name == "EQ" else strict(x, y) | ((x == y) & lower())
        combined = other()
        result, opposite = combine(found, combined), combine(~found, combined)
        stores[0](result, guard)
        stores[1](opposite, guard)

    return execute


def choose(store, condition, a, b) -> Execute:
    return lambda guard: store(np.where(condition(), a(), b()), guard)


@instruction("SEL", "USEL")
def _sel(warps, i) -> Execute:
    d, a, b, p = i.operands
    return choose(write(warps, d), predicate(warps, p), u32(warps, a), u32(warps, b))


@instruction("VIMNMX", "VIADDMNMX", modifiers="U32")
def _minimum(warps, i) -> Execute:
    """The smaller one where the last operand holds; of a sum and another value: VIADDMNMX."""
    d, *sources, p = i.operands
    view = U32 if "U32" in i.modifiers else np.int32
    store, condition = write(warps, d), predicate(warps, p)
    reads = [u32(warps, text) for text in sources]

    def execute(guard):
        *first, last = (read() for read in reads)
        a, b = functools.reduce(operator.add, first).view(view), last.view(view)
        store(np.where(condition(), np.minimum(a, b), np.maximum(a, b)), guard)

    return execute


# ---- bits ----------------------------------------------------------------------------------------

_LUT = {
    0xC0: lambda a, b, c: a & b, 0xFC: lambda a, b, c: a | b, 0x3C: lambda a, b, c: a ^ b, 0x30: lambda a, b, c: a & ~b,
    0x96: lambda a, b, c: a ^ b ^ c, 0x80: lambda a, b, c: a & b & c, 0xFE: lambda a, b, c: a | b | c,
    0xF8: lambda a, b, c: a | (b & c), 0xEA: lambda a, b, c: (a & b) | c, 0x33: lambda a, b, c: ~b,
}  # fmt: skip


def lookup_table(table: int):
    """The function of three words with these bits, the first of which is the upper bit of the index."""
    if table in _LUT:
        return _LUT[table]

    def function(a, b, c):
        terms = [(a if k & 4 else ~a) & (b if k & 2 else ~b) & (c if k & 1 else ~c) for k in range(8) if table >> k & 1]
        return functools.reduce(operator.or_, terms, a & ~a)

    return function


@instruction("LOP3", "ULOP3", modifiers="LUT")
def _lop3(warps, i) -> Execute:
    operands = list(i.operands)
    out = write_predicate(warps, operands.pop(0)) if is_predicate(operands[0]) else None
    d, a_text, b_text, c_text, table, p = operands
    a, b, c = (u32(warps, text) for text in (a_text, b_text, c_text))
    function, store, other = lookup_table(int(table, 0)), write(warps, d), predicate(warps, p)

    def execute(guard):
        value = function(a(), b(), c())
        if out is not None:
            out((value != 0) | other(), guard)
        store(value, guard)

    return execute


@instruction("PLOP3", "UPLOP3", modifiers="LUT")
def _plop3(warps, i) -> Execute:
    first, second, *sources, table, other_table = i.operands
    reads = [predicate(warps, text) for text in sources]
    functions = lookup_table(int(table, 0)), lookup_table(int(other_table, 0))
    stores = write_predicate(warps, first), write_predicate(warps, second)

    def execute(guard):
        values = [read() for read in reads]
        results = [function(*values) for function in functions]
        for store, result in zip(stores, results):
            store(result, guard)

    return execute


@instruction("SHF", "USHF", modifiers="L R U32 S32 U64 S64 HI W")
def _shf(warps, i) -> Execute:
    """The lower or the upper (HI) word of the pair {a, c}, shifted. Shifts of 32-bit types stop at 32, of others at 63."""
    d, a_text, b_text, c_text = i.operands
    left, bits = i.modifiers[0] == "L", 64 if i.modifiers[1].endswith("64") else 32
    signed, high, wrap = i.modifiers[1].startswith("S"), "HI" in i.modifiers, "W" in i.modifiers
    store, a, b, c = write(warps, d), u32(warps, a_text), u32(warps, b_text), u32(warps, c_text)

    def execute(guard):
        amount = b() & U32(bits - 1) if wrap else np.minimum(b(), U32(63 if bits == 64 else 32))
        amount = amount.astype(U64)
        pair = a().astype(U64) | c().astype(U64) << S32
        if signed and not left:
            pair = (pair.view(np.int64) >> amount.astype(np.int64)).view(U64)
        else:
            pair = pair << amount if left else pair >> amount
        store((pair >> S32 if high else pair).astype(U32), guard)

    return execute


@instruction("PRMT", "UPRMT")
def _prmt(warps, i) -> Execute:
    """Four bytes of the pair {a, c}; bit 3 of a selector: the byte's sign, eight times."""
    d, a_text, s_text, c_text = i.operands
    store, a, s, c = write(warps, d), u32(warps, a_text), u32(warps, s_text), u32(warps, c_text)

    def execute(guard):
        pair = a().astype(U64) | c().astype(U64) << S32
        selectors = s().astype(U64)
        result = U64(0)
        for k in range(4):
            selector = selectors >> U64(4 * k)
            byte = pair >> (selector & U64(7)) * U64(8) & U64(0xFF)
            byte = np.where(selector & U64(8), (byte >> U64(7)) * U64(0xFF), byte)
            result = result | byte << U64(8 * k)
        store(result.astype(U32), guard)

    return execute


@instruction("POPC", "UPOPC")
def _popc(warps, i) -> Execute:
    store, a = write(warps, i.operands[0]), u32(warps, i.operands[1])
    return lambda guard: store(np.bitwise_count(a()).astype(U32), guard)


@instruction("BREV", "UBREV")
def _brev(warps, i) -> Execute:
    store, a = write(warps, i.operands[0]), u32(warps, i.operands[1])

    def execute(guard):
        value = np.ascontiguousarray(a())
        octets = np.packbits(np.unpackbits(value.view(np.uint8), bitorder="little"))
        store(octets.view(">u4").astype(U32).reshape(value.shape), guard)

    return execute


@instruction("FLO", "UFLO", modifiers="U32 SH")
def _flo(warps, i) -> Execute:
    """The highest bit that is set, or its distance from the top (SH); all ones if there is none."""
    if "U32" not in i.modifiers:
        raise EmulatorError("FLO of a signed value")
    store, a = write(warps, i.operands[0]), u32(warps, i.operands[1])

    def execute(guard):
        value = a()
        highest = np.frexp(value.astype(np.float64))[1] - 1
        result = 31 - highest if "SH" in i.modifiers else highest
        store(np.where(value == 0, -1, result).astype(np.int32), guard)

    return execute


@instruction("P2R", "UP2UR")
def _p2r(warps, i) -> Execute:
    """Predicates as bits, where the last operand says so, of a word."""
    d, which, a_text, mask_text = i.operands
    store, a, mask = write(warps, d), u32(warps, a_text), int(mask_text, 0)
    predicates = warps.uniform_predicates if which == "UPR" else warps.predicates

    def execute(guard):
        value = a() & U32(~mask & 0xFFFFFFFF)
        for k in range(7):
            if mask >> k & 1:
                value = value | predicates[k].astype(U32) << U32(k)
        store(value, guard)

    return execute


@instruction("R2P")
def _r2p(warps, i) -> Execute:
    _, a_text, mask_text = i.operands
    a, mask = u32(warps, a_text), int(mask_text, 0)
    stores = [(U32(1 << k), write_predicate(warps, f"P{k}")) for k in range(7) if mask >> k & 1]

    def execute(guard):
        value = a()
        for bit, store in stores:
            store(value & bit != 0, guard)

    return execute
