"""The stub of halfgnn.ops says what the operators are: their names, arguments, defaults and docstrings."""

from __future__ import annotations

import ast
import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest

import halfgnn
from halfgnn import ops
from tests import stub

ROOT = Path(__file__).resolve().parents[2]


def functions():
    return {node.name: node for node in ast.parse(stub.FILE.read_text()).body if isinstance(node, ast.FunctionDef)}


def test_stub_is_what_the_tables_give():
    assert stub.FILE.read_text() == stub.text(), "write it again: python -m tests.stub --update"


def test_every_operator_is_in_the_stub():
    imported = {name for names in stub.MODULES.values() for name in names}
    assert {*functions(), *imported} == set(ops.__all__) and not imported & set(functions())


@pytest.mark.parametrize("name", sorted(stub.tables()))
def test_arguments_and_docstring(name):
    node, operator = functions()[name], getattr(ops, name)
    signature = inspect.signature(operator)
    defaults = [*[None] * (len(node.args.args) - len(node.args.defaults)), *node.args.defaults]
    written = [(argument, default, "POSITIONAL_OR_KEYWORD") for argument, default in zip(node.args.args, defaults)]
    written += [(a, default, "KEYWORD_ONLY") for a, default in zip(node.args.kwonlyargs, node.args.kw_defaults)]
    assert [(a.arg, default and ast.literal_eval(default), kind) for a, default, kind in written] == [
        (p.name, None if p.default is p.empty else p.default, p.kind.name) for p in signature.parameters.values()
    ]
    assert [default is None for _, default, _ in written] == [
        p.default is p.empty for p in signature.parameters.values()
    ]
    annotations = [a.annotation and ast.unparse(a.annotation) for a, _, _ in written]
    assert annotations == [None if p.annotation is p.empty else p.annotation for p in signature.parameters.values()]
    assert ast.unparse(node.returns) == signature.return_annotation
    assert ast.get_docstring(node, clean=False) == operator.__doc__


def test_marker_and_stub_are_packed():
    tomllib = pytest.importorskip("tomllib")  # since Python 3.11
    data = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    assert data == {"halfgnn": ["py.typed"], "halfgnn.ops": ["*.pyi"]}
    assert (Path(halfgnn.__file__).parent / "py.typed").exists() and stub.FILE.exists()
    assert "recursive-include halfgnn py.typed *.pyi" in (ROOT / "MANIFEST.in").read_text().splitlines()


PROGRAM = """\
import torch
import halfgnn.nn
from halfgnn import Graph, ops
from halfgnn.ops import copy_u_mean

def step(g: Graph, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y: torch.Tensor = ops.u_mul_e_sum(g, x, w, out_dtype=torch.float32)
    e = ops.u_dot_v(g, y, copy_u_mean(g, x))
    rows: torch.Tensor = ops.gather_rows(x, g.csc().indices)
    return ops.copy_e_max(g, ops.edge_softmax(g, e, norm_by="dst") + rows)

def graphs(ids: torch.Tensor, edge_index: torch.Tensor, sort: bool) -> list[Graph]:
    g: Graph = Graph.from_edges(ids, ids)
    h, order = Graph.from_edges(ids, ids, sort=True, num_src=3)
    perm: torch.Tensor = order
    i: Graph = Graph.from_edge_index(edge_index, num_nodes=4, sort=False)
    j, perm = Graph.from_edge_index(edge_index, sort=True)
    made = Graph.from_edges(ids, ids, sort=sort)
    return [g, h, i, j, made if isinstance(made, Graph) else made[0]]

def wrong_graphs(ids: torch.Tensor, edge_index: torch.Tensor) -> None:
    g, order = Graph.from_edges(ids, ids)  # WRONG: no permutation
    h: Graph = Graph.from_edges(ids, ids, sort=True)  # WRONG: a pair
    i: Graph = Graph.from_edge_index(edge_index, sort=True)  # WRONG: a pair
    Graph.from_edge_index(edge_index, num_node=3)  # WRONG: name of an argument

def attentions(g: Graph, x: torch.Tensor, with_weights: bool) -> torch.Tensor:
    out: torch.Tensor = ops.dot_attention(g, x, x, x) + ops.gat_attention(g, x, x[..., 0], x[..., 0])
    out, weights = ops.gatv2_attention(g, x, x, x[0], return_weights=True)
    found = ops.dot_attention(g, x, x, x, return_weights=with_weights)
    conv = halfgnn.nn.GATConv(8, 8, 2)
    conv.forward(g, x)
    return weights if isinstance(found, torch.Tensor) else found[1]

def wrong_attentions(g: Graph, x: torch.Tensor) -> None:
    ops.dot_attention(g, x, x, x).shap  # WRONG: name of an attribute of a Tensor
    pair: tuple[torch.Tensor, torch.Tensor] = ops.dot_attention(g, x, x, x)  # WRONG: no pair
    halfgnn.nn.GATConv(8, 8, 2).forward("graph", x)  # WRONG: type

def wrong(g: Graph, x: torch.Tensor) -> None:
    ops.copy_u_mean("g", x)  # WRONG: type
    ops.u_dot_v((g, x), x, x)  # WRONG: type
    ops.u_mul_e_sum(g, x)  # WRONG: missing
    ops.copy_u_mean(g, "x")  # WRONG: type
    ops.u_dot_v(g, x, x, dtype=torch.float32)  # WRONG: name of an argument
    ops.u_mul_e_summ(g, x, x)  # WRONG: name of an operator
    n: int = ops.copy_v(g, x)  # WRONG: result
    ops.gspmm(g, "mul", "sum", x)  # WRONG: missing
"""


def test_mypy_reads_it(tmp_path):
    pytest.importorskip("mypy")
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = [sys.executable, "-m", "mypy", "--no-error-summary", str(program)]
    result = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "MYPYPATH": str(ROOT)}, capture_output=True, text=True
    )
    found = {int(line.split(":")[1]) for line in result.stdout.splitlines() if " error: " in line}
    assert found == {number for number, line in enumerate(PROGRAM.splitlines(), 1) if "# WRONG" in line}, result
