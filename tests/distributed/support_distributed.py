"""What the processes of the tests of halfgnn.distributed compute, and the same in one process."""

from __future__ import annotations

import functools
import os
import socket
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

import halfgnn
import halfgnn.nn
import halfgnn.ops
from halfgnn.distributed import DistGraph, DistNeighborSampler, cut_features, partition, sum_gradients
from tests import support_processes

N, E, C, CLASSES, STEPS = 90, 800, 12, 5, 20


def graph() -> halfgnn.Graph:
    generator = torch.Generator().manual_seed(0)
    return halfgnn.Graph.from_edges(*torch.randint(N, (2, E), generator=generator), num_src=N, num_dst=N)


def features(dtype: torch.dtype = torch.float32, *shape: int) -> Tensor:
    x = torch.randn(N, *(shape or (C,)), generator=torch.Generator().manual_seed(1))
    return (8 * x).to(dtype)


def labels() -> Tensor:
    return torch.randint(CLASSES, (N,), generator=torch.Generator().manual_seed(2))


def write_parts(folder: Path, parts: int) -> None:
    owner = torch.randint(parts, (N,), generator=torch.Generator().manual_seed(3))
    partition(graph(), parts, out=folder, method=owner)
    cut_features(folder, "x", features())
    cut_features(folder, "labels", labels())


# ---- processes ---------------------------------------------------------------------------------------------------------------


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def run(task: Callable[[DistGraph], Any], folder: Path, world_size: int) -> list[Any]:
    """What the task returns in each process."""
    support_processes.start(_run, (task, free_port(), folder, world_size), world_size)
    return [torch.load(folder / f"result-{rank}.pt") for rank in range(world_size)]


def _run(rank: int, task: Callable[[DistGraph], Any], port: int, folder: Path, world_size: int) -> None:
    torch.set_num_threads(1)
    start(rank, port, world_size)
    torch.save(task(DistGraph.load(folder)), folder / f"result-{rank}.pt")
    dist.destroy_process_group()


def start(rank: int, port: int, world_size: int, seconds: float = 60) -> None:
    address = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("gloo", address, rank=rank, world_size=world_size, timeout=timedelta(seconds=seconds))


# ---- training ----------------------------------------------------------------------------------------------------------------


