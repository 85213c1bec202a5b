"""halfgnn.pyg compared with torch_geometric.nn: parameters, results, gradients; graphs kept with edge_index; half
precision."""

from __future__ import annotations

import copy
import gc
import pickle
import subprocess
import sys

import pytest
import torch

import halfgnn
import halfgnn.pyg
from halfgnn.pyg import _graph
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
    import torch_geometric
    import torch_geometric.nn as theirs
except ImportError:
    torch_geometric = theirs = None

needs_pyg = pytest.mark.skipif(theirs is None, reason="torch_geometric is not installed")
WIDE_DTYPES = [dtype for dtype in (torch.float32, torch.float64) if support.supports("cpu", dtype)]
EDGE_DIM = 6

# (class, arguments); edge features are given if there is an edge_dim
_OPTIONS = {
    "plain": {},
    "mean-residual": {"concat": False, "residual": True},
    "no-loops": {"add_self_loops": False, "bias": False, "negative_slope": 0.05},
    "edge": {"edge_dim": EDGE_DIM},
    "edge-no-loops": {"edge_dim": EDGE_DIM, "add_self_loops": False},
    "edge-number": {"edge_dim": EDGE_DIM, "fill_value": 2.0},
    "edge-tensor": {"edge_dim": EDGE_DIM, "fill_value": torch.arange(6.0)},
    "edge-max": {"edge_dim": EDGE_DIM, "fill_value": "max"},
    "edge-add": {"edge_dim": EDGE_DIM, "fill_value": "add"},
    "edge-mul": {"edge_dim": EDGE_DIM, "fill_value": "mul"},
}
MODULES = {
    **{f"GATConv-{name}": ("GATConv", options) for name, options in _OPTIONS.items()},
    **{f"GATv2Conv-{name}": ("GATv2Conv", _OPTIONS[name]) for name in ("plain", "mean-residual", "no-loops", "edge")},
    "GATv2Conv-shared": ("GATv2Conv", {"share_weights": True}),
    "TransformerConv": ("TransformerConv", {}),
    "TransformerConv-beta": ("TransformerConv", {"beta": True}),
    "TransformerConv-mean-beta": ("TransformerConv", {"beta": True, "concat": False}),
    "TransformerConv-no-root": ("TransformerConv", {"root_weight": False, "bias": False}),
    "TransformerConv-edge": ("TransformerConv", {"edge_dim": EDGE_DIM}),
}
KINDS = ["GATConv-plain", "GATv2Conv-plain", "TransformerConv"]


def make(lib, name, in_channels=IN_FEATS, **options):
    kind, own = MODULES[name]
    return seeded(lambda: getattr(lib, kind)(in_channels, 5, heads=3, **own, **options))


def pair_of(name, dtype=torch.float32, in_channels=IN_FEATS):
    return [make(lib, name, in_channels).to(dtype) for lib in (theirs, halfgnn.pyg)]


def make_edge_index(num_src=NUM_NODES, num_dst=NUM_NODES, loops=False):
    return torch.stack(random_edges(num_src, num_dst, loops=loops))


def inputs_of(name, edge_index, dtype=torch.float32):
    edge = [randn(edge_index.shape[1], EDGE_DIM, dtype=dtype, seed=9)] if "edge_dim" in MODULES[name][1] else []
    return [randn(NUM_NODES, IN_FEATS, dtype=dtype), *edge]


# ---- against torch_geometric ---------------------------------------------------------------------


@needs_pyg
@pytest.mark.parametrize("in_channels", [IN_FEATS, (IN_FEATS, 4)], ids=["one", "pair"])
@pytest.mark.parametrize("name", MODULES)
def test_same_parameters_under_a_seed(name, in_channels):
    if name == "GATv2Conv-shared" and isinstance(in_channels, tuple):
        pytest.skip("shares weights of one width")
    their, our = pair_of(name, in_channels=in_channels)
    assert list(their.state_dict()) == list(our.state_dict())
    for key, value in their.state_dict().items():
        assert torch.equal(value, our.state_dict()[key]), key
    for module in (their, our):
        seeded(module.reset_parameters, 7)
    assert all(torch.equal(a, b) for a, b in zip(their.parameters(), our.parameters()))
    assert repr(their) == repr(our)


