"""The emulator of machine code, by itself: what instructions return, how lanes part and meet, what it counts, what it refuses."""

import mmap
import os
import random
import subprocess

import numpy as np
import pytest
import torch

from laboratory.machine_code import disassembly
from laboratory.machine_code.emulator import Call, EmulatorError, Library, Program, run
from laboratory.machine_code.emulator.program import RESERVED_SHARED, parse

LANE = np.arange(32)


def program(*lines):
    """A kernel of these instructions and labels, which takes the addresses of what it reads and of what it writes."""
    code, labels = [], {}
    for line in lines:
        if line.endswith(":"):
            labels[line[:-1]] = len(code)
        else:
            code.append(parse(line))
    return Program("kernel", code, labels, 16, RESERVED_SHARED + 512)


BEGIN = (
    "S2R R0, SR_TID.X",
    "ULDC.64 UR4, c[0x0][0x208]",
    "LDC.64 R2, c[0x0][0x210]",
    "LDC.64 R4, c[0x0][0x218]",
    "IMAD.WIDE R2, R0, 0x10, R2",
    "IMAD.WIDE R4, R0, 0x10, R4",
    "LDG.E.128 R8, desc[UR4][R2.64]",
)
END = ("STG.E.128 desc[UR4][R4.64], R8", "EXIT")


def launch(made, given, threads=32, blocks=1):
    """What the kernel makes of four words of each lane, and what it issued."""
    given = np.ascontiguousarray(np.broadcast_to(given, (threads, 4)), np.uint32)
    out = np.full((threads, 4), 0xDEADBEEF, np.uint32)
    parameters = np.array([given.ctypes.data, out.ctypes.data], np.uint64).tobytes()
    counts = run(Call(made, (blocks, 1, 1), (threads, 1, 1), 0, parameters))
    return out, counts


def execute(*lines, given=0, threads=32):
    """R8 to R11 after these instructions, which find the given words there."""
    return launch(program(*BEGIN, *lines, *END), given, threads)[0]


def words(*columns):
    return np.stack([np.broadcast_to(np.asarray(c), (32,)).astype(np.int64) & 0xFFFFFFFF for c in columns], axis=1)


def floats(*columns):
    rows = np.stack([np.broadcast_to(np.asarray(c, np.float32), (32,)) for c in columns], axis=1)
    return np.ascontiguousarray(rows).view(np.uint32)


# ---- what it refuses -----------------------------------------------------------------------------


@pytest.mark.parametrize("line,message", [
    ("FROBNICATE R8, R9", "unknown instruction: FROBNICATE R8, R9"),
    ("FADD.ODD R8, R9, R10", "unknown modifier .ODD: FADD.ODD"),
    ("SHF.L.U32 R8, R9", "not understood: SHF.L.U32"),
    ("LDG.E R8, desc[UR4][R2.64+0x2]", "a misaligned address"),
    ("LDS R8, [RZ]", "outside of shared memory"),
    ("LDS R8, [RZ+0x600]", "outside of shared memory"),
    ("LDC R8, c[0x0][0x230]", "beyond the parameters"),
    ("LDC R8, c[0x3][0x0]", "a constant of another bank"),
    ("S2R R8, SR_CLOCKLO", "unknown special register"),
    ("LDG.E R8, [RZ.64]", "an address without memory"),
])  # fmt: skip
def test_what_is_unknown_or_wrong_is_named(line, message):
    with pytest.raises(EmulatorError) as raised:
        execute(line)
    assert message in str(raised.value)


@pytest.mark.parametrize("line", ["LDG.E.128 R8, [R8.64]", "LDG.E R8, [R8.64]", "STG.E [R8.64], R10"])
@pytest.mark.parametrize("lanes", [32, 1])
def test_memory_that_is_not_there(line, lanes):
    """Its addresses are refused; the process lives on."""
    gone = mmap.mmap(-1, 1 << 16)
    address = np.frombuffer(gone, np.uint8).ctypes.data
    gone.close()
    there = np.zeros(64, np.uint8)
    start = np.where(lanes <= LANE, (there.ctypes.data + 15) & ~15, address)
    with pytest.raises(EmulatorError, match=f"an address without memory, {address:#x}"):
        execute(line, given=words(start, start >> 32, 0, 0))


