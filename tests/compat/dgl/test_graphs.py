"""Graphs of halfgnn.compat.dgl beside DGL's: queries, mutations, conversions, features."""

from __future__ import annotations

import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch

from halfgnn import Graph, HeteroGraph, ops
from halfgnn.compat import dgl as ours
from halfgnn.compat.dgl import DGLError
from halfgnn.dataloading.batch import mapped

theirs = pytest.importorskip("dgl")

NUM_NODES, NUM_EDGES = 12, 40
COUNTS = {"game": 7, "shop": 3, "user": 9}
ETYPES = [("shop", "sells", "game"), ("user", "follows", "user"), ("user", "plays", "game")]


def ids(count, number, dtype=torch.int64):
    return torch.randint(count, (number,), dtype=dtype)


def one_type(dtype=torch.int64):
    """The same graph of both, with features, and three nodes without edges."""
    ends = ids(NUM_NODES - 3, NUM_EDGES, dtype), ids(NUM_NODES - 3, NUM_EDGES, dtype)
    x, w = torch.randn(NUM_NODES, 4), torch.randn(NUM_EDGES, 2)
    graphs = [dgl.graph(ends, num_nodes=NUM_NODES) for dgl in (ours, theirs)]
    for g in graphs:
        g.ndata["x"], g.edata["w"] = x, w
    return graphs


def several_types():
    edges = {etype: (ids(COUNTS[etype[0]], 15), ids(COUNTS[etype[2]], 15)) for etype in ETYPES}
    graphs = [dgl.heterograph(edges, COUNTS) for dgl in (ours, theirs)]
    for ntype, count in COUNTS.items():
        x = torch.randn(count, 4)
        for g in graphs:
            g.nodes[ntype].data["x"] = x
    return graphs


def equal(a, b):
    if isinstance(a, (tuple, list)):
        return len(a) == len(b) and all(equal(x, y) for x, y in zip(a, b))
    return torch.equal(a, b) and a.dtype == b.dtype if isinstance(a, torch.Tensor) else a == b


def check_same(mine, other):
    """Structure and features."""
    assert mine.ntypes == other.ntypes and mine.canonical_etypes == other.canonical_etypes
    assert mine.srctypes == other.srctypes and mine.dsttypes == other.dsttypes
    for ntype in mine.ntypes:
        assert mine.num_nodes(ntype) == other.num_nodes(ntype)
    pairs = [(mine.nodes[ntype].data, other.nodes[ntype].data) for ntype in mine.ntypes]
    for etype in mine.canonical_etypes:
        assert equal(mine.edges("all", "eid", etype), other.edges("all", "eid", etype))
        pairs.append((mine.edges[etype].data, other.edges[etype].data))
    for own, expected in pairs:
        assert set(own) == set(expected)
        for name in own:
            assert equal(own[name], expected[name])


QUERIES = {
    "in_degrees": lambda g: g.in_degrees(),
    "out_degrees of some": lambda g: g.out_degrees([3, 0, 3]),
    "a degree": lambda g: g.in_degrees(2),
    "in_edges": lambda g: g.in_edges([4, 1, 4], "all"),
    "out_edges": lambda g: g.out_edges(range(3), "all"),
    "edges": lambda g: g.edges("all"),
    "edges by ends": lambda g: g.edges("uv", "srcdst"),
    "find_edges": lambda g: g.find_edges(torch.tensor([5, 0], dtype=g.idtype)),
    "has_nodes": lambda g: g.has_nodes([0, NUM_NODES - 1, NUM_NODES]),
    "has_edges_between": lambda g: g.has_edges_between(*torch.cartesian_prod(g.nodes(), g.nodes()).t()),
    "successors": lambda g: g.successors(1).sort().values,
    "predecessors": lambda g: g.predecessors(1).sort().values,
    "is_multigraph": lambda g: g.is_multigraph,
    "coo": lambda g: g.adj_tensors("coo"),
    "csc": lambda g: g.adj_tensors("csc"),
    "counts": lambda g: (g.num_nodes(), g.num_edges(), g.num_src_nodes(), g.num_dst_nodes(), g.batch_size),
    "incidence": lambda g: tuple(g.inc(side).to_dense() for side in ("in", "out", "both")),
    "adjacency": lambda g: g.adj_external(transpose=True).to_dense(),
    "schemes": lambda g: (g.node_attr_schemes()["x"].shape, g.edge_attr_schemes()["w"].dtype),
    "text": lambda g: repr(g).replace(" ", ""),
}


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("query", QUERIES.values(), ids=QUERIES)
def test_queries(query, dtype):
    mine, other = one_type(dtype)
    assert equal(query(mine), query(other))


def test_ids_of_edges():
    mine, _ = one_type()
    src, dst = mine.edges()
    u, v, found = mine.edge_ids(src[:5], dst[:5], return_uv=True)
    assert torch.equal(src[found], u) and torch.equal(dst[found], v)
    first = mine.edge_ids(src, dst)
    assert all(int(((src == u) & (dst == v)).int().argmax()) == e for u, v, e in zip(src, dst, first))
    with pytest.raises(DGLError, match="there is no edge from 11 to 11"):
        mine.edge_ids(11, 11)


