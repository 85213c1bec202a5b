"""The gate of torch_geometric's calls: whether halfgnn takes one, and why it falls back to torch_geometric if not.

Adapters ask it once. What it asks of modes, dtypes and indices is asked for both drop-ins, in :mod:`halfgnn.drop_in.gate`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ...common.caching import ordinary_tensors
from ...drop_in.gate import IDS, Reason, index_reason, mode_reason, operands_reason
from ...expressions.expression import Expression
from ...expressions.propagation import Propagation
from ...graphs_by_tensor.edge_index import holds_ids_below
from .call import owner_of, plain
from .size import Size


class FallBack(Exception):
    """Raised where a call falls back to the library, with the reason.

    The library is called after the except clause, not in it: its own errors would be shown with this one as their context.
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason


def require(reason: str | None) -> None:
    """Raises FallBack if there is a reason."""
    if reason is not None:
        raise FallBack(reason)


def rows_reason(x: Any) -> str | None:
    """Why a tensor with one row per node or edge is not taken."""
    if type(x) is not Tensor and type(x) is not nn.Parameter:
        return Reason.SUBCLASS_OF_TENSOR
    return operands_reason((x,)) if x.layout == torch.strided else str(x.layout)


def eager_reason(x: Any, index: Any = None) -> str | None:
    """Why rows x, that go by an index, are not taken in the code that runs now; index: None if there is none."""
    reason = mode_reason(may_be_watched=True) or rows_reason(x)
    return reason if reason is not None or index is None else index_reason(index, x)


def ids_reason(propagation: Propagation, row: int, num_nodes: int) -> str | None:
    """Why a row of an edge_index has no Graph with so many nodes. It is read once."""
    edges = propagation.edge_index
    if edges.shape[1] == 0:
        return Reason.NO_EDGES
    if edges.dtype not in IDS:
        return Reason.INDEX_DTYPE.format(edges.dtype)
    with ordinary_tensors():
        return None if holds_ids_below(edges, row, num_nodes) else Reason.IDS_OUT_OF_RANGE


Owner = tuple[Propagation, int]  # of an index: the edges of whose edge_index it is a row, and which


class Call(NamedTuple):
    """Rows src that go by an index to num_rows others: what is reduced, or normalized by a softmax.

    src: a tensor or an expression. dim: its dimension of rows. kind: sum, mean, max, min or softmax; None if halfgnn has no such
    operator. num_rows: None if the caller does not know it.
    """

    src: Any
    index: Any
    dim: int
    num_rows: Any
    kind: str | None
    size: Size

    @classmethod
    def of(cls, src: Any, index: Any, dim: int, num_rows: Any, kind: str | None) -> Call:
        return cls(src, index, dim, num_rows, kind, Size.of(src, str(kind)))

    def owner(self) -> Owner | None:
        """The edges of whose edge_index the index is a row, if it is one of a known edge_index."""
        return owner_of(self.index) if self.index.dim() == 1 and mode_reason(may_be_watched=True) is None else None

    def is_over(self, dim: int) -> bool:
        """Whether the rows are in that dimension of src."""
        rank = self.src.dim()
        return -rank <= self.dim < rank and self.dim % rank == dim

    def edges_reason(self, owner: Owner | None) -> str | None:
        """Why rows of edges are not reduced along the edges of their edge_index."""
        if self.kind is None:
            return Reason.NO_OPERATOR
        if owner is None:
            return mode_reason(may_be_watched=True) or Reason.UNKNOWN_INDEX
        propagation, row = owner
        if propagation.refusal is not None:
            return propagation.refusal
        edge_dim = self.src.edge_dim if isinstance(self.src, Expression) else 0
        if not self.is_over(edge_dim) or self.src.shape[edge_dim] != propagation.edge_index.shape[1]:
            return Reason.ANOTHER_DIMENSION
        return Reason.NO_DIM_SIZE if self.num_rows is None else ids_reason(propagation, row, self.num_rows)

    def index_reason(self) -> str | None:
        """Why rows are not reduced by the Graph of an index that is no row of a known edge_index."""
        if self.kind is None:
            return Reason.NO_OPERATOR
        reason = eager_reason(self.src)
        if reason is not None:
            return reason
        if not self.is_over(0) or self.src.shape[0] != plain(self.index).shape[0]:
            return Reason.ANOTHER_DIMENSION
        return None if self.num_rows is None or isinstance(self.num_rows, int) else Reason.NO_DIM_SIZE

    def is_transposed(self, owner: Owner | None) -> bool:
        """Whether the rows are in another dimension than the first, as features of one graph are whose nodes are that dimension."""
        src, dim = self.src, self.dim
        if self.kind is None or not -src.dim() <= dim < src.dim() or dim % src.dim() == 0:
            return False
        if owner is not None:
            return True
        return self.index.dim() == 1 and src.shape[dim] == self.index.shape[0] and eager_reason(src) is None
