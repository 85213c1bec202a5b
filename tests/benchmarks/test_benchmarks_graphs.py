"""The graphs of the benchmarks: unchanged edges, R-MAT's distribution, the estimate of reuse, data sets by name."""

import hashlib
import importlib.machinery
import os
import sys
import types
from collections import OrderedDict
from pathlib import Path

import numpy
import pytest
import torch

from benchmarks import cli, facts, graphs, rows, table
from examples import datasets

ROOT = Path(__file__).resolve().parents[2]
PLANETOID = Path(os.environ.get("HALFGNN_DATA") or ROOT.parent / "shared" / "data" / "planetoid")
needs_planetoid = pytest.mark.skipif(
    datasets.planetoid_folder("cora", PLANETOID) is None, reason="no Planetoid folder in HALFGNN_DATA"
)


def edges(graph):
    return sorted(zip(graph.src.tolist(), graph.dst.tolist()))


# ---- synthetic -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name,digest",
    [
        ("tiny", "9adf78a0945436e4"),
        ("tiny-communities", "7a4e57b3954c68b5"),
        ("tiny-hub", "6bc02a63218a8000"),
        ("arxiv", "67ed0230071f30e4"),
        ("powerlaw-20k", "8740160a4f593100"),
        ("arxiv-size", "4584cf689a94bd8c"),
        ("arxiv-size-sym", "383aafed05a235c0"),
        ("tiny-rmat", "7b35f4b3a532e6c4"),
        ("cora-rmat", "b2df9331af4e2741"),
    ],
)
def test_edges_are_those_that_rows_were_measured_on(name, digest):
    made = graphs.synthetic(name, "insertion", torch.int32)
    found = hashlib.sha256(made.src.numpy().tobytes() + made.dst.numpy().tobytes())
    assert found.hexdigest()[:16] == digest


def test_guided_search_is_a_search():
    recipe = graphs.Recipe(1000, 0, 1.4, 1.4, communities=5)  # many light nodes in a part
    nodes = graphs._Nodes(recipe, recipe.src_skew, torch.Generator().manual_seed(0))
    weight = torch.cat([nodes.uniform(20_000) * nodes.below[-1], nodes.below, nodes.below * (1 - 1e-15)])
    expected = (torch.searchsorted(nodes.below, weight, right=True) - 1).clamp(0, 999)
    assert torch.equal(nodes._at(weight).long(), expected)


def test_chunks_make_no_difference(monkeypatch):
    whole = graphs.synthetic("tiny-communities", "insertion", torch.int64)
    monkeypatch.setattr(graphs, "CHUNK", 97)
    assert edges(graphs.synthetic("tiny-communities", "insertion", torch.int64)) == edges(whole)


def _rmat_before_names(monkeypatch, recipe, seed=0):
    """Its edges, with the positions of nodes in the square as ids."""
    monkeypatch.setattr(graphs, "_names", lambda count, generator: torch.arange(count).int())
    return graphs.make(recipe, "x", "insertion", torch.int64, seed)


def test_rmat_has_its_quadrants_at_every_level(monkeypatch):
    quadrants = (0.5, 0.25, 0.15, 0.1)
    made = _rmat_before_names(monkeypatch, graphs.Rmat(256, 200_000, quadrants=quadrants))
    for level in range(8):  # more than the six that are drawn at a time
        quadrant = 2 * (made.src >> level & 1) + (made.dst >> level & 1)
        share = torch.bincount(quadrant, minlength=4) / made.num_edges
        torch.testing.assert_close(share, torch.tensor(quadrants), atol=0.005, rtol=0)


def test_rmat_of_any_size_is_cut_off_from_that_of_a_power_of_two(monkeypatch):
    whole, cut = (_rmat_before_names(monkeypatch, graphs.Rmat(n, 300_000), seed=n) for n in (64, 40))
    inside = (whole.src < 40) & (whole.dst < 40)
    expected, found = (torch.bincount(x, minlength=40) / x.numel() for x in (whole.src[inside], cut.src))
    torch.testing.assert_close(found, expected, atol=0.003, rtol=0)
    assert cut.num_edges == 300_000 and max(cut.src.max(), cut.dst.max()) == 39


