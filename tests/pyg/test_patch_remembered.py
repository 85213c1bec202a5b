"""Self-loops, GCN's normalisation and Laplacians under halfgnn.pyg.patch(): they are made once for an edge_index that is used
again."""

from __future__ import annotations

import gc
import types
import weakref

import pytest
import torch
import torch_geometric.nn as upstream
from torch.utils.checkpoint import checkpoint
from torch_geometric import utils
from torch_geometric.nn.conv import gcn_conv

import halfgnn.pyg
from halfgnn.graphs_by_tensor import made_once, store
from halfgnn.pyg.drop_in.adapters import edge_index as _remembered
from tests import support
from tests.pyg.test_patch_modules import assert_same, randn

pytestmark = pytest.mark.skipif(not support.supports("cpu", torch.float64), reason="needs float64")
NODES, EDGES, WIDTH = 50, 400, 8
LOOPS = ["remove_self_loops", "add_self_loops", "add_remaining_self_loops"]
LAYERS = {
    "GCN": lambda: upstream.GCNConv(WIDTH, WIDTH),
    "GCN-improved": lambda: upstream.GCNConv(WIDTH, WIDTH, improved=True),
    "GCN-no-loops": lambda: upstream.GCNConv(WIDTH, WIDTH, add_self_loops=False),
    "GCN-reversed": lambda: upstream.GCNConv(WIDTH, WIDTH, flow="target_to_source"),
    "SG": lambda: upstream.SGConv(WIDTH, WIDTH, K=2),
    "LG": lambda: upstream.LGConv(),
    "GAT": lambda: upstream.GATConv(WIDTH, WIDTH, dropout=0.5).eval(),
    "AGNN": lambda: upstream.AGNNConv(),
    "ClusterGCN": lambda: upstream.ClusterGCNConv(WIDTH, WIDTH),
    "Cheb": lambda: upstream.ChebConv(WIDTH, WIDTH, 3),
    "Cheb-rw": lambda: upstream.ChebConv(WIDTH, WIDTH, 2, normalization="rw"),
    "Cheb-no-normalization": lambda: upstream.ChebConv(WIDTH, WIDTH, 2, normalization=None),
}


def edges(seed=1):
    return torch.randint(0, NODES, (2, EDGES), generator=torch.Generator().manual_seed(seed))


def noting(kind, *args, **options):
    """A layer of torch_geometric, and a list of what it propagates along: edge_index, and the weights if there are any."""
    layer, noted = kind(*args, **options).double(), []
    ref = weakref.ref(layer)  # not the layer, which would be a cycle and keep what was noted

    def propagate(edge_index, **kwargs):
        noted.append((edge_index, kwargs.get("edge_weight")))
        return kind.propagate(ref(), edge_index, **kwargs)

    layer.propagate = propagate
    return layer, noted


def made(edge_index):
    topology = store.known.get(edge_index)
    return {} if topology is None else topology.made


def forget(monkeypatch):
    monkeypatch.setattr(_remembered, "_is_plain", lambda edge_index: False)


@pytest.mark.parametrize("autocasts", [False, True])
@pytest.mark.parametrize("name", LAYERS)
def test_layers_compute_what_they_did(monkeypatch, name, autocasts):
    layer, edge_index, x = LAYERS[name](), edges(), randn(NODES, WIDTH, seed=1).float().requires_grad_()

    def results():
        found = []
        for _ in range(4):
            with torch.autocast("cpu", torch.bfloat16, enabled=autocasts):
                out = layer(layer(x, edge_index), edge_index)
            found += [out, *torch.autograd.grad(out.float().pow(2).sum(), x)]
        edge_index[:, 3] = 5
        return [*found, layer(x, edge_index)]

    with halfgnn.pyg.accelerate():
        found = results()
        edge_index = edges()
        forget(monkeypatch)
        expected = results()
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def share(a, b):
    """Whether both are in the same memory, as copies on write are until one is modified in place."""
    if a is None or torch._C._functorch.is_functorch_wrapped_tensor(a):
        return a is b
    return store.address_of(a) == store.address_of(b)


@pytest.mark.parametrize(
    "kind, args",
    [
        (upstream.GCNConv, (WIDTH, 4)),
        (upstream.AGNNConv, ()),
        (upstream.LGConv, ()),
        (upstream.SGConv, (WIDTH, 4)),
        (upstream.ChebConv, (WIDTH, 4, 2)),
    ],
)
def test_layers_get_the_same_memory(kind, args):
    layer, noted = noting(kind, *args)
    edge_index, x = edges(), randn(NODES, WIDTH, seed=1)
    with halfgnn.pyg.accelerate():
        for _ in range(4):
            layer(x, edge_index)
    assert all(map(share, noted[-1][:2], noted[-2][:2]))


