"""Where the gradient of maxima is added to the sources of winners instead of gathered."""

import pytest

from .planners import MB

H200 = "NVIDIA H200"
REDDIT, PRODUCTS, ARXIV = (232_965, 114_615_892), (2_449_029, 123_718_280), (169_343, 1_166_243)
# Bytes that an edge reads of its node, and beside it, of 128 columns: marked ones (copy_reduce.cu:edge_bytes), or all of arxiv's.
MARKED = {REDDIT: (128, 72), PRODUCTS: (256, 72), ARXIV: (768, 8)}


def winners(planners, device, graph, dim=128, **how):
    row, streamed = MARKED[graph]
    return planners.winners(device, *graph, dim, row * dim // 128, streamed, **how)


def test_dense_graphs_whose_slices_fit(planners):
    h200 = planners.gpus()[H200]
    columns, adding, gathering, workspace = winners(planners, h200, REDDIT)
    assert columns == 16 and adding < gathering / 2 and workspace < 0.75 * h200.l2_bytes
    assert winners(planners, h200, REDDIT, searches=True)[0] == 16
    assert winners(planners, h200, REDDIT, searches=True)[1] > adding
    assert winners(planners, h200, REDDIT, extremes=2)[1] > 1.5 * adding
    # The sums of 16 columns of so many sources do not fit in any cache of the table's GPUs of 50 MB.
    assert winners(planners, h200, PRODUCTS)[0] == 0
    assert winners(planners, h200, ARXIV)[0] == 0  # few edges: gathering them is as fast


def test_the_slice_is_no_wider_than_it_has_to_be(planners):
    graph = (1_000, 50_000_000)
    for dim, columns in ((1, 16), (16, 16), (17, 32), (64, 64), (100, 128), (500, 128)):
        assert planners.winners(50 * MB, *graph, dim, max(dim, 64), 72)[0] == columns


def test_what_is_not_known_to_fit_is_gathered(planners):
    assert winners(planners, 0, REDDIT)[0] == 0
    # A sum of 2^23 numbers could leave 64 bits.
    million = planners.gpus()[H200]
    million.l2_bytes = 1 << 40
    nodes = 1 << 22
    assert planners.winners(million, nodes, 1000 * nodes, 16, 64, 72)[0] == 16
    assert planners.winners(million, nodes + 1, 1000 * nodes, 16, 64, 72)[0] == 0
    assert planners.winners(million, nodes, 1000 * nodes, 16, 64, 72, extremes=2)[0] == 0
    assert planners.winners(million, 1000, 0, 16, 64, 72)[0] == 0


@pytest.mark.parametrize("nodes", [1, 1000, 300_000])
def test_bytes_of_the_workspace(planners, nodes):
    _, _, _, workspace = planners.winners(1 << 40, nodes, 1000 * nodes, 16, 64, 72)
    assert workspace == nodes * 16 * 8 + nodes * 16 // 2
