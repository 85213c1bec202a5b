"""Message passing of DGL under halfgnn.dgl, and what is kept with its graphs."""

import copy
import pickle
import weakref

import pytest
import torch

dgl = pytest.importorskip("dgl", reason="dgl is not installed", exc_type=ImportError)

import dgl.function as fn  # noqa: E402

import halfgnn  # noqa: E402
import halfgnn.dgl  # noqa: E402
from halfgnn.dgl import topology  # noqa: E402
from tests.dgl.support_dgl import (  # noqa: E402
    assert_propagates_as_dgl,
    assert_same,
    bipartite,
    fell_back,
    heterograph,
    homogeneous,
    operand,
    propagate,
    with_gradients,
)

GRAPHS = [homogeneous, bipartite]


@pytest.fixture
def conversions(monkeypatch):
    """A list to which every conversion of a graph index to a Graph is appended."""
    made = []
    convert = halfgnn.graph._of_adjacencies
    monkeypatch.setattr(halfgnn.graph, "_of_adjacencies", lambda relation: made.append(convert(relation)) or made[-1])
    return made


def test_a_graph_is_converted_once(conversions):
    g = homogeneous()
    for _ in range(3):
        assert_propagates_as_dgl(g)
    assert len(conversions) == 1
    assert halfgnn.Graph.from_dgl(g) is conversions[0]
    assert halfgnn.dgl.graph_from_dgl(g.local_var(), "_E") is conversions[0]
    assert len(conversions) == 1


def test_relations_of_a_heterograph_are_converted_once(conversions):
    hg = heterograph()
    x = torch.rand(hg.num_nodes("user"), 4)
    with halfgnn.dgl.accelerate():
        for _ in range(3):
            for relation in (hg["follows"], hg["follows"]["follows"]):
                relation.srcdata["x"] = x
                relation.update_all(fn.copy_u("x", "m"), fn.sum("m", "y"))
                dgl.ops.edge_softmax(relation, torch.rand(relation.num_edges(), 1))
    assert len(conversions) == 1
    assert halfgnn.Graph.from_dgl(hg, "follows") is conversions[0]
    assert halfgnn.Graph.from_dgl(hg, ("user", "follows", "user")) is conversions[0]
    with pytest.raises(ValueError, match="etype"):
        halfgnn.Graph.from_dgl(hg)


def test_a_changed_graph_is_converted_anew(conversions):
    g = homogeneous()
    assert_propagates_as_dgl(g)
    changes = [
        lambda: g.add_edges([0, 1, 2], [3, 4, 5]),
        lambda: g.add_nodes(4),
        lambda: g.remove_edges([5, 6, 7]),
        lambda: g.remove_nodes([0, 9]),
    ]
    for i, change in enumerate(changes):
        change()
        assert_propagates_as_dgl(g)
        assert len(conversions) == i + 2
        graph = halfgnn.Graph.from_dgl(g)
        assert (graph.num_src, graph.num_edges) == (g.num_nodes(), g.num_edges())
        assert all(torch.equal(a, b) for a, b in zip(graph.edges(), g.edges(), strict=True))


def test_one_changed_relation_of_a_heterograph():
    hg = heterograph()
    halfgnn.dgl.patch()
    x = {ntype: torch.rand(hg.num_nodes(ntype), 3) for ntype in hg.ntypes}

    def run():
        hg.ndata["x"] = x
        hg.multi_update_all({e: (fn.copy_u("x", "m"), fn.sum("m", "y")) for e in hg.etypes}, "sum")
        return {ntype: hg.nodes[ntype].data["y"] for ntype in ("user", "item")}

    run()
    hg.add_edges([0, 1], [2, 2], etype="buys")
    after = run()
    halfgnn.dgl.unpatch()
    for ntype, expected in run().items():
        torch.testing.assert_close(after[ntype], expected)


