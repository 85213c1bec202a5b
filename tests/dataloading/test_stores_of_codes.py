"""FeatureStore of codes of 8 bits: their values from every kind of memory and file, on their way to a device, and errors."""

import json
import pickle
import struct
import types

import numpy as np
import pytest
import torch

from halfgnn import Graph
from halfgnn.dataloading import FeatureStore, Prefetcher, infer_by_layers, quantize
from halfgnn.dataloading import prefetcher as prefetcher_module
from tests import support
from tests.dataloading.test_prefetcher_copies import FakeCuda, Owner, timed

CODES = [torch.uint8, torch.int8, torch.float8_e4m3fn, torch.float8_e5m2]
SHAPE = (50, 24)


def codes(dtype=torch.uint8, shape=SHAPE):
    return torch.randint(256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(3)).view(dtype)


def scales(per="row", shape=SHAPE):
    shapes = {"row": (shape[0], *[1] * (len(shape) - 1)), "column": shape[1:], "tensor": ()}
    g = torch.Generator().manual_seed(4)
    return torch.rand(shapes[per], generator=g), torch.randint(0, 256, shapes[per], generator=g).float()


def expected(ids, per="row", dtype=torch.float16):
    scale, zero = scales(per)
    return ((codes().float() - zero) * scale)[ids.long()].to(dtype)


def kinds(tmp_path, per="row"):
    """A store of the same values in every kind of memory of this machine."""
    data, (scale, zero) = codes(), scales(per)
    given = {"scale": scale, "zero_point": zero}
    np.save(tmp_path / "codes.npy", data.numpy())
    data.numpy().tofile(tmp_path / "codes.bin")
    yield "tensor", FeatureStore(data, **given)
    yield "numpy", FeatureStore(data.numpy(), scale=scale.numpy(), zero_point=zero.numpy())
    yield "memmap", FeatureStore(np.load(tmp_path / "codes.npy", mmap_mode="r"), **given)
    yield "npy", FeatureStore.open(tmp_path / "codes.npy", **given)
    yield "raw", FeatureStore.open(tmp_path / "codes.bin", dtype=torch.uint8, shape=(-1, 24), **given)
    yield "shared", FeatureStore(data, **given).share_memory()
    yield "clone", FeatureStore(data, **given).clone()
    yield "columns", FeatureStore(torch.cat([data, data], 1)[:, :24], **given)
    if torch.cuda.is_available():
        yield "pinned", FeatureStore(data, **given).pin_memory()
        yield "cuda", FeatureStore(data, **given).to("cuda")


