"""halfgnn.nn against dgl.nn: parameters, results, gradients, errors; half precision, padding, dropout, compiled code."""

from __future__ import annotations

import contextlib
import copy
import pickle
from types import SimpleNamespace

import pytest
import torch

import halfgnn
import halfgnn.nn
from halfgnn import ops, reference
from halfgnn.common import degrees
from halfgnn.nn import projections
from halfgnn.nn.projections import node_logits
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

try:
    import dgl
    import dgl.nn as dglnn
except ImportError:
    dgl = None

needs_dgl = pytest.mark.skipif(dgl is None, reason="dgl is not installed")
WIDE_DTYPES = [dtype for dtype in (torch.float32, torch.float64) if support.supports("cpu", dtype)]

ATTENTIONS = {
    "GATConv": lambda lib, f: lib.GATConv(f, 5, 3),
    "GATConv-residual": lambda lib, f: lib.GATConv(f, 5, 3, residual=True, activation=torch.relu),
    "GATConv-identity": lambda lib, f: lib.GATConv(f, 6, 2, residual=True, bias=False, negative_slope=0.1),
    "GATv2Conv": lambda lib, f: lib.GATv2Conv(f, 5, 3),
    "GATv2Conv-residual": lambda lib, f: lib.GATv2Conv(f, 5, 3, residual=True, bias=False),
    "DotGatConv": lambda lib, f: lib.DotGatConv(f, 5, 3),
}
OTHERS = {
    **{
        f"GraphConv-{norm}-{width}": lambda lib, f, n=norm, w=width: lib.GraphConv(f, w, norm=n)
        for norm in ("both", "right", "left", "none")
        for width in (5, 20)
    },
    **{
        f"SAGEConv-{kind}-{width}": lambda lib, f, k=kind, w=width: lib.SAGEConv(f, w, k)
        for kind, width in (("mean", 5), ("mean", 20), ("gcn", 5), ("gcn", 20), ("pool", 5), ("lstm", 5))
    },
    **{
        f"GINConv-{kind}": lambda lib, f, k=kind: lib.GINConv(torch.nn.Linear(f, 5), k, init_eps=0.3, learn_eps=True)
        for kind in ("sum", "max", "mean")
    },
}
MODULES = {
    **ATTENTIONS,
    "GATv2Conv-shared": lambda lib, f: lib.GATv2Conv(f, 5, 2, share_weights=True),
    **OTHERS,
}


def make_dgl_graph(idtype=torch.int64):
    src, dst = random_edges()
    return dgl.graph((src.to(idtype), dst.to(idtype)), num_nodes=NUM_NODES)


def make_block():
    seeds = torch.arange(0, NUM_NODES, 3)
    return dgl.to_block(dgl.in_subgraph(make_dgl_graph(), seeds), seeds)


def make_graph(loops=True):
    return halfgnn.Graph.from_edges(*random_edges(loops=loops), num_src=NUM_NODES, num_dst=NUM_NODES)


def pair_of(name, dtype=torch.float32, in_feats=IN_FEATS):
    """DGL's module and halfgnn's, with the same seed."""
    return [seeded(lambda lib=lib: MODULES[name](lib, in_feats)).to(dtype) for lib in (dglnn, halfgnn.nn)]


# ---- parameters ----------------------------------------------------------------------------------


@needs_dgl
@pytest.mark.parametrize("in_feats", [IN_FEATS, (IN_FEATS, 6)], ids=["one", "pair"])
@pytest.mark.parametrize("name", MODULES)
def test_same_parameters_under_a_seed(name, in_feats):
    if isinstance(in_feats, tuple) and name.startswith(("GraphConv", "GINConv")):
        pytest.skip("takes one width")
    theirs, ours = pair_of(name, in_feats=in_feats)
    assert list(theirs.state_dict()) == list(ours.state_dict())
    for key, value in theirs.state_dict().items():
        assert torch.equal(value, ours.state_dict()[key]), key
    assert {k for k, p in theirs.named_parameters()} == {k for k, p in ours.named_parameters()}


@needs_dgl
@pytest.mark.parametrize("name", MODULES)
def test_checkpoints_move_both_ways(name):
    theirs, ours = pair_of(name)
    for source, target in ((theirs, ours), (ours, theirs)):
        with torch.no_grad():
            for parameter in source.parameters():
                parameter.normal_()
        assert target.load_state_dict(source.state_dict()).missing_keys == []
        g, x = make_dgl_graph(), randn(NUM_NODES, IN_FEATS)
        assert_close([ours(g, x)], [theirs(g, x)], 1e-4)


@needs_dgl
@pytest.mark.parametrize("name", [name for name in MODULES if not name.startswith(("GINConv", "DotGat"))])
def test_reset_parameters(name):
    """For the modules that have it in DGL."""
    theirs, ours = pair_of(name)
    for module in (theirs, ours):
        seeded(module.reset_parameters, 7)
    for a, b in zip(theirs.parameters(), ours.parameters()):
        assert torch.equal(a, b)


# ---- results -------------------------------------------------------------------------------------


@needs_dgl
@pytest.mark.parametrize("dtype", WIDE_DTYPES, ids=str)
@pytest.mark.parametrize("name", MODULES)
def test_same_as_dgl(name, dtype):
    theirs, ours = pair_of(name, dtype)
    g, x = make_dgl_graph(), randn(NUM_NODES, IN_FEATS, dtype=dtype)
    expected = with_gradients(theirs, lambda x: theirs(g, x), [x])
    actual = with_gradients(ours, lambda x: ours(g, x), [x])
    assert_close(actual, expected, tolerance_of(dtype))
    again = with_gradients(ours, lambda x: ours(halfgnn.Graph.from_dgl(g), x), [x])
    assert all(a is b or torch.equal(a, b) for a, b in zip(again, actual))


