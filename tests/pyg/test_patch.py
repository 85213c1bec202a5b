"""Reductions under halfgnn.pyg.patch(), what is left to torch_geometric, and patch(), unpatch() and accelerate()."""

from __future__ import annotations

import importlib
import subprocess
import sys
import threading
import warnings
import weakref

import pytest
import torch
import torch_geometric.nn as upstream
from torch import nn
from torch_geometric import utils

import halfgnn.pyg
from halfgnn.drop_in import sequence_slot, table
from halfgnn.graphs_by_tensor import edge_index as edge_index_graphs
from halfgnn.graphs_by_tensor import store
from tests import support
from tests.pyg.support_pyg import Layer
from tests.pyg.test_patch_modules import NUM_EDGES, NUM_NODES, WIDTH, assert_same, edges, fell_back, randn, routed

pytestmark = pytest.mark.skipif(not support.supports("cpu", torch.float64), reason="needs float64")


# ---- reductions of what users have ---------------------------------------------------------------------------------------------


def test_reductions_and_softmax_of_known_edges():
    edge_index, values = edges(), randn(NUM_EDGES, 3, seed=1).requires_grad_()

    def results():
        row, index = edge_index
        outs = [
            utils.scatter(values, ids, 0, NUM_NODES, r) for ids in (row, index) for r in ("sum", "mean", "max", "min")
        ]
        outs += [utils.softmax(values, index, num_nodes=NUM_NODES), utils.softmax(values, index)]
        outs[-1].mul_(2)  # may be written into
        return [*outs, *torch.autograd.grad(sum(out.pow(2).sum() for out in outs), values)]

    expected = results()
    with halfgnn.pyg.accelerate():
        assert_same(results(), expected)  # nobody knows yet that these are edges
        upstream.SAGEConv(WIDTH, 2).double()(randn(NUM_NODES, WIDTH, seed=1), edge_index)
        halfgnn.pyg.reset_stats()
        assert_same(results(), expected)
    assert halfgnn.pyg.stats() == {
        "routed": {**{f"gspmm:copy_e_{r}": 2 for r in ("sum", "mean", "max", "min")}, "edge_softmax": 2},
        "fell_back": {},
    }


@pytest.mark.parametrize("aggr", ["var", "std", ["mean", "max", "std"], ["sum", "var"]], ids=str)
@pytest.mark.parametrize("dtype,is_autocast", [(torch.float32, True), (torch.bfloat16, True), (torch.bfloat16, False)])
def test_variances_of_features_far_from_zero(aggr, dtype, is_autocast):
    """The squares of the features have no digits left for the variance in half."""
    conv, x = upstream.SimpleConv(aggr), (30 + randn(NUM_NODES, WIDTH, seed=1)).to(dtype).requires_grad_()
    exact = conv(x.double(), edges())
    expected = [exact, *torch.autograd.grad(exact[:, -WIDTH:].sum(), x)]
    with halfgnn.pyg.accelerate():
        with torch.autocast("cpu", torch.bfloat16, enabled=is_autocast):
            out = conv(x, edges())
        actual = [out, *torch.autograd.grad(out[:, -WIDTH:].sum(), x)]
    assert all(a.dtype is dtype for a in actual)
    assert_same([actual[0][:, -WIDTH:].double()], [expected[0][:, -WIDTH:]], 2e-2)
    assert_same([actual[1].double()], [expected[1].double()], 5e-2)


def test_edges_that_are_written_to_are_new():
    edge_index, x, conv = edges(), randn(NUM_NODES, WIDTH, seed=1), upstream.GCNConv(WIDTH, 4).double()
    with halfgnn.pyg.accelerate():
        conv(x, edge_index)
        edge_index.copy_(edge_index.flip(0))
        actual = conv(x, edge_index)
    assert_same([actual], [conv(x, edge_index)])


