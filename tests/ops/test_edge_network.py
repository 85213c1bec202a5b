"""edge_network: a network on every edge, in tiles. Held to the same formula in PyTorch, which keeps rows of all edges."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from halfgnn import Graph, ops, reference
from halfgnn.ops.edge_network import inputs, operator
from tests import support
from tests.support import HALVES, IDTYPES, randn
from tests.support_edge_network import EDGES, WIDTH, arguments, compare, every_result, leaves_of, mapped, results

TILE = 64
EXACT = torch.float32 if support.SIMULATED else torch.float64  # CUDA has no kernels of fp64
GRAPHS = ("bipartite", "skewed", "empty", "edgeless", "one_edge")


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch):
    """Rows begin and end anywhere in a tile, and some fill several."""
    monkeypatch.setattr(operator, "tile_edges", lambda num_edges, is_cpu: TILE)


CASES = [
    dict(reduce=reduce, norm=norm, factors=factors, distances=distances, return_edges=edges, residual=edges)
    for reduce, (norm, factors, distances, edges) in itertools.product(
        ("sum", "mean", "max"), [(True, False, False, True), (False, True, True, False), (True, True, False, False)]
    )
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(str(x) for x in case.values()))
@pytest.mark.parametrize("activation", tuple(inputs.ACTIVATIONS))
def test_formula(case, activation):
    g = support.make_graph("skewed", torch.int64)
    compare(g, arguments(g, EXACT, activation=activation, negative_slope=0.2, **case))


@pytest.mark.parametrize("dtype", [*HALVES, torch.float32], ids=str)
@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("reduce", ["sum", "max"])
def test_types_and_graphs(name, reduce, dtype, device):
    for idtype, identity in zip(IDTYPES, (True, False)):
        g = support.make_graph(name, idtype, identity=identity).to(device)
        compare(g, arguments(g, dtype, reduce=reduce, return_edges=True, factors=reduce == "sum"))


@pytest.mark.parametrize(
    "case", [dict(dst=False), dict(feat=False), dict(dst=False, feat=False), dict(squared=False, distances=True)]
)
def test_terms(case, device):
    g = support.make_graph("bipartite", torch.int32).to(device)
    compare(g, arguments(g, torch.float32, **case))


def test_only_edges(device):
    g = support.make_graph("bipartite", torch.int32).to(device)
    given = arguments(g, torch.float32, reduce="none", return_edges=True, residual=True)
    del given["src"], given["dst"]
    compare(g, given)


def test_one_layer(device):
    """The sums are the messages."""
    g = support.make_graph("skewed", torch.int32).to(device)
    compare(g, dict(arguments(g, torch.float32, norm=False, feat=False), layers=()))


def test_equal_calls_give_equal_bits(device):
    g = support.hub_graph(num_edges=5_000).to(device)
    given = arguments(g, torch.float16, return_edges=True, factors=True)
    first = every_result(ops.edge_network, g, given, up := [])
    assert all(torch.equal(a, b) for a, b in zip(first, every_result(ops.edge_network, g, given, up)))


@pytest.mark.parametrize("dtype", [*HALVES, torch.float32], ids=str)
def test_gradients_of_the_norm_are_sums_in_fp32(dtype, device):
    """Not as in PyTorch's backward on a CPU, which adds up bf16 in bf16."""
    g = support.hub_graph(num_edges=5_000).to(device)
    wide = dict(dtype=dtype, device=device)
    norm = torch.ones(16, **wide).requires_grad_(), torch.zeros(16, **wide).requires_grad_()
    out = ops.edge_network(g, randn(g.num_src, 16, **wide), norm=norm)
    of_bias = torch.autograd.grad(out, norm, torch.ones_like(out))[1]
    assert torch.equal(of_bias.cpu(), torch.full((16,), g.num_edges, dtype=dtype))


