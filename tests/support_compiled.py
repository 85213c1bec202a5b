"""Graphs of torch.compile, lowered and then run by PyTorch's operators: Inductor takes twenty times as long to compile them."""

from __future__ import annotations

from typing import Any

import torch
from torch._dynamo.backends.debugging import aot_eager

import halfgnn
from halfgnn.compiled.inductor import lower


def lowered(gm: Any, inputs: Any) -> Any:
    """A backend of torch.compile."""
    lower(gm.graph)
    gm.graph.lint()
    gm.recompile()
    return aot_eager(gm, inputs)


def count_graphs(monkeypatch: Any, constructor: str = "from_edge_index") -> list[Any]:
    """A list that gets the first argument of each Graph that is made by a constructor from here on."""
    made, make = [], getattr(halfgnn.Graph, constructor)

    def counted(*args: Any, **options: Any) -> Any:
        made.append(args[0])
        return make(*args, **options)

    monkeypatch.setattr(halfgnn.Graph, constructor, counted)
    return made


def compiled(model: Any, **options: Any) -> Any:
    """The model, compiled from scratch."""
    torch.compiler.reset()
    return torch.compile(model, backend=lowered, dynamic=True, **options)
