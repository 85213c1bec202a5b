"""convert_partition: folders that DistDGL wrote, with the edges and features of the graph that was partitioned."""

import json
import shutil
import sys

import numpy as np
import pytest
import torch

dgl = pytest.importorskip("dgl", reason="dgl is not installed", exc_type=ImportError)

import halfgnn.dgl  # noqa: E402
from halfgnn.distributed import partition  # noqa: E402
from halfgnn.distributed.features import Selected, open_features  # noqa: E402
from tests import support  # noqa: E402

pytestmark = pytest.mark.skipif(support.SIMULATED, reason="about files")


def homogeneous():
    generator = torch.Generator().manual_seed(0)
    g = dgl.graph(tuple(torch.randint(40, (2, 200), generator=generator)), num_nodes=40)
    g.ndata["x"] = torch.randn(40, 3, generator=generator)
    g.ndata["half"] = torch.arange(40).half()
    g.ndata["mask"] = torch.arange(40) % 3 == 0
    g.edata["w"] = torch.arange(200)
    return g


def heterograph():
    generator = torch.Generator().manual_seed(1)
    sizes = {"author": 30, "paper": 50, "venue": 25}
    relations = [("author", "writes", "paper", 120), ("paper", "cites", "paper", 150), ("paper", "by", "author", 80)]
    edges = {
        (source, name, target): tuple(torch.randint(sizes[t], (count,), generator=generator) for t in (source, target))
        for source, name, target, count in relations
    }
    g = dgl.heterograph(edges, sizes)
    g.nodes["paper"].data["x"] = torch.randn(50, 4, generator=generator)
    g.nodes["venue"].data["year"] = torch.arange(25)
    g.edges["cites"].data["w"] = torch.randn(150, 2, generator=generator)
    return g


GRAPHS = {"homogeneous": homogeneous, "heterograph": heterograph}


@pytest.fixture(scope="module", params=[("homogeneous", 2), ("heterograph", 3), ("heterograph", 1)], ids=str)
def converted(request, tmp_path_factory):
    """The graph, the original ids of DistDGL's, and the folder."""
    kind, parts = request.param
    g, folder = GRAPHS[kind](), tmp_path_factory.mktemp("of_dgl")
    mapping = dgl.distributed.partition_graph(g, "toy", parts, str(folder), part_method="random", return_mapping=True)
    description = halfgnn.dgl.convert_partition(folder / "toy.json", out=folder / "parts")
    assert json.loads((folder / "parts/partition.json").read_text()) == description
    assert len(description["parts"]) == parts
    by_type = mapping if kind == "heterograph" else ({"_N": mapping[0]}, {("_N", "_E", "_N"): mapping[1]})
    return g, *by_type, folder, description


def test_nodes_and_edges(converted):
    """Every edge of the graph once, in the part of its destination."""
    g, node_ids, edge_ids, folder, description = converted
    ntypes = torch.cat([torch.full((g.num_nodes(t),), i) for i, t in enumerate(g.ntypes)])
    nodes = torch.cat([node_ids[t] for t in g.ntypes])  # of the union of types: the original ids
    etypes = torch.cat([torch.full((g.num_edges(t),), i) for i, t in enumerate(g.canonical_etypes)])
    edges = torch.cat([edge_ids[t] for t in g.canonical_etypes])
    owner = torch.from_numpy(np.load(folder / "parts/owner.npy"))
    found = []
    for number in range(len(description["parts"])):
        part = {name: torch.from_numpy(x).long() for name, x in np.load(folder / f"parts/part-{number}.npz").items()}
        distributed = dgl.distributed.load_partition(str(folder / "toy.json"), number)[0]
        assert part["nodes"].shape[0] == int(distributed.ndata["inner_node"].sum()) == int((owner == number).sum())
        src = torch.cat((part["nodes"], part["ghosts"]))[part["indices"]]
        dst = part["nodes"].repeat_interleave(part["indptr"].diff())
        for s, d, e in zip(src.tolist(), dst.tolist(), part["edge_ids"].tolist()):
            etype = g.canonical_etypes[etypes[e]]
            assert (g.ntypes[ntypes[s]], g.ntypes[ntypes[d]]) == (etype[0], etype[2])
            ends = g.find_edges(edges[e], etype=etype)
            assert (int(ends[0]), int(ends[1])) == (int(nodes[s]), int(nodes[d]))
            found.append(e)
    assert sorted(found) == list(range(g.num_edges()))


def test_features(converted):
    g, node_ids, edge_ids, folder, description = converted
    is_homogeneous = len(g.ntypes) == 1
    for of_type, kinds, frames in (("nodes", node_ids, g.nodes), ("edges", edge_ids, g.edges)):
        for kind, original in kinds.items():
            for name, expected in frames[kind].data.items():
                expected = expected.to(torch.uint8) if expected.dtype is torch.bool else expected
                of = of_type if is_homogeneous else kind
                count = 0
                for part in range(len(description["parts"])):
                    store = open_features(folder / "parts", description, part, name, of)
                    ids = Selected(description, of).ids(folder / "parts", part)
                    assert store.dtype is expected.dtype and torch.equal(store.data, expected[original[ids]])
                    count += len(store)
                assert count == len(expected)


