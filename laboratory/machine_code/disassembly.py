"""Kernels as machine code: extracts them from an object or a library, reads what they use and their instructions.

Needs cuobjdump and nvdisasm, which come with CUDA toolkits and, as packages of their own, from PyPI; and readelf and c++filt,
which come with g++.
"""

from __future__ import annotations

import concurrent.futures
import glob
import importlib.util
import itertools
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from . import flow
from .flow import Instruction

ROOT = Path(__file__).resolve().parents[2]
YARDSTICKS = Path("benchmarks", "yardsticks", "_yardsticks.so")  # setup.py builds it beside halfgnn/_C.so
INSTRUCTION_BYTES = 16  # from sm_70 on


def toolkit() -> str | None:
    """Root of the CUDA toolkit that the library is built with."""
    sys.path.insert(0, str(ROOT))
    import cuda_toolkit

    return cuda_toolkit.find_cuda_home()


def find_tool(name: str) -> str | None:
    """Path of a program of the CUDA toolkit: of the toolkit at hand, on PATH, or from PyPI."""
    home = toolkit()
    spec = importlib.util.find_spec("nvidia")
    places = list(spec.submodule_search_locations) if spec else []
    pypi = [path for place in places for path in sorted(glob.glob(f"{place}/cu*/bin/{name}"), reverse=True)]
    candidates = [os.path.join(home, "bin", name) if home else None, shutil.which(name), *pypi]
    return next((path for path in candidates if path and os.access(path, os.X_OK)), None)


def missing_tools() -> list[str]:
    return [name for name in ("cuobjdump", "nvdisasm", "readelf", "c++filt") if find_tool(name) is None]


def _run(*command) -> str:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{command[0]} failed: {done.stderr.strip()}")
    return done.stdout


@dataclass
class Kernel:
    name: str  # demangled, without namespaces and parameters
    arch: str
    registers: int
    stack: int  # bytes, spills among them
    local: int
    shared: int
    size: int  # instructions, padding among them
    instructions: list[Instruction] = field(default_factory=list)  # empty where they were not wanted
    labels: dict[str, int] = field(default_factory=dict)  # index of the instruction that follows

    def count(self, pattern: str) -> int:
        return sum(bool(re.match(pattern, i.opcode)) for i in self.instructions)

    def innermost_loops(self) -> list[list[Instruction]]:
        return [[self.instructions[i] for i in loop] for loop in flow.innermost_loops(self.instructions, self.labels)]

    def straight_runs(self) -> list[list[Instruction]]:
        return [[self.instructions[i] for i in run] for run in flow.straight_runs(self.instructions, self.labels)]

    def loads_in_flight(self) -> list[int]:
        """Of each innermost loop with 16-byte loads: how many it has issued before it needs the first of them."""
        return sorted(filter(None, map(loads_in_flight, self.innermost_loops())))


def loads_in_flight(code: list[Instruction]) -> int:
    """Reads the code in order, as if no forward branch was taken: the full batch of an unrolled loop. Of copies to shared memory
    those before the first branch count, and as many of each group for which the loop does not wait."""
    copies = [i for i in itertools.takewhile(lambda i: i.opcode != "BRA", code) if _is_copy(i)]
    if copies:
        left = [int(i.text.split(",")[1], 16) for i in code if i.opcode == "DEPBAR.LE"]
        return len(copies) * (min(left, default=0) + 1)
    waiting: list[set[int]] = []  # registers that a load will write
    most = 0
    for instruction in code:
        if is_wide_load(instruction):
            operands = instruction.text.split(instruction.opcode, 1)[1]
            first = int(re.search(r"\bR(\d+)", operands).group(1))
            waiting = [load for load in waiting if not load & _registers(operands.split(",", 1)[1])]
            waiting.append(set(range(first, first + 4)))
            most = max(most, len(waiting))
        else:
            used = _registers(instruction.text)
            waiting = [load for load in waiting if not load & used]
    return most


def is_wide_load(i: Instruction) -> bool:
    """Of 16 bytes of global memory."""
    return i.opcode.startswith(("LDG.E", "LD.E")) and ".128" in i.opcode


def _is_copy(i: Instruction) -> bool:
    """Of 16 bytes of every lane."""
    return i.opcode.startswith("LDGSTS.") and i.opcode.endswith(".128") and not i.text.startswith("@")


