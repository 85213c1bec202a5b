"""Products of half features: their precision, their first and second derivatives, and functorch's transforms."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import halfgnn
import halfgnn.nn
import halfgnn.pyg
from halfgnn import ops
from halfgnn.common import products
from halfgnn.nn import projections
from tests.support_nn import HALVES, IN_FEATS, NUM_NODES, randn, random_edges, seeded

EPS = {dtype: torch.finfo(dtype).eps for dtype in HALVES}
every_half = pytest.mark.parametrize("dtype", HALVES, ids=str)
every_processor = pytest.mark.parametrize("multiplied", [(), tuple(HALVES)], ids=["widened", "multiplied"])


def make_graph():
    return halfgnn.Graph.from_edges(*random_edges(), num_src=NUM_NODES, num_dst=NUM_NODES)


def operands(rows, dtype):
    """h (rows, 7) half, weight (9, 7) and bias (9,), fp32."""
    return randn(rows, 7, dtype=dtype), randn(9, 7, seed=1), randn(9, seed=2)


def error(actual, expected):
    return ((actual.double() - expected).norm() / expected.norm()).item()


# ---- precision -------------------------------------------------------------------------------------


@every_half
def test_weights_are_not_rounded(dtype, monkeypatch):
    """Under autocast a product uses the fp32 weight and is rounded once."""
    monkeypatch.setattr(products, "_FAST_HALVES", ())
    h, weight, bias = operands(200, dtype)
    with torch.autocast("cpu", dtype):
        out = projections.linear(h.float(), weight, bias)
    exact = F.linear(h.double(), weight.double(), bias.double())
    assert out.dtype == dtype
    assert ((out.double() - exact).abs() <= 0.51 * EPS[dtype] * exact.abs() + 1e-6).all()


class Products(TorchDispatchMode):
    """Records the dtypes of matrix products."""

    def __init__(self):
        super().__init__()
        self.dtypes = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.addmm, torch.ops.aten.bmm, torch.ops.aten.baddbmm):
            self.dtypes.add(args[-1].dtype)
        return func(*args, **(kwargs or {}))


MODULES = {
    "GATConv": lambda: halfgnn.nn.GATConv(IN_FEATS, 5, 3, residual=True),
    "GATv2Conv": lambda: halfgnn.nn.GATv2Conv(IN_FEATS, 5, 3, residual=True),
    "DotGatConv": lambda: halfgnn.nn.DotGatConv(IN_FEATS, 5, 3),
    "TransformerConv": lambda: halfgnn.nn.TransformerConv(IN_FEATS, 5, 3, beta=True),
    "GraphConv": lambda: halfgnn.nn.GraphConv(IN_FEATS, 5),
    "GraphConv-wide": lambda: halfgnn.nn.GraphConv(IN_FEATS, 20),
    "SAGEConv-mean": lambda: halfgnn.nn.SAGEConv(IN_FEATS, 5, "mean"),
    "SAGEConv-gcn": lambda: halfgnn.nn.SAGEConv(IN_FEATS, 20, "gcn"),
    "SAGEConv-pool": lambda: halfgnn.nn.SAGEConv(IN_FEATS, 5, "pool"),
    "pyg.GATConv": lambda: halfgnn.pyg.GATConv(IN_FEATS, 5, 3, residual=True, add_self_loops=False),
    "pyg.GATv2Conv": lambda: halfgnn.pyg.GATv2Conv(IN_FEATS, 5, 3, residual=True, add_self_loops=False),
    "pyg.TransformerConv": lambda: halfgnn.pyg.TransformerConv(IN_FEATS, 5, 3, beta=True),
    "GINConv": lambda: halfgnn.nn.GINConv(mlp(5)),
    "pyg.GINConv": lambda: halfgnn.pyg.GINConv(mlp(5)),
    "PNAConv": lambda: halfgnn.nn.PNAConv(IN_FEATS, 5, ["mean", "std"], ["identity"], 1.0),
    "pyg.PNAConv": lambda: halfgnn.pyg.PNAConv(
        IN_FEATS, 5, ["mean", "std"], ["identity"], torch.ones(5), post_layers=2
    ),
}
# Of features and rows of edges. pyg.ResGatedGraphConv has 3 numbers per edge.
MODULES_WITH_EDGES = {
    "GINEConv": (lambda: halfgnn.nn.GINEConv(mlp(5)), IN_FEATS),
    "pyg.GINEConv": (lambda: halfgnn.pyg.GINEConv(mlp(5), edge_dim=3), 3),
    "pyg.ResGatedGraphConv": (lambda: halfgnn.pyg.ResGatedGraphConv(IN_FEATS, 5, edge_dim=3), 3),
}


def mlp(outputs):
    return torch.nn.Sequential(torch.nn.Linear(IN_FEATS, 6), torch.nn.ReLU(), torch.nn.Linear(6, outputs))


@pytest.mark.parametrize("autocast", [False, True], ids=["module", "autocast"])
@every_half
@pytest.mark.parametrize("name", [*MODULES, *MODULES_WITH_EDGES])
def test_modules_make_no_half_products(name, dtype, autocast, monkeypatch):
    """On processors where half products are slow: projections, residuals, gates and MLPs, forward and backward."""
    monkeypatch.setattr(products, "_FAST_HALVES", ())
    make, width = MODULES_WITH_EDGES.get(name) or (MODULES[name], 0)
    g, x, module = make_graph(), randn(NUM_NODES, IN_FEATS), seeded(make)
    edges = [randn(g.num_edges, width, seed=3)] if width else []
    if not autocast:
        module, x, edges = module.to(dtype), x.to(dtype), [e.to(dtype) for e in edges]
    x.requires_grad_()
    with Products() as seen:
        with torch.autocast("cpu", dtype, enabled=autocast):
            out = module(x, g, *edges) if name.startswith("pyg.") else module(g, x, *edges)
        out.float().square().sum().backward()
    assert seen.dtypes == {torch.float32}


@every_half
def test_logits_of_half_parameters(dtype):
    """The sum over a head is merged into the weight in fp32."""
    layer = seeded(lambda: torch.nn.Linear(16, 24)).to(dtype)
    attn, h = randn(1, 3, 8, dtype=dtype), randn(50, 16, dtype=dtype)
    (logits,) = projections.node_logits(layer, h, attn)
    feat = F.linear(h.double(), layer.weight.double(), layer.bias.double()).unflatten(-1, (3, 8))
    assert logits.dtype == torch.float32 and error(logits, (feat * attn.double()).sum(-1)) < 1e-6


@pytest.mark.parametrize("width", [4, 12], ids=["projected-last", "projected-first"])
def test_gcn_divides_before_it_rounds(width):
    """The sum over a hub's 1,000 neighbours exceeds 65,504; the mean does not."""
    count = 1000
    g = halfgnn.Graph.from_edges(torch.arange(count), torch.zeros(count, dtype=torch.int64), num_src=count, num_dst=1)
    conv = halfgnn.nn.SAGEConv(width, 4, "gcn", bias=False)
    torch.nn.init.constant_(conv.fc_neigh.weight, 1 / width)
    feats = torch.full((count, width), 1000.0).half(), torch.full((1, width), 1000.0).half()
    assert (conv.half()(g, feats) == 1000).all()


