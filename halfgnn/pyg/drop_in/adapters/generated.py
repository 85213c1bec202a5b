"""``MessagePassing.propagate`` and ``edge_updater``, which torch_geometric generates for each class.

Messages that are known are reduced at once (known_messages); under patch(tile=...) modules run on tiles.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor
from torch_geometric.nn import MessagePassing

from ....drop_in.compiled import is_compiled
from ....drop_in.gate import Reason
from ....drop_in.table import ALWAYS
from ....drop_in.wrappers import Bindings, inline, wrapper
from ....drop_in.wrappers import Route as Original
from ..accounts import fell_back, routed
from ..gate import FallBack
from ..options import ON
from ..tile_call import Step, is_in_tile, propagation_step, update_step
from ..tiles import in_tiles
from .known_messages import MESSAGES_BY_CLASS, propagated


@inline
def propagate(original: Original) -> Original:
    """``MessagePassing.propagate`` of a class."""
    left_alone, on, ordinary, known, of_tiles = is_compiled, ON, Tensor, propagated, _propagate_in_tiles
    messages = MESSAGES_BY_CLASS

    def propagate_or_reduce(self: Any, edge_index: Any, *args: Any, **kwargs: Any) -> Any:
        if args or left_alone():
            return original(self, edge_index, *args, **kwargs)
        if on.tile is not None:
            return of_tiles(original, self, edge_index, kwargs)
        if type(edge_index) is ordinary and messages.get(cls := type(self)) is not cls.message:
            out = known(self, edge_index, kwargs)
            if out is not None:
                return out
        return original(self, edge_index, **kwargs)

    return propagate_or_reduce


def _propagate_in_tiles(original: Original, self: Any, edge_index: Any, kwargs: dict[str, Any]) -> Any:
    if is_in_tile():
        return original(self, edge_index, **kwargs)
    reason = None
    try:
        of_update = _arguments_of_update(self, kwargs)
        out = _tiled("propagate", self, propagation_step(self), edge_index, kwargs)
    except FallBack as left:
        reason = left.reason
    if reason is not None:
        fell_back["tile:propagate", reason] += 1
        return original(self, edge_index, **kwargs)
    return self.update(out, **of_update)


def _edge_updater(original: Original, self: Any, edge_index: Any, *args: Any, **kwargs: Any) -> Any:
    if ON.tile is None or args or is_in_tile():
        return original(self, edge_index, *args, **kwargs)
    try:
        return _tiled("edge_updater", self, update_step(self), edge_index, kwargs)
    except FallBack as left:
        fell_back["tile:edge_updater", left.reason] += 1
    return original(self, edge_index, **kwargs)


def _tiled(name: str, conv: Any, step: Step, edge_index: Any, kwargs: dict[str, Any]) -> Any:
    assert ON.tile is not None
    rest = {key: x for key, x in kwargs.items() if key != "size"}
    out = in_tiles(conv, step, edge_index, kwargs.get("size"), rest, ON.tile)
    routed[f"tile:{name}"] += 1
    return out


def _arguments_of_update(conv: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    names = conv.inspector.get_param_names("update")
    if any(name in conv.special_args or name[-2:] in ("_i", "_j") for name in names):
        raise FallBack(Reason.UPDATE_OF_EDGES)
    return {name: kwargs[name] for name in names if name in kwargs}


# The methods, by the option of the drop-in with which they are bound.
_METHODS: dict[str, dict[str, Any]] = {ALWAYS: {"propagate": propagate}, "tiles": {"edge_updater": _edge_updater}}
_bindings: dict[str, Bindings] = {}


def install(bindings: Bindings, option: str = ALWAYS) -> None:
    """Binds the methods of all classes, which torch_geometric makes for each; and of those that are made from here on."""
    _bindings[option] = bindings
    for owner in _classes(MessagePassing):
        _bind(owner, option)


def set_templates(original: Original, self: Any, *args: Any, **kwargs: Any) -> Any:
    """``MessagePassing._set_jittable_templates``, which makes the methods of a class with its first module."""
    result = original(self, *args, **kwargs)
    for option, bindings in _bindings.items():
        if bindings:
            _bind(type(self), option)
    return result


def _bind(owner: type, option: str) -> None:
    for name, adapter in _METHODS[option].items():
        method = vars(owner).get(name)
        if _is_generated(owner, method) and not hasattr(method, "__halfgnn__"):
            new = wrapper(method, adapter)
            new.__halfgnn__ = True
            _bindings[option].bind(owner, name, new)


def _is_generated(owner: type, method: Any) -> bool:
    """Whether it is torch_geometric's: a class that has its own propagate() calls it, and that calls its parent's."""
    if owner is MessagePassing:
        return True
    return method is not None and method.__module__.startswith(f"{owner.__module__}_{owner.__name__}_")


def _classes(owner: Any) -> Iterator[Any]:
    yield owner
    for inner in owner.__subclasses__():
        yield from _classes(inner)
