"""PNAConv of halfgnn.pyg beside torch_geometric's."""

import pytest
import torch

import halfgnn
import halfgnn.pyg
from tests.pyg.support_pyg import theirs
from tests.support import randn

AGGREGATORS = ["mean", "max", "min", "std", "sum", "var"]
SCALERS = ["identity", "amplification", "attenuation", "linear", "inverse_linear"]
OPTIONS = {
    "plain": {},
    "towers": {"towers": 3},
    "divided": {"towers": 3, "divide_input": True},
    "edges": {"edge_dim": 5},
    "deep": {"pre_layers": 2, "post_layers": 2, "act": "leaky_relu", "act_kwargs": {"negative_slope": 0.1}},
    "trained norm": {"train_norm": True},
}


def make_inputs(name, dtype):
    """Two nodes have no in-edge."""
    gen = torch.Generator().manual_seed(1)
    index = torch.stack([torch.randint(40, (200,), generator=gen), torch.randint(38, (200,), generator=gen)])
    return randn(40, 12, dtype=dtype), index, randn(200, 5, dtype=dtype) if "edge" in name else None


def make(lib, name):
    deg = torch.tensor([2, 3, 9, 12, 8, 6])
    torch.manual_seed(3)
    return lib.PNAConv(12, 9, AGGREGATORS, SCALERS, deg, **OPTIONS[name])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", OPTIONS)
def test_like_torch_geometric(name, dtype):
    their, our = (make(lib, name) for lib in (theirs, halfgnn.pyg))
    x, index, edge_attr = make_inputs(name, dtype)
    upstream, found = randn(40, 9, dtype=dtype), []
    for conv in (their.to(dtype), our.to(dtype)):
        leaf = x.clone().requires_grad_()
        out = conv(leaf, index, edge_attr)
        found.append([out, *torch.autograd.grad(out, [leaf, *conv.parameters()], upstream)])
    # Its variances are differences of mean squares.
    limits = {"rtol": 2e-3, "atol": 2e-3} if dtype == torch.float32 else {"rtol": 1e-5, "atol": 1e-6}
    for got, wanted in zip(found[1], found[0]):
        torch.testing.assert_close(got, wanted, **limits)


def test_a_graph_takes_the_place_of_edge_index():
    x, index, _ = make_inputs("", torch.float32)
    conv, g = make(halfgnn.pyg, "plain"), halfgnn.Graph.from_edge_index(index, num_nodes=40)
    assert torch.equal(conv(x, g), conv(x, index))


def test_errors_name_the_argument():
    deg = torch.tensor([0, 3, 2])

    def build(**changes):
        options = dict(in_channels=8, out_channels=8, aggregators=["mean"], scalers=["identity"], deg=deg)
        return halfgnn.pyg.PNAConv(**{**options, **changes})

    conv, index = build(), torch.tensor([[0, 1], [1, 2]])
    with pytest.raises(ValueError, match="x has shape"):
        conv(torch.ones(3, 7), index)
    with pytest.raises(ValueError, match="edge_attr is given"):
        conv(torch.ones(3, 8), index, torch.ones(2, 1))
    with pytest.raises(ValueError, match="edge_attr is None"):
        build(edge_dim=2)(torch.ones(3, 8), index)


# ---- tiles -------------------------------------------------------------------------------------------------------------------


def make_tiled(name, **options):
    torch.manual_seed(3)
    deg = torch.tensor([2, 3, 9, 12, 8, 6])
    return halfgnn.pyg.PNAConv(12, 9, AGGREGATORS, SCALERS, deg, **OPTIONS[name], **options).double()


def step(conv, name):
    """Results and gradients. The second half of a step is in evaluation."""
    torch.manual_seed(4)
    x, index, edge_attr = make_inputs(name, torch.float64)
    leaves = [part.requires_grad_() for part in (x, edge_attr) if part is not None]
    out = conv.train()(x, index, edge_attr)
    conv.eval()
    return [out, *torch.autograd.grad(out.sin().sum(), [*leaves, *conv.parameters()])]


@pytest.mark.parametrize("by", ["argument", "patch"])
@pytest.mark.parametrize("name", ["edges", "deep"])
def test_messages_in_tiles(name, by):
    expected, conv = step(make_tiled(name), name), make_tiled(name, **({"tile": 24} if by == "argument" else {}))
    halfgnn.pyg.reset_stats()
    if by == "patch":
        halfgnn.pyg.patch(tile=24)
    for got, wanted in zip(step(conv, name), expected):
        torch.testing.assert_close(got, wanted)
    assert halfgnn.pyg.stats()["routed"]["tile:PNAConv"] == 1


def test_what_needs_no_messages_is_not_in_tiles():
    conv = make_tiled("plain", tile=24)
    halfgnn.pyg.reset_stats()
    step(conv, "plain")
    assert not halfgnn.pyg.stats()["routed"]


def test_tiles_draw_the_masks_of_the_forward():
    """A finite difference agrees with the gradient, which is computed in evaluation."""
    conv, (x, index, _) = make_tiled("deep", tile=24), make_inputs("deep", torch.float64)
    conv.pre_nns[0].append(torch.nn.Dropout(0.5))
    direction = torch.randn_like(x)

    def total(x):
        torch.manual_seed(2)
        return conv.train()(x, index).square().sum()

    loss = total(x.requires_grad_())
    conv.eval()
    (grad,) = torch.autograd.grad(loss, x)
    with torch.no_grad():
        difference = (total(x + 1e-6 * direction) - total(x - 1e-6 * direction)) / 2e-6
    torch.testing.assert_close((grad * direction).sum(), difference, rtol=1e-6, atol=1e-6)


def test_tiles_keep_nothing_per_edge():
    x, index, edge_attr = make_inputs("edges", torch.float64)
    kept = []
    for tile in (24, None):
        with halfgnn.common.saved.SavedMemory(at_end=True, num_edges=200) as saved:
            out = make_tiled("edges", tile=tile)(x, index, edge_attr)
        kept.append(saved.bytes)
        del out
    assert kept[0] == 0 < kept[1]


@pytest.mark.parametrize("reason", ["hooks", "batch norm of messages"])
def test_what_cannot_be_in_tiles(reason):
    expected, conv = make_tiled("deep"), make_tiled("deep", tile=24)
    seen = []
    for each in (expected, conv):
        if reason == "hooks":
            each.pre_nns[0][0].register_forward_hook(lambda module, args, out: seen.append(len(out)))
        else:
            torch.nn.init.ones_(each.pre_nns[0].append(torch.nn.BatchNorm1d(12).double())[-1].weight)
    expected = step(expected, "deep")
    halfgnn.pyg.reset_stats()
    for got, wanted in zip(step(conv, "deep"), expected):
        torch.testing.assert_close(got, wanted)
    assert halfgnn.pyg.stats()["fell_back"]["tile:PNAConv"] == {reason: 1} and set(seen) <= {200}


@pytest.mark.parametrize(
    "tile, error", [(0, ValueError), ("1 parsec", ValueError), (2.5, TypeError), (True, TypeError)]
)
def test_wrong_tiles(tile, error):
    with pytest.raises(error, match="tile is"):
        make_tiled("plain", tile=tile)
