"""examples/mag240m/data: a directory in MAG240M's layout, what is derived from it, and files that are refused."""

import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from datasets import DataError
from mag240m.data import load

from halfgnn.dataloading import NeighborSampler
from tests.examples.mag240m_directory import (
    AFFILIATED,
    AFFILIATES,
    CITES,
    NAN,
    WRITES,
    WRITTEN,
    array,
    contents,
    pairs,
    write_mag240m,
)


def test_mag240m(folder):
    papers = write_mag240m(folder)
    data = load(folder.parent)
    assert data.source == f"MAG240M, {folder}"
    assert data.num_nodes == {"paper": 5, "author": 3, "institution": 2}
    writes, affiliated = [(0, 1), (0, 4), (1, 4)], [(0, 1), (1, 1)]
    assert {edge_type: pairs(edges) for edge_type, edges in data.edges.items()} == {
        WRITES: writes,
        WRITTEN: [(paper, author) for author, paper in writes],
        AFFILIATED: affiliated,
        AFFILIATES: [(institution, author) for author, institution in affiliated],
        CITES: [(1, 0), (0, 1), (4, 2), (3, 3), (2, 4)],
    }
    assert all(ids.dtype == torch.int64 for edges in data.edges.values() for ids in edges)
    assert data.labels.tolist() == [2, -1, 0, 1, -1] and data.labels.dtype == torch.int64
    assert [part.tolist() for part in (data.train, data.val, data.test)] == [[0], [2], [1, 3]]
    assert (data.target, data.num_classes) == ("paper", 3)
    assert data.features["paper"] == folder / "processed" / "paper" / "node_feat.npy"
    authors = np.stack([(papers[1] + papers[4]) / 2, papers[4], np.zeros(6)])
    assert array(data, "author").dtype == np.float16
    np.testing.assert_array_equal(array(data, "author"), authors.astype("float16"))
    rounded = array(data, "author").astype("float64")  # the mean of institutions is computed from rounded features
    institutions = np.stack([np.zeros(6), (rounded[0] + rounded[1]) / 2])
    np.testing.assert_array_equal(array(data, "institution"), institutions.astype("float16"))


def test_what_was_made_is_kept_and_the_rest_left_alone(folder):
    given = contents(folder)
    load(folder)
    made = contents(folder)
    assert {name: made[name] for name in given} == given
    assert sorted(made.keys() - given.keys()) == [
        "processed/author/node_feat.npy",
        "processed/institution/node_feat.npy",
        "processed/paper___cites___paper/undirected_edge_index.npy",
    ]
    authors = folder / "processed" / "author" / "node_feat.npy"
    np.save(authors, np.full((3, 6), 7, dtype="float16"))
    assert (array(load(folder), "author") == 7).all()
    authors.unlink()
    load(folder)
    assert contents(folder) == made


def test_writing_to_edges_leaves_the_files_alone(folder):
    data = load(folder)
    made = contents(folder)
    for src, dst in data.edges.values():
        src.zero_(), dst.zero_()
    assert contents(folder) == made


def test_test_dev_comes_before_test(folder):
    parts = {
        "train": torch.tensor([0, 3]),
        "valid": torch.tensor([2]),
        "test": torch.tensor([1, 4]),
        "test-dev": torch.tensor([4]),
    }
    torch.save(parts, folder / "split_dict.pt")
    data = load(folder)
    assert [part.tolist() for part in (data.train, data.val, data.test)] == [[0, 3], [2], [4]]


@pytest.mark.parametrize("module", ["numpy.core.multiarray", "numpy._core.multiarray"])
def test_arrays_and_scalars_pickled_by_either_numpy(folder, module):
    """The real files were written by NumPy 1."""
    for name in ("meta.pt", "split_dict.pt"):
        path = folder / name
        found = torch.load(path, weights_only=False)
        torch.save({key: np.int64(value) if isinstance(value, int) else value for key, value in found.items()}, path)
        with zipfile.ZipFile(path) as old:
            parts = {part: old.read(part) for part in old.namelist()}
        with zipfile.ZipFile(path, "w") as new:
            for part, data in parts.items():
                for other in ("numpy._core.multiarray", "numpy.core.multiarray"):
                    data = data.replace(b"c%s\n" % other.encode(), b"c%s\n" % module.encode())
                assert not part.endswith("data.pkl") or module.encode() in data
                new.writestr(part, data)
    data = load(folder)
    assert data.num_nodes == {"paper": 5, "author": 3, "institution": 2}
    assert data.train.tolist() == [0]


