"""The simulator that this process runs on: seeds, device attributes, negative controls, counters. Names are in device.h."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import tempfile
from collections.abc import Callable

from . import build

SIMULATED = bool(os.environ.get("HALFGNN_SIMT"))


@functools.cache
def library() -> ctypes.CDLL:
    """The library that has taken the place of halfgnn/_C.so."""
    loaded = ctypes.CDLL(os.environ["HALFGNN_LIBRARY"])
    loaded.simt_get.restype = ctypes.c_longlong
    loaded.simt_set.argtypes = [ctypes.c_char_p, ctypes.c_longlong]
    return loaded


def get(name: str) -> int:
    return library().simt_get(name.encode())


def put(name: str, value: int) -> None:
    assert library().simt_set(name.encode(), value), f"there is no setting {name}"


@contextlib.contextmanager
def setting(**values: int):
    """Settings for the launches inside: setting(seed=3, l2_cache_bytes=4096)."""
    before = {name: get(name) for name in values}
    try:
        for name, value in values.items():
            put(name, value)
        yield
    finally:
        for name, value in before.items():
            put(name, value)


def launched() -> list[int]:
    """Where in the library the kernels are that have run, as its symbols say it."""
    function = library().simt_launched
    function.restype, function.argtypes = ctypes.c_size_t, [ctypes.c_void_p, ctypes.c_size_t]
    places = (ctypes.c_uint64 * function(None, 0))()
    function(places, len(places))
    return list(places)


def dump_coverage() -> None:
    """Writes the line counts of this process and the kernels that it launched. What runs afterwards is lost."""
    library().simt_dump_coverage()
    (build.LAUNCHED / str(os.getpid())).write_text("".join(f"{place}\n" for place in launched()))


def forked(function: Callable[[], object]) -> tuple[object, str]:
    """What function() returns, as a bool, in a process of its own, and what that writes to its standard error. None instead of
    the value where it raises or a sanitizer ends the process."""
    with tempfile.TemporaryFile() as report:
        child = os.fork()
        if child == 0:
            os.dup2(report.fileno(), 2)
            status = 1
            try:
                status = 0 if function() else 3
            finally:
                os._exit(status)
        _, status = os.waitpid(child, 0)
        report.seek(0)
        return {0: True, 3 << 8: False}.get(status), report.read().decode(errors="replace")
