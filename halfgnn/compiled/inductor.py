"""The backend "halfgnn" of torch.compile, and Inductor's hooks for passes: ``pre_grad_custom_pass``, of torch 2.4 and later, and
``joint_custom_post_pass``."""

from __future__ import annotations

import functools
import importlib.util
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
    for name, after in _hooks().items():
        patches[name] = after(patches.get(name, getattr(config, name)))
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


@functools.cache
def masks_after(other: Any) -> Any:
    """The pass over masks, after another one that Inductor has been given."""
    from .masks import RecomputeMasks

    return other if isinstance(other, RecomputeMasks) else RecomputeMasks(other)


def _hooks() -> dict[str, Callable[[Any], Any]]:
    """By the name of each of Inductor's hooks: the pass, after another one."""
    hooks: dict[str, Callable[[Any], Any]] = {"pre_grad_custom_pass": pass_after}
    if importlib.util.find_spec("torch._inductor.custom_graph_pass") is not None:  # torch 2.6 and later
        hooks["joint_custom_post_pass"] = masks_after
    return hooks


def install(bindings: Any) -> None:
    """Lets Inductor run the passes, until the bindings are restored."""
    from torch._inductor import config

    for name, after in _hooks().items():
        if hasattr(config, name):
            bindings.bind(config, name, after(getattr(config, name)))


def stats() -> dict[str, int]:
    """What became of graphs that were compiled since the last :func:`reset_stats`.

    ``"graphs"`` has their number, ``"gspmm:copy_u_sum"`` and the like that of operators, ``"not lowered: ..."`` what was left to
    Inductor, and why.
    """
    return dict(_counts)


def reset_stats() -> None:
    _counts.clear()
