"""What test_attention.py leaves out because only the CUDA kernels have it: widths of access, heads wider than a warp's
registers, rows cut into pieces, slices, orders of lanes.

Sizes are such that every instantiation is launched, and each choice of the launchers is made. Results are held to the rule of
support.
"""

from __future__ import annotations

import math

import pytest
import torch

from halfgnn import Graph, ops
from laboratory.machine_code import launches
from laboratory.simt import control
from laboratory.simt.graphs import CUT, PIECE, graph_of
from tests import support_attention_edges as dot_edges
from tests import support_gatv2_edges as gatv2_edges
from tests.support import HALVES, IDTYPES, randn
from tests.support_attention import GAT, GAT_EDGE, GATV2, check, every_kind, fixed_seed

if not control.SIMULATED:
    pytest.skip("runs on the simulator: laboratory/simt/run.py", allow_module_level=True)

# Heads of whole vectors, of halves of them, of pairs and of single elements; that need several accesses a lane; that are cut
# into tiles, of whole vectors and of single elements.
WIDTHS = {torch.float16: (16, 12, 10, 5, 264, 1032, 133), torch.float32: (8, 6, 3, 132, 516, 131)}
WIDTHS[torch.bfloat16] = WIDTHS[torch.float16]
TYPE_NAMES = {torch.float16: "__half", torch.bfloat16: "__nv_bfloat16"}
CASES = [pytest.param(dtype, dim, id=f"{dtype}-{dim}") for dtype, widths in WIDTHS.items() for dim in widths]


def degrees_for(dim):
    """A row that is cut, and short ones; the wider, the fewer edges."""
    return [3, 0, 1, PIECE + 9, 5, 33] if dim < 500 else [3, 0, 35, 1]


@every_kind
@pytest.mark.parametrize("dtype,dim", CASES)
def test_widths_of_access(dtype, dim, kind):
    heads = 3 if dim < 16 else 2 if dim < 264 else 1
    g = graph_of(degrees_for(dim), 37, IDTYPES[dim % 2], identity=dim % 4 == 0)
    operands = kind.operands(g, heads, dim, dtype)
    check(kind, g, operands, dropout_p=0.3, terms=1000)
    with fixed_seed():  # without a backward other kernels run
        trained = kind.call(g, *(x.clone().requires_grad_() for x in operands), dropout_p=0.3)
        assert torch.equal(kind.call(g, *operands, dropout_p=0.3), trained)


@pytest.mark.parametrize(
    "dtype,dim,columns",
    [(torch.float16, 256, 16), (torch.bfloat16, 40, 70), (torch.float32, 100, 128), (torch.float32, 4, 6)],
)
def test_terms_of_edges(dtype, dim, columns):
    """Heads of one lane up to those of a whole warp, for a row or for more columns; rows that are cut, and pieces of which a bias
    removes all edges."""
    g = graph_of(degrees_for(dim), 37, IDTYPES[dim % 2], identity=dim % 8 == 0)
    heads = 1 if dim > 64 else 3
    both_rows = dot_edges.Terms("rows and bias", ("edge_bias", "edge_key", "edge_value"))
    one_row = dot_edges.Terms("row and bias", ("edge_bias", "edge_key"), (("edge_value", "edge_key"),))
    both_columns = dot_edges.Terms("columns and bias", ("edge_bias", *dot_edges.FEAT))
    for terms in (
        dot_edges.BIAS,
        both_rows,
        one_row,
        both_columns,
        gatv2_edges.BIAS,
        gatv2_edges.BIAS + gatv2_edges.ROWS,
        gatv2_edges.BIAS + gatv2_edges.COLUMNS,
    ):
        is_dot = isinstance(terms, dot_edges.Terms)
        made = (
            terms.operands(g, heads, dim, columns, dtype)
            if is_dot
            else gatv2_edges.operands(terms, g, heads, dim, min(columns, 16), dtype)
        )
        made["edge_bias"][:600, :1] = -torch.inf
        dot_edges.check(terms, g, made, 0.3, 1000) if is_dot else gatv2_edges.check(g, made, 0.3, 1000)


