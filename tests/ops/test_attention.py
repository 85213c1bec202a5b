"""The fused attentions: the accuracy rule of support.py, dropout, the limits of the number range, and the memory that
they keep."""

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
    KINDS,
    SEED,
    SLOPE,
    check,
    every_kind,
    fixed_seed,
    magnitudes,
)

raw = torch.ops.halfgnn


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
def test_slopes(slope, kind, device):
    g = make_graph("skewed", torch.int64, device)
    operands = kind.operands(g, 2, 8, torch.float32, device)
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


@pytest.mark.parametrize("device,dtype", support.devices_and(DTYPES))
def test_infinite_logits(dtype, device):
    """A logit of -inf removes its edge. A row with only -inf is NaN, as in torch.softmax."""
    g = halfgnn.Graph.from_edges(
        torch.tensor([0, 1, 2, 0, 1, 2]).to(device), torch.tensor([0, 0, 0, 1, 1, 2]).to(device), num_src=3, num_dst=4
    )
    feat, zero = randn(3, 2, 8, dtype=dtype, device=device), torch.zeros(4, 2, dtype=dtype, device=device)
    edge = torch.zeros(6, 2, dtype=dtype, device=device)
    edge[[1, 5]] = -torch.inf  # one of three in-edges of node 0, the only one of node 2
    out = ops.gat_attention(g, feat, zero[:3], zero, edge)
    torch.testing.assert_close(out[0], (feat[0].double() + feat[2].double()).div(2).to(dtype), rtol=1e-2, atol=1e-2)
    assert out[2].isnan().all() and out[:2].isfinite().all() and (out[3] == 0).all()
    leaf = feat.clone().requires_grad_()
    ops.gat_attention(g, leaf, zero[:3], zero, edge)[:2].sum().backward()
    assert leaf.grad[:2].isfinite().all()


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


# ---- reproducibility, dropout's generator --------------------------------------------------------------------------------------


@every_kind
def test_bitwise_reproducible(kind, device):
    g = support.hub_graph(num_edges=5000, device=device)
    operands = kind.operands(g, 4, 24, torch.float16, device)
    upstream = randn(g.num_dst, 4, 24, dtype=torch.float16, device=device)
    results = []
    before = torch.get_num_threads()
    for threads in (1, 2):
        torch.set_num_threads(threads)
        torch.manual_seed(5)
        out, grads = support.evaluate(lambda *x: kind.call(g, *x, dropout_p=0.5), operands, upstream)
        results.append([out, *grads])
    torch.set_num_threads(before)
    assert all(torch.equal(a, b) for a, b in zip(*results))


@every_kind
def test_evaluation_equals_training(kind, device):
    """Keeping data for a backward does not change the result."""
    g = make_graph("skewed", torch.int64, device)
    operands = kind.operands(g, 3, 40, torch.bfloat16, device)
    with fixed_seed():
        plain = kind.call(g, *operands, dropout_p=0.3)
        trained = kind.call(g, *(x.clone().requires_grad_() for x in operands), dropout_p=0.3)
    assert torch.equal(plain, trained)


@every_kind
def test_dropout_follows_the_generator(kind, device):
    g = make_graph("skewed", torch.int64, device)
    operands = kind.operands(g, 2, 8, torch.float32, device)

    def drop(seed):
        torch.manual_seed(seed)
        return kind.call(g, *operands, dropout_p=0.5)

    first, again, other = drop(1), drop(1), drop(2)
    assert torch.equal(first, again) and not torch.equal(first, other)
    torch.manual_seed(1)
    assert torch.equal(kind.call(g, *operands, dropout_p=0.5), first)
    assert not torch.equal(kind.call(g, *operands, dropout_p=0.5), first)  # the generator has advanced
    torch.manual_seed(3)
    state = torch.get_rng_state()
    kind.call(g, *operands)
    assert torch.equal(state, torch.get_rng_state())  # without dropout nothing is drawn


