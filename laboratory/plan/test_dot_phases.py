"""Whether the forward of dot attention gathers keys and values together."""

import csv
import ctypes

import pytest

from . import tables
from .measured import GPU, RESULTS
from .planners import MB, Times

REDDIT, PRODUCTS = tables.GRAPHS["reddit-size"], tables.GRAPHS["products-size"]


def separate_operators():
    """Of the forward on an H200: seconds of the fused kernel and of separate operators, by graph, heads and width."""
    found = {}
    with open(RESULTS, newline="") as file:
        for row in csv.DictReader(file):
            is_forward = (row["gpu"], row["op"], row["direction"], row["dtype"]) == (
                GPU,
                "dot_attention",
                "forward",
                "fp16",
            )
            if is_forward and row["backend"].startswith("halfgnn") and row["ms"] and row["order"] == "sorted":
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
    measured = separate_operators()
    assert len(measured) == 4
    for (graph, heads, dim), times in measured.items():
        gain = times["halfgnn unfused"] / times["halfgnn"]
        two, (together, dots, values) = planners.dot_phases(h200, *tables.GRAPHS[graph], heads, dim)
        assert two == (gain < 0.9), (graph, heads, dim, gain)
        # The separate operators also wrote and read the weights of edges, in a pass of their own.
        assert (dots.expected() + values.expected()) / together.expected() == pytest.approx(gain, rel=0.2)


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


def test_the_planner_expects_what_the_tables_do(planners, h200):
    expected = planners.library.expected
    expected.restype = ctypes.c_double
    for times in planners.dot_phases(h200, *REDDIT, 1, 128)[1]:
        assert isinstance(times, Times)
        assert expected(ctypes.byref(times)) == pytest.approx(times.expected(), rel=1e-12)
