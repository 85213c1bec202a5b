"""Device memory: nothing is kept between calls, and the memory that a call needs beside its results is bounded."""

import gc

import pytest
import torch

import halfgnn
from halfgnn import ops
from tests import support_attention
from tests.gpu import gpu_cases
from tests.gpu.gpu_cases import DEVICE, every_case, with_gradients

pytestmark = gpu_cases.needs_gpu

MIB = 1 << 20


def allocated():
    gc.collect()
    torch.cuda.synchronize()
    return torch.cuda.memory_allocated()


@every_case
def test_nothing_is_kept(case):
    g, leaves = gpu_cases.setup(case, torch.float16)
    upstream = []
    with_gradients(case, g, leaves, upstream)
    before = allocated()
    for _ in range(10):
        with_gradients(case, g, leaves, upstream)
    assert allocated() == before


def test_graphs_are_given_back():
    before = allocated()
    for _ in range(3):
        g = gpu_cases.hub_graph(device=DEVICE)
        g.csr()
    del g
    assert allocated() == before


def beside_results(function):
    """Bytes at the peak of a call, without its results."""
    before = allocated()
    torch.cuda.reset_peak_memory_stats()
    results = function()
    peak = torch.cuda.max_memory_allocated() - before
    return peak - sum(x.numel() * x.element_size() for x in results)


# Pieces of rows with one row of fp32 partial results each, and as much again for the winners of maxima: one per 512 edges,
# and 2^17 at most.
PIECES = 20_000_000 // 512


@pytest.mark.parametrize("width", [64, 256])
def test_workspace_is_bounded(width):
    num_nodes, num_edges = 100_000, 20_000_000
    src, dst = torch.randint(num_nodes, (2, num_edges), device=DEVICE, dtype=torch.int32)
    g, _ = halfgnn.Graph.from_edges(src, dst, num_src=num_nodes, num_dst=num_nodes, sort=True)
    x = torch.randn(num_nodes, width, device=DEVICE, dtype=torch.float16)
    w = torch.rand(num_edges, 1, device=DEVICE, dtype=torch.float16)
    bound = 3 * PIECES * width * 4 + 4 * MIB
    assert beside_results(lambda: [ops.u_mul_e_sum(g, x, w)]) <= bound
    assert beside_results(lambda: [ops.u_add_e_sum(g, x, w)]) <= bound
    # The winners, 4 bytes per element. The public operator does not return them.
    assert beside_results(lambda: [ops.copy_u_max(g, x)]) <= bound + num_nodes * width * 4
    assert beside_results(lambda: [ops.u_dot_v(g, x, x)]) <= 4 * MIB
    assert beside_results(lambda: [ops.edge_softmax(g, w)]) <= 3 * PIECES * 8 + 4 * MIB
    indptr, indices, edge_ids = g.csr()
    arguments = (
        g.csc().indptr,
        True,
        "mul",
        "sum",
        torch.randn_like(x),
        x,
        w,
        None,
        x.shape,
        w.shape,
        x.dtype,
        w.dtype,
    )
    backward = torch.ops.halfgnn.gspmm_backward
    assert beside_results(lambda: backward(indptr, indices, edge_ids, *arguments, True, True)) <= bound


def test_attention_keeps_no_messages():
    # A step of message passing holds a few numbers per edge and head, never a row of features per edge.
    num_nodes, num_edges, heads, dim = 20_000, 2_000_000, 4, 32
    src, dst = torch.randint(num_nodes, (2, num_edges), device=DEVICE, dtype=torch.int32)
    g, _ = halfgnn.Graph.from_edges(src, dst, num_src=num_nodes, num_dst=num_nodes, sort=True)
    g.csr()
    x = torch.randn(num_nodes, heads, dim, device=DEVICE, dtype=torch.float16, requires_grad=True)

    def step():
        out = ops.u_mul_e_sum(g, x, ops.edge_softmax(g, ops.u_dot_v(g, x, x)))
        return torch.autograd.grad(out, x, torch.ones_like(out))

    assert beside_results(step) < num_edges * heads * dim * 2 / 4


@pytest.mark.parametrize("kind", support_attention.KINDS, ids=lambda kind: kind.name)
def test_fused_attention_takes_nothing_an_edge_and_head(kind):
    """Beside operands and gradients a step needs results per node in half (two for GAT), and their rounding errors."""
    num_nodes, num_edges, heads, dim = 10_000, 1_000_000, 8, 8
    src, dst = torch.randint(num_nodes, (2, num_edges), device=DEVICE, dtype=torch.int32)
    g, _ = halfgnn.Graph.from_edges(src, dst, num_src=num_nodes, num_dst=num_nodes, sort=True)
    g.csr()
    operands = [x.requires_grad_() for x in kind.operands(g, heads, dim, torch.float16, DEVICE)]

    def step():
        out = kind.call(g, *operands, dropout_p=0.5)
        return torch.autograd.grad(out, operands, torch.ones_like(out))

    a_node = heads * dim * 2
    assert beside_results(step) < 8 * num_nodes * a_node + 16 * MIB < num_edges * heads * 4
