"""quantize: errors of at most half a step, what has no code, and sources of every kind."""

import sys

import numpy as np
import pytest
import torch

from halfgnn.dataloading import FeatureStore, quantize

CODES = [torch.uint8, torch.int8, torch.float8_e4m3fn, torch.float8_e5m2]
FLOAT8 = CODES[2:]
PER = ["row", "column", "tensor"]
LIMITS = {
    torch.uint8: (0, 255), torch.int8: (-128, 127), torch.float8_e4m3fn: (-448, 448), torch.float8_e5m2: (-57344, 57344),
}  # fmt: skip
EPS = 2.0**-24  # of a rounding in fp32
# Bits of the mantissa, and the distance between the smallest numbers.
MANTISSA = {torch.float8_e4m3fn: (3, 2.0**-9), torch.float8_e5m2: (2, 2.0**-16)}


def of_magnitudes(rows=300, width=20, seed=0):
    """Rows and columns of many magnitudes and offsets, some constant, some zero."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, width, generator=g) * torch.logspace(-4, 4, rows)[:, None] * torch.logspace(-1, 1, width)
    x[5], x[6], x[7], x[:, 3] = 0.0, 12.34, -1e-3, 0.0
    x[8] = 1000 + torch.rand(width, generator=g)
    x[9] = -1e-30 * torch.rand(width, generator=g)
    return x


def half_steps(x, store):
    """Half the distance between the codes around each value, beside the rounding in fp32 of the numbers that make it. In fp64."""
    scale = store.scale.double()
    if store.data.dtype in MANTISSA:
        bits, least = MANTISSA[store.data.dtype]
        ratio = x.double().abs() / scale.masked_fill(scale == 0, 1)
        step = (
            torch.maximum(2.0 ** (torch.floor(torch.log2(ratio.clamp(min=1e-300))) - bits), torch.tensor(least)) * scale
        )
    else:
        step = scale
    zero = torch.zeros(()) if store.zero_point is None else store.zero_point.double().abs() * scale
    return step / 2 + 4 * EPS * (x.double().abs() + zero + step)


def values_of(store):
    """In fp64, of codes, scale and zero_point, without halfgnn's kernels."""
    codes = store.data.float().double()
    return (codes if store.zero_point is None else codes - store.zero_point.double()) * store.scale.double()


# ---- accuracy ------------------------------------------------------------------------------------


@pytest.mark.parametrize("per", PER)
@pytest.mark.parametrize("dtype", CODES, ids=str)
def test_errors_are_at_most_half_a_step(tmp_path, dtype, per):
    x = of_magnitudes()
    store = quantize(x, tmp_path / "x.npy", dtype, per, block_rows=70)
    lost = (values_of(store) - x.double()).abs()
    assert (lost <= half_steps(x, store)).all()
    shapes = {"row": (300, 1), "column": (20,), "tensor": ()}
    assert store.scale.shape == shapes[per] and (store.zero_point is not None) == (dtype == torch.uint8)
    error, lost = store.error, (values_of(store).float().double() - x.double()).abs()
    assert error.largest == pytest.approx(lost.max().item(), rel=1e-4)
    assert error.mean == pytest.approx(lost.mean().item(), rel=1e-4) and error.saturated == 0
    torch.testing.assert_close(torch.tensor(error.largest_of_columns).double(), lost.amax(0), rtol=1e-4, atol=1e-12)
    torch.testing.assert_close(torch.tensor(error.mean_of_columns).double(), lost.mean(0), rtol=1e-4, atol=1e-12)


@pytest.mark.parametrize("dtype", CODES, ids=str)
def test_gathered_rows_are_rounded_once(tmp_path, dtype):
    x = of_magnitudes(seed=1)
    quantize(x, tmp_path / "x.npy", dtype)
    ids = torch.randint(300, (500,))
    for out in (torch.float16, torch.bfloat16, torch.float32):
        store = FeatureStore.open(tmp_path / "x.npy", dtype=out)
        assert torch.equal(store.gather(ids), values_of(store)[ids].float().to(out))


