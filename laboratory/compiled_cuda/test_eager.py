"""The launches of eager steps under the drop-in."""

import pytest
import torch

from laboratory.compiled_cuda import eager

pytest.importorskip("torch_geometric")


@pytest.mark.parametrize("name, autocast, most", [
    ("GCNConv", False, 7), ("GCNConv", True, 11), ("SAGEConv", False, 11), ("GATConv", False, 11), ("GATConv", True, 27),
])  # fmt: skip
def test_launches(name, autocast, most):
    counts = eager.counted(eager.layers()[name], True, autocast)
    assert sum(map(eager.launches, counts)) <= most, counts


def test_what_is_counted():
    x = torch.randn(3, 4)
    _, found = eager.kernels_of(lambda: ((x @ x.t()).relu().view(-1)[1:] + 1).sum())
    assert found == {"mm": 1, "relu": 1, "add": 1, "sum": 1} or found == {
        "mm": 1,
        "clamp_min": 1,
        "add": 1,
        "sum": 1,
    }, found
