"""DGLGraph, and DGLBlock for the sampled blocks of mini-batches."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from . import slicing
from .base import DGLError, check_idtype
from .frame import Column
from .message_passing import MessagePassing
from .mutations import Mutations
from .topology import Topology

Self = TypeVar("Self", bound="DGLGraph")


class DGLGraph(Mutations, MessagePassing):
    """A graph of typed nodes and edges with features. ``dgl.graph``, ``dgl.heterograph`` and others make it.

    Its structure is shared among all graphs made of it and never copied, and so are features: slices ``g[etype]``, clones and local
    scopes take no memory. halfgnn's operators and modules take a DGLGraph in place of a :class:`halfgnn.Graph`.
    """

    # ---- edge types --------------------------------------------------------------------------------------------------------------

    def __getitem__(self: Self, key: Any) -> Self:
        """The graph of one edge type, given by name or triple, or of all that ``g[source, :, destination]`` means as one type."""
        if isinstance(key, str) or (isinstance(key, tuple) and key in self._types.canonical_etypes):
            found = [self._types.etype_id(key)]
        else:
            found = slicing.etypes_matching(self, key)
        if len(found) == 1:
            return slicing.of_one(self, found[0])
        return slicing.of_several(self, found)

    # ---- devices and dtypes ------------------------------------------------------------------------------------------------------

    def to(self: Self, device: Any, **kwargs: Any) -> Self:
        """The graph on a device; itself if it is there. Features move when they are read. non_blocking: see torch.Tensor.to."""
        if device is None or _same_device(torch.device(device), self.device):
            return self
        graph = copy.copy(self)
        graph._graph = self._graph.to(device, kwargs.get("non_blocking", False))
        graph._node_frames = [frame.to(graph.device) for frame in self._node_frames]
        graph._edge_frames = [frame.to(graph.device) for frame in self._edge_frames]
        graph._map_batches(lambda counts: counts.to(device))
        graph._pinned = False
        return graph

    def _map_batches(self, fn: Callable[[Tensor], Tensor]) -> None:
        if self._batch_num_nodes is not None:
            self._batch_num_nodes = {name: fn(counts) for name, counts in self._batch_num_nodes.items()}
        if self._batch_num_edges is not None:
            self._batch_num_edges = {etype: fn(counts) for etype, counts in self._batch_num_edges.items()}

    def cpu(self: Self) -> Self:
        """The graph on the CPU."""
        return self.to(torch.device("cpu"))

    def cuda(self: Self, device: Any = None) -> Self:
        """The graph on a GPU, by default the current one."""
        return self.to(torch.device("cuda") if device is None else torch.device("cuda", device))

    def astype(self: Self, idtype: Any) -> Self:
        """With ids of torch.int32 or torch.int64; itself if it has them."""
        dtype = check_idtype(idtype)
        if dtype == self.idtype:
            return self
        graph = copy.copy(self)
        graph._graph = self._graph.astype(dtype)
        graph._map_batches(lambda counts: counts.to(dtype))
        return graph

    def int(self: Self) -> Self:
        """With int32 ids."""
        return self.astype(torch.int32)

    def long(self: Self) -> Self:
        """With int64 ids."""
        return self.astype(torch.int64)

    def pin_memory_(self: Self) -> Self:
        """Put structure and features into page-locked memory, which a GPU can read. Returns the graph itself."""
        if self.device.type != "cpu":
            raise DGLError(f"the graph is on {self.device}; expected one on the CPU, whose memory can be page-locked")
        if not self._pinned:
            self._move_in_place(self._graph.pin_memory(), Tensor.pin_memory)
            self._pinned = True
        return self

    def unpin_memory_(self: Self) -> Self:
        """Put structure and features back into ordinary memory. Returns the graph itself."""
        if self._pinned:
            self._move_in_place(self._graph.unpin_memory(), Tensor.clone)
            self._pinned = False
        return self

    def _move_in_place(self, topology: Topology, fn: Callable[[Tensor], Tensor]) -> None:
        self._graph = topology
        self._node_frames = [frame.map_tensors(fn) for frame in self._node_frames]
        self._edge_frames = [frame.map_tensors(fn) for frame in self._edge_frames]

    def is_pinned(self) -> bool:
        """Whether :meth:`pin_memory_` has put the graph into page-locked memory."""
        return self._pinned

    def record_stream(self: Self, stream: Any) -> Self:
        """Keep the memory of structure and features until the stream is done with it. Returns the graph itself."""
        if self.device.type != "cuda":
            raise DGLError(f"the graph is on {self.device}; expected one on a GPU")
        for tensor in self._tensors():
            tensor.record_stream(stream)
        return self

    def _tensors(self) -> Iterator[Tensor]:
        for relation in self._graph.relations:
            yield from relation.tensors()
        for frame in (*self._node_frames, *self._edge_frames):
            yield from (column.data for column in frame._columns.values() if isinstance(column, Column))

    def materialize_data(self: Self) -> Self:
        """Take rows and move features now, which otherwise happens when they are read. Returns the graph itself."""
        for frame in (*self._node_frames, *self._edge_frames):
            for name in frame:
                _ = frame[name]
        return self

    # ---- formats -----------------------------------------------------------------------------------------------------------------

    def formats(self: Self, formats: str | Sequence[str] | None = None) -> Any:
        """Which formats ("coo", "csr", "csc") exist: {"created": [...], "not created": [...]}.

        formats: in place of that, a graph said to be restricted to these. Queries and operators make what they need all the same.
        """
        if formats is None:
            return self._graph.formats()
        graph = copy.copy(self)
        graph._graph = self._graph.formats(formats)
        graph._pinned = False
        return graph

    def create_formats_(self: Self) -> Self:
        """Make all formats now. Returns the graph itself."""
        self._graph.create_formats()
        return self

    def shared_memory(self, name: str, formats: Sequence[str] = ("coo", "csr", "csc")) -> Any:
        """Not available."""
        raise NotImplementedError(
            "DGLGraph.shared_memory is not available: pickle the graph to a worker, whose tensors torch.multiprocessing shares"
        )

    # ---- printing ----------------------------------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        if self.is_homogeneous:
            return (
                f"Graph(num_nodes={self.num_nodes()}, num_edges={self.num_edges()},\n"
                f"      ndata_schemes={self._node_frames[0].schemes}\n"
                f"      edata_schemes={self._edge_frames[0].schemes})"
            )
        nodes = {ntype: self.num_nodes(ntype) for ntype in self.ntypes}
        return f"Graph(num_nodes={nodes},\n      num_edges={self._edges_by_type()},\n      metagraph={self._metagraph_edges()})"

    def _edges_by_type(self) -> dict:
        return {etype: relation.num_edges for etype, relation in zip(self.canonical_etypes, self._graph.relations)}

    def _metagraph_edges(self) -> list:
        return [(src, dst, etype) for src, etype, dst in self.canonical_etypes]


class DGLBlock(DGLGraph):
    """A graph whose edges lead from input nodes to output nodes, which are counted and named apart."""

    is_block = True

    def __repr__(self) -> str:
        if len(self.srctypes) == len(self.dsttypes) == len(self.etypes) == 1:
            counts = f"num_src_nodes={self.num_src_nodes()}, num_dst_nodes={self.num_dst_nodes()}"
            return f"Block({counts}, num_edges={self.num_edges()})"
        sources = {ntype: self.num_src_nodes(ntype) for ntype in self.srctypes}
        destinations = {ntype: self.num_dst_nodes(ntype) for ntype in self.dsttypes}
        return (
            f"Block(num_src_nodes={sources},\n      num_dst_nodes={destinations},\n      num_edges={self._edges_by_type()},\n"
            f"      metagraph={self._metagraph_edges()})"
        )


DGLHeteroGraph = DGLGraph


def _same_device(wanted: torch.device, here: torch.device) -> bool:
    if wanted.type == here.type == "cuda" and wanted.index is None:
        return here.index == torch.cuda.current_device()
    return wanted == here
