"""Segments and what is gathered by them, beside a loop over segments."""

import itertools
import sys

import pytest
import torch

from halfgnn.compat import torch_scatter

OFFSETS = {
    "rows": ((12, 3), [0, 4, 4, 9, 12]),
    "part": ((12, 3), [2, 4, 4, 9]),
    "alike": ((2, 12, 3), [[0, 4, 4, 9, 12]]),
    "batches": ((2, 12, 3), [[0, 4, 4, 9, 12], [1, 1, 2, 3, 11]]),
}


def looped(src, indptr, reduce):
    """Values and positions, segment by segment."""
    dim, count = indptr.dim() - 1, indptr.shape[-1] - 1
    if dim:
        rows = indptr.expand(src.shape[0], -1)
        pairs = [looped(x, ptr, reduce) for x, ptr in zip(src, rows)]
        return tuple(torch.stack(parts) for parts in zip(*pairs))
    out, arg = src.new_zeros(count, *src.shape[1:]), torch.full((count, *src.shape[1:]), src.shape[0])
    for s in range(count):
        part = src[indptr[s] : indptr[s + 1]]
        if len(part) and reduce in ("min", "max"):
            out[s], where = getattr(part, reduce)(0)
            arg[s] = where + indptr[s]
        elif len(part):
            out[s] = part.sum(0) if reduce == "sum" else part.sum(0) / len(part)
    return out, arg


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64], ids=str)
@pytest.mark.parametrize("name", OFFSETS)
def test_segment_csr(name, dtype, device, monkeypatch):
    shape, indptr = OFFSETS[name]
    src = (torch.randperm(torch.Size(shape).numel()).view(shape) * 12).to(
        device, dtype
    )  # without ties; means are exact
    indptr = torch.tensor(indptr, device=device)
    for least in (0, 1_000_000):
        monkeypatch.setattr(sys.modules["halfgnn.compat.torch_scatter.segment_csr"], "LEAST_SUMMED", least)
        for reduce in ("sum", "mean", "min", "max"):
            expected, expected_arg = looped(src.cpu(), indptr.cpu(), reduce)
            out = getattr(torch_scatter, f"segment_{reduce}_csr")(src, indptr)
            if isinstance(out, tuple):
                assert torch.equal(out[1].cpu(), expected_arg)
            values = out[0] if isinstance(out, tuple) else out
            if dtype is torch.int64 and reduce == "mean":
                expected = expected.floor()
            assert torch.allclose(values.cpu(), expected)
            taken = torch.full_like(values, -7)
            assert torch_scatter.segment_csr(src, indptr, taken, reduce) is taken and torch.equal(taken, values)
            if dtype.is_floating_point:

                def call(x, reduce=reduce):
                    return torch_scatter.segment_csr(x, indptr, reduce=reduce)

                assert torch.autograd.gradcheck(call, src.clone().requires_grad_(), fast_mode=True)
                assert torch.autograd.gradgradcheck(call, src.clone().requires_grad_(), fast_mode=True)


@pytest.mark.parametrize("reduce", ["sum", "mean"])
def test_segments_of_types_without_an_operator(reduce, monkeypatch):
    """As fp64 on CUDA: PyTorch reduces them, and the gradient can be differentiated."""
    src = torch.randn(12, 5, dtype=torch.float64, requires_grad=True)
    for indptr in ([0, 4, 4, 9, 12], [2, 4, 4, 9]):
        indptr = torch.tensor(indptr)
        expected = torch_scatter.segment_csr(src, indptr, reduce=reduce)
        with monkeypatch.context() as patch:
            for module in ("segment_csr", "_reductions"):
                name = f"halfgnn.compat.torch_scatter.{module}"
                patch.setattr(sys.modules[name], "has_operator", lambda src: False)
                patch.setattr(sys.modules[name], "LEAST_SUMMED", 0)

            def call(x, indptr=indptr):
                return torch_scatter.segment_csr(x, indptr, reduce=reduce)

            assert torch.allclose(call(src), expected)
            assert torch.autograd.gradcheck(call, src, fast_mode=True)
            assert torch.autograd.gradgradcheck(call, src, fast_mode=True)


