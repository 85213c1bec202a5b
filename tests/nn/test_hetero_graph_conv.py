"""HeteroGraphConv, compared with each relation alone and with DGL."""

import copy

import pytest
import torch
import torch.nn.functional as F

import halfgnn
from halfgnn import Graph, HeteroGraph
from halfgnn.nn import RGAT, GATConv, HeteroGraphConv, relation_attention
from tests import support

dgl = pytest.importorskip("dgl")

from tests.support_hetero import CITES, NUM_NODES, WRITES, dgl_graph, edges, features, hetero_graph, sampled  # noqa: E402

HALF = support.HALVES


def pair_of(make, make_dgl, **options):
    """HeteroGraphConvs of halfgnn and of DGL with equal parameters."""
    torch.manual_seed(1)
    ours = HeteroGraphConv({etype: make() for etype in edges()}, **options)
    theirs = dgl.nn.HeteroGraphConv({etype: make_dgl() for etype in edges()}, **options)
    theirs.load_state_dict(ours.state_dict())
    return ours, theirs


def compared(ours, theirs, g, inputs, leaves, tolerance=1e-5):
    out, expected = ours(g, inputs), theirs(g, inputs)
    assert list(out) == list(expected)
    for ntype in expected:
        torch.testing.assert_close(out[ntype], expected[ntype], rtol=tolerance, atol=tolerance)
    grads = []
    for module, results in ((ours, out), (theirs, expected)):
        loss = sum((value * torch.linspace(-1, 1, value.numel()).view(value.shape)).sum() for value in results.values())
        grads.append(torch.autograd.grad(loss, [*module.parameters(), *leaves], allow_unused=True))
    for ours, expected in zip(*grads):
        expected = torch.zeros_like(ours) if expected is None else expected
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("aggregate", ["sum", "mean", "max", "min", "stack"])
@pytest.mark.parametrize(
    "options",
    [{}, {"residual": True}, {"bias": False}, {"activation": F.elu}],
    ids=lambda options: "-".join(options) or "plain",
)
def test_gat_equals_dgl(aggregate, options, projected):
    make = [lambda cls=cls: cls(24, 6, 4, **options) for cls in (GATConv, dgl.nn.GATConv)]
    ours, theirs = pair_of(*make, aggregate=aggregate)
    # DGL's residual fails if a block has no node of a type.
    for g in (dgl_graph(), *sampled()[: 1 if "residual" in options else 2]):
        inputs = {t: x.requires_grad_() for t, x in features({t: g.num_src_nodes(t) for t in g.srctypes}).items()}
        compared(ours, theirs, g, inputs, list(inputs.values()))


@pytest.mark.parametrize("name", ["GraphConv", "SAGEConv", "mixed"])
def test_other_modules_equal_dgl(name):
    def maker(library):
        made = {
            "GraphConv": lambda: library.GraphConv(24, 10, norm="right", allow_zero_in_degree=True),
            "SAGEConv": lambda: library.SAGEConv(24, 10, "mean"),
        }
        kinds = iter(["GraphConv", "SAGEConv"] * 2)
        return made.get(name) or (lambda: made[next(kinds)]())

    ours, theirs = pair_of(maker(halfgnn.nn), maker(dgl.nn))
    inputs = features(NUM_NODES)
    compared(ours, theirs, dgl_graph(), inputs, [])
    compared(ours, theirs, dgl_graph(), (inputs, features(NUM_NODES, seed=9)), [])


def test_a_block_of_one_relation():
    """A Block that a Prefetcher makes from a DGL block is accepted in its place."""
    from halfgnn.dataloading import Prefetcher

    g = dgl.heterograph({CITES: edges()[CITES]}, num_nodes_dict={"paper": 60})
    (block,) = Prefetcher([g], "cpu", convert=True)
    assert isinstance(block.graph, Graph) and block.num_dst_nodes() == block.num_src_nodes("paper") == 60
    model, x = RGAT(24, 32, 7, [CITES], "paper", dropout=0.0), features({"paper": 60})
    torch.testing.assert_close(model([block] * 2, x), model(g, x))
    torch.testing.assert_close(halfgnn.ops.copy_u_sum(block, x["paper"]), halfgnn.ops.copy_u_sum(g, x["paper"]))


def test_more_dimensions_run_one_by_one():
    ours, theirs = pair_of(lambda: GATConv(24, 6, 4), lambda: dgl.nn.GATConv(24, 6, 4))
    x = {ntype: feat.view(-1, 1, 24).expand(-1, 3, -1) for ntype, feat in features(NUM_NODES).items()}
    expected = theirs(dgl_graph(), x)
    for ntype, out in ours(dgl_graph(), x).items():
        torch.testing.assert_close(out, expected[ntype], rtol=1e-5, atol=1e-5)


def test_arguments_go_to_their_module():
    ours, theirs = pair_of(lambda: GATConv(24, 6, 4), lambda: dgl.nn.GATConv(24, 6, 4))
    g, weight = dgl_graph(), torch.rand(300)
    kwargs = {"cites": {"edge_weight": weight}}
    expected = theirs(g, features(NUM_NODES), mod_kwargs=kwargs)
    for ntype, out in ours(g, features(NUM_NODES), mod_kwargs=kwargs).items():
        torch.testing.assert_close(out, expected[ntype], rtol=1e-5, atol=1e-5)


