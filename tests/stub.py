"""halfgnn/ops/__init__.pyi, for editors and type checkers, of the tables that the operators themselves are made from.

python -m tests.stub            prints it
python -m tests.stub --update   writes it
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from halfgnn import ops

FILE = Path(ops.__file__).with_name("__init__.pyi")
# The other operators are written in these modules.
MODULES = {
    "attention": ("dot_attention", "gat_attention", "gatv2_attention"),
    "copy_u_reduce": ("copy_u_reduce",),
    "edge_network": ("edge_network",),
    "edge_softmax": ("edge_softmax",),
    "gated_sum": ("gated_sum",),
    "gather_rows": ("gather_rows",),
    "sddmm": ("gsddmm", "u_add_v_add_e"),
    "segment_reduce": ("segment_reduce",),
    "spmm": ("gspmm",),
}


def tables() -> dict[str, Callable[..., Any]]:
    """The generated operators by name."""
    return {name: function for family in ("spmm", "sddmm") for name, function in _module(family).FUNCTIONS.items()}


def _module(name: str) -> Any:
    return sys.modules[f"halfgnn.ops.{name}"]  # as an attribute some are functions of that name


def text() -> str:
    """The whole file."""
    imports = [f"from .{module} import {name} as {name}" for module, names in MODULES.items() for name in names]
    names = [f'    "{name}",' for name in sorted(ops.__all__)]
    head = [
        '"""The operators as editors and type checkers see them. Written by `python -m tests.stub --update`."""\n',
        "import torch",
        "from torch import Tensor\n",
        "from ..graph_argument import GraphLike",
        *imports,
        "",
        "__all__ = [",
        *names,
        "]\n",
    ]
    return "\n".join([*head, *(_written(name, function) for name, function in tables().items())])


def _written(name: str, function: Callable[..., Any]) -> str:
    return f'def {name}{_arguments(function)}:\n    """{function.__doc__}"""\n'


def _arguments(function: Callable[..., Any]) -> str:
    """(arguments) -> result, annotations as they are in the source."""
    signature = inspect.signature(function)
    parts, is_keyword = [], False
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not is_keyword:
            parts.append("*")
            is_keyword = True
        annotation = "" if parameter.annotation is parameter.empty else f": {parameter.annotation}"
        default = "" if parameter.default is parameter.empty else f" = {parameter.default!r}"
        parts.append(f"{parameter.name}{annotation}{default}")
    return f"({', '.join(parts)}) -> {signature.return_annotation}"


if __name__ == "__main__":
    if sys.argv[1:] == ["--update"]:
        FILE.write_text(text())
    elif sys.argv[1:]:
        raise SystemExit(__doc__)
    else:
        print(text(), end="")
