"""Promises in the documentation of Graph, HeteroGraph and Block: default sizes, what is pickled, what is refused."""

from __future__ import annotations

import copy
import pickle
import types

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from halfgnn import Graph, HeteroGraph
from halfgnn.heterograph import Block

SRC, DST = torch.tensor([2, 0, 1, 1]), torch.tensor([1, 2, 0, 6])
BIG = 2**31
WRITES, CITES = ("author", "writes", "paper"), ("paper", "cites", "paper")


def same_side(first, second):
    return all((a is None and b is None) or torch.equal(a, b) for a, b in zip(first, second))


# ---- sizes ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ({}, (7, 7)),
        ({"num_src": 3}, (3, 7)),
        ({"num_dst": 9}, (7, 9)),
        ({"num_src": 4, "num_dst": 8}, (4, 8)),
        ({"num_nodes": 8}, (8, 8)),
        ({"num_nodes": 8, "num_src": 3}, (3, 8)),
        ({"num_nodes": 8, "num_dst": 7}, (8, 7)),
    ],
    ids=str,
)
def test_sizes_of_an_edge_index(sizes, expected):
    """A number of nodes that is not given is one more than the largest id in either row, for any number of the other
    side."""
    g = Graph.from_edge_index(torch.stack([SRC, DST]), **sizes)
    assert (g.num_src, g.num_dst) == expected
    assert (g.out_degrees().numel(), g.in_degrees().numel()) == expected


def test_a_block_counts_all_types():
    relations = {
        WRITES: Graph.from_edges(SRC, DST, num_src=3, num_dst=7),
        CITES: Graph.from_edges(DST, DST, num_src=8, num_dst=7),
    }
    block = Block(HeteroGraph(relations, num_dst={"author": 2}))
    assert block.num_src_nodes() == 3 + 8 and block.num_dst_nodes() == 7 + 2
    assert (block.num_src_nodes("author"), block.num_src_nodes("paper")) == (3, 8)
    assert (block.num_dst_nodes("author"), block.num_dst_nodes("paper")) == (2, 7)
    assert (block.num_edges(), block.num_edges(CITES)) == (2 * len(SRC), len(SRC))
    of_one = Block(relations[WRITES])
    assert (of_one.num_src_nodes(), of_one.num_dst_nodes(), of_one.num_edges()) == (3, 7, len(SRC))


# ---- what is saved -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "read",
    [lambda g: pickle.loads(pickle.dumps(g)), copy.deepcopy, lambda g: g.int().long()],
    ids=["pickle", "deepcopy", "int"],
)
@pytest.mark.parametrize("given", ["csc", "csr"])
def test_both_sides_are_saved(given, read, monkeypatch):
    """An adjacency that has been sorted is not sorted again after pickling or conversion to another type."""
    g = Graph.from_edges(SRC, DST, num_src=3, num_dst=7)
    if given == "csr":
        g = Graph.from_csr(*g.csr(), num_dst=7)
    csc, csr = g.csc(), g.csr()
    other = read(g)
    fail = types.SimpleNamespace(default=lambda *args: pytest.fail("made anew"))
    monkeypatch.setattr(torch.ops.halfgnn, "transpose", fail, raising=False)
    assert same_side(other.csc(), csc) and same_side(other.csr(), csr)


def test_a_shallow_copy_is_the_graph():
    g = Graph.from_edges(SRC, DST)
    whole = HeteroGraph({CITES: g})
    assert copy.copy(g) is g and copy.copy(whole) is whole


# ---- what is refused -----------------------------------------------------------------------------------------------------------


def numbers(count, value=0):
    """Without allocating that memory."""
    return torch.full((1,), value).expand(count)


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("num_src", lambda: Graph(BIG, 1, csc=(numbers(2), numbers(0), None))),
        ("num_dst", lambda: Graph(1, BIG, csr=(numbers(2), numbers(0), None))),
        ("num_edges", lambda: Graph(1, 1, csc=(numbers(2), numbers(BIG), None))),
    ],
    ids=["num_src", "num_dst", "num_edges"],
)
def test_what_is_too_large_for_int32(name, make):
    with pytest.raises(ValueError, match=f"^{name} is {BIG}, too large for int32"):
        make().int()
    with pytest.raises(ValueError, match=f"^{name} is {BIG}, too large for int32"):
        HeteroGraph({CITES: make()}).int()


