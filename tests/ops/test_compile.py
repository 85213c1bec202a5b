"""torch.compile: whole graphs, dynamic sizes, forward and backward, equal to eager."""

import contextlib

import pytest
import torch
from torch.utils import _pytree

from halfgnn import Graph, ops
from tests import support
from tests.support import make_graph


def two_types(g, x, w, y):
    """fp32 features with half edges, and half with fp32."""
    return ops.u_mul_e_sum(g, x.float().sin(), w) + ops.u_dot_v(g, x, y.float()).sum()


def attention(g, x, w):
    return torch.relu(ops.u_mul_e_sum(g, x, ops.edge_softmax(g, w)) * 2)


# name: (function of graph and operands, (rows, trailing shape) of the operands)
CASES = {
    "attention": (attention, [("u", (4, 8)), ("e", (4, 1))]),
    "softmax_src": (lambda g, w: ops.edge_softmax(g, w, "src"), [("e", (3,))]),
    "mean": (lambda g, x: ops.copy_u_mean(g, x.sin()), [("u", (5,))]),
    "max": (lambda g, x, w: ops.u_add_e_max(g, x, w) * 3, [("u", (2, 4)), ("e", (2, 1))]),
    "broadcast": (lambda g, x, w: ops.u_div_e_sum(g, x, w.exp()), [("u", (2, 1)), ("e", (1, 3))]),
    "dot": (lambda g, x, y: ops.u_dot_v(g, x, y).tanh(), [("u", (4, 8)), ("v", (4, 8))]),
    "edge_and_node": (lambda g, w, y: ops.e_sub_v(g, w, y) + ops.copy_v(g, y), [("e", (3,)), ("v", (3,))]),
    "out_dtype": (lambda g, x: ops.copy_u_sum(g, x, out_dtype=torch.float32).cos(), [("u", (4,))]),
    "two_types": (two_types, [("u", (4, 8)), ("e", (4, 1)), ("v", (4, 8))]),
    "segment": (lambda g, w: ops.segment_reduce(g.in_degrees(), w, "mean"), [("e", (3,))]),
}


@pytest.fixture(autouse=True)
def _fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@contextlib.contextmanager
def no_recompilation():
    with torch._dynamo.config.patch(error_on_recompile=True):
        yield


def operands_for(g, name, dtype, device):
    return [support.randn(support.rows_of(g, t), *shape, dtype=dtype, device=device) for t, shape in CASES[name][1]]


