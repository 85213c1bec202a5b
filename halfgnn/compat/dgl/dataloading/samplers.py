"""Samplers: for seed nodes, the blocks or the subgraph that a model computes on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from ....dataloading import NeighborSampler as Neighbors
from ....dataloading.edge_batch import without_edges
from ....graphs_by_tensor.store import state_of
from ....heterograph import Block
from ..base import EID, NID, DGLError
from ..frame import LazyFeature
from ..heterograph import DGLBlock, DGLGraph
from ..parts import by_type, rows_of_frames
from ..sampling.neighbors import excluded_per_type, new_seed, sampler_of
from ..subgraph import node_subgraph
from ..topology import MetaGraph, Relation, Topology

__all__ = [
    "BlockSampler",
    "MultiLayerFullNeighborSampler",
    "MultiLayerNeighborSampler",
    "NeighborSampler",
    "Sampler",
    "ShaDowKHopSampler",
    "set_dst_lazy_features",
    "set_edge_lazy_features",
    "set_node_lazy_features",
    "set_src_lazy_features",
]

_Key = tuple[Any, list[Tensor], list[Any]]  # of a sampler that is kept: the graph, weights, and the state of these

# ---- features that a DataLoader fetches ------------------------------------------------------------------------------------------


def set_node_lazy_features(g: DGLGraph, feature_names: Any) -> None:
    """Features of nodes that a DataLoader is to fetch: names, or {type: names}."""
    _set_lazy(g.nodes, g.ndata, feature_names)


def set_edge_lazy_features(g: DGLGraph, feature_names: Any) -> None:
    """Like :func:`set_node_lazy_features`, of edges."""
    _set_lazy(g.edges, g.edata, feature_names)


def set_src_lazy_features(g: DGLGraph, feature_names: Any) -> None:
    """Like :func:`set_node_lazy_features`, of a block's input nodes."""
    _set_lazy(g.srcnodes, g.srcdata, feature_names)


def set_dst_lazy_features(g: DGLGraph, feature_names: Any) -> None:
    """Like :func:`set_node_lazy_features`, of a block's output nodes."""
    _set_lazy(g.dstnodes, g.dstdata, feature_names)


def _set_lazy(of_types: Any, of_all: Any, names: Any) -> None:
    if isinstance(names, Mapping):
        for type_name, of_type in names.items():
            of_types[type_name].data.update({name: LazyFeature(name) for name in of_type})
    else:
        of_all.update({name: LazyFeature(name) for name in names or ()})


# ---- blocks ----------------------------------------------------------------------------------------------------------------------


class Sampler:
    """What a DataLoader calls with the graph and the ids of a batch. Subclasses define :meth:`sample`."""

    def sample(self, g: DGLGraph, indices: Any) -> Any:
        """What the DataLoader gives for a batch."""
        raise NotImplementedError


class BlockSampler(Sampler):
    """Samples one block per layer. Subclasses define :meth:`sample_blocks`.

    prefetch_node_feats, prefetch_labels, prefetch_edge_feats: features of the input nodes, of the output nodes, and of all edges
    that a DataLoader fetches: names, or {type: names}. Others are taken when they are read.
    """

    def __init__(
        self,
        prefetch_node_feats: Any = None,
        prefetch_labels: Any = None,
        prefetch_edge_feats: Any = None,
        output_device: Any = None,
    ):
        self.prefetch_node_feats = prefetch_node_feats or []
        self.prefetch_labels = prefetch_labels or []
        self.prefetch_edge_feats = prefetch_edge_feats or []
        self.output_device = output_device

    def sample_blocks(self, g: DGLGraph, seed_nodes: Any, exclude_eids: Any = None) -> tuple[Any, Any, list[DGLBlock]]:
        """(ids of input nodes, ids of output nodes, blocks), input layer first."""
        raise NotImplementedError

    def assign_lazy_features(self, result: tuple[Any, Any, list[DGLBlock]]) -> Any:
        """Mark the features that a DataLoader fetches."""
        _, _, blocks = result
        set_src_lazy_features(blocks[0], self.prefetch_node_feats)
        set_dst_lazy_features(blocks[-1], self.prefetch_labels)
        for block in blocks:
            set_edge_lazy_features(block, self.prefetch_edge_feats)
        return result

    def sample(self, g: DGLGraph, seed_nodes: Any, exclude_eids: Any = None) -> Any:
        """Blocks around seed nodes, with marked features. exclude_eids: edges to leave out, ids or {edge type: ids}."""
        return self.assign_lazy_features(self.sample_blocks(g, seed_nodes, exclude_eids))


