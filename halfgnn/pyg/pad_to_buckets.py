"""A transform that pads mini-batches to the sizes of buckets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch_geometric import EdgeIndex
from torch_geometric.data import Batch, HeteroData
from torch_geometric.transforms import BaseTransform

from ..graph import Graph
from ..padding import Buckets, bucket, bucket_nodes, pad_edges, pad_named, real_mask

# What loaders add about seeds, which have a number of their own. PadToBuckets.keep adds to them.
SEEDS = {"input_id", "seed_time", "edge_label", "edge_label_index", "edge_label_time", "src_index", "dst_pos_index"}
SEEDS |= {"dst_neg_index", "neg_sample_mask"}

BUCKETS = Buckets()
Sizes = Mapping[Any, Buckets | int]
Offsets = Mapping[str, Tensor]


class PadToBuckets(BaseTransform):
    """Pads a Data, HeteroData or Batch to the sizes of buckets: few different shapes occur, and compiled code is used again.

    ::

        pad = halfgnn.pyg.PadToBuckets()
        loader = torch.utils.data.DataLoader(dataset, 64, shuffle=True, collate_fn=pad.collate)  # of graphs
        loader = NeighborLoader(data, num_neighbors=[10, 10], transform=pad)  # of samples; with Compose([pad, ToGraph()]) of Graphs

    Real rows come first and are the same. Padding edges join padding nodes only, and in a Batch padding nodes belong to the first
    padding graph; the other padding graphs are empty. The result has `node_mask`, `edge_mask` and with a batch vector `graph_mask`:
    bool, True for real rows. Rows of padding are 0 and False, those of `pos` one apart, those of `batch` the padding graph, and
    those of names with "index" a padding node. `num_graphs`, `ptr` and `num_nodes` count padding, and `to_data_list()` returns
    padding graphs after the real ones. Lists with an entry for each graph get None. The last hop of `num_sampled_nodes` and
    `num_sampled_edges` has the padding. Seeds (`batch_size`, `input_id`, `edge_label`) stay as they are, and so do tensors of a
    Data that have as many rows as neither nodes, edges nor graphs. If every graph has as many nodes as edges, names with "edge" are
    those of edges; if every graph has one node, `y` is that of graphs.

    Args:
        nodes: the sizes, of HeteroData also by node type; an int is the only size. Two of the nodes are padding at least.
        edges: the sizes, of HeteroData also by edge type.
        graphs: the sizes. One of the graphs is padding at least.
        fill: by the name of an attribute, what its padding rows get: `fill={"y": -100}` for cross_entropy.
        keep: names of tensors of a Batch that are not padded.

    Raises:
        ValueError: more than the largest bucket holds; data that are padded already; a sparse adjacency or a Graph instead of
            edge_index; a tensor of a Batch that has other rows than nodes, edges or graphs and is not in keep.
    """

    def __init__(
        self,
        nodes: Buckets | int | Sizes = BUCKETS,
        edges: Buckets | int | Sizes = BUCKETS,
        graphs: Buckets | int = BUCKETS,
        fill: Mapping[str, Any] | None = None,
        keep: Sequence[str] = (),
    ) -> None:
        self.nodes, self.edges, self.graphs = nodes, edges, graphs
        self.fill, self.keep = dict(fill or {}), tuple(keep)

    def forward(self, data: Any) -> Any:
        for store in data.stores:
            _check(store)
        padding = _Padding(self, data)
        for store in data.stores:
            padding.pad(store)
        padding.finish()
        return data

    def collate(self, data_list: Sequence[Any], **options: Any) -> Any:
        """Batch.from_data_list(data_list, **options), padded: for collate_fn of torch.utils.data.DataLoader.

        torch_geometric's DataLoader ignores its collate_fn.
        """
        return self(Batch.from_data_list(list(data_list), **options))

    def __repr__(self) -> str:
        return f"{type(self).__name__}(nodes={self.nodes}, edges={self.edges}, graphs={self.graphs})"


def _check(store: Any) -> None:
    for name, value in store.items():
        if isinstance(value, Graph):
            raise ValueError(f"{name} is a Graph; expected PadToBuckets before ToGraph")
        if name in ("adj", "adj_t"):
            raise ValueError(f"the data have {name}; expected edge_index, and ToSparseTensor after PadToBuckets")
        if name in ("node_mask", "edge_mask"):
            raise ValueError(f"the data have {name}; expected data that are not padded")


class _Padding:
    """The sizes of one data object, before (real) and after (size), and what pads its stores."""

    def __init__(self, options: PadToBuckets, data: Any) -> None:
        self.options, self.data = options, data
        self.hetero = isinstance(data, HeteroData)
        self.real_nodes = {self._type(store): store.num_nodes or 0 for store in data.node_stores}
        edge_stores = [store for store in data.edge_stores if "edge_index" in store]
        self.real_edges = {self._type(store): store.num_edges for store in edge_stores}
        self.edges = {
            key: bucket(count, self._buckets("edges", key), f"the number of edges{_of(key)}")
            for key, count in self.real_edges.items()
        }
        self.nodes = {key: self._node_size(key) for key in self.real_nodes}
        self.real_graphs = self._count_graphs()
        if self.real_graphs is not None:
            taken = {*self.nodes.values(), *self.edges.values()}
            name = "the number of graphs with a padding graph"
            self.graphs = bucket(self.real_graphs + 1, options.graphs, name, taken)
        # The slices of a Batch are new dictionaries: the data may be a shallow copy.
        is_batch = isinstance(data, Batch)  # HeteroData raise a KeyError for names that end in _dict
        self.slices = _copied(getattr(data, "_slice_dict", None) if is_batch else None)
        self.incs = _copied(getattr(data, "_inc_dict", None) if is_batch else None)

    def _type(self, store: Any) -> Any:
        return store._key if self.hetero else None

    def _ends(self, key: Any) -> tuple[Any, Any]:
        return (key[0], key[-1]) if self.hetero else (None, None)

    def _buckets(self, argument: str, key: Any) -> Buckets | int:
        sizes = getattr(self.options, argument)
        if not isinstance(sizes, Mapping):
            return sizes
        if key not in sizes:
            raise ValueError(f"{argument} has sizes for {list(sizes)}; expected one for {key!r} too")
        return sizes[key]

    def _node_size(self, key: Any) -> int:
        incident = [edges for edges in self.edges if key in self._ends(edges)]
        extra = max((self.edges[edges] - self.real_edges[edges] for edges in incident), default=0)
        name, taken = f"the number of nodes{_of(key)}", [self.edges[edges] for edges in incident]
        return bucket_nodes(self.real_nodes[key], self._buckets("nodes", key), extra, name, taken)

    def _count_graphs(self) -> int | None:
        if isinstance(self.data, Batch):
            return self.data.num_graphs
        batches = [store.batch for store in self.data.node_stores if "batch" in store]
        return max((int(batch.max()) + 1 for batch in batches if batch.numel()), default=0) if batches else None

    def _counts(self, store: Any, level: str | None) -> tuple[int, int] | None:
        """The numbers before and after, or None: a store of edges has no nodes of its own, and a Data has no graphs."""
        if level == "graph":
            return None if self.real_graphs is None else (self.real_graphs, self.graphs)
        real, size = (self.real_nodes, self.nodes) if level == "node" else (self.real_edges, self.edges)
        key = self._type(store)
        return (real[key], size[key]) if key in real else None

    # ---- one store ---------------------------------------------------------------------------------------------------------------

    def pad(self, store: Any) -> None:
        before = dict(store.items())
        offsets = self._offsets(store)
        for name, value in before.items():
            slices = _within(self.slices, store._key).get(name)
            store[name] = self._padded(store, before, name, slices, offsets)
            if isinstance(slices, Tensor) and slices.dim() == 1:
                self._extend_slices(store, name, value, slices, offsets)
        if "num_nodes" in store:
            store.num_nodes = self.nodes[self._type(store)]
        if hasattr(store, "_num_nodes"):
            real, size = self._counts(store, "node") or (0, 0)
            store._num_nodes = [*store._num_nodes, size - real, *[0] * (self._extra_graphs() - 1)]
        like = next((value for value in before.values() if isinstance(value, Tensor)), torch.empty(0))
        for level in ("node", "edge"):
            counts = self._counts(store, level)
            if counts is not None:
                store[f"{level}_mask"] = real_mask(*counts, like)

    def _padded(self, store: Any, before: Mapping[str, Any], name: str, slices: Any, offsets: Offsets) -> Any:
        value = before[name]
        if name == "edge_index":
            return self._padded_edge_index(store, value)
        if name in ("num_sampled_nodes", "num_sampled_edges"):
            return self._with_padding_hop(store, name, value)
        if isinstance(value, list) and slices is not None and len(value) == self.real_graphs:
            return [*value, *[None] * self._extra_graphs()]
        if not isinstance(value, Tensor) or value.dim() == 0:
            return value
        if (name == "ptr" or name.endswith("_ptr")) and self.slices is not None:
            followed = "batch" if name == "ptr" else name.removesuffix("_ptr")
            return self._extended_ptr(store, followed, before[followed], value, offsets)
        dim = self._dim(store, name, value)
        level = self._level(store, name, value.shape[dim], slices, offsets)
        if level is not None:
            real, size = self._counts(store, level) or (0, 0)
            each = value.shape[dim] // real if level == "graph" and real else 1
            return pad_named(name, value, size * each, self._fill(store, name), dim)
        if slices is not None and not self._is_kept(name):
            shape, rows = tuple(value.shape), "those of nodes, edges or graphs"
            raise ValueError(
                f"{name} has shape {shape}; expected rows along dimension {dim} to be {rows}, or its name in keep"
            )
        return value

    def _dim(self, store: Any, name: str, value: Tensor) -> int:
        """The dimension along which a batch has the values of its graphs; that of a sparse tensor is a pair."""
        dim = self.data.__cat_dim__(name, value, store)
        if isinstance(dim, tuple):
            raise ValueError(f"{name} is sparse; expected a dense tensor")
        return dim or 0

    def _level(self, store: Any, name: str, rows: int, slices: Any, offsets: Offsets) -> str | None:
        """Whether rows are those of nodes, edges or graphs. If these are as many, in each graph of a Batch, the name decides."""
        order = ["edge", "node", "graph"] if "edge" in name else ["node", "edge", "graph"]
        if name == "y" and isinstance(slices, Tensor):
            order = ["graph", "node", "edge"]
        for level in order:
            counts = self._counts(store, level)
            if counts is None or self._is_kept(name):
                continue
            if isinstance(slices, Tensor):
                each = rows // counts[0] if level == "graph" else 1  # such as the three rows of a lattice
                if level in offsets and each > 0 and torch.equal(slices, offsets[level] * each):
                    return level
            elif rows == counts[0]:
                return level
        return None

    def _is_kept(self, name: str) -> bool:
        return name in SEEDS or name in self.options.keep

    def _fill(self, store: Any, name: str) -> Mapping[str, Any]:
        if name not in self.options.fill:
            if name == "batch" or name.endswith("_batch"):
                return {name: self.real_graphs}
            if "index" in name:
                return {name: self.real_nodes.get(self._type(store), 0)}
        return self.options.fill

    def _padded_edge_index(self, store: Any, edge_index: Tensor) -> Tensor:
        source, target = self._ends(store._key)
        real = (self.real_nodes[source], self.real_nodes[target])
        padded = (self.nodes[source], self.nodes[target])
        size = self.edges[self._type(store)]
        if isinstance(edge_index, EdgeIndex):
            ids = pad_edges(edge_index.as_tensor(), size, real, padded, source == target)
            return EdgeIndex(ids, sparse_size=padded, sort_order=edge_index.sort_order)
        return pad_edges(edge_index, size, real, padded, source == target)

    def _with_padding_hop(self, store: Any, name: str, value: Any) -> Any:
        """The padding is of the last hop, so that trim_to_layer drops it first."""
        counts = self._counts(store, name.removeprefix("num_sampled_").removesuffix("s"))
        if not isinstance(value, list) or not value or counts is None:
            return value
        return [*value[:-1], value[-1] + counts[1] - counts[0]]

    # ---- what a Batch knows of its graphs ----------------------------------------------------------------------------------------

    def _extra_graphs(self) -> int:
        return self.graphs - (self.real_graphs or 0)

    def _offsets(self, store: Any) -> Offsets:
        """Where the rows of each graph of a Batch begin, by level."""
        if self.slices is None:
            return {}
        offsets = {"graph": torch.arange((self.real_graphs or 0) + 1)}
        if "ptr" in store:
            offsets["node"] = store.ptr.cpu()
        if "edge_index" in store:
            offsets["edge"] = _within(self.slices, store._key)["edge_index"]
        return offsets

    def _extended_ptr(self, store: Any, name: str, value: Any, ptr: Tensor, offsets: Offsets) -> Tensor:
        """The offsets of the rows of an attribute: all its padding is in the first padding graph, unless each graph has a row."""
        rows = value.shape[self._dim(store, name, value)]
        slices = ptr.cpu() if name != "batch" else None
        return self._extended(store, self._level(store, name, rows, slices, offsets), ptr)

    def _extended(self, store: Any, level: str | None, slices: Tensor) -> Tensor:
        if level == "graph":
            each = int(slices[-1]) // max(self.real_graphs or 0, 1)
            return torch.arange(self.graphs + 1, device=slices.device, dtype=slices.dtype) * each
        counts = self._counts(store, level) if level is not None else None
        end = int(slices[-1]) if counts is None else counts[1]
        return torch.cat([slices, slices.new_full((self._extra_graphs(),), end)])

    def _extend_slices(self, store: Any, name: str, value: Any, slices: Tensor, offsets: Offsets) -> None:
        level: str | None = "graph"
        if isinstance(value, Tensor):
            level = self._level(store, name, value.shape[self._dim(store, name, value)], slices, offsets)
        _within(self.slices, store._key)[name] = self._extended(store, level, slices)
        incs = _within(self.incs, store._key)
        if isinstance(incs.get(name), Tensor):
            incs[name] = torch.cat([incs[name], self._padding_incs(store, name, incs[name])])

    def _padding_incs(self, store: Any, name: str, incs: Tensor) -> Tensor:
        """What was added to the ids of the padding graphs; of attributes other than edge_index they are the last real graph's."""
        last = incs[-1:]
        if name == "edge_index":  # of the first padding graph: the others have no edges
            ends = [self.real_nodes[end] for end in self._ends(store._key)]
            last = torch.tensor(ends[:1] if incs.dim() == 1 else ends).view_as(last)
        return last.repeat(self._extra_graphs(), *[1] * (incs.dim() - 1))

    def finish(self) -> None:
        """Sets what belongs to the data as a whole."""
        if self.real_graphs is None:
            return
        like = next(store.batch for store in self.data.node_stores if "batch" in store)
        self.data.graph_mask = real_mask(self.real_graphs, self.graphs, like)
        if isinstance(self.data, Batch):
            self.data._num_graphs = self.graphs
        if self.slices is not None:
            self.data._slice_dict, self.data._inc_dict = self.slices, self.incs


def _of(key: Any) -> str:
    return "" if key is None else f" of {key!r}"


def _copied(slices: Any) -> Any:
    """A dictionary of slices, in which HeteroData have one for each type."""
    if slices is None:
        return None
    return {name: dict(value) if isinstance(value, dict) else value for name, value in slices.items()}


def _within(slices: Any, key: Any) -> dict[str, Any]:
    if slices is None:
        return {}
    return slices if key is None else slices.setdefault(key, {})
