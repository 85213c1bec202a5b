"""gather_rows from page-locked memory of the CPU, which the GPU reads in place; streams, capture, synchronisation.

What it copies from tables on the GPU, tests/ops/test_gather_rows.py tests on every device.
"""

import gc
import itertools

import pytest
import torch

from halfgnn import reference
from tests import support
from tests.gpu import gpu_cases
from tests.gpu.gpu_cases import DEVICE
from tests.gpu.test_gpu_capture import capture
from tests.gpu.test_gpu_streams import no_synchronisation
from tests.ops.test_gather_rows import as_bytes, make_ids, make_table

pytestmark = gpu_cases.needs_gpu

gather_rows = torch.ops.halfgnn.gather_rows
WIDTHS = [1, 3, 8, 33, 64, 100, 257, 768]


def out_like(table, ids):
    return torch.zeros(ids.shape[0], *table.shape[1:], dtype=table.dtype, device=ids.device)


def check(table, ids):
    """The expected rows. table: on the CPU, page-locked. ids: on the GPU; ids out of range give bytes of 0xFF."""
    on_cpu = ids.cpu().long()
    is_bad = (on_cpu < 0) | (on_cpu >= table.shape[0])
    expected = as_bytes(table).view(table.shape[0], -1)[on_cpu.masked_fill(is_bad, 0)]
    expected[is_bad] = 255
    out = out_like(table, ids)
    gather_rows(table, ids, out)
    assert torch.equal(as_bytes(out.cpu()), expected.flatten())


# ---- page-locked tables --------------------------------------------------------------------------


@pytest.mark.parametrize("idtype", support.IDTYPES, ids=str)
@pytest.mark.parametrize("width", WIDTHS)
def test_pinned_table(width, idtype):
    for dtype, bad in itertools.product((torch.uint8, torch.float16, torch.float32, torch.complex128), (False, True)):
        ids = make_ids(300, 1000, idtype, DEVICE)
        if bad:
            ids[::7] = torch.tensor([-1, 300, 2**31 - 1, -(2**31)], dtype=idtype, device=DEVICE).repeat(40)[:143]
        check(make_table(300, width, dtype=dtype).pin_memory(), ids)


@pytest.mark.parametrize("first", [0, 1, 4, 17, 64])
@pytest.mark.parametrize("width", [8, 64, 257, 768])
def test_columns_and_rows_of_a_pinned_table(width, first):
    wide = make_table(200, first + width + 8).pin_memory()
    ids = make_ids(200, 500, device=DEVICE)
    check(wide[:, first : first + width], ids)
    check(wide[::3, first : first + width], ids % 67)
    check(wide[5:6, first : first + width].expand(200, width), ids)


def test_pinned_memory_that_is_registered():
    table = make_table(600, 768)
    cudart = torch.cuda.cudart()
    assert int(cudart.cudaHostRegister(table.data_ptr(), table.nbytes, 0)) == 0
    try:
        check(table, make_ids(600, 2000, device=DEVICE))
    finally:
        torch.cuda.synchronize()
        assert int(cudart.cudaHostUnregister(table.data_ptr())) == 0


def check_refused(table, ids):
    """Where a GPU reads any memory of the process (HMM, ATS), CUDA may call pageable memory managed: then rows must be right."""
    try:
        gather_rows(table, ids, out_like(table, ids))
    except ValueError as error:
        assert "table is in pageable memory of the CPU" in str(error)
    else:
        check(table, ids)


def test_pageable_memory_is_refused():
    check_refused(make_table(100, 64), make_ids(100, 10, device=DEVICE))


def test_memory_that_is_registered_in_part_is_refused():
    table, ids = make_table(4096, 768), make_ids(4096, 10, device=DEVICE)
    cudart = torch.cuda.cudart()
    assert int(cudart.cudaHostRegister(table.data_ptr(), 1 << 16, 0)) == 0
    try:
        check_refused(table, ids)
        check(table[:10], ids % 10)
    finally:
        torch.cuda.synchronize()
        assert int(cudart.cudaHostUnregister(table.data_ptr())) == 0


def test_empty_tables_need_not_be_pinned():
    ids = torch.zeros(3, dtype=torch.int64, device=DEVICE)
    out = torch.zeros(3, 8, dtype=torch.float16, device=DEVICE)
    gather_rows(make_table(0, 8), ids, out)
    assert out.isnan().all()
    gather_rows(make_table(5, 0), ids, out[:, :0].contiguous())


