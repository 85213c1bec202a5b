"""Which module imports which, read from the sources: imports inside functions and under TYPE_CHECKING count."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

Arrows = dict[str, set[str]]  # module -> the modules it imports


class Module(NamedTuple):
    """is_package: it is an __init__.py, so that relative imports start at itself."""

    is_package: bool
    source: str


def modules_of(root: Path, packages: tuple[str, ...]) -> dict[str, Module]:
    """The modules of these packages by their full names; a package itself is its __init__.py."""
    modules = {}
    for file in sorted(file for package in packages for file in (root / package).rglob("*.py")):
        parts = file.relative_to(root).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        modules[".".join(parts[:-1] if is_package else parts)] = Module(is_package, file.read_text())
    return modules


def arrows_of(modules: dict[str, Module]) -> Arrows:
    """`from package import x` is an arrow to the module package.x if there is one, and otherwise to the package.

    Importing a.b runs a/__init__.py as well. That is no arrow: a package may import its own modules.
    """
    return {name: {target for target, _ in imports_of(name, modules)} for name in modules}


def imports_of(name: str, modules: dict[str, Module]) -> Iterator[tuple[str, str]]:
    """(module, name that is taken from it, or "" for the module itself) for each import of another one of `modules`."""
    package = name if modules[name].is_package else name.rpartition(".")[0]
    for level, base, names in _statements(modules[name].source):
        base = _absolute(package, level, base)
        for target in [_resolved(base, taken, modules) for taken in names]:
            if target[0] in modules and target[0] != name:
                yield target


@functools.cache
def _statements(source: str) -> list[tuple[int, str, list[str]]]:
    """(number of leading dots, module, names that are taken from it; "" for the module itself) of each import."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found.extend((0, alias.name, [""]) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            found.append((node.level, node.module or "", [alias.name for alias in node.names]))
    return found


def _absolute(package: str, level: int, base: str) -> str:
    if level == 0:
        return base
    above = package.split(".")[: len(package.split(".")) - level + 1]
    return ".".join([*above, *([base] if base else [])])


def _resolved(base: str, name: str, modules: dict[str, Module]) -> tuple[str, str]:
    return (f"{base}.{name}", "") if f"{base}.{name}" in modules else (base, name)


def circles_of(arrows: Arrows) -> list[list[str]]:
    """Sets of modules each of which imports, be it through others, each other one of the set."""
    reached = {name: _reached_from(name, arrows) for name in arrows}
    circles = {tuple(sorted({name, *(m for m in reached[name] if name in reached[m])})) for name in arrows}
    return sorted(list(circle) for circle in circles if len(circle) > 1)


def _reached_from(name: str, arrows: Arrows) -> set[str]:
    reached: set[str] = set()
    ahead = [name]
    while ahead:
        new = arrows[ahead.pop()] - reached
        reached |= new
        ahead.extend(new)
    return reached
