"""GINEConv and GatedGCNConv against their formulas, and against DGL where it has them."""

import pytest
import torch
import torch.nn.functional as F

import halfgnn
import halfgnn.nn
from halfgnn import reference
from tests.nn.support_modules import WIDE_DTYPES, make_block, make_dgl_graph, make_graph, needs_dgl
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

try:
    import dgl.nn as dglnn
except ImportError:
    dglnn = None


def gine(lib):
    return seeded(lambda: lib.GINEConv(torch.nn.Linear(IN_FEATS, 5), init_eps=0.3, learn_eps=True))


def gated(**options):
    return seeded(lambda: halfgnn.nn.GatedGCNConv(IN_FEATS, IN_FEATS, IN_FEATS, **options))


def features_of(g, dtype=torch.float32, device="cpu"):
    return [randn(n, IN_FEATS, seed=i).to(device, dtype) for i, n in ((3, g.num_src), (4, g.num_edges))]


# ---- GINEConv ------------------------------------------------------------------------------------


@needs_dgl
@pytest.mark.parametrize("dtype", WIDE_DTYPES, ids=str)
def test_gine_same_as_dgl(dtype):
    theirs, ours = (gine(lib).to(dtype) for lib in (dglnn, halfgnn.nn))
    assert list(theirs.state_dict()) == list(ours.state_dict())
    g, d = make_graph(), make_dgl_graph()
    inputs = features_of(g, dtype)
    expected = with_gradients(theirs, lambda *x: theirs(d, *x), inputs)
    for graph in (g, d):
        assert_close(with_gradients(ours, lambda *x: ours(graph, *x), inputs), expected, tolerance_of(dtype))  # noqa: B023


