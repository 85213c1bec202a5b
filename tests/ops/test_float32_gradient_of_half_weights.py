"""The gradient of only the features, with half weights and a float32 upstream gradient."""

import pytest
import torch

from halfgnn import ops, reference
from tests import support
from tests.support import HALVES, make_graph, randn


@pytest.mark.parametrize("device,dtype", support.devices_and(HALVES))
def test_half_weights_are_read_as_what_they_are(dtype, device):
    g = make_graph("bipartite", torch.int32, device)
    x = randn(g.num_src, 2, 16, dtype=dtype, device=device).requires_grad_()
    weights = randn(g.num_edges, 2, 1, dtype=dtype, device=device)
    upstream = randn(g.num_dst, 2, 16, dtype=torch.float32, device=device)
    (got,) = torch.autograd.grad(ops.u_mul_e_sum(g, x, weights, out_dtype=torch.float32), x, upstream)
    exact = x.detach().double().requires_grad_()
    out = reference.gspmm(g, "mul", "sum", exact, weights.double())
    (expected,) = torch.autograd.grad(out, exact, upstream.double())
    torch.testing.assert_close(got.double(), expected, rtol=1e-2, atol=1e-2)
