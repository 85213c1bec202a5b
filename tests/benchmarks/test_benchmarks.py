"""The benchmarks: every subcommand runs and refuses wrong results, and its rows, marks and tables are right.

No test here depends on measured times.
"""

import argparse
import dataclasses
import importlib.util
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import (
    baselines,
    cells,
    cli,
    facts,
    gather,
    gpu,
    graphs,
    marks,
    memory,
    overhead,
    rows,
    runner,
    table,
    table_cpu,
    table_cuda,
    timing,
    train,
    verify,
)
from benchmarks.case import LAYERS, Case, Config, Contestant, Unavailable, backward_of, with_backward
from halfgnn import ops

ROOT = Path(__file__).resolve().parents[2]
needs_pyg = pytest.mark.skipif(importlib.util.find_spec("torch_geometric") is None, reason="needs torch_geometric")
needs_dgl = pytest.mark.skipif(importlib.util.find_spec("dgl") is None, reason="needs DGL")
SMALL = ["--quick", "--eager", "--dims", "16", "--hidden", "8", "--heads", "1", "2", "--threads", "1"]


@pytest.fixture(autouse=True)
def _threads():
    before = torch.get_num_threads()
    yield
    baselines.set_threads(before)


def run(tmp_path, *arguments):
    """The rows that a subcommand wrote."""
    assert cli.main([*arguments, *SMALL, "--out", str(tmp_path)]) == 0
    return rows.read(tmp_path / "cpu.csv")


# ---- the command line --------------------------------------------------------------------------------------------------------

FAMILIES = ["spmm", "sddmm", "softmax", "edges", "limits", "train"] + [
    pytest.param(name, marks=needs_dgl) for name in ("layer", "overhead")
]
OPERATORS = {
    "spmm": {"copy_u_sum", "copy_u_max", "u_mul_e_sum"},
    "sddmm": {"u_dot_v", "u_add_v"},
    "softmax": {"edge_softmax"},
    "edges": {"copy_e_sum", "e_sub_v", "e_div_v"},
    "limits": {"copy_u_sum"},
    "layer": {"GATConv", "GATConv without fc", "GraphConv"},
    "train": {"GAT", "GCN", "SAGE"},
    "overhead": {"u_mul_e_sum", "GAT"},
}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_runs_and_its_rows_parse(tmp_path, family):
    found = run(tmp_path, family, *(["--layers", *LAYERS] if family == "layer" else []))
    assert {row.op for row in found} == OPERATORS[family]
    assert {row.family for row in found} == {family}
    for row in found:
        if row.ms is None:
            assert row.note and not row.contestant.startswith("halfgnn")
        else:
            assert 0 < row.ms_p20 <= row.ms <= row.ms_p80 and row.runs >= 1
        assert "synthetic" in row.graph and row.threads == 1 and row.torch == torch.__version__
        assert row.command.startswith(f"python -m benchmarks {family} ") and row.cpu and row.date
    ours = {row.dtype for row in found if row.contestant.startswith("halfgnn") and row.ms is not None}
    assert ours == {"bf16", "fp16", "fp32"}


@needs_dgl
def test_training_has_losses_that_agree_between_contestants_and_a_peak(tmp_path, monkeypatch):
    # At least three steps, even if the first takes long.
    effort = dataclasses.replace(timing.QUICK, min_runs=3, slow_s=math.inf, lone_s=math.inf)
    monkeypatch.setattr(cli, "QUICK", effort)
    found = [
        row for row in run(tmp_path, "train", "--models", "GAT", "--graphs", "tiny-communities") if row.ms is not None
    ]
    for heads in (1, 2):
        first = {(r.contestant, r.dtype): float(r.losses.split()[0]) for r in found if r.heads == heads}
        truth = first["halfgnn", "fp32"]
        assert all(abs(loss - truth) < 0.02 * truth for loss in first.values()), first
        curves = [r.losses.split() for r in found if r.heads == heads and r.dtype == "fp32"]
        steps = min(map(len, curves))
        assert steps > 2 and len(curves) > 1
        for later in zip(*(curve[:steps] for curve in curves)):  # the effect of the gradients
            assert max(map(float, later)) - min(map(float, later)) < 1e-3, curves
    assert {row.direction for row in found} == {"step"} and {row.dim for row in found} == {8}
    assert all(len(row.losses.split()) >= row.runs and row.peak_mb > 0 for row in found)


def test_training_learns_communities():
    graph = graphs.synthetic("tiny-communities", "sorted", torch.int64)
    losses = []
    network = train.network_of(train.MODELS["GAT"], graph, 16, 2, train.OURS)
    step = train.training(network, graph.halfgnn, train.data_of(graph), torch.bfloat16, losses)
    for _ in range(120):
        step()
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.parametrize("model", train.MODELS)
def test_a_wrong_model_is_not_timed(model, monkeypatch):
    config = Config(dtypes=("fp32",))
    train.check(config, train.MODELS[model], 1, train.OURS)
    wrong = dataclasses.replace(train.MODELS[model], activation=lambda x: 1.01 * torch.relu(x))
    right = train.network_of
    monkeypatch.setattr(train, "network_of", lambda _, *rest: right(wrong, *rest))
    with pytest.raises(verify.WrongResult, match=f"{model}, halfgnn, fp32"):
        train.check(config, train.MODELS[model], 1, train.OURS)


