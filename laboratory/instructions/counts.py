"""Builds the drivers, counts the instructions of their cases, and compares them with those that are committed."""

from __future__ import annotations

import csv
import fcntl
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT))
import build_sources  # noqa: E402

BUILD = ROOT / "build" / "instructions"
COMMITTED = HERE / "committed.csv"
CXX = os.environ.get("CXX", "g++")
# The flags of setup.py, with those that Python's own build adds.
FLAGS = ["-std=c++17", "-O3", "-g0", "-fno-math-errno", "-fPIC", "-fopenmp", "-fvisibility=hidden", "-fwrapv"]
FLAGS += ["-DNDEBUG", "-Wno-psabi"]

EDGES = 1500
# One compiler gives the same counts in every run. Its patch releases and the C library make little difference.
TOLERANCE = 0.03
# For another compiler, or another major version, only counts that are larger by this factor are reported.
OTHER_COMPILER = 0.5

Counts = dict[tuple[str, str], float]  # (case, table) -> instructions per edge


def why_not_compiled() -> str | None:
    """Why the drivers cannot be compiled here; None if they can."""
    return f"there is no {CXX}" if shutil.which(CXX) is None else None


def why_not() -> str | None:
    """Why nothing can be counted here; None if it can."""
    if platform.machine() != "x86_64":
        return f"the committed counts are of x86_64, not of {platform.machine()}"
    if reason := why_not_compiled():
        return reason
    if shutil.which("valgrind") is None:
        return "there is no valgrind (apt-get install valgrind)"
    header = [CXX, "-x", "c++", "-E", "-"]
    if subprocess.run(header, input="#include <valgrind/callgrind.h>", text=True, capture_output=True).returncode != 0:
        return "there is no valgrind/callgrind.h (of valgrind's package, or of valgrind-devel)"
    return None


# ---- building ------------------------------------------------------------------------------------


@dataclass
class Driver:
    path: Path
    compiler: str  # of the kernels, "gcc 12.2.0"


