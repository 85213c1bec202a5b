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
EFFORT = {
    "cpu": Effort(budget_s=0.4, min_runs=5, max_runs=11, sample_s=0.01),
    "cuda": Effort(budget_s=0.06, min_runs=3, max_runs=7, warm_s=0.0, sample_s=0.01, pause_s=0.0),
}


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--device", choices=tuple(EFFORT), default="cpu")
    add("--size", choices=SIZES, nargs="+", dest="sizes", default=["medium"], help="nodes and edges (medium)")
    add("--dtypes", choices=DTYPES, nargs="+", default=list(DTYPES), help="bf16 is autocast")
    add("--only", nargs="+", metavar="NAME", default=[], help="programs whose name has NAME in it, whatever the case")
    add("--leave-out", nargs="+", metavar="NAME", default=[], help="programs that are not run, by their whole names")
    add("--fuse", action="store_true", help="also with accelerate(fuse=True)")
    add("--memory", action="store_true", help="also what autograd keeps, and the peak of what a step allocates")
    add("--tile", type=_tile, help='also with accelerate(tile=...): edges, or a size such as "64MiB"')
    add("--list", action="store_true", help="print the names")
    add("--quick", action="store_true", help="a smoke test: almost no repetition")
    add("--budget", type=float, help="seconds per program, dtype and backend (0.4, GPU: 0.06)")
    add("--out", type=Path, metavar="FOLDER", help="append the rows to FOLDER/programs.csv")


def _tile(text: str) -> int | str:
    return int(text) if text.isdigit() else text


def add_compiled_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--size", choices=SIZES, nargs="+", dest="sizes", default=["medium"], help="nodes and edges (medium)")
    add("--dtypes", choices=("fp32", "bf16"), nargs="+", default=["fp32"], help="bf16 is autocast")
    add("--only", nargs="+", metavar="NAME", default=[], help="programs whose name has NAME in it, whatever the case")
    add("--leave-out", nargs="+", metavar="NAME", default=[], help="programs that are not run, by their whole names")
    add("--modules", action="store_true", help="halfgnn's own modules in place of torch_geometric's programs")
    add("--out", type=Path, metavar="FOLDER", help="append the rows to FOLDER/compiled.csv")


def chosen(only: list[str], left_out: list[str], own_modules: bool = False) -> list:
    if own_modules:
        from .modules import PROGRAMS
    else:
        from .registry import PROGRAMS

    found = [p for p in PROGRAMS if not only or any(text.lower() in p.name.lower() for text in only)]
    found = [p for p in found if p.name not in left_out]
    if not found:
        raise SystemExit(f"--only {' '.join(only)}: no program has such a name; --list prints them")
    return found


def _effort(options: argparse.Namespace) -> Effort:
    effort = QUICK if options.quick else EFFORT[options.device]
    return effort if options.budget is None else dataclasses.replace(effort, budget_s=options.budget)


def _measured(*arguments: Any) -> list:
    """The rows of measure.run, without the warnings of programs."""
    from . import measure

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # for example, sparse tensors warn that they are in beta
        return list(measure.run(*arguments))


def run(options: argparse.Namespace) -> int:
    """The exit status: 1 if the drop-in changed a result, or a program failed."""
    if options.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit(f"--device cuda needs an NVIDIA GPU, and torch {torch.__version__} sees none")
    try:
        import_package("halfgnn.pyg")
    except Unavailable as error:
        raise SystemExit(f"programs: {error}") from error
    from . import measure, records

    programs = chosen(options.only, options.leave_out)
    if options.list:
        print("\n".join(program.name for program in programs))
        return 0
    asked = measure.Options(_effort(options), options.fuse, options.memory, options.tile)
    source = measure.source_of(["programs", *sys.argv[2:]], options.device)
    found, failed = [], []
    before = torch.get_num_threads()
    set_threads(1)
    try:
        for size in options.sizes:
            data = make(SIZES[size]).to(options.device)
            for program in tqdm([p for p in programs if p.suits(size)], size, disable=None):
                try:
                    rows = _measured(program, data, options.dtypes, asked, source)
                except RuntimeError as error:  # the others still run
                    failed.append(f"{program.name}, {size}: {str(error).splitlines()[0]}")
                    continue
                found += rows
                if options.out is not None:
                    files.append(options.out / records.KEPT, records.ProgramRow, rows)
    finally:
        set_threads(before)
    print("\n".join([records.listing(found), *failed]))
    return 0 if all(row.is_right for row in found) and not failed else 1
