"""Accuracy of GCN and GraphSAGE on Planetoid data sets whose features are stored in 8 bits, against features in fp32.

Two layers of 16 hidden units with dropout of 0.5, trained in fp32 by Adam with a learning rate of 1e-2 and a weight decay of 5e-4
(Kipf and Welling, 2017). Only the features differ: they are quantized, and the values of their codes are gathered in fp32.

    python examples/planetoid_features.py --data-dir raw --datasets cora citeseer --seeds 10

`raw` stands for a folder that has, or will have, one folder of raw Planetoid files per data set: see --help.

Prints mean and standard deviation of the test accuracy at the best validation accuracy, and appends one row per run to --out.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.append(str(Path(__file__).resolve().parents[1]))  # a checkout that is not installed

import datasets
import torch
import torch.nn.functional as F
from torch import nn
from training import NonzeroDropout, train

import halfgnn
from halfgnn.dataloading import FeatureStore, quantize

CODES = {str(t).removeprefix("torch."): t for t in (torch.uint8, torch.int8, torch.float8_e4m3fn, torch.float8_e5m2)}
FEATURES = ("float32", *CODES)
CONVS = {
    "GCN": lambda *sizes: halfgnn.nn.GraphConv(*sizes),
    "SAGE": lambda *sizes: halfgnn.nn.SAGEConv(*sizes, "mean"),
}
HIDDEN = 16
COLUMNS = (
    "dataset",
    "source",
    "model",
    "features",
    "scale",
    "seed",
    "epochs",
    "test_accuracy",
    "largest_error",
    "mean_error",
)


class Network(nn.Module):
    """Two layers of a kind of convolution, with dropout of 0.5 before each."""

    def __init__(self, conv, features: torch.Tensor, num_classes: int):
        super().__init__()
        self.hidden, self.out = conv(features.shape[1], HIDDEN), conv(HIDDEN, num_classes)
        self.dropout = NonzeroDropout(features, 0.5)

    def forward(self, graph, x):
        x = F.relu(self.hidden(graph, self.dropout(x)))
        return self.out(graph, F.dropout(x, 0.5, self.training))


def stored(features: torch.Tensor, kind: str, scale: str) -> tuple[torch.Tensor, tuple[float, float]]:
    """The features as they come back from a file of this type, and the largest and the mean error of it."""
    if kind == "float32":
        return features, (0.0, 0.0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "features.npy"
        error = quantize(features, path, CODES[kind], scale).error
        store = FeatureStore.open(path, dtype=torch.float32)
        return store.gather(torch.arange(len(store))), (error.largest, error.mean)


def run(data, graph, model: str, seed: int, epochs: int) -> float:
    """Test accuracy at the best validation accuracy."""
    torch.manual_seed(seed)
    network = Network(CONVS[model], data.features, data.num_classes)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-2, weight_decay=5e-4)
    return train(network, graph, data, optimizer, epochs=epochs, dtype=torch.float32).test_accuracy


def table(results: dict[tuple[str, str, str], list[float]]) -> str:
    """A row for each data set and model: mean and standard deviation in per cent, of each type of features."""
    lines = ["| data set | model | " + " | ".join(FEATURES) + " |", "|---|---|" + "---:|" * len(FEATURES)]
    for name, model in dict.fromkeys((name, model) for name, model, _ in results):
        cells = []
        for kind in FEATURES:
            found = [100 * accuracy for accuracy in results[name, model, kind]]
            cells.append(f"{statistics.mean(found):.2f} ± {statistics.stdev(found) if len(found) > 1 else 0:.2f}")
        lines.append(f"| {name} | {model} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--datasets", nargs="+", choices=tuple(datasets.PLANETOID), default=["cora", "citeseer"])
    parser.add_argument("--data-dir", help=datasets.DATA_DIR_HELP)
    parser.add_argument(
        "--scale", choices=("row", "column", "tensor"), default="tensor", help="what has a scale of its own"
    )
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--out", type=Path, help="CSV file to which rows are appended")
    args = parser.parse_args(argv)
    try:  # load all data sets before the first training
        loaded = [datasets.load(name, args.data_dir) for name in args.datasets]
    except datasets.DataError as error:
        sys.exit(f"planetoid_features: {error}")
    results: dict[tuple[str, str, str], list[float]] = {}
    for name, data in zip(args.datasets, loaded):
        print(f"{name}: {data.source}")
        graph = data.graph()
        for kind in FEATURES:
            features, errors = stored(data.features, kind, args.scale)
            same = dataclasses.replace(data, features=features)
            for model in CONVS:
                for seed in range(args.seeds):
                    accuracy = run(same, graph, model, seed, args.epochs)
                    results.setdefault((name, model, kind), []).append(accuracy)
                    if args.out:
                        row = (name, data.source, model, kind, args.scale, seed, args.epochs, f"{accuracy:.4f}")
                        append(args.out, (*row, *(f"{error:.3g}" for error in errors)))
    print(table(results))


def append(path: Path, row: tuple) -> None:
    """Adds a row to a CSV file. Creates the file if it does not exist."""
    is_new = not path.exists()
    with open(path, "a", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([COLUMNS, row] if is_new else [row])


if __name__ == "__main__":
    main()
