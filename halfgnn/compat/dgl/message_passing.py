"""MessagePassing: the methods of a graph that compute features of nodes and edges from one another."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import Tensor

from . import function as fn
from .base import ALL, DGLError, is_all
from .computation import Part, applied, edge_batch, messages, passed
from .cross_types import merged, reduced, without_edges, without_isolated
from .queries import Queries
from .udf import NodeBatch


class MessagePassing(Queries):
    """Message functions give messages of edges, reduce functions what nodes make of them.

    Built-in ones of ``dgl.function`` run as one kernel where possible. Others are called with an EdgeBatch, and with a NodeBatch
    per in-degree. Results are set as features of the graph.
    """

    # ---- nodes and edges alone ---------------------------------------------------------------------------------------------------

    def apply_nodes(self, func: Callable, v: Any = ALL, ntype: str | None = None) -> None:
        """Set features of nodes to what func(NodeBatch) gives."""
        ntid = self.get_ntype_id(ntype)
        batch = self._node_batch(ntid, v)
        self._set_n_repr(ntid, v if is_all(v) else batch.nodes(), func(batch))

    def _node_batch(self, ntid: int, v: Any) -> NodeBatch:
        name = self.ntypes[ntid]
        if is_all(v):
            return NodeBatch(self, self._ids(None, self._graph.num_nodes(ntid)), name, self._node_frames[ntid])
        ids = self._node_id_tensor(ntid, v)
        return NodeBatch(self, ids, name, self._node_frames[ntid].subframe(ids))

    def apply_edges(self, func: Any, edges: Any = ALL, etype: Any = None) -> None:
        """Set features of edges to messages: of one type, or with a built-in function of all types."""
        if etype is None and len(self._graph.relations) > 1:
            if not isinstance(func, fn.BuiltinFunction):
                raise DGLError(
                    "func is a function, and the graph has several edge types; expected etype, or a built-in function"
                )
            etids = range(len(self._graph.relations))
        else:
            etids = range(self.get_etype_id(etype), self.get_etype_id(etype) + 1)
        for etid in etids:
            part, ids = Part.whole(self, etid), edges
            if not is_all(edges):
                ids = self._edge_id_tensor(etid, edges)
                part = part.of_edges(ids)
            self._set_e_repr(etid, ids, messages(part, func))

    def filter_nodes(self, predicate: Callable, nodes: Any = ALL, ntype: str | None = None) -> Tensor:
        """Ids of the nodes of which predicate(NodeBatch) (N,) is true."""
        batch = self._node_batch(self.get_ntype_id(ntype), nodes)
        return batch.nodes()[predicate(batch).bool()]

    def filter_edges(self, predicate: Callable, edges: Any = ALL, etype: Any = None) -> Tensor:
        """Ids of the edges of which predicate(EdgeBatch) (E,) is true."""
        etid = self.get_etype_id(etype)
        part = Part.whole(self, etid)
        if not is_all(edges):
            part = part.of_edges(self._edge_id_tensor(etid, edges))
        batch = edge_batch(part)
        return batch.edges()[2][predicate(batch).bool()]

    # ---- all edges ---------------------------------------------------------------------------------------------------------------

    def update_all(
        self, message_func: Any, reduce_func: Any, apply_node_func: Callable | None = None, etype: Any = None
    ) -> None:
        """Pass messages along all edges of one type, or with built-in functions of all types together.

        Nodes without in-edges get 0, and initial features from reduce functions that are not built in.
        """
        if etype is None and len(self._graph.relations) > 1:
            return self._update_all_types(message_func, reduce_func, apply_node_func)
        etid = self._types.etype_id(etype)
        results = passed(Part.whole(self, etid), message_func, reduce_func, apply_node_func)
        self._set_n_repr(self._graph.metagraph.ends[etid][1], ALL, results)

    def _update_all_types(self, message_func: Any, reduce_func: Any, apply_node_func: Any) -> None:
        if not isinstance(message_func, fn.MessageFunction) or not isinstance(reduce_func, fn.ReduceFunction):
            raise DGLError(
                "message_func or reduce_func is a function, and the graph has several edge types; expected etype, or built-in"
                " functions: multi_update_all takes functions per edge type"
            )
        by_type: dict[int, list] = {}
        for etid, (_, dst) in enumerate(self._graph.metagraph.ends):
            result = passed(Part.whole(self, etid), message_func, reduce_func)
            by_type.setdefault(dst, []).append((*result.values(), self._graph.relations[etid]))
        for dst, results in by_type.items():
            self._set_n_repr(dst, ALL, {reduce_func.out_field: reduced(results, reduce_func.name)})
            if apply_node_func is not None:
                self.apply_nodes(apply_node_func, ALL, self._ntype_key(dst))

    def _ntype_key(self, ntid: int) -> str:
        """The name that means this type of destinations, which in a block have names of sources too."""
        return f"DST/{self.ntypes[ntid]}" if self.is_unibipartite else self.ntypes[ntid]

    def multi_update_all(
        self, etype_dict: Mapping[Any, tuple], cross_reducer: Any, apply_node_func: Callable | None = None
    ) -> None:
        """Pass messages along several edge types, each with its own functions, and reduce the results of each node type.

        Args:
            etype_dict: {edge type: (message function, reduce function[, apply_node_func])}.
            cross_reducer: "sum", "mean", "max", "min", "stack" or a function of a list of tensors. Types of which a node has no
                edge count as 0, but max and min leave them out if the reduce function is the built-in max or min.
        """
        by_type: dict[int, list] = {}
        for etype, functions in etype_dict.items():
            if not isinstance(functions, (tuple, list)) or len(functions) not in (2, 3):
                raise DGLError(
                    f"etype_dict[{etype!r}] is {functions!r}; expected (message function, reduce function[, apply_node_func])"
                )
            etid = self.get_etype_id(etype)
            part = Part.whole(self, etid)
            results = dict(passed(part, *functions))
            left_out = {}  # the features of which nodes without edges of this type are left out
            if cross_reducer in ("max", "min") and _is_extreme(functions[1]) and len(functions) == 2:
                name = functions[1].out_field
                results[name] = without_edges(results[name], part.relation, cross_reducer)
                left_out[name] = part.relation
            by_type.setdefault(self._graph.metagraph.ends[etid][1], []).append((etid, results, left_out))
        for dst, parts in by_type.items():
            features = dict(merged([part[1] for part in parts], cross_reducer, [part[0] for part in parts]))
            for name in features:
                relations = [left_out.get(name) for _, results, left_out in parts if name in results]
                if None not in relations:
                    features[name] = without_isolated(features[name], relations)
            self._set_n_repr(dst, ALL, features)
            if apply_node_func is not None:
                self.apply_nodes(apply_node_func, ALL, self._ntype_key(dst))

    # ---- some edges --------------------------------------------------------------------------------------------------------------

    def send_and_recv(
        self,
        edges: Any,
        message_func: Any,
        reduce_func: Any,
        apply_node_func: Callable | None = None,
        etype: Any = None,
    ) -> None:
        """Pass messages along some edges, given by ids or as (sources, destinations). Other nodes keep their features."""
        etid = self.get_etype_id(etype)
        ids = self._edge_id_tensor(etid, edges)
        if ids.numel():
            part = Part.whole(self, etid).of_edges(ids)
            self._receive(part, part.relation.edges()[1].unique(), etid, message_func, reduce_func, apply_node_func)

    def pull(
        self, v: Any, message_func: Any, reduce_func: Any, apply_node_func: Callable | None = None, etype: Any = None
    ) -> None:
        """Pass messages along the in-edges of some nodes."""
        etid, _, dst = self._ends_of(etype)
        nodes = self._node_id_tensor(dst, v).unique()
        if nodes.numel():
            ids = self.in_edges(nodes, form="eid", etype=self.canonical_etypes[etid])
            part = Part.whole(self, etid).of_edges(ids)
            self._receive(part, nodes, etid, message_func, reduce_func, apply_node_func)

    def _receive(self, part: Part, nodes: Tensor, etid: int, *functions: Any) -> None:
        dst = self._graph.metagraph.ends[etid][1]
        message_func, reduce_func, apply_node_func = functions
        part = part.into(nodes)
        if part.relation.num_edges or isinstance(reduce_func, fn.BuiltinFunction):
            results = passed(part, message_func, reduce_func, apply_node_func)
        else:
            results = {} if apply_node_func is None else applied(part, part.dst, apply_node_func)
        self._set_n_repr(dst, nodes, results)

    def push(
        self, u: Any, message_func: Any, reduce_func: Any, apply_node_func: Callable | None = None, etype: Any = None
    ) -> None:
        """Pass messages along the out-edges of some nodes."""
        ids = self.out_edges(u, form="eid", etype=etype)
        self.send_and_recv(ids, message_func, reduce_func, apply_node_func, etype)

    def prop_nodes(
        self,
        nodes_generator: Iterable,
        message_func: Any,
        reduce_func: Any,
        apply_node_func: Callable | None = None,
        etype: Any = None,
    ) -> None:
        """:meth:`pull` of each group of nodes, one after the other."""
        for nodes in nodes_generator:
            self.pull(nodes, message_func, reduce_func, apply_node_func, etype)

    def prop_edges(
        self,
        edges_generator: Iterable,
        message_func: Any,
        reduce_func: Any,
        apply_node_func: Callable | None = None,
        etype: Any = None,
    ) -> None:
        """:meth:`send_and_recv` along each group of edges, one after the other."""
        for edges in edges_generator:
            self.send_and_recv(edges, message_func, reduce_func, apply_node_func, etype)


def _is_extreme(function: Any) -> bool:
    return isinstance(function, fn.ReduceFunction) and function.name in ("max", "min")