BF16, FP16 = torch.bfloat16, torch.float16
PROCESSORS = {  # machine, whether oneDNN takes bf16 and fp16, whether there are instructions for bf16
    "Arm": ("aarch64", False, False, False, (FP16, BF16)),
    "AVX2": ("x86_64", False, False, False, ()),
    "AVX-512": ("x86_64", True, False, False, ()),
    "AVX512-BF16": ("x86_64", True, False, True, (BF16,)),
    "AVX512-FP16": ("AMD64", True, True, True, (FP16, BF16)),
}


@pytest.mark.parametrize("processor", PROCESSORS)
def test_processors_that_multiply_halves_fast(processor, monkeypatch):
    machine, takes_bf16, takes_fp16, has_bf16, fast = PROCESSORS[processor]
    monkeypatch.setattr("platform.machine", lambda: machine)
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: takes_bf16)
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_fp16_supported", lambda: takes_fp16)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: has_bf16)
    monkeypatch.setattr(products, "_FAST_HALVES", products._fast_halves())
    assert {dtype for dtype in (*HALVES, torch.float32) if not products.multiplies_slowly(dtype)} == {
        *fast,
        torch.float32,
    }


# ---- derivatives -----------------------------------------------------------------------------------


def twice(function, arguments):
    """Gradients of the squared norm of the gradients of sum(sin(function(*arguments)))."""
    arguments = [x.detach().requires_grad_() for x in arguments]
    out = function(*arguments)
    first = torch.autograd.grad(out.to(wide(out)).sin().sum(), arguments, create_graph=True)
    return torch.autograd.grad(sum(x.to(wide(x)).square().sum() for x in first), arguments)


