"""gspmm and its named forms: every operator, reduction, type, shape and graph, by the accuracy rule of support.py."""

import functools
import itertools

import pytest
import torch

import halfgnn
from halfgnn import ops
from tests import support
from tests.support import (
    DEVICES,
    DTYPES,
    GRAPHS,
    HALVES,
    HEADS,
    IDTYPES,
    MIXED,
    REDUCES,
    SPMM_OPS,
    WIDTHS,
    check_gspmm,
    make_graph,
    randn,
)

CELLS = list(itertools.product(SPMM_OPS, REDUCES))

# (lhs, rhs) trailing shapes: from DGL's own tests, then from models, then unusual ones.
SHAPES = [
    ((1, 2, 1, 3, 1), (4, 1, 3, 1, 1)),
    ((3, 3), (1, 3)),
    ((1,), (3,)),
    ((3,), (1,)),
    ((1,), (1,)),
    ((), ()),
    ((5, 3, 1, 7), (1, 3, 7, 7)),
    ((1, 3, 3), (4, 1, 3)),
    ((3,), (3,)),
    ((4, 8), (4, 1)),  # one weight per head
    ((4, 8), (1, 1)),  # one weight for all heads
    ((16, 1), (16, 8)),  # NNConv
    ((4, 8), (1, 8)),
    ((8,), ()),  # (N, D) with (E,)
    ((), (8,)),
    ((2, 3), (3,)),  # (N, H, D) with (E, K): K meets D
    ((3,), (2, 3)),
    ((), (2, 3)),
    ((2, 1, 5), (3, 1)),
    ((2, 0), (2, 1)),  # no columns at all
    ((4, 1), (1, 5)),  # both sides broadcast
]


# ---- operators, types and shapes -----------------------------------------------------------------


def test_example(device):
    g, x = support.example(device)
    weight = torch.tensor([1.0, 2.0, 3.0, 4.0], device=device)  # of 0 -> 1, 1 -> 2, 2 -> 0, 2 -> 1
    assert ops.copy_u_sum(g, x).tolist() == [[9, 10, 11, 12], [10, 12, 14, 16], [5, 6, 7, 8]]
    assert ops.copy_u_mean(g, x).tolist() == [[9, 10, 11, 12], [5, 6, 7, 8], [5, 6, 7, 8]]
    assert ops.u_mul_e_sum(g, x, weight).tolist() == [[27, 30, 33, 36], [37, 42, 47, 52], [10, 12, 14, 16]]


@pytest.mark.parametrize("device,dtype", support.devices_and(DTYPES))
@pytest.mark.parametrize("op,reduce_op", CELLS)
def test_op_reduce_dtype(op, reduce_op, dtype, device):
    # The index type and the order of edge data alternate from row to row of the table.
    turn = SPMM_OPS.index(op) + REDUCES.index(reduce_op)
    for identity in (False, True):
        g = make_graph("bipartite", IDTYPES[(turn + identity) % 2], device, identity)
        check_gspmm(g, op, reduce_op, support.spmm_operands(g, op, (33,), (33,), dtype, device))
        check_gspmm(g, op, reduce_op, support.spmm_operands(g, op, (2, 9), (2, 1), dtype, device))


@pytest.mark.parametrize("device,dtype", support.devices_and([*HALVES, torch.float32]))
@pytest.mark.parametrize("width", WIDTHS)
def test_widths(width, dtype, device):
    g = make_graph("skewed" if width <= 64 else "random", torch.int32, device)
    for op, rhs in (("copy_lhs", ()), ("mul", ()), ("mul", (width,)), ("copy_rhs", (width,))):
        check_gspmm(g, op, "sum", support.spmm_operands(g, op, (width,), rhs, dtype, device))
    check_gspmm(g, "copy_lhs", "mean", support.spmm_operands(g, "copy_lhs", (width,), (), dtype, device))
    check_gspmm(g, "add", "max", support.spmm_operands(g, "add", (width,), (1,), dtype, device))


@pytest.mark.parametrize("device,dtype", support.devices_and(HALVES))
@pytest.mark.parametrize("dim", [1, 2, 3, 8, 33, 64, 130])
@pytest.mark.parametrize("heads", HEADS)
def test_heads(heads, dim, dtype, device):
    g = make_graph("bipartite", torch.int64, device)
    for reduce_op in ("sum", "mean"):
        check_gspmm(g, "mul", reduce_op, support.spmm_operands(g, "mul", (heads, dim), (heads, 1), dtype, device))
    check_gspmm(g, "copy_rhs", "sum", support.spmm_operands(g, "copy_rhs", (), (heads, 1), dtype, device))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("lhs,rhs", SHAPES)
