"""The largest degrees that a graph knows: where they are from, what carries them, and what they are not asked of."""

import copy
import io
import pickle
import re
from pathlib import Path

import pytest
import torch

import halfgnn
from halfgnn import Graph, HeteroGraph
from halfgnn.dataloading import Prefetcher
from halfgnn.graph import LONG_ROW_EDGES

# In-degrees 3, 1, 0; out-degrees 1, 1, 2, 0.
SRC, DST = torch.tensor([0, 1, 2, 2]), torch.tensor([0, 0, 0, 1])
SIZES = {"num_src": 4, "num_dst": 3}


def bounds(g):
    """What is known, without finding more."""
    return g._max_in_degree, g._max_out_degree


def make(**hints):
    return Graph.from_edges(SRC, DST, **SIZES, **hints)


def on_meta(g):
    """Stands for a graph on a device that is not to be asked."""
    return g.to("meta")


# ---- constructors ----------------------------------------------------------------------------------------------------------------


def test_a_graph_on_the_cpu_finds_its_largest_degrees():
    g = make()
    assert bounds(g) == (None, None)  # nothing is read before somebody asks
    assert (g.max_in_degree, g.max_out_degree) == (3, 2)
    assert bounds(g) == (3, 2) and g.short_csc and g.short_csr


@pytest.mark.parametrize("num_dst", [0, 2])
def test_graphs_without_edges(num_dst):
    none = torch.zeros(0, dtype=torch.int32)
    g = Graph.from_edges(none, none, num_src=0, num_dst=num_dst)
    assert (g.max_in_degree, g.max_out_degree) == (0, 0)


def test_every_constructor_takes_hints():
    hints = {"max_in_degree": 7, "max_out_degree": 600}
    csc, csr = make().csc(), make().csr()
    made = [
        make(**hints),
        Graph.from_edges(SRC, DST, sort=True, **hints)[0],
        Graph.from_edges(SRC, DST, is_sorted=True, **hints),
        Graph.from_edge_index(torch.stack([SRC, DST]), **hints),
        Graph.from_edge_index(torch.stack([SRC, DST]), sort=True, **hints)[0],
        Graph.from_csc(*csc, **hints),
        Graph.from_csr(*csr, **hints),
    ]
    for g in made:
        assert bounds(g) == (7, 600) == (g.max_in_degree, g.max_out_degree)  # taken at their word
        assert g.short_csc and not g.short_csr


def test_a_graph_of_dgl_takes_hints_at_any_time():
    dgl = pytest.importorskip("dgl")
    of_dgl = dgl.graph((SRC, DST))
    g = Graph.from_dgl(of_dgl, max_in_degree=7)
    assert bounds(g) == (7, None) and g.short_csc
    assert Graph.from_dgl(of_dgl, max_out_degree=600) is g and bounds(g) == (7, 600)
    assert Graph.from_dgl(of_dgl, "_E", max_in_degree=8) is g and bounds(g) == (8, 600)
    assert Graph.from_dgl(of_dgl) is g and bounds(g) == (8, 600)
    with pytest.raises(ValueError, match="max_in_degree"):
        Graph.from_dgl(of_dgl, max_in_degree=-1)


@pytest.mark.parametrize("name", ["max_in_degree", "max_out_degree"])
@pytest.mark.parametrize("value,error", [(-1, ValueError), (3.0, TypeError), (True, TypeError), ("3", TypeError)])
def test_wrong_hints(name, value, error):
    csc, csr = make().csc(), make().csr()
    for construct in (
        make,
        lambda **hints: Graph.from_edge_index(torch.stack([SRC, DST]), **hints),
        lambda **hints: Graph.from_csc(*csc, **hints),
        lambda **hints: Graph.from_csr(*csr, **hints),
    ):
        with pytest.raises(error, match=name):
            construct(**{name: value})


def test_the_kernels_mean_the_same_rows():
    text = (Path(halfgnn.__file__).parents[1] / "csrc/cuda/kernels/core/rows.cuh").read_text()
    assert int(re.search(r"kLog2Piece = (\d+),", text)[1]) == LONG_ROW_EDGES.bit_length() - 1
    assert LONG_ROW_EDGES & (LONG_ROW_EDGES - 1) == 0


