"""Trains a GAT under automatic mixed precision, with halfgnn's kernels, with DGL's own, or with
both in turn.

The model is that of DGL's mixed-precision guide, which trains it on Reddit. It has one
`dgl.nn.GATConv` layer for each number of --heads, 256 units per head, and ELU after every layer.
Heads are concatenated between layers and averaged at the end. The optimizer is Adam with a learning
rate of 1e-3 and a weight decay of 5e-4. Every step uses the whole graph. Both backends run the same
model code; with halfgnn it runs inside `halfgnn.dgl.accelerate()`.

    python examples/gat_amp.py --dataset cora --dtype bf16 --backend both
    python examples/gat_amp.py --dataset reddit --dtype fp16 --heads 1 1 1 --clip-norm 1.0

Prints a table of both runs and draws both loss curves.
"""

from __future__ import annotations

import argparse
import contextlib
import inspect
import json
import operator
import os
import re
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.append(str(Path(__file__).resolve().parents[1]))  # a checkout that is not installed

# Otherwise the profiler reports an error if there is no GPU. torch reads the variable when it is imported.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")

import datasets
import torch
import torch.nn.functional as F
from torch import nn

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}
DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}
MATRIX_PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm")


# -------------------------------------------------------------------------------------------- model


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
            options = dict(
                feat_drop=dropout,
                attn_drop=dropout,
                activation=activation,
                allow_zero_in_degree=True,
            )
            self.layers.append(GATConv(width, out, num_heads, **options))

    def forward(self, graph, features):
        """(N, in_feats) -> (N, num_classes)."""
        h = features
        for layer in self.layers[:-1]:
            h = layer(graph, h).flatten(1)
        return self.layers[-1](graph, h).mean(1)


# ----------------------------------------------------------------------------------------- training


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
    model,
    graph,
    data,
    optimizer,
    *,
    epochs,
    dtype,
    patience=None,
    eval_every=1,
    progress=None,
    **step,
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


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


# ------------------------------------------------------------------------------------------- memory


