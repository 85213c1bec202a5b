"""Which calls are large enough for halfgnn. torch_geometric's own functions start sooner, and keep the calls they are faster in.

Process CPU times in microseconds, one thread of an Intel Xeon (family 6 model 207), torch 2.11, fp32: PyG / halfgnn with a known
graph / halfgnn with a sorted index that it has not seen before. "values" are those of the tensor that is reduced.

| reduction | rows x width, segments | values | forward | forward and backward |
|---|---|---|---|---|
| sum     | 800 x 16, 32     | 13 k  | 22 / 21 / 60    | 47 / 67 / 121     |
| sum     | 3000 x 16, 32    | 48 k  | 44 / 21 / 64    | 77 / 77 / 148     |
| sum     | 45000 x 4, 32    | 180 k | 268 / 101 / 298 | 446 / 324 / 529   |
| sum     | 45000 x 16, 32   | 720 k | 531 / 129 / 348 | 833 / 442 / 682   |
| mean    | 800 x 16, 32     | 13 k  | 37 / 21 / 60    | 72 / 97 / 151     |
| mean    | 3000 x 16, 1     | 48 k  | 70 / 24 / 67    | 114 / 118 / 176   |
| mean    | 45000 x 4, 32    | 180 k | 418 / 105 / 302 | 669 / 379 / 583   |
| max     | 45000 x 2, 32    | 90 k  | 491 / 456 / 626 | 1641 / 1905 / 2235 |
| max     | 800 x 16, 32     | 13 k  | 26 / 24 / 64    | 184 / 117 / 176   |
| max     | 3000 x 64, 32    | 192 k | 71 / 38 / 95    | 2031 / 330 / 432  |
| softmax | 200 x 1, 8       | 200   | 65 / 19 / 59    | 168 / 75 / 125    |
| softmax | 45000 x 4, 32    | 180 k | 1251 / 162 / 374 | 2311 / 466 / 737 |
| x[index] | 500 x 16, 100   | 8 k   | 13 / 22         | 46 / 71           |
| x[index] | 2000 x 16, 500  | 32 k  | 33 / 27         | 95 / 84           |
| x[index] | 45000 x 4, 3000 | 180 k | 349 / 142       | 801 / 399         |
| x[index] | 45000 x 64, 3000 | 2880 k | 1693 / 706    | 4935 / 1287       |

Messages, forward and backward, PyG / known graph / new edge_index:

| message, reduction | edges x width | values | |
|---|---|---|---|
| x_j, sum      | 90 x 16    | 1 k   | 94 / 234 / 353 |
| x_j, sum      | 1760 x 64  | 113 k | 312 / 316 / 499 |
| w * x_j, sum  | 1760 x 64  | 113 k | 543 / 504 / 694 |
| x_j, max      | 400 x 64   | 26 k  | 430 / 288 / 393 |
| w * x_j, sum  | 1760 x 128 | 225 k | 1072 / 697 / 867 |
| x_j, sum      | 6000 x 64  | 384 k | 959 / 491 / 732 |

Attention modules, forward and backward, PyG / known graph / new edge_index (of a busy processor: read ratios):

| module, heads | edges x width | values | |
|---|---|---|---|
| GAT, 1             | 90 x 16    | 1 k   | 1890 / 1200 / 2655 |
| GAT, 4             | 1000 x 64  | 64 k  | 2622 / 1779 / 2867 |
| GAT, 4             | 4000 x 64  | 256 k | 7883 / 3107 / 4834 |
| GAT, 1, no loops added | 90 x 16 | 1 k  | 550 / 681 / 887 |
| GAT, 4, no loops added | 400 x 64 | 26 k | 819 / 811 / 970 |
| GATv2, 1           | 90 x 16    | 1 k   | 1638 / 967 / 1760  |
| GATv2, 4           | 1000 x 64  | 64 k  | 4054 / 1623 / 2756 |
| Transformer, edges, 4 | 90 x 64   | 6 k   | 1758 / 2019 / 2721 |
| Transformer, edges, 4 | 1000 x 64 | 64 k  | 4180 / 4188 / 4397 |
| Transformer, edges, 4 | 4000 x 64 | 256 k | 11155 / 7709 / 8791 |
| GAT, edges, 4      | 1000 x 64  | 64 k  | 3647 / 2178 / 3489 |

PyG's small sums and means are made in another way here, see _operators.py: 28 k values without a gradient take 18, not 24.
Sums and extremes of one or two columns are PyG's: of 45000 unsorted rows in 32 segments a sum of one takes 49 forward, and 87 by
halfgnn. On a GPU values take 1 / GPU_SPEED of the time, but a call starts as late. So limits are GPU_SPEED times as large there,
and those of attention modules GPU_ATTENTION_SPEED times. They were chosen from the steps below; with them 49 programs on 45000
edges took 0.54 to 1.33 times PyG's time, 0.94 on average, while the host's noise was up to a third. Milliseconds, PyG / known
graph, on an H200 beside a slow host, by `benchmarks programs`; those of GATv2Conv by hand, with few warm-up steps:

| program | edges x width | values | |
|---|---|---|---|
| GraphConv, max  | 45000 x 64   | 3 M   | 1.51 / 1.64 |
| EdgeConv        | 45000 x 64   | 3 M   | 2.00 / 3.19 |
| ARMAConv        | 45000 x 2 x 64 | 6 M | 3.23 / 4.70 |
| VariancePreservingAggregation | 170000 x 64 | 11 M | 1.11 / 1.46 |
| SAGEConv, three aggregations | 45000 x 64 | 3 M | 2.38 / 1.82 |
| GATv2Conv, edges | 45000 x 64  | 3 M   | 4.76 / 2.79 |
| GraphConv       | 2400000 x 64 | 154 M | 5.36 / 1.32 |

Up to 3000 rows an unsorted index costs another 40 microseconds at its first use. Beyond, sorting takes 5 to 13 nanoseconds per row.
A softmax over 1760 unsorted edges of a new edge_index gains nothing up to 14 k values, a tenth at 28 k, and half at 113 k.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ...drop_in.checkpoint import is_checkpointed


class Limits(NamedTuple):
    """The smallest calls of a reduction that are routed, in values; pairs are without and with a gradient."""

    known: tuple[int, int]  # if the graph is there already
    new: tuple[int, int]  # if the index or edge_index has to be read first
    width: int  # values per row
    sorted_width: int  # values per row for which an unsorted index is sorted at its first use


LIMITS = {
    "message": Limits((131_072, 98_304), (524_288, 294_912), 1, 1),
    "attention": Limits((0, 0), (65_536, 65_536), 1, 1),
    "attention without loops": Limits((24_576, 24_576), (65_536, 65_536), 1, 1),
    "attention with edges": Limits((65_536, 65_536), (131_072, 131_072), 1, 1),
    "edge network": Limits((8_388_608, 8_388_608), (8_388_608, 8_388_608), 1, 1),
    "rows": Limits((32_768, 32_768), (32_768, 32_768), 1, 1),
    "sum": Limits((32_768, 262_144), (262_144, 524_288), 4, 16),
    "mean": Limits((16_384, 262_144), (65_536, 524_288), 4, 16),
    "max": Limits((16_384, 8_192), (262_144, 16_384), 4, 4),
    "min": Limits((16_384, 8_192), (262_144, 16_384), 4, 4),
    "softmax": Limits((2_048, 2_048), (2_048, 2_048), 1, 2),
}


FEW_SUMMED = min(LIMITS["message"].known)  # so many values of messages are left to PyG, unless maxima are taken of them
FEW = FEW_SUMMED // 4  # so many are left to PyG whatever becomes of them
FEW_ENDS = 256  # ends of edges: looking a graph up takes longer than what messages of usual width gain
FEW_ROWS = LIMITS["rows"].known[0]  # values of rows, taken by an index, that are PyTorch's
FEW_UNSORTED = 16_384  # values that are not worth the sorting of an index or edge_index that is new, whatever the width
USUAL_WIDTH = 32  # of messages, for an edge_index that no message has gone along yet
GPU_SPEED, GPU_ATTENTION_SPEED = 128, 32  # see above
SORTED_WIDTH = 32  # values for a row by an index on CUDA, where PyTorch's gradient sorts it (chosen, not timed)
_EXTREME = 4  # PyTorch's gradient of a maximum takes several times as long as its sum
_REUSE = 8  # an index or edge_index that has seen so many times the values that pay at once will be seen again


def weighed(num_values: int, device_of: Tensor, speed: int = GPU_SPEED) -> int:
    """So many values, or on a GPU those that take as long on a core: what limits are compared with."""
    return num_values // speed if device_of.is_cuda else num_values


def weighed_rows(x: Tensor, num_entries: int) -> int:
    """The values of x[index], of an index with so many entries."""
    width = x.numel() // x.shape[0]
    return weighed(num_entries * (max(width, SORTED_WIDTH) if x.is_cuda else width), x)


def is_small(src: Tensor, reduction: str | None) -> bool:
    """Whether a reduction of src is PyG's even if its graph is known. It costs less than a microsecond."""
    limits = LIMITS.get(reduction)  # type: ignore[arg-type]
    if limits is None:
        return False
    num_values = weighed(src.numel(), src)
    if num_values >= limits.known[0] and num_values >= limits.known[src.requires_grad and torch.is_grad_enabled()]:
        return limits.width > 1 and not src.is_cuda and (src.dim() < 2 or num_values < limits.width * src.shape[0])
    return True


