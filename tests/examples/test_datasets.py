"""examples/datasets.py: Cora from both sources, its split, and what is said of data that is missing."""

import importlib.util
import sys

import pytest
import torch

pytest.importorskip("dgl")

import datasets
import gat_amp

from tests.examples.support import PLANETOID, needs_packaged, needs_planetoid


def check_cora(data):
    assert (data.num_nodes, len(data.src), data.num_classes) == (2708, 10556 + 2708, 7)
    assert data.features.shape == (2708, 1433)
    assert [len(part) for part in (data.train, data.val, data.test)] == [140, 500, 1000]
    assert data.labels[data.train].bincount().tolist() == [20] * 7
    assert sorted(data.labels.bincount().tolist()) == [180, 217, 298, 351, 418, 426, 818]
    graph = data.graph()
    assert graph.idtype == torch.int32
    assert graph.has_edges_between(range(2708), range(2708)).all()  # self loops
    assert graph.has_edges_between(data.dst, data.src).all()  # both directions
    torch.testing.assert_close(data.features.sum(1), torch.ones(2708))


def tree(folder):
    return sorted((str(path), path.stat().st_mtime_ns) for path in folder.rglob("*"))


@needs_planetoid
def test_planetoid_cora_leaves_its_folder_alone(monkeypatch):
    before = tree(PLANETOID)
    check_cora(datasets.load("cora", PLANETOID))
    monkeypatch.setenv("HALFGNN_DATA", str(PLANETOID))
    assert "Planetoid" in datasets.load("cora").source
    assert tree(PLANETOID) == before


@needs_packaged
def test_packaged_cora(monkeypatch):
    monkeypatch.delenv("HALFGNN_DATA", raising=False)
    data = datasets.load("cora")
    assert "graphdatascience" in data.source
    check_cora(data)
    assert "graphdatascience" not in sys.modules


def test_split_by_hash_depends_on_keys_alone():
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(7, (2708,), generator=generator)
    keys = torch.randperm(10**6, generator=generator)[:2708].tolist()
    split = datasets.split_by_hash(keys, labels)
    assert [len(part) for part in split] == [140, 500, 1000]
    assert len(torch.cat(split).unique()) == 1640
    assert labels[split[0]].bincount().tolist() == [20] * 7
    order = torch.randperm(2708, generator=generator)
    shuffled = datasets.split_by_hash([keys[i] for i in order], labels[order])
    for part, other in zip(split, shuffled):
        assert torch.equal(part, order[other])
    # This never changes: the digest of "0" begins with 5f and that of "1" with 6b.
    assert datasets.split_by_hash([1, 0], torch.tensor([0, 0]), per_class=1)[0].tolist() == [1]


def test_unknown_data_set():
    with pytest.raises(ValueError, match=r"name must be one of cora, .*, got 'corra'"):
        datasets.load("corra")


def test_failed_download_says_what_would_help(monkeypatch, tmp_path):
    import dgl.data

    def offline(*args, **options):
        raise ConnectionError("Failed to resolve 'example.org'\nand more")

    monkeypatch.setattr(dgl.data, "RedditDataset", offline)
    with pytest.raises(datasets.DataError, match=r"'reddit' could not be loaded .*Failed to resolve.*--data-dir"):
        datasets.load("reddit", tmp_path)
    with pytest.raises(SystemExit) as end:
        gat_amp.main(["--dataset", "reddit", "--data-dir", str(tmp_path)])
    assert str(end.value).startswith("gat_amp: data set 'reddit' could not be loaded")


@pytest.mark.skipif(importlib.util.find_spec("ogb") is not None, reason="ogb is installed")
def test_arxiv_without_ogb_says_what_to_install():
    with pytest.raises(datasets.DataError, match="pip install ogb"):
        datasets.load("ogbn-arxiv")
