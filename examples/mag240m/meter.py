"""What is shown and logged while the program trains."""

from __future__ import annotations

import csv
import os
import time
from pathlib import Path

import torch
from tqdm import tqdm


class Meter:
    """A progress bar with loss, accuracy and seeds per second. It reads numbers from the device only every few
    steps."""

    EVERY = 10

    def __init__(self, total, progress, args, device, is_shown):
        self._bar = tqdm(
            total=total, initial=progress.step, desc=f"epoch {progress.epoch + 1}", unit="batch", disable=not is_shown
        )
        # Losses, right answers, steps.
        self._sums = torch.tensor([progress.loss, 0, progress.step], dtype=torch.float64, device=device)
        self._seeds, self._count, self._total, self._start = 0, 0, total, time.perf_counter()
        self._log = MemoryLog(args.memory_log, args.memory_every, device) if args.memory_log else None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._bar.close()

    def add(self, loss, right, num_seeds):
        self._sums += torch.stack([loss.double(), right.double(), torch.ones_like(loss, dtype=torch.float64)])
        self._seeds += num_seeds
        if self._log is not None:
            self._log.after_step()
        self._count += 1
        if self._count % self.EVERY == 1 or self._bar.n + 1 == self._total:
            loss, right, steps = self._sums.tolist()
            rate = self._seeds / (time.perf_counter() - self._start)
            shown = dict(loss=f"{loss / steps:.3f}", acc=f"{right / self._seeds:.3f}", seeds_per_s=f"{rate:.0f}")
            self._bar.set_postfix(shown, refresh=False)
        self._bar.update()

    def totals(self) -> tuple[float, float]:
        """(sum of losses, steps)."""
        loss, _, steps = self._sums.tolist()
        return loss, steps


class MemoryLog:
    """Writes rows (batches so far, resident MiB, MiB of tensors on the GPU) to a CSV file."""

    count = 0  # over all epochs

    def __init__(self, path: Path, every: int, device: torch.device):
        self._path, self._every, self._device = path, every, device

    def after_step(self) -> None:
        MemoryLog.count += 1
        if MemoryLog.count % self._every == 0:
            is_new = not self._path.exists()
            with self._path.open("a", newline="") as file:
                writer = csv.writer(file)
                if is_new:
                    writer.writerow(("batches", "resident_mib", "gpu_mib"))
                on_gpu = torch.cuda.memory_allocated(self._device) if self._device.type == "cuda" else 0
                writer.writerow((MemoryLog.count, f"{resident_bytes() / 2**20:.1f}", f"{on_gpu / 2**20:.1f}"))


def resident_bytes() -> int:
    """Memory of this process without pages of files, which the system may take back."""
    fields = Path("/proc/self/statm").read_text().split()
    return (int(fields[1]) - int(fields[2])) * os.sysconf("SC_PAGE_SIZE")