def test_messages_of_other_edges():
    x, several = randn(NUM_NODES, WIDTH, seed=1), (edges(), edges().roll(1, 0))
    kept, weights = [], randn(NUM_EDGES, 1, seed=2)
    layer = Layer(lambda x, w: kept.append(x * w) or kept[0])
    expected = [layer(x, edge_index, weights) for edge_index in several]
    kept.clear()
    with halfgnn.pyg.accelerate():
        assert_same([layer(x, edge_index, weights) for edge_index in several], expected)


def test_self_loops_are_sorted_once(monkeypatch):
    made = []
    make = edge_index_graphs._make
    monkeypatch.setattr(edge_index_graphs, "_make", lambda *args: made.append(args) or make(*args))
    edge_index, x = edges(), randn(NUM_NODES, WIDTH, seed=1)
    with halfgnn.pyg.accelerate():
        for conv in [upstream.GCNConv(WIDTH, 4), upstream.GCNConv(WIDTH, 4), upstream.GATConv(WIDTH, 4)]:
            for _ in range(3):
                conv.double()(x, edge_index)
    assert len(made) == 2  # add_remaining_self_loops, and add_self_loops after remove_self_loops


def test_edges_are_not_kept_alive():
    edge_index, x = edges(), randn(NUM_NODES, WIDTH, seed=1)
    reference, known = weakref.ref(edge_index), len(store.known)
    with halfgnn.pyg.accelerate():
        out = upstream.SAGEConv(WIDTH, 4).double()(x, edge_index)
        assert len(store.known) == known + 1
        del edge_index, out
        assert reference() is None and len(store.known) == known


def test_max_gives_the_gradient_to_the_first_of_equal_messages():
    edge_index, x = torch.tensor([[0, 1], [2, 2]]), torch.ones(3, 1, requires_grad=True)
    conv = upstream.SimpleConv(aggr="max")
    with halfgnn.pyg.accelerate():
        (grad,) = torch.autograd.grad(conv(x, edge_index).sum(), x)
    assert grad.flatten().tolist() == [1, 0, 0]


# ---- what is left to PyG -----------------------------------------------------------------------------------------------------


def call(**options):
    layer = Layer(lambda x, w: x, **options)
    return lambda x, edge_index: layer(x, edge_index, None)


def explained(x, edge_index):
    layer = Layer(lambda x, w: x)
    layer.explain = True
    layer._edge_mask, layer._loop_mask, layer._apply_sigmoid = (
        torch.ones(NUM_EDGES),
        torch.ones(NUM_EDGES).bool(),
        False,
    )
    return layer(x, edge_index, None)


def with_hooks(x, edge_index):
    layer = Layer(lambda x, w: x)
    layer.register_aggregate_forward_hook(lambda module, inputs, out: 2 * out)
    return layer(x, edge_index, None)


def sparse(x, edge_index):
    return call()(
        x, torch.sparse_coo_tensor(edge_index, torch.ones(NUM_EDGES, dtype=x.dtype), (NUM_NODES, NUM_NODES)).coalesce()
    )


def transformed(x, edge_index):
    return torch.func.vmap(lambda x: call(node_dim=0)(x, edge_index))(torch.stack([x, x]))[0]


def dual(x, edge_index):
    return torch.func.jvp(lambda x: call()(x, edge_index), (x,), (x,))[1]


LEFT = {
    "explain": explained,
    "hooks": with_hooks,
    "sparse edge_index": sparse,
    "functorch": transformed,
    "torch.int64 on cpu": lambda x, edge_index: call()((10 * x).long(), edge_index),
    "no edges": lambda x, edge_index: call()(x, edge_index[:, :0]),
}


