"""Builds the simulator: csrc with its CUDA kernels for the CPU, under AddressSanitizer, UBSan and gcov.

    python laboratory/simt/build.py            builds build/simt/libhalfgnn_simt.so and libsimt_selftest.so, prints their paths
    python laboratory/simt/build.py --kernels  compiles what needs no torch, if it can: nearly all, while torch is installed

Needs g++ with its sanitizer libraries, ninja, torch, and CUDA's headers: those of a toolkit or those that torch's CUDA
builds from PyPI bring along. JOBS is the number of compilers that run at once (2).
"""

from __future__ import annotations

import argparse
import fcntl
import functools
import glob
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT))
import build_sources  # noqa: E402
import cuda_toolkit  # noqa: E402

# For `make quick`: without sanitizers and line counts, and in a folder of its own.
QUICK = bool(os.environ.get("HALFGNN_SIMT_QUICK"))
BUILD = ROOT / "build" / ("quick/simt" if QUICK else "simt")
LIBRARY = BUILD / "libhalfgnn_simt.so"
SELFTEST = BUILD / "libsimt_selftest.so"
LAUNCHED = BUILD / "launched"  # a file of each process: where in the library the kernels are that it ran
CXX = os.environ.get("CXX", "g++")

# Left out of UndefinedBehaviorSanitizer is what AddressSanitizer sees at the access: compilation is a quarter faster.
SANITIZERS = [
    "-fsanitize=address,undefined",
    "-fno-sanitize=vptr,null,object-size,pointer-overflow,nonnull-attribute,returns-nonnull-attribute",
    "-fno-sanitize-recover=all",
]
# Kernels for bfloat16 are those for fp16, element for element at the same addresses and in nearly the same lines: of the two,
# sanitizers watch fp16's alone and lines are counted in fp16's alone, which takes most of their compilation. Of fp32's kernels only
# AddressSanitizer watches the accesses, with the race check: UndefinedBehaviorSanitizer would double their compilation, and sees
# the same lines in fp16's. Results are checked of all. This variable of the environment, not empty, has every type
# watched and counted in full: `run.py --full` sets it.
WATCH_EVERY_TYPE = "HALFGNN_WATCH_EVERY_TYPE"
AS_FP16 = ("bfloat16",)
ACCESSES_ALONE = ("float",)
# Checks of accesses pass by races.cpp.
WRAPPED = [f"-Wl,--wrap=__asan_{access}{size}" for access in ("load", "store") for size in (1, 2, 4, 8, 16, "N")]
COMMON = [
    "-std=c++17",
    "-g1",
    "-fPIC",
    "-fvisibility=hidden",
    "-fno-omit-frame-pointer",
    "-Wall",
    "-Wextra",
    "-Wno-psabi",
]


class CannotBuild(RuntimeError):
    """The simulator cannot be built here, and why."""


# ---- what is there -------------------------------------------------------------------------------


def _candidate_includes():
    home = cuda_toolkit.find_cuda_home()
    if home:
        yield Path(home) / "include"
    spec = importlib.util.find_spec("nvidia")
    for place in spec.submodule_search_locations if spec else []:
        yield from map(Path, sorted(glob.glob(os.path.join(place, "cu*", "include")), reverse=True))
        yield Path(place) / "cuda_runtime" / "include"


def cuda_include() -> Path:
    for path in _candidate_includes():
        if all((path / name).is_file() for name in ("cuda_fp16.h", "cuda_bf16.h", "cuda_runtime_api.h")):
            return path
    raise CannotBuild("no CUDA headers were found (of a toolkit, or those that torch's CUDA builds bring along)")


def _library_of_compiler(name):
    path = subprocess.run([CXX, f"-print-file-name={name}"], capture_output=True, text=True, check=True).stdout.strip()
    if not os.path.isabs(path):
        raise CannotBuild(f"{CXX} has no {name}")
    return os.path.realpath(path)


@functools.cache
def sanitizer_libraries() -> tuple[str, ...]:
    """To be preloaded into a process that loads the simulator."""
    if shutil.which(CXX) is None:
        raise CannotBuild(f"there is no {CXX}")
    return _library_of_compiler("libasan.so"), _library_of_compiler("libubsan.so")


def _ninja():
    beside = Path(sys.executable).with_name("ninja")
    found = str(beside) if beside.is_file() else shutil.which("ninja")
    if found is None:
        raise CannotBuild("there is no ninja")
    return found


def why_not() -> str | None:
    """Why the simulator cannot be built here; None if nothing speaks against it."""
    try:
        if not sys.platform.startswith("linux"):
            raise CannotBuild(f"the simulator is for Linux, not for {sys.platform}")
        sanitizer_libraries()
        cuda_include()
        _ninja()
    except CannotBuild as error:
        return str(error)
    return None


# ---- the ninja file ------------------------------------------------------------------------------


