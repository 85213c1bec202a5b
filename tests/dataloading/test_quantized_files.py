"""The files of quantize: what is in them, and what is left of them by errors, full disks and processes that end."""

import json
import resource
from pathlib import Path

import numpy as np
import pytest
import torch

from halfgnn.dataloading import FeatureStore, QuantizationError, quantize, store_files


def test_files_are_open(tmp_path):
    """NumPy and a reader of JSON are enough."""
    x = torch.randn(30, 8)
    error = quantize(x, tmp_path / "x.npy", torch.uint8).error
    note = json.loads((tmp_path / "x.json").read_text())
    codes, scale, zero = (np.load(tmp_path / name) for name in ("x.npy", note["scale"], note["zero_point"]))
    assert "of_columns" not in repr(error)  # there may be thousands
    assert note["dtype"] == "uint8" and note["shape"] == [30, 8] and codes.dtype == np.uint8
    np.testing.assert_allclose((codes - zero) * scale, x.numpy(), atol=error.largest * 1.01)
    assert (
        QuantizationError(**{**note["error"], **{k: tuple(v) for k, v in note["error"].items() if "of" in k}}) == error
    )
    quantize(x, tmp_path / "x.npy", torch.float8_e5m2)  # in place of the first
    assert json.loads((tmp_path / "x.json").read_text())["zero_point"] is None
    assert sorted(p.name for p in tmp_path.iterdir()) == ["x.json", "x.npy", "x.scale.npy"]
    assert torch.equal(
        torch.from_numpy(np.load(tmp_path / "x.npy")).view(torch.float8_e5m2).float(),
        FeatureStore.open(tmp_path / "x.npy").data.float(),
    )


def test_what_fails_leaves_the_last_file(tmp_path):
    quantize(torch.ones(4, 3), tmp_path / "x.npy", torch.int8)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    with pytest.raises(ValueError, match="nan"):
        quantize(torch.tensor([[1.0], [torch.nan]]), tmp_path / "x.npy", torch.int8)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


@pytest.mark.parametrize("steps", range(9))
def test_a_process_that_ends_while_it_writes(tmp_path, monkeypatch, steps):
    """Its codes are never read with the scales of before, or as features."""
    before, after = torch.full((4, 3), 2.0), torch.arange(12.0).view(4, 3) - 5
    quantize(before, tmp_path / "x.npy", torch.int8)
    left = iter(range(steps))

    def counted(change):
        def changed(self, *arguments, **given):
            if next(left, None) is None:
                raise KeyboardInterrupt
            return change(self, *arguments, **given)

        return changed

    for name in ("replace", "unlink", "write_text"):
        monkeypatch.setattr(Path, name, counted(getattr(Path, name)))
    try:
        quantize(after, tmp_path / "x.npy", torch.uint8 if steps % 2 else torch.float8_e5m2)
        assert steps >= 7
    except KeyboardInterrupt:
        assert steps < 8
    try:
        store = FeatureStore.open(tmp_path / "x.npy")
    except ValueError as error:
        assert "is being written by quantize, or that was interrupted" in str(error) and 1 < steps < 8
        return
    got = store.gather(torch.arange(4)).float()
    assert (got - (before if steps < 2 else after)).abs().max() <= 0.6


def test_two_at_a_time_do_not_mix(tmp_path):
    """As if every process of a training quantized the same file."""
    x = torch.rand(40, 5)

    def twice(blocks):
        for block in blocks:
            with pytest.raises(ValueError, match="is being written by another process or thread"):
                quantize(-x, tmp_path / "x.npy", torch.int8)
            yield block

    store = quantize(x, tmp_path / "x.npy", torch.uint8, block_rows=20, progress=twice)
    assert store.data.dtype == torch.uint8 and (store.gather(torch.arange(40)).float() - x).abs().max() < 0.003
    assert (quantize(-x, tmp_path / "x.npy", torch.int8).gather(torch.arange(40)) <= 0).all()


def test_a_full_disk_is_an_error(tmp_path):
    """Not the end of the process, as with a mapped file. The limit of a file's size stands in for the disk."""
    quantize(torch.ones(4, 3), tmp_path / "x.npy", torch.int8)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            quantize(torch.rand(1000, 100), tmp_path / "x.npy", torch.uint8, block_rows=100)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


def test_a_file_that_is_written_while_it_is_opened(tmp_path, monkeypatch):
    quantize(torch.ones(4, 3), tmp_path / "x.npy", torch.int8)
    npy_layout = store_files.npy_layout

    def slow(path):
        monkeypatch.setattr(store_files, "npy_layout", npy_layout)
        quantize(torch.full((4, 3), 5.0), tmp_path / "x.npy", torch.int8)
        return npy_layout(path)

    monkeypatch.setattr(store_files, "npy_layout", slow)
    with pytest.raises(ValueError, match="was written by quantize while it was opened"):
        FeatureStore.open(tmp_path / "x.npy")


