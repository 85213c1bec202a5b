"""What autograd keeps of an operator's data until the backward: nothing that no gradient reads."""

import pytest
import support
import torch
from support import make_graph, randn

from halfgnn import ops

# Operator -> operands that the gradient of the left reads, and of the right.
READS = {
    "add": ("", ""),
    "sub": ("", ""),
    "mul": ("r", "l"),
    "div": ("r", "lr"),
    "dot": ("r", "l"),
    "copy_lhs": ("", ""),
    "copy_rhs": ("", ""),
}
WANTED = ["l", "r", "lr"]


def kept(run):
    """Data pointers and shapes of all that run() keeps for its backward."""
    found = []

    def pack(tensor):
        found.append((tensor.data_ptr(), tuple(tensor.shape)))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = run()
    assert out.requires_grad
    return found


def check_operands(run, op, lhs, rhs, wanted):
    """run() keeps those of the operands that the wanted gradients read; returns the shapes of all else."""
    names = {x.data_ptr(): name for name, x in (("l", lhs), ("r", rhs)) if x is not None}
    found = kept(run)
    assert {names[at] for at, _ in found if at in names} == {
        name for side, reads in zip("lr", READS[op]) if side in wanted for name in reads
    }
    return [shape for at, shape in found if at not in names]


def operands(op, wanted, lhs, rhs):
    if op.startswith("copy"):
        wanted = "l" if op == "copy_lhs" else "r"
    lhs = None if op == "copy_rhs" else lhs.requires_grad_("l" in wanted)
    rhs = None if op == "copy_lhs" else rhs.requires_grad_("r" in wanted)
    return wanted, lhs, rhs


@pytest.mark.parametrize("wanted", WANTED)
@pytest.mark.parametrize("reduce_op", support.REDUCES)
@pytest.mark.parametrize("op", support.SPMM_OPS)
def test_gspmm(op, reduce_op, wanted):
    g = make_graph("bipartite")
    x, w = (randn(rows, 4, dtype=torch.float32) for rows in (g.num_src, g.num_edges))
    wanted, x, w = operands(op, wanted, x, w)
    rest = check_operands(lambda: ops.gspmm(g, op, reduce_op, x, w), op, x, w, wanted)
    winners = [shape for shape in rest if len(shape) > 1]
    assert winners == ([(g.num_dst, 4)] if reduce_op in ("max", "min") else [])


@pytest.mark.parametrize("wanted", WANTED)
@pytest.mark.parametrize("op", support.SDDMM_OPS)
def test_gsddmm(op, wanted):
    g = make_graph("bipartite")
    x, y = (randn(rows, 4, dtype=torch.float32) for rows in (g.num_src, g.num_dst))
    wanted, x, y = operands(op, wanted, x, y)
    rest = check_operands(lambda: ops.gsddmm(g, op, x, y, "u", "v"), op, x, y, wanted)
    assert all(len(shape) == 1 for shape in rest)


@pytest.mark.parametrize("norm_by", ["dst", "src"])
def test_edge_softmax(norm_by):
    g = make_graph("bipartite")
    logits = randn(g.num_edges, 4, dtype=torch.float32).requires_grad_()
    found = kept(lambda: ops.edge_softmax(g, logits, norm_by))
    assert [shape for _, shape in found if len(shape) > 1] == [(g.num_edges, 4)]
    assert logits.data_ptr() not in [at for at, _ in found]


@pytest.mark.parametrize("reducer", support.REDUCES)
def test_segment_reduce(reducer):
    value = randn(6, 4, dtype=torch.float32).requires_grad_()
    found = kept(lambda: ops.segment_reduce(torch.tensor([2, 0, 4]), value, reducer))
    assert [shape for _, shape in found if len(shape) > 1] == ([(3, 4)] if reducer in ("max", "min") else [])