@pytest.mark.parametrize("per", ["row", "column", "tensor"])
def test_every_memory_gives_the_same_values(tmp_path, per):
    ids = torch.tensor([3, 0, 49, 3, 20])
    for name, store in kinds(tmp_path, per):
        for idtype in support.IDTYPES:
            rows = store.gather(ids.to(idtype))
            assert rows.dtype == store.dtype == torch.float16 and torch.equal(rows.cpu(), expected(ids, per)), name
        assert store.shape == SHAPE and store.nbytes == 50 * 24 + 8 * store.scale.numel()
        assert torch.equal(store.rows(ids).gather().cpu(), expected(ids, per))
        out = torch.empty(5, 24, dtype=torch.float16, device=store.device)
        assert store.gather(ids, out) is out and torch.equal(out.cpu(), expected(ids, per))
        part = store[10:30][5:]
        part.read_ahead()
        assert torch.equal(part.gather(torch.tensor([0, 14])).cpu(), expected(torch.tensor([15, 29]), per)), name
        with pytest.raises(IndexError, match=r"\[0, 15\)"):
            part.gather(torch.tensor([15]))
        for again in (pickle.loads(pickle.dumps(store)), pickle.loads(pickle.dumps(part[:])).clone()):
            first = 0 if len(again) == 50 else 15
            got = again.gather(torch.tensor([7])).cpu()
            assert torch.equal(got, expected(torch.tensor([first + 7]), per)) and "codes=torch.uint8" in repr(again)
        assert len(store[60:].gather(ids[:0])) == 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_dtype_of_rows(tmp_path, dtype):
    quantize(torch.randn(20, 6), tmp_path / "x.npy", torch.uint8)
    ids, (scale, zero) = torch.tensor([4, 19]), scales()
    store = FeatureStore(codes(), scale=scale, zero_point=zero, dtype=dtype)
    assert torch.equal(store.gather(ids), expected(ids, dtype=dtype)) and store[2:].dtype == dtype
    assert pickle.loads(pickle.dumps(store)).clone().dtype == dtype
    opened = FeatureStore.open(tmp_path / "x.npy", dtype=dtype, shape=(-1, 6))
    assert opened.gather(ids).dtype == dtype and pickle.loads(pickle.dumps(opened)).error == opened.error


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_the_dtype_of_rows_from_others_files(tmp_path, dtype):
    np.save(tmp_path / "x.npy", codes().numpy())
    write_safetensors(tmp_path / "x.safetensors", {"x": codes(), "half": torch.ones(4, 3).half()})
    ids, (scale, zero) = torch.tensor([4, 19]), scales()
    for path in (tmp_path / "x.npy", tmp_path / "x.safetensors"):
        name = "x" if path.suffix == ".safetensors" else None
        store = FeatureStore.open(path, name=name, scale=scale, zero_point=zero, dtype=dtype)
        assert torch.equal(store.gather(ids), expected(ids, dtype=dtype))
        with pytest.raises(TypeError, match=r"holds torch\.uint8; expected torch\.int8"):
            FeatureStore.open(path, name=name, scale=scale, dtype=torch.int8)
    with pytest.raises(TypeError, match=r"data has dtype torch\.float16; expected torch\.uint8"):
        FeatureStore.open(tmp_path / "x.safetensors", name="half", scale=1.0, dtype=dtype)


def test_shapes_of_scales():
    data, ids = codes(), torch.arange(50)
    one = FeatureStore(data, scale=0.5, zero_point=3).gather(ids)
    for scale in (torch.tensor(0.5), [0.5], np.float64(0.5), torch.full((1, 1), 0.5)):
        assert torch.equal(FeatureStore(data, scale=scale, zero_point=[[3]]).gather(ids), one)
    column = torch.rand(24)
    rows = FeatureStore(data, scale=column).gather(ids)
    assert torch.equal(FeatureStore(data, scale=column.double()[None]).gather(ids), rows)
    assert torch.equal(FeatureStore(data, scale=column, zero_point=0).gather(ids), rows)
    assert torch.equal(FeatureStore(data[:1], scale=column[None]).gather(ids[:1]), rows[:1])
    flat = FeatureStore(data.flatten(), scale=torch.arange(1200.0))
    assert torch.equal(flat.gather(torch.tensor([7])), (data.flatten().float() * torch.arange(1200.0))[[7]].half())
    wide = torch.rand(50, 3, requires_grad=True)
    strided = FeatureStore(data, scale=wide[:, 1:2]).gather(ids)
    assert torch.equal(strided, (data.float() * wide[:, 1:2].detach()).half()) and not strided.requires_grad
    assert FeatureStore(data[:1], scale=[[2.0]]).scale.shape == (1, 1)
    square = FeatureStore(codes(shape=(4, 4)), scale=torch.arange(4.0))  # as PyTorch broadcasts it: columns
    assert (square.gather(torch.arange(4))[:, 0] == 0).all()


@pytest.mark.parametrize("dtype", CODES, ids=str)
def test_pickled_memory(tmp_path, dtype):
    """pickle does not read tensors of float8 again."""
    copy = quantize(torch.randn(20, 6), tmp_path / "x.npy", dtype).clone()
    for store in (copy, copy[3:], FeatureStore(codes(dtype)[:, 3:9], scale=2.0), FeatureStore(codes(dtype))):
        again, ids = pickle.loads(pickle.dumps(store)), torch.tensor([16, 2])
        assert torch.equal(again.gather(ids).float().nan_to_num(), store.gather(ids).float().nan_to_num())
        assert (again.data.dtype, again.dtype, again.error) == (dtype, store.dtype, store.error)


