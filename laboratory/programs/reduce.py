"""A smaller program with the same fault."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator

from .draw import Program

_PLAIN = {
    "flow": "source_to_target", "batch": 0, "is_bipartite": False, "id_dtype": "int64", "backward": False, "update": "e",
    "ends_before": None, "precision": "float64", "is_near": False,
    "style": "propagate", "aggr": "sum", "result": "x_j", "has_ties": False,
}  # fmt: skip


def reduced(program: Program, case: int, found: str, fault: Callable[[Program, int], str | None]) -> Program:
    """Without the lines and peculiarities that the fault does not need."""
    kind = _kind(found)
    is_smaller = True
    while is_smaller:
        is_smaller = False
        for smaller in _smaller(program):
            words = fault(smaller, case) if _is_written(smaller) else None
            if words is not None and _kind(words) == kind:
                program, is_smaller = smaller, True
                break
    return program


def _is_written(program: Program) -> bool:
    try:
        compile(program.source(), "<program>", "exec")
    except SyntaxError:  # a block without a statement
        return False
    return True


def _kind(found: str) -> str:
    """What is wrong, without numbers."""
    words = found.split("order ")[1][3:]
    return re.sub(r"[\d.e+-]+|\(.*?\)|gradient .*?:", "", words)[:60]


def _smaller(program: Program) -> Iterator[Program]:
    for name in ("statements", "around"):
        lines = getattr(program, name)
        for place in reversed(range(len(lines))):
            yield _with(program, name, lines[:place] + lines[place + 1 :])
        for place, line in enumerate(lines):
            if line.startswith("    ") and line != "    pass":  # out of its block
                yield _with(program, name, [*lines[:place], line[4:], *lines[place + 1 :]])
    for name, plain in _PLAIN.items():
        if getattr(program, name) != plain:
            yield _with(program, name, plain)
    for place, line in enumerate(program.statements):
        for inner in re.findall(r"\b(?:v\d+|x_j|x_i|e|w)\b", line.partition(" = ")[2]):
            if line != (simple := f"{line.partition(' = ')[0]} = {inner}"):
                yield _with(
                    program, "statements", [*program.statements[:place], simple, *program.statements[place + 1 :]]
                )


def _with(program: Program, name: str, value: object) -> Program:
    changed = copy.copy(program)
    setattr(changed, name, value)
    return changed
