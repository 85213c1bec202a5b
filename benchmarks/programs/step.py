"""A training step of a program, and whether the drop-in changes what it computes."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .data import ProgramData
from .program import Program, tensors_in

AUTOCAST = {"fp64": None, "fp32": None, "bf16": torch.bfloat16}
# The drop-in's error is at most FACTOR times that of torch_geometric, plus this.
FACTOR, ERRORS = 1.5, {"fp32": 1e-4, "bf16": 4e-3}
# A gradient that is zero but for rounding has no relative error: its error is seen beside this share of the largest gradient.
LEAST_SHARE = 1e-2
# Of parameters. If the two largest messages of a node differ by less than a rounding, either of them gets a maximum's gradient:
# what is wrong with the first parameters is checked with others.
SEEDS = (3, 4)


class Step:
    """Forward, scalar loss and backward of one module, without an optimizer. Called, it makes a step."""

    def __init__(self, program: Program, data: ProgramData, dtype: str, seed: int = SEEDS[0]):
        torch.manual_seed(seed)
        self.program, self.data = program, data
        self.module = program.build(data).to(data.x.device)
        if dtype == "fp64":
            self.data, self.module = data.double(), self.module.double()
        self.half = AUTOCAST[dtype]
        self.weights: list[Tensor] = []  # of the loss, per element of the results
        self.parameters = [*self.data.leaves, *self.module.parameters()]

    def __call__(self) -> list[Tensor]:
        """Returns the results of the forward."""
        for parameter in self.parameters:
            parameter.grad = None
        results, loss = self.forward()
        if self.program.has_gradient:
            loss.backward()
        return results

    def forward(self) -> tuple[list[Tensor], Tensor]:
        """The results, and their weighted sum, the loss. (An equal sum of normalised results would not depend on anything.)"""
        with self._autocast(), torch.set_grad_enabled(self.program.has_gradient):
            results = tensors_in(self.program.call(self.module, self.data.for_step()))
            if not self.weights:
                generator = torch.Generator().manual_seed(5)
                self.weights = [torch.randn(x.shape, generator=generator).to(self.data.x) / x.size(0) for x in results]
            return results, torch.stack([(x * w).sum() for x, w in zip(results, self.weights)]).sum()

    def _autocast(self) -> contextlib.AbstractContextManager:
        return contextlib.nullcontext() if self.half is None else torch.autocast(self.data.x.device.type, self.half)

    def values(self) -> Values:
        torch.manual_seed(11)  # of modules that draw, for example edges that are not there
        results = [x.detach().clone() for x in self()]
        gradients = [None if p.grad is None else p.grad.clone() for p in self.parameters]
        return Values(results, gradients)


def _norm(x: Tensor | None) -> float:
    return 0.0 if x is None else float(x.double().norm())


@dataclass
class Values:
    """What a step computes: the results of the forward, whose weighted sum is the loss, and the gradients of features and
    parameters."""

    results: list[Tensor]
    gradients: list[Tensor | None]

    def dtypes(self) -> list[torch.dtype]:
        return [x.dtype for x in self.results]

    def errors(self, truth: Values) -> list[float]:
        """Norms of differences, relative to those of `truth`; infinite for a gradient that only one side has."""
        found = []
        for mine, theirs in ((self.results, truth.results), (self.gradients, truth.gradients)):
            least = LEAST_SHARE * max(map(_norm, theirs), default=0.0)
            for a, b in zip(mine, theirs, strict=True):
                if (a is None) != (b is None):
                    found.append(math.inf)
                elif a is not None and b is not None:
                    found.append(_norm(a.double() - b) / max(_norm(b), least, 1e-30))
        return found


@dataclass(frozen=True)
class Verdict:
    """error, error_without: the largest relative errors with and without the drop-in."""

    error: float
    error_without: float
    is_right: bool


class Check:
    """Compares steps with those of torch_geometric in float64, which are made once."""

    def __init__(self, program: Program, data: ProgramData):
        self.program, self.data = program, data
        self._truths: dict[int, Values] = {}
        self._verdicts: dict[tuple, Verdict] = {}

    def verdict(self, dtype: str, context: Callable[[], Any]) -> Verdict:
        """Of the first parameters with which the program is right; of the last ones if it is wrong with all."""
        if (dtype, context) not in self._verdicts:
            for seed in SEEDS:
                verdict = self._verdicts[dtype, context] = self._verdict(dtype, context, seed)
                if verdict.is_right:
                    break
        return self._verdicts[dtype, context]

    def _verdict(self, dtype: str, context: Callable[[], Any], seed: int) -> Verdict:
        if seed not in self._truths:
            self._truths[seed] = Step(self.program, self.data, "fp64", seed).values()
        truth, step = self._truths[seed], Step(self.program, self.data, dtype, seed)
        plain = step.values()
        with context():
            values = step.values()
        mine, theirs = values.errors(truth), plain.errors(truth)
        # Errors of single gradients vary: those of fewer numbers are hit or missed by the same roundings.
        most = max(theirs)
        limits = [min(FACTOR * error + most / 2, FACTOR * most) + ERRORS[dtype] for error in theirs]
        is_right = all(error <= limit for error, limit in zip(mine, limits))  # NaN is wrong
        return Verdict(max(mine), most, is_right and values.dtypes() == plain.dtypes())
