"""Kernels of a library as programs: their instructions, parsed, and the sizes that a launch needs."""

from __future__ import annotations

import functools
import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from .. import disassembly

ARCH = "sm_90"
PARAMETERS = 0x210  # where they begin in constant bank 0
RESERVED_SHARED = 1024  # bytes of shared memory before a kernel's own


@dataclass(frozen=True)
class Parsed:
    """One instruction. A predicate is P0, !UP1 or None; operands are texts."""

    text: str
    predicate: str | None
    opcode: str
    modifiers: tuple[str, ...]
    operands: tuple[str, ...]


@dataclass
class Program:
    name: str
    instructions: list[Parsed]
    labels: dict[str, int]  # index of the instruction that follows
    parameter_bytes: int
    shared_bytes: int  # static, the reserved ones among them


def parse(text: str) -> Parsed:
    words = text.strip().rstrip(";").strip()
    match = re.match(r"(?:@(!?U?P\w+)\s+)?(\S+)\s*(.*)$", words)
    predicate, opcode, rest = match.groups()
    base, *modifiers = opcode.split(".")
    return Parsed(words, predicate, base, tuple(modifiers), tuple(_split(rest.replace(".reuse", ""))))


def _split(text: str) -> list[str]:
    """At commas outside of brackets; a register before a label has none between (RET.REL.NODEC R4 `(kernel))."""
    parts = re.split(r",(?![^\[(]*[\])])|(?<=\w)\s+(?=`)", text)
    return [part.strip() for part in parts if part.strip()]


def parse_listing(listing: str) -> dict[str, tuple[list[Parsed], dict[str, int]]]:
    """Instructions and labels of each kernel that nvdisasm lists, by mangled name."""
    found: dict[str, tuple[list[Parsed], dict[str, int]]] = {}
    code = labels = None
    for line in listing.splitlines():
        if line.startswith(".text."):
            code, labels = found.setdefault(line[len(".text.") : -1], ([], {}))
        elif code is None:
            continue
        elif match := re.match(r"([.$]\S+):\s*$", line):
            labels[match.group(1)] = len(code)
        elif match := re.match(r"\s+/\*[0-9a-f]+\*/\s+(.*?)\s*;", line):
            code.append(parse(match.group(1)))
    return found


class Library:
    """The kernels of a library, an object, a cubin or a folder of cubins; each is disassembled when it is first asked for."""

    def __init__(self, path):
        self.path = Path(path)
        self.is_part = self.path.suffix == ".cubin" or self.path.is_dir()  # of the kernels of a library
        self._folder = tempfile.TemporaryDirectory()
        if self.is_part:
            self._cubins = sorted(self.path.glob("*.cubin")) if self.path.is_dir() else [self.path]
        else:
            command = [disassembly.find_tool("cuobjdump"), "-arch", ARCH, "-xelf", "all", str(self.path.resolve())]
            subprocess.run(command, cwd=self._folder.name, capture_output=True, check=True)
            self._cubins = sorted(Path(self._folder.name).glob("*.cubin"))
        self._programs: dict[str, Program] = {}

    @functools.cached_property
    def _places(self) -> dict[str, tuple[Path, str, str, dict[str, int]]]:
        """Of each kernel, by its short name: its cubin, the index of its symbol, its mangled name, sizes of sections."""
        found = []
        for cubin in self._cubins:
            text = subprocess.run(
                ["readelf", "--symbols", "--sections", "--wide", str(cubin)], capture_output=True, text=True, check=True
            ).stdout
            # [number] name type address offset size
            sections = re.findall(
                r"^\s+\[\s*\d+\] (\.\S+)\s+\S+\s+[0-9a-f]+\s+[0-9a-f]+\s+([0-9a-f]+)", text, re.MULTILINE
            )
            sizes = {name: int(size, 16) for name, size in sections}
            for index, name in re.findall(r"^\s+(\d+): .*\bFUNC\b.*\s(\S+)$", text, re.MULTILINE):
                if f".nv.constant0.{name}" in sizes:
                    found.append((cubin, index, name, sizes))
        return dict(zip(disassembly.demangle([name for _, _, name, _ in found]), found))

    def names(self) -> list[str]:
        return sorted(self._places)

    def program(self, name: str) -> Program:
        """name: as disassembly.Kernel has it, without namespaces and parameters."""
        if name not in self._programs:
            if name not in self._places:
                raise KeyError(f"{self.path} has no {ARCH} machine code of {name}")
            cubin, index, mangled, sizes = self._places[name]
            command = [disassembly.find_tool("nvdisasm"), "-c", "-ndf", "-fun", index, str(cubin)]
            listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            code, labels = parse_listing(listing)[mangled]
            parameters = sizes[f".nv.constant0.{mangled}"] - PARAMETERS
            shared = RESERVED_SHARED + sizes.get(f".nv.shared.{mangled}", 0)
            self._programs[name] = Program(name, code, labels, parameters, shared)
        return self._programs[name]
