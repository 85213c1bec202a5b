"""RGCNConv, HeteroConv and HeteroLinear of halfgnn.pyg beside torch_geometric's."""

import pytest
import torch

import halfgnn
import halfgnn.pyg
from halfgnn.nn import relation_pairs
from halfgnn.pyg.modules import hetero_conv
from tests.pyg.support_pyg import WIDE_DTYPES, make_edge_index, network, theirs
from tests.support_nn import (
    HALVES,
    IN_FEATS,
    NUM_NODES,
    assert_close,
    assert_near,
    by_formulas,
    randn,
    seeded,
    tolerance_of,
    with_gradients,
)

NUM_RELATIONS = 5
RGCN = {
    "plain": {},
    "bases": {"num_bases": 2, "aggr": "add"},
    "blocks": {"num_blocks": 4, "bias": False},
    "max": {"aggr": "max", "root_weight": False},
}


def types_of(edge_index):
    """No edge has relation 3."""
    types = torch.randint(NUM_RELATIONS - 1, edge_index.shape[1:], generator=torch.Generator().manual_seed(2))
    return torch.where(types == 3, 4, types)


def rgcn(lib, name, dtype=torch.float32):
    return seeded(lambda: lib.RGCNConv(IN_FEATS, 8, NUM_RELATIONS, **RGCN[name])).to(dtype)


@pytest.mark.parametrize("dtype", WIDE_DTYPES, ids=str)
@pytest.mark.parametrize("name", RGCN)
def test_rgcn(name, dtype):
    their, our = (rgcn(lib, name, dtype) for lib in (theirs, halfgnn.pyg))
    edge_index = make_edge_index().unique(dim=1)
    types, inputs = types_of(edge_index), [randn(NUM_NODES, IN_FEATS, dtype=dtype)]
    expected = with_gradients(their, lambda x: their(x, edge_index, types), inputs)
    graph = halfgnn.Graph.from_edge_index(edge_index, num_nodes=NUM_NODES)
    for topology in (edge_index, graph):
        actual = with_gradients(our, lambda x: our(x, topology, types), inputs)  # noqa: B023
        assert_close(actual, expected, tolerance_of(dtype))


def test_rgcn_on_pairs_and_on_node_ids():
    their, our = (seeded(lambda lib=lib: lib.RGCNConv((IN_FEATS, 4), 8, 5)) for lib in (theirs, halfgnn.pyg))
    edge_index, pair = make_edge_index(30, 7), (randn(30, IN_FEATS), randn(7, 4))
    assert_close([our(pair, edge_index, types_of(edge_index))], [their(pair, edge_index, types_of(edge_index))], 1e-4)
    their, our = (seeded(lambda lib=lib: lib.RGCNConv(NUM_NODES, 8, 5)) for lib in (theirs, halfgnn.pyg))
    edge_index = make_edge_index()
    types = types_of(edge_index)
    assert torch.equal(our(None, edge_index, types), their(None, edge_index, types))


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("name", RGCN)
def test_rgcn_in_half_precision(name, dtype):
    edge_index = make_edge_index()
    types = types_of(edge_index)

    def run(module_dtype, region=None):
        conv = rgcn(halfgnn.pyg, name, module_dtype)
        with torch.autocast("cpu", region, enabled=region is not None):
            return with_gradients(
                conv, lambda x: conv(x, edge_index, types), [randn(NUM_NODES, IN_FEATS, dtype=module_dtype)]
            )

    expected = run(torch.float32)
    for arguments in ((dtype, None), (torch.float32, dtype)):
        actual = run(*arguments)
        assert actual[0].dtype == dtype
        with by_formulas():
            formula = run(*arguments)
        assert_near(actual, expected, formula, dtype)


