"""Trees of operators on messages under halfgnn.pyg.patch(): views of them, and nodes that no edge reads."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
import torch_geometric
from torch.utils.checkpoint import checkpoint

import halfgnn.pyg
from tests import support
from tests.pyg.support_pyg import Layer
from tests.pyg.test_patch_modules import NUM_EDGES, NUM_NODES, WIDTH, assert_same, edges, randn

pytestmark = pytest.mark.skipif(not support.supports("cpu", torch.float64), reason="needs float64")


class Tree(torch_geometric.nn.MessagePassing):
    """A layer with a user's message function of x_i and x_j (E, WIDTH), a number per node d_i (E, 1), and w (E, 1)."""

    def __init__(self, function, aggr, node_dim=-2):
        super().__init__(aggr=aggr, node_dim=node_dim)
        self.function = function

    def forward(self, x, d, w, edge_index):
        return self.propagate(edge_index, x=x, d=d, w=w)

    def message(self, x_i, x_j, d_i, d_j, w):
        return self.function(x_i, x_j, d_i, d_j, w)


NUM_READ = NUM_NODES - 4  # the nodes that have edges


def assert_tree(function, aggr, x, d, **options):
    w, edge_index = randn(NUM_EDGES, 1, seed=3), edges(NUM_READ, NUM_NODES)

    def run():
        leaves = [y.clone().requires_grad_() for y in (x, d, w)]
        out = Tree(function, aggr, **options)(*leaves, edge_index)
        grads = torch.autograd.grad(out, leaves, randn(*out.shape, seed=4), allow_unused=True)
        return [out.detach(), *(grad for grad in grads if grad is not None)]

    expected = run()
    with halfgnn.pyg.accelerate():
        assert_same(run(), expected)


def written(view, factor=2):
    """A message of which a view is written to."""

    def function(x_i, x_j, d_i, d_j, w):
        message = x_j * w
        view(message).mul_(factor)
        return message

    return function


