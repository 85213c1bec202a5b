"""What runs on a GPU with one command: the plan of its steps, a rehearsal on the CPU, and memory that does not suffice."""

import argparse
import contextlib
import dataclasses
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from benchmarks import cli, gpu, inputs, memory, profiling, rows, runner, targets
from benchmarks.case import DEFAULTS, Backend, Case, Config
from benchmarks.families import families_of
from benchmarks.graphs import RECIPES, BenchGraph
from benchmarks.operators import OPERATORS, Problem
from benchmarks.optional import set_threads
from halfgnn import ops

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def _threads():
    before = torch.get_num_threads()
    yield
    set_threads(before)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("arguments", [["spmm", "--device", "cuda"], ["gpu", "--out", "nowhere"]])
def test_without_a_gpu_it_says_so(arguments):
    with pytest.raises(SystemExit, match="needs an NVIDIA GPU"):
        cli.main(arguments)


@pytest.fixture
def in_this_process(monkeypatch):
    """Runs the steps of a GPU run here. Each process would load all libraries anew."""

    def call(command, stdout, **options):
        assert command[:3] == [sys.executable, "-m", "benchmarks"] and options["timeout"] > 0
        with contextlib.redirect_stdout(stdout):
            return SimpleNamespace(returncode=cli.main(command[3:]))

    monkeypatch.setattr(gpu, "subprocess", SimpleNamespace(run=call, STDOUT=None, TimeoutExpired=TimeoutError))


@pytest.mark.skipif(
    not os.environ.get("HALFGNN_TEST_ALL"),
    reason="each family once more, for 75 seconds; HALFGNN_TEST_ALL=1 (make test-all) runs it",
)
def test_rehearsal_of_what_runs_on_a_gpu(tmp_path, capsys, in_this_process):
    pytest.importorskip("dgl")  # without it, overhead is left out
    assert cli.main(["gpu", "--device", "cpu", "--out", str(tmp_path), "--budget", "36000"]) == 0
    found = rows.read(tmp_path / "cpu.csv")
    assert {row.graph for row in found} >= {"tiny-communities (synthetic)", "tiny-hub (synthetic)", targets.SMALLEST}
    assert {row.family for row in found} >= set(gpu.FAMILIES)
    assert (tmp_path / "cpu.md").read_text() and (tmp_path / "bench.log").read_text()
    assert capsys.readouterr().out.count(": done in") == len(gpu.REHEARSAL)


def test_a_profiler_sees_one_call_of_halfgnn(tmp_path, monkeypatch, capsys):
    windows, calls = [], []
    monkeypatch.setattr(profiling, "_profiled", lambda device: windows.append(device) or contextlib.nullcontext())
    monkeypatch.setattr(ops, "copy_u_sum", lambda *x, f=ops.copy_u_sum: calls.append(len(windows)) or f(*x))
    options = ["--quick", "--profile", "--dims", "16", "--heads", "1", "--orders", "sorted", "--directions", "forward"]
    assert cli.main(["spmm", *options, "--dtype", "fp16", "--threads", "1", "--out", str(tmp_path)]) == 0
    assert set(calls) == {0, 1} and calls == sorted(calls) and windows == ["cpu"] * len(windows)
    assert capsys.readouterr().out.count("forward on tiny") == len(windows) > 2
    assert not list(tmp_path.iterdir())


def test_a_step_is_a_process_that_may_fail(tmp_path):
    step = gpu.Step("spmm", "", ("--heads", "3", "--quick"))
    assert gpu._measure(step, "cpu", tmp_path, seconds=600).startswith("spmm: FAILED with 1, see bench.log")
    assert "--dims 128 does not divide into --heads 3" in (tmp_path / "bench.log").read_text()


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


# ---- memory ------------------------------------------------------------------------------------------------------------------


class _Shape(BenchGraph):
    """A graph on a GPU that has sizes, and no edges."""

    device = "cuda"

    def __init__(self, name, order, idtype=torch.int32):
        recipe = RECIPES[name]
        ids = torch.empty(recipe.num_edges + getattr(recipe, "hub_edges", 0), dtype=idtype, device="meta")
        super().__init__(name, order, ids, ids, recipe.num_nodes)


@pytest.mark.parametrize("step", [*gpu.STEPS, *gpu.QUICK], ids=lambda step: f"{step.name} {' '.join(step.options)}")
def test_no_case_of_the_plan_needs_more_than_70_gb(step, monkeypatch):
    """So that a card of 80 GB measures them all. Nothing is drawn. A training step says itself that it lacks memory."""
    monkeypatch.setattr(Config, "graph", lambda config, name, order: _Shape(name, order, config.idtype))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    options = cli._parser().parse_args(step.argv("cuda", Path("nowhere")))
    needs = {
        case.title: memory.needed_bytes(case)
        for family in families_of(options.command)
        if family not in ("train", "overhead")
        for case in cli.cases_of(family, cli._config(options, family))
    }
    assert needs or step.family in ("train", "overhead")
    assert {title: f"{need / 1e9:.1f} GB" for title, need in needs.items() if need > 70e9} == {}
    assert not inputs._drawn or max(x.nbytes for x in inputs._drawn.values()) < 1 << 30


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize(
    "name", ["copy_u_sum", "u_mul_e_sum", "u_dot_v", "u_add_v_add_e", "edge_softmax", "gat_attention"]
)
def test_sizes_from_shapes_are_those_of_the_tensors(name, direction):
    graph = Config(graphs=("tiny",)).graph("tiny", "sorted")
    operator = OPERATORS[name]
    heads = 1 if operator.heads == "one" else 2
    problem = Problem(name, direction, graph, heads, 8 if operator.is_wide else 1, torch.bfloat16)
    expected = problem.operand_bytes, problem.result_bytes
    operands = problem.operands()

    result = operator.of(ops)(graph.halfgnn, *operands)
    assert expected == (sum(x.nbytes for x in operands), result.nbytes)
    case = Case("x", name, direction, graph, 2, 8, [Backend("halfgnn", torch.bfloat16, list, problem=problem)] * 2)
    least = sum(expected) if direction == "forward" else 3 * sum(expected)
    assert memory.needed_bytes(case) >= least