def test_other_processes_read_the_same_memory():
    store = FeatureStore(codes(), scale=scales()[0]).share_memory()
    assert store.data.is_shared() and store.scale.is_shared()


# ---- other files ----------------------------------------------------------------------------------


def write_safetensors(path, tensors, header=None):
    """Without the package, which is not needed to read them."""
    names = {torch.uint8: "U8", torch.int8: "I8", torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
             torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}  # fmt: skip
    described, content = {"__metadata__": {"format": "pt"}}, b""
    for name, tensor in tensors.items():
        raw = tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        offsets = [len(content), len(content) + len(raw)]
        described[name] = {"dtype": names[tensor.dtype], "shape": list(tensor.shape), "data_offsets": offsets}
        content += raw
    text = json.dumps(described).encode() if header is None else header
    path.write_bytes(struct.pack("<Q", len(text)) + text + content)
    return path


@pytest.mark.parametrize("dtype", CODES, ids=str)
def test_safetensors(tmp_path, dtype):
    scale = torch.rand(50)
    tensors = {
        "odd": torch.ones(3, dtype=torch.uint8),
        "x": codes(dtype),
        "x_scale": scale,
        "half": torch.randn(9, 5).half(),
        "one": torch.tensor(0.75),
        "zero": torch.tensor(7, dtype=torch.uint8),
    }
    path = write_safetensors(tmp_path / "x.safetensors", tensors)
    ids = torch.tensor([49, 0, 7])
    want = (codes(dtype).float() * scale[:, None])[ids].half()
    for given in ("x_scale", scale, scale[:, None]):
        store = FeatureStore.open(path, name="x", scale=given)
        for each in (store, pickle.loads(pickle.dumps(store)), store[:].clone()):
            assert torch.equal(each.gather(ids).nan_to_num(), want.nan_to_num())
    assert torch.equal(
        FeatureStore.open(path, name="half", dtype=torch.float16).gather(ids[1:]), tensors["half"][ids[1:]]
    )
    one = FeatureStore.open(path, name="x", scale="one").gather(ids)
    assert torch.equal(one.nan_to_num(), (codes(dtype).float() * 0.75)[ids].half().nan_to_num())
    if dtype in CODES[:2]:
        one = FeatureStore.open(path, name="x", scale="one", zero_point="zero").gather(ids)
        assert torch.equal(one, ((codes(dtype).float() - 7) * 0.75)[ids].half())
        shifted = FeatureStore.open(path, name="x", scale="x_scale", zero_point=3).gather(ids)
        assert torch.equal(shifted, ((codes(dtype).float() - 3) * scale[:, None])[ids].half())
    alone = write_safetensors(tmp_path / "alone.safetensors", {"x": codes(dtype)})
    assert torch.equal(FeatureStore.open(alone).data.view(torch.uint8), codes())


