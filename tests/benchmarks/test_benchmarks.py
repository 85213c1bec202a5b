"""The benchmarks: every subcommand runs and refuses wrong results, and samples are planned as told.

No test here depends on measured times.
"""

import contextlib
import dataclasses
import functools
import importlib.util
import math
import tempfile
from pathlib import Path

import pytest
import torch

from benchmarks import (
    cli,
    edge_layer,
    gather,
    graphs,
    memory,
    models,
    overhead,
    rows,
    runner,
    targets,
    timing,
    train,
    verify,
)
from benchmarks.case import DTYPES, FAMILY_DEFAULTS, Backend, Case, Config
from benchmarks.inputs import backward_of, with_backward
from benchmarks.optional import Unavailable, set_threads
from halfgnn import ops

needs_pyg = pytest.mark.skipif(importlib.util.find_spec("torch_geometric") is None, reason="needs torch_geometric")
needs_dgl = pytest.mark.skipif(importlib.util.find_spec("dgl") is None, reason="needs DGL")
SMALL = ["--quick", "--eager", "--dims", "16", "--hidden", "8", "--heads", "1", "2", "--threads", "1"]


@pytest.fixture(autouse=True)
def _threads():
    before = torch.get_num_threads()
    yield
    set_threads(before)


def run(tmp_path, *arguments):
    """The rows that a subcommand wrote."""
    assert cli.main([*arguments, *SMALL, "--out", str(tmp_path)]) == 0
    return rows.read(tmp_path / "cpu.csv")


# ---- the command line --------------------------------------------------------------------------------------------------------

OPERATORS = {
    "spmm": {"copy_u_sum", "copy_u_max", "u_mul_e_sum"},
    "sddmm": {"u_dot_v", "u_add_v"},
    "softmax": {"edge_softmax"},
    "messages": {"u_add_e_sum", "u_relu_add_e_sum", "u_mul_e_sum_of_rows", "u_add_v_add_e", "gated_sum"},
    "edges": {"copy_e_sum", "e_sub_v", "e_div_v"},
    "attention": {"gat_attention", "gatv2_attention", "dot_attention"},
    "limits": {"copy_u_sum"},
    "reorder": {"copy_u_sum"},
    "several": {"copy_u_reduce"},
    "edge_layer": {layer.name for layer in edge_layer.EDGE_LAYERS},
    "edge_network": {"MeshGraphNet's edges"},
    "layer": {"GATConv", "GATConv without fc", "GraphConv"},
    "train": {"GAT", "GCN", "SAGE"},
    "overhead": {"u_mul_e_sum", "GAT"},
}
FAMILIES = [
    pytest.param(name, marks=needs_dgl if name in ("layer", "edge_layer", "overhead") else ()) for name in cli.FAMILIES
]


@functools.cache
def rows_of(family):
    """The rows of a small run. Of training, of communities, and at least three steps, even if the first takes long."""
    effort = dataclasses.replace(timing.QUICK, min_runs=3, slow_s=math.inf, lone_s=math.inf)
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        if family != "train":
            return run(Path(folder), family)
        patch.setattr(cli, "QUICK", effort)
        return run(Path(folder), family, "--graphs", "tiny-communities", "--hidden", "16")


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_runs_and_its_rows_parse(family):
    found = rows_of(family)
    assert {row.op for row in found} == OPERATORS[family]
    assert {row.family for row in found} == {family}
    for row in found:
        if row.ms is None:
            assert row.note and not row.backend.startswith("halfgnn")
        else:
            assert 0 < row.ms_p20 <= row.ms <= row.ms_p80 and row.runs >= 1
        assert "synthetic" in row.graph and row.threads == 1 and row.torch == torch.__version__
        assert row.command.startswith(f"python -m benchmarks {family} ") and row.cpu and row.cpu_flags and row.date
    ours = {row.dtype for row in found if row.backend.startswith("halfgnn") and row.ms is not None}
    assert ours == set(FAMILY_DEFAULTS.get((family, "cpu"), {}).get("dtypes", DTYPES))


@pytest.mark.parametrize("family", ["spmm", "sddmm", "softmax", "messages", "edges", "attention", "reorder", "several"])
def test_forward_results_are_compared_with_float64(family):
    found = [row for row in rows_of(family) if row.direction == "forward" and row.backend == "halfgnn"]
    assert found and all(row.error is not None and row.error < 5e-3 for row in found)
    assert max(row.error for row in found if row.dtype == "fp32") < 1e-5


@needs_dgl
@needs_pyg
def test_marks_find_every_backend_they_name(monkeypatch):
    # Names of backends are strings in two places. With a wrong name a target would always be "not measured".
    monkeypatch.setattr(targets, "GRAPHS", ("tiny (synthetic)",))
    monkeypatch.setattr(targets, "THREADS", 1)
    monkeypatch.setattr(targets, "WIDTHS", (16,))
    assert targets.unmeasured([row for family in cli.FAMILIES for row in rows_of(family)]) == []
    assert targets.unmeasured([row for family in targets.EDGE_FAMILIES for row in rows_of(family)]) == []


