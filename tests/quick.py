"""The tests of a few operators, in about a minute after an edit: `make quick OP=gatv2_attention` calls this.

    python tests/quick.py gspmm edge_softmax

Builds a library of its own in build/quick: the CPU back end with the kernels of this processor's instruction set alone, compiled
with -O1. Runs a sample of the operators' tests on it. If sources of CUDA kernels are not those that passed last, it also builds the
simulator without sanitizers and line counts, and runs a sample of the same tests there; nvcc compiles nothing. An operator is a
public one or a file of csrc/cpu/kernels. `make test` runs everything.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import build_sources
from tests import checked

ROOT = checked.ROOT
BUILD = ROOT / "build" / "quick"
LIBRARY = BUILD / "halfgnn" / "_C.so"
PASSED = BUILD / "passed.json"  # operator -> the CUDA sources that passed its tests last
JOBS = os.environ.get("JOBS", "2")

# Operators, and the tests of tests/ops that are theirs; * stands for any letters.
ATTENTION = ("attention", "attention_[!e]*", "ends_of_heads")
TESTS = {
    "code_sum": ("code_sum",),
    "coo_softmax": ("coo_softmax",),
    "coo_sum": ("coo_sum",),
    "copy_u_reduce": ("copy_u_reduce", "winner_gradients"),
    "dot_attention": (*ATTENTION, "attention_edges", "tensor_*"),
    "edge_network": ("edge_network",),
    "edge_softmax": ("edge_softmax", "short_rows"),
    "gat_attention": ATTENTION,
    "gated_sum": ("gated_sum",),
    "gather_rows": ("gather_rows", "dequantize"),
    "gatv2_attention": (*ATTENTION, "gatv2_edges", "tensor_*"),
    "gsddmm": ("sddmm", "out_edges", "ends_of_heads"),
    "gspmm": (
        "spmm*",
        "winner_gradients",
        "edge_sum",
        "out_edges",
        "hub_accuracy",
        "short_rows",
        "row_schedule",
        "float32_gradient*",
    ),
    "head_logits": ("head_logits",),
    "segment_reduce": ("segment_reduce",),
    "u_add_v_add_e": ("u_add_v_add_e",),
}
# Other names: of files of csrc/cpu/kernels, csrc/ops and halfgnn/ops.
FILES = {
    "attention": ("gat_attention", "gatv2_attention", "dot_attention"),
    "backward": ("gspmm", "gsddmm"),
    "copy_reduce": ("copy_u_reduce",),
    "dequantize": ("gather_rows",),
    "edge_sum": ("gspmm",),
    "gat": ("gat_attention",),
    "pair": ("gatv2_attention", "dot_attention"),
    "sddmm": ("gsddmm", "u_add_v_add_e"),
    "spmm": ("gspmm",),
}
# What is the same for all kernels, or takes seconds: it is left to `make test`.
LEFT_OUT = "not (compiled or opcheck or gradcheck)"
# What the simulator compiles.
SIMULATED = checked.Part((("csrc/core/", ""), ("csrc/cuda/", ""), ("laboratory/simt/", "")), ("build_sources.py",))


# ---- what is run -----------------------------------------------------------------------------------------------------


def operators(name: str) -> tuple[str, ...]:
    """The keys of TESTS that a name stands for. Raises SystemExit if there are none."""
    if name in TESTS:
        return (name,)
    if name in FILES:
        return FILES[name]
    if re.fullmatch(r"([uve]_\w+|copy_[ue])_(sum|mean|max|min)", name):
        return ("gspmm",)
    if re.fullmatch(r"[uve]_(add|sub|mul|div|dot)_[uve]|copy_[uve]", name):
        return ("gsddmm",)
    raise SystemExit(
        f"{name} is no operator. These are: {', '.join([*TESTS, *FILES])}, and those generated from gspmm and gsddmm."
    )


def tests(names: Iterable[str]) -> list[str]:
    """Paths below the project's folder, of every operator's tests."""
    patterns = dict.fromkeys(pattern for name in names for operator in operators(name) for pattern in TESTS[operator])
    paths = dict.fromkeys(
        path for pattern in patterns for path in sorted((ROOT / "tests/ops").glob(f"test_{pattern}.py"))
    )
    return [path.relative_to(ROOT).as_posix() for path in paths]


def native(flags: Iterable[str]) -> str:
    """The fastest instruction set of a processor with these flags of /proc/cpuinfo."""
    have = set(flags)
    sets = {name: target for name, (_, _, target, *_) in build_sources.INSTRUCTION_SETS.items()}
    return [name for name, target in sets.items() if target is None or have.issuperset(target.split(","))][-1]


def _flags() -> list[str]:
    try:
        found = re.search(r"^flags\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    return found.group(1).split() if found else []


def unsimulated(names: Iterable[str], digest: str, passed: dict[str, str], changed: Callable[[], bool]) -> list[str]:
    """The operators whose simulator cases have to run: CUDA sources are neither those that passed here nor those that are
    recorded as checked."""
    every = dict.fromkeys(operator for name in names for operator in operators(name))
    left = [operator for operator in every if passed.get(operator) != digest]
    return left if left and changed() else []


# ---- running ---------------------------------------------------------------------------------------------------------


def _start(command: list[str], log: str, **environment: str) -> subprocess.Popen[bytes]:
    BUILD.mkdir(parents=True, exist_ok=True)
    with open(BUILD / log, "wb") as output:
        return subprocess.Popen(
            command, cwd=ROOT, env=os.environ | environment, stdout=output, stderr=subprocess.STDOUT
        )


def _finish(process: subprocess.Popen[bytes], log: str) -> None:
    if process.wait() != 0:
        sys.exit(f"{(BUILD / log).read_text()[-6000:]}\nit does not build ({BUILD / log})")


def build(simulator: bool) -> None:
    """Both at once."""
    command = [sys.executable, "setup.py", "build_ext", "--build-temp", str(BUILD), "--build-lib", str(BUILD)]
    started = [(_start(command, "build.log", HALFGNN_TABLE=native(_flags()), MAX_JOBS=JOBS), "build.log")]
    if simulator:
        command = [sys.executable, "laboratory/simt/build.py", "--jobs", JOBS]
        started.append((_start(command, "simulator.log", HALFGNN_SIMT_QUICK="1"), "simulator.log"))
    for process, log in started:
        _finish(process, log)


def ran(output: str) -> int:
    """How many tests passed, of what pytest printed."""
    found = re.findall(r"(\d+) passed", output)
    return int(found[-1]) if found else 0


def _check(title: str, command: list[str], **environment: str) -> None:
    """Shows what pytest prints. Raises SystemExit if it fails, or if no test passed."""
    print(f"---- {title}", flush=True)
    started = time.monotonic()
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | environment, stdout=subprocess.PIPE, text=True, check=False
    )
    passed = ran(done.stdout)
    if done.returncode != 0 or passed == 0:
        sys.exit(f"{done.stdout}\n{title}: failed" + ("" if passed else ", no test passed"))
    print(f"{passed} tests passed in {time.monotonic() - started:.0f} s", flush=True)


def main(names: list[str]) -> None:
    paths = tests(names)
    digest = SIMULATED.digest()
    passed = json.loads(PASSED.read_text()) if PASSED.is_file() else {}
    simulated = unsimulated(names, digest, passed, lambda: checked.must_check("cuda", gpus=()))
    started = time.monotonic()
    print(f"building build/quick for {native(_flags())}{', and the simulator' if simulated else ''}", flush=True)
    build(bool(simulated))
    print(f"built in {time.monotonic() - started:.0f} s", flush=True)
    options = ["-q", "-n", JOBS, "--dist", "worksteal", "-p", "no:cacheprovider", "-k", LEFT_OUT]
    pytest = [sys.executable, "-m", "pytest", *options, "-p", "tests.sample"]
    _check(f"CPU kernels: {' '.join(paths)}", [*pytest, *paths], HALFGNN_LIBRARY=str(LIBRARY))
    if simulated:
        paths = simulator_tests(simulated)
        simulator = [sys.executable, "laboratory/simt/run.py", *options, *paths]
        _check(
            f"CUDA kernels in the simulator: {' '.join(paths)}",
            simulator,
            HALFGNN_SIMT_QUICK="1",
            HALFGNN_SIMT_SAMPLE="1",
        )
        PASSED.write_text(json.dumps(passed | dict.fromkeys(simulated, digest), indent=1) + "\n")
    else:
        print("CUDA kernels: unchanged since they passed, the simulator did not run")
    print(f"quick: {', '.join(names)} passed in {time.monotonic() - started:.0f} s")


def simulator_tests(names: Iterable[str]) -> list[str]:
    """Those of them that call kernels directly, as the simulator runs them."""
    from laboratory.simt.run import MODULES

    return [path for path in tests(names) if path in MODULES]


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("which operator? make quick OP=gatv2_attention")
    main(sys.argv[1:])
