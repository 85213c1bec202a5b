"""Products of matrices on the simulator (mma.m16n8k16, movmatrix): the layouts of fragments are compared with the formulas of
the PTX documentation, element by element; sums with what is known of tensor cores.

Runs on the simulator (laboratory/simt/run.py).
"""

import numpy as np
import pytest
import torch

from halfgnn import ops
from laboratory.simt import control
from laboratory.simt.graphs import graph_of
from tests.support import HALVES
from tests.support_attention import DOT

if not control.SIMULATED:
    pytest.skip("runs on the simulator: laboratory/simt/run.py", allow_module_level=True)

from laboratory.simt.test_machine import launch, run

LANES = np.arange(32)


# ---- fragments, in the words and with the formulas of the PTX documentation ----------------------


def place_in_a(lane, i):
    """Row and column of element a_i of a lane."""
    group, in_group = lane >> 2, lane % 4
    row = group if i in (0, 1, 4, 5) else group + 8
    column = in_group * 2 + (i & 1) if i < 4 else in_group * 2 + (i & 1) + 8
    return row, column


def place_in_b(lane, i):
    group, in_group = lane >> 2, lane % 4
    row = in_group * 2 + (i & 1) if i < 2 else in_group * 2 + (i & 1) + 8
    return row, group


def place_in_c(lane, i):
    group, in_group = lane >> 2, lane % 4
    return group if i < 2 else group + 8, in_group * 2 + (i & 1)


def fragments(matrix, place, count):
    """(32, count), as matrix's type."""
    return torch.stack([torch.stack([matrix[place(int(lane), i)] for i in range(count)]) for lane in LANES])


def registers(matrix, place, count):
    """Fragments as (32, ...) words: two elements of 16 bits, or one of 32."""
    return fragments(matrix, place, count).contiguous().view(torch.int32).numpy()


def multiply_add(a, b, c, **settings):
    """What the kernel makes of a (16, 16), b (16, 8) and c (16, 8, fp32)."""
    words = np.concatenate([registers(a, place_in_a, 8), registers(b, place_in_b, 4), registers(c, place_in_c, 4)], 1)
    given = np.ascontiguousarray(words, dtype=np.int32)
    out = run("mma", given=given, results=128, n=int(a.dtype == torch.bfloat16), **settings).reshape(32, 4)
    result = torch.full((16, 8), torch.nan)
    for lane in LANES:
        for i in range(4):
            result[place_in_c(int(lane), i)] = float(out[lane, i].view(np.float32))
    return result


# ---- layouts -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_product(seed, dtype):
    """Of whole numbers, whose sums are exact: every element of every fragment has its place."""
    gen = torch.Generator().manual_seed(seed)
    a, b = (torch.randint(-16, 17, shape, generator=gen).to(dtype) for shape in ((16, 16), (16, 8)))
    c = torch.randint(-99, 100, (16, 8), generator=gen).float()
    expected = a.float() @ b.float() + c
    assert torch.equal(multiply_add(a, b, c, seed=seed + 1), expected)
    assert not torch.equal(multiply_add(a, b, c, matrices=0), expected)  # the negative control


@pytest.mark.parametrize("operand,shape", [("a", (16, 16)), ("b", (16, 8)), ("c", (16, 8))])
def test_each_element_alone(operand, shape):
    """A single one in a matrix of zeros: only its row, its column, or itself is in the result."""
    weights = torch.arange(1, 17).float()
    for row in range(shape[0]):
        for column in range(0, shape[1], 3):
            a, b, c = torch.zeros(16, 16).half(), torch.zeros(16, 8).half(), torch.zeros(16, 8)
            expected = torch.zeros(16, 8)
            {"a": a, "b": b, "c": c}[operand][row, column] = 1
            if operand == "a":
                b[column] = weights[:8].half()
                expected[row] = weights[:8]
            elif operand == "b":
                a[:, row] = weights.half()
                expected[:, column] = weights
            else:
                expected[row, column] = 1
            assert torch.equal(multiply_add(a, b, c), expected)


