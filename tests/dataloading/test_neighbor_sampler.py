"""NeighborSampler: its blocks are edges of the graph, its samples have the right odds, and threads change nothing."""

import itertools

import pytest
import torch

from halfgnn import Graph, HeteroGraph
from halfgnn.dataloading import NeighborSampler

GENERATOR = torch.Generator().manual_seed(0)


def random_graph(num_nodes=60, num_edges=500, dtype=torch.int64):
    src, dst = torch.randint(num_nodes, (2, num_edges), generator=GENERATOR).to(dtype)
    dst[dst == 3] = 4  # node 3 has no in-edges
    return Graph.from_edges(src, dst, num_src=num_nodes, num_dst=num_nodes)


def star(degree):
    """One node, 0, with in-edges from 1 ... degree."""
    return Graph.from_edges(torch.arange(1, degree + 1), torch.zeros(degree, dtype=torch.int64), num_dst=degree + 1)


def check_block(g, block, nodes):
    """Edges of the block are edges of g between the nodes it names, and destinations come first. Returns its degrees."""
    src_ids, dst_ids, edge_ids = block.srcdata["_ID"], block.dstdata["_ID"], block.edata["_ID"]
    assert src_ids.dtype == dst_ids.dtype == edge_ids.dtype == g.idtype and block.topology.idtype == torch.int32
    assert src_ids.equal(nodes[: len(src_ids)]) and src_ids[: len(dst_ids)].equal(dst_ids)
    assert len(src_ids.unique()) == len(src_ids)
    (src, dst), (g_src, g_dst) = block.topology.edges(), g.edges()
    assert src_ids[src.long()].equal(g_src[edge_ids.long()]) and dst_ids[dst.long()].equal(g_dst[edge_ids.long()])
    appeared = list(dict.fromkeys([*range(len(dst_ids)), *src.tolist()]))
    assert appeared[: len(dst_ids)] == list(range(len(dst_ids)))
    return block.topology.in_degrees().long(), g.in_degrees()[dst_ids.long()].long()


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("replace", [False, True])
def test_blocks_are_sampled_edges(dtype, replace):
    g = random_graph(dtype=dtype)
    seeds = torch.tensor([7, 3, 59, 0], dtype=dtype)
    sampler = NeighborSampler(g, [3, -1, 40], replace=replace, seed=1)
    input_nodes, output_nodes, blocks = sampler.sample(seeds)
    assert output_nodes.equal(seeds) and blocks[-1].dstdata["_ID"].equal(seeds)
    assert blocks[0].srcdata["_ID"].equal(input_nodes)
    for fanout, block, inner in itertools.zip_longest(sampler.fanouts, blocks, blocks[1:]):
        sampled, degrees = check_block(g, block, input_nodes)
        fanout = fanout[0]
        if fanout < 0:
            assert sampled.equal(degrees)
        else:
            assert sampled.equal(fanout * (degrees > 0) if replace else degrees.clamp(max=fanout))
        if not replace or fanout < 0:
            assert len(block.edata["_ID"].unique()) == block.topology.num_edges
        if inner is not None:
            assert block.dstdata["_ID"].equal(inner.srcdata["_ID"])


def test_new_sources_come_in_the_order_of_their_appearance():
    g = random_graph()
    block = NeighborSampler(g, [4]).sample(torch.arange(5)).blocks[0]
    sources = block.topology.csc().indices.tolist()
    new = [node for node in dict.fromkeys(sources) if node >= 5]
    assert new == list(range(5, block.num_src_nodes()))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("replace", [False, True])
def test_any_number_of_threads_samples_the_same(weighted, replace):
    g = random_graph(3000, 60_000)
    weight = torch.rand(g.num_edges, generator=GENERATOR) if weighted else None
    sampler = NeighborSampler(g, [20, 15], replace=replace, edge_weight=weight)
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            results.append(sampler.sample(torch.arange(0, 3000, 2), seed=9))
    finally:
        torch.set_num_threads(before)
    for batch in results[1:]:
        assert batch.input_nodes.equal(results[0].input_nodes)
        for block, first in zip(batch.blocks, results[0].blocks):
            assert block.edata["_ID"].equal(first.edata["_ID"])
            assert block.topology.csc().indices.equal(first.topology.csc().indices)
    assert not sampler.sample(torch.arange(0, 3000, 2), seed=10).input_nodes.equal(results[0].input_nodes)
    narrow = NeighborSampler(g.int(), [20, 15], replace=replace, edge_weight=weight)
    assert narrow.sample(torch.arange(0, 3000, 2), seed=9).input_nodes.equal(results[0].input_nodes.int())


