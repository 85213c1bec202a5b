"""nn.EdgeNetwork beside the torch.nn.Sequential of its layers on rows of all edges; the blocks of docs/edge_networks.md."""

from __future__ import annotations

import socket

import pytest
import torch
from torch import nn

import halfgnn.nn
from halfgnn import ops, reference
from tests import support, support_processes
from tests.support import HALVES, randn
from tests.support_nn import assert_near

WIDTH = 12


def mlp(inputs, outputs=WIDTH, activation=nn.SiLU, norm=True, hidden=16):
    layers = [
        nn.Linear(inputs, hidden),
        activation(),
        nn.Linear(hidden, hidden),
        activation(),
        nn.Linear(hidden, outputs),
    ]
    return nn.Sequential(*layers, *([nn.LayerNorm(outputs)] if norm else []))


def plain(g, net, order, feat, edge_feat, reduce="sum", residual=False):
    """The same by layers on rows of all edges."""
    src, dst = (x.long() for x in g.edges())
    ends = feat if isinstance(feat, tuple) else (feat, feat)
    rows = {"src": lambda: ends[0][src], "dst": lambda: ends[1][dst], "edge": lambda: edge_feat}
    message = net(torch.cat([rows[part]() for part in order], 1))
    out = None if reduce == "none" else reference.gspmm(g, "copy_rhs", reduce, None, message)
    return out, message + edge_feat if residual else message


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES], ids=str)
@pytest.mark.parametrize("order", [("src", "dst", "edge"), ("edge", "src", "dst"), ("dst", "edge")], ids=str)
@pytest.mark.parametrize("reduce", ["sum", "mean", "max", "none"])
def test_is_the_sequential(order, reduce, dtype, device):
    g = support.make_graph("bipartite", torch.int64)
    torch.manual_seed(1)
    net = mlp(WIDTH * len(order))
    feat = randn(g.num_src, WIDTH, dtype=dtype), randn(g.num_dst, WIDTH, dtype=dtype)
    inputs = *feat, randn(g.num_edges, WIDTH, dtype=dtype)
    options = dict(order=order, reduce=reduce, return_edges=True, residual=True)

    def ours(kind, where):
        module = halfgnn.nn.EdgeNetwork(*mlp(WIDTH * len(order)), **options)
        module.load_state_dict(net.state_dict())
        module.to(where, kind)
        on = g.to(where)
        call = lambda u, v, e: (None, module(on, (u, v), e)) if reduce == "none" else module(on, (u, v), e)  # noqa: E731
        used = [x.to(where, kind) for x in inputs]
        return [x.cpu() for x in with_gradients_of_used(call, module, used, order)]

    def formula(kind):
        copy = mlp(WIDTH * len(order)).to(kind)
        copy.load_state_dict(net.state_dict())
        call = lambda u, v, e: plain(g, copy, order, (u, v), e, reduce, True)  # noqa: E731
        return with_gradients_of_used(call, copy, [x.to(kind) for x in inputs], order)

    actual = ours(dtype, device)
    if dtype == torch.float32:
        for a, b in zip(actual, formula(torch.float64)):
            torch.testing.assert_close(a.double(), b, rtol=1e-4, atol=1e-4 * max(1, b.abs().max().item()))
    else:
        assert_near(actual, formula(torch.float64), formula(dtype), dtype, most=None)


def with_gradients_of_used(call, net, inputs, order):
    """Of the inputs that the order names."""
    names = ("src", "dst", "edge")
    leaves = [x.detach().requires_grad_(name in order or name == "edge") for x, name in zip(inputs, names)]
    results = [x for x in call(*leaves) if x is not None]
    torch.manual_seed(4)
    upstream = [torch.randn(x.shape).to(x) for x in results]
    wanted = [x for x in leaves if x.requires_grad]
    return [*(x.detach() for x in results), *torch.autograd.grad(results, [*wanted, *net.parameters()], upstream)]


def test_state_dict_and_layers():
    net = mlp(3 * WIDTH)
    module = halfgnn.nn.EdgeNetwork(*net, reduce="mean")
    assert list(module.state_dict()) == list(net.state_dict())
    assert "order=('src', 'dst', 'edge'), reduce='mean'" in repr(module)
    assert type(module[:2]) is nn.Sequential and module[0] is net[0]


@pytest.mark.parametrize(
    "layers,message",
    [
        ([nn.Linear(3, 3), nn.Linear(3, 3)], "an activation between each two"),
        ([nn.Linear(3, 3), nn.Sigmoid(), nn.Linear(3, 3)], "Sigmoid is no activation"),
        ([nn.Linear(3, 3), nn.GELU("tanh"), nn.Linear(3, 3)], "GELU is no activation"),
        ([nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3), nn.SiLU(), nn.Linear(3, 3)], "two different activations"),
        ([nn.Linear(3, 3), nn.ReLU(), nn.Bilinear(3, 3, 3)], "Bilinear is no linear layer"),
        ([nn.Linear(3, 3), nn.LayerNorm(3, elementwise_affine=False)], "not one of rows with a weight"),
        ([], "expected linear layers"),
    ],
)
def test_other_layers_are_refused(layers, message):
    with pytest.raises(TypeError, match=message):
        halfgnn.nn.EdgeNetwork(*layers)


