"""Messages of all kinds under halfgnn.pyg.patch(): they look and behave as torch_geometric's."""

from __future__ import annotations

import copy
import io

import pytest
import torch
import torch_geometric

import halfgnn.pyg
from tests import support
from tests.pyg.support_pyg import Layer
from tests.pyg.test_patch_modules import NUM_EDGES, NUM_NODES, WIDTH, assert_same, edges, fell_back, randn, routed

pytestmark = pytest.mark.skipif(not support.supports("cpu", torch.float64), reason="needs float64")


class Straight(torch.autograd.Function):
    """A function whose gradient is not that of its formula, as a straight-through estimator's."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        return 3 * ctx.saved_tensors[0] * grad


class Reversed(torch.autograd.Function):
    """Its result is its input; its gradient is the opposite."""

    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, grad):
        return -grad


def written(x, w):
    x *= 2
    x[:, 0] = 1
    return x


def written_through_a_view(x, w):
    x.view(-1).mul_(3)
    return x


def written_after_a_product(x, w):
    product = x * w
    product += 1
    return product


def written_detached(x, w):
    x.detach().mul_(2)
    return x


def given_data(x, w):
    x.data = x.detach() * 2
    return x


def given_data_after_a_view(x, w):
    rows = x.view_as(x)[:, 1:]
    x.data = x.detach() * 2
    return rows * 1


def with_a_hook(x, w):
    if x.requires_grad:
        x.register_hook(lambda grad: 2 * grad)
    return x * w


def partly_without_gradient(x, w):
    with torch.no_grad():
        product = x * w
    return product + x


def without_gradient(x, w):
    with torch.no_grad():
        return x * w


def a_new_leaf(x, w):
    product = without_gradient(x, w)
    return product.requires_grad_() if x.requires_grad else product


def differentiated(x, w):
    return torch.autograd.grad((x**3).sum(), x, create_graph=True)[0] if x.requires_grad else x


def saved(x, w):
    file = io.BytesIO()
    torch.save(x.detach(), file)
    file.seek(0)
    return x + torch.load(file)


def saved_whole(x, w):
    file = io.BytesIO()
    torch.save(x, file)
    file.seek(0)
    return x + torch.load(file).detach()


def disabled(x, w):
    with torch._C.DisableTorchFunctionSubclass():
        return torch.nn.functional.gelu(x)


# name: (message, what is routed)
COPY_E, COPY_U = "gspmm:copy_e_{}", "gspmm:copy_u_{}"
MESSAGES = {
    "copy": (lambda x, w: x, "gspmm:copy_u_{}"),
    "weighted": (lambda x, w: w * x, "gspmm:u_mul_e_{}"),
    "weighted from the right": (lambda x, w: x * w, "gspmm:u_mul_e_{}"),
    "every value weighted": (lambda x, w: x * w.expand(-1, WIDTH).contiguous(), "gspmm:u_mul_e_{}"),
    "sum": (lambda x, w: x + w, "gspmm:u_add_e_{}"),
    "sum from the right": (lambda x, w: w + x, "gspmm:u_add_e_{}"),
    "difference": (lambda x, w: x - w, "gspmm:u_sub_e_{}"),
    "quotient": (lambda x, w: torch.div(x, w), "gspmm:u_div_e_{}"),
    "difference from the right": (lambda x, w: w - x, COPY_E),
    "quotient from the right": (lambda x, w: w / x, COPY_E),
    "sum with alpha": (lambda x, w: torch.add(x, w, alpha=2), COPY_E),
    "rounded quotient": (lambda x, w: torch.div(x, w, rounding_mode="floor"), COPY_E),
    "number": (lambda x, w: 2 * x, COPY_U),
    "selected by edges": (lambda x, w: torch.where(w > 0, x, w), COPY_E),
    "selected from a number": (lambda x, w: torch.where(w[:, :1] > 0, 2 * x, 0.5), COPY_E),
    "selected by all edges": (lambda x, w: x.where(w[0] > 0, -x), COPY_E),
    "row of all edges": (lambda x, w: x * w[:WIDTH].view(-1), COPY_U),
    "number added to a product": (lambda x, w: x * w + 0.5, None),
    "row of all edges added to a product": (lambda x, w: x * w + w[:WIDTH].view(-1), None),
    "two products": (lambda x, w: x * w * w, None),
    "relu of a sum": (lambda x, w: (x + w - w).relu() + (w + x).relu(), COPY_E),
    "GINE": (lambda x, w: torch.relu(w + x), "gspmm:u_relu_add_e_{}"),
    "GINE, sum written after": (lambda x, w: (lambda s: (s.relu(), s.mul_(-1))[0])(x + w), None),
    "detached": (lambda x, w: x.detach(), "gspmm:copy_u_{}"),
    "detached product": (lambda x, w: x.detach() * w, "gspmm:u_mul_e_{}"),
    "function": (lambda x, w: x.relu(), COPY_U),
    "columns": (lambda x, w: x[:, :3], COPY_U),
    "concatenated": (lambda x, w: torch.cat([x, w], 1), COPY_E),
    "einsum": (lambda x, w: torch.einsum("ef,eg->ef", x, w), COPY_E),
    "rows one by one": (lambda x, w: torch.stack(list(x)), COPY_E),
    "sparse": (lambda x, w: torch.sparse.mm(torch.eye(NUM_EDGES, dtype=x.dtype).to_sparse(), x), COPY_E),
    "autograd function": (lambda x, w: Straight.apply(x), None),
    "function of the same values": (lambda x, w: Reversed.apply(x), None),
    "function of a detached message": (lambda x, w: Reversed.apply(x.detach().requires_grad_(x.requires_grad)), None),
    "vmap": (lambda x, w: torch.vmap(torch.mul)(x, w), None),
    "checkpoint": (lambda x, w: torch.utils.checkpoint.checkpoint(torch.sin, x, use_reentrant=False), COPY_E),
    "checkpoint of a product": (
        lambda x, w: torch.utils.checkpoint.checkpoint(lambda s, t: (s * t).tanh(), x, w, use_reentrant=False),
        COPY_E,
    ),
    "without torch functions": (disabled, COPY_E),
    "written": (written, COPY_E),
    "written with _": (lambda x, w: x.relu_(), COPY_E),
    "written as out": (lambda x, w: x if x.requires_grad else torch.mul(w, 3, out=x.new_empty(NUM_EDGES, 1)), None),
    "written through a view": (written_through_a_view, COPY_E),
    "written after a product": (written_after_a_product, COPY_E),
    "written detached": (written_detached, None),  # see below
    "given data": (given_data, COPY_E),
    "given data after a view": (given_data_after_a_view, COPY_E),
    "hook": (with_a_hook, None),
    "partly without gradient": (partly_without_gradient, COPY_E),
    "without gradient": (without_gradient, "gspmm:u_mul_e_{}"),
    "a new leaf": (a_new_leaf, None),
    "differentiated": (differentiated, None),
    "numpy": (lambda x, w: x * torch.from_numpy(x.detach().numpy()), "gspmm:u_mul_e_{}"),
    "list": (lambda x, w: x * torch.tensor(x.tolist(), dtype=x.dtype), "gspmm:u_mul_e_{}"),
    "number of it": (lambda x, w: x * x.sum().item(), COPY_U),
    "printed": (lambda x, w: x * (len(repr(x)) > 100), COPY_U),
    "deep copy": (lambda x, w: x + copy.deepcopy(x.detach()), "gspmm:u_add_e_{}"),
    "pickled": (saved, "gspmm:u_add_e_{}"),
    "pickled whole": (saved_whole, "gspmm:u_add_e_{}"),
    "of its shape": (lambda x, w: x * torch.ones_like(x) + x.new_zeros(x.size(0), 1), COPY_E),
}


def propagated(layer, requires_grad):
    x, w = (randn(rows, width, seed=rows).abs() + 0.5 for rows, width in ((NUM_NODES, WIDTH), (NUM_EDGES, 1)))
    x, w = x.requires_grad_(requires_grad), w.requires_grad_(requires_grad)
    out = layer(x, edges(), w)
    grads = []
    if out.requires_grad:
        grads = torch.autograd.grad(out, (x, w), randn(*out.shape, seed=4), allow_unused=True)
    return [out.requires_grad, out.detach(), *grads]


@pytest.mark.parametrize("requires_grad", [True, False])
@pytest.mark.parametrize("aggr", ["sum", "max"])
@pytest.mark.parametrize("name", MESSAGES)
def test_messages_of_users(name, aggr, requires_grad):
    function, operator = MESSAGES[name]
    if name.startswith("pickled whole") and requires_grad:
        pytest.skip("PyTorch warns about it")
    expected = propagated(Layer(function, aggr), requires_grad)
    with halfgnn.pyg.accelerate():
        actual = propagated(Layer(function, aggr), requires_grad)
    assert actual[0] == expected[0]
    for a, b in zip(actual[1:], expected[1:], strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)
    if operator is not None:
        assert operator.format(aggr) in routed()


class Pairwise(torch_geometric.nn.MessagePassing):
    """A layer with a user's message function of the features of both ends."""

    def __init__(self, function):
        super().__init__(aggr="sum")
        self.function = function

    def forward(self, x, edge_index):
        return self.propagate(edge_index, x=x)

    def message(self, x_i, x_j):
        return self.function(x_i, x_j)


