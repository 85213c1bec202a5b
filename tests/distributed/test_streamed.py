"""Streamed: parts that are visited one after another give what the whole graph gives."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import halfgnn.nn
from halfgnn.distributed import Streamed, cut_features, partition
from tests import support
from tests.distributed.support_distributed import CLASSES, C, N, features, graph, labels

pytestmark = pytest.mark.skipif(support.SIMULATED, reason="about files")


@pytest.fixture(params=[1, 3], ids="{} parts".format)
def stream(request, tmp_path):
    owner = torch.randint(request.param, (N,), generator=torch.Generator().manual_seed(3))
    partition(graph(), request.param, out=tmp_path / "parts", method=owner)
    cut_features(tmp_path / "parts", "x", features())
    (tmp_path / "scratch").mkdir()
    yield Streamed(tmp_path / "parts", scratch=tmp_path / "scratch")
    assert not list((tmp_path / "scratch").iterdir())


def network(kind, num_layers):
    torch.manual_seed(1)
    widths = [C] + [8] * (num_layers - 1) + [CLASSES]
    if kind == "gat":
        layers = [halfgnn.nn.GATConv(a, b, 2, allow_zero_in_degree=True) for a, b in itertools.pairwise(widths)]
        return nn.ModuleList(layers), [lambda g, x, layer=layer: layer(g, x).mean(1) for layer in layers]
    layers = [halfgnn.nn.SAGEConv(a, b, "mean") for a, b in itertools.pairwise(widths)]
    return nn.ModuleList(layers), [lambda g, x, layer=layer: layer(g, x).tanh() for layer in layers]


def loss(out, nodes):
    return F.cross_entropy(out.float(), labels()[nodes], reduction="sum") / N


def of_whole_graph(functions):
    x = features()
    for function in functions:
        x = function(graph(), (x, x))
    return x


@pytest.mark.parametrize("dtype", [torch.float32, *support.HALVES], ids=str)
@pytest.mark.parametrize(("kind", "num_layers"), [("sage", 1), ("sage", 3), ("gat", 2)])
def test_steps(stream, kind, num_layers, dtype):
    module, functions = network(kind, num_layers)
    with torch.autocast("cpu", dtype, enabled=dtype is not torch.float32):
        out = of_whole_graph(functions)
        expected = loss(out, torch.arange(N))
        expected.backward()
        grads = [p.grad for p in module.parameters()]
        module.zero_grad()
        actual = stream.step(functions, "x", loss)
        rows = stream.predict(functions, "x")
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(actual, expected.detach(), rtol=32 * eps, atol=0)
    assert rows.dtype is out.dtype and not actual.requires_grad
    assert float((rows - out).detach().float().norm()) <= 32 * eps * float(out.detach().float().norm())
    for p, grad in zip(module.parameters(), grads, strict=True):
        assert float((p.grad - grad).norm()) <= 64 * eps * float(grad.norm()) + 1e-6


def test_gradients_are_added(stream):
    module, functions = network("sage", 2)
    stream.step(functions, "x", loss)
    once = [p.grad.clone() for p in module.parameters()]
    stream.step(functions, "x", loss)
    for p, grad in zip(module.parameters(), once):
        torch.testing.assert_close(p.grad, 2 * grad)


def test_random_numbers_are_drawn_once(stream):
    """A loss that is linear in w is w times its gradient only if the backward drops what the forward dropped."""
    w = torch.ones(C).requires_grad_()
    layers = [lambda g, x: F.dropout(x[1] * w, 0.5), lambda g, x: halfgnn.ops.copy_u_sum(g, x[0])]
    torch.manual_seed(0)
    total = stream.step(layers, "x", lambda out, nodes: out.sum())
    torch.testing.assert_close((w.grad * w).sum().detach(), total, rtol=1e-4, atol=1e-2)
    following = torch.rand(1)
    torch.manual_seed(0)
    [F.dropout(torch.ones(part.num_own, C)) for part in stream._parts]
    assert torch.equal(torch.rand(1), following)
    torch.manual_seed(0)  # the backward of the first layer is the last one, and the forward of the second was
    stream.step([layers[0], lambda g, x: F.dropout(x[1], 0.5), layers[1]], "x", lambda out, nodes: out.sum())
    following = torch.rand(1)
    torch.manual_seed(0)
    [F.dropout(torch.ones(part.num_own, C)) for _ in range(2) for part in stream._parts]
    assert torch.equal(torch.rand(1), following)


def test_layers_without_gradients(stream):
    """Layers that ignore rows, that cut the gradient, or that return integers; parts whose loss has no gradient."""
    module, (first, second) = network("sage", 2)

    def of_some(out, nodes):
        return loss(out, nodes) if 0 in nodes else torch.zeros(())

    for middle in (
        lambda g, x: torch.ones(g.num_dst, 8) * module[0].fc_self.bias.sum(),
        lambda g, x: x[1].detach(),
        lambda g, x: (9 * x[1]).long(),
    ):
        layers = [first, middle, lambda g, x: second(g, tuple(rows.float() for rows in x))]
        module.zero_grad()
        loss(of_whole_graph(layers), torch.arange(N)).backward()
        grads = [p.grad for p in module.parameters()]
        module.zero_grad()
        stream.step(layers, "x", loss)
        for p, grad in zip(module.parameters(), grads, strict=True):
            assert (p.grad is None) == (grad is None)
            if grad is not None:
                torch.testing.assert_close(p.grad, grad, rtol=1e-4, atol=1e-5)
    expected = sum(of_some(of_whole_graph([first, second])[part.nodes], part.nodes) for part in stream._parts)
    torch.testing.assert_close(stream.step([first, second], "x", of_some), expected.detach())


@pytest.mark.parametrize("shape", [(), (2, 3), (0,)], ids=str)
def test_rows_of_any_shape(stream, shape):
    size = torch.Size(shape).numel()
    w = torch.linspace(1, 2, C * size).view(C, size).requires_grad_()
    layers = [
        lambda g, x: (x[1] @ w).view(len(x[1]), *shape),
        lambda g, x: halfgnn.ops.copy_u_sum(g, x[0].view(len(x[0]), size)),
    ]
    expected = of_whole_graph(layers)
    torch.testing.assert_close(stream.predict(layers, "x"), expected)
    assert stream.predict(layers[:1], "x").shape == (N, *shape)
    (grad,) = torch.autograd.grad(expected.square().sum(), [w])
    stream.step(layers, "x", lambda out, nodes: out.square().sum())
    torch.testing.assert_close(w.grad, grad)


def test_gradients_of_other_parts_arrive(stream):
    """Of a loss that is of one part's nodes alone, through the rows that it reads of the others; twice the same bits."""
    module, functions = network("sage", 3)
    part = stream._parts[-1]

    def of_one(out, nodes):
        return F.cross_entropy(out, labels()[nodes]) if torch.equal(nodes, part.nodes) else torch.zeros(())

    F.cross_entropy(of_whole_graph(functions)[part.nodes], labels()[part.nodes]).backward()
    expected = [p.grad for p in module.parameters()]
    found = []
    for _ in range(2):
        module.zero_grad()
        stream.step(functions, "x", of_one)
        found.append([p.grad for p in module.parameters()])
    for first, second, grad in zip(*found, expected, strict=True):
        assert torch.equal(first, second)
        torch.testing.assert_close(first, grad, rtol=1e-4, atol=1e-6)


