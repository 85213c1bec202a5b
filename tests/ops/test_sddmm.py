"""gsddmm and its named forms: every operator, pair of targets, type, shape and graph, by the accuracy rule of
support.py."""

import itertools

import pytest
import torch

import halfgnn
from halfgnn import ops
from tests import support
from tests.support import (
    DTYPES,
    GRAPHS,
    HALVES,
    HEADS,
    IDTYPES,
    MIXED,
    SDDMM_OPS,
    WIDTHS,
    check_gsddmm,
    make_graph,
    randn,
    rows_of,
)

TARGETS = list(itertools.product("uve", "uve"))

# (lhs, rhs) trailing shapes: from DGL's own tests, then from models, then unusual ones.
DOT_SHAPES = [
    ((5, 3, 1, 7), (1, 3, 7, 7)),
    ((1, 3, 3), (4, 1, 3)),
    ((3,), (3,)),
    ((1,), (1,)),
    ((4, 8), (4, 8)),
    ((4, 8), (8,)),
    ((), ()),
    ((2, 0), (2, 0)),
]
SHAPES = [*DOT_SHAPES, ((1, 2, 1, 3, 1), (4, 1, 3, 1, 1)), ((4, 1), (4, 1)), ((4, 8), (4, 1)), ((8,), ()), ((), (2, 3))]


def operands_for(g, op, lhs_target, rhs_target, lhs, rhs, dtype, device="cpu", rhs_dtype=None):
    """lhs_data, rhs_data for gsddmm. An operand that op does not read is None."""
    divisor = support.away_from_zero if op == "div" else randn
    x = randn(rows_of(g, lhs_target), *lhs, dtype=dtype, device=device)
    y = divisor(rows_of(g, rhs_target), *rhs, dtype=rhs_dtype or dtype, device=device)
    return [None if op == "copy_rhs" else x, None if op == "copy_lhs" else y]


def check_cell(g, op, targets, lhs, rhs, dtype, device, **kwargs):
    return check_gsddmm(g, op, operands_for(g, op, *targets, lhs, rhs, dtype, device), *targets, **kwargs)


# ---- operators, types and shapes -----------------------------------------------------------------


def test_example(device):
    g, x = support.example(device)  # 0 -> 1, 1 -> 2, 2 -> 0, 2 -> 1
    assert ops.u_dot_v(g, x, x).tolist() == [[70], [278], [110], [278]]
    assert ops.u_sub_v(g, x, x).tolist() == [[-4] * 4, [-4] * 4, [8] * 4, [4] * 4]


@pytest.mark.parametrize("device,dtype", support.devices_and(DTYPES))
@pytest.mark.parametrize("lhs_target,rhs_target", TARGETS)
@pytest.mark.parametrize("op", SDDMM_OPS)
def test_op_targets_dtype(op, lhs_target, rhs_target, dtype, device):
    turn = SDDMM_OPS.index(op) + "uve".index(lhs_target)
    for identity in (False, True):
        g = make_graph("bipartite", IDTYPES[(turn + identity) % 2], device, identity)
        check_cell(g, op, (lhs_target, rhs_target), (3, 9), (3, 9), dtype, device)


@pytest.mark.parametrize("device,dtype", support.devices_and(DTYPES))
@pytest.mark.parametrize("lhs_target,rhs_target", TARGETS)
def test_narrow_products(lhs_target, rhs_target, dtype, device):
    """Their gradients are sums of products of rows of a few values, which have a kernel on the CPU."""
    for width, identity in ((1, False), (4, True), (7, False)):
        g = make_graph("bipartite", torch.int64 if identity else torch.int32, device, identity)
        check_cell(g, "mul", (lhs_target, rhs_target), (width,), (width,), dtype, device)


