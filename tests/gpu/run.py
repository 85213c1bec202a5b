"""Runs all GPU tests with one command and prints a summary: `make gpu-test` calls this.

    python3 tests/gpu/run.py --out out/gpu

Needs python3 with torch and pytest, an NVIDIA GPU and, unless the library is already built, a CUDA toolkit. Groups:

build     builds halfgnn/_C.so for this GPU, if it is missing, is older than its sources, or does not run here
suite     the cases of the test suite for the device cuda
gpu       tests/gpu: CUDA graphs, streams, determinism, memory, training, dgl.nn modules if DGL is installed
large     sizes past 2^31, if there is enough memory
sanitize  compute-sanitizer's memcheck, racecheck, initcheck and synccheck on sanitize.py, all four at the same time

Each group writes a log to the folder --out, and the summary is written anew after each. The exit status is 0 only if everything
passed. --groups runs some of them, in calls of their own if one call may not last long enough for all. --sample runs a sample of
each group of tests. --rehearse runs a sample of all groups on the CPU, without the packages that a machine with a GPU may lack
(make gpu-rehearsal).
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
LIBRARY = ROOT / "halfgnn" / "_C.so"
GROUPS = ("suite", "gpu", "large", "sanitize")
TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
# Seconds per group, if --budget allows them.
LIMITS = {"suite": 240, "gpu": 150, "large": 90, "sanitize": 200}
LEAST = 30  # seconds that are kept for each group that follows
REHEARSAL = 6  # times as long on the CPU
GRACE = 8  # seconds in which a group that is ended early writes what it knows
# What a rehearsal does without.
HIDDEN = ("dgl", "matplotlib", "pyarrow", "scipy", "torch_geometric")


@dataclass
class Outcome:
    """One line of the summary."""

    name: str
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: float = 0.0
    note: str = ""
    failures: list[str] = field(default_factory=list)

    @property
    def is_good(self) -> bool:
        return self.failed == 0 and not self.note.startswith("!")


# ---- processes -----------------------------------------------------------------------------------


def environment(**more: str) -> dict[str, str]:
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1", **more}


def hide_packages() -> None:
    """From all processes that follow."""
    os.environ["HALFGNN_HIDDEN"] = ",".join(HIDDEN)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE / "hidden"), *filter(None, [os.environ.get("PYTHONPATH")])])


class Job:
    """A command whose output goes to a file."""

    def __init__(self, command, log: Path, env=None):
        log.parent.mkdir(parents=True, exist_ok=True)
        self.log, self.start = log, time.monotonic()
        with open(log, "w") as file:
            self.process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=env or environment(),
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait(self, deadline: float) -> tuple[int | None, str]:
        """(status, output). A command that runs until shortly before `deadline`, a value of time.monotonic(), is ended
        by then, and status is None."""
        try:
            left = deadline - time.monotonic()
            status = self.process.wait(max(0.0, left / 2, left - GRACE))
        except subprocess.TimeoutExpired:
            status = None
            self._end()
        return status, self.log.read_text(errors="replace")

    def _end(self) -> None:
        for stop, seconds in ((signal.SIGINT, GRACE - 2), (signal.SIGKILL, 2)):
            try:
                os.killpg(self.process.pid, stop)
                self.process.wait(seconds)
                return
            except (subprocess.TimeoutExpired, ProcessLookupError):
                continue

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.start


# ---- GPU and library -----------------------------------------------------------------------------

_ASK = """
import json, torch
found = torch.cuda.is_available()
print(json.dumps(dict(
    gpu=torch.cuda.get_device_name() if found else None, torch=torch.__version__, cuda=torch.version.cuda,
    arch="%d.%d" % torch.cuda.get_device_capability() if found else None,
    memory=torch.cuda.get_device_properties(0).total_memory if found else 0)))
