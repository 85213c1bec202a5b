"""Groups that hold nan, infinities or one entry, beside PyTorch's functions of each group in fp64, and their gradients."""

import itertools
import math

import pytest
import torch

from halfgnn.compat import torch_scatter
from halfgnn.compat.torch_scatter import _reductions

NAN, INF = math.nan, math.inf
VALUES = (0.0, 1.5, -3.0, -1e15, NAN, -INF, INF)
GROUPS = [*map(list, itertools.product(VALUES, VALUES)), [1.0, 2.0, 4.0], [2.0, 2.0, 2.0], [-INF], [NAN], [INF]]
EMPTY = 7  # a group without entries
WHOLE = {  # of one group along dimension 0
    "logsumexp": lambda x: x.logsumexp(0),
    "std": lambda x: x.std(0),
    "max": lambda x: x.max(0)[0],
    "min": lambda x: x.min(0)[0],
    "sum": lambda x: x.sum(0),
    "mean": lambda x: x.mean(0),
    "mul": lambda x: x.prod(0),
}
OF_ENTRIES = {"softmax": lambda x: x.softmax(0), "log_softmax": lambda x: x.log_softmax(0)}


@pytest.fixture(params=["few", "by_graph", "wide"])
def columns(request, monkeypatch):
    """Of a wide matrix, and with few values by the Graph too, other code reduces."""
    if request.param == "by_graph":
        monkeypatch.setattr(_reductions, "LEAST_SUMMED", 0)
        monkeypatch.setattr(_reductions, "_LEAST_WIDTH", 0)
    return 200 if request.param == "wide" else 1


def grouped(columns, dtype=torch.float32):
    """(src, index, entries of every group): numbered from 0, but for EMPTY, in another order than that of groups."""
    numbers = [number for number in range(len(GROUPS) + 1) if number != EMPTY]
    src = torch.tensor([value for group in GROUPS for value in group]).to(dtype)
    index = torch.tensor(numbers).repeat_interleave(torch.tensor([len(group) for group in GROUPS]))
    order = torch.randperm(len(src))
    places = [(index[order] == number).nonzero().flatten() for number in numbers]
    return src[order].view(-1, 1).repeat(1, columns), index[order], dict(zip(numbers, places))


def call(name, src, index, **options):
    result = getattr(torch_scatter, f"scatter_{name}")(src, index, 0, **options)
    return result[0] if isinstance(result, tuple) else result


