"""The options of the program, with defaults for each data set."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import torch
from arguments import number
from training import DTYPES

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


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        description="Trains a relational GAT, OGB-LSC's baseline for MAG240M, on sampled blocks."
    )
    count, none_or_more, above_zero = number(int, 1), number(int, 0), number(float, 0.0, open_low=True)
    p.add_argument("--data", default="imdb", help="imdb, synthetic or the directory of MAG240M; default: %(default)s")
    p.add_argument("--data-dir", help="folder for synthetic data; default: ~/.cache/halfgnn")
    p.add_argument("--scale", type=above_zero, default=0.001, help="scale of synthetic data; 1 is MAG240M's size")
    p.add_argument(
        "--dtype", choices=DTYPES, default="bf16", help="fp16 trains with a GradScaler; default: %(default)s"
    )
    p.add_argument(
        "--kernels", choices=("halfgnn", "dgl"), default="halfgnn", help="dgl: for comparison; only fp32 on the CPU"
    )
    p.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="auto: the GPU if there is one")
    fanouts = "neighbours per relation, one number per layer, input layer first; -1: all"
    p.add_argument("--fanouts", type=int, nargs="+", help=fanouts)
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
    p.add_argument("--lr", type=above_zero)
    p.add_argument("--weight-decay", type=number(float, 0.0))
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
    seed = "seed of weights, order and dropout, but not of DGL's sampling"
    p.add_argument("--seed", type=none_or_more, default=0, help=seed)
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
    p.add_argument("--checkpoint", type=Path, metavar="DIR", help="save checkpoints and the best weights there")
    p.add_argument("--checkpoint-every", type=none_or_more, default=100, metavar="N", help="also after every N batches")
    p.add_argument("--resume", action="store_true", help="continue from the checkpoint in --checkpoint")
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
        p.error("argument --resume: needs --checkpoint DIR")
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
