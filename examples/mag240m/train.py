"""Trains a relational GAT on sampled blocks: OGB-LSC's baseline for MAG240M, in half precision from the disk to the gradient.

The network has two layers of attention over sampled neighbours, with a GATConv per edge type, as in the baseline of Hu
et al. (2021). By default it has 1,024 units in 4 heads. Features stay float16 from their memory-mapped file to the GPU,
and are transferred while it computes. All edge types of a layer are one fused attention, under autocast in bf16 or
fp16.

    python examples/mag240m/train.py                                      IMDB: real, small, packaged
    python examples/mag240m/train.py --data synthetic --scale 0.001       a graph with MAG240M's schema, made on first use
    python examples/mag240m/train.py --data /data/mag240m_kddcup2021 --dtype fp16 --checkpoint out/mag
    torchrun --nproc-per-node 2 examples/mag240m/train.py                 DistributedDataParallel

Every process takes its part of each batch of seeds, so a batch has --batch-size seeds for any number of processes. The
program validates after every epoch and tests the best weights at the end. It saves to --checkpoint. With --resume a run
that was killed continues from there.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the modules of the examples
sys.path.append(str(Path(__file__).resolve().parents[2]))  # a checkout that is not installed

import torch
import torch.distributed as dist
from packages import explained

try:
    import tqdm  # noqa: F401
except ImportError as error:
    sys.exit(f"mag240m: {explained(error)}")

from datasets import DataError
from mag240m.batches import Workers
from mag240m.checkpoints import CheckpointError, Saver, prepare_folder, resume
from mag240m.data import load
from mag240m.options import device_of, parse
from mag240m.rows import append_row, profile_table
from mag240m.trainer import Trainer


def main(argv: list[str] | None = None) -> float:
    """Runs the program and returns the test accuracy. Exits with a message if data or checkpoint is missing or
    wrong."""
    args = parse(argv)
    device = device_of(args)
    workers = Workers.of_torchrun(device.type)
    try:
        return run(args, device, workers)
    except (DataError, CheckpointError, IndexError) as error:
        sys.exit(f"mag240m: {error}")
    finally:
        if workers.count > 1:
            dist.destroy_process_group()


def run(args, device: torch.device, workers: Workers) -> float:
    data = load(args.data, data_dir=args.data_dir, scale=args.scale, seed=args.seed if args.data == "synthetic" else 0)
    trainer = Trainer(data, args, device, workers)
    edges = sum(len(src) for src, _ in data.edges.values())
    trainer.say(
        f"{data.name} ({data.source}): {sum(data.num_nodes.values()):,} nodes, {edges:,} edges, {data.num_classes} classes"
    )
    if args.checkpoint is not None:
        prepare_folder(args.checkpoint, args.resume)
    if args.resume:
        resume(trainer, args.checkpoint)
    trainer.fit(Saver(args.checkpoint, args.checkpoint_every, workers.rank == 0))
    accuracy, predictions = trainer.evaluate(data.test)
    best = trainer.progress
    found = f"best validation accuracy {best.best_accuracy:.4f} (epoch {best.best_epoch})"
    trainer.say(f"{found if best.best_epoch > 0 else 'no epoch was finished'}, test accuracy {accuracy:.4f}")
    if args.checkpoint is not None and workers.count == 1:  # otherwise each process has those of its seeds only
        torch.save(predictions, args.checkpoint / "test_predictions.pt")
    if args.profile:
        trainer.say(profile_table(trainer))
    if args.rows and workers.rank == 0:
        append_row(args.rows, trainer, accuracy)
    return accuracy


if __name__ == "__main__":
    main()
