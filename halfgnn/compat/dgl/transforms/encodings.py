"""Numbers that the structure gives nodes and edges: positional encodings, labels, distances, norms. SciPy computes them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ....common.arguments import checked_size
from ..base import DGLError, check_ids, check_weights, dgl_warning
from ..batch import unbatch
from ..heterograph import DGLGraph

__all__ = [
    "double_radius_node_labeling",
    "lap_pe",
    "laplacian_lambda_max",
    "laplacian_pe",
    "norm_by_dst",
    "random_walk_pe",
    "shortest_dist",
    "svd_pe",
]


def norm_by_dst(g: DGLGraph, etype: Any = None) -> Tensor:
    """Per edge one over the number of in-edges of its destination, (E,) fp32."""
    _, dst = g.all_edges(etype=etype)
    return 1.0 / g.in_degrees(etype=etype).float()[dst.long()]


def _laplacian(g: DGLGraph, transpose: bool = False) -> Any:
    """The normalized Laplacian 1 - D^(-1/2) A D^(-1/2) with in-degrees D, a scipy matrix."""
    import scipy.sparse

    adjacency = g.adj_external(transpose=transpose, scipy_fmt="csr").astype(float)
    norm = scipy.sparse.diags(g.in_degrees().cpu().numpy().clip(1) ** -0.5, dtype=float)
    return scipy.sparse.eye(g.num_nodes()) - norm * adjacency * norm


def laplacian_lambda_max(g: DGLGraph) -> list[float]:
    """The largest eigenvalue of the normalized Laplacian of each batched graph."""
    import scipy.sparse.linalg

    largest = []
    for part in unbatch(g):
        values = scipy.sparse.linalg.eigs(_laplacian(part, transpose=True), 1, which="LM", return_eigenvectors=False)
        largest.append(values[0].real)
    return largest


def lap_pe(g: DGLGraph, k: int, padding: bool = False, return_eigval: bool = False) -> Any:
    """Eigenvectors of the normalized Laplacian for the k smallest eigenvalues after the first, (N, k) fp32, with random signs.

    Args:
        padding: with k >= N, fill up with zeros; otherwise that is refused.
        return_eigval: return (eigenvectors, eigenvalues (k,), of which those filled up are NaN).
    """
    import scipy.sparse.linalg

    num_nodes, k = g.num_nodes(), checked_size(k, "k", least=1)
    if num_nodes <= k and not padding:
        raise DGLError(f"k is {k}; expected less than {num_nodes}, the number of nodes, or padding=True")
    laplacian = _laplacian(g)
    count = min(num_nodes - 1, k)
    if k + 1 < num_nodes - 1:
        values, vectors = scipy.sparse.linalg.eigs(laplacian, k=k + 1, which="SR", ncv=min(4 * k, num_nodes), tol=1e-2)
    else:
        values, vectors = np.linalg.eig(laplacian.toarray())
    order = values.real.argsort(kind="stable")[1 : count + 1]
    signs = 2.0 * (np.random.rand(count) > 0.5) - 1.0
    encoding = torch.zeros(num_nodes, k)
    encoding[:, :count] = torch.from_numpy(signs * vectors[:, order].real).float()
    eigenvalues = torch.full((k,), torch.nan)
    eigenvalues[:count] = torch.from_numpy(values[order].real).float()
    return (encoding, eigenvalues) if return_eigval else encoding


def laplacian_pe(g: DGLGraph, k: int, padding: bool = False, return_eigval: bool = False) -> Any:
    """The former name of :func:`lap_pe`."""
    dgl_warning("dgl.laplacian_pe is a former name of dgl.lap_pe")
    return lap_pe(g, k, padding, return_eigval)


def random_walk_pe(g: DGLGraph, k: int, eweight_name: str | None = None) -> Tensor:
    """Probabilities of a random walk to be back at its node after 1, ..., k steps, (N, k) fp32.

    eweight_name: the edge feature (E,) or (E, 1) by which steps are weighted.
    """
    import scipy.sparse

    adjacency = g.adj_external(scipy_fmt="csr").astype(float)
    if eweight_name is not None:
        src, dst = (ids.cpu().numpy() for ids in g.all_edges())
        weights = g.edata[eweight_name].detach().double().reshape(-1).cpu()
        check_weights(weights, g.num_edges(), f"the feature {eweight_name!r}", True)
        steps = scipy.sparse.csr_matrix((weights.numpy(), (src, dst)), shape=adjacency.shape)
        adjacency = adjacency.multiply(steps)
    step = np.asarray(adjacency.todense())
    step = step / (step.sum(1, keepdims=True) + 1e-30)
    walk, returns = np.eye(len(step)), []
    for _ in range(checked_size(k, "k", least=1)):
        walk = walk @ step
        returns.append(walk.diagonal())
    return torch.from_numpy(np.stack(returns, -1)).float()


def svd_pe(g: DGLGraph, k: int, padding: bool = False, random_flip: bool = True) -> Tensor:
    """Left and right singular vectors of the adjacency matrix, times roots of the k largest singular values: (N, 2 k) fp32.

    padding: with k > N, fill up with zeros; otherwise that is refused. random_flip: random signs, one per node.
    """
    num_nodes, k = g.num_nodes(), checked_size(k, "k")
    if num_nodes < k and not padding:
        raise DGLError(f"k is {k}; expected at most {num_nodes}, the number of nodes, or padding=True")
    left, values, right = np.linalg.svd(g.adj_external(scipy_fmt="coo").toarray().astype(float))
    count = min(num_nodes, k)
    roots = np.sqrt(values[:count])
    encoding = np.concatenate([left[:, :count] * roots, right.T[:, :count] * roots], 1)
    if random_flip:
        encoding = (2 * (np.random.rand(num_nodes) > 0.5) - 1)[:, None] * encoding
    return torch.nn.functional.pad(torch.from_numpy(encoding).float(), (0, 2 * (k - count)))


# ---- distances -------------------------------------------------------------------------------------------------------------------


def shortest_dist(g: DGLGraph, root: int | None = None, return_paths: bool = False) -> Any:
    """Numbers of edges on shortest paths, -1 if there is no path.

    Args:
        root: the node that paths begin at; None for all.
        return_paths: also return the ids of the edges on one shortest path, -1 beyond its end.

    Returns:
        Distances (N,) from the root or (N, N) from all; with return_paths the pair of them and of paths (N, L) or (N, N, L).
    """
    from scipy.sparse import csgraph

    if root is not None:
        check_ids(torch.tensor([root]), g.num_nodes(), "root", "a node")
    roots = range(g.num_nodes()) if root is None else [root]
    distances, previous = csgraph.dijkstra(
        g.adj_external(scipy_fmt="csr"), indices=list(roots), unweighted=True, return_predecessors=True
    )
    distances[np.isinf(distances)] = -1
    found = torch.from_numpy(distances).long().to(g.device)
    if not return_paths:
        return found if root is None else found[0]
    paths = torch.full((*found.shape, int(found.max()) if found.numel() else 0), -1)
    nodes, here = np.nonzero(distances > 0)
    at, step = here, distances[nodes, here].astype(int)
    while len(at):  # all paths, from their ends, one edge at a time
        before = previous[nodes, at]
        step = step - 1
        paths[nodes, here, step] = (
            g.edge_ids(torch.from_numpy(before).to(g.device, g.idtype), torch.from_numpy(at).to(g.device, g.idtype))
            .cpu()
            .long()
        )
        going = step > 0
        nodes, here, at, step = nodes[going], here[going], before[going], step[going]
    paths = paths.to(g.device)
    return (found, paths) if root is None else (found[0], paths[0])


def double_radius_node_labeling(g: DGLGraph, src: int, dst: int) -> Tensor:
    """Labels (N,) int64 of nodes by their distances to two nodes, each without the other; 0 if one of the two is not reached.

    Edges count in both directions. The two nodes have the label 1.
    """
    from scipy.sparse import csgraph

    check_ids(torch.tensor([src, dst]), g.num_nodes(), "src or dst", "a node")
    adjacency = g.adj_external(scipy_fmt="csr")

    def distances(of: int, without: int) -> np.ndarray:
        others = np.delete(np.arange(g.num_nodes()), without)
        paths = csgraph.shortest_path(
            adjacency[others][:, others], directed=False, unweighted=True, indices=of - (of > without)
        )
        return np.insert(paths, without, 0)

    to_src, to_dst = distances(src, dst), distances(dst, src)
    total = to_src + to_dst
    with np.errstate(invalid="ignore"):
        labels = 1 + np.minimum(to_src, to_dst) + total // 2 * (total // 2 + total % 2 - 1)
    labels[[src, dst]] = 1
    labels[~np.isfinite(total)] = 0
    return torch.from_numpy(labels.astype(np.int64))