def test_communities_are_those_that_edges_were_drawn_from():
    recipe = graphs.Recipe(400, 40_000, 0.3, 0.3, communities=4, mix=0.9, symmetric=True)
    made = graphs.make(recipe, "x", "sorted", torch.int64)
    assert torch.bincount(made.communities).tolist() == [100] * 4
    within = (made.communities[made.src] == made.communities[made.dst]).double().mean()
    assert 0.9 < within < 0.95


def test_peak_is_what_was_in_use_and_given_back():
    with memory.Peak("cpu") as peak:
        torch.ones(64 << 20)  # fp32
    if peak.bytes is None:
        pytest.skip("this system does not tell")
    assert 0.9 * (256 << 20) < peak.bytes < 1.5 * (256 << 20)
    with memory.Peak("cpu") as small:
        torch.ones(1 << 20)
    assert small.bytes < 64 << 20  # the high-water mark was reset


@needs_dgl
def test_overhead_goes_from_30_nodes_to_millions_of_edges(tmp_path, monkeypatch):
    assert overhead.SIZES[0] == (30, 100) and overhead.SIZES[-1][1] == 4_000_000
    monkeypatch.setattr(overhead, "SIZES", ((30, 100), (50, 400)))
    monkeypatch.setattr(timing, "QUICK", dataclasses.replace(timing.QUICK, is_quick=False))
    monkeypatch.setattr(cli, "QUICK", timing.QUICK)
    found = run(tmp_path, "overhead", "--directions", "forward")
    assert {(row.graph, row.num_edges) for row in found} == {
        ("30 nodes (synthetic)", 100),
        ("50 nodes (synthetic)", 400),
    }
    assert {row.dtype for row in found if row.num_edges == 400} == {"bf16"}


@needs_dgl
def test_overhead_of_what_is_compiled(tmp_path):
    eager = "--eager"
    small = [option for option in SMALL if option != eager]
    assert cli.main(["overhead", *small, "--dtype", "fp32", "--directions", "forward", "--out", str(tmp_path)]) == 0
    compiled = [row for row in rows.read(tmp_path / "cpu.csv") if row.contestant == overhead.COMPILED]
    assert {row.op for row in compiled} == {"u_mul_e_sum", "GAT"} and all(row.ms for row in compiled)


@pytest.mark.parametrize("family", ["spmm", "sddmm", "softmax", "edges"])
def test_forward_results_are_compared_with_float64(tmp_path, family):
    found = [row for row in run(tmp_path, family) if row.direction == "forward" and row.contestant == "halfgnn"]
    assert found and all(row.error is not None and row.error < 5e-3 for row in found)
    assert max(row.error for row in found if row.dtype == "fp32") < 1e-5


@needs_dgl
def test_marks_find_every_contestant_they_name(tmp_path, monkeypatch):
    # Names of contestants are strings in two places. With a wrong name a mark would always be "not measured".
    for family in cli.FAMILIES:
        if family != "limits":
            run(tmp_path, family, "--orders", "sorted")
    monkeypatch.setattr(marks, "GRAPHS", ("tiny (synthetic)",))
    monkeypatch.setattr(marks, "THREADS", 1)
    monkeypatch.setattr(marks, "FEATURES", 16)
    assert marks.unmeasured(rows.read(tmp_path / "cpu.csv")) == []


def test_runs_append_to_one_file(tmp_path):
    first = run(tmp_path, "softmax", "--dtype", "fp32", "--orders", "sorted")
    second = run(tmp_path, "softmax", "--dtype", "fp32", "--orders", "sorted")
    assert second[: len(first)] == first and len(second) == 2 * len(first)


def test_without_baselines_only_halfgnn_runs(tmp_path):
    found = run(tmp_path, "spmm", "--baselines", "--directions", "forward", "--orders", "insertion")
    assert {row.contestant for row in found} == {"halfgnn"}


def test_features_must_divide_into_heads():
    with pytest.raises(SystemExit, match="--dims 10 does not divide into --heads 4"):
        cli.main(["spmm", "--quick", "--dims", "10", "--heads", "4"])


@pytest.mark.parametrize("family", ["spmm", "sddmm", "softmax"])
def test_backward_alone(tmp_path, family):
    found = run(tmp_path, family, "--directions", "backward", "--graphs", "tiny-communities", "--orders", "sorted")
    ours = {row.dtype for row in found if row.contestant == "halfgnn" and row.ms}
    assert ours == {"bf16", "fp16", "fp32"} and {row.direction for row in found} == {"backward"}


