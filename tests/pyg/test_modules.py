"""halfgnn.pyg compared with torch_geometric.nn: parameters, results, gradients; graphs kept with edge_index; half
precision."""

from __future__ import annotations

import copy
import gc
import pickle

import pytest
import torch
import torch_geometric

import halfgnn
import halfgnn.pyg
from halfgnn.graphs_by_tensor import edge_index as _graph
from halfgnn.graphs_by_tensor import store
from tests.pyg.support_pyg import (
    KINDS,
    MODULES,
    WIDE_DTYPES,
    inputs_of,
    make,
    make_edge_index,
    pair_of,
    theirs,
)
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

# ---- against torch_geometric ---------------------------------------------------------------------


@pytest.mark.parametrize("name", MODULES)
def test_they_are_torch_geometrics_modules(name):
    their, our = pair_of(name)
    assert isinstance(our, type(their)) and repr(our) == repr(their)
    for key, value in their.state_dict().items():
        assert torch.equal(value, our.state_dict()[key]), key


@pytest.mark.parametrize("name", MODULES)
def test_checkpoints_move_both_ways(name):
    their, our = pair_of(name)
    edge_index = make_edge_index()
    x, *edge = inputs_of(name, edge_index)
    for source, target in ((their, our), (our, their)):
        with torch.no_grad():
            for parameter in source.parameters():
                parameter.normal_()
        target.load_state_dict(source.state_dict())
        assert_close([our(x, edge_index, *edge)], [their(x, edge_index, *edge)], 1e-4)


@pytest.mark.parametrize("dtype", WIDE_DTYPES, ids=str)
@pytest.mark.parametrize("name", MODULES)
def test_same_as_torch_geometric(name, dtype):
    their, our = pair_of(name, dtype)
    edge_index = make_edge_index()
    assert (edge_index[0] == edge_index[1]).any(), "self-loops to be replaced"
    inputs = inputs_of(name, edge_index, dtype)
    expected = with_gradients(their, lambda x, *e: their(x, edge_index, *e), inputs)
    actual = with_gradients(our, lambda x, *e: our(x, edge_index, *e), inputs)
    assert_close(actual, expected, tolerance_of(dtype))


@pytest.mark.parametrize("name", MODULES)
def test_attention_weights(name):
    their, our = pair_of(name)
    edge_index = make_edge_index()
    x, *edge = inputs_of(name, edge_index)
    expected, (edges, weights) = their(x, edge_index, *edge, return_attention_weights=True)
    actual, (our_edges, our_weights) = our(x, edge_index, *edge, return_attention_weights=True)
    assert torch.equal(our_edges, edges)
    assert_close([actual, our_weights], [expected, weights])


@pytest.mark.parametrize("sizes", [(30, 7), (7, 30)], ids=str)
@pytest.mark.parametrize("name", [*KINDS, "GATConv-edge-number", "GATConv-mean-residual"])
def test_same_as_torch_geometric_on_pairs(name, sizes):
    their, our = pair_of(name, in_channels=(IN_FEATS, 4))
    edge_index = make_edge_index(*sizes)
    _, *edge = inputs_of(name, edge_index)
    inputs = [randn(sizes[0], IN_FEATS), randn(sizes[1], 4), *edge]
    expected = with_gradients(their, lambda x, y, *e: their((x, y), edge_index, *e), inputs)
    actual = with_gradients(our, lambda x, y, *e: our((x, y), edge_index, *e), inputs)
    assert_close(actual, expected, 1e-4)


@pytest.mark.parametrize("options", [{}, {"residual": True}], ids=str)
def test_sources_alone(options):
    """GATConv on (x, None): the logits of destinations are zero."""
    for in_channels, size in ((IN_FEATS, None), (IN_FEATS, (30, 20)), ((IN_FEATS, 4), None)):
        their, our = (make(lib, "GATConv-plain", in_channels, **options) for lib in (theirs, halfgnn.pyg))
        edge_index = make_edge_index(30, 30 if size is None else 20)
        x = (randn(30, IN_FEATS), None)
        assert_close([our(x, edge_index, size=size)], [their(x, edge_index, size=size)], 1e-4)


def test_edge_features_of_one_column():
    their, our = (lib.GATConv(IN_FEATS, 5, edge_dim=1) for lib in (theirs, halfgnn.pyg))
    our.load_state_dict(their.state_dict())
    edge_index, x = make_edge_index(), randn(NUM_NODES, IN_FEATS)
    weight = randn(edge_index.shape[1])
    assert_close([our(x, edge_index, weight)], [their(x, edge_index, weight)])
    plain_theirs, plain = (make(lib, "GATConv-plain") for lib in (theirs, halfgnn.pyg))
    assert_close([plain(x, edge_index, weight)], [plain_theirs(x, edge_index, weight)])


def test_torch_geometrics_edge_index():
    conv, x, edge_index = make(halfgnn.pyg, "GATConv-plain"), randn(NUM_NODES, IN_FEATS), make_edge_index()
    theirs_index = torch_geometric.EdgeIndex(edge_index, sparse_size=(NUM_NODES, NUM_NODES))
    assert torch.equal(conv(x, theirs_index), conv(x, edge_index))