@pytest.mark.parametrize("reason", LEFT)
def test_what_is_left_to_pyg(reason):
    x = randn(NUM_NODES, WIDTH, seed=1)
    expected = LEFT[reason](x, edges())
    with halfgnn.pyg.accelerate():
        assert_same([LEFT[reason](x, edges())], [expected])
    stats = halfgnn.pyg.stats()
    assert list(stats["fell_back"]["propagate"]) == [reason]
    # The rows of a sparse matrix are an index like any other.
    assert set(stats["routed"]) == ({"gspmm:copy_e_sum"} if reason == "sparse edge_index" else set())


def test_forward_mode_is_left_to_pyg():
    x = randn(NUM_NODES, WIDTH, seed=1)
    expected = dual(x, edges())
    with halfgnn.pyg.accelerate():
        assert_same([dual(x, edges())], [expected])
    assert routed() == set()


@pytest.mark.parametrize("edge_index", [torch.tensor([[0, NUM_NODES], [0, 1]]), torch.tensor([[0, -1], [0, 1]])])
def test_ids_out_of_range_raise_pygs_error(edge_index):
    with halfgnn.pyg.accelerate(), pytest.raises(IndexError, match="edge_index"):
        call()(randn(NUM_NODES, WIDTH, seed=1), edge_index)


def test_compiled_and_scripted_code_is_pygs():
    conv, x = upstream.SAGEConv(WIDTH, 4).double(), randn(NUM_NODES, WIDTH, seed=1)
    expected = conv(x, edges())
    with halfgnn.pyg.accelerate():
        scripted = torch.jit.script(conv)
        traced = torch.jit.trace(conv, (x, edges()), check_trace=False)
        compiled = torch.compile(conv, backend="eager")
        assert_same([scripted(x, edges()), traced(x, edges()), compiled(x, edges())], 3 * [expected])
    assert routed() == set()


# A process per order: TorchScript compiles the overloads of a function when it is scripted first, and keeps them with the object.
SCRIPTS = """
import sys, torch, torch_geometric.nn as upstream, halfgnn.pyg
kinds = upstream.GCNConv, upstream.ClusterGCNConv, upstream.ChebConv
convs = [(kind, 4, 4, *([2] if kind is upstream.ChebConv else [])) for kind in kinds]
x, edge_index = torch.randn(5, 4), torch.tensor([[0, 1, 2, 2], [1, 2, 3, 2]])
for is_on in map(int, sys.argv[1]):
    (halfgnn.pyg.patch if is_on else halfgnn.pyg.unpatch)()
    for kind, *sizes in convs:
        conv = kind(*sizes)
        torch.testing.assert_close(torch.jit.script(conv)(x, edge_index), conv(x, edge_index))
    convs.reverse()
"""


class Plain(torch.Tensor):
    pass


class Indexed(torch.Tensor):
    def __getitem__(self, index):
        return index


def test_tensors_do_not_look_like_sequences():
    """torch.tensor(losses) asks a sequence for its length, which a tensor without dimensions does not have."""
    number, ids = torch.tensor(3.0), torch.tensor([2, 0])

    def check():
        for x in (number, torch.nn.Parameter(number, requires_grad=False), number.as_subclass(Plain)):
            assert torch.tensor([x, x]).tolist() == [3.0, 3.0] and torch.full((2,), x).tolist() == [3.0, 3.0]
        assert number.as_subclass(Indexed)[7] == 7
        assert torch.arange(5)[ids].tolist() == [2, 0] and [int(x) for x in torch.arange(3)] == [0, 1, 2]

    check()
    for _ in range(2):
        with halfgnn.pyg.accelerate():
            assert torch.Tensor.__getitem__ is not torch._C.TensorBase.__getitem__
            check()
        check()
    halfgnn.pyg.patch()
    check()
    halfgnn.pyg.unpatch()
    check()
    assert sequence_slot.can_clear()


def test_an_unknown_interpreter_leaves_indexing_alone(monkeypatch):
    monkeypatch.setattr(table, "can_clear", lambda: False)
    with halfgnn.pyg.accelerate():
        assert torch.Tensor.__getitem__ is torch._C.TensorBase.__getitem__


