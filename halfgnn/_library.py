"""Loads the compiled operators, torch.ops.halfgnn.*."""

from __future__ import annotations

import ctypes
import json
import os
import re
import sys
import warnings
from collections.abc import Mapping
from typing import Any

import torch

from . import _stable_abi

_FOLDER = os.path.dirname(os.path.abspath(__file__))
# HALFGNN_LIBRARY names another build of the same operators: the simulator of laboratory/simt, a sanitizer build.
_NAMED = os.environ.get("HALFGNN_LIBRARY")
_PATH = _NAMED or os.path.join(_FOLDER, "_C.so")
_OLDEST_STABLE = "2.10"  # the first torch that a library by the stable ABI fits


def check_settings(environment: Mapping[str, str]) -> None:
    """Raises ImportError for a value that kernels would take for another one."""
    for name, first, second in (("HALFGNN_TENSOR_CORES", "0", "1"), ("HALFGNN_DOT_PHASES", "1", "2")):
        value = environment.get(name, "")
        if value not in ("", first, second):
            raise ImportError(f"{name} is {value}; expected {first} or {second}, or no value")


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
    """Why a library does not fit this torch, or None.

    ATen, PyTorch's C++ interface, changes from one minor version to the next, and the stable ABI only grows.
    A library of the CPU back end alone, whose "cuda" is None, fits a torch for any CUDA. One by the stable ABI loads beside any
    torch, and _why_cuda_is_idle says what its CUDA back end lacks there.
    """
    is_later, is_same = _numbers(version) >= _numbers(_OLDEST_STABLE), _minor(version) == _minor(built["torch"])
    if not (is_later if _is_stable(built) else is_same):
        return f"was built for torch {_fitting(built)}, and torch {version} is installed"
    if _is_stable(built):
        return None
    if not _is_same_cuda(built, cuda):
        return f"was built for CUDA {built['cuda']}, and torch {version} is for CUDA {cuda}"
    if built["cxx11_abi"] != cxx11_abi:
        return f"was built with _GLIBCXX_USE_CXX11_ABI={built['cxx11_abi']:d}, and torch {version} has {cxx11_abi:d}"
    return None


def _is_same_cuda(built: dict[str, Any], cuda: str | None) -> bool:
    """Whether the library has no CUDA back end, or one of the major version of this torch."""
    return built.get("cuda") is None or (cuda or "none").split(".")[0] == built["cuda"].split(".")[0]


def _is_stable(built: dict[str, Any]) -> bool:
    """Whether a library calls PyTorch by its stable ABI."""
    return built.get("abi") == "stable"


def _fitting(built: dict[str, Any]) -> str:
    """The versions of torch that a library fits."""
    return f"{_OLDEST_STABLE} and later" if _is_stable(built) else str(built["torch"])


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _numbers(version: str) -> list[int]:
    """Of a minor version, to be compared."""
    return [int(part) for part in _minor(version).split(".")]


def _cure(built: dict[str, Any] | None, setting: str = "") -> str:
    """The command that helps, in a checkout or after pip.

    built: what the library was built for, if another torch may help. setting: an environment variable for the command.
    """
    root = os.path.dirname(_FOLDER)
    setting = f"{setting} " if setting else ""
    if _NAMED:
        cure = f"Build again the library that HALFGNN_LIBRARY names{setting and f', with {setting.strip()}'}."
    elif _in_checkout():
        cure = f"Build it: `cd {root} && {setting}python setup.py build_ext --inplace`."
    else:
        install = "pip install --no-build-isolation --no-deps --no-cache-dir --force-reinstall ."
        cure = f"Install it again, in its sources: `{setting}{install}`"
    if built is not None and _is_stable(built):
        if _numbers(torch.__version__) < _numbers(_OLDEST_STABLE):
            cure += f" Or install a torch that fits it: `pip install 'torch>={_OLDEST_STABLE}'`."
    elif built is not None and _minor(built["torch"]) != _minor(torch.__version__):
        cure += f" Or install a torch that fits it: `pip install 'torch=={_minor(built['torch'])}.*'`."
    return cure


def _in_checkout() -> bool:
    return os.path.exists(os.path.join(os.path.dirname(_FOLDER), "setup.py"))


def _hidden() -> str | None:
    """The folder of an installed halfgnn that Python does not import because the sources come first in sys.path."""
    for place in sys.path:
        folder = os.path.join(os.path.abspath(place), "halfgnn")
        if os.path.realpath(folder) != os.path.realpath(_FOLDER) and os.path.exists(os.path.join(folder, "_C.so")):
            return folder
    return None


def _why_missing() -> str:
    """What to say if there is no library."""
    hidden = _hidden() if _in_checkout() and not _NAMED else None
    if hidden is None:
        return f"halfgnn's operators are not built: {_PATH} is missing. {_cure(None)}"
    root = os.path.dirname(_FOLDER)
    return (
        f"halfgnn is installed in {hidden}, but Python imports the sources in {root} instead, which are not built. Start Python"
        f" in another folder. Or install the sources in place: `cd {root} && pip install --no-build-isolation -e .`"
    )


