"""The competitors of the benchmarks: each computes the requested result or says why it cannot, and wrong results are
noted."""

import functools
import math
import time

import pytest
import torch

from benchmarks import baselines, graphs, rows, runner, sweep, timing, verify, yardsticks
from benchmarks import optional as imports
from benchmarks.baselines import ALL, NAMES, fastest, registry
from benchmarks.case import Case, Config
from benchmarks.inputs import directed
from benchmarks.operators import ATTENTIONS, OPERATORS, Problem
from benchmarks.optional import Unavailable
from halfgnn import reference

SHAPES = [(1, 12), (3, 8)]  # heads, dim


def graph_of(order="insertion"):
    return graphs.named("tiny", order, torch.int64)


def problem_of(op, heads=1, dim=12, dtype=torch.float32, direction="forward", order="insertion"):
    return Problem(op, direction, graph_of(order), heads, dim if OPERATORS[op].is_wide else 1, dtype)


def operands_of(problem):
    """Operands of the shapes that the benchmarks draw, of any sign."""
    torch.manual_seed(1)
    graph, heads, dim = problem.graph, problem.heads, problem.dim
    is_attention = problem.op in ATTENTIONS
    trailing = (heads, dim) if heads > 1 or is_attention else (dim,)

    def randn(*shape):
        return torch.randn(*shape, dtype=problem.dtype)

    features = [randn(graph.num_nodes, *trailing) for _ in range(3)]
    if OPERATORS[problem.op].family == "messages":
        return (*features[: len(OPERATORS[problem.op].reads) - 1], randn(graph.num_edges, *trailing))
    return {
        "copy_u_sum": (features[0],),
        "copy_u_max": (features[0],),
        "u_mul_e_sum": (features[0], randn(graph.num_edges, *trailing[:-1], 1)),
        "u_dot_v": tuple(features[:2]),
        "u_add_v": tuple(features[:2]),
        "edge_softmax": (randn(graph.num_edges, heads, 1),),
        "copy_e_sum": (randn(graph.num_edges, heads),),
        "e_sub_v": (randn(graph.num_edges, heads), randn(graph.num_nodes, heads)),
        "e_div_v": (randn(graph.num_edges, heads), randn(graph.num_nodes, heads).abs() + 0.5),
        "gat_attention": (features[0], (features[0] * randn(dim)).sum(-1), randn(graph.num_nodes, heads)),
        "gatv2_attention": (*features[:2], randn(heads, dim)),
        "dot_attention": tuple(features),
    }[problem.op]


def formula_of(problem):
    """The operator by halfgnn.reference."""
    return functools.partial(OPERATORS[problem.op].formula, problem.graph.halfgnn)


def assert_right(competitor, problem):
    """Compares results and gradients in fp32."""
    operands = operands_of(problem)
    results = directed(problem.direction, competitor.prepare(problem, operands), operands)()
    truths = directed(problem.direction, formula_of(problem), tuple(x.double() for x in operands))()
    pairs = [(results, truths)] if problem.is_forward else zip(results, truths)
    for result, truth in pairs:
        result = result.masked_fill(result.isinf(), 0).reshape(truth.shape)  # DGL's maximum of a row without edges
        assert verify.relative_error(result, truth) < 1e-5


ABILITIES = [
    pytest.param(competitor, op, direction, id=f"{competitor.name}-{op}-{direction}")
    for competitor in ALL
    if competitor.checked
    for op, ability in competitor.abilities.items()
    if "cpu" in ability.devices
    for direction in ability.directions
]


@pytest.mark.parametrize("competitor,op,direction", ABILITIES)
def test_results_and_gradients_are_right(competitor, op, direction, monkeypatch):
    shapes = SHAPES
    if competitor.name == "torch.compile":  # without Inductor's generated code, which takes seconds per case
        monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))
        shapes = SHAPES if direction == "forward" else SHAPES[1:]
    tried = 0
    for heads, dim in shapes:
        problem = problem_of(op, heads, dim, direction=direction)
        if competitor.offers(problem):
            tried += 1
            try:
                assert_right(competitor, problem)
            except Unavailable as error:
                pytest.skip(str(error))
    assert tried


