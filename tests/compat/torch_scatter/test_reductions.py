"""Reductions by an index, beside a loop over all elements."""

import itertools
import sys

import pytest
import torch

from halfgnn.compat import torch_scatter
from halfgnn.compat.torch_scatter import _reductions
from halfgnn.compat.torch_scatter._index import graph_of_elements, graph_of_vector
from halfgnn.compat.torch_scatter.utils import broadcast

GROUPS = 7
FORMS = {  # shape of src, dim, shape of index
    "vector": ((40,), 0, (40,)),
    "rows": ((40, 5), 0, (40,)),
    "last": ((3, 40), -1, (40,)),
    "middle": ((2, 40, 3), 1, (40,)),
    "batches": ((2, 40, 3), 1, (2, 40)),
    "broadcast": ((2, 40, 3), 1, (1, 40, 3)),
    "elements": ((2, 40, 3), -2, (2, 40, 3)),
}
REDUCES = ("sum", "mean", "mul", "min", "max")


def case(form, dtype=torch.float64, device="cpu"):
    shape, dim, index_shape = FORMS[form]
    return torch.randint(-4, 5, shape).to(device, dtype), torch.randint(0, GROUPS - 2, index_shape).to(device), dim


def looped(src, index, dim, reduce):
    """Values and positions, element by element."""
    index, dim = broadcast(index, src, dim), dim % src.dim()
    size = list(src.shape)
    size[dim] = GROUPS
    out = torch.full(size, 1.0 if reduce == "mul" else 0.0, dtype=torch.float64)
    arg = torch.full(size, src.shape[dim])
    groups = {}
    for place in itertools.product(*map(range, src.shape)):
        group = (*place[:dim], int(index[place]), *place[dim + 1 :])
        groups.setdefault(group, []).append((float(src[place]), place[dim]))
    for group, entries in groups.items():
        values = torch.tensor([value for value, _ in entries], dtype=torch.float64)
        out[group] = values.prod() if reduce == "mul" else getattr(values, reduce)()
        if reduce in ("min", "max"):
            arg[group] = entries[[value for value, _ in entries].index(float(out[group]))][1]
    return out, arg


@pytest.fixture(params=[False, True], ids=["few", "by_graph"])
def by_graph(request, monkeypatch):
    """Whether sums of few values are by the Graph too."""
    if request.param:
        monkeypatch.setattr(_reductions, "LEAST_SUMMED", 0)
        monkeypatch.setattr(_reductions, "_LEAST_WIDTH", 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64], ids=str)
@pytest.mark.parametrize("form", FORMS)
def test_scatter(form, dtype, device, by_graph):
    src, index, dim = case(form, dtype, device)
    for reduce in REDUCES:
        if reduce == "mul":
            src = src.sign() if dtype is not torch.int64 else src.sign().abs() + 1  # products stay exact
        expected, arg = looped(src.cpu(), index.cpu(), dim, reduce)
        expected = expected.floor() if dtype is torch.int64 else expected.to(dtype)
        out = getattr(torch_scatter, f"scatter_{reduce}")(src, index, dim, dim_size=GROUPS)
        if reduce in ("min", "max"):
            assert torch.equal(out[1].cpu(), arg)
            out = out[0]
        assert out.dtype is dtype and torch.allclose(out.cpu().double(), expected.double(), rtol=1e-6), reduce
        assert torch.equal(
            torch_scatter.scatter(src, index, dim, reduce=reduce), out.narrow(dim, 0, int(index.max()) + 1)
        )


@pytest.mark.parametrize("form", FORMS)
def test_out_is_one_entry_more(form, by_graph):
    src, index, dim = case(form)
    shape = looped(src, index, dim, "sum")[0].shape
    for reduce in REDUCES:
        out = torch.randint(-4, 5, shape).double()
        before = out.clone()
        result = getattr(torch_scatter, f"scatter_{reduce}")(src, index, dim, out)
        result = result[0] if isinstance(result, tuple) else result
        groups = torch.arange(GROUPS).view([-1 if place == dim % src.dim() else 1 for place in range(src.dim())])
        own = broadcast(index, src, dim), groups.expand(shape)
        expected, _ = looped(torch.cat([before, src], dim), torch.cat([own[1], own[0]], dim), dim, reduce)
        if reduce == "mean":  # out is not counted
            counts, _ = looped(torch.ones_like(src), index, dim, "sum")
            expected = expected * (counts + 1) / counts.clamp(min=1)
        assert result is out and torch.allclose(out, expected)


