"""Messages that are known by the code of a class's message(): reduced at once, with torch_geometric's results and errors."""

from __future__ import annotations

import pytest
import torch
import torch_geometric.nn as upstream
from torch_geometric.nn import MessagePassing
from torch_geometric.utils import scatter

import halfgnn.pyg
from halfgnn.pyg.drop_in.adapters import known_messages
from tests.support_nn import randn

NODES, EDGES, WIDTH = 40, 300, 8
KNOWN = (
    *(
        "APPNP",
        "ARMAConv",
        "ChebConv",
        "ClusterGCNConv",
        "GCN2Conv",
        "GCNConv",
        "GINConv",
        "GatedGraphConv",
        "GraphConv",
    ),
    *("LGConv", "LabelPropagation", "MFConv", "MixHopConv", "PANConv", "PDNConv", "SAGEConv", "SGConv", "SSGConv"),
    *("SignedConv", "SimpleConv", "TAGConv", "WLConvContinuous"),
)
OTHERS = (
    "AGNNConv",
    "GATConv",
    "FAConv",
    "PNAConv",
    "RGCNConv",
    "GENConv",
    "EdgeConv",
    "LEConv",
    "TransformerConv",
)


def edges(num_src=NODES, num_dst=NODES):
    generator = torch.Generator().manual_seed(1)
    return torch.stack([torch.randint(n, (EDGES,), generator=generator) for n in (num_src, num_dst)])


class Weighted(MessagePassing):
    """Messages of a program: other names, a docstring."""

    def forward(self, h, edge_index, norm, size=None):
        return self.propagate(edge_index, h=h, norm=norm, size=size)

    def message(self, h_j, norm):
        """Rows times weights."""
        return norm.view(-1, 1) * h_j


class Rows(MessagePassing):
    def forward(self, x, edge_index, size=None):
        return self.propagate(edge_index, x=x, size=size)


class Twice(Rows):
    def message(self, x_j):
        return 2 * x_j


class Maximum(Rows):
    def aggregate(self, inputs, index, ptr=None, dim_size=None):
        return scatter(inputs, index, 0, dim_size, "max")


class Negated(Rows):
    def update(self, inputs):
        return -inputs


def results(conv, *args, **kwargs):
    """Of the call and its gradients."""
    leaves = [x for x in args if isinstance(x, torch.Tensor) and x.requires_grad]
    out = conv(*args, **kwargs)
    grad = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)
    return out, *(torch.autograd.grad(out, leaves, grad) if leaves else ())


def taken(monkeypatch):
    """The results that known_messages returned, in a list."""
    found = []
    original = known_messages._reduced
    monkeypatch.setattr(known_messages, "_reduced", lambda *args: found.append(original(*args)) or found[-1])
    return found


