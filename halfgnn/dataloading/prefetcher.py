"""Prefetcher: moves mini-batches to the GPU while it computes."""

from __future__ import annotations

import atexit
import contextlib
import queue
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from . import batch as batches
from .feature_store import Rows, StagedRows

_POLL = 1.0  # seconds between checks whether the other thread is still there
_JOIN = 30.0  # seconds for which close() waits for a loader that is in the middle of a batch


class Prefetcher:
    """Iterates over a loader's mini-batches, moved to `device`.

    For a GPU, a thread takes batches from the loader, gathers their features into page-locked buffers and copies them on a stream
    of its own, while the caller computes. A batch is returned as soon as its copies are queued. The caller's stream waits for
    them, and the caller does not. At most `depth` batches are ahead of the caller's, and buffers are reused, so memory does not
    grow. For the CPU there is nothing to move: batches are fetched one by one, in the calling thread.

    The device gets every tensor, every :class:`FeatureStore` row (`store.rows(ids)`), every Graph and every HeteroGraph in a batch,
    inside tuples, lists, mappings, dataclasses and torch_geometric's data. DGL's blocks move as they are if DGL can hold graphs on
    the device. The wheels on PyPI cannot hold them on a GPU: then each block becomes a :class:`Block`, which all of halfgnn takes.

    Args:
        loader: any iterable of mini-batches. The Prefetcher may be iterated over again if the loader may; a generator may not.
        device: the device of the batches; by default the GPU, if there is one.
        fetch: function of a batch, called before the batch is moved. It may turn ids into rows of a store, and the batch into what
            the model takes. It runs in the background, like the loader, and without gradients.
        depth: the largest number of batches ahead of the caller's.
        background: whether a thread does the work; by default only for a GPU.
        convert: whether DGL's graphs become Blocks; by default only if DGL cannot hold graphs on the device.

    Raises (when iterated over):
        Errors of the loader, of `fetch` or of a gather, in the calling thread. RuntimeError: with a thread, another iteration over
        the same Prefetcher has begun. ValueError: the loader is an iterator, and this is the second iteration.

    Attributes:
        times: seconds of all iterations, by phase. "sample": the loader. "gather": fetch, rows and conversion. "transfer": copies,
            as the device reports them. "wait": the caller's wait for a batch; without a thread that is "sample" and "gather".
        num_bytes: number of bytes that were moved.
    """

    def __init__(
        self,
        loader: Iterable,
        device: Any = None,
        *,
        fetch: Callable[[Any], Any] | None = None,
        depth: int = 2,
        background: bool | None = None,
        convert: bool | None = None,
    ):
        if not hasattr(loader, "__iter__") and not hasattr(loader, "__getitem__"):
            raise TypeError(f"loader is a {type(loader).__name__}; expected an iterable of mini-batches")
        if fetch is not None and not callable(fetch):
            raise TypeError(f"fetch is a {type(fetch).__name__}; expected a function of a batch")
        if isinstance(depth, bool) or not isinstance(depth, int) or depth < 1:
            raise ValueError(f"depth is {depth!r}; expected a positive number of batches")
        self.loader, self.fetch, self.depth, self.convert = loader, fetch, depth, convert
        self.device = _device(device)
        self.background = self.device.type == "cuda" if background is None else background
        self.times = dict.fromkeys(("sample", "gather", "transfer", "wait"), 0.0)
        self.num_bytes = 0
        self._mover = _CudaMover(self.device, self) if self.device.type == "cuda" else _HostMover()
        self._run: _Background | None = None
        self._is_spent = False

    def __len__(self) -> int:
        return len(self.loader)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        if self._run is not None:
            self._run.close(is_overtaken=True)
        iterator = iter(self.loader)  # in the calling thread, for the caller's random state
        if iterator is self.loader:
            if self._is_spent:
                raise ValueError(
                    f"loader is a {type(iterator).__name__}, which can be iterated over once; expected an iterable for more epochs"
                )
            self._is_spent = True
        return self._from(iterator) if self.background else self._inline(iterator)

    def close(self) -> None:
        """Ends the current iteration, if any, and its thread."""
        if self._run is not None:
            self._run.close()
            self._run = None

    def __enter__(self) -> Prefetcher:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def _from(self, iterator: Iterator) -> Iterator[Any]:
        if self._run is not None:
            self._run.close(is_overtaken=True)
        self._mover.begin()
        run = self._run = _Background(self, iterator)
        try:
            while True:
                with self._timed("wait"):
                    moved = run.get()
                if moved is None:
                    return
                yield self._mover.received(*moved)
                del moved  # so that a batch is freed when the caller drops it
        finally:
            run.close()

    def _inline(self, iterator: Iterator) -> Iterator[Any]:
        while True:
            self._mover.begin()
            with self._timed("wait"):
                moved = self._next_moved(iterator)
            if moved is None:
                return
            yield self._mover.received(*moved)
            del moved

    def _next_moved(self, iterator: Iterator) -> tuple | None:
        """The arguments of the mover's received() for the next batch; None after the last batch."""
        with self._timed("sample"):
            try:
                batch = next(iterator)
            except StopIteration:
                return None
        with self._timed("gather"), torch.no_grad():
            batch = self._converted(batch)
            if self.fetch is not None:
                batch = self._converted(self.fetch(batch))
        return self._mover.moved(batch, self._timed)

    def _converted(self, batch: Any) -> Any:
        return batches.without_dgl(batch) if self._converts() else batch

    def _converts(self) -> bool:
        if self.convert is None:
            return self.device.type != "cpu" and "dgl" in batches.sys.modules and not batches.dgl_has(self.device.type)
        return self.convert

    @contextlib.contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.times[phase] += time.perf_counter() - start


