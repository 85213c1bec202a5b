"""What halfgnn.pyg.patch(tile=...) leaves as it is: calls that mix destinations, or have a state. What a program changes between
the forward and the backward."""

from __future__ import annotations

import copy

import pytest
import torch
import torch_geometric.nn as upstream
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm

import halfgnn.pyg
from halfgnn.drop_in.gate import Reason
from halfgnn.pyg.drop_in import tiles
from tests import support
from tests.pyg.test_patch_modules import EDGE, NUM_EDGES, NUM_NODES, WIDTH, assert_same, edges, randn
from tests.pyg.test_patch_tiles import MeshLayer, _small_probes, assert_tiled, results

pytestmark = pytest.mark.skipif(not support.supports("cpu", torch.float64), reason="needs float64")
assert _small_probes  # a fixture of these tests too


class Messages(upstream.MessagePassing):
    """message: of the module, x_j, x_i, e (E, 1) and the ids of destinations."""

    def __init__(self, message, **further):
        super().__init__()
        self.function, self.further = message, further
        self.scale = nn.Parameter(torch.zeros(1))
        self.register_buffer("mean", torch.zeros(WIDTH))
        self.seen, self.dropout = [], nn.Dropout(1e-9)

    def forward(self, x, edge_index):
        e = (edge_index.sum(0) % 7).view(-1, 1).to(x.dtype)
        return self.propagate(edge_index, x=x, e=e, **self.further)

    def message(self, x_j, x_i, e, index, h=None, pair=None):
        return self.function(self, x_j, x_i, e, index, h, pair)


def of_attribute(conv, x_j, x_i, e, index, h, pair):
    conv.read = x_j.sin().sum(0)
    return x_j.sin()


def of_buffer(conv, x_j, x_i, e, index, h, pair):
    conv.mean = 0.9 * conv.mean + x_j.mean(0)
    return x_j.sin() + conv.mean


def of_buffer_in_place(conv, x_j, x_i, e, index, h, pair):
    conv.mean.add_(x_j.detach().mean(0))
    return x_j.sin() + conv.mean.clone()


def of_list(conv, x_j, x_i, e, index, h, pair):
    conv.seen.append(len(x_j))
    return x_j.sin()


def of_node_rows(conv, x_j, x_i, e, index, h, pair):
    return x_j.sin() * h[index]


def of_pair(conv, x_j, x_i, e, index, h, pair):
    return x_j.sin() * pair[0]


IDS = torch.arange(NUM_NODES).view(-1, 1)


def mixed(x_j):
    return x_j.sin() - x_j.sin().mean(0)


class Updating(upstream.MessagePassing):
    def forward(self, x, edge_index):
        return self.propagate(edge_index, x=x)

    def message(self, x_j):
        return x_j.sin()

    def update(self, inputs, index):
        return inputs.index_add(0, index, torch.ones(len(index), inputs.shape[1], dtype=inputs.dtype))


class Both(upstream.MessagePassing):
    """Reads the features of all nodes beside those of sources."""

    def forward(self, x, edge_index):
        return self.propagate(edge_index, x=x)

    def message(self, x_j, x, index):
        return x_j.sin() * x[index]


def of_network(*layers):
    return lambda: Messages(lambda conv, x_j, *_: nn.Sequential(*layers).double()(x_j.sin()))


