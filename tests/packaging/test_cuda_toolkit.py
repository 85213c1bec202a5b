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
    return request.param, *codes_of(cuda_toolkit.arch_flags("/nowhere"))


def codes_of(flags):
    wanted = [re.fullmatch(r"-gencode=arch=compute_(\d+),code=(sm|compute)_(\d+)", flag) for flag in flags]
    # Machine code of the GPU's own PTX, or of that of another GPU of its major version.
    assert all(match[1] == match[3] or (match[1], match[3]) in {("80", "86"), ("80", "89")} for match in wanted)
    return ({int(match[3]) for match in wanted if match[2] == kind} for kind in ("sm", "compute"))


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


def test_architectures_of_a_wheel(monkeypatch):
    monkeypatch.delenv("TORCH_CUDA_ARCH_LIST", raising=False)
    monkeypatch.setattr(cuda_toolkit, "_nvcc", lambda home, *args: "\n".join(f"sm_{x}" for x in TOOLKITS["13.0"]))
    machine_code, ptx = codes_of(cuda_toolkit.arch_flags("/nowhere", for_wheel=True))
    assert machine_code == {80, 86, 89, 90, 100, 120} and ptx == {120}


@pytest.mark.parametrize(("toolkit", "is_small"), [("12.8", False), ("13.0", True), ("14.1", True)])
def test_form_of_fat_binaries(monkeypatch, toolkit, is_small):
    """Drivers of CUDA 12 need not know the smallest."""
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "9.0")
    monkeypatch.setattr(cuda_toolkit, "_nvcc", lambda home, *args: f"release {toolkit}, V{toolkit}.1")
    assert ("--compress-mode=size" in cuda_toolkit.nvcc_flags("/nowhere")) == is_small


def test_runtime_that_is_linked(tmp_path):
    """The folders of a toolkit from PyPI, whose shared runtime has its versioned name alone."""
    (tmp_path / "lib").mkdir()
    with pytest.raises(FileNotFoundError, match=r"no libcudart_static.a"):
        cuda_toolkit.cudart_link_args(str(tmp_path), static=True)
    for name in ("libcudart.so.13", "libcudart_static.a"):
        (tmp_path / "lib" / name).touch()
    assert "-l:libcudart.so.13" in cuda_toolkit.cudart_link_args(str(tmp_path))
    static = cuda_toolkit.cudart_link_args(str(tmp_path), static=True)
    assert static[0] == str(tmp_path / "lib" / "libcudart_static.a")
    assert "-Wl,--exclude-libs,libcudart_static.a" in static  # its names must not meet those of torch's runtime


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
