"""Batches of small graphs under halfgnn.pyg.accelerate(): their edge_index is new in every step, and nothing is kept of it."""

from __future__ import annotations

import pytest
import torch
import torch_geometric.nn as upstream
from torch_geometric import utils
from torch_geometric.nn.conv.gcn_conv import gcn_norm

import halfgnn.pyg
from halfgnn.graphs_by_tensor import store
from halfgnn.graphs_by_tensor.edge_index import graph_of
from halfgnn.pyg.drop_in import call, size, thresholds
from halfgnn.pyg.drop_in.adapters import known_messages
from tests import support

pytestmark = pytest.mark.skipif(support.SIMULATED or "cpu" not in support.DEVICES, reason="sizes are those of a CPU")
NODES, EDGES, WIDTH = 800, 2_000, 64  # more values than "few", and fewer than are worth a Graph
SIZES = {name: getattr(thresholds, name) for name in ("LIMITS", *support.ROUTED_FROM)}  # of users, not of tests
FIRST_USES = {"first uses of an edge_index"}


@pytest.fixture(autouse=True)
def _users_sizes(monkeypatch, _routes_small_calls):
    for name, value in SIZES.items():
        monkeypatch.setattr(thresholds, name, value)


def edges(high: int = NODES):
    return torch.randint(0, high, (2, EDGES), generator=torch.Generator().manual_seed(1))


def features(dtype=torch.float32):
    torch.manual_seed(2)
    return torch.randn(NODES, WIDTH).to(dtype).requires_grad_()


def reasons(name="propagate"):
    return halfgnn.pyg.stats()["fell_back"].get(name, {}).keys()


def assert_counted(name):
    """A known message is one operator, if that has a gradient."""
    if name is not None:
        assert reasons() == set() and halfgnn.pyg.stats()["routed"] == {name: 1}
    else:
        assert reasons() == FIRST_USES and halfgnn.pyg.stats()["routed"] == {"coo_sum:copy_e_sum": 1}


class OfEdges(upstream.MessagePassing):
    def forward(self, x, edge_index):
        return self.propagate(edge_index, x=x)

    def message(self, x_i, x_j):
        return x_j - x_i


class OwnRows(OfEdges):
    def _index_select_safe(self, src, index):
        return 2 * super()._index_select_safe(src, index)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("make", [OfEdges, OwnRows, upstream.SimpleConv, lambda: upstream.SimpleConv("mean")])
def test_results_are_those_of_pyg(make, dtype):
    conv, x = make(), features(dtype)

    def results():
        out = conv(x, edges())
        return out, *torch.autograd.grad(out.pow(2).sum(), x)

    expected = results()
    with halfgnn.pyg.accelerate():
        found = results()
    assert_counted(f"coo_sum:copy_u_{conv.aggr}" if isinstance(conv, upstream.SimpleConv) else None)
    for a, b in zip(found, expected, strict=True):
        assert torch.equal(a, b)


def test_gradients_in_half_precision_are_summed_in_fp32():
    """PyTorch's own gradient of index_select rounds at every step on some processors."""
    x = torch.ones(1, WIDTH, dtype=torch.bfloat16, requires_grad=True)
    index = torch.zeros(2, 4_000, dtype=torch.int64)
    with halfgnn.pyg.accelerate():
        upstream.SimpleConv()(x, index).sum().backward()
    assert reasons() == FIRST_USES
    assert halfgnn.pyg.stats()["routed"].get("fp32:index_select") == 1
    assert x.grad.unique().tolist() == [4_000]


def same_under_the_drop_in(results, num_near=0):
    """The drop-in's results, which are those of torch_geometric to the last bit, except the last `num_near`."""
    expected = results()
    with halfgnn.pyg.accelerate():
        found = results()
    num_equal = len(expected) - num_near
    torch.testing.assert_close(found[num_equal:], expected[num_equal:])
    for a, b in zip(found[:num_equal], expected[:num_equal], strict=True):
        assert (a is None) == (b is None)
        assert a is None or (a.dtype is b.dtype and a.stride() == b.stride() and torch.equal(a, b))
    return found


