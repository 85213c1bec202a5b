"""The autograd Functions in C++ (csrc/torch/autograd) beside those in Python, which say what they do."""

import inspect
import json
from contextlib import nullcontext

import pytest
import torch

from halfgnn import Graph, _library, ops
from halfgnn.common import autograd
from halfgnn.ops.coo_softmax import coo_softmax
from halfgnn.ops.coo_sum import coo_sum
from halfgnn.ops.head_logits import with_head_logits
from halfgnn.ops.spmm import _GSpMM

NUM_SRC, NUM_DST, NUM_EDGES, HEADS, DIM = 7, 5, 23, 2, 4

pytestmark = pytest.mark.skipif(not _library.has_autograd(), reason="the library under test was built alone")


def random(*shape, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype).requires_grad_()


def edge_list():
    """Destinations and sources. The last destination has no edges."""
    generator = torch.Generator().manual_seed(1)
    dst = torch.randint(NUM_DST - 1, (NUM_EDGES,), generator=generator)
    return dst, torch.randint(NUM_SRC, (NUM_EDGES,), generator=generator)


@pytest.fixture
def graph():
    dst, src = edge_list()
    return Graph.from_edges(src, dst, num_src=NUM_SRC, num_dst=NUM_DST)


def logits_and_features(results):
    feat, *logits = results
    return sum(logits).unsqueeze(-1) + feat


def operands(dtype=torch.float32):
    """Of sources, of destinations, of edges, and weights of edges."""
    shape = HEADS, DIM
    return (
        random(NUM_SRC, *shape, dtype=dtype), random(NUM_DST, *shape, dtype=dtype), random(NUM_EDGES, *shape, dtype=dtype),
        random(NUM_EDGES, HEADS, 1, dtype=dtype),
    )  # fmt: skip


