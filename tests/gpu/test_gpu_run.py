"""run.py reads the output of pytest and compute-sanitizer correctly. Needs no GPU."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.gpu import run

VERBOSE = """
============================= test session starts ==============================
tests/a.py::test_one[cuda-x y] PASSED                                    [  1%]
tests/a.py::test_two SKIPPED (needs a GPU)                               [  2%]
tests/a.py::test_three FAILED                                            [  3%]
[gw3] [  4%] PASSED tests/b.py::test_four[torch.float16-add_sum]
[gw1] [ 12%] SKIPPED tests/b.py::test_five[cuda]
[gw1] [100%] FAILED tests/b.py::test_six[cuda-1]
[gw0] [ 50%] ERROR tests/b.py::test_seven
=========================== short test summary info ============================
FAILED tests/a.py::test_three - AssertionError: error 2 times
FAILED tests/b.py::test_six[cuda-1]
ERROR tests/b.py::test_seven - RuntimeError: no
"""


def test_results_are_read_from_verbose_output():
    counts, failures = run.read_results(VERBOSE)
    assert counts == {"passed": 2, "skipped": 2, "failed": 3}
    assert failures == [
        "tests/a.py::test_three: AssertionError: error 2 times",
        "tests/b.py::test_six[cuda-1]",
        "tests/b.py::test_seven: RuntimeError: no",
    ]


def test_results_of_a_run_that_was_cut_off():
    counts, failures = run.read_results(VERBOSE.split("=== short")[0])
    assert counts["failed"] == 3 and failures[0] == "tests/a.py::test_three"


@pytest.mark.parametrize("options", [[], ["-n", "2"]], ids=["alone", "xdist"])
def test_results_of_pytest_itself(tmp_path, options):
    if options:
        pytest.importorskip("xdist")
    folder = tmp_path / "tests"
    folder.mkdir()
    (folder / "test_x.py").write_text(
        "import pytest\n"
        "@pytest.mark.parametrize('x', ['a b', 'c'])\ndef test_good(x): pass\n"
        "def test_bad(): assert 1 == 2\n"
        "def test_not(): pytest.skip('why not')\n"
    )
    done = subprocess.run(
        [*run.pytest_command(1)[:5], "-p", "no:cacheprovider", *options, "tests"],
        cwd=tmp_path, capture_output=True, text=True, env={k: v for k, v in os.environ.items() if "PYTEST" not in k},
    )  # fmt: skip
    counts, failures = run.read_results(done.stdout)
    assert counts == {"passed": 2, "skipped": 1, "failed": 1}, done.stdout
    assert failures == ["tests/test_x.py::test_bad: assert 1 == 2"]


KERNEL = "=========     at void halfgnn::cuda::spmm_kernel<T>(Args)+0x50\n"
FOREIGN = "=========     at void at::native::fill(int)+0x50\n=========         Host Frame: halfgnn in _C.so\n"


def _report(kernel, errors=1):
    return (
        "========= COMPUTE-SANITIZER\n========= Uninitialized __global__ memory read of size 4 bytes\n"
        f"{kernel}=========     Saved host backtrace up to driver entry point\n"
        f"========= \n========= ERROR SUMMARY: {errors} error\n"
    )


@pytest.mark.parametrize(
    "tool,text,errors",
    [
        ("memcheck", "========= ERROR SUMMARY: 0 errors\n", 0),
        ("memcheck", _report(KERNEL, 7), 7),
        ("racecheck", "========= RACECHECK SUMMARY: 2 hazards displayed (2 errors, 0 warnings)\n", 2),
        ("initcheck", _report(KERNEL), 1),
        ("initcheck", _report(FOREIGN), 0),
        ("synccheck", "killed", None),
    ],
)
def test_errors_of_a_sanitizer(tool, text, errors):
    assert run.count_errors(tool, text) == errors


def test_outcome_of_a_sanitizer():
    good = run.sanitizer_outcome(
        "memcheck", 0, "448 of 448 cases, 0 failed, 7 s\n========= ERROR SUMMARY: 0 errors\n", 9.0
    )
    assert good.is_good and (good.passed, good.failed, good.skipped) == (448, 0, 0)
    part = run.sanitizer_outcome(
        "memcheck", 0, "40 of 448 cases, 0 failed, 7 s\n========= ERROR SUMMARY: 0 errors\n", 9.0
    )
    assert part.is_good and part.skipped == 408 and "time was up" in part.note
    bad = run.sanitizer_outcome("memcheck", 1, _report(KERNEL, 3) + "40 of 40 cases, 0 failed, 7 s\n", 9.0)
    assert not bad.is_good and bad.failed == 3 and "Uninitialized" in bad.failures[0]
    assert not run.sanitizer_outcome("memcheck", None, "", 9.0).is_good


def test_a_job_is_ended_at_its_deadline(tmp_path):
    job = run.Job([sys.executable, "-c", "print(1, flush=True); import time; time.sleep(60)"], tmp_path / "log")
    start = time.monotonic()
    status, text = job.wait(start + 3)
    assert status is None and text.startswith("1") and time.monotonic() - start < 30


def test_without_a_gpu_it_says_so():
    done = subprocess.run(
        [sys.executable, str(Path(run.__file__))],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 1 and "needs an NVIDIA GPU" in done.stderr


def test_the_sanitizers_script_runs():
    script = Path(run.__file__).with_name("sanitize.py")
    done = subprocess.run(
        [sys.executable, str(script), "--device", "cpu", "--seconds", "2"],
        capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0 and " 0 failed" in done.stdout, done.stdout + done.stderr
