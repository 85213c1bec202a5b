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

from . import baselines, facts, gpu, graphs, marks, rows, runner, table, table_parts
from .case import DIRECTIONS, DTYPES, LAYERS, MODELS, Config
from .timing import GPU, QUICK, Effort

FAMILIES = {
    "spmm": "copy_u and u_mul_e sums and maxima",
    "sddmm": "u_dot_v and u_add_v",
    "softmax": "edge_softmax",
    "edges": "copy_e_sum, e_sub_v and e_div_v, one number per edge and head",
    "attention": "gat_attention, gatv2_attention and dot_attention, fused and unfused",
    "layer": "a step of dgl.nn modules, as they are, under the drop-in, and fused",
    "train": "training steps of GAT, GCN and SAGE: time, memory, losses",
    "overhead": "microseconds per call and per training step, from 30 nodes to 4 M edges",
    "limits": "copy_u_sum beside other gathers and copies",
}
GROUPS = {
    "operators": ("spmm", "sddmm", "softmax", "edges", "attention", "limits"),
    "all": tuple(FAMILIES),
}
IDTYPES = {"int32": torch.int32, "int64": torch.int64}


@dataclasses.dataclass(frozen=True)
class _Defaults:
    """What is measured if the command line does not say it."""

    dtypes: tuple[str, ...]
    graphs: tuple[str, ...]
    orders: tuple[str, ...]
    dims: tuple[int, ...]
    heads: tuple[int, ...]
    directions: tuple[str, ...]
    baselines: tuple[str, ...]
    idtype: str
    threads: int
    effort: Effort


# Other defaults, of families that are not about one operator at one size.
FAMILY_DEFAULTS: dict[str, dict[str, dict]] = {
    "attention": {"cpu": dict(heads=(4, 8))},
    "train": {
        "cpu": dict(graphs=("reddit-tenth", "arxiv-size"), heads=(1, 2, 8), idtype="int32", budget=20.0),
        "cuda": dict(graphs=("reddit-size", "arxiv-size"), heads=(1, 2, 8), budget=1.0),
    },
}
DEFAULTS = {
    "cpu": _Defaults(
        tuple(DTYPES), ("arxiv", "powerlaw-20k"), graphs.ORDERS, (128,), (1, 4), DIRECTIONS[:2],
        baselines.BY_DEFAULT["cpu"], "int64", 2, Effort(),
    ),
    "cuda": _Defaults(
        ("fp16", "bf16", "fp32"), ("reddit-size", "products-size", "arxiv-size"), ("sorted",), (128, 64, 256), (1, 4, 8),
        ("forward", "backward"), baselines.BY_DEFAULT["cuda"], "int32", os.cpu_count() or 1, GPU,
    ),
}  # fmt: skip


def _add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--quick", action="store_true", help="a smoke test: a tiny graph, almost no repetition")
    add("--device", choices=tuple(DEFAULTS), default="cpu")
    add(
        "--dtype",
        nargs="+",
        choices=tuple(DTYPES),
        dest="dtypes",
        help="on a GPU the first for all --dims, the others for one of --dims",
    )
    add("--graphs", nargs="+", choices=graphs.NAMES, metavar="NAME", help=", ".join(graphs.NAMES))
    add("--orders", nargs="+", choices=graphs.ORDERS, help="order of edge data")
    add("--dims", nargs="+", type=int, metavar="F", help="features of all heads together")
    add("--heads", nargs="+", type=int, metavar="H")
    add("--directions", nargs="+", choices=DIRECTIONS)
    add("--layers", nargs="+", choices=LAYERS, default=list(LAYERS), help="of the subcommand layer")
    add("--models", nargs="+", choices=MODELS, default=list(MODELS), help="of the subcommand train")
    add("--hidden", type=int, default=256, help="units of a hidden layer per head, of the subcommand train")
    add("--baselines", nargs="*", choices=baselines.NAMES)
    add("--eager", action="store_true", help="overhead: leave out torch.compile, which takes tens of seconds")
    add("--idtype", choices=tuple(IDTYPES), help="dtype of node ids (int64, as DGL's; with a GPU int32)")
    add("--threads", type=int, help="threads of the CPU (2; with a GPU all)")
    add(
        "--budget",
        type=float,
        help="seconds per contestant of a case (0.4, GPU: 0.12; train: 20, GPU: 1); a much longer call gets one sample",
    )
    add("--seed", type=int, default=0, help="seed of the graphs")
    add("--out", type=Path, metavar="FOLDER", help="append the rows to FOLDER/<device>.csv")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, what in FAMILIES.items():
        _add_options(commands.add_parser(name, help=what))
    for name, families in GROUPS.items():
        _add_options(commands.add_parser(name, help=f"{', '.join(families)}"))
    gpu.add_options(commands.add_parser("gpu", help="all measurements on a GPU, in minutes, one process per graph"))
    facts.add_options(commands.add_parser("graphs", help="sizes, degrees and reuse of graphs"))
    for name, what in (
        ("plot", "pictures of committed rows, PNG and SVG"),
        ("table", "the markdown tables of committed rows"),
        ("marks", "the marks, judged on committed rows; exit status 1 if one is lost, 2 if none was measured"),
    ):
        shown = commands.add_parser(name, help=what)
        shown.add_argument("--rows", type=Path, default=rows.RESULTS / "cpu.csv")
        if name == "plot":
            shown.add_argument("--into", type=Path, metavar="FOLDER", default=Path("docs/images"))
        if name == "table":
            shown.add_argument("--check", type=Path, metavar="FILE",
                               help="exit status 1 unless FILE has the tables of --results")  # fmt: skip
            shown.add_argument("--into", type=Path, metavar="FILE",
                               help="write the tables of --results between FILE's markers")  # fmt: skip
            shown.add_argument(
                "--results", type=Path, default=rows.RESULTS, metavar="FOLDER", help="folder of cpu.csv and cuda.csv"
            )
    return parser


