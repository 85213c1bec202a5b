"""examples/heterodata.py and examples/mag240m_synthetic.py: loading, making and refusing data."""

import errno
import json
import shutil
import sys
import threading
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

import datasets
import heterodata
import mag240m_synthetic
from heterodata import DataError

NAN = float("nan")
WRITES, WRITTEN = ("author", "writes", "paper"), ("paper", "written-by", "author")
AFFILIATED, AFFILIATES = ("author", "affiliated-with", "institution"), ("institution", "affiliates", "author")
CITES = ("paper", "cites", "paper")
needs_packaged = pytest.mark.skipif(
    datasets.packaged("imdb") is None, reason="the graphdatascience wheel or pyarrow is not installed"
)


def pairs(edges):
    return list(zip(*(ids.tolist() for ids in edges)))


def array(data, kind):
    return np.load(data.features[kind])


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


# --------------------------------------------------------------------------------------------- IMDB


@pytest.fixture(scope="module")
def imdb():
    return heterodata.load("imdb")


@needs_packaged
def test_imdb(imdb):
    data = imdb
    assert data.num_nodes == {"movie": 4661, "director": 2270, "actor": 5841}
    assert {edge_type: len(src) for edge_type, (src, _) in data.edges.items()} == {
        ("actor", "acts-in", "movie"): 13983,
        ("movie", "acted-by", "actor"): 13983,
        ("director", "directs", "movie"): 4661,
        ("movie", "directed-by", "director"): 4661,
    }
    for (src_type, _, dst_type), (src, dst) in data.edges.items():
        assert src.dtype == dst.dtype == torch.int64
        # Every node has an edge, so ids are consecutive.
        assert src.unique().tolist() == list(range(data.num_nodes[src_type]))
        assert dst.unique().tolist() == list(range(data.num_nodes[dst_type]))
    assert data.edges["movie", "acted-by", "actor"][0].bincount().unique().tolist() == [3]
    for kind, features in data.features.items():
        assert (features.shape, features.dtype) == ((data.num_nodes[kind], 1256), torch.float16)
        assert features.unique().tolist() == [0, 1]
    assert (data.target, data.num_classes) == ("movie", 3)
    assert (data.labels + 1).bincount().tolist() == [1722, 543, 924, 1472]
    assert [data.labels[part].bincount().tolist() for part in (data.train, data.val)] == [[100] * 3] * 2
    everything = torch.cat([data.train, data.val, data.test])
    assert everything.sort().values.equal((data.labels >= 0).nonzero().squeeze(1))
    assert "graphdatascience" not in sys.modules


@needs_packaged
@pytest.mark.parametrize(
    "relation", [("director", "directs", "movie"), ("actor", "acts-in", "movie")], ids=lambda r: r[0]
)
def test_keywords_of_people_are_those_of_their_movies(imdb, relation):
    """This would fail if ends, ids or rows of features were mixed up."""
    person, movie = imdb.edges[relation]
    features = imdb.features[relation[0]].float()
    union = torch.zeros_like(features).index_add_(0, person, imdb.features["movie"][movie].float()).clamp(max=1)
    assert union.equal(features)


def test_imdb_without_its_wheel(monkeypatch):
    monkeypatch.setattr(datasets, "packaged", lambda name: None)
    with pytest.raises(DataError, match="packaged IMDB is not installed: `pip install --no-deps graphdatascience"):
        heterodata.load("imdb")


def rewrite(name, change):
    """Replaces one IMDB file by change(table)."""

    def spoil(folder):
        import pyarrow.parquet as parquet

        path = folder / f"imdb_{name}.parquet.gzip"
        parquet.write_table(change(parquet.ParquetFile(path).read()), path)

    return spoil


def put(column, row, value):
    def change(table):
        values = table[column].to_pylist()
        values[row] = value
        return table.set_column(table.column_names.index(column), column, [values])

    return change


