"""torch.compile under halfgnn.dgl.patch(): operators run between the graphs, and nothing is compiled again for them."""

from __future__ import annotations

import dgl
import dgl.nn as upstream
import pytest
import torch
from torch._dynamo.testing import CompileCounter

import halfgnn.dgl
from tests import support

pytestmark = pytest.mark.skipif(support.SIMULATED, reason="about Python")


@pytest.mark.parametrize("fuse", [False, True])
def test_nothing_is_compiled_again(fuse):
    generator = torch.Generator().manual_seed(0)
    g = dgl.graph(tuple(torch.randint(50, (2, 400), generator=generator)), num_nodes=50)
    x = torch.randn(50, 16, generator=generator)
    layer = upstream.GATConv(16, 8, 2, allow_zero_in_degree=True)
    expected = layer(g, x)
    torch.compiler.reset()
    counter = CompileCounter()
    halfgnn.dgl.reset_stats()
    with halfgnn.dgl.accelerate(fuse=fuse):
        compiled = torch.compile(layer, backend=counter, dynamic=True)
        for _ in range(2):
            torch.testing.assert_close(compiled(g, x), expected)
        num_graphs = counter.frame_count
        for _ in range(10):
            compiled(g, x)
    assert counter.frame_count == num_graphs
    assert halfgnn.dgl.stats()["routed"]
