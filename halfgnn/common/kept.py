"""What is made when first asked for and then kept must serve every later caller: in other modes of PyTorch, on other CUDA streams,
after a CUDA-graph capture.

Tensors of inference mode or of tracing are not kept: see :func:`ordinary_tensors`.

Work on a GPU is queued on a stream. What one stream has queued need not be done when another stream reads it, and what is
queued during a capture is not done at all until the graph is replayed. So a value is kept together with an event, for which
every other stream waits once, and a value made during a capture is not kept.

On the CPU, and while torch.compile traces, values are kept as they are. Compiled code does not wait: what it takes is to be made
on its own stream, or before the stream was synchronised.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

T = TypeVar("T")


# ---- modes -------------------------------------------------------------------------------------------------------------------


def ordinary_tensors(source: Tensor | None = None) -> contextlib.AbstractContextManager[None]:
    """Tensors made here outlive the mode that the caller happens to be in.

    A topology is kept with its graph, so what inference mode, a fake or proxy tensor mode (torch.export) or a functorch transform
    would make of its tensors must not be kept. Compiled code is traced as it stands; its side effects are real tensors.

    source: what they are made of. A fake tensor belongs to its mode, and so does a graph that is made of it: both are traced.
    """
    if torch.compiler.is_dynamo_compiling():
        return contextlib.nullcontext()  # older versions of torch trace no generator
    return _without_modes(is_fake=source is not None and type(source) is not Tensor)


@contextlib.contextmanager
def _without_modes(is_fake: bool) -> Iterator[None]:
    modes = contextlib.nullcontext() if is_fake else _disable_current_modes()
    with torch.inference_mode(False), modes, torch._C._DisableFuncTorch():
        yield


def ordinary(tensor: Tensor) -> Tensor:
    """The tensor, or a copy if it is one of inference mode: autograd can save no such tensor."""
    if torch.compiler.is_dynamo_compiling() or not tensor.is_inference():
        return tensor
    with ordinary_tensors(tensor):
        return tensor.clone()


# ---- streams and captures ----------------------------------------------------------------------------------------------------


def _has_streams(device: torch.device) -> bool:
    """Whether work on the device is queued on streams. Before CUDA is initialised its tensors are fake."""
    return device.type == "cuda" and not torch.compiler.is_dynamo_compiling() and torch.cuda.is_initialized()


def _is_captured(device: torch.device) -> bool:
    with torch.cuda.device(device):
        return torch.cuda.is_current_stream_capturing()


def _raw_stream(device: torch.device) -> int:
    """The handle of the current stream: a tenth of the time of torch.cuda.current_stream."""
    return torch._C._cuda_getCurrentRawStream(device.index)


class Kept(Generic[T]):
    """A value of tensors on a GPU, with the event after which they hold it.

    Made on the stream that has queued the work, and not while that is captured. Without __slots__, of which torch.compile of
    torch 2.4 takes no values.
    """

    def __init__(self, value: T, tensors: list[Tensor]) -> None:
        self.value = value
        self._tensors = tensors
        stream = torch.cuda.current_stream(tensors[0].device)
        self._event = stream.record_event()
        self._served = {stream.cuda_stream}  # handles of the streams that need not wait

    def get(self) -> T:
        """The value, for use on the current stream.

        A stream that asks for the first time waits for the event, and is recorded with the tensors, so that their memory is not
        used again before that stream is done with it. While a stream is captured it does neither: an event from outside of the
        capture may not be waited for inside. torch.cuda.graph synchronises the device before it begins, so that what was kept
        until then is there. What another stream makes after a capture has begun may not be used in that capture.
        """
        if not torch.compiler.is_dynamo_compiling():
            device = self._tensors[0].device
            if _raw_stream(device) not in self._served and not _is_captured(device):
                self._serve(torch.cuda.current_stream(device))
        return self.value

    def _serve(self, stream: torch.cuda.Stream) -> None:
        stream.wait_event(self._event)
        for tensor in self._tensors:
            # Once is enough: when the tensor is freed, the allocator waits for all that the stream has queued until then.
            tensor.record_stream(stream)
        self._served.add(stream.cuda_stream)


def may_keep(device: torch.device) -> bool:
    """Whether what was just made on `device` may be kept: not if its stream is captured, of which the user is warned."""
    if not _has_streams(device) or not _is_captured(device):
        return True
    warnings.warn(
        "part of a graph's topology is made while a CUDA graph is captured, so it is not kept: every replay makes it again. "
        "Call g.csc() and g.csr(), or the module once, before the capture",
        stacklevel=3,
    )
    return False


def kept(value: T, tensors: Iterable[Tensor | None]) -> T | Kept[T]:
    """What to keep of a value that :func:`may_keep` allows: with an event on a GPU, else the value itself.

    tensors: all of the value's, on one device.
    """
    present = [tensor for tensor in tensors if tensor is not None]
    return Kept(value, present) if present and _has_streams(present[0].device) else value


def taken(value: T | Kept[T]) -> T:
    """The value of what :func:`kept` returned, for use on the current stream."""
    return value.get() if isinstance(value, Kept) else value


def refuse_capture(device: torch.device, what: str, cure: str) -> None:
    """Raises RuntimeError if the current stream of `device` is captured: `what` would wait for the device."""
    if _has_streams(device) and _is_captured(device):
        raise RuntimeError(f"{what}, which cannot be done while a CUDA graph is captured; before the capture, {cure}")