@needs_pyg
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


@needs_pyg
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


@needs_pyg
@pytest.mark.parametrize("name", MODULES)
def test_attention_weights(name):
    their, our = pair_of(name)
    edge_index = make_edge_index()
    x, *edge = inputs_of(name, edge_index)
    expected, (edges, weights) = their(x, edge_index, *edge, return_attention_weights=True)
    actual, (our_edges, our_weights) = our(x, edge_index, *edge, return_attention_weights=True)
    assert torch.equal(our_edges, edges)
    assert_close([actual, our_weights], [expected, weights])


@needs_pyg
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


@needs_pyg
@pytest.mark.parametrize("options", [{}, {"residual": True}], ids=str)
def test_sources_alone(options):
    """GATConv on (x, None): the logits of destinations are zero."""
    for in_channels, size in ((IN_FEATS, None), (IN_FEATS, (30, 20)), ((IN_FEATS, 4), None)):
        their, our = (make(lib, "GATConv-plain", in_channels, **options) for lib in (theirs, halfgnn.pyg))
        edge_index = make_edge_index(30, 30 if size is None else 20)
        x = (randn(30, IN_FEATS), None)
        assert_close([our(x, edge_index, size=size)], [their(x, edge_index, size=size)], 1e-4)


@needs_pyg
def test_edge_features_of_one_column():
    their, our = (lib.GATConv(IN_FEATS, 5, edge_dim=1) for lib in (theirs, halfgnn.pyg))
    our.load_state_dict(their.state_dict())
    edge_index, x = make_edge_index(), randn(NUM_NODES, IN_FEATS)
    weight = randn(edge_index.shape[1])
    assert_close([our(x, edge_index, weight)], [their(x, edge_index, weight)])
    plain_theirs, plain = (make(lib, "GATConv-plain") for lib in (theirs, halfgnn.pyg))
    assert_close([plain(x, edge_index, weight)], [plain_theirs(x, edge_index, weight)])


@needs_pyg
def test_torch_geometrics_edge_index():
    conv, x, edge_index = make(halfgnn.pyg, "GATConv-plain"), randn(NUM_NODES, IN_FEATS), make_edge_index()
    theirs_index = torch_geometric.EdgeIndex(edge_index, sparse_size=(NUM_NODES, NUM_NODES))
    assert torch.equal(conv(x, theirs_index), conv(x, edge_index))


def test_torch_geometric_is_not_imported():
    code = "import sys, halfgnn.pyg; assert not any(m.split('.')[0] in ('torch_geometric', 'dgl') for m in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=600)


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
    known = len(_graph._known)
    edge_index = make_edge_index()
    graph = halfgnn.pyg.graph_of(edge_index, NUM_NODES, NUM_NODES)
    assert halfgnn.pyg.graph_of(edge_index, NUM_NODES, NUM_NODES) is graph
    assert halfgnn.pyg.graph_of(edge_index, NUM_NODES + 1, NUM_NODES) is not graph
    assert len(_graph._known) == known + 1
    del edge_index
    gc.collect()
    assert len(_graph._known) == known


def test_tensors_of_inference_mode(conversions):
    conv, x = make(halfgnn.pyg, "GATConv-plain"), randn(NUM_NODES, IN_FEATS)
    with torch.inference_mode():
        edge_index = make_edge_index()
        first = conv(x, edge_index)
        edge_index[0] = edge_index[0].flip(0)
        assert not torch.equal(conv(x, edge_index), first)
    # A graph that is made there is used after it.
    ordinary = make_edge_index()
    with torch.inference_mode():
        conv(x, ordinary)
    conv(x, ordinary).sum().backward()
    assert len(conversions) == 3


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
    assert_close(with_gradients(module, lambda x, *e: compiled(x, g, *e), inputs), expected, 1e-6)


