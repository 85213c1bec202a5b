"""Sparse matrices and features with the nodes in another dimension, under halfgnn.pyg.patch()."""

from __future__ import annotations

import pytest
import torch
import torch_geometric
import torch_geometric.nn as theirs
from torch_geometric import utils

import halfgnn.pyg
from halfgnn.graphs_by_tensor import store
from halfgnn.graphs_by_tensor.matrix import graph_of_matrix
from tests import support
from tests.pyg.test_patch_modules import (
    NUM_EDGES,
    NUM_NODES,
    WIDTH,
    assert_same,
    check,
    edges,
    fell_back,
    made,
    randn,
    routed,
    run,
)

pytestmark = pytest.mark.skipif(not support.supports("cpu", torch.float64), reason="needs float64")
LAYOUTS = {"csr": torch.Tensor.to_sparse_csr, "csc": torch.Tensor.to_sparse_csc, "coo": lambda matrix: matrix}


def matrix(layout, dtype=torch.float64):
    """Rows are destinations."""
    values = (randn(NUM_EDGES, seed=9).abs() + 0.1).to(dtype)
    whole = torch.sparse_coo_tensor(edges().flip(0), values, (NUM_NODES, NUM_NODES)).coalesce()
    return LAYOUTS[layout](whole)


@pytest.mark.filterwarnings("ignore:Converting sparse tensor")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", ["SAGEConv", "GINConv", "GraphConv", "GCNConv"])
def test_modules_on_sparse_matrices(kind, layout):
    if (kind, layout) == ("GCNConv", "csc"):
        pytest.skip("torch_geometric refuses it")
    make = (
        (lambda: theirs.GINConv(torch.nn.Linear(WIDTH, 5)))
        if kind == "GINConv"
        else lambda: getattr(theirs, kind)(WIDTH, 5)
    )
    conv = made(make)
    reduce = "mean" if kind == "SAGEConv" else "sum"
    check(conv, [randn(NUM_NODES, WIDTH, seed=1)], matrix(layout))
    assert f"gspmm:u_mul_e_{reduce}" in routed() and "spmm" not in fell_back()


@pytest.mark.parametrize("reduce", ["sum", "mean", "max", "min"])
def test_products(reduce):
    adj, x = matrix("csr"), randn(NUM_NODES, WIDTH, seed=1).requires_grad_()

    def results():
        out = utils.spmm(adj, x, reduce)
        return [out, *torch.autograd.grad(out.pow(2).sum(), x)]

    expected = results()
    with halfgnn.pyg.accelerate():
        assert_same(results(), expected)
    assert routed() == {f"gspmm:u_mul_e_{reduce}"} and fell_back() == set()


def test_the_graph_of_a_matrix_is_kept_while_it_lives():
    adj, x = matrix("csr"), randn(NUM_NODES, WIDTH, seed=1)
    before = len(store.known)
    with halfgnn.pyg.accelerate():
        expected = utils.spmm(adj, x)
        g = graph_of_matrix(adj)
        assert graph_of_matrix(adj) is g
        adj.values().mul_(2)
        assert_same([utils.spmm(adj, x)], [2 * expected])
    assert len(store.known) == before + 1
    del adj
    assert len(store.known) == before


@pytest.mark.parametrize("dtype", support.HALVES, ids=str)
def test_sparse_matrices_under_autocast(dtype):
    adj, x, conv = matrix("csr", torch.float32), randn(NUM_NODES, WIDTH, seed=1).float(), theirs.GraphConv(WIDTH, 5)
    expected = conv(x, adj)
    with halfgnn.pyg.accelerate(), torch.autocast("cpu", dtype):
        actual = conv(x, adj)
    assert actual.dtype is dtype and routed() == {"gspmm:u_mul_e_sum"}
    torch.testing.assert_close(actual.float(), expected, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("reduce", ["sum", "mean", "max"])
def test_edge_index_matmul(reduce, weighted):
    x = randn(NUM_NODES, WIDTH, seed=1).float().requires_grad_()  # PyG's ones are float32
    value = (randn(NUM_EDGES, seed=2).float().abs() + 0.1).requires_grad_() if weighted else None

    def results(order, transpose):
        index, _ = torch_geometric.EdgeIndex(edges(), sparse_size=(NUM_NODES, NUM_NODES)).sort_by(order)
        out = index.matmul(x, value, reduce=reduce, transpose=transpose)
        return [out, *torch.autograd.grad(out.pow(2).sum(), [x, *([value] if weighted else [])])]

    for arguments in (("col", True), ("row", False)):
        expected = results(*arguments)
        with halfgnn.pyg.accelerate():
            assert_same(results(*arguments), expected, 1e-4)
    assert routed() == {f"gspmm:{'u_mul_e' if weighted else 'copy_u'}_{reduce}"} and fell_back() == set()


def test_modules_that_multiply_an_edge_index():
    index, _ = torch_geometric.EdgeIndex(edges(), sparse_size=(NUM_NODES, NUM_NODES)).sort_by("col")
    conv, x = theirs.GraphConv(WIDTH, 5), randn(NUM_NODES, WIDTH, seed=1).float()
    expected = run(conv, [x], index)
    with halfgnn.pyg.accelerate():
        assert_same(run(conv, [x], index), expected, 1e-4)
    assert routed() == {"gspmm:copy_u_sum"}


LEFT = {
    "gradient of the matrix": lambda x: utils.spmm(matrix("csr").requires_grad_(), x),
    "torch.float64 with torch.float32": lambda x: utils.spmm(matrix("csr", torch.float32), x),
    "no such operator": lambda x: utils.spmm(matrix("csr"), x, "mul"),
    "not sorted": lambda x: torch_geometric.EdgeIndex(edges(), sparse_size=(30, 30)).matmul(x),
}


@pytest.mark.parametrize("reason", LEFT)
def test_products_that_are_left_to_pyg(reason):
    x = randn(NUM_NODES, WIDTH, seed=1)
    try:
        expected = LEFT[reason](x)
    except Exception as error:
        expected = error
    with halfgnn.pyg.accelerate():
        if isinstance(expected, Exception):
            with pytest.raises(type(expected)):
                LEFT[reason](x)
        else:
            assert_same([LEFT[reason](x)], [expected])
    assert halfgnn.pyg.stats() == {"routed": {}, "fell_back": {"spmm": {reason: 1}}}


@pytest.mark.parametrize("kind", ["SAGEConv", "GCNConv", "GraphConv"])
def test_several_features_of_one_graph(kind):
    conv = made(lambda: getattr(theirs, kind)(WIDTH, 5))
    check(conv, [randn(3, NUM_NODES, WIDTH, seed=1)], edges())
    operators = {"SAGEConv": "copy_u_mean", "GraphConv": "copy_u_sum"}
    assert f"gspmm:{operators.get(kind, 'u_mul_e_sum')}" in routed() and "propagate" not in fell_back()


def test_results_of_several_features_are_contiguous():
    """As those of PyG, which callers see through view()."""
    x = randn(3, NUM_NODES, WIDTH, seed=1)
    with halfgnn.pyg.accelerate():
        out = theirs.SimpleConv(aggr="sum")(x, edges())
    assert routed() == {"gspmm:copy_u_sum"} and out.is_contiguous()
