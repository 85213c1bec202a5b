"""Loads the compiled operators, torch.ops.halfgnn.*."""

import os

import torch

# HALFGNN_LIBRARY names another build of the same operators: the simulator of tests/simt, a sanitizer build.
_PATH = os.environ.get("HALFGNN_LIBRARY") or os.path.join(os.path.dirname(os.path.abspath(__file__)), "_C.so")

if not os.path.exists(_PATH):
    raise ImportError(
        f"halfgnn's operators are not built: {_PATH} is missing. "
        "Run `pip install .` or, in a checkout, `python setup.py build_ext --inplace`."
    )
try:
    torch.ops.load_library(_PATH)
except OSError as error:
    raise ImportError(
        f"halfgnn's operators do not load with torch {torch.__version__}; they were probably built against another "
        f"version. Build them again: `python setup.py build_ext --inplace`. ({error})"
    ) from error


def has_cuda() -> bool:
    """Whether the CUDA half was compiled in (a GPU need not be present)."""
    return torch._C._dispatch_has_kernel_for_dispatch_key("halfgnn::gspmm", "CUDA")