@needs_pyg
def test_pyg_agrees(tmp_path):
    for family in ("spmm", "softmax"):
        found = run(tmp_path, family, "--baselines", "pyg", "--directions", "forward", "--orders", "sorted")
    theirs = [row for row in found if row.contestant.startswith("pyg")]
    assert {row.contestant for row in theirs} == {"pyg scatter", "pyg conv", "pyg softmax"}
    assert all(row.error < 0.05 for row in theirs if row.dtype == "fp32")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("arguments", [["spmm", "--device", "cuda"], ["gpu", "--out", "nowhere"]])
def test_without_a_gpu_it_says_so(arguments):
    with pytest.raises(SystemExit, match="needs an NVIDIA GPU"):
        cli.main(arguments)


@needs_dgl
def test_rehearsal_of_what_runs_on_a_gpu(tmp_path, capsys, monkeypatch):
    steps = [dataclasses.replace(step, seconds=3600) for step in gpu.REHEARSAL]  # enough for a busy machine
    monkeypatch.setattr(gpu, "REHEARSAL", tuple(steps))
    assert cli.main(["gpu", "--device", "cpu", "--out", str(tmp_path), "--budget", "36000"]) == 0
    found = rows.read(tmp_path / "cpu.csv")
    assert {row.graph for row in found} >= {"tiny-communities (synthetic)", "tiny-hub (synthetic)", marks.SMALLEST}
    assert {row.family for row in found} >= set(gpu.FAMILIES)
    assert (tmp_path / "cpu.md").read_text() and (tmp_path / "bench.log").read_text()
    assert capsys.readouterr().out.count(": done in") == len(gpu.REHEARSAL)


def test_steps_that_outlast_their_time_are_cut_off(tmp_path):
    ending = gpu._measure(gpu.REHEARSAL[0], "cpu", tmp_path, seconds=0.5)
    assert "cut off" in ending


def test_steps_fit_into_the_time_that_there_is():
    parser = argparse.ArgumentParser()
    gpu.add_options(parser)
    for steps in (gpu.STEPS, gpu.QUICK):
        assert sum(step.seconds for step in steps) <= parser.get_default("budget")


def test_every_step_parses():
    for step in (*gpu.STEPS, *gpu.QUICK, *gpu.REHEARSAL):
        options = cli._parser().parse_args(step.argv("cpu", Path("nowhere")))
        assert options.command == step.family and (options.graphs or [""]) == [step.graph]


def test_module_runs_as_a_program(tmp_path):
    rows.append(tmp_path / "cpu.csv", [_row("halfgnn", 1.0)])
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "table", "--rows", str(tmp_path / "cpu.csv")],
        cwd=ROOT, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout == table.render(rows.read(tmp_path / "cpu.csv"))


# ---- graphs and checks ---------------------------------------------------------------------------------------------------------


def test_graphs_are_seeded_and_orders_hold_the_same_edges():
    insertion, again, ordered = (
        graphs.synthetic("tiny", order, torch.int64) for order in ("insertion", "insertion", "sorted")
    )
    assert torch.equal(insertion.src, again.src) and torch.equal(insertion.dst, again.dst)

    def edges(graph):
        return sorted(zip(graph.src.tolist(), graph.dst.tolist()))

    assert edges(insertion) == edges(ordered)
    assert ordered.halfgnn.csc().edge_ids is None and insertion.halfgnn.csc().edge_ids is not None
    assert "tiny (synthetic): 200 nodes, 1,500 edges" in facts.describe(facts.of(insertion))


