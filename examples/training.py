"""The training loop of the examples on whole graphs: mixed precision, clipping, accumulation, validation, patience."""

from __future__ import annotations

import contextlib
import statistics
import time
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import nn

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}


@dataclass
class History:
    """The results of a run: losses and times by epoch, accuracies of the best epoch.

    The best epoch is the first one with the highest validation accuracy.
    """

    losses: list = field(default_factory=list)
    seconds: list = field(default_factory=list)
    best_epoch: int = -1
    val_accuracy: float = -1.0
    test_accuracy: float = -1.0
    skipped: int = 0

    @property
    def epoch_seconds(self) -> float:
        """Median time of an epoch. The first epoch warms up caches and is left out if there are more."""
        return statistics.median(self.seconds[1:] or self.seconds)


def make_scaler(device_type: str, dtype: torch.dtype):
    """A GradScaler for fp16. None for bf16 and fp32, which have the range of fp32."""
    return torch.amp.GradScaler(device_type) if dtype == torch.float16 else None


def autocast(device_type: str, dtype: torch.dtype):
    """torch.autocast for the half types. For fp32 a context that changes nothing."""
    if dtype == torch.float32:
        return contextlib.nullcontext()
    return torch.autocast(device_type, dtype)


def train_step(model, graph, data, optimizer, *, dtype, scaler=None, clip_norm=None, accumulate=1):
    """One optimizer step over `accumulate` passes of the whole graph.

    Returns (mean loss, whether the step was skipped). The passes differ in their dropout masks, and
    their gradients are averaged. Clipping comes after unscaling, so that clip_norm bounds the norm
    of the true gradient. The scaler skips a step if its scaled gradients overflowed.
    """
    device_type = data.features.device.type
    optimizer.zero_grad(set_to_none=True)
    total = 0.0
    for _ in range(accumulate):
        with autocast(device_type, dtype):
            logits = model(graph, data.features)
        loss = F.cross_entropy(logits[data.train].float(), data.labels[data.train]) / accumulate
        (loss if scaler is None else scaler.scale(loss)).backward()
        total += loss.detach()
    if clip_norm is not None:
        if scaler is not None:
            scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
    if scaler is None:
        optimizer.step()
        return float(total), False
    scale = scaler.get_scale()
    scaler.step(optimizer)
    scaler.update()
    return float(total), scaler.get_scale() < scale


@torch.no_grad()
def accuracy(model, graph, data, dtype) -> tuple[float, float]:
    """(validation, test) accuracy, computed in the precision of the training."""
    model.eval()
    with autocast(data.features.device.type, dtype):
        correct = model(graph, data.features).argmax(1) == data.labels
    model.train()
    return correct[data.val].float().mean().item(), correct[data.test].float().mean().item()


def train(
    model, graph, data, optimizer, *, epochs, dtype, patience=None, eval_every=1, progress=None, **step
) -> History:
    """Trains for `epochs` optimizer steps, or until validation has not improved for `patience` epochs.

    progress: None or a tqdm bar. step: scaler, clip_norm and accumulate of `train_step`.
    """
    history = History()
    model.train()
    for epoch in range(epochs):
        synchronize(data.features.device)
        start = time.perf_counter()
        loss, skipped = train_step(model, graph, data, optimizer, dtype=dtype, **step)
        synchronize(data.features.device)
        history.seconds.append(time.perf_counter() - start)
        history.losses.append(loss)
        history.skipped += skipped
        if (epoch + 1) % eval_every == 0 or epoch + 1 == epochs:
            val, test = accuracy(model, graph, data, dtype)
            if val > history.val_accuracy:
                history.best_epoch, history.val_accuracy, history.test_accuracy = epoch, val, test
        if progress is not None:
            progress.set_postfix(loss=f"{loss:.3f}", val=f"{history.val_accuracy:.3f}", refresh=False)
            progress.update()
        if patience is not None and epoch - history.best_epoch >= patience:
            break
    return history


class NonzeroDropout(nn.Module):
    """Dropout of a fixed sparse matrix in dense storage. Masks are drawn only for its non-zeros.

    Dropping a zero makes no difference. Only 1 % of the features of Planetoid are not zero, and drawing all masks would
    take most of an epoch.
    """

    def __init__(self, features, p):
        super().__init__()
        self.p = p
        rows, columns = features.nonzero(as_tuple=True)
        self.values = features[rows, columns]
        self.position = rows * features.shape[1] + columns

    def forward(self, features):
        if not self.training:
            return features
        dropped = F.dropout(self.values, self.p)
        return torch.zeros_like(features).view(-1).index_put_((self.position,), dropped).view_as(features)


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
