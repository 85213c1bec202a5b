"""The backend "halfgnn" of torch.compile: Inductor, with the pass of :mod:`.lowering` before autograd."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from torch import fx

_log = logging.getLogger(__name__)
counts: Counter[str] = Counter()


def lower(graph: fx.Graph) -> None:
    """The pass as Inductor calls it. A graph that it fails on is compiled as it is."""
    from .lowering import lower_graph

    counts["graphs"] += 1
    counts.update(lower_graph(graph))


def backend(gm: fx.GraphModule, example_inputs: Sequence[Any], **options: Any) -> Callable[..., Any]:
    """Compiles a graph. options: Inductor's ``mode`` and ``options``."""
    from torch._inductor import config
    from torch._inductor.compile_fx import compile_fx

    with config.patch(pre_grad_custom_pass=lower):
        return compile_fx(gm, example_inputs, **options)
