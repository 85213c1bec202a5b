"""Data that is made on first use and kept, across streams and captures. tests/graph/test_streams.py has the same tests with
stand-ins."""

import gc
import warnings

import pytest
import torch

import halfgnn
from halfgnn.dgl.topology import Topology
from halfgnn.graphs_by_tensor.edge_index import graph_of
from halfgnn.graphs_by_tensor.loops import with_self_loops
from tests.gpu import gpu_cases
from tests.gpu.gpu_cases import DEVICE, assert_same

pytestmark = gpu_cases.needs_gpu

NUM_NODES = 150
HUB = 20_000
WRITES, CITES = ("author", "writes", "paper"), ("paper", "cites", "paper")


def graph(device=DEVICE):
    return gpu_cases.hub_graph(device=device, hub_edges=HUB)


def hetero_graph():
    return halfgnn.HeteroGraph({WRITES: graph(), CITES: graph().reverse()})


def csr():
    g = graph()
    return lambda: g.csr()


def csc():
    g = halfgnn.Graph.from_csr(*graph().csr(), num_dst=NUM_NODES)
    return lambda: g.csc()


def stack():
    whole = hetero_graph()
    return lambda: whole.stack().graph.csr()


def relation():
    whole = hetero_graph()
    whole.stack()
    moved = whole._map(torch.clone)
    return lambda: moved[CITES].csr()


def edge_index():
    ends = torch.stack(gpu_cases.hub_ends(hub_edges=HUB)).to(DEVICE)
    return lambda: graph_of(ends, NUM_NODES, NUM_NODES).csr()


def self_loops():
    g = graph()

    def ask():
        looped = with_self_loops(g, NUM_NODES)
        return looped.kept_rows, *looped._edges, *looped.graph.csr()

    return ask


def without_self_loops():
    g = graph()
    with_self_loops(g, NUM_NODES)
    return lambda: with_self_loops(g, NUM_NODES).without.csr()


def dgl_copy():
    topology = Topology(graph("cpu"))
    return lambda: topology.on(torch.device(DEVICE, 0)).csr()


def dgl_isolated():
    topology = Topology(graph("cpu"))
    topology.on(torch.device(DEVICE, 0))
    return lambda: [topology.isolated(torch.device(DEVICE, 0))]


MADE_IN_CAPTURES = [csr, csc, stack, relation, without_self_loops, dgl_isolated]
REFUSED_IN_CAPTURES = [edge_index, self_loops, dgl_copy]
every_cache = pytest.mark.parametrize(
    "cache", [*MADE_IN_CAPTURES, *REFUSED_IN_CAPTURES], ids=lambda cache: cache.__name__
)


def copies(result):
    return [tensor.clone() for tensor in result if tensor is not None]


def expected_of(cache):
    expected = copies(cache()())
    torch.cuda.synchronize()
    return expected


@every_cache
def test_another_stream_waits(cache):
    expected, ask = expected_of(cache), cache()
    torch.cuda.synchronize()
    first, second = torch.cuda.Stream(), torch.cuda.Stream()
    with torch.cuda.stream(first):
        torch.cuda._sleep(50_000_000)
        ask()
    with torch.cuda.stream(second):
        found = copies(ask())
    torch.cuda.synchronize()
    assert_same(found, expected, "on another stream")


@every_cache
def test_memory_is_not_used_again_while_another_stream_reads(cache):
    expected, ask = expected_of(cache), cache()
    first, second = torch.cuda.Stream(), torch.cuda.Stream()
    with torch.cuda.stream(first):
        ask()
    torch.cuda.synchronize()
    with torch.cuda.stream(second):
        kept = ask()
        torch.cuda._sleep(50_000_000)
        found = copies(kept)
    del kept, ask
    gc.collect()
    with torch.cuda.stream(first):
        others = [torch.full_like(tensor, 1) for tensor in expected for _ in range(2)]
    torch.cuda.synchronize()
    assert_same(found, expected, "after it was freed")
    del others


@pytest.mark.parametrize("cache", MADE_IN_CAPTURES, ids=lambda cache: cache.__name__)
def test_what_a_capture_makes_is_not_kept(cache):
    expected, ask = expected_of(cache), cache()
    captured = torch.cuda.CUDAGraph()
    with pytest.warns(UserWarning, match="not cached"), torch.cuda.graph(captured):
        inside = copies(ask())
    assert_same(copies(ask()), expected, "before a replay")
    captured.replay()
    assert_same(inside, expected, "after a replay")


@pytest.mark.parametrize("cache", REFUSED_IN_CAPTURES, ids=lambda cache: cache.__name__)
def test_what_cannot_be_captured_is_refused(cache):
    expected, ask = expected_of(cache), cache()
    x, captured = torch.ones(8, device=DEVICE), torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        with pytest.raises(RuntimeError, match="before the capture"):
            ask()
        x.add_(1)  # the capture continues
    captured.replay()
    assert x.tolist() == [2.0] * 8
    assert_same(copies(ask()), expected)


@every_cache
def test_a_capture_takes_what_was_kept(cache):
    expected, ask = expected_of(cache), cache()
    with torch.cuda.stream(torch.cuda.Stream()):
        ask()
    captured = torch.cuda.CUDAGraph()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with torch.cuda.graph(captured):
            inside = copies(ask())
    captured.replay()
    assert_same(inside, expected, "after a replay")


def test_in_degrees_are_not_asked_for_in_a_capture():
    conv, x = halfgnn.nn.GATConv(8, 4, 2).to(DEVICE), torch.randn(NUM_NODES, 8, device=DEVICE)
    src, dst = (ids.to(DEVICE) for ids in gpu_cases.hub_ends())
    loops = torch.arange(NUM_NODES, device=DEVICE)
    g = halfgnn.Graph.from_edges(torch.cat([src, loops]), torch.cat([dst, loops]))
    conv(g, x)  # warms up cuBLAS and the allocator
    fresh, captured = g.long().int(), torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(captured):
        with pytest.raises(RuntimeError, match="call the module once"):
            conv(fresh, x)
        out = conv(g, x)
    captured.replay()
    with torch.no_grad():
        assert_same([out], [conv(fresh, x)])