class Network(nn.Module):
    """Two layers, of a DistGraph or of a Graph and the whole features."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        if kind == "sage":
            self.layers = nn.ModuleList(halfgnn.nn.SAGEConv(a, b, "mean") for a, b in ((C, 16), (16, CLASSES)))
        else:
            self.layers = nn.ModuleList(
                halfgnn.nn.GATConv(a, b, 2, allow_zero_in_degree=True) for a, b in ((C, 16), (16, CLASSES))
            )

    def forward(self, g: Any, x: Tensor) -> Tensor:
        for i, layer in enumerate(self.layers):
            x = layer(g.graph, (g.halo(x), x)) if isinstance(g, DistGraph) else layer(g, x)
            x = x.mean(1) if x.dim() == 3 else x
            x = x.relu() if i == 0 else x
        return x


def train(g: Any, x: Tensor, y: Tensor, kind: str, dtype: torch.dtype) -> dict[str, Any]:
    """Losses, and the gradients of the first step and the last weights."""
    torch.manual_seed(5)
    model = Network(kind)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0, enabled=dtype is torch.float16)
    losses, first = [], None
    for _ in range(STEPS):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype, enabled=dtype is not torch.float32):
            out = model(g, x)
        loss = F.cross_entropy(out.float(), y, reduction="sum") / N
        scaler.scale(loss).backward()
        total = loss.detach().clone()
        if isinstance(g, DistGraph):
            sum_gradients(model)
            dist.all_reduce(total)
        if first is None:
            first = [p.grad.clone() / scaler.get_scale() for p in model.parameters()]
        scaler.step(optimizer)
        scaler.update()
        losses.append(total)
    return {"losses": torch.stack(losses), "gradients": first, "weights": [p.detach() for p in model.parameters()]}


KINDS = [(kind, dtype) for kind in ("sage", "gat") for dtype in (torch.float32, torch.bfloat16, torch.float16)]


def kinds_of(world_size: int) -> list[tuple[str, torch.dtype]]:
    return KINDS if world_size == 2 else [KINDS[0], KINDS[4]]


def trained(g: DistGraph) -> dict[str, Any]:
    x, y = g.features("x").data, g.features("labels").data
    found = {f"{kind} {dtype}": train(g, x, y, kind, dtype) for kind, dtype in kinds_of(g.world_size)}
    found["again"] = train(g, x, y, "gat", torch.bfloat16)
    return found


# ---- rows of ghosts ----------------------------------------------------------------------------------------------------------

SHAPES = [(), (3,), (2, 3)]
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.bool]


def weights(g: halfgnn.Graph, *shape: int) -> Tensor:
    """Of every edge and column."""
    return torch.randn(E, *shape, generator=torch.Generator().manual_seed(4), dtype=torch.float64)


def exchanged(g: DistGraph) -> dict[str, Any]:
    found: dict[str, Any] = {
        "nodes": g.nodes,
        "edge_ids": g.edge_ids,
        "edge_index": g.edge_index,
        "ghosts": g.num_ghosts,
    }
    for dtype in DTYPES:
        for shape in SHAPES:
            found[f"rows {dtype} {shape}"] = g.halo(features(dtype, *shape or (1,)).view(N, *shape)[g.nodes])
    for dtype in DTYPES[:4]:
        x = features(dtype)[g.nodes].requires_grad_()
        rows = g.halo(x)[g.edge_index[0]].double() * weights(g.graph, C)[g.edge_ids]
        found[f"gradient {dtype}"] = torch.autograd.grad(rows.sum(), x)[0]
    x = features(torch.float64)[g.nodes].requires_grad_()
    (grad,) = torch.autograd.grad((g.halo(x) ** 3)[g.edge_index[0]].sum(), x, create_graph=True)
    found["second"] = torch.autograd.grad(grad.pow(2).sum(), x)[0]
    found["in"], found["out"] = g.in_degrees(), g.out_degrees()
    before = g.bytes_sent
    g.halo(features(torch.bfloat16)[g.nodes])
    found["bytes"] = g.bytes_sent - before
    found |= _aggregated(g)
    found["sampled"] = _sampled(g)
    found["changed"] = changed_afterwards(g)
    found["errors"] = [_error(g.halo, x) for x in _wrong_rows(g)]
    found["of load"] = _errors_of_load(g)
    return found


AGGREGATES = [  # trailing sizes of the features, of the weight, reduction
    ((C,), None, "sum"), ((C,), None, "mean"), ((C,), (1,), "sum"), ((2, 3), (2, 1), "sum"), ((2, 3), (2, 1), "mean"),
    ((1,), (1,), "sum"),
]  # fmt: skip


def _aggregated(g: DistGraph) -> dict[str, Tensor]:
    found = {}
    for dtype in DTYPES[:4]:
        for shape, of_weight, reduce in AGGREGATES:
            key = f"{dtype} {shape} {of_weight} {reduce}"
            x = features(dtype, *shape)[g.nodes].requires_grad_()
            w = None if of_weight is None else weights(g.graph, *of_weight)[g.edge_ids].to(dtype).requires_grad_()
            before = g.bytes_sent
            out = g.aggregate(x, w, reduce)
            found[f"sent {key}"] = g.bytes_sent - before
            found[f"sum {key}"] = out.detach()
            grads = torch.autograd.grad(
                out, [x] if w is None else [x, w], features(torch.float64, *shape)[g.nodes].to(dtype)
            )
            found[f"of x {key}"] = grads[0]
            if w is not None:
                found[f"of w {key}"] = grads[1]
    return found


def _sampled(g: DistGraph) -> dict[str, Any]:
    """Mini-batches, gathered rows, and errors. Processes have other seeds, and one has none."""
    torch.manual_seed(g.rank)
    x, seeds = features()[g.nodes], torch.randperm(N)[: 20 * (1 - g.rank) + 5]
    every, few = DistNeighborSampler(g, [-1, -1]), DistNeighborSampler(g, [2, 3], seed=5)
    torch.manual_seed(5)
    network = Network("sage")
    batch = every.sample(seeds)
    h = every.gather(g.features("x"), batch.input_nodes)
    for i, (layer, block) in enumerate(zip(network.layers, batch.blocks)):
        h = layer(block, h).relu() if i == 0 else layer(block, h)
    samples = [few.sample(ids, seed=seed) for ids, seed in ((seeds, None), (seeds, None), (seeds, 1))]
    zeros = DistNeighborSampler(g, [-1], edge_weight=(g.edge_ids % 2).float()).sample(seeds.int())
    empty = every.sample(seeds[: 0 if g.rank else 3])
    errors = []
    for call in (
        lambda: few.sample(seeds.float()),
        lambda: few.sample(torch.tensor([1, 1])),
        lambda: few.sample(torch.tensor([N if g.rank else 0])),
        lambda: few.gather(x[1:], seeds),
        lambda: few.gather(x.double() if g.rank else x, seeds),
        lambda: (few if g.rank else every).sample(seeds),
        lambda: DistNeighborSampler(g.graph, [2]),  # type: ignore[arg-type]
        lambda: DistNeighborSampler(g, [{"a": 2}]),  # type: ignore[list-item]
        lambda: DistNeighborSampler(g, [-2]),
    ):
        try:
            call()
        except (TypeError, ValueError) as error:
            errors.append(str(error))
    return {
        "seeds": seeds,
        "output": h.detach(),
        "few": [edges_of(sample) for sample in samples],
        "odd": edges_of(zeros),
        "empty": edges_of(empty),
        "twice": every.gather(x.bfloat16(), torch.tensor([7, 3, 7])),
        "errors": errors,
    }


def edges_of(batch: Any) -> list[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Of each block the sources and destinations in the graph, the ids of edges, and the destinations."""
    found = []
    for block in batch.blocks:
        src, dst = (x.long() for x in block.graph.edges())
        found.append((block.srcdata["_ID"][src], block.dstdata["_ID"][dst], block.edata["_ID"], block.dstdata["_ID"]))
    assert torch.equal(batch.blocks[0].srcdata["_ID"], batch.input_nodes)
    return found


