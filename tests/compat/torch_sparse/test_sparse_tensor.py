"""SparseTensor, beside dense matrices."""

import copy
import operator

import pytest
import torch

from halfgnn import Graph, ops
from halfgnn.compat import torch_sparse
from halfgnn.compat.torch_sparse import SparseStorage, SparseTensor

M, N = 9, 7


def made(device="cpu", shape=(), dtype=torch.float64):
    """A matrix with empty rows and columns, in random order, and the dense one."""
    dense = torch.randint(1, 9, (M, N, *shape)).to(dtype) * (torch.rand(M, N) < 0.4).view(M, N, *[1] * len(shape))
    dense[2], dense[:, 3] = 0, 0
    row, col = (dense != 0).view(M, N, -1).any(2).nonzero().unbind(1)
    order = torch.randperm(row.numel())
    row, col = row[order], col[order]
    value = dense[row, col]
    tensors = (x.to(device) for x in (row, col, value))
    row, col, value = tensors
    return SparseTensor(row=row, col=col, value=value, sparse_sizes=(M, N)), dense.to(device)


@pytest.mark.filterwarnings("ignore:Sparse")
def test_forms(device):
    a, dense = made(device, (2,))
    assert a.sizes() == [M, N, 2] and a.nnz() == a.coalesce().nnz() and a.is_coalesced()
    assert torch.equal(a.to_dense(), dense) and torch.equal(a.t().to_dense(), dense.transpose(0, 1))
    assert SparseTensor.from_dense(dense) == a and a.t().t() == a and copy.deepcopy(a) == a and a.t() != a
    flat = a.set_value(a.storage.value()[:, 0], "coo")
    colptr, row, value = flat.csc()
    assert torch.equal(torch.sparse_csc_tensor(colptr, row, value, (M, N)).to_dense(), dense[..., 0])
    for layout in ("coo", "csr"):
        tensor = getattr(flat, f"to_torch_sparse_{layout}_tensor")()
        assert torch.equal(tensor.to_dense(), dense[..., 0])
        assert getattr(SparseTensor, f"from_torch_sparse_{layout}_tensor")(tensor) == flat
    assert torch.equal(flat.to_torch_sparse_csc_tensor().to_dense(), dense[..., 0])
    assert flat.set_value(value, "csc") == flat and flat.half().dtype() is torch.float16
    assert flat.set_value(None).to_dense().sum() == flat.nnz()
    cached = a.clone().fill_cache_()
    assert torch.equal(cached.storage.csc2csr()[cached.storage.csr2csc()], torch.arange(a.nnz(), device=device))
    assert cached.t() == a.t() and cached.sparse_resize((M + 1, N)).storage.rowptr()[-1] == a.nnz()


def test_scipy():
    pytest.importorskip("scipy.sparse")
    a, dense = made()
    for layout in ("coo", "csr", "csc"):
        matrix = a.to_scipy(layout)
        assert (matrix.todense() == dense.numpy()).all() and SparseTensor.from_scipy(matrix) == a
    index, value = torch_sparse.from_scipy(torch_sparse.to_scipy(*_index(a), M, N))
    assert SparseTensor.from_edge_index(index, value, (M, N)) == a


def _index(a):
    row, col, value = a.coo()
    return torch.stack([row, col]), value


def test_parts(device):
    a, dense = made(device, (2,))
    ids, mask = torch.tensor([4, 0, 4, 2], device=device), torch.rand(M, device=device) < 0.5
    for cached in (a, a.clone().fill_cache_()):
        for index in (
            ids,
            mask,
            slice(1, 4),
            slice(-3, None),
            slice(0, 6, 2),
            (Ellipsis, slice(1)),
            (ids, slice(2, 5)),
        ):
            assert torch.equal(cached[index].to_dense(), dense[index])
        assert torch.equal(cached[:, ids].to_dense(), dense[:, ids])
        assert torch.equal(cached[mask, mask[:N].tolist()].to_dense(), dense[mask][:, mask[:N]])
        assert torch.equal(cached[3, -1].to_dense(), dense[3:4, -1:])
        part = cached[:, ids].fill_cache_().storage
        assert torch.equal(part.colptr().diff(), part.colcount()) and part.csr2csc().numel() == part.col().numel()
    keeps = a.storage.row() > 3
    assert torch.equal(a.masked_select_nnz(keeps, "coo").to_dense()[4:], dense[4:])
    assert a.index_select_nnz(torch.arange(5, device=device).flip(0), "csc") == a.t().index_select_nnz(
        torch.arange(5, device=device), "coo"
    ).t()  # fmt: skip
    both = torch_sparse.cat([a, a], (0, 1))
    blocks = [torch.block_diag(x, x) for x in dense.unbind(2)]
    assert torch.equal(both.to_dense(), torch.stack(blocks, 2))
    assert both.__narrow_diag__((M, N), (M, N)) == a and both[M:, N:] == a
    for dim in (0, 1, 2):
        joined = torch_sparse.cat([a.clone().fill_cache_(), a], dim)
        assert (
            torch.equal(joined.to_dense(), torch.cat([dense, dense], dim))
            and joined.storage.rowptr()[-1] == joined.nnz()
        )


