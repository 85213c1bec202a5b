"""halfgnn.Graph: constructors, both adjacencies, forms of the same graph, immutability. test_errors has what it
refuses."""

import copy
import functools
import itertools
import pickle

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import halfgnn
from halfgnn import Graph, ops
from tests import support
from tests.support import DEVICES, GRAPHS, IDTYPES, make_graph

SRC = torch.tensor([2, 0, 1, 1, 4, 1])
DST = torch.tensor([1, 3, 1, 0, 3, 1])


def pairs(g):
    return list(zip(*(x.tolist() for x in g.edges())))


def expand(side):
    """(row, column, edge id) of every position of a compressed adjacency, in order."""
    indptr, indices, edge_ids = side
    rows = torch.repeat_interleave(torch.arange(len(indptr) - 1), indptr.diff().long().cpu())
    ids = torch.arange(len(indices)) if edge_ids is None else edge_ids
    return list(zip(rows.tolist(), indices.tolist(), ids.tolist()))


def check_both_sides(g, edges):
    """Both adjacencies have exactly `edges` (src, dst), listed in the order of edge data."""
    assert g.num_edges == len(edges) and pairs(g) == edges
    for side, rows, cols, (r, c) in ((g.csc(), g.num_dst, g.num_src, (1, 0)), (g.csr(), g.num_src, g.num_dst, (0, 1))):
        assert len(side.indptr) == rows + 1 and int(side.indptr[0]) == 0 and int(side.indptr[-1]) == len(edges)
        assert all(t is None or (t.dtype == g.idtype and t.device == g.device and t.is_contiguous()) for t in side)
        entries = expand(side)
        assert sorted(e for _, _, e in entries) == list(range(len(edges)))
        assert all((edges[e][r], edges[e][c]) == (row, col) for row, col, e in entries)
        assert all(0 <= col < cols for _, col, _ in entries)


# ---- from_edges ----------------------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("idtype", IDTYPES)
def test_from_edges(idtype, device):
    g = Graph.from_edges(SRC.to(device, idtype), DST.to(device, idtype))
    assert (g.num_src, g.num_dst, g.num_edges, g.idtype) == (5, 4, 6, idtype)
    assert g.device == SRC.to(device).device
    check_both_sides(g, list(zip(SRC.tolist(), DST.tolist())))


@pytest.mark.parametrize("idtype", IDTYPES)
@pytest.mark.parametrize("name", GRAPHS)
def test_both_sides_of_the_zoo(name, idtype, device):
    g = make_graph(name, idtype, device)
    src, dst, num_src, num_dst = support._EDGES[name]()
    assert (g.num_src, g.num_dst) == (num_src, num_dst)
    check_both_sides(g, list(zip(src.tolist(), dst.tolist())))


def test_csc_is_a_stable_sort(device):
    """Edges of one destination keep the given order. CSR, which is made from CSC, keeps that order too."""
    g = support.make_graph("skewed", torch.int32, device)
    src, dst = (x.long() for x in g.edges())
    assert torch.equal(g.csc().edge_ids.long(), torch.argsort(dst, stable=True))
    assert torch.equal(g.csr().edge_ids.long(), torch.argsort(src * g.num_dst + dst, stable=True))


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_large_sorts_do_not_depend_on_threads(threads):
    """With 65,536 edges or more, the sort is divided among threads."""
    torch.manual_seed(3)
    src, dst = torch.randint(500, (2, 100_003))
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        g = Graph.from_edges(src, dst, num_src=500, num_dst=500)
        csc, csr = g.csc(), g.csr()
    finally:
        torch.set_num_threads(before)
    assert torch.equal(csc.edge_ids, torch.argsort(dst, stable=True)) and torch.equal(csc.indices, src[csc.edge_ids])
    assert torch.equal(csr.indptr[1:], torch.bincount(src, minlength=500).cumsum(0))
    # CSR made from CSC keeps that order: by source, then destination, then as given.
    assert torch.equal(csr.edge_ids, torch.argsort(src * 500 + dst, stable=True))


def test_more_nodes_than_ids(device):
    g = Graph.from_edges(SRC.to(device), DST.to(device), num_src=9, num_dst=7)
    assert (g.num_src, g.num_dst) == (9, 7)
    assert g.in_degrees().tolist() == [1, 3, 0, 2, 0, 0, 0] and g.out_degrees().tolist() == [1, 3, 1, 0, 1, 0, 0, 0, 0]


