"""What pytest does besides on the simulator: leaves out float64, says what ran, keeps line counts, notes which test runs."""

import os

import torch

from simt import control

NOTE = os.environ.get("HALFGNN_SIMT_NOTE")  # a file that names the running test, for when the process dies in it


def _needs_float64(item):
    values = item.callspec.params.values() if hasattr(item, "callspec") else ()
    return torch.float64 in values or "gradcheck" in item.name


def pytest_collection_modifyitems(config, items):
    """CUDA kernels have no float64; tests take the simulator for the CPU, which has."""
    left_out = [item for item in items if _needs_float64(item)]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


def pytest_runtest_logstart(nodeid):
    if NOTE:
        with open(NOTE, "w") as note:
            note.write(nodeid)


def pytest_terminal_summary(terminalreporter):
    counts = {name: control.get(name) for name in ("launches", "blocks", "switches", "seed")}
    terminalreporter.write_line("simulated: " + ", ".join(f"{name} {count:,}" for name, count in counts.items()))


def pytest_unconfigure():
    control.dump_coverage()
