"""Which kernels the test groups of a GPU launch: the cases of tests/gpu run on the simulator, which knows what was launched.

    python laboratory/simt/reached.py            a table: kernels, and how many instantiations of each a group launches
    python laboratory/simt/reached.py --missing  the instantiations that a group does not launch

sanitize  tests/gpu/sanitize.py as the slowest sanitizer runs it: memcheck, racecheck, initcheck, synccheck
cases     gpu_cases.CASES in each dtype: capture, streams, determinism, memory

The tests of tests/ops launch every kernel (coverage.py --fail-under), so that their results are checked on a GPU.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from laboratory.simt import build, coverage

GROUPS = ("sanitize", "cases")
SLOWEST_STRIDE = 4  # of the sanitizers (tests/gpu/run.py)


def _jobs(group: str) -> Iterator[tuple]:
    """(graph, case, dtype, whether operands are misaligned)"""
    import torch

    from tests.gpu import gpu_cases, sanitize

    if group == "sanitize":
        for _, graph, case, dtype, misaligned in sanitize.plan(SLOWEST_STRIDE):
            yield graph, case, dtype, misaligned
        return
    for idtype in (torch.int32, torch.int64):
        graph = gpu_cases.hub_graph(idtype)
        for case in gpu_cases.CASES:
            for dtype in gpu_cases.DTYPES:
                yield graph, case, dtype, False


def _run(group: str) -> list[int]:
    """Where in the library the kernels are that a group launches. In a process on the simulator."""
    import torch

    from laboratory.simt import control
    from tests.gpu import sanitize
    from tests.gpu.gpu_cases import with_gradients

    torch.manual_seed(0)
    for graph, case, dtype, misaligned in _jobs(group):
        leaves = [sanitize._place(x, misaligned, "cpu") for x in case.operands(graph, dtype)]
        with_gradients(case, graph, leaves, [])
    return control.launched()


def launched(group: str) -> dict[str, bool]:
    """Every instantiation in the library, and whether the group launches it."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(Path(__file__).resolve()), "--run", group, "--into", folder]
        environment = build.environment() | {"PYTHONPATH": str(build.ROOT)}
        subprocess.run(command, cwd=build.ROOT, env=environment, check=True)
        return coverage.kernels(Path(folder))


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--missing", action="store_true", help="name the instantiations that are not launched")
    parser.add_argument("--groups", nargs="+", choices=GROUPS, default=list(GROUPS))
    parser.add_argument("--run", choices=GROUPS, help=argparse.SUPPRESS)
    parser.add_argument("--into", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        (options.into / options.run).write_text("\n".join(map(str, _run(options.run))))
        return
    build.build(jobs=2)
    reached = {group: launched(group) for group in options.groups}
    print(table(reached))
    if options.missing:
        for group, kernels in reached.items():
            print(*(f"{group}: {name}" for name, ran in sorted(kernels.items()) if not ran), sep="\n")


if __name__ == "__main__":
    main()