def test_as_much_as_int32_holds():
    g = Graph(BIG - 1, 1, csc=(numbers(2), numbers(0), None)).int()
    assert g.idtype == torch.int32 and g.num_src == BIG - 1


@pytest.mark.parametrize("name", ["num_src", "num_dst"])
def test_stacks_that_are_too_large_for_int32(name):
    """Each relation fits, but their stack does not. Meta tensors take no memory and are never compacted."""
    half = BIG // 2
    empty = torch.empty(1, dtype=torch.int64, device="meta")
    if name == "num_src":
        g = Graph(half, 1, csc=(empty.expand(2), empty, None))
    else:
        g = Graph(1, half, csc=(torch.empty(half + 1, dtype=torch.int64, device="meta"), empty, None))
    relations = {WRITES: g, ("venue", "shows", "paper"): g}
    assert HeteroGraph(relations).int().idtype == torch.int32
    whole = HeteroGraph(relations)
    whole.stack()
    with pytest.raises(ValueError, match=f"{name} is {BIG}, too large for int32"):
        whole.int()


@pytest.mark.parametrize("build", [Graph.from_csc, Graph.from_csr])
@pytest.mark.parametrize(
    ("edge_ids", "message"),
    [
        ([0, 0, 2], r"edge_ids misses 1; expected a permutation of 0\.\.2"),
        ([1, 2, 2], r"edge_ids misses 0; expected a permutation of 0\.\.2"),
        ([1, 0, 1], r"edge_ids misses 2; expected a permutation of 0\.\.2"),
        ([0, 1, 3], r"edge_ids holds 3; expected indices in \[0, 3\)"),
        ([-1, 1, 0], r"edge_ids holds -1; expected indices in \[0, 3\)"),
    ],
    ids=str,
)
def test_edge_ids_that_are_no_permutation(build, edge_ids, message):
    with pytest.raises(ValueError, match=message):
        build(torch.tensor([0, 1, 3]), torch.tensor([0, 1, 0]), torch.tensor(edge_ids))


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 0, 1]], ids=str)
def test_edge_ids_that_are_one(order):
    g = Graph.from_csc(torch.tensor([0, 1, 3]), torch.tensor([4, 5, 6]), torch.tensor(order))
    assert torch.equal(g.edges()[0][torch.tensor(order)], torch.tensor([4, 5, 6]))


def fake(count, device):
    with FakeTensorMode():
        return torch.empty(count, dtype=torch.int64, device=device)


@pytest.mark.parametrize(("count", "device"), [(BIG, "cuda"), (BIG, "cpu")])
def test_more_edges_than_an_int_counts(count, device):
    """Fake tensors need neither memory nor a GPU."""
    ends = fake(count, device)
    g = Graph.from_edges(ends, ends, num_src=3, num_dst=3, check=False)
    assert g.csr().indices.shape == (count,)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda ids: Graph.from_edges(ids, ids.to_sparse()), TypeError, "^dst has layout torch.sparse_coo; expected"),
        (lambda ids: Graph.from_edges(ids.to("meta"), ids.to("meta")), ValueError, "^src is on meta, .* check=False"),
        (
            lambda ids: Graph.from_edges(ids.to("meta"), ids.to("meta"), num_src=3, num_dst=3),
            ValueError,
            "^src is on meta, .* check=False",
        ),
        (lambda ids: Graph.from_edge_index(torch.stack([ids, ids]).to("meta")), ValueError, "^edge_index is on meta"),
        (lambda ids: Graph.from_csc(ids.to("meta"), ids.to("meta")), ValueError, "^indices is on meta"),
        (lambda ids: Graph.from_csc(ids.to("meta"), ids.to("meta"), num_src=3), ValueError, "^indptr is on meta"),
        (lambda ids: Graph.from_edge_index(torch.stack([ids, ids]), num_nodes=2**60), ValueError, "^num_nodes is 1152"),
        (lambda ids: Graph.from_edge_index(torch.stack([ids, ids]), num_nodes=-1), ValueError, "^num_nodes is -1"),
    ],
)
def test_refused_ids(call, error, message):
    with pytest.raises(error, match=message):
        call(torch.tensor([0, 1, 2]))
