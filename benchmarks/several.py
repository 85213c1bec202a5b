"""Several reductions of neighbours' features: the mean, the largest, the smallest value and the standard deviation, as
PNA takes them.

* ``halfgnn``: copy_u_reduce.
* ``halfgnn, separate``: one operator after the other; the deviation of two means, as torch_geometric's StdAggregation.
* ``halfgnn, one max``: copy_u_max alone, for comparison.
* ``pyg``: torch_geometric's MultiAggregation of the gathered features.
* ``dgl``: dgl.ops, one after the other.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from halfgnn import ops, reference

from . import verify
from .baselines.dgl import check_dgl
from .baselines.registry import check_messages
from .case import Backend, Case, Config
from .graphs import BenchGraph
from .inputs import directed, normal
from .operators import Problem
from .optional import import_dgl, import_pyg

NAMES = ("mean", "max", "min", "std")
Several = Callable[[Tensor], Any]


def _deviation(mean: Tensor, mean_of_squares: Tensor) -> Tensor:
    var = mean_of_squares - mean * mean
    small = var <= 1e-5
    return torch.where(small, 0.0, torch.where(small, 1.0, var).sqrt())


def _separate(library: Any, graph: Any) -> Several:
    def work(x: Tensor) -> tuple[Tensor, ...]:
        mean, largest, smallest = (getattr(library, f"copy_u_{name}")(graph, x) for name in NAMES[:3])
        return mean, largest, smallest, _deviation(mean, library.copy_u_mean(graph, x * x))

    return work


def _dgl(problem: Problem) -> Several:
    check_dgl(problem.graph, problem.dtype)
    return _separate(import_dgl().ops, problem.graph.dgl)


def _pyg(problem: Problem) -> Several:
    graph = problem.graph
    check_messages(6 * problem.message_bytes, graph.device)
    src, dst = graph.edge_index
    aggregation = import_pyg().nn.aggr.MultiAggregation(list(NAMES))
    return lambda x: aggregation(x.index_select(0, src), dst, dim_size=graph.num_nodes).chunk(len(NAMES), -1)


IMPLEMENTATIONS: dict[str, Callable[[Problem], Several]] = {
    "halfgnn": lambda p: functools.partial(ops.copy_u_reduce, p.graph.halfgnn, reduces=NAMES),
    "halfgnn, separate": lambda p: _separate(ops, p.graph.halfgnn),
    "halfgnn, one max": lambda p: functools.partial(ops.copy_u_max, p.graph.halfgnn),
    "pyg": _pyg,
    "dgl": _dgl,
}


def _work(problem: Problem, name: str) -> Callable[[], Any]:
    function, (x,) = IMPLEMENTATIONS[name](problem), problem.operands()
    if problem.is_forward:
        return lambda: function(x)
    if name == "halfgnn, one max":
        return directed(problem.direction, function, (x,))
    leaf = x.clone().requires_grad_()
    out = function(leaf)
    upstream = [normal(tuple(o.shape), o.dtype, 5, o.device.type) for o in out]
    return lambda: torch.autograd.grad(out, leaf, upstream, retain_graph=True)


def _check(problem: Problem, name: str, results: tuple[Tensor, ...]) -> float:
    """The largest relative error. DGL gives infinities to nodes without in-edges."""
    sample, (x,) = verify.sample(problem.graph), problem.operands()
    truths = reference.copy_u_reduce(sample.graph, sample.take(x, "u").double(), NAMES)
    errors = []
    for out, truth in zip(results, truths):
        rows = sample.take(out, "v")
        errors.append(verify.relative_error(rows.masked_fill(rows.isinf(), 0), truth))
    if name == "halfgnn" and max(errors) > torch.finfo(problem.dtype).eps * 4:
        raise verify.WrongResult(f"copy_u_reduce, {problem.dtype}: the error is {max(errors):.3g}")
    return max(errors)


def _backend(problem: Problem, name: str) -> Backend:
    is_checked = problem.is_forward and name != "halfgnn, one max"
    check = functools.partial(_check, problem, name) if is_checked else None
    return Backend(name, problem.dtype, functools.partial(_work, problem, name), check)


def _backends(config: Config, graph: BenchGraph, dim: int, direction: str) -> list[Backend]:
    return [
        _backend(Problem("copy_u_sum", direction, graph, 1, dim, dtype), name)
        for dtype in config.torch_dtypes(dim)
        for name in IMPLEMENTATIONS
    ]


def cases(config: Config) -> Iterator[Case]:
    for name in config.graphs:
        graph = config.graph(name, config.orders[0])
        for dim in config.dims:
            for direction in ("forward", "backward"):
                backends = _backends(config, graph, dim, direction)
                yield Case("several", "copy_u_reduce", direction, graph, 1, dim, backends)