def test_files_that_are_no_safetensors(tmp_path):
    path = write_safetensors(tmp_path / "x.safetensors", {"x": codes(), "one": torch.tensor(1.0), "y": codes()})
    size = path.stat().st_size
    for call, match in [
        (lambda: FeatureStore.open(path), "name is None; expected one of the tensors of .*: x, one, y"),
        (lambda: FeatureStore.open(path, name="one"), r"one of .* has shape \(\); expected \(N, \*\)"),
        (lambda: FeatureStore.open(path, name=["x"]), r"name is \['x'\]; expected one of"),
        (lambda: FeatureStore.open(path, name="z"), "name is 'z'; expected one of"),
        (lambda: FeatureStore.open(path, name="x", scale="s"), "scale is 's'; expected one of"),
        (lambda: FeatureStore.open(path, name="x", shape=(50, 23)), r"has shape \(50, 24\); expected \(50, 23\)"),
    ]:
        with pytest.raises(ValueError, match=match):
            call()
    with pytest.raises(TypeError, match=r"holds torch\.uint8; expected torch\.float16"):
        FeatureStore.open(path, name="x", dtype=torch.float16)
    content = path.read_bytes()
    for bad in (
        b"",
        b"123",
        content[:60],
        struct.pack("<Q", 2**60) + content[8:],
        struct.pack("<Q", 4) + b"[1] " + b"x" * 9,
    ):
        path.write_bytes(bad)
        with pytest.raises(ValueError, match="is no file of safetensors"):
            FeatureStore.open(path, name="x")
    path.write_bytes(content[: size - 1])
    with pytest.raises(ValueError, match="truncated"):
        FeatureStore.open(path, name="y")
    told = [([3], [0, 4]), ([3], [-9, -6]), ([-1, -3], [0, 3]), ([2**61, 8], [0, 0]), ([0, 2**63], [0, 0]),
            ([2**62 + 1, 4], [0, 4]), ([True, 3], [0, 3]), ([3.0], [0, 3]), ([3], [0.0, 3.0]), ("ab", [0, 3])]  # fmt: skip
    other = (
        b'{"x":{"dtype":"U16","shape":[3],"data_offsets":[0,6]},"y":{"dtype":"U8","shape":[3],"data_offsets":[6,9]}}'
    )
    write_safetensors(path, {"x": codes()}, other)  # a type that has no name here is not read as another
    with pytest.raises(ValueError, match=r"name is 'x'; expected one of the tensors of .*: y$"):
        FeatureStore.open(path, name="x")
    headers = [json.dumps({"x": {"dtype": "U8", "shape": s, "data_offsets": o}}).encode() for s, o in told]
    for header in [*headers, b'{"x":{"dtype":"U8","shape":[3]}}', b'{"x":3}', b"[" * 100_000]:
        write_safetensors(path, {"x": codes()}, header)
        with pytest.raises(ValueError, match="is no file of safetensors"):
            FeatureStore.open(path)


class Message(types.SimpleNamespace):
    """As protobuf has it: parts that are not set are read as empty ones."""

    def HasField(self, name):
        return bool(vars(getattr(self, name)))


