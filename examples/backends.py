"""DGL's message passing with halfgnn's kernels or with DGL's own, on the device and in the dtype that they support."""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass
from unittest import mock

import torch
from training import DTYPES, autocast

DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}


@dataclass
class Mode:
    """The device and dtype in which a backend runs.

    features_only: DGL's graph stays on the CPU while features, model and kernels are on `device`.
    fuse: halfgnn runs whole modules of dgl.nn fused.
    reason: why the mode differs from the requested one; None if it does not.
    """

    device: torch.device
    dtype: torch.dtype
    features_only: bool = False
    fuse: bool = False
    reason: str | None = None

    def __str__(self) -> str:
        return f"{DTYPE_NAMES[self.dtype]} {self.device.type}" + (" fused" if self.fuse else "")

    def place(self, graph):
        """`graph` on the device of this mode's graphs."""
        return graph if self.features_only else graph.to(self.device)


def halfgnn_dgl():
    """The drop-in, imported late, so that --backend dgl works without halfgnn."""
    import halfgnn.dgl

    return halfgnn.dgl


@contextlib.contextmanager
def kernels_of(backend: str, mode: Mode):
    """Inside this context the kernels of `backend` compute DGL's message passing."""
    with contextlib.ExitStack() as stack:
        if backend == "halfgnn":
            stack.enter_context(halfgnn_dgl().accelerate(fuse=mode.fuse))
        if mode.features_only:
            stack.enter_context(graphs_pose_on(mode.device))
        yield


def graphs_pose_on(device: torch.device):
    """Inside this context DGL graphs take data on `device`, even if their own structure is elsewhere.

    DGL from PyPI has no CUDA and cannot hold a graph on a GPU. Its Python layer does not need the
    graph there. It compares devices, and then calls the message-passing functions. halfgnn replaces
    these functions with its own, which copy the structure to the features' device.
    """
    import dgl

    return mock.patch.object(dgl.DGLGraph, "device", property(lambda graph: device))


def modes(backend: str, device: torch.device, dtype: torch.dtype, fuse: bool = False) -> list[Mode]:
    """Modes for `backend`; the first is the closest to the requested device and dtype."""
    cpu = torch.device("cpu")
    if backend == "halfgnn":  # always in the requested dtype
        on_gpu = [Mode(device, dtype, fuse=fuse), Mode(device, dtype, features_only=True, fuse=fuse)]
        return ([] if device == cpu else on_gpu) + [Mode(cpu, dtype, fuse=fuse)]
    devices = dict.fromkeys([device, cpu])
    return [Mode(where, what) for where in devices for what in dict.fromkeys([dtype, torch.float32])]


def find_mode(backend: str, device: torch.device, dtype: torch.dtype, fuse: bool = False) -> Mode:
    """The first of `modes` in which `backend` trains a tiny model. Its reason has the errors of the
    earlier modes.

    DGL's own kernels refuse half precision on the CPU, and PyPI's DGL has no CUDA. Then its fp32
    run, or its run on the CPU, is the only one to compare with.
    """
    errors = []
    for mode in modes(backend, device, dtype, fuse):
        error = probe(backend, mode)
        if error is None:
            mode.reason = "; ".join(dict.fromkeys(errors)) or None
            return mode
        errors.append(error)
    reason = "; ".join(dict.fromkeys(errors))
    raise RuntimeError(f"{backend} cannot train in {DTYPE_NAMES[dtype]} on {device}: {reason}")


def probe(backend: str, mode: Mode) -> str | None:
    """None if `backend` runs a tiny GATConv forward and backward in `mode`, otherwise its error in one line."""
    import dgl.nn

    try:
        ids = torch.arange(4, dtype=torch.int32)
        graph, features = mode.place(dgl.graph((ids, ids))), torch.ones(4, 8, device=mode.device)
        layer = dgl.nn.GATConv(8, 4, 2, allow_zero_in_degree=True).to(mode.device)
        with kernels_of(backend, mode):
            with autocast(mode.device.type, mode.dtype):
                out = layer(graph, features)
            out.float().sum().backward()
    except Exception as error:  # any error: the program reports it and tries the next mode
        return brief(error)
    return None


def brief(error: Exception) -> str:
    """Type and first line of an error, without the time stamp and source line that DGL's C++
    adds."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    message = re.sub(r"^\[[\d:]+\] \S+: (Check failed: )?", "", lines[0] if lines else "no message")
    return f"{type(error).__name__}: {message[:160]}"