def test_relations_are_sorted_once_and_anew_when_they_change(monkeypatch):
    made = []
    make = relation_pairs._made
    monkeypatch.setattr(relation_pairs, "_made", lambda *args: made.append(1) or make(*args))
    conv, x, edge_index = rgcn(halfgnn.pyg, "plain"), randn(NUM_NODES, IN_FEATS), make_edge_index()
    types = types_of(edge_index)
    first = conv(x, edge_index, types)
    assert torch.equal(conv(x, edge_index, types), first) and len(made) == 1
    types.zero_()
    assert not torch.allclose(conv(x, edge_index, types), first) and len(made) == 2


@pytest.mark.parametrize("types,error,match", [
    (None, TypeError, "edge_type is None"),
    (torch.zeros(3).long(), ValueError, "expected 220 rows"),
    (torch.zeros(220), TypeError, r"edge_type has .* expected \(E,\) of integers"),
    (torch.full((220,), 5), ValueError, r"edge_type holds 5; expected relations in \[0, 5\)"),
    (torch.full((220,), -1), ValueError, "edge_type holds -1"),
])  # fmt: skip
def test_wrong_relations(types, error, match):
    with pytest.raises(error, match=match):
        rgcn(halfgnn.pyg, "plain")(randn(NUM_NODES, IN_FEATS), make_edge_index(), types)


# ---- typed linear layers -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_sorted", [False, True])
def test_hetero_linear(is_sorted):
    their, our = (
        seeded(lambda lib=lib: lib.HeteroLinear(IN_FEATS, 8, 4, is_sorted=is_sorted)) for lib in (theirs, halfgnn.pyg)
    )
    x, types = [randn(50, IN_FEATS)], torch.randint(3, (50,), generator=torch.Generator().manual_seed(1))
    types = types.sort().values if is_sorted else types
    expected = with_gradients(their, lambda x: their(x, types), x)
    assert_close(with_gradients(our, lambda x: our(x, types), x), expected)
    half = our.bfloat16()(x[0].bfloat16(), types)
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.float(), expected[0], rtol=0.05, atol=0.05)
    with pytest.raises(ValueError, match=r"type_vec holds other types than those in \[0, 4\)"):
        our(x[0].bfloat16(), types + 2)


# ---- HeteroConv --------------------------------------------------------------------------------------------------------------

SIZES, WIDTHS = {"a": 20, "b": 30}, {"a": IN_FEATS, "b": 6}
ETYPES = [("a", "to", "b"), ("b", "to", "a"), ("a", "in", "a"), ("b", "knows", "b"), ("a", "likes", "b")]


def hetero(lib, aggr="sum", **options):
    def make(source, target):
        if source == target:
            return lib.GATConv(WIDTHS[source], 4, heads=3, **options)
        return lib.GATConv((WIDTHS[source], WIDTHS[target]), 4, heads=3, add_self_loops=False, **options)

    return seeded(lambda: lib.HeteroConv({etype: make(etype[0], etype[2]) for etype in ETYPES}, aggr=aggr))


def hetero_inputs():
    edges = {etype: make_edge_index(SIZES[etype[0]], SIZES[etype[2]]) for etype in ETYPES}
    return [randn(SIZES[ntype], WIDTHS[ntype]) for ntype in SIZES], edges


def run_hetero(conv, features, edges):
    def call(*features):
        out = conv(dict(zip(SIZES, features)), edges)
        return torch.cat([value.flatten() for value in out.values()])

    return with_gradients(conv, call, features)


@pytest.mark.parametrize("aggr", ["sum", "mean", "max", "cat", None])
@pytest.mark.parametrize("options", [{}, {"concat": False, "residual": True}, {"bias": False}], ids=str)
def test_attentions_of_all_relations_in_one(aggr, options, monkeypatch):
    calls = []
    attend = halfgnn.ops.gat_attention
    features, edges = hetero_inputs()
    their, our = (hetero(lib, aggr, **options) for lib in (theirs, halfgnn.pyg))
    expected = run_hetero(their, features, edges)
    monkeypatch.setattr(halfgnn.ops, "gat_attention", lambda *args: calls.append(1) or attend(*args))
    monkeypatch.setattr(halfgnn.nn.relation_attention, "_saves_to_project_last", lambda *args: False)
    for _ in range(2):
        assert_close(run_hetero(our, features, edges), expected, 1e-4)
    assert len(calls) == 2 and halfgnn.pyg.stats()["fell_back"] == {}