def test_random_numbers_are_philox():
    """The specification's random numbers are the known answers of Random123 for a counter and a key of zeros."""
    words = (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)
    for word, head in zip(words, range(4)):
        below, above = (reference.dropout_mask((0, 0), 1, 4, (word + step) / 2**32)[0, head] for step in (0, 1))
        assert below > 0 and above == 0


def test_share_of_dropped_weights(device):
    g = halfgnn.Graph.from_edges(
        torch.arange(40_000).to(device), torch.arange(40_000).to(device), num_src=40_000, num_dst=40_000
    )
    one = torch.ones(40_000, 6, 1, device=device)
    kept = ops.gat_attention(g, one, one[..., 0], one[..., 0], dropout_p=0.3)
    assert set(kept.unique().tolist()) == {0.0, kept.max().item()} and abs(kept.max().item() - 1 / 0.7) < 1e-6
    share = (kept == 0).double().mean(0)
    assert ((share - 0.3).abs() < 5 * (0.21 / 40_000) ** 0.5).all()


# ---- what is kept for the backward -------------------------------------------------------------------------------------------


@every_kind
@pytest.mark.parametrize("precise", [True, False])
def test_nothing_of_the_size_of_edges_and_heads_is_kept(kind, precise):
    g = support.hub_graph(num_edges=20_000, num_src=100)
    heads, dim = 8, 4
    operands = [x.requires_grad_() for x in kind.operands(g, heads, dim, torch.bfloat16)]
    own = {t.data_ptr() for side in (g.csc(), g.csr()) for t in side if t is not None}
    own |= {x.data_ptr() for x in operands}
    kept = []

    def pack(tensor):
        if tensor.data_ptr() not in own:
            kept.append(tensor.numel() * tensor.element_size())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        kind.call(g, *operands, dropout_p=0.5, precise=precise).sum()
    results = 1 + precise + bool(kind.logits)
    assert sum(kept) <= g.num_dst * heads * (results * dim * 2 + 4) + 16
    assert sum(kept) < g.num_edges * heads  # in bytes: less than one per pair of edge and head


# ---- autocast, compilation, autograd -------------------------------------------------------------------------------------------


@every_kind
@pytest.mark.parametrize("dtype", HALVES)
def test_autocast(dtype, kind, device):
    g = make_graph("skewed", torch.int64, device)
    operands = [x.requires_grad_() for x in kind.operands(g, 4, 16, torch.float32, device)]
    with torch.autocast(device, dtype):
        out = kind.call(g, *operands)
    assert out.dtype == dtype
    out.float().sum().backward()
    assert all(x.grad.dtype == torch.float32 for x in operands)
    rounded = [x.detach() if i in kind.logits else x.detach().to(dtype) for i, x in enumerate(operands)]
    assert torch.equal(out, kind.call(g, *rounded))


@every_kind
def test_compiled(kind):
    torch._dynamo.reset()
    g = make_graph("skewed")
    operands = kind.operands(g, 4, 16, torch.bfloat16)
    compiled = torch.compile(lambda *x: kind.call(g, *x).sin(), fullgraph=True, dynamic=True)
    results = []
    for function in (compiled, lambda *x: kind.call(g, *x).sin()):
        out, grads = support.evaluate(function, operands, torch.ones_like)
        results.append([out, *grads])
    for a, b in zip(*results):
        torch.testing.assert_close(a, b, rtol=1e-2, atol=1e-2)
    dropped = torch.compile(lambda *x: kind.call(g, *x, dropout_p=0.5), fullgraph=True)
    torch.manual_seed(4)
    first = dropped(*operands)
    torch.manual_seed(4)
    assert torch.equal(dropped(*operands), first)
    assert not torch.equal(dropped(*operands), first)


