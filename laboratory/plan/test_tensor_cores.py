"""When dot attention with terms of edges takes tensor cores: shapes that they serve, and where they execute fewer instructions.
When GATv2's backward keeps records of edges."""

import functools

import pytest

NEVER, WHERE_POSSIBLE, WHERE_CHEAPER = range(3)


@pytest.mark.parametrize("direction", range(2))
def test_tensor_cores_serve_whole_chunks_of_halves(planners, direction):
    for wanted in (WHERE_POSSIBLE, WHERE_CHEAPER):
        ask = functools.partial(planners.tensor_cores, wanted=wanted, direction=direction)
        assert ask(1, 128, 50) and ask(1, 128, 50, major=8) and ask(1, 64, 500) and ask(1, 72, 500)
        assert not ask(1, 128, 50, major=7)
        assert not ask(1, 128, 50, size=4)
        assert not ask(1, 128, 50, aligned=False)
        assert not ask(1, 136, 50) and not ask(1, 256, 50) and not ask(1, 100, 50)
    assert not planners.tensor_cores(1, 128, 50, wanted=NEVER, direction=direction)


# Where edges add a bias, or 16 columns: forward, to destinations.
COUNTED_WITH_TERMS = {
    ("bias", 64): {7: [(611, 452), (665, 606)], 50: [(1809, 961), (2454, 1331)]},
    ("bias", 128): {1: [(490, 497), (559, 645)], 7: [(777, 504), (948, 652)], 50: [(2924, 1143), (4225, 1584)]},
    ("columns", 64): {7: [(739, 641), (899, 875)], 50: [(2208, 1259), (2848, 1720)]},
    ("columns", 128): {1: [(601, 685), (749, 914)],
                       7: [(937, 692), (1206, 922)],
                       50: [(3600, 1440), (4804, 1978)]},
}  # fmt: skip


@pytest.mark.parametrize("terms,dim", COUNTED_WITH_TERMS)
def test_the_choice_with_terms_of_edges(planners, terms, dim):
    for degree, counts in COUNTED_WITH_TERMS[terms, dim].items():
        for direction, (others, on_tensor_cores) in enumerate(counts):
            chosen, left = others, on_tensor_cores
            if planners.tensor_cores(1, dim, degree, direction=direction, terms=terms):
                chosen, left = left, chosen
            assert chosen < 1.1 * left, (direction, degree)


@pytest.mark.parametrize("direction", range(3))
def test_which_terms_of_edges_tensor_cores_take(planners, direction):
    """A bias and few columns, but no records; rows of edges and more columns stay on lanes, whatever is wanted."""
    for wanted in (WHERE_POSSIBLE, WHERE_CHEAPER):
        ask = functools.partial(planners.tensor_cores, wanted=wanted, direction=direction)
        for terms in ("bias", "columns"):
            assert ask(1, 64, 50, terms=terms) == ask(1, 128, 50, terms=terms) == (direction < 2)
            assert not ask(1, 128, 50, terms=terms, major=7) and not ask(1, 128, 50, terms=terms, size=4)
            assert ask(8, 16, 50, terms=terms) == (wanted == WHERE_POSSIBLE and direction < 2)
        assert not ask(1, 128, 50, terms="other")


def test_records_of_edges_where_they_are_cheaper(planners):
    """Of rows that lie in the L2 cache the instructions decide: records save them in rows of many edges. Of rows that do not,
    records save the gather of a second row."""
    for size in (2, 4):
        assert all(planners.takes_edge_records(1, 128, degree, size=size, nodes=1000) for degree in (50, 1000))
    assert all(planners.takes_edge_records(1, 128, degree) for degree in (7, 50, 500))
    assert planners.takes_edge_records(1, 512, 50)
