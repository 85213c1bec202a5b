"""Sampled neighbours, walks and data loaders of halfgnn.compat.dgl."""

import itertools

import pytest
import torch

from halfgnn.compat.dgl import dataloading

from .pairs import assert_same, multigraph, ours, real, typed


def check_sampled(g, sampled, etype, nodes, fanout):
    """That the sampled edges are different in-edges of nodes, as many as there are to take."""
    ids = sampled.edges[etype].data[ours.EID]
    src, dst = sampled.edges(etype=etype)
    assert_same(g.find_edges(ids, etype=etype), (src, dst))
    assert ids.unique().numel() == ids.numel() and torch.isin(dst, torch.tensor(nodes)).all()
    degrees = g.in_degrees(nodes, etype=etype)
    assert_same(degrees.clamp(max=fanout), sampled.in_degrees(nodes, etype=etype))
    assert_same(g.edges[etype].data["w"][ids], sampled.edges[etype].data["w"])


def test_sample_neighbors():
    g = typed(ours)
    sampled = ours.sampling.sample_neighbors(g, {"item": [0, 4], "user": [1]}, 2)
    check_sampled(g, sampled, "buys", [0, 4], 2)
    check_sampled(g, sampled, "knows", [1], 2)
    assert sampled.num_edges("has") == 0
    one = multigraph(ours)
    out = one.sample_neighbors([0, 1], -1, edge_dir="out")
    assert_same(one.out_subgraph([0, 1]).edata[ours.EID].sort()[0], out.edata[ours.EID].sort()[0])
    one.edata["mask"] = torch.arange(30) % 2 == 0
    assert (ours.sampling.sample_neighbors(one, one.nodes(), 3, prob="mask").edata[ours.EID] % 2 == 0).all()
    kept = ours.sampling.sample_neighbors(one, one.nodes(), -1, exclude_edges=torch.arange(10)).edata[ours.EID]
    assert_same(torch.arange(10, 30), kept.sort()[0])


def test_seeds_decide_samples():
    g = multigraph(ours, 50, 800)

    def draw():
        return ours.sampling.sample_neighbors(g, g.nodes(), 3).edata[ours.EID]

    ours.seed(1)
    first, second = draw(), draw()
    ours.seed(1)
    assert_same(first, draw())
    assert not torch.equal(first, second)


def test_select_topk():
    for options in ({}, {"ascending": True}, {"edge_dir": "out", "nodes": [1, 4]}):
        expected, result = (d.sampling.select_topk(multigraph(d), 2, "w", **options) for d in (real, ours))
        assert_same(expected.edata["_ID"].sort()[0], result.edata["_ID"].sort()[0])


def test_random_walk():
    g = typed(ours)
    traces, eids, types = ours.sampling.random_walk(
        g, [0, 1, 2, 0], metapath=["knows", "buys", "has"], return_eids=True
    )
    assert [g.ntypes[i] for i in types] == ["user", "user", "item", "tag"]
    for step, etype in enumerate(("knows", "buys", "has")):
        going = traces[:, step + 1] >= 0
        src, dst = g.find_edges(eids[going, step], etype=etype)
        assert_same((src, dst), (traces[going, step], traces[going, step + 1]))
        ended = traces[~going, step]
        assert (g.out_degrees(ended[ended >= 0], etype=etype) == 0).all()
    one = multigraph(ours)
    one.edata["p"] = (torch.arange(30) < 15).float()
    _, eids, _ = ours.sampling.random_walk(one, one.nodes(), length=5, prob="p", return_eids=True)
    assert eids.max() < 15
    assert (ours.sampling.random_walk(one, one.nodes(), length=2, restart_prob=1.0)[0][:, 1:] == -1).all()


def test_negative_samples():
    g = typed(ours)
    src, dst = ours.sampling.global_uniform_negative_sampling(g, 6, etype="knows")
    assert len(src) == 6 and not g.has_edges_between(src, dst, etype="knows").any() and (src != dst).all()
    src, dst = dataloading.negative_sampler.Uniform(3)(g, {"buys": torch.tensor([5, 2])})["user", "buys", "item"]
    assert_same(g.find_edges([5, 5, 5, 2, 2, 2], etype="buys")[0], src)


