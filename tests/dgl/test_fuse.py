"""halfgnn.dgl.patch(fuse=True): unmodified attention modules of dgl.nn on the fused attentions."""

from __future__ import annotations

import pytest
import torch

from tests import support
from tests.support_nn import (
    HALVES,
    IN_FEATS,
    NUM_NODES,
    assert_close,
    assert_near,
    by_formulas,
    randn,
    random_edges,
    seeded,
    tolerance_of,
    with_gradients,
)

dgl = pytest.importorskip("dgl", reason="dgl is not installed", exc_type=ImportError)

import dgl.nn as dglnn  # noqa: E402

import halfgnn.dgl  # noqa: E402

CLASSES = {"GATConv": dglnn.GATConv, "GATv2Conv": dglnn.GATv2Conv, "DotGatConv": dglnn.DotGatConv}
FORWARDS = {name: cls.__dict__["forward"] for name, cls in CLASSES.items()}

MODULES = {
    "GATConv": lambda f=IN_FEATS: dglnn.GATConv(f, 5, 3),
    "GATConv-residual": lambda f=IN_FEATS: dglnn.GATConv(f, 5, 3, residual=True, activation=torch.relu),
    "GATv2Conv": lambda f=IN_FEATS: dglnn.GATv2Conv(f, 5, 3, residual=True),
    "GATv2Conv-shared": lambda f=IN_FEATS: dglnn.GATv2Conv(f, 5, 3, share_weights=True),
    "DotGatConv": lambda f=IN_FEATS: dglnn.DotGatConv(f, 5, 3),
}


@pytest.fixture(autouse=True)
def clean():
    halfgnn.dgl.unpatch()
    halfgnn.dgl.reset_stats()
    yield
    halfgnn.dgl.unpatch()


def class_of(name):
    return name.split("-")[0]


def make_graph(loops=True):
    return dgl.graph(random_edges(loops=loops), num_nodes=NUM_NODES)


def run(name, g, dtype=torch.float32, in_feats=IN_FEATS):
    module = seeded(lambda: MODULES[name](in_feats)).to(dtype)
    if isinstance(in_feats, tuple):
        inputs = [
            randn(g.num_src_nodes(), in_feats[0], dtype=dtype),
            randn(g.num_dst_nodes(), in_feats[1], dtype=dtype),
        ]
        return with_gradients(module, lambda *x: module(g, x), inputs)
    return with_gradients(module, lambda x: module(g, x), [randn(g.num_src_nodes(), in_feats, dtype=dtype)])


def assert_fused(name, calls=1):
    assert halfgnn.dgl.stats() == {"routed": {f"fused:{class_of(name)}": calls}, "fell_back": {}}


@pytest.mark.parametrize(
    "dtype", [dtype for dtype in (torch.float32, torch.float64) if support.supports("cpu", dtype)], ids=str
)
@pytest.mark.parametrize("name", MODULES)
def test_same_as_dgl(name, dtype):
    g = make_graph()
    expected = run(name, g, dtype)
    with halfgnn.dgl.accelerate(fuse=True):
        assert_close(run(name, g, dtype), expected, tolerance_of(dtype))
    assert_fused(name)


@pytest.mark.parametrize("name", MODULES)
def test_same_as_dgl_on_blocks(name):
    seeds = torch.arange(0, NUM_NODES, 3)
    block = dgl.to_block(dgl.in_subgraph(make_graph(), seeds), seeds)
    expected = run(name, block)
    with halfgnn.dgl.accelerate(fuse=True):
        assert_close(run(name, block), expected, 1e-4)
    assert_fused(name)


@pytest.mark.parametrize("name", [name for name in MODULES if "shared" not in name])
def test_same_as_dgl_on_pairs(name):
    g = dgl.heterograph({("a", "to", "b"): random_edges(30, 7)}, {"a": 30, "b": 7})
    expected = run(name, g, in_feats=(IN_FEATS, 6))
    with halfgnn.dgl.accelerate(fuse=True):
        assert_close(run(name, g, in_feats=(IN_FEATS, 6)), expected, 1e-4)
    assert_fused(name)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("name", MODULES)
def test_half_and_autocast(name, dtype):
    g = make_graph()
    expected = run(name, g)

    def results():
        with halfgnn.dgl.accelerate(fuse=True):
            half = run(name, g, dtype)
            with torch.autocast("cpu", dtype):
                return half, run(name, g)

    actual = results()
    assert_fused(name, 2)
    with by_formulas():
        formulas = results()
    for result, formula in zip(actual, formulas):
        assert_near(result, expected, formula, dtype)


