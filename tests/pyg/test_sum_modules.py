"""SAGEConv, GraphConv, GINConv, GCNConv and LGConv of halfgnn.pyg beside torch_geometric's."""

import pytest
import torch

import halfgnn
import halfgnn.pyg
from halfgnn.graphs_by_tensor.loops import with_self_loops
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

# name -> (module of a library, whether edge weights are given)
MODULES = {
    "SAGE": (lambda lib: lib.SAGEConv(IN_FEATS, 5), False),
    "SAGE-wider": (lambda lib: lib.SAGEConv(IN_FEATS, 20, aggr="add", normalize=True), False),
    "SAGE-max": (lambda lib: lib.SAGEConv(IN_FEATS, 5, aggr="max", root_weight=False), False),
    "SAGE-project": (lambda lib: lib.SAGEConv(IN_FEATS, 5, aggr="min", project=True, bias=False), False),
    "GraphConv": (lambda lib: lib.GraphConv(IN_FEATS, 5), False),
    "GraphConv-weight": (lambda lib: lib.GraphConv(IN_FEATS, 5, aggr="mean"), True),
    "GraphConv-max": (lambda lib: lib.GraphConv(IN_FEATS, 20, aggr="max"), True),
    "GIN": (lambda lib: lib.GINConv(network(), eps=0.5, train_eps=True), False),
    "GCN": (lambda lib: lib.GCNConv(IN_FEATS, 5), False),
    "GCN-weight": (lambda lib: lib.GCNConv(IN_FEATS, 20, improved=True, bias=False), True),
    "GCN-no-loops": (lambda lib: lib.GCNConv(IN_FEATS, 5, add_self_loops=False), True),
    "GCN-plain": (lambda lib: lib.GCNConv(IN_FEATS, 5, normalize=False), True),
    "LG": (lambda lib: lib.LGConv(), False),
    "LG-weight": (lambda lib: lib.LGConv(), True),
    "LG-plain": (lambda lib: lib.LGConv(normalize=False), True),
}


def made(lib, name, dtype=torch.float32):
    return seeded(lambda: MODULES[name][0](lib)).to(dtype)


def inputs_of(name, edge_index, dtype=torch.float32):
    weight = [randn(edge_index.shape[1], dtype=dtype, seed=9).abs()] if MODULES[name][1] else []
    return [randn(NUM_NODES, IN_FEATS, dtype=dtype), *weight]


def results(module, edge_index, inputs):
    return with_gradients(module, lambda x, *w: module(x, edge_index, *w), inputs)


@pytest.mark.parametrize("dtype", WIDE_DTYPES, ids=str)
@pytest.mark.parametrize("name", MODULES)
def test_same_as_torch_geometric(name, dtype):
    their, our = (made(lib, name, dtype) for lib in (theirs, halfgnn.pyg))
    assert isinstance(our, type(their)) and repr(our) == repr(their)
    our.load_state_dict(their.state_dict())
    edge_index = make_edge_index().unique(dim=1)  # PyG divides the gradient of a maximum among equal messages
    assert (edge_index[0] == edge_index[1]).any(), "self-loops that keep their weight"
    inputs = inputs_of(name, edge_index, dtype)
    expected = results(their, edge_index, inputs)
    graph = halfgnn.Graph.from_edge_index(edge_index, num_nodes=NUM_NODES)
    for topology in (edge_index, edge_index, graph):
        assert_close(results(our, topology, inputs), expected, tolerance_of(dtype))


