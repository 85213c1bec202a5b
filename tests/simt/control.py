"""The simulator that this process runs on: seeds, device attributes, negative controls, counters. Names are in device.h."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os

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


@contextlib.contextmanager
def setting(**values: int):
    """Settings for the launches inside: setting(seed=3, l2_cache_bytes=4096)."""
    before = {name: get(name) for name in values}
    try:
        for name, value in values.items():
            assert library().simt_set(name.encode(), value), f"there is no setting {name}"
        yield
    finally:
        for name, value in before.items():
            library().simt_set(name.encode(), value)


def dump_coverage() -> None:
    """Writes the line counts of this process. Those of what runs afterwards are lost."""
    library().simt_dump_coverage()
