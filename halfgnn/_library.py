"""Loads the compiled operators, torch.ops.halfgnn.*."""

from __future__ import annotations

import json
import os
from typing import Any

import torch

_FOLDER = os.path.dirname(os.path.abspath(__file__))
# HALFGNN_LIBRARY names another build of the same operators: the simulator of tests/simt, a sanitizer build.
_NAMED = os.environ.get("HALFGNN_LIBRARY")
_PATH = _NAMED or os.path.join(_FOLDER, "_C.so")


def _built_for(library: str) -> dict[str, Any] | None:
    """The facts that setup.py wrote beside the library; None if something else built it."""
    path = os.path.splitext(library)[0] + ".json"
    try:
        with open(path) as file:
            built = json.load(file)
        kinds: dict[str, Any] = {"torch": str, "cuda": (str, type(None)), "cxx11_abi": bool}
        if all(isinstance(built[fact], kind) for fact, kind in kinds.items()):
            return built
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        pass
    raise ImportError(f"{path} does not say which torch the library beside it was built for. {_cure(None)}")


def _why_unfit(built: dict[str, Any], version: str, cuda: str | None, cxx11_abi: bool) -> str | None:
    """Why a library does not fit this torch, or None. PyTorch's C++ interface changes from one minor version to the next.

    A library of the CPU half alone, whose "cuda" is None, fits a torch for any CUDA.
    """
    if _minor(version) != _minor(built["torch"]):
        return f"was built for torch {built['torch']}, and torch {version} is installed"
    if built["cuda"] is not None and (cuda or "none").split(".")[0] != built["cuda"].split(".")[0]:
        return f"was built for CUDA {built['cuda']}, and torch {version} is for CUDA {cuda}"
    if built["cxx11_abi"] != cxx11_abi:
        return f"was built with _GLIBCXX_USE_CXX11_ABI={built['cxx11_abi']:d}, and torch {version} has {cxx11_abi:d}"
    return None


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _cure(built: dict[str, Any] | None) -> str:
    """The command that helps, in a checkout or after pip. built: what the library was built for, if another torch may help."""
    root = os.path.dirname(_FOLDER)
    if _NAMED:
        cure = "Build again the library that HALFGNN_LIBRARY names."
    elif os.path.exists(os.path.join(root, "setup.py")):
        cure = f"Build it: `cd {root} && python setup.py build_ext --inplace`."
    else:
        cure = "Install it again, in its sources: `pip install --no-build-isolation --no-deps --force-reinstall .`"
    if built is not None and _minor(built["torch"]) != _minor(torch.__version__):
        cure += f" Or install a torch that fits it: `pip install 'torch=={_minor(built['torch'])}.*'`."
    return cure


def _load() -> None:
    if not os.path.exists(_PATH):
        raise ImportError(f"halfgnn's operators are not built: {_PATH} is missing. {_cure(None)}")
    built = _built_for(_PATH)
    reason = built and _why_unfit(built, torch.__version__, torch.version.cuda, torch.compiled_with_cxx11_abi())
    if reason:
        raise ImportError(f"{_PATH} {reason}. {_cure(built)}")
    try:
        torch.ops.load_library(_PATH)
    except OSError as error:
        raise ImportError(f"{_PATH} does not load with torch {torch.__version__}. {_cure(built)} ({error})") from error


_load()


def has_cuda() -> bool:
    """Whether the CUDA half was compiled in (a GPU need not be present)."""
    return torch._C._dispatch_has_kernel_for_dispatch_key("halfgnn::gspmm", "CUDA")
