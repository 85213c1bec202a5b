"""Drop-in acceleration of DGL: unmodified ``dgl.nn`` modules on halfgnn's kernels.

::

    import halfgnn.dgl

    halfgnn.dgl.patch()             # from here on; or inside `with halfgnn.dgl.accelerate():` only
    loss = model(graph, features)   # any DGL model, half precision and autocast included
    print(halfgnn.dgl.stats())      # what was routed, what was left to DGL, and why

With ``patch(fuse=True)`` or ``accelerate(fuse=True)`` GATConv, GATv2Conv and DotGatConv of dgl.nn run the fused attentions of
:mod:`halfgnn.ops`, which keep nothing of the size of the edges; subclasses with a forward of their own keep it.

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

from ..dgl_index import relation_index
from . import modules, operators
from .accounts import reset_stats, stats
from .topology import graph_from_dgl, heterograph_from_dgl

__all__ = ["accelerate", "graph_from_dgl", "heterograph_from_dgl", "patch", "reset_stats", "stats", "unpatch"]

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

# Forwards of modules, replaced only if asked for: module, class, stand-in.
_FUSED: list[tuple[str, str, Callable[..., Any]]] = [
    ("dgl.nn.pytorch.conv.gatconv", "GATConv", modules.gat_conv),
    ("dgl.nn.pytorch.conv.gatv2conv", "GATv2Conv", modules.gatv2_conv),
    ("dgl.nn.pytorch.conv.dotgatconv", "DotGatConv", modules.dot_gat_conv),
]

_Undo = list[tuple[Any, str, Any]]  # (owner, name, original) of what is replaced now

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
        raise RuntimeError(f"halfgnn.dgl needs DGL's pytorch backend, not {dgl.backend.backend_name}")
    return dgl


def _replace(undo: _Undo, owner: Any, name: str, stand_in: Callable[..., Any]) -> None:
    undo.append((owner, name, getattr(owner, name)))
    setattr(owner, name, stand_in)


def patch(fuse: bool = False) -> None:
    """Routes DGL's message passing through halfgnn, in the whole process, until :func:`unpatch`.

    A second call does nothing, but for adding `fuse`. Modules and graphs made before it are covered too.

    Args:
        fuse: run GATConv, GATv2Conv and DotGatConv fused. Calls with get_attention or an edge_weight are not, nor modules whose
            attn_drop or leaky_relu is exchanged or has hooks: they run DGL's forward, operator by operator. Dropout of attention
            weights then draws other numbers than DGL's under the same seed. Results are copied where DGL's would be new tensors.

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
    """Gives DGL its own functions back, once no :func:`accelerate` block is open any more."""
    global _patched, _patched_fused
    with _lock:
        _patched = _patched_fused = False
        _restore_unused()


@contextlib.contextmanager
def accelerate(fuse: bool = False) -> Iterator[None]:
    """:func:`patch` for a ``with`` block or a decorated function.

    Of the whole process, like patch(): other threads are routed too while a block is open. Blocks may be nested and may overlap.
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
        # The module, not an attribute of its parent: dgl.ops.edge_softmax is a function.
        owners = [(importlib.import_module(module), name) for module, name in places]
        operators.ORIGINALS[key] = getattr(*owners[0])
        for owner, name in owners:
            _replace(_undo, owner, name, stand_in)
    # update_all slices the graph on every call; without this every slice is converted anew.
    _replace(_undo, dgl.heterograph_index.HeteroGraphIndex, "get_relation_graph", relation_index)


def _install_fused() -> None:
    for module, name, stand_in in _FUSED:
        owner = getattr(importlib.import_module(module), name)
        operators.ORIGINALS[f"nn.{name}"] = owner.forward
        _replace(_undo_fused, owner, "forward", stand_in)


def _restore_unused() -> None:
    """Takes back what neither patch() nor an open block asks for."""
    if not _patched_fused and not _accelerating_fused:
        _restore(_undo_fused)
    if not _patched and not _accelerating:
        _restore(_undo)


def _restore(undo: _Undo) -> None:
    while undo:
        owner, name, original = undo.pop()
        setattr(owner, name, original)