def test_communities_are_symmetric_and_mixed_as_told():
    recipe = graphs.Recipe(400, 40_000, 0.3, 0.3, communities=4, mix=0.9, symmetric=True)
    generator = torch.Generator().manual_seed(0)
    nodes = graphs._Nodes(recipe, recipe.src_skew, generator)
    src = nodes.draw(20_000)
    dst = nodes.draw_near(src, recipe.mix)
    assert 0.9 < (src // 100 == dst // 100).double().mean() < 0.95  # a quarter of the others too
    made = graphs.make(recipe, "x", "insertion", torch.int64)
    assert made.num_edges == 40_000
    assert sorted(zip(made.src.tolist(), made.dst.tolist())) == sorted(zip(made.dst.tolist(), made.src.tolist()))
    again = graphs.make(recipe, "x", "insertion", torch.int64)
    assert torch.equal(made.src, again.src) and torch.equal(made.dst, again.dst)


def test_weights_of_nodes_decide_how_often_they_are_drawn():
    nodes = graphs._Nodes(graphs.Recipe(50, 0, 1.0, 1.0, communities=5), 1.0, torch.Generator().manual_seed(0))
    counts = torch.bincount(nodes.draw(200_000), minlength=50) / 200_000
    torch.testing.assert_close(counts.double(), nodes.below.diff() / nodes.below[-1], rtol=0.1, atol=1e-3)
    near = nodes.draw_near(torch.full((1000,), 17), 1.0)
    assert near.min() >= 10 and near.max() < 20


def test_hub_is_one_node_and_the_rest_is_as_without_it():
    recipe = graphs.RECIPES["tiny-hub"]
    plain = graphs.make(dataclasses.replace(recipe, hub_edges=0), "x", "insertion", torch.int64)
    hub = graphs.make(recipe, "x", "insertion", torch.int64)
    degree = hub.halfgnn.in_degrees()
    assert degree.max() >= recipe.hub_edges and hub.num_edges == plain.num_edges + recipe.hub_edges
    degree[degree.argmax()] -= recipe.hub_edges
    assert torch.equal(degree.sort().values, plain.halfgnn.in_degrees().sort().values)


def test_backward_of_gives_the_gradients_of_the_whole():
    x = torch.linspace(1, 2, 50)
    (whole,) = with_backward(torch.sin, (x,), 5)()[1:]
    work = backward_of(torch.sin, (x,), 5)
    assert torch.equal(work()[0], whole) and torch.equal(work()[0], whole)


def test_pure_gather_is_for_gpus():
    graph = graphs.synthetic("tiny", "sorted", torch.int64)
    limit = gather.contestant(graph, 16, torch.float16)
    with pytest.raises(Unavailable, match="CUDA kernel"):
        limit.make()
    case = _case()
    assert gather.beside(case).contestants == []


def test_sample_has_the_hub_and_its_edges(monkeypatch):
    monkeypatch.setattr(verify, "SAMPLE_EDGES", 40)
    graph = graphs.synthetic("tiny", "insertion", torch.int32)
    part = verify.sample(graph)
    assert int(graph.halfgnn.in_degrees().argmax()) in part.rows.tolist()
    assert 0 < len(part.rows) < graph.num_nodes
    src, dst = part.graph.edges()
    assert torch.equal(part.sources[src.long()], graph.src[part.edges].long())
    assert torch.equal(part.rows[dst.long()], graph.dst[part.edges].long())
    verify.sample.cache_clear()


def test_rounded_once_is_told_from_rounded_twice_and_from_nan():
    truth = torch.linspace(0.5, 2, 1000, dtype=torch.float64)
    assert verify.check_rounded_once(truth.bfloat16(), truth, truth, "x") < 2**-8
    twice = truth.clone()
    twice[7] *= 1 + 2**-7
    with pytest.raises(verify.WrongResult, match="x: 1 values off"):
        verify.check_rounded_once(twice.bfloat16(), truth, truth, "x")
    with pytest.raises(verify.WrongResult, match="1 values off"):
        verify.check_rounded_once(truth.bfloat16().index_fill(0, torch.tensor([3]), torch.nan), truth, truth, "x")


def test_gradients_worse_than_the_formula_are_refused():
    inputs = (torch.linspace(0.5, 2, 100).bfloat16(),)

    def formula(tensors):
        return (tensors[0] * 3,)

    verify.check_like_formula(formula, formula, inputs, "x")
    with pytest.raises(verify.WrongResult, match="x, result 0"):
        verify.check_like_formula(lambda t: (t[0] * 3.1,), formula, inputs, "x")
    with pytest.raises(verify.WrongResult, match="x, result 0"):
        verify.check_like_formula(lambda t: (t[0] * torch.nan,), formula, inputs, "x")


@pytest.mark.parametrize("direction", ["forward", "forward+backward"])
def test_a_wrong_operator_is_not_timed(tmp_path, monkeypatch, direction):
    right = ops.u_mul_e_sum
    monkeypatch.setattr(ops, "u_mul_e_sum", lambda g, x, w: right(g, x, w) * 1.05)
    with pytest.raises(verify.WrongResult, match="u_mul_e_sum"):
        run(tmp_path, "spmm", "--directions", direction)
    written = rows.read(tmp_path / "cpu.csv") if (tmp_path / "cpu.csv").exists() else []
    assert "u_mul_e_sum" not in {row.op for row in written}


def _case(*contestants):
    return Case("spmm", "x", "forward", graphs.synthetic("tiny", "sorted", torch.int64), 1, 8, list(contestants))


def _refuse(error):
    def make():
        raise error

    return make


def test_baselines_that_cannot_take_part_are_noted_and_ours_must():
    config = Config(effort=timing.QUICK)
    source = rows.provenance([])
    missing = Contestant("dgl", torch.float16, _refuse(Unavailable("no fp16")))
    broken = Contestant("torch.sparse", torch.float16, _refuse(RuntimeError("not implemented\nat line 1")))
    present = Contestant("index_add", torch.float16, lambda: lambda: None)
    found = runner.run_case(_case(missing, broken, present), config, source)
    notes = {row.contestant: (row.ms is None, row.note) for row in found}
    assert notes == {
        "dgl": (True, "no fp16"),
        "torch.sparse": (True, "refused: RuntimeError: not implemented"),
        "index_add": (False, ""),
    }
    with pytest.raises(RuntimeError, match="not implemented"):
        runner.run_case(_case(dataclasses.replace(broken, name="halfgnn")), config, source)


# ---- timing --------------------------------------------------------------------------------------------------------------------


def test_turns_alternate_and_spread():
    assert list(timing.turns([3, 3])) == [0, 1, 0, 1, 0, 1]
    order = list(timing.turns([6, 2, 0]))
    assert order.count(0) == 6 and order.count(1) == 2 and 2 not in order
    assert order == [0, 0, 0, 1, 0, 0, 0, 1]
    assert list(timing.turns([])) == []


class _Clocked(timing.Runner):
    """Every call takes `takes` seconds of simulated time."""

    takes = 0.0
    samples = 0

    def sample(self):
        self.samples += 1
        return self.takes


@pytest.mark.parametrize(
    "takes, repeat, runs, kept",
    [
        (1e-5, 300, 25, 0),  # a sample is 300 calls, and there is time for all samples
        (0.1, 1, 15, 0),
        (0.7, 1, 3, 0),  # fewer do not make a median
        (1.2, 1, 2, 0),  # two are enough
        (9.0, 1, 1, 0),  # so is one
    ],
)
def test_plan(takes, repeat, runs, kept):
    planned = _Clocked(lambda: None)
    planned.takes = takes
    effort = timing.Effort(budget_s=1.5, min_runs=3, max_runs=25, slow_s=1.0, sample_s=0.003, pause_s=0)
    timing.plan(planned, effort, planned.sample())
    assert abs(planned.repeat - repeat) <= 1 and planned.runs == runs and len(planned.seconds) == kept
    before = planned.samples
    timing.measure([planned], effort, lambda: None)
    assert planned.samples - before == runs and len(planned.seconds) == runs + kept


def test_a_budget_buys_samples_of_the_slowest():
    planned = _Clocked(lambda: None)
    timing.plan(planned, timing.Effort(budget_s=60.0), 9.0)
    assert planned.runs == 6 and planned.seconds == []


def test_on_a_gpu_the_first_call_decides_nothing():
    planned = _Clocked(lambda: None)
    planned.takes = 1e-4
    timing.plan(planned, timing.GPU, 3.0)  # a library was loaded
    assert planned.repeat == 20 and planned.runs == timing.GPU.max_runs


def test_quantile():
    assert timing.quantile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert timing.quantile([0.0, 10.0], 0.2) == 2.0
    assert timing.quantile([7.0], 0.8) == 7.0


# ---- rows ------------------------------------------------------------------------------------------------------------------------


def _row(contestant, ms, dtype="bf16", **changes):
    values = dict(
        family="spmm", op="copy_u_sum", direction="forward", contestant=contestant, dtype=dtype, graph=marks.GRAPHS[0],
        num_nodes=10, num_edges=20, order="insertion", heads=1, dim=128, idtype="int64", device="cpu", threads=2, cache="", ms=ms,
        ms_p20=ms, ms_p80=ms, runs=3, date="2026-01-01T00:00:00Z", commit="abc", cpu="C", torch="2", dgl="1",
        command="python -m benchmarks spmm",
    )  # fmt: skip
    return rows.Row(**{**values, **changes})


def test_rows_survive_the_file(tmp_path):
    made = [_row("halfgnn", 1.25, error=0.5), _row("dgl", None, note='refused: "a, b"', runs=0)]
    rows.append(tmp_path / "folder" / "cpu.csv", made[:1])
    rows.append(tmp_path / "folder" / "cpu.csv", made[1:])
    assert rows.read(tmp_path / "folder" / "cpu.csv") == made


def test_half_a_line_is_named(tmp_path):
    rows.append(tmp_path / "cpu.csv", [_row("halfgnn", 1.0), _row("dgl", 1.0)])
    text = (tmp_path / "cpu.csv").read_text()
    (tmp_path / "cpu.csv").write_text(text[:-100])
    with pytest.raises(ValueError, match=r"cpu.csv, line 3: \d+ fields, of \d+"):
        rows.read(tmp_path / "cpu.csv")


def test_wrong_results_are_marked_and_not_in_the_means():
    found = [_row("halfgnn", 2.0), _row("dgl", 8.0, error=0.2), _row("halfgnn", 2.0, op="copy_u_max"),
             _row("dgl", 6.0, op="copy_u_max", error=0.01)]  # fmt: skip
    text = table.render(found)
    assert "| 2.00 | 8.00* | 4.00 x |" in text and "| 2.00 | 6.00 | 3.00 x |" in text
    assert "| geometric mean |  |  |  |  |  | 3.00 x |" in text


def test_a_file_with_other_columns_is_refused(tmp_path):
    (tmp_path / "cpu.csv").write_text("family,op\nspmm,x\n")
    with pytest.raises(ValueError, match="has columns"):
        rows.read(tmp_path / "cpu.csv")
    with pytest.raises(ValueError, match="has columns"):
        rows.append(tmp_path / "cpu.csv", [_row("halfgnn", 1.0)])


def test_share_of_the_gather_is_that_of_the_same_dtype():
    found = [_row("halfgnn", 4.0), _row(gather.LIMIT, 3.0), _row("halfgnn", 8.0, "fp32"), _row("dgl", None)]
    assert [row.limit_share for row in runner._with_shares(found)] == [0.75, None, None, None]


def test_a_case_is_never_put_together_from_two_runs():
    old = [_row("halfgnn", 9.0), _row("dgl", 9.0), _row("dgl", 9.0, op="u_mul_e_sum")]
    new = [_row("halfgnn", 1.0, date="2026-02-01T00:00:00Z")]
    assert rows.latest([*old, *new]) == [old[2], *new]


# ---- marks -----------------------------------------------------------------------------------------------------------------------


def _findings(found, start):
    return [(f.ratio, f.holds) for f in marks.judge(found) if f.mark.text.startswith(start)]


def test_mark_on_time_holds_up_to_its_limit_and_not_beyond():
    mul = dict(op="u_mul_e_sum")
    for ms, holds in ((1.29, True), (1.3, True), (1.31, False)):
        found = [_row("halfgnn", ms, **mul), _row("dgl copy_u_sum", 1.0, **mul), _row("dgl", 0.1, **mul)]
        assert _findings(found, "u_mul_e_sum, bf16") == [(ms, holds)]
        assert len(marks.lost(found)) == (0 if holds else 1)


def test_mark_on_speed_asks_for_the_factor():
    step = dict(family="layer", op="GATConv", direction="forward+backward", heads=4, dim=32)
    for theirs, holds in ((8.1, True), (7.9, False)):
        found = [_row("halfgnn drop-in", 1.0, **step), _row("dgl", theirs, **step)]
        assert _findings(found, "GATConv step, bf16") == [(pytest.approx(1 / theirs), holds)]


def test_every_case_is_judged_and_one_loss_is_a_loss():
    good = [_row("halfgnn", 1.0), _row("dgl", 2.0)]
    bad = [_row("halfgnn", 3.0, graph=marks.GRAPHS[1]), _row("dgl", 2.0, graph=marks.GRAPHS[1])]
    assert _findings([*good, *bad], "copy_u_sum, bf16") == [(0.5, True), (1.5, False)]
    assert [finding.row.graph for finding in marks.lost([*good, *bad])] == [marks.GRAPHS[1]]


@pytest.mark.parametrize("change", [dict(threads=1), dict(graph="cora (synthetic)"), dict(dim=64), dict(device="cuda")])
def test_marks_cover_only_what_they_were_set_for(change):
    assert _findings([_row("halfgnn", 3.0, **change), _row("dgl", 2.0, **change)], "copy_u_sum, bf16") == []


def test_softmax_has_no_features_to_count():
    soft = dict(family="softmax", op="edge_softmax", heads=4, dim=1)
    found = [_row("halfgnn", 1.0, **soft), _row("dgl", 6.0, **soft), _row("halfgnn", 1.5, "fp16", **soft)]
    assert _findings(found, "edge_softmax, bf16") == [(pytest.approx(1 / 6), True)]
    assert _findings(found, "fp16 within 1.2 x of bf16, operators") == [(1.5, False)]


def test_what_was_not_measured_neither_holds_nor_is_lost():
    found = [_row("halfgnn", 1.0), _row("dgl", None, note="refused")]
    assert _findings(found, "copy_u_sum, bf16") == [(None, None)]
    assert not marks.lost(found) and len(marks.unmeasured(found)) == len(marks.MARKS)


def test_information_is_not_judged():
    found = [_row("halfgnn", 9.0), _row("dgl", 1.0, "fp32")]
    assert _findings(found, "for information: copy_u_sum, bf16") == [(9.0, None)]
    assert not marks.lost(found)


def test_marks_command_tells_a_loss_by_its_exit_status(tmp_path, capsys):
    for ms, status in ((1.0, 0), (3.0, 1)):
        path = tmp_path / f"{ms}.csv"
        rows.append(path, [_row("halfgnn", ms), _row("dgl", 2.0)])
        assert cli.main(["marks", "--rows", str(path)]) == status
    assert "**lost**" in capsys.readouterr().out


def test_marks_command_says_when_nothing_was_measured(tmp_path, capsys):
    rows.append(tmp_path / "cpu.csv", [_row("halfgnn", 1.0, graph="tiny (synthetic)")])
    assert cli.main(["marks", "--rows", str(tmp_path / "cpu.csv")]) == 2
    assert "no mark was measured" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments,message",
    [
        (["table", "--rows", "nowhere.csv"], "table: .*nowhere.csv"),
        (["marks", "--rows", "nowhere.csv"], "marks: .*nowhere.csv"),
        (["table", "--into", "nowhere.md"], "table: .*nowhere.md"),
        (["spmm", "--quick", "--threads", "0"], "--threads 0, --budget None: expected positive numbers"),
        (["spmm", "--quick", "--budget", "-1"], "--budget -1.0: expected positive numbers"),
        (["train", "--quick", "--hidden", "0"], "--hidden 0"),
        (["spmm", "--quick", "--out", __file__], "expected a folder"),
    ],
)
def test_what_cannot_be_is_told_in_a_line(arguments, message):
    with pytest.raises(SystemExit, match=message):
        cli.main(arguments)


