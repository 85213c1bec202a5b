"""partition: a graph cut into parts, one per process, in a folder; cut_features: rows of nodes, cut in the same way."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..common.arguments import checked_size
from ..common.ids import INT32_MAX
from ..dataloading import FeatureStore
from ..graph import Graph
from ..graph_argument import as_graph
from ..node_order import reorder

FORMAT = "halfgnn partition 1"
_ROWS = 65_536  # of features that are copied at a time


def partition(
    graph: Any, parts: int, *, out: Any, method: Any = "communities", progress: bool = False
) -> dict[str, Any]:
    """Cuts a graph into parts, one per process of a :class:`DistGraph`.

    A part has the in-edges of the nodes that it owns. Rows of the other nodes that those edges read, its ghosts, are what processes
    send one another in every layer.

    Args:
        graph: a :class:`halfgnn.Graph` or a DGLGraph, homogeneous: num_src = num_dst.
        parts: how many parts.
        out: a folder, which is made. It gets `partition.json`, `owner.npy` (N,), the part of each node, and a file `part-K.npz` per
            part. Ids are int32 where they fit.
        method: ``"communities"``, ranges of the order of :func:`halfgnn.reorder` with as many nodes and edges each; ``"metis"``, by
            the package pymetis (Karypis and Kumar, 1998); or the part of each node, (N,) integers below `parts`.
        progress: whether to show a bar. It needs the package tqdm.

    Returns:
        The content of `partition.json`. ``"parts"`` has the numbers of nodes, edges and ghosts of each part.

    Raises:
        TypeError, ValueError: graph is no homogeneous graph; parts is below 1 or above the number of nodes; method is unknown, or
            has another shape or ids out of range. ImportError: pymetis is not installed. FileExistsError: out holds a partition, or
            features of one.
    """
    g = as_graph(graph, "graph")
    if g.num_src != g.num_dst:
        raise ValueError(f"graph has {g.num_src} source and {g.num_dst} destination nodes; expected as many of both")
    parts = checked_size(parts, "parts", 1)
    if parts > max(g.num_dst, 1):
        raise ValueError(f"parts is {parts}; expected at most {max(g.num_dst, 1)}, the number of nodes")
    folder = Path(out)
    if (folder / "partition.json").exists():
        raise FileExistsError(f"{folder} holds a partition; remove the folder, or choose another")
    stale = sorted(path.name for path in folder.glob("part-*.*.npy"))
    if stale:
        raise FileExistsError(
            f"{folder} holds {stale[0]}, of an earlier partition; remove the folder, or choose another"
        )
    g = g.to("cpu")
    owner = _owner(g, parts, method)
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
    }
    (folder / "partition.json").write_text(json.dumps(description, indent=1) + "\n", encoding="utf-8")
    return description


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


def read_part(folder: Any, part: int, device: Any = "cpu") -> dict[str, Tensor]:
    """What :func:`_cut` made of a part, and the rows that it sends: sends, by the part that reads them, and send_counts."""
    with np.load(Path(folder) / f"part-{part}.npz") as arrays:
        return {name: torch.from_numpy(arrays[name]).to(device) for name in arrays.files}


# ---- whose a node is ---------------------------------------------------------------------------------------------------------


def _owner(g: Graph, parts: int, method: Any) -> Tensor:
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
    _, membership = pymetis.part_graph(parts, xadj=starts.numpy(), adjncy=(pairs % g.num_dst).numpy())
    return torch.as_tensor(membership, dtype=torch.int64)


# ---- files -------------------------------------------------------------------------------------------------------------------


def _write_parts(g: Graph, owner: Tensor, parts: int, folder: Path, progress: bool) -> list[dict[str, int]]:
    nodes = [(owner == part).nonzero().view(-1) for part in range(parts)]
    place = torch.empty_like(owner)  # of a node among those of its part
    for ids in nodes:
        place[ids] = torch.arange(ids.shape[0])
    cuts = [_cut(g, owner, place, part, nodes[part], parts) for part in _shown(range(parts), progress, "parts")]
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


def _shown(x: Iterable[Any], progress: bool, what: str) -> Iterable[Any]:
    if not progress:
        return x
    from tqdm.auto import tqdm

    return tqdm(x, what)


# ---- features ----------------------------------------------------------------------------------------------------------------


def cut_features(folder: Any, name: str, data: Any, *, progress: bool = False) -> None:
    """Writes the rows of the nodes of each part to `part-K.NAME.npy` of a partition's folder, which `DistGraph.features` opens.

    Args:
        folder: of :func:`partition`.
        name: letters, digits and underscores.
        data: a :class:`halfgnn.dataloading.FeatureStore`, a tensor or an array (N, *), one row per node: features, labels, masks.
            It is read in pieces, so it may be a file that is larger than memory.
        progress: whether to show a bar. It needs the package tqdm.

    Raises:
        TypeError, ValueError: of FeatureStore; another number of rows; a name that is none; bfloat16, which .npy does not have.
    """
    description = read(folder)
    store = data if isinstance(data, FeatureStore) else FeatureStore(data)
    if not isinstance(name, str) or not name.isidentifier():
        raise ValueError(f"name is {name!r}; expected letters, digits and underscores")
    if len(store) != description["num_nodes"]:
        raise ValueError(f"data has shape {tuple(store.shape)}; expected {description['num_nodes']} rows, one per node")
    if store.dtype is torch.bfloat16:
        raise ValueError(
            "data has dtype torch.bfloat16, which .npy files do not have; convert it to float16 or float32"
        )
    owner = torch.from_numpy(np.load(Path(folder) / "owner.npy"))
    dtype = torch.empty(0, dtype=store.dtype).numpy().dtype
    for part in _shown(range(len(description["parts"])), progress, name):
        nodes = (owner == part).nonzero().view(-1)
        path = Path(folder) / f"part-{part}.{name}.npy"
        partial = path.with_suffix(".partial")  # so that what is killed leaves no rows of zeros
        rows = np.lib.format.open_memmap(partial, "w+", dtype, (nodes.shape[0], *store.shape[1:]))
        for start in range(0, nodes.shape[0], _ROWS):
            ids = nodes[start : start + _ROWS]
            rows[start : start + ids.shape[0]] = store.gather(ids).cpu().numpy()
        rows.flush()
        del rows
        partial.replace(path)


def open_features(folder: Path, part: int, name: str, num_own: int) -> FeatureStore:
    """What :func:`cut_features` wrote for a part. Raises ValueError if it has another number of rows."""
    path = folder / f"part-{part}.{name}.npy"
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist; cut_features({str(folder)!r}, {name!r}, data) writes it")
    store = FeatureStore.open(path)
    if len(store) != num_own:
        raise ValueError(
            f"{path} has {len(store)} rows; expected {num_own}, one per node of the part; cut {name!r} again"
        )
    return store
