"""The same graph as DGL has it and as halfgnn.compat.dgl has it, and whether two results are the same."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from halfgnn.compat import dgl as ours

real = pytest.importorskip("dgl")


def pair(make):
    """make(package), for both packages."""
    return make(real), make(ours)


def multigraph(package, num_nodes=9, num_edges=30, idtype=torch.int64, seed=0):
    """One type of nodes and of edges, with repeated edges, self-loops, isolated nodes and features."""
    generator = torch.Generator().manual_seed(seed)
    src, dst = torch.randint(num_nodes - 1, (2, num_edges), generator=generator)
    graph = package.graph((src, dst), num_nodes=num_nodes, idtype=idtype)
    graph.ndata["x"] = torch.randn(num_nodes, 3, generator=generator)
    graph.edata["w"] = torch.randn(num_edges, generator=generator)
    return graph


def typed(package, seed=0):
    """Several types of nodes and edges, one of them without edges, with features."""
    generator = torch.Generator().manual_seed(seed)
    counts = {"item": 6, "tag": 3, "user": 5}
    etypes = {
        ("user", "buys", "item"): 12,
        ("user", "knows", "user"): 9,
        ("item", "has", "tag"): 8,
        ("tag", "of", "item"): 0,
    }
    data = {
        etype: tuple(torch.randint(counts[ntype], (count,), generator=generator) for ntype in (etype[0], etype[2]))
        for etype, count in etypes.items()
    }
    graph = package.heterograph(data, counts)
    for ntype, count in counts.items():
        graph.nodes[ntype].data["x"] = torch.randn(count, 2, generator=generator)
    for etype, count in etypes.items():
        graph.edges[etype].data["w"] = torch.randn(count, generator=generator)
    return graph


def assert_same(expected, result, ignore=()):
    """That results are alike: graphs in types, counts, order of edges, features and batches; others in values."""
    if isinstance(expected, (list, tuple)):
        assert len(expected) == len(result)
        for one, other in zip(expected, result):
            assert_same(one, other, ignore)
    elif isinstance(expected, dict):
        assert expected.keys() == result.keys()
        for key in expected:
            assert_same(expected[key], result[key], ignore)
    elif isinstance(expected, (torch.Tensor, np.ndarray, float)):
        torch.testing.assert_close(torch.as_tensor(result), torch.as_tensor(expected), equal_nan=True)
    elif hasattr(expected, "canonical_etypes"):
        _assert_same_graph(expected, result, ignore)
    else:
        assert expected == result


def _assert_same_graph(expected, result, ignore):
    for name in ("ntypes", "canonical_etypes", "is_block", "idtype", "srctypes", "dsttypes", "batch_size"):
        assert getattr(expected, name) == getattr(result, name), name
    for views, types in (("srcnodes", expected.srctypes), ("dstnodes", expected.dsttypes)):
        for ntype in types:
            assert_same(getattr(expected, views)(ntype), getattr(result, views)(ntype))
            data = (getattr(graph, views)[ntype].data for graph in (expected, result))
            assert_same(*({name: view[name] for name in view if name not in ignore} for view in data))
    for etype in expected.canonical_etypes:
        assert_same(expected.edges(etype=etype, form="all"), result.edges(etype=etype, form="all"))
        assert_same(*(dict(graph.edges[etype].data) for graph in (expected, result)))
        if not expected.is_block:
            assert_same(*(graph.batch_num_edges(etype).tolist() for graph in (expected, result)))