OPERATORS = {
    "sum": lambda g, u, v, e, w: ops.copy_u_sum(g, u),
    "sum of edges": lambda g, u, v, e, w: ops.copy_e_sum(g, e),
    "mean": lambda g, u, v, e, w: ops.copy_u_mean(g, u),
    "max": lambda g, u, v, e, w: ops.copy_u_max(g, u),
    "min of products": lambda g, u, v, e, w: ops.u_mul_e_min(g, u, e),
    "weighted": lambda g, u, v, e, w: ops.u_mul_e_sum(g, u, w),
    "weighted mean": lambda g, u, v, e, w: ops.u_mul_e_mean(g, u, e),
    "quotients": lambda g, u, v, e, w: ops.u_div_e_sum(g, u, e.abs() + 1),
    "relu": lambda g, u, v, e, w: ops.u_relu_add_e_sum(g, u, e),
    "weights alone": lambda g, u, v, e, w: ops.u_mul_e_sum(g, u.detach(), w),
    "features alone": lambda g, u, v, e, w: ops.u_mul_e_sum(g, u, w.detach()),
    "dot": lambda g, u, v, e, w: ops.u_dot_v(g, u, v),
    "difference": lambda g, u, v, e, w: ops.u_sub_v(g, u, v),
    "quotient of ends": lambda g, u, v, e, w: ops.u_div_v(g, u, v.abs() + 1),
    "of an edge and an end": lambda g, u, v, e, w: ops.e_sub_v(g, e, v),
    "copies": lambda g, u, v, e, w: ops.copy_u(g, u),
    "softmax": lambda g, u, v, e, w: ops.edge_softmax(g, w),
    "segments": lambda g, u, v, e, w: ops.segment_reduce(torch.tensor([3, 0, 20]), e, "mean"),
    "largest of segments": lambda g, u, v, e, w: ops.segment_reduce(torch.tensor([3, 0, 20]), e, "max"),
    "logits": lambda g, u, v, e, w: logits_and_features(with_head_logits(u, v[:1].float())),
    "logits of two": lambda g, u, v, e, w: logits_and_features(with_head_logits(u, v[:1].float(), v[1:2].float())),
    "logits alone": lambda g, u, v, e, w: with_head_logits(u, v[:1].float())[1],
    "features beside logits": lambda g, u, v, e, w: with_head_logits(u, v[:1].float())[0] * 2,
    "sum over an edge list": lambda g, u, v, e, w: coo_sum(*edge_list(), u, w[:, 0, 0], "sum", NUM_DST),
    "mean over an edge list": lambda g, u, v, e, w: coo_sum(*edge_list(), u, None, "mean", NUM_DST),
    "reductions": lambda g, u, v, e, w: sum(ops.copy_u_reduce(g, u, ("std", "max", "mean"))),
    "largest and smallest": lambda g, u, v, e, w: sum(ops.copy_u_reduce(g, u, ("min", "max"))),
    "std of any size": lambda g, u, v, e, w: ops.copy_u_reduce(g, u, ("sum", "std"), eps=0)[1],
    "gated sum": lambda g, u, v, e, w: ops.gated_sum(g, u, u.sin(), v, e, normalize=True),
    "gated sum without gates of edges": lambda g, u, v, e, w: ops.gated_sum(g, u, u.detach(), v, edge_value=e),
    "gated edges": lambda g, u, v, e, w: ops.gated_sum(g, u, u.sin(), v, e, return_edges=True)[1],
    "gated sum and edges": lambda g, u, v, e, w: sum(
        x.sum(0) for x in ops.gated_sum(g, u, u.sin(), v, e, normalize=True, return_edges=True)
    ),
    "relu over an edge list": lambda g, u, v, e, w: coo_sum(*edge_list(), u, e, "mean", NUM_DST, op="relu_add"),
    "relu of features alone": lambda g, u, v, e, w: coo_sum(*edge_list(), u, e.detach(), "sum", NUM_DST, op="relu_add"),
    "relu of edges alone": lambda g, u, v, e, w: coo_sum(*edge_list(), u.detach(), e, "sum", NUM_DST, op="relu_add"),
    "rows of edges over an edge list": lambda g, u, v, e, w: coo_sum(
        *edge_list(), u, e, "sum", NUM_DST, op="add"
    ),
    "sum of rows of edges": lambda g, u, v, e, w: coo_sum(edge_list()[0], None, e, w[:, 0, 0], "mean", NUM_DST),
    "rows by an edge list": lambda g, u, v, e, w: coo_sum(None, edge_list()[1], u, None, "sum", NUM_EDGES),
    "softmax over an edge list": lambda g, u, v, e, w: coo_softmax(edge_list()[0], w, NUM_DST),
    "GAT": lambda g, u, v, e, w: ops.gat_attention(g, u, u.sum(-1), v.sum(-1), w.squeeze(-1)),
    "GAT without edges": lambda g, u, v, e, w: ops.gat_attention(g, u, u.sum(-1).detach(), v.sum(-1)),
    "GATv2": lambda g, u, v, e, w: ops.gatv2_attention(g, u, v, u[0].detach()),
    "GATv2 of edges": lambda g, u, v, e, w: ops.gatv2_attention(g, u, v, v[0], edge_bias=w.squeeze(-1), edge_feat=e),
    "dot attention": lambda g, u, v, e, w: ops.dot_attention(g, v, u, u * 2),
    "dot attention of edges": lambda g, u, v, e, w: ops.dot_attention(
        g, v, u, u * 2, edge_bias=w.squeeze(-1), edge_key=e, edge_value=e
    ),
    "dot attention of two rows": lambda g, u, v, e, w: ops.dot_attention(g, v, u, u, edge_key=e, edge_value=e.sin()),
}  # fmt: skip


def is_in_cpp(node):
    """Whether a node of autograd, or one below it, is of a Function in C++."""
    return node is not None and (
        "CppFunction" in type(node).__name__ or any(is_in_cpp(x) for x, _ in node.next_functions)
    )


def in_python(monkeypatch):
    for function in autograd._IN_CPP.values():
        monkeypatch.setattr(function, "operator", None)


def results_of(call, g, dtype, twice):
    """The result, the gradients of the operands, those of the sum of their squares, and what autograd saved."""
    inputs = operands(dtype)
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append((x.shape, x.dtype)) or x, lambda x: x):
        out = call(g, *inputs)
    weights = torch.linspace(-1, 1, out.numel()).view(out.shape).to(out.dtype)
    gradients = torch.autograd.grad(out, inputs, weights, allow_unused=True, create_graph=twice, retain_graph=True)
    results = [out, *gradients]
    of_first = [x for x in gradients if x is not None and x.requires_grad]
    if twice and of_first:
        total = sum(x.float().square().sum() for x in of_first)
        results += torch.autograd.grad(total, inputs, allow_unused=True)
    return results, sorted(saved, key=str)


