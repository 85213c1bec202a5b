"""gather_rows copies rows by id: every byte of every dtype, from tables of any alignment and any stride."""

import pytest
import torch

from halfgnn import ops, reference
from tests import support

gather_rows = torch.ops.halfgnn.gather_rows

DTYPES = [
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64,
    torch.bool, torch.complex64, torch.complex128, torch.float8_e4m3fn, torch.float8_e5m2,
]  # fmt: skip
WIDTHS = [1, 2, 3, 5, 7, 8, 12, 33, 768]
# The simulator replaces the CPU's kernel by CUDA's, and has no threads.
on_cpu = pytest.mark.skipif(support.SIMULATED, reason="of the CPU's own kernel")


def make_table(*shape, dtype=torch.float16, device="cpu"):
    """Random bytes, which contain many kinds of NaN. A copy must keep them."""
    size = torch.empty(shape, dtype=dtype).numel() * torch.empty((), dtype=dtype).element_size()
    bytes_ = torch.randint(2 if dtype == torch.bool else 256, (size,), dtype=torch.uint8)
    return bytes_.view(dtype).view(shape).to(device)


def make_ids(num_rows, n, idtype=torch.int64, device="cpu"):
    return torch.randint(num_rows, (n,)).to(device, idtype)


def as_bytes(x):
    return x.contiguous().view(-1).view(torch.uint8)


def gathered(table, ids, num_threads=0):
    """The operator's result. Checks that the memory before and after it is unchanged."""
    shape = (ids.shape[0], *table.shape[1:])
    size = torch.empty(shape, dtype=table.dtype, device="meta").numel()
    margin = 64 // table.element_size()
    storage = as_bytes(table.new_zeros(size + 2 * margin)).fill_(171).view(table.dtype)
    out = storage[margin : margin + size].view(shape)
    assert gather_rows(table, ids, out, num_threads) is None
    kept = as_bytes(torch.cat([storage[:margin].view(torch.uint8), storage[margin + size :].view(torch.uint8)]))
    assert (kept == 171).all(), "written outside out"
    return out


def check(table, ids, num_threads=0):
    expected = as_bytes(table)[:0]
    if table.numel() > 0:
        rows = as_bytes(table).view(table.shape[0], -1)
        expected = rows[ids.long()].flatten()
    assert torch.equal(as_bytes(gathered(table, ids, num_threads)), expected)


# ---- the public function ------------------------------------------------------------------------


def test_example(device):
    _, x = support.example(device)
    ids = torch.tensor([2, 0, 2], device=device)
    assert ops.gather_rows(x, ids).tolist() == [[9, 10, 11, 12], [1, 2, 3, 4], [9, 10, 11, 12]]


@pytest.mark.parametrize("idtype", support.IDTYPES)
def test_public_function(idtype, device):
    table, ids = make_table(9, 3, device=device), make_ids(9, 5, idtype, device)
    expected = as_bytes(reference.gather_rows(table, ids))
    assert torch.equal(as_bytes(ops.gather_rows(table, ids)), expected)
    out = torch.zeros(5, 3, dtype=table.dtype, device=device)
    assert ops.gather_rows(table, ids, out, num_threads=1) is out and torch.equal(as_bytes(out), expected)
    assert ops.gather_rows(table[:, 0], ids).shape == (5,) and ops.gather_rows(table, ids[:0]).shape == (0, 3)


def test_public_function_refuses():
    table, ids = torch.zeros(3, 2), torch.tensor([0, 2])
    for call, error, match in [
        (lambda: ops.gather_rows([1.0], ids), TypeError, "table is a list; expected a torch.Tensor"),
        (lambda: ops.gather_rows(table, [0]), TypeError, "ids is a list; expected a torch.Tensor"),
        (lambda: ops.gather_rows(table, ids, 3), TypeError, "out is a int; expected a torch.Tensor"),
        (lambda: ops.gather_rows(table, ids[0]), ValueError, r"ids has shape \[\]; expected one dimension"),
        (lambda: ops.gather_rows(table[0, 0], ids), ValueError, "table has no dimensions; expected one row per id"),
        (lambda: ops.gather_rows(table.requires_grad_(), ids), ValueError, "table requires grad"),
    ]:
        with pytest.raises(error, match=match):
            call()


