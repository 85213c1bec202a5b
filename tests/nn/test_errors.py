"""Wrong arguments of modules get errors that name them, before anything is computed."""

from __future__ import annotations

import pytest
import torch

import halfgnn
import halfgnn.nn
from tests.nn.support_modules import (
    ATTENTIONS,
    OTHERS,
    make_graph,
    make_module,
)
from tests.support_nn import (
    IN_FEATS,
    NUM_NODES,
    randn,
    random_edges,
)


def test_errors():
    g, x = make_graph(), randn(NUM_NODES, IN_FEATS)
    tall = halfgnn.Graph.from_edges(*random_edges(20, 30), num_src=20, num_dst=30)
    conv = make_module("GATConv")
    with pytest.raises(ValueError, match=r"expected a pair \(of the sources, of the destinations\)"):
        conv(tall, randn(20, IN_FEATS))
    with pytest.raises(ValueError, match="rows"):
        conv(g, x[1:])
    with pytest.raises(TypeError, match=r"halfgnn\.Graph or a DGLGraph"):
        conv("graph", x)
    for name in ("GATConv", "DotGatConv"):
        with pytest.raises(ValueError, match="pair"):
            getattr(halfgnn.nn, name)((IN_FEATS, IN_FEATS), 5, 3)(g, x)
    with pytest.raises(ValueError, match="pair"):
        make_module("DotGatConv")(g, (x, x))
    with pytest.raises(ValueError, match="norm is 'mean'"):
        halfgnn.nn.GraphConv(IN_FEATS, 5, norm="mean")
    with pytest.raises(ValueError, match="aggregator_type is 'sum'"):
        halfgnn.nn.SAGEConv(IN_FEATS, 5, "sum")
    with pytest.raises(ValueError, match="aggregator_type is 'min'"):
        halfgnn.nn.GINConv(None, "min")
    with pytest.raises(ValueError, match="norm is 'left'"):
        halfgnn.nn.EdgeWeightNorm("left")
    sage = halfgnn.nn.SAGEConv(IN_FEATS, 5, "gcn")
    sage.fc_neigh = torch.nn.Sequential(sage.fc_neigh)  # its input width is unknown
    with pytest.raises(ValueError, match=r"feat\[0\] and feat\[1\] have shapes .* one width for the aggregator gcn"):
        sage(g, (x, x[:, 1:]))
    with pytest.raises(ValueError, match=r"feat\[0\] and feat\[1\] have shapes .* one width"):
        halfgnn.nn.GINConv()(g, (x, x[:, :1]))
    with pytest.raises(
        ValueError, match="feat is one tensor, but the module takes 12 features of sources and 6 of dest"
    ):
        halfgnn.nn.SAGEConv((IN_FEATS, 6), 5, "mean")(g, x)


ATTENTION_SIZES = {
    "GATConv": "num_heads",
    "GATv2Conv": "num_heads",
    "DotGatConv": "num_heads",
    "TransformerConv": "heads",
}


@pytest.mark.parametrize("name", [*ATTENTION_SIZES, "GraphConv", "SAGEConv"])
def test_sizes(name):
    cls, last = getattr(halfgnn.nn, name), ("mean",) if name == "SAGEConv" else ()
    into, out = ("in_channels", "out_channels") if name == "TransformerConv" else ("in_feats", "out_feats")
    least, sizes = 0, [out]
    if name in ATTENTION_SIZES:
        least, last, sizes = 1, (2,), [out, ATTENTION_SIZES[name]]
    for i, wrong_name in enumerate([into, *sizes]):
        arguments = [IN_FEATS, 5, *last]
        for wrong in (None, "3", 2.0, True, torch.zeros(2)):
            arguments[i] = wrong
            with pytest.raises(TypeError, match=f"{wrong_name} is .*; expected .*integer"):
                cls(*arguments)
        for wrong in (-1, *range(least if i else 0)):
            arguments[i] = wrong
            with pytest.raises(ValueError, match=f"{wrong_name} is {wrong}; expected .*integer"):
                cls(*arguments)
    if name != "GraphConv":
        with pytest.raises(ValueError, match=rf"{into} is \(3, 3, 3\); expected .* pair"):
            cls((3, 3, 3), 5, *last)
        with pytest.raises(ValueError, match=rf"{into}\[1\] is -3; expected"):
            cls((3, -3), 5, *last)
    for kind in [("pool",), ("gcn",)] if name == "SAGEConv" else [last]:
        for width in (0, 5)[least:]:  # widths of nodes' features; 0: none
            assert cls(0, width, *kind)(make_graph(), randn(NUM_NODES, 0)).shape[0] == NUM_NODES