def packed_by_hand(values, bits):
    """Codes of GiGL, bit by bit: the first in the highest bits, rows filled up to whole bytes."""
    rows = []
    for row in values.tolist():
        text = "".join(f"{code:0{bits}b}" for code in row)
        text += "0" * (-len(text) % 8)
        rows.append([int(text[i : i + 8], 2) for i in range(0, len(text), 8)])
    return torch.tensor(rows, dtype=torch.uint8)


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_packed_rows_of_gigl(bits):
    values = torch.randint(2**bits, (9, 13))
    order = torch.randperm(13).tolist()
    low, high = -1.25, 3.5
    want = torch.empty(9, 13, dtype=torch.float64)
    want[:, order] = low + values.double() / (2**bits - 1) * (high - low)
    state = (
        {"singleBitState": {"negMean": low, "posMean": high}}
        if bits == 1
        else {"multiBitState": {"clipMin": low, "clipMax": high, "bits": bits}}
    )
    packed = packed_by_hand(values, bits)
    as_json = {"packedFeatureKey": "p", "quantizedFeatureIndices": order, **state}
    as_objects = types.SimpleNamespace(
        quantized_feature_indices=order,
        multi_bit_state=None if bits == 1 else types.SimpleNamespace(clip_min=low, clip_max=high, bits=bits),
        single_bit_state=types.SimpleNamespace(neg_mean=low, pos_mean=high) if bits == 1 else None,
    )
    as_messages = Message(
        quantized_feature_indices=np.array(order),
        multi_bit_state=Message() if bits == 1 else Message(clip_min=low, clip_max=high, bits=np.uint32(bits)),
        single_bit_state=Message(neg_mean=low, pos_mean=high) if bits == 1 else Message(),
    )
    for metadata in (as_json, as_objects, as_messages):
        for data in (packed, packed.numpy(), packed.repeat(1, 2)[:, : packed.shape[1]]):
            store = FeatureStore.from_gigl(data, metadata, dtype=torch.float32)
            torch.testing.assert_close(store.gather(torch.arange(9)).double(), want, rtol=1e-6, atol=1e-6)
            assert store.dtype == torch.float32 and store[3:].gather(torch.tensor([0])).shape == (1, 13)
    in_order = FeatureStore.from_gigl(packed, as_json | {"quantizedFeatureIndices": list(range(13))})
    assert (in_order.data.data_ptr() == packed.data_ptr()) == (bits == 8)
    for same in (0.75, -2.0, 0.0):  # no step between codes
        state = (
            {"neg_mean": same, "pos_mean": same} if bits == 1 else {"clip_min": same, "clip_max": same, "bits": bits}
        )
        for positions in (order, list(range(13))):
            metadata = {
                "quantized_feature_indices": positions,
                "single_bit_state" if bits == 1 else "multi_bit_state": state,
            }
            assert (FeatureStore.from_gigl(packed, metadata).gather(torch.arange(9)) == same).all()
    state = {"pos_mean": 3.5} if bits == 1 else {"clip_max": 3.5, "bits": bits}  # JSON of proto leaves zeros out
    metadata = {
        "quantized_feature_indices": list(range(13)),
        "single_bit_state" if bits == 1 else "multi_bit_state": state,
    }
    got = FeatureStore.from_gigl(packed, metadata, dtype=torch.float32).gather(torch.arange(9))
    torch.testing.assert_close(got, values / (2**bits - 1) * 3.5)


def test_rows_that_gigl_did_not_pack():
    packed, state = torch.zeros(4, 3, dtype=torch.uint8), {"clip_min": -1.0, "clip_max": 1.0, "bits": 8}
    good = {"quantized_feature_indices": [0, 1, 2], "multi_bit_state": state}
    for given, metadata, error, match in [
        ([[1]], good, TypeError, "packed is a list"),
        (packed.int(), good, TypeError, "packed has dtype torch.int32; expected torch.uint8"),
        (packed[:, :2], good, ValueError, r"packed has shape \(4, 2\); expected \(N, 3\), for 3 features of 8 bits"),
        (packed[0], good, ValueError, r"packed has shape \(3,\)"),
        (packed, {"multi_bit_state": state}, ValueError, "metadata has no quantized_feature_indices"),
        (packed, good | {"quantized_feature_indices": [0.2, 1.4, 2.5]}, TypeError, "quantized_feature_indices .*; expected a list"),
        (packed, good | {"quantized_feature_indices": 3}, TypeError, "quantized_feature_indices 3; expected a list of integers"),
        (packed, good | {"quantized_feature_indices": [0, 2, 5]}, ValueError, "expected all of 0 to 2"),
        (packed, good | {"single_bit_state": state}, ValueError, "expected one of them"),
        (packed, {"quantized_feature_indices": [0, 1, 2]}, ValueError, "expected one of them"),
        (packed, good | {"multi_bit_state": state | {"bits": 3}}, ValueError, "bits 3; expected 1, 2, 4 or 8"),
        (packed, good | {"multi_bit_state": state | {"clip_max": -2.0}}, ValueError, "clip_max -2.0 below clip_min -1.0"),
        (packed, good | {"multi_bit_state": state | {"clip_max": torch.nan}}, ValueError, "metadata's clip_max is nan"),
    ]:  # fmt: skip
        with pytest.raises(error, match=match):
            FeatureStore.from_gigl(given, metadata)


# ---- on their way to a device ---------------------------------------------------------------------