def test_compiled_with_edge_index(conversions):
    """The conversion breaks the compiled graph, and its result is kept."""
    torch._dynamo.reset()
    edge_index, x = make_edge_index(), randn(NUM_NODES, IN_FEATS)
    module = make(halfgnn.pyg, "GATConv-plain")
    compiled = torch.compile(module, backend="aot_eager")
    for _ in range(3):
        assert_close([compiled(x, edge_index)], [module(x, edge_index)], 1e-6)
    assert len(conversions) == 1


# ---- as modules ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODULES)
def test_copies(name):
    edge_index = make_edge_index()
    module = make(halfgnn.pyg, name)
    x, *edge = inputs_of(name, edge_index)
    out = module(x, edge_index, *edge)
    for copied in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert torch.equal(copied(x, edge_index, *edge), out)


def test_errors():
    x, edge_index = randn(NUM_NODES, IN_FEATS), make_edge_index()
    for kind in ("GATConv", "GATv2Conv", "TransformerConv"):
        cls = getattr(halfgnn.pyg, kind)
        with pytest.raises(TypeError, match="unexpected argument 'head'"):
            cls(IN_FEATS, 5, head=3)
        with pytest.raises(ValueError, match="flow is 'target_to_source'"):
            cls(IN_FEATS, 5, flow="target_to_source")
        for wrong, named in ((0, 0), (-1, -1), ((-1, 3), -1), ([3, 0], 0)):  # torch_geometric infers such widths
            with pytest.raises(ValueError, match=f"in_channels is {named}; expected the width of the input"):
                cls(wrong, 5)
        conv = cls(IN_FEATS, 5, flow="source_to_target")
        with pytest.raises(ValueError, match="expected indices in"):
            conv(x, edge_index + NUM_NODES)
        with pytest.raises(TypeError, match="from_torch_sparse"):
            conv(x, torch.eye(NUM_NODES).to_sparse())
        if kind != "GATConv":
            with pytest.raises(ValueError, match="edge_dim"):
                conv(x, edge_index, randn(edge_index.shape[1], 2))


def test_wrong_options():
    for kind in ("GATConv", "GATv2Conv", "TransformerConv"):
        cls = getattr(halfgnn.pyg, kind)
        for arguments, name in [((4, 0), "out_channels"), ((4, -5), "out_channels"), ((4, 5, 0), "heads")]:
            with pytest.raises(ValueError, match=f"{name} is .*; expected a positive integer"):
                cls(*arguments)
        for arguments, name in [((None, 5), "in_channels"), ((4, 5.0), "out_channels"), ((4, 5, "2"), "heads")]:
            with pytest.raises(TypeError, match=f"{name} is .*; expected .*integer"):
                cls(*arguments)
        with pytest.raises(ValueError, match=r"in_channels is \(4, 4, 4\); expected .* pair"):
            cls((4, 4, 4), 5)
        with pytest.raises(ValueError, match="edge_dim is -1"):
            cls(4, 5, edge_dim=-1)
        with pytest.raises(ValueError, match=r"dropout is 2\.0; expected a probability"):
            cls(4, 5, dropout=2)
        if kind != "TransformerConv":
            with pytest.raises(TypeError, match="negative_slope is None; expected a number"):
                cls(4, 5, negative_slope=None)
            with pytest.raises(ValueError, match=r"fill_value is 'median'; expected .*mean"):
                cls(4, 5, edge_dim=2, fill_value="median")
            with pytest.raises(TypeError, match=r"fill_value is \[1\]; expected a number"):
                cls(4, 5, edge_dim=2, fill_value=[1])
            conv = cls(4, 5, edge_dim=2, fill_value=torch.zeros(3))
            with pytest.raises(ValueError, match=r"fill_value has shape \(3,\); expected one that expands to \(3, 2\)"):
                conv(randn(3, 4), torch.tensor([[0, 1], [1, 2]]), randn(2, 2))