LEFT = {
    "node rows": (Reason.READS_IDS, lambda: Messages(of_node_rows, h=randn(NUM_NODES, 1, seed=9))),
    "features beside": (Reason.READS_IDS, Both),
    "rows by ids": (Reason.MIXES_EDGES, lambda: Messages(lambda c, x_j, x_i, e, index, *_: x_j.sin() * IDS[index])),
    "mean": (Reason.MIXES_EDGES, lambda: Messages(lambda c, x_j, *_: mixed(x_j))),
    "mean of dropped": (Reason.MIXES_EDGES, lambda: Messages(lambda c, x_j, *_: mixed(c.dropout(x_j)))),
    "mean times zero": (Reason.MIXES_EDGES, lambda: Messages(lambda c, x_j, *_: x_j.sin() - c.scale * x_j.sin().mean(0))),
    "graph norm": (Reason.MIXES_EDGES, of_network(upstream.LayerNorm(WIDTH))),
    "positions": (Reason.MIXES_EDGES, lambda: Messages(lambda c, x_j, *_: x_j.sin() * torch.arange(len(x_j)).view(-1, 1))),
    "attribute": (Reason.SETS_ATTRIBUTES, lambda: Messages(of_attribute)),
    "buffer": (Reason.SETS_ATTRIBUTES, lambda: Messages(of_buffer)),
    "buffer in place": (Reason.SETS_ATTRIBUTES, lambda: Messages(of_buffer_in_place)),
    "list": (Reason.SETS_ATTRIBUTES, lambda: Messages(of_list)),
    "update": (Reason.UPDATE_OF_EDGES, Updating),
    "rows in a tuple": (Reason.RAISES, lambda: Messages(of_pair, pair=(EDGE(),))),
    "in place": (Reason.RAISES, lambda: Messages(lambda c, x_j, x_i, e, *_: e.add_(1) * x_j.sin())),
    "batch norm": (Reason.BATCH_NORM, lambda: upstream.EdgeConv(nn.Sequential(nn.Linear(2 * WIDTH, 5), nn.BatchNorm1d(5)))),
    "spectral norm": (Reason.PARAMETRIZED, lambda: upstream.EdgeConv(spectral_norm(nn.Linear(2 * WIDTH, 5)))),
}  # fmt: skip


@pytest.mark.parametrize("name", LEFT)
def test_what_cannot_be_divided_is_left(name):
    """Results, gradients, and what the module holds afterwards, are those without the drop-in."""
    torch.manual_seed(1)
    reason, make = LEFT[name]
    module, x = make().double().train(), randn(NUM_NODES, WIDTH, seed=1)
    reference = copy.deepcopy(module)
    torch.manual_seed(2)
    expected = results(reference, lambda x: (x, edges()), [x])
    with halfgnn.pyg.accelerate(tile=24):
        halfgnn.pyg.reset_stats()
        torch.manual_seed(2)
        assert_same(results(module, lambda x: (x, edges()), [x]), expected)
    stats = halfgnn.pyg.stats()
    assert reason in stats["fell_back"]["tile:propagate"] and "tile:propagate" not in stats["routed"], stats
    for name, value in module.state_dict().items():
        torch.testing.assert_close(value, reference.state_dict()[name])
    assert getattr(module, "seen", None) == getattr(reference, "seen", None)


@pytest.mark.parametrize("ids", ["one destination", "first destinations"])
def test_edges_of_few_destinations(ids):
    """The tile that is looked at has several destinations with edges, or nothing is done in tiles."""
    torch.manual_seed(1)
    edge_index = edges()
    edge_index[1] = 15 if ids == "one destination" else edge_index[1] % 12
    for function, is_tiled in ((lambda c, x_j, *_: mixed(x_j), False), (lambda c, x_j, *_: x_j.cumsum(1).sin(), True)):
        module, x = Messages(function).double(), randn(NUM_NODES, WIDTH, seed=1)
        expected = results(copy.deepcopy(module), lambda x: (x, edge_index), [x])
        with halfgnn.pyg.accelerate(tile=60):
            halfgnn.pyg.reset_stats()
            assert_same(results(module, lambda x: (x, edge_index), [x]), expected)
        is_done = "tile:propagate" in halfgnn.pyg.stats()["routed"]
        assert is_done == (is_tiled and ids != "one destination")


def test_a_plan_holds_for_arguments_of_one_kind():
    """Modes, numbers and attributes decide what a module does."""
    torch.manual_seed(1)
    x = randn(NUM_NODES, WIDTH, seed=1)

    def function(conv, x_j, x_i, e, index, h, pair):
        return mixed(x_j) if pair == "mixed" or conv.is_mixed or conv.inner.training else x_j.cumsum(1).sin()

    module = Messages(function, pair="plain").double().eval()
    module.is_mixed, module.inner = False, nn.Identity()
    module.eval()

    def check(is_tiled):
        expected = results(copy.deepcopy(module), lambda x: (x, edges()), [x])
        with halfgnn.pyg.accelerate(tile=24):
            halfgnn.pyg.reset_stats()
            assert_same(results(module, lambda x: (x, edges()), [x]), expected)
        assert ("tile:propagate" in halfgnn.pyg.stats()["routed"]) == is_tiled

    check(True)
    module.further = {"pair": "mixed"}
    check(False)
    module.further, module.is_mixed = {"pair": "plain"}, True
    check(False)
    module.is_mixed = False
    check(True)