def _device(device: Any) -> torch.device:
    device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"device is {device}; expected the CPU or a CUDA device")
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return device


# ---- the thread --------------------------------------------------------------------------------------------------------------


_runs: weakref.WeakSet[_Background] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Ends all threads: one that is inside PyTorch when the interpreter ends would abort the process."""
    for run in list(_runs):
        run.close(seconds=_JOIN / 10)


class _Failure:
    def __init__(self, error: BaseException) -> None:
        self.error = error


class _Background:
    """One iteration: a thread that makes batches, and a queue of those that are ready."""

    def __init__(self, owner: Prefetcher, iterator: Iterator) -> None:
        self._owner, self._iterator = owner, iterator
        self._ready: queue.Queue = queue.Queue()
        self._permits = threading.Semaphore(owner.depth)  # batches that may be ahead of the caller's
        self._stopped = threading.Event()
        self._is_over = self._is_overtaken = False
        _runs.add(self)
        self._thread = threading.Thread(target=self._work, name="halfgnn-prefetcher", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        count = 0
        try:
            with torch.no_grad(), self._owner._mover.context():
                while self._permitted():
                    moved = self._owner._next_moved(self._iterator)
                    self._ready.put(moved)
                    if moved is None:
                        return
                    count += 1
        except BaseException as error:  # of any kind: the caller handles it
            if hasattr(error, "add_note"):
                error.add_note(f"while batch {count} was made, in the thread of a halfgnn Prefetcher")
            self._ready.put(_Failure(error))

    def _permitted(self) -> bool:
        while not self._stopped.is_set():
            if self._permits.acquire(timeout=_POLL):
                return not self._stopped.is_set()
        return False

    def get(self) -> Any:
        """The next batch, or None after the last. Raises the error that the thread has raised."""
        if self._is_overtaken:
            raise RuntimeError(
                "another iteration over this Prefetcher has begun; expected one at a time, or a Prefetcher for each"
            )
        if self._is_over:
            return None
        item = self._take()
        if item is None or isinstance(item, _Failure):
            self._is_over = True
            if item is not None:
                raise item.error
        self._permits.release()
        return item

    def _take(self) -> Any:
        while True:
            try:
                return self._ready.get(timeout=_POLL)
            except queue.Empty:
                if not self._thread.is_alive() and self._ready.empty():
                    return _Failure(RuntimeError("the thread of a Prefetcher has ended without a batch or an error"))

    def close(self, is_overtaken: bool = False, seconds: float | None = None) -> None:
        """Ends the iteration. is_overtaken: another iteration has begun. seconds: how long to wait for the thread."""
        self._is_overtaken = self._is_overtaken or (is_overtaken and not self._is_over)
        self._stopped.set()
        self._permits.release()  # the thread may be waiting for it
        self._is_over = True
        if self._thread is threading.current_thread():
            return
        self._thread.join(_JOIN if seconds is None else seconds)
        if self._thread.is_alive():
            warnings.warn(
                "a Prefetcher's loader is in the middle of a batch and does not end; its thread is left behind",
                stacklevel=2,
            )
            return
        while not self._ready.empty():
            self._ready.get()
        close = getattr(self._iterator, "close", None)  # of a generator
        if callable(close):
            close()
        self._iterator = iter(())  # dropping the loader's iterator ends the workers of a DataLoader


# ---- moving ------------------------------------------------------------------------------------------------------------------


class _HostMover:
    """To the CPU: gathers rows. Tensors are usually there already."""

    def begin(self) -> None:
        pass

    def context(self) -> contextlib.AbstractContextManager:
        return contextlib.nullcontext()

    def moved(self, batch: Any, timed: Callable) -> tuple:
        with timed("gather"):
            return (batches.mapped(batch, _on_cpu),)

    def received(self, batch: Any) -> Any:
        return batch


def _on_cpu(x: Any) -> Any:
    if isinstance(x, Rows):
        return x.gather(device="cpu")
    return x if x.device.type == "cpu" else x.to("cpu")


class _CudaMover:
    """To a GPU, through page-locked buffers, on a stream of its own. cuda: torch.cuda, except in tests."""

    NUM_SLOTS = 2  # one is filled while the other is copied

    def __init__(self, device: torch.device, owner: Any, cuda: Any = torch.cuda) -> None:
        self._device, self._owner, self._cuda = device, owner, cuda
        self._stream = cuda.Stream(device)
        self._slots = [_Slot(cuda) for _ in range(self.NUM_SLOTS)]
        self._next = 0
        self._timings: list[tuple[Any, Any]] = []

    def begin(self) -> None:
        """Waits for the work that the caller has queued so far, such as a store's copy to the GPU."""
        self._stream.wait_stream(self._cuda.current_stream(self._device))

    @contextlib.contextmanager
    def context(self) -> Iterator[None]:
        with self._cuda.device(self._device), self._cuda.stream(self._stream):
            yield

    def moved(self, batch: Any, timed: Callable) -> tuple:
        slot = self._slots[self._next]
        self._next = (self._next + 1) % len(self._slots)
        slot.wait()
        with self.context():
            with timed("gather"):
                staged = batches.mapped(batch, lambda x: self._staged(x, slot))
            start = self._event()
            moved = batches.mapped(staged, self._copied)
            slot.copied = end = self._event()
        self._add_timing(start, end)
        return moved, end

    def _staged(self, x: Any, slot: _Slot) -> Any:
        """The source of the copy: page-locked memory with the content of x, or rows that the GPU gathers. DGL copies its graphs."""
        if batches.moves_with_features(x):
            return x
        if isinstance(x, Rows):
            if x.store.can_be_read_by(self._device):
                return Rows(x.store, self._staged(x.ids, slot))
            if x.store.scale is not None and x.store.device.type == "cpu":  # codes are copied, and converted there
                return x.store.staged(x.ids, slot.empty)
            out = slot.empty((x.ids.shape[0], *x.store.shape[1:]), x.store.dtype)
            return x.gather(out) if x.store.device.type == "cpu" else out.copy_(x.gather())
        if x.device.type != "cpu" or not _is_values_alone(x) or x.is_pinned():
            slot.keep(x)
            return x
        return slot.empty(x.shape, x.dtype).copy_(x)

    def _copied(self, x: Any) -> Any:
        if isinstance(x, StagedRows):
            self._owner.num_bytes += x.nbytes
            return x.on(self._device)
        if isinstance(x, Rows):
            return x.gather(device=self._device)
        if x.device == self._device:
            return x
        if batches.moves_with_features(x):
            return x.to(self._device, non_blocking=True)
        self._owner.num_bytes += x.numel() * x.element_size()
        return x.to(self._device, non_blocking=True)

    def received(self, batch: Any, event: Any) -> Any:
        """`batch`, after the caller's stream has been told to wait for its copies."""
        stream = self._cuda.current_stream(self._device)
        stream.wait_event(event)
        # The batch was made on another stream. Its memory must not be reused before this stream is done with it.
        batches.mapped(batch, lambda x: x.record_stream(stream) or x if x.device == self._device else x)
        return batch

    # ---- times ---------------------------------------------------------------------------------------------------------------

    def _event(self) -> Any:
        event = self._cuda.Event(enable_timing=True)
        event.record(self._stream)
        return event

    def _add_timing(self, start: Any, end: Any) -> None:
        self._timings.append((start, end))
        while self._timings and self._timings[0][1].query():
            first, last = self._timings.pop(0)
            self._owner.times["transfer"] += first.elapsed_time(last) / 1e3


