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
    """Teams of half a warp, for rows of 1 and of 16 edges by turns, and rows of 0 among long ones."""
    for degrees in ([1, 16] * 2000, [0, *[2, 600] * 9] * 4):
        g = graph_of(degrees, 50, torch.int32, True)
        x = randn(50, 128, dtype=torch.float16)
        (plain, turns), (scheduled, fewer) = (
            counted(g, x, schedule) for schedule in (None, row_schedule(g.csc().indptr, g.num_edges))
        )
        assert torch.equal(plain, scheduled) and fewer < 0.97 * turns


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


def test_length_is_checked():
    g = graph_of(CUT, 37, torch.int32)
    schedule = row_schedule(g.csc().indptr, g.num_edges)
    with pytest.raises(ValueError, match=rf"schedule has {len(schedule) - 1} entries; expected {len(schedule)}"):
        counted(g, randn(37, 8, dtype=torch.float16), schedule[1:])
