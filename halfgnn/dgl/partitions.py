"""convert_partition: a folder of DistDGL, as halfgnn.distributed reads one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..dataloading import FeatureStore
from ..distributed import partition
from ..distributed.features import Selected, check_dtype, check_name, write_rows
from ..distributed.partition import check_new, shown
from ..graph import Graph
from ..heterograph import HeteroGraph
from .installed import import_dgl

_FILES = ("part_graph", "node_feats", "edge_feats")  # of a part, as the JSON names them


class _Kind(NamedTuple):
    """A node type or an edge type of a folder."""

    name: Any  # of an edge type a triple
    counts: list[int]  # how many each part has; they have consecutive ids

    @property
    def size(self) -> int:
        return sum(self.counts)

    def first(self, part: int) -> int:
        return sum(self.counts[:part])


class _Folder(NamedTuple):
    """What DistDGL's JSON says, and the module that reads the files which it names."""

    path: Path
    distributed: Any  # dgl.distributed
    parts: int
    nodes: dict[str, _Kind]  # by their names in the JSON and in the names of features
    edges: dict[str, _Kind]

    @property
    def is_homogeneous(self) -> bool:
        return len(self.nodes) == len(self.edges) == 1


def convert_partition(config: Any, *, out: Any, progress: bool = False) -> dict[str, Any]:
    """Writes a folder of :class:`halfgnn.distributed.DistGraph` from one of ``dgl.distributed.partition_graph``.

    Parts stay as they are. Ids of nodes and edges are DistDGL's, by type, with which a program of DistDGL works too. Those of the
    graph that was partitioned are what ``partition_graph(..., return_mapping=True)`` returns.

    Features of nodes and edges keep name and dtype: ``DistGraph.features("feat")``, ``features("w", of="edges")``, of a heterograph
    ``features("feat", of="paper")``. Masks are uint8, as DGL stores bool. The topology of the whole graph is in memory, but of the
    features only those of one part.

    Args:
        config: the JSON file, `folder/GRAPH_NAME.json`.
        out: a folder, which is made.
        progress: whether to show bars. They need the package tqdm.

    Returns:
        The content of `partition.json`, see :func:`halfgnn.distributed.partition`.

    Raises:
        ImportError, RuntimeError: DGL cannot be imported, or dgl is halfgnn's own, of halfgnn.compat.
        FileNotFoundError: config, or a file that it names, does not exist. FileExistsError: out holds a partition.
        ValueError: config is not of partition_graph, or disagrees with the files; a feature is bfloat16, which .npy files do not
            have, or has a name of other characters than letters, digits and underscores.
    """
    dgl = import_dgl("halfgnn.dgl.convert_partition()")
    folder = _read(Path(config), dgl.distributed)
    check_new(Path(out))
    expected = {what: _check_features(folder, what) for what in ("nodes", "edges")}
    graph, owner = _topology(folder, dgl, progress)
    description = partition(graph, folder.parts, out=out, method=owner, progress=progress)
    for part in shown(range(folder.parts), progress, "features"):
        for what, of_first in expected.items():
            _write_features(folder, part, what, of_first, description, Path(out))
    return description


# ---- what the folder holds ---------------------------------------------------------------------------------------------------


def _read(path: Path, distributed: Any) -> _Folder:
    written = "dgl.distributed.partition_graph(g, name, parts, folder)"
    if not path.is_file():
        raise FileNotFoundError(f"{path} is no file; {written} writes folder/name.json")
    try:
        description = json.loads(path.read_text(encoding="utf-8"))
        parts, ntypes, etypes = (description[key] for key in ("num_parts", "ntypes", "etypes"))
        node_map, edge_map = description["node_map"], description["edge_map"]
        nodes = {key: _Kind(key, _sizes(node_map[key], parts)) for key in sorted(ntypes, key=ntypes.get)}
        edges = {key: _Kind(_edge_type(key), _sizes(edge_map[key], parts)) for key in sorted(etypes, key=etypes.get)}
        names = [(part, name, description[f"part-{part}"][name]) for part in range(parts) for name in _FILES]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        reason = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        raise ValueError(f"{path} is not what {written} writes: {reason}") from error
    for part, name, file in names:
        if not (path.parent / file).is_file():
            raise FileNotFoundError(f"{path.parent / file} does not exist; {path} names it as {name} of part {part}")
    return _Folder(path, distributed, parts, nodes, edges)


def _sizes(ranges: list[list[int]], parts: int) -> list[int]:
    if len(ranges) != parts:
        raise ValueError(f"it has ranges of {len(ranges)} parts, but num_parts is {parts}")
    return [end - start for start, end in ranges]


def _edge_type(key: str) -> tuple[str, str, str]:
    source, name, target = key.split(":")
    return source, name, target


# ---- topology ----------------------------------------------------------------------------------------------------------------


