"""DistNeighborSampler: mini-batches of neighbours on a graph that several processes share; gather: rows of any nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..common.arguments import checked_integer
from ..common.ids import check_ids, check_range
from ..dataloading import FeatureStore, NeighborSampler, SampledBatch
from ..graph import Graph
from ..heterograph import Block
from .dist_graph import DistGraph

_ID = "_ID"  # the name of ids in the data of a block, as in DGL


class _Asked(NamedTuple):
    """Ids that processes ask one another for.

    order (n,): the places of this process's ids, by owner. counts: how many it asks of each process. ids: what each process asks of
    this one, as places among its own nodes.
    """

    order: Tensor
    counts: list[int]
    ids: tuple[Tensor, ...]


class DistNeighborSampler:
    """A :class:`halfgnn.dataloading.NeighborSampler` whose graph several processes share. Neighbours are drawn by their owners.

        sampler = DistNeighborSampler(g, [10, 10])
        for seeds in batches:  # as many in all processes
            input_nodes, output_nodes, blocks = sampler.sample(seeds)
            x = sampler.gather(g.features("x"), input_nodes)
            loss = F.cross_entropy(model(blocks, x), sampler.gather(g.features("labels"), output_nodes))

    For each layer the processes send one another ids, and then as many edges as they were asked for. The model trains by
    torch.nn.parallel.DistributedDataParallel.

    Args:
        g: a :class:`DistGraph` on the CPU.
        fanouts: neighbours per layer, input layer first, -1 for all; the same in all processes.
        replace: sample with replacement, exactly `fanout` edges of a node that has edges.
        edge_weight: (E,) of this process's edges, in the order of `g.edge_ids`; see NeighborSampler.
        seed: with a number the sample of the same seeds, by as many processes, is always the same. By default owners draw from
            PyTorch's generator.

    Raises:
        TypeError, ValueError: g is no DistGraph, or is on a GPU; and see NeighborSampler.
    """

    def __init__(
        self,
        g: DistGraph,
        fanouts: Sequence[int],
        *,
        replace: bool = False,
        edge_weight: Tensor | None = None,
        seed: int | None = None,
    ) -> None:
        if not isinstance(g, DistGraph):
            raise TypeError(f"g is a {type(g).__name__}; expected a DistGraph")
        if any(isinstance(fanout, Mapping) for fanout in fanouts):
            raise TypeError(f"fanouts is {fanouts!r}; expected a number of neighbours per layer, as in [15, 10]")
        indptr, indices, _ = g.graph.csc()
        ends = indptr.new_full((g.num_ghosts,), g.graph.num_edges)  # edges into ghosts are of their owners
        num_src = g.graph.num_src
        local = Graph(num_src, num_src, csc=(torch.cat([indptr, ends]), indices, None))
        samplers = NeighborSampler(local, fanouts, replace=replace, edge_weight=edge_weight, seed=seed)
        self.fanouts, self.seed = samplers.fanouts, samplers.seed
        self._samplers = [
            NeighborSampler(local, [fanout], replace=replace, edge_weight=edge_weight) for fanout in fanouts
        ]
        self._graph, self._exchange = g, g.exchange
        self._owner = g.owner

    def sample(self, seeds: Tensor, *, seed: int | None = None) -> SampledBatch:
        """The blocks around seed nodes. All processes call it together, with their own seeds, or with none.

        Args:
            seeds: (n,) int32 or int64, different nodes by their ids in the whole graph, of this process or others.
            seed: of this sample alone, in place of the sampler's.

        Returns:
            (input_nodes, output_nodes, blocks), input layer first, as of NeighborSampler. Ids of nodes and edges are those of the
            whole graph, int64.

        Raises:
            TypeError, ValueError: ids of another dtype, shape or device; ids out of range, or that repeat; or processes have
                samplers of other fanouts. RuntimeError: a process has ended.
        """
        with self._exchange.told_to_others():
            nodes = self._checked(seeds, "seeds")
            if nodes.unique().shape[0] != nodes.shape[0]:
                raise ValueError(f"seeds has {nodes.shape[0]} ids, of which some repeat; expected different nodes")
            seed = self.seed if seed is None else checked_integer(seed, "seed", "an integer or None")
        self._exchange.check_alike(("fanouts", str(self.fanouts)))
        blocks: list[Block] = []
        output_nodes = nodes
        for layer in reversed(range(len(self.fanouts))):
            block = self._block(nodes, layer, None if seed is None else seed * len(self.fanouts) + layer)
            nodes = block.srcdata[_ID]
            blocks.insert(0, block)
        return SampledBatch(nodes, output_nodes, blocks)

    def gather(self, data: FeatureStore | Tensor, ids: Tensor) -> Tensor:
        """The rows of any nodes, which their owners send. All processes call it together. Without a gradient.

        Args:
            data: (num_own, *), the rows of this process's nodes: a tensor on the CPU, or what `g.features` returns.
            ids: (n,) int32 or int64, of nodes in the whole graph. They may repeat.

        Returns:
            (n, *), in the dtype of data.

        Raises:
            TypeError, ValueError: data has another number of rows; ids of another dtype or out of range; or processes pass data of
                other dtypes or shapes. RuntimeError: a process has ended.
        """
        with self._exchange.told_to_others():
            store = data if isinstance(data, FeatureStore) else FeatureStore(data)
            if len(store) != self._graph.num_own or store.device.type != "cpu":
                raise ValueError(
                    f"data has shape {tuple(store.shape)} and is on {store.device}; expected {self._graph.num_own} rows on the "
                    "CPU, one per node of this process"
                )
            ids = self._checked(ids, "ids")
        self._exchange.check_alike(("data", store.data))
        asked = self._ask(ids)
        rows = store.gather(torch.cat(asked.ids))
        found = self._exchange.swapped(rows, [x.shape[0] for x in asked.ids], asked.counts)
        out = torch.empty_like(found)
        out[asked.order] = found
        return out

    # ---- requests ----------------------------------------------------------------------------------------------------------------

    def _checked(self, ids: Any, name: str) -> Tensor:
        check_ids(ids, name)
        if ids.device.type != "cpu":
            raise ValueError(f"{name} is on {ids.device}; expected the CPU")
        check_range(ids, name, self._graph.num_nodes)
        return ids.long()

    def _ask(self, ids: Tensor) -> _Asked:
        owner = self._owner[ids].long()
        order = owner.argsort(stable=True)
        counts = torch.bincount(owner, minlength=self._graph.world_size)
        ones = [1] * self._graph.world_size
        asked = self._exchange.swapped(counts, ones, ones).tolist()
        wanted = self._exchange.swapped(ids[order], counts.tolist(), asked)
        return _Asked(order, counts.tolist(), torch.searchsorted(self._graph.nodes, wanted).split(asked))

    def _block(self, nodes: Tensor, layer: int, seed: int | None) -> Block:
        """The block of a layer, whose destinations are the nodes."""
        asked = self._ask(nodes)
        drawn = [self._drawn(layer, ids, seed, process) for process, ids in enumerate(asked.ids)]
        degrees, sizes = torch.cat([of.degrees for of in drawn]), [of.edges.shape[0] for of in drawn]
        degrees = self._exchange.swapped(degrees, [x.shape[0] for x in asked.ids], asked.counts)
        came = [int(x.sum()) for x in degrees.split(asked.counts)]
        edges = self._exchange.swapped(torch.cat([of.edges for of in drawn]), sizes, came)
        indptr, order = _in_order(asked.order, degrees)
        sources, edge_ids = edges[order].unbind(1)
        sources, indices = _by_appearance(nodes, sources)
        fanout = self.fanouts[layer][0]
        graph = Graph(sources.shape[0], nodes.shape[0], (indptr, indices, None), None, fanout if fanout >= 0 else None)
        return Block(graph, {_ID: sources}, {_ID: nodes}, {_ID: edge_ids})

    def _drawn(self, layer: int, ids: Tensor, seed: int | None, process: int) -> _Drawn:
        """In-edges of nodes of this process that another one asked for."""
        mixed = None if seed is None else seed * self._graph.world_size + process
        (block,) = self._samplers[layer].sample(ids, seed=mixed).blocks
        indptr, indices, _ = block.graph.csc()  # type: ignore[union-attr]
        sources = self._graph.source_ids[block.srcdata[_ID].long()[indices.long()]]
        return _Drawn(indptr.diff().long(), torch.stack([sources, self._graph.edge_ids[block.edata[_ID].long()]], 1))


class _Drawn(NamedTuple):
    """degrees (n,): of the nodes that were asked for. edges (E, 2): source and id in the whole graph."""

    degrees: Tensor
    edges: Tensor


def _in_order(order: Tensor, degrees: Tensor) -> tuple[Tensor, Tensor]:
    """Segments that lie in another order. order, degrees (n,): where each belongs, and its length.

    Returns (indptr (n + 1,), the place of each element (E,)).
    """
    in_order = torch.empty_like(degrees)
    in_order[order] = degrees
    indptr = torch.zeros(order.shape[0] + 1, dtype=torch.int64)
    torch.cumsum(in_order, 0, out=indptr[1:])
    starts = torch.empty_like(degrees)
    starts[order] = degrees.cumsum(0) - degrees
    places = torch.arange(int(indptr[-1])) + torch.repeat_interleave(starts - indptr[:-1], in_order)
    return indptr, places


def _by_appearance(first: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
    """Different ids, followed by those of others that are new, in the order of their first appearance; and where others are."""
    ids, places = torch.cat([first, others]).unique(return_inverse=True)
    appears = torch.full_like(ids, places.shape[0]).scatter_reduce_(0, places, torch.arange(places.shape[0]), "amin")
    order = appears.argsort()
    rank = torch.empty_like(order)
    rank[order] = torch.arange(order.shape[0])
    return ids[order], rank[places[first.shape[0] :]]