@pytest.mark.parametrize("twice", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", OPERATORS)
def test_results_and_what_is_saved_are_those_of_python(graph, name, dtype, twice, monkeypatch):
    results, saved = results_of(OPERATORS[name], graph, dtype, twice)
    assert is_in_cpp(OPERATORS[name](graph, *operands(dtype)).grad_fn)
    in_python(monkeypatch)
    expected, expected_saved = results_of(OPERATORS[name], graph, dtype, twice)
    assert len(results) == len(expected) and any(x is not None for x in expected[1:])
    for result, value in zip(results, expected):
        assert (result is None) == (value is None)
        assert result is None or (result.dtype == value.dtype and torch.equal(result, value))
    assert saved == expected_saved


def test_every_operator_has_the_arguments_of_its_function():
    assert len(autograd._IN_CPP) == 12
    for name, function in autograd._IN_CPP.items():
        schema = getattr(torch.ops.halfgnn_autograd, name).default._schema
        assert function.operator is getattr(torch.ops.halfgnn_autograd, name).default
        names = [x.name for x in schema.arguments]
        aliases = {"negative_slope": "slope"}
        assert [aliases.get(x, x) for x in names] == list(inspect.signature(function.forward).parameters)
        raw = getattr(torch.ops.halfgnn, name).default._schema
        own = 1 if name == "head_logits" else 0  # the features
        assert [x.type for x in schema.returns[own:]] == [x.type for x in raw.returns]


def test_a_side_of_the_topology_that_is_missing_is_made(graph):
    u, _, _, w = operands()
    options = "mul", "sum", u, w, None, graph.short_csc, graph.short_csr, None, None, None, None
    out = autograd.apply(_GSpMM, *graph.csc(), None, None, None, *options)[0]
    result = torch.autograd.grad(out.sum(), (u, w))
    expected = torch.autograd.grad(ops.u_mul_e_sum(graph, u, w).sum(), (u, w))
    assert all(torch.equal(x, y) for x, y in zip(result, expected))


@pytest.mark.parametrize("name", ["weighted", "dot", "GAT", "GATv2", "dot attention of edges"])
def test_operands_modified_in_place_are_refused(graph, name):
    inputs = [x * 1 for x in operands()]
    out = OPERATORS[name](graph, *inputs)
    for x in inputs:
        x += 1
    with pytest.raises(RuntimeError, match=r"write x = x \+ y in place of x \+= y"):
        out.sum().backward()


def test_columns_that_python_projects_are_not_lost(graph):
    u, v, e, _ = operands()
    columns, weight = e.flatten(1), random(HEADS, DIM, HEADS * DIM)
    out = ops.dot_attention(graph, v, u, u, edge_feat=columns, edge_key_weight=weight)
    rows = (columns @ weight.flatten(0, 1).t()).view(-1, HEADS, DIM)
    torch.testing.assert_close(out, ops.dot_attention(graph, v, u, u, edge_key=rows))
    terms = [None] * 3, columns, weight, None, False, False
    with pytest.raises(RuntimeError, match="projected in Python"):
        torch.ops.halfgnn_autograd.dot_attention(
            *graph.csc(), *graph.csr(), v, u, u, *terms[0], *terms[1:], 1.0, 0.0, None, False, False, False
        )


def test_a_second_backward_needs_a_graph_that_was_retained(graph):
    u, *_ = operands()
    out = ops.u_mul_e_sum(graph, u, torch.ones(NUM_EDGES, 1, 1)).sum()
    out.backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        out.backward()


@pytest.mark.parametrize("name", OPERATORS)
def test_compiled_autograd_has_their_gradients(graph, name):
    compiled_autograd = pytest.importorskip("torch._dynamo.compiled_autograd")
    gradients = []
    for enabled in (False, True):
        inputs = operands()
        total = OPERATORS[name](graph, *inputs).sin().sum()
        context = compiled_autograd._enable(lambda compiled: compiled) if enabled else nullcontext()
        with context:
            total.backward()
        gradients.append([x.grad for x in inputs])
    assert any(x is not None for x in gradients[0])
    for expected, result in zip(*gradients):
        assert (result is None) == (expected is None) and (result is None or torch.equal(result, expected))


def test_errors_keep_their_classes(graph):
    u, *_ = operands()
    options = "mul", "sum", u, u.long(), None, False, False, None, None, None, None
    with pytest.raises(TypeError, match="rhs"):
        autograd.apply(_GSpMM, *graph.csc(), *graph.csr(), *options)


@pytest.mark.parametrize("fits", [True, False])
def test_only_beside_the_torch_that_they_were_built_for(fits, tmp_path, monkeypatch):
    facts = {"torch": torch.__version__ if fits else "2.3.1", "abi": "aten", "cuda": None}
    (tmp_path / "_autograd.so").touch()
    (tmp_path / "_autograd.json").write_text(json.dumps({**facts, "cxx11_abi": torch.compiled_with_cxx11_abi()}))
    loaded = []
    monkeypatch.setattr(_library, "_FOLDER", str(tmp_path))
    monkeypatch.setattr(torch.ops, "load_library", loaded.append)
    _library._load_autograd()
    assert loaded == ([str(tmp_path / "_autograd.so")] if fits else [])
