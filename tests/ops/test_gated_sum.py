"""gated_sum: sums of rows weighted by sigmoids of both ends and the edge, by the accuracy rule of support.py."""

import pytest
import torch

from halfgnn import ops, reference
from tests import support
from tests.support import DEVICES, DTYPES, IDTYPES, make_graph, randn
from tests.support_messages import check_gated_sum as check
from tests.support_messages import gated_operands as operands_of

# Of edges: terms of gates, values.
TERMS = [(False, False), (True, False), (False, True), (True, True)]
WIDTHS = [(), (1,), (3,), (7,), (8,), (2, 8), (33,), (48,), (4, 25), (128,)]


def test_example(device):
    g, x = support.example(device)
    gate = torch.zeros_like(x)  # sigmoid(0) is a half: half of copy_u_sum
    assert ops.gated_sum(g, x, gate, gate).tolist() == [[4.5, 5, 5.5, 6], [5, 6, 7, 8], [2.5, 3, 3.5, 4]]


@pytest.mark.parametrize("device,dtype", support.devices_and(DTYPES))
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("shape", WIDTHS)
def test_shapes(shape, normalize, dtype, device):
    for (has_edge, has_values), idtype in zip(TERMS, IDTYPES * 2):
        g = make_graph("bipartite", idtype, device, identity=has_edge)
        check(g, operands_of(g, shape, dtype, device, has_edge, has_values), normalize)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", support.GRAPHS)
def test_graphs(name, device):
    for i, dtype in enumerate((torch.float16, torch.bfloat16, torch.float32)):
        for width in (4, 40, 0):
            g = make_graph(name, IDTYPES[i % 2], device, identity=i == 1)
            operands = operands_of(g, (width,), dtype, device, has_edge=i < 2, has_values=i > 0)
            out, grads = check(g, operands, normalize=i != 1)
            assert not out[g.in_degrees() == 0].any()
            assert not grads[0][g.out_degrees() == 0].any() and not grads[2][g.in_degrees() == 0].any()


@pytest.mark.parametrize("device,dtype", support.devices_and(DTYPES[:3]))
@pytest.mark.parametrize("normalize", [False, True])
def test_hub(normalize, dtype, device):
    edges = 5_000 if support.SIMULATED else 20_000
    for g in (support.hub_graph(edges, device=device), support.hub_graph(edges, device=device).reverse()):
        for has_values in (False, True):
            check(g, operands_of(g, (8,), dtype, device, has_values=has_values), normalize, terms=edges)


def test_gradcheck():
    g = make_graph("random")
    for normalize in (False, True):
        for has_edge, has_values in TERMS:
            operands = operands_of(g, (3,), torch.float64, has_edge=has_edge, has_values=has_values)
            operands = [x if x is None else x.requires_grad_() for x in operands]
            run = lambda *x: ops.gated_sum(g, *x, normalize=normalize, eps=0.1, return_edges=True)  # noqa: B023, E731
            assert torch.autograd.gradcheck(run, operands)


@pytest.mark.parametrize("device,dtype", support.devices_and(DTYPES))
@pytest.mark.parametrize("normalize", [False, True])
def test_edges_are_returned(normalize, dtype, device):
    """z is rounded once, and its gradient joins that of the gates before these are rounded."""
    g = make_graph("bipartite", torch.int32, device)
    for width in (5, 40):
        operands = operands_of(g, (width,), dtype, device, has_values=width == 40)
        leaves = [x.clone().requires_grad_() for x in operands]
        out, z = ops.gated_sum(g, *leaves, normalize=normalize, return_edges=True)
        assert torch.equal(z, ops.u_add_v_add_e(g, *operands[1:4]))
        assert torch.equal(out, ops.gated_sum(g, *operands, normalize=normalize))
        upstream = [randn(*x.shape, dtype=dtype, device=device) for x in (out, z)]
        found = torch.autograd.grad([out, z], leaves, upstream)
        exact = [x.detach().cpu().double().requires_grad_() for x in operands]
        truth = reference.gated_sum(g.to("cpu"), *exact, normalize=normalize, return_edges=True)
        expected = torch.autograd.grad(truth, exact, [x.cpu().double() for x in upstream])
        for a, b in zip(found, expected):
            tolerance = max(torch.finfo(dtype).eps / 2, 1e-12) * 1.001
            torch.testing.assert_close(
                a.cpu().double(), b, rtol=tolerance, atol=2e-5 if dtype != torch.float64 else 1e-12
            )


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("wanted", [(0,), (1,), (2,), (3,), (4,), (0, 3), (1, 2), (0, 4), (3, 4)])
def test_some_gradients(wanted, device):
    g = make_graph("bipartite", device=device)
    operands = operands_of(g, (9,), torch.float16, device, has_values=True)
    grad = randn(g.num_dst, 9, dtype=torch.float16, device=device)
    for normalize in (False, True):
        run = lambda *x: ops.gated_sum(g, *x, normalize=normalize)  # noqa: B023, E731
        every = support.evaluate(run, operands, grad)[1]
        leaves = [x.clone().requires_grad_(i in wanted) for i, x in enumerate(operands)]
        found = torch.autograd.grad(run(*leaves), [leaves[i] for i in wanted], grad)
        assert all(torch.equal(a, every[i]) for a, i in zip(found, wanted))


