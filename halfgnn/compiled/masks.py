"""Masks that a backward reads, computed again there: Inductor's code for CPUs stores masks value by value, which takes many times
as long as what they are computed of (findings/inductor_relu_mask.sh)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch.utils.checkpoint import CheckpointPolicy

from . import thresholds

_VIEWS = {
    "view", "_unsafe_view", "reshape", "expand", "unsqueeze", "squeeze", "permute", "transpose", "alias", "slice", "select",
}  # fmt: skip


class RecomputeMasks(CustomGraphPass):
    """A pass over the graph of a forward and its backward, which Inductor divides after it. other: a pass that comes first."""

    def __init__(self, other: Any = None) -> None:
        self.other = other

    def __call__(self, graph: fx.Graph) -> None:
        if self.other is not None:
            self.other(graph)
        recompute_masks(graph)

    def uuid(self) -> Any:
        own = get_hash_for_files((__file__, thresholds.__file__))
        if self.other is None:
            return own
        other = self.other.uuid() if isinstance(self.other, CustomGraphPass) else None
        return None if other is None else (own, other)  # None: compiled code is not cached


def recompute_masks(graph: fx.Graph) -> None:
    """Tags masks as a checkpoint tags what it does not save."""
    backward: set[fx.Node] = set()
    for node in graph.nodes:
        if _is_tangent(node) or any(x in backward for x in node.all_input_nodes):
            backward.add(node)
    reads = set(backward)  # and what is computed for the backward alone, or again
    for node in reversed(graph.nodes):
        if node in backward or not _is_elementwise(node):
            continue
        is_mask = _is_mask(node.meta["val"]) and "recompute" not in node.meta
        if is_mask and any(user in reads for user in node.users):
            node.meta.update(recompute=CheckpointPolicy.MUST_RECOMPUTE, ac_graph_id=0)
            reads.add(node)
        elif node.users and all(user in reads for user in node.users):
            reads.add(node)


def _is_tangent(node: fx.Node) -> bool:
    return node.op == "placeholder" and "tangents" in str(node.target)


def _is_elementwise(node: fx.Node) -> bool:
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or not isinstance(node.meta.get("val"), Tensor):
        return False
    name = target._schema.name.partition("::")[2]
    return torch.Tag.pointwise in target.tags or name in _VIEWS or name in ("_to_copy", "convert_element_type")


def _is_mask(x: Tensor) -> bool:
    return x.dtype is torch.bool and x.device.type == "cpu" and thresholds.is_worth(x, thresholds.MASK)
