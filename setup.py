"""Builds halfgnn/_C.so: operators, CPU kernels and, if a CUDA toolkit is found, CUDA kernels; and halfgnn/_autograd.so, their
autograd Functions in C++. In a checkout also the benchmarks' yardsticks (benchmarks/yardsticks/_yardsticks.so), which are not
shipped.

The library has no Python symbols (torch.ops.load_library loads it), so one build and one wheel serve every Python. By
PyTorch's stable ABI it also serves torch 2.10 and every later one. By ATen it fits only the minor version of torch for
which it was built. halfgnn/_C.json beside it records which torch it fits (halfgnn/_library.py compares it with the
installed one), and so does the wheel's Requires-Dist. _C.json also has the architectures of the CUDA back end, or why there
is none.

Environment variables:

* HALFGNN_CUDA=0 builds only the CPU back end. HALFGNN_CUDA=1 fails if the CUDA back end cannot be built.
* HALFGNN_ABI=stable or aten chooses the implementation of csrc/torch. By default a CPU back end alone is built by the stable
  ABI where torch has it, and a library with the CUDA back end by ATen: its errors keep their class (torch.OutOfMemoryError),
  and it waits for no stream.
* HALFGNN_DISTRIBUTION=halfgnn-cu13 gives the wheel of a library by the stable ABI with its CUDA back end a name of its own, kernels
  for the GPUs of cuda_toolkit.WHEEL_ARCHS, and the first torch that PyPI has for CUDA 13.
* TORCH_CUDA_ARCH_LIST and MAX_JOBS: as for any PyTorch extension.
* DEBUG=1 makes warnings errors.
* HALFGNN_TABLE=avx2, for `make quick`, builds the CPU back end for one instruction set of build_sources.py, and compiles it
  as fast as can be.
* HALFGNN_SANITIZE=1, for `make fuzz`, builds the CPU back end with AddressSanitizer and UBSan. Their libraries must be
  preloaded.
"""

from __future__ import annotations

import copy
import difflib
import email
import itertools
import json
import os
import re
import shlex
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import setuptools
from setuptools import Extension, setup

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:  # setuptools before 70.1
    from wheel.bdist_wheel import bdist_wheel

ROOT = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, ROOT)
import build_sources  # noqa: E402
import cuda_toolkit  # noqa: E402

OLDEST_PYTHON = (3, 10)
OLDEST_TORCH = (2, 4)
OLDEST_STABLE_TORCH = (2, 10)
WITHOUT_TORCH = {"sdist", "egg_info"}
SHIPPING = {"bdist_wheel", "develop", "editable_wheel", "install"}
WITH_TORCH = {"bdist_wheel", "build", "build_ext", "develop", "dist_info", "editable_wheel", "install"}
NO_TORCH = """halfgnn is compiled against the installed torch, but this build sees no torch.
By default pip builds in a separate environment without it. Install torch if you have not, and then type

    pip install setuptools wheel ninja && pip install --no-build-isolation {sources}"""
# Settings that a build does not read, and the beginnings of those of tests.
NOT_OF_BUILDS = (
    "HALFGNN_COMMIT",
    "HALFGNN_CPU",
    "HALFGNN_DATA",
    "HALFGNN_DOT_PHASES",
    "HALFGNN_HIDDEN",
    "HALFGNN_LIBRARY",
    "HALFGNN_TENSOR_CORES",
    "HALFGNN_WATCH_EVERY_TYPE",
)
OF_TESTS = ("HALFGNN_SIMT", "HALFGNN_TEST_")
# Of each: major version of CUDA, and the first torch whose wheels on PyPI are for it.
FOR_GPUS = {"halfgnn-cu13": ("13", (2, 11))}
# AddressSanitizer checks accesses, so UndefinedBehaviorSanitizer need not. vptr would need PyTorch's type information.
SANITIZERS = [
    "-fsanitize=address,undefined",
    "-fno-sanitize=vptr,null,object-size,pointer-overflow,nonnull-attribute,returns-nonnull-attribute",
    "-fno-sanitize-recover=all",
]


