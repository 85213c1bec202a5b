"""Batches, readout, subgraphs and transforms of halfgnn.compat.dgl beside DGL's."""

import itertools
import pickle

import numpy as np
import pytest
import torch

from halfgnn.compat.dgl import base

from .pairs import assert_same, multigraph, ours, pair, real, typed

pytestmark = pytest.mark.filterwarnings("ignore")

OF_ONE_TYPE = {
    "node_subgraph": lambda d, g: d.node_subgraph(g, [7, 0, 3, 2]),
    "node_subgraph, ids kept": lambda d, g: d.node_subgraph(g, [7, 0, 3, 2], relabel_nodes=False, store_ids=False),
    "node_subgraph, mask": lambda d, g: g.subgraph(torch.arange(9) % 2 == 0),
    "edge_subgraph": lambda d, g: d.edge_subgraph(g, [20, 3, 4, 3]),
    "edge_subgraph, ids kept": lambda d, g: g.edge_subgraph([20, 3, 4], relabel_nodes=False),
    "in_subgraph": lambda d, g: d.in_subgraph(g, [5, 1]),
    "in_subgraph, new ids": lambda d, g: d.in_subgraph(g, [5, 1], relabel_nodes=True),
    "out_subgraph": lambda d, g: d.out_subgraph(g, [5, 1]),
    "out_subgraph, new ids": lambda d, g: d.out_subgraph(g, [5, 1], relabel_nodes=True),
    "khop_in_subgraph": lambda d, g: d.khop_in_subgraph(g, [2, 1], 1),
    "khop_out_subgraph": lambda d, g: d.khop_out_subgraph(g, 2, 1),
    "reverse": lambda d, g: d.reverse(g, copy_edata=True),
    "add_reverse_edges": lambda d, g: d.add_reverse_edges(g, copy_edata=True),
    "to_bidirected": lambda d, g: d.to_bidirected(g, copy_ndata=True),
    "to_simple": lambda d, g: d.to_simple(g, writeback_mapping=True, copy_edata=True),
    "to_simple, mean": lambda d, g: d.to_simple(g, copy_edata=True, aggregator="mean"),
    "add_self_loop": lambda d, g: d.add_self_loop(g),
    "add_self_loop, sum": lambda d, g: d.add_self_loop(g, fill_data="sum"),
    "remove_self_loop": lambda d, g: d.remove_self_loop(g),
    "remove_nodes": lambda d, g: d.remove_nodes(g, [1, 4], store_ids=True),
    "line_graph": lambda d, g: d.line_graph(g, shared=True),
    "line_graph, no backtracking": lambda d, g: d.line_graph(g, backtracking=False),
    "khop_adj": lambda d, g: d.khop_adj(g, 2),
    "compact_graphs": lambda d, g: d.compact_graphs([g, d.in_subgraph(g, [3])], always_preserve=torch.tensor([8])),
    "to_block": lambda d, g: d.to_block(d.in_subgraph(g, [6, 2]), [6, 2]),
    "to_block, sources alone": lambda d, g: d.to_block(g, include_dst_in_src=False),
    "reorder_graph": lambda d, g: d.reorder_graph(
        g,
        "custom",
        "custom",
        permute_config={"nodes_perm": np.roll(np.arange(9), 2), "edges_perm": np.roll(np.arange(30), 7)},
    ),
    "norm_by_dst": lambda d, g: d.norm_by_dst(g),
    "random_walk_pe": lambda d, g: d.random_walk_pe(g, 3),
    "svd_pe": lambda d, g: d.svd_pe(g, 2, random_flip=False).abs(),
    "shortest_dist": lambda d, g: d.shortest_dist(d.to_simple(g)),
    "double_radius_node_labeling": lambda d, g: d.double_radius_node_labeling(g, 5, 1),
    "GCNNorm": lambda d, g: d.GCNNorm()(d.to_simple(g)),
    "PPR": lambda d, g: d.PPR(eweight_name="v", avg_degree=2)(d.to_simple(g)),
    "GDC": lambda d, g: d.GDC([0.3, 0.2, 0.1], eweight_name="v", eps=0.05)(d.to_simple(g)),
    "SIGNDiffusion": lambda d, g: [d.SIGNDiffusion(2, "x", diffuse_op=op)(g) for op in ("raw", "rw", "gcn", "ppr")],
    "AddReverse": lambda d, g: d.AddReverse()(g),
    "ToLevi": lambda d, g: d.ToLevi()(d.remove_nodes(g, [8])),
}

