"""In-place activations after attention modules, whose fused operators keep their result for the backward."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import halfgnn
import halfgnn.nn
import halfgnn.pyg
from halfgnn import ops
from tests.support_nn import HALVES, IN_FEATS, NUM_NODES, randn, random_edges, seeded

HIDDEN = 8
WIDTHS = [8, 5]  # per head: unpadded, and padded to 8


def relu(inplace):
    return torch.nn.ReLU(inplace=inplace)


# name: a function of (width, activation) that makes a module which applies it, or of (width,) for those without the argument
WITH_ACTIVATION = {
    "GATConv": lambda d, act: halfgnn.nn.GATConv(IN_FEATS, d, 2, bias=False, activation=act),
    "GATConv-bias": lambda d, act: halfgnn.nn.GATConv(IN_FEATS, d, 2, activation=act),
    "GATv2Conv": lambda d, act: halfgnn.nn.GATv2Conv(IN_FEATS, d, 2, activation=act),
    "GATv2Conv-residual": lambda d, act: halfgnn.nn.GATv2Conv(IN_FEATS, d, 2, residual=True, activation=act),
}
PLAIN = {
    "GATConv": lambda d: halfgnn.nn.GATConv(IN_FEATS, d, 2, bias=False),
    "GATConv-bias": lambda d: halfgnn.nn.GATConv(IN_FEATS, d, 2),
    "GATConv-residual": lambda d: halfgnn.nn.GATConv(IN_FEATS, d, 2, bias=False, residual=True),
    "GATv2Conv": lambda d: halfgnn.nn.GATv2Conv(IN_FEATS, d, 2),
    "DotGatConv": lambda d: halfgnn.nn.DotGatConv(IN_FEATS, d, 2),
    "TransformerConv": lambda d: halfgnn.nn.TransformerConv(IN_FEATS, d, 2, root_weight=False),
    "TransformerConv-mean": lambda d: halfgnn.nn.TransformerConv(IN_FEATS, d, 1, concat=False, root_weight=False),
    "TransformerConv-root": lambda d: halfgnn.nn.TransformerConv(IN_FEATS, d, 2),
    "pyg.GATConv": lambda d: halfgnn.pyg.GATConv(IN_FEATS, d, 2, bias=False),
    "pyg.GATConv-mean": lambda d: halfgnn.pyg.GATConv(IN_FEATS, d, 1, concat=False, bias=False),
    "pyg.GATv2Conv": lambda d: halfgnn.pyg.GATv2Conv(IN_FEATS, d, 2, bias=False),
    "pyg.TransformerConv": lambda d: halfgnn.pyg.TransformerConv(IN_FEATS, d, 2, root_weight=False),
}
KEEPING = [name for name in PLAIN if "-" not in name]  # nothing comes after the attention

ACTIVATIONS = {"relu": torch.relu_, "elu": torch.nn.functional.elu_, "mul": lambda x: x.mul_(3)}


def make_graph():
    return halfgnn.Graph.from_edges(*random_edges(), num_src=NUM_NODES, num_dst=NUM_NODES)


def call(name, module, g, x):
    return module(x, g) if name.startswith("pyg.") else module(g, x)


def results(function, module, x):
    """function(x) and the gradients of x and of the parameters, for a random upstream gradient."""
    x = x.detach().requires_grad_()
    out = function(x)
    upstream = randn(*out.shape, seed=5).to(out.dtype)
    grads = torch.autograd.grad(out, [x, *module.parameters()], upstream, allow_unused=True)
    return [out.detach(), *grads]


def assert_same_bits(actual, expected):
    assert len(actual) == len(expected)
    for a, b in zip(actual, expected):
        assert (a is None and b is None) or (a.dtype == b.dtype and torch.equal(a, b))


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dtype", [torch.float32, *HALVES], ids=str)
@pytest.mark.parametrize("name", WITH_ACTIVATION)
def test_activation_of_a_module(name, dtype, width):
    g, x = make_graph(), randn(NUM_NODES, IN_FEATS, dtype=dtype)
    inplace, expected = (seeded(lambda i=i: WITH_ACTIVATION[name](width, relu(i))).to(dtype) for i in (True, False))
    assert_same_bits(results(lambda x: inplace(g, x), inplace, x), results(lambda x: expected(g, x), expected, x))


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("name", PLAIN)
def test_activation_after_a_module(name, activation, width):
    g, x = make_graph(), randn(NUM_NODES, IN_FEATS)
    module = seeded(lambda: PLAIN[name](width))
    act = ACTIVATIONS[activation]
    inplace = results(lambda x: act(call(name, module, g, x)), module, x)
    assert_same_bits(inplace, results(lambda x: act(call(name, module, g, x).clone()), module, x))
    assert call(name, module, g, x).is_contiguous()


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("name", PLAIN)
def test_under_autocast(name, dtype):
    g, x, module = make_graph(), randn(NUM_NODES, IN_FEATS), seeded(lambda: PLAIN[name](HIDDEN))
    with torch.autocast("cpu", dtype):
        inplace, expected = (
            results(lambda x, i=i: relu(i)(call(name, module, g, x)), module, x) for i in (True, False)
        )
    assert_same_bits(inplace, expected)


@pytest.mark.parametrize("name", KEEPING)
def test_one_destination(name):
    """Padded rows of a single node and head are contiguous after trimming, and would be a view of the kept tensor."""
    count = 3
    g = halfgnn.Graph.from_edges(torch.arange(count), torch.zeros(count, dtype=torch.int64), num_src=count, num_dst=1)
    module = seeded(lambda: PLAIN[name](5))
    x = randn(count, IN_FEATS)
    if name == "DotGatConv":
        module = halfgnn.nn.DotGatConv((IN_FEATS, IN_FEATS), 5, 1)
    if name == "pyg.GATConv":
        module = halfgnn.pyg.GATConv((IN_FEATS, IN_FEATS), 5, 1, bias=False, add_self_loops=False)
    if name == "pyg.GATv2Conv":
        module = halfgnn.pyg.GATv2Conv((IN_FEATS, IN_FEATS), 5, 1, bias=False, add_self_loops=False)
    outs = [results(lambda x, i=i: relu(i)(call(name, module, g, (x, x[:1]))), module, x) for i in (True, False)]
    assert_same_bits(*outs)


@pytest.mark.parametrize("name", PLAIN)
def test_copies_are_made_where_nothing_else_makes_them(name):
    """The result of a module shares no memory with the tensor that it keeps. Without a gradient nothing is copied."""
    g, x, module = make_graph(), randn(NUM_NODES, IN_FEATS), seeded(lambda: PLAIN[name](HIDDEN))
    kept = []

    def pack(tensor):
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = call(name, module, g, x.requires_grad_())
    storages = {tensor.untyped_storage().data_ptr() for tensor in kept}
    assert out.untyped_storage().data_ptr() not in storages

    attended = []
    fused = {kind: getattr(ops, kind) for kind in ("gat_attention", "gatv2_attention", "dot_attention")}
    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        for kind, function in fused.items():
            patch.setattr(ops, kind, lambda *a, f=function, **k: attended.append(f(*a, **k)) or attended[-1])
        out = call(name, module, g, x)
    shared = out.untyped_storage().data_ptr() == attended[0].untyped_storage().data_ptr()
    assert shared == (name in KEEPING)


@pytest.mark.parametrize("name", KEEPING)
def test_compiled(name):
    torch._dynamo.reset()
    g, x, module = make_graph(), randn(NUM_NODES, IN_FEATS), seeded(lambda: PLAIN[name](HIDDEN))
    if name == "pyg.GATConv":
        module.add_self_loops = False
    if name == "pyg.GATv2Conv":
        module.add_self_loops = False
    expected = results(lambda x: torch.relu(call(name, module, g, x)), module, x)
    inside = torch.compile(lambda x: relu(True)(call(name, module, g, x)), fullgraph=True, backend="aot_eager")
    compiled = torch.compile(lambda x: call(name, module, g, x), fullgraph=True, backend="aot_eager")
    for function in (inside, lambda x: relu(True)(compiled(x))):
        for a, b in zip(results(function, module, x), expected):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("drop", [0.0, 0.5])
@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("name", ["GATConv", "GATv2Conv"])
def test_checkpoint(name, inside, drop):
    """The activation is recomputed with the module, or runs on the result of the checkpoint."""
    g, x = make_graph(), randn(NUM_NODES, IN_FEATS)
    options = {"bias": False, "attn_drop": drop}
    module = seeded(lambda: getattr(halfgnn.nn, name)(IN_FEATS, HIDDEN, 2, **options))

    def run(inplace, x):
        if inside:
            return checkpoint(lambda x: relu(inplace)(module(g, x)), x, use_reentrant=False)
        return relu(inplace)(checkpoint(lambda x: module(g, x), x, use_reentrant=False))

    expected = seeded(lambda: results(lambda x: torch.relu(module(g, x)), module, x))
    for inplace in (True, False):
        assert_same_bits(seeded(lambda i=inplace: results(lambda x: run(i, x), module, x)), expected)


@pytest.mark.parametrize("name", KEEPING)
def test_functorch(name):
    g, x, module = make_graph(), randn(NUM_NODES, IN_FEATS), seeded(lambda: PLAIN[name](HIDDEN))
    parameters = {key: p.detach() for key, p in module.named_parameters()}

    def loss(parameters, x, inplace):
        arguments = (x, g) if name.startswith("pyg.") else (g, x)
        out = torch.func.functional_call(module, parameters, arguments)
        return relu(inplace)(out).square().sum()

    actual, expected = (torch.func.grad(loss, (0, 1))(parameters, x, inplace) for inplace in (True, False))
    assert_same_bits([*actual[0].values(), actual[1]], [*expected[0].values(), expected[1]])
    xs = torch.stack([x, 2 * x])
    actual, expected = (
        torch.func.vmap(torch.func.grad(loss), (None, 0, None))(parameters, xs, i) for i in (True, False)
    )
    assert_same_bits(list(actual.values()), list(expected.values()))


# ---- several relations -----------------------------------------------------------------------------


def heterograph():
    edges = {
        ("a", "x", "b"): random_edges(20, 9),
        ("b", "y", "a"): random_edges(9, 20),
        ("a", "z", "a"): random_edges(20, 20),
    }
    counts = {"a": 20, "b": 9}
    return halfgnn.HeteroGraph(
        {
            etype: halfgnn.Graph.from_edges(*ends, num_src=counts[etype[0]], num_dst=counts[etype[2]])
            for etype, ends in edges.items()
        }
    )


@pytest.mark.parametrize("aggregate", ["sum", "mean", "max", "stack", "custom"])
@pytest.mark.parametrize("activation", [None, "relu"])
def test_relations_together(aggregate, activation):
    """Type b has one relation, whose result would be returned without a copy."""
    g = heterograph()
    feats = {"a": randn(20, IN_FEATS), "b": randn(9, IN_FEATS)}

    def run(inplace):
        act = relu(inplace) if activation else None
        mods = {
            etype: seeded(lambda: halfgnn.nn.GATConv(IN_FEATS, HIDDEN, 2, bias=False, activation=act))
            for etype in g.canonical_etypes
        }
        reduce = aggregate if aggregate != "custom" else lambda parts, ntype: parts[0]
        module = halfgnn.nn.HeteroGraphConv(mods, reduce)
        out = module(g, feats)
        assert all(x.grad_fn is not None for x in out.values())
        after = torch.nn.Identity() if activation else relu(inplace)
        loss = sum(after(x).square().sum() for x in out.values())
        return torch.autograd.grad(loss, list(module.parameters()), allow_unused=True)

    assert_same_bits(run(True), run(False))


# ---- DGL's modules, fused --------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["GATConv", "GATv2Conv", "GATv2Conv-own", "DotGatConv"])
@pytest.mark.parametrize("width", WIDTHS)
def test_dgl_fused(name, width):
    dgl = pytest.importorskip("dgl", reason="dgl is not installed", exc_type=ImportError)
    import halfgnn.dgl

    makers = {
        "GATConv": lambda i: dgl.nn.GATConv(IN_FEATS, width, 2, bias=False),
        "GATv2Conv": lambda i: dgl.nn.GATv2Conv(IN_FEATS, width, 2),
        "GATv2Conv-own": lambda i: dgl.nn.GATv2Conv(IN_FEATS, width, 2, activation=relu(i)),
        "DotGatConv": lambda i: dgl.nn.DotGatConv(IN_FEATS, width, 2),
    }
    g, x = dgl.graph(random_edges(), num_nodes=NUM_NODES), randn(NUM_NODES, IN_FEATS)
    got = []
    halfgnn.dgl.reset_stats()
    with halfgnn.dgl.accelerate(fuse=True):
        for i in (True, False):
            module = seeded(lambda i=i: makers[name](i))
            after = torch.nn.Identity() if "own" in name else relu(i)
            got.append(results(lambda x, after=after, module=module: after(module(g, x)), module, x))
    assert halfgnn.dgl.stats() == {"routed": {f"fused:{name.split('-')[0]}": 2}, "fell_back": {}}
    assert_same_bits(*got)


# ---- the operators ---------------------------------------------------------------------------------


@pytest.mark.parametrize("call", [
    lambda g, x: ops.dot_attention(g, x, x, x),
    lambda g, x: ops.gatv2_attention(g, x, x, x[0]),
    lambda g, x: ops.gat_attention(g, x, x[..., 0], x[..., 0]),
], ids=["dot", "gatv2", "gat"])  # fmt: skip
def test_operators_keep_pytorchs_rule(call):
    """Their result is kept. Writing into it raises an error in the backward, as after torch.sigmoid. Without a gradient
    nothing is kept."""
    g = make_graph()
    out = call(g, randn(NUM_NODES, 2, 8).requires_grad_()).relu_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()
    assert (call(g, randn(NUM_NODES, 2, 8)).relu_() >= 0).all()


def test_deep_copies_share_nothing():
    """A copy of a module that has its own in-place activation."""
    g, x = make_graph(), randn(NUM_NODES, IN_FEATS)
    module = halfgnn.nn.GATv2Conv(IN_FEATS, HIDDEN, 2, activation=relu(True))
    copied = copy.deepcopy(module)
    assert_same_bits(results(lambda x: copied(g, x), copied, x), results(lambda x: module(g, x), module, x))