# ---- what is built -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Config:
    """What is built, of the environment variables, the installed torch and the CUDA toolkit."""

    torch: ModuleType
    cuda_home: str | None  # None: only the CPU back end is built
    without_cuda: str | None  # why
    abi: str  # stable or aten
    distribution: str  # the name of the wheel
    table: str | None  # the instruction set of a quick build
    is_sanitized: bool
    is_strict: bool  # warnings are errors

    @classmethod
    def from_environment(cls) -> Config | None:
        """None if only sources are packed. Raises SystemExit for settings that are misspelt, or that this machine cannot build."""
        check_settings()
        torch = import_torch()
        if torch is None:
            return None
        table, is_sanitized = os.environ.get("HALFGNN_TABLE"), os.environ.get("HALFGNN_SANITIZE") == "1"
        home, reason = cuda_home(torch, is_cpu_only=bool(table or is_sanitized))
        config = cls(
            torch=torch,
            cuda_home=home,
            without_cuda=reason,
            abi=chosen_abi(torch, home),
            distribution=os.environ.get("HALFGNN_DISTRIBUTION") or "halfgnn",
            table=table,
            is_sanitized=is_sanitized,
            is_strict=os.environ.get("DEBUG") == "1",
        )
        check_distribution(config)
        return config

    @property
    def is_for_gpus(self) -> bool:
        """Whether the wheel has a name of its own, for the kernels that it has."""
        return self.distribution in FOR_GPUS

    @property
    def is_trial(self) -> bool:
        """Whether the library is that of `make quick` or `make fuzz`, which nobody installs."""
        return self.is_sanitized or bool(self.table)


def import_torch():
    """The torch to build for. None if only sources are packed, which fit any torch."""
    if sys.version_info < OLDEST_PYTHON:
        raise SystemExit(
            f"halfgnn needs Python {written(OLDEST_PYTHON)} or later; this is {written(sys.version_info[:2])}"
        )
    if WITHOUT_TORCH & set(sys.argv) and not WITH_TORCH & set(sys.argv):
        return None
    try:
        import torch
    except ImportError:
        raise SystemExit(NO_TORCH.format(sources=sources())) from None
    if release_of(torch) < OLDEST_TORCH:
        raise SystemExit(f"halfgnn needs torch {written(OLDEST_TORCH)} or later; {torch.__version__} is installed")
    return torch


def sources():
    """What pip was given: this folder, or a source distribution, which pip unpacks where it deletes it afterwards."""
    info = Path(ROOT, "PKG-INFO")
    options, extras = asked()
    if not info.is_file():
        return options + (f"'.{extras}'" if extras else ".")
    facts = email.message_from_string(info.read_text(encoding="utf-8"))
    file = f"{facts['Name']}-{facts['Version']}.tar.gz"
    return f"'{file}{extras}'" if extras else file


def asked():
    """("-e " or "", the extras in brackets or "") of the command that runs this build. pip does not tell them to a build."""
    try:
        words = Path(f"/proc/{os.getppid()}/cmdline").read_text(encoding="utf-8", errors="replace").split("\0")
    except OSError:  # not Linux
        return "", ""
    for before, word in itertools.pairwise(words):
        path, extras = re.fullmatch(r"(.*?)(\[[\w,. -]+\])?", word, re.DOTALL).groups()
        is_here = path == "." or "halfgnn" in path or (os.path.isdir(path) and os.path.samefile(path, ROOT))
        if is_here and (extras or before in ("-e", "--editable")):
            return "-e " if before in ("-e", "--editable") else "", extras or ""
    return "", ""


def release_of(torch):
    """(major, minor)"""
    return tuple(int(part) for part in torch.__version__.split(".")[:2])


def written(version):
    return ".".join(str(part) for part in version)


def check_settings():
    """A setting that is misspelt would start another build than the one that is wanted, which takes many minutes."""
    known = {
        "HALFGNN_CUDA": ("0", "1"),
        "HALFGNN_SANITIZE": ("0", "1"),
        "HALFGNN_TABLE": tuple(build_sources.INSTRUCTION_SETS),
    }
    for name, values in known.items():
        value = os.environ.get(name)
        if value and value not in values:
            raise SystemExit(f"{name} is {value}; expected {' or '.join(values)}, or no value")
    names = (*known, "HALFGNN_ABI", "HALFGNN_DISTRIBUTION", *NOT_OF_BUILDS)
    for name in sorted(os.environ):
        if name.startswith("HALFGNN_") and name not in names and not name.startswith(OF_TESTS):
            near = difflib.get_close_matches(name, names, 1, cutoff=0.9)
            raise SystemExit(f"{name} is no setting of halfgnn{f'; did you mean {near[0]}?' if near else ''}")