def wide(x):
    return torch.promote_types(x.dtype, torch.float32)


@pytest.mark.parametrize("rows", [5, 600])  # one chunk, several
@pytest.mark.parametrize("num_rounded", [0, 9], ids=["wide", "rounded"])
@every_half
def test_second_derivatives(dtype, num_rounded, rows, monkeypatch):
    monkeypatch.setattr(products, "_CHUNK", 1)
    arguments = operands(rows, dtype)
    part = 0 if num_rounded else 1
    actual = twice(lambda h, w, b: products.widened_linear(h, w, b, num_rounded)[part], arguments)
    expected = twice(F.linear, [x.double() for x in arguments])
    for x, a, b in zip(arguments, actual, expected):
        assert a.dtype == x.dtype
        assert error(a, b) < (8 * EPS[dtype] if num_rounded or a.dtype == dtype else 1e-2 * EPS[dtype] + EPS[dtype])


@every_half
def test_second_derivatives_of_logits(dtype, monkeypatch):
    """The path of GPUs, run by the CPU."""
    monkeypatch.setattr(products, "SUMS_HALVES_IN_FP32", False)
    h, weight, _ = operands(50, dtype)
    actual = twice(projections._HalfLinear.apply, [h, weight])
    expected = twice(F.linear, [h.double(), weight.double()])
    for a, b in zip(actual, expected):
        assert error(a, b) < 8 * EPS[dtype]


@every_half
def test_gradients_of_the_path_of_gpus(dtype, monkeypatch):
    monkeypatch.setattr(products, "SUMS_HALVES_IN_FP32", False)
    h, weight, _ = operands(50, dtype)
    upstream = randn(50, 9, seed=6)
    leaves = h.detach().requires_grad_(), weight.detach().requires_grad_()
    out = projections._HalfLinear.apply(*leaves)
    assert out.dtype == torch.float32
    assert error(out, F.linear(h.double(), weight.double())) < 1e-6
    to_h, to_weight = torch.autograd.grad(out, leaves, upstream)
    assert to_h.dtype == dtype and to_weight.dtype == torch.float32
    assert error(to_h, upstream.double() @ weight.double()) < 2 * EPS[dtype]
    assert error(to_weight, upstream.double().t() @ h.double()) < 1e-6


