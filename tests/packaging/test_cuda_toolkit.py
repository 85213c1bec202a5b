"""The GPUs for which the CUDA half is compiled. Needs no toolkit, because the output of nvcc is given here."""

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
if not (ROOT / "cuda_toolkit.py").is_file():
    pytest.skip("the sources are not here", allow_module_level=True)
sys.path.insert(0, str(ROOT))
import cuda_toolkit  # noqa: E402

# nvcc --list-gpu-code
TOOLKITS = {
    "12.4": [50, 52, 53, 60, 61, 62, 70, 72, 75, 80, 86, 87, 89, 90],
    "12.8": [50, 52, 53, 60, 61, 62, 70, 72, 75, 80, 86, 87, 89, 90, 100, 101, 120],
    "13.0": [75, 80, 86, 87, 88, 89, 90, 100, 110, 103, 120, 121],
}
GPUS = [75, 80, 86, 89, 90, 100, 103, 110, 120, 121, 130]  # V100 (70) until 12.9; 130: a future GPU


@pytest.fixture(params=TOOLKITS)
def codes(request, monkeypatch):
    """(toolkit, requested SASS and PTX versions)"""
    monkeypatch.delenv("TORCH_CUDA_ARCH_LIST", raising=False)
    known = "\n".join(f"sm_{arch}" for arch in TOOLKITS[request.param])
    monkeypatch.setattr(cuda_toolkit, "_nvcc", lambda home, *args: known)
    flags = cuda_toolkit.arch_flags("/nowhere")
    wanted = [re.fullmatch(r"-gencode=arch=compute_(\d+),code=(sm|compute)_(\d+)", flag) for flag in flags]
    assert all(match and match[1] == match[3] for match in wanted)
    return request.param, *({int(m[1]) for m in wanted if m[2] == kind} for kind in ("sm", "compute"))


def test_every_gpu_has_code(codes):
    """The GPU has machine code of its major version, or PTX that is not newer than the GPU."""
    toolkit, machine_code, ptx = codes
    for gpu in GPUS + [70] * (70 in TOOLKITS[toolkit]):
        has_machine_code = any(arch // 10 == gpu // 10 and arch <= gpu for arch in machine_code)
        assert has_machine_code or any(arch <= gpu for arch in ptx), f"nothing for {gpu}"
        if gpu in (80, 86, 90, 100, 120) and gpu in TOOLKITS[toolkit]:
            assert gpu in machine_code  # its own, not that of an older GPU
    # 8.9 (L40S, RTX 4090) takes that of 8.6: a file more would make the library larger for no other instruction.
    assert 89 not in machine_code


def test_only_what_the_toolkit_knows(codes):
    toolkit, machine_code, ptx = codes
    assert machine_code | ptx <= set(TOOLKITS[toolkit])
    assert len(ptx) == 1  # it serves all newer GPUs


def test_architectures_that_the_build_records(codes):
    _, machine_code, ptx = codes
    recorded = cuda_toolkit.archs_of(cuda_toolkit.arch_flags("/nowhere"))
    assert set(recorded) == {f"sm_{arch}" for arch in machine_code} | {f"compute_{arch}" for arch in ptx}
    flags = ["-O3", "-gencode=arch=compute_90a,code=sm_90a", "-gencode", "arch=compute_90,code=compute_90"]
    assert cuda_toolkit.archs_of(flags) == ["sm_90a", "compute_90"]


def test_a_list_of_ones_own_is_obeyed(monkeypatch):
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "9.0+PTX")
    assert cuda_toolkit.arch_flags("/nowhere") == []
