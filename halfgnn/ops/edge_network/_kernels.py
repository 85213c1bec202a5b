"""torch.ops.halfgnn.edge_network and its backward: a tile of edges after the other, so that nothing of the size of the edges is
made but what is returned.

They are made of other operators: gathers and sums are halfgnn's, products are PyTorch's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ...common.products import multiplies_slowly
from ._layers import LayerGradients, Layers, cast, wide_type, zeros_like
from ._tiles import Tile, tiles

_gsddmm = torch.ops.halfgnn.gsddmm.default
_u_add_v_add_e = torch.ops.halfgnn.u_add_v_add_e.default


Optional = Any  # a Tensor or None


class Operands(NamedTuple):
    """What the first sums are of, src[u] + dst[v] + edge_weight edge_feat[e] + distance[e] position_weight, and what messages are
    multiplied by, factor[u] edge_factor[e]. At least one of src, dst and edge_feat is given."""

    src: Optional
    dst: Optional
    edge_feat: Optional
    edge_weight: Optional
    factor: Optional
    edge_factor: Optional
    src_position: Optional
    dst_position: Optional
    position_weight: Optional

    @property
    def dtype(self) -> torch.dtype:
        return next(x.dtype for x in (self.src, self.dst, self.edge_weight) if x is not None)

    def of_nodes_in(self, dtype: torch.dtype) -> Operands:
        """All but those of edges, which are cast tile by tile, and positions."""
        kept = _OF_EDGES + _POSITIONS
        return Operands(*(x if name in kept else cast(x, dtype) for name, x in zip(self._fields, self)))


_OF_EDGES = "edge_feat", "edge_factor"
_POSITIONS = "src_position", "dst_position"  # of their own dtype: distances are made in fp32 or wider


class Options(NamedTuple):
    """reduce: sum, mean, max or none. residual: edge_feat is added to what is returned of edges. euclidean: a distance is the root
    of its square."""

    reduce: str
    residual: bool
    return_edges: bool
    euclidean: bool
    tile_edges: int


class Sums:
    """The first sums of a tile, and their gradient's way back to the operands."""

    def __init__(self, tile: Tile, x: Operands, options: Options):
        self.tile, self.x, self.options = tile, x, options
        self.edge_rows: Optional = None if x.edge_feat is None else tile.take(x.edge_feat).to(x.edge_weight.dtype)
        if x.src_position is not None:
            wide = wide_type(x.src_position.dtype)
            self.offsets = tile.of_sources(x.src_position).to(wide) - tile.of_destinations(x.dst_position).to(wide)
            square = self.offsets.square().sum(1, keepdim=True)
            self.distance = square.sqrt() if options.euclidean else square

    def make(self) -> Tensor:
        """(T, F)"""
        z = self._of_rows()
        if self.x.src_position is None:
            return z
        return z.addmm_(self.distance.to(z.dtype), self.x.position_weight.unsqueeze(0))

    def _of_rows(self) -> Any:
        side, src = self.tile.side, self.x.src
        dst = None if self.x.dst is None else self.tile.own(self.x.dst)
        of_edges: Optional = None if self.edge_rows is None else F.linear(self.edge_rows, self.x.edge_weight)
        if None not in (src, dst, of_edges):
            return _u_add_v_add_e(*side, src, dst, of_edges)
        if dst is None and src is None:
            return of_edges
        if of_edges is not None:
            return _gsddmm(*side, "add", of_edges, *((dst, "e", "v") if src is None else (src, "e", "u")))
        if dst is None:
            return self.tile.of_sources(src)
        return _gsddmm(*side, "add", src, dst, "u", "v") if src is not None else self.tile.of_destinations(self.x.dst)

    def backward(self, grad: Tensor, of_edges: Tensor | None, total: Operands) -> None:
        """grad: of the sums. of_edges: what the gradient of edge_feat has besides. total: None for what is not needed."""
        tile, x = self.tile, self.x
        if total.dst is not None:
            tile.add_to_destinations(grad, total.dst)
        if total.src is not None:
            tile.add_to_sources(grad, total.src)
        if total.edge_weight is not None:
            total.edge_weight.add_(grad.t() @ self.edge_rows)
        if total.edge_feat is not None:
            of_rows = grad @ x.edge_weight
            tile.put(
                total.edge_feat, (of_rows if of_edges is None else of_rows.add_(of_edges)).to(total.edge_feat.dtype)
            )
        if total.position_weight is not None:
            total.position_weight.add_((grad.t() @ self.distance.to(grad.dtype)).squeeze(1))
        if total.src_position is not None or total.dst_position is not None:
            self._offsets_backward(grad, total)

    def _offsets_backward(self, grad: Tensor, total: Operands) -> None:
        of_distance = (grad @ self.x.position_weight.unsqueeze(1)).to(self.distance.dtype)
        if self.options.euclidean:  # 0 where two positions are one, as torch.linalg.vector_norm has it
            of_offset = torch.where(self.distance > 0, of_distance / self.distance, 0) * self.offsets
        else:
            of_offset = 2 * of_distance * self.offsets
        if total.src_position is not None:
            self.tile.add_to_sources(of_offset, total.src_position)
        if total.dst_position is not None:
            self.tile.add_to_destinations(-of_offset, total.dst_position)


