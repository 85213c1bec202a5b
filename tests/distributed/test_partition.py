"""partition: every edge and node in one part, and the rows that parts send one another."""

import json

import numpy as np
import pytest
import torch

import halfgnn
from halfgnn.dataloading import FeatureStore
from halfgnn.distributed import Streamed, cut_features, partition
from tests import support

pytestmark = pytest.mark.skipif(support.SIMULATED, reason="about files")


def graph(num_nodes=60, num_edges=400, seed=0):
    generator = torch.Generator().manual_seed(seed)
    src, dst = torch.randint(num_nodes, (2, num_edges), generator=generator)
    return halfgnn.Graph.from_edges(src, dst, num_src=num_nodes, num_dst=num_nodes)


def parts_of(folder, count):
    return [dict(np.load(folder / f"part-{part}.npz")) for part in range(count)]


def check(folder, g, count):
    """Parts have all edges of their nodes, under their ids in the whole graph, and ghosts in the order in which they are sent."""
    parts = parts_of(folder, count)
    owner = np.load(folder / "owner.npy")
    src, dst = (x.numpy() for x in g.edges())
    seen = []
    for number, part in enumerate(parts):
        assert (owner[part["nodes"]] == number).all() and len(part["nodes"]) == (owner == number).sum()
        ids = np.concatenate([part["nodes"], part["ghosts"]])
        local_dst = np.repeat(part["nodes"], np.diff(part["indptr"]))
        assert (src[part["edge_ids"]] == ids[part["indices"]]).all() and (dst[part["edge_ids"]] == local_dst).all()
        assert (owner[part["ghosts"]] != number).all() and len(np.unique(part["ghosts"])) == len(part["ghosts"])
        assert (np.bincount(owner[part["ghosts"]], minlength=count) == part["ghost_counts"]).all()
        sent = np.split(parts[number]["nodes"][part["sends"]], np.cumsum(part["send_counts"])[:-1])
        for other, rows in enumerate(sent):
            read = np.split(parts[other]["ghosts"], np.cumsum(parts[other]["ghost_counts"])[:-1])
            assert (rows == read[number]).all()
        seen.append(part["edge_ids"])
    assert sorted(np.concatenate(seen)) == list(range(g.num_edges))


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("method", ["communities", "array", "metis"])
def test_parts(tmp_path, method, count):
    if method == "metis":
        pytest.importorskip("pymetis")
    g = graph()
    assigned = torch.randint(count, (60,), generator=torch.Generator().manual_seed(1)) if method == "array" else method
    description = partition(g, count, out=tmp_path / "parts", method=assigned)
    check(tmp_path / "parts", g, count)
    assert json.loads((tmp_path / "parts/partition.json").read_text()) == description
    sizes = description["parts"]
    assert sum(part["nodes"] for part in sizes) == 60 and sum(part["edges"] for part in sizes) == 400
    if method == "array":
        assert (np.load(tmp_path / "parts/owner.npy") == assigned.numpy()).all()
    else:
        assert max(part["edges"] for part in sizes) <= 1.6 * 400 / count


def test_an_example(tmp_path):
    """0 -> 1 -> 2 -> 3, cut in the middle: the second part reads node 1, and the first one nothing."""
    g = halfgnn.Graph.from_edges(torch.tensor([0, 1, 2]), torch.tensor([1, 2, 3]), num_src=4, num_dst=4)
    partition(g, 2, out=tmp_path, method=[0, 0, 1, 1])
    first, second = ({name: x.tolist() for name, x in part.items()} for part in parts_of(tmp_path, 2))
    assert first == {
        "nodes": [0, 1], "indptr": [0, 0, 1], "indices": [0], "edge_ids": [0], "ghosts": [], "ghost_counts": [0, 0],
        "sends": [1], "send_counts": [0, 1],
    }  # fmt: skip
    assert second == {
        "nodes": [2, 3], "indptr": [0, 1, 2], "indices": [2, 0], "edge_ids": [1, 2], "ghosts": [1], "ghost_counts": [1, 0],
        "sends": [], "send_counts": [0, 0],
    }  # fmt: skip


def test_communities_stay_together(tmp_path):
    """Four cliques under shuffled ids: no edge is cut."""
    ids = torch.randperm(80, generator=torch.Generator().manual_seed(2)).view(4, 20)
    src, dst = torch.cat([torch.stack((x.repeat(20), x.repeat_interleave(20))) for x in ids], 1)
    g = halfgnn.Graph.from_edges(src, dst, num_src=80, num_dst=80)
    assert [part["ghosts"] for part in partition(g, 4, out=tmp_path)["parts"]] == [0, 0, 0, 0]


