"""Code that older versions of torch need, or that makes `import halfgnn` quick."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch.nn.modules import module as _module

Function = TypeVar("Function", bound=Callable[..., Any])


# ---- torch.compiler without torch._dynamo: its import takes seconds, and most programs compile nothing ---------------------------


def assume_constant_result(function: Function) -> Function:
    """torch.compiler.assume_constant_result, which sets this attribute and nothing else."""
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def disable(reason: str) -> Callable[[Function], Function]:
    """torch.compiler.disable, in effect once torch._dynamo has been imported. Before that, nothing is compiled.

    reason: what the error of torch.compile(fullgraph=True) says of a call: why it cannot be traced, and what to do.
    """

    def decorate(function: Function) -> Function:
        disabled = torch._disable_dynamo(function)  # a call of it imports torch._dynamo

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if "torch._dynamo" in sys.modules:
                return disabled(*args, **kwargs)
            return function(*args, **kwargs)

        call._torchdynamo_disable = True  # type: ignore[attr-defined]  # as torch.compiler.disable marks its functions
        call._torchdynamo_disable_msg = reason  # type: ignore[attr-defined]
        return call  # type: ignore[return-value]

    return decorate


def is_exporting() -> bool:
    """Whether torch.export traces the code that runs now; False before torch 2.7.

    torch.compiler.is_exporting() answers True inside torch.compile.
    """
    return bool(getattr(torch.compiler, "_is_exporting_flag", False))


def guard_or_true(condition: Any) -> bool:
    """Whether a condition on sizes holds, which compiled code is guarded by; True if it depends on values."""
    if isinstance(condition, bool):
        return condition
    decide = getattr(torch.fx.experimental.symbolic_shapes, "guard_or_true", bool)  # since torch 2.7
    return bool(decide(condition))


def forget_names() -> None:
    """Makes torch.compile look up PyTorch's functions by name again. It does so once, and may have found wrappers."""
    rules = sys.modules.get("torch._dynamo.trace_rules")
    if rules is not None:
        rules.clear_lru_cache()


def forget_names_without(original: Function) -> None:
    """The same if torch.compile does not know a function of PyTorch, because a wrapper had its name when it looked it up."""
    rules = sys.modules.get("torch._dynamo.trace_rules")
    known = getattr(rules, "get_torch_obj_rule_map", None)
    if known is not None and known.cache_info().currsize and original not in known():
        forget_names()


# ---- older versions --------------------------------------------------------------------------------------------------------------


def has_any_global_hook() -> bool:
    """Whether a hook runs at each call of each module. torch has had this function since 2.7."""
    return bool(
        _module._global_backward_pre_hooks
        or _module._global_backward_hooks
        or _module._global_forward_hooks
        or _module._global_forward_pre_hooks
    )


def able_to_run_lstm(x: torch.Tensor) -> contextlib.AbstractContextManager[None]:
    """A context in which nn.LSTM runs on x.

    torch 2.4 leaves every LSTM in bfloat16 on the CPU to oneDNN, whose LSTM needs a processor with AVX-512. PyTorch's own LSTM runs
    on all processors. torch 2.6 chooses by itself. 2.5 was not tried and is treated like 2.4. Under autocast 2.11 still leaves it
    to oneDNN, because it chooses by the dtype from before the cast.
    """
    if x.device.type != "cpu":
        return contextlib.nullcontext()
    is_old = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 6)
    is_autocast = torch.is_autocast_enabled("cpu")
    if is_old and (x.dtype == torch.bfloat16 or is_autocast):
        return torch.backends.mkldnn.flags(enabled=False)
    has_lstm = getattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: True)
    if is_autocast and not has_lstm():
        return torch.backends.mkldnn.flags(enabled=False)
    return contextlib.nullcontext()