@pytest.mark.xfail(
    torch.__version__.startswith("2.6."), reason="Inductor of torch 2.6 computes other sums", strict=False
)
@pytest.mark.parametrize("op,direction", [("u_mul_e_sum", "forward"), ("gatv2_attention", "backward")])
def test_inductor_compiles_the_formulas_before_they_are_timed(op, direction):
    torch._dynamo.reset()
    counters = torch._dynamo.utils.counters
    problem = problem_of(op, 2, 8, direction=direction)
    (compiled,) = (competitor for competitor in ALL if competitor.name == "torch.compile")
    assert_right(compiled, problem)
    operands = operands_of(problem)
    work = directed(problem.direction, compiled.prepare(problem, operands), operands)
    before = counters["stats"]["unique_graphs"], counters["aot_autograd"]["total"]
    work()
    work()
    assert (counters["stats"]["unique_graphs"], counters["aot_autograd"]["total"]) == before


def test_many_cases_compile_each():
    """More versions than Dynamo allows per function."""
    (compiled,) = (competitor for competitor in ALL if competitor.name == "torch.compile")
    for dim in range(1, 12):
        problem = problem_of("copy_u_sum", dim=dim)
        operands = operands_of(problem)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
            assert compiled.prepare(problem, operands)(*operands).shape == operands[0].shape


def test_somebody_has_every_operator():
    for op in OPERATORS:
        assert any(competitor.offers(problem_of(op)) for competitor in ALL), op
    assert set(baselines.BY_DEFAULT["cpu"]) <= set(NAMES)


def test_an_unknown_operator_is_refused():
    with pytest.raises(ValueError, match=r"x does .'copy_u_mean'.; expected some of"):
        registry.Competitor("x", "x").does("copy_u_mean")


@pytest.mark.skipif(yardsticks.has_kernels("cpu"), reason="CUDA's kernels are simulated")
def test_the_algorithm_of_dgl_is_for_gpus():
    (algorithm,) = (competitor for competitor in ALL if competitor.name == "dgl algorithm")
    problem = problem_of("copy_u_sum")
    with pytest.raises(Unavailable, match=r"it has CUDA kernels only"):
        algorithm.prepare(problem, operands_of(problem))


def test_a_package_that_is_not_there_is_tried_once(monkeypatch):
    tried = []

    def fail(name):
        tried.append(name)
        raise ImportError("broken\nin several lines")

    monkeypatch.setattr(imports.importlib, "import_module", fail)
    for _ in range(2):
        with pytest.raises(Unavailable, match=r"^no_such_package cannot be imported: broken$"):
            imports.import_package("no_such_package")
    assert tried == ["no_such_package"]


def test_messages_that_do_not_fit_are_refused(monkeypatch):
    monkeypatch.setattr(registry, "MESSAGE_BYTES", 1000)
    problem = problem_of("u_mul_e_sum")
    (index_add,) = (competitor for competitor in ALL if competitor.name == "index_add")
    with pytest.raises(Unavailable, match=r"its messages would take 0\.0 GiB"):
        index_add.prepare(problem, operands_of(problem))


@pytest.mark.parametrize("order", ["insertion", "sorted"])
@pytest.mark.parametrize("name", ["torch.sparse", "torch.sparse.mm", "embedding_bag", "scipy", "dgl, other ids"])
def test_rivals_are_right_in_both_orders_of_edge_data_with_both_ids(name, order):
    (rival,) = (competitor for competitor in ALL if competitor.name == name)
    for idtype in (torch.int32, torch.int64):
        for op in set(rival.abilities) & {"copy_u_sum", "u_mul_e_sum", "u_dot_v"}:
            graph = graphs.named("tiny", order, idtype)
            try:
                assert_right(rival, Problem(op, "forward", graph, 1, 12, torch.float32))
            except Unavailable as error:
                pytest.skip(str(error))


