"""RGAT, compared with the baseline's formula."""

import pytest
import torch
import torch.nn.functional as F

import halfgnn
from halfgnn import HeteroGraph
from halfgnn.nn import RGAT
from tests import support

dgl = pytest.importorskip("dgl")

from tests.support_hetero import CITES, NUM_NODES, SHOWN, WRITES, edges, features, hetero_graph, sampled  # noqa: E402

HALF = support.HALVES


def baseline(model, graph_of, layers, feats):
    """RGAT's formula, relation by relation and without fusing, in plain modules. graph_of(layer): HeteroGraph."""
    h = feats
    for layer in range(layers):
        g, out = graph_of(layer), {}
        convs = model.convs[layer]
        for ntype in h:
            x = h[ntype][: g.num_dst[ntype]]
            out[ntype] = F.linear(x, model.skips[layer].weight, model.skips[layer].bias)
            for etype in g:
                if etype[2] == ntype and str(etype) in convs:
                    out[ntype] = out[ntype] + convs[str(etype)](g[etype], (h[etype[0]], x)).flatten(1)
        kept = [ntype for ntype in out if ntype in model._plan[layer][1]]
        x = F.elu(model.norms[layer](torch.cat([out[ntype] for ntype in kept])))
        h = dict(zip(kept, x.split([out[ntype].shape[0] for ntype in kept])))
    return model.mlp(h[model.target])


@pytest.mark.parametrize("norm", ["batch", "layer", "none"])
@pytest.mark.parametrize("on", ["blocks", "graph"])
def test_rgat_equals_its_formula(norm, on, projected):
    model = RGAT(24, 32, 7, list(edges()), "paper", num_heads=4, dropout=0.0, norm=norm)
    blocks = sampled() if on == "blocks" else [hetero_graph()] * 2
    graphs = [halfgnn.graph_argument.as_heterograph(block) for block in blocks]
    x = {ntype: feat.requires_grad_() for ntype, feat in features(graphs[0].num_src).items()}
    out, expected = model(blocks, x), baseline(model, graphs.__getitem__, 2, x)
    assert out.shape == (7 if on == "blocks" else 60, 7)
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-4)
    leaves = [*model.parameters(), *x.values()]
    for ours, theirs in zip(*(torch.autograd.grad(y.square().sum(), leaves) for y in (out, expected))):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3 * max(1, float(theirs.abs().max())))


def test_rgat_has_the_parameters_that_are_used():
    model = RGAT(24, 32, 7, list(edges()), "paper")
    assert set(model.convs[1]) == {str(etype) for etype in (WRITES, CITES, SHOWN)}
    assert len(model.convs[0]) == 4
    out = model([hetero_graph()] * 2, features(NUM_NODES))
    out.sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_types_without_in_edges_keep_their_own_features():
    """Venues are not the destination of any relation, but the second layer reads them."""
    model = RGAT(24, 32, 7, [SHOWN, CITES], "paper", dropout=0.0, norm="none")
    g, x = HeteroGraph({e: hetero_graph()[e] for e in (SHOWN, CITES)}, num_dst=NUM_NODES), features(NUM_NODES)
    graphs = [g, g]
    assert torch.equal(model(g, x), model(graphs, x))
    torch.testing.assert_close(model(graphs, x), baseline(model, graphs.__getitem__, 2, x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("norm", ["batch", "layer"])
def test_rgat_trains_under_autocast(dtype, norm, projected):
    torch.manual_seed(0)
    model = RGAT(24, 32, 3, list(edges()), "paper", dropout=0.1, norm=norm)
    x, g = features(NUM_NODES, dtype=dtype), hetero_graph()
    labels = (x["paper"][:, 0] > 0).long() + (x["paper"][:, 1] > 0).long()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for _ in range(40):
        with torch.autocast("cpu", dtype):
            out = model([g, g], x)
        loss = F.cross_entropy(out.float(), labels)
        optimizer.zero_grad()
        loss.backward()
        assert all(parameter.grad.dtype == torch.float32 for parameter in model.parameters())
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.6 * losses[0]


def test_wrong_rgats():
    with pytest.raises(ValueError, match="hidden_feats is 30; expected a multiple of num_heads, 4"):
        RGAT(24, 30, 7, list(edges()), "paper")
    with pytest.raises(ValueError, match="expected a type in which an edge type ends"):
        RGAT(24, 32, 7, list(edges()), "venue")
    with pytest.raises(ValueError, match="norm is 'group'"):
        RGAT(24, 32, 7, list(edges()), "paper", norm="group")
    model = RGAT(24, 32, 7, list(edges()), "paper")
    g, x = hetero_graph(), features(NUM_NODES)
    with pytest.raises(ValueError, match="blocks has 1 graphs; expected 2"):
        model([g], x)
    with pytest.raises(
        TypeError, match=r"feats\['\w+'\] has dtype torch.float16 and the module's parameters have torch.float32"
    ):
        model([g, g], {ntype: feat.half() for ntype, feat in x.items()})
    with pytest.raises(KeyError, match=r"blocks\[0\] has no edge type"):
        model(HeteroGraph({CITES: g[CITES]}), x)
    with pytest.raises(TypeError, match=r"feats\['author'\] is None"):
        model(g, {**x, "author": None})
    with pytest.raises(ValueError, match="has a dot"):
        RGAT(24, 32, 7, [("a", "v1.0", "a")], "a")
    with pytest.raises(KeyError, match="feats has no 'venue'"):
        model([g, g], {ntype: x[ntype] for ntype in ("paper", "author")})
    with pytest.raises(ValueError, match=r"feats\['author'\] has shape \(49, 24\); expected 50 rows"):
        model([g, g], {**x, "author": x["author"][1:]})
    blocks, model = sampled(), RGAT(24, 128, 7, list(edges()), "paper")
    with pytest.raises(ValueError, match=r"result of blocks\[0\]\['paper'\] has shape \(7, 128\); expected 60 rows"):
        model([blocks[1], g], features(HeteroGraph.from_dgl(blocks[1]).num_src))