def test_gather_is_the_inverse(device):
    x = torch.randn(2, 4, 3, dtype=torch.float64, device=device, requires_grad=True)
    for rows in ([[0, 4, 4, 9, 12]], [[0, 4, 4, 9, 12], [0, 1, 2, 3, 12]]):
        indptr = torch.tensor(rows, device=device)
        index = torch.searchsorted(indptr, torch.arange(12, device=device).repeat(len(rows), 1), right=True) - 1
        by_ptr, by_index = torch_scatter.gather_csr(x, indptr), torch_scatter.gather_coo(x, index)
        assert torch.equal(by_ptr, by_index)
        assert torch.equal(by_index, torch.stack([y[ids] for y, ids in zip(x, index.expand(2, -1))]))
        for call in (
            lambda y, i=indptr: torch_scatter.gather_csr(y, i),
            lambda y, i=index: torch_scatter.gather_coo(y, i),
        ):
            assert torch.autograd.gradcheck(call, x, fast_mode=True) and torch.autograd.gradgradcheck(
                call, x, fast_mode=True
            )
        means = torch_scatter.segment_coo(by_index.detach(), index, reduce="mean", dim_size=4)
        present = torch_scatter.segment_coo(torch.ones_like(by_index), index, dim_size=4) > 0
        assert torch.allclose(means, x.detach() * present)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("reduce", ["sum", "mean"])
@pytest.mark.parametrize("ids", [torch.int32, torch.int64], ids=str)
def test_gradients_of_a_few_segments(ids, reduce, dtype):
    """Of offsets that no Graph is made of, and that cover the rows or leave some out, at both ends."""
    for offsets in ([0, 4, 4, 9, 12], [2, 4, 4, 9, 11], [2, 4, 12], [0, 9], [0, 12], [0, 0]):
        indptr = torch.tensor(offsets, dtype=ids)
        src, weight = (torch.randint(-4, 5, (n, 3)).to(dtype) for n in (12, len(offsets) - 1))
        src.requires_grad_()
        out = torch_scatter.segment_csr(src, indptr, reduce=reduce)
        (gradient,) = torch.autograd.grad(out, src, weight)
        expected = torch.zeros_like(src)
        for s, (begin, end) in enumerate(itertools.pairwise(offsets)):
            expected[begin:end] = weight[s] / (max(end - begin, 1) if reduce == "mean" else 1)
        assert out.dtype is gradient.dtype is dtype
        torch.testing.assert_close(gradient, expected.detach())
        assert torch.allclose(out.double(), looped(src.detach().double(), indptr, reduce)[0], rtol=1e-2)


@pytest.mark.parametrize("reduce", ["sum", "mean", "max"])
def test_columns_of_a_matrix_as_offsets_and_as_index(reduce):
    """They are not contiguous."""
    src, indptr, index = torch.randn(12, 2), torch.tensor([0, 4, 4, 9, 12]), torch.tensor([0] * 4 + [2] * 5 + [3] * 3)
    expected, _ = looped(src, indptr, reduce)
    for x in (src, src.clone().requires_grad_()):
        assert torch.allclose(torch_scatter.segment_csr(x, torch.stack([indptr] * 2, 1)[:, 0], reduce=reduce), expected)
        ids = torch.stack([index, index + 100], 1)[:, 0]
        assert torch.allclose(torch_scatter.scatter(x, ids, 0, dim_size=4, reduce=reduce), expected)


@pytest.mark.parametrize("reduce", ["sum", "mean"])
def test_second_derivatives_of_a_few_segments(reduce):
    indptr, src = torch.tensor([0, 4, 4, 9, 12]), torch.randn(12, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda x: torch_scatter.segment_csr(x.pow(3), indptr, reduce=reduce), src)
    # 257 is 256 in bf16: a gradient that is recorded is rounded once, too
    rows = torch.randn(257, 3).bfloat16().requires_grad_()
    out = torch_scatter.segment_csr(rows, torch.tensor([0, 257]), reduce=reduce)
    (gradient,) = torch.autograd.grad(out.sum(), rows, create_graph=True)
    expected = torch.tensor(1 / 257 if reduce == "mean" else 1.0).bfloat16()
    assert gradient.dtype is torch.bfloat16 and torch.equal(gradient, expected.expand(257, 3))


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_a_few_segments_under_functorch():
    src, indptr = torch.randn(3, 12, 2, dtype=torch.float64), torch.tensor([0, 4, 4, 9, 12])

    def loss(x):
        return torch_scatter.segment_csr(x, indptr).square().sum()

    rows = src.clone().requires_grad_()
    expected = torch.stack([torch.autograd.grad(loss(x), x)[0] for x in rows])
    assert torch.allclose(torch.stack([torch.func.grad(loss)(x) for x in src]), expected)
    assert torch.allclose(torch.func.vmap(torch.func.grad(loss))(src), expected)


