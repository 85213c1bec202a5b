"""What the operators' own tests leave out because only the CUDA kernels have it: rows cut into pieces, column tiles, widths of
access, warps that take many edges or rows. (Orders of lanes: test_lanes.py.)

Sizes are such that each choice of the launchers is made. Results are held to the rule of support.
"""

from __future__ import annotations

import pytest
import torch

from halfgnn import Graph, ops, reference
from laboratory.simt import control
from laboratory.simt.graphs import CUT, FEW_EDGES, PIECE, graph_of
from tests import support
from tests.support import HALVES, IDTYPES, check_gsddmm, check_gspmm, randn, sddmm_operands
from tests.support_messages import check_u_add_v_add_e

if not control.SIMULATED:
    pytest.skip("runs on the simulator: laboratory/simt/run.py", allow_module_level=True)

raw = torch.ops.halfgnn
MANY_EDGES, SHORT_PIECE = 1 << 17, 128  # edges from which pieces are shorter, and their edges (rows.cuh)
DTYPES = [*HALVES, torch.float32]
VARIANTS = [(idtype, identity) for idtype in IDTYPES for identity in (False, True)]


def check_softmax(g, logits, norm_by="dst", terms=64):
    host = lambda x: reference.edge_softmax(g, x, norm_by)  # noqa: E731
    return support.check(lambda x: ops.edge_softmax(g, x, norm_by), host, [logits], terms=terms)


def blocks_of(function):
    before = control.get("blocks")
    result = function()
    return control.get("blocks") - before, result


# ---- rows cut into pieces ------------------------------------------------------------------------

CUT_CASES = [
    ("copy_lhs", "sum", (8,), ()),
    ("copy_lhs", "mean", (3,), ()),
    ("mul", "sum", (3, 4), (3, 1)),
    ("mul", "mean", (5,), (1,)),
    ("copy_rhs", "sum", (), (6,)),
    ("copy_rhs", "mean", (), (1,)),
    ("copy_lhs", "max", (8,), ()),
    ("copy_rhs", "min", (), (3,)),
    ("add", "max", (2, 3), (2, 1)),
    ("sub", "min", (4,), (4,)),
    ("div", "sum", (4,), (4,)),
    ("add", "sum", (2, 4), (4,)),
]


@pytest.mark.parametrize("case", range(len(CUT_CASES)))
def test_rows_cut_into_pieces(case):
    """Degrees around multiples of a piece; of rows of many pieces blocks take care, of few warps."""
    op, reduce_op, lhs, rhs = CUT_CASES[case]
    g = graph_of(CUT, 37, *VARIANTS[case % 4])
    dtype = DTYPES[case % 3]
    check_gspmm(g, op, reduce_op, support.spmm_operands(g, op, lhs, rhs, dtype), terms=max(CUT))
    g = g.reverse()  # the backward's rows are cut
    check_gspmm(g, op, reduce_op, support.spmm_operands(g, op, lhs, rhs, dtype), terms=max(CUT))


@pytest.mark.parametrize("op,lhs,rhs", [("dot", (2, 4), (2, 4)), ("add", (5,), (1,)), ("mul", (4,), (4,))])
def test_gradients_of_rows_cut_into_pieces(op, lhs, rhs):
    g = graph_of(CUT, 37, torch.int32)
    check_gsddmm(g, op, sddmm_operands(g, op, lhs, rhs, torch.float16), "u", "v", terms=max(CUT))


def test_wide_cut_row():
    """More columns than one sweep of the blocks that combine pieces covers."""
    g = graph_of([PIECE], 2, torch.int32, True)
    x = randn(2, 33_024, dtype=torch.float16)
    assert torch.equal(ops.copy_u_mean(g, x)[0], x.double().mean(0).half())


