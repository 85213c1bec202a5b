"""Wrong arguments that modules refuse before they compute anything."""

import pytest
import torch

from halfgnn import nn
from halfgnn.nn import GraphConv
from tests.support import make_graph

CONVS = {
    "GATConv": lambda: nn.GATConv(7, 5, 3),
    "GATv2Conv": lambda: nn.GATv2Conv(7, 5, 3),
    "DotGatConv": lambda: nn.DotGatConv(7, 5, 3),
    "TransformerConv": lambda: nn.TransformerConv(7, 5, 3),
    "GraphConv": lambda: nn.GraphConv(7, 5),
    "SAGEConv-mean": lambda: nn.SAGEConv(7, 5, "mean"),
    "SAGEConv-pool": lambda: nn.SAGEConv(7, 5, "pool"),
    "GINConv": lambda: nn.GINConv(torch.nn.Linear(7, 5)),
}


@pytest.mark.parametrize("name", CONVS)
def test_a_module_on_another_device(name):
    """As one that was left on the CPU while the graph moved."""
    g = make_graph("self_loops")
    conv, x = CONVS[name](), torch.ones(g.num_src, 7)
    assert conv(g, x).device == x.device
    with pytest.raises(
        ValueError, match=r"^feat is on cpu, but the module's parameters are on meta; expected one device"
    ):
        conv.to("meta")(g, x)


@pytest.mark.parametrize(("in_feats", "out_feats"), [(7, 5), (5, 7)])
@pytest.mark.parametrize("own_weight", [True, False])
def test_graph_conv_names_the_dtypes(in_feats, out_feats, own_weight):
    g = make_graph("bipartite", torch.int64)
    conv = GraphConv(in_feats, out_feats, weight=own_weight, allow_zero_in_degree=True)
    x = torch.ones(g.num_src, in_feats)
    given = None if own_weight else torch.ones(in_feats, out_feats)
    for half in (torch.float16, torch.bfloat16):
        with pytest.raises(TypeError, match=rf"^feat has dtype {half} and the module's parameters have torch.float32"):
            conv(g, x.to(half), given)
        with torch.autocast("cpu", half):
            assert conv(g, x.to(half), given).isfinite().all()


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda x: x.tolist(), "is a list"),
        (lambda x: x[:-1], "has shape"),
        (lambda x: x[:, :-1], "has shape"),
        (lambda x: x[:, 0], "has shape"),
        (lambda x: x.to_sparse(), "has layout torch.sparse_coo"),
        (lambda x: x.to("meta"), "is on meta"),
        (lambda x: x.long(), r"has dtype torch.int64; expected a floating-point type: feat\[\d\].float\(\)"),
        (lambda x: x.double(), "has dtype torch.float64 and the module's parameters have torch.float32"),
    ],
)
def test_each_of_a_pair_is_checked(side, change, words):
    """Whatever is right with the other one."""
    g = make_graph("bipartite")
    conv = nn.GATConv((7, 6), 5, 3, allow_zero_in_degree=True)
    feat = [torch.ones(g.num_src, 7), torch.ones(g.num_dst, 6)]
    assert conv(g, tuple(feat)).shape == (g.num_dst, 3, 5)
    feat[side] = change(feat[side])
    with pytest.raises((TypeError, ValueError), match=rf"^feat\[{side}\] {words}"):
        conv(g, tuple(feat))