@needs_packaged
@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (
            rewrite("acted_in", put("sourceNodeId", 5, 4661)),
            r"acted_in.*: sourceNodeId holds 4661, which is not a node of type actor; .*6931 to 12771",
        ),
        (
            rewrite("directed_in", put("targetNodeId", 0, -1)),
            r"directed_in.*: targetNodeId holds -1, which is not a node of type movie",
        ),
        (rewrite("directors", put("nodeId", 0, 4662)), "a nodeId of type director occurs twice"),
        (
            rewrite("directors", put("plot_keywords", 0, [1.0])),
            r"directors.*: plot_keywords has \[1, 1256\] values per node",
        ),
        (
            rewrite("directors", lambda table: table.drop_columns(["nodeId"])),
            r"directors.* has the columns .*; expected nodeId, plot_keywords",
        ),
        (
            rewrite("movies_with_genre", put("genre", 7, 3)),
            r"movies_with_genre.*: genre runs from 0 to 3; expected 0 to 2",
        ),
        (
            rewrite("movies_with_genre", lambda table: table.take(list(range(len(table)))[::-1])),
            r"movies_with_genre.*: the first 300 rows have \[.*\] movies per genre; expected 100 each",
        ),
        (
            lambda folder: (folder / "imdb_actors.parquet.gzip").unlink(),
            "imdb_actors.parquet.gzip is missing; expected",
        ),
        (
            lambda folder: (folder / "imdb_actors.parquet.gzip").write_text("PAR"),
            "imdb_actors.* cannot be read as a Parquet file",
        ),
    ],
)
def test_imdb_that_is_wrong(spoil, message, tmp_path, monkeypatch):
    folder = tmp_path / "imdb"
    shutil.copytree(datasets.packaged("imdb"), folder)
    spoil(folder)
    monkeypatch.setattr(datasets, "packaged", lambda name: folder)
    with pytest.raises(DataError, match=message):
        heterodata.load("imdb")


# ----------------------------------------------------------------------------- a directory of MAG240M


def write_mag240m(folder):
    """Five papers, three authors, two institutions, in the format of ogb."""
    features = np.random.default_rng(0).standard_normal((5, 6)).astype("float16")
    arrays = {
        "paper/node_feat": features,
        "paper/node_label": np.array([2, NAN, 0, 1, NAN], dtype="float32"),
        "author___writes___paper/edge_index": np.array([[0, 0, 1], [1, 4, 4]]),
        "author___affiliated_with___institution/edge_index": np.array([[0, 1], [1, 1]]),
        # A citation in both directions, a repeated one, and a self-citation.
        "paper___cites___paper/edge_index": np.array([[0, 1, 2, 2, 3], [1, 0, 4, 4, 3]]),
    }
    for name, values in arrays.items():
        path = folder / "processed" / f"{name}.npy"
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, values)
    torch.save({"paper": 5, "author": 3, "institution": 2, "num_classes": 3}, folder / "meta.pt")
    torch.save({"train": np.array([0]), "valid": np.array([2]), "test": np.array([1, 3])}, folder / "split_dict.pt")
    return features.astype("float64")


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "mag240m_kddcup2021"
    write_mag240m(folder)
    return folder


def test_mag240m(folder):
    papers = write_mag240m(folder)
    data = heterodata.load(folder.parent)
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
    heterodata.load(folder)
    made = contents(folder)
    assert {name: made[name] for name in given} == given
    assert sorted(made.keys() - given.keys()) == [
        "processed/author/node_feat.npy",
        "processed/institution/node_feat.npy",
        "processed/paper___cites___paper/undirected_edge_index.npy",
    ]
    authors = folder / "processed" / "author" / "node_feat.npy"
    np.save(authors, np.full((3, 6), 7, dtype="float16"))
    assert (array(heterodata.load(folder), "author") == 7).all()
    authors.unlink()
    heterodata.load(folder)
    assert contents(folder) == made


def test_writing_to_edges_leaves_the_files_alone(folder):
    data = heterodata.load(folder)
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
    data = heterodata.load(folder)
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
    data = heterodata.load(folder)
    assert data.num_nodes == {"paper": 5, "author": 3, "institution": 2}
    assert data.train.tolist() == [0]


@pytest.mark.parametrize("dtype", ["float64", "float16", "int64", "int16"])
def test_labels_of_other_dtypes(folder, dtype):
    labels = [2, -1, 0, 1, -1]
    np.save(folder / "processed" / "paper" / "node_label.npy", np.array(labels, dtype=dtype))
    assert heterodata.load(folder).labels.tolist() == labels


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
        heterodata.load(folder)
    assert not list(folder.rglob("*.partial"))


@pytest.mark.parametrize("name", ["author/node_feat", "paper___cites___paper/undirected_edge_index"])
def test_made_files_that_are_wrong_say_how_to_have_them_again(folder, name):
    heterodata.load(folder)
    np.save(folder / "processed" / f"{name}.npy", np.zeros((4, 6)))
    with pytest.raises(DataError, match=rf"{name}.npy holds float64 of shape \(4, 6\).*delete it to make it again"):
        heterodata.load(folder)


