"""Every kind of index under halfgnn.pyg.patch(): tensors without values, other classes, layouts and dtypes.

A call gives what torch_geometric alone gives, or its error, and int32 works at every size. Nothing of an index is read before it
is known to have values.
"""

from __future__ import annotations

import pytest
import torch
import torch_geometric.nn as upstream
from torch._subclasses.fake_tensor import FakeTensorMode
from torch_geometric import EdgeIndex, Index, utils

import halfgnn.pyg
from halfgnn.pyg.drop_in import thresholds
from tests import support

pytestmark = pytest.mark.skipif(not support.supports("cpu", torch.float32), reason="needs float32")
LIMITS = {name: getattr(thresholds, name) for name in ("LIMITS", *support.ROUTED_FROM)}  # of users, not of tests
NODES, WIDTH = 10, 16


@pytest.fixture
def users_sizes(monkeypatch, _routes_small_calls):
    for name, value in LIMITS.items():
        monkeypatch.setattr(thresholds, name, value)


class Logged(torch.Tensor):
    """A user's subclass, which is asked about every operator."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return super().__torch_function__(func, types, args, kwargs or {})


def fake(tensor):
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        return mode.from_tensor(tensor)


# name -> (what becomes of an index, and of the features that go with it)
KINDS = {
    "meta": (lambda i: i.to("meta"), lambda x: x.to("meta")),
    "meta beside features on the CPU": (lambda i: i.to("meta"), lambda x: x),
    "on the CPU beside meta": (lambda i: i, lambda x: x.to("meta")),
    "fake": (fake, fake),
    "Parameter": (lambda i: torch.nn.Parameter(i, requires_grad=False), lambda x: x),
    "a subclass": (lambda i: i.as_subclass(Logged), lambda x: x),
    "int16": (lambda i: i.to(torch.int16), lambda x: x),
    "floating point": (lambda i: i.float(), lambda x: x),
    "bool": (lambda i: i.bool(), lambda x: x),
    "sparse": (lambda i: i.to_sparse(), lambda x: x),
    "inference": (lambda i: inference(i), lambda x: x),
}


def inference(tensor):
    with torch.inference_mode():
        return tensor.clone()


def expanded(index, x):
    return index.view(-1, 1).expand_as(x)


# name -> f(nodes, rows, index, ptr, edge_index)
CALLS = {
    **{f"scatter {r}": lambda n, x, i, p, e, r=r: utils.scatter(x, i, 0, NODES, r) for r in ("sum", "mean", "max")},
    **{f"segment {r}": lambda n, x, i, p, e, r=r: utils.segment(x, p, r) for r in ("sum", "max")},
    "scatter without a size": lambda n, x, i, p, e: utils.scatter(x, i),
    "softmax": lambda n, x, i, p, e: utils.softmax(x, i, num_nodes=NODES),
    "softmax by ptr": lambda n, x, i, p, e: utils.softmax(x, ptr=p),
    "index_add": lambda n, x, i, p, e: n.index_add(0, i, x),
    "scatter_add": lambda n, x, i, p, e: n.scatter_add(0, expanded(i, x), x),
    "scatter_reduce": lambda n, x, i, p, e: n.scatter_reduce(0, expanded(i, x), x, "mean", include_self=False),
    "x[index]": lambda n, x, i, p, e: n.clone().requires_grad_()[i],
    "index_select": lambda n, x, i, p, e: n.clone().requires_grad_().index_select(0, i),
    "embedding": lambda n, x, i, p, e: torch.nn.functional.embedding(i, n),
    "VarAggregation": lambda n, x, i, p, e: upstream.VarAggregation()(x, i, dim_size=NODES),
    "MultiAggregation": lambda n, x, i, p, e: upstream.MultiAggregation(["mean", "max"])(x, i, dim_size=NODES),
    "add_self_loops": lambda n, x, i, p, e: utils.add_self_loops(e, num_nodes=NODES)[0],
    "remove_self_loops": lambda n, x, i, p, e: utils.remove_self_loops(e)[0],
    "columns": lambda n, x, i, p, e: e[:, i],
    "get_laplacian": lambda n, x, i, p, e: utils.get_laplacian(e, num_nodes=NODES)[1],
    **{
        f"{name}": lambda n, x, i, p, e, name=name: module(name, n)(n, e)
        for name in ("SAGEConv", "GraphConv", "GATConv", "GATv2Conv", "TransformerConv", "GCNConv", "PNAConv")
    },
}


def module(name, like):
    torch.manual_seed(1)
    options = {}
    if name == "PNAConv":
        options = {"aggregators": ["mean", "max"], "scalers": ["identity"], "deg": torch.tensor([1, 2, 3])}
    conv = getattr(upstream, name)(WIDTH, WIDTH, **options)
    return conv.to(like.device) if like.is_meta else conv


def outcome(call, arguments):
    """The result, or the class of the error."""
    try:
        return call(*arguments)
    except Exception as error:  # whatever torch_geometric raises
        return type(error)


def assert_alike(actual, expected, has_values, name):
    if not isinstance(expected, torch.Tensor):
        assert actual is expected, name
        return
    assert isinstance(actual, torch.Tensor), (name, actual)
    assert (actual.shape, actual.dtype, actual.device) == (expected.shape, expected.dtype, expected.device), name
    if has_values:
        a, b = (x.to_dense() if x.layout != torch.strided else x.as_subclass(torch.Tensor) for x in (actual, expected))
        a, b = a.double(), b.double()
        atol = 1e-5 * b.abs().max().item()
        torch.testing.assert_close(a, b, rtol=1e-4, atol=atol, msg=lambda message: f"{name}: {message}")


def arguments_of(make_index, make_features, num_rows=600):
    index = torch.arange(num_rows) % NODES
    ptr = torch.linspace(0, num_rows, NODES + 1).long()
    edge_index = torch.stack([index, index.flip(0) * 7 % NODES])
    nodes, rows = (torch.arange(n * WIDTH).view(n, WIDTH).sin() for n in (NODES, num_rows))
    return [*map(make_features, (nodes, rows)), *map(make_index, (index, ptr, edge_index))]


def assert_every_call_is_alike(kind, num_rows):
    arguments = arguments_of(*KINDS[kind], num_rows)
    expected = {name: outcome(call, arguments) for name, call in CALLS.items()}
    has_values = "meta" not in kind and kind != "fake"
    with halfgnn.pyg.accelerate():
        for name, call in CALLS.items():
            for _ in range(2):
                actual = outcome(call, arguments)
                is_saved = kind == "inference" and isinstance(actual, torch.Tensor)  # by PyTorch, which refuses that
                if not (is_saved and expected[name] is RuntimeError):
                    assert_alike(actual, expected[name], has_values, name)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", KINDS)
def test_any_kind_of_index(kind):
    assert_every_call_is_alike(kind, 600)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", KINDS)
def test_any_kind_of_index_beside_limits(kind, users_sizes):
    assert_every_call_is_alike(kind, 8192)  # above every limit


def test_modules_on_meta_have_shapes_alone():
    """Sizes of the report: 10 nodes, 8,192 edges of 64 features."""
    edge_index = torch.zeros(2, 8192, dtype=torch.int64, device="meta")
    with halfgnn.pyg.accelerate():
        out = upstream.SAGEConv(64, 64).to("meta")(torch.empty(10, 64, device="meta"), edge_index)
    assert out.shape == (10, 64) and out.is_meta
    reasons = halfgnn.pyg.stats()["fell_back"]
    assert reasons["propagate"] == {"torch.float32 on meta": 1}


OF_INT32 = {
    **{
        f"scatter {reduce}": lambda n, x, i, reduce=reduce: utils.scatter(x, i, 0, NODES, reduce)
        for reduce in ("sum", "mean", "max", "mul")
    },
    "scatter of another dimension": lambda n, x, i: utils.scatter(x.t(), i, 1, NODES),
    "softmax": lambda n, x, i: utils.softmax(x, i, num_nodes=NODES),
    "index_add": lambda n, x, i: n.index_add(0, i, x),
    "scatter_add": lambda n, x, i: n.scatter_add(0, expanded(i, x), x),
    "scatter_reduce amax": lambda n, x, i: torch.scatter_reduce(n, 0, expanded(i, x), x, "amax"),
    "scatter_reduce mean": lambda n, x, i: n.scatter_reduce(0, expanded(i, x), x, "mean", include_self=False),
    "MultiAggregation": lambda n, x, i: upstream.MultiAggregation(["mean", "max", "std"])(x, i, dim_size=NODES),
    "SoftmaxAggregation": lambda n, x, i: upstream.SoftmaxAggregation()(x, i, dim_size=NODES),
    "SAGEConv": lambda n, x, i: upstream.SAGEConv(x.shape[1], 4)((x[:NODES], n), torch.stack([i, i.flip(0)])),
    "GATConv": lambda n, x, i: upstream.GATConv(x.shape[1], 4)(x[:NODES], torch.stack([i, i.flip(0)])),
    "EdgeConv": lambda n, x, i: upstream.EdgeConv(torch.nn.Linear(2 * x.shape[1], 4))(
        x[:NODES], torch.stack([i, i.flip(0)])
    ),
}


@pytest.mark.parametrize("width", [3, 64])
@pytest.mark.parametrize("rows", [100, 8192])
def test_ids_of_int32_work_at_every_size(rows, width, users_sizes):
    generator = torch.Generator().manual_seed(1)
    index = torch.randint(0, NODES, (rows,), generator=generator)
    x = torch.rand(rows, width, generator=generator).requires_grad_()
    nodes = torch.zeros(NODES, width)

    def results(call, index):
        torch.manual_seed(1)
        out = call(nodes, x, index)
        return [out.detach(), *torch.autograd.grad((out * torch.arange(out.numel()).view(out.shape).cos()).sum(), x)]

    expected = {name: results(call, index) for name, call in OF_INT32.items()}
    with halfgnn.pyg.accelerate():
        for name, call in OF_INT32.items():
            for a, b in zip(results(call, index.int()), expected[name], strict=True):
                torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4, msg=lambda text, name=name: f"{name}: {text}")


def test_ids_of_int32_that_differ_between_columns():
    index = torch.tensor([[0, 1], [2, 0], [1, 1]])
    expected = torch.zeros(3, 2).scatter_add(0, index, torch.arange(6.0).view(3, 2))
    with halfgnn.pyg.accelerate():
        assert torch.equal(torch.zeros(3, 2).scatter_add(0, index.int(), torch.arange(6.0).view(3, 2)), expected)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_classes_of_torch_geometric(dtype):
    index = (torch.arange(600) % NODES).to(dtype)
    x = torch.rand(600, WIDTH, generator=torch.Generator().manual_seed(1))
    expected = torch.zeros(NODES, WIDTH).index_add(0, index, x)
    edge_index = EdgeIndex(torch.stack([index, index]), sparse_size=(NODES, NODES))
    conv = upstream.SimpleConv()
    sums = conv(x[:NODES], edge_index.as_tensor().long())
    with halfgnn.pyg.accelerate():
        torch.testing.assert_close(utils.scatter(x, Index(index, dim_size=NODES), 0, NODES), expected)
        torch.testing.assert_close(conv(x[:NODES], edge_index), sums)