@needs_dgl
def test_training_has_losses_that_agree_between_backends_and_a_peak():
    found = [row for row in rows_of("train") if row.op == "GAT" and row.ms is not None]
    assert {row.graph.split()[0] for row in found} == {"tiny-communities"}
    for heads in (1, 2):
        first = {(r.backend, r.dtype): float(r.losses.split()[0]) for r in found if r.heads == heads}
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
    graph = graphs.named("tiny-communities", "sorted", torch.int64)
    losses = []
    network = train.network_of(models.MODELS["GAT"], graph, 16, 2, models.OURS)
    step = train.training(network, graph.halfgnn, train.data_of(graph), torch.bfloat16, losses)
    for _ in range(120):
        step()
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.parametrize("model", models.MODELS)
def test_a_wrong_model_is_not_timed(model, monkeypatch):
    config = Config(dtypes=("fp32",))
    train.check(config, models.MODELS[model], 1, models.OURS)
    wrong = dataclasses.replace(models.MODELS[model], activation=lambda x: 1.01 * torch.relu(x))
    right = train.network_of
    monkeypatch.setattr(train, "network_of", lambda _, *rest: right(wrong, *rest))
    with pytest.raises(verify.WrongResult, match=f"{model}, halfgnn, fp32"):
        train.check(config, models.MODELS[model], 1, models.OURS)


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


def test_a_message_of_the_drop_in_keeps_what_it_is_made_of():
    pyg = pytest.importorskip("halfgnn.pyg", reason="needs torch_geometric", exc_type=ImportError)
    nn = pytest.importorskip("torch_geometric.nn")
    x = torch.randn(100, 256, requires_grad=True)
    edge_index, weight = torch.randint(100, (2, 4000)), torch.randn(4000, requires_grad=True)
    conv = nn.GraphConv(256, 4)

    def kept(accelerated):
        with memory.SavedMemory() as counted, pyg.accelerate() if accelerated else contextlib.nullcontext():
            conv(2 * x, edge_index, weight)
        return counted.mebibytes * 2**20

    rows = 4 * 100 * 256
    assert kept(False) > 4 * 4000 * 256 and rows <= kept(True) < 3 * rows


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
def test_overhead_of_what_is_compiled(tmp_path, monkeypatch):
    # Inductor's code takes many seconds; test_compile.py has it.
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))
    small = [option for option in SMALL if option != "--eager"]
    assert cli.main(["overhead", *small, "--dtype", "fp32", "--directions", "forward", "--out", str(tmp_path)]) == 0
    compiled = [row for row in rows.read(tmp_path / "cpu.csv") if row.backend == overhead.COMPILED]
    assert {row.op for row in compiled} == {"u_mul_e_sum", "GAT"} and all(row.ms for row in compiled)


def test_runs_append_to_one_file(tmp_path):
    first = run(tmp_path, "softmax", "--dtype", "fp32", "--orders", "sorted")
    second = run(tmp_path, "softmax", "--dtype", "fp32", "--orders", "sorted")
    assert second[: len(first)] == first and len(second) == 2 * len(first)


def test_several_numbers_of_threads_are_runs_one_after_the_other(tmp_path):
    options = [
        "softmax",
        *SMALL,
        "2",
        "--dtype",
        "bf16",
        "--baselines",
        "--directions",
        "forward",
        "--orders",
        "sorted",
    ]
    assert cli.main([*options, "--heads", "1", "--out", str(tmp_path)]) == 0
    assert [row.threads for row in rows.read(tmp_path / "cpu.csv")] == [1, 2]


def test_without_baselines_only_halfgnn_runs(tmp_path):
    found = run(tmp_path, "spmm", "--baselines", "--directions", "forward", "--orders", "insertion")
    assert {row.backend for row in found} == {"halfgnn"}


def test_features_must_divide_into_heads():
    with pytest.raises(SystemExit, match="--dims 10 does not divide into --heads 4"):
        cli.main(["spmm", "--quick", "--dims", "10", "--heads", "4"])


@pytest.mark.parametrize("family", ["spmm", "sddmm", "softmax"])
def test_backward_alone(tmp_path, family):
    found = run(tmp_path, family, "--directions", "backward", "--graphs", "tiny-communities", "--orders", "sorted")
    ours = {row.dtype for row in found if row.backend == "halfgnn" and row.ms}
    assert ours == {"bf16", "fp16", "fp32"} and {row.direction for row in found} == {"backward"}


@needs_pyg
def test_pyg_agrees(tmp_path):
    for family in ("spmm", "softmax"):
        found = run(tmp_path, family, "--baselines", "pyg", "--directions", "forward", "--orders", "sorted")
    of_pyg = [row for row in found if row.backend.startswith("pyg")]
    assert {row.backend for row in of_pyg} == {"pyg scatter", "pyg conv", "pyg softmax"}
    assert all(row.error < 0.05 for row in of_pyg if row.dtype == "fp32")


