"""The CPU kernels exist once per instruction set. Other tests run the best one of the processor, and this test the
portable one."""

import os
import pathlib
import subprocess
import sys

import pytest

TESTS = pathlib.Path(__file__).parent
MODULES = ("test_spmm.py", "test_sddmm.py", "test_edge_softmax.py", "test_segment_reduce.py", "test_attention.py")
SELECTION = (
    "test_widths or inf_and_nan or first_edge_wins or test_shapes or minus_infinity or equal_logits or ties or test_hub"
)


@pytest.mark.skipif(os.environ.get("HALFGNN_CPU") == "baseline", reason="the whole run is on the baseline kernels")
def test_baseline_kernels():
    modules = [str(TESTS / module) for module in MODULES]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *modules]
    # A process chooses once, so this needs another process. It has one thread, because other tests use the cores too.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    environment |= {"HALFGNN_CPU": "baseline", "OMP_NUM_THREADS": "1"}
    result = subprocess.run(
        [*command, "-k", f"({SELECTION}) and not cuda"], env=environment, capture_output=True, text=True, timeout=3600
    )
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-1000:]