@pytest.mark.parametrize("dtype", HALVES)
def test_kernels_that_terms_of_edges_take(dtype):
    """Tensor cores where laboratory/plan/test_tensor_cores.py says so: all passes but that to sources."""
    policies = {"0": "BiasEdges", "3": "BiasEdges", "4": "NoEdges"}
    for degree in (7, 50):
        g = graph_of([degree] * 37, 37, torch.int32)
        tensors = dot_edges.BIAS.operands(g, 1, 128, 0, dtype)
        leaves = [x.requires_grad_() for x in tensors.values()]
        with launches.recorded() as found:
            dot_edges.BIAS.call(ops.dot_attention, g, tensors).sum().backward()
        assert all(leaf.grad is not None for leaf in leaves)
        names = [launch.kernel for launch in found if launch.kernel.startswith("pair_")]
        assert len(names) == len(policies)
        for name, (kernel, edges) in zip(names, policies.items()):
            on = "pair_tensor_kernel<TensorConfig<" if kernel in "03" else "pair_attention_kernel<PairConfig<Dot, "
            assert name.startswith(f"{on}{edges}, {TYPE_NAMES[dtype]}, {kernel}, "), (degree, name)


@pytest.mark.parametrize("dtype", [*HALVES, torch.float32])
def test_dropout_of_several_heads_wider_than_a_warp(dtype):
    """Gradients of logits of edges take a kernel of their own, which draws the mask again."""
    g = graph_of([3, 0, 5], 7, torch.int32)
    check(GAT_EDGE, g, GAT_EDGE.operands(g, 6, 264, dtype), dropout_p=0.5)


@pytest.mark.parametrize("dtype", [*HALVES, torch.float32])
@pytest.mark.parametrize("kind", [GAT, GAT_EDGE], ids=lambda kind: kind.name)
@pytest.mark.parametrize("logit_dtype", [None, torch.float32], ids=["logits_as_features", "fp32_logits"])
def test_slices_of_one_head(logit_dtype, kind, dtype):
    g = graph_of([3, 0, 1, 2 * PIECE + 1, 5, 33], 37, torch.int32)
    check(kind, g, kind.operands(g, 1, 64, dtype, logit_dtype=logit_dtype), dropout_p=0.3, terms=2000)


# Heads of GATv2 that have records of edges: of a row of whole sectors, of part of one; heads and vectors that repeat the last
# ones.
RECORDED = [(1, 128), (4, 32), (2, 64), (3, 40), (1, 24), (8, 32)]


@pytest.mark.parametrize("idtype", IDTYPES, ids=str)
@pytest.mark.parametrize("heads,dim", RECORDED)
@pytest.mark.parametrize("dtype", [*HALVES, torch.float32])
def test_records_of_edges(dtype, heads, dim, idtype):
    """In a device's memory that has just room for them, and in one with a byte less."""
    g = graph_of([3, 0, 1, PIECE + 9, 5, 33], 5, idtype, identity=idtype == torch.int32)  # long rows are worth records
    operands = GATV2.operands(g, heads, dim, dtype)
    record = math.ceil(heads * (8 + dim * dtype.itemsize / 16) / 32) * 32
    gradients = []
    for spare in (0, -1):
        torch.manual_seed(5)
        with control.setting(memory_bytes=16 * g.num_edges * record + spare):
            gradients.append(check(GATV2, g, operands, dropout_p=0.3, terms=2000)[1])
    recorded, gathered = gradients
    assert torch.equal(recorded[1], gathered[1])  # destinations sum up the same terms in the same order


@pytest.mark.parametrize("heads,dim", RECORDED)
@pytest.mark.parametrize("dtype", HALVES)
def test_records_of_rows_with_and_without_a_ring(dtype, heads, dim):
    """Sources of at least 128 edges read rows and records by copies, others by loads."""
    g = graph_of([63, 64, 0, 65, 1, 71, 96, 9, 127, 128, 129, 135, 190, 255, 300], 41, torch.int32).reverse()
    check(GATV2, g, GATV2.operands(g, heads, dim, dtype), dropout_p=0.3, terms=2000)


