"""GATConv and GATv2Conv on bipartite graphs with self-loops and edge features: as torch_geometric, and where it raises."""

import pytest
import torch

import halfgnn.pyg
from tests.pyg.support_pyg import EDGE_DIM, make_edge_index, theirs
from tests.support_nn import assert_close, randn, seeded, with_gradients

KINDS = ["GATConv", "GATv2Conv"]
FILLS = ["mean", "add", "max", "mul", 2.0]
SIZES = [(65, 13), (13, 65), (40, 40)]


def case(lib, kind, fill, sizes):
    conv = seeded(lambda: getattr(lib, kind)((6, 5), 4, 2, edge_dim=EDGE_DIM, fill_value=fill)).double()
    edge_index = make_edge_index(*sizes)
    x = [randn(n, width, dtype=torch.float64, seed=n) for n, width in zip(sizes, (6, 5))]
    edges = randn(edge_index.shape[1], EDGE_DIM, dtype=torch.float64)
    return lambda: with_gradients(conv, lambda src, dst, e: conv((src, dst), edge_index, e), [*x, edges])


def raises(sizes, fill):
    """torch_geometric reduces the features of all edges into as many rows as there are self-loops."""
    return sizes[0] < sizes[1] and isinstance(fill, str)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("fill", FILLS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fuse", [False, True])
def test_drop_in(kind, fill, sizes, fuse):
    call = case(theirs, kind, fill, sizes)
    if raises(sizes, fill):
        with halfgnn.pyg.accelerate(fuse=fuse), pytest.raises(RuntimeError, match="out of bounds"):
            call()
        return
    expected = call()
    with halfgnn.pyg.accelerate(fuse=fuse):
        assert_close(call(), expected, 1e-8)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("fill", FILLS)
@pytest.mark.parametrize("kind", KINDS)
def test_modules(kind, fill, sizes):
    """Where torch_geometric raises, the result is finite."""
    actual = case(halfgnn.pyg, kind, fill, sizes)()
    if raises(sizes, fill):
        assert all(x.isfinite().all() for x in actual)
    else:
        assert_close(actual, case(theirs, kind, fill, sizes)(), 1e-8)
