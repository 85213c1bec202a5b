"""Builds the wheel of the CPU back end by PyTorch's stable ABI, installs this one wheel beside several versions of torch, tests it
there and prints a table (`make wheels`).

    python tests/wheels.py 2.10.0 2.15.0@python3.13 --folder build/wheels
    python tests/wheels.py 2.11.0 2.14.1 --cuda             the wheel halfgnn-cu13, with kernels for GPUs. None is run
    python tests/wheels.py --machine aarch64                builds alone, by a cross compiler

Each version has its own environment. The wheel's tag is that of the oldest C and C++ runtimes with which it can be loaded, and
depends on this machine's: .github/workflows/wheels.yml builds in an image whose runtimes give manylinux_2_28. Tests run in a
folder without the sources, so that they import what was installed.
"""

import argparse
import os
import shutil
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests import matrix

ROOT = matrix.ROOT
HEADER = (
    "Python",
    "torch",
    "pip install, s",
    "to the first result, s",
    "self-test",
    "passed",
    "failed",
    "skipped",
    "errors",
)
TOOLS = ("auditwheel", "patchelf")
OF_TORCH = ("libc10.so", "libtorch.so", "libtorch_cpu.so")
FOR_CUDA = "halfgnn-cu13"
MOST_MEGABYTES = 100  # PyPI takes no larger file unless it is asked
# What may differ from one torch to the next: boxing of every type of argument, errors, autograd, functorch, compilation.
SAMPLE = [
    *(
        f"tests/ops/test_{name}.py"
        for name in ("raw_ops", "errors", "copy_u_reduce", "gather_rows", "compile", "fake_kernels")
    ),
    *("tests/ops/test_attention_autograd.py", "tests/ops/test_no_grad.py", "tests/packaging/test_stable_abi.py"),
]
FIRST_RESULT = """
import torch, halfgnn
from halfgnn import ops
ids = torch.arange(6)
g = halfgnn.Graph.from_edges(ids, ids.roll(1), num_src=6, num_dst=6)
assert torch.equal(ops.copy_u_sum(g, torch.eye(6)), torch.eye(6).roll(-1, 0))
assert "site-packages" in halfgnn.__file__, halfgnn.__file__
"""


def build(folder, cuda, machine):
    """The wheel, with the tag that auditwheel finds for it. machine: of another kind than this, or None."""
    made, repaired = folder / "made", folder / "repaired"
    for old in (made, repaired):
        shutil.rmtree(old, ignore_errors=True)
    settings = {"HALFGNN_CUDA": "01"[cuda], "HALFGNN_ABI": "stable"}
    settings |= {"HALFGNN_DISTRIBUTION": FOR_CUDA} if cuda else {}
    tag = ()
    if machine:
        settings |= cross_compiler(folder, machine)
        tag = ("--plat-name", f"linux_{machine}")
    # As an option of a file: with build among the commands, bdist_wheel would compile everything again.
    (folder / "options.cfg").write_text(f"[build]\nbuild_base = {folder / 'build'}\n")
    settings["DIST_EXTRA_CONFIG"] = str(folder / "options.cfg")
    command = ("setup.py", "-q", "bdist_wheel", "-d", made, *tag)
    matrix.run(folder / "build.log", sys.executable, *command, **settings)
    wheel = repair(next(made.glob("*.whl")), folder, repaired)
    if wheel.stat().st_size > 1e6 * MOST_MEGABYTES:
        raise matrix.Failed(f"{wheel} has {wheel.stat().st_size / 1e6:.0f} MB; expected at most {MOST_MEGABYTES}")
    return wheel


def cross_compiler(folder, machine):
    """Settings by which setup.py compiles for another machine. Headers are the same, and PyTorch's libraries are linked as empty
    ones of their names: their symbols are found when the library is loaded."""
    compiler = f"{machine}-linux-gnu-g++"
    if shutil.which(compiler) is None:
        raise matrix.Failed(
            f"there is no {compiler} (on Debian: apt install g++-{machine.replace('_', '-')}-linux-gnu)"
        )
    stubs = folder / "stubs"
    stubs.mkdir(parents=True, exist_ok=True)
    for name in OF_TORCH:
        stub = ("-shared", "-nostdlib", f"-Wl,-soname,{name}", "-x", "c++", "/dev/null", "-o", stubs / name)
        matrix.run(folder / "stubs.log", compiler, *stub)
    link = f"{compiler} -shared -Wl,--no-as-needed -L{stubs}"
    return {"CXX": compiler, "CC": compiler.replace("g++", "gcc"), "LDSHARED": link, "LDCXXSHARED": link}


