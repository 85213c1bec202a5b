"""Sums of messages that are made of a node's row and an edge's row of the same width: mul, add, sub and relu_add."""

import pytest
import torch

import halfgnn
from halfgnn import ops
from tests import support
from tests.support import DEVICES, DTYPES, HALVES, IDTYPES, MIXED, check_gspmm, make_graph, randn

OPS = ["mul", "add", "sub", "relu_add"]
MESSAGES = {
    "mul": lambda x, e: x * e,
    "add": lambda x, e: x + e,
    "sub": lambda x, e: x - e,
    "relu_add": lambda x, e: torch.relu(x + e),
}
WIDTHS = [8, 9, 15, 16, 17, 31, 32, 33, 47, 48, 63, 64, 65, 100, 128, 200]  # blocks and tiles that are whole, and not


@pytest.mark.parametrize("device", DEVICES)
def test_example(device):
    g, x = support.example(device)
    rows = torch.tensor([-2.0, 0.0, -10.0, 1.0], device=device)[:, None].repeat(
        1, 4
    )  # of 0 -> 1, 1 -> 2, 2 -> 0, 2 -> 1
    assert ops.u_add_e_sum(g, x, rows).tolist() == [[-1, 0, 1, 2], [9, 11, 13, 15], [5, 6, 7, 8]]
    assert ops.u_relu_add_e_sum(g, x, rows).tolist() == [[0, 0, 1, 2], [10, 11, 13, 15], [5, 6, 7, 8]]
    assert ops.u_mul_e_sum(g, x, rows).tolist() == [[-90, -100, -110, -120], [7, 6, 5, 4], [0, 0, 0, 0]]


@pytest.mark.parametrize("device,dtype", support.devices_and(DTYPES))
@pytest.mark.parametrize("width", WIDTHS)
def test_widths(width, dtype, device):
    for i, op in enumerate(OPS):
        g = make_graph("skewed" if width < 40 else "bipartite", IDTYPES[i % 2], device, identity=i % 3 == 0)
        for reduce_op in ("sum", "mean"):
            check_gspmm(g, op, reduce_op, support.spmm_operands(g, op, (width,), (width,), dtype, device))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtypes", [*zip(HALVES, HALVES), *MIXED], ids=str)
@pytest.mark.parametrize("out_dtype", [None, torch.float32])
@pytest.mark.parametrize("op", OPS)
def test_types_of_nodes_edges_and_results(op, out_dtype, dtypes, device):
    g = make_graph("bipartite", torch.int32, device)
    for width in (8, 33, 100):
        operands = support.spmm_operands(g, op, (width,), (width,), dtypes[0], device, dtypes[1])
        check_gspmm(g, op, "mean", operands, out_dtype=out_dtype)


@pytest.mark.parametrize("device,dtype", support.devices_and(DTYPES[:3]))
@pytest.mark.parametrize("identity", [False, True], ids=["edge_ids", "no_edge_ids"])
@pytest.mark.parametrize("op", OPS)
def test_runs_of_edges(op, identity, dtype, device):
    """Rows of as many edges as kernels read at a time, and a few more or fewer. Sums of small integers are exact."""
    degrees = [63, 64, 65, 0, 1, 127, 128, 129, 15, 16, 17, 193, 2, 7, 0]
    dst = torch.arange(len(degrees)).repeat_interleave(torch.tensor(degrees))
    order = torch.arange(dst.numel()) if identity else torch.randperm(dst.numel())
    dst, src = dst[order], torch.randint(11, dst.shape)
    made = halfgnn.Graph.from_edges(src.to(device), dst.to(device), num_src=11, num_dst=len(degrees), sort=identity)
    g = made[0] if identity else made
    for width in (16, 41):
        x, e, grad = (torch.randint(-3, 4, (n, width)).double() for n in (11, dst.numel(), len(degrees)))
        leaves = [t.requires_grad_() for t in (x.clone(), e.clone())]
        exact = x.new_zeros(len(degrees), width).index_add(0, dst, MESSAGES[op](leaves[0][src], leaves[1]))
        expected = [exact, *torch.autograd.grad(exact, leaves, grad)]
        given = [t.to(device, dtype).requires_grad_() for t in (x, e)]
        out = ops.gspmm(g, op, "sum", *given)
        for a, b in zip([out, *torch.autograd.grad(out, given, grad.to(device, dtype))], expected):
            assert torch.equal(a.detach().cpu(), b.to(dtype))