OF_SEVERAL_TYPES = {
    "node_subgraph": lambda d, g: d.node_subgraph(g, {"user": [4, 0, 2], "item": [1, 5, 3]}),
    "node_subgraph, ids kept": lambda d, g: d.node_subgraph(
        g, {"user": [4, 0, 2], "item": [1, 5, 3], "tag": [2, 0]}, relabel_nodes=False
    ),
    "edge_subgraph": lambda d, g: d.edge_subgraph(g, {"buys": [7, 1], ("item", "has", "tag"): [2]}),
    "in_subgraph": lambda d, g: d.in_subgraph(g, {"item": [2, 1], "user": [0]}, relabel_nodes=True),
    "khop_in_subgraph": lambda d, g: d.khop_in_subgraph(g, {"tag": [1, 0], "user": [2]}, 2),
    "node_type_subgraph": lambda d, g: d.node_type_subgraph(g, ["user", "item"]),
    "edge_type_subgraph": lambda d, g: d.edge_type_subgraph(g, ["has", "buys"]),
    "compact_graphs": lambda d, g: d.compact_graphs(d.in_subgraph(g, {"tag": [2], "user": [1]})),
    "to_block": lambda d, g: d.to_block(d.in_subgraph(g, {"item": [3, 1]}), {"item": [3, 1]}),
    "metapath_reachable_graph": lambda d, g: d.metapath_reachable_graph(g, ["knows", "buys", "has"]),
    "to_simple": lambda d, g: d.to_simple(g, writeback_mapping=True),
    "AddSelfLoop": lambda d, g: d.AddSelfLoop(new_etypes=True)(g),
    "AddReverse": lambda d, g: d.AddReverse(copy_edata=True, sym_new_etype=True)(g),
    "unbatch": lambda d, g: d.unbatch(d.batch([g, g, d.in_subgraph(g, {"item": 2}, store_ids=False)])),
    "slice_batch": lambda d, g: d.slice_batch(d.batch([g, g]), 1, store_ids=True),
    "merge": lambda d, g: d.merge([d.edge_type_subgraph(g, ["knows"]), d.edge_type_subgraph(g, ["knows"])]),
}


@pytest.mark.parametrize("name", OF_ONE_TYPE)
def test_of_one_type(name):
    assert_same(*(OF_ONE_TYPE[name](package, multigraph(package)) for package in (real, ours)))


@pytest.mark.parametrize("name", OF_SEVERAL_TYPES)
def test_of_several_types(name):
    assert_same(*(OF_SEVERAL_TYPES[name](package, typed(package)) for package in (real, ours)))