@pytest.mark.parametrize("idtype", support.IDTYPES)
def test_sorted_edges_are_taken_as_they_are(device, idtype):
    src, dst = (t.to(device, idtype) for t in (torch.tensor([4, 0, 1, 1, 0]), torch.tensor([1, 1, 2, 4, 4])))
    g = Graph.from_edges(src, dst, num_src=5, num_dst=6, is_sorted=True)
    csc = g.csc()
    assert csc.indptr.tolist() == [0, 0, 2, 3, 3, 5, 5] and csc.indptr.dtype == idtype
    assert csc.indices.data_ptr() == src.data_ptr() and csc.edge_ids is None
    index = torch.stack([src, dst])
    assert Graph.from_edge_index(index, num_nodes=6, is_sorted=True).csc().indptr.tolist() == csc.indptr.tolist()
    none = torch.zeros(0, dtype=idtype, device=device)
    assert Graph.from_edges(none, none, num_src=2, num_dst=2, is_sorted=True).csc().indptr.tolist() == [0, 0, 0]
    with pytest.raises(ValueError, match="dst falls from 4 to 2 at edge 2; expected it sorted"):
        Graph.from_edges(src, dst.flip(0), is_sorted=True)
    with pytest.raises(ValueError, match="sort and is_sorted are both True"):
        Graph.from_edges(src, dst, sort=True, is_sorted=True)


def test_sort_returns_the_permutation(device):
    src, dst = SRC.to(device), DST.to(device)
    g, perm = Graph.from_edges(src, dst, sort=True)
    plain = Graph.from_edges(src, dst)
    assert g.csc().edge_ids is None
    assert perm.tolist() == torch.argsort(dst, stable=True).tolist()
    check_both_sides(g, list(zip(src[perm].tolist(), dst[perm].tolist())))
    x, w = torch.randn(5, 3, device=device), torch.randn(6, 1, device=device)
    assert torch.equal(ops.u_mul_e_sum(g, x, w[perm]), ops.u_mul_e_sum(plain, x, w))
    assert torch.equal(ops.edge_softmax(g, w[perm]), ops.edge_softmax(plain, w)[perm])
    assert torch.equal(ops.u_dot_v(g, x, x[:4]), ops.u_dot_v(plain, x, x[:4])[perm])


def test_strided_ids(device):
    """Columns of an (E, 2) edge array are not contiguous."""
    edges = torch.stack([SRC, DST], 1).to(device)
    check_both_sides(Graph.from_edges(edges[:, 0], edges[:, 1]), list(map(tuple, edges.tolist())))


def test_check_false_builds_the_same(device):
    src, dst = SRC.to(device), DST.to(device)
    for a, b in zip(
        Graph.from_edges(src, dst, num_src=5, num_dst=4, check=False).csc(), Graph.from_edges(src, dst).csc()
    ):
        assert torch.equal(a, b)


# ---- compressed and foreign forms ----------------------------------------------------------------


@pytest.mark.parametrize("idtype", IDTYPES)
def test_from_csc(idtype, device):
    indptr, indices = (torch.tensor(x, dtype=idtype, device=device) for x in ([0, 2, 2, 3], [4, 0, 4]))
    g = Graph.from_csc(indptr, indices)
    assert (g.num_src, g.num_dst) == (5, 3)
    check_both_sides(g, [(4, 0), (0, 0), (4, 2)])
    assert g.csc().indptr.data_ptr() == indptr.data_ptr() and g.csc().indices.data_ptr() == indices.data_ptr()
    edge_ids = torch.tensor([1, 2, 0], dtype=idtype, device=device)
    g = Graph.from_csc(indptr, indices, edge_ids, num_src=8)
    assert g.num_src == 8
    check_both_sides(g, [(4, 2), (4, 0), (0, 0)])


@pytest.mark.parametrize("idtype", IDTYPES)
def test_from_csr(idtype, device):
    indptr, indices = (torch.tensor(x, dtype=idtype, device=device) for x in ([0, 2, 2, 3], [4, 0, 4]))
    g = Graph.from_csr(indptr, indices)
    assert (g.num_src, g.num_dst) == (3, 5)
    check_both_sides(g, [(0, 4), (0, 0), (2, 4)])
    g = Graph.from_csr(indptr, indices, torch.tensor([1, 2, 0], dtype=idtype, device=device), num_dst=8)
    assert g.num_dst == 8
    check_both_sides(g, [(2, 4), (0, 4), (0, 0)])


