"""Adjacencies built in chunks, as CUDA builds those of more edges than it can sort at once: the chunks here are short."""

import pytest
import torch

from laboratory.simt import control
from laboratory.simt.graphs import CUT, graph_of
from tests import support
from tests.support import IDTYPES

if not control.SIMULATED:
    pytest.skip("runs on the simulator: laboratory/simt/run.py", allow_module_level=True)

raw, in_chunks = torch.ops.halfgnn, torch.ops.halfgnn_simt
FAR_APART = [3, *[0] * 40, 1, 2, *[0] * 800, 30, 5, *[0] * 100]  # more than 31 empty rows between others


def check_chunks(g, chunk):
    src, dst = g.edges()
    for got, wanted in zip(
        in_chunks.coo_to_csr(dst, src, g.num_dst, chunk), raw.coo_to_csr(dst, src, g.num_dst), strict=True
    ):
        assert got.dtype == wanted.dtype and torch.equal(got, wanted)
    for side, columns in ((g.csc(), g.num_src), (g.csr(), g.num_dst)):
        for got, wanted in zip(in_chunks.transpose(*side, columns, chunk), raw.transpose(*side, columns), strict=True):
            assert got.dtype == wanted.dtype and torch.equal(got, wanted)


@pytest.mark.parametrize("idtype", IDTYPES)
@pytest.mark.parametrize("identity", [False, True])
@pytest.mark.parametrize("name", support.GRAPHS)
def test_chunks_of_named_graphs(name, identity, idtype):
    g = support.make_graph(name, idtype, identity=identity)
    for chunk in {1, 7, max(1, g.num_edges - 1), max(1, g.num_edges), g.num_edges + 1}:
        if g.num_edges <= 60 * chunk:
            check_chunks(g, chunk)


@pytest.mark.parametrize("idtype", IDTYPES)
@pytest.mark.parametrize("degrees,chunk", [(CUT, 4099), (CUT, 1 << 12), (FAR_APART, 3), (FAR_APART, 40), ([300], 256)])
def test_chunks_of_rows_longer_and_shorter_than_they(degrees, chunk, idtype):
    check_chunks(graph_of(degrees, 37, idtype), chunk)


def test_sort_is_stable_over_chunks():
    row = torch.tensor([1, 0, 1, 1, 0, 1, 0])
    indptr, indices, edge_ids = in_chunks.coo_to_csr(row, torch.arange(10, 17), 2, 2)
    assert indptr.tolist() == [0, 3, 7]
    assert edge_ids.tolist() == [1, 4, 6, 0, 2, 3, 5] and indices.tolist() == [11, 14, 16, 10, 12, 13, 15]


@pytest.mark.parametrize("chunk", [1, 2, 3])
def test_ends_out_of_range_touch_nothing_else(chunk):
    ends = torch.tensor([0, 3, 7, -1])
    assert in_chunks.coo_to_csr(ends, ends, 3, chunk)[0].tolist() == [0, 2, 2, 4]
    in_chunks.coo_to_csr(ends, ends, 0, chunk)


@pytest.mark.parametrize("idtype,count,most", [(torch.int64, 2**32 - 1, 2**32 - 2), (torch.int32, 2**31, 2**31 - 1)])
def test_more_edges_than_kernels_can_number(idtype, count, most):
    row = torch.zeros(1, dtype=idtype).expand(count)
    with pytest.raises(ValueError, match=f"the graph has {count} edges; expected at most {most} on CUDA"):
        raw.coo_to_csr(row, row, 1)
