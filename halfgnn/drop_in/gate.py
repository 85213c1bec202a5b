"""The gate: why a call falls back to the library that a drop-in is one for."""

from __future__ import annotations

import enum
import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..common.precision import HALF, may_mix


class Reason(str, enum.Enum):
    """Why a call falls back, as stats() prints it. Those with braces are completed by :meth:`str.format`."""

    FEW_VALUES = "few values"
    FIRST_USES_OF_EDGE_INDEX = "first uses of an edge_index"
    FIRST_USES_OF_INDEX = "first uses of an index"
    FIRST_USE_OF_INDEX = "first use of an index"
    FIRST_USE_OF_UNSORTED_INDEX = "first use of an unsorted index"
    FIRST_USES_OF_MATRIX = "first uses of a matrix"
    IDS_OUT_OF_RANGE = "ids out of range"
    PTR = "ptr that does not delimit the rows"
    INFERENCE_MODE = "inference mode"
    CAPTURE = "capture of a CUDA graph"
    INDEX_DIMENSIONS = "index of several dimensions"
    NO_EDGES = "no edges"
    NOT_SORTED = "not sorted"
    GRADIENT_OF_MATRIX = "gradient of the matrix"
    ANOTHER_MATRIX = "another matrix"
    NO_OPERATOR = "no such operator"
    ANOTHER_DIMENSION = "another dimension"
    NETWORK = "network"
    NO_PAIR = "tuple that is no pair"
    ROWS_OF_EDGES = "rows of edges"
    SEVERAL_DEVICES = "several devices"
    CHECKPOINT = "checkpoint"
    NO_ROW_OF_EDGE_INDEX = "no row of an edge_index"
    MEMORY = "memory that cannot be shared"
    SUBCLASS_OF_TENSOR = "tensor subclass"
    ANOTHER_SHAPE = "another shape, dtype or device"
    INDEX_PER_VALUE = "an index per value"
    NO_INDEX = "no index"
    SIZE = "size"
    RETURN_ATTENTION_WEIGHTS = "return_attention_weights"
    DROPOUT = "dropout"
    DOT_WITHOUT_EDGES = "dot without edges"
    PARAMETRIZED = "parametrized module"
    MISSING_LAYER = "missing layer"
    NO_CUDA_KERNELS = "no CUDA kernels"
    FILL_VALUE = "fill_value of a bipartite graph"
    SPARSE_EDGE_INDEX = "sparse edge_index"
    NO_EDGE_INDEX = "no edge_index (2, E)"
    NO_MATRIX = "no matrix of features"
    NO_WEIGHT = "no weight"
    ANOTHER_WIDTH = "another width"
    EDGE_INDEX_DEVICE = "edge_index of another device"
    EDGE_ATTR = "edge_attr"
    ANOTHER_INDEX = "another index"
    NO_DIM_SIZE = "no dim_size"
    UNKNOWN_INDEX = "index of no known edge_index"
    EXPLAIN = "explain"
    HOOKS = "hooks"
    AGGREGATION = "aggregation"
    OPTIONS = "options of MessagePassing"
    SUBCLASS = "subclass"
    MORE_DIMENSIONS = "features of more dimensions"
    NO_TENSORS = "arguments that are no tensors"
    PROJECTIONS = "projections with hooks, or that are no linear layers"
    TRACE = "torch.jit.trace"
    FORWARD_AD = "forward-mode AD"
    FUNCTORCH = "functorch"
    MISSING_OPERAND = "missing operand"
    EDGE_WEIGHT = "edge_weight"
    GET_ATTENTION = "get_attention"
    SEVERAL_EDGE_TYPES = "several edge types"
    ONE_TENSOR = "one tensor for two kinds of nodes"
    WRONG_ROWS = "wrong number of rows"
    LOGITS = "logits of several shapes"
    EIDS = "eids"
    BATCH_NORM = "batch norm of messages"
    SETS_ATTRIBUTES = "messages that set attributes"
    READS_IDS = "messages that read rows by ids of all nodes"
    MIXES_EDGES = "messages that mix edges of several destinations"
    UPDATE_OF_EDGES = "update() that reads edges"
    RAISES = "messages that raise on a part of the edges"
    FEW_DESTINATIONS = "edges of one destination"
    DISPATCH_MODE = "dispatch mode {}"
    INDEX_CLASS = "index of class {}"
    INDEX_LAYOUT = "{} index"
    INDEX_DEVICE = "index on {}"
    INDEX_DTYPE = "ids of {}"
    DTYPE = "{} on {}"
    DTYPES = "{} with {}"
    NODE_DIM = "node_dim {} of {} dimensions"
    DIMENSIONS = "{} dimensions"

    __str__ = str.__str__
    __hash__ = str.__hash__