def test_the_stack_is_made_once(monkeypatch):
    made = []
    cls = hetero_conv.HeteroGraph
    monkeypatch.setattr(hetero_conv, "HeteroGraph", lambda *args: made.append(1) or cls(*args))
    (features, edges), convs = hetero_inputs(), [hetero(halfgnn.pyg), hetero(halfgnn.pyg)]
    for conv in (*convs, *convs):
        run_hetero(conv, features, edges)
    assert len(made) == 1
    run_hetero(convs[0], features, {**edges, ETYPES[1]: edges[ETYPES[1]].clone()})
    assert len(made) == 2


def test_modules_that_differ_run_one_by_one():
    features, edges = hetero_inputs()
    for change in (
        lambda conv: setattr(conv.convs[ETYPES[0]], "negative_slope", 0.5),
        lambda conv: conv.convs[ETYPES[0]].register_forward_hook(lambda module, inputs, out: 2 * out),
        lambda conv: setattr(conv.convs[ETYPES[2]], "flow", "target_to_source"),
        lambda conv: conv.convs.__delitem__(ETYPES[1]),
    ):
        their, our = (hetero(lib) for lib in (theirs, halfgnn.pyg))
        for conv in (their, our):
            change(conv)
        assert_close(run_hetero(our, features, edges), run_hetero(their, features, edges), 1e-4)


# name -> (module of a library between two types of nodes, width of the types' features, or None for their own)
SUMS = {
    "SAGE": (lambda lib, widths: lib.SAGEConv(widths, 4, normalize=True), None),
    "SAGE-max": (lambda lib, widths: lib.SAGEConv(widths, 4, aggr="max", project=True), IN_FEATS),
    "GraphConv": (lambda lib, widths: lib.GraphConv(widths, 20), IN_FEATS),
    "GIN": (lambda lib, widths: lib.GINConv(network(), train_eps=True), IN_FEATS),
    "GCN": (lambda lib, widths: lib.GCNConv(widths[0], 4), IN_FEATS),
    "GCN-plain": (lambda lib, widths: lib.GCNConv(widths[0], 4, normalize=False), IN_FEATS),
}


def hetero_sums(lib, name, aggr="sum"):
    make, width = SUMS[name]
    etypes = [etype for etype in ETYPES if "GCN" not in name or etype[0] == etype[2]]
    return seeded(
        lambda: lib.HeteroConv(
            {etype: make(lib, [width or WIDTHS[ntype] for ntype in (etype[0], etype[2])]) for etype in etypes},
            aggr=aggr,
        )
    )


def sum_inputs(name):
    features, edges = hetero_inputs()
    return features if SUMS[name][1] is None else [randn(count, IN_FEATS) for count in SIZES.values()], edges


@pytest.fixture
def reductions(monkeypatch):
    calls = []
    gspmm = halfgnn.ops.gspmm
    monkeypatch.setattr(halfgnn.ops, "gspmm", lambda *args: calls.append(1) or gspmm(*args))
    return calls


@pytest.mark.parametrize("aggr", ["mean", None])
@pytest.mark.parametrize("name", SUMS)
def test_sums_of_all_relations_in_one(name, aggr, reductions):
    features, edges = sum_inputs(name)
    their, our = (hetero_sums(lib, name, aggr) for lib in (theirs, halfgnn.pyg))
    expected = run_hetero(their, features, edges)
    for _ in range(2):
        assert_close(run_hetero(our, features, edges), expected, 1e-4)
    assert len(reductions) == 2 and halfgnn.pyg.stats()["fell_back"] == {}