@needs_pyg
@pytest.mark.parametrize("name", KINDS)
def test_a_list_of_widths(name):
    their, our = (make(lib, name, [IN_FEATS, 4]) for lib in (theirs, halfgnn.pyg))
    assert repr(our) == repr(their)
    x, edge_index = [randn(NUM_NODES, IN_FEATS), randn(NUM_NODES, 4)], make_edge_index()
    assert_close([our(x, edge_index)], [their(x, edge_index)], 1e-4)


def refuse(error, match, module, *arguments, **options):
    with pytest.raises(error, match=match):
        module(*arguments, **options)


@pytest.mark.parametrize("name", KINDS)
def test_wrong_features(name):
    module, x, edge_index = make(halfgnn.pyg, name), randn(NUM_NODES, IN_FEATS), make_edge_index()
    refuse(TypeError, "x is None; expected a torch.Tensor", module, None, edge_index)
    refuse(TypeError, "x is a str; expected a torch.Tensor", module, "x", edge_index)
    refuse(ValueError, "x is a list of 40; expected a tensor or the pair", module, x.tolist(), edge_index)
    refuse(ValueError, "x is a tuple of 3; expected a tensor or the pair", module, (x, x, x), edge_index)
    refuse(TypeError, r"x\[0\] is None; expected a torch.Tensor", module, (None, x), edge_index)
    refuse(ValueError, r"x has shape \(\); expected \(nodes, 12\)", module, torch.tensor(1.0), edge_index)
    refuse(ValueError, r"x has shape \(40, 1, 12\); expected \(nodes, 12\)", module, x.unsqueeze(1), edge_index)
    refuse(ValueError, r"x has shape \(40, 11\); expected \(40, 12\)", module, x[:, 1:], edge_index)
    refuse(ValueError, r"x\[1\] has shape \(40, 11\); expected \(40, 12\)", module, (x, x[:, 1:]), edge_index)
    refuse(TypeError, "x has dtype torch.int64; expected a floating-point type", module, x.long(), edge_index)
    refuse(TypeError, "x has layout torch.sparse_coo", module, x.to_sparse(), edge_index)
    refuse(ValueError, "edge_index is on cpu; expected the device of x, meta", module, x.to("meta"), edge_index)
    refuse(ValueError, "edge_index is on meta; expected the device of x, cpu", module, x, edge_index.to("meta"))
    refuse(ValueError, r"x\[1\] is on meta; expected the device of x\[0\], cpu", module, (x, x.to("meta")), edge_index)
    of_pairs = make(halfgnn.pyg, name, (IN_FEATS, 4))
    refuse(ValueError, "x is one tensor, but the module takes 12 features of sources and 4 of", of_pairs, x, edge_index)
    if name != "GATConv-plain":
        refuse(TypeError, r"x\[1\] is None; expected a torch.Tensor", module, (x, None), edge_index)


@pytest.mark.parametrize("name", KINDS)
def test_wrong_edge_index(name):
    module, x, edge_index = make(halfgnn.pyg, name), randn(NUM_NODES, IN_FEATS), make_edge_index()
    count = edge_index.shape[1]
    for wrong, error, match in [
        (None, TypeError, "edge_index is a NoneType; expected a tensor"),
        (edge_index.tolist(), TypeError, "edge_index is a list; expected a tensor"),
        (edge_index.t(), ValueError, rf"edge_index has shape \({count}, 2\); expected \(2, E\)"),
        (edge_index[0], ValueError, rf"edge_index has shape \({count},\); expected \(2, E\)"),
        (edge_index.float(), TypeError, "edge_index has dtype torch.float32; expected torch.int64"),
        (edge_index.short(), TypeError, "edge_index has dtype torch.int16; expected torch.int64"),
        (edge_index == 0, TypeError, "edge_index has dtype torch.bool; expected torch.int64"),
        (edge_index - 1, ValueError, r"edge_index\[0\] holds -1; expected indices in \[0, 40\), of source nodes"),
    ]:
        for _ in range(2):  # nothing is kept from the first time
            refuse(error, match, module, x, wrong)
    beyond = edge_index.clone()
    beyond[1, 7] = NUM_NODES
    refuse(
        ValueError, r"edge_index\[1\] holds 40; expected indices in \[0, 40\), of destination nodes", module, x, beyond
    )
    g = halfgnn.Graph.from_edge_index(edge_index, num_nodes=NUM_NODES + 1)
    refuse(ValueError, "edge_index is a graph of 41 source and 41 destination nodes; expected 40 and 40", module, x, g)
    empty = edge_index[:, :0]
    assert module(x, empty).shape == module(x, edge_index).shape


