"""Mini-batches: ToGraph, loaders, and compiled code that takes batches of all sizes."""

import pickle

import pytest
import torch
import torch_geometric
from torch_geometric.loader import NodeLoader
from torch_geometric.sampler import BaseSampler, HeteroSamplerOutput, SamplerOutput

import halfgnn
import halfgnn.pyg
from halfgnn.graphs_by_tensor import edge_index as _graph
from tests.pyg.support_pyg import make_edge_index, theirs
from tests.pyg.test_hetero_modules import rgcn
from tests.support_nn import IN_FEATS, NUM_NODES, assert_close, randn, seeded, with_gradients

ETYPES = [("a", "to", "b"), ("b", "to", "a"), ("a", "in", "a")]
SIZES = {"a": 20, "b": 30}


def homogeneous():
    return torch_geometric.data.Data(x=randn(NUM_NODES, IN_FEATS), edge_index=make_edge_index())


def heterogeneous():
    data = torch_geometric.data.HeteroData()
    for ntype, count in SIZES.items():
        data[ntype].x = randn(count, IN_FEATS, seed=count)
    for etype in ETYPES:
        data[etype].edge_index = make_edge_index(SIZES[etype[0]], SIZES[etype[2]])
    return data


def in_edges(edge_index, nodes, known):
    """All in-edges of nodes: their ends, by their places in `nodes` and among the sources, their rows, and the sources.

    The sources are the nodes that are known already, then new ones.
    """
    rows = torch.isin(edge_index[1], nodes).nonzero().squeeze(1)
    src, dst = edge_index[:, rows]
    sources = torch.cat([known, src[~torch.isin(src, known)].unique()])
    place, position = ({int(node): i for i, node in enumerate(ids)} for ids in (sources, nodes))
    row, col = torch.tensor([place[int(u)] for u in src]), torch.tensor([position[int(v)] for v in dst])
    return row.long(), col.long(), rows, sources


class AllNeighbours(BaseSampler):
    """What NeighborLoader's sampler gives for num_neighbors=[-1], which needs pyg-lib."""

    def __init__(self, data):
        self.data = data

    def sample_from_edges(self, inputs, neg_sampling=None):
        raise NotImplementedError

    def sample_from_nodes(self, inputs):
        if isinstance(self.data, torch_geometric.data.Data):
            row, col, rows, ids = in_edges(self.data.edge_index, inputs.node, inputs.node)
            return SamplerOutput(ids, row, col, rows, metadata=(inputs.input_id, None))
        nodes = {"a": inputs.node, "b": inputs.node.new_empty(0)}
        parts = {}
        for etype in ETYPES:
            if etype[2] == "a":
                *parts[etype], nodes[etype[0]] = in_edges(self.data[etype].edge_index, inputs.node, nodes[etype[0]])
        row, col, edge = ({etype: part[i] for etype, part in parts.items()} for i in range(3))
        return HeteroSamplerOutput(nodes, row, col, edge, metadata=(inputs.input_id, None))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_batches_of_a_loader(num_workers):
    """The same results as the whole graph, from batch.graph, and from the unmodified module, which finds the graph."""
    data = homogeneous()
    ours, their = (seeded(lambda lib=lib: lib.SAGEConv(IN_FEATS, 4)) for lib in (halfgnn.pyg, theirs))
    loader = NodeLoader(
        data, AllNeighbours(data), batch_size=16, transform=halfgnn.pyg.ToGraph(), num_workers=num_workers,
        filter_per_worker=num_workers > 0,
    )  # fmt: skip
    expected, seen = their(data.x, data.edge_index), 0
    for batch in loader:
        assert isinstance(batch.graph, halfgnn.Graph) and batch.graph._csr is not None
        assert_close([ours(batch.x, batch.graph)[:16]], [expected[batch.n_id][:16]], 1e-4)
        if num_workers == 0:
            assert halfgnn.pyg.graph_of(batch.edge_index, batch.num_nodes, batch.num_nodes) is batch.graph
        seen += batch.batch_size
    assert seen == NUM_NODES


