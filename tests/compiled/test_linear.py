"""Linear layers of rows of both ends and of edges under torch.compile: computed for nodes, in autocast too."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import halfgnn.compiled
from tests import support
from tests.support_compiled import compiled

pytestmark = pytest.mark.skipif(support.SIMULATED, reason="about FX graphs")
N, E, C, D = 50, 3000, 16, 8


def summed(rows, dst):
    return torch.zeros(N, D, dtype=rows.dtype).index_add(0, dst, rows)


def of_two_dtypes(x, e, src, dst, weight):
    return summed(F.linear(torch.cat([x[src], x[dst], e], -1), weight), dst)


def of_a_difference(x, e, src, dst, weight):
    return summed(F.linear(torch.cat([x[src] - x[dst], x[dst] - x[src]], -1), weight), dst) + 0 * e.sum()


@pytest.mark.parametrize("is_on", [True, False], ids=["autocast", ""])
@pytest.mark.parametrize("program", [of_two_dtypes, of_a_difference])
def test_layers_are_as_exact_as_those_of_edges(program, is_on):
    """Features of edges are half beside those of nodes, which are nearly equal: rounded layers of both would differ by errors."""
    torch.manual_seed(0)
    x, e = 100 + torch.randn(N, C), torch.randn(E, C, dtype=torch.bfloat16)
    src, dst = torch.randint(N, (2, E))
    weight = torch.randn(D, 3 * C if program is of_two_dtypes else 2 * C)
    leaves = [y.requires_grad_() for y in (x, e, weight)]

    def results(run, *leaves):
        out = run(leaves[0], leaves[1], src, dst, leaves[2])
        return [out, *torch.autograd.grad(out.double().sin().sum(), leaves)]

    truth = program(x.double(), e.double(), src, dst, weight.double())
    halfgnn.compiled.reset_stats()
    with torch.autocast("cpu", torch.bfloat16, enabled=is_on):
        step = compiled(program)
        found = results(step, *leaves)
        eager = program(x, e, src, dst, weight)
    assert halfgnn.compiled.stats()["linear"] == 1
    assert found[0].dtype is eager.dtype and [y.dtype for y in found[1:]] == [y.dtype for y in leaves]
    error, upstream = ((y.double() - truth).norm() / truth.norm() for y in (found[0], eager))
    assert error <= 2 * upstream + (0 if is_on else 1e-5)  # layers of both ends are subtracted in fp32