def test_broadcast(lhs, rhs, device):
    g = make_graph("random", torch.int64, device)
    cells = [("add", "sum", torch.float16), ("mul", "sum", torch.bfloat16), ("mul", "mean", torch.float16)]
    cells += [("div", "sum", torch.float16), ("sub", "mean", torch.float32), ("mul", "max", torch.float16)]
    cells += [("sub", "min", torch.bfloat16), ("div", "max", torch.float32)]
    for op, reduce_op, dtype in cells:
        out, _ = check_gspmm(g, op, reduce_op, support.spmm_operands(g, op, lhs, rhs, dtype, device))
        one = torch.ones(1, *lhs), torch.ones(1, *rhs)
        rank = max(len(lhs), len(rhs))
        padded = [x.reshape(1, *[1] * (rank + 1 - x.dim()), *x.shape[1:]) for x in one]
        assert out.shape[1:] == torch.broadcast_shapes(*(x.shape for x in padded))[1:]


# ---- graphs --------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("identity", [False, True], ids=["edge_ids", "no_edge_ids"])
@pytest.mark.parametrize("idtype", IDTYPES, ids=str)
@pytest.mark.parametrize("name", GRAPHS)
def test_graphs(name, idtype, identity, device):
    g = make_graph(name, idtype, device, identity)
    for (op, reduce_op), dtype in zip(CELLS, itertools.cycle([torch.float16, torch.float32, torch.bfloat16])):
        out, grads = check_gspmm(g, op, reduce_op, support.spmm_operands(g, op, (2, 5), (2, 1), dtype, device))
        assert (out[g.in_degrees() == 0] == 0).all()
        if grads[0] is not None:
            assert (grads[0][g.out_degrees() == 0] == 0).all()


@pytest.mark.parametrize("device,dtype", support.devices_and([torch.float16, torch.bfloat16, torch.float32]))
@pytest.mark.parametrize("identity", [False, True], ids=["edge_ids", "no_edge_ids"])
@pytest.mark.parametrize("heads,dim", [(1, 100), (1, 64), (2, 64), (4, 32), (3, 33), (5, 16), (9, 8), (1, 9)])
def test_runs_of_edges(heads, dim, identity, dtype, device):
    """Rows of as many edges as kernels read at a time, and a few more or fewer. Sums of small integers are exact."""
    degrees = [63, 64, 65, 0, 1, 127, 128, 129, 15, 16, 17, 193, 2, 256, 7, 0]
    dst = torch.arange(len(degrees)).repeat_interleave(torch.tensor(degrees))
    order = torch.arange(dst.numel()) if identity else torch.randperm(dst.numel())
    src = torch.randint(50, dst.shape)
    idtype = IDTYPES[heads % 2]
    made = halfgnn.Graph.from_edges(
        src[order].to(device, idtype), dst[order].to(device, idtype), num_src=50, num_dst=len(degrees), sort=identity
    )
    g = made[0] if isinstance(made, tuple) else made
    src, dst = src[order], dst[order]

    def integers(*shape):
        return torch.randint(-3, 4, shape).double()

    x, weight, grad = integers(50, heads, dim), integers(dst.numel(), heads, 1), integers(len(degrees), heads, dim)

    def exact(rows, index, values):
        return torch.zeros(rows, heads, dim, dtype=torch.float64).index_add_(0, index, values)

    def given(tensor):
        return tensor.to(device, dtype).requires_grad_()

    for w in (None, weight):
        message = x[src] if w is None else x[src] * w
        leaves = [given(x)] + ([] if w is None else [given(w)])
        out = ops.copy_u_sum(g, *leaves) if w is None else ops.u_mul_e_sum(g, *leaves)
        assert torch.equal(out.detach().cpu(), exact(len(degrees), dst, message).to(dtype))
        out.backward(grad.to(device, dtype))
        grad_x = exact(50, src, grad[dst] if w is None else grad[dst] * w)
        assert torch.equal(leaves[0].grad.cpu(), grad_x.to(dtype))
        if w is not None:
            grad_weight = (x[src] * grad[dst]).sum(-1, keepdim=True)
            assert torch.equal(leaves[1].grad.cpu(), grad_weight.to(dtype))
    copied = ops.copy_e_sum(g, given(x[src] * weight))
    assert torch.equal(copied.detach().cpu(), exact(len(degrees), dst, x[src] * weight).to(dtype))


