"""torch.export and TorchScript of the modules, and of torch_geometric's own under the drop-in."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("torch_geometric")

import torch_geometric.nn as upstream

import halfgnn.pyg
from halfgnn.pyg.drop_in import thresholds
from tests import support_export
from tests.support_export import ALL, DRAWN_FOR

CASES = {str(case): case for case in support_export.pyg_cases(halfgnn.pyg)}
THEIRS = {str(case): case for case in support_export.pyg_cases(upstream)}
SHOWN = support_export.shown()
NO_MODULES = {"PadToBuckets", "ToGraph", "accelerate", "graph_of", "patch", "reset_stats", "stats", "unpatch"}
# Their own code reads values of tensors: without the drop-in they do not export either.
READ_VALUES = ("HeteroLinear", "RGCNConv")
SCRIPTED = ["GCNConv", "SAGEConv", "GINEConv", "LGConv", "EdgeConv"]  # a few of those of torch_geometric that compile


def test_every_module_is_tried_and_shown():
    assert {case.module for case in CASES.values()} == set(halfgnn.pyg.__all__) - NO_MODULES
    if SHOWN:
        titles = {support_export.title("halfgnn.pyg", case) for case in CASES.values()}
        assert {name for name in SHOWN if name.startswith("`halfgnn.pyg.")} == titles


@pytest.mark.parametrize("name,precision", support_export.of_precisions(CASES))
def test_modules_export(name, precision):
    support_export.check_export(CASES[name], precision)


@pytest.mark.parametrize("name", ["GCNConv", "GATConv-edges"])
def test_modules_export_strictly(name):
    model = support_export.model_of(CASES[name])
    support_export.check_same(CASES[name], model, support_export.exported(CASES[name], model, strict=True).module())


@pytest.mark.parametrize(
    "name",
    [name for name in THEIRS if name not in READ_VALUES] if ALL else ["GCNConv", "GATv2Conv", "TransformerConv"],
)
def test_unmodified_modules_export_under_the_drop_in(name, monkeypatch):
    """The program holds halfgnn's operators, or torch_geometric's."""
    monkeypatch.setattr(thresholds, "LIMITS", {})
    model = support_export.model_of(THEIRS[name])
    with halfgnn.pyg.accelerate(fuse=True):
        program = support_export.exported(THEIRS[name], model)
    assert "halfgnn_pyg" not in support_export.code_of(program)
    support_export.check_same(THEIRS[name], model, program.module())


@pytest.mark.skipif(
    not ALL, reason="it compiles modules for half a minute each; HALFGNN_TEST_ALL=1 (make test-all) runs it"
)
@pytest.mark.parametrize("name,column", support_export.of_columns(CASES))
def test_the_table_says_what_works(name, column):
    assert support_export.works(CASES[name], column) == SHOWN[support_export.title("halfgnn.pyg", CASES[name])][column]


@pytest.mark.skipif(
    not ALL,
    reason="it compiles for half a minute, as that of halfgnn.nn does; HALFGNN_TEST_ALL=1 (make test-all) runs it",
)
def test_a_loaded_program_needs_halfgnn_alone(tmp_path):
    support_export.check_loads({name: CASES[name] for name in ("GCNConv", "EdgeConv", "RGCNConv")}, tmp_path)


def test_an_exported_program_refuses_ids_out_of_range():
    case = CASES["SAGEConv"]
    program = support_export.exported(case, support_export.model_of(case)).module()
    x, edge_index = support_export.inputs_of(case)
    for row, wrong in ((0, DRAWN_FOR[0]), (1, DRAWN_FOR[0]), (0, -1), (1, -1)):
        bad = edge_index.clone()
        bad[row, 3] = wrong
        with pytest.raises(RuntimeError, match="edge_index holds an id that is no row of x"):
            program(x, bad)


@pytest.mark.parametrize("patched", [False, True])
@pytest.mark.parametrize("name", SCRIPTED)
def test_modules_script_where_torch_geometrics_do(name, patched):
    case = (THEIRS if patched else CASES)[name]
    model, args = support_export.model_of(case), support_export.inputs_of(case)
    expected = model(*args)
    if patched:
        with halfgnn.pyg.accelerate(fuse=True):
            script = torch.jit.script(model)
    else:
        script = torch.jit.script(model)
    torch.testing.assert_close(script(*args), expected)
    torch.testing.assert_close(model(*args), expected)  # the module itself is what it was
