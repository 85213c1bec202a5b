"""edge_softmax: the accuracy rule of support.py, comparison with torch.softmax, and the limits of the number range."""

import pytest
import torch

import halfgnn
from halfgnn import ops, reference
from tests import support
from tests.support import DTYPES, GRAPHS, HALVES, IDTYPES, make_graph, randn

SHAPES = [(), (1,), (2,), (3,), (4, 1), (8,), (1, 3), (3, 4, 5), (9,), (16,), (33,), (64,), (100,), (2, 0)]


def check_edge_softmax(g, logits, norm_by="dst", terms=64):
    host = g.to("cpu")
    return support.check(
        lambda x: ops.edge_softmax(g, x, norm_by),
        lambda x: reference.edge_softmax(host, x, norm_by),
        [logits],
        terms=terms,
    )


def row_sums(g, out):
    return reference.gspmm(g.to("cpu"), "copy_rhs", "sum", None, out.detach().cpu().double())


def test_example(device):
    g, _ = support.example(device)  # 0 -> 1 and 2 -> 1 share their destination
    logits = torch.tensor([1.0, 2.0, 3.0, 4.0], device=device).log()
    assert ops.edge_softmax(g, logits).tolist() == pytest.approx([1 / 5, 1, 1, 4 / 5])


@pytest.mark.parametrize("norm_by", ["dst", "src"])
@pytest.mark.parametrize("device,dtype", support.devices_and(DTYPES))
@pytest.mark.parametrize("shape", SHAPES)
def test_shapes(shape, dtype, norm_by, device):
    for name, identity, scale in (("bipartite", False, 1), ("skewed", True, 4)):
        g = make_graph(name, IDTYPES[len(shape) % 2], device, identity)
        check_edge_softmax(g, (randn(g.num_edges, *shape, dtype=dtype) * scale).to(device), norm_by)


@pytest.mark.parametrize("norm_by", ["dst", "src"])
@pytest.mark.parametrize("identity", [False, True], ids=["edge_ids", "no_edge_ids"])
@pytest.mark.parametrize("idtype", IDTYPES, ids=str)
@pytest.mark.parametrize("name", GRAPHS)
def test_graphs(name, idtype, identity, norm_by, device):
    g = make_graph(name, idtype, device, identity)
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        check_edge_softmax(g, randn(g.num_edges, 3, dtype=dtype, device=device), norm_by)


@pytest.mark.parametrize("device,dtype", support.devices_and([*HALVES, torch.float32]))
@pytest.mark.parametrize("heads", [1, 4, 20])
def test_hub(heads, dtype, device):
    g = support.hub_graph(device=device)
    logits = randn(g.num_edges, heads, dtype=torch.float32).mul(3).to(dtype).to(device)
    out, _ = check_edge_softmax(g, logits, terms=100_000)
    if dtype == torch.float32:
        torch.testing.assert_close(row_sums(g, out)[1], torch.ones(heads, dtype=torch.float64), rtol=0, atol=1e-5)


@pytest.mark.parametrize("device,dtype", support.devices_and(HALVES))
@pytest.mark.parametrize("shape", [(), (4,), (33,)])
def test_forward_is_rounded_once(shape, dtype, device):
    g = make_graph("skewed", torch.int32, device)
    logits = (randn(g.num_edges, *shape, dtype=torch.float64) * 5).to(dtype)
    truth = reference.edge_softmax(g.to("cpu"), logits.double())
    # The relative error of exp(l - max) is the rounding error of its argument.
    magnitude = truth * (2 + 2 * logits.double().abs().max())
    support.assert_accurate(ops.edge_softmax(g, logits.to(device)), support.Yardstick(truth, None, magnitude, 64))


