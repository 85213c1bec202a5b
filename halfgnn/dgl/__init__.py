"""Drop-in acceleration of DGL: unmodified ``dgl.nn`` modules on halfgnn's kernels.

::

    import halfgnn.dgl

    halfgnn.dgl.patch()             # from here on; or inside `with halfgnn.dgl.accelerate():` only
    loss = model(graph, features)   # any DGL model, half precision and autocast included
    print(halfgnn.dgl.stats())      # what was routed, what was left to DGL, and why

With ``patch(fuse=True)`` or ``accelerate(fuse=True)`` GATConv, GATv2Conv and DotGatConv of dgl.nn run the fused attentions of
:mod:`halfgnn.ops`, which keep nothing of the size of the edges. A subclass with a forward of its own keeps that forward.

:func:`patch` replaces the functions through which all of DGL's built-in message passing goes: ``dgl.backend.gspmm``, ``gsddmm``,
``edge_softmax``, ``segment_reduce`` and their ``*_hetero`` forms, under every name that DGL has for them. halfgnn computes the
types and operators that it has, and DGL's own code computes the rest. Graphs, blocks, single relations of a heterograph and calls
on a whole heterograph are covered. User-defined message and reduce functions are left to DGL.

Results are DGL's, with these intended differences:

* Half inputs are computed in fp32 and rounded once, and ``mean`` divides before it rounds.
* fp16 and autocast work on the CPU, and half features take fp32 edge weights.
* Nodes without in-edges under ``max`` and ``min`` get in fp16 what they get in every other type: infinity from ``dgl.ops``, zero
  from ``update_all``. DGL gives -65504 or 65504. (The operators of ``halfgnn.ops`` give zero.)
* Gradients of ``max`` and ``min`` go to the first of equal messages. DGL's CPU code may pick the last.
* A second derivative of max, min, edge softmax or fused attention raises an error.

``dgl`` is imported by :func:`patch`, not by this package.
"""

from __future__ import annotations

import contextlib
import importlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

from ..dgl_index import relation_index
from . import modules, operators
from .accounts import reset_stats, stats
from .topology import graph_from_dgl, heterograph_from_dgl

__all__ = ["accelerate", "graph_from_dgl", "heterograph_from_dgl", "patch", "reset_stats", "stats", "unpatch"]

_Replacement = tuple[str, Callable[..., Any], list[tuple[str, str]]]


def _backend(api: str, stand_in: Callable[..., Any], *bound: tuple[str, str]) -> _Replacement:
    """The replacement of an operator of DGL's backend, under its three names there and wherever else it is `bound`."""
    modules = ("dgl.backend.pytorch.sparse", "dgl.backend.pytorch", "dgl.backend")
    return (api, stand_in, [*((module, api) for module in modules), *bound])


# What is replaced: the key of the original in `operators.ORIGINALS`, its stand-in, and all (module, name) bound to it.
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
    # One level up, where DGL has not yet made a mean into a sum, which it would round to half before it divides.
    ("ops.gspmm", operators.gspmm_of_graph, [("dgl.ops.spmm", "gspmm"), ("dgl.ops", "gspmm")]),
    (
        "ops.segment_reduce",
        operators.segment_reduce_of_lengths,
        [("dgl.ops.segment", "segment_reduce"), ("dgl.ops", "segment_reduce")],
    ),
    # These are only counted.
    ("invoke_edge_udf", operators.invoke_edge_udf, [("dgl.core", "invoke_edge_udf")]),
    ("invoke_udf_reduce", operators.invoke_udf_reduce, [("dgl.core", "invoke_udf_reduce")]),
]

# Forwards of modules, which fuse=True replaces: module, class, stand-in.
_FUSED: list[tuple[str, str, Callable[..., Any]]] = [
    ("dgl.nn.pytorch.conv.gatconv", "GATConv", modules.gat_conv),
    ("dgl.nn.pytorch.conv.gatv2conv", "GATv2Conv", modules.gatv2_conv),
    ("dgl.nn.pytorch.conv.dotgatconv", "DotGatConv", modules.dot_gat_conv),
]