def test_near_positions_in_halves(device):
    """Distances are made in fp32, and positions may be."""
    g = Graph.from_edges(*torch.tensor([[0, 1, 2, 3], [0, 0, 0, 0]], device=device), num_src=4, num_dst=1)
    positions = torch.tensor([[100.0], [100.001], [400.0], [100.0]], device=device).requires_grad_()
    call = lambda squared: ops.edge_network(  # noqa: E731
        g, torch.zeros(4, 1, dtype=torch.float16, device=device), positions=(positions, positions[:1]),
        distance_weight=torch.ones(1, dtype=torch.float16, device=device), squared=squared, reduce="none", return_edges=True,
    )  # fmt: skip
    distances = call(False)
    torch.testing.assert_close(distances[:, 0].cpu(), torch.tensor([0, 0.001, 300, 0]).half(), rtol=1e-2, atol=1e-6)
    gradient = torch.autograd.grad(distances.float().sum(), positions)[0]
    torch.testing.assert_close(gradient[:, 0].cpu(), torch.tensor([-2.0, 1.0, 1.0, 0.0]))
    with torch.autocast(torch.device(device).type, torch.bfloat16):
        assert torch.isfinite(call(False)).all()


@pytest.mark.skipif(support.SIMULATED, reason="takes fp64")
@pytest.mark.parametrize(
    "options", [dict(reduce="sum", distances=True, factors=True), dict(reduce="mean", return_edges=True)], ids=str
)
def test_second_derivatives(options):
    g = support.make_graph("one_edge", torch.int64)
    given = arguments(g, torch.float64, activation="tanh", **options)
    leaves = [x.requires_grad_() for x in leaves_of(given)]

    def call(*x):
        found = iter(x)
        return ops.edge_network(g, **mapped(given, lambda _: next(found)))

    assert torch.autograd.gradgradcheck(call, leaves, atol=1e-6)


@pytest.mark.skipif(support.SIMULATED, reason="takes fp64")
def test_forces():
    """The gradient of an energy by positions is differentiated by weights."""
    g = support.make_graph("skewed", torch.int64)
    given = arguments(g, torch.float64, distances=True, norm=False)
    weights = [w.requires_grad_() for w, _ in given["layers"]]
    gradients = []
    for function in (ops.edge_network, reference.edge_network):
        positions = [x.detach().requires_grad_() for x in given["positions"]]
        energy = function(g, **dict(given, positions=tuple(positions))).square().sum()
        forces = torch.autograd.grad(energy, positions, create_graph=True)
        gradients.append(torch.autograd.grad(sum(f.square().sum() for f in forces), weights))
    for ours, expected in zip(*gradients):
        torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-9)


def test_checkpoint_and_compile(device):
    g = support.make_graph("bipartite", torch.int32).to(device)
    given = arguments(g, torch.float32, return_edges=True, residual=True)
    call = lambda **x: ops.edge_network(g, **x)  # noqa: E731
    expected = every_result(ops.edge_network, g, given, up := [])
    again = every_result(lambda g, **x: checkpoint(call, use_reentrant=False, **x), g, given, up)
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    traced = every_result(lambda g, **x: compiled(**x), g, given, up)
    assert all(torch.equal(a, b) for a, b in zip(expected, again))
    assert all(torch.equal(a, b) for a, b in zip(expected, traced))


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_autocast(dtype, device):
    """As operands of that type; the backward too."""
    g = support.make_graph("bipartite", torch.int32).to(device)
    given = arguments(g, torch.float32, return_edges=True)
    leaves = mapped(given, lambda x: x.clone().requires_grad_())
    with torch.autocast(g.device.type, dtype):
        out, edges = ops.edge_network(g, **leaves)
        assert out.dtype == edges.dtype == dtype
        upstream = [torch.randn_like(out), torch.randn_like(edges)]
        gradients = torch.autograd.grad([out, edges], leaves_of(leaves), upstream)
    (expected, of_edges), of_leaves = results(ops.edge_network, g, mapped(given, lambda x: x.to(dtype)), upstream)
    assert torch.equal(out, expected) and torch.equal(edges, of_edges)
    assert all(torch.equal(a, b.float()) for a, b in zip(gradients, of_leaves))


