"""Which kernels the test groups of a GPU launch: their cases run on the simulator, which knows what was launched.

    python laboratory/simt/reached.py            a table: kernels, and how many instantiations of each a group launches
    python laboratory/simt/reached.py --missing  the instantiations that a group does not launch
    python laboratory/simt/reached.py --update   finds tests/gpu/cover.txt anew, in minutes

cover     tests/gpu/cover.py: sanitizers (memcheck, racecheck, initcheck, synccheck)
cases     gpu_cases.CASES in each dtype: capture, streams, determinism, memory

The tests of tests/ops launch every kernel (coverage.py --fail-under), so that their results are checked on a GPU.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from laboratory.simt import build, coverage

GROUPS = ("cover", "cases")
COVER = build.ROOT / "tests" / "gpu" / "cover.txt"
# Kernels that cases do not launch: sanitize.py launches these once per graph, and tests/gpu/test_gpu_large.py the last.
ELSEWHERE = (
    "gather_limit_kernel",
    "gather_rows_kernel",
    "dequantize_rows_kernel",
    "code_sum_kernel",
    "add_winners_kernel",
    "round_sums_kernel",
    "naive_",
    "scalar_",
    "place_chunk_kernel",
)


def _jobs(group: str) -> Iterable:
    from tests.gpu import cover, gpu_cases

    if group == "cover":
        return cover.cover()
    if group == "pool":
        return cover.pool()
    return (cover.Job(case, dtype) for case in gpu_cases.CASES for dtype in gpu_cases.DTYPES)


def _run(group: str, into: Path) -> None:
    """Notes where in the library the kernels are that a group launches, and the jobs that launched the first of one. Of a process
    on the simulator."""
    import torch

    from laboratory.simt import control
    from tests.gpu import cover
    from tests.gpu.gpu_cases import with_gradients

    torch.manual_seed(0)
    needed, graphs = [], {}
    for job in _jobs(group):
        before = len(control.launched())
        if job.graph_name not in graphs:
            graphs[job.graph_name] = job.graph()
        graph = graphs[job.graph_name]
        leaves = [cover.place(x, job.misaligned, "cpu") for x in job.case.operands(graph, job.dtype)]
        with_gradients(job.case, graph, leaves, [])
        cover.forward_alone(job.case, graph, leaves)
        if len(control.launched()) > before:
            needed.append(job.name)
    (into / group).write_text("\n".join(map(str, control.launched())))
    (into / "needed").write_text("\n".join(needed))


def launched(group: str) -> tuple[dict[str, bool], list[str]]:
    """Every instantiation in the library, and whether the group launches it; the names of the jobs that launched one first."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(Path(__file__).resolve()), "--run", group, "--into", folder]
        environment = build.environment() | {"PYTHONPATH": str(build.ROOT)}
        subprocess.run(command, cwd=build.ROOT, env=environment, check=True)
        needed = Path(folder, "needed").read_text().splitlines()
        Path(folder, "needed").unlink()
        return coverage.kernels(Path(folder)), needed


def missing(kernels: dict[str, bool]) -> list[str]:
    """Names of instantiations that a group should launch and does not, of what launched() returns."""
    return [name for name, ran in sorted(kernels.items()) if not ran and not name.startswith(ELSEWHERE)]


def table(reached: dict[str, dict[str, bool]]) -> str:
    """A line per kernel: its instantiations, and how many of them each group launches."""
    counts: dict[str, list[int]] = defaultdict(lambda: [0] * (1 + len(reached)))
    for column, kernels in enumerate(reached.values(), 1):
        for name, ran in kernels.items():
            counts[name.split("<")[0]][column] += ran
            counts[name.split("<")[0]][0] += column == 1
    lines = [f"{'kernel':40} {'all':>5}" + "".join(f"{group:>10}" for group in reached)]
    lines += [f"{name:40} {row[0]:5}" + "".join(f"{n:10}" for n in row[1:]) for name, row in sorted(counts.items())]
    return "\n".join(lines)


def update() -> None:
    """A job of the pool is kept if it launches what none before it did, then once more from the last to the first."""
    kernels, needed = launched("pool")
    COVER.write_text("\n".join(reversed(needed)) + "\n")
    _, needed = launched("cover")
    COVER.write_text("\n".join(needed) + "\n")
    print(f"{len(needed)} jobs", *(f"no job launches {name}" for name in missing(kernels)), sep="\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--missing", action="store_true", help="name the instantiations that are not launched")
    parser.add_argument("--update", action="store_true", help="find tests/gpu/cover.txt anew")
    parser.add_argument("--groups", nargs="+", choices=GROUPS, default=list(GROUPS))
    parser.add_argument("--run", help=argparse.SUPPRESS)
    parser.add_argument("--into", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        _run(options.run, options.into)
        return
    build.build(jobs=2)
    if options.update:
        update()
    reached = {group: launched(group)[0] for group in options.groups}
    print(table(reached))
    if options.missing:
        for group, kernels in reached.items():
            print(*(f"{group}: {name}" for name in missing(kernels)), sep="\n")


if __name__ == "__main__":
    main()
