"""Checkpoints: always one complete file, and runs that continue where they were killed."""

from __future__ import annotations

import os
from pathlib import Path

import torch
import torch.distributed as dist

from .trainer import Progress, Trainer

# Options that may not change when a run is resumed.
KEPT = ("data", "scale", "seed", "dtype", "hidden", "heads", "fanouts", "norm", "batch_size", "average")


class CheckpointError(RuntimeError):
    """A checkpoint from which a run cannot be resumed; the message says why."""


class Saver:
    """Checkpoints of a run. Each is written beside the last one and then replaces it, so that one is always
    complete."""

    def __init__(self, folder: Path | None, every: int, is_first: bool):
        self._folder, self._every, self._is_first = folder, every, is_first
        self._best = None

    def after_step(self, trainer: Trainer) -> None:
        if self._folder is not None and self._every and trainer.progress.step % self._every == 0:
            trainer.progress.loss, _ = trainer.meter.totals()
            self.after_epoch(trainer)

    def after_epoch(self, trainer: Trainer) -> None:
        if self._folder is not None and self._is_first:
            write(state_of(trainer), self._folder / "checkpoint.pt")

    def keep_best(self, trainer: Trainer) -> None:
        if self._folder is None:
            self._best = {name: value.detach().clone() for name, value in trainer.evaluated.state_dict().items()}
        elif self._is_first:
            write(trainer.evaluated.state_dict(), self._folder / "best.pt")

    def load_best(self, trainer: Trainer) -> None:
        if trainer.workers.count > 1:
            dist.barrier()
        if self._folder is not None and trainer.progress.best_epoch > 0:
            self._best = read(self._folder / "best.pt", trainer.device)
        if self._best is not None:
            trainer.evaluated.load_state_dict(self._best)


def prepare_folder(folder: Path, is_resumed: bool) -> None:
    """Makes the folder of the checkpoints. Without --resume it may have none yet."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CheckpointError(f"{folder} cannot be made: {error.strerror}") from None
    if not is_resumed and (folder / "checkpoint.pt").exists():
        raise CheckpointError(f"{folder} holds the checkpoint of another run: give --resume, or another directory")


def write(state: dict, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".partial")
    with beside.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)


def read(path: Path, device) -> dict:
    try:
        return torch.load(path, map_location=device, weights_only=True)
    except FileNotFoundError:
        raise CheckpointError(f"{path} does not exist: there is nothing to resume") from None
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise CheckpointError(f"{path} cannot be read: {reason}") from error


def state_of(trainer: Trainer) -> dict:
    return {
        "progress": vars(trainer.progress),
        "arguments": {name: getattr(trainer.args, name) for name in KEPT},
        "model": trainer.model.state_dict(),
        "averaged": None if trainer.averaged is None else trainer.averaged.state_dict(),
        "optimizer": trainer.optimizer.state_dict(),
        "scheduler": trainer.scheduler.state_dict(),
        "scaler": None if trainer.scaler is None else trainer.scaler.state_dict(),
    }


def resume(trainer: Trainer, folder: Path) -> None:
    state = read(folder / "checkpoint.pt", trainer.device)
    if not isinstance(state, dict) or not {"arguments", "progress", "model", "optimizer"} <= state.keys():
        raise CheckpointError(f"{folder / 'checkpoint.pt'} is not a checkpoint of this program")
    for name, value in state["arguments"].items():
        if getattr(trainer.args, name) != value:
            given = getattr(trainer.args, name)
            raise CheckpointError(f"{folder} was trained with --{name.replace('_', '-')} {value}, not {given}")
    trainer.progress = Progress(**state["progress"])
    trainer.model.load_state_dict(state["model"])
    if trainer.averaged is not None:
        trainer.averaged.load_state_dict(state["averaged"])
    trainer.optimizer.load_state_dict(state["optimizer"])
    trainer.scheduler.load_state_dict(state["scheduler"])
    if trainer.scaler is not None:
        trainer.scaler.load_state_dict(state["scaler"])
    if trainer.progress.epoch < trainer.args.epochs:
        trainer.say(f"continues from epoch {trainer.progress.epoch + 1}, batch {trainer.progress.step}")
