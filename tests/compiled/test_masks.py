"""Masks that Inductor does not store: compiled code saves none for its backward."""

import pytest
import torch
import torch.nn.functional as F
from torch._dynamo.utils import counters
from torch._inductor import config
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch._inductor.utils import fresh_inductor_cache
from torch.utils.checkpoint import checkpoint

import halfgnn.compiled
from tests import support

pytestmark = pytest.mark.skipif(support.SIMULATED, reason="about FX graphs")

SIZE = (200, 32)


def compiled(function, **options):
    torch.compiler.reset()
    return torch.compile(function, backend=halfgnn.compiled.backend, **options)


def saved(out):
    return [x.dtype for x in out.grad_fn.saved_tensors if isinstance(x, torch.Tensor) and x.numel() > 1]


def branches(x):
    y = x * 3
    return torch.where((y > 0.5) & (y < 2), y * y, -y)


@pytest.mark.parametrize(
    "function", [lambda x: (2 * x).relu(), lambda x: F.leaky_relu(x * x - 1, 0.2), lambda x: (x * 2).clamp(-1, 1), branches],
    ids=["relu", "leaky_relu", "clamp", "where"],
)  # fmt: skip
def test_saves_no_masks(function):
    x = torch.randn(SIZE).requires_grad_()
    out, expected = compiled(function)(x), function(x)
    assert torch.bool not in saved(out)
    torch.testing.assert_close(out, expected)
    weight = torch.randn(SIZE)
    torch.testing.assert_close(torch.autograd.grad(out, x, weight), torch.autograd.grad(expected, x, weight))


def test_without_the_pass_they_are_saved():
    """Else the test above could not fail."""
    torch.compiler.reset()
    out = torch.compile(lambda x: (2 * x).relu())(torch.randn(SIZE).requires_grad_())
    assert torch.bool in saved(out)


def test_dropout_draws_once():
    torch.manual_seed(0)
    x = torch.ones(SIZE).requires_grad_()
    out = compiled(lambda x: F.dropout(x, 0.5))(x)
    assert torch.bool not in saved(out)
    (grad,) = torch.autograd.grad(out.sum(), x)
    assert torch.equal(grad, out) and 0.3 < float((out > 0).float().mean()) < 0.7


def test_within_a_checkpoint():
    def run(x):
        return checkpoint(lambda y: (y * 2).relu().sin(), x, use_reentrant=False).relu()

    x = torch.randn(SIZE).requires_grad_()
    out, expected = compiled(run)(x), run(x)
    torch.testing.assert_close(torch.autograd.grad(out.sum(), x), torch.autograd.grad(expected.sum(), x))


def test_a_mask_that_is_returned():
    def run(x):
        mask = x > 0
        return torch.where(mask, x * x, x), mask

    x = torch.randn(SIZE).requires_grad_()
    out, mask = compiled(run)(x)
    assert torch.equal(mask, x > 0)
    (grad,) = torch.autograd.grad(out.sum(), x)
    torch.testing.assert_close(grad, torch.where(mask, 2 * x, 1.0).detach())


class _Counting(CustomGraphPass):
    def __init__(self, identity):
        self.identity, self.calls = identity, 0

    def __call__(self, graph):
        self.calls += 1

    def uuid(self):
        return self.identity


@pytest.mark.parametrize("identity", ["pass", None])
def test_a_pass_of_the_program_runs_too(identity):
    own = _Counting(identity)
    with config.patch(joint_custom_post_pass=own):
        out = compiled(lambda x: (2 * x).relu())(torch.randn(SIZE).requires_grad_())
    assert own.calls == 1 and torch.bool not in saved(out)


def test_compiled_code_is_cached():
    x = torch.randn(SIZE).requires_grad_()
    with fresh_inductor_cache():
        for hits in (0, 1):
            counters.clear()
            compiled(lambda x: (3 * x).relu() + 1)(x)
            found = counters["inductor"]["fxgraph_cache_hit"] + counters["aot_autograd"]["autograd_cache_hit"]
            assert (found > 0) == bool(hits)
