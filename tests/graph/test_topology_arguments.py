"""Constructors of Graph and HeteroGraph, with given and default numbers of nodes, with and without checks, with several
kinds of ids."""

import pytest
import torch

from halfgnn import Graph, HeteroGraph, ops
from tests.support import IDTYPES, randn

SRC, DST = torch.tensor([0, 1, 1]), torch.tensor([2, 0, 2])  # 5 sources and 7 destinations; the last have no edge
SIZES = (5, 7)


def matrix(layout):
    """A (7, 5) matrix of these edges, from scipy or torch."""
    sparse = pytest.importorskip("scipy.sparse")
    coo = sparse.coo_matrix((torch.ones(3).numpy(), (DST.numpy(), SRC.numpy())), shape=SIZES[::-1])
    if isinstance(layout, str):
        return Graph.from_scipy(coo.asformat(layout))
    dense = torch.from_numpy(coo.toarray())
    return Graph.from_torch_sparse(dense.to_sparse(layout=layout))


@pytest.mark.parametrize(
    "layout", ["coo", "csc", "csr", "lil", torch.sparse_coo, torch.sparse_csr, torch.sparse_csc], ids=str
)
def test_matrices_keep_rows_and_columns_without_entries(layout):
    g = matrix(layout)
    assert (g.num_src, g.num_dst, g.num_edges) == (*SIZES, 3)
    assert sorted(zip(*(x.tolist() for x in g.edges()))) == [(0, 2), (1, 0), (1, 2)]
    assert g.in_degrees().tolist() == [1, 0, 2, 0, 0, 0, 0] and g.out_degrees().tolist() == [1, 2, 0, 0, 0]


@pytest.mark.parametrize(
    "given,expected",
    [
        ({}, (3, 3)),
        ({"num_src": 4}, (4, 3)),
        ({"num_dst": 4}, (3, 4)),  # the number of sources is given by the largest id in either row
        ({"num_nodes": 6}, (6, 6)),
        ({"num_nodes": 6, "num_dst": 3}, (6, 3)),
        ({"num_src": 2, "num_dst": 9}, (2, 9)),
    ],
    ids=str,
)
def test_sizes_of_an_edge_index(given, expected):
    g = Graph.from_edge_index(torch.stack([SRC, DST]), **given)
    assert (g.num_src, g.num_dst) == expected


@pytest.mark.parametrize("build,name", [(Graph.from_csc, "num_src"), (Graph.from_csr, "num_dst")])
@pytest.mark.parametrize("count", [-1, 2.5, True, 2**48], ids=str)
def test_counts_that_are_none(build, name, count):
    indptr, indices = torch.tensor([0, 0]), torch.tensor([], dtype=torch.int64)
    with pytest.raises((TypeError, ValueError), match=f"^{name} is {count}; expected"):
        build(indptr, indices, check=False, **{name: count})


def test_unchecked_edges_of_a_dictionary():
    """With check=False ids are not checked, which saves a synchronisation on a GPU."""
    etype, edges = ("a", "to", "b"), torch.tensor([[0, 9], [0, 1]])
    with pytest.raises(ValueError, match="9"):
        HeteroGraph.from_edge_index_dict({etype: edges}, {"a": 2, "b": 2})
    assert HeteroGraph.from_edge_index_dict({etype: edges}, {"a": 2, "b": 2}, check=False).num_edges(etype) == 2


@pytest.mark.parametrize("side", ["num_src", "num_dst"])
def test_int_refuses_what_does_not_fit(side):
    large = 2**31
    indptr, indices = torch.tensor([0, 1]), torch.tensor([0])
    csr = (indptr, indices, None)
    g = Graph(1, large, csr=csr) if side == "num_dst" else Graph(large, 1, csc=csr)
    for graph in (g, HeteroGraph({("a", "to", "b"): g})):
        with pytest.raises(ValueError, match=f"^{side} is {large}, too large for int32 ids"):
            graph.int()
        assert graph.idtype == torch.int64


# ---- stacks ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("idtype", IDTYPES, ids=str)
@pytest.mark.parametrize("in_order", ["first", "last", "none", "both"])
def test_stacks_of_relations_with_and_without_edge_ids(in_order, idtype):
    """Also for a compact stack, whose relations read few of their sources."""
    ends = [torch.tensor([[7, 2, 7, 0], [1, 0, 0, 2]]), torch.tensor([[9, 1, 4], [2, 2, 0]])]
    graphs, orders = [], []
    for i, (src, dst) in enumerate(ends):
        kept = in_order in ("both", ("first", "last")[i])
        made = Graph.from_edges(src.to(idtype), dst.to(idtype), num_src=40, num_dst=3, sort=kept)
        graphs.append(made[0] if kept else made)
        orders.append(made[1].long() if kept else torch.arange(len(src)))
    etypes = [("a", "one", "b"), ("a", "two", "b")]
    stack = HeteroGraph(dict(zip(etypes, graphs))).stack()
    assert stack.graph.idtype == idtype and stack.num_src == (3, 3) and stack.num_edges == (4, 3)
    x = randn(40, 2, dtype=torch.float64)
    w = [randn(graph.num_edges, 1, dtype=torch.float64) for graph in graphs]
    rows = torch.cat([x[ids.long()] for ids in stack.src_ids])
    got = ops.u_mul_e_sum(stack.graph, rows, torch.cat(w))
    expected = torch.cat([
        torch.zeros(3, 2, dtype=torch.float64).index_add(0, dst[order], x[src[order]] * weight)
        for (src, dst), order, weight in zip(ends, orders, w)
    ])  # fmt: skip
    torch.testing.assert_close(got, expected)
