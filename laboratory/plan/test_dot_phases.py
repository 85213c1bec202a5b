"""Whether dot attention gathers two matrices together."""

import csv
import ctypes

import pytest

from . import tables
from .measured import GPU, RESULTS
from .planners import MB, Times

REDDIT, PRODUCTS = tables.GRAPHS["reddit-size"], tables.GRAPHS["products-size"]


def separate_operators(direction):
    """On an H200: seconds of the fused kernel and of separate operators, by graph, heads and width."""
    found = {}
    with open(RESULTS, newline="") as file:
        for row in csv.DictReader(file):
            is_wanted = (row["gpu"], row["op"], row["direction"], row["dtype"]) == (
                GPU,
                "dot_attention",
                direction,
                "fp16",
            )
            if is_wanted and row["backend"].startswith("halfgnn") and row["ms"] and row["order"] == "sorted":
                key = row["graph"].split(" ")[0], int(row["heads"]), int(row["dim"])
                found.setdefault(key, {})[row["backend"]] = float(row["ms"]) / 1e3
    return {
        key: times
        for key, times in found.items()
        if "halfgnn unfused" in times and key[0] in ("reddit-size", "products-size")
    }


@pytest.fixture(scope="module")
def h200(planners):
    return planners.gpus()[tables.H200]


def test_two_phases_where_separate_operators_were_measured_to_be_faster(planners, h200):
    measured = separate_operators("forward")
    assert len(measured) == 4
    for (graph, heads, dim), times in measured.items():
        gain = times["halfgnn unfused"] / times["halfgnn"]
        two, (together, dots, values) = planners.dot_phases(h200, *tables.GRAPHS[graph], heads, dim)
        assert two == (gain < 0.9), (graph, heads, dim, gain)
        # The separate operators also wrote and read the weights of edges, in a pass of their own.
        assert (dots.expected() + values.expected()) / together.expected() == pytest.approx(gain, rel=0.2)


def test_the_backward_as_measured(planners, h200):
    """Together, within a fifth but for eight heads on reddit-size. The separate operators kept the weights of edges, and so made no
    dots of queries and keys; their sums to sources did not put weights in order, and their dots took more instructions."""
    for (graph, heads, dim), times in separate_operators("backward").items():
        _, expected = planners.dot_phases(h200, *tables.GRAPHS[graph], heads, dim, backward=True)
        to_destinations, to_sources, dots, softmaxes, to_rows, to_columns = (each.expected() for each in expected)
        together = to_destinations + to_sources
        assert together == pytest.approx(times["halfgnn"], rel=0.25 if heads > 1 else 0.15), (graph, heads)
        separate = dots + softmaxes + to_rows + 2 * to_columns
        assert separate == pytest.approx(times["halfgnn unfused"], rel=0.25), (graph, heads)


@pytest.mark.parametrize("nodes, edges, heads, dim, phases", [
    (*REDDIT, 1, 256, True), (*REDDIT, 1, 128, False), (*REDDIT, 8, 16, False), (*PRODUCTS, 1, 128, False),
    (170_000, 1_200_000, 1, 128, True), (2_000, 10_000, 1, 128, False),
])  # fmt: skip
def test_the_backward_of_an_h200(planners, h200, nodes, edges, heads, dim, phases):
    assert planners.dot_phases(h200, nodes, edges, heads, dim, backward=True)[0] == phases


def test_rows_of_few_edges(planners, h200):
    """A row takes a warp in the fused kernel, and a group of lanes in GAT's. Tiny graphs take one launch."""
    assert planners.dot_phases(h200, 170_000, 1_200_000, 1, 128)[0]
    assert not planners.dot_phases(h200, 2_000, 10_000, 1, 128)[0]


@pytest.mark.parametrize("nodes, edges, heads, dim, two", [
    (*REDDIT, 1, 256, True), (*REDDIT, 1, 64, False), (*REDDIT, 8, 16, False), (*PRODUCTS, 1, 128, False),
])  # fmt: skip
def test_one_matrix_that_fits_where_two_do_not(planners, h200, nodes, edges, heads, dim, two):
    assert planners.dot_phases(h200, nodes, edges, heads, dim)[0] == two


def test_logits_take_no_more_than_their_share_of_memory(planners, h200):
    smaller = type(h200)(**{name: getattr(h200, name) for name, _ in h200._fields_})
    smaller.memory_bytes = REDDIT[1] * 4 * 16
    assert planners.dot_phases(smaller, *REDDIT, 1, 128)[0]
    smaller.memory_bytes -= 16
    assert not planners.dot_phases(smaller, *REDDIT, 1, 128)[0]
    assert not planners.dot_phases(50 * MB, *REDDIT, 1, 128)[0]  # of unknown memory
    # The backward has three arrays.
    smaller.memory_bytes = 3 * REDDIT[1] * 4 * 16
    assert planners.dot_phases(smaller, *REDDIT, 1, 256, backward=True)[0]
    smaller.memory_bytes -= 16
    assert not planners.dot_phases(smaller, *REDDIT, 1, 256, backward=True)[0]


def test_the_planner_expects_what_the_tables_do(planners, h200):
    expected = planners.library.expected
    expected.restype = ctypes.c_double
    forward, backward = (planners.dot_phases(h200, *REDDIT, 1, 128, backward=which)[1] for which in (False, True))
    for times in (*forward, *backward):
        assert isinstance(times, Times)
        assert expected(ctypes.byref(times)) == pytest.approx(times.expected(), rel=1e-12)