def _torch_flags():
    import torch

    torch_root = Path(torch.__file__).parent
    compiling = [f"-isystem{torch_root / folder}" for folder in ("include", "include/torch/csrc/api/include")]
    compiling += [f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}"]
    libraries = torch_root / "lib"
    return compiling, [f"-L{libraries}", f"-Wl,-rpath,{libraries}", "-lc10", "-ltorch_cpu", "-ltorch"]


def kernel_sources(types=tuple(build_sources.TYPES)) -> list[Path]:
    """Those of the benchmarks' yardsticks too: one library has all."""
    return [*build_sources.cuda_kernels(types), *build_sources.cuda_yardsticks()[1]]


def counted_types() -> tuple[str, ...]:
    """Types of elements whose kernels have sanitizers and count lines."""
    return tuple(name for name in build_sources.TYPES if _watches_every_type() or name not in AS_FP16)


def _watches_every_type() -> bool:
    return bool(os.environ.get(WATCH_EVERY_TYPE))


def object_name(source: Path) -> str:
    return f"{source.parent.name}.{source.name}.o"


class Ninja:
    """Collects rules and objects of one ninja file."""

    def __init__(self):
        self.lines = [
            "ninja_required_version = 1.5",
            "rule cxx",
            "  command = $cxx -MMD -MF $out.d $flags -x c++ -c $in -o $out",
            "  depfile = $out.d",
            "  deps = gcc",
            "  description = compile $in",
            "rule shared_variables",
            f"  command = {shlex.quote(sys.executable)} $script --shared-variables $out $in",
            "  description = shared variables of $in",
            "rule assemble",
            "  command = $cxx -c $in -o $out",
            "rule link",
            "  command = $cxx -shared $in -o $out $flags",
            "  description = link $out",
            f"cxx = {CXX}",
            f"script = {HERE / 'build.py'}",
        ]

    def add(self, rule, output, inputs, flags=(), implicit=()):
        after = f" | {' '.join(map(str, implicit))}" if implicit else ""
        self.lines += [f"build {output}: {rule} {' '.join(map(str, inputs))}{after}", f"  flags = {shlex.join(flags)}"]
        return output

    def compile(self, folder, sources, flags):
        return [self.add("cxx", BUILD / folder / object_name(s), [s], flags) for s in sources]

    def library(self, output, folder, kernels, others, flags):
        """kernels: objects whose thread-local variables are shared memory."""
        source = BUILD / folder / "shared_variables.s"
        self.add("shared_variables", source, kernels, implicit=[HERE / "build.py"])
        shared = self.add("assemble", source.with_suffix(".o"), [source])
        inputs, linking = [*kernels, *others, shared], [*SANITIZERS, *WRAPPED, "-Wl,-Bsymbolic", "-Wl,-z,defs", *flags]
        self.add("link", output, inputs, linking)

    def text(self):
        return "\n".join(self.lines) + "\n"


def _all_bindings():
    sources = [*build_sources.operators("aten"), *build_sources.cuda_bindings()]
    sources += [HERE / "chunks.cc", HERE / "combine.cc", HERE / "row_teams.cc"]
    sources += [*build_sources.yardsticks(), *build_sources.cuda_yardsticks()[0]]
    return build_sources.write(BUILD / "bindings" / "all.cpp", build_sources.include_all(sources))


def _ninja_file(with_torch: bool) -> tuple[str, list[Path]]:
    """Its text, and the objects that need no torch."""

    def sources(pattern):
        return sorted(ROOT.glob(pattern))

    includes = ["-include", "crt/host_defines.h", f"-I{HERE / 'include'}", f"-isystem{cuda_include()}"]

    def kernel(optimization, *sanitizers):
        return [
            *COMMON,
            optimization,
            *includes,
            *sanitizers,
            # Checks of accesses as calls: a quarter less to compile, and races.cpp stands between.
            "--param=asan-instrumentation-with-call-threshold=0",
            "-Wno-unknown-pragmas",
            "-fno-extern-tls-init",
            # `assert` of a kernel fails the kernel.
            "-D__assert_fail=simt_assert_fail",
        ]

    # The machine itself is trusted, and must be fast.
    machine = [*COMMON, "-O2", *includes]

    ninja = Ninja()
    runtime = ninja.compile("runtime", sources("laboratory/simt/*.cpp"), machine)
    selftest = ninja.compile("selftest", [HERE / "selftest.cu"], kernel("-O1", *SANITIZERS))
    ninja.library(SELFTEST, "selftest", selftest, runtime, [])
    counted = [] if QUICK else kernel_sources(counted_types())
    as_fp16 = [source for source in kernel_sources() if source not in counted]
    # Only kernels count lines: they are what coverage.py reports.
    others = [name for name in build_sources.TYPES if name not in ACCESSES_ALONE]
    full = [source for source in counted if _watches_every_type() or source in kernel_sources(others)]
    accesses = [source for source in counted if source not in full]
    kernels = ninja.compile("kernels", full, [*kernel("-O1", *SANITIZERS), "--coverage"])
    kernels += ninja.compile("kernels", accesses, [*kernel("-O1", "-fsanitize=address"), "--coverage"])
    kernels += ninja.compile("kernels", [HERE / "row_teams.cu"], kernel("-O1", *SANITIZERS))
    kernels += ninja.compile("kernels", as_fp16, kernel("-O0"))
    dump = ninja.compile("kernels", [HERE / "coverage_dump.cc"], [*COMMON, "--coverage"])
    if with_torch:
        torch_compiling, torch_linking = _torch_flags()
        # Bindings are compiled as fast as can be: they pass pointers on, and the kernels see what is wrong with one.
        binding = [*COMMON, "-O0", "-Wno-unknown-pragmas", *includes, *torch_compiling]
        binding += ["-DHALFGNN_CUDA_DEVICE=at::kCPU", "-DHALFGNN_CUDA_KEY=CPU"]
        bindings = ninja.compile("bindings", [_all_bindings()], binding)
        ninja.library(LIBRARY, "kernels", kernels, [*dump, *bindings, *runtime], ["--coverage", *torch_linking])
    return ninja.text(), [*kernels, *dump, *runtime, *selftest]


