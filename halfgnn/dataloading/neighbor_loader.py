"""NeighborDataLoader: epochs of sampled batches."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from ..common.arguments import checked_flag, checked_integer, checked_size
from ..common.ids import check_ids
from .neighbor_sampler import NeighborSampler


class NeighborDataLoader:
    """Sampled batches of seeds, one epoch per iteration. A :class:`Prefetcher` around it samples while the GPU computes.

    Epochs differ in their order, if it is shuffled, and in their neighbours. Both depend on `seed` and the number of the epoch
    alone, so a run that is repeated, or resumed after `set_epoch`, gets the same batches. Processes that train together take their
    parts of the same batches, so all of them make as many steps.

    Args:
        sampler: a NeighborSampler, or a function of (ids, seed=number), for example
            ``functools.partial(sampler.sample_edges, negatives=1)``.
        seeds: (n,) ids, or {node type: ids}.
        batch_size: seeds per batch, of all processes together.
        shuffle: another order in each epoch.
        drop_last: leave out a last batch of fewer than batch_size seeds.
        seed: of the order and of the samples.
        rank, world_size: the number of this process and how many there are. This process gets seeds rank, rank + world_size, ... of
            each batch. A process for which a last batch has no seed gets the first seed of that batch.

    Raises:
        TypeError, ValueError: seeds that are no ids, sizes below 1, a rank outside [0, world_size).
    """

    def __init__(
        self,
        sampler: NeighborSampler | Callable[..., Any],
        seeds: Any,
        *,
        batch_size: int,
        shuffle: bool = False,
        drop_last: bool = False,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
    ):
        self._sample = sampler.sample if isinstance(sampler, NeighborSampler) else sampler
        if not callable(self._sample):
            raise TypeError(f"sampler is a {type(sampler).__name__}; expected a NeighborSampler or a function of ids")
        self._types = list(seeds) if isinstance(seeds, Mapping) else None
        parts = list(seeds.values()) if isinstance(seeds, Mapping) else [seeds]
        for part in parts:
            check_ids(part, "seeds")
        self._ids = torch.cat(parts) if parts else torch.empty(0, dtype=torch.int64)
        self._bounds = torch.tensor([len(part) for part in parts]).cumsum(0)
        self.batch_size = checked_size(batch_size, "batch_size", least=1)
        self.shuffle, self.drop_last = checked_flag(shuffle, "shuffle"), checked_flag(drop_last, "drop_last")
        self.seed = checked_integer(seed, "seed", "an integer")
        self.world_size = checked_size(world_size, "world_size", least=1)
        self.rank = checked_size(rank, "rank")
        if self.rank >= self.world_size:
            raise ValueError(f"rank is {rank}; expected a number below world_size, {world_size}")
        self.epoch = 0

    def __len__(self) -> int:
        """Batches per epoch."""
        whole, rest = divmod(len(self._ids), self.batch_size)
        return whole + (rest > 0 and not self.drop_last)

    def set_epoch(self, epoch: int) -> None:
        """The number of the next epoch. Each iteration takes the next number by itself."""
        self.epoch = checked_size(epoch, "epoch")

    def __iter__(self) -> Iterator[Any]:
        epoch, self.epoch = self.epoch, self.epoch + 1
        return self._batches(epoch)

    def _batches(self, epoch: int) -> Iterator[Any]:
        order = torch.arange(len(self._ids))
        if self.shuffle:
            generator = torch.Generator().manual_seed(seed_of(self.seed, epoch))
            order = torch.randperm(len(self._ids), generator=generator)
        for number, whole in enumerate(order.split(self.batch_size)[: len(self)]):
            part = whole[self.rank :: self.world_size]
            yield self._sample(self._seeds(part if len(part) else whole[:1]), seed=seed_of(self.seed, epoch, number))

    def _seeds(self, places: Tensor) -> Any:
        if self._types is None:
            return self._ids[places]
        of_type = torch.bucketize(places, self._bounds, right=True)
        return {ntype: self._ids[places[of_type == i]] for i, ntype in enumerate(self._types)}


def seed_of(*numbers: int) -> int:
    """A number in [0, 2**63) for these numbers, as good as independent of that for others."""
    digest = hashlib.blake2b(",".join(map(str, numbers)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
