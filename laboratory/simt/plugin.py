"""What pytest does besides on the simulator: leaves out what CUDA kernels have no part in and, where asked, most combinations
of parameters; makes the order of lanes depend on the test alone; says what ran; keeps line counts; notes which test runs."""

import gc
import os
from collections import Counter

import pytest
import torch

from laboratory.simt import control
from tests.sample import keep, sample

NOTE = os.environ.get("HALFGNN_SIMT_NOTE")  # a file that names the running test, for when the process dies in it
SAMPLE = bool(os.environ.get("HALFGNN_SIMT_SAMPLE"))

_counts = Counter()  # of this process and of its workers, but for the launches of the running test


# ---- which cases run -----------------------------------------------------------------------------

# Parts of names of tests that make no sense here: the simulated kernels are in the CPU's place, and have no float64; threads
# are the CPU's (of lanes see test_lanes.py); opcheck and compilation look at schemas, fake kernels and autograd, the same for
# all kernels.
LEFT_OUT = ("gradcheck", "float64", "and_threads", "opcheck", "compiled")


def _applies(item):
    values = item.callspec.params.values() if hasattr(item, "callspec") else ()
    return torch.float64 not in values and not any(part in item.originalname for part in LEFT_OUT)


def pytest_collection_modifyitems(config, items):
    kept = [item for item in items if _applies(item)]
    if SAMPLE:
        own = [item for item in kept if item.path.parent.name == "simt"]  # written for the simulator
        kept = own + sample([item for item in kept if item.path.parent.name != "simt"])
    keep(config, items, kept)


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
