"""What modules of halfgnn.pyg have from torch_geometric: lazy widths, explanations, hooks, to_hetero, sparse matrices."""

import pytest
import torch
import torch_geometric
from torch import nn

import halfgnn
import halfgnn.pyg
from tests.pyg.support_pyg import make_edge_index, theirs
from tests.support_nn import IN_FEATS, NUM_NODES, assert_close, randn, seeded

KINDS = ["GATConv", "GATv2Conv", "TransformerConv", "SAGEConv", "GCNConv", "GraphConv", "ResGatedGraphConv"]


def pair_of(kind, in_channels=IN_FEATS, **options):
    return [seeded(lambda lib=lib: getattr(lib, kind)(in_channels, 8, **options)) for lib in (theirs, halfgnn.pyg)]


RESIDUAL = [(kind, {"residual": True}) for kind in ("GATConv", "GATv2Conv")]


@pytest.mark.parametrize("kind,options", [*((kind, {}) for kind in KINDS), *RESIDUAL], ids=str)
def test_widths_of_the_first_input(kind, options):
    x, edge_index = randn(NUM_NODES, IN_FEATS), make_edge_index()
    their, our = pair_of(kind, -1, **options)
    expected, actual = (seeded(lambda conv=conv: conv(x, edge_index)) for conv in (their, our))
    for parameter in their.parameters():
        assert not isinstance(parameter, nn.UninitializedParameter)
    assert_close(list(our.parameters()), list(their.parameters()))  # drawn in the same order
    our.load_state_dict(their.state_dict())
    expected = their(x, edge_index)
    assert actual.shape == expected.shape
    assert_close([our(x, edge_index)], [expected], 1e-4)


def explained(conv, x, edge_index):
    conv.explain, conv._edge_mask = True, torch.linspace(-1, 1, edge_index.shape[1])
    conv._loop_mask = edge_index[0] != edge_index[1]
    return conv(x, edge_index)


def hooked(conv, x, edge_index):
    conv.register_aggregate_forward_hook(lambda module, inputs, out: 2 * out)
    return conv(x, edge_index)


def reversed_flow(conv, x, edge_index):
    conv.flow = "target_to_source"
    return conv(x, edge_index)


def sparse(conv, x, edge_index):
    ones = torch.ones(edge_index.shape[1])
    return conv(x, torch.sparse_coo_tensor(edge_index.flip(0), ones, (NUM_NODES, NUM_NODES)).coalesce().to_sparse_csr())


def static(conv, x, edge_index):
    return conv(torch.stack([x, 2 * x]), edge_index)


LEFT = {
    "explain": (explained, ["GATConv", "SAGEConv", "TransformerConv"]),
    "hooks": (hooked, ["GATConv", "SAGEConv", "GATv2Conv", "ResGatedGraphConv"]),
    "options of MessagePassing": (reversed_flow, ["SAGEConv"]),
    "sparse edge_index": (sparse, ["SAGEConv", "GraphConv"]),
    "features of more dimensions": (static, ["SAGEConv"]),
}


@pytest.mark.parametrize("reason,kind", [(reason, kind) for reason, (_, kinds) in LEFT.items() for kind in kinds])
def test_calls_that_run_torch_geometrics_forward(reason, kind):
    call = LEFT[reason][0]
    x, edge_index = randn(NUM_NODES, IN_FEATS), make_edge_index()
    options = {"add_self_loops": False} if kind.startswith("GAT") else {}
    expected, actual = (call(conv, x, edge_index) for conv in pair_of(kind, **options))
    assert torch.equal(actual, expected)
    assert halfgnn.pyg.stats()["fell_back"] == {f"forward:{kind}": {reason: 1}}


@pytest.mark.parametrize("kind", KINDS)
def test_a_trace_follows_edge_index(kind):
    """The graph that is kept with edge_index would be a constant of the trace."""
    x, edge_index = randn(NUM_NODES, IN_FEATS), make_edge_index()
    _, conv = pair_of(kind)
    conv(x, edge_index)
    traced = torch.jit.trace(conv, (x, edge_index), check_trace=False)
    others = edge_index.flip(0)[:, 5:]
    assert_close([traced(x, others)], [conv(x, others)], 1e-4)


def test_forward_mode_derivatives():
    x, edge_index = randn(NUM_NODES, IN_FEATS), make_edge_index()
    for kind in KINDS:
        their, our = pair_of(kind)
        expected, actual = (
            torch.func.jvp(lambda x, conv=conv: conv(x, edge_index), (x,), (x.cos(),))[1] for conv in (their, our)
        )
        assert_close([actual], [expected], 1e-4)
    assert halfgnn.pyg.stats()["fell_back"]["forward:SAGEConv"] == {"forward-mode AD": 1}


