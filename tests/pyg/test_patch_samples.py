"""Features (*, N, D) of several samples on one graph under halfgnn.pyg.patch(): the rows of copies of the graph."""

import pytest
import torch
import torch.utils.checkpoint
import torch_geometric
from torch import nn

import halfgnn
import halfgnn.pyg
from halfgnn.expressions.copies import copies_of
from halfgnn.graphs_by_tensor.store import topology_of
from tests import support
from tests.pyg.test_patch_modules import NUM_EDGES, NUM_NODES, WIDTH, assert_same, edges, randn, routed

pytestmark = pytest.mark.skipif(not support.supports("cpu", torch.float64), reason="needs float64")


class Interaction(torch_geometric.nn.MessagePassing):
    """As neural-lam's: a network of an edge's features and those of both ends, summed."""

    def __init__(self, aggr="sum"):
        super().__init__(aggr=aggr)
        self.net = nn.Sequential(nn.Linear(3 * WIDTH, 7), nn.SiLU(), nn.Linear(7, WIDTH), nn.LayerNorm(WIDTH)).double()

    def forward(self, x, e, edge_index):
        return self.propagate(edge_index, x=x, e=e)

    def message(self, x_i, x_j, e):
        return self.net(torch.cat([e, x_j, x_i], -1))


def run(module, x, e, edge_index):
    leaves = [x.clone().requires_grad_(), e.clone().requires_grad_()]
    out = module(*leaves, edge_index)
    grads = torch.autograd.grad(
        out, [*leaves, *module.parameters()], torch.linspace(-1, 1, out.numel()).to(out).view(out.shape)
    )
    return out.detach(), *grads


@pytest.mark.parametrize("aggr", ["sum", "mean", "max"])
@pytest.mark.parametrize("samples", [(3,), (2, 2), (1,)], ids=str)
def test_a_network_on_edges(samples, aggr):
    module, edge_index = Interaction(aggr), edges()
    data = randn(*samples, NUM_NODES, WIDTH, seed=1), randn(*samples, NUM_EDGES, WIDTH, seed=2), edge_index
    expected = run(module, *data)
    with halfgnn.pyg.accelerate():
        actual = run(module, *data)
    assert actual[0].is_contiguous() and actual[0].stride() == expected[0].stride()
    assert_same(actual, expected)
    assert {"linear", "u_add_v_add_e", f"gspmm:copy_e_{aggr}"} <= set(routed())
    (g,) = topology_of(edge_index).graphs.values()
    assert (
        g.cached("_copies", None, of=torch.Size(samples).numel()).num_edges == NUM_EDGES * torch.Size(samples).numel()
    )


def test_features_of_edges_that_are_those_of_all_samples():
    """Their layer is one for all, so they are not rows of copies."""
    module, data = Interaction(), (randn(3, NUM_NODES, WIDTH, seed=1), randn(1, NUM_EDGES, WIDTH, seed=2))

    class Shared(Interaction):
        def message(self, x_i, x_j, e):
            return self.net(torch.cat([e.expand(3, -1, -1), x_j, x_i], -1))

    shared = Shared()
    shared.load_state_dict(module.state_dict())
    expected = run(shared, *data, edges())
    with halfgnn.pyg.accelerate():
        assert_same(run(shared, *data, edges()), expected)


@pytest.mark.parametrize("strides", ["permuted", "empty"])
def test_rows_that_are_not_contiguous(strides):
    def message(x_j):
        return x_j.sin()[:0] if strides == "empty" else x_j.sin().transpose(0, -1).contiguous().transpose(0, -1)

    class Sines(torch_geometric.nn.MessagePassing):
        def forward(self, x, edge_index):
            return self.propagate(edge_index, x=x)

        def message(self, x_j):
            return message(x_j)

    x = randn(3, NUM_NODES, WIDTH, seed=1)
    expected = Sines()(x, edges())
    with halfgnn.pyg.accelerate():
        actual = Sines()(x, edges())
    assert actual.shape == expected.shape
    assert_same([actual], [expected])