@pytest.mark.parametrize("form", FORMS)
def test_derivatives(form, by_graph):
    src, index, dim = case(form)
    src = (torch.randperm(src.numel()).view(src.shape) / 40.0 - 1.01).double()  # without ties and zeros
    index = index.clone()
    functions = [f"scatter_{reduce}" for reduce in REDUCES] + [
        "scatter_softmax",
        "scatter_log_softmax",
        "scatter_logsumexp",
    ]
    for name in functions:

        def call(x, name=name):
            out = getattr(torch_scatter, name)(x, index, dim)
            return out[0] if isinstance(out, tuple) else out

        src.requires_grad_()
        assert torch.autograd.gradcheck(call, src, fast_mode=True), name
        assert torch.autograd.gradgradcheck(call, src, fast_mode=True), name


def test_composites_are_those_of_each_group(by_graph):
    src, index = torch.randn(300), torch.randint(0, GROUPS - 1, (300,))
    softmax, log_softmax = torch_scatter.scatter_softmax(src, index), torch_scatter.scatter_log_softmax(src, index)
    logsumexp, std = (
        f(src, index, dim_size=GROUPS) for f in (torch_scatter.scatter_logsumexp, torch_scatter.scatter_std)
    )
    for group in range(GROUPS - 1):
        x = src[index == group]
        assert torch.allclose(softmax[index == group], x.softmax(0), atol=1e-6)
        assert torch.allclose(log_softmax[index == group], x.log_softmax(0), atol=1e-6)
        assert torch.allclose(logsumexp[group], x.logsumexp(0)) and torch.allclose(std[group], x.std(), atol=1e-4)
    assert logsumexp[-1] == 0 and std[-1] == 0
    with pytest.raises(ValueError, match="floating point"):
        torch_scatter.scatter_softmax(index, index)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_sums_of_halves_are_rounded_once(dtype, device):
    src = torch.rand(3000, 8, device=device).to(dtype)
    zeros = torch.zeros(3000, dtype=torch.int64, device=device)
    expected = src.double().sum(0, keepdim=True)
    for index in (zeros, zeros.view(-1, 1).repeat(1, 8)):
        for name, scale in (("sum", 1), ("mean", 3000)):
            out = getattr(torch_scatter, f"scatter_{name}")(src, index, 0)
            assert torch.allclose(out.double(), (expected / scale).to(dtype).double(), rtol=torch.finfo(dtype).eps)


def test_sorted_index_and_what_the_operators_do_not_take(device):
    """Sums in a fixed order by PyTorch, as fp64 on CUDA has them, and one group per element."""
    src, index, _ = case("rows", torch.float64, device)
    for ids in (index, index.sort()[0]):
        g = graph_of_vector(ids, GROUPS)
        for reduce, name in (("sum", "sum"), ("mean", "mean"), ("prod", "mul")):
            expected = looped(src.cpu(), ids.cpu(), 0, name)[0]
            assert torch.allclose(_reductions._by_segments(g, src, reduce, src.dtype).cpu(), expected)
    src, index, dim = case("elements", torch.float32, device)
    g = graph_of_elements(index, src.shape, dim % 3, GROUPS)
    out = _reductions.over_rows(g, src.reshape(-1), 0, "sum", src.dtype).view(2, GROUPS, 3)
    assert torch.allclose(out.cpu().double(), looped(src.cpu(), index.cpu(), dim, "sum")[0])


def test_an_index_that_is_written_to(by_graph):
    src, index, _ = case("rows")
    view = index.view(-1, 1).expand_as(src)
    for _ in range(2):
        expected = looped(src, index, 0, "sum")[0]
        assert torch.equal(torch_scatter.scatter_sum(src, index, 0, dim_size=GROUPS), expected)
        assert torch.equal(torch_scatter.scatter_sum(src, view, 0, dim_size=GROUPS), expected)
        index.copy_(index.flip(0))


def test_results_may_be_written_to(by_graph):
    src, index, _ = case("rows")
    for function in (torch_scatter.scatter_max, torch_scatter.scatter_sum, torch_scatter.scatter_mean):
        x = src.clone().requires_grad_()
        out = function(x * 1, index, 0)
        out = out[0] if isinstance(out, tuple) else out
        out[out > 1] = 0
        out.sum().backward()
        assert torch.isfinite(x.grad).all()


def test_nan_and_infinity():
    src, ids = torch.tensor([1.0, float("nan"), 2.0, -torch.inf, -torch.inf]), torch.tensor([0, 0, 0, 1, 1])
    for index in (ids, ids.view(1, -1).repeat(2, 1)):
        out, arg = torch_scatter.scatter_max(src.expand(index.shape), index, -1, dim_size=3)
        out, arg = out.view(-1, 3)[0], arg.view(-1, 3)[0]
        assert out[0].isnan() and out[1] == -torch.inf and out[2] == 0
        assert arg.tolist() == [1, 3, 5]


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="torch.jit.script ends with Python 3.13")
@pytest.mark.filterwarnings("ignore:.*torch.jit.script")
def test_scripts_call_it():
    def function(x: torch.Tensor, index: torch.Tensor):
        out, arg = torch_scatter.scatter_max(x, index, 0)
        return torch_scatter.scatter(x, index, 0, reduce="mean") + out, arg

    src, index, _ = case("rows")
    for scripted, eager in zip(torch.jit.script(function)(src, index), function(src, index)):
        assert torch.equal(scripted, eager)


