"""What the C++ and CUDA sources may include: some folders nothing of PyTorch, and each folder only those below it; and how kernels
ask for the architecture."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SUFFIXES = (".h", ".cuh", ".cpp", ".cu")
# Folder: others whose files its own may include. A file belongs to the innermost of these folders.
MAY_INCLUDE = {
    "csrc/core": (),
    "csrc/cpu/kernels": ("csrc/core",),
    "csrc/cuda/kernels": ("csrc/core",),
    "csrc/torch/aten": ("csrc/torch",),
    "csrc/torch/stable": ("csrc/torch",),
    "csrc/torch/autograd": (),
    "csrc/torch": ("csrc/torch/aten", "csrc/torch/stable"),
    "csrc/cpu": ("csrc/core", "csrc/cpu/kernels", "csrc/torch"),
    "csrc/cuda": ("csrc/core", "csrc/cuda/kernels", "csrc/torch"),
    "csrc/ops": ("csrc/core", "csrc/cpu", "csrc/cuda", "csrc/torch"),
    "csrc": ("csrc/ops", "csrc/torch"),
    "benchmarks/yardsticks": ("csrc/core", "csrc/cuda", "csrc/cuda/kernels", "csrc/ops", "csrc/torch"),
}
PYTORCH = re.compile(r"(ATen|c10|torch|caffe2)/")
# Of the stable ABI: C functions of shims, and headers that compile to nothing of PyTorch.
UNSTABLE = re.compile(
    r"(ATen|c10|caffe2)/|torch/(?!csrc/stable/c/|csrc/inductor/aoti_torch/(c|generated)/|headeronly/)"
)
CUDA = re.compile(r"(cuda|cuda_\w+\.h|crt|cub|thrust)\b")
FORBIDDEN = {
    "csrc/core": (PYTORCH, CUDA),
    "csrc/cpu/kernels": (PYTORCH, CUDA),
    "csrc/cuda/kernels": (PYTORCH,),
    "csrc/torch/stable": (UNSTABLE,),
    "csrc/torch": (PYTORCH, CUDA),
    "csrc/cpu": (PYTORCH, CUDA),
    "csrc/cuda": (PYTORCH,),
    "csrc/ops": (PYTORCH, CUDA),
    "csrc": (PYTORCH, CUDA),
}


def folder_of(path: str) -> str:
    return max((folder for folder in MAY_INCLUDE if path.startswith(f"{folder}/")), key=len)


def complaint(root: Path, file: Path, name: str, quoted: bool) -> str | None:
    """What is wrong with one #include of a file; None if nothing is."""
    folder = folder_of(file.relative_to(root).as_posix())
    if any(pattern.match(name) for pattern in FORBIDDEN.get(folder, ())):
        return f"{folder} includes nothing of {name}"
    if not quoted:
        return None
    target = (file.parent / name).resolve()
    if not target.is_file():
        return f"there is no {name}"
    below = folder_of(target.relative_to(root).as_posix())
    allowed = (folder, *MAY_INCLUDE[folder])
    return None if below in allowed else f"{folder} includes {', '.join(allowed)}, not {below}"


def violations(root: Path) -> list[str]:
    found = []
    for file in sorted(
        path for top in ("csrc", "benchmarks") for path in (root / top).rglob("*") if path.suffix in SUFFIXES
    ):
        for bracket, name in re.findall(r'^\s*#\s*include\s*([<"])([^>"]+)', file.read_text(), re.MULTILINE):
            reason = complaint(root, file, name, bracket == '"')
            found += [f"{file.relative_to(root)}: {reason}"] if reason else []
    return found


def test_sources_include_only_what_is_below_them():
    if not (ROOT / "csrc").is_dir():
        pytest.skip("the sources are not here")
    assert violations(ROOT) == []


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("csrc/core/types.h", "#include <ATen/core/Tensor.h>"),
        ("csrc/core/types.h", "#include <cuda_runtime.h>"),
        ("csrc/core/types.h", '#include "../cpu/threads.h"'),
        ("csrc/core/types.h", '#include "../cuda/kernels/core/launch.h"'),
        ("csrc/cpu/kernels/vec.h", "#include <c10/util/Half.h>"),
        ("csrc/cpu/kernels/vec.h", '#include "../threads.h"'),
        ("csrc/cpu/threads.h", '#include "../cuda/stream.h"'),
        ("csrc/cpu/threads.h", "#include <ATen/Parallel.h>"),
        ("csrc/ops/checks.h", "#include <c10/util/Exception.h>"),
        ("csrc/ops/checks.h", '#include "../torch/stable/tensor.h"'),
        ("csrc/torch/stable/tensor.h", "#include <torch/library.h>"),
        ("csrc/torch/stable/tensor.h", '#include "../../core/types.h"'),
        ("csrc/cuda/kernels/core/launch.h", "#include <torch/library.h>"),
        ("csrc/cuda/kernels/core/launch.h", '#include "../../stream.h"'),
        ("csrc/cuda/kernels/core/launch.h", '#include "../../../ops/checks.h"'),
        ("csrc/cuda/stream.h", '  #  include "../cpu/threads.h"'),
        ("csrc/cuda/stream.h", '#include "../ops/checks.h"'),
        ("csrc/cpu/threads.h", '#include "../ops/checks.h"'),
        ("csrc/ops/checks.h", "#include <cuda_runtime_api.h>"),
        ("csrc/ops/checks.h", '#include "../core/gone.h"'),
        ("csrc/ops/checks.h", '#include "../../benchmarks/yardsticks/scalar.h"'),
        ("benchmarks/yardsticks/scalar.h", '#include "../../csrc/cpu/threads.h"'),
        ("csrc/ops/checks.h", '#include "../cpu/kernels/vec.h"'),
    ],
)
def test_what_is_not_below_is_found(tmp_path, file, line):
    names = [
        f"csrc/{name}"
        for name in (
            *("core/types.h", "cpu/threads.h", "cpu/kernels/vec.h", "cuda/stream.h", "ops/checks.h"),
            "torch/stable/tensor.h",
        )
    ]
    for name in (*names, "benchmarks/yardsticks/scalar.h"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("#pragma once\n#include <cstdint>\n#include <vector>\n")
    launch = tmp_path / "csrc/cuda/kernels/core/launch.h"
    launch.parent.mkdir(parents=True)
    launch.write_text('#include <cuda_runtime_api.h>\n#include "../../../core/types.h"\n')
    assert violations(tmp_path) == []
    with open(tmp_path / file, "a") as source:
        source.write(f"{line}\n")
    (found,) = violations(tmp_path)
    assert found.startswith(f"{file}: ")


# ---- the architecture ----------------------------------------------------------------------------

# Where kernels may compare __CUDA_ARCH__, so that the simulator executes one side alone: inline PTX, and what is not declared.
COMPARED = re.compile(r"__CUDA_ARCH__\s*[<>=!]")
MAY_COMPARE = ("core/async_copy.cuh", "core/mma.cuh", "core/uniform.cuh", "spmm/code_vector.cuh")


def test_branches_on_the_architecture_run_on_the_simulator():
    """Others ask HALFGNN_ARCH, which the simulator sets (core/arch.cuh)."""
    kernels = ROOT / "csrc" / "cuda"
    if not kernels.is_dir():
        pytest.skip("the sources are not here")
    sources = sorted(path for path in kernels.rglob("*") if path.suffix in SUFFIXES)
    compare = {path for path in sources if COMPARED.search(path.read_text())}
    assert compare == {kernels / "kernels" / name for name in MAY_COMPARE}