def test_a_propagate_of_ones_own_is_called():
    class Twice(MeshLayer):
        def propagate(self, edge_index, size=None, **kwargs):
            out, e = super().propagate(edge_index, size=size, **kwargs)
            return 2 * out, e

    torch.manual_seed(1)
    assert_tiled(Twice(), lambda x, e: (x, edges(), e), [randn(NUM_NODES, WIDTH, seed=1), EDGE()])


def test_what_is_written_to_after_the_call():
    """As after a residual in place, and before the step of an optimizer."""
    torch.manual_seed(1)
    conv, x, e = MeshLayer().double(), randn(NUM_NODES, WIDTH, seed=1).requires_grad_(), EDGE()

    def loss():
        h, edge = x * 1, e * 1
        out, _ = conv(h, edges(), edge)
        h.add_(out[:, WIDTH:])
        edge.zero_()
        return h.sin().sum()

    expected = torch.autograd.grad(loss(), [x, *conv.parameters()])
    with halfgnn.pyg.accelerate(tile=24):
        for actual, wanted in zip(torch.autograd.grad(loss(), [x, *conv.parameters()]), expected):
            torch.testing.assert_close(actual, wanted)
        out = conv(x, edges(), e)[0].sum()
        with torch.no_grad():
            conv.mlp[0].weight.mul_(2)
        with pytest.raises(RuntimeError, match="was modified in place before its gradient was computed"):
            out.backward()


def doubled_grad(conv, x, e):
    """Of a weight, twice of which the module has while it is called."""
    values = {name: 2 * value for name, value in conv.named_parameters()}
    out = torch.func.functional_call(conv, values, (x, edges(), e))[0].sum()
    return torch.autograd.grad(out, conv.mlp[0].weight)


def test_modules_are_as_in_the_forward():
    torch.manual_seed(1)
    conv, x, e = MeshLayer(dropout=0.5).double().train(), randn(NUM_NODES, WIDTH, seed=1).requires_grad_(), EDGE()
    with halfgnn.pyg.accelerate(tile=24):
        out = conv(x, edges(), e)[0].sum()
        conv.eval()
        out.backward()
        assert not conv.training and not conv.mlp.training
        grad = doubled_grad(conv, x, e)
    torch.testing.assert_close(grad, doubled_grad(conv, x, e))


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_the_first_call_is_in_a_checkpoint(use_reentrant):
    torch.manual_seed(1)
    conv, x, e = MeshLayer().double(), randn(NUM_NODES, WIDTH, seed=1).requires_grad_(), EDGE()
    expected = torch.autograd.grad(conv(x, edges(), e)[1].sin().sum(), x)
    with halfgnn.pyg.accelerate(tile=24):
        out = torch.utils.checkpoint.checkpoint(conv, x, edges(), e, use_reentrant=use_reentrant)[1].sin().sum()
        out.backward()
    torch.testing.assert_close(x.grad, expected[0])


def test_the_first_call_is_in_inference_mode():
    torch.manual_seed(1)
    conv, args = MeshLayer().double(), (randn(NUM_NODES, WIDTH, seed=1), edges(), EDGE())
    expected = conv(*args)
    with halfgnn.pyg.accelerate(tile=24):
        for mode in (torch.inference_mode(), torch.no_grad(), torch.enable_grad()):
            halfgnn.pyg.reset_stats()
            with mode:
                assert_same([x.detach() for x in conv(*args)], [x.detach() for x in expected])
            assert "tile:propagate" in halfgnn.pyg.stats()["routed"], mode