@every_kind
def test_only_the_wanted_gradients(kind, device):
    g = make_graph("skewed", torch.int64, device)
    operands = kind.operands(g, 2, 8, torch.float32, device)
    _, everything = support.evaluate(lambda *x: kind.call(g, *x), operands, torch.ones_like)
    for i in range(len(operands)):
        given = [x.clone().requires_grad_(j == i) for j, x in enumerate(operands)]
        kind.call(g, *given).sum().backward()
        assert [x.grad is not None for x in given] == [j == i for j in range(len(given))]
        torch.testing.assert_close(given[i].grad, everything[i], rtol=1e-5, atol=1e-5)


@every_kind
def test_a_second_derivative_raises(kind):
    g = make_graph("skewed")
    operands = [x.requires_grad_() for x in kind.operands(g, 2, 8, torch.float32)]
    (grad,) = torch.autograd.grad(kind.call(g, *operands).sum(), operands[:1], create_graph=True)
    with pytest.raises(RuntimeError, match="not implemented"):
        grad.sum().backward()


def test_checkpointing_drops_the_same(device):
    from torch.utils.checkpoint import checkpoint

    g = make_graph("skewed", torch.int64, device)
    results = []
    for wrap in (lambda f, *x: f(*x), lambda f, *x: checkpoint(f, *x, use_reentrant=False)):
        operands = [x.requires_grad_() for x in (torch.manual_seed(1), GAT.operands(g, 2, 8, torch.float32, device))[1]]
        torch.manual_seed(2)
        wrap(lambda *x: GAT.call(g, *x, dropout_p=0.5), *operands).square().sum().backward()
        results.append([x.grad for x in operands])
    assert all(torch.equal(a, b) for a, b in zip(*results))


# ---- weights -----------------------------------------------------------------------------------------------------------------


def weights_by_formula(kind, g, *operands):
    """The logits, computed from their operands."""
    if kind is DOT:
        query, key = operands
        logits = 0.3 * reference.gsddmm(g, "dot", key, query).squeeze(-1)
    elif kind is GATV2:
        src, dst, attn = operands
        logits = (torch.nn.functional.leaky_relu(reference.gsddmm(g, "add", src, dst), SLOPE) * attn).sum(-1)
    else:
        src, dst, *edge = operands
        logits = torch.nn.functional.leaky_relu(sum(edge, reference.gsddmm(g, "add", src, dst)), SLOPE)
    return reference.edge_softmax(g, logits)


@every_kind
@pytest.mark.parametrize("device,dtype", support.devices_and(DTYPES))
def test_weights(dtype, device, kind):
    g = make_graph("skewed", torch.int64, device)
    operands = kind.operands(g, 3, 16, dtype, device)
    out, weights = kind.call(g, *operands, return_weights=True)
    assert torch.equal(out, kind.call(g, *operands)) and weights.shape == (g.num_edges, 3)
    value = operands[2 if kind is DOT else 0]
    again = ops.u_mul_e_sum(g, value, weights.unsqueeze(-1).to(value.dtype))
    tolerance = 20 * torch.finfo(dtype).eps
    torch.testing.assert_close(again, out, rtol=tolerance, atol=tolerance)
    first, last = {"gatv2": (0, 3), "dot": (0, 2)}.get(
        kind.name, (1, len(operands))
    )  # the operands on which the weights depend
    support.check(
        lambda *x: kind.call(g, *operands[:first], *x, *operands[last:], return_weights=True)[1],
        lambda *x: weights_by_formula(kind, g.to("cpu"), *x),
        operands[first:last],
        terms=10_000,
    )


# ---- arguments -----------------------------------------------------------------------------------------------------------------


def refuse(error, match, call, *args, **kwargs):
    with pytest.raises(error, match=match):
        call(*args, **kwargs)


