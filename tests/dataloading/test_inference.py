"""infer_by_layers beside the model on the whole graph."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import halfgnn
from halfgnn.dataloading import FeatureStore, infer_by_layers, quantize
from halfgnn.nn import GATConv, SAGEConv

NODES, EDGES, WIDTH = 101, 700, 6


@pytest.fixture
def graph():
    draw = torch.Generator().manual_seed(1)
    src, dst = torch.randint(NODES, (2, EDGES), generator=draw)
    return halfgnn.Graph.from_edges(src, dst, num_src=NODES, num_dst=NODES)


@pytest.fixture
def layers():
    torch.manual_seed(2)
    mean = SAGEConv(WIDTH, 8, "mean").eval()
    attention = GATConv(8, 4, num_heads=2, allow_zero_in_degree=True).eval()
    return [lambda block, x: mean(block, x).relu(), lambda block, x: attention(block, x).flatten(1)]


@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-6), (torch.float16, 2e-3)])
@pytest.mark.parametrize("batch_size", [1, 40, NODES, 1000])
def test_rows_are_those_of_the_whole_graph(graph, layers, tmp_path, dtype, tolerance, batch_size):
    x = torch.randn(NODES, WIDTH, generator=torch.Generator().manual_seed(3))
    np.save(tmp_path / "features.npy", x.numpy())
    with torch.no_grad():
        expected = layers[1](graph, layers[0](graph, x))
    lengths = []

    def progress(batches):
        lengths.append(len(batches))
        return batches

    store = infer_by_layers(
        layers,
        graph,
        FeatureStore.open(tmp_path / "features.npy"),
        tmp_path / "rows.npy",
        batch_size=batch_size,
        dtype=dtype,
        progress=progress,
    )
    assert store.dtype == dtype and lengths == [-(-NODES // batch_size)] * 2
    torch.testing.assert_close(store.gather(torch.arange(NODES)).float(), expected, rtol=tolerance, atol=tolerance)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["features.npy", "rows.npy"]


def test_wrong_calls(graph, layers, tmp_path):
    x, path = torch.randn(NODES, WIDTH), tmp_path / "rows.npy"
    with pytest.raises(ValueError, match="layers is empty"):
        infer_by_layers([], graph, x, path)
    with pytest.raises(ValueError, match=r"features has shape \(100, 6\); expected 101 rows"):
        infer_by_layers(layers, graph, x[1:], path)
    with pytest.raises(TypeError, match=r"dtype is torch\.bfloat16; expected torch\.float16"):
        infer_by_layers(layers, graph, x, path, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match=r"expected a file \.npy"):
        infer_by_layers(layers, graph, x, tmp_path / "rows.bin")
    with pytest.raises(ValueError, match=r"layers\[0\] returned shape \(.*; expected 50 rows, one per destination"):
        infer_by_layers([lambda block, x: x], graph, x, path, batch_size=50)
    bipartite = halfgnn.Graph.from_edges(torch.tensor([0]), torch.tensor([0]), num_src=2, num_dst=1)
    with pytest.raises(ValueError, match="g has 2 sources and 1 destinations"):
        infer_by_layers(layers, bipartite, x[:2], path)


def test_a_file_that_cannot_be_completed_is_left_as_it_was(tmp_path, graph):
    features = torch.randn(NODES, WIDTH)
    path = tmp_path / "rows.npy"
    np.save(path, features.numpy())
    copied = [lambda block, x: 2 * x[: block.num_dst_nodes()]]
    wider = iter(range(1, 9))
    for layer, match in (
        (lambda block, x: x[: block.num_dst_nodes()].repeat(1, next(wider)), r"rows of \(12,\) after rows of \(6,\)"),
        (lambda block, x: x[:1], "layers.0. returned shape"),
    ):
        with pytest.raises(ValueError, match=match):
            infer_by_layers([layer], graph, FeatureStore.open(path), path, batch_size=9)
        assert np.array_equal(np.load(path), features.numpy()) and len(list(tmp_path.iterdir())) == 1
    quantize(features, tmp_path / "x.npy", torch.uint8)
    with pytest.raises(ValueError, match=r"path is '.*x\.npy', whose \.json says that it has codes"):
        infer_by_layers(copied, graph, features, tmp_path / "x.npy")
    doubled = infer_by_layers(copied, graph, FeatureStore.open(path), path, batch_size=9, dtype=torch.float32)
    assert torch.equal(doubled.gather(torch.arange(NODES)), 2 * features) and doubled.path == path