_Undo = list[tuple[Any, str, Any]]  # (owner, name, original) of all that is replaced now

_undo: _Undo = []  # of operators
_undo_fused: _Undo = []  # of modules
_lock = threading.RLock()
_patched = False  # by patch()
_patched_fused = False  # by patch(fuse=True)
_accelerating = 0  # blocks of accelerate() that are open, in all threads
_accelerating_fused = 0  # those with fuse=True


def _import_dgl() -> Any:
    try:
        dgl = importlib.import_module("dgl")
    except ImportError as error:
        raise ImportError(
            f"halfgnn.dgl.patch() needs DGL (from PyPI: pip install dgl==1.1.3), which cannot be imported: {error}"
        ) from error
    if dgl.backend.backend_name != "pytorch":
        raise RuntimeError(f"DGL's backend is {dgl.backend.backend_name}; expected pytorch")
    return dgl


def _replace(undo: _Undo, owner: Any, name: str, stand_in: Callable[..., Any]) -> None:
    undo.append((owner, name, getattr(owner, name)))
    setattr(owner, name, stand_in)


def patch(fuse: bool = False) -> None:
    """Routes DGL's message passing through halfgnn, in the whole process, until :func:`unpatch`.

    A second call can only add `fuse`. Modules and graphs that were made before are covered too.

    Args:
        fuse: run GATConv, GATv2Conv and DotGatConv fused. Calls with get_attention or an edge_weight are not fused, nor are modules
            whose attn_drop or leaky_relu is exchanged or has hooks: they run DGL's forward, operator by operator. In fused calls
            the dropout of attention weights draws other numbers than DGL's under the same seed. Results are copies where those of
            DGL would be new tensors.

    Raises:
        ImportError: DGL cannot be imported.
        RuntimeError: DGL runs on another backend than PyTorch.
    """
    global _patched, _patched_fused
    with _lock:
        _install(fuse)
        _patched = True
        _patched_fused = _patched_fused or fuse


def unpatch() -> None:
    """Gives DGL its own functions back, as soon as no :func:`accelerate` block is open."""
    global _patched, _patched_fused
    with _lock:
        _patched = _patched_fused = False
        _restore_unused()


@contextlib.contextmanager
def accelerate(fuse: bool = False) -> Iterator[None]:
    """:func:`patch` for a ``with`` block or a decorated function.

    Like patch() it acts on the whole process: other threads are routed too while a block is open. Blocks may be nested and may
    overlap.
    """
    global _accelerating, _accelerating_fused
    with _lock:
        _install(fuse)
        _accelerating += 1
        _accelerating_fused += fuse
    try:
        yield
    finally:
        with _lock:
            _accelerating -= 1
            _accelerating_fused -= fuse
            _restore_unused()


def _install(fuse: bool) -> None:
    try:
        if not _undo:
            _install_operators()
        if fuse and not _undo_fused:
            _install_fused()
    except BaseException:
        _restore_unused()
        raise


def _install_operators() -> None:
    dgl = _import_dgl()
    for key, stand_in, places in _REPLACEMENTS:
        # By import, because dgl.ops.edge_softmax as an attribute is a function and not the module.
        owners = [(importlib.import_module(module), name) for module, name in places]
        operators.ORIGINALS[key] = getattr(*owners[0])
        for owner, name in owners:
            _replace(_undo, owner, name, stand_in)
    # update_all slices the graph at every call. Without this replacement every slice would be converted again.
    _replace(_undo, dgl.heterograph_index.HeteroGraphIndex, "get_relation_graph", relation_index)


def _install_fused() -> None:
    for module, name, stand_in in _FUSED:
        owner = getattr(importlib.import_module(module), name)
        operators.ORIGINALS[f"nn.{name}"] = owner.forward
        _replace(_undo_fused, owner, "forward", stand_in)


def _restore_unused() -> None:
    """Restores what neither patch() nor an open block needs."""
    if not _patched_fused and not _accelerating_fused:
        _restore(_undo_fused)
    if not _patched and not _accelerating:
        _restore(_undo)


def _restore(undo: _Undo) -> None:
    while undo:
        owner, name, original = undo.pop()
        setattr(owner, name, original)