@pytest.mark.parametrize("what", [0, 1])
def test_written_tensors_are_made_anew(what):
    """Also those that require a gradient."""
    layer, noted = noting(upstream.GCNConv, WIDTH, 4)
    edge_index, x = edges(), randn(NODES, WIDTH, seed=1)
    expected = layer(x, edge_index)
    changes = [lambda t: t.zero_(), lambda t: t.resize_(0), *[lambda t: t.requires_grad_()] * what]
    with halfgnn.pyg.accelerate():
        for change in changes:
            for _ in range(3):
                assert_same([layer(x, edge_index)], [expected])
            changed = noted[-1]
            change(changed[what])
            assert_same([layer(x, edge_index)], [expected])
            assert noted[-1][what] is not changed[what]


@pytest.mark.parametrize("name", [*LOOPS, "get_laplacian", "gcn_norm"])
def test_other_callers_may_write_into_what_they_get(name):
    function = gcn_conv.gcn_norm if name == "gcn_norm" else getattr(utils, name)
    kinds = [(upstream.GCNConv, WIDTH, 4), (upstream.AGNNConv,), (upstream.ChebConv, WIDTH, 4, 2)]
    edge_index, layers = edges(), [noting(*kind) for kind in kinds]
    expected, x = [t for t in function(edge_index) if t is not None], randn(NODES, WIDTH, seed=1)
    with halfgnn.pyg.accelerate():
        function = gcn_conv.gcn_norm if name == "gcn_norm" else getattr(utils, name)
        for call in range(4):
            found = [t for t in function(edge_index) if t is not None]
            assert_same(found, expected)
            if call == 3:
                assert store.topology_of(found[0]) is store.topology_of(function(edge_index)[0])
            for layer, _ in layers:
                layer(x, edge_index)
            held = [t for _, noted in layers for pair in noted for t in pair if t is not None]
            before = [t.clone() for t in held]
            for t in found:
                assert not any(t.data_ptr() == other.data_ptr() for other in held)
                t.zero_()
            assert_same(held, before)
    assert edge_index.equal(edges())


def test_every_argument_counts():
    edge_index = edges()
    calls = [
        {},
        {"num_nodes": NODES + 5},
        {"num_nodes": NODES, "improved": True},
        {"add_self_loops": False},
        {"flow": "target_to_source", "add_self_loops": False},
        {"dtype": torch.float64},
        {"dtype": torch.bfloat16},
    ]

    def results():
        found = [t for call in calls for _ in range(3) for t in gcn_conv.gcn_norm(edge_index, **call)]
        torch.set_default_dtype(torch.float64)
        try:
            return [*found, *gcn_conv.gcn_norm(edge_index)]
        finally:
            torch.set_default_dtype(torch.float32)

    expected = results()
    with halfgnn.pyg.accelerate():
        gcn_conv.gcn_norm(edge_index)
        found = results()
    assert [t.dtype for t in found] == [t.dtype for t in expected]
    assert_same(found, expected, 1e-2)
    assert 4 <= len(made(edge_index)) <= made_once._MOST_MADE


def test_every_argument_of_a_laplacian_counts():
    edge_index = edges()
    calls = [
        (None, None, None),
        (None, torch.float64, None),
        ("sym", None, NODES),
        ("sym", None, NODES + 5),
        ("rw", None, None),
    ]

    def results():
        function = utils.get_laplacian
        return [t for call in calls for _ in range(3) for t in function(edge_index, None, *call)]

    expected = results()
    with halfgnn.pyg.accelerate():
        found = results()
        for _ in range(2):
            with pytest.raises(AssertionError):
                utils.get_laplacian(edge_index, normalization="sideways")
    assert [t.dtype for t in found] == [t.dtype for t in expected]
    assert_same(found, expected, 1e-6)
    assert {key for key in made(edge_index) if key[0] == "laplacian"} == {
        ("laplacian", num_nodes, normalization, dtype or torch.float32, False)
        for normalization, dtype, num_nodes in calls
    }


def test_errors_are_pygs():
    edge_index = edges()
    with halfgnn.pyg.accelerate():
        for _ in range(3):
            gcn_conv.gcn_norm(edge_index)
            with pytest.raises(AssertionError):
                gcn_conv.gcn_norm(edge_index, flow="sideways")


def test_calls_with_data_of_edges_are_not_remembered():
    edge_index, weight = edges(), torch.rand(EDGES, dtype=torch.float64)
    layer, noted = noting(upstream.GCNConv, WIDTH, 4)
    with halfgnn.pyg.accelerate():
        for _ in range(4):
            layer(randn(NODES, WIDTH, seed=1), edge_index, weight)
            utils.remove_self_loops(edge_index, weight)
    assert not made(edge_index) and noted[-1][0] is not noted[-2][0]