# ---- half precision ------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("name", [*KINDS, "GATConv-edge", "GATv2Conv-edge", "TransformerConv-edge"])
def test_half_and_autocast(name, dtype, device):
    def results(dtype, device="cpu", region=None):
        module, edge_index = make(halfgnn.pyg, name).to(device, dtype), make_edge_index()
        inputs = [x.to(device, dtype) for x in inputs_of(name, edge_index)]
        with torch.autocast(device, region, enabled=region is not None):
            return with_gradients(module, lambda x, *e: module(x, edge_index.to(device), *e), inputs)

    expected = results(torch.float32)
    for types in ((torch.float32, dtype), (dtype, None)):
        actual = results(types[0], device, types[1])
        assert all(x.dtype == types[0] for x in actual[1:])
        with by_formulas():
            formula = results(types[0], "cpu", types[1])
        assert_near(actual, expected, formula, dtype)


@pytest.mark.parametrize("name", KINDS)
def test_dropout(name):
    conv, plain = (make(halfgnn.pyg, name, dropout=p) for p in (0.5, 0.0))
    edge_index, x = make_edge_index(), randn(NUM_NODES, IN_FEATS)
    first = seeded(lambda: conv(x, edge_index))
    assert torch.equal(seeded(lambda: conv(x, edge_index)), first) and not torch.equal(conv(x, edge_index), first)
    assert torch.equal(conv.eval()(x, edge_index), plain(x, edge_index))


# ---- graphs --------------------------------------------------------------------------------------


@pytest.fixture
def conversions(monkeypatch):
    calls = []
    make_graph = _graph._make
    monkeypatch.setattr(_graph, "_make", lambda *args: calls.append(1) or make_graph(*args))
    return calls


def test_edge_index_is_converted_once(conversions):
    edge_index, x = make_edge_index(), randn(NUM_NODES, IN_FEATS)
    for name in (*KINDS, *KINDS):
        make(halfgnn.pyg, name)(x, edge_index)
    assert len(conversions) == 1
    make(halfgnn.pyg, KINDS[0])(x, edge_index.clone())
    assert len(conversions) == 2


@pytest.mark.parametrize("change", ["write", "data", "resize"])
def test_a_changed_edge_index_is_converted_anew(change, conversions):
    edge_index, x = make_edge_index(), randn(NUM_NODES, IN_FEATS)
    conv = make(halfgnn.pyg, "GATConv-plain")
    before = conv(x, edge_index)
    if change == "write":
        edge_index[0] = edge_index[0].flip(0)
    elif change == "data":
        edge_index.data = make_edge_index().flip(1)[[1, 0]].contiguous()
    else:
        edge_index.set_(edge_index[:, :50].contiguous())
    after = conv(x, edge_index)
    assert len(conversions) == 2
    assert not torch.equal(after, before) and torch.equal(after, conv(x, edge_index.clone()))


def test_graphs_go_with_their_edge_index():
    gc.collect()
    known = len(store.known)
    edge_index = make_edge_index()
    graph = halfgnn.pyg.graph_of(edge_index, NUM_NODES, NUM_NODES)
    assert halfgnn.pyg.graph_of(edge_index, NUM_NODES, NUM_NODES) is graph
    assert halfgnn.pyg.graph_of(edge_index, NUM_NODES + 1, NUM_NODES) is not graph
    assert len(store.known) == known + 1
    del edge_index
    gc.collect()
    assert len(store.known) == known


def test_tensors_of_inference_mode(conversions):
    conv, x = make(halfgnn.pyg, "GATConv-plain"), randn(NUM_NODES, IN_FEATS)
    with torch.inference_mode():
        edge_index = make_edge_index()
        first = conv(x, edge_index)
        assert torch.equal(conv(x, edge_index), first) and len(conversions) == 1  # layers of a request share a graph
        edge_index[0] = edge_index[0].flip(0)
        assert not torch.equal(conv(x, edge_index), first) and len(conversions) == 2
        edge_index.resize_(2, 3)
        assert torch.equal(conv(x, edge_index), conv(x, edge_index.clone())) and len(conversions) == 4
        known = len(_graph._known_in_inference)
        del edge_index
        assert len(_graph._known_in_inference) == known - 1  # with its copy
    # A graph that is made there is used after it.
    ordinary = make_edge_index()
    with torch.inference_mode():
        conv(x, ordinary)
    conv(x, ordinary).sum().backward()
    assert len(conversions) == 5


@pytest.mark.parametrize("name", MODULES)
def test_a_graph_in_place_of_edge_index(name):
    edge_index = make_edge_index()
    g = halfgnn.Graph.from_edge_index(edge_index, num_nodes=NUM_NODES)
    module = make(halfgnn.pyg, name)
    x, *edge = inputs_of(name, edge_index)
    assert torch.equal(module(x, g, *edge), module(x, edge_index, *edge))
    with pytest.raises(ValueError, match="40 source and 40 destination"):
        module(x[1:], g, *edge)


@pytest.mark.parametrize("name", ["GATConv-edge", "TransformerConv"])
def test_compiled(name):
    torch._dynamo.reset()
    edge_index = make_edge_index()
    g = halfgnn.Graph.from_edge_index(edge_index, num_nodes=NUM_NODES)
    module = make(halfgnn.pyg, name)
    inputs = inputs_of(name, edge_index)
    expected = with_gradients(module, lambda x, *e: module(x, g, *e), inputs)  # makes the self-loops
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    assert_close(with_gradients(module, lambda x, *e: compiled(x, g, *e), inputs), expected, 5e-6)


# ---- as modules ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODULES)
def test_copies(name):
    edge_index = make_edge_index()
    module = make(halfgnn.pyg, name)
    x, *edge = inputs_of(name, edge_index)
    out = module(x, edge_index, *edge)
    for copied in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert torch.equal(copied(x, edge_index, *edge), out)