def test_inputs_are_drawn_in_the_type_that_is_timed(monkeypatch):
    """Numbers in fp32 are no more than a chunk, and are the same for every type."""
    inputs.forget()
    whole = {dtype: inputs.normal((40, 5), dtype, 3) for dtype in (torch.float32, torch.float16)}
    assert torch.equal(whole[torch.float32].half(), whole[torch.float16])
    assert inputs.normal((40, 5), torch.float16, 3) is whole[torch.float16]  # shared
    inputs.forget(above=10**9)
    assert inputs.normal((40, 5), torch.float16, 3) is whole[torch.float16]
    inputs.forget()
    drawn = []
    monkeypatch.setattr(inputs, "_CHUNK", 64)
    monkeypatch.setattr(torch, "randn", lambda shape, **options: drawn.append(shape) or torch.zeros(shape))
    assert inputs.normal((40, 5), torch.float16, 3).dtype == torch.float16
    assert [shape.numel() for shape in drawn] == [64, 64, 64, 8]
    inputs.forget()


def _source():
    return rows.provenance(["test"], "cpu")


def test_a_case_without_memory_is_a_row_and_the_next_one_runs(monkeypatch):
    def full():
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 82.00 GiB")

    graph = Config().graph("tiny", "sorted")
    ours, other = Backend("halfgnn", torch.float32, full), Backend("halfgnn unfused", torch.float32, lambda: list)
    measured = runner.run_case(Case("spmm", "x", "forward", graph, 1, 8, [ours, other]), Config(), _source())
    assert {row.backend: row.ms is None for row in measured} == {"halfgnn": True, "halfgnn unfused": False}
    assert "82.00 GiB" in next(row.note for row in measured if row.ms is None)

    def late(*_):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 99 bytes")

    monkeypatch.setattr(runner, "measure", late)
    measured = runner.run_case(Case("spmm", "x", "forward", graph, 1, 8, [other]), Config(), _source())
    assert [(row.ms, "99 bytes" in row.note) for row in measured] == [(None, True)]


LIMITED = """
import resource, sys
from benchmarks import cli
size = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmSize")) * 1024
resource.setrlimit(resource.RLIMIT_AS, (size + (900 << 20),) * 2)
sys.exit(cli.main(sys.argv[1:]))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the size of the process is read from /proc")
@pytest.mark.skipif(
    not os.environ.get("HALFGNN_TEST_ALL"),
    reason="it measures for half a minute; HALFGNN_TEST_ALL=1 (make test-all) runs it",
)
def test_a_run_with_little_memory_goes_through(tmp_path):
    """Rows of 4 M elements do not fit into 0.9 GiB, and those of 16 do."""
    arguments = ["spmm", "--quick", "--graphs", "tiny", "--dims", "4000000", "16", "--heads", "1", "--orders", "sorted",
                 "--directions", "forward", "--dtype", "fp32", "--threads", "1", "--baselines", "--out", str(tmp_path)]  # fmt: skip
    done = subprocess.run([sys.executable, "-c", LIMITED, *arguments], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    measured = rows.read(tmp_path / "cpu.csv")
    assert {row.dim for row in measured if row.ms is None} == {4_000_000}
    assert {row.dim for row in measured if row.ms is not None} == {16}


def test_what_was_not_measured_is_told():
    steps = [gpu.Step("of_nodes", "reddit-size"), gpu.Step("overhead", "")]
    graph = dataclasses.replace(DEFAULTS["cpu"], graphs=("tiny",)).graph("tiny", "sorted")
    backend = Backend("halfgnn", torch.float16, lambda: list)
    (row,) = runner.run_case(Case("spmm", "copy_u_sum", "forward", graph, 1, 8, [backend]), Config(), _source())
    there = [
        dataclasses.replace(row, family=family, graph="reddit-size (synthetic)") for family in ("spmm", "attention")
    ]
    lost = dataclasses.replace(row, family="sddmm", graph="reddit-size (synthetic)", ms=None, note="refused: no memory")
    lines = gpu._left_out(steps, [*there, lost, lost])
    assert lines[0] == "not measured on reddit-size: sddmm, softmax, edges, limits"
    assert lines[2] == "2 x reddit-size (synthetic), sddmm: refused: no memory" and "overhead" in lines[1]