# ---- what is copied ------------------------------------------------------------------------------


@pytest.mark.parametrize("idtype", support.IDTYPES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_bytes_of_every_dtype(dtype, idtype, device):
    for width in (1, 5, 32):
        check(make_table(50, width, dtype=dtype, device=device), make_ids(50, 123, idtype, device))


@pytest.mark.parametrize("idtype", support.IDTYPES)
@pytest.mark.parametrize("width", WIDTHS)
def test_widths(width, idtype, device):
    for dtype in (torch.uint8, torch.float16, torch.float32, torch.complex128):
        table = make_table(40, width, dtype=dtype, device=device)
        ids = make_ids(40, 77, idtype, device)
        check(table, ids)
        check(support.misaligned(table.view(table.shape)), ids)


@pytest.mark.parametrize("first", [0, 1, 4, 8, 17, 64])
@pytest.mark.parametrize("width", [1, 3, 8, 40, 64, 257, 768])
def test_columns_of_a_wider_table(width, first, device):
    """Rows at every distance from a 128-byte line, and lines that begin at every element of a row."""
    for rest in (0, 1, 8, 64):
        table = make_table(30, first + width + rest, device=device)[:, first : first + width]
        check(table, make_ids(30, 65, device=device))


def test_every_other_row(device):
    table = make_table(60, 48, device=device)[::2]
    check(table, make_ids(30, 41, torch.int32, device))
    check(table.unsqueeze(1)[:, :, None].expand(30, 1, 1, 48), make_ids(30, 41, torch.int32, device))


def test_one_row_for_all(device):
    check(make_table(1, 24, device=device).expand(9, 24), make_ids(9, 20, device=device))


@pytest.mark.parametrize("shape", [(), (1,), (3, 4), (2, 1, 5)])
def test_trailing_shapes(shape, device):
    for idtype in support.IDTYPES:
        check(make_table(21, *shape, dtype=torch.int64, device=device), make_ids(21, 34, idtype, device))


@pytest.mark.parametrize("idtype", support.IDTYPES)
def test_ids_at_any_stride(idtype, device):
    table = make_table(90, 16, device=device)
    check(table, make_ids(90, 3 * 40, idtype, device)[1::3])
    check(table, make_ids(90, 1, idtype, device).expand(50))
    check(table, support.misaligned(make_ids(90, 50, idtype, device)))
    check(table, make_ids(90, 80, idtype, device).view(40, 2).t()[1])


def test_repeated_and_sorted_ids(device):
    table = make_table(500, 12, device=device)
    for ids in (torch.zeros(300), torch.arange(500), torch.arange(499, -1, -1), torch.full((200,), 499)):
        check(table, ids.to(device, torch.int32))


@pytest.mark.parametrize("num_rows,n,shape", [
    (0, 0, (8,)), (0, 0, ()), (5, 0, (8,)), (5, 0, (0,)), (5, 9, (0,)), (5, 9, (3, 0)), (1, 1, ()), (1, 1, (1,)), (1, 70, (100,)),
])  # fmt: skip
def test_little_or_nothing(num_rows, n, shape, device):
    for num_threads in (0, 3):
        check(make_table(num_rows, *shape, device=device), make_ids(max(num_rows, 1), n, device=device), num_threads)


def test_more_rows_than_a_gpu_copies_at_once(device):
    """In CUDA's kernel a warp then does several accesses in sequence."""
    table = make_table(100, 33, dtype=torch.uint8, device=device)
    check(table, make_ids(100, 140_000, torch.int32, device))


def test_result_is_that_of_indexing(device):
    table, ids = support.randn(100, 20, dtype=torch.bfloat16, device=device), make_ids(100, 60, device=device)
    out = torch.empty(60, 20, dtype=torch.bfloat16, device=device)
    gather_rows(table, ids, out)
    assert torch.equal(out, table[ids])


def test_lazy_conjugates_are_those_of_the_values(device):
    table, ids = torch.randn(9, 4, dtype=torch.complex64, device=device), make_ids(9, 12, device=device)
    out = torch.empty(12, 4, dtype=torch.complex64, device=device)
    gather_rows(table.conj(), ids, out)
    assert torch.equal(out, table.conj()[ids])


# ---- threads -------------------------------------------------------------------------------------


@on_cpu
@pytest.mark.parametrize("num_threads", [0, 1, 2, 7, 64])
@pytest.mark.parametrize("width", [1, 4, 33, 768])
def test_any_number_of_threads(width, num_threads):
    table = make_table(3000, width)
    for n in (1, 5, 4000, 20_000):
        check(table, make_ids(3000, n, torch.int32 if n % 2 else torch.int64), num_threads)


@on_cpu
def test_rows_wider_than_a_threads_piece():
    check(make_table(7, 300_000), make_ids(7, 9), 4)


@on_cpu
def test_a_file_mapped_into_memory(tmp_path):
    table = make_table(200, 768)
    path = tmp_path / "rows.bin"
    path.write_bytes(as_bytes(table).numpy().tobytes())
    mapped = torch.from_file(str(path), shared=False, size=table.numel(), dtype=table.dtype).view(200, 768)
    ids = make_ids(200, 500)
    for num_threads in (0, 1, 16):
        assert torch.equal(as_bytes(gathered(mapped, ids, num_threads)), as_bytes(table.view(torch.int16)[ids]))


@on_cpu
def test_memory_shared_between_processes():
    check(make_table(100, 64).share_memory_(), make_ids(100, 300))


# ---- ids out of range ----------------------------------------------------------------------------


@pytest.mark.parametrize("idtype", support.IDTYPES)
@pytest.mark.parametrize("width", WIDTHS)
def test_on_cuda_rows_of_ids_out_of_range_are_bytes_of_ones(width, idtype, device):
    if not support.has_cuda_kernels(device):
        pytest.skip("the CPU raises IndexError")
    bad = [-1, 40, 2**31 - 1, -(2**31)] + ([2**32, 2**32 + 3, 2**63 - 1, -(2**63)] if idtype == torch.int64 else [])
    ids = make_ids(40, 50, idtype, device)
    ids[1 : 2 * len(bad) : 2] = torch.tensor(bad, dtype=idtype, device=device)
    is_bad = (ids < 0) | (ids >= 40)
    for dtype in (torch.uint8, torch.float16, torch.float32):
        table = make_table(40, width, dtype=dtype, device=device)
        for given in (table, support.misaligned(table)):
            out = as_bytes(gathered(given, ids)).view(50, -1)
            assert (out[is_bad] == 255).all() and is_bad.sum() == len(bad)
            assert torch.equal(out[~is_bad], as_bytes(table).view(40, -1)[ids[~is_bad].long()])


def test_on_cuda_a_table_without_rows_has_no_valid_id(device):
    if not support.has_cuda_kernels(device):
        pytest.skip("the CPU raises IndexError")
    for dtype in (torch.bfloat16, torch.int32):
        out = gathered(make_table(0, 70, dtype=dtype, device=device), torch.zeros(3, dtype=torch.int64, device=device))
        assert (out == -1).all() if dtype == torch.int32 else out.isnan().all()


@on_cpu
@pytest.mark.parametrize("num_threads", [0, 1, 5])
@pytest.mark.parametrize("bad", [-1, 100, 2**31 - 1, -(2**31)])
def test_an_id_out_of_range_is_found_before_rows_are_copied(bad, num_threads):
    table = make_table(100, 8)
    for idtype in support.IDTYPES:
        for n, position in ((1, 0), (50, 49), (50, 0), (200_000, 150_000)):
            ids = make_ids(100, n, idtype)
            ids[position] = bad
            ids[n - 1] = bad  # the error names the first
            out = table.new_full((n, 8), 3)
            with pytest.raises(IndexError, match=rf"ids\[{position}\] is {bad}; expected ids in \[0, 100\)"):
                gather_rows(table, ids, out, num_threads)
            assert (out == 3).all()


@on_cpu
def test_ids_of_64_bits_are_not_cut_to_32():
    for bad in (2**32, 2**32 + 5, -(2**63), 2**63 - 1):
        with pytest.raises(IndexError, match=rf"is {bad};"):
            gather_rows(make_table(9, 3), torch.tensor([bad]), torch.empty(1, 3, dtype=torch.float16))


@on_cpu
def test_a_table_without_rows_has_no_valid_id():
    with pytest.raises(IndexError, match=r"ids\[0\] is 0; expected ids in \[0, 0\)"):
        gather_rows(make_table(0, 4), torch.zeros(2, dtype=torch.int32), torch.empty(2, 4, dtype=torch.float16))
    with pytest.raises(IndexError, match=r"ids\[1\] is 7"):  # rows are empty, but the id is still wrong
        gather_rows(make_table(5, 0), torch.tensor([0, 7]), torch.empty(2, 0, dtype=torch.float16))


# ---- arguments -----------------------------------------------------------------------------------


def arguments(device, **changes):
    given = {
        "table": make_table(10, 4, 6, device=device),
        "ids": make_ids(10, 7, device=device),
        "out": torch.zeros(7, 4, 6, dtype=torch.float16, device=device),
        "num_threads": 0,
    }
    return {name: changes.get(name, lambda x: x)(value) for name, value in given.items()}


@pytest.mark.parametrize("name,change,error,message", [
    ("table", lambda t: t[0, 0, 0], ValueError, "table has no dimensions"),
    ("table", lambda t: t.transpose(1, 2), ValueError, "table has shape .* and strides .*rows that are contiguous"),
    ("table", lambda t: t.repeat(1, 1, 2)[..., ::2], ValueError, "table has shape .* and strides"),
    ("table", lambda t: t.float(), TypeError, "out has dtype torch.float16; expected that of table, torch.float32"),
    ("table", lambda t: t[:, :3], ValueError, r"out has shape \[7, 4, 6\]; expected \[7, 3, 6\]"),
    ("ids", lambda t: t.float(), TypeError, "ids has dtype torch.float32; expected torch.int32 or torch.int64"),
    ("ids", lambda t: t.to(torch.uint8), TypeError, "ids has dtype torch.uint8"),
    ("ids", lambda t: t.view(1, 7), ValueError, r"ids has shape \[1, 7\]; expected one dimension"),
    ("ids", lambda t: t[0], ValueError, r"ids has shape \[\]"),
    ("ids", lambda t: t[:6], ValueError, r"out has shape \[7, 4, 6\]; expected \[6, 4, 6\]"),
    ("out", lambda t: t.bfloat16(), TypeError, "out has dtype torch.bfloat16; expected that of table, torch.float16"),
    ("out", lambda t: t.view(7, 24), ValueError, r"out has shape \[7, 24\]"),
    ("out", lambda t: t[0, 0, 0], ValueError, r"out has shape \[\]"),
    ("out", lambda t: t.repeat(1, 1, 2)[..., ::2], ValueError, "out has strides"),
    ("out", lambda t: t[:1].expand(7, 4, 6), ValueError, "out has strides"),
    ("num_threads", lambda n: -1, ValueError, "num_threads is -1"),
    ("num_threads", lambda n: 10**6, ValueError, r"num_threads is 1000000; expected a number in \[0, 1024\]"),
])  # fmt: skip
def test_wrong_arguments(name, change, error, message, device):
    gather_rows(*arguments(device).values())
    with pytest.raises(error, match=message):
        gather_rows(*arguments(device, **{name: change}).values())


def test_out_needs_memory_of_its_own(device):
    storage = make_table(40, 6, dtype=torch.int64, device=device)
    ids = make_ids(10, 10, device=device)
    gather_rows(storage[:10], ids, storage[10:20])  # beside one another
    for table, out in (
        (storage[:10], storage[9:19]),
        (storage[10:], storage[:11][1:]),
        (storage[:20:2], storage[5:15]),
    ):
        with pytest.raises(ValueError, match="out lies in the memory of table"):
            gather_rows(table, ids, out)
    ids = torch.zeros(10, dtype=torch.int64, device=device)
    with pytest.raises(ValueError, match="out lies in the memory of ids"):
        gather_rows(storage[:10, 0], ids, ids)


def test_out_of_no_columns_needs_no_memory(device):
    """At every alignment of its address."""
    x = torch.arange(40.0, device=device).reshape(10, 4)
    ids, out = torch.tensor([3, 0, 9], device=device), x[:3, 1:1]
    gather_rows(x[:, 2:2], ids, out)
    assert torch.equal(x, torch.arange(40.0, device=device).reshape(10, 4))


def test_tensors_of_several_devices_are_refused(device):
    for name in ("table", "ids", "out"):
        with pytest.raises((ValueError, NotImplementedError), match=r"device|is on"):
            gather_rows(*arguments(device, **{name: lambda t: t.to("meta")}).values())


# ---- autograd and tracing ------------------------------------------------------------------------


def test_has_no_derivative(device):
    for name in ("table", "out"):
        given = arguments(device, **{name: lambda t: t.requires_grad_()})
        with pytest.raises(ValueError, match=f"{name} requires grad, and halfgnn::gather_rows has no derivative"):
            gather_rows(*given.values())
        with torch.no_grad():
            gather_rows(*given.values())
        assert torch.equal(as_bytes(given["out"].detach()), as_bytes(given["table"].detach()[given["ids"]]))


@pytest.mark.parametrize("name,view", [("negative", torch._neg_view), ("conjugate", torch.conj)])
def test_a_lazy_view_is_a_table_and_no_out(name, view, device):
    table, ids = make_table(10, 4, dtype=torch.complex64).to(device), make_ids(10, 5, device=device)
    table = torch.view_as_complex(torch.view_as_real(table).nan_to_num())
    assert torch.equal(ops.gather_rows(view(table), ids), view(table)[ids])
    with pytest.raises(ValueError, match=rf"out is a view with the {name} bit, of shape \(5, 4\)"):
        ops.gather_rows(table, ids, out=view(table[:5].clone()))


def test_autograd_knows_that_out_was_written(device):
    given = arguments(device)
    factor = torch.ones_like(given["out"]).requires_grad_()
    product = (factor * given["out"]).sum()
    version = given["out"]._version
    gather_rows(*given.values())
    assert given["out"]._version > version
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()


@pytest.mark.parametrize("idtype", support.IDTYPES)
def test_opcheck(idtype, device):
    for shape in ((), (8,), (2, 3)):
        table, ids = make_table(12, *shape, dtype=torch.int16, device=device), make_ids(12, 5, idtype, device)
        torch.library.opcheck(gather_rows.default, (table, ids, table.new_zeros(5, *shape)))
        torch.library.opcheck(gather_rows.default, (table, ids, table.new_zeros(5, *shape), 2))
    codes, scale = make_table(12, 8, dtype=torch.int8, device=device), torch.rand(12, 1, device=device)
    given = (
        codes,
        make_ids(12, 5, idtype, device),
        torch.zeros(5, 8, dtype=torch.float16, device=device),
        0,
        scale,
        scale,
    )
    torch.library.opcheck(gather_rows.default, given)


def test_fake_kernel_takes_a_table_on_the_cpu():
    """A page-locked table with ids and out on another device. ids and out must be on the same device."""
    table, ids, out = (
        torch.empty(4, 8),
        torch.empty(3, dtype=torch.int64, device="meta"),
        torch.empty(3, 8, device="meta"),
    )
    gather_rows(table, ids, out)
    with pytest.raises(ValueError, match="out is on meta; expected the device of ids, cpu"):
        gather_rows(table, torch.zeros(3, dtype=torch.int64), out)


def test_compiled(device):
    @torch.compile(backend="aot_eager", fullgraph=True, dynamic=True)
    def rows_and_sum(table, ids):
        out = table.new_empty(ids.shape[0], table.shape[1])
        gather_rows(table, ids, out)
        return out, out.sum(0)

    table = torch.randn(30, 16, device=device)
    for n in (5, 9):
        ids = make_ids(30, n, device=device)
        out, total = rows_and_sum(table, ids)
        assert torch.equal(out, table[ids]) and torch.equal(total, out.sum(0))


def test_ids_of_the_fake_device_are_refused():
    """The fake kernel would copy nothing."""
    with pytest.raises(
        ValueError, match=r"^ids is on meta; expected a device that can read the table, which is on cpu"
    ):
        ops.gather_rows(torch.ones(3, 2), torch.tensor([0], device="meta"))
    assert ops.gather_rows(*(torch.zeros(2, dtype=torch.int64, device="meta"),) * 2).is_meta
