"""What is derived from an immutable object and cached with it."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor

from .kept import Kept, kept, may_keep, ordinary_tensors

_NOTHING: dict[Any, Any] = {}


class Caching:
    """Base of Graph, which holds what is derived from it, in attributes: names that torch.compile guards one by one."""

    device: torch.device
    _any: Any  # either side

    def cached(
        self,
        name: str,
        make: Callable[[Any], Any] | None,
        of: Hashable = None,
        *,
        only_last: bool = False,
        has_tensors: bool = True,
        when_traced: bool = False,
    ) -> Any:
        """What make(the graph) returns, which is made at its first use and cached under `name`.

        It serves later callers in every mode of PyTorch and on every stream (see :mod:`halfgnn.common.kept`): make() runs among
        ordinary tensors, and a tensor, or a value with a method _for_all_streams, is cached in the form for other streams.

        Args:
            make: None to ask only; None is returned if nothing is cached.
            of: what else it is made of. There is one value of each, found by hash and equality.
            only_last: only the value of the last `of` is cached.
            has_tensors: whether make() computes tensors, which are not cached while a CUDA graph is captured.
            when_traced: whether a value that compiled code makes is cached, too.
        """
        value = getattr(self, name, _NOTHING).get(of)  # of None: no value is None
        if value is not None:
            return value.get() if type(value) is Kept else value
        if make is None:
            return None
        with ordinary_tensors(self._any.indptr):
            value = make(self)
        may_cache = when_traced or not torch.compiler.is_compiling()
        if may_cache and (not has_tensors or may_keep(self.device)):
            others = {} if only_last else getattr(self, name, {})  # as they are now: another thread may do the same
            object.__setattr__(self, name, {**others, of: _for_all_streams(value)})
        return value


def _for_all_streams(value: Any) -> Any:
    """The form in which to cache a value that was just made on the current stream."""
    if isinstance(value, Tensor):
        return kept(value, [value])
    prepared = getattr(value, "_for_all_streams", None)
    return value if prepared is None else prepared()