@pytest.mark.parametrize("width", [NUM_EDGES, WIDTH])
def test_softmax_over_edges_that_are_not_first(width):
    def weights(x_j, w):
        return x_j * torch_geometric.utils.softmax(x_j.tanh() * w, edges()[1], num_nodes=NUM_NODES, dim=1)

    x, w = randn(width, NUM_NODES, WIDTH, seed=1), randn(NUM_EDGES, 1, seed=2)
    expected = Layer(weights)(x, edges(), w)
    with halfgnn.pyg.accelerate():
        assert_same([Layer(weights)(x, edges(), w)], [expected])


MATRIX_PRODUCTS = {  # name: (message of x_i, x_j and a matrix, how often it is computed for nodes)
    "@": (lambda a, b, m: (a @ m) * b[:, :3], 1),
    "matmul of both": (lambda a, b, m: a.matmul(m) + torch.cat([a, b], -1) @ torch.cat([m, m]), 2),
    "mm of a function": (lambda a, b, m: b.relu().mm(m).tanh(), 1),
    "heads": (lambda a, b, m: (b.view(-1, 2, WIDTH // 2) @ m[: WIDTH // 2]).flatten(1), 1),
    "of edges": (lambda a, b, m: (a * b) @ m, 0),
    "written before": (lambda a, b, m: b.mul_(2) @ m, 0),
    "written after": (lambda a, b, m: (b @ m).mul_(2), 1),
    "vector": (lambda a, b, m: (b @ m[:, 0])[:, None], 0),
    "torch.matmul": (lambda a, b, m: torch.matmul(b, m), 1),
}


@pytest.mark.parametrize("name", MATRIX_PRODUCTS)
def test_products_with_a_matrix(name):
    function, number = MATRIX_PRODUCTS[name]
    leaves = [randn(NUM_NODES, WIDTH, seed=1).requires_grad_(), randn(WIDTH, 3, seed=2).requires_grad_()]

    def run():
        out = Pairwise(lambda a, b: function(a, b, leaves[1]))(leaves[0], edges())
        return out.detach(), *torch.autograd.grad(out, leaves, randn(*out.shape, seed=4))

    expected = run()
    with halfgnn.pyg.accelerate():
        assert_same(run(), expected)
    assert halfgnn.pyg.stats()["routed"].get("linear", 0) == number


@pytest.mark.parametrize("dtype", support.HALVES, ids=str)
def test_a_dot_is_rounded_once(dtype):
    x = randn(NUM_NODES, 64, seed=1).to(dtype)
    dots = Pairwise(lambda a, b: (a * b).sum(-1, keepdim=True))
    wide = Pairwise(lambda a, b: (a * b).sum(-1, keepdim=True, dtype=torch.float32))
    matching = torch.stack(
        [torch.arange(NUM_NODES), torch.arange(NUM_NODES).roll(1)]
    )  # one edge a node: no sum of dots
    exact = dots(x.double(), matching)
    with halfgnn.pyg.accelerate():
        assert_same([dots(x, matching)], [exact.to(dtype)], 2 * torch.finfo(dtype).eps)
        assert_same([wide(x, matching).double()], [exact], 1e-5)
    assert "gsddmm:v_dot_u" in routed()


@pytest.mark.parametrize("dim", [2, -3])
def test_a_product_has_no_such_dimension(dim):
    with halfgnn.pyg.accelerate(), pytest.raises(IndexError):
        Pairwise(lambda a, b: (a * b).sum(dim))(randn(NUM_NODES, WIDTH, seed=1), edges())


@pytest.mark.parametrize(
    "combine", [lambda b: b * b.new_full((b.shape[0], 1), 3), lambda b: (b + b.detach().clone()).relu()]
)
def test_a_message_is_written_after_another_was_made_of_it(combine):
    def message(a, b):
        combined = combine(b)
        b.mul_(2)
        return combined

    x = randn(NUM_NODES, WIDTH, seed=1)
    expected = Pairwise(message)(x, edges())
    with halfgnn.pyg.accelerate():
        assert_same([Pairwise(message)(x, edges())], [expected])


@pytest.mark.parametrize(
    "function", [lambda x, w: x.exp(), lambda x, w: (x + w).exp(), lambda x, w: x + w, lambda x, w: x * w]
)
def test_views_with_the_negative_bit(function):
    """The imaginary part of a conjugate: its memory has the other sign, which operators below autograd do not see."""
    x, w = (
        torch.complex(randn(rows, WIDTH, seed=1), randn(rows, WIDTH, seed=2)).conj().imag for rows in (30, NUM_EDGES)
    )
    assert x.is_neg() and w.is_neg()
    expected = Layer(function)(x, edges(), w)
    with halfgnn.pyg.accelerate():
        assert_same([Layer(function)(x, edges(), w)], [expected])


# ---- features that are written to ---------------------------------------------------------------------------------------------


def of_numpy(x):
    """In memory of which PyTorch cannot share a part until it is written to."""
    return torch.from_numpy(x.numpy().copy())


def changing(x):
    """A message that changes the features of which it was made before it is reduced."""

    def message(a, b):
        product = a * b
        with torch.no_grad():
            x.add_(1)
        return product.sum(-1, keepdim=True)

    return message


def test_features_that_change_before_a_product_is_summed():
    expected = Pairwise(changing(x := randn(NUM_NODES, WIDTH, seed=1)))(x, edges())
    x = randn(NUM_NODES, WIDTH, seed=1)
    with halfgnn.pyg.accelerate():
        assert_same([Pairwise(changing(x))(x, edges())], [expected])
        x = of_numpy(x)
        with pytest.raises(RuntimeError, match="modified in place"):
            Pairwise(changing(x))(x, edges())


class Weighted(torch_geometric.nn.MessagePassing):
    """Messages whose gradients read features of both ends, and a trained weight."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(randn(WIDTH, seed=3))

    def forward(self, x, edge_index):
        return self.propagate(edge_index, x=x)

    def message(self, x_i, x_j):
        return (x_i * x_j).sum(-1, keepdim=True) * x_j + x_j * self.weight


def gine(lib):
    return lambda: lib.GINEConv(torch.nn.Linear(WIDTH, WIDTH))


# torch_geometric's module, and the one that runs under the drop-in
RESIDUALS = {
    "GINEConv": 2 * [gine(torch_geometric.nn)],
    "halfgnn.pyg.GINEConv": [gine(torch_geometric.nn), gine(halfgnn.pyg)],
    "GENConv": 2 * [lambda: torch_geometric.nn.GENConv(WIDTH, WIDTH)],
    "weighted": 2 * [Weighted],
}


def residual_gradients(conv, is_input):
    """is_input: the features that are written to are no operator's result."""
    scale = torch.ones(1, dtype=torch.float64, requires_grad=True)
    x, edge_attr = randn(NUM_NODES, WIDTH, seed=1), scale * randn(NUM_EDGES, WIDTH, seed=2)
    x = x if is_input else scale * x
    for _ in range(2):
        x += conv(x, edges()) if isinstance(conv, Weighted) else conv(x, edges(), edge_attr)
        edge_attr += 1
    grads = torch.autograd.grad(x.pow(2).sum(), [scale, *conv.parameters()], allow_unused=True)
    return [grad for grad in grads if grad is not None]


@pytest.mark.parametrize("is_input", [False, True], ids=["computed", "input"])
@pytest.mark.parametrize("name", RESIDUALS)
def test_residuals_are_added_in_place(name, is_input):
    """torch_geometric keeps gathered features for the backward, which a later write does not change."""
    torch.manual_seed(1)
    theirs, own = (make().double() for make in RESIDUALS[name])
    own.load_state_dict(theirs.state_dict())
    expected = residual_gradients(theirs, is_input)
    with halfgnn.pyg.accelerate():
        assert_same(residual_gradients(own, is_input), expected)


@pytest.mark.parametrize("share", [torch.Tensor.numpy, torch.from_dlpack], ids=["numpy", "dlpack"])
@pytest.mark.parametrize("function", [lambda x, w: x * w, lambda x, w: (x + w).relu()])
def test_what_shares_the_memory_of_features_before_a_call_shares_it_afterwards(share, function):
    x, w = randn(NUM_NODES, WIDTH, seed=1), randn(NUM_EDGES, WIDTH, seed=2).requires_grad_()
    alias = share(x)
    with halfgnn.pyg.accelerate():
        out = Layer(function)(x, edges(), w)
    assert out.requires_grad
    x.add_(1)
    alias[0] = 5
    assert (x[0] == 5).all()


def test_a_message_looks_like_the_tensor():
    seen = []

    def look(x, w):
        seen.append(
            [x.shape, x.dim(), x.size(0), len(x), x.dtype, x.device, x.requires_grad, x.is_contiguous(), x.layout]
        )
        seen[-1] += [isinstance(x, torch.Tensor), x.is_leaf, x.numel(), x.stride(), x.is_floating_point(), x._version]
        return x

    propagated(Layer(look), True)
    with halfgnn.pyg.accelerate():
        propagated(Layer(look), True)
    assert seen[0] == seen[1] and fell_back() == set()


def stored_by(layer, x, change=None):
    """The message that a layer stored, read after it was reduced."""
    stored = []
    layer.function = lambda x_j, w: stored.append(x_j) or x_j
    layer(x, edges(), torch.ones(NUM_EDGES, 1, dtype=x.dtype))
    if change is not None:
        with torch.no_grad():
            change(x)
    return stored[0]


def test_a_stored_message_is_the_tensor():
    x = randn(NUM_NODES, WIDTH, seed=1).requires_grad_()
    with halfgnn.pyg.accelerate():
        stored = stored_by(Layer(None), x)
    expected = x[edges()[0]]
    assert torch.equal(stored, expected)
    for function in (lambda m: (m * m).sum(), lambda m: Straight.apply(m).sum()):
        first, second = (torch.autograd.grad(function(m), x, retain_graph=True) for m in (stored, expected))
        assert_same(first, second)
    first, second = (torch.autograd.grad((m**3).sum(), x, create_graph=True)[0].sum() for m in (stored, expected))
    assert_same(torch.autograd.grad(first, x), torch.autograd.grad(second, x))


def test_a_stored_message_whose_features_changed_is_an_error():
    x = randn(NUM_NODES, WIDTH, seed=1)
    with halfgnn.pyg.accelerate():
        stored = stored_by(Layer(None), x, lambda x: x.add_(1))
    with pytest.raises(RuntimeError, match="modified in place"):
        stored + 1


def test_gradients_of_leaves_are_ordinary_tensors():
    x, w = randn(NUM_NODES, WIDTH, seed=1).requires_grad_(), randn(NUM_EDGES, WIDTH, seed=2).requires_grad_()
    with halfgnn.pyg.accelerate():
        Layer(lambda x_j, w: (x_j * w).relu())(x, edges(), w).sum().backward()
    assert type(x.grad) is type(w.grad) is torch.Tensor
