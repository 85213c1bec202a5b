"""Trains a GAT under automatic mixed precision, with halfgnn's kernels, with DGL's own, or with
both in turn.

The model is that of DGL's mixed-precision guide, which trains it on Reddit. It has one
`dgl.nn.GATConv` layer for each number of --heads, 256 units per head, and ELU after every layer.
Heads are concatenated between layers and averaged at the end. The optimizer is Adam with a learning
rate of 1e-3 and a weight decay of 5e-4. Every step uses the whole graph. Both backends run the same
model code; with halfgnn it runs inside `halfgnn.dgl.accelerate()`.

    python examples/gat_amp.py --dataset cora --dtype bf16 --backend both
    python examples/gat_amp.py --dataset reddit --dtype fp16 --heads 1 1 1 --clip-norm 1.0
    python examples/gat_amp.py --dataset cora --fuse

Prints a table of the runs and, with matplotlib, draws their loss curves. The training loop is in training.py.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.append(str(Path(__file__).resolve().parents[1]))  # a checkout that is not installed

# Otherwise the profiler reports an error if there is no GPU. torch reads the variable when it is imported.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")

import datasets
import torch
import torch.nn.functional as F
from arguments import number
from backends import Mode, find_mode, halfgnn_dgl, kernels_of
from packages import explained
from report import Run, describe, draw, measure_step, table
from torch import nn
from training import DTYPES, make_scaler, train, train_step


class GAT(nn.Module):
    """A stack of `dgl.nn.GATConv`, unmodified.

    heads: the number of heads of each layer. Widths are in_feats -> hidden * heads[0] -> ... ->
    num_classes. Heads are concatenated between layers and averaged after the last. dropout acts on
    the features and on the attention weights. final_activation: ELU after the last layer too, as in
    DGL's guide.
    """

    def __init__(self, in_feats, hidden, num_classes, heads, dropout=0.0, final_activation=True):
        super().__init__()
        from dgl.nn import GATConv

        widths = [in_feats] + [hidden * h for h in heads[:-1]]
        outputs = [hidden] * (len(heads) - 1) + [num_classes]
        self.layers = nn.ModuleList()
        for layer, (width, out, num_heads) in enumerate(zip(widths, outputs, heads)):
            activation = F.elu if final_activation or layer + 1 < len(heads) else None
            # Every data set of the examples has self loops. So the check of the in-degrees, which
            # would synchronise with the device, is left out.
            options = dict(feat_drop=dropout, attn_drop=dropout, activation=activation, allow_zero_in_degree=True)
            self.layers.append(GATConv(width, out, num_heads, **options))

    def forward(self, graph, features):
        """(N, in_feats) -> (N, num_classes)."""
        h = features
        for layer in self.layers[:-1]:
            h = layer(graph, h).flatten(1)
        return self.layers[-1](graph, h).mean(1)


def run_backend(backend: str, mode: Mode, data: datasets.NodeData, args) -> Run:
    """Trains a model from --seed with one backend. Both backends start from the same weights."""
    from tqdm import tqdm

    torch.manual_seed(args.seed)
    # In half precision from the start: autocast would cast fp32 features in every pass, and keep both copies.
    data = data.to(mode.device, mode.dtype)
    graph = mode.place(data.graph())
    model = GAT(data.features.shape[1], args.hidden, data.num_classes, args.heads, args.dropout)
    model = model.to(mode.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr, weight_decay=args.weight_decay)
    scaler = make_scaler(mode.device.type, mode.dtype)
    state = (model, graph, data, optimizer)
    step = dict(dtype=mode.dtype, scaler=scaler, clip_norm=args.clip_norm, accumulate=args.accumulate)
    drop_in = halfgnn_dgl() if backend == "halfgnn" else None
    with kernels_of(backend, mode):
        if drop_in:
            drop_in.reset_stats()
        with tqdm(total=args.epochs, desc=f"{backend} {mode}", unit="epoch") as bar:
            options = dict(epochs=args.epochs, eval_every=args.eval_every, progress=bar)
            history = train(*state, **options, **step)
        stats = drop_in.stats() if drop_in else None
        # Measuring slows a step down, so it has an extra step after training. The weights are not
        # used any more, so this step may change them.
        measured = measure_step(lambda: train_step(*state, **step), model, data, optimizer)
    return Run(backend, mode, history, *measured, stats)


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        description=__doc__.split("\n\n")[0],
        epilog="Times are the median over epochs of one optimizer step, without evaluation. Peak"
        " memory is the largest number of bytes that tensors hold during a training step, with data"
        " and optimizer state. CUDA's allocator counts them on a GPU, PyTorch's profiler on the CPU."
        " Matmul is the milliseconds of a step in PyTorch's matrix products, which are the same for"
        " both backends without --fuse. Peak and matmul are measured in an extra profiled step after training."
        " Accuracies are those of the epoch with the best validation accuracy.",
    )
    p.add_argument("--dataset", choices=datasets.NAMES, default="cora", help="default: %(default)s")
    packaged = "Without either, cora is the copy in the graphdatascience wheel, with its own split."
    p.add_argument("--data-dir", help=f"{datasets.DATA_DIR_HELP}. {packaged}")
    p.add_argument(
        "--dtype", choices=DTYPES, default="bf16", help="fp16 trains with a GradScaler; default: %(default)s"
    )
    p.add_argument("--backend", choices=("halfgnn", "dgl", "both"), default="both", help="default: %(default)s")
    p.add_argument("--fuse", action="store_true", help="halfgnn runs each GATConv as one fused attention")
    p.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="auto: the GPU if there is one")
    count, rate, above_zero = number(int, 1), number(float, 0.0), number(float, 0.0, open_low=True)
    p.add_argument("--heads", type=count, nargs="+", metavar="H", help="heads of each layer; default: 1 1 1")
    p.add_argument("--layers", type=count, help="number of layers, if --heads has one number for all of them")
    p.add_argument("--hidden", type=count, default=256, help="units per head in hidden layers; default: %(default)s")
    p.add_argument("--dropout", type=number(float, 0.0, 1.0), default=0.0, help="default: %(default)s")
    p.add_argument("--epochs", type=count, default=100, help="optimizer steps; default: %(default)s")
    p.add_argument("--eval-every", type=count, default=1, help="epochs between evaluations; default: %(default)s")
    p.add_argument("--lr", type=above_zero, default=1e-3, help="default: %(default)s")
    p.add_argument("--weight-decay", type=rate, default=5e-4, help="default: %(default)s")
    p.add_argument("--clip-norm", type=above_zero, help="clip the gradient to this norm")
    p.add_argument(
        "--accumulate", type=count, default=1, help="passes per step, whose gradients are averaged; default: 1"
    )
    p.add_argument("--seed", type=int, default=0, help="default: %(default)s")
    p.add_argument("--out", type=Path, help="the picture; default: out/gat_amp_<dataset>_<dtype>.png")
    return p


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    p = parser()
    args = p.parse_args(argv)
    heads = args.heads or [1] * (args.layers or 3)
    if args.layers is not None and len(heads) == 1:
        heads = heads * args.layers
    if args.layers is not None and len(heads) != args.layers:
        p.error(
            f"argument --heads: {len(heads)} numbers for --layers {args.layers}; give one per layer, or one for all"
        )
    args.heads = heads
    if args.fuse and args.backend == "dgl":
        p.error("argument --fuse: needs the backend halfgnn")
    if args.device == "cuda" and not torch.cuda.is_available():
        p.error("argument --device: cuda was requested, but PyTorch sees no GPU")
    args.out = args.out or Path("out") / f"gat_amp_{args.dataset}_{args.dtype}.png"
    return args


def main(argv: list[str] | None = None) -> list[Run]:
    """Runs the program and returns its runs. Exits with a message if data or backend is not
    available."""
    args = parse(argv)
    backends = ("dgl", "halfgnn") if args.backend == "both" else (args.backend,)
    use_cuda = args.device == "cuda" or (args.device == "auto" and torch.cuda.is_available())
    device = torch.device("cuda" if use_cuda else "cpu")
    try:
        import dgl  # noqa: F401

        data = datasets.load(args.dataset, args.data_dir)
        found = {backend: find_mode(backend, device, DTYPES[args.dtype], args.fuse) for backend in backends}
    except ImportError as error:
        sys.exit(f"gat_amp: {explained(error)}")
    except (datasets.DataError, RuntimeError) as error:
        sys.exit(f"gat_amp: {error}")
    sizes = f"{data.num_nodes:,} nodes, {len(data.src):,} edges, {data.features.shape[1]:,} features"
    print(f"{data.name} ({data.source}): {sizes}, {data.num_classes} classes")
    for backend, mode in found.items():
        if mode.reason:
            print(f"{backend} runs {mode}, because {mode.reason}")
    runs = []
    for backend in backends:
        try:
            runs.append(run_backend(backend, found[backend], data, args))
        except torch.cuda.OutOfMemoryError:
            print(f"{backend} {found[backend]} ran out of GPU memory", file=sys.stderr)
    if not runs:
        sys.exit(1)
    print(f"\n{table(runs)}\n")
    for run in runs:
        if run.mode.dtype != torch.float32 and run.matmul_ms > 500 * run.history.epoch_seconds:
            print(
                f"{run.label}: PyTorch's own matrix products take most of an epoch. They are slow in half precision"
                " on processors without instructions for it"
            )
        if run.stats is not None:
            print(describe(run.stats))
    draw(runs, f"GAT on {args.dataset}, heads {' '.join(map(str, args.heads))}", args.out)
    return runs


if __name__ == "__main__":
    main()