@pytest.mark.parametrize("dtype", ["float64", "float16", "int64", "int16"])
def test_labels_of_other_dtypes(folder, dtype):
    labels = [2, -1, 0, 1, -1]
    np.save(folder / "processed" / "paper" / "node_label.npy", np.array(labels, dtype=dtype))
    assert load(folder).labels.tolist() == labels


class Folder(type(Path())):
    """An object that a file of numbers and arrays does not contain."""


def npy(name, values):
    return lambda folder: np.save(folder / "processed" / f"{name}.npy", values)


def cut(name, size=-1):
    def spoil(folder):
        path = folder / "processed" / f"{name}.npy"
        path.write_bytes(path.read_bytes()[:size])

    return spoil


def remove(name):
    return lambda folder: (folder / name).unlink()


def saved(name, **changes):
    def spoil(folder):
        found = {**torch.load(folder / name, weights_only=False), **changes}
        torch.save({key: value for key, value in found.items() if value is not None}, folder / name)

    return spoil


PAPERS = "paper/node_feat"
LABELS = "paper/node_label"
WRITES_FILE, CITES_FILE = "author___writes___paper/edge_index", "paper___cites___paper/edge_index"


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (
            remove("meta.pt"),
            r'is neither "imdb" nor "synthetic" nor a directory with meta.pt or mag240m_kddcup2021/meta.pt',
        ),
        (remove("split_dict.pt"), r"split_dict.pt is missing; expected a dictionary"),
        (
            lambda folder: (folder / "meta.pt").write_text("x"),
            r"meta.pt could not be read \(\w+: .*\); expected a dictionary",
        ),
        (lambda folder: torch.save([1], folder / "meta.pt"), r"meta.pt holds a list; expected a dictionary"),
        (
            saved("meta.pt", paper=Folder("x")),
            r"meta.pt could not be read \(UnpicklingError: .*Folder was not an allowed",
        ),
        (saved("meta.pt", author=None), r"meta.pt has author = None; expected a positive integer"),
        (saved("meta.pt", author=0), r"meta.pt has author = 0; expected a positive integer"),
        (saved("meta.pt", num_classes=1.5), r"meta.pt has num_classes = 1.5; expected a positive integer"),
        (remove(f"processed/{PAPERS}.npy"), r"paper/node_feat.npy is missing; expected float16 of shape \(5, any\)"),
        (
            cut(PAPERS),
            r"paper/node_feat.npy \(187 bytes\) cannot be memory-mapped .*; expected float16 of shape \(5, any\)",
        ),
        (cut(PAPERS, 0), r"paper/node_feat.npy \(0 bytes\) cannot be memory-mapped .*; expected float16"),
        (cut(PAPERS, 20), r"paper/node_feat.npy \(20 bytes\) cannot be memory-mapped .*; expected float16"),
        (
            lambda folder: (folder / "processed" / f"{PAPERS}.npy").write_text("features " * 20),
            r"paper/node_feat.npy \(180 bytes\) cannot be memory-mapped .*magic.*; expected float16",
        ),
        (
            npy(PAPERS, np.zeros((5, 6))),
            r"paper/node_feat.npy holds float64 of shape \(5, 6\); expected float16 of shape \(5, any\)",
        ),
        (
            npy(PAPERS, np.zeros((4, 6), "float16")),
            r"paper/node_feat.npy holds float16 of shape \(4, 6\); expected float16 of shape \(5, any\)",
        ),
        (npy(PAPERS, np.zeros(5, "float16")), r"paper/node_feat.npy holds float16 of shape \(5,\)"),
        (
            npy(LABELS, np.zeros(4, "float32")),
            r"node_label.npy holds float32 of shape \(4,\); expected float32 or .* of shape \(5\)",
        ),
        (npy(LABELS, np.zeros(5, bool)), r"node_label.npy holds bool of shape \(5,\); expected float32 or"),
        (
            npy(LABELS, np.array([0, NAN, 0, 3, NAN])),
            r"node_label.npy holds the label 3.0; expected whole numbers in \[0, 3\), or NaN",
        ),
        (npy(LABELS, np.array([0, NAN, 0, -2, NAN])), r"node_label.npy holds the label -2.0; expected whole numbers"),
        (npy(LABELS, np.array([0, NAN, 0, 0.5, NAN])), r"node_label.npy holds the label 0.5; expected whole numbers"),
        (
            npy(LABELS, np.array([0, NAN, 0, np.inf, NAN])),
            r"node_label.npy holds the label inf; expected whole numbers",
        ),
        (npy(LABELS, np.array([0, NAN, NAN, 0, NAN])), r"split_dict.pt: valid has the paper 2, which has no label"),
        (
            npy(WRITES_FILE, np.zeros((3, 2), int)),
            r"writes.*edge_index.npy holds int64 of shape \(3, 2\); expected int64 or int32 of shape \(2, any\)",
        ),
        (npy(WRITES_FILE, np.zeros((2, 3))), r"writes.*edge_index.npy holds float64"),
        (
            npy(WRITES_FILE, np.array([[0, 3], [0, 0]])),
            r"writes.*edge_index.npy: row 0 holds the id 3; expected ids in \[0, 3\)",
        ),
        (
            npy(WRITES_FILE, np.array([[0, 0], [-1, 4]])),
            r"writes.*edge_index.npy: row 1 holds the id -1; expected ids in \[0, 5\)",
        ),
        (
            npy(CITES_FILE, np.array([[0, 5], [0, 1]])),
            r"cites___paper/edge_index.npy: row 0 holds the id 5; expected ids in \[0, 5\)",
        ),
        (cut(CITES_FILE), r"cites.*edge_index.npy \(207 bytes\) cannot be memory-mapped"),
        (saved("split_dict.pt", train=None), r"split_dict.pt has train = None; expected an array of ids"),
        (saved("split_dict.pt", train=np.zeros(0, int)), r"split_dict.pt has no training papers"),
        (
            saved("split_dict.pt", test=np.zeros(2)),
            r"split_dict.pt has test = torch.float64 of shape \(2,\); expected one dimension",
        ),
        (
            saved("split_dict.pt", train=np.array([0, 5])),
            r"split_dict.pt: train runs from 0 to 5; expected ids of papers in \[0, 5\)",
        ),
        (saved("split_dict.pt", test=np.array([-1])), r"split_dict.pt: test runs from -1 to -1"),
    ],
)
def test_mag240m_that_is_wrong(folder, spoil, message):
    spoil(folder)
    with pytest.raises(DataError, match=message):
        load(folder)
    assert not list(folder.rglob("*.partial"))


