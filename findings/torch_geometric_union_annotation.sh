#!/usr/bin/env bash
# torch_geometric 2.8.1 with torch 2.13.0, Python 3.11: a layer is not made if message() has an argument annotated `Tensor | None`.
#
# MessagePassing writes the annotations of its functions as text, for the propagate that it generates (inspector.py, type_repr). It
# asks what is not of the module typing for its __qualname__, which a types.UnionType (PEP 604) has not: the constructor raises an
# AttributeError that names neither the layer nor the argument. So for message, aggregate, message_and_aggregate, update and
# edge_update, and for what they return; not for the first argument of aggregate, message_and_aggregate and update, which it leaves
# out, nor under `from __future__ import annotations`, where they are text. Guess beforehand: both spellings are the same to it.
#
# Seen on 2026-11-29: AttributeError: 'types.UnionType' object has no attribute '__qualname__'; Optional[Tensor] and text are taken.
# Fails if that has changed. From Python 3.14 on `Tensor | None` is a typing.Union, so it is shown for older ones.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install -q --disable-pip-version-check torch==2.13.0 numpy torch_geometric==2.8.1
"$folder/env/bin/python" - <<'PYTHON'
import platform
from typing import Optional

import torch
import torch_geometric
from torch import Tensor
from torch_geometric.nn import MessagePassing

SPELLINGS = {"Tensor | None": Tensor | None, "Optional[Tensor]": Optional[Tensor], "text": "Tensor | None"}
WHERE = {  # function: its arguments, of which the last is annotated
    "message": ["x_j", "e"],
    "aggregate": ["inputs", "index", "e"],
    "message_and_aggregate": ["adj_t", "e"],
    "update": ["inputs", "e"],
    "edge_update": ["x_j", "e"],
    "message: its result": ["x_j", "return"],
    "aggregate: its first argument": ["inputs"],
    "message_and_aggregate: its first argument": ["adj_t"],
    "update: its first argument": ["inputs"],
}


def outcome(name, arguments, annotation):
    taken = [argument for argument in arguments if argument != "return"]
    function = eval(f"lambda self, {', '.join(taken)}: {taken[0]}")
    function.__name__ = name.split(":")[0]
    function.__annotations__ = {argument: Tensor for argument in taken} | {arguments[-1]: annotation}
    try:
        type("Layer", (MessagePassing,), {function.__name__: function})()
    except AttributeError as error:
        return str(error)
    return "made"


print("Python", platform.python_version(), "torch", torch.__version__, "torch_geometric", torch_geometric.__version__)
for name, arguments in WHERE.items():
    found = {spelling: outcome(name, arguments, annotation) for spelling, annotation in SPELLINGS.items()}
    print(f"{name}: {found}")
    refused = "made" if "first" in name else "'types.UnionType' object has no attribute '__qualname__'"
    assert list(found.values()) == [refused, "made", "made"], "it is another now"


class Written(MessagePassing):  # as a program does
    def forward(self, x, edge_index, e=None):
        return self.propagate(edge_index, x=x, e=e)

    def message(self, x_j: Tensor, e: Tensor | None) -> Tensor:
        return x_j if e is None else x_j * e


try:
    Written()
except AttributeError as error:
    print("a class as it is written:", error)
else:
    raise AssertionError("it is made now")
PYTHON
