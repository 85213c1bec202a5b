"""Transforms as objects: called with a graph, they return one. Datasets take them as `transform`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from .... import ops
from ....common.arguments import check_number, check_probability
from ..base import DGLError, EdgeType, check_weights, dgl_warning
from ..convert import heterograph
from ..frame import Column, Frame
from ..heterograph import DGLGraph
from . import derived, edges, encodings

__all__ = [
    "SVDPE",
    "AddEdge",
    "AddMetaPaths",
    "AddReverse",
    "AddSelfLoop",
    "BaseTransform",
    "Compose",
    "DropEdge",
    "DropNode",
    "FeatMask",
    "GCNNorm",
    "KHopGraph",
    "LapPE",
    "LaplacianPE",
    "LineGraph",
    "NodeShuffle",
    "RandomWalkPE",
    "RemoveSelfLoop",
    "RowFeatNormalizer",
    "ToLevi",
    "ToSimple",
]


class BaseTransform:
    """A function of a graph, which subclasses define as ``__call__``."""

    def __call__(self, g: DGLGraph) -> DGLGraph:
        """The transformed graph."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class Compose(BaseTransform):
    """Transforms one after the other."""

    def __init__(self, transforms: Sequence[Callable[[Any], Any]]):
        self.transforms = transforms

    def __call__(self, g: Any) -> Any:
        for transform in self.transforms:
            g = transform(g)
        return g

    def __repr__(self) -> str:
        lines = ",\n".join(f"  {transform}" for transform in self.transforms)
        return f"{type(self).__name__}([\n{lines}\n])"


# ---- features --------------------------------------------------------------------------------------------------------------------


class _OfFeatures(BaseTransform):
    """Changes some features of all types that have them."""

    def __init__(self, node_feat_names: Sequence[str] | None, edge_feat_names: Sequence[str] | None):
        self.node_feat_names = list(node_feat_names or ())
        self.edge_feat_names = list(edge_feat_names or ())

    def _columns(self, g: DGLGraph) -> Iterator[tuple[Frame, str]]:
        for frames, names in ((g._node_frames, self.node_feat_names), (g._edge_frames, self.edge_feat_names)):
            for name in names:
                having = [frame for frame in frames if name in frame]
                if not having:
                    raise KeyError(name)
                yield from ((frame, name) for frame in having)


class RowFeatNormalizer(_OfFeatures):
    """Divide rows of features by their sums, or by 1 if these are smaller.

    subtract_min: subtract the smallest value of each feature first.
    """

    def __init__(
        self,
        subtract_min: bool = False,
        node_feat_names: Sequence[str] | None = None,
        edge_feat_names: Sequence[str] | None = None,
    ):
        super().__init__(node_feat_names, edge_feat_names)
        self.subtract_min = subtract_min

    def row_normalize(self, feat: Tensor) -> Tensor:
        """One feature (N, D), normalized."""
        feat = feat - feat.min() if self.subtract_min else feat
        return feat / feat.sum(-1, keepdim=True).clamp(min=1.0)

    def __call__(self, g: DGLGraph) -> DGLGraph:
        for frame, name in self._columns(g):
            frame[name] = self.row_normalize(frame[name])
        return g


class FeatMask(_OfFeatures):
    """Set random columns of features to 0, each with probability p."""

    def __init__(
        self,
        p: float = 0.5,
        node_feat_names: Sequence[str] | None = None,
        edge_feat_names: Sequence[str] | None = None,
    ):
        super().__init__(node_feat_names, edge_feat_names)
        self.p = check_probability(p, "p")

    def __call__(self, g: DGLGraph) -> DGLGraph:
        for frame, name in self._columns(g):
            values = frame[name]
            masked = _with_probability(self.p, values.shape[-1], values.device)
            frame[name] = values.masked_fill(masked, 0)
        return g


def _with_probability(p: float, count: int, device: Any) -> Tensor:
    return (torch.rand(count) < p).to(device)