def test_seeds_and_pytorchs_generator_repeat_samples():
    g = random_graph()
    ids = torch.arange(10)
    sampler = NeighborSampler(g, [2])
    torch.manual_seed(4)
    first, second = (sampler.sample(ids).blocks[0].edata["_ID"] for _ in range(2))
    torch.manual_seed(4)
    assert sampler.sample(ids).blocks[0].edata["_ID"].equal(first) and not first.equal(second)
    sampler = NeighborSampler(g, [2], seed=-3)
    assert sampler.sample(ids).blocks[0].edata["_ID"].equal(sampler.sample(ids).blocks[0].edata["_ID"])


# ---- odds: chi-square against what each outcome should have, at a fixed seed -------------------------------------------------


def counted(g, fanout, samples=4000, **options):
    """How often each set (or list, with replacement) of edges of node 0 was sampled."""
    sampler, counts = NeighborSampler(g, [fanout], **options), {}
    for seed in range(samples):
        edges = tuple(sampler.sample(torch.tensor([0]), seed=seed).blocks[0].edata["_ID"].tolist())
        edges = edges if options.get("replace") else tuple(sorted(edges))
        counts[edges] = counts.get(edges, 0) + 1
    return counts


def check_odds(counts, expected):
    """expected: {outcome: probability}. The limit is that of 1 in 10,000 for a chi-square of so many degrees."""
    from scipy.stats import chi2

    total = sum(counts.values())
    assert set(counts) <= {outcome for outcome, p in expected.items() if p > 0}
    possible = [(counts.get(outcome, 0), p * total) for outcome, p in expected.items() if p > 0]
    statistic = sum((count - mean) ** 2 / mean for count, mean in possible)
    assert statistic < chi2.isf(1e-4, len(possible) - 1)


def test_every_set_of_edges_is_equally_likely():
    sets = list(itertools.combinations(range(6), 3))
    check_odds(counted(star(6), 3), dict.fromkeys(sets, 1 / len(sets)))


def test_every_list_of_edges_is_equally_likely_with_replacement():
    lists = list(itertools.product(range(4), repeat=2))
    check_odds(counted(star(4), 2, replace=True), dict.fromkeys(lists, 1 / len(lists)))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_weights_are_the_odds_of_successive_draws(dtype):
    weight = torch.tensor([1, 0, 4, 2, 3], dtype=dtype)
    p = (weight / weight.sum()).tolist()
    expected = {
        pair: p[pair[0]] * p[pair[1]] * (1 / (1 - p[pair[0]]) + 1 / (1 - p[pair[1]]))
        for pair in itertools.combinations(range(5), 2)
    }
    check_odds(counted(star(5), 2, edge_weight=weight), expected)
    expected = {(i, j): p[i] * p[j] for i, j in itertools.product(range(5), repeat=2)}
    check_odds(counted(star(5), 2, edge_weight=weight, replace=True), expected)


def test_many_edges_of_a_long_row_are_different_and_uniform():
    g, counts = star(1000), torch.zeros(1000)
    sampler = NeighborSampler(g, [100])
    for seed in range(500):
        edges = sampler.sample(torch.tensor([0]), seed=seed).blocks[0].edata["_ID"]
        assert len(edges.unique()) == 100
        counts[edges] += 1
    z = (counts - 50) / (500 * 0.1 * 0.9) ** 0.5
    assert z.abs().max() < 5 and abs(z.square().mean() - 1) < 0.25


