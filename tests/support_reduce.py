"""copy_u_reduce under the accuracy rule of support.py."""

import torch

from halfgnn import ops, reference
from tests.support import Yardstick, assert_accurate, randn


def terms(g):
    return max(int(g.in_degrees().max()), int(g.out_degrees().max()), 1) if g.num_edges else 1


def bounds(g, x, reduces, eps, upstream):
    """The sum of the magnitudes of the terms of each result, and of the gradient, in float64."""
    mean, std = reference.copy_u_reduce(g, x, ("mean", "std"), eps=eps)
    size, squares = (
        reference.copy_u_reduce(g, x.abs(), ("sum", "mean"))[0],
        reference.gspmm(g, "copy_lhs", "mean", x * x, None),
    )
    spread = torch.where(std == 0, 1.0, std)
    results = {"sum": size, "mean": size, "max": size, "min": size, "var": squares, "std": squares / spread}
    degree = g.in_degrees().double().clamp(min=1).view(-1, *[1] * (x.dim() - 1))
    level, slope = torch.zeros_like(mean), torch.zeros_like(mean)
    for name, grad in zip(reduces, upstream):
        grad = grad.double().abs()
        if name in ("var", "std"):
            factor = 2 * grad / degree if name == "var" else torch.where(std == 0, 0.0, grad / (degree * spread))
            # The relative error of std is that of the variance.
            slope += factor * (1 + (squares / spread**2 if name == "std" else 0))
            continue
        level += grad / degree if name == "mean" else grad
    level += slope * reference.copy_u_reduce(g, x.abs(), ("mean",))[0]
    back = g.reverse()
    gradient = reference.gspmm(back, "copy_lhs", "sum", level, None) + x.abs() * reference.gspmm(
        back, "copy_lhs", "sum", slope, None
    )
    return [results[name] for name in reduces], gradient


def check(g, x, reduces, *, eps=1e-5, out_dtype=None, run=ops.copy_u_reduce):
    """Checks results and gradients by the rule."""
    host, leaf = g.to("cpu"), x.detach().requires_grad_()
    out = run(g, leaf, reduces, eps=eps, out_dtype=out_dtype)
    assert [o.dtype for o in out] == [out_dtype or x.dtype] * len(reduces)
    upstream = [randn(*o.shape, dtype=o.dtype) for o in out]
    (grad,) = torch.autograd.grad(out, leaf, [u.to(x.device) for u in upstream])
    assert grad.dtype == x.dtype

    def evaluated(data, given, **options):
        data = data.detach().requires_grad_()
        results = reference.copy_u_reduce(host, data, reduces, eps=eps, **options)
        return [r.detach() for r in results], torch.autograd.grad(results, data, given)[0]

    raw = x.detach().cpu()
    truth, true_grad = evaluated(raw.double(), [u.double() for u in upstream])
    limits, grad_limit = bounds(host, raw.double(), reduces, eps, upstream)
    count = terms(host)
    for name, o, t, limit in zip(reduces, out, truth, limits):
        assert o.is_contiguous()
        assert_accurate(o.cpu(), Yardstick(t, None, limit, count), name)
    assert_accurate(grad.cpu(), Yardstick(true_grad, None, grad_limit, count), "gradient")
    return out, grad