def check_blocks(g, blocks):
    """That edges, nodes and features of blocks are the graph's, and that each block's outputs are the next one's inputs."""
    for block in blocks:
        for etype in block.canonical_etypes:
            src, dst = block.edges(etype=etype)
            inputs, outputs = block.srcnodes[etype[0]].data, block.dstnodes[etype[2]].data
            assert_same(
                g.find_edges(block.edges[etype].data[ours.EID], etype=etype),
                (inputs[ours.NID][src], outputs[ours.NID][dst]),
            )
            assert_same(g.nodes[etype[0]].data["x"][inputs[ours.NID]], inputs["x"])
    for one, other in itertools.pairwise(blocks):
        for ntype in g.ntypes:
            assert_same(one.dstnodes[ntype].data[ours.NID], other.srcnodes[ntype].data[ours.NID])


@pytest.mark.parametrize("workers", [0, 1])
def test_loader_of_nodes(workers):
    g = typed(ours)
    seeds = {"user": g.nodes("user"), "item": torch.tensor([5, 1])}
    sampler = dataloading.NeighborSampler([2, {e: 1 for e in g.canonical_etypes}], prefetch_node_feats={"user": ["x"]})
    loader = dataloading.DataLoader(g, seeds, sampler, batch_size=3, shuffle=True, num_workers=workers)
    seen = []
    for inputs, outputs, blocks in loader:
        check_blocks(g, blocks)
        assert_same({ntype: blocks[0].srcnodes[ntype].data[ours.NID] for ntype in g.ntypes}, inputs)
        seen += [(ntype, i) for ntype, ids in outputs.items() for i in ids.tolist()]
    assert len(loader) == 3 and sorted(seen) == [("item", 1), ("item", 5), *(("user", i) for i in range(5))]


def test_loader_of_edges():
    g = multigraph(ours, 20, 60)
    sampler = dataloading.as_edge_prediction_sampler(
        dataloading.MultiLayerFullNeighborSampler(2),
        exclude="reverse_id",
        reverse_eids=torch.arange(60).flip(0),
        negative_sampler=dataloading.negative_sampler.Uniform(2),
        prefetch_labels=["w"],
    )
    for _, positive, negative, blocks in dataloading.DataLoader(g, torch.arange(60), sampler, batch_size=25):
        check_blocks(g, blocks)
        ids = positive.edata[ours.EID]
        nodes = positive.ndata[ours.NID]
        assert_same(g.find_edges(ids), tuple(nodes[ends] for ends in positive.edges()))
        assert_same(g.edata["w"][ids], positive.edata["w"])
        assert_same(nodes, negative.ndata[ours.NID])
        assert negative.num_edges() == 2 * len(ids)
        assert_same(nodes, blocks[-1].dstdata[ours.NID])
        assert not any(torch.isin(torch.cat([ids, 59 - ids]), block.edata[ours.EID]).any() for block in blocks)


def test_shadow_subgraphs():
    g = multigraph(ours)
    nodes, seeds, part = dataloading.ShaDowKHopSampler([2, 2]).sample(g, torch.tensor([3, 1]))
    assert_same(seeds, nodes[:2])
    assert_same(ours.node_subgraph(g, nodes), part)


def test_blocks_of_all_neighbors_are_dgls():
    """But for the order of input nodes and edges."""
    expected, sampled = (
        d.dataloading.MultiLayerFullNeighborSampler(2).sample(multigraph(d), torch.tensor([4, 0])) for d in (real, ours)
    )
    assert_same(expected[0].sort()[0], sampled[0].sort()[0])
    for one, other in zip(expected[2], sampled[2]):
        assert_same(one.edata["_ID"].sort()[0], other.edata["_ID"].sort()[0])
        assert_same(one.srcdata["_ID"].sort()[0], other.srcdata["_ID"].sort()[0])
        assert one.num_dst_nodes() == other.num_dst_nodes()
    assert_same(expected[2][1].dstdata["_ID"], sampled[2][1].dstdata["_ID"])


def test_masks_may_be_written_to_between_batches():
    g = ours.graph((torch.arange(1, 9), torch.zeros(8, dtype=torch.int64)))
    g.edata["mask"] = torch.ones(8, dtype=torch.bool)
    sampler = dataloading.NeighborSampler([-1], mask="mask")
    for wanted in (range(8), range(4, 8), ()):
        g.edata["mask"][: 8 - len(wanted)] = False
        block = sampler.sample_blocks(g, torch.tensor([0]))[2][0]
        assert sorted(block.edata[ours.EID].tolist()) == list(wanted)
    assert sampler._made is not None and sampler._sampler(g) is sampler._sampler(g)
