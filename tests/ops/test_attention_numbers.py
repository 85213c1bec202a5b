"""Dot attention and GATv2 at the edges of the number range, and rows around the sizes of batches and runs, under the accuracy rule
of support.py. Dot attention is called twice: as it is, and with a bias of 0 on tensor cores, which CUDA has where edges add
something."""

import pytest
import torch

from halfgnn import Graph, ops, reference
from tests import support, support_attention
from tests.support import HALVES, IDTYPES, randn
from tests.support_attention import DOT, GATV2, check

raw = torch.ops.halfgnn
# Around a batch of 16 edges, and around the 256 edges of a run.
DEGREES = [0, 1, 7, 8, 9, 15, 16, 17, 33, 0]
RUNS = [255, 256, 257, 300, 2]
# Tensor cores do not serve the last one.
DIMS = [8, 16, 24, 40, 64, 72, 96, 128, 136]


either_kind = pytest.mark.parametrize("kind", [DOT, GATV2], ids=lambda kind: kind.name)


@pytest.fixture(params=["lanes", "tensor cores"])
def bias(request, monkeypatch):
    """bias(g, query): zeros (E, H), which every call of ops.dot_attention then has, on tensor cores; or None, on lanes."""
    if request.param == "lanes":
        return lambda g, query: None
    plain = ops.dot_attention

    def zeros(g, query):
        return query.new_zeros(g.num_edges, query.shape[1])

    monkeypatch.setenv("HALFGNN_TENSOR_CORES", "1")
    monkeypatch.setattr(
        ops, "dot_attention", lambda g, query, *args, **more: plain(g, query, *args, edge_bias=zeros(g, query), **more)
    )
    return zeros


def graph_of(degrees, num_src=37, idtype=torch.int32, device="cpu", identity=False):
    """Destinations of these degrees. identity: edge data is in CSC order."""
    dst = torch.repeat_interleave(torch.arange(len(degrees)), torch.tensor(degrees))
    src = torch.arange(len(dst)) * 7919 % num_src
    if not identity:
        order = torch.randperm(len(dst), generator=torch.Generator().manual_seed(3))
        src, dst = src[order], dst[order]
    ends = [x.to(device, idtype) for x in (src, dst)]
    g = Graph.from_edges(*ends, num_src=num_src, num_dst=len(degrees), sort=identity)
    return g[0] if identity else g


# ---- the accuracy rule ---------------------------------------------------------------------------


