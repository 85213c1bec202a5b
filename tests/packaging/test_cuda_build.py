"""The CUDA back end as it was built: registered operators and, on a GPU, sums. tests/gpu has the other tests that need a
GPU."""

import os
import pathlib
import re
import subprocess
import sys

import pytest
import torch

import halfgnn
from benchmarks import yardsticks  # noqa: F401  (loads halfgnn_yardsticks)
from halfgnn import _library
from halfgnn.drop_in import gate
from tests import support

GSPMM = torch.ops.halfgnn.gspmm.default
CUDA_KEY = torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)
SCHEMAS = sorted(s.name for s in torch._C._jit_get_all_schemas() if s.name.startswith("halfgnn::"))
# A graph on a GPU is copied there.
EDGE_LISTS = ("coo_softmax", "coo_softmax_backward", "coo_sum", "coo_sum_backward")
ON_THE_CPU = [f"halfgnn::{name}" for name in (*EDGE_LISTS, "locality", "neighbor_sample", "reorder")]
YARDSTICKS = [f"halfgnn_yardsticks::{name}" for name in ("gather_limit", *support.NAIVE, "scalar_sddmm", "scalar_spmm")]

BUILT = halfgnn.has_cuda()
built = pytest.mark.skipif(not BUILT, reason="the library was built without its CUDA back end")
not_built = pytest.mark.skipif(BUILT, reason="the library was built with its CUDA back end")
on_gpu = pytest.mark.skipif(not (BUILT and torch.cuda.is_available()), reason="needs the CUDA back end and a GPU")


def make_csc(degrees, num_src, idtype=torch.int64):
    indptr = torch.tensor([0, *degrees]).cumsum(0)
    indices = torch.randint(num_src, (int(indptr[-1]),)) if num_src else torch.zeros(0)
    return indptr.to(idtype), indices.to(idtype)


def has_kernel(name, key):
    return torch._C._dispatch_has_kernel_for_dispatch_key(name, key)


# ---- without a GPU --------------------------------------------------------------


def test_kernel_is_registered_if_and_only_if_cuda_is_linked():
    with open(_library._PATH, "rb") as file:
        library = file.read()
    # By ATen it links PyTorch's library for CUDA. By the stable ABI it links none, and has a section with kernels.
    assert halfgnn.has_cuda() == (b"libc10_cuda.so" in library or b".nv_fatbin" in library)


def test_import_needs_no_gpu_and_creates_no_context():
    code = "import torch, halfgnn\nassert not torch.cuda.is_initialized()\nprint(halfgnn.has_cuda())"
    result = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        cwd=os.path.dirname(os.path.dirname(halfgnn.__file__)),
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == str(halfgnn.has_cuda())


@not_built
def test_without_cuda_back_end_the_error_names_operator_and_backend():
    indptr, indices = make_csc([1, 0, 2], 3)
    with pytest.raises(NotImplementedError, match=r"halfgnn::gspmm.*'CUDA'"):
        GSPMM.redispatch(CUDA_KEY, indptr, indices, None, "copy_lhs", "sum", torch.ones(3, 4), None, None)


def test_every_schema_of_the_library_is_known_here():
    source = pathlib.Path(__file__).parents[2] / "csrc" / "library.cpp"
    if not source.exists():
        pytest.skip("the sources are not here")
    written = re.findall(r'm\.def\(\s*"(\w+)\(', source.read_text())
    assert sorted(f"halfgnn::{name}" for name in written) == SCHEMAS, "the library is older than its sources"


@built
@pytest.mark.parametrize("name", [*SCHEMAS, *YARDSTICKS])
def test_every_operator_has_a_cuda_kernel(name):
    assert has_kernel(name, "CUDA") == (name not in ON_THE_CPU)


@pytest.mark.parametrize("name", SCHEMAS)
def test_every_operator_has_a_cpu_kernel(name):
    assert has_kernel(name, "CPU")


def test_calls_are_routed_on_cuda_if_and_only_if_it_was_built():
    assert gate.types_on("cuda") == (set(gpu_dtypes()) if BUILT else set())
    assert gate.cuda_has_attention() == BUILT


def gpu_dtypes():
    return [*support.HALVES, torch.float32]


# ---- on a GPU --------------------------------------------------------------


def copy_u_sum(indptr, indices, x, out_dtype=None):
    out, arg = GSPMM(indptr, indices, None, "copy_lhs", "sum", x, None, out_dtype)
    assert arg.numel() == 0
    return out


