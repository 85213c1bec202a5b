"""The mutants of a source file. Each changes one expression or statement of its syntax tree."""

from __future__ import annotations

import ast
import copy
import difflib
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip
# Calls whose strings people read: messages, and the names of arguments in them.
_SPEAKS = re.compile(r"(^|_)(check|as|warn|require|refuse|getattr|put)|Error$|Warning$")
# Calls of these methods may be replaced by their object.
_CASTS = {"to", "type", "view", "reshape", "expand"}


@dataclass(frozen=True)
class Mutant:
    path: str  # relative to the repository
    lines: tuple[int, ...]  # lines of which a test must execute one to reach the mutant
    function: str  # the function that contains it; "" if it runs at import
    start: int  # offsets of the bytes that `text` replaces
    stop: int
    text: str
    kind: str

    def source(self, original: str) -> str:
        data = original.encode()
        return (data[: self.start] + self.text.encode() + data[self.stop :]).decode()

    def diff(self, original: str) -> str:
        """The lines that differ, without the empty lines that keep later lines at their numbers."""
        pair = original.splitlines(), self.source(original).splitlines()
        lines = [line for line in difflib.unified_diff(*pair, lineterm="", n=0) if line.strip("+- ")]
        return "\n".join(line for line in lines if not line.startswith("@@"))

    def key(self, original: str) -> str:
        """A name for the mutant made from its text, so that it is recognised after lines have moved."""
        return f"{self.path} {self.function}: {' '.join(self.diff(original).split())}"


