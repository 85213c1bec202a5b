"""GINEConv and ResGatedGraphConv of halfgnn.pyg compared with torch_geometric.nn."""

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

import halfgnn
import halfgnn.pyg
from tests.pyg.support_pyg import EDGE_DIM, WIDE_DTYPES, make_edge_index, network, theirs
from tests.support_dispatch import kept
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

# name -> (module of a library, width of edge features or None)
MODULES = {
    "GINEConv": (lambda lib: lib.GINEConv(network()), IN_FEATS),
    "GINEConv-projected": (lambda lib: lib.GINEConv(network(), eps=0.5, train_eps=True, edge_dim=EDGE_DIM), EDGE_DIM),
    "ResGated": (lambda lib: lib.ResGatedGraphConv(IN_FEATS, 9), None),
    "ResGated-bare": (lambda lib: lib.ResGatedGraphConv(IN_FEATS, 9, root_weight=False, bias=False), None),
    "ResGated-edge": (lambda lib: lib.ResGatedGraphConv(IN_FEATS, 9, edge_dim=EDGE_DIM), EDGE_DIM),
    "ResGated-tanh": (lambda lib: lib.ResGatedGraphConv(IN_FEATS, 9, act=nn.Tanh()), None),
    "ResGated-tanh-edge": (lambda lib: lib.ResGatedGraphConv(IN_FEATS, 9, act=nn.Tanh(), edge_dim=EDGE_DIM), EDGE_DIM),
}


def pair_of(name, dtype=torch.float32):
    return [seeded(lambda lib=lib: MODULES[name][0](lib)).to(dtype) for lib in (theirs, halfgnn.pyg)]


def inputs_of(name, edge_index, dtype=torch.float32):
    width = MODULES[name][1]
    edge = [] if width is None else [randn(edge_index.shape[1], width, dtype=dtype, seed=9)]
    return [randn(NUM_NODES, IN_FEATS, dtype=dtype), *edge]


@pytest.mark.parametrize("dtype", WIDE_DTYPES, ids=str)
@pytest.mark.parametrize("name", MODULES)
def test_same_as_torch_geometric(name, dtype):
    their, our = pair_of(name, dtype)
    edge_index = make_edge_index()
    inputs = inputs_of(name, edge_index, dtype)
    expected = with_gradients(their, lambda x, *e: their(x, edge_index, *e), inputs)
    graph = halfgnn.Graph.from_edge_index(edge_index, num_nodes=NUM_NODES)
    for topology in (edge_index, graph):
        actual = with_gradients(our, lambda x, *e: our(x, topology, *e), inputs)  # noqa: B023
        assert_close(actual, expected, tolerance_of(dtype))


@pytest.mark.parametrize("sizes", [(30, 7), (7, 30)], ids=str)
def test_pairs(sizes):
    edge_index = make_edge_index(*sizes)
    x, y = randn(sizes[0], IN_FEATS), randn(sizes[1], 4, seed=8)
    their, our = (seeded(lambda lib=lib: lib.ResGatedGraphConv((IN_FEATS, 4), 9)) for lib in (theirs, halfgnn.pyg))
    expected = with_gradients(their, lambda *x: their(x, edge_index), [x, y])
    assert_close(with_gradients(our, lambda *x: our(x, edge_index), [x, y]), expected, 1e-4)
    their, our = pair_of("GINEConv")
    y, e = randn(sizes[1], IN_FEATS, seed=8), randn(edge_index.shape[1], IN_FEATS, seed=9)
    assert_close([our((x, y), edge_index, e)], [their((x, y), edge_index, e)])
    assert_close([our((x, None), edge_index, e, sizes)], [their((x, None), edge_index, e, sizes)])


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("name", MODULES)
def test_half_precision(name, dtype):
    edge_index = make_edge_index()

    def results(kind):
        _, our = pair_of(name, kind)
        return with_gradients(our, lambda x, *e: our(x, edge_index, *e), inputs_of(name, edge_index, kind))

    with by_formulas():
        formula = results(dtype)
    assert_near(results(dtype), results(torch.float32), formula, dtype)


