"""gather_rows of codes of 8 bits: the value of every code, by every instruction set the same, and clear errors."""

import pytest
import torch

from halfgnn import ops, reference
from tests import support

gather_rows = torch.ops.halfgnn.gather_rows

CODES = [torch.uint8, torch.int8, torch.float8_e4m3fn, torch.float8_e5m2]
VALUES = [torch.float16, torch.bfloat16, torch.float32]
WIDTHS = [1, 3, 4, 8, 15, 16, 17, 31, 33, 64, 100, 132, 257]
PER = ["table", "row", "column"]
on_cpu = pytest.mark.skipif(support.SIMULATED, reason="of the CPU's own kernel")


def make_codes(rows, *shape, dtype=torch.uint8, device="cpu"):
    return torch.randint(256, (rows, *shape), dtype=torch.uint8).view(dtype).to(device)


def make_scale(table, per, zero_points=True):
    """Scales of many magnitudes, negative ones and 0 among them, and integers as zero points."""
    shapes = {"table": (), "row": (table.shape[0], *[1] * (table.dim() - 1)), "column": table.shape[1:]}
    scale = torch.randn(shapes[per]) * 10.0 ** torch.randint(-3, 3, shapes[per])
    scale.view(-1)[1::5] = 0
    has_zero = zero_points and table.dtype in (torch.uint8, torch.int8)
    zero = torch.randint(-300, 300, shapes[per]).float() if has_zero else None
    return scale.to(table.device), None if zero is None else zero.to(table.device)


def bits(x):
    """Of every value, with one pattern for all nan."""
    return torch.where(x.isnan(), torch.full_like(x, float("nan")), x).contiguous().view(-1).view(torch.uint8)


def check(table, ids, scale, zero, dtype=torch.float16, num_threads=0):
    expected = reference.gather_rows(table, ids, scale=scale, zero_point=zero, out_dtype=dtype)
    margin = 64
    storage = torch.full((expected.numel() + 2 * margin,), 7, dtype=dtype, device=table.device)
    out = storage[margin : margin + expected.numel()].view(expected.shape)
    gather_rows(table, ids, out, num_threads, scale, zero)
    assert torch.equal(bits(out), bits(expected))
    assert (storage[:margin] == 7).all() and (storage[margin + expected.numel() :] == 7).all(), "written outside out"


def random_ids(rows, n, idtype=torch.int64, device="cpu"):
    return torch.randint(rows, (n,), dtype=idtype).to(device)


# ---- values --------------------------------------------------------------------------------------


def test_example(device):
    table = torch.tensor([[10, 20], [30, 255]], dtype=torch.uint8, device=device)
    scale, zero = torch.tensor([[0.5], [2.0]], device=device), torch.tensor([[10.0], [0.0]], device=device)
    rows = ops.gather_rows(table, torch.tensor([1, 0], device=device), scale=scale, zero_point=zero)
    assert rows.dtype == torch.float16 and rows.tolist() == [[60, 510], [0, 5]]


@pytest.mark.parametrize("dtype", VALUES, ids=str)
@pytest.mark.parametrize("code", CODES, ids=str)
def test_widths_of_every_code(code, dtype, device):
    """All 256 codes, nan and infinities among them, are converted as PyTorch converts them."""
    every = torch.arange(256, dtype=torch.uint8, device=device).view(256, 1).view(code)
    for per in ("table", "row"):
        check(every, torch.arange(256, device=device), *make_scale(every, per), dtype)
    every = every.view(1, 256)
    check(every, torch.zeros(3, dtype=torch.int32, device=device), *make_scale(every, "column"), dtype)


@pytest.mark.parametrize("per", PER)
@pytest.mark.parametrize("width", WIDTHS)
def test_widths(width, per, device):
    for code, dtype, idtype in zip(CODES, [*VALUES, torch.float16], [*support.IDTYPES, *support.IDTYPES]):
        table, ids = make_codes(40, width, dtype=code, device=device), random_ids(40, 77, idtype, device)
        for zero_points in (True, False):
            check(table, ids, *make_scale(table, per, zero_points), dtype)
        moved = support.misaligned(table.view(torch.uint8)).view(code)
        check(moved, ids, *make_scale(moved, per), dtype)


