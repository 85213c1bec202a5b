"""A few hundred cases of laboratory/fuzz on the current library, and the program that runs thousands of them."""

import os
import signal
import sys
import time

import pytest
import torch

from laboratory.fuzz import __main__ as main
from laboratory.fuzz import kinds, workers
from tests import support

pytestmark = pytest.mark.skipif(
    support.SIMULATED or "cpu" not in support.DEVICES, reason="programs are for the CPU's own kernels"
)


@pytest.fixture
def same_threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("kind", kinds.WEIGHTS)
def test_cases(kind, same_threads):
    for case in range(3 * kinds.WEIGHTS[kind][0]):
        _, program = kinds.draw(20, case, (kind,))
        try:
            kinds.run(program)
        except Exception as error:
            pytest.fail(f"case {case} of seed 20, {kind}:\n{program}\n{type(error).__name__}: {error}")


def test_a_case_is_that_of_its_seed_and_number():
    cases = [kinds.draw(1, case) for case in range(500)]
    assert cases == [kinds.draw(1, case) for case in range(500)]
    assert {kind for kind, _ in cases} == set(kinds.WEIGHTS)
    assert cases != [kinds.draw(2, case) for case in range(300)]


def _misbehave(case):
    if case == 1:
        raise KeyError("of case 1")
    if case == 2:
        os.write(2, b"last words")
        os.kill(os.getpid(), signal.SIGKILL)
    if case == 3:
        time.sleep(600)
    if case == 4:
        sys.exit("of case 4")


def test_workers_outlive_their_cases():
    results = {r.case: r for r in workers.run_all(_misbehave, range(8), jobs=2, timeout=5)}
    assert sorted(results) == list(range(8))
    assert [case for case, result in results.items() if result.error is None] == [0, 5, 6, 7]
    assert "KeyError" in results[1].error and not results[1].has_died
    assert "status -9" in results[2].error and "last words" in results[2].error and results[2].has_died
    assert "not done after 5 s" in results[3].error and results[3].has_died
    assert "of case 4" in results[4].error


def test_a_failing_case_is_printed_as_a_program(monkeypatch, capsys, same_threads):
    def draw_wrong(d):
        d.graph()
        d.line("assert_identical(g.in_degrees().numel(), g.num_dst + 1)")

    monkeypatch.setitem(kinds.WEIGHTS, "graph", (1, draw_wrong))
    main._report(1, workers.Result(7, "Traceback\nAssertionError: what the case said", 0.1), ("graph",))
    printed = capsys.readouterr().out
    assert "case 7 of seed 1, graph" in printed and "# AssertionError: what the case said" in printed
    program = printed[printed.index("import sys") :]
    with pytest.raises(AssertionError, match="not equal"):
        kinds.run(program)


@pytest.mark.parametrize("option", ["--jobs", "--cases"])
def test_no_run_is_of_nothing(option, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["fuzz", option, "0"])
    with pytest.raises(SystemExit, match="2"):
        main.main()
    assert f"{option}: 0; expected a positive number" in capsys.readouterr().err