def repair(wheel, folder, repaired):
    tools = folder / "tools" / "bin"
    if not (tools / TOOLS[0]).exists():
        matrix.run(folder / "venv.log", sys.executable, "-m", "venv", "--clear", folder / "tools")
        matrix.run(folder / "pip.log", tools / "python", "-m", "pip", "install", "-q", *TOOLS)
    left_out = [argument for name in OF_TORCH for argument in ("--exclude", name)]
    path = f"{tools}:{os.environ['PATH']}"
    matrix.run(folder / "repair.log", tools / "auditwheel", "repair", *left_out, "-w", repaired, wheel, PATH=path)
    return next(repaired.glob("*.whl"))


def seconds(log, *command, **environment):
    begin = time.monotonic()
    matrix.run(log, *command, **environment)
    return time.monotonic() - begin


def sources(folder):
    """A folder with the tests and without halfgnn."""
    place = folder / "run"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    shutil.copytree(ROOT / "tests", place / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", place)
    return place


def measure(name, wheel, options):
    """A row of the table, and the names of the tests that did not pass."""
    version, _, wish = name.partition("@")
    folder = options.folder / name.replace("/", "-")
    folder.mkdir(parents=True, exist_ok=True)
    runners = [line for line in matrix.requirements("test") if line.startswith("pytest")]
    python = matrix.make_environment(folder, version, wish, ["numpy", *runners])
    place = sources(folder)
    # Both distributions hold the same package.
    matrix.run(folder / "uninstall.log", python, "-m", "pip", "uninstall", "-q", "-y", "halfgnn", FOR_CUDA)
    pip = (python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--force-reinstall", "--no-deps", wheel)
    installation = seconds(folder / "install.log", *pip)
    first = seconds(folder / "first.log", python, "-c", FIRST_RESULT, cwd=place)
    matrix.run(folder / "self-test.log", python, "-m", "halfgnn", cwd=place)
    results = folder / "results.xml"
    results.unlink(missing_ok=True)
    pytest = (python, "-m", "pytest", "-q", "-n", options.jobs, "-p", "no:cacheprovider", f"--junitxml={results}")
    matrix.run(folder / "test.log", *pytest, *(options.tests or SAMPLE), accept=(0, 1), cwd=place)
    counts, unhappy = matrix.count(results)
    row = [*matrix.versions(python), f"{installation:.1f}", f"{installation + first:.1f}", "passed", *counts]
    return row, unhappy


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "versions", nargs="*", metavar="VERSION[@PYTHON]", help="version of torch, and an interpreter for it"
    )
    parser.add_argument(
        "--folder", type=Path, default=ROOT / "build" / "wheels", help="folder for environments, the wheel and logs"
    )
    parser.add_argument("--wheel", type=Path, help="a wheel that was built before")
    parser.add_argument("--cuda", action="store_true", help=f"build {FOR_CUDA}, with the CUDA back end")
    parser.add_argument("--machine", help="build the CPU back end for this kind of machine (aarch64) and test nothing")
    parser.add_argument("--jobs", default="2", help="processes that run tests")
    parser.add_argument("--tests", nargs="*", help="files or other arguments of pytest in place of the sample")
    options = parser.parse_args()
    if options.machine and (options.cuda or options.versions):
        parser.error("--machine builds the wheel of the CPU back end alone; nothing of it runs here")
    if not options.machine and not options.versions:
        parser.error("expected versions of torch")
    options.folder = options.folder.resolve()
    own = options.folder / (FOR_CUDA if options.cuda else options.machine or "")
    own.mkdir(parents=True, exist_ok=True)
    try:
        wheel = (options.wheel or build(own, options.cuda, options.machine)).resolve()
    except matrix.Failed as error:
        sys.exit(str(error))
    print(f"{wheel}: {wheel.stat().st_size / 2**20:.1f} MiB\n")
    if options.machine:
        return
    sys.exit(matrix.table(options.versions, HEADER, lambda name: measure(name, wheel, options)))


if __name__ == "__main__":
    main()