def test_both_sides_given(device):
    g = make_graph("bipartite", device=device)
    again = Graph(g.num_src, g.num_dst, csc=g.csc(), csr=g.csr())
    check_both_sides(again, pairs(g))
    assert again.csr().indptr is g.csr().indptr


def test_from_edge_index(device):
    edge_index = torch.stack([SRC, DST]).to(device)
    g = Graph.from_edge_index(edge_index)
    assert (g.num_src, g.num_dst) == (5, 5)  # PyG: one set of nodes
    check_both_sides(g, list(map(tuple, edge_index.t().tolist())))
    g = Graph.from_edge_index(edge_index, num_nodes=9)
    assert (g.num_src, g.num_dst) == (9, 9)
    g = Graph.from_edge_index(edge_index, num_src=6, num_dst=4)
    assert (g.num_src, g.num_dst) == (6, 4)
    g, perm = Graph.from_edge_index(edge_index, sort=True)
    check_both_sides(g, list(map(tuple, edge_index.t()[perm.long()].tolist())))
    g = Graph.from_edge_index(torch.zeros(2, 0, dtype=torch.int64, device=device))
    assert (g.num_src, g.num_dst, g.num_edges) == (0, 0, 0)


@pytest.mark.parametrize("layout", ["csr", "csc", "coo"])
def test_from_scipy(layout):
    """A @ x aggregates: rows are destinations."""
    sparse = pytest.importorskip("scipy.sparse")
    gen = torch.Generator().manual_seed(5)
    dense = (torch.rand(7, 5, generator=gen) < 0.4).numpy().astype("float32")
    matrix = sparse.coo_matrix(dense).asformat(layout)
    g = Graph.from_scipy(matrix)
    assert (g.num_src, g.num_dst, g.num_edges) == (5, 7, matrix.nnz)
    x = torch.randn(5, 3)
    torch.testing.assert_close(ops.copy_u_sum(g, x), torch.from_numpy(dense) @ x)
    # Edge data follows the stored values.
    matrix.data[:] = range(1, matrix.nnz + 1)
    values = torch.from_numpy(matrix.data.copy())
    torch.testing.assert_close(ops.u_mul_e_sum(g, x, values), torch.from_numpy(matrix @ x.numpy()))


def test_from_scipy_with_duplicate_entries_and_arrays():
    sparse = pytest.importorskip("scipy.sparse")
    matrix = sparse.coo_matrix(([1.0, 2.0, 3.0], ([1, 1, 0], [2, 2, 0])), shape=(3, 4))
    check_both_sides(Graph.from_scipy(matrix), [(2, 1), (2, 1), (0, 0)])
    check_both_sides(
        Graph.from_scipy(sparse.csr_array(([1.0, 0.0], [2, 1], [0, 1, 2]), shape=(2, 3))), [(2, 0), (1, 1)]
    )
    assert Graph.from_scipy(sparse.csr_matrix((3, 4))).num_edges == 0


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("layout", [torch.sparse_csr, torch.sparse_csc, torch.sparse_coo])
def test_from_torch_sparse(layout, device):
    gen = torch.Generator().manual_seed(5)
    dense = (torch.rand(7, 5, generator=gen) < 0.4).float().to(device)
    matrix = dense.to_sparse(layout=layout)
    g = Graph.from_torch_sparse(matrix)
    assert (g.num_src, g.num_dst, g.num_edges) == (5, 7, int(dense.sum()))
    x = torch.randn(5, 3, device=device)
    torch.testing.assert_close(ops.copy_u_sum(g, x), dense @ x)
    values = torch.randn(g.num_edges, device=device)
    if layout == torch.sparse_coo:
        expected = torch.sparse_coo_tensor(matrix.coalesce().indices(), values, matrix.shape).to_dense() @ x
    elif layout == torch.sparse_csr:
        expected = (
            torch.sparse_csr_tensor(matrix.crow_indices(), matrix.col_indices(), values, matrix.shape).to_dense() @ x
        )
    else:
        expected = (
            torch.sparse_csc_tensor(matrix.ccol_indices(), matrix.row_indices(), values, matrix.shape).to_dense() @ x
        )
    torch.testing.assert_close(ops.u_mul_e_sum(g, x, values), expected)


def test_from_uncoalesced_torch_sparse(device):
    matrix = torch.sparse_coo_tensor(
        [[1, 1, 0], [2, 2, 0]], [1.0, 2.0, 3.0], (3, 4), device=device, check_invariants=False
    )
    check_both_sides(Graph.from_torch_sparse(matrix), [(2, 1), (2, 1), (0, 0)])


# ---- lazy sides ----------------------------------------------------------------------------------