def test_duplicate_edges_empty_rows_and_weights_of_zero():
    g = Graph.from_edges(torch.tensor([1, 1, 1, 0]), torch.tensor([0, 0, 0, 2]), num_src=3, num_dst=3)
    weight = torch.tensor([0.0, 1.0, 2.0, 0.0])
    for options, edges in (({}, [0, 1, 2, 3]), ({"edge_weight": weight}, [1, 2])):
        for fanout in (-1, 3):
            batch = NeighborSampler(g, [fanout], **options).sample(torch.tensor([0, 1, 2]))
            assert sorted(batch.blocks[0].edata["_ID"].tolist()) == edges
            assert batch.input_nodes.tolist() == [0, 1, 2]
    empty = NeighborSampler(g, [2, 2]).sample(torch.tensor([], dtype=torch.int64))
    assert empty.input_nodes.numel() == 0 and [block.topology.num_edges for block in empty.blocks] == [0, 0]


# ---- several types -----------------------------------------------------------------------------------------------------------


def heterograph():
    edges = {
        ("paper", "cites", "paper"): torch.randint(20, (2, 120), generator=GENERATOR),
        ("author", "writes", "paper"): torch.stack(
            [torch.randint(9, (80,), generator=GENERATOR), torch.randint(20, (80,), generator=GENERATOR)]
        ),
        ("paper", "rev", "author"): torch.stack(
            [torch.randint(20, (80,), generator=GENERATOR), torch.randint(9, (80,), generator=GENERATOR)]
        ),
    }
    return HeteroGraph.from_edge_index_dict(edges, {"paper": 20, "author": 9, "other": 2})


def test_blocks_of_a_heterograph():
    g = heterograph()
    cites, writes, rev = g.canonical_etypes
    sampler = NeighborSampler(g, [3, {"cites": 2, writes: 0, "rev": -1}], seed=0, csr=True)
    input_nodes, output_nodes, blocks = sampler.sample({"paper": torch.tensor([5, 1]), "author": torch.tensor([8])})
    assert {ntype: len(ids) for ntype, ids in output_nodes.items()} == {"paper": 2, "author": 1, "other": 0}
    assert blocks[1].topology[writes].num_edges == 0
    assert blocks[1].topology[rev].num_edges == int(g[rev].in_degrees()[8])
    for block in blocks:
        for etype in g.canonical_etypes:
            src_ids, dst_ids = block.srcdata["_ID"][etype[0]], block.dstdata["_ID"][etype[2]]
            (src, dst), (g_src, g_dst) = block.topology[etype].edges(), g[etype].edges()
            edge_ids = block.edata["_ID"][etype]
            assert src_ids[src.long()].equal(g_src[edge_ids]) and dst_ids[dst.long()].equal(g_dst[edge_ids])
    for ntype in ("paper", "author"):
        assert blocks[0].srcdata["_ID"][ntype].equal(input_nodes[ntype])
        assert blocks[0].dstdata["_ID"][ntype].equal(blocks[1].srcdata["_ID"][ntype])
    degrees = blocks[0].topology[cites].in_degrees()
    assert degrees.equal(g[cites].in_degrees()[blocks[0].dstdata["_ID"]["paper"]].clamp(max=3).int())


# ---- edges -------------------------------------------------------------------------------------------------------------------


def test_seed_edges_negatives_and_exclusion():
    g = random_graph()
    src, dst = g.edges()
    edges = torch.tensor([4, 400, 17])
    sampler = NeighborSampler(g, [-1, -1], seed=2)
    batch = sampler.sample_edges(edges, negatives=2, exclude="self")
    ids = batch.output_nodes
    for graph, ends in (
        (batch.positive, (src[edges], dst[edges])),
        (batch.negative, (src[edges].repeat_interleave(2),)),
    ):
        for local, end in zip(graph.edges(), ends):
            assert ids[local.long()].equal(end)
    assert batch.negative.num_edges == 6
    whole = sampler.sample_edges(edges, negatives=2).blocks[1]
    kept = batch.blocks[1].edata["_ID"]
    assert set(whole.edata["_ID"].tolist()) - set(kept.tolist()) == set(edges.tolist())
    local_src, local_dst = batch.blocks[1].topology.edges()
    assert batch.blocks[1].srcdata["_ID"][local_src.long()].equal(src[kept])
    assert ids[local_dst.long()].equal(dst[kept])