def test_relations_without_features_are_left_out():
    ours, theirs = pair_of(lambda: GATConv(24, 6, 4), lambda: dgl.nn.GATConv(24, 6, 4))
    inputs = features({"paper": 60, "author": 50})
    expected = theirs(dgl_graph(), inputs)
    out = ours(dgl_graph(), inputs)
    assert set(out) == set(expected) == {"paper", "author"}
    torch.testing.assert_close(out["paper"], expected["paper"], rtol=1e-5, atol=1e-5)


def test_gats_are_one_attention(monkeypatch):
    calls = []
    real = halfgnn.ops.gat_attention
    monkeypatch.setattr(halfgnn.ops, "gat_attention", lambda *args, **kwargs: calls.append(1) or real(*args, **kwargs))
    monkeypatch.setattr(relation_attention, "_saves_to_project_last", lambda *args: False)
    g, x = hetero_graph(), features(NUM_NODES)
    conv = HeteroGraphConv({etype: GATConv(24, 6, 4) for etype in g})
    together = conv(g, x)
    assert len(calls) == 1
    conv.mods[str(CITES)].register_forward_hook(lambda *args: None)  # must be called
    apart = conv(g, x)
    assert len(calls) == 5
    for ntype in together:
        torch.testing.assert_close(together[ntype], apart[ntype], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", HALF)
def test_half_is_no_worse_than_apart(dtype, projected):
    """Sums over relations are made before rounding, so that the error of the sum is not larger than that of its
    terms."""
    g = hetero_graph()
    conv = HeteroGraphConv({etype: GATConv(24, 8, 4, bias=False) for etype in g})
    x = features(NUM_NODES)
    exact = conv.double()(g, {t: v.to(dtype).double() for t, v in x.items()})
    half = conv.to(dtype)
    exact = half.double()(g, {t: v.to(dtype).double() for t, v in x.items()})
    out = half.to(dtype)(g, {t: v.to(dtype) for t, v in x.items()})
    for ntype, value in out.items():
        assert value.dtype == dtype
        error = (value.double() - exact[ntype]).abs().max()
        assert error <= 4 * torch.finfo(dtype).eps * exact[ntype].abs().max()


def test_one_module_for_several_relations_and_names():
    shared = GATConv(24, 6, 4)
    g, x = hetero_graph(), features(NUM_NODES)
    by_name = HeteroGraphConv({etype[1]: shared for etype in g})
    out = by_name(g, x)
    shared.set_allow_zero_in_degree(True)
    expected = sum(shared(g[etype], (x[etype[0]], x["paper"])) for etype in g if etype[2] == "paper")
    torch.testing.assert_close(out["paper"], expected, rtol=1e-5, atol=1e-5)


def test_wrong_calls_of_heterographconv():
    g, x = hetero_graph(), features(NUM_NODES)
    conv = HeteroGraphConv({etype: GATConv(24, 6, 4) for etype in g})
    with pytest.raises(ValueError, match="aggregate is 'median'"):
        HeteroGraphConv({}, aggregate="median")
    with pytest.raises(KeyError, match="no module for edge type"):
        HeteroGraphConv({CITES: GATConv(24, 6, 4)})(g, x)
    with pytest.raises(ValueError, match=r"inputs\['paper'\] has shape \(59, 24\); expected 60 rows"):
        conv(g, {**x, "paper": x["paper"][:59]})
    with pytest.raises(ValueError, match=r"inputs\['venue'\] has shape \(5, 23\); expected \(5, 24\)"):
        conv(g, {**x, "venue": x["venue"][:, :23]})
    with pytest.raises(TypeError, match="inputs is a Tensor"):
        conv(g, x["paper"])
    with pytest.raises(TypeError, match=r"expected a halfgnn\.HeteroGraph"):
        conv(g[CITES], x)


def test_sums_are_projected_where_that_is_less_work(monkeypatch):
    """Many sources per destination, or inputs narrower than results."""
    found = []
    real = relation_attention._saves_to_project_last
    monkeypatch.setattr(
        relation_attention, "_saves_to_project_last", lambda *args: found.append(real(*args)) or found[-1]
    )
    HeteroGraphConv({etype: GATConv(24, 4, 4) for etype in edges()})(hetero_graph(), features(NUM_NODES))
    star = Graph.from_edges(torch.arange(50), torch.zeros(50, dtype=torch.int64), num_src=50, num_dst=1)
    x = {"author": torch.randn(50, 96), "paper": torch.randn(50, 96)}
    g = HeteroGraph({WRITES: star, CITES: star})
    conv = HeteroGraphConv({etype: GATConv(96, 96, 4) for etype in g})
    conv(g, (x, {"paper": torch.randn(1, 96)}))
    conv.mods[str(CITES)].fc.register_forward_hook(lambda *args: None)  # must be called
    conv(g, (x, {"paper": torch.randn(1, 96)}))
    assert found == [False, True, False]


@pytest.mark.parametrize("dtype", HALF)
def test_logits_are_not_rounded_under_autocast(dtype, projected):
    """Inputs with a common offset. With rounded logits the error of weights would be much larger than the result's
    rounding."""
    g = hetero_graph()
    conv = HeteroGraphConv({etype: GATConv(24, 8, 4, bias=False) for etype in g})
    x = {ntype: (feat + 8).to(dtype) for ntype, feat in features(NUM_NODES).items()}
    with torch.autocast("cpu", dtype):
        out = conv(g, x)
    exact = copy.deepcopy(conv).double()(g, {ntype: feat.double() for ntype, feat in x.items()})
    for ntype, value in out.items():
        error = (value.double() - exact[ntype]).abs().max()
        assert error <= 6 * torch.finfo(dtype).eps * exact[ntype].abs().max(), error
