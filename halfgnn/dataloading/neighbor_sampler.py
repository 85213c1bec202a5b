"""NeighborSampler: blocks of sampled neighbours around seed nodes or seed edges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..common.arguments import checked_fanout, checked_flag, checked_integer
from ..common.ids import check_ids, check_range
from ..graph import Graph
from ..graph_argument import as_graph_or_heterograph
from ..heterograph import Block, EdgeType, HeteroGraph
from .edge_batch import EdgeBatch, edge_batch, without_edges

ID = "_ID"  # the name of ids in the data of a block, as in DGL
_ALONE = ("_N", "_E", "_N")  # the names of the only types, as in DGL

Ids = Tensor | dict[str, Tensor]


class SampledBatch(NamedTuple):
    """What a model takes: features of `input_nodes` and `blocks`. Its results belong to `output_nodes`, the seeds."""

    input_nodes: Ids
    output_nodes: Ids
    blocks: list[Block]


class NeighborSampler:
    """Samples, for seed nodes, a block of neighbours per layer, on the CPU and with all threads of PyTorch.

    A layer's block has up to `fanout` in-edges of each destination and edge type. All edges are taken where there are no more. The
    destinations are the first of the sources. Sources are in the order of their first appearance. The sample is uniform, or in
    proportion to weights, and the same for any number of threads.

    Args:
        g: a Graph whose sources and destinations are the same nodes, a HeteroGraph, or a DGLGraph, on the CPU.
        fanouts: neighbours per layer, input layer first: numbers, -1 for all, or {edge type: number} with every edge type.
        replace: sample with replacement, exactly `fanout` edges of a node that has edges.
        edge_weight: (E,) in the order of edge data, at least 0; {edge type: weights} for a HeteroGraph, where edge types without
            weights are sampled uniformly. Edges of weight 0 are never sampled. Without replacement edges are drawn one after the
            other, in proportion to the weights of those that are left.
        seed: with a number the sample of the same seeds is always the same. By default each sample draws from PyTorch's generator.
        csr: give blocks their out-edges too, which a backward pass walks. Otherwise they are made where it runs.

    Raises:
        TypeError, ValueError: what is no graph, is on a GPU or has other sources than destinations; numbers below -1; weights that
        are negative or not finite, or of another shape.
    """

    def __init__(
        self,
        g: Any,
        fanouts: Sequence[int | Mapping[Any, int]],
        *,
        replace: bool = False,
        edge_weight: Any = None,
        seed: int | None = None,
        csr: bool = False,
    ):
        self.graph = _graph_of(g)
        self._is_hetero = isinstance(self.graph, HeteroGraph)
        self._relations = _relations(self.graph)
        self._num_nodes = _num_nodes(self.graph)
        self._types = list(self._num_nodes)
        self.fanouts = [self._fanouts(fanout, layer) for layer, fanout in enumerate(_sequence(fanouts))]
        self.replace, self.csr = checked_flag(replace, "replace"), checked_flag(csr, "csr")
        self.seed = None if seed is None else checked_integer(seed, "seed", "an integer or None")
        self._weights = self._checked_weights(edge_weight)
        self._csc = [graph.csc() for graph in self._relations.values()]
        self._ends: dict[EdgeType, tuple[Tensor, Tensor]] = {}

    # ---- samples -----------------------------------------------------------------------------------------------------------------

    def sample(self, seeds: Any, *, seed: int | None = None) -> SampledBatch:
        """The blocks around seed nodes.

        Args:
            seeds: (n,) int32 or int64, different nodes; {node type: ids} for a HeteroGraph.
            seed: of this sample alone, in place of the sampler's.

        Returns:
            (input_nodes, output_nodes, blocks), input layer first. Ids are of g's dtype, those within a block int32. `srcdata`,
            `dstdata` and `edata` of a block have under "_ID" its nodes and edges in g. Of a HeteroGraph they are dicts by type.

        Raises:
            TypeError, ValueError: ids of another dtype, shape or device; ids out of range, or that repeat.
        """
        ids = self._checked_seeds(seeds)
        return self._sampled(ids, None, self._checked_seed(seed))

    def sample_edges(
        self,
        edges: Tensor,
        *,
        etype: EdgeType | str | None = None,
        negatives: int = 0,
        exclude: Any = None,
        seed: int | None = None,
    ) -> EdgeBatch:
        """The blocks around the ends of seed edges, for link prediction.

        Args:
            edges: (n,) ids of edges, the rows of their edge data.
            etype: their edge type in a HeteroGraph.
            negatives: for every edge so many edges from its source to destinations drawn uniformly from all nodes of their type.
            exclude: "self" leaves the seed edges out of all blocks; a tensor leaves out those edges, for example the seed edges and
                the edges in the other direction. In a HeteroGraph {edge type: ids}. A node may then have fewer than `fanout` edges.
            seed: of this sample alone, in place of the sampler's.

        Returns:
            An :class:`EdgeBatch`. Its graphs connect the seed nodes, which are the destinations of the last block.

        Raises:
            TypeError, ValueError: see :meth:`sample`; an unknown edge type, or an `exclude` of another kind.
        """
        key = self._etype(etype)
        check_ids(edges, "edges")
        check_range(edges, "edges", self._relations[key].num_edges)
        if key not in self._ends:
            self._ends[key] = self._relations[key].edges()
        ends = tuple(end[edges.long()] for end in self._ends[key])
        return edge_batch(
            ends,  # type: ignore[arg-type]
            key,
            checked_integer(negatives, "negatives", "an integer"),
            self._num_nodes[key[2]],
            self._checked_seed(seed),
            lambda ids, seed: self._sampled(ids, self._excluded(exclude, key, edges), seed),
        )

    def _sampled(self, ids: dict[str, Tensor], excluded: dict[EdgeType, Tensor] | None, seed: int) -> SampledBatch:
        none = torch.empty(0, dtype=self.graph.idtype)
        ids = {ntype: ids.get(ntype, none) for ntype in self._types}
        hops = [fanout for layer in reversed(self.fanouts) for fanout in layer]
        nodes, _, offsets, sources, edges, num_nodes = torch.ops.halfgnn.neighbor_sample.default(
            [csc.indptr for csc in self._csc],
            [csc.indices for csc in self._csc],
            [csc.edge_ids for csc in self._csc],
            [self._types.index(etype[0]) for etype in self._relations],
            [self._types.index(etype[2]) for etype in self._relations],
            [ids[ntype] for ntype in self._types],
            hops,
            seed,
            self.replace,
            True,
            False,
            self._weights,
            [None] * len(self._types),
            [None] * len(self._relations),
        )
        if excluded:
            for at, etype in enumerate(list(self._relations) * len(self.fanouts)):
                if etype in excluded:
                    offsets[at], sources[at], edges[at] = without_edges(
                        offsets[at], sources[at], edges[at], excluded[etype]
                    )
        found, counts, step = dict(zip(self._types, nodes)), num_nodes.tolist(), len(self._relations)
        blocks = [
            self._block(
                hop, found, counts, *(part[hop * step : (hop + 1) * step] for part in (offsets, sources, edges))
            )
            for hop in reversed(range(len(self.fanouts)))
        ]
        return SampledBatch(self._given(found), self._given(ids), blocks)

    def _block(self, hop: int, nodes: dict, counts: list, offsets: list, sources: list, edges: list) -> Block:
        num_dst, num_src = (dict(zip(self._types, counts[at])) for at in (hop, hop + 1))
        bounds = [fanout if fanout >= 0 else None for fanout in self.fanouts[-1 - hop]]
        graphs = {
            etype: Graph(num_src[etype[0]], num_dst[etype[2]], (indptr, indices, None), None, bound)
            for etype, indptr, indices, bound in zip(self._relations, offsets, sources, bounds)
        }
        topology = HeteroGraph(graphs, num_src=num_src, num_dst=num_dst) if self._is_hetero else graphs[_ALONE]
        if self.csr:
            whole = topology.stack().graph if isinstance(topology, HeteroGraph) else topology
            whole.csr()
        src, dst = ({ntype: nodes[ntype][:count] for ntype, count in ends.items()} for ends in (num_src, num_dst))
        data = [{ID: self._given(ids)} for ids in (src, dst, dict(zip(self._relations, edges)))]
        return Block(topology, *data)

    def _given(self, by_type: Mapping[Any, Tensor]) -> Any:
        """As the caller names it: a dict by type only for a HeteroGraph."""
        return by_type if self._is_hetero else next(iter(by_type.values()))

    # ---- checks ------------------------------------------------------------------------------------------------------------------

    def _fanouts(self, fanout: Any, layer: int) -> list[int]:
        """Of one layer, of every relation."""
        name = f"fanouts[{layer}]"
        if not isinstance(fanout, Mapping):
            return [checked_fanout(fanout, name)] * len(self._relations)
        given = {self._etype(etype): checked_fanout(number, f"{name}[{etype!r}]") for etype, number in fanout.items()}
        missing = [etype for etype in self._relations if etype not in given]
        if missing:
            raise ValueError(f"{name} has no {missing[0]}; expected a number for every edge type")
        return [given[etype] for etype in self._relations]

    def _etype(self, etype: Any) -> EdgeType:
        if isinstance(self.graph, HeteroGraph):
            if etype is None and len(self._relations) > 1:
                raise ValueError(f"etype is None; expected one of {list(self._relations)}")
            return next(iter(self._relations)) if etype is None else self.graph.to_canonical_etype(etype)
        if etype is not None and etype not in (_ALONE, _ALONE[1]):
            raise ValueError(f"{etype!r} is no edge type; a Graph has one without a name")
        return _ALONE

    def _checked_weights(self, edge_weight: Any) -> list[Tensor | None]:
        if edge_weight is None:
            return [None] * len(self._relations)
        if not isinstance(edge_weight, Mapping):
            if self._is_hetero:
                raise TypeError(f"edge_weight is a {type(edge_weight).__name__}; expected {{edge type: weights}}")
            return [_in_csc_order(edge_weight, "edge_weight", self._relations[_ALONE])]
        given = {self._etype(etype): (etype, weight) for etype, weight in edge_weight.items()}
        return [
            _in_csc_order(given[etype][1], f"edge_weight[{given[etype][0]!r}]", graph) if etype in given else None
            for etype, graph in self._relations.items()
        ]

    def _checked_seeds(self, seeds: Any) -> dict[str, Tensor]:
        if not self._is_hetero:
            return {_ALONE[0]: self._checked_ids(seeds, "seeds", _ALONE[0])}
        if not isinstance(seeds, Mapping):
            raise TypeError(f"seeds is a {type(seeds).__name__}; expected {{node type: ids}} for a HeteroGraph")
        for ntype in seeds:
            if ntype not in self._num_nodes:
                raise ValueError(f"seeds has {ntype!r}, which is no node type; expected some of {self._types}")
        return {ntype: self._checked_ids(ids, f"seeds[{ntype!r}]", ntype) for ntype, ids in seeds.items()}

    def _checked_ids(self, ids: Any, name: str, ntype: str) -> Tensor:
        check_ids(ids, name)
        if ids.device.type != "cpu":
            raise ValueError(f"{name} is on {ids.device}; expected the CPU, where neighbours are sampled")
        check_range(ids, name, self._num_nodes[ntype])
        return ids.to(self.graph.idtype).contiguous()

    def _excluded(self, exclude: Any, etype: EdgeType, edges: Tensor) -> dict[EdgeType, Tensor] | None:
        if exclude is None:
            return None
        if isinstance(exclude, str):
            if exclude != "self":
                raise ValueError(f"exclude is {exclude!r}; expected 'self', a tensor of edge ids or None")
            return {etype: edges}
        given = exclude if isinstance(exclude, Mapping) else {etype: exclude}
        excluded = {}
        for key, ids in given.items():
            name = "exclude" if given is not exclude else f"exclude[{key!r}]"
            check_ids(ids, name)
            key = self._etype(key)
            check_range(ids, name, self._relations[key].num_edges)  # others could be cut to ids of edges
            excluded[key] = ids
        return excluded

    def _checked_seed(self, seed: int | None) -> int:
        seed = self.seed if seed is None else checked_integer(seed, "seed", "an integer or None")
        if seed is None:
            return int(torch.randint(2**63 - 1, (), dtype=torch.int64))
        return (seed + 2**63) % 2**64 - 2**63


def _graph_of(g: Any) -> Graph | HeteroGraph:
    graph = as_graph_or_heterograph(g)
    if graph.device.type != "cpu":
        raise ValueError(f"g is on {graph.device}; expected the CPU, where neighbours are sampled: g.to('cpu')")
    return graph


def _relations(graph: Graph | HeteroGraph) -> dict[EdgeType, Graph]:
    return {etype: graph[etype] for etype in graph} if isinstance(graph, HeteroGraph) else {_ALONE: graph}


def _num_nodes(graph: Graph | HeteroGraph) -> dict[str, int]:
    """Of every node type. Sources and destinations of a type must be the same nodes."""
    if isinstance(graph, Graph):
        if graph.num_src != graph.num_dst:
            raise ValueError(
                f"g has {graph.num_src} sources and {graph.num_dst} destinations; expected the same nodes. A HeteroGraph "
                "has types of nodes"
            )
        return {_ALONE[0]: graph.num_src}
    for ntype, count in graph.num_dst.items():
        if graph.num_src.get(ntype, count) != count:
            raise ValueError(
                f"g has {graph.num_src[ntype]} sources and {count} destinations of type {ntype!r}; expected the same nodes"
            )
    return {**graph.num_src, **graph.num_dst}


def _sequence(fanouts: Any) -> Sequence[Any]:
    if isinstance(fanouts, (str, Mapping)) or not isinstance(fanouts, Sequence) or not fanouts:
        raise TypeError(f"fanouts is {fanouts!r}; expected a number of neighbours per layer, as in [15, 10]")
    return fanouts


def _in_csc_order(weight: Any, name: str, graph: Graph) -> Tensor:
    if not isinstance(weight, Tensor) or not weight.is_floating_point():
        kind = weight.dtype if isinstance(weight, Tensor) else type(weight).__name__
        raise TypeError(f"{name} is a {kind}; expected a tensor of floating-point numbers")
    if weight.shape != (graph.num_edges,):
        raise ValueError(f"{name} has shape {tuple(weight.shape)}; expected ({graph.num_edges},), one per edge")
    weight = weight.detach().cpu()
    if not bool((weight >= 0).all()) or not bool(weight.isfinite().all()):
        raise ValueError(f"{name} has weights that are negative or not finite")
    if weight.dtype != torch.float64:
        weight = weight.float()
    edge_ids = graph.csc().edge_ids
    return weight.contiguous() if edge_ids is None else weight[edge_ids.long()]