def test_memory_that_is_only_to_be_read():
    constants = mmap.mmap(-1, 1 << 16, prot=mmap.PROT_READ)
    address = np.frombuffer(constants, np.uint8).ctypes.data
    with pytest.raises(EmulatorError, match="an address without memory"):
        execute("STG.E [R8.64], R10", given=words(address, address >> 32, 0, 0))


def test_a_wrong_instruction_gives_another_result():
    given = words(LANE, 7, 0, 0)
    right = ["IADD3 R8, R8, R9, RZ"]
    assert (execute(*right, given=given)[:, 0] == LANE + 7).all()
    for wrong in ("IADD3 R8, R8, -R9, RZ", "LOP3.LUT R8, R8, R9, RZ, 0x3c, !PT", "@P0 IADD3 R8, R8, R9, RZ"):
        with np.errstate(all="ignore"):
            assert (execute(wrong, given=given)[:, 0] != LANE + 7).any()


def test_lanes_that_take_no_part():
    some = "ISETP.GE.AND P0, PT, R0, 0x8, PT"
    for line in ("@P0 SHFL.IDX PT, R8, R8, 0x3, 0x1f", "@P0 SHFL.BFLY PT, R8, R8, 0x8, 0x1f"):
        with pytest.raises(EmulatorError, match="does not take part"):
            execute(some, line)
    with pytest.raises(EmulatorError, match="never come"):
        execute(some, "@P0 EXIT", "BSSY B0, `(.L_a)", ".L_a:", "MOV R9, 0x0", "BRA `(.L_b)", ".L_b:", "BAR.SYNC.DEFER_BLOCKING 0x0",
                "@!P0 BRA `(.L_c)", "EXIT", ".L_c:", "BSSY B1, `(.L_e)", "ISETP.EQ.AND P1, PT, R0, RZ, PT", "@P1 BRA `(.L_d)",
                "BSYNC B1", ".L_e:", "EXIT", ".L_d:", "WARPSYNC R10", "EXIT", given=words(0, 0, -1, 0))  # fmt: skip
    with pytest.raises(EmulatorError, match="mask does not name"):
        execute("WARPSYNC R8", given=words(1, 0, 0, 0))


# ---- integers ------------------------------------------------------------------------------------

RANDOM = random.Random(4)
SOME = np.array([[RANDOM.getrandbits(32) for _ in range(4)] for _ in range(32)], np.uint64)
A, B, C, D = (SOME[:, k].astype(object) for k in range(4))
MASK = 0xFFFFFFFF


def signed(x):
    return np.array([v - (1 << 32) if v >> 31 else v for v in x], object)


def by_table(table, *words):
    """Bits of a table of 8, the first word's the upper ones of the index."""
    bits = [[int(word) >> k & 1 for word in row] for row in zip(*words) for k in range(32)]
    found = [table >> (4 * a + 2 * b + c) & 1 for a, b, c in bits]
    return [sum(bit << k for k, bit in enumerate(found[n : n + 32])) for n in range(0, len(found), 32)]