@pytest.mark.parametrize("device,dtype", support.devices_and([torch.float16, torch.bfloat16, torch.float32]))
@pytest.mark.parametrize("op,reduce_op,lhs,rhs", [
    ("copy_lhs", "sum", (8,), ()),
    ("copy_lhs", "mean", (3,), ()),
    ("copy_lhs", "max", (4,), ()),
    ("mul", "sum", (2, 8), (2, 1)),
    ("mul", "mean", (), ()),
    ("copy_rhs", "mean", (), (2,)),
    ("add", "min", (2,), (1,)),
])  # fmt: skip
def test_hub(op, reduce_op, lhs, rhs, dtype, device):
    g = support.hub_graph(device=device)
    check_gspmm(g, op, reduce_op, support.spmm_operands(g, op, lhs, rhs, dtype, device), terms=100_000)
    # In the reverse graph this is one source with 100,000 out-edges.
    g = g.reverse()
    check_gspmm(g, op, reduce_op, support.spmm_operands(g, op, lhs, rhs, dtype, device), terms=100_000)


@pytest.mark.parametrize("device", DEVICES)
def test_csc_with_its_own_edge_order(device):
    """Edge ids may be any permutation. Ties follow the order of the CSC, not the ids."""
    indptr, indices = torch.tensor([0, 0, 4, 7]), torch.tensor([2, 0, 1, 1, 2, 0, 0])
    edge_ids = torch.tensor([6, 2, 0, 4, 1, 5, 3])
    g = halfgnn.Graph.from_csc(*(x.to(device) for x in (indptr, indices, edge_ids)), num_src=3)
    for op, reduce_op in CELLS:
        check_gspmm(g, op, reduce_op, support.spmm_operands(g, op, (5,), (5,), torch.float16, device))
    weight = torch.ones(7, device=device, requires_grad=True)
    ops.copy_e_max(g, weight).sum().backward()
    assert weight.grad.tolist() == [0, 1, 0, 0, 0, 0, 1]


# ---- layouts -------------------------------------------------------------------------------------


LAYOUTS = [support.misaligned, support.column_major, support.every_other]


@pytest.mark.parametrize("device,dtype", support.devices_and([torch.float16, torch.bfloat16, torch.float32]))
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layout_of_inputs(layout, dtype, device):
    g = make_graph("bipartite", torch.int32, device)
    for op, reduce_op, lhs, rhs in [
        ("mul", "sum", (4, 8), (4, 1)),
        ("copy_lhs", "sum", (64,), ()),
        ("copy_rhs", "mean", (), (3, 7)),
        ("mul", "sum", (41,), ()),
        ("add", "max", (9,), (9,)),
    ]:
        operands = support.spmm_operands(g, op, lhs, rhs, dtype, device)
        expected = ops.gspmm(g, op, reduce_op, *operands)
        moved = [x if x is None else layout(x) for x in operands]
        out, _ = check_gspmm(g, op, reduce_op, moved)
        support.assert_same(out, expected)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layout_of_gradient(layout, device):
    g = make_graph("bipartite", torch.int32, device)
    for dtype, (op, reduce_op) in itertools.product(HALVES, [("mul", "sum"), ("copy_lhs", "mean"), ("mul", "max")]):
        x, y = support.spmm_operands(g, op, (4, 8), (4, 1), dtype, device)
        x.requires_grad_()
        out = ops.gspmm(g, op, reduce_op, x, y)
        grad = randn(*out.shape, dtype=dtype, device=device)
        (plain,) = torch.autograd.grad(out, x, grad, retain_graph=True)
        (moved,) = torch.autograd.grad(out, x, layout(grad))
        support.assert_same(moved, plain)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("reduce_op", REDUCES)
def test_expanded_gradient_and_operands(reduce_op, device):
    """out.sum().backward() gives a gradient of one value with stride 0. Features may be expanded too."""
    g = make_graph("bipartite", torch.int64, device)
    x = randn(1, 8, dtype=torch.float16, device=device).expand(g.num_src, 8)
    y = randn(g.num_edges, 1, dtype=torch.float16, device=device).expand(g.num_edges, 8)
    x, y = x.detach().requires_grad_(), y.detach().requires_grad_()
    ops.gspmm(g, "mul", reduce_op, x, y).sum().backward()
    dense = [v.detach().contiguous().requires_grad_() for v in (x, y)]
    out = ops.gspmm(g, "mul", reduce_op, *dense)
    out.backward(torch.ones_like(out))
    assert torch.equal(x.grad, dense[0].grad) and torch.equal(y.grad, dense[1].grad)


# ---- output type and mixed operands --------------------------------------------------------------