class Louder(halfgnn.pyg.GATConv):
    def message(self, x_j, alpha):
        return 2 * alpha.unsqueeze(-1) * x_j


class LouderTheirs(theirs.GATConv):
    message = Louder.message


@pytest.mark.parametrize("fuse", [False, True])
def test_a_changed_message_is_called(fuse):
    x, edge_index = randn(NUM_NODES, IN_FEATS), make_edge_index()
    expected, ours = (seeded(lambda cls=cls: cls(IN_FEATS, 5)) for cls in (LouderTheirs, Louder))
    expected, graph = expected(x, edge_index), halfgnn.Graph.from_edge_index(edge_index, num_nodes=NUM_NODES)
    with halfgnn.pyg.accelerate(fuse=fuse):
        actual = [ours(x, edge_index), ours(x, graph)]
    assert_close(actual, [expected, expected], 1e-4)


class Model(nn.Module):
    def __init__(self, lib):
        super().__init__()
        self.first, self.second = lib.SAGEConv((-1, -1), 8), lib.GATConv((-1, -1), 4, add_self_loops=False)

    def forward(self, x, edge_index):
        return self.second(self.first(x, edge_index).relu(), edge_index)


def hetero_data():
    data = torch_geometric.data.HeteroData()
    data["a"].x, data["b"].x = randn(20, 12), randn(30, 5, seed=4)
    data["a", "to", "b"].edge_index, data["b", "to", "a"].edge_index = make_edge_index(20, 30), make_edge_index(30, 20)
    return data


def test_to_hetero():
    data = hetero_data()
    models = [theirs.to_hetero(Model(lib), data.metadata(), aggr="sum") for lib in (theirs, halfgnn.pyg)]
    for model in models:
        model(data.x_dict, data.edge_index_dict)
    models[1].load_state_dict(models[0].state_dict())
    expected, actual = (model(data.x_dict, data.edge_index_dict) for model in models)
    assert_close([actual[key] for key in expected], list(expected.values()))
    assert halfgnn.pyg.stats()["fell_back"] == {}


def test_an_explainer_explains():
    model = seeded(lambda: halfgnn.pyg.SAGEConv(IN_FEATS, 4))
    explainer = torch_geometric.explain.Explainer(
        model,
        algorithm=torch_geometric.explain.GNNExplainer(epochs=3),
        explanation_type="model",
        edge_mask_type="object",
        model_config=dict(mode="multiclass_classification", task_level="node", return_type="raw"),
    )
    edge_index = make_edge_index()
    explanation = explainer(randn(NUM_NODES, IN_FEATS), edge_index, index=3)
    assert explanation.edge_mask.shape == edge_index.shape[1:] and explanation.edge_mask.max() > 0
    assert "explain" in halfgnn.pyg.stats()["fell_back"]["forward:SAGEConv"]


@pytest.mark.parametrize("kind", ["SAGEConv", "GCNConv", "GATConv", "RGCNConv"])
def test_edges_that_are_made_inside_a_transform(kind):
    """As a radius graph is, of positions that are differentiated."""
    options = {"num_relations": 2} if kind == "RGCNConv" else {}
    conv = seeded(lambda: getattr(halfgnn.pyg, kind)(IN_FEATS, 4, **options))

    def value(x):
        edge_index = (torch.cdist(x, x) < 4).nonzero().t()
        further = [(edge_index.sum(0) % 2).clone()] if options else []
        return conv(x, edge_index, *further).pow(2).sum()

    x = randn(NUM_NODES, IN_FEATS).requires_grad_()
    torch.testing.assert_close(torch.func.grad(value)(x), torch.autograd.grad(value(x), x)[0])


def test_edges_that_are_mapped():
    conv, x = halfgnn.pyg.SAGEConv(IN_FEATS, 4), randn(NUM_NODES, IN_FEATS)
    edge_index = torch.zeros(2, 2, 5, dtype=torch.long)
    with pytest.raises(ValueError, match=r"edge_index is mapped by torch\.func\.vmap; expected one graph"):
        torch.func.vmap(lambda edges: conv(x, edges))(edge_index)


def test_relations_without_edges_have_gradients_of_zero():
    conv, x = halfgnn.pyg.RGCNConv(IN_FEATS, 4, 2), randn(NUM_NODES, IN_FEATS)
    conv(x, torch.zeros(2, 0, dtype=torch.long), torch.zeros(0, dtype=torch.long)).sum().backward()
    assert conv.weight.grad is not None and not conv.weight.grad.any()