class NeighborSampler(BlockSampler):
    """Samples up to `fanouts[i]` in-edges of each node and edge type in layer i, input layer first.

    Args:
        fanouts: numbers, -1 for all, or {edge type: number} with every edge type.
        edge_dir: "in".
        prob, mask: an edge feature with weights, or with booleans that say which edges may be drawn.
        replace: draw with replacement.
        prefetch_node_feats, prefetch_labels, prefetch_edge_feats: see :class:`BlockSampler`.
        output_device: of the blocks; by default the graph's.
        fused: has no effect; all layers are sampled at once.
    """

    def __init__(
        self,
        fanouts: Sequence[Any],
        edge_dir: str = "in",
        prob: str | None = None,
        mask: str | None = None,
        replace: bool = False,
        prefetch_node_feats: Any = None,
        prefetch_labels: Any = None,
        prefetch_edge_feats: Any = None,
        output_device: Any = None,
        fused: bool = True,
    ):
        super().__init__(prefetch_node_feats, prefetch_labels, prefetch_edge_feats, output_device)
        if prob is not None and mask is not None:
            raise DGLError("prob and mask are given; expected one of them: multiply the weights by the mask")
        if edge_dir != "in":
            raise DGLError(
                f"edge_dir is {edge_dir!r}; expected 'in': blocks lead to their seeds. dgl.reverse(g) has the edges reversed"
            )
        self.fanouts = list(fanouts)
        self.edge_dir = edge_dir
        self.prob = prob or mask
        self.replace = replace
        self.fused = fused
        self._made: tuple[Any, Neighbors] | None = None  # for which graph, and the sampler

    def sample_blocks(self, g: DGLGraph, seed_nodes: Any, exclude_eids: Any = None) -> tuple[Any, Any, list[DGLBlock]]:
        """See :class:`BlockSampler`. Excluded edges are left out of the sample, so a node may have fewer than its share."""
        seeds = {ntype: ids.cpu() for ntype, ids in zip(g.ntypes, by_type(g, seed_nodes, "seed_nodes"))}
        batch = self._sampler(g).sample(seeds, seed=new_seed())
        device = g.device if self.output_device is None else self.output_device
        excluded = None if exclude_eids is None else excluded_per_type(g, exclude_eids)
        blocks = [_block(g, sampled, excluded).to(device) for sampled in batch.blocks]
        return blocks[0].srcdata[NID], seed_nodes, blocks

    def _sampler(self, g: DGLGraph) -> Neighbors:
        """halfgnn's sampler, made once per graph and weights."""
        weights = [frame[self.prob] for frame in g._edge_frames if self.prob in frame] if self.prob else []
        if any(weight.is_inference() for weight in weights):  # whose writes are not counted
            return sampler_of(g, self.fanouts, "in", self.prob, self.replace)
        key = g._graph, weights, [state_of(weight) for weight in weights]
        if self._made is None or not _same(self._made[0], key):
            self._made = key, sampler_of(g, self.fanouts, "in", self.prob, self.replace)
        return self._made[1]

    def __getstate__(self) -> dict:
        return {**self.__dict__, "_made": None}


def _same(one: _Key, other: _Key) -> bool:
    """Whether the graph is the same object, and the weights are the same tensors and have not been modified in place."""
    if one[0] is not other[0] or one[2] != other[2]:
        return False
    return all(a is b for a, b in zip(one[1], other[1]))


def _block(g: DGLGraph, sampled: Block, excluded: Sequence[Tensor] | None) -> DGLBlock:
    """A sampled block as a DGLBlock with ids of g's dtype, and g's features. excluded: edges to leave out, per edge type."""
    topology: Any = sampled.topology
    relations, edges = [], []
    for i, etype in enumerate(g.canonical_etypes):
        graph = topology[etype]
        side, ids = graph.csc(), sampled.edata[EID][etype]
        indptr, indices = side.indptr, side.indices
        if excluded is not None:
            indptr, indices, ids = without_edges(indptr, indices, ids, excluded[i])
        indptr, indices = indptr.to(g.idtype), indices.to(g.idtype)
        relations.append(Relation.from_compressed("csc", indptr, indices, None, graph.num_src, check=False))
        edges.append(ids.to(g.idtype))
    nodes = [data[NID][ntype] for data in (sampled.srcdata, sampled.dstdata) for ntype in g.ntypes]
    metagraph = MetaGraph([(src, dst + len(g.ntypes)) for src, dst in g._graph.metagraph.ends], len(nodes))
    return DGLBlock(
        Topology(metagraph, [ids.numel() for ids in nodes], relations),
        (g.ntypes, g.ntypes),
        g.etypes,
        rows_of_frames(g._node_frames * 2, nodes, NID),
        rows_of_frames(g._edge_frames, edges, EID),
    )


MultiLayerNeighborSampler = NeighborSampler


class MultiLayerFullNeighborSampler(NeighborSampler):
    """Takes all in-edges in each of `num_layers` layers. kwargs: see :class:`NeighborSampler`."""

    def __init__(self, num_layers: int, **kwargs: Any):
        super().__init__([-1] * num_layers, **kwargs)


class ShaDowKHopSampler(Sampler):
    """Samples neighbours like :class:`NeighborSampler`, and gives the subgraph of all edges between the nodes that it finds.

    Args:
        fanouts, replace, prob, output_device: see :class:`NeighborSampler`.
        prefetch_node_feats, prefetch_edge_feats: features that a DataLoader fetches.
    """

    def __init__(
        self,
        fanouts: Sequence[Any],
        replace: bool = False,
        prob: str | None = None,
        prefetch_node_feats: Any = None,
        prefetch_edge_feats: Any = None,
        output_device: Any = None,
    ):
        self.neighbors = NeighborSampler(fanouts, prob=prob, replace=replace)
        self.prefetch_node_feats = prefetch_node_feats
        self.prefetch_edge_feats = prefetch_edge_feats
        self.output_device = output_device

    def sample(self, g: DGLGraph, seed_nodes: Any, exclude_eids: Any = None) -> tuple[Any, Any, DGLGraph]:
        """(ids of all nodes, the seeds first; ids of seeds; the subgraph)."""
        nodes, seeds, _ = self.neighbors.sample_blocks(g, seed_nodes, exclude_eids)
        part = node_subgraph(g, nodes, output_device=self.output_device)
        if exclude_eids is not None:
            for etype, excluded in zip(g.canonical_etypes, excluded_per_type(g, exclude_eids)):
                ids = part.edges[etype].data[EID]
                part.remove_edges((ids[:, None] == excluded.to(ids)).any(1).nonzero().squeeze(1), etype)
        set_node_lazy_features(part, self.prefetch_node_feats)
        set_edge_lazy_features(part, self.prefetch_edge_feats)
        return nodes, seeds, part