@pytest.mark.parametrize("name", ["ids", "out"])
def test_only_the_table_may_be_on_the_cpu(name):
    table, ids = make_table(10, 4).pin_memory(), make_ids(10, 7, device=DEVICE)
    given = {"table": table, "ids": ids, "out": out_like(table, ids)}
    given[name] = given[name].cpu()
    with pytest.raises(ValueError, match="is on"):
        gather_rows(*given.values())


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_other_gpus():
    table, ids = make_table(50, 100), make_ids(50, 70, device="cuda:1")
    check(table.pin_memory(), ids)
    out = out_like(table, ids)
    gather_rows(table.to("cuda:1"), ids, out)
    assert torch.equal(as_bytes(out.cpu()), as_bytes(table[ids.cpu()]))
    with pytest.raises(ValueError, match="table is on cuda:0"):
        gather_rows(table.to("cuda:0"), ids, out)


@pytest.mark.parametrize("width", WIDTHS)
def test_pinned_codes_and_scales(width):
    """Converted as they are read over the bus; scales in page-locked memory or on the GPU."""
    for code, dtype in itertools.product((torch.uint8, torch.float8_e4m3fn), (torch.float16, torch.float32)):
        table, ids = torch.randint(120, (300, width), dtype=torch.uint8).view(code), make_ids(300, 1000, device=DEVICE)
        for shape in ((300, 1), (width,), ()):
            scale = torch.rand(shape)
            zero = torch.randint(9, shape).float() if code == torch.uint8 else None
            expected = reference.gather_rows(table, ids.cpu(), scale=scale, zero_point=zero, out_dtype=dtype)
            for place in (torch.Tensor.pin_memory, torch.Tensor.cuda):
                given = (place(scale), None if zero is None else place(zero))
                out = torch.zeros(1000, width, dtype=dtype, device=DEVICE)
                gather_rows(table.pin_memory(), ids, out, 0, *given)
                assert torch.equal(out.cpu(), expected)


def test_pageable_scales_are_refused():
    table, ids = torch.ones(100, 64, dtype=torch.uint8).pin_memory(), make_ids(100, 10, device=DEVICE)
    out = torch.zeros(10, 64, dtype=torch.float16, device=DEVICE)
    try:
        gather_rows(table, ids, out, 0, torch.ones(100, 1))
    except ValueError as error:
        assert "scale is in pageable memory of the CPU" in str(error)
    else:  # as check_refused()
        assert (out == 1).all()


# ---- streams -------------------------------------------------------------------------------------


def tables(*shape):
    table = make_table(*shape)
    return [table.pin_memory(), table.to(DEVICE)]


def test_runs_on_the_current_stream():
    for table in tables(500, 768):
        right = make_ids(500, 3000, device=DEVICE)
        ids, out = torch.zeros_like(right), out_like(table, right)
        torch.cuda.synchronize()
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(20_000_000)
            ids.copy_(right)  # late: a launch on any other stream reads zeros
            gather_rows(table, ids, out)
        stream.synchronize()
        assert torch.equal(as_bytes(out.cpu()), as_bytes(table.cpu()[right.cpu()]))


def test_memory_of_a_pinned_table_is_not_given_away_before_it_was_read():
    table, ids = make_table(2000, 768), make_ids(2000, 3000, device=DEVICE)
    expected, out = as_bytes(table[ids.cpu()]), torch.zeros(3000, 768, dtype=torch.float16, device=DEVICE)
    pinned = table.pin_memory()
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)
        gather_rows(pinned[:, :], ids, out)
    del pinned
    gc.collect()
    others = [torch.zeros(2000, 768, dtype=torch.float16).pin_memory() for _ in range(3)]
    stream.synchronize()
    assert torch.equal(as_bytes(out.cpu()), expected) and len(others) == 3


def test_host_never_waits():
    for table in tables(500, 100):
        ids = make_ids(500, 3000, device=DEVICE)
        out = out_like(table, ids)
        with no_synchronisation():
            gather_rows(table, ids, out)


@pytest.mark.parametrize("width", [7, 768])
def test_captured_in_a_cuda_graph(width):
    for table in tables(500, width):
        ids = make_ids(500, 3000, torch.int32, DEVICE)
        out = out_like(table, ids)
        graph, _ = capture(lambda table=table, ids=ids, out=out: gather_rows(table, ids, out))
        for _ in range(2):
            ids.copy_(make_ids(500, 3000, torch.int32, DEVICE))
            graph.replay()
            torch.cuda.synchronize()
            assert torch.equal(as_bytes(out.cpu()), as_bytes(table.cpu()[ids.cpu().long()]))


def test_compiled_with_a_pinned_table():
    @torch.compile(backend="aot_eager", fullgraph=True)
    def rows(table, ids):
        out = torch.empty(ids.shape[0], table.shape[1], dtype=table.dtype, device=ids.device)
        torch.ops.halfgnn.gather_rows(table, ids, out)
        return out * 2

    table, ids = torch.randn(30, 16).pin_memory(), make_ids(30, 50, device=DEVICE)
    assert torch.equal(rows(table, ids).cpu(), table[ids.cpu()] * 2)
