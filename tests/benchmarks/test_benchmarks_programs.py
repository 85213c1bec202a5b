"""Programs of torch_geometric: each one builds, and the drop-in computes what torch_geometric does. Nothing depends on times."""

import contextlib
import dataclasses

import pytest
import torch

pytest.importorskip("halfgnn.pyg", reason="needs torch_geometric", exc_type=ImportError)

from torch_geometric.nn import MessagePassing

from benchmarks import cli, records, table, timing
from benchmarks.programs import data, measure, program, step
from benchmarks.programs.modules import PROGRAMS as MODULES
from benchmarks.programs.records import KEPT, ProgramRow
from benchmarks.programs.registry import PROGRAMS
from benchmarks.table_programs import programs_tables
from tests import support

BY_NAME = {p.name: p for p in PROGRAMS}
MODULES_BY_NAME = {p.name: p for p in MODULES}


@pytest.fixture(scope="module")
def tiny():
    return data.make(data.SIZES["tiny"])


@pytest.fixture(autouse=True)
def _routes_small_calls(monkeypatch):
    support.route_small_calls(monkeypatch)


def test_names_are_distinct_and_there_are_many():
    assert len(BY_NAME) == len(PROGRAMS) >= 60


@pytest.mark.parametrize("name", BY_NAME)
def test_program_agrees(name, tiny, device):
    verdict = step.Check(BY_NAME[name], tiny.to(device)).verdict("fp32", measure.WITH)
    assert verdict.is_right, verdict


@pytest.mark.parametrize("name", MODULES_BY_NAME)
def test_modules_of_halfgnn_make_steps(name, tiny):
    """Those that ``python -m benchmarks compiled --modules`` compiles."""
    found, truth = (step.Step(MODULES_BY_NAME[name], tiny, dtype).values() for dtype in ("fp32", "fp64"))
    assert len(found.errors(truth)) > 1 and max(found.errors(truth)) < step.ERRORS["fp32"]


def _run(tmp_path, *arguments):
    status = cli.main(["programs", "--size", "tiny", "--quick", "--out", str(tmp_path), *arguments])
    return status, records.read(tmp_path / KEPT, ProgramRow)


def test_command_keeps_a_row_per_program_and_dtype(tmp_path, capsys):
    status, found = _run(tmp_path, "--only", "GATConv, edges", "hand: dot", "labelprop", "sparse", "--memory", "--fuse")
    assert status == 0
    names = ["GATConv, edges", "hand: dot attention", "LabelPropagation"]
    pairs = {(name, dtype) for name in names for dtype in ("fp32", "bf16")} | {
        ("GraphConv on a sparse matrix", "fp32"),
        ("SAGEConv on a sparse matrix", "fp32"),
    }
    assert {(row.program, row.dtype) for row in found} == pairs
    for row in found:
        assert row.is_right and min(row.ms_without, row.ms_with, row.ms_fused) > 0
        assert (row.nodes, row.edges) == (30, 90) and row.torch == torch.__version__
        assert row.command.startswith("python -m benchmarks programs") and row.cpu and row.date
    assert all(row.kept_with < row.kept_without for row in found if row.program == "hand: dot attention")
    shown = capsys.readouterr().out
    assert "LabelPropagation" in shown and "tiny, fp32: geometric mean" in shown


def test_wrong_program_has_an_asterisk_and_an_exit_status(tmp_path, capsys, monkeypatch):
    right, original = program.tensors_in, MessagePassing._check_input

    def wrong(result):  # of a step with the drop-in
        return [x if MessagePassing._check_input is original else 1.001 * x for x in right(result)]

    monkeypatch.setattr(step, "tensors_in", wrong)
    status, (row,) = _run(tmp_path, "--only", "SimpleConv", "--dtypes", "fp32")
    assert status == 1 and not row.is_right and row.error > 5e-4
    assert "SimpleConv*" in capsys.readouterr().out.replace(" ", "")


def test_new_sizes_have_new_indices_in_each_step():
    for name in ("medium", "new"):
        made = data.make(data.SIZES[name])
        again = made.for_step()
        assert (again.edge_index is made.edge_index) == (name == "medium")
        assert torch.equal(again.edge_index, made.edge_index) and again.x is made.x


def test_molecules_are_small_and_apart():
    made = data.make(data.SIZES["new"])
    src, dst = made.edge_index
    assert torch.equal(made.batch[src], made.batch[dst]) and made.num_graphs == 32
    assert 50 < made.num_edges / 32 < 60 and 22 < made.num_nodes / 32 < 28


def test_names_are_listed_and_unknown_ones_refused(capsys):
    assert cli.main(["programs", "--list"]) == 0
    assert capsys.readouterr().out.splitlines() == list(BY_NAME)
    with pytest.raises(SystemExit, match="--only nonsense"):
        cli.main(["programs", "--only", "nonsense"])


def _row(name, ms_with, **changes):
    values = dict(
        program=name, size="medium", nodes=3000, edges=45000, dtype="fp32", ms_without=2.0, ms_with=ms_with, ms_fused=None,
        ratio=ms_with / 2, error=1e-7, error_without=1e-7, right="yes", kept_without=400, kept_with=100,
        date="2026-01-01T00:00:00Z", commit="abc", cpu="C (family 1)", kernels="avx2", torch="2", torch_geometric="3",
        command="python -m benchmarks programs",
    )  # fmt: skip
    return ProgramRow(**{**values, **changes})


def test_table_shows_the_last_rows_and_their_mean(tmp_path):
    found = [
        _row("A", 9.0),
        _row("A", 1.0),
        _row("B", 4.0, right="no"),
        _row("B", 0.5, dtype="bf16", kept_without=None),
    ]
    records.append(tmp_path / KEPT, ProgramRow, found)
    marked = "<!-- benchmarks: begin programs -->\n<!-- benchmarks: end programs -->\n"
    text = table.replaced(marked, tmp_path)
    assert "| medium | 3,000 | 45,000 | fp32 | 2 | 1.00 x | **0.500 x*** | 2.00 x | 1 | 25% | 25% |" in text
    assert "| medium | 3,000 | 45,000 | bf16 | 1 | 4.00 x | 4.00 x | 4.00 x | 0 | - | - |" in text
    assert "| A | 2.00 x | - |\n| B | **0.500 x*** | 4.00 x |" in text and "**C, kernels avx2**" in text
    assert programs_tables([]) == []


def test_on_a_gpu_backends_take_turns_twice():
    made, entered = step.Step(BY_NAME["GCNConv"], data.make(data.SIZES["tiny"]), "fp32"), []

    @contextlib.contextmanager
    def noting():
        entered.append(len(entered))
        with measure.WITH():
            yield

    effort = dataclasses.replace(timing.QUICK, is_quick=False)
    found = measure._in_rounds(made, [{}, {"context": noting}], measure.Options(effort))
    assert len(entered) == measure.ROUNDS and all(each.ms > 0 for each in found)