def test_transpose():
    matrix = torch.arange(64, dtype=torch.int16).reshape(8, 8)
    rows = np.ascontiguousarray(matrix.numpy()).view(np.int32).reshape(32)  # lane 4 r + t: 2 t, 2 t + 1 of row r
    transposed = run("movmatrix", given=rows)[:32].view(np.int16).reshape(8, 8)
    assert (transposed == matrix.numpy().T).all()
    assert (run("movmatrix", given=rows, matrices=0)[:32] == rows).all()


# ---- sums ----------------------------------------------------------------------------------------


def first_sum(products, start=0.0, dtype=torch.float16):
    """start + the sum of products x * y, as element (0, 0) of a product."""
    a, b, c = torch.zeros(16, 16, dtype=dtype), torch.zeros(16, 8, dtype=dtype), torch.zeros(16, 8)
    for k, (x, y) in enumerate(products):
        a[0, k], b[k, 0] = x, y
    c[0, 0] = start
    return float(multiply_add(a, b, c)[0, 0])


def test_products_are_exact():
    x = 1 + 2.0**-10
    assert first_sum([(x, x)]) == x * x
    assert first_sum([(2.0**-24, 2.0**-24)]) == 2.0**-48  # subnormal numbers count
    assert first_sum([(65504, 65504)]) == 65504.0**2


def test_sums_are_cut_off():
    """Below the last place of the largest term nothing counts, however much it is together; not even if that term goes away."""
    ulp = 2.0**-23
    assert first_sum([(1, 1), (2.0**-12, 2.0**-12)]) == 1  # half a last place: a tie
    assert first_sum([(1, 1)] + [(1.75 * 2.0**-12, 2.0**-12)] * 7) == 1
    assert first_sum([(1, 1), (1.5 * 2.0**-11, 2.0**-12)]) == 1 + ulp
    assert first_sum([(-1, 1), (-1.75 * 2.0**-11, 2.0**-12)]) == -1 - ulp  # towards zero
    assert first_sum([(1, 1), (2.0**-12, 2.0**-12), (-1, 1)]) == 0
    assert first_sum([(1.75 * 2.0**-12, 2.0**-12)], start=1.0) == 1


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_sums_err_by_few_places(dtype):
    gen = torch.Generator().manual_seed(1)
    a, b = (torch.randn(shape, generator=gen).to(dtype) for shape in ((16, 16), (16, 8)))
    c = torch.randn(16, 8, generator=gen)
    exact = a.double() @ b.double() + c.double()
    error = (multiply_add(a, b, c).double() - exact).abs()
    size = a.double().abs() @ b.double().abs() + c.double().abs()
    assert (error <= 18 * 2.0**-23 * size).all() and error.max() > 0


def test_infinity_and_nan():
    assert first_sum([(torch.inf, 1), (3, 4)]) == torch.inf
    assert np.isnan(first_sum([(torch.inf, 1), (-torch.inf, 1)])) and np.isnan(first_sum([(torch.inf, 0)]))
    assert first_sum([(3.0e38, 3.0)], dtype=torch.bfloat16) == torch.inf


# ---- misuse --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel,part", [
    ("mma_of_some_lanes", "lanes 8-31 at mma or movmatrix of 0xffffffff"),
    ("mma_beside_movmatrix", "different collectives"),
])  # fmt: skip
def test_all_lanes_must_take_part(kernel, part):
    _, message = launch(kernel)
    assert part in message and kernel in message


# ---- kernels -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dim", [16, 128])
def test_kernels_need_this_layout(dim, monkeypatch):
    """Negative control: with another one, results of dot attention are others."""
    monkeypatch.setenv("HALFGNN_TENSOR_CORES", "1")
    g = graph_of([5, 0, 40], 37)
    operands = [*DOT.operands(g, 2, dim, torch.float16)]

    def attend():
        return ops.dot_attention(g, *operands, edge_bias=operands[0].new_zeros(g.num_edges, 2))

    expected = attend()
    with control.setting(matrices=0):
        assert not torch.equal(attend(), expected)
    assert torch.equal(attend(), expected)