@needs_dgl
@pytest.mark.parametrize("name", MODULES)
def test_same_as_dgl_on_blocks(name):
    theirs, ours = pair_of(name)
    block = make_block()
    assert block.num_src_nodes() > block.num_dst_nodes()
    x = randn(block.num_src_nodes(), IN_FEATS)
    expected = with_gradients(theirs, lambda x: theirs(block, x), [x])
    for g in (block, halfgnn.Graph.from_dgl(block)):
        assert_close(with_gradients(ours, lambda x, g=g: ours(g, x), [x]), expected, 1e-4)


@needs_dgl
@pytest.mark.parametrize("sizes", [(30, 7), (7, 30), (20, 20)], ids=str)
@pytest.mark.parametrize("name", [*ATTENTIONS, "SAGEConv-mean-5", "SAGEConv-pool-5", "SAGEConv-lstm-5"])
def test_same_as_dgl_on_pairs(name, sizes):
    theirs, ours = pair_of(name, in_feats=(IN_FEATS, 6))
    src, dst = random_edges(*sizes)
    g = dgl.heterograph({("a", "to", "b"): (src, dst)}, dict(zip("ab", sizes)))
    feats = [randn(sizes[0], IN_FEATS), randn(sizes[1], 6)]
    expected = with_gradients(theirs, lambda *x: theirs(g, x), feats)
    assert_close(with_gradients(ours, lambda *x: ours(g, x), feats), expected, 1e-4)


@needs_dgl
@pytest.mark.parametrize("name", ["GATConv", "GATv2Conv", "GATv2Conv-shared", "SAGEConv-gcn-5", "GraphConv-both-5"])
def test_same_as_dgl_on_pairs_of_one_width(name):
    """A module with one in_feats gets a pair of features."""
    theirs, ours = pair_of(name)
    src, dst = random_edges(30, 7)
    g = dgl.heterograph({("a", "to", "b"): (src, dst)}, {"a": 30, "b": 7})
    feats = [randn(30, IN_FEATS), randn(7, IN_FEATS, seed=4)]
    expected = with_gradients(theirs, lambda *x: theirs(g, x), feats)
    assert_close(with_gradients(ours, lambda *x: ours(g, x), feats), expected, 1e-4)


@needs_dgl
@pytest.mark.parametrize("name", ["GATConv", "GATConv-identity", "GraphConv-both-5", "GraphConv-right-20"])
def test_same_as_dgl_with_more_dimensions(name):
    theirs, ours = pair_of(name)
    g, x = make_dgl_graph(), randn(NUM_NODES, 2, 3, IN_FEATS)
    expected = with_gradients(theirs, lambda x: theirs(g, x), [x])
    assert_close(with_gradients(ours, lambda x: ours(g, x), [x]), expected, 1e-4)


@needs_dgl
@pytest.mark.parametrize("name", [*OTHERS, "GATConv"])
def test_same_as_dgl_with_edge_weights(name):
    theirs, ours = pair_of(name)
    g = make_dgl_graph()
    weight = randn(g.num_edges()).abs()
    if name.startswith("GINConv"):
        weight = weight.unsqueeze(1)
    if name.startswith("SAGEConv-lstm"):
        # In a mailbox DGL multiplies (E, F) by (E,) only if the widths allow it.
        weight = weight.unsqueeze(1)
    inputs = [randn(NUM_NODES, IN_FEATS), weight]
    expected = with_gradients(theirs, lambda x, w: theirs(g, x, edge_weight=w), inputs)
    assert_close(with_gradients(ours, lambda x, w: ours(g, x, edge_weight=w), inputs), expected, 1e-4)


@needs_dgl
@pytest.mark.parametrize("name", [name for name in OTHERS if not name.endswith("lstm-5")])
def test_same_as_dgl_with_an_edge_weight_a_column(name):
    """Padded rows have more columns than such weights."""
    theirs, ours = pair_of(name)
    g = make_dgl_graph()
    before = name.endswith("-5") and not name.startswith("SAGEConv-pool")  # projected first, to 5 columns
    inputs = [randn(NUM_NODES, IN_FEATS), randn(g.num_edges(), 5 if before else IN_FEATS).abs()]
    expected = with_gradients(theirs, lambda x, w: theirs(g, x, edge_weight=w), inputs)
    assert_close(with_gradients(ours, lambda x, w: ours(g, x, edge_weight=w), inputs), expected, 1e-4)


@pytest.mark.parametrize("width", [5, 20])
def test_gcn_aggregator_with_more_dimensions(width):
    """Each slice gives the same result as alone, also if there are as many slices as nodes. (DGL then divides by wrong
    degrees.)"""
    g, conv = make_graph(), halfgnn.nn.SAGEConv(IN_FEATS, width, "gcn")
    x = randn(NUM_NODES, NUM_NODES, IN_FEATS)
    assert_close([conv(g, x)], [torch.stack([conv(g, x[:, i]) for i in range(NUM_NODES)], 1)])


@needs_dgl
@pytest.mark.parametrize("name", ATTENTIONS)
def test_attention_weights(name):
    theirs, ours = pair_of(name)
    g, x = make_dgl_graph(), randn(NUM_NODES, IN_FEATS)
    (expected, weights), (actual, ours_weights) = (module(g, x, get_attention=True) for module in (theirs, ours))
    assert_close([actual, ours_weights], [expected, weights])
    assert_close([ours(g, x)], [actual])


@needs_dgl
def test_external_weight():
    theirs, ours = (lib.GraphConv(IN_FEATS, 5, weight=False, bias=False) for lib in (dglnn, halfgnn.nn))
    g, x = make_dgl_graph(), randn(NUM_NODES, IN_FEATS)
    assert_close([ours(g, x), ours(g, x, randn(IN_FEATS, 5))], [theirs(g, x), theirs(g, x, randn(IN_FEATS, 5))])
    for width in (7, 20):  # not the module's width: no column may be cut off
        assert_close([ours(g, x, randn(IN_FEATS, width))], [theirs(g, x, randn(IN_FEATS, width))])
    with pytest.raises(ValueError, match="weight=False"):
        halfgnn.nn.GraphConv(IN_FEATS, 5)(g, x, randn(IN_FEATS, 5))


