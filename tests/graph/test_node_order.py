"""halfgnn.reorder and halfgnn.locality: permutations and the way back, planted communities, threads, what is refused."""

import functools
import pickle

import pytest
import torch

import halfgnn
from halfgnn import Graph, HeteroGraph, locality, ops, reorder
from tests import support
from tests.support import GRAPHS, IDTYPES, make_graph

SQUARE = [name for name in GRAPHS if make_graph(name).num_src == make_graph(name).num_dst]


@functools.cache
def communities(num_nodes=3000, size=100, degree=10, mix=0.9, directed=False, seed=1):
    """(src, dst, community of every node): communities of equal size under random ids. A share `mix` of edges stays inside."""
    gen = torch.Generator().manual_seed(seed)
    src = torch.randint(num_nodes, (num_nodes * degree // 2,), generator=gen)
    near = src // size * size + torch.randint(size, src.shape, generator=gen)
    far = torch.randint(num_nodes, src.shape, generator=gen)
    dst = torch.where(torch.rand(src.shape, generator=gen) < mix, near, far)
    names = torch.randperm(num_nodes, generator=gen)
    of = torch.empty_like(names)
    of[names] = torch.arange(num_nodes) // size
    src, dst = names[src], names[dst]
    return (src, dst, of) if directed else (torch.cat([src, dst]), torch.cat([dst, src]), of)


def graph_of(src, dst, num_nodes=3000, idtype=torch.int64, device="cpu"):
    return Graph.from_edges(src.to(device, idtype), dst.to(device, idtype), num_src=num_nodes, num_dst=num_nodes)


def share_within(g, window):
    """The share of edges whose ends are less than `window` ids apart."""
    src, dst = g.edges()
    return ((src.long() - dst.long()).abs() < window).double().mean().item()


def lru_share(columns, window):
    """The specification of locality, for a graph whose gathers are all looked at."""
    cache, found = {}, 0
    for column in columns:
        found += column in cache
        cache.pop(column, None)
        cache[column] = None
        if len(cache) > window:
            del cache[next(iter(cache))]
    return found / len(columns)


# ---- ids -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("identity", [False, True])
@pytest.mark.parametrize("idtype", IDTYPES)
@pytest.mark.parametrize("name", SQUARE)
def test_same_edges_under_other_ids(name, idtype, identity, device):
    g = make_graph(name, idtype, device, identity)
    r = reorder(g, least_gain=-1)
    everyone = torch.arange(g.num_src, dtype=idtype, device=device)
    assert torch.equal(r.node_ids.sort().values, everyone) and torch.equal(r.new_ids[r.node_ids.long()], everyone)
    assert not r.is_identity and r.graph.device == g.device and r.graph.idtype == r.node_ids.dtype == idtype
    (src, dst), (new_src, new_dst) = g.edges(), r.graph.edges()
    assert torch.equal(r.new_ids[src.long()], new_src) and torch.equal(r.new_ids[dst.long()], new_dst)
    for indptr, indices, edge_ids in (r.graph.csc(), r.graph.csr()):
        assert int(indptr[-1]) == g.num_edges and indptr.dtype == indices.dtype == edge_ids.dtype == idtype
    back = Graph.from_csr(*r.graph.csr(), num_dst=g.num_dst).edges()  # CSC and CSR are of one graph
    assert torch.equal(back[0], new_src) and torch.equal(back[1], new_dst)
    if device == "cpu":
        assert (r.graph.max_in_degree, r.graph.max_out_degree) == (g.max_in_degree, g.max_out_degree)


@pytest.mark.parametrize("directed", [False, True])
def test_planted_communities_are_found(directed):
    src, dst, of = communities(directed=directed)
    r = reorder(graph_of(src, dst), window=200)
    assert share_within(r.graph, 200) > 0.85 > 0.2 > share_within(graph_of(src, dst), 200)
    assert not r.is_identity and r.locality_after > r.locality_before + 0.4
    boundaries = (of[r.node_ids][1:] != of[r.node_ids][:-1]).sum().item()
    assert boundaries < 100  # of 3000 nodes in 30 communities: nearly every community is in one place


def test_order_depends_on_neither_threads_nor_idtype():
    found = []
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 4, 3):
            torch.set_num_threads(threads)
            for idtype in IDTYPES:
                for mix in (0.9, 0.2):
                    src, dst, _ = communities(12_000, 300, 12, mix, directed=mix < 0.5)
                    found.append((mix, reorder(graph_of(src, dst, 12_000, idtype), least_gain=-1).new_ids.long()))
    finally:
        torch.set_num_threads(before)
    for mix, ids in found:
        assert torch.equal(ids, next(first for other, first in found if other == mix))


def test_nodes_of_a_community_keep_their_order_and_lonely_nodes_come_last():
    g = graph_of(torch.tensor([1, 5, 3, 3]), torch.tensor([5, 1, 7, 3]), 9)
    assert reorder(g, least_gain=-1).node_ids.tolist() == [1, 5, 3, 7, 0, 2, 4, 6, 8]


def test_linked_communities_are_near_one_another():
    """Sixteen cliques of eight; clique 2 i is linked to 2 i + 1 by several edges."""
    within = [(8 * c + i, 8 * c + j) for c in range(16) for i in range(8) for j in range(i)]
    between = [(16 * p + i, 16 * p + 8 + i) for p in range(8) for i in range(6)] + [
        (16 * p, 16 * p + 16) for p in range(7)
    ]
    src, dst = torch.tensor(within + between).t()
    names = torch.randperm(128)
    r = reorder(graph_of(names[src], names[dst], 128), least_gain=-1)
    place = r.new_ids[names].view(16, 8)
    assert (place.amax(1) - place.amin(1) == 7).all()
    pairs = place.view(8, 16)
    assert (pairs.amax(1) - pairs.amin(1) == 15).all()


# ---- data ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [*support.HALVES, torch.float32])
def test_operators_give_the_same_bits(dtype, device):
    src, dst, _ = communities()
    g = graph_of(src, dst, device=device)
    r = reorder(g, window=200)
    x, w = (support.randn(n, 24, dtype=dtype, device=device) for n in (g.num_src, g.num_edges))
    w = w[:, :1].contiguous()
    for op in ("copy_u_sum", "copy_u_max"):
        call = getattr(ops, op)
        assert torch.equal(r.restore(call(r.graph, r.permute(x))), call(g, x))
    assert torch.equal(r.restore(ops.u_mul_e_sum(r.graph, r.permute(x), w)), ops.u_mul_e_sum(g, x, w))
    logits = ops.u_dot_v(g, x, x)
    assert torch.equal(ops.u_dot_v(r.graph, r.permute(x), r.permute(x)), logits)  # edge data stays where it is
    assert torch.equal(ops.edge_softmax(r.graph, logits), ops.edge_softmax(g, logits))


def test_gradients_come_back(device):
    src, dst, _ = communities(directed=True)
    g = graph_of(src, dst, device=device)
    r = reorder(g, window=200)
    x, w = (torch.randn(n, 1, 8, device=device) for n in (g.num_src, g.num_edges))
    grads = []
    for run in (
        lambda x, w: ops.u_mul_e_sum(g, x, w),
        lambda x, w: r.restore(ops.u_mul_e_sum(r.graph, r.permute(x), w)),
    ):
        operands = [t.clone().requires_grad_() for t in (x, w[..., :1])]
        out = run(*operands)
        out.backward(torch.sin(torch.arange(out.numel(), device=device)).view_as(out))
        grads.append([t.grad for t in operands])
    assert torch.equal(grads[0][0], grads[1][0]) and torch.equal(grads[0][1], grads[1][1])


def test_permute_and_restore():
    src, dst, _ = communities()
    r = reorder(graph_of(src, dst, idtype=torch.int32), window=200)
    for x in (
        torch.arange(3000),
        torch.rand(3000) < 0.5,
        torch.rand(3000, 2, 3).half()[..., ::2],
        torch.zeros(3000, 0),
        torch.rand(3000, 3).to(torch.complex64),
    ):
        assert torch.equal(r.permute(x), x[r.node_ids.long()]) and torch.equal(r.restore(r.permute(x)), x)
        assert torch.equal(r.permute(x)[r.new_ids.long()[7]], x[7])
    x, labels = torch.rand(3000, 2), torch.arange(3000)
    permuted = r.permute(x, labels)
    assert torch.equal(permuted[0], r.permute(x)) and torch.equal(permuted[1], r.permute(labels))
    assert all(torch.equal(back, given) for back, given in zip(r.restore(*permuted), (x, labels)))
    x = torch.rand(3000, 2, dtype=torch.float64, requires_grad=True)
    (r.permute(x) * torch.arange(3000.0, dtype=torch.float64)[:, None]).sum().backward()
    assert torch.equal(x.grad, r.new_ids.double()[:, None].expand(-1, 2))


@pytest.mark.parametrize("save", [pickle.dumps, None])
def test_is_saved(save, tmp_path):
    src, dst, _ = communities()
    r = reorder(graph_of(src, dst), window=200)
    if save is None:
        torch.save(r, tmp_path / "r.pt")
        again = torch.load(tmp_path / "r.pt", weights_only=True)
    else:
        again = pickle.loads(save(r))
    assert torch.equal(again.new_ids, r.new_ids) and torch.equal(again.graph.csc().indices, r.graph.csc().indices)
    assert repr(again) == repr(r)


def test_is_made_in_inference_mode():
    src, dst, _ = communities()
    with torch.inference_mode():
        r = reorder(graph_of(src, dst), window=200)
    x = torch.rand(3000, 4, requires_grad=True)
    r.restore(ops.copy_u_sum(r.graph, r.permute(x))).sum().backward()
    assert torch.equal(x.grad, r.graph.reverse().in_degrees()[r.new_ids].float()[:, None].expand(-1, 4))


# ---- what is expected ------------------------------------------------------------------------------


def test_ids_stay_if_there_is_nothing_to_gain():
    gen = torch.Generator().manual_seed(3)
    src, dst = torch.randint(5000, (2, 150_000), generator=gen)
    g = graph_of(src, dst, 5000)
    r = reorder(g, window=500)
    assert r.is_identity and r.graph is g and torch.equal(r.new_ids, torch.arange(5000)) and r.new_ids is r.node_ids
    assert abs(r.locality_after - r.locality_before) < 0.02
    assert "5000 nodes: a cache of 500 rows" in repr(r) and "too little to change ids" in repr(r)
    src, dst, _ = communities()
    assert reorder(graph_of(src, dst)).is_identity  # all rows fit into the cache
    assert not reorder(graph_of(src, dst), window=200, least_gain=0.3).is_identity
    assert reorder(graph_of(src, dst), window=200, least_gain=0.9).is_identity


def test_reordering_twice_gains_nothing():
    src, dst, _ = communities()
    assert reorder(reorder(graph_of(src, dst), window=200).graph, window=200).is_identity


@pytest.mark.parametrize("window", [1, 2, 7, 29, 30, 31, 2**40])
@pytest.mark.parametrize("name", ["random", "bipartite", "star", "one_edge", "self_loops"])
def test_locality_is_that_of_an_lru_cache(name, window, device):
    g = make_graph(name, torch.int32, device)
    expected = lru_share(g.csc().indices.tolist(), window)
    assert locality(g, window) == pytest.approx(expected, abs=1e-12)


def test_locality_of_a_sample():
    """More edges than are looked at: a window that repeats, and random ids."""
    num_edges, num_nodes = 5_000_000, 40_000
    indptr = torch.tensor([0, num_edges])
    ring = torch.arange(num_edges) % 1000
    gen = torch.Generator().manual_seed(5)
    drawn = torch.randint(num_nodes, (num_edges,), generator=gen)
    for indices, window, expected in ((ring, 1000, 1.0), (ring, 999, 0.0), (drawn, 4000, 0.1), (drawn, 30_000, 0.75)):
        g = Graph.from_csc(indptr, indices, num_src=num_nodes, check=False)
        assert locality(g, window) == pytest.approx(expected, abs=0.01), window


def test_nothing_to_read():
    for name in ("edgeless", "no_source", "no_destination", "empty"):
        assert locality(make_graph(name)) == 1.0
    r = reorder(make_graph("empty"), least_gain=-1)
    assert r.graph.num_src == 0 and r.permute(torch.rand(0, 3)).shape == (0, 3)
    lonely = Graph.from_edges(*torch.zeros(2, 0, dtype=torch.int32), num_src=4, num_dst=4)
    assert reorder(lonely, least_gain=-1).node_ids.tolist() == [0, 1, 2, 3]


# ---- what is refused -------------------------------------------------------------------------------


def test_errors():
    g = make_graph("random")
    meta = Graph.from_csc(
        torch.zeros(4, device="meta").int(), torch.zeros(2, device="meta").int(), num_src=3, check=False
    )
    types = {("a", "r", "a"): g, ("a", "s", "a"): g}
    r = reorder(g)
    for call, error, match in [
        (lambda: reorder(3), TypeError, "g is a int; expected a halfgnn.Graph or a DGLGraph"),
        (lambda: locality(None), TypeError, "g is a NoneType"),
        (lambda: reorder(HeteroGraph(types)), ValueError, "g has 2 edge types"),
        (lambda: reorder(make_graph("bipartite")), ValueError, "g has 30 sources and 40 destinations; expected a graph whose"),
        (lambda: reorder(meta), ValueError, "g is on meta"),
        (lambda: locality(meta), ValueError, "g is on meta"),
        (lambda: reorder(g, window=0), ValueError, "window is 0; expected a positive integer"),
        (lambda: locality(g, 2.5), TypeError, "window is 2.5"),
        (lambda: reorder(g, least_gain="x"), TypeError, "least_gain is 'x'; expected a number"),
        (lambda: reorder(g, least_gain=float("nan")), ValueError, "least_gain is nan"),
        (lambda: r.permute([1.0]), TypeError, "x is a list; expected a torch.Tensor"),
        (lambda: r.permute(torch.rand(3)), ValueError, r"x has shape \(3,\); expected 30 rows, one per node"),
        (lambda: r.permute(torch.rand(30), torch.rand(3)), ValueError, r"more\[0\] has shape \(3,\); expected 30 rows"),
        (lambda: r.restore(torch.tensor(1.0)), ValueError, r"y has shape \(\); expected 30 rows, one per node"),
        (lambda: r.restore(torch.rand(30, 2).to_sparse()), TypeError, "y has layout torch.sparse_coo"),
        (lambda: setattr(r, "graph", g), AttributeError, "graph"),
        (lambda: ops.copy_u_sum(r, torch.rand(30, 2)), TypeError, "g is a Reordering; .*: pass g.graph$"),
    ]:  # fmt: skip
        with pytest.raises(error, match=match):
            call()


def test_raw_operators_check_what_they_read():
    raw = torch.ops.halfgnn
    g = make_graph("random")
    (indptr, indices, _), (out_indptr, out_indices, _) = g.csc(), g.csr()
    for arguments, error, match in [
        ((indptr, indices + 1, out_indptr, out_indices), ValueError, "indices holds 30; expected ids in \\[0, 30\\)"),
        ((indptr, indices, out_indptr, out_indices - 1), ValueError, "indices holds -1"),
        ((indptr.flip(0), indices, out_indptr, out_indices), ValueError, "indptr runs from 100 to 0; expected 0 to 100"),
        ((indptr, indices, out_indptr[[0, 2, 1, *range(3, 31)]], out_indices), ValueError, "out_indptr falls after row"),
        ((indptr, indices, out_indptr[1:], out_indices), ValueError, "out_indptr has shape"),
        ((indptr, indices, out_indptr, out_indices[1:]), ValueError, "indices has shape"),
        ((indptr, indices, out_indptr.int(), out_indices.int()), TypeError, "out_indptr has dtype"),
        ((indptr, indices, out_indptr.float(), out_indices), TypeError, "indptr has dtype"),
    ]:  # fmt: skip
        with pytest.raises(error, match=match):
            raw.reorder(*arguments)
    for arguments, error, match in [
        ((indices, 29, 5), ValueError, "indices holds 29; expected ids in \\[0, 29\\)"),
        ((indices, -1, 5), ValueError, "num_cols is -1"),
        ((indices, 2**31, 5), ValueError, "num_cols is"),
        ((indices, 30, 0), ValueError, "window is 0"),
        ((indices[::2], 30, 5), ValueError, "indices has shape .* contiguous"),
        ((indices.float(), 30, 5), TypeError, "indices has dtype"),
    ]:
        with pytest.raises(error, match=match):
            raw.locality(*arguments)


def test_raw_operators_are_traced():
    g = make_graph("random", torch.int32)
    sides = (*g.csc()[:2], *g.csr()[:2])
    torch.library.opcheck(torch.ops.halfgnn.reorder, sides)
    torch.library.opcheck(torch.ops.halfgnn.locality, (sides[1], 30, 5))


@pytest.mark.skipif(not (halfgnn.has_cuda() and torch.cuda.is_available()), reason="needs the CUDA back end and a GPU")
def test_data_may_be_on_another_device_than_the_graph():
    src, dst, _ = communities()
    on_cpu, on_gpu = (reorder(graph_of(src, dst, device=device), window=200) for device in ("cpu", "cuda"))
    assert torch.equal(on_cpu.new_ids, on_gpu.new_ids.cpu())
    x = torch.rand(3000, 5)
    assert torch.equal(on_gpu.permute(x), on_cpu.permute(x.cuda()).cpu())
