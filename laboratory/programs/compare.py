"""Whether a program computes the same with and without the drop-in."""

from __future__ import annotations

import contextlib
import warnings
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

import halfgnn.pyg
from tests.support_compiled import lowered

from .draw import Program
from .run import Outcome, run

# Errors where torch_geometric has none, which docs/routed.md and docs/calls.md name, and what a program has that meets them.
REFUSED = {
    "was reduced without being materialized": (
        *("seen(", "doubled(", "retained(", "gradient(", "requires_grad_(", "grad_fn"),
    ),
    "is read after the features that it was made of were modified in place": (
        *("_(", "] = ", "*=", "/=", "+=", "Written"),
    ),
    "is called from C++ on a message": ("torch.func.vjp",),
}


_WITHOUT_HISTORY = "view was created in no_grad mode", "element 0 of tensors does not require grad"


def fault(program: Program, seed: int) -> str | None:
    """How a program differs under the drop-in, in words; None if it does not."""
    order, fuse = seed % 3, (None, True, False)[seed // 3 % 3]
    if "dropout" in program.source() and fuse:
        fuse = None  # which draws other random numbers
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        alone = contextlib.nullcontext
        # By ids of int32 PyTorch refuses some sums, and gathers wrong rows in its gradients.
        known = replace(program, id_dtype="int64")
        expected = run(known, seed, order, alone())
        actual = run(program, seed, order, halfgnn.pyg.accelerate(fuse=fuse))
        is_exact = program.precision == "float64"
        truth = expected if is_exact else run(replace(known, precision="float64"), seed, order, alone())
    difference = _differ(program, actual, expected, truth)
    return difference and f"fuse={fuse}, derivatives of order {order}: {difference}"


def fault_compiled(program: Program, seed: int) -> str | None:
    """How the propagation of a program, compiled with the pass, differs from it compiled without, and from it in eager code.

    In words; None if it agrees with either.

    What is compiled is run by PyTorch's operators, which takes a twentieth of the time that Inductor takes to compile it.
    """

    def compiled(backend: Any) -> Any:
        torch.compiler.reset()
        return lambda step: torch.compile(step, backend=backend, dynamic=True)

    order, program = int(seed % 4 > 0), replace(program, id_dtype="int64")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        alone = contextlib.nullcontext
        expected = run(program, seed, order, alone(), compiled("aot_eager"))
        actual = run(program, seed, order, halfgnn.pyg.accelerate(), compiled(lowered))
        is_exact = program.precision == "float64"
        truth = expected if is_exact else run(replace(program, precision="float64"), seed, order, alone())
    expected.is_freed = False  # what is compiled is cached
    if expected.error is not None and actual.error is not None:
        return None  # of wrong ids, for example, in halfgnn's words
    if actual.error is not None and "modified by an inplace operation" in actual.error[1]:
        return None  # compiled code may read features in its backward: Inductor takes their rows again, too
    difference = _differ(program, actual, expected, truth)
    # torch.compile fails at some programs of views and hooks, and loses gradients (findings/compiled_dropout_no_grad.sh).
    if difference is None or _differ(program, actual, run(program, seed, order, alone()), truth) is None:
        return None
    return f"compiled, derivatives of order {order}: {difference}"


def _differ(program: Program, actual: Outcome, expected: Outcome, truth: Outcome) -> str | None:
    is_extreme = program.aggr in ("max", "min")
    if expected.error is not None or actual.error is not None:
        if _is_known(program, actual.error, expected.error):
            return None
        return f"{_said(actual.error)} where torch_geometric has {_said(expected.error)}"
    if "checkpoint(" in program.source():  # which recomputes what a backward needs: without the drop-in more often
        for name in actual.values.keys() ^ expected.values.keys():
            if name.startswith("gradient of retained"):
                actual.values.pop(name, None), expected.values.pop(name, None)
    if actual.values.keys() != expected.values.keys():
        return f"results {sorted(actual.values)}, expected {sorted(expected.values)}"
    # PyTorch says that views require a gradient that are made without one. They have no history, as the drop-in's.
    has_blocks = _has_blocks(program)
    for name, b in expected.values.items():
        if has_blocks and "requires_grad" in name:
            continue
        is_gradient = "gradient" in name or "second" in name or "gradient(" in program.source()
        if is_extreme and is_gradient and (program.has_ties or "gradient of" in name):
            continue  # extremes of equal messages, as of parallel edges: halfgnn gives the first one the gradient
        if is_gradient and ".data." in program.source():
            continue  # what is saved for a backward is modified, and PyTorch does not count it
        a = actual.values[name]
        if name.startswith("second") or has_blocks or "use_reentrant=True" in program.source():
            a, b = _or_zeros(a, b), _or_zeros(b, a)
        if not isinstance(a, Tensor) or not isinstance(b, Tensor):
            if not (a is b or a == b):
                return f"{name}: {_short(a)}, expected {_short(b)}"
        elif a.shape != b.shape or a.dtype is not b.dtype:
            return f"{name}: {tuple(a.shape)} {a.dtype}, expected {tuple(b.shape)} {b.dtype}"
        elif program.precision == "float64":
            scale = float(b.abs().nan_to_num(posinf=0, neginf=0).max()) if b.numel() else 0.0
            if scale < 1e12 and not torch.allclose(a, b, rtol=1e-8, atol=1e-8 + 1e-11 * scale, equal_nan=True):
                return f"{name}: error {float((a - b).abs().max()):.2g} of {float(b.abs().max()):.2g}"
        elif not program.has_ties and truth.error is None and isinstance(truth.values.get(name), Tensor):
            error = _rounding(program, a, b, truth.values[name])
            if error is not None:
                return f"{name}: {error}"
    if expected.is_freed and not actual.is_freed:
        return "features are kept after the program has ended"
    return None


def _has_blocks(program: Program) -> bool:
    return any(words in program.source() for words in ("no_grad()", "enabled(False)"))


def _or_zeros(x: Any, other: Any) -> Any:
    return torch.zeros_like(other) if x is None and isinstance(other, Tensor) else x


def _rounding(program: Program, a: Tensor, b: Tensor, truth: Tensor) -> str | None:
    """The error, if it is more than that of torch_geometric and a few roundings."""
    if a.shape != truth.shape or not truth.isfinite().all() or not b.isfinite().all() or not a.numel():
        return None
    scale = float(truth.abs().max())
    ours, upstream = float((a.double() - truth).abs().max()), float((b.double() - truth).abs().max())
    eps = 2.0**-17 if program.precision == "float32" else 2.0**-6
    return (
        f"error {ours:.2g} of {scale:.2g}, torch_geometric's is {upstream:.2g}"
        if not ours <= 4 * upstream + eps * (1 + scale)
        else None
    )


def _is_known(program: Program, actual: tuple[type, str] | None, expected: tuple[type, str] | None) -> bool:
    source = program.source()
    if actual is not None:
        if any(words in actual[1] and any(x in source for x in uses) for words, uses in REFUSED.items()):
            return True
        if expected is None:  # views that PyTorch makes without gradients say that they require one
            return _has_blocks(program) and "none of output has requires_grad=True" in actual[1]
    assert expected is not None
    if actual is not None and actual[0] is expected[0]:
        return True
    if _has_blocks(program) and any(words in expected[1] for words in _WITHOUT_HISTORY):
        return True  # what is made of a message in a block without gradients has no history
    if "doubled(" in source and "NoneType" in expected[1]:
        return True  # a hook that PyTorch calls without a gradient
    # Features may be written to under the drop-in.
    return any(words in expected[1] for words in ("inplace operation", "has been modified inplace"))


def _said(error: tuple[type, str] | None) -> str:
    return "a result" if error is None else f"{error[0].__name__}: {error[1]}"


def _short(x: Any) -> str:
    return f"a tensor {tuple(x.shape)}" if isinstance(x, Tensor) else str(x)