@pytest.mark.parametrize("device,dtype", support.devices_and(DTYPES[:3]))
@pytest.mark.parametrize("op,reduce_op", [("mul", "sum"), ("relu_add", "mean")])
def test_hub(op, reduce_op, dtype, device):
    for g in (support.hub_graph(device=device), support.hub_graph(device=device).reverse()):
        check_gspmm(g, op, reduce_op, support.spmm_operands(g, op, (8,), (8,), dtype, device), terms=100_000)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("reduce_op", ["sum", "mean"])
@pytest.mark.parametrize("op", OPS)
def test_one_gradient_is_that_of_both(op, reduce_op, device):
    g = make_graph("skewed", torch.int64, device)
    x, e = support.spmm_operands(g, op, (40,), (40,), torch.float16, device)
    grad = randn(g.num_dst, 40, dtype=torch.float16, device=device)
    both = support.evaluate(lambda x, e: ops.gspmm(g, op, reduce_op, x, e), [x, e], grad)[1]
    for i in range(2):
        leaves = [t.detach().requires_grad_(i == j) for j, t in enumerate((x, e))]
        (alone,) = torch.autograd.grad(ops.gspmm(g, op, reduce_op, *leaves), leaves[i], grad)
        torch.testing.assert_close(alone, both[i], rtol=torch.finfo(torch.float16).eps, atol=1e-5)


@pytest.mark.parametrize("device,dtype", support.devices_and(DTYPES[:3]))
@pytest.mark.parametrize("op", OPS)
def test_inf_and_nan(op, dtype, device):
    g = make_graph("bipartite", torch.int32, device)
    x, e = support.spmm_operands(g, op, (24,), (24,), dtype, device)
    for operand in (x, e):
        flat = operand.view(-1)
        flat[::17], flat[5::19], flat[7::23] = torch.inf, -torch.inf, torch.nan
    check_gspmm(g, op, "sum", [x, e])


@pytest.mark.parametrize("device,dtype", support.devices_and(DTYPES))
@pytest.mark.parametrize("shape", [(24,), (3,), (2, 3)])
def test_relu_has_no_slope_at_zero(shape, dtype, device):
    g = make_graph("bipartite", torch.int32, device)
    x = torch.ones(g.num_src, *shape, dtype=dtype, device=device, requires_grad=True)
    e = torch.full((g.num_edges, *shape), -1, dtype=dtype, device=device, requires_grad=True)
    for reduce_op in support.REDUCES:
        out = ops.gspmm(g, "relu_add", reduce_op, x, e)
        assert not out.any()
        for grad in torch.autograd.grad(out, [x, e], torch.full_like(out, torch.inf)):
            assert not grad.any()  # and no NaN either


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("layout", [support.misaligned, support.column_major, support.every_other])
def test_layouts(layout, device):
    g = make_graph("bipartite", torch.int32, device)
    for op, dtype in zip(OPS, [*HALVES, torch.float32, torch.float16]):
        operands = support.spmm_operands(g, op, (41,), (41,), dtype, device)
        out, _ = check_gspmm(g, op, "sum", [layout(x) for x in operands])
        support.assert_same(out, ops.gspmm(g, op, "sum", *operands))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", support.GRAPHS)
def test_graphs(name, device):
    for identity in (False, True):
        g = make_graph(name, torch.int32, device, identity)
        for op, dtype in zip(OPS, [*HALVES, torch.float32, torch.bfloat16]):
            check_gspmm(g, op, "mean", support.spmm_operands(g, op, (2, 10), (2, 10), dtype, device))


@pytest.mark.skipif(support.SIMULATED, reason="the CPU's own kernels")
def test_results_do_not_depend_on_the_number_of_threads():
    g = support.hub_graph(20_000)
    results, threads = [], torch.get_num_threads()
    for count in (1, 3):
        torch.set_num_threads(count)
        torch.manual_seed(0)
        operands = support.spmm_operands(g, "relu_add", (40,), (40,), torch.bfloat16)
        out, grads = support.evaluate(lambda x, e: ops.u_relu_add_e_sum(g, x, e), operands, lambda out: out)
        results.append([out, *grads])
    torch.set_num_threads(threads)
    assert all(torch.equal(a, b) for a, b in zip(*results))
