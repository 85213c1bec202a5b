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
