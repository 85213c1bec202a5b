"""The fused attentions: the accuracy rule of support.py, and the limits of the number range."""

import pytest
import torch

import halfgnn
from halfgnn import ops, reference
from tests import support
from tests.support import DTYPES, GRAPHS, HALVES, IDTYPES, make_graph, randn
from tests.support_attention import (
    DOT,
    GAT,
    GAT_EDGE,
    GATV2,
    check,
    every_kind,
    fixed_seed,
    magnitudes,
)

raw = torch.ops.halfgnn


def test_example(device):
    """Equal logits: each node gets the mean of its in-neighbours."""
    g, x = support.example(device)
    value, zero, mean = (
        x.view(3, 1, 4),
        torch.zeros(3, 1, 4, device=device),
        [[9, 10, 11, 12], [5, 6, 7, 8], [5, 6, 7, 8]],
    )
    assert ops.dot_attention(g, zero, zero, value).flatten(1).tolist() == mean
    assert ops.gat_attention(g, value, zero[..., 0], zero[..., 0]).flatten(1).tolist() == mean
    assert ops.gatv2_attention(g, value, zero, zero[0]).flatten(1).tolist() == mean


# ---- the rule ----------------------------------------------------------------------------------------------------------------


@every_kind
@pytest.mark.parametrize("device,dtype", support.devices_and(DTYPES))
@pytest.mark.parametrize("dim", support.WIDTHS)
def test_widths(dim, dtype, device, kind):
    heads = support.HEADS[dim % 4]
    if heads * dim > 2000:
        heads = 1
    g = make_graph("bipartite", IDTYPES[dim % 2], device, identity=dim % 3 == 0)
    check(kind, g, kind.operands(g, heads, dim, dtype, device))


@every_kind
@pytest.mark.parametrize("device,dtype", support.devices_and([*HALVES, torch.float32]))
@pytest.mark.parametrize("heads", [1, 2, 3, 4, 5, 8, 16])
def test_heads(heads, dtype, device, kind):
    for dim in (1, 8, 10, 16, 32):
        g = make_graph("skewed", torch.int32, device)
        check(kind, g, kind.operands(g, heads, dim, dtype, device), dropout_p=0.4 * (heads % 2))


@every_kind
@pytest.mark.parametrize("identity", [False, True], ids=["edge_ids", "no_edge_ids"])
@pytest.mark.parametrize("idtype", IDTYPES, ids=str)
@pytest.mark.parametrize("name", GRAPHS)
def test_graphs(name, idtype, identity, kind, device):
    g = make_graph(name, idtype, device, identity)
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        check(kind, g, kind.operands(g, 4, 16, dtype, device), dropout_p=0.3)


@every_kind
@pytest.mark.parametrize("device,dtype", support.devices_and([*HALVES, torch.float32]))
def test_hub(dtype, device, kind):
    g = support.hub_graph(num_edges=30_000, device=device)
    heads, dim = 2, 16
    operands = kind.operands(g, heads, dim, dtype, device)
    check(kind, g, operands, dropout_p=0.2, terms=100_000)


@every_kind
@pytest.mark.parametrize("dropout_p", [0.1, 0.5, 0.999, 1.0])
@pytest.mark.parametrize("device,dtype", support.devices_and(DTYPES))
def test_dropout(dropout_p, dtype, device, kind):
    g = make_graph("skewed", torch.int64, device)
    check(kind, g, kind.operands(g, 6, 8, dtype, device), dropout_p=dropout_p)


@pytest.mark.parametrize("kind", [GAT, GAT_EDGE], ids=lambda kind: kind.name)
@pytest.mark.parametrize("device,dtype", support.devices_and(HALVES))
def test_half_features_with_fp32_logits(dtype, device, kind):
    g = make_graph("skewed", torch.int32, device)
    operands = kind.operands(g, 4, 24, dtype, device, logit_dtype=torch.float32)
    check(kind, g, operands, dropout_p=0.3)


@every_kind
@pytest.mark.parametrize("layout", [support.misaligned, support.column_major, support.every_other])
def test_memory_layouts(layout, kind, device):
    g = make_graph("bipartite", torch.int64, device)
    operands = [layout(x) for x in kind.operands(g, 3, 16, torch.float16, device)]
    check(kind, g, operands)


@every_kind
def test_gradcheck(kind):
    g = make_graph("duplicates")
    operands = [x.requires_grad_() for x in kind.operands(g, 2, 3, torch.float64)]
    with fixed_seed():
        for dropout_p in (0.0, 0.4):
            torch.autograd.gradcheck(lambda *x, p=dropout_p: kind.call(g, *x, dropout_p=p), operands)


