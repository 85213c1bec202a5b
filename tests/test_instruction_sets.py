"""The CPU kernels exist once for each instruction set; tests elsewhere run the best that the processor has. Here the plainest."""

import os
import pathlib
import subprocess
import sys

import pytest

TESTS = pathlib.Path(__file__).parent
SELECTION = {
    "test_spmm.py": "test_widths or inf_and_nan or first_edge_wins",
    "test_sddmm.py": "test_widths or inf_and_nan",
    "test_edge_softmax.py": "test_shapes or minus_infinity or equal_logits",
    "test_segment_reduce.py": "test_widths or ties",
}


@pytest.mark.skipif(os.environ.get("HALFGNN_CPU") == "baseline", reason="the whole run is on the baseline kernels")
@pytest.mark.parametrize("module", SELECTION)
def test_baseline_kernels(module):
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", str(TESTS / module)]
    # The choice is made once in a process, so it takes another one; a single thread, for other tests use the cores too.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    environment |= {"HALFGNN_CPU": "baseline", "OMP_NUM_THREADS": "1"}
    result = subprocess.run(
        [*command, "-k", f"({SELECTION[module]}) and not cuda"], env=environment, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-1000:]
