"""HeteroGraph, compared with its relations and with DGL."""

import copy
import io
import pickle

import pytest
import torch

import halfgnn
from halfgnn import Graph, HeteroGraph
from halfgnn.heterograph import Block
from halfgnn.nn import GATConv, HeteroGraphConv
from tests import support

dgl = pytest.importorskip("dgl")

from tests.support_hetero import (  # noqa: E402
    CITES,
    NUM_NODES,
    SHOWN,
    WRITES,
    WRITTEN,
    adjacency,
    dgl_graph,
    edges,
    features,
    hetero_graph,
    sampled,
)

HALF = support.HALVES


@pytest.mark.parametrize("idtype", support.IDTYPES)
def test_constructors_agree(idtype):
    for g in (hetero_graph(idtype=idtype), HeteroGraph.from_dgl(dgl_graph(idtype))):
        assert g.num_src == g.num_dst == NUM_NODES
        assert g.idtype == idtype and len(g) == 4
        for etype, ends in edges().items():
            assert adjacency(g[etype]) == torch.stack(ends).tolist()
            assert g.num_edges(etype) == 300
    assert set(g.canonical_etypes) == set(edges())


def test_a_block_keeps_its_two_sides():
    block = sampled()[0]
    g = HeteroGraph.from_dgl(block)
    assert HeteroGraph.from_dgl(block) is g
    assert g.num_src == {ntype: block.num_src_nodes(ntype) for ntype in block.srctypes}
    assert g.num_dst == {ntype: block.num_dst_nodes(ntype) for ntype in block.dsttypes}
    for etype in block.canonical_etypes:
        assert g[etype].csc().edge_ids is None  # the sampler's CSC, not sorted again
        assert adjacency(g[etype]) == [ends.tolist() for ends in block.edges(etype=etype)]


@pytest.mark.parametrize("idtype", support.IDTYPES)
def test_stack_is_the_relations_side_by_side(idtype):
    g = hetero_graph(idtype=idtype)
    stack = g.stack()
    assert g.stack() is stack and set(stack.etypes) == set(g)
    dsttypes = [etype[2] for etype in stack.etypes]
    assert dsttypes == sorted(dsttypes, key=dsttypes.index)
    src, dst = stack.graph.edges()
    first = [0, 0, 0]
    for etype, *sizes in zip(stack.etypes, stack.num_src, stack.num_dst, stack.num_edges):
        own = slice(first[2], first[2] + sizes[2])
        assert [(src[own] - first[0]).tolist(), (dst[own] - first[1]).tolist()] == adjacency(g[etype])
        first = [a + b for a, b in zip(first, sizes)]
    assert first == [stack.graph.num_src, stack.graph.num_dst, stack.graph.num_edges]


def test_relations_come_back_out_of_a_stack():
    g = hetero_graph()
    ordered = HeteroGraph({etype: g[etype] for etype in g})
    ordered.stack()
    moved = ordered.int()  # has only the stack
    assert moved._relations == {} and moved.device.type == "cpu"
    for etype in g:
        assert moved.num_edges(etype) == g.num_edges(etype)
        assert adjacency(moved[etype]) == adjacency(g[etype])
        assert (moved[etype].num_src, moved[etype].num_dst) == (g[etype].num_src, g[etype].num_dst)


def test_a_compact_stack_has_the_sources_that_are_read():
    """Only on the CPU, and only if less than three quarters of the sources are read."""
    few = Graph.from_edges(torch.tensor([40, 3, 40]), torch.tensor([1, 0, 2]), num_src=50, num_dst=60)
    g = HeteroGraph({WRITES: few, CITES: hetero_graph()[CITES]})
    stack = g.stack()
    assert stack.num_src == (2, 60) and stack.graph.num_src == 62
    assert stack.src_ids[0].tolist() == [3, 40] and stack.src_ids[1] is None
    moved = g.int()
    assert moved.stack().src_ids[0].dtype == torch.int32
    for etype in g:
        assert adjacency(moved[etype]) == adjacency(g[etype]) and moved[etype].num_src == g[etype].num_src
    conv = HeteroGraphConv({etype: GATConv(24, 6, 4, allow_zero_in_degree=True) for etype in g})
    x = features({"author": 50, "paper": 60})
    out = conv(g, {ntype: feat.requires_grad_() for ntype, feat in x.items()})["paper"]
    expected = sum(conv.mods[str(etype)](g[etype], (x[etype[0]], x["paper"])) for etype in g)
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)
    leaves = [*x.values(), *conv.parameters()]
    for ours, theirs in zip(*(torch.autograd.grad(y.sin().sum(), leaves) for y in (out, expected))):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_a_relation_without_edges_has_no_sources_in_the_stack():
    g = hetero_graph()
    empty = torch.zeros(2, 0, dtype=torch.int64)
    g = HeteroGraph({**{e: g[e] for e in g}, SHOWN: Graph.from_edge_index(empty, num_src=5, num_dst=60)})
    stack = g.stack()
    assert stack.num_src[stack.etypes.index(SHOWN)] == 0
    assert stack.num_dst[stack.etypes.index(SHOWN)] == 60


