"""Modules of halfgnn.nn in exported programs, whose graph comes as tensors; and the table of docs/serving.md."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

import halfgnn
import halfgnn.nn
from tests import support_export
from tests.support_export import ALL, DRAWN_FOR, OTHER, WIDTH, Case, OnGraph

CASES = {str(case): case for case in support_export.nn_cases()}
SHOWN = support_export.shown()


def test_every_module_is_tried_and_shown():
    assert {case.module for case in CASES.values()} == set(halfgnn.nn.__all__)
    if SHOWN:
        titles = {support_export.title("halfgnn.nn", case) for case in CASES.values()}
        assert {name for name in SHOWN if name.startswith("`halfgnn.nn.")} == titles


@pytest.mark.parametrize("name,precision", support_export.of_precisions(CASES))
def test_modules_export(name, precision):
    support_export.check_export(CASES[name], precision)


@pytest.mark.parametrize("name", ["GATConv", "SAGEConv-mean"])
def test_modules_export_strictly(name):
    model = support_export.model_of(CASES[name])
    support_export.check_same(CASES[name], model, support_export.exported(CASES[name], model, strict=True).module())


@pytest.mark.skipif(
    not ALL, reason="it compiles modules for half a minute each; HALFGNN_TEST_ALL=1 (make test-all) runs it"
)
@pytest.mark.parametrize("name,column", support_export.of_columns(CASES))
def test_the_table_says_what_works(name, column):
    assert support_export.works(CASES[name], column) == SHOWN[support_export.title("halfgnn.nn", CASES[name])][column]


def test_a_loaded_program_needs_halfgnn_alone(tmp_path):
    support_export.check_loads({name: CASES[name] for name in ("GATConv", "PNAConv", "SAGEConv-lstm")}, tmp_path)


@pytest.mark.parametrize("weight", [(), (1,), (WIDTH,)])
def test_lstm_with_weights_of_edges(weight):
    """One number per edge or one per feature, in the order of edge data."""
    case = CASES["SAGEConv-lstm"]
    model = support_export.model_of(case)

    def inputs(size):
        draw = torch.Generator().manual_seed(1)
        return (*support_export.inputs_of(case, size), torch.rand((size[1], *weight), generator=draw))

    auto = torch.export.Dim.AUTO
    shapes = (*[{0: auto}] * 4, ({0: auto},))
    with torch.no_grad():
        program = torch.export.export(model, inputs(DRAWN_FOR), dynamic_shapes=shapes).module()
        for size in (DRAWN_FOR, OTHER):
            torch.testing.assert_close(program(*inputs(size)), model(*inputs(size)))


def test_lstm_of_a_graph_without_edges_or_nodes():
    case = CASES["SAGEConv-lstm"]
    model = support_export.model_of(case)
    program = support_export.exported(case, model).module()
    for num_nodes in (5, 2):
        g = halfgnn.Graph.from_edges(*torch.empty((2, 0), dtype=torch.long), num_src=num_nodes, num_dst=num_nodes)
        x = torch.randn(num_nodes, WIDTH)
        with torch.no_grad():
            torch.testing.assert_close(program(x, *g.csc()), model(x, *g.csc()))


def test_an_lstm_that_was_exchanged_is_refused():
    model = support_export.model_of(CASES["SAGEConv-lstm"])
    model.module.lstm = nn.LSTM(WIDTH, WIDTH, num_layers=2, batch_first=True)
    with pytest.raises(TypeError, match=r"expects a plain nn\.LSTM of one layer"):
        support_export.exported(CASES["SAGEConv-lstm"], model)


def test_nodes_without_in_edges_are_refused_by_the_program():
    case = Case("GATConv", lambda: OnGraph(halfgnn.nn.GATConv(WIDTH, 4, 2)), ("x", "csc"))
    ring = torch.arange(DRAWN_FOR[0])
    full = halfgnn.Graph.from_edges(ring, ring.roll(1), num_src=len(ring), num_dst=len(ring))
    model, x = support_export.model_of(case), torch.randn(len(ring), WIDTH)
    auto = torch.export.Dim.AUTO
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(model, (x, *full.csc()), dynamic_shapes=({0: auto},) * 4).module()
        torch.testing.assert_close(program(x, *full.csc()), model(x, *full.csc()))
        lonely = halfgnn.Graph.from_edges(ring[1:], ring[1:], num_src=len(ring), num_dst=len(ring))
        with pytest.raises(RuntimeError, match="0-in-degree nodes"):
            program(x, *lonely.csc())
