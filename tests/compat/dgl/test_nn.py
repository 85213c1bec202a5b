"""halfgnn.compat.dgl.nn beside dgl.nn: parameters under a seed, checkpoints, results and gradients, autocast."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn as torch_nn

import halfgnn
from halfgnn.compat.dgl import nn as ours
from halfgnn.compat.dgl.base import DGLError
from halfgnn.nn.relation_attention import may_attend_together
from tests.support_nn import IN_FEATS, NUM_NODES, assert_close, randn, random_edges, seeded

dgl = pytest.importorskip("dgl")
theirs = dgl.nn
EDGES = 220 + NUM_NODES
TYPES = 4


def positive(*shape):
    return randn(*shape, seed=8).abs() + 0.1


def types(count, number=TYPES):
    return torch.randint(number, (count,), generator=torch.Generator().manual_seed(2))


def make_graph():
    return dgl.graph(random_edges(), num_nodes=NUM_NODES)


def make_batch():
    """A batch of graphs; one has a single node, and one fewer than SortPooling keeps."""
    return dgl.batch([dgl.graph(random_edges(n, n, 3 * n), num_nodes=n) for n in (17, 1, 4, 18)])


def make_block():
    seeds = torch.arange(0, NUM_NODES, 3)
    return dgl.to_block(dgl.in_subgraph(make_graph(), seeds), seeds)


class Case(NamedTuple):
    make: Callable[[Any], torch_nn.Module]  # of the library
    call: Callable[..., Any]  # of the module, the graph and features of its nodes
    graph: Callable[[], Any] = make_graph
    width: int = IN_FEATS


def plain(m, g, x):
    return m(g, x)


def weighted(m, g, x):
    return m(g, x, edge_weight=positive(g.num_edges()))


def pair(m, g, x):
    return m(g, (x, x[: g.num_dst_nodes()]))


def typed(m, g, x):
    return m(g, x, types(g.num_edges()))


@torch.no_grad()
def without_gradients(m, *args):
    """For modules of DGL that write into what their backward needs."""
    return m(*args)


def with_edges(width):
    return lambda m, g, x: m(g, x, randn(g.num_edges(), width, seed=6))


def dense(m, g, x):
    src, dst = g.edges()
    return m(torch.zeros(NUM_NODES, NUM_NODES).index_put((dst, src), torch.tensor(1.0), accumulate=True), x)


F = IN_FEATS
MASK = (torch.rand(4, 10, 10, generator=torch.Generator().manual_seed(4)) < 0.3) & ~torch.eye(10, dtype=torch.bool)
CASES = {
    "GraphConv": Case(lambda lib: lib.GraphConv(F, 5), plain),
    "SAGEConv": Case(lambda lib: lib.SAGEConv(F, 5, "mean"), plain),
    "GATConv": Case(lambda lib: lib.GATConv(F, 5, 3), plain),
    "GATv2Conv": Case(lambda lib: lib.GATv2Conv(F, 5, 3), plain),
    "DotGatConv": Case(lambda lib: lib.DotGatConv(F, 5, 3), plain),
    "GINConv": Case(lambda lib: lib.GINConv(torch_nn.Linear(F, 5), "max"), plain),
    "PNAConv": Case(lambda lib: lib.PNAConv(F, 6, ["mean", "max", "std"], ["identity"], 2.5), plain),
    **{
        f"DGNConv-{towers}": Case(
            lambda lib, n=towers: lib.DGNConv(
                F, F, ["dir1-av", "mean", "dir2-dx"], ["identity", "amplification"], 2.5, 0.0, n, 3
            ),
            lambda m, g, x: m(g, x, randn(g.num_edges(), 3, seed=6), eig_vec=randn(x.shape[0], 2, seed=9)),
            graph,
        )
        for towers, graph in ((1, make_graph), (2, lambda: dgl.add_self_loop(make_batch())))
    },
    "RelGraphConv": Case(lambda lib: lib.RelGraphConv(F, 5, TYPES, layer_norm=True), typed),
    "RelGraphConv-few-bases": Case(lambda lib: lib.RelGraphConv(F, 5, TYPES, "basis", 2, self_loop=False), typed),
    "RelGraphConv-bases": Case(
        lambda lib: lib.RelGraphConv(F, 5, 8, "basis", 7, activation=torch.relu),
        lambda m, g, x: m(g, x, types(g.num_edges(), 8), positive(g.num_edges(), 1)),
    ),
    "RelGraphConv-blocks": Case(
        lambda lib: lib.RelGraphConv(F, 8, TYPES, "bdd", 4),
        lambda m, g, x: m(g, x, types(g.num_edges()), norm=positive(g.num_edges(), 1)),
    ),
    "RelGraphConv-block": Case(lambda lib: lib.RelGraphConv(F, 5, TYPES), typed, make_block),
    **{f"TAGConv-{n}": Case(lambda lib, n=n: lib.TAGConv(F, n, 3), plain) for n in (5, 20)},
    "TAGConv-weights": Case(lambda lib: lib.TAGConv(F, 5), weighted),
    **{f"SGConv-{n}": Case(lambda lib, n=n: lib.SGConv(F, n, 2), plain) for n in (5, 20)},
    "SGConv-weights": Case(lambda lib: lib.SGConv(F, 5, 2, bias=False), weighted),
    "SGConv-norm": Case(lambda lib: lib.SGConv(F, 5, 2, norm=torch.tanh), plain),
    "APPNPConv": Case(lambda lib: lib.APPNPConv(3, 0.2), plain),
    "APPNPConv-weights": Case(lambda lib: lib.APPNPConv(3, 0.2), weighted),
    "GCN2Conv": Case(
        lambda lib: lib.GCN2Conv(F, layer=2, alpha=0.3), lambda m, g, x: m(g, x, randn(NUM_NODES, F, seed=9))
    ),
    "GCN2Conv-own": Case(
        lambda lib: lib.GCN2Conv(F, layer=1, project_initial_features=False, activation=torch.relu),
        lambda m, g, x: m(g, x, x, positive(g.num_edges())),
    ),
    **{
        f"ChebConv-{n}-{k}": Case(lambda lib, n=n, k=k: lib.ChebConv(F, n, k), lambda m, g, x: m(g, x, [1.7]))
        for n, k in ((5, 1), (5, 2), (5, 4), (20, 4))
    },
    "ChebConv-batch": Case(
        lambda lib: lib.ChebConv(F, 5, 3), lambda m, g, x: m(g, x, torch.tensor([1.5, 1.6, 1.9, 2.0])), make_batch
    ),
    "AGNNConv": Case(lambda lib: lib.AGNNConv(0.7), plain),
    "AGNNConv-block": Case(lambda lib: lib.AGNNConv(), pair, make_block),
    "EdgeConv": Case(lambda lib: lib.EdgeConv(F, 5), plain),
    "EdgeConv-norm": Case(lambda lib: lib.EdgeConv(F, 5, batch_norm=True), plain),
    "EdgeConv-block": Case(lambda lib: lib.EdgeConv(F, 5), pair, make_block),
    **{
        f"NNConv-{kind}": Case(
            lambda lib, kind=kind: lib.NNConv(F, 5, torch_nn.Linear(3, F * 5), kind, residual=True), with_edges(3)
        )
        for kind in ("sum", "mean", "max")
    },
    **{
        f"GMMConv-{kind}-{n}": Case(
            lambda lib, kind=kind, n=n: lib.GMMConv(F, n, 3, 4, kind, residual=True), with_edges(3)
        )
        for kind, n in (("sum", 5), ("sum", 12), ("mean", 20), ("max", 20))
    },
    "CFConv": Case(lambda lib: lib.CFConv(F, 3, 10, 5), with_edges(3)),
    "GatedGraphConv": Case(lambda lib: lib.GatedGraphConv(F, 16, 3, 1), plain),
    "GatedGraphConv-types": Case(lambda lib: lib.GatedGraphConv(F, 16, 2, TYPES), typed),
    **{
        f"HGTConv-{size}": Case(
            lambda lib, size=size: lib.HGTConv(F, size, 3, 2, TYPES, dropout=0, use_norm=size == 5),
            lambda m, g, x: m(g, x, types(x.shape[0], 2), types(g.num_edges())),
            graph,
        )
        for size, graph in ((4, make_graph), (5, make_block))
    },
    "EGNNConv": Case(
        lambda lib: lib.EGNNConv(F, 8, 5, 3),
        lambda m, g, x: torch.cat(m(g, x, randn(NUM_NODES, 3, seed=9), randn(g.num_edges(), 3, seed=6)), 1),
    ),
    "AtomicConv": Case(
        lambda lib: lib.AtomicConv(*(torch.tensor(row) for row in ([2.0, 3.0], [0.5, 1.0], [1.0, 2.0]))),
        lambda m, g, x: m(g, x, positive(g.num_edges(), 1)),
        width=1,
    ),
    "AtomicConv-numbers": Case(
        lambda lib: lib.AtomicConv(*(torch.ones(2) for _ in range(3)), torch.tensor([0.0, 1.0, 3.0])),
        lambda m, g, x: m(g, types(NUM_NODES).unsqueeze(1).float(), positive(g.num_edges(), 1)) + 0 * x.sum(),
        width=1,
    ),
    "DenseGraphConv": Case(lambda lib: lib.DenseGraphConv(F, 5), dense),
    "DenseSAGEConv": Case(lambda lib: lib.DenseSAGEConv(F, 5), dense),
    "DenseChebConv": Case(
        lambda lib: lib.DenseChebConv(F, 5, 3),
        lambda m, g, x: m(torch.eye(NUM_NODES).roll(1, 0) + torch.eye(NUM_NODES).roll(-1, 0), x, 2.0),
    ),
    **{
        f"TypedLinear-{kind}-{is_sorted}": Case(
            lambda lib, kind=kind: lib.TypedLinear(F, 8, TYPES, kind, 2),
            lambda m, g, x, s=is_sorted: m(x, types(NUM_NODES).sort()[0] if s else types(NUM_NODES), s),
        )
        for kind, is_sorted in ((None, True), (None, False), ("basis", False), ("bdd", False))
    },
    **{
        f"{name}Pooling": Case(lambda lib, name=name: getattr(lib, f"{name}Pooling")(), plain, make_batch)
        for name in ("Sum", "Avg", "Max")
    },
    "SortPooling": Case(lambda lib: lib.SortPooling(6), plain, make_batch),
    "GlobalAttentionPooling": Case(
        lambda lib: lib.GlobalAttentionPooling(torch_nn.Linear(F, 1), torch_nn.Linear(F, 5)), plain, make_batch
    ),
    "Set2Set": Case(lambda lib: lib.Set2Set(F, 3, 2), plain, make_batch),
    "WeightAndSum": Case(lambda lib: lib.WeightAndSum(F), plain, make_batch),
    "SetTransformerEncoder": Case(lambda lib: lib.SetTransformerEncoder(F, 2, 5, 9), plain, make_batch),
    "SetTransformerEncoder-induced": Case(
        lambda lib: lib.SetTransformerEncoder(F, 2, 5, 9, 2, "isab", 3), plain, make_batch
    ),
    "SetTransformerDecoder": Case(lambda lib: lib.SetTransformerDecoder(F, 2, 5, 9, 1, 3), plain, make_batch),
    **{
        f"JumpingKnowledge-{mode}": Case(
            lambda lib, mode=mode: lib.JumpingKnowledge(mode, F, 2), lambda m, g, x: m([x, x * 0.5])
        )
        for mode in ("cat", "max", "lstm")
    },
    **{
        f"LabelPropagation-{kind}": Case(
            lambda lib, kind=kind: lib.LabelPropagation(3, 0.8, kind, normalize=kind == "row"),
            lambda m, g, x: m(g, types(NUM_NODES), torch.arange(NUM_NODES) < 20) + 0 * x.sum(),
        )
        for kind in ("sym", "row")
    },
    **{
        f"EdgePredictor-{op}": Case(
            lambda lib, op=op: lib.EdgePredictor(op, F, 5, bias=True), lambda m, g, x: m(x, x.flip(0))
        )
        for op in ("dot", "cos", "ele", "cat")
    },
    "TransE": Case(lambda lib: lib.TransE(TYPES, F), lambda m, g, x: m(x, x.flip(0), types(NUM_NODES))),
    "TransR": Case(lambda lib: lib.TransR(TYPES, 5, F, 2), lambda m, g, x: m(x, x.flip(0), types(NUM_NODES))),
    "Sequential": Case(lambda lib: lib.Sequential(lib.GraphConv(F, 9), lib.SGConv(9, 5)), plain),
    "HeteroLinear": Case(lambda lib: lib.HeteroLinear({"a": F, ("b", 1): F}, 5), lambda m, g, x: m({"a": x})["a"]),
    "HeteroEmbedding": Case(
        lambda lib: lib.HeteroEmbedding({"a": TYPES}, 5), lambda m, g, x: m({"a": types(9)})["a"] + 0 * x.sum()
    ),
    **{
        f"BiasedMHA-{kind}-{masked}": Case(
            lambda lib, kind=kind: lib.BiasedMHA(F, 3, attn_bias_type=kind, attn_drop=0.0),
            lambda m, g, x, masked=masked: m(x.view(4, 10, F), randn(4, 10, 10, 3, seed=6), MASK if masked else None),
        )
        for kind in ("add", "mul")
        for masked in (False, True)
    },
    **{
        f"GraphormerLayer-{first}": Case(
            lambda lib, first=first: lib.GraphormerLayer(F, 9, 3, norm_first=first, dropout=0.0, attn_dropout=0.0),
            lambda m, g, x: m(x.view(4, 10, F), None, MASK),
        )
        for first in (False, True)
    },
    "EGTLayer": Case(
        lambda lib: lib.EGTLayer(F, 7, 3, 2),
        lambda m, g, x: torch.cat(
            [out.flatten() for out in m(x.view(4, 10, F), randn(4, 10, 10, 7, seed=6), torch.zeros(4, 10, 10))]
        ),
    ),
    "DegreeEncoder": Case(
        lambda lib: lib.DegreeEncoder(3, 5), lambda m, g, x: m(types(80, 6).view(2, 4, 10)) + 0 * x.sum()
    ),
    "PathEncoder": Case(
        lambda lib: lib.PathEncoder(2, F, 3),
        lambda m, g, x: m(types(100, 4).view(1, 10, 10), x.view(1, 10, 2, 2, F)[:, :, :1].expand(1, 10, 10, 2, F)),
    ),
    "SpatialEncoder": Case(
        lambda lib: lib.SpatialEncoder(3, 2), lambda m, g, x: m(types(100, 6).view(1, 10, 10) - 1) + 0 * x.sum()
    ),
    **{
        f"SpatialEncoder3d-{typed}": Case(
            lambda lib: lib.SpatialEncoder3d(4, 2, 5),
            lambda m, g, x, typed=typed: m(x.view(4, 10, 3), types(40, 5).view(4, 10) if typed else None),
            width=3,
        )
        for typed in (False, True)
    },
    **{
        f"LapPosEncoder-{kind}-{layers}": Case(
            lambda lib, kind=kind, n=layers: lib.LapPosEncoder(kind, n, F, 6, 1, n == 2, n - 1),
            lambda m, g, x: without_gradients(m.eval(), *[torch.where(x > 2, torch.nan, x)] * 2) + 0 * x.sum(),
        )
        for kind, layers in (("Transformer", 1), ("DeepSet", 1), ("DeepSet", 2), ("DeepSet", 3))
    },
    "WeightBasis": Case(
        lambda lib: lib.WeightBasis((F, 3), 2, 4),
        lambda m, g, x: m() + 0 * x.sum(),
    ),
}


def with_gradients(module, case, graph, x):
    """The output, and the gradients of x and of the parameters."""
    x = x.clone().requires_grad_()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        out = case.call(module, graph, x)
    wanted = [x, *(p for p in module.parameters() if p.requires_grad)]
    grads = torch.autograd.grad(out, wanted, randn(*out.shape, seed=5).to(out), allow_unused=True)
    return [out.detach(), *(torch.zeros_like(w) if g is None else g for w, g in zip(wanted, grads))]


@pytest.mark.parametrize("name", CASES)
def test_same_as_dgl(name):
    case = CASES[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch_nn_modules = [seeded(lambda lib=lib: case.make(lib)) for lib in (theirs, ours)]
    their_module, our_module = torch_nn_modules
    their_state, our_state = their_module.state_dict(), our_module.state_dict()
    assert list(their_state) == list(our_state)
    if not name.startswith("DGNConv"):  # DGL makes its towers twice
        assert all(torch.equal(value, our_state[key]) for key, value in their_state.items())
    for parameter in their_module.parameters():
        parameter.data += 0.1 * randn(*parameter.shape, seed=7)
    our_module.load_state_dict(their_module.state_dict(), strict=True)

    graph = seeded(case.graph)
    x = randn(graph.num_src_nodes(), case.width)
    expected = with_gradients(their_module, case, graph, x)
    assert_close(with_gradients(our_module, case, graph, x), expected, 1e-4)

    with torch.autocast("cpu", torch.bfloat16):
        out = with_gradients(our_module.eval(), case, graph, x)[0].float()
    in_eval = with_gradients(our_module, case, graph, x)[0]
    assert (out - in_eval).norm() <= 0.03 * in_eval.norm()


HALF = [name for name in CASES if name.startswith(("RelGraphConv", "TAG", "Cheb", "AGNN", "EdgeConv", "GMM", "HGT"))]


@pytest.mark.parametrize("name", HALF)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_parameters(name, dtype):
    case = CASES[name]
    module = seeded(lambda: case.make(ours))
    graph = seeded(case.graph)
    x = randn(graph.num_src_nodes(), case.width)
    expected = case.call(module, graph, x)
    call = case.call
    out = call(_Cast(module.to(dtype), dtype), graph, x.to(dtype))
    assert out.dtype == dtype and (out.float() - expected).norm() <= 0.03 * expected.norm()


@pytest.mark.parametrize("is_cast", [False, True], ids=["autocast", "bf16 parameters"])
def test_gradient_of_bases_is_summed_over_edges_in_fp32(is_cast):
    graph = dgl.graph(random_edges(NUM_NODES, NUM_NODES, 20_000), num_nodes=NUM_NODES)
    module, x = seeded(lambda: ours.RelGraphConv(F, 5, 2, "basis", 2)), randn(NUM_NODES, F).abs()

    def gradient(module, x):
        out = module(graph, x, types(graph.num_edges(), 2)).float()
        return torch.autograd.grad(out.mean(0).sum(), module.linear_r.coeff)[0].double()

    expected = gradient(module, x)
    with torch.autocast("cpu", torch.bfloat16, enabled=not is_cast):
        found = gradient(module.bfloat16(), x.bfloat16()) if is_cast else gradient(module, x)
    assert (found - expected).norm() <= 0.02 * expected.norm()


class _Cast:
    """A module whose arguments are cast."""

    def __init__(self, module, dtype):
        self.module, self.dtype = module, dtype

    def __call__(self, g, *args, **kwargs):
        def cast(x):
            if isinstance(x, tuple):
                return tuple(cast(part) for part in x)
            return x.to(self.dtype) if isinstance(x, torch.Tensor) and x.is_floating_point() else x

        return self.module(g, *(cast(x) for x in args), **{key: cast(x) for key, x in kwargs.items()})


# ---- what is not in the table ------------------------------------------------------------------------------------------------


ZERO_IN_DEGREE = {
    name: CASES[name]
    for name in (
        "GraphConv",
        "GATConv",
        "GATv2Conv",
        "SGConv-5",
        "GCN2Conv",
        "AGNNConv",
        "EdgeConv",
        "GMMConv-sum-5",
    )
}


@pytest.mark.parametrize("name", ZERO_IN_DEGREE)
def test_zero_in_degree(name):
    case = ZERO_IN_DEGREE[name]
    graph = dgl.graph(random_edges(loops=False), num_nodes=NUM_NODES)
    x = randn(NUM_NODES, F)
    modules = [seeded(lambda lib=lib: case.make(lib)) for lib in (theirs, ours)]
    with pytest.raises(DGLError, match="0-in-degree"):
        case.call(modules[1], graph, x)
    for module in modules:
        module.set_allow_zero_in_degree(True)
    assert_close(with_gradients(modules[1], case, graph, x), with_gradients(modules[0], case, graph, x), 1e-4)


def test_halfgnn_graphs_do():
    graph = make_graph()
    native, x = halfgnn.Graph.from_dgl(graph), randn(NUM_NODES, F)
    native_types = types(native.num_edges)
    conv = ours.RelGraphConv(F, 5, TYPES)
    assert torch.equal(conv(native, x, native_types), conv(graph, x, types(graph.num_edges())))
    assert torch.equal(ours.SumPooling()(native, x), ours.SumPooling()(graph, x))
    with pytest.raises(ValueError, match="edge_type holds 5"):
        conv(native, x, native_types + 2)


def test_group_rev_res():
    graph, x = make_graph(), randn(NUM_NODES, F)
    module = seeded(lambda: ours.GroupRevRes(ours.GraphConv(F // 2, F // 2), 2))
    first, second = module.gnn_modules

    def formula(m, g, x):
        x0, x1 = x.chunk(2, -1)
        y0 = x0 + first(g, x1)
        return torch.cat([y0, x1 + second(g, y0)], -1)

    expected = with_gradients(module, Case(None, formula), graph, x)
    assert_close(with_gradients(module, Case(None, plain), graph, x), expected)


def test_hetero_graph_conv():
    src, dst = random_edges(20, 30)
    graph = dgl.heterograph(
        {("a", "into", "b"): (src, dst), ("b", "back", "a"): (dst, src), ("a", "x", "b"): (src, dst)}
    )
    x = {"a": randn(20, F), "b": randn(30, F)}
    seen = []

    def run(lib):
        convs = {"into": lib.SAGEConv(F, 5, "mean"), "back": lib.GATConv(F, 5, 1), "x": lib.GraphConv(F, 5)}
        convs["into"].register_forward_pre_hook(lambda _, args: seen.append(type(args[0])))
        return lib.HeteroGraphConv({**convs, "back": _Squeezed(convs["back"])}, "mean")(graph, x)

    expected, actual = (seeded(lambda lib=lib: run(lib)) for lib in (theirs, ours))
    assert expected.keys() == actual.keys() and seen == [dgl.DGLGraph] * 2
    assert_close([actual[ntype] for ntype in expected], list(expected.values()), 1e-4)
    assert may_attend_together([ours.GATConv(F, 5, 2) for _ in range(2)])  # in one fused attention


class _Squeezed(torch_nn.Module):
    def __init__(self, conv):
        super().__init__()
        self.conv = conv

    def forward(self, *args):
        return self.conv(*args).squeeze(1)


def test_what_is_lacking_says_what_there_is():
    with pytest.raises(AttributeError, match="APPNPConv propagates"):
        _ = ours.TWIRLSConv
    with pytest.raises(AttributeError, match=r"has no attribute 'Gat'; it has .*GATConv"):
        _ = ours.Gat


PROGRAM = """
import sys
from halfgnn import compat
compat.install("dgl", replace=True)
import dgl, torch
import dgl.nn.pytorch as dglnn
import dgl.nn.functional as F
from dgl.nn import GATConv, RelGraphConv
from dgl.nn.pytorch.conv import GraphConv
from dgl.nn.pytorch.glob import SumPooling
from dgl.nn.pytorch.softmax import edge_softmax
from dgl.nn.pytorch.utils import Identity, JumpingKnowledge, matmul_maybe_select
from dgl.nn.pytorch.hetero import HeteroGraphConv
assert dglnn.GATConv is GATConv and F.edge_softmax is edge_softmax and sys.modules["dgl"].__file__.count("halfgnn")
g = dgl.batch([dgl.graph(([0, 1, 1], [1, 1, 0])), dgl.graph(([0, 1], [1, 0]))])
x = torch.randn(4, 6)
h = dglnn.Sequential(GraphConv(6, 5), GATConv(5, 3, 1))(g, x).squeeze(1)
assert SumPooling()(g, h).shape == (2, 3)
assert torch.allclose(edge_softmax(g, torch.zeros(5)), torch.tensor([0.5, 0.5, 1, 1, 1]))
hetero = dgl.heterograph({("a", "r", "b"): ([0, 1], [1, 0]), ("b", "s", "b"): ([0], [1])})
seen = []

class Convolution(torch.nn.Module):
    def forward(self, graph, feats):
        seen.append(type(graph))
        graph.srcdata["h"] = feats[0]
        graph.update_all(dgl.function.copy_u("h", "m"), dgl.function.sum("m", "h"))
        return graph.dstdata["h"]

feats = {"a": torch.ones(2, 3), "b": torch.ones(2, 3)}
out = HeteroGraphConv({"r": Convolution(), "s": Convolution()})(hetero, feats)
assert out["b"][:, 0].tolist() == [1, 2] and seen == [dgl.DGLGraph] * 2
"""


def test_installed_under_its_name():
    subprocess.run([sys.executable, "-c", PROGRAM], check=True)