def cuda_home(torch, is_cpu_only):
    """(root of the toolkit for the CUDA back end, None), or (None, why only the CPU back end is built)."""
    wish = os.environ.get("HALFGNN_CUDA")
    if wish == "0" or is_cpu_only:
        return None, "HALFGNN_CUDA=0" if wish == "0" else None
    home = cuda_toolkit.find_cuda_home()
    reason = cuda_toolkit.why_no_cuda(torch, home)
    if reason is None:
        return home, None
    if wish == "1":
        raise SystemExit(f"HALFGNN_CUDA=1, but the CUDA back end cannot be built: {reason}")
    print(f"halfgnn: building only the CPU back end: {reason}")
    return None, reason


def chosen_abi(torch, home):
    """stable or aten. home: that of cuda_home()."""
    wish = os.environ.get("HALFGNN_ABI") or None
    has_stable = release_of(torch) >= OLDEST_STABLE_TORCH
    if wish is None:
        return "stable" if has_stable and home is None else "aten"
    if wish not in ("stable", "aten"):
        raise SystemExit(f"HALFGNN_ABI is {wish}; expected stable or aten")
    if wish == "stable" and not has_stable:
        raise SystemExit(
            f"HALFGNN_ABI=stable needs torch {written(OLDEST_STABLE_TORCH)} or later; {torch.__version__} is installed"
        )
    return wish


def check_distribution(config):
    """A name of its own says what is in the wheel."""
    name = config.distribution
    if name != "halfgnn" and not config.is_for_gpus:
        raise SystemExit(f"HALFGNN_DISTRIBUTION is {name}; expected halfgnn or one of {', '.join(FOR_GPUS)}")
    if not config.is_for_gpus:
        return
    major, oldest = FOR_GPUS[name]
    has_major = (config.torch.version.cuda or "").split(".")[0] == major
    if config.cuda_home is None or config.abi != "stable" or not has_major:
        raise SystemExit(
            f"HALFGNN_DISTRIBUTION={name} is a library by the stable ABI with kernels for CUDA {major}: it needs"
            f" HALFGNN_CUDA=1, HALFGNN_ABI=stable and torch {written(oldest)} or later for CUDA {major}"
        )


# ---- the library -------------------------------------------------------------------------------------------------------------


def stable_flags(config):
    """No function that is newer than the oldest torch can be called. USE_CUDA: PyTorch's functions for CUDA."""
    major, minor = OLDEST_STABLE_TORCH
    flags = ["-DHALFGNN_STABLE_ABI", f"-DTORCH_TARGET_VERSION=0x{major:02x}{minor:02x}000000000000"]
    return [*flags, "-DUSE_CUDA"] if config.cuda_home else flags


def together(config, name, files, abi):
    """Writes a file that includes `files`, and returns its path. Reading PyTorch's headers takes most of the
    compilation time, and one file reads them once. The file also says which dispatch keys have kernels.

    Each torch has its own file, because ninja does not see that headers of PyTorch have changed. So have a CPU back end alone and
    a library with both back ends, which may be built at once.
    abi: the implementation of csrc/torch.
    """
    keys = "#define HALFGNN_CPU_KEY CPU\n" + ("#define HALFGNN_CUDA_KEY CUDA\n" if config.cuda_home else "")
    kind = "fuzz" if config.is_sanitized else "quick" if config.table else ""
    variant = f"{abi}-cuda" if config.cuda_home else abi
    path = os.path.join("build", kind, f"torch-{config.torch.__version__}", variant, f"{name}.cpp")
    build_sources.write(Path(path), keys + build_sources.include_all(files))
    return path


def relative(files):
    """Objects lie where their sources do, below the folder of the build."""
    return [os.path.relpath(file, ROOT) for file in files]


def prefix_maps(torch):
    """Flags that keep paths of this machine out of error messages."""
    folder = os.path.dirname(torch.__file__)
    of_torch = sorted({folder, os.path.realpath(folder)})  # gcc follows links to system headers
    return [f"-ffile-prefix-map={ROOT}/=", *(f"-ffile-prefix-map={path}=torch" for path in of_torch)]


