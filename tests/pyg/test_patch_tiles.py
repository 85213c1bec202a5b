"""halfgnn.pyg.patch(tile=...): unmodified modules on tiles of destinations, beside the same modules without the drop-in."""

from __future__ import annotations

import copy

import pytest
import torch
import torch_geometric.nn as upstream
from torch import nn
from torch_geometric import utils

import halfgnn.pyg
from halfgnn.pyg.drop_in import tiles
from halfgnn.pyg.drop_in.options import ON
from halfgnn.tiles import sizes
from tests import support
from tests.pyg.test_patch_modules import EDGE, MODELS, MODULES, NUM_NODES, WIDTH, assert_same, edges, randn

pytestmark = pytest.mark.skipif(not support.supports("cpu", torch.float64), reason="needs float64")


@pytest.fixture(autouse=True)
def _small_probes(monkeypatch):
    monkeypatch.setattr(sizes, "PROBED", 40)
    monkeypatch.setattr(tiles, "_SMALLEST", 1)


class MeshLayer(upstream.MessagePassing):
    """New features of edges, and sums of them: aggregate() returns both."""

    def __init__(self, flow="source_to_target", dropout=0.0, node_dim=-2):
        super().__init__(aggr="sum", flow=flow, node_dim=node_dim)
        self.mlp = nn.Sequential(nn.Linear(3 * WIDTH, WIDTH), nn.SiLU(), nn.Dropout(dropout), nn.Linear(WIDTH, WIDTH))

    def forward(self, x, edge_index, e):
        out, e = self.propagate(edge_index, x=x, e=e)
        return torch.cat([x[1] if isinstance(x, tuple) else x, out], -1), e

    def message(self, x_i, x_j, e):
        e = e.expand(*x_i.shape[:-2], *e.shape[-2:])
        return self.mlp(torch.cat([x_i, x_j, e], -1)) + e

    def aggregate(self, e, index, dim_size):
        return utils.scatter(e, index, self.node_dim, dim_size), e


def results(module, args, leaves):
    """Of a module, and the gradients of leaves and parameters."""
    leaves = [x.detach().requires_grad_() if x.is_floating_point() else x for x in leaves]
    out = module(*args(*leaves))
    out = out if isinstance(out, tuple) else (out,)
    read = [x for x in (*leaves, *module.parameters()) if x.requires_grad]
    grads = torch.autograd.grad(sum(x.sin().sum() for x in out), read, allow_unused=True)
    return [x.detach() for x in (*out, *grads) if x is not None]


def assert_tiled(module, args, leaves, tile=24, is_tiled=True, **options):
    module = module.double().eval()
    expected = results(copy.deepcopy(module), args, leaves)
    for _ in range(2):  # planned, and by the plan
        with halfgnn.pyg.accelerate(tile=tile, **options):
            halfgnn.pyg.reset_stats()
            assert_same(results(module, args, leaves), expected)
        stats = halfgnn.pyg.stats()
        assert any(name.startswith("tile:") for name in stats["routed"]) == is_tiled, stats
    return stats


TILED = {"SAGEConv-mul", "ClusterGCNConv", "GATConv", "ResGatedGraphConv", "GENConv", "GATv2Conv"}


@pytest.mark.parametrize("tile", [24, "2KiB"])
@pytest.mark.parametrize("name", MODULES)
def test_modules(name, tile):
    """Those whose messages are lowered are run at once, as a whole."""
    torch.manual_seed(1)
    make, further, *_ = MODULES[name]
    module, leaves = make().double().eval(), [randn(NUM_NODES, WIDTH, seed=1), *(make() for make in further)]

    def args(x, *rest):
        return x, edges(), *rest

    expected = results(copy.deepcopy(module), args, leaves)
    with halfgnn.pyg.accelerate(tile=tile, fuse=False):
        halfgnn.pyg.reset_stats()
        assert_same(results(module, args, leaves), expected)
    routed = halfgnn.pyg.stats()["routed"]
    if tile == 24:
        assert any(key.startswith("tile:") for key in routed) == (name in TILED), routed


@pytest.mark.parametrize("name", MODELS)
def test_models(name):
    torch.manual_seed(1)
    module, x = MODELS[name][0]().double().eval(), randn(NUM_NODES, WIDTH, seed=1)
    expected = results(copy.deepcopy(module), lambda x: (x, edges()), [x])
    with halfgnn.pyg.accelerate(tile=24):
        assert_same(results(module, lambda x: (x, edges()), [x]), expected)


@pytest.mark.parametrize("flow", ["source_to_target", "target_to_source"])
@pytest.mark.parametrize("is_bipartite", [False, True])
def test_new_features_of_edges(flow, is_bipartite):
    torch.manual_seed(1)
    x, y, e = randn(NUM_NODES, WIDTH, seed=1), randn(26, WIDTH, seed=2), EDGE()
    ids = edges() if flow == "source_to_target" else edges().flip(0)
    if not is_bipartite:
        assert_tiled(MeshLayer(flow), lambda x, e: (x, ids, e), [x, e])
        return
    if flow == "source_to_target":
        assert_tiled(MeshLayer(flow), lambda x, y, e: ((x, y), ids, e), [x, y, e])