def _gpu_row(contestant, ms, dtype="fp16", **changes):
    values = dict(
        device="cuda", gpu="NVIDIA H100 80GB HBM3", driver="1", graph="reddit-size (synthetic)", op="u_mul_e_sum", order="sorted",
        idtype="int32", cache="warm", num_edges=1000,
    )  # fmt: skip
    return _row(contestant, ms, dtype, **{**values, **changes})


@pytest.mark.parametrize("ms,holds", [(3.4, True), (3.6, False)])
def test_gpu_marks_are_milliseconds(ms, holds):
    found = [_gpu_row("halfgnn", ms)]
    assert _findings(found, "u_mul_e_sum, fp16, reddit-size") == [(pytest.approx(ms / 3.5), holds)]
    for change in (dict(dim=64), dict(heads=4), dict(cache="cold"), dict(gpu="NVIDIA T4")):
        assert _findings([_gpu_row("halfgnn", ms, **change)], "u_mul_e_sum, fp16, reddit-size") == []


def test_guide_is_held_to_time_and_to_memory():
    step = dict(family="train", op="GAT", direction="step", dim=256)
    for heads, peak, holds in (
        (1, 3300, [True, True]),
        (1, 3400, [True, False]),
        (8, 15000, [True]),
        (8, 15300, [False]),
    ):
        found = [_gpu_row("halfgnn", 59.0, heads=heads, peak_mb=peak, **step)]
        assert [held for _, held in _findings(found, "training a GAT")] == holds