@pytest.mark.parametrize("aggr", ["sum", "mean"])
@pytest.mark.parametrize("is_learned", [False, True])
def test_known_messages_are_summed_at_once(monkeypatch, aggr, is_learned):
    conv, x, made = upstream.GraphConv(WIDTH, WIDTH, aggr=aggr), features(), []
    weight = torch.rand(EDGES, generator=torch.Generator().manual_seed(3)).requires_grad_(is_learned)
    original = known_messages._added_up
    monkeypatch.setattr(known_messages, "_added_up", lambda *args: made.append(1) or original(*args))
    leaves = [x, *([weight] if is_learned else [])]

    def results():
        out = conv(x, edges(), weight)
        return out, *torch.autograd.grad(out.pow(2).sum(), leaves)

    same_under_the_drop_in(results, num_near=is_learned)
    assert made == [1]
    assert_counted(f"coo_sum:u_mul_e_{aggr}")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("aggr", ["sum", "mean"])
@pytest.mark.parametrize("edge_dim", [None, 5])
def test_messages_of_gine_are_summed_at_once(edge_dim, aggr, dtype):
    torch.manual_seed(4)
    conv = upstream.GINEConv(torch.nn.Linear(WIDTH, 3), edge_dim=edge_dim, aggr=aggr).to(dtype)
    x, data = features(dtype), torch.randn(EDGES, edge_dim or WIDTH, dtype=dtype).requires_grad_()

    def results():
        out = conv(2 * x, edges(), data)
        return out, *torch.autograd.grad(out.pow(2).sum(), (x, data, *conv.parameters()))

    same_under_the_drop_in(results)
    assert_counted(f"coo_sum:u_relu_add_e_{aggr}")


def test_a_call_of_gine_is_noted():
    """Other wrappers ask which edge_index the last call had."""
    index = edges()
    with halfgnn.pyg.accelerate():
        gine()(features(), index, torch.ones(EDGES, WIDTH))
        assert call.current_edges() is index


def gine(aggr="sum"):
    return upstream.GINEConv(torch.nn.Identity(), aggr=aggr)


def with_layer(layer):
    conv = gine()
    conv.lin = layer
    return conv


@pytest.mark.parametrize(
    "make, width",
    [
        (lambda: gine(aggr="max"), WIDTH),
        (lambda: with_layer(torch.nn.Sequential(torch.nn.Linear(3, WIDTH))), 3),
        (lambda: with_layer(torch.nn.Linear(3, 1)), 3),  # whose column is broadcast
    ],
)
def test_other_messages_of_gine_are_those_of_pyg(make, width):
    torch.manual_seed(4)
    conv, x, data = make(), features(), torch.randn(EDGES, width)

    def results():
        out = conv(x, edges(), data)
        return out, *torch.autograd.grad(out.pow(2).sum(), x)

    same_under_the_drop_in(results, num_near=2)
    assert not any(name.startswith("coo_sum:u") for name in halfgnn.pyg.stats()["routed"])


@pytest.mark.parametrize(
    "make, width, wrong",
    [
        (gine, WIDTH - 1, 0),
        (gine, WIDTH, NODES),
        (gine, WIDTH, -1),
        (lambda: with_layer(torch.nn.Linear(3, WIDTH)), 4, 0),
        (lambda: with_layer(torch.nn.Linear(3, WIDTH).double()), 3, 0),
    ],
)
def test_errors_of_gine_are_those_of_pyg(make, width, wrong):
    conv, x, index = make(), features(), edges()
    index[0, 5] = wrong

    def error():
        with pytest.raises((ValueError, IndexError, RuntimeError)) as caught:
            conv(x, index, torch.ones(EDGES, width))
        return caught.type, str(caught.value)

    expected = error()
    with halfgnn.pyg.accelerate():
        assert error() == expected


def hooked(conv):
    conv.lin.register_forward_hook(lambda module, inputs, out: out[:, :1])
    return conv


@pytest.mark.parametrize("change", [lambda conv: conv, hooked], ids=["lazy", "hooked"])
def test_layers_of_gine_that_are_called_by_pyg(change):
    def result():
        torch.manual_seed(4)
        conv = upstream.GINEConv(torch.nn.Linear(WIDTH, 3), edge_dim=-1 if change is not hooked else 5)
        return change(conv)(features(), edges(), torch.ones(EDGES, 5))

    expected = result()
    with halfgnn.pyg.accelerate():
        assert torch.equal(result(), expected)
    assert halfgnn.pyg.stats()["routed"] == {"coo_sum:copy_e_sum": 1}


@pytest.mark.parametrize("by_data", [False, True])
@pytest.mark.parametrize("name", ["x", "data"])
def test_what_gine_reads_may_be_modified_in_place(name, by_data):
    def results():
        conv = gine()
        leaves = {"x": features(), "data": torch.linspace(-1, 1, EDGES * WIDTH).view(EDGES, WIDTH).requires_grad_()}
        out = conv.propagate(edges(), x=(leaves["x"], None), edge_attr=leaves["data"], size=(NODES, NODES))
        with torch.no_grad():
            (leaves[name].data if by_data else leaves[name]).mul_(-2)
        return torch.autograd.grad(out.pow(2).sum(), leaves.values())

    same_under_the_drop_in(results)
    assert_counted("coo_sum:u_relu_add_e_sum")


