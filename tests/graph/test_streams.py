"""Data that is made on first use and kept, across streams and captures: on the CPU, with stand-ins for CUDA's streams.
tests/gpu/test_gpu_cached.py has the same tests on a GPU."""

from __future__ import annotations

import copy
import pickle
import threading
import types

import pytest
import torch

from halfgnn import Graph, HeteroGraph, ops
from halfgnn.adjacency import Adjacency
from halfgnn.common.degrees import check_in_degrees
from halfgnn.graphs_by_tensor.edge_index import graph_of
from halfgnn.graphs_by_tensor.loops import with_self_loops
from halfgnn.nn import GATConv
from tests.graph import support_streams

A, B, C = 0, 1, 2
SRC, DST = torch.tensor([2, 0, 1, 1, 3, 0]), torch.tensor([1, 2, 0, 1, 3, 1])
NUM_NODES = 5  # the last has no edge
WRITES, CITES = ("author", "writes", "paper"), ("paper", "cites", "paper")


@pytest.fixture
def cuda(monkeypatch):
    return support_streams.install(monkeypatch)


def graph(**options):
    return Graph.from_edges(SRC, DST, num_src=NUM_NODES, num_dst=NUM_NODES, **options)


def hetero_graph():
    relations = {WRITES: graph(), CITES: Graph.from_edges(DST, SRC, num_src=NUM_NODES, num_dst=NUM_NODES)}
    return HeteroGraph(relations)


def only_stacked():
    """Like a graph that was moved: it has the stack, from which relations are taken."""
    whole = hetero_graph()
    whole.stack()
    return whole._map(torch.clone)


# ---- the caches: each function makes one, and returns how it is asked: for the tensors that are used ----------------------------


def csr():
    g = graph()
    return lambda: g.csr()


def csc():
    g = Graph.from_csr(*graph().csr(), num_dst=NUM_NODES)
    return lambda: g.csc()


def relation():
    whole = only_stacked()
    return lambda: whole[CITES].csc()


def stack():
    whole = hetero_graph()
    return lambda: whole.stack().graph.csc()


def edge_index():
    ends = torch.stack([SRC, DST])
    return lambda: graph_of(ends, NUM_NODES, NUM_NODES).csc()


def self_loops():
    g = graph()

    def ask():
        looped = with_self_loops(g, NUM_NODES)
        return looped.kept_rows, *looped._edges, *looped.graph.csc()

    return ask


def without_self_loops():
    g = graph()
    with_self_loops(g, NUM_NODES)
    return lambda: with_self_loops(g, NUM_NODES).without.csc()


def dgl_index():
    dgl = pytest.importorskip("dgl")
    edges = {WRITES: (SRC, DST), CITES: (DST, SRC)}
    return dgl.heterograph(edges, num_nodes_dict={"author": NUM_NODES, "paper": NUM_NODES})._graph


def dgl_relation():
    from halfgnn.dgl import topology

    index = dgl_index()
    return lambda: topology.relation_topology(index, 1).graph.csc()


def dgl_only_relation():
    dgl = pytest.importorskip("dgl")
    from halfgnn.dgl import topology

    index = dgl.graph((SRC, DST), num_nodes=NUM_NODES)._graph
    return lambda: topology.topology_of(index).graph.csc()


def dgl_heterograph():
    dgl = pytest.importorskip("dgl")
    g = dgl.heterograph({WRITES: (SRC, DST), CITES: (DST, SRC)})
    return lambda: HeteroGraph.from_dgl(g)[CITES].csc()


def dgl_union():
    from halfgnn.dgl import topology

    index = dgl_index()
    return lambda: topology.union_topology(index, [0, 1], 1).graph.csc()


def dgl_copy():
    topology = pytest.importorskip("halfgnn.dgl.topology").Topology(graph())
    return lambda: topology.on(torch.device("meta")).csc()


def dgl_isolated():
    topology = pytest.importorskip("halfgnn.dgl.topology").Topology(graph())
    return lambda: [topology.isolated(torch.device("cpu"))]


MADE_IN_CAPTURES = [
    csr,
    csc,
    relation,
    stack,
    without_self_loops,
    dgl_relation,
    dgl_only_relation,
    dgl_heterograph,
    dgl_union,
    dgl_isolated,
]
REFUSED_IN_CAPTURES = [
    edge_index,
    self_loops,
    dgl_copy,
]  # they read values from the device, which a capture does not allow