def sampled(data, num_neighbors):
    """Batches of a NeighborLoader, which needs pyg-lib or torch-sparse."""
    loader = torch_geometric.loader.NeighborLoader
    try:
        return list(loader(data, num_neighbors, batch_size=16, transform=halfgnn.pyg.ToGraph()))
    except ImportError as error:
        pytest.skip(str(error))


def test_batches_of_a_neighbor_loader():
    data = homogeneous()
    ours, their = (seeded(lambda lib=lib: lib.SAGEConv(IN_FEATS, 4)) for lib in (halfgnn.pyg, theirs))
    expected = their(data.x, data.edge_index)
    for batch in sampled(data, [-1]):
        for edges in (batch.edge_index, batch.graph):
            assert_close([ours(batch.x, edges)[:16]], [expected[batch.n_id][:16]], 1e-4)


@pytest.mark.parametrize("region", [None, torch.bfloat16], ids=str)
def test_training_on_batches_of_a_neighbor_loader(region):
    data = homogeneous()
    batches = [batch for batch in sampled(data, [4, 4]) if batch.num_edges]

    def losses():
        net, found = seeded(lambda: theirs.GraphSAGE(IN_FEATS, 8, 2, 3)), []
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        for batch in 3 * batches:
            with torch.autocast("cpu", region, enabled=region is not None):
                out = net(batch.x, batch.edge_index)
            loss = torch.nn.functional.cross_entropy(out.float(), batch.n_id % 3)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            found.append(loss.detach())
        return torch.stack(found)

    expected = losses()
    with halfgnn.pyg.accelerate():
        assert_close([losses()], [expected], 1e-5 if region is None else 0.02)
    stats = halfgnn.pyg.stats()
    assert stats["routed"] == {"gspmm:copy_u_mean": 6 * len(batches)} and stats["fell_back"] == {}


def test_batches_of_several_types():
    data = heterogeneous()
    ours, their = (
        seeded(lambda lib=lib: lib.HeteroConv({etype: lib.SAGEConv(IN_FEATS, 4) for etype in ETYPES}))
        for lib in (halfgnn.pyg, theirs)
    )
    expected = their(data.x_dict, data.edge_index_dict)["a"]
    loader = NodeLoader(data, AllNeighbours(data), input_nodes="a", batch_size=8, transform=halfgnn.pyg.ToGraph())
    for batch in loader:
        size = batch["a"].batch_size
        graphs = {etype: g for etype, g in batch.graph_dict.items() if etype[2] == "a"}
        out = ours(batch.x_dict, graphs)["a"]
        assert_close([out[:size]], [expected[batch["a"].n_id[:size]]], 1e-4)


def test_self_loops_are_made_by_the_transform():
    data = halfgnn.pyg.ToGraph(self_loops=True)(homogeneous())
    for kind in ("GATConv", "GCNConv"):
        whole, without = (
            seeded(lambda loops=loops: getattr(halfgnn.pyg, kind)(IN_FEATS, 4, add_self_loops=loops))  # noqa: B023
            for loops in (True, False)
        )
        assert_close([without(data.x, data.graph)], [whole(data.x, data.edge_index)])
    several = halfgnn.pyg.ToGraph("adj", self_loops=True)(heterogeneous())
    loops = {etype: int((g.edges()[0] == g.edges()[1]).sum()) for etype, g in several.adj_dict.items()}
    assert (
        loops["a", "in", "a"] == SIZES["a"]
        and several["a", "to", "b"].adj.num_edges == several["a", "to", "b"].num_edges
    )
    weighted = homogeneous()
    weighted.edge_weight = torch.ones(weighted.num_edges)
    with pytest.raises(ValueError, match="the edges have edge_weight; expected none with self_loops"):
        halfgnn.pyg.ToGraph(self_loops=True)(weighted)


def test_a_batch_moves_with_its_graph():
    batch = halfgnn.pyg.ToGraph()(homogeneous())
    for moved in (batch.to("cpu"), pickle.loads(pickle.dumps(batch)), batch.clone()):
        assert torch.equal(torch.stack(moved.graph.edges()), batch.edge_index)
    (prefetched,) = halfgnn.dataloading.Prefetcher([batch], "cpu")
    assert prefetched.graph.num_edges == batch.num_edges


