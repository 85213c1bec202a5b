"""Shared by the tests of operators: devices, graphs, inputs, and the accuracy rule, which every result must obey.

The rule (:func:`assert_accurate`) compares a result with the same formula evaluated in float64 on the same, already rounded,
inputs. It is flash-attention's rule, made stricter:

1. The largest error of a half result is at most twice the error of the same formula run by PyTorch in that half type,
   plus half a unit in the last place of the largest value.
2. Every element is rounded once, if the sum of the magnitudes of its terms is known: its error is at most half a unit
   in its own last place, plus the rounding of float32 arithmetic (float64 for float64 results) on those magnitudes.
3. Errors of half results have no preferred sign, neither upwards nor towards zero. This finds truncation and lost small
terms. 4. Infinities and NaN are exactly where rounding the truth puts them.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass

import pytest
import torch

import halfgnn
from halfgnn import reference


def check_settings(environment: Mapping[str, str]) -> None:
    """Raises pytest.UsageError for a value that would be taken for another one."""
    if (value := environment.get("HALFGNN_TEST_ALL", "")) not in ("", "1"):
        raise pytest.UsageError(f"HALFGNN_TEST_ALL is {value}; expected 1, or no value")
    if (value := environment.get("HALFGNN_TEST_DEVICES", "cpu")) not in ("cpu", "cuda", "cpu,cuda"):
        raise pytest.UsageError(f"HALFGNN_TEST_DEVICES is {value}; expected cpu, cuda or both, or no value")


# HALFGNN_TEST_DEVICES=cuda runs every test that takes a device only on these devices.
DEVICES = os.environ.get("HALFGNN_TEST_DEVICES", "cpu,cuda" if torch.cuda.is_available() else "cpu").split(",")
# CUDA's kernels replace the CPU's (laboratory/simt).
SIMULATED = bool(os.environ.get("HALFGNN_SIMT"))
HALVES = [torch.float16, torch.bfloat16]
DTYPES = [*HALVES, torch.float32, torch.float64]
# Of two operands: a half type and float32, in either order.
MIXED = [pair for half in HALVES for pair in ((half, torch.float32), (torch.float32, half))]
IDTYPES = [torch.int32, torch.int64]
NAIVE = [f"naive_{name}" for name in ("attention", "dot", "max", "softmax", "sum")]  # of benchmarks.yardsticks

WIDTHS = [1, 3, 7, 8, 31, 32, 33, 41, 64, 100, 128, 256, 602]
HEADS = [1, 3, 4, 8]

SPMM_OPS = ["add", "sub", "mul", "div", "relu_add", "copy_lhs", "copy_rhs"]
SDDMM_OPS = ["add", "sub", "mul", "div", "dot", "copy_lhs", "copy_rhs"]
REDUCES = ["sum", "mean", "max", "min"]


def has_cuda_kernels(device):
    return device == "cuda" or SIMULATED


def supports(device, dtype):
    """Only the CPU's own kernels take float64."""
    return not has_cuda_kernels(device) or dtype != torch.float64


def devices_and(values):
    """(device, value) for every dtype in values that the device supports."""
    return [(d, v) for d in DEVICES for v in values if supports(d, v)]


# ---- graphs --------------------------------------------------------------------------------------