@pytest.mark.parametrize("k", [-8, -1, 0, 2])
def test_diagonals(k, device):
    for a in (made(device)[0], made(device)[0].fill_cache_()):
        dense = a.to_dense()
        places = torch.zeros(M, N, dtype=torch.bool, device=device)
        places.diagonal(k).fill_(True)
        without, filled = a.remove_diag(k), a.fill_diag(5.0, k)
        assert torch.equal(without.to_dense(), dense.masked_fill(places, 0)) and filled.is_coalesced()
        assert torch.equal(filled.to_dense(), dense.masked_fill(places, 5))
        for matrix in (without, filled):
            again = SparseTensor.from_dense(matrix.to_dense())
            assert torch.equal(matrix.storage.rowcount(), again.storage.rowcount())
            assert torch.equal(matrix.storage.colcount(), again.storage.colcount())
    assert torch.equal(a.get_diag(), dense.diagonal())


def test_arithmetic(device):
    a, dense = made(device)
    b, other = made(device)
    assert torch.equal((a + b).to_dense(), dense + other) and torch.equal((a * b).to_dense(), dense * other)
    for vector in (
        torch.rand(M, 1, device=device, dtype=dense.dtype),
        torch.rand(1, N, device=device, dtype=dense.dtype),
    ):
        assert torch.equal((vector * a).to_dense(), dense * vector)
        assert torch.equal((a + vector).to_dense(), (dense + vector) * (dense != 0))
    filled = dense.masked_fill(dense == 0, torch.nan)
    for dim in (0, 1):
        assert torch.equal(a.sum(dim), dense.sum(dim)) and torch.allclose(a.mean(dim), filled.nanmean(dim).nan_to_num())
        assert torch.equal(a.max(dim), dense.amax(dim))
    assert a.sum() == dense.sum() and torch.equal(a.set_value(None).sum(1), (dense != 0).sum(1).float())
    square = a[:, :5][:5]
    twice = square.to_symmetric()
    assert twice.is_symmetric() and torch.equal(twice.to_dense(), square.to_dense() + square.to_dense().t())
    with pytest.raises(ValueError, match=r"other has shape \(3, 1\); expected \(9, 1, \*\) or \(1, 7, \*\)"):
        a.mul(torch.ones(3, 1, device=device))
    with pytest.raises(ValueError, match="one of the two matrices has values"):
        a.add(b.set_value(None))


@pytest.mark.parametrize("reduce", ["sum", "mean", "min", "max"])
def test_matmul(reduce, device):
    index, value = _index(a := made(device, dtype=torch.float32)[0])
    for x in (
        torch.randn(N, 4, device=device),
        torch.randn(2, N, 3, device=device),
        torch.randint(9, (N, 2), device=device),
    ):
        leaves = [value.clone().to(x.dtype), x.clone()]
        if x.is_floating_point():
            leaves = [leaf.requires_grad_() for leaf in leaves]
        out = a.set_value(leaves[0], "coo").matmul(leaves[1], reduce)
        rows = []
        for row in range(M):
            on = index[0] == row
            weights = leaves[0][on].view(-1, *[1] * (x.dim() - 1))
            part = leaves[1].movedim(-2, 0)[index[1][on]] * weights
            total = (
                part.sum(0)
                if reduce in ("sum", "mean")
                else getattr(part, f"a{reduce}")(0)
                if len(part)
                else part.sum(0)
            )
            rows.append(total / max(len(part), 1) if reduce == "mean" else total)
        expected = torch.stack(rows).movedim(0, -2)
        expected = expected if x.is_floating_point() else expected.floor().to(x.dtype)
        assert out.dtype is x.dtype and torch.allclose(out, expected, atol=1e-5)
        if x.is_floating_point():
            grad = torch.randn_like(out)
            for mine, theirs in zip(*(torch.autograd.grad(y, leaves, grad) for y in (out, expected))):
                assert torch.allclose(mine, theirs, atol=1e-4)
    assert torch.equal(a @ x.float(), torch_sparse.spmm(*_index(a), M, N, x.float()))


