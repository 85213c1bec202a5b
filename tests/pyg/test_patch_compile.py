"""torch.compile under halfgnn.pyg.patch(): no more graphs and compilations than of torch_geometric, and halfgnn's operators."""

from __future__ import annotations

import contextlib

import pytest
import torch
import torch_geometric.nn as upstream
from torch import nn
from torch._dynamo import trace_rules
from torch._dynamo.testing import CompileCounter
from torch._dynamo.utils import counters
from torch_geometric import utils

import halfgnn.pyg
from halfgnn.drop_in.compiled import is_compiled, skip_frames
from halfgnn.pyg.drop_in.adapters import traced
from tests import support, support_compiled

pytestmark = pytest.mark.skipif(support.SIMULATED, reason="about Python")

NUM_NODES, NUM_EDGES, WIDTH = 300, 9000, 64  # an eager call is routed


def inputs(num_edges=NUM_EDGES):
    generator = torch.Generator().manual_seed(num_edges)
    x = torch.randn(NUM_NODES, WIDTH, generator=generator)
    return x, torch.randint(NUM_NODES, (2, num_edges), generator=generator)


class Concatenated(upstream.MessagePassing):
    def __init__(self):
        super().__init__(aggr="sum")
        self.lin = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x, edge_index):
        return self.propagate(edge_index, x=x)

    def message(self, x_i, x_j):
        return self.lin(torch.cat([x_i, x_j], -1)).relu()


