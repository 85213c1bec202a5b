"""Unmodified dgl.nn modules under halfgnn.dgl: DGL's results, and half precision that works."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from tests.support_nn import assert_near, by_formulas

dgl = pytest.importorskip("dgl", reason="dgl is not installed", exc_type=ImportError)

import dgl.nn as dglnn  # noqa: E402

import halfgnn.dgl  # noqa: E402
from halfgnn.common.compat import able_to_run_lstm  # noqa: E402

NUM_NODES, NUM_EDGES, IN_FEATS, NUM_RELATIONS = 40, 220, 12, 3
UDF = "user-defined function"


@pytest.fixture(autouse=True)
def clean():
    halfgnn.dgl.unpatch()
    halfgnn.dgl.reset_stats()
    yield
    halfgnn.dgl.unpatch()


@dataclass
class Case:
    """A module, the edge data of its forward, and the operators that must be routed."""

    make: Callable[[], torch.nn.Module]
    routed: set[str]
    edge_data: dict[str, Callable[[Any, torch.dtype], torch.Tensor]] = field(default_factory=dict)
    udf: set[str] = field(default_factory=set)
    on_blocks: bool = True
    positional: bool = False


def weight(g, dtype):
    return (torch.rand(g.num_edges(), dtype=torch.float64) + 0.5).to(dtype)


def weight_column(g, dtype):
    return weight(g, dtype).unsqueeze(-1)


def relation_types(g, dtype):
    return torch.randint(0, NUM_RELATIONS, (g.num_edges(),))


def sorted_relation_types(g, dtype):
    return relation_types(g, dtype).sort()[0]


GAT = {"gsddmm:u_add_v", "edge_softmax:dst", "gspmm:u_mul_e_sum"}


def graph_conv(in_feats: int, out_feats: int, **kwargs: Any) -> Callable[[], torch.nn.Module]:
    return lambda: dglnn.GraphConv(in_feats, out_feats, allow_zero_in_degree=True, **kwargs)


def relational(out_feats: int = 5, **kwargs: Any) -> Callable[[], torch.nn.Module]:
    return lambda: dglnn.RelGraphConv(IN_FEATS, out_feats, NUM_RELATIONS, **kwargs)


def gin(aggregator: str) -> Callable[[], torch.nn.Module]:
    return lambda: dglnn.GINConv(torch.nn.Linear(IN_FEATS, 5), aggregator, learn_eps=True)


CASES = {
    "GATConv": Case(lambda: dglnn.GATConv(IN_FEATS, 5, 3, residual=True), GAT),
    "GATConv-1-head": Case(lambda: dglnn.GATConv(IN_FEATS, 8, 1, activation=torch.relu), GAT),
    "GATConv-weight": Case(lambda: dglnn.GATConv(IN_FEATS, 5, 3), GAT, {"edge_weight": weight}),
    "GATv2Conv": Case(lambda: dglnn.GATv2Conv(IN_FEATS, 5, 3, residual=True), GAT),
    "GATv2Conv-shared": Case(lambda: dglnn.GATv2Conv(IN_FEATS, 5, 2, share_weights=True), GAT),
    "DotGatConv": Case(
        lambda: dglnn.DotGatConv(IN_FEATS, 5, 3),
        {"gsddmm:u_dot_v", "edge_softmax:dst", "gspmm:u_mul_e_sum"},
    ),
    "GraphConv-both": Case(graph_conv(IN_FEATS, 5), {"gspmm:copy_u_sum"}),
    "GraphConv-right": Case(graph_conv(IN_FEATS, 20, norm="right"), {"gspmm:copy_u_sum"}),
    "GraphConv-left": Case(graph_conv(IN_FEATS, 5, norm="left"), {"gspmm:copy_u_sum"}),
    "GraphConv-weight": Case(graph_conv(IN_FEATS, 5), {"gspmm:u_mul_e_sum"}, {"edge_weight": weight}),
    "GraphConv-wide-weight": Case(
        graph_conv(IN_FEATS, 20, norm="none"), {"gspmm:u_mul_e_sum"}, {"edge_weight": weight}
    ),
    **{
        f"SAGEConv-{aggregator}": Case(lambda a=aggregator: dglnn.SAGEConv(IN_FEATS, 5, a), {routed}, udf=udf)
        for aggregator, routed, udf in [
            ("mean", "gspmm:copy_u_mean", set()),
            ("gcn", "gspmm:copy_u_sum", set()),
            ("pool", "gspmm:copy_u_max", set()),
            ("lstm", "gsddmm:copy_u", {"udf:reduce"}),
        ]
    },
    "SAGEConv-wide-mean": Case(lambda: dglnn.SAGEConv(IN_FEATS, 20, "mean"), {"gspmm:copy_u_mean"}),
    "SAGEConv-mean-weight": Case(
        lambda: dglnn.SAGEConv(IN_FEATS, 5, "mean"), {"gspmm:u_mul_e_mean"}, {"edge_weight": weight}
    ),
    "SAGEConv-pool-weight": Case(
        lambda: dglnn.SAGEConv(IN_FEATS, 5, "pool"), {"gspmm:u_mul_e_max"}, {"edge_weight": weight}
    ),
    **{f"GINConv-{reduce}": Case(gin(reduce), {f"gspmm:copy_u_{reduce}"}) for reduce in ("sum", "max", "mean")},
    "GINConv-weight": Case(gin("sum"), {"gspmm:u_mul_e_sum"}, {"edge_weight": weight_column}),
    "EdgeConv": Case(
        lambda: dglnn.EdgeConv(IN_FEATS, 5),
        {"gsddmm:v_sub_u", "gsddmm:e_add_v", "gspmm:copy_e_max"},
    ),
    "EdgeConv-norm": Case(
        lambda: dglnn.EdgeConv(IN_FEATS, 5, batch_norm=True),
        {"gsddmm:v_sub_u", "gsddmm:e_add_v", "gspmm:copy_e_max"},
    ),
    "APPNPConv": Case(lambda: dglnn.APPNPConv(3, 0.1), {"gspmm:u_mul_e_sum"}, on_blocks=False),
    "APPNPConv-weight": Case(
        lambda: dglnn.APPNPConv(3, 0.1),
        {"gspmm:u_mul_e_sum", "gspmm:copy_e_sum"},
        {"edge_weight": weight},
        udf={"udf:message"},
        on_blocks=False,
    ),
    **{
        f"RelGraphConv-{name}": Case(
            relational(**kwargs),
            {"gspmm:copy_e_sum"},
            {"etypes": types, **norm},
            udf={"udf:message"},
        )
        for name, kwargs, types, norm in [
            ("plain", {}, relation_types, {"norm": weight_column}),
            ("wide", {"out_feats": 16}, relation_types, {}),
            ("basis", {"regularizer": "basis", "num_bases": 2}, relation_types, {}),
            ("bdd", {"out_feats": 8, "regularizer": "bdd", "num_bases": 4}, relation_types, {}),
        ]
    },
    "RelGraphConv-sorted": Case(
        relational(layer_norm=True),
        {"gspmm:copy_e_sum"},
        {"etypes": sorted_relation_types},
        udf={"udf:message"},
    ),
}

# DGL multiplies by fp32 ones here, so it refuses features of another type.
ONLY_FP32_IN_DGL = {"APPNPConv"}


def make_graph(idtype=torch.int64):
    torch.manual_seed(0)
    src, dst = torch.randint(0, NUM_NODES, (2, NUM_EDGES), dtype=idtype)
    return dgl.add_self_loop(dgl.graph((src, dst), num_nodes=NUM_NODES))


def make_block():
    return dgl.to_block(dgl.in_subgraph(make_graph(), torch.arange(0, NUM_NODES, 3)), torch.arange(0, NUM_NODES, 3))


def run(case: Case, g, dtype: torch.dtype, data_dtype: torch.dtype | None = None):
    """Output and all gradients, from the same numbers for every type."""
    torch.manual_seed(1)
    module = case.make().to(dtype)
    feat = torch.randn(g.num_src_nodes(), IN_FEATS, dtype=torch.float64).to(dtype).requires_grad_()
    kwargs = {name: make(g, data_dtype or dtype) for name, make in case.edge_data.items()}
    leaves = [feat, *module.parameters()]
    leaves += [value.requires_grad_() for value in kwargs.values() if value.is_floating_point()]
    torch.manual_seed(2)
    with able_to_run_lstm(feat):
        out = module(g, feat, **kwargs)
    grad = torch.randn(out.shape, dtype=torch.float64)
    grads = torch.autograd.grad(out, leaves, grad.to(out.dtype), allow_unused=True)
    return [out.detach(), *grads]


def assert_all_close(actual, expected, **tolerance):
    assert len(actual) == len(expected)
    for a, b in zip(actual, expected, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            torch.testing.assert_close(a, b, **tolerance)


HALVES = [torch.float16, torch.bfloat16]


def assert_routed(case: Case):
    stats = halfgnn.dgl.stats()
    assert set(stats["routed"]) == case.routed
    assert stats["fell_back"].keys() == case.udf
    assert all(reasons.keys() == {UDF} for reasons in stats["fell_back"].values())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_same_as_dgl(name, dtype):
    if name in ONLY_FP32_IN_DGL and dtype is not torch.float32:
        pytest.skip("DGL refuses this type here: test_types_that_dgl_refuses_stay_refused")
    case, g = CASES[name], make_graph()
    expected = run(case, g, dtype)
    with halfgnn.dgl.accelerate():
        actual = run(case, g, dtype)
    tolerance = 1e-4 if dtype is torch.float32 else 1e-9
    assert_all_close(actual, expected, rtol=tolerance, atol=tolerance)
    assert_routed(case)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.on_blocks])
def test_same_as_dgl_on_blocks(name):
    case, block = CASES[name], make_block()
    expected = run(case, block, torch.float32)
    with halfgnn.dgl.accelerate():
        actual = run(case, block, torch.float32)
    assert_all_close(actual, expected, rtol=1e-4, atol=1e-4)
    assert_routed(case)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_half(name, dtype):
    case, g = CASES[name], make_graph(torch.int32)
    expected = run(case, g, torch.float32)
    with halfgnn.dgl.accelerate():
        actual = run(case, g, dtype)
        assert_routed(case)
        with by_formulas():
            formula = run(case, g, dtype)
    assert all(x is None or x.dtype is dtype for x in actual)
    assert_near(actual, expected, formula, dtype)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_cpu_autocast(name, dtype):
    case, g = CASES[name], make_graph()
    expected = run(case, g, torch.float32)
    with halfgnn.dgl.accelerate(), torch.autocast("cpu", dtype):
        actual = run(case, g, torch.float32)
        assert_routed(case)
        with by_formulas():
            formula = run(case, g, torch.float32)
    assert all(x is None or x.dtype is torch.float32 for x in actual[1:]), "gradients of fp32 leaves are fp32"
    assert_near(actual, expected, formula, dtype)


def node_types(g, dtype):
    return torch.randint(0, 3, (g.num_nodes(),)).sort()[0]


def edge_features(width: int):
    return lambda g, dtype: torch.randn(g.num_edges(), width, dtype=torch.float64).to(dtype)


def node_features(width: int):
    return lambda g, dtype: torch.randn(g.num_nodes(), width, dtype=torch.float64).to(dtype)


# Module, and the arguments of its forward after the node features.
OTHER_MODULES = {
    "AGNNConv": (lambda: dglnn.AGNNConv(), []),
    "CFConv": (lambda: dglnn.CFConv(IN_FEATS, 6, 8, 5), [edge_features(6)]),
    "ChebConv": (lambda: dglnn.ChebConv(IN_FEATS, 5, 3), []),
    "EGATConv": (lambda: dglnn.EGATConv(IN_FEATS, 6, 5, 4, 2), [edge_features(6)]),
    "EGNNConv": (
        lambda: dglnn.EGNNConv(IN_FEATS, 10, 5, 6),
        [node_features(3), edge_features(6)],
    ),
    "EdgeGATConv": (lambda: dglnn.EdgeGATConv(IN_FEATS, 6, 5, 2), [edge_features(6)]),
    "GCN2Conv": (lambda: dglnn.GCN2Conv(IN_FEATS, 1), [node_features(IN_FEATS)]),
    "GINEConv": (lambda: dglnn.GINEConv(torch.nn.Linear(IN_FEATS, 5)), [edge_features(IN_FEATS)]),
    "GMMConv": (lambda: dglnn.GMMConv(IN_FEATS, 5, 3, 2, "mean"), [edge_features(3)]),
    "GatedGraphConv": (lambda: dglnn.GatedGraphConv(IN_FEATS, 14, 2, 3), [relation_types]),
    "HGTConv": (lambda: dglnn.HGTConv(IN_FEATS, 4, 2, 3, 3), [node_types, relation_types]),
    "NNConv": (
        lambda: dglnn.NNConv(IN_FEATS, 5, torch.nn.Linear(6, IN_FEATS * 5), "mean"),
        [edge_features(6)],
    ),
    "PNAConv": (lambda: dglnn.PNAConv(IN_FEATS, 10, ["mean", "max"], ["identity"], 2.5), []),
    "SGConv": (lambda: dglnn.SGConv(IN_FEATS, 5, 2), []),
    "TAGConv": (lambda: dglnn.TAGConv(IN_FEATS, 5, 2), []),
    "TWIRLSConv": (lambda: dglnn.TWIRLSConv(IN_FEATS, 5, 8, 2), []),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", OTHER_MODULES)
def test_other_modules(name):
    make, inputs = OTHER_MODULES[name]
    g = make_graph()

    def run(dtype):
        torch.manual_seed(1)
        module = make().to(dtype)
        data = [value(g, dtype) for value in (node_features(IN_FEATS), *inputs)]
        leaves = [x.requires_grad_() for x in data if x.is_floating_point()]
        leaves += module.parameters()
        torch.manual_seed(2)
        out = module(g, *data)
        out = out[0] if isinstance(out, tuple) else out
        return [out.detach(), *torch.autograd.grad(out.sum(), leaves, allow_unused=True)]

    def in_half(dtype):
        with torch.autocast("cpu", dtype):
            mixed = run(torch.float32)
        return run(dtype), mixed

    expected = run(torch.float32)
    with halfgnn.dgl.accelerate():
        assert_all_close(run(torch.float32), expected, rtol=1e-4, atol=1e-4)
        for dtype in HALVES:
            results = in_half(dtype)
            with by_formulas():
                formulas = in_half(dtype)
            for actual, formula in zip(results, formulas):
                assert_near(actual, expected, formula, dtype)
    reasons = halfgnn.dgl.stats()["fell_back"].values()
    assert all(reason.keys() == {UDF} for reason in reasons)


@pytest.mark.parametrize("name", sorted(ONLY_FP32_IN_DGL))
def test_types_that_dgl_refuses_stay_refused(name):
    g = make_graph()
    with pytest.raises(dgl.DGLError, match="data type"):
        run(CASES[name], g, torch.float64)
    with halfgnn.dgl.accelerate(), pytest.raises(dgl.DGLError, match="data type"):
        run(CASES[name], g, torch.float64)
    assert halfgnn.dgl.stats()["fell_back"] == {"gspmm:u_mul_e_sum": {"torch.float64 with torch.float32": 1}}


def test_dgl_alone_refuses_half_and_autocast_on_the_cpu():
    """DGL alone cannot do this; it is the purpose of the drop-in. If this test fails, DGL can do it now: compare with
    it above."""
    g, case = make_graph(), CASES["GATConv"]
    with pytest.raises(dgl.DGLError):
        run(case, g, torch.float16)
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(dgl.DGLError):
        run(case, g, torch.float32)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_features_take_fp32_edge_weights(dtype):
    case, g = CASES["GraphConv-weight"], make_graph()
    expected = run(case, g, torch.float32)
    with halfgnn.dgl.accelerate():
        actual = run(case, g, dtype, data_dtype=torch.float32)
        assert_routed(case)
        with by_formulas():
            formula = run(case, g, dtype, data_dtype=torch.float32)
    assert [x.dtype for x in actual if x is not None] == [dtype] * (len(actual) - 1) + [torch.float32]
    assert_near(actual, expected, formula, dtype)


@pytest.mark.parametrize("num_dst", [7, NUM_NODES], ids=["few", "many"])
@pytest.mark.parametrize(
    "name", ["GATConv", "GATv2Conv", "DotGatConv", "SAGEConv-mean", "SAGEConv-pool", "GINConv-max"]
)
def test_bipartite_pairs(name, num_dst):
    torch.manual_seed(0)
    src, dst = (
        torch.randint(0, NUM_NODES, (200,)),
        torch.cat([torch.arange(num_dst), torch.randint(0, num_dst, (200 - num_dst,))]),
    )
    g = dgl.heterograph({("item", "of", "user"): (src, dst)}, {"item": NUM_NODES, "user": num_dst})
    torch.manual_seed(1)
    module = {
        "GATConv": lambda: dglnn.GATConv((IN_FEATS, 6), 5, 3),
        "GATv2Conv": lambda: dglnn.GATv2Conv((IN_FEATS, 6), 5, 3),
        "DotGatConv": lambda: dglnn.DotGatConv((IN_FEATS, 6), 5, 3),
        "SAGEConv-mean": lambda: dglnn.SAGEConv((IN_FEATS, 6), 5, "mean"),
        "SAGEConv-pool": lambda: dglnn.SAGEConv((IN_FEATS, 6), 5, "pool"),
        "GINConv-max": lambda: dglnn.GINConv(None, "max"),
    }[name]()
    feats = (
        torch.randn(NUM_NODES, IN_FEATS),
        torch.randn(num_dst, IN_FEATS if name == "GINConv-max" else 6),
    )
    expected = module(g, feats)
    with halfgnn.dgl.accelerate():
        actual = module(g, feats)
        half = module.half()(g, tuple(x.half() for x in feats))
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(half.float(), expected, rtol=0.02, atol=0.02)
    assert halfgnn.dgl.stats()["fell_back"] == {}


# ---- heterographs --------------------------------------------------------------------------------


def make_heterograph():
    torch.manual_seed(0)
    sizes = {"user": 20, "item": 15, "shop": 5}
    edges = {
        (src, relation, dst): (
            torch.randint(0, sizes[src], (count,)),
            torch.randint(0, sizes[dst] - 2, (count,)),
        )
        for src, relation, dst, count in [
            ("user", "follows", "user", 60),
            ("user", "buys", "item", 50),
            ("item", "bought", "user", 40),
            ("shop", "sells", "item", 30),
        ]
    }
    return dgl.heterograph(edges, sizes)


def run_hetero(aggregate: str, dtype: torch.dtype, convolution: Callable[[], torch.nn.Module], g):
    torch.manual_seed(1)
    module = dglnn.HeteroGraphConv({etype: convolution() for etype in g.etypes}, aggregate).to(dtype)
    feats = {ntype: torch.randn(g.num_src_nodes(ntype), IN_FEATS).to(dtype).requires_grad_() for ntype in g.srctypes}
    out = module(g, feats)
    out = torch.cat([out[ntype].flatten() for ntype in sorted(out)])
    torch.manual_seed(2)
    leaves = [*feats.values(), *module.parameters()]
    grads = torch.autograd.grad(out, leaves, torch.randn(out.shape).to(out.dtype), allow_unused=True)
    return [out.detach(), *grads]


HETERO_CONVOLUTIONS = {
    "GATConv": lambda: dglnn.GATConv(IN_FEATS, 4, 2, allow_zero_in_degree=True),
    "GraphConv": graph_conv(IN_FEATS, 4),
    "SAGEConv-pool": lambda: dglnn.SAGEConv(IN_FEATS, 4, "pool"),
}


@pytest.mark.parametrize("aggregate", ["sum", "mean", "max", "min", "stack"])
@pytest.mark.parametrize("name", HETERO_CONVOLUTIONS)
def test_hetero_graph_conv(name, aggregate):
    g = make_heterograph()
    make = HETERO_CONVOLUTIONS[name]

    def in_half():
        with torch.autocast("cpu", torch.bfloat16):
            mixed = run_hetero(aggregate, torch.float32, make, g)
        return run_hetero(aggregate, torch.float16, make, g), mixed

    expected = run_hetero(aggregate, torch.float32, make, g)
    with halfgnn.dgl.accelerate():
        assert_all_close(run_hetero(aggregate, torch.float32, make, g), expected, rtol=1e-4, atol=1e-4)
        results = in_half()
        with by_formulas():
            formulas = in_half()
    for actual, formula, dtype in zip(results, formulas, HALVES):
        assert_near(actual, expected, formula, dtype)
    assert halfgnn.dgl.stats()["fell_back"] == {}