@pytest.mark.parametrize("per", PER)
def test_columns_and_rows_of_a_larger_table(per, device):
    whole = make_codes(60, 150, dtype=torch.int8, device=device)
    for table in (whole[:, 1:130], whole[::2, 16:80], whole[3:4].expand(9, 150), whole[:, 5:6]):
        check(table, random_ids(table.shape[0], 65, device=device), *make_scale(table, per))


@pytest.mark.parametrize("shape", [(), (1,), (3, 4), (2, 1, 5)])
def test_trailing_shapes(shape, device):
    table = make_codes(21, *shape, device=device)
    for per in PER:
        for idtype in support.IDTYPES:
            check(table, random_ids(21, 34, idtype, device), *make_scale(table, per), torch.float32)


def test_ids_at_any_stride(device):
    table = make_codes(90, 16, device=device)
    for ids in (random_ids(90, 120, device=device)[1::3], random_ids(90, 1, device=device).expand(50)):
        check(table, ids, *make_scale(table, "row"))


@pytest.mark.parametrize("rows,n,shape", [
    (0, 0, (8,)), (5, 0, (8,)), (5, 0, (0,)), (5, 9, (0,)), (5, 9, (3, 0)), (1, 1, ()), (1, 70, (100,)),
])  # fmt: skip
def test_shapes_of_little_or_nothing(rows, n, shape, device):
    table = make_codes(rows, *shape, device=device)
    for per in PER:
        check(table, random_ids(max(rows, 1), n, device=device), *make_scale(table, per), num_threads=2 * (n % 2))


def test_inf_and_nan_of_scales_reach_their_values(device):
    table = torch.tensor([[0, 1, 200]], dtype=torch.uint8, device=device)
    ids = torch.zeros(2, dtype=torch.int64, device=device)
    for scale in (float("nan"), float("inf"), -float("inf"), 3e38):
        check(table, ids, torch.tensor(scale, device=device), None, torch.float32)
        check(table, ids, torch.tensor(scale, device=device), torch.tensor(1.0, device=device))


def test_more_rows_than_a_gpu_takes_at_once(device):
    table = make_codes(100, 33, device=device)
    check(table, random_ids(100, 20_000, torch.int32, device), *make_scale(table, "row"))


@on_cpu
def test_large_results_that_are_stored_past_the_caches():
    """Rows of whole cache lines, of pieces of the buffer, and rows that are neither."""
    for rows, width, n, num_threads in (
        (300, 768, 5_600, 0),
        (300, 768, 5_600, 5),
        (9, 70_016, 61, 1),
        (9, 70_001, 8, 2),
    ):
        table = make_codes(rows, width, dtype=torch.int8)
        per = "row" if num_threads % 2 else "column"
        check(table, random_ids(rows, n), *make_scale(table, per), torch.float32, num_threads)


# ---- ids -----------------------------------------------------------------------------------------


def test_ids_out_of_range(device):
    table, bad = make_codes(40, 33, device=device), [-1, 40, 2**31 - 1, -(2**31), 2**32, 2**63 - 1]
    for code in (torch.uint8, torch.float8_e5m2):
        for per in PER:
            scale, _ = make_scale(table, per)
            ids = random_ids(40, 50, device=device)
            ids[1:13:2] = torch.tensor(bad, device=device)
            out = torch.full((50, 33), 3.0, dtype=torch.float16, device=device)
            if not support.has_cuda_kernels(device):
                with pytest.raises(IndexError, match=r"ids\[1\] is -1; expected ids in \[0, 40\)"):
                    gather_rows(table.view(code), ids, out, 0, scale)
                assert (out == 3).all()
                continue
            gather_rows(table.view(code), ids, out, 0, scale)
            is_bad = (ids < 0) | (ids >= 40)
            assert out[is_bad].isnan().all() and is_bad.sum() == len(bad)
            expected = reference.gather_rows(table.view(code), ids[~is_bad], scale=scale)
            assert torch.equal(bits(out[~is_bad]), bits(expected))