def test_sides_are_made_once(device):
    edges = SRC.to(device), DST.to(device)
    g = Graph.from_edges(*edges)
    assert g.csr() is g.csr() and g.csc() is g.csc()
    g = Graph.from_csr(*g.csr()[:2], g.csr().edge_ids, num_dst=4)
    assert g.csc() is g.csc()
    check_both_sides(g, list(zip(SRC.tolist(), DST.tolist())))


def test_csr_is_not_made_where_nobody_asks(device):
    """A forward and the gradient of edge data need only in-edges."""
    g = make_graph("random", device=device)
    x = torch.randn(30, 4, device=device)
    w = torch.randn(g.num_edges, 1, device=device, requires_grad=True)
    ops.u_mul_e_sum(g, x, w).sum().backward()
    assert g._csr is None
    ops.copy_u_sum(g, x.requires_grad_()).sum().backward()
    assert g._csr is not None


@pytest.mark.parametrize("name", GRAPHS)
def test_transpose_twice(name, device):
    """CSC to CSR and back gives the same CSC except for the order inside rows, for any edge ids."""
    g = make_graph(name, torch.int64, device)
    back = Graph.from_csr(*g.csr()[:2], g.csr().edge_ids, num_dst=g.num_dst)
    assert torch.equal(back.csc().indptr, g.csc().indptr)
    assert sorted(expand(back.csc())) == sorted(expand(g.csc()))
    assert pairs(back) == pairs(g)


# ---- other forms of the same graph ---------------------------------------------------------------


def test_degrees(device):
    g = Graph.from_edges(SRC.to(device, torch.int32), DST.to(device, torch.int32))
    assert g.in_degrees().tolist() == [1, 3, 0, 2] and g.out_degrees().tolist() == [1, 3, 1, 0, 1]
    assert g.in_degrees().dtype == torch.int32 and g.in_degrees().device == g.device
    for name in GRAPHS:
        g = make_graph(name, device=device)
        assert g.in_degrees().shape == (g.num_dst,) and int(g.in_degrees().sum()) == g.num_edges
        assert g.out_degrees().shape == (g.num_src,) and int(g.out_degrees().sum()) == g.num_edges


def test_reverse(device):
    g = make_graph("bipartite", device=device)
    r = g.reverse()
    assert (r.num_src, r.num_dst) == (g.num_dst, g.num_src)
    check_both_sides(r, [(v, u) for u, v in pairs(g)])
    assert r.csr().indices.data_ptr() == g.csc().indices.data_ptr()  # shared, not copied
    check_both_sides(r.reverse(), pairs(g))
    x = torch.randn(g.num_dst, 3, device=device)
    gradient = torch.autograd.functional.vjp(
        lambda y: ops.copy_u_sum(g, y), torch.zeros(g.num_src, 3, device=device), x
    )[1]
    torch.testing.assert_close(ops.copy_u_sum(r, x), gradient)


def test_int_and_long(device):
    g = make_graph("random", torch.int64, device)
    small = g.int()
    assert small.idtype == torch.int32 and g.idtype == torch.int64
    check_both_sides(small, pairs(g))
    assert small.int() is small and g.long() is g
    check_both_sides(small.long(), pairs(g))


@pytest.mark.parametrize("device", DEVICES)
def test_to(device):
    g = make_graph("random", torch.int32)
    moved = g.to(device)
    assert moved.device.type == device
    check_both_sides(moved, pairs(g))
    check_both_sides(moved.to("cpu", non_blocking=False), pairs(g))
    assert g.to("cpu") is g


def test_to_meta():
    """Every tensor is moved. On the meta device only shapes remain, and operators still return shapes."""
    g = make_graph("bipartite", torch.int32)
    g.csr()
    meta = g.to("meta")
    assert meta.device.type == "meta" and all(t.device.type == "meta" for t in (*meta.csc(), *meta.csr()))
    out = ops.u_mul_e_sum(meta, torch.empty(30, 4, 8, device="meta"), torch.empty(300, 4, 1, device="meta"))
    assert out.shape == (40, 4, 8) and out.device.type == "meta"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="page-locked memory needs CUDA")
def test_pin_memory():
    g = make_graph("random", torch.int32)
    pinned = g.pin_memory()
    assert all(t.is_pinned() for t in pinned.csc())
    moved = pinned.to("cuda", non_blocking=True)
    torch.cuda.synchronize()
    check_both_sides(moved, pairs(g))