IDS = (torch.int32, torch.int64)
# Modes of PyTorch that call every operator as it is, halfgnn's too, and count it or keep its results. Subclasses may do more.
_WATCHING_MODES = frozenset(
    (
        "torch.utils.flop_counter.FlopCounterMode",
        "torch.utils.flop_counter._FlopCounterMode",
        "torch.utils.checkpoint._CachingTorchDispatchMode",
        "torch.utils.checkpoint._CachedTorchDispatchMode",
        "torch.autograd.graph._CloneArgBeforeMutateMode",
        "torch.testing._internal.logging_tensor.LoggingTensorMode",
    )
)
CASTABLE_TYPES = frozenset([*HALF, torch.float32])  # by autocast


def _cuda_has(*operators: str) -> bool:
    return all(
        torch._C._dispatch_has_kernel_for_dispatch_key(f"halfgnn::{operator}{suffix}", "CUDA")
        for operator in operators
        for suffix in ("", "_backward")
    )


@functools.cache
def cuda_has_attention() -> bool:
    """Whether the fused attentions have CUDA kernels."""
    return _cuda_has("gat_attention", "gatv2_attention", "dot_attention")


@functools.cache
def types_on(device: str) -> frozenset[torch.dtype]:
    """The dtypes that are routed on a kind of device."""
    if device == "cpu":
        return CASTABLE_TYPES | {torch.float64}
    # Calls on CUDA are routed only if every operator has a CUDA kernel: half a model on the GPU would only raise.
    return CASTABLE_TYPES if device == "cuda" and _cuda_has("gspmm", "gsddmm", "edge_softmax") else frozenset()


def tracing_reason() -> str | None:
    """Why an operator of halfgnn cannot stand in the code that runs now. A trace would have the kept graph as a constant."""
    if torch._C._is_tracing():
        return Reason.TRACE
    return Reason.FORWARD_AD if torch.autograd.forward_ad._current_level >= 0 else None


def mode_reason(may_be_watched: bool = False) -> str | None:
    """Why the code that runs now is not an eager call on its data.

    may_be_watched: whether a mode may see the operators that run, if it calls each as it is. It must see the same ones at every
    call: what is kept is made under :func:`.caching.ordinary_tensors`.
    """
    if torch._C._are_functorch_transforms_active():
        return Reason.FUNCTORCH
    return tracing_reason() or (_dispatch_mode_reason(may_be_watched) if torch._C._len_torch_dispatch_stack() else None)


def _dispatch_mode_reason(may_be_watched: bool) -> str | None:
    for place in range(torch._C._len_torch_dispatch_stack()):
        mode = type(torch._C._get_dispatch_stack_at(place))
        if not may_be_watched or f"{mode.__module__}.{mode.__qualname__}" not in _WATCHING_MODES:
            return Reason.DISPATCH_MODE.format(mode.__qualname__)
    return None


def index_reason(index: Any, rows: Tensor | None = None) -> str | None:
    """Why an index, an edge_index or offsets are not read. It is asked first: their values may be nowhere.

    rows: what the index says something of.
    """
    if type(index) is not Tensor and type(index) is not nn.Parameter:
        return Reason.INDEX_CLASS.format(type(index).__name__)
    if index.layout != torch.strided:
        return Reason.INDEX_LAYOUT.format(index.layout)
    if index.dtype not in IDS:
        return Reason.INDEX_DTYPE.format(index.dtype)
    is_readable = types_on(index.device.type) and (rows is None or index.device == rows.device)
    return None if is_readable else Reason.INDEX_DEVICE.format(index.device.type)


def operands_reason(operands: Sequence[Any], mixed: bool = False) -> str | None:
    """Why operands are not routed; None if they are.

    mixed: one operand may be half and the other fp32.
    """
    first = operands[0]
    if not isinstance(first, Tensor):
        return Reason.MISSING_OPERAND
    dtype, device = first.dtype, first.device.type
    if dtype not in types_on(device):
        return Reason.DTYPE.format(dtype, device)
    for other in operands[1:]:
        if not isinstance(other, Tensor):
            return Reason.MISSING_OPERAND
        if other.dtype is not dtype and not _may_mix(dtype, other.dtype, device, mixed):
            return Reason.DTYPES.format(dtype, other.dtype)
    return None


def _may_mix(dtype: torch.dtype, other: torch.dtype, device: str, mixed: bool) -> bool:
    if torch.is_autocast_enabled(device):
        return dtype in CASTABLE_TYPES and other in CASTABLE_TYPES
    return mixed and may_mix(dtype, other)
