"""NeighborDataLoader: epochs that repeat, parts of processes, and a Prefetcher around it."""

import functools

import pytest
import torch

from halfgnn import Graph
from halfgnn.dataloading import FeatureStore, NeighborDataLoader, NeighborSampler, Prefetcher


@pytest.fixture(scope="module")
def sampler():
    generator = torch.Generator().manual_seed(0)
    src, dst = torch.randint(50, (2, 600), generator=generator)
    return NeighborSampler(Graph.from_edges(src, dst, num_src=50, num_dst=50), [2, 2])


def seeds_of(loader):
    return [batch.output_nodes.tolist() for batch in loader]


def test_an_epoch_repeats_and_the_next_differs(sampler):
    ids = torch.arange(10, 41)
    loader = NeighborDataLoader(sampler, ids, batch_size=8, shuffle=True, seed=3)
    first, second = list(loader), list(loader)
    assert len(loader) == len(first) == 4
    order = torch.cat([batch.output_nodes for batch in first])
    assert order.sort().values.equal(ids) and not order.equal(ids)
    assert seeds_of(first) != seeds_of(second)
    again = NeighborDataLoader(sampler, ids, batch_size=8, shuffle=True, seed=3)
    again.set_epoch(1)
    for batch, before in zip(again, second, strict=True):
        assert batch.input_nodes.equal(before.input_nodes)
        assert batch.blocks[0].edata["_ID"].equal(before.blocks[0].edata["_ID"])
    in_order = NeighborDataLoader(sampler, ids, batch_size=8, drop_last=True)
    assert len(in_order) == 3 and seeds_of(in_order) == [part.tolist() for part in ids.split(8)[:3]]
    epochs = [[batch.blocks[0].edata["_ID"].tolist() for batch in in_order] for _ in range(2)]
    assert epochs[0] != epochs[1]


def test_processes_take_parts_of_the_same_batches(sampler):
    ids = torch.arange(17)
    options = dict(batch_size=8, shuffle=True, seed=1)
    whole = seeds_of(NeighborDataLoader(sampler, ids, **options))
    parts = [seeds_of(NeighborDataLoader(sampler, ids, **options, rank=rank, world_size=2)) for rank in range(2)]
    for batch, first, second in zip(whole, *parts, strict=True):
        assert first == batch[::2] and second == (batch[1::2] or batch[:1])


def test_a_prefetcher_takes_it(sampler):
    features = FeatureStore(torch.randn(50, 3))
    loader = NeighborDataLoader(sampler, torch.arange(20), batch_size=8)
    fetch = lambda batch: (batch.blocks, features.rows(batch.input_nodes), batch)  # noqa: E731
    batches = list(Prefetcher(loader, "cpu", fetch=fetch, background=True))
    assert len(batches) == 3
    for blocks, x, batch in batches:
        assert x.equal(features.data[batch.input_nodes]) and blocks[0].num_src_nodes() == len(x)


def test_seed_edges_and_seeds_by_type(sampler):
    loader = NeighborDataLoader(functools.partial(sampler.sample_edges, negatives=1), torch.arange(100), batch_size=40)
    assert [batch.negative.num_edges for batch in loader] == [40, 40, 20]
    seen = []
    seeds = {"a": torch.arange(5), "b": torch.arange(3)}
    list(NeighborDataLoader(lambda ids, seed: seen.append(ids), seeds, batch_size=3))
    assert [{ntype: ids.tolist() for ntype, ids in part.items()} for part in seen] == [
        {"a": [0, 1, 2], "b": []}, {"a": [3, 4], "b": [0]}, {"a": [], "b": [1, 2]},
    ]  # fmt: skip


def test_wrong_arguments_are_refused(sampler):
    for options, message in ((dict(batch_size=0), "batch_size"), (dict(batch_size=2, rank=1), "rank is 1")):
        with pytest.raises(ValueError, match=message):
            NeighborDataLoader(sampler, torch.arange(3), **options)


def test_batches_of_an_epoch_draw_differently():
    """Even of the same seeds."""
    ids = torch.arange(100)
    g = Graph.from_edges(ids, torch.zeros_like(ids), num_src=100, num_dst=100)
    loader = NeighborDataLoader(NeighborSampler(g, [5]), torch.zeros(4, dtype=torch.int64), batch_size=1)
    assert len({tuple(batch.input_nodes.tolist()) for batch in loader}) == 4