def test_a_file_that_somebody_truncates_is_an_error(stream, tmp_path):
    def truncating(g, x):
        for path in (tmp_path / "scratch").rglob("rows-1"):
            path.open("r+b").truncate(8)
        return x[1] * w

    w = torch.ones(C).requires_grad_()
    with pytest.raises(RuntimeError, match="rows-1 was truncated while a step used it"):
        stream.step([truncating, truncating, truncating], "x", lambda out, nodes: out.sum())


def test_rows_that_differ_between_parts(stream):
    first = stream._parts[0].num_own
    if stream.num_parts == 1:
        pytest.skip("one part")
    for other in (lambda rows: rows[:, :1], lambda rows: rows.double()):
        layers = [lambda g, x, other=other: x[1] if g.num_dst == first else other(x[1])]
        with pytest.raises(
            ValueError, match=r"layers\[0\] returned torch.float\d+ \(.*; expected torch.float32 .* as for the first"
        ):
            stream.predict(layers, "x")


def test_grad_scaler(stream):
    module, functions = network("sage", 2)
    stream.step(functions, "x", loss)
    expected = [p.grad.clone() for p in module.parameters()]
    module.zero_grad()
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    optimizer = torch.optim.SGD(module.parameters(), 0.0)
    stream.step(functions, "x", lambda out, nodes: scaler.scale(loss(out, nodes)))
    scaler.step(optimizer)  # divides the gradients
    for p, grad in zip(module.parameters(), expected):
        torch.testing.assert_close(p.grad, grad)


def test_errors(stream):
    keep = [lambda g, x: x[1]]
    for layers, error in (
        ([], r"layers is \[\]; expected one function or more"),
        ([lambda g, x: x[0][:3]], r"layers\[0\] returned shape \(3, 12\); expected a tensor \("),
        ([keep[0], lambda g, x: None], r"layers\[1\] returned type NoneType; expected a tensor \("),
    ):
        with pytest.raises(ValueError, match=error):
            stream.step(layers, "x", loss)
    for layers in (None, nn.Linear(C, C)):
        with pytest.raises(TypeError, match=r"layers is .*; expected a list of functions"):
            stream.predict(layers, "x")
    for returned, kind, error in (
        (None, TypeError, "loss is None; expected a function of rows and ids of nodes"),
        (lambda out, nodes: 1.0, TypeError, "loss returned a float; expected a tensor of one number"),
        (lambda out, nodes: out[:, 0][:2], ValueError, r"loss returned shape \(2,\); expected a tensor of one number"),
        (lambda out, nodes: torch.zeros(()), ValueError, "loss has no gradient in any part"),
        (lambda out, nodes: 1 / 0, ZeroDivisionError, "division by zero"),
    ):
        with pytest.raises(kind, match=error):
            stream.step(keep, "x", returned)
    with pytest.raises(FileNotFoundError):
        stream.step(keep, "y", loss)
    assert repr(stream) == f"Streamed({stream.num_parts} parts, num_nodes={N}, num_edges=800)"