@pytest.mark.parametrize("per", ["row", "column", "tensor"])
def test_codes_are_copied_and_converted_on_the_device(tmp_path, monkeypatch, per):
    """Half the bytes of float16, beside 8 of a row's scale and zero point."""
    owner, ids = Owner(), torch.tensor([3, 49, 3, 0])
    mover = prefetcher_module._CudaMover(torch.device("cpu"), owner, FakeCuda())
    for name, store in kinds(tmp_path, per):
        if store.device.type != "cpu" or store.data.is_pinned():
            continue
        owner.num_bytes = 0
        for _ in range(3):
            staged = mover._staged(store.rows(ids), mover._slots[0])
            assert staged.codes.dtype == torch.uint8, name
            assert torch.equal(mover._copied(staged), expected(ids, per))
        assert owner.num_bytes == 3 * (4 * 24 + (4 * 8 if per == "row" else 0))
        ((moved, plain), _) = mover.moved((store.rows(ids), torch.ones(2)), timed)
        assert torch.equal(moved, expected(ids, per)) and plain.tolist() == [1, 1]
        with pytest.raises(IndexError, match=r"ids\[0\] is 50; expected ids in \[0, 50\), the rows of FeatureStore"):
            mover._staged(store.rows(ids + 47), mover._slots[1])


@pytest.mark.parametrize("background", [False, True])
def test_a_prefetcher_takes_codes(tmp_path, background):
    for name, store in kinds(tmp_path):
        if store.device.type == "cpu":
            with Prefetcher(
                [torch.tensor([1, 2]), torch.tensor([40])], "cpu", fetch=store.rows, background=background
            ) as batches:
                for ids, rows in zip(([1, 2], [40]), batches, strict=True):
                    assert torch.equal(rows, expected(torch.tensor(ids))), name


def test_layers_take_codes(tmp_path):
    g = Graph.from_edges(torch.tensor([0, 1, 2, 3]), torch.tensor([1, 2, 3, 3]), num_src=4, num_dst=4)
    x = torch.rand(4, 3)
    store = quantize(x, tmp_path / "x.npy", torch.uint8)
    rows = infer_by_layers([lambda block, x: x[: block.num_dst_nodes()] * 2], g, store, tmp_path / "out.npy")
    torch.testing.assert_close(rows.gather(torch.arange(4)), 2 * store.gather(torch.arange(4)))


# ---- arguments ------------------------------------------------------------------------------------