@needs_dgl
@pytest.mark.parametrize("norm", ["both", "right", "none"])
def test_edge_weight_norm(norm):
    g = make_dgl_graph()
    weight = randn(g.num_edges()).abs() + 0.1
    theirs, ours = (lib.EdgeWeightNorm(norm, eps=0.01) for lib in (dglnn, halfgnn.nn))
    expected = theirs(g, weight)
    assert_close([ours(g, weight)], [expected])
    assert ours(g, weight.half()).dtype == torch.float16
    with torch.autocast("cpu", torch.bfloat16):
        assert_close([ours(g, weight)], [expected])
    with pytest.raises(ValueError, match="one number an edge"):
        ours(g, weight.unsqueeze(1))
    if norm == "both":
        with pytest.raises(ValueError, match="not positive"):
            ours(g, weight - weight.min())


@needs_dgl
@pytest.mark.parametrize("name", ["GATConv", "GraphConv-both-5", "SAGEConv-pool-5"])
def test_in_dgls_hetero_graph_conv(name):
    edges = {("a", "x", "b"): random_edges(20, 9), ("b", "y", "a"): random_edges(9, 20, loops=False)}
    g = dgl.heterograph(edges, {"a": 20, "b": 9})
    feats = {"a": randn(20, IN_FEATS), "b": randn(9, IN_FEATS)}
    theirs, ours = (
        seeded(lambda lib=lib: dglnn.HeteroGraphConv({etype: MODULES[name](lib, IN_FEATS) for etype in g.etypes}))
        for lib in (dglnn, halfgnn.nn)
    )
    expected, actual = theirs(g, feats), ours(g, feats)
    assert_close([actual["a"], actual["b"]], [expected["a"], expected["b"]], 1e-4)


def test_transformer_without_edge_features():
    """Compared with the formula. test_pyg compares the module with torch_geometric's."""
    g = make_graph()
    conv = seeded(lambda: halfgnn.nn.TransformerConv(IN_FEATS, 5, heads=3))
    x = randn(NUM_NODES, IN_FEATS)
    query, key, value = (linear(x).view(-1, 3, 5) for linear in (conv.lin_query, conv.lin_key, conv.lin_value))
    expected = reference.dot_attention(g, query, key, value, 5**-0.5).flatten(1) + conv.lin_skip(x)
    assert_close([conv(g, x)], [expected])
    out, weights = conv(g, x, get_attention=True)
    assert_close([out, ops.copy_e_sum(g, weights)], [expected, torch.ones(NUM_NODES, 3, 1)])
    with pytest.raises(ValueError, match="no edge features"):
        conv(g, x, randn(g.num_edges, 4))
    with pytest.raises(ValueError, match="4 columns"):
        halfgnn.nn.TransformerConv(IN_FEATS, 5, edge_dim=4)(g, x)


# ---- half precision ------------------------------------------------------------------------------


WIDTH_41 = {
    "GATConv-41": lambda: halfgnn.nn.GATConv(IN_FEATS, 41, 2, bias=False),
    "GATv2Conv-41": lambda: halfgnn.nn.GATv2Conv(IN_FEATS, 41, 2, residual=True),
    "DotGatConv-41": lambda: halfgnn.nn.DotGatConv(IN_FEATS, 41, 2),
    "TransformerConv-41": lambda: halfgnn.nn.TransformerConv(IN_FEATS, 41, 2, concat=False),
    "GraphConv-41": lambda: halfgnn.nn.GraphConv(64, 41, bias=False),
    "SAGEConv-mean-41": lambda: halfgnn.nn.SAGEConv(64, 41, "mean"),
    "SAGEConv-gcn-41": lambda: halfgnn.nn.SAGEConv(64, 41, "gcn"),
}
HALF_MODULES = [*MODULES, "TransformerConv", *WIDTH_41]


def make_module(name):
    if name == "TransformerConv":
        return seeded(lambda: halfgnn.nn.TransformerConv(IN_FEATS, 5, heads=3, beta=True))
    return seeded(WIDTH_41[name] if name in WIDTH_41 else lambda: MODULES[name](halfgnn.nn, IN_FEATS))


def features_for(name):
    return randn(NUM_NODES, 64 if name in ("GraphConv-41", "SAGEConv-mean-41", "SAGEConv-gcn-41") else IN_FEATS)


def results_of(name, dtype, device="cpu"):
    """Output and gradients of the module in this type."""
    module, g, x = make_module(name).to(device, dtype), make_graph().to(device), features_for(name).to(device, dtype)
    return with_gradients(module, lambda x: module(g, x), [x])


def mixed_results_of(name, dtype, device="cpu", features=torch.float32):
    """Output and gradients under autocast."""
    module, g, x = make_module(name).to(device), make_graph().to(device), features_for(name).to(device, features)
    with torch.autocast(device, dtype):
        return with_gradients(module, lambda x: module(g, x), [x])


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("name", HALF_MODULES)
def test_half(name, dtype, device):
    actual = results_of(name, dtype, device)
    assert all(result.dtype == dtype for result in actual)
    with by_formulas():
        formula = results_of(name, dtype)
    assert_near(actual, results_of(name, torch.float32), formula, dtype)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("name", HALF_MODULES)
def test_autocast(name, dtype, device):
    actual = mixed_results_of(name, dtype, device)
    assert all(gradient.dtype == torch.float32 for gradient in actual[1:])
    with by_formulas():
        formula = mixed_results_of(name, dtype)
    assert_near(actual, results_of(name, torch.float32), formula, dtype)