def test_products_of_halves_and_of_sparse_matrices(device):
    a = SparseTensor.from_dense(torch.rand(4, 2000, device=device).bfloat16())
    x = torch.rand(2000, 8, device=device).bfloat16()
    assert torch.allclose((a @ x).double(), (a.to_dense().double() @ x.double()), rtol=2**-8)
    small, dense = made(device)
    product = small @ small.t()
    assert torch.equal(product.to_dense(), dense @ dense.t()) and product.is_coalesced()
    assert not (small.set_value(None) @ small.t().set_value(None)).has_value()
    index, value = torch_sparse.transpose(*torch_sparse.coalesce(*_index(small), M, N), M, N)
    assert SparseTensor.from_edge_index(index, value, (N, M)) == small.t()
    with pytest.raises(ValueError, match=r"other has shape \(9, 2\); expected \(\*, 7, K\)"):
        small @ torch.ones(M, 2, device=device)


def test_it_stands_for_a_graph_that_is_kept(device):
    a, dense = made(device, dtype=torch.float32)
    x = torch.randn(N, 3, device=device)
    assert isinstance(a.__halfgnn_graph__(), Graph)
    assert torch.allclose(ops.u_mul_e_sum(a, x, a.storage.value().view(-1, 1)), dense @ x, atol=1e-5)
    assert (
        a.set_value(None).__halfgnn_graph__()
        is a.__halfgnn_graph__()
        is a.float().mul_nnz(a.storage.value(), "coo").__halfgnn_graph__()
    )


def test_neighbours():
    a = made()[0]
    square = SparseTensor(row=a.storage.row(), col=a.storage.col(), sparse_sizes=(M, M))
    dense = square.to_dense() > 0
    walks = square.random_walk(torch.arange(M), 4)
    assert walks.shape == (M, 5)
    for u, v in zip(walks[:, :-1].flatten().tolist(), walks[:, 1:].flatten().tolist()):
        assert dense[u, v] or (u == v and not dense[u].any())
    subset = torch.tensor([5, 1, 2])
    for number, replace in ((-1, False), (2, False), (3, True)):
        part, n_id = square.fill_value(1.0).sample_adj(subset, number, replace)
        assert torch.equal(n_id[:3], subset) and n_id.unique().numel() == n_id.numel()
        row, col, _ = part.coo()
        assert dense[subset[row], n_id[col]].all()
        counts = dense[subset].sum(1)
        expected = counts if number < 0 else counts.clamp(max=number) if not replace else (counts > 0) * number
        assert torch.equal(part.storage.rowcount(), expected) and (replace or part.is_coalesced())
    part, edges = square.fill_value(1.0).saint_subgraph(subset)
    assert torch.equal(part.to_dense() > 0, dense[subset][:, subset]) and torch.equal(
        square.storage.row()[edges], subset[part.storage.row()]
    )


def test_files_and_what_is_not_here(tmp_path):
    a = made()[0]
    a.__halfgnn_graph__()
    torch.save(a, tmp_path / "a.pt")
    loaded = torch.load(tmp_path / "a.pt", weights_only=True)
    assert loaded == a and torch.equal(loaded @ torch.ones(N).double(), a @ torch.ones(N).double())
    with pytest.raises(NotImplementedError, match="METIS"):
        torch_sparse.partition(a, 2)
    with pytest.raises(NotImplementedError, match="pyg_lib's neighbor_sample"):
        torch.ops.torch_sparse.neighbor_sample(None)
    with pytest.raises(ValueError, match=r"col holds 7; expected indices in \[0, 7\)"):
        SparseTensor(row=torch.tensor([0]), col=torch.tensor([7]), sparse_sizes=(M, N))
    with pytest.raises(TypeError, match="other is a list"):
        operator.matmul(a, [1])


@pytest.mark.parametrize("rowptr", [[0, 5, 2], [0, 1, 3], [1, 1, 2], [0, -1, 2], [0, 1, 2**40]])
def test_offsets_that_leave_the_entries_are_refused(rowptr):
    """torch.repeat_interleave would write as many rows as they name into the memory of nnz."""
    col = torch.tensor([0, 1])
    with pytest.raises(ValueError, match="rowptr falls, or does not run from 0 to 2"):
        SparseTensor(rowptr=torch.tensor(rowptr), col=col)
    with pytest.raises(ValueError, match="colptr falls"):
        SparseStorage(row=col, col=col, sparse_sizes=(2, 2), colptr=torch.tensor(rowptr))