def test_gine_under_autocast_is_that_of_pyg():
    torch.manual_seed(4)
    conv, x, data = upstream.GINEConv(torch.nn.Linear(WIDTH, 3), edge_dim=5), features(), torch.randn(EDGES, 5)

    def results():
        with torch.autocast("cpu", torch.bfloat16):
            out = conv(x, edges(), data)
        return out, *torch.autograd.grad(out.float().pow(2).sum(), x)

    same_under_the_drop_in(results)


def test_a_known_message_may_be_differentiated_twice_or_under_functorch():
    conv, x, index = upstream.SimpleConv(), features(), edges()
    weight = torch.rand(EDGES, generator=torch.Generator().manual_seed(3)).requires_grad_()

    def results():
        (slope,) = torch.autograd.grad(conv(x, index, weight).pow(2).sum(), x, create_graph=True)
        of_functorch = torch.func.grad(lambda x: conv(x, index, weight).pow(2).sum())(x.detach())
        return of_functorch, *torch.autograd.grad(slope.pow(2).sum(), (x, weight))

    same_under_the_drop_in(results, num_near=3)


def test_what_a_known_message_saves_may_be_modified_in_place():
    conv, x, index = upstream.SimpleConv(), features(), edges()

    def results():
        rows = 2 * x
        weight = torch.rand(EDGES, generator=torch.Generator().manual_seed(3)).requires_grad_()
        out = conv(rows, index, weight)
        with torch.no_grad():
            rows += 1
        return torch.autograd.grad(out.pow(2).sum(), (x, weight))

    same_under_the_drop_in(results, num_near=2)


@pytest.mark.parametrize("wrong", [-1, NODES])
def test_errors_of_ids_of_known_messages_are_those_of_pyg(wrong):
    conv, x, index = upstream.SimpleConv(), features(), edges()
    index[0, 3] = wrong

    def error():
        with pytest.raises(IndexError) as raised:
            conv(x, index)
        return str(raised.value)

    expected = error()
    with halfgnn.pyg.accelerate():
        assert error() == expected


def test_the_first_rows_of_a_call_answer_for_the_others():
    """All their values are counted."""
    conv, x, index = OfEdges(), features(), edges()
    with halfgnn.pyg.accelerate():
        conv(x, index)
    assert halfgnn.pyg.stats()["fell_back"]["propagate"] == {"first uses of an edge_index": 2}
    assert size.seen_by(index) == 2 * EDGES * WIDTH


@pytest.mark.parametrize("flow", ["source_to_target", "target_to_source"])
@pytest.mark.parametrize("add_self_loops", [True, False])
@pytest.mark.parametrize("has_loops", [True, False])
@pytest.mark.parametrize("weights", [None, "constant", "learned"])
def test_gcn_norm_is_that_of_pyg(weights, has_loops, add_self_loops, flow):
    index = edges()
    index = index if has_loops else index[:, index[0] != index[1]]
    weight = None if weights is None else torch.linspace(0, 1, index.shape[1]).requires_grad_(weights == "learned")

    def results():
        found = gcn_norm(index.clone(), weight, NODES, weights is not None, add_self_loops, flow, torch.float32)
        loss = found[1].pow(2).sum()
        return *found, torch.autograd.grad(loss, weight)[0].nan_to_num() if weights == "learned" else None

    same_under_the_drop_in(results)


@pytest.mark.parametrize("row, wrong", [(0, NODES), (1, NODES), (1, -1), (0, 2**40), (1, 2**40)])
def test_errors_of_gcn_norm_are_those_of_pyg(row, wrong):
    index = edges()
    index[row, 5] = wrong

    def error():
        with pytest.raises((IndexError, RuntimeError)) as caught:
            gcn_norm(index.clone(), None, NODES)
        return str(caught.value)

    expected = error()
    with halfgnn.pyg.accelerate():
        assert error() == expected


