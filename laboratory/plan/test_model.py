"""The model behind the planners: instructions, times, and what they say of the graphs of docs/tuning.md."""

import pytest
import torch

from benchmarks.graphs import RECIPES

from . import tables
from .planners import KERNELS, MB, SKEW, Slices

L2 = 50 * MB
ARXIV = (169_343, 1_166_243)


def sliced(count=1, row_bytes=256, one_by_one=True, cached=0.0, streamed=0.0, instructions=0.0):
    return Slices(count, row_bytes // count, one_by_one, cached, streamed, instructions)


# ---- instructions --------------------------------------------------------------------------------


def test_instructions_of_rows_and_batches(planners):
    """100 rows, two at a time, at 30 instructions, and 5 per batch."""
    count = planners.instructions
    assert count((30, 5), 100, 100, 1, rows_at_once=2) == 50 * (30 + 5)
    assert count((30, 5), 100, 900, 1) == 100 * (30 + 9 * 5)
    assert count((30, 5), 100, 900, 1, batch_accesses=8) == 100 * (30 + 9 * 2 * 5)
    # 9 edges in batches of 4: the last batch is half full on average, of 0 to 3 edges.
    assert count((30, 5), 100, 900, 4) == 100 * (30 + (9 / 4 + 3 / 8) * 5)
    # Every row has a batch.
    assert count((30, 5), 100, 100, 8) == count((30, 5), 100, 0, 8) == 100 * 35
    assert count((30, 5), 0, 0, 8) == 0
    # Across rows all batches are full.
    assert count((30, 5), 100, 900, 4, across_rows=True) == 100 * 30 + 900 / 4 * 5


def test_every_kernel_but_the_pure_gather_has_work(planners):
    assert [planners.work(kernel).batch > 0 for kernel in KERNELS] == [False] + [True] * (len(KERNELS) - 1)


# ---- the cache ---------------------------------------------------------------------------------------


def hits_of_lru(skew: float, held: float) -> float:
    """Of a cache of a share `held` of the rows, the share of reads that hit: the equations of Che, Tung and Wang (2002),
    "Hierarchical Web caching systems", for rows of a power law."""
    ranks = (torch.arange(100_000, dtype=torch.float64) + 0.5) / 100_000
    popularity = ranks**-skew / (ranks**-skew).mean()
    least, most = 1e-6, 1e6
    for _ in range(80):  # the time for which a row stays: as many rows as there is room for have been read in it
        time = (least * most) ** 0.5
        least, most = (time, most) if (1 - torch.exp(-time * popularity)).mean() < held else (least, time)
    return (popularity * (1 - torch.exp(-time * popularity))).mean().item()


@pytest.mark.parametrize("skew", [0.0, 0.24, 0.34, 0.44, 0.6])
def test_misses_are_those_of_an_lru_cache(planners, skew):
    for held in (0.05, 0.2, 0.33, 0.5, 0.7, 0.9):
        missed = planners.miss_rate(int(held * (1 << 30)), 1 << 30, share=1.0, skew=skew)
        assert missed == pytest.approx(1 - hits_of_lru(skew, held), abs=0.025)


def test_the_skew_of_planners_is_between_those_of_known_graphs():
    assert min(tables.SKEWS.values()) < SKEW < max(tables.SKEWS.values())
    for name, skew in tables.SKEWS.items():
        assert RECIPES[name].src_skew == skew
        assert (RECIPES[name].num_nodes, RECIPES[name].num_edges) == tables.GRAPHS[name]


# ---- times ---------------------------------------------------------------------------------------


def test_times_are_work_over_rates(planners):
    device = planners.device(L2)
    edges, nodes = 1000, 100
    slices = sliced(2, cached=32.0, streamed=4000.0, instructions=1e6)
    times = planners.times(device, nodes, 256, edges, slices, once=500.0)
    assert times.cache == edges * 2 * (128 + 32) / device.cache
    assert times.memory == (nodes * 256 + 2 * 4000 + 500) / device.memory  # each row is read once
    assert times.issue == 2e6 / device.issue
    assert times.bound() == max(times.cache, times.memory, times.issue)
    # Ids of slices that are worked on at the same time are read once.
    together = sliced(2, one_by_one=False, streamed=4000.0)
    assert planners.times(device, nodes, 256, edges, together).memory == (nodes * 256 + 4000) / device.memory


def test_bytes_of_memory_are_misses_but_first_reads_at_least(planners):
    device = planners.device(L2)

    def memory_bytes(nodes, edges, slices, **how):
        return planners.times(device, nodes, 256, edges, slices, **how).memory * device.memory

    usable = 0.75 * L2
    four_caches = int(4 * usable / 256)
    missed = planners.miss_rate(L2, 4 * usable)
    assert memory_bytes(four_caches, 100 * four_caches, sliced()) == pytest.approx(
        100 * missed * four_caches * 256, rel=1e-4
    )
    # Of four slices, each fits.
    assert memory_bytes(four_caches, 100 * four_caches, sliced(4)) == pytest.approx(four_caches * 256)
    assert memory_bytes(four_caches, 100 * four_caches, sliced(4, one_by_one=False)) > 65 * four_caches * 256
    # More rows than edges: not all are read.
    assert memory_bytes(1000, 10, sliced()) == pytest.approx(10 * 256)
    assert memory_bytes(1000, 3000, sliced(), read_once=True) == pytest.approx(3000 * 256)


def test_rows_of_few_edges_take_as_many_instructions_as_the_cache_takes_time(planners):
    """u_mul_e_sum of 128 halves on arxiv-size."""
    plan, slices = planners.lanes_and_slices(L2, *ARXIV, 256)
    times = planners.times(L2, ARXIV[0], 256, ARXIV[1], slices, once=ARXIV[0] * 256)
    assert plan.slices == 1 and times.cache == times.bound() <= 0.04e-3
    assert times.issue == pytest.approx(0.9 * times.cache, rel=0.05)


def test_slices_are_made_as_long_as_they_save_more_than_they_cost(planners):
    """256 halves on arxiv-size: two slices read less of memory, and teams of half as many lanes take the instructions of
    one slice. Four slices read ids and weights again for nothing."""
    total = {}
    for count in (1, 2, 4):
        _, slices = planners.lanes_and_slices(1 << 40, *ARXIV, 512 // count)
        assert slices.count == 1
        slices.count = count
        total[count] = planners.times(L2, ARXIV[0], 512, ARXIV[1], slices, once=ARXIV[0] * 512).total()
    assert total[2] < 0.9 * total[1] and total[2] < total[4]
    assert planners.lanes(L2, *ARXIV, 512).slices == 2


def test_faster_memory_makes_fewer_slices_and_instructions_that_cost_too(planners):
    nodes, edges = 232_965, 114_615_892

    def slices(**rates):
        device = planners.device(L2)
        for name, value in rates.items():
            setattr(device, name, value)
        return planners.lanes(device, nodes, edges, 512).slices

    assert slices(memory=1e12) == slices() == 4 and slices(memory=3e13) == 1
    assert slices(issue=1e10) == 1
    assert slices(cache=1e11) == 1
