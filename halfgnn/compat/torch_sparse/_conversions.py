"""How a SparseTensor is made, copied, moved and converted."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from typing_extensions import Self

from ...common.ids import check_count, check_edge_index
from .storage import SparseStorage, get_layout


class Dtypes:
    """The part of SparseTensor that is named like types."""

    storage: SparseStorage

    @classmethod
    def from_storage(cls, storage: SparseStorage) -> Self:
        new = cls.__new__(cls)
        new.storage = storage.copy()
        return new

    def type(self, dtype: torch.dtype, non_blocking=False) -> Self:
        """With values of the dtype."""
        value = self.storage.value()
        if value is None or value.dtype == dtype:
            return self
        return self.from_storage(self.storage.type(dtype, non_blocking))

    def bfloat16(self) -> Self:
        return self.type(torch.bfloat16)

    def bool(self) -> Self:
        return self.type(torch.bool)

    def byte(self) -> Self:
        return self.type(torch.uint8)

    def char(self) -> Self:
        return self.type(torch.int8)

    def half(self) -> Self:
        return self.type(torch.float16)

    def float(self) -> Self:
        return self.type(torch.float32)

    def double(self) -> Self:
        return self.type(torch.float64)

    def short(self) -> Self:
        return self.type(torch.int16)

    def int(self) -> Self:
        return self.type(torch.int32)

    def long(self) -> Self:
        return self.type(torch.int64)


class Conversions(Dtypes):
    """The part of SparseTensor that makes and converts one."""

    def __init__(
        self,
        row: Tensor | None = None,
        rowptr: Tensor | None = None,
        col: Tensor | None = None,
        value: Tensor | None = None,
        sparse_sizes: tuple[int | None, int | None] | None = None,
        is_sorted: bool = False,
        trust_data: bool = False,
    ) -> None:
        """From entries in any order.

        Args:
            row, rowptr: rows (nnz,) int64, or their offsets (M + 1,).
            col: columns (nnz,) int64.
            value: (nnz, *) of any dtype, or None.
            sparse_sizes: (M, N); by default one more than the largest row and column.
            is_sorted: the entries are in row-major order already.
            trust_data: ids are not checked.

        Raises TypeError or ValueError for other dtypes, shapes or devices, and for ids out of range.
        """
        self.storage = SparseStorage(
            row=row,
            rowptr=rowptr,
            col=col,
            value=value,
            sparse_sizes=sparse_sizes,
            is_sorted=is_sorted,
            trust_data=trust_data,
        )

    # ---- constructors ------------------------------------------------------------------------------------------------------------

    @classmethod
    def from_edge_index(
        cls,
        edge_index: Tensor,
        edge_attr: Tensor | None = None,
        sparse_sizes: tuple[int | None, int | None] | None = None,
        is_sorted: bool = False,
        trust_data: bool = False,
    ) -> Self:
        """From edge_index (2, nnz): row 0 has the rows, row 1 the columns."""
        check_edge_index(edge_index)
        return cls(edge_index[0], None, edge_index[1], edge_attr, sparse_sizes, is_sorted, trust_data)

    @classmethod
    def from_dense(cls, mat: Tensor, has_value: bool = True) -> Self:
        """From a matrix (M, N, *), of which elements that are not 0 are entries."""
        is_entry = mat != 0
        row, col = (is_entry.flatten(2).any(2) if mat.dim() > 2 else is_entry).nonzero().unbind(1)
        value = mat[row, col] if has_value else None
        return cls(row, None, col, value, (mat.shape[0], mat.shape[1]), is_sorted=True, trust_data=True)

    @classmethod
    def from_torch_sparse_coo_tensor(cls, mat: Tensor, has_value: bool = True) -> Self:
        mat = mat.coalesce()
        row, col = mat.indices()
        return cls(row, None, col, mat.values() if has_value else None, tuple(mat.shape[:2]), True, True)  # type: ignore

    @classmethod
    def from_torch_sparse_csr_tensor(cls, mat: Tensor, has_value: bool = True) -> Self:
        value = mat.values() if has_value else None
        rowptr, col = mat.crow_indices().long(), mat.col_indices().long()
        return cls(None, rowptr, col, value, tuple(mat.shape[:2]), True, True)  # type: ignore[arg-type]

    @classmethod
    def eye(
        cls,
        M: int,
        N: int | None = None,
        has_value: bool = True,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        fill_cache: bool = False,
    ) -> Self:
        """Ones on the diagonal of (M, N). fill_cache: make all tensors of the storage."""
        M, N = check_count(M, "M"), check_count(M if N is None else N, "N")
        row = torch.arange(min(M, N), device=device)
        rowptr = torch.arange(M + 1, device=device).clamp_(max=min(M, N))
        value = torch.ones(row.numel(), dtype=dtype, device=device) if has_value else None
        storage = SparseStorage(
            row=row, rowptr=rowptr, col=row, value=value, sparse_sizes=(M, N), is_sorted=True, trust_data=True
        )
        return cls.from_storage(storage.fill_cache_() if fill_cache else storage)

    @classmethod
    def from_scipy(cls, mat: Any, has_value: bool = True) -> Self:
        """From a scipy sparse matrix. Entries of one place stay apart if its format keeps them apart."""
        mat = mat.tocoo()
        row, col = (torch.from_numpy(ids.copy()).long() for ids in (mat.row, mat.col))
        value = torch.from_numpy(mat.data.copy()) if has_value else None
        return cls(row, None, col, value, tuple(mat.shape[:2]))

    # ---- copies, dtypes, devices -------------------------------------------------------------------------------------------------

    def copy(self) -> Self:
        return self.from_storage(self.storage)

    def clone(self) -> Self:
        return self.from_storage(self.storage.clone())

    def type_as(self, tensor: Tensor, non_blocking: bool = False) -> Self:
        return self.type(tensor.dtype, non_blocking)

    def to_device(self, device: torch.device | str, non_blocking: bool = False) -> Self:
        if torch.device(device) == self.device():
            return self
        return self.from_storage(self.storage.to_device(device, non_blocking))

    def device_as(self, tensor: Tensor, non_blocking: bool = False) -> Self:
        return self.to_device(tensor.device, non_blocking)

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """To a device, a dtype of values, or those of a tensor, as Tensor.to."""
        device, dtype, non_blocking, _ = torch._C._nn._parse_to(*args, **kwargs)
        new = self if dtype is None else self.type(dtype, non_blocking)
        return new if device is None else new.to_device(device, non_blocking)

    def cpu(self) -> Self:
        return self.to_device("cpu")

    def cuda(self, device: int | str | torch.device | None = None, non_blocking: bool = False) -> Self:
        device = torch.cuda.current_device() if device is None else device
        return self.to_device(torch.device("cuda", device) if isinstance(device, int) else device, non_blocking)

    def is_cuda(self) -> bool:
        return self.storage.col().is_cuda

    def device(self) -> torch.device:
        return self.storage.col().device

    def pin_memory(self) -> Self:
        return self.from_storage(self.storage.pin_memory())

    def is_pinned(self) -> bool:
        return self.storage.is_pinned()

    def share_memory_(self) -> Self:
        self.storage.share_memory_()
        return self

    def is_shared(self) -> bool:
        return self.storage.is_shared()

    def dtype(self) -> torch.dtype:
        """That of the values, torch.float32 without values."""
        value = self.storage.value()
        return torch.float32 if value is None else value.dtype

    def is_floating_point(self) -> bool:
        return self.dtype().is_floating_point

    # ---- gradients ---------------------------------------------------------------------------------------------------------------

    def requires_grad(self) -> bool:
        value = self.storage.value()
        return value is not None and value.requires_grad

    def requires_grad_(self, requires_grad: bool = True, dtype: torch.dtype | None = None) -> Self:
        """Lets gradients reach the values, which are made, as ones, if there are none."""
        value = self.storage.value()
        if value is None and requires_grad:
            value = torch.ones(self.storage.col().numel(), dtype=dtype, device=self.device())
            self.storage.set_value_(value, "coo")
        if value is not None:
            value.requires_grad_(requires_grad)
        return self

    def detach_(self) -> Self:
        value = self.storage.value()
        if value is not None:
            value.detach_()
        return self

    def detach(self) -> Self:
        value = self.storage.value()
        return self.from_storage(self.storage.with_changes(value=None if value is None else value.detach()))

    # ---- other forms -------------------------------------------------------------------------------------------------------------

    def to_dense(self, dtype: torch.dtype | None = None) -> Tensor:
        """(M, N, *). Of entries of one place the last one stays. dtype: of the ones that stand for values."""
        row, col, value = self.storage.row(), self.storage.col(), self._values_or_ones(dtype)
        out = value.new_zeros((*self.storage.sparse_sizes(), *value.shape[1:]))
        return out.index_put((row, col), value)

    def to_torch_sparse_coo_tensor(self, dtype: torch.dtype | None = None) -> Tensor:
        value = self._values_or_ones(dtype)
        index = torch.stack([self.storage.row(), self.storage.col()])
        return torch.sparse_coo_tensor(index, value, self._shape_of(value))

    def to_torch_sparse_csr_tensor(self, dtype: torch.dtype | None = None) -> Tensor:
        value = self._values_or_ones(dtype)
        return torch.sparse_csr_tensor(self.storage.rowptr(), self.storage.col(), value, self._shape_of(value))

    def to_torch_sparse_csc_tensor(self, dtype: torch.dtype | None = None) -> Tensor:
        value, order = self._values_or_ones(dtype), self.storage.csr2csc()
        rows = self.storage.row()[order]
        return torch.sparse_csc_tensor(self.storage.colptr(), rows, value[order], self._shape_of(value))

    def to_scipy(self, layout: str | None = None, dtype: torch.dtype | None = None) -> Any:
        """A scipy matrix of the layout coo, csr or csc."""
        import scipy.sparse

        layout = get_layout(layout)
        storage, value = self.storage, self._values_or_ones(dtype)
        if value.dim() != 1:
            raise ValueError(f"values have shape {tuple(value.shape)}; expected one number per entry")
        if layout == "coo":
            ids: tuple[Tensor, ...] = storage.row(), storage.col()
        elif layout == "csr":
            ids = storage.col(), storage.rowptr()
        else:
            order = storage.csr2csc()
            value, ids = value[order], (storage.row()[order], storage.colptr())
        arrays = [tensor.detach().cpu().numpy() for tensor in (value, *ids)]
        make = getattr(scipy.sparse, f"{layout}_matrix")
        return make((arrays[0], (arrays[1], arrays[2])) if layout == "coo" else tuple(arrays), storage.sparse_sizes())

    def _values_or_ones(self, dtype: torch.dtype | None) -> Tensor:
        value = self.storage.value()
        if value is not None:
            return value
        return torch.ones(self.storage.col().numel(), dtype=dtype, device=self.device())

    def _shape_of(self, value: Tensor) -> tuple[int, ...]:
        return (*self.storage.sparse_sizes(), *value.shape[1:])
