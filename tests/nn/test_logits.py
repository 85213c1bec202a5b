"""Logits and weights of attention stay fp32 in every path: fused, with weights, with edge weights, with edge features."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import halfgnn
import halfgnn.nn
import halfgnn.pyg
from halfgnn import ops, reference
from halfgnn.common import products
from tests.support_attention import DOT, GAT, GAT_EDGE, GATV2, every_kind
from tests.support_nn import HALVES, IN_FEATS, NUM_NODES, randn, random_edges, seeded

EPS = {dtype: torch.finfo(dtype).eps for dtype in HALVES}
EDGE_DIM = 4
every_half = pytest.mark.parametrize("dtype", HALVES, ids=str)


@pytest.fixture(params=[(), tuple(HALVES)], ids=["widened", "multiplied"], autouse=True)
def _processor(request, monkeypatch):
    """Processors with slow and with fast matrix products of halves."""
    monkeypatch.setattr(products, "_FAST_HALVES", request.param)


def make_graph():
    return halfgnn.Graph.from_edges(*random_edges(), num_src=NUM_NODES, num_dst=NUM_NODES)


# ---- one example -----------------------------------------------------------------------------------


def example():
    """A node with two in-edges, whose logits 64 and 64.25 are equal in bf16."""
    g = halfgnn.Graph.from_edges(torch.tensor([0, 1]), torch.tensor([0, 0]), num_src=2, num_dst=2)
    conv = halfgnn.nn.GATConv(2, 2, 1, bias=False, allow_zero_in_degree=True)
    with torch.no_grad():
        conv.fc.weight.copy_(torch.eye(2))
        conv.attn_l.copy_(torch.tensor([64.0, 0.25]))
        conv.attn_r.zero_()
    return g, conv, torch.tensor([[1.0, 0.0], [1.0, 1.0]])


@pytest.mark.parametrize("is_half", [False, True], ids=["autocast", "module"])
def test_two_neighbours(is_half):
    g, conv, x = example()
    if is_half:
        conv, x = conv.bfloat16(), x.bfloat16()
    exact = torch.tensor([0.25, 0.0]).exp()
    exact = (exact / exact.sum()).flip(0)  # 0.4378, 0.5622
    with torch.autocast("cpu", torch.bfloat16, enabled=not is_half):
        fused = conv(g, x)
        out, weights = conv(g, x, get_attention=True)
        weighted = conv(g, x, edge_weight=torch.ones(2))
    assert weights.dtype == out.dtype == torch.bfloat16
    for share in (fused[0, 0, 1], out[0, 0, 1], weighted[0, 0, 1], weights[1, 0, 0]):
        assert share == exact[1].bfloat16()
    assert weights[0, 0, 0] == exact[0].bfloat16()


@every_half
def test_operator_returns_the_weights_of_its_result(dtype):
    """Logits 100 and 100.3, fp32 beside half features, under autocast and without it."""
    g = halfgnn.Graph.from_edges(torch.tensor([0, 1]), torch.tensor([0, 0]), num_src=2, num_dst=1)
    feat = torch.eye(2).view(2, 1, 2)
    logits, zero = torch.tensor([[100.0], [100.3]]), torch.zeros(1, 1)
    exact = logits.double().softmax(0)
    for x, enabled in ((feat, True), (feat.to(dtype), False)):
        with torch.autocast("cpu", dtype, enabled=enabled):
            out, weights = ops.gat_attention(g, x, logits, zero, return_weights=True)
        assert weights.dtype == out.dtype == dtype
        torch.testing.assert_close(weights.double(), exact, rtol=EPS[dtype], atol=0)
        assert torch.equal(out.view(2, 1), weights)


# ---- operators -------------------------------------------------------------------------------------


def reference_weights(kind, g, x):
    """The differentiable softmax of the reference."""
    if kind is DOT:
        return reference.edge_softmax(g, reference.gsddmm(g, "dot", x[1], x[0]).squeeze(-1) * 0.3)
    if kind is GATV2:
        hidden = F.leaky_relu(reference.gsddmm(g, "add", x[0], x[1]), 0.2)
        return reference.edge_softmax(g, (hidden * x[2]).sum(-1))
    logits = reference.gsddmm(g, "add", x[1], x[2]) + (x[3] if kind is GAT_EDGE else 0)
    return reference.edge_softmax(g, F.leaky_relu(logits, 0.2))


def exact_weights(kind, g, operands):
    """The weights in fp64, from the rounded operands."""
    return reference_weights(kind, g, [x.detach().double() for x in operands])


@pytest.mark.parametrize("autocast", [False, True], ids=["half", "autocast"])
@every_half
@every_kind
def test_weights_of_operators(kind, dtype, autocast):
    g = make_graph()
    operands = kind.operands(g, 2, 8, dtype, logit_dtype=torch.float32)
    for i in kind.logits or (0,):
        operands[i] = (
            operands[i] * 16
        )  # logits of tens; rounding them to half would change weights by much more than rounding the weights
    given = [x.float() for x in operands] if autocast else operands
    with torch.autocast("cpu", dtype, enabled=autocast):
        out, weights = kind.call(g, *given, return_weights=True)
    exact = exact_weights(kind, g, operands)
    assert weights.dtype == out.dtype == dtype
    # One rounding, and the fp32 error of logits of a hundred.
    torch.testing.assert_close(weights.double(), exact, rtol=0.51 * EPS[dtype] + 1e-4, atol=1e-7)


@every_kind
def test_gradient_through_returned_weights(kind):
    """Compared with autograd through the reference: gradients of only the weights, and of weights and result
    together."""
    g = make_graph()
    operands = kind.operands(g, 2, 4, torch.float64)
    for use_result in (False, True):
        leaves = [x.detach().requires_grad_() for x in operands]
        out, weights = kind.call(g, *leaves, return_weights=True)
        upstream = randn(*weights.shape, dtype=torch.float64), randn(*out.shape, dtype=torch.float64, seed=4)
        loss = (weights * upstream[0]).sum() + (out * upstream[1]).sum() * use_result
        actual = torch.autograd.grad(loss, leaves, allow_unused=True)
        expected_leaves = [x.detach().requires_grad_() for x in operands]
        expected_weights = reference_weights(kind, g, expected_leaves)
        expected_out = kind.specification(g, *expected_leaves)
        loss = (expected_weights * upstream[0]).sum() + (expected_out * upstream[1]).sum() * use_result
        expected = torch.autograd.grad(loss, expected_leaves, allow_unused=True)
        for a, b in zip(actual, expected):
            b = torch.zeros_like(a) if b is None and a is not None else b
            a = torch.zeros_like(b) if a is None and b is not None else a
            if a is not None:
                torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", [GAT, GATV2, DOT], ids=lambda kind: kind.name)
def test_defaults_of_operators(kind):
    """negative_slope is 0.2, and scale is one over the square root of the width."""
    g = make_graph()
    x = kind.operands(g, 2, 7, torch.float64)
    if kind is DOT:
        expected = reference.dot_attention(g, *x, 7**-0.5)
        actual = ops.dot_attention(g, *x, return_weights=True)
        weights = reference.edge_softmax(g, reference.gsddmm(g, "dot", x[1], x[0]).squeeze(-1) * 7**-0.5)
    elif kind is GAT:
        expected, actual = reference.gat_attention(g, *x, None, 0.2), ops.gat_attention(g, *x, return_weights=True)
        weights = exact_weights(kind, g, x)
    else:
        expected, actual = reference.gatv2_attention(g, *x, 0.2), ops.gatv2_attention(g, *x, return_weights=True)
        weights = exact_weights(kind, g, x)
    torch.testing.assert_close(actual[0], expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(actual[1], weights, rtol=1e-9, atol=1e-9)


# ---- modules ---------------------------------------------------------------------------------------

# name: (module, call with weights, call without weights); calls take (module, g, x, edge features)
MODULES = {
    "GATConv": (
        lambda: halfgnn.nn.GATConv(IN_FEATS, 8, 2, bias=False),
        lambda m, g, x, e: m(g, x, get_attention=True),
        lambda m, g, x, e: m(g, x),
    ),
    "GATConv-edge_weight": (
        lambda: halfgnn.nn.GATConv(IN_FEATS, 8, 2, bias=False),
        lambda m, g, x, e: m(g, x, edge_weight=torch.ones(g.num_edges), get_attention=True),
        lambda m, g, x, e: m(g, x),
    ),
    "GATv2Conv": (
        lambda: halfgnn.nn.GATv2Conv(IN_FEATS, 8, 2),
        lambda m, g, x, e: m(g, x, get_attention=True),
        lambda m, g, x, e: m(g, x),
    ),
    "DotGatConv": (
        lambda: halfgnn.nn.DotGatConv(IN_FEATS, 8, 2),
        lambda m, g, x, e: m(g, x, get_attention=True),
        lambda m, g, x, e: m(g, x),
    ),
    "TransformerConv": (
        lambda: halfgnn.nn.TransformerConv(IN_FEATS, 8, 2, root_weight=False),
        lambda m, g, x, e: m(g, x, get_attention=True),
        lambda m, g, x, e: m(g, x),
    ),
    "pyg.GATConv": (
        lambda: halfgnn.pyg.GATConv(IN_FEATS, 8, 2, bias=False, add_self_loops=False),
        lambda m, g, x, e: pyg_weights(m(x, g, return_attention_weights=True)),
        lambda m, g, x, e: m(x, g),
    ),
    "pyg.GATConv-edge": (
        lambda: halfgnn.pyg.GATConv(IN_FEATS, 8, 2, bias=False, add_self_loops=False, edge_dim=EDGE_DIM),
        lambda m, g, x, e: pyg_weights(m(x, g, e, return_attention_weights=True)),
        lambda m, g, x, e: m(x, g, e),
    ),
    "pyg.GATv2Conv": (
        lambda: halfgnn.pyg.GATv2Conv(IN_FEATS, 8, 2, bias=False, add_self_loops=False),
        lambda m, g, x, e: pyg_weights(m(x, g, return_attention_weights=True)),
        lambda m, g, x, e: m(x, g),
    ),
    "pyg.TransformerConv": (
        lambda: halfgnn.pyg.TransformerConv(IN_FEATS, 8, 2, root_weight=False),
        lambda m, g, x, e: pyg_weights(m(x, g, return_attention_weights=True)),
        lambda m, g, x, e: m(x, g),
    ),
}
# with edge features only the separate operators run
EDGES = {
    "TransformerConv-edge": (
        lambda: halfgnn.nn.TransformerConv(IN_FEATS, 8, 2, root_weight=False, edge_dim=EDGE_DIM),
        lambda m, g, x, e: m(g, x, e, get_attention=True),
    ),
    "pyg.GATv2Conv-edge": (
        lambda: halfgnn.pyg.GATv2Conv(IN_FEATS, 8, 2, bias=False, add_self_loops=False, edge_dim=EDGE_DIM),
        lambda m, g, x, e: pyg_weights(m(x, g, e, return_attention_weights=True)),
    ),
}


def pyg_weights(result):
    out, (_, weights) = result
    return out, weights.unsqueeze(-1)


def large(module, size=6.0):
    """Parameters that make logits of tens. Rounding these to half would change the weights visibly."""
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if "att" in name or "query" in name or name == "fc.weight":
                parameter.mul_(size)
    return module


def inputs():
    g = make_graph()
    return g, randn(NUM_NODES, IN_FEATS), randn(g.num_edges, EDGE_DIM, seed=7)


@pytest.mark.parametrize("autocast", [False, True], ids=["module", "autocast"])
@every_half
@pytest.mark.parametrize("name", MODULES)
def test_weights_are_those_of_the_fused_result(name, dtype, autocast):
    """The result is the same with and without weights, except for one rounding. The weights reproduce the result."""
    make, with_weights, without = MODULES[name]
    g, x, e = inputs()
    module = large(seeded(make))
    if not autocast:
        module, x, e = module.to(dtype), x.to(dtype), e.to(dtype)
    with torch.autocast("cpu", dtype, enabled=autocast):
        fused = without(module, g, x, e)
        out, weights = with_weights(module, g, x, e)
    assert out.dtype == weights.dtype == fused.dtype == dtype
    assert_within(out.double(), fused.double(), 1.01 * EPS[dtype])
    sums = ops.copy_e_sum(g, weights.double()).squeeze(-1)
    torch.testing.assert_close(sums, torch.ones_like(sums), rtol=EPS[dtype], atol=EPS[dtype])


def assert_within(actual, expected, tolerance):
    """The error relative to the largest number in the row, because results cancel."""
    size = expected.abs().amax(-1, keepdim=True)
    assert ((actual - expected).abs() <= tolerance * size).all(), ((actual - expected).abs() / size).max()


@pytest.mark.parametrize("autocast", [False, True], ids=["module", "autocast"])
@every_half
@pytest.mark.parametrize("name", EDGES)
def test_weights_with_edge_features(name, dtype, autocast):
    """The reference's weights in fp64, from the rounded projections."""
    make, with_weights = EDGES[name]
    g, x, e = inputs()
    module = large(seeded(make))
    if not autocast:
        module, x, e = module.to(dtype), x.to(dtype), e.to(dtype)
    rounded = {}

    def keep(key):
        return lambda layer, args, out: rounded.update({key: out.detach().double()})

    linears = {key: child for key, child in module.named_children() if key.startswith("lin_")}
    for key, child in linears.items():
        child.register_forward_hook(keep(key))  # with a hook the layer is called, and its output is used
    with torch.autocast("cpu", dtype, enabled=autocast):
        out, weights = with_weights(module, g, x, e)
    edge = rounded["lin_edge"].unflatten(-1, (2, 8))
    if name.startswith("pyg"):
        left, right = (rounded[key].unflatten(-1, (2, 8)) for key in ("lin_l", "lin_r"))
        att = module.att.detach().to(dtype).double()
        hidden = F.leaky_relu(reference.gsddmm(g, "add", left, right) + edge, module.negative_slope)
        logits, value, messages = (hidden * att).sum(-1), left, 0
    else:
        query, key, value = (rounded[f"lin_{k}"].unflatten(-1, (2, 8)) for k in ("query", "key", "value"))
        logits = (reference.gsddmm(g, "dot", key, query) + reference.gsddmm(g, "dot", edge, query, "e", "v")).squeeze(
            -1
        )
        logits, messages = logits * 8**-0.5, edge
    exact = reference.edge_softmax(g, logits).unsqueeze(-1)
    torch.testing.assert_close(weights.double(), exact, rtol=0.51 * EPS[dtype] + 1e-4, atol=1e-6)
    expected = reference.gspmm(
        g, "copy_rhs", "sum", None, (reference.gsddmm(g, "copy_lhs", value, None) + messages) * exact
    )
    assert_within(out.double().view(expected.shape), expected, 1.01 * EPS[dtype])