@pytest.mark.parametrize("kind, args", [(upstream.GCNConv, (WIDTH, 4)), (upstream.AGNNConv, ()), (upstream.LGConv, ())])
def test_what_is_kept_dies_with_the_edge_index(kind, args):
    layer, noted = noting(kind, *args)
    edge_index, x = edges(), randn(NODES, WIDTH, seed=1)
    gc.collect()
    gc.disable()  # there is no cycle
    known = len(store.known)
    try:
        with halfgnn.pyg.accelerate():
            for _ in range(4):
                layer(x, edge_index)
        references = [weakref.ref(t) for pair in noted for t in pair if t is not None]
        noted.clear()
        del edge_index
        assert not any(reference() is not None for reference in references)
        assert len(store.known) == known
    finally:
        gc.enable()


def test_first_uses_keep_nothing():
    layer, x = upstream.GCNConv(WIDTH, 4).double(), randn(NODES, WIDTH, seed=1)
    with halfgnn.pyg.accelerate():
        for seed in range(3):
            edge_index = edges(seed)
            layer(x, edge_index)
            utils.add_self_loops(edge_index)
            assert not made(edge_index)


def test_modes_leave_calls_to_pyg():
    layer, noted = noting(upstream.GCNConv, WIDTH, 4)
    edge_index, x = edges(), randn(NODES, WIDTH, seed=1)
    expected = layer(x, edge_index)
    with halfgnn.pyg.accelerate():
        for _ in range(3):
            compiled = torch.compile(upstream.GCNConv.forward, backend="eager")(layer, x, edge_index)
        assert {key[0] for key in made(edge_index)} <= {"traced gcn_norm"}  # which compiled code has for itself
        made(edge_index).clear()
        for _ in range(3):
            layer(x, edge_index)
        kept = noted[-1][1]
        assert share(noted[-2][1], kept)
        gradient = torch.func.grad(lambda x: layer(x, edge_index).sum())(x)
        assert not share(noted[-1][1], kept)
        _, tangent = torch.func.jvp(lambda x: layer(x, edge_index), (x,), (x,))
        assert not share(noted[-1][1], kept)
        layer(x, edge_index)
        assert share(noted[-1][1], kept)
        scripted = torch.jit.script(upstream.GCNConv(WIDTH, 4).double())
        scripted.load_state_dict(layer.state_dict())
        assert_same([compiled, scripted(x, edge_index)], [expected] * 2)
    assert_same([tangent], [expected - layer.bias])
    assert gradient.shape == x.shape


def test_a_captured_graph_makes_its_own(monkeypatch):
    layer, noted = noting(upstream.GCNConv, WIDTH, 4)
    edge_index, x = edges(), randn(NODES, WIDTH, seed=1)
    with halfgnn.pyg.accelerate():
        for _ in range(3):
            layer(x, edge_index)
        monkeypatch.setattr(_remembered, "is_captured", lambda device: True)
        layer(x, edge_index)
    assert not {id(t) for t in noted[-1]} & {id(t) for t in noted[-2]}


def test_inference_mode_shares_with_training():
    layer, noted = noting(upstream.GCNConv, WIDTH, 4)
    edge_index, x = edges(), randn(NODES, WIDTH, seed=1).requires_grad_()
    expected = layer(x, edge_index)
    with halfgnn.pyg.accelerate():
        with torch.inference_mode():
            for _ in range(3):
                assert_same([layer(x, edge_index)], [expected])
        out = layer(x, edge_index)
        out.sum().backward()
        assert share(noted[-1][1], noted[-2][1])
        with torch.inference_mode():
            noted[-1][1].zero_()
        assert_same([layer(x, edge_index)], [expected])


def test_checkpoints_recompute_the_same():
    layers = torch.nn.ModuleList([upstream.GCNConv(WIDTH, WIDTH), upstream.AGNNConv(), upstream.LGConv()]).double()
    edge_index, x = edges(), randn(NODES, WIDTH, seed=1).requires_grad_()

    def gradient(use_reentrant):
        h = x
        for layer in layers:
            h = (
                layer(h, edge_index)
                if use_reentrant is None
                else checkpoint(layer, h, edge_index, use_reentrant=use_reentrant)
            )
        return torch.autograd.grad(h.pow(2).sum(), x)[0] if not use_reentrant else _backward(h, x)

    expected = gradient(None)
    with halfgnn.pyg.accelerate():
        assert_same([gradient(use_reentrant) for _ in range(3) for use_reentrant in (False, True)], [expected] * 6)


def _backward(h, x):
    x.grad = None
    h.pow(2).sum().backward()
    return x.grad


class Halving(upstream.GCNConv):
    """Writes into the weights that it was given."""

    def message(self, x_j, edge_weight):
        edge_weight *= 0.5
        return edge_weight.view(-1, 1) * x_j


