"""Cases of operators: which sizes are timed, which competitors take part, and how results are checked."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from halfgnn import ops

from . import gather, verify
from .baselines import ALL, Competitor, check_messages
from .baselines.composed import COMPOSED, MESSAGES, operators_of
from .case import Backend, Case, Config, name_of
from .graphs import BenchGraph
from .inputs import directed, with_backward
from .operators import OPERATORS, Operator, Problem
from .rows import FASTEST_COPY, WRONG

# ---- checks ----------------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=3)
def _truth(problem: Problem) -> tuple[Tensor, Tensor]:
    """For the sample, in float64: the result, and the sums of the magnitudes of its terms."""
    operator, part = OPERATORS[problem.op], verify.sample(problem.graph)
    operands = [part.take(x, target).double() for x, target in zip(problem.operands(), operator.reads)]
    truth = operator.formula(part.graph, *operands)
    if operator.magnitude is not None:
        return truth, operator.magnitude(truth, part.graph, *operands)
    return truth, operator.formula(part.graph, *(x.abs() for x in operands))


def _sampled(problem: Problem, out: Tensor) -> Tensor:
    return verify.sample(problem.graph).take(out, OPERATORS[problem.op].gives)


def check(problem: Problem, out: Tensor, backend: str = "halfgnn") -> float:
    """The relative error of halfgnn's forward result. Raises WrongResult if it is not due to rounding."""
    what = f"{problem.op}, {backend}, {problem.dtype}"
    return verify.check_rounded_once(_sampled(problem, out), *_truth(problem), what)


def error_of(problem: Problem, out: Tensor) -> float:
    """The relative error of another backend's forward result."""
    result, (truth, _) = _sampled(problem, out), _truth(problem)
    if problem.op == "copy_u_max":  # DGL's operator gives -inf to nodes without in-edges
        result = result.masked_fill(result.isinf(), 0)
    return verify.relative_error(result.reshape(truth.shape), truth)


def _check_gradients(config: Config, operator: Operator, heads: int, dim: int, order: str) -> None:
    graph = verify.miniature(order, config.idtype, config.device)

    def run(function: Callable[..., Tensor]) -> verify.Gradients:
        return lambda operands: with_backward(functools.partial(function, graph.halfgnn), operands)()

    ours, formula = run(operator.of(ops)), run(operator.formula)
    for dtype in config.torch_dtypes():
        operands = Problem(operator.name, "forward+backward", graph, heads, dim, dtype).operands()
        units = operator.fp32_units if dtype == torch.float32 else 1
        verify.check_like_formula(ours, formula, operands, f"{operator.name} with gradients, {dtype}", units)


# ---- backends -----------------------------------------------------------------------------------------------------


def _is_main(config: Config, problem: Problem) -> bool:
    """Whether competitors that do not take part everywhere take part here: for the main order of edge data at main_dim,
    and on a GPU only in the first dtype and fp32."""
    width_is_main = not OPERATORS[problem.op].is_wide or problem.width == config.main_dim
    if not (config.main_order(problem.graph) and width_is_main):
        return False
    return not config.on_gpu or name_of(problem.dtype) in (config.dtypes[0], "fp32")


def competitors_of(config: Config, problem: Problem, others: bool = True) -> list[Competitor]:
    """others: also those that do not take part everywhere."""
    others = others and _is_main(config, problem)
    able = (c for c in ALL if c.option in config.baselines and c.offers(problem))
    return [competitor for competitor in able if problem.graph.device in competitor.everywhere or others]


def rivals(config: Config, problem: Problem, others: bool = True) -> list[Backend]:
    return [_rival(competitor, problem) for competitor in competitors_of(config, problem, others)]


