"""examples/mag240m/data/files.py: what is made once appears whole or not at all."""

import errno
import threading
import time

import pytest
from datasets import DataError
from mag240m.data import files, load, make_synthetic, synthetic

from tests.examples.mag240m_directory import array

SMALL = {"scale": 2e-5, "num_features": 8, "num_classes": 5}


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError, DataError])
def test_interrupted_synthetic_data_is_not_there(tmp_path, monkeypatch, error):
    def fail(*args):
        raise error("in the middle")

    with monkeypatch.context() as patch:
        patch.setattr(synthetic, "_write_labels", fail)
        with pytest.raises(error, match="in the middle"):
            make_synthetic(tmp_path, **SMALL)
    assert [path.name for path in tmp_path.iterdir()] == [".mag240m_kddcup2021.lock"]
    assert load(make_synthetic(tmp_path, **SMALL)).num_classes == 5
    assert [path.name for path in tmp_path.iterdir()] == ["mag240m_kddcup2021"]


def test_what_a_killed_process_left_is_removed(tmp_path):
    left = tmp_path / ".mag240m_kddcup2021.partial"
    (left / "processed" / "paper").mkdir(parents=True)
    (left / "processed" / "paper" / "node_feat.npy").write_text("half")
    (left / "extra").write_text("")
    folder = make_synthetic(tmp_path, **SMALL)
    assert [path.name for path in tmp_path.iterdir()] == ["mag240m_kddcup2021"]
    assert not (folder / "extra").exists()
    (folder / "processed" / "author").mkdir()
    (folder / "processed" / "author" / ".node_feat.npy.partial").write_text("half")
    load(folder)
    assert [path.name for path in (folder / "processed" / "author").iterdir()] == ["node_feat.npy"]


def test_interrupted_means_are_not_there(folder, monkeypatch):
    from halfgnn import ops

    calls = []

    def second_fails(graph, features):
        calls.append(features.shape)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return mean(graph, features)

    mean = ops.copy_u_mean
    with monkeypatch.context() as patch:
        patch.setattr(ops, "copy_u_mean", second_fails)
        with pytest.raises(KeyboardInterrupt):
            load(folder, memory=1)
    assert calls == [(5, 1)] * 2
    assert [path.name for path in (folder / "processed" / "author").iterdir()] == [".node_feat.npy.lock"]
    assert array(load(folder), "author")[1].tolist() == array(load(folder), "paper")[4].tolist()


def test_a_full_disk_is_an_error(tmp_path, monkeypatch):
    def full(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files.os, "posix_fallocate", full)
    with pytest.raises(DataError, match=r"mag240m_kddcup2021 could not be made \(.*No space left on device\)"):
        make_synthetic(tmp_path, **SMALL)
    assert not list(tmp_path.rglob("*.npy"))


def test_a_file_in_the_way_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="could not be made"):
        make_synthetic(tmp_path / "file", **SMALL)


def test_of_two_at_once_one_writes(tmp_path):
    target, writers = tmp_path / "file", []

    def write(partial):
        writers.append(partial)
        time.sleep(0.2)
        partial.write_text("whole")

    threads = [threading.Thread(target=files.make_once, args=(target, write)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(writers) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