every_cache = pytest.mark.parametrize(
    "cache", [*MADE_IN_CAPTURES, *REFUSED_IN_CAPTURES], ids=lambda cache: cache.__name__
)


def tensors(result):
    return [tensor for tensor in result if tensor is not None]


def same(first, second):
    return len(first) == len(second) and all(a is b for a, b in zip(first, second))


def count(tensor, among):
    return sum(tensor is other for other in among)


@every_cache
def test_every_other_stream_waits_once(cache, cuda):
    ask = cache()
    with cuda.on(A):
        made = tensors(ask())
        assert same(tensors(ask()), made)
    assert made and cuda.events and not cuda.waits and not cuda.recorded
    for number in (B, C):
        with cuda.on(number):
            for _ in range(3):
                assert same(tensors(ask()), made)
        waits, recorded = cuda.waits_of(number), cuda.recorded_on(number)
        assert waits and len(set(waits)) == len(waits) and all(event.stream is cuda.streams[A] for event in waits)
        assert all(count(tensor, recorded) == 1 for tensor in made), "each tensor once"
    with cuda.on(A):
        assert same(tensors(ask()), made)
    assert not cuda.waits_of(A) and not cuda.recorded_on(A), "the stream that has made it need not wait"


@every_cache
def test_the_stream_that_asks_first_makes_it(cache, cuda):
    ask = cache()
    before = len(cuda.events)
    with cuda.on(B):
        ask()
        assert len(cuda.events) > before and all(event.stream is cuda.streams[B] for event in cuda.events[before:])
    with cuda.on(A):
        ask()
    assert cuda.waits_of(A) and all(event.stream is cuda.streams[B] for event in cuda.waits_of(A))


@pytest.mark.parametrize("cache", MADE_IN_CAPTURES, ids=lambda cache: cache.__name__)
def test_what_a_capture_makes_is_not_kept(cache, cuda):
    ask, expected = cache(), tensors(cache()())
    made = len(cuda.events)
    with cuda.capture(), pytest.warns(UserWarning, match=r"not cached.*g.csr\(\).*before the capture"):
        inside = tensors(ask())
        again = tensors(ask())
    assert len(cuda.events) == made, "an event of a capture is of no use outside"
    assert not any(a is b for a, b in zip(inside, again))
    after = tensors(ask())
    assert not any(a is b for a, b in zip(again, after)) and same(tensors(ask()), after)
    for result in (inside, again, after):
        assert all(torch.equal(a, b) for a, b in zip(result, expected))


@pytest.mark.parametrize("cache", REFUSED_IN_CAPTURES, ids=lambda cache: cache.__name__)
def test_what_cannot_be_captured_is_refused(cache, cuda):
    ask = cache()
    with cuda.capture(), pytest.raises(RuntimeError, match="captured; before the capture, call the module once"):
        ask()
    made = tensors(ask())
    with cuda.capture():
        assert same(tensors(ask()), made)


@every_cache
def test_a_capture_takes_what_was_kept_without_waiting(cache, cuda):
    """torch.cuda.graph synchronises the device before the capture. Inside, an earlier event may not be waited for."""
    ask = cache()
    made = tensors(ask())
    with cuda.on(B):
        with cuda.capture():
            assert same(tensors(ask()), made)
        assert not cuda.waits and not cuda.recorded
        ask()
    assert cuda.waits_of(B) and all(count(tensor, cuda.recorded_on(B)) == 1 for tensor in made)


def test_the_event_comes_after_the_work(cuda, monkeypatch):
    real, events_at = torch.ops.halfgnn.transpose.default, []

    def transpose(*args):
        made = real(*args)
        events_at.append(len(cuda.events))
        return made

    monkeypatch.setattr(torch.ops.halfgnn, "transpose", types.SimpleNamespace(default=transpose), raising=False)
    graph().csr()
    assert events_at == [0] and len(cuda.events) == 1


def test_a_side_made_of_the_other_waits_for_it(cuda):
    """The CSR of a stack is made from a CSC that another stream has made."""
    whole = hetero_graph()
    whole.stack()
    with cuda.on(B):
        whole.stack().graph.csr()
        assert len(cuda.waits_of(B)) == 1


# ---- forms of a graph ----------------------------------------------------------------------------------------------------------


