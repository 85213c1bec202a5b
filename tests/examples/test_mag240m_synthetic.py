"""examples/mag240m/data/synthetic.py: counts, degrees, a signal that can be learnt, and data that is used again."""

import json

import pytest
import torch
from datasets import DataError
from mag240m.data import load, make_synthetic, synthetic

from tests.examples.mag240m_directory import AFFILIATED, AFFILIATES, CITES, NAN, WRITES, WRITTEN, array, contents, pairs

SMALL = {"scale": 2e-5, "num_features": 8, "num_classes": 5}


@pytest.fixture(scope="module")
def learnable(tmp_path_factory):
    """24 thousand papers with 5 topics."""
    root = tmp_path_factory.mktemp("synthetic")
    assert make_synthetic(root, 2e-4, num_features=64, num_classes=5) == root / "mag240m_kddcup2021"
    return load(root)


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
        count = synthetic.EDGES[edge_type[0], edge_type[1].replace("-", "_"), edge_type[2]]
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
        contents(make_synthetic(tmp_path / name, seed=seed, **SMALL)) for name, seed in (("a", 3), ("b", 3), ("c", 4))
    ]
    assert made[0] == made[1]
    assert made[0].keys() == made[2].keys()
    same = {name for name in made[0] if made[0][name] == made[2][name]}
    assert same == {"meta.pt", "RELEASE_v1.txt"}


def test_chunks_hold_every_node(tmp_path, monkeypatch):
    """The last chunk is not full. Its features and edges are there."""
    monkeypatch.setattr(synthetic, "CHUNK", 1000)
    make_synthetic(tmp_path, **SMALL)
    data = load(tmp_path)
    assert len(array(data, "paper")) == 2435
    assert (array(data, "paper") != 0).any(1).all()
    assert data.edges[WRITES][0].unique().numel() == data.num_nodes["author"] == 2448


def test_smallest_scale_has_something_to_train_on(tmp_path):
    make_synthetic(tmp_path, 1e-5, num_features=4)
    data = load(tmp_path)
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
        make_synthetic(tmp_path / "new", **options)
    assert not (tmp_path / "new").exists()


def test_data_is_used_again_where_arguments_agree(tmp_path):
    folder = make_synthetic(tmp_path, **SMALL)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    assert make_synthetic(tmp_path, **SMALL) == folder
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
    for other in ({"seed": 1}, {"scale": 3e-5}, {"num_features": 9}):
        with pytest.raises(
            DataError, match=r"holds synthetic data of \{.*\}; expected \{.*\}. Name another directory, or delete it"
        ):
            make_synthetic(tmp_path, **{**SMALL, **other})
    recipe = folder / "synthetic.json"
    recipe.write_text(json.dumps({**json.loads(recipe.read_text()), "version": 0}))
    with pytest.raises(DataError, match="'version': 0"):
        make_synthetic(tmp_path, **SMALL)
    recipe.write_text("{")
    with pytest.raises(DataError, match=r"synthetic.json could not be read \(.*\); expected JSON"):
        make_synthetic(tmp_path, **SMALL)


def test_real_data_is_not_taken_for_synthetic(folder):
    before = contents(folder)
    with pytest.raises(DataError, match="holds no synthetic data"):
        make_synthetic(folder.parent, **SMALL)
    assert contents(folder) == before


def test_synthetic_by_name(tmp_path, monkeypatch):
    data = load("synthetic", data_dir=tmp_path / "a", scale=1e-5, seed=2)
    assert data.num_nodes["paper"] == 1218 and array(data, "paper").shape == (1218, 768)
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["mag240m-synthetic-scale1e-05-seed2"]
    monkeypatch.setenv("HOME", str(tmp_path / "b"))
    load("synthetic", scale=1e-5)
    assert [path.name for path in (tmp_path / "b" / ".cache" / "halfgnn").iterdir()] == [
        "mag240m-synthetic-scale1e-05-seed0"
    ]


def test_a_name_that_is_no_data(tmp_path):
    with pytest.raises(DataError, match=r"'imbd' is neither \"imdb\" nor \"synthetic\" nor a directory with meta.pt"):
        load("imbd")
