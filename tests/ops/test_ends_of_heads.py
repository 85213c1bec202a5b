"""Heads are adjacent in memory and are read in vectors. If a head is not a whole number of vectors, a vector may pass
its end or overlap the vector before. Values there must be left out. Multiplying them by 0 is not enough if they are not
finite."""

import pytest
import torch

from halfgnn import Graph, ops
from tests import support
from tests.support import HALVES, make_graph, randn
from tests.support_attention import every_kind, fixed_seed

HEADS = 3
DIMS = (1, 3, 12, 33)  # less than a vector, and more than one
everywhere = pytest.mark.parametrize("device,dtype", support.devices_and([*HALVES, torch.float32]))


def with_head(x, value):
    """A copy whose middle head is all `value`."""
    x = x.clone()
    x[:, 1] = value
    return x


def outer_heads(call):
    """The results of call(value) for the first and the last head, with a middle head of ones and of values that are not
    finite."""
    expected = [x[:, ::2] for x in call(1.0)]
    for value in (float("inf"), float("nan")):
        yield [x[:, ::2] for x in call(value)], expected


def assert_apart(call):
    for got, expected in outer_heads(call):
        for a, b in zip(got, expected):
            assert a.isfinite().all()
            assert torch.equal(a, b)


@pytest.mark.parametrize("dim", DIMS)
@everywhere
def test_dots(dtype, device, dim):
    g = make_graph("bipartite", torch.int32, device)
    x = randn(g.num_src, HEADS, dim, dtype=dtype, device=device)
    y = randn(g.num_dst, HEADS, dim, dtype=dtype, device=device)
    assert_apart(lambda value: [ops.u_dot_v(g, x, with_head(y, value))])
    assert_apart(lambda value: [ops.u_dot_v(g, with_head(x, value), y)])


@pytest.mark.parametrize("dim", DIMS)
@everywhere
def test_weighted_sums_and_their_gradients(dtype, device, dim):
    g = make_graph("bipartite", torch.int32, device)
    x = randn(g.num_src, HEADS, dim, dtype=dtype, device=device)
    weights = randn(g.num_edges, HEADS, 1, dtype=dtype, device=device)
    upstream = randn(g.num_dst, HEADS, dim, dtype=dtype, device=device)

    def results(x, upstream):
        given = [x.requires_grad_(), weights.clone().requires_grad_()]
        out = ops.u_mul_e_sum(g, *given)
        return [out.detach(), *torch.autograd.grad(out, given, upstream)]

    assert_apart(lambda value: results(with_head(x, value), upstream.clone()))
    assert_apart(lambda value: results(x.clone(), with_head(upstream, value)))


@every_kind
@pytest.mark.parametrize("dim", (3, 12))
@everywhere
def test_attention(dtype, device, dim, kind):
    g = make_graph("bipartite", torch.int32, device)
    operands = kind.operands(g, HEADS, dim, dtype, device)
    upstream = randn(g.num_dst, HEADS, dim, dtype=dtype, device=device)
    parameters = [target is None for target, _ in kind.shapes(HEADS, dim)]

    def results(change, value):
        given = [x.clone() for x in operands]
        if change is not None:
            given[change] = with_head(given[change], value)
        given = [x.requires_grad_() for x in given]
        out = kind.call(g, *given, dropout_p=0.3)
        grads = torch.autograd.grad(out, given, upstream if change is not None else with_head(upstream, value))
        return [out.detach(), *(x[None] if own else x for x, own in zip(grads, parameters))]

    changes = [None, *(i for i, own in enumerate(parameters) if not own)]
    with fixed_seed():
        for change in changes:
            assert_apart(lambda value, change=change: results(change, value))


@pytest.mark.parametrize("dim", (9, 12, 33))
@everywhere
def test_an_infinity_at_any_place_is_one_term_of_a_dot(dtype, device, dim):
    """If such a value were read twice, once times 0, the dot would be NaN."""
    places = torch.arange(dim, device=device)
    g = Graph.from_edges(places * 0, places, num_src=1, num_dst=dim)
    ones = torch.ones(1, 1, dim, dtype=dtype, device=device)
    infinite = torch.ones(dim, 1, dim, dtype=dtype, device=device)
    infinite[places, 0, places] = float("inf")
    assert ops.u_dot_v(g, ones, infinite).isposinf().all()
    assert ops.u_dot_v(g.reverse(), infinite, ones).isposinf().all()
    given = [ones.requires_grad_(), torch.ones(dim, 1, 1, dtype=dtype, device=device, requires_grad=True)]
    grads = torch.autograd.grad(ops.u_mul_e_sum(g, *given), given, infinite)
    assert all(grad.isposinf().all() for grad in grads)
