"""Shapes and strides of messages and of what they are reduced to, under halfgnn.pyg.patch(): they are torch_geometric's."""

from __future__ import annotations

import pytest
import torch
from torch_geometric.nn import MessagePassing
from torch_geometric.nn.aggr import SoftmaxAggregation
from torch_geometric.utils import scatter, softmax

import halfgnn.pyg
from tests import support

pytestmark = pytest.mark.skipif(not support.supports("cpu", torch.float64), reason="needs float64")
WIDTH = 16


class Layer(MessagePassing):
    def __init__(self, function, aggr="sum"):
        super().__init__(aggr=aggr, node_dim=0)
        self.function = function

    def forward(self, x, edge_index, w):
        return self.propagate(edge_index, x=x, w=w)

    def message(self, x_i, x_j, w):
        return self.function(x_i, x_j, w)


def inputs(num_nodes, num_edges, width=WIDTH):
    generator = torch.Generator().manual_seed(num_nodes)
    edge_index = torch.randint(num_nodes, (2, num_edges), generator=generator)
    x, w = (
        torch.randn(rows, columns, generator=generator).double()
        for rows, columns in ((num_nodes, width), (num_edges, 1))
    )
    return x, edge_index, w


def pairs(x_i, x_j, w):
    """A message for each pair of edges: expand adds a dimension in front of that of the edges."""
    return (x_i.unsqueeze(1) * x_j.expand(len(x_j), -1, -1)).mean(1)


@pytest.mark.parametrize("num_nodes,num_edges,width", [(40, 40, 40), (12, 12, 5), (7, 30, 30), (40, 30, 40)])
def test_an_expand_in_front_of_the_edges(num_nodes, num_edges, width):
    args = inputs(num_nodes, num_edges, width)
    expected = Layer(pairs)(*args)
    with halfgnn.pyg.accelerate():
        torch.testing.assert_close(Layer(pairs)(*args), expected)


