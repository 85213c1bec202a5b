"""GraphSAGE or GAT on one whole graph that several processes share, under automatic mixed precision.

    torchrun --nproc-per-node 2 examples/full_graph.py                            Cora, or --dataset reddit
    torchrun --nproc-per-node 4 examples/full_graph.py --model gat --dtype fp16   with a GradScaler
    torchrun --nproc-per-node 2 examples/full_graph.py --checkpoint out/gat.pt --resume   also of another number of processes
    python examples/full_graph.py --draw losses.png one.json two.json             of runs with --losses FILE

Process 0 cuts the graph. Every process has its nodes, their in-edges and features, and all of the model.
"""

import argparse
import itertools
import json
import os
import sys
import tempfile
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))  # a checkout that is not installed

import datasets
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from halfgnn import Graph
from halfgnn.distributed import DistGraph, cut_features, partition, sum_gradients
from halfgnn.nn import GATConv, SAGEConv

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}


class Network(nn.Module):
    def __init__(self, kind, in_feats, hidden, num_classes, num_layers, heads=4):
        super().__init__()
        widths = itertools.pairwise([in_feats] + [hidden] * (num_layers - 1) + [num_classes])
        if kind == "sage":
            self.layers = nn.ModuleList(SAGEConv(a, b, "mean") for a, b in widths)
        else:
            self.layers = nn.ModuleList(GATConv(a, b, heads) for a, b in widths)

    def forward(self, g, x, rows):
        """rows: g.halo(x) of the features, which do not change."""
        for i, layer in enumerate(self.layers):
            rows = rows if i == 0 else g.halo(x)  # the one line that a program of one process does not have
            x = layer(g.graph, (rows, x))
            x = x.mean(1) if x.dim() == 3 else x  # heads
            x = F.relu(x) if i + 1 < len(self.layers) else x
        return x


def cut(args, folder):
    """Process 0: the graph with self-loops, which GAT needs, its features, labels and splits."""
    data = datasets.load(args.dataset)
    loops = torch.arange(data.num_nodes)
    src, dst = (torch.cat([ids.long(), loops]) for ids in (data.src, data.dst))
    graph = Graph.from_edges(src, dst, num_src=data.num_nodes, num_dst=data.num_nodes)
    partition(graph, dist.get_world_size(), out=folder, method=args.partition)
    split = torch.zeros(data.num_nodes, dtype=torch.uint8)
    for number, ids in enumerate((data.train, data.val, data.test), 1):
        split[ids] = number
    for name, rows in (("features", data.features), ("labels", data.labels), ("split", split)):
        cut_features(folder, name, rows)


def total(x):
    """The sum over all processes."""
    dist.all_reduce(x)
    return x


def train(args, folder, device):
    g = DistGraph.load(folder, device=device)
    x, y, split = (g.features(name).data.to(device) for name in ("features", "labels", "split"))
    y, dtype = y.long(), DTYPES[args.dtype]
    rows = g.halo(x)
    num_train = total((split == 1).sum())
    num_classes = y.max() + 1
    dist.all_reduce(num_classes, dist.ReduceOp.MAX)
    torch.manual_seed(0)  # the same model in all processes
    model = Network(args.model, x.shape[1], args.hidden, int(num_classes), args.layers).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler(device.type, enabled=dtype == torch.float16)
    parts, losses = dict(model=model, optimizer=optimizer, scaler=scaler), []
    if args.resume:
        state = torch.load(args.checkpoint, map_location=device, weights_only=True)
        losses = state["losses"]
        for name, part in parts.items():
            part.load_state_dict(state[name])
    for epoch in range(len(losses), args.epochs):
        before = g.bytes_sent
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
            out = model(g, x, rows).float()
        loss = F.cross_entropy(out[split == 1], y[split == 1], reduction="sum") / num_train
        scaler.scale(loss).backward()
        sum_gradients(model)
        scaler.step(optimizer)
        scaler.update()
        losses.append(total(loss.detach()).item())
        if g.rank == 0:
            print(
                f"epoch {epoch + 1}: loss {losses[-1]:.6f}, process 0 sent {g.bytes_sent - before:,} bytes", flush=True
            )
        if args.checkpoint and g.rank == 0:
            partial = args.checkpoint.with_suffix(".partial")
            partial.parent.mkdir(parents=True, exist_ok=True)
            torch.save({"losses": losses, **{name: part.state_dict() for name, part in parts.items()}}, partial)
            partial.replace(args.checkpoint)  # so that a run that is killed leaves a complete checkpoint
    with torch.no_grad():
        right = (model(g, x, rows).argmax(1) == y) & (split == 3)
    accuracy = (total(right.sum()) / total((split == 3).sum())).item()
    if g.rank == 0:
        print(f"{g}\ntest accuracy {accuracy:.4f}")
        if args.losses:
            name = f"{args.model}, {args.dtype}, {g.world_size} processes"
            args.losses.write_text(json.dumps({"name": name, "losses": losses}), encoding="utf-8")
    return losses, accuracy


def draw(picture, logs):
    from matplotlib.figure import Figure

    axes = (figure := Figure(figsize=(6, 4), layout="constrained")).subplots()
    for log in logs:
        run = json.loads(Path(log).read_text(encoding="utf-8"))
        axes.plot(range(1, len(run["losses"]) + 1), run["losses"], label=run["name"], alpha=0.7)
    axes.set(xlabel="epoch", ylabel="training loss", yscale="log")
    axes.legend()
    figure.savefig(picture)


def main(argv=None):
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--model", default="sage", choices=("sage", "gat"))
    p.add_argument("--dataset", default="cora", choices=datasets.NAMES)
    p.add_argument("--dtype", default="bf16", choices=DTYPES)
    p.add_argument("--layers", type=int, default=2)
    p.add_argument("--hidden", type=int, default=64)
    p.add_argument("--epochs", type=int, default=20)
    p.add_argument("--partition", default="communities", choices=("communities", "metis"))
    p.add_argument(
        "--folder", type=Path, help="for the partition, which all machines can read; by default a temporary one"
    )
    p.add_argument("--checkpoint", type=Path, metavar="FILE", help="save every epoch there")
    p.add_argument("--resume", action="store_true", help="continue after the last epoch of the file --checkpoint")
    p.add_argument("--losses", type=Path, metavar="FILE", help="write the losses there")
    p.add_argument(
        "--draw", nargs="+", metavar="FILE", help="only draw the picture FILE of the files of --losses that follow"
    )
    args = p.parse_args(argv)
    if args.draw:
        return draw(args.draw[0], args.draw[1:])
    if args.resume and (args.checkpoint is None or not args.checkpoint.exists()):
        p.error("argument --resume: needs --checkpoint FILE, of an earlier run")
    # torchrun sets RANK and LOCAL_RANK.
    has_gpu, local = torch.cuda.is_available(), int(os.environ.get("LOCAL_RANK", 0))
    device = torch.device("cuda", local) if has_gpu else torch.device("cpu")
    backend = "nccl" if has_gpu else "gloo"
    if "RANK" in os.environ:
        dist.init_process_group(backend)
    else:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    with tempfile.TemporaryDirectory() as temporary:
        folder = [str(args.folder or temporary)]
        if dist.get_rank() == 0 and not (Path(folder[0]) / "partition.json").exists():
            cut(args, folder[0])
        dist.broadcast_object_list(folder)  # after which it is complete
        result = train(args, folder[0], device)
        dist.barrier()
    dist.destroy_process_group()
    return result


if __name__ == "__main__":
    main()
