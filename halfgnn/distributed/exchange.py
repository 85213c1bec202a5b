"""Exchange: the rows that processes send one another, by one all-to-all of exactly those."""

from __future__ import annotations

import contextlib
import math
import zlib
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from .. import ops
from ..common.precision import HALF, without_autocast
from ..graph import Graph

_PATIENCE = timedelta(seconds=10)  # for other processes to say that they are alive, after a failure


class _Pending(NamedTuple):
    """Rows on their way. works: to wait for. rows: which are sent, and may not be freed before. out: which come in."""

    works: list[Any]
    rows: Tensor
    out: Tensor


class Exchange:
    """Rows of nodes that other processes read, and the way back for their gradients.

    group: of torch.distributed, or None. device: of rows. check: see DistGraph.load.
    """

    def __init__(self, group: Any, device: torch.device, check: bool | None) -> None:
        self._group, self._device = group, device
        self._checks = device.type == "cpu" if check is None else check
        self.rank, self.world_size = dist.get_rank(group), dist.get_world_size(group)
        self.bytes_sent, self._failures = 0, 0

    def set_rows(self, sends: Tensor, send_counts: list[int], ghost_counts: list[int], num_own: int) -> None:
        """sends: of this process's rows, those that others read, by process; the counts of both ways, by process."""
        self._sends, self._send_counts, self.ghost_counts, self._num_own = sends, send_counts, ghost_counts, num_own
        edges = torch.arange(sends.shape[0], dtype=sends.dtype, device=sends.device)
        self._sends_to = sends.long().split(send_counts)
        self._returns = Graph.from_edges(edges, sends, num_src=sends.shape[0], num_dst=num_own)  # sums what comes back

    # ---- rows ------------------------------------------------------------------------------------------------------------------

    def with_ghosts(self, x: Tensor) -> Tensor:
        """x (num_own, *), followed by the rows of ghosts."""
        out = x.new_empty((self._num_own + sum(self.ghost_counts), *x.shape[1:]))
        out[: self._num_own] = x
        self._swap(out[self._num_own :], x.index_select(0, self._sends), self.ghost_counts, self._send_counts)
        return out

    def returned(self, rows: Tensor) -> Tensor:
        """Rows of nodes and ghosts, with those of each node summed at its owner: (num_own, *)."""
        found = rows.new_empty((self._sends.shape[0], *rows.shape[1:]))
        self._swap(found, rows[self._num_own :].contiguous(), self._send_counts, self.ghost_counts)
        own = rows[: self._num_own]
        if not rows.is_floating_point():
            return own.index_add(0, self._sends, found)
        with torch.no_grad(), without_autocast(rows.device):
            wide = torch.float32 if rows.dtype in HALF else None
            return own.add(ops.gspmm(self._returns, "copy_rhs", "sum", None, found, out_dtype=wide)).to(rows.dtype)

    def _swap(self, out: Tensor, rows: Tensor, out_counts: list[int], row_counts: list[int]) -> None:
        """Fills out with the rows of other processes, in their order. As bytes: back ends differ in the dtypes that they have."""
        width = math.prod(rows.shape[1:]) * rows.element_size()
        bytes_in, bytes_out = _bytes_of(out), _bytes_of(rows)
        sizes = [count * width for count in out_counts], [count * width for count in row_counts]
        self._call("rows of ghosts", lambda: dist.all_to_all_single(bytes_in, bytes_out, *sizes, group=self._group))
        self.bytes_sent += bytes_out.numel()

    # ---- one process after another -------------------------------------------------------------------------------------------

    def rows_by_process(self, x: Tensor) -> Iterator[tuple[int, Tensor]]:
        """(process, its rows that this process reads): x itself first. The next process's rows travel while the caller works."""
        pending = self._fetch(x, 1)
        yield self.rank, x
        for step in range(1, self.world_size):
            rows = self._finished(pending)
            pending = self._fetch(x, step + 1)
            yield (self.rank + step) % self.world_size, rows

    def summed_at_owners(self, of: Callable[[int], Tensor], dtype: torch.dtype) -> Tensor:
        """The sum, in the dtype, of what all processes have for the rows of this one (num_own, *).

        of(process) returns what this process has for the rows of that one, in fp32 or fp64. They travel in the dtype.
        """
        first = of((self.rank + 1) % self.world_size) if self.world_size > 1 else None
        pending = None if first is None else self._give(first.to(dtype), 1)
        total = of(self.rank)
        for step in range(1, self.world_size):
            rows = self._finished(pending)
            source = (self.rank - step) % self.world_size
            if step + 1 < self.world_size:
                pending = self._give(of((self.rank + step + 1) % self.world_size).to(dtype), step + 1)
            total.index_add_(0, self._sends_to[source], rows.to(total.dtype))  # no row twice
        return total.to(dtype)

    def _fetch(self, x: Tensor, step: int) -> _Pending | None:
        """Sends and receives the rows of one step: of each process, those of the one that is so many after it."""
        if step >= self.world_size:
            return None
        after, before = (self.rank + step) % self.world_size, (self.rank - step) % self.world_size
        return self._travel(x.index_select(0, self._sends_to[before]), before, after, self.ghost_counts[after])

    def _give(self, rows: Tensor, step: int) -> _Pending:
        """The way back."""
        after, before = (self.rank + step) % self.world_size, (self.rank - step) % self.world_size
        return self._travel(rows.contiguous(), after, before, self._send_counts[before])

    def _travel(self, rows: Tensor, to: int, source: int, count: int) -> _Pending:
        out = rows.new_empty((count, *rows.shape[1:]))
        ways = [(dist.isend, rows, to), (dist.irecv, out, source)]
        swaps = [
            dist.P2POp(way, _bytes_of(x), self._global_rank(peer), self._group) for way, x, peer in ways if x.numel()
        ]
        self.bytes_sent += rows.numel() * rows.element_size()
        works: list[Any] = []
        if swaps:
            self._call("rows of ghosts", lambda: works.extend(dist.batch_isend_irecv(swaps)))
        return _Pending(works, rows, out)

    def _finished(self, pending: _Pending | None) -> Tensor:
        assert pending is not None
        for work in pending.works:
            self._call("rows of ghosts", work.wait)
        return pending.out

    def _global_rank(self, rank: int) -> int:
        return rank if self._group is None else dist.get_global_rank(self._group, rank)

    # ---- faults ----------------------------------------------------------------------------------------------------------------

    def in_all(self, what: str, read: Callable[[], Any]) -> Any:
        """What the function returns. If it raises in one process, all raise: those where it did not, a ValueError."""
        found, fault = None, None
        try:
            found = read()
        except Exception as error:  # whatever it is, the others wait
            fault = error
        faults: list[Any] = [None] * self.world_size
        text = None if fault is None else f"{type(fault).__name__}: {fault}"
        self._call(what, lambda: dist.all_gather_object(faults, text, group=self._group))
        if fault is not None:
            raise fault
        for rank, other in enumerate(faults):
            if other is not None:
                raise ValueError(f"process {rank} could not read {what}: {other}")
        return found

    def check_same(self, what: str, value: str) -> None:
        """Raises ValueError in all processes if they have different values."""
        values: list[Any] = [None] * self.world_size
        self._call(what, lambda: dist.all_gather_object(values, value, group=self._group))
        others = [rank for rank, other in enumerate(values) if other != values[0]]
        if others:
            one, other = values[0], values[others[0]]
            raise ValueError(f"processes 0 and {others[0]} have different values of {what}: {one!r} and {other!r}")

    def check_alike(self, x: Tensor, weight: Tensor | None = None, reduce: str = "") -> None:
        """Raises ValueError in all processes if they pass rows of different shapes or dtypes, before any waits for another.

        Or if only some have a weight, or a gradient of it, or another reduction.
        """
        kind = _kind(x, "nodes")
        if weight is not None:
            kind += f"; weight: {_kind(weight, 'edges')}"
        if reduce:
            kind += f"; reduce: {reduce}"
        self._compare(kind)

    @contextlib.contextmanager
    def told_to_others(self) -> Iterator[None]:
        """Around checks of this process's arguments: if they raise, the others, which wait in check_alike, raise too."""
        try:
            yield
        except (TypeError, ValueError) as error:
            with contextlib.suppress(ValueError, RuntimeError):
                self._compare(f"{type(error).__name__}: {error}")
            raise

    def _compare(self, kind: str) -> None:
        if not self._checks:
            return
        own = torch.tensor([zlib.crc32(kind.encode())], device=self._device)
        kinds = own.new_empty(self.world_size)
        self._call("the shape of rows", lambda: dist.all_gather_into_tensor(kinds, own, group=self._group))
        if bool((kinds != own).any()):
            self.check_same("x", kind)

    def _call(self, what: str, collective: Callable[[], Any]) -> None:
        try:
            collective()
        except RuntimeError as error:  # torch.distributed's own are subclasses
            missing = self._missing()
            reason = f"{missing} of {self.world_size} does not answer" if missing else "a process was too late"
            raise RuntimeError(f"process {self.rank} could not exchange {what}: {reason}") from error

    def _missing(self) -> str:
        """The processes that have ended: those that do not write to the store any more."""
        self._failures += 1
        key, own = f"halfgnn/failure-{self._failures}", dist.get_rank()
        store, found = dist.distributed_c10d._get_default_store(), []
        try:
            store.set(f"{key}/{own}", "alive")
            for rank in map(self._global_rank, range(self.world_size)):
                if rank != own and not _has(store, f"{key}/{rank}"):
                    found.append(str(rank))
        except RuntimeError:  # the process that has the store may have ended meanwhile
            found = found or ["of the store"]
        return f"process {', '.join(found)}" if found else ""


def _kind(x: Tensor, rows: str) -> str:
    has_gradient = x.requires_grad and torch.is_grad_enabled()
    shape = ", ".join(map(str, (rows, *x.shape[1:])))
    return f"({shape}) of {x.dtype}, {'with a' if has_gradient else 'without'} gradient"


def _has(store: Any, key: str) -> bool:
    """Whether another process writes the key soon. Raises RuntimeError if the store does not answer."""
    try:
        store.wait([key], _PATIENCE)
        return True
    except RuntimeError:
        return bool(store.check([key]))


def _bytes_of(x: Tensor) -> Tensor:
    return x.view(-1).view(torch.uint8) if x.numel() else x.new_empty(0, dtype=torch.uint8)
