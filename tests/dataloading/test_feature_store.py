"""FeatureStore: rows as they are stored, from every kind of memory, and clear errors if a file is wrong."""

import ctypes
import mmap
import os
import pickle
import time

import numpy as np
import pytest
import torch

from halfgnn.dataloading import FeatureStore, Rows
from tests import support, support_processes

SHAPE = (50, 24)


def values(dtype=torch.float16):
    return torch.arange(SHAPE[0] * SHAPE[1]).view(SHAPE).to(dtype)


def written(path, dtype=np.float16):
    np.save(path, values().numpy().astype(dtype))
    return path


def kinds(tmp_path):
    """A store of the same rows in every kind of memory of this machine."""
    data, path = values(), written(tmp_path / "x.npy")
    raw = tmp_path / "x.bin"
    data.numpy().tofile(raw)
    yield "tensor", FeatureStore(data)
    yield "numpy", FeatureStore(data.numpy())
    yield "memmap", FeatureStore(np.load(path, mmap_mode="r"))
    yield "raw memmap", FeatureStore(np.memmap(raw, mode="r", dtype=np.float16, shape=SHAPE))
    yield "npy", FeatureStore.open(path)
    yield "raw", FeatureStore.open(raw, dtype=torch.float16, shape=(-1, 24))
    yield "shared", FeatureStore(data).share_memory()
    yield "columns", FeatureStore(torch.cat([data, data], 1)[:, :24])
    if torch.cuda.is_available():
        yield "pinned", FeatureStore(data).pin_memory()
        yield "cuda", FeatureStore(data).to("cuda")


@pytest.mark.parametrize("idtype", support.IDTYPES)
def test_every_memory_gives_the_same_rows(tmp_path, idtype):
    ids = torch.tensor([3, 0, 49, 3, 20], dtype=idtype)
    for name, store in kinds(tmp_path):
        assert store.shape == SHAPE and len(store) == 50 and store.dtype == torch.float16, name
        assert store.nbytes == 50 * 24 * 2
        rows = store.gather(ids)
        assert rows.dtype == torch.float16 and torch.equal(rows.cpu(), values()[ids.long()]), name
        assert torch.equal(store[ids].cpu(), rows.cpu())
        assert torch.equal(store.rows(ids).gather().cpu(), rows.cpu())
        out = torch.empty(5, 24, dtype=torch.float16, device=store.device)
        assert store.gather(ids, out) is out and torch.equal(out, rows)
        assert store.gather(ids[:0]).shape == (0, 24)


def test_a_slice_is_a_store_in_the_same_memory(tmp_path):
    for name, store in kinds(tmp_path):
        part = store[10:30][5:]
        assert len(part) == 15 and part.data.data_ptr() == store.data[15:].data_ptr(), name
        assert torch.equal(part.gather(torch.tensor([0, 14])).cpu(), values()[[15, 29]]), name
        with pytest.raises(IndexError, match="15"):
            part.gather(torch.tensor([15]))
        again = pickle.loads(pickle.dumps(part))
        assert torch.equal(again.gather(torch.tensor([0, 14])).cpu(), values()[[15, 29]]), name
        assert len(store[60:]) == 0
    with pytest.raises(ValueError, match="step is 2"):
        store[::2]


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float32, torch.int64, torch.uint8, torch.float8_e5m2]
)
def test_raw_files_of_any_dtype(tmp_path, dtype):
    data = torch.arange(48).to(dtype).view(12, 4)
    path = tmp_path / "x.bin"
    path.write_bytes(bytes(data.view(torch.uint8).flatten().tolist()))
    store = FeatureStore.open(path, dtype=dtype, shape=(12, 4), num_threads=3)
    rows = store.gather(torch.tensor([11, 0]))
    assert rows.dtype == dtype and torch.equal(rows.view(torch.uint8), data.view(torch.uint8)[[11, 0]])


def test_rows_of_one_number_and_of_many_dimensions():
    labels = torch.randint(9, (40,))
    assert torch.equal(FeatureStore(labels).gather(torch.tensor([7, 39])), labels[[7, 39]])
    data = torch.randn(6, 2, 3, 4)
    assert torch.equal(FeatureStore(data).gather(torch.tensor([5])), data[[5]])


def test_a_memmap_view_knows_where_it_begins(tmp_path):
    array = np.load(written(tmp_path / "x.npy"), mmap_mode="r")
    for view, first in ((array[7:], 7), (array[7:][3:20], 10)):
        for store in (FeatureStore(view), pickle.loads(pickle.dumps(FeatureStore(view)))):
            assert torch.equal(store.gather(torch.tensor([0, 2])), values()[[first, first + 2]])


def _sum_of_rows(store, ids, results):
    results.put(store.gather(ids).float().sum().item())