def halving_by_a_hook():
    def halve(module, inputs):
        inputs[-1]["edge_weight"].mul_(0.5)

    layer = upstream.GCNConv(WIDTH, WIDTH)
    layer.register_propagate_forward_pre_hook(halve)
    return layer


@pytest.mark.parametrize("writes", [lambda: Halving(WIDTH, WIDTH), halving_by_a_hook], ids=["message", "hook"])
@pytest.mark.parametrize("cached", [False, True])
def test_a_layer_that_writes_into_its_weights_has_its_own(writes, cached):
    torch.manual_seed(0)
    first, second = upstream.GCNConv(WIDTH, WIDTH, cached=cached).double(), writes().double()
    edge_index, x = edges(), randn(NODES, WIDTH, seed=1)

    def run():
        first._cached_adj_t = first._cached_edge_index = None
        out = []
        for _ in range(4):
            out += [second(first(x, edge_index), edge_index), first(x, edge_index)]
            out[-1].sum().backward()
            out[-2].sum().backward()
        return [y.detach() for y in out]

    expected = run()
    with halfgnn.pyg.accelerate():
        assert_same(run(), expected)


@pytest.mark.parametrize("kind", [upstream.GATConv, upstream.GATv2Conv])
def test_a_returned_edge_index_is_the_callers(kind):
    layer, edge_index, x = kind(WIDTH, WIDTH).double(), edges(), randn(NODES, WIDTH, seed=1)
    with halfgnn.pyg.accelerate():
        for _ in range(3):
            layer(x, edge_index)
        (_, (first, _)), (_, (second, _)) = (layer(x, edge_index, return_attention_weights=True) for _ in range(2))
    before = first.clone()
    second += NODES
    assert torch.equal(first, before)


def replaced_on_the_module(monkeypatch):
    layer = upstream.GCNConv(WIDTH, WIDTH)
    layer.message = types.MethodType(Halving.message, layer)
    return layer


def replaced_on_the_class(monkeypatch):
    monkeypatch.setattr(upstream.SGConv, "message", Halving.message)
    return upstream.SGConv(WIDTH, WIDTH, add_self_loops=True)


@pytest.mark.parametrize("replaced", [replaced_on_the_module, replaced_on_the_class])
def test_a_layer_whose_message_was_replaced_has_its_own(monkeypatch, replaced):
    torch.manual_seed(0)
    first, second = upstream.GCNConv(WIDTH, WIDTH).double(), replaced(monkeypatch).double()
    edge_index, x = edges(), randn(NODES, WIDTH, seed=1)

    def run():
        out = [second(first(x, edge_index), edge_index) for _ in range(4)]
        for y in out:
            y.sum().backward()
        return [y.detach() for y in out]

    expected = run()
    with halfgnn.pyg.accelerate():
        assert_same(run(), expected)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_add_self_loops_reads_no_ids(monkeypatch, device):
    """On a GPU a question about ids would wait for it."""
    edge_index, asked = edges().to(device), []
    monkeypatch.setattr(_remembered, "lacks_loops", asked.append)
    with halfgnn.pyg.accelerate():
        for _ in range(4):
            found, _ = utils.add_self_loops(edge_index, num_nodes=NODES)
            utils.add_self_loops(edge_index, torch.empty(EDGES, device=device), num_nodes=NODES)
    assert found.shape == (2, EDGES + NODES) and not asked


@pytest.mark.parametrize("name", ["remove_self_loops", "add_remaining_self_loops"])
def test_an_edge_index_without_loops(name):
    ends = torch.arange(EDGES) % NODES
    edge_index = torch.stack([ends, (ends + 1) % NODES], 1).t()  # not contiguous
    function = getattr(utils, name)
    expected, weight = function(edge_index)[0], torch.rand(EDGES, 2)
    with halfgnn.pyg.accelerate():
        for _ in range(4):
            found, _ = getattr(utils, name)(edge_index)
            assert torch.equal(found, expected) and found.stride() == expected.stride()
            assert getattr(utils, name)(edge_index, weight)[1].is_contiguous()
            with pytest.raises(IndexError):
                getattr(utils, name)(edge_index, weight[1:])


@pytest.mark.parametrize("kind, args", [(upstream.GCNConv, (WIDTH, 4)), (upstream.ChebConv, (WIDTH, 4, 2))])
def test_edges_are_kept_once(kind, args):
    layer, edge_index, x = kind(*args).double(), edges(), randn(NODES, WIDTH, seed=1)
    with halfgnn.pyg.accelerate():
        for _ in range(4):
            layer(x, edge_index)
        (kept,) = made(edge_index).values()
    assert len([t for t in kept if isinstance(t, torch.Tensor)]) == 2