def test_a_table_without_rows_has_no_valid_id(device):
    table, out = make_codes(0, 9, device=device), torch.zeros(2, 9, dtype=torch.float16, device=device)
    ids = torch.zeros(2, dtype=torch.int64, device=device)
    for per in PER:
        scale, _ = make_scale(table, per)
        if support.has_cuda_kernels(device):
            gather_rows(table, ids, out, 0, scale)
            assert out.isnan().all()
        else:
            with pytest.raises(IndexError, match=r"ids\[0\] is 0; expected ids in \[0, 0\)"):
                gather_rows(table, ids, out, 0, scale)


# ---- arguments -----------------------------------------------------------------------------------


def arguments(device, **changes):
    table = make_codes(10, 6, device=device)
    given = {
        "table": table,
        "ids": random_ids(10, 7, device=device),
        "out": torch.zeros(7, 6, dtype=torch.float16, device=device),
        "num_threads": 0,
        "scale": torch.ones(10, 1, device=device),
        "zero_point": torch.ones(10, 1, device=device),
    }
    return {name: changes.get(name, lambda x: x)(value) for name, value in given.items()}


@pytest.mark.parametrize("name,change,error,message", [
    ("table", lambda t: t.to(torch.int16), TypeError, "table has dtype torch.int16; expected torch.uint8, torch.int8,"),
    ("table", lambda t: t.half(), TypeError, "table has dtype torch.float16"),
    ("table", lambda t: t.view(torch.float8_e5m2), TypeError, "zero_point is given for torch.float8_e5m2; expected none"),
    ("table", lambda t: t[:9], ValueError, r"scale has shape \[10, 1\]; expected \[\], \[9, 1\] or \[6\], for a table"),
    ("out", lambda t: t.to(torch.uint8), TypeError, "out has dtype torch.uint8; expected torch.float16, torch.bfloat16"),
    ("out", lambda t: t.double(), TypeError, "out has dtype torch.float64"),
    ("scale", lambda t: t.half(), TypeError, "scale has dtype torch.float16; expected torch.float32"),
    ("scale", lambda t: t.view(10), ValueError, r"scale has shape \[10\]"),
    ("scale", lambda t: t.view(1, 10), ValueError, r"scale has shape \[1, 10\]"),
    ("scale", lambda t: t[:1].expand(10, 1), ValueError, "scale has strides"),
    ("scale", lambda t: None, ValueError, "zero_point is given without scale"),
    ("zero_point", lambda t: t.double(), TypeError, "zero_point has dtype torch.float64; expected torch.float32"),
    ("zero_point", lambda t: t[0, 0], ValueError, r"zero_point has shape \[\]; expected that of scale, \[10, 1\]"),
    ("zero_point", lambda t: t.repeat(2, 1)[::2], ValueError, "zero_point has strides"),
])  # fmt: skip
def test_wrong_arguments(name, change, error, message, device):
    gather_rows(*arguments(device).values())
    with pytest.raises(error, match=message):
        gather_rows(*arguments(device, **{name: change}).values())


def test_public_function_refuses(device):
    table, ids = make_codes(4, 6, device=device), torch.tensor([0, 3], device=device)
    scale = torch.ones((), device=device)
    for call, error, match in [
        (lambda: ops.gather_rows(table, ids, scale=2.0), TypeError, "scale is a float; expected a torch.Tensor"),
        (lambda: ops.gather_rows(table, ids, scale=scale, zero_point=3), TypeError, "zero_point is a int"),
        (lambda: ops.gather_rows(table, ids, zero_point=scale), ValueError, "zero_point is given without scale"),
        (
            lambda: ops.gather_rows(table, ids, out_dtype=torch.half),
            ValueError,
            "out_dtype is torch.float16; expected it beside",
        ),
        (lambda: ops.gather_rows(table, ids, scale=scale, out_dtype=torch.int8), TypeError, "out has dtype torch.int8"),
        (lambda: ops.gather_rows(table, ids, scale=scale.requires_grad_()), ValueError, "scale requires grad"),
    ]:
        with pytest.raises(error, match=match):
            call()


def test_out_needs_memory_of_its_own(device):
    memory = torch.ones(64, device=device)
    table, ids = make_codes(4, 6, device=device), random_ids(4, 2, device=device)
    for scale, zero, name in ((memory[11:12], None, "scale"), (memory[40:41], memory[11:12], "zero_point")):
        with pytest.raises(ValueError, match=f"out lies in the memory of {name}"):
            gather_rows(table, ids, memory[:12].view(2, 6), 0, scale, zero)
