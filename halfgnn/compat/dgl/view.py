"""Views of a graph's features: what ``g.ndata``, ``g.nodes[...]`` and their like are."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from .base import ALL, DGLError, EdgeType
from .frame import Frame
from .topology import Topology


class Viewed(Protocol):
    """What views read and call of a graph."""

    _graph: Topology
    _node_frames: list[Frame]
    _edge_frames: list[Frame]

    @property
    def idtype(self) -> torch.dtype: ...
    @property
    def device(self) -> torch.device: ...
    def get_ntype_id(self, ntype: str | None) -> int: ...
    def get_ntype_id_from_src(self, ntype: str | None) -> int: ...
    def get_ntype_id_from_dst(self, ntype: str | None) -> int: ...
    def get_etype_id(self, etype: Any) -> int: ...
    def all_edges(self, form: str = ..., order: str | None = ..., etype: Any = ...) -> Any: ...
    def _get_node_rows(self, ntid: int, nodes: Any, name: str) -> Any: ...
    def _get_edge_rows(self, etid: int, edges: Any, name: str) -> Any: ...
    def _set_n_repr(self, ntid: int, nodes: Any, data: dict[str, Any]) -> None: ...
    def _set_e_repr(self, etid: int, edges: Any, data: dict[str, Any]) -> None: ...


class NodeSpace(NamedTuple):
    """Nodes of one type, or some of them."""

    data: DataView


class EdgeSpace(NamedTuple):
    """Edges of one type, or some of them."""

    data: DataView


class DataView(MutableMapping):
    """The features of one type, or of several: then {name: {type: tensor}}.

    Writing with a subset of ids writes to a copy of the feature.
    """

    kind = ""  # of what has the features

    def __init__(self, graph: Viewed, types: Any, ids: Any, rows: Any = ALL):
        self._graph = graph
        self._types = types
        self._ids = ids
        self._rows = rows
        self._is_multi = isinstance(types, list)

    # What the two kinds of views do with one type.
    def _all(self, type_id: int) -> Any:
        raise NotImplementedError

    def _get(self, type_id: int, name: str) -> Any:
        raise NotImplementedError

    def _set(self, type_id: int, name: str, value: Any) -> None:
        raise NotImplementedError

    def _id(self, type_name: Any) -> int:
        raise NotImplementedError

    def __getitem__(self, name: str) -> Any:
        if not self._is_multi:
            return self._get(self._ids, name)
        return {t: self._get(i, name) for t, i in zip(self._types, self._ids) if name in self._all(i)}

    def __setitem__(self, name: str, value: Any) -> None:
        if not self._is_multi:
            if isinstance(value, dict):
                raise DGLError(f"the {self.kind} feature {name!r} is a dict; expected a tensor, as there is one type")
            return self._set(self._ids, name, value)
        if not isinstance(value, dict):
            raise DGLError(
                f"the {self.kind} feature {name!r} is a {type(value).__name__}; expected a dict of types to tensors, as there are"
                f" {len(self._types)} types"
            )
        for type_name, tensor in value.items():
            self._set(self._id(type_name), name, tensor)

    def __delitem__(self, name: str) -> None:
        frames = self._frames()
        if not any(name in frame for frame in frames):
            raise KeyError(name)
        for frame in frames:
            if name in frame:
                del frame[name]

    def _frames(self) -> list[Any]:
        return [self._all(i) for i in (self._ids if self._is_multi else [self._ids])]

    def __contains__(self, name: object) -> bool:
        return any(name in frame for frame in self._frames())

    def __iter__(self) -> Iterator[str]:
        frames = self._frames()
        return iter(frames[0]) if len(frames) == 1 else iter(dict.fromkeys(name for frame in frames for name in frame))

    def __len__(self) -> int:
        frames = self._frames()
        return len(frames[0]) if len(frames) == 1 else len({name for frame in frames for name in frame})

    def __repr__(self) -> str:
        return repr(dict(self))


class HeteroNodeDataView(DataView):
    """Features of nodes."""

    kind = "node"

    def _all(self, type_id: int) -> Any:
        return self._graph._node_frames[type_id]

    def _get(self, type_id: int, name: str) -> Any:
        return self._graph._get_node_rows(type_id, self._rows, name)

    def _set(self, type_id: int, name: str, value: Any) -> None:
        self._graph._set_n_repr(type_id, self._rows, {name: value})

    def _id(self, type_name: Any) -> int:
        if type_name not in self._types:
            raise DGLError(f"{type_name!r} is no node type here; expected some of {self._types}")
        return self._ids[self._types.index(type_name)]


class HeteroEdgeDataView(DataView):
    """Features of edges."""

    kind = "edge"

    def _all(self, type_id: int) -> Any:
        return self._graph._edge_frames[type_id]

    def _get(self, type_id: int, name: str) -> Any:
        return self._graph._get_edge_rows(type_id, self._rows, name)

    def _set(self, type_id: int, name: str, value: Any) -> None:
        self._graph._set_e_repr(type_id, self._rows, {name: value})

    def _id(self, type_name: Any) -> int:
        return self._graph.get_etype_id(type_name)


class HeteroNodeView:
    """``g.nodes``, ``g.srcnodes`` or ``g.dstnodes``: called, it gives ids; indexed, the features of a type or of some nodes."""

    def __init__(self, graph: Viewed, side: str):
        self._graph = graph
        self._id_of = {
            "all": graph.get_ntype_id,
            "src": graph.get_ntype_id_from_src,
            "dst": graph.get_ntype_id_from_dst,
        }[side]

    def __getitem__(self, key: Any) -> NodeSpace:
        ntype, nodes = None, ALL
        if isinstance(key, slice):
            if key != slice(None):
                raise DGLError(f"the nodes are {key}; expected a type, ids of nodes, or [:] for all")
        elif isinstance(key, tuple) and len(key) == 2 and isinstance(key[1], str):
            nodes, ntype = key
        elif key is None or isinstance(key, str):
            ntype = key
        else:
            nodes = key
        ntid = self._id_of(ntype)
        return NodeSpace(HeteroNodeDataView(self._graph, ntype, ntid, nodes))

    def __call__(self, ntype: str | None = None) -> Tensor:
        count = self._graph._graph.num_nodes(self._id_of(ntype))
        return torch.arange(count, dtype=self._graph.idtype, device=self._graph.device)


class HeteroEdgeView:
    """``g.edges``: called, it gives edges as ``g.all_edges`` does; indexed, the features of a type or of some edges."""

    def __init__(self, graph: Viewed):
        self._graph = graph

    def __getitem__(self, key: Any) -> EdgeSpace:
        etype: str | EdgeType | None = None
        edges: Any = ALL
        if isinstance(key, slice):
            if key != slice(None):
                raise DGLError(f"the edges are {key}; expected a type, edges, or [:] for all")
        elif key is None or isinstance(key, str) or _is_etype(key):
            etype = key
        elif isinstance(key, tuple) and len(key) == 2 and (isinstance(key[1], str) or _is_etype(key[1])):
            edges, etype = key
        else:
            edges = key
        etid = self._graph.get_etype_id(etype)
        return EdgeSpace(HeteroEdgeDataView(self._graph, etype, etid, edges))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._graph.all_edges(*args, **kwargs)


def _is_etype(key: Any) -> bool:
    return isinstance(key, tuple) and len(key) == 3 and all(isinstance(part, str) for part in key)
