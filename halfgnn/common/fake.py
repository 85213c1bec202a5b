"""Registration of fake kernels. They return tensors with the shapes and dtypes of an operator's results, and compute nothing."""

from __future__ import annotations

import functools
import hashlib
from collections import namedtuple
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .. import _library  # noqa: F401  (loads torch.ops.halfgnn)


def register_fake(
    name: str, on_cpu: Sequence[str] = (), namespace: str = "halfgnn"
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers a function as the fake kernel of torch.ops.<namespace>.<name>, for tensors of one device.

    on_cpu: arguments that may be on the CPU whatever the others' device is.
    """
    arguments = [argument.name for argument in getattr(getattr(torch.ops, namespace), name).default._schema.arguments]

    def register(fake: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(fake)
        def checked(*args: Any, **kwargs: Any) -> Any:
            tag_compiled_code()
            _check_device(arguments, args, on_cpu)
            return fake(*args, **kwargs)

        return torch.library.register_fake(f"{namespace}::{name}")(checked)

    return register


@functools.cache
def tag_compiled_code() -> None:
    """Lets torch.compile find no code on disk that it made of other sources of halfgnn.

    Its keys name operators, and not what their gradients and fake kernels compute: after an upgrade it would run the old gradients,
    or call operators with the old arguments (PyTorch#144344).
    """
    config = getattr(torch.compiler, "config", None)
    if hasattr(config, "cache_key_tag"):  # since torch 2.7
        config.cache_key_tag += f" halfgnn:{digest_of_sources(Path(__file__).parents[1])}"  # type: ignore[union-attr]


def digest_of_sources(folder: Path) -> str:
    """Of all Python files in a folder: it changes with any of them."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def unknown_size() -> torch.SymInt:
    """A size that is known when the code runs. Context.new_dynamic_size() asks for an option of Dynamo's, for PyTorch's own
    operators of this kind."""
    size = torch.library.get_ctx()._shape_env.create_unbacked_symint()
    torch.fx.experimental.symbolic_shapes._constrain_range_for_size(size)
    return size


def arguments_of(operator: Any) -> Any:
    """The class of a named tuple with one field per argument of an operator's schema, and the schema's defaults.

    With it a fake kernel of many arguments names those that it reads.
    """
    arguments = operator._schema.arguments
    defaults = [argument.default_value for argument in arguments if argument.has_default_value()]
    return namedtuple("Arguments", [argument.name for argument in arguments], defaults=defaults)  # type: ignore[misc]


def _check_device(names: Sequence[str], args: Sequence[Any], on_cpu: Sequence[str]) -> None:
    """Raises unless the tensors are on one device.

    One meta tensor among real ones would bring a call here, and its result would be memory that nothing wrote to. A fake tensor
    has the device of the tensor it stands for.
    """
    first = None
    for name, data in zip(names, args):
        if not isinstance(data, Tensor) or (name in on_cpu and data.device.type == "cpu"):
            continue
        if first is None:
            first = name, data.device
        elif data.device != first[1]:
            raise ValueError(f"{name} is on {data.device}; expected the device of {first[0]}, {first[1]}")