@pytest.mark.parametrize("device", DEVICES)
def test_only_edges_are_used(device):
    g = make_graph("bipartite", device=device)
    leaves = [x.requires_grad_() for x in operands_of(g, (9,), torch.float32, device, has_values=True)]
    _, z = ops.gated_sum(g, *leaves, normalize=True, return_edges=True)
    grads = torch.autograd.grad(z, leaves, torch.ones_like(z), allow_unused=True, materialize_grads=True)
    assert not grads[0].any() and not grads[4].any() and torch.equal(grads[3], torch.ones_like(z))
    assert torch.equal(grads[2][:, 0], g.in_degrees().float())


@pytest.mark.parametrize("device,dtype", support.devices_and(DTYPES))
def test_large_gates(dtype, device):
    """sigmoid neither overflows nor turns NaN, and its slope does not cancel near 1."""
    g = make_graph("one_edge", device=device)
    for z in (-1000.0, -20.0, 0.0, 8.0, 20.0, 1000.0):
        operands = [torch.full((1, 8), x, dtype=dtype, device=device) for x in (1.0, z, 0.0, 0.0)]
        leaves = [x.requires_grad_() for x in operands]
        out = ops.gated_sum(g, *leaves)
        grads = torch.autograd.grad(out, leaves, torch.ones_like(out))
        exact = torch.tensor(z, dtype=torch.float64)
        slope = (exact.sigmoid() * (-exact).sigmoid()).expand(1, 8)
        # A GPU's exp and its reciprocal may each be off by an ulp or two in fp32 (CUDA's tables say 2 for expf).
        ulps = 4 if dtype == torch.float32 and support.has_cuda_kernels(device) else 1
        tolerance = ulps * max(torch.finfo(dtype).eps, 1e-12)
        tiny = max(torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps, 1e-38) if dtype != torch.float64 else 0
        for a, b in [(out, exact.sigmoid().expand(1, 8)), *((x, slope) for x in grads[1:])]:
            torch.testing.assert_close(a.detach().cpu().double(), b, rtol=tolerance, atol=tiny)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("layout", [support.misaligned, support.column_major, support.every_other])
def test_layouts(layout, device):
    g = make_graph("bipartite", torch.int32, device)
    operands = operands_of(g, (41,), torch.bfloat16, device, has_values=True)
    out, _ = check(g, [layout(x) for x in operands])
    support.assert_same(out, ops.gated_sum(g, *operands))


@pytest.mark.parametrize("has_values", [False, True])
def test_keeps_nothing_of_the_size_of_the_edges_but_their_operands(has_values):
    g = make_graph("skewed")
    operands = [x.requires_grad_() for x in operands_of(g, (16,), torch.float16, has_values=has_values)]
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: (kept.append(t), t)[1], lambda t: t):
        ops.gated_sum(g, *operands, normalize=True)
    large = [t for t in kept if t.shape[:1] == (g.num_edges,) and t.dim() > 1]
    assert [t.data_ptr() for t in large] == [x.data_ptr() for x in operands[3:]]


