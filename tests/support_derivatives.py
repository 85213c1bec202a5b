"""Shared by the tests of second derivatives: gradients of gradients, against the reference in fp64 and under the accuracy rule."""

import itertools

import torch

from halfgnn import Graph
from tests import support


def small_graph(idtype=torch.int64):
    """A hub, rows without edges on both sides, duplicate edges, other numbers of sources and destinations."""
    src = torch.tensor([0, 1, 1, 1, 3, 3, 0, 4, 1], dtype=idtype)
    dst = torch.tensor([2, 2, 2, 2, 2, 0, 0, 2, 0], dtype=idtype)
    return Graph.from_edges(src, dst, num_src=6, num_dst=4)


def gradients(run, operands, upstream, wanted):
    """The gradients of the wanted operands, recorded."""
    return torch.autograd.grad(run(*operands), [operands[i] for i in wanted], upstream, create_graph=True)


def second(run, operands, upstream, cotangents, wanted):
    """The gradients of sum(cotangent * gradient) for upstream and operands. Zeros stand for those that are not connected."""
    leaves = [x.detach().requires_grad_(i in wanted) for i, x in enumerate(operands)]
    upstream = upstream.detach().requires_grad_()
    first = gradients(run, leaves, upstream, wanted)
    inputs = [upstream, *(leaves[i] for i in wanted)]
    found = torch.autograd.grad(
        first, inputs, [cotangents[i].to(x.dtype) for i, x in zip(wanted, first)], allow_unused=True
    )
    return [torch.zeros_like(x) if y is None else y for x, y in zip(inputs, found)]


def subsets(count):
    return [c for n in range(1, count + 1) for c in itertools.combinations(range(count), n)]


def check_like_reference(run, expected, operands, choices=None):
    """In fp64. choices: of the operands that need a gradient, by place; by default every choice."""
    upstream = torch.randn_like(run(*operands))
    cotangents = [torch.randn_like(x) for x in operands]
    for wanted in subsets(len(operands)) if choices is None else choices:
        got = second(run, operands, upstream, cotangents, wanted)
        for a, b in zip(got, second(expected, operands, upstream, cotangents, wanted)):
            assert a.shape == b.shape
            torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-11)


def check_precision(run, specification, operands, bound=None):
    """The gradients as a function of upstream and operands, forward and backward, by the accuracy rule."""
    upstream = torch.randn_like(run(*operands))

    def all_gradients(call):
        return lambda up, *x: torch.cat([y.flatten() for y in gradients(call, x, up, range(len(x)))])

    magnitude = None if bound is None else all_gradients(bound)
    both_orders = all_gradients(run), all_gradients(specification)
    support.check(*both_orders, [upstream, *operands], magnitude=magnitude, terms=64)
