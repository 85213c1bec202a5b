"""The training loop of one process."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import swa_utils
from tqdm import tqdm
from training import DTYPES, autocast, make_scaler

from halfgnn.dataloading import FeatureStore, Prefetcher

from .batches import SampledBatches, Workers, loader, stores_of
from .data import HeteroData
from .meter import Meter
from .model import make_model

PHASES = ("sample", "gather", "transfer", "forward", "backward", "step", "wait")


@dataclass
class Progress:
    """The position of a run, and its results so far."""

    epoch: int = 0
    step: int = 0  # of the epoch
    loss: float = 0.0  # sum over the epoch's steps so far, for the seeds of the first process
    best_epoch: int = -1
    best_accuracy: float = -1.0
    losses: list = field(default_factory=list)  # mean of each epoch


class Trainer:
    """Model, optimizer and batches of one process."""

    def __init__(self, data: HeteroData, args, device: torch.device, workers: Workers):
        self.data, self.args, self.device, self.workers = data, args, device, workers
        self.dtype = DTYPES[args.dtype]
        self.graph = data.graph()
        self.stores = stores_of(data, args.features, device)
        self.labels = FeatureStore(data.labels)
        torch.manual_seed(args.seed)
        width = next(iter(self.stores.values())).shape[1]
        self.model = make_model(data, width, args).to(device)
        self.network = self.model
        if workers.count > 1:
            if args.norm == "batch" and device.type == "cuda":
                self.model = self.network = nn.SyncBatchNorm.convert_sync_batchnorm(self.model)
            self.network = nn.parallel.DistributedDataParallel(self.model)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=args.lr, weight_decay=args.weight_decay)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, step_size=25, gamma=0.25)
        self.scaler = make_scaler(device.type, self.dtype)
        self.averaged = None
        if args.average:
            average = swa_utils.get_ema_multi_avg_fn(args.average)
            self.averaged = swa_utils.AveragedModel(self.model, multi_avg_fn=average, use_buffers=True)
        self.progress = Progress()
        self.times = dict.fromkeys(PHASES, 0.0)
        self.num_steps = self.num_bytes = 0
        self.seconds = 0.0  # time of training, without validation

    @property
    def evaluated(self) -> nn.Module:
        """The model to evaluate: with averaged weights, if weights are averaged."""
        return self.model if self.averaged is None else self.averaged.module

    # ---- batches ---------------------------------------------------------------------------------

    def prefetched(self, ids, fanouts, batch_size, order=None, first=0) -> Prefetcher:
        # Batch normalisation needs two rows for its statistics.
        least = 2 if order is not None and self.args.norm == "batch" else 1
        batches = SampledBatches(self.graph, self.data.target, ids, fanouts, batch_size, self.workers, order, least)
        return Prefetcher(
            loader(batches, self.args.workers, first),
            self.device,
            fetch=self._fetch,
            depth=max(self.args.prefetch, 1),
            background=self.args.prefetch > 0 and (self.device.type == "cuda" or self.args.prefetch_on_cpu),
        )

    def _fetch(self, batch):
        blocks, nodes, seeds, weight = batch
        feats = {ntype: self.stores[ntype].rows(ids) for ntype, ids in nodes.items()}
        return blocks, feats, self.labels.rows(seeds), seeds, weight

    # ---- one step --------------------------------------------------------------------------------

    def forward(self, blocks, feats, network=None):
        if self.dtype == torch.float32:
            feats = {ntype: x.float() for ntype, x in feats.items()}
        with autocast(self.device.type, self.dtype):
            return (network or self.network)(blocks, feats)

    def gradients(self, blocks, feats, labels, weight):
        """Adds the gradient of the batch's mean loss over all processes. Returns (loss, right answers) of this
        process's seeds."""
        with self._timed("forward"):
            logits = self.forward(blocks, feats).float()
            loss = F.cross_entropy(logits, labels) * weight
        with self._timed("backward"):
            (loss if self.scaler is None else self.scaler.scale(loss)).backward()
        return loss.detach(), (logits.detach().argmax(1) == labels).sum()

    @property
    def is_at_limit(self) -> bool:
        return 0 < self.args.max_steps <= self.num_steps

    def step(self):
        with self._timed("step"):
            if self.scaler is None:
                self.optimizer.step()
            else:
                self.scaler.step(self.optimizer)
                self.scaler.update()
            if self.averaged is not None:
                self.averaged.update_parameters(self.model)

    @contextlib.contextmanager
    def _timed(self, phase: str):
        """Adds the seconds on the device, with --profile only, because waiting for the device costs time."""
        if not self.args.profile:
            yield
            return
        start = self._now()
        yield
        self.times[phase] += self._now() - start

    def _now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()

    # ---- epochs ----------------------------------------------------------------------------------

    def train_epoch(self, save=None) -> bool:
        """Trains from the step in `progress` on. Returns whether the epoch was finished. save: called after every
        step."""
        args, progress = self.args, self.progress
        order = torch.Generator().manual_seed(args.seed * 1_000_003 + progress.epoch)
        batches = self.prefetched(self.data.train, args.fanouts, args.batch_size, order, progress.step)
        self.model.train()
        start, total = time.perf_counter(), progress.step + len(batches)
        self.meter = Meter(total, progress, args, self.device, is_shown=self.workers.rank == 0)
        with self.meter, batches:
            for blocks, feats, labels, seeds, weight in batches:
                # Each step has its own seed, so that a resumed run draws the same numbers as an uninterrupted one.
                torch.manual_seed(hash((args.seed, self.workers.rank, progress.epoch, progress.step)) & 0x7FFFFFFF)
                self.optimizer.zero_grad(set_to_none=True)
                loss, right = self.gradients(blocks, feats, labels, weight)
                self.step()
                self.meter.add(loss, right, len(seeds))
                progress.step += 1
                self.num_steps += 1
                if save is not None:
                    save(self)
                if self.is_at_limit:
                    break
        self.seconds += self._now() - start
        self._add_times(batches)
        if progress.step < total:
            return False
        loss, count = self.workers.total(*self.meter.totals(), device=self.device)
        progress.losses.append(loss / max(count, 1))
        return True

    def _add_times(self, batches: Prefetcher):
        for phase, seconds in batches.times.items():
            self.times[phase] += seconds
        self.num_bytes += batches.num_bytes

    @torch.no_grad()
    def evaluate(self, ids) -> tuple[float, torch.Tensor]:
        """(accuracy over the seeds that have a label, predictions (n,) in the order of ids). Predictions of other
        processes' seeds are -1."""
        self.evaluated.eval()
        predictions = torch.full((self.labels.shape[0],), -1)
        right = count = 0.0
        batches = self.prefetched(ids, self.args.eval_fanouts, self.args.batch_size)
        with batches:
            for blocks, feats, labels, seeds, weight in batches:
                found = self.forward(blocks, feats, self.evaluated).argmax(1)
                predictions[seeds] = found.cpu()
                if weight:
                    right += float(((found == labels) & (labels >= 0)).sum())
                    count += float((labels >= 0).sum())
        right, count = self.workers.total(right, count, device=self.device)
        return right / count if count else float("nan"), predictions[ids]

    def fit(self, saver) -> None:
        """Trains to the last epoch and takes the best weights. saver: see `checkpoints.Saver`."""
        progress = self.progress
        while progress.epoch < self.args.epochs and not self.is_at_limit:
            if not self.train_epoch(saver.after_step):
                break
            accuracy, _ = self.evaluate(self.data.val)
            self.scheduler.step()
            progress.epoch, progress.step, progress.loss = progress.epoch + 1, 0, 0.0
            if accuracy > progress.best_accuracy or progress.best_epoch < 0:
                progress.best_epoch, progress.best_accuracy = progress.epoch, accuracy
                saver.keep_best(self)
            saver.after_epoch(self)
            self.say(f"epoch {progress.epoch}: loss {progress.losses[-1]:.4f}, validation accuracy {accuracy:.4f}")
        saver.load_best(self)

    def say(self, text: str) -> None:
        if self.workers.rank == 0:
            tqdm.write(text)
