"""GraphSAGE on sampled mini-batches under automatic mixed precision: a template of a hundred lines, to copy.

    python examples/sage_minibatch.py                                      Cora, or --dataset reddit
    python examples/sage_minibatch.py --checkpoint out/sage.pt --resume    continue a run that was killed
    python examples/sage_minibatch.py --codes                              features in 8 bits, which the first layer reads
    torchrun --nproc-per-node 2 examples/sage_minibatch.py                 DistributedDataParallel

mag240m/train.py does the same for graphs with several node and edge types, and has more options.
"""

import argparse
import itertools
import os
import sys
import tempfile
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))  # a checkout that is not installed

import datasets
import torch
import torch.distributed as dist
import torch.nn.functional as F
from packages import explained
from torch import nn

try:
    from tqdm import tqdm
except ImportError as error:
    sys.exit(f"sage_minibatch: {explained(error)}")

from halfgnn import Graph
from halfgnn.dataloading import FeatureStore, NeighborDataLoader, NeighborSampler, Prefetcher, quantize
from halfgnn.nn import SAGEConv

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}


class SAGE(nn.Module):
    def __init__(self, in_feats, hidden, num_classes, num_layers):
        super().__init__()
        widths = [in_feats] + [hidden] * (num_layers - 1) + [num_classes]
        self.layers = nn.ModuleList(SAGEConv(a, b, "mean") for a, b in itertools.pairwise(widths))

    def forward(self, blocks, x):
        for i, (layer, block) in enumerate(zip(self.layers, blocks)):
            x = layer(block, x if i == 0 else F.dropout(F.relu(x), 0.5, self.training))
        return x


def in_eight_bits(x, dtype):
    with tempfile.TemporaryDirectory() as folder:  # keep the file of features that do not fit into memory
        quantize(x, Path(folder, "x.npy"), torch.uint8, "tensor")
        return FeatureStore.open(Path(folder, "x.npy"), dtype=dtype).clone()


def main(argv=None):
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--dataset", default="cora", choices=datasets.NAMES)
    p.add_argument("--dtype", default="bf16", choices=DTYPES)
    p.add_argument("--codes", action="store_true", help="keep and move features in 8 bits")
    p.add_argument("--fanouts", type=int, nargs="+", default=[10, 10], help="neighbours per layer, input layer first")
    p.add_argument("--batch-size", type=int, default=64, help="seeds per batch, for all processes together")
    p.add_argument("--hidden", type=int, default=256)
    p.add_argument("--epochs", type=int, default=10)
    p.add_argument("--checkpoint", type=Path, metavar="FILE", help="save the last epoch there")
    p.add_argument("--resume", action="store_true", help="continue after the epoch of the file --checkpoint")
    args = p.parse_args(argv)
    if args.resume and args.checkpoint is None:
        p.error("argument --resume: needs --checkpoint FILE")
    if args.resume and not args.checkpoint.exists():
        p.error(f"argument --resume: {args.checkpoint} does not exist; start without --resume")

    # Processes and devices: torchrun sets RANK and LOCAL_RANK.
    has_gpu, local = torch.cuda.is_available(), int(os.environ.get("LOCAL_RANK", 0))
    device = torch.device("cuda", local) if has_gpu else torch.device("cpu")
    if "RANK" in os.environ:
        dist.init_process_group("nccl" if has_gpu else "gloo")
    rank, world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)

    # Features are kept, gathered and moved in half precision.
    data, dtype = datasets.load(args.dataset), DTYPES[args.dtype]
    graph = Graph.from_edges(data.src, data.dst, num_src=data.num_nodes, num_dst=data.num_nodes)
    sampler = NeighborSampler(graph, args.fanouts, csr=True)  # csr: what the backward reads is made in the background
    shares = dict(batch_size=args.batch_size, shuffle=True, rank=rank, world_size=world)
    train = NeighborDataLoader(sampler, data.train, **shares)  # each process takes its part of every batch
    val = NeighborDataLoader(sampler, data.val, batch_size=args.batch_size)
    features = in_eight_bits(data.features, dtype) if args.codes else FeatureStore(data.features.to(dtype))
    labels, rows = FeatureStore(data.labels), features.codes if args.codes else features.rows

    def fetch(batch):
        nodes, seeds, blocks = batch
        return blocks, rows(nodes), labels.rows(seeds)

    torch.manual_seed(0)
    model = SAGE(features.shape[1], args.hidden, data.num_classes, len(args.fanouts)).to(device)
    network = nn.parallel.DistributedDataParallel(model) if world > 1 else model
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3, weight_decay=5e-4)
    scaler = torch.amp.GradScaler(device.type, enabled=dtype == torch.float16)
    first = 0
    if args.resume:
        state = torch.load(args.checkpoint, map_location=device, weights_only=True)
        first = state["epoch"] + 1
        for name, part in (("model", model), ("optimizer", optimizer), ("scaler", scaler)):
            part.load_state_dict(state[name])

    train.set_epoch(first)  # order and neighbours depend on the number of the epoch
    train, val = (Prefetcher(loader, device, fetch=fetch) for loader in (train, val))
    accuracy = float("nan")
    for epoch in range(first, args.epochs):
        model.train()
        bar = tqdm(train, desc=f"epoch {epoch + 1}", disable=rank > 0)
        for blocks, x, y in bar:
            with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
                loss = F.cross_entropy(network(blocks, x).float(), y)
            optimizer.zero_grad(set_to_none=True)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            bar.set_postfix(loss=f"{loss.item():.3f}")
        model.eval()
        right = torch.zeros(2, dtype=torch.long, device=device)
        with torch.no_grad(), torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
            for blocks, x, y in val:
                right += torch.stack([(model(blocks, x).argmax(1) == y).sum(), torch.tensor(len(y), device=device)])
        accuracy = (right[0] / right[1]).item()
        tqdm.write(f"epoch {epoch + 1}: validation accuracy {accuracy:.4f}") if rank == 0 else None
        if args.checkpoint and rank == 0:
            parts = dict(model=model, optimizer=optimizer, scaler=scaler)
            args.checkpoint.parent.mkdir(parents=True, exist_ok=True)
            partial = args.checkpoint.with_suffix(".partial")
            torch.save({"epoch": epoch, **{name: part.state_dict() for name, part in parts.items()}}, partial)
            partial.replace(args.checkpoint)  # so that a run that is killed leaves a complete checkpoint
    if dist.is_initialized():
        dist.destroy_process_group()
    return accuracy


if __name__ == "__main__":
    main()
