"""Launches of the simulator (laboratory/simt), recorded, or executed as compiled machine code in place of the simulated kernels.

The simulator supplies memory, parameters and the shape of a launch, as the launchers of csrc/cuda chose it.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from laboratory.simt import control

from . import disassembly
from .emulator import Call, Counts, Library, run


def why_not(library) -> str | None:
    """Why the machine code of a library cannot be executed on the simulator's launches; None if nothing speaks against it.

    Both must be of the same sources: otherwise parameters would be taken for others.
    """
    library = Path(library)
    if missing := disassembly.missing_tools():
        return f"not found: {', '.join(missing)}"
    if not library.exists():
        return f"{library} is not built"
    if library.is_dir() or library.suffix == ".cubin":
        return None  # somebody develops kernels
    if "sm_90" not in disassembly.architectures(library):
        return f"{library} has no machine code for sm_90"
    sources = disassembly.ROOT / "csrc"
    newer = [path for path in sources.rglob("*") if path.stat().st_mtime > library.stat().st_mtime and path.is_file()]
    return f"{library} is older than {newer[0].relative_to(disassembly.ROOT)}" if newer else None


class _Launch(ctypes.Structure):
    """simt::Launch of laboratory/simt/device.h."""

    _fields_ = (
        ("kernel", ctypes.c_char_p),
        ("parameters", ctypes.c_void_p),
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("shared_bytes", ctypes.c_uint64),
    )


@dataclass(frozen=True)
class Launch:
    kernel: str  # as disassembly.Kernel has it
    parameters: int  # address; valid until the launch returns
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int

    def call(self, library: Library) -> Call:
        program = library.program(self.kernel)
        parameters = ctypes.string_at(self.parameters, program.parameter_bytes)
        return Call(program, self.grid, self.block, self.shared_bytes, parameters)


@contextlib.contextmanager
def hooked(function: Callable[[Launch], bool]) -> Iterator[None]:
    """Calls function(launch) for each launch inside. What it returns says whether it ran the kernel. What it raises is raised
    when the context ends."""
    errors: list[BaseException] = []

    def on_launch(pointer) -> int:
        if errors:
            return 1
        found = pointer.contents
        name = disassembly.demangle([found.kernel.decode()])[0]
        launch = Launch(name, found.parameters, tuple(found.grid), tuple(found.block), found.shared_bytes)
        try:
            return int(function(launch))
        except BaseException as error:  # it may not pass through the simulator
            errors.append(error)
            return 1

    callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_Launch))(on_launch)
    set_hook = control.library().simt_on_launch
    set_hook.argtypes = [ctypes.c_void_p]
    set_hook(ctypes.cast(callback, ctypes.c_void_p))
    try:
        yield
    finally:
        set_hook(None)
        if errors:  # before what is raised because a kernel did not run
            raise errors[0]


@contextlib.contextmanager
def recorded() -> Iterator[list[Launch]]:
    """The launches inside, which the simulator runs."""
    found: list[Launch] = []

    def keep(launch: Launch) -> bool:
        found.append(launch)
        return False

    with hooked(keep):
        yield found


@contextlib.contextmanager
def executed(library: Library) -> Iterator[list[Counts]]:
    """Executes the machine code of every launch inside."""
    found: list[Counts] = []

    def execute(launch: Launch) -> bool:
        found.append(run(launch.call(library)))
        return True

    with hooked(execute):
        yield found