@every_half
def test_gradients_under_functorch(dtype):
    """In one product, not in chunks."""
    h, weight, bias = operands(300, dtype)
    upstream = randn(300, 9, seed=6)

    def loss(h, weight, bias):
        rounded, rest = products.widened_linear(h, weight, bias, 4)
        return (torch.cat([rounded.float(), rest], 1) * upstream).sum()

    grads = torch.func.grad(loss, (0, 1, 2))(h, weight, bias)
    rounded = torch.cat([upstream[:, :4].to(dtype).double(), upstream[:, 4:].double()], 1)
    expected = rounded @ weight.double(), rounded.t() @ h.double(), rounded.sum(0)
    for grad, x, right in zip(grads, (h, weight, bias), expected):
        assert grad.dtype == x.dtype
        assert error(grad, right) < (EPS[dtype] if grad.dtype == dtype else 1e-6)


@every_processor
@every_half
@pytest.mark.parametrize("aggregator", ["mean", "gcn", "pool"])
def test_vmap_is_the_loop(aggregator, dtype, multiplied, monkeypatch):
    """Also if F.linear would run in half. Under vmap it rounds the product before it adds the bias."""
    monkeypatch.setattr(products, "_FAST_HALVES", multiplied)
    g, conv = make_graph(), seeded(lambda: halfgnn.nn.SAGEConv(IN_FEATS, 5, aggregator)).to(dtype)
    parameters = {name: p.detach() for name, p in conv.named_parameters()}
    xs = torch.stack([randn(NUM_NODES, IN_FEATS, seed=i) for i in range(3)]).to(dtype)

    def loss(parameters, x):
        return torch.func.functional_call(conv, parameters, (g, x)).float().square().sum()

    together = torch.func.vmap(torch.func.grad(loss), (None, 0))(parameters, xs)
    for i, x in enumerate(xs):
        for name, grad in torch.func.grad(loss)(parameters, x).items():
            assert error(together[name][i], grad.double()) < EPS[dtype] / 8, name


def test_no_edges():
    """If no node runs an LSTM, its parameters have gradients of zeros, because training in several processes needs
    gradients."""
    none = torch.zeros(0, dtype=torch.int64)
    g, conv = halfgnn.Graph.from_edges(none, none, num_src=4, num_dst=4), halfgnn.nn.SAGEConv(3, 2, "lstm")
    x = randn(4, 3)
    for dtype in (torch.float32, torch.bfloat16):
        conv.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
            out = conv(g, x)
        out.float().square().sum().backward()
        assert all(p.grad is not None and (p.grad == 0).all() for p in conv.lstm.parameters())
        assert (conv.fc_neigh.weight.grad == 0).all() and (conv.fc_self.weight.grad != 0).any()
    torch.testing.assert_close(conv(g, x), conv.fc_self(x))


# ---- what outlives a transform ---------------------------------------------------------------------


OPERATORS = {
    "edge_softmax": (lambda g, x: ops.edge_softmax(g, x), (220 + NUM_NODES, 2)),
    "copy_u_sum": (lambda g, x: ops.copy_u_sum(g, x), (NUM_NODES, 2)),
    "copy_u_max": (lambda g, x: ops.copy_u_max(g, x), (NUM_NODES, 2)),
    "u_add_v": (lambda g, x: ops.u_add_v(g, x, x), (NUM_NODES, 2)),
    "segment_reduce": (lambda g, x: ops.segment_reduce(g.in_degrees(), x), (220 + NUM_NODES, 2)),
    "dot_attention": (lambda g, x: ops.dot_attention(g, x, x, x), (NUM_NODES, 2, 8)),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_tensors_that_escape_a_transform(name):
    """They are used by value, as torch.exp and torch.autograd.Function do, and no gradient is recorded for them."""
    function, shape = OPERATORS[name]
    g, x, escaped = make_graph(), randn(*shape), []
    assert g.num_edges == 220 + NUM_NODES
    torch.func.grad(lambda x: (escaped.append(2 * x), x.sum())[1])(x)
    assert not escaped[0].exp().requires_grad
    out = function(g, escaped[0])
    assert not out.requires_grad and torch.equal(out, function(g, 2 * x))
    factor = torch.ones((), requires_grad=True)
    (function(g, factor * escaped[0])).sum().backward()
    assert factor.grad is not None
