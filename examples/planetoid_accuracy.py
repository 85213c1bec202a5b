"""Accuracy of the fused modules under automatic mixed precision, against DGL's own modules in fp32, on Planetoid data
sets.

The model has two layers of attention as in the papers: 8 heads of 8 units, dropout of 0.6 on features and weights, Adam
with a learning rate of 5e-3 and a weight decay of 5e-4. It is trained on the standard split with several seeds.
halfgnn.nn's modules run under autocast in fp16 (with a GradScaler) and bf16. dgl.nn's modules, with the same
constructor and seed, run in fp32.

    python examples/planetoid_accuracy.py --data-dir raw --datasets cora citeseer --models GATConv GATv2Conv --seeds 5

`raw` stands for a folder that has, or will have, one folder of raw Planetoid files per data set: see --help.

Prints mean and standard deviation of the test accuracy at the best validation accuracy, and appends one row per run to
--out.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.append(str(Path(__file__).resolve().parents[1]))  # a checkout that is not installed

import datasets
import torch
import torch.nn.functional as F
from packages import explained
from torch import nn
from training import DTYPES, NonzeroDropout, make_scaler, train

try:
    import dgl.nn
    from tqdm import tqdm
except ImportError as error:
    sys.exit(f"planetoid_accuracy: {explained(error)}")

RUNS = (("dgl", "fp32"), ("halfgnn", "fp16"), ("halfgnn", "bf16"))


def conv_class(library: str, model: str):
    if library == "dgl":
        return getattr(dgl.nn, model)
    import halfgnn.nn

    return getattr(halfgnn.nn, model)


class Network(nn.Module):
    """Layers: in_feats -> 8 heads of 8, ELU -> one head of num_classes."""

    def __init__(self, conv, in_feats: int, num_classes: int, dropout: float = 0.6):
        super().__init__()
        options = dict(feat_drop=dropout, attn_drop=dropout, allow_zero_in_degree=True)
        self.hidden = conv(in_feats, 8, 8, activation=F.elu, **options)
        self.out = conv(64, num_classes, 1, **options)

    def forward(self, graph, x):
        return self.out(graph, self.hidden(graph, x).flatten(1)).mean(1)


def run(data, graph, model: str, library: str, dtype_name: str, seed: int, epochs: int) -> float:
    """Test accuracy at the best validation accuracy."""
    dtype = DTYPES[dtype_name]
    torch.manual_seed(seed)
    network = Network(conv_class(library, model), data.features.shape[1], data.num_classes).to(data.features.device)
    network.hidden.feat_drop = NonzeroDropout(data.features, network.hidden.feat_drop.p)
    optimizer = torch.optim.Adam(network.parameters(), lr=5e-3, weight_decay=5e-4)
    scaler = make_scaler(data.features.device.type, dtype)
    with tqdm(
        total=epochs, desc=f"{data.name} {model} {library} {dtype_name} {seed}", leave=False, disable=None
    ) as bar:
        history = train(network, graph, data, optimizer, epochs=epochs, dtype=dtype, progress=bar, scaler=scaler)
    return history.test_accuracy


def table(results: dict[tuple[str, str, str, str], list[float]]) -> str:
    lines = [
        "| data set | module | library | dtype | test accuracy | against DGL fp32 |",
        "|---|---|---|---|---:|---:|",
    ]
    for (name, model, library, dtype), found in results.items():
        mean = 100 * statistics.mean(found)
        spread = 100 * statistics.stdev(found) if len(found) > 1 else 0.0
        base = results.get((name, model, "dgl", "fp32"))
        apart = f"{mean - 100 * statistics.mean(base):+.2f}" if base and library != "dgl" else ""
        lines.append(f"| {name} | {model} | {library} | {dtype} | {mean:.2f} ± {spread:.2f} | {apart} |")
    return "\n".join(lines)


COLUMNS = ("dataset", "source", "module", "library", "dtype", "seed", "epochs", "test_accuracy")


def append(path: Path, row: tuple) -> None:
    """Adds a row to a CSV file. Creates the file if it does not exist."""
    is_new = not path.exists()
    with open(path, "a", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([COLUMNS, row] if is_new else [row])


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--datasets", nargs="+", choices=tuple(datasets.PLANETOID), default=["cora", "citeseer"])
    parser.add_argument("--models", nargs="+", choices=("GATConv", "GATv2Conv"), default=["GATConv", "GATv2Conv"])
    parser.add_argument("--data-dir", help=datasets.DATA_DIR_HELP)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="cuda needs a DGL with CUDA")
    parser.add_argument("--out", type=Path, help="CSV file to which rows are appended")
    args = parser.parse_args(argv)
    if args.out:
        if args.out.is_dir():
            sys.exit(f"planetoid_accuracy: --out {args.out} is a folder; expected a CSV file")
        args.out.parent.mkdir(parents=True, exist_ok=True)
    results: dict[tuple[str, str, str, str], list[float]] = {}
    try:  # load all data sets before the first training
        loaded = [datasets.load(name, args.data_dir).to(torch.device(args.device)) for name in args.datasets]
    except datasets.DataError as error:
        sys.exit(f"planetoid_accuracy: {error}")
    for name, data in zip(args.datasets, loaded):
        print(f"{name}: {data.source}")
        graph = data.graph().to(args.device)
        for model in args.models:
            for library, dtype in RUNS:
                for seed in range(args.seeds):
                    accuracy = run(data, graph, model, library, dtype, seed, args.epochs)
                    results.setdefault((name, model, library, dtype), []).append(accuracy)
                    if args.out:
                        done = (name, data.source, model, library, dtype, seed, args.epochs, f"{accuracy:.4f}")
                        append(args.out, done)
    print(table(results))


if __name__ == "__main__":
    main()
