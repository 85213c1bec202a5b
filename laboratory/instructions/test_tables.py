"""Every instruction set's kernels compute the same, at many shapes, types and ids: compare.cpp runs them beside the
baseline's. The code of AVX-512 also runs where the processor lacks it, as the test build `wide`, and Arm's in an emulator,
if there is one."""

import shutil
import subprocess

import pytest

from laboratory.instructions import counts
from tests import checked

pytestmark = pytest.mark.skipif(
    not checked.must_check("instructions"), reason="unchanged since make test-all checked them"
)

SETS = counts.build_sources.INSTRUCTION_SETS | counts.build_sources.TEST_INSTRUCTION_SETS
TABLES = sorted({namespace for namespace, *_ in SETS.values()})
LEAST_CALLS = 2000
LEAST_SPOILED_CALLS = 500  # at some of the shapes
ARM_COMPILER = "aarch64-linux-gnu-g++"
ARM_EMULATOR = shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64")


def run(*command):
    """Calls of each table and how many differ, and the names of those."""
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    rows = (line.split("\t") for line in done.stdout.splitlines())
    return {table: (int(calls), int(different)) for table, calls, different in rows}, done.stderr


def check(table, tables, told):
    calls, different = tables[table]
    # Of the baseline only conversions are compared: with their definition.
    assert calls >= (4 if table == "baseline" else LEAST_CALLS)
    assert different == 0, told


@pytest.fixture(scope="module")
def driver():
    reason = counts.why_not_compiled()
    if reason:
        pytest.skip(reason)
    return counts.build("compare", tuple(SETS))


@pytest.fixture(scope="module")
def compared(driver):
    return run(driver.path, counts.EDGES)


@pytest.mark.parametrize("table", TABLES)
def test_a_table_computes_what_the_baseline_does(compared, table):
    tables, told = compared
    assert "baseline" in tables, told
    if table not in tables:
        pytest.skip(f"this processor has no {table}; it ran {', '.join(tables)}")
    check(table, tables, told)


def test_wrong_results_are_found(compared, driver):
    tables, told = run(driver.path, counts.EDGES, "spoil")
    assert {*tables} == {*compared[0]} - {"baseline"}
    assert all(different == calls >= LEAST_SPOILED_CALLS for calls, different in tables.values()), tables
    assert len(told.splitlines()) == sum(calls for calls, _ in tables.values())


def test_arm():
    if shutil.which(ARM_COMPILER) is None or ARM_EMULATOR is None:
        pytest.skip(f"there is no {ARM_COMPILER} or no qemu (apt-get install g++-aarch64-linux-gnu qemu-user-static)")
    driver = counts.build("compare", ("default", "wide_arm"), cxx=ARM_COMPILER)
    tables, told = run(ARM_EMULATOR, driver.path, counts.EDGES // 5)
    assert {*tables} == {"baseline", "wide"}, told
    for table in tables:
        check(table, tables, told)
