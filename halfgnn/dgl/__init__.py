"""Drop-in acceleration of DGL: unmodified ``dgl.nn`` modules on halfgnn's kernels.

::

    import halfgnn.dgl

    halfgnn.dgl.patch()             # from here on; or inside `with halfgnn.dgl.accelerate():` only
    loss = model(graph, features)   # any DGL model, half precision and autocast included
    print(halfgnn.dgl.stats())      # what was routed, what was left to DGL, and why

:func:`patch` replaces the functions through which all of DGL's built-in message passing goes
(``dgl.backend.gspmm``, ``gsddmm``, ``edge_softmax``, ``segment_reduce`` and their ``*_hetero``
forms, under every name that DGL keeps for them). Types and operators that halfgnn has are computed
by it, the rest by DGL's own code, untouched. Graphs, blocks, single relations of a heterograph and
calls on a whole heterograph are covered; user-defined message and reduce functions stay DGL's.

Results are DGL's, with these intended differences:

* half inputs are computed in fp32 and rounded once, and ``mean`` divides before it rounds;
* fp16 and autocast work on the CPU, and half features take fp32 edge weights;
* nodes without in-edges under ``max`` and ``min`` in fp16 are treated as in every other type, where
  DGL leaves -65504 or 65504: infinite from ``dgl.ops``, zero from ``update_all``. (The operators of
  ``halfgnn.ops`` give zero.)
* gradients of ``max`` and ``min`` go to the first of equal messages, where DGL's CPU code may pick
  the last;
* a second derivative raises.

``dgl`` is imported by :func:`patch`, not by this package.
"""

from __future__ import annotations

import contextlib
import importlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

from . import operators
from .accounts import reset_stats, stats
from .topology import graph_from_dgl, relation_graph

__all__ = ["accelerate", "graph_from_dgl", "patch", "reset_stats", "stats", "unpatch"]

_Replacement = tuple[str, Callable[..., Any], list[tuple[str, str]]]


def _backend(api: str, stand_in: Callable[..., Any], *bound: tuple[str, str]) -> _Replacement:
    """Replaces an operator of DGL's backend under its three names there and where it is `bound`."""
    modules = ("dgl.backend.pytorch.sparse", "dgl.backend.pytorch", "dgl.backend")
    return (api, stand_in, [*((module, api) for module in modules), *bound])


# What is replaced: key of the original in `operators.ORIGINALS`, stand-in, all that is bound to it.
_REPLACEMENTS: list[_Replacement] = [
    _backend("gspmm", operators.gspmm, ("dgl.ops.spmm", "gspmm_internal")),
    _backend("gspmm_hetero", operators.gspmm_hetero, ("dgl.ops.spmm", "gspmm_internal_hetero")),
    _backend("gsddmm", operators.gsddmm, ("dgl.ops.sddmm", "gsddmm_internal")),
    _backend("gsddmm_hetero", operators.gsddmm_hetero, ("dgl.ops.sddmm", "gsddmm_internal_hetero")),
    _backend("edge_softmax", operators.edge_softmax, ("dgl.ops.edge_softmax", "edge_softmax_internal")),
    _backend(
        "edge_softmax_hetero",
        operators.edge_softmax_hetero,
        ("dgl.ops.edge_softmax", "edge_softmax_hetero_internal"),
    ),
    _backend("segment_reduce", operators.segment_reduce),
    # One level up, where a mean is still a mean: DGL divides a sum that has been rounded to half.
    ("ops.gspmm", operators.gspmm_of_graph, [("dgl.ops.spmm", "gspmm"), ("dgl.ops", "gspmm")]),
    (
        "ops.segment_reduce",
        operators.segment_reduce_of_lengths,
        [("dgl.ops.segment", "segment_reduce"), ("dgl.ops", "segment_reduce")],
    ),
    # Only to be counted.
    ("invoke_edge_udf", operators.invoke_edge_udf, [("dgl.core", "invoke_edge_udf")]),
    ("invoke_udf_reduce", operators.invoke_udf_reduce, [("dgl.core", "invoke_udf_reduce")]),
]

_undo: list[tuple[Any, str, Any]] = []  # (owner, name, original) of what is replaced now
_lock = threading.RLock()
_patched = False  # by patch()
_accelerating = 0  # blocks of accelerate() that are open, in all threads


def _import_dgl() -> Any:
    try:
        dgl = importlib.import_module("dgl")
    except ImportError as error:
        raise ImportError(
            f"halfgnn.dgl.patch() needs DGL (from PyPI: pip install dgl==1.1.3), which cannot be imported: {error}"
        ) from error
    if dgl.backend.backend_name != "pytorch":
        raise RuntimeError(f"halfgnn.dgl needs DGL's pytorch backend, not {dgl.backend.backend_name}")
    return dgl


def _replace(owner: Any, name: str, stand_in: Callable[..., Any]) -> None:
    _undo.append((owner, name, getattr(owner, name)))
    setattr(owner, name, stand_in)


def patch() -> None:
    """Routes DGL's message passing through halfgnn, in the whole process, until :func:`unpatch`.

    A second call does nothing. Modules and graphs made before it are covered too.

    Raises:
        ImportError: DGL cannot be imported.
        RuntimeError: DGL runs on another backend than PyTorch.
    """
    global _patched
    with _lock:
        _install()
        _patched = True


def unpatch() -> None:
    """Gives DGL its own functions back, once no :func:`accelerate` block is open any more."""
    global _patched
    with _lock:
        _patched = False
        if not _accelerating:
            _restore()


@contextlib.contextmanager
def accelerate() -> Iterator[None]:
    """:func:`patch` for a ``with`` block or a decorated function.

    Of the whole process, like patch(): other threads are routed too while a block is open. Blocks may be nested and may overlap.
    """
    global _accelerating
    with _lock:
        _install()
        _accelerating += 1
    try:
        yield
    finally:
        with _lock:
            _accelerating -= 1
            if not _accelerating and not _patched:
                _restore()


def _install() -> None:
    if _undo:
        return
    dgl = _import_dgl()
    try:
        for key, stand_in, places in _REPLACEMENTS:
            # The module, not an attribute of its parent: dgl.ops.edge_softmax is a function.
            owners = [(importlib.import_module(module), name) for module, name in places]
            operators.ORIGINALS[key] = getattr(*owners[0])
            for owner, name in owners:
                _replace(owner, name, stand_in)
        # update_all slices the graph on every call; without this every slice is converted anew.
        _replace(dgl.heterograph_index.HeteroGraphIndex, "get_relation_graph", relation_graph)
    except BaseException:
        _restore()
        raise


def _restore() -> None:
    while _undo:
        owner, name, original = _undo.pop()
        setattr(owner, name, original)
