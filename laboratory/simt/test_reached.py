"""The cases that sanitizers run first launch every kernel (tests/gpu/cover.py)."""

import pytest

from laboratory.simt import control, reached

if not control.SIMULATED:
    pytest.skip("runs on the simulator: laboratory/simt/run.py", allow_module_level=True)


def test_every_kernel_is_launched():
    kernels, _ = reached.launched("cover")
    left_out = reached.missing(kernels)
    assert not left_out, (
        f"{len(left_out)} of {len(kernels)}: python laboratory/simt/reached.py --update; {left_out[:8]}"
    )
