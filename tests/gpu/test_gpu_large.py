"""Sizes past 2^31, on an otherwise idle GPU. Results are checked on sampled rows. Skipped if there is too little
memory."""

from __future__ import annotations

import gc

import pytest
import torch

import halfgnn
from halfgnn import ops, reference
from tests.gpu import gpu_cases
from tests.gpu.gpu_cases import DEVICE

pytestmark = gpu_cases.needs_gpu

FP16 = torch.float16
GIB = 1 << 30


@pytest.fixture(autouse=True)
def _free_memory():
    yield
    gc.collect()
    torch.cuda.empty_cache()


def need(gib):
    free, _ = torch.cuda.mem_get_info()
    if free < gib * GIB:
        pytest.skip(f"needs {gib} GiB of free GPU memory, {free / GIB:.0f} are free")


def random_graph(num_src, num_dst, num_edges, ordered=True):
    """Random edges as int32, some of them between the last nodes of both sides."""
    src, dst = (torch.randint(n, (num_edges,), device=DEVICE, dtype=torch.int32) for n in (num_src, num_dst))
    src[-100:], dst[-100:] = num_src - 1, num_dst - 1
    made = halfgnn.Graph.from_edges(src, dst, num_src=num_src, num_dst=num_dst, sort=ordered, check=False)
    return made[0] if ordered else made


class Sample:
    """The first rows, the last rows and some others of a graph's CSC (or CSR). `graph` has only their edges, with
    renumbered sources. rows, columns and edges map its nodes and edges to those of the large graph."""

    def __init__(self, side, num_rows, count=300):
        indptr, indices, edge_ids = side
        between = torch.randint(num_rows, (count,), device=DEVICE)
        ends = torch.arange(min(50, num_rows), device=DEVICE)
        self.rows = torch.cat([ends, between, num_rows - 1 - ends]).unique()
        begin, degree = indptr[self.rows].long(), (indptr[self.rows + 1] - indptr[self.rows]).long()
        offsets = torch.nn.functional.pad(degree.cumsum(0), (1, 0))
        shift = torch.repeat_interleave(begin - offsets[:-1], degree)
        positions = torch.arange(int(offsets[-1]), device=DEVICE) + shift
        self.columns, compact = indices[positions].unique(return_inverse=True)
        self.columns = self.columns.long()
        self.edges = positions if edge_ids is None else edge_ids[positions].long()
        self.graph = halfgnn.Graph.from_csc(offsets, compact, num_src=max(1, self.columns.numel()))
        if self.columns.numel() == 0:
            self.columns = torch.zeros(1, dtype=torch.int64, device=DEVICE)


def assert_near(got, truth, magnitude):
    """The allowed error: one rounding to the result's type, and the rounding of fp32 sums."""
    assert got.shape == truth.shape
    limit = torch.finfo(got.dtype).eps * truth.abs() + 1e-5 * magnitude + 1e-7
    excess = ((got.double() - truth).abs() / limit).max().item()
    assert excess <= 1, f"error {excess:.3g} times the limit"


def check_spmm(out, part, op, x=None, y=None, reduce="sum"):
    x = None if x is None else x[part.columns].double()
    y = None if y is None else y[part.edges].double()

    def formula(x, y):
        return reference.gspmm(part.graph, op, reduce, x, y)

    magnitude = formula(None if x is None else x.abs(), None if y is None else y.abs())
    assert_near(out[part.rows], formula(x, y), magnitude)


def test_more_than_2_31_node_features():
    need(30)
    num_nodes, width = 8_500_000, 256  # 2.18e9
    g = random_graph(num_nodes, num_nodes, 12_000_000)
    x = torch.randn(num_nodes, width, device=DEVICE, dtype=FP16)
    w = torch.rand(g.num_edges, 1, device=DEVICE, dtype=FP16)
    part = Sample(g.csc(), num_nodes)
    check_spmm(ops.copy_u_sum(g, x), part, "copy_lhs", x)
    check_spmm(ops.u_mul_e_sum(g, x, w), part, "mul", x, w)
    check_spmm(ops.u_mul_e_mean(g, x, w), part, "mul", x, w, "mean")
    check_spmm(ops.u_add_e_sum(g, x, w), part, "add", x, w)
    dots = ops.u_dot_v(g, x, x)
    truth = reference.gsddmm(part.graph, "dot", x[part.columns].double(), x[part.rows].double())
    assert_near(dots[part.edges], truth, truth.abs() + width)


def test_maxima_of_more_than_2_31_elements():
    need(40)
    num_nodes, width = 8_500_000, 256
    g = random_graph(num_nodes, num_nodes, 12_000_000)
    x = torch.randn(num_nodes, width, device=DEVICE, dtype=FP16)
    part = Sample(g.csc(), num_nodes)
    out, arg = torch.ops.halfgnn.gspmm(*g.csc(), "copy_lhs", "max", x, None)
    check_spmm(out, part, "copy_lhs", x, reduce="max")
    winners = arg[part.rows].long()
    source = g.csc().indices[winners.clamp(min=0)].long()
    columns = torch.arange(width, device=DEVICE).expand_as(source)
    assert torch.equal(torch.where(winners < 0, 0, x[source, columns]), out[part.rows])