def test_pin_memory_pins_every_tensor(monkeypatch):
    """Without CUDA torch cannot pin memory, but the calls can be checked."""
    asked = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda t, *args: asked.append(t) or t.clone())
    g = make_graph("random", torch.int32)
    g.csr()
    pinned = g.pin_memory()
    assert len(asked) == 6 and pinned is not g
    check_both_sides(pinned, pairs(g))


def test_copies_and_pickles():
    g = make_graph("bipartite", torch.int32)
    for other in (copy.copy(g), copy.deepcopy(g), pickle.loads(pickle.dumps(g))):
        assert (other.num_src, other.num_dst, other.idtype) == (g.num_src, g.num_dst, g.idtype)
        check_both_sides(other, pairs(g))


@pytest.mark.parametrize("build", ["operator", "csr", "constructor"])
def test_made_in_inference_mode_then_trained(build):
    """Evaluating first makes the data that a graph keeps. The graph must still work in training."""
    src, dst = torch.tensor([0, 1, 2, 2]), torch.tensor([1, 2, 0, 1])
    g = Graph.from_edges(src, dst, num_src=3, num_dst=3)
    x = torch.randn(3, 8)
    with torch.inference_mode():
        if build == "constructor":
            g = Graph.from_edges(src, dst, num_src=3, num_dst=3)
        elif build == "csr":
            g.csr()
        else:
            ops.edge_softmax(g, torch.randn(4, 1), norm_by="src")
    x.requires_grad_()
    ops.copy_u_sum(g, x).sum().backward()
    assert torch.equal(x.grad, g.out_degrees()[:, None].expand(3, 8).float())


def test_exported_or_transformed_then_trained():
    """No tensor of a tracing mode or a functorch transform may be kept with the graph."""
    src, dst = torch.tensor([0, 1, 2, 2]), torch.tensor([1, 2, 0, 1])

    class Model(torch.nn.Module):
        def __init__(self, g):
            super().__init__()
            self.g, self.linear = g, torch.nn.Linear(8, 8)

        def forward(self, x):
            return ops.copy_u_sum(self.g, self.linear(x))

    x = torch.randn(3, 8)
    for trace in (
        lambda model: torch.export.export(model, (x,), strict=False),  # not the default of torch 2.4 to 2.6
        lambda model: torch.func.grad(lambda a: ops.copy_u_sum(model.g, a).sum())(x),
        lambda model: make_fx(model)(x),
    ):
        model = Model(Graph.from_edges(src, dst, num_src=3, num_dst=3))
        trace(model)
        assert all(type(t) is torch.Tensor for t in model.g.csr() if t is not None)
        copy.deepcopy(model.g)
        model(x).sum().backward()
        assert type(model.linear.weight.grad) is torch.Tensor


def test_immutable():
    g = make_graph("random")
    for name, value in (("num_src", 3), ("_csc", None), ("anything", 1)):
        with pytest.raises(AttributeError, match="immutable"):
            setattr(g, name, value)
    with pytest.raises(AttributeError, match="immutable"):
        del g.num_src


def test_repr():
    text = repr(make_graph("bipartite", torch.int32))
    for part in ("Graph", "num_src=30", "num_dst=40", "num_edges=300", "int32", "cpu"):
        assert part in text


def test_exported_at_the_top():
    assert halfgnn.Graph is Graph and halfgnn.ops is ops


@pytest.mark.parametrize("device", DEVICES)
def test_every_constructor_gives_the_same_results(device):
    """One graph made in five ways, with operators that read either adjacency."""
    g = make_graph("bipartite", torch.int64, device)
    src, dst = g.edges()
    forms = [
        Graph.from_csc(*g.csc(), num_src=g.num_src),
        Graph.from_csr(*g.csr(), num_dst=g.num_dst),
        Graph.from_edge_index(torch.stack([src, dst]), num_src=g.num_src, num_dst=g.num_dst),
        g.int(),
        g.reverse().reverse(),
    ]
    x = support.randn(g.num_src, 6, dtype=torch.float16, device=device)
    w = support.randn(g.num_edges, 6, dtype=torch.float16, device=device)
    for form, name in itertools.product(forms, ("u_mul_e_sum", "u_add_e_max", "u_sub_e_mean")):
        results = []
        for graph in (g, form):
            run = functools.partial(getattr(ops, name), graph)
            out, grads = support.evaluate(run, [x, w], torch.ones_like)
            results.append([out, *grads])
        for a, b in zip(*results):
            torch.testing.assert_close(a, b, rtol=2e-3, atol=2e-3)