def test_sources_are_not_overwritten(tmp_path):
    for name in ("x.npy", "x.partial.npy", "x.scale.npy", "x.zero_point.npy", "x.scale.partial.npy"):
        np.save(tmp_path / name, np.ones((5, 3), np.float32))
        content = (tmp_path / name).read_bytes()
        for source in (tmp_path / name, np.load(tmp_path / name, mmap_mode="r")):
            with pytest.raises(
                ValueError, match=r"out is '.*x.npy', which would overwrite the file of source, .*" + name
            ):
                quantize(source, tmp_path / "x.npy", torch.uint8)
        assert (tmp_path / name).read_bytes() == content
        (tmp_path / name).unlink()
    (tmp_path / "x.scale.npy").mkdir()
    with pytest.raises(ValueError, match=r"out is .* and .*x.scale.npy is a folder"):
        quantize(torch.ones(2, 2), tmp_path / "x.npy", torch.uint8)


def test_notes_that_do_not_fit_their_codes(tmp_path):
    quantize(torch.randn(4, 3), tmp_path / "x.npy", torch.int8)
    note = json.loads((tmp_path / "x.json").read_text())

    def told(**changes):
        (tmp_path / "x.json").write_text(json.dumps({k: v for k, v in (note | changes).items() if v != "missing"}))
        return FeatureStore.open(tmp_path / "x.npy")

    for changes, match in [
        ({"version": 2}, "has version 2; expected 1"),
        ({"shape": [4, 4]}, r"holds \(4, 3\) of torch.int8, and x.json tells of \(4, 4\)"),
        ({"dtype": "uint8"}, "tells of .* of torch.uint8"),
        ({"dtype": "int3"}, "x.json does not say what x.npy holds"),
        ({"error": "missing"}, "does not say"),
        ({"scale": None}, "written together"),
        ({"scale": 5}, "does not say"),
        ({"shape": None}, "does not say"),
    ]:
        with pytest.raises(ValueError, match=match):
            told(**changes)
    scale = (tmp_path / "x.scale.npy").read_bytes()
    for content, match in (
        (b"no array", "x.scale.npy is no .npy file of numbers"),
        (scale[:-4], "x.scale.npy is no .npy file"),
        (b"", "x.scale.npy is no .npy file"),
        (b"PK\3\4", "x.scale.npy is no .npy file"),
    ):
        (tmp_path / "x.scale.npy").write_bytes(content)
        with pytest.raises(ValueError, match=match):
            told()
    (tmp_path / "x.scale.npy").write_bytes(scale)
    assert told(scale="../elsewhere/x.scale.npy").dtype == torch.float16  # only files beside it are read
    assert told(format="another").dtype == torch.int8  # somebody else's file: codes as they are
    for text in ("no json", '{"title": "mine"}', ""):
        (tmp_path / "x.json").write_text(text)
        assert FeatureStore.open(tmp_path / "x.npy").scale is None
    for text, match in (
        (b'{"format": "halfgnn.quantized_rows", "version', "x.json is no JSON"),
        (b'{"format": "halfgnn.quantized_rows", "a": "\xff"}', "x.json is no JSON"),
        (b'{"format": "halfgnn.quantized_rows", "a": ' + b"[" * 100_000, "x.json is no JSON"),
        (b'["halfgnn.quantized_rows"]', "x.json has a list"),
    ):
        (tmp_path / "x.json").write_bytes(text)
        with pytest.raises(ValueError, match=match):
            FeatureStore.open(tmp_path / "x.npy")
    (tmp_path / "x.json").unlink()
    (tmp_path / "x.json").mkdir()
    assert FeatureStore.open(tmp_path / "x.npy").scale is None


def test_what_a_killed_process_left_is_written_over(tmp_path):
    (tmp_path / "x.partial.npy").write_bytes(bytes(10_000))
    quantize(torch.ones(4, 3), tmp_path / "x.npy", torch.int8)
    assert (tmp_path / "x.npy").stat().st_size == 128 + 12 and not (tmp_path / "x.partial.npy").exists()


def test_a_file_that_is_moved_before_it_is_locked(tmp_path, monkeypatch):
    """By the process that had the lock until now: it would be written over in its new place."""

    def late(file, flags):
        (tmp_path / "x.partial.npy").replace(tmp_path / "moved.npy")

    monkeypatch.setattr(store_files.fcntl, "flock", late)
    with pytest.raises(ValueError, match="is being written by another process or thread"):
        quantize(torch.ones(4, 3), tmp_path / "x.npy", torch.int8)


def test_a_file_system_without_locks(tmp_path, monkeypatch):
    def missing(file, flags):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(store_files.fcntl, "flock", missing)
    assert (quantize(torch.ones(4, 3), tmp_path / "x.npy", torch.int8).gather(torch.tensor([3])) == 1).all()
