"""What takes most of a test run and has not changed since its checks passed: it is neither compiled nor checked again.

    python tests/checked.py cuda      prints 1 if the CUDA back end has to be compiled and checked, as `make test` asks; 0 if not
    python tests/checked.py --record  notes that all checks passed for the sources of the last commit, as `make test-all` does

With HALFGNN_TEST_ALL=1 everything is checked, and on a machine with a GPU the CUDA back end is. Needs only Python: make asks before
it installs anything.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
RECORD = "tests/checked.json"
GPUS = ("/dev/nvidia0", "/dev/nvidiactl", "/dev/dxg")
_BUILT = {"__pycache__", "_yardsticks.so", "_yardsticks.json"}


class Part(NamedTuple):
    """What something is made of. folders: with the ending of their files."""

    folders: tuple[tuple[str, str], ...]
    files: tuple[str, ...]

    def has(self, path: str) -> bool:
        """path: below the project's folder."""
        return path in self.files or any(path.startswith(folder) and path.endswith(end) for folder, end in self.folders)

    def inputs(self, root: Path = ROOT) -> list[str]:
        """Paths below root, in order."""
        found = {path for folder, end in self.folders for path in (root / folder).rglob(f"*{end}") if path.is_file()}
        names = {path.relative_to(root).as_posix() for path in found if _BUILT.isdisjoint(path.parts)}
        return sorted(names | {path for path in self.files if (root / path).is_file()})

    def digest(self, root: Path = ROOT) -> str:
        return digest(self.inputs(root), lambda path: (root / path).read_bytes())


PARTS = {
    # The CUDA back end, the simulator, what they are checked with, and the Python that decides what kernels are given.
    "cuda": Part(
        (
            ("csrc/core/", ""),
            ("csrc/cuda/", ""),
            ("csrc/ops/", ""),
            ("csrc/torch/", ""),
            ("benchmarks/yardsticks/", ""),
            ("halfgnn/ops/", ".py"),
            ("laboratory/machine_code/", ""),
            ("laboratory/simt/", ""),
        ),
        (
            *("csrc/library.cpp", "csrc/cpu/backend.h", "csrc/cpu/graph.h", "csrc/cpu/reorder.h"),
            "csrc/cpu/coo.h",
            *("csrc/cpu/neighbor_sample.h", "csrc/cpu/edge_picks.h", "csrc/cpu/random_stream.h"),
            *("build_sources.py", "cuda_toolkit.py", "halfgnn/row_schedule.py"),
        ),
    ),
    # The tables of CPU kernels, of which laboratory/instructions counts instructions and compares results.
    "instructions": Part(
        (("csrc/core/", ""), ("csrc/cpu/", ""), ("laboratory/instructions/", "")),
        ("build_sources.py",),
    ),
}


def digest(paths: Iterable[str], read: Callable[[str], bytes]) -> str:
    """Of the names of files and of what `read` says is in them."""
    sums = "".join(f"{hashlib.sha256(read(path)).hexdigest()} {path}\n" for path in sorted(paths))
    return hashlib.sha256(sums.encode()).hexdigest()


def must_check(name: str, root: Path = ROOT, gpus: Iterable[str] = GPUS) -> bool:
    """Whether a part has to be compiled and checked."""
    record = root / RECORD
    if os.environ.get("HALFGNN_TEST_ALL") == "1" or not record.is_file():
        return True
    if name == "cuda" and any(Path(gpu).exists() for gpu in gpus):
        return True
    return bool(json.loads(record.read_text())["digests"].get(name) != PARTS[name].digest(root))


def record(root: Path = ROOT) -> None:
    """Raises SystemExit if the sources are not those of the last commit."""

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=True).stdout.strip()

    changed = git("status", "--porcelain", "--", *(path for part in PARTS.values() for path in part.inputs(root)))
    if changed:
        raise SystemExit(f"not recorded, because these differ from the last commit:\n{changed}")
    digests = {name: part.digest(root) for name, part in PARTS.items()}
    (root / RECORD).write_text(json.dumps({"commit": git("rev-parse", "HEAD"), "digests": digests}, indent=1) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("part", nargs="?", choices=PARTS)
    parser.add_argument("--record", action="store_true", help="note that all checks passed")
    options = parser.parse_args()
    if options.record:
        record()
    if options.part:
        print(int(must_check(options.part)))
    sys.exit(0)