@pytest.mark.parametrize("name", ["GATConv", "GATv2Conv", "DotGatConv", "TransformerConv"])
def test_autocast_of_half_features(name):
    """An input as from a layer before."""
    actual = mixed_results_of(name, torch.bfloat16, features=torch.bfloat16)
    with by_formulas():
        formula = mixed_results_of(name, torch.bfloat16, features=torch.bfloat16)
    assert_near(actual, results_of(name, torch.float32), formula, torch.bfloat16)


def test_logits_are_fp32(monkeypatch):
    seen = []
    attention = ops.gat_attention
    monkeypatch.setattr(ops, "gat_attention", lambda g, *x: seen.append([t.dtype for t in x[:3]]) or attention(g, *x))
    module, g, x = make_module("GATConv"), make_graph(), randn(NUM_NODES, IN_FEATS)
    with torch.autocast("cpu", torch.bfloat16):
        module(g, x)
        module(g, x.bfloat16())
    module.bfloat16()(g, x.bfloat16())
    assert seen == [[torch.bfloat16, torch.float32, torch.float32]] * 3


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_accuracy_of_logits(dtype, device):
    """Halves are multiplied without rounding and summed in fp32."""
    linear = seeded(lambda: torch.nn.Linear(64, 24)).to(device)
    attns = [randn(1, 3, 8, seed=i).to(device).requires_grad_() for i in (1, 2)]
    h = randn(50, 2, 64).to(device, dtype).requires_grad_()
    grad = randn(50, 2, 6).to(device)
    exact = h.detach().double().requires_grad_()
    feat = torch.nn.functional.linear(exact, linear.weight.double(), linear.bias.double()).view(50, 2, 3, 8)
    expected = torch.cat([(feat * attn.double()).sum(-1) for attn in attns], -1)
    actual = torch.cat(node_logits(linear, h, *attns), -1)
    assert actual.dtype == torch.float32
    leaves = [linear.weight, linear.bias, *attns]
    # On CUDA the weight and the gradient are rounded to half before the product.
    tolerance = 1e-5 if device == "cpu" else 4 * torch.finfo(dtype).eps
    torch.testing.assert_close(actual.double(), expected, rtol=tolerance, atol=10 * tolerance)
    actual = torch.autograd.grad(actual, [h, *leaves], grad)
    expected = torch.autograd.grad(expected, [exact, *leaves], grad.double())
    for i, (a, b) in enumerate(zip(actual, expected)):
        error = (a.double() - b.double()).norm() / b.double().norm()
        assert error <= (torch.finfo(dtype).eps if i == 0 else tolerance), i


@pytest.mark.parametrize("norm", ["both", "right"])
def test_fp16_sums_are_scaled_before_they_are_rounded(norm):
    """The sum over a hub's 1,000 neighbours exceeds 65,504; the normalised result does not."""
    count = 1000
    g = halfgnn.Graph.from_edges(torch.arange(count), torch.zeros(count, dtype=torch.int64), num_src=count, num_dst=1)
    conv = halfgnn.nn.GraphConv(4, 4, norm=norm, weight=False, bias=False)
    out = conv(g, (torch.full((count, 4), 1000.0).half(), torch.zeros(1, 4).half()))
    expected = 1000.0 if norm == "right" else 1000.0 * count**0.5
    torch.testing.assert_close(out, torch.full((1, 4), expected).half())


# ---- padding -------------------------------------------------------------------------------------


@pytest.fixture
def always_padded(monkeypatch):
    monkeypatch.setattr(projections, "_padding_pays", lambda *args: True)


PADDED = {**WIDTH_41, "GATv2Conv-shared": lambda: halfgnn.nn.GATv2Conv(IN_FEATS, 41, 2, share_weights=True)}


@pytest.mark.parametrize("name", PADDED)
def test_padding_changes_nothing(name, request):
    dtype = WIDE_DTYPES[-1]
    g, conv = make_graph(), seeded(PADDED[name]).to(dtype)
    x = features_for(name).to(dtype)
    expected = with_gradients(conv, lambda x: conv(g, x), [x])
    keys = list(conv.state_dict())
    request.getfixturevalue("always_padded")
    with widths_seen() as widths:
        actual = with_gradients(conv, lambda x: conv(g, x), [x])
        assert conv(g, x).is_contiguous()
    assert widths == {48}
    assert_close(actual, expected, tolerance_of(dtype))
    assert list(conv.state_dict()) == keys
    if hasattr(conv, "attn_drop"):
        assert_close([conv(g, x, get_attention=True)[0]], expected[:1], tolerance_of(dtype))


@contextlib.contextmanager
def widths_seen():
    """The widths of the rows that are passed to the operators."""
    seen = set()

    def spy(function, position):
        def call(*args, **kwargs):
            seen.add(args[position].shape[-1])
            return function(*args, **kwargs)

        return call

    names = {"gat_attention": 1, "gatv2_attention": 1, "dot_attention": 3, "gspmm": 3}
    with pytest.MonkeyPatch.context() as patch:
        for name, position in names.items():
            patch.setattr(ops, name, spy(getattr(ops, name), position))
        yield seen


@pytest.mark.parametrize(
    "dim, dtype, device, weighted, width",
    [
        (41, torch.bfloat16, "cuda", True, 48),
        (47, torch.float16, "cuda", False, 48),
        (48, torch.float16, "cuda", True, 48),
        (44, torch.float16, "cuda", True, 48),
        (4, torch.float16, "cuda", True, 4),
        (3, torch.float16, "cuda", True, 3),
        (41, torch.float32, "cuda", True, 41),
        (41, torch.bfloat16, "cpu", True, 41),
        (7, torch.bfloat16, "cpu", True, 8),
        (3, torch.float32, "cpu", True, 8),
        (7, torch.float32, "cpu", False, 7),
        (7, torch.float64, "cpu", True, 7),
        (1, torch.float32, "cpu", True, 1),
    ],
)
def test_when_rows_are_padded(dim, dtype, device, weighted, width):
    x = SimpleNamespace(is_cuda=device == "cuda", device=torch.device(device), dtype=dtype)
    assert projections.padded(dim, x, weighted) == width