class Program(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.lin, self.function = nn.Linear(WIDTH, WIDTH), function

    def forward(self, x, edge_index):
        return self.function(self.lin(x), *edge_index)


def added(x, src, dst):
    out = torch.zeros_like(x).index_add_(0, dst, torch.index_select(x, 0, src))
    return torch.index_add(out, 0, src, x.index_select(0, dst))


def scattered(x, src, dst):
    rows, index = x[src], dst[:, None].expand(-1, WIDTH)
    out = torch.zeros_like(x).scatter_add(0, index, rows)
    return out + torch.scatter_reduce(torch.zeros_like(x), 0, index, rows, "mean", include_self=False)


def broken(x, src, dst):
    """Between the graphs rows are taken and summed eagerly."""
    torch._dynamo.graph_break()
    rows = x[src]
    torch._dynamo.graph_break()
    return utils.scatter(rows, dst, 0, x.shape[0]) + x[dst[dst > 7]].sum()


MAKE = {
    "GCN": lambda: upstream.GCNConv(WIDTH, WIDTH),
    "GAT": lambda: upstream.GATConv(WIDTH, 16, 4),
    "SAGE": lambda: upstream.SAGEConv(WIDTH, WIDTH),
    "Transformer": lambda: upstream.TransformerConv(WIDTH, 16, 4),
    "message": Concatenated,
    "index_add": lambda: Program(added),
    "x[index]": lambda: Program(scattered),
    "breaks": lambda: Program(broken),
}


def compiled_counts(model, dynamic, calls=2):
    """Graphs, their operators and breaks after calls with edges of two sizes; the results."""
    torch.compiler.reset()
    counters.clear()
    counter = CompileCounter()
    compiled = torch.compile(model, backend=counter, dynamic=dynamic)
    outs = []
    for num_edges in (NUM_EDGES, NUM_EDGES - 100):
        for _ in range(calls):
            outs.append(compiled(*inputs(num_edges)))
            outs[-1].sum().backward()
    return (counter.frame_count, counter.op_count, sum(counters["graph_break"].values())), outs


ALL = {"fuse": True, "products": "fp32"}
CASES = [*((name, True, {}) for name in MAKE), ("GCN", None, {}), ("x[index]", None, {}), ("breaks", True, ALL)]


@pytest.mark.parametrize("name, dynamic, options", CASES)
def test_there_are_no_more_graphs_than_without_the_drop_in(name, dynamic, options):
    model = MAKE[name]()
    counts, expected = compiled_counts(model, dynamic)
    with halfgnn.pyg.accelerate(**options):
        halfgnn.pyg.reset_stats()
        actual_counts, actual = compiled_counts(model, dynamic)
    if name in ("GCN", "GAT"):  # whose self-loops are an operator
        assert actual_counts[0] < counts[0] and actual_counts[2] < counts[2]
    else:
        assert actual_counts == counts
    for out, plain in zip(actual, expected):
        assert type(out) is torch.Tensor
        torch.testing.assert_close(out, plain)


@pytest.mark.parametrize("name", ["GCN", "index_add"])
def test_blocks_around_calls_compile_once_for_each_state(name):
    """Dynamo guards graphs by the functions that they call."""
    model, data = MAKE[name](), inputs()
    (num_graphs, *_), _ = compiled_counts(model, True, calls=1)
    torch.compiler.reset()
    counter = CompileCounter()
    compiled = torch.compile(model, backend=counter, dynamic=True)
    expected = compiled(*data)
    for _ in range(10):  # more often than Dynamo compiles a frame again
        with halfgnn.pyg.accelerate():
            torch.testing.assert_close(compiled(*data), expected)
        torch.testing.assert_close(compiled(*data), expected)
    assert counter.frame_count <= 2 * num_graphs


LAYERS = {
    "GCN": (lambda: upstream.GCNConv(WIDTH, WIDTH), "gspmm:u_mul_e_sum"),
    "GCN with weights": (lambda: upstream.GCNConv(WIDTH, WIDTH), "gspmm:u_mul_e_sum"),
    "SAGE": (lambda: upstream.SAGEConv(WIDTH, WIDTH), "gspmm:copy_u_sum"),
    "GIN": (lambda: upstream.GINConv(nn.Linear(WIDTH, WIDTH)), "gspmm:copy_u_sum"),
    "GAT": (lambda: upstream.GATConv(WIDTH, 16, 4), "gat_attention"),
    "GAT with edges": (lambda: upstream.GATConv(WIDTH, 16, 4, edge_dim=WIDTH), "edge_softmax"),
    "GATv2": (lambda: upstream.GATv2Conv(WIDTH, 16, 4), "gatv2_attention"),
    "Transformer": (lambda: upstream.TransformerConv(WIDTH, 16, 4), "dot_attention"),
    "message": (Concatenated, "linear"),
    "max": (lambda: upstream.SAGEConv(WIDTH, WIDTH, aggr="max"), "gspmm:copy_u_max"),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers_are_one_graph_of_operators(name):
    make, operator = LAYERS[name]
    layer = make()
    params = list(layer.parameters())

    def step(run, num_edges):
        x, edge_index = inputs(num_edges)
        edge_index[0, :50] = edge_index[1, :50]  # self-loops
        x.requires_grad_()
        generator = torch.Generator().manual_seed(1)
        extra = []
        if name == "GCN with weights":
            extra = [torch.rand(num_edges, generator=generator)]
        elif name == "GAT with edges":
            extra = [torch.rand(num_edges, WIDTH, generator=generator)]
        out = run(x, edge_index, *extra)
        return [out, *torch.autograd.grad(out.square().sum(), [x, *params])]

    expected = [step(layer, size) for size in (NUM_EDGES, NUM_EDGES - 100)]
    with halfgnn.pyg.accelerate():
        halfgnn.pyg.reset_stats()
        run = support_compiled.compiled(layer, fullgraph=name != "GAT with edges")
        actual = [step(run, size) for size in (NUM_EDGES, NUM_EDGES - 100)]
        stats = halfgnn.pyg.stats()["compiled"]
    assert stats.get(operator, 0) > 0, stats
    for outs, plains in zip(actual, expected):
        for a, b in zip(outs, plains, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3 * float(b.abs().max()) + 1e-4)


def test_self_loops_of_compiled_code_are_made_once(monkeypatch):
    made = support_compiled.count_graphs(monkeypatch)
    with halfgnn.pyg.accelerate():
        layers = nn.ModuleList([upstream.GCNConv(WIDTH, WIDTH), upstream.GCNConv(WIDTH, WIDTH)])
        run, data = support_compiled.compiled(lambda x, ids: layers[1](layers[0](x, ids), ids)), inputs()
        for _ in range(3):
            run(*data)
    assert len(made) == 1


def test_inductor_has_the_pass_while_the_drop_in_is_on():
    from torch._inductor import config

    assert config.pre_grad_custom_pass is None
    with halfgnn.pyg.accelerate():
        assert config.pre_grad_custom_pass is not None
        halfgnn.pyg.reset_stats()
        torch.compiler.reset()
        layer, data = upstream.SAGEConv(WIDTH, WIDTH), inputs()
        torch.testing.assert_close(torch.compile(layer)(*data), layer(*data))
        assert halfgnn.pyg.stats()["compiled"]["gspmm:copy_u_sum"] == 1
    assert config.pre_grad_custom_pass is None


def test_a_function_has_one_wrapper():
    def bound():
        owners = [(torch.Tensor, name) for name in ("__getitem__", "index_select", "index_add_", "scatter_add")]
        owners += [(upstream.MessagePassing, "_index_select"), (upstream.GATConv, "forward")]
        return [getattr(owner, name) for owner, name in [*owners, (utils, "scatter"), (torch, "index_add")]]

    plain = bound()
    with halfgnn.pyg.accelerate():
        first = bound()
    assert bound() == plain
    with halfgnn.pyg.accelerate():
        second = bound()
    assert all(a is b and a is not c for a, b, c in zip(first, second, plain))


WHOLE = {
    "GCN": lambda: upstream.GCNConv(WIDTH, 8),
    "GAT": lambda: upstream.GATConv(WIDTH, 8, 2),
    "GATv2": lambda: upstream.GATv2Conv(WIDTH, 8, 2),
    "Cheb": lambda: upstream.ChebConv(WIDTH, 8, 3),
    "SG": lambda: upstream.SGConv(WIDTH, 8, 2),
    "APPNP": lambda: upstream.APPNP(2, 0.1),
}


@pytest.mark.parametrize("name, num_edges", [*((name, 2500) for name in WHOLE), ("GCN", NUM_EDGES)])
def test_a_layer_is_one_graph_where_it_is_alone(name, num_edges):
    """Of layers that add self-loops the number of edges is not known while they are traced, and must not be asked for."""
    layer, data = WHOLE[name](), inputs(num_edges)
    expected = layer(*data)

    def whole():
        torch.compiler.reset()
        return torch.compile(layer, backend="eager", fullgraph=True)(*data)

    try:
        whole()
    except Exception as error:
        pytest.skip(f"this torch_geometric does not compile alone: {type(error).__name__}")
    with halfgnn.pyg.accelerate():
        torch.testing.assert_close(whole(), expected)


@pytest.mark.parametrize("name", ["add_self_loops", "gcn_norm"])
def test_in_a_capture_edges_are_made_again_without_a_question(monkeypatch, name):
    """mode="reduce-overhead" captures the operators whose sizes are known: a replay has other ids. The capture is simulated."""
    _, edge_index = inputs()

    def run():
        with halfgnn.pyg.accelerate():
            if name == "gcn_norm":
                return torch.ops.halfgnn_pyg.gcn_norm(
                    edge_index, NUM_NODES, False, False, "source_to_target", torch.float32
                )[:2]
            return torch.ops.halfgnn_pyg.self_loops(edge_index, name, NUM_NODES)

    run()  # cached
    edge_index.data.copy_(edge_index.flip(1) // 2)  # as a replay: uncounted
    monkeypatch.setattr(traced, "is_captured", lambda device: True)
    monkeypatch.setattr(torch.Tensor, "nonzero", lambda *args: pytest.fail("asks the device"))
    if name == "gcn_norm":
        expected = upstream.conv.gcn_conv.gcn_norm(edge_index.clone(), None, NUM_NODES, add_self_loops=False)
    else:
        expected = utils.add_self_loops(edge_index.clone(), num_nodes=NUM_NODES)[:1]
    for actual, wanted in zip(run(), expected):
        torch.testing.assert_close(actual, wanted)


def test_what_counts_as_compiled():
    seen: list = []

    @skip_frames
    def between():
        torch._dynamo.graph_break()  # so that it is not traced, but called between two graphs
        seen.append((torch.compiler.is_compiling(), is_compiled()))

    @torch._dynamo.disable
    def outside():
        seen.append((torch.compiler.is_compiling(), is_compiled()))

    def function(x):
        y = x + (1 if is_compiled() else 0)  # traced
        between()
        outside()
        return y

    outside()
    with torch._subclasses.FakeTensorMode():
        outside()
    torch.compiler.reset()
    assert torch.compile(function, backend="eager")(torch.zeros(1)).item() == 1
    assert seen == [(False, False), (False, True), (False, True), (False, False)]


class Readouts(nn.Module):
    """Norms and readouts of a batch, whose number of graphs nobody says."""

    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList([upstream.GraphNorm(WIDTH), upstream.LayerNorm(WIDTH), upstream.InstanceNorm(WIDTH)])
        self.readout, self.attention = (
            upstream.SoftmaxAggregation(),
            upstream.AttentionalAggregation(nn.Linear(WIDTH, 1)),
        )

    def forward(self, x, batch):
        for norm in self.norms:
            x = norm(x, batch)
        outs = [upstream.global_mean_pool(x, batch), upstream.global_max_pool(x, batch), self.readout(x, batch)]
        return torch.cat([*outs, self.attention(x, batch)], -1)


def test_readouts_are_in_one_graph():
    """torch_geometric asks the batch for the number of its graphs, at which torch.compile breaks."""
    model = Readouts()

    def step(run, num_graphs):
        batch = torch.arange(40 * num_graphs) // 40
        x = torch.randn(len(batch), WIDTH, generator=torch.Generator().manual_seed(num_graphs)).requires_grad_()
        out = run(x, batch)
        return [out, *torch.autograd.grad(out.square().sum(), [x, *model.parameters()])]

    expected = [step(model, size) for size in (9, 12, 7)]
    with halfgnn.pyg.accelerate():
        halfgnn.pyg.reset_stats()
        run = support_compiled.compiled(model, fullgraph=True)
        counters.clear()
        actual = [step(run, size) for size in (9, 12, 7)]
        stats = halfgnn.pyg.stats()["compiled"]
    assert counters["stats"]["unique_graphs"] == 1 and stats["gspmm:copy_e_sum"] > 0, stats
    for outs, plains in zip(actual, expected):
        for a, b in zip(outs, plains, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4 * float(b.abs().max()) + 1e-4)


@pytest.mark.parametrize("layout", [torch.sparse_csr, torch.sparse_csc, torch.sparse_coo], ids=str)
def test_products_of_sparse_matrices_are_made_between_graphs(layout):
    """torch.compile ends its graph at the matrix. An exported program has PyTorch's product in it."""
    x, edge_index = inputs()
    matrix = torch.sparse_coo_tensor(edge_index, torch.rand(NUM_EDGES), (NUM_NODES, NUM_NODES)).coalesce()
    matrix = {torch.sparse_csr: matrix.to_sparse_csr, torch.sparse_csc: matrix.to_sparse_csc}.get(
        layout, lambda: matrix
    )()
    conv, x = upstream.SAGEConv(WIDTH, WIDTH, aggr="sum"), x.requires_grad_()
    results = []
    for function, is_patched in ((conv, False), (torch.compile(conv, backend=CompileCounter()), True)):
        with halfgnn.pyg.accelerate() if is_patched else contextlib.nullcontext():
            before = halfgnn.pyg.stats()["routed"].get("gspmm:u_mul_e_sum", 0)
            for _ in range(3):
                out = function(x, matrix)
            assert halfgnn.pyg.stats()["routed"].get("gspmm:u_mul_e_sum", 0) - before == (3 if is_patched else 0)
        results.append([out.detach(), *torch.autograd.grad(out.sin().sum(), [x, *conv.parameters()])])
    for actual, expected in zip(*results):
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)
    with halfgnn.pyg.accelerate():
        program = torch.export.export(conv, (x.detach(), matrix), strict=True)
    assert "halfgnn" not in str(program.graph)


def test_functions_are_known_after_they_were_wrapped():
    """Dynamo looks PyTorch's functions up once, here while the drop-in is on. Later graphs have them all the same."""
    model = MAKE["index_add"]()
    expected, _ = compiled_counts(model, True)
    with halfgnn.pyg.accelerate():
        trace_rules.clear_lru_cache()
        trace_rules.get_torch_obj_rule_map()
    counts, _ = compiled_counts(model, True)
    assert counts == expected
