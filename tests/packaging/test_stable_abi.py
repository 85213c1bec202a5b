"""A library by PyTorch's stable ABI: what it asks of PyTorch, and what halfgnn/_stable_abi.py adds to its operators."""

import re
import shutil
import subprocess
import warnings

import pytest
import torch

from halfgnn import Graph, _library

pytestmark = pytest.mark.skipif(
    _library.facts().get("abi") != "stable", reason="the library under test was built by ATen"
)

# C functions of PyTorch's shims, and names with versions: of the C and C++ runtimes, whose versions a wheel's tag covers. PyTorch's
# libraries export some names of the C++ runtime without versions.
ALLOWED = re.compile(
    r"(aoti_torch|torch)_\w+"
    r"|\w+@(GLIBC|GLIBCXX|CXXABI|GCC)_[\d.]+"
    r"|_ITM_\w+TMCloneTable|__gmon_start__|__cxa_finalize"
)


def undefined(library: str) -> list[str]:
    lines = subprocess.run(["nm", "-D", "--undefined-only", library], capture_output=True, text=True, check=True).stdout
    return [line.split()[-1].replace("@@", "@") for line in lines.splitlines()]


@pytest.mark.skipif(shutil.which("nm") is None, reason="there is no nm")
def test_library_calls_no_unstable_function_of_pytorch():
    names = undefined(_library.path())
    assert "aoti_torch_get_sizes" in names
    assert [name for name in names if not ALLOWED.fullmatch(name)] == []


@pytest.mark.skipif(shutil.which("readelf") is None, reason="there is no readelf")
def test_library_loads_without_cuda():
    """It links nothing of CUDA, and what it calls of PyTorch's library for CUDA may be missing."""
    text = subprocess.run(
        ["readelf", "-dW", "--dyn-syms", _library.path()], capture_output=True, text=True, check=True
    ).stdout
    assert re.findall(r"NEEDED.*\[(.*cuda.*)\]", text) == []
    names = re.findall(r" GLOBAL +DEFAULT +UND (\S*cuda\S*)", text)
    assert names == ["aoti_torch_device_type_cuda"]  # a number, which every torch has


def test_what_is_no_stable_function_is_found():
    for name in (
        "_ZN2at10TensorBase5sizesEv",
        "_ZNK3c106Device3strEv",
        "_ZN5torch7LibraryC1Ev",
        "_ZSt28__throw_bad_array_new_lengthv",
        "GOMP_parallel",
        "PyErr_Occurred",
        "cudaMalloc@libcudart.so.13",
    ):
        assert not ALLOWED.fullmatch(name)


@pytest.fixture
def operands():
    g = Graph.from_edges(torch.tensor([0, 1, 2]), torch.tensor([1, 1, 0]), num_src=3, num_dst=2)
    return (*g.csc(), "copy_lhs", "sum", torch.ones(3, 4))


@pytest.mark.parametrize("call", [torch.ops.halfgnn.gspmm, torch.ops.halfgnn.gspmm.default], ids=["packet", "overload"])
def test_types_of_errors(call, operands):
    *rest, x = operands
    with pytest.raises(TypeError, match=r"^lhs_data has dtype torch.int64; expected torch.float16"):
        call(*rest, x.long(), None)
    with pytest.raises(ValueError, match=r"^op is 'of'; expected one of add"):
        call(*rest[:3], "of", "sum", x, None)
    with pytest.raises(RuntimeError, match=r"expected at most|missing|argument"):  # PyTorch's own
        call(*rest)


def test_derivative_is_refused_where_it_is_asked_for(operands):
    *rest, x = operands
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        out, _ = torch.ops.halfgnn.gspmm(*rest, x.requires_grad_(), None)
        assert out.requires_grad and torch.equal(out.detach(), torch.tensor([[1.0], [2.0]]).expand(2, 4))
        with pytest.raises(RuntimeError, match=r"^derivative for halfgnn::gspmm is not implemented$"):
            (out * 2).sum().backward()


def test_what_is_written_gets_a_new_version():
    table, ids, out = torch.arange(6.0).view(3, 2), torch.tensor([2, 0]), torch.zeros(2, 2)
    before = out._version
    torch.ops.halfgnn.gather_rows(table, ids, out=out)
    assert out._version > before and torch.equal(out, table[ids])
    with torch.inference_mode():
        torch.ops.halfgnn.gather_rows(table, ids, torch.zeros(2, 2))
