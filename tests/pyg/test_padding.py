"""PadToBuckets: what becomes of the attributes of data, and models on padded batches."""

from __future__ import annotations

import pickle

import pytest
import torch
import torch_geometric
from torch import nn
from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.transforms import Compose, ToSparseTensor
from torch_geometric.utils import trim_to_layer

import halfgnn.pyg
from halfgnn.padding import Buckets, mask_norms, masked_mean, real_rows
from halfgnn.pyg import PadToBuckets, ToGraph
from tests.support_compiled import lowered

WIDTH = 8


def ring(num_nodes, extra=0):
    """As many edges as nodes, and some more."""
    nodes = torch.arange(num_nodes)
    edge_index = torch.cat([torch.stack([nodes, nodes.roll(1)]), torch.randint(num_nodes, (2, extra))], 1)
    return Data(
        x=torch.randn(num_nodes, WIDTH),
        edge_index=edge_index,
        edge_attr=torch.randn(edge_index.shape[1], 3),
        pos=torch.randn(num_nodes, 3),
        y=torch.randn(1, 2),
        cell=torch.randn(3, 3),
        center_index=torch.tensor([0]),
        train_mask=torch.ones(num_nodes).bool(),
        name=f"ring {num_nodes}",
    )


def molecules(*sizes):
    return [ring(size, size) for size in sizes]


def same(actual, expected):
    """Whether two Data have equal attributes."""
    pairs = [(actual[name], expected[name]) for name in list(expected.keys())]
    return all(torch.equal(a, b) if isinstance(b, torch.Tensor) else a == b for a, b in pairs)


# ---- attributes ------------------------------------------------------------------------------------------------------------------


def test_a_batch_is_padded_by_what_its_attributes_belong_to():
    batch = Batch.from_data_list(molecules(5, 7, 3), follow_batch=["x", "edge_attr"])
    pad = PadToBuckets(nodes=24, edges=40, graphs=6, fill={"y": -1})
    padded = pad(batch)
    rows = {name: padded[name].shape[0] for name in ("x", "pos", "train_mask", "batch", "node_mask", "x_batch")}
    assert set(rows.values()) == {padded.num_nodes} == {24}
    assert padded.edge_attr.shape == (40, 3) and padded.edge_mask.shape == padded.edge_attr_batch.shape == (40,)
    assert padded.y[3:].tolist() == [[-1, -1]] * 3 and padded.cell.shape == (18, 3) and padded.num_graphs == 6
    assert padded.center_index.tolist() == [0, 5, 12, 15, 15, 15]
    assert padded.batch[15:].tolist() == padded.x_batch[15:].tolist() == [3] * 9
    assert padded.ptr.tolist() == padded.x_ptr.tolist() == [0, 5, 12, 15, 24, 24, 24]
    assert padded.edge_attr_ptr.tolist() == [0, 10, 24, 30, 40, 40, 40]
    assert [padded[name].sum() for name in ("node_mask", "edge_mask", "graph_mask")] == [15, 30, 3]
    assert not padded.train_mask[15:].any() and padded.name[3:] == [None] * 3
    assert batch.num_nodes == 15 and batch.num_graphs == 3 and same(pad(batch), padded)


@pytest.mark.parametrize("extra", [0, 1], ids=["as many edges as nodes", "more edges"])
def test_batches_come_apart_again(extra):
    graphs = [ring(size, extra) for size in (4, 6, 5)]
    padded = PadToBuckets().collate(graphs)
    assert padded.edge_attr.shape[0] == padded.num_edges != padded.num_nodes == padded.x.shape[0]
    apart = padded.to_data_list()
    assert all(map(same, apart[:3], graphs)) and len(apart) == padded.num_graphs
    assert (
        apart[3].num_nodes == padded.num_nodes - 15
        and 0 <= apart[3].edge_index.min() <= apart[3].edge_index.max() < apart[3].num_nodes
    )
    assert [graph.num_nodes for graph in apart[4:]] == [0] * (padded.num_graphs - 4)
    assert same(pickle.loads(pickle.dumps(padded)), padded)


