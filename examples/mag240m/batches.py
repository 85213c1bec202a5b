"""Sampled batches for one or several processes, and the stores from which their features are gathered."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from halfgnn import HeteroGraph
from halfgnn.dataloading import FeatureStore, NeighborSampler

from .data import HeteroData


@dataclass(frozen=True)
class Workers:
    """The processes that train together. This process is number `rank`."""

    rank: int = 0
    count: int = 1

    @classmethod
    def of_torchrun(cls, device_type: str) -> Workers:
        """Connects the processes that torchrun has started. Without torchrun there is only this process."""
        if "RANK" not in os.environ:
            return cls()
        if device_type == "cuda":
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        # The time limit ends the wait of the others if a process dies.
        dist.init_process_group("nccl" if device_type == "cuda" else "gloo", timeout=timedelta(minutes=10))
        return cls(dist.get_rank(), dist.get_world_size())

    def total(self, *values: float, device) -> list[float]:
        """The sum of each value over all processes."""
        sums = torch.tensor(values, dtype=torch.float64, device=device)
        if self.count > 1:
            dist.all_reduce(sums)
        return sums.tolist()


class SampledBatches(torch.utils.data.Dataset):
    """One epoch: item i is this process's part of batch i.

    Args:
        graph: HeteroGraph on the CPU.
        target: the type of the seeds.
        ids: (n,) seeds.
        fanouts: neighbours sampled per relation, one number per layer, input layer first; -1 for all.
        batch_size: seeds of all processes together.
        order: torch.Generator that shuffles, the same in all processes; None keeps the order. Neighbours depend on its seed too.
        least: the number of seeds that every process must have. A last batch with fewer is left out.

    Items: (blocks, {node type: ids of input nodes}, seeds, weight). weight is the seeds' share of the batch times the number of
    processes. So the mean over processes of weight * (mean loss of the seeds) is the mean loss of the batch.
    """

    def __init__(self, graph: HeteroGraph, target, ids, fanouts, batch_size, workers=None, order=None, least=1):
        self._target, self._batch_size = target, batch_size
        self._seed = 0 if order is None else order.initial_seed()
        self._ids = ids if order is None else ids[torch.randperm(len(ids), generator=order)]
        self._sampler = NeighborSampler(graph, fanouts, csr=True)  # csr: for the backward, made here in the background
        self._workers, self._least = workers or Workers(), least

    def __len__(self) -> int:
        rest = len(self._ids) % self._batch_size
        has_rest = rest and (self._least <= 1 or rest >= self._least * self._workers.count)
        return len(self._ids) // self._batch_size + bool(has_rest)

    def __getitem__(self, index: int):
        whole = self._ids[index * self._batch_size : (index + 1) * self._batch_size]
        seeds = whole[self._workers.rank :: self._workers.count]
        weight = len(seeds) * self._workers.count / len(whole)
        if not len(seeds):  # fewer seeds than processes, but every process must take part in the sum of gradients
            seeds = whole[:1]
        nodes, _, blocks = self._sampler.sample({self._target: seeds}, seed=hash((self._seed, index)))
        return blocks, nodes, seeds, weight


def loader(batches: SampledBatches, num_workers: int, first: int = 0):
    """Batches from number `first` on, sampled in this process or in num_workers other processes."""
    items = range(first, len(batches))
    return torch.utils.data.DataLoader(
        batches, batch_size=None, sampler=items, num_workers=num_workers, collate_fn=as_it_is
    )


def as_it_is(batch):
    return batch


def stores_of(data: HeteroData, place: str, device: torch.device) -> dict[str, FeatureStore]:
    """The features of every node type. place: "file" (features in files are memory-mapped), "memory", "pinned" or
    "device"."""
    stores = {}
    for ntype, feat in data.features.items():
        shape = (data.num_nodes[ntype], -1)
        store = (
            FeatureStore(feat) if torch.is_tensor(feat) else FeatureStore.open(feat, dtype=torch.float16, shape=shape)
        )
        if place == "memory":
            store = store.clone()
        elif place == "pinned":
            store = store.pin_memory()
        elif place == "device":
            store = store.to(device)
        stores[ntype] = store
    return stores