def test_the_yardstick_is_the_fastest_copy(monkeypatch):
    seconds = {"embedding_bag": 2.0, "torch.sparse.mm": 1.0, "torch.sparse": 3.0}
    trials = iter([seconds.get(candidate.name, 9.0) for candidate in fastest.COPIERS])
    monkeypatch.setattr(fastest, "_seconds", lambda *_: next(trials))
    fastest._fastest.cache_clear()
    problem = problem_of("u_dot_v", 3, 8)
    operands = operands_of(problem)
    work = fastest.yardstick.prepare(problem, operands)
    assert work.note == "torch.sparse.mm" and work(*operands).shape == (problem.graph.num_nodes, 24)
    fastest._fastest.cache_clear()


def test_a_trial_that_takes_much_longer_is_the_only_one():
    calls = []
    assert 0 < fastest._seconds(calls.append, torch.ones(1), math.inf) < 1 and len(calls) == 1 + fastest.TRIALS
    fastest._seconds(lambda x: (calls.append(x), time.sleep(0.01)), torch.ones(1), 1e-4)
    assert len(calls) == 2 + fastest.TRIALS


@pytest.fixture
def newcomer(monkeypatch):
    """A plug-in as a user writes it: its sum is right in one dtype, wrong in another, and not available in the
    third."""
    monkeypatch.setattr(registry, "ALL", ALL)  # the list itself is put back below
    made = registry.competitor("newcomer")

    @made.does("copy_u_sum")
    def _(problem, x):
        if problem.dtype == torch.bfloat16:
            raise Unavailable("no bf16")
        factor = 1.0 if problem.dtype == torch.float32 else 1.5
        return lambda x: factor * reference.gspmm(problem.graph.halfgnn, "copy_lhs", "sum", x, None)

    yield made
    ALL.remove(made)


def test_wrong_results_are_noted_and_timed(newcomer):
    config = Config(graphs=("tiny",), baselines=("newcomer",), effort=timing.QUICK)
    problems = [problem_of("copy_u_sum", dtype=dtype) for dtype in (torch.float32, torch.float16, torch.bfloat16)]
    config.dims = (12,)
    backends = [backend for problem in problems for backend in sweep.rivals(config, problem)]
    case = Case("spmm", "copy_u_sum", "forward", problems[0].graph, 1, 12, backends)
    found = {row.dtype: row for row in runner.run_case(case, config, rows.provenance([]))}
    assert found["fp32"].note == "" and found["fp32"].ms and found["fp32"].error < 1e-5 and found["fp32"].gb_per_s
    assert found["fp16"].note == "wrong: off by 0.5 of the largest value" and found["fp16"].ms
    assert found["bf16"].note == "no bf16" and found["bf16"].ms is None


def test_who_takes_part_where(newcomer, monkeypatch):
    """DGL takes part everywhere. The others take part once per operator and width, on a GPU in two dtypes."""
    baselines = ("dgl", "newcomer", "embedding_bag", "fastest copy_u_sum")
    config = Config(graphs=("tiny",), orders=("insertion", "sorted"), dims=(12, 24), baselines=baselines)

    def names(others=True, op="copy_u_sum", **changes):
        return [c.name for c in sweep.competitors_of(config, problem_of(op, **changes), others)]

    assert names() == ["dgl", "dgl, other ids", "embedding_bag", "newcomer"]
    assert names(order="sorted") == names(others=False) == names(dim=24) == ["dgl", "embedding_bag"]
    assert names(direction="backward") == ["dgl"]
    assert names(op="u_dot_v") == ["dgl", "dgl, other ids", "fastest copy_u_sum"]
    config.device, config.dtypes = "cuda", ("fp16", "bf16", "fp32")
    for dtype, takes_part in ((torch.float16, True), (torch.bfloat16, False), (torch.float32, True)):
        assert ("newcomer" in names(dtype=dtype)) == takes_part
    assert "newcomer" not in names(dim=24, dtype=torch.float16)
