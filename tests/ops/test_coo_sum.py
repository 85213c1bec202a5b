"""Sums over an edge list in any order: the bits of PyTorch's operators, gradients of every order, errors."""

from __future__ import annotations

import pytest
import torch

import halfgnn  # noqa: F401
from halfgnn.ops.coo_sum import coo_sum

ROWS, COLS, EDGES = 37, 23, 211
RAW = torch.ops.halfgnn


def edge_list(dtype=torch.int64, num_edges=EDGES):
    generator = torch.Generator().manual_seed(1)
    # some rows have no edges, one has most
    row = torch.randint(ROWS - 3, (num_edges,), generator=generator)
    row[::3] = 5
    return row.to(dtype), torch.randint(COLS, (num_edges,), generator=generator).to(dtype)


def randn(*shape, dtype=torch.float32, seed=2):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def by_pytorch(row, col, feat, rhs, reduce, num_rows, op="mul"):
    """The same by operators of PyTorch, as torch_geometric calls them."""
    per_row = [-1, *[1] * (feat.dim() - 1)]
    messages = feat if col is None else feat.index_select(0, col.long())
    if rhs is not None:
        messages = rhs.view(per_row) * messages if op == "mul" else messages + rhs
        messages = messages.relu() if op == "relu_add" else messages
    if row is None:
        return messages
    row = row.long()
    index = row.view(per_row).expand_as(messages)
    out = messages.new_zeros(num_rows, *feat.shape[1:]).scatter_add(0, index, messages)
    if reduce == "sum":
        return out
    counts = out.new_zeros(num_rows).scatter_add_(0, row, out.new_ones(row.numel())).clamp_(min=1)
    return out / counts.view(per_row)


