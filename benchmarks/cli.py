"""The command line: ``python -m benchmarks <subcommand>``."""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from tqdm import tqdm

from . import baselines, graphs, marks, rows, runner, table
from .case import DIRECTIONS, DTYPES, LAYERS, Config
from .timing import QUICK, Effort

FAMILIES = {
    "spmm": "copy_u and u_mul_e sums and maxima",
    "sddmm": "u_dot_v and u_add_v",
    "softmax": "edge_softmax",
    "layer": "a step of dgl.nn modules, as they are and under the drop-in",
    "overhead": "microseconds of a call on 30 nodes",
    "limits": "copy_u_sum beside other gathers and copies",
}
BASELINES = ("dgl", "torch.sparse", "index_add")
IDTYPES = {"int32": torch.int32, "int64": torch.int64}


def _add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--quick", action="store_true", help="tiny graph, hardly any repetition: a smoke test")
    add("--device", choices=("cpu",), default="cpu")
    add("--dtype", nargs="+", choices=tuple(DTYPES), default=list(DTYPES))
    add("--graphs", nargs="+", choices=tuple(graphs.RECIPES), help="default: arxiv powerlaw-20k")
    add("--orders", nargs="+", choices=graphs.ORDERS, default=list(graphs.ORDERS),
        help="order of edge data")  # fmt: skip
    add("--dims", nargs="+", type=int, default=[128], metavar="F", help="features, all heads")
    add("--heads", nargs="+", type=int, default=[1, 4], metavar="H")
    add("--directions", nargs="+", choices=DIRECTIONS, default=list(DIRECTIONS))
    add("--layers", nargs="+", choices=LAYERS, default=list(LAYERS[:2]), help="of the subcommand layer")
    add("--baselines", nargs="*", choices=BASELINES, default=list(BASELINES))
    add("--idtype", choices=tuple(IDTYPES), default="int64", help="of node ids (DGL's is int64)")
    add("--threads", type=int, default=2)
    add(
        "--budget",
        type=float,
        help="seconds for a contestant of a case (0.6); calls of 4 s or more get one sample unless it affords more",
    )
    add("--seed", type=int, default=0, help="of the graphs")
    add("--out", type=Path, metavar="FOLDER", help="append the rows to FOLDER/<device>.csv")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, what in FAMILIES.items():
        _add_options(commands.add_parser(name, help=what))
    _add_options(commands.add_parser("all", help="all of the above"))
    describe = commands.add_parser("graphs", help="sizes and degrees of the synthetic graphs")
    describe.add_argument("names", nargs="*", choices=[*graphs.RECIPES, []], default=[])
    for name, what in (
        ("table", "the markdown tables of committed rows"),
        ("marks", "the marks, judged on committed rows; exit status 1 if one is lost"),
    ):
        shown = commands.add_parser(name, help=what)
        shown.add_argument("--rows", type=Path, default=rows.RESULTS / "cpu.csv")
        if name == "table":
            shown.add_argument("--check", type=Path, metavar="FILE",
                               help="exit status 1 unless FILE has these tables")  # fmt: skip
            shown.add_argument("--into", type=Path, metavar="FILE",
                               help="put the tables between FILE's markers")  # fmt: skip
    return parser


def _config(options: argparse.Namespace) -> Config:
    quick = options.quick
    for feat in options.dims:
        for heads in options.heads:
            if heads < 1 or feat < 1 or feat % heads:
                raise SystemExit(f"--dims {feat} does not divide into --heads {heads}")
    effort = QUICK if quick else Effort()
    if options.budget is not None:
        effort = dataclasses.replace(effort, budget_s=options.budget)
    default_graphs = ["tiny"] if quick else ["arxiv", "powerlaw-20k"]
    return Config(
        device=options.device,
        dtypes=tuple(options.dtype),
        graphs=tuple(options.graphs or default_graphs),
        orders=tuple(options.orders),
        heads=tuple(options.heads),
        dims=tuple(options.dims),
        directions=tuple(options.directions),
        layers=tuple(options.layers),
        baselines=tuple(options.baselines),
        idtype=IDTYPES[options.idtype],
        threads=options.threads,
        seed=options.seed,
        effort=effort,
    )


def _run(families: Sequence[str], config: Config, argv: Sequence[str], out: Path | None) -> None:
    if config.threads > (os.cpu_count() or 1):
        print(f"warning: {config.threads} threads on {os.cpu_count()} cores", file=sys.stderr)
    baselines.set_threads(config.threads)
    source = rows.provenance(argv)
    print(f"# {source['command']}\n# {source['cpu']}, {config.threads} threads, "
          f"torch {source['torch']}, dgl {source['dgl']}, commit {source['commit']}")  # fmt: skip
    # All at once: a later import would mix in what was edited since.
    modules = {family: importlib.import_module(f"benchmarks.{family}") for family in families}
    for family, module in modules.items():
        try:
            cases = list(module.cases(config))
        except baselines.Unavailable as error:
            print(f"{family}: skipped, {error}")
            continue
        for case in tqdm(cases, family, disable=None):
            measured = runner.run_case(case, config, source)
            tqdm.write(f"{case.title}\n{runner.summary(measured)}", file=sys.stdout)
            if out is not None:
                rows.append(out / f"{config.device}.csv", measured)


def _table(options: argparse.Namespace) -> int:
    found = rows.read(options.rows)
    if options.check is not None:
        agreed = table.agrees(options.check.read_text(), found)
        print(f"{options.check} {'agrees' if agreed else 'disagrees'} with {options.rows}")
        return 0 if agreed else 1
    if options.into is not None:
        options.into.write_text(table.replaced(options.into.read_text(), found))
        return 0
    print(table.render(found), end="")
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a subcommand; returns the exit status."""
    argv = list(sys.argv[1:] if argv is None else argv)
    options = _parser().parse_args(argv)
    if options.command == "graphs":
        for name in options.names or graphs.RECIPES:
            print(graphs.describe(graphs.synthetic(name, "insertion", torch.int64)))
        return 0
    if options.command == "table":
        return _table(options)
    if options.command == "marks":
        found = rows.read(options.rows)
        print(table.marks_in_detail(found))
        return 1 if marks.lost(found) else 0
    families = list(FAMILIES) if options.command == "all" else [options.command]
    _run(families, _config(options), argv, options.out)
    return 0