@pytest.mark.parametrize("dtype", CODES, ids=str)
def test_constant_rows_and_zeros(tmp_path, dtype):
    x = torch.zeros(6, 9)
    for row, value in enumerate((0.0, 0.3, -0.3, 65504.0, 1e-42, -3.4e38)):
        x[row] = value
    store = quantize(x, tmp_path / "x.npy", dtype)
    got = values_of(store).float()
    assert (got[0] == 0).all() and store.scale[0] == 1
    if dtype == torch.uint8:  # to the last bit, but for numbers below the smallest scale
        assert torch.equal(got[[0, 1, 2, 3, 5]], x[[0, 1, 2, 3, 5]])
    torch.testing.assert_close(got, x, rtol=2 * EPS, atol=2.0**-127)
    columns = quantize(x.t().contiguous(), tmp_path / "y.npy", dtype, "column")
    assert torch.equal(values_of(columns), values_of(store).t())


def test_zeros_stay_zeros_in_uint8(tmp_path):
    """A matrix of words, for example: zero is a code if the range has it."""
    x = torch.where(torch.rand(200, 64) < 0.9, 0.0, 0.1 + torch.rand(200, 64))
    for per in PER:
        got = quantize(x, tmp_path / "x.npy", torch.uint8, per).gather(torch.arange(200))
        assert ((got == 0) == (x == 0)).all()


def test_inf_beside_zeros(tmp_path):
    x = torch.tensor([[0.0, torch.inf], [-torch.inf, -torch.inf], [torch.nan, 0.0], [1e-45, torch.inf]])
    store = quantize(x, tmp_path / "x.npy", torch.float8_e5m2)
    got = FeatureStore.open(tmp_path / "x.npy", dtype=torch.float32).gather(torch.arange(4))
    torch.testing.assert_close(got, x, equal_nan=True, rtol=0, atol=2.0**-126)
    assert store.error.largest <= 2.0**-126


def test_numbers_beyond_float32_are_refused(tmp_path):
    x = torch.ones(5, 3, dtype=torch.float64)
    x[3, 1] = -1e39
    for dtype in CODES:
        with pytest.raises(
            ValueError, match=r"source has -1e\+39 in row 3, column 1; expected numbers that float32 can hold"
        ):
            quantize(x, tmp_path / "x.npy", dtype, block_rows=2)


def test_a_small_range_far_from_zero(tmp_path):
    """The zero point has more digits than fp32: what is lost is that of fp32."""
    x = 1e6 + torch.rand(50, 8)
    for per in PER:
        store = quantize(x, tmp_path / "x.npy", torch.uint8, per)
        lost = (store_in_fp32(tmp_path) - x).abs()
        assert (lost <= half_steps(x, store)).all() and lost.max() <= 0.25


def store_in_fp32(folder):
    store = FeatureStore.open(folder / "x.npy", dtype=torch.float32)
    return store.gather(torch.arange(len(store)))


def test_ranges_that_no_float_holds(tmp_path):
    x = torch.tensor([[-3.4e38, 3.4e38, 0.0], [1e-45, -1e-45, 0.0], [1e-38, 2e-38, 3e-38]])
    for dtype in CODES:
        store = quantize(x, tmp_path / "x.npy", dtype)
        assert store.scale.isfinite().all()
        assert ((values_of(store) - x.double()).abs() <= half_steps(x, store)).all()
        assert store.error.largest <= half_steps(x, store).max()


# ---- nan, inf and saturation ----------------------------------------------------------------------