# ---- nodes without in-edges ----------------------------------------------------------------------


REFUSING = ["GATConv", "GATv2Conv", "DotGatConv", "GraphConv-both-5"]


@pytest.mark.parametrize("name", REFUSING)
def test_nodes_without_in_edges(name):
    g, x = make_graph(loops=False), randn(NUM_NODES, IN_FEATS)
    isolated = g.in_degrees() == 0
    assert isolated.any()
    module = make_module(name)
    for _ in range(2):
        with pytest.raises(ValueError, match="0-in-degree"):
            module(g, x)
    module.set_allow_zero_in_degree(True)
    assert (module(g, x)[isolated] == 0).all() and (module(g, x)[~isolated] != 0).any()


def test_in_degrees_are_looked_at_once(monkeypatch):
    calls = []
    look = degrees._any_empty
    monkeypatch.setattr(degrees, "_any_empty", lambda indptr: calls.append(1) or look(indptr))
    g, x = make_graph(), randn(NUM_NODES, IN_FEATS)
    for name in REFUSING:
        make_module(name)(g, x)
        make_module(name)(g, x)
    assert len(calls) == 1
    make_module("GATConv")(make_graph(), x)
    assert len(calls) == 2


# ---- dropout -------------------------------------------------------------------------------------


def test_attention_dropout():
    """With equal logits and features of ones, the output of a node is the share of in-edges that are kept, times 1 / (1
    - p)."""
    degree, count, p = 50, 200, 0.3
    dst = torch.arange(count).repeat_interleave(degree)
    g = halfgnn.Graph.from_edges(torch.arange(count * degree) % count, dst, num_src=count, num_dst=count)
    conv = halfgnn.nn.GATConv(4, 4, 2, attn_drop=p)
    with torch.no_grad():
        conv.fc.weight.fill_(0.25)
    x = torch.ones(count, 4)
    stays = conv(g, x)[..., 0] * (1 - p) * degree
    torch.testing.assert_close(stays, stays.round(), rtol=0, atol=1e-3)
    share = (stays / degree).mean().item()
    assert abs(share - (1 - p)) < 5 * (p * (1 - p) / (count * degree * 2)) ** 0.5
    assert stays.round().unique().numel() > 10 and not torch.equal(stays[:, 0], stays[:, 1])
    assert torch.equal(seeded(lambda: conv(g, x)), seeded(lambda: conv(g, x)))
    assert not torch.equal(seeded(lambda: conv(g, x)), seeded(lambda: conv(g, x), 2))
    torch.testing.assert_close(conv.eval()(g, x), torch.ones(count, 2, 4))


@pytest.mark.parametrize("name", ["GATConv", "GATv2Conv"])
def test_feature_dropout(name):
    g, x = make_graph(), randn(NUM_NODES, IN_FEATS)
    conv, plain = (seeded(lambda p=p: getattr(halfgnn.nn, name)(IN_FEATS, 5, 3, feat_drop=p)) for p in (0.5, 0.0))
    dropped = seeded(lambda: torch.nn.functional.dropout(x, 0.5))
    assert torch.equal(seeded(lambda: conv(g, x)), plain(g, dropped))
    assert torch.equal(conv.eval()(g, x), plain(g, x))


def test_transformer_dropout():
    g, x = make_graph(), randn(NUM_NODES, IN_FEATS)
    conv, plain = (seeded(lambda p=p: halfgnn.nn.TransformerConv(IN_FEATS, 5, dropout=p)) for p in (0.5, 0.0))
    assert not torch.allclose(conv(g, x), plain(g, x))
    assert torch.equal(conv.eval()(g, x), plain(g, x))


# ---- as modules ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "dtype, region", [(torch.float32, None), (torch.bfloat16, None), (torch.float32, torch.float16)]
)
@pytest.mark.parametrize("name", ["GATConv", "GATv2Conv", "GraphConv-both-5", "TransformerConv"])
def test_compiled(name, dtype, region, device):
    torch._dynamo.reset()
    g, x = make_graph().to(device), randn(NUM_NODES, IN_FEATS).to(device, dtype)
    module = make_module(name).to(device, dtype)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    # Compiled code may merge several products into one, or round once more. A gradient is a sum of many products.
    tolerance = 1e-6 if dtype == torch.float32 and region is None else 4 * torch.finfo(region or dtype).eps
    for graph in (g, make_graph().to(device)):  # the second has nothing cached
        with torch.autocast(device, region, enabled=region is not None):
            actual = with_gradients(module, lambda x, graph=graph: compiled(graph, x), [x])
            expected = with_gradients(module, lambda x: module(g, x), [x])
        assert [a.dtype for a in actual] == [b.dtype for b in expected]
        assert_close(actual, expected, tolerance)


def test_compiled_code_refuses_nodes_without_in_edges():
    torch._dynamo.reset()
    compiled = torch.compile(make_module("GATConv"), fullgraph=True, backend="aot_eager")
    # torch 2.4 and 2.8 show the line that raised the error, but not its message.
    with pytest.raises(Exception, match=r"0-in-degree|Observed exception(.|\n)*from user code:(.|\n)*checked_graph"):
        compiled(make_graph(loops=False), randn(NUM_NODES, IN_FEATS))


@pytest.mark.parametrize("name", [*MODULES, "TransformerConv"])
def test_copies(name):
    g, x = make_graph(), randn(NUM_NODES, IN_FEATS)
    module = make_module(name)
    out = module(g, x)
    for copied in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert torch.equal(copied(g, x), out)
    assert ("(" in repr(module) and str(IN_FEATS) in repr(module)) or name.startswith("GIN")