def _config(options: argparse.Namespace, family: str = "") -> Config:
    if options.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit(f"--device cuda needs an NVIDIA GPU, and torch {torch.__version__} sees none")
    defaults = vars(DEFAULTS[options.device]) | FAMILY_DEFAULTS.get(family, {}).get(options.device, {})
    # An empty --baselines is a choice.
    chosen = {
        name: defaults[name] if getattr(options, name) is None else getattr(options, name)
        for name in ("dtypes", "orders", "dims", "heads", "directions", "baselines", "idtype", "threads")
    }
    for feat in () if family == "train" else chosen["dims"]:
        for heads in chosen["heads"]:
            if heads < 1 or feat < 1 or feat % heads:
                raise SystemExit(f"--dims {feat} does not divide into --heads {heads}")
    if chosen["threads"] < 1 or (options.budget is not None and not options.budget > 0):
        raise SystemExit(f"--threads {chosen['threads']}, --budget {options.budget}: expected positive numbers")
    if min(options.hidden, *chosen["heads"]) < 1:
        raise SystemExit(f"--hidden {options.hidden}, --heads {chosen['heads']}: expected positive numbers")
    effort = QUICK if options.quick else defaults["effort"]
    budget = options.budget if options.budget is not None or options.quick else defaults.get("budget")
    if budget is not None:
        effort = dataclasses.replace(effort, budget_s=budget)
    return Config(
        device=options.device,
        graphs=tuple(options.graphs or (["tiny"] if options.quick else defaults["graphs"])),
        layers=tuple(options.layers),
        models=tuple(options.models),
        hidden=options.hidden,
        eager=options.eager,
        seed=options.seed,
        effort=effort,
        idtype=IDTYPES[chosen.pop("idtype")],
        threads=chosen.pop("threads"),
        **{name: tuple(values) for name, values in chosen.items()},
    )


def _run(configs: dict[str, Config], argv: Sequence[str], out: Path | None) -> None:
    """configs: one per family to be run; they have the same device and threads."""
    config = next(iter(configs.values()))
    if config.threads > (os.cpu_count() or 1):
        print(f"warning: {config.threads} threads on {os.cpu_count()} cores", file=sys.stderr)
    if out is not None:  # so that an error is reported before anything is measured
        try:
            out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SystemExit(f"--out {out}: {error.strerror}; expected a folder") from error
    baselines.set_threads(config.threads)
    source = rows.provenance(argv, config.device)
    machine = source["gpu"] or f"{source['cpu']}, {config.threads} threads"
    print(
        f"# {source['command']}\n# {machine}, torch {source['torch']}, dgl {source['dgl']}, commit {source['commit']}"
    )
    # Import all modules now: a later import could load code that was edited since.
    modules = {family: importlib.import_module(f"benchmarks.{family}") for family in configs}
    for family, module in modules.items():
        config = configs[family]
        try:
            cases = list(module.cases(config))
        except baselines.Unavailable as error:
            print(f"{family}: skipped, {error}")
            continue
        for case in tqdm(cases, family, disable=None):
            measured = runner.run_case(case, config, source)
            tqdm.write(f"{case.title}\n{runner.summary(measured)}", file=sys.stdout)
            sys.stdout.flush()
            if out is not None:
                rows.append(out / f"{config.device}.csv", measured)


def _table(options: argparse.Namespace) -> int:
    if options.check is not None:
        agreed = table.agrees(options.check.read_text(), options.results)
        print(f"{options.check} {'agrees' if agreed else 'disagrees'} with the rows in {options.results}")
        return 0 if agreed else 1
    if options.into is not None:
        options.into.write_text(table.replaced(options.into.read_text(), options.results))
        return 0
    print(table.render(rows.read(options.rows)), end="")
    return 0


def _plot(options: argparse.Namespace) -> int:
    try:
        from . import plot
    except ImportError as error:
        raise SystemExit(f"plot needs matplotlib, which cannot be imported: {error}") from error
    for path in plot.draw(rows.read(options.rows), options.into):
        print(path)
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a subcommand; returns the exit status."""
    argv = list(sys.argv[1:] if argv is None else argv)
    options = _parser().parse_args(argv)
    told = (graphs.NoData, OSError, ValueError) if options.command in ("table", "marks", "plot") else graphs.NoData
    try:
        return _dispatch(options, argv)
    except told as error:
        raise SystemExit(f"python -m benchmarks {options.command}: {error}") from error


def _dispatch(options: argparse.Namespace, argv: Sequence[str]) -> int:
    if options.command == "graphs":
        return facts.run(options)
    if options.command == "table":
        return _table(options)
    if options.command == "plot":
        return _plot(options)
    if options.command == "gpu":
        return gpu.run(options)
    if options.command == "marks":
        found = rows.read(options.rows)
        print(table_parts.marks_in_detail(found))
        if len(marks.unmeasured(found)) == len(marks.of(found)):
            print(f"no mark was measured by the rows of {options.rows}")
            return 2
        return 1 if marks.lost(found) else 0
    families = GROUPS.get(options.command, (options.command,))
    _run({family: _config(options, family) for family in families}, argv, options.out)
    return 0