@pytest.mark.parametrize("kind", ["npy", "shared"])
def test_other_processes_read_the_same_memory(tmp_path, kind):
    store = dict(kinds(tmp_path))[kind]
    ids = torch.tensor([1, 2, 3])
    if kind == "shared":
        store.data[1] = 1  # the other store sees it, because it is not a copy
    context = support_processes.context()
    results = context.Queue()
    process = context.Process(target=_sum_of_rows, args=(store, ids, results))
    process.start()
    assert results.get(timeout=60) == store.gather(ids).float().sum().item()
    process.join()


# ---- errors ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [-1, 50, 2**31 - 1])
def test_ids_out_of_range(tmp_path, bad):
    for name, store in kinds(tmp_path):
        with pytest.raises(IndexError, match=str(bad)):
            store.gather(torch.tensor([0, bad, 1]))
        assert name


def test_wrong_ids_and_out():
    store = FeatureStore(values())
    with pytest.raises(TypeError, match="ids is a list"):
        store.gather([1, 2])
    with pytest.raises(TypeError, match=r"ids has dtype torch\.float32"):
        store.rows(torch.ones(3))
    with pytest.raises(ValueError, match=r"ids has shape \(1, 2\)"):
        store.gather(torch.zeros(1, 2, dtype=torch.int64))
    with pytest.raises(TypeError, match="out has dtype"):
        store.gather(torch.tensor([1]), torch.empty(1, 24))
    with pytest.raises(ValueError, match="out has shape"):
        store.gather(torch.tensor([1]), torch.empty(2, 24, dtype=torch.float16))
    with pytest.raises(TypeError, match="out is a int"):
        store.gather(torch.tensor([1]), 3)
    with pytest.raises(ValueError, match="expected device"):
        store.gather(torch.tensor([1]), torch.empty(1, 24, dtype=torch.float16), "meta")


def test_wrong_data():
    with pytest.raises(TypeError, match="data is a list"):
        FeatureStore([1.0])
    with pytest.raises(ValueError, match="one row per id"):
        FeatureStore(torch.tensor(1.0))
    with pytest.raises(ValueError, match="expected contiguous rows"):
        FeatureStore(values().t())
    with pytest.raises(TypeError, match="dense"):
        FeatureStore(torch.eye(3).to_sparse())
    with pytest.raises(TypeError, match="byte order"):
        FeatureStore(values().numpy().astype(">f4"))
    with pytest.raises(TypeError, match="expected a type that torch has"):
        FeatureStore(np.array(["a"]))
    with pytest.raises(ValueError, match="expected none below 0"):
        FeatureStore(values().numpy()[::-1])


def test_wrong_files(tmp_path):
    path = written(tmp_path / "x.npy")
    with pytest.raises(ValueError, match="expected whole rows"):
        FeatureStore(np.load(path, mmap_mode="r")[:, 3:])
    with pytest.raises(FileNotFoundError):
        FeatureStore.open(tmp_path / "none.npy")
    with pytest.raises(TypeError, match=r"holds torch.float16; expected torch.float32"):
        FeatureStore.open(path, dtype=torch.float32)
    with pytest.raises(ValueError, match=r"has shape \(50, 24\); expected \(-1, 768\)"):
        FeatureStore.open(path, shape=(-1, 768))
    with pytest.raises(ValueError, match=r"is no \.npy file"):
        FeatureStore.open(_bytes(tmp_path / "y.npy", b"nonsense" * 9))
    np.save(tmp_path / "t.npy", np.asfortranarray(values().numpy()))
    with pytest.raises(ValueError, match="column-major"):
        FeatureStore.open(tmp_path / "t.npy")
    raw = _bytes(tmp_path / "x.bin", bytes(2400))
    with pytest.raises(ValueError, match="dtype and shape are needed"):
        FeatureStore.open(raw)
    with pytest.raises(ValueError, match="has 2400 bytes; expected 4800"):
        FeatureStore.open(raw, dtype=torch.float32, shape=SHAPE)
    with pytest.raises(ValueError, match="has 2400 bytes; expected 2304"):
        FeatureStore.open(raw, dtype=torch.float32, shape=(-1, 64))
    with pytest.raises(TypeError, match="dtype is 'half'"):
        FeatureStore.open(raw, dtype="half", shape=SHAPE)
    with pytest.raises(TypeError, match=r"expected a torch\.dtype"):
        FeatureStore.open(path, dtype=np.float16)
    with pytest.raises(
        IndexError, match=r"ids\[0\] is 60; expected ids in \[0, 50\), the rows of FeatureStore\(.*x.npy"
    ):
        FeatureStore.open(path).gather(torch.tensor([60]))


