"""Blocks: rows between layers in a file, a block for each part, which is read and written in one piece."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import torch
from torch import Tensor

from ..graph import Graph


class Part:
    """A part of a partition, and where its rows are in a file of blocks.

    Attributes:
        nodes: (num_own,) int64, the ids of its nodes in the graph.
        graph: its in-edges. Sources are its own nodes, and behind them its ghosts, one owner after another.
        sends: by part that reads them, the places of rows among its own, int64.
        first: the row of the file with which its block starts.
    """

    def __init__(self, part: dict[str, Tensor], first: int) -> None:
        self.first, self.num_own, self.nodes = first, part["nodes"].shape[0], part["nodes"].long()
        self.sends = part["sends"].long().split(part["send_counts"].tolist())
        counts = part["ghost_counts"].long()
        self._ghosts = (self.num_own + counts.cumsum(0) - counts).tolist()
        self.num_src = self.num_own + int(counts.sum())
        self.graph = Graph(self.num_src, self.num_own, csc=(part["indptr"], part["indices"], None))

    def ghosts_of(self, owner: int) -> int:
        """The row of the file with which its ghosts of an owner start."""
        return self.first + self._ghosts[owner]


class Blocks:
    """Rows of one dtype and shape. A part's block has the rows of its own nodes, and copies of its ghosts' rows.

    All reads and writes are of whole runs of a file, as disks like them; ghosts gathered by id would be a page each. What was
    written goes to the disk before much more is written: under a limit of memory the system can then drop pages at once, where it
    would otherwise stall on dirty ones.
    """

    def __init__(self, path: Path, parts: Sequence[Part], shape: Sequence[int], dtype: torch.dtype) -> None:
        self._parts, self.shape, self.dtype = parts, tuple(shape), dtype
        self._row_bytes = torch.Size(shape).numel() * dtype.itemsize
        self._path, self._file = path, path.open("w+b", buffering=0)
        self._file.truncate(sum(part.num_src for part in parts) * self._row_bytes)  # zeros, where nothing is written
        self._syncs, self._sync = ThreadPoolExecutor(1), Future[None]()
        self._sync.set_result(None)

    def close(self) -> None:
        """Removes the file."""
        self._syncs.shutdown()
        self._file.close()
        self._path.unlink()

    def read_ahead(self, part: Part) -> None:
        """Asks the system to read a part's block into its cache, beside what the process does next."""
        size = part.num_src * self._row_bytes
        if size and hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._file.fileno(), part.first * self._row_bytes, size, os.POSIX_FADV_WILLNEED)

    # ---- rows: written by owners, read with ghosts ---------------------------------------------------------------------------

    def read(self, part: Part) -> Tensor:
        """(num_src, *)."""
        return self._read(part.first, part.num_src)

    def read_own(self, part: Part) -> Tensor:
        """(num_own, *)."""
        return self._read(part.first, part.num_own)

    def write_own(self, number: int, rows: Tensor) -> None:
        """rows: (num_own, *) of a part; copies go into the blocks of the parts that read them."""
        part = self._parts[number]
        self._write(part.first, rows)
        for reader, places in zip(self._parts, part.sends):
            if places.numel():
                self._write(reader.ghosts_of(number), rows[places])
        self._start_sync()

    # ---- gradients: written with ghosts, summed by owners --------------------------------------------------------------------

    def write(self, part: Part, rows: Tensor) -> None:
        """rows: (num_src, *)."""
        self._write(part.first, rows)
        self._start_sync()

    def read_sum(self, number: int) -> Tensor:
        """(num_own, *): the sum of all blocks' rows of a part's own nodes, in fp32 or fp64, always in the same order."""
        part = self._parts[number]
        rows = self.read_own(part)
        total = rows.to(torch.promote_types(self.dtype, torch.float32))
        for reader, places in zip(self._parts, part.sends):
            if places.numel():
                piece = self._read(reader.ghosts_of(number), places.shape[0])
                total.index_add_(0, places, piece.to(total.dtype))  # no row twice
        return total

    # ---- the file ------------------------------------------------------------------------------------------------------------

    def _read(self, first: int, count: int) -> Tensor:
        rows = torch.empty(count, *self.shape, dtype=self.dtype)
        if rows.numel():
            self._file.seek(first * self._row_bytes)
            view = rows.view(-1).view(torch.uint8).numpy().data
            while len(view):  # the system reads and writes at most 2 GiB at a time
                count = self._file.readinto(view)
                if not count:
                    raise RuntimeError(f"{self._path} was truncated while a step used it")
                view = view[count:]
        return rows

    def _write(self, first: int, rows: Tensor) -> None:
        if rows.numel():
            self._file.seek(first * self._row_bytes)
            view = rows.contiguous().view(-1).view(torch.uint8).numpy().data
            while len(view):
                view = view[self._file.write(view) :]

    def _start_sync(self) -> None:
        """Beside what the process does next; it waits for the one before."""
        self._sync.result()
        self._sync = self._syncs.submit(os.fsync, self._file.fileno())
