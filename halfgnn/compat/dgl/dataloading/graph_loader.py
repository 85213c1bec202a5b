"""GraphDataLoader: mini-batches of the graphs of a data set."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from ..base import DGLError
from ..batch import batch
from ..heterograph import DGLGraph

__all__ = ["GraphCollator", "GraphDataLoader"]


class GraphCollator:
    """Joins the items of a mini-batch: graphs to a batch, tensors, arrays and numbers to a tensor; in sequences and dicts too."""

    def collate(self, items: Sequence[Any]) -> Any:
        """The joined items.

        Raises:
            TypeError: items of other kinds. RuntimeError: sequences of different lengths.
        """
        first = items[0]
        if isinstance(first, DGLGraph):
            return batch(items)
        if isinstance(first, Tensor):
            return torch.stack(list(items), 0)
        if isinstance(first, (str, bytes)):
            return items
        if isinstance(first, np.ndarray):
            if re.search("[SaUO]", first.dtype.str):
                raise TypeError(f"an item is an array of dtype {first.dtype}; expected numbers")
            return self.collate([torch.as_tensor(item) for item in items])
        if isinstance(first, (np.generic, int, float)):
            return torch.as_tensor(np.asarray(items))
        if isinstance(first, Mapping):
            return {key: self.collate([item[key] for item in items]) for key in first}
        if isinstance(first, Sequence):
            if len({len(item) for item in items}) > 1:
                raise RuntimeError("items are sequences of different lengths; expected one length")
            joined = [self.collate(parts) for parts in zip(*items)]
            return type(first)(*joined) if hasattr(first, "_fields") else joined
        raise TypeError(
            f"an item is a {type(first).__name__}; expected a graph, tensor, array, number or string, or a sequence or dict of them"
        )


class GraphDataLoader(DataLoader):
    """torch.utils.data.DataLoader of a data set with graphs.

    Args:
        dataset: its items are graphs, or sequences or dicts that have them.
        collate_fn: joins the items of a batch; by default :class:`GraphCollator` does.
        use_ddp: each process of torch.distributed gets its part of the data set; call :meth:`set_epoch` before each epoch.
        ddp_seed: seed of their order.
        kwargs: of the DataLoader.
    """

    def __init__(
        self,
        dataset: Any,
        collate_fn: Callable[[list], Any] | None = None,
        use_ddp: bool = False,
        ddp_seed: int = 0,
        **kwargs: Any,
    ):
        self.use_ddp = use_ddp
        if use_ddp:
            self.dist_sampler = kwargs["sampler"] = DistributedSampler(
                dataset, shuffle=kwargs.pop("shuffle", False), seed=ddp_seed, drop_last=kwargs.get("drop_last", False)
            )
        if collate_fn is None and kwargs.get("batch_size", 1) is not None:
            collate_fn = GraphCollator().collate
        super().__init__(dataset, collate_fn=collate_fn, **kwargs)

    def set_epoch(self, epoch: int) -> None:
        """The number of the epoch, on which the order depends. Raises DGLError without use_ddp."""
        if not self.use_ddp:
            raise DGLError("use_ddp is False; set_epoch is for use_ddp=True")
        self.dist_sampler.set_epoch(epoch)
