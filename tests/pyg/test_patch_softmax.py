"""Messages that are weighed by a softmax of their own under halfgnn.pyg.patch()."""

from __future__ import annotations

import pytest
import torch
import torch_geometric

import halfgnn.pyg
from tests.pyg.test_patch_modules import NUM_EDGES, NUM_NODES, WIDTH, assert_same, edges, randn


class Weighed(torch_geometric.nn.MessagePassing):
    """Messages relu(x + w) + 1 with weights of their own: softmax(3 (relu(x + w) + 1)). function: (message, weights) of the sum."""

    def __init__(self, function):
        super().__init__(aggr="sum")
        self.function = function

    def forward(self, x, edge_index, w):
        return self.propagate(edge_index, x=x, w=w)

    def message(self, x_j, w, index, size_i):
        message = (x_j + w).relu() + 1
        return self.function(message, torch_geometric.utils.softmax(3 * message, index, num_nodes=size_i))


def message_written(message, weights):
    message.mul_(2)
    return message * weights


def weights_written(message, weights):
    weights.mul_(2)
    return message * weights


@pytest.mark.parametrize(
    "function, materialized",
    [
        (lambda message, weights: message * weights, 1),
        (lambda message, weights: (message * weights).sum(-1, keepdim=True), 1),
        (lambda message, weights: message.detach() * weights, 1),
        (lambda message, weights: (message.sinh(), message.detach() * weights)[1], 1),
        (lambda message, weights: weights.detach() * message, 1),
        (message_written, None),
        (weights_written, 1),
    ],
)
def test_a_message_is_materialized_once_for_its_weights_and_their_product(function, materialized):
    x, w = randn(NUM_NODES, WIDTH, seed=1), randn(NUM_EDGES, WIDTH, seed=2)

    def run():
        leaves = [y.clone().requires_grad_() for y in (x, w)]
        out = Weighed(function)(leaves[0], edges(), leaves[1])
        with torch.no_grad():
            assert_same([Weighed(function)(x, edges(), w)], [out])
        return out.detach(), *torch.autograd.grad(out, leaves, randn(*out.shape, seed=4))

    expected = run()
    with halfgnn.pyg.accelerate():
        assert_same(run(), expected)
    if materialized is not None:
        assert halfgnn.pyg.stats()["routed"]["gsddmm:u_add_e"] == 2 * materialized  # with a gradient and without


def test_a_detached_message_that_was_read_has_no_gradient():
    class Detached(torch_geometric.nn.MessagePassing):
        def __init__(self):
            super().__init__(aggr=torch_geometric.nn.SoftmaxAggregation())

        def forward(self, x, edge_index):
            return self.propagate(edge_index, x=x)

        def message(self, x_j):
            return (x_j.detach(), x_j.sinh())[0]

    x = randn(NUM_NODES, WIDTH, seed=1).requires_grad_()
    expected = Detached()(x, edges())
    with halfgnn.pyg.accelerate():
        out = Detached()(x, edges())
    assert not out.requires_grad and not expected.requires_grad
    torch.testing.assert_close(out, expected)
