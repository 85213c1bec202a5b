"""Kernels that an eager step of layers of torch_geometric launches on CUDA: python -m laboratory.compiled_cuda.eager

Forward and backward of one layer of 64 under halfgnn.pyg.patch() and without it, in fp32 and under autocast. Counted on the CPU,
which calls the same operators of PyTorch: all that neither make a view nor only allocate are a kernel each. Kernels of halfgnn's
operators are those of docs/operators.md, on a graph without long rows.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from torch.profiler import ProfilerActivity, profile

import halfgnn.pyg
from halfgnn.common import precision, products

from .__main__ import launches_of_operators

# Of ATen, what launches no kernel. Only on the CPU are weights compared with those that are kept (equal).
NOTHING = (
    "_lazy_clone", "_reshape_alias", "_unsafe_view", "alias", "as_strided", "as_strided_", "contiguous", "detach", "empty",
    "empty_like", "empty_strided", "equal", "expand", "flatten", "is_same_size", "item", "lift_fresh", "narrow", "new_empty",
    "numel", "permute", "promote_types", "reshape", "resize_", "resolve_conj", "resolve_neg", "result_type", "select", "slice",
    "split", "squeeze", "t", "to", "transpose", "unbind", "unflatten", "unsqueeze", "view", "view_as",
)  # fmt: skip
# What is one kernel, whatever it calls on the CPU.
WHOLE = (
    "_to_copy", "add", "add_", "addmm", "bmm", "cat", "copy_", "div", "index", "index_add", "index_select", "mean", "mm",
    "mul", "scatter_add_", "scatter_reduce_", "sum", "zeros",
)  # fmt: skip


def kernels_of(step: Callable[[], Any]) -> tuple[Any, Counter[str]]:
    """The value of a step, and how often it calls each operator that is a kernel."""
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        value = step()
    found: Counter[str] = Counter()
    for event in profiler.events():
        if event.cpu_parent is None:
            found.update(_kernels(event))
    return value, found


def _kernels(event: Any) -> Iterator[str]:
    namespace, _, name = event.name.partition("::")
    inner = [x for child in event.cpu_children for x in _kernels(child)]
    if namespace == "halfgnn":
        yield event.name
    elif namespace == "aten" and name in WHOLE:
        yield name
    elif inner or namespace != "aten" or name in NOTHING:
        yield from inner
    else:
        yield name


def launches(counts: Counter[str]) -> int:
    known = {**launches_of_operators(has_long_rows=False), "halfgnn.head_logits_backward": 2}  # and a sum of its parts
    return sum(n * known.get(name.replace("::", "."), 1) for name, n in counts.items())


def counted(layer: torch.nn.Module, patched: bool, autocast: bool) -> list[Counter[str]]:
    """The kernels of a step's forward and backward, once all that is kept is there."""
    x, edge_index = torch.randn(3000, 64, requires_grad=True), torch.randint(3000, (2, 45_000))

    def forward() -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            return layer(x, edge_index)

    # Products of halves are fast, as on a GPU: on many CPUs layers avoid them.
    with (
        mock.patch.object(products, "_FAST_HALVES", precision.HALF),
        halfgnn.pyg.accelerate() if patched else contextlib.nullcontext(),
    ):
        for _ in range(6):  # until what is kept of constant weights is there
            forward().sum().backward()
        for leaf in (x, *layer.parameters()):
            leaf.grad = None  # as an optimizer's zero_grad()
        out, counts = kernels_of(forward)
        grad = torch.ones_like(out)
        _, of_backward = kernels_of(lambda: out.backward(grad))
    return [counts, of_backward]


def layers() -> dict[str, Any]:
    from torch_geometric import nn

    return {
        "GCNConv": nn.GCNConv(64, 64), "SAGEConv": nn.SAGEConv(64, 64), "GINConv": nn.GINConv(torch.nn.Linear(64, 64)),
        "GATConv": nn.GATConv(64, 8, 8), "GATv2Conv": nn.GATv2Conv(64, 8, 8), "TransformerConv": nn.TransformerConv(64, 8, 8),
    }  # fmt: skip


def main() -> None:
    for name, layer in layers().items():
        for autocast in (False, True):
            totals = [sum(map(launches, counted(layer, patched, autocast))) for patched in (False, True)]
            print(f"{name}, {'bf16' if autocast else 'fp32'}: {totals[1]} launches, torch_geometric alone {totals[0]}")


if __name__ == "__main__":
    main()
