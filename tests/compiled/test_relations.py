"""Rows of nodes times a matrix per edge, that of its relation, under torch.compile: a table of nodes and relations."""

from __future__ import annotations

import pytest
import torch

from halfgnn import Graph
from halfgnn.compiled import relations
from halfgnn.graphs_by_tensor import edge_index, pairs, traced
from tests import support
from tests.support_compiled import compiled

pytestmark = pytest.mark.skipif(support.SIMULATED, reason="about FX graphs")

N, E, R, C, D = 40, 600, 3, 6, 8


@pytest.fixture
def multiplied(monkeypatch):
    calls, function = [], relations.multiplied
    monkeypatch.setattr(relations, "multiplied", lambda *args: (calls.append(args), function(*args))[1])
    return calls


def summed(rows, dst):
    return rows.new_zeros(N, D).index_add(0, dst, rows)


def both_ends(x, weight, ids, types):
    matrices = torch.index_select(weight, 0, types)
    sources = torch.bmm(x[ids[0]].unsqueeze(1), matrices).squeeze(1)
    destinations = torch.bmm(x.index_select(0, ids[1]).view(-1, 1, C), matrices).squeeze(-2)
    return summed(sources * destinations.sigmoid(), ids[1])


def of_negative_types(x, weight, ids, types):
    return summed(torch.bmm(x[ids[0]].unsqueeze(1), weight[types - R]).squeeze(1), ids[1])


def of_two_tensors(x, weight, ids, types):
    src, dst = ids[0] + 0, ids[1] + 0  # not rows of one tensor
    return summed(torch.bmm(x[src].unsqueeze(1), weight[types]).squeeze(1).relu(), dst)


def weighted(x, weight, ids, types):
    scores = x[ids[0], :1] - x[ids[1], :1]
    return summed(torch.bmm(x[ids[0]].unsqueeze(1), weight[types]).squeeze(1) * scores, ids[1])


def detached_matrices(x, weight, ids, types):
    matrices = weight[types].detach()
    return summed(torch.bmm(x[ids[0]].unsqueeze(1), matrices).squeeze(1), ids[1]) * weight.sum()


def detached_rows(x, weight, ids, types):
    rows = x[ids[0]].detach().unsqueeze(1)
    return summed(torch.bmm(rows, weight[types]).squeeze(1), ids[1]) * x.sum()


def without_gradients(x, weight, ids, types):
    with torch.no_grad():
        rows, matrices = x[ids[0]].unsqueeze(1), weight[types]
    return summed(torch.bmm(rows, matrices).squeeze(1), ids[1]) * x.sum() * weight.sum()


def of_each_edge(x, weight, ids, types):
    matrices = weight[types] * x[ids[0]].unsqueeze(-1)
    return summed(torch.bmm(x[ids[1]].unsqueeze(1), matrices).squeeze(1), ids[1])


def transposed(x, weight, ids, types):
    return summed(torch.bmm(weight[types].transpose(1, 2), x[ids[0]].unsqueeze(2)).squeeze(2), ids[1])


COUNTS = {
    both_ends: 2,
    of_negative_types: 1,
    of_two_tensors: 1,
    weighted: 1,
    detached_matrices: 0,
    detached_rows: 0,
    without_gradients: 0,
    of_each_edge: 0,
    transposed: 0,
}


@pytest.mark.parametrize("program", COUNTS)
def test_matrices_of_relations(program, multiplied):
    ids, types = torch.randint(N, (2, E)), torch.randint(R, (E,))
    x, weight = torch.randn(N, C, dtype=torch.float64), torch.randn(R, C, D, dtype=torch.float64)
    results = []
    for run in (program, compiled(program)):
        leaves = [torch.nn.Parameter(y.clone()) for y in (x, weight)]
        out = run(*leaves, ids, types)
        results.append([out, *torch.autograd.grad(out.square().sum(), leaves)])
    for actual, expected in zip(results[1], results[0]):
        torch.testing.assert_close(actual, expected, rtol=1e-8, atol=1e-8)
    assert len(multiplied) == COUNTS[program]


@pytest.mark.parametrize("wrong", ["node", "relation"])
def test_wrong_ids_are_not_those_of_another_relation(wrong, multiplied):
    ids, types = torch.randint(N, (2, E)), torch.zeros(E, dtype=torch.int64)
    if wrong == "node":
        ids[0, 3] = N
    else:
        types[3] = R
    with pytest.raises((IndexError, ValueError), match=r"out of|holds"):
        compiled(both_ends)(torch.randn(N, C), torch.randn(R, C, D), ids, types)
    assert multiplied


def test_edges_of_pairs_are_made_and_sorted_once(monkeypatch):
    """They are cached with the ids and the types, until either is modified in place."""
    ids, types = torch.randint(N, (2, E)), torch.randint(R, (E,))
    x, weight = torch.randn(N, C), torch.nn.Parameter(torch.randn(R, C, D))
    step, made, make = compiled(both_ends), [], pairs.with_pairs

    def run():
        made.clear()
        out = step(x, weight, ids, types)
        out.sum().backward()
        torch.testing.assert_close(out, both_ends(x, weight, ids, types), rtol=1e-4, atol=1e-4)

    monkeypatch.setattr(pairs, "with_pairs", lambda *args: (made.append(args), make(*args))[1])
    run()
    assert len(made) == 2, "of sources and of destinations"
    run()
    sorted_edges = []
    monkeypatch.setattr(Graph, "from_edges", lambda *args, **options: sorted_edges.append(args))
    run()
    assert not made and not sorted_edges
    monkeypatch.undo()
    monkeypatch.setattr(pairs, "with_pairs", lambda *args: (made.append(args), make(*args))[1])
    types.copy_(types.flip(0))
    run()
    assert len(made) == 2


def test_in_a_capture_edges_of_pairs_are_made_again_without_a_question(monkeypatch):
    """A replay may find other ids in the same tensors. The capture is simulated."""
    ids, types = torch.randint(N, (2, E)), torch.randint(R, (E,))
    x, weight = torch.randn(N, C), torch.randn(R, C, D)
    step = compiled(both_ends)
    step(x, weight, ids, types)
    for module in (edge_index, traced, pairs):
        monkeypatch.setattr(module, "is_captured", lambda device: True)
    for name in ("aminmax", "nonzero"):
        monkeypatch.setattr(torch, name, lambda *args, **kwargs: pytest.fail("asks the device"))
    ids.data.copy_(ids.flip(1))  # not counted
    types.data.copy_((types + 1) % R)
    torch.testing.assert_close(step(x, weight, ids, types), both_ends(x, weight, ids, types), rtol=1e-4, atol=1e-4)
