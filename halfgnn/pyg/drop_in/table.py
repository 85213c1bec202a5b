"""Drop-in acceleration of torch_geometric, see :func:`patch`."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch_geometric import nn
from torch_geometric.nn.aggr.fused import FusedAggregation
from torch_geometric.nn.models import schnet

from ...drop_in import products as drop_in_products
from ...drop_in.switch import Bindings, Functions, Route, Switch, as_option, stand_in
from . import functions  # noqa: F401  # what PyTorch's functions do with messages
from .accounts import accounts
from .adapters import aggregations as _aggregations
from .adapters import attention_modules as _fused
from .adapters import edge_index as _remembered
from .adapters import edge_networks as _fused_networks
from .adapters import index_add as _added
from .adapters import indexing as _indexing
from .adapters import scatter as _operators
from .adapters import softmax as _softmax
from .adapters import spmm as _products
from .message import Message, guard_autograd, on_tensors

# Functions, which are replaced under every name that any module has for them: module, name, stand-in.
_FUNCTIONS: list[tuple[str, str, Route]] = [
    ("torch_geometric.utils", "scatter", _operators.scatter),
    ("torch_geometric.utils", "segment", _operators.segment),
    ("torch_geometric.utils", "softmax", _softmax.softmax),
    ("torch_geometric.utils", "spmm", _products.spmm),
    ("torch_geometric.edge_index", "_spmm", _products.edge_index_spmm),
    ("torch._functorch.vmap", "_add_batch_dim", on_tensors),
    ("torch._functorch.eager_transforms", "_wrap_for_grad", on_tensors),
    ("torch", "index_select", _indexing.index_select),
    ("torch", "index_add", _added.index_add),
    ("torch", "scatter_add", _added.scatter_add),
    ("torch", "scatter_reduce", _added.scatter_reduce),
    ("torch_geometric.utils", "add_self_loops", _remembered.self_loops),
    ("torch_geometric.utils", "remove_self_loops", _remembered.self_loops),
    ("torch_geometric.utils", "add_remaining_self_loops", _remembered.self_loops),
    ("torch_geometric.nn.conv.gcn_conv", "gcn_norm", _remembered.gcn_norm),
    ("torch_geometric.utils", "get_laplacian", _remembered.laplacian),
]

_METHODS: list[tuple[type, str, Route]] = [
    (nn.MessagePassing, "_check_input", _operators.check_input),
    (nn.MessagePassing, "_index_select", _operators.index_select),
    (nn.aggr.VarAggregation, "forward", _aggregations.variance),
    (FusedAggregation, "forward", _aggregations.variance),
    (nn.aggr.MultiAggregation, "forward", _aggregations.several),
]

# Modules whose forwards are replaced, unless fuse=False.
_FUSED: list[tuple[type[torch.nn.Module], Route]] = [
    (nn.GATConv, _fused.gat_conv),
    (nn.GATv2Conv, _fused.gatv2_conv),
    (nn.TransformerConv, _fused.transformer_conv),
    (nn.EdgeConv, _fused_networks.edge_conv),
    (schnet.CFConv, _fused_networks.cf_conv),
]


def patch(fuse: bool | None = None, half: bool = False, products: str | None = None) -> None:
    """Routes torch_geometric's message passing through halfgnn, in the whole process, until :func:`unpatch`.

    Results are torch_geometric's, up to what docs/pyg.md says, and have its dtypes. A second call can only add options: fuse=False
    after fuse=True or None warns and changes nothing. Modules that were made before are covered too.

    Args:
        fuse: None runs attention as one operator wherever that computes the same numbers faster: GATConv, GATv2Conv and
            TransformerConv of torch_geometric.nn, and what messages write by hand, in evaluation or without dropout. True does so
            with dropout too, whose random numbers are then halfgnn's, and always; it runs large EdgeConvs and SchNet's CFConvs on
            ops.edge_network, which keeps nothing per edge; and rows that a program takes itself, by a row of an edge_index, are not
            formed if they are only combined and summed. False keeps all steps, of which each can be read.
        half: under autocast gather and return messages' sums in autocast's dtype, also those that torch_geometric keeps in fp32:
            features that no layer has projected, and products with fp32 weights. It halves the memory of such features, and rounds
            at each of the layers that only propagate (LightGCN, LabelPropagation, CorrectAndSmooth).
        products: "fp32" makes matrix products of halves on the CPU in fp32 and rounds their results once, if products of that half
            type are slow on this processor: those of torch.nn.functional.linear, torch.matmul and ``@``, torch.mm and torch.addmm,
            in the whole process. Under autocast weights are not rounded. None leaves them to PyTorch.

    Raises:
        ValueError: fuse is not None, True or False; half is not True or False; products is neither None nor "fp32".
    """
    _switch.patch(**_chosen(fuse, half, products))


def unpatch() -> None:
    """Gives torch_geometric its own functions back, as soon as no :func:`accelerate` block is open."""
    _switch.unpatch()


def accelerate(
    fuse: bool | None = None, half: bool = False, products: str | None = None
) -> contextlib.AbstractContextManager[None]:
    """:func:`patch` for a ``with`` block or a decorated function.

    Like patch() it acts on the whole process: other threads are routed too while a block is open. Blocks may be nested and may
    overlap. To enter and leave one takes milliseconds: it belongs around a loop, not into it.
    """
    return _switch.accelerate(**_chosen(fuse, half, products))


def _chosen(fuse: Any, half: Any, products: Any) -> dict[str, Any]:
    """The options as a Switch takes them."""
    return {
        "fuse": as_option("fuse", fuse, None, True, False) is not False,
        "fuse_all": fuse or None,
        "half": as_option("half", half, True, False) or None,
        "products": drop_in_products.is_fp32(products) or None,
    }


def _install(bindings: Bindings) -> None:
    guard_autograd()
    _functions.bind(bindings)
    for owner, name, route in _METHODS:
        bindings.bind(owner, name, stand_in(getattr(owner, name), route))
    _indexing.install(bindings)
    _added.install(bindings)


def _install_fused(bindings: Bindings) -> None:
    bindings.bind(_operators, "FUSE", True)
    for owner, route in _FUSED:
        bindings.bind(owner, "forward", stand_in(owner.forward, route))


def _install_fused_all(bindings: Bindings) -> None:
    bindings.bind(_operators, "FUSE_ALL", True)


def _install_half(bindings: Bindings) -> None:
    bindings.bind(_operators, "IN_HALF", True)


drop_in_products.READERS[Message] = lambda message: message.materialized()  # type: ignore[attr-defined]
_functions = Functions(_FUNCTIONS)
_options = {
    "fuse": _install_fused,
    "fuse_all": _install_fused_all,
    "half": _install_half,
    "products": drop_in_products.installer(accounts),
}
_switch = Switch(_install, _options, _functions.restored, {"products": (drop_in_products.STAND_INS, accounts)})
