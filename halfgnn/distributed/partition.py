"""partition: a graph cut into parts, one per process, in a folder."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..common.arguments import checked_size
from ..common.ids import INT32_MAX
from ..graph import Graph
from ..graph_argument import as_graph_or_heterograph
from ..heterograph import HeteroGraph
from ..node_order import reorder
from .union import as_union

FORMAT = "halfgnn partition 1"


def partition(
    graph: Any, parts: int, *, out: Any, method: Any = "communities", progress: bool = False
) -> dict[str, Any]:
    """Cuts a graph into parts, one per process of a :class:`DistGraph`.

    A part has the in-edges of the nodes that it owns. Rows of the other nodes that those edges read, its ghosts, are what processes
    send one another in every layer.

    Args:
        graph: a :class:`halfgnn.Graph` with num_src = num_dst, a :class:`halfgnn.HeteroGraph`, or a DGLGraph. The nodes of a
            heterograph's types are numbered one type after another, and are cut as those of one graph.
        parts: how many parts.
        out: a folder, which is made. It gets `partition.json`, `owner.npy` (N,), the part of each node, and a file `part-K.npz` per
            part. Ids are int32 where they fit.
        method: ``"communities"``, ranges of the order of :func:`halfgnn.reorder` with as many nodes and edges each; ``"metis"``, by
            the package pymetis (Karypis and Kumar, 1998); or the part of each node, (N,) integers below `parts`;
            of a heterograph {node type: (N_type,)}.
        progress: whether to show a bar. It needs the package tqdm.

    Returns:
        The content of `partition.json`. ``"parts"`` has the numbers of nodes, edges and ghosts of each part, ``"node_types"`` and
        ``"edge_types"`` those of a heterograph's types.

    Raises:
        TypeError, ValueError: graph is no graph, or has other sources than destinations; parts is below 1 or above the number of
            nodes; method is unknown, or has another shape or ids out of range. ImportError: pymetis is not installed.
            FileExistsError: out holds a partition, or features of one.
    """
    found, union = as_graph_or_heterograph(graph, "graph"), None
    if isinstance(found, HeteroGraph):
        found, union = as_union(found)
        method = union.joined(method, "method") if isinstance(method, Mapping) else method
    g = found.to("cpu")
    if g.num_src != g.num_dst:
        raise ValueError(f"graph has {g.num_src} source and {g.num_dst} destination nodes; expected as many of both")
    parts = checked_size(parts, "parts", 1)
    if parts > max(g.num_dst, 1):
        raise ValueError(f"parts is {parts}; expected at most {max(g.num_dst, 1)}, the number of nodes")
    folder = Path(out)
    check_new(folder)
    owner = owners(g, parts, method)
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / "owner.npy", _short(owner, parts).numpy())
    sizes = _write_parts(g, owner, parts, folder, progress)
    digest = hashlib.sha256(f"{g.num_dst} {g.num_edges} {parts}".encode())
    for x in (owner, *g.csc()[:2]):
        digest.update(x.long().numpy().data)
    description = {
        "format": FORMAT,
        "id": digest.hexdigest()[:16],
        "num_nodes": g.num_dst,
        "num_edges": g.num_edges,
        "parts": sizes,
        **(union.description() if union else {}),
    }
    (folder / "partition.json").write_text(json.dumps(description, indent=1) + "\n", encoding="utf-8")
    return description


def check_new(folder: Path) -> None:
    """Raises FileExistsError if a folder holds a partition, or features of one."""
    if (folder / "partition.json").exists():
        raise FileExistsError(f"{folder} holds a partition; remove the folder, or choose another")
    stale = sorted(path.name for path in folder.glob("part-*.*.npy"))
    if stale:
        raise FileExistsError(
            f"{folder} holds {stale[0]}, of an earlier partition; remove the folder, or choose another"
        )


def read(folder: Any) -> dict[str, Any]:
    """The description of the partition in a folder. Raises FileNotFoundError, and ValueError for another format."""
    path = Path(folder) / "partition.json"
    if not path.exists():
        raise FileNotFoundError(
            f"{path} does not exist; halfgnn.distributed.partition(graph, parts, out={str(folder)!r}) writes it"
        )
    description = json.loads(path.read_text(encoding="utf-8"))
    if description.get("format") != FORMAT:
        raise ValueError(f"{path} has the format {description.get('format')!r}; expected {FORMAT!r}")
    return description


def read_part(folder: Any, part: int, device: Any = "cpu", names: Sequence[str] = ()) -> dict[str, Tensor]:
    """What :func:`_cut` made of a part, and the rows that it sends: sends, by the part that reads them, and send_counts.

    names: of the tensors to read; none: all.
    """
    with np.load(Path(folder) / f"part-{part}.npz") as arrays:
        return {name: torch.from_numpy(arrays[name]).to(device) for name in names or arrays.files}


# ---- whose a node is ---------------------------------------------------------------------------------------------------------


def owners(g: Graph, parts: int, method: Any) -> Tensor:
    """The part of each node (N,), int64."""
    if isinstance(method, str):
        if method not in ("communities", "metis"):
            raise ValueError(f"method is {method!r}; expected 'communities', 'metis' or the part of each node")
        if g.num_dst == 0 or parts == 1:
            return torch.zeros(g.num_dst, dtype=torch.int64)
        return _by_metis(g, parts) if method == "metis" else _by_communities(g, parts)
    owner = torch.as_tensor(method)
    if owner.dim() != 1 or owner.shape[0] != g.num_dst or owner.is_floating_point() or owner.dtype is torch.bool:
        raise ValueError(
            f"method has shape {tuple(owner.shape)} and dtype {owner.dtype}; expected ({g.num_dst},) integers"
        )
    owner = owner.to("cpu", torch.int64)
    if owner.numel() and not 0 <= int(owner.min()) <= int(owner.max()) < parts:
        raise ValueError(f"method has parts from {int(owner.min())} to {int(owner.max())}; expected 0 to {parts - 1}")
    return owner.clone()


def _by_communities(g: Graph, parts: int) -> Tensor:
    order = reorder(g, least_gain=0.0).node_ids.long()
    weights = (g.in_degrees().long() + g.num_edges // max(g.num_dst, 1) + 1)[order]  # of edges and nodes alike
    ends = weights.cumsum(0)
    owner = torch.empty_like(order)
    owner[order] = ((ends - 1) * parts // ends[-1]).clamp_(max=parts - 1)
    return owner


def _by_metis(g: Graph, parts: int) -> Tensor:
    try:
        import pymetis
    except ImportError as error:
        raise ImportError("method is 'metis', which needs the package pymetis: pip install pymetis") from error
    src, dst = (x.long() for x in g.edges())
    is_loop = src == dst
    pairs = torch.cat([src * g.num_dst + dst, dst * g.num_dst + src])[
        ~is_loop.repeat(2)
    ].unique()  # sorted, and symmetric
    starts = torch.zeros(g.num_dst + 1, dtype=torch.int64)
    torch.cumsum(torch.bincount(pairs // g.num_dst, minlength=g.num_dst), 0, out=starts[1:])
    adjacency = pymetis.CSRAdjacency(starts.numpy(), (pairs % g.num_dst).numpy())
    _, membership = pymetis.part_graph(parts, adjacency)
    return torch.as_tensor(membership, dtype=torch.int64)


# ---- files -------------------------------------------------------------------------------------------------------------------


def _write_parts(g: Graph, owner: Tensor, parts: int, folder: Path, progress: bool) -> list[dict[str, int]]:
    nodes = [(owner == part).nonzero().view(-1) for part in range(parts)]
    place = torch.empty_like(owner)  # of a node among those of its part
    for ids in nodes:
        place[ids] = torch.arange(ids.shape[0])
    cuts = [_cut(g, owner, place, part, nodes[part], parts) for part in shown(range(parts), progress, "parts")]
    sizes = []
    for part, cut in enumerate(cuts):
        asked = [place[other["ghosts"].split(other["ghost_counts"].tolist())[part]] for other in cuts]
        cut["sends"], cut["send_counts"] = torch.cat(asked), torch.tensor([ids.shape[0] for ids in asked])
        largest = max(g.num_dst, g.num_edges)
        np.savez(folder / f"part-{part}.npz", **{name: _short(x, largest).numpy() for name, x in cut.items()})  # type: ignore[arg-type]
        sizes.append(
            {name: cut[key].shape[0] for name, key in (("nodes", "nodes"), ("edges", "indices"), ("ghosts", "ghosts"))}
        )
    return sizes


def _cut(g: Graph, owner: Tensor, place: Tensor, part: int, nodes: Tensor, parts: int) -> dict[str, Tensor]:
    """One part: its adjacency, whose ids of sources are places among its nodes, and behind them among its ghosts."""
    indptr, indices, edge_ids = g.csc()
    degrees = indptr.diff().long()[nodes]
    starts = torch.zeros(nodes.shape[0] + 1, dtype=torch.int64)
    torch.cumsum(degrees, 0, out=starts[1:])
    edges = torch.arange(int(starts[-1])) + torch.repeat_interleave(indptr[:-1].long()[nodes] - starts[:-1], degrees)
    src = indices.long()[edges]
    is_ghost = owner[src] != part
    keys = (
        owner[src[is_ghost]] * g.num_dst + src[is_ghost]
    )  # ghosts of one owner lie together, in the order of their ids
    ghosts = keys.unique()
    ids = place[src]
    ids[is_ghost] = nodes.shape[0] + torch.searchsorted(ghosts, keys)
    return {
        "nodes": nodes,
        "indptr": starts,
        "indices": ids,
        "edge_ids": edges if edge_ids is None else edge_ids.long()[edges],
        "ghosts": ghosts % max(g.num_dst, 1),
        "ghost_counts": torch.bincount(ghosts // max(g.num_dst, 1), minlength=parts),
    }


def _short(x: Tensor, largest: int) -> Tensor:
    return x.int() if largest <= INT32_MAX else x


def shown(x: Iterable[Any], progress: bool, what: str) -> Iterable[Any]:
    """With a bar."""
    if not progress:
        return x
    from tqdm.auto import tqdm

    return tqdm(x, what)