def _run(*command, **options) -> str:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, **options)
    if done.returncode != 0:
        raise RuntimeError(f"{command[0]} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def _folder(cxx: str) -> Path:
    return BUILD if cxx == CXX else BUILD / cxx


def _is_fresh(output: Path, source: Path, *more: Path, cxx: str = CXX) -> bool:
    """Whether the output is newer than the source, all files that the source includes, and `more`."""
    if not output.is_file():
        return False
    rule = _run(cxx, "-std=c++17", "-MM", source).replace("\\\n", " ")
    newest = max(path.stat().st_mtime for path in (*map(Path, rule.split(":", 1)[1].split()), *more))
    return newest <= output.stat().st_mtime


def kernel(source: Path, cxx: str = CXX) -> Path:
    """The object of a source: that of setup.py's last build if it is up to date, otherwise one that is compiled here."""
    own = _folder(cxx) / f"{source.stem}.o"
    of_setup = ROOT.glob(f"build/temp*/{source.relative_to(ROOT).with_suffix('.o')}") if cxx == CXX else ()
    for path in (*of_setup, own):
        if _is_fresh(path, source, cxx=cxx):
            return path
    # The sets of the tests are only compared, and the compiler's optimisations are most of its time.
    is_of_tests = source.stem.endswith(tuple(f"_{name}" for name in build_sources.TEST_INSTRUCTION_SETS))
    _run(cxx, *FLAGS, *(["-O1"] if is_of_tests else []), "-c", source, "-o", own)
    return own


def _compiler(path: Path) -> str:
    note = _run("readelf", "-p", ".comment", path)
    for name, pattern in (("clang", r"clang version ([\d.]+)"), ("gcc", r"GCC: \(.*\) ([\d.]+)")):
        if found := re.search(pattern, note):
            return f"{name} {found.group(1)}"
    raise RuntimeError(f"{path} does not say what compiled it:\n{note}")


def symbols(path: Path) -> str:
    """What an object defines: a line for each symbol, of its address, kind and C++ name."""
    return _run("nm", "--demangle", "--defined-only", path)


def build(name: str = "driver", instruction_sets=tuple(build_sources.INSTRUCTION_SETS), cxx: str = CXX) -> Driver:
    """Builds a driver of kernels if it is not up to date. Waits if another process builds it."""
    folder = _folder(cxx)
    folder.mkdir(parents=True, exist_ok=True)
    source, output = HERE / f"{name}.cpp", folder / name
    with open(BUILD / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with ThreadPoolExecutor(2) as pool:
            kernels = list(pool.map(partial(kernel, cxx=cxx), build_sources.cpu_kernels(instruction_sets)))
        if not _is_fresh(output, source, *kernels, cxx=cxx):
            # Symbols are bound at the start, so that the linker's work at a first call is not counted.
            flags = ["-std=c++17", "-O1", "-Wall", "-Wno-psabi", "-Wl,-z,now", *(["-static"] if cxx != CXX else [])]
            _run(cxx, source, *kernels, *flags, "-o", output)
    return Driver(output, _compiler(kernels[0]))


# ---- counting ------------------------------------------------------------------------------------


def run(driver: Driver, cases: tuple[str, ...] = (), edges: int = EDGES) -> Counts:
    """Instructions of the named cases (of all if none is named), always divided by EDGES, the usual number of edges."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "callgrind.out"
        command = ["valgrind", "-q", "--tool=callgrind", "--collect-atstart=no", "--combine-dumps=yes"]
        listing = _run(*command, f"--callgrind-out-file={output}", driver.path, edges, *cases)
        totals = re.findall(r"^totals: (\d+)$", output.read_text(), re.MULTILINE)
    keys = [tuple(line.split("\t")) for line in listing.splitlines()]
    # The last part ran after the last case and has no counts.
    if len(totals) != len(keys) + 1 or not keys:
        raise RuntimeError(f"callgrind counted {len(totals)} parts of {len(keys)} cases")
    return {(case, table): int(total) / EDGES for (table, case), total in zip(keys, totals)}


# ---- what is committed ---------------------------------------------------------------------------


@dataclass
class Committed:
    compiler: str
    counts: Counts


def committed() -> Committed:
    with open(COMMITTED, newline="") as file:
        compiler = file.readline().removeprefix("# ").split(";")[0]
        rows = list(csv.DictReader(file))
    counts = {(row["case"], name): float(row[name]) for row in rows for name in row if name != "case" and row[name]}
    return Committed(compiler, counts)


def commit(found: Counts, compiler: str) -> Path:
    tables = sorted({table for _, table in found})
    with open(COMMITTED, "w", newline="") as file:
        file.write(f"# {compiler}; instructions per edge, {EDGES} edges\n")
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["case", *tables])
        for case in dict.fromkeys(case for case, _ in found):
            writer.writerow([case, *(f"{found[case, name]:.1f}" for name in tables)])
    return COMMITTED


# ---- comparing -----------------------------------------------------------------------------------


@dataclass
class Line:
    case: str
    table: str
    committed: float | None
    found: float | None

    @property
    def ratio(self) -> float | None:
        return self.found / self.committed if self.found and self.committed else None


def side_by_side(found: Counts, expected: Counts) -> list[Line]:
    """Every case of both. Cases of a table that this processor cannot run are left out."""
    tables = {table for _, table in found}
    keys = dict.fromkeys([*found, *(key for key in expected if key[1] in tables)])
    return [Line(*key, expected.get(key), found.get(key)) for key in keys]


def _major(compiler: str) -> str:
    return compiler.split(".")[0]


def differences(found: Counts, compiler: str, expected: Committed) -> list[Line]:
    """The cases that differ from the committed counts.

    With the same compiler, more and fewer instructions are both reported. A faster kernel must be committed too, or its
    speed could be lost unseen. Another compiler has other counts, so only those that are much larger are reported.
    """
    same = _major(compiler) == _major(expected.compiler)
    least, most = (1 - TOLERANCE, 1 + TOLERANCE) if same else (0, 1 + OTHER_COMPILER)
    lines = side_by_side(found, expected.counts)
    return [line for line in lines if line.ratio is None or not least <= line.ratio <= most]


def table(lines: list[Line]) -> str:
    rows = [("case", "table", "committed", "found", "ratio")]
    for line in lines:
        numbers = [
            "-" if value is None else format(value, form)
            for value, form in ((line.committed, ".1f"), (line.found, ".1f"), (line.ratio, ".3f"))
        ]
        rows.append((line.case, line.table, *numbers))
    widths = [max(map(len, column)) for column in zip(*rows)]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows)