class RandomWalkPE(BaseTransform):
    """Put :func:`random_walk_pe` into the node feature `feat_name`."""

    def __init__(self, k: int, feat_name: str = "PE", eweight_name: str | None = None):
        self.k = k
        self.feat_name = feat_name
        self.eweight_name = eweight_name

    def __call__(self, g: DGLGraph) -> DGLGraph:
        g.ndata[self.feat_name] = encodings.random_walk_pe(g, self.k, self.eweight_name).to(g.device)
        return g


class LapPE(BaseTransform):
    """Put :func:`lap_pe` into the node feature `feat_name`, and eigenvalues into `eigval_name` if that is given."""

    def __init__(self, k: int, feat_name: str = "PE", eigval_name: str | None = None, padding: bool = False):
        self.k = k
        self.feat_name = feat_name
        self.eigval_name = eigval_name
        self.padding = padding

    def __call__(self, g: DGLGraph) -> DGLGraph:
        encoding, eigenvalues = encodings.lap_pe(g, self.k, self.padding, return_eigval=True)
        g.ndata[self.feat_name] = encoding.to(g.device)
        if self.eigval_name:
            g.ndata[self.eigval_name] = eigenvalues.expand(g.num_nodes(), -1).contiguous().to(g.device)
        return g


class LaplacianPE(LapPE):
    """The former name of :class:`LapPE`."""

    def __init__(self, k: int, feat_name: str = "PE", eigval_name: str | None = None, padding: bool = False):
        super().__init__(k, feat_name, eigval_name, padding)
        dgl_warning("LaplacianPE is a former name of LapPE")


class SVDPE(BaseTransform):
    """Put :func:`svd_pe` into the node feature `feat_name`."""

    def __init__(self, k: int, feat_name: str = "svd_pe", padding: bool = False, random_flip: bool = True):
        self.k = k
        self.feat_name = feat_name
        self.padding = padding
        self.random_flip = random_flip

    def __call__(self, g: DGLGraph) -> DGLGraph:
        g.ndata[self.feat_name] = encodings.svd_pe(g, self.k, self.padding, self.random_flip).to(g.device)
        return g


class NodeShuffle(BaseTransform):
    """Exchange the features of nodes at random."""

    def __call__(self, g: DGLGraph) -> DGLGraph:
        g = g.clone()
        for i, frame in enumerate(g._node_frames):
            g._node_frames[i] = frame.subframe(torch.randperm(frame.num_rows).to(g.device, g.idtype))
        return g


class GCNNorm(BaseTransform):
    """Multiply weights of edges by the roots of the inverse weighted in-degrees of both ends, for types with one node type.

    eweight_name: the edge feature; where it is lacking, weights are 1.
    """

    def __init__(self, eweight_name: str = "w"):
        self.eweight_name = eweight_name

    def __call__(self, g: DGLGraph) -> DGLGraph:
        for etype in g.canonical_etypes:
            if etype[0] == etype[2]:
                g.edges[etype].data[self.eweight_name] = self._weights(g[etype])
        return g

    def _weights(self, g: DGLGraph) -> Tensor:
        src, dst = (ends.long() for ends in g.all_edges())
        weights = g.edata.get(self.eweight_name)
        if weights is None:
            roots = _inverse_root(g.in_degrees().float())
            return roots[src] * roots[dst]
        check_weights(weights.reshape(-1), g.num_edges(), f"the feature {self.eweight_name!r}", True)
        sums = ops.copy_e_sum(g, weights)
        check_weights(sums.reshape(-1), g.num_dst_nodes(), f"the sums of the feature {self.eweight_name!r} per node")
        roots = _inverse_root(sums)
        return roots[src] * weights * roots[dst]


def _inverse_root(degrees: Tensor) -> Tensor:
    return degrees.rsqrt().masked_fill(degrees == 0, 0)


# ---- structure -------------------------------------------------------------------------------------------------------------------