def test_gradients_of_more_than_2_31_elements():
    need(40)
    num_nodes, heads, dim = 8_500_000, 4, 64
    g = random_graph(num_nodes, num_nodes, 12_000_000)
    x = torch.randn(num_nodes, heads, dim, device=DEVICE, dtype=FP16, requires_grad=True)
    w = torch.rand(g.num_edges, heads, 1, device=DEVICE, dtype=FP16, requires_grad=True)
    upstream = torch.randn(num_nodes, heads, dim, device=DEVICE, dtype=FP16)
    grad_x, grad_w = torch.autograd.grad(ops.u_mul_e_sum(g, x, w), (x, w), upstream)
    part = Sample(g.csr(), num_nodes)  # rows are sources
    check_spmm(grad_x, part, "mul", upstream, w.detach())
    arguments = upstream[part.columns].double(), x.detach()[part.rows].double()
    truth = reference.gsddmm(part.graph, "dot", *arguments)
    magnitude = reference.gsddmm(part.graph, "dot", *(t.abs() for t in arguments))
    assert_near(grad_w[part.edges], truth, magnitude)


def test_more_than_2_31_edge_features():
    need(40)
    num_nodes, num_edges, width = 1_000_000, 17_000_000, 128  # 2.18e9
    g = random_graph(num_nodes, num_nodes, num_edges, ordered=False)
    x, y = (torch.randn(num_nodes, width, device=DEVICE, dtype=FP16) for _ in range(2))
    part = Sample(g.csc(), num_nodes)

    def check_sddmm(op, rhs):
        out = ops.gsddmm(g, op, x, rhs)
        arguments = x[part.columns].double(), rhs[part.rows].double()
        truth = reference.gsddmm(part.graph, op, *arguments)
        magnitude = reference.gsddmm(part.graph, op, *(t.abs() for t in arguments))
        assert_near(out[part.edges], truth, magnitude)
        return out

    check_sddmm("mul", y[:, :1].contiguous())  # broadcast: the general kernel
    messages = check_sddmm("add", y)
    check_spmm(ops.copy_e_sum(g, messages), part, "copy_rhs", y=messages)
    check_spmm(ops.u_mul_e_sum(g, x, messages), part, "mul", x, messages)
    check_spmm(ops.copy_e_max(g, messages), part, "copy_rhs", y=messages, reduce="max")


def test_softmax_of_more_than_2_31_logits():
    need(30)
    num_nodes, num_edges, heads = 500_000, 70_000_000, 32  # 2.24e9
    g = random_graph(num_nodes, num_nodes, num_edges)
    logits = torch.randn(num_edges, heads, device=DEVICE, dtype=FP16)
    part = Sample(g.csc(), num_nodes)
    out = ops.edge_softmax(g, logits)
    truth = reference.edge_softmax(part.graph, logits[part.edges].double())
    assert_near(out[part.edges], truth, truth)
    grad = torch.randn(num_edges, heads, device=DEVICE, dtype=FP16)
    gradient = torch.ops.halfgnn.edge_softmax_backward(g.csc().indptr, None, out, grad)
    a, da = out[part.edges].double(), grad[part.edges].double()
    row = torch.repeat_interleave(torch.arange(part.rows.numel(), device=DEVICE), part.graph.in_degrees())
    sums = a.new_zeros(part.rows.numel(), 2, heads).index_add_(0, row, torch.stack([a * da, a], 1))
    truth = a * (da - (sums[:, 0] / sums[:, 1])[row])
    assert_near(gradient[part.edges], truth, a * (da.abs() + 1))


def test_heads_times_edges_past_2_31():
    need(30)
    num_nodes, num_edges, heads, dim = 500_000, 70_000_000, 32, 8
    g = random_graph(num_nodes, num_nodes, num_edges)
    x = torch.randn(num_nodes, heads, dim, device=DEVICE, dtype=FP16)
    w = torch.rand(num_edges, heads, 1, device=DEVICE, dtype=FP16)
    check_spmm(ops.u_mul_e_sum(g, x, w), Sample(g.csc(), num_nodes), "mul", x, w)


def test_more_than_2_31_edges():
    need(60)
    num_nodes, num_edges = 1 << 20, (1 << 31) + (1 << 20)
    indptr = torch.arange(num_nodes + 1, device=DEVICE) * (num_edges // num_nodes)
    indices = torch.empty(num_edges, dtype=torch.int64, device=DEVICE).random_(num_nodes)
    g = halfgnn.Graph.from_csc(indptr, indices, num_src=num_nodes, check=False)
    part = Sample(g.csc(), num_nodes, count=50)
    x = torch.randn(num_nodes, 16, device=DEVICE, dtype=FP16)
    check_spmm(ops.copy_u_sum(g, x), part, "copy_lhs", x)
    w = torch.rand(num_edges, device=DEVICE, dtype=FP16)
    check_spmm(ops.copy_e_sum(g, w), part, "copy_rhs", y=w)
    check_spmm(ops.u_mul_e_sum(g, x, w.unsqueeze(1)), part, "mul", x, w.unsqueeze(1))
    softmax = ops.edge_softmax(g, w)
    truth = reference.edge_softmax(part.graph, w[part.edges].double())
    assert_near(softmax[part.edges], truth, truth)


def test_adjacency_of_more_edges_than_one_sort_takes():
    """Edges are sorted in chunks. Rows ascend over all chunks, and edges ascend within a row."""
    need(110)
    num_rows, num_edges = 1 << 20, (1 << 31) + 12_345
    row = torch.randint(num_rows, (num_edges,), device=DEVICE)
    indptr, indices, edge_ids = torch.ops.halfgnn.coo_to_csr(row, torch.arange(num_edges, device=DEVICE), num_rows)
    assert indptr[0] == 0 and indptr[-1] == num_edges
    for bound in (1, 1000, num_rows // 2, num_rows - 1):
        assert indptr[bound] == sum((part < bound).sum() for part in row.split(1 << 27))
    for begin in range(0, num_edges, 1 << 27):
        ids = edge_ids[begin : begin + (1 << 27) + 1]  # with the first of the next slice
        assert torch.equal(indices[begin : begin + ids.numel()], ids)
        rises = row[ids].diff()
        assert ((rises > 0) | ((rises == 0) & (ids.diff() > 0))).all()