@pytest.mark.parametrize("per", PER)
def test_nan_and_inf_are_kept_or_refused(tmp_path, per):
    x = torch.randn(40, 5)
    x[17, 2] = torch.nan
    for dtype in CODES[:2]:
        with pytest.raises(
            ValueError, match=rf"source has nan in row 17, column 2; expected numbers that {dtype} can hold"
        ):
            quantize(x, tmp_path / "x.npy", dtype, per, block_rows=10)
        assert not list(tmp_path.iterdir())
    for dtype in FLOAT8:
        store = quantize(x, tmp_path / "x.npy", dtype, per, block_rows=10)
        assert torch.equal(store.gather(torch.arange(40)).isnan(), x.isnan()) and np.isfinite(store.error.mean)
    x[21, 4], x[22, 4], x[23] = torch.inf, -torch.inf, torch.nan
    for dtype in CODES[:3]:
        with pytest.raises(ValueError, match=r"source has (nan in row 17, column 2|inf in row 21, column 4)"):
            quantize(x, tmp_path / "x.npy", dtype, per)
    store = quantize(x, tmp_path / "x.npy", torch.float8_e5m2, per, block_rows=9)
    got = store.gather(torch.arange(40))
    assert torch.equal(got.isnan(), x.isnan()) and got[21, 4] == torch.inf and got[22, 4] == -torch.inf
    finite = x.isfinite()
    assert ((values_of(store) - x.double()).abs() <= half_steps(x, store))[finite].all()
    assert store.scale.isfinite().all() and np.isfinite(store.error.mean) and store.error.mean > 0


@pytest.mark.parametrize("dtype", CODES, ids=str)
def test_values_beyond_given_scales_become_the_last_code(tmp_path, dtype):
    x = torch.tensor([[0.0, 1.0, 1e6, -1e6], [2.0, -3.0, 0.4, 1e30]])
    least, largest = LIMITS[dtype]
    for scale in (0.5, torch.full((2, 1), 0.5), np.full(4, 0.5, np.float32)):
        store = quantize(x, tmp_path / "x.npy", dtype, scale)
        assert (
            torch.equal(values_of(store), (x / 0.5).clamp(least, largest).to(dtype).float().double() * 0.5)
            or dtype in CODES[:2]
        )
        assert values_of(store)[0, 2:].tolist() == [largest * 0.5, least * 0.5]
        below = 2 if dtype == torch.uint8 else 1  # -3 and -1e6
        assert store.error.saturated == 2 + below
    assert FeatureStore.open(tmp_path / "x.npy").error == store.error


@pytest.mark.parametrize(("dtype", "half_step"), [(torch.float8_e4m3fn, 16.0), (torch.float8_e5m2, 4096.0)])
def test_what_counts_as_saturated(tmp_path, dtype, half_step):
    """More than half a step beyond the last code."""
    most = LIMITS[dtype][1]
    x = torch.tensor([[most + half_step - 1, -most - half_step + 1, most + half_step + 1, -most - half_step - 1]])
    assert quantize(x, tmp_path / "x.npy", dtype, 1.0).error.saturated == 2


def test_inf_and_nan_beside_given_scales(tmp_path):
    x = torch.tensor([[1.0, 3e38, -torch.inf, torch.nan]])
    for scale in (1e-42, 0.0):  # 3e38 / 1e-42 is no number of fp32 either
        store = quantize(x, tmp_path / "x.npy", torch.float8_e5m2, scale)
        last = 57344.0 if scale else 0.0
        assert store.data[0, :3].tolist() == [last, last, -torch.inf] and store.data[0, 3].isnan()
        assert store.error.saturated == 2


def test_the_mean_is_over_finite_values(tmp_path):
    x = torch.tensor([[2.0, 1.9], [torch.nan, 3.3], [torch.nan, 4.7], [torch.nan, 0.4]])
    error = quantize(x, tmp_path / "x.npy", torch.float8_e4m3fn, 1.0).error
    lost = (x.to(torch.float8_e4m3fn).float() - x).abs()
    assert error.mean == pytest.approx(lost.nansum().item() / 5) and error.mean_of_columns[1] == pytest.approx(
        error.mean * 5 / 4
    )