# ---- shared memory -------------------------------------------------------------------------------


def _thread_locals(objects, undefined):
    """Names of the thread-local variables that the objects use but do not define, or that they define."""
    listing = subprocess.run(["readelf", "--symbols", "--wide", *objects], capture_output=True, text=True, check=True)
    fields = (line.split() for line in listing.stdout.splitlines())
    return sorted({f[7] for f in fields if len(f) >= 8 and f[3] == "TLS" and (f[6] == "UND") == undefined})


def shared_variables(objects) -> str:
    """Assembler source that puts every `extern __shared__` variable of the objects at simt_dynamic_shared."""
    names = sorted({*_thread_locals(objects, undefined=True), "simt_dynamic_shared"})
    lines = ['.section .tbss,"awT",@nobits', ".balign 1024"]
    for name in names:
        lines += [f".globl {name}", f".hidden {name}", f".type {name}, @tls_object", f"{name}:"]
    return "\n".join([*lines, f".zero {227 * 1024}", '.section .note.GNU-stack,"",@progbits', ""])


# ---- building ------------------------------------------------------------------------------------


def build(jobs=None, kernels_only=False) -> None:
    """Brings the libraries up to date, or only what needs no torch; waits for another process that does. Raises CannotBuild."""
    reason = why_not()
    if reason:
        raise CannotBuild(reason)
    for folder in ("runtime", "selftest", "kernels", "bindings", "launched"):
        (BUILD / folder).mkdir(parents=True, exist_ok=True)
    with open(BUILD / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        text, objects = _ninja_file(with_torch=not kernels_only)
        targets = objects if kernels_only else [LIBRARY] if QUICK else [LIBRARY, SELFTEST]
        build_sources.write(BUILD / "build.ninja", text)
        jobs = jobs or os.environ.get("JOBS", "2")
        command = [_ninja(), "-C", str(BUILD), "-j", str(jobs), *map(str, targets)]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        (BUILD / "build.log").write_text(done.stdout)
        for counts in (BUILD / "kernels").glob("*.gcda"):  # of an object that has been compiled again
            if counts.stat().st_mtime < counts.with_suffix(".o").stat().st_mtime:
                counts.unlink()
    if done.returncode != 0:
        raise RuntimeError(f"the simulator does not build:\n{done.stdout[-8000:]}")


def environment(library=LIBRARY, **settings) -> dict[str, str]:
    """Variables for a process that is to run on the simulator. settings: as in device.h, seed=3 for instance."""
    return {
        **os.environ,
        "LD_PRELOAD": " ".join(sanitizer_libraries()),
        # Python and torch leak by design. Freed memory is kept for a while, not for ever.
        "ASAN_OPTIONS": "detect_leaks=0:detect_stack_use_after_return=0:allocator_may_return_null=1:"
        "alloc_dealloc_mismatch=0:detect_odr_violation=0:quarantine_size_mb=64:malloc_context_size=8",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "HALFGNN_LIBRARY": str(library),
        "HALFGNN_SIMT": "1",
        "OMP_NUM_THREADS": "1",
        **{f"HALFGNN_SIMT_{name.upper()}": str(value) for name, value in settings.items()},
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shared-variables", nargs="+", metavar="FILE", help=argparse.SUPPRESS)
    parser.add_argument("--jobs", type=int)
    parser.add_argument("--kernels", action="store_true", help="only what needs no torch, if it can be built")
    args = parser.parse_args()
    if args.shared_variables:
        output, *objects = args.shared_variables
        Path(output).write_text(shared_variables(objects))
        return
    if args.kernels and (reason := why_not()):
        print(f"the simulator's kernels are not compiled yet: {reason}")
        return
    try:
        build(args.jobs, args.kernels)
    except RuntimeError as error:
        sys.exit(str(error))
    if not args.kernels:
        print(LIBRARY, SELFTEST, sep="\n")


if __name__ == "__main__":
    main()
