"""`make quick`: whose tests it runs, when it simulates, and that it does not pass because it ran nothing."""

import re
import subprocess
import sys

import pytest

import build_sources
from tests import quick
from tests.checked import ROOT

pytestmark = pytest.mark.skipif(not (ROOT / "csrc").exists(), reason="the sources are not here")


def public_operators():
    from halfgnn import ops

    return [name for name in ops.__all__ if not name.startswith("_")]


def test_every_public_operator_has_tests_that_name_it():
    for name in public_operators():
        text = "".join((ROOT / path).read_text() for path in quick.tests([name]))
        assert any(re.search(rf"\b{operator}\b", text) for operator in (name, *quick.operators(name))), name


def test_every_public_operator_is_simulated():
    for name in public_operators():
        assert quick.simulator_tests([name]), name


@pytest.mark.parametrize("folder", ["csrc/cpu/kernels", "csrc/ops", "halfgnn/ops"])
def test_names_of_files_stand_for_operators(folder):
    kernels = [name.rsplit("/")[-1] for name in build_sources.CPU_KERNELS if name != "table"]
    names = kernels if folder == "csrc/cpu/kernels" else [path.stem for path in (ROOT / folder).glob("*sum*.*")]
    assert names
    for name in names:
        assert quick.tests([name]), name


def test_every_pattern_finds_files():
    for operator, patterns in quick.TESTS.items():
        assert all(list((ROOT / "tests/ops").glob(f"test_{pattern}.py")) for pattern in patterns), operator
    assert {operator for operators in quick.FILES.values() for operator in operators} <= {*quick.TESTS}


def test_several_operators_run_each_file_once():
    paths = quick.tests(["u_mul_e_sum", "spmm", "copy_u_max", "edge_softmax"])
    assert len(paths) == len(set(paths)) and {"tests/ops/test_spmm.py", "tests/ops/test_edge_softmax.py"} < {*paths}


def test_what_is_no_operator_is_refused():
    with pytest.raises(SystemExit, match=r"edge_sofmax is no operator.*edge_softmax"):
        quick.tests(["edge_sofmax"])
    done = subprocess.run([sys.executable, "tests/quick.py"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode != 0 and "which operator?" in done.stderr


@pytest.mark.parametrize(
    "flags, expected",
    [
        ("sse2", "default"),
        ("sse2 avx2 fma f16c", "avx2"),
        ("sse2 avx2 fma f16c avx512f", "avx2"),
        ("sse2 avx2 fma f16c avx512f avx512bw avx512vl avx512dq", "avx512"),
    ],
)
def test_the_instruction_set_is_the_fastest_of_the_processor(flags, expected):
    assert quick.native(flags.split()) == expected


@pytest.mark.parametrize(
    "program, passes", [("print('1 passed')", True), ("print('no tests ran')", False), ("1 / 0", False)]
)
def test_what_ran_nothing_does_not_pass(program, passes, capsys):
    command = [sys.executable, "-c", program]
    if passes:
        quick._check("tests", command)
        assert "1 tests passed" in capsys.readouterr().out
    else:
        with pytest.raises(SystemExit, match="failed"):
            quick._check("tests", command)


def test_the_simulator_runs_unless_these_cuda_sources_passed():
    passed = {"gspmm": "now", "gsddmm": "before"}
    assert quick.unsimulated(["spmm"], "now", passed, lambda: True) == []
    assert quick.unsimulated(["backward"], "now", passed, lambda: True) == ["gsddmm"]
    assert quick.unsimulated(["edge_softmax"], "now", passed, lambda: True) == ["edge_softmax"]
    assert quick.unsimulated(["edge_softmax"], "now", passed, lambda: False) == []  # recorded as checked