def test_wide_numbers(tmp_path):
    """fp64 beside inf, and integers that fp32 does not have."""
    x = torch.tensor([[1.0, torch.inf]], dtype=torch.float64)
    assert quantize(x, tmp_path / "x.npy", torch.float8_e5m2).gather(torch.tensor([0]))[0, 1] == torch.inf
    for dtype in (torch.int32, torch.int64):
        assert quantize(torch.full((2, 3), 2**30 + 1, dtype=dtype), tmp_path / "x.npy", torch.uint8).error.largest == 1


def test_rows_of_more_than_a_block(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules["halfgnn.dataloading.quantize"], "_BLOCK_BYTES", 64)
    x = torch.rand(3, 17)
    store = quantize(x, tmp_path / "x.npy", torch.uint8)
    assert (store.gather(torch.arange(3)).float() - x).abs().max() < 0.003


def test_given_scales_of_rows_in_blocks(tmp_path):
    x = torch.randn(9, 5)
    scale = 0.01 + torch.rand(9, 1)
    store = quantize(x, tmp_path / "x.npy", torch.int8, scale, block_rows=1)
    assert torch.equal(store.data, (x / scale).round().clamp(-128, 127).to(torch.int8))


def test_given_scales_and_zero_points(tmp_path):
    """Those of other rows, for example of the training set."""
    train, test = torch.rand(100, 6) + 3, torch.rand(30, 6) + 3
    first = quantize(train, tmp_path / "train.npy", torch.uint8, "column")
    store = quantize(test, tmp_path / "test.npy", torch.uint8, first.scale, zero_point=first.zero_point)
    assert torch.equal(store.scale, first.scale) and torch.equal(store.zero_point, first.zero_point)
    within = (test >= train.amin(0)) & (test <= train.amax(0))
    assert ((values_of(store) - test.double()).abs() <= half_steps(test, store))[within].all()
    for dtype in CODES:
        zeros = quantize(test, tmp_path / "zero.npy", dtype, 0.0)
        assert (zeros.gather(torch.arange(30)) == 0).all() and zeros.error.largest == pytest.approx(test.max().item())
        assert zeros.error.saturated == test.numel() and (zeros.data.float() == 0).all()


# ---- sources ----------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(7, 3), (7,), (4, 2, 3), (0, 5), (5, 0), (1, 1)])
def test_shapes(tmp_path, shape):
    x = torch.randn(shape)
    for dtype in CODES:
        for per in PER:
            store = quantize(x, tmp_path / "x.npy", dtype, per, block_rows=3)
            got = store.gather(torch.arange(shape[0]))
            assert got.shape == shape and store.data.shape == shape and store.data.dtype == dtype
            assert ((got.double() - x).abs() <= half_steps(x, store) + x.abs() * 2.0**-10).all()
            assert len(store.error.mean_of_columns) == int(np.prod(shape[1:]))


def sources(x, folder):
    np.save(folder / "source.npy", x.numpy())
    x.numpy().tofile(folder / "source.bin")
    yield x
    yield x.numpy()
    yield str(folder / "source.npy")
    yield np.load(folder / "source.npy", mmap_mode="r")
    yield FeatureStore.open(folder / "source.bin", dtype=x.dtype, shape=tuple(x.shape))
    yield torch.cat([x, x], 1)[:, : x.shape[1]]


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64, torch.int32])
def test_sources(tmp_path, dtype):
    x = (torch.randn(50, 6) * 20).to(dtype)
    expected = None
    for source in sources(x, tmp_path):
        store = quantize(source, tmp_path / "x.npy", torch.uint8, "column", block_rows=7)
        expected = store.data.clone() if expected is None else expected
        assert torch.equal(store.data, expected)
        assert ((values_of(store) - x.double()).abs() <= half_steps(x, store)).all()
    halves = quantize(x.bfloat16(), tmp_path / "y.npy", torch.uint8, "column")
    assert ((values_of(halves) - x.bfloat16().double()).abs() <= half_steps(x.bfloat16(), halves)).all()


