"""Builds halfgnn/_C.so: operators, CPU kernels and, where a CUDA toolkit is found, CUDA kernels.

The library has no Python symbols (torch.ops.load_library loads it), so one build serves every Python. Environment:
HALFGNN_CUDA=0 builds the CPU half alone, HALFGNN_CUDA=1 fails where the CUDA half cannot be built; TORCH_CUDA_ARCH_LIST and
MAX_JOBS as for any PyTorch extension; DEBUG=1 makes warnings errors.
"""

import glob
import os
import sys
from pathlib import Path

import torch
from setuptools import Extension, setup

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import cuda_toolkit

DEBUG = os.environ.get("DEBUG") == "1"
# Compiled once an instruction set, without PyTorch's headers.
CPU_KERNELS = ("kernels_default", "kernels_avx2", "attention_default", "attention_avx2")


def cuda_home():
    """Root of the toolkit to build the CUDA half with, or None for the CPU half alone."""
    wish = os.environ.get("HALFGNN_CUDA")
    if wish == "0":
        return None
    home = cuda_toolkit.find_cuda_home()
    reason = cuda_toolkit.why_no_cuda(torch, home)
    if reason is None:
        return home
    if wish == "1":
        raise RuntimeError(f"HALFGNN_CUDA=1, but the CUDA half cannot be built: {reason}")
    print(f"halfgnn: building the CPU half alone: {reason}")
    return None


CUDA_HOME = cuda_home()
if CUDA_HOME:
    os.environ["CUDA_HOME"] = (
        CUDA_HOME  # before cpp_extension is imported: it looks once, and cannot see through wrappers
    )
from torch.utils.cpp_extension import BuildExtension, include_paths, library_paths  # noqa: E402


def together(name, files):
    """A file that includes these: reading PyTorch's headers is most of their compilation, and is done once."""
    path = os.path.join("build", f"{name}.cpp")
    text = "".join(f'#include "{os.path.abspath(file)}"\n' for file in sorted(files))
    os.makedirs("build", exist_ok=True)
    written = Path(path)
    if not written.exists() or written.read_text() != text:  # ninja looks at the time
        written.write_text(text)
    return path


def extension() -> Extension:
    # System headers: their warnings are not ours.
    cxx = ["-std=c++17", "-O3", "-g0", "-fopenmp", "-fvisibility=hidden", "-Wall", "-Wextra", "-Wno-psabi"]
    cxx += [f"-isystem{path}" for path in include_paths()] + (["-Werror"] if DEBUG else [])
    kernels = [f"csrc/cpu/{name}.cpp" for name in CPU_KERNELS]
    bindings = set(glob.glob("csrc/cpu/*.cpp")) - set(kernels)
    operators = ["csrc/library.cpp", *glob.glob("csrc/common/*.cpp"), *glob.glob("csrc/ops/*.cpp")]
    # No torch_python, and no OpenMP of our own: symbols resolve to the runtime that torch brings, so threads are shared.
    libraries = ["c10", "torch_cpu", "torch"]
    compile_args, link_args = {"cxx": cxx}, []
    if CUDA_HOME:
        bindings |= set(glob.glob("csrc/cuda/*.cpp"))
        kernels += sorted(glob.glob("csrc/kernels/*.cu"))
        cxx.append(f"-isystem{os.path.join(CUDA_HOME, 'include')}")
        libraries.append("c10_cuda")
        compile_args["nvcc"] = cuda_toolkit.nvcc_flags(CUDA_HOME, debug=DEBUG)
        link_args += cuda_toolkit.cudart_link_args(CUDA_HOME)
    return Extension(
        "halfgnn._C",
        [together("operators", operators), together("bindings", bindings), *kernels],
        library_dirs=library_paths(),
        libraries=libraries,
        extra_compile_args=compile_args,
        extra_link_args=link_args,
        language="c++",
    )


class Build(BuildExtension):
    """Names the library _C.so whatever the Python."""

    def get_ext_filename(self, fullname):
        return os.path.join(*fullname.split(".")) + ".so"


setup(ext_modules=[extension()], cmdclass={"build_ext": Build.with_options(use_ninja=True)})
