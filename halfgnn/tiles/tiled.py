"""A function of edges, run on tiles of destinations and their in-edges. What it makes per edge is dropped after each tile, and
recomputed in the backward: Sublinear checkpoints (Chen et al., 2016) whose segments are edges instead of layers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.utils.checkpoint
from torch import Tensor

from ..common.arguments import checked_integer
from ..common.autograd import snapshot
from ..common.operands import check_dense, check_tensor
from ..graph import Graph
from ..graph_argument import GraphLike, as_graph
from . import sizes
from .rows import Kept, Place, Result, Source
from .topology import Tile, tile_from, tiles_of

KINDS = ("dst", "edge")


def tiled(
    function: Callable[..., Any],
    graph: GraphLike,
    *,
    src: Sequence[Tensor] = (),
    dst: Sequence[Tensor] = (),
    edge: Sequence[Tensor] = (),
    returns: str | Sequence[str] = "dst",
    tile: int | str = "auto",
    dim: int = 0,
) -> Any:
    """``function(graph, *src, *dst, *edge)``, computed for tiles of destinations.

    The function gets the Graph of a tile, from all sources to the tile's destinations, all rows of src, and the tile's rows of dst
    and edge. Memory of edges is that of one tile, in the forward and in the backward, which calls the function again. Results are
    those of a call on the whole graph within rounding, and repeat bitwise. Each destination's edges are in one tile, so that
    functions may reduce and normalize over them; they must not mix destinations, as batch norms in training do, and must not have
    a state, because they are called again. Parameters must not be modified before the backward. torch.func and forward-mode AD,
    which know no checkpoints, have the function called once, on the whole graph.

    Args:
        function: of tensors. It may read parameters of modules; dropout draws the same numbers in the backward.
        graph: the Graph, or a DGLGraph.
        src: tensors of one row per source, as (N_src, *).
        dst: of one row per destination, (N_dst, *).
        edge: of one row per edge, (E, *), in the order of edge data.
        returns: whether the function returns a row per destination of its graph, "dst", or per edge, "edge"; of several
            results one word each.
        tile: the most edges of a tile; a size in bytes such as "512MiB", for what is made of a tile's edges, which is measured
            on the first ones; "auto" is a quarter of the free memory. A destination is not divided: a tile holds one at least.
        dim: the dimension of rows in all tensors; 1 for tensors (B, N, *) of B copies of the graph.

    Returns:
        The result, or the tuple of results, with rows of all destinations (N_dst, *) or edges (E, *).

    Raises:
        TypeError, ValueError: an argument is not as above, a result has other rows than `returns` says, or another dtype or width
            on one tile than on another.
        RuntimeError, torch.OutOfMemoryError: a tile does not fit in memory.
    """
    g = as_graph(graph, "graph")
    kinds = _checked_kinds(returns)
    tile = sizes.checked_tile(tile)
    dim = checked_integer(dim, "dim", "the dimension of rows")
    if not callable(function):
        raise TypeError(f"function is {function!r}; expected a function of a Graph and tensors")
    src, dst, edge = (
        _checked_rows(name, tensors, dim, count)
        for name, tensors, count in (("src", src, g.num_src), ("dst", dst, g.num_dst), ("edge", edge, g.num_edges))
    )
    if _is_transformed():
        results = _checked_results(function(g, *src, *dst, *edge), kinds, Tile(g, 0, 0, None).place, dim)
        return results[0] if isinstance(returns, str) else results
    # What a backward reads again, even if it is modified in place meanwhile.
    sources = [snapshot(x) for x in src]
    kept = [Kept(x) for x in sources]

    def on_tile(part: Tile, dst: list[Tensor], edge: list[Tensor]) -> tuple[Tensor, ...]:
        for x in kept:
            x.check()
        return _checked_results(function(part.graph, *sources, *dst, *edge), kinds, part.place, dim)

    rows_of = [Source(x, dim) for x in dst], [Source(x, dim) for x in edge]
    if isinstance(tile, str):
        head = tile_from(g, 0, sizes.PROBED)
        rows = [[x.leaf(head.place(kind)) for x in xs] for kind, xs in zip(KINDS, rows_of)]
        beside = [*src, *dst, *edge, *rows[0], *rows[1]]
        per_edge = sizes.working_bytes(lambda: on_tile(head, *rows), head.graph.num_edges, beside)
        tile = sizes.edges_in(sizes.memory_for(tile, g.device), per_edge)
    if tile >= g.num_edges:
        results = _checked_results(function(g, *src, *dst, *edge), kinds, Tile(g, 0, 0, None).place, dim)
    else:
        results = tuple(run_tiles(g, tile, on_tile, *rows_of, [(kind, dim) for kind in kinds]))
    return results[0] if isinstance(returns, str) else results


# Of a tile and its rows of dst and edge: a tensor for each kind of result.
OnTile = Callable[[Tile, list[Tensor], list[Tensor]], Sequence[Tensor]]


def run_tiles(
    g: Graph,
    num_edges: int,
    function: OnTile,
    dst: Sequence[Source],
    edge: Sequence[Source],
    results: Sequence[tuple[str, int]],
) -> list[Tensor]:
    """The results of all rows. results: of each, whether rows are of "dst" or "edge", and their dimension."""
    found = [Result(g.num_dst if kind == "dst" else g.num_edges, dim) for kind, dim in results]
    for tile in tiles_of(g, num_edges):
        run = partial(_run, function, tile, dst, edge)
        rows = _checkpointed(run) if torch.is_grad_enabled() else run()
        for result, part, (kind, _) in zip(found, rows, results):
            result.put(part, tile.place(kind))
    return [result.tensor() for result in found]


def _checkpointed(run: Callable[[], Sequence[Tensor]]) -> Sequence[Tensor]:
    """run(), of which nothing is kept.

    The checkpoint of torch 2.11 leaves its hooks of saved tensors on while the traceback of an error lives that it let through,
    which a notebook keeps (findings/torch_checkpoint_raises.sh). So an error of the forward is returned, and raised here.
    """
    errors: list[BaseException] = []
    is_forward = True

    def attempt() -> Sequence[Tensor]:
        try:
            return run()
        except BaseException as error:
            if not is_forward:
                raise
            errors.append(error)
            return ()

    # PyTorch's checkpoint is looked up now: under a drop-in it is another.
    rows = torch.utils.checkpoint.checkpoint(attempt, use_reentrant=False)
    is_forward = False
    if errors:
        raise errors.pop()
    return rows


def _run(function: OnTile, tile: Tile, dst: Sequence[Source], edge: Sequence[Source]) -> Sequence[Tensor]:
    of_dst, of_edges = ([x.take(tile.place(kind)) for x in xs] for kind, xs in (("dst", dst), ("edge", edge)))
    try:
        return function(tile, of_dst, of_edges)
    except (torch.OutOfMemoryError, RuntimeError) as error:
        if not isinstance(error, torch.OutOfMemoryError) and "can't allocate memory" not in str(error):
            raise
        raise type(error)(
            f"a tile of {tile.graph.num_edges} edges does not fit in memory: set tile to fewer edges, or a smaller size ({error})"
        ) from error


def _is_transformed() -> bool:
    return torch._C._are_functorch_transforms_active() or torch.autograd.forward_ad._current_level >= 0


# ---- checks ------------------------------------------------------------------------------------------------------------------


def _checked_kinds(returns: Any) -> tuple[str, ...]:
    kinds = tuple(returns) if isinstance(returns, (list, tuple)) else (returns,)
    if not kinds or any(kind not in KINDS for kind in kinds):
        raise ValueError(f'returns is {returns!r}; expected "dst" or "edge", or several of these')
    return kinds


def _checked_rows(name: str, tensors: Any, dim: int, count: int) -> tuple[Tensor, ...]:
    if not isinstance(tensors, (list, tuple)):
        remedy = f": pass {name}=(x,)" if isinstance(tensors, Tensor) else ""
        raise TypeError(f"{name} is a {type(tensors).__name__}; expected a tuple or list of tensors{remedy}")
    for place, x in enumerate(tensors):
        check_tensor(x, f"{name}[{place}]")
        if not -x.dim() <= dim < x.dim() or x.shape[dim] != count:
            raise ValueError(
                f"{name}[{place}] has shape {tuple(x.shape)}; expected {count} rows in dimension {dim}, those of the graph"
            )
    return tuple(tensors)


def _checked_results(
    found: Any, kinds: Sequence[str], place_of: Callable[[str], Place], dim: int
) -> tuple[Tensor, ...]:
    if not isinstance(found, (Tensor, tuple, list)):
        raise TypeError(f"function returned a {type(found).__name__}; expected a tensor, or a tuple of them")
    results = (found,) if isinstance(found, Tensor) else tuple(found)
    if len(results) != len(kinds):
        raise ValueError(f"function returned {len(results)} tensors; expected {len(kinds)}, as returns says")
    for place, (x, kind) in enumerate(zip(results, kinds)):
        check_tensor(x, f"result {place} of function")
        check_dense(x, f"result {place} of function")
        count = place_of(kind).num_rows
        if not -x.dim() <= dim < x.dim() or x.shape[dim] != count:
            raise ValueError(
                f"result {place} of function has shape {tuple(x.shape)}; expected {count} rows in dimension {dim}: one for each "
                f"{'destination' if kind == 'dst' else 'edge'} of the graph that it was given"
            )
    return results