@pytest.mark.parametrize("name", ["GATConv", "GATv2Conv"])
def test_hetero_graph_conv(name):
    edges = {
        ("a", "x", "b"): random_edges(20, 9),
        ("b", "y", "a"): random_edges(9, 20),
        ("a", "z", "a"): random_edges(20, 20),
    }
    g = dgl.heterograph(edges, {"a": 20, "b": 9})
    module = seeded(lambda: dglnn.HeteroGraphConv({etype: MODULES[name]() for etype in g.etypes}))
    feats = {"a": randn(20, IN_FEATS), "b": randn(9, IN_FEATS)}
    expected = module(g, feats)
    with halfgnn.dgl.accelerate(fuse=True):
        actual = module(g, feats)
    assert_close([actual["a"], actual["b"]], [expected["a"], expected["b"]], 1e-4)
    assert halfgnn.dgl.stats()["routed"][f"fused:{name}"] == 3


def test_nothing_of_the_size_of_the_edges_is_kept():
    g, conv = make_graph(), MODULES["GATConv"]()
    x = randn(NUM_NODES, IN_FEATS)

    def kept():
        shapes = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: shapes.append((t.shape, t.dtype)) or t, lambda t: t):
            conv(g, x)
        return {
            shape for shape, dtype in shapes if dtype.is_floating_point and len(shape) and shape[0] == g.num_edges()
        }

    with halfgnn.dgl.accelerate():
        assert kept()
    with halfgnn.dgl.accelerate(fuse=True):
        assert not kept()


def test_dropout_draws_anew_and_rests_in_evaluation():
    g, x = make_graph(), randn(NUM_NODES, IN_FEATS)
    conv, plain = (seeded(lambda p=p: dglnn.GATConv(IN_FEATS, 5, 3, attn_drop=p)) for p in (0.5, 0.0))
    with halfgnn.dgl.accelerate(fuse=True):
        first = seeded(lambda: conv(g, x))
        assert torch.equal(seeded(lambda: conv(g, x)), first) and not torch.equal(conv(g, x), first)
        assert torch.equal(conv.eval()(g, x), plain(g, x))


# ---- what is not fused ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODULES)
def test_attention_weights_are_dgls(name):
    g, x = make_graph(), randn(NUM_NODES, IN_FEATS)
    module = seeded(MODULES[name])
    expected = module(g, x, get_attention=True)
    with halfgnn.dgl.accelerate(fuse=True):
        assert_close(module(g, x, get_attention=True), expected)
    assert halfgnn.dgl.stats()["fell_back"] == {f"fused:{class_of(name)}": {"get_attention": 1}}
    assert halfgnn.dgl.stats()["routed"]["edge_softmax:dst"] == 1


def test_edge_weights_are_not_fused():
    g, x = make_graph(), randn(NUM_NODES, IN_FEATS)
    weight = randn(g.num_edges())
    conv = seeded(MODULES["GATConv"])
    expected = conv(g, x, edge_weight=weight)
    with halfgnn.dgl.accelerate(fuse=True):
        assert_close([conv(g, x, edge_weight=weight)], [expected])
    assert halfgnn.dgl.stats()["fell_back"] == {"fused:GATConv": {"edge_weight": 1}}


def test_exchanged_submodules_are_not_fused():
    g, x = make_graph(), randn(NUM_NODES, IN_FEATS)
    conv = seeded(MODULES["GATConv"])
    conv.leaky_relu = torch.nn.ELU()
    expected = conv(g, x)
    with halfgnn.dgl.accelerate(fuse=True):
        assert_close([conv(g, x)], [expected])
    assert halfgnn.dgl.stats()["fell_back"] == {"fused:GATConv": {"exchanged submodule": 1}}


@pytest.mark.parametrize("name", ["GATConv", "GATv2Conv"])
def test_a_surplus_member_of_feat_is_not_fused(name):
    """DGL reads the first two."""
    g, x = make_graph(), randn(NUM_NODES, IN_FEATS)
    module = seeded(MODULES[name])
    expected = module(g, (x, x, None))
    with halfgnn.dgl.accelerate(fuse=True):
        assert_close([module(g, (x, x, None))], [expected])
    assert halfgnn.dgl.stats()["fell_back"] == {f"fused:{name}": {"tuple that is no pair": 1}}