@pytest.mark.parametrize(
    "make",
    [
        lambda: upstream.LGConv(),
        lambda: upstream.GCNConv(32, 32),
        lambda: upstream.GATConv(32, 32),
        lambda: upstream.GraphConv(32, 32, aggr="max"),
        lambda: upstream.ChebConv(32, 32, 2),
        lambda: upstream.PNAConv(32, 32, ["mean", "max"], ["identity"], deg=torch.ones(9).long()),
    ],
    ids=["LG", "GCN", "GAT", "Graph", "Cheb", "PNA"],
)
def test_a_trace_leaves_nothing_behind(make):
    """Sizes are tensors while PyTorch traces. What is counted of an edge_index must be numbers."""
    layer, edge_index = make(), torch.randint(300, (2, 20_000), generator=torch.Generator().manual_seed(0))
    x = torch.randn(300, 32, generator=torch.Generator().manual_seed(1))
    with halfgnn.pyg.accelerate():
        layer(x, edge_index)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with torch.inference_mode():
                torch.jit.trace(layer, (x, edge_index), check_trace=False)
            torch.jit.trace(layer, (x, edge_index), check_trace=False)
        y = x.requires_grad_()
        for _ in range(12):
            layer(y, edge_index).sum().backward()
        torch.func.grad(lambda x: layer(x, edge_index).sum())(x.detach())
    assert not [warning for warning in caught if "halfgnn" in warning.filename]


@pytest.mark.parametrize("order", ["101", "010"])
def test_scripts_before_and_after_patch(order):
    subprocess.run([sys.executable, "-W", "ignore", "-c", SCRIPTS, order], check=True, timeout=300)


# ---- patching ----------------------------------------------------------------------------------------------------------------


def bound():
    """Every function and method that torch_geometric and this module bind."""
    names = {
        (module, name): value
        for module, namespace in list(sys.modules.items())
        if module.split(".")[0] == "torch_geometric" or module == __name__
        for name, value in vars(namespace).items()
        if callable(value)
    }
    owners = (
        upstream.MessagePassing,
        upstream.aggr.VarAggregation,
        upstream.GATConv,
        upstream.GATv2Conv,
        upstream.TransformerConv,
    )
    return {**names, **{(owner, name): value for owner in owners for name, value in vars(owner).items()}}


def changed(before):
    return {key for key, value in bound().items() if before.get(key) is not value}


def test_unpatch_restores_everything():
    before = bound()
    halfgnn.pyg.patch(fuse=False)
    patched = changed(before)
    assert ("torch_geometric.nn.aggr.base", "scatter") in patched
    assert ("torch_geometric.nn.conv.gcn_conv", "add_self_loops_fn") in patched
    originals = {id(before[key]) for key in patched if key[1] != "propagate"}  # of which each class also keeps its own
    assert not [key for key, value in bound().items() if id(value) in originals], "another name for an original"
    assert (upstream.GATConv, "propagate") in patched and (upstream.GATConv, "edge_updater") not in patched
    halfgnn.pyg.patch()
    assert (upstream.GATConv, "forward") in changed(before) - patched
    halfgnn.pyg.unpatch()
    halfgnn.pyg.unpatch()
    assert changed(before) == set()


def test_modules_that_are_imported_meanwhile_get_the_originals():
    original = utils.scatter
    with halfgnn.pyg.accelerate():
        module = type(sys)("torch_geometric.later")
        module.scatter = utils.scatter
        assert module.scatter is not original
        sys.modules[module.__name__] = module
    del sys.modules[module.__name__]
    assert module.scatter is original


def test_accelerate_nests_and_ends_with_an_exception():
    before = bound()
    with pytest.raises(KeyError), halfgnn.pyg.accelerate(fuse=False), halfgnn.pyg.accelerate():
        raise KeyError
    assert changed(before) == set()
    with halfgnn.pyg.accelerate(fuse=False):
        with halfgnn.pyg.accelerate():
            pass
        patched = changed(before)
        assert patched and (upstream.GATConv, "forward") not in patched
        halfgnn.pyg.patch(fuse=False)
    assert changed(before) == patched
    halfgnn.pyg.unpatch()
    assert changed(before) == set()