def both(first, second):
    """What is reshaped is a copy if its dimensions are not in order: a write to either is not one to the other."""

    def function(x_i, x_j, d_i, d_j, w):
        message = x_j * w
        copy = message.view(-1, 2, WIDTH // 2).transpose(1, 2).reshape(-1, WIDTH)
        (copy if first else message).mul_(3)
        return (message + copy) if second else copy

    return function


def written_through_data(view):
    """A message of which an ordinary view is written to, which PyTorch does not count."""

    def function(x_i, x_j, d_i, d_j, w):
        view(x_j).data.mul_(2)
        return x_j

    return function


def hooked_after_a_view(x_i, x_j, d_i, d_j, w):
    """The hook sees the gradients of what was made of the message before an ordinary view of it was."""
    made = x_j + 1
    x_j.unfold(1, 2, 2)
    if x_j.requires_grad:
        x_j.register_hook(lambda grad: 2 * grad)
    return made


VIEWS = {
    "hook after a view": hooked_after_a_view,
    "columns written through data": written_through_data(lambda x: x.unfold(1, 2, 2)),
    "part written through data": written_through_data(lambda x: x.tensor_split(2, 1)[1]),
    "view of a view written through data": written_through_data(lambda x: x.view(-1, 2, 4).unfold(1, 1, 1)),
    "transposed": lambda x_i, x_j, d_i, d_j, w: x_j.view(-1, 2, 4).transpose(1, 2).reshape(-1, WIDTH).sinh(),
    "transposed edges": lambda x_i, x_j, d_i, d_j, w: (x_j * w).view(-1, 2, 4).transpose(1, 2).flatten(1).cumsum(1),
    "repeated": lambda x_i, x_j, d_i, d_j, w: (x_j * w).unsqueeze(1).expand(-1, 3, -1).flatten(1),
    "columns": lambda x_i, x_j, d_i, d_j, w: (x_j * w).view(-1, 2, 4)[..., :2].reshape(-1, 4).cumsum(1),
    "detached": lambda x_i, x_j, d_i, d_j, w: x_j.view(-1, 2, 4).detach().transpose(1, 2).flatten(1).sinh() * x_j,
    "narrow term of a dot": lambda x_i, x_j, d_i, d_j, w: (x_i * x_j + d_i).sum(-1, keepdim=True),
    "column written": written(lambda x: x[:, 3]),
    "columns written": written(lambda x: x[:, 3:6]),
    "rows of transposed written": written(lambda x: x.view(-1, 2, 4).transpose(1, 2)[:, 1]),
    "copy written": both(True, True),
    "message written": both(False, True),
    "message of a copy written": both(False, False),
}


@pytest.mark.parametrize("aggr", ["sum", "max"])
@pytest.mark.parametrize("name", VIEWS)
def test_views(name, aggr):
    assert_tree(VIEWS[name], aggr, randn(NUM_NODES, WIDTH, seed=1), randn(NUM_NODES, 1, seed=2))


UNREAD = {
    "factor": lambda x_i, x_j, d_i, d_j, w: x_j / d_i.abs(),
    "factor of a product": lambda x_i, x_j, d_i, d_j, w: d_i.reciprocal() * (w * x_j),
    "divisor": lambda x_i, x_j, d_i, d_j, w: x_j / (x_i * x_i).sum(-1, keepdim=True),
    "destinations alone": lambda x_i, x_j, d_i, d_j, w: d_i.reciprocal().expand(-1, WIDTH),
    "divided by itself": lambda x_i, x_j, d_i, d_j, w: x_j / (x_j * x_j).sum(-1, keepdim=True),
    "infinite factor": lambda x_i, x_j, d_i, d_j, w: d_j.reciprocal().detach() * x_j,
    "infinite factor times that of all": lambda x_i, x_j, d_i, d_j, w: d_j.reciprocal().detach() * w[:1] * x_j,
    "sine of infinity": lambda x_i, x_j, d_i, d_j, w: (d_j.detach().reciprocal() + w[:1]).sin() * x_j,
    "not a number": lambda x_i, x_j, d_i, d_j, w: (x_j / x_j).detach() * w[:1],
    "infinite and divided": lambda x_i, x_j, d_i, d_j, w: d_j.reciprocal().detach() / w[:1] + x_j,
    "sqrt": lambda x_i, x_j, d_i, d_j, w: x_j.square().sum(-1, keepdim=True).sqrt(),
    "rsqrt": lambda x_i, x_j, d_i, d_j, w: x_j.abs().rsqrt(),
    "log": lambda x_i, x_j, d_i, d_j, w: x_j.abs().log() * w,
    "power": lambda x_i, x_j, d_i, d_j, w: x_j.abs() ** 0.5,
    "number divided": lambda x_i, x_j, d_i, d_j, w: 2 / x_j,
    "exp": lambda x_i, x_j, d_i, d_j, w: (800 - 1e6 * x_j.abs()).exp(),
}


@pytest.mark.parametrize("aggr", ["sum", "mean", "max"])
@pytest.mark.parametrize("name", UNREAD)
def test_nodes_that_no_edge_reads(name, aggr):
    """torch_geometric computes nothing of their features, from which an operator may make infinity or NaN."""
    x, d = randn(NUM_NODES, WIDTH, seed=1), randn(NUM_NODES, 1, seed=2)
    x[NUM_READ:] = d[NUM_READ:] = 0
    assert_tree(UNREAD[name], aggr, x, d)


@pytest.mark.parametrize("parts", [1, 2])
def test_a_linear_layer_of_nodes_that_no_edge_reads(parts):
    x, edge_index = randn(NUM_NODES, WIDTH, seed=1), edges(NUM_READ, NUM_NODES)
    x[NUM_READ:] = torch.nan
    layer = torch.nn.Linear(parts * WIDTH, 5).double()
    tree = Tree(lambda x_i, x_j, d_i, d_j, w: layer(torch.cat([x_i, x_j], 1) if parts == 2 else x_j), "sum")

    def run():
        return torch.autograd.grad(tree(x, None, None, edge_index).sum(), list(layer.parameters()))

    expected = run()
    with halfgnn.pyg.accelerate():
        assert_same(run(), expected)


def test_the_features_of_a_linear_layer_are_freed_at_once():
    """Without a search for cycles, which comes late and not at all where it is off."""
    layer, edge_index, references = torch.nn.Linear(2 * WIDTH, 5).double(), edges(), []

    def step():
        x = 1 * randn(NUM_NODES, WIDTH, seed=1).requires_grad_()
        references.append(weakref.ref(x))
        tree = Tree(lambda x_i, x_j, d_i, d_j, w: layer(torch.cat([x_i, x_j - x_i], 1)), "sum")
        tree(x, None, None, edge_index).sum().backward()

    gc.collect()
    gc.disable()
    try:
        with halfgnn.pyg.accelerate():
            step()
        assert references[0]() is None
    finally:
        gc.enable()


def nodes_of(node):
    """The names of autograd's nodes below one."""
    found, left = set(), [node]
    while left:
        node = left.pop()
        if node is not None and node not in found:
            found.add(node)
            left += [below for below, _ in node.next_functions]
    return {node.name() for node in found}


@pytest.mark.parametrize("towers", [[0, 1], [1, 0], [1, 1]])
def test_layers_of_towers(towers):
    """Layers of PNA, one per tower of features: their gradients are put side by side, not added to zeros one by one."""
    x, d = randn(NUM_NODES, WIDTH, seed=1), randn(NUM_NODES, 1, seed=2)
    layers = [torch.nn.Linear(9, 5).double() for _ in towers]
    seen = []

    def function(x_i, x_j, d_i, d_j, w):
        joined = torch.cat([x_i.view(-1, 2, 4), x_j.view(-1, 2, 4), w.view(-1, 1, 1).repeat(1, 2, 1)], -1)
        out = torch.stack([layer(joined[:, tower]) for layer, tower in zip(layers, towers)], 1).flatten(1)
        seen.append(nodes_of(out.grad_fn))
        return out

    assert_tree(function, "sum", x, d)
    plain, routed = seen
    assert "SelectBackward0" in plain and "SelectBackward0" not in routed and "UnbindBackward0" in routed


class Towers(torch_geometric.nn.MessagePassing):
    """The first tower of features is read by `read` before a layer takes it, and so is the second by another layer."""

    def __init__(self, read):
        super().__init__(node_dim=0)
        self.read, self.layers = read, torch.nn.ModuleList([torch.nn.Linear(8, 5) for _ in range(2)]).double()

    def forward(self, x, edge_index):
        x = x.view(-1, 2, 4)
        return self.propagate(edge_index, x=x)

    def message(self, x_i, x_j):
        h = torch.cat([x_i, x_j], -1)
        return self.read(self.layers[0], h[:, 0]) + self.layers[1](h[:, 1])


def gated_without_gradient(layer, tower):
    with torch.no_grad():
        gate = layer(tower).sigmoid()
    return gate * layer(tower)


READS = {
    "no_grad": gated_without_gradient,
    "checkpoint": lambda layer, tower: checkpoint(layer, tower, use_reentrant=True),
}


@pytest.mark.parametrize("name", READS)
def test_a_tower_that_was_read_without_gradients_has_its_own(name):
    torch.manual_seed(0)
    layer, edge_index = Towers(READS[name]), edges(NUM_NODES, NUM_NODES)
    x = randn(NUM_NODES, WIDTH, seed=1).requires_grad_()

    def run():
        layer.zero_grad()
        x.grad = None
        layer(x, edge_index).pow(2).sum().backward()
        return [x.grad, *(p.grad for p in layer.parameters())]

    expected = run()
    with halfgnn.pyg.accelerate():
        assert_same(run(), expected)


DIFFERENCES = {
    "negated": lambda x_i, x_j: x_i + -x_j,
    "negated first": lambda x_i, x_j: -x_j + x_i,
    "times a number": lambda x_i, x_j: x_i + -1 * x_j,
    "over a number": lambda x_i, x_j: x_i + x_j.view(-1, WIDTH) / -1.0,
    "from a number": lambda x_i, x_j: (x_i - 3) + (3 - x_j),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", DIFFERENCES)
def test_a_difference_that_is_written_as_a_sum(name, weighted, dtype):
    """It is materialized as the difference is: taken apart it is the difference of two large sums, which are rounded first."""
    x = (randn(NUM_NODES, WIDTH, seed=1) + (4096 if dtype is torch.float32 else 64)).to(dtype)
    w, edge_index = randn(NUM_EDGES, 1, seed=3).to(dtype), edges(NUM_NODES, NUM_NODES)
    difference = DIFFERENCES[name]

    def function(x_i, x_j, d_i, d_j, w):
        out = difference(x_i, x_j)
        return w * out if weighted else out.sum(-1, keepdim=True)

    layer = Tree(function, "sum" if weighted else "max")
    exact = layer(x.double(), None, w.double(), edge_index)
    expected = layer(x, None, w, edge_index)
    with halfgnn.pyg.accelerate():
        found = layer(x, None, w, edge_index)
    limit = (expected.double() - exact).abs().max() + 1e-5 * exact.abs().max()
    assert (found.double() - exact).abs().max() <= limit


@pytest.mark.parametrize("dtype", [*support.HALVES, torch.float32], ids=str)
def test_a_sum_of_differences_is_no_difference_of_sums(dtype):
    """Differences of these features and their sums are exact. Sums of the features are not."""
    x = 0.5 / torch.finfo(dtype).eps + torch.arange(NUM_NODES * WIDTH).remainder(13).view(NUM_NODES, WIDTH) / 2
    tree = Tree(lambda x_i, x_j, d_i, d_j, w: (x_i - x_j).sum(-1, keepdim=True), "max")
    expected = tree(x.double(), None, None, edges()).float()
    with halfgnn.pyg.accelerate():
        assert_same([tree(x.to(dtype), None, None, edges()).float()], [expected])


@pytest.mark.parametrize("dtype", support.HALVES, ids=str)
def test_a_dot_of_a_sum_has_the_messages_dtype(dtype):
    """Its parts are added in fp32."""
    dtypes = []

    def message(x_i, x_j, d_i, d_j, w):
        dtypes.append((x_i * (x_j + x_i)).sum(-1, keepdim=True).tanh().dtype)
        return x_j

    with halfgnn.pyg.accelerate():
        Tree(message, "sum")(randn(NUM_NODES, WIDTH, seed=1).to(dtype), None, None, edges())
    assert dtypes == [dtype]


@pytest.mark.parametrize("dtype", support.HALVES, ids=str)
def test_parts_of_a_sum_are_rounded_together(dtype):
    """Sums of these messages are exact in half. Those of the products are not."""
    base = 0.5 / torch.finfo(dtype).eps
    x = base + torch.arange(NUM_NODES * WIDTH).remainder(13).view(NUM_NODES, WIDTH) / 2
    tree = Tree(lambda x_i, x_j, d_i, d_j, w: x_j * w + -base, "sum")
    expected = tree(x, None, torch.ones(NUM_EDGES, 1), edges())
    with halfgnn.pyg.accelerate():
        assert_same([tree(x.to(dtype), None, torch.ones(NUM_EDGES, 1, dtype=dtype), edges()).float()], [expected])


def test_stats_names_the_line_that_read_a_message():
    x, w = randn(NUM_NODES, WIDTH, seed=1), randn(NUM_EDGES, 1, seed=2)
    with halfgnn.pyg.accelerate():
        for _ in range(2):
            Layer(lambda x_j, w: (x_j * w).cumsum(-1))(x, edges(), w)
    ((line, entry),) = halfgnn.pyg.stats()["materialized"].items()
    assert "test_patch_trees.py:" in line and line.endswith("in <lambda>")
    assert entry["read"] == "u_mul_e by cumsum" and entry["calls"] == 2 and entry["seconds"] > 0
    halfgnn.pyg.reset_stats()
    assert "materialized" not in halfgnn.pyg.stats()


@pytest.mark.parametrize("aggr", [["mean", "max"], ["sum", "min", "std"], ["var", "mean"]], ids="_".join)
def test_reductions_of_layers_of_both_ends(aggr):
    """The parts of the sources are reduced; those of the destinations are added to the results. No message is materialized."""
    x, d = randn(NUM_NODES, WIDTH, seed=1), randn(NUM_NODES, 1, seed=2)
    layers = [torch.nn.Linear(8, 5).double() for _ in range(2)]

    def function(x_i, x_j, d_i, d_j, w):
        joined = torch.cat([x_i.view(-1, 2, 4), x_j.view(-1, 2, 4)], -1)
        return torch.stack([layer(joined[:, tower]) for tower, layer in enumerate(layers)], 1)

    halfgnn.pyg.reset_stats()
    assert_tree(function, aggr, x, d, node_dim=0)
    routed = halfgnn.pyg.stats()["routed"]
    assert routed[f"copy_u_reduce:{'_'.join(aggr)}"] == 1 and not any("gsddmm" in name for name in routed), routed


@pytest.mark.parametrize("aggr", ["sum", ["mean", "max"]])
@pytest.mark.parametrize("read", [torch.relu, lambda x: x * x.sigmoid(), lambda x: x.cumsum(-1), lambda x: x.mul_(2)])
def test_a_layer_of_both_ends_that_something_reads_is_materialized_once(read, aggr):
    x, d = randn(NUM_NODES, WIDTH, seed=1), randn(NUM_NODES, 1, seed=2)
    layer = torch.nn.Linear(2 * WIDTH, WIDTH).double()
    halfgnn.pyg.reset_stats()
    assert_tree(lambda x_i, x_j, d_i, d_j, w: read(layer(torch.cat([x_i, x_j], -1))), aggr, x, d)
    assert halfgnn.pyg.stats()["routed"]["gsddmm:v_add_u"] == 1


BATCHED = {
    "sources": lambda x_i, x_j, e: x_j,
    "difference": lambda x_i, x_j, e: x_i - x_j,
    "both ends": lambda x_i, x_j, e: torch.cat([x_i, x_j], -1),
    "edges": lambda x_i, x_j, e: torch.cat([e.expand(len(x_j), -1, -1), x_j, x_i], -1),
    "edges of each copy": lambda x_i, x_j, e: torch.cat([x_j, torch.stack([e, -e, 2 * e])], -1),
}


@pytest.mark.parametrize("then", [None, torch.relu, torch.cumsum], ids=["", "relu", "cumsum"])
@pytest.mark.parametrize("name", BATCHED)
def test_linear_layers_of_copies_of_a_graph(name, then):
    """Features (B, N, C), whose edges are dimension 1, as of weather models: layers are those of nodes, as of one copy."""
    x, e = randn(3, NUM_NODES, WIDTH, seed=1), randn(NUM_EDGES, WIDTH, seed=2)
    width = BATCHED[name](x[:, :NUM_EDGES], x[:, :NUM_EDGES], e[:NUM_NODES]).shape[-1]
    layer = torch.nn.Linear(width, 5).double()

    class Batched(torch_geometric.nn.MessagePassing):
        def forward(self, x, e, edge_index):
            return self.propagate(edge_index, x=x, e=e)

        def message(self, x_i, x_j, e):
            out = layer(BATCHED[name](x_i, x_j, e))
            return out if then is None else then(out) if then is torch.relu else then(out, -1)

    def run():
        leaves = [y.clone().requires_grad_() for y in (x, e)]
        out = Batched()(*leaves, edges())
        read = [*leaves, *layer.parameters()]
        return [out, *torch.autograd.grad(out.sin().sum(), read, allow_unused=True)]

    expected = run()
    with halfgnn.pyg.accelerate():
        halfgnn.pyg.reset_stats()
        for actual, wanted in zip(run(), expected, strict=True):
            assert (actual is None) == (wanted is None)
            if wanted is not None:
                torch.testing.assert_close(actual, wanted)
    assert halfgnn.pyg.stats()["routed"]["linear"] == 1