@needs_dgl
def test_gine_on_blocks_and_pairs():
    theirs, ours, block = gine(dglnn), gine(halfgnn.nn), make_block()
    x, y = randn(block.num_src_nodes(), IN_FEATS), randn(block.num_dst_nodes(), IN_FEATS, seed=5)
    e = randn(block.num_edges(), IN_FEATS, seed=4)
    for feat in (x, (x, y)):
        torch.testing.assert_close(ours(block, feat, e), theirs(block, feat, e), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("arguments,error,match", [
    (lambda x, e: (x, e[1:]), ValueError, r"edge_feat has shape \(259, 12\); expected 260 rows, one per edge"),
    (lambda x, e: (x, e[:, :3]), ValueError, r"edge_feat has shape \(260, 3\); expected \(260, 12\), the width of node_feat"),
    (lambda x, e: (x[1:], e), ValueError, r"node_feat has shape \(39, 12\); expected 40 rows"),
    (lambda x, e: (x, None), TypeError, r"edge_feat is None; expected a torch\.Tensor"),
    (lambda x, e: (x.double(), e), TypeError, r"node_feat has dtype torch.float64 and edge_feat torch.float32"),
    (lambda x, e: (x, e.int()), TypeError, r"edge_feat has dtype torch.int32"),
    (lambda x, e: ((x, x[:, :3]), e), ValueError, r"node_feat\[0\] and node_feat\[1\] have shapes"),
])  # fmt: skip
def test_gine_errors(arguments, error, match):
    g = make_graph()
    x, e = features_of(g)
    with pytest.raises(error, match=match):
        gine(halfgnn.nn)(g, *arguments(x, e))
    tall = halfgnn.Graph.from_edges(torch.tensor([0]), torch.tensor([1]), num_src=1, num_dst=2)
    with pytest.raises(ValueError, match="node_feat is one tensor, but the graph"):
        gine(halfgnn.nn)(tall, x[:1], e[:1])
    with pytest.raises(TypeError, match="apply_func is 3"):
        halfgnn.nn.GINEConv(3)


# ---- GatedGCNConv --------------------------------------------------------------------------------


def by_formula(conv, g, x, e):
    """Written as DGL 2 writes it."""
    z = reference.gsddmm(g, "add", conv.D(x), conv.E(x)) + conv.C(e)
    gate = z.sigmoid()
    summed = reference.gspmm(g, "mul", "sum", conv.B(x), gate)
    h = conv.A(x) + summed / (reference.gspmm(g, "copy_rhs", "sum", None, gate) + 1e-6)
    if conv.batch_norm:
        h, z = conv.bn_node(h), conv.bn_edge(z)
    if conv.activation is not None:
        h, z = conv.activation(h), conv.activation(z)
    return (x + h, e + z) if conv.residual else (h, z)


def joined(results):
    return torch.cat(results)


@pytest.mark.parametrize("dtype", WIDE_DTYPES, ids=str)
@pytest.mark.parametrize("options", [{}, {"batch_norm": False, "residual": False}, {"activation": None}, {"activation": F.elu}],
                         ids=["plain", "bare", "linear", "elu"])  # fmt: skip
def test_gated_same_as_formula(options, dtype):
    conv, g = gated(**options).to(dtype), make_graph(loops=False)
    inputs = features_of(g, dtype)
    actual = with_gradients(conv, lambda *x: joined(conv(g, *x)), inputs)
    assert_close(
        actual, with_gradients(conv, lambda *x: joined(by_formula(conv, g, *x)), inputs), 10 * tolerance_of(dtype)
    )


def test_gated_parameters():
    conv = halfgnn.nn.GatedGCNConv(8, 4, 6)
    layers = {"A": (6, 8), "B": (6, 8), "D": (6, 8), "E": (6, 8), "C": (6, 4)}
    state = conv.state_dict()
    assert {name: tuple(state[f"{name}.weight"].shape) for name in layers} == layers
    assert {name.split(".")[0] for name in state} == {*layers, "bn_node", "bn_edge"} and not conv.residual
    assert not halfgnn.nn.GatedGCNConv(8, 4, 8).residual
    g = make_graph()
    h, e = conv(g, randn(NUM_NODES, 8), randn(g.num_edges, 4))
    assert h.shape == (NUM_NODES, 6) and e.shape == (g.num_edges, 6)


def test_gated_dropout():
    with pytest.raises(TypeError, match="dropout is 'half'"):
        gated(dropout="half")
    conv, g = gated(dropout=0.5, residual=False, activation=None), make_graph()
    h, e = conv(g, *features_of(g))
    assert 0.3 < (h == 0).float().mean() < 0.7 and 0.3 < (e == 0).float().mean() < 0.7
    conv.eval()
    assert not (conv(g, *features_of(g))[0] == 0).any()


@pytest.mark.parametrize("arguments,error,match", [
    (lambda x, e: (x, e[1:]), ValueError, r"edge_feat has shape \(259, 12\); expected 260 rows, one per edge"),
    (lambda x, e: (x[:, 1:], e), ValueError, r"feat has shape \(40, 11\); expected \(40, 12\)"),
    (lambda x, e: (x, e.double()), TypeError, r"edge_feat has dtype torch\.float64 and the module's parameters"),
])  # fmt: skip
def test_gated_errors(arguments, error, match):
    g = make_graph()
    with pytest.raises(error, match=match):
        gated()(g, *arguments(*features_of(g)))
    with pytest.raises(TypeError, match="activation is 3; expected a function or None"):
        gated(activation=3)
    with pytest.raises(ValueError, match="graph has 3 source and 2 destination nodes; expected one set of nodes"):
        block = halfgnn.Graph.from_edges(torch.tensor([2]), torch.tensor([1]), num_src=3, num_dst=2)
        gated()(block, randn(3, IN_FEATS), randn(1, IN_FEATS))


# ---- half precision ------------------------------------------------------------------------------

CALLS = {
    "GINEConv": (lambda: gine(halfgnn.nn), lambda conv, g, x: conv(g, *x)),
    "GatedGCNConv": (lambda: gated(batch_norm=False), lambda conv, g, x: joined(conv(g, *x))),
}


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("name", CALLS)
def test_half_precision(name, dtype, autocast):
    make, call = CALLS[name]
    g, kind = make_graph(), torch.float32 if autocast else dtype

    def results():
        conv = make().to(kind)
        with torch.autocast("cpu", dtype, enabled=autocast):
            return with_gradients(conv, lambda *x: call(conv, g, x), features_of(g, kind))

    actual = results()
    with by_formulas():
        formula = results()
    conv = make()
    assert_near(actual, with_gradients(conv, lambda *x: call(conv, g, x), features_of(g)), formula, dtype)
