"""The backend "halfgnn" of torch.compile, and Inductor's hook for passes: ``pre_grad_custom_pass``, of torch 2.4 and later."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

_counts: Counter[str] = Counter()


def backend(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    mode: str | None = None,
    options: dict[str, Any] | None = None,
) -> Callable[..., Any]:
    """``torch.compile(model, backend="halfgnn")``: Inductor, after gathers and reductions by an index became halfgnn's operators.

    Args:
        mode, options: of torch.compile, which Inductor gets.

    Raises:
        ValueError: Inductor has no such mode.
    """
    from torch._inductor import config, list_mode_options
    from torch._inductor.compile_fx import compile_fx

    if mode not in (None, "default", *list_mode_options()):
        raise ValueError(f"mode is {mode!r}; expected one of {', '.join(map(repr, ['default', *list_mode_options()]))}")
    patches = {} if mode in (None, "default") else list_mode_options(mode)
    patches = {**patches, **(options or {})}
    patches["pre_grad_custom_pass"] = pass_after(patches.get("pre_grad_custom_pass", config.pre_grad_custom_pass))
    return compile_fx(gm, example_inputs, config_patches=patches)  # type: ignore[return-value]


def lower(graph: fx.Graph) -> None:
    """The pass, as Inductor calls it."""
    if not hasattr(torch.compiler, "_is_compiling_flag"):
        return  # a version in which no code can say that it is compiled, but Dynamo's

    from .lowering import lower_graph

    _counts["graphs"] += 1
    _counts.update(lower_graph(graph))


@functools.cache
def pass_after(other: Callable[[fx.Graph], None] | None) -> Callable[[fx.Graph], None]:
    """The pass, after another one that Inductor has been given."""
    if other is None or other is lower or getattr(other, "has_lower", False):
        return other or lower

    def both(graph: fx.Graph) -> None:
        other(graph)
        lower(graph)

    both.has_lower = True  # type: ignore[attr-defined]
    return both


def install(bindings: Any) -> None:
    """Lets Inductor run the pass, until the bindings are restored."""
    from torch._inductor import config

    if hasattr(config, "pre_grad_custom_pass"):
        bindings.bind(config, "pre_grad_custom_pass", pass_after(config.pre_grad_custom_pass))


def stats() -> dict[str, int]:
    """What became of graphs that were compiled since the last :func:`reset_stats`.

    ``"graphs"`` has their number, ``"gspmm:copy_u_sum"`` and the like that of operators, ``"not lowered: ..."`` what was left to
    Inductor, and why.
    """
    return dict(_counts)


def reset_stats() -> None:
    _counts.clear()
