"""cut_features: rows of nodes or edges, cut into the parts of a partition."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote

import torch
from torch import Tensor

from ..dataloading import FeatureStore
from ..dataloading.store_files import NewFile
from .partition import read, read_part, shown
from .union import Kind, Union

_ROWS = 65_536  # that are copied at a time


def cut_features(folder: Any, name: str, data: Any, *, of: Any = None, progress: bool = False) -> None:
    """Writes the rows of each part to a file of a partition's folder, which `DistGraph.features` opens.

    Args:
        folder: of :func:`partition`.
        name: letters, digits and underscores.
        data: a :class:`halfgnn.dataloading.FeatureStore`, a tensor or an array (N, *), one row per node: features, labels, masks.
            It is read in pieces, so it may be a file that is larger than memory.
        of: ``"nodes"``, the default, or ``"edges"``: data is (E, *), one row per edge. Of a heterograph a node type or an edge
            type.
        progress: whether to show a bar. It needs the package tqdm.

    Raises:
        TypeError, ValueError: of FeatureStore; another number of rows; a name that is none; an unknown type; bfloat16, which .npy
            does not have.
    """
    description = read(folder)
    store = data if isinstance(data, FeatureStore) else FeatureStore(data)
    check_name(name)
    rows = Selected(description, of)
    if len(store) != rows.count:
        raise ValueError(f"data has shape {tuple(store.shape)}; expected {rows.count} rows, one per {rows.what[:-1]}")
    check_dtype(store.dtype, "data")
    for part in shown(range(len(description["parts"])), progress, name):
        write_rows(rows.file(folder, part, name), store, rows.ids(folder, part))


def check_name(name: Any) -> None:
    if not isinstance(name, str) or not name.isidentifier():
        raise ValueError(f"name is {name!r}; expected letters, digits and underscores")


def check_dtype(dtype: torch.dtype, what: str) -> None:
    if dtype is torch.bfloat16:
        raise ValueError(
            f"{what} has dtype torch.bfloat16, which .npy files do not have; convert it to float16 or float32"
        )


def open_features(folder: Path, description: dict[str, Any], part: int, name: str, of: Any = None) -> FeatureStore:
    """What :func:`cut_features` wrote for a part. Raises FileNotFoundError, and ValueError if it has another number of rows."""
    rows = Selected(description, of)
    path = rows.file(folder, part, name)
    if not path.exists():
        kind = f", of={of!r}" if of is not None else ""
        raise FileNotFoundError(f"{path} does not exist; cut_features({str(folder)!r}, {name!r}, data{kind}) writes it")
    store, expected = FeatureStore.open(path), rows.ids(folder, part).shape[0]
    if len(store) != expected:
        raise ValueError(
            f"{path} has {len(store)} rows; expected {expected}, one per {rows.what[:-1]} of the part; cut {name!r} again"
        )
    return store


class Selected:
    """The nodes or edges that features are of. what: "nodes" or "edges". count: how many the graph has."""

    def __init__(self, description: dict[str, Any], of: Any) -> None:
        union = Union.read(description)
        self._kind: Kind | None = None
        if union is not None:
            self.what, kind = union.kind(of)
            self._kind, self.count = kind, kind.size
            self._label = quote(of if isinstance(of, str) else ",".join(of), safe="") + "."
            return
        if of not in (None, "nodes", "edges"):
            raise ValueError(f"of is {of!r}; expected 'nodes' or 'edges'")
        self.what = of or "nodes"
        self.count = description[f"num_{self.what}"]
        self._label = "" if self.what == "nodes" else "edges."

    def file(self, folder: Any, part: int, name: str) -> Path:
        return Path(folder) / f"part-{part}.{self._label}{name}.npy"

    def ids(self, folder: Any, part: int) -> Tensor:
        """Of a part, in the order of its rows. int64."""
        name = "nodes" if self.what == "nodes" else "edge_ids"
        ids = read_part(folder, part, names=[name])[name].long()
        return ids if self._kind is None else ids[self._kind.has(ids)] - self._kind.first


def write_rows(path: Path, store: FeatureStore, ids: Tensor) -> None:
    """A file of the rows of these ids, copied in pieces."""
    dtype = torch.empty(0, dtype=store.dtype).numpy().dtype
    partial = path.with_suffix(".partial")  # so that what is killed leaves no rows of zeros
    with NewFile(partial, dtype, (ids.shape[0], *store.shape[1:])) as rows:
        for start in range(0, ids.shape[0], _ROWS):
            rows.write(start, store.gather(ids[start : start + _ROWS]).cpu().numpy())
    partial.replace(path)