@pytest.mark.parametrize("lines,expected", [
    (["IADD3 R8, P0, R8, R9, RZ", "IADD3.X R9, R10, R11, RZ, P0, !PT"],
     lambda: (A + B & MASK, C + D + (A + B >> 32) & MASK)),
    (["ISETP.GE.AND P0, PT, RZ, RZ, PT", "@P0 IADD3 R8, P0, R8, R9, RZ", "IADD3.X R9, R10, R11, RZ, P0, !PT"],
     lambda: (A + B & MASK, C + D + (A + B >> 32) & MASK)),
    (["IADD3 R8, P0, R8, -R9, RZ", "IADD3.X R9, R10, ~R11, RZ, P0, !PT"],
     lambda: (A - B & MASK, ((C << 32 | A) - (D << 32 | B) >> 32) & MASK)),
    (["IMAD R8, R8, R9, R10"], lambda: (A * B + C & MASK,)),
    (["IMAD.WIDE.U32 R8, R8, R9, R10"], lambda: ((A * B + (C | D << 32)) & MASK, (A * B + (C | D << 32)) >> 32 & MASK)),
    (["IMAD.WIDE R8, R8, R9, R10"],
     lambda: ((signed(A) * signed(B) + C) & MASK, (signed(A) * signed(B) + (C | D << 32)) >> 32 & MASK)),
    (["IMAD.HI.U32 R8, R8, R9, RZ"], lambda: (A * B >> 32,)),
    (["IMAD.MOV.U32 R8, RZ, RZ, -R9"], lambda: (-B & MASK,)),
    (["LEA R8, P0, R8, R10, 0x3", "LEA.HI.X R9, R9, R11, RZ, 0x3, P0"],
     lambda: ((A << 3) + C & MASK, (B << 3 >> 32) + D + ((A << 3 & MASK) + C >> 32) & MASK)),
    (["LEA.HI R8, R8, R10, R9, 0x5"], lambda: (((B << 32 | A) << 5 >> 32) + C & MASK,)),
    (["LEA.HI.SX32 R8, R8, R9, 0x1b"], lambda: ((signed(A) >> 5) + B & MASK,)),
    (["SHF.L.U64.HI R8, R8, 0x7, R9"], lambda: ((B << 32 | A) << 7 >> 32 & MASK,)),
    (["SHF.R.S32.HI R8, RZ, 0x1f, R9"], lambda: (signed(B) >> 31 & MASK,)),
    (["SHF.R.U64 R8, R8, 0x28, R9"], lambda: (B >> 8,)),
    (["SHF.L.U32 R8, R8, 0x20, RZ", "SHF.R.U32.HI R9, RZ, 0x5, R9"], lambda: (A * 0, B >> 5)),
    (["PRMT R8, R8, 0x5410, R9", "PRMT R9, R9, 0x9910, RZ"], lambda: (A & 0xFFFF | (B & 0xFFFF) << 16, None)),
    (["LOP3.LUT R8, R8, R9, R10, 0x96, !PT", "LOP3.LUT R9, R9, R10, R11, 0xe2, !PT"],
     lambda: (A ^ B ^ C, by_table(0xE2, B, C, D))),
    (["LOP3.LUT P0, RZ, R8, 0x1, RZ, 0xc0, !PT", "SEL R8, R9, R10, P0"], lambda: (np.where(A & 1, B, C),)),
    (["ISETP.GE.AND P0, PT, R8, R9, PT", "SEL R8, RZ, 0x1, P0"], lambda: ((signed(A) < signed(B)).astype(object) * 1,)),
    (["ISETP.LT.U32.AND P0, PT, R8, R9, PT", "ISETP.LT.AND.EX P0, PT, R10, R11, PT, P0", "SEL R8, RZ, 0x1, !P0"],
     lambda: ((signed(C) * 2**32 + A < signed(D) * 2**32 + B).astype(object) * 1,)),
    (["VIMNMX R8, R8, R9, PT", "VIADDMNMX.U32 R9, R9, -R10, 0x20, PT"],
     lambda: (np.minimum(signed(A), signed(B)) & MASK, np.minimum(B - C & MASK, 32))),
    (["POPC R8, R8", "BREV R9, R9", "FLO.U32.SH R10, R10"],
     lambda: (np.array([v.bit_count() for v in A]), [int(f"{v:032b}"[::-1], 2) for v in B], [32 - v.bit_length() for v in C])),
])  # fmt: skip
def test_integers(lines, expected):
    found = execute(*lines, given=SOME)
    for k, column in enumerate(expected()):
        if column is not None:
            assert found[:, k].tolist() == [int(v) & MASK for v in column], lines


def test_predicates_as_bits():
    lines = [
        "ISETP.EQ.AND P1, P3, R0, 0x5, PT",
        "PLOP3.LUT P2, PT, P1, P3, PT, 0xa8, 0x0",
        "P2R R8, PR, RZ, 0xe",
        "R2P PR, R0, 0x3",
    ]
    found = execute(*lines, "SEL R9, RZ, 0x1, !P0", "SEL R10, RZ, 0x1, !P1")
    assert found[:, 0].tolist() == [0b0110 if lane == 5 else 0b1100 for lane in LANE]
    assert found[:, 1].tolist() == [lane & 1 for lane in LANE] and found[:, 2].tolist() == [
        lane >> 1 & 1 for lane in LANE
    ]