@pytest.mark.parametrize("device,dtype", support.devices_and(HALVES))
@pytest.mark.parametrize("op,reduce_op", CELLS)
def test_out_dtype_float32(op, reduce_op, dtype, device):
    g = make_graph("bipartite", torch.int32, device)
    for lhs, rhs in [((4, 8), (4, 1)), ((33,), (33,))]:
        operands = support.spmm_operands(g, op, lhs, rhs, dtype, device)
        check_gspmm(g, op, reduce_op, operands, out_dtype=torch.float32)


@pytest.mark.parametrize("device,dtype", support.devices_and(DTYPES))
def test_out_dtype_may_be_the_input_type(dtype, device):
    g = make_graph("random", torch.int32, device)
    x = randn(g.num_src, 5, dtype=dtype, device=device)
    assert torch.equal(ops.copy_u_sum(g, x, out_dtype=dtype), ops.copy_u_sum(g, x))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtypes", MIXED, ids=str)
@pytest.mark.parametrize("out_dtype", [None, torch.float32])
@pytest.mark.parametrize("op,reduce_op", [c for c in CELLS if not c[0].startswith("copy")])
def test_mixed_types(op, reduce_op, out_dtype, dtypes, device):
    """The result has the dtype of lhs_data, and each gradient that of its operand."""
    g = make_graph("bipartite", torch.int32, device)
    for lhs, rhs in [((4, 8), (4, 1)), ((16,), ()), ((7,), (7,)), ((33,), (33,)), ((3, 9), (1, 9)), ((2, 2), (2, 1))]:
        operands = support.spmm_operands(g, op, lhs, rhs, dtypes[0], device, rhs_dtype=dtypes[1])
        out, grads = check_gspmm(g, op, reduce_op, operands, out_dtype=out_dtype)
        assert out.dtype == (out_dtype or dtypes[0]) and [x.dtype for x in grads] == list(dtypes)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtypes", MIXED, ids=str)
@pytest.mark.parametrize("lhs,rhs", [((4, 8), (4, 1)), ((40,), (40,)), ((3, 2), (3, 1)), ((4, 40), (4, 1))])
def test_mixed_types_are_not_rounded(lhs, rhs, dtypes, device):
    """Result and gradients are those of fp32 copies, rounded once."""
    g = make_graph("skewed", torch.int64, device)
    operands = support.spmm_operands(g, "mul", lhs, rhs, dtypes[0], device, rhs_dtype=dtypes[1])
    grad = randn(g.num_dst, *lhs, dtype=torch.float32, device=device)
    results = []
    for cast in (lambda x: x, torch.Tensor.float):
        leaves = [cast(x).detach().requires_grad_() for x in operands]
        out = ops.gspmm(g, "mul", "mean", *leaves, out_dtype=torch.float32)
        results.append([out.detach(), *torch.autograd.grad(out, leaves, grad)])
    for got, wide in zip(*results):
        if got.dtype == torch.float32:
            torch.testing.assert_close(got, wide, rtol=1e-5, atol=1e-5)
        else:
            torch.testing.assert_close(got, wide.to(got.dtype), rtol=torch.finfo(got.dtype).eps, atol=1e-6)


@pytest.mark.parametrize("device,dtype", support.devices_and(HALVES))
def test_float32_weights_are_not_rounded(dtype, device):
    """Weights that all round to 1 in half precision still differ."""
    g = make_graph("star", torch.int32, device)
    x = torch.ones(g.num_src, 8, dtype=dtype, device=device)
    w = torch.full((g.num_edges, 1), 1 + 2.0**-12, device=device)
    out = ops.u_mul_e_sum(g, x, w, out_dtype=torch.float32)
    assert torch.equal(out[3], torch.full_like(out[3], 300 * (1 + 2.0**-12)))


# ---- gradients -----------------------------------------------------------------------------------


@pytest.mark.parametrize("lhs,rhs", [((), ()), ((2, 3), (2, 1)), ((2, 1), (1, 3)), ((3,), (2, 3))])
@pytest.mark.parametrize("op,reduce_op", CELLS)
def test_gradcheck(op, reduce_op, lhs, rhs):
    g = make_graph("duplicates", torch.int64)
    operands = support.spmm_operands(g, op, lhs, rhs, torch.float64)
    leaves = [x.requires_grad_() for x in operands if x is not None]

    def run(*leaves):
        given = iter(leaves)
        return ops.gspmm(g, op, reduce_op, *(x if x is None else next(given) for x in operands))

    assert torch.autograd.gradcheck(run, leaves)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtypes", [(torch.float16, torch.float16), *MIXED], ids=str)