# ---- what carries them -----------------------------------------------------------------------------------------------------------


def test_a_device_that_must_not_be_asked_is_not():
    g = Graph(**SIZES, csc=(*(x.to("meta") for x in make().csc()[:2]), None))
    for other in (g, g.int(), g.reverse()):
        assert (other.max_in_degree, other.max_out_degree) == (None, None)
        assert not other.short_csc and not other.short_csr


def test_moving_finds_them_of_the_sides_that_exist():
    g = make()
    assert bounds(on_meta(g)) == (3, None)  # the other side is made on the device
    g.csr()
    assert bounds(on_meta(g)) == (3, 2) == bounds(g)
    assert bounds(on_meta(make(max_in_degree=9))) == (9, None)
    assert bounds(on_meta(Graph.from_csr(*make().csr()))) == (None, 2)


def test_every_other_form_has_them():
    g = make(max_in_degree=5, max_out_degree=600)
    saved = io.BytesIO()
    torch.save(g, saved)
    saved.seek(0)
    for other in (
        g.int(),
        g.int().long(),
        on_meta(g),
        pickle.loads(pickle.dumps(g)),
        copy.copy(g),
        copy.deepcopy(g),
        torch.load(saved, weights_only=True),
    ):
        assert bounds(other) == (5, 600) and other.short_csc and not other.short_csr


@pytest.mark.skipif(not torch.cuda.is_available(), reason="page-locked memory needs CUDA")
def test_page_locked_graphs_have_them():
    assert bounds(make(max_in_degree=5, max_out_degree=600).pin_memory()) == (5, 600)


def test_reverse_swaps_them():
    g = make(max_in_degree=5, max_out_degree=600)
    turned = g.reverse()
    assert bounds(turned) == (600, 5)
    assert turned.short_csr and not turned.short_csc
    assert (make().reverse().max_in_degree, make().reverse().max_out_degree) == (2, 3)


def test_graphs_saved_without_them_can_be_loaded():
    _, state = make(max_in_degree=5).__reduce__()
    assert bounds(Graph(*state[:4])) == (None, None)


# ---- several relations -----------------------------------------------------------------------------------------------------------


def relations(*hints):
    """A HeteroGraph with a relation for each pair of hints, and one without edges."""
    graphs = {("a", f"r{i}", "b"): make(max_in_degree=x, max_out_degree=y) for i, (x, y) in enumerate(hints)}
    none = torch.zeros(0, dtype=torch.int64)
    graphs["a", "empty", "b"] = Graph.from_edges(none, none, **SIZES, max_in_degree=0, max_out_degree=0)
    return HeteroGraph(graphs)


def test_a_stack_has_the_largest_of_its_relations():
    assert bounds(relations((5, 9), (7, 8)).stack().graph) == (7, 9)
    assert bounds(relations((7, 8), (5, 9)).stack().graph) == (7, 9)


@pytest.mark.parametrize("hints", [((5, 9), (None, 8)), ((None, 9), (5, 8))])
def test_a_stack_does_not_know_what_a_relation_does_not(hints):
    assert bounds(relations(*hints).stack().graph) == (None, 9)


def test_relations_of_a_stack_that_moved():
    h = relations((5, 9), (7, 8))
    h.stack()
    moved = on_meta(h)
    assert bounds(moved.stack().graph) == (7, 9)
    assert bounds(moved["r0"]) == (7, 9)  # all that the stack knows
    assert bounds(pickle.loads(pickle.dumps(h))["r0"]) == (5, 9)


def test_a_stack_finds_its_own_when_it_moves():
    h = HeteroGraph({("a", "r", "b"): make(), ("b", "s", "b"): Graph.from_edges(DST, DST, num_src=3, num_dst=3)})
    h.stack().graph.csr()
    assert bounds(on_meta(h).stack().graph) == (3, 3)


# ---- mini-batches ----------------------------------------------------------------------------------------------------------------


def test_the_prefetcher_finds_them_on_the_cpu():
    dgl = pytest.importorskip("dgl")
    g = dgl.graph((SRC, DST), num_nodes=4)
    block = dgl.to_block(g, torch.tensor([0, 1]))
    (moved,) = list(Prefetcher([block], "cpu", convert=True))
    assert bounds(moved.graph) == (3, 2)
