"""Layers of several relations under halfgnn.pyg.patch(): edges that are selected at every call, and weights per edge."""

from __future__ import annotations

import gc

import pytest
import torch
import torch_geometric.nn as upstream

import halfgnn.pyg
from halfgnn.compiled import thresholds as compiled_thresholds
from halfgnn.graphs_by_tensor import edge_index as edge_index_graphs
from halfgnn.graphs_by_tensor import store
from tests import support
from tests.pyg.test_patch_modules import (
    NUM_EDGES,
    NUM_NODES,
    WIDTH,
    assert_same,
    check,
    edges,
    made,
    randn,
    routed,
)
from tests.support_compiled import compiled

pytestmark = pytest.mark.skipif(not support.supports("cpu", torch.float64), reason="needs float64")
NUM_RELATIONS = 3


def types():
    return torch.arange(NUM_EDGES) % NUM_RELATIONS


@pytest.fixture
def graphs(monkeypatch):
    """The edge_index of each Graph that was made."""
    found = []
    make = edge_index_graphs._make
    monkeypatch.setattr(edge_index_graphs, "_make", lambda *args: found.append(args[0]) or make(*args))
    return found


@pytest.mark.parametrize("is_compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("layer", [upstream.RGCNConv, upstream.FiLMConv])
def test_edges_of_a_relation_are_sorted_once(graphs, layer, is_compiled, monkeypatch):
    """Dynamo does not compile the loop over the relations, because it ends its graph at a boolean mask (torch 2.11)."""
    monkeypatch.setattr(compiled_thresholds, "MESSAGE", 0)
    conv = layer(WIDTH, 4, num_relations=NUM_RELATIONS).double()
    x, edge_index, known = randn(NUM_NODES, WIDTH, seed=1), edges(), len(store.known)
    expected = [conv(x, edge_index, edge_type) for edge_type in (types(), types().flip(0))]
    run = compiled(conv) if is_compiled else conv
    with halfgnn.pyg.accelerate():
        for _ in range(3):
            assert_same([run(x, edge_index, types())], expected[:1])
        assert len(graphs) == NUM_RELATIONS
        assert_same([run(x, edge_index, types().flip(0))], expected[1:])  # other edges, as many
    graphs.clear()
    del edge_index
    gc.collect()
    assert len(store.known) == known


def test_selected_edges_that_are_written_to_are_new():
    conv, x, edge_index = upstream.SAGEConv(WIDTH, 4).double(), randn(NUM_NODES, WIDTH, seed=1), edges()
    with halfgnn.pyg.accelerate():
        for k in range(4):
            selected = edge_index[:, types() == 0]
            conv(x, selected)
            selected.copy_(selected.roll(1 + k, 1).flip(0))
            actual = conv(x, selected)
            with torch.no_grad():
                mean = torch.zeros(NUM_NODES, NUM_NODES).double()
                mean.index_put_((selected[1], selected[0]), torch.ones(()).double(), accumulate=True)
                mean /= mean.sum(1, keepdim=True).clamp(min=1)
                assert_same([actual], [conv.lin_l(mean @ x) + conv.lin_r(x)])


def test_few_selections_are_kept():
    conv, x, edge_index = upstream.SAGEConv(WIDTH, 4).double(), randn(NUM_NODES, WIDTH, seed=1), edges()
    with halfgnn.pyg.accelerate():
        for k in range(20):
            conv(x, edge_index[:, torch.arange(NUM_EDGES) % 20 != k])
    kept = [columns.shape[1] for columns, *_ in store.topology_of(edge_index).selections]
    assert 0 < sum(kept) <= store.SELECTED * NUM_EDGES


# ---- weights per edge --------------------------------------------------------------------------------------------------------

MANY = 20  # relations, for which there are fewer edges than pairs of a node and a relation


class Relational(upstream.MessagePassing):
    """A user's message of x_j (E, WIDTH), x_i, weights (relations, WIDTH, 4) and edge_type (E,)."""

    def __init__(self, function, num_relations=NUM_RELATIONS):
        super().__init__(aggr="add")
        self.function, self.weight = function, torch.nn.Parameter(randn(num_relations, WIDTH, 4, seed=3))

    def forward(self, x, edge_index, edge_type):
        return self.propagate(edge_index, x=x, edge_type=edge_type)

    def message(self, x_j, x_i, edge_type):
        return self.function(x_j, x_i, self.weight, edge_type)


def summed(x_j, x_i, weight, edge_type):
    w = weight[edge_type]
    return torch.bmm(x_j.unsqueeze(1), w).squeeze(1) + (x_i.unsqueeze(1) @ w).squeeze(1)


def hooked(x_j, x_i, weight, edge_type):
    w = weight[edge_type]
    w.register_hook(lambda grad: 2 * grad)
    return x_j.unsqueeze(1).bmm(w).squeeze(1)


def written(x_j, x_i, weight, edge_type):
    w = weight[edge_type]
    w *= 2
    w[0] = 1
    return x_j.unsqueeze(1).bmm(w).squeeze(1)


def detached(x_j, x_i, weight, edge_type):
    return x_j.unsqueeze(1).bmm(weight[edge_type].detach()).squeeze(1)


def without_gradient(x_j, x_i, weight, edge_type):
    with torch.no_grad():
        w = weight[edge_type]
    return x_j.unsqueeze(1).bmm(w).squeeze(1)


NODES, EDGES = {"relations:nodes"}, {"relations:edges"}
FORMS = {  # name: (message, what is routed beside reductions)
    "bmm": (lambda x, y, w, t: torch.bmm(x.unsqueeze(-2), w[t]).squeeze(-2), NODES),
    "matmul of index_select": (lambda x, y, w, t: torch.matmul(y[:, None], torch.index_select(w, 0, t))[:, 0], NODES),
    "both sides": (summed, NODES),
    "of a function of nodes": (lambda x, y, w, t: torch.bmm(x.relu().unsqueeze(1), w[t]).squeeze(1), NODES),
    "of edges": (lambda x, y, w, t: torch.bmm((x * y).unsqueeze(1), w[t]).squeeze(1), EDGES),
    "max": (lambda x, y, w, t: torch.bmm(x.unsqueeze(1), w[t]).squeeze(1).clamp(max=1), NODES),
    "of weights": (lambda x, y, w, t: torch.bmm(x.unsqueeze(1), (2 * w)[t]).squeeze(1), NODES),
    "detached": (detached, NODES),
    "without gradient": (without_gradient, NODES),
    "scaled": (lambda x, y, w, t: torch.bmm(x.unsqueeze(1), 2 * w[t]).squeeze(1), set()),
    "einsum": (lambda x, y, w, t: torch.einsum("ek,ekm->em", x, w[t]), set()),
    "hooked": (hooked, set()),
    "written": (written, set()),
    "a sum": (lambda x, y, w, t: x[:, :4] + w[t].sum(1), set()),
}


@pytest.fixture
def any_size(monkeypatch):
    monkeypatch.setattr(halfgnn.pyg.drop_in.relations, "_SMALLEST", 1)


def of_relations():
    return {name for name in routed() if name.startswith("relations")}


@pytest.mark.parametrize("num_relations", [NUM_RELATIONS, MANY])
@pytest.mark.parametrize("name", FORMS)
def test_weights_per_edge(any_size, name, num_relations):
    function, expected = FORMS[name]
    check(
        Relational(function, num_relations),
        [randn(NUM_NODES, WIDTH, seed=1)],
        edges(),
        torch.arange(NUM_EDGES) % num_relations,
    )
    assert of_relations() == (EDGES if num_relations == MANY and expected else expected)


RGAT = {
    "RGATConv": {},
    "RGATConv, bases": {"num_bases": 2},
    "RGATConv, products": {"attention_mode": "multiplicative-self-attention", "dim": 2},
    "RGATConv, within relations": {"attention_mechanism": "within-relation", "mod": "scaled"},
}


@pytest.mark.parametrize("name", [*RGAT, "FastRGCNConv"])
def test_layers_with_weights_per_edge(any_size, name):
    kind, options = (upstream.RGATConv, {"heads": 2, **RGAT[name]}) if name in RGAT else (upstream.FastRGCNConv, {})
    conv = made(lambda: kind(WIDTH, 4, num_relations=NUM_RELATIONS, **options))
    check(conv, [randn(NUM_NODES, WIDTH, seed=1)], edges(), types())
    assert of_relations() == NODES


@pytest.mark.parametrize("is_inference", [False, True])
def test_weights_per_edge_without_gradient(any_size, is_inference):
    conv, x, edge_index = Relational(FORMS["bmm"][0]), randn(NUM_NODES, WIDTH, seed=1), edges()
    with torch.inference_mode(is_inference), torch.no_grad():
        expected = conv(x, edge_index, types())
        with halfgnn.pyg.accelerate():
            for _ in range(2):
                assert_same([conv(x, edge_index, types())], [expected])
    assert of_relations() == (set() if is_inference else NODES)


def test_relations_that_are_out_of_range_raise_pytorchs_error(any_size):
    conv, x = (
        Relational(lambda x, y, w, t: torch.bmm(x.unsqueeze(1), w[t + 1]).squeeze(1)),
        randn(NUM_NODES, WIDTH, seed=1),
    )
    with halfgnn.pyg.accelerate(), pytest.raises(IndexError):
        conv(x, edges(), types())


def test_pairs_of_nodes_and_relations_are_made_once(any_size, graphs):
    conv, x, edge_index, edge_type = Relational(summed), randn(NUM_NODES, WIDTH, seed=1), edges(), types()
    with halfgnn.pyg.accelerate():
        counts = []
        for _ in range(3):
            conv(x.requires_grad_(), edge_index, edge_type).sum().backward()
            counts.append(len(graphs))
        assert counts[0] == counts[2] > 0
        edge_type.copy_(edge_type.flip(0))
        actual = conv(x, edge_index, edge_type)
    assert_same([actual], [conv(x, edge_index, edge_type)])
