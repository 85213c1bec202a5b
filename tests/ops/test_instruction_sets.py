"""The CPU kernels exist once per instruction set. Other tests run the table of kernels that this process uses, and these a
sample of their cases on every other table that the processor supports. laboratory/instructions compares the tables' results."""

import functools
import os
import pathlib
import platform
import subprocess
import sys

import pytest

TESTS = pathlib.Path(__file__).parent
MODULES = (
    "test_spmm.py",
    "test_spmm_values.py",
    "test_sddmm.py",
    "test_edge_softmax.py",
    "test_segment_reduce.py",
    "test_copy_u_reduce.py",
    "test_attention.py",
    "test_dequantize.py",
)
SELECTION = (
    "test_widths or inf_and_nan or first_edge_wins or test_shapes or minus_infinity or equal_logits or ties or test_hub"
)
# Prints how many rows were summed, and the error if that is refused.
ONE_OPERATOR = """
import torch, halfgnn
g = halfgnn.Graph.from_edge_index(torch.tensor([[0], [1]]), num_nodes=2)
try:
    print(len(halfgnn.ops.copy_u_sum(g, torch.ones(2, 16))))
except RuntimeError as error:
    print(error)
"""


def run(table, *command):
    # A process chooses once, so this needs another process. It has one thread, because other tests use the cores too.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    environment |= {"HALFGNN_CPU": table, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *command], env=environment, capture_output=True, text=True, timeout=3600, check=False
    )


@functools.cache
def supported():
    """The tables that this processor supports, the fastest first, as the error of an unknown one names them."""
    told = run("another", "-c", ONE_OPERATOR).stdout.splitlines()[0]
    assert told.startswith("HALFGNN_CPU=another names no CPU kernels"), told
    return told.rsplit(": ", 1)[1].split(", ")


def test_an_unknown_table_is_refused_and_the_known_ones_are_named():
    assert supported()[-1] == "baseline"
    assert set(supported()) <= {"avx512", "avx2", "baseline"}


@pytest.mark.parametrize("table", ["", "baseline"])
def test_a_known_table_is_used(table):
    assert run(table, "-c", ONE_OPERATOR).stdout == "2\n"


@pytest.mark.parametrize("table", ["avx512", "avx2", "baseline"])
def test_kernels(table):
    if table == (os.environ.get("HALFGNN_CPU") or supported()[0]):
        pytest.skip(f"the whole run is on the kernels of {table}")
    if table not in supported():
        pytest.skip(f"this processor ({platform.machine()}) runs {', '.join(supported())}")
    modules = [str(TESTS / module) for module in MODULES]
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "tests.sample"]
    result = run(table, "-m", "pytest", *options, *modules, "-k", f"({SELECTION}) and not cuda")
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-1000:]
