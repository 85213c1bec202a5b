"""Frame: the named columns of the nodes or edges of one type, of which rows are taken and devices changed when they are read."""

from __future__ import annotations

import contextlib
from collections import namedtuple
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...common.caching import ordinary_tensors
from .base import DGLError

Initializer = Callable[..., Tensor]  # (shape, dtype, device, range of the rows' ids) -> tensor

_NOTHING = contextlib.nullcontext()

Scheme = namedtuple("Scheme", ["shape", "dtype"])  # of one row of a column


class LazyFeature(NamedTuple):
    """Stands in a column for rows of a feature that a data loader will fetch.

    Attributes:
        name: of the feature; None for the name of the column.
        id_: ids of the rows; None for those in the column ``dgl.NID`` or ``dgl.EID``.
    """

    name: str | None = None
    id_: Tensor | None = None

    def to(self, *args: Any, **kwargs: Any) -> LazyFeature:
        """Itself, so that it can be moved like a tensor."""
        return self

    @property
    def data(self) -> LazyFeature:
        """Itself, as a column gives its tensor."""
        return self


def zero_initializer(shape: Any, dtype: torch.dtype, ctx: Any, id_range: slice | None = None) -> Tensor:
    """Zeros, the initial rows of features by default."""
    return torch.zeros(shape, dtype=dtype, device=ctx)


class Column:
    """One feature of every row: a tensor, and what is to be done to it when it is read.

    A column of a subgraph takes its rows, and one of a moved graph changes the device, when ``data`` is read. The result is cached.
    A column is not changed otherwise, so graphs share columns.
    """

    __slots__ = ("_device", "_dtype", "index", "storage")

    def __init__(
        self,
        storage: Tensor,
        scheme: Any = None,
        index: Tensor | None = None,
        device: torch.device | None = None,
        deferred_dtype: torch.dtype | None = None,
    ):
        self.storage = storage
        self.index = index
        self._device = device
        self._dtype = deferred_dtype

    @staticmethod
    def create(data: Any) -> Column:
        """The column itself, or one of a tensor."""
        return data if isinstance(data, Column) else Column(data)

    def __len__(self) -> int:
        return self.storage.shape[0] if self.index is None else self.index.shape[0]

    @property
    def shape(self) -> torch.Size:
        """Of one row."""
        return self.storage.shape[1:]

    @property
    def dtype(self) -> torch.dtype:
        return self.storage.dtype if self._dtype is None else self._dtype

    @property
    def device(self) -> torch.device:
        return self.storage.device if self._device is None else self._device

    @property
    def scheme(self) -> Scheme:
        return Scheme(tuple(self.shape), self.dtype)

    @property
    def data(self) -> Tensor:
        """All rows. What was deferred is done now."""
        if self.index is not None or self._device is not None or self._dtype is not None:
            # Kept, so it must also serve who trains on the graph after it was evaluated.
            with _NOTHING if self.storage.requires_grad else ordinary_tensors(self.storage):
                self._materialize()
        return self.storage

    def _materialize(self) -> None:
        if self.index is not None:
            self.storage = rows_of(self.storage, self.index)
            self.index = None
        if self._device is not None or self._dtype is not None:
            self.storage = self.storage.to(device=self._device, dtype=self._dtype)
            self._device = self._dtype = None

    def subcolumn(self, rows: Tensor) -> Column:
        """Of these rows, which are taken when it is read."""
        index = rows if self.index is None else self.index[rows.to(self.index.device).long()]
        return Column(self.storage, None, index, self._device, self._dtype)

    def to(self, device: Any, **kwargs: Any) -> Column:
        """On another device, when it is read."""
        return Column(self.storage, None, self.index, torch.device(device), self._dtype)

    def astype(self, dtype: torch.dtype) -> Column:
        """Of another dtype, when it is read."""
        return Column(self.storage, None, self.index, self._device, dtype)

    def clone(self) -> Column:
        """Another column of the same tensor."""
        return Column(self.storage, None, self.index, self._device, self._dtype)

    def fetch(self, indices: Tensor, device: Any = None, pin_memory: bool = False, **kwargs: Any) -> Tensor:
        """Rows by id, on a device, as data loaders ask for them."""
        rows = rows_of(self.data, indices)
        if pin_memory and rows.device.type == "cpu":
            rows = rows.pin_memory()
        return rows if device is None else rows.to(device, non_blocking=pin_memory)

    def __getstate__(self) -> Tensor:
        return self.data

    def __setstate__(self, data: Tensor) -> None:
        Column.__init__(self, data)

    def __repr__(self) -> str:
        return repr(self.data)


