"""The C library's memory: whether freed blocks stay in the process."""

from __future__ import annotations

import ctypes
import mmap
import os
import time

# Parameters of glibc's mallopt, from malloc.h.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_UNLIMITED = -1  # glibc takes it for the largest size
# Up to which glibc itself keeps blocks, once a program has freed such a block. It trims at twice that.
_LIMIT = 32 << 20


def keep_memory(keep: bool = True) -> str:
    """Tells the C library to keep large blocks that are freed, for the next tensors of the process.

    By default glibc gives a freed block of more than 32 MiB back to the system, and the next tensor of that size has fresh pages,
    which the system has to clear one by one. A training step frees and makes its large tensors each time, and in a virtual machine
    its page faults can take longer than its kernels (docs/cpu_kernels.md has figures). The process then stays as large as it was at
    its peak, which may be up to twice of what it is otherwise. This covers all tensors on the CPU that PyTorch makes in the main
    thread, not only those of halfgnn, and blocks of up to 64 MiB of other threads.

    Call it once, before the first step. It sets M_MMAP_THRESHOLD and M_TRIM_THRESHOLD by glibc's mallopt, as the environment
    variables MALLOC_MMAP_THRESHOLD_ and MALLOC_TRIM_THRESHOLD_ do for a whole process. jemalloc and tcmalloc have settings of their
    own.

    Args:
        keep: False: blocks of more than 32 MiB are given back from now on, and what is free now is given back at once.

    Returns:
        What was done, or why nothing was.
    """
    libc = _glibc()
    if isinstance(libc, str):
        return f"Nothing changed: {libc}."
    values = (_UNLIMITED, _UNLIMITED) if keep else (_LIMIT, 2 * _LIMIT)
    for parameter, value in zip((_MMAP_THRESHOLD, _TRIM_THRESHOLD), values):
        if libc.mallopt(parameter, value) != 1:
            return f"Nothing changed: mallopt of {os.confstr('CS_GNU_LIBC_VERSION')} refuses {value}."
    if keep:
        return f"{os.confstr('CS_GNU_LIBC_VERSION')} keeps freed memory in the process."
    libc.malloc_trim(0)
    return f"{os.confstr('CS_GNU_LIBC_VERSION')} gives freed blocks of more than {_LIMIT >> 20} MiB back to the system."


def _glibc() -> ctypes.CDLL | str:
    """glibc if it provides the process's malloc; otherwise why it does not."""
    try:
        process, libc = ctypes.CDLL(None), ctypes.CDLL("libc.so.6")
        own, used = (ctypes.cast(library.malloc, ctypes.c_void_p).value for library in (libc, process))
    except (OSError, AttributeError, TypeError):
        return "the C library is not glibc"
    if not hasattr(libc, "mallopt"):
        return "the C library is not glibc"
    if own != used:
        return "another library than glibc provides malloc (LD_PRELOAD?), and has settings of its own"
    return libc


def seconds_per_fresh_page(pages: int = 4096) -> float:
    """How long the system takes for the first write to a page of memory."""
    with mmap.mmap(-1, pages * mmap.PAGESIZE) as block:
        if hasattr(mmap, "MADV_NOHUGEPAGE"):
            block.madvise(mmap.MADV_NOHUGEPAGE)
        start = time.perf_counter()
        ctypes.memset(ctypes.addressof(ctypes.c_char.from_buffer(block)), 1, pages * mmap.PAGESIZE)
        return (time.perf_counter() - start) / pages
