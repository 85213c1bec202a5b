"""Files of arrays: opened and made as memory maps, made once by one of several processes, unpickled safely."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from datasets import DataError


def open_npy(path: Path, dtypes: tuple, shape: tuple[int | None, ...], mode: str = "r") -> np.ndarray:
    """A .npy file as a memory map. It must have one of these dtypes and this shape, in which None is any number. mode:
    "r", or "c" for copy-on-write."""
    sizes = ", ".join("any" if size is None else str(size) for size in shape)
    expected = f"expected {' or '.join(np.dtype(dtype).name for dtype in dtypes)} of shape ({sizes})"
    try:
        array = np.lib.format.open_memmap(path, mode=mode)
    except FileNotFoundError as error:
        raise DataError(f"{path} is missing; {expected}") from error
    except (ValueError, EOFError, OSError) as error:
        size = f"{path.stat().st_size} bytes" if path.is_file() else "no file"
        raise DataError(f"{path} ({size}) cannot be memory-mapped as .npy: {error}; {expected}") from error
    fits = len(array.shape) == len(shape) and all(size in (None, found) for size, found in zip(shape, array.shape))
    if array.dtype not in [np.dtype(dtype) for dtype in dtypes] or not fits:
        raise DataError(f"{path} holds {array.dtype} of shape {array.shape}; {expected}")
    return array


def create_npy(path: Path, dtype, shape: tuple[int, ...]) -> np.ndarray:
    """A new .npy file as a memory map to be written. Its space on the disk is allocated now, because a disk that fills
    up while a map is written ends the process."""
    path.parent.mkdir(parents=True, exist_ok=True)
    array = np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape)
    with path.open("r+b") as file:
        os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
    return array


def open_made(path: Path, dtype, shape: tuple[int | None, ...], mode: str = "r") -> np.ndarray:
    """Opens a file that was made from other files."""
    try:
        return open_npy(path, (dtype,), shape, mode)
    except DataError as error:
        raise DataError(f"{error}. It was made from the other files: delete it to make it again") from error


def make_once(target: Path, write: Callable[[Path], None]) -> None:
    """Calls write(partial) to make a file or directory beside `target`, and renames it to `target` when it is complete.
    Does nothing if `target` exists. Removes what an interrupted run left. If there are several processes, one writes
    and the others wait.

    Raises DataError if nothing can be written.
    """
    if target.exists():
        return
    partial, lock = (target.with_name(f".{target.name}.{end}") for end in ("partial", "lock"))
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with lock.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # the system releases it when the process ends, for any reason
            if target.exists():
                return
            _remove(partial)
            try:
                write(partial)
                partial.replace(target)
            except BaseException:
                _remove(partial)
                raise
            lock.unlink()  # a process that still waits for it will find the target
    except OSError as error:
        raise DataError(
            f"{target} could not be made ({error}). Data in a read-only directory can be used through a directory of symbolic links"
            " to its files (cp -rs)"
        ) from error


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def load_pickle(path: Path) -> dict:
    """Reads a dictionary of numbers, arrays and tensors that torch.save wrote. Nothing else is unpickled."""
    rebuild, scalar = np.empty(0).__reduce__()[0], np.int64(0).__reduce__()[0]
    encode = _named(lambda text, _: text.encode("latin1"), "_codecs", "encode")  # bytes, as pickle writes them
    allowed = [encode, bytes, np.ndarray, np.dtype, *(type(np.dtype(kind)) for kind in "bhilqBHILQfde")]
    for module in ("numpy.core.multiarray", "numpy._core.multiarray"):  # NumPy 1, which wrote ogb's files, and NumPy 2
        allowed += [_named(rebuild, module, "_reconstruct"), _named(scalar, module, "scalar")]
    try:
        with _safe_globals(allowed):
            found = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        raise DataError(f"{path} is missing; expected a dictionary written by torch.save") from error
    except Exception as error:  # torch.load raises anything from UnpicklingError to RuntimeError
        # The message also has advice, such as to switch the check off. Only the reason is kept.
        reason = str(error).rpartition("WeightsUnpickler error:")[2].strip().partition("\n")[0].partition(". ")[0][:200]
        raise DataError(
            f"{path} could not be read ({type(error).__name__}: {reason}); expected a dictionary written by torch.save"
        ) from error
    if not isinstance(found, dict):
        raise DataError(f"{path} holds a {type(found).__name__}; expected a dictionary")
    return found


def _named(function: Callable, module: str, name: str) -> Callable:
    """The function under the name by which torch.load finds it. Older versions of torch do not take pairs (function,
    name)."""

    def call(*args):
        return function(*args)

    call.__module__, call.__name__, call.__qualname__ = module, name, name
    return call


@contextlib.contextmanager
def _safe_globals(allowed: list) -> Iterator[None]:
    """torch.serialization.safe_globals, which torch 2.4 lacks."""
    before = list(torch.serialization.get_safe_globals())
    torch.serialization.add_safe_globals(allowed)
    try:
        yield
    finally:
        torch.serialization.clear_safe_globals()
        torch.serialization.add_safe_globals(before)
