"""What tests/ops leaves out of messages of a node and an edge because only the CUDA kernels have it: rows cut into pieces,
slices, widths of access, types of every operand, warps of many rows, orders of lanes.
"""

from __future__ import annotations

import itertools

import pytest
import torch

from halfgnn import ops
from laboratory.simt import control
from laboratory.simt.graphs import CUT, FEW_EDGES, PIECE, graph_of
from tests import support
from tests.support import HALVES, IDTYPES, check_gspmm
from tests.support_messages import check_gated_sum, gated_operands

if not control.SIMULATED:
    pytest.skip("runs on the simulator: laboratory/simt/run.py", allow_module_level=True)

DTYPES = [*HALVES, torch.float32]
OPS = ["mul", "add", "sub", "relu_add"]
VARIANTS = list(itertools.product(IDTYPES, (False, True)))


def operands_of(g, op, width, dtype, edge_dtype=None):
    return support.spmm_operands(g, op, (width,), (width,), dtype, rhs_dtype=edge_dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", OPS)
def test_widths_of_access(op, dtype):
    """Of all types of edge data and of the result, and so of its gradient."""
    for width in (1, 2, 4, 8, 12, 41, 66, 132, 264):
        g = support.make_graph("bipartite", *VARIANTS[width % 4][:1], identity=width % 3 == 0)
        edge_dtypes = DTYPES if dtype == torch.float32 else (dtype, torch.float32)
        for edge_dtype, out_dtype in itertools.product(edge_dtypes, {dtype, torch.float32}):
            check_gspmm(g, op, "sum", operands_of(g, op, width, dtype, edge_dtype), out_dtype=out_dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op,reduce_op", [("mul", "mean"), ("sub", "sum"), ("relu_add", "mean")])
def test_rows_cut_into_pieces(op, reduce_op, dtype):
    """Of the forward, and of the backward."""
    for g, width in ((graph_of(CUT, 37, *VARIANTS[1]), 8), (graph_of(CUT, 37, *VARIANTS[2]).reverse(), 5)):
        check_gspmm(g, op, reduce_op, operands_of(g, op, width, dtype), terms=max(CUT))


@pytest.mark.parametrize("width", [8, 24, 128, 200])
@pytest.mark.parametrize("name", FEW_EDGES)
def test_rows_of_few_edges(name, width):
    case = list(FEW_EDGES).index(name) + width // 8
    g = graph_of(FEW_EDGES[name] * (1 if "long" in name else 3), 37, *VARIANTS[case % 4])
    for graph in (g, g.reverse()):
        op = OPS[case % 4]
        check_gspmm(graph, op, "mean", operands_of(graph, op, width, DTYPES[case % 3]), terms=2 * PIECE)


@pytest.mark.parametrize("op,width,dtype", [("mul", 512, torch.float16), ("relu_add", 600, torch.bfloat16)])
def test_slices(op, width, dtype):
    """Those of the gathered rows that fit in a small cache are swept one after the other."""
    g = graph_of([140, 0, 6, 82] * 6, 200, torch.int32)
    operands = operands_of(g, op, width, dtype)

    def run():
        before = control.get("blocks")
        results = check_gspmm(g, op, "sum", operands)
        return control.get("blocks") - before, results

    whole, _ = run()
    with control.setting(l2_cache_bytes=24 << 10):
        sliced, _ = run()
    assert sliced > whole


@pytest.mark.parametrize("op", OPS)
def test_gradients_one_by_one(op):
    """Each is that of both, whatever else is not read or not written; pieces and empty rows too."""
    g = graph_of([PIECE + 3, 0, 5, 40], 9, torch.int32).reverse()
    operands = operands_of(g, op, 12, torch.float16)
    grad = support.randn(g.num_dst, 12, dtype=torch.float16)
    for reduce_op in ("sum", "mean"):
        both = support.evaluate(lambda x, e, r=reduce_op: ops.gspmm(g, op, r, x, e), operands, grad)[1]
        for i in range(2):
            leaves = [x.detach().requires_grad_(i == j) for j, x in enumerate(operands)]
            alone = torch.autograd.grad(ops.gspmm(g, op, reduce_op, *leaves), leaves[i], grad)[0]
            if i == 0 and op in ("add", "sub"):  # a sum of copies, in another order
                torch.testing.assert_close(alone, both[i], rtol=2e-3, atol=2e-3)
            else:
                assert torch.equal(alone, both[i])


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
@pytest.mark.parametrize("op", OPS)
def test_one_value_that_is_not_finite(op, value):
    """It shows in its own column of its own rows, and nowhere else: what fills a batch reads it, too."""
    g = graph_of([3, 0, PIECE + 5, 0, 1, 0], 37, torch.int32, identity=True)
    for which in range(2):
        operands = [torch.ones(rows, 9, dtype=torch.float16) for rows in (g.num_src, g.num_edges)]
        operands[which][5, 7] = value
        out, (grad_x, grad_e) = support.evaluate(lambda x, e: ops.gspmm(g, op, "sum", x, e), operands, torch.ones_like)
        assert out[:, [*range(7), 8]].isfinite().all() and not out[[1, 3, 5]].any()
        assert grad_x[:, [*range(7), 8]].isfinite().all() and grad_e[:, [*range(7), 8]].isfinite().all()


# ---- gated sums ----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("normalize", [False, True])
def test_widths_of_access_of_gated_sums(normalize, dtype):
    """With and without terms of edges in gates and values."""
    for width in (1, 2, 4, 8, 12, 41, 66, 132, 264):
        g = support.make_graph("bipartite", *VARIANTS[width % 4][:1], identity=width % 3 == 0)
        for has_edge, has_values in ((width % 5 != 1, False), (width % 5 != 2, True)):
            check_gated_sum(g, gated_operands(g, (width,), dtype, "cpu", has_edge, has_values), normalize)


@pytest.mark.parametrize("dtype,normalize", [(DTYPES[0], True), (DTYPES[1], False), (DTYPES[2], True)])
def test_rows_of_gated_sums(dtype, normalize):
    """Cut into pieces, in the forward and in the backward; of few edges, and of none."""
    for g in (graph_of(CUT, 37, *VARIANTS[1]), graph_of(CUT, 37, *VARIANTS[2]).reverse()):
        for has_values in (False, True):
            check_gated_sum(g, gated_operands(g, (9,), dtype, has_values=has_values), normalize, terms=max(CUT))
        normalize = not normalize
    for name in list(FEW_EDGES)[DTYPES.index(dtype) :: 3]:
        g = graph_of(FEW_EDGES[name], 37, torch.int32)
        check_gated_sum(g, gated_operands(g, (24,), dtype, has_values=normalize), normalize, terms=2 * PIECE)
        normalize = not normalize


def test_rows_without_edges_of_gates_that_are_not_finite():
    """Teams without an edge read what others do; their own gates are not numbers."""
    g = graph_of([3, 0, PIECE + 5, 0, 1, 0], 37, torch.int32, identity=True)
    operands = [x.requires_grad_() for x in gated_operands(g, (8,), torch.float16, has_values=True)]
    with torch.no_grad():
        operands[2][[1, 3, 5]] = float("nan")
    for normalize, count in itertools.product((False, True), (4, 5)):
        out = ops.gated_sum(g, *operands[:count], normalize=normalize)
        assert out.isfinite().all() and not out[[1, 3, 5]].any()
        for grad in torch.autograd.grad(out, operands[:count], torch.ones_like(out)):
            assert grad.isfinite().all()