def test_memory_does_not_change_means(folder):
    data = heterodata.load(folder)
    made = {kind: array(data, kind) for kind in ("author", "institution")}
    for memory in (1, 2 * 8 * 4):  # columns one by one, and by four: the last chunk is shorter
        for kind in made:
            (folder / "processed" / kind / "node_feat.npy").unlink()
        data = heterodata.load(folder, memory=memory)
        for kind, means in made.items():
            np.testing.assert_array_equal(array(data, kind), means)
    with pytest.raises(ValueError, match="memory is 0; expected at least 1 byte"):
        heterodata.load(folder, memory=0)


def test_no_citations_at_all(folder):
    np.save(folder / "processed" / f"{CITES_FILE}.npy", np.zeros((2, 0), int))
    data = heterodata.load(folder)
    assert pairs(data.edges[CITES]) == []


# -------------------------------------------------------------------------------------- DGL's graph


def check_graph(data):
    graph = data.graph()
    assert graph.formats()["created"] == ["csc"]
    assert set(graph.canonical_etypes) == set(data.edges)
    assert {kind: graph.num_nodes(kind) for kind in graph.ntypes} == data.num_nodes
    for edge_type, edges in data.edges.items():
        src, dst = graph.edges(etype=edge_type)
        assert src.dtype == graph.idtype
        assert sorted(pairs((src, dst))) == sorted(pairs(edges))
        indptr, _, _ = graph.adj_tensors("csc", etype=edge_type)
        assert len(indptr) == data.num_nodes[edge_type[2]] + 1
    return graph


def test_graph_of_dgl(folder):
    dgl = pytest.importorskip("dgl")
    data = heterodata.load(folder)
    graph = check_graph(data)
    assert graph.idtype == torch.int64
    sampler = dgl.dataloading.NeighborSampler([{edge_type: 2 for edge_type in data.edges}] * 2)
    _, seeds, blocks = sampler.sample(data.graph(), {"paper": data.train})
    assert seeds["paper"].tolist() == [0]
    assert blocks[-1].num_edges(CITES) == 1


# --------------------------------------------------------------------------------- synthetic data


SMALL = {"scale": 2e-5, "num_features": 8, "num_classes": 5}


@pytest.fixture(scope="module")
def learnable(tmp_path_factory):
    """24 thousand papers with 5 topics."""
    root = tmp_path_factory.mktemp("synthetic")
    assert mag240m_synthetic.synthetic(root, 2e-4, num_features=64, num_classes=5) == root / "mag240m_kddcup2021"
    return heterodata.load(root)


def test_synthetic_counts(learnable):
    scale = 2e-4
    assert learnable.source.startswith("synthetic, MAG240M's schema at scale 0.0002, seed 0")
    assert learnable.num_nodes == {"paper": 24350, "author": 24477, "institution": 5}
    assert [len(part) for part in (learnable.train, learnable.val, learnable.test)] == [222, 28, 20]
    assert len(torch.cat([learnable.train, learnable.val, learnable.test]).unique()) == 270
    assert int((learnable.labels >= 0).sum()) == 270
    assert set(learnable.edges) == {WRITES, WRITTEN, AFFILIATED, AFFILIATES, CITES}
    links = {edge_type: pairs(learnable.edges[edge_type]) for edge_type in (WRITES, AFFILIATED, CITES)}
    for edge_type, found in links.items():
        assert len(set(found)) == len(found)
        count = mag240m_synthetic.EDGES[edge_type[0], edge_type[1].replace("-", "_"), edge_type[2]]
        count *= 2 if edge_type == CITES else 1
        assert 0.7 * scale * count < len(found) < 1.1 * scale * count
    assert all(paper != other for paper, other in links[CITES])
    assert set(links[CITES]) == {(other, paper) for paper, other in links[CITES]}
    for edge_type, (src, dst) in learnable.edges.items():
        assert int(src.min()) >= 0 and int(src.max()) < learnable.num_nodes[edge_type[0]]
        assert int(dst.min()) >= 0 and int(dst.max()) < learnable.num_nodes[edge_type[2]]
    assert learnable.edges[WRITES][0].unique().numel() == 24477  # every author writes


def test_synthetic_degrees_are_skewed(learnable):
    degrees = learnable.edges[CITES][1].bincount().double()
    assert degrees.max() > 20 * degrees.mean()
    # The density is ~ d^-3, so among large degrees four times the degree is 16 times rarer.
    tail, far = (int((degrees > times * degrees.mean()).sum()) for times in (2, 8))
    assert 4 < tail / far < 64


