"""What a user is told whose GPU the library has no kernels for. torch.cuda is a stand-in: no GPU is needed."""

import warnings

import pytest
import torch
from torch._subclasses import FakeTensorMode

from halfgnn import Graph, _library, ops
from halfgnn import __main__ as command

GPU = torch.device("cuda", 0)
HERE = "python setup.py build_ext --inplace"


@pytest.fixture
def gpu(monkeypatch):
    """A GPU of compute capability 8.0 and a library of which nothing is known. Sets what differs from this."""

    def make(has_cuda=True, capability=(8, 0), is_available=True, **facts):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: is_available)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: int(is_available))
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Stand-in")
        monkeypatch.setattr(_library, "has_cuda", lambda: has_cuda)
        monkeypatch.setattr(_library, "_FACTS", facts)
        monkeypatch.setattr(_library, "_served", set())
        monkeypatch.setattr(_library, "_in_checkout", lambda: True)
        monkeypatch.setattr(_library, "_NAMED", None)

    return make


@pytest.mark.parametrize("archs", [["sm_80"], ["sm_75", "sm_80", "compute_90"], ["compute_75"], None])
def test_gpu_that_is_served(gpu, archs):
    gpu(archs=archs)
    _library.check_device(GPU)
    gpu(archs=archs, capability=(8, 9))
    _library.check_device(GPU)


@pytest.mark.parametrize(
    ("archs", "capability"),
    [
        (["sm_90", "compute_90"], (8, 0)),
        (["sm_80"], (7, 5)),
        (["sm_86"], (8, 0)),
        (["sm_90"], (10, 0)),
        (["sm_90a", "compute_90a"], (10, 0)),
        (["sm_100f", "compute_100f"], (12, 0)),
    ],
)
def test_gpu_of_another_architecture(gpu, archs, capability):
    gpu(archs=archs, capability=capability)
    version = "{}.{}".format(*capability)
    with pytest.raises(RuntimeError) as raised:
        _library.check_device(GPU)
    for words in (*archs, "cuda:0, Stand-in", f"capability {version}", f"TORCH_CUDA_ARCH_LIST={version} {HERE}"):
        assert words in str(raised.value)


@pytest.mark.parametrize("reason", [None, "HALFGNN_CUDA=0", "no CUDA toolkit was found"])
def test_gpu_and_no_cuda_back_end(gpu, reason):
    gpu(has_cuda=False, without_cuda=reason)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="without its CUDA back end") as raised:
            _library.check_device(GPU)
        assert (reason or "") in str(raised.value) and f"HALFGNN_CUDA=1 {HERE}" in str(raised.value)


@pytest.mark.parametrize(("cuda", "words"), [("12.8", "is for CUDA 12.8"), (None, "was built without CUDA")])
def test_torch_for_another_cuda(gpu, monkeypatch, cuda, words):
    """A library by the stable ABI loads beside it, and its CUDA back end is of no use."""
    gpu(cuda="13.0", archs=["sm_80"])
    monkeypatch.setattr(torch, "__version__", "2.13.0")
    monkeypatch.setattr(torch.version, "cuda", cuda)
    with pytest.raises(RuntimeError, match=f"built for CUDA 13, and torch 2.13.0 {words}: install a torch for CUDA 13"):
        _library.check_device(GPU)
    assert words in command._cuda_back_end()
    monkeypatch.setattr(torch.version, "cuda", "13.2")
    _library.check_device(GPU)
    assert command._cuda_back_end() == "built for sm_80"


def test_fake_tensors_need_no_gpu(gpu):
    gpu(has_cuda=False, is_available=False)
    _library.check_device(GPU)


@pytest.mark.parametrize(
    ("reason", "is_available", "warns"),
    [
        ("no CUDA toolkit was found", True, True),
        ("no CUDA toolkit was found", False, False),
        ("HALFGNN_CUDA=0", True, False),
        (None, True, False),
    ],
)
def test_import_warns_of_a_build_that_found_no_toolkit(gpu, reason, is_available, warns):
    gpu(has_cuda=False, is_available=is_available, without_cuda=reason)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        _library._warn_without_cuda()
    assert [reason in str(w.message) and "HALFGNN_CUDA=1" in str(w.message) for w in caught] == [True] * warns


@pytest.mark.parametrize(
    "call",
    [
        lambda ids: Graph.from_edges(ids, ids, num_src=1, num_dst=1, check=False),
        lambda ids: Graph.from_csc(ids, ids, num_src=1, check=False),
        lambda ids: Graph(1, 1, (ids, ids, None)),  # as Graph.to and Graph.from_dgl make it
        lambda ids: ops.gather_rows(ids, ids),
        lambda ids: ops.segment_reduce(ids, ids.float()),
    ],
)
def test_entries_look_at_the_gpu_before_any_kernel_runs(call, monkeypatch):
    def refuse(device):
        raise RuntimeError(f"{device.type} is looked at")

    monkeypatch.setattr(_library, "check_device", refuse)
    with FakeTensorMode(), pytest.raises(RuntimeError, match="cuda is looked at"):
        call(torch.zeros(1, dtype=torch.int64, device="cuda"))
