"""DistGraph: the part of a graph that a process owns, and the rows of its sources that others own."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from ..common.caching import ordinary_tensors
from ..common.operands import as_floats, check_dense, check_rows, check_tensor
from ..common.precision import HALF, autocast_all, may_mix
from ..dataloading import FeatureStore
from ..graph import Graph
from ..graphs_by_tensor.store import topology_of
from .aggregate import Aggregate, Block, blocks_of
from .exchange import Exchange, Rows
from .features import open_features
from .halo import halo
from .partition import read, read_part


def load_part(
    folder: Any, group: Any, device: Any, check: bool | None
) -> tuple[Path, dict[str, Any], dict[str, Tensor], Exchange]:
    """This process's part of a partition, which all processes of the group read, see DistGraph.load. The exchange has no rows."""
    if not (dist.is_available() and dist.is_initialized()):
        raise RuntimeError("torch.distributed is not initialised; call torch.distributed.init_process_group first")
    folder, exchange = Path(folder), Exchange(group, torch.device(device), check)
    if exchange.rank < 0:
        raise ValueError("group does not have this process")
    description = exchange.in_all("the partition", lambda: read(folder))
    num_parts = len(description["parts"])
    exchange.check_same("partition", description["id"])
    if num_parts != exchange.world_size:
        raise ValueError(
            f"{folder} has {num_parts} parts; expected {exchange.world_size}, one per process of the group"
        )
    return folder, description, exchange.in_all("its part", lambda: read_part(folder, exchange.rank, device)), exchange