def test_rmat_is_seeded_symmetric_and_its_names_are_dealt(monkeypatch):
    recipe = graphs.RECIPES["cora-rmat"]
    made, again = (graphs.make(recipe, "x", "insertion", torch.int64) for _ in range(2))
    assert edges(made) == edges(again) == sorted(zip(made.dst.tolist(), made.src.tolist()))
    assert edges(made) != edges(graphs.make(recipe, "x", "insertion", torch.int64, seed=1))
    assert int(torch.bincount(made.src).argmax()) != 0
    assert int(torch.bincount(_rmat_before_names(monkeypatch, recipe).src).argmax()) == 0


@pytest.mark.parametrize("name", ["cora", "arxiv", "proteins", "reddit", "products"])
def test_both_kinds_have_the_size_of_their_namesake(name):
    plain, rmat = graphs.RECIPES[f"{name}-size"], graphs.RECIPES[f"{name}-rmat"]
    assert (plain.num_nodes, plain.num_edges, plain.symmetric) == (rmat.num_nodes, rmat.num_edges, rmat.symmetric)
    assert plain.communities > 1 and 2 ** (rmat.levels - 1) < rmat.num_nodes <= 2**rmat.levels


# ---- facts -----------------------------------------------------------------------------------------------------------------------


def lru_share(trace, size):
    """The share of accesses that find their row in an LRU cache of `size` rows."""
    held, found = OrderedDict(), 0
    for row in trace:
        found += row in held
        held[row] = True
        held.move_to_end(row)
        if len(held) > size:
            held.popitem(last=False)
    return found / len(trace)


@pytest.mark.parametrize("name", ["tiny", "tiny-hub", "tiny-rmat", "cora-size", "cora-rmat"])
def test_reuse_is_that_of_an_lru_cache(name):
    graph = graphs.synthetic(name, "insertion", torch.int64)
    trace = graph.halfgnn.csc().indices.tolist()
    sizes = (5, 20, 50, 100, 1000, 5000)
    expected = torch.tensor([lru_share(trace, size) for size in sizes])
    torch.testing.assert_close(torch.tensor(facts._reuse(*facts._gaps(graph), sizes)), expected, atol=0.02, rtol=0)


def test_reuse_of_a_sample_is_about_that_of_all(monkeypatch):
    graph = graphs.synthetic("cora-rmat", "insertion", torch.int64)
    whole = facts._reuse(*facts._gaps(graph), (50, 500))
    monkeypatch.setattr(facts, "SAMPLE", 2000)
    assert facts._gaps(graph)[1] <= 2000
    torch.testing.assert_close(facts._reuse(*facts._gaps(graph), (50, 500)), whole, atol=0.03, rtol=0)


def test_facts_of_a_graph_that_can_be_counted_by_hand():
    src, dst = torch.tensor([0, 1, 0, 0, 2, 1, 0]), torch.tensor([0, 0, 1, 1, 1, 2, 3])  # rows 0 1, 0 0 2, 1, 0
    found = facts.of(graphs.BenchGraph("x", "insertion", src, dst, 4))
    assert (found.num_nodes, found.num_edges, found.repeated) == (4, 7, round(1 / 7, 4))
    assert (found.in_p0, found.in_p50, found.in_max, found.out_p50, found.out_max) == (1, 1, 3, 1, 4)
    assert (found.gathers, found.top_share) == (2.33, round(4 / 7, 4))
    assert found.near_share == found.far_share == round(4 / 7, 4)  # all but the first of each source


def test_kept_facts_are_replaced_by_newer_ones_and_shown(tmp_path, capsys):
    for _ in range(2):
        assert cli.main(["graphs", "tiny-hub", "tiny", "--out", str(tmp_path)]) == 0
    kept = facts.read(tmp_path / facts.KEPT)
    assert [f.graph for f in kept] == ["tiny (synthetic)", "tiny-hub (synthetic)"]
    assert kept[0] == facts.of(graphs.synthetic("tiny", "insertion", torch.int64))
    text = table.replaced("<!-- benchmarks: begin graphs -->\n<!-- benchmarks: end graphs -->", tmp_path)
    assert "| tiny (synthetic) | 200 | 1,500 | 5.3% | 3 / 6 / 14 / 36 | 56 | 7.50 | 7% | 87% | 87% |" in text
    assert capsys.readouterr().out.count("tiny (synthetic): 200 nodes, 1,500 edges") == 2