def test_torch_func():
    """By separate operators: batches of gradients, and Hessians."""
    g = support.make_graph("skewed", torch.int64)
    given = arguments(g, EXACT, norm=False)
    weight, bias = given["layers"][1][0], given["layers"][0][1]

    def loss(function, bias, weight):
        layers = [(given["layers"][0][0], bias), (weight, None)]
        return function(g, **dict(given, layers=layers, activation="tanh")).square().mean()

    for derive in (torch.func.grad, lambda f: torch.func.jacrev(torch.func.jacrev(f))):
        ours, expected = (
            derive(lambda b, f=f: loss(f, b, weight))(bias) for f in (ops.edge_network, reference.edge_network)
        )
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-5)
    weights = torch.stack([weight, 2 * weight])
    batch = torch.vmap(torch.func.grad(lambda w: loss(ops.edge_network, bias, w)))(weights)
    torch.testing.assert_close(batch[1], torch.func.grad(lambda w: loss(ops.edge_network, bias, w))(weights[1]))


def test_fake_gradients_have_the_strides_of_real_ones():
    """Operands that are transposed."""
    g = support.make_graph("skewed", torch.int32)
    x, weight = randn(WIDTH, g.num_src, dtype=torch.float32), randn(WIDTH, 4, dtype=torch.float32)
    feat, edge_weight = randn(EDGES, g.num_edges, dtype=torch.float32), randn(EDGES, WIDTH, dtype=torch.float32)
    leaves = [t.requires_grad_() for t in (x, weight, feat, edge_weight)]

    def call(x, weight, feat, edge_weight):
        return ops.edge_network(g, x.t(), None, [(weight.t(), None)], edge_feat=feat.t(), edge_weight=edge_weight.t())

    outs = call(*leaves), torch.compile(call, fullgraph=True)(*leaves)
    upstream = torch.randn_like(outs[0])
    for a, b in zip(*(torch.autograd.grad(out, leaves, upstream) for out in outs)):
        torch.testing.assert_close(a, b)


def test_second_derivatives_without_nodes():
    g = Graph.from_edges(*torch.zeros(2, 0, dtype=torch.int64), num_src=0, num_dst=5)
    leaves = [torch.randn(n, 6, requires_grad=True) for n in (0, 5)]
    first = torch.autograd.grad(ops.edge_network(g, *leaves, activation="tanh").sum(), leaves, create_graph=True)
    second = torch.autograd.grad(sum(x.square().sum() for x in first), leaves, allow_unused=True)
    assert not any(x.any() for x in second if x is not None)


def test_only_wanted_gradients():
    g = support.make_graph("skewed", torch.int32)
    given = arguments(g, torch.float32, distances=True, factors=True)
    expected = results(ops.edge_network, g, given, up := [])[1]
    leaves = leaves_of(given)
    for i in range(len(leaves)):
        wanted = iter([place == i for place in range(len(leaves))])
        chosen = mapped(given, lambda x, w=wanted: x.detach().clone().requires_grad_(next(w)))
        out = ops.edge_network(g, **chosen)
        assert torch.equal(torch.autograd.grad(out, leaves_of(chosen)[i], up)[0], expected[i])


def test_kept_for_the_backward():
    """No rows of edges but edge_feat."""
    g = support.hub_graph(num_edges=5_000)
    given = mapped(arguments(g, torch.float32, return_edges=True, residual=True), lambda x: x.requires_grad_())
    kept: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x) or x, lambda x: x):
        ops.edge_network(g, **given)
    of_edges = [x for x in kept if x.is_floating_point() and x.shape[:1] == (g.num_edges,)]
    assert len(of_edges) == 1 and of_edges[0].data_ptr() == given["edge_feat"].data_ptr()


def test_tiles_of_large_graphs(monkeypatch):
    monkeypatch.undo()
    assert operator.tile_edges(10, True) == operator.tile_edges(10**7, True) == 8192
    assert operator.tile_edges(10, False) == 1 << 16 and operator.tile_edges(4 * 10**6, False) == 125_000
    assert operator.tile_edges(10**9, False) == 1 << 18


