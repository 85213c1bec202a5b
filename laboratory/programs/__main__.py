"""Random programs with and without the drop-in: python -m laboratory.programs --cases 2000 --seed 1. Prints those that differ.

Programs are tiny and every call is routed. --large: the sizes of calls decide, as in training.
"""

from __future__ import annotations

import argparse
import time

from halfgnn.compiled import thresholds as compiled_thresholds
from halfgnn.pyg.drop_in import thresholds
from tests.support import ROUTED_FROM

from .compare import fault, fault_compiled
from .draw import LARGE, SIZES, Draw
from .reduce import reduced


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--compiled", action="store_true", help="compiled with the pass, and without it")
    parser.add_argument("--reduce", action="store_true", help="print the smallest program found with each fault")
    arguments = parser.parse_args()
    if not arguments.large:
        thresholds.LIMITS = {}
        for name in ROUTED_FROM:
            setattr(thresholds, name, 0)
    if arguments.compiled:
        compiled_thresholds.MESSAGE = compiled_thresholds.SOFTMAX = compiled_thresholds.COUNT = 0
    differs = fault_compiled if arguments.compiled else fault
    start, faults = time.perf_counter(), 0
    for case in range(arguments.first, arguments.first + arguments.cases):
        program = Draw(arguments.seed, case, LARGE if arguments.large else SIZES).draw()
        found = differs(program, case)
        if found is not None:
            faults += 1
            if arguments.reduce:
                program = reduced(program, case, found, differs)
                found = differs(program, case)
            print(f"# case {case} of seed {arguments.seed}: {found}\n{program}", flush=True)
    print(f"{arguments.cases} programs, {faults} faults, {time.perf_counter() - start:.0f} s")
    return min(faults, 1)


if __name__ == "__main__":
    raise SystemExit(main())