def check_against_cpu(degrees, x, idtype=torch.int32, out_dtype=None):
    """x is on the GPU. Both results round an fp32 sum once, but add in different orders."""
    indptr, indices = make_csc(degrees, x.size(0), idtype)
    out = copy_u_sum(indptr.cuda(), indices.cuda(), x, out_dtype)
    expected = copy_u_sum(indptr, indices, x.cpu(), out_dtype)
    assert out.dtype == expected.dtype and out.shape == expected.shape and out.is_cuda
    magnitude = copy_u_sum(indptr, indices, x.cpu().abs().float())
    rounding = expected.abs().double() * torch.finfo(out.dtype).eps
    noise = magnitude.double() * max([1, *degrees]) ** 0.5 * torch.finfo(torch.float32).eps
    error = (out.cpu().double() - expected.double()).abs()
    assert (error <= rounding + noise).all(), f"largest error {error.max()}"


@on_gpu
@pytest.mark.parametrize("dtype", gpu_dtypes())
@pytest.mark.parametrize("width", support.WIDTHS)
def test_widths(width, dtype):
    degrees = [0, 1, 2, 3, 7, 8, 9, 31, 32, 33, 0, 65, 200, 0]
    x = support.randn(50, width, dtype=dtype, device="cuda")
    for idtype in support.IDTYPES:
        check_against_cpu(degrees, x, idtype)
        check_against_cpu(degrees, support.misaligned(x), idtype)
        check_against_cpu(degrees, x, idtype, out_dtype=torch.float32)


@on_gpu
def test_trailing_shapes_and_strides():
    check_against_cpu([2, 0, 5], support.randn(9, 4, 16, dtype=torch.float16, device="cuda"))
    check_against_cpu([2, 0, 5], support.randn(9, dtype=torch.float16, device="cuda"))
    x = support.randn(9, 24, dtype=torch.float16, device="cuda")
    check_against_cpu([2, 0, 5], support.column_major(x))
    check_against_cpu([2, 0, 5], support.every_other(x))


@on_gpu
@pytest.mark.parametrize("width", [0, 8, 41])
def test_nothing_to_add(width):
    for degrees, num_src in (([], 3), ([0, 0, 0], 3), ([0, 0], 0)):
        x = support.randn(num_src, width, dtype=torch.float16, device="cuda")
        check_against_cpu(degrees, x)


@on_gpu
def test_hub_is_accurate_and_bitwise_reproducible():
    x = support.randn(1000, 64, dtype=torch.bfloat16, device="cuda")
    check_against_cpu([3, 100_000, 0, 5], x)
    indptr, indices = (t.cuda() for t in make_csc([3, 100_000, 0, 5], 1000))
    assert torch.equal(copy_u_sum(indptr, indices, x), copy_u_sum(indptr, indices, x))


@on_gpu
def test_thirteen_thousand_halves_do_not_stop_at_2048():
    x = torch.rand(13_000, 8, device="cuda").half()
    indptr, indices = torch.tensor([0, 13_000]).cuda(), torch.arange(13_000).cuda()
    out = copy_u_sum(indptr, indices, x).double()
    torch.testing.assert_close(out, x.double().sum(0, keepdim=True), rtol=2**-10, atol=0.0)


@on_gpu
def test_infinite_and_nan_sources_stay_in_their_rows():
    x = torch.ones(7, 72, dtype=torch.float16, device="cuda")
    x[0], x[1] = float("inf"), float("nan")
    indptr = torch.tensor([0, 3, 5, 8, 8]).cuda()
    indices = torch.tensor([2, 3, 4, 2, 0, 5, 1, 6]).cuda()
    expected = torch.tensor([[3], [float("inf")], [float("nan")], [0]]).half().cuda().expand(4, 72)
    out = copy_u_sum(indptr, indices, x)
    torch.testing.assert_close(out, expected, equal_nan=True, rtol=0, atol=0)


@on_gpu
def test_runs_on_the_current_stream():
    # The inputs are written late, on a side stream. A launch on any other stream reads them too early.
    indptr, indices = (t.cuda() for t in make_csc([40] * 2000, 2000))
    x = torch.zeros(2000, 256, dtype=torch.float16, device="cuda")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        x.fill_(1)
        out = copy_u_sum(indptr, indices, x)
    stream.synchronize()
    assert (out == 40).all()


@on_gpu
def test_captured_in_a_cuda_graph():
    indptr, indices = (t.cuda() for t in make_csc([5, 0, 33, 100], 60))
    x = support.randn(60, 41, dtype=torch.float16, device="cuda")
    copy_u_sum(indptr, indices, x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = copy_u_sum(indptr, indices, x)
    x.mul_(2)
    graph.replay()
    assert torch.equal(out, copy_u_sum(indptr, indices, x))


@on_gpu
def test_float64_and_mixed_devices_are_refused():
    indptr, indices = (t.cuda() for t in make_csc([1, 2], 3))
    with pytest.raises(TypeError, match=r"lhs_data has dtype torch.float64"):
        copy_u_sum(indptr, indices, torch.ones(3, 4, dtype=torch.float64, device="cuda"))
    with pytest.raises(ValueError, match="lhs_data is on cpu"):
        copy_u_sum(indptr, indices, torch.ones(3, 4))
