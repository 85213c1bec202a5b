"""copy_u_reduce: several reductions of neighbours' features in one pass, by the accuracy rule of support.py."""

import itertools

import pytest
import torch

import halfgnn
from halfgnn import ops, reference
from halfgnn.ops.copy_u_reduce import REDUCTIONS
from tests import support
from tests.support import DEVICES, GRAPHS, HALVES, IDTYPES, make_graph, randn
from tests.support_reduce import check

PNA = ("mean", "max", "min", "std")
SETS = [PNA, REDUCTIONS, ("std",), ("var",), ("max", "min"), ("sum", "mean"), ("min", "sum"), ("std", "max"), ("max",)]
WIDTHS = [1, 7, 8, 9, 15, 16, 17, 24, 31, 33, 64, 100, 130]


def test_example(device):
    g, x = support.example(device)  # node 1 has the in-neighbours 0 and 2, the others have one
    mean, most, std = ops.copy_u_reduce(g, x, ("mean", "max", "std"))
    assert mean.tolist() == [[9, 10, 11, 12], [5, 6, 7, 8], [5, 6, 7, 8]]
    assert most.tolist() == [[9, 10, 11, 12], [9, 10, 11, 12], [5, 6, 7, 8]]
    assert std.tolist() == [[0] * 4, [4] * 4, [0] * 4]


@pytest.mark.parametrize("device,dtype", support.devices_and([*HALVES, torch.float32, torch.float64]))
@pytest.mark.parametrize("reduces", SETS)
def test_every_set_of_reductions(reduces, dtype, device):
    g = make_graph("skewed", torch.int32, device)
    check(g, randn(g.num_src, 32, dtype=dtype, device=device), reduces)


@pytest.mark.parametrize("device,dtype", support.devices_and([*HALVES, torch.float32, torch.float64]))
@pytest.mark.parametrize("width", WIDTHS)
def test_widths(width, dtype, device):
    g = make_graph("bipartite", torch.int64, device)
    check(g, randn(g.num_src, width, dtype=dtype, device=device), REDUCTIONS)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name,idtype,identity", list(itertools.product(GRAPHS, IDTYPES, (False, True))))
def test_graphs(name, idtype, identity, device):
    g = make_graph(name, idtype, device, identity)
    check(g, randn(g.num_src, 2, 12, dtype=torch.float16, device=device), PNA)


@pytest.mark.parametrize("device,dtype", support.devices_and([*HALVES, torch.float32]))
def test_hub(dtype, device):
    g = support.hub_graph(device=device)
    check(g, randn(g.num_src, 40, dtype=dtype, device=device), REDUCTIONS)


@pytest.mark.parametrize("device,dtype", support.devices_and(HALVES))
def test_unrounded_results(dtype, device):
    g = make_graph("skewed", torch.int32, device)
    for reduces in (REDUCTIONS, ("sum", "mean")):
        check(g, randn(g.num_src, 24, dtype=dtype, device=device), reduces, out_dtype=torch.float32)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("hub", [False, True])
def test_far_from_zero(hub, device):
    """An offset of 16 times the spread costs no digits: squares are of distances."""
    g = support.hub_graph(device=device) if hub else make_graph("skewed", torch.int32, device)
    x = randn(g.num_src, 32, dtype=torch.float32, device=device) / 4 + 4
    var, std = ops.copy_u_reduce(g, x, ("var", "std"))
    true_var, true_std = reference.copy_u_reduce(g.to("cpu"), x.cpu().double(), ("var", "std"))
    wide = true_var > 1e-3  # not of one source
    for got, truth in ((var, true_var), (std, true_std)):
        error = ((got.cpu().double() - truth) / truth)[wide].abs().max()
        assert error < 4e-6, f"{error:.3g}; squares of the values themselves err by 1e-4"


def nodes_of_every_length(device):
    """Each source has an edge to one node; nodes have part of a run of edges, a run, a little more, and many runs."""
    degrees = torch.tensor([1, 63, 64, 65, 1000])
    dst = torch.repeat_interleave(degrees)
    return halfgnn.Graph.from_edges(torch.arange(len(dst)), dst, num_dst=len(degrees)).to(device), dst.to(device)


@pytest.mark.parametrize("device,dtype", support.devices_and([*HALVES, torch.float32]))
def test_equal_features_have_no_std_and_no_gradient(dtype, device):
    g, dst = nodes_of_every_length(device)
    values = randn(g.num_dst, 24, dtype=dtype, device=device) + 1
    x = values[dst].requires_grad_()
    mean, std = ops.copy_u_reduce(g, x, ("mean", "std"), eps=0)
    torch.testing.assert_close(mean, values, rtol=1e-6, atol=0)
    assert not std.any()
    assert not torch.autograd.grad(std.sum(), x)[0].any()