WRONG = [
    (dict(activation="swish"), ValueError, "activation is 'swish'; expected one of relu, silu"),
    (dict(reduce="prod"), ValueError, "reduce is 'prod'"),
    (dict(reduce="none"), ValueError, "reduce is 'none'; expected return_edges=True"),
    (dict(src=None, dst=None, edge_feat=None, edge_weight=None), ValueError, "src, dst and edge_feat are None"),
    (dict(edge_weight=None), ValueError, "edge_weight is None; expected both edge_feat and edge_weight"),
    (dict(edge_feat=None), ValueError, "edge_feat is None; expected both"),
    (dict(dst=torch.ones(3, 16)), ValueError, r"dst has shape \(3, 16\); expected \d+ rows"),
    (dict(edge_weight=torch.ones(4, 5)), ValueError, r"edge_weight has shape \(4, 5\); expected \(16, 5\)"),
    (dict(layers=[torch.ones(8, 16)]), TypeError, r"layers\[0\] is Tensor; expected a pair of weight and bias"),
    (dict(layers=[(torch.ones(8, 3), None)]), ValueError, r"weight of layers\[0\] has shape \(8, 3\); expected \(outputs, 16\)"),
    (dict(layers=[(torch.ones(8, 16), torch.ones(3))]), ValueError, r"the bias of layers\[0\] has shape \(3,\); expected \(8,\)"),
    (dict(norm=(torch.ones(3), None)), ValueError, r"the weight of norm has shape \(3,\); expected \(5,\)"),
    (dict(residual=True), ValueError, "residual is True; expected return_edges=True and edge_feat with 5 columns"),
    (dict(distance_weight=torch.ones(16)), ValueError, "positions is None; expected them with distance_weight"),
    (dict(positions=torch.ones(3)), TypeError, "positions is a Tensor and no pair; expected those of sources"),
    (dict(positions=(None, torch.ones(3, 1)), distance_weight=torch.ones(16)), TypeError, r"positions\[0\] is None"),
    (dict(norm=(None, None)), TypeError, r"norm\[0\] is None"),
    (dict(layers=5), TypeError, "layers is a int; expected a list of pairs"),
    (dict(edge_weight=torch.ones(16, 5).to_sparse()), TypeError, "edge_weight has layout torch.sparse_coo"),
    (dict(edge_factor=torch.ones(2, dtype=torch.int64)), ValueError, "edge_factor has shape"),
    (dict(factor=torch.ones(2, 5)), ValueError, "factor has shape"),
    (dict(edge_factor=torch.ones(2)), ValueError, r"edge_factor has shape \(2,\)"),
    (dict(edge_feat="e"), TypeError, "edge_feat is a str"),
    (dict(eps="small"), TypeError, "eps is 'small'; expected a number"),
]  # fmt: skip


@pytest.mark.parametrize("wrong,error,message", WRONG, ids=lambda x: ",".join(x) if isinstance(x, dict) else "")
def test_errors(wrong, error, message):
    g = support.make_graph("bipartite", torch.int32)
    with pytest.raises(error, match=message):
        ops.edge_network(g, **dict(arguments(g, torch.float32, norm=False), **wrong))


def test_mixed_types_are_refused():
    g = support.make_graph("bipartite", torch.int32)
    given = arguments(g, torch.float32)
    with pytest.raises(TypeError, match=r"edge_feat has dtype torch.float16; expected that of src, torch.float32"):
        ops.edge_network(g, **dict(given, edge_feat=given["edge_feat"].half()))


def test_a_graph_in_another_order():
    """Edge data stays in the order in which edges were given."""
    src, dst = torch.tensor([2, 0, 1, 0]), torch.tensor([1, 1, 0, 2])
    g = Graph.from_edges(src, dst, num_src=3, num_dst=3)
    feat = torch.eye(4)
    edges = ops.edge_network(g, edge_feat=feat, edge_weight=torch.eye(4), reduce="none", return_edges=True)
    assert torch.equal(edges, feat)