@pytest.mark.parametrize("missing", ["copies", "warp_barriers"])
@pytest.mark.parametrize("seed", range(3))
def test_records_are_waited_for(missing, seed):
    """Negative control: what copies bring is not there before the wait, and other lanes' not before the barrier."""
    g = graph_of([PIECE - 1, 33], 3, torch.int32)  # rows of the ring, of which none is cut: nothing is combined
    operands = [x.requires_grad_() for x in GATV2.operands(g, 1, 128, torch.float16)]
    out = ops.gatv2_attention(g, *operands)
    with control.setting(seed=seed, **{missing: 0}), pytest.raises(RuntimeError) as error:
        out.sum().backward()
    assert "(halfgnn::cuda::PairPass)4" in str(error.value)
    assert "is not waited for" in str(error.value) or "a race over shared memory" in str(error.value)


@every_kind
@pytest.mark.parametrize("reverse", [False, True], ids=["rows", "columns"])
def test_rows_cut_into_pieces(reverse, kind):
    """Degrees around multiples of a piece; of rows of many pieces blocks take care, of few warps."""
    g = graph_of(CUT, 37, torch.int32, identity=not reverse)
    g = g.reverse() if reverse else g
    check(kind, g, kind.operands(g, 2, 8, torch.float16), dropout_p=0.2, terms=max(CUT))


@every_kind
@pytest.mark.parametrize("heads,dim", [(1, 8), (4, 32), (40, 2), (16, 24)])
def test_wide_rows_in_slices(heads, dim, kind):
    """More sources than the cache holds rows of: slices of a row are taken by turns."""
    g = graph_of([2, 0, 7, 1] * 4 + [60], 500, torch.int64)
    with control.setting(l2_cache_bytes=4096):
        check(kind, g, kind.operands(g, heads, dim, torch.bfloat16), dropout_p=0.2)


def test_many_short_rows_a_warp():
    g = graph_of([2, 0, 1, 3] * 4100, 64, torch.int32, True)
    check(GATV2, g, GATV2.operands(g, 1, 4, torch.float16))


# ---- GAT: rows of few edges, which groups take, among rows of more, which warps take -------------------------------------------

# Fewer rows than whole units have.
FEW = [0, 7, 3, 1, 16, 0, 17, 4, 2, 8, 9, 15, 5, 0, 0, 6, 1, 33, 2, 12, 2, 0, 8, 1, 4, 3, 31, 32, 0, 2, 1]
# Heads and widths by rows that a warp takes at once.
AT_ONCE = {1: [(1, 256), (2, 128), (5, 40)], 2: [(1, 128), (1, 120), (4, 32), (8, 16), (16, 8), (3, 40)]}
AT_ONCE |= {4: [(1, 64), (8, 8), (5, 12)], 8: [(1, 24), (2, 16), (3, 5)]}


@pytest.mark.parametrize("kind", [GAT, GAT_EDGE], ids=lambda kind: kind.name)
@pytest.mark.parametrize("at_once,heads,dim", [(n, *shape) for n, shapes in AT_ONCE.items() for shape in shapes])
def test_rows_of_few_edges(at_once, heads, dim, kind):
    g = graph_of([*FEW, PIECE + 30] if at_once <= 2 else FEW, 41, IDTYPES[heads % 2], identity=dim % 8 == 0)
    for graph in (g, g.reverse()):  # a backward walks the other direction
        dtype = [torch.float16, torch.bfloat16, torch.float32][dim % 3]
        operands = kind.operands(graph, heads, dim, dtype)
        for dropout_p in (0.0, 0.4):
            check(kind, graph, operands, dropout_p=dropout_p, terms=2000)
        with fixed_seed():  # without a backward other kernels run
            trained = kind.call(graph, *(x.clone().requires_grad_() for x in operands), dropout_p=0.4)
            assert torch.equal(kind.call(graph, *operands, dropout_p=0.4), trained)


def gradients_of(function, g, operands, upstream):
    leaves = [x.clone().requires_grad_() for x in operands]
    return torch.autograd.grad(function(g, *leaves), leaves, upstream)


