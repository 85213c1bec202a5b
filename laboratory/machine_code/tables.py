"""The tables of docs/machine_code.md: what the kernels of a library use, its architectures side by side."""

from __future__ import annotations

import itertools
import re
import subprocess
from collections.abc import Iterable
from pathlib import Path

from . import disassembly, rules
from .disassembly import Kernel

ARCHS = ("sm_90", "sm_80")
TYPES = ("__half", "__nv_bfloat16", "float")
DOCUMENT = disassembly.ROOT / "docs" / "machine_code.md"
BEGIN, END = "<!-- machine code: begin, nvcc {} -->", "<!-- machine code: end -->"
Kernels = dict[str, list[Kernel]]  # by architecture


def nvcc_version() -> str | None:
    """13.0.88 and the like, of the toolkit at hand."""
    home = disassembly.toolkit()
    if home is None:
        return None
    told = subprocess.run([f"{home}/bin/nvcc", "--version"], capture_output=True, text=True, check=True).stdout
    return re.search(r"\bV(\d+\.\d+\.\d+)", told).group(1)


def read(library) -> Kernels:
    """Of each of ARCHS that the library has code for; at least one."""
    built = disassembly.architectures(library)
    wanted = [arch for arch in ARCHS if arch in built]
    if not wanted:
        raise ValueError(f"{library} has code for {', '.join(built) or 'no GPU'}; expected {' or '.join(ARCHS)}")
    return {arch: disassembly.read_library(library, arch, rules.min_loads) for arch in wanted}


def markdown(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _span(values: list[int]) -> str:
    return str(values[0]) if min(values) == max(values) else f"{min(values)}-{max(values)}"


def families(kernels: Kernels) -> str:
    """A row for each kernel: how many instantiations, and their registers."""
    rows = []
    first = next(iter(kernels.values()))
    for family in sorted({rules.family(kernel.name) for kernel in first}):
        of_family = [[k for k in of_arch if rules.family(k.name) == family] for of_arch in kernels.values()]
        registers = [_span([k.registers for k in of_arch]) for of_arch in of_family]
        rows.append([f"`{family}`", str(len(of_family[0])), *registers])
    return markdown(["kernel", "instantiations", *(f"{arch}: registers" for arch in kernels)], rows)


def fast_paths(kernels: Kernels, of_type: str = "") -> str:
    """A row for each kernel on a fast path, or those of one element type."""
    rows = []
    by_name = [{kernel.name: kernel for kernel in of_arch} for of_arch in kernels.values()]
    for name in sorted(by_name[0]):
        arguments = [a for a in re.findall(r"\w+", name.partition("<")[2]) if not a.endswith("Config")]
        types = [a for a in arguments if a in TYPES]
        if not rules.min_loads(name) or (of_type and types and types[0] != of_type):
            continue
        row = [f"`{rules.family(name)}`", ", ".join(a.strip("_") for a in arguments)]
        for of_arch in by_name:
            kernel = of_arch[name]
            row += [str(kernel.registers), str(rules.warps(kernel)), str(rules.loads_in_flight(kernel))]
            row.append(f"{rules.bytes_in_flight(kernel) / 1024:.0f}")
        rows.append(row)
    columns = [text for arch in kernels for text in (f"{arch}: registers", "warps", "loads", "KiB")]
    return markdown(["kernel", "template arguments", *columns], rows)


def section(kernels: Kernels) -> str:
    """What stands in the document, markers included."""
    parts = [BEGIN.format(nvcc_version()), families(kernels), fast_paths(kernels, "__half"), END]
    return "\n\n".join(parts)


def written() -> re.Match | None:
    """The section as the document has it; its group is the version of nvcc."""
    pattern = re.escape(BEGIN).replace(re.escape("{}"), r"(\S+)") + ".*?" + re.escape(END)
    return re.search(pattern, DOCUMENT.read_text(), re.DOTALL) if DOCUMENT.exists() else None


def columns_of(text: str, archs: Iterable[str]) -> str:
    """Tables without the columns of other architectures: those from one that names one of them up to the next name."""
    lines = []
    kept: list[bool] = []
    for line in text.splitlines():
        cells = line.strip("| ").split(" | ")
        if not line.startswith("| "):
            kept = []
        elif not kept:
            keep = True
            for cell in cells:
                arch = re.match(r"sm_\w+(?=:)", cell)
                keep = arch.group() in archs if arch else keep
                kept.append(keep)
        lines.append(f"| {' | '.join(itertools.compress(cells, kept))} |" if kept else line)
    return "\n".join(lines)


def update(kernels: Kernels) -> Path:
    if set(kernels) != set(ARCHS):
        raise ValueError(f"the tables are of {' and '.join(ARCHS)}; the library has {' and '.join(kernels)} alone")
    found = written()
    if found is None:
        raise ValueError(f"{DOCUMENT} has no markers")
    text = DOCUMENT.read_text()
    DOCUMENT.write_text(text[: found.start()] + section(kernels) + text[found.end() :])
    return DOCUMENT
