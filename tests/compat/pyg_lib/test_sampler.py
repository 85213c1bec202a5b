"""halfgnn.compat.pyg_lib.sampler: hops as pyg-lib defines them, and what it refuses."""

import pytest
import torch

from halfgnn.compat.pyg_lib import ops, sampler

GENERATOR = torch.Generator().manual_seed(0)
CITES, WRITES = ("paper", "cites", "paper"), ("author", "writes", "paper")


def random_csr(num_rows=40, num_cols=40, num_edges=300, dtype=torch.int64):
    row = torch.randint(num_rows, (num_edges,), generator=GENERATOR).sort().values
    rowptr = torch.zeros(num_rows + 1, dtype=dtype)
    rowptr[1:] = row.bincount(minlength=num_rows).cumsum(0)
    return rowptr, torch.randint(num_cols, (num_edges,), generator=GENERATOR).to(dtype)


def by_hand(rowptr, col, seeds, hops, allowed=lambda tree, edge: True, disjoint=False):
    """All neighbours of `hops` hops: (row, col, node, edge, nodes per hop, edges per hop)."""
    nodes = [(tree if disjoint else 0, int(seed)) for tree, seed in enumerate(seeds)]
    rows, cols, edges, num_nodes, num_edges = [], [], [], [len(nodes)], []
    begin = 0
    for _ in range(hops):
        end, before = len(nodes), len(edges)
        for row in range(begin, end):
            tree, node = nodes[row]
            for edge in range(int(rowptr[node]), int(rowptr[node + 1])):
                if not allowed(tree, edge):
                    continue
                other = tree, int(col[edge])
                if other not in nodes:
                    nodes.append(other)
                rows.append(row), cols.append(nodes.index(other)), edges.append(edge)
        begin = end
        num_nodes.append(len(nodes) - end), num_edges.append(len(edges) - before)
    nodes = [list(node) for node in nodes] if disjoint else [node for _, node in nodes]
    return rows, cols, nodes, edges, num_nodes, num_edges


def as_lists(out):
    return tuple(part.tolist() if torch.is_tensor(part) else part for part in out)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("disjoint", [False, True])
def test_all_neighbours(dtype, disjoint):
    rowptr, col = random_csr(dtype=dtype)
    seeds = torch.tensor([5, 17, 0], dtype=dtype)
    out = sampler.neighbor_sample(rowptr, col, seeds, [-1, -1], disjoint=disjoint)
    assert as_lists(out) == by_hand(rowptr, col, seeds, 2, disjoint=disjoint)
    assert all(part.dtype == dtype for part in out[:4])
    row, other, *_, edge, _, _ = sampler.neighbor_sample(
        rowptr, col, seeds, [-1, -1], csc=True, disjoint=disjoint, return_edge_id=False
    )
    assert row.equal(out[1]) and other.equal(out[0]) and edge is None


@pytest.mark.parametrize("replace", [False, True])
def test_sampled_neighbours_are_edges(replace):
    rowptr, col = random_csr()
    seeds = torch.tensor([3, 9])
    row, other, node, edge, num_nodes, num_edges = sampler.neighbor_sample(rowptr, col, seeds, [4, 2], replace=replace)
    assert node[other].equal(col[edge]) and (rowptr[node[row]] <= edge).all() and (edge < rowptr[node[row] + 1]).all()
    assert len(node) == sum(num_nodes) == len(node.unique()) and len(edge) == sum(num_edges)
    degree = rowptr.diff()[node[: sum(num_nodes[:2])]]
    wanted = torch.tensor([4] * num_nodes[0] + [2] * num_nodes[1])
    wanted = torch.where(degree > 0, wanted, 0) if replace else torch.minimum(wanted, degree)
    assert row.bincount(minlength=len(wanted)).equal(wanted)