@pytest.mark.parametrize("dtypes", MIXED, ids=str)
@pytest.mark.parametrize("lhs_target,rhs_target", TARGETS)
@pytest.mark.parametrize("op", [op for op in SDDMM_OPS if not op.startswith("copy")])
def test_mixed_types(op, lhs_target, rhs_target, dtypes, device):
    """The result is fp32, and each gradient has the dtype of its operand."""
    g = make_graph("bipartite", torch.int32, device)
    for (lhs, rhs), out_dtype in zip([((3, 9), (3, 9)), ((33,), (33,)), ((2,), (1,))], [None, None, torch.float32]):
        if op == "dot" and lhs != rhs:
            continue
        operands = operands_for(g, op, lhs_target, rhs_target, lhs, rhs, dtypes[0], device, dtypes[1])
        out, grads = check_gsddmm(g, op, operands, lhs_target, rhs_target, out_dtype=out_dtype)
        assert out.dtype == torch.float32 and [x.dtype for x in grads] == list(dtypes)


@pytest.mark.parametrize("device,dtype", support.devices_and([*HALVES, torch.float32]))
@pytest.mark.parametrize("width", WIDTHS)
def test_widths(width, dtype, device):
    g = make_graph("skewed" if width <= 64 else "random", torch.int32, device)
    check_cell(g, "dot", "uv", (width,), (width,), dtype, device)
    check_cell(g, "dot", "ve", (width,), (width,), dtype, device)
    check_cell(g, "add", "uv", (width,), (width,), dtype, device)
    check_cell(g, "mul", "eu", (1,), (width,), dtype, device)
    check_cell(g, "copy_rhs", "uv", (), (width,), dtype, device)


@pytest.mark.parametrize("device,dtype", support.devices_and(HALVES))
@pytest.mark.parametrize("dim", [1, 3, 8, 12, 16, 23, 32, 33, 57, 64])
@pytest.mark.parametrize("heads", HEADS)
def test_heads(heads, dim, dtype, device):
    g = make_graph("bipartite", torch.int64, device)
    out, _ = check_cell(g, "dot", "uv", (heads, dim), (heads, dim), dtype, device)
    assert out.shape == (g.num_edges, heads, 1)
    check_cell(g, "add", "uv", (heads, 1), (heads, 1), dtype, device)
    check_cell(g, "sub", "ev", (heads, dim), (heads, 1), dtype, device)


@pytest.mark.parametrize("lhs,rhs", SHAPES)
def test_broadcast(lhs, rhs, device):
    g = make_graph("random", torch.int64, device)
    dots = [("dot", "uv", torch.float16), ("dot", "vu", torch.float32), ("dot", "ev", torch.bfloat16)]
    cells = [("add", "uv", torch.float16), ("mul", "ve", torch.bfloat16), ("div", "eu", torch.float16)]
    cells += [("sub", "vu", torch.float32), ("mul", "uv", torch.float16), ("add", "ev", torch.bfloat16)]
    for op, targets, dtype in cells + (dots if (lhs, rhs) in DOT_SHAPES else []):
        check_cell(g, op, targets, lhs, rhs, dtype, device)
        check_cell(g, op, targets, rhs, lhs, dtype, device)


def test_dot_keeps_the_last_dimension_as_one(device):
    g = make_graph("bipartite", torch.int64, device)
    for lhs, rhs, out in [((4, 8), (4, 8), (4, 1)), ((8,), (8,), (1,)), ((), (), ()), ((2, 1, 5), (3, 5), (2, 3, 1))]:
        x, y = operands_for(g, "dot", "u", "v", lhs, rhs, torch.float16, device)
        assert ops.u_dot_v(g, x, y).shape == (g.num_edges, *out)


# ---- graphs and layouts --------------------------------------------------------------------------