def _rival(competitor: Competitor, problem: Problem) -> Backend:
    """Its forward result is compared with float64. If the result is wrong, it is still timed, with a note. Gradients
    are made by autograd or by the competitor itself; its tests check them."""

    def make() -> Callable[[], Any]:
        operands = problem.operands()
        function = competitor.prepare(problem, operands)
        made.note = getattr(function, "note", "")
        return directed(problem.direction, function, operands)

    made = Backend(competitor.name, problem.dtype, make, problem=problem)
    if competitor.name != FASTEST_COPY:
        made.bytes_moved = problem.moved_bytes

    def noted(out: Any) -> float:
        error = error_of(problem, out if problem.is_forward else out[0])
        if not error <= WRONG:  # not: NaN is wrong
            made.note = "; ".join(filter(None, (made.note, f"wrong: off by {error:.2g} of the largest value")))
        return error

    if competitor.checked and problem.direction != "backward":
        made.check = noted
    return made


def _ours(problem: Problem) -> Backend:
    def make() -> Callable[[], Any]:
        function = functools.partial(OPERATORS[problem.op].of(ops), problem.graph.halfgnn)
        return directed(problem.direction, function, problem.operands())

    checked = functools.partial(check, problem) if problem.is_forward else None
    return Backend("halfgnn", problem.dtype, make, checked, bytes_moved=problem.moved_bytes, problem=problem)


def _unfused(problem: Problem) -> Backend:
    """An attention, or sum over messages, made of halfgnn's separate operators."""

    def make() -> Callable[[], Any]:
        check_messages(made.messages * problem.message_bytes, problem.graph.device)
        function = functools.partial(COMPOSED[problem.op], operators_of(ops, problem.graph.halfgnn))
        return directed(problem.direction, function, problem.operands())

    checked = functools.partial(error_of, problem) if problem.is_forward else None
    made = Backend("halfgnn unfused", problem.dtype, make, checked, bytes_moved=problem.moved_bytes, problem=problem)
    count = MESSAGES[problem.op]
    made.messages = count + 2 if count and not problem.is_forward else count  # with their gradients
    return made


# ---- cases -----------------------------------------------------------------------------------------------------------


def _heads(config: Config, operator: Operator, graph: BenchGraph) -> Sequence[int]:
    if operator.heads != "all":
        return (1,) if operator.heads == "one" else (max(config.heads),)
    return config.heads if config.main_order(graph) or not operator.is_wide else config.heads[:1]


def _has_backward(config: Config, operator: Operator, heads: int) -> bool:
    if operator.backward == "ends" and config.on_gpu and heads == min(config.heads):
        return True
    return operator.backward == "all" or (operator.backward != "" and heads == max(config.heads))


def _is_timed(
    config: Config, operator: Operator, heads: int, direction: str, order_is_main: bool, width_is_main: bool
) -> bool:
    """A backward: for the main order. On a CPU another order and a backward: only at main_dim."""
    if not (config.on_gpu or width_is_main):
        return order_is_main and direction == "forward"
    return direction == "forward" or (order_is_main and _has_backward(config, operator, heads))


def _case(config: Config, operator: Operator, graph: BenchGraph, heads: int, dim: int, direction: str) -> Case:
    backends: list[Backend] = []
    for dtype in config.torch_dtypes(heads * dim if operator.is_wide else None):
        problem = Problem(operator.name, direction, graph, heads, dim, dtype)
        unfused = [_unfused(problem)] if operator.name in COMPOSED else []
        backends += [_ours(problem), *unfused, *rivals(config, problem)]
    case = Case(operator.family, operator.name, direction, graph, heads, dim, backends)
    if direction != "forward":
        case.before = functools.partial(_check_gradients, config, operator, heads, dim, graph.order)
    if operator.gathers:
        gather.add_to(case, by_src=direction == "backward", rows_per_edge=operator.gathers)
    return case


def cases(config: Config, family: str) -> Iterator[Case]:
    for graph in config.ordered_graphs():
        is_main = config.main_order(graph)
        for operator in OPERATORS.values():
            if operator.family != family or not (is_main or operator.has_edge_data):
                continue
            for heads in _heads(config, operator, graph):
                for dim in [feat // heads for feat in config.dims] if operator.is_wide else [1]:
                    width_is_main = not operator.is_wide or heads * dim == config.main_dim
                    for direction in config.directions:
                        if _is_timed(config, operator, heads, direction, is_main, width_is_main):
                            yield _case(config, operator, graph, heads, dim, direction)