@pytest.mark.parametrize("heads,dim", [(1, 128), (1, 64), (4, 32)])
def test_rows_do_not_depend_on_their_neighbours(heads, dim):
    """A row has the same bits whatever rows are worked on beside it."""
    g = graph_of(FEW, 41, torch.int32)
    feat, src, dst = operands = GAT.operands(g, heads, dim, torch.float16)
    indptr, indices, _ = g.csc()
    out = GAT.call(g, *operands)
    for row in range(len(FEW)):
        columns = indices[indptr[row] : indptr[row + 1]]
        alone = Graph.from_csc(torch.tensor([0, len(columns)], dtype=torch.int32), columns, num_src=41)
        assert torch.equal(GAT.call(alone, feat, src, dst[row : row + 1])[0], out[row]), row


@pytest.mark.parametrize("heads,dim", [(1, 128), (2, 128), (8, 16)])
def test_rows_keep_infinite_values_to_themselves(heads, dim):
    g = graph_of(FEW, 41, torch.int32)
    adjacent = torch.zeros(len(FEW), 41, dtype=torch.bool)
    src, dst = g.edges()
    adjacent[dst.long(), src.long()] = True
    feat, *logits = GAT.operands(g, heads, dim, torch.float16)
    feat = feat.abs()
    out = GAT.call(g, feat, *logits)
    of_sources = torch.arange(41) % 3 == 0
    touched = adjacent[:, of_sources].any(1)

    got = GAT.call(g, feat.masked_fill(of_sources[:, None, None], torch.inf), *logits)
    assert (got[touched] == torch.inf).all() and torch.equal(got[~touched], out[~touched])
    got = GAT.call(g, feat, logits[0].masked_fill(of_sources[:, None], torch.nan), logits[1])
    assert got[touched].isnan().all() and torch.equal(got[~touched], out[~touched])

    # In a backward the sources are the rows.
    g, (feat, *logits) = g.reverse(), GAT.operands(g.reverse(), heads, dim, torch.float16)
    upstream = randn(41, heads, dim, dtype=torch.float16)
    expected = gradients_of(GAT.call, g, (feat, *logits), upstream)
    logits[1] = logits[1].masked_fill(of_sources[:, None], torch.nan)
    for x, before in zip(gradients_of(GAT.call, g, (feat, *logits), upstream)[:2], expected):
        assert x[touched].isnan().all() and torch.equal(x[~touched], before[~touched])


def test_products_of_many_rows():
    """So many that blocks share those of a column, and another adds up what they found."""
    g = graph_of([2, 0, 1] * 400, 37, torch.int32)
    check(GATV2, g, GATV2.operands(g, 1, 8, torch.float16))


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
def test_many_rows_of_few_edges(backward):
    """Units of four rows, so that a group takes several, one after the other. Nothing is left of those before."""
    degrees = torch.tensor([2, 0, 1, 3, 1, 4, 0, 0, 3, 1, 17, 2]).repeat(2734)
    rows = torch.repeat_interleave(torch.arange(len(degrees)), degrees)
    columns = torch.arange(len(rows)) * 7919 % 64
    ends = (columns, rows) if not backward else (rows, columns)
    g = Graph.from_edges(
        *(x.int() for x in ends),
        num_src=64 if not backward else len(degrees),
        num_dst=len(degrees) if not backward else 64,
    )
    operands = GAT.operands(g, 8, 16, torch.float16)
    wide = [x.double() for x in operands]
    if not backward:
        truth = GAT.specification(g, *wide)
        operands[1][::7] = torch.nan
        touched = torch.zeros(len(degrees), dtype=torch.bool)
        touched[rows[columns % 7 == 0]] = True
        out = GAT.call(g, *operands).double()
        assert out[touched].isnan().all()
        torch.testing.assert_close(out[~touched], truth[~touched], rtol=2e-3, atol=1e-3)
        return
    upstream = randn(64, 8, 16, dtype=torch.float16)
    truth = gradients_of(GAT.specification, g, wide, upstream.double())
    for got, expected in zip(gradients_of(GAT.call, g, operands, upstream), truth):
        error = (got.double() - expected).abs().max()
        assert error < 2e-3 * expected.abs().max(), error