@pytest.mark.parametrize("ms,holds", [(2.05, True), (2.2, False)])
def test_hub_is_held_to_the_time_of_its_edges(ms, holds):
    plain = _gpu_row("halfgnn", 1.0, graph="arxiv-size (synthetic)")
    hub = _gpu_row("halfgnn", ms, graph="arxiv-size-hub (synthetic)", num_edges=2000)
    assert _findings([plain, hub], "SpMM") == [(pytest.approx(ms - 1), holds)]
    assert _findings([hub], "SpMM") == [(None, None)]


# ---- tables ----------------------------------------------------------------------------------------------------------------------


def test_table_shows_times_factors_and_losses():
    found = [_row("halfgnn", 2.0), _row("dgl", 8.0), _row("halfgnn", 3.0, "fp32"), _row("dgl", 1.5, "fp32")]
    text = table.render(found)
    assert "| 128 | 2.00 | 8.00 | 4.00 x | - | 3.00 | 1.50 | **0.500 x** | bf16 0.250 of 1 |" in text
    assert "2026-01-01, commit abc, C, 2 threads, torch 2, DGL 1: `python -m benchmarks spmm`" in text
    assert "| copy_u_sum, bf16: at most 1.0 x the time of DGL's | 1 | 0.250 x | 0.250 x | holds |" in text


