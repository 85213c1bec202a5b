"""What programs need that serve a model: see docs/serving.md."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.utils._pytree import tree_flatten


def merge_repeats(program: ExportedProgram) -> ExportedProgram:
    """A program that computes once what several layers compute alike, as the adjacency of their edge_index or its normalisation.

    An eager program keeps these with the tensor; torch.export writes them down for each layer, and no later stage looks for
    repeats. Call it between `torch.export.export` and `torch._inductor.aoti_compile_and_package` or `torch.export.save`.

    Args:
        program: of `torch.export.export`. It is not changed.

    Returns:
        An ExportedProgram with the same inputs, outputs and results. Operators that draw random numbers, or that write to their
        inputs, are left alone.

    Raises:
        TypeError: program is no ExportedProgram.

    Source: common subexpressions are eliminated by value numbering, as in Cocke, "Global common subexpression elimination" (1970).
    """
    if not isinstance(program, ExportedProgram):
        raise TypeError(f"program is a {type(program).__name__}; expected a torch.export.ExportedProgram")
    program = program.run_decompositions({})  # a copy without operators that write
    graph = program.graph_module.graph
    (output,) = (node for node in graph.nodes if node.op == "output")
    results = set(output.all_input_nodes)  # the program's signature has their names
    first: dict[Hashable, fx.Node] = {}
    for node in list(graph.nodes):
        key = _value_of(node)
        if key is None:
            continue
        same = first.setdefault(key, node)
        if same is not node and node not in results:
            node.replace_all_uses_with(same)
            graph.erase_node(node)
    graph.lint()
    program.graph_module.recompile()
    return program


def _value_of(node: fx.Node) -> Hashable | None:
    """What two nodes have in common that compute the same; None if that is not known."""
    if node.op != "call_function" or not _is_function_of_inputs(node.target):
        return None
    arguments, form = tree_flatten((node.args, node.kwargs))
    # 1, 1.0 and True are equal, and so are 0.0 and -0.0.
    values = tuple((type(value), repr(value) if isinstance(value, float) else value) for value in arguments)
    try:
        key = (node.target, values, str(form))
        hash(key)
    except TypeError:
        return None
    return key


def _is_function_of_inputs(target: Any) -> bool:
    if isinstance(target, torch._ops.OpOverload):
        is_check = "_assert" in target._schema.name  # which need not be made twice
        is_random = torch.Tag.nondeterministic_seeded in target.tags
        return not target._schema.is_mutable and not is_random and bool(target._schema.returns or is_check)
    return getattr(target, "__module__", None) in ("_operator", "math")