def are_few(num_values: int, with_gradient: bool, is_extreme: bool, kind: str = "message") -> bool:
    """Whether so many values of messages are PyG's even if the graph is known. is_extreme: their largest or smallest are taken."""
    limits = LIMITS.get(kind)
    return limits is not None and num_values * (_EXTREME if is_extreme else 1) < limits.known[with_gradient]


def is_worth_a_graph(num_values: int, seen: int, with_gradient: bool, is_extreme: bool, kind: str = "message") -> bool:
    """Whether to make the graph of an edge_index for so many values of messages. seen: how many there were before, PyG's.

    In a checkpoint what was seen must not decide.
    """
    limits = LIMITS.get(kind)
    if limits is None or is_checkpointed():
        return True
    least = limits.new[with_gradient]
    return num_values * (_EXTREME if is_extreme else 1) >= least or seen >= _REUSE * least


def least_new(reduction: str, with_gradient: bool) -> int:
    """So many values, at least, are worth the graph of an index, or of the edge_index that has it as a row. 0: any."""
    limits = LIMITS.get(reduction)
    if limits is None or is_checkpointed():
        return 0
    return min(limits.new[with_gradient], LIMITS.get("message", limits).new[with_gradient])


def is_enough(seen: int, least: int) -> bool:
    """Whether an index by which so many values went before will be seen again."""
    return seen > 0 and seen >= _REUSE * least


def is_used_again(seen: int, src: Tensor, reduction: str) -> bool:
    """Whether so many values were reduced by an index before that it will be used on. One step may use it in each layer."""
    limits = LIMITS.get(reduction)
    if limits is None or is_checkpointed():
        return True
    return is_enough(seen, limits.new[src.requires_grad and torch.is_grad_enabled()])


def is_worth(src: Tensor, reduction: str, is_sorted: bool) -> bool:
    """Whether to reduce src by an index that was not seen before, and is sorted or not."""
    limits = LIMITS.get(reduction)
    if limits is None:
        return True
    num_values = weighed(src.numel(), src)
    if num_values < limits.new[src.requires_grad and torch.is_grad_enabled()]:
        return False
    return is_sorted or num_values >= max(FEW_UNSORTED, limits.sorted_width * src.shape[0])
