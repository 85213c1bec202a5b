"""Trains torch_geometric's GraphSAGE and GAT, unmodified, under automatic mixed precision: as they are, and inside
`halfgnn.pyg.accelerate()`.

Both have two layers, as in torch_geometric's own examples: GraphSAGE of 64 units, GAT of 8 heads of 8 units. Every step uses the
whole graph. The optimizer is Adam with a learning rate of 5e-3 and a weight decay of 5e-4.

    python examples/pyg_amp.py --dataset cora --dtype bf16
    python examples/pyg_amp.py --dataset ogbn-arxiv --model GAT --dtype fp16 --fuse

Prints a table of the runs and, with matplotlib, draws their loss curves. The training loop is in training.py.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.append(str(Path(__file__).resolve().parents[1]))  # a checkout that is not installed

# Otherwise the profiler reports an error if there is no GPU. torch reads the variable when it is imported.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")

import datasets
import torch
from arguments import number
from backends import Mode
from packages import explained
from report import Run, describe, draw, measure_step, table
from training import DTYPES, make_scaler, train, train_step

MODELS = ("GraphSAGE", "GAT")
BACKENDS = ("pyg", "halfgnn")


class WithEdgesFirst(torch.nn.Module):
    """A model of torch_geometric with the arguments that the training loop gives: (edge_index, features)."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, edge_index, features):
        return self.model(features, edge_index)


def make_model(name: str, data: datasets.NodeData, args) -> torch.nn.Module:
    """A model of torch_geometric.nn.models."""
    from torch_geometric.nn import models

    options = {"heads": args.heads} if name == "GAT" else {}
    kind = getattr(models, name)
    return kind(data.features.shape[1], args.hidden, args.layers, data.num_classes, dropout=args.dropout, **options)


def run_backend(model_name: str, backend: str, data: datasets.NodeData, args) -> Run:
    """Trains a model from --seed with one backend. Both backends start from the same weights."""
    from tqdm import tqdm

    import halfgnn.pyg

    mode = Mode(args.device, DTYPES[args.dtype], fuse=args.fuse and backend == "halfgnn")
    torch.manual_seed(args.seed)
    data = data.to(
        mode.device, mode.dtype
    )  # in half precision from the start: autocast would cast features in every pass
    edge_index = torch.stack([data.src, data.dst]).long().to(mode.device)
    model = WithEdgesFirst(make_model(model_name, data, args)).to(mode.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr, weight_decay=args.weight_decay)
    state = (model, edge_index, data, optimizer)
    step = dict(dtype=mode.dtype, scaler=make_scaler(mode.device.type, mode.dtype), clip_norm=args.clip_norm)
    is_ours = backend == "halfgnn"
    with halfgnn.pyg.accelerate(fuse=args.fuse or None) if is_ours else contextlib.nullcontext():
        halfgnn.pyg.reset_stats()
        with tqdm(total=args.epochs, desc=f"{model_name} {backend} {mode}", unit="epoch") as bar:
            history = train(*state, epochs=args.epochs, eval_every=args.eval_every, progress=bar, **step)
        stats = halfgnn.pyg.stats() if is_ours else None
        measured = measure_step(lambda: train_step(*state, **step), model, data, optimizer)
    return Run(f"{model_name} {backend}", mode, history, *measured, stats)


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        description=__doc__.split("\n\n")[0],
        epilog="Times are the median over epochs of one optimizer step, without evaluation. Peak memory is the largest number of"
        " bytes that tensors hold during a training step. Matmul is the milliseconds of a step in PyTorch's matrix products, which"
        " are torch_geometric's own without --fuse. Accuracies are those of the epoch with the best validation accuracy.",
    )
    count, rate, above_zero = number(int, 1), number(float, 0.0), number(float, 0.0, open_low=True)
    p.add_argument("--dataset", choices=datasets.NAMES, default="cora", help="default: %(default)s")
    p.add_argument("--data-dir", help=datasets.DATA_DIR_HELP)
    p.add_argument("--model", choices=(*MODELS, "both"), default="both", help="default: %(default)s")
    p.add_argument("--backend", choices=(*BACKENDS, "both"), default="both", help="default: %(default)s")
    p.add_argument(
        "--dtype", choices=DTYPES, default="bf16", help="fp16 trains with a GradScaler; default: %(default)s"
    )
    p.add_argument(
        "--fuse", action="store_true", help="halfgnn runs each GATConv as one fused attention, with dropout too"
    )
    p.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="auto: the GPU if there is one")
    p.add_argument(
        "--hidden", type=count, default=64, help="units in hidden layers, of all heads; default: %(default)s"
    )
    p.add_argument("--heads", type=count, default=8, help="of GAT; default: %(default)s")
    p.add_argument("--layers", type=count, default=2, help="default: %(default)s")
    p.add_argument("--dropout", type=number(float, 0.0, 1.0), default=0.5, help="default: %(default)s")
    p.add_argument("--epochs", type=count, default=100, help="optimizer steps; default: %(default)s")
    p.add_argument("--eval-every", type=count, default=1, help="epochs between evaluations; default: %(default)s")
    p.add_argument("--lr", type=above_zero, default=5e-3, help="default: %(default)s")
    p.add_argument("--weight-decay", type=rate, default=5e-4, help="default: %(default)s")
    p.add_argument("--clip-norm", type=above_zero, help="clip the gradient to this norm")
    p.add_argument("--seed", type=int, default=0, help="default: %(default)s")
    p.add_argument("--out", type=Path, help="the picture; default: out/pyg_amp_<dataset>_<dtype>.png")
    return p


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    p = parser()
    args = p.parse_args(argv)
    if args.hidden % args.heads and args.model != "GraphSAGE":
        p.error(f"argument --hidden: {args.hidden} is not a multiple of --heads, {args.heads}")
    if args.fuse and args.backend == "pyg":
        p.error("argument --fuse: needs the backend halfgnn")
    if args.device == "cuda" and not torch.cuda.is_available():
        p.error("argument --device: cuda was requested, but PyTorch sees no GPU")
    use_cuda = args.device == "cuda" or (args.device == "auto" and torch.cuda.is_available())
    args.device = torch.device("cuda" if use_cuda else "cpu")
    args.out = args.out or Path("out") / f"pyg_amp_{args.dataset}_{args.dtype}.png"
    return args


def main(argv: list[str] | None = None) -> list[Run]:
    """Runs the program and returns its runs. Exits with a message if data or torch_geometric is not available."""
    args = parse(argv)
    try:
        import torch_geometric  # noqa: F401

        import halfgnn.pyg  # noqa: F401

        data = datasets.load(args.dataset, args.data_dir)
    except ImportError as error:
        sys.exit(f"pyg_amp: {explained(error)}")
    except datasets.DataError as error:
        sys.exit(f"pyg_amp: {error}")
    sizes = f"{data.num_nodes:,} nodes, {len(data.src):,} edges, {data.features.shape[1]:,} features"
    print(f"{data.name} ({data.source}): {sizes}, {data.num_classes} classes")
    models = MODELS if args.model == "both" else (args.model,)
    backends = BACKENDS if args.backend == "both" else (args.backend,)
    runs = [run_backend(model, backend, data, args) for model in models for backend in backends]
    print(f"\n{table(runs)}\n")
    for run in runs:
        if run.stats is not None:
            print(f"{run.backend}: {describe(run.stats, 'PyG')}")
    draw(runs, f"torch_geometric on {args.dataset}, {args.layers} layers of {args.hidden}", args.out)
    return runs


if __name__ == "__main__":
    main()
