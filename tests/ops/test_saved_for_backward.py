"""The data that autograd keeps for the backward of an operator, and the data that a call without gradients does not
make."""

from itertools import product

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from halfgnn import ops
from tests import support
from tests.support import make_graph, randn
from tests.support_calls import CALLS, Call
from tests.support_dispatch import kept

# Operator -> operands that the gradient of the left operand reads, and those of the right operand.
READS = {
    "add": ("", ""),
    "sub": ("", ""),
    "mul": ("r", "l"),
    "div": ("r", "lr"),
    "relu_add": ("lr", "lr"),
    "dot": ("r", "l"),
    "copy_lhs": ("", ""),
    "copy_rhs": ("", ""),
}
WANTED = {"copy_lhs": ["l"], "copy_rhs": ["r"]}


def check_operands(run, op, lhs_rows, rhs_rows, wanted):
    """run(lhs, rhs) keeps the operands that the requested gradients read. Returns the shapes of all other kept tensors
    except ids."""
    lhs = None if op == "copy_rhs" else randn(lhs_rows, 4, dtype=torch.float32).requires_grad_("l" in wanted)
    rhs = None if op == "copy_lhs" else randn(rhs_rows, 4, dtype=torch.float32).requires_grad_("r" in wanted)
    names = {x.data_ptr(): name for name, x in (("l", lhs), ("r", rhs)) if x is not None}
    found = kept(lambda: run(lhs, rhs))
    assert {names[at] for at, _ in found if at in names} == {
        name for side, reads in zip("lr", READS[op]) if side in wanted for name in reads
    }
    return [shape for at, shape in found if at not in names and len(shape) > 1]


@pytest.mark.parametrize("op", support.SPMM_OPS)
def test_gspmm(op):
    g = make_graph("bipartite")
    for reduce_op, wanted in product(support.REDUCES, WANTED.get(op, ["l", "r", "lr"])):
        rest = check_operands(lambda x, w: ops.gspmm(g, op, reduce_op, x, w), op, g.num_src, g.num_edges, wanted)  # noqa: B023
        assert rest == ([(g.num_dst, 4)] if reduce_op in ("max", "min") else [])  # the winners


@pytest.mark.parametrize("op", support.SDDMM_OPS)
def test_gsddmm(op):
    g = make_graph("bipartite")
    for wanted in WANTED.get(op, ["l", "r", "lr"]):
        assert not check_operands(lambda x, y: ops.gsddmm(g, op, x, y), op, g.num_src, g.num_dst, wanted)


@pytest.mark.parametrize("norm_by", ["dst", "src"])
def test_edge_softmax(norm_by):
    g = make_graph("bipartite")
    logits = randn(g.num_edges, 4, dtype=torch.float32).requires_grad_()
    found = kept(lambda: ops.edge_softmax(g, logits, norm_by))
    assert [shape for _, shape in found if len(shape) > 1] == [(g.num_edges, 4)]
    assert logits.data_ptr() not in [at for at, _ in found]


def test_segment_reduce():
    value = randn(6, 4, dtype=torch.float32).requires_grad_()
    for reducer in support.REDUCES:
        found = kept(lambda: ops.segment_reduce(torch.tensor([2, 0, 4]), value, reducer))  # noqa: B023
        assert [shape for _, shape in found if len(shape) > 1] == ([(3, 4)] if reducer in ("max", "min") else [])


# ---- the other side of the graph, which only gradients of sources walk ---------------------------------------------------------


def makes_out_edges(run):
    g = make_graph("bipartite")
    run(g)
    return g._csr is not None


def u(g, requires_grad):
    return randn(g.num_src, 4, dtype=torch.float32).requires_grad_(requires_grad)


def e(g, requires_grad):
    return randn(g.num_edges, 4, dtype=torch.float32).requires_grad_(requires_grad)