# ---- floats --------------------------------------------------------------------------------------


def test_fused_products_are_rounded_once():
    generator = np.random.default_rng(3)
    a, b, c = (generator.standard_normal(32).astype(np.float32) for _ in range(3))
    c[:16] = -(a * b)[:16]  # what rounding lost
    found = execute("FFMA R8, R8, R9, R10", given=floats(a, b, c, 0))[:, 0].view(np.float32)
    exact = a.astype(np.longdouble) * b + c
    assert (found == exact.astype(np.float32)).all() and (found[:16] != 0).any()
    # Rounded to fp64 first, this would be a tie.
    a, b, c = np.float32(1 + 2**-12), np.float32(1 + 2**-12), np.float32(2.0**-60)
    tie = execute("FFMA R8, R8, R9, R10", given=floats(a, b, c, 0))[0, 0].view(np.float32)
    assert tie == np.float32(1 + 2**-11 + 2**-23)


@pytest.mark.parametrize("dtype,name", [(torch.float16, "F16"), (torch.bfloat16, "BF16")])
def test_conversions_to_halves(dtype, name):
    values = torch.cat(
        [torch.randn(26) * 10.0 ** torch.arange(-13, 13), torch.tensor([0.0, -0.0, 65520, 3e38, 1 + 2**-11, 1e-7])]
    )
    found = execute(f"F2FP.{name}.F32.PACK_AB R8, R9, R8", given=floats(values.numpy(), 1, 0, 0))[:, 0]
    expected = values.to(dtype).view(torch.int16).numpy().astype(np.uint16)
    assert (found == (expected | np.uint32(0x3C00 if name == "F16" else 0x3F80) << 16)).all()


def test_pairs_of_halves():
    given = words(0x3C004000, 0x44004200, 0, 0)  # 1, 2 and 4, 3
    found = execute("HFMA2 R8, R8, R9, -RZ", "HADD2.F32 R9, -RZ, R9.H1_H1", "HFMA2.MMA R10, -RZ, RZ, 1.875, 1.1920928955078125e-07",
                    "HSETP2.GT.AND P0, P1, R9, R9, PT", "SEL R11, RZ, 0x1, P0", given=given)  # fmt: skip
    assert found[0].tolist() == [0x44004600, np.float32(4).view(np.uint32), 0x3F800002, 1]
    found = execute("HSET2.GT.AND R9, R8, -R9, PT", "HSET2.GT.AND R10, R8, R8, PT", "HSET2.BF16_V2.GT.AND R11, R8, RZ, PT",
                    given=words(0x3C008001, 0xBC000000, 0, 0))  # fmt: skip
    assert found[0].tolist() == [0x3C008001, 0, 0, 0xFFFF0000]  # 1 > 1, and a negative subnormal > 0


def test_comparisons_with_nan():
    lines = ["FSETP.GT.AND P0, PT, R8, R9, PT", "FSETP.GTU.AND P1, PT, R8, R9, PT", "FSETP.NAN.AND P2, PT, R8, R8, PT"]
    lines += [f"SEL R{8 + k}, RZ, 0x1, !P{k}" for k in range(3)]
    found = execute(*lines, given=floats(np.where(LANE == 3, np.nan, LANE), 1, 0, 0))
    assert found[:, 0].tolist() == [int(v > 1 and v != 3) for v in LANE]
    assert found[:, 1].tolist() == [int(v > 1) for v in LANE] and found[:, 2].tolist() == [int(v == 3) for v in LANE]