MESSAGES = {
    "slice": lambda x_i, x_j, w: (x_j * w)[:, : WIDTH // 2],
    "every other": lambda x_i, x_j, w: (x_j * w)[:, ::2],
    "transposed": lambda x_i, x_j, w: (x_j * w).view(-1, 4, 4).transpose(1, 2),
    "selected": lambda x_i, x_j, w: (x_j * w).view(-1, 4, 4)[:, 1],
    "expanded": lambda x_i, x_j, w: (x_j[:, :1] * w).expand(-1, WIDTH),
    "of the destination": lambda x_i, x_j, w: x_i,
    "destination, weighted": lambda x_i, x_j, w: x_i * w,
    "transposed, then a function": lambda x_i, x_j, w: (x_j * w).view(-1, 4, 4).transpose(1, 2).relu(),
    "transposed, then a product": lambda x_i, x_j, w: x_j.view(-1, 4, 4).transpose(1, 2) * w.unsqueeze(-1),
}


@pytest.mark.parametrize("is_transposed", [False, True])
@pytest.mark.parametrize("aggr", ["sum", "mean", "max"])
@pytest.mark.parametrize("name", MESSAGES)
def test_results_are_contiguous(name, aggr, is_transposed):
    x, edge_index, w = inputs(24, 60)
    x = x.t().contiguous().t() if is_transposed else x
    layer = Layer(MESSAGES[name], aggr)
    expected = layer(x, edge_index, w)
    with halfgnn.pyg.accelerate():
        actual = layer(x, edge_index, w)
    assert actual.is_contiguous() and expected.is_contiguous()
    torch.testing.assert_close(actual, expected)
    for out in (actual, expected):
        out[:, 0] = 5
        out.relu_()
    torch.testing.assert_close(actual.view(-1), expected.view(-1))


@pytest.mark.parametrize("has_gradients", [False, True])
def test_what_is_expanded_is_materialized(has_gradients):
    """The places of a new dimension share their memory."""
    x, edge_index, w = inputs(24, 60)
    layer = Layer(lambda x_i, x_j, w: x_j.unsqueeze(2).expand(-1, -1, 3), SoftmaxAggregation())

    def run():
        leaf = x.clone().requires_grad_(has_gradients)
        out = layer(leaf, edge_index, w)
        return [out, *(torch.autograd.grad(out.sin().sum(), leaf) if has_gradients else ())]

    expected = run()
    with halfgnn.pyg.accelerate():
        for actual, wanted in zip(run(), expected, strict=True):
            torch.testing.assert_close(actual, wanted)


@pytest.mark.parametrize("name", ["slice", "transposed", "expanded"])
def test_gathered_rows_are_reduced_to_contiguous_ones(name):
    x, (src, dst), w = inputs(24, 60)

    def run():
        rows = MESSAGES[name](None, x[src], w)
        added = torch.zeros(24, *rows.shape[1:], dtype=x.dtype).index_add(0, dst, rows)
        return scatter(rows, dst, dim=0, dim_size=24), added

    expected = run()
    with halfgnn.pyg.accelerate(fuse=True):
        actual = run()
    for a, b in zip(actual, expected):
        torch.testing.assert_close(a, b, check_stride=True)


LAYOUTS = {
    "function": lambda x: x.tanh(),
    "sum": lambda x: x + x,
    "with a matrix": lambda x: x * torch.arange(16.0, dtype=x.dtype).view(4, 4),
    "with a row": lambda x: x * torch.arange(4.0, dtype=x.dtype),
    "clone": lambda x: x.clone(),
    "contiguous": lambda x: x.contiguous(),
    "negative": lambda x: 1 - x,
    "sum of features": lambda x: x.sum(-1),
    "joined": lambda x: torch.cat([x, x], -1),
}


@pytest.mark.parametrize("combined", [lambda x_i, x_j: x_j, lambda x_i, x_j: x_i * x_j], ids=["one side", "both sides"])
@pytest.mark.parametrize("name", LAYOUTS)
def test_strides_of_messages(name, combined):
    """So view() of what is made of a transposed message works and fails as on PyTorch's tensors."""
    strides = []

    def message(x_i, x_j, w):
        out = LAYOUTS[name](combined(x_i, x_j).view(-1, 4, 4).transpose(1, 2))
        strides.append(out.stride())
        assert (out + 1).stride() == out.stride()  # which reads its values
        return out.reshape(len(out), -1)

    args = inputs(24, 60)
    expected = Layer(message)(*args)
    with halfgnn.pyg.accelerate():
        torch.testing.assert_close(Layer(message)(*args), expected)
    assert strides[0] == strides[1]


def test_features_by_a_flow_that_torch_geometric_counts_the_other_way_round():
    """torch_geometric 2.8.1 gathers x_j from x[0] by row 1 of edge_index, and notes the rows of x[0] as those of row 0."""
    x = torch.randn(9, WIDTH).double(), torch.randn(3, WIDTH).double()
    edge_index = torch.stack([torch.tensor([0, 1, 2, 2]), torch.tensor([8, 3, 0, 8])])
    layer = Layer(lambda x_i, x_j, w: x_j * w)
    layer.flow = "target_to_source"
    expected = layer(x, edge_index, torch.ones(4, 1).double())
    with halfgnn.pyg.accelerate():
        torch.testing.assert_close(layer(x, edge_index, torch.ones(4, 1).double()), expected)


class Padded(Layer):
    """It reduces to more rows than there are nodes."""

    def aggregate(self, inputs, index, dim_size):
        return super().aggregate(inputs, index, dim_size=dim_size + 3)


@pytest.mark.parametrize("aggr", ["sum", "mean", "max"])
@pytest.mark.parametrize("name", ["of the destination", "destination, weighted", "selected"])
def test_more_results_than_nodes(name, aggr):
    args = inputs(24, 60)
    layer = Padded(MESSAGES[name], aggr)
    expected = layer(*args)
    assert len(expected) == 27
    with halfgnn.pyg.accelerate():
        torch.testing.assert_close(layer(*args), expected)


PERMUTED = {
    "columns": lambda n: torch.randn(WIDTH, n).t(),
    "heads": lambda n: torch.randn(n, WIDTH, 2).transpose(1, 2),
    "all": lambda n: torch.randn(WIDTH, 2, n).permute(2, 1, 0),
    "every other": lambda n: torch.randn(n, 2 * WIDTH)[:, ::2],
    "expanded": lambda n: torch.randn(n, 1).expand(n, WIDTH),
}
FUNCTIONS = {
    "softmax": lambda x, index: softmax(x, index, num_nodes=9),
    "softmax by ptr": lambda x, index: softmax(x, ptr=torch.tensor([0, 10, 10, len(x)])),
    "scatter": lambda x, index: scatter(x, index, dim=0, dim_size=9),
    "mean": lambda x, index: scatter(x, index, dim=0, dim_size=9, reduce="mean"),
    "x[index]": lambda x, index: x[index],
    "index_select": lambda x, index: x.index_select(0, index),
}


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("layout", PERMUTED)
def test_functions_of_permuted_rows(layout, function, requires_grad):
    x, index = PERMUTED[layout](60).requires_grad_(requires_grad), torch.randint(9, (60,))
    expected = FUNCTIONS[function](x, index)
    for fuse in (False, True):
        with halfgnn.pyg.accelerate(fuse=fuse):
            torch.testing.assert_close(FUNCTIONS[function](x, index), expected, check_stride=True)
