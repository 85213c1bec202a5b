"""The competitors of a case, as contestants: which of the registry take part, and the check of their results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

from .baselines import ALL, WIDE, Competitor, Problem
from .case import Config, Contestant, directed, name_of
from .rows import WRONG


def _is_main(config: Config, problem: Problem) -> bool:
    """Whether competitors that do not take part everywhere take part here: for the main order of edge data, and on a
    GPU only in the first dtype and fp32, at main_dim."""
    if not config.main_order(problem.graph):
        return False
    width_is_main = problem.op not in WIDE or problem.width == config.main_dim
    return not config.on_gpu or (width_is_main and name_of(problem.dtype) in (config.dtypes[0], "fp32"))


def competitors_of(config: Config, problem: Problem, others: bool = True) -> list[Competitor]:
    """others: also those that do not take part everywhere."""
    others = others and _is_main(config, problem)
    able = (c for c in ALL if c.option in config.baselines and c.offers(problem))
    return [competitor for competitor in able if competitor.everywhere or others]


def rivals(
    config: Config,
    problem: Problem,
    operands: Callable[[], tuple[Tensor, ...]],
    check: Callable[[Any], float],
    bytes_moved: int = 0,
    others: bool = True,
) -> Iterator[Contestant]:
    """check: returns the relative error of a forward result against float64. A wrong result is still timed, with a
    note. Gradients are made by autograd or by the competitor itself. Its tests check them."""
    for competitor in competitors_of(config, problem, others):
        yield _contestant(competitor, problem, operands, check, bytes_moved)


def _contestant(competitor: Competitor, problem: Problem, operands, check, bytes_moved: int) -> Contestant:
    def make() -> Callable[[], Any]:
        tensors = operands()
        return directed(problem.direction, competitor.prepare(problem, tensors), tensors, 5)

    made = Contestant(competitor.name, problem.dtype, make)
    if competitor.checked:
        made.bytes_moved = bytes_moved

    def noted(out: Any) -> float:
        error = check(out if problem.is_forward else out[0])
        if not error <= WRONG:  # not: NaN is wrong
            made.note = "; ".join(filter(None, (made.note, f"wrong: off by {error:.2g} of the largest value")))
        return error

    if competitor.checked and problem.direction != "backward":
        made.check = noted
    return made
