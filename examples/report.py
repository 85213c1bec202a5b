"""What gat_amp.py and pyg_amp.py report of their runs: memory and time of a step, a table, a picture of the losses."""

from __future__ import annotations

import inspect
import itertools
import json
import operator
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
from backends import Mode
from packages import INSTALL, is_installed
from training import History, synchronize

MATRIX_PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm")


@dataclass
class Run:
    """A training by one backend. stats: those of halfgnn's drop-in, None for the other library's own kernels."""

    backend: str
    mode: Mode
    history: History
    peak_bytes: int
    matmul_ms: float
    stats: dict | None = None

    @property
    def label(self) -> str:
        return f"{self.backend} {self.mode}"


def measure_step(step, model, data, optimizer) -> tuple[int, float]:
    """(peak bytes of tensors, milliseconds in PyTorch's matrix products) of one `step()`.

    The bytes include the data, the parameters and the optimizer state. On CUDA the caching
    allocator reports them. The CPU's allocator keeps no peak, so the profiler records every
    allocation and release of the step, and they are added up. On the CPU DGL's own graph structure
    is not counted.
    """
    optimizer.zero_grad(set_to_none=True)
    device = data.features.device
    activities = [torch.profiler.ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
        torch.cuda.reset_peak_memory_stats(device)
    on_cpu = device.type == "cpu"
    # Newer versions of torch warn about cycles without acc_events, although there is only one cycle here. torch 2.4
    # lacks it.
    known = inspect.signature(torch.profiler.profile).parameters
    options = {"acc_events": True} if "acc_events" in known else {}
    with torch.profiler.profile(activities=activities, profile_memory=on_cpu, **options) as profile:
        step()
        synchronize(device)
    time_of = operator.attrgetter("self_cpu_time_total" if on_cpu else "self_device_time_total")
    matmul = sum(time_of(entry) for entry in profile.key_averages() if entry.key in MATRIX_PRODUCTS)
    if not on_cpu:
        return torch.cuda.max_memory_allocated(device), matmul / 1e3
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "trace.json"
        profile.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    return resident_bytes(model, data, optimizer) + peak_of_events(events), matmul / 1e3


def peak_of_events(events: list[dict]) -> int:
    """Highest running sum of the bytes in a trace's memory events, in the order of their times."""
    memory = [(event["ts"], event["args"]["Bytes"]) for event in events if event.get("name") == "[memory]"]
    live = peak = 0
    for _, size in sorted(memory, key=lambda entry: entry[0]):
        live += size
        peak = max(peak, live)
    return peak


def resident_bytes(model, data, optimizer) -> int:
    """Bytes of the tensors that are there before and after a step."""
    tensors = [*model.parameters(), *model.buffers(), data.features, data.labels, data.train, data.val, data.test]
    for state in optimizer.state.values():
        tensors += [value for value in state.values() if torch.is_tensor(value)]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def describe(stats: dict, library: str = "DGL") -> str:
    """The contents of a drop-in's stats(), in two lines."""
    routed = ", ".join(f"{name} {calls}" for name, calls in sorted(stats["routed"].items()))
    left = ", ".join(
        f"{name} {calls} ({reason})"
        for name, reasons in sorted(stats["fell_back"].items())
        for reason, calls in reasons.items()
    )
    return f"calls computed by halfgnn: {routed or 'none'}\ncalls left to {library}: {left or 'none'}"


def table(runs: list[Run]) -> str:
    """The results, one line per run."""
    rows = [("run", "loss", "val acc", "test acc", "ms/epoch", "matmul ms", "peak MiB", "skipped")]
    for run in runs:
        h = run.history
        loss = f"{h.losses[0]:.4f} -> {h.losses[-1]:.4f}"
        accuracies = (f"{h.val_accuracy:.4f}", f"{h.test_accuracy:.4f}")
        times = (f"{h.epoch_seconds * 1e3:.1f}", f"{run.matmul_ms:.1f}")
        rows.append((run.label, loss, *accuracies, *times, f"{run.peak_bytes / 2**20:.1f}", str(h.skipped)))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows)


def draw(runs: list[Run], title: str, path: Path) -> None:
    """The loss curves of all runs in one picture, and a line that says where it is. Without matplotlib only a line."""
    if not is_installed("matplotlib"):
        print(f"no picture of the loss curves: matplotlib is not installed ({INSTALL['matplotlib']})")
        return
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4.5), layout="constrained")
    for run, style in zip(runs, itertools.cycle(("-", "--"))):  # so that both curves are visible if they are the same
        axes.plot(range(1, len(run.history.losses) + 1), run.history.losses, style, label=run.label)
    axes.set(xlabel="epoch", ylabel="training loss", title=title)
    axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
    print(f"loss curves: {path}")
