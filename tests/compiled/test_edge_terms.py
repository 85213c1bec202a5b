"""Attention with projected rows of edges, dot products and self-loops under torch.compile, in plain PyTorch programs."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import halfgnn.compiled
from halfgnn.compiled import lowering
from halfgnn.expressions import attention
from tests import support
from tests.support_compiled import compiled, count_graphs

pytestmark = pytest.mark.skipif(support.SIMULATED, reason="about FX graphs")

N, E, H, D, C = 40, 600, 4, 8, 5


@pytest.fixture
def called(monkeypatch):
    """Names of the terms of edges that attentions are called with, and "folded" for each projection that is folded."""
    names = []
    for name in ("dot_attention", "gatv2_attention"):
        function = getattr(attention.ops, name)

        def spied(*args, function=function, **options):
            names.extend(key for key, value in options.items() if value is not None)
            return function(*args, **options)

        monkeypatch.setattr(attention.ops, name, spied)
    project = lowering.project
    monkeypatch.setattr(lowering, "project", lambda *args: (names.append("folded"), project(*args))[1])
    return names


def softmax(logits, dst):
    index = dst[:, None].expand_as(logits)
    most = logits.new_zeros(N, H).scatter_reduce(0, index, logits.detach(), "amax", include_self=False)
    out = (logits - most.index_select(0, dst)).exp()
    return out / (out.new_zeros(N, H).scatter_add(0, index, out) + 1e-16).index_select(0, dst)


def summed(rows, dst):
    return rows.new_zeros(N, H, D).index_add(0, dst, rows)


def transformer(x, ids, columns, weight, vectors):
    e = F.linear(columns, weight).view(-1, H, D)
    key, value = x[ids[0]] + e, 2 * x[ids[0]] + e
    weights = softmax((x[ids[1]] * key).sum(-1) / D**0.5, ids[1])
    return summed(value * weights.unsqueeze(-1), ids[1])


def keys_alone(x, ids, columns, weight, vectors):
    key = x[ids[0]] + F.linear(columns, weight).view(-1, H, D)
    weights = softmax((x[ids[1]] * key).sum(-1), ids[1])
    return summed(x[ids[0]] * weights.unsqueeze(-1), ids[1])


def gatv2(x, ids, columns, weight, vectors):
    rows = x[ids[0]]
    z = F.leaky_relu(x[ids[1]] + rows + F.linear(columns, weight).view(-1, H, D), 0.2)
    return summed(rows * softmax((z * vectors).sum(-1), ids[1]).unsqueeze(-1), ids[1])


def gat(x, ids, columns, weight, vectors):
    a = (x * vectors).sum(-1)
    of_edges = (F.linear(columns, weight).view(-1, H, D) * vectors).sum(-1)
    weights = softmax(F.leaky_relu(a[ids[0]] + a[ids[1]] + of_edges, 0.2), ids[1])
    return summed(x[ids[0]] * weights.unsqueeze(-1), ids[1])


def read_twice(x, ids, columns, weight, vectors):
    e = F.linear(columns, weight).view(-1, H, D)
    of_edges = (e * vectors).sum(-1)
    return summed(x[ids[0]] * softmax(of_edges, ids[1]).unsqueeze(-1), ids[1]) + e[:N]


def detached(x, ids, columns, weight, vectors):
    key = x[ids[0]] + F.linear(columns, weight).view(-1, H, D).detach()
    weights = softmax((x[ids[1]] * key).sum(-1), ids[1])
    return summed(x[ids[0]] * weights.unsqueeze(-1), ids[1]) + columns.sum() * weight.sum()


def modified(x, ids, columns, weight, vectors):
    e = F.linear(columns, weight).view(-1, H, D)
    e += 1
    of_edges = (e * vectors).sum(-1)
    e = F.linear(columns, weight).view(-1, H, D)
    e.mul_(2)
    weights = softmax((x[ids[1]] * (x[ids[0]] + e)).sum(-1) + of_edges, ids[1])
    return summed(x[ids[0]] * weights.unsqueeze(-1), ids[1])


def transposed(x, ids, columns, weight, vectors):
    """The products of each edge with vectors of its own, and sums over heads, are no layers of the columns."""
    e = F.linear(columns, weight).view(-1, H, D)
    of_edges = (e * x[ids[0]]).sum(-1) + (e * vectors).sum(1).sum(-1, keepdim=True)
    return summed(x[ids[0]] * softmax(of_edges, ids[1]).unsqueeze(-1), ids[1])


def compare(function, *tensors, ids):
    results = []
    for run in (function, compiled(function)):
        leaves = [torch.nn.Parameter(x.clone()) for x in tensors]  # whose sizes are known, unlike those of other inputs
        out = run(leaves[0], ids, *leaves[1:])
        results.append(
            [out, *torch.autograd.grad(out.square().sum(), leaves, allow_unused=True, materialize_grads=True)]
        )
    for actual, expected in zip(results[1], results[0]):
        torch.testing.assert_close(actual, expected, rtol=1e-8, atol=1e-8)


def operands():
    shapes = (N, H, D), (E, C), (H * D, C), (1, H, D)
    return [torch.randn(shape, dtype=torch.float64) for shape in shapes]


WHOLE = {
    transformer: ["edge_feat", "edge_key_weight", "edge_value_weight"],
    keys_alone: ["edge_feat", "edge_key_weight"],
    gatv2: ["edge_feat", "edge_weight"],
    gat: ["folded"],
    read_twice: [],
    detached: ["edge_key"],
    modified: ["edge_bias", "edge_key"],
    transposed: [],
}


@pytest.mark.parametrize("program", WHOLE)
def test_projected_rows_of_edges(program, called):
    compare(program, *operands(), ids=torch.randint(N, (2, E)))
    assert sorted(set(called)) == WHOLE[program]


def without_gradients(x, ids, columns, weight, vectors):
    """Projected where nothing has a gradient, and used where something has."""
    with torch.no_grad():
        e = F.linear(columns, weight).view(-1, H, D)
        of_edges = (e * vectors).sum(-1)
    key = x[ids[0]] + e
    weights = softmax((x[ids[1]] * key).sum(-1) + of_edges, ids[1])
    return summed(x[ids[0]] * weights.unsqueeze(-1), ids[1]) + columns.sum() * weight.sum() * vectors.sum()


def test_rows_that_were_projected_without_gradients(called):
    compare(without_gradients, *operands(), ids=torch.randint(N, (2, E)))
    assert "edge_key" in called and "edge_feat" not in called


@pytest.mark.parametrize("program", [transformer, gatv2, gat])
def test_without_gradients(program, called):
    x, columns, *parameters = operands()
    ids = torch.randint(N, (2, E))
    parameters = [torch.nn.Parameter(y) for y in parameters]
    with torch.no_grad():
        torch.testing.assert_close(
            compiled(program)(x, ids, columns, *parameters), program(x, ids, columns, *parameters)
        )
    assert sorted(set(called)) == WHOLE[program]


def test_wide_edges_are_projected(called):
    x, _, _, vectors = operands()
    wide = torch.randn(E, H * D, dtype=torch.float64), torch.randn(H * D, H * D, dtype=torch.float64)
    compare(transformer, x, *wide, vectors, ids=torch.randint(N, (2, E)))
    assert sorted(set(called)) == ["edge_key", "edge_value"]


def test_logits_of_destinations_with_a_layer_of_their_own_are_folded(called):
    """As of a GATConv from one node type to another. The layer is as wide as its rows."""

    def function(x, ids, z, weight, vectors):
        of_destinations = (F.linear(z, weight).view(-1, H, D) * vectors).sum(-1)
        logits = F.leaky_relu((x * vectors).sum(-1)[ids[0]] + of_destinations[ids[1]], 0.2)
        return summed(x[ids[0]] * softmax(logits, ids[1]).unsqueeze(-1), ids[1])

    x, _, _, vectors = operands()
    layer = torch.randn(N, H * D, dtype=torch.float64), torch.randn(H * D, H * D, dtype=torch.float64)
    compare(function, x, *layer, vectors, ids=torch.randint(N, (2, E)))
    assert set(called) == {"folded"}


def test_a_dot_product_that_is_read_is_an_operator():
    def function(x, ids):
        scores = (x[ids[0]] * x[ids[1]]).sum(-1)
        return scores.sigmoid().log()

    compare(function, operands()[0], ids=torch.randint(N, (2, E)))
    assert any("dot" in name for name in halfgnn.compiled.stats())


def test_a_softmax_of_dot_products_reads_them_once():
    def function(x, ids):
        scores = 3 * (x[ids[0]] * x[ids[1]]).sum(-1)
        return summed(softmax(scores, ids[1])[:, :, None].expand(-1, -1, D), ids[1])

    compare(function, operands()[0], ids=torch.randint(N, (2, E)))
    dots = [count for name, count in halfgnn.compiled.stats().items() if "dot" in name]
    assert dots == [1]


def test_edges_with_self_loops_are_sorted_once_whatever_reads_them(monkeypatch):
    """Code of Inductor asks tensors for memory that it may write to, after which nothing is known of them."""
    nn = pytest.importorskip("torch_geometric.nn")
    utils = pytest.importorskip("torch_geometric.utils")
    assert nn is not None
    import halfgnn.pyg

    library = torch.library.Library("halfgnn_test", "FRAGMENT")
    library.define("read(Tensor ids) -> Tensor")

    def read(ids):
        ids.data_ptr()
        return ids.double()

    library.impl("read", read, "CPU")
    torch.library.register_fake(
        "halfgnn_test::read", lambda ids: ids.new_empty(ids.shape, dtype=torch.float64), lib=library
    )

    def function(x, ids):
        ids, _ = utils.add_self_loops(ids, num_nodes=N)
        weights = torch.ops.halfgnn_test.read(ids)[0]
        return x.new_zeros(N, H, D).index_add(0, ids[1], x[ids[0]] * weights.view(-1, 1, 1))

    x, ids = operands()[0], torch.randint(N, (2, E))
    expected = function(x, ids)
    with halfgnn.pyg.accelerate():
        run = compiled(function)
        torch.testing.assert_close(run(x, ids), expected)
        made = count_graphs(monkeypatch)
        torch.testing.assert_close(run(x, ids), expected)
        assert not made
    library._destroy()