def _with_edges(g: DGLGraph, data: Mapping[EdgeType, Any], copy_edata: bool = True) -> DGLGraph:
    """The nodes of a graph, with edges (sources, destinations) by type. copy_edata: types that it has keep their features."""
    counts = {ntype: g.num_nodes(ntype) for ntype in g.ntypes}
    made = heterograph(data, counts, idtype=g.idtype, device=g.device)
    for i, ntype in enumerate(made.ntypes):
        made._node_frames[i] = g._node_frames[g.get_ntype_id(ntype)].clone()
    if copy_edata:
        for i, etype in enumerate(made.canonical_etypes):
            if etype in g.canonical_etypes:
                made._edge_frames[i] = g._edge_frames[g.get_etype_id(etype)].clone()
    return made


def _edges_of(g: DGLGraph) -> dict[EdgeType, Any]:
    return {etype: g.all_edges(etype=etype) for etype in g.canonical_etypes}


class AddSelfLoop(BaseTransform):
    """Add self-loops to all edge types with the same nodes at both ends.

    Args:
        allow_duplicate: keep the self-loops that there are, beside the new ones.
        new_etypes: also add a type "self" of self-loops for each node type.
        edge_feat_names, fill_data: see :func:`add_self_loop`.
    """

    def __init__(
        self,
        allow_duplicate: bool = False,
        new_etypes: bool = False,
        edge_feat_names: Sequence[str] | None = None,
        fill_data: float | str = 1.0,
    ):
        self.allow_duplicate = allow_duplicate
        self.new_etypes = new_etypes
        self.edge_feat_names = edge_feat_names
        self.fill_data = fill_data

    def __call__(self, g: DGLGraph) -> DGLGraph:
        for etype in g.canonical_etypes:
            if etype[0] == etype[2]:
                g = g if self.allow_duplicate else edges.remove_self_loop(g, etype)
                g = edges.add_self_loop(g, self.edge_feat_names, self.fill_data, etype)
        if not self.new_etypes:
            return g
        loops = {(ntype, "self", ntype): (g.nodes(ntype), g.nodes(ntype)) for ntype in g.ntypes}
        return _with_edges(g, {**loops, **_edges_of(g)})


class RemoveSelfLoop(BaseTransform):
    """Remove self-loops from all edge types."""

    def __call__(self, g: DGLGraph) -> DGLGraph:
        for etype in g.canonical_etypes:
            if etype[0] == etype[2]:
                g = edges.remove_self_loop(g, etype)
        return g


class AddReverse(BaseTransform):
    """Add the reverse of every edge: to its type if both ends have the same nodes, otherwise to a new type "rev_...".

    Args:
        copy_edata: reverse edges get the features of their edges; otherwise those added to a type that exists get zeros.
        sym_new_etype: new types in any case.
    """

    def __init__(self, copy_edata: bool = False, sym_new_etype: bool = False):
        self.copy_edata = copy_edata
        self.sym_new_etype = sym_new_etype

    def __call__(self, g: DGLGraph) -> DGLGraph:
        data: dict[EdgeType, Any] = {}
        for (u, etype, v), (src, dst) in _edges_of(g).items():
            if u == v and not self.sym_new_etype:
                data[u, etype, v] = torch.cat([src, dst]), torch.cat([dst, src])
            else:
                data[u, etype, v] = src, dst
                data[v, f"rev_{etype}", u] = dst, src
        made = _with_edges(g, data, copy_edata=False)
        for i, (u, etype, v) in enumerate(g.canonical_etypes):
            frame = g._edge_frames[i]
            forth = made.get_etype_id((u, etype, v))
            if u == v and not self.sym_new_etype:
                made._edge_frames[forth] = self._twice(frame)
                continue
            made._edge_frames[forth] = frame.clone()
            if self.copy_edata:
                made._edge_frames[made.get_etype_id((v, f"rev_{etype}", u))] = frame.clone()
        return made

    def _twice(self, frame: Frame) -> Frame:
        twice = Frame(num_rows=2 * frame.num_rows)
        for name in frame.schemes:
            values = frame[name]
            twice[name] = Column(torch.cat([values, values if self.copy_edata else torch.zeros_like(values)]))
        return twice