@pytest.mark.parametrize("dtype", support.HALVES, ids=str)
def test_under_autocast(dtype):
    torch.manual_seed(0)
    module = Interaction()
    data = randn(3, NUM_NODES, WIDTH, seed=1), randn(3, NUM_EDGES, WIDTH, seed=2)
    truth = run(module, *data, edges())
    module.float()
    data = [x.float() for x in data]
    with torch.autocast("cpu", dtype):
        expected = run(module, *data, edges())
        with halfgnn.pyg.accelerate():
            actual = run(module, *data, edges())
    assert actual[0].dtype is expected[0].dtype
    for a, b, c in zip(actual, expected, truth, strict=True):
        assert float((a.double() - c).norm()) <= 1.5 * float((b.double() - c).norm()) + torch.finfo(dtype).eps * float(
            c.norm()
        )


@pytest.mark.parametrize("sort", [True, False])
@pytest.mark.parametrize("convert", [halfgnn.Graph.int, halfgnn.Graph.long], ids=["int32", "int64"])
def test_copies(sort, convert):
    src, dst = torch.tensor([0, 2, 1, 0]), torch.tensor([1, 1, 0, 0])
    if sort:
        src, dst = src[dst.argsort(stable=True)], dst.sort().values
    g = convert(halfgnn.Graph.from_edges(src, dst, num_src=3, num_dst=2))
    union = copies_of(g, 3)
    assert (union.num_src, union.num_dst, union.num_edges, union.idtype) == (9, 6, 12, g.idtype)
    expected = torch.cat([src + 3 * i for i in range(3)]), torch.cat([dst + 2 * i for i in range(3)])
    assert all(torch.equal(a.long(), b) for a, b in zip(union.edges(), expected))
    assert copies_of(g, 3) is union


ONE_SIDED = {
    "more nodes than edges": lambda x_i, x_j, w: nn.functional.linear(torch.cat([x_j, x_j], -1), w),
    "of a function": lambda x_i, x_j, w: nn.functional.linear(torch.cat([x_j, x_j.tanh()], -1), w),
}


@pytest.mark.parametrize("name", ONE_SIDED)
@pytest.mark.parametrize("num_edges", [3, NUM_EDGES])
def test_layers_of_one_side(name, num_edges):
    class Sided(torch_geometric.nn.MessagePassing):
        def forward(self, x, edge_index, w):
            return self.propagate(edge_index, x=x, w=w)

        def message(self, x_i, x_j, w):
            rows = ONE_SIDED[name](x_i, x_j, w)
            return rows.reshape(rows.shape)

    edge_index, w = edges()[:, :num_edges], randn(5, 2 * WIDTH, seed=3)
    x = randn(2, NUM_NODES, WIDTH, seed=1).requires_grad_()
    expected = Sided()(x, edge_index, w)
    with halfgnn.pyg.accelerate():
        actual = Sided()(x, edge_index, w)
    assert_same(
        [actual, *torch.autograd.grad(actual.sin().sum(), x)], [expected, *torch.autograd.grad(expected.sin().sum(), x)]
    )


@pytest.mark.parametrize("aggr", ["sum", "max"])
def test_results_are_no_views(aggr):
    """A program may modify them in place, whatever made them."""
    module, data = Interaction(aggr), (randn(3, NUM_NODES, WIDTH, seed=1), randn(3, NUM_EDGES, WIDTH, seed=2), edges())
    with halfgnn.pyg.accelerate(), torch.no_grad():
        out = module(*data)
    assert not out._is_view()
    out.mul_(torch.ones(WIDTH, dtype=torch.float64, requires_grad=True))
    x = data[0].requires_grad_()
    with halfgnn.pyg.accelerate():
        out = torch.utils.checkpoint.checkpoint(module, x, *data[1:], use_reentrant=True)
        out[0].mul_(2)
    out.sum().backward()
    assert x.grad is not None
