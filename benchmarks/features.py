"""Gathers of rows of features: codes of 8 bits, converted to fp16, beside rows of fp16.

    python -m benchmarks features --threads 1 2 --out out/cpu

The types take turns, gather by gather, and the fastest gather of each counts: on a machine that others use, the rest is their
time. Rows are random, results are as large as a batch's, so that nothing stays in a cache. With --file the rows lie in a file,
whose pages are dropped from the cache of the system before each gather.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from halfgnn.dataloading import FeatureStore
from halfgnn.dataloading.quantized_files import QuantizationError, files_of, write
from halfgnn.dataloading.scales import Scales

from . import records, rows
from .cells import markdown, number
from .optional import set_threads

KEPT = "features.csv"
TYPES = {
    "fp16": torch.float16,
    "uint8": torch.uint8,
    "int8": torch.int8,
    "e4m3": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
}
PER = ("row", "column", "tensor")


@dataclass(frozen=True)
class FeatureRow:
    """Times are in milliseconds per gather."""

    place: str  # memory, or a file whose pages are not cached
    stored: str
    scale: str  # what has one: row, column or tensor; empty of fp16
    num_rows: int
    width: int
    ids: int
    threads: int  # of PyTorch; files have threads of their own
    ms: float  # the fastest
    ms_fp16: float  # of fp16's rows, in the same run
    mbytes: float  # read for each gather, scales included
    repeats: int
    date: str = ""
    commit: str = ""
    cpu: str = ""
    kernels: str = ""
    torch: str = ""
    command: str = ""


def _codes(dtype: torch.dtype, num_rows: int, width: int) -> Tensor:
    """Random rows: of fp16 numbers, or of codes without nan."""
    if dtype == torch.float16:
        data = torch.empty(num_rows, width, dtype=torch.int16).random_(0x3C00)
    else:
        data = torch.empty(num_rows, width, dtype=torch.uint8).random_(0x78)
    return data.view(dtype)


def _scale(per: str, num_rows: int, width: int) -> Tensor:
    return torch.rand({"row": (num_rows, 1), "column": (width,), "tensor": ()}[per])


def _kinds() -> Iterator[tuple[str, str]]:
    yield "fp16", ""
    for name in list(TYPES)[1:]:
        for per in PER:
            yield name, per


def _in_memory(num_rows: int, width: int) -> dict[tuple[str, str], Callable[[], FeatureStore]]:
    tables = {name: _codes(dtype, num_rows, width) for name, dtype in TYPES.items() if name in ("fp16", "uint8")}
    stores = {("fp16", ""): FeatureStore(tables["fp16"])}
    for name, per in list(_kinds())[1:]:
        scale = _scale(per, num_rows, width)
        zero = torch.full(scale.shape, 100.0) if name == "uint8" else None
        stores[name, per] = FeatureStore(tables["uint8"].view(TYPES[name]), scale=scale, zero_point=zero)
    return {kind: lambda store=store: store for kind, store in stores.items()}  # type: ignore[misc]


def _in_files(folder: Path, num_rows: int, width: int) -> dict[tuple[str, str], Callable[[], FeatureStore]]:
    """Opened again for each gather: pages that are mapped stay cached."""
    made: dict[tuple[str, str], Callable[[], FeatureStore]] = {}
    for name, per in (("fp16", ""), ("uint8", "row"), ("e4m3", "tensor")):
        path = folder / f"{name}.npy"
        data = _codes(TYPES[name], num_rows, width)
        if name == "fp16":
            np.save(path, data.numpy())
        else:
            np.save(files_of(path)["partial codes"], data.view(torch.uint8).numpy())
            scale = _scale(per, num_rows, width)
            zero = torch.full(scale.shape, 100.0) if name == "uint8" else None
            nothing = QuantizationError(0.0, 0.0, (), ())
            write(path, TYPES[name], (num_rows, width), Scales.unchecked(scale, zero), nothing)
        del data
        made[name, per] = lambda path=path: _uncached(path)  # type: ignore[misc]
    return made


def _uncached(path: Path) -> FeatureStore:
    """A store of the file, of which no page is in memory."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return FeatureStore.open(path)