def _bytes(path, content):
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    "shape", ["-1, 2", "-3, -2", "2305843009213693952, 8", "4611686018427387905, 4", "True, 2", f"0, {2**64}"]
)
def test_a_header_whose_shape_is_none(tmp_path, shape):
    header = f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({shape})}}\n".encode()
    path = _bytes(tmp_path / "x.npy", b"\x93NUMPY\1\0" + len(header).to_bytes(2, "little") + header + bytes(64))
    with pytest.raises(ValueError, match=r"x\.npy is no \.npy file: it has shape"):
        FeatureStore.open(path)


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("kind", ["open", "memmap"])
def test_a_truncated_file_is_an_error_not_a_crash(tmp_path, before, kind):
    path = written(tmp_path / "x.npy")
    size = path.stat().st_size
    if before:
        os.truncate(path, size - 2)
        with pytest.raises(ValueError, match=f"has {size - 2} bytes; expected {size}.*truncated"):
            FeatureStore.open(path)
        return
    store = FeatureStore.open(path) if kind == "open" else FeatureStore(np.load(path, mmap_mode="r"))
    os.truncate(path, 0)
    for use in (
        lambda: store.gather(torch.tensor([0])),
        lambda: store[3:9].gather(torch.tensor([0])),
        store.share_memory,
    ):
        with pytest.raises(RuntimeError, match=r"has 0 bytes; expected .* truncated"):
            use()


def test_views_of_a_memmap_know_their_file(tmp_path):
    path = written(tmp_path / "x.npy")
    store = FeatureStore(np.asarray(np.load(path, mmap_mode="r"))[3:])
    os.truncate(path, 100)
    with pytest.raises(RuntimeError, match="truncated"):
        store.gather(torch.tensor([0]))
    with pytest.raises(ValueError, match="copy-on-write"):
        FeatureStore(np.load(written(path), mmap_mode="c"))


def test_a_file_that_was_replaced_is_not_read_by_another_process(tmp_path):
    path = written(tmp_path / "x.npy")
    pickled = pickle.dumps(FeatureStore.open(path))
    written(tmp_path / "y.npy", np.float32).replace(path)
    with pytest.raises(ValueError, match="has changed since"):
        pickle.loads(pickled)


def test_a_file_that_was_written_to_is_not_read_by_another_process(tmp_path):
    """Another file of the same size is recognised by the time of its last change."""
    path = written(tmp_path / "x.npy")
    stores = FeatureStore.open(path), FeatureStore(np.load(path, mmap_mode="r"))
    pickled = [pickle.dumps(store) for store in stores]
    for content in pickled:
        assert torch.equal(pickle.loads(content).data, values())
    stat = path.stat()
    np.save(path, values().numpy()[::-1])
    assert path.stat().st_size == stat.st_size
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1_000_000))
    for content in pickled:
        with pytest.raises(ValueError, match="has changed since"):
            pickle.loads(content)


def test_an_empty_file_has_no_rows(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((0, 4), np.float16))
    store = FeatureStore.open(tmp_path / "x.npy")
    assert store.gather(torch.zeros(0, dtype=torch.int64)).shape == (0, 4)
    with pytest.raises(IndexError, match="ids"):
        store.gather(torch.tensor([0]))


@pytest.mark.parametrize(
    "dtype",
    [torch.uint16, torch.uint64, torch.float8_e5m2, torch.bool, torch.bfloat16, torch.float64, torch.complex64],
    ids=str,
)
def test_rows_of_any_dtype_are_pickled(dtype):
    """torch 2.11 and 2.13 unpickle no float8 and no uint16 to uint64."""

    def bits(store):
        return store.shape, store.data.contiguous().view(-1).view(torch.uint8).tolist()

    data = torch.arange(24).view(6, 4).to(dtype)
    for store in (
        FeatureStore(data),
        FeatureStore(data[:, 1:3]),
        FeatureStore(data[::2, 0]),
        FeatureStore(data).share_memory(),
    ):
        again = pickle.loads(pickle.dumps(store))
        assert again.dtype == dtype and bits(again) == bits(store)


def test_reading_ahead(tmp_path):
    """The pages of a slice's rows are in the system's cache soon after, and no row changes."""
    for _, store in kinds(tmp_path):
        store[10:30].read_ahead()
        store[3:3].read_ahead()
        assert torch.equal(store.gather(torch.arange(50)).cpu(), values())
    path, width = tmp_path / "pages.npy", 4096
    np.save(path, np.ones((64, width), np.float32))
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    store = FeatureStore.open(path)[8:40]
    store.read_ahead()
    first = store.data.data_ptr()
    begin = first - first % mmap.PAGESIZE
    pages = (ctypes.c_ubyte * ((first + store.nbytes - begin + mmap.PAGESIZE - 1) // mmap.PAGESIZE))()
    for _ in range(200):
        assert ctypes.CDLL(None).mincore(ctypes.c_void_p(begin), len(pages) * mmap.PAGESIZE, pages) == 0
        if all(page & 1 for page in pages):
            return
        time.sleep(0.05)
    raise AssertionError(f"{sum(page & 1 for page in pages)} of {len(pages)} pages are in the cache")


def test_rows_are_what_they_say():
    store = FeatureStore(values())
    rows = store.rows(torch.tensor([1, 1]))
    assert isinstance(rows, Rows) and torch.equal(rows.gather(), values()[[1, 1]])
    assert "float16" in repr(store)