def _random(num_src, num_dst, num_edges):
    gen = torch.Generator().manual_seed(num_edges)
    # The last quarter of the destinations gets no edge.
    src = torch.randint(num_src, (num_edges,), generator=gen)
    dst = torch.randint(max(1, num_dst * 3 // 4), (num_edges,), generator=gen)
    return src, dst, num_src, num_dst


def _skewed(num_nodes, num_edges):
    gen = torch.Generator().manual_seed(num_edges)
    ends = (torch.rand(2, num_edges, generator=gen) ** 4 * num_nodes).long()
    return ends[0], ends[1].flip(0), num_nodes, num_nodes


def _none(num_src, num_dst):
    return torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.int64), num_src, num_dst


_EDGES = {
    "random": lambda: _random(30, 30, 100),
    "bipartite": lambda: _random(30, 40, 300),
    "skewed": lambda: _skewed(200, 2000),
    "duplicates": lambda: (torch.tensor([1, 1, 1, 0, 2, 1, 1]), torch.tensor([2, 2, 2, 0, 2, 2, 0]), 3, 4),
    "self_loops": lambda: (torch.arange(9).flip(0), torch.arange(9).flip(0), 9, 9),
    "star": lambda: (torch.arange(300) % 50, torch.full((300,), 3), 50, 7),
    "out_star": lambda: (torch.full((300,), 3), torch.arange(300) % 50, 7, 50),
    "one_edge": lambda: (torch.tensor([0]), torch.tensor([0]), 1, 1),
    "edgeless": lambda: _none(5, 4),
    "no_source": lambda: _none(0, 4),
    "no_destination": lambda: _none(3, 0),
    "empty": lambda: _none(0, 0),
}
GRAPHS = sorted(_EDGES)


def example(device="cpu"):
    """The edges 0 -> 1, 1 -> 2, 2 -> 0, 2 -> 1 between three nodes, and four features per node: results can be checked by eye."""
    g = halfgnn.Graph.from_edges(torch.tensor([0, 1, 2, 2]), torch.tensor([1, 2, 0, 1]), num_src=3, num_dst=3)
    x = torch.tensor([[1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0], [9.0, 10.0, 11.0, 12.0]])
    return g.to(device), x.to(device)


def make_graph(name, idtype=torch.int64, device="cpu", identity=False):
    """The graph `name` of _EDGES. identity: edge data is already in CSC order, so that there are no edge ids."""
    src, dst, num_src, num_dst = _EDGES[name]()
    src, dst = src.to(device, idtype), dst.to(device, idtype)
    g = halfgnn.Graph.from_edges(src, dst, num_src=num_src, num_dst=num_dst, sort=identity)
    return g[0] if identity else g


def hub_graph(num_edges=20_000 if SIMULATED else 100_000, num_src=1000, device="cpu"):
    """One destination with num_edges in-edges among ordinary ones."""
    dst = torch.full((num_edges + 20,), 1)
    dst[:20] = torch.arange(20) % 4 * 2
    src = torch.arange(num_edges + 20) * 7 % num_src
    return halfgnn.Graph.from_edges(
        src.to(device, torch.int32), dst.to(device, torch.int32), num_src=num_src, num_dst=8
    )


# ---- inputs --------------------------------------------------------------------------------------


def randn(*shape, dtype, device="cpu"):
    return torch.randn(*shape, dtype=torch.float64).to(dtype).to(device)


def away_from_zero(*shape, dtype, device="cpu"):
    """Magnitudes in [0.5, 2) with random signs: safe divisors."""
    magnitude = torch.rand(*shape, dtype=torch.float64) * 1.5 + 0.5
    sign = torch.where(torch.rand(*shape) < 0.5, -1.0, 1.0)
    return (magnitude * sign).to(dtype).to(device)


def spmm_operands(g, op, lhs_shape, rhs_shape, dtype, device="cpu", rhs_dtype=None):
    """lhs_data, rhs_data for gspmm. An operand that op does not read is None."""
    rhs = (away_from_zero if op == "div" else randn)(g.num_edges, *rhs_shape, dtype=rhs_dtype or dtype, device=device)
    lhs = randn(g.num_src, *lhs_shape, dtype=dtype, device=device)
    return [None if op == "copy_rhs" else lhs, None if op == "copy_lhs" else rhs]


def sddmm_operands(g, op, lhs, rhs, dtype, lhs_target="u", rhs_target="v"):
    """The same for gsddmm, of any values. The targets are of u, v and e."""
    x, y = (randn(rows_of(g, t), *s, dtype=dtype) for t, s in ((lhs_target, lhs), (rhs_target, rhs)))
    return [None if op == "copy_rhs" else x, None if op == "copy_lhs" else y]


def rows_of(g, target):
    return {"u": g.num_src, "v": g.num_dst, "e": g.num_edges}[target]


def misaligned(x):
    """The same values, contiguous, but starting one element into their storage."""
    storage = x.new_zeros(x.numel() + 1)
    storage[1:] = x.reshape(-1)
    return storage[1:].view(x.shape)


def column_major(x):
    """The same values with the first dimension innermost."""
    return x.movedim(0, -1).contiguous().movedim(-1, 0)


def every_other(x):
    """The same values as a strided slice of a tensor twice as wide, with NaN between them."""
    return torch.stack([x, torch.full_like(x, float("nan"))], -1).flatten(-2)[..., ::2]


def assert_same(got, expected):
    """Requires the same bits. Only CUDA's kernels may add in another order, which depends on the alignment of the
    data."""
    if has_cuda_kernels(got.device.type):
        torch.testing.assert_close(got, expected, rtol=torch.finfo(got.dtype).eps, atol=1e-5)
    else:
        assert torch.equal(got, expected)


# ---- the rule ------------------------------------------------------------------------------------


def ulp(x, dtype):
    """The spacing of dtype at the magnitude of x (float64)."""
    info = torch.finfo(dtype)
    _, exponent = torch.frexp(x.abs().clamp(min=info.tiny))
    return info.eps * torch.full_like(x, 2).pow(exponent - 1)  # torch.ldexp of torch 2.4 goes through fp32


@dataclass
class Yardstick:
    """The values with which a result is compared. All tensors are float64 and have the result's shape."""

    truth: torch.Tensor
    formula: torch.Tensor | None = None  # the same formula run by PyTorch in the result's type
    magnitude: torch.Tensor | None = None  # sum of the magnitudes of all terms
    terms: int = 1  # largest number of terms in the sum of an element


def assert_accurate(got, yardstick, name="result"):
    """Checks the rule in the docstring of this module."""
    dtype, truth = got.dtype, yardstick.truth.double()
    assert got.shape == truth.shape, f"{name}: shape {tuple(got.shape)}, expected {tuple(truth.shape)}"
    got = got.detach().cpu().double()
    expected = truth.to(dtype).double()
    finite = expected.isfinite()
    wrong = ~finite & ~((got == expected) | (got.isnan() & expected.isnan())) | (finite & ~got.isfinite())
    assert not wrong.any(), f"{name}: {_worst(wrong.double(), got, truth)} has the wrong infinity or NaN"
    error = torch.where(finite, got - truth, 0.0)
    truth = torch.where(finite, truth, 0.0)
    if error.numel() == 0:
        return
    arithmetic = _arithmetic(yardstick, truth, dtype)
    if yardstick.formula is not None:
        _assert_like_formula(error, truth, yardstick.formula.double(), arithmetic, dtype, name, got)
    if yardstick.magnitude is not None:
        _assert_rounded_once(error, truth, arithmetic, dtype, name, got)
    if dtype in HALVES:
        _assert_unbiased(error, truth, arithmetic, dtype, name)


def _arithmetic(yardstick, truth, dtype):
    """The allowed error of every element from rounding in float32 (float64 for float64 results). 0 if magnitudes are
    unknown."""
    if yardstick.magnitude is None:
        return torch.zeros_like(truth)
    # If a term is infinite but the result is not (max of -inf and 1), no bound is known.
    magnitude = yardstick.magnitude.double().nan_to_num(nan=torch.inf)
    # The truth is float64 too, so with a float64 result both are rounded.
    unit = torch.finfo(dtype).eps if dtype == torch.float64 else torch.finfo(torch.float32).eps / 2
    # A sum of n terms of random sign errs by about sqrt(n) roundings; the constant covers the message, division and store.
    return (8 + 4 * math.sqrt(yardstick.terms)) * unit * magnitude


def _worst(badness, got, truth):
    where = tuple(int(i) for i in torch.unravel_index(badness.argmax(), badness.shape))
    return f"element {where}: got {got[where].item()!r}, truth {truth[where].item()!r}"


def _assert_like_formula(error, truth, formula, arithmetic, dtype, name, got):
    base = torch.where(formula.isfinite(), formula - truth, 0.0).abs().max()
    noise = ulp(truth.abs().max(), dtype) / 2 + arithmetic.max()
    limit = 2 * base + noise
    assert error.abs().max() <= limit, (
        f"{name}: largest error {error.abs().max():.3g} passes {limit:.3g}, twice that of PyTorch's {dtype} formula plus "
        f"rounding noise, at {_worst(error.abs(), got, truth)}"
    )


def _assert_rounded_once(error, truth, arithmetic, dtype, name, got):
    limit = 0.5001 * ulp(truth, dtype) + arithmetic
    # The limit at 0 in float64 is 0 in a thread that flushes subnormal numbers to zero, as code of torch 2.4's compiler makes it.
    excess = (error.abs() / limit).where(error != 0, 0.0)
    assert excess.max() <= 1, (
        f"{name}: rounded more than once: error {excess.max():.3g} times what one rounding to {dtype} allows, "
        f"at {_worst(excess, got, truth)}"
    )


def _assert_unbiased(error, truth, arithmetic, dtype, name):
    """The mean error of elements with different truths, in units of the last place, must be near that of the nearest
    numbers. Truncation differs by 0.5.

    The nearest numbers may have a mean error too, because sums of few terms with few digits round in the same
    direction, for example x + y for one x and many y. A fifth of a unit is allowed, because the gradient of a softmax is
    computed from rounded weights, which all edges of a row share.
    """
    known = 8 * arithmetic < ulp(truth, dtype)  # in the others float32 errors of terms that cancel are too large
    truth, index = truth[known].unique(return_inverse=True)
    error = torch.zeros_like(truth).index_copy(0, index, error[known])
    nearest = truth.to(dtype).double() - truth
    scaled = ((error - nearest) / ulp(truth, dtype)).clamp(-2, 2)
    count = truth.numel()
    if count < 64:
        return
    limit = max(0.2, 6 * scaled.std().item() / math.sqrt(count))
    for mean, direction in ((scaled.mean(), "upwards"), ((scaled * truth.sign()).mean(), "away from zero")):
        assert abs(mean) <= limit, f"{name}: errors lean {direction} by {mean:.3g} ulp of {dtype}, limit {limit:.3g}"


# ---- forward and backward under the rule ---------------------------------------------------------


def evaluate(function, operands, grad=None):
    """function(*operands), and the gradients of the operands (None for an operand that is None, or if grad is None)."""
    leaves = [x if x is None else x.detach().requires_grad_(grad is not None) for x in operands]
    out = function(*leaves)
    if grad is None:
        return out, [None] * len(leaves)
    wanted = [x for x in leaves if x is not None]
    grads = iter(torch.autograd.grad(out, wanted, grad(out) if callable(grad) else grad))
    return out.detach(), [None if x is None else next(grads) for x in leaves]


def check(
    run, specification, operands, *, formula=None, magnitude=None, bounds=None, terms=1, backward=True, out_dtype=None
):
    """Checks that run(*operands), forward and backward, obeys the rule.

    run: the library's function.
    specification: the reference. It is called on float64 copies of the operands on the CPU, which gives the truth.
    formula: the reference, called on the operands themselves on the CPU. Given if it needs other arguments than
        specification.
    magnitude: a function whose value and gradients at the operands' magnitudes bound the sum of the magnitudes of all
        terms.
    bounds: in place of magnitude, a function of the operands and of the gradient of the result that returns these
        bounds, for the result and for each operand's gradient.
    """
    out_dtype = out_dtype or next(x.dtype for x in operands if x is not None)
    given = []

    def upstream(out):
        given.append(randn(*out.shape, dtype=out.dtype, device=out.device))
        return given[0]

    out, grads = evaluate(run, operands, upstream if backward else None)
    assert out.dtype == out_dtype, f"result is {out.dtype}, expected {out_dtype}"
    assert out.is_contiguous()
    upstream = given[0].cpu() if backward else None
    host = [None if x is None else x.detach().cpu() for x in operands]
    results = _measure(specification, formula or specification, magnitude, bounds, host, upstream)
    assert_accurate(out, Yardstick(*results[0], terms), "forward")
    for i, (x, grad) in enumerate(zip(operands, grads)):
        if x is None or not backward:
            continue
        assert grad.dtype == x.dtype and grad.device == x.device, f"gradient {i} is {grad.dtype} on {grad.device}"
        assert_accurate(grad, Yardstick(*results[1 + i], terms), f"gradient of operand {i}")
    return out, grads


def _measure(specification, formula, magnitude, bounds, operands, upstream):
    """(truth, formula, magnitude) for the result and for each operand's gradient."""

    def evaluated(function, convert):
        out, grads = evaluate(
            function,
            [None if x is None else convert(x) for x in operands],
            None if upstream is None else convert(upstream),
        )
        return [out, *grads]

    truth = evaluated(specification, lambda x: x.double())
    formulas = [x if x is None or x.dtype in HALVES else None for x in evaluated(formula, lambda x: x)]
    if bounds is not None:
        limits = bounds(*(None if x is None else x.double() for x in operands), upstream.double())
    elif magnitude is not None:
        limits = [None if x is None else x.abs() for x in evaluated(magnitude, lambda x: x.double().abs())]
    else:
        # Without bounds, a wide result is compared with the largest value. Halves are compared with the formula.
        limits = [_largest_everywhere(x) if f is None and x is not None else None for x, f in zip(truth, formulas)]
    return list(zip(truth, formulas, limits))


def _largest_everywhere(x):
    finite = x[x.isfinite()]
    return torch.full_like(x, finite.abs().max() if finite.numel() else 0)


def check_gspmm(g, op, reduce_op, operands, *, run=None, out_dtype=None, backward=True, terms=None):
    """Checks gspmm by the rule. run: another way to call it."""
    host = g.to("cpu")
    # Magnitudes: differences become sums. For max and min the sum over all edges is a bound for every edge.
    bound_op = {"sub": "add", "relu_add": "add"}.get(op, op)
    bound_reduce = "mean" if reduce_op == "mean" else "sum"
    return check(
        run or (lambda x, y: halfgnn.ops.gspmm(g, op, reduce_op, x, y, out_dtype=out_dtype)),
        lambda x, y: reference.gspmm(host, op, reduce_op, x, y),
        operands,
        formula=lambda x, y: reference.gspmm(host, op, reduce_op, x, y, out_dtype=out_dtype),
        magnitude=lambda x, y: reference.gspmm(host, bound_op, bound_reduce, x, y),
        terms=terms or 64,
        backward=backward,
        out_dtype=out_dtype,
    )


def check_gsddmm(g, op, operands, lhs_target, rhs_target, *, run=None, out_dtype=None, backward=True, terms=None):
    """Checks gsddmm by the rule."""
    host = g.to("cpu")
    bound_op = {"sub": "add"}.get(op, op)
    targets = (lhs_target, rhs_target)
    return check(
        run or (lambda x, y: halfgnn.ops.gsddmm(g, op, x, y, *targets, out_dtype=out_dtype)),
        lambda x, y: reference.gsddmm(host, op, x, y, *targets),
        operands,
        formula=lambda x, y: reference.gsddmm(host, op, x, y, *targets, out_dtype=out_dtype),
        magnitude=lambda x, y: reference.gsddmm(host, bound_op, x, y, *targets),
        terms=terms or 64,
        backward=backward,
        out_dtype=out_dtype or functools.reduce(torch.promote_types, (x.dtype for x in operands if x is not None)),
    )


ROUTED_FROM = (
    "DOT_STEPS",
    "FEW",
    "FEW_SUMMED",
    "FEW_ENDS",
    "FEW_ROWS",
    "FEW_UNSORTED",
)  # sizes in halfgnn.pyg.drop_in.thresholds, beside its LIMITS


def route_small_calls(monkeypatch) -> None:
    """Has the drop-in for torch_geometric route calls of every size, so that tests on tiny graphs reach it."""
    from halfgnn.pyg.drop_in import thresholds

    monkeypatch.setattr(thresholds, "LIMITS", {})
    for name in ROUTED_FROM:
        monkeypatch.setattr(thresholds, name, 0)
