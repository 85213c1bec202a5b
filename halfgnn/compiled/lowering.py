"""The pass over the FX graph that Dynamo hands to a backend, before autograd.

Rows by an index, and what is computed of them, become expressions; where they are reduced by an index, they are lowered as the
drop-in lowers messages (:mod:`halfgnn.expressions`), and the operators are written into the graph in place of PyTorch's. What the
pass does not know stays as it is. Gathers that are read otherwise get a gradient that a Graph sums.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.symbolic_shapes import statically_known_true

from .. import ops
from ..common.autograd import apply
from ..common.fx_nodes import memory_of_tensor, name_of, nodes_in, value_of, written_by
from ..common.precision import autocasts, without_autocast
from ..drop_in.gate import types_on
from ..expressions import attention
from ..expressions import expression as expressions
from ..expressions.accounts import accounts
from ..expressions.linear import linear
from ..expressions.reduce import has_rows_of, reduced
from ..expressions.rows import GatherRows
from ..expressions.values import is_dot, materialize
from . import chains, relations, several, thresholds
from .edges import GraphEdges, TracedEdges, add_keys
from .effects import Contexts, dead_nodes, erase_dead, in_order, memory_of
from .extend import extend
from .projections import Projections, project
from .recognize import (
    Gather,
    Reduction,
    gather_of,
    ids_in,
    is_ones,
    make_functional,
    reason_left,
    reduction_of,
    softmax_of,
    weights_of,
)
from .recorder import Values, recording
from .rows import degrees, reduced_rows
from .thresholds import is_worth

expressions.ORDINARY.add(FakeTensor)

_log = logging.getLogger(__name__)

_METADATA = {
    "size", "dim", "new_zeros", "new_ones", "new_full", "new_empty", "zeros_like", "ones_like", "empty_like", "numel",
}  # fmt: skip

_LIKE = {"expand_as", "view_as", "reshape_as", "type_as"}  # of which the second argument is not read


class Failed(Exception):
    """What could not be lowered, and why."""


def lower_graph(graph: fx.Graph) -> Counter[str]:
    """Lowers what can be in place. Returns how many nodes became which operator, and why others did not."""
    make_functional(graph)
    erase_dead(graph)  # rows that nothing reads say nothing of numbers of nodes
    add_keys(graph)
    reductions = {node: found for node in graph.nodes if (found := reduction_of(node)) is not None}
    left = Counter(
        f"left alone: {name_of(node)}: {reason}" for node in graph.nodes if (reason := reason_left(node)) is not None
    )
    if any("_functorch" in str(getattr(node.target, "__module__", "")) for node in graph.nodes):
        return Counter({"not lowered: torch.func: which tensors have gradients is not known": 1})
    if not reductions and not any(gather_of(node) is not None for node in graph.nodes):
        return left
    fakes = [value for node in graph.nodes if isinstance(value := value_of(node), FakeTensor)]
    with fakes[0].fake_mode, _without_hooks():  # Dynamo's mode: the one of the tracing context is for the backend
        return left + Lowering(graph, reductions).run()


def _without_hooks() -> contextlib.AbstractContextManager[Any]:
    """A context in which a checkpoint does not count what fake tensors save."""
    if torch._C._autograd._top_saved_tensors_default_hooks(True) is None:
        return contextlib.nullcontext()
    return torch.autograd.graph.saved_tensors_hooks(_unchanged, _unchanged)


def _unchanged(x: Tensor) -> Tensor:
    return x


class Lowering:
    def __init__(self, graph: fx.Graph, reductions: dict[fx.Node, Reduction]) -> None:
        self._graph, self._reductions = graph, reductions
        self._counts: Counter[str] = Counter()
        self._values = Values()
        self._expressions: dict[fx.Node, expressions.Expression] = {}
        self._items: dict[fx.Node, Any] = {}  # of nodes that make several expressions
        self._read: dict[fx.Node, fx.Node] = {}  # of expressions that were materialized by an operator
        self._gathers: dict[fx.Node, tuple[Gather, TracedEdges, int]] = {}
        self._softmaxes: dict[fx.Node, Any] = {}
        self._is_part: set[fx.Node] = set()  # of a softmax: its reductions
        self._is_step: set[fx.Node] = set()  # of a softmax: what it computes of each edge
        self._layers: set[expressions.Gather] = set()  # rows of layers of nodes, which the graph had per edge
        self._projections = Projections()
        self._left: set[fx.Node] = set()  # chains of values of edges that Inductor fuses with their sum
        self._replaced: set[fx.Node] = set()  # with an earlier node

    def run(self) -> Counter[str]:
        nodes = list(self._graph.nodes)
        for node in nodes:
            found = softmax_of(node, self._reductions.get)
            if found is not None:
                self._softmaxes[node] = found[0]
                self._is_part.update(found[1])
                self._is_step.update(found[0].steps)
        self._edges = GraphEdges(nodes, self._reductions, self._projections)
        contexts = Contexts()
        try:
            for node in nodes:
                contexts.enter(node)
                self._values.note(node, value_of(node))
                try:
                    self._visit(node)
                except Exception as error:  # PyTorch's node stays, and reads what it read
                    _log.debug("%s is left alone", node, exc_info=True)
                    self._counts[f"left alone: {name_of(node)}: {type(error).__name__}"] += 1
        finally:
            contexts.close()
        self._finish_gathers()
        erase_dead(self._graph)
        in_order(self._graph)
        return self._counts

    # ---- nodes -----------------------------------------------------------------------------------------------------------------

    def _visit(self, node: fx.Node) -> None:
        if node.op not in ("call_function", "call_method"):
            self._materialize_inputs(node)
            return
        self._forget_written(node)
        if node in self._replaced:
            return
        if node in self._reductions:
            if node not in self._is_part or len(node.users) > 1:
                self._reduce(node, self._reductions[node])
            return
        if node in self._softmaxes:
            if self._softmax(node, self._softmaxes[node]):
                return
            for step in self._softmaxes[node].steps:
                self._materialize_inputs(step)
        gather = gather_of(node)
        if gather is not None:
            found = self._edges.of(gather.ids)
            if found is not None:
                self._gather(node, gather, *found)
            return
        if not any(x in self._expressions or x in self._items for x in nodes_in([node.args, node.kwargs])):
            self._plain(node)
            return
        if not self._extend(node) and node not in self._is_step:
            self._materialize_inputs(node)

    def _gather(self, node: fx.Node, gather: Gather, edges: TracedEdges, row: int) -> None:
        x = value_of(gather.x)
        if x.dtype not in types_on(x.device.type) or statically_known_true(x.numel() == 0):
            return
        self._gathers[node] = gather, edges, row
        if gather.x in self._expressions:
            self._materialize_input(node, gather.x)
        self._expressions[node] = expressions.Gather(x, edges, row, ids_in(node), gather.dim)

    def _extend(self, node: fx.Node) -> bool:
        if node.target is torch.ops.aten.sym_size.int:
            return True
        source = node.args[0] if node.args else None
        if source in self._items:
            lazy = self._items[source][node.args[1]] if isinstance(node.args[1], int) else None  # type: ignore[index]
            if lazy is None:
                return False
            self._expressions[node] = lazy
            return True
        if name_of(node) in _METADATA or (name_of(node) in _LIKE and source not in self._expressions):
            return True
        if name_of(node) == "bmm":
            return self._relations(node)
        if name_of(node) in ("linear", "matmul", "mm"):
            return self._linear(node)
        try:
            lazy = extend(node, self._expressions)
        except Exception as error:  # of a size that is not known, or of a form that PyTorch reads in another way
            self._counts[f"not extended by {name_of(node)}: {type(error).__name__}"] += 1
            return False
        if lazy is None:
            return False
        if isinstance(lazy, list):
            self._items[node] = lazy
            return all(x is not None for x in lazy)
        self._expressions[node] = lazy
        return True

    def _relations(self, node: fx.Node) -> bool:
        """Rows of nodes times the matrices of the edges' relations."""
        operands = [self._expressions.get(x) for x in node.args]  # type: ignore[arg-type]
        if len(operands) != 2 or not relations.goes_by_relation(*operands) or not is_worth(value_of(node)):
            return False
        return self._set(node, self._lowered(node, lambda: relations.multiplied(*operands), "bmm"))

    def _linear(self, node: fx.Node) -> bool:
        """A linear layer of an expression, of which nodes may compute the parts."""
        lazy = self._expressions.get(node.args[0])  # type: ignore[arg-type]
        weight, bias = weights_of(node)
        is_constant = not any(isinstance(x, fx.Node) and x in self._expressions for x in (weight, bias))
        if lazy is None or weight is None or not is_constant or not is_worth(value_of(node)):
            return False

        def lower() -> Any:
            w, b = value_of(weight), value_of(bias)
            return linear(lazy, w if name_of(node) == "linear" else w.t(), b)

        return self._set(node, self._lowered(node, lower, "linear"))

    def _set(self, node: fx.Node, result: Tensor | expressions.Expression | None) -> bool:
        """Whether a node was lowered: to a tensor, or to an expression of layers of nodes."""
        if isinstance(result, Tensor):
            self._replace(node, result)
        elif result is not None:
            self._expressions[node] = result
            if isinstance(result, expressions.Gather):
                self._layers.add(result)
        return result is not None

    def _plain(self, node: fx.Node) -> None:
        """A node that reads no expression."""
        self._projections.note(node)
        folded = self._projections.folded(node)
        if folded is not None and is_worth(value_of(node.args[0])):
            result = self._lowered(node, lambda: project(*folded), "projection", value_of(node).dtype)
            if result is not None:
                self._replace(node, result)

    def _softmax(self, node: fx.Node, softmax: Any) -> bool:
        """A softmax over the edges of a node, which may become a part of a fused attention."""
        found = self._edges.of(softmax.ids)
        logits, value = softmax.logits, value_of(node)
        if found is None or value.dtype not in types_on(value.device.type) or value.dim() > 3:
            return False
        if not is_worth(value, thresholds.SOFTMAX):
            return False
        edges, row = found
        lazy = self._expressions.get(logits)
        if lazy is not None and lazy.edge_dim == 0 and has_rows_of(lazy, row, softmax.num_rows):
            deferred = attention.softmax_of(lazy, edges, row, softmax.num_rows, any_dot=True)
            if deferred is not None and deferred.dtype is value.dtype:
                self._expressions[node] = deferred
                return True
        source = value_of(logits if lazy is None else self._materialized(logits, node) or logits)

        def lower() -> Tensor:
            with without_autocast(value.device):
                return ops.edge_softmax(edges.ending_in(row, softmax.num_rows), source.to(value.dtype))

        result = self._lowered(node, lower, "edge_softmax", value.dtype)
        if result is not None:
            self._replace(node, result)
        return result is not None

    # ---- reductions ------------------------------------------------------------------------------------------------------------

    def _reduce(self, node: fx.Node, call: Reduction) -> None:
        group = several.group_of(node, self._reductions)
        if group is not None and self._reduce_group(node, group):
            return
        lazy = self._expressions.get(call.src)
        result = self._reduction(node, call, lazy)
        if result is not None:
            self._replace(node, result)
        elif lazy is not None:
            self._materialize_input(node, call.src)

    def _reduce_group(self, node: fx.Node, group: several.Group) -> bool:
        """Several reductions of the same rows, of which the node is the first."""
        call, lazy, src = self._reductions[node], self._expressions.get(group.src), value_of(group.src)
        found = self._edges.of(call.ids)
        if found is None or src.dtype not in types_on(src.device.type) or not is_worth(src):
            return False
        if lazy is not None and not several.goes_along(lazy, *found, call.num_rows):
            src, lazy = value_of(self._materialized(group.src, node) or group.src), None

        def lower() -> dict[str, Tensor]:
            with without_autocast(src.device):
                return several.reduced(group, src if lazy is None else lazy, *found, call.num_rows)

        results = self._lowered(node, lower, "several reductions")
        if results is None:
            return False
        for reduction, name in group.names.items():
            self._replace(reduction, results[name])
            self._replaced.add(reduction)
        return True

    def _reduction(self, node: fx.Node, call: Reduction, lazy: Any) -> Tensor | None:
        """The result of a node that reduces rows; None if PyTorch's stays."""
        found, src = self._edges.of(call.ids), value_of(call.src)
        if found is None or src.dtype not in types_on(src.device.type):
            return None
        if not is_worth(src) and not (is_ones(call.src) and src.dim() == 1 and is_worth(src, thresholds.COUNT)):
            self._counts["fewer values than pay"] += 1
            return None
        lower = functools.partial(self._unless_fused, call, lambda: self._reduced(call, lazy, *found))
        return self._lowered(node, lower, call.kind, value_of(node).dtype)

    def _unless_fused(self, call: Reduction, lower: Callable[[], Tensor]) -> Tensor:
        chain = chains.chain_of(call)
        before = set(self._graph.nodes) if chain else set()
        out = lower()
        if chain and chains.store_edges([x for x in self._graph.nodes if x not in before], value_of(call.src)):
            self._left |= chain
            raise chains.Fused
        return out

    def _reduced(self, call: Reduction, lazy: Any, edges: TracedEdges, row: int) -> Tensor:
        if is_ones(call.src) and call.kind == "sum" and call.dim == 0 and value_of(call.src).dim() == 1:
            out = degrees(edges.ending_in(row, call.num_rows), value_of(call.src).dtype)
        else:
            out = self._rows_reduced(call, lazy, edges, row)
        return out if call.target is None else value_of(call.target) + out

    def _rows_reduced(self, call: Reduction, lazy: Any, edges: TracedEdges, row: int) -> Tensor:
        src = value_of(call.src)
        is_along = lazy is not None and edges.has(lazy, row) and lazy.edge_dim == call.dim
        if is_along and has_rows_of(lazy, row, call.num_rows):
            return self._expression_reduced(call, lazy, row)
        if lazy is not None:
            src = value_of(self._materialized(call.src) or call.src)
        if call.dim:
            src = src.movedim(call.dim, 0).contiguous()
        out = reduced_rows(edges.ending_in(row, call.num_rows), call.kind, src, edges.ids(row))
        return out.movedim(0, call.dim).contiguous() if call.dim else out

    def _expression_reduced(self, call: Reduction, lazy: Any, row: int) -> Tensor:
        if not autocasts(lazy.device):
            return reduced(lazy, call.kind, row, call.num_rows, [attention.fused])
        with without_autocast(lazy.device):
            return reduced(lazy, call.kind, row, call.num_rows, [attention.fused])

    def _lowered(self, node: fx.Node, lower: Callable[[], Any], what: str, dtype: torch.dtype | None = None) -> Any:
        """What lower() returns, whose calls are written before the node; None if it fails, and nothing is written.

        dtype: of a tensor that it must return.
        """
        before, state = set(self._graph.nodes), self._values.state()
        try:
            with self._graph.inserting_before(node), recording(self._graph, self._values), _counts() as counts:
                result = lower()
            if isinstance(result, Tensor) and dtype not in (None, result.dtype):
                raise Failed(f"it has dtype {result.dtype}; expected {dtype}")
            self._counts += counts
            return result
        except chains.Fused:
            self._counts[f"left alone: {name_of(node)}: Inductor fuses what it reduces"] += 1
        except Exception as error:  # of a size that is not known yet, or a form that no operator has
            _log.debug("%s is not lowered", what, exc_info=True)
            reason = str(error).partition("\n")[0][:120]
            self._counts[f"not lowered: {what}: {type(error).__name__}: {reason}"] += 1
        for new in [x for x in reversed(self._graph.nodes) if x not in before]:
            self._graph.erase_node(new)
        self._values.restore(state)
        self._edges.forget()
        return None

    def _replace(self, node: fx.Node, result: Tensor) -> None:
        new = self._values.argument(result, self._graph)
        value = value_of(node)
        node.replace_all_uses_with(new, propagate_meta=False)
        self._values.replace(value, new)
        for name in list(self._reductions):
            call = self._reductions[name]
            if call.target is node:
                self._reductions[name] = call._replace(target=new)
            if call.src is node:
                self._reductions[name] = call._replace(src=new)
        new.meta.setdefault("example_value", result)

    # ---- materialized ----------------------------------------------------------------------------------------------------------

    def _materialize_inputs(self, node: fx.Node) -> None:
        for x in list(nodes_in([node.args, node.kwargs])):
            if x in self._expressions:
                self._materialize_input(node, x)

    def _materialize_input(self, node: fx.Node, x: fx.Node) -> None:
        """Softmaxes, dot products, and layers that nodes compute, are operators of halfgnn; others the graph computes as it did."""
        new = self._materialized(x, node)
        if new is not None:
            node.replace_input_with(x, new)

    def _materialized(self, x: fx.Node, node: fx.Node | None = None) -> fx.Node | None:
        lazy = self._expressions[x]
        if not self._is_operator(lazy):
            return None
        if x not in self._read:
            assert node is not None
            result = self._lowered(node, lambda: materialize(lazy), "materialize", lazy.dtype)
            if result is None:
                return None
            self._read[x] = self._values.argument(result, self._graph)
        return self._read[x]

    def _is_operator(self, x: expressions.Expression) -> bool:
        """Whether a part is a softmax, a dot product of the rows of both ends, or a layer of nodes."""
        is_own = isinstance(x, expressions.Softmax) or x.cache.is_split or x in self._layers or is_dot(x)
        return is_own or any(map(self._is_operator, x.operands()))

    def _forget_written(self, node: fx.Node) -> None:
        """Expressions of tensors that a node modifies in place are computed before by the nodes that they were made of."""
        written = [value for value in map(value_of, written_by(node)) if isinstance(value, Tensor)]
        if not written:
            return
        memory = {x.untyped_storage()._cdata for x in written}
        self._projections.forget(memory)
        for place, softmax in list(self._softmaxes.items()):
            if memory_of_tensor(value_of(softmax.logits)) & memory:  # which the softmax would read later
                del self._softmaxes[place]
        for x in [
            x
            for x, lazy in self._expressions.items()
            if memory_of(lazy) & memory or memory_of_tensor(value_of(x)) & memory
        ]:
            del self._expressions[x]
            self._gathers.pop(x, None)
        self._edges.forget()

    def _finish_gathers(self) -> None:
        """Rows that something reads, and whose gradient is summed into the nodes."""
        dead = set(dead_nodes(self._graph))
        for node, (gather, edges, row) in self._gathers.items():
            users = [user for user in node.users if user not in dead and name_of(user) not in _METADATA]
            x = value_of(gather.x)
            if node in self._left and all(user in self._left for user in users):
                continue
            if not users or not x.requires_grad or gather.dim != 0 or not is_worth(value_of(node)):
                continue

            def lower(x: Tensor = x, edges: TracedEdges = edges, row: int = row) -> Any:
                return apply(GatherRows, x, edges.ids(row), edges.ending_in(row, x.shape[0]))

            result = self._lowered(node, lower, "gather")
            if result is not None:
                self._replace(node, result)


@contextlib.contextmanager
def _counts() -> Iterator[Counter[str]]:
    """Counts operators to which expressions are lowered, and not as those of calls."""
    counts: Counter[str] = Counter()
    routed = dict(accounts.routed)
    try:
        yield counts
    finally:
        counts.update({name: count - routed.get(name, 0) for name, count in accounts.routed.items()})
        accounts.routed.clear()
        accounts.routed.update(routed)