def nearest_centre(data, features):
    """Accuracy on other papers of predicting the class whose mean over the training papers is nearest."""
    features = features.double()
    rest = torch.cat([data.val, data.test])
    centres = torch.stack(
        [features[data.train[data.labels[data.train] == label]].mean(0) for label in range(data.num_classes)]
    )
    found = torch.cdist(features[rest], centres).argmin(1)
    return (found == data.labels[rest]).double().mean()


def test_synthetic_neighbours_tell_the_class(learnable):
    """Two hops of means find the class, features alone do not. So a graph network can learn it. One label in ten is
    random."""
    from halfgnn import Graph, ops

    papers = torch.from_numpy(array(learnable, "paper"))
    cites = Graph.from_edges(*learnable.edges[CITES], num_src=len(papers), num_dst=len(papers))
    means = ops.copy_u_mean(cites, ops.copy_u_mean(cites, papers))
    alone, together = nearest_centre(learnable, papers), nearest_centre(learnable, means)
    assert alone < 0.6
    assert together > 0.75
    writes = Graph.from_edges(*learnable.edges[WRITES], num_src=learnable.num_nodes["author"], num_dst=len(papers))
    assert nearest_centre(learnable, ops.copy_u_mean(writes, torch.from_numpy(array(learnable, "author")))) > alone


@pytest.mark.parametrize("edge_type", [WRITTEN, AFFILIATED], ids=lambda edge_type: edge_type[2])
def test_synthetic_means(learnable, edge_type):
    src, dst = learnable.edges[edge_type]
    inputs = torch.from_numpy(array(learnable, edge_type[0])).double()
    sums = torch.zeros(learnable.num_nodes[edge_type[2]], 64, dtype=torch.float64).index_add_(0, dst, inputs[src])
    means = sums / dst.bincount(minlength=len(sums)).clamp(min=1).unsqueeze(1)
    torch.testing.assert_close(
        torch.from_numpy(array(learnable, edge_type[2])).double(), means, rtol=2**-11, atol=2**-25
    )


def test_same_seed_same_files(tmp_path):
    made = [
        contents(mag240m_synthetic.synthetic(tmp_path / name, seed=seed, **SMALL))
        for name, seed in (("a", 3), ("b", 3), ("c", 4))
    ]
    assert made[0] == made[1]
    assert made[0].keys() == made[2].keys()
    same = {name for name in made[0] if made[0][name] == made[2][name]}
    assert same == {"meta.pt", "RELEASE_v1.txt"}


def test_chunks_hold_every_node(tmp_path, monkeypatch):
    """The last chunk is not full. Its features and edges are there."""
    monkeypatch.setattr(mag240m_synthetic, "CHUNK", 1000)
    mag240m_synthetic.synthetic(tmp_path, **SMALL)
    data = heterodata.load(tmp_path)
    assert len(array(data, "paper")) == 2435
    assert (array(data, "paper") != 0).any(1).all()
    assert data.edges[WRITES][0].unique().numel() == data.num_nodes["author"] == 2448