@pytest.mark.parametrize("kind", [GAT, GAT_EDGE, GATV2], ids=lambda kind: kind.name)
@pytest.mark.parametrize("slope", [0.0, -0.5, 1.0, 2.0])
@pytest.mark.parametrize("dim", [8, 40])
def test_slopes(dim, slope, kind, device):
    g = make_graph("skewed", torch.int64, device)
    operands = kind.operands(g, 2, dim, torch.float32, device)
    edge = operands[3] if kind is GAT_EDGE else None
    if kind is GATV2:
        call, spec = ops.gatv2_attention, reference.gatv2_attention
    else:
        call, spec = ops.gat_attention, reference.gat_attention
        operands = operands[:3] if edge is None else operands
    slopes = (slope,) if kind is not GAT else (None, slope)
    host = g.to("cpu")
    support.check(
        lambda *x: call(g, *x, *slopes),
        lambda *x: spec(host, *x, *slopes),
        operands,
        bounds=lambda *x: [4 * bound for bound in magnitudes(kind, host, None, x[:-1], x[-1])],
        terms=10_000,
    )


# ---- the edges of the number range -------------------------------------------------------------------------------------------


def constant_operands(kind, g, value, dtype, device, heads=2, dim=8):
    """Operands whose logits are all `value`, or +value or -value depending on the source."""
    operands = kind.operands(g, heads, dim, dtype, device)
    sign = torch.where(torch.arange(g.num_src, device=device) % 2 == 0, 1.0, -1.0)
    for i in kind.logits:
        operands[i] = torch.zeros_like(operands[i])
    if kind.logits:
        operands[1] = (sign.unsqueeze(1) * value).expand(-1, heads).to(operands[1].dtype).contiguous()
    return operands


@pytest.mark.parametrize("kind", [GAT, GAT_EDGE], ids=lambda kind: kind.name)
@pytest.mark.parametrize("device,dtype", support.devices_and(DTYPES))
@pytest.mark.parametrize("value", [0.0, 1e4, 88.0])
def test_equal_and_extreme_logits(value, dtype, device, kind):
    g = make_graph("skewed", torch.int64, device)
    operands = constant_operands(kind, g, value, dtype, device)
    check(kind, g, operands, dropout_p=0.25)


@pytest.mark.parametrize("kind", [GATV2, DOT], ids=lambda kind: kind.name)
@pytest.mark.parametrize("device,dtype", support.devices_and([*HALVES, torch.float32]))
def test_extreme_logits_of_pairs(dtype, device, kind):
    """Logits of some thousands, so that one edge has all the weight. They are whole numbers, so half logits are exact
    and have the same order."""
    g = make_graph("skewed", torch.int64, device)
    operands = [x.float().mul(4).round().to(dtype) for x in kind.operands(g, 2, 8, dtype, device)]
    operands[0] = operands[0] * 16
    out = kind.call(g, *operands)
    truth = kind.specification(g.to("cpu"), *(x.cpu().double() for x in operands))
    assert out.isfinite().all()
    torch.testing.assert_close(out.cpu().double(), truth, rtol=4 * torch.finfo(dtype).eps, atol=1e-3)


@pytest.mark.parametrize("device,dtype", support.devices_and([*HALVES, torch.float32]))
@pytest.mark.parametrize("dim", [16, 40])
def test_signs_of_sums(dim, dtype, device):
    """Sums of GATv2's keys that are 0 or -0, smaller than the smallest normal number or, in fp16, larger than the largest."""
    g = make_graph("skewed", torch.int64, device)
    operands = GATV2.operands(g, 2, dim, dtype, device)
    tiny = torch.finfo(dtype).smallest_normal / 8
    large = (1023, torch.finfo(dtype).max) if dtype == torch.float16 else (1000, 1e25)
    generator = torch.Generator().manual_seed(7)
    for x, own in zip(operands, large):
        sign = (
            torch.randint(0, 2, x.shape[:1] + x.shape[2:], generator=generator).to(device, dtype).unsqueeze(1) * 2 - 1
        )
        x[..., 1::8] = 0 * sign[..., 1::8]
        x[..., 2::8] = tiny * sign[..., 2::8]
        x[..., 3::8] = own * sign[..., 3::8]
        x[..., 4::8] = sign[..., 4::8]
    operands[2][:, 3::8] = 1 / (8 * large[1])
    check(GATV2, g, operands, dropout_p=0.3)


