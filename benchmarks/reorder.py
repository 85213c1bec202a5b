"""What an order of nodes is worth: copy_u_sum on the same edges under other node ids.

* ``halfgnn``: the ids of the graph as it is. Those of synthetic graphs are random.
* ``halfgnn, reordered``: the ids of halfgnn.reorder.
* ``halfgnn, planted``: communities one after the other, if the graph was drawn with communities: an order to aim at.
* ``halfgnn, by degree``: nodes of most edges first.
* ``halfgnn, Cuthill-McKee``: scipy.sparse.csgraph.reverse_cuthill_mckee, which makes the band of the matrix narrow.
* ``reorder``: the time of halfgnn.reorder itself, with its two looks at locality and the new adjacencies.
* ``Cuthill-McKee``: the time of scipy's function, without new adjacencies.

Results are compared with float64 under the ids that they are made with, for features in the same order. The note of a
row is halfgnn.locality under its ids. Backends take turns, so ratios of their times hold on a busy machine too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

import halfgnn
from halfgnn import Graph, ops

from . import sweep
from .case import Backend, Case, Config
from .graphs import BenchGraph
from .operators import Problem
from .optional import Unavailable

# ---- orders: the old id of every new id -------------------------------------------------------------------------------


def _reordered(graph: BenchGraph) -> Tensor:
    return halfgnn.reorder(graph.halfgnn, least_gain=-1).node_ids


def _planted(graph: BenchGraph) -> Tensor:
    assert graph.communities is not None
    return graph.communities.argsort(stable=True)


def _by_degree(graph: BenchGraph) -> Tensor:
    degrees = graph.halfgnn.in_degrees() + graph.halfgnn.out_degrees()
    return degrees.argsort(descending=True, stable=True)


def _cuthill_mckee(graph: BenchGraph) -> Tensor:
    try:
        from scipy.sparse import csr_matrix
        from scipy.sparse.csgraph import reverse_cuthill_mckee
    except ImportError as error:
        raise Unavailable(f"needs scipy: {error}") from error
    ends = graph.src.cpu().numpy(), graph.dst.cpu().numpy()
    matrix = csr_matrix((torch.ones(graph.num_edges).numpy(), ends), shape=(graph.num_nodes,) * 2)
    found = reverse_cuthill_mckee((matrix + matrix.T).tocsr(), symmetric_mode=True)
    return torch.from_numpy(found.copy()).to(graph.src.device)


ORDERS: dict[str, Callable[[BenchGraph], Tensor]] = {
    "halfgnn, reordered": _reordered,
    "halfgnn, planted": _planted,
    "halfgnn, by degree": _by_degree,
    "halfgnn, Cuthill-McKee": _cuthill_mckee,
}

# ---- backends -----------------------------------------------------------------------------------------------------


def renumbered(graph: BenchGraph, node_ids: Tensor) -> Graph:
    """The graph under new ids. Edge data keeps its order, and so do the edges of a row."""
    new_ids = torch.empty(graph.num_nodes, dtype=graph.src.dtype, device=graph.src.device)
    new_ids[node_ids.long()] = torch.arange(graph.num_nodes, dtype=graph.src.dtype, device=graph.src.device)
    sizes = dict(num_src=graph.num_nodes, num_dst=graph.num_nodes)
    return Graph.from_edges(new_ids[graph.src.long()], new_ids[graph.dst.long()], **sizes)


@functools.lru_cache(maxsize=1)
def _features(problem: Problem) -> Tensor:
    """One matrix for all backends: copies of it would lie on other pages, which alone makes a difference of a tenth
    and more. Time does not depend on values."""
    return problem.features()


def _backend(problem: Problem, name: str) -> Backend:
    graph = problem.graph

    def make() -> Callable[[], Any]:
        node_ids = (
            ORDERS[name](graph).long() if name in ORDERS else torch.arange(graph.num_nodes, device=graph.src.device)
        )
        other, x = renumbered(graph, node_ids), _features(problem)

        def check(_: Tensor) -> float:
            out = ops.copy_u_sum(other, x[node_ids])
            return sweep.check(problem, torch.empty_like(out).index_copy_(0, node_ids, out), name)

        made.check = check
        made.note = f"locality {halfgnn.locality(other):.4f}"
        return lambda: ops.copy_u_sum(other, x)

    made = Backend(name, problem.dtype, make, bytes_moved=problem.moved_bytes)
    return made


def _backends(config: Config, graph: BenchGraph, dim: int) -> Iterator[Backend]:
    for dtype in config.torch_dtypes(dim):
        problem = Problem("copy_u_sum", "forward", graph, 1, dim, dtype)
        yield _backend(problem, "halfgnn")
        for name in ORDERS:
            if name != "halfgnn, planted" or graph.communities is not None:
                yield _backend(problem, name)
    first = config.torch_dtypes(dim)[0]
    yield Backend("reorder", first, lambda: functools.partial(halfgnn.reorder, graph.halfgnn, least_gain=-1))
    yield Backend("Cuthill-McKee", first, lambda: functools.partial(_cuthill_mckee, graph))


def cases(config: Config) -> Iterator[Case]:
    for name in config.graphs:
        graph = config.graph(name, config.orders[0])
        for dim in config.dims:
            backends = list(_backends(config, graph, dim))
            yield Case("reorder", "copy_u_sum", "forward", graph, 1, dim, backends)