@pytest.mark.parametrize("has_loops", [True, False])
@pytest.mark.parametrize("name", ["remove_self_loops", "add_remaining_self_loops"])
def test_self_loops_are_those_of_pyg(name, has_loops):
    index = edges()
    index = index if has_loops else index[:, index[0] != index[1]]
    data = torch.randn(index.shape[1], 3, generator=torch.Generator().manual_seed(3)).requires_grad_()

    def results():
        found = getattr(utils, name)(index, edge_attr=data)
        alone = getattr(utils, name)(index)
        assert alone[1] is None and alone[0] is not index
        return *found, alone[0], *torch.autograd.grad(found[1].pow(2).sum(), data)

    same_under_the_drop_in(results)


@pytest.mark.parametrize("kind, is_routed", [("GATConv", True), ("GATv2Conv", True), ("TransformerConv", False)])
def test_attention_with_columns_pays_at_once_but_for_dot_attention(kind, is_routed):
    torch.manual_seed(4)
    conv, x = getattr(upstream, kind)(WIDTH, WIDTH // 4, heads=4, edge_dim=3), features()
    data = torch.randn(EDGES, 3)
    expected = conv(x, edges(), data)
    with halfgnn.pyg.accelerate():
        found = conv(x, edges(), data)
    assert (f"fused:{kind}" in halfgnn.pyg.stats()["routed"]) == is_routed
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_sums_of_wide_rows_by_a_new_edge_index_are_pygs():
    """An index that is no row of an edge_index may be sorted: a sorted one pays."""
    index, rows = edges(), torch.ones(EDGES, 512, requires_grad=True)
    with halfgnn.pyg.accelerate():
        upstream.SimpleConv()._check_input(index, None)
        utils.scatter(rows, index[1], 0, NODES)
        assert reasons("gspmm:copy_e_sum") == {"first use of an index"}
        utils.scatter(rows, index[1].sort().values, 0, NODES)
    assert halfgnn.pyg.stats()["routed"] == {"coo_sum:copy_e_sum": 1, "gspmm:copy_e_sum": 1}


@pytest.mark.parametrize("wrong", [NODES, -1])
def test_errors_of_ids_are_those_of_pyg(wrong):
    conv, x, index = upstream.SimpleConv(), features(), edges()
    index[0, 5] = wrong

    def error():
        with pytest.raises(IndexError) as caught:
            conv(x, index.clone())
        return str(caught.value)

    expected = error()
    with halfgnn.pyg.accelerate():
        assert error() == expected


@pytest.mark.parametrize("conv", [OfEdges(), upstream.GCNConv(WIDTH, WIDTH)], ids=["messages", "GCNConv"])
def test_an_edge_index_that_is_used_on_is_routed(monkeypatch, conv):
    monkeypatch.setattr(thresholds, "REUSE", 1)
    index, x = edges(), features()
    with halfgnn.pyg.accelerate():
        for _ in range(12):
            conv(x, index)
    assert "first uses of an edge_index" in reasons() and halfgnn.pyg.stats()["routed"]
    assert store.has_graph(index) or len(store.known.get(index).derived) > 0


def test_values_are_counted_once():
    """What decides is the sum over all uses, those of self-loops included."""
    index = edges()
    assert not size.may_share(index)
    assert size.seen_by(index) == index.numel() * thresholds.USUAL_WIDTH // 2
    assert size.is_new_and_small(index, 1_000, True, counts=False)
    assert size.seen_by(index) == index.numel() * thresholds.USUAL_WIDTH // 2 + 1_000
    limit = thresholds.LIMITS["message"].new
    assert not size.is_new_and_small(index, limit[1], True, counts=False)  # the caller counts what is not small
    assert size.seen_by(index) == index.numel() * thresholds.USUAL_WIDTH // 2 + 1_000
    assert size.is_new_and_small(index, limit[1], False, counts=False)  # without a gradient more is small
    assert not size.is_new_and_small(index, limit[1] // thresholds.EXTREME + 1, True, is_extreme=True)
    graph_of(index, NODES, NODES)
    assert size.may_share(index)


@pytest.mark.parametrize("reuse, is_small", [(8, True), (1, False)])
def test_in_a_checkpoint_what_was_seen_does_not_decide(monkeypatch, reuse, is_small):
    index = edges()
    monkeypatch.setattr(thresholds, "REUSE", reuse)
    size.count_values(index, thresholds.LIMITS["message"].new[1])
    assert size.is_new_and_small(index, 100, True, counts=False) is is_small
    seen = []

    def run(x):
        seen.append(size.is_new_and_small(index, 100, True, counts=False))
        return x.sin()

    with halfgnn.pyg.accelerate():
        torch.utils.checkpoint.checkpoint(run, features(), use_reentrant=False).sum().backward()
    assert seen == [False, False]