def _load() -> dict[str, Any]:
    """Loads the library. Returns the facts that setup.py wrote beside it, {} if something else built it."""
    check_settings(os.environ)
    if not os.path.exists(_PATH):
        raise ImportError(_why_missing())
    built = _built_for(_PATH)
    reason = built and _why_unfit(built, torch.__version__, torch.version.cuda, torch.compiled_with_cxx11_abi())
    if reason:
        raise ImportError(f"{_PATH} {reason}. {_cure(built)}")
    try:
        torch.ops.load_library(_PATH)
    except OSError as error:
        raise ImportError(f"{_PATH} does not load with torch {torch.__version__}. {_cure(built)} ({error})") from error
    _load_autograd()
    if built and _is_stable(built):
        _stable_abi.complete("halfgnn")
        _stable_abi.complete_errors("halfgnn_autograd")
    return built or {}


def _load_autograd() -> None:
    """Loads the autograd Functions in C++ (csrc/torch/autograd), which call PyTorch by ATen, beside the torch that they fit.

    Beside another one the Functions in Python do the same.
    """
    path = os.path.join(_FOLDER, "_autograd.so")
    built = _built_for(path) if os.path.exists(path) else None
    if built and _why_unfit({**built, "cuda": None}, torch.__version__, None, torch.compiled_with_cxx11_abi()) is None:
        torch.ops.load_library(path)


_FACTS = _load()


def path() -> str:
    """Of the library that was loaded."""
    return _PATH


def facts() -> dict[str, Any]:
    """What setup.py wrote beside the library; {} if something else built it."""
    return dict(_FACTS)


def built_for() -> str:
    """The versions of torch that the library fits."""
    return _fitting(_FACTS) if _FACTS else "that it does not name"


def cpu_kernels() -> str:
    """The table of CPU kernels that the library uses, as HALFGNN_CPU names it. Empty if it does not say: the simulator has none."""
    name = getattr(ctypes.CDLL(_PATH), "halfgnn_cpu_kernels", None)
    if name is None:
        return ""
    name.restype = ctypes.c_char_p
    return str(name().decode())


def has_autograd() -> bool:
    """Whether the autograd Functions in C++ were loaded."""
    return hasattr(torch.ops.halfgnn_autograd, "gspmm")


def has_cuda() -> bool:
    """Whether the CUDA back end was compiled in (a GPU need not be present)."""
    return torch._C._dispatch_has_kernel_for_dispatch_key("halfgnn::gspmm", "CUDA")


# ---- GPUs ------------------------------------------------------------------------------------------------------------------------

_LEFT_OUT = "HALFGNN_CUDA=0"  # what setup.py writes as the reason if the user left out the CUDA back end
_served: set[torch.device] = set()  # GPUs that this library has kernels for


def _warn_without_cuda() -> None:
    """Warns on a machine with a GPU if the build found no toolkit. pip shows what a build prints only with -v."""
    reason = _FACTS.get("without_cuda")
    # device_count asks the driver's library for management, so that processes can still be forked.
    if reason not in (None, _LEFT_OUT) and torch.cuda.device_count() > 0:
        warnings.warn(f"{_no_cuda()} HALFGNN_CUDA=0 builds for CPUs without this warning.", stacklevel=2)


def _no_cuda() -> str:
    reason = _FACTS.get("without_cuda")
    because = f" ({reason})" if reason else ""
    return f"halfgnn was built without its CUDA back end{because}. {_cure(None, 'HALFGNN_CUDA=1')}"


def check_device(device: torch.device) -> None:
    """Raises RuntimeError if the library has no kernels for a GPU. Looks at each GPU once."""
    if torch.compiler.is_dynamo_compiling() or device in _served:
        return
    reason = why_unserved(device) if torch.cuda.is_available() else None  # without a GPU the tensor is a fake one
    if reason:
        raise RuntimeError(reason)
    _served.add(device)


def why_cuda_is_idle() -> str | None:
    """Why the CUDA back end that the library has is unusable beside this torch; None if it is of use, or there is none."""
    if _is_same_cuda(_FACTS, torch.version.cuda):
        return None
    here = f"is for CUDA {torch.version.cuda}" if torch.version.cuda else "was built without CUDA"
    major = _FACTS["cuda"].split(".")[0]
    return (
        f"halfgnn was built for CUDA {major}, and torch {torch.__version__} {here}: install a torch for CUDA {major}"
        f" (https://download.pytorch.org/whl/cu{major}0), or use halfgnn on the CPU"
    )


def why_unserved(device: torch.device) -> str | None:
    """Why the library has no kernels for a GPU; None if it has."""
    if not has_cuda():
        return _no_cuda()
    if idle := why_cuda_is_idle():
        return idle
    archs = _FACTS.get("archs")
    capability = torch.cuda.get_device_capability(device)
    if not archs or _runs_on(capability, archs):
        return None
    version = "{}.{}".format(*capability)
    return (
        f"halfgnn was built for {', '.join(archs)}. None of them runs on {device}, {torch.cuda.get_device_name(device)}, of"
        f" compute capability {version}. {_cure(None, f'TORCH_CUDA_ARCH_LIST={version}')}"
    )


def _runs_on(capability: tuple[int, int], archs: list[str]) -> bool:
    """Whether a GPU has machine code (sm_) of its major version, or PTX (compute_), that is not newer than the GPU."""
    for arch in archs:
        kind, major, minor, suffix = re.fullmatch(r"(sm|compute)_(\d+)(\d)([af]?)", arch).groups()  # type: ignore[union-attr]
        version = int(major), int(minor)
        if suffix == "a":  # of this GPU alone
            fits = version == capability
        else:
            fits = version <= capability and (version[0] == capability[0] or (kind == "compute" and not suffix))
        if fits:
            return True
    return False


_warn_without_cuda()