def test_negatives_are_uniform_over_destinations_of_their_type():
    g = heterograph()
    edges = torch.arange(80)
    batch = NeighborSampler(g, [1], seed=0).sample_edges(edges, etype="writes", negatives=60)
    drawn = batch.output_nodes["paper"][batch.negative.edges()[1].long()].bincount(minlength=20)
    assert drawn.sum() == 4800 and ((drawn - 240).square() / 240).sum() < 52  # chi-square of 19: 1 in 10,000
    assert batch.positive.num_src == len(batch.output_nodes["author"])


# ---- errors ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (dict(fanouts=[]), TypeError, "fanouts is"),
        (dict(fanouts=[-2]), ValueError, r"fanouts\[0\] is -2"),
        (dict(fanouts=[2.5]), TypeError, r"fanouts\[0\] is 2.5"),
        (dict(edge_weight=torch.ones(3)), ValueError, r"edge_weight has shape \(3,\)"),
        (dict(edge_weight=torch.full((500,), -1.0)), ValueError, "edge_weight has weights"),
        (dict(edge_weight=torch.ones(500, dtype=torch.int64)), TypeError, "edge_weight is a torch.int64"),
    ],
)
def test_wrong_samplers_are_refused(options, error, message):
    with pytest.raises(error, match=message):
        NeighborSampler(random_graph(), **{"fanouts": [2], **options})


def test_wrong_seeds_are_refused():
    sampler = NeighborSampler(random_graph(), [2])
    for seeds, error, message in (
        (torch.tensor([60]), ValueError, r"seeds holds 60; expected indices in \[0, 60\)"),
        (torch.tensor([-1]), ValueError, "seeds holds -1"),
        (torch.tensor([1, 1]), ValueError, "seeds holds 1 nodes more than once"),
        (torch.tensor([1.0]), TypeError, "seeds has dtype"),
    ):
        with pytest.raises(error, match=message):
            sampler.sample(seeds)
    with pytest.raises(ValueError, match="edges holds 500"):
        sampler.sample_edges(torch.tensor([500]))
    with pytest.raises(ValueError, match="exclude holds 4294967296"):  # as int32 it is 0, an edge
        sampler.sample_edges(torch.tensor([3]), exclude=torch.tensor([2**32]))
    with pytest.raises(ValueError, match="10 sources and 4 destinations"):
        NeighborSampler(Graph.from_edges(torch.tensor([9]), torch.tensor([3])), [2])
    hetero = NeighborSampler(heterograph(), [2])
    with pytest.raises(TypeError, match="for a HeteroGraph"):
        hetero.sample(torch.tensor([0]))
    with pytest.raises(ValueError, match="'venue', which is no node type"):
        hetero.sample({"venue": torch.tensor([0])})
    with pytest.raises(ValueError, match=r"fanouts\[0\] has no \('paper', 'rev', 'author'\)"):
        NeighborSampler(heterograph(), [{"cites": 1, "writes": 1}])


def test_weights_are_in_the_order_of_edge_data():
    src, dst = torch.arange(8), torch.tensor([7, 3, 5, 1, 7, 3, 5, 1])  # not by destination
    weight = torch.tensor([1.0, 1.0, 0.0, 1.0, 0.0, 0.0, 1.0, 0.0])
    g = Graph.from_edges(src, dst, num_src=8, num_dst=8)
    block = NeighborSampler(g, [2], edge_weight=weight).sample(torch.tensor([1, 3, 5, 7])).blocks[0]
    assert block.edata["_ID"].tolist() == [3, 1, 6, 0]


def test_layers_have_the_bounds_of_their_fanouts():
    blocks = NeighborSampler(random_graph(), [2, 5]).sample(torch.arange(20)).blocks
    assert [int(block.topology.csc().indptr.diff().max()) for block in blocks] == [2, 5]
    assert all(int(block.topology.csc().indptr.diff().max()) <= block.topology.max_in_degree for block in blocks)
