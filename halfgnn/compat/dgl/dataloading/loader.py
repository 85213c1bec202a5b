"""DataLoader: epochs of batches of seed nodes or edges, sampled from one graph."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import data
from torch.utils.data.distributed import DistributedSampler

from ..base import EID, NID, DGLError, dgl_warning
from ..frame import Column, Frame, LazyFeature
from ..heterograph import DGLGraph

__all__ = ["DataLoader"]


class DataLoader(data.DataLoader):
    """torch.utils.data.DataLoader of what a sampler gives for batches of ids.

    Args:
        graph: what is sampled from, on the CPU for the most speed; sampling itself is done there.
        indices: ids (n,) of the seeds, or {type: ids}.
        graph_sampler: with a method sample(graph, ids), for example a :class:`NeighborSampler`.
        device: of the batches; by default the graph's.
        use_ddp: each process of torch.distributed gets its part of the seeds; call :meth:`set_epoch` before each epoch.
        ddp_seed: seed of their order.
        batch_size, drop_last, shuffle: as in PyTorch.
        use_uva, use_prefetch_thread, use_alternate_streams, pin_prefetcher: have no effect. halfgnn.dataloading.Prefetcher around
            the loader moves batches ahead.
        kwargs: of torch.utils.data.DataLoader, for example num_workers.
    """

    def __init__(
        self,
        graph: DGLGraph,
        indices: Any,
        graph_sampler: Any,
        device: Any = None,
        use_ddp: bool = False,
        ddp_seed: int = 0,
        batch_size: int = 1,
        drop_last: bool = False,
        shuffle: bool = False,
        use_prefetch_thread: bool | None = None,
        use_alternate_streams: bool | None = None,
        pin_prefetcher: bool | None = None,
        use_uva: bool = False,
        gpu_cache: Any = None,
        **kwargs: Any,
    ):
        if gpu_cache:
            dgl_warning("gpu_cache is not available, and features are fetched without it")
        self.graph = graph
        self.indices = indices
        self.graph_sampler = graph_sampler
        self.device = torch.device(graph.device if device is None else device)
        self.use_ddp = use_ddp
        seeds = _Seeds(graph, indices, graph_sampler)
        order: data.Sampler
        if use_ddp:
            self.dist_sampler = order = DistributedSampler(seeds, shuffle=shuffle, seed=ddp_seed, drop_last=drop_last)
        else:
            order = data.RandomSampler(seeds) if shuffle and len(seeds) else data.SequentialSampler(seeds)
        batches = data.BatchSampler(order, batch_size, drop_last)
        super().__init__(seeds, batch_size=None, sampler=batches, collate_fn=_itself, **kwargs)

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        for batch in super().__iter__():
            yield _each(batch, self._ready)

    def _ready(self, part: Any) -> Any:
        if isinstance(part, DGLGraph):
            _fetch(part, self.graph, self.device)
        return part.to(self.device)

    def set_epoch(self, epoch: int) -> None:
        """The number of the epoch, on which the order depends. Raises DGLError without use_ddp."""
        if not self.use_ddp:
            raise DGLError("use_ddp is False; set_epoch is for use_ddp=True")
        self.dist_sampler.set_epoch(epoch)

    @contextlib.contextmanager
    def enable_cpu_affinity(self, *args: Any, **kwargs: Any) -> Iterator[None]:
        """Without effect: threads run where the system puts them."""
        yield


def _itself(batch: Any) -> Any:
    return batch


class _Seeds(data.Dataset):
    """Samples for lists of places among the seeds."""

    def __init__(self, graph: DGLGraph, indices: Any, sampler: Any):
        self.graph = graph
        self.sampler = sampler
        self.types = list(indices) if isinstance(indices, Mapping) else None
        parts = [torch.as_tensor(ids) for ids in (indices.values() if isinstance(indices, Mapping) else [indices])]
        for ids in parts:
            if ids.numel() and (ids.is_floating_point() or ids.is_complex()):
                raise DGLError(f"indices has dtype {ids.dtype}; expected integers or a mask")
        parts = [ids.nonzero().squeeze(1) if ids.dtype == torch.bool else ids for ids in parts]
        self.ids = torch.cat(parts).to(graph.device, graph.idtype) if parts else torch.empty(0, dtype=graph.idtype)
        self.ends = torch.tensor([ids.numel() for ids in parts]).cumsum(0)

    def __len__(self) -> int:
        return self.ids.numel()

    def __getitem__(self, places: Sequence[int]) -> Any:
        at = torch.as_tensor(places)
        sampled = self.sampler.sample(self.graph, self._seeds(at))
        if data.get_worker_info() is not None:
            _each(sampled, lambda part: _forget_features(part, self.graph))
        return sampled

    def _seeds(self, at: Tensor) -> Any:
        if self.types is None:
            return self.ids[at]
        of_type = torch.bucketize(at, self.ends, right=True)
        groups = {name: self.ids[at[of_type == i]] for i, name in enumerate(self.types)}
        return {name: ids for name, ids in groups.items() if ids.numel()}


def _each(batch: Any, fn: Any) -> Any:
    """fn of every graph and tensor in nested sequences and dicts."""
    if isinstance(batch, (DGLGraph, Tensor)):
        return fn(batch)
    if isinstance(batch, Mapping):
        return {key: _each(part, fn) for key, part in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(_each(part, fn) for part in batch))
    if isinstance(batch, (list, tuple)):
        return type(batch)(_each(part, fn) for part in batch)
    return batch


# ---- features --------------------------------------------------------------------------------------------------------------------


def _frames(part: DGLGraph, whole: DGLGraph) -> Iterator[tuple[Frame, Frame, str]]:
    """Frames of a sampled graph, those of the whole graph for the same types, and the column with their ids."""
    for ntype, frame in zip(part.ntypes, part._node_frames):
        if ntype in whole.ntypes:
            yield frame, whole._node_frames[whole.ntypes.index(ntype)], NID
    for etype, frame in zip(part.canonical_etypes, part._edge_frames):
        if etype in whole.canonical_etypes:
            yield frame, whole._edge_frames[whole.canonical_etypes.index(etype)], EID


def _fetch(part: DGLGraph, whole: DGLGraph, device: torch.device) -> None:
    """Put rows of the whole graph's features where LazyFeatures are."""
    for frame, source, id_name in _frames(part, whole):
        for name, column in list(frame._columns.items()):
            if isinstance(column, LazyFeature):
                ids = frame[id_name] if column.id_ is None else column.id_
                frame._columns[name] = source._columns[column.name or name].subcolumn(ids).to(device)


def _forget_features(part: Any, whole: DGLGraph) -> Any:
    """Rows of the whole graph's features are not sent from a worker: the process that trains takes them."""
    if isinstance(part, DGLGraph):
        for frame, source, _ in _frames(part, whole):
            for name, column in list(frame._columns.items()):
                known = source._columns.get(name)
                if isinstance(column, Column) and isinstance(known, Column) and column.storage is known.storage:
                    frame[name] = LazyFeature(name)
    return part
