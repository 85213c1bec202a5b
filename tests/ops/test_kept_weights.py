"""Constant weights of edges, which are kept in the order of a Graph's sides: the same results, and nothing that is out of date."""

import pytest
import torch

import halfgnn
from halfgnn import ops
from halfgnn.common.caching import have_same_bits
from halfgnn.ops import _kept_weights

NODES, EDGES = 50, 400


@pytest.fixture(autouse=True)
def _of_few_edges(monkeypatch):
    monkeypatch.setattr(_kept_weights, "MIN_EDGES", 1)


def make():
    src, dst = (torch.randint(NODES, (EDGES,)) for _ in range(2))
    g = halfgnn.Graph.from_edges(src, dst, num_src=NODES, num_dst=NODES)
    return g, torch.randn(NODES, 16).requires_grad_(), torch.randn(EDGES, 1)


def results(g, x, w, op=ops.u_mul_e_sum):
    out = op(g, x, w)
    upstream = torch.linspace(-1, 1, out.numel(), device=out.device).view_as(out)
    return out.detach(), *torch.autograd.grad(out, x, upstream)


def kept(g):
    return sorted(g._kept_weights.last.sides)


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("op", [ops.u_mul_e_sum, ops.u_mul_e_mean])
def test_results_stay_the_same(op, heads):
    g, x, w = make()
    x, w = (x.detach().view(NODES, heads, -1).requires_grad_(), torch.randn(EDGES, heads, 1))
    first = results(g, x, w, op)
    for _ in range(4):
        assert all(torch.equal(a, b) for a, b in zip(results(g, x, w, op), first))
    assert kept(g) == ["csc", "csr"]
    with torch.no_grad():
        assert torch.equal(op(g, x, w), first[0])


def test_weights_that_are_written_to_are_read_anew():
    g, x, w = make()
    for _ in range(4):
        results(g, x, w)
    w.mul_(2)
    expected = results(*((h := halfgnn.Graph.from_edges(*g.edges(), num_src=NODES, num_dst=NODES)), x, w))
    assert all(torch.equal(a, b) for a, b in zip(results(g, x, w), expected))
    w[3] = torch.nan
    assert results(g, x, w)[0].isnan().any() and not kept(h)


def test_weights_of_the_same_values_in_other_tensors_are_known():
    """As gcn_norm under the drop-in returns them: a new view, or a new copy on write, in every call."""
    g, x, w = make()
    for _ in range(4):
        results(g, x, w.view(-1, 1))
    assert kept(g) == ["csc", "csr"]
    copies = g._kept_weights.last.sides
    results(g, x, w.clone())
    assert g._kept_weights.last.sides is copies


def test_weights_that_change_in_every_call_are_left_alone():
    g, x, _ = make()
    for value in range(10):
        w = torch.full((EDGES, 1), float(value))
        for _ in range(_kept_weights.FIRST_USE):
            assert torch.equal(results(g, x, w)[0], results(make_again(g), x, w)[0])
    assert g._kept_weights.wasted == _kept_weights.MOST_WASTED and not kept(g)


def make_again(g):
    return halfgnn.Graph.from_edges(*g.edges(), num_src=NODES, num_dst=NODES)


@pytest.mark.parametrize(
    "change", [lambda w: w.requires_grad_(), lambda w: w.expand(-1, 16), lambda w: w.repeat(1, 2)[:, :1]]
)
def test_other_weights_are_read_as_they_lie(change):
    g, x, w = make()
    w = change(w)
    for _ in range(5):
        results(g, x, w)
    assert not hasattr(g, "_kept_weights")


