"""What is derived from an object at its first use and cached with it, such as the other side of a graph.

A cached value must serve every later caller: in other modes of PyTorch, on other CUDA streams, after a CUDA-graph capture.

Modes: tensors of inference mode or of tracing are not cached, see :func:`ordinary_tensors`.

Streams: work on a GPU is queued on a stream. When another stream reads the value, that work may not be done yet. Work that is
queued during a capture is not done at all until the graph is replayed. So a value is cached with an event, for which every other
stream waits once, and a value made during a capture is not cached.

On the CPU, and while torch.compile traces, values are cached as they are. Compiled code does not wait: the values it reads must be
made on its own stream, or before that stream was synchronized.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from torch._ops import _len_torch_dispatch_stack_pre_dispatch
from torch.utils._python_dispatch import _disable_current_modes

T = TypeVar("T")


# ---- modes -------------------------------------------------------------------------------------------------------------------


def ordinary_tensors(source: Tensor | None = None) -> contextlib.AbstractContextManager[None]:
    """A context in which new tensors are ordinary ones, whatever mode the caller is in, so that they can be cached.

    The modes are inference mode, fake and proxy tensor modes (torch.export) and functorch transforms. Compiled code is traced as it
    stands: its side effects are real tensors.

    source: the tensor from which the new ones are made. If it is fake, they stay in its mode, and are traced with it.
    """
    if torch.compiler.is_dynamo_compiling():
        return contextlib.nullcontext()  # older versions of torch cannot trace a generator
    if _is_plain():
        return _NOTHING
    return _without_modes(is_fake=source is not None and type(source) is not Tensor)


_NOTHING = contextlib.nullcontext()


def _is_plain() -> bool:
    """Whether no mode is on, as mostly: leaving them takes longer than what is made of a small graph."""
    return not (
        torch.is_inference_mode_enabled()
        or torch._C._are_functorch_transforms_active()
        or torch._C._len_torch_dispatch_stack()
        or _len_torch_dispatch_stack_pre_dispatch()
    )


@contextlib.contextmanager
def _without_modes(is_fake: bool) -> Iterator[None]:
    modes = contextlib.nullcontext() if is_fake else _disable_current_modes()
    with torch.inference_mode(False), modes, torch._C._DisableFuncTorch():
        yield


def ordinary(tensor: Tensor) -> Tensor:
    """The tensor, or a copy if it is one of inference mode, which autograd cannot save."""
    if torch.compiler.is_dynamo_compiling() or not tensor.is_inference():
        return tensor
    with ordinary_tensors(tensor):
        return tensor.clone()


def unwrapped(tensor: Tensor, name: str) -> Tensor:
    """The tensor of ids `name` without what torch.func.grad and its like wrap around it. Its address and version can be read.

    Raises ValueError if torch.func.vmap maps over it.
    """
    if torch.compiler.is_compiling():
        return tensor
    while torch._C._functorch.is_gradtrackingtensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    if torch._C._functorch.is_batchedtensor(tensor):
        raise ValueError(f"{name} is mapped by torch.func.vmap; expected one graph for all, with in_dims None")
    return tensor


# ---- streams and captures ----------------------------------------------------------------------------------------------------


def _has_streams(device: torch.device) -> bool:
    """Whether work on the device is queued on streams. Before CUDA is initialised, all its tensors are fake."""
    return device.type == "cuda" and not torch.compiler.is_dynamo_compiling() and torch.cuda.is_initialized()


def _is_captured(device: torch.device) -> bool:
    with torch.cuda.device(device):
        return torch.cuda.is_current_stream_capturing()


def is_captured(device: torch.device) -> bool:
    """Whether work on `device` goes into a CUDA graph now."""
    return _has_streams(device) and _is_captured(device)


def _raw_stream(device: torch.device) -> int:
    """The handle of the current stream, in a tenth of the time of torch.cuda.current_stream."""
    return torch._C._cuda_getCurrentRawStream(device.index)


class Cached(Generic[T]):
    """A value of tensors on a GPU, and the event after which they hold it.

    It is made on the stream that has queued the work, and not while that stream is captured. It has no __slots__, because
    torch.compile of torch 2.4 cannot read them.
    """

    def __init__(self, value: T, tensors: list[Tensor]) -> None:
        self.value = value
        self._tensors = tensors
        stream = torch.cuda.current_stream(tensors[0].device)
        self._event = stream.record_event()
        self._served = {stream.cuda_stream}  # handles of the streams that need not wait

    def get(self) -> T:
        """The value, for use on the current stream.

        At its first use a stream waits for the event and is recorded with the tensors, so that their memory is not reused before
        the stream is done with it. A stream that is captured does neither, because a capture must not wait for an event from
        outside. torch.cuda.graph synchronizes the device before it begins, so values that were cached before are complete. A
        capture must not use what another stream makes after the capture has begun.
        """
        if not torch.compiler.is_dynamo_compiling():
            device = self._tensors[0].device
            if _raw_stream(device) not in self._served and not _is_captured(device):
                self._serve(torch.cuda.current_stream(device))
        return self.value

    def _serve(self, stream: torch.cuda.Stream) -> None:
        stream.wait_event(self._event)
        for tensor in self._tensors:
            # Once is enough: when the tensor is freed, the allocator waits for all work that the stream has queued by then.
            tensor.record_stream(stream)
        self._served.add(stream.cuda_stream)


def may_cache(device: torch.device) -> bool:
    """Whether a value just made on `device` may be cached. Warns and returns False if the current stream is captured."""
    if not is_captured(device):
        return True
    warnings.warn(
        "part of a graph's topology is made while a CUDA graph is captured, so it is not cached: every replay makes it again. "
        "Call g.csc() and g.csr(), or the module once, before the capture",
        stacklevel=3,
    )
    return False


def cacheable(value: T, tensors: Iterable[Tensor | None]) -> T | Cached[T]:
    """The form in which to cache a value that :func:`may_cache` allows: with an event on a GPU, otherwise as it is.

    tensors: all tensors of the value, on one device.
    """
    present = [tensor for tensor in tensors if tensor is not None]
    return Cached(value, present) if present and _has_streams(present[0].device) else value


def read_cached(value: T | Cached[T]) -> T:
    """The value that :func:`cacheable` was given, for use on the current stream."""
    return value.get() if isinstance(value, Cached) else value


def refuse_capture(device: torch.device, what: str, cure: str) -> None:
    """Raises RuntimeError if the current stream of `device` is captured, because `what` would wait for the device."""
    if is_captured(device):
        raise RuntimeError(f"{what}, which cannot be done while a CUDA graph is captured; before the capture, {cure}")


# ---- caches of a graph -----------------------------------------------------------------------------------------------------------


_EMPTY: dict[Any, Any] = {}


class Caching:
    """Base of Graph, which holds what is derived from it, in attributes: names that torch.compile guards one by one."""

    device: torch.device
    _any: Any  # either side

    def cached(
        self,
        name: str,
        make: Callable[[Any], Any] | None,
        of: Hashable = None,
        *,
        only_last: bool = False,
        has_tensors: bool = True,
        when_traced: bool = False,
    ) -> Any:
        """What make(the graph) returns, which is made at its first use and cached under `name`.

        It serves later callers in every mode of PyTorch and on every stream: make() runs among ordinary tensors, and a
        tensor, or a value with a method _for_all_streams, is cached in the form for other streams.

        Args:
            make: None to ask only; None is returned if nothing is cached.
            of: what else it is made of. There is one value of each, found by hash and equality.
            only_last: only the value of the last `of` is cached.
            has_tensors: whether make() computes tensors, which are not cached while a CUDA graph is captured.
            when_traced: whether a value that compiled code makes is cached, too.
        """
        value = getattr(self, name, _EMPTY).get(of)  # of None: no value is None
        if value is not None:
            return value.get() if type(value) is Cached else value
        if make is None:
            return None
        with ordinary_tensors(self._any.indptr):
            value = make(self)
        is_traced = torch.compiler.is_compiling() and not when_traced
        if not is_traced and (not has_tensors or may_cache(self.device)):
            others = {} if only_last else getattr(self, name, {})  # as they are now: another thread may do the same
            object.__setattr__(self, name, {**others, of: _for_all_streams(value)})
        return value


def _for_all_streams(value: Any) -> Any:
    """The form in which to cache a value that was just made on the current stream."""
    if isinstance(value, Tensor):
        return cacheable(value, [value])
    prepared = getattr(value, "_for_all_streams", None)
    return value if prepared is None else prepared()


# ---- known again by content --------------------------------------------------------------------------------------------------

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def have_same_bits(x: Tensor, y: Tensor) -> bool:
    """Whether two tensors of one shape and dtype, contiguous on a CPU, hold the same bits.

    Eight bytes are compared at a time: PyTorch compares booleans and half-precision values one by one, which takes five to eleven
    times as long.
    """
    per_word = 8 // x.element_size()
    bits = [z.detach().view(-1).view(_INTEGERS[z.element_size()]) for z in (x, y)]
    addresses = [torch._C._data_address(z) for z in bits]  # type: ignore[attr-defined]
    if any(z.storage_offset() % per_word for z in bits) or any(address % 8 for address in addresses):
        return torch.equal(*bits)
    whole = x.numel() // per_word * per_word
    return torch.equal(*(z[:whole].view(torch.int64) for z in bits)) and torch.equal(*(z[whole:] for z in bits))
