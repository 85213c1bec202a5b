"""Layers of codes of 8 bits are those of their values."""

import pytest
import torch

from halfgnn import Graph, nn
from halfgnn.dataloading import Codes


def make(per="row", num_src=20, num_dst=12, width=24):
    torch.manual_seed(3)
    g = Graph.from_edges(torch.randint(num_src, (80,)), torch.arange(80) % num_dst, num_src=num_src, num_dst=num_dst)
    shape = {"table": (), "row": (num_src, 1), "column": (width,)}[per]
    data = torch.randint(256, (num_src, width), dtype=torch.uint8)
    return g, Codes(data, torch.rand(shape) / 100, torch.full(shape, 128.0), torch.float32)


LAYERS = {
    "SAGEConv": lambda: nn.SAGEConv(24, 40, "mean"),
    "SAGEConv, fewer columns": lambda: nn.SAGEConv(24, 4, "mean"),
    "GINConv, sum": lambda: nn.GINConv(torch.nn.Linear(24, 8), "sum", init_eps=0.5),
    "GINConv, mean": lambda: nn.GINConv(None, "mean"),
    "GraphConv, both": lambda: nn.GraphConv(24, 8),
    "GraphConv, left": lambda: nn.GraphConv(24, 40, norm="left"),
    "GraphConv, right": lambda: nn.GraphConv(24, 40, norm="right"),
    "GraphConv, none": lambda: nn.GraphConv(24, 40, norm="none", weight=False, bias=False),
}


@pytest.mark.parametrize("per", ["table", "row", "column"])
@pytest.mark.parametrize("layer", LAYERS)
def test_layers(layer, per):
    g, codes = make(per)
    module = LAYERS[layer]()
    weight = torch.rand(g.num_edges, 1)
    for own, of_values in ((None, None), (weight, weight), (weight.view(-1), weight)):
        for feat, values in (
            (codes, codes.values()),
            ((codes, codes.values(12)), (codes.values(), codes.values(12))),
        ):
            got, expected = module(g, feat, edge_weight=own), module(g, values, edge_weight=of_values)
            torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
    parameters = list(module.parameters())
    if parameters:
        module(g, codes).sum().backward()
    assert all(parameter.grad is not None for parameter in parameters)


def test_half_layers():
    g, codes = make()
    codes = Codes(codes.data, codes.scale, codes.zero_point, torch.bfloat16)
    for layer in LAYERS.values():
        module = layer().bfloat16()
        got, expected = module(g, codes), module(g, codes.values())
        assert got.dtype == torch.bfloat16
        torch.testing.assert_close(got, expected, rtol=0.05, atol=0.05)


@pytest.mark.parametrize(
    "call, kind, message",
    [
        (lambda g, x: nn.SAGEConv(24, 4, "pool")(g, x), TypeError, "feat is codes of 8 bits, which are read by"),
        (lambda g, x: nn.SAGEConv(24, 4, "mean", feat_drop=0.5)(g, x), TypeError, "without dropout"),
        (lambda g, x: nn.SAGEConv(8, 4, "mean")(g, x), ValueError, r"feat has shape \(20, 24\); expected \(20, \*, 8\)"),
        (lambda g, x: nn.SAGEConv(24, 4, "mean")(g, (x, x)), TypeError, r"feat\[1\] is a Codes; expected a torch.Tensor"),
        (lambda g, x: nn.SAGEConv(24, 4, "mean")(g, (x,)), ValueError, "feat is a tuple of 1"),
        (lambda g, x: nn.SAGEConv((24, 8), 4, "mean")(g, x), ValueError, "feat is one tensor, but the module takes 24 features"),
        (lambda g, x: nn.SAGEConv(24, 4, "mean")(g.reverse(), x), ValueError, r"feat has shape \(20, 24\); expected 12 rows"),
        (lambda g, x: nn.GINConv(None, "max")(g, x), TypeError, "by the aggregators sum and mean"),
        (lambda g, x: nn.GraphConv(8, 4)(g, x), ValueError, r"feat has shape \(20, 24\); expected \(20, \*, 8\)"),
        (lambda g, x: nn.GraphConv(24, 4)(g, x, edge_weight=torch.rand(80, 5)), ValueError, "edge_weight has shape"),
        (lambda g, x: nn.SAGEConv(24, 4, "mean").half()(g, (x, x.values(12))), TypeError, r"feat\[1\] has dtype torch.float32 and"),
        (lambda g, x: nn.GATConv(24, 4, 2)(g, x), TypeError, r"feat is a Codes; expected a torch.Tensor: feat.values\(\)"),
    ],
)  # fmt: skip
def test_errors(call, kind, message):
    with pytest.raises(kind, match=message):
        call(*make())


OVERFLOWING = {
    "SAGEConv": lambda: nn.SAGEConv(8, 4, "mean"),
    "GraphConv": lambda: nn.GraphConv(8, 4, norm="none"),
    "GINConv": lambda: nn.GINConv(torch.nn.Linear(8, 4), "sum"),
}


@pytest.mark.parametrize("name", OVERFLOWING)
def test_a_layer_computes_in_its_own_dtype(name):
    """Whatever that of the codes is: a sum that fp16 cannot hold, by fp32 parameters."""
    g = Graph.from_edges(torch.arange(4), torch.zeros(4, dtype=torch.long), num_src=4, num_dst=1)
    codes = Codes(torch.full((4, 8), 100, dtype=torch.uint8), torch.tensor(200.0))
    layer = OVERFLOWING[name]()
    out = layer(g, codes)
    assert out.dtype == torch.float32 and out.isfinite().all()
    values = codes.values(dtype=torch.float32)
    torch.testing.assert_close(out, layer(g, (values, values[:1])), rtol=1e-5, atol=0.01)
    assert layer.bfloat16()(g, codes).dtype == torch.bfloat16


def test_more_destinations_than_sources():
    g, codes = make(num_src=5, num_dst=9)
    with pytest.raises(
        ValueError, match="feat is codes of the sources alone, but the graph has 5 source and 9 destination"
    ):
        nn.SAGEConv(24, 4, "mean")(g, codes)
