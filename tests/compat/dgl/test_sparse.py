"""halfgnn.compat.dgl.sparse beside dense matrices: products, arithmetic, reductions, rows, and their gradients."""

from __future__ import annotations

import pytest
import torch

from halfgnn.compat import dgl
from halfgnn.compat.dgl import DGLError
from halfgnn.compat.dgl import sparse as sp

N, K, M = 6, 5, 7


def matrix(shape, columns=(), num_entries=12):
    """A sparse matrix without repeated places, one of whose rows is empty, and itself dense. Both require gradients."""
    places = torch.randperm((shape[0] - 1) * shape[1])[:num_entries]
    val = torch.rand(num_entries, *columns) + 0.5
    A = sp.spmatrix(torch.stack([places // shape[1], places % shape[1]]), val.clone().requires_grad_(), shape)
    return A, A.to_dense().detach().requires_grad_()


def check(sparse, dense, compute, operands=()):
    """compute(matrices, operands) is the same for sparse and dense ones, and so are gradients at the entries."""
    results = compute(*sparse), compute(*dense)
    mine, expected = (result.to_dense() if isinstance(result, sp.SparseMatrix) else result for result in results)
    torch.testing.assert_close(mine, expected)
    weights = torch.randn(mine.shape)
    own = torch.autograd.grad((mine * weights).sum(), [*(A.val for A in sparse), *operands])
    other = torch.autograd.grad((expected * weights).sum(), [*dense, *operands])
    for A, gradient in zip(sparse, own):
        at = other[sparse.index(A)][A.row, A.col]
        torch.testing.assert_close(gradient, at)
    for gradient, expected in zip(own[len(sparse) :], other[len(sparse) :]):
        torch.testing.assert_close(gradient, expected)


def test_products_with_dense_ones():
    (A, dense), X = matrix((N, K)), torch.randn(K, 3, requires_grad=True)
    check([A], [dense], lambda A: A @ X, [X])
    check([A], [dense], lambda A: A @ X[:, 0], [X])
    check([A], [dense], lambda A: A.T @ torch.ones(N, 2))
    (A, dense), X = matrix((N, K), (2,)), torch.randn(K, 3, 2, requires_grad=True)
    product = lambda A: A @ X if isinstance(A, sp.SparseMatrix) else torch.einsum("nkb,kdb->ndb", A, X)  # noqa: E731
    check([A], [dense], product, [X])


def test_products_with_sparse_ones():
    (A, a), (B, b) = matrix((N, K)), matrix((K, M))
    check([A, B], [a, b], lambda A, B: A @ B)
    with pytest.raises(DGLError, match="several entries at one place"):
        sp.from_coo(torch.zeros(2, dtype=torch.int64), torch.zeros(2, dtype=torch.int64)) @ sp.identity((1, 1))


def test_products_at_entries():
    (A, dense), X, Y = matrix((N, M)), torch.randn(N, 3, requires_grad=True), torch.randn(3, M, requires_grad=True)
    check([A], [dense], lambda A: sp.sddmm(A, X, Y) if isinstance(A, sp.SparseMatrix) else A * (X @ Y), [X, Y])
    X, Y = torch.randn(N, 3, 2, requires_grad=True), torch.randn(3, M, 2, requires_grad=True)
    (A, dense) = matrix((N, M), (2,))
    batched = lambda A: A * torch.einsum("ndb,dmb->nmb", X, Y)  # noqa: E731
    check([A], [dense], lambda A: sp.bsddmm(A, X, Y) if isinstance(A, sp.SparseMatrix) else batched(A), [X, Y])


@pytest.mark.parametrize("columns", [(), (2,)])
def test_arithmetic(columns):
    (A, a), (B, b) = matrix((N, K), columns), matrix((N, K), columns)
    check([A, B], [a, b], lambda A, B: A + B)
    check([A, B], [a, b], lambda A, B: B - A)
    check([A, B], [a, b], lambda A, B: A * B)
    check([A], [a], lambda A: -A * 2 / 3)
    assert torch.equal(((A**2) / A).val, A.val**2 / A.val)
    for wrong in (lambda: A + 1, lambda: 1 - A, lambda: A * torch.ones(2), lambda: 1 / A):
        with pytest.raises(TypeError):
            wrong()
    with pytest.raises(DGLError, match="expected the same places"):
        A / B


@pytest.mark.parametrize("columns", [(), (2,)])
@pytest.mark.parametrize("dim", [0, 1])
def test_reductions(columns, dim):
    A, dense = matrix((N, K), columns)
    check([A], [dense], lambda A: A.sum(dim))
    is_entry = torch.zeros(N, K).index_put((A.row, A.col), torch.ones(A.nnz)).bool()
    has_any = is_entry.any(dim).reshape(-1, *[1] * len(columns))
    shaped = is_entry.reshape(N, K, *[1] * len(columns))
    for name, filler, reduce in (("smax", -1e9, torch.amax), ("smin", 1e9, torch.amin), ("sprod", 1.0, torch.prod)):
        expected = reduce(dense.masked_fill(~shaped, filler), dim) * has_any
        torch.testing.assert_close(getattr(A, name)(dim), expected)
    torch.testing.assert_close(A.softmax(dim).sum(dim), has_any.expand(-1, *columns).float())


def test_rows_and_columns():
    A, dense = matrix((N, K))
    assert torch.equal(A.index_select(0, torch.tensor([4, 1, 1])).to_dense(), dense[[4, 1, 1]])
    assert torch.equal(A.range_select(1, slice(1, 4)).to_dense(), dense[:, 1:4])
    small, rows = A.compact(0, torch.tensor([5]))
    assert rows[0] == 5 and torch.equal(small.to_dense(), dense[rows])
    for replace in (False, True):
        drawn = A.sample(0, 2, replace=replace)
        counts, available = torch.bincount(drawn.row, minlength=N), (dense != 0).sum(1)
        assert torch.equal(counts, torch.where(available > 0, 2, 0) if replace else available.clamp(max=2))
        assert bool((dense[drawn.row, drawn.col] == drawn.val).all())


def test_forms():
    A, dense = matrix((N, K))
    for form, back in (("coo", dense.to_sparse()), ("csr", dense.to_sparse_csr()), ("csc", dense.to_sparse_csc())):
        made = sp.from_torch_sparse(back.detach())
        assert torch.equal(made.to_dense(), dense) and torch.equal(
            getattr(sp, f"to_torch_sparse_{form}")(A).to_dense(), dense
        )
    twice = sp.from_coo(torch.tensor([1, 0, 1]), torch.tensor([2, 1, 2]), torch.tensor([1, 2, 3]))
    assert twice.has_duplicate() and twice.coalesce().val.tolist() == [2, 4]
    assert torch.equal(sp.diag(torch.arange(1.0, 4)).inv().to_dense(), torch.diag(1 / torch.arange(1.0, 4)))
    g = dgl.graph(([0, 1, 2], [1, 2, 2]))
    g.edata["w"] = torch.rand(3)
    assert torch.equal(g.adj(eweight_name="w").to_dense()[[0, 1, 2], [1, 2, 2]], g.edata["w"])
    assert torch.equal(g.adj().indices(), torch.stack(g.edges()))