"""

_TRY = """
import torch, halfgnn
assert halfgnn.has_cuda(), "it has no CUDA back end"
ids = torch.arange(64, device="cuda")
g = halfgnn.Graph.from_edges(ids, ids.flip(0), num_src=64, num_dst=64)
x = torch.randn(64, 16, device="cuda", dtype=torch.float16)
assert torch.equal(halfgnn.ops.copy_u_sum(g, x), x.flip(0)), "its results are wrong"
"""


def ask_about_gpu() -> dict:
    """Facts about torch and the GPU. Exits if torch sees no GPU."""
    done = subprocess.run([sys.executable, "-c", _ASK], capture_output=True, text=True, cwd=ROOT, env=environment())
    if done.returncode != 0:
        sys.exit(f"gpu-test: {sys.executable} cannot import torch:\n{done.stderr.strip()[-500:]}")
    found = json.loads(done.stdout.strip().splitlines()[-1])
    if found["gpu"] is None:
        sys.exit(f"gpu-test: needs an NVIDIA GPU, and torch {found['torch']} of {sys.executable} sees none")
    return found


def sources() -> list[Path]:
    return [
        *ROOT.glob("csrc/**/*.*"),
        *ROOT.glob("benchmarks/yardsticks/*.c*"),
        *(ROOT / name for name in ("setup.py", "build_sources.py", "cuda_toolkit.py")),
    ]


def why_build() -> str | None:
    """Why the library must be built, or None if it need not be."""
    if not LIBRARY.exists():
        return "halfgnn/_C.so is missing"
    if LIBRARY.stat().st_mtime < max(source.stat().st_mtime for source in sources()):
        return "halfgnn/_C.so is older than its sources"
    return why_useless()


def why_useless() -> str | None:
    """Why the existing library does not run here, or None if it does."""
    done = subprocess.run([sys.executable, "-c", _TRY], capture_output=True, text=True, cwd=ROOT, env=environment())
    if done.returncode == 0:
        return None
    return "halfgnn/_C.so does not run here: " + (done.stderr.strip().splitlines() or ["no message"])[-1][:200]


def build(mode: str, arch: str, out: Path, limit: float) -> Outcome:
    """Builds the library. mode: auto (if needed), 0 (never) or 1 (always)."""
    start = time.monotonic()
    reason = {"auto": why_build, "0": why_useless}.get(mode, lambda: "requested")()
    if reason is None:
        return Outcome("build", note="as it is", seconds=time.monotonic() - start)
    if mode == "0":
        return Outcome("build", failed=1, note=f"! {reason}", seconds=time.monotonic() - start)
    print(f"building: {reason} (log: {out / 'build.log'})", flush=True)
    settings = dict(HALFGNN_CUDA="1", TORCH_CUDA_ARCH_LIST=arch, MAX_JOBS=str(os.cpu_count() or 1))
    job = Job([sys.executable, "setup.py", "build_ext", "--inplace"], out / "build.log", environment(**settings))
    status, text = job.wait(time.monotonic() + limit)
    outcome = Outcome("build", seconds=time.monotonic() - start, note=f"for sm_{arch.replace('.', '')}")
    problem = None if status == 0 else text[-3000:] or "it took too long"
    if problem is None:
        os.utime(LIBRARY)  # the linker does not touch it if nothing changed
        problem = why_useless()
    if problem is not None:
        print(problem)
        outcome.failed, outcome.note = 1, "! failed"
    return outcome


# ---- pytest --------------------------------------------------------------------------------------

_RESULT = re.compile(
    r"^(?:\[gw\d+\]\s+\[\s*\d+%\]\s+(\w+)\s+(\S.*?)|(tests/\S.*?)\s+([A-Z]+)(?: \(.*\))?(?:\s+\[\s*\d+%\])?)\s*$"
)
_KINDS = {"PASSED": "passed", "XFAIL": "passed", "FAILED": "failed", "ERROR": "failed", "XPASS": "passed",
          "SKIPPED": "skipped"}  # fmt: skip


def read_results(text: str) -> tuple[Counter, list[str]]:
    """Counts of the results that `pytest -v` printed, even if it was ended early, and the tests that failed."""
    counts: Counter = Counter()
    failed = {}
    for line in text.splitlines():
        found = _RESULT.match(line)
        if not found:
            continue
        word, name = (found[1], found[2]) if found[1] else (found[4], found[3])
        name = name.split(" (")[0].strip()
        kind = _KINDS.get(word)
        if kind == "failed" and name not in failed:  # a test that breaks its process is reported as failed twice
            failed[name] = ""
            counts[kind] += 1
        elif kind in ("passed", "skipped"):
            counts[kind] += 1
    for name, why in re.findall(r"^(?:FAILED|ERROR) (\S.*?)(?: - (.*))?$", text, re.MULTILINE):
        if name in failed and not failed[name]:
            failed[name] = why
    return counts, [f"{name}: {why}" if why else name for name, why in failed.items()]


def pytest_command(workers: int) -> list[str]:
    command = [sys.executable, "-m", "pytest", "-v", "--tb=short", "-p", "no:cacheprovider", "-p", "tests.gpu.gpu_plugin",
               "-o", "faulthandler_timeout=100", "--durations=20"]  # fmt: skip
    if importlib.util.find_spec("xdist"):
        command += ["-n", str(workers), "--max-worker-restart=20"]
    return command


def run_pytest(name: str, arguments: list[str], options, limit: float) -> Outcome:
    device, workers, out = ("cpu" if options.rehearse else "cuda"), options.workers, options.out
    if options.rehearse or options.sample:
        arguments = [*arguments, "-p", "tests.sample"]
    workers = 1 if name == "large" else workers
    job = Job([*pytest_command(workers), *arguments], out / f"{name}.log", environment(HALFGNN_TEST_DEVICES=device))
    status, text = job.wait(time.monotonic() + limit)
    counts, failures = read_results(text)
    outcome = Outcome(name, counts["passed"], counts["failed"], counts["skipped"], job.seconds, failures=failures)
    planned = planned_tests(text)
    if status is None:
        outcome.note = f"! ended after {job.seconds:.0f} s: {counts.total()} of {planned or 'all'} tests ran"
    elif status not in (0, 1):
        outcome.note = f"! pytest ended with {status}"
    elif status == 1 and not outcome.failed:
        outcome.note = "! pytest failed: " + (errors_of_collection(text) or "see its log")
    elif not counts.total():
        outcome.note = "! no test ran"
    return outcome


def planned_tests(text: str) -> int | None:
    """The number of tests that pytest collected, less those that it left out."""
    found = re.search(r"\[(\d+) items\]", text)  # by xdist
    if found is None:
        found = re.search(r"^collected \d+ items?.* / (\d+) selected", text, re.MULTILINE)
    if found is None:
        found = re.search(r"^collected (\d+) items?", text, re.MULTILINE)
    return int(found[1]) if found else None


def errors_of_collection(text: str) -> str:
    """The files that pytest could not read, by either of its ways to say so."""
    return ", ".join(dict.fromkeys(re.findall(r"(?:ERROR collecting|^ERROR) (\S+\.py)", text, re.MULTILINE)))


def suite(options, limit: float) -> Outcome:
    paths = ["tests", "--ignore=tests/gpu", "-k", "cpu" if options.rehearse else "cuda"]
    return run_pytest("suite", paths, options, limit)


def gpu(options, limit: float) -> Outcome:
    paths = ["tests/gpu", "--ignore=tests/gpu/test_gpu_large.py"]
    return run_pytest("gpu", paths, options, limit)


def large(options, limit: float) -> Outcome:
    return run_pytest("large", ["tests/gpu/test_gpu_large.py"], options, limit)


# ---- compute-sanitizer ---------------------------------------------------------------------------


def find_sanitizer() -> str | None:
    sys.path.insert(0, str(ROOT))
    import cuda_toolkit

    home = cuda_toolkit.find_cuda_home() or "/usr/local/cuda"
    names = ["compute-sanitizer", f"{home}/bin/compute-sanitizer", f"{home}/compute-sanitizer/compute-sanitizer"]
    return next(filter(None, map(shutil.which, names)), None)


def count_errors(tool: str, text: str) -> int | None:
    """Number of errors that a tool reports in kernels of halfgnn; None if its summary is missing."""
    summary = re.search(r"========= (?:ERROR|RACECHECK) SUMMARY: (\d+)", text)
    if summary is None:
        return None
    if tool != "initcheck":
        return int(summary[1])
    # initcheck must watch all kernels, to know what the others wrote. Only errors of halfgnn's kernels count.
    blocks = re.split(r"^========= ?$", text, flags=re.MULTILINE)
    return sum("Uninitialized" in block and "halfgnn" in block.split("Host Frame")[0] for block in blocks)


def sanitizer_command(sanitizer: str, tool: str, seconds: float) -> list[str]:
    # initcheck must watch all kernels, and PyTorch's have reports too, which must not crowd out halfgnn's: 0 prints all.
    command = [sanitizer, "--tool", tool, "--print-limit", "30" if tool != "initcheck" else "0"]
    if tool != "initcheck":
        command += ["--kernel-name", "kns=halfgnn"]
    # Slower tools get fewer cases.
    stride = {"memcheck": 2, "synccheck": 3}.get(tool, 4)
    script = [sys.executable, str(HERE / "sanitize.py"), "--seconds", f"{seconds:.0f}", "--stride", str(stride)]
    return [*command, *script]


def sanitize(options, limit: float) -> list[Outcome]:
    if options.rehearse:
        return [rehearsed_sanitize(options.out, limit)]
    sanitizer = find_sanitizer()
    if sanitizer is None:
        return [Outcome("sanitize", skipped=len(TOOLS), note="no compute-sanitizer was found")]
    env = environment(PYTORCH_NO_CUDA_MEMORY_CACHING="1")
    deadline = time.monotonic() + limit
    seconds = max(20.0, limit - 60)
    jobs = {tool: Job(sanitizer_command(sanitizer, tool, seconds), options.out / f"{tool}.log", env) for tool in TOOLS}
    outcomes = []
    for tool, job in jobs.items():
        status, text = job.wait(deadline)
        outcomes.append(sanitizer_outcome(tool, status, text, job.seconds))
    return outcomes


def rehearsed_sanitize(out: Path, limit: float) -> Outcome:
    """Its cases on the CPU, without a sanitizer."""
    command = [
        sys.executable,
        str(HERE / "sanitize.py"),
        "--device",
        "cpu",
        "--seconds",
        f"{limit - 20:.0f}",
        "--stride",
        "4",
    ]
    job = Job(command, out / "sanitize.log")
    status, text = job.wait(time.monotonic() + limit)
    return sanitizer_outcome("sanitize", status, text + "\n========= ERROR SUMMARY: 0 errors\n", job.seconds)


def sanitizer_outcome(tool: str, status: int | None, text: str, seconds: float) -> Outcome:
    errors = count_errors(tool, text)
    cases = re.search(r"^(\d+) of (\d+) cases, (\d+) failed", text, re.MULTILINE)
    done, planned, wrong = map(int, cases.groups()) if cases else (0, 0, 0)
    outcome = Outcome(tool, done - wrong, wrong + (errors or 0), planned - done, seconds)
    outcome.failures = re.findall(r"^FAILED .*$", text, re.MULTILINE)[:10]
    if errors is None or cases is None:
        outcome.note = "! no summary" if status is not None else "! took too long"
    elif errors:
        outcome.note = f"{errors} errors"
        outcome.failures += re.findall(r"^========= (?!COMPUTE|\s).*$", text, re.MULTILINE)[:5]
    elif done < planned:
        outcome.note = f"time was up after {done} of {planned} cases"
    return outcome


# ---- all of it -----------------------------------------------------------------------------------


def render(outcomes: list[Outcome]) -> str:
    lines = [f"{'group':<10} {'passed':>7} {'failed':>7} {'skipped':>8} {'seconds':>8}"]
    lines += [
        f"{o.name:<10} {o.passed:>7} {o.failed:>7} {o.skipped:>8} {o.seconds:>8.0f}  {o.note}".rstrip()
        for o in outcomes
    ]
    return "\n".join(lines)


def shown_failures(outcomes: list[Outcome], most: int = 40) -> list[str]:
    failures = [f"{o.name}: {failure}"[:300] for o in outcomes for failure in o.failures]
    left_out = len(failures) - most
    return failures[:most] + ([f"... and {left_out} more, in the logs"] if left_out > 0 else [])


def parse(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "out" / "gpu", help="folder for the logs (out/gpu)")
    parser.add_argument("--build", choices=("auto", "0", "1"), default="auto", help="0: never, 1: always")
    parser.add_argument("--groups", nargs="*", choices=GROUPS, default=list(GROUPS), help="none: build only")
    parser.add_argument("--workers", type=int, default=8, help="test processes that share the GPU (8)")
    parser.add_argument("--budget", type=float, default=540, help="seconds for the whole run (540)")
    parser.add_argument("--sample", action="store_true", help="of each test the fewest cases that have every parameter")
    parser.add_argument("--rehearse", action="store_true", help="a sample on the CPU: needs no GPU")
    options = parser.parse_args(argv)
    options.out = options.out.resolve()
    return options


def built(options) -> list[Outcome]:
    """What building the library gave; nothing in a rehearsal, which takes it as it is."""
    if options.rehearse:
        hide_packages()
        return []
    found = ask_about_gpu()
    print(
        f"{found['gpu']}, {found['memory'] / 2**30:.0f} GiB, torch {found['torch']}, CUDA {found['cuda']}", flush=True
    )
    return [build(options.build, found["arch"], options.out, limit=options.budget)]


def write_summary(outcomes: list[Outcome], out: Path) -> str:
    """Written after each group, so that a run that is killed has one."""
    summary = "\n".join([*shown_failures(outcomes), "", render(outcomes)])
    (out / "summary.txt").write_text(summary + "\n")
    return summary


def main() -> int:
    options = parse()
    end = time.monotonic() + options.budget
    options.out.mkdir(parents=True, exist_ok=True)
    outcomes = built(options)
    left = [group for group in GROUPS if group in options.groups] if all(o.is_good for o in outcomes) else []
    while left:
        group = left.pop(0)
        most = LIMITS[group] * (REHEARSAL if options.rehearse else 1)
        limit = min(most, end - time.monotonic() - LEAST * len(left))
        if limit < LEAST:
            outcomes.append(Outcome(group, note="! no time was left"))
            continue
        cut = f", of {most} s that it may take" if limit < most else ""
        print(f"{group}: up to {limit:.0f} s{cut}", flush=True)
        done = {"suite": suite, "gpu": gpu, "large": large, "sanitize": sanitize}[group](options, limit)
        outcomes += done if isinstance(done, list) else [done]
        write_summary(outcomes, options.out)
    print(write_summary(outcomes, options.out))
    return 0 if all(outcome.is_good for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