def _times(stores: dict[tuple[str, str], Callable[[], FeatureStore]], ids: Tensor, width: int, repeats: int):
    """Of each kind: the fastest gather, in seconds, and the bytes that it reads."""
    out = torch.zeros(len(ids), width, dtype=torch.float16)
    seconds = dict.fromkeys(stores, float("inf"))
    num_bytes = dict.fromkeys(stores, 0)
    for repeat in range(repeats + 1):  # the first is not counted
        for kind, opened in stores.items():
            store = opened()
            start = time.perf_counter()
            store.gather(ids, out)
            passed = time.perf_counter() - start
            seconds[kind] = min(seconds[kind], passed) if repeat else seconds[kind]
            by_row = 0 if kind[1] != "row" else 4 if store.zero_point is None else 8
            num_bytes[kind] = len(ids) * (width * store.data.element_size() + by_row)
    return seconds, num_bytes


def measure(options: argparse.Namespace, folder: Path, source: dict[str, str]) -> list[FeatureRow]:
    torch.manual_seed(0)
    ids = torch.randint(options.rows, (options.ids,))
    stores = _in_files(folder, options.rows, options.width) if options.file else _in_memory(options.rows, options.width)
    found = []
    for count in options.threads:
        set_threads(count)
        seconds, num_bytes = _times(stores, ids, options.width, options.repeats)
        for (stored, scale), time_ in seconds.items():
            found.append(
                FeatureRow(
                    "file" if options.file else "memory", stored, scale, options.rows, options.width, options.ids, count,
                    time_ * 1e3, seconds["fp16", ""] * 1e3, num_bytes[stored, scale] / 1e6, options.repeats, **source,
                )
            )  # fmt: skip
    return found


def render(found: list[FeatureRow]) -> str:
    """The markdown table: a line for each place, number of threads and type."""
    header = ["rows in", "gathered", "threads", "stored as", "scale per", "ms", "of fp16's time", "read, MB"]
    lines = []
    for row in found:
        ratio = "1" if row.stored == "fp16" else f"{row.ms / row.ms_fp16:.2f}"
        lines.append(
            [
                row.place,
                f"{row.ids:,}",
                str(row.threads),
                row.stored,
                row.scale,
                number(row.ms),
                ratio,
                f"{row.mbytes:.1f}",
            ]
        )
    return markdown(header, lines, 5) + "\n"


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--rows", type=int, default=1_000_000)
    add("--width", type=int, default=768)
    add("--ids", type=int, default=100_000, help="rows of a gather")
    add("--threads", type=int, nargs="+", default=[1, 2])
    add("--repeats", type=int, default=15, help="gathers that are timed")
    add("--file", action="store_true", help="rows in files, which are written first; without the system's cache")
    add("--folder", type=Path, help="for the files; by default a temporary one")
    add("--out", type=Path, metavar="FOLDER", help=f"append the rows to FOLDER/{KEPT}")


def run(options: argparse.Namespace) -> int:
    """Prints the table."""
    arguments = f"--rows {options.rows} --width {options.width} --ids {options.ids} --threads "
    arguments += " ".join(map(str, options.threads)) + (" --file" if options.file else "")
    kept = {"date", "commit", "cpu", "kernels", "torch"}
    source = {name: text for name, text in rows.provenance([]).items() if name in kept}
    source["command"] = f"python -m benchmarks features {arguments}"
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        found = measure(options, Path(folder), source)
    found = [records.as_kept(row) for row in found]
    print(render(found), flush=True)
    if options.out is not None:
        records.append(options.out / KEPT, FeatureRow, found)
    return 0