class Factors:
    """What the messages of a tile are multiplied by, and its gradient's way back."""

    def __init__(self, tile: Tile, x: Operands):
        self.tile, self.x = tile, x

    def multiply(self, rows: Tensor) -> Tensor:
        if self.x.factor is not None:
            rows = rows * self.tile.of_sources(self.x.factor)
        return rows if self.x.edge_factor is None else rows * self._of_edges(rows)

    def _of_edges(self, rows: Tensor) -> Tensor:
        return self.tile.take(self.x.edge_factor).to(rows.dtype).unsqueeze(1)

    def backward(self, grad: Tensor, message: Tensor, total: Operands) -> Tensor:
        """The gradient of messages. grad: of the products."""
        if total.factor is not None or total.edge_factor is not None:
            self._backward_of_factors(grad * message, total)
        return self.multiply(grad)

    def _backward_of_factors(self, products: Tensor, total: Operands) -> None:
        if total.factor is not None:
            rows = products if self.x.edge_factor is None else products * self._of_edges(products)
            self.tile.add_to_sources(rows, total.factor)
        if total.edge_factor is not None:
            rows = products if self.x.factor is None else products * self.tile.of_sources(self.x.factor)
            self.tile.put(total.edge_factor, rows.sum(1, dtype=wide_type(rows.dtype)).to(total.edge_factor.dtype))


# ---- forward -----------------------------------------------------------------------------------------------------------------


class Maximum:
    """Of messages, and where in the adjacency they are: the first of equal ones."""

    def __init__(self, out: Tensor):
        self.out = out
        self.position = torch.full_like(out, -1, dtype=torch.int64)

    def take(self, tile: Tile, message: Tensor) -> None:
        best, place = tile.reduce(message, "max", message.dtype)
        out, position = tile.own(self.out), tile.own(self.position)
        is_new = (position < 0) | (best > out) | (best.isnan() & ~out.isnan())
        is_new &= (tile.indptr.diff() > 0).unsqueeze(1)
        out.copy_(torch.where(is_new, best, out))
        position.copy_(torch.where(is_new, place.to(torch.int64) + tile.begin, position))


def _degrees(indptr: Tensor) -> Tensor:
    return indptr.diff().clamp(min=1).unsqueeze(1)


def product_type(x: Operands) -> torch.dtype:
    """The dtype in which tiles are computed: fp32 in place of a half type whose products are slow."""
    is_slow = next(t for t in x if t is not None).is_cpu and multiplies_slowly(x.dtype)
    return torch.float32 if is_slow else x.dtype


def forward(csc: Sequence[Optional], x: Operands, layers: Layers, options: Options, width: int):
    """(out, edges, where maxima are). What was not asked for is empty."""
    indptr, indices, _ = csc
    dtype, inner = x.dtype, product_type(x)
    rows = next(t for t in x if t is not None)
    is_max, num_dst = options.reduce == "max", indptr.shape[0] - 1
    out = rows.new_zeros(
        (0 if options.reduce == "none" else num_dst, width), dtype=inner if is_max else wide_type(inner)
    )
    edges = rows.new_empty((indices.shape[0] if options.return_edges else 0, width))
    maximum = Maximum(out) if is_max else None
    x, layers = x.of_nodes_in(inner), layers.to(inner)
    for tile in tiles(csc, options.tile_edges):
        sums = Sums(tile, x, options)
        message = layers.forward(sums.make())
        if options.return_edges:
            tile.put(edges, (message + sums.edge_rows if options.residual else message).to(dtype))
        if options.reduce == "none":
            continue
        message = Factors(tile, x).multiply(message)
        if maximum is not None:
            maximum.take(tile, message)
        else:
            tile.add_to_destinations(message, out)
    if options.reduce == "mean":
        out /= _degrees(indptr)
    position = rows.new_empty((0,), dtype=torch.int64) if maximum is None else maximum.position
    return out.to(dtype), edges, position


# ---- backward ----------------------------------------------------------------------------------------------------------------


class _Upstream(NamedTuple):
    """Gradients of out and edges, and where maxima are. None: there is none."""

    grad: Tensor | None
    grad_edges: Tensor | None
    position: Tensor | None

    def of_out(self, tile: Tile) -> Optional:
        """The gradient of what is reduced (T, *)."""
        if self.grad is None:
            return None
        grad = tile.of_destinations(self.grad)
        if self.position is None:
            return grad
        return grad.masked_fill_(tile.of_destinations(self.position) != tile.positions().unsqueeze(1), 0)


def _total(name: str, x: Tensor | None, is_needed: bool) -> Tensor | None:
    """Where an operand's gradient goes: a sum over tiles, or rows that each tile writes."""
    if x is None or not is_needed:
        return None
    if name in _OF_EDGES:
        return torch.zeros_like(x, memory_format=torch.contiguous_format)
    return zeros_like(x)


def backward(csc, x: Operands, layers: Layers, options: Options, position, grad, grad_edges, needs: Sequence[bool]):
    """(gradients of the operands that `needs` names, and of the layers), in fp32 or wider but for that of edge_feat."""
    inner = product_type(x)
    grad = cast(grad, wide_type(inner))
    if grad is not None and options.reduce == "mean":
        grad = grad / _degrees(csc[0])
    upstream = _Upstream(cast(grad, inner), grad_edges, position if options.reduce == "max" else None)
    x, layers = x.of_nodes_in(inner), layers.to(inner)
    total = Operands(*(_total(*named) for named in zip(Operands._fields, x, needs)))
    of_layers = LayerGradients(layers)
    for tile in tiles(csc, options.tile_edges):
        sums = Sums(tile, x, options)
        of_edges = None if grad_edges is None else tile.take(grad_edges).to(inner)

        def pull_message(message: Tensor, tile: Tile = tile, of_edges: Optional = of_edges) -> Optional:
            found = upstream.of_out(tile)
            if found is not None:
                found = Factors(tile, x).backward(found, message, total)
            if found is None or of_edges is None:
                return of_edges if found is None else found
            return found + of_edges

        of_sums = of_layers.backward(sums.make(), pull_message)
        sums.backward(of_sums, of_edges if options.residual else None, total)
    return total, of_layers
