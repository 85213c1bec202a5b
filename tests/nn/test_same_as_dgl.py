"""halfgnn.nn against dgl.nn: parameters, checkpoints, results and gradients."""

from __future__ import annotations

import pytest
import torch

import halfgnn
import halfgnn.nn
from halfgnn import ops, reference
from tests.nn.support_modules import (
    ATTENTIONS,
    MODULES,
    OTHERS,
    WIDE_DTYPES,
    make_block,
    make_dgl_graph,
    make_graph,
    needs_dgl,
    pair_of,
)
from tests.support_nn import (
    IN_FEATS,
    NUM_NODES,
    assert_close,
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


# ---- parameters --------------------------------------------------------------------------------


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


# ---- results -----------------------------------------------------------------------------------


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
    with pytest.raises(ValueError, match="one number per edge"):
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