def test_backward_after_the_block():
    conv, x = upstream.GraphConv(WIDTH, 4).double(), randn(NUM_NODES, WIDTH, seed=1).requires_grad_()
    expected = torch.autograd.grad(conv(x, edges()).sum(), x)
    with halfgnn.pyg.accelerate():
        out = conv(x, edges())
    assert_same(torch.autograd.grad(out.sum(), x), expected)


def test_threads():
    conv = upstream.GAT(WIDTH, 6, 2, 4, heads=2).double()
    inputs = [(randn(n, WIDTH, seed=n), edges(n, n)) for n in (30, 40, 50)]
    expected = [conv(*args).detach() for args in inputs]
    wrong = []

    def work(args, out):
        for _ in range(10):
            if not torch.allclose(conv(*args), out):
                wrong.append(args)

    with halfgnn.pyg.accelerate():
        threads = [threading.Thread(target=work, args=pair) for pair in zip(inputs, expected)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == [] and fell_back() == set()


def test_inference_then_training():
    conv, x, edge_index = upstream.GCN(WIDTH, 6, 2, 4).double(), randn(NUM_NODES, WIDTH, seed=1), edges()
    with halfgnn.pyg.accelerate():
        with torch.inference_mode():
            expected = conv(x, edge_index)
        actual = conv(x, edge_index)
        actual.sum().backward()
    assert_same([actual], [expected])


def test_without_torch_geometric(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch_geometric.nn", None)  # as if it were not installed
    monkeypatch.delitem(sys.modules, "halfgnn.pyg")
    with pytest.raises(ImportError, match=r"halfgnn\.pyg needs torch_geometric, which cannot be imported"):
        importlib.import_module("halfgnn.pyg")


def test_modules_in_a_container_are_routed():
    model = upstream.Sequential(
        "x, edge_index",
        [(upstream.GCNConv(WIDTH, 6), "x, edge_index -> x"), nn.ReLU(inplace=True), (nn.Linear(6, 2), "x -> x")],
    ).double()
    x = randn(NUM_NODES, WIDTH, seed=1)
    expected = model(x, edges())
    with halfgnn.pyg.accelerate():
        assert_same([model(x, edges())], [expected])
    assert "gspmm:u_mul_e_sum" in routed()


@pytest.mark.parametrize("has_loops", [True, False])
@pytest.mark.parametrize("name", ["remove_self_loops", "add_self_loops", "add_remaining_self_loops"])
def test_self_loops_at_every_call(name, has_loops):
    """What is learned of an edge_index at one call is right at the next, and is forgotten when it is written to."""
    edge_index = edges()
    edge_index = edge_index if has_loops else edge_index[:, edge_index[0] != edge_index[1]]
    weight = randn(edge_index.shape[1], 2, seed=1).requires_grad_()
    options = (
        [{}] if name == "remove_self_loops" else [{}, {"fill_value": 2.5}, {"fill_value": "mean"}, {"num_nodes": 50}]
    )

    def results():
        made = []
        for _ in range(3):
            for option in options:
                made += [
                    *getattr(utils, name)(edge_index, **option)[:1],
                    *getattr(utils, name)(edge_index, weight, **option),
                ]
        return [*made, *torch.autograd.grad(sum(x.sum() for x in made if x.is_floating_point()), weight)]

    for _ in range(2):
        expected = results()
        with halfgnn.pyg.accelerate():
            assert_same(results(), expected)
            looped = getattr(utils, name)(edge_index)[0]
            assert looped is not edge_index and looped.data_ptr() != edge_index.data_ptr()
        edge_index[:, 3] = 5  # a self-loop
