"""The predicted tables of docs/tuning.md are those of the present model."""

import re

import pytest

from . import tables
from .planners import Times


def test_the_document_has_the_tables_of_the_model(planners):
    if not tables.DOCUMENT.exists():
        pytest.skip("the documents are not here")
    text = tables.DOCUMENT.read_text()
    assert tables.with_tables(text, planners) == text, "python -m laboratory.plan --update"


def test_tables_are_put_between_their_markers(planners):
    names = list(tables.TABLES)
    text = "\n".join(f"before {name}\n{tables.BEGIN.format(name)} old {tables.END.format(name)}" for name in names)
    updated = tables.with_tables(text, planners)
    assert " old " not in updated and all(f"before {name}" in updated for name in names)
    assert tables.with_tables(updated, planners) == updated
    with pytest.raises(ValueError, match="no markers of the table 'H200'"):
        tables.with_tables(text.replace("H200", "H100"), planners)


def test_cells():
    fast, slow = Times(1e-3, 2e-3, 0.5e-3), Times(4e-3, 1e-3, 0.1e-3)
    assert tables.cell(fast) == "2.00 (HBM)"
    assert tables.cell([fast, slow]) == "6.00 (L2)"
    assert tables.cell(fast, Times(1e-3, 0.5e-3, 0)) == "2.00, 50 % (HBM)"
    assert tables.cell(Times(0, 0, 0.0612e-3)) == "0.061 (issue)"
    assert [tables.milliseconds(1e-3 * value) for value in (0.0374, 0.25, 1, 9.996, 18, 123.4)] == [
        "0.037", "0.25", "1.00", "10.0", "18.0", "123",
    ]  # fmt: skip


def test_no_operator_is_faster_than_its_bytes(planners):
    """The pure gather is the fastest, and no time is below that of the rows it reads at the rate of the L2 cache."""
    for name in (tables.H100, tables.H200):
        device = planners.gpus()[name]
        model = tables.Model(planners, device)
        for graph, (_, edges) in tables.GRAPHS.items():
            for width in tables.WIDTHS:
                gather = model.gather(graph, width).bound()
                assert gather >= 0.999 * edges * 2 * width / device.cache
                assert min(model.sums(graph, width)[0].bound(), model.dots(graph, width).bound()) >= 0.999 * gather
                assert sum(t.bound() for t in model.backward(graph, width)) >= gather


def test_records_of_edges_save_time(planners):
    model, graph = tables.Model(planners, planners.gpus()[tables.H100]), "reddit-size"

    def backward(passes):
        return sum(times.bound() for times in passes[1])

    assert backward(model.gatv2(graph, 1, 128)) < 0.8 * backward(model.gatv2(graph, 1, 128, with_records=False))
    # Records of 8 x 32 do not fit.
    assert model.gatv2(graph, 8, 32)[1][1].issue == model.gatv2(graph, 8, 32, with_records=False)[1][1].issue


def test_every_cell_of_a_table_is_filled(planners):
    for table in tables.TABLES.values():
        lines = table(planners).splitlines()
        assert len({line.count("|") for line in lines}) == 1 and len(lines) > 3
        assert not re.search(r"\| *\||nan|inf", "\n".join(lines))
