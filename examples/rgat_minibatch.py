"""Trains a relational GAT on sampled blocks: OGB-LSC's baseline for MAG240M, in half precision from the disk to the gradient.

The network has two layers of attention over sampled neighbours, with a GATConv per edge type, as in the baseline of Hu
et al. (2021). By default it has 1,024 units in 4 heads. Features stay float16 from their memory-mapped file to the GPU,
and are transferred while it computes. All edge types of a layer are one fused attention, under autocast in bf16 or
fp16.

    python examples/rgat_minibatch.py                                      IMDB: real, small, packaged
    python examples/rgat_minibatch.py --data synthetic --scale 0.001       a graph with MAG240M's schema, made on first use
    python examples/rgat_minibatch.py --data /data/mag240m_kddcup2021 --dtype fp16 --checkpoint out/mag
    torchrun --nproc-per-node 2 examples/rgat_minibatch.py                 DistributedDataParallel

Every process takes its part of each batch of seeds, so a batch has --batch-size seeds for any number of processes. The
program validates after every epoch and tests the best weights at the end. It saves to --checkpoint. With --resume a run
that was killed continues from there.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import os
import sys
import time
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.append(str(Path(__file__).resolve().parents[1]))  # a checkout that is not installed

import heterodata
import torch
import torch.distributed as dist
import torch.nn.functional as F
from datasets import DataError
from gat_amp import DTYPES, autocast, make_scaler, number
from torch import nn
from torch.optim import swa_utils
from tqdm import tqdm

from halfgnn.dataloading import FeatureStore, Prefetcher
from halfgnn.nn import RGAT

# Default options of a data set. Those of MAG240M are the baseline's.
IMDB = dict(
    hidden=64,
    batch_size=100,
    epochs=20,
    fanouts=[10, 10],
    lr=5e-3,
    norm="layer",
    dropout=0.6,
    weight_decay=1e-3,
    average=0.95,
)
MAG240M = dict(
    hidden=1024,
    batch_size=1024,
    epochs=100,
    fanouts=[15, 25],
    lr=1e-3,
    norm="batch",
    dropout=0.5,
    weight_decay=0.0,
    average=0.0,
)
PHASES = ("sample", "gather", "transfer", "forward", "backward", "step", "wait")


class CheckpointError(RuntimeError):
    """A checkpoint from which a run cannot be resumed; the message says why."""


# ------------------------------------------------------------------------------------------- model


class DglRGAT(RGAT):
    """The same network on DGL's kernels, relation by relation, for comparison. It takes DGL's blocks."""

    def __init__(self, *args, num_heads: int = 4, **options):
        import dgl.nn

        super().__init__(*args, num_heads=num_heads, **options)
        for layer in self.convs:
            for etype, conv in layer.items():
                layer[etype] = dgl.nn.GATConv(conv._in_src_feats, conv._out_feats, num_heads, allow_zero_in_degree=True)
                layer[etype].load_state_dict(conv.state_dict())

    def forward(self, blocks, feats):
        h = dict(feats)
        for block, convs, norm, skip in zip(blocks, self.convs, self.norms, self.skips):
            out = {}
            for ntype in h:
                x = h[ntype][: block.num_dst_nodes(ntype)]
                out[ntype] = skip(x)
                for etype in block.canonical_etypes:
                    if etype[2] == ntype and str(etype) in convs:
                        out[ntype] = out[ntype] + convs[str(etype)](block[etype], (h[etype[0]], x)).flatten(1)
            x = self.dropout(F.elu(norm(torch.cat(list(out.values())))))
            h = dict(zip(out, x.split([len(part) for part in out.values()])))
        return self.mlp(h[self.target])


# ----------------------------------------------------------------------------------------- batches


@dataclass(frozen=True)
class Workers:
    """The processes that train together. This process is number `rank`."""

    rank: int = 0
    count: int = 1

    @classmethod
    def of_torchrun(cls, device_type: str) -> Workers:
        """Connects the processes that torchrun has started. Without torchrun there is only this process."""
        if "RANK" not in os.environ:
            return cls()
        if device_type == "cuda":
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        # The time limit ends the wait of the others if a process dies.
        dist.init_process_group("nccl" if device_type == "cuda" else "gloo", timeout=timedelta(minutes=10))
        return cls(dist.get_rank(), dist.get_world_size())

    def total(self, *values: float, device) -> list[float]:
        """The sum of each value over all processes."""
        sums = torch.tensor(values, dtype=torch.float64, device=device)
        if self.count > 1:
            dist.all_reduce(sums)
        return sums.tolist()


class SampledBatches(torch.utils.data.Dataset):
    """One epoch: item i is this process's part of batch i.

    Args:
        graph: DGLGraph with CSC.
        target: the type of the seeds.
        ids: (n,) seeds.
        fanouts: neighbours sampled per relation, one number per layer, input layer first; -1 for all.
        batch_size: seeds of all processes together.
        order: torch.Generator that shuffles, the same in all processes; None keeps the order.
        least: the number of seeds that every process must have. A last batch with fewer is left out.

    Items: (blocks, {node type: ids of input nodes}, seeds, weight). weight is the seeds' share of the batch times the number of
    processes. So the mean over processes of weight * (mean loss of the seeds) is the mean loss of the batch.
    """

    def __init__(self, graph, target, ids, fanouts, batch_size, workers=None, order=None, least=1):
        import dgl

        self._graph, self._target, self._batch_size = graph, target, batch_size
        self._ids = ids if order is None else ids[torch.randperm(len(ids), generator=order)]
        self._sampler = dgl.dataloading.NeighborSampler(list(fanouts))
        self._workers, self._least = workers or Workers(), least

    def __len__(self) -> int:
        rest = len(self._ids) % self._batch_size
        has_rest = rest and (self._least <= 1 or rest >= self._least * self._workers.count)
        return len(self._ids) // self._batch_size + bool(has_rest)

    def __getitem__(self, index: int):
        whole = self._ids[index * self._batch_size : (index + 1) * self._batch_size]
        seeds = whole[self._workers.rank :: self._workers.count]
        weight = len(seeds) * self._workers.count / len(whole)
        if not len(seeds):  # fewer seeds than processes, but every process must take part in the sum of gradients
            seeds = whole[:1]
        nodes, _, blocks = self._sampler.sample_blocks(self._graph, {self._target: seeds})
        return blocks, nodes, seeds, weight


def loader(batches: SampledBatches, num_workers: int, first: int = 0):
    """Batches from number `first` on, sampled in this process or in num_workers other processes."""
    items = range(first, len(batches))
    return torch.utils.data.DataLoader(
        batches, batch_size=None, sampler=items, num_workers=num_workers, collate_fn=as_it_is
    )


def as_it_is(batch):
    return batch


def stores_of(data: heterodata.HeteroData, place: str, device: torch.device) -> dict[str, FeatureStore]:
    """The features of every node type. place: "file" (features in files are memory-mapped), "memory", "pinned" or
    "device"."""
    stores = {}
    for ntype, feat in data.features.items():
        shape = (data.num_nodes[ntype], -1)
        store = (
            FeatureStore(feat) if torch.is_tensor(feat) else FeatureStore.open(feat, dtype=torch.float16, shape=shape)
        )
        if place == "memory":
            store = FeatureStore(store.data.clone())
        elif place == "pinned":
            store = store.pin_memory()
        elif place == "device":
            store = store.to(device)
        stores[ntype] = store
    return stores


# ---------------------------------------------------------------------------------------- training


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

    def __init__(self, data: heterodata.HeteroData, args, device: torch.device, workers: Workers):
        self.data, self.args, self.device, self.workers = data, args, device, workers
        self.dtype = DTYPES[args.dtype]
        self.graph = data.graph()
        self.stores = stores_of(data, args.features, device)
        self.labels = FeatureStore(data.labels)
        torch.manual_seed(args.seed)
        width = next(iter(self.stores.values())).shape[1]
        kind = RGAT if args.kernels == "halfgnn" else DglRGAT
        options = dict(num_layers=len(args.fanouts), num_heads=args.heads, dropout=args.dropout, norm=args.norm)
        etypes = list(data.edges)
        self.model = kind(width, args.hidden, data.num_classes, etypes, data.target, **options).to(device)
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
            convert=True if self.args.kernels == "halfgnn" else None,
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

    def fit(self, folder: Path | None) -> None:
        """Trains to the last epoch. Keeps the best weights in `folder`, or in memory if it is None."""
        saver = Saver(folder, self.args.checkpoint_every, self.workers.rank == 0)
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


# ------------------------------------------------------------------------------------- checkpoints


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


# Options that may not change when a run is resumed.
KEPT = ("data", "scale", "seed", "dtype", "hidden", "heads", "fanouts", "norm", "batch_size", "average")


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


# ----------------------------------------------------------------------------------------- profile


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


ROW = (
    "data", "scale", "kernels", "dtype", "device", "processes", "prefetch", "features", "batch_size", "fanouts", "hidden", "steps",
    *(f"{phase}_ms" for phase in PHASES), "total_ms", "moved_mib", "val_accuracy", "test_accuracy", "seed", "command",
)  # fmt: skip


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
    row += [args.seed, "python examples/rgat_minibatch.py " + " ".join(args.command)]
    path.parent.mkdir(parents=True, exist_ok=True)
    is_new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.writer(file)
        if is_new:
            writer.writerow(ROW)
        writer.writerow(row)


# ------------------------------------------------------------------------------------ command line


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    count, rate = number(int, 1), number(float, 0.0)
    none_or_more = number(int, 0)
    p.add_argument("--data", default="imdb", help="imdb, synthetic or the directory of MAG240M; default: %(default)s")
    p.add_argument("--data-dir", help="folder for synthetic data; default: ~/.cache/halfgnn")
    p.add_argument(
        "--scale",
        type=number(float, 0.0, open_low=True),
        default=0.001,
        help="scale of synthetic data; 1 is MAG240M's size",
    )
    p.add_argument(
        "--dtype", choices=DTYPES, default="bf16", help="fp16 trains with a GradScaler; default: %(default)s"
    )
    p.add_argument(
        "--kernels", choices=("halfgnn", "dgl"), default="halfgnn", help="dgl: for comparison; only fp32 on the CPU"
    )
    p.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="auto: the GPU if there is one")
    p.add_argument(
        "--fanouts",
        type=int,
        nargs="+",
        help="neighbours per relation, one number per layer, input layer first; -1: all",
    )
    p.add_argument(
        "--eval-fanouts", type=int, nargs="+", help="fanouts of validation and test; default: those of training"
    )
    p.add_argument("--batch-size", type=count, help="seeds per batch, for all processes together")
    p.add_argument("--hidden", type=count, help="units of a layer, for all heads together")
    p.add_argument("--heads", type=count, default=4, help="default: %(default)s")
    p.add_argument("--dropout", type=number(float, 0.0, 1.0))
    p.add_argument(
        "--norm", choices=("batch", "layer", "none"), help="normalisation of the layers; batch: the baseline's"
    )
    p.add_argument("--lr", type=number(float, 0.0, open_low=True))
    p.add_argument("--weight-decay", type=rate)
    p.add_argument(
        "--average",
        type=number(float, 0.0, 1.0),
        metavar="DECAY",
        help="evaluate a moving average of weights with this decay; 0: the weights themselves",
    )
    p.add_argument("--epochs", type=none_or_more)
    p.add_argument(
        "--max-steps", type=none_or_more, default=0, help="end training after this many batches; 0: no limit"
    )
    p.add_argument(
        "--seed",
        type=none_or_more,
        default=0,
        help="seed of weights, order and dropout, but not of DGL's sampling",
    )
    p.add_argument("--workers", type=none_or_more, default=0, help="processes that sample; 0: a thread samples")
    p.add_argument(
        "--prefetch",
        type=none_or_more,
        default=2,
        help="batches prepared ahead, on a GPU; 0: none; default: %(default)s",
    )
    p.add_argument("--prefetch-on-cpu", action="store_true", help="sample and gather in a thread on the CPU too")
    p.add_argument(
        "--features",
        choices=("file", "memory", "pinned", "device"),
        default="file",
        help="place of the features; pinned: page-locked memory that the GPU reads directly",
    )
    p.add_argument("--checkpoint", type=Path, metavar="DIR", help="save checkpoint.pt and best.pt there")
    p.add_argument("--checkpoint-every", type=none_or_more, default=100, metavar="N", help="also after every N batches")
    p.add_argument("--resume", action="store_true", help="continue from the checkpoint")
    p.add_argument("--profile", action="store_true", help="print the time of every phase of a step")
    p.add_argument("--rows", type=Path, metavar="CSV", help="append a row with the figures of this run")
    p.add_argument("--memory-log", type=Path, metavar="CSV", help="append rows of resident memory")
    p.add_argument("--memory-every", type=count, default=100, metavar="N", help="batches between those rows")
    return p


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    p = parser()
    args = p.parse_args(argv)
    args.command = list(sys.argv[1:] if argv is None else argv)
    for name, value in (IMDB if args.data == "imdb" else MAG240M).items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    args.eval_fanouts = args.eval_fanouts or args.fanouts
    for name in ("fanouts", "eval_fanouts"):
        if any(fanout == 0 or fanout < -1 for fanout in getattr(args, name)):
            p.error(f"argument --{name.replace('_', '-')}: expected positive numbers, or -1 for all neighbours")
    if len(args.eval_fanouts) != len(args.fanouts):
        p.error(f"argument --eval-fanouts: {len(args.eval_fanouts)} numbers for {len(args.fanouts)} layers")
    if args.hidden % args.heads:
        p.error(f"argument --hidden: {args.hidden} is not a multiple of --heads {args.heads}")
    if args.resume and args.checkpoint is None:
        p.error("argument --resume: needs --checkpoint")
    if args.device == "cuda" and not torch.cuda.is_available():
        p.error("argument --device: cuda was requested, but PyTorch sees no GPU")
    on_cpu = args.device == "cpu" or not torch.cuda.is_available()
    if args.features in ("pinned", "device") and on_cpu:
        p.error(f"argument --features: {args.features} needs a GPU")
    if args.kernels == "dgl" and args.dtype != "fp32" and on_cpu:
        p.error("argument --dtype: DGL's kernels have no half precision on the CPU; give fp32")
    return args


def device_of(args) -> torch.device:
    if args.device == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))


def main(argv: list[str] | None = None) -> float:
    """Runs the program and returns the test accuracy. Exits with a message if data or checkpoint is missing or
    wrong."""
    args = parse(argv)
    device = device_of(args)
    workers = Workers.of_torchrun(device.type)
    try:
        return run(args, device, workers)
    except (DataError, CheckpointError, IndexError) as error:
        sys.exit(f"rgat_minibatch: {error}")
    finally:
        if workers.count > 1:
            dist.destroy_process_group()


def run(args, device: torch.device, workers: Workers) -> float:
    data = heterodata.load(
        args.data, data_dir=args.data_dir, scale=args.scale, seed=args.seed if args.data == "synthetic" else 0
    )
    trainer = Trainer(data, args, device, workers)
    edges = sum(len(src) for src, _ in data.edges.values())
    trainer.say(
        f"{data.name} ({data.source}): {sum(data.num_nodes.values()):,} nodes, {edges:,} edges, {data.num_classes} classes"
    )
    if args.checkpoint is not None:
        try:
            args.checkpoint.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CheckpointError(f"{args.checkpoint} cannot be made: {error.strerror}") from None
    if args.resume:
        resume(trainer, args.checkpoint)
    elif args.checkpoint is not None and (args.checkpoint / "checkpoint.pt").exists():
        raise CheckpointError(
            f"{args.checkpoint} holds the checkpoint of another run: give --resume, or another directory"
        )
    trainer.fit(args.checkpoint)
    accuracy, predictions = trainer.evaluate(data.test)
    best = trainer.progress
    found = f"best validation accuracy {best.best_accuracy:.4f} (epoch {best.best_epoch})"
    trainer.say(f"{found if best.best_epoch > 0 else 'no epoch was finished'}, test accuracy {accuracy:.4f}")
    if workers.rank == 0 and args.checkpoint is not None and workers.count == 1:
        torch.save(predictions, args.checkpoint / "test_predictions.pt")
    if args.profile:
        trainer.say(profile_table(trainer))
    if args.rows and workers.rank == 0:
        append_row(args.rows, trainer, accuracy)
    return accuracy


if __name__ == "__main__":
    main()
