"""What pytest does besides on the simulator: leaves out what CUDA kernels have no part in and, where asked, most combinations
of parameters; makes the order of lanes depend on the test alone; says what ran; keeps line counts; notes which test runs."""

import gc
import itertools
import os
from collections import Counter, defaultdict

import pytest
import torch

from tests.simt import control

NOTE = os.environ.get("HALFGNN_SIMT_NOTE")  # a file that names the running test, for when the process dies in it
SAMPLE = bool(os.environ.get("HALFGNN_SIMT_SAMPLE"))

_counts = Counter()  # of this process and of its workers, but for the launches of the running test


# ---- which cases run -----------------------------------------------------------------------------

# Parts of names of tests that make no sense here: the simulated kernels are in the CPU's place, and have no float64; threads
# are the CPU's (of lanes see test_kernels.py); opcheck and compilation look at schemas, fake kernels and autograd, the same for
# all kernels.
LEFT_OUT = ("gradcheck", "float64", "and_threads", "opcheck", "compiled")


def _applies(item):
    values = item.callspec.params.values() if hasattr(item, "callspec") else ()
    return torch.float64 not in values and not any(part in item.originalname for part in LEFT_OUT)


def _parameters(item):
    return {(name, repr(value)) for name, value in item.callspec.params.items()} if hasattr(item, "callspec") else set()


def _sample(items):
    """Of each operator test the fewest cases, about, that still have every value of every parameter."""
    tests = defaultdict(list)
    for item in items:
        tests[item.path, item.originalname].append(item)
    kept = []
    for (path, _), cases in tests.items():
        if path.parent.name == "simt":  # written for the simulator
            kept += cases
            continue
        kept.append(cases[0])
        parameters = {case: _parameters(case) for case in cases}
        missing = set(itertools.chain.from_iterable(parameters.values())) - parameters[cases[0]]
        while missing:
            best = max(cases, key=lambda case: len(parameters[case] & missing))
            missing -= parameters[best]
            kept.append(best)
    return kept


def pytest_collection_modifyitems(config, items):
    kept = [item for item in items if _applies(item)]
    if SAMPLE:
        kept = _sample(kept)
    left_out = set(items) - set(kept)
    config.hook.pytest_deselected(items=[item for item in items if item in left_out])
    items[:] = kept


def pytest_collection_finish():
    gc.freeze()  # what is there stays there: not to be looked at again and again


# ---- while they run ------------------------------------------------------------------------------


def pytest_runtest_logstart(nodeid):
    if NOTE:
        with open(NOTE, "w") as note:
            note.write(nodeid)


def pytest_runtest_setup():
    """A test's order of lanes depends on the seed and on its own launches, whatever ran before."""
    _counts["launches"] += control.get("launches")
    control.put("launches", 0)


# ---- at the end ----------------------------------------------------------------------------------


def pytest_sessionfinish(session):
    control.dump_coverage()  # here: pytest-xdist may kill a worker that is slow to end
    _counts.update({name: control.get(name) for name in ("launches", "blocks", "switches")})
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["simulated"] = dict(_counts)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    _counts.update(getattr(node, "workeroutput", {}).get("simulated", {}))


def pytest_terminal_summary(terminalreporter):
    counts = ", ".join(f"{count:,} {name}" for name, count in _counts.items())
    terminalreporter.write_line(f"simulated: {counts}; seed {control.get('seed')}")