@pytest.mark.parametrize("device,dtype", support.devices_and([*HALVES, torch.float32]))
def test_gradient_of_a_small_std_far_from_zero(dtype, device):
    """Of a few units of the last place of the features: the means must not be off by more than their rounding."""
    g, dst = nodes_of_every_length(device)
    offset = randn(g.num_dst, 24, dtype=torch.float64, device=device) + 3
    spread = 16 * torch.finfo(dtype).eps * randn(g.num_src, 24, dtype=torch.float64, device=device)
    x = (offset[dst] * (1 + spread)).to(dtype).requires_grad_()
    (std,) = ops.copy_u_reduce(g, x, ("std",), eps=0)
    (grad,) = torch.autograd.grad(std.sum(), x)
    raw = x.detach().cpu().double().requires_grad_()
    (true_std,) = reference.copy_u_reduce(g.to("cpu"), raw, ("std",), eps=0)
    (true_grad,) = torch.autograd.grad(true_std.sum(), raw)
    size = g.in_degrees().cpu().double()[dst.cpu()].rsqrt().view(-1, 1)  # what (x[u] - mean) / (n std) is at most
    torch.testing.assert_close(std[1:].cpu().double(), true_std[1:], rtol=0.02, atol=0)
    assert ((grad.cpu().double() - true_grad) / size)[1:].abs().max() < 0.05
    assert not grad[0].any()  # one feature alone