@pytest.mark.parametrize(
    "cls, arguments, names",
    [
        ("GATConv", (4, 5, 3), ("feat_drop", "attn_drop", "negative_slope")),
        ("GATv2Conv", (4, 5, 3), ("feat_drop", "attn_drop", "negative_slope")),
        ("TransformerConv", (4, 5), ("dropout",)),
        ("SAGEConv", (4, 5, "mean"), ("feat_drop",)),
        ("GINConv", (), ("init_eps",)),
        ("EdgeWeightNorm", (), ("eps",)),
    ],
)
def test_numbers(cls, arguments, names):
    for name in names:
        for wrong in ("0.1", None, torch.zeros(2)):
            with pytest.raises(TypeError, match=f"{name} is .*; expected a number"):
                getattr(halfgnn.nn, cls)(*arguments, **{name: wrong})
        with pytest.raises(ValueError, match=f"{name} is nan; expected a finite number"):
            getattr(halfgnn.nn, cls)(*arguments, **{name: float("nan")})
        if "drop" in name:
            with pytest.raises(ValueError, match=f"{name} is 1.5; expected a probability"):
                getattr(halfgnn.nn, cls)(*arguments, **{name: 1.5})


ONE_EACH = [*ATTENTIONS, "GraphConv-both-5", "SAGEConv-mean-5", "SAGEConv-gcn-5", "SAGEConv-pool-5", "SAGEConv-lstm-5"]
ONE_EACH += ["GINConv-sum", "TransformerConv"]


@pytest.mark.parametrize("name", ONE_EACH)
def test_wrong_features(name):
    g, x, module = make_graph(), randn(NUM_NODES, IN_FEATS), make_module(name)
    for wrong, error, match in [
        (None, TypeError, "feat is None; expected a torch.Tensor"),
        (x.tolist(), TypeError, "feat is a list; expected a torch.Tensor"),
        ([x, x], TypeError, "feat is a list; expected a torch.Tensor"),
        (torch.tensor(1.0), ValueError, r"feat has shape \(\); expected 40 rows"),
        (x[1:], ValueError, r"feat has shape \(39, 12\); expected 40 rows, one per source node"),
        ((x, x, x), ValueError, "feat is a tuple of 3; expected a tensor or the pair"),
        ((x,), ValueError, "feat is a tuple of 1; expected a tensor or the pair"),
        ((None, x), TypeError, r"feat\[0\] is None; expected a torch.Tensor"),
        (x.to_sparse(), TypeError, "feat has layout torch.sparse_coo; expected a dense tensor"),
        (x.to("meta"), ValueError, "feat is on meta; expected the graph's device, cpu"),
    ]:
        with pytest.raises(error, match=match):
            module(g, wrong)
    with pytest.raises(TypeError, match=r"^graph is a str; expected"):
        module("g", x)
    if name != "GINConv-sum":
        for wrong in (x[:, 1:], x[:, 0]):
            with pytest.raises(ValueError, match=r"feat has shape \(40,.*\); expected \(40, .*12\)"):
                module(g, wrong)
        with pytest.raises(TypeError, match=r"feat has dtype torch\.int64; expected a floating-point type"):
            module(g, x.long())
    if not name.startswith("GraphConv"):  # GraphConv reads only the first of a pair
        with pytest.raises(TypeError, match=r"feat\[1\] is None; expected a torch.Tensor"):
            module(g, (x, None))
        with pytest.raises(
            ValueError, match=r"feat\[1\] has shape \(39, 12\); expected 40 rows, one per destination node"
        ):
            module(g, (x, x[1:]))
    if name in ("GATv2Conv", "DotGatConv", "TransformerConv", "SAGEConv-lstm-5"):
        with pytest.raises(ValueError, match=r"feat has shape \(40, 1, 12\); expected \(40, 12\)"):
            module(g, x.unsqueeze(1))


def test_dgl_graph_of_several_edge_types():
    dgl = pytest.importorskip("dgl")
    ids = torch.tensor([0, 1])
    g = dgl.heterograph({("a", "r", "b"): (ids, ids), ("b", "s", "a"): (ids, ids)})
    with pytest.raises(ValueError, match=r"g has 2 edge types; expected one: pass g\[edge type\].*\('a', 'r', 'b'\)"):
        make_module("GATConv")(g, randn(2, IN_FEATS))


def test_features_of_edges():
    g, x = make_graph(), randn(NUM_NODES, IN_FEATS)
    conv = halfgnn.nn.TransformerConv(IN_FEATS, 5, edge_dim=4)
    edge_feat = randn(g.num_edges, 4)
    for wrong, error, match in [
        (edge_feat.tolist(), TypeError, "edge_feat is a list"),
        (edge_feat[1:], ValueError, rf"edge_feat has shape .*; expected {g.num_edges} rows, one per edge"),
        (edge_feat[:, 1:], ValueError, rf"edge_feat has shape .*; expected \({g.num_edges}, 4\)"),
        (edge_feat[:, 0], ValueError, rf"edge_feat has shape .*; expected \({g.num_edges}, 4\)"),
        (edge_feat.int(), TypeError, "edge_feat has dtype torch.int32"),
        (edge_feat.to("meta"), ValueError, "edge_feat is on meta"),
    ]:
        with pytest.raises(error, match=match):
            conv(g, x, wrong)
    with pytest.raises(ValueError, match="edge_dim is -4"):
        halfgnn.nn.TransformerConv(IN_FEATS, 5, edge_dim=-4)