@pytest.mark.parametrize("name", [*MODULES, *EDGES])
def test_parameters_get_gradients_of_their_own_type(name):
    make, with_weights = (MODULES.get(name) or EDGES[name])[:2]
    g, x, e = inputs()
    module = seeded(make)
    with torch.autocast("cpu", torch.bfloat16):
        out, weights = with_weights(module, g, x, e)
    (out.float().square().sum() + weights.float().square().sum()).backward()
    grads = {key: p.grad for key, p in module.named_parameters() if "lin_skip" not in key}  # without root_weight
    assert all(grad is not None and grad.dtype == torch.float32 for grad in grads.values())


@every_half
def test_relations_that_project_their_sums(dtype):
    """They give the same as relations that project their sources. Logits are fp32 in both."""
    g = make_graph()
    conv = large(seeded(lambda: halfgnn.nn.GATConv(IN_FEATS, 8, 2, bias=False)))
    x = randn(NUM_NODES, IN_FEATS)
    etypes = {("a", "x", "a"): conv}
    relations = halfgnn.HeteroGraph({etype: g for etype in etypes})
    results = []
    for last in (False, True):
        with pytest.MonkeyPatch.context() as patch, torch.autocast("cpu", dtype):
            patch.setattr(halfgnn.nn.relation_attention, "_saves_to_project_last", lambda *args, last=last: last)
            results.append(halfgnn.nn.relation_attention.attend_together(etypes, relations, {"a": x}, {"a": x})["a"])
    assert_within(results[1].double(), results[0].double(), 4 * EPS[dtype])