@pytest.mark.parametrize("name", ["author/node_feat", "paper___cites___paper/undirected_edge_index"])
def test_made_files_that_are_wrong_say_how_to_have_them_again(folder, name):
    load(folder)
    np.save(folder / "processed" / f"{name}.npy", np.zeros((4, 6)))
    with pytest.raises(DataError, match=rf"{name}.npy holds float64 of shape \(4, 6\).*delete it to make it again"):
        load(folder)


def test_memory_does_not_change_means(folder):
    data = load(folder)
    made = {kind: array(data, kind) for kind in ("author", "institution")}
    for memory in (1, 2 * 8 * 4):  # columns one by one, and by four: the last chunk is shorter
        for kind in made:
            (folder / "processed" / kind / "node_feat.npy").unlink()
        data = load(folder, memory=memory)
        for kind, means in made.items():
            np.testing.assert_array_equal(array(data, kind), means)
    with pytest.raises(ValueError, match="memory is 0; expected at least 1 byte"):
        load(folder, memory=0)


def test_no_citations_at_all(folder):
    np.save(folder / "processed" / f"{CITES_FILE}.npy", np.zeros((2, 0), int))
    data = load(folder)
    assert pairs(data.edges[CITES]) == []


def check_graph(data):
    graph = data.graph()
    assert set(graph.canonical_etypes) == set(data.edges)
    assert graph.num_src == graph.num_dst == data.num_nodes
    for edge_type, edges in data.edges.items():
        src, dst = graph[edge_type].edges()
        assert src.dtype == graph.idtype
        assert sorted(pairs((src, dst))) == sorted(pairs(edges))
        indptr, _, edge_ids = graph[edge_type].csc()
        assert len(indptr) == data.num_nodes[edge_type[2]] + 1 and edge_ids is None
    return graph


def test_graph_and_its_samples(folder):
    data = load(folder)
    graph = check_graph(data)
    assert graph.idtype == torch.int32
    sampler = NeighborSampler(graph, [{edge_type: 2 for edge_type in data.edges}] * 2)
    _, seeds, blocks = sampler.sample({"paper": data.train})
    assert seeds["paper"].tolist() == [0]
    assert blocks[-1].topology[CITES].num_edges == 1