MUTATIONS = {
    "add_nodes": lambda g: g.add_nodes(2, {"x": torch.ones(2, 4)}),
    "add_edges": lambda g: g.add_edges([0, 14], [3, 5]),
    "add_edges with features": lambda g: g.add_edges([0, 1], [1, 2], {"w": torch.ones(2, 2)}),
    "remove_edges": lambda g: g.remove_edges([3, 0, 39], store_ids=True),
    "remove_nodes": lambda g: g.remove_nodes([2, 5], store_ids=True),
}


@pytest.mark.parametrize("mutate", MUTATIONS.values(), ids=MUTATIONS)
def test_mutations(mutate):
    mine, other = one_type()
    before = mine.clone()
    mutate(mine)
    mutate(other)
    check_same(mine, other)
    assert before.num_edges() == NUM_EDGES and before.ndata["x"].shape == (NUM_NODES, 4)


def test_mutations_of_a_batch_of_several_types():
    parts = [several_types() for _ in range(2)]
    mine, other = (dgl.batch(list(graphs)) for dgl, graphs in zip((ours, theirs), zip(*parts)))
    for g in (mine, other):
        g.remove_edges([1, 3], "sells")
        g.remove_nodes([0, 10], "user")
    check_same(mine, other)
    assert all(equal(mine.batch_num_nodes(ntype), other.batch_num_nodes(ntype)) for ntype in mine.ntypes)
    assert all(equal(mine.batch_num_edges(etype), other.batch_num_edges(etype)) for etype in mine.canonical_etypes)


def test_forms_of_edges():
    src, dst = ids(5, 9), ids(5, 9)
    graph = Graph.from_edges(src, dst, num_src=5, num_dst=5)
    matrix = __import__("scipy.sparse", fromlist=["coo_matrix"]).coo_matrix
    forms = [
        (src, dst),
        (src.tolist(), dst.numpy()),
        list(zip(src.tolist(), dst.tolist())),
        ("coo", (src, dst)),
        ("csc", graph.csc()),
        ("csr", graph.csr()),
        matrix((np.ones(9), (src.numpy(), dst.numpy())), shape=(5, 5)),
    ]
    for form in forms:
        assert equal(ours.graph(form, num_nodes=5).edges(), (src, dst))
    for wrong in [([0, 9], [1, 1]), ([-1], [0]), ([0.5], [1]), ([0, 1], [1]), ("csr", ([0, 1], [0], []))]:
        with pytest.raises(DGLError):
            ours.graph(wrong, num_nodes=5)


def test_types_to_one_and_back():
    mine, other = several_types()
    check_same(ours.to_homogeneous(mine, ["x"]), theirs.to_homogeneous(other, ["x"]))
    typed = [
        dgl.to_heterogeneous(dgl.to_homogeneous(g, ["x"]), g.ntypes, g.etypes)
        for dgl, g in ((ours, mine), (theirs, other))
    ]
    check_same(*typed)


def test_networkx_and_blocks():
    mine, _ = several_types()
    drawn = ours.to_networkx(mine, node_attrs=["x"])
    assert drawn.number_of_nodes() == sum(COUNTS.values()) and drawn.number_of_edges() == 45
    assert {data["etype"] for _, _, data in drawn.edges(data=True)} == set(ETYPES)
    graphs = one_type()
    back = [
        dgl.from_networkx(dgl.to_networkx(g, ["x"], ["w"]), ["x"], ["w"], "id")
        for dgl, g in zip((ours, theirs), graphs)
    ]
    check_same(*back)
    check_same(back[0], graphs[1])
    edges = {("a", "r", "b"): ([0, 1, 4], [0, 0, 1]), ("b", "s", "a"): ([2], [0])}
    blocks = [dgl.create_block(edges, {"a": 5, "b": 3}, {"a": 1, "b": 2}) for dgl in (ours, theirs)]
    for block in blocks:
        block.srcdata["x"] = {"a": torch.arange(5), "b": torch.arange(3)}
        block.dstnodes["b"].data["y"] = torch.arange(2)
    check_same(ours.block_to_graph(blocks[0]), theirs.block_to_graph(blocks[1]))
    assert repr(blocks[0]).replace(" ", "") == repr(blocks[1]).replace(" ", "")


def test_slices_are_views():
    mine, other = several_types()
    part = mine["plays"]
    assert part._graph is mine["user", "plays", "game"]._graph and part.srcdata["x"] is mine.nodes["user"].data["x"]
    part.dstdata["y"] = torch.ones(7)
    assert "y" in mine.nodes["game"].data
    del mine.nodes["game"].data["y"]
    for key in [("user", slice(None), slice(None)), (slice(None), slice(None), "game"), (slice(None),) * 3]:
        flat, expected = mine[key], other[key]
        assert flat.ntypes == expected.ntypes and flat.etypes == expected.etypes
        origins = [
            {*zip(*(g.edata[name].tolist() for name in ("_TYPE", "_ID")), *(e.tolist() for e in g.edges()))}
            for g in (flat, expected)
        ]
        assert {origin[:2] for origin in origins[0]} == {origin[:2] for origin in origins[1]}
    with pytest.raises(DGLError, match="there is no edge type"):
        mine["eats"]


