"""stats() of programs that take rows and add them up by PyTorch's own operators: routes are counted, refusals have reasons."""

from __future__ import annotations

import pytest
import torch
from torch_geometric import utils

import halfgnn.pyg
from halfgnn.pyg.drop_in import thresholds
from tests import support
from tests.pyg.test_patch_modules import randn

pytestmark = pytest.mark.skipif(not support.supports("cpu", torch.float32), reason="needs float32")
LIMITS = {name: getattr(thresholds, name) for name in ("LIMITS", *support.ROUTED_FROM)}  # of users, not of tests
NODES, ROWS, WIDTH = 100, 6000, 64


@pytest.fixture(autouse=True)
def _users_sizes(monkeypatch, _routes_small_calls):
    for name, value in LIMITS.items():
        monkeypatch.setattr(thresholds, name, value)


def ids(num_rows=ROWS):
    return torch.randint(0, NODES, (num_rows,), generator=torch.Generator().manual_seed(1))


def rows(num_rows=ROWS, requires_grad=False):
    return randn(num_rows, WIDTH, seed=1).float().requires_grad_(requires_grad)


def counted(call, **options):
    with halfgnn.pyg.accelerate(**options):
        call()
    stats = halfgnn.pyg.stats()
    return stats["routed"], stats["fell_back"]


def zeros():
    return torch.zeros(NODES, WIDTH)


SUMS = {
    "an index repeated for every column": (
        lambda i, x: zeros().scatter_add_(0, i[:, None].repeat(1, WIDTH), x), "scatter_add", "an index per value",
    ),
    "maxima": (
        lambda i, x: zeros().scatter_reduce_(0, i[:, None].expand_as(x), x, "amax"), "scatter_reduce", "no such operator",
    ),
    "means with what is there": (
        lambda i, x: zeros().scatter_reduce(0, i[:, None].expand_as(x), x, "mean"), "scatter_reduce", "no such operator",
    ),
    "alpha": (lambda i, x: zeros().index_add_(0, i, x, alpha=2), "index_add", "alpha"),
    "another dimension": (lambda i, x: zeros().t().index_add(1, i, x.t()), "index_add", "another dimension"),
    "a class": (
        lambda i, x: torch.nn.Parameter(zeros(), False).index_add(0, i, x), "index_add", "tensor subclass",
    ),
    "no rows": (lambda i, x: zeros().index_add_(0, i[:0], x[:0]), None, None),
    "gradients of few values": (
        lambda i, x: zeros().index_add(0, i[:2000], x[:2000].clone().requires_grad_()), "index_add", "few values",
    ),
    "a new index": (lambda i, x: zeros().index_add(0, i[:2000].clone(), x[:2000]), "index_add",
                    "first use of an index"),
}  # fmt: skip


@pytest.mark.parametrize("name", SUMS)
def test_sums_that_stay_pytorchs(name):
    call, function, reason = SUMS[name]
    routed, fell_back = counted(lambda: call(ids(), rows()))
    assert routed == {}
    assert fell_back == ({} if function is None else {function: {reason: 1}})


def test_sums_and_gradients_that_are_routed():
    index, x = ids(), rows(NODES, True)

    def steps():
        for _ in range(8):
            torch.zeros(NODES, WIDTH).index_add_(0, index, x[index]).sum().backward()

    routed, fell_back = counted(steps)
    assert routed.keys() == {"x[index]", "index_add"}
    for name in routed:
        assert routed[name] + sum(fell_back.get(name, {}).values()) == 8
        assert fell_back.get(name, {}).keys() <= {"first use of an index", "first uses of an index"}


@pytest.mark.parametrize(
    "take", [lambda x, i: x[i], lambda x, i: x.index_select(0, i), lambda x, i: torch.index_select(x, 0, i)]
)
def test_first_uses_of_an_index(take):
    routed, fell_back = counted(lambda: take(rows(NODES, True), ids(1000)))
    assert (routed, fell_back) == ({}, {"x[index]": {"first use of an index": 1}})


def test_rows_that_are_no_messages():
    """Under fuse=True: by an index that is no row of an edge_index."""
    index = ids(45_000)
    routed, fell_back = counted(lambda: rows(NODES, True)[index], fuse=True)
    assert (routed, fell_back) == ({"x[index]": 1}, {"fused:x[index]": {"no row of an edge_index": 1}})


def test_small_calls_and_those_of_libraries_are_not_counted():
    small, x = ids(100), rows(100, True)

    def calls():
        x[small], x.index_select(0, small), zeros().index_add(0, small, x.detach())
        utils.degree(ids(), NODES)

    assert counted(calls) == ({}, {})
