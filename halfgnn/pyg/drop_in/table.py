"""Drop-in acceleration of torch_geometric, see :func:`patch`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch_geometric import nn
from torch_geometric.nn.aggr.fused import FusedAggregation
from torch_geometric.nn.models import schnet

from ...compiled import inductor
from ...drop_in.products import READERS, STAND_INS, installer, is_fp32
from ...drop_in.switch import Switch, as_option
from ...drop_in.table import Row, Table
from ...drop_in.wrappers import Bindings
from ...tiles.sizes import checked_tile
from . import functions  # noqa: F401
from .accounts import accounts
from .adapters import (
    aggregations,
    attention_modules,
    edge_index,
    edge_networks,
    generated,
    groups,
    index_add,
    indexing,
    norms,
    propagate,
    reached,
    relational,
    scatter,
    sizes,
    softmax,
    spmm,
)
from .message import Message, guard_autograd, on_tensors
from .options import ON

# All that is intercepted; what PyTorch's functions do with messages is in functions.py.
TABLE = [
    Row("torch_geometric.utils", "scatter", scatter.scatter),
    Row("torch_geometric.utils", "segment", scatter.segment),
    Row("torch_geometric.utils", "softmax", softmax.softmax),
    Row("torch_geometric.utils", "spmm", spmm.spmm),
    Row("torch_geometric.edge_index", "_spmm", spmm.edge_index_spmm),
    Row("torch_geometric.utils", "add_self_loops", edge_index.self_loops),
    Row("torch_geometric.utils", "remove_self_loops", edge_index.self_loops),
    Row("torch_geometric.utils", "add_remaining_self_loops", edge_index.self_loops),
    Row("torch_geometric.utils", "get_laplacian", edge_index.laplacian),
    Row("torch_geometric.nn.conv.gcn_conv", "gcn_norm", edge_index.gcn_norm),
    Row("torch_geometric.nn.conv.hetero_conv", "group", groups.group),
    Row("torch_geometric.utils.num_nodes", "maybe_num_nodes", sizes.num_nodes),
    Row(nn.aggr.Aggregation, "__call__", sizes.aggregation),
    Row(nn.GraphNorm, "forward", norms.norm),
    Row(nn.InstanceNorm, "forward", norms.norm),
    Row(nn.LayerNorm, "forward", norms.norm),
    Row(nn.PairNorm, "forward", norms.pair_norm),
    Row(nn.Set2Set, "forward", norms.set2set),
    Row(nn.AttentionalAggregation, "forward", norms.attentional),
    Row(nn.HypergraphConv, "forward", sizes.hypergraph),
    Row(nn.MessagePassing, "_check_input", propagate.check_input),
    Row(nn.MessagePassing, "_index_select", propagate.index_select),
    Row(nn.aggr.VarAggregation, "forward", aggregations.variance),
    Row(FusedAggregation, "forward", aggregations.variance),
    Row(nn.aggr.MultiAggregation, "forward", aggregations.several),
    Row(nn.GATConv, "forward", attention_modules.gat_conv, "fuse"),
    Row(nn.GATv2Conv, "forward", attention_modules.gatv2_conv, "fuse"),
    Row(nn.TransformerConv, "forward", attention_modules.transformer_conv, "fuse"),
    Row(nn.RGCNConv, "forward", relational.rgcn_conv, "fuse"),
    Row(nn.SAGEConv, "forward", reached.sage_conv, "fuse"),
    Row(nn.GraphConv, "forward", reached.graph_conv, "fuse"),
    Row(nn.EdgeConv, "forward", edge_networks.edge_conv, "fuse"),
    Row(schnet.CFConv, "forward", edge_networks.cf_conv, "fuse"),
    Row(nn.MessagePassing, "_set_jittable_templates", generated.set_templates),
    Row("torch", "index_select", indexing.index_select),
    Row(Tensor, "index_select", indexing.index_select_of_tensor),
    Row(Tensor, "__getitem__", indexing.getitem),
    Row("torch.nn.functional", "embedding", indexing.embedding),
    Row("torch", "index_add", index_add.index_add),
    Row(Tensor, "index_add", index_add.index_add),
    Row(Tensor, "index_add_", index_add.index_add),
    Row("torch", "scatter_add", index_add.scatter_add),
    Row(Tensor, "scatter_add", index_add.scatter_add),
    Row(Tensor, "scatter_add_", index_add.scatter_add),
    Row("torch", "scatter_reduce", index_add.scatter_reduce),
    Row(Tensor, "scatter_reduce", index_add.scatter_reduce),
    Row(Tensor, "scatter_reduce_", index_add.scatter_reduce),
    # What wraps a tensor in C++, which does not ask it; so does torch.autograd.Function.apply, see guard_autograd().
    Row("torch._functorch.vmap", "_add_batch_dim", on_tensors),
    Row("torch._functorch.eager_transforms", "_wrap_for_grad", on_tensors),
]


def patch(
    fuse: bool | None = None, half: bool = False, products: str | None = None, tile: int | str | None = None
) -> None:
    """Routes torch_geometric's message passing through halfgnn, in the whole process, until :func:`unpatch`.

    Results are torch_geometric's, up to what docs/routed.md says, and have its dtypes. A second call can only add options:
    fuse=False after fuse=True or None warns and changes nothing. Modules that were made before are covered too.

    Args:
        fuse: None runs attention as one operator wherever that computes the same numbers faster: GATConv, GATv2Conv and
            TransformerConv of torch_geometric.nn, and what messages write out, in evaluation or without dropout. It reduces all
            relations of an RGCNConv at once, and does not multiply rows of SAGEConv and GraphConv that no edge reaches. True fuses
            attention with dropout too, whose random numbers are then halfgnn's, and always; it runs large EdgeConvs and SchNet's
            CFConvs on ops.edge_network, which keeps nothing per edge; and rows that a program takes itself, by a row of an
            edge_index, are not materialized if they are only combined and summed. False keeps all steps, of which each can be read.
        half: under autocast gather and return messages' sums in autocast's dtype, also those that torch_geometric keeps in fp32:
            features that no layer has projected, and products with fp32 weights. Such features take half the memory, and are
            rounded at each of the layers that only propagate (LightGCN, LabelPropagation, CorrectAndSmooth).
        products: "fp32" makes matrix products in half precision on the CPU in fp32 and rounds their results once, if products of
            that half type are slow on this processor: those of torch.nn.functional.linear, torch.matmul and ``@``, torch.mm and
            torch.addmm, in the whole process. Under autocast weights are not rounded. None leaves them to PyTorch.
        tile: a cap of the memory of edges: the most edges whose messages exist at a time, their size such as "512MiB", or "auto", a
            quarter of the free memory. Modules whose messages are materialized are run on tiles of destinations, and again in the
            backward, see :func:`halfgnn.tiled`. None runs them at once.

    Raises:
        TypeError, ValueError: fuse is not None, True or False; half is not True or False; products is neither None nor "fp32"; tile
            is none of the above.
    """
    _switch.patch(**_chosen(fuse, half, products, tile))


def unpatch() -> None:
    """Gives torch_geometric its own functions back, as soon as no :func:`accelerate` block is open."""
    _switch.unpatch()


def accelerate(
    fuse: bool | None = None, half: bool = False, products: str | None = None, tile: int | str | None = None
) -> contextlib.AbstractContextManager[None]:
    """:func:`patch` for a ``with`` block or a decorated function.

    Like patch() it acts on the whole process: other threads are routed too while a block is open. Blocks may be nested and may
    overlap. To enter and leave one takes milliseconds: it belongs around a loop, not into it.
    """
    return _switch.accelerate(**_chosen(fuse, half, products, tile))


def _chosen(fuse: Any, half: Any, products: Any, tile: Any) -> dict[str, Any]:
    """The options as a Switch takes them."""
    return {
        "fuse": as_option("fuse", fuse, None, True, False) is not False,
        "fuse_all": fuse or None,
        "half": as_option("half", half, True, False) or None,
        "products": is_fp32(products) or None,
        "tiles": True if tile is not None else None,
        "tile": None if tile is None else checked_tile(tile),
    }


def _install(bindings: Bindings) -> None:
    guard_autograd()
    _table.bind(bindings)
    generated.install(bindings)
    inductor.install(bindings)


def _installer(option: str) -> Callable[[Bindings], None]:
    def install(bindings: Bindings) -> None:
        bindings.bind(ON, option, True)
        _table.bind(bindings, option)

    return install


def _install_tiles(bindings: Bindings) -> None:
    generated.install(bindings, "tiles")


def _set_tile(tile: int | str | None) -> None:
    ON.tile = tile


READERS[Message] = lambda message: message.materialized()  # type: ignore[attr-defined]
_table = Table(TABLE)
_options = {option: _installer(option) for option in ("fuse", "fuse_all", "half")}
_options["products"] = installer(accounts)
_options["tiles"] = _install_tiles
_switch = Switch(_install, _options, _table.restored, {"products": (STAND_INS, accounts)}, {"tile": _set_tile})
