"""What the CUDA planners choose: widths that kernels have, whole rows if these fit in the cache, slices if sweeps pay."""

import itertools

import pytest

from .planners import ACCESSES, MB

L2 = 50 * MB
CACHES = (0, 4096, MB, 40 * MB, L2, 60 * MB)
# (nodes, edges): from a few that fit in any cache to many that fit in none.
GRAPHS = [(nodes, nodes * degree) for nodes in (1, 1000, 169_343, 2_449_029) for degree in (0, 1, 7, 50, 492)]
HEADS = [(heads, vectors) for heads in (1, 2, 3, 4, 8, 40) for vectors in (1, 2, 4, 5, 16, 32, 33, 130)]


# ---- whether rows are sliced ---------------------------------------------------------------------


@pytest.mark.parametrize("degree", [1, 10, 500])
def test_a_matrix_that_fits_is_whole(planners, degree):
    nodes = int(0.5 * L2) // 512
    assert planners.are_whole(L2, nodes, nodes * degree)


def test_a_matrix_of_twice_the_cache_is_swept_if_its_rows_are_read_often(planners):
    nodes = 2 * L2 // 512
    edges, usable = 500 * nodes, 0.75 * L2
    assert nodes * 512 / planners.lanes(L2, nodes, edges, 512).slices <= usable
    assert nodes * planners.slice_bytes(L2, nodes, edges, 512) <= usable
    # Of several widths that fit, the widest.
    assert planners.slice_bytes(L2, nodes // 4, edges, 2048) == 512


@pytest.mark.parametrize("kind", ["whole_heads", "parts_of_heads"])
@pytest.mark.parametrize("heads,vectors,times", [(8, 8, 2), (8, 8, 4), (8, 32, 2)])
def test_heads_of_more_than_the_cache_are_swept_if_they_are_read_often(planners, kind, heads, vectors, times):
    nodes = times * L2 // (16 * heads * vectors)
    layout = getattr(planners, kind)(L2, nodes, 500 * nodes, heads, vectors)
    slice_bytes = 16 << (layout.log2_lanes + layout.log2_heads)
    # A kernel that is bound by its instructions leaves a few misses rather than begin every row again.
    assert layout.by_slice and nodes * slice_bytes <= (1 if kind == "whole_heads" else 0.75) * L2
    assert vectors == 32 or nodes * 2 * slice_bytes > 0.75 * L2


def test_rows_that_are_hardly_read_again_are_whole(planners):
    nodes = 2 * L2 // 512
    assert planners.lanes(L2, nodes, nodes, 512, read_once=True).slices == 1
    assert not planners.whole_heads(L2, nodes, nodes, 4, 8).by_slice
    assert planners.slice_bytes(L2, nodes, nodes, 512) == 512


def test_without_a_known_cache_rows_are_whole(planners):
    assert all(planners.are_whole(0, nodes, edges) for nodes, edges in GRAPHS if nodes > 1)


def test_more_edges_per_row_never_make_wider_slices(planners):
    """From degrees on at which teams are warps: narrower groups save no lanes."""
    for nodes, row_bytes in itertools.product((100_000, 232_965, 2_449_029), (256, 512, 2048)):
        edges = [nodes * degree for degree in range(64, 800, 7)]
        slices = [planners.lanes(L2, nodes, e, row_bytes).slices for e in edges]
        assert slices == sorted(slices)
        by_slice = [planners.whole_heads(L2, nodes, e, 4, row_bytes // 64).by_slice for e in edges]
        assert by_slice == sorted(by_slice)


def test_groups_of_sums_do_not_leave_many_lanes_idle(planners):
    """Rows of 40 vectors: five groups of 8 lanes instead of two of 32."""
    assert planners.lanes(L2, 1000, 50_000, 640).slices == 5


def test_heads_that_a_warp_takes_alone_are_swept_one_by_one(planners):
    """Two heads of 32 accesses: their warps work at the same time, unless both miss too often."""
    nodes = 2 * L2 // 1024
    assert planners.whole_heads(10 * L2, nodes, 500 * nodes, 2, 32).by_slice == 0
    layout = planners.whole_heads(L2, nodes, 500 * nodes, 2, 32)
    assert (layout.slices, layout.by_slice) == (2, 1)


def test_what_slices_of_heads_stream(planners):
    nodes, edges = 1000, 50_000
    # Ids, and a sector of results.
    layout, slices = planners.whole_heads_and_slices(L2, nodes, edges, 8, 2)
    assert (slices.count, slices.bytes, slices.streamed, slices.cached_per_edge) == (1, 256, 40 * edges, 0)
    # Ids; logits are fp32, and read in sectors.
    for heads, sectors in ((1, 1), (8, 1), (16, 2), (32, 4)):
        layout, slices = planners.parts_of_heads_and_slices(L2, nodes, edges, heads, 1)
        assert slices.count == layout.slices * layout.tiles == 1
        assert (slices.streamed, slices.cached_per_edge) == (4 * edges, 32 * sectors)


def test_instructions_of_slices_of_heads(planners):
    nodes, edges = 1000, 50_000
    work = planners.work("mul_backward")
    # 8 heads of 2 accesses: two groups of four edges.
    _, slices = planners.whole_heads_and_slices(L2, nodes, edges, 8, 2)
    assert slices.instructions == planners.instructions((work.row, work.batch), nodes, edges, 8)
    # Each edge reads two rows.
    _, slices = planners.whole_heads_and_slices(L2, nodes, edges, 8, 2, rows_per_edge=2)
    assert slices.instructions == planners.instructions((work.row, work.batch), nodes, edges, 8, batch_accesses=8)
    # Heads of 130 accesses are walked in five tiles.
    _, slices = planners.whole_heads_and_slices(L2, nodes, edges, 1, 130)
    assert (slices.count, slices.bytes) == (1, 5 * 512)
    assert slices.instructions == planners.instructions((work.row, work.batch), nodes, edges, 4, batch_accesses=20)
    # The weights of GAT's edges: 100 instructions for 32.
    work = planners.work("gat")
    _, slices = planners.parts_of_heads_and_slices(L2, nodes, edges, 8, 2)
    rows = planners.instructions((work.row, work.batch), nodes, edges, 8)
    assert slices.instructions == pytest.approx(rows + 8 * edges * 100 / 32)


def test_teams_of_rows_of_few_edges(planners):
    """Of 128 halves in 16 lanes with four edges in flight: one group takes a row in two batches, a warp in one or more."""
    teams = [planners.lanes(L2, 1000, 1000 * degree, 256)[1:3] for degree in (0, 1, 8, 9, 50)]
    assert teams == [(4, 16)] * 3 + [(5, 2**31 - 1)] * 2
    # Averages are rounded up: rows of 8 and more do not fit.
    assert [planners.lanes(L2, 1000, edges, 256)[1] for edges in (7001, 8000, 8001)] == [4, 4, 5]
    assert planners.lanes(L2, 0, 0, 256)[1:3] == (4, 16)
    # Rows of 8 halves: a lane has ids of one edge.
    assert [planners.lanes(L2, 1000, 1000 * degree, 16)[1] for degree in (0, 4, 5, 16, 17, 33)] == [1, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("degree,rows_at_once,batch", [(1, 2, 4), (16, 2, 4), (17, 1, 8), (50, 1, 8)])
def test_groups_of_gat_take_rows_that_have_an_edge_per_lane(planners, degree, rows_at_once, batch):
    """1 x 128 halves: two groups of 16 lanes with four edges in flight."""
    work = planners.work("gat")
    _, slices = planners.parts_of_heads_and_slices(L2, 1000, 1000 * degree, 1, 16)
    rows = planners.instructions((work.row, work.batch), 1000, 1000 * degree, batch, rows_at_once)
    assert slices.instructions == pytest.approx(rows + 1000 * degree * 100 / 32)


# u_mul_e_sum in fp16 with one head: F, and the slices of the tables in docs/tuning.md.
@pytest.mark.parametrize("nodes,edges,slices", [
    (232_965, 114_615_892, {64: 1, 128: 2, 256: 4}),
    (2_449_029, 123_718_280, {64: 1, 128: 1, 256: 1}),
    (132_534, 79_122_504, {64: 1, 128: 1, 256: 2}),
    (169_343, 1_166_243, {64: 1, 128: 1, 256: 2}),
], ids=["reddit-size", "products-size", "proteins-size", "arxiv-size"])  # fmt: skip
def test_documented_slices_of_sums(planners, nodes, edges, slices):
    assert {width: planners.lanes(L2, nodes, edges, 2 * width).slices for width in slices} == slices


# ---- the cache -----------------------------------------------------------------------------------


@pytest.mark.parametrize("skew", [0, 0.5])
def test_miss_rate(planners, skew):
    usable = 3 * L2 // 4
    assert planners.miss_rate(L2, 0) == planners.miss_rate(L2, usable, skew=skew) == 0
    assert planners.miss_rate(0, 1, skew=skew) == 1
    assert planners.miss_rate(L2, 4 * usable, skew=skew) == pytest.approx(1 - 0.25**0.7 if skew else 0.75)
    rates = [planners.miss_rate(L2, k * MB, skew=skew) for k in range(1, 500)]
    assert rates == sorted(rates)
    rates = [planners.miss_rate(k * MB, L2, skew=skew) for k in range(1, 500)]
    assert rates == sorted(rates, reverse=True)


# ---- what kernels have ---------------------------------------------------------------------------


@pytest.mark.parametrize("access", ACCESSES)
def test_lanes_are_those_of_a_warp_and_cover_a_row(planners, access):
    vector_bytes, repeat, _ = access
    for l2, (nodes, edges), vectors in itertools.product(CACHES, GRAPHS, (1, 2, 3, 8, 31, 32, 33, 100, 602)):
        plan = planners.lanes(l2, nodes, edges, vectors * vector_bytes, access)
        lane_vectors = repeat << plan.log2_lanes
        assert 0 <= plan.log2_lanes <= plan.log2_team <= 5 and plan.log2_team >= 1
        assert plan.slices == -(-vectors // lane_vectors)
        assert lane_vectors * vector_bytes >= 64 or lane_vectors >= vectors or plan.log2_lanes == 5
        assert (plan.team_edges == 2**31 - 1) if plan.log2_team == 5 else (0 < plan.team_edges < 2**10)


@pytest.mark.parametrize("kind", ["whole_heads", "parts_of_heads"])
def test_layouts_fill_a_warp_and_cover_all_heads(planners, kind):
    for l2, (nodes, edges), (heads, vectors) in itertools.product(CACHES, GRAPHS, HEADS):
        layout = getattr(planners, kind)(l2, nodes, edges, heads, vectors)
        assert min(layout.log2_lanes, layout.log2_heads) >= 0 and 0 <= layout.log2_groups <= 3
        assert layout.log2_lanes + layout.log2_heads + layout.log2_groups == 5
        assert layout.slices == -(-heads // (1 << layout.log2_heads))
        assert layout.tiles == -(-vectors // (1 << layout.log2_lanes))
        assert not layout.by_slice or 16 << (layout.log2_lanes + layout.log2_heads) >= 64
        uncut = planners.parts_of_heads(l2, nodes, edges, heads, vectors, whole_heads=True)
        assert uncut.tiles == -(-vectors // 32)


@pytest.mark.parametrize("vector_bytes", [2, 4, 8, 16])
def test_slices_of_elementwise_are_whole_lines(planners, vector_bytes):
    for l2, (nodes, edges), vectors in itertools.product(CACHES, GRAPHS, (1, 7, 8, 33, 64, 100, 1000)):
        row_bytes = vectors * vector_bytes
        width = planners.slice_bytes(l2, nodes, edges, row_bytes, vector_bytes)
        assert width == row_bytes or (width < row_bytes and width % 128 == 0)


@pytest.mark.parametrize(
    "heads,vectors,record",
    [(1, 16, 32), (4, 4, 64), (8, 4, 96), (1, 24, 32), (1, 25, 64), (1, 3, 32), (1, 2, 0), (16, 2, 0)],
)
def test_records_of_edges_fit_in_a_part_of_memory(planners, heads, vectors, record):
    """Whole sectors, of heads that have them."""
    for edges in (0, 1, 1000, 114_615_892):
        least = 16 * edges * record
        assert planners.edge_record_bytes(least, edges, heads, vectors) == record
        assert edges == 0 or planners.edge_record_bytes(least - 1, edges, heads, vectors) == 0
    for heads, vectors in HEADS:
        assert planners.edge_record_bytes(1 << 40, 1000, heads, vectors) <= 16 * heads * vectors + 31


def test_units_are_whole_chunks_and_neither_short_nor_long(planners):
    for edges, other in itertools.product((1, 31, 10**5, 10**7, 10**9), (1, 3, 64, 5000)):
        assert planners.dot_unit_edges(edges, other) in range(32, 1025, 32)
        assert planners.elementwise_unit_edges(edges, other) in (32, 64, 128, 256, 512, 1024)
    assert planners.dot_unit_edges(10**5, 1) == planners.elementwise_unit_edges(10**5, 1) == 32
    # 4 waves of 32 warps on 132 multiprocessors, and on 16.
    waves = 4 * 32 * 132
    assert [planners.dot_unit_edges(32 * waves * n, 1) for n in (1, 3)] == [32, 96]
    assert [planners.elementwise_unit_edges(32 * waves * n + extra, 1) for n, extra in ((1, 31), (1, 32), (2, 0))] == [
        32,
        64,
        64,
    ]
    assert planners.dot_unit_edges(32 * waves, 1, multiprocessors=16) == 288
    assert planners.elementwise_unit_edges(32 * waves, 1, multiprocessors=16) == 512
    assert planners.dot_unit_edges(10**9, 1) == planners.elementwise_unit_edges(10**9, 1) == 1024
    assert planners.elementwise_unit_edges(10**9, 5000) == 32


def test_terms_and_copies_take_more_per_warp_from_many_warps_on(planners):
    many = 1 << 15
    assert [planners.term_chunks(32 * many * n) for n in (1, 2, 8, 16, 100)] == [1, 2, 8, 8, 8]
    assert [planners.copy_batches(n) for n in (0, 1, many, 3 * many, 8 * many, 100 * many)] == [1, 1, 1, 3, 8, 8]
