"""When dot attention takes tensor cores: shapes that they serve, and where they execute fewer instructions."""

import functools
import itertools

import pytest

NEVER, WHERE_POSSIBLE, WHERE_CHEAPER = range(3)


@pytest.mark.parametrize("direction", range(3))
def test_tensor_cores_serve_whole_chunks_of_halves(planners, direction):
    for wanted in (WHERE_POSSIBLE, WHERE_CHEAPER):
        ask = functools.partial(planners.tensor_cores, wanted=wanted, direction=direction)
        assert ask(1, 128, 50) and ask(1, 128, 50, major=8) and ask(1, 64, 500) and ask(1, 72, 500)
        assert not ask(1, 128, 50, major=7)
        assert not ask(1, 128, 50, size=4)
        assert not ask(1, 128, 50, aligned=False)
        assert ask(1, 136, 50) and ask(1, 256, 50)
        assert not ask(1, 264, 50) and not ask(1, 100, 50)
    assert not planners.tensor_cores(1, 128, 50, wanted=NEVER, direction=direction)


@pytest.mark.parametrize("direction", range(3))
def test_tensor_cores_where_they_are_cheaper(planners, direction):
    """A warp takes one head: narrow ones share the other kernels' warps."""
    for heads, dim in itertools.product((1, 2, 3, 8, 40), (8, 16, 24, 64, 128, 256)):
        assert planners.tensor_cores(heads, dim, 0, wanted=WHERE_POSSIBLE, direction=direction)
        cheaper = [planners.tensor_cores(heads, dim, degree, direction=direction) for degree in (1, 7, 50, 1000)]
        if heads == 1 or dim >= 128:
            assert cheaper[2:] == [True, True] or dim < 64
        if heads > 2 and dim == 8:
            assert not any(cheaper)
