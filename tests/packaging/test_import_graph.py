"""No module of halfgnn or of the benchmarks imports itself through others, and layers know those below them only."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.packaging import import_graph
from tests.packaging.import_graph import Module

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("halfgnn", "benchmarks")
# Each may import those before it and itself. halfgnn itself, which imports them for the user, is above all.
LAYERS = (
    ("halfgnn._stable_abi",),
    ("halfgnn._library",),
    ("halfgnn.common", "halfgnn.dgl_index", "halfgnn.reference"),
    ("halfgnn.adjacency", "halfgnn.padding"),
    ("halfgnn.graph",),
    ("halfgnn.heterograph",),
    ("halfgnn.graph_argument",),
    ("halfgnn.node_order", "halfgnn.row_schedule"),
    ("halfgnn.ops", "halfgnn.tiles"),
    ("halfgnn.graphs_by_tensor",),
    ("halfgnn.nn", "halfgnn.drop_in"),
    ("halfgnn.expressions",),
    ("halfgnn.compiled",),
    ("halfgnn.dataloading", "halfgnn.pyg"),
    ("halfgnn.distributed",),
    ("halfgnn.compat", "halfgnn.dgl"),
    ("halfgnn",),
)


def layer_of(name: str) -> tuple[int, str]:
    """(number of the layer, its part that the module belongs to)"""
    parts = [(number, part) for number, layer in enumerate(LAYERS) for part in layer]
    return next((number, part) for number, part in parts if name == part or name.startswith(f"{part}."))


def wrong_arrows(modules: dict[str, Module]) -> list[str]:
    """Imports of a module of the same layer, but for its own package, or of one above."""
    arrows = import_graph.arrows_of({name: module for name, module in modules.items() if name.startswith("halfgnn")})
    return [
        f"{name} -> {target}"
        for name, targets in arrows.items()
        for target in targets
        if layer_of(target)[1] != layer_of(name)[1] and layer_of(target)[0] >= layer_of(name)[0]
    ]


def private_imports(modules: dict[str, Module]) -> list[str]:
    """Imports of modules and names with a leading underscore from outside of what they belong to."""
    return [
        f"{name} -> {target} {taken}".strip()
        for name in modules
        for target, taken in import_graph.imports_of(name, modules)
        for owner in _owners(target, taken)
        if not f"{name}.".startswith(f"{owner}.")
    ]


def _owners(target: str, taken: str) -> Iterator[str]:
    """Whom the private parts of these names belong to: a module to its package, a name to its module."""
    parts = target.split(".")
    for place, part in enumerate(parts):
        if part.startswith("_"):
            yield ".".join(parts[:place])
    if taken.startswith("_"):
        yield target


def circles(modules: dict[str, Module]) -> list[list[str]]:
    return import_graph.circles_of(import_graph.arrows_of(modules))


@pytest.fixture(scope="module")
def modules():
    return import_graph.modules_of(ROOT, PACKAGES)


def of_package(modules: dict[str, Module]) -> dict[str, Module]:
    return {name: module for name, module in modules.items() if name.startswith("halfgnn")}


def changed(modules: dict[str, Module], name: str, code: str) -> dict[str, Module]:
    """The modules with lines added to one of them."""
    return {**modules, name: modules[name]._replace(source=f"{modules[name].source}\n{code}\n")}


def test_no_module_imports_itself_through_others(modules):
    assert len(modules) > 80 and circles(modules) == []


def test_layers_know_those_below_them_only(modules):
    assert wrong_arrows(modules) == []


def test_what_is_private_stays_where_it_belongs(modules):
    assert private_imports(of_package(modules)) == []


@pytest.mark.parametrize(
    "name, line, arrow",
    [
        (
            "halfgnn.pyg.modules.gat_conv",
            "from ...ops._operands import graph_of",
            "halfgnn.pyg.modules.gat_conv -> halfgnn.ops._operands graph_of",
        ),
        (
            "halfgnn.pyg.modules.gat_conv",
            "from ...ops import _operands",
            "halfgnn.pyg.modules.gat_conv -> halfgnn.ops._operands",
        ),
        (
            "halfgnn.pyg.modules.base",
            "from ...graph import _num_nodes",
            "halfgnn.pyg.modules.base -> halfgnn.graph _num_nodes",
        ),
    ],
)
def test_a_private_import_is_seen(modules, name, line, arrow):
    assert private_imports(changed(of_package(modules), name, line)) == [arrow]


IN_A_FUNCTION = "def f():\n    {}"
FOR_TYPES = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    {}"


@pytest.mark.parametrize("code", ["{}", IN_A_FUNCTION, FOR_TYPES], ids=["top", "function", "types"])
@pytest.mark.parametrize(
    "name, line",
    [
        ("halfgnn.graph", "from .dgl import graph_from_dgl"),
        ("halfgnn.graph", "import halfgnn.heterograph"),
        ("halfgnn.ops.spmm", "from . import gspmm"),
        ("halfgnn.ops.sddmm", "from halfgnn.nn import GATConv"),
        ("benchmarks.graphs", "from .baselines.dgl import check_dgl"),
    ],
)
def test_a_circle_is_seen(modules, name, line, code):
    (circle,) = circles(changed(modules, name, code.format(line)))
    assert name in circle


@pytest.mark.parametrize(
    "name, line, arrow",
    [
        ("halfgnn.ops.spmm", "from ..nn import rgat", "halfgnn.ops.spmm -> halfgnn.nn.rgat"),
        ("halfgnn.nn.rgat", "from ..pyg import GATConv", "halfgnn.nn.rgat -> halfgnn.pyg"),
        ("halfgnn.pyg.modules.gat_conv", "from ...dgl import patch", "halfgnn.pyg.modules.gat_conv -> halfgnn.dgl"),
        ("halfgnn.graph", "from . import reference, heterograph", "halfgnn.graph -> halfgnn.heterograph"),
        ("halfgnn.reference", "import halfgnn", "halfgnn.reference -> halfgnn"),
    ],
)
def test_an_arrow_up_is_seen(modules, name, line, arrow):
    assert wrong_arrows(changed(modules, name, line)) == [arrow]