def test_functorch_is_left_alone():
    torch.manual_seed(1)
    conv, x, e = MeshLayer().double(), randn(NUM_NODES, WIDTH, seed=1), EDGE()

    def loss(x):
        return conv(x, edges(), e)[1].sin().sum()

    expected = torch.func.grad(loss)(x)
    with halfgnn.pyg.accelerate(tile=24):
        torch.testing.assert_close(torch.func.grad(loss)(x), expected)


def test_edges_that_are_as_many_as_nodes():
    """Whose rows a tensor has is not known."""
    torch.manual_seed(1)
    ids = edges()[:, :NUM_NODES]
    with halfgnn.pyg.accelerate(tile=8):
        halfgnn.pyg.reset_stats()
        MeshLayer().double()(randn(NUM_NODES, WIDTH, seed=1), ids, EDGE()[:NUM_NODES])
    assert Reason.ROWS_OF_EDGES in halfgnn.pyg.stats()["fell_back"]["tile:propagate"]


def test_random_numbers_after_a_plan():
    conv, args = MeshLayer(dropout=0.5).double(), (randn(NUM_NODES, WIDTH, seed=1), edges(), EDGE())
    drawn = []
    with halfgnn.pyg.accelerate(tile=24):
        for _ in range(2):  # planned, and by the plan
            torch.manual_seed(3)
            conv(*args)
            drawn.append(torch.rand(3))
    assert torch.equal(*drawn)


def test_a_size_is_kept(monkeypatch):
    """What autograd saves of a tile is at most its size."""
    conv, args = MeshLayer().double(), (randn(NUM_NODES, WIDTH, seed=1), edges(), EDGE())
    found, run = [], tiles.run_tiles
    monkeypatch.setattr(
        tiles, "run_tiles", lambda g, num_edges, *rest: (found.append(num_edges), run(g, num_edges, *rest))[1]
    )
    with halfgnn.pyg.accelerate(tile="32KiB"):
        conv(*args)
    (num_edges,) = found
    with halfgnn.pyg.accelerate(), halfgnn.common.saved.SavedMemory(at_end=True) as saved:
        out = conv(args[0], args[1][:, :num_edges], args[2][:num_edges])
    assert 2**13 < saved.bytes < 2**15
    del out


def test_the_statistics_of_a_batch_norm_are_those_of_one_call():
    torch.manual_seed(1)
    ours, reference = (LEFT["batch norm"][1]().double() for _ in range(2))
    reference.load_state_dict(ours.state_dict())
    x = randn(NUM_NODES, WIDTH, seed=1)
    reference(x, edges())
    with halfgnn.pyg.accelerate(tile=24):
        ours(x, edges())
    for name, value in ours.state_dict().items():
        torch.testing.assert_close(value, reference.state_dict()[name])


def test_hooks_see_all_messages():
    conv, seen = MeshLayer().double(), []
    conv.register_message_forward_hook(lambda module, args, out: seen.append(out.shape[0]))
    with halfgnn.pyg.accelerate(tile=24):
        conv(randn(NUM_NODES, WIDTH, seed=1), edges(), EDGE())
    assert seen == [NUM_EDGES]


def test_hooks_of_parameters_see_one_gradient():
    conv, args, seen = MeshLayer().double(), (randn(NUM_NODES, WIDTH, seed=1), edges(), EDGE()), []
    handle = conv.mlp[0].weight.register_hook(lambda grad: seen.append(grad.clone()))
    with halfgnn.pyg.accelerate(tile=24):
        for _ in range(2):  # planned, and by the plan
            conv.zero_grad()
            conv(*args)[1].sin().sum().backward()
            torch.testing.assert_close(seen.pop(), conv.mlp[0].weight.grad)
            assert not seen
        handle.remove()
        conv(*args)[1].sum().backward()
    assert not seen


@pytest.mark.parametrize("row, wrong", [(0, -1), (1, NUM_NODES)])
def test_wrong_ids_are_torch_geometrics_error(row, wrong):
    ids = edges()
    ids[row, 5] = wrong
    with halfgnn.pyg.accelerate(tile=24), pytest.raises(IndexError, match="indices"):
        MeshLayer().double()(randn(NUM_NODES, WIDTH, seed=1), ids, EDGE())
