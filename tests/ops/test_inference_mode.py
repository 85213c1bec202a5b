"""Graphs made in inference mode, or from its tensors, work in training, although autograd cannot save tensors of that
mode."""

from __future__ import annotations

import pickle

import pytest
import torch

from halfgnn import Graph, HeteroGraph, ops
from halfgnn.nn import GATConv, HeteroGraphConv
from halfgnn.pyg import GATConv as PygGATConv

SRC, DST = torch.tensor([2, 0, 1, 2]), torch.tensor([0, 1, 1, 2])  # by destination
NUM_NODES = 3


def graph(**options):
    return Graph.from_edges(SRC, DST, num_src=NUM_NODES, num_dst=NUM_NODES, **options)


def inference_tensors(*tensors):
    with torch.inference_mode():
        copies = [tensor.clone() for tensor in tensors]
    assert all(tensor.is_inference() for tensor in copies)
    return copies


def strided():
    (ends,) = inference_tensors(torch.stack([SRC, DST], 1))
    return ends.t()


def of_csc():
    return Graph.from_csc(*inference_tensors(*graph(sort=True)[0].csc()[:2]), num_src=NUM_NODES)


def of_csc_with_ids():
    return Graph.from_csc(*inference_tensors(*graph().csc()), num_src=NUM_NODES)


def of_csr():
    return Graph.from_csr(*inference_tensors(*graph().csr()), num_dst=NUM_NODES)


def of_edges():
    return Graph.from_edges(*inference_tensors(SRC, DST), num_src=NUM_NODES, num_dst=NUM_NODES)


def of_sorted_edges():
    return Graph.from_edges(*inference_tensors(SRC, DST), num_src=NUM_NODES, num_dst=NUM_NODES, is_sorted=True)


BUILDS = {
    "int": lambda: graph().int(),
    "long": lambda: graph().int().long(),
    "map": lambda: graph()._map(torch.clone),
    "reverse": lambda: graph().reverse().int().reverse(),
    "unpickled": lambda: pickle.loads(pickle.dumps(graph())),
    "from_csc": of_csc,
    "from_csc with edge_ids": of_csc_with_ids,
    "from_csr": of_csr,
    "from_edges": of_edges,
    "from_edges sorted": of_sorted_edges,
    "from_edge_index sorted": lambda: Graph.from_edge_index(strided(), num_nodes=NUM_NODES, is_sorted=True),
    "constructor": lambda: Graph(NUM_NODES, NUM_NODES, csr=inference_tensors(*graph().csr())),
    "relation": lambda: HeteroGraph({("a", "to", "b"): graph()}).int()["to"],
}


@pytest.mark.parametrize("build", BUILDS.values(), ids=BUILDS)
@pytest.mark.parametrize("inside", [True, False], ids=["built inside", "built outside"])
def test_a_graph_is_trained_on(build, inside):
    with torch.inference_mode(inside):
        g = build()
    assert not any(tensor.is_inference() for side in (g.csc(), g.csr()) for tensor in side if tensor is not None)
    assert sorted(zip(*(ends.tolist() for ends in g.edges()))) == sorted(zip(SRC.tolist(), DST.tolist()))
    x = torch.randn(NUM_NODES, 8, requires_grad=True)
    ops.copy_u_sum(g, x).sum().backward()
    assert torch.equal(x.grad, g.out_degrees()[:, None].expand(NUM_NODES, 8).float())


def test_ordinary_tensors_are_not_copied():
    indptr, indices, edge_ids = graph().csc()
    with torch.inference_mode():
        csc = Graph.from_csc(indptr, indices, edge_ids, num_src=NUM_NODES).csc()
    assert csc.indptr is indptr and csc.indices is indices and csc.edge_ids is edge_ids


WRITES, CITES = ("author", "writes", "paper"), ("paper", "cites", "paper")


def compact_stack():
    """Few of the sources are read, so the stack has their ids."""
    relations = {
        WRITES: Graph.from_edges(SRC, DST, num_src=30, num_dst=NUM_NODES),
        CITES: Graph.from_edges(SRC, DST, num_src=NUM_NODES, num_dst=NUM_NODES),
    }
    whole = HeteroGraph(relations)
    assert whole.stack().src_ids[0] is not None
    return whole


HETERO = {
    "int": lambda: compact_stack().int(),
    "unpickled": lambda: pickle.loads(pickle.dumps(compact_stack())),
    "map": lambda: compact_stack()._map(torch.clone),
}


@pytest.mark.parametrize("build", HETERO.values(), ids=HETERO)
def test_a_stack_is_trained_on(build):
    torch.manual_seed(0)
    conv = HeteroGraphConv({"writes": GATConv((4, 4), 2, 2), "cites": GATConv((4, 4), 2, 2)})
    feats = {"author": torch.randn(30, 4, requires_grad=True), "paper": torch.randn(NUM_NODES, 4)}
    with torch.inference_mode():
        g = build()
    assert not g.stack().src_ids[0].is_inference()
    found = []
    for whole in (g, compact_stack()):
        out = conv(whole, feats)["paper"]
        found.append(torch.autograd.grad(out.square().sum(), [feats["author"], *conv.parameters()]))
    assert all(torch.equal(a, b) for a, b in zip(*found)) and found[0][0].abs().sum() > 0


@pytest.mark.parametrize("fill_value", ["mean", "mul"])
@pytest.mark.parametrize("is_inference", [True, False], ids=["inference tensor", "ordinary tensor"])
def test_self_loops_are_trained_on(fill_value, is_inference):
    """Evaluation comes first and makes graph and self-loops."""
    edge_index = torch.stack([torch.tensor([0, 1, 2, 0]), torch.tensor([1, 2, 0, 2])])  # none is a loop
    if is_inference:
        (edge_index,) = inference_tensors(edge_index)
    conv = PygGATConv(4, 2, edge_dim=3, fill_value=fill_value)
    x, attr = torch.randn(3, 4), torch.rand(4, 3, requires_grad=True)
    with torch.inference_mode():
        expected = conv(x, edge_index, attr.detach())
    actual = conv(x, edge_index, attr)
    actual.square().sum().backward()
    assert torch.equal(actual, expected) and attr.grad.abs().sum() > 0


def test_dgls_graph_of_inference_tensors():
    dgl = pytest.importorskip("dgl")
    with torch.inference_mode():
        g = dgl.graph(tuple(inference_tensors(SRC, DST)), num_nodes=NUM_NODES)
        of_dgl = Graph.from_dgl(g)
    x = torch.randn(NUM_NODES, 4, requires_grad=True)
    for topology in (of_dgl, g, g.int()):
        (grad,) = torch.autograd.grad(ops.copy_u_sum(topology, x).sum(), x)
        assert torch.equal(grad, of_dgl.out_degrees()[:, None].expand(NUM_NODES, 4).float())
