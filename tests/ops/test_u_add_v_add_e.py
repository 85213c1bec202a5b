"""u_add_v_add_e: the sum of the rows of both ends and of the edge, in one pass."""

import pytest
import torch

from halfgnn import ops, reference
from tests import support
from tests.support import DEVICES, DTYPES, HALVES, IDTYPES, make_graph, randn
from tests.support_messages import check_u_add_v_add_e as check


def operands_of(g, shape, dtype, device="cpu"):
    return [randn(rows, *shape, dtype=dtype, device=device) for rows in (g.num_src, g.num_dst, g.num_edges)]


def test_example(device):
    g, x = support.example(device)  # 0 -> 1, 1 -> 2, 2 -> 0, 2 -> 1
    edge = torch.tensor([[100.0], [200.0], [300.0], [400.0]], device=device).expand(4, 4)
    out = ops.u_add_v_add_e(g, x, x, edge)
    assert out.tolist() == [[106, 108, 110, 112], [214, 216, 218, 220], [310, 312, 314, 316], [414, 416, 418, 420]]


@pytest.mark.parametrize("device,dtype", support.devices_and(DTYPES))
@pytest.mark.parametrize("shape", [(), (1,), (3,), (8,), (2, 16), (33,), (4, 25), (128,)])
def test_shapes(shape, dtype, device):
    for identity, idtype in zip((False, True), IDTYPES):
        check(
            make_graph("bipartite", idtype, device, identity),
            operands_of(make_graph("bipartite"), shape, dtype, device),
        )


@pytest.mark.parametrize("device,dtype", support.devices_and(HALVES))
@pytest.mark.parametrize("width", [5, 40])
def test_float32_result(width, dtype, device):
    g = make_graph("skewed", torch.int32, device)
    check(g, operands_of(g, (width,), dtype, device), out_dtype=torch.float32)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", support.GRAPHS)
def test_graphs(name, device):
    for width, dtype in ((4, torch.float16), (40, torch.bfloat16), (0, torch.float32)):
        g = make_graph(name, torch.int64, device)
        check(g, operands_of(g, (width,), dtype, device))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("layout", [support.misaligned, support.column_major, support.every_other])
def test_layouts(layout, device):
    g = make_graph("bipartite", torch.int32, device)
    operands = operands_of(g, (41,), torch.float16, device)
    out, _ = check(g, [layout(x) for x in operands])
    assert torch.equal(out, ops.u_add_v_add_e(g, *operands))


def test_gradcheck():
    g = make_graph("random")
    operands = [x.requires_grad_() for x in operands_of(g, (3,), torch.float64)]
    run = lambda *x: ops.u_add_v_add_e(g, *x)  # noqa: E731
    assert torch.autograd.gradcheck(run, operands) and torch.autograd.gradgradcheck(run, operands)


@pytest.mark.parametrize("wanted", [(0,), (1,), (2,), (0, 2), (1, 2)])
def test_some_gradients(wanted):
    g = make_graph("bipartite")
    operands = operands_of(g, (9,), torch.float32)
    leaves = [x.clone().requires_grad_(i in wanted) for i, x in enumerate(operands)]
    out = ops.u_add_v_add_e(g, *leaves)
    grad = torch.randn_like(out)
    expected = torch.autograd.grad(
        reference.u_add_v_add_e(g, *leaves), [leaves[i] for i in wanted], grad, retain_graph=True
    )
    torch.testing.assert_close(torch.autograd.grad(out, [leaves[i] for i in wanted], grad), expected)


def test_autocast_and_transforms():
    g = make_graph("bipartite")
    operands = operands_of(g, (9,), torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        assert ops.u_add_v_add_e(g, *operands).dtype == torch.bfloat16
    batch = [torch.stack([x, 2 * x]) for x in operands]
    out = torch.func.vmap(lambda *x: ops.u_add_v_add_e(g, *x))(*batch)
    assert torch.equal(out[1], ops.u_add_v_add_e(g, *(2 * x for x in operands)))
    slopes = torch.func.grad(lambda *x: ops.u_add_v_add_e(g, *x).square().sum(), (0, 1, 2))(*operands)
    expected = torch.func.grad(lambda *x: reference.u_add_v_add_e(g, *x).square().sum(), (0, 1, 2))(*operands)
    torch.testing.assert_close(slopes, expected)


@pytest.mark.skipif(support.SIMULATED, reason="the compiler takes its own processes")
def test_compiled():
    g = make_graph("bipartite")
    operands = [x.requires_grad_() for x in operands_of(g, (9,), torch.float32)]
    compiled = torch.compile(lambda *x: ops.u_add_v_add_e(g, *x).sin(), backend="aot_eager", fullgraph=True)
    out, expected = compiled(*operands), ops.u_add_v_add_e(g, *operands).sin()
    assert torch.equal(out, expected)
    for a, b in zip(*(torch.autograd.grad(t.sum(), operands) for t in (out, expected))):
        assert torch.equal(a, b)


@pytest.mark.parametrize("device", DEVICES)
def test_errors(device):
    g = make_graph("bipartite", device=device)
    x, y, z = operands_of(g, (4,), torch.float16, device)
    with pytest.raises(ValueError, match=r"y has shape .*; expected 40 rows, one per destination node"):
        ops.u_add_v_add_e(g, x, x, z)
    with pytest.raises(TypeError, match=r"z is None; expected a torch\.Tensor"):
        ops.u_add_v_add_e(g, x, y, None)
    with pytest.raises(ValueError, match=r"z has shape \[300, 3\] and x \[30, 4\]; expected equal trailing shapes"):
        ops.u_add_v_add_e(g, x, y, z[:, :3])
    with pytest.raises(TypeError, match=r"y has dtype .* and x .*; expected equal dtypes"):
        ops.u_add_v_add_e(g, x, y.float(), z)
    with pytest.raises(TypeError, match="out_dtype is 3; expected"):
        ops.u_add_v_add_e(g, x, y, z, out_dtype=3)
    with pytest.raises(TypeError, match=r"out_dtype is torch.bfloat16; expected torch.float16 or torch.float32"):
        ops.u_add_v_add_e(g, x, y, z, out_dtype=torch.bfloat16)