def changed_afterwards(g: DistGraph) -> Tensor:
    """Gradient of rows that are changed in place after they were summed."""
    x = features()[g.nodes].requires_grad_()
    rows = x * 1
    out = g.aggregate(rows, torch.ones(g.graph.num_edges, 1))
    rows.zero_()
    return torch.autograd.grad(out.sum(), x)[0]


def attention_by_parts(g: DistGraph) -> dict[str, Any]:
    """GAT's layer without the rows of all ghosts, and its own module on a halo; and errors."""
    torch.manual_seed(7)
    layer = halfgnn.nn.GATConv(C, 4, 2, allow_zero_in_degree=True)
    results = []
    for by_parts in (False, True):
        layer.zero_grad()
        x = features()[g.nodes].requires_grad_()
        if by_parts:
            h = layer.fc(x).view(-1, 2, 4)
            source, target = ((h * a).sum(-1, keepdim=True) for a in (layer.attn_l, layer.attn_r))
            logits = halfgnn.ops.u_add_v(g.graph, g.halo(source), target)
            out = g.aggregate(h, halfgnn.ops.edge_softmax(g.graph, F.leaky_relu(logits, 0.2))) + layer.bias.view(2, 4)
        else:
            out = layer(g.graph, (g.halo(x), x))
        out.sin().sum().backward()
        sum_gradients(layer)
        results.append([out.detach(), x.grad, *(p.grad.clone() for p in layer.parameters())])
    errors = []
    x = features()[g.nodes]
    for arguments in (
        (x[1:],),
        (x, None, "max"),
        (x[:, 0],),
        (x, torch.ones(3, 1)),
        (x, torch.ones(g.graph.num_edges, 2)),
        (x.long(),),
        (x, torch.ones(g.graph.num_edges, 1).int()),
        (x.double(), torch.ones(g.graph.num_edges, 1)),
        (x, torch.ones(g.graph.num_edges, 1) if g.rank else None),
        (x, torch.ones(g.graph.num_edges, 1).requires_grad_(g.rank == 1)),
        (x, None, "mean" if g.rank else "sum"),
    ):
        try:
            g.aggregate(*arguments)
        except (TypeError, ValueError) as error:
            errors.append(str(error))
    return {
        "results": results,
        "errors": errors,
        "num_edges": g.graph.num_edges,
        "nodes": g.nodes,
        "rounded once": _rounded_once(g),
        "of group": _in_a_group(g),
    }