@pytest.mark.parametrize("name", ["GATv2Conv", "DotGatConv"])
def test_more_dimensions_are_not_fused(name):
    g, x = make_graph(), randn(NUM_NODES, 1, IN_FEATS)
    module = CLASSES[name](IN_FEATS, 5, 3)
    expected = module(g, x)
    with halfgnn.dgl.accelerate(fuse=True):
        assert_close([module(g, x)], [expected])
    assert halfgnn.dgl.stats()["fell_back"] == {f"fused:{name}": {"3 dimensions": 1}}
    g, x = make_graph(), randn(NUM_NODES, 2, 3, IN_FEATS)
    module = seeded(MODULES["GATConv"])
    expected = module(g, x)
    with halfgnn.dgl.accelerate(fuse=True):
        assert_close([module(g, x)], [expected])
    assert halfgnn.dgl.stats()["routed"]["fused:GATConv"] == 1


@pytest.mark.parametrize("name", CLASSES)
def test_what_is_no_tensor_is_dgls(name):
    """DGL's errors are raised, not those of the fused forward."""
    g, x = make_graph(), randn(NUM_NODES, IN_FEATS)
    module = seeded(MODULES[name])
    for wrong in (None, [x, x], (x,), torch.tensor(1.0), x[:, 0], (x, None)):
        errors = []
        for fuse in (False, True):
            with halfgnn.dgl.accelerate(fuse=fuse), pytest.raises(Exception) as caught:
                module(g, wrong)
            errors.append((caught.type, str(caught.value)))
        assert errors[0] == errors[1]
    assert f"fused:{name}" not in halfgnn.dgl.stats()["routed"]


def test_a_subclass_with_its_own_forward_keeps_it():
    class Own(dglnn.GATConv):
        def forward(self, graph, feat):
            return "own"

    class Inherits(dglnn.GATConv):
        pass

    g, x = make_graph(), randn(NUM_NODES, IN_FEATS)
    with halfgnn.dgl.accelerate(fuse=True):
        assert Own(IN_FEATS, 5, 3)(g, x) == "own"
        Inherits(IN_FEATS, 5, 3)(g, x)
    assert_fused("GATConv")


@pytest.mark.parametrize("name", CLASSES)
def test_errors_are_dgls(name):
    g, x = make_graph(loops=False), randn(NUM_NODES, IN_FEATS)
    module = CLASSES[name](IN_FEATS, 5, 3)
    bipartite = dgl.heterograph({("a", "to", "b"): random_edges(20, 30)}, {"a": 20, "b": 30})
    with halfgnn.dgl.accelerate(fuse=True):
        for _ in range(2):
            with pytest.raises(dgl.DGLError, match="0-in-degree"):
                module(g, x)
        with pytest.raises(dgl.DGLError):
            module(make_graph(), x[1:])
        with pytest.raises(dgl.DGLError):
            module(bipartite, randn(20, IN_FEATS))
        module._allow_zero_in_degree = True
        assert (module(g, x)[g.in_degrees() == 0] == 0).all()


# ---- switching -----------------------------------------------------------------------------------


def is_fused():
    originals = {name: cls.__dict__["forward"] is FORWARDS[name] for name, cls in CLASSES.items()}
    assert len(set(originals.values())) == 1
    return not originals["GATConv"]


def test_fusing_is_asked_for():
    halfgnn.dgl.patch()
    assert not is_fused()
    run("GATConv", make_graph())
    assert "fused:GATConv" not in halfgnn.dgl.stats()["routed"]
    halfgnn.dgl.patch(fuse=True)
    assert is_fused()
    halfgnn.dgl.patch()
    assert is_fused()
    halfgnn.dgl.unpatch()
    assert not is_fused()
    run("GATConv", make_graph())
    assert "fused:GATConv" not in halfgnn.dgl.stats()["routed"]


def test_blocks_nest_and_overlap():
    with halfgnn.dgl.accelerate():
        with halfgnn.dgl.accelerate(fuse=True):
            assert is_fused()
            with halfgnn.dgl.accelerate():
                assert is_fused()
            halfgnn.dgl.unpatch()
            assert is_fused()
        assert not is_fused()
        run("GATConv", make_graph())
        assert halfgnn.dgl.stats()["routed"]["edge_softmax:dst"] == 1
    halfgnn.dgl.patch(fuse=True)
    with halfgnn.dgl.accelerate(fuse=True):
        pass
    assert is_fused()