def cxx_flags(config, abi):
    from torch.utils.cpp_extension import include_paths

    # BuildExtension adds the C++ standard of this torch. PyTorch's headers are system headers, so their warnings are
    # not shown.
    # Nobody reads errno, and a square root that sets it is not taken of vectors.
    flags = ["-O3", "-g0", "-fno-math-errno", "-fopenmp", "-fvisibility=hidden", "-Wall", "-Wextra", "-Wno-psabi"]
    flags += [f"-isystem{path}" for path in include_paths()] + (["-Werror"] if config.is_strict else [])
    flags += prefix_maps(config.torch)
    if abi == "stable":
        flags += stable_flags(config)
    if config.is_sanitized:
        flags += ["-O1", "-g1", "-fno-omit-frame-pointer", *SANITIZERS]
    if config.table:
        flags += ["-O1", f"-DHALFGNN_TABLE={build_sources.INSTRUCTION_SETS[config.table][0]}"]
    if config.cuda_home:
        flags.append(f"-isystem{os.path.join(config.cuda_home, 'include')}")
    return flags


def extension(config, name, sources, abi) -> Extension:
    from torch.utils.cpp_extension import library_paths

    # No torch_python, and no OpenMP runtime: symbols resolve to the runtime of torch, so threads are shared.
    # torch_cpu exports parts of the C++ runtime, on which a library for every torch must not rely: that runtime comes first.
    libraries = ["stdc++", "torch_cpu", "torch"] if abi == "stable" else ["c10", "torch_cpu", "torch"]
    compile_args, link_args = {"cxx": cxx_flags(config, abi)}, []
    if config.is_sanitized:
        link_args += SANITIZERS
    home = config.cuda_home
    if home:
        maps = [f"-Xcompiler={flag}" for flag in prefix_maps(config.torch)]
        compile_args["nvcc"] = [*cuda_toolkit.nvcc_flags(home, config.is_strict, config.is_for_gpus), *maps]
        link_args += cuda_toolkit.cudart_link_args(home, static=abi == "stable")
        if abi == "stable":  # libtorch.so brings libtorch_cuda.so, if there is one: csrc/torch/stable/cuda.h
            link_args.append("-Wl,--no-as-needed")
        else:
            libraries.append("c10_cuda")
    return Extension(
        name,
        sources,
        library_dirs=library_paths(),
        libraries=libraries,
        extra_compile_args=compile_args,
        extra_link_args=link_args,
        language="c++",
    )


def operators(config) -> Extension:
    bindings, abi = build_sources.cpu_bindings(), config.abi
    kernels = build_sources.cpu_kernels([config.table] if config.table else build_sources.INSTRUCTION_SETS)
    if config.cuda_home:
        bindings += build_sources.cuda_bindings()
        kernels += build_sources.cuda_kernels()
    parts = {"operators": build_sources.operators(abi), "bindings": bindings}
    written_files = [together(config, name, files, abi) for name, files in parts.items()]
    return extension(config, "halfgnn._C", [*written_files, *relative(kernels)], abi)


def autograd(config) -> list[Extension]:
    """The autograd Functions in C++: a library of its own, always by ATen. The stable ABI has none, and so a library by it
    gets them beside the torch that it was built with."""
    files = [together(config, "autograd", build_sources.autograd(), "aten")]
    return [] if config.is_trial else [extension(config, "halfgnn._autograd", files, "aten")]


def yardsticks(config) -> list[Extension]:
    """For the benchmarks and their tests: built by setup.py's own commands, and no part of a wheel or an installation.
    Always by ATen."""
    if config.is_trial or not {"build", "build_ext"} & set(sys.argv) or SHIPPING & set(sys.argv):
        return []
    bindings, kernels = build_sources.yardsticks(), []
    if config.cuda_home:
        cuda_bindings, kernels = build_sources.cuda_yardsticks()
        bindings += cuda_bindings
    files = [together(config, "yardsticks", bindings, "aten"), *relative(kernels)]
    return [extension(config, "benchmarks.yardsticks._yardsticks", files, "aten")]