def test_bad_arguments(device):
    g = make_graph("bipartite", torch.int64, device)

    def zeros(rows, *shape, dtype=torch.float16, where=device):
        return torch.zeros(rows, *shape, dtype=dtype, device=where)

    feat, src, dst = zeros(g.num_src, 2, 8), zeros(g.num_src, 2), zeros(g.num_dst, 2)
    gat, gatv2, dot = ops.gat_attention, ops.gatv2_attention, ops.dot_attention
    refuse(TypeError, "g is a int", gat, 3, feat, src, dst)
    refuse(TypeError, "feat is None", gat, g, None, src, dst)
    refuse(ValueError, r"feat has shape \(30, 16\); expected \(rows, heads, dim\)", gat, g, zeros(30, 16), src, dst)
    refuse(ValueError, "feat has shape .*; expected 30 rows", gat, g, feat[:-1], src, dst)
    refuse(ValueError, r"attn_src has shape \(30, 3\)", gat, g, feat, zeros(g.num_src, 3), dst)
    refuse(ValueError, "attn_dst has shape .*; expected 40 rows", gat, g, feat, src, src)
    refuse(ValueError, "edge_logits has shape .*; expected 300 rows", gat, g, feat, src, dst, zeros(5, 2))
    refuse(ValueError, "edge_logits has shape", gat, g, feat, src, dst, zeros(g.num_edges, 2, 1))
    refuse(ValueError, "dropout_p is 1.5", gat, g, feat, src, dst, dropout_p=1.5)
    refuse(ValueError, "dropout_p is nan", dot, g, zeros(40, 2, 8), feat, feat, dropout_p=float("nan"))
    refuse(TypeError, "feat has dtype Long", gat, g, feat.long(), src, dst)
    refuse(TypeError, "attn_src has dtype Long", gat, g, feat, src.long(), dst.long())
    refuse(TypeError, "attn_", gat, g, feat, src.double(), dst)
    refuse(TypeError, "attn_src has dtype Half|feat has dtype Double", gat, g, feat.double(), src, dst)
    refuse(ValueError, "feat_dst has shape", gatv2, g, feat, zeros(g.num_dst, 2, 4), zeros(2, 8))
    refuse(ValueError, r"attn has shape \(8,\)", gatv2, g, feat, zeros(g.num_dst, 2, 8), zeros(8))
    refuse(ValueError, "attn is on meta", gatv2, g, feat, zeros(g.num_dst, 2, 8), zeros(2, 8, where="meta"))
    refuse(TypeError, "attn is a NoneType", gatv2, g, feat, zeros(g.num_dst, 2, 8), None)
    refuse(TypeError, "feat_dst has dtype Float", gatv2, g, feat, zeros(g.num_dst, 2, 8).float(), zeros(2, 8))
    refuse(ValueError, "value has shape", dot, g, zeros(g.num_dst, 2, 8), feat, zeros(g.num_src, 2, 4))
    refuse(ValueError, "query has shape", dot, g, zeros(g.num_dst, 1, 8), feat, feat)
    refuse(ValueError, "query has shape .*; expected 40 rows", dot, g, feat, feat, feat)
    refuse(TypeError, "value has dtype BFloat16", dot, g, zeros(g.num_dst, 2, 8), feat, feat.bfloat16())


@pytest.mark.parametrize("name", ["dropout_p", "negative_slope", "scale"])
def test_bad_numbers(name):
    g = make_graph("bipartite", torch.int64)
    feat, other, logits = (torch.zeros(rows, 2, 8)[:, :, :dim] for rows, dim in ((30, 8), (40, 8), (30, 1)))
    calls = {
        "gat": lambda **number: ops.gat_attention(g, feat, logits[..., 0], other[..., 0], **number),
        "gatv2": lambda **number: ops.gatv2_attention(g, feat, other, feat[0], **number),
        "dot": lambda **number: ops.dot_attention(g, other, feat, feat, **number),
    }
    for kind in {"negative_slope": ("gat", "gatv2"), "scale": ("dot",)}.get(name, calls):
        call = calls[kind]
        for wrong in ("0.2", [0.2], 1j, torch.zeros(2), torch.zeros(1, dtype=torch.complex64)):
            refuse(TypeError, f"{name} is .*; expected a number", call, **{name: wrong})
        for wrong in (float("nan"), -float("inf"), torch.tensor(float("nan"))):
            refuse(ValueError, f"{name} is (nan|-inf); expected a finite number", call, **{name: wrong})
        refuse(TypeError, f"{name} .* gradient", call, **{name: torch.nn.Parameter(torch.tensor(0.2))})
        if name != "scale":
            refuse(TypeError, f"{name} is None; expected a number", call, **{name: None})
        expected = call(**{name: 0.0})
        for number in (0, False, torch.zeros(1), torch.zeros((), dtype=torch.int64)):
            assert torch.equal(call(**{name: number}), expected)