class _Finder:
    def __init__(self, path: str, source: str) -> None:
        self.path, self.source = path, source
        self.offsets = [0]
        for line in source.encode().splitlines(keepends=True):
            self.offsets.append(self.offsets[-1] + len(line))
        self.found: list[Mutant] = []
        self.function = ""
        self.last: ast.AST | None = None  # statement of the function
        self.statement: ast.AST = ast.parse(source)
        self.visit_all(self.statement)

    def span(self, node: ast.AST) -> tuple[int, int]:
        start = self.offsets[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined]
        return start, self.offsets[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined]

    def text(self, node: ast.AST) -> str:
        start, stop = self.span(node)
        return self.source.encode()[start:stop].decode()

    def add(self, node: ast.AST, text: str, kind: str) -> None:
        padding = "\n" * (node.end_lineno - node.lineno - text.count("\n"))  # type: ignore[attr-defined]
        if isinstance(node, ast.expr) and not isinstance(node, ast.Constant):
            text = f"({text}{padding})"
        else:
            text += padding
        lines = {self.statement.lineno, *range(node.lineno, node.end_lineno + 1)}  # type: ignore[attr-defined]
        self.found.append(Mutant(self.path, tuple(sorted(lines)), self.function, *self.span(node), text, kind))

    def changed(self, node: ast.AST, kind: str, **fields: object) -> None:
        other = copy.copy(node)
        for name, value in fields.items():
            setattr(other, name, value)
        self.add(node, ast.unparse(other), kind)

    # ---- the walk ----------------------------------------------------------------------------------------------------

    def visit_all(self, node: ast.AST, skip: tuple[str, ...] = ()) -> None:
        for name, value in ast.iter_fields(node):
            for child in value if isinstance(value, list) else [value]:
                if name not in skip and isinstance(child, ast.AST):
                    self.visit(child, node)

    def visit(self, node: ast.AST, parent: ast.AST) -> None:
        before = self.statement
        if isinstance(node, ast.stmt):
            self.statement = node
        method = getattr(self, f"visit_{type(node).__name__}", None)
        if method is None:
            self.visit_all(node)
        else:
            method(node, parent)
        self.statement = before

    def visit_FunctionDef(self, node: ast.FunctionDef, _: ast.AST) -> None:
        if node.name in ("__repr__", "extra_repr"):
            return
        names = [ast.unparse(decorator) for decorator in node.decorator_list]
        if "overload" in names:
            return
        before, self.function = self.function, ""  # defaults and decorators run at import
        for decorator in node.decorator_list:
            if ast.unparse(decorator) == "staticmethod":
                continue  # it makes no difference for calls on the class
            start, stop = self.span(decorator)
            padding = "\n" * self.text(decorator).count("\n")
            self.found.append(Mutant(self.path, (node.lineno,), "", start - 1, stop, padding, "decorator dropped"))
        self.visit_all(node.args, skip=("args", "posonlyargs", "kwonlyargs", "vararg", "kwarg"))
        self.function, self.last = f"{before}.{node.name}" if before else node.name, node.body[-1]
        for child in node.body:
            self.visit(child, node)
        self.function = before

    visit_AsyncFunctionDef = visit_FunctionDef

    def nothing(self, node: ast.AST, parent: ast.AST) -> None:
        """The node and its parts are not mutated."""

    visit_Import = visit_ImportFrom = visit_JoinedStr = visit_Assert = visit_Global = nothing

    def visit_AnnAssign(self, node: ast.AnnAssign, _: ast.AST) -> None:
        if node.value is not None:
            self.visit(node.value, node)

    def visit_Assign(self, node: ast.Assign, _: ast.AST) -> None:
        targets = {name.id for target in node.targets for name in ast.walk(target) if isinstance(name, ast.Name)}
        if "__all__" in targets:
            return
        reads = {name.id for name in ast.walk(node.value) if isinstance(name, ast.Name)}
        stores = any(isinstance(part, (ast.Attribute, ast.Subscript)) for part in node.targets)
        if (stores or targets <= reads) and self.function:
            self.add(node, "pass", "assignment dropped")
        self.visit(node.value, node)

    def visit_AugAssign(self, node: ast.AugAssign, _: ast.AST) -> None:
        self.add(node, "pass", "assignment dropped")
        if type(node.op) in _SWAPS:
            self.changed(node, "operator", op=_SWAPS[type(node.op)]())
        self.visit(node.value, node)

    def visit_Expr(self, node: ast.Expr, _: ast.AST) -> None:
        if isinstance(node.value, ast.Constant):
            return  # a docstring
        if not isinstance(node.value, (ast.Yield, ast.YieldFrom)):
            self.add(node, "pass", "statement dropped")
        self.visit_all(node)

    def visit_Raise(self, node: ast.Raise, _: ast.AST) -> None:
        self.add(node, "pass", "raise dropped")

    def visit_Return(self, node: ast.Return, _: ast.AST) -> None:
        if node.value is None or (isinstance(node.value, ast.Constant) and node.value.value is None):
            if node is not self.last:  # at the end of the function None is returned anyway
                self.add(node, "pass", "return dropped")
            return
        self.add(node, "return None", "returns None")
        if isinstance(node.value, ast.Tuple) and len(node.value.elts) == 2:
            self.changed(node.value, "swapped", elts=node.value.elts[::-1])
        self.visit(node.value, node)

    def visit_If(self, node: ast.If | ast.While | ast.IfExp, _: ast.AST) -> None:
        if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            return
        for text in ("True", "False"):
            if not isinstance(node, ast.While) or text == "False":
                self.add(node.test, text, "condition forced")
        self.visit_all(node)

    visit_IfExp = visit_While = visit_If

    def visit_Compare(self, node: ast.Compare, _: ast.AST) -> None:
        for i, op in enumerate(node.ops):
            self.changed(node, "comparison", ops=[*node.ops[:i], _SWAPS[type(op)](), *node.ops[i + 1 :]])
        self.visit_all(node)

    def visit_BinOp(self, node: ast.BinOp, _: ast.AST) -> None:
        if type(node.op) in _SWAPS:
            self.changed(node, "operator", op=_SWAPS[type(node.op)]())
        self.visit_all(node)

    def visit_BoolOp(self, node: ast.BoolOp, _: ast.AST) -> None:
        self.changed(node, "operator", op=_SWAPS[type(node.op)]())
        self.visit_all(node)

    def visit_UnaryOp(self, node: ast.UnaryOp, _: ast.AST) -> None:
        self.add(node, self.text(node.operand), "operator dropped")
        self.visit_all(node)

    def visit_Call(self, node: ast.Call, _: ast.AST) -> None:
        name = ast.unparse(node.func).split(".")[-1]
        for i, keyword in enumerate(node.keywords):
            self.changed(node, f"{keyword.arg}= dropped", keywords=node.keywords[:i] + node.keywords[i + 1 :])
        if isinstance(node.func, ast.Attribute) and not node.keywords and (not node.args or name in _CASTS):
            self.add(node, self.text(node.func.value), "call dropped")
        speaks = _SPEAKS.search(name) is not None
        for child in [node.func, *node.args, *(keyword.value for keyword in node.keywords)]:
            if not (speaks and isinstance(child, ast.Constant) and isinstance(child.value, str)):
                self.visit(child, node)

    def visit_Constant(self, node: ast.Constant, parent: ast.AST) -> None:
        value = node.value
        if isinstance(value, bool):
            self.add(node, str(not value), "constant")
        elif isinstance(value, (int, float)):
            self.add(node, repr(value + 1), "constant")
        elif isinstance(value, str) and value and " " not in value:  # not a text for people
            self.add(node, repr(value + "_"), "constant")


def mutants(path: Path, root: Path) -> list[Mutant]:
    """Every mutant of a file that can be compiled."""
    source = path.read_text()
    return [mutant for mutant in _Finder(str(path.relative_to(root)), source).found if _compiles(mutant, source)]


def _compiles(mutant: Mutant, source: str) -> bool:
    try:
        compile(mutant.source(source), mutant.path, "exec")
    except SyntaxError:
        return False
    return True


def sample(found: list[Mutant], size: int | None, seed: int) -> Iterator[Mutant]:
    """`size` of them, or all, in the order of the files."""
    if size is None or size >= len(found):
        return iter(found)
    chosen = set(random.Random(seed).sample(range(len(found)), size))
    return (mutant for i, mutant in enumerate(found) if i in chosen)