def build_command(config):
    from torch.utils.cpp_extension import BuildExtension

    class Build(BuildExtension):
        """Names a library _C.so for every Python, and writes beside it for which torch and GPUs it was built."""

        def get_ext_filename(self, fullname):
            return os.path.join(*fullname.split(".")) + ".so"

        def get_outputs(self):
            libraries = super().get_outputs()
            return [*libraries, *(self._facts(file) for file in libraries)]

        def run(self):
            check_compiler()
            super().run()
            for ext in self.extensions:  # with --inplace also in the checkout
                facts = built_for(config, config.abi if ext.name == "halfgnn._C" else "aten")
                Path(self._facts(self.get_ext_fullpath(ext.name))).write_text(json.dumps(facts, indent=1) + "\n")

        def finalize_options(self):
            super().finalize_options()
            if os.environ.get("MAX_JOBS") != "1":
                self.parallel = self.parallel or True  # two of the libraries are one file each

        def build_extension(self, ext):
            """In a folder of its own: ninja has one file in each. In a copy: several libraries are built at once."""
            of_one = copy.copy(self)
            if ext.name != "halfgnn._C":
                of_one.build_temp = os.path.join(self.build_temp, ext.name)
            BuildExtension.build_extension(of_one, ext)

        @staticmethod
        def _facts(library):
            return os.path.splitext(library)[0] + ".json"

    return Build.with_options(use_ninja=True)


def check_compiler():
    """Otherwise ninja would print every command that has failed."""
    command = os.environ.get("CXX") or "c++"
    if shutil.which(shlex.split(command)[0]) is None:
        raise SystemExit(
            f"halfgnn is compiled by a C++ compiler, and {command} was not found. Install g++ (`apt install g++`), or name"
            " a compiler in CXX."
        )


def built_for(config, abi):
    torch, home = config.torch, config.cuda_home
    facts = {
        "torch": torch.__version__,
        "abi": abi,
        "cuda": torch.version.cuda if home else None,
        "cxx11_abi": torch.compiled_with_cxx11_abi(),
    }
    if home is None:
        return facts | {"without_cuda": config.without_cuda}
    from torch.utils.cpp_extension import _get_cuda_arch_flags

    flags = cuda_toolkit.arch_flags(home, config.is_for_gpus) or _get_cuda_arch_flags()
    return facts | {"archs": cuda_toolkit.archs_of(flags)}


# ---- the wheel ---------------------------------------------------------------------------------------------------------------


def without_link(link):
    text, file = link.groups()
    return text if file in ("", text) else f"{text} ({file})"


def metadata():
    """What pyproject.toml cannot say to all versions of setuptools, or not of this README."""
    key = "license_expression" if int(setuptools.__version__.split(".")[0]) >= 77 else "license"
    readme = Path(ROOT, "README.md").read_text(encoding="utf-8")
    # Beside the README of an index page there are no files, and its headings have no anchors.
    readme = re.sub(r"!\[[^\]]*\]\([^)]*\)\n*", "", readme)
    readme = re.sub(r"\[([^\]]+)\]\((?!https?:)([^)#]*)[^)]*\)", without_link, readme)
    return {key: "Apache-2.0", "long_description": readme, "long_description_content_type": "text/markdown"}


class Wheel(bdist_wheel):
    def get_tag(self):
        """One wheel for every Python: the library has no Python symbols."""
        return "py3", "none", super().get_tag()[2]


def distribution_of(wanted):
    class Distribution(setuptools.Distribution):
        """Of the name that is asked for: pyproject.toml must name one, and it comes before setup()'s."""

        def parse_config_files(self, *args, **kwargs):
            super().parse_config_files(*args, **kwargs)
            self.metadata.name = wanted
            own = re.compile(r"^halfgnn\[")
            extras = {
                name: [own.sub(f"{wanted}[", line) for line in lines] for name, lines in self.extras_require.items()
            }
            self.extras_require = extras

    return Distribution


def required_torch(config):
    """Of the library that is built."""
    if config.is_for_gpus:
        return f"torch>={written(FOR_GPUS[config.distribution][1])}"
    is_stable = config.abi == "stable"
    return f"torch>={written(OLDEST_STABLE_TORCH)}" if is_stable else f"torch=={written(release_of(config.torch))}.*"


def main():
    config = Config.from_environment()
    if config is None:
        return setup(install_requires=[f"torch>={written(OLDEST_TORCH)}"], **metadata())
    if config.cuda_home:  # before the import of cpp_extension, which looks once and cannot see through wrappers
        os.environ["CUDA_HOME"] = config.cuda_home
    return setup(
        ext_modules=[operators(config), *autograd(config), *yardsticks(config)],
        install_requires=[required_torch(config)],
        distclass=distribution_of(config.distribution),
        cmdclass={"build_ext": build_command(config), "bdist_wheel": Wheel},
        **metadata(),
    )


main()
