"""Row schedules on the simulator: warps follow them, and take fewer turns."""

from __future__ import annotations

import pytest
import torch

from halfgnn.row_schedule import row_schedule
from laboratory.simt import control
from laboratory.simt.graphs import CUT, FEW_EDGES, graph_of
from tests.support import randn

if not control.SIMULATED:
    pytest.skip("runs on the simulator: laboratory/simt/run.py", allow_module_level=True)

raw = torch.ops.halfgnn


def counted(g, x, schedule, name="switches"):
    """A sum over in-edges, and how far it moved a counter of the simulator."""
    before = control.get(name)
    out, _ = raw.gspmm(*g.csc(), "copy_lhs", "sum", x, None, None, False, False, schedule)
    return out, control.get(name) - before


def test_rows_of_like_lengths_walk_together():
    """Teams of half a warp, for rows of 1 and of 15 edges by turns, and rows of 0 among long ones."""
    for degrees, most in (([1, 15] * 700, 0.9), ([0, *[2, 600] * 9] * 4, 1)):
        g = graph_of(degrees, 50, torch.int32, True)
        x = randn(50, 128, dtype=torch.float16)
        (plain, turns), (scheduled, fewer) = (
            counted(g, x, schedule) for schedule in (None, row_schedule(g.csc().indptr, g.num_edges))
        )
        assert torch.equal(plain, scheduled) and fewer < most * turns


@pytest.mark.parametrize("name", FEW_EDGES)
def test_any_order_has_the_same_bits(name):
    """Rows and pieces in an order that no schedule has."""
    g = graph_of(FEW_EDGES[name] + CUT, 37, torch.int64)
    schedule = row_schedule(g.csc().indptr, g.num_edges)
    slots = (len(schedule) - g.num_dst) // 2
    pieces, rows = schedule[: 2 * slots].view(2, -1), schedule[2 * slots :]
    generator = torch.Generator().manual_seed(1)
    count = int((rows >= 0).sum())
    mixed = torch.cat([pieces.flatten(), rows[:count][torch.randperm(count, generator=generator)], rows[count:]])
    x = randn(37, 20, dtype=torch.float16)
    for order in (schedule, mixed):
        assert torch.equal(counted(g, x, order)[0], counted(g, x, None)[0])


# Rows that are joined at once, on two levels and on three, several of which begin in one slot.
MANY_PIECES = {
    "hubs": [5, 64 * 128, 3, 65 * 128 + 1, 200 * 128 + 77, 1, 129 * 128, *[130, 127, 256, 2] * 8, 700 * 128],
    "a hub of three levels": [3, 4097 * 128 + 5, 300],
}


def joined(name, dim, reduce, has_schedule, seed=1):
    """A reduction of integers, its winners' places in their rows, and the rows."""
    g = graph_of(MANY_PIECES[name], 37, torch.int32, True)
    schedule = row_schedule(g.csc().indptr, g.num_edges) if has_schedule else None
    x = torch.randint(-9, 9, (37, dim), generator=torch.Generator().manual_seed(2)).float()
    with control.setting(seed=seed):
        out, edges = raw.gspmm(*g.csc(), "copy_lhs", reduce, x, None, None, False, True, schedule)
    places = edges - g.csc().indptr[:-1, None] if reduce == "max" else None
    return out, places, x[g.csc().indices.long()].split(MANY_PIECES[name])


@pytest.mark.parametrize(
    "name,dim,has_schedule",
    [("hubs", 1, False), ("hubs", 1, True), ("hubs", 6, True), ("a hub of three levels", 1, True)],
)
def test_sums_are_joined_exactly(name, dim, has_schedule):
    out, _, rows = joined(name, dim, "sum", has_schedule, seed=dim)
    assert torch.equal(out, torch.stack([row.sum(0) for row in rows]))


@pytest.mark.parametrize("has_schedule", [False, True])
def test_maxima_are_joined_exactly(has_schedule):
    out, places, rows = joined("hubs", 1, "max", has_schedule)
    assert torch.equal(out, torch.stack([row.amax(0) for row in rows]))
    assert torch.equal(places, torch.stack([row.argmax(0) for row in rows]).int())


@pytest.mark.parametrize("reduce", ["sum", "mean", "max"])
def test_one_launch(reduce):
    """The last piece of a row to arrive joins all of them, so counters are cleared and no other kernel is launched."""
    g = graph_of(CUT, 37, torch.int32, True)
    x = randn(37, 8, dtype=torch.float16)
    for short_rows in (False, True):
        for schedule in (None, row_schedule(g.csc().indptr, g.num_edges, short_rows)):
            before = control.get("launches"), control.get("memsets")
            raw.gspmm(*g.csc(), "copy_lhs", reduce, x, None, None, short_rows, False, schedule)
            assert control.get("launches") - before[0] == 1
            assert control.get("memsets") - before[1] == (0 if short_rows else 1)


def test_length_is_checked():
    g = graph_of(CUT, 37, torch.int32)
    schedule = row_schedule(g.csc().indptr, g.num_edges)
    with pytest.raises(ValueError, match=rf"schedule has {len(schedule) - 1} entries; expected {len(schedule)}"):
        counted(g, randn(37, 8, dtype=torch.float16), schedule[1:])
