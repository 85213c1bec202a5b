"""Some programs of laboratory/programs, with every call routed."""

from __future__ import annotations

import pytest

from tests import support

pytest.importorskip("torch_geometric")

from laboratory.programs import compare, run
from laboratory.programs.draw import Draw, Program

SEED = 21


@pytest.fixture
def routes_small_calls(monkeypatch):
    support.route_small_calls(monkeypatch)


@pytest.mark.parametrize("part", range(4))
def test_programs(part, routes_small_calls):
    for case in range(40 * part, 40 * (part + 1)):
        program = Draw(SEED, case).draw()
        assert compare.fault(program, case) is None, f"case {case} of seed {SEED}\n{program}"


def test_a_program_is_that_of_its_seed_and_number():
    assert str(Draw(1, 7).draw()) == str(Draw(1, 7).draw())
    assert len({str(Draw(1, case).draw()) for case in range(50)}) == 50


@pytest.mark.parametrize(
    "change,found",
    [
        (lambda out: out * 1.001, "result"),
        (lambda out: out.t().contiguous().t(), "strides"),
        (lambda out: out.detach(), "requires_grad"),
        (lambda out: out + (out - out.detach()), "gradient 0"),
        (lambda out: out.float(), "float32"),
        (lambda out: out.view(-1, 7), "RuntimeError"),
    ],
)
def test_a_difference_is_found(monkeypatch, change, found):
    """A drop-in that computes something else."""
    program, calls, out = Program((6, 6), 8, 4, "sum", "propagate"), [], run.out_of

    def second_is_wrong(*args):
        calls.append(args)
        return out(*args) if len(calls) == 1 else change(out(*args))

    monkeypatch.setattr(run, "out_of", second_is_wrong)
    assert found in (compare.fault(program, 1) or "")
