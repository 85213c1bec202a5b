"""When dot attention and GATv2 take tensor cores: shapes that they serve, and where they execute fewer instructions."""

import functools
import itertools

import pytest

NEVER, WHERE_POSSIBLE, WHERE_CHEAPER = range(3)
either_attention = pytest.mark.parametrize("gatv2", [False, True], ids=["dot", "gatv2"])


@either_attention
@pytest.mark.parametrize("direction", range(3))
def test_tensor_cores_serve_whole_chunks_of_halves(planners, direction, gatv2):
    for wanted in (WHERE_POSSIBLE, WHERE_CHEAPER):
        ask = functools.partial(planners.tensor_cores, wanted=wanted, direction=direction, gatv2=gatv2)
        assert ask(1, 128, 50) and ask(1, 128, 50, major=8) and ask(1, 64, 500) and ask(1, 72, 500)
        assert not ask(1, 128, 50, major=7)
        assert not ask(1, 128, 50, size=4)
        assert not ask(1, 128, 50, aligned=False)
        assert not ask(1, 136, 50) and not ask(1, 256, 50) and not ask(1, 100, 50)
    assert not planners.tensor_cores(1, 128, 50, wanted=NEVER, direction=direction, gatv2=gatv2)


@either_attention
@pytest.mark.parametrize("direction", range(3))
def test_tensor_cores_where_they_are_cheaper(planners, direction, gatv2):
    """A warp takes one head: narrow ones share the other kernels' warps."""
    for heads, dim in itertools.product((1, 2, 3, 8, 40), (8, 16, 24, 64, 128)):
        ask = functools.partial(planners.tensor_cores, heads, dim, direction=direction, gatv2=gatv2)
        assert ask(0, wanted=WHERE_POSSIBLE)
        cheaper = [ask(degree) for degree in (1, 7, 50, 1000)]
        if heads == 1 or dim >= 128:
            assert cheaper[2:] == [True, True] or dim < 64
        if heads > 2 and dim == 8:
            assert not any(cheaper)


# Instructions per row, as laboratory/machine_code/paths.py counts them of the kernels that take all shapes and of those on tensor
# cores (HALFGNN_TENSOR_CORES=0 and =1). For each degree: forward, to destinations (some not counted), to sources.
COUNTED = {
    (1, 32): {7: [(543, 528), None, (557, 751)], 50: [(1204, 1250), None, (1477, 1957)]},
    (1, 64): {1: [(526, 434), (583, 549), (529, 581)],
              7: [(585, 430), (658, 543), (631, 575)],
              50: [(1638, 898), (1992, 1103), (2211, 1304)]},
    (1, 128): {1: [(499, 474), (573, 601), (491, 675)],
               7: [(727, 470), (859, 594), (852, 667)],
               50: [(2550, 1075), (3291, 1374), (3757, 1773)]},
    (4, 32): {7: [(711, 2112), (816, 2597), (821, 3005)],
              50: [(2446, 4990), (3863, 6044), (4314, 7828)]},
    (8, 16): {7: [(703, 4225), (792, 5194), (805, 6010)],
              50: [(2394, 9979), (3736, 12106), (4202, 15670)]},
}  # fmt: skip


# Of GATv2, without records of edges.
COUNTED_OF_GATV2 = {1: [(526, 528), (712, 787), (603, 853)], 7: [(738, 547), (967, 819), (1056, 887)]}


@pytest.mark.parametrize("degree", COUNTED_OF_GATV2)
def test_the_choice_of_gatv2(planners, degree):
    """Of 1 x 128."""
    for direction, (others, on_tensor_cores) in enumerate(COUNTED_OF_GATV2[degree]):
        chosen, left = (others, on_tensor_cores)
        if planners.tensor_cores(1, 128, degree, direction=direction, gatv2=True):
            chosen, left = left, chosen
        assert chosen < 1.07 * left, direction


@pytest.mark.parametrize("heads,dim", COUNTED)
def test_the_choice_is_the_one_that_executes_less(planners, heads, dim):
    for degree, counts in COUNTED[heads, dim].items():
        for direction, pair in enumerate(counts):
            if pair is None:
                continue
            chosen, left = pair
            if planners.tensor_cores(heads, dim, degree, direction=direction):
                chosen, left = left, chosen
            assert chosen < 1.1 * left, (direction, degree)


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


@pytest.mark.parametrize("major", [7, 9])
def test_records_of_edges_where_they_are_cheaper(planners, major):
    """Of rows of many edges, without tensor cores."""
    ask = functools.partial(planners.takes_edge_records, major=major)
    for size, wanted in ((4, WHERE_CHEAPER), (4, WHERE_POSSIBLE), (2, NEVER)):
        assert [ask(1, 128, degree, size=size, wanted=wanted) for degree in (1, 50, 1000)] == [False, True, True]
    assert not ask(1, 128, 7, wanted=NEVER)
    for wanted in (WHERE_CHEAPER, WHERE_POSSIBLE):
        assert ask(1, 128, 50, wanted=wanted) == (major < 8)
        assert ask(1, 512, 50, wanted=wanted)
        assert not ask(1, 128, 1, wanted=wanted)


@pytest.mark.parametrize("direction", range(3))
def test_rows_of_500_edges(planners, direction):
    for heads, dim in COUNTED:
        taken = planners.tensor_cores(heads, dim, 500, direction=direction)
        assert taken == (heads == 1 and dim >= 64) or dim == 32