def measure_step(step, model, data, optimizer) -> tuple[int, float]:
    """(peak bytes of tensors, milliseconds in PyTorch's matrix products) of one `step()`.

    The bytes include the data, the parameters and the optimizer state. On CUDA the caching
    allocator reports them. The CPU's allocator keeps no peak, so the profiler records every
    allocation and release of the step, and they are added up. On the CPU DGL's own graph structure
    is not counted.
    """
    optimizer.zero_grad(set_to_none=True)
    device = data.features.device
    activities = [torch.profiler.ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
        torch.cuda.reset_peak_memory_stats(device)
    on_cpu = device.type == "cpu"
    # Newer versions of torch warn about cycles without acc_events, although there is only one cycle here. torch 2.4
    # lacks it.
    known = inspect.signature(torch.profiler.profile).parameters
    options = {"acc_events": True} if "acc_events" in known else {}
    with torch.profiler.profile(activities=activities, profile_memory=on_cpu, **options) as profile:
        step()
        synchronize(device)
    time_of = operator.attrgetter("self_cpu_time_total" if on_cpu else "self_device_time_total")
    matmul = sum(time_of(entry) for entry in profile.key_averages() if entry.key in MATRIX_PRODUCTS)
    if not on_cpu:
        return torch.cuda.max_memory_allocated(device), matmul / 1e3
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "trace.json"
        profile.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    return resident_bytes(model, data, optimizer) + peak_of_events(events), matmul / 1e3


def peak_of_events(events: list[dict]) -> int:
    """Highest running sum of the bytes in a trace's memory events, in the order of their times."""
    memory = [(event["ts"], event["args"]["Bytes"]) for event in events if event.get("name") == "[memory]"]
    live = peak = 0
    for _, size in sorted(memory, key=lambda entry: entry[0]):
        live += size
        peak = max(peak, live)
    return peak


def resident_bytes(model, data, optimizer) -> int:
    tensors = [
        *model.parameters(),
        *model.buffers(),
        data.features,
        data.labels,
        data.train,
        data.val,
        data.test,
    ]
    for state in optimizer.state.values():
        tensors += [value for value in state.values() if torch.is_tensor(value)]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


# ----------------------------------------------------------------------------------------- backends


@dataclass
class Mode:
    """The device and dtype in which a backend runs.

    features_only: DGL's graph stays on the CPU while features, model and kernels are on `device`.
    reason: why the mode differs from the requested one; None if it does not.
    """

    device: torch.device
    dtype: torch.dtype
    features_only: bool = False
    reason: str | None = None

    def __str__(self) -> str:
        return f"{DTYPE_NAMES[self.dtype]} {self.device.type}"

    def place(self, graph):
        """`graph` on the device of this mode's graphs."""
        return graph if self.features_only else graph.to(self.device)


def halfgnn_dgl():
    """The drop-in, imported late, so that --backend dgl works without halfgnn."""
    import halfgnn.dgl

    return halfgnn.dgl


@contextlib.contextmanager
def kernels_of(backend: str, mode: Mode):
    """Inside this context the kernels of `backend` compute DGL's message passing."""
    with contextlib.ExitStack() as stack:
        if backend == "halfgnn":
            stack.enter_context(halfgnn_dgl().accelerate())
        if mode.features_only:
            stack.enter_context(graphs_pose_on(mode.device))
        yield


def graphs_pose_on(device: torch.device):
    """Inside this context DGL graphs take data on `device`, even if their own structure is elsewhere.

    DGL from PyPI has no CUDA and cannot hold a graph on a GPU. Its Python layer does not need the
    graph there. It compares devices, and then calls the message-passing functions. halfgnn replaces
    these functions with its own, which copy the structure to the features' device.
    """
    import dgl

    return mock.patch.object(dgl.DGLGraph, "device", property(lambda graph: device))


def modes(backend: str, device: torch.device, dtype: torch.dtype) -> list[Mode]:
    """Modes for `backend`; the first is the closest to the requested device and dtype."""
    cpu = torch.device("cpu")
    if backend == "halfgnn":  # always in the requested dtype
        on_gpu = [Mode(device, dtype), Mode(device, dtype, features_only=True)]
        return ([] if device == cpu else on_gpu) + [Mode(cpu, dtype)]
    devices = dict.fromkeys([device, cpu])
    return [Mode(where, what) for where in devices for what in dict.fromkeys([dtype, torch.float32])]


def find_mode(backend: str, device: torch.device, dtype: torch.dtype) -> Mode:
    """The first of `modes` in which `backend` trains a tiny model. Its reason has the errors of the
    earlier modes.

    DGL's own kernels refuse half precision on the CPU, and PyPI's DGL has no CUDA. Then its fp32
    run, or its run on the CPU, is the only one to compare with.
    """
    errors = []
    for mode in modes(backend, device, dtype):
        error = probe(backend, mode)
        if error is None:
            mode.reason = "; ".join(dict.fromkeys(errors)) or None
            return mode
        errors.append(error)
    reason = "; ".join(dict.fromkeys(errors))
    raise RuntimeError(f"{backend} cannot train in {DTYPE_NAMES[dtype]} on {device}: {reason}")


def probe(backend: str, mode: Mode) -> str | None:
    """None if `backend` trains a tiny GAT in `mode`, otherwise its error in one line."""
    ids = torch.arange(4, dtype=torch.int32)
    nodes = ids.long()
    split = (nodes, nodes, nodes)
    data = datasets.NodeData("tiny", "", ids, ids, torch.ones(4, 8), nodes % 2, *split, 2)
    try:
        data = data.to(mode.device)
        model = GAT(8, 4, 2, [2, 1]).to(mode.device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        with kernels_of(backend, mode):
            train_step(model, mode.place(data.graph()), data, optimizer, dtype=mode.dtype)
    except Exception as error:  # any error: the demo reports it and tries the next mode
        return brief(error)
    return None


def brief(error: Exception) -> str:
    """Type and first line of an error, without the time stamp and source line that DGL's C++
    adds."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    message = re.sub(r"^\[[\d:]+\] \S+: (Check failed: )?", "", lines[0] if lines else "no message")
    return f"{type(error).__name__}: {message[:160]}"


# --------------------------------------------------------------------------------------------- runs


@dataclass
class Run:
    backend: str
    mode: Mode
    history: History
    peak_bytes: int
    matmul_ms: float
    stats: dict | None = None  # halfgnn.dgl.stats() of the training

    @property
    def label(self) -> str:
        return f"{self.backend} {self.mode}"


def run_backend(backend: str, mode: Mode, data: datasets.NodeData, args) -> Run:
    """Trains a model from --seed with one backend. Both backends start from the same weights."""
    from tqdm import tqdm

    torch.manual_seed(args.seed)
    # In half from the start: autocast would cast fp32 features in every pass, and keep both copies.
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


def describe(stats: dict) -> str:
    """The contents of halfgnn.dgl.stats(), in two lines."""
    routed = ", ".join(f"{name} {calls}" for name, calls in sorted(stats["routed"].items()))
    left = ", ".join(
        f"{name} {calls} ({reason})"
        for name, reasons in sorted(stats["fell_back"].items())
        for reason, calls in reasons.items()
    )
    return f"calls computed by halfgnn: {routed or 'none'}\ncalls left to DGL: {left or 'none'}"


def table(runs: list[Run]) -> str:
    """The results, one line per run."""
    rows = [("run", "loss", "val acc", "test acc", "ms/epoch", "matmul ms", "peak MiB", "skipped")]
    for run in runs:
        h = run.history
        loss = f"{h.losses[0]:.4f} -> {h.losses[-1]:.4f}"
        accuracies = (f"{h.val_accuracy:.4f}", f"{h.test_accuracy:.4f}")
        times = (f"{h.epoch_seconds * 1e3:.1f}", f"{run.matmul_ms:.1f}")
        rows.append((run.label, loss, *accuracies, *times, f"{run.peak_bytes / 2**20:.1f}", str(h.skipped)))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows)


def draw(runs: list[Run], title: str, path: Path) -> None:
    """Both loss curves in one picture."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4.5), layout="constrained")
    for run, style in zip(runs, ("-", "--")):  # so that both curves are visible if they are the same
        axes.plot(range(1, len(run.history.losses) + 1), run.history.losses, style, label=run.label)
    axes.set(xlabel="epoch", ylabel="training loss", title=title)
    axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


# ------------------------------------------------------------------------------------- command line


def number(kind, low, high=None, open_low=False):
    """An argparse type: a number of `kind` in [low, high), or (low, high) with open_low."""

    def convert(text: str):
        value = kind(text)
        if not (value > low if open_low else value >= low) or (high is not None and not value < high):
            bound = f"{'>' if open_low else '>='} {low}" + ("" if high is None else f" and < {high}")
            raise argparse.ArgumentTypeError(f"must be {bound}, got {text}")
        return value

    convert.__name__ = kind.__name__  # argparse then says "invalid int value" if the text is not a number
    return convert


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        description=__doc__.split("\n\n")[0],
        epilog="Times are the median over epochs of one optimizer step, without evaluation. Peak"
        " memory is the largest number of bytes that tensors hold during a training step, with data"
        " and optimizer state. CUDA's allocator counts them on a GPU, PyTorch's profiler on the CPU."
        " Matmul is the milliseconds of a step in PyTorch's matrix products, which are the same for"
        " both backends. Peak and matmul are measured in an extra profiled step after training."
        " Accuracies are those of the epoch with the best validation accuracy.",
    )
    p.add_argument("--dataset", choices=datasets.NAMES, default="cora", help="default: %(default)s")
    p.add_argument(
        "--data-dir",
        help="folder of raw data, named as in dgl.data (cora_v2_d697a464/...); default:"
        " $HALFGNN_DATA. Without either, cora is the copy in the graphdatascience wheel, with its"
        " own split.",
    )
    p.add_argument(
        "--dtype",
        choices=DTYPES,
        default="bf16",
        help="fp16 trains with a GradScaler; default: %(default)s",
    )
    p.add_argument("--backend", choices=("halfgnn", "dgl", "both"), default="both", help="default: %(default)s")
    p.add_argument(
        "--device",
        choices=("auto", "cpu", "cuda"),
        default="auto",
        help="auto: the GPU if there is one",
    )
    count, rate = number(int, 1), number(float, 0.0)
    p.add_argument(
        "--heads",
        type=count,
        nargs="+",
        default=None,
        metavar="H",
        help="heads of each layer; default: 1 1 1",
    )
    p.add_argument("--layers", type=count, help="number of layers, if --heads has one number for all of them")
    p.add_argument(
        "--hidden",
        type=count,
        default=256,
        help="units per head in hidden layers; default: %(default)s",
    )
    p.add_argument("--dropout", type=number(float, 0.0, 1.0), default=0.0, help="default: %(default)s")
    p.add_argument("--epochs", type=count, default=100, help="optimizer steps; default: %(default)s")
    p.add_argument(
        "--eval-every",
        type=count,
        default=1,
        help="epochs between evaluations; default: %(default)s",
    )
    p.add_argument("--lr", type=number(float, 0.0, open_low=True), default=1e-3, help="default: %(default)s")
    p.add_argument("--weight-decay", type=rate, default=5e-4, help="default: %(default)s")
    p.add_argument("--clip-norm", type=number(float, 0.0, open_low=True), help="clip the gradient to this norm")
    p.add_argument(
        "--accumulate",
        type=count,
        default=1,
        help="passes per step, whose gradients are averaged; default: 1",
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
        data = datasets.load(args.dataset, args.data_dir)
        found = {backend: find_mode(backend, device, DTYPES[args.dtype]) for backend in backends}
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
    draw(runs, f"GAT on {args.dataset}, heads {' '.join(map(str, args.heads))}", args.out)
    print(f"\n{table(runs)}\n")
    for run in runs:
        if run.mode.dtype != torch.float32 and run.matmul_ms > 500 * run.history.epoch_seconds:
            print(
                f"{run.label}: PyTorch's own matrix products take most of an epoch. They are slow in half"
                " precision on processors without instructions for it"
            )
        if run.stats is not None:
            print(describe(run.stats))
    print(f"loss curves: {args.out}")
    return runs


if __name__ == "__main__":
    main()