def test_graphs_of_one_node():
    graphs = [Data(x=torch.randn(1, 2), edge_index=torch.zeros(2, 1).long(), y=torch.randn(1)) for _ in range(20)]
    padded = PadToBuckets(nodes=40, edges=64, graphs=24).collate(graphs)
    assert padded.x.shape == (40, 2) and padded.edge_index.shape == (2, 64)
    assert padded.y.shape == (24,)
    assert all(map(same, padded.to_data_list(), graphs))


def test_data_without_features_count_their_nodes():
    graphs = [Data(edge_index=torch.tensor([[0], [1]]), num_nodes=count) for count in (3, 4)]
    padded = PadToBuckets(nodes=16).collate(graphs)
    assert padded.num_nodes == 16 and padded.batch.bincount().tolist() == [3, 4, 9]
    assert [graph.num_nodes for graph in padded.to_data_list()][:4] == [3, 4, 9, 0]


def hetero(num_papers, num_authors):
    data = HeteroData(year=torch.tensor([2020]))
    data["paper"].x, data["author"].x = torch.randn(num_papers, 4), torch.randn(num_authors, 2)
    data["paper"].y = torch.arange(num_papers)
    ends = torch.randint(num_authors, (1, 30)), torch.randint(num_papers, (1, 30))
    data["author", "writes", "paper"].edge_index = torch.cat(ends)
    data["author", "writes", "paper"].edge_attr = torch.randn(30, 3)
    data["paper", "cites", "paper"].edge_index = torch.randint(num_papers, (2, 9))
    return data


@pytest.mark.parametrize("together", [False, True])
def test_hetero_data_are_padded_by_type(together):
    nodes, graphs = {"paper": Buckets(), "author": 64}, [hetero(11, 20), hetero(14, 3)]
    pad = PadToBuckets(nodes=nodes)
    padded = pad.collate(graphs) if together else pad(graphs[0])
    number = 25 if together else 11
    assert padded["author"].x.shape == (64, 2) and padded["paper"].y.shape == padded["paper"].node_mask.shape
    assert padded["paper"].num_nodes >= number + 2 and padded["paper"].node_mask.sum() == number
    for edge_type, store in padded.edge_items():
        real = store.edge_mask
        for row, end in zip(store.edge_index, (edge_type[0], edge_type[-1])):
            assert torch.equal(padded[end].node_mask[row], real)
            assert row.max() < padded[end].num_nodes
        assert "edge_attr" not in store or store.edge_attr.shape[0] == len(real)
    if together:
        assert padded.graph_mask.sum() == 2 and padded.year.shape == padded.graph_mask.shape
        for actual, expected in zip(padded.to_data_list(), graphs):
            assert all(map(same, actual.stores, expected.stores))
        padding = padded.to_data_list()[2]
        assert padding.validate() and all(edge_index.min() >= 0 for edge_index in padding.edge_index_dict.values())
    with pytest.raises(ValueError, match=r"nodes has sizes for .* expected one for 'author' too"):
        PadToBuckets(nodes={"paper": 64})(graphs[0])


def sample():
    """A batch as NeighborLoader makes it: 2 seeds, hops of 4 and 6 nodes; edges from each hop to the one before."""
    first, second = torch.randint(2, 6, (5,)), torch.randint(6, 12, (9,))
    edge_index = torch.stack([torch.cat([first, second]), torch.cat([torch.arange(5) % 2, torch.randint(2, 6, (9,))])])
    data = Data(x=torch.randn(12, WIDTH), edge_index=edge_index, y=torch.arange(12), n_id=torch.arange(12) + 50)
    data.update({"e_id": torch.arange(14), "batch_size": 2, "input_id": torch.tensor([4, 9])})
    data.update({"num_sampled_nodes": [2, 4, 6], "num_sampled_edges": [5, 9]})
    return data


