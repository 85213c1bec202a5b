"""Rows of so many pieces that these are folded before they are combined (core/long_rows.cuh): each combining kernel, on rows
whose first slots lie anywhere among those that a block folds.

Such graphs have a quarter of a million edges, so rows are narrow.
"""

from __future__ import annotations

import pytest
import torch

from halfgnn import ops
from laboratory.simt import control
from laboratory.simt.graphs import graph_of
from tests import support
from tests.support import check_gspmm, randn
from tests.support_attention import GAT, GATV2, check
from tests.support_messages import check_gated_sum, gated_operands
from tests.support_reduce import check as check_reductions

if not control.SIMULATED:
    pytest.skip("runs on the simulator: laboratory/simt/run.py", allow_module_level=True)

PIECE, FOLDED = 128, 64  # edges of a slot on graphs of so many edges, and slots that are folded into one
MANY_SLOTS = 2048  # from which rows are folded
# Slots of rows, the rows between them that are too short to be cut, and the rest of a slot that rows begin after.
SLOTS = (1, 63, 64, 65, 66, 127, 128, 129, 200, 17, 1000)
ODD = (0, 1, 77, 127, 3)


def degrees(least: int = MANY_SLOTS * PIECE) -> list[int]:
    """At least so many edges in all."""
    found = []
    for i, slots in enumerate(SLOTS):
        found += [slots * PIECE + ODD[i % 5], *[ODD[(i + 2) % 5]] * (i % 3)]
    return [*found, *[PIECE - 1] * (max(0, least - sum(found)) // (PIECE - 1) + 1)]


def launches(num_edges: int) -> int:
    """Of a sum over so many edges of one node, whose pieces are combined by other kernels."""
    g, before = graph_of([num_edges], 5), control.get("launches")
    ops.u_add_e_sum(g, randn(5, 1, dtype=torch.float16), randn(num_edges, 1, dtype=torch.float16))
    return control.get("launches") - before


@pytest.mark.parametrize("columns", [1, 33, 70])
def test_sums_are_exact(columns):
    """Of partial rows as they are given, with any number of slots."""
    for least in (0, MANY_SLOTS * PIECE, MANY_SLOTS * PIECE * 2):
        counts = torch.tensor(degrees(least))
        indptr = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
        num_slots = -(-counts.sum().item() // PIECE)
        partial = torch.randint(-9, 9, (num_slots, columns)).float()
        kept = partial.clone()
        out = torch.ops.halfgnn_simt.combine(indptr, partial, counts.sum())
        for row, (begin, end) in enumerate(zip(indptr.tolist(), indptr[1:].tolist())):
            first, last = -(-begin // PIECE), (end - 1) // PIECE
            expected = partial[first : last + 1].sum(0) if end - begin >= PIECE else torch.zeros(columns)
            assert torch.equal(out[row], expected), row
        assert torch.equal(partial, kept)


def test_few_slots_are_not_folded():
    assert launches(MANY_SLOTS * PIECE) == launches((MANY_SLOTS - 1) * PIECE) + 1


@pytest.fixture(scope="module")
def graph():
    return graph_of(degrees(), 37)


@pytest.mark.parametrize("reduce", ["sum", "mean", "max", "min"])
def test_reductions(graph, reduce):
    operands = support.spmm_operands(graph, "copy_lhs", (3,), (), torch.float32 if reduce == "max" else torch.float16)
    check_gspmm(graph, "copy_lhs", reduce, operands, terms=130_000, backward=False)


@pytest.mark.parametrize("reduce", ["sum", "max"])
def test_messages(graph, reduce):
    """General kernels' pieces are combined by others."""
    operands = support.spmm_operands(graph, "add", (2,), (2,), torch.float16)
    check_gspmm(graph, "add", reduce, operands, terms=130_000, backward=False)


def test_several_reductions(graph):
    check_reductions(graph, randn(graph.num_src, 2, dtype=torch.float16), ("mean", "max", "min", "std"))
    check_reductions(graph, torch.randint(-2, 3, (graph.num_src, 1)).half(), ("max", "min"))


@pytest.mark.parametrize("normalize", [False, True])
def test_gated_sums(graph, normalize):
    check_gated_sum(graph, gated_operands(graph, (2,), torch.float16), normalize, terms=130_000)


@pytest.mark.parametrize(
    "kind,heads,dim", [(GAT, 2, 3), (GAT, 1, 33), (GATV2, 2, 3)], ids=lambda x: getattr(x, "name", x)
)
def test_attention(graph, kind, heads, dim):
    check(kind, graph, kind.operands(graph, heads, dim, torch.float16), terms=130_000)


def test_gradients_of_sources_of_many_edges(graph):
    g = graph.reverse()
    check(GAT, g, GAT.operands(g, 2, 33, torch.float16), terms=130_000)
