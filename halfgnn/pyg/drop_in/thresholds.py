"""From which sizes on calls are routed: below, torch_geometric's own functions start sooner. docs/routed.md has the measured times.

Values are those of the tensor that is reduced or gathered. On a GPU they take 1 / GPU_SPEED of the time, but a call starts as late.
"""

from __future__ import annotations

from typing import NamedTuple


class Limits(NamedTuple):
    """The smallest calls of a reduction that are routed, in values; pairs are without and with a gradient."""

    known: tuple[int, int]  # if the graph is there already
    new: tuple[int, int]  # if the index or edge_index has to be read first
    width: int  # values per row
    sorted_width: int  # values per row for which an unsorted index is sorted at its first use
    unsorted: int = 0  # values from which on it is


LIMITS = {
    "message": Limits((131_072, 98_304), (524_288, 294_912), 1, 1),
    "known message": Limits((4_096, 4_096), (294_912, 294_912), 1, 1),
    "attention": Limits((0, 0), (65_536, 65_536), 1, 1),
    "attention without loops": Limits((24_576, 24_576), (65_536, 65_536), 1, 1),
    "attention with edges": Limits((65_536, 65_536), (65_536, 65_536), 1, 1),
    "dot attention with edges": Limits((65_536, 65_536), (131_072, 131_072), 1, 1),
    "edge network": Limits((8_388_608, 8_388_608), (8_388_608, 8_388_608), 1, 1),
    "rows": Limits((32_768, 32_768), (32_768, 32_768), 1, 1),
    "sum": Limits((32_768, 262_144), (262_144, 524_288), 4, 16, 1_310_720),
    "mean": Limits((16_384, 262_144), (65_536, 524_288), 4, 16, 1_310_720),
    "max": Limits((16_384, 8_192), (262_144, 16_384), 4, 4),
    "min": Limits((16_384, 8_192), (262_144, 16_384), 4, 4),
    "norm": Limits((65_536, 65_536), (98_304, 98_304), 1, 1),
    "softmax": Limits((2_048, 2_048), (2_048, 2_048), 1, 2),
}


FEW_SUMMED = min(LIMITS["message"].known)  # so many values of messages fall back to PyG, unless their maxima are taken
FEW = FEW_SUMMED // 4  # so many fall back to PyG whatever becomes of them
FEW_ENDS = 256  # ends of edges: looking a graph up takes longer than what messages of usual width gain
FEW_ROWS = LIMITS["rows"].known[0]  # values of rows, taken by an index, that are PyTorch's
EDGE_LIST = 4_096  # values that coo_sum gathers for an edge list or adds up
FEW_UNSORTED = 16_384  # values that are not worth the sorting of an index or edge_index that is new, whatever the width
DOT_STEPS = 2_097_152  # values of dot attention without edges: from here on its steps are faster than one operator
PRODUCTS_SAVED = 4_194_304  # multiplications for zeros: as long as to read and sort the edges of a batch
MOST_PAIRS = 1_048_576  # values of a row for each relation and node, most of them zeros, as PyG makes them one relation at a time
USUAL_WIDTH = 32  # of messages, for an edge_index that no message has gone along yet
GPU_SPEED, GPU_ATTENTION_SPEED = 128, 32  # see docs/routed.md
SORTED_WIDTH = 32  # values for a row by an index on CUDA, where PyTorch's gradient sorts it (chosen, not timed)
EXTREME = 4  # PyTorch's gradient of a maximum takes several times as long as its sum
REUSE = 8  # an index or edge_index that has seen so many times the values that pay at once will be seen again
