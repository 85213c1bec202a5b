"""Exchange: the rows that processes send one another, by one all-to-all of exactly those."""

from __future__ import annotations

import contextlib
import functools
import math
import zlib
from collections.abc import Callable, Iterator, Sequence
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


class Rows:
    """The rows of one node type that other processes read, and those of other processes that this one reads, its ghosts.

    sends: of this process's rows, those that others read, by process; send_counts and ghost_counts: of both ways, by process.
    num_own: how many rows this process owns.
    """

    def __init__(self, sends: Tensor, send_counts: list[int], ghost_counts: list[int], num_own: int) -> None:
        self.sends, self.send_counts, self.ghost_counts, self.num_own = sends, send_counts, ghost_counts, num_own
        self.sends_to = sends.long().split(send_counts)
        edges = torch.arange(sends.shape[0], dtype=sends.dtype, device=sends.device)
        self.returns = Graph.from_edges(edges, sends, num_src=sends.shape[0], num_dst=num_own)  # sums what comes back

    def added(self, rows: Tensor, found: Tensor) -> Tensor:
        """Rows of this process (num_own, *), with what the others found for them."""
        if not rows.is_floating_point():
            return rows.index_add(0, self.sends, found)
        with torch.no_grad(), without_autocast(rows.device):
            wide = torch.float32 if rows.dtype in HALF else None
            return rows.add(ops.gspmm(self.returns, "copy_rhs", "sum", None, found, out_dtype=wide)).to(rows.dtype)


class Exchange:
    """Rows of nodes that other processes read, and the way back for their gradients.

    group: of torch.distributed, or None. device: of rows. check: see DistGraph.load.
    rows: of every node type. A graph of one type has one.
    """

    rows: list[Rows]

    def __init__(self, group: Any, device: torch.device, check: bool | None) -> None:
        self._group, self._device = group, device
        self._checks = device.type == "cpu" if check is None else check
        self.rank, self.world_size = dist.get_rank(group), dist.get_world_size(group)
        self.bytes_sent, self._failures = 0, 0

    # ---- rows ------------------------------------------------------------------------------------------------------------------

    def with_ghosts(self, types: Sequence[int], rows: Sequence[Tensor]) -> list[Tensor]:
        """Rows (num_own, *) of some node types, each followed by those of its ghosts."""
        outs, sent = [], []
        for number, x in zip(types, rows):
            of = self.rows[number]
            out = x.new_empty((of.num_own + sum(of.ghost_counts), *x.shape[1:]))
            out[: of.num_own] = x
            outs.append(out)
            sent.append(x.index_select(0, of.sends))
        ghosts = [out[self.rows[number].num_own :] for number, out in zip(types, outs)]
        self._swap(ghosts, [self.rows[i].ghost_counts for i in types], sent, [self.rows[i].send_counts for i in types])
        return outs

    def returned(self, types: Sequence[int], rows: Sequence[Tensor]) -> list[Tensor]:
        """Rows of nodes and ghosts of some node types, with those of each node summed at its owner: (num_own, *)."""
        ghosts, found = [], []
        for number, x in zip(types, rows):
            of = self.rows[number]
            ghosts.append(x[of.num_own :].contiguous())
            found.append(x.new_empty((of.sends.shape[0], *x.shape[1:])))
        self._swap(found, [self.rows[i].send_counts for i in types], ghosts, [self.rows[i].ghost_counts for i in types])
        return [self.rows[i].added(x[: self.rows[i].num_own], came) for i, x, came in zip(types, rows, found)]

    def swapped(self, rows: Tensor, counts: list[int], counts_in: list[int]) -> Tensor:
        """Sends so many rows to each process. Returns what they send, so many rows of each, in their order."""
        out = rows.new_empty((sum(counts_in), *rows.shape[1:]))
        self._swap([out], [counts_in], [rows.contiguous()], [counts])
        return out

    def _swap(
        self, outs: list[Tensor], out_counts: list[list[int]], rows: list[Tensor], row_counts: list[list[int]]
    ) -> None:
        """Fills outs with the rows of other processes, in their order. As bytes: back ends differ in the dtypes that they have.

        One message per process has the rows of all node types.
        """
        into, sent = (
            [_by_process(x, of_type) for x, of_type in zip(xs, counts)]
            for xs, counts in ((outs, out_counts), (rows, row_counts))
        )
        sizes_in, sizes_out = (
            [sum(part.numel() for part in parts) for parts in zip(*of_types)] for of_types in (into, sent)
        )
        if len(rows) == 1:
            bytes_in, bytes_out = _bytes_of(outs[0]), _bytes_of(rows[0])
        else:
            bytes_out = torch.cat([part for parts in zip(*sent) for part in parts])
            bytes_in = bytes_out.new_empty(sum(sizes_in))
        swap = functools.partial(dist.all_to_all_single, bytes_in, bytes_out, sizes_in, sizes_out, group=self._group)
        self._call("rows of ghosts", swap)
        self.bytes_sent += bytes_out.numel()
        if len(rows) > 1:
            places = [part for parts in zip(*into) for part in parts]
            for place, came in zip(places, bytes_in.split([place.numel() for place in places])):
                place.copy_(came)

    # ---- one process after another -------------------------------------------------------------------------------------------

    @property
    def _only(self) -> Rows:
        """Those of a graph of one node type."""
        (only,) = self.rows
        return only

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
            total.index_add_(0, self._only.sends_to[source], rows.to(total.dtype))  # no row twice
        return total.to(dtype)

    def _fetch(self, x: Tensor, step: int) -> _Pending | None:
        """Sends and receives the rows of one step: of each process, those of the one that is so many after it."""
        if step >= self.world_size:
            return None
        after, before = (self.rank + step) % self.world_size, (self.rank - step) % self.world_size
        return self._travel(
            x.index_select(0, self._only.sends_to[before]), before, after, self._only.ghost_counts[after]
        )

    def _give(self, rows: Tensor, step: int) -> _Pending:
        """The way back."""
        after, before = (self.rank + step) % self.world_size, (self.rank - step) % self.world_size
        return self._travel(rows.contiguous(), after, before, self._only.send_counts[before])

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

    def check_alike(self, *named: tuple[str, Tensor | str | None]) -> None:
        """Raises ValueError in all processes if they pass other arguments, before any waits for another.

        named: (its name, a tensor of rows, a string or None). Of a tensor are compared the dtype, the shape without the number of
        rows, and whether it has a gradient.
        """
        self._compare("; ".join(f"{name}: {_kind(x) if isinstance(x, Tensor) else x}" for name, x in named))

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
            self.check_same("arguments", kind)

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


def _kind(x: Tensor) -> str:
    has_gradient = x.requires_grad and torch.is_grad_enabled()
    shape = ", ".join(map(str, ("rows", *x.shape[1:])))
    return f"({shape}) of {x.dtype}, {'with a' if has_gradient else 'without'} gradient"


def _has(store: Any, key: str) -> bool:
    """Whether another process writes the key soon. Raises RuntimeError if the store does not answer."""
    try:
        store.wait([key], _PATIENCE)
        return True
    except RuntimeError:
        return bool(store.check([key]))


def _by_process(x: Tensor, counts: list[int]) -> tuple[Tensor, ...]:
    """The bytes of the rows of each process."""
    width = math.prod(x.shape[1:]) * x.element_size()
    return _bytes_of(x).split([count * width for count in counts])


def _bytes_of(x: Tensor) -> Tensor:
    return x.view(-1).view(torch.uint8) if x.numel() else x.new_empty(0, dtype=torch.uint8)
