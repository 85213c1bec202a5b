"""PNAConv of halfgnn.nn beside dgl.nn's, and the reductions of messages that it does not form."""

import pytest
import torch

import halfgnn
import halfgnn.nn
from halfgnn.nn import pnaconv, principal
from tests.nn.support_modules import dgl, dglnn, needs_dgl
from tests.support import make_graph, randn

AGGREGATORS = ["mean", "max", "min", "std", "sum", "var"]
SCALERS = ["identity", "amplification", "attenuation"]


def edges(num_nodes=40, num_edges=200):
    """Two nodes have no in-edge."""
    gen = torch.Generator().manual_seed(1)
    return torch.randint(num_nodes, (num_edges,), generator=gen), torch.randint(
        num_nodes - 2, (num_edges,), generator=gen
    )


def make(lib, *arguments, **options):
    torch.manual_seed(3)
    return lib.PNAConv(*arguments, **options)


def results(conv, graph, inputs, upstream):
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    out = conv(graph, *leaves)
    return [out, *torch.autograd.grad(out, [*leaves, *conv.parameters()], upstream)]


@needs_dgl
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "options",
    [{}, {"num_towers": 3}, {"edge_feat_size": 5}, {"residual": False}, {"moments": True}],
    ids=str,
)
def test_like_dgl(options, dtype):
    options = dict(options)
    aggregators = [*AGGREGATORS, "moment3", "moment4"] if options.pop("moments", False) else AGGREGATORS
    their, our = (make(lib, 12, 12, aggregators, SCALERS, 1.7, **options).to(dtype) for lib in (dglnn, halfgnn.nn))
    assert list(their.state_dict()) == list(our.state_dict())
    for key, value in their.state_dict().items():
        assert torch.equal(value, our.state_dict()[key]), key
    src, dst = edges()
    x = randn(40, 12, dtype=dtype)
    inputs = [x] + ([randn(200, 5, dtype=dtype)] if "edge_feat_size" in options else [])
    upstream = randn(40, 12, dtype=dtype)
    expected = results(their, dgl.graph((src, dst), num_nodes=40), inputs, upstream)
    for graph in (dgl.graph((src, dst), num_nodes=40), halfgnn.Graph.from_edges(src, dst, num_src=40, num_dst=40)):
        our.load_state_dict(make(dglnn, 12, 12, aggregators, SCALERS, 1.7, **options).state_dict())
        # DGL's variances are differences of mean squares, and cube roots are steep near 0.
        limits = {"rtol": 2e-3, "atol": 2e-3} if dtype == torch.float32 else {"rtol": 1e-4, "atol": 1e-5}
        for got, wanted in zip(results(our, graph, inputs, upstream), expected):
            torch.testing.assert_close(got, wanted, **limits)


@needs_dgl
def test_batched_graphs_are_scaled_by_their_sizes():
    src, dst = edges()
    graph = dgl.batch([dgl.graph((src, dst), num_nodes=40), dgl.graph((src[:9] % 7, dst[:9] % 7), num_nodes=7)])
    their, our = (make(lib, 8, 8, ["mean", "max"], SCALERS, 1.7).double() for lib in (dglnn, halfgnn.nn))
    x, upstream = randn(47, 8, dtype=torch.float64), randn(47, 8, dtype=torch.float64)
    for got, wanted in zip(results(our, graph, [x], upstream), results(their, graph, [x], upstream)):
        torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize("name", ["skewed", "random", "edgeless"])
def test_messages_of_both_ends_are_not_needed(name):
    """Reductions of src[u] + dst[v] are those of the messages, materialized edge by edge."""
    g = make_graph(name)
    ends = [randn(n, 2, 8, dtype=torch.float64).requires_grad_() for n in (g.num_src, g.num_dst)]
    found = []
    for reduced in (
        principal.of_ends(g, *ends, AGGREGATORS, 1e-5),
        principal.of_messages(g, halfgnn.ops.u_add_v(g, *ends), AGGREGATORS, 1e-5),
    ):
        joined = torch.stack([reduced[key] for key in AGGREGATORS])
        upstream = torch.linspace(-1, 1, joined.numel(), dtype=torch.float64).view(joined.shape)
        found.append([joined, *torch.autograd.grad(joined, ends, upstream)])
    for got, wanted in zip(*found):
        torch.testing.assert_close(got, wanted)


def test_hooks_of_the_projection_run():
    src, dst = edges()
    g = halfgnn.Graph.from_edges(src, dst, num_src=40, num_dst=40)
    conv, x = make(halfgnn.nn, 8, 8, AGGREGATORS, SCALERS, 1.7).double(), randn(40, 8, dtype=torch.float64)
    before, seen = conv(g, x), []
    conv.towers[0].M.register_forward_hook(lambda module, args, out: seen.append(out.shape))
    torch.testing.assert_close(conv.train()(g, x), before)
    assert seen == [(200, 8)]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_and_autocast(dtype):
    src, dst = edges()
    g = halfgnn.Graph.from_edges(src, dst, num_src=40, num_dst=40)
    conv, x = make(halfgnn.nn, 16, 16, AGGREGATORS[:4], SCALERS, 1.7), randn(40, 16, dtype=torch.float32)
    wide = conv(g, x)
    with torch.autocast("cpu", dtype):
        out = conv(g, x)
    assert (out.float() - wide).abs().max() < 0.2 * wide.abs().max()
    out.float().square().sum().backward()
    assert all(p.grad.isfinite().all() for p in conv.parameters())


def test_widths_may_differ_and_std_may_be_small():
    g, x = make_graph("random"), randn(30, 8, dtype=torch.float32)
    conv = halfgnn.nn.PNAConv(8, 6, ["std"], ["identity"], 1.0)
    assert conv(g, x).shape == (30, 6)
    reduced = pnaconv._reduce(list(conv.towers), g, 1e-4 * x.view(30, 1, 8), None)
    assert reduced.any()  # DGL has no eps


def test_errors_name_the_argument():
    def build(**changes):
        options = dict(in_size=8, out_size=8, aggregators=["mean"], scalers=["identity"], delta=1.0)
        return halfgnn.nn.PNAConv(**{**options, **changes})

    for changes, message in (
        ({"aggregators": ["median"]}, "aggregators is 'median'"),
        ({"aggregators": []}, r"aggregators is \[\]"),
        ({"scalers": ["linear"]}, "scalers is 'linear'"),
        ({"num_towers": 3}, "in_size is 8; expected a multiple of num_towers, 3"),
        ({"delta": float("nan")}, "delta is nan"),
        ({"in_size": 0}, "in_size is 0"),
    ):
        with pytest.raises(ValueError, match=message):
            build(**changes)
    g, conv = make_graph("random"), build(edge_feat_size=2)
    x = randn(30, 8, dtype=torch.float32)
    with pytest.raises(TypeError, match="edge_feat is None"):
        conv(g, x)
    with pytest.raises(TypeError, match=r"edge_feat has dtype .* and the module's parameters"):
        conv(g, x, randn(100, 2, dtype=torch.float64))
    with pytest.raises(TypeError, match=r"node_feat has dtype .* and the module's parameters"):
        conv(g, x.double(), randn(100, 2, dtype=torch.float64))
    with pytest.raises(ValueError, match="node_feat has shape"):
        conv(g, x[:, 1:], randn(100, 2, dtype=torch.float32))
    with pytest.raises(ValueError, match="graph has 30 sources and 40 destinations"):
        conv(make_graph("bipartite"), x, x)