def test_functions_and_divisions_of_integers():
    assert (
        execute("MUFU.EX2 R8, R8", given=floats(LANE - 10, 0, 0, 0))[:, 0].view(np.float32).tolist()
        == (2.0 ** (LANE - 10)).tolist()
    )
    lines = ["I2F.U32.RP R10, R9", "MUFU.RCP R10, R10", "VIADD R10, R10, 0xffffffe", "F2I.FTZ.U32.TRUNC.NTZ R11, R10"]
    lines += [
        "IMAD.MOV R10, RZ, RZ, -R11",
        "IMAD R2, R10, R9, RZ",
        "MOV R10, RZ",
        "IMAD.HI.U32 R10, R11, R2, R10",
        "IMAD.HI.U32 R10, R10, R8, RZ",
    ]
    lines += ["IMAD.MOV R11, RZ, RZ, -R10", "IMAD R8, R9, R11, R8"]
    dividend, divisor = SOME[:, 0].astype(np.int64), SOME[:, 1].astype(np.int64) % 1000 + 1
    found = execute(*lines, given=words(dividend, divisor, 0, 0))
    assert ((found[:, 2] - dividend // divisor) % 2**32 >= 2**32 - 1).sum() + (
        found[:, 2] == dividend // divisor
    ).sum() == 32


# ---- lanes ---------------------------------------------------------------------------------------


def test_shuffles_and_votes():
    lines = [
        "SHFL.IDX PT, R8, R0, R9, 0x1f",
        "SHFL.UP P0, R9, R0, 0x3, RZ",
        "SHFL.DOWN P1, R10, R0, 0x4, 0x181f",
        "SHFL.BFLY PT, R11, R0, 0x5, 0x1f",
    ]
    found = execute(*lines, given=words(0, LANE + 5, 0, 0))
    expected = [(LANE + 5) % 32, np.where(LANE < 3, LANE, LANE - 3), np.where(LANE % 8 < 4, LANE + 4, LANE), LANE ^ 5]
    assert all(got.tolist() == wanted.tolist() for got, wanted in zip(found.T, expected))
    lines = [
        "ISETP.LT.AND P0, PT, R0, 0x9, PT",
        "VOTE.ANY R8, PT, P0",
        "@P0 VOTE.ALL P1, P0",
        "REDUX.MAX.S32 UR6, R0",
        "MOV R9, UR6",
    ]
    found = execute(*lines, "R2UR UR7, R0", "MOV R10, UR7")
    assert (found[:, 0] == 0x1FF).all() and (found[:, 1] == 31).all() and (found[:, 2] == 0).all()


def test_atomics_of_lanes_at_one_address():
    """Each lane adds its own number to what lane 0 was given, and gets the sum before it."""
    lines = ["SHFL.IDX PT, R12, R2, RZ, 0x1f", "SHFL.IDX PT, R13, R3, RZ, 0x1f"]
    lines += ["ATOMG.E.ADD.STRONG.GPU PT, R8, desc[UR4][R12.64], R0", "LDG.E R9, desc[UR4][R12.64]"]
    found = execute(*lines, given=words(np.full(32, 7), 0, 0, 0))
    assert found[:, 0].tolist() == (7 + LANE * (LANE - 1) // 2).tolist() and (found[:, 1] == 7 + 31 * 16).all()


DIVERGENT = (
    "ISETP.LT.AND P0, PT, R0, R8, PT",
    "BSSY B0, `(.L_meet)",
    "@P0 BRA `(.L_less)",
    "MOV R9, 0x64",
    "MOV R9, 0x65",
    "BSYNC B0",
    ".L_less:",
    "MOV R9, 0x66",
    "BSYNC B0",
    ".L_meet:",
    "VOTE.ANY R10, PT, PT",
)


@pytest.mark.parametrize("fewer", [0, 9, 32])
def test_lanes_part_and_meet(fewer):
    out, counts = launch(program(*BEGIN, *DIVERGENT, *END), words(fewer, 0, 0, 0))
    assert out[:, 1].tolist() == [0x66] * fewer + [0x65] * (32 - fewer) and (out[:, 2] == 0xFFFFFFFF).all()
    either = 3 * (fewer < 32) + 2 * (fewer > 0)
    assert counts.total == len(BEGIN) + 3 + either + 1 + len(END)


def test_loops_of_lanes_and_warps_of_different_lengths():
    """A warp issues a loop as often as its slowest lane, and the end of it once for each length."""
    lines = ["BSSY B0, `(.L_meet)", ".L_more:", "IADD3 R9, R9, R8, RZ", "IADD3 R8, R8, -0x1, RZ"]
    lines += ["ISETP.GT.AND P0, PT, R8, RZ, PT", "@P0 BRA `(.L_more)", "BSYNC B0", ".L_meet:"]
    rounds = 1 + np.arange(96) * 7 % 41
    given = np.stack([rounds, 0 * rounds, rounds, rounds], axis=1)
    out, counts = launch(program(*BEGIN, *lines, *END), given, threads=96)
    assert out[:, 1].tolist() == (rounds * (rounds + 1) // 2).tolist()
    slowest = rounds.reshape(3, 32).max(1).sum()
    lengths = sum(len(set(of_warp)) for of_warp in rounds.reshape(3, 32).tolist())
    assert counts.total == 3 * (len(BEGIN) + 1 + len(END)) + 4 * slowest + lengths
    assert counts.by_opcode()["BRA"] == slowest


def test_warps_of_a_block_meet_at_barriers():
    lines = [
        "LEA R6, R0, 0x400, 0x2",
        "STS [R6], R8",
        "BAR.SYNC.DEFER_BLOCKING 0x0",
        "LOP3.LUT R7, R0, 0x3f, RZ, 0x3c, !PT",
    ]
    lines += ["LEA R7, R7, 0x400, 0x2", "LDS R9, [R7]"]
    given = np.broadcast_to(np.arange(64)[:, None] + 100, (64, 4))
    out, counts = launch(program(*BEGIN, *lines, *END), given, threads=64, blocks=3)
    assert out[:, 1].tolist() == [100 + (k ^ 63) for k in range(64)]
    assert counts.total == 3 * 2 * (len(BEGIN) + len(lines) + len(END))


def test_copies_to_shared_memory():
    lines = ["LEA R6, R0, 0x400, 0x4", "LDS.128 R8, [R6]", "ISETP.LT.AND P0, PT, R0, 0x8, PT"]
    lines += ["@P0 LDGSTS.E.BYPASS.128 [R6], desc[UR4][R2.64]", "LDGDEPBAR", "DEPBAR.LE SB0, 0x0", "LDS.128 R8, [R6]"]
    given = words(LANE, LANE + 100, 0, 7)
    out = execute(*lines, given=given)
    assert (out[:8] == given[:8]).all() and (out[8:] == 0xCDCDCDCD).all()
    out = execute(*(line.replace("@P0 ", "").replace("[R2.64]", "[R2.64], !P0") for line in lines), given=given)
    assert (out[:8] == 0).all() and (out[8:] == given[8:]).all()  # zeros where there is nothing


def test_prefetches_of_what_exists():
    given = words(LANE, LANE + 100, 0, 7)
    assert (execute("CCTL.E.PF2 [R2]", given=given) == execute(given=given)).all()
    with pytest.raises(EmulatorError, match="an address without memory"):
        execute("MOV R2, 0x10", "MOV R3, RZ", "CCTL.E.PF2 [R2]", given=given)


def test_calls_and_collectives_of_lanes_that_have_parted():
    lines = [
        "MOV R6, 0xb0",
        "ISETP.LT.AND P0, PT, R0, 0x4, PT",
        "@P0 CALL.REL.NOINC `($twice)",
        "IADD3 R9, R9, 0x1, RZ",
    ]
    lines += ["MOV R7, 0xffffffff", "UMOV UR6, 0xffffffff", "BRA.DIV UR6, `(.L_parted)", "BRA `(.L_end)", ".L_parted:"]
    lines += ["WARPSYNC.COLLECTIVE R7, `(.L_end)", "SHFL.IDX PT, R10, R0, 0x2, 0x1f", "ENDCOLLECTIVE", ".L_end:"]
    made = program(*BEGIN, *lines, *END, "$twice:", "IADD3 R9, R9, R9, RZ", "RET.REL.NODEC R6 `(kernel)")
    made.instructions[len(BEGIN)] = parse(f"MOV R6, {(len(BEGIN) + 3) * 16:#x}")
    out, _ = launch(made, words(0, LANE + 1, 7, 0))
    assert out[:, 1].tolist() == [(2 * (lane + 1) if lane < 4 else lane + 1) + 1 for lane in LANE]


# ---- matrices ------------------------------------------------------------------------------------


def _fragments(matrix, rows_first):
    """Words of each lane: tiles of 8 x 8, lane 4 g + t with elements 2 t and 2 t + 1 of line g, as PTX lays them out."""
    tiles = []
    for k in range(0, matrix.shape[1] if rows_first else matrix.shape[0], 8):
        for r in range(0, matrix.shape[0] if rows_first else 8, 8):
            tile = matrix[r : r + 8, k : k + 8] if rows_first else matrix[k : k + 8].T
            tiles.append(tile.contiguous().view(torch.int16).numpy().astype(np.uint16).reshape(32, 2))
    return [tile[:, 0] | tile[:, 1].astype(np.uint32) << 16 for tile in tiles]


@pytest.mark.parametrize("dtype,name", [(torch.float16, ""), (torch.bfloat16, ".BF16")])
def test_products_of_matrices(dtype, name):
    generator = torch.Generator().manual_seed(2)
    a, b = (torch.randint(-8, 8, shape, generator=generator).to(dtype) for shape in ((16, 16), (16, 8)))
    a_words, b_words = _fragments(a, True), _fragments(b, False)
    loads = ["LDG.E.64 R12, desc[UR4][R2.64+0x200]", f"HMMA.16816.F32{name} R8, R8, R12, RZ"]
    given = np.zeros((64, 4), np.uint32)
    given[:32] = np.stack(a_words, axis=1)
    given[32:, :2] = np.stack(b_words, axis=1)
    out = np.zeros((32, 4), np.uint32)
    parameters = np.array([given.ctypes.data, out.ctypes.data], np.uint64).tobytes()
    run(Call(program(*BEGIN, *loads, *END), (1, 1, 1), (32, 1, 1), 0, parameters))
    expected = (a.float() @ b.float()).numpy()
    for lane in LANE:
        g, t = lane // 4, lane % 4
        wanted = [expected[g, 2 * t], expected[g, 2 * t + 1], expected[g + 8, 2 * t], expected[g + 8, 2 * t + 1]]
        assert out[lane].view(np.float32).tolist() == wanted


def test_transposes():
    matrix = torch.arange(64, dtype=torch.int16).reshape(8, 8)
    (given,) = _fragments(matrix, True)
    (expected,) = _fragments(matrix.T.contiguous(), True)
    assert execute("MOVM.16.MT88 R8, R8", given=words(given, 0, 0, 0))[:, 0].tolist() == expected.tolist()
    with pytest.raises(EmulatorError, match="only some lanes"):
        execute("ISETP.LT.AND P0, PT, R0, 0x9, PT", "@P0 MOVM.16.MT88 R8, R8")


# ---- what nvcc compiles --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def control(tmp_path_factory):
    home = disassembly.toolkit()
    if home is None or disassembly.missing_tools():
        pytest.skip("no CUDA toolkit was found")
    target = tmp_path_factory.mktemp("control") / "control.cubin"
    source = disassembly.ROOT / "laboratory" / "machine_code" / "control.cu"
    command = [
        os.path.join(home, "bin", "nvcc"),
        "-arch=sm_90",
        "-std=c++17",
        "-O3",
        "-cubin",
        str(source),
        "-o",
        str(target),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return Library(target)


@pytest.mark.parametrize("rounds", [1, 5])
def test_a_compiled_kernel(control, rounds):
    """control_good adds rows, four in a round."""
    rows = np.random.default_rng(1).integers(0, 2**32, (16, 32, 4), dtype=np.uint32)
    index = (np.arange(4 * rounds, dtype=np.int32) * 5) % 13
    out = np.zeros((32, 4), np.uint32)
    made = control.program("control_good")
    parameters = np.array([rows.ctypes.data, index.ctypes.data, 4 * rounds, out.ctypes.data], np.uint64).tobytes()
    counts = run(Call(made, (1, 1, 1), (32, 1, 1), 0, parameters))
    assert (out == rows[index].sum(0, dtype=np.uint32)).all()
    issued = counts.by_opcode()
    assert (issued["LDG"], issued["STG"], issued["EXIT"]) == (8 * rounds, 1, 1)  # an index and a row for each of four