@pytest.mark.parametrize("offsets", [[1, 4, 13], [-2, 4, 10], [2, 8, 14], [0, 9, 3, 12]], ids=str)
def test_offsets_outside_of_src_under_functorch(offsets):
    """Also where the segments are as long together as src, which is all that lengths of segments would tell."""
    src, indptr = torch.randn(12, 2), torch.tensor(offsets)

    def loss(x):
        return torch_scatter.segment_csr(x, indptr).square().sum()

    for function, x in ((torch.func.grad(loss), src), (torch.func.vmap(torch.func.grad(loss)), src.expand(3, 12, 2))):
        with pytest.raises(ValueError, match="falls or leaves src"):
            function(x)


@pytest.mark.parametrize("reduce", ["sum", "mean"])
def test_segments_that_leave_rows_out_under_functorch(reduce):
    """As of groups by an index, in which rows at both ends are in none: forward-mode derivatives too."""
    src, tangents = torch.randn(2, 12, 3, dtype=torch.float64)
    indptr = torch.tensor([2, 4, 4, 9])

    def segments(x):
        return torch_scatter.segment_csr(x, indptr, reduce=reduce)

    def cubes(x):
        return segments(x).pow(3).sum()

    expected, _ = looped(tangents, indptr, reduce)
    assert torch.allclose(torch.func.jvp(segments, (src,), (tangents,))[1], expected)
    with torch.autograd.forward_ad.dual_level():
        out = segments(torch.autograd.forward_ad.make_dual(src, tangents))
        assert torch.allclose(torch.autograd.forward_ad.unpack_dual(out).tangent, expected)
    assert torch.allclose(torch.func.jacfwd(segments)(src), torch.func.jacrev(segments)(src))
    rows = torch.stack([src, tangents]).requires_grad_()
    gradients = torch.stack([torch.autograd.grad(cubes(x), x)[0] for x in rows.unbind()])
    assert torch.allclose(torch.func.vmap(torch.func.grad(cubes))(rows.detach()), gradients)


@pytest.mark.parametrize("width", [3, 3000], ids=["few values", "many"])
def test_gradient_of_offsets_made_in_inference_mode(width):
    with torch.inference_mode():
        indptr = torch.tensor([0, 4, 4, 9, 12])
    for reduce in ("sum", "max"):
        src = torch.randn(12, width, requires_grad=True)
        (gradient,) = torch.autograd.grad(torch_scatter.segment_csr(src, indptr, reduce=reduce).sum(), src)
        assert gradient.sum() == (12 if reduce == "sum" else 3) * width


def test_errors():
    src = torch.randn(5, 2)
    with pytest.raises(
        ValueError, match=r"indptr, of shape \(3,\), falls or leaves src; expected it to rise in \[0, 5\]"
    ):
        torch_scatter.segment_csr(src, torch.tensor([0, 4, 3]))
    with pytest.raises(ValueError, match="falls or leaves src"):
        torch_scatter.segment_csr(src, torch.tensor([0, 4, 6]))
    with pytest.raises(ValueError, match=r"src has shape \(5, 2\); expected 2 at dim 0, one per segment"):
        torch_scatter.gather_csr(src, torch.tensor([0, 4, 6]))


def test_positions_before_the_first_segment_are_in_none():
    src = torch.ones(5000, 8)
    assert torch_scatter.segment_csr(src, torch.tensor([1000, 3000, 5000]))[:, 0].tolist() == [2000.0, 2000.0]
