"""Budgets of kernels: the registers, shared memory and instructions that each of them had when they were committed.
ARCH.csv beside this file has those of an architecture, made by one version of nvcc. Another version is not compared."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

from . import rules, tables
from .disassembly import Kernel, loads_in_flight
from .tables import Kernels

HERE = Path(__file__).resolve().parent
# Of stack and local memory a rule says that there are none. Loop: of the innermost loops with 16-byte loads, on fast paths.
COLUMNS = ("registers", "shared", "instructions", "loop", "loads")
TOLERANCE = 0.05

Budgets = dict[str, dict[str, int]]  # by kernel and column


@dataclass
class Difference:
    kernel: str
    column: str
    committed: int | None
    found: int | None


def of(kernels: list[Kernel]) -> Budgets:
    return {kernel.name: _of(kernel) for kernel in kernels}


def _of(kernel: Kernel) -> dict[str, int]:
    budget = {"registers": kernel.registers, "shared": kernel.shared, "instructions": kernel.size}
    if kernel.instructions:
        loop = sum(len(code) for code in kernel.innermost_loops() if loads_in_flight(code))
        budget |= {"loop": loop, "loads": rules.loads_in_flight(kernel)}
    return budget


def path(arch: str) -> Path:
    return HERE / f"{arch}.csv"


def committed(arch: str) -> tuple[str, Budgets]:
    """The version of nvcc, and what its kernels are like."""
    with open(path(arch), newline="") as file:
        nvcc = file.readline().removeprefix("# nvcc ").strip()
        rows = list(csv.DictReader(file))
    return nvcc, {row["kernel"]: {name: int(row[name]) for name in COLUMNS if row[name]} for row in rows}


def commit(arch: str, budgets: Budgets) -> Path:
    with open(path(arch), "w", newline="") as file:
        file.write(f"# nvcc {tables.nvcc_version()}\n")
        writer = csv.DictWriter(file, ["kernel", *COLUMNS], lineterminator="\n")
        writer.writeheader()
        writer.writerows({"kernel": name, **budgets[name]} for name in sorted(budgets))
    return path(arch)


def differences(found: Budgets, expected: Budgets) -> list[Difference]:
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


def check(kernels: Kernels) -> list[str]:
    """What differs from the committed budgets and from the tables of the document; nothing where another nvcc made them."""
    here, found = tables.nvcc_version(), []
    for arch in kernels:
        nvcc, expected = committed(arch)
        if nvcc != here:
            print(f"{arch}: not compared, because the budgets are of nvcc {nvcc} and the toolkit at hand is {here}")
            continue
        lines = differences(of(kernels[arch]), expected)
        print(f"{arch}: {len(kernels[arch])} kernels, {len(lines)} differences")
        if lines:
            found.append(report(lines))
    section = tables.written()
    if section is None:
        found.append(f"{tables.DOCUMENT} has no tables")
    elif section.group(1) == here and tables.columns_of(section.group(), kernels) != tables.section(kernels):
        found.append(f"the tables of {tables.DOCUMENT} are not those of the library")
    return found