@pytest.mark.parametrize("device,dtype", support.devices_and(DTYPES))
def test_infinite_logits(dtype, device):
    """A logit of -inf removes its edge. A row with only -inf is 0; by CUDA's kernels it is NaN, as in torch.softmax."""
    g = halfgnn.Graph.from_edges(
        torch.tensor([0, 1, 2, 0, 1, 2]).to(device), torch.tensor([0, 0, 0, 1, 1, 2]).to(device), num_src=3, num_dst=4
    )
    feat, zero = randn(3, 2, 8, dtype=dtype, device=device), torch.zeros(4, 2, dtype=dtype, device=device)
    edge = torch.zeros(6, 2, dtype=dtype, device=device)
    edge[[1, 5]] = -torch.inf  # one of three in-edges of node 0, the only one of node 2
    out = ops.gat_attention(g, feat, zero[:3], zero, edge)
    torch.testing.assert_close(out[0], (feat[0].double() + feat[2].double()).div(2).to(dtype), rtol=1e-2, atol=1e-2)
    is_nan = support.has_cuda_kernels(device)
    assert (out[2].isnan() if is_nan else out[2] == 0).all() and out[:2].isfinite().all() and (out[3] == 0).all()
    leaves = [x.clone().requires_grad_() for x in (feat, zero[:3], zero, edge)]
    out = ops.gat_attention(g, *leaves)
    (out[:2] if is_nan else out).sum().backward()
    assert leaves[0].grad[:2].isfinite().all()
    assert is_nan or all(x.grad.isfinite().all() for x in leaves)


@pytest.mark.parametrize("heads", [1, 3, 8])
def test_a_long_row_that_begins_with_removed_edges(heads, device):
    """The first logits of a row are -inf, as many as are worked on at once and more, so its maximum is known late."""
    count, removed = 2000, 1500
    dst = torch.zeros(count, dtype=torch.int32, device=device)
    g = halfgnn.Graph.from_edges(torch.arange(count, dtype=torch.int32, device=device), dst, num_src=count, num_dst=1)
    feat, zero = randn(count, heads, 8, dtype=torch.float32, device=device), torch.zeros(count, heads, device=device)
    edge = torch.zeros(count, heads, device=device)
    edge[:removed] = -torch.inf
    feat.requires_grad_()
    out = ops.gat_attention(g, feat, zero, zero[:1], edge)
    torch.testing.assert_close(out[0], feat[removed:].mean(0), rtol=0, atol=1e-6)
    out.sum().backward()
    kept = torch.arange(count, device=device) >= removed
    expected = (kept.float() / (count - removed)).view(-1, 1, 1).expand_as(feat)
    torch.testing.assert_close(feat.grad, expected, rtol=1e-5, atol=0)


@every_kind
def test_infinite_values_before_a_row_without_edges(kind, device):
    """Nothing is left of the row before: the result and the gradients of a node without edges are 0."""
    ends = torch.tensor([[0, 1, 1], [0, 0, 2]], device=device)
    g = halfgnn.Graph.from_edges(*ends, num_src=3, num_dst=3)
    operands = kind.operands(g, 2, 8, torch.float32, device)
    operands[2 if kind is DOT else 0][:2] = torch.inf
    out, grads = support.evaluate(lambda *x: kind.call(g, *x), operands, torch.ones_like(operands[0]))
    assert (out[1] == 0).all()
    for (target, _), grad in zip(kind.shapes(2, 8), grads):
        if target in ("u", "v"):
            assert (grad[2 if target == "u" else 1] == 0).all()


@every_kind
def test_nan_stays_in_its_rows(kind, device):
    g = make_graph("bipartite", torch.int64, device)
    operands = kind.operands(g, 2, 8, torch.float16, device)
    operands[1][3] = torch.nan  # source 3 or, for GATv2, destination 3
    out = kind.call(g, *operands).isnan().flatten(1).any(1).cpu()
    src, dst = (x.cpu() for x in g.edges())
    touched = torch.zeros(g.num_dst, dtype=torch.bool)
    touched[dst[src == 3] if kind is not GATV2 else dst[dst == 3]] = True
    assert torch.equal(out, touched)


def test_offsets_do_not_drown_the_gradient_of_logits(device):
    """Features with an offset of 16 times their spread. A delta computed from a rounded result would lose the
    gradient."""
    torch.manual_seed(1)
    g = make_graph("skewed", torch.int64, device)
    for kind in (GAT, GATV2, DOT):
        operands = kind.operands(g, 2, 32, torch.bfloat16, device)
        wide = [x.cpu().double() for x in operands]
        shifted = 2 if kind is DOT else 0
        operands[shifted] = operands[shifted] + 16
        wide[shifted] = operands[shifted].cpu().double()
        upstream = randn(g.num_dst, 2, 32, dtype=torch.bfloat16, device=device)
        _, exact = support.evaluate(lambda *x, k=kind: k.specification(g.to("cpu"), *x), wide, upstream.cpu().double())
        errors = {}
        for precise in (True, False):
            _, grads = support.evaluate(lambda *x, k=kind, p=precise: k.call(g, *x, precise=p), operands, upstream)
            of_logits = 2 if kind is GATV2 else 1  # an operand that only logits use
            got, truth = grads[of_logits].cpu().double(), exact[of_logits]
            errors[precise] = float((got - truth).norm() / truth.norm())
        assert errors[True] < 1e-2, (kind.name, errors)
        assert errors[False] > 2 * errors[True], (kind.name, errors)