@pytest.mark.parametrize("shape", [(1,), (3,), (16,), (19,), (64,), (2, 5), (0,), ()])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("reduce", ["sum", "mean"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bits_of_pytorch(shape, weighted, reduce, dtype):
    row, col = edge_list()
    feat, weight = randn(COLS, *shape, dtype=dtype), randn(EDGES, dtype=dtype, seed=3) if weighted else None
    out = coo_sum(row, col, feat, weight, reduce, ROWS)
    assert torch.equal(out, by_pytorch(row, col, feat, weight, reduce, ROWS)) and out.dtype == dtype


@pytest.mark.parametrize("shape", [(1,), (3,), (16,), (19,), (64,), (2, 5), (0,), ()])
@pytest.mark.parametrize("reduce", ["sum", "mean"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("op", ["relu_add", "add"])
@pytest.mark.parametrize("needs", [(True, False), (False, True), (True, True)])
def test_bits_of_pytorchs_sums_with_rows_of_edges(shape, reduce, dtype, op, needs):
    row, col = edge_list()
    values = randn(COLS, *shape, dtype=dtype), randn(EDGES, *shape, dtype=dtype, seed=3)
    values[0].view(-1)[:1] = float("nan")  # which passes gradients on
    values[1].view(EDGES, -1)[9] = -values[0].view(COLS, -1)[col[9]]  # a sum of 0 does not
    results = []
    for function in (coo_sum, by_pytorch):
        leaves = [x.clone().requires_grad_(need) for x, need in zip(values, needs)]
        out = function(row, col, *leaves, reduce, ROWS, op=op)
        out.backward(randn(ROWS, *shape, dtype=dtype, seed=4))
        results.append((out, *(x.grad for x in leaves)))
    for found, expected in zip(*results):
        assert (found is None) == (expected is None)
        assert found is None or torch.equal(found.nan_to_num(7), expected.nan_to_num(7))


@pytest.mark.parametrize("shape", [(1,), (19,), (2, 32), (0,), ()])
@pytest.mark.parametrize("reduce", ["sum", "mean"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("op", ["copy_lhs", "mul", "add", "relu_add"])
@pytest.mark.parametrize("given", ["row", "col"])
@pytest.mark.parametrize("num_edges", [EDGES, 0])
def test_bits_with_ids_of_one_side(shape, reduce, dtype, op, given, num_edges):
    row, col = (ends if name == given else None for name, ends in zip(("row", "col"), edge_list(num_edges=num_edges)))
    num_rows, num_cols = (num_edges if row is None else ROWS), (num_edges if col is None else COLS)
    of_edges = None if op == "copy_lhs" else (num_edges,) if op == "mul" else (num_edges, *shape)
    results = []
    for function in (coo_sum, by_pytorch):
        feat = randn(num_cols, *shape, dtype=dtype).requires_grad_()
        rhs = None if of_edges is None else randn(*of_edges, dtype=dtype, seed=3).requires_grad_()
        out = function(row, col, feat, rhs, reduce, num_rows, op=op)
        out.backward(randn(num_rows, *shape, dtype=dtype, seed=4))
        results.append((out, feat.grad, None if rhs is None else rhs.grad))
    for i, (found, expected) in enumerate(zip(*results)):
        if op == "mul" and i == 2:  # PyTorch adds the products of a row in another order
            torch.testing.assert_close(found, expected)
        else:
            assert found is expected or torch.equal(found, expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_halves_of_edges_are_rounded_once(dtype):
    row, col = edge_list(torch.int32)
    edges, feat = randn(EDGES, 16, dtype=dtype), randn(COLS, 16, dtype=dtype)
    out = coo_sum(row, None, edges, None, "sum", ROWS)
    assert torch.equal(out, by_pytorch(row, None, edges.float(), None, "sum", ROWS).to(dtype))
    assert torch.equal(coo_sum(None, col, feat, None, "sum", EDGES), feat[col])


@pytest.mark.parametrize("threads", [1, 2])
def test_threads_divide_columns(threads):
    row, col = edge_list(num_edges=5000)
    feat, weight, before = randn(COLS, 200), randn(5000), torch.get_num_threads()
    rows, grad = randn(5000, 200), randn(ROWS, 200)
    torch.set_num_threads(threads)
    try:
        out = coo_sum(row, col, feat, weight, "sum", ROWS)
        gradients = RAW.coo_sum_backward(row, col, grad, feat, rows, "relu_add", "sum", COLS, True, True)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(out, by_pytorch(row, col, feat, weight, "sum", ROWS))
    leaves = feat.requires_grad_(), rows.requires_grad_()
    by_pytorch(row, col, *leaves, "sum", ROWS, "relu_add").backward(grad)
    assert torch.equal(gradients[0], feat.grad) and torch.equal(gradients[1], rows.grad)
    torch.set_num_threads(threads)
    try:
        of_edges = coo_sum(None, col, feat.detach(), None, "sum", 5000)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(of_edges, feat.detach()[col])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_halves_are_rounded_once(dtype):
    row, col = edge_list(torch.int32)
    feat, weight = randn(COLS, 16, dtype=dtype), randn(EDGES, dtype=dtype)
    out = coo_sum(row, col, feat, weight, "mean", ROWS)
    assert torch.equal(out, by_pytorch(row, col, feat.float(), weight.float(), "mean", ROWS).to(dtype))
    rows = randn(EDGES, 16, dtype=dtype, seed=3)
    out = coo_sum(row, col, feat, rows, "sum", ROWS, op="relu_add")
    assert torch.equal(out, by_pytorch(row, col, feat.float(), rows.float(), "sum", ROWS, "relu_add").to(dtype))


def test_strides_and_no_edges():
    ends, feat = torch.stack(edge_list(), dim=1), randn(16, COLS).t()
    row, col = ends.unbind(1)
    assert torch.equal(coo_sum(row, col, feat, None, "sum", ROWS), by_pytorch(row, col, feat, None, "sum", ROWS))
    nothing = torch.empty(0, dtype=torch.int64)
    assert torch.equal(coo_sum(nothing, nothing, feat, None, "mean", 3), torch.zeros(3, 16))


@pytest.mark.parametrize("reduce", ["sum", "mean"])
@pytest.mark.parametrize("needs", [(True, False), (False, True), (True, True)])
def test_gradients(reduce, needs):
    row, col = edge_list()
    results = []
    for function in (coo_sum, by_pytorch):
        feat, weight = randn(COLS, 16).requires_grad_(needs[0]), randn(EDGES, seed=3).requires_grad_(needs[1])
        function(row, col, feat, weight, reduce, ROWS).backward(randn(ROWS, 16, seed=4))
        results.append((feat.grad, weight.grad))
    (feat, weight), (expected_feat, expected_weight) = results
    assert (feat is None) == (not needs[0]) and (feat is None or torch.equal(feat, expected_feat))
    assert (weight is None) == (not needs[1])
    if weight is not None:  # PyTorch adds the products of a row in another order
        torch.testing.assert_close(weight, expected_weight)


@pytest.mark.parametrize("reduce", ["sum", "mean"])
@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
def test_second_derivatives(reduce, shape):
    row, col = edge_list(num_edges=20)
    feat = randn(COLS, *shape, dtype=torch.float64).requires_grad_()
    weight = randn(20, dtype=torch.float64).requires_grad_()

    def function(x, w):
        return coo_sum(row, col, x, w, reduce, ROWS)

    assert torch.autograd.gradcheck(function, (feat, weight))
    assert torch.autograd.gradgradcheck(function, (feat, weight))
    rows = randn(20, *shape, dtype=torch.float64, seed=5).requires_grad_()

    of_edges = randn(20, *shape, dtype=torch.float64, seed=6).requires_grad_()
    for function, operands in (
        (lambda x, e: coo_sum(row, col, x, e, reduce, ROWS, op="relu_add"), (feat, rows)),
        (lambda x, e: coo_sum(row, col, x, e, reduce, ROWS, op="add"), (feat, rows)),
        (lambda x, w: coo_sum(row, None, x, w, reduce, ROWS), (of_edges, weight)),
        (lambda x, e: coo_sum(None, col, x, e, reduce, 20, op="relu_add"), (feat, rows)),
        (lambda x: coo_sum(None, col, x, None, reduce, 20), (feat,)),
    ):
        assert torch.autograd.gradcheck(function, operands) and torch.autograd.gradgradcheck(function, operands)


def test_first_and_recorded_gradients_agree():
    row, col = edge_list()
    feat, weight = randn(COLS, 8).requires_grad_(), randn(EDGES).requires_grad_()
    out = coo_sum(row, col, feat, weight, "mean", ROWS)
    grad = randn(ROWS, 8, seed=4)
    first = torch.autograd.grad(out, (feat, weight), grad, retain_graph=True)
    recorded = torch.autograd.grad(out, (feat, weight), grad, create_graph=True)
    torch.testing.assert_close(first, tuple(x.detach() for x in recorded))
    assert all(x.requires_grad for x in recorded)


@pytest.mark.parametrize("reduce, expected", [("sum", 1.0), ("mean", 1 / 600)])
def test_recorded_gradients_of_halves_are_summed_in_fp32(reduce, expected):
    """A count or a sum of bfloat16 stops growing at 256."""
    row, col = torch.zeros(600, dtype=torch.int64), torch.zeros(600, dtype=torch.int64)
    feat = torch.ones(1, 3, dtype=torch.bfloat16).requires_grad_()
    weight = torch.ones(600, dtype=torch.bfloat16).requires_grad_()
    out = coo_sum(row, col, feat, weight, reduce, 1)
    of_feat, of_weight = torch.autograd.grad(out.sum(), (feat, weight), create_graph=True)
    assert torch.equal(of_feat, torch.full((1, 3), 600 * expected, dtype=torch.bfloat16))
    assert torch.equal(of_weight, torch.full((600,), 3 * expected, dtype=torch.bfloat16))


def test_operand_modified_in_place_before_the_backward():
    row, col = edge_list()
    feat, weight = randn(COLS, 8), randn(EDGES).requires_grad_()
    out = coo_sum(row, col, feat, weight, "sum", ROWS)
    feat += 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_ids_are_checked_again_in_the_backward():
    row, col = edge_list()
    feat = randn(COLS, 8).requires_grad_()
    out = coo_sum(row, col, feat, None, "sum", ROWS)
    col.data[3] = COLS
    with pytest.raises(IndexError, match=rf"col\[3\] is {COLS}; expected ids in \[0, {COLS}\)"):
        out.sum().backward()


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("name, count", [("row", ROWS), ("col", COLS)])
@pytest.mark.parametrize("wrong", [-1, None])
def test_ids_out_of_range(dtype, name, count, wrong):
    ends = dict(zip(("row", "col"), edge_list(dtype)))
    ends[name][7] = count if wrong is None else wrong
    with pytest.raises(IndexError, match=rf"{name}\[7\] is {ends[name][7]}; expected ids in \[0, {count}\)"):
        coo_sum(ends["row"], ends["col"], randn(COLS, 8), None, "sum", ROWS)


def test_wrong_arguments():
    row, col = edge_list()
    feat, weight = randn(COLS, 8), randn(EDGES)
    for error, message, arguments in (
        (TypeError, "row has dtype torch.float32", (row.float(), col, feat, None, "sum", ROWS)),
        (ValueError, "row has shape .* and col", (row[1:], col, feat, None, "sum", ROWS)),
        (TypeError, "rhs has dtype torch.float64", (row, col, feat, weight.double(), "sum", ROWS)),
        (ValueError, "rhs has shape", (row, col, feat, weight[1:], "sum", ROWS)),
        (ValueError, "rhs has shape", (row, col, feat, weight.view(-1, 1), "sum", ROWS)),
        (ValueError, "reduce is 'max'", (row, col, feat, None, "max", ROWS)),
        (ValueError, "num_rows is -1", (row, col, feat, None, "sum", -1)),
        (ValueError, "feat has no dimensions", (row, col, feat[0, 0], None, "sum", ROWS)),
    ):
        with pytest.raises(error, match=message):
            coo_sum(*arguments)
    for message, rhs, op in (
        (r"rhs has shape .*expected \[211, 8\], a row per edge", weight, "relu_add"),
        ("rhs is None; expected values of edges for op 'relu_add'", None, "relu_add"),
        ("rhs is given; expected None for op 'copy_lhs'", weight, "copy_lhs"),
        ("op is 'sub'", weight, "sub"),
    ):
        with pytest.raises(ValueError, match=message):
            coo_sum(row, col, feat, rhs, "sum", ROWS, op=op)
    for message, ends, num_rows in (
        ("row and col are None", (None, None), EDGES),
        ("row is None, and its side has 37 rows; expected one per edge, 211", (None, col), ROWS),
        ("col is None, and its side has 23 rows; expected one per edge, 211", (row, None), ROWS),
    ):
        with pytest.raises(ValueError, match=message):
            coo_sum(*ends, feat, None, "sum", num_rows)
    grad = randn(ROWS, 8)
    for message, operands in (
        ("feat is None; the gradient of rhs", (None, None, "mul", "sum", COLS, False, True)),
        ("feat is None; the gradient of relu_add", (None, randn(EDGES, 8), "relu_add", "sum", COLS, True, False)),
        ("feat has shape", (randn(COLS, 7), None, "mul", "sum", COLS, False, True)),
        ("op is 'sub'", (feat, weight, "sub", "sum", COLS, False, True)),
    ):
        with pytest.raises(ValueError, match=message):
            RAW.coo_sum_backward(row, col, grad, *operands)