# ---- compiled ----------------------------------------------------------------------------------------------------------------


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = halfgnn.pyg.SAGEConv(IN_FEATS, 8)
        self.second = halfgnn.pyg.GATConv(8, 4, add_self_loops=False)

    def forward(self, x, edges):
        return self.second(self.first(x, edges).relu(), edges)


def batches():
    for seed, (num_nodes, num_edges) in enumerate([(40, 200), (50, 300), (61, 277)]):
        ends = torch.randint(num_nodes, (2, num_edges), generator=torch.Generator().manual_seed(seed))
        yield randn(num_nodes, IN_FEATS, seed=seed), ends, torch.arange(num_nodes) % 3


def as_graph(edge_index, num_nodes, self_loops=True):
    data = torch_geometric.data.Data(edge_index=edge_index, num_nodes=num_nodes)
    return halfgnn.pyg.ToGraph(self_loops=self_loops)(data).graph


COMPILED = {
    "Graph": as_graph,
    "EdgeIndex": lambda edge_index, num_nodes: torch_geometric.EdgeIndex(edge_index),
}


@pytest.mark.parametrize("name", COMPILED)
def test_a_training_step_is_compiled_once_for_all_batches(name):
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    net, eager = (seeded(Net if name == "Graph" else lambda: halfgnn.pyg.SAGEConv(IN_FEATS, 4)) for _ in range(2))

    def loss_of(net, x, edges, y):
        return torch.nn.functional.cross_entropy(net(x, edges), y)

    compiled = torch.compile(loss_of, fullgraph=True, dynamic=True, backend="eager")
    for x, edge_index, y in batches():
        edges = COMPILED[name](edge_index, len(x))
        losses = [f(model, x, edges, y) for f, model in ((compiled, net), (loss_of, eager))]
        assert_close([losses[0].detach()], [losses[1].detach()], 1e-5)
        gradients = [torch.autograd.grad(loss, list(model.parameters())) for loss, model in zip(losses, (net, eager))]
        assert_close(*gradients, 1e-5)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def test_relations_are_compiled_once_for_all_batches():
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    conv = rgcn(halfgnn.pyg, "blocks")
    compiled = torch.compile(conv, fullgraph=True, dynamic=True, backend="eager")
    for x, edge_index, _ in batches():
        edges, types = as_graph(edge_index, len(x), self_loops=False), torch.arange(edge_index.shape[1]) % 4
        with_grad = [with_gradients(conv, lambda x: f(x, edges, types), [x]) for f in (compiled, conv)]  # noqa: B023
        assert_close(*with_grad, 1e-4)
    with pytest.raises(ValueError, match="edge_type holds 6; expected relations in"):
        compiled(x.requires_grad_(), edges, types + 3)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def test_compiled_code_says_where_self_loops_of_a_graph_are_made():
    torch._dynamo.reset()
    conv, x, edge_index = halfgnn.pyg.GCNConv(IN_FEATS, 4), randn(NUM_NODES, IN_FEATS), make_edge_index()
    expected, g = conv(x, edge_index), as_graph(edge_index.clone(), NUM_NODES, self_loops=False)
    remedy = r"halfgnn.pyg.ToGraph\(self_loops=True\), and make it with add_self_loops=False"
    with pytest.raises(torch._dynamo.exc.Unsupported, match=remedy):
        torch.compile(conv, fullgraph=True, backend="eager")(x, g)
    assert_close([torch.compile(conv, backend="eager")(x, g)], [expected], 1e-5)


def test_compiled_code_takes_the_kept_graph_and_checks_ids(monkeypatch):
    made = []
    make = _graph._make
    monkeypatch.setattr(_graph, "_make", lambda *args: made.append(1) or make(*args))
    torch._dynamo.reset()
    conv, x, edge_index = (
        seeded(lambda: halfgnn.pyg.SAGEConv(IN_FEATS, 4)),
        randn(NUM_NODES, IN_FEATS),
        make_edge_index(),
    )
    compiled = torch.compile(conv, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        for _ in range(2):
            assert_close([compiled(x, edge_index)], [conv(x, edge_index)], 1e-6)
    assert len(made) == 1
    with torch.no_grad(), pytest.raises(ValueError, match=r"edge_index\[0\] holds 40; expected indices in \[0, 40\)"):
        compiled(x, edge_index + 1)