@pytest.mark.parametrize("name", ["GATConv-edge", "GATConv-edge-no-loops", "GATv2Conv-edge", "TransformerConv-edge"])
def test_wrong_edge_attr(name):
    module, edge_index = make(halfgnn.pyg, name), make_edge_index()
    count = edge_index.shape[1]
    x, edge_attr = inputs_of(name, edge_index)
    for wrong, error, match in [
        (edge_attr.tolist(), TypeError, "edge_attr is list; expected a torch.Tensor"),
        (torch.tensor(1.0), ValueError, rf"edge_attr has shape \(\); expected {count} rows, one an edge"),
        (edge_attr[1:], ValueError, rf"edge_attr has shape .*; expected {count} rows, one an edge"),
        (edge_attr[:, 1:], ValueError, rf"edge_attr has shape \({count}, 5\); expected \({count}, 6\)"),
        (edge_attr[:, 0], ValueError, rf"edge_attr has shape \({count},\); expected \({count}, 6\)"),
        (edge_attr.unsqueeze(1), ValueError, rf"edge_attr has shape .*; expected \({count}, 6\)"),
        (edge_attr.long(), TypeError, "edge_attr has dtype torch.int64; expected a floating-point type"),
        (edge_attr.to("meta"), ValueError, "edge_attr is on meta; expected the graph's device, cpu"),
    ]:
        refuse(error, match, module, x, edge_index, wrong)
    if name == "TransformerConv-edge":
        refuse(ValueError, "edge_attr is None; edge_dim says edge features of 6 columns", module, x, edge_index)


def test_wrong_size():
    module, x, edge_index = make(halfgnn.pyg, "GATConv-plain"), randn(NUM_NODES, IN_FEATS), make_edge_index()
    for wrong in (40, (40,), (40, 40, 40), ("40", "40"), (None, 40)):
        refuse(TypeError, "size is .*; expected two integers", module, x, edge_index, size=wrong)
    for features, wrong in [
        (x, (40, 30)),
        (x, (41, 40)),
        ((x, x), (40, 41)),
        ((x, None), (30, 40)),
        ((x, None), (40, -1)),
    ]:
        refuse(ValueError, r"size is \(.*\); expected the rows of x, \(40, ", module, features, edge_index, size=wrong)
    assert torch.equal(module(x, edge_index, size=(40, 40)), module(x, edge_index))


@pytest.mark.parametrize("rows", [2, 7])
@pytest.mark.parametrize("conv", [halfgnn.pyg.GATConv, halfgnn.pyg.GATv2Conv])
def test_edge_attr_needs_a_row_an_edge_also_beside_self_loops(conv, rows):
    edge_index = torch.tensor([[0, 1, 2], [1, 1, 0]])
    with pytest.raises(ValueError, match=f"edge_attr has shape .{rows}, 2.; expected 3 rows"):
        conv(6, 3, edge_dim=2)(torch.randn(5, 6), edge_index, torch.randn(rows, 2))


@pytest.mark.parametrize(
    ("sizes", "error", "name"),
    [(("3", 3), TypeError, "num_src"), ((3, None), TypeError, "num_dst"), ((3, -1), ValueError, "num_dst")],
)
def test_numbers_of_nodes_of_an_edge_index(sizes, error, name):
    with pytest.raises(error, match=f"^{name} is "):
        halfgnn.pyg.graph_of(torch.zeros(2, 3, dtype=torch.long), *sizes)
