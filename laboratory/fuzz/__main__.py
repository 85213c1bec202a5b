"""python -m laboratory.fuzz: runs cases, prints failing ones as programs."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from . import kinds, workers
from .draw import HEADER


def _sanitized(library: Path) -> None:
    """Starts this program again with the sanitizers' libraries loaded, unless they are loaded already."""
    from laboratory.simt import build  # the simulator runs in the same environment

    environment = build.environment(library)
    del environment["HALFGNN_SIMT"]
    del environment["OMP_NUM_THREADS"]
    if os.environ.get("LD_PRELOAD") != environment["LD_PRELOAD"]:
        os.execve(sys.executable, [sys.executable, "-m", "laboratory.fuzz", *sys.argv[1:]], environment)


# An id past the end of the features. Raw operators trust ids.
CONTROL = "raw.gspmm(torch.tensor([0, 1]), torch.tensor([4]), None, 'copy_lhs', 'sum', torch.ones(4, 8), None)\n"


def _check_control(timeout: float) -> None:
    """Exits unless the sanitizers see a kernel read past the end of its operand."""
    (result,) = workers.run_all(lambda _: kinds.run(HEADER + CONTROL), [0], 1, timeout)
    if not result.has_died or "AddressSanitizer: heap-buffer-overflow" not in (result.error or ""):
        sys.exit(f"the sanitizers do not notice a read past the end: {result}")
    print("control: a read past the end is noticed", flush=True)


def _run(seed: int, case: int, chosen: tuple[str, ...]) -> None:
    kinds.run(kinds.draw(seed, case, chosen)[1])


def _report(seed: int, result: workers.Result, chosen: tuple[str, ...]) -> None:
    kind, program = kinds.draw(seed, result.case, chosen)
    lines = (result.error or "").strip().splitlines()
    lines = lines if result.has_died else lines[-4:]
    print(f"\n---- case {result.case} of seed {seed}, {kind}, {kinds.environment(result.case)}\n{program}", end="")
    print("".join(f"# {line}\n" for line in lines), flush=True)


def _results(args: argparse.Namespace, chosen: tuple[str, ...]) -> Iterator[workers.Result]:
    cases = range(args.first, args.first + args.cases)
    for case in cases[:4]:  # workers inherit the environment when they are forked
        some = [c for c in cases if kinds.environment(c) == kinds.environment(case)]
        if some[0] == case:
            os.environ |= kinds.environment(case)
            yield from workers.run_all(lambda c: _run(args.seed, c, chosen), some, args.jobs, args.timeout)


def _fuzz(args: argparse.Namespace, chosen: tuple[str, ...]) -> int:
    import laboratory.fuzz.checks  # noqa: F401  (once, before the fork; it must not compute: threads do not survive a fork)

    begin, counts, seconds, failed = time.monotonic(), Counter(), Counter(), 0
    if args.sanitized:
        _check_control(args.timeout)
    for done, result in enumerate(_results(args, chosen), 1):
        kind = kinds.draw(args.seed, result.case, chosen)[0]
        counts[kind] += 1
        seconds[kind] += result.seconds
        if result.error is not None:
            failed += 1
            _report(args.seed, result, chosen)
            if failed == args.max_failures:
                break
        if done % 500 == 0:
            print(f"{done} cases, {failed} failed, {time.monotonic() - begin:.0f} s", flush=True)
    for kind in chosen:
        print(f"{kind:18} {counts[kind]:6} cases {1000 * seconds[kind] / max(1, counts[kind]):7.0f} ms each")
    print(f"seed {args.seed}: {counts.total()} cases, {failed} failed, {time.monotonic() - begin:.0f} s")
    return failed


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number}; expected a positive number")
    return number


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cases", type=positive, default=1000, help="number of cases")
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--case", type=int, help="print and run only this case")
    parser.add_argument("--kinds", nargs="+", choices=tuple(kinds.WEIGHTS), default=tuple(kinds.WEIGHTS))
    parser.add_argument("--jobs", type=positive, default=os.cpu_count())
    parser.add_argument("--timeout", type=float, default=300, help="seconds that a case may take")
    parser.add_argument("--max-failures", type=int, default=50)
    parser.add_argument("--sanitized", type=Path, metavar="LIBRARY", help="a build with HALFGNN_SANITIZE=1")
    args = parser.parse_args()
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # there are more threads than cores
    if args.sanitized:
        _sanitized(args.sanitized.resolve())
    chosen = tuple(args.kinds)
    if args.case is not None:
        program = kinds.draw(args.seed, args.case, chosen)[1]
        print(program, flush=True)
        os.environ |= kinds.environment(args.case)
        kinds.run(program)
        return
    sys.exit(_fuzz(args, chosen) > 0)


if __name__ == "__main__":
    main()
