"""The gradient of maxima of fp16 that is added to the sources of winners: exact sums, each rounded once, in any order of blocks.

Graphs have edges enough that the planner chooses it, and are made without kernels. Nodes are few, and so are the lanes that run.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from laboratory.simt import control

if not control.SIMULATED:
    pytest.skip("runs on the simulator: laboratory/simt/run.py", allow_module_level=True)

raw = torch.ops.halfgnn
LARGEST = 65504.0
ORDERS = ("in order", "rising", "mixed")  # of edge data among the in-edges of a node
THREADS = 256
FIRST = 150  # edges of a node among which winners are


@pytest.fixture(autouse=True)
def small_cache():
    """Which holds the sums of a few sources, and not a byte for every edge."""
    with control.setting(l2_cache_bytes=100 << 10):
        yield


class Problem:
    """In-edges of nodes of different degrees, some of none and one of very many, and a winner for each of `width` columns.

    Winners are among the first edges of their nodes, so that a search through all of them ends soon.
    """

    def __init__(self, width, order="in order", idtype=torch.int32, nodes=60, num_src=45, edges=1_200_000):
        generator = torch.Generator().manual_seed(width)
        degrees = torch.randint(0, 2 * FIRST, (nodes,), generator=generator)
        degrees[::7] = 0
        degrees[1:4] = torch.tensor([1, 33, 2])
        degrees[6] = edges
        self.indptr = torch.cat([torch.zeros(1, dtype=torch.int64), degrees.cumsum(0)])
        self.count, self.nodes, self.num_src = int(self.indptr[-1]), nodes, num_src
        self.indices = torch.randint(num_src - 1, (self.count,), generator=generator)  # the last one has no edges
        self.edge_ids = None
        if order != "in order":
            self.edge_ids = torch.randperm(self.count, generator=generator)
            if order == "rising":
                rows = torch.arange(nodes).repeat_interleave(degrees)
                self.edge_ids = self.edge_ids[(rows * self.count + self.edge_ids).argsort()]
        offsets = (torch.rand(nodes, width, generator=generator) * degrees.clamp(max=FIRST)[:, None]).long()
        positions = self.indptr[:-1, None] + offsets
        self.none = (degrees == 0)[:, None].expand(nodes, width)
        positions = positions.masked_fill(self.none, 0)
        self.source = self.indices[positions]
        edge = positions if self.edge_ids is None else self.edge_ids[positions]
        self.arg = edge.masked_fill(self.none, -1).to(idtype)
        self.idtype = idtype

    def ids(self, ids):
        return None if ids is None else ids.to(self.idtype)

    def run(self, grad, reduce_op="max", in_edges=True):
        """The gradient, and the blocks that made it."""
        order = self.indices.argsort(stable=True)
        row_of = torch.arange(self.nodes).repeat_interleave(self.indptr.diff())
        out_ids = order if self.edge_ids is None else self.edge_ids[order]
        out_indptr = torch.cat(
            [torch.zeros(1, dtype=torch.int64), self.indices.bincount(minlength=self.num_src).cumsum(0)]
        )
        shape = (self.num_src, grad.shape[1])
        before = control.get("blocks")
        result = raw.gspmm_backward(
            self.ids(out_indptr), self.ids(row_of[order]), self.ids(out_ids), self.ids(self.indptr), True, "copy_lhs",
            reduce_op, grad, None, None, self.arg, shape, shape, grad.dtype, grad.dtype, True, False, False,
            *((self.ids(self.indices), self.ids(self.edge_ids)) if in_edges else (None, None)),
        )[0]  # fmt: skip
        return result, control.get("blocks") - before

    def exact(self, grad):
        """Of finite gradients: sums of integers, which fp64 holds. NumPy rounds them once, PyTorch twice."""
        units = torch.zeros(self.num_src, grad.shape[1], dtype=torch.int64)
        units.scatter_add_(0, self.source, (grad.double() * 2**24).long().masked_fill(self.none, 0))
        with np.errstate(over="ignore"):
            return torch.from_numpy((units.double() * 2.0**-24).numpy().astype(np.float16))

    def blocks(self, width, columns, vector):
        """Of the two kernels, for all slices."""
        lanes = 1 << (columns // vector - 1).bit_length()
        slices = -(-width // columns)
        return slices * sum(-(-rows * lanes // THREADS) for rows in (self.nodes, self.num_src))


def gradients(*shape, spread=3.0):
    """Of many magnitudes, subnormal numbers among them: sums cancel and end between two fp16 numbers."""
    generator = torch.Generator().manual_seed(shape[1])
    return (
        torch.randn(*shape, generator=generator) * 10 ** (spread * torch.randn(*shape, generator=generator) - 2)
    ).half()


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("width", [1, 16, 20, 33, 128])
def test_sums_are_exact(width, order):
    problem = Problem(width, order, (torch.int32, torch.int64)[width % 2])
    grad = gradients(problem.nodes, width).nan_to_num(1, LARGEST, -LARGEST)
    got, blocks = problem.run(grad, ("max", "min")[width % 2])
    assert torch.equal(got, problem.exact(grad)) and not got[-1].any()
    columns = next(n for n in (16, 32, 64, 128) if n >= width)
    assert blocks == problem.blocks(width, columns, 4 if width % 4 == 0 else 1)


@pytest.mark.parametrize("order", ORDERS)
def test_slices(order):
    """Columns are cut so that sums fit in a small cache, and the last slice is narrow."""
    problem = Problem(40, order, edges=3_600_000)
    grad = gradients(problem.nodes, 40).nan_to_num(1, LARGEST, -LARGEST)
    with control.setting(l2_cache_bytes=12 << 10):
        got, blocks = problem.run(grad)
    assert torch.equal(got, problem.exact(grad))
    assert blocks == problem.blocks(40, 16, 4)


def test_no_bit_depends_on_the_order():
    problem = Problem(64)
    grad = gradients(problem.nodes, 64).nan_to_num(1, LARGEST, -LARGEST)
    results = []
    for seed in (1, 2, 3):
        with control.setting(seed=seed):
            results.append(problem.run(grad)[0])
    assert all(torch.equal(result, results[0]) for result in results)


def test_all_nodes_have_one_winner():
    """All terms of a column in one sum, which overflows fp16 in some and cancels in others."""
    problem = Problem(16)
    problem.indices[:] = 5
    problem.source[:] = 5
    problem.arg[:] = problem.indptr[:-1, None].masked_fill(problem.none, -1)
    grad = torch.full((problem.nodes, 16), LARGEST).half()
    grad[::2, 4:8] *= -1
    grad[:, 8:12] = 2**-24
    grad[:, 12:] = 0
    # 2049 lies between two numbers of fp16; what the last node adds is lost in fp32.
    grad[[1, 2, 3], 12], grad[[1, 2, 3], 13] = (
        torch.tensor([2048, 1, 2**-24]).half(),
        torch.tensor([-2048, -1, -(2**-24)]).half(),
    )
    got, _ = problem.run(grad)
    assert torch.equal(got, problem.exact(grad)) and got[5, 0] == torch.inf and 0 < got[5, 8] < 1e-4
    assert got[5, 12:14].tolist() == [2050, -2050]


def test_infinities_and_nan():
    problem = Problem(20)
    problem.indices[:] = 5
    problem.arg[:] = problem.indptr[:-1, None].masked_fill(problem.none, -1)
    grad = torch.ones(problem.nodes, 20).half()
    grad[4, 1] = grad[5, 2] = grad[8, 3] = grad[9, 3] = torch.inf
    grad[5, 1] = LARGEST
    grad[9, 4], grad[10, 4] = torch.inf, -torch.inf
    grad[11, 5], grad[12, 6], grad[0] = torch.nan, -torch.inf, torch.nan  # node 0 has no edges
    got, _ = problem.run(grad)
    terms = int((problem.indptr.diff() > 0).sum())
    expected = torch.full((20,), float(terms)).half()
    expected[1:7] = torch.tensor([torch.inf, torch.inf, torch.inf, torch.nan, torch.nan, -torch.inf]).half()
    torch.testing.assert_close(got[5], expected, rtol=0, atol=0, equal_nan=True)
    assert not got[:5].any() and not got[6:].any()


@pytest.mark.parametrize("order", ORDERS)
def test_winners_that_are_no_edges(order):
    problem = Problem(16, order)
    problem.arg[5] = problem.arg[4]  # of another node
    problem.arg[8] = problem.count + 3
    grad = torch.ones(problem.nodes, 16).half()
    got, _ = problem.run(grad)
    problem.none = problem.none.clone()
    problem.none[[5, 8]] = True
    assert torch.equal(got, problem.exact(grad))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_other_types_are_gathered(dtype):
    problem = Problem(4, edges=2_000)
    grad = gradients(problem.nodes, 4, spread=1.0).to(dtype)
    (got, blocks), (without, as_many) = problem.run(grad), problem.run(grad, in_edges=False)
    assert torch.equal(got, without) and blocks == as_many
