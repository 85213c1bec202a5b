"""Types: the names of a graph's types of nodes and edges, and which of them an argument means."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

from .base import DGLError, EdgeType


class Types:
    """Names of the types of nodes and edges. Immutable, and shared by all graphs that have them.

    Attributes:
        ntypes, etypes: names by id. The types of a block's sources come before those of its destinations.
        canonical_etypes: the triple of each edge type.
        src, dst: {name: id} of the types that sources and destinations have.
        is_unibipartite: whether no type is both.
    """

    def __init__(self, ntypes: tuple, etypes: tuple[str, ...], ends: tuple[tuple[int, int], ...]):
        self.has_sides = bool(ntypes) and not isinstance(ntypes[0], str)
        if self.has_sides:
            src, dst = ntypes
            self.ntypes = [*src, *dst]
            self.src = {name: i for i, name in enumerate(src)}
            self.dst = {name: i + len(src) for i, name in enumerate(dst)}
            self.is_unibipartite = True
        else:
            self.ntypes = list(ntypes)
            sources, destinations = {u for u, _ in ends}, {v for _, v in ends}
            self.is_unibipartite = bool(ends) and not sources & destinations
            ids = {name: i for i, name in enumerate(ntypes)}
            self.src = {n: i for n, i in ids.items() if i not in destinations} if self.is_unibipartite else ids
            self.dst = {n: i for n, i in ids.items() if i in destinations} if self.is_unibipartite else ids
        self.etypes = list(etypes)
        self.canonical_etypes: list[EdgeType] = [
            (self.ntypes[u], etype, self.ntypes[v]) for etype, (u, v) in zip(etypes, ends)
        ]
        self._etype_ids = {etype: i for i, etype in enumerate(self.canonical_etypes)}
        self._by_relation: dict[str, int] = {}
        for i, etype in enumerate(self.etypes):
            self._by_relation[etype] = -1 if etype in self._by_relation else i  # -1: several have this name

    def etype_id(self, etype: Any, name: str = "etype") -> int:
        """The id of an edge type, given by name or triple; None is the only one. Raises DGLError if that is none or several."""
        if etype is None:
            if len(self.etypes) != 1:
                raise DGLError(
                    f"{name} is None, but the graph has {len(self.etypes)} edge types; expected one of {self.canonical_etypes}"
                )
            return 0
        found = self._etype_ids.get(etype) if isinstance(etype, tuple) else self._by_relation.get(etype)
        if found is None:
            raise DGLError(f"there is no edge type {etype!r}; expected one of {self.canonical_etypes}")
        if found < 0:
            raise DGLError(f"{etype!r} names several edge types; expected one of the triples {self.canonical_etypes}")
        return found

    def ntype_id(self, ntype: str | None) -> int:
        """The id of a node type; None is the only one. ``SRC/name`` and ``DST/name`` choose among a bipartite graph's types."""
        if ntype is None:
            if self.is_unibipartite or len(self.src) != 1:
                raise DGLError(f"the node type is None; expected one of {self.ntypes}")
            return 0
        if self.is_unibipartite and ntype.startswith("SRC/"):
            return self.src_id(ntype[4:])
        if self.is_unibipartite and ntype.startswith("DST/"):
            return self.dst_id(ntype[4:])
        found = self.src.get(ntype, self.dst.get(ntype))
        if found is None:
            raise DGLError(f"there is no node type {ntype!r}; expected one of {self.ntypes}")
        return found

    def src_id(self, ntype: str | None) -> int:
        """The id of a type of sources; None is the only one."""
        return _id_of(self.src, ntype, "source")

    def dst_id(self, ntype: str | None) -> int:
        """The id of a type of destinations; None is the only one."""
        return _id_of(self.dst, ntype, "destination")

    def __reduce__(self) -> tuple:
        ids = {name: i for name, i in self.src.items()}, {name: i for name, i in self.dst.items()}
        ends = tuple((ids[0][u], ids[1][v]) for u, _, v in self.canonical_etypes)
        names = (tuple(self.src), tuple(self.dst)) if self.has_sides else tuple(self.ntypes)
        return types_of, (names, tuple(self.etypes), ends)


def _id_of(ids: dict[str, int], ntype: str | None, side: str) -> int:
    if ntype is None:
        if len(ids) != 1:
            raise DGLError(f"the type of {side} nodes is None; expected one of {list(ids)}")
        return next(iter(ids.values()))
    if ntype not in ids:
        raise DGLError(f"there is no type {ntype!r} of {side} nodes; expected one of {list(ids)}")
    return ids[ntype]


@functools.lru_cache(maxsize=512)
def types_of(ntypes: tuple, etypes: tuple[str, ...], ends: tuple[tuple[int, int], ...]) -> Types:
    """The Types of these names. ntypes: names, or for a block the names of sources and of destinations."""
    return Types(ntypes, etypes, ends)


def names_of(ntypes: Any) -> tuple:
    """Names of node types as :func:`types_of` takes them, from lists."""
    if len(ntypes) and not isinstance(ntypes[0], str):
        src, dst = ntypes
        return tuple(src), tuple(dst)
    return tuple(ntypes)


def joined(names: Iterable[str]) -> str:
    """The name of a type that stands for several."""
    return "+".join(sorted(names))