@pytest.mark.parametrize("identity", [False, True], ids=["edge_ids", "no_edge_ids"])
@pytest.mark.parametrize("idtype", IDTYPES, ids=str)
@pytest.mark.parametrize("name", GRAPHS)
def test_graphs(name, idtype, identity, device):
    g = make_graph(name, idtype, device, identity)
    dtypes = itertools.cycle([torch.float16, torch.float32, torch.bfloat16])
    for (op, targets), dtype in zip(itertools.product(SDDMM_OPS, ["uv", "ev", "ue"]), dtypes):
        out, grads = check_cell(g, op, targets, (2, 5), (2, 5), dtype, device)
        assert out.shape[0] == g.num_edges
        if targets[0] == "u" and grads[0] is not None:
            assert (grads[0][g.out_degrees() == 0] == 0).all()


@pytest.mark.parametrize("device,dtype", support.devices_and([torch.float16, torch.float32]))
@pytest.mark.parametrize(
    "op,targets,shape", [("dot", "uv", (8,)), ("add", "uv", (2, 1)), ("mul", "ve", (3,)), ("copy_rhs", "uv", ())]
)
def test_hub(op, targets, shape, dtype, device):
    g = support.hub_graph(device=device)
    check_cell(g, op, targets, shape, shape, dtype, device, terms=100_000)
    check_cell(g.reverse(), op, targets, shape, shape, dtype, device, terms=100_000)


@pytest.mark.parametrize("device,dtype", support.devices_and([*HALVES, torch.float32]))
@pytest.mark.parametrize("layout", [support.misaligned, support.column_major, support.every_other])
def test_layout_of_inputs(layout, dtype, device):
    g = make_graph("bipartite", torch.int32, device)
    for op, targets, shape in [
        ("dot", "uv", (4, 8)),
        ("dot", "uv", (41,)),
        ("add", "uv", (3, 1)),
        ("mul", "ev", (64,)),
    ]:
        operands = operands_for(g, op, *targets, shape, shape, dtype, device)
        expected = ops.gsddmm(g, op, *operands, *targets)
        out, _ = check_gsddmm(g, op, [layout(x) for x in operands], *targets)
        support.assert_same(out, expected)


@pytest.mark.parametrize("layout", [support.misaligned, support.column_major, support.every_other])
@pytest.mark.parametrize("op", ["dot", "add", "mul"])
def test_layout_of_gradient(op, layout, device):
    g = make_graph("bipartite", torch.int32, device)
    for dtype in HALVES:
        x, y = (v.requires_grad_() for v in operands_for(g, op, "u", "v", (4, 8), (4, 8), dtype, device))
        out = ops.gsddmm(g, op, x, y)
        grad = randn(*out.shape, dtype=dtype, device=device)
        plain = torch.autograd.grad(out, (x, y), grad, retain_graph=True)
        moved = torch.autograd.grad(out, (x, y), layout(grad))
        for a, b in zip(moved, plain):
            support.assert_same(a, b)


@pytest.mark.parametrize("op", SDDMM_OPS)
def test_expanded_gradient_and_operands(op, device):
    g = make_graph("bipartite", torch.int64, device)
    x = randn(1, 8, dtype=torch.float16, device=device).expand(g.num_src, 8)
    y = support.away_from_zero(1, 8, dtype=torch.float16, device=device).expand(g.num_dst, 8)
    grads = []
    for a, b in ((x, y), (x.contiguous(), y.contiguous())):
        a, b = a.detach().requires_grad_(), b.detach().requires_grad_()
        out = ops.gsddmm(g, op, None if op == "copy_rhs" else a, None if op == "copy_lhs" else b)
        out.sum().backward()
        grads.append([a.grad, b.grad])
    for one, other in zip(*grads):
        assert (one is None and other is None) or torch.equal(one, other)
    assert any(x is not None for x in grads[0])


# ---- output type and special values --------------------------------------------------------------


@pytest.mark.parametrize("device,dtype", support.devices_and(HALVES))
@pytest.mark.parametrize("op", SDDMM_OPS)
def test_out_dtype_float32(op, dtype, device):
    g = make_graph("bipartite", torch.int32, device)
    for targets in ("uv", "ve", "eu"):
        check_cell(g, op, targets, (4, 8), (4, 8), dtype, device, out_dtype=torch.float32)


