"""The CPU kernels run as many instructions as in laboratory/instructions/committed.csv, so that no case becomes slower
unseen."""

import os
import re

import pytest

from laboratory.instructions import counts
from tests import checked

pytestmark = pytest.mark.skipif(
    not checked.must_check("instructions"), reason="unchanged since make test-all checked them"
)

CI = os.environ.get("CI", "").lower() not in ("", "0", "false")
UPDATE = "if this is meant: python -m laboratory.instructions --update"

# A case on its vector kernel, and a slower case that computes the same.
FAST, SLOW = "u_mul_e_sum {}", "u_mul_e_sum by the general kernel {}"
SHAPES = ("bf16 1 head", "bf16 4 heads", "fp32 4 heads")


@pytest.fixture(scope="module")
def driver():
    reason = counts.why_not()
    if reason and not CI:
        pytest.skip(reason)
    assert reason is None, reason
    return counts.build()


def test_instructions_are_those_committed(driver):
    expected = counts.committed()
    lines = counts.differences(counts.run(driver), driver.compiler, expected)
    title = f"{len(lines)} counts, instructions per edge, differ from those of {expected.compiler} ({UPDATE}):"
    assert not lines, f"{title}\n{counts.table(lines)}"


def test_kernels_define_nothing_but_their_own_functions(driver):
    """A function of the C++ library that the AVX2 kernels define as well could replace the one that everybody calls."""
    for instruction_set, (namespace, *_) in counts.build_sources.INSTRUCTION_SETS.items():
        for source in counts.build_sources.cpu_kernels():
            if not source.stem.endswith(f"_{instruction_set}"):
                continue
            listing = counts.symbols(counts.kernel(source))
            assert f"halfgnn::{namespace}::" in listing
            # Code (t, w), not data such as a reference to the C++ library's handler of exceptions.
            code = re.findall(r"^\w+ [tTwW] (.*)$", listing, re.MULTILINE)
            assert [name for name in code if f"halfgnn::{namespace}::" not in name] == []


# ---- controls: what the comparison must find -----------------------------------------------------


def as_committed(found):
    """The committed counts of the cases found."""
    everything = counts.committed()
    return counts.Committed(everything.compiler, {key: everything.counts[key] for key in found})


@pytest.mark.parametrize("percent", [-10, 10])
def test_a_tenth_more_or_less_work_is_found(driver, percent):
    cases = (*(FAST.format(shape) for shape in SHAPES), "u_dot_v bf16 4 heads", "edge_softmax bf16 4 heads")
    found = counts.run(driver, cases, counts.EDGES * (100 + percent) // 100)
    expected = as_committed(found)
    lines = counts.differences(found, expected.compiler, expected)
    assert {line.case for line in lines} == set(cases) and len(lines) == len(found), counts.table(lines)
    assert all((line.ratio > 1) == (percent > 0) for line in lines), counts.table(lines)


@pytest.mark.parametrize("compiler", ["of the counts", "another 1.0"])
def test_a_slower_path_is_found_whatever_the_compiler(driver, compiler):
    slow = counts.run(driver, tuple(SLOW.format(shape) for shape in SHAPES))
    renamed = {(FAST.format(case.split("kernel ")[1]), table): count for (case, table), count in slow.items()}
    expected = as_committed(renamed)
    lines = counts.differences(renamed, expected.compiler if compiler == "of the counts" else compiler, expected)
    assert len(lines) == len(renamed) >= len(SHAPES), counts.table(lines)
    told = counts.table(lines).splitlines()
    assert told[0].split() == ["case", "table", "committed", "found", "ratio"]
    assert all(line.case in text and f"{line.ratio:.3f}" in text for line, text in zip(lines, told[1:]))


def test_another_compiler_may_do_better():
    expected = counts.committed()
    half = {key: count / 2 for key, count in expected.counts.items()}
    assert counts.differences(half, "another 1.0", expected) == []
    assert len(counts.differences(half, expected.compiler, expected)) == len(half)


def test_a_case_that_is_not_committed_or_not_run_is_found():
    expected = counts.committed()
    (case, table), *_ = expected.counts
    found = {key: count for key, count in expected.counts.items() if key != (case, table)}
    found["another case", table] = 1.0
    lines = counts.differences(found, expected.compiler, expected)
    assert {(line.case, line.committed is None) for line in lines} == {("another case", True), (case, False)}
