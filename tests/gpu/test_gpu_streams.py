"""Streams, host synchronisation, several devices, and bitwise equal results while the GPU does other work."""

import contextlib

import pytest
import torch

import halfgnn
from tests.gpu import gpu_cases
from tests.gpu.gpu_cases import DEVICE, DTYPES, assert_same, every_case, with_gradients

pytestmark = gpu_cases.needs_gpu


@contextlib.contextmanager
def other_work():
    """Runs matrix products and copies on another stream at the same time."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        a = torch.randn(2048, 2048, device=DEVICE)
        for _ in range(40):
            a = (a @ a).tanh_()
            a.roll(1)
    yield
    stream.synchronize()


@every_case
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_equal_bits_run_to_run(case, dtype):
    g, leaves = gpu_cases.setup(case, dtype, hub_edges=20_000)
    upstream = []
    expected = with_gradients(case, g, leaves, upstream)
    with other_work():
        for turn in range(6):
            assert_same(with_gradients(case, g, leaves, upstream), expected, f"in run {turn}")


@pytest.mark.parametrize("idtype", [torch.int32, torch.int64], ids=str)
def test_equal_graphs_run_to_run(idtype):
    src, dst = (ids.to(DEVICE, idtype) for ids in gpu_cases.hub_ends(hub_edges=20_000))

    def make():
        g = halfgnn.Graph.from_edges(src, dst, num_src=150, num_dst=150)
        return [*g.csc(), *g.csr()]

    expected = make()
    with other_work():
        for _ in range(4):
            assert_same(make(), expected)
    on_cpu = halfgnn.Graph.from_edges(src.cpu(), dst.cpu(), num_src=150, num_dst=150)
    assert_same([x.cpu() for x in expected], [*on_cpu.csc(), *on_cpu.csr()], "from the CPU's")


@every_case
def test_runs_on_the_current_stream(case):
    # The operands are written late, on a side stream. A launch on any other stream reads them too early.
    g, leaves = gpu_cases.setup(case, torch.float16)
    upstream = []
    expected = with_gradients(case, g, leaves, upstream)
    late = [torch.full_like(x, 0.5).requires_grad_() for x in leaves]
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
        with torch.no_grad():
            for x, values in zip(late, leaves):
                x.copy_(values)
        results = with_gradients(case, g, late, upstream)
    stream.synchronize()
    assert_same(results, expected, "on a side stream")


@contextlib.contextmanager
def no_synchronisation():
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@every_case
def test_host_never_waits(case):
    g, leaves = gpu_cases.setup(case, torch.bfloat16)
    upstream = []
    with_gradients(case, g, leaves, upstream)
    fresh = halfgnn.Graph(g.num_src, g.num_dst, csc=g.csc())
    with no_synchronisation():
        with_gradients(case, fresh, leaves, upstream)  # makes the CSR too


@pytest.mark.parametrize("idtype", [torch.int32, torch.int64], ids=str)
def test_host_never_waits_for_a_graph(idtype):
    src, dst = (ids.to(DEVICE, idtype) for ids in gpu_cases.hub_ends())
    with no_synchronisation():
        g = halfgnn.Graph.from_edges(src, dst, num_src=150, num_dst=150, check=False)
        g.csr(), g.in_degrees(), g.out_degrees(), g.reverse().csc(), g.edges()


def test_guard_sees_a_wait():
    with no_synchronisation(), pytest.raises(RuntimeError):
        torch.ones(3, device=DEVICE).sum().item()


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@every_case
def test_runs_on_the_tensors_device(case):
    g, leaves = gpu_cases.setup(case, torch.float16)
    upstream = []
    expected = with_gradients(case, g, leaves, upstream)
    there = [x.detach().to("cuda:1").requires_grad_() for x in leaves]
    results = with_gradients(case, g.to("cuda:1"), there, [upstream[0].to("cuda:1")])
    assert all(x.device == torch.device("cuda:1") for x in results) and torch.cuda.current_device() == 0
    assert_same([x.cpu() for x in results], [x.cpu() for x in expected], "on another device")
