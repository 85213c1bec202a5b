"""Kernels that branch on the GPU's architecture (HALFGNN_ARCH in csrc/cuda/kernels/core/arch.cuh) on each of them in turn.

One build has all branches: the architecture is a setting of the simulator.
"""

from __future__ import annotations

import functools

import pytest
import torch

from halfgnn import Graph, ops
from halfgnn.dataloading import Codes
from laboratory.machine_code import launches
from laboratory.simt import control
from laboratory.simt.graphs import FEW_EDGES, PIECE, graph_of
from tests import support_attention, support_attention_edges, support_gatv2_edges
from tests.ops.test_attention import test_signs_of_sums as signs_of_sums
from tests.support import HALVES, check_gspmm, randn
from tests.support_attention import GAT_EDGE

if not control.SIMULATED:
    pytest.skip("runs on the simulator: laboratory/simt/run.py", allow_module_level=True)

ARCHS = (750, 800, 900, 1200)
every_half = pytest.mark.parametrize("dtype", HALVES, ids=str)


@pytest.fixture(params=ARCHS, ids=lambda arch: f"sm_{arch // 10}")
def arch(request):
    with control.setting(arch=request.param):
        yield request.param


@functools.cache
def values(dtype):
    """Equal ones, of either sign, infinite ones, the smallest and the largest, neighbours, and nan."""
    info = torch.finfo(dtype)
    sizes = [
        0,
        info.smallest_normal / 4,
        info.smallest_normal,
        1,
        1 + info.eps,
        1 + 2 * info.eps,
        info.max / 2,
        info.max,
    ]
    return torch.tensor([*sizes, torch.inf, *(-x for x in sizes), -torch.inf, torch.nan, 1], dtype=dtype)


@every_half
@pytest.mark.parametrize("reduce_op", ["max", "min"])
def test_extremes_of_every_pair_of_values(arch, reduce_op, dtype):
    """The extreme of edges of two sources and, by its gradient, which it is of. Every lane compares the first source's value with
    the second's. Columns differ, and so halves of a word."""
    left, right = torch.cartesian_prod(values(dtype), values(dtype)).unbind(1)
    x = torch.stack([left, right], dim=1).flatten()  # the sources of row i are 2 i and 2 i + 1
    src = torch.arange(len(x)).repeat_interleave(32)
    g = Graph.from_edges(src, src // 2, num_src=len(x))
    check_gspmm(g, "copy_lhs", reduce_op, [torch.stack([x, x.roll(2), -x, x.flip(0)], dim=1), None])


@every_half
def test_all_extremes_at_once(arch, dtype):
    g = graph_of(FEW_EDGES["long among short"], 37, torch.int32)
    x = values(dtype)[torch.arange(37 * 8).view(37, 8) * 7 % (len(values(dtype)) - 2)].requires_grad_()
    largest, smallest = ops.copy_u_reduce(g, x, ("max", "min"))
    assert torch.equal(largest, ops.copy_u_max(g, x)) and torch.equal(smallest, -ops.copy_u_max(g, -x))


@every_half
def test_rows_of_few_edges(arch, dtype):
    """Teams walk as long as the longest of their rows."""
    g = graph_of(FEW_EDGES["skewed"], 37, torch.int32)
    check_gspmm(g, "copy_lhs", "sum", [randn(37, 16, dtype=dtype), None])


@every_half
def test_largest_logit_of_a_window(arch, dtype):
    """Of one head, among logits of either sign and, in one row, negative ones alone."""
    g = graph_of([PIECE + 9, 40, 3, 0, 33], 37, torch.int32)
    feat, source, destination, edge = GAT_EDGE.operands(g, 1, 16, dtype)
    edge *= 300  # exponentials of differences from a logit that is not the largest would be infinite
    destination[1] = -2000
    support_attention.check(GAT_EDGE, g, [feat, source, destination, edge], terms=PIECE)


@every_half
def test_signs_of_sums(arch, dtype):
    """Which GATv2 keeps in records of edges: wherever edges add to logits, and otherwise where they save time."""
    signs_of_sums(40, dtype, "cpu")
    g = graph_of([3, 0, 1, PIECE + 9, 5, 33], 5, torch.int32)
    tensors = support_gatv2_edges.operands(support_gatv2_edges.BIAS, g, 1, 128, 0, dtype)
    for i, (own, other) in enumerate([(1, -1), (0, -0.0), (-2, 1), (1, 2), (-0.0, -0.0)]):
        tensors["feat_src"][..., i::8], tensors["feat_dst"][..., i::8] = own, other
    support_gatv2_edges.check(g, tensors, sums=PIECE)


@every_half
def test_tensor_cores(arch, dtype, monkeypatch):
    """There are none for halves before sm_80, not even if they are asked for."""
    monkeypatch.setenv("HALFGNN_TENSOR_CORES", "1")
    terms = support_attention_edges.BIAS
    g = graph_of([3, 20, 40], 37, torch.int32)
    tensors = terms.operands(g, 1, 64, 0, dtype)
    with launches.recorded() as found:
        terms.call(ops.dot_attention, g, tensors)
    assert any(launch.kernel.startswith("pair_tensor") for launch in found) == (arch >= 800)
    support_attention_edges.check(terms, g, tensors)


def test_sums_of_float8(arch):
    """All codes, which have an instruction of their own from sm_89 on."""
    g = Graph.from_edges(torch.arange(256), torch.arange(256), num_src=256, num_dst=256)
    for code in (torch.float8_e4m3fn, torch.float8_e5m2):
        for width in (1, 12):
            data = torch.arange(256, dtype=torch.uint8).view(256, 1).expand(256, width).contiguous().view(code)
            found = ops.copy_u_sum(g, Codes(data, torch.tensor(0.5), dtype=torch.float32))
            torch.testing.assert_close(found, data.float() / 2, rtol=0, atol=0, equal_nan=True)