class ToSimple(BaseTransform):
    """:func:`to_simple`, with features of edges."""

    def __init__(self, return_counts: str | None = "count", aggregator: str = "arbitrary"):
        self.return_counts = return_counts
        self.aggregator = aggregator

    def __call__(self, g: DGLGraph) -> DGLGraph:
        return edges.to_simple(g, self.return_counts, copy_edata=True, aggregator=self.aggregator)


class LineGraph(BaseTransform):
    """:func:`line_graph`, with the features of edges."""

    def __init__(self, backtracking: bool = True):
        self.backtracking = backtracking

    def __call__(self, g: DGLGraph) -> DGLGraph:
        return derived.line_graph(g, self.backtracking, shared=True)


class KHopGraph(BaseTransform):
    """:func:`khop_graph`."""

    def __init__(self, k: int):
        self.k = k

    def __call__(self, g: DGLGraph) -> DGLGraph:
        return derived.khop_graph(g, self.k)


class AddMetaPaths(BaseTransform):
    """Add a type of edges per metapath. metapaths: {name: edge types}. keep_orig_edges: besides those that there are."""

    def __init__(self, metapaths: Mapping[str, Sequence[EdgeType]], keep_orig_edges: bool = True):
        self.metapaths = metapaths
        self.keep_orig_edges = keep_orig_edges

    def __call__(self, g: DGLGraph) -> DGLGraph:
        data: dict[EdgeType, Any] = {}
        for name, metapath in self.metapaths.items():
            data[metapath[0][0], name, metapath[-1][-1]] = derived.metapath_reachable_graph(g, metapath).all_edges()
        if self.keep_orig_edges:
            data.update(_edges_of(g))
        return _with_edges(g, data, copy_edata=self.keep_orig_edges)


class DropNode(BaseTransform):
    """Remove nodes at random, each with probability p."""

    def __init__(self, p: float = 0.5):
        self.p = check_probability(p, "p")

    def __call__(self, g: DGLGraph) -> DGLGraph:
        g = g.clone()
        for ntype in g.ntypes:
            g.remove_nodes(g.nodes(ntype)[_with_probability(self.p, g.num_nodes(ntype), g.device)], ntype)
        return g


class DropEdge(BaseTransform):
    """Remove edges at random, each with probability p."""

    def __init__(self, p: float = 0.5):
        self.p = check_probability(p, "p")

    def __call__(self, g: DGLGraph) -> DGLGraph:
        g = g.clone()
        for etype in g.canonical_etypes:
            dropped = _with_probability(self.p, g.num_edges(etype), g.device)
            g.remove_edges(g.all_edges("eid", etype=etype)[dropped], etype)
        return g


class AddEdge(BaseTransform):
    """Add random edges, `ratio` times the number of edges of each type."""

    def __init__(self, ratio: float = 0.2):
        self.ratio = check_number(ratio, "ratio")
        if ratio < 0:
            raise DGLError(f"ratio is {ratio}; expected a number of at least 0")

    def __call__(self, g: DGLGraph) -> DGLGraph:
        g = g.clone()
        for etype in g.canonical_etypes:
            count = int(g.num_edges(etype) * self.ratio)
            src, dst = (
                torch.randint(max(g.num_nodes(ntype), 1), (count,), dtype=g.idtype).to(g.device)
                for ntype in (etype[0], etype[2])
            )
            g.add_edges(src, dst, etype=etype)
        return g


class ToLevi(BaseTransform):
    """The Levi graph: types "node" and "edge", with edges "n2e" from nodes to out-edges and "e2n" from edges to their ends."""

    def __call__(self, g: DGLGraph) -> DGLGraph:
        src, dst = g.all_edges()
        ids = g.all_edges("eid")
        made = heterograph(
            {("node", "n2e", "edge"): (src, ids), ("edge", "e2n", "node"): (ids, dst)},
            {"node": g.num_nodes(), "edge": g.num_edges()},
            idtype=g.idtype,
            device=g.device,
        )
        made._node_frames = [frames[0].clone() for frames in (g._edge_frames, g._node_frames)]
        return made
