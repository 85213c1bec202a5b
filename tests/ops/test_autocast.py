"""torch.autocast on every device: the user's dtype, gradients, GradScaler, clipping, accumulation."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from halfgnn import ops
from tests import support
from tests.support import DEVICES, HALVES, make_graph

N_SRC, N_DST, E = 30, 40, 300

# name: (function of graph and operands, operand rows)
CASES = {
    "copy_u_sum": (lambda g, x: ops.copy_u_sum(g, x), [N_SRC]),
    "copy_e_mean": (lambda g, x: ops.copy_e_mean(g, x), [E]),
    "u_mul_e_sum": (lambda g, x, y: ops.u_mul_e_sum(g, x, y), [N_SRC, E]),
    "u_add_e_max": (lambda g, x, y: ops.u_add_e_max(g, x, y), [N_SRC, E]),
    "u_dot_v": (lambda g, x, y: ops.u_dot_v(g, x, y), [N_SRC, N_DST]),
    "u_add_v": (lambda g, x, y: ops.u_add_v(g, x, y), [N_SRC, N_DST]),
    "e_sub_v": (lambda g, x, y: ops.e_sub_v(g, x, y), [E, N_DST]),
    "edge_softmax": (lambda g, x: ops.edge_softmax(g, x), [E]),
    "edge_softmax_src": (lambda g, x: ops.edge_softmax(g, x, "src"), [E]),
    "segment_mean": (lambda g, x: ops.segment_reduce(g.in_degrees(), x, "mean"), [E]),
    "segment_max": (lambda g, x: ops.segment_reduce(g.in_degrees(), x, "max"), [E]),
}


class Recorder(TorchDispatchMode):
    """Names of halfgnn operators that run, with the dtypes of their floating tensors."""

    def __init__(self):
        super().__init__()
        self.calls = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "halfgnn":
            dtypes = {x.dtype for x in args if isinstance(x, torch.Tensor) and x.is_floating_point()}
            self.calls.setdefault(func._schema.name.removeprefix("halfgnn::"), set()).update(dtypes)
        return func(*args, **(kwargs or {}))


@pytest.fixture
def g(device):
    return make_graph("bipartite", torch.int32, device)


def leaves_for(name, device, dtype=torch.float32):
    return [torch.randn(rows, 4, device=device, dtype=dtype, requires_grad=True) for rows in CASES[name][1]]


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", CASES)
def test_follows_the_users_dtype(g, name, dtype, device):
    """Result and backward have the same bits as with inputs cast by hand. Leaves get float32 gradients."""
    function, _ = CASES[name]
    leaves = leaves_for(name, device)
    with torch.autocast(device, dtype), Recorder() as forward:
        out = function(g, *leaves)
    assert out.dtype == dtype
    assert all(dtypes == {dtype} for op, dtypes in forward.calls.items() if op != "transpose")
    grad = torch.randn_like(out)
    with Recorder() as backward:
        grads = torch.autograd.grad(out, leaves, grad)
    assert any(op.endswith("_backward") for op in backward.calls)
    assert all(dtypes == {dtype} for dtypes in backward.calls.values())
    assert all(x.dtype == torch.float32 for x in grads)

    by_hand = function(g, *(x.to(dtype) for x in leaves))
    assert torch.equal(out, by_hand)
    for a, b in zip(grads, torch.autograd.grad(by_hand, leaves, grad)):
        assert torch.equal(a, b)


@pytest.mark.parametrize("name", CASES)
def test_nothing_happens_outside(g, name, device):
    function, _ = CASES[name]
    leaves = leaves_for(name, device)
    assert function(g, *leaves).dtype == torch.float32
    with torch.autocast(device, torch.bfloat16), torch.autocast(device, enabled=False):
        assert function(g, *leaves).dtype == torch.float32
    other = "cuda" if device == "cpu" else "cpu"
    with torch.autocast(other, torch.bfloat16, enabled=other == "cpu"):
        assert function(g, *leaves).dtype == torch.float32


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", CASES)
def test_float64_is_left_alone(name, dtype):
    g = make_graph("bipartite", torch.int32)
    function, _ = CASES[name]
    leaves = leaves_for(name, "cpu", torch.float64)
    with torch.autocast("cpu", dtype):
        out = function(g, *leaves)
        out.sum().backward()
    assert out.dtype == torch.float64
    plain = leaves_for(name, "cpu", torch.float64)
    for a, b in zip(plain, leaves):
        a.data.copy_(b.data)
    assert torch.equal(function(g, *plain), out)


@pytest.mark.parametrize("dtype", HALVES)
def test_operands_of_different_types_meet_in_the_users_dtype(g, dtype, device):
    """Mixed types that are common under autocast: a half activation with a float32 parameter, or with the other half
    type."""
    other = HALVES[1 - HALVES.index(dtype)]
    x = torch.randn(N_SRC, 4, device=device)
    w = torch.randn(E, 1, device=device)
    y = torch.randn(N_DST, 4, device=device)
    with torch.autocast(device, dtype):
        for a, b in [(torch.float32, dtype), (dtype, torch.float32), (other, torch.float32), (other, dtype)]:
            assert torch.equal(
                ops.u_mul_e_sum(g, x.to(a), w.to(b)), ops.u_mul_e_sum(g, x.to(a).to(dtype), w.to(b).to(dtype))
            )
            assert ops.u_dot_v(g, x.to(a), y.to(b)).dtype == dtype


@pytest.mark.parametrize("dtype", HALVES)
def test_out_dtype_inside(g, dtype, device):
    x = torch.randn(N_SRC, 4, device=device)
    with torch.autocast(device, dtype):
        out = ops.copy_u_sum(g, x, out_dtype=torch.float32)
    assert out.dtype == torch.float32 and torch.equal(out, ops.copy_u_sum(g, x.to(dtype), out_dtype=torch.float32))


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", CASES)
def test_backward_inside_the_region(g, name, dtype, device):
    function, _ = CASES[name]
    leaves = leaves_for(name, device)
    results = []
    for inside in (False, True):
        with torch.autocast(device, dtype):
            out = function(g, *leaves)
            torch.manual_seed(1)
            grad = torch.randn_like(out)
            if inside:
                results.append(torch.autograd.grad(out, leaves, grad))
        if not inside:
            results.append(torch.autograd.grad(out, leaves, grad))
    for a, b in zip(*results):
        assert a.dtype == torch.float32 and torch.equal(a, b)


@pytest.mark.parametrize("dtype", HALVES)
def test_no_grad_inside(g, dtype, device):
    with torch.no_grad(), torch.autocast(device, dtype):
        assert ops.copy_u_mean(g, torch.randn(N_SRC, 4, device=device)).dtype == dtype


# ---- training as users write it ------------------------------------------------------------------


class Attention(torch.nn.Module):
    """A small graph attention made of the operators."""

    def __init__(self, dim=8, heads=2):
        super().__init__()
        self.heads = heads
        self.project = torch.nn.Linear(dim, heads * dim)
        self.left = torch.nn.Parameter(torch.randn(heads, dim) * 0.3)
        self.right = torch.nn.Parameter(torch.randn(heads, dim) * 0.3)

    def forward(self, g, x):
        h = self.project(x).view(x.shape[0], self.heads, -1)
        el, er = ((h * a).sum(-1, keepdim=True) for a in (self.left, self.right))
        alpha = ops.edge_softmax(g, torch.nn.functional.leaky_relu(ops.u_add_v(g, el, er), 0.2))
        return ops.u_mul_e_sum(g, h, alpha)


def make_model(device):
    torch.manual_seed(7)
    return Attention().to(device)


def loss_of(model, g, x):
    return model(g, x).float().square().mean()


@pytest.fixture
def square(device):
    return make_graph("skewed", torch.int32, device)


@pytest.mark.parametrize("dtype", HALVES)
def test_model_gradients_are_close_to_float32(square, dtype, device):
    model = make_model(device)
    x = torch.randn(square.num_src, 8, device=device)
    params = list(model.parameters())
    exact = torch.autograd.grad(loss_of(model, square, x), params)
    with torch.autocast(device, dtype):
        loss = loss_of(model, square, x)
    mixed = torch.autograd.grad(loss, params)
    for a, b in zip(exact, mixed):
        assert b.dtype == torch.float32
        assert (a - b).norm() <= 16 * torch.finfo(dtype).eps * a.norm() + 1e-6


@pytest.mark.parametrize("device", DEVICES)
def test_grad_scaler_unscale_and_clip(square, device):
    """Gradients are scaled, go through the half backward and are unscaled. They equal those without a scaler."""
    model = make_model(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10)
    x = torch.randn(square.num_src, 8, device=device)
    plain = torch.autograd.grad(loss_of(model, square, x), list(model.parameters()))

    losses = []
    for step in range(8):
        optimizer.zero_grad()
        with torch.autocast(device, torch.float16):
            loss = loss_of(model, square, x)
        scaler.scale(loss).backward()
        if step == 0:
            scaled = torch.cat([p.grad.flatten() for p in model.parameters()]).norm()
            assert scaled > 500 * torch.cat([p.flatten() for p in plain]).norm()
        scaler.unscale_(optimizer)
        if step == 0:
            for p, expected in zip(model.parameters(), plain):
                assert (p.grad - expected).norm() <= 0.02 * expected.norm() + 1e-6
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        assert norm.isfinite()
        total = torch.cat([p.grad.flatten() for p in model.parameters()]).norm()
        assert total <= 0.0501
        before = [p.detach().clone() for p in model.parameters()]
        scaler.step(optimizer)
        scaler.update()
        assert any(not torch.equal(a, b) for a, b in zip(before, model.parameters()))
        losses.append(loss.item())
    assert losses[-1] < losses[0] and scaler.get_scale() == 2.0**10


@pytest.mark.parametrize("device", DEVICES)
def test_grad_scaler_skips_a_step_that_overflows(square, device):
    """An overflow in a half backward gives inf or NaN. The scaler sees it and skips one step."""
    model = make_model(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**40)
    x = torch.randn(square.num_src, 8, device=device)
    before = [p.detach().clone() for p in model.parameters()]
    with torch.autocast(device, torch.float16):
        loss = loss_of(model, square, x)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 2.0**39
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters()))


@pytest.mark.parametrize("dtype", HALVES)
def test_gradient_accumulation(square, dtype, device):
    """Gradients of micro-batches add up in the float32 leaves."""
    model = make_model(device)
    batches = [torch.randn(square.num_src, 8, device=device) for _ in range(3)]
    single = []
    for x in batches:
        with torch.autocast(device, dtype):
            loss = loss_of(model, square, x)
        single.append(torch.autograd.grad(loss, list(model.parameters())))
    for x in batches:
        with torch.autocast(device, dtype):
            loss = loss_of(model, square, x)
        loss.backward()
    for p, *parts in zip(model.parameters(), *single):
        assert p.grad.dtype == torch.float32 and torch.equal(p.grad, parts[0] + parts[1] + parts[2])


@pytest.mark.parametrize("dtype", HALVES)
def test_checkpointing_keeps_the_region(square, dtype, device):
    """Recomputation in the backward has the same autocast state."""
    model = make_model(device)
    x = torch.randn(square.num_src, 8, device=device)
    params = list(model.parameters())
    with torch.autocast(device, dtype):
        plain = loss_of(model, square, x)
        kept = torch.utils.checkpoint.checkpoint(model, square, x, use_reentrant=False).float().square().mean()
    assert torch.equal(plain, kept)
    for a, b in zip(torch.autograd.grad(plain, params), torch.autograd.grad(kept, params)):
        assert torch.equal(a, b)


def test_support_is_used():
    """The graph of this file has the sizes that the cases assume."""
    g = support.make_graph("bipartite")
    assert (g.num_src, g.num_dst, g.num_edges) == (N_SRC, N_DST, E)