KEPT = rows.RESULTS / facts.KEPT  # test_benchmarks.py compares the document with it


def test_every_generator_has_kept_facts():
    assert {f.graph for f in facts.read(KEPT)} >= {f"{name} (synthetic)" for name in graphs.RECIPES}


def _kept(name):
    label = f"{name} (synthetic)" if name in graphs.RECIPES else name
    return next(vars(f) for f in facts.read(KEPT) if f.graph == label)


@pytest.mark.parametrize("name", [name for name, recipe in graphs.RECIPES.items() if recipe.num_edges < 2 * 10**6])
def test_kept_facts_are_those_of_the_generators(name):
    assert vars(facts.of(graphs.synthetic(name, "insertion", torch.int32))) == pytest.approx(_kept(name), abs=2e-4)


# ---- data sets -------------------------------------------------------------------------------------------------------------------


@needs_planetoid
def test_planetoid_by_name(monkeypatch, tmp_path):
    pytest.importorskip("dgl")
    monkeypatch.setenv("HALFGNN_DATA", str(PLANETOID))
    made = graphs.named("cora", "insertion", torch.int32)
    assert (made.label, made.num_nodes, made.num_edges) == ("cora", 2708, 10556)
    assert not (made.src == made.dst).any() and made.src.dtype == torch.int32
    assert vars(facts.of(made)) == pytest.approx(_kept("cora"), abs=2e-4)
    assert cli.main(["spmm", "--quick", "--graphs", "cora", "--dims", "16", "--heads", "1", "--threads", "1", "--baselines",
                     "--out", str(tmp_path)]) == 0  # fmt: skip
    assert {row.graph for row in rows.read(tmp_path / "cpu.csv")} == {"cora"}


def _fake_ogb(monkeypatch, tmp_path, read):
    package, module = types.ModuleType("ogb"), types.ModuleType("ogb.nodeproppred")
    package.__spec__ = importlib.machinery.ModuleSpec("ogb", None, is_package=True)
    module.NodePropPredDataset = read
    monkeypatch.setitem(sys.modules, "ogb", package)
    monkeypatch.setitem(sys.modules, "ogb.nodeproppred", module)
    monkeypatch.setenv("HALFGNN_DATA", str(tmp_path))


def test_ogb_is_read_by_its_package(monkeypatch, tmp_path):
    asked = []

    def read(name, root):
        asked.append((name, root))
        return [({"edge_index": numpy.array([[2, 0, 1], [0, 0, 2]]), "num_nodes": 4}, None)]

    _fake_ogb(monkeypatch, tmp_path, read)
    made = graphs.named("ogbn-products", "sorted", torch.int64)
    assert (made.label, made.num_nodes, edges(made)) == ("ogbn-products", 4, [(1, 2), (2, 0)])
    assert made.dst.tolist() == [0, 2] and asked == [("ogbn-products", str(tmp_path))]


def test_data_that_cannot_be_had_is_an_error_with_its_reason(monkeypatch, tmp_path):
    def read(name, root):
        raise OSError("no route to the data")

    _fake_ogb(monkeypatch, tmp_path, read)
    for command in (["spmm", "--quick", "--graphs", "ogbn-proteins"], ["graphs", "ogbn-proteins"]):
        with pytest.raises(SystemExit, match=r"'ogbn-proteins' could not be loaded \(OSError: no route to the data\)"):
            cli.main(command)
    with pytest.raises(graphs.NoData):
        graphs.named("ogbn-proteins", "insertion", torch.int64)


@pytest.mark.parametrize("make", [graphs.named, graphs.synthetic, graphs.real])
def test_names_that_nothing_has(make):
    with pytest.raises(ValueError, match="graph is 'corra'; expected one of "):
        make("corra", "insertion", torch.int64)