@either_kind
@pytest.mark.parametrize("device,dtype", support.devices_and(HALVES))
@pytest.mark.parametrize("dim", DIMS)
def test_widths(kind, dim, dtype, device):
    heads = {8: 8, 16: 3, 24: 5, 40: 2}.get(dim, 1 + (dim == 64))
    g = graph_of(DEGREES, idtype=IDTYPES[dim // 8 % 2], device=device, identity=dim % 16 == 0)
    check(kind, g, kind.operands(g, heads, dim, dtype, device))


@either_kind
@pytest.mark.parametrize("device,dtype", support.devices_and(HALVES))
@pytest.mark.parametrize("dim", [16, 128])
def test_one_edge_of_a_row_has_all_the_weight(kind, dim, dtype, device):
    """Then gradients of logits are differences of equal numbers."""
    first, *others = kind.operands(graph_of(DEGREES, device=device), 1, dim, dtype, device)
    check(kind, graph_of(DEGREES, device=device), (first.detach() * 100, *others))


@either_kind
@pytest.mark.parametrize("device,dtype", support.devices_and(HALVES))
@pytest.mark.parametrize("heads,dim", [(1, 128), (2, 64), (3, 40), (8, 8), (2, 128)])
def test_dropout(kind, heads, dim, dtype, device):
    g = graph_of([*DEGREES, 40], device=device)
    check(kind, g, kind.operands(g, heads, dim, dtype, device), dropout_p=0.4)
    out = kind.call(g, *kind.operands(g, heads, dim, dtype, device), dropout_p=1.0)
    assert (out == 0).all()


@either_kind
@pytest.mark.parametrize("dtype,heads,dim", [(torch.float16, 1, 72), (torch.bfloat16, 2, 16), (torch.bfloat16, 1, 128)])
@pytest.mark.parametrize("reverse", [False, True], ids=["rows", "columns"])
def test_long_rows(kind, reverse, dtype, heads, dim, device):
    """Rows of several runs, and rows that are cut into pieces."""
    g = graph_of([*RUNS, 1300], device=device)
    g = g.reverse() if reverse else g
    check(kind, g, kind.operands(g, heads, dim, dtype, device), dropout_p=0.2, terms=1300)


@pytest.mark.parametrize("device,dtype", support.devices_and(HALVES))
@pytest.mark.parametrize("dim", [8, 128])
def test_hub(dim, dtype, device, bias):
    """Equal terms: what tensor cores cut off, they cut off in one direction."""
    degree = 5000
    ends = torch.zeros(degree, dtype=torch.int32, device=device)
    g = Graph.from_edges(ends, ends, num_src=1, num_dst=1, sort=True)[0]
    query, key, value = (torch.full((1, 1, dim), x, dtype=dtype, device=device) for x in (0.1, 0.2, 0.7))
    out, _, residual, _ = raw.dot_attention(
        *g.csc(), query, key, value, 0.3, 0.0, None, True, True, edge_bias=bias(g, query)
    )
    error = (out.double() + residual.double()) / value.double() - 1
    assert error.abs().max() < (2e-6 if dtype == torch.float16 else torch.finfo(dtype).eps ** 2)
    leaf, upstream = value.requires_grad_(), torch.full_like(value, 0.9)
    out = ops.dot_attention(g, query, key, leaf, 0.3)
    assert torch.equal(torch.autograd.grad(out, leaf, upstream)[0], upstream)


@pytest.mark.parametrize("heads,dim", [(1, 16), (1, 128), (2, 128)])
def test_small_terms_beside_a_large_one(heads, dim, device, bias):
    """An fp32 sum takes nothing of 16 small terms beside the large one, so only runs do. The row is one piece on CUDA: there is
    one edge before it."""
    large, small, degree = 2.0**15, 2.0**-13, 1023
    indptr = torch.tensor([0, 1, 1 + degree], dtype=torch.int32, device=device)
    indices = torch.zeros(1 + degree, dtype=torch.int32, device=device)
    indices[1] = 1
    g = Graph(2, 2, csc=(indptr, indices, None))
    query, key, value = (torch.zeros(2, heads, dim, dtype=torch.float16, device=device) for _ in range(3))
    value[:] = torch.tensor([small, large]).view(2, 1, 1)
    out, _, residual, _ = raw.dot_attention(
        *g.csc(), query, key, value, 0.3, 0.0, None, True, True, edge_bias=bias(g, query)
    )
    found = (out[1].double() + residual[1].double()) * degree - large
    assert (found > 0.6 * small * degree).all() and (found < 1.1 * small * degree).all()


# ---- the edges of the number range ---------------------------------------------------------------


def in_order(degree, logits, dtype, device, dim=16):
    """A row of `degree` edges, in order, whose logits are logits(edge), up to rounding; its operands."""
    dst = torch.zeros(degree, dtype=torch.int32, device=device)
    src = torch.arange(degree, dtype=torch.int32, device=device)
    g = Graph.from_edges(src, dst, num_src=degree, num_dst=1, sort=True)[0]
    query, key, value = DOT.operands(g, 1, dim, dtype, device)
    query.zero_(), key.zero_()
    query[..., 0] = 1 / 0.3
    key[:, 0, 0] = logits(torch.arange(degree)).to(dtype)
    return g, [query, key, value]


@pytest.mark.parametrize("device,dtype", support.devices_and(HALVES))
@pytest.mark.parametrize("slope", [0.25, -0.25, 40.0, -40.0])
def test_maximum_that_moves(slope, dtype, device, bias):
    """Logits that rise or fall from edge to edge, over several batches and runs."""
    g, operands = in_order(600, lambda edge: edge * slope, dtype, device)
    check(DOT, g, operands)
    # In one piece on CUDA, since an edge comes before the row: two runs end within it.
    dst = (torch.arange(1001, device=device) > 0).int()
    g = Graph.from_edges(
        g.edges()[0].new_tensor([0, *range(600), *range(400)]), dst, num_src=600, num_dst=2, sort=True
    )[0]
    operands[0] = operands[0].expand(2, -1, -1).contiguous()
    check(DOT, g, operands)


@pytest.mark.parametrize("device,dtype", support.devices_and(HALVES))
def test_infinite_logits(dtype, device, bias):
    """A logit of -inf removes its edge. A row with only -inf is 0; by CUDA's kernels without terms of edges it is NaN."""
    g, (query, key, value) = in_order(40, lambda edge: edge % 3, dtype, device)
    removed = torch.arange(40) % 5 == 2
    query[:] = query[..., :1]
    key[removed] = -torch.inf
    out = ops.dot_attention(g, query, key, value, 0.3)
    kept = Graph.from_edges(torch.arange(40)[~removed].to(device), torch.zeros(32, dtype=torch.int64, device=device),
                            num_src=40, num_dst=1)  # fmt: skip
    torch.testing.assert_close(out, ops.dot_attention(kept, query, key, value, 0.3), rtol=1e-2, atol=1e-2)
    key[:] = -torch.inf
    removed = ops.dot_attention(g, query, key, value, 0.3)
    is_nan = support.has_cuda_kernels(device) and bias(g, query) is None
    assert (removed.isnan() if is_nan else removed == 0).all()


@pytest.mark.parametrize("device,dtype", support.devices_and(HALVES))
@pytest.mark.parametrize("dim", [16, 64, 104, 128])
@pytest.mark.parametrize("degree", [5, 8, 40, 300])
def test_infinite_values(degree, dim, dtype, device, bias):
    """They stay in their columns, and keep their sign, whatever rounding a weight loses."""
    g, (query, key, value) = in_order(degree, lambda edge: edge % 7, dtype, device, dim)
    last = dim - 5
    value[::5, 0, 3], value[2, 0, 4], value[degree - 1, 0, last] = torch.inf, -torch.inf, torch.nan
    finite = value.masked_fill(~value.isfinite(), 0.0)
    out = ops.dot_attention(g, query, key, value, 0.3)[0, 0]
    assert out[3] == torch.inf and out[4] == -torch.inf and out[last].isnan()
    kept = [i for i in range(dim) if i not in (3, 4, last)]
    assert torch.equal(out[kept], ops.dot_attention(g, query, key, finite, 0.3)[0, 0, kept])


def test_infinite_elements(device, bias):
    """Each element of a chunk by itself."""
    g, (query, key, value) = in_order(5, lambda edge: edge % 3, torch.float16, device, 128)
    finite = ops.dot_attention(g, query, key, value, 0.3)[0, 0]
    for column in range(56, 64):
        there = torch.arange(128, device=device) == column
        out = ops.dot_attention(g, query, key, value.masked_fill(there, -torch.inf), 0.3)[0, 0]
        assert torch.equal(out, finite.masked_fill(there, -torch.inf))


@pytest.mark.parametrize("device,dtype", support.devices_and(HALVES))
@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("degree", [6, 43])
def test_infinite_keys_and_queries(degree, dim, dtype, device, bias):
    """Gradients of queries and keys are nan in columns where an edge has an infinite one that its weight of 0 meets. Others are as
    without these edges, as far as rounding allows."""
    g, (query, key, value) = in_order(degree, lambda edge: edge % 3, dtype, device, dim)
    column = dim - 3
    removed = torch.arange(degree, device=device) % 4 == 1
    query[..., column], key[..., column] = 1.0, 0.0
    finite = key.masked_fill(removed[:, None, None], -64.0)
    key[removed, 0, column] = -torch.inf
    upstream = torch.ones_like(query)
    out, grads = support.evaluate(lambda *x: ops.dot_attention(g, *x, 300.0), [query, key, value], upstream)
    like_out, like = support.evaluate(lambda *x: ops.dot_attention(g, *x, 300.0), [query, finite, value], upstream)
    assert torch.equal(out, like_out)
    assert grads[0][0, 0, column].isnan()
    kept = [i for i in range(dim) if i != column]
    assert torch.equal(grads[0][..., kept], like[0][..., kept])
    for got, other in zip(grads[1:], like[1:]):
        assert torch.equal(got, other)


@pytest.mark.parametrize("device,dtype", support.devices_and(HALVES))
@pytest.mark.parametrize("grows", [True, False])
def test_large_gradients_of_logits(grows, dtype, device, bias):
    """Derivatives by logits that fp16 does not hold, beside small ones; those of queries and keys it holds."""
    g = graph_of([1, 5, 20, 70], device=device)
    query, key, value = DOT.operands(g, 1, 64, dtype, device)
    size = torch.logspace(-3, 4, g.num_src).to(device)
    value = (value * (size if grows else size.flip(0)).view(-1, 1, 1)).to(dtype)
    operands = [query / 64, key / 64, value]

    def upstream(out):
        return randn(*out.shape, dtype=dtype, device=device) * 64

    host = g.to("cpu")
    _, grads = support.evaluate(lambda *x: DOT.call(g, *x), operands, grad := upstream(operands[0]))
    _, truth = support.evaluate(
        lambda *x: DOT.specification(host, *x), [x.cpu().double() for x in operands], grad.cpu().double()
    )
    for got, wanted in zip(grads, truth):
        assert got.isfinite().all() and wanted.abs().max() < 65504
        error = (got.cpu().double() - wanted).norm() / wanted.norm()
        assert error < 4 * torch.finfo(dtype).eps


@either_kind
@pytest.mark.parametrize("device,dtype", support.devices_and(HALVES))
def test_heads_do_not_mix(kind, dtype, device):
    g = graph_of(DEGREES, device=device)
    operands = kind.operands(g, 3, 16, dtype, device)
    operands[1][:, 1] = torch.nan
    out = kind.call(g, *operands)
    assert out[:, [0, 2]].isfinite().all() and out[1, 1].isnan().all()


# ---- LeakyReLU of GATv2 --------------------------------------------------------------------------


@pytest.mark.parametrize("device,dtype", support.devices_and(HALVES))
@pytest.mark.parametrize("slope", [-0.5, 0.0, 0.999, 1.0, 1.5])
def test_slopes(slope, dtype, device, monkeypatch):
    monkeypatch.setattr(support_attention, "SLOPE", slope)
    g = graph_of(DEGREES, device=device)
    check(GATV2, g, GATV2.operands(g, 2, 24, dtype, device))


@pytest.mark.parametrize("device,dtype", support.devices_and(HALVES))
@pytest.mark.parametrize("dim", [64, 128])
def test_sums_of_neighbours_that_cancel(dim, dtype, device):
    """z is 0, which is not positive, or a unit in the last place of its terms."""
    g = graph_of([5, 40], device=device)
    src, dst, attn = GATV2.operands(g, 1, dim, dtype, device)
    dst[:] = dst[:1]
    unit = torch.finfo(dtype).eps
    src[:] = -dst[:1] * (1 + unit * torch.randint(-1, 2, src.shape).to(dtype).to(device))
    check(GATV2, g, [src, dst, attn])


@pytest.mark.parametrize("device,dtype", support.devices_and(HALVES))
@pytest.mark.parametrize("slope", [0.0, 0.2])
@pytest.mark.parametrize("dim", [16, 128])
def test_infinite_keys(dim, slope, dtype, device):
    """A key of inf or -inf makes its logit infinite, of the sign of attn, and one of -inf with slope 0 none at all. By CUDA's
    kernels the logit of -inf is nan with other slopes: they add up the linear and the absolute part of LeakyReLU."""
    g = graph_of([40], num_src=40, device=device)
    src, dst, attn = GATV2.operands(g, 1, dim, dtype, device)
    attn[0, dim - 1], attn[0, 3] = 0.5, -0.5
    sources = g.edges()[0].cpu()
    removed = sources[sources % 5 == 2].unique()
    src[removed, 0, dim - 1 if slope else 3] = -torch.inf if slope else torch.inf
    lse = raw.gatv2_attention(*g.csc(), src, dst, attn, slope, 0.0, None, True, False)[1]
    if slope and support.has_cuda_kernels(device):
        assert lse.isnan().all()
        return
    kept = ~torch.isin(sources, removed)
    hidden = src.cpu().double()[sources[kept].long()] + dst.cpu().double()
    logits = (torch.nn.functional.leaky_relu(hidden, slope) * attn.cpu().double()).sum(-1)
    torch.testing.assert_close(lse[0].cpu().double(), logits.logsumexp(0), rtol=1e-5, atol=1e-5)
    src[removed[0], 0, 5] = torch.nan
    assert raw.gatv2_attention(*g.csc(), src, dst, attn, slope, 0.0, None, True, False)[1].isnan().all()


@either_kind
def test_statistics(kind, device):
    """What the backward reads."""
    g = graph_of([3, 0, 20, 600], device=device)
    operands = kind.operands(g, 2, 24, torch.float16, device)
    host, exact = g.to("cpu"), [x.cpu().double() for x in operands]
    if kind is GATV2:
        out, lse = raw.gatv2_attention(*g.csc(), *operands, 0.2, 0.0, None, True, True)[:2]
        hidden = torch.nn.functional.leaky_relu(reference.gsddmm(host, "add", *exact[:2]), 0.2)
        logits = (hidden * exact[2]).sum(-1)
    else:
        out, lse = raw.dot_attention(*g.csc(), *operands, 0.3, 0.0, None, True, True)[:2]
        logits = reference.gsddmm(host, "dot", exact[1], exact[0]).squeeze(-1) * 0.3
    dst = g.edges()[1].cpu().long()
    for node in (0, 2, 3):
        torch.testing.assert_close(lse[node].cpu().double(), logits[dst == node].logsumexp(0), rtol=1e-5, atol=1e-5)
    assert out.isfinite().all() and (lse[1] == 0).all()
