"""Runs test modules on the simulator.

python laboratory/simt/run.py         a sample of their cases, and the line coverage of csrc/cuda/kernels
python laboratory/simt/run.py --full  all of their cases, with sanitizers and line counts in bfloat16's kernels too
python laboratory/simt/run.py tests/ops/test_spmm.py -k hub
    as for pytest; set HALFGNN_SIMT_SEED and the like (device.h) at will
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from laboratory.simt import build, coverage

# Modules whose tests call the operators, and the simulator's own.
MODULES = (
    "laboratory/simt/test_kernels.py",
    "laboratory/simt/test_architectures.py",
    "laboratory/simt/test_folds.py",
    "laboratory/simt/test_lanes.py",
    "laboratory/simt/test_messages.py",
    "laboratory/simt/test_reductions.py",
    "laboratory/simt/test_winners.py",
    "laboratory/simt/test_attention_kernels.py",
    "laboratory/simt/test_dot_phases.py",
    "laboratory/simt/test_graph_kernels.py",
    "laboratory/simt/test_reached.py",
    "laboratory/simt/test_launches.py",
    "laboratory/simt/test_schedule.py",
    "laboratory/simt/test_machine.py",
    "laboratory/simt/test_matrices.py",
    "laboratory/simt/test_machine_code.py",
    "tests/ops/test_spmm.py",
    "tests/ops/test_spmm_values.py",
    "tests/ops/test_edge_sum.py",
    "tests/ops/test_code_sum.py",
    "tests/ops/test_copy_u_reduce.py",
    "tests/ops/test_sddmm.py",
    "tests/ops/test_u_add_v_add_e.py",
    "tests/ops/test_gated_sum.py",
    "tests/ops/test_edge_network.py",
    "tests/ops/test_edge_softmax.py",
    "tests/ops/test_head_logits.py",
    "tests/ops/test_attention.py",
    "tests/ops/test_attention_edges.py",
    "tests/ops/test_gatv2_edges.py",
    "tests/ops/test_attention_numbers.py",
    "tests/ops/test_tensor_edges.py",
    "tests/ops/test_attention_autograd.py",
    "tests/ops/test_attention_arguments.py",
    "tests/ops/test_segment_reduce.py",
    "tests/ops/test_hub_accuracy.py",
    "tests/ops/test_short_rows.py",
    "tests/ops/test_row_schedule.py",
    "tests/ops/test_gather_rows.py",
    "tests/ops/test_dequantize.py",
    "tests/benchmarks/test_gather_limit.py",
    "tests/benchmarks/test_scalar_baseline.py",
    "tests/benchmarks/test_naive.py",
    "tests/ops/test_raw_ops.py",
    "tests/ops/test_errors.py",
    "tests/graph/test_graph.py",
    "tests/ops/test_autocast.py",
)


def pytest_on_simulator(*arguments: str, **settings) -> int:
    """The status of pytest in a process of its own. The libraries must be built."""
    with tempfile.NamedTemporaryFile("r", suffix=".test") as note:
        environment = build.environment(**settings)
        environment |= {"PYTHONPATH": str(build.ROOT), "HALFGNN_SIMT_NOTE": note.name}
        environment["HALFGNN_TEST_ALL"] = "1"  # plugin.py takes the sample, which has all of the simulator's own tests
        for name in [name for name in environment if name.startswith("PYTEST_")]:
            del environment[name]  # of a pytest that this is called from
        # Sanitizers report to the process's own standard error: it must not be caught.
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "laboratory.simt.plugin",
            "-p",
            "no:cacheprovider",
            "--capture=sys",
        ]
        status = subprocess.run([*command, *arguments], cwd=build.ROOT, env=environment, check=False).returncode
        if status not in range(6):
            print(f"\nthe process died in {note.read()}")
    return status


def run_all(jobs: int, sample: bool) -> bool:
    coverage.reset()
    modules = [str(build.ROOT / module) for module in MODULES]
    status = pytest_on_simulator(
        "-q", "-n", str(jobs), "--dist", "worksteal", "--tb=short", *modules, sample="1" if sample else ""
    )
    return status == 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=2, help="processes at once (2)")
    parser.add_argument("--full", action="store_true", help="all cases of every test, not a sample of them")
    parser.add_argument(
        "--fail-under", type=float, default=0, metavar="PERCENT", help="of the lines; and every kernel must run"
    )
    args, for_pytest = parser.parse_known_args()
    if args.full:
        os.environ[build.WATCH_EVERY_TYPE] = "1"
    start = time.monotonic()
    try:
        build.build(jobs=args.jobs)
    except RuntimeError as error:
        sys.exit(str(error))
    built = time.monotonic()
    if for_pytest:
        sys.exit(pytest_on_simulator(*for_pytest))
    passed = run_all(args.jobs, not args.full)
    measured = coverage.measure()
    print(measured)
    print(f"simulator: built in {built - start:.0f} s, ran in {time.monotonic() - built:.0f} s")
    if not passed:
        sys.exit("tests failed on the simulator")
    if args.fail_under:
        sys.exit(measured.shortfall(args.fail_under))


if __name__ == "__main__":
    main()