def test_autocast_and_transforms():
    g = make_graph("bipartite")
    operands = operands_of(g, (9,), torch.float32, has_values=True)
    with torch.autocast("cpu", torch.bfloat16):
        assert ops.gated_sum(g, *operands).dtype == torch.bfloat16
    batch = [torch.stack([x, 2 * x]) for x in operands]
    out = torch.func.vmap(lambda *x: ops.gated_sum(g, *x))(*batch)
    assert torch.equal(out[1], ops.gated_sum(g, *(2 * x for x in operands)))
    every = (0, 1, 2, 3, 4)
    slopes = torch.func.grad(lambda *x: ops.gated_sum(g, *x, normalize=True).square().sum(), every)(*operands)
    expected = torch.func.grad(lambda *x: reference.gated_sum(g, *x, normalize=True).square().sum(), every)(*operands)
    torch.testing.assert_close(slopes, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(support.SIMULATED, reason="the compiler takes its own processes")
@pytest.mark.parametrize("has_edge,has_values", [*TERMS[:2], TERMS[3]])
def test_compiled(has_edge, has_values):
    g = make_graph("bipartite")
    operands = operands_of(g, (9,), torch.float32, has_edge=has_edge, has_values=has_values)
    operands = [x.requires_grad_() for x in operands]
    run = lambda *x: ops.gated_sum(g, *x, normalize=True, return_edges=True)  # noqa: E731
    found = torch.compile(run, backend="aot_eager", fullgraph=True)(*operands)
    for (a, b), upstream in zip(zip(found, run(*operands)), (g.num_dst, g.num_edges)):
        assert torch.equal(a, b)
        grad = torch.randn(upstream, 9)
        for c, d in zip(*(torch.autograd.grad(t, operands[1:4], grad, retain_graph=True) for t in (a, b))):
            assert torch.equal(c, d)


@pytest.mark.skipif(support.SIMULATED, reason="the compiler takes its own processes")
@pytest.mark.parametrize("normalize", [False, True])
def test_compiled_without_edges(normalize):
    g = make_graph("bipartite")
    operands = [x.requires_grad_() for x in operands_of(g, (9,), torch.float32, has_values=True)]
    run = lambda *x: ops.gated_sum(g, *x, normalize=normalize)  # noqa: E731
    out, expected = torch.compile(run, backend="aot_eager", fullgraph=True)(*operands), run(*operands)
    assert torch.equal(out, expected)
    for a, b in zip(*(torch.autograd.grad(x.square().sum(), operands) for x in (out, expected))):
        assert torch.equal(a, b)


@pytest.mark.parametrize("device", DEVICES)
def test_errors(device):
    g = make_graph("bipartite", device=device)
    x, a, b, c = operands_of(g, (4,), torch.float16, device)
    with pytest.raises(ValueError, match=r"gate_dst has shape .*; expected 40 rows, one per destination node"):
        ops.gated_sum(g, x, a, a, c)
    with pytest.raises(ValueError, match=r"gate_edge has shape .*; expected 300 rows, one per edge"):
        ops.gated_sum(g, x, a, b, a)
    with pytest.raises(TypeError, match=r"value is None; expected a torch.Tensor"):
        ops.gated_sum(g, None, a, b)
    with pytest.raises(
        ValueError, match=r"gate_src has shape \[30, 3\] and value \[30, 4\]; expected equal trailing shapes"
    ):
        ops.gated_sum(g, x, a[:, :3], b)
    with pytest.raises(TypeError, match=r"gate_edge has dtype .* and value .*; expected equal dtypes"):
        ops.gated_sum(g, x, a, b, c.float())
    with pytest.raises(ValueError, match=r"edge_value has shape .*; expected 300 rows, one per edge"):
        ops.gated_sum(g, x, a, b, c, b)
    with pytest.raises(
        ValueError, match=r"edge_value has shape \[300, 3\] and value \[30, 4\]; expected equal trailing shapes"
    ):
        ops.gated_sum(g, x, a, b, edge_value=c[:, :3])
    with pytest.raises(TypeError, match=r"edge_value has dtype .* and value .*; expected equal dtypes"):
        ops.gated_sum(g, x, a, b, c, c.float())
    with pytest.raises(TypeError, match=r"edge_value is a float; expected a torch.Tensor"):
        ops.gated_sum(g, x, a, b, c, 0.5)
    with pytest.raises(ValueError, match=r"eps is -1.0; expected a number of at least 0"):
        ops.gated_sum(g, x, a, b, eps=-1, normalize=True)
    with pytest.raises(TypeError, match="eps is 'a'; expected a number"):
        ops.gated_sum(g, x, a, b, eps="a")
    for name in ("normalize", "return_edges"):
        with pytest.raises(TypeError, match=rf"^{name} is a tensor of shape \(2,\); expected True or False"):
            ops.gated_sum(g, x, a, b, **{name: torch.ones(2)})
        with pytest.raises(TypeError, match=rf"^{name} is 'no'; expected True or False"):
            ops.gated_sum(g, x, a, b, **{name: "no"})
