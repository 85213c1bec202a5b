"""``python -m benchmarks programs``: options, and the loop over programs."""

from __future__ import annotations

import argparse
import dataclasses
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from benchmarks import records as files
from benchmarks.optional import Unavailable, import_package, set_threads
from benchmarks.timing import QUICK, Effort

from .data import SIZES, make

DTYPES = ("fp32", "bf16")
# To enter and leave the drop-in takes tens of milliseconds, untimed: few samples, and long ones.
EFFORT = Effort(budget_s=0.4, min_runs=5, max_runs=11, sample_s=0.01)


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--size", choices=SIZES, nargs="+", dest="sizes", default=["medium"], help="nodes and edges (medium)")
    add("--dtypes", choices=DTYPES, nargs="+", default=list(DTYPES), help="bf16 is autocast")
    add("--only", nargs="+", metavar="NAME", default=[], help="programs whose name has NAME in it, whatever the case")
    add("--leave-out", nargs="+", metavar="NAME", default=[], help="programs that are not run, by their whole names")
    add("--fuse", action="store_true", help="also with accelerate(fuse=True)")
    add("--memory", action="store_true", help="also the bytes that autograd keeps after the forward")
    add("--list", action="store_true", help="print the names")
    add("--quick", action="store_true", help="a smoke test: almost no repetition")
    add("--budget", type=float, help="seconds per program, dtype and contestant (0.4)")
    add("--out", type=Path, metavar="FOLDER", help="append the rows to FOLDER/programs.csv")


def _chosen(only: list[str], left_out: list[str]) -> list:
    from .registry import PROGRAMS

    found = [p for p in PROGRAMS if not only or any(text.lower() in p.name.lower() for text in only)]
    found = [p for p in found if p.name not in left_out]
    if not found:
        raise SystemExit(f"--only {' '.join(only)}: no program has such a name; --list prints them")
    return found


def _effort(options: argparse.Namespace) -> Effort:
    effort = QUICK if options.quick else EFFORT
    return effort if options.budget is None else dataclasses.replace(effort, budget_s=options.budget)


def _measured(*arguments: Any) -> list:
    """The rows of measure.run, without the warnings of programs."""
    from . import measure

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # for example, sparse tensors warn that they are in beta
        return list(measure.run(*arguments))


def run(options: argparse.Namespace) -> int:
    """The exit status: 1 if the drop-in changed a result."""
    try:
        import_package("halfgnn.pyg")
    except Unavailable as error:
        raise SystemExit(f"programs: {error}") from error
    from . import measure, records

    programs = _chosen(options.only, options.leave_out)
    if options.list:
        print("\n".join(program.name for program in programs))
        return 0
    asked = measure.Options(_effort(options), options.fuse, options.memory)
    source = measure.source_of(["programs", *sys.argv[2:]])
    found = []
    before = torch.get_num_threads()
    set_threads(1)
    try:
        for size in options.sizes:
            data = make(SIZES[size])
            for program in tqdm([p for p in programs if p.suits(size)], size, disable=None):
                rows = _measured(program, data, options.dtypes, asked, source)
                found += rows
                if options.out is not None:
                    files.append(options.out / records.KEPT, records.ProgramRow, rows)
    finally:
        set_threads(before)
    print(records.listing(found))
    return 0 if all(row.is_right for row in found) else 1