WEIGHTED = [*OTHERS, "GATConv"]


@pytest.mark.parametrize("name", WEIGHTED)
def test_wrong_edge_weights(name):
    g, x, module = make_graph(), randn(NUM_NODES, IN_FEATS), make_module(name)
    count = g.num_edges
    weight = randn(count)
    for wrong, error, match in [
        (weight.tolist(), TypeError, "edge_weight is a list; expected a torch.Tensor"),
        (weight[1:], ValueError, rf"edge_weight has shape \({count - 1},\); expected {count} rows, one per edge"),
        (torch.tensor(1.0), ValueError, rf"edge_weight has shape \(\); expected {count} rows"),
        (
            randn(count, 7),
            ValueError,
            rf"edge_weight has shape \({count}, 7\); expected \({count},\), one number per edge",
        ),
        (randn(count, 2, 1), ValueError, rf"edge_weight has shape .*; expected \({count},\), one number per edge"),
        (
            weight.double(),
            TypeError,
            "edge_weight has dtype torch.float64; expected that of the features, torch.float32",
        ),
        (weight.to("meta"), ValueError, "edge_weight is on meta; expected the graph's device"),
    ]:
        with pytest.raises(error, match=match):
            module(g, x, edge_weight=wrong)
    half = make_module(name).half()
    assert half(g, x.half(), edge_weight=weight).isfinite().all()
    torch.testing.assert_close(module(g, x, edge_weight=weight.half()), module(g, x, edge_weight=weight.half().float()))
    with torch.autocast("cpu", torch.bfloat16):
        assert module(g, x, edge_weight=weight.half()).isfinite().all()


def test_wrong_weights_to_normalise():
    g = make_graph()
    norm, weight = halfgnn.nn.EdgeWeightNorm(), randn(g.num_edges).abs() + 0.1
    for wrong, error, match in [
        (None, TypeError, "edge_weight is None"),
        (weight[1:], ValueError, rf"edge_weight has shape .*; expected {g.num_edges} rows"),
        (torch.tensor(1.0), ValueError, r"edge_weight has shape \(\)"),
        (weight.ceil().long(), TypeError, "edge_weight has dtype torch.int64; expected a floating-point type"),
        (weight.to("meta"), ValueError, "edge_weight is on meta"),
    ]:
        with pytest.raises(error, match=match):
            norm(g, wrong)


def test_wrong_external_weight():
    g, x = make_graph(), randn(NUM_NODES, IN_FEATS)
    conv = halfgnn.nn.GraphConv(IN_FEATS, 5, weight=False, bias=False)
    with pytest.raises(TypeError, match="weight is a list"):
        conv(g, x, [1.0])
    with pytest.raises(ValueError, match=r"weight has shape \(12,\); expected \(in_feats, out_feats\)"):
        conv(g, x, x[0])
    with pytest.raises(ValueError, match=r"feat has shape \(40, 12\); expected \(40, \*, 11\)"):
        conv(g, x, randn(11, 5))


@pytest.mark.parametrize("name", ["GraphConv", "SAGEConv", "GATv2Conv", "TransformerConv"])
def test_arguments_in_another_order(name):
    own = {"GraphConv": (IN_FEATS, 5), "SAGEConv": (IN_FEATS, 5, "mean")}
    module = getattr(halfgnn.nn, name)(*own[name]) if name in own else make_module(name)
    g, x = make_graph(), randn(NUM_NODES, IN_FEATS)
    order = r"the order of arguments is \(graph, features\)"
    for second in (g, torch.stack(g.edges())):
        with pytest.raises(TypeError, match=f"graph is a Tensor; expected a halfgnn.Graph or a DGLGraph: {order}"):
            module(x, second)
    with pytest.raises(TypeError, match=r"has dtype torch.int64; expected .*\.float\(\)"):
        module(g, x.long())


def test_a_graph_of_one_type_for_several():
    conv = halfgnn.nn.HeteroGraphConv({"r": halfgnn.nn.GraphConv(IN_FEATS, 5)})
    with pytest.raises(TypeError, match=r"is a Graph; expected a halfgnn.HeteroGraph .*: halfgnn.HeteroGraph\(\{"):
        conv(make_graph(), {"a": randn(NUM_NODES, IN_FEATS)})
