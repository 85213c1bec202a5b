"""What programs need that serve a model: see docs/serving.md."""

from __future__ import annotations

import operator
from collections.abc import Hashable, Iterable
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.utils._pytree import tree_flatten

from .decompositions import OF_HALFGNN, OF_PYTORCH, RESULTS

_NAMESPACES = ("aten", "halfgnn")  # whose operators say whether they write, or draw random numbers


def merge_repeats(program: ExportedProgram) -> ExportedProgram:
    """A program that computes once what several layers compute alike, as the adjacency of their edge_index or its normalisation.

    An eager program keeps these with the tensor; torch.export writes them down for each layer, and no later stage looks for
    repeats. Call it between `torch.export.export` and `torch._inductor.aoti_compile_and_package` or `torch.export.save`.

    Args:
        program: of `torch.export.export`. Its graph is not changed; parameters and buffers are shared.

    Returns:
        An ExportedProgram with the same inputs, outputs and results, which share memory as before. Left alone are operators that
        draw random numbers, that write to their inputs, or that neither PyTorch nor halfgnn has. `program.run_decompositions({})`
        comes first, by which PyTorch drops operators that return nothing.

    Raises:
        TypeError: program is no ExportedProgram.
        ValueError: it keeps the signatures of modules (`preserve_module_call_signature`).

    Source: common subexpressions are eliminated by value numbering, as in Cocke, "Global common subexpression elimination" (1970).
    """
    _check_program(program)
    return _merged(program.run_decompositions({}))  # of a copy without operators that write


def decompose(program: ExportedProgram) -> ExportedProgram:
    """A program without halfgnn's operators, in those of PyTorch, which other runtimes have too: `torch.onnx.export` takes it.

    It computes in fp32 where halfgnn does, and rounds where halfgnn does, but it makes the messages of all edges. So it is for
    runtimes that cannot call halfgnn. Layers share what they compute alike, as in :func:`merge_repeats`.

    Args:
        program: of `torch.export.export`, of a model in evaluation. It is not changed; parameters and buffers are shared.

    Returns:
        An ExportedProgram with the same inputs and outputs, for the same sizes.

    Raises:
        TypeError, ValueError: as :func:`merge_repeats` does.
        NotImplementedError: an operator of halfgnn has no decomposition (backwards, `gather_rows`, what samples and reorders), has
            dropout, or has a result in use that only a backward reads.
    """
    _check_program(program)
    for part in program.graph_module.modules():
        for node in part.graph.nodes if isinstance(part, fx.GraphModule) else ():
            _check_decomposes(node)
    return _merged(program.run_decompositions({**OF_PYTORCH, **OF_HALFGNN}))


def _check_program(program: ExportedProgram) -> None:
    if not isinstance(program, ExportedProgram):
        raise TypeError(f"program is a {type(program).__name__}; expected a torch.export.ExportedProgram")
    modules = [entry.fqn for entry in program.module_call_graph if entry.fqn and entry.signature]
    if modules:
        raise ValueError(
            f"program keeps the signatures of {', '.join(modules)}; expected one that was exported without"
            " preserve_module_call_signature"
        )


def _check_decomposes(node: fx.Node) -> None:
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or target.namespace not in ("halfgnn", "halfgnn_pyg"):
        return
    name = str(target).removesuffix(".default")
    if target not in OF_HALFGNN:
        raise NotImplementedError(f"{name} has no decomposition; a program with it runs with halfgnn alone")
    users: list[Any] = [user for user in node.users if user.target is operator.getitem and user.users]
    unmade = sorted({user.args[1] for user in users} - {*RESULTS[target]})
    if unmade:
        names = ", ".join(target._schema.returns[place].name for place in unmade)
        raise NotImplementedError(f"the program reads {names} of {name}, for which there is no decomposition")


def _merged(program: ExportedProgram) -> ExportedProgram:
    """See :func:`merge_repeats`. The program's graph is changed."""
    graph = program.graph_module.graph
    (output,) = (node for node in graph.nodes if node.op == "output")
    kept = _memory_of(output.all_input_nodes)
    first: dict[Hashable, fx.Node] = {}
    for node in list(graph.nodes):
        key = _value_of(node)
        if key is None:
            continue
        same = first.setdefault(key, node)
        if same is not node and node not in kept:
            node.replace_all_uses_with(same)
            graph.erase_node(node)
    graph.lint()
    program.graph_module.recompile()
    return program.run_decompositions({})  # which names the sizes that depend on values again


def _memory_of(results: Iterable[fx.Node]) -> set[fx.Node]:
    """The results, and what they may be views of."""
    found: set[fx.Node] = set()
    open_nodes = list(results)
    while open_nodes:
        node = open_nodes.pop()
        if node in found:
            continue
        found.add(node)
        returns = node.target._schema.returns if isinstance(node.target, torch._ops.OpOverload) else ()
        if node.target is operator.getitem or any(one.alias_info for one in returns):
            open_nodes += node.all_input_nodes
    return found


def _value_of(node: fx.Node) -> Hashable | None:
    """What two nodes have in common that compute the same; None if that is not known."""
    if node.op != "call_function" or not _is_function_of_inputs(node.target):
        return None
    arguments, form = tree_flatten((node.args, node.kwargs))
    # 1, 1.0 and True are equal, and so are 0.0 and -0.0.
    values = tuple((type(value), repr(value) if isinstance(value, float | complex) else value) for value in arguments)
    key = (node.target, values, str(form))
    try:
        hash(key)
    except TypeError:
        return None
    return key


def _is_function_of_inputs(target: Any) -> bool:
    if isinstance(target, torch._ops.OpOverload):
        is_check = target in (torch.ops.aten._assert_async.msg, torch.ops.aten._assert_async.default)
        is_known = target.namespace in _NAMESPACES and torch.Tag.nondeterministic_seeded not in target.tags
        return is_known and not target._schema.is_mutable and bool(target._schema.returns or is_check)
    return getattr(target, "__module__", None) in (operator.getitem.__module__, "math")
