"""The test groups of a GPU launch every kernel: sanitizers, captures, streams and determinism see them all."""

import pytest

from laboratory.simt import control, reached

if not control.SIMULATED:
    pytest.skip("runs on the simulator: laboratory/simt/run.py", allow_module_level=True)


@pytest.mark.parametrize("group", reached.GROUPS)
def test_every_kernel_is_launched(group):
    kernels = reached.launched(group)
    elsewhere = reached.ELSEWHERE[group]
    missing = [name for name, ran in sorted(kernels.items()) if not ran and not name.startswith(elsewhere)]
    assert not missing, f"{len(missing)} of {len(kernels)}: {missing[:8]}"