def assert_near(result, expected, what, rtol=1e-4):
    torch.testing.assert_close(
        result.double(), expected, rtol=rtol, atol=1e-6, equal_nan=True, msg=lambda m: f"{what}: {m}"
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.filterwarnings("ignore:std")
def test_every_group_has_the_value_of_pytorchs_function(columns, dtype):
    src, index, groups = grouped(columns, dtype)
    for name, whole in {**WHOLE, **OF_ENTRIES}.items():
        out = call(name, src, index)
        for number, places in groups.items():
            expected = whole(src[places].double())
            if name == "std" and len(places) == 1 and src[places].isfinite().all():
                expected = torch.zeros_like(expected)  # as torch_scatter documents it
            part = out[places] if name in OF_ENTRIES else out[number]
            assert_near(part, expected, (name, src[places, 0].tolist()), rtol=1e-2 if dtype is torch.bfloat16 else 1e-4)
        if name not in OF_ENTRIES:
            assert bool((out[EMPTY] == (1 if name == "mul" else 0)).all())


@pytest.mark.parametrize("value", [0.5, 200.0, NAN, INF, -INF])
def test_out_of_logsumexp_is_one_entry_more(columns, value):
    src, index, groups = grouped(columns)
    out = torch.full((len(GROUPS) + 1, columns), value)
    assert torch_scatter.scatter_logsumexp(src, index, 0, out) is out
    for number, places in groups.items():
        expected = torch.cat([src[places], torch.full((1, columns), value)]).double().logsumexp(0)
        assert_near(out[number], expected, (value, src[places, 0].tolist()))
    assert_near(out[EMPTY], torch.full((columns,), value).double(), "no entries")


@pytest.mark.parametrize("value", [0.5, NAN, INF])
def test_out_of_others_is_not_lost(columns, value):
    src, index, groups = grouped(columns)
    for name in ("sum", "max", "min", "std"):
        out = torch.full((len(GROUPS) + 1, columns), value)
        result = call(name, src, index, out=out)
        for number, places in groups.items():
            x, before = src[places].double(), torch.full((columns,), value).double()
            if name == "std":
                expected = ((x - x.mean(0)).square().sum(0) + before).div(max(len(places) - 1, 1)).sqrt()
            else:
                expected = WHOLE[name](torch.cat([x, before.view(1, -1)]))
            assert_near(result[number], expected, (name, value, x[:, 0].tolist()))


@pytest.mark.filterwarnings("ignore:std")
def test_gradients_are_those_of_pytorchs_functions(columns):
    src, index, groups = grouped(columns, torch.float64)
    for name, whole in {**WHOLE, **OF_ENTRIES}.items():
        if name in ("max", "min"):
            continue  # of equal entries the first one wins here
        x = src.clone().requires_grad_()
        out = call(name, x, index)
        grad = torch.randn_like(out)
        out.backward(grad)
        for number, places in groups.items():
            part = src[places].requires_grad_()
            if name == "mul" and not part.isfinite().all():
                continue  # PyTorch's scatter_reduce divides by the entry, and loses no nan
            whole(part).backward(grad[places] if name in OF_ENTRIES else grad[number])
            expected = part.grad
            if name == "logsumexp" and bool((part == -INF).all()):
                expected = torch.zeros_like(part)  # by eps
            elif name == "logsumexp" and bool(part.isfinite().all()):
                expected = part.softmax(0).detach() * grad[number]  # PyTorch's is rounded where entries are huge
            elif name == "std" and len(places) == 1 and part.isfinite().all():
                expected = torch.zeros_like(part)
            assert_near(x.grad[places], expected, (name, part[:, 0].tolist()))


def test_deviations_of_equal_entries_have_second_derivatives():
    x = torch.tensor([2.0, 2.0, 1.0, 5.0], dtype=torch.float64, requires_grad=True)
    out = torch_scatter.scatter_std(x, torch.tensor([0, 0, 1, 1]), dim_size=3)
    (first,) = torch.autograd.grad(out.sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), x)
    assert out.tolist()[0] == out.tolist()[2] == 0 and first[:2].tolist() == [0, 0]
    assert bool(first.isfinite().all() and second.isfinite().all())


def test_out_of_deviations_of_halves_is_added_before_rounding():
    src, out = torch.tensor([[0.0], [4.0]], dtype=torch.float16), torch.full((1, 1), 65504.0, dtype=torch.float16)
    result = torch_scatter.scatter_std(src, torch.tensor([0, 0]), 0, out=out)
    assert abs(result.item() - (65504.0 + 8) ** 0.5) < 0.2


def test_segments_hide_nothing(columns):
    src, _, _ = grouped(columns, torch.float64)
    src = (
        torch.tensor([value for group in GROUPS for value in group], dtype=torch.float64).view(-1, 1).repeat(1, columns)
    )
    lengths = torch.tensor([len(group) for group in GROUPS])
    indptr = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    for name in ("sum", "mean", "max", "min"):
        out = torch_scatter.segment_csr(src, indptr, reduce=name)
        by_index = torch_scatter.segment_coo(src, torch.arange(len(GROUPS)).repeat_interleave(lengths), reduce=name)
        for number, (first, last) in enumerate(itertools.pairwise(indptr.tolist())):
            for result in (out, by_index):
                assert_near(result[number], WHOLE[name](src[first:last]), (name, GROUPS[number]))
