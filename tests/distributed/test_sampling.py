"""DistNeighborSampler: mini-batches whose neighbours other processes draw."""

import pytest
import torch

from tests import support
from tests.distributed import support_distributed as processes
from tests.distributed.support_distributed import E, N, features, graph

pytestmark = pytest.mark.skipif(support.SIMULATED, reason="about processes")


@pytest.fixture(scope="module")
def found(found_of_two):
    return [part["sampled"] for part in found_of_two]


def check_edges(edges):
    """Edges are those of the graph, none twice, and the destinations of a layer are the sources of the next."""
    src, dst = (x.long() for x in graph().edges())
    for sources, destinations, ids, _ in edges:
        assert torch.equal(src[ids], sources) and torch.equal(dst[ids], destinations)
        assert ids.unique().shape == ids.shape


def test_all_neighbours(found):
    """Scores of seeds are those of the whole graph."""
    torch.manual_seed(5)
    expected = processes.Network("sage")(graph(), features()).detach()
    for part in found:
        torch.testing.assert_close(part["output"], expected[part["seeds"]], rtol=1e-4, atol=1e-4)


def test_some_neighbours(found):
    degrees = torch.bincount(graph().edges()[1].long(), minlength=N)
    for part in found:
        for sample in part["few"]:
            check_edges(sample)
            for (_, destinations, _, nodes), fanout in zip(sample, (2, 3)):
                assert torch.equal(torch.bincount(destinations, minlength=N)[nodes], degrees[nodes].clamp(max=fanout))
            assert torch.equal(sample[-1][3], part["seeds"])
            assert torch.equal(sample[0][3].sort().values, torch.cat([sample[-1][3], sample[-1][0]]).unique())


def test_seeds_of_the_generator(found):
    for part in found:
        first, again, other = part["few"]
        assert all(torch.equal(a, b) for blocks in zip(first, again) for a, b in zip(*blocks))
        assert not torch.equal(first[0][2], other[0][2])


def test_layers_draw_differently(found):
    """A node of both layers has other neighbours in each: 3 of 9 are the same by chance in one case of 84."""
    same = total = 0
    for part in found:
        (_, dst_0, ids_0, _), (_, dst_1, ids_1, nodes) = part["few"][0]
        for node in nodes.tolist():
            drawn = [set(ids[dst == node].tolist()) for ids, dst in ((ids_0, dst_0), (ids_1, dst_1))]
            same, total = same + (len(drawn[0]) == 2 and drawn[0] <= drawn[1]), total + (len(drawn[0]) == 2)
    assert total > 20 and same < total / 2


def test_weights(found):
    dst = graph().edges()[1].long()
    for part in found:
        ((_, _, ids, nodes),) = part["odd"]
        odd = torch.arange(1, E, 2)
        assert torch.equal(ids.sort().values, odd[torch.isin(dst[odd], nodes)])


def test_no_seeds(found):
    assert [part["empty"][0][2].shape[0] > 0 for part in found] == [True, False]
    check_edges(found[0]["empty"])


def test_rows(found):
    for part in found:
        assert torch.equal(part["twice"], features()[[7, 3, 7]].bfloat16())


def test_errors(found):
    texts = [
        "seeds has dtype torch.float32",
        "seeds has 2 ids, of which some repeat; expected different nodes",
        "seeds holds 90; expected indices in [0, 90)",
        "rows on the CPU, one per node of this process",
        "processes 0 and 1 have different values of arguments: 'data: (rows, 12) of torch.float32",
        "processes 0 and 1 have different values of arguments: 'fanouts: [[-1], [-1]]' and 'fanouts: [[2], [3]]'",
        "g is a Graph; expected a DistGraph",
        "expected a number of neighbours per layer, as in [15, 10]",
        "fanouts[0] is -2",
    ]
    for rank, part in enumerate(found):
        for number, (text, error) in enumerate(zip(texts, part["errors"], strict=True)):
            assert text in error or (number == 2 and rank == 0 and "different values of arguments" in error), error