def test_a_second_derivative():
    g, x, w = make()
    for _ in range(4):
        out = ops.u_mul_e_sum(g, x, w)
        (grad,) = torch.autograd.grad(out.pow(2).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(grad.pow(2).sum(), x)
    dense = torch.zeros(NODES, NODES).index_put(
        tuple(reversed([y.long() for y in g.edges()])), w[:, 0], accumulate=True
    )
    expected = torch.func.grad(lambda y: torch.func.grad(lambda z: (dense @ z).pow(2).sum())(y).pow(2).sum())(
        x.detach()
    )
    torch.testing.assert_close(second, expected, rtol=1e-4, atol=1e-3)
    assert kept(g) == ["csc", "csr"]


def test_writing_to_a_weight_before_the_backward_raises():
    g, x, w = make()
    for _ in range(4):
        results(g, x, w)
    out = ops.u_mul_e_sum(g, x, w)
    w.add_(1)
    with pytest.raises(RuntimeError, match="modified in place"):
        out.sum().backward()


def test_graphs_whose_edges_lie_in_order_keep_the_other_side_alone():
    g, x, w = make()
    g, _ = halfgnn.Graph.from_edges(*g.edges(), num_src=NODES, num_dst=NODES, sort=True)
    assert g.csc().edge_ids is None
    for _ in range(4):
        results(g, x, w)
    assert kept(g) == ["csr"]


def write_where_autograd_does_not_see_it(w):
    w.numpy()[:] *= 3


def point_elsewhere(w):
    w.data = 3 * w


@pytest.mark.parametrize("change", [write_where_autograd_does_not_see_it, point_elsewhere])
def test_weights_that_are_changed_behind_autograd_are_read_anew(change):
    g, x, w = make()
    first = results(g, x, w)
    for _ in range(4):
        results(g, x, w)
    change(w)
    for a, b in zip(results(g, x, w), first):
        torch.testing.assert_close(a, 3 * b)


def test_threads_with_other_weights_of_a_graph_do_not_get_their_copies(monkeypatch):
    """Another thread runs between the question whether weights are known and the reading of the copies."""
    g, x, w = make()
    original, other = _kept_weights._side, -w
    first = results(g, x, w)
    for _ in range(2):
        results(g, x, w)

    def interrupted(*args):
        monkeypatch.setattr(_kept_weights, "_side", original)
        for _ in range(4):
            results(g, x, other)
        return original(*args)

    monkeypatch.setattr(_kept_weights, "_side", interrupted)
    assert all(torch.equal(a, b) for a, b in zip(results(g, x, w), first))
    assert torch.equal(results(g, x, other)[0], -first[0])


def test_weights_that_were_seen_in_other_modes():
    """Copies are made where ordinary code makes them; weights of inference mode have no version."""
    g, x, w = make()
    first = results(make_again(g), x, w)
    for _ in range(4):
        torch.func.grad(lambda y: ops.u_mul_e_sum(g, y, w).sum())(x.detach())
    with torch.inference_mode():
        for _ in range(4):
            assert torch.equal(ops.u_mul_e_sum(g, x, w.clone()), first[0])
    assert not hasattr(g, "_kept_weights")
    with torch.inference_mode():
        for _ in range(4):
            ops.u_mul_e_sum(g, x, w)
    assert all(torch.equal(a, b) for a, b in zip(results(g, x, w), first))


def test_weights_of_other_dtypes_in_turn():
    g, x, w = make()
    for _ in range(6):
        for weight in (w, w.half()):
            assert torch.equal(results(g, x, weight)[0], results(make_again(g), x, weight)[0])


def test_what_counts_as_kept_for_nothing():
    g, x, w = make()
    weights = [value + w for value in range(2 * _kept_weights.MOST_WASTED)]
    for weight in weights:  # not kept
        results(g, x, weight)
    for weight in weights:  # kept, and used often enough
        for _ in range(2 * _kept_weights.FIRST_USE):
            results(g, x, weight)
    assert g._kept_weights.wasted == 0 and kept(g) == ["csc", "csr"]


def test_nothing_is_compared_where_nothing_is_out_of_order(monkeypatch):
    """A sum of edges in the order of their destinations, without a backward: its weights lie as it reads them."""
    g = halfgnn.Graph.from_csc(
        torch.arange(0, EDGES + 1, EDGES // NODES), torch.randint(NODES, (EDGES,)), num_src=NODES
    )
    monkeypatch.setattr(_kept_weights._Kept, "see", lambda *_: pytest.fail("weights were looked at"))
    ops.u_mul_e_sum(g, torch.randn(NODES, 16), torch.randn(EDGES, 1))
    with pytest.raises(pytest.fail.Exception):
        ops.u_mul_e_sum(g, torch.randn(NODES, 16).requires_grad_(), torch.randn(EDGES, 1))


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.int64], ids=str
)
@pytest.mark.parametrize("start", [0, 1, 3])
@pytest.mark.parametrize("count", [0, 1, 7, 8, 33])
def test_bits_are_compared(dtype, start, count):
    x = (torch.rand(count + start) < 0.5).to(dtype)
    same = x.clone()[start:]
    assert have_same_bits(x[start:], same) and have_same_bits(x[start:], x[start:].clone())
    for place in {0, count // 2, count - 1} if count else ():
        other = same.clone()
        other[place] = 1 - same[place].to(torch.int64)
        assert not have_same_bits(x[start:], other)


def test_bits_tell_zeros_apart_and_nan_is_itself():
    x = torch.tensor([0.0, float("nan")])
    assert have_same_bits(x, x.clone()) and not have_same_bits(x, torch.tensor([-0.0, float("nan")]))