def test_copies_of_a_graph():
    torch.manual_seed(1)
    x, e = randn(3, NUM_NODES, WIDTH, seed=1), EDGE()
    assert_tiled(MeshLayer(), lambda x, e: (x, edges(), e), [x, e])
    assert_tiled(MeshLayer(), lambda x, e: (x, edges(), e), [x, torch.stack([e, e, -e])])


@pytest.mark.parametrize("kind", ["max", "softmax", ["mean", "std", "min"]])
def test_aggregations(kind):
    torch.manual_seed(1)
    conv = upstream.PointNetConv(nn.Sequential(nn.Linear(WIDTH + 3, WIDTH), nn.ReLU()), aggr=kind, add_self_loops=False)
    assert_tiled(conv, lambda x, pos: (x, pos, edges()), [randn(NUM_NODES, WIDTH, seed=1), randn(NUM_NODES, 3, seed=2)])


def test_dropout_draws_the_same_numbers_in_the_backward():
    """A finite difference of the sum agrees with the gradient if the masks are those of the forward."""
    torch.manual_seed(1)
    conv, x, e = MeshLayer(dropout=0.5).double().train(), randn(NUM_NODES, WIDTH, seed=1), EDGE()
    direction = randn(NUM_NODES, WIDTH, seed=3)

    def total(x):
        torch.manual_seed(2)
        return conv(x, edges(), e)[1].square().sum()

    with halfgnn.pyg.accelerate(tile=24):
        x.requires_grad_()
        (grad,) = torch.autograd.grad(total(x), x)
        with torch.no_grad():
            difference = (total(x + 1e-6 * direction) - total(x - 1e-6 * direction)) / 2e-6
    torch.testing.assert_close((grad * direction).sum(), difference, rtol=1e-6, atol=1e-6)


# ---- the option ----------------------------------------------------------------------------------------------------------------


def test_the_last_value_is_on():
    propagate = vars(upstream.EdgeConv).get("propagate")
    with halfgnn.pyg.accelerate(tile=64):
        assert ON.tile == 64
        with halfgnn.pyg.accelerate(tile="2MiB"):
            assert ON.tile == "2MiB"
            with halfgnn.pyg.accelerate(tile=64):
                assert ON.tile == 64
            assert ON.tile == "2MiB"
        with halfgnn.pyg.accelerate():
            assert ON.tile == 64
    assert ON.tile is None
    assert vars(upstream.EdgeConv).get("propagate") is propagate
    for tile in (64, 32, 64):
        halfgnn.pyg.patch(tile=tile)
        assert ON.tile == tile
    halfgnn.pyg.unpatch()
    assert ON.tile is None


def test_classes_that_are_made_later():
    class Later(MeshLayer):
        pass

    with halfgnn.pyg.accelerate(tile=24):
        halfgnn.pyg.reset_stats()
        conv = Later().double()
        conv(randn(NUM_NODES, WIDTH, seed=1), edges(), EDGE())
        assert halfgnn.pyg.stats()["routed"]["tile:propagate"] == 1
    halfgnn.pyg.reset_stats()
    conv(randn(NUM_NODES, WIDTH, seed=1), edges(), EDGE())
    assert not halfgnn.pyg.stats()["routed"]


def test_a_backward_after_the_block():
    torch.manual_seed(1)
    conv, x, e = MeshLayer().double(), randn(NUM_NODES, WIDTH, seed=1).requires_grad_(), EDGE()
    expected = torch.autograd.grad(conv(x, edges(), e)[1].sin().sum(), x)
    with halfgnn.pyg.accelerate(tile=24):
        out = conv(x, edges(), e)[1].sin().sum()
    torch.testing.assert_close(torch.autograd.grad(out, x), expected)


@pytest.mark.parametrize("tile, error", [(0, ValueError), ("much", ValueError), (2.5, TypeError), (False, TypeError)])
def test_wrong_values(tile, error):
    with pytest.raises(error, match="tile is"):
        halfgnn.pyg.patch(tile=tile)


def test_a_step_keeps_what_a_tile_keeps():
    conv = MeshLayer().double()
    x, e = randn(NUM_NODES, WIDTH, seed=1).requires_grad_(), EDGE().requires_grad_()
    kept = []
    for options in ({}, {"tile": 24}):
        with halfgnn.pyg.accelerate(**options), halfgnn.common.saved.SavedMemory(at_end=True) as saved:
            out = conv(x, edges(), e)
        kept.append(saved.bytes)
        del out
    assert kept[1] == 0 < kept[0]
