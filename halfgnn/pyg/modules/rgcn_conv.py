"""RGCNConv of torch_geometric."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch_geometric import nn

from ... import ops
from ...common.compat import is_exporting
from ...common.fake import register_fake
from ...common.ids import exported_ids
from ...common.operands import check_columns, check_operand, check_pair, check_parameter, check_tensor
from ...common.precision import autocast
from ...graph import Graph
from ...graphs_by_tensor.edge_index import library
from ...nn.projections import linear
from ...nn.relation_pairs import pair_of_edge, pairs_of
from ...nn.typed_linear import typed_linear
from .base import ONE_PASS, UpstreamModule, checked_graph, edge_index_if_unsupported, reduced, reduction_of


class RGCNConv(UpstreamModule, nn.RGCNConv):
    """Relational graph convolution, torch_geometric.nn.RGCNConv on two calls of :func:`halfgnn.ops.gspmm`.

    The sources of all relations are reduced in one call, into a row for each relation and destination that have an edge. Rows are
    multiplied by their relation's matrix, on CUDA in half precision by one grouped_mm. Another call sums those of a destination.
    torch_geometric walks the relations, and its result is fp32; here it has the dtype of x, or that of autocast. Node ids in place
    of features run torch_geometric's forward.
    """

    def forward(self, x, edge_index, edge_type=None):
        """root x[v] + sum over relations r of weight[r] times the mean (or another aggregate) of x[u] over in-edges (u, v) of r.

        Args:
            x: (N, in_channels), or the pair of (num_src, in_channels) and (num_dst, in_channels).
            edge_index: (2, E), or a Graph or DGLGraph.
            edge_type: (E,), the relation of every edge, integers.

        Returns:
            (num_dst, out_channels)

        Raises:
            ValueError: wrong shapes, devices, ids or relations. TypeError: wrong dtypes.
        """
        unsupported = edge_index_if_unsupported(self, nn.RGCNConv, edge_index, x, ONE_PASS)
        if unsupported is None:
            _check(x)
        x_src, x_dst = x if isinstance(x, (tuple, list)) and len(x) == 2 else (x, x)
        if unsupported is None and not all(
            isinstance(part, Tensor) and part.is_floating_point() for part in (x_src, x_dst)
        ):
            unsupported = edge_index
        if unsupported is not None:
            # propagate_type: (x: Tensor, edge_type_ptr: OptTensor)
            return super().forward(x, unsupported, edge_type)
        widths = self.in_channels_l, x_dst.shape[-1] if self.root is None else self.root.shape[0]
        for part, name, width in zip((x_src, x_dst), ("x[0]", "x[1]") if x_dst is not x_src else ("x", "x"), widths):
            check_columns(part, name, width)
            check_parameter(part, name, self.weight)
        g = checked_graph(edge_index, x_src, x_src.shape[0], x_dst.shape[0])
        _check_types(g, edge_type)
        out = (self._traced if torch.compiler.is_compiling() else self._sum)(g, x_src, edge_type)
        if self.root is not None:
            out = out + linear(autocast(x_dst), self.root.t(), None)
        return out if self.bias is None else out + self.bias.to(out.dtype)

    def _sum(self, g: Graph, x_src: Tensor, edge_type: Tensor) -> Tensor:
        """The sum over relations of their projected aggregates."""
        pairs = pairs_of(g, edge_type, self.num_relations)
        rows = reduced(pairs.into, str(reduction_of(self.aggr_module)), x_src)
        parts = [typed_linear(part, pairs.ends, weight) for part, weight in self._blocks(rows)]
        return ops.copy_u_sum(pairs.out_of, torch.cat(parts, 1) if len(parts) > 1 else parts[0])

    def _traced(self, g: Graph, x_src: Tensor, edge_type: Tensor) -> Tensor:
        """The same in compiled code, which cannot know how many pairs have an edge: all have a row, for one matrix product."""
        src, dst = g.edges()
        if is_exporting():  # by operators that need no Python
            message = f"edge_type holds others than [0, {self.num_relations})"
            pair_ids = exported_ids(edge_type, self.num_relations, message).to(dst.dtype) * g.num_dst + dst
        else:
            pair_ids = torch.ops.halfgnn_pyg.pair_of_edge(edge_type, dst, g.num_dst, self.num_relations)
        num_pairs = self.num_relations * g.num_dst
        into = Graph.from_edges(src, pair_ids, num_src=g.num_src, num_dst=num_pairs, check=False)
        rows = reduced(into, str(reduction_of(self.aggr_module)), x_src)
        rows = rows.view(self.num_relations, g.num_dst, -1).transpose(0, 1)
        parts = [linear(part.flatten(1), weight.flatten(0, 1).t(), None) for part, weight in self._blocks(rows)]
        return torch.cat(parts, 1) if len(parts) > 1 else parts[0]

    def _blocks(self, rows: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Columns of rows (*, in), and the matrices (relations, in, out) by which they are multiplied."""
        weight = self.weight
        if self.num_blocks is not None:
            return [(part, weight[:, i]) for i, part in enumerate(rows.chunk(self.num_blocks, -1))]
        if self.num_bases is not None:
            weight = (self.comp @ weight.flatten(1)).view(self.num_relations, self.in_channels_l, self.out_channels)
        return [(rows, weight)]


def _check(x: Any) -> None:
    """Raises unless x is features or ids of nodes, which may be None, or a pair of them and a tensor."""
    if isinstance(x, (tuple, list)):
        check_pair(x, "x")
        check_tensor(x[1], "x[1]")
    named = list(zip(x, ("x[0]", "x[1]"))) if isinstance(x, (tuple, list)) else [(x, "x")]
    for part, name in named:
        if part is None:
            continue
        check_tensor(part, name)
        if not part.is_floating_point() and (part.dtype is not torch.long or part.dim() != 1):
            raise TypeError(
                f"{name} has shape {tuple(part.shape)} and dtype {part.dtype}; expected features of a floating-point type, or ids "
                "(nodes,) of torch.int64"
            )


def _check_types(g: Graph, edge_type: Any) -> None:
    check_operand(edge_type, "edge_type", g, "e")
    if edge_type.dim() != 1 or edge_type.is_floating_point() or edge_type.dtype == torch.bool:
        raise TypeError(
            f"edge_type has shape {tuple(edge_type.shape)} and dtype {edge_type.dtype}; expected (E,) of integers"
        )


library.define("pair_of_edge(Tensor edge_type, Tensor dst, SymInt num_dst, SymInt num_relations) -> Tensor")


library.impl("pair_of_edge", pair_of_edge, "CompositeExplicitAutograd")


@register_fake("pair_of_edge", namespace="halfgnn_pyg")
def _(edge_type, dst, num_dst, num_relations):
    return torch.empty_like(dst)
