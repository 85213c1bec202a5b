"""Stand-ins for CUDA's streams, events and captures, so that data kept with a graph behaves on the CPU as on a GPU."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field

import torch

from halfgnn.common import caching


class Event:
    def __init__(self, stream):
        self.stream = stream


class Stream:
    def __init__(self, cuda, handle):
        self.cuda, self.cuda_stream = cuda, handle

    def record_event(self):
        event = Event(self)
        self.cuda.events.append(event)
        return event

    def wait_event(self, event):
        assert not self.cuda.is_capturing, "inside a capture, an event from outside may not be waited for"
        self.cuda.waits.append((self, event))


@dataclass
class Cuda:
    """The calls on the streams: `waits` (stream, event) and `recorded` (stream, tensor). `current` is the current
    stream."""

    is_capturing: bool = False
    events: list = field(default_factory=list)
    waits: list = field(default_factory=list)
    recorded: list = field(default_factory=list)

    def __post_init__(self):
        self.streams = [Stream(self, handle) for handle in range(3)]
        self.current = self.streams[0]

    @contextlib.contextmanager
    def on(self, number):
        before, self.current = self.current, self.streams[number]
        yield self.current
        self.current = before

    @contextlib.contextmanager
    def capture(self):
        self.is_capturing = True
        yield
        self.is_capturing = False

    def waits_of(self, number):
        return [event for stream, event in self.waits if stream is self.streams[number]]

    def recorded_on(self, number):
        return [tensor for stream, tensor in self.recorded if stream is self.streams[number]]

    def record(self, tensor, stream):
        assert not self.is_capturing
        self.recorded.append((stream, tensor))


def install(monkeypatch) -> Cuda:
    """Gives all devices these streams."""
    cuda = Cuda()
    monkeypatch.setattr(caching, "_has_streams", lambda device: not torch.compiler.is_dynamo_compiling())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: cuda.current)
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: cuda.is_capturing)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: cuda.current.cuda_stream, raising=False)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: cuda.record(tensor, stream))
    return cuda