def test_reverse_shares_what_is_kept(cuda):
    g = graph()
    g.csr()
    turned = g.reverse()
    with cuda.on(B):
        assert all(a is b for a, b in zip(turned.csc(), g.csr()))
        assert len(cuda.waits_of(B)) == 1
    assert turned.csr() is g.csc() and (turned.num_src, turned.num_edges) == (NUM_NODES, len(SRC))
    assert turned.reverse().csr() is g.csr()


READERS = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda g: pickle.loads(pickle.dumps(g)),
    "int": lambda g: g.int(),
    "to": lambda g: g.to("meta"),
    "map": lambda g: g._map(torch.clone),
    "hetero": lambda g: HeteroGraph({CITES: g}).int(),
    "operator": lambda g: ops.copy_u_sum(g, torch.ones(NUM_NODES, 2, requires_grad=True)),
}


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_readers_wait(read, cuda):
    g = graph()
    made = tensors(g.csr())
    with cuda.on(B):
        read(g)
    assert len(cuda.waits_of(B)) == 1 and all(count(tensor, cuda.recorded_on(B)) == 1 for tensor in made)


def test_edges_of_a_made_side_wait(cuda):
    g = only_stacked()[CITES]
    with cuda.on(B):
        src, dst = g.edges()
    assert len(cuda.waits_of(B)) == 1 and torch.equal(src, DST) and torch.equal(dst, SRC)


def test_a_shallow_copy_shares_what_is_kept(cuda):
    g = graph()
    g.csr()
    other = copy.copy(g)
    with cuda.on(B):
        other.csr()
    assert len(cuda.waits_of(B)) == 1


def test_sizes_and_types_do_not_wait(cuda):
    g = only_stacked()[CITES]
    with cuda.on(B):
        assert (g.num_edges, g.device.type, g.idtype) == (len(SRC), "cpu", torch.int64) and "num_edges=6" in repr(g)
    assert not cuda.waits and not cuda.recorded


def test_two_threads_make_one_side(cuda, monkeypatch):
    """Both get right results, and the tensors that stay have their own event."""
    barrier, real = threading.Barrier(2, timeout=60), torch.ops.halfgnn.transpose.default

    def transpose(*args):
        barrier.wait()
        return real(*args)

    monkeypatch.setattr(torch.ops.halfgnn, "transpose", types.SimpleNamespace(default=transpose), raising=False)
    g, found = graph(), []
    threads = [threading.Thread(target=lambda: found.append(g.csr())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 2 and all(torch.equal(a, b) for a, b in zip(*found))
    kept = g.csr()
    assert any(kept is side for side in found)
    with cuda.on(B):
        g.csr()
    assert all(count(tensor, cuda.recorded_on(B)) == 1 for tensor in tensors(kept)) and len(cuda.recorded_on(B)) == 3


# ---- nodes without in-edges ----------------------------------------------------------------------------------------------------


def test_in_degrees_cannot_be_asked_for_in_a_capture(cuda, monkeypatch):
    g = Graph.from_edges(SRC, DST.remainder(3), num_src=NUM_NODES, num_dst=3)
    conv, x = GATConv(4, 2, 1), torch.randn(NUM_NODES, 4)
    with cuda.capture(), monkeypatch.context() as patch:
        patch.setattr(Graph, "csc", lambda self: pytest.fail("something was launched"))
        with pytest.raises(RuntimeError, match=r"call the module once.*allow_zero_in_degree=True"):
            conv(g, x)
    check_in_degrees(g)
    with cuda.capture():
        check_in_degrees(g)
    assert not cuda.waits


# ---- where there are no streams ------------------------------------------------------------------------------------------------


def test_on_the_cpu_sides_are_kept_as_they_are():
    g = graph()
    assert g.csr() is g._csr and type(g._csr) is Adjacency
    assert type(only_stacked()[CITES]._csc) is Adjacency


@pytest.mark.parametrize("is_made", [True, False], ids=["made before", "made inside"])
def test_compiled_code_takes_what_is_kept(cuda, is_made):
    g = graph()
    if is_made:
        g.csr()
    x = torch.randn(NUM_NODES, 4, requires_grad=True)
    compiled = torch.compile(ops.copy_u_sum, fullgraph=True, backend="aot_eager")
    (expected,) = torch.autograd.grad(ops.copy_u_sum(graph(), x).square().sum(), x)
    with cuda.on(B):
        (actual,) = torch.autograd.grad(compiled(g, x).square().sum(), x)
    assert torch.equal(actual, expected)
    assert all(torch.equal(a, b) for a, b in zip(g.csr(), graph().csr()))