@pytest.mark.parametrize("idtype", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("relabel", [True, False], ids=["new ids", "ids kept"])
def test_node_subgraph_of_many_edges(idtype, relabel):
    """Edges are by source, then by id, also of a graph whose in-edges were asked for first. Many of them are parallel."""
    nodes = torch.randperm(50, generator=torch.Generator().manual_seed(1))[:20].to(idtype)

    def made(package, first):
        graph = multigraph(package, 50, 2000, idtype)
        first(graph)
        return package.node_subgraph(graph, nodes, relabel_nodes=relabel)

    for first in (lambda g: None, lambda g: g.in_edges([3]), lambda g: (g.in_edges([3]), g.out_edges([3]))):
        assert_same(*pair(lambda package, first=first: made(package, first)))
    part, whole = made(ours, lambda g: None), multigraph(ours, 50, 2000, idtype)
    src, dst = (ends[part.edata[ours.EID].long()] for ends in whole.edges())
    names = part.ndata[ours.NID] if relabel else torch.arange(50, dtype=idtype)
    assert_same((src, dst), tuple(names[ends.long()] for ends in part.edges()))
    assert part.num_edges() == int(
        torch.isin(whole.edges()[0], nodes).logical_and(torch.isin(whole.edges()[1], nodes)).sum()
    )


@pytest.mark.parametrize("idtype", [torch.int32, torch.int64], ids=str)
def test_node_subgraph_without_edges_or_nodes(idtype):
    for num_nodes, num_edges, nodes in ((4, 0, [2, 1]), (4, 9, [3, 0]), (4, 9, [])):
        chosen = torch.tensor(nodes, dtype=idtype)
        parts = pair(lambda p, n=num_nodes, e=num_edges, c=chosen: p.node_subgraph(multigraph(p, n, e, idtype), c))
        assert_same(*parts)
        assert parts[1].num_nodes() == len(nodes) and parts[1].idtype == idtype


def test_ids_that_int32_does_not_hold():
    """They are no other nodes or edges, which the last 32 bits of them name."""
    graph = multigraph(ours, idtype=torch.int32)
    for ids in (torch.tensor([1, 2**32 + 2]), [2**33], np.array([-(2**32) + 1])):
        for query in (graph.out_edges, graph.in_edges, graph.find_edges, graph.subgraph, graph.remove_edges):
            with pytest.raises(ours.DGLError, match=r"has an id -?[0-9]{10}; expected ids of int32"):
                query(ids)
    assert graph.num_edges() == 30


def test_out_edges_by_node_then_by_id():
    graphs = pair(lambda package: multigraph(package, 20, 300))
    for graph in graphs:
        graph.in_degrees()  # the in-edges are made first
    for form in ("all", "uv", "eid"):
        assert_same(*(graph.out_edges([5, 0, 7], form) for graph in graphs))
    assert graphs[1].out_edges([5, 0, 7])[0].dtype is torch.int64


@pytest.mark.parametrize("idtype", [torch.int32, torch.int64], ids=str)
def test_edges_of_reversed_graphs_by_node_then_by_id(idtype):
    """Whatever of the graph was made before, and what is made of the reversed one."""
    firsts = (
        lambda g: None,
        lambda g: g.in_edges([3]),
        lambda g: (g.in_edges([3]), g.out_edges([3]), g.adj_external()),
    )
    thens = (
        lambda d, g: g,
        lambda d, g: g.long(),
        lambda d, g: pickle.loads(pickle.dumps(g)),
        lambda d, g: d.reverse(g),
    )
    nodes = torch.tensor([5, 0, 7], dtype=idtype)
    for first, then in itertools.product(firsts, thens):
        turned = []
        for package in (real, ours):
            graph = multigraph(package, 20, 300, idtype)
            first(graph)
            turned.append(then(package, package.reverse(graph)))
        for query in ("in_edges", "out_edges"):
            assert_same(*(getattr(graph, query)(nodes.to(graph.idtype), form="all") for graph in turned))
        ids = turned[1].in_edges([5], form="eid")
        assert ids.numel() > 5 and bool((ids.diff() > 0).all())


def test_batches_of_types_whose_ends_differ():
    def made(package, idtype):
        small, large = typed(package, 1), typed(package, 2)
        one = package.node_subgraph(small, {"user": torch.tensor([1])}, store_ids=False)
        return package.batch([g.int() if idtype is torch.int32 else g.long() for g in (small, one, large)])

    for idtype in (torch.int32, torch.int64):
        batches = pair(lambda package, idtype=idtype: made(package, idtype))
        assert_same(*batches)
        assert_same(*(package.unbatch(whole) for package, whole in zip((real, ours), batches)))
        for ntype in ("item", "tag", "user"):
            assert_same(*(whole.batch_num_nodes(ntype).long() for whole in batches))
        assert batches[1].batch_num_edges("of").dtype is idtype
        assert_same(*(package.batch([whole, whole]) for package, whole in zip((real, ours), batches)))


@pytest.mark.parametrize("idtype", [torch.int32, torch.int64], ids=str)
def test_batches_of_bipartite_graphs_of_different_sizes(idtype):
    def made(package):
        sizes = ((3, 5, 7), (4, 2, 6), (1, 6, 9), (2, 0, 0), (5, 3, 8))
        return package.batch(
            [
                package.heterograph(
                    {
                        ("u", "r", "v"): tuple(
                            torch.arange(num_edges, dtype=idtype) % max(n, 1) for n in (num_src, num_dst)
                        )
                    },
                    {"u": num_src, "v": num_dst},
                )
                for num_src, num_dst, num_edges in sizes
            ]
        )

    wholes = pair(made)
    assert_same(*wholes)
    assert_same(*(package.unbatch(whole) for package, whole in zip((real, ours), wholes)))
    assert wholes[1].edges()[1].tolist()[7:13] == [5, 6, 5, 6, 5, 6]


@pytest.mark.parametrize("count", [1, 2])
def test_batches_have_edges_of_their_own(count):
    """Tensors that a graph was made of may be written to later."""
    src, dst = torch.tensor([0, 1, 2]), torch.tensor([1, 2, 0])
    whole = ours.batch([ours.graph((src, dst))] * count)
    parts = ours.unbatch(whole)
    src[0] = dst[1] = 1
    assert [end[:3].tolist() for end in whole.edges()] == [[0, 1, 2], [1, 2, 0]]
    assert [end.tolist() for part in parts for end in part.edges()] == [[0, 1, 2], [1, 2, 0]] * count
    assert [end[-3:].tolist() for end in whole.edges()] == [
        [3 * count - 3 + i for i in ids] for ids in ([0, 1, 2], [1, 2, 0])
    ]


def test_batches_are_restricted_to_the_formats_that_all_allow():
    graph = multigraph(ours)
    for others, expected in (
        (["coo", "csc"], {"csc"}),
        (["csr", "csc"], {"csr", "csc"}),
        (["coo", "csr", "csc"], {"csr", "csc"}),
    ):
        formats = ours.batch([graph.formats(["csr", "csc"]), graph.formats(others)]).formats()
        assert {*formats["created"], *formats["not created"]} == expected


def test_batches_of_a_graph_whose_edges_alone_were_counted():
    def made(package):
        graph = multigraph(package)
        graph.set_batch_num_edges(torch.tensor([10, 20]))
        return package.batch([graph, multigraph(package)])

    assert [whole.batch_num_edges().tolist() for whole in pair(made)] == [[10, 20, 30]] * 2


def test_features_of_batches_of_graphs_without_any():
    """A graph without nodes or edges need not have them; others must."""
    wholes = pair(
        lambda package: package.batch(
            [multigraph(package), package.graph(([], []), num_nodes=0), multigraph(package, 3, 2)]
        )
    )
    assert_same(*wholes)
    assert wholes[1].ndata["x"].shape == (12, 3) and wholes[1].edata["w"].shape == (32,)
    for graphs in ([multigraph(ours), ours.rand_graph(3, 4)], [ours.rand_graph(3, 4), multigraph(ours)]):
        with pytest.raises(ours.DGLError, match="different features of nodes"):
            ours.batch(graphs)


def batches(package):
    """Graphs of different sizes, one of them without edges, as one."""
    return package.batch([multigraph(package, n, e, torch.int32, n) for n, e in ((4, 9), (2, 0), (7, 5))])


def test_batch_and_readout():
    graphs = pair(batches)
    assert_same(*graphs)
    for function in ("sum_nodes", "mean_nodes", "max_nodes", "softmax_nodes"):
        assert_same(*(getattr(d, function)(g, "x") for d, g in zip((real, ours), graphs)))
    for function in ("sum_edges", "mean_edges", "max_edges", "softmax_edges"):
        assert_same(*(getattr(d, function)(g, "w") for d, g in zip((real, ours), graphs)))
    per_graph = torch.randn(3, 2)
    assert_same(*(d.broadcast_edges(g, per_graph) for d, g in zip((real, ours), graphs)))
    assert_same(*(d.topk_nodes(g, "x", 2, sortby=1) for d, g in zip((real, ours), graphs)))
    assert_same(*(d.topk_nodes(g, "x", 2, descending=False)[0] for d, g in zip((real, ours), graphs)))


def test_readout_of_halves_is_summed_in_fp32():
    graph = ours.batch([ours.rand_graph(3000, 0), ours.rand_graph(2, 0)])
    graph.ndata["x"] = torch.ones(3002, 1, dtype=torch.float16)
    assert ours.sum_nodes(graph, "x").tolist() == [[3000], [2]]
    assert ours.mean_nodes(graph, "x").tolist() == [[1], [1]]


def test_batch_refuses_what_differs():
    one, other = multigraph(ours), multigraph(ours)
    other.ndata["y"] = torch.zeros(9)
    with pytest.raises(ours.DGLError, match="different features"):
        ours.batch([one, other])
    assert set(ours.batch([one, other], ndata=["x"], edata=None).ndata) == {"x"}
    with pytest.raises(ours.DGLError, match="idtype"):
        ours.batch([one, one.int()])
    with pytest.raises(ours.DGLError, match="adds up"):
        ours.unbatch(one, torch.tensor([4, 4]), torch.tensor([15, 15]))


def test_points():
    points = torch.randn(12, 3, generator=torch.Generator().manual_seed(0))
    for make in (
        lambda d: d.knn_graph(points, 3),
        lambda d: d.knn_graph(points.view(2, 6, 3), 2, dist="cosine"),
        lambda d: d.segmented_knn_graph(points, 2, [5, 7], exclude_self=True),
        lambda d: d.radius_graph(points, 1.5, get_distances=True),
    ):
        assert_same(*pair(make))


def test_spectra():
    graphs = pair(lambda d: d.to_bidirected(multigraph(d)))
    assert_same(*(d.laplacian_lambda_max(g) for d, g in zip((real, ours), graphs)))
    _, eigenvalues = ours.lap_pe(graphs[1], 4, return_eigval=True)
    encoding, expected = real.lap_pe(graphs[0], 4, return_eigval=True)
    torch.testing.assert_close(eigenvalues, expected, atol=1e-4, rtol=0)
    assert encoding.shape == (9, 4)


def test_products_of_weighted_graphs():
    a, b = pair(lambda d: d.to_simple(multigraph(d), copy_edata=True))
    for g in (a, b):
        g.edata["w"] = g.edata["w"].clone().requires_grad_()
    results = real.adj_product_graph(a, a, "w"), ours.adj_product_graph(b, b, "w")
    assert results[0].num_edges() == results[1].num_edges()
    for g in results:
        g.edata["w"].square().sum().backward()
    torch.testing.assert_close(b.edata["w"].grad, a.edata["w"].grad)


def test_shortest_paths():
    graph = ours.to_simple(multigraph(ours))
    distances, paths = ours.shortest_dist(graph, root=0, return_paths=True)
    assert distances.max() > 1
    for node, length in enumerate(distances.tolist()):
        ids = paths[node][paths[node] >= 0]
        assert len(ids) == max(length, 0)
        if length > 0:
            src, dst = graph.find_edges(ids)
            assert src[0] == 0 and dst[-1] == node and torch.equal(src[1:], dst[:-1])


def test_random_graphs():
    ours.seed(3)
    first = ours.rand_graph(1000, 500).edges()
    ours.seed(3)
    second = ours.rand_graph(1000, 500)
    assert_same(first, second.edges())
    assert not second.is_multigraph
    weights = torch.tensor([0.0, 1.0, 9.0])
    drawn = torch.bincount(ours.random.choice(3, 20000, prob=weights), minlength=3) / 20000
    torch.testing.assert_close(drawn, torch.tensor([0.0, 0.1, 0.9]), atol=0.02, rtol=0)
    assert sorted(ours.random.choice(3, 2, replace=False, prob=weights).tolist()) == [1, 2]


def test_errors_name_what_is_wrong():
    graph, blocks = multigraph(ours), ours.to_block(multigraph(ours))
    with pytest.raises(ours.DGLError, match="repeats"):
        ours.node_subgraph(graph, [1, 1])
    with pytest.raises(ours.DGLError, match="dst_nodes lacks"):
        ours.to_block(graph, [0])
    with pytest.raises(ours.DGLError, match="block"):
        ours.batch([blocks])
    with pytest.raises(AttributeError, match="METIS"):
        _ = ours.metis_partition


def test_one_edge_finds_each_node():
    g = ours.graph(([0, 0, 0, 1, 2], [1, 1, 2, 3, 3]))  # with parallel edges, and two ways to 3
    assert [nodes.tolist() for nodes in ours.bfs_nodes_generator(g, 0)] == [[0], [1, 2], [3]]
    assert [edges.numel() for edges in ours.bfs_edges_generator(g, 0)] == [2, 1]


@pytest.mark.parametrize("descending", [True, False])
@pytest.mark.parametrize("sortby", [None, 0])
def test_topk_of_nan_and_infinities(descending, sortby):
    """Only places beyond the number of nodes are 0. Beside torch.sort of each graph."""
    sizes, k = (4, 2, 0, 3), 4
    g = ours.batch([ours.graph(([], []), num_nodes=n) for n in sizes])
    x = torch.tensor([1.0, torch.nan, -torch.inf, torch.inf, torch.inf, 2.0, torch.nan, -torch.inf, 0.0]).view(-1, 1)
    g.ndata["x"] = x
    values, places = ours.topk_nodes(g, "x", k, descending=descending, sortby=sortby)
    for part, rows, order in zip(x.split(sizes), values, places):
        expected, expected_order = part.sort(dim=0, descending=descending, stable=True)
        assert torch.equal(order.view(-1)[: len(part)], expected_order.view(-1))
        torch.testing.assert_close(rows[: len(part)], expected, equal_nan=True)
        assert not rows[len(part) :].any()


def test_ranges_of_more_places_than_int32_holds(monkeypatch):
    first, last = torch.tensor([2, 0], dtype=torch.int32), torch.tensor([5, 4], dtype=torch.int32)
    places, numbers, counts = base.numbered_ranges(first, last)
    assert places.dtype is torch.int32
    monkeypatch.setattr(base, "INT32_MAX", 6)  # of 7 places
    far, *others = base.numbered_ranges(first, last)
    assert far.dtype is torch.int64 and far.tolist() == places.tolist() == [2, 3, 4, 0, 1, 2, 3]
    assert others[0].tolist() == numbers.tolist() == [0, 0, 0, 1, 1, 1, 1] and others[1].tolist() == counts.tolist()