def test_errors():
    g = support.make_graph("bipartite", torch.int64)
    module = halfgnn.nn.EdgeNetwork(nn.Linear(2 * WIDTH, 4), order=("src", "dst"))
    with pytest.raises(ValueError, match="src, dst have 12, 3 features; expected 24 in all"):
        module(g, (randn(g.num_src, WIDTH, dtype=torch.float32), randn(g.num_dst, 3, dtype=torch.float32)))
    with pytest.raises(ValueError, match="feat of dst has shape"):
        module(g, randn(g.num_src, WIDTH, dtype=torch.float32))
    with pytest.raises(ValueError, match=r"order is \('src', 'src'\)"):
        halfgnn.nn.EdgeNetwork(nn.Linear(2, 2), order=("src", "src"))
    module[0].register_forward_hook(lambda *_: None)
    with pytest.raises(TypeError, match="a layer has hooks"):
        module(g, (randn(g.num_src, WIDTH, dtype=torch.float32), randn(g.num_dst, WIDTH, dtype=torch.float32)))


def test_residual_under_autocast_keeps_the_edges_type():
    """As in edges + mlp(...) of a plain model."""
    g = support.make_graph("skewed", torch.int64)
    net, x = mlp(3 * WIDTH), randn(g.num_src, WIDTH, dtype=torch.float32)
    feat, edges = (
        (x, randn(g.num_dst, WIDTH, dtype=torch.float32)),
        1000 * randn(g.num_edges, WIDTH, dtype=torch.float32),
    )
    for reduce in ("sum", "none"):
        module = halfgnn.nn.EdgeNetwork(*net, reduce=reduce, return_edges=True, residual=True)
        with torch.autocast("cpu", torch.bfloat16):
            results = module(g, feat, edges)
            message = plain(g, net, ("src", "dst", "edge"), feat, edges)[1]
        new = results if reduce == "none" else results[1]
        assert new.dtype == torch.float32
        assert (new - edges - message.float()).abs().max() < 0.2 and not torch.equal(new, edges)


def test_profilers_may_look_on():
    """Hooks of all modules are not those of a layer."""
    g = support.make_graph("skewed", torch.int64)
    module = halfgnn.nn.EdgeNetwork(nn.Linear(2 * WIDTH, 4), order=("src", "dst"))
    handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        module(g, (randn(g.num_src, WIDTH, dtype=torch.float32), randn(g.num_dst, WIDTH, dtype=torch.float32)))
    finally:
        handle.remove()


WRONG = [
    (lambda g, m, x: m(g, (x, x, x)), ValueError, "feat is a tuple of 3"),
    (lambda g, m, x: m(g, x, x), ValueError, "edge_feat is given, and order is"),
    (lambda g, m, x: m(g, x.half()), TypeError, "feat of src has dtype torch.float16"),
    (lambda g, m, x: m(g, "x"), TypeError, "feat of src is a str"),
    (lambda g, m, x: halfgnn.nn.EdgeNetwork(*m, reduce="none"), ValueError, "return_edges is False"),
    (lambda g, m, x: halfgnn.nn.EdgeNetwork(*m, residual=True), ValueError, "return_edges is False"),
    (lambda g, m, x: halfgnn.nn.EdgeNetwork(*m, order=None), TypeError, "order is None; expected some of"),
    (
        lambda g, m, x: halfgnn.nn.EdgeNetwork(nn.Linear(3, 4), nn.ReLU(), nn.Linear(5, 2)),
        TypeError,
        "linear layer 1 takes 5",
    ),
    (lambda g, m, x: halfgnn.nn.EdgeNetwork(nn.LazyLinear(4)), TypeError, "has no weight yet"),
]


@pytest.mark.parametrize("call,error,message", WRONG)
def test_wrong_arguments(call, error, message):
    g = support.hub_graph(num_edges=100, num_src=30)
    g = halfgnn.Graph.from_edges(*(x % 9 for x in g.edges()), num_src=9, num_dst=9)
    module = halfgnn.nn.EdgeNetwork(nn.Linear(2 * WIDTH, 4), order=("src", "dst"))
    with pytest.raises(error, match=message):
        call(g, module, randn(9, WIDTH, dtype=torch.float32))


# ---- the blocks of docs/edge_networks.md -----------------------------------------------------------------------------------------