@pytest.mark.parametrize(
    "run",
    [
        lambda g, of_u, of_e: ops.u_mul_e_sum(g, u(g, of_u), e(g, of_e)),
        lambda g, of_u, of_e: ops.u_add_e_max(g, u(g, of_u), e(g, of_e)),
        lambda g, of_u, of_e: ops.u_mul_e(g, u(g, of_u), e(g, of_e)),
        lambda g, of_u, of_e: ops.e_mul_u(g, e(g, of_e), u(g, of_u)),
    ],
    ids=["u_mul_e_sum", "u_add_e_max", "u_mul_e", "e_mul_u"],
)
def test_out_edges_are_made_for_gradients_of_sources_alone(run):
    assert makes_out_edges(lambda g: run(g, True, True))
    assert makes_out_edges(lambda g: run(g, True, False))
    assert not makes_out_edges(lambda g: run(g, False, True))
    with torch.no_grad():
        assert not makes_out_edges(lambda g: run(g, True, True))


# ---- a checkpoint gives what was saved once -----------------------------------------------------------------------------------

_ROW, _EDGE = [("u", (4,))], ("e", (4,))
_PAIR, _COLUMNS = ("u", (2, 8)), ("e", (3,))
MORE_CALLS = [
    Call("u_relu_add_e_sum", ops.u_relu_add_e_sum, [*_ROW, _EDGE]),
    Call("u_add_v_add_e", ops.u_add_v_add_e, [*_ROW, ("v", (4,)), _EDGE]),
    Call("gated_sum", ops.gated_sum, [*_ROW, *_ROW, ("v", (4,))]),
    Call("edge_network", lambda g, x, y, w: ops.edge_network(g, x, y, [(w, None)]), [*_ROW, ("v", (4,)), (None, (3, 4))]),
    Call(
        "gated_sum of edges", lambda g, *x: ops.gated_sum(g, *x, normalize=True),
        [*_ROW, *_ROW, ("v", (4,)), _EDGE, _EDGE],
    ),
    Call(
        "dot_attention with columns",
        lambda g, q, k, v, e, w: ops.dot_attention(g, q, k, v, edge_feat=e, edge_key_weight=w, edge_value_weight=w),
        [("v", (2, 8)), _PAIR, _PAIR, _COLUMNS, (None, (2, 8, 3))],
    ),
    Call(
        "gatv2_attention with columns",
        lambda g, u, v, a, e, w: ops.gatv2_attention(g, u, v, a, edge_feat=e, edge_weight=w),
        [_PAIR, ("v", (2, 8)), (None, (2, 8)), _COLUMNS, (None, (2, 8, 3))],
    ),
]  # fmt: skip


@pytest.mark.parametrize("call", [*CALLS, *MORE_CALLS], ids=lambda call: call.name)
def test_checkpoint(call):
    g = make_graph("bipartite")
    grads = []
    for wrap in (lambda run, *x: run(*x), lambda run, *x: checkpoint(run, *x, use_reentrant=False)):
        torch.manual_seed(4)
        operands = [x.requires_grad_() for x in call.operands(g, torch.float32)]
        wrap(lambda *x: call.run(g, *x), *operands).square().sum().backward()
        grads.append([x.grad for x in operands])
    assert all(torch.equal(*pair) for pair in zip(*grads))


@pytest.mark.parametrize("call", [*CALLS, *MORE_CALLS], ids=lambda call: call.name)
def test_operands_that_are_written_to_after_the_call(call):
    """Either no gradient reads them, or the error says which operator's does, and what to write."""
    g = make_graph("bipartite")
    leaves = [x.requires_grad_() for x in call.operands(g, torch.float32)]
    operands = [1 * x for x in leaves]
    out = call.run(g, *operands)
    reads = {x.data_ptr() for x in operands} & {address for address, _ in kept(lambda: call.run(g, *operands))}
    for x in operands:
        x += 1
    if not reads:
        return out.sum().backward()
    name = call.name.split()[0] if not call.name.startswith(("u_", "copy_u_sum")) else r"gs\w+"
    with pytest.raises(
        RuntimeError, match=rf"^the gradient of {name} reads an operand .* write x = x \+ y in place of x \+= y"
    ):
        out.sum().backward()