def test_wrong_scales_and_dtypes(tmp_path):
    data, (scale, zero), out = codes(), scales(), torch.ones(1, 24)
    quantize(torch.randn(4, 3), tmp_path / "x.npy", torch.uint8)
    for call, error, match in [
        (lambda: FeatureStore(data.half(), scale=scale), TypeError, "data has dtype torch.float16; expected torch.uint8"),
        (lambda: FeatureStore(data, scale=scale[:49]), ValueError, r"scale has shape \(49, 1\); expected \(\) for all, \(50, 1\)"),
        (lambda: FeatureStore(data, scale=scale[:, 0]), ValueError, r"scale has shape \(50,\)"),
        (lambda: FeatureStore(data, scale=torch.nan), ValueError, "scale has inf or nan"),
        (lambda: FeatureStore(data, scale=torch.full((24,), 1e39, dtype=torch.float64)), ValueError, "scale has inf or nan"),
        (lambda: FeatureStore(data, scale=-scale), ValueError, r"scale has -0\.\d+; expected no number below 0"),
        (lambda: FeatureStore(data, scale=scale.to("meta")), ValueError, "scale is on meta"),
        (lambda: FeatureStore(data.to("meta"), scale=1.0), ValueError, "data is on meta"),
        (lambda: FeatureStore(data, scale="row"), TypeError, "scale is a str; expected a number"),
        (lambda: FeatureStore(data, scale=scale.to_sparse()), TypeError, "scale has layout torch.sparse_coo; expected a dense"),
        (lambda: FeatureStore(data, scale=1j), TypeError, "scale has dtype torch.complex64; expected real numbers"),
        (lambda: FeatureStore(data, scale=scale, num_threads=1.5), TypeError, "num_threads is 1.5; expected an integer"),
        (lambda: FeatureStore(data, scale=scale, num_threads=-1), ValueError, "num_threads is -1; expected an integer"),
        (lambda: FeatureStore(data, scale=True), TypeError, "scale has dtype torch.bool"),
        (lambda: FeatureStore(data, scale=scale, zero_point=zero[:9]), ValueError, r"zero_point has shape \(9, 1\)"),
        (lambda: FeatureStore(data, scale=scale, zero_point=zero.new_ones(24)), ValueError, r"zero_point has shape \(24,\)"),
        (lambda: FeatureStore(data, scale=scale, zero_point=torch.inf), ValueError, "zero_point has inf or nan"),
        (lambda: FeatureStore(data, zero_point=zero), ValueError, "zero_point is given without scale"),
        (lambda: FeatureStore(codes(torch.float8_e5m2), scale=1.0, zero_point=1), ValueError, "zero_point is given"),
        (lambda: FeatureStore(data, dtype=torch.float16), ValueError, "dtype is torch.float16 without a scale"),
        (lambda: FeatureStore(data, scale=1.0, dtype=torch.float64), TypeError, "dtype is torch.float64; expected torch.float16"),
        (lambda: FeatureStore(data, scale=1.0, dtype="half"), TypeError, "dtype is half"),
        (lambda: FeatureStore(data, scale=1.0).gather(torch.tensor([1]), out), TypeError, "out has dtype torch.float32"),
        (lambda: FeatureStore.open(tmp_path / "x.npy", scale=1.0), ValueError, "scale is given, and .* has its own"),
        (lambda: FeatureStore.open(tmp_path / "x.npy", dtype=torch.uint8), TypeError, "dtype is torch.uint8"),
        (lambda: FeatureStore.open(tmp_path / "x.npy", zero_point=1), ValueError, "zero_point is given, and .* has its own"),
        (lambda: FeatureStore.open(tmp_path / "x.npy", name="x"), ValueError, "name is 'x'; expected None"),
        (lambda: FeatureStore.open(tmp_path / "x.npy", shape=(5, 3)), ValueError, r"has shape \(4, 3\); expected \(5, 3\)"),
        (lambda: FeatureStore(data).staged(torch.tensor([1]), torch.empty), ValueError, "has no scale"),
    ]:  # fmt: skip
        with pytest.raises(error, match=match):
            call()


# ---- codes for sums ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("per", ["row", "column", "tensor"])
def test_codes(tmp_path, per):
    """Those of all rows, or of some, from every kind of memory."""
    ids = torch.tensor([3, 49, 3, 0])
    for name, store in kinds(tmp_path, per):
        every, some = store.codes(), store.codes(ids)
        assert len(every) == 50 and every.data.data_ptr() == store.data.data_ptr(), name
        assert every.dtype == some.dtype == store.dtype and some.shape == (4, 24)
        assert torch.equal(some.values(), store.gather(ids)) and torch.equal(
            every.values(2), store.gather(ids[[3]] + torch.arange(2))
        )
        assert every.values(2, torch.float32).dtype == torch.float32
        with pytest.raises(IndexError, match=r"ids\[1\] is 50"):
            store.codes(ids + 1)
    with pytest.raises(ValueError, match="has no scale; expected a store of codes"):
        FeatureStore(codes()).codes()


def test_codes_in_a_batch():
    """A Prefetcher moves them as it moves tensors."""
    store = FeatureStore(codes(), scale=scales()[0])
    batches = [torch.tensor([1, 2]), torch.tensor([0, 49])]
    moved = list(Prefetcher(batches, "cpu", fetch=store.codes))
    assert [torch.equal(found.values(), store.gather(ids)) for found, ids in zip(moved, batches, strict=True)] == [
        True,
        True,
    ]