def test_equals_torch_softmax(device):
    """On a clique every node is a neighbour of every node, so this is a softmax over a dense axis."""
    n = 20
    src, dst = torch.arange(n).repeat(n), torch.arange(n).repeat_interleave(n)
    g = halfgnn.Graph.from_edges(src, dst).to(device)
    for shape in ((1,), (1, 3), (3, 4, 5)):
        logits = randn(n * n, *shape, dtype=torch.float32, device=device)
        dense = logits.view(n, n, *shape)
        for norm_by, dim in (("dst", 1), ("src", 0)):
            expected = dense.softmax(dim).view(logits.shape)
            torch.testing.assert_close(ops.edge_softmax(g, logits, norm_by), expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("device,dtype", support.devices_and([*HALVES, torch.float32]))
@pytest.mark.parametrize("layout", [support.misaligned, support.column_major, support.every_other])
def test_layouts(layout, dtype, device):
    g = make_graph("bipartite", torch.int32, device)
    for shape in ((4,), (2, 8), (41,)):
        logits = randn(g.num_edges, *shape, dtype=dtype, device=device)
        x = logits.clone().requires_grad_()
        out = ops.edge_softmax(g, x)
        grad = randn(*out.shape, dtype=dtype, device=device)
        (plain,) = torch.autograd.grad(out, x, grad, retain_graph=True)
        support.assert_same(torch.autograd.grad(out, x, layout(grad))[0], plain)
        moved = layout(logits)
        moved_out, _ = check_edge_softmax(g, moved)
        support.assert_same(moved_out, out)


# ---- special values ------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", [2, 24])
@pytest.mark.parametrize("device,dtype", support.devices_and(DTYPES))
def test_minus_infinity_masks(dtype, device, columns):
    """-inf gets weight 0 and no gradient. The others have the same weights as without it."""
    g = make_graph("star", torch.int32, device)
    logits = randn(g.num_edges, columns, dtype=dtype, device=device)
    logits[::3] = -torch.inf
    out, (grad,) = check_edge_softmax(g, logits)
    assert (out[::3] == 0).all() and (grad[::3] == 0).all() and (out[1::3] > 0).all()


@pytest.mark.parametrize("device,dtype", support.devices_and(DTYPES))
@pytest.mark.parametrize("value", [torch.inf, torch.nan, "all -inf"])
@pytest.mark.parametrize("columns", [1, 2, 3, 4, 8, 40])
def test_rows_without_a_softmax_are_nan_and_alone(columns, value, dtype, device):
    """As in torch.softmax, +inf, NaN, or only -inf makes the whole row NaN in that column, and only there."""
    g = make_graph("bipartite", torch.int32, device)
    column = columns // 2
    logits = randn(g.num_edges, columns, dtype=dtype, device=device)
    row = int(g.in_degrees().argmax())
    mine = g.edges()[1] == row
    if value == "all -inf":
        logits[mine, column] = -torch.inf
    else:
        logits[mine.nonzero()[2], column] = value
    out = ops.edge_softmax(g, logits)
    expected = torch.zeros_like(out, dtype=torch.bool)
    expected[mine, column] = True
    assert value == torch.inf or torch.equal(out.isnan(), expected)
    support.assert_accurate(out, support.Yardstick(reference.edge_softmax(g.to("cpu"), logits.cpu().double())))


@pytest.mark.parametrize("device,dtype", support.devices_and(DTYPES))
def test_large_logits(dtype, device):
    """The maximum is subtracted first, so nothing overflows for any common offset."""
    g = make_graph("skewed", torch.int32, device)
    # Multiples of 32 near 60,000 are exact in float16 (and of 256 in bfloat16).
    step = 256 if dtype == torch.bfloat16 else 32
    steps = torch.randint(-3, 3, (g.num_edges, 2))
    high = (steps * step + 60_000 // 256 * 256).to(dtype).to(device)
    low = (steps * step).to(dtype).to(device)
    assert torch.equal(ops.edge_softmax(g, high), ops.edge_softmax(g, low))
    assert torch.equal(ops.edge_softmax(g, (low.double() - 59_904).to(dtype)), ops.edge_softmax(g, low))
    biggest = torch.finfo(dtype).max
    extreme = torch.where(torch.rand(g.num_edges, 2) < 0.5, 1, -1).to(dtype).mul(biggest).to(device)
    check_edge_softmax(g, extreme)


@pytest.mark.parametrize("device,dtype", support.devices_and(HALVES))
@pytest.mark.parametrize("degree,columns", [(257, 2), (2000, 2), (70_000, 2), (64, 17), (257, 17), (70_000, 17)])
def test_equal_logits(degree, columns, dtype, device):
    """2,000 equal logits each get 1/2000, also in bfloat16. (A half sum would stop at 256, and the weights would sum to
    7.8.)"""
    g = halfgnn.Graph.from_edges(torch.zeros(degree, dtype=torch.int64), torch.zeros(degree, dtype=torch.int64)).to(
        device
    )
    logits = torch.full((degree, columns), 1.5, dtype=dtype, device=device, requires_grad=True)
    out = ops.edge_softmax(g, logits)
    assert torch.equal(out, torch.full((degree, columns), 1 / degree, dtype=torch.float64).to(dtype).to(device))
    out.sum().backward()
    assert logits.grad.abs().max() <= 1e-3 / degree


@pytest.mark.parametrize("columns", [4, 24])
@pytest.mark.parametrize("device,dtype", support.devices_and(HALVES))
def test_gradient_of_a_row_sums_to_zero(dtype, device, columns):
    """Also for a gradient with a large common offset, which does not change the result."""
    g = make_graph("star", torch.int32, device)
    logits = randn(g.num_edges, columns, dtype=dtype, device=device).requires_grad_()
    out = ops.edge_softmax(g, logits)
    grad = (randn(*out.shape, dtype=torch.float64) + 64).to(dtype).to(device)
    out.backward(grad)
    total = row_sums(g, logits.grad)[3].abs()
    spread = row_sums(g, logits.grad.abs())[3]
    assert (total < 4 * torch.finfo(dtype).eps * spread / 300**0.5).all()
    # It is the gradient of the problem without the offset.
    (free,) = torch.autograd.grad(ops.edge_softmax(g, logits), logits, grad - 64)
    torch.testing.assert_close(logits.grad, free, rtol=2 * torch.finfo(dtype).eps, atol=1e-5)


# ---- gradients, reproducibility ------------------------------------------------------------------


@pytest.mark.parametrize("norm_by", ["dst", "src"])
@pytest.mark.parametrize("shape", [(), (2,), (2, 3)])
def test_gradcheck(shape, norm_by):
    for name in ("duplicates", "random", "edgeless"):
        g = make_graph(name, torch.int64)
        logits = randn(g.num_edges, *shape, dtype=torch.float64).requires_grad_()
        assert torch.autograd.gradcheck(lambda x, g=g: ops.edge_softmax(g, x, norm_by), logits)


def test_norm_by_src_is_the_reversed_graph(device):
    g = make_graph("bipartite", torch.int64, device)
    logits = randn(g.num_edges, 3, dtype=torch.float16, device=device)
    assert torch.equal(ops.edge_softmax(g, logits, "src"), ops.edge_softmax(g.reverse(), logits))


@pytest.mark.parametrize("columns", [4, 40])
@pytest.mark.parametrize("device,dtype", support.devices_and([torch.bfloat16, torch.float32]))
def test_bitwise_equal_runs_and_threads(dtype, device, columns):
    g = support.hub_graph(20_000, device=device)
    logits = randn(g.num_edges, columns, dtype=dtype, device=device)
    grad = randn(g.num_edges, columns, dtype=dtype, device=device)
    threads = torch.get_num_threads()
    try:
        runs = []
        for n in (1, 2, 3, 2):
            torch.set_num_threads(n)
            out, grads = support.evaluate(lambda x: ops.edge_softmax(g, x), [logits], grad)
            runs.append([out, *grads])
    finally:
        torch.set_num_threads(threads)
    for other in runs[1:]:
        assert all(torch.equal(a, b) for a, b in zip(runs[0], other))
