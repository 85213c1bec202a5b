"""Softmax over an edge list in any order: values, gradients of every order, errors."""

from __future__ import annotations

import pytest
import torch

import halfgnn
from halfgnn import ops
from halfgnn.ops.coo_softmax import coo_softmax
from tests.ops.test_coo_sum import EDGES, ROWS, edge_list, randn

SHAPES = [(), (1,), (2,), (3,), (4,), (6,), (8,), (24,), (2, 4), (3, 5)]  # every width of vectors, and numbers alone
RAW = torch.ops.halfgnn


def by_pytorch(row, logits, num_rows):
    """torch_geometric's softmax, in the type of the logits."""
    row = row.long()
    index = row.view(-1, *[1] * (logits.dim() - 1)).expand_as(logits)
    zeros = logits.new_zeros(num_rows, *logits.shape[1:])
    largest = zeros.scatter_reduce(0, index, logits.detach(), "amax", include_self=False)
    powers = (logits - largest.index_select(0, row)).exp()
    total = zeros.scatter_add(0, index, powers)
    return powers / total.index_select(0, row)


@pytest.mark.parametrize("idtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", SHAPES)
def test_values_and_gradients(shape, dtype, idtype):
    row, _ = edge_list(idtype)
    logits, grad = randn(EDGES, *shape, dtype=dtype) * 4, randn(EDGES, *shape, dtype=dtype, seed=3)
    leaf, exact = logits.requires_grad_(), logits.detach().double().requires_grad_()
    out, expected = coo_softmax(row, leaf, ROWS), by_pytorch(row, exact, ROWS)
    assert out.dtype == dtype and out.shape == logits.shape
    tolerance = dict(rtol=1e-12, atol=1e-14) if dtype == torch.float64 else dict(rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(out.double(), expected, **tolerance)
    (of_logits,) = torch.autograd.grad(out, leaf, grad)
    (of_exact,) = torch.autograd.grad(expected, exact, grad.double())
    torch.testing.assert_close(of_logits.double(), of_exact, **{**tolerance, "atol": tolerance["atol"] * 10})


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_halves_are_rounded_once(dtype):
    row, _ = edge_list()
    logits = randn(EDGES, 4, dtype=dtype).requires_grad_()
    out = coo_softmax(row, logits, ROWS)
    assert torch.equal(out, coo_softmax(row, logits.detach().float(), ROWS).to(dtype))
    grad = randn(EDGES, 4, dtype=dtype, seed=3)
    (found,) = torch.autograd.grad(out, logits, grad)
    assert torch.equal(found, RAW.coo_softmax_backward(row, out.detach().float(), grad.float(), ROWS).to(dtype))


def test_gradients_of_rounded_weights_sum_to_zero():
    """Were sum(a da) not divided by sum(a), rounding 700 weights of 1 / 700 to bfloat16 would leave a bias."""
    row, logits = torch.zeros(700, dtype=torch.int64), torch.zeros(700, dtype=torch.bfloat16)
    out = coo_softmax(row, logits, 1).float()
    grad = RAW.coo_softmax_backward(row, out, torch.ones(700), 1)
    assert abs(out.sum() - 1) > 1e-3 and grad.abs().max() < 1e-8


def test_as_edge_softmax_of_a_graph():
    row, col = edge_list()
    g = halfgnn.Graph.from_edges(col, row, num_src=ROWS, num_dst=ROWS)
    logits = randn(EDGES, 8)
    torch.testing.assert_close(coo_softmax(row, logits, ROWS), ops.edge_softmax(g, logits))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_logits_that_are_not_finite(dtype):
    inf, nan = float("inf"), float("nan")
    row = torch.tensor([0, 0, 1, 1, 2, 2, 3, 3, 4])
    logits = torch.tensor([nan, 1, inf, 1, -inf, 1, -inf, -inf, nan], dtype=dtype).view(-1, 1).repeat(1, 2)
    expected = by_pytorch(row, logits, 5)
    torch.testing.assert_close(coo_softmax(row, logits, 5), expected, equal_nan=True)
    assert expected.isnan().any() and (expected == 1).any()


@pytest.mark.parametrize("scale", [1e4, 1e-30])
def test_logits_of_any_size(scale):
    row, _ = edge_list()
    logits = randn(EDGES, 3) * scale
    torch.testing.assert_close(
        coo_softmax(row, logits, ROWS).double(), by_pytorch(row, logits.double(), ROWS), rtol=1e-4, atol=1e-6
    )


def test_strides_and_no_edges():
    row = torch.stack(edge_list(), dim=1)[:, 0]
    logits = randn(4, EDGES).t()
    torch.testing.assert_close(coo_softmax(row, logits, ROWS), by_pytorch(row, logits, ROWS))
    assert coo_softmax(row[:0], logits[:0], 3).shape == (0, 4) and coo_softmax(row, logits[:, :0], ROWS).shape == (
        EDGES,
        0,
    )


@pytest.mark.parametrize("shape", [(), (3,), (2, 4)])
def test_second_derivatives(shape):
    row = edge_list(num_edges=20)[0]
    logits = randn(20, *shape, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: coo_softmax(row, x, ROWS), logits)
    assert torch.autograd.gradgradcheck(lambda x: coo_softmax(row, x, ROWS), logits)


def test_result_modified_in_place_before_the_backward():
    row, logits = edge_list()[0], randn(EDGES, 2).requires_grad_()
    out = coo_softmax(row, logits, ROWS)
    out *= 2
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_ids_are_checked_again_in_the_backward():
    row, logits = edge_list()[0], randn(EDGES, 2).requires_grad_()
    out = coo_softmax(row, logits, ROWS)
    row.data[3] = ROWS
    with pytest.raises(IndexError, match=rf"row\[3\] is {ROWS}; expected ids in \[0, {ROWS}\)"):
        out.sum().backward()


@pytest.mark.parametrize("idtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("wrong", [-1, ROWS])
def test_ids_out_of_range(idtype, wrong):
    row = edge_list(idtype)[0]
    row[7] = wrong
    with pytest.raises(IndexError, match=rf"row\[7\] is {wrong}; expected ids in \[0, {ROWS}\)"):
        coo_softmax(row, randn(EDGES, 2), ROWS)


def test_wrong_arguments():
    row, logits = edge_list()[0], randn(EDGES, 2)
    for error, message, call in (
        (TypeError, "row has dtype torch.float32", lambda: coo_softmax(row.float(), logits, ROWS)),
        (ValueError, r"row has shape .*expected \(211,\)", lambda: coo_softmax(row[1:], logits, ROWS)),
        (ValueError, "row has shape .*expected one dimension", lambda: coo_softmax(row.view(-1, 1), logits, ROWS)),
        (ValueError, "num_rows is -1", lambda: coo_softmax(row, logits, -1)),
        (ValueError, "logits has no dimensions", lambda: coo_softmax(row, logits[0, 0], ROWS)),
        (TypeError, "logits has dtype torch.int64", lambda: coo_softmax(row, row, ROWS)),
        (ValueError, "grad has shape", lambda: RAW.coo_softmax_backward(row, logits, logits[1:], ROWS)),
        (TypeError, "grad has dtype", lambda: RAW.coo_softmax_backward(row, logits, logits.double(), ROWS)),
    ):
        with pytest.raises(error, match=message):
            call()
