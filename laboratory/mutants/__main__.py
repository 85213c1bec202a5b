"""Mutates files of the package and prints which mutants no test notices.

python -m laboratory.mutants halfgnn/ops halfgnn/graph.py --sample 60 --seed 1

The tests that execute the mutated line run, fastest first, up to a budget. The lines of each test are recorded once and
kept in build/mutants/coverage until the test's file changes. Results are kept in build/mutants/results.json. --again
runs the mutants again that survived.
"""

from __future__ import annotations

import argparse
import json
import os
from collections import Counter
from dataclasses import asdict
from pathlib import Path

from . import mutate, runner

# Tests of the package. The other folders are about benchmarks, builds and examples, and take minutes.
FOLDERS = ("laboratory/fuzz", *(f"tests/{name}" for name in ("dataloading", "dgl", "graph", "nn", "ops", "pyg")))
LEFT_OUT = ("test_instruction_sets.py",)  # runs other tests once more
STATUSES = ("noticed", "timed out", "survived", "not covered")


def tests_of(root: Path) -> tuple[Path, ...]:
    files = [file for name in FOLDERS for file in sorted((root / name).glob("test_*.py"))]
    return tuple(file for file in files if file.name not in LEFT_OUT)


def sources_of(root: Path, names: list[str]) -> list[Path]:
    files: list[Path] = []
    for name in names:
        path = root / name
        if not path.exists():
            raise SystemExit(f"{name} does not exist")
        files += sorted(path.rglob("*.py")) if path.is_dir() else [path]
    return files


def equivalent(root: Path) -> dict[str, str]:
    """The mutants that no test can notice: key of the mutant -> reason."""
    path = root / "laboratory" / "mutants" / "equivalent.txt"
    lines = path.read_text().splitlines() if path.exists() else []
    pairs = [line.split(" # ", 1) for line in lines if line and not line.startswith("#")]
    return {key.strip(): reason for key, reason in pairs}


def table(rows: list[tuple[str, runner.Result]]) -> str:
    names = list(dict.fromkeys(name for name, _ in rows))
    lines = [f"{'file':34}{'mutants':>9}" + "".join(f"{status:>13}" for status in STATUSES) + f"{'rate':>8}"]
    for name in [*names, "total"]:
        counts = Counter(result.status for file, result in rows if name in (file, "total"))
        total = sum(counts.values())
        rate = (counts["noticed"] + counts["timed out"]) / max(total, 1)
        lines.append(f"{name:34}{total:9}" + "".join(f"{counts[status]:13}" for status in STATUSES) + f"{rate:8.1%}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", help="files or folders of the package")
    parser.add_argument("--sample", type=int, help="number of mutants of each of FILES, drawn at random (default: all)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the sample")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--budget", type=float, default=60, help="CPU seconds of tests per mutant")
    parser.add_argument("-k", dest="keyword", default="", help="tests to run, as pytest's -k (default: all)")
    parser.add_argument("--again", action="store_true", help="only the mutants that survived the last time")
    parser.add_argument("--root", type=Path, default=runner.ROOT, help=argparse.SUPPRESS)
    parser.add_argument("--package", default="halfgnn", help=argparse.SUPPRESS)
    args = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    root = args.root.resolve()
    settings = runner.Settings(
        root, args.package, tests_of(root), budget=args.budget, jobs=args.jobs, keyword=args.keyword
    )
    sources = {str(path.relative_to(root)): path.read_text() for path in sources_of(root, args.files)}
    known = equivalent(root)
    chosen: list[mutate.Mutant] = []
    for name in args.files:
        found = [mutant for path in sources_of(root, [name]) for mutant in mutate.mutants(path, root)]
        found = [mutant for mutant in found if mutant.key(sources[mutant.path]) not in known]
        chosen += mutate.sample(found, None if args.again else args.sample, args.seed)
    kept = settings.cache / "results.json"
    before = json.loads(kept.read_text()) if kept.exists() else {}
    if args.again:
        missed = {key for key, result in before.items() if result["status"] in STATUSES[2:]}
        chosen = [mutant for mutant in chosen if mutant.key(sources[mutant.path]) in missed]
    results: list[tuple[str, runner.Result]] = []

    def note(mutant: mutate.Mutant, result: runner.Result) -> None:
        source = sources[mutant.path]
        results.append((mutant.path, result))
        before[mutant.key(source)] = asdict(result)
        kept.write_text(json.dumps(before, indent=0))
        if result.status in STATUSES[2:]:
            ran = f"{result.ran} of {result.of} tests that execute it" if result.of else "no test executes it"
            print(f"{mutant.path}:{mutant.lines[0]} {mutant.kind}: {result.status}, {ran}")
            print(mutant.diff(source), flush=True)

    runner.run(settings, chosen, sources, note)
    print(table(sorted(results, key=lambda row: row[0])))


if __name__ == "__main__":
    main()