def _registers(text: str) -> set[int]:
    found = set()
    for number, wide in re.findall(r"\bR(\d+)(\.64)?", text):
        found |= {int(number), int(number) + 1} if wide else {int(number)}
    return found


# ---- reading -------------------------------------------------------------------------------------


def demangle(names: list[str]) -> list[str]:
    if not names:
        return []
    plain = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True).stdout
    return [_short(name) for name in plain.splitlines()]


def _short(name: str) -> str:
    name = re.sub(r"halfgnn::cuda::|\(anonymous namespace\)::|_GLOBAL__N__\w+::|^void ", "", name)
    name = re.sub(r"\((\w+)\)(\d)", r"\2", name)  # (Weighting)1
    return re.sub(r"\([^()]*\)$", "", name).replace("> >", ">>")


def architectures(path) -> list[str]:
    """sm_80 and the like, for which the file has machine code."""
    return sorted(set(re.findall(r"\.(sm_\d+a?)\.cubin", _run(find_tool("cuobjdump"), "--list-elf", path))))


def read_kernels(path, arch: str, wanted: Callable[[str], bool] = lambda name: True) -> list[Kernel]:
    """All kernels of an object or a library for one architecture; instructions of those that are wanted, by name."""
    with tempfile.TemporaryDirectory() as folder:
        command = [find_tool("cuobjdump"), "-arch", arch, "-xelf", "all", os.path.abspath(path)]
        subprocess.run(command, cwd=folder, capture_output=True, check=True)
        cubins = sorted(Path(folder).glob("*.cubin"), key=lambda cubin: -cubin.stat().st_size)
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            found = [
                kernel
                for kernels in pool.map(lambda cubin: _read_cubin(cubin, arch, wanted), cubins)
                for kernel in kernels
            ]
    return sorted(found, key=lambda kernel: kernel.name)


def read_library(path, arch: str, wanted: Callable[[str], bool] = lambda name: True) -> list[Kernel]:
    """All kernels of a build: those of its library, and of the benchmarks' yardsticks."""
    yardsticks = Path(path).resolve().parents[1] / YARDSTICKS
    if not yardsticks.is_file():
        raise RuntimeError(f"{yardsticks} is missing: python setup.py build_ext --inplace")
    kernels = [kernel for file in (path, yardsticks) for kernel in read_kernels(file, arch, wanted)]
    return sorted(kernels, key=lambda kernel: kernel.name)


def _read_cubin(path: Path, arch: str, wanted) -> list[Kernel]:
    usage = _run(find_tool("cuobjdump"), "-res-usage", path)
    found = re.findall(r"Function (\S+):\s*\n\s*(REG:.*)", usage)
    listing = _run("readelf", "--symbols", "--wide", path)
    # Number, value, size, type, ..., name.
    fields = [line.replace(":", "", 1).split() for line in listing.splitlines() if " FUNC " in line]
    symbols = {of_symbol[-1]: (of_symbol[0], of_symbol[2]) for of_symbol in fields}
    kernels = {}
    for (mangled, numbers), name in zip(found, demangle([mangled for mangled, _ in found])):
        used = {key: int(value) for key, value in re.findall(r"([A-Z]+(?:\[\d+\])?):(\d+)", numbers)}
        size = int(symbols[mangled][1], 0) // INSTRUCTION_BYTES
        kernels[mangled] = Kernel(name, arch, used["REG"], used["STACK"], used["LOCAL"], used["SHARED"], size)
    indices = [symbols[mangled][0] for mangled, kernel in kernels.items() if wanted(kernel.name)]
    if indices:
        _read_instructions(_run(find_tool("nvdisasm"), "-c", "-ndf", "-fun", ",".join(indices), path), kernels)
    return list(kernels.values())


def _read_instructions(listing: str, kernels: dict[str, Kernel]) -> None:
    kernel = None
    for line in listing.splitlines():
        if line.startswith(".text."):
            kernel = kernels.get(line[len(".text.") : -1])
        elif kernel is None:
            continue
        elif match := re.match(r"(\.L\w+):", line):
            kernel.labels[match.group(1)] = len(kernel.instructions)
        elif match := re.match(r"\s+/\*[0-9a-f]+\*/\s+(.*?)\s*;", line):
            text = match.group(1)
            opcode = re.sub(r"^@!?U?P\w+\s+", "", text).split()[0]
            target = re.search(r"\((\.L\w+)\)", text)
            kernel.instructions.append(Instruction(text, opcode, target.group(1) if target else None))
