"""Modules with features of edges: EdgeGATConv and EGATConv against dgl.nn, and what the fused ones keep."""

import pytest
import torch

import halfgnn
import halfgnn.nn
from tests.nn.support_modules import WIDE_DTYPES, make_dgl_graph, make_graph, needs_dgl
from tests.support_dispatch import kept
from tests.support_nn import IN_FEATS, NUM_NODES, assert_close, randn, seeded, tolerance_of

try:
    import dgl.nn as dglnn
except ImportError:
    dglnn = None

EDGE_FEATS = 6
MODULES = {
    "EdgeGATConv": lambda lib, f: lib.EdgeGATConv(f, EDGE_FEATS, 5, 3),
    "EdgeGATConv-plain": lambda lib, f: lib.EdgeGATConv(f, EDGE_FEATS, 9, 2, residual=False, bias=False, activation=torch.tanh),
    "EGATConv": lambda lib, f: lib.EGATConv(f, EDGE_FEATS, 5, 4, 3),
}  # fmt: skip
every_module = pytest.mark.parametrize("name", MODULES)


def pair_of(name, dtype=torch.float32, in_feats=IN_FEATS):
    return [seeded(lambda lib=lib: MODULES[name](lib, in_feats)).to(dtype) for lib in (dglnn, halfgnn.nn)]


def outputs(module, graph, x, edges, **options):
    """Results and gradients of features and parameters."""
    x = [y.detach().requires_grad_() for y in (x if isinstance(x, tuple) else (x,))]
    edges = edges.detach().requires_grad_()
    found = module(graph, tuple(x) if len(x) > 1 else x[0], edges, **options)
    found = found if isinstance(found, tuple) else (found,)
    loss = sum((out * randn(*out.shape, dtype=out.dtype, seed=7)).sum() for out in found)
    grads = torch.autograd.grad(loss, [*x, edges, *module.parameters()])
    return [*(out.detach() for out in found), *grads]


def edge_features(g, dtype):
    return randn(g.num_edges if isinstance(g, halfgnn.Graph) else g.num_edges(), EDGE_FEATS, dtype=dtype, seed=9)


@needs_dgl
@every_module
@pytest.mark.parametrize("in_feats", [IN_FEATS, (IN_FEATS, 7)], ids=["one", "pair"])
def test_same_parameters_under_a_seed(name, in_feats):
    theirs, ours = pair_of(name, in_feats=in_feats)
    assert list(theirs.state_dict()) == list(ours.state_dict())
    for key, value in theirs.state_dict().items():
        assert torch.equal(value, ours.state_dict()[key]), key


@needs_dgl
@every_module
@pytest.mark.parametrize("get_attention", [False, True])
@pytest.mark.parametrize("dtype", WIDE_DTYPES, ids=str)
@pytest.mark.parametrize("in_feats", [IN_FEATS, (IN_FEATS, 7)], ids=["one", "pair"])
def test_same_results_and_gradients(name, in_feats, dtype, get_attention):
    theirs, ours = pair_of(name, dtype, in_feats)
    g = make_dgl_graph()
    widths = in_feats if isinstance(in_feats, tuple) else (in_feats,)
    x = tuple(randn(NUM_NODES, width, dtype=dtype, seed=width) for width in widths)
    x = x if len(x) > 1 else x[0]
    arguments = (g, x, edge_features(g, dtype))
    expected = outputs(theirs, *arguments, get_attention=get_attention)
    assert_close(outputs(ours, *arguments, get_attention=get_attention), expected, tolerance_of(dtype))


@needs_dgl
def test_egatconv_weighs_edges():
    theirs, ours = pair_of("EGATConv", torch.float32)
    g, x = make_dgl_graph(), randn(NUM_NODES, IN_FEATS)
    weight = torch.rand(g.num_edges())
    expected = outputs(theirs, g, x, edge_features(g, torch.float32), edge_weight=weight)
    assert_close(outputs(ours, g, x, edge_features(g, torch.float32), edge_weight=weight), expected, 1e-4)


