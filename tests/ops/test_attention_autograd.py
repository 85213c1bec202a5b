"""The fused attentions: reproducibility, dropout, what is kept, autocast, compilation, derivatives, weights."""

import pytest
import torch

import halfgnn
from halfgnn import ops, reference
from tests import support
from tests.support import DTYPES, HALVES, make_graph, randn
from tests.support_attention import (
    DOT,
    GAT,
    GATV2,
    SLOPE,
    every_kind,
    fixed_seed,
)

raw = torch.ops.halfgnn


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
