"""Runs the tests of another project with and without halfgnn, and names those that fail with halfgnn alone.

    python tests/upstream_suites.py pytorch_geometric/test --with pyg --all-sizes -- nn utils -k "not datasets"
    python tests/upstream_suites.py pytorch_scatter/test --with torch_scatter

The folder is a checkout's, of the version that is installed: distributions on PyPI have no tests. --with names a drop-in that is
patched in (pyg, dgl), or a package of halfgnn.compat that is installed in place of the library. Each run is a pytest of its own;
what stands after -- goes to both, relative to the folder. This file is also the plugin that turns halfgnn on in the second run.
"""

import argparse
import importlib
import os
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

DROP_INS = ("pyg", "dgl")
PLUGIN = "halfgnn_upstream_suites"  # the name of this file there
TURNED_ON = "HALFGNN_THEIRS"  # what the plugin turns on: --with, and "all-sizes" or "fuse"


def pytest_configure():
    name, *options = os.environ.get(TURNED_ON, "").split() or [""]
    if not name:
        return
    if name not in DROP_INS:
        importlib.import_module("halfgnn.compat").install(name, replace=True)
        return
    importlib.import_module(f"halfgnn.{name}").patch(**({"fuse": True} if "fuse" in options else {}))
    if name == "pyg" and "all-sizes" in options:
        _route_all_sizes()


def _route_all_sizes():
    """Tests have tiny graphs, whose calls are left to torch_geometric otherwise."""
    worth = importlib.import_module("halfgnn.pyg.drop_in.thresholds")
    worth.LIMITS = {}
    for few in [name for name in vars(worth) if name.startswith("FEW")]:
        setattr(worth, few, 0)


def outcomes(results):
    """What became of each test in pytest's XML file: passed, failed or skipped."""
    of = {}
    for case in ElementTree.parse(results).iter("testcase"):
        kinds = {child.tag for child in case}
        name = f"{case.get('classname')}::{case.get('name')}"
        of[name] = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
    return of


def _plugin(folder):
    """A folder with this file alone: beside it are folders of usual names, as `packaging` is."""
    alone = folder / "plugin"
    alone.mkdir(exist_ok=True)
    shutil.copy(__file__, alone / f"{PLUGIN}.py")
    return alone


def run(options, turned_on):
    """The outcomes of a run with that value of TURNED_ON."""
    results = options.out / ("with.xml" if turned_on else "without.xml")
    results.unlink(missing_ok=True)
    # Workers of pytest-xdist must agree on the order of tests, which some projects make of sets.
    paths = [str(_plugin(options.out)), str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, TURNED_ON: turned_on, "PYTHONHASHSEED": "0", "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", PLUGIN, "-n", options.jobs, f"--junitxml={results}"]
    with open(results.with_suffix(".log"), "w") as log:
        subprocess.run(
            [*command, *options.arguments], cwd=options.folder, env=environment, stdout=log, stderr=log, check=False
        )
    if not results.exists():
        raise SystemExit(f"pytest gave no results; the end of {log.name}:\n{Path(log.name).read_text()[-2000:]}")
    return outcomes(results)


def report(without, with_halfgnn):
    """Prints both runs, and returns the exit status: 1 if a test that passed does not pass with halfgnn."""
    for title, of in (("without", without), ("with halfgnn", with_halfgnn)):
        counts = ", ".join(f"{list(of.values()).count(kind)} {kind}" for kind in ("passed", "failed", "skipped"))
        print(f"{title}: {counts}")
    lost = [name for name, kind in without.items() if kind == "passed" and with_halfgnn.get(name) != "passed"]
    gained = [name for name, kind in with_halfgnn.items() if kind == "passed" and without.get(name) == "failed"]
    for title, names in (("passes without alone", lost), ("passes with halfgnn alone", gained)):
        for name in names:
            print(f"{title}: {name}")
    if not any(kind == "passed" for kind in without.values()):
        print("No test passed without halfgnn, so this shows nothing.")
        return 1
    return 1 if lost else 0


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="the folder of the other project's tests")
    parser.add_argument("--with", dest="name", required=True, help="pyg, dgl, or a package of halfgnn.compat")
    parser.add_argument("--all-sizes", action="store_true", help="pyg: route calls of every size")
    parser.add_argument("--fuse", action="store_true", help="pyg, dgl: patch(fuse=True)")
    parser.add_argument("--jobs", default="2", help="processes of pytest-xdist (2)")
    parser.add_argument("--out", type=Path, default=Path("out/upstream"), help="for logs and results (out/upstream)")
    split = arguments.index("--") if "--" in arguments else len(arguments)
    options = parser.parse_args(arguments[:split])
    options.arguments = arguments[split + 1 :]
    options.out = options.out.resolve()
    options.out.mkdir(parents=True, exist_ok=True)
    turned_on = [options.name, *(name for name in ("all-sizes", "fuse") if getattr(options, name.replace("-", "_")))]
    return report(run(options, ""), run(options, " ".join(turned_on)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