def test_a_sum_of_one_relation_may_be_written_to():
    """Where nothing follows the reduction, and nothing joins the results of relations."""
    features, edges = sum_inputs("GCN")
    etypes = [etype for etype in edges if etype[0] == etype[2]]
    assert len({etype[2] for etype in etypes}) == len(etypes) > 1

    def run(lib):
        conv = seeded(lambda: lib.HeteroConv({etype: lib.GCNConv(IN_FEATS, 4, bias=False) for etype in etypes}))
        out = conv(dict(zip(SIZES, features)), edges)
        return [value.relu_() for value in out.values()]

    assert_close(run(halfgnn.pyg), run(theirs), 1e-4)


def test_destinations_without_features(reductions):
    features = {"a": randn(30, IN_FEATS), "b": None}
    edges = {("a", relation, "b"): make_edge_index(30, 30) for relation in "rs"}
    their, our = (
        seeded(lambda lib=lib: lib.HeteroConv({etype: lib.SAGEConv((IN_FEATS, IN_FEATS), 4) for etype in edges}))
        for lib in (theirs, halfgnn.pyg)
    )
    assert_close([our(features, edges)["b"]], [their(features, edges)["b"]], 1e-4)
    assert len(reductions) == 2


def test_many_rows_are_reduced_one_by_one(reductions, monkeypatch):
    features, edges = sum_inputs("SAGE")
    conv = hetero_sums(halfgnn.pyg, "SAGE")
    for limit, calls in [(4 * 4 * (20 * 3 + 30 * 2), 1), (4 * 4 * (20 * 3 + 30 * 2) - 1, len(ETYPES))]:
        monkeypatch.setattr(hetero_conv, "_JOINED", limit)
        reductions.clear()
        run_hetero(conv, features, edges)
        assert len(reductions) == calls


def test_sums_that_differ_run_one_by_one(reductions):
    """In aggregation, in width, or because a layer has no parameters yet, which it draws in torch_geometric's order."""
    for name, change in [
        ("GraphConv", lambda conv: setattr(conv.convs[ETYPES[0]], "aggr_module", theirs.aggr.MeanAggregation())),
        ("GraphConv", lambda conv: conv.convs[ETYPES[0]].register_forward_hook(lambda module, inputs, out: 2 * out)),
        ("GCN", lambda conv: setattr(conv.convs[ETYPES[2]], "normalize", False)),
        ("GCN", lambda conv: [setattr(c, "aggr_module", theirs.aggr.MaxAggregation()) for c in conv.convs.values()]),
    ]:
        features, edges = sum_inputs(name)
        their, our = (hetero_sums(lib, name) for lib in (theirs, halfgnn.pyg))
        for conv in (their, our):
            change(conv)
        assert_close(run_hetero(our, features, edges), run_hetero(their, features, edges), 1e-4)
        assert len(reductions) == len(our.convs)
        reductions.clear()
    features, edges = hetero_inputs()
    their, our = (
        seeded(lambda lib=lib: lib.HeteroConv({etype: lib.SAGEConv((-1, -1), 20) for etype in ETYPES}))
        for lib in (theirs, halfgnn.pyg)
    )
    for conv in (their, our):
        seeded(lambda conv=conv: conv(dict(zip(SIZES, features)), edges))
    assert_close(list(our.parameters()), list(their.parameters()))
    reductions.clear()
    assert_close(run_hetero(our, features, edges), run_hetero(their, features, edges), 1e-4)
    assert len(reductions) == len(ETYPES)  # rows of 12 and of 6 columns


@pytest.mark.parametrize("make", [hetero, lambda lib: hetero_sums(lib, "SAGE")], ids=["GATConv", "SAGEConv"])
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_hetero_in_half_precision(dtype, make):
    features, edges = hetero_inputs()

    def run(dtype, region=None):
        with torch.autocast("cpu", region, enabled=region is not None):
            return run_hetero(make(halfgnn.pyg).to(dtype), [x.to(dtype) for x in features], edges)

    expected = run(torch.float32)
    for arguments in ((dtype, None), (torch.float32, dtype)):
        actual = run(*arguments)
        with by_formulas():
            formula = run(*arguments)
        assert_near(actual, expected, formula, dtype)