def test_geometric_mean_of_the_factors():
    cases = [{("halfgnn", "bf16"): _row("halfgnn", 1.0), ("dgl", "bf16"): _row("dgl", ms)} for ms in (2.0, 8.0)]
    alone = {("halfgnn", "bf16"): _row("halfgnn", 1.0)}
    assert table_cpu.mean_speedup([*cases, alone], "bf16") == "4.00 x"
    assert table_cpu.mean_speedup([alone], "bf16") == "-"


def test_number_has_three_digits():
    assert [cells.number(x) for x in (0.01234, 0.5, 9.876, 98.76, 987.6, 9876.0, None)] == [
        "0.0123", "0.500", "9.88", "98.8", "988", "9876", "-",
    ]  # fmt: skip


def test_lost_marks_are_bold_beside_their_figures():
    found = [_row("halfgnn", 3.0), _row("dgl", 2.0), _row("halfgnn", 3.9, "fp16")]
    beside = cells.MarksBeside(found)
    assert beside.cell(found[0].case, ("halfgnn",)) == "bf16 **1.50 of 1**, fp16 **1.30 of 1.2**"
    assert beside.cell(found[0].case, ("halfgnn fused",)) == ""


def test_summary_has_a_line_an_operator_and_a_column_a_graph():
    found = [
        _row("halfgnn", 2.0), _row("dgl", 8.0),
        _row("halfgnn", 9.0, graph=marks.GRAPHS[1]), _row("dgl", 3.0, graph=marks.GRAPHS[1]),
        _row("halfgnn", 1.0, order="sorted"), _row("dgl", 1.0, order="sorted"),
    ]  # fmt: skip
    text = table.summary(found)
    assert "| copy_u_sum | forward | 128 | 2.00 / 8.00: 4.00 x | 9.00 / 3.00: **0.333 x** |" in text
    assert "| geometric mean of all cases |  |  | 2.00 x, fp32 - | 0.333 x, fp32 - |" in text
    assert "sorted" not in text