@pytest.mark.parametrize("device,dtype", support.devices_and([*HALVES, torch.float32]))
@pytest.mark.parametrize("op", SDDMM_OPS)
def test_inf_and_nan(op, dtype, device):
    g = make_graph("bipartite", torch.int64, device)
    operands = operands_for(g, op, "u", "v", (2, 6), (2, 6), dtype, device)
    for operand in operands:
        if operand is not None:
            flat = operand.view(-1)
            flat[::17], flat[5::19], flat[7::23] = torch.inf, -torch.inf, torch.nan
    check_gsddmm(g, op, operands, "u", "v")


def test_dot_that_passes_the_largest_half(device):
    """256 products whose sum is 131,072. It is infinite in float16 and exact with out_dtype=float32. Partial sums may
    overflow too."""
    g = make_graph("random", torch.int32, device)
    x = torch.full((g.num_src, 256), 32.0, dtype=torch.float16, device=device)
    y = torch.full((g.num_dst, 256), 16.0, dtype=torch.float16, device=device)
    assert ops.u_dot_v(g, x, y).isinf().all()
    wide = ops.u_dot_v(g, x, y, out_dtype=torch.float32)
    assert wide.dtype == torch.float32 and (wide == 131_072).all()
    y[:, 128:] = -16.0
    assert (ops.u_dot_v(g, x, y) == 0).all()
    check_gsddmm(g, "dot", [x, y], "u", "v", out_dtype=torch.float32, terms=256)


@pytest.mark.parametrize("device,dtype", support.devices_and(HALVES))
def test_dot_accumulates_in_float32(dtype, device):
    """A half accumulator would stop at 2048 (256 in bfloat16)."""
    g = make_graph("random", torch.int32, device)
    ones = torch.ones(g.num_src, 4096, dtype=dtype, device=device)
    assert (ops.u_dot_v(g, ones, ones) == 4096).all()


def test_gradient_of_dot_whose_half_products_overflow(device):
    """Gradients carry the scale of a GradScaler: 2**15 * 3 - 2**15 * 3 is 0, not NaN."""
    g = make_graph("star", torch.int32, device)
    x = torch.ones(g.num_src, 2, dtype=torch.float16, device=device, requires_grad=True)
    y = torch.full((g.num_dst, 2), 3.0, dtype=torch.float16, device=device, requires_grad=True)
    grad = torch.where(torch.arange(300, device=device) % 100 < 50, 2.0**15, -(2.0**15)).half().view(-1, 1)
    ops.u_dot_v(g, x, y).backward(grad)
    assert (y.grad == 0).all()


# ---- gradients and reproducibility ---------------------------------------------------------------


@pytest.mark.parametrize("lhs_target,rhs_target", TARGETS)
@pytest.mark.parametrize("op", SDDMM_OPS)
def test_gradcheck(op, lhs_target, rhs_target):
    g = make_graph("duplicates", torch.int64)
    for lhs, rhs in [((2, 3), (1, 3)), ((), ())]:
        operands = operands_for(g, op, lhs_target, rhs_target, lhs, rhs, torch.float64)
        leaves = [x.requires_grad_() for x in operands if x is not None]

        def run(*leaves, operands=operands):
            given = iter(leaves)
            both = (x if x is None else next(given) for x in operands)
            return ops.gsddmm(g, op, *both, lhs_target, rhs_target)

        assert torch.autograd.gradcheck(run, leaves)


@pytest.mark.parametrize("wanted", [0, 1])
@pytest.mark.parametrize("op", ["add", "sub", "mul", "div", "dot"])
def test_gradient_of_one_operand_alone(op, wanted, device):
    g = make_graph("bipartite", torch.int32, device)
    for targets in ("uv", "ve"):
        operands = operands_for(g, op, *targets, (4, 8), (4, 8), torch.float16, device)

        def run(x, y, targets=targets):
            return ops.gsddmm(g, op, x, y, *targets)

        grad = torch.randn_like(run(*operands))
        _, both = support.evaluate(run, operands, grad)
        alone = [x.detach() for x in operands]
        alone[wanted].requires_grad_()
        run(*alone).backward(grad)
        assert torch.equal(alone[wanted].grad, both[wanted]) and alone[1 - wanted].grad is None