def _is_values_alone(x: Tensor) -> bool:
    """Whether a buffer can hold all of a tensor. An EdgeIndex of torch_geometric, for example, also knows how it is sorted."""
    return type(x) in (Tensor, torch.nn.Parameter) and x.layout == torch.strided and not x.is_nested


class _Slot:
    """Page-locked buffers of one batch, as large as the largest batch so far. They are reused when its copies are done."""

    def __init__(self, cuda: Any) -> None:
        self._cuda = cuda
        self._buffers: list[Tensor] = []
        self._used = 0
        self._kept: list[Tensor] = []
        self.copied: Any = None

    def wait(self) -> None:
        if self.copied is not None:
            self.copied.synchronize()
        self._used = 0
        self._kept.clear()

    def keep(self, tensor: Tensor) -> None:
        """Keeps the tensor's memory until its copy is done."""
        self._kept.append(tensor)

    def empty(self, shape: Any, dtype: torch.dtype) -> Tensor:
        size = int(torch.Size(shape).numel()) * dtype.itemsize
        if self._used == len(self._buffers):
            self._buffers.append(self._allocated(size))
        elif self._buffers[self._used].numel() < size:
            self._buffers[self._used] = self._allocated(size + size // 8)
        buffer = self._buffers[self._used]
        self._used += 1
        return buffer[:size].view(dtype).view(shape)

    def _allocated(self, size: int) -> Tensor:
        return torch.empty(max(size, 1), dtype=torch.uint8, device="cpu", pin_memory=self._cuda is torch.cuda)
