"""Numbers of groups that torch_geometric asks an index for, at which torch.compile breaks its graph: an operator returns them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ....common.fake import register_fake, unknown_size
from ....drop_in.compiled import is_traced_by_dynamo
from ....drop_in.wrappers import Route as Original
from ....drop_in.wrappers import inline
from ....graphs_by_tensor.edge_index import library

library.define("num_groups(Tensor index) -> SymInt")


def _num_groups(index: Tensor) -> int:
    return int(index.max()) + 1 if index.numel() else 0


@register_fake("num_groups", namespace="halfgnn_pyg")
def _(index):
    """One symbol for all that ask the same index, as PyTorch has one for the number of its elements that are not 0."""
    now = index._version, getattr(getattr(index, "fake_mode", None), "epoch", None)
    known = getattr(index, "_halfgnn_num_groups", None)
    if known is None or known[0] != now:
        known = index._halfgnn_num_groups = now, unknown_size()
    return known[1]


library.impl("num_groups", _num_groups, "CompositeExplicitAutograd")


def sized(index: Any, size: Any) -> Any:
    """The number of groups of an index in a call that Dynamo traces, where the program gives none."""
    return torch.ops.halfgnn_pyg.num_groups(index) if size is None and type(index) is Tensor else size


@inline
def num_nodes(original: Original) -> Original:
    """``maybe_num_nodes``."""
    is_graph, of_groups = is_traced_by_dynamo, sized

    def maybe_num_nodes(edge_index: Any, num_nodes: Any = None) -> Any:
        return original(edge_index, of_groups(edge_index, None) if num_nodes is None and is_graph() else num_nodes)

    return maybe_num_nodes


@inline
def aggregation(original: Original) -> Original:
    """``Aggregation.__call__``."""
    is_graph, of_groups = is_traced_by_dynamo, sized

    def __call__(
        self: Any, x: Any, index: Any = None, ptr: Any = None, dim_size: Any = None, dim: int = -2, **kwargs: Any
    ) -> Any:
        if dim_size is None and ptr is None and is_graph():
            dim_size = of_groups(index, None)
        return original(self, x, index, ptr, dim_size, dim, **kwargs)

    return __call__


@inline
def hypergraph(original: Original) -> Original:
    """``HypergraphConv.forward``."""
    is_graph, of_groups = is_traced_by_dynamo, sized

    def forward(
        self: Any, x: Any, hyperedge_index: Any, hyperedge_weight: Any = None, hyperedge_attr: Any = None,
        num_edges: Any = None,
    ) -> Any:  # fmt: skip
        if is_graph() and num_edges is None:
            num_edges = of_groups(hyperedge_index[1], None)
        return original(self, x, hyperedge_index, hyperedge_weight, hyperedge_attr, num_edges)

    return forward