@pytest.mark.parametrize("sizes", [(30, 7), (7, 30)], ids=str)
@pytest.mark.parametrize("kind", ["SAGEConv", "GraphConv"])
def test_pairs(kind, sizes):
    their, our = (seeded(lambda lib=lib: getattr(lib, kind)((IN_FEATS, 4), 9)) for lib in (theirs, halfgnn.pyg))
    edge_index, pair = make_edge_index(*sizes), [randn(sizes[0], IN_FEATS), randn(sizes[1], 4, seed=8)]
    expected = with_gradients(their, lambda *x: their(x, edge_index), pair)
    assert_close(with_gradients(our, lambda *x: our(x, edge_index), pair), expected, 1e-4)
    assert_close([our((pair[0], None), edge_index, size=sizes)], [their((pair[0], None), edge_index, size=sizes)])


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("name", ["SAGE", "SAGE-wider", "GraphConv-weight", "GIN", "GCN", "GCN-weight", "LG"])
def test_half_precision_and_autocast(name, dtype):
    edge_index = make_edge_index()

    def run(module_dtype, region=None):
        inputs = inputs_of(name, edge_index, module_dtype)
        with torch.autocast("cpu", region, enabled=region is not None):
            return results(made(halfgnn.pyg, name, module_dtype), edge_index, inputs)

    expected = run(torch.float32)
    for types in ((dtype, None), (torch.float32, dtype)):
        actual = run(*types)
        with by_formulas():
            formula = run(*types)
        assert_near(actual, expected, formula, dtype)


def test_the_normalisation_is_kept_with_the_graph(monkeypatch):
    made_weights = []
    divided = halfgnn.graphs_by_tensor.gcn_norm._divided
    monkeypatch.setattr(
        halfgnn.graphs_by_tensor.gcn_norm, "_divided", lambda *args: made_weights.append(1) or divided(*args)
    )
    edge_index, x = make_edge_index(), randn(NUM_NODES, IN_FEATS)
    for name in ("GCN", "GCN", "LG", "LG"):
        for _ in range(2):
            made(halfgnn.pyg, name)(x, edge_index)
    assert len(made_weights) == 2


@pytest.mark.parametrize("call,error,match", [
    (lambda x, i: halfgnn.pyg.SAGEConv(11, 4)(x, i), ValueError, r"x has shape \(40, 12\); expected \(40, 11\)"),
    (lambda x, i: halfgnn.pyg.SAGEConv(12, 4)(x.double(), i), TypeError, "the module's parameters have torch.float32"),
    (lambda x, i: halfgnn.pyg.GraphConv(12, 4)(x, i, x), ValueError, r"edge_weight has shape \(40, 12\); expected 220 rows"),
    (lambda x, i: halfgnn.pyg.GCNConv(12, 4)(x, i, torch.ones(220, 2)), ValueError, r"edge_weight has .* expected \(220,\)"),
    (lambda x, i: halfgnn.pyg.GCNConv(12, 4)((x, x), i), ValueError, "received a tuple"),
    (lambda x, i: halfgnn.pyg.GINConv(network())(None, i), TypeError, r"x is None; expected a torch\.Tensor"),
    (lambda x, i: halfgnn.pyg.LGConv()(x, i + 1), ValueError, r"edge_index\[0\] holds 40; expected indices in \[0, 40\)"),
])  # fmt: skip
def test_errors(call, error, match):
    with pytest.raises(error, match=match):
        call(randn(NUM_NODES, IN_FEATS), make_edge_index())


def test_self_loops_that_remain_keep_their_data():
    edge_index = torch.tensor([[0, 1, 1, 2], [1, 1, 0, 0]])
    looped = with_self_loops(halfgnn.pyg.graph_of(edge_index, 3, 3), 3)
    kept = looped.remaining(torch.tensor([[1.0], [2.0], [3.0], [4.0]]), 9.0)
    assert kept.flatten().tolist() == [1, 3, 4, 9, 2, 9]


def bias_of_its_own(conv):
    conv.lin = theirs.Linear(IN_FEATS, conv.out_channels, bias=True)


@pytest.mark.parametrize("width", [4, IN_FEATS + 4])
@pytest.mark.parametrize(
    "aggr, change",
    [
        ("max", lambda conv: None),
        ("sum", bias_of_its_own),
        ("sum", lambda conv: conv.lin.register_forward_hook(lambda layer, inputs, out: out.relu())),
    ],
    ids=["max", "bias", "hook"],
)
def test_a_gcn_projects_messages_if_sums_would_differ(aggr, change, width):
    def run(lib):
        conv = seeded(lambda: lib.GCNConv(IN_FEATS, width, aggr=aggr))
        seeded(lambda: change(conv))
        return conv(randn(NUM_NODES, IN_FEATS), make_edge_index())

    assert_close([run(halfgnn.pyg)], [run(theirs)], 1e-4)
