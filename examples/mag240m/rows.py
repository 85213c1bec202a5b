"""The figures of a run: a table of its phases, and a row of a CSV file."""

from __future__ import annotations

import csv
from pathlib import Path

import torch

from .trainer import PHASES, Trainer

ROW = (
    "data", "scale", "kernels", "dtype", "device", "processes", "prefetch", "features", "batch_size", "fanouts", "hidden", "steps",
    *(f"{phase}_ms" for phase in PHASES), "total_ms", "moved_mib", "val_accuracy", "test_accuracy", "seed", "command",
)  # fmt: skip


def profile_table(trainer: Trainer) -> str:
    """Milliseconds per training step, by phase. With prefetching, sampling, gathering and transfers overlap with the
    rest."""
    steps = max(trainer.num_steps, 1)
    lines = [f"{'phase':<10} {'ms per step':>11}"]
    lines += [f"{phase:<10} {trainer.times[phase] / steps * 1e3:>11.1f}" for phase in PHASES]
    lines.append(
        f"{'in all':<10} {trainer.seconds / steps * 1e3:>11.1f}   ({trainer.num_bytes / steps / 2**20:.1f} MiB moved)"
    )
    return "\n".join(lines)


def append_row(path: Path, trainer: Trainer, test_accuracy: float) -> None:
    args, steps = trainer.args, max(trainer.num_steps, 1)
    name = torch.cuda.get_device_name(trainer.device) if trainer.device.type == "cuda" else "cpu"
    depth = args.prefetch if trainer.device.type == "cuda" or args.prefetch_on_cpu else 0
    row = [
        args.data,
        args.scale if args.data == "synthetic" else "",
        args.kernels,
        args.dtype,
        name,
        trainer.workers.count,
    ]
    row += [depth, args.features, args.batch_size, " ".join(map(str, args.fanouts)), args.hidden, trainer.num_steps]
    row += [f"{trainer.times[phase] / steps * 1e3:.2f}" for phase in PHASES] + [f"{trainer.seconds / steps * 1e3:.2f}"]
    best = trainer.progress.best_accuracy
    row += [f"{trainer.num_bytes / steps / 2**20:.2f}", f"{best:.4f}" if best >= 0 else "", f"{test_accuracy:.4f}"]
    row += [args.seed, "python examples/mag240m/train.py " + " ".join(args.command)]
    path.parent.mkdir(parents=True, exist_ok=True)
    is_new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.writer(file)
        if is_new:
            writer.writerow(ROW)
        writer.writerow(row)