def test_samples_keep_their_seeds():
    data = sample()
    padded = PadToBuckets(edges=24)(data)
    assert padded.batch_size == 2 and padded.input_id.tolist() == [4, 9] and "graph_mask" not in padded
    assert padded.n_id.shape == padded.y.shape == (16,) and padded.e_id.shape == padded.edge_mask.shape == (24,)
    convs = [halfgnn.pyg.SAGEConv(WIDTH, WIDTH) for _ in range(2)]

    def run(data):
        x, edge_index = data.x, data.edge_index
        for layer, conv in enumerate(convs):
            x, edge_index, _ = trim_to_layer(layer, data.num_sampled_nodes, data.num_sampled_edges, x, edge_index)
            x = conv(x, edge_index)
        return x[:2]

    assert torch.equal(run(padded), run(data))


def test_transforms_and_loaders_take_it():
    padded = Compose([PadToBuckets(edges=24), ToGraph()])(sample())
    assert padded.graph.num_edges == 24 and padded.graph.num_dst == 16
    edge_index = torch_geometric.EdgeIndex(sample().edge_index.sort(1)[0], sparse_size=(12, 12), sort_order="row")
    kind = PadToBuckets(edges=24)(Data(x=torch.randn(12, 2), edge_index=edge_index)).edge_index
    assert kind.validate().is_sorted_by_row and kind.sparse_size() == (16, 16)
    pad = pickle.loads(pickle.dumps(PadToBuckets(graphs=4)))
    loader = torch.utils.data.DataLoader(molecules(5, 7, 3, 6), batch_size=3, collate_fn=pad.collate)
    assert [int(batch.graph_mask.sum()) for batch in loader] == [3, 1]


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda data: ToGraph()(data), "graph is a Graph; expected PadToBuckets before ToGraph"),
        (lambda data: ToSparseTensor(layout=torch.sparse_csr)(data), "the data have adj_t; expected edge_index"),
        (lambda data: PadToBuckets()(data), "the data have node_mask; expected data that are not padded"),
    ],
)
def test_data_that_cannot_be_padded(change, message):
    data = change(ring(5))
    with pytest.raises(ValueError, match=message):
        PadToBuckets()(data)


def test_ragged_attributes_are_named_or_kept():
    graphs = [
        Data(x=torch.randn(count, 2), edge_index=torch.zeros(2, 4).long(), bonds=torch.ones(count + 1))
        for count in (3, 5)
    ]
    with pytest.raises(
        ValueError, match=r"bonds has shape \(10,\); expected rows along dimension 0 .* or its name in keep"
    ):
        PadToBuckets().collate(graphs)
    padded = PadToBuckets(keep=["bonds"]).collate(graphs)
    assert padded.bonds.shape == (10,) and padded.to_data_list()[2].bonds.shape == (0,)
    with pytest.raises(ValueError, match="the number of edges is 8; expected at most 7"):
        PadToBuckets(edges=7, keep=["bonds"]).collate(graphs)


# ---- models ----------------------------------------------------------------------------------------------------------------------


def mlp():
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))