@needs_pyg
@pytest.mark.parametrize("model", models.MODELS.values(), ids=lambda model: model.name)
def test_all_ways_to_run_a_model_of_pyg_compute_the_same(model):
    names = models.pyg_names(model.layer.has_heads, ("pyg", "torch.compile"), is_eager=True)
    assert len(names) == 3 + model.layer.has_heads and models.PYG_COMPILED not in names
    assert models.pyg_names(False, ("pyg", "torch.compile"), is_eager=False)[-1] == models.PYG_COMPILED
    graph, outputs, heads = verify.miniature("sorted", torch.int64, "cpu"), [], 2 if model.layer.has_heads else 1
    for name in names:
        network, (topology, _) = train.network_of(model, graph, 8, heads, name), train.topology_of(graph, name)
        x = torch.randn(graph.num_nodes, train._widths(graph)[0], generator=torch.Generator().manual_seed(5))
        with models.context_of(name):
            outputs.append(network(topology, x))
        if name != models.PYG:
            train.check(Config(dtypes=("fp32",)), model, heads, name)
    for out in outputs[1:]:
        torch.testing.assert_close(out, outputs[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "arguments,message",
    [
        (["table", "--rows", "nowhere.csv"], "table: .*nowhere.csv"),
        (["targets", "--rows", "nowhere.csv"], "targets: .*nowhere.csv"),
        (["table", "--into", "nowhere.md"], "table: .*nowhere.md"),
        (["spmm", "--quick", "--threads", "0"], "--threads 0, --budget 0.02: expected positive numbers"),
        (["spmm", "--quick", "--budget", "-1"], "--budget -1.0: expected positive numbers"),
        (["train", "--quick", "--hidden", "0"], "--hidden 0"),
        (["spmm", "--quick", "--out", __file__], "expected a folder"),
    ],
)
def test_what_cannot_be_is_told_in_a_line(arguments, message):
    with pytest.raises(SystemExit, match=message):
        cli.main(arguments)


# ---- graphs and checks ---------------------------------------------------------------------------------------------------------


def test_graphs_are_seeded_and_orders_hold_the_same_edges():
    insertion, again, ordered = (
        graphs.named("tiny", order, torch.int64) for order in ("insertion", "insertion", "sorted")
    )
    assert torch.equal(insertion.src, again.src) and torch.equal(insertion.dst, again.dst)

    def edges(graph):
        return sorted(zip(graph.src.tolist(), graph.dst.tolist()))

    assert edges(insertion) == edges(ordered)
    assert ordered.halfgnn.csc().edge_ids is None and insertion.halfgnn.csc().edge_ids is not None


def test_communities_are_symmetric_and_mixed_as_told():
    recipe = graphs.Recipe(400, 40_000, 0.3, 0.3, communities=4, mix=0.9, symmetric=True)
    nodes = graphs._Nodes(recipe, recipe.src_skew, torch.Generator().manual_seed(0))
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
    (whole,) = with_backward(torch.sin, (x,))()[1:]
    work = backward_of(torch.sin, (x,))
    assert torch.equal(work()[0], whole) and torch.equal(work()[0], whole)


def test_pure_gather_is_for_gpus():
    graph = graphs.named("tiny", "sorted", torch.int64)
    limit = gather.backend(graph, 16, torch.float16)
    with pytest.raises(Unavailable, match="CUDA kernel"):
        limit.make()
    case = _case()
    gather.add_to(case)
    assert case.backends == []


def test_sample_has_the_hub_and_its_edges(monkeypatch):
    monkeypatch.setattr(verify, "SAMPLE_EDGES", 40)
    graph = graphs.named("tiny", "insertion", torch.int32)
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


def _case(*backends):
    return Case("spmm", "x", "forward", graphs.named("tiny", "sorted", torch.int64), 1, 8, list(backends))


def _refuse(error):
    def make():
        raise error

    return make


def test_baselines_that_cannot_take_part_are_noted_and_ours_must():
    config = Config(effort=timing.QUICK)
    source = rows.provenance([])
    missing = Backend("dgl", torch.float16, _refuse(Unavailable("no fp16")))
    broken = Backend("torch.sparse", torch.float16, _refuse(RuntimeError("not implemented\nat line 1")))
    present = Backend("index_add", torch.float16, lambda: lambda: None)
    found = runner.run_case(_case(missing, broken, present), config, source)
    notes = {row.backend: (row.ms is None, row.note) for row in found}
    assert notes == {
        "dgl": (True, "no fp16"),
        "torch.sparse": (True, "refused: RuntimeError: not implemented"),
        "index_add": (False, ""),
    }
    with pytest.raises(RuntimeError, match="not implemented"):
        runner.run_case(_case(dataclasses.replace(broken, name="halfgnn")), config, source)
