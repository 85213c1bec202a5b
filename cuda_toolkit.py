"""Finds the CUDA toolkit, and has the flags to compile and link with it. Imports nothing that needs a GPU."""

import glob
import importlib.util
import os
import re
import shutil
import subprocess

# Machine code runs on later minor versions of the same major version: 86 on 8.7 and 8.9, 100 on 10.3, 120 on 12.1. 8.6 and
# 8.9 hold fewer threads and less shared memory than 8.0, and differ in nothing that these kernels use.
WANTED_ARCHS = ("70", "75", "80", "86", "90", "100", "120")
# The driver compiles PTX for newer GPUs. PTX of 120 would leave out 11.0.
PTX_ARCH = "100"
# Of a wheel for x86-64, where there is no 11.0.
WHEEL_ARCHS = ("80", "86", "89", "90", "100", "120")
# Compiled to PTX once with another one: no kernel's source tells these from 8.0, and reading it is two thirds of the time.
PTX_OF = {"86": "80", "89": "80"}
# From this toolkit on every driver that runs its code can also read the smallest form of fat binaries.
OLDEST_SMALL = 13


def _toolkit_of(nvcc):
    """Root of the toolkit of `nvcc`, which may be a link or a wrapper script."""
    root = os.path.dirname(os.path.dirname(os.path.realpath(nvcc)))
    if os.path.isfile(os.path.join(root, "include", "cuda_runtime_api.h")):
        return root
    plan = subprocess.run([nvcc, "--dryrun", "-c", "x.cu"], capture_output=True, text=True, check=False)
    top = re.search(r"^#\$ TOP=(.+)$", plan.stderr, re.MULTILINE)
    return os.path.normpath(top.group(1).strip()) if top else None


def _pypi_toolkits():
    """Folders such as nvidia/cu13, into which PyPI's cuda-toolkit[nvcc] is installed."""
    spec = importlib.util.find_spec("nvidia")
    places = list(spec.submodule_search_locations) if spec else []
    return [
        os.path.dirname(os.path.dirname(nvcc))
        for place in places
        for nvcc in sorted(glob.glob(os.path.join(place, "cu*", "bin", "nvcc")), reverse=True)
    ]


def find_cuda_home():
    """Root of a toolkit (bin/nvcc, include/), or None. Looks in CUDA_HOME, CUDA_PATH, PATH, PyPI, /usr/local/cuda."""
    named = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    if named:
        candidates = [named]  # no other toolkit silently replaces the one that the user names
    else:
        on_path = shutil.which("nvcc")
        candidates = [_toolkit_of(on_path) if on_path else None, *_pypi_toolkits(), "/usr/local/cuda"]
    for root in filter(None, candidates):
        if os.path.isfile(os.path.join(root, "bin", "nvcc")):
            return root
    return None


def _nvcc(cuda_home, *args):
    nvcc = os.path.join(cuda_home, "bin", "nvcc")
    return subprocess.run([nvcc, *args], capture_output=True, text=True, check=True).stdout


def _major(cuda_home):
    return int(re.search(r"release (\d+)\.", _nvcc(cuda_home, "--version")).group(1))


def why_no_cuda(torch, cuda_home):
    """Why the CUDA back end cannot be built, or None if it can."""
    if torch.version.cuda is None:
        return f"torch {torch.__version__} was built without CUDA"
    if cuda_home is None:
        return "no CUDA toolkit was found (set CUDA_HOME, put nvcc on PATH, or pip install cuda-toolkit[nvcc,cccl])"
    major = _major(cuda_home)
    if major != int(torch.version.cuda.split(".")[0]):
        return f"the CUDA {major} toolkit in {cuda_home} does not fit torch's CUDA {torch.version.cuda}"
    return None


def arch_flags(cuda_home, for_wheel=False):
    """-gencode flags. None if TORCH_CUDA_ARCH_LIST is set, because BuildExtension then makes them."""
    if os.environ.get("TORCH_CUDA_ARCH_LIST"):
        return []
    known = set(_nvcc(cuda_home, "--list-gpu-code").split())
    archs = [arch for arch in (WHEEL_ARCHS if for_wheel else WANTED_ARCHS) if f"sm_{arch}" in known]
    ptx = PTX_ARCH if PTX_ARCH in archs and not for_wheel else archs[-1]
    return [f"-gencode=arch=compute_{PTX_OF.get(arch, arch)},code=sm_{arch}" for arch in archs] + [
        f"-gencode=arch=compute_{ptx},code=compute_{ptx}"
    ]


def archs_of(flags):
    """The machine code (sm_90) and the PTX (compute_90) that -gencode flags ask for."""
    return [code for flag in flags for code in re.findall(r"code=((?:sm|compute)_\w+)", flag)]


def nvcc_flags(cuda_home, debug=False, for_wheel=False):
    flags = ["-std=c++17", "-O3", "-Wno-deprecated-gpu-targets", "-Xcompiler=-fvisibility=hidden,-Wall"]
    if debug:  # spills and local memory are errors too
        flags += ["--Werror=all-warnings", "-Xptxas=--warn-on-spills,--warn-on-local-memory-usage,--warning-as-error"]
    if _major(cuda_home) >= OLDEST_SMALL:
        flags.append("--compress-mode=size")
    return flags + arch_flags(cuda_home, for_wheel)


def cudart_link_args(cuda_home, static=False):
    """Linker arguments for the CUDA runtime. The PyPI toolkit has the shared one only under its versioned name.

    At run time torch has already loaded the same library. The rpath is needed only if torch hides its library.
    static: a runtime of the library's own, whose names nothing outside sees. It looks for the driver on its first call, so that
    the library loads beside any torch, on any machine. Both runtimes use the primary context of a GPU.
    """
    name = "libcudart_static.a" if static else "libcudart.so*"
    for folder in (
        "lib64",
        "lib",
        os.path.join("targets", "x86_64-linux", "lib"),
        os.path.join("targets", "sbsa-linux", "lib"),
    ):
        found = sorted(glob.glob(os.path.join(cuda_home, folder, name)), key=len)
        if found and static:
            return [found[0], f"-Wl,--exclude-libs,{name}", "-lrt", "-lpthread", "-ldl"]
        if found:
            path = os.path.realpath(os.path.dirname(found[0]))
            return [f"-L{path}", f"-l:{os.path.basename(found[0])}", f"-Wl,-rpath,{path}"]
    raise FileNotFoundError(f"no {name.rstrip('*')} in {cuda_home}")
