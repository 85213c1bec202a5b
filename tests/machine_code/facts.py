"""What every kernel of the library was like when its facts were committed: ARCH.csv beside this file, one an architecture."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

from . import rules, tables
from .disassembly import Kernel, loads_in_flight

HERE = Path(__file__).resolve().parent
# Of stack and local memory a rule says that there are none. Loop: of the innermost loops with 16-byte loads, on fast paths.
COLUMNS = ("registers", "shared", "instructions", "loop", "loads")
TOLERANCE = 0.05

Facts = dict[str, dict[str, int]]  # by kernel and column


@dataclass
class Difference:
    kernel: str
    column: str
    committed: int | None
    found: int | None


def of(kernels: list[Kernel]) -> Facts:
    return {kernel.name: _of(kernel) for kernel in kernels}


def _of(kernel: Kernel) -> dict[str, int]:
    facts = {"registers": kernel.registers, "shared": kernel.shared, "instructions": kernel.size}
    if kernel.instructions:
        loop = sum(len(code) for code in kernel.innermost_loops() if loads_in_flight(code))
        facts |= {"loop": loop, "loads": rules.loads_in_flight(kernel)}
    return facts


def path(arch: str) -> Path:
    return HERE / f"{arch}.csv"


def committed(arch: str) -> tuple[str, Facts]:
    """The version of nvcc, and what its kernels are like."""
    with open(path(arch), newline="") as file:
        nvcc = file.readline().removeprefix("# nvcc ").strip()
        rows = list(csv.DictReader(file))
    return nvcc, {row["kernel"]: {name: int(row[name]) for name in COLUMNS if row[name]} for row in rows}


def commit(arch: str, facts: Facts) -> Path:
    with open(path(arch), "w", newline="") as file:
        file.write(f"# nvcc {tables.nvcc_version()}\n")
        writer = csv.DictWriter(file, ["kernel", *COLUMNS], lineterminator="\n")
        writer.writeheader()
        writer.writerows({"kernel": name, **facts[name]} for name in sorted(facts))
    return path(arch)


def differences(found: Facts, expected: Facts) -> list[Difference]:
    """More and fewer alike: what has become better is committed, or it could be lost again unseen."""
    lines = []
    for name in sorted({*found, *expected}):
        here, there = found.get(name, {}), expected.get(name, {})
        for column in COLUMNS:
            new, old = here.get(column), there.get(column)
            if (new is None) != (old is None) or (new is not None and abs(new - old) > TOLERANCE * old):
                lines.append(Difference(name, column, old, new))
    return lines


def report(lines: list[Difference]) -> str:
    rows = []
    for line in lines:
        ratio = f"{line.found / line.committed:.2f}" if line.found and line.committed else "-"
        numbers = ["-" if value is None else str(value) for value in (line.committed, line.found)]
        rows.append([line.kernel, line.column, *numbers, ratio])
    return tables.markdown(["kernel", "", "committed", "found", "ratio"], rows)