def test_smallest_scale_has_something_to_train_on(tmp_path):
    mag240m_synthetic.synthetic(tmp_path, 1e-5, num_features=4)
    data = heterodata.load(tmp_path)
    assert [len(part) for part in (data.train, data.val, data.test)] == [20] * 3
    assert data.num_nodes["institution"] == 1
    assert (data.labels[data.train] >= 0).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scale": 0}, "scale is 0; expected a finite number > 0"),
        ({"scale": -0.1}, "scale is -0.1; expected a finite number > 0"),
        ({"scale": NAN}, "scale is nan; expected a finite number > 0"),
        ({"scale": float("inf")}, "scale is inf; expected a finite number > 0"),
        ({"scale": 1e-6}, r"scale is 1e-06, 122 papers; expected at least 1000, scale >= 8.2e-06"),
        ({"seed": -1}, "seed is -1, .*; expected seed >= 0"),
        ({"num_features": 0}, "num_features 0, .*num_features >= 1"),
        ({"num_classes": 1}, "num_classes 1; expected .*num_classes from 2"),
    ],
)
def test_arguments_that_make_no_data(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        mag240m_synthetic.synthetic(tmp_path / "new", **options)
    assert not (tmp_path / "new").exists()


def test_data_is_used_again_where_arguments_agree(tmp_path):
    folder = mag240m_synthetic.synthetic(tmp_path, **SMALL)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    assert mag240m_synthetic.synthetic(tmp_path, **SMALL) == folder
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
    for other in ({"seed": 1}, {"scale": 3e-5}, {"num_features": 9}):
        with pytest.raises(
            DataError, match=r"holds synthetic data of \{.*\}; expected \{.*\}. Name another directory, or delete it"
        ):
            mag240m_synthetic.synthetic(tmp_path, **{**SMALL, **other})
    recipe = folder / "synthetic.json"
    recipe.write_text(json.dumps({**json.loads(recipe.read_text()), "version": 0}))
    with pytest.raises(DataError, match="'version': 0"):
        mag240m_synthetic.synthetic(tmp_path, **SMALL)
    recipe.write_text("{")
    with pytest.raises(DataError, match=r"synthetic.json could not be read \(.*\); expected JSON"):
        mag240m_synthetic.synthetic(tmp_path, **SMALL)


def test_real_data_is_not_taken_for_synthetic(folder):
    before = contents(folder)
    with pytest.raises(DataError, match="holds no synthetic data"):
        mag240m_synthetic.synthetic(folder.parent, **SMALL)
    assert contents(folder) == before


def test_synthetic_by_name(tmp_path, monkeypatch):
    data = heterodata.load("synthetic", data_dir=tmp_path / "a", scale=1e-5, seed=2)
    assert data.num_nodes["paper"] == 1218 and array(data, "paper").shape == (1218, 768)
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["mag240m-synthetic-scale1e-05-seed2"]
    monkeypatch.setenv("HOME", str(tmp_path / "b"))
    heterodata.load("synthetic", scale=1e-5)
    assert [path.name for path in (tmp_path / "b" / ".cache" / "halfgnn").iterdir()] == [
        "mag240m-synthetic-scale1e-05-seed0"
    ]


def test_a_name_that_is_no_data(tmp_path):
    with pytest.raises(DataError, match=r"'imbd' is neither \"imdb\" nor \"synthetic\" nor a directory with meta.pt"):
        heterodata.load("imbd")


# ------------------------------------------------------------------------------------ made once, whole


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError, DataError])
def test_interrupted_synthetic_data_is_not_there(tmp_path, monkeypatch, error):
    def fail(*args):
        raise error("in the middle")

    with monkeypatch.context() as patch:
        patch.setattr(mag240m_synthetic, "_write_labels", fail)
        with pytest.raises(error, match="in the middle"):
            mag240m_synthetic.synthetic(tmp_path, **SMALL)
    assert [path.name for path in tmp_path.iterdir()] == [".mag240m_kddcup2021.lock"]
    assert heterodata.load(mag240m_synthetic.synthetic(tmp_path, **SMALL)).num_classes == 5
    assert [path.name for path in tmp_path.iterdir()] == ["mag240m_kddcup2021"]


def test_what_a_killed_process_left_is_removed(tmp_path):
    left = tmp_path / ".mag240m_kddcup2021.partial"
    (left / "processed" / "paper").mkdir(parents=True)
    (left / "processed" / "paper" / "node_feat.npy").write_text("half")
    (left / "extra").write_text("")
    folder = mag240m_synthetic.synthetic(tmp_path, **SMALL)
    assert [path.name for path in tmp_path.iterdir()] == ["mag240m_kddcup2021"]
    assert not (folder / "extra").exists()
    (folder / "processed" / "author").mkdir()
    (folder / "processed" / "author" / ".node_feat.npy.partial").write_text("half")
    heterodata.load(folder)
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
            heterodata.load(folder, memory=1)
    assert calls == [(5, 1)] * 2
    assert [path.name for path in (folder / "processed" / "author").iterdir()] == [".node_feat.npy.lock"]
    assert array(heterodata.load(folder), "author")[1].tolist() == array(heterodata.load(folder), "paper")[4].tolist()


def test_a_full_disk_is_an_error(tmp_path, monkeypatch):
    def full(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(heterodata.os, "posix_fallocate", full)
    with pytest.raises(DataError, match=r"mag240m_kddcup2021 could not be made \(.*No space left on device\)"):
        mag240m_synthetic.synthetic(tmp_path, **SMALL)
    assert not list(tmp_path.rglob("*.npy"))


def test_a_file_in_the_way_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="could not be made"):
        mag240m_synthetic.synthetic(tmp_path / "file", **SMALL)


def test_of_two_at_once_one_writes(tmp_path):
    target, writers = tmp_path / "file", []

    def write(partial):
        writers.append(partial)
        time.sleep(0.2)
        partial.write_text("whole")

    threads = [threading.Thread(target=heterodata.make_once, args=(target, write)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(writers) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
