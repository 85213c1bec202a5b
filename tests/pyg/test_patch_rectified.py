"""Messages that are relu of a destination's row and of what both ends make, as FiLM's, under halfgnn.pyg.patch()."""

from __future__ import annotations

import pytest
import torch
import torch_geometric.nn as upstream

from tests import support
from tests.pyg.test_patch_modules import NUM_EDGES, NUM_NODES, WIDTH, check, edges, made, randn, routed

pytestmark = pytest.mark.skipif(not support.supports("cpu", torch.float64), reason="needs float64")


class Modulated(upstream.MessagePassing):
    """A user's message of x_j, scale_i, shift_i (nodes, WIDTH) and a weight of edges."""

    def __init__(self, function, aggr):
        super().__init__(aggr=aggr)
        self.function = function

    def forward(self, inputs, edge_index, weight):
        x, scale, shift = inputs
        return self.propagate(edge_index, x=x, scale=scale, shift=shift, weight=weight)

    def message(self, x_j, scale_i, scale_j, shift_i, weight):
        return self.function(x_j, scale_i, scale_j, shift_i, weight.view(-1, 1))


FORMS = {  # name: (message, operators that make the summands of edges)
    "film": (lambda x, a, aj, b, w: (a * x + b).relu(), {"gsddmm:v_mul_u"}),
    "reversed": (lambda x, a, aj, b, w: torch.relu(b + x * a), {"gsddmm:u_mul_v"}),
    "quotient": (lambda x, a, aj, b, w: (x / (1 + a * a) + b).relu(), {"gsddmm:u_div_v"}),
    "with weights": (lambda x, a, aj, b, w: (w * x * a + b).relu(), None),
    "of the source": (lambda x, a, aj, b, w: (a * x + aj).relu(), None),
    "narrow": (lambda x, a, aj, b, w: (a[:, :1] * x[:, :1] + b).relu(), None),
    "weighted": (lambda x, a, aj, b, w: w * (a * x + b).relu(), None),
    "of edges": (lambda x, a, aj, b, w: (b + w).relu(), None),
}


@pytest.mark.parametrize("flow", ["source_to_target", "target_to_source"])
@pytest.mark.parametrize("aggr", ["sum", "mean", "max"])
@pytest.mark.parametrize("name", FORMS)
def test_relu_of_what_both_ends_make(name, aggr, flow):
    function, made_of = FORMS[name]
    conv = Modulated(function, aggr)
    conv.flow = flow
    inputs = [randn(NUM_NODES, WIDTH, seed=k) for k in range(3)]
    weight = randn(NUM_EDGES, seed=4)
    check(conv, inputs, edges(), weight)
    if made_of is not None:
        assert routed() == {*made_of, f"gspmm:u_relu_add_e_{aggr}"}


def test_film():
    conv = made(lambda: upstream.FiLMConv(WIDTH, 6, 3))
    check(conv, [randn(NUM_NODES, WIDTH, seed=1)], edges(), torch.arange(NUM_EDGES) % 3)
    assert routed() == {"gsddmm:v_mul_u", "gspmm:u_relu_add_e_mean"}
