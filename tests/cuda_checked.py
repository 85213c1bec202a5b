"""Whether the CUDA half has changed since all of its checks passed: those of the simulator and of its machine code.

    python tests/cuda_checked.py            prints 1 if it has to be compiled and checked, as `make test` asks; 0 if not
    python tests/cuda_checked.py --record   notes that they passed for the sources of the last commit, as `make test-all` does

It takes most of a test run. On a machine with a GPU the answer is 1. Needs only Python: make asks before it installs anything.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RECORD = "tests/cuda_checked.json"
# What the CUDA half, the simulator and their checks are made of, and the Python that decides what kernels are given.
FOLDERS = (
    ("csrc/core/", ""),
    ("csrc/cuda/", ""),
    ("csrc/ops/", ""),
    ("benchmarks/yardsticks/", ""),
    ("halfgnn/ops/", ".py"),
    ("tests/machine_code/", ""),
    ("tests/simt/", ""),
)
FILES = ("csrc/library.cpp", "build_sources.py", "cuda_toolkit.py")
_GPUS = ("/dev/nvidia0", "/dev/nvidiactl", "/dev/dxg")
_BUILT = {"__pycache__", "_yardsticks.so", "_yardsticks.json"}


def is_input(path: str) -> bool:
    """path: below the project's folder."""
    return path in FILES or any(path.startswith(folder) and path.endswith(ending) for folder, ending in FOLDERS)


def inputs(root: Path = ROOT) -> list[str]:
    """Paths below root, in order."""
    found = {path for folder, ending in FOLDERS for path in (root / folder).rglob(f"*{ending}") if path.is_file()}
    names = {path.relative_to(root).as_posix() for path in found if _BUILT.isdisjoint(path.parts)}
    return sorted(names | {path for path in FILES if (root / path).is_file()})


def digest(paths: Iterable[str], read: Callable[[str], bytes]) -> str:
    """Of the names of files and of what `read` says is in them."""
    sums = "".join(f"{hashlib.sha256(read(path)).hexdigest()} {path}\n" for path in sorted(paths))
    return hashlib.sha256(sums.encode()).hexdigest()


def current(root: Path = ROOT) -> str:
    return digest(inputs(root), lambda path: (root / path).read_bytes())


def must_check(root: Path = ROOT, gpus: Iterable[str] = _GPUS) -> bool:
    record = root / RECORD
    if not record.is_file() or any(Path(gpu).exists() for gpu in gpus):
        return True
    return bool(json.loads(record.read_text())["digest"] != current(root))


def record(root: Path = ROOT) -> None:
    """Raises SystemExit if the sources are not those of the last commit."""

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=True).stdout.strip()

    changed = git("status", "--porcelain", "--", *inputs(root))
    if changed:
        raise SystemExit(f"not recorded, because these differ from the last commit:\n{changed}")
    facts = {"commit": git("rev-parse", "HEAD"), "digest": current(root)}
    (root / RECORD).write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--record", action="store_true", help="note that all checks passed")
    if parser.parse_args().record:
        record()
    else:
        print(int(must_check()))
    sys.exit(0)
