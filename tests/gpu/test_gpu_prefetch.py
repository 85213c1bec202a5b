"""Prefetcher on a GPU: the batches are right, copies overlap with work on the caller's stream, and memory does not
grow."""

import gc

import pytest
import torch

from halfgnn import Graph, HeteroGraph, ops
from halfgnn.dataloading import FeatureStore, Prefetcher
from tests.gpu import gpu_cases
from tests.gpu.gpu_cases import DEVICE
from tests.gpu.test_gpu_streams import no_synchronisation

pytestmark = gpu_cases.needs_gpu

NUM_NODES, WIDTH = 20_000, 256


def table(dtype=torch.float16):
    return torch.randn(NUM_NODES, WIDTH, generator=torch.Generator().manual_seed(1)).to(dtype)


def drawn(count, num_ids=4_000):
    random = torch.Generator().manual_seed(2)
    return [torch.randint(0, NUM_NODES, (num_ids,), generator=random) for _ in range(count)]


def store_in(place, data):
    store = FeatureStore(data)
    return {"pageable": lambda: store, "pinned": store.pin_memory, "device": lambda: store.to(DEVICE)}[place]()


@pytest.mark.parametrize("place", ["pageable", "pinned", "device"])
@pytest.mark.parametrize("background", [True, False])
def test_rows_arrive_unchanged_while_the_gpu_works(place, background):
    data, ids = table(), drawn(30)
    store = store_in(place, data)
    a = torch.randn(2048, 2048, device=DEVICE)
    batches = Prefetcher(ids, DEVICE, fetch=lambda x: (x, store.rows(x)), background=background, depth=3)
    for expected, (found, rows) in zip(ids, batches):
        a = (a @ a).tanh()  # the copies of the next batches overlap with this
        rows = rows * 1  # read late, which finds a buffer that is used again too early
        assert found.is_cuda and rows.device == found.device and rows.dtype == torch.float16
        assert torch.equal(rows.cpu(), data[expected])
        assert torch.equal(found.cpu(), expected)


def test_graphs_are_complete_on_arrival():
    random = torch.Generator().manual_seed(3)
    ends = [torch.randint(0, 500, (2, 3000), generator=random) for _ in range(6)]
    relations = [
        HeteroGraph.from_edge_index_dict({("a", "x", "a"): e, ("b", "y", "a"): e.flip(0)}, {"a": 500, "b": 500})
        for e in ends
    ]
    for graph in relations:
        graph.stack().graph.csr()
    x = torch.randn(500, 16, device=DEVICE)
    for e, (graph, single) in zip(
        ends, Prefetcher([(r, Graph.from_edge_index(e, num_nodes=500)) for r, e in zip(relations, ends)], DEVICE)
    ):
        with no_synchronisation():
            out = ops.copy_u_sum(single, x)
        expected = ops.copy_u_sum(Graph.from_edge_index(e, num_nodes=500), x.cpu())
        torch.testing.assert_close(out.cpu(), expected)
        torch.testing.assert_close(ops.copy_u_sum(graph["x"], x).cpu(), expected)


def test_ids_out_of_range_are_errors_of_the_caller():
    for place in ("pageable", "pinned", "device"):
        store = store_in(place, table())
        with pytest.raises(IndexError, match=str(NUM_NODES)):
            list(Prefetcher([torch.tensor([0, NUM_NODES])], DEVICE, fetch=store.rows))


def test_the_caller_does_not_wait_for_copies():
    """Taking a batch only queues a wait on the stream."""
    store = FeatureStore(table())
    batches = iter(Prefetcher(drawn(5), DEVICE, fetch=store.rows))
    next(batches)
    with no_synchronisation():
        next(batches)


def test_times_and_bytes():
    prefetcher = Prefetcher(drawn(8), DEVICE, fetch=FeatureStore(table()).rows)
    for rows in prefetcher:
        rows.sum()
    assert prefetcher.num_bytes == 8 * 4_000 * WIDTH * 2  # halves, so half the bytes of fp32
    assert prefetcher.times["transfer"] > 0 and prefetcher.times["gather"] > 0


def test_memory_does_not_grow():
    store, sizes = FeatureStore(table()), torch.randint(1_000, 4_000, (400,)).tolist()
    ids = torch.randint(0, NUM_NODES, (4_000,))
    peaks = []
    for _ in range(3):
        torch.cuda.reset_peak_memory_stats()
        for rows in Prefetcher([ids[:n] for n in sizes], DEVICE, fetch=store.rows):
            rows.float().sum()
        gc.collect()
        torch.cuda.synchronize()
        peaks.append((torch.cuda.max_memory_allocated(), torch.cuda.memory_allocated()))
    assert peaks[2][0] <= peaks[0][0] * 1.05 and peaks[2][1] <= peaks[0][1]
