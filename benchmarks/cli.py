"""The command line: ``python -m benchmarks <subcommand>``."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from tqdm import tqdm

import halfgnn

from . import (
    baselines,
    code_sums,
    compat,
    edge_layer,
    edge_network,
    facts,
    features,
    gpu,
    graphs,
    layer,
    limits,
    overhead,
    profiling,
    reorder,
    rows,
    runner,
    sampling,
    serving,
    several,
    sweep,
    table,
    table_cpu,
    targets,
    train,
)
from .case import DEFAULTS, DIRECTIONS, DTYPES, FAMILY_DEFAULTS, LAYERS, MODELS, Case, Config
from .families import FAMILIES, GROUPS, families_of
from .optional import Unavailable, set_threads
from .programs import command as programs
from .table_parts import targets_table
from .timing import QUICK

# The others are families of operators.
_CASES = {"layer": layer.cases, "edge_layer": edge_layer.cases, "edge_network": edge_network.cases, "train": train.cases,
          "overhead": overhead.cases, "limits": limits.cases, "reorder": reorder.cases, "several": several.cases}  # fmt: skip
IDTYPES = {"int32": torch.int32, "int64": torch.int64}


def _add_options(parser: argparse.ArgumentParser) -> None:
    """Options that are not given are None: what is measured then depends on device and family, see case.py."""
    add, some = parser.add_argument, functools.partial(parser.add_argument, nargs="+")
    add("--quick", action="store_true", help="a smoke test: a tiny graph, almost no repetition")
    add("--profile", action="store_true", help="one call of halfgnn per case for ncu --profile-from-start off; no rows")
    add("--device", choices=tuple(DEFAULTS), default="cpu")
    some("--dtype", choices=DTYPES, dest="dtypes", help="on a GPU the first at all --dims, the others at one")
    some("--graphs", choices=graphs.NAMES, metavar="NAME", help=", ".join(graphs.NAMES))
    some("--orders", choices=graphs.ORDERS, help="order of edge data")
    some("--dims", type=int, metavar="F", help="features of all heads together")
    some("--heads", type=int, metavar="H")
    some("--directions", choices=DIRECTIONS)
    some("--layers", choices=LAYERS, help="of the subcommand layer")
    some("--models", choices=MODELS, help="of the subcommand train")
    add("--hidden", type=int, help="units of a hidden layer per head, of the subcommand train (256)")
    add("--baselines", nargs="*", choices=baselines.NAMES)
    add("--eager", action="store_true", help="overhead: leave out torch.compile, which takes tens of seconds")
    add(
        "--cpu-time",
        action="store_true",
        default=None,
        help="seconds of the process on the CPU, not those that pass: for a machine that others use, with --threads 1",
    )
    add(
        "--keep-memory",
        action="store_true",
        help="the C library keeps freed memory, for all backends (halfgnn.keep_memory)",
    )
    add("--idtype", choices=IDTYPES, help="dtype of node ids (int32)")
    some(
        "--threads",
        type=int,
        metavar="N",
        help="threads of the CPU (2; with a GPU all); several: one run after the other",
    )
    lengths = "0.4, GPU: 0.12; train: 20, GPU: 1"
    add("--budget", type=float, help=f"seconds per backend of a case ({lengths}); a longer call may get one sample")
    add("--out", type=Path, metavar="FOLDER", help="append the rows to FOLDER/<device>.csv")


def _add_documents(commands) -> None:
    """The subcommands that show committed rows."""
    for name, what in (
        ("plot", "the pictures that pages show, as SVG; with --rows all pictures of these rows"),
        ("table", "the markdown tables of committed rows: those of a section of the pages, or all of the operators"),
        ("targets", "the targets, judged on committed rows; exit status 1 if one is missed, 2 if none was measured"),
    ):
        shown = commands.add_parser(name, help=what)
        shown.add_argument("--rows", type=Path, default=None if name == "plot" else rows.RESULTS / "cpu.csv")
        if name == "plot":
            shown.add_argument("--into", type=Path, metavar="FOLDER", help="docs/images; with --rows out/images")
        if name == "table":
            shown.add_argument("sections", nargs="*", metavar="SECTION", help=", ".join(table.SECTIONS))
            shown.add_argument("--into", type=Path, metavar="FILE", help="write the tables between FILE's markers")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, what in FAMILIES.items():
        _add_options(commands.add_parser(name, help=what))
    for name, families in GROUPS.items():
        _add_options(commands.add_parser(name, help=", ".join(families)))
    gpu.add_options(commands.add_parser("gpu", help="all measurements on a GPU, in minutes, one process per graph"))
    programs.add_options(
        commands.add_parser("programs", help="steps of torch_geometric's modules and models, and the drop-in")
    )
    programs.add_compiled_options(commands.add_parser("compiled", help="the same programs under torch.compile"))
    sampling.add_options(commands.add_parser("sampling", help="neighbour sampling beside DGL's"))
    features.add_options(commands.add_parser("features", help="gathers of features in 8 bits beside fp16's"))
    code_sums.add_options(commands.add_parser("code-sums", help="sums of features in 8 bits beside bf16's"))
    compat.add_options(commands.add_parser("compat", help="halfgnn.compat beside torch_scatter, torch_sparse and dgl"))
    serving.add_options(
        commands.add_parser("serving", help="inference beside torch_geometric, eager and ahead of time")
    )
    facts.add_options(commands.add_parser("graphs", help="sizes, degrees and reuse of graphs"))
    _add_documents(commands)
    return parser


def _check(config: Config, family: str) -> None:
    for feat in () if family == "train" else config.dims:
        for heads in config.heads:
            if heads < 1 or feat < 1 or feat % heads:
                raise SystemExit(f"--dims {feat} does not divide into --heads {heads}")
    budget = config.effort.budget_s
    if config.threads < 1 or not budget > 0:
        raise SystemExit(f"--threads {config.threads}, --budget {budget}: expected positive numbers")
    if min(config.hidden, *config.heads) < 1:
        raise SystemExit(f"--hidden {config.hidden}, --heads {config.heads}: expected positive numbers")


def _config(options: argparse.Namespace, family: str = "", threads: int | None = None) -> Config:
    if options.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit(f"--device cuda needs an NVIDIA GPU, and torch {torch.__version__} sees none")
    config = dataclasses.replace(DEFAULTS[options.device], **FAMILY_DEFAULTS.get((family, options.device), {}))
    if options.quick:
        config = dataclasses.replace(config, effort=QUICK, graphs=("tiny",))
    for name in (field.name for field in dataclasses.fields(Config)):
        value = getattr(options, name, None)
        if value is not None and name != "threads":  # an empty --baselines is a choice
            setattr(config, name, tuple(value) if isinstance(value, list) else value)
    config.idtype = IDTYPES.get(options.idtype, config.idtype)
    config.threads = config.threads if threads is None else threads
    if options.budget is not None:
        config.effort = dataclasses.replace(config.effort, budget_s=options.budget)
    _check(config, family)
    return config


def cases_of(family: str, config: Config) -> list[Case]:
    """Raises Unavailable if nothing of the family can be measured."""
    return list(_CASES[family](config) if family in _CASES else sweep.cases(config, family))


def _run(
    configs: dict[str, Config], argv: Sequence[str], out: Path | None, profiles: bool = False, keeps: bool = False
) -> None:
    """configs: one per family to be run; they have the same device and threads. profiles: for a profiler; without rows.
    keeps: --keep-memory."""
    config = next(iter(configs.values()))
    if config.threads > (os.cpu_count() or 1):
        print(f"warning: {config.threads} threads on {os.cpu_count()} cores", file=sys.stderr)
    if out is not None:  # so that an error is reported before anything is measured
        try:
            out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SystemExit(f"--out {out}: {error.strerror}; expected a folder") from error
    set_threads(config.threads)
    source = rows.provenance(argv, config.device)
    if keeps:
        print(f"# {halfgnn.keep_memory()}")
        source["memory"] = "kept"
    machine = source["gpu"] or f"{source['cpu']}, {config.threads} threads"
    print(f"# {source['command']}")
    print(f"# {machine}, torch {source['torch']}, dgl {source['dgl']}, commit {source['commit']}")
    for family, config in configs.items():
        try:
            cases = cases_of(family, config)
        except Unavailable as error:
            print(f"{family}: skipped, {error}")
            continue
        for case in tqdm(cases, family, disable=None):
            if profiles:
                print(case.title, flush=True)
                profiling.run_case(case, config.device)
                continue
            measured = runner.run_case(case, config, source)
            tqdm.write(f"{case.title}\n{runner.summary(measured)}", file=sys.stdout)
            sys.stdout.flush()
            if out is not None:
                rows.append(out / f"{config.device}.csv", measured)


def _table(options: argparse.Namespace) -> int:
    for name in options.sections:
        if name not in table.SECTIONS:
            raise ValueError(f"section {name!r}: expected one of {', '.join(table.SECTIONS)}")
        print(table.section(name, rows.RESULTS), end="")
    if options.sections:
        return 0
    if options.into is None:
        print(table.render(rows.read(options.rows)), end="")
    else:
        options.into.write_text(table.replaced(options.into.read_text(), rows.RESULTS))
    return 0


def _plot(options: argparse.Namespace) -> int:
    try:
        from . import plot
    except ImportError as error:
        raise SystemExit(f"plot needs matplotlib, which cannot be imported: {error}") from error
    if options.rows is None:
        found, folder = plot.shown(rows.RESULTS), Path("docs/images")
    else:
        found, folder = plot.pictures(rows.read(options.rows)), Path("out/images")
    for path in plot.draw(found, options.into or folder):
        print(path)
    return 0


def _targets(options: argparse.Namespace) -> int:
    found = rows.read(options.rows)
    print(targets_table(table_cpu.published(found)))
    if len(targets.unmeasured(found)) == len(targets.of(found)):
        print(f"no target was measured by the rows of {options.rows}")
        return 2
    return 1 if targets.missed(found) else 0


def _compiled(options: argparse.Namespace) -> int:
    from .programs import compiled as found

    return found.run(options)


_COMMANDS = {
    "graphs": facts.run,
    "gpu": gpu.run,
    "programs": programs.run,
    "compiled": _compiled,
    "sampling": sampling.run,
    "features": features.run,
    "code-sums": code_sums.run,
    "compat": compat.run,
    "serving": serving.run,
    "plot": _plot,
    "table": _table,
    "targets": _targets,
}
_OF_FILES = ("plot", "table", "targets")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a subcommand; returns the exit status."""
    argv = list(sys.argv[1:] if argv is None else argv)
    options = _parser().parse_args(argv)
    try:
        if options.command in _COMMANDS:
            return _COMMANDS[options.command](options)
        families = families_of(options.command)
        for threads in options.threads or [None]:
            configs = {family: _config(options, family, threads) for family in families}
            _run(configs, argv, options.out, options.profile, options.keep_memory)
        return 0
    except (graphs.NoData, OSError, ValueError) as error:
        if isinstance(error, graphs.NoData) or options.command in _OF_FILES:
            raise SystemExit(f"python -m benchmarks {options.command}: {error}") from error
        raise
