"""Sums that are left to Inductor, with what computes their values of the rows of both ends."""

import pytest
import torch

import halfgnn.compiled
from halfgnn.compiled import chains
from tests import support
from tests.support_compiled import compiled

pytestmark = pytest.mark.skipif(support.SIMULATED, reason="about FX graphs")

N, E, C = 50, 400, 8
LEFT = "left alone: index_add: Inductor fuses what it reduces"


def inputs(dtype=torch.float32):
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(N, C, generator=generator).to(dtype)
    return (
        x.requires_grad_(),
        torch.randint(N, (2, E), generator=generator),
        torch.rand(E, 1, generator=generator).to(dtype),
    )


def differences(x, ids, w):
    return torch.zeros_like(x).index_add(0, ids[1], (x[ids[0]] - x[ids[1]]) * w)


def gates(x, ids, w):
    return torch.zeros_like(x).index_add(0, ids[1], torch.sigmoid(x[ids[0]] + x[ids[1]]) * x[ids[0]])


def scaled(x, ids, w):
    """Whose factor and term of destinations leave the sum."""
    return torch.zeros_like(x).index_add(0, ids[1], x[ids[1]] * x[ids[0]] * w + x[ids[1]])


def of_layers(x, ids, w):
    rows = torch.nn.functional.linear(x[ids[0]] - x[ids[1]], torch.eye(C, dtype=x.dtype)).relu()
    return torch.zeros_like(x).index_add(0, ids[1], rows)


def narrow(x, ids, w):
    return torch.zeros_like(x).index_add(0, ids[1], x[ids[0]] * (x[ids[0], :1] - x[ids[1], :1]).tanh())


def read_twice(x, ids, w):
    """Rows that something else reads too, with a gradient that a Graph sums."""
    rows = x[ids[0]]
    return (
        torch.zeros_like(x).index_add(0, ids[1], (rows - x[ids[1]]) * w).sum()
        + (rows @ torch.eye(C, dtype=x.dtype)).sin().sum()
    )


def run(function, dtype=torch.float32):
    halfgnn.compiled.reset_stats()
    data = inputs(dtype)
    truth = inputs(torch.float64)
    out, expected = compiled(function)(*data), function(*truth)
    grads = [torch.autograd.grad(y.sum(), x)[0] for y, x in ((out, data[0]), (expected, truth[0]))]
    limit = 64 * torch.finfo(dtype).eps
    for a, b in ((out, expected), grads):
        assert float((a.double() - b).norm()) <= limit * float(b.norm())
    return halfgnn.compiled.stats()


@pytest.fixture
def one_thread(monkeypatch):
    monkeypatch.setattr(chains, "_has_one_thread", lambda x: True)


@pytest.mark.parametrize("function", [differences, gates], ids=lambda f: f.__name__)
def test_left_on_one_thread(one_thread, function):
    assert run(function) == {"graphs": 1, LEFT: 1}


@pytest.mark.parametrize("function", [differences, gates], ids=lambda f: f.__name__)
def test_lowered_on_several_threads(function):
    assert run(function)["gspmm:u_mul_e_sum"] == 1


@pytest.mark.parametrize("dtype", support.HALVES, ids=str)
def test_halves_are_lowered(one_thread, dtype):
    """Inductor's sums of halves are halves."""
    assert run(differences, dtype)["gspmm:u_mul_e_sum"] == 1


@pytest.mark.parametrize(
    ("function", "operator"),
    [(scaled, "gspmm:u_mul_e_sum"), (of_layers, "gspmm:copy_e_sum"), (narrow, "gspmm:u_mul_e_sum")],
    ids=lambda x: getattr(x, "__name__", x),
)
def test_lowered(one_thread, function, operator):
    stats = run(function)
    assert stats[operator] >= 1 and LEFT not in stats


def test_rows_that_something_else_reads(one_thread):
    stats = run(read_twice)
    assert stats[LEFT] == 1


def test_deterministic(monkeypatch):
    monkeypatch.undo()
    x, before = torch.ones(2), torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        assert chains._has_one_thread(x)
        torch.use_deterministic_algorithms(True)
        assert not chains._has_one_thread(x)
        torch.use_deterministic_algorithms(False)
        torch.set_num_threads(2)
        assert not chains._has_one_thread(x)
    finally:
        torch.use_deterministic_algorithms(False)
        torch.set_num_threads(before)
