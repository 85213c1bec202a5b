"""Ids that compiled code makes itself: Inductor puts other values into their memory, which it does not count. Their Graphs are
cached with a copy, which nothing but operators of halfgnn reads.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx

from ..common.caching import ordinary_tensors
from ..common.fake import register_fake
from ..common.fx_nodes import memory_of_tensor, name_of, value_of, written_by

_INPUTS = ("placeholder", "get_attr")  # the second in older versions of torch, for tensors of modules

library = torch.library.Library("halfgnn_pyg", "DEF")
library.define("copied_ids(Tensor ids) -> Tensor")


def _copied_ids(ids: Tensor) -> Tensor:
    with ordinary_tensors(ids):
        return ids.clone(memory_format=torch.contiguous_format)


library.impl("copied_ids", _copied_ids, "CompositeExplicitAutograd")
register_fake("copied_ids", namespace="halfgnn_pyg")(_copied_ids)


def copied_ids(ids: Tensor) -> Tensor:
    """A copy of ids that compiled code makes, while it is traced."""
    return torch.ops.halfgnn_pyg.copied_ids(ids)


def copy_new(ids: Tensor, results: Any) -> None:
    """While torch.compile traces: lets the operator that made `results` of ids read a copy of them, if compiled code makes the ids.

    It is done for every backend, whether that has the pass of halfgnn.compiled or not.
    """
    from torch._dynamo.comptime import comptime  # takes a second to import, and is there when Dynamo traces

    comptime(_copy_new)


def _copy_new(context: Any) -> None:
    results = context.get_local("results").as_proxy()
    node = (results[0] if isinstance(results, (list, tuple)) else results).node
    if not str(node.target).startswith("halfgnn_pyg."):  # one of several results
        node = node.args[0]
    if not _is_cached_outside(context.get_local("ids").as_proxy()):
        node.args = _copy_of(node.args[0], node), *node.args[1:]


def _copy_of(ids: fx.Node, reader: fx.Node) -> fx.Node:
    """The copy of ids that an operator reads. Operators share it, unless the ids are modified in place somewhere."""
    copied = torch.ops.halfgnn_pyg.copied_ids.default
    earlier = next((user for user in ids.users if user.target is copied), None)
    if earlier is not None and not _is_modified(ids):
        return earlier
    with reader.graph.inserting_before(reader):
        copy = reader.graph.call_function(copied, (ids,))
    copy.meta["example_value"] = _copied_ids(value_of(ids))
    return copy


def is_cached(node: fx.Node) -> bool:
    """Whether ids are an input or a result of an operator of halfgnn, which nothing before has modified in place.

    Their Graph is found by the tensor. The memory of other ids gets other values, which code of Inductor does not count.
    """
    source = node.args[0] if name_of(node) == "getitem" else node
    is_result = isinstance(source, fx.Node) and str(source.target).startswith("halfgnn_pyg.")
    return (is_result or node.op in _INPUTS) and not _is_modified(node)


def _is_modified(node: fx.Node) -> bool:
    memory = memory_of_tensor(value_of(node))
    written = (value_of(x) for user in node.graph.nodes for x in written_by(user))
    return any(memory_of_tensor(x) & memory for x in written if isinstance(x, Tensor))


def _is_cached_outside(proxy: Any) -> bool:
    """The same of a proxy of Dynamo, in whose graph an input may be a result of the graph around it, as in a checkpoint."""
    node, tracer = proxy.node, proxy.tracer
    if node.op not in _INPUTS or getattr(tracer, "parent", None) is None:
        return is_cached(node)
    outer = [x for x, inner in tracer.lifted_freevars.items() if getattr(inner, "node", None) is node]
    return bool(outer) and _is_cached_outside(outer[0])
