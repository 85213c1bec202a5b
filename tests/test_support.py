"""The accuracy rule itself: it must accept one rounding and refuse every known way to lose precision. And samples of cases."""

from types import SimpleNamespace

import pytest
import torch

from tests import support
from tests.sample import sample
from tests.support import HALVES, Yardstick, assert_accurate

TERMS = 64


@pytest.fixture(params=HALVES, ids=str)
def half(request):
    return request.param


def _sums(half, positive=False):
    """Half-rounded terms (rows, TERMS), their sums in float64, the half formula and the sum of magnitudes."""
    terms = torch.randn(500, TERMS, dtype=torch.float64).to(half)
    terms = terms.abs() if positive else terms
    formula = torch.zeros(500, dtype=half)
    for column in terms.unbind(1):
        formula = formula + column
    return terms, Yardstick(terms.double().sum(1), formula, terms.double().abs().sum(1), TERMS)


def test_accepts_float32_accumulation_rounded_once(half):
    terms, yardstick = _sums(half)
    assert_accurate(terms.float().cumsum(1)[:, -1].to(half), yardstick)


def test_refuses_half_accumulation(half):
    _, yardstick = _sums(half)
    with pytest.raises(AssertionError, match="rounded more than once"):
        assert_accurate(yardstick.formula, yardstick)


def test_refuses_worse_than_the_half_formula_without_magnitudes(half):
    _, yardstick = _sums(half)
    yardstick.magnitude = None
    off = yardstick.truth.clone()
    off[17] += 3 * (yardstick.formula.double() - off).abs().max() + support.ulp(off.abs().max(), half)
    with pytest.raises(AssertionError, match=r"passes .* twice .* element \(17,\)"):
        assert_accurate(off.to(half), yardstick)


def test_accepts_the_half_formula_itself_without_magnitudes():
    # bfloat16 has so few digits that its own formula is sometimes visibly biased. float16 shows the rule.
    _, yardstick = _sums(torch.float16)
    yardstick.magnitude = None
    assert_accurate(yardstick.formula, yardstick)


@pytest.mark.parametrize("towards", ["zero", "-inf"])
def test_refuses_truncation(half, towards):
    _, yardstick = _sums(half)
    truth = yardstick.truth
    near = truth.to(half)
    step = torch.full_like(near, 0.0 if towards == "zero" else -torch.inf)
    beyond = near.double().abs() > truth.abs() if towards == "zero" else near.double() > truth
    cut = torch.where(beyond, torch.nextafter(near, step), near)
    yardstick.magnitude = (
        None  # the error of truncation is less than one unit in the last place, so only its sign shows it
    )
    with pytest.raises(AssertionError, match="errors lean"):
        assert_accurate(cut, yardstick)


def test_refuses_a_single_wrong_last_digit(half):
    _, yardstick = _sums(half)
    got = yardstick.truth.to(half)
    got[3] = torch.nextafter(got[3], torch.tensor(torch.inf, dtype=half))
    got[3] = torch.nextafter(got[3], torch.tensor(torch.inf, dtype=half))
    with pytest.raises(AssertionError, match=r"rounded more than once.*element \(3,\)"):
        assert_accurate(got, yardstick)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_wide_types(dtype):
    terms = torch.randn(500, TERMS, dtype=dtype)
    # For float64 the truth must be more exact than float64. Sums of integers below 2**40 are exact.
    terms = (terms * 2**20).round() if dtype == torch.float64 else terms
    yardstick = Yardstick(terms.double().sum(1), None, terms.double().abs().sum(1), TERMS)
    assert_accurate(terms.sum(1), yardstick)
    with pytest.raises(AssertionError, match="rounded more than once"):
        assert_accurate((terms.sum(1).double() * (1 + 2e3 * torch.finfo(dtype).eps)).to(dtype), yardstick)


def test_overflow_must_be_infinite_and_nothing_else_may_be():
    truth = torch.tensor([7e4, 1.0, -7e4, torch.nan, torch.inf], dtype=torch.float64)
    right = torch.tensor([torch.inf, 1.0, -torch.inf, torch.nan, torch.inf], dtype=torch.float16)
    assert_accurate(right, Yardstick(truth))
    for position, bad in [(0, 65504.0), (1, torch.inf), (2, torch.inf), (3, 0.0), (1, torch.nan), (4, torch.nan)]:
        wrong = right.clone()
        wrong[position] = bad
        with pytest.raises(AssertionError, match="wrong infinity or NaN"):
            assert_accurate(wrong, Yardstick(truth))


def test_shape_must_match():
    with pytest.raises(AssertionError, match="shape"):
        assert_accurate(torch.zeros(2, 1), Yardstick(torch.zeros(2)))


@pytest.mark.parametrize("dtype", support.DTYPES, ids=str)
def test_ulp(dtype):
    x = torch.tensor([1.0, 1.5, 2.0, -3.9, 2.0**-10, 0.75], dtype=torch.float64)
    upper = torch.nextafter(x.abs().to(dtype), torch.tensor(torch.inf, dtype=dtype)).double()
    assert torch.equal(support.ulp(x.to(dtype).double(), dtype), upper - x.abs().to(dtype).double())
    info = torch.finfo(dtype)
    assert support.ulp(torch.zeros((), dtype=torch.float64), dtype) == info.tiny * info.eps


def test_zeros_are_accurate_where_subnormal_numbers_are_zero():
    zeros = torch.zeros(3, 1, dtype=torch.float64)
    torch.set_flush_denormal(True)
    try:
        assert_accurate(zeros, Yardstick(zeros, zeros, zeros))
    finally:
        torch.set_flush_denormal(False)


def test_input_layouts_keep_values():
    x = torch.arange(24.0).view(4, 3, 2)
    for layout in (support.misaligned, support.column_major, support.every_other):
        assert torch.equal(layout(x), x)
    assert support.misaligned(x).storage_offset() == 1 and support.misaligned(x).is_contiguous()
    assert not support.column_major(x).is_contiguous() and not support.every_other(x).is_contiguous()


@pytest.mark.parametrize("name", support.GRAPHS)
def test_zoo_is_what_it_says(name):
    plain, sorted_ = support.make_graph(name), support.make_graph(name, identity=True)
    assert sorted_.csc()[2] is None
    for side in (0, 1):
        assert plain.edges()[side].sort()[0].equal(sorted_.edges()[side].sort()[0])


def test_check_runs_the_gradients():
    """A wrong gradient must not pass."""

    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            return grad * 2.01

    x = torch.randn(40, 3, dtype=torch.float64).half()
    support.check(lambda x: x * 2, lambda x: x * 2, [x])
    with pytest.raises(AssertionError, match="gradient of operand 0"):
        support.check(Wrong.apply, lambda x: x * 2, [x])


class Case:
    """What a sample reads of a case of pytest."""

    path, originalname = "test_a.py", "test_a"

    def __init__(self, **params):
        self.callspec = SimpleNamespace(params=params)


@pytest.mark.parametrize("most", [1, 11, 12])
def test_a_sample_has_every_value(most):
    cases = [Case(op=op, width=width) for op in ("add", "mul", "dot") for width in (1, 2, 3, 4)]
    kept = sample(cases, most)
    values = {pair for case in kept for pair in case.callspec.params.items()}
    assert values == {pair for case in cases for pair in case.callspec.params.items()}
    assert len(kept) == (12 if most == 12 else 4)