# ---- errors ------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def of_dgl(tmp_path_factory):
    folder = tmp_path_factory.mktemp("of_dgl")
    dgl.distributed.partition_graph(homogeneous(), "toy", 2, str(folder), part_method="random")
    return folder


@pytest.fixture
def copy(of_dgl, tmp_path):
    """A folder that a test may damage."""
    return shutil.copytree(of_dgl, tmp_path / "of_dgl")


def changed(folder, **values):
    description = json.loads((folder / "toy.json").read_text())
    for key, value in values.items():
        description.pop(key)
        description |= {} if value is None else {key: value}
    (folder / "toy.json").write_text(json.dumps(description))


def features(folder, file, **tensors):
    path = str(folder / file)
    dgl.data.utils.save_tensors(path, {**dgl.data.utils.load_tensors(path), **tensors})


def no_json(folder):
    (folder / "toy.json").write_text("{")


def of_other_parts(folder):
    shutil.copyfile(folder / "part1/graph.dgl", folder / "part0/graph.dgl")


def more_edges(folder):
    (first, (start, end)) = json.loads((folder / "toy.json").read_text())["edge_map"]["_N:_E:_N"]
    changed(folder, edge_map={"_N:_E:_N": [first, [start, end + 5]]})


def few_rows(folder):
    features(folder, "part0/node_feat.dgl", **{"_N/x": torch.ones(3)})


WRONG = {
    "no JSON": (lambda f: (f / "toy.json").unlink(), r"toy\.json is no file; dgl\.distributed\.partition_graph\("),
    "half a JSON": (no_json, r"toy\.json is not what dgl\.distributed\.partition_graph\(.* writes: Expecting"),
    "a key": (lambda f: changed(f, num_parts=None), "writes: it has no 'num_parts'"),
    "parts": (lambda f: changed(f, num_parts=3), "it has ranges of 2 parts, but num_parts is 3"),
    "no ranges": (lambda f: changed(f, node_map="map.npy"), "is not what"),
    "a file": (lambda f: (f / "part1/graph.dgl").unlink(), r"graph\.dgl does not exist; .*as part_graph of part 1"),
    "another part": (of_other_parts, r"part 0 has edges .* with ids from \d+ to 199; expected 0 to"),
    "edges": (more_edges, r"the parts have only 200 of 205 edges \('_N', '_E', '_N'\)"),
    "rows": (few_rows, r"part 0 has 3 rows of features _N/x of nodes; expected \d+"),
}


@pytest.mark.parametrize("case", WRONG)
def test_folders_that_are_wrong(copy, case):
    damage, message = WRONG[case]
    damage(copy)
    with pytest.raises((FileNotFoundError, ValueError), match=message):
        halfgnn.dgl.convert_partition(copy / "toy.json", out=copy / "parts")
    assert not (copy / "parts").exists()


@pytest.mark.parametrize(
    ("name", "rows", "message"),
    [
        (
            "_N/x",
            lambda x: x.bfloat16(),
            "has features _N/x of nodes: it has dtype torch.bfloat16, which .npy files do not have",
        ),
        (
            "_N/a.b",
            lambda x: x,
            r"has features _N/a\.b of nodes: name is 'a\.b'; expected letters, digits and underscores",
        ),
        ("other/x", lambda x: x, r"part 0 has \d+ rows of features other/x of nodes; expected 0"),
    ],
)
def test_features_that_are_refused(copy, name, rows, message):
    path = str(copy / "part0/node_feat.dgl")
    features(copy, "part0/node_feat.dgl", **{name: rows(dgl.data.utils.load_tensors(path)["_N/x"])})
    with pytest.raises(ValueError, match=message):
        halfgnn.dgl.convert_partition(copy / "toy.json", out=copy / "parts")
    assert not (copy / "parts").exists()


def test_features_that_parts_disagree_about(copy):
    path = str(copy / "part1/node_feat.dgl")
    features(copy, "part1/node_feat.dgl", **{"_N/x": dgl.data.utils.load_tensors(path)["_N/x"].double()})
    with pytest.raises(ValueError, match=r"part 1 has features .*float64.* of nodes; expected those of part 0"):
        halfgnn.dgl.convert_partition(copy / "toy.json", out=copy / "parts")


def test_a_folder_that_is_taken(of_dgl, tmp_path):
    ids = torch.zeros(1, dtype=torch.int64)
    partition(halfgnn.Graph.from_edges(ids, ids, num_src=1, num_dst=1), 1, out=tmp_path)
    with pytest.raises(FileExistsError, match="holds a partition; remove the folder, or choose another"):
        halfgnn.dgl.convert_partition(of_dgl / "toy.json", out=tmp_path)


def test_without_dgl(of_dgl, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "dgl", None)  # as if it were not installed
    with pytest.raises(ImportError, match=r"halfgnn\.dgl\.convert_partition\(\) needs DGL"):
        halfgnn.dgl.convert_partition(of_dgl / "toy.json", out=tmp_path)