@every_module
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision(name, dtype):
    """Modules in half precision, and under autocast, are near those in fp32."""
    g, x = make_graph(), randn(NUM_NODES, IN_FEATS)
    edges = edge_features(g, torch.float32)
    module = seeded(lambda: MODULES[name](halfgnn.nn, IN_FEATS))
    exact = outputs(module, g, x, edges)
    with torch.autocast("cpu", dtype):
        mixed = outputs(module, g, x, edges)
    half = outputs(seeded(lambda: MODULES[name](halfgnn.nn, IN_FEATS)).to(dtype), g, x.to(dtype), edges.to(dtype))
    for found in (mixed, half):
        for a, b in zip(found, exact):
            assert (a.float() - b).norm() <= 8 * torch.finfo(dtype).eps * (b.norm() + 1), name


def test_hooked_and_exchanged_submodules_are_called():
    g, x = make_graph(), randn(NUM_NODES, IN_FEATS)
    edges = edge_features(g, torch.float32)
    module = seeded(lambda: MODULES["EdgeGATConv"](halfgnn.nn, IN_FEATS))
    expected = module(g, x, edges)
    calls = []
    handle = module.fc_edge.register_forward_hook(lambda *_: calls.append("fc_edge"))
    torch.testing.assert_close(module(g, x, edges), expected, rtol=1e-4, atol=1e-4)
    handle.remove()
    module.leaky_relu.register_forward_hook(lambda *_: calls.append("leaky_relu"))
    torch.testing.assert_close(module(g, x, edges), expected, rtol=1e-4, atol=1e-4)
    assert set(calls) == {"fc_edge", "leaky_relu"}
    conv = seeded(lambda: halfgnn.nn.TransformerConv(IN_FEATS, 5, heads=3, edge_dim=EDGE_FEATS))
    expected = conv(g, x, edges)
    conv.lin_edge.register_forward_hook(lambda *_: calls.append("lin_edge"))
    torch.testing.assert_close(conv(g, x, edges), expected, rtol=1e-4, atol=1e-4)
    assert "lin_edge" in calls


@pytest.mark.parametrize("name", ["TransformerConv", "EdgeGATConv"])
def test_no_features_of_all_edges_are_kept(name):
    g, x = make_graph(), randn(NUM_NODES, IN_FEATS)
    edges = edge_features(g, torch.float32)
    if name == "TransformerConv":
        module = halfgnn.nn.TransformerConv(IN_FEATS, 32, heads=4, edge_dim=EDGE_FEATS)
    else:
        module = halfgnn.nn.EdgeGATConv(IN_FEATS, EDGE_FEATS, 32, 4)
    shapes = [shape for _, shape in kept(lambda: module(g, x, edges))]
    assert not any(len(shape) == 3 and shape[0] == g.num_edges for shape in shapes), shapes


@every_module
def test_errors(name):
    g, x = make_graph(), randn(NUM_NODES, IN_FEATS)
    edges = edge_features(g, torch.float32)
    module = MODULES[name](halfgnn.nn, IN_FEATS)
    nodes, of_edges = ("nfeats", "efeats") if name == "EGATConv" else ("feat", "edge_feat")
    with pytest.raises(ValueError, match=f"{nodes} has shape"):
        module(g, x[1:], edges)
    with pytest.raises(ValueError, match=f"{of_edges} has shape"):
        module(g, x, edges[1:])
    with pytest.raises(ValueError, match=f"{of_edges} has shape"):
        module(g, x, edges[:, 1:])
    with pytest.raises(TypeError, match=f"{of_edges} has dtype"):
        module(g, x, edges.half())
    tall = halfgnn.Graph.from_edges(torch.tensor([0, 0]), torch.tensor([0, 1]), num_src=1, num_dst=2)
    with pytest.raises(ValueError, match=f"^{nodes} is one tensor, but the graph"):
        module(tall, x[:1], edges[:2])
    if name == "EGATConv":
        with pytest.raises(TypeError, match=r"edge_weight has dtype torch\.float64"):
            module(g, x, edges, torch.ones(g.num_edges, dtype=torch.float64))


def test_errors_name_only_options_that_there_are():
    g = halfgnn.Graph.from_edges(torch.tensor([0]), torch.tensor([0]), num_src=2, num_dst=2)
    for name, has_option in (("EGATConv", False), ("EdgeGATConv", True)):
        with pytest.raises(ValueError, match="0-in-degree nodes") as raised:
            MODULES[name](halfgnn.nn, IN_FEATS)(g, randn(2, IN_FEATS), randn(1, EDGE_FEATS))
        assert ("allow_zero_in_degree" in str(raised.value)) == has_option
