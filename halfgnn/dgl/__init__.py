"""Drop-in acceleration of DGL: unmodified ``dgl.nn`` modules on halfgnn's kernels.

::

    import halfgnn.dgl

    halfgnn.dgl.patch()             # from here on; or inside `with halfgnn.dgl.accelerate():` only
    loss = model(graph, features)   # any DGL model, half precision and autocast included
    print(halfgnn.dgl.stats())      # what was routed, what fell back to DGL, and why

With ``patch(fuse=True)`` or ``accelerate(fuse=True)`` GATConv, GATv2Conv and DotGatConv of dgl.nn run the fused attentions of
:mod:`halfgnn.ops`, which keep nothing of the size of the edges. A subclass with a forward of its own keeps that forward.

:func:`patch` replaces the functions through which all of DGL's built-in message passing goes: ``dgl.backend.gspmm``, ``gsddmm``,
``edge_softmax``, ``segment_reduce`` and their ``*_hetero`` forms, under every name that DGL has for them. halfgnn computes the
types and operators that it has, and DGL's own code computes the rest. Graphs, blocks, single relations of a heterograph and calls
on a whole heterograph are covered. User-defined message and reduce functions fall back to DGL.

Results are DGL's, with these intended differences:

* Half inputs are computed in fp32 and rounded once, and ``mean`` divides before it rounds.
* fp16 and autocast work on the CPU. Half and fp32 operands go together: sums have the dtype of the nodes' data, results of edges
  are fp32.
* Nodes without in-edges under ``max`` and ``min`` get in fp16 what they get in every other type: infinity from ``dgl.ops``, zero
  from ``update_all``. DGL gives -65504 or 65504. (The operators of ``halfgnn.ops`` give zero.)
* Gradients of ``max`` and ``min`` go to the first of equal messages. DGL's CPU code may pick the last.

Under torch.compile, which cannot trace DGL's graphs, the operators run on halfgnn between the compiled parts of a model. With
``fuse=True`` compiled modules run DGL's own forward on these operators.

``dgl`` is imported by :func:`patch`, not by this package.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable
from typing import Any

from ..dgl_index import relation_index
from ..drop_in import products as drop_in_products
from ..drop_in.compiled import leave_out
from ..drop_in.switch import Switch, as_option
from ..drop_in.wrappers import Bindings, Route, wrapper
from . import modules, operators
from .accounts import accounts as _accounts
from .accounts import reset_stats, stats
from .installed import import_dgl
from .partitions import convert_partition
from .topology import graph_from_dgl, heterograph_from_dgl

__all__ = [
    "accelerate",
    "convert_partition",
    "graph_from_dgl",
    "heterograph_from_dgl",
    "patch",
    "reset_stats",
    "stats",
    "unpatch",
]

_UNTRACED = (
    "DGL's graphs are handles of C++ objects, which cannot be traced. Call the layer outside the compiled function."
)
_Replacement = tuple[str, Callable[..., Any], list[tuple[str, str]]]


def _backend(api: str, operator: Callable[..., Any], *bound: tuple[str, str]) -> _Replacement:
    """The replacement of an operator of DGL's backend, under its three names there and wherever else it is `bound`."""
    modules = ("dgl.backend.pytorch.sparse", "dgl.backend.pytorch", "dgl.backend")
    return (api, operator, [*((module, api) for module in modules), *bound])


# What is replaced: the key of the original in `operators.ORIGINALS`, its wrapper, and all (module, name) bound to it.
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


def _instead(forward: Callable[..., Any]) -> Route:
    """The route to a forward that finds the original by itself. Code that is compiled runs the original: see `wrapper`."""
    return lambda original, *args, **kwargs: forward(*args, **kwargs)


# Forwards of modules, which fuse=True replaces: module, class, route.
_FUSED: list[tuple[str, str, Route]] = [
    ("dgl.nn.pytorch.conv.gatconv", "GATConv", _instead(modules.gat_conv)),
    ("dgl.nn.pytorch.conv.gatv2conv", "GATv2Conv", _instead(modules.gatv2_conv)),
    ("dgl.nn.pytorch.conv.dotgatconv", "DotGatConv", _instead(modules.dot_gat_conv)),
]


def patch(fuse: bool | None = None, products: str | None = None) -> None:
    """Routes DGL's message passing through halfgnn, in the whole process, until :func:`unpatch`.

    A second call can only add options: fuse=False after fuse=True warns and changes nothing. Modules and graphs that were made
    before are covered too.

    Args:
        fuse: True runs GATConv, GATv2Conv and DotGatConv fused; None and False do not. Calls with get_attention or an edge_weight
            are not fused, nor are modules whose attn_drop or leaky_relu is exchanged or has hooks: they run DGL's forward, operator
            by operator. In fused calls the dropout of attention weights draws other numbers than DGL's under the same seed. Results
            are copies where those of DGL would be new tensors.
        products: "fp32" makes matrix products in half precision on the CPU in fp32 and rounds their results once, if products of
            that half type are slow on this processor: those of torch.nn.functional.linear, torch.matmul and ``@``, torch.mm and
            torch.addmm, in the whole process. Under autocast weights are not rounded. None leaves them to PyTorch.

    Raises:
        ImportError: DGL cannot be imported.
        RuntimeError: DGL runs on another backend than PyTorch, or dgl is halfgnn's own, of halfgnn.compat.
        ValueError: fuse is not None, True or False; products is neither None nor "fp32".
    """
    _switch.patch(**_chosen(fuse, products))


def unpatch() -> None:
    """Gives DGL its own functions back, as soon as no :func:`accelerate` block is open."""
    _switch.unpatch()


def accelerate(fuse: bool | None = None, products: str | None = None) -> contextlib.AbstractContextManager[None]:
    """:func:`patch` for a ``with`` block or a decorated function.

    Like patch() it acts on the whole process: other threads are routed too while a block is open. Blocks may be nested and may
    overlap. To enter and leave one takes milliseconds: it belongs around a loop, not into it.
    """
    return _switch.accelerate(**_chosen(fuse, products))


def _chosen(fuse: Any, products: Any) -> dict[str, Any]:
    """The options as a Switch takes them."""
    return {"fuse": as_option("fuse", fuse, None, True, False), "products": drop_in_products.is_fp32(products) or None}


def _install_operators(bindings: Bindings) -> None:
    dgl = import_dgl("halfgnn.dgl.patch()")
    for key, operator, places in _REPLACEMENTS:
        # By import, because dgl.ops.edge_softmax as an attribute is a function and not the module.
        owners = [(importlib.import_module(module), name) for module, name in places]
        operators.ORIGINALS[key] = getattr(*owners[0])
        for owner, name in owners:
            bindings.bind(owner, name, leave_out(operator, _UNTRACED))
    # update_all slices the graph at every call. Without this replacement every slice would be converted again.
    relation = leave_out(relation_index, _UNTRACED)
    bindings.bind(dgl.heterograph_index.HeteroGraphIndex, "get_relation_graph", relation)


def _install_fused(bindings: Bindings) -> None:
    for module, name, route in _FUSED:
        owner = getattr(importlib.import_module(module), name)
        operators.ORIGINALS[f"nn.{name}"] = owner.forward
        bindings.bind(owner, "forward", wrapper(owner.forward, route))


_switch = Switch(
    _install_operators,
    {"fuse": _install_fused, "products": drop_in_products.installer(_accounts)},
    shared={"products": (drop_in_products.STAND_INS, _accounts)},
)