@pytest.mark.parametrize("name", ["GATConv", "GATv2Conv", "DotGatConv", "SAGEConv-mean-5"])
def test_projections_may_be_wrapped(name, always_padded):
    """A projection that does more than a matrix product is called as a module. A plain one gives the same result."""

    class Wrapped(torch.nn.Module):
        def __init__(self, linear):
            super().__init__()
            self.inner = linear

        def forward(self, x):
            return 2 * self.inner(x)

    g, x = make_graph(), randn(NUM_NODES, IN_FEATS)
    attribute = {"GATv2Conv": "fc_src", "SAGEConv-mean-5": "fc_neigh"}.get(name, "fc")
    doubled, wrapped, hooked = make_module(name), make_module(name), make_module(name)
    with torch.no_grad():
        for parameter in getattr(doubled, attribute).parameters():
            parameter.mul_(2)
    setattr(wrapped, attribute, Wrapped(getattr(wrapped, attribute)))
    getattr(hooked, attribute).register_forward_hook(lambda module, inputs, out: 2 * out)
    for module in (wrapped, hooked):
        assert_close([module(g, x)], [doubled(g, x)])


def test_parametrized_projection():
    g, x = make_graph(), randn(NUM_NODES, IN_FEATS)
    conv, plain = make_module("GATConv"), make_module("GATConv")
    torch.nn.utils.parametrizations.weight_norm(conv.fc)
    assert_close([conv(g, x)], [plain(g, x)])


# ---- errors --------------------------------------------------------------------------------------


def test_projection_with_a_forward_of_its_own():
    """A forward set on the instance, as wrappers of other libraries do."""
    expected, module = make_module("GATConv"), make_module("GATConv")
    with torch.no_grad():
        expected.fc.weight *= 2
    plain = module.fc.forward
    module.fc.forward = lambda x: 2 * plain(x)
    g, x = make_graph(), randn(NUM_NODES, IN_FEATS)
    assert_close(module(g, x), expected(g, x))


def test_parametrized_weights_are_made_once():
    class Counted(torch.nn.Module):
        calls = 0

        def forward(self, weight):
            self.calls += 1
            return weight * 1

    module, counted = make_module("GATConv"), Counted()
    torch.nn.utils.parametrize.register_parametrization(module.fc, "weight", counted)
    counted.calls = 0
    module(make_graph(), randn(NUM_NODES, IN_FEATS))
    assert counted.calls == 1


# ---- products of halves ----------------------------------------------------------------------------


def conv_and_leaves(dtype, **options):
    module = seeded(lambda: halfgnn.nn.GATConv(IN_FEATS, 8, 2, allow_zero_in_degree=True, **options))
    return module, make_graph(), randn(NUM_NODES, IN_FEATS).to(dtype).requires_grad_()


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_backward_under_autocast(dtype, device):
    """The backward may run inside the autocast region or outside. The products are the same."""
    results = []
    for inside in (False, True):
        module, g, x = conv_and_leaves(torch.float32)
        module, g, x = module.to(device), g.to(device), x.detach().to(device).requires_grad_()
        with torch.autocast(device, dtype):
            loss = module(g, x).float().square().sum()
            if inside:
                loss.backward()
        if not inside:
            loss.backward()
        results.append([x.grad, *(p.grad for p in module.parameters())])
    for a, b in zip(*results):
        assert torch.equal(a, b)


@pytest.mark.parametrize("rows", [0, 1, 255, 256, 257, 1000])
def test_products_by_chunks(monkeypatch, rows):
    """Chunks of 256 rows give the same as one product."""
    monkeypatch.setattr(projections, "_CHUNK", 1)
    h = randn(rows, 7).bfloat16().requires_grad_()
    weight, bias = randn(9, 7, seed=1).requires_grad_(), randn(9, seed=2).requires_grad_()
    upstream = randn(rows, 4, seed=3).bfloat16(), randn(rows, 5, seed=4)
    parts = projections._widened_linear(h, weight, bias, 4)
    assert [part.dtype for part in parts] == [torch.bfloat16, torch.float32]
    product = h.float() @ weight.t() + bias
    assert_close(parts[0].float(), product[:, :4], tolerance=2**-8)
    assert_close(parts[1], product[:, 4:])
    grads = torch.autograd.grad(parts, (h, weight, bias), upstream)
    expected = torch.autograd.grad(product, (h, weight, bias), torch.cat([upstream[0].float(), upstream[1]], 1))
    for got, right in zip(grads, expected):
        assert got.dtype == right.dtype
        assert_close(got.float(), right.float(), tolerance=2**-7)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_no_input_features(dtype):
    module = halfgnn.nn.TransformerConv((0, 4), 8, 1)
    with torch.autocast("cpu", dtype):
        out = module(make_graph(), (torch.randn(NUM_NODES, 0), torch.randn(NUM_NODES, 4)))
    out.float().sum().backward()
    assert module.lin_value.bias.grad.isfinite().all()


def test_functorch_over_parameters_in_half():
    module, g, x = conv_and_leaves(torch.bfloat16)
    module.bfloat16()
    named = {name: p.detach() for name, p in module.named_parameters()}
    stacked = {name: torch.stack([p, 2 * p]) for name, p in named.items()}

    def call(parameters):
        return torch.func.functional_call(module, parameters, (g, x.detach()))

    both = torch.func.vmap(call)(stacked)
    for i in range(2):
        alone = call({name: p[i] for name, p in stacked.items()})
        torch.testing.assert_close(
            both[i], alone, rtol=2**-7, atol=2**-7
        )  # products of another shape may round otherwise


def test_overflow_stays_in_its_head():
    """For a projection from whose output the logits are computed."""
    module, g, x = conv_and_leaves(torch.float32)
    with torch.no_grad():
        module.fc.weight[:8] *= 1e6
    module.fc.register_forward_hook(lambda *_: None)
    with torch.autocast("cpu", torch.float16):
        out = module(g, x)
    assert not out[:, 0].isfinite().all() and out[:, 1].isfinite().all()


