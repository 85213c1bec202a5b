"""examples/mag240m/data/imdb.py: IMDB from its wheel, and what is said of files that are wrong."""

import shutil
import sys

import datasets
import pytest
import torch
from datasets import DataError
from mag240m.data import load

needs_packaged = pytest.mark.skipif(
    datasets.packaged("imdb") is None, reason="the graphdatascience wheel or pyarrow is not installed"
)


@pytest.fixture(scope="module")
def imdb():
    return load("imdb")


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
        load("imdb")


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
        load("imdb")