def test_a_stack_of_a_part_shares_the_whole_where_the_rest_is_empty():
    first, last = (HeteroGraph.from_dgl(block) for block in sampled())
    whole = last.stack()
    part = last.stack((WRITES, CITES, SHOWN))  # no author is a destination
    assert part.graph is whole.graph and WRITTEN not in part.etypes
    whole = first.stack()
    assert first.stack((WRITES, CITES)).graph is not whole.graph


def test_graphs_are_kept_and_saved():
    g = hetero_graph()
    g.stack()
    for again in (copy.deepcopy(g), pickle.loads(pickle.dumps(g))):
        assert again.num_src == g.num_src and adjacency(again[CITES]) == adjacency(g[CITES])
    file = io.BytesIO()
    torch.save(g, file)
    file.seek(0)
    assert adjacency(torch.load(file, weights_only=True)[WRITES]) == adjacency(g[WRITES])


def test_blocks_that_dgl_samples_wrongly_are_refused():
    """DGL samples them from int32 graphs on the CPU, from the second batch on."""
    sampler = dgl.dataloading.NeighborSampler([3, 4])
    g = dgl_graph(torch.int32)
    with pytest.raises(
        ValueError, match=r"g has a source node \d+, but \d+ source nodes; if it is a block, sample it from g.long"
    ):
        for i in range(20):
            for block in sampler.sample_blocks(g, {"paper": torch.randperm(60)[: 5 + i].int()})[2]:
                HeteroGraph.from_dgl(block)


def test_names_of_relations():
    g = hetero_graph()
    assert g["cites"] is g[CITES]
    with pytest.raises(KeyError, match="is no edge type"):
        g["sells"]
    twice = HeteroGraph({CITES: g[CITES], ("author", "cites", "paper"): g[WRITES]})
    with pytest.raises(KeyError, match="names several"):
        twice["cites"]


def test_an_operator_takes_the_only_relation():
    g = hetero_graph()
    one = HeteroGraph({CITES: g[CITES]})
    x = torch.randn(60, 8)
    assert torch.equal(halfgnn.ops.copy_u_sum(one, x), halfgnn.ops.copy_u_sum(g[CITES], x))
    assert torch.equal(halfgnn.ops.copy_u_sum(Block(one), x), halfgnn.ops.copy_u_sum(g[CITES], x))
    with pytest.raises(ValueError, match="4 edge types; expected one"):
        halfgnn.ops.copy_u_sum(g, x)


def test_wrong_heterographs():
    g = hetero_graph()
    with pytest.raises(ValueError, match="at least one"):
        HeteroGraph({})
    with pytest.raises(TypeError, match="no edge type"):
        HeteroGraph({"cites": g[CITES]})
    with pytest.raises(TypeError, match=r"expected a halfgnn\.Graph"):
        HeteroGraph({CITES: 3})
    with pytest.raises(TypeError, match="expected one dtype"):
        HeteroGraph({CITES: g[CITES], WRITES: g[WRITES].int()})
    with pytest.raises(ValueError, match=r"has num_src 50, but there are 60 nodes of type 'paper'"):
        HeteroGraph({CITES: g[CITES], ("paper", "x", "paper"): g[WRITES]})
    with pytest.raises(ValueError, match="num_nodes has no 'venue'"):
        HeteroGraph.from_edge_index_dict({SHOWN: torch.zeros(2, 3, dtype=torch.int64)}, {"paper": 4})
    with pytest.raises(ValueError, match="holds 9; expected indices"):
        HeteroGraph.from_edge_index_dict({CITES: torch.full((2, 3), 9)}, {"paper": 4})
    with pytest.raises(AttributeError, match="immutable"):
        g.num_src = {}
    with pytest.raises(TypeError, match="DGLGraph"):
        HeteroGraph.from_dgl(g)