def close(a, b):
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_mesh_edge_block():
    """PhysicsNeMo's MeshEdgeBlock, MeshGraphNet: efeat + mlp(cat(efeat, src, dst)); the node block sums the new edges."""
    g = support.make_graph("skewed", torch.int64)
    net, x, edges = mlp(3 * WIDTH, activation=nn.ReLU), randn(g.num_src, WIDTH, dtype=torch.float32), None
    edges = randn(g.num_edges, WIDTH, dtype=torch.float32)
    feat = (x, randn(g.num_dst, WIDTH, dtype=torch.float32))
    block = halfgnn.nn.EdgeNetwork(*net, order=("edge", "src", "dst"), reduce="none", return_edges=True, residual=True)
    new = block(g, feat, edges)
    close(new, plain(g, net, ("edge", "src", "dst"), feat, edges, residual=True)[1])
    close(ops.copy_e_sum(g, new), reference.gspmm(g, "copy_rhs", "sum", None, new))


def test_anemoi_graph_conv():
    """anemoi's GraphConv: edges + mlp(cat(x_i, x_j, edges)), and their sum: of the new edges, so that of messages plus edges."""
    g = support.make_graph("skewed", torch.int64)
    net = mlp(3 * WIDTH)
    feat = randn(g.num_src, WIDTH, dtype=torch.float32), randn(g.num_dst, WIDTH, dtype=torch.float32)
    edges = randn(g.num_edges, WIDTH, dtype=torch.float32)
    conv = halfgnn.nn.EdgeNetwork(*net, order=("dst", "src", "edge"), return_edges=True, residual=True)
    out, new = conv(g, feat, edges)
    out = out + ops.copy_e_sum(g, edges)
    expected = plain(g, net, ("dst", "src", "edge"), feat, edges, residual=True)[1]
    close(new, expected)
    close(out, reference.gspmm(g, "copy_rhs", "sum", None, expected))


def test_graphcast_interaction():
    """GraphCast's InteractionNetwork: edges' = mlp(cat(edges, src, dst)), nodes = mlp(cat(nodes, sum of edges')), both added."""
    g = support.make_graph("skewed", torch.int64)
    net, of_nodes = mlp(3 * WIDTH), mlp(2 * WIDTH)
    feat = randn(g.num_src, WIDTH, dtype=torch.float32), randn(g.num_dst, WIDTH, dtype=torch.float32)
    edges = randn(g.num_edges, WIDTH, dtype=torch.float32)
    block = halfgnn.nn.EdgeNetwork(*net, order=("edge", "src", "dst"), return_edges=True, residual=True)
    total, new = block(g, feat, edges)
    out, expected = plain(g, net, ("edge", "src", "dst"), feat, edges, residual=True)
    close(new, expected)
    close(feat[1] + of_nodes(torch.cat([feat[1], total], 1)), feat[1] + of_nodes(torch.cat([feat[1], out], 1)))


def test_egnn_layer():
    """EGNN's messages of features and squared distances, and their sum."""
    g = support.make_graph("skewed", torch.int64)
    net = mlp(2 * WIDTH + 1, norm=False)
    feat = randn(g.num_src, WIDTH, dtype=torch.float32), randn(g.num_dst, WIDTH, dtype=torch.float32)
    positions = randn(g.num_src, 3, dtype=torch.float32), randn(g.num_dst, 3, dtype=torch.float32)
    src, dst = (x.long() for x in g.edges())
    square = (positions[0][src] - positions[1][dst]).square().sum(1, keepdim=True)
    message = net(torch.cat([feat[1][dst], feat[0][src], square], 1))
    own, other, distance = net[0].weight.split([WIDTH, WIDTH, 1], dim=1)
    out = ops.edge_network(
        g, feat[0] @ other.T, feat[1] @ own.T + net[0].bias, [(net[2].weight, net[2].bias), (net[4].weight, net[4].bias)],
        positions=positions, distance_weight=distance[:, 0],
    )  # fmt: skip
    close(out, reference.gspmm(g, "copy_rhs", "sum", None, message))


# ---- several processes -------------------------------------------------------------------------------------------------------


def part_of(rank):
    """A graph and features of this rank, and a module that is the same in all."""
    torch.manual_seed(rank)
    g = support.make_graph(("bipartite", "skewed")[rank], torch.int64)
    torch.manual_seed(9)
    module = halfgnn.nn.EdgeNetwork(*mlp(2 * WIDTH), order=("src", "dst"))
    return module, g, tuple(randn(n, WIDTH, dtype=torch.float32) + rank for n in (g.num_src, g.num_dst))


def gradients_of_rank(rank, port, folder):
    torch.distributed.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    module, g, feat = part_of(rank)
    parallel = nn.parallel.DistributedDataParallel(module)
    parallel(g, feat).square().sum().backward()
    torch.save([x.grad for x in module.parameters()], folder / f"{rank}.pt")
    torch.distributed.destroy_process_group()


@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch was built without torch.distributed")
def test_two_processes_average_gradients(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    support_processes.start(gradients_of_rank, (port, tmp_path), 2)
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1))
    alone = []
    for rank in (0, 1):
        module, g, feat = part_of(rank)
        module(g, feat).square().sum().backward()
        alone.append([x.grad for x in module.parameters()])
    for got, other, *wanted in zip(first, second, *alone):
        assert torch.equal(got, other)
        torch.testing.assert_close(got, sum(wanted) / 2)