CONSTANTS = [
    0.75 * 2**-11,
    1.0,
    0.75 * 2**-11,
]  # any two of fp16 are 1 once rounded, or small; all three are more than 1


def _rounded_once(g: DistGraph) -> Tensor:
    x = torch.zeros(g.num_own, 1, dtype=torch.float16, requires_grad=True)
    rows = g.halo(x)
    return torch.autograd.grad(rows, x, torch.full_like(rows, CONSTANTS[g.rank]))[0]


def _in_a_group(g: DistGraph) -> dict[str, Any]:
    """Another partition, of processes 1 and 2, with a gradient that goes back."""
    group = dist.new_group([1, 2])
    if g.rank == 0:
        return {}
    part = DistGraph.load(g._folder / "two", group=group)
    x = features(torch.float64)[part.nodes].requires_grad_()
    out = part.aggregate(x, halfgnn.ops.copy_u(part.graph, part.halo(x[:, :1])))
    out.sin().sum().backward()
    return {"nodes": part.nodes, "rows": out.detach(), "gradient": x.grad}


def _wrong_rows(g: DistGraph) -> list[Any]:
    """The last ones differ between processes."""
    x = features()[g.nodes]
    width = C - g.rank
    return [
        x[1:],
        [1],
        x.to_sparse(),
        x.double() if g.rank else x,
        x[:, :width],
        x.requires_grad_(g.rank == 1),
        x[g.rank :],
    ]


def _errors_of_load(g: DistGraph) -> list[str]:
    """Process 1 has no folder, half of one, or is not in the group."""
    half = g._folder / "half"
    if g.rank == 1:
        half.mkdir()
        (half / "partition.json").write_bytes((g._folder / "partition.json").read_bytes())
    errors = [_error(DistGraph.load, folder if g.rank else g._folder) for folder in (g._folder / "none", half)]
    return [*errors, _error(functools.partial(DistGraph.load, group=dist.new_group([0])), g._folder)]


def _error(function: Callable[[Any], Any], x: Any) -> str:
    try:
        function(x)
    except (TypeError, ValueError, FileNotFoundError) as error:
        return str(error)
    return ""


def of_pyg(g: DistGraph) -> dict[str, Any]:
    """Unmodified modules of torch_geometric under the drop-in."""
    import torch_geometric.nn as pyg

    import halfgnn.pyg

    found = {}
    for name in ("SAGEConv", "GATConv", "GraphConv", "TransformerConv"):
        torch.manual_seed(6)
        module = getattr(pyg, name)((C, C), 4)
        x = features()[g.nodes].requires_grad_()
        with halfgnn.pyg.accelerate():
            out = module((g.halo(x), x), g.edge_index)
        out.sin().sum().backward()
        sum_gradients(module)
        found[name] = [out.detach(), x.grad, *(p.grad for p in module.parameters())]
    return found


def dies(rank: int, port: int, folder: Path) -> None:
    """Process 1 ends while the others send rows."""
    from halfgnn.distributed import exchange

    exchange._PATIENCE = timedelta(seconds=2)
    start(rank, port, 3, 20)
    g = DistGraph.load(folder)
    g.halo(features()[g.nodes])
    if rank == 1:
        os._exit(3)
    try:
        g.halo(features()[g.nodes])
    except RuntimeError as error:
        torch.save(str(error), folder / f"error-{rank}.pt")
        time.sleep(4)  # the store is process 0's
        os._exit(0)  # not by destroy_process_group, which waits
