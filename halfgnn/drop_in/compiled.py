"""torch.compile beside wrappers: when they leave a call to what they replace, and what keeps their frames out of graphs.

Dynamo meets a wrapper in three ways. It traces it, runs it on fake tensors to learn a result's shape, or meets it in code that
runs between two graphs, and then compiles its frame. In all three the library's own function has to be all that Dynamo sees.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch._C._dynamo import eval_frame as _eval_frame

from ..common.compat import is_exporting

Function = TypeVar("Function", bound=Callable[..., Any])

_is_traced = torch.compiler.is_dynamo_compiling  # a constant to Dynamo, which therefore does not trace what follows it
_is_recorded = torch._C._is_tracing
_num_modes = torch._C._len_torch_dispatch_stack
_mode, _FAKE = torch._C._get_dispatch_mode, torch._C._TorchDispatchModeKey.FAKE  # type: ignore[attr-defined]


def _no_callback() -> None:
    """In versions of torch that do not say whether Dynamo takes the frames of a thread: code between graphs is not known."""


_callback = getattr(_eval_frame, "get_eval_frame_callback", _no_callback)


def is_compiled() -> bool:
    """Whether this is code that torch.compile or torch.export traces, runs on fake tensors, or runs between its graphs; or that
    torch.jit.trace records, which would have a cached graph as a constant.

    A wrapper asks it before anything else: sizes of fake tensors may be unknown, and those of traced ones are tensors. It takes
    0.3 microseconds.
    """
    # None: Dynamo takes no frames here; False: it only runs what it has compiled.
    return _is_traced() or _callback() is not None or _is_recorded() or (_num_modes() > 0 and _mode(_FAKE) is not None)


def is_traced_by_dynamo() -> bool:
    """Whether torch.compile, and not torch.export, traces this code: a program that is exported has no operators in Python."""
    return _is_traced() and not is_exporting()


def is_between_graphs() -> bool:
    """Whether this is code that runs on ordinary tensors between graphs of torch.compile, or in frames that Dynamo has skipped."""
    return _callback() is not None and not (_is_traced() or _is_recorded() or _num_modes())


def skip_frames(function: Function) -> Function:
    """Keeps Dynamo from compiling the frames of a function that compiled code calls between its graphs.

    Dynamo still compiles what the function calls, and traces the function itself where it traces the caller.
    """
    return _skip(function, is_recursive=False)


def leave_out(function: Function, reason: str) -> Function:
    """Keeps Dynamo from tracing and compiling a function and what it calls, as torch.compiler.disable does, but in place.

    reason: what torch.compile(fullgraph=True) says of a call.
    """
    function._torchdynamo_disable = True  # type: ignore[attr-defined]  # as torch.compiler.disable marks its functions
    function._torchdynamo_disable_msg = reason  # type: ignore[attr-defined]
    return _skip(function, is_recursive=True)


def _skip(function: Function, is_recursive: bool) -> Function:
    code, strategy = function.__code__, getattr(_eval_frame, "set_code_exec_strategy", None)
    if strategy is not None:
        action = _eval_frame._FrameAction
        strategy(code, _eval_frame._FrameExecStrategy(action.SKIP, action.SKIP if is_recursive else action.DEFAULT))
    else:  # of older versions
        getattr(_eval_frame, "skip_code", lambda code: None)(code)
    return function


skip_frames(is_compiled)
skip_frames(is_traced_by_dynamo)
skip_frames(is_between_graphs)