def test_errors():
    g, x = make_graph(), randn(NUM_NODES, IN_FEATS)
    tall = halfgnn.Graph.from_edges(*random_edges(20, 30), num_src=20, num_dst=30)
    conv = make_module("GATConv")
    with pytest.raises(ValueError, match=r"expected a pair \(of the sources, of the destinations\)"):
        conv(tall, randn(20, IN_FEATS))
    with pytest.raises(ValueError, match="rows"):
        conv(g, x[1:])
    with pytest.raises(TypeError, match=r"halfgnn\.Graph or a DGLGraph"):
        conv("graph", x)
    for name in ("GATConv", "DotGatConv"):
        with pytest.raises(ValueError, match="pair"):
            getattr(halfgnn.nn, name)((IN_FEATS, IN_FEATS), 5, 3)(g, x)
    with pytest.raises(ValueError, match="pair"):
        make_module("DotGatConv")(g, (x, x))
    with pytest.raises(ValueError, match="norm is 'mean'"):
        halfgnn.nn.GraphConv(IN_FEATS, 5, norm="mean")
    with pytest.raises(ValueError, match="aggregator_type is 'sum'"):
        halfgnn.nn.SAGEConv(IN_FEATS, 5, "sum")
    with pytest.raises(ValueError, match="aggregator_type is 'min'"):
        halfgnn.nn.GINConv(None, "min")
    with pytest.raises(ValueError, match="norm is 'left'"):
        halfgnn.nn.EdgeWeightNorm("left")
    sage = halfgnn.nn.SAGEConv(IN_FEATS, 5, "gcn")
    sage.fc_neigh = torch.nn.Sequential(sage.fc_neigh)  # its input width is unknown
    with pytest.raises(ValueError, match=r"feat\[0\] and feat\[1\] have shapes .* one width for the aggregator gcn"):
        sage(g, (x, x[:, 1:]))
    with pytest.raises(ValueError, match=r"feat\[0\] and feat\[1\] have shapes .* one width"):
        halfgnn.nn.GINConv()(g, (x, x[:, :1]))
    with pytest.raises(
        ValueError, match="feat is one tensor, but the module takes 12 features of sources and 6 of dest"
    ):
        halfgnn.nn.SAGEConv((IN_FEATS, 6), 5, "mean")(g, x)


ATTENTION_SIZES = {
    "GATConv": "num_heads",
    "GATv2Conv": "num_heads",
    "DotGatConv": "num_heads",
    "TransformerConv": "heads",
}


@pytest.mark.parametrize("name", [*ATTENTION_SIZES, "GraphConv", "SAGEConv"])
def test_sizes(name):
    cls, last = getattr(halfgnn.nn, name), ("mean",) if name == "SAGEConv" else ()
    into, out = ("in_channels", "out_channels") if name == "TransformerConv" else ("in_feats", "out_feats")
    least, sizes = 0, [out]
    if name in ATTENTION_SIZES:
        least, last, sizes = 1, (2,), [out, ATTENTION_SIZES[name]]
    for i, wrong_name in enumerate([into, *sizes]):
        arguments = [IN_FEATS, 5, *last]
        for wrong in (None, "3", 2.0, True, torch.zeros(2)):
            arguments[i] = wrong
            with pytest.raises(TypeError, match=f"{wrong_name} is .*; expected .*integer"):
                cls(*arguments)
        for wrong in (-1, *range(least if i else 0)):
            arguments[i] = wrong
            with pytest.raises(ValueError, match=f"{wrong_name} is {wrong}; expected .*integer"):
                cls(*arguments)
    if name != "GraphConv":
        with pytest.raises(ValueError, match=rf"{into} is \(3, 3, 3\); expected .* pair"):
            cls((3, 3, 3), 5, *last)
        with pytest.raises(ValueError, match=rf"{into}\[1\] is -3; expected"):
            cls((3, -3), 5, *last)
    for kind in [("pool",), ("gcn",)] if name == "SAGEConv" else [last]:
        for width in (0, 5)[least:]:  # widths of nodes' features; 0: none
            assert cls(0, width, *kind)(make_graph(), randn(NUM_NODES, 0)).shape[0] == NUM_NODES


@pytest.mark.parametrize(
    "cls, arguments, names",
    [
        ("GATConv", (4, 5, 3), ("feat_drop", "attn_drop", "negative_slope")),
        ("GATv2Conv", (4, 5, 3), ("feat_drop", "attn_drop", "negative_slope")),
        ("TransformerConv", (4, 5), ("dropout",)),
        ("SAGEConv", (4, 5, "mean"), ("feat_drop",)),
        ("GINConv", (), ("init_eps",)),
        ("EdgeWeightNorm", (), ("eps",)),
    ],
)
def test_numbers(cls, arguments, names):
    for name in names:
        for wrong in ("0.1", None, torch.zeros(2)):
            with pytest.raises(TypeError, match=f"{name} is .*; expected a number"):
                getattr(halfgnn.nn, cls)(*arguments, **{name: wrong})
        with pytest.raises(ValueError, match=f"{name} is nan; expected a finite number"):
            getattr(halfgnn.nn, cls)(*arguments, **{name: float("nan")})
        if "drop" in name:
            with pytest.raises(ValueError, match=f"{name} is 1.5; expected a probability"):
                getattr(halfgnn.nn, cls)(*arguments, **{name: 1.5})


ONE_EACH = [*ATTENTIONS, "GraphConv-both-5", "SAGEConv-mean-5", "SAGEConv-gcn-5", "SAGEConv-pool-5", "SAGEConv-lstm-5"]
ONE_EACH += ["GINConv-sum", "TransformerConv"]


