"""infer_by_layers: a model's results for all nodes of a graph, one layer at a time, through files."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..common.arguments import checked_size
from ..graph import Graph
from ..graph_argument import as_graph
from ..heterograph import Block
from . import quantized_files
from .feature_store import FeatureStore
from .neighbor_sampler import NeighborSampler
from .prefetcher import Prefetcher
from .store_files import NewFile

Layer = Callable[[Block, Tensor], Tensor]  # of a block and the rows of its sources, to the rows of its destinations
_NUMPY = {torch.float16: np.float16, torch.float32: np.float32, torch.float64: np.float64}


def infer_by_layers(
    layers: Sequence[Layer],
    g: Any,
    features: FeatureStore | Tensor,
    path: Any,
    *,
    batch_size: int = 4096,
    dtype: torch.dtype = torch.float16,
    device: Any = "cpu",
    progress: Callable[[Iterable], Iterable] | None = None,
) -> FeatureStore:
    """The rows of the last layer for all nodes, with all in-edges of each.

    A layer runs on all nodes, in batches, before the next one begins, so each row of it is computed once, and memory holds the rows
    of one batch and its neighbours. Rows between layers are in temporary files beside `path`.

    Args:
        layers: functions of a Block and the rows (num_src, *) of its sources that return rows (num_dst, *) of its destinations,
            which are its first sources. They run under torch.inference_mode; switch their modules to evaluation before.
        g: a Graph or DGLGraph on the CPU whose sources and destinations are the same nodes.
        features: (N, *), of any place.
        path: a file .npy for the result; it is overwritten.
        batch_size: destinations per batch.
        dtype: torch.float16, torch.float32 or torch.float64: of rows in files. Layers get all rows in the dtype of features.
        device: where the layers run.
        progress: wraps the batches of each layer, as tqdm.tqdm does.

    Returns:
        The store of the rows (N, *) in the file.

    Raises:
        TypeError, ValueError: wrong arguments; a layer that returns another number of rows than its block has destinations.
    """
    graph, path = as_graph(g), Path(path).resolve()
    store = features if isinstance(features, FeatureStore) else FeatureStore(features)
    if not layers:
        raise ValueError("layers is empty; expected at least one")
    if dtype not in _NUMPY:
        raise TypeError(f"dtype is {dtype}; expected torch.float16, torch.float32 or torch.float64")
    if path.suffix != ".npy":
        raise ValueError(f"path is {str(path)!r}; expected a file .npy")
    if quantized_files.has_note(path):
        raise ValueError(f"path is {str(path)!r}, whose .json says that it has codes; expected another one")
    if len(store) != graph.num_src:
        raise ValueError(f"features has shape {tuple(store.shape)}; expected {graph.num_src} rows, one per node")
    if graph.num_src != graph.num_dst or graph.num_dst == 0:
        raise ValueError(
            f"g has {graph.num_src} sources and {graph.num_dst} destinations; expected equal numbers, not 0"
        )
    batch_size, computed = max(checked_size(batch_size, "batch_size"), 1), store.dtype
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        for number, layer in enumerate(layers):
            to = Path(folder) / f"{number}.npy"
            batches = _Batches(graph, store, batch_size, torch.device(device))
            rows = _rows_of(layer, number, progress(batches) if progress else batches, computed)
            _write(rows, graph.num_dst, to, dtype)
            if number == len(layers) - 1:
                to = to.replace(path)  # which may be the file of features
            store = FeatureStore.open(to)
    return store


class _Batches:
    """Blocks of all in-edges of consecutive destinations, with the rows of their sources. It has a length, for a progress bar."""

    def __init__(self, graph: Graph, store: FeatureStore, batch_size: int, device: torch.device):
        self._sampler = NeighborSampler(graph, [-1])
        self._store, self._device = store, device
        self._ids = torch.arange(graph.num_dst, dtype=graph.idtype).split(batch_size)

    def __len__(self) -> int:
        return len(self._ids)

    def __iter__(self) -> Iterator[tuple[Block, Tensor]]:
        return iter(Prefetcher(map(self._sampler.sample, self._ids), self._device, fetch=self._fetch))

    def _fetch(self, batch: Any) -> Any:
        return batch.blocks[0], self._store.rows(batch.input_nodes)


def _rows_of(layer: Layer, number: int, batches: Iterable, computed: torch.dtype) -> Iterator[Tensor]:
    """The layer's rows of one batch after the other."""
    for block, x in batches:
        with torch.inference_mode():
            out = layer(block, x.to(computed))
        count = block.num_dst_nodes()
        if not isinstance(out, Tensor) or out.dim() == 0 or out.shape[0] != count:
            what = f"shape {tuple(out.shape)}" if isinstance(out, Tensor) else f"a {type(out).__name__}"
            raise ValueError(f"layers[{number}] returned {what}; expected {count} rows, one per destination")
        yield out


def _write(parts: Iterator[Tensor], num_rows: int, path: Path, dtype: torch.dtype) -> None:
    begin, first = 0, next(parts)
    with NewFile(path, _NUMPY[dtype], (num_rows, *first.shape[1:])) as file:
        for part in itertools.chain([first], parts):
            if part.shape[1:] != first.shape[1:]:
                raise ValueError(
                    f"a layer returned rows of {tuple(part.shape[1:])} after rows of {tuple(first.shape[1:])}"
                )
            file.write(begin, part.to("cpu", dtype).numpy())
            begin += len(part)
