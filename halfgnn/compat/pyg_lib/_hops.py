"""Trees of neighbours from halfgnn's sampler, hop by hop."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from ...common.arguments import checked_fanout
from ...common.ids import check_alike, check_ids
from ...common.operands import check_tensor

EdgeType = tuple[str, str, str]


@dataclass(frozen=True)
class Hops:
    """A sample of several hops. A row of a hop is a node at which the hop starts."""

    types: list[str]
    etypes: list[EdgeType]
    row_types: list[str]  # of every edge type
    csc: bool  # rows are destinations
    idtype: torch.dtype
    found: list[Tensor]  # nodes of every type
    trees: list[Tensor]  # of every node, if seeds have trees of their own
    offsets: list[Tensor]  # of every hop and edge type, as are sources and sampled
    sources: list[Tensor]
    sampled: list[Tensor]
    counts: list[list[int]]  # nodes known before each hop and in the end, of every type

    def _at(self, etype: EdgeType, parts: list[Tensor]) -> list[Tensor]:
        return parts[self.etypes.index(etype) :: len(self.etypes)]

    def nodes(self, ntype: str) -> Tensor:
        """(m,), or (m, 2) of [tree, node]."""
        at = self.types.index(ntype)
        if not self.trees:
            return self.found[at]
        return torch.stack([self.trees[at].to(self.idtype), self.found[at]], 1)

    def num_nodes(self, ntype: str) -> list[int]:
        """Of the seeds, and new in every hop."""
        counts = [known[self.types.index(ntype)] for known in self.counts]
        return [counts[0], *(after - before for before, after in pairwise(counts))]

    def num_edges(self, etype: EdgeType) -> list[int]:
        """In every hop."""
        return [len(sources) for sources in self._at(etype, self.sources)]

    def edges(self, etype: EdgeType) -> Tensor:
        """Their positions."""
        return torch.cat([torch.empty(0, dtype=self.idtype), *self._at(etype, self.sampled)])

    def ends(self, etype: EdgeType) -> tuple[Tensor, Tensor]:
        """Rows and columns of all edges, as places in `nodes`; columns first if rows are destinations."""
        ntype = self.types.index(self.row_types[self.etypes.index(etype)])
        firsts = [0, *(known[ntype] for known in self.counts)]  # where the rows of each hop begin
        rows = [
            torch.repeat_interleave(torch.arange(first, first + len(offsets) - 1), offsets.diff().long())
            for first, offsets in zip(firsts, self._at(etype, self.offsets))
        ]
        none = torch.empty(0, dtype=self.idtype)
        row = torch.cat([none, *rows]).to(self.idtype)
        col = torch.cat([none, *self._at(etype, self.sources)]).to(self.idtype)
        return (col, row) if self.csc else (row, col)


def sampled_hops(
    node_types: Sequence[str],
    edge_types: Sequence[EdgeType],
    rowptr: Mapping[EdgeType, Tensor],
    col: Mapping[EdgeType, Tensor],
    seeds: Mapping[str, Tensor],
    num_neighbors: Mapping[EdgeType, Sequence[int]],
    node_time: Mapping[str, Tensor],
    edge_time: Mapping[EdgeType, Tensor],
    seed_time: Tensor | None,
    edge_weight: Mapping[EdgeType, Tensor],
    csc: bool,
    replace: bool,
    disjoint: bool,
    latest: bool,
) -> Hops:
    """seed_time: of all seeds, in the order of `seeds`, in which trees are numbered."""
    etypes = list(edge_types)
    types = list(dict.fromkeys([*seeds, *node_types]))
    row_types = [etype[2] if csc else etype[0] for etype in etypes]
    col_types = [etype[0] if csc else etype[2] for etype in etypes]
    for etype in etypes:
        check_ids(rowptr[etype], _named("rowptr", etype))
        check_ids(col[etype], _named("col", etype))
    for ntype, ids in seeds.items():
        check_ids(ids, _named("seed", ntype))
        for etype in etypes[:1]:
            check_alike(ids, _named("seed", ntype), rowptr[etype], "rowptr")
    idtype = next((ids.dtype for ids in seeds.values()), torch.int64)
    none = torch.empty(0, dtype=idtype)
    found, trees, offsets, sources, sampled, counts = torch.ops.halfgnn.neighbor_sample.default(
        [rowptr[etype].contiguous() for etype in etypes],
        [col[etype].contiguous() for etype in etypes],
        [None] * len(etypes),
        [types.index(ntype) for ntype in col_types],
        [types.index(ntype) for ntype in row_types],
        [seeds.get(ntype, none).contiguous() for ntype in types],
        _fanouts(etypes, num_neighbors),
        int(torch.randint(2**63 - 1, (), dtype=torch.int64)),
        replace,
        False,
        disjoint,
        [_weights(edge_weight.get(etype), _named("edge_weight", etype)) for etype in etypes],
        [_contiguous(node_time.get(ntype)) for ntype in types],
        [_contiguous(edge_time.get(etype)) for etype in etypes],
        seed_time,
        latest,
    )
    return Hops(types, etypes, row_types, csc, idtype, found, trees, offsets, sources, sampled, counts.tolist())


def _fanouts(etypes: Sequence[EdgeType], num_neighbors: Mapping[EdgeType, Sequence[int]]) -> list[int]:
    """Hop by hop, of every edge type."""
    numbers = {etype: _checked(num_neighbors[etype], _named("num_neighbors", etype)) for etype in etypes}
    lengths = {len(of_type) for of_type in numbers.values()}
    if len(lengths) > 1:
        raise ValueError(
            f"num_neighbors has {sorted(lengths)} hops for different edge types; expected the same number for all"
        )
    return [numbers[etype][hop] for hop in range(max(lengths, default=0)) for etype in etypes]


def _checked(numbers: Any, name: str) -> list[int]:
    if isinstance(numbers, str) or not isinstance(numbers, Iterable):
        raise TypeError(f"{name} is {numbers!r}; expected a number of neighbours per hop, as in [15, 10], -1 for all")
    return [checked_fanout(number, f"{name}[{hop}]") for hop, number in enumerate(numbers)]


def _weights(weight: Tensor | None, name: str) -> Tensor | None:
    """Weights as the sampler takes them. It refuses those that are negative or not finite, of the rows that it reads."""
    if weight is None:
        return None
    check_tensor(weight, name)
    if not weight.is_floating_point():
        raise TypeError(f"{name} has dtype {weight.dtype}; expected a floating-point type: {name}.float()")
    return _contiguous(weight if weight.dtype == torch.float64 else weight.float())


def _named(name: str, key: Any) -> str:
    """Of a graph of several types, which have names, the key is part of the name."""
    return f"{name}[{key!r}]" if any(key) else name


def _contiguous(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.contiguous()