@pytest.mark.parametrize("name", ONE_EACH)
def test_wrong_features(name):
    g, x, module = make_graph(), randn(NUM_NODES, IN_FEATS), make_module(name)
    for wrong, error, match in [
        (None, TypeError, "feat is None; expected a torch.Tensor"),
        (x.tolist(), TypeError, "feat is list; expected a torch.Tensor"),
        ([x, x], TypeError, "feat is list; expected a torch.Tensor"),
        (torch.tensor(1.0), ValueError, r"feat has shape \(\); expected 40 rows"),
        (x[1:], ValueError, r"feat has shape \(39, 12\); expected 40 rows, one a source node"),
        ((x, x, x), ValueError, "feat is a tuple of 3; expected a tensor or the pair"),
        ((x,), ValueError, "feat is a tuple of 1; expected a tensor or the pair"),
        ((None, x), TypeError, r"feat\[0\] is None; expected a torch.Tensor"),
        (x.to_sparse(), TypeError, "feat has layout torch.sparse_coo; expected a dense tensor"),
        (x.to("meta"), ValueError, "feat is on meta; expected the graph's device, cpu"),
    ]:
        with pytest.raises(error, match=match):
            module(g, wrong)
    with pytest.raises(TypeError, match=r"^graph is a str; expected"):
        module("g", x)
    if name != "GINConv-sum":
        for wrong in (x[:, 1:], x[:, 0]):
            with pytest.raises(ValueError, match=r"feat has shape \(40,.*\); expected \(40, .*12\)"):
                module(g, wrong)
        with pytest.raises(TypeError, match=r"feat has dtype torch\.int64; expected a floating-point type"):
            module(g, x.long())
    if not name.startswith("GraphConv"):  # GraphConv reads only the first of a pair
        with pytest.raises(TypeError, match=r"feat\[1\] is None; expected a torch.Tensor"):
            module(g, (x, None))
        with pytest.raises(
            ValueError, match=r"feat\[1\] has shape \(39, 12\); expected 40 rows, one a destination node"
        ):
            module(g, (x, x[1:]))
    if name in ("GATv2Conv", "DotGatConv", "TransformerConv", "SAGEConv-lstm-5"):
        with pytest.raises(ValueError, match=r"feat has shape \(40, 1, 12\); expected \(40, 12\)"):
            module(g, x.unsqueeze(1))


def test_features_of_edges():
    g, x = make_graph(), randn(NUM_NODES, IN_FEATS)
    conv = halfgnn.nn.TransformerConv(IN_FEATS, 5, edge_dim=4)
    edge_feat = randn(g.num_edges, 4)
    for wrong, error, match in [
        (edge_feat.tolist(), TypeError, "edge_feat is list"),
        (edge_feat[1:], ValueError, rf"edge_feat has shape .*; expected {g.num_edges} rows, one an edge"),
        (edge_feat[:, 1:], ValueError, rf"edge_feat has shape .*; expected \({g.num_edges}, 4\)"),
        (edge_feat[:, 0], ValueError, rf"edge_feat has shape .*; expected \({g.num_edges}, 4\)"),
        (edge_feat.int(), TypeError, "edge_feat has dtype torch.int32"),
        (edge_feat.to("meta"), ValueError, "edge_feat is on meta"),
    ]:
        with pytest.raises(error, match=match):
            conv(g, x, wrong)
    with pytest.raises(ValueError, match="edge_dim is -4"):
        halfgnn.nn.TransformerConv(IN_FEATS, 5, edge_dim=-4)


WEIGHTED = [*OTHERS, "GATConv"]


@pytest.mark.parametrize("name", WEIGHTED)
def test_wrong_edge_weights(name):
    g, x, module = make_graph(), randn(NUM_NODES, IN_FEATS), make_module(name)
    count = g.num_edges
    weight = randn(count)
    for wrong, error, match in [
        (weight.tolist(), TypeError, "edge_weight is list; expected a torch.Tensor"),
        (weight[1:], ValueError, rf"edge_weight has shape \({count - 1},\); expected {count} rows, one an edge"),
        (torch.tensor(1.0), ValueError, rf"edge_weight has shape \(\); expected {count} rows"),
        (
            randn(count, 7),
            ValueError,
            rf"edge_weight has shape \({count}, 7\); expected \({count},\), one number an edge",
        ),
        (randn(count, 2, 1), ValueError, rf"edge_weight has shape .*; expected \({count},\), one number an edge"),
        (
            weight.double(),
            TypeError,
            "edge_weight has dtype torch.float64; expected that of the features, torch.float32",
        ),
        (weight.to("meta"), ValueError, "edge_weight is on meta; expected the graph's device"),
    ]:
        with pytest.raises(error, match=match):
            module(g, x, edge_weight=wrong)
    half = make_module(name).half()
    assert half(g, x.half(), edge_weight=weight).isfinite().all()
    with torch.autocast("cpu", torch.bfloat16):
        assert module(g, x, edge_weight=weight.half()).isfinite().all()


def test_wrong_weights_to_normalise():
    g = make_graph()
    norm, weight = halfgnn.nn.EdgeWeightNorm(), randn(g.num_edges).abs() + 0.1
    for wrong, error, match in [
        (None, TypeError, "edge_weight is None"),
        (weight[1:], ValueError, rf"edge_weight has shape .*; expected {g.num_edges} rows"),
        (torch.tensor(1.0), ValueError, r"edge_weight has shape \(\)"),
        (weight.ceil().long(), TypeError, "edge_weight has dtype torch.int64; expected a floating-point type"),
        (weight.to("meta"), ValueError, "edge_weight is on meta"),
    ]:
        with pytest.raises(error, match=match):
            norm(g, wrong)


def test_wrong_external_weight():
    g, x = make_graph(), randn(NUM_NODES, IN_FEATS)
    conv = halfgnn.nn.GraphConv(IN_FEATS, 5, weight=False, bias=False)
    with pytest.raises(TypeError, match="weight is a list"):
        conv(g, x, [1.0])
    with pytest.raises(ValueError, match=r"weight has shape \(12,\); expected \(in_feats, out_feats\)"):
        conv(g, x, x[0])
    with pytest.raises(ValueError, match=r"feat has shape \(40, 12\); expected \(40, \*, 11\)"):
        conv(g, x, randn(11, 5))