@pytest.mark.parametrize("formats", ["coo", "csr", "csc", ["coo", "csr"], ["csr", "csc"]], ids=str)
@pytest.mark.parametrize("make", GRAPHS)
def test_restricted_formats(make, formats):
    g = make()
    whole = g.formats(["coo", "csr", "csc"])
    g = g.formats(formats)
    x, w = operand(g.num_src_nodes(), (4,)), operand(g.num_edges(), (1,), seed=2)
    if make is bipartite:
        operands, call = (x, w), dgl.ops.u_mul_e_sum
    else:
        operands, call = (), None
    with halfgnn.dgl.accelerate():
        before = g.formats()
        actual = with_gradients(lambda *t: call(g, *t), *operands) if call else propagate(g, x, w)
        after = g.formats()
    expected = with_gradients(lambda *t: call(whole, *t), *operands) if call else propagate(whole, x, w)
    assert_same(actual, expected)
    assert fell_back() == {}
    assert "coo" in before["created"] or "coo" not in after["created"], "COO was asked for"


def test_other_id_type_and_derived_graphs():
    g = homogeneous()
    for derived in (
        g.int(),
        dgl.reverse(g),
        g.clone(),
        dgl.add_self_loop(g),
        dgl.in_subgraph(g, [1, 2]),
    ):
        assert_propagates_as_dgl(derived)
    block = dgl.to_block(dgl.in_subgraph(g, torch.arange(10)), torch.arange(10))
    assert isinstance(halfgnn.Graph.from_dgl(block), halfgnn.Graph)
    assert_propagates_as_dgl(block)
    assert halfgnn.Graph.from_dgl(g.int()).idtype is torch.int32


def test_apply_edges_of_some_edges_send_and_pull():
    def run():
        g = homogeneous()
        g.ndata["x"] = operand(30, (3,)).detach()
        g.apply_edges(fn.u_add_v("x", "x", "s"), edges=torch.tensor([3, 5, 8]))
        g.send_and_recv(torch.tensor([3, 5, 8]), fn.copy_u("x", "m"), fn.sum("m", "a"))
        g.pull(torch.tensor([1, 2]), fn.copy_u("x", "m"), fn.max("m", "b"))
        g.push(torch.tensor([1, 2]), fn.copy_u("x", "m"), fn.mean("m", "c"))
        return [g.edata["s"], g.ndata["a"], g.ndata["b"], g.ndata["c"]]

    expected = run()
    with halfgnn.dgl.accelerate():
        assert_same(run(), expected)
    assert fell_back() == {}


def test_shares_memory_with_dgl():
    g = homogeneous().formats(["csc", "csr"])
    g.create_formats_()
    graph = halfgnn.Graph.from_dgl(g)
    for side, format in ((graph.csc(), "csc"), (graph.csr(), "csr")):
        for ours, theirs in zip(side, g.adj_tensors(format), strict=True):
            assert ours.data_ptr() == theirs.data_ptr()


def test_edges_stored_in_order_need_no_edge_ids():
    src, dst = torch.tensor([0, 2, 1, 0]), torch.tensor([0, 0, 1, 2])
    g = dgl.graph((src, dst))
    assert halfgnn.Graph.from_dgl(g).csc()[2] is None
    assert halfgnn.Graph.from_dgl(dgl.graph((dst, src))).csc()[2] is not None


def test_what_is_kept_dies_with_the_graph():
    g = homogeneous()
    assert_propagates_as_dgl(g)
    kept = weakref.ref(halfgnn.Graph.from_dgl(g))
    assert kept() is not None
    del g
    assert kept() is None, "without a garbage collection"


def test_a_used_graph_can_be_copied_and_sent():
    g = homogeneous()
    assert_propagates_as_dgl(g)
    for other in (pickle.loads(pickle.dumps(g)), copy.deepcopy(g), copy.copy(g)):
        assert_propagates_as_dgl(other)


def test_copies_on_other_devices_are_made_once():
    kept = topology.topology_of(homogeneous()._graph)
    there = kept.on(torch.device("meta"))
    assert there.device.type == "meta"
    assert there.csc().indices.shape == (100,)
    assert kept.on(torch.device("meta")) is there
    assert kept.on(torch.device("cpu")) is kept.graph


def test_public_operators_take_a_dgl_graph():
    g = homogeneous()
    x, w = torch.rand(30, 4), torch.rand(100, 1)
    torch.testing.assert_close(halfgnn.ops.u_mul_e_sum(g, x, w), dgl.ops.u_mul_e_sum(g, x, w))
    with pytest.raises(TypeError):
        halfgnn.dgl.graph_from_dgl("g")
