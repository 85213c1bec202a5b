"""Runs test modules on the simulator.

python tests/simt/run.py                            all of them, then the line coverage of csrc/kernels
python tests/simt/run.py tests/test_spmm.py -k hub  as for pytest; set HALFGNN_SIMT_SEED and the like (device.h) at will
"""

from __future__ import annotations

import argparse
import concurrent.futures
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from simt import build, coverage

TESTS = build.ROOT / "tests"
# Modules whose tests call the operators, and the simulator's own. Long ones first.
MODULES = (
    "test_spmm.py",
    "test_sddmm.py",
    "test_raw_ops.py",
    "test_edge_softmax.py",
    "test_segment_reduce.py",
    "test_errors.py",
    "test_graph.py",
    "test_autocast.py",
    "test_hub_accuracy.py",
    "simt/test_kernels.py",
    "simt/test_machine.py",
)
TIMEOUT = 1800


@dataclass
class Result:
    module: str
    passed: bool
    output: str
    seconds: float

    def __str__(self):
        return f"{self.module}: {'passed' if self.passed else 'FAILED'} in {self.seconds:.0f} s\n{self.output}"


def pytest_on_simulator(*arguments: str, timeout: float | None = TIMEOUT, **settings) -> tuple[int, str]:
    """Status and output of pytest in a process of its own. The libraries must be built."""
    with tempfile.NamedTemporaryFile("r", suffix=".test") as note:
        environment = build.environment(**settings)
        environment |= {"PYTHONPATH": str(TESTS), "HALFGNN_SIMT_NOTE": note.name}
        for name in [name for name in environment if name.startswith("PYTEST_")]:
            del environment[name]  # of a pytest that this is called from
        # Sanitizers report to the process's own standard error: it must not be caught.
        command = [sys.executable, "-m", "pytest", "-p", "simt.plugin", "-p", "no:cacheprovider", "--capture=sys"]
        done = subprocess.run(
            [*command, *arguments],
            cwd=build.ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
            timeout=timeout,
        )
        died = done.returncode not in (0, 1, 2, 3, 4, 5) or "ERROR: AddressSanitizer" in done.stdout
        where = f"\nthe process died in {note.read()}\n" if died else ""
    return done.returncode, done.stdout + where


def run_module(module: str, **settings) -> Result:
    start = time.monotonic()
    try:
        status, output = pytest_on_simulator("-q", "--tb=short", str(TESTS / module), **settings)
    except subprocess.TimeoutExpired as error:
        status, output = -1, f"{(error.stdout or b'').decode(errors='replace')}\nno end after {error.timeout} s"
    return Result(module, status == 0, output, time.monotonic() - start)


def run_all(jobs: int) -> bool:
    coverage.reset()
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        results = []
        for done in concurrent.futures.as_completed([pool.submit(run_module, module) for module in MODULES]):
            results.append(done.result())
            last = results[-1].output.strip().splitlines()[-1:]
            print(results[-1] if not results[-1].passed else f"{results[-1].module}: {''.join(last)}", flush=True)
    print(coverage.measure())
    return all(result.passed for result in results)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=2, help="processes at once (2)")
    parser.add_argument("--fail-under", type=float, default=0, metavar="PERCENT", help="of lines, when all modules run")
    args, for_pytest = parser.parse_known_args()
    try:
        build.build(jobs=args.jobs)
    except RuntimeError as error:
        sys.exit(str(error))
    if for_pytest:
        status, output = pytest_on_simulator(*for_pytest, timeout=None)
        print(output)
        sys.exit(status)
    passed = run_all(args.jobs)
    sys.exit(0 if passed and coverage.measure().percent >= args.fail_under else 1)


if __name__ == "__main__":
    main()