CONVS = {
    "GIN": lambda: halfgnn.pyg.GINConv(mlp()),
    "GINE": lambda: halfgnn.pyg.GINEConv(mlp(), edge_dim=3),
    "GAT": lambda: halfgnn.pyg.GATConv(WIDTH, WIDTH // 2, heads=2, edge_dim=3),
    "TransformerConv": lambda: halfgnn.pyg.TransformerConv(WIDTH, WIDTH // 2, heads=2, edge_dim=3),
    "PNA": lambda: halfgnn.pyg.PNAConv(
        WIDTH, WIDTH, ["mean", "max", "std"], ["identity", "amplification"], torch.arange(5), edge_dim=3
    ),
}


class RowByRow(nn.Linear):
    """PyTorch multiplies a few rows in another way than many on some processors (Intel's 6-207), and rounds otherwise."""

    def forward(self, x):
        return (x.unsqueeze(-2) * self.weight).sum(-1) + self.bias


class Net(nn.Module):
    def __init__(self, name, norm=False, layers=2):
        super().__init__()
        self.takes_edges = name != "GIN"
        self.convs = nn.ModuleList([CONVS[name]() for _ in range(layers)])
        self.norms = nn.ModuleList([torch_geometric.nn.BatchNorm(WIDTH) if norm else nn.Identity() for _ in self.convs])
        self.head = nn.Sequential(nn.BatchNorm1d(WIDTH) if norm else nn.Identity(), RowByRow(WIDTH, 2))

    def forward(self, x, edge_index, edge_attr, batch, size):
        for conv, norm in zip(self.convs, self.norms):
            x = norm(conv(x, edge_index, edge_attr) if self.takes_edges else conv(x, edge_index)).relu()
        return self.head(torch_geometric.nn.global_mean_pool(x, batch, size))


def step(model, data, dtype=None):
    """Losses of graphs, the loss, gradients of x and of the parameters."""
    x = data.x.clone().requires_grad_()
    masks = [data[name] for name in ("node_mask", "edge_mask", "graph_mask") if name in data]
    with torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None), real_rows(*masks):
        out = model(x, data.edge_index, data.edge_attr, data.batch, data.num_graphs)
    losses = (out.float() - data.y).square()
    loss = masked_mean(losses, masks[-1] if masks else torch.ones(data.num_graphs).bool())
    gradients = torch.autograd.grad(loss, [x, *model.parameters()])
    return losses.detach(), loss.detach(), *gradients


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
@pytest.mark.parametrize("name", CONVS)
def test_losses_and_gradients_of_real_rows_are_bitwise_the_same(name, dtype):
    batch = Batch.from_data_list(molecules(5, 9, 7, 12))
    padded, model = PadToBuckets()(batch), Net(name)
    losses, loss, x, *parameters = step(model, batch, dtype)
    padded_losses, padded_loss, padded_x, *padded_parameters = step(model, padded, dtype)
    assert torch.equal(padded_losses[padded.graph_mask], losses) and padded_loss == loss
    assert torch.equal(padded_x[padded.node_mask], x)
    assert padded_x[~padded.node_mask].count_nonzero() == 0
    for actual, expected in zip(padded_parameters, parameters):  # PyTorch's products, in fp32, sum over more rows
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5 * float(expected.abs().max()))


def test_norms_leave_padding_out():
    batch, model = Batch.from_data_list(molecules(5, 9, 7, 12)), Net("GINE", norm=True)
    keys, expected = list(model.state_dict()), step(model, batch)
    statistics = {name: value.clone() for name, value in model.named_buffers()}
    for norm in model.modules():
        if isinstance(norm, nn.BatchNorm1d):
            norm.reset_running_stats()
    padded = PadToBuckets()(batch)
    actual = step(mask_norms(model), padded)
    assert list(model.state_dict()) == keys
    torch.testing.assert_close(dict(model.named_buffers()), statistics)
    torch.testing.assert_close(actual[0][padded.graph_mask], expected[0])
    torch.testing.assert_close(actual[2][padded.node_mask], expected[2], rtol=1e-4, atol=1e-6)


def test_20_batches_are_compiled_for_few_shapes():
    graphs = []

    def backend(gm, inputs):
        graphs.append(gm)
        return lowered(gm, inputs)

    torch.compiler.reset()
    model = mask_norms(Net("GINE", norm=True, layers=1))
    compiled = torch.compile(model, backend=backend, dynamic=False)
    pad = PadToBuckets(graphs=8)
    batches = [Batch.from_data_list(molecules(20 + number, 30, 30)) for number in range(20)]
    shapes = set()
    for batch in batches:
        padded = pad(batch)
        shapes.add((padded.num_nodes, padded.num_edges, padded.num_graphs))
        for actual, expected in zip(step(compiled, padded), step(model, padded)):
            assert torch.equal(actual, expected)
        assert len(graphs) == len(shapes)
    assert len({batch.num_nodes for batch in batches}) == 20 and len(shapes) <= 3
