"""Gradients of graphs whose out-edges are as many as kernels read at a time, and lie in the order of edge data or not."""

import pytest
import torch

import halfgnn
from tests import support, support_attention
from tests.support import check_gsddmm, check_gspmm, randn

DEGREES = [63, 64, 65, 0, 1, 128, 2, 129, 260, 16]
NUM_DST = 7


def graph(identity, device):
    """identity: the edges are sorted by source, so that the CSR has no edge ids."""
    src = torch.arange(len(DEGREES)).repeat_interleave(torch.tensor(DEGREES))
    dst = torch.randint(NUM_DST, src.shape)
    order = torch.arange(src.numel()) if identity else torch.randperm(src.numel())
    ends = dst[order].to(device, torch.int32), src[order].to(device, torch.int32)
    g = halfgnn.Graph.from_edges(*ends, num_src=NUM_DST, num_dst=len(DEGREES), sort=identity)
    g = (g[0] if identity else g).reverse()
    assert (g.csr().edge_ids is None) == identity
    return g


every_graph = pytest.mark.parametrize("identity", [False, True], ids=["edge_ids", "no_edge_ids"])


@every_graph
@pytest.mark.parametrize("device,dtype", support.devices_and([torch.float16, torch.bfloat16, torch.float32]))
@pytest.mark.parametrize("reduce_op", ["sum", "mean"])
@pytest.mark.parametrize("heads,dim", [(1, 8), (3, 12), (4, 33)])
def test_weighted_sums(heads, dim, reduce_op, dtype, identity, device):
    g = graph(identity, device)
    for weight in {dtype, torch.float32}:
        operands = support.spmm_operands(g, "mul", (heads, dim), (heads, 1), dtype, device, rhs_dtype=weight)
        check_gspmm(g, "mul", reduce_op, operands, terms=max(DEGREES))
        _, both = support.evaluate(lambda *x: halfgnn.ops.gspmm(g, "mul", reduce_op, *x), operands, torch.ones_like)
        alone = operands[0].detach().requires_grad_()
        out = halfgnn.ops.gspmm(g, "mul", reduce_op, alone, operands[1].detach())
        out.backward(torch.ones_like(out))
        torch.testing.assert_close(alone.grad, both[0], rtol=torch.finfo(dtype).eps, atol=1e-5)


@every_graph
@pytest.mark.parametrize("device,dtype", support.devices_and([torch.float16, torch.float32]))
def test_dots(dtype, identity, device):
    g = graph(identity, device)
    operands = [randn(rows, 4, 33, dtype=dtype, device=device) for rows in (g.num_src, g.num_dst)]
    check_gsddmm(g, "dot", operands, "u", "v", terms=max(DEGREES))


@every_graph
@support_attention.every_kind
def test_attention(kind, identity, device):
    g = graph(identity, device)
    support_attention.check(kind, g, kind.operands(g, 3, 12, torch.float16, device), dropout_p=0.3)