def test_a_store_of_codes_is_a_source(tmp_path):
    first = quantize(torch.randn(20, 4), tmp_path / "x.npy", torch.uint8)
    second = quantize(FeatureStore.open(tmp_path / "x.npy", dtype=torch.float32), tmp_path / "y.npy", torch.int8)
    assert ((values_of(second) - values_of(first)).abs() <= half_steps(values_of(first), second)).all()


def test_blocks_and_progress_change_nothing(tmp_path):
    x = of_magnitudes(100, 7)
    seen = []

    def progress(blocks):
        seen.append(len(blocks))
        return blocks

    for per in PER:
        files = []
        for rows in (7, 33, 100, None):
            quantize(x, tmp_path / "x.npy", torch.uint8, per, block_rows=rows, progress=progress)
            files.append((tmp_path / "x.npy").read_bytes() + (tmp_path / "x.scale.npy").read_bytes())
        assert len(set(files)) == 1
    assert seen == [15, 4, 1, 1] + [n for n in (15, 4, 1, 1) for _ in range(2)] * 2


# ---- arguments ------------------------------------------------------------------------------------


def test_wrong_arguments(tmp_path):
    x, out = torch.randn(4, 3), tmp_path / "x.npy"
    other = tmp_path / "other.json"
    other.write_text('{"title": "mine"}')
    np.save(tmp_path / "source.npy", x.numpy())
    for call, error, match in [
        (lambda: quantize(x, out, torch.float16), TypeError, "dtype is torch.float16; expected torch.uint8, torch.int8"),
        (lambda: quantize(x, out, "uint8"), TypeError, "dtype is uint8"),
        (lambda: quantize([[1.0]], out, torch.int8), TypeError, "data is a list"),
        (lambda: quantize(x.to("meta"), out, torch.int8), ValueError, "source is on meta"),
        (lambda: quantize(x.to(torch.complex64), out, torch.int8), TypeError, "source has dtype torch.complex64"),
        (lambda: quantize(x, tmp_path / "x.bin", torch.int8), ValueError, r"out is '.*x.bin'; expected a file .npy"),
        (lambda: quantize(tmp_path / "source.npy", tmp_path / "source.npy", torch.int8), ValueError, "the file of source"),
        (lambda: quantize(x, tmp_path / "other.npy", torch.int8), ValueError, r"other.json is no file of halfgnn"),
        (lambda: quantize(x, out, torch.int8, "rows"), ValueError, "scale is 'rows'; expected one of row, column, tensor"),
        (lambda: quantize(x, out, torch.int8, "row", zero_point=3), ValueError, "zero_point is given beside scale='row'"),
        (lambda: quantize(x, out, torch.int8, torch.ones(5)), ValueError, r"scale has shape \(5,\); expected \(\) for all"),
        (lambda: quantize(x, out, torch.int8, torch.nan), ValueError, "scale has inf or nan"),
        (lambda: quantize(x, out, torch.int8, -1.0), ValueError, "scale has -1.0; expected no number below 0"),
        (lambda: quantize(x, out, torch.float8_e5m2, 1.0, zero_point=3), ValueError, "zero_point is given for torch.float8_e5m2"),
        (lambda: quantize(x, out, torch.int8, block_rows=0), ValueError, "block_rows is 0; expected a positive integer"),
        (lambda: quantize(x, out, torch.int8, None), TypeError, "scale is"),
        *((lambda per=per: quantize(x, out, torch.int8, per, block_rows=2, progress=lambda blocks: list(blocks)[:1]), ValueError,
           "progress gave blocks of 2 rows; expected all that it got, of 4 rows") for per in (*PER, 1.0)),
    ]:  # fmt: skip
        with pytest.raises(error, match=match):
            call()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["other.json", "source.npy"]
    assert other.read_text() == '{"title": "mine"}'