def check(monkeypatch, conv, *args, count=1, tolerance=1e-5, **kwargs):
    """The third call under the drop-in has PyG's results. count: of propagate() calls in it that are reduced at once."""
    expected = results(conv, *args, **kwargs)
    with halfgnn.pyg.accelerate():
        for _ in range(2):
            results(conv, *args, **kwargs)
        found = taken(monkeypatch)
        actual = results(conv, *args, **kwargs)
    assert len(found) == count
    for a, b in zip(actual, expected, strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", KNOWN)
def test_classes_whose_messages_are_known(name):
    cls = getattr(upstream, name)
    assert known_messages._find_out(cls.message, cls.aggregate, cls.update) is not None


@pytest.mark.parametrize("name", OTHERS)
def test_classes_whose_messages_are_not(name):
    cls = getattr(upstream, name)
    assert known_messages._find_out(cls.message, cls.aggregate, cls.update) is None


@pytest.mark.parametrize("aggr", ["sum", "mean", "max", "min"])
@pytest.mark.parametrize("make", [Rows, Weighted])
def test_reductions(monkeypatch, make, aggr):
    inputs = [randn(NODES, WIDTH).requires_grad_(), edges()]
    inputs += [randn(EDGES, seed=2).requires_grad_()] if make is Weighted else []
    check(monkeypatch, make(aggr=aggr), *inputs)


@pytest.mark.parametrize("shape", [(EDGES,), (EDGES, 1), (1, EDGES)])
def test_weights_of_any_shape_that_view_takes(monkeypatch, shape):
    check(monkeypatch, Weighted(), randn(NODES, WIDTH), edges(), randn(*shape, seed=2))


@pytest.mark.parametrize("weight", [randn(1, dtype=torch.float32), randn(EDGES, dtype=torch.float64)])
def test_weights_that_gspmm_does_not_take(monkeypatch, weight):
    """One for all edges, and one that promotes features to its dtype."""
    x, e, conv = randn(NODES, WIDTH), edges(), Weighted()
    with halfgnn.pyg.accelerate():
        for _ in range(3):
            conv(x, e, randn(EDGES))
    check(monkeypatch, conv, x, e, weight, count=0)


def test_arguments_by_position():
    conv, x, e = Rows(), randn(NODES, WIDTH), edges()
    expected = conv.propagate(e, x)
    with halfgnn.pyg.accelerate():
        for _ in range(3):
            conv(x, e)
        torch.testing.assert_close(conv.propagate(e, x), expected)


def test_weights_that_are_optional(monkeypatch):
    conv = upstream.GraphConv(WIDTH, 4)
    check(monkeypatch, conv, randn(NODES, WIDTH), edges())
    check(monkeypatch, conv, randn(NODES, WIDTH), edges(), randn(EDGES, seed=2))


@pytest.mark.parametrize("size", [None, (NODES, 25), (None, 25)])
@pytest.mark.parametrize("dst", [25, None])
def test_two_kinds_of_nodes(monkeypatch, dst, size):
    x = randn(NODES, WIDTH), None if dst is None else randn(dst, WIDTH, seed=2)
    check(monkeypatch, Rows(), x, edges(NODES, 25), size=size)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("make", ["GCNConv", "SAGEConv", "GraphConv"])
def test_autocast_gives_the_dtypes_of_pyg(monkeypatch, make, dtype):
    conv = getattr(upstream, make)(WIDTH, 4)
    with torch.autocast("cpu", dtype):
        check(monkeypatch, conv, randn(NODES, WIDTH).requires_grad_(), edges(), tolerance=2e-2)


@pytest.mark.parametrize("weight", [torch.float16, torch.float32])
def test_half_features_are_rounded_as_pygs(monkeypatch, weight):
    """Their products with fp32 weights are fp32, and so is the sum."""
    check(monkeypatch, Weighted(), randn(NODES, WIDTH).half(), edges(), randn(EDGES, seed=2).to(weight), tolerance=1e-2)


def test_half_under_patch_half(monkeypatch):
    conv, x, e = upstream.GCNConv(WIDTH, 4, bias=False), randn(NODES, WIDTH), edges()
    with halfgnn.pyg.accelerate(half=True), torch.autocast("cpu", torch.bfloat16):
        out = [conv(x, e) for _ in range(3)]
    assert [y.dtype for y in out] == [torch.bfloat16] * 3
    torch.testing.assert_close(out[2].float(), conv(x, e), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("name, args, count", [
    ("GCNConv", (WIDTH, 4), 1), ("ChebConv", (WIDTH, 4, 3), 2), ("TAGConv", (WIDTH, 4, 3), 3), ("SGConv", (WIDTH, 4, 2), 2),
    ("LGConv", (), 1), ("APPNP", (2, 0.1), 2), ("ClusterGCNConv", (WIDTH, 4), 1), ("MFConv", (WIDTH, 4), 1),
    ("GatedGraphConv", (WIDTH, 2), 2), ("SimpleConv", (), 1),
])  # fmt: skip
def test_modules_of_pyg(monkeypatch, name, args, count):
    check(monkeypatch, getattr(upstream, name)(*args), randn(NODES, WIDTH).requires_grad_(), edges(), count=count)


def test_sums_are_updated(monkeypatch):
    check(monkeypatch, Negated(), randn(NODES, WIDTH).requires_grad_(), edges())


@pytest.mark.parametrize("make", [Twice, Maximum])
def test_what_a_class_does_otherwise_is_left_to_it(monkeypatch, make):
    check(monkeypatch, make(), randn(NODES, WIDTH), edges(), count=0)


def test_steps_of_a_module_itself_are_left_to_it(monkeypatch):
    conv = Rows()
    conv.message = lambda x_j: 3 * x_j
    check(monkeypatch, conv, randn(NODES, WIDTH), edges(), count=0)


def test_a_message_that_a_class_gets_later_is_seen(monkeypatch):
    class Changed(Rows):
        pass

    x, e = randn(NODES, WIDTH), edges()
    check(monkeypatch, Changed(), x, e)
    Changed.message = Twice.message
    check(monkeypatch, Changed(), x, e, count=0)


def test_code_that_a_message_gets_later_is_seen(monkeypatch):
    """As IPython's autoreload changes functions."""

    class Changed(Rows):
        def message(self, x_j):
            return x_j

    x, e = randn(NODES, WIDTH), edges()
    check(monkeypatch, Changed(), x, e)
    Changed.message.__code__ = Twice.message.__code__
    check(monkeypatch, Changed(), x, e, count=0)


@pytest.mark.parametrize("step", ["propagate", "message", "aggregate"])
def test_hooks_are_called(step):
    conv, x, e, calls = Rows(), randn(NODES, WIDTH), edges(), []
    with halfgnn.pyg.accelerate():
        for _ in range(3):
            conv(x, e)
        getattr(conv, f"register_{step}_forward_hook")(lambda *args: calls.append(step))
        conv(x, e)
    assert calls == [step]


def test_flow_and_aggregations_of_other_kinds(monkeypatch):
    x, e = randn(NODES, WIDTH), edges()
    check(monkeypatch, Rows(flow="target_to_source"), x, e, count=0)
    check(monkeypatch, Rows(aggr="median"), x, e, count=0)
    check(monkeypatch, Rows(aggr=["sum", "max"]), x, e, count=0)


@pytest.mark.parametrize("change", [
    lambda x, e: (x, e, (NODES + 1, NODES)), lambda x, e: (x, e + NODES), lambda x, e: (x, e.float()),
    lambda x, e: (x[:, None], e[:1]), lambda x, e: ((x, x, x), e), lambda x, e: (x, e, (NODES,)),
    lambda x, e: ((x, x), e, (NODES, NODES + 1)),
])  # fmt: skip
def test_errors_are_those_of_pyg(change):
    conv, x, e = Rows(), randn(NODES, WIDTH), edges()
    args = change(x, e)
    with pytest.raises(Exception) as expected:
        conv(*args)
    with halfgnn.pyg.accelerate():
        for _ in range(3):
            conv(x, e)
        with pytest.raises(expected.type):
            conv(*args)


def test_arguments_that_propagate_does_not_take_are_refused():
    conv, x, e = Rows(), randn(NODES, WIDTH), edges()
    with halfgnn.pyg.accelerate():
        for _ in range(3):
            conv(x, e)
        with pytest.raises(TypeError, match="unexpected keyword argument 'y'"):
            conv.propagate(e, x=x, y=x)
        with pytest.raises(TypeError, match="edge_weight"):
            upstream.SGConv(WIDTH, 4).propagate(e, x=x)


def test_operands_may_be_modified_afterwards():
    """torch_geometric's product keeps both operands; halfgnn's must not see what is written later."""
    e, conv = edges(), Weighted()
    x, weight = randn(NODES, WIDTH).requires_grad_(), randn(EDGES, seed=2).requires_grad_()
    expected = results(conv, x, e, weight)
    with halfgnn.pyg.accelerate():
        for _ in range(3):
            rows, factors = x * 1, weight * 1
            out = conv(rows, e, factors)
            rows.mul_(5)
            factors.mul_(5)
        grad = torch.linspace(-1, 1, out.numel()).view_as(out)
        found = torch.autograd.grad(out, (x, weight), grad)
    for a, b in zip((out, *found), expected):
        torch.testing.assert_close(a, b)


def test_calls_are_counted(monkeypatch):
    conv, x, e = Rows(aggr="mean"), randn(NODES, WIDTH), edges()
    with halfgnn.pyg.accelerate():
        for _ in range(4):
            conv(x, e)
    assert halfgnn.pyg.stats()["routed"] == {"gspmm:copy_u_mean": 4}


def test_an_edge_index_that_is_written_to_has_another_graph(monkeypatch):
    conv, x, e = Rows(), randn(NODES, WIDTH), edges()
    with halfgnn.pyg.accelerate():
        for _ in range(3):
            conv(x, e)
        e[1] = e[1].flip(0)
        out = conv(x, e)
    torch.testing.assert_close(out, conv(x, e))


class Reserved(MessagePassing):
    """`index` is what propagate() passes to message(), not what it is given."""

    def forward(self, x, edge_index, index):
        return self.propagate(edge_index, x=x, index=index)

    def message(self, x_j, index):
        return index.view(-1, 1) * x_j


class Floats(Weighted):
    def message(self, h_j, norm):
        return norm.view(-1, 1.0) * h_j


class Selecting(Rows):
    def _index_select(self, src, index):
        return 2 * src.index_select(self.node_dim, index)


def test_steps_between_propagate_and_message_are_those_of_the_class(monkeypatch):
    check(monkeypatch, Selecting(), randn(NODES, WIDTH), edges(), count=0)


def test_steps_between_propagate_and_message_are_those_of_the_module(monkeypatch):
    conv = Rows()
    conv._index_select = lambda src, index: 3 * src.index_select(0, index)
    check(monkeypatch, conv, randn(NODES, WIDTH), edges(), count=0)


def test_a_weight_of_a_reserved_name_is_that_of_propagate(monkeypatch):
    check(monkeypatch, Reserved(), randn(NODES, WIDTH), edges(), randn(EDGES, seed=2), count=0)


def test_nodes_of_destinations_are_counted_where_pyg_counts_them(monkeypatch):
    """In dimension node_dim, whatever else their features have."""
    x = randn(NODES, WIDTH), randn(NODES, 25, 4, seed=2)
    check(monkeypatch, Rows(), x, edges(NODES, 25), count=0)


def test_hooks_of_all_modules_are_called(monkeypatch):
    conv, x, e = Rows(aggr="mean"), randn(NODES, WIDTH), edges()
    hook = torch.nn.modules.module.register_module_forward_hook(lambda module, inputs, out: 2 * out)
    try:
        check(monkeypatch, conv, x, e, count=0)
    finally:
        hook.remove()
    check(monkeypatch, conv, x, e)


def test_sizes_that_are_no_integers_are_refused_as_by_pyg():
    conv, x, e = Rows(), (randn(NODES, WIDTH), None), edges(NODES, 25)
    with halfgnn.pyg.accelerate():
        for _ in range(3):
            conv(x, e, (NODES, 25))
        with pytest.raises(TypeError):
            conv(x, e, (NODES, 25.0))


def test_views_by_numbers_that_are_no_integers_are_refused_as_by_pyg():
    conv, x, e, weight = Floats(), randn(NODES, WIDTH), edges(), randn(EDGES, seed=2)
    with halfgnn.pyg.accelerate():
        for _ in range(3):
            Weighted()(x, e, weight)
        with pytest.raises(TypeError, match="float"):
            conv(x, e, weight)
