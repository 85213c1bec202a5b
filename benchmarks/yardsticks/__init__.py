"""What is only there to be measured against, and to be read: torch.ops.halfgnn_yardsticks, CUDA kernels in a library of their own.

gather_limit: the loads of a sum without its arithmetic. scalar_spmm, scalar_sddmm: the algorithm of DGL's kernels for half
precision. naive_*: a kernel per family of operators in plain loops (naive.cu). library.cpp has their schemas. The library is
loaded when this is imported.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch

from halfgnn import _library
from halfgnn.common.fake import register_fake

HERE = Path(__file__).resolve().parent
CURE = f"Build it: `cd {HERE.parents[1]} && python setup.py build_ext --inplace`."


class NotBuilt(ImportError):
    """There are no yardsticks, and what to type."""


def _find() -> Path:
    """Where the build put it that also made the operators; else in this checkout."""
    beside = Path(_library._PATH).resolve().parents[1] / "benchmarks" / "yardsticks"
    for folder in (beside, HERE):
        if (folder / "_yardsticks.so").is_file():
            return folder / "_yardsticks.so"
    raise NotBuilt(f"the benchmarks' yardsticks are not built: {HERE / '_yardsticks.so'} is missing. {CURE}")


def _load() -> None:
    path = _find()
    built = json.loads(path.with_suffix(".json").read_text())["torch"]
    if built != torch.__version__:
        raise NotBuilt(f"{path} was built for torch {built}, and torch {torch.__version__} is installed. {CURE}")
    torch.ops.load_library(str(path))


# The simulator's library has them beside the operators.
if not hasattr(torch.ops.halfgnn_yardsticks, "gather_limit"):
    _load()

gather_limit = torch.ops.halfgnn_yardsticks.gather_limit
scalar_spmm = torch.ops.halfgnn_yardsticks.scalar_spmm
scalar_sddmm = torch.ops.halfgnn_yardsticks.scalar_sddmm
naive_sum = torch.ops.halfgnn_yardsticks.naive_sum
naive_max = torch.ops.halfgnn_yardsticks.naive_max
naive_dot = torch.ops.halfgnn_yardsticks.naive_dot
naive_softmax = torch.ops.halfgnn_yardsticks.naive_softmax
naive_attention = torch.ops.halfgnn_yardsticks.naive_attention


def has_kernels(device: str) -> bool:
    """Whether tensors of a device may be given to them."""
    return torch._C._dispatch_has_kernel_for_dispatch_key("halfgnn_yardsticks::gather_limit", device.upper())


# ---- fake kernels


@register_fake("gather_limit", namespace="halfgnn_yardsticks")
def _(indices, feat, tile_bytes=0):
    # How many words there are is the kernel's own affair.
    return feat.new_empty(torch.library.get_ctx().new_dynamic_size(), dtype=torch.int32)


@register_fake("scalar_spmm", namespace="halfgnn_yardsticks")
def _(indptr, indices, edge_ids, op, reduce, lhs, rhs):
    feat = rhs if op == "copy_rhs" else lhs
    out = feat.new_empty((indptr.shape[0] - 1, *feat.shape[1:]))
    return out, indptr.new_empty(out.shape if reduce == "max" else (0,))


@register_fake("scalar_sddmm", namespace="halfgnn_yardsticks")
def _(src, dst, op, lhs, rhs, lhs_target, rhs_target):
    return lhs.new_empty((src.shape[0], *lhs.shape[1:-1], *((1,) if op == "dot" else lhs.shape[-1:])))


@register_fake("naive_sum", namespace="halfgnn_yardsticks")
def _(indptr, indices, x, weight):
    return x.new_empty((indptr.shape[0] - 1, *x.shape[1:]))


@register_fake("naive_max", namespace="halfgnn_yardsticks")
def _(indptr, indices, x):
    out = x.new_empty((indptr.shape[0] - 1, *x.shape[1:]))
    return out, indptr.new_empty(out.shape)


@register_fake("naive_dot", namespace="halfgnn_yardsticks")
def _(indptr, indices, x, y):
    return x.new_empty((indices.shape[0], x.shape[1]))


@register_fake("naive_softmax", namespace="halfgnn_yardsticks")
def _(indptr, logits):
    return torch.empty_like(logits)


@register_fake("naive_attention", namespace="halfgnn_yardsticks")
def _(indptr, indices, score, of_src, of_dst, attn, x, constant):
    return x.new_empty((indptr.shape[0] - 1, *x.shape[1:]))