def test_many_columns_of_rows_of_many_pieces():
    """Of so many pieces that the blocks that combine them sweep over the columns of a row."""
    degrees = torch.tensor([17 * SHORT_PIECE, *[SHORT_PIECE - 1] * 4000])  # of more than MANY_EDGES
    indptr = torch.cat([torch.zeros(1, dtype=torch.int64), degrees.cumsum(0)])
    partial = torch.randint(-9, 9, (-(-degrees.sum().item() // SHORT_PIECE), 600)).float()
    out = torch.ops.halfgnn_simt.combine(indptr, partial, degrees.sum())
    assert torch.equal(out[0], partial[:17].sum(0)) and not out[1:].any()


def test_many_columns_of_maxima_of_rows_of_many_pieces():
    g = graph_of([17 * PIECE, 3], 37, torch.int32, True)
    x = randn(37, 40, dtype=torch.bfloat16)
    assert torch.equal(ops.copy_u_max(g, x), torch.stack([x.amax(0), x[g.edges()[0][-3:].long()].amax(0)]))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("columns,pieces", [(1, 40_000), (2, 20_000), (4, 18_000), (8, 4500), (41, 200)])
def test_softmax_of_cut_rows(columns, pieces, dtype):
    identity = columns % 8 != 0
    g = graph_of([3, pieces, 0, 700, 70], 50, IDTYPES[columns % 2], identity)
    check_softmax(g, randn(g.num_edges, columns, dtype=dtype), terms=pieces)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("columns", [1, 2, 3, 4, 8, 12, 602])
def test_softmax_rows_longer_than_the_others(columns, dtype):
    """They wait for a warp or for the block, and are read once or twice. Where all wait, nothing is done before them."""
    long = [300, 0, 60, 2100] if columns < 100 else [40]
    for identity in (False, True):
        g = graph_of([1, 2, 0, 3, 2, 1, *long] + [1, 2] * 20, 50, IDTYPES[identity], identity)
        check_softmax(g, randn(g.num_edges, columns, dtype=dtype).mul(3), ("src", "dst")[identity], terms=2100)


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
@pytest.mark.parametrize("reduce_op", ["sum", "mean", "max", "min"])
def test_one_value_that_is_not_finite_in_a_cut_row(reduce_op, value):
    """It shows in its own column of its own row, and nowhere else."""
    g = graph_of([4, 3 * PIECE, 5], 37, torch.int32, True)
    x = torch.ones(g.num_edges, 9, dtype=torch.float16)
    x[4 + 2 * PIECE + 3, 7] = value
    out = ops.gspmm(g, "copy_rhs", reduce_op, None, x)
    expected = reference.gspmm(g, "copy_rhs", reduce_op, None, x.double())
    torch.testing.assert_close(out.double(), expected, equal_nan=True)
    torch.testing.assert_close(ops.edge_softmax(g, x)[:4], torch.full((4, 9), 0.25).half())
    assert ops.edge_softmax(g, x)[4:-5].isnan().any(0).tolist() == [
        (i == 7 and value > 0) or (i == 7 and value != value) for i in range(9)
    ]


# ---- column tiles --------------------------------------------------------------------------------


@pytest.mark.parametrize("op,reduce_op,lhs,rhs,dtype", [
    ("copy_lhs", "sum", (256,), (), torch.float16),
    ("mul", "sum", (602,), (1,), torch.bfloat16),
    ("mul", "mean", (4, 100), (4, 1), torch.float16),
    ("copy_lhs", "max", (328,), (), torch.bfloat16),
])  # fmt: skip
def test_tiles_of_gathered_rows(op, reduce_op, lhs, rhs, dtype):
    """Slices of the features that fit in a small cache are swept one after the other."""
    g = graph_of([140, 0, 6, 82] * 6, 200, torch.int32)
    operands = support.spmm_operands(g, op, lhs, rhs, dtype)
    call = lambda: ops.gspmm(g, op, reduce_op, *operands)  # noqa: E731
    whole, expected = blocks_of(call)
    for cache in (32 << 10, 64 << 10, 0):
        with control.setting(l2_cache_bytes=cache):
            tiled, out = blocks_of(call)
            support.assert_same(out, expected)
            if cache == 32 << 10:
                assert tiled > whole
                check_gspmm(g, op, reduce_op, operands)


@pytest.mark.parametrize("op,width", [("add", 512), ("copy_lhs", 512), ("add", 400)])
def test_tiles_of_elementwise(op, width):
    """The last slice of 400 columns is narrower than the others."""
    g = graph_of([20] * 50, 200, torch.int64)
    operands = sddmm_operands(g, op, (width,), (width,), torch.float16)
    whole, expected = blocks_of(lambda: ops.gsddmm(g, op, *operands))
    for cache in (48 << 10, 150 << 10):
        with control.setting(l2_cache_bytes=cache):
            tiled, out = blocks_of(lambda: ops.gsddmm(g, op, *operands))
        assert tiled > whole and torch.equal(out, expected)
    with control.setting(l2_cache_bytes=4 << 10):  # not even the narrowest slice fits
        assert blocks_of(lambda: ops.gsddmm(g, op, *operands))[0] == whole


@pytest.mark.parametrize("heads", [3, 4])
def test_tiles_of_heads(heads):
    """Head after head, where those of one head fit in the cache."""
    g = graph_of([60, 0, 2, 50] * 14, 200, torch.int32)
    products = support.spmm_operands(g, "mul", (heads, 128), (heads, 1), torch.bfloat16)
    dots = sddmm_operands(g, "dot", (heads, 128), (heads, 128), torch.bfloat16)
    whole, _ = blocks_of(lambda: ops.gsddmm(g, "dot", *dots))
    with control.setting(l2_cache_bytes=80 << 10):
        tiled, _ = blocks_of(lambda: check_gsddmm(g, "dot", dots, "u", "v", backward=False))
        # A warp takes two heads. Of three it takes one by one in any case, rather than leave lanes idle.
        assert tiled > whole if heads == 4 else tiled == whole
        check_gspmm(g, "mul", "sum", products)


@pytest.mark.parametrize("lhs,rhs,reduce_op,idtype", [
    ((16,), (1,), "sum", torch.int32), ((2, 8), (2, 1), "mean", torch.int64),
])  # fmt: skip
def test_gradients_of_a_weighted_sum_from_one_gather_or_two(lhs, rhs, reduce_op, idtype):
    """Two where weights are scattered over more than the cache, which holds the rows."""
    g = graph_of([100] * 40, 150, idtype, identity=True)
    operands = support.spmm_operands(g, "mul", lhs, rhs, torch.float16)

    def launches_with(cache, graph):
        """A sum by itself clears counters, in place of a launch."""
        graph.csr()
        with control.setting(l2_cache_bytes=cache):
            before = control.get("launches") + control.get("memsets")
            check_gspmm(graph, "mul", reduce_op, operands, terms=128)
            return control.get("launches") + control.get("memsets") - before

    one = launches_with(50 << 20, g)
    assert launches_with(9 << 10, g) > one
    # Edge data in another order: dots would be scattered too.
    scattered = graph_of([100] * 40, 150, idtype)
    assert launches_with(9 << 10, scattered) == launches_with(50 << 20, scattered)


@pytest.mark.parametrize("dtype,weight_dtype,scaled", [
    (torch.float16, torch.float16, False), (torch.bfloat16, torch.float32, True), (torch.float32, torch.bfloat16, False),
])  # fmt: skip
def test_the_first_slice_puts_scattered_weights_in_order(dtype, weight_dtype, scaled):
    """Where a memory is so slow that reading them once saves more than a launch. Of integers sums are exact."""
    g = graph_of([100, 0, 3, PIECE + 700, 31, 64, 33] * 3, 150, torch.int32)
    g.csr()
    generator = torch.Generator().manual_seed(3)
    x, grad, weight = (
        torch.randint(-4, 5, shape, generator=generator).to(kind)
        for shape, kind in (((150, 128), dtype), ((g.num_dst, 128), dtype), ((g.num_edges, 1), weight_dtype))
    )
    reduce_op = "mean" if scaled else "sum"

    def found(**settings):
        with control.setting(l2_cache_bytes=6 << 10, **settings):
            before = control.get("launches")
            out = ops.gspmm(g, "mul", reduce_op, x, weight)
            forward = control.get("launches") - before
            leaf = x.clone().requires_grad_()
            before = control.get("launches")
            ops.gspmm(g, "mul", reduce_op, leaf, weight).backward(grad)
            return (out, leaf.grad), (forward, control.get("launches") - before)

    (expected, as_they_lie), (results, in_order) = found(), found(memory_kilohertz=1)
    assert as_they_lie == (1, 2) and in_order == (2, 4)
    assert torch.equal(results[0], expected[0])
    scale = 0 if not scaled else 2 * torch.finfo(dtype).eps  # degrees divide gradients first
    assert (results[1] - expected[1]).abs().max() <= scale * expected[1].abs().max()
    with control.setting(l2_cache_bytes=6 << 10, memory_kilohertz=1):
        check_gspmm(
            g, "mul", reduce_op, (randn(150, 128, dtype=dtype), randn(g.num_edges, 1, dtype=weight_dtype)), terms=1024
        )


# ---- layouts of heads, widths of access ----------------------------------------------------------


@pytest.mark.parametrize("dim", [1, 2, 4, 7, 8, 12, 31, 41, 66, 132, 260, 264, 602, 1040])
@pytest.mark.parametrize("dtype", DTYPES)
def test_weights_of_heads(dtype, dim):
    """Weights of either type, results and gradients of either type, by one head and by several."""
    heads = 3 if dim < 200 else 1
    g = support.make_graph("bipartite" if dim < 100 else "duplicates", *VARIANTS[dim % 4][:1])
    for weight in DTYPES if dtype == torch.float32 else (dtype, torch.float32):
        operands = support.spmm_operands(g, "mul", (heads, dim), (heads, 1), dtype, rhs_dtype=weight)
        check_gspmm(g, "mul", "sum", operands)
        check_gspmm(g, "mul", "mean", operands, out_dtype=torch.float32)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads,dim", [(1, 602), (5, 31), (8, 6), (20, 4), (40, 1), (2, 520)])
def test_dots_of_heads(heads, dim, dtype):
    g = support.make_graph("bipartite", IDTYPES[dim % 2])
    for lhs, rhs in (("u", "v"), ("e", "u")):
        check_gsddmm(g, "dot", sddmm_operands(g, "dot", (heads, dim), (heads, dim), dtype, lhs, rhs), lhs, rhs)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [2, 6, 8, 12, 66, 68, 132])
def test_narrow_accesses(width, dtype):
    """Of rows that are no multiple of 16 bytes."""
    g = support.make_graph("bipartite", IDTYPES[width % 4 // 2], identity=width > 60)
    for op, reduce_op, rhs in (("copy_lhs", "sum", ()), ("mul", "mean", (1,)), ("copy_lhs", "max", ())):
        check_gspmm(g, op, reduce_op, support.spmm_operands(g, op, (width,), rhs, dtype))
    for op, targets in (("add", "uv"), ("copy_rhs", "ev"), ("div", "ve")):
        operands = sddmm_operands(g, op, (width,), (width,), dtype, *targets)
        check_gsddmm(g, op, [x if x is None or op != "div" else x.abs() + 0.5 for x in operands], *targets)
    check_u_add_v_add_e(g, [randn(support.rows_of(g, target), width, dtype=dtype) for target in "uve"])


# ---- warps that take much ------------------------------------------------------------------------


def test_warps_of_many_short_rows():
    """Enough rows that a warp takes several of them, long ones among them."""
    degrees = torch.arange(17_000) % 3
    degrees[[5, 16_990]], degrees[8000:8100] = torch.tensor([PIECE + 1, 90]), 0
    g = graph_of(degrees.tolist(), 100, torch.int32, True)
    check_gspmm(g, "copy_lhs", "mean", support.spmm_operands(g, "copy_lhs", (8,), (), torch.float16), terms=1024)
    g = g.reverse()  # the backward's rows
    check_gspmm(g, "mul", "sum", support.spmm_operands(g, "mul", (2, 4), (2, 1), torch.float16), terms=1024)


def test_pieces_are_shorter_where_there_are_many_edges():
    """Rows of 128 edges are cut, and combined; with a few edges less they are not."""
    ends = [
        SHORT_PIECE - 1,
        SHORT_PIECE,
        SHORT_PIECE + 1,
        0,
        2 * SHORT_PIECE,
        5 * SHORT_PIECE + 3,
        PIECE,
        3 * PIECE + 1,
    ]
    launches = []
    for total in (MANY_EDGES, MANY_EDGES - 1):
        left = total - sum(ends)
        g = graph_of([*ends[:4], *[5] * (left // 5), left % 5, *ends[4:]], 100, torch.int32, True)
        assert g.num_edges == total
        operands = support.spmm_operands(g, "mul", (8,), (1,), torch.float16)
        before = control.get("blocks")
        ops.gspmm(g, "mul", "sum", *operands)
        launches.append(control.get("blocks") - before)
        check_gspmm(g, "mul", "sum", operands, terms=2 * SHORT_PIECE if total == MANY_EDGES else 2 * PIECE)
    assert launches[0] > launches[1]


# Lanes of a group and of a team, as powers of 2, and from how many edges on rows wait.
TEAMS = [
    (0, 1, 8),
    (0, 3, 32),
    (1, 2, 16),
    (2, 3, 8),
    (2, 5, 10_000),
    (3, 3, 16),
    (4, 4, 16),
    (4, 5, 10_000),
    (5, 5, 40),
]


@pytest.mark.parametrize("name", FEW_EDGES)
@pytest.mark.parametrize("layout", TEAMS, ids=str)
def test_teams_get_every_edge_once(layout, name):
    degrees = torch.tensor(FEW_EDGES[name])
    is_long = degrees >= PIECE
    for idtype, first in ((torch.int32, 0), (torch.int64, 3)):
        padded = torch.cat([torch.tensor([first]), degrees])
        indptr = torch.cat([torch.zeros(1, dtype=torch.int64), padded.cumsum(0)]).to(idtype)
        num_edges = indptr[-1].item()
        row = torch.repeat_interleave(torch.arange(len(padded)), padded)
        for log2_rows, passes in ((5 - layout[1], 1), (3, 2), (4, 1)):
            if log2_rows < 5 - layout[1]:
                continue
            edges, lines, rows, pieces = torch.ops.halfgnn_simt.row_teams(indptr, num_edges, layout, log2_rows, passes)
            assert (edges == passes).all()
            cut = torch.cat([torch.tensor([False]), is_long])
            assert torch.equal(lines[~cut[row]].long(), row[~cut[row]])
            assert torch.equal(rows, (~cut).int() * passes)
            begin, slots = indptr[:-1].long(), torch.arange(len(pieces)) * PIECE
            of_slots = torch.searchsorted(indptr[1:].long(), slots, right=True)
            assert torch.equal(pieces, cut[of_slots].int() * passes)
            first_slot = (begin + PIECE - 1) // PIECE
            expected = torch.maximum(torch.arange(num_edges) // PIECE, first_slot[row])
            assert torch.equal(lines[cut[row]].long(), expected[cut[row]])


@pytest.mark.parametrize("width", [8, 16, 24, 128, 200, 256])
@pytest.mark.parametrize("name", FEW_EDGES)
def test_rows_of_few_edges(name, width):
    case = list(FEW_EDGES).index(name) + width // 8
    g = graph_of(FEW_EDGES[name] * (1 if "long" in name else 3), 37, *VARIANTS[case % 4])
    dtype = DTYPES[case % 3]
    for op, reduce_op, rhs in (("copy_lhs", "sum", ()), ("mul", "mean", (1,)), ("copy_lhs", "max", ())):
        check_gspmm(g, op, reduce_op, support.spmm_operands(g, op, (width,), rhs, dtype), terms=2 * PIECE)
    g = g.reverse()
    check_gspmm(g, "mul", "sum", support.spmm_operands(g, "mul", (2, width // 2), (2, 1), dtype), terms=2 * PIECE)


@pytest.mark.parametrize("op,targets,lhs,rhs,num_edges", [
    ("dot", "uv", (1,), (1,), 530_000),
    ("add", "uv", (1,), (1,), 2_100_000),
    ("sub", "ee", (1, 1), (1,), 1_060_000),
    ("mul", "ue", (1,), (), 1_060_000),
])  # fmt: skip
def test_warps_of_many_edges(op, targets, lhs, rhs, num_edges):
    """More edges than there are warps for at 32 each: a warp takes several times as many."""
    indptr = torch.arange(0, num_edges + 1, 530, dtype=torch.int32)
    indptr[-1] = num_edges
    num_rows = len(indptr) - 1
    indices = torch.arange(num_edges, dtype=torch.int32) * 13 % 997
    g = Graph(997, num_rows, csc=(indptr, indices, None))
    operands = sddmm_operands(g, op, lhs, rhs, torch.float32, *targets)
    expected = reference.gsddmm(g, op, *operands, *targets)
    torch.testing.assert_close(ops.gsddmm(g, op, *operands, *targets), expected, rtol=1e-6, atol=1e-6)


def test_edges_far_apart():
    """More than 31 empty rows between neighbours in the array of edges, so that rows must be searched for."""
    degrees = torch.zeros(2000, dtype=torch.int64)
    degrees[[0, 1, 40, 41, 900, 1999]] = torch.tensor([3, 1, 2, 30, 5, 7])
    for idtype, identity in VARIANTS:
        g = graph_of(degrees.tolist(), 20, idtype, identity)
        for op in ("dot", "add"):
            check_gsddmm(g, op, sddmm_operands(g, op, (4,), (4,), torch.float16), "u", "v")
        check_gspmm(g, "mul", "sum", support.spmm_operands(g, "mul", (4,), (4,), torch.float16))
        back = raw.transpose(*g.csr(), g.num_dst)
        assert torch.equal(back[0], g.csc().indptr)
        ids = torch.arange(g.num_edges) if identity else g.csc().edge_ids
        assert torch.equal(back[1][back[2].argsort()], g.csc().indices[ids.argsort()])
