"""Graphs that are cached with tensors: one store, whatever a tensor is read as."""

from __future__ import annotations

import gc

import pytest
import torch

from halfgnn.graphs_by_tensor import index as index_graphs
from halfgnn.graphs_by_tensor import store
from halfgnn.graphs_by_tensor.edge_index import graph_of, graph_with
from halfgnn.graphs_by_tensor.index import bounds_of, graph_of_index, graph_of_offsets
from halfgnn.graphs_by_tensor.matrix import graph_of_coo, graph_of_matrix
from tests.graph import support_streams


def ids(*shape):
    return torch.randint(0, 7, shape, generator=torch.Generator().manual_seed(1))


def pairs(g):
    return sorted(zip(*(ends.tolist() for ends in g.edges())))


def test_an_index_and_its_views_are_known():
    edge_index = ids(2, 40)
    topology = store.topology_at(edge_index[1])
    assert store.topology_at(edge_index[1]) is topology is not store.topology_at(edge_index[0])
    assert store.topology_at(edge_index.view(2, 40)) is store.topology_of(edge_index)
    g = graph_of_index(topology, edge_index[1], 7)
    assert graph_of_index(store.topology_at(edge_index[1]), edge_index[1], 7) is g
    assert pairs(g) == sorted((i, i) for i in edge_index[1].tolist())
    assert not store.has_graph(edge_index) and not store.is_known(edge_index)
    edge_index[1, 0] = 6 - edge_index[1, 0]
    assert store.topology_at(edge_index[1]) is not topology


def test_so_many_graphs_and_readings_are_cached():
    index = ids(400)
    for n in range(2 * store.MOST):
        graph_of_index(store.topology_at(index), index, 7 + n)
        store.topology_at(index[n:])
    topology = store.topology_of(index)
    assert len(topology.graphs) == len(topology.readings) == store.MOST
    assert (6 + 2 * store.MOST,) * 2 in topology.graphs


@pytest.mark.parametrize("is_sorted", [False, True])
@pytest.mark.parametrize("most_unseen", [0, 100])
def test_the_graph_of_an_index_does_not_share_its_memory(is_sorted, most_unseen):
    index = ids(40).int().sort()[0] if is_sorted else ids(40).int()
    g = graph_of_index(store.topology_at(index), index, 7, most_unseen)
    expected = sorted((i, i) for i in index.tolist())
    assert (g.csc().edge_ids is None) == (is_sorted and not most_unseen)
    index.zero_()
    assert pairs(g) == expected


def test_bounds():
    for index in (ids(40), ids(40).sort()[0]):
        topology = store.topology_at(index)
        index_graphs.is_sorted(topology, index)
        assert bounds_of(topology, index) == (int(index.min()), int(index.max()))
    assert bounds_of(store.Topology(), torch.empty(0, dtype=torch.int64)) == (0, -1)


def test_offsets():
    ptr = torch.tensor([0, 2, 2, 5])
    g = graph_of_offsets(ptr, 5)
    assert pairs(g) == [(0, 0), (0, 0), (2, 2), (2, 2), (2, 2)] and graph_of_offsets(ptr) is g
    assert graph_of_offsets(ptr, 6) is None and not store.has_graph(ptr)
    for wrong in ([0, 3, 2, 5], [1, 2, 2, 5]):
        assert graph_of_offsets(torch.tensor(wrong)) is None
    ptr[1] = 1
    assert pairs(graph_of_offsets(ptr, 5))[1] == (1, 1)


def test_one_tensor_read_as_edges_and_as_a_matrix():
    edge_index = ids(2, 40)
    of_matrix = graph_of_coo(edge_index, 7, 9)
    assert not store.is_known(edge_index) and graph_of_coo(edge_index, 7, 9) is of_matrix
    g = graph_of(edge_index, 7, 9)
    assert store.is_known(edge_index) and graph_with(edge_index, 0, 7) is g
    assert pairs(of_matrix) == sorted((v, u) for u, v in pairs(g))
    with pytest.raises(ValueError, match=r"index\[0\] holds 6"):
        graph_of_coo(edge_index, 6, 9)


@pytest.mark.parametrize("layout", ["coo", "csr", "csc"])
def test_matrices(layout):
    dense = (ids(7, 7) > 4).float()
    matrix = getattr(dense, "to_sparse" if layout == "coo" else f"to_sparse_{layout}")()
    gc.collect()  # what other tests have left
    before, g = len(store.known), graph_of_matrix(matrix)
    assert graph_of_matrix(matrix) is g and len(store.known) == before + 1
    assert pairs(g) == sorted((v, u) for u, v in dense.nonzero().tolist())
    (matrix._values() if layout == "coo" else matrix.values()).mul_(2)  # PyTorch counts these with those of indices
    assert graph_of_matrix(matrix) is not g and len(store.known) == before + 1
    del matrix
    gc.collect()
    assert len(store.known) == before


def test_reading_in_a_capture_is_refused(monkeypatch):
    cuda, index = support_streams.install(monkeypatch), ids(40)
    with cuda.capture():
        for read in (lambda: bounds_of(store.topology_at(index), index), lambda: graph_of_offsets(index)):
            with pytest.raises(RuntimeError, match="before the capture, call the function once"):
                read()
        assert not index_graphs.is_sorted(store.topology_at(index), index.sort()[0])
    assert index_graphs.is_sorted(store.topology_at(index), index.sort()[0])


def test_tensors_of_inference_mode_have_no_topology():
    with torch.inference_mode():
        index = ids(40)
        topology = store.topology_at(index)
        g = graph_of_index(topology, index, 7)
    assert not g.csc().indptr.is_inference() and store.topology_at(index) is not topology


def test_torch_scatter_and_the_drop_in_share_an_index(monkeypatch):
    torch_geometric = pytest.importorskip("torch_geometric")
    import halfgnn.pyg
    from halfgnn.compat import torch_scatter

    made, make = [], index_graphs._make
    monkeypatch.setattr(index_graphs, "_make", lambda *args: made.append(1) or make(*args))
    index, src = ids(3000), torch.randn(3000, 64)
    expected = torch.zeros(7, 64).index_add(0, index, src)
    sums = [torch_scatter.scatter_sum(src, index, 0, dim_size=7)]
    with halfgnn.pyg.accelerate():
        sums += [torch_geometric.utils.scatter(src, index, 0, 7, "sum") for _ in range(2)]
    assert len(made) == 1
    for out in sums:
        torch.testing.assert_close(out, expected, atol=1e-4, rtol=1e-4)