def test_one_generator_repeats_a_sample():
    rowptr, col = random_csr()
    samples = []
    for _ in range(2):
        torch.manual_seed(12)
        samples.append([sampler.neighbor_sample(rowptr, col, torch.arange(9), [2])[3].tolist() for _ in range(2)])
    assert samples[0] == samples[1] and samples[0][0] != samples[0][1]


def test_edges_of_weight_zero_are_never_sampled():
    rowptr, col = random_csr()
    weight = torch.rand(len(col), generator=GENERATOR)
    weight[::2] = 0
    for fanout in (1, 5, -1):
        edge = sampler.neighbor_sample(rowptr, col, torch.arange(40), [fanout], edge_weight=weight)[3]
        assert (edge % 2 == 1).all() and len(edge) > 0


@pytest.mark.parametrize("of_edges", [False, True])
def test_nothing_later_than_the_seed_is_sampled(of_edges):
    rowptr, col = random_csr()
    node_time = torch.randint(20, (40,), generator=GENERATOR)
    for row in range(40):  # neighbours in the order of their times
        edges = slice(int(rowptr[row]), int(rowptr[row + 1]))
        col[edges] = col[edges][node_time[col[edges]].argsort()]
    times = node_time[col] if of_edges else node_time
    options = {"edge_time": times, "seed_time": node_time[:7]} if of_edges else {"node_time": times}
    seeds = torch.arange(7)
    out = sampler.neighbor_sample(rowptr, col, seeds, [-1, -1], disjoint=True, **options)
    allowed = lambda tree, edge: node_time[col[edge]] <= node_time[tree]  # noqa: E731
    assert as_lists(out) == by_hand(rowptr, col, seeds, 2, allowed, disjoint=True)
    last = sampler.neighbor_sample(rowptr, col, seeds, [2], disjoint=True, temporal_strategy="last", **options)
    for tree in range(7):
        all_edges = [edge for edge in range(int(rowptr[tree]), int(rowptr[tree + 1])) if allowed(tree, edge)]
        assert last[3][last[0] == tree].tolist() == all_edges[-2:]


def test_several_types():
    papers, writers = random_csr(), random_csr(num_cols=15, num_edges=90)  # CSC: papers by rows
    seeds = {"paper": torch.tensor([8, 2])}
    rows = {CITES: papers[0], WRITES: writers[0]}, {CITES: papers[1], WRITES: writers[1]}
    row, col, node, edge, num_nodes, num_edges = sampler.hetero_neighbor_sample(
        *rows, seeds, {CITES: [-1, -1], WRITES: [-1, 2]}, csc=True
    )
    expected = by_hand(*papers, seeds["paper"], 2)
    assert (col[CITES].tolist(), row[CITES].tolist(), node["paper"].tolist(), edge[CITES].tolist()) == expected[:4]
    assert (num_nodes["paper"], num_edges[CITES]) == expected[4:]
    assert node["author"][row[WRITES]].equal(writers[1][edge[WRITES]])
    assert num_nodes["author"][0] == 0 and sum(num_nodes["author"]) == len(node["author"].unique())
    named = torch.ops.pyg.hetero_neighbor_sample(
        ["paper", "author"], [CITES, WRITES], *({"__".join(key): x for key, x in part.items()} for part in rows),
        seeds, {"paper__cites__paper": [-1, -1], "author__writes__paper": [-1, -1]}, None, None, None, None, True,
    )  # fmt: skip
    assert named[3]["paper__cites__paper"].equal(edge[CITES]) and named[5]["paper__cites__paper"] == num_edges[CITES]


def test_ids_of_equal_low_words_are_different_nodes():
    writers = torch.tensor([5, 5 + 2**32, 5, 5 + 2**33])
    rows = {WRITES: torch.tensor([0, 4])}, {WRITES: writers}
    row, _, node, *_ = sampler.hetero_neighbor_sample(*rows, {"paper": torch.tensor([0])}, {WRITES: [-1]}, csc=True)
    assert row[WRITES].tolist() == [0, 1, 0, 2] and node["author"].tolist() == writers[[0, 1, 3]].tolist()


