"""The tables of docs/operators.md and docs/graph.md that list what a user can call, from names, signatures and docstrings.

python -m tests.api_tables            prints them
python -m tests.api_tables --update   writes them into the pages
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import halfgnn
from halfgnn import ops

DOCS = Path(__file__).resolve().parents[1] / "docs"
CLASSES = (halfgnn.Graph, halfgnn.HeteroGraph)


def calls() -> str:
    """A row for each operator of halfgnn.ops that is written, and for each family of those that are generated."""
    written = [name for name in ops.__all__ if name not in _generated()]
    rows = [
        f"| `{name}{_arguments(getattr(ops, name))}` | {_summary(getattr(ops, name))} |" for name in sorted(written)
    ]
    return "\n".join(["| `halfgnn.ops` | result |", "|---|---|", *rows, *_families()])


def _generated() -> dict[str, tuple[str, str]]:
    """Name: (family, docstring)."""
    found = {}
    for name in ops.__all__:
        match = re.fullmatch(r"(u_\w+_e|copy_[ue])_(sum|mean|max|min)|([uve])_(\w+)_([uve])|copy_[uve]", name)
        if match:
            found[name] = match[1] or match[4] or "copy"
    return found


def _families() -> Iterator[str]:
    families: dict[str, list[str]] = {}
    for name, family in _generated().items():
        families.setdefault(family, []).append(name)
    for names in families.values():
        arguments = _arguments(getattr(ops, names[0]))
        first, *others = names
        listed = ", ".join([f"`{first}{arguments}`", *(f"`{name}`" for name in others)])
        yield f"| {listed} | {_summary(getattr(ops, first))} |"


def methods(kind: type) -> str:
    """A row for each public method and property of a class."""
    rows = []
    for name in (name for name in vars(kind) if not name.startswith("_")):
        member = getattr(kind, name)
        arguments = "" if isinstance(member, property) else _arguments(member)
        rows.append(f"| `{name}{arguments}` | {_summary(member)} |")
    return "\n".join([f"| `halfgnn.{kind.__name__}` | |", "|---|---|", *rows])


def _summary(function) -> str:
    """The first paragraph of a docstring, without its arguments."""
    text = " ".join(inspect.getdoc(function).split("\n\n")[0].split())
    return text.replace("|", "\\|").replace("*", "\\*").replace("<", "&lt;")  # Markdown shows them as they are


def _arguments(function) -> str:
    """Names only; a star before those that must be named, an equals sign after those that may be left out."""
    parts, is_keyword = [], False
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name == "self":
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not is_keyword:
            parts.append("*")
            is_keyword = True
        parts.append(
            parameter.name if parameter.default is parameter.empty else f"{parameter.name}={parameter.default!r}"
        )
    return f"({', '.join(parts)})"


def pages() -> dict[Path, dict[str, str]]:
    """File: {name of a table in it: text}."""
    return {
        DOCS / "operators.md": {"calls": calls()},
        DOCS / "graph.md": {kind.__name__: methods(kind) for kind in CLASSES},
    }


def with_tables(text: str, tables: dict[str, str]) -> str:
    for name, table in tables.items():
        begin, end = f"<!-- {name}: begin -->\n", f"\n<!-- {name}: end -->"
        before, rest = text.split(begin)
        text = before + begin + table + end + rest.split(end.strip())[1]
    return text


if __name__ == "__main__":
    for path, tables in pages().items():
        if sys.argv[1:] == ["--update"]:
            path.write_text(with_tables(path.read_text(), tables))
        elif sys.argv[1:]:
            raise SystemExit(__doc__)
        else:
            print(*tables.values(), sep="\n\n")