@pytest.mark.parametrize("op,reduce_op", [c for c in CELLS if not c[0].startswith("copy")])
@pytest.mark.parametrize("wanted", ["lhs", "rhs"])
def test_gradient_of_one_operand_alone(op, reduce_op, wanted, dtypes, device):
    """One requested gradient is that with both requested, but for the order of sums: another kernel may make it."""
    g = make_graph("bipartite", torch.int32, device)
    for lhs, rhs in [((4, 8), (4, 1)), ((7,), (7,))]:
        operands = support.spmm_operands(g, op, lhs, rhs, dtypes[0], device, dtypes[1])
        i = ("lhs", "rhs").index(wanted)
        grad = randn(g.num_dst, *lhs, dtype=dtypes[0], device=device)
        _, both = support.evaluate(lambda x, y: ops.gspmm(g, op, reduce_op, x, y), operands, grad)
        alone = [x.detach() for x in operands]
        alone[i].requires_grad_()
        ops.gspmm(g, op, reduce_op, *alone).backward(grad)
        torch.testing.assert_close(alone[i].grad, both[i], rtol=torch.finfo(dtypes[i]).eps, atol=1e-5)
        assert alone[1 - i].grad is None


@pytest.mark.parametrize("device", DEVICES)
def test_no_grad_and_inference_mode(device):
    g = make_graph("random", torch.int64, device)
    x = randn(g.num_src, 4, dtype=torch.float16, device=device).requires_grad_()
    expected = ops.copy_u_max(g, x)
    assert expected.requires_grad
    with torch.no_grad():
        out = ops.copy_u_max(g, x)
        assert not out.requires_grad and torch.equal(out, expected)
    with torch.inference_mode():
        assert torch.equal(ops.copy_u_max(g, x), expected)


@pytest.mark.parametrize("device", DEVICES)
def test_inputs_are_left_alone(device):
    g = make_graph("random", torch.int64, device)
    x, y = support.spmm_operands(g, "mul", (4,), (1,), torch.float16, device)
    before = x.clone(), y.clone()
    for op, reduce_op in CELLS:
        operands = [None if op == "copy_rhs" else x, None if op == "copy_lhs" else y]
        support.evaluate(functools.partial(ops.gspmm, g, op, reduce_op), operands, torch.ones_like)
    assert torch.equal(x, before[0]) and torch.equal(y, before[1])


# ---- reproducibility -----------------------------------------------------------------------------


@pytest.mark.parametrize("device,dtype", support.devices_and([torch.float16, torch.float32]))
@pytest.mark.parametrize("op,reduce_op", [("mul", "sum"), ("copy_lhs", "sum"), ("add", "mean"), ("div", "max")])
def test_bitwise_equal_runs_and_threads(op, reduce_op, dtype, device):
    g = support.hub_graph(20_000, device=device)
    operands = support.spmm_operands(g, op, (4, 8), (4, 1), dtype, device)
    grad = randn(g.num_dst, 4, 8, dtype=dtype, device=device)

    def run():
        out, grads = support.evaluate(lambda x, y: ops.gspmm(g, op, reduce_op, x, y), operands, grad)
        return [out] + [x for x in grads if x is not None]

    threads = torch.get_num_threads()
    try:
        runs = []
        for n in (1, 2, 3, 2):
            torch.set_num_threads(n)
            runs.append(run())
    finally:
        torch.set_num_threads(threads)
    for other in runs[1:]:
        assert all(torch.equal(a, b) for a, b in zip(runs[0], other))


# ---- names ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
def test_named_operators(device):
    g = make_graph("bipartite", torch.int64, device)
    x, y = support.spmm_operands(g, "div", (4, 3), (4, 1), torch.bfloat16, device)
    for reduce_op in REDUCES:
        for op in ("add", "sub", "mul", "div"):
            out = getattr(ops, f"u_{op}_e_{reduce_op}")(g, x, y)
            assert torch.equal(out, ops.gspmm(g, op, reduce_op, x, y))
            wide = getattr(ops, f"u_{op}_e_{reduce_op}")(g, x, y, out_dtype=torch.float32)
            assert wide.dtype == torch.float32 and torch.equal(wide.bfloat16(), out)
        for name, op, operand, operands in (("u", "copy_lhs", x, (x, None)), ("e", "copy_rhs", y, (None, y))):
            copy = getattr(ops, f"copy_{name}_{reduce_op}")
            assert torch.equal(copy(g, operand), ops.gspmm(g, op, reduce_op, *operands))
            wide = copy(g, operand, out_dtype=torch.float32)
            assert wide.dtype == torch.float32 and torch.equal(wide.bfloat16(), copy(g, operand))