def test_training_table_compares_losses_after_the_same_number_of_steps():
    step = dict(family="train", op="GAT", direction="step", graph="reddit-tenth (synthetic)", dim=256)
    found = [
        _row("halfgnn", 100.0, losses="3 2 1", peak_mb=50.0, **step), _row("dgl", 500.0, losses="3.1 2.1", peak_mb=200.0, **step),
        _row("dgl", 80.0, "fp32", losses="3 2.2 1.1 0.5", peak_mb=300.0, **step),
    ]  # fmt: skip
    expected = "| GAT | reddit-tenth | 256 | bf16 | 100 | - | - | 500 | - | 5.00 x | **0.800 x** | 50.0 | 200 |"
    assert f"{expected} 2 | 2 | 2.1 | 2.2 |  |" in table.render(found)


def test_overhead_table_has_a_column_a_size():
    call = dict(family="overhead", op="u_mul_e_sum")
    found = [
        _row("halfgnn.ops", 0.05, graph=marks.SMALLEST, num_edges=100, **call),
        _row("halfgnn.ops", 2.0, graph="400 nodes (synthetic)", num_edges=4000, **call),
    ]
    text = table.render(found)
    assert (
        "| u_mul_e_sum, forward, bf16 | 100 edges | 4,000 edges |" in text and "| halfgnn.ops | 50.0 | 2000 |" in text
    )


def test_document_agrees_only_with_the_rows_it_was_made_from(tmp_path):
    path = tmp_path / "README.md"
    rows.append(tmp_path / "cpu.csv", [_row("halfgnn", 2.0), _row("dgl", 8.0)])
    empty = "<!-- benchmarks: begin {0} -->\nstale rows\n<!-- benchmarks: end {0} -->\n"
    path.write_text("# A\n\n" + empty.format("summary") + "between\n" + empty.format("cuda") + "\ntail\n")
    arguments = ["table", "--results", str(tmp_path)]
    assert cli.main([*arguments, "--check", str(path)]) == 1
    assert cli.main([*arguments, "--into", str(path)]) == 0
    text = path.read_text()
    assert text.startswith("# A\n") and text.endswith("\ntail\n") and "between" in text and "stale" not in text
    assert "<!-- benchmarks: begin cuda -->\n<!-- benchmarks: end cuda -->" in text
    assert cli.main([*arguments, "--check", str(path)]) == 0
    assert not table.agrees(text.replace("8.00", "9.00"), tmp_path)
    with pytest.raises(ValueError, match="lacks lines"):
        table.replaced("no markers", tmp_path)
    with pytest.raises(ValueError, match="has a section 'other'"):
        table.replaced(empty.format("other"), tmp_path)


def test_gpu_table_shows_times_shares_and_factors():
    found = [
        _gpu_row("halfgnn", 2.0, limit_share=0.8, gb_per_s=5000.0, peak_mb=60.0), _gpu_row(gather.LIMIT, 1.6),
        _gpu_row("torch.sparse", 8.0), _gpu_row("index_add", 1.0), _gpu_row("halfgnn", 3.0, "fp32"),
        _gpu_row("halfgnn", 2.5, cache="cold"), _gpu_row("pyg scatter", None, note="too large"),
    ]  # fmt: skip
    text = table.render(found)
    expected = (
        "| u_mul_e_sum | forward | 128 | 2.00 | 2.50 | 5000 | 80% | 60.0 | - | 3.00 | - | - | 4.00 x | **0.500 x** |"
    )
    assert expected in text and "| - | fp16 0.571 of 1 |" in text
    assert "| geometric mean |  |  |  |  |  |  |  |  |  | - | - | 4.00 x | 0.500 x | - |" in text
    assert "commit abc, NVIDIA H100 80GB HBM3, driver 1, torch 2, DGL 1: `python -m benchmarks spmm`" in text
    assert "| u_mul_e_sum, fp16, reddit-size: at most 3.5 ms | 1 | 0.571 x | 0.571 x | holds |" in text
    assert "80% of 1.6 ms" in table_cuda.short(found, dim=128)


def test_no_rows_make_no_table():
    assert table.render([]) == ""


@pytest.mark.parametrize("document", ["README.md", "docs/benchmarks.md"])
def test_documents_show_the_committed_rows(document):
    path = ROOT / document
    if not path.exists():
        pytest.skip("no documents in this copy")
    assert table.agrees(path.read_text(), rows.RESULTS), f"run `python -m benchmarks table --into {document}`"