@pytest.mark.parametrize("lhs_target,rhs_target", ["uu", "vv", "ee"])
def test_one_tensor_on_both_sides(lhs_target, rhs_target, device):
    """If x is used twice, it gets the sum of both gradients."""
    g = make_graph("bipartite", torch.int64, device)
    x = randn(rows_of(g, lhs_target), 4, dtype=torch.float32, device=device).requires_grad_()
    ops.gsddmm(g, "dot", x, x, lhs_target, rhs_target).sum().backward()
    count = {"u": g.out_degrees(), "v": g.in_degrees(), "e": torch.ones(g.num_edges, device=device)}[lhs_target]
    torch.testing.assert_close(x.grad, 2 * x.detach() * count.view(-1, 1))


@pytest.mark.parametrize("device,dtype", support.devices_and([torch.float16, torch.float32]))
@pytest.mark.parametrize("op", ["dot", "add", "div"])
def test_bitwise_equal_runs_and_threads(op, dtype, device):
    g = support.hub_graph(20_000, device=device)
    operands = operands_for(g, op, "u", "v", (2, 8), (2, 8), dtype, device)
    grad = torch.randn_like(ops.gsddmm(g, op, *operands))
    threads = torch.get_num_threads()
    try:
        runs = []
        for n in (1, 2, 3, 2):
            torch.set_num_threads(n)
            out, grads = support.evaluate(lambda x, y: ops.gsddmm(g, op, x, y), operands, grad)
            runs.append([out, *grads])
    finally:
        torch.set_num_threads(threads)
    for other in runs[1:]:
        assert all(torch.equal(a, b) for a, b in zip(runs[0], other))


# ---- names ---------------------------------------------------------------------------------------


def test_named_operators(device):
    g = make_graph("bipartite", torch.int64, device)
    for a, b in itertools.permutations("uve", 2):
        for op in ("add", "sub", "mul", "div", "dot"):
            x, y = operands_for(g, op, a, b, (4, 3), (4, 3), torch.bfloat16, device)
            named = getattr(ops, f"{a}_{op}_{b}")
            assert torch.equal(named(g, x, y), ops.gsddmm(g, op, x, y, a, b))
            wide = named(g, x, y, out_dtype=torch.float32)
            assert wide.dtype == torch.float32
            assert torch.equal(wide, ops.gsddmm(g, op, x, y, a, b, out_dtype=torch.float32))
    for target in "uve":
        x = randn(rows_of(g, target), 3, dtype=torch.float16, device=device)
        named = getattr(ops, f"copy_{target}")
        assert torch.equal(named(g, x), ops.gsddmm(g, "copy_lhs", x, None, target))
        wide = named(g, x, out_dtype=torch.float32)
        assert wide.dtype == torch.float32 and torch.equal(wide, named(g, x).float())


def test_edge_order(device):
    """Results are in the order of edge data for every order of the CSC."""
    src, dst = torch.tensor([2, 0, 1, 0]), torch.tensor([1, 1, 0, 0])
    g = halfgnn.Graph.from_edges(src, dst).to(device)
    x = torch.tensor([10.0, 20.0, 30.0], device=device)
    y = torch.tensor([1.0, 2.0], device=device)
    assert ops.u_add_v(g, x, y).tolist() == [32.0, 12.0, 21.0, 11.0]
    assert ops.copy_u(g, x).tolist() == [30.0, 10.0, 20.0, 10.0]
    assert ops.copy_v(g, y).tolist() == [2.0, 2.0, 1.0, 1.0]
