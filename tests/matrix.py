"""Runs the tests of the CPU back end on several versions of torch and prints a table of the results (`make test-matrix`).

    python tests/matrix.py 2.4.1 2.15.0@python3.13 --folder build/matrix

Each version has its own environment and its own build beside that of the checkout. `--environments "/some/where/t{}"`
names existing environments, with the version in place of {}; nothing is installed in them. The suite runs without
laboratory/simt and tests/gpu, which need CUDA.
"""

import argparse
import datetime
import os
import platform
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTHONS = ("python3.11", "python3.10", "python3.12", "python3.13")  # DGL's wheels are for the first two
NOT_NEEDED = ("-r ", "torch==", "ruff", "clang-format", "mypy", "nvidia-")  # of the requirements
HEADER = ("Python", "torch", "passed", "failed", "skipped", "errors", "minutes", "processor", "date")


class Failed(Exception):
    pass


def run(log, *command, accept=(0,), cwd=ROOT, **environment):
    """Runs the command in the folder `cwd`, with its output in the file `log`. Raises Failed if it ends with a status not
    in `accept`."""
    with open(log, "w") as file:
        result = subprocess.run(
            [str(part) for part in command],
            cwd=cwd,
            env={**os.environ, **environment},
            stdout=file,
            stderr=subprocess.STDOUT,
            check=False,
        )
    if result.returncode not in accept:
        tail = "".join(log.read_text(errors="replace").splitlines(keepends=True)[-20:])
        raise Failed(f"exit status {result.returncode}; the end of {log}:\n{tail}")


def find_python(wish):
    """The interpreter `wish`, or without it the first of PYTHONS that exists, on PATH or in pyenv."""
    for name in [wish] if wish else PYTHONS:
        found = shutil.which(name)
        if (
            found and subprocess.run([found, "-c", ""], capture_output=True, check=False).returncode == 0
        ):  # no idle shim
            return found
        of_pyenv = sorted(Path.home().glob(f".pyenv/versions/{name.removeprefix('python')}.*/bin/python"))
        if of_pyenv:
            return str(of_pyenv[-1])
    raise Failed(f"no {wish or ' or '.join(PYTHONS)} was found")


def requirements(name):
    lines = (ROOT / "requirements" / f"{name}.txt").read_text().splitlines()
    return [line for line in lines if line and not line.startswith(("#", *NOT_NEEDED))]


def make_environment(folder, version, wish, wanted=None):
    """The Python of an environment with that torch and the packages `wanted`, by default the tests' requirements. The
    environment is kept for later runs."""
    python = folder / "env" / "bin" / "python"
    if not (folder / "installed").exists():
        run(folder / "venv.log", find_python(wish), "-m", "venv", "--clear", folder / "env")
        pip = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-compile"]
        every = [*requirements("build"), *requirements("demo"), *requirements("test")]
        run(folder / "pip.log", *pip, f"torch=={version}", *(every if wanted is None else wanted))
        if wanted is None:
            run(folder / "pip-data.log", *pip, "--no-deps", *requirements("data"))
        (folder / "installed").touch()
    return python


def build(folder, python):
    """The library of the CPU back end for the torch of that Python."""
    run(folder / "build.log", python, "setup.py", "-q", "build", "-b", folder, "--build-lib", folder, HALFGNN_CUDA="0")
    return folder / "halfgnn" / "_C.so"


def versions(python):
    """Of that Python and its torch."""
    code = "import platform, torch; print(platform.python_version(), torch.__version__)"
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.split()


def count(results):
    """The numbers of tests that passed, failed, were skipped or had errors, and the names of those that failed or had
    errors."""
    suite = ElementTree.parse(results).getroot().find("testsuite")
    failed, errors, skipped = (int(suite.get(name)) for name in ("failures", "errors", "skipped"))
    passed = int(suite.get("tests")) - failed - errors - skipped
    cases = (
        case for case in suite.iter("testcase") if case.find("failure") is not None or case.find("error") is not None
    )
    return (passed, failed, skipped, errors), [f"{case.get('classname')}::{case.get('name')}" for case in cases]


def processor():
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def measure(name, options):
    """A row of the table, and the names of the tests that did not pass."""
    version, _, wish = name.partition("@")
    folder = options.folder.resolve() / name.replace("/", "-")
    folder.mkdir(parents=True, exist_ok=True)
    if options.environments:
        python = Path(options.environments.replace("{}", version)) / "bin" / "python"
    else:
        python = make_environment(folder, version, wish)
    library, results = build(folder, python), folder / "results.xml"
    results.unlink(missing_ok=True)
    parallel = ["-n", options.jobs, "--dist", "worksteal", "-p", "no:cacheprovider"]
    apart = ["--ignore=laboratory/simt", "--ignore=tests/gpu", f"--junitxml={results}"]
    begin = time.monotonic()
    tests = options.tests or ["tests", "laboratory"]
    run(
        folder / "test.log",
        python,
        "-m",
        "pytest",
        "-q",
        *parallel,
        *apart,
        *tests,
        accept=(0, 1),
        HALFGNN_LIBRARY=str(library),
    )
    minutes = (time.monotonic() - begin) / 60
    counts, unhappy = count(results)
    return [*versions(python), *counts, f"{minutes:.0f}", processor(), datetime.date.today().isoformat()], unhappy


def table(names, header, measure):
    """Prints a row of each version, whose Python and torch come first, and what did not pass. measure(name): the row and
    the names of what did not pass. Returns the exit status."""
    rows, bad = [], []
    for name in names:
        try:
            row, unhappy = measure(name)
        except (Failed, OSError) as error:
            row, unhappy = ["", name, *["-"] * (len(header) - 2)], [str(error)]
        rows.append(row)
        bad += [f"torch {name}: {line}" for line in unhappy]
    for line in (header, ["---"] * len(header), *rows):
        print("| " + " | ".join(map(str, line)) + " |")
    print(*bad, sep="\n")
    return 1 if bad else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "versions", nargs="+", metavar="VERSION[@PYTHON]", help="version of torch, and an interpreter for it"
    )
    parser.add_argument(
        "--folder", type=Path, default=ROOT / "build" / "matrix", help="folder for environments, builds and logs"
    )
    parser.add_argument("--environments", metavar="PATTERN", help="existing environments, with {} for the version")
    parser.add_argument("--jobs", default="2", help="processes that run tests")
    parser.add_argument("--tests", nargs="*", help="files or other arguments of pytest in place of the whole suite")
    options = parser.parse_args()
    if options.environments and "{}" not in options.environments:
        parser.error(f"--environments is {options.environments!r}; expected a path with {{}} for the version")
    sys.exit(table(options.versions, HEADER, lambda name: measure(name, options)))


if __name__ == "__main__":
    main()
