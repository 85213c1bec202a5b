"""Lines and kernels of csrc/cuda/kernels that ran on the simulator, over all processes since the last reset.

    python laboratory/simt/coverage.py                    per file and in total, with the lines that did not run
    python laboratory/simt/coverage.py --fail-under 95    exit status 1 below 95 %, or if a kernel was never launched
    python laboratory/simt/coverage.py --reset            forgets what ran

A line of a template has run if it ran in any instantiation; of kernels, every instantiation counts. gcov counts lines, the machine
notes launches.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import os
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from laboratory.simt import build

OBJECTS = build.BUILD / "kernels"
SOURCES = build.ROOT / "csrc" / "cuda" / "kernels"
YARDSTICKS = build.ROOT / "benchmarks" / "yardsticks"


@dataclass
class Coverage:
    files: dict[str, dict[int, bool]]  # by folder and name: line number -> whether it ran
    kernels: dict[str, bool]  # instantiation -> whether it was launched

    @property
    def percent(self) -> float:
        ran = [ran for lines in self.files.values() for ran in lines.values()]
        return 100 * sum(ran) / len(ran) if ran else 0.0

    @property
    def never_launched(self) -> list[str]:
        return sorted(name for name, ran in self.kernels.items() if not ran)

    def shortfall(self, percent: float) -> str | None:
        """What is missing of so many lines and of all kernels; None if nothing is."""
        if self.never_launched:
            return f"{len(self.never_launched)} of {len(self.kernels)} kernels were never launched"
        if self.percent < percent:
            return f"{self.percent:.1f} % of the lines of csrc/cuda/kernels ran, fewer than {percent:g} %"
        return None

    def __str__(self):
        rows = [f"{'lines':>6} {'ran':>6} {'%':>6}  csrc/cuda/kernels"]
        for name, lines in sorted(self.files.items()):
            ran = sum(lines.values())
            missing = _ranges(sorted(n for n, r in lines.items() if not r), sorted(lines))
            rows.append(
                f"{len(lines):6} {ran:6} {100 * ran / len(lines):6.1f}  {name}"
                + (f"  not: {missing}" if missing else "")
            )
        total = sum(map(len, self.files.values()))
        rows.append(
            f"{total:6} {sum(sum(lines.values()) for lines in self.files.values()):6} {self.percent:6.1f}  in total"
        )
        rows += [f"never launched: {name}" for name in self.never_launched]
        rows.append(f"{len(self.kernels) - len(self.never_launched)} of {len(self.kernels)} kernels were launched")
        return "\n".join(rows)


def _ranges(missing, all_lines):
    """12-15, 20: lines without code do not end a range."""
    position = {line: i for i, line in enumerate(all_lines)}
    groups: list[list[int]] = []
    for line in missing:
        if groups and position[line] == position[groups[-1][-1]] + 1:
            groups[-1].append(line)
        else:
            groups.append([line])
    return ", ".join(str(g[0]) if len(g) == 1 else f"{g[0]}-{g[-1]}" for g in groups)


def _names_of_kernels():
    kernel = re.compile(r"__global__[^;{]*?\b(\w+)\(const ")
    return {
        name
        for pattern in ("*.cu", "*.cuh")
        for path in (*SOURCES.rglob(pattern), *YARDSTICKS.glob(pattern))
        for name in kernel.findall(path.read_text())
    }


def kernels(notes: Path = build.LAUNCHED) -> dict[str, bool]:
    """Every instantiation in the library, and whether it was launched. notes: a folder of files that say where it is."""
    kernel = re.compile(
        rf"(?:void )?(?:[\w(): ]+::)?((?:{'|'.join(sorted(_names_of_kernels()))})(?:<.*>)?)\([^()]*(?:\([^()]*\)[^()]*)*\)$"
    )
    launched = {int(place) for file in notes.iterdir() for place in file.read_text().split()}
    command = ["nm", "--demangle", "--defined-only", build.LIBRARY]
    symbols = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found: dict[str, bool] = defaultdict(bool)
    for symbol in symbols.splitlines():
        place, _, name = symbol.split(maxsplit=2)
        if match := kernel.match(name):
            found[match[1].replace("halfgnn::cuda::", "")] |= int(place, 16) in launched
    return dict(found)


def _gcov(notes: Path):
    """What gcov says of one object: of every file its lines, whether they ran."""
    gcov = os.environ.get("GCOV") or shutil.which("gcov")
    if gcov is None:
        raise RuntimeError("there is no gcov")
    # Without counts of its own (.gcda), an object's lines are all listed as not run.
    command = [gcov, "--json-format", "--stdout", str(notes.with_suffix(".gcda"))]
    done = subprocess.run(command, cwd=OBJECTS, capture_output=True, text=True, check=True)
    lines = defaultdict(lambda: defaultdict(bool))
    for report in filter(None, done.stdout.splitlines()):
        for file in json.loads(report)["files"]:
            path = (build.ROOT / file["file"]).resolve()
            if SOURCES not in path.parents and path.parent != YARDSTICKS:
                continue
            for line in file["lines"]:
                lines[f"{path.parent.name}/{path.name}"][line["line_number"]] |= line["count"] > 0
    return lines


def measure() -> Coverage:
    objects = (OBJECTS / build.object_name(source) for source in build.kernel_sources(build.counted_types()))
    notes = [path for path in (path.with_suffix(".gcno") for path in objects) if path.exists()]
    files = defaultdict(lambda: defaultdict(bool))
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for lines in pool.map(_gcov, notes):
            for name, ran_by_line in lines.items():
                for line, ran in ran_by_line.items():
                    files[name][line] |= ran
    return Coverage({name: dict(lines) for name, lines in files.items()}, kernels())


def reset() -> None:
    for path in (*OBJECTS.glob("*.gcda"), *build.LAUNCHED.glob("*")):
        path.unlink()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fail-under", type=float, default=0, metavar="PERCENT")
    parser.add_argument("--reset", action="store_true")
    args = parser.parse_args()
    if args.reset:
        reset()
        return
    measured = measure()
    print(measured)
    if args.fail_under:
        sys.exit(measured.shortfall(args.fail_under))


if __name__ == "__main__":
    main()
