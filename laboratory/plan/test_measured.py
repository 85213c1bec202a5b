"""What the model expects of an H200, beside what was measured there."""

import pytest

from . import tables
from .measured import CELLS, GRAPHS, Cell, measured
from .planners import MB

TOLERANCE = 1.15
# Cells that the expected time misses by more, and what they took of it.
MISSED = {
    ("reddit-size", Cell("gat_attention", "forward", 1, 128)): 0.82,
    ("reddit-size", Cell("gat_attention", "forward", 8, 16)): 0.77,
    # Measured when an edge took 39.5, 59.0 and 29.8 instructions (1 x 128), in place of those of work.h.
    ("reddit-size", Cell("gatv2_attention", "forward", 1, 128)): 1.30,
    ("reddit-size", Cell("gatv2_attention", "backward", 1, 128)): 1.43,  # then 1.22: half of the stalls wait for rows
    ("reddit-size", Cell("gatv2_attention", "forward", 8, 16)): 1.23,
    ("reddit-size", Cell("gatv2_attention", "backward", 8, 16)): 1.19,
    ("products-size", Cell("gatv2_attention", "backward", 1, 128)): 1.22,
    # Then 1.19 and 1.25.
    ("reddit-size", Cell("dot_attention", "forward", 8, 16)): 1.23,
    ("reddit-size", Cell("dot_attention", "backward", 8, 16)): 1.27,
}


@pytest.fixture(scope="module")
def model(planners):
    return tables.Model(planners, planners.gpus()[tables.H200])


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.label)
@pytest.mark.parametrize("graph", GRAPHS)
def test_measured_times_are_near_the_expected_ones(model, graph, cell):
    kernels, time = model.kernels_of(graph, cell), measured()[graph, cell]
    ratio = time / sum(kernel.expected() for kernel in kernels)
    if (graph, cell) in MISSED:
        assert ratio == pytest.approx(MISSED[graph, cell], abs=0.02)
        assert not 1 / TOLERANCE < ratio < TOLERANCE
    else:
        assert 1 / TOLERANCE < ratio < TOLERANCE
    # No kernel is faster than its bound; the bound's rates are right within 2 %.
    assert time > 0.98 * sum(kernel.bound() for kernel in kernels)


def test_expected_times_are_between_the_bound_and_the_sum_of_parts(model):
    for graph in GRAPHS:
        for cell in CELLS:
            for times in model.kernels_of(graph, cell):
                assert times.bound() < times.expected() < times.cache + times.memory + 1.2 * times.issue
                assert times.expected(overlap=60, delay=1) == pytest.approx(times.bound(), rel=0.02)


def test_logits_and_records_of_nodes_are_read_from_memory_if_rows_do_not_fit(planners):
    """The longer a record, the fewer nodes share an access of memory, and the more often it misses."""
    device, nodes, edges = planners.device(50 * MB), 2_449_029, 123_718_280

    def memory_bytes(nodes, node_bytes):
        cached = tables.sectors(node_bytes)
        slices = tables.Slices(1, 256, False, float(cached), 0.0, 0.0, float(node_bytes))
        return planners.times(device, nodes, 256, edges, slices).memory * device.memory

    without = memory_bytes(nodes, 0)
    extra = [(memory_bytes(nodes, size) - without) / edges for size in (4, 16, 64, 128)]
    missed = planners.miss_rate(50 * MB, nodes * (256 + 128))
    assert extra == sorted(extra) and 0 < extra[0] < 0.3 * extra[3]
    assert extra[3] == pytest.approx(128 * missed + 256 * (missed - without / edges / 256), rel=0.01)
    # Of rows that fit, each record is read once.
    assert memory_bytes(100_000, 16) - memory_bytes(100_000, 0) == pytest.approx(100_000 * 16)