def _topology(folder: _Folder, dgl: Any, progress: bool) -> tuple[Any, Any]:
    """The whole Graph or HeteroGraph, and the part of each node, of a heterograph by type."""
    ends = [torch.full((2, kind.size), -1) for kind in folder.edges.values()]
    for part in shown(range(folder.parts), progress, "topology"):
        g, _, _, book, *_ = folder.distributed.load_partition(str(folder.path), part, load_feats=False)
        is_own = g.edata["inner_edge"].bool()
        nodes = book.map_to_per_ntype(g.ndata[dgl.NID])[1]
        pairs = nodes[torch.stack(g.edges(order="eid"))[:, is_own]]
        types, ids = book.map_to_per_etype(g.edata[dgl.EID][is_own])
        for number, kind in enumerate(folder.edges.values()):
            of_type = types == number
            _check_own(folder, kind, part, ids[of_type], pairs[1, of_type])
            ends[number][:, ids[of_type]] = pairs[:, of_type]
    for kind, (src, _) in zip(folder.edges.values(), ends):
        if src.numel() and int(src.min()) < 0:
            raise ValueError(
                f"{folder.path}: the parts have only {int((src >= 0).sum())} of {kind.size} edges {kind.name}"
            )
    sizes = {ntype: kind.size for ntype, kind in folder.nodes.items()}
    relations = {}
    for kind, (src, dst) in zip(folder.edges.values(), ends):
        source, _, target = kind.name
        relations[kind.name] = Graph.from_edges(src, dst, num_src=sizes[source], num_dst=sizes[target])
    owner = {
        ntype: torch.arange(folder.parts).repeat_interleave(torch.tensor(kind.counts))
        for ntype, kind in folder.nodes.items()
    }
    if folder.is_homogeneous:
        (graph,), (only,) = relations.values(), owner.values()
        return graph, only
    return HeteroGraph(relations, num_src=sizes, num_dst=sizes), owner


def _check_own(folder: _Folder, kind: _Kind, part: int, ids: Tensor, targets: Tensor) -> None:
    """A part has the edges of its range of ids, and they lead to its nodes: the rows of its features are in that order."""
    node_kind = folder.nodes[kind.name[2]]
    for what, x, of in (("edges", ids, kind), ("destinations of edges", targets, node_kind)):
        first, count = of.first(part), of.counts[part]
        if x.numel() and not first <= int(x.min()) <= int(x.max()) < first + count:
            raise ValueError(
                f"{folder.path}: part {part} has {what} {kind.name} with ids from {int(x.min())} to {int(x.max())}; expected "
                f"{first} to {first + count - 1}"
            )


# ---- features ----------------------------------------------------------------------------------------------------------------

_Rows = dict[tuple[str, str], Tensor]  # (type, name) -> rows of one part
_Forms = dict[tuple[str, str], tuple[torch.dtype, torch.Size]]  # their dtypes and trailing sizes


def _check_features(folder: _Folder, what: str) -> _Forms:
    """Those of the first part, which can be written."""
    forms = _forms(_load_features(folder, 0, what))
    for (key, name), (dtype, _) in forms.items():
        try:
            check_name(name)
            check_dtype(dtype, "it")
        except ValueError as error:
            raise ValueError(f"{folder.path} has features {key}/{name} of {what}: {error}") from error
    return forms


def _load_features(folder: _Folder, part: int, what: str) -> _Rows:
    of_nodes = what == "nodes"
    kinds = folder.nodes if of_nodes else folder.edges
    nodes, edges = folder.distributed.load_partition_feats(
        str(folder.path), part, load_nodes=of_nodes, load_edges=not of_nodes
    )
    found = {}
    for label, rows in (nodes if of_nodes else edges).items():
        key, _, name = label.partition("/")
        expected = kinds[key].counts[part] if key in kinds else 0
        if rows.shape[0] != expected:
            raise ValueError(
                f"{folder.path}: part {part} has {rows.shape[0]} rows of features {label} of {what}; expected {expected}"
            )
        found[key, name] = rows
    return found


def _forms(features: _Rows) -> _Forms:
    return {key: (rows.dtype, rows.shape[1:]) for key, rows in features.items()}


def _write_features(
    folder: _Folder, part: int, what: str, expected: _Forms, description: dict[str, Any], out: Path
) -> None:
    features = _load_features(folder, part, what)
    if _forms(features) != expected:
        raise ValueError(
            f"{folder.path}: part {part} has features {_forms(features)} of {what}; expected those of part 0, {expected}"
        )
    for (key, name), rows in features.items():
        kind = (folder.nodes if what == "nodes" else folder.edges)[key]
        selected = Selected(description, what if folder.is_homogeneous else kind.name)
        ids = selected.ids(out, part) - kind.first(part)
        write_rows(selected.file(out, part, name), FeatureStore(rows), ids)