def check_equal(compiled, eager, g, operands, exact=True):
    results = []
    for function in (eager, compiled):
        torch.manual_seed(3)
        out, grads = support.evaluate(lambda *x, function=function: function(g, *x), operands, torch.randn_like)
        results.append([out, *grads])
    for a, b in zip(*results):
        assert a.dtype == b.dtype and a.stride() == b.stride()
        if exact:
            assert torch.equal(a, b)
        else:
            torch.testing.assert_close(a, b, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("name", CASES)
def test_whole_graph_with_dynamic_sizes(name, device):
    """The graph is an argument. A graph of other sizes needs no second compilation."""
    function, _ = CASES[name]
    compiled = torch.compile(function, fullgraph=True, dynamic=True, backend="aot_eager")
    graphs = [make_graph(graph, torch.int64, device) for graph in ("bipartite", "skewed", "random")]
    for g in graphs:
        g.csr()
    check_equal(compiled, function, graphs[0], operands_for(graphs[0], name, torch.float16, device))
    with no_recompilation():
        for g in graphs[1:]:
            check_equal(compiled, function, g, operands_for(g, name, torch.float16, device))


def test_degrees_do_not_compile_again(device):
    """Code is compiled for graphs whose rows are known to be short, and for others, but not for each degree."""
    compiled = torch.compile(attention, fullgraph=True, dynamic=True, backend="aot_eager")
    plain = make_graph("skewed", torch.int64, device)

    def run(*bounds):
        g = Graph(plain.num_src, plain.num_dst, plain.csc(), plain.csr(), *bounds)
        check_equal(compiled, attention, g, operands_for(g, "attention", torch.float16, device))

    run(None, None)
    run(600, 700)  # too many to be of use: like a graph that knows nothing
    with pytest.raises(torch._dynamo.exc.RecompileError), no_recompilation():
        run(7, 11)
    run(7, 11)
    with no_recompilation():
        for bounds in ((8, 12), (0, 511), (600, None), (None, None)):
            run(*bounds)


@pytest.mark.parametrize("identity", [False, True], ids=["edge_ids", "no_edge_ids"])
def test_graph_as_a_closure(identity, device):
    g = make_graph("bipartite", torch.int32, device, identity)
    compiled = torch.compile(lambda x, w: attention(g, x, w), fullgraph=True, dynamic=True, backend="aot_eager")
    operands = operands_for(g, "attention", torch.bfloat16, device)
    check_equal(lambda _, x, w: compiled(x, w), attention, g, operands)


def test_out_edges_are_made_inside_the_compiled_function(device):
    """A graph without a CSR: compiled code makes it once and keeps it with the graph."""
    g = make_graph("bipartite", torch.int64, device)
    compiled = torch.compile(attention, fullgraph=True, dynamic=True, backend="aot_eager")
    operands = operands_for(g, "attention", torch.float32, device)
    assert g._csr is None
    check_equal(compiled, attention, make_graph("bipartite", torch.int64, device), operands)
    support.evaluate(lambda x, w: compiled(g, x, w), operands, torch.ones_like)
    assert g._csr is not None and isinstance(g._csr.indptr, torch.Tensor)
    fresh = make_graph("bipartite", torch.int64, device)
    assert all(torch.equal(a, b) for a, b in zip(g._csr, fresh.csr()))


def test_static_sizes(device):
    g = make_graph("random", torch.int32, device)
    compiled = torch.compile(attention, fullgraph=True, dynamic=False, backend="aot_eager")
    check_equal(compiled, attention, g, operands_for(g, "attention", torch.float16, device))


@pytest.mark.parametrize("call", [
    lambda g, x: ops.u_dot_v(g, x, x),
    lambda g, x: ops.u_add_v(g, x, x),
    lambda g, x: ops.dot_attention(g, x, x, x),
    lambda g, x: ops.gatv2_attention(g, x, x, x[0]),
    lambda g, x: ops.gat_attention(g, x, x[..., 0], x[..., 0]),
], ids=["u_dot_v", "u_add_v", "dot_attention", "gatv2_attention", "gat_attention"])  # fmt: skip
def test_one_tensor_in_several_places(call, device):
    """Each argument gets its share of the gradient, although the compiler merges equal inputs."""
    g = make_graph("skewed", torch.int64, device)
    x = support.randn(g.num_src, 2, 8, dtype=torch.float32, device=device)
    check_equal(torch.compile(call, backend="aot_eager", fullgraph=True), call, g, [x], exact=False)


def test_inference(device):
    g = make_graph("random", torch.int32, device)
    compiled = torch.compile(attention, fullgraph=True, dynamic=True, backend="aot_eager")
    operands = operands_for(g, "attention", torch.float16, device)
    with torch.no_grad():
        out = compiled(g, *operands)
        assert not out.requires_grad and torch.equal(out, attention(g, *operands))


@pytest.mark.parametrize("inside", [False, True], ids=["region_outside", "region_inside"])
@pytest.mark.parametrize("dtype", support.HALVES)
def test_autocast(dtype, inside, device):
    """The autocast region may be around the compiled function or inside it. The dtype is the user's in both cases."""
    g = make_graph("bipartite", torch.int32, device)

    def function(g, x, w):
        with torch.autocast(device, dtype) if inside else contextlib.nullcontext():
            return attention(g, x, w)

    def region():
        return contextlib.nullcontext() if inside else torch.autocast(device, dtype)

    compiled = torch.compile(function, fullgraph=True, dynamic=True, backend="aot_eager")

    def under(f):
        def run(g, *operands):
            with region():
                return f(g, *operands)

        return run

    operands = operands_for(g, "attention", torch.float32, device)
    assert under(compiled)(g, *operands).dtype == dtype
    check_equal(under(compiled), under(function), g, operands)


def test_inductor(device):
    """The default backend fuses around the operators and passes their results through."""
    g = make_graph("bipartite", torch.int32, device)
    g.csr()
    compiled = torch.compile(attention, fullgraph=True, dynamic=True)
    operands = operands_for(g, "attention", torch.float16, device)
    check_equal(compiled, attention, g, operands, exact=False)
    g = make_graph("random", torch.int32, device)
    g.csr()
    with no_recompilation():
        check_equal(compiled, attention, g, operands_for(g, "attention", torch.float16, device), exact=False)


def test_module(device):
    """A module that holds parameters, compiled in place, trained for a step."""

    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(8, 8)

        def forward(self, g, x):
            return ops.copy_u_mean(g, self.linear(x))

    torch.manual_seed(0)
    layer = Layer().to(device)
    g = make_graph("skewed", torch.int64, device)
    x = torch.randn(g.num_src, 8, device=device)
    layer(g, x).square().sum().backward()
    eager = [p.grad.clone() for p in layer.parameters()]
    layer.zero_grad()
    torch.compile(layer, fullgraph=True, dynamic=True, backend="aot_eager")(g, x).square().sum().backward()
    for a, b in zip(eager, _pytree.tree_leaves([p.grad for p in layer.parameters()])):
        torch.testing.assert_close(a, b)


def test_export_of_operators():
    """torch.export sees the operators too: one call each, not decomposed."""
    g = make_graph("bipartite", torch.int64)
    indptr, indices, edge_ids = g.csc()

    class Sum(torch.nn.Module):
        def forward(self, indptr, indices, edge_ids, x):
            return torch.ops.halfgnn.gspmm(indptr, indices, edge_ids, "copy_lhs", "sum", x, None)[0]

    x = torch.randn(g.num_src, 3)
    program = torch.export.export(Sum(), (indptr, indices, edge_ids, x))
    assert [n.target for n in program.graph.nodes if "halfgnn" in str(n.target)] == [torch.ops.halfgnn.gspmm.default]
    assert torch.equal(program.module()(indptr, indices, edge_ids, x), ops.copy_u_sum(g, x))


@pytest.mark.parametrize("strict", [True, False])
def test_export_of_a_graph_that_is_made_inside(strict):
    """Both adjacencies and the other type are part of the program, so it is right for other edges."""

    class Softmax(torch.nn.Module):
        def forward(self, src, dst, x):
            g = Graph.from_edges(src, dst, num_src=5, num_dst=4, check=False)
            return ops.edge_softmax(g.int(), x, norm_by="src") + ops.edge_softmax(g, x)

    def inputs():
        return torch.randint(5, (9,)), torch.randint(4, (9,)), torch.randn(9, 2)

    program = torch.export.export(Softmax(), inputs(), strict=strict).module()
    others = inputs()
    assert torch.equal(program(*others), Softmax()(*others))


def test_a_wrong_call_raises_the_operators_error():
    """Compiled code cannot change an error, so it may have gspmm's names of the operands."""
    g, w = make_graph("bipartite"), torch.ones(300, 3)
    compiled = torch.compile(lambda x: ops.u_mul_e_sum(g, x, w).sin(), backend="eager")
    assert compiled(torch.ones(30, 3)).shape == (40, 3)
    for shape, match in [((29, 3), "(x|lhs_data) has .* expected 30 rows"), ((30, 4), "which do not broadcast")]:
        with pytest.raises(ValueError, match=match):
            compiled(torch.ones(shape))