def test_two_projections_of_edge_features_are_kept():
    """Of the size of the edges nothing else is: neither gates nor messages."""
    _, our = pair_of("ResGated-edge")
    edge_index = make_edge_index()
    x, edge_attr = (tensor.requires_grad_() for tensor in inputs_of("ResGated-edge", edge_index))
    shapes = [shape for _, shape in kept(lambda: our(x, edge_index, edge_attr)) if shape[:1] == edge_attr.shape[:1]]
    assert sorted(shape for shape in set(shapes) if len(shape) > 1) == [(220, EDGE_DIM), (220, 9)]
    assert shapes.count((220, 9)) == 2


@pytest.mark.parametrize("call,error,match", [
    (lambda x, i, e: halfgnn.pyg.GINEConv(network())(x, i, e[:, :3]), ValueError, r"edge_attr has shape \(220, 3\); expected"),
    (lambda x, i, e: halfgnn.pyg.GINEConv(network())(x, i), TypeError, r"edge_attr is None; expected a torch\.Tensor"),
    (lambda x, i, e: halfgnn.pyg.ResGatedGraphConv(12, 4)(x, i, e), ValueError, r"edge_attr is given, but edge_dim is None"),
    (lambda x, i, e: halfgnn.pyg.ResGatedGraphConv(12, 4, edge_dim=6)(x, i), ValueError, r"edge_attr is not given"),
    (lambda x, i, e: halfgnn.pyg.ResGatedGraphConv(11, 4)(x, i), ValueError, r"x has shape \(40, 12\); expected \(40, 11\)"),
    (lambda x, i, e: halfgnn.pyg.ResGatedGraphConv(11, 4, edge_dim=12)(x, i, e), ValueError, r"x has shape \(40, 12\)"),
])  # fmt: skip
def test_errors(call, error, match):
    edge_index = make_edge_index()
    with pytest.raises(error, match=match):
        call(randn(NUM_NODES, IN_FEATS), edge_index, randn(edge_index.shape[1], IN_FEATS))


def _hook(layer):
    layer.register_forward_hook(lambda module, inputs, output: 2 * output)


def _pre_hook(layer):
    layer.register_forward_pre_hook(lambda module, inputs: (inputs[0] + 1,))


def _own_forward(layer):
    original = layer.forward
    layer.forward = lambda x: original(x).tanh()


@pytest.mark.parametrize("change", [_hook, _pre_hook, _own_forward, lambda layer: prune.random_unstructured(layer, "weight", 0.5)],
                         ids=["hook", "pre_hook", "forward", "prune"])  # fmt: skip
@pytest.mark.parametrize("name", ["lin_key", "lin_query", "lin_value"])
def test_changed_projections_of_joined_features(name, change):
    """They are called with features of nodes and edges joined, as torch_geometric calls them."""
    modules = pair_of("ResGated-edge")
    for module in modules:
        torch.manual_seed(3)
        change(getattr(module, name))
    edge_index = make_edge_index()
    inputs = inputs_of("ResGated-edge", edge_index)
    expected, actual = (with_gradients(m, lambda x, e: m(x, edge_index, e), inputs) for m in modules)  # noqa: B023
    assert_close(actual, expected, tolerance_of(torch.float32))
    assert [*halfgnn.pyg.stats()["fell_back"]["forward:ResGatedGraphConv"].values()] == [1]


def test_projections_of_several_dtypes_are_named():
    conv = pair_of("ResGated-edge")[1]
    conv.lin_query.half()
    with pytest.raises(TypeError, match=r"x has dtype torch\.float32 and the module's parameters have torch\.float16"):
        x, edge_attr = inputs_of("ResGated-edge", make_edge_index())
        conv(x, make_edge_index(), edge_attr)
