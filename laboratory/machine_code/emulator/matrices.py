"""Tensor cores: products of small matrices whose elements lie in the registers of a warp, as the PTX documentation of
mma.sync and movmatrix lays them out. Lane 4 g + t holds, of a matrix in words of two halves, row g and columns 2 t, 2 t + 1.
"""

from __future__ import annotations

import numpy as np

from .floats import widen
from .operands import EmulatorError, Execute, instruction, u32, write

F64 = np.float64


def _tile(words: np.ndarray, is_bf16: bool) -> np.ndarray:
    """(warps, 8, 8) values of a register of every lane: rows are groups of four lanes."""
    return np.stack(widen(words, is_bf16), axis=-1).reshape(-1, 8, 8)


def _check(guard, text: str) -> None:
    if guard is not None and not (guard.all(1) | ~guard.any(1)).all():
        raise EmulatorError(f"only some lanes of a warp: {text}")


@instruction("HMMA", modifiers="16816 1688 F32 BF16")
def _hmma(warps, i) -> Execute:
    """D = A B + C: A of 16 x k, B of k x 8, C of 16 x 8 in fp32; k of 16 or 8. Sums are formed in fp64, rounded once."""
    d, a_text, b_text, c_text = i.operands
    if "F32" not in i.modifiers:
        raise EmulatorError(f"sums that are halves: {i.text}")
    is_bf16, tiles = "BF16" in i.modifiers, 2 if "16816" in i.modifiers else 1
    a_words = [u32(warps, a_text, k) for k in range(2 * tiles)]
    b_words = [u32(warps, b_text, k) for k in range(tiles)]
    c_words = [u32(warps, c_text, k) for k in range(4)]
    stores = [write(warps, d, k) for k in range(4)]

    def execute(guard):
        _check(guard, i.text)
        halves = [_tile(read(), is_bf16).astype(F64) for read in a_words]  # upper, lower; then of the next 8 columns
        a = np.concatenate([np.concatenate(halves[2 * k : 2 * k + 2], axis=1) for k in range(tiles)], axis=2)
        # A word of B has two rows of one column: the tile is its transpose.
        b = np.concatenate([_tile(read(), is_bf16).transpose(0, 2, 1) for read in b_words], axis=1).astype(F64)
        product = a @ b  # (warps, 16, 8)
        for k, store in enumerate(stores):
            half = product[:, 8 * (k // 2) : 8 * (k // 2) + 8, k % 2 :: 2].reshape(warps.shape)
            store((half + c_words[k]().view(np.float32)).astype(np.float32), guard)

    return execute


@instruction("MOVM", modifiers="16 MT88")
def _movm(warps, i) -> Execute:
    """The transpose of an 8 x 8 matrix of halves."""
    store, a = write(warps, i.operands[0]), u32(warps, i.operands[1])

    def execute(guard):
        _check(guard, i.text)
        halves = np.ascontiguousarray(np.broadcast_to(a(), warps.shape)).view(np.uint16).reshape(-1, 8, 8)
        store(np.ascontiguousarray(halves.transpose(0, 2, 1)).reshape(-1, 64).view(np.uint32), guard)

    return execute