def test_features():
    g, _ = one_type()
    x = g.ndata["x"]
    with g.local_scope():
        g.ndata["x"], g.ndata["z"] = x + 1, x
        g.nodes[[1, 3]].data["x"] = torch.zeros(2, 4)
        assert not g.ndata["x"][[1, 3]].any() and torch.equal(g.nodes[[2]].data["x"], x[[2]] + 1)
    assert g.ndata["x"] is x and "z" not in g.ndata
    assert g.local_var().ndata["x"] is x and g.clone()._graph is g._graph and g.int().long().ndata["x"] is x
    for wrong in (torch.ones(3), torch.tensor(1.0), [1.0] * NUM_NODES, {"_N": x}):
        with pytest.raises(DGLError):
            g.ndata["x"] = wrong
    hetero, _ = several_types()
    with pytest.raises(DGLError, match="expected a dict"):
        hetero.ndata["x"] = x
    assert set(hetero.ndata["x"]) == set(COUNTS)
    copy = pickle.loads(pickle.dumps(hetero))
    assert repr(copy) == repr(hetero) and torch.equal(copy.nodes["shop"].data["x"], hetero.nodes["shop"].data["x"])


def test_operators_take_graphs():
    g, _ = one_type()
    hetero, _ = several_types()
    x = g.ndata["x"]
    expected = torch.zeros_like(x).index_add(0, g.edges()[1], x[g.edges()[0]])
    torch.testing.assert_close(ops.copy_u_sum(g, x), expected)
    whole = hetero.__halfgnn_graph__()
    assert isinstance(whole, HeteroGraph) and hetero.clone().__halfgnn_graph__() is whole
    assert ops.copy_u_sum(hetero["plays"], hetero.nodes["user"].data["x"]).shape == (7, 4)
    assert Graph.from_dgl(g) is g.__halfgnn_graph__() and Graph.from_dgl(hetero, "plays").num_src == 9
    assert HeteroGraph.from_dgl(hetero) is hetero.__halfgnn_graph__()


def test_moved_graphs():
    """As a Prefetcher moves batches. Features move when they are read."""
    block = ours.create_block(([0, 1, 2], [0, 0, 1]), 3, 2)
    block.srcdata["x"], block.edata["w"] = torch.ones(3, 2), torch.ones(3)
    moved = mapped({"blocks": [block]}, lambda x: x.to("meta"))["blocks"][0]
    assert isinstance(moved, ours.DGLBlock) and moved.device == moved.srcdata["x"].device == moved.edata["w"].device
    assert moved.device.type == "meta" and block.srcdata["x"].device.type == "cpu"
    with pytest.raises(DGLError, match="expected the graph's device, meta"):
        moved.dstdata["y"] = torch.ones(2)


def test_install():
    code = (
        "from halfgnn import compat; compat.install('dgl', replace=True)\n"
        "import dgl, dgl.function as fn, dgl.ops\n"
        "g = dgl.graph(([0, 1], [1, 1])); g.ndata['x'] = dgl.backend.tensor([1.0, 2.0]);"
        "g.update_all(fn.copy_u('x', 'm'), fn.sum('m', 'y')); assert g.ndata['y'].tolist() == [0, 3], g.ndata['y'];"
        "assert dgl.__name__ == 'halfgnn.compat.dgl'"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_writes_to_ids_do_not_reach_the_kernels():
    """Results are copies. Ids given by the program are looked at again when the graph is sorted."""
    g = ours.graph(([0, 1], [1, 2]))
    for ends in (g.edges(), g.adj_tensors("coo"), g.adj_tensors("csc"), g.adj_tensors("csr")):
        for ids in ends:
            ids.fill_(2**40)
    assert [end.tolist() for end in g.edges()] == [[0, 1], [1, 2]] and g.in_degrees().tolist() == [0, 1, 1]
    src = torch.tensor([0, 1])
    g = ours.graph((src, torch.tensor([1, 2])))
    src.fill_(2**40)
    g.ndata["x"] = torch.ones(3, 1)
    with pytest.raises(DGLError, match="1099511627776"):
        g.update_all(ours.function.copy_u("x", "m"), ours.function.sum("m", "y"))


def test_numbers_of_a_batch_are_checked():
    """Kernels read and write as many rows as they say."""
    g = ours.graph(([0, 1, 2], [1, 2, 0]))
    for counts in ([3000, 3000], [4, -1], [1, 1], [1.5, 1.5]):
        for setter in (g.set_batch_num_nodes, g.set_batch_num_edges):
            with pytest.raises(DGLError, match="val"):
                setter(torch.tensor(counts))
    g.set_batch_num_nodes(torch.tensor([1, 2]))
    assert g.batch_size == 2
