"""What the processes of the tests of DistHeteroGraph compute, and the same in one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

import halfgnn
import halfgnn.nn
import halfgnn.pyg
from halfgnn.distributed import DistGraph, DistHeteroGraph, cut_features, partition, sum_gradients
from tests.distributed.support_distributed import start

NODES = {"paper": 40, "author": 30, "venue": 7}  # venues have no in-edges
EDGES = {
    ("author", "writes", "paper"): 150,
    ("paper", "cites", "paper"): 200,
    ("paper", "of", "author"): 90,
    ("venue", "prints", "paper"): 25,
    ("author", "knows", "author"): 0,
}
WIDTH = {"paper": 12, "author": 6, "venue": 4}
STEPS = 8


def heterograph() -> halfgnn.HeteroGraph:
    generator = torch.Generator().manual_seed(0)
    ends = {
        etype: torch.stack([torch.randint(NODES[etype[i]], (count,), generator=generator) for i in (0, 2)])
        for etype, count in EDGES.items()
    }
    return halfgnn.HeteroGraph.from_edge_index_dict(ends, NODES)


def features() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {ntype: torch.randn(count, WIDTH[ntype], generator=generator) for ntype, count in NODES.items()}


def labels() -> Tensor:
    return torch.randint(3, (NODES["paper"],), generator=torch.Generator().manual_seed(2))


def edge_data(etype: Any) -> Tensor:
    return torch.arange(EDGES[etype], dtype=torch.float64)


def write_parts(folder: Path, parts: int) -> None:
    generator = torch.Generator().manual_seed(3)
    owner = {ntype: torch.randint(parts, (count,), generator=generator) for ntype, count in NODES.items()}
    partition(heterograph(), parts, out=folder, method=owner)
    for ntype, x in features().items():
        cut_features(folder, "x", x, of=ntype)
    cut_features(folder, "labels", labels(), of="paper")
    for etype in EDGES:
        cut_features(folder, "number", edge_data(etype), of=etype)


def run(rank: int, port: int, folder: Path, world_size: int) -> None:
    torch.set_num_threads(1)
    start(rank, port, world_size)
    g = DistHeteroGraph.load(folder)
    found = {"rows": _rows(g), "errors": _errors(g, folder), "gradients": _gradients(g)}
    x = {ntype: g.features("x", of=ntype).data for ntype in g.nodes}
    found |= {kind: train(g, x, g.features("labels", of="paper").data, kind) for kind in ("dgl", "pyg")}
    torch.save(found, folder / f"result-{rank}.pt")
    dist.destroy_process_group()


# ---- rows --------------------------------------------------------------------------------------------------------------------


def _rows(g: DistHeteroGraph) -> dict[str, Any]:
    x = {ntype: rows[g.nodes[ntype]] for ntype, rows in features().items()}
    before = g.bytes_sent
    rows = g.halo(x)
    return {
        "bytes": g.bytes_sent - before,
        "nodes": g.nodes,
        "edge_ids": g.edge_ids,
        "rows": rows,
        "one type": g.halo({"author": x["author"].bfloat16()}),
        "edge_index": g.edge_index_dict,
        "graph": {etype: torch.stack(g.graph[etype].edges()) for etype in g.graph},
        "numbers": {etype: g.features("number", of=etype).data for etype in EDGES},
        "in": {etype: g.in_degrees(etype) for etype in EDGES},
        "out": {etype: g.out_degrees(etype) for etype in EDGES},
        "ghosts": g.num_ghosts,
    }


def _gradients(g: DistHeteroGraph) -> dict[str, Tensor]:
    """Of papers, beside integers and rows without a gradient; authors are read, but are in no sum. And a second derivative."""
    x = {ntype: rows[g.nodes[ntype]].double() for ntype, rows in features().items()}
    papers, authors = x["paper"].requires_grad_(), x["author"].requires_grad_()
    rows = g.halo({"paper": papers, "author": authors, "venue": torch.arange(g.num_own["venue"])})
    of = g.edge_index_dict["paper", "cites", "paper"][0]
    (first, none) = torch.autograd.grad((rows["paper"] ** 3)[of].sum(), [papers, authors], create_graph=True)
    return {
        "first": first.detach(),
        "none": none.detach(),
        "second": torch.autograd.grad(first.pow(2).sum(), papers)[0],
    }


def _errors(g: DistHeteroGraph, folder: Path) -> list[str]:
    x = {ntype: rows[g.nodes[ntype]] for ntype, rows in features().items()}
    texts = []
    for wrong in (
        x["paper"],
        {},
        {"book": x["paper"]},
        {"paper": x["paper"][1:]},
        {"paper": x["paper"]} if g.rank else {"author": x["author"]},
    ):
        try:
            g.halo(wrong)  # type: ignore[arg-type]
        except (TypeError, ValueError) as error:
            texts.append(str(error))
    try:
        DistGraph.load(folder)
    except ValueError as error:
        texts.append(str(error))
    return texts


# ---- training ----------------------------------------------------------------------------------------------------------------


class Network(nn.Module):
    """Two layers of modules with DGL's interface, or of torch_geometric's own, under the drop-in."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        if kind == "dgl":
            layer = lambda sizes: halfgnn.nn.HeteroGraphConv(  # noqa: E731
                {etype[1]: halfgnn.nn.SAGEConv((sizes[etype[0]], sizes[etype[2]]), 6, "mean") for etype in EDGES}
            )
        else:
            import torch_geometric.nn as pyg

            layer = lambda sizes: pyg.HeteroConv(  # noqa: E731
                {etype: pyg.SAGEConv((sizes[etype[0]], sizes[etype[2]]), 6) for etype in EDGES}
            )
        self.first, self.second = layer(WIDTH), layer({**dict.fromkeys(NODES, 6), "venue": WIDTH["venue"]})
        self.out = nn.Linear(6, 3)

    def forward(self, g: Any, x: dict[str, Tensor]) -> Tensor:
        for conv in (self.first, self.second):
            rows = g.halo(x) if isinstance(g, DistHeteroGraph) else x
            x = {**x, **{ntype: h.relu() for ntype, h in self._layer(conv, g, rows, x).items()}}
        return self.out(x["paper"])

    def _layer(self, conv: nn.Module, g: Any, rows: dict[str, Tensor], x: dict[str, Tensor]) -> dict[str, Tensor]:
        if self.kind == "dgl":
            return conv(g.graph if isinstance(g, DistHeteroGraph) else g, (rows, x))
        index = g.edge_index_dict if isinstance(g, DistHeteroGraph) else {e: torch.stack(g[e].edges()) for e in g}
        return conv({etype: (rows[etype[0]], x[etype[2]]) for etype in EDGES}, index)


def train(g: Any, x: dict[str, Tensor], y: Tensor, kind: str) -> list[float]:
    torch.manual_seed(4)
    model = Network(kind)
    optimizer = torch.optim.Adam(model.parameters(), 0.02)
    losses = []
    for _ in range(STEPS):
        with halfgnn.pyg.accelerate():
            loss = F.cross_entropy(model(g, x), y, reduction="sum") / NODES["paper"]
        optimizer.zero_grad()
        loss.backward()
        total = loss.detach().clone()
        if isinstance(g, DistHeteroGraph):
            sum_gradients(model)
            dist.all_reduce(total)
        optimizer.step()
        losses.append(float(total))
    return losses