@pytest.mark.parametrize("num_nodes", [0, 3])
def test_without_edges(tmp_path, num_nodes):
    none = torch.zeros(0, dtype=torch.int64)
    g = halfgnn.Graph.from_edges(none, none, num_src=num_nodes, num_dst=num_nodes)
    partition(g, 1 + num_nodes // 3, out=tmp_path, method=torch.zeros(num_nodes, dtype=torch.int64))
    check(tmp_path, g, 1 + num_nodes // 3)


@pytest.mark.parametrize("kind", ["tensor", "file", "store", "array"])
def test_features(tmp_path, kind):
    g, x = graph(), torch.arange(120, dtype=torch.float16).view(60, 2)
    partition(g, 3, out=tmp_path)
    data = {"tensor": x, "array": x.numpy(), "store": FeatureStore(x)}.get(kind)
    if kind == "file":
        np.save(tmp_path / "x.npy", x.numpy())
        data = FeatureStore.open(tmp_path / "x.npy")
    cut_features(tmp_path, "x", data)
    for number, part in enumerate(parts_of(tmp_path, 3)):
        assert (np.load(tmp_path / f"part-{number}.x.npy") == x[part["nodes"]].numpy()).all()


def test_features_of_edges(tmp_path):
    partition(graph(), 3, out=tmp_path)
    cut_features(tmp_path, "x", torch.arange(400), of="edges")
    for number, part in enumerate(parts_of(tmp_path, 3)):
        assert (np.load(tmp_path / f"part-{number}.edges.x.npy") == part["edge_ids"]).all()
    with pytest.raises(ValueError, match=r"data has shape \(60,\); expected 400 rows, one per edge"):
        cut_features(tmp_path, "y", torch.ones(60), of="edges")
    with pytest.raises(ValueError, match="of is 'paper'; expected 'nodes' or 'edges'"):
        cut_features(tmp_path, "y", torch.ones(60), of="paper")


def test_features_that_are_half_written(tmp_path):
    class Ends(FeatureStore):
        def gather(self, ids):
            raise KeyboardInterrupt

    partition(graph(), 2, out=tmp_path)
    with pytest.raises(KeyboardInterrupt):
        cut_features(tmp_path, "x", Ends(torch.ones(60)))
    with pytest.raises(
        FileNotFoundError, match=r"part-0\.x\.npy does not exist; cut_features\(.*, 'x', data\) writes it"
    ):
        Streamed(tmp_path).predict([lambda g, x: x[1]], "x")
    for part in range(2):
        np.save(tmp_path / f"part-{part}.x.npy", np.ones(3))
    with pytest.raises(ValueError, match=r"part-0\.x\.npy has 3 rows; expected \d+, one per node of the part"):
        Streamed(tmp_path).predict([lambda g, x: x[1]], "x")


def test_an_id_is_of_edges_too(tmp_path):
    owner = torch.arange(60) % 2
    ids = [
        partition(graph(seed=seed), 2, out=tmp_path / f"{i}", method=owner)["id"] for i, seed in enumerate((0, 1, 0))
    ]
    assert ids[0] != ids[1] and ids[0] == ids[2]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"parts": 0}, "parts is 0; expected a positive integer"),
        ({"parts": 61}, "parts is 61; expected at most 60, the number of nodes"),
        ({"method": "random"}, "method is 'random'; expected 'communities', 'metis' or the part of each node"),
        ({"method": [0, 1]}, r"method has shape \(2,\) and dtype torch.int64; expected \(60,\) integers"),
        ({"method": torch.full((60,), 2)}, "method has parts from 2 to 2; expected 0 to 1"),
        ({"method": torch.zeros(60)}, r"dtype torch.float32; expected \(60,\) integers"),
    ],
    ids=lambda x: "" if isinstance(x, dict) else x[:20],
)
def test_wrong_arguments(tmp_path, arguments, error):
    with pytest.raises(ValueError, match=error):
        partition(graph(), **{"parts": 2, "out": tmp_path, **arguments})
    assert not list(tmp_path.iterdir())


def test_wrong_graphs_and_folders(tmp_path):
    g = halfgnn.Graph.from_edges(torch.tensor([0]), torch.tensor([0]), num_src=2, num_dst=1)
    with pytest.raises(ValueError, match="graph has 2 source and 1 destination nodes; expected as many of both"):
        partition(g, 1, out=tmp_path)
    with pytest.raises(FileNotFoundError, match=r"partition\.json does not exist"):
        cut_features(tmp_path, "x", torch.ones(60))
    partition(graph(), 2, out=tmp_path)
    with pytest.raises(FileExistsError, match="holds a partition"):
        partition(graph(), 2, out=tmp_path)
    for name, data, error in (
        ("x", torch.ones(59), r"data has shape \(59,\); expected 60 rows, one per node"),
        ("../x", torch.ones(60), "name is '../x'; expected letters, digits and underscores"),
        ("x", torch.ones(60, dtype=torch.bfloat16), "torch.bfloat16, which .npy files do not have"),
    ):
        with pytest.raises(ValueError, match=error):
            cut_features(tmp_path, name, data)
    cut_features(tmp_path, "x", torch.ones(60))
    (tmp_path / "partition.json").unlink()
    with pytest.raises(FileExistsError, match=r"holds part-0\.x\.npy, of an earlier partition"):
        partition(graph(), 2, out=tmp_path)
    (tmp_path / "partition.json").write_text('{"format": "other"}')
    with pytest.raises(ValueError, match="has the format 'other'; expected 'halfgnn partition 1'"):
        cut_features(tmp_path, "x", torch.ones(60))
