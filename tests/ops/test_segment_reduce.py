"""segment_reduce, by the accuracy rule of support.py."""

import pytest
import torch

from halfgnn import ops, reference
from tests import support
from tests.support import DEVICES, DTYPES, HALVES, IDTYPES, REDUCES, randn

LENGTHS = {
    "ragged": [3, 0, 1, 7, 0, 0, 12, 2, 30, 0],
    "equal": [4] * 25,
    "one": [40],
    "all_empty": [0, 0, 0],
    "none": [],
    "empty_ends": [0, 5, 5, 0],
}


def check_segment_reduce(seglen, value, reducer, terms=64):
    host = seglen.cpu()
    bound = "mean" if reducer == "mean" else "sum"
    return support.check(
        lambda x: ops.segment_reduce(seglen, x, reducer),
        lambda x: reference.segment_reduce(host, x, reducer),
        [value],
        magnitude=lambda x: reference.segment_reduce(host, x, bound),
        terms=terms,
    )


def test_example(device):
    _, x = support.example(device)
    lengths = torch.tensor([1, 0, 2], device=device)
    assert ops.segment_reduce(lengths, x).tolist() == [[1, 2, 3, 4], [0, 0, 0, 0], [14, 16, 18, 20]]


@pytest.mark.parametrize("device,dtype", support.devices_and(DTYPES))
@pytest.mark.parametrize("reducer", REDUCES)
@pytest.mark.parametrize("name", LENGTHS)
def test_segments(name, reducer, dtype, device):
    seglen = torch.tensor(LENGTHS[name], dtype=IDTYPES[REDUCES.index(reducer) % 2], device=device)
    for shape in ((), (1,), (33,), (4, 8), (2, 0)):
        out, _ = check_segment_reduce(seglen, randn(sum(LENGTHS[name]), *shape, dtype=dtype, device=device), reducer)
        assert (out[seglen == 0] == 0).all()


@pytest.mark.parametrize("device,dtype", support.devices_and([*HALVES, torch.float32]))
@pytest.mark.parametrize("width", support.WIDTHS)
def test_widths(width, dtype, device):
    seglen = torch.tensor(LENGTHS["ragged"], device=device)
    for reducer in REDUCES:
        check_segment_reduce(seglen, randn(int(seglen.sum()), width, dtype=dtype, device=device), reducer)


@pytest.mark.parametrize("device,dtype", support.devices_and([*HALVES, torch.float32]))
@pytest.mark.parametrize("reducer", REDUCES)
def test_one_long_segment(reducer, dtype, device):
    seglen = torch.tensor([5, 100_000, 3], device=device)
    check_segment_reduce(seglen, randn(100_008, 2, dtype=dtype, device=device), reducer, terms=100_000)


@pytest.mark.parametrize("layout", [support.misaligned, support.column_major, support.every_other])
@pytest.mark.parametrize("reducer", REDUCES)
def test_layouts(reducer, layout, device):
    seglen = torch.tensor(LENGTHS["ragged"], device=device)
    value = randn(int(seglen.sum()), 4, 8, dtype=torch.float16, device=device)
    out, _ = check_segment_reduce(seglen, layout(value), reducer)
    assert torch.equal(out, ops.segment_reduce(seglen, value, reducer))


@pytest.mark.parametrize("device,dtype", support.devices_and(DTYPES))
@pytest.mark.parametrize("reducer", ["max", "min"])
def test_ties_nan_and_infinities(reducer, dtype, device):
    nan, inf = torch.nan, torch.inf
    value = [2.0, 2.0, 1.0, nan, 5.0, nan, -inf, -inf, inf, inf]
    value = torch.tensor(value, dtype=dtype, device=device, requires_grad=True)
    out = ops.segment_reduce(torch.tensor([2, 4, 2, 2], device=device), value, reducer)
    assert out[0] == 2 and out[1].isnan() and out[2] == -inf and out[3] == inf
    out.sum().backward()
    assert value.grad.tolist() == [1, 0, 0, 1, 0, 0, 1, 0, 1, 0]


def test_mean_whose_half_sum_overflows(device):
    value = torch.full((300, 2), 6e4, dtype=torch.float16, device=device)
    out = ops.segment_reduce(torch.tensor([300], device=device), value, "mean")
    assert torch.equal(out, value[:1])


@pytest.mark.parametrize("reducer", REDUCES)
def test_gradcheck(reducer):
    value = randn(9, 2, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: ops.segment_reduce(torch.tensor([2, 0, 3, 4]), x, reducer), value)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("reducer", REDUCES)
def test_bitwise_equal_runs_and_threads(reducer, device):
    seglen = torch.tensor([3, 20_000, 0, 500, 1], device=device)
    value = randn(20_504, 8, dtype=torch.float16, device=device)
    grad = randn(5, 8, dtype=torch.float16, device=device)
    threads = torch.get_num_threads()
    try:
        runs = []
        for n in (1, 2, 3):
            torch.set_num_threads(n)
            out, grads = support.evaluate(lambda x: ops.segment_reduce(seglen, x, reducer), [value], grad)
            runs.append([out, *grads])
    finally:
        torch.set_num_threads(threads)
    for other in runs[1:]:
        assert all(torch.equal(a, b) for a, b in zip(runs[0], other))


def test_default_is_sum(device):
    value = torch.ones(5, 2, device=device)
    assert ops.segment_reduce(torch.tensor([2, 3], device=device), value)[:, 0].tolist() == [2, 3]


def test_errors_name_the_arguments_of_the_public_operator():
    seglen, value = torch.tensor([2, 3]), torch.ones(5, 2)
    with pytest.raises(ValueError, match=r"^reducer is 'prod'; expected one of sum, mean, max, min"):
        ops.segment_reduce(seglen, value, "prod")
    with pytest.raises(ValueError, match=r"^seglen is on meta; expected the device of value, cpu"):
        ops.segment_reduce(seglen.to("meta"), value)