@pytest.mark.parametrize("device", DEVICES)
def test_far_from_one_another(device):
    """The neighbours of each node lie close together, but far from those of others."""
    n = 50
    src = torch.arange(9 * n)
    g = halfgnn.Graph.from_edges(src, src // n, num_src=9 * n, num_dst=9)
    x = randn(9 * n, 16, dtype=torch.float32) / 4 + (src // n * 100).view(-1, 1)
    (var,) = ops.copy_u_reduce(g.to(device), x.to(device), ("var",))
    (truth,) = reference.copy_u_reduce(g, x.double(), ("var",))
    assert ((var.cpu().double() - truth) / truth).abs().max() < 1e-5


@pytest.mark.parametrize("device,dtype", support.devices_and([*HALVES, torch.float32]))
@pytest.mark.parametrize("width", [5, 32])
def test_ties_go_to_the_first_edge(width, dtype, device):
    g = make_graph("star", torch.int32, device)
    x = torch.randint(3, (g.num_src, width)).to(dtype).to(device)
    x[:, 1] = 0
    x[::2, 1] = -0.0
    check(g, x, ("max", "min"))
    check(g, x, PNA)


@pytest.mark.parametrize("device,dtype", support.devices_and([*HALVES, torch.float32]))
@pytest.mark.parametrize("width", [1, 8, 12, 33, 64, 130])
def test_winners_in_rows_of_many_edges(width, dtype, device):
    """Most edges win nothing, or few columns: CUDA kernels mark which, and read no more."""
    src, dst = torch.randint(40, (2500,)), torch.randint(12, (2500,))
    src[:900], dst[800:1500] = 7, 3  # an out-hub and an in-hub
    g = halfgnn.Graph.from_edges(src, dst, num_src=41, num_dst=13).to(device)
    x = randn(g.num_src, width, dtype=dtype, device=device)
    for reduces in (("max",), ("max", "min"), PNA):
        check(g, x, reduces)
    leaf, raw = x.clone().requires_grad_(), x.cpu().double().requires_grad_()
    upstream = randn(g.num_dst, width, dtype=dtype, device=device)
    ops.copy_u_max(g, leaf).backward(upstream)
    reference.copy_u_reduce(g.to("cpu"), raw, ("max",))[0].backward(upstream.cpu().double())
    torch.testing.assert_close(leaf.grad.cpu().double(), raw.grad, rtol=torch.finfo(dtype).eps, atol=1e-6)


@pytest.mark.parametrize("device,dtype", support.devices_and([*HALVES, torch.float32]))
@pytest.mark.parametrize("width", [4, 8, 12, 16, 20, 64, 264])
def test_one_extreme_of_rows_of_few_edges(width, dtype, device):
    """Their gradients go to sources of few edges and of many, of which CUDA kernels have eight in flight."""
    for out_degree in (8, 33, 200):
        src = torch.cat([torch.zeros(out_degree, dtype=torch.int64), torch.randint(1, 40, (200,))])
        dst = torch.cat([torch.randperm(300)[:out_degree], torch.randint(300, (200,))])
        g = halfgnn.Graph.from_edges(src, dst, num_src=40, num_dst=300).to(device)
        for reduces in (("max",), ("min",)):
            check(g, randn(40, width, dtype=dtype, device=device), reduces)


@pytest.mark.parametrize("device,dtype", support.devices_and([*HALVES, torch.float32]))
@pytest.mark.parametrize("name", ["skewed", "star", "duplicates"])
@pytest.mark.parametrize("width", [5, 32])
def test_nan_and_infinity(width, name, dtype, device):
    g = make_graph(name, torch.int32, device)
    x = randn(g.num_src, width, dtype=dtype, device=device)
    x[1, 1], x[2, 2], x[0, 3], x[2, 3] = torch.nan, torch.inf, -torch.inf, torch.nan
    out = ops.copy_u_reduce(g, x, REDUCTIONS)
    truth = reference.copy_u_reduce(g.to("cpu"), x.cpu().double(), REDUCTIONS)
    for name, got, expected in zip(REDUCTIONS, out, truth):
        got, expected = got.cpu().double(), expected.to(dtype).double()
        assert torch.equal(got.isnan(), expected.isnan()), name
        infinite = expected.isinf()
        assert torch.equal(got[infinite], expected[infinite]), name
        if name in ("max", "min"):
            assert torch.equal(got[~got.isnan()], expected[~got.isnan()])
    for reduces in (("max", "min"), ("max",), ("min",)):
        leaves = [data.requires_grad_() for data in (x.detach().clone(), x.detach().cpu().double())]
        results = ops.copy_u_reduce(g, leaves[0], reduces), reference.copy_u_reduce(g.to("cpu"), leaves[1], reduces)
        for result in results:
            torch.autograd.backward(result, [torch.ones_like(r) for r in result])
        assert torch.equal(leaves[0].grad.cpu().double(), leaves[1].grad)


@pytest.mark.parametrize("device", DEVICES)
def test_std_of_equal_values_is_zero_without_gradient(device):
    g = make_graph("random", torch.int32, device)
    x = torch.full((g.num_src, 16), 3.0, device=device, requires_grad=True)
    for eps in (1e-5, 0.0):
        (std,) = ops.copy_u_reduce(g, x, ("std",), eps=eps)
        assert not std.any()
        (grad,) = torch.autograd.grad(std.sum(), x)
        assert not grad.any()


@pytest.mark.parametrize("device", DEVICES)
def test_eps_is_where_std_begins(device):
    g = halfgnn.Graph.from_edges(torch.tensor([0, 1]), torch.tensor([0, 0])).to(device)
    x = torch.tensor([0.0, 0.2], device=device).view(2, 1).expand(2, 8).contiguous().requires_grad_()  # variance 0.01
    (std,) = ops.copy_u_reduce(g, x, ("std",), eps=0.009)
    torch.testing.assert_close(std[0], torch.full_like(std[0], 0.1))
    (std,) = ops.copy_u_reduce(g, x, ("std",), eps=0.011)
    assert not std.any() and not torch.autograd.grad(std.sum(), x)[0].any()
    for factor, above in ((0.03, False), (0.034, True)):  # variances 0.9e-5 and 1.16e-5, about the default
        assert ops.copy_u_reduce(g, x * factor, ("std",))[0].all() == above


@pytest.mark.parametrize("device", DEVICES)
def test_results_in_the_order_asked_and_alone(device):
    g = make_graph("skewed", torch.int32, device)
    x = randn(g.num_src, 24, dtype=torch.float16, device=device)
    together = dict(zip(REDUCTIONS, ops.copy_u_reduce(g, x, REDUCTIONS)))
    for reduces in (("std", "sum"), ("min", "var", "max"), ("mean",), ["max", "mean"]):
        out = ops.copy_u_reduce(g, x, reduces)
        assert isinstance(out, tuple) and len(out) == len(reduces)
        for name, got in zip(reduces, out):
            # A mean alone is a sum times the inverse of its degree.
            torch.testing.assert_close(got, together[name], rtol=0 if name in ("max", "min") else 1e-3, atol=1e-5)


@pytest.mark.parametrize("device", DEVICES)
def test_a_gradient_of_some_results(device):
    """As where only some results are used."""
    g = make_graph("skewed", torch.int32, device)
    x = randn(g.num_src, 24, dtype=torch.float32, device=device).requires_grad_()
    for i, name in enumerate(REDUCTIONS):
        upstream = randn(g.num_dst, 24, dtype=torch.float32, device=device)
        (grad,) = torch.autograd.grad(ops.copy_u_reduce(g, x, REDUCTIONS)[i], x, upstream)
        (alone,) = torch.autograd.grad(ops.copy_u_reduce(g, x, (name,))[0], x, upstream)
        torch.testing.assert_close(grad, alone, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("device", DEVICES)
def test_keeps_nothing_per_edge(device):
    g = make_graph("star", torch.int64, device)
    sizes = []

    def pack(tensor):
        sizes.append(tuple(tensor.shape))
        return tensor

    x = randn(g.num_src, 16, dtype=torch.float16, device=device).requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        ops.copy_u_reduce(g, x, PNA)
    assert not [size for size in sizes if len(size) > 1 and size[0] == g.num_edges]
    assert sum(size == (g.num_dst, 16) for size in sizes) == 4  # winners of both kinds, means, std
    sizes.clear()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        ops.copy_u_reduce(g, x, ("max", "min"))
    assert (g.num_src, 16) not in sizes


@pytest.mark.parametrize("device", DEVICES)
def test_second_derivatives(device):
    g = make_graph("random", torch.int32, device)
    x = randn(g.num_src, 9, dtype=torch.float32, device=device).requires_grad_()
    out = ops.copy_u_reduce(g, x, ("sum", "mean"))
    upstream = [torch.ones_like(o).requires_grad_() for o in out]
    (grad,) = torch.autograd.grad(out, x, upstream, create_graph=True)
    second = torch.autograd.grad(grad.sum(), upstream)
    for got, wanted in zip(second, ops.copy_u_reduce(g, torch.ones_like(x), ("sum", "mean"))):
        torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize("device", DEVICES)
def test_vmap(device):
    g = make_graph("random", torch.int32, device)
    x = randn(3, g.num_src, 9, dtype=torch.float32, device=device)
    together = torch.func.vmap(lambda x: ops.copy_u_reduce(g, x, PNA))(x)
    for i, one in enumerate(x):
        for got, wanted in zip(together, ops.copy_u_reduce(g, one, PNA)):
            torch.testing.assert_close(got[i], wanted)


@pytest.mark.parametrize("device", DEVICES)
def test_func_grad(device):
    g = make_graph("random", torch.int32, device)
    x = randn(g.num_src, 9, dtype=torch.float32, device=device)

    def loss(x):
        return sum(o.square().sum() for o in ops.copy_u_reduce(g, x, PNA))

    got = torch.func.grad(loss)(x)
    leaf = x.clone().requires_grad_()
    (wanted,) = torch.autograd.grad(loss(leaf), leaf)
    torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize("device", DEVICES)
def test_compiled(device):
    g = make_graph("random", torch.int32, device)
    x = randn(g.num_src, 16, dtype=torch.float32, device=device).requires_grad_()
    g.csr()

    def loss(x):
        return sum((o * o).sum() for o in ops.copy_u_reduce(g, x, PNA))

    (got,) = torch.autograd.grad(torch.compile(loss, fullgraph=True, backend="aot_eager")(x), x)
    (wanted,) = torch.autograd.grad(loss(x), x)
    torch.testing.assert_close(got, wanted)


def test_autocast():
    g = make_graph("random", torch.int32)
    x = randn(g.num_src, 16, dtype=torch.float32).requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        out = ops.copy_u_reduce(g, x, PNA)
    assert {o.dtype for o in out} == {torch.bfloat16}
    torch.autograd.backward(out, [torch.ones_like(o) for o in out])
    assert x.grad.dtype == torch.float32


@pytest.mark.parametrize("dtype", [*HALVES, torch.float32])
def test_number_of_threads_changes_nothing(dtype):
    g = make_graph("skewed", torch.int32)
    x = randn(g.num_src, 40, dtype=dtype).requires_grad_()

    def run():
        out = ops.copy_u_reduce(g, x, REDUCTIONS)
        return [*out, *torch.autograd.grad(out, x, [torch.ones_like(o) for o in out])]

    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = run()
        torch.set_num_threads(4)
        assert all(torch.equal(a, b) for a, b in zip(one, run()))
    finally:
        torch.set_num_threads(before)


def test_errors_name_the_argument():
    g = make_graph("random", torch.int32)
    x = randn(g.num_src, 8, dtype=torch.float32)
    for reduces, error, message in (
        ("max", TypeError, "reduces is 'max'"),
        ((), ValueError, "reduces is empty"),
        (("max", "median"), ValueError, "reduces has 'median'"),
        (("max", "std", "max"), ValueError, "reduces has 'max' twice"),
    ):
        with pytest.raises(error, match=message):
            ops.copy_u_reduce(g, x, reduces)
    with pytest.raises(ValueError, match="x has shape"):
        ops.copy_u_reduce(g, x[1:], PNA)
    for reduces in (PNA, ("sum", "mean"), ("max",)):
        with pytest.raises(TypeError, match=r"^x has dtype"):
            ops.copy_u_reduce(g, x.long(), reduces)
    with pytest.raises(ValueError, match="eps is -1"):
        ops.copy_u_reduce(g, x, PNA, eps=-1)
    for reduces, dtype in ((PNA, torch.float16), (("sum", "mean"), torch.float16), (("sum", "mean"), torch.int32)):
        with pytest.raises(TypeError, match="out_dtype is"):
            ops.copy_u_reduce(g, x, reduces, out_dtype=dtype)
    with pytest.raises(TypeError, match="x is None"):
        ops.copy_u_reduce(g, None, PNA)
