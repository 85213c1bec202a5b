"""Mini-batches of few different sizes: their nodes, edges and graphs are padded to buckets, so that compiled code is used again.

::

    padded = pad_graph(edge_index, num_nodes, {"x": x}, {"weight": weight})
    out = compiled(padded.node_data["x"], padded.edge_index)
    loss = masked_mean(loss_of_rows(out), padded.node_mask)

Padding nodes and edges belong to graphs of their own. Padding edges join padding nodes only, so no real row reads them.
:class:`halfgnn.pyg.PadToBuckets` does this to torch_geometric's data.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .common.precision import HALF

__all__ = [
    "Buckets",
    "MaskedBatchNorm",
    "PaddedGraph",
    "mask_norms",
    "masked_mean",
    "pad_graph",
    "pad_tensor",
    "real_rows",
]

EDGES_PER_PADDING_NODE = 256  # below the 512 from which kernels divide the edges of a node


# ---- sizes -----------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Buckets:
    """Sizes that grow by a factor: smallest, then each the one before times factor, rounded up to a multiple.

    Args:
        factor: at least 1; with 1 the sizes are consecutive multiples.
        multiple: every size is a multiple of it, except largest.
        smallest: the first size, which is rounded up to a multiple.
        largest: the last size, or None.

    Raises:
        ValueError: a factor below 1, another argument below 1, or smallest > largest.
    """

    factor: float = 1.25
    multiple: int = 8
    smallest: int = 16
    largest: int | None = None

    def __post_init__(self) -> None:
        if not self.factor >= 1:
            raise ValueError(f"factor is {self.factor}; expected at least 1")
        for name in ("multiple", "smallest", "largest"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value}; expected at least 1")
        if self.largest is not None and self.smallest > self.largest:
            raise ValueError(f"smallest is {self.smallest}; expected at most largest, which is {self.largest}")

    def size(self, count: int, name: str = "count") -> int:
        """The smallest size that is not less than count. A count above largest raises a ValueError that calls it by name."""
        if self.largest is not None and count > self.largest:
            raise ValueError(f"{name} is {count}; expected at most {self.largest}, the largest bucket of {self}")
        size = self._rounded(self.smallest)
        while size < count:
            size = max(self._rounded(size * self.factor), size + self.multiple)
        return size if self.largest is None else min(size, self.largest)

    def _rounded(self, size: float) -> int:
        return math.ceil(size / self.multiple) * self.multiple


def bucket(count: int, buckets: Buckets | int, name: str, taken: Collection[int] = ()) -> int:
    """The size for a count: an int is the only size. Sizes in taken are left out if there are others."""
    if not isinstance(buckets, Buckets):
        return Buckets(smallest=buckets, largest=buckets).size(count, name)
    size = buckets.size(count, name)
    while size in taken and size != buckets.largest:
        size = buckets.size(size + 1, name)
    return size


def bucket_nodes(count: int, buckets: Buckets | int, padding_edges: int, name: str, taken: Collection[int] = ()) -> int:
    """The size for count nodes and those that padding edges need: two or more, so that no padding edge is a loop."""
    spare = 2 if not isinstance(buckets, Buckets) else max(2, 1 + math.ceil(padding_edges / EDGES_PER_PADDING_NODE))
    return bucket(count + spare, buckets, f"{name} with {spare} padding nodes", taken)


# ---- tensors ---------------------------------------------------------------------------------------------------------------------


def pad_tensor(x: Tensor, size: int, value: Any = 0, dim: int = 0) -> Tensor:
    """x with `size` rows along dim, the last of which are filled with value. Any dtype; differentiable.

    Raises:
        ValueError: x has more rows than size.
    """
    extra = size - x.shape[dim]
    if extra < 0:
        raise ValueError(f"x has shape {tuple(x.shape)}; expected at most {size} along dimension {dim}")
    return nn.functional.pad(x, [0, 0] * (x.dim() - 1 - dim % x.dim()) + [0, extra], value=value)


def pad_named(name: str, x: Tensor, size: int, fill: Mapping[str, Any], dim: int = 0) -> Tensor:
    """pad_tensor with the value that fill has for the name, or 0. Positions of padding nodes are one apart from each other."""
    if name == "pos" and name not in fill and x.is_floating_point() and x.dim() == 2:
        # The gradient of a distance of 0 is not finite, and 0 times that would reach parameters.
        steps = torch.zeros(size - x.shape[0], x.shape[1], dtype=x.dtype, device=x.device)
        steps[:, :1] = torch.arange(size - x.shape[0], device=x.device).view(-1, 1)
        return torch.cat([x, steps])
    return pad_tensor(x, size, fill.get(name, 0), dim)


def pad_edges(edge_index: Tensor, size: int, real: tuple[int, int], padded: tuple[int, int], same: bool) -> Tensor:
    """edge_index with `size` edges, the last of which join padding nodes. What is sorted stays sorted.

    Args:
        edge_index: (2, E), any integers.
        size: the number of edges in the result.
        real: the numbers of real source and destination nodes.
        padded: these numbers with padding nodes.
        same: sources and destinations are the same nodes. Then each padding node is joined to the next one, and not to itself:
            a program that removes loops would find another number of edges in every batch.
    """
    count = size - edge_index.shape[1]
    spare = [end - begin for begin, end in zip(real, padded)]
    links = spare[1] - 1 if same else spare[1]
    link = torch.arange(count, device=edge_index.device) * links // max(count, 1)
    source = link if same else link * spare[0] // links
    ends = torch.stack([source + real[0], link + real[1] + same])
    return torch.cat([edge_index, ends.to(edge_index.dtype)], 1)


def real_mask(count: int, size: int, like: Tensor) -> Tensor:
    """(size,) bool, on the device of like: True for the first count rows."""
    return torch.arange(size, device=like.device) < count


# ---- graphs ----------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PaddedGraph:
    """What :func:`pad_graph` returns. Masks are bool, and True for real rows.

    Attributes:
        edge_index: (2, num_edges).
        num_nodes, num_edges, num_graphs: the sizes after padding. num_graphs is None without batch.
        node_data, edge_data, graph_data: the tensors, padded.
        batch: (num_nodes,) or None. Padding nodes belong to the first padding graph, the others are empty.
        node_mask, edge_mask, graph_mask: (num_nodes,), (num_edges,) and (num_graphs,); graph_mask is None without batch.
    """

    edge_index: Tensor
    num_nodes: int
    num_edges: int
    num_graphs: int | None
    node_data: dict[str, Tensor]
    edge_data: dict[str, Tensor]
    graph_data: dict[str, Tensor]
    batch: Tensor | None
    node_mask: Tensor
    edge_mask: Tensor
    graph_mask: Tensor | None


def pad_graph(
    edge_index: Tensor,
    num_nodes: int,
    node_data: Mapping[str, Tensor] | None = None,
    edge_data: Mapping[str, Tensor] | None = None,
    graph_data: Mapping[str, Tensor] | None = None,
    *,
    batch: Tensor | None = None,
    num_graphs: int | None = None,
    nodes: Buckets | int = Buckets(),
    edges: Buckets | int = Buckets(),
    graphs: Buckets | int = Buckets(),
    fill: Mapping[str, Any] | None = None,
) -> PaddedGraph:
    """Pads a graph, or a batch of graphs, to the sizes of buckets. Real rows come first and are the same.

    There are always two or more padding nodes, and with batch one or more padding graphs. Padding edges are spread over the padding
    nodes: with Buckets a node has at most 256. Sizes of nodes, edges and graphs differ where buckets allow it.

    Args:
        edge_index: (2, E), int32 or int64.
        num_nodes: the number of nodes, N.
        node_data: tensors (N, ...) of any dtype.
        edge_data: tensors (E, ...).
        graph_data: tensors (G, ...); they need batch.
        batch: (N,), the graph of each node.
        num_graphs: G; expected with batch.
        nodes, edges, graphs: the sizes; an int is the only size.
        fill: by name, what the padding rows of a tensor get. It is 0 otherwise, but rows of "pos" get positions one apart.

    Raises:
        ValueError: a tensor has other rows than expected, or there are more than the largest bucket holds.
    """
    fill = fill or {}
    if edge_index.dim() != 2 or edge_index.shape[0] != 2:
        raise ValueError(f"edge_index has shape {tuple(edge_index.shape)}; expected (2, number of edges)")
    num_edges = edge_index.shape[1]
    edge_size = bucket(num_edges, edges, "the number of edges")
    node_size = bucket_nodes(num_nodes, nodes, edge_size - num_edges, "the number of nodes", [edge_size])
    graph_size, graph_rows, graph_mask = None, {}, None
    if batch is not None:
        if num_graphs is None:
            raise ValueError("num_graphs is None; expected the number of graphs with batch")
        graph_size = bucket(num_graphs + 1, graphs, "the number of graphs with a padding graph", [node_size, edge_size])
        graph_rows = _padded(graph_data, "graph_data", num_graphs, graph_size, fill)
        graph_mask = real_mask(num_graphs, graph_size, edge_index)
        batch = _padded({"batch": batch}, "the argument", num_nodes, node_size, {"batch": num_graphs})["batch"]
    elif graph_data:
        raise ValueError(f"graph_data has {sorted(graph_data)}; expected none without batch")
    return PaddedGraph(
        edge_index=pad_edges(edge_index, edge_size, (num_nodes, num_nodes), (node_size, node_size), same=True),
        num_nodes=node_size,
        num_edges=edge_size,
        num_graphs=graph_size,
        node_data=_padded(node_data, "node_data", num_nodes, node_size, fill),
        edge_data=_padded(edge_data, "edge_data", num_edges, edge_size, fill),
        graph_data=graph_rows,
        batch=batch,
        node_mask=real_mask(num_nodes, node_size, edge_index),
        edge_mask=real_mask(num_edges, edge_size, edge_index),
        graph_mask=graph_mask,
    )


def _padded(
    data: Mapping[str, Tensor] | None, argument: str, count: int, size: int, fill: Mapping[str, Any]
) -> dict[str, Tensor]:
    for name, x in (data or {}).items():
        if x.dim() == 0 or x.shape[0] != count:
            raise ValueError(f"{name!r} of {argument} has shape {tuple(x.shape)}; expected {count} rows")
    return {name: pad_named(name, x, size, fill) for name, x in (data or {}).items()}


# ---- losses and norms ------------------------------------------------------------------------------------------------------------


def _over_rows(mask: Tensor, x: Tensor, name: str) -> Tensor:
    """The mask, viewed so that it broadcasts with x."""
    if mask.dtype != torch.bool or mask.dim() != 1 or x.dim() == 0 or mask.shape[0] != x.shape[0]:
        raise ValueError(
            f"mask is {mask.dtype} of shape {tuple(mask.shape)}; expected bool, one for each row of {name}, "
            f"which has shape {tuple(x.shape)}"
        )
    return mask.view(-1, *[1] * (x.dim() - 1))


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """The mean over the real rows, such as that of a loss with reduction="none". The host does not wait for the number of rows.

    The sum is made in fp64 and the mean rounded once: the mean of fp32 or half-precision values is the same for every padding.

    Args:
        values: (N, ...), floating. Padding rows may hold anything, also inf and nan. The mean of half-precision values is fp32.
        mask: (N,) bool. If none is True the mean is 0.

    Raises:
        ValueError: mask is not bool (N,).
    """
    rows = _over_rows(mask, values, "values")
    total = torch.where(rows, values, 0).sum(dtype=torch.float64)
    mean = total / (mask.sum() * math.prod(values.shape[1:])).clamp(min=1)
    return mean.to(torch.float32 if values.dtype in HALF else values.dtype)


_masks: tuple[Tensor, ...] = ()


@contextlib.contextmanager
def real_rows(*masks: Tensor | None) -> Iterator[None]:
    """Within the block every :class:`MaskedBatchNorm` in training takes its statistics over the rows that a mask has as real.

    A norm takes the mask that has as many rows as its input, so masks of nodes, edges and graphs may be given together. The block
    goes around the compiled call, and around the backward too if the model has checkpoints, which run layers again. It holds for
    all threads.

    Args:
        masks: (rows,) bool each. None is left out.

    Raises:
        ValueError: within the block, for an input that has as many rows as no mask, or as two different ones.
    """
    global _masks
    before, _masks = _masks, tuple(mask for mask in masks if mask is not None)
    try:
        yield
    finally:
        _masks = before


def _mask_of(x: Tensor) -> Tensor | None:
    """The mask of real_rows for x; None outside of its blocks."""
    if not _masks:
        return None
    fitting = [mask for mask in _masks if mask.shape[0] == x.shape[0]]
    if not fitting or any(mask is not fitting[0] for mask in fitting):
        raise ValueError(
            f"x has shape {tuple(x.shape)}, and {len(fitting)} of the masks given to real_rows have as many rows; they have "
            f"{[mask.shape[0] for mask in _masks]}; expected one, or a mask given to the norm"
        )
    return fitting[0]


class MaskedBatchNorm(nn.BatchNorm1d):
    """torch.nn.BatchNorm1d whose statistics in training leave out padding rows. Arguments and state_dict are the same.

    Without a mask, and in evaluation, it is nn.BatchNorm1d. A single real row gives the bias, where nn.BatchNorm1d raises:
    numbers of rows are not read by the host.
    """

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:  # type: ignore[override]
        """
        Args:
            x: (N, C) or (N, C, L). Statistics of half-precision values are those of fp32, and the result is half.
            mask: (N,) bool, True for real rows; by default the one that :func:`real_rows` has for N rows.

        Returns:
            The shape and dtype of x. Padding rows are the bias, or 0; their gradients are 0.

        Raises:
            ValueError: mask is not bool (N,), or x has other dimensions.
        """
        uses_batch = self.training or self.running_mean is None
        mask = _mask_of(x) if mask is None and uses_batch else mask
        if mask is None or not uses_batch:
            return super().forward(x)
        self._check_input_dim(x)
        rows = _over_rows(mask, x, "x")
        dims = [0, *range(2, x.dim())]
        wide = torch.where(rows, x.float() if x.dtype in HALF else x, 0)
        count = (mask.sum() * math.prod(x.shape[2:])).to(wide.dtype).clamp(min=1)
        mean = wide.sum(dims, keepdim=True) / count
        centred = torch.where(rows, wide - mean, 0)
        variance = centred.square().sum(dims, keepdim=True) / count
        if self.training and self.track_running_stats:
            self._track(mean.detach().flatten(), variance.detach().flatten(), count)
        result = centred * (variance + self.eps).rsqrt()
        if self.affine:
            shape = [1, -1, *[1] * (x.dim() - 2)]
            result = result * self.weight.view(shape).to(wide.dtype) + self.bias.view(shape).to(wide.dtype)
        return result.to(x.dtype)

    @torch.no_grad()
    def _track(self, mean: Tensor, variance: Tensor, count: Tensor) -> None:
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        share = 1 / self.num_batches_tracked.to(mean.dtype) if self.momentum is None else self.momentum
        unbiased = variance * (count / (count - 1).clamp(min=1))
        for running, value in ((self.running_mean, mean), (self.running_var, unbiased)):
            assert running is not None
            running.copy_(running * (1 - share) + value * share)


def mask_norms(model: nn.Module) -> nn.Module:
    """Turns every nn.BatchNorm1d of the model, also within torch_geometric's BatchNorm, into a MaskedBatchNorm, in place.

    Parameters, buffers, hooks and state_dict stay. Subclasses and lazy modules that have not run stay what they are.

    Raises:
        ValueError: the model has a SyncBatchNorm, whose statistics would have padding rows.
    """
    for name, module in model.named_modules():
        if isinstance(module, nn.SyncBatchNorm):
            raise ValueError(f"{name or 'model'} is a SyncBatchNorm; expected nn.BatchNorm1d, which can be masked")
        if type(module) is nn.BatchNorm1d:
            module.__class__ = MaskedBatchNorm
    return model