def rows_of(tensor: Tensor, rows: Tensor) -> Tensor:
    """tensor[rows], of page-locked rows too if the ids are on a GPU. Gradients flow."""
    if rows.device != tensor.device:
        rows = rows.to(tensor.device)
    return tensor.index_select(0, rows.long() if rows.dtype not in (torch.int32, torch.int64) else rows)


class Frame(MutableMapping):
    """Columns {name: tensor}, each with `num_rows` rows.

    Raises:
        DGLError: a column that is no tensor, or has another number of rows.
    """

    __slots__ = ("_columns", "_default_initializer", "_initializers", "num_rows")

    def __init__(self, data: Any = None, num_rows: int | None = None):
        self._columns: dict[str, Column] = {}
        self._initializers: dict[str, Initializer] = {}
        self._default_initializer: Initializer = zero_initializer
        if num_rows is None:
            num_rows = len(next(iter(data.values()))) if data else 0
        self.num_rows = num_rows
        for name, column in (data or {}).items():
            self[name] = column

    # ---- a mapping ---------------------------------------------------------------------------------------------------------------

    def __getitem__(self, name: str) -> Tensor:
        return self._columns[name].data

    def __setitem__(self, name: str, data: Any) -> None:
        if isinstance(data, LazyFeature):
            self._columns[name] = data  # type: ignore[assignment]
            return
        column = Column.create(data)
        if not isinstance(column.storage, Tensor):
            raise DGLError(f"the feature {name!r} is a {type(data).__name__}; expected a torch.Tensor")
        if column.storage.dim() == 0 or len(column) != self.num_rows:
            raise DGLError(
                f"the feature {name!r} has shape {tuple(column.storage.shape)}; expected {self.num_rows} rows, one per node or edge"
            )
        self._columns[name] = column

    def __delitem__(self, name: str) -> None:
        del self._columns[name]

    def __contains__(self, name: object) -> bool:
        return name in self._columns

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)

    def __repr__(self) -> str:
        return repr(dict(self))

    @property
    def schemes(self) -> dict[str, Scheme]:
        """{name: (shape of one row, dtype)}"""
        return {name: column.scheme for name, column in self._columns.items() if isinstance(column, Column)}

    def update_column(self, name: str, data: Any) -> None:
        """Set a column."""
        self[name] = data

    # ---- copies ------------------------------------------------------------------------------------------------------------------

    def _like(self, columns: dict[str, Column], num_rows: int) -> Frame:
        frame = Frame.__new__(Frame)
        frame._columns, frame.num_rows = columns, num_rows
        frame._initializers, frame._default_initializer = self._initializers, self._default_initializer
        return frame

    def clone(self) -> Frame:
        """A frame of the same columns. Setting columns of one does not change the other."""
        frame = self._like(self._columns.copy(), self.num_rows)
        if self._initializers:
            frame._initializers = self._initializers.copy()
        return frame

    def deepclone(self) -> Frame:
        """A frame of copied tensors."""
        columns = {
            name: Column(column.data.clone()) if isinstance(column, Column) else column
            for name, column in self._columns.items()
        }
        return self._like(columns, self.num_rows)

    def subframe(self, rows: Tensor) -> Frame:
        """Of these rows, which are taken when columns are read."""
        return self._map(lambda column: column.subcolumn(rows), rows.numel())

    def to(self, device: Any, **kwargs: Any) -> Frame:
        """On another device, to which columns move when they are read."""
        return self._map(lambda column: column.to(device))

    def astype(self, of: Callable[[torch.dtype], bool], dtype: torch.dtype) -> Frame:
        """Columns of some dtypes converted when they are read. of: whether those of a dtype are."""
        return self._map(lambda column: column.astype(dtype) if of(column.dtype) else column)

    def map_tensors(self, fn: Callable[[Tensor], Tensor]) -> Frame:
        """fn(tensor) in place of each tensor, now."""
        return self._map(lambda column: Column(fn(column.data)))

    def _map(self, fn: Callable[[Column], Column], num_rows: int | None = None) -> Frame:
        columns = {name: fn(column) if isinstance(column, Column) else column for name, column in self._columns.items()}
        return self._like(columns, self.num_rows if num_rows is None else num_rows)

    # ---- rows --------------------------------------------------------------------------------------------------------------------

    def set_initializer(self, initializer: Initializer | None, column: str | None = None) -> None:
        """What gives new rows of a column, or of all that have none of their own."""
        if column is None:
            self._default_initializer = initializer or zero_initializer
        else:
            self._initializers = {**self._initializers, column: initializer or zero_initializer}

    def get_initializer(self, column: str | None = None) -> Initializer:
        """What gives new rows of a column."""
        if column is None:
            return self._default_initializer
        return self._initializers.get(column, self._default_initializer)

    def new_rows(self, name: str, scheme: Scheme, device: torch.device, ids: slice) -> Tensor:
        """Rows with these ids of a column, as its initializer gives them."""
        shape = (ids.stop - ids.start, *scheme.shape)
        rows = self.get_initializer(name)(shape, scheme.dtype, device, ids)
        if tuple(rows.shape) != shape:
            raise DGLError(f"the initializer of {name!r} gave shape {tuple(rows.shape)}; expected {shape}")
        return rows

    def update_rows(self, rows: Tensor, data: Mapping[str, Tensor]) -> None:
        """Set some rows of columns, in copies of them. A new column has initial rows elsewhere. Gradients flow."""
        for name, values in data.items():
            if name in self._columns:
                old = self[name]
            else:
                scheme = Scheme(tuple(values.shape[1:]), values.dtype)
                old = self.new_rows(name, scheme, values.device, slice(0, self.num_rows))
            if old.shape[1:] != values.shape[1:] or old.dtype != values.dtype:
                raise DGLError(
                    f"rows of {name!r} have shape {tuple(values.shape[1:])} and dtype {values.dtype}; expected those of the"
                    f" feature, {tuple(old.shape[1:])} and {old.dtype}"
                )
            self._columns[name] = Column(old.index_copy(0, rows.long(), values))

    def append_rows(self, count: int, data: Mapping[str, Tensor] | None, device: torch.device) -> None:
        """`count` rows at the end: of `data` where it has a column, otherwise initial ones."""
        data = data or {}
        ids = slice(self.num_rows, self.num_rows + count)
        columns: dict[str, Column] = {}
        for name, values in data.items():
            if values.shape[0] != count:
                raise DGLError(f"the feature {name!r} has shape {tuple(values.shape)}; expected {count} rows")
            scheme = Scheme(tuple(values.shape[1:]), values.dtype)
            old = self[name] if name in self._columns else None
            if old is None:
                old = self.new_rows(name, scheme, device, slice(0, self.num_rows))
            columns[name] = Column(torch.cat([old, values]))
        for name, column in self._columns.items():
            if name not in columns:
                new = self.new_rows(name, column.scheme, device, ids)
                columns[name] = Column(torch.cat([column.data, new]))
        # In the order of the columns, new ones last.
        self._columns = {name: columns[name] for name in [*self._columns, *columns]}
        self.num_rows += count

    def add_rows(self, num_rows: int) -> None:
        """Initial rows at the end."""
        device = next((column.device for column in self._columns.values()), torch.device("cpu"))
        self.append_rows(num_rows, None, device)
