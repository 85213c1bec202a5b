"""DistHeteroGraph: several processes compute on typed nodes what one does."""

import json

import numpy as np
import pytest
import torch

import halfgnn
from halfgnn.distributed import Streamed, cut_features, partition
from tests import support, support_processes
from tests.distributed import support_heterograph as processes
from tests.distributed.support_distributed import free_port
from tests.distributed.support_heterograph import EDGES, NODES, features, heterograph, labels

pytestmark = pytest.mark.skipif(support.SIMULATED, reason="about processes")


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("parts")
    processes.write_parts(folder, 2)
    return folder


@pytest.fixture(scope="module")
def found(parts):
    support_processes.start(processes.run, (free_port(), parts, 2), 2)
    return [torch.load(parts / f"result-{rank}.pt") for rank in range(2)]


def whole(found, ntype, rows):
    """The rows of each process's nodes of a type, in the order of the graph."""
    nodes, rows = torch.cat([part["rows"]["nodes"][ntype] for part in found]), torch.cat(rows)
    out = torch.empty_like(rows)
    out[nodes] = rows
    return out


@pytest.mark.parametrize("etype", EDGES, ids=lambda etype: etype[1])
def test_rows(found, etype):
    x, (src, dst) = features(), heterograph()[etype].edges()
    for part in (part["rows"] for part in found):
        ids, edge_index = part["edge_ids"][etype], part["edge_index"][etype]
        assert torch.equal(part["rows"][etype[0]][edge_index[0]], x[etype[0]][src.long()[ids]])
        assert torch.equal(part["nodes"][etype[2]][edge_index[1]], dst.long()[ids])
        assert torch.equal(part["graph"][etype].long(), edge_index)
        assert torch.equal(part["numbers"][etype], ids.double())
    seen = torch.cat([part["rows"]["edge_ids"][etype] for part in found])
    assert sorted(seen.tolist()) == list(range(EDGES[etype]))


def test_one_message_has_all_types(found):
    for part, other in ((part["rows"] for part in order) for order in (found, found[::-1])):
        assert torch.equal(part["one type"]["author"], part["rows"]["author"].bfloat16())
        width = {ntype: x.shape[1] * 4 for ntype, x in features().items()}
        assert part["bytes"] == sum(count * width[ntype] for ntype, count in other["ghosts"].items())


@pytest.mark.parametrize("etype", EDGES, ids=lambda etype: etype[1])
def test_degrees(found, etype):
    src, dst = heterograph()[etype].edges()
    for name, ids, ntype in (("in", dst, etype[2]), ("out", src, etype[0])):
        actual = whole(found, ntype, [part["rows"][name][etype] for part in found])
        assert torch.equal(actual, torch.bincount(ids.long(), minlength=NODES[ntype]))


def test_gradients(found):
    x = features()["paper"].double().requires_grad_()
    of = heterograph()["paper", "cites", "paper"].edges()[0].long()
    (first,) = torch.autograd.grad((x**3)[of].sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.pow(2).sum(), x)
    for name, expected in (("first", first), ("second", second)):
        actual = whole(found, "paper", [part["gradients"][name] for part in found])
        torch.testing.assert_close(actual, expected.detach())
    assert not any(part["gradients"]["none"].any() for part in found)


@pytest.mark.parametrize("kind", ["dgl", "pyg"])
def test_training(found, kind):
    if kind == "pyg":
        pytest.importorskip("torch_geometric")
    expected = processes.train(heterograph(), features(), labels(), kind)
    assert expected[-1] < 0.95 * expected[0]
    for part in found:
        assert part[kind] == pytest.approx(expected, rel=1e-4)


def test_errors(found):
    names = list(NODES)
    for rank, part in enumerate(found):
        texts = [
            "x is a Tensor; expected {node type: rows}",
            f"x has no type; expected one or more of {names}",
            f"x has ['book']; expected one or more of {names}",
            "x['paper'] has shape",
            "processes 0 and 1 have different values of arguments: \"x['author']: (rows, 6) of torch.float32",
            "holds a heterograph, which DistHeteroGraph.load reads",
        ]
        for text, error in zip(texts, part["errors"], strict=True):
            assert text in error, rank


@pytest.mark.parametrize("method", ["communities", "metis"])
def test_partition(tmp_path, method):
    if method == "metis":
        pytest.importorskip("pymetis")
    description = partition(heterograph(), 3, out=tmp_path, method=method)
    assert json.loads((tmp_path / "partition.json").read_text()) == description
    assert description["node_types"] == [[ntype, count] for ntype, count in NODES.items()]
    assert description["num_edges"] == sum(EDGES.values())
    numbers = [np.load(tmp_path / f"part-{part}.npz")["edge_ids"] for part in range(3)]
    assert sorted(np.concatenate(numbers)) == list(range(sum(EDGES.values())))


def test_wrong_types(tmp_path):
    owner = {ntype: torch.zeros(count, dtype=torch.int64) for ntype, count in NODES.items()}
    for method, error in (
        ({"paper": owner["paper"]}, r"method has \['paper'\]; expected all node types, \['author', 'paper', 'venue'\]"),
        ({**owner, "venue": owner["paper"]}, r"method\['venue'\] has shape \(40,\); expected \(7,\)"),
    ):
        with pytest.raises(ValueError, match=error):
            partition(heterograph(), 1, out=tmp_path, method=method)
    bipartite = halfgnn.Graph.from_edges(torch.tensor([0]), torch.tensor([0]), num_src=2, num_dst=1)
    with pytest.raises(ValueError, match="graph has 2 sources and 1 destinations of type 'a'; expected the same nodes"):
        partition(halfgnn.HeteroGraph({("a", "r", "a"): bipartite}), 1, out=tmp_path)
    partition(heterograph(), 2, out=tmp_path)
    for of, error in (
        (None, "of is None; expected a node type or an edge type of the partition: 'paper', 'author', 'venue', "),
        ("nodes", "of is 'nodes'; expected a node type"),
        (("paper", "cites", "venue"), r"of is \('paper', 'cites', 'venue'\); expected a node type"),
    ):
        with pytest.raises(ValueError, match=error):
            cut_features(tmp_path, "x", torch.ones(40), of=of)
    with pytest.raises(ValueError, match=r"data has shape \(40,\); expected 200 rows, one per edge"):
        cut_features(tmp_path, "x", torch.ones(40), of=["paper", "cites", "paper"])
    with pytest.raises(ValueError, match="holds a heterograph; expected a graph of one node type and one edge type"):
        Streamed(tmp_path)