class DistGraph:
    """The nodes that this process owns, with all of their in-edges.

        dist.init_process_group("gloo")  # NCCL on GPUs; started by torchrun
        g = DistGraph.load("parts")
        x = g.features("x").data
        h = conv(g.graph, (g.halo(x), x))  # a module of halfgnn.nn; operators: ops.copy_u_sum(g.graph, g.halo(x))
        h = conv((g.halo(x), x), g.edge_index)  # a module of torch_geometric that takes features of both sides

    Attributes:
        graph: a bipartite :class:`halfgnn.Graph`, from this process's nodes, followed by its ghosts, to its nodes.
        edge_index: the same as (2, E), int64. Its columns, and rows of edge data, are in the order of destinations.
        nodes: (num_own,), the ids that the nodes of this process have in the whole graph.
        source_ids: (num_own + num_ghosts,), those of all sources of its edges.
        edge_ids: (E,), those of its edges.
        num_own, num_ghosts: how many nodes it owns, and how many nodes of others its edges read.
        num_nodes, num_edges: those of the whole graph.
        rank, world_size: this process, and how many there are.
        bytes_sent: by this process for rows and gradients of ghosts, since the graph was loaded.
    """

    def __init__(self, folder: Path, description: dict[str, Any], part: dict[str, Tensor], exchange: Exchange) -> None:
        self._folder, self._description, self.exchange = folder, description, exchange
        self.rank, self.world_size = exchange.rank, exchange.world_size
        self.num_nodes, self.num_edges = description["num_nodes"], description["num_edges"]
        self.nodes, self.edge_ids = part["nodes"].long(), part["edge_ids"].long()
        self.source_ids = torch.cat([self.nodes, part["ghosts"].long()])
        self.num_own, self.num_ghosts = self.nodes.shape[0], part["ghosts"].shape[0]
        csc = part["indptr"], part["indices"], None
        self.graph = Graph(self.num_own + self.num_ghosts, self.num_own, csc=csc)
        with ordinary_tensors():
            self.edge_index = torch.stack(self.graph.edges()).long()
        share_graph(self.edge_index, self.graph)

    @classmethod
    def load(cls, folder: Any, *, group: Any = None, device: Any = "cpu", check: bool | None = None) -> DistGraph:
        """This process's part of a partition. All processes of the group call it.

        Args:
            folder: of :func:`partition`, which every process can read.
            group: a process group of torch.distributed; None is the default one.
            device: of the graph: a GPU if the group is NCCL's.
            check: whether `halo` asks in every call whether all processes pass rows of one shape and dtype. None: on a CPU.
                On a GPU the host would wait for the answer.

        Raises:
            RuntimeError: torch.distributed is not initialised. FileNotFoundError: there is no partition. ValueError: it has another
                number of parts than the group has processes, or processes have loaded different ones; or another process has no
                partition; or this one is not in the group.
        """
        folder, description, part, exchange = load_part(folder, group, device, check)
        if "node_types" in description:
            raise ValueError(f"{folder} holds a heterograph, which DistHeteroGraph.load reads")
        exchange.rows = [
            Rows(part["sends"], part["send_counts"].tolist(), part["ghost_counts"].tolist(), part["nodes"].shape[0])
        ]
        return cls(folder, description, part, exchange)

    @property
    def device(self) -> torch.device:
        return self.graph.device

    @property
    def bytes_sent(self) -> int:
        return self.exchange.bytes_sent

    def halo(self, x: Tensor) -> Tensor:
        """The rows of all sources of this process's edges: its own, followed by its ghosts', which their owners send.

        All processes call it together, with rows of one shape and dtype. Rows travel in the dtype of x, and so do their gradients
        in the backward, which are summed in fp32, always in the same order, and rounded once.

        Args:
            x: (num_own, *), rows of this process's nodes, of any dtype.

        Returns:
            (num_own + num_ghosts, *), in the dtype of x.

        Raises:
            TypeError, ValueError: x is no dense tensor, has another number of rows, or is on another device; or processes pass
                rows of other shapes or dtypes, which all of them are told. RuntimeError: a process has ended, which the message
                names.
        """
        with self.exchange.told_to_others():
            check_own(x, "x", self.num_own, self.device)
        self.exchange.check_alike(("x", x))
        (rows,) = halo(self.exchange, [0], [x])
        return rows

    def aggregate(self, x: Tensor, weight: Tensor | None = None, reduce: str = "sum") -> Tensor:
        """The sum or mean over in-edges e = (u, v) of x[u], or of weight[e] * x[u], without the rows of all ghosts at once.

        The rows of one process after another are fetched and summed, and dropped. They travel while those before are summed,
        this process's own first. In memory are those of two processes. Sums are in fp32 and rounded once. If the weight has a
        gradient, the backward fetches the rows again. No second derivative.

        All processes call it together, as :meth:`halo`. An attention: the halo of its logits' parts (H numbers per node),
        ops.edge_softmax on `graph`, and `aggregate` with its result as the weight.

        Args:
            x: (num_own, *, D), rows of this process's nodes: fp16, bf16, fp32, or on a CPU fp64.
            weight: (E, *, 1), of this process's edges in their order, one per row or head.
            reduce: ``"sum"`` or ``"mean"``. Nodes without in-edges get 0.

        Returns:
            (num_own, *, D), in the dtype of x. Under autocast x and weight are cast first, as those of operators.

        Raises:
            TypeError, ValueError, RuntimeError: see halo; and for a weight of another shape.
        """
        with self.exchange.told_to_others():
            rows, weight = self._checked(x, weight, reduce)
        scale = None
        if reduce == "mean":
            degrees = self.graph.in_degrees().clamp(min=1)
            dtype = torch.promote_types(rows.dtype, torch.float32)
            scale = degrees.to(dtype).reciprocal().view(-1, *[1] * (x.dim() - 1))
        self.exchange.check_alike(("x", rows), ("weight", weight), ("reduce", reduce))
        return Aggregate.apply(rows, weight, scale, self.exchange, self._blocks)

    def _checked(self, x: Tensor, weight: Tensor | None, reduce: str) -> tuple[Tensor, Tensor | None]:
        """Arguments of aggregate, as autocast wants them."""
        check_own(x, "x", self.num_own, self.device)
        if reduce not in ("sum", "mean"):
            raise ValueError(f"reduce is {reduce!r}; expected 'sum' or 'mean'")
        if x.dim() < 2:
            raise ValueError(f"x has shape {tuple(x.shape)}; expected (num_own, *, D)")
        if weight is not None:
            check_rows(weight, "weight", self.graph.num_edges, "e", self.device)
            expected = (self.graph.num_edges, *x.shape[1:-1], 1)
            if weight.shape != expected:
                raise ValueError(
                    f"weight has shape {tuple(weight.shape)}; expected {expected}, one number per row of x"
                )
        rows, weight = autocast_all(self.device, x, weight)
        assert rows is not None
        _check_floats(rows, weight)
        return rows, weight

    @functools.cached_property
    def _blocks(self) -> list[Block]:
        return blocks_of(self.graph, self.num_own, self.exchange.rows[0].ghost_counts, self.rank)

    @functools.cached_property
    def owner(self) -> Tensor:
        """(num_nodes,): the process that owns each node of the whole graph."""
        return torch.from_numpy(np.load(self._folder / "owner.npy"))

    def in_degrees(self) -> Tensor:
        """(num_own,): the in-degrees of this process's nodes, int64."""
        return self.graph.in_degrees().long()

    def out_degrees(self) -> Tensor:
        """(num_own,): the out-degrees of this process's nodes in the whole graph, int64. All processes call it together."""
        (degrees,) = self.exchange.returned([0], [self.graph.out_degrees().long().unsqueeze(1)])
        return degrees.squeeze(1)

    def features(self, name: str, *, of: str = "nodes") -> FeatureStore:
        """The rows of this process's nodes, or edges, from the file of :func:`cut_features`. They are read as they are used.

        Raises:
            FileNotFoundError: there are none of this name. ValueError: they are of another partition.
        """
        return open_features(self._folder, self._description, self.rank, name, of)

    def __repr__(self) -> str:
        return (
            f"DistGraph(process {self.rank} of {self.world_size}, num_own={self.num_own}, num_ghosts={self.num_ghosts}, "
            f"num_edges={self.graph.num_edges} of {self.num_edges}, device='{self.device}')"
        )


def share_graph(edge_index: Tensor, graph: Graph) -> None:
    """The Graph is cached with the edge_index, for modules of torch_geometric."""
    topology_of(edge_index).graph((graph.num_src, graph.num_dst), lambda: graph)


def check_own(x: Any, name: str, num_own: int, device: torch.device) -> None:
    """Raises TypeError or ValueError unless x has a row for each node of this process."""
    check_tensor(x, name)
    check_dense(x, name)
    if x.dim() == 0 or x.shape[0] != num_own:
        raise ValueError(f"{name} has shape {tuple(x.shape)}; expected ({num_own}, *), a row per node of this process")
    if x.device != device:
        raise ValueError(f"{name} is on {x.device}; expected {device}, the device of the graph")


def _check_floats(x: Tensor, weight: Tensor | None) -> None:
    """Before rows are on their way: an operator that raises then leaves those of this call to the next one."""
    for data, name in ((x, "x"), (weight, "weight")):
        if data is not None and data.dtype not in (*HALF, torch.float32, torch.float64):
            raise TypeError(f"{name} has dtype {data.dtype}; expected a floating-point type{as_floats(data, name)}")
    if weight is not None and not may_mix(x.dtype, weight.dtype):
        raise TypeError(
            f"x has dtype {x.dtype} and weight {weight.dtype}; expected equal ones, or a half type and fp32"
        )