def test_raw_operators_check_what_they_are_given(device):
    g = make_graph("bipartite", torch.int64, device)
    feat, src, dst = GAT.operands(g, 2, 8, torch.float16, device)
    common = (None, SLOPE)
    gat = raw.gat_attention
    refuse(ValueError, "seed is None", gat, *g.csc(), feat, src, dst, *common, 0.5, None, False, False)
    refuse(TypeError, "seed has dtype", gat, *g.csc(), feat, src, dst, *common, 0.5, src[0], False, False)
    refuse(ValueError, "seed has shape", gat, *g.csc(), feat, src, dst, *common, 0.5, g.csc()[0], False, False)
    refuse(ValueError, "attn_dst has shape", gat, *g.csc(), feat, src, src, *common, 0.0, None, False, False)
    saved = gat(*g.csc(), feat, src, dst, *common, 0.0, None, True, True)
    out, lse, *rest = saved
    grad = torch.ones_like(out)

    def backward(grad=grad, out=out, lse=lse, rest=rest, feat=feat):
        return raw.gat_attention_backward(*g.csr(), feat, src, dst, *common, 0.0, None, grad, out, lse, *rest, False)

    backward()
    refuse(ValueError, "grad has shape", backward, grad=grad[:-1])
    refuse(TypeError, "grad has dtype", backward, grad=grad.float())
    refuse(ValueError, "lse has shape", backward, lse=lse[:, :1])
    refuse(TypeError, "lse has dtype", backward, lse=lse.half())
    refuse(ValueError, "out_residual has shape", backward, rest=[rest[0][:-1], *rest[1:]])
    refuse(ValueError, "positive has shape", backward, rest=[rest[0], rest[1][:-1]])
    refuse(ValueError, "feat has shape", backward, feat=feat[:-1])


@every_kind
def test_opcheck(kind, device):
    g = make_graph("skewed", torch.int64, device)
    operands = kind.operands(g, 2, 8, torch.float16, device)
    seed = torch.tensor(SEED, device=device)
    tests = ("test_schema", "test_faketensor")
    if kind.logits:
        operands = [*operands, None] if kind is GAT else operands
        forward, backward, side = raw.gat_attention, raw.gat_attention_backward, g.csr()
        need = (kind is GAT_EDGE,)
    else:
        forward = raw.gatv2_attention if kind is GATV2 else raw.dot_attention
        backward = raw.gatv2_attention_backward if kind is GATV2 else raw.dot_attention_backward
        side, need = (*g.csc(), *g.csr()), ()
    for save, precise in ((True, True), (True, False), (False, False)):
        args = (*g.csc(), *operands, SLOPE, 0.5, seed, save, precise)
        torch.library.opcheck(forward.default, args, test_utils=tests)
        if save:
            saved = forward(*args)
            args = (*side, *operands, SLOPE, 0.5, seed, torch.ones_like(saved[0]), *saved, *need)
            torch.library.opcheck(backward.default, args, test_utils=tests)


def test_takes_a_dgl_graph():
    dgl = pytest.importorskip("dgl")
    g = make_graph("skewed")
    other = dgl.graph(g.edges(), num_nodes=g.num_src)
    for kind in KINDS:
        operands = kind.operands(g, 2, 8, torch.float32)
        assert torch.equal(kind.call(g, *operands), kind.call(other, *operands))