def test_subgraph_and_random_walk():
    rowptr, col = random_csr()
    nodes = torch.tensor([7, 30, 2, 11, 25, 6])
    out_rowptr, out_col, edge = sampler.subgraph(rowptr, col, nodes)
    row = torch.repeat_interleave(torch.arange(6), out_rowptr.diff())
    expected = [
        (i, j, e)
        for i, node in enumerate(nodes.tolist())
        for e in range(int(rowptr[node]), int(rowptr[node + 1]))
        for j in (nodes == col[e]).nonzero().flatten().tolist()
    ]
    assert list(zip(row.tolist(), out_col.tolist(), edge.tolist())) == expected
    rowptr[-1] = rowptr[-2]  # node 39 has no neighbours
    walk = torch.ops.pyg.random_walk(rowptr, col, torch.arange(40), 5, 1.0, 1.0)
    assert walk.shape == (40, 6) and (walk[39] == 39).all()
    for here, there in zip(walk[:, :-1].flatten().tolist(), walk[:, 1:].flatten().tolist()):
        neighbours = col[rowptr[here] : rowptr[here + 1]].tolist()
        assert there in neighbours or (not neighbours and there == here)


def test_products_by_segments():
    x, weight, bias = torch.randn(7, 3), torch.randn(3, 3, 4), torch.randn(3, 4)
    out = ops.segment_matmul(x, torch.tensor([0, 2, 2, 7]), weight, bias)
    expected = torch.cat([x[:2] @ weight[0] + bias[0], x[2:] @ weight[2] + bias[2]])
    torch.testing.assert_close(out, expected)
    with pytest.raises(ValueError, match=r"ptr is \[0, 2, 7\]; expected 4 numbers"):
        ops.segment_matmul(x, torch.tensor([0, 2, 7]), weight)
    assert not hasattr(ops, "softmax_csr")


def test_wrong_arguments_are_refused():
    rowptr, col = random_csr()
    seeds, time = torch.tensor([1]), torch.zeros(40, dtype=torch.int64)
    for arguments, error, message in (
        (dict(directed=False), NotImplementedError, "directed=False"),
        (dict(node_time=time), ValueError, "disjoint is False"),
        (dict(edge_time=col, disjoint=True), ValueError, "seed_time is None"),
        (dict(temporal_strategy="first"), ValueError, "temporal_strategy is 'first'"),
        (dict(edge_weight=torch.ones(2)), ValueError, r"edge_weight\[0\] has shape \[2\]"),
        (dict(seed=torch.tensor([40])), IndexError, r"seeds\[0\] holds 40; expected ids in \[0, 40\)"),
        (dict(seed=torch.tensor([1], dtype=torch.int32)), TypeError, "seed has dtype torch.int32"),
    ):
        with pytest.raises(error, match=message):
            sampler.neighbor_sample(rowptr, col, **{"seed": seeds, "num_neighbors": [2], **arguments})
    bad = rowptr.clone()
    bad[2] = 10_000
    with pytest.raises(IndexError, match="row 1 of indptr falls, leaves indices"):
        sampler.neighbor_sample(bad, col, seeds, [2])
    with pytest.raises(IndexError, match="indices holds 77"):
        sampler.neighbor_sample(rowptr, torch.full_like(col, 77), seeds, [2, 2])
    with pytest.raises(NotImplementedError, match=r"p is 2\.0"):
        sampler.random_walk(rowptr, col, seeds, 3, p=2.0)


def test_walks_and_subgraphs_of_no_node():
    rowptr, col = torch.tensor([0, 1, 2]), torch.tensor([1, 0])
    for ids in (torch.tensor([-1]), torch.tensor([2])):
        for call in (
            lambda ids: sampler.random_walk(rowptr, col, ids, 2),
            lambda ids: sampler.subgraph(rowptr, col, ids),
        ):
            with pytest.raises((ValueError, IndexError), match="holds"):
                call(ids)
