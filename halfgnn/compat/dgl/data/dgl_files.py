"""Files of graphs that DGL has written, of its second version (since DGL 0.5)."""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from ..base import DGLError
from ..frame import Frame
from ..heterograph import DGLGraph
from ..topology import MetaGraph, Relation, Topology

T = TypeVar("T")

# Numbers that begin a file and its parts.
_FILE = 0xDD2E4FF046B4A13F
_HETEROGRAPH = 0xDD589FBE35224ABF
_METAGRAPH = 0xDD3C5FFE20046ABF
_RELATION = 0xDD2E60F0F6B4A127
_COO = 0xDD61FFD305DFF127
_CSR = 0xDD6CD31205DFF127
_TENSOR = 0xDD5E40F096B4A13F

_FIRST_PART = 4096  # where the labels begin
_DTYPES = {  # by kind and bits
    (0, 8): torch.int8,
    (0, 16): torch.int16,
    (0, 32): torch.int32,
    (0, 64): torch.int64,
    (1, 8): torch.uint8,
    (1, 1): torch.bool,
    (2, 16): torch.float16,
    (2, 32): torch.float32,
    (2, 64): torch.float64,
    (4, 16): torch.bfloat16,
    (6, 8): torch.bool,
}


def is_dgl_file(path: str) -> bool:
    """Whether a file begins as DGL's do."""
    with open(path, "rb") as file:
        return file.read(8) == struct.pack("<Q", _FILE)


def read_dgl_file(path: str) -> tuple[list[DGLGraph], dict[str, Tensor]]:
    """The graphs and labels of a file.

    Raises:
        DGLError: a file of the first version, or one that does not have the form expected.
    """
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        reader = _Reader(content, path)
        _, version, kind, count = (reader.number() for _ in range(4))
        if (version, kind) != (2, 2):
            raise DGLError(
                f"{path} has version {version} and graphs of kind {kind}; expected 2 and 2: load_graphs and save_graphs of DGL"
                " 0.5 or later convert it"
            )
        reader.at = _FIRST_PART
        start = reader.number()
        labels = reader.tensors()
        reader.at = start
        return [reader.graph() for _ in range(count)], labels


class _Reader:
    """Reads the parts of a file one after the other."""

    def __init__(self, content: mmap.mmap, path: str):
        self.content = content
        self.path = path
        self.at = 0

    def values(self, form: str) -> tuple:
        """Numbers of a struct format."""
        size = struct.calcsize(form)
        if self.at + size > len(self.content):
            raise DGLError(
                f"{self.path} ends at byte {len(self.content)}, in the middle of a graph; expected a whole file"
            )
        values = struct.unpack_from(form, self.content, self.at)
        self.at += size
        return values

    def number(self) -> int:
        return self.values("<Q")[0]

    def begin(self, expected: int) -> None:
        """The number that begins a part."""
        found = self.number()
        if found != expected:
            raise DGLError(
                f"{self.path} has {found:#x} before byte {self.at}; expected {expected:#x}, as DGL writes it"
            )

    def sequence(self, item: Callable[[], T]) -> list[T]:
        return [item() for _ in range(self.number())]

    def text(self) -> str:
        return self.values(f"<{self.number()}s")[0].decode()

    def tensor(self) -> Tensor:
        self.begin(_TENSOR)
        _, _, _, num_dims, kind, bits, _ = self.values("<QiiiBBH")
        shape = self.values(f"<{num_dims}q")
        (size,) = self.values("<q")
        dtype = _DTYPES.get((kind, bits))
        if dtype is None or size != math.prod(shape) * dtype.itemsize:
            raise DGLError(
                f"{self.path} has a tensor of kind {kind} with {bits} bits and {size} bytes, which is not supported"
            )
        data = bytearray(self.values(f"<{size}s")[0])
        return torch.frombuffer(data, dtype=dtype).reshape(shape) if size else torch.empty(shape, dtype=dtype)

    def tensors(self) -> dict[str, Tensor]:
        return dict(self.sequence(lambda: (self.text(), self.tensor())))

    def graph(self) -> DGLGraph:
        self.begin(_HETEROGRAPH)
        ends = self.metagraph()
        relations = self.sequence(self.relation)
        counts = self.sequence(lambda: self.values("<q")[0])
        frames = [self.sequence(self.tensors) for _ in range(2)]
        ntypes, etypes = self.sequence(self.text), self.sequence(self.text)
        sized = [relation.resized(counts[src], counts[dst]) for relation, (src, dst) in zip(relations, ends)]
        return DGLGraph(
            Topology(MetaGraph(ends, len(counts)), counts, sized),
            ntypes,
            etypes,
            [Frame(data, count) for data, count in zip(frames[0], counts)],
            [Frame(data, relation.num_edges) for data, relation in zip(frames[1], sized)],
        )

    def metagraph(self) -> list[tuple[int, int]]:
        """Ids of the node types at the ends of each edge type."""
        self.begin(_METAGRAPH)
        _, _, (indptr, indices, ids) = self.matrix(_CSR, 1)
        rows = torch.arange(indptr.numel() - 1).repeat_interleave(indptr.diff())
        ends: list[Any] = [None] * indices.numel()
        for place, pair in zip(ids.tolist() or range(len(ends)), zip(rows.tolist(), indices.tolist())):
            ends[place] = pair
        return ends

    def relation(self) -> Relation:
        """The edges of one type, of the first form that they are stored in."""
        self.begin(_RELATION)
        stored, _ = self.values("<qq")
        # The forms are bits under a mark in the upper half, or without it the number of the only one.
        forms = [
            form
            for i, form in enumerate(("coo", "csr", "csc"))
            if (stored >> i & 1 if stored >> 32 else stored == i + 1)
        ]
        found = [self.form(form) for form in forms]
        if not found:
            raise DGLError(f"{self.path} has edges of form {stored}; expected coo, csr or csc")
        return found[0]

    def form(self, form: str) -> Relation:
        self.metagraph()
        if form == "coo":
            num_rows, num_cols, (src, dst, ids) = self.matrix(_COO, 2)
            if ids.numel():
                src, dst = (torch.empty_like(end).index_copy(0, ids.long(), end) for end in (src, dst))
            return Relation.from_edges(src, dst, num_rows, num_cols)
        num_rows, num_cols, (indptr, indices, ids) = self.matrix(_CSR, 1)
        return Relation.from_compressed(form, indptr, indices, ids, num_cols)

    def matrix(self, form: int, num_flags: int) -> tuple[int, int, list[Tensor]]:
        """Numbers of rows and of columns, and three tensors."""
        self.begin(form)
        num_cols, num_rows = self.values("<qq")
        tensors = [self.tensor() for _ in range(3)]
        self.values(f"<{num_flags}?")
        return num_rows, num_cols, tensors