@pytest.mark.parametrize(
    "change, error, match",
    [
        (
            {"index": torch.tensor([0, 1])},
            ValueError,
            r"index has shape \(2,\) and src \(40, 5\); expected 1 or 40 at dim 0",
        ),
        ({"index": torch.zeros(40)}, TypeError, "index has dtype torch.float32"),
        ({"index": torch.full((40,), 9)}, IndexError, r"index holds 9; expected ids in \[0, 7\)"),
        ({"dim": 2}, IndexError, "dim is 2; expected one of the 2 dimensions"),
        (
            {"out": torch.zeros(7, 4)},
            ValueError,
            r"out has shape \(7, 4\); expected that of src, \(40, 5\), but at dim 0",
        ),
        ({"reduce": "prod"}, ValueError, "reduce is prod"),
    ],
)
def test_errors(change, error, match, monkeypatch):
    monkeypatch.setattr(_reductions, "LEAST_SUMMED", 0)
    src, index, dim = case("rows", torch.float32)
    with pytest.raises(error, match=match):
        torch_scatter.scatter(**{"src": src, "index": index, "dim": dim, "dim_size": GROUPS, **change})


def test_entries_without_ids():
    """An index of which another dimension is 0 holds no ids, and none are read from memory that nobody wrote."""
    src, index = torch.zeros(3, 0, 5, requires_grad=True), torch.zeros(3, 0, 5, dtype=torch.int64)
    assert torch_scatter.scatter_sum(src, index, 2).shape == (3, 0, 0)
    assert torch_scatter.scatter_softmax(src, index, 2).shape == src.shape
    torch_scatter.scatter_mean(src, index, 2, dim_size=4).sum().backward()
    assert src.grad.shape == src.shape


def test_maxima_of_one_row_have_gradients():
    """They are a view of what the operator returned if moving dimensions of 1 leaves it contiguous."""
    src = torch.tensor([[[1.0], [3.0]], [[5.0], [2.0]]], requires_grad=True)
    out, arg = torch_scatter.scatter_max(src, torch.tensor([0, 0]), 1)
    out.mul_(2).sum().backward()
    assert out.flatten().tolist() == [6.0, 10.0] and arg.flatten().tolist() == [1, 0]
    assert src.grad.flatten().tolist() == [0.0, 2.0, 2.0, 0.0]


def test_std_of_fp64_is_fp64():
    src = torch.randn(30, 4, dtype=torch.float64)
    out = torch_scatter.scatter_std(src, torch.zeros(30, dtype=torch.int64), 0)[0]
    torch.testing.assert_close(out, src.std(0) * (29 / (29 + 1e-6)) ** 0.5, rtol=1e-14, atol=0)


def test_the_first_id_out_of_range_is_refused():
    """The kernel does not look: its Graph says how many groups there are."""
    src, index = torch.ones(5000, 8), torch.arange(5000) % 7
    with pytest.raises(IndexError, match="index holds 6; expected ids in \\[0, 6\\)"):
        torch_scatter.scatter_sum(src, index, 0, dim_size=6)


def test_the_graph_of_sorted_ids_is_a_copy():
    """A write to the index between forward and backward does not reach what the backward reads."""
    src, index = torch.randn(6000, 8, requires_grad=True), torch.arange(6000, dtype=torch.int32) // 600
    out = torch_scatter.scatter_sum(src, index, 0)
    index.fill_(2**30)
    out[3].sum().backward()
    assert src.grad.sum(1).nonzero().flatten().tolist() == list(range(1800, 2400))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_gradients_of_maxima_of_halves(dtype):
    src = torch.tensor([[1.0], [3.0], [2.0]], dtype=dtype, requires_grad=True)
    torch_scatter.scatter_max(src, torch.tensor([0, 0, 1]), 0)[0].backward(torch.tensor([[0.5], [-3.0]], dtype=dtype))
    assert src.grad.flatten().tolist() == [0.0, 0.5, -3.0]


def test_out_of_halves_is_added_before_rounding():
    src, index = torch.full((40, 1), 2000.0, dtype=torch.float16), torch.zeros(40, dtype=torch.int64)
    out = torch.full((1, 1), -60000.0, dtype=torch.float16)
    assert torch_scatter.scatter_mean(src, index, 0, out=out).item() == 500  # the sum alone is beyond fp16


def test_nan_wins_over_out():
    src, out = torch.tensor([[float("nan")], [1.0]]), torch.tensor([[5.0], [0.0]])
    value, arg = torch_scatter.scatter_max(src, torch.tensor([0, 1]), 0, out=out)
    assert value[0].isnan() and value[1] == 1 and arg.flatten().tolist() == [0, 1]
