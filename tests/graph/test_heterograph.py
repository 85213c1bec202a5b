"""HeteroGraph, HeteroGraphConv and RGAT, compared with each relation alone, with DGL, and with the baseline's
formula."""

import copy
import io
import pickle

import pytest
import torch
import torch.nn.functional as F

import halfgnn
from halfgnn import Graph, HeteroGraph
from halfgnn.heterograph import Block
from halfgnn.nn import RGAT, GATConv, HeteroGraphConv, _relations
from tests import support

dgl = pytest.importorskip("dgl")

HALF = support.HALVES

WRITES, WRITTEN, CITES, SHOWN = (
    ("author", "writes", "paper"),
    ("paper", "written-by", "author"),
    ("paper", "cites", "paper"),
    ("venue", "shows", "paper"),
)
NUM_NODES = {"author": 50, "paper": 60, "venue": 5}


def edges(seed=0, num_edges=300):
    random = torch.Generator().manual_seed(seed)

    def draw(ntype):
        return torch.randint(0, NUM_NODES[ntype], (num_edges,), generator=random)

    writes = draw("author"), draw("paper")
    return {
        WRITES: writes,
        WRITTEN: writes[::-1],
        CITES: (draw("paper"), draw("paper")),
        SHOWN: (draw("venue"), draw("paper")),
    }


def dgl_graph(idtype=torch.int64):
    g = dgl.heterograph(edges(), num_nodes_dict=NUM_NODES)
    return g.int() if idtype == torch.int32 else g


def hetero_graph(device="cpu", idtype=torch.int64):
    index = {etype: torch.stack(ends).to(idtype).to(device) for etype, ends in edges().items()}
    return HeteroGraph.from_edge_index_dict(index, NUM_NODES)


def sampled(fanouts=(3, 4), seeds=7):
    sampler = dgl.dataloading.NeighborSampler(list(fanouts))
    _, _, blocks = sampler.sample_blocks(dgl_graph(), {"paper": torch.arange(seeds)})
    return blocks


def features(counts, width=24, dtype=torch.float32, seed=3):
    random = torch.Generator().manual_seed(seed)
    return {ntype: torch.randn(count, width, generator=random).to(dtype) for ntype, count in counts.items()}


def adjacency(g):
    """Edges in the order of edge data."""
    return torch.stack(g.edges()).tolist()


# ---- HeteroGraph -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("idtype", support.IDTYPES)
def test_constructors_agree(idtype):
    for g in (hetero_graph(idtype=idtype), HeteroGraph.from_dgl(dgl_graph(idtype))):
        assert g.num_src == g.num_dst == NUM_NODES
        assert g.idtype == idtype and len(g) == 4
        for etype, ends in edges().items():
            assert adjacency(g[etype]) == torch.stack(ends).tolist()
            assert g.num_edges(etype) == 300
    assert set(g.canonical_etypes) == set(edges())


def test_a_block_keeps_its_two_sides():
    block = sampled()[0]
    g = HeteroGraph.from_dgl(block)
    assert HeteroGraph.from_dgl(block) is g
    assert g.num_src == {ntype: block.num_src_nodes(ntype) for ntype in block.srctypes}
    assert g.num_dst == {ntype: block.num_dst_nodes(ntype) for ntype in block.dsttypes}
    for etype in block.canonical_etypes:
        assert g[etype].csc().edge_ids is None  # the sampler's CSC, not sorted again
        assert adjacency(g[etype]) == [ends.tolist() for ends in block.edges(etype=etype)]


@pytest.mark.parametrize("idtype", support.IDTYPES)
def test_stack_is_the_relations_side_by_side(idtype):
    g = hetero_graph(idtype=idtype)
    stack = g.stack()
    assert g.stack() is stack and set(stack.etypes) == set(g)
    dsttypes = [etype[2] for etype in stack.etypes]
    assert dsttypes == sorted(dsttypes, key=dsttypes.index)
    src, dst = stack.graph.edges()
    first = [0, 0, 0]
    for etype, *sizes in zip(stack.etypes, stack.num_src, stack.num_dst, stack.num_edges):
        own = slice(first[2], first[2] + sizes[2])
        assert [(src[own] - first[0]).tolist(), (dst[own] - first[1]).tolist()] == adjacency(g[etype])
        first = [a + b for a, b in zip(first, sizes)]
    assert first == [stack.graph.num_src, stack.graph.num_dst, stack.graph.num_edges]


def test_relations_come_back_out_of_a_stack():
    g = hetero_graph()
    ordered = HeteroGraph({etype: g[etype] for etype in g})
    ordered.stack()
    moved = ordered.int()  # has only the stack
    assert moved._relations == {} and moved.device.type == "cpu"
    for etype in g:
        assert moved.num_edges(etype) == g.num_edges(etype)
        assert adjacency(moved[etype]) == adjacency(g[etype])
        assert (moved[etype].num_src, moved[etype].num_dst) == (g[etype].num_src, g[etype].num_dst)


def test_a_compact_stack_has_the_sources_that_are_read():
    """Only on the CPU, and only if less than three quarters of the sources are read."""
    few = Graph.from_edges(torch.tensor([40, 3, 40]), torch.tensor([1, 0, 2]), num_src=50, num_dst=60)
    g = HeteroGraph({WRITES: few, CITES: hetero_graph()[CITES]})
    stack = g.stack()
    assert stack.num_src == (2, 60) and stack.graph.num_src == 62
    assert stack.src_ids[0].tolist() == [3, 40] and stack.src_ids[1] is None
    moved = g.int()
    assert moved.stack().src_ids[0].dtype == torch.int32
    for etype in g:
        assert adjacency(moved[etype]) == adjacency(g[etype]) and moved[etype].num_src == g[etype].num_src
    conv = HeteroGraphConv({etype: GATConv(24, 6, 4, allow_zero_in_degree=True) for etype in g})
    x = features({"author": 50, "paper": 60})
    out = conv(g, {ntype: feat.requires_grad_() for ntype, feat in x.items()})["paper"]
    expected = sum(conv.mods[str(etype)](g[etype], (x[etype[0]], x["paper"])) for etype in g)
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)
    leaves = [*x.values(), *conv.parameters()]
    for ours, theirs in zip(*(torch.autograd.grad(y.sin().sum(), leaves) for y in (out, expected))):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_a_relation_without_edges_has_no_sources_in_the_stack():
    g = hetero_graph()
    empty = torch.zeros(2, 0, dtype=torch.int64)
    g = HeteroGraph({**{e: g[e] for e in g}, SHOWN: Graph.from_edge_index(empty, num_src=5, num_dst=60)})
    stack = g.stack()
    assert stack.num_src[stack.etypes.index(SHOWN)] == 0
    assert stack.num_dst[stack.etypes.index(SHOWN)] == 60


def test_a_stack_of_a_part_shares_the_whole_where_the_rest_is_empty():
    first, last = (HeteroGraph.from_dgl(block) for block in sampled())
    whole = last.stack()
    part = last.stack((WRITES, CITES, SHOWN))  # no author is a destination
    assert part.graph is whole.graph and WRITTEN not in part.etypes
    whole = first.stack()
    assert first.stack((WRITES, CITES)).graph is not whole.graph


def test_graphs_are_kept_and_saved():
    g = hetero_graph()
    g.stack()
    for again in (copy.deepcopy(g), pickle.loads(pickle.dumps(g))):
        assert again.num_src == g.num_src and adjacency(again[CITES]) == adjacency(g[CITES])
    file = io.BytesIO()
    torch.save(g, file)
    file.seek(0)
    assert adjacency(torch.load(file, weights_only=True)[WRITES]) == adjacency(g[WRITES])


def test_blocks_that_dgl_samples_wrongly_are_refused():
    """DGL samples them from int32 graphs on the CPU, from the second batch on."""
    sampler = dgl.dataloading.NeighborSampler([3, 4])
    g = dgl_graph(torch.int32)
    with pytest.raises(
        ValueError, match=r"g has a source node \d+, but \d+ source nodes; if it is a block, sample it from g.long"
    ):
        for i in range(20):
            for block in sampler.sample_blocks(g, {"paper": torch.randperm(60)[: 5 + i].int()})[2]:
                HeteroGraph.from_dgl(block)


def test_names_of_relations():
    g = hetero_graph()
    assert g["cites"] is g[CITES]
    with pytest.raises(KeyError, match="is no edge type"):
        g["sells"]
    twice = HeteroGraph({CITES: g[CITES], ("author", "cites", "paper"): g[WRITES]})
    with pytest.raises(KeyError, match="names several"):
        twice["cites"]


def test_an_operator_takes_the_only_relation():
    g = hetero_graph()
    one = HeteroGraph({CITES: g[CITES]})
    x = torch.randn(60, 8)
    assert torch.equal(halfgnn.ops.copy_u_sum(one, x), halfgnn.ops.copy_u_sum(g[CITES], x))
    assert torch.equal(halfgnn.ops.copy_u_sum(Block(one), x), halfgnn.ops.copy_u_sum(g[CITES], x))
    with pytest.raises(ValueError, match="4 edge types; expected one"):
        halfgnn.ops.copy_u_sum(g, x)


def test_wrong_heterographs():
    g = hetero_graph()
    with pytest.raises(ValueError, match="at least one"):
        HeteroGraph({})
    with pytest.raises(TypeError, match="no edge type"):
        HeteroGraph({"cites": g[CITES]})
    with pytest.raises(TypeError, match=r"expected a halfgnn\.Graph"):
        HeteroGraph({CITES: 3})
    with pytest.raises(TypeError, match="expected one dtype"):
        HeteroGraph({CITES: g[CITES], WRITES: g[WRITES].int()})
    with pytest.raises(ValueError, match=r"has num_src 50, but there are 60 nodes of type 'paper'"):
        HeteroGraph({CITES: g[CITES], ("paper", "x", "paper"): g[WRITES]})
    with pytest.raises(ValueError, match="num_nodes has no 'venue'"):
        HeteroGraph.from_edge_index_dict({SHOWN: torch.zeros(2, 3, dtype=torch.int64)}, {"paper": 4})
    with pytest.raises(ValueError, match="holds 9; expected indices"):
        HeteroGraph.from_edge_index_dict({CITES: torch.full((2, 3), 9)}, {"paper": 4})
    with pytest.raises(AttributeError, match="immutable"):
        g.num_src = {}
    with pytest.raises(TypeError, match="DGLGraph"):
        HeteroGraph.from_dgl(g)


@pytest.fixture(params=["first", "last"])
def projected(request, monkeypatch):
    """Whether sources are projected before they are gathered, or their sums afterwards."""
    monkeypatch.setattr(_relations, "_saves_to_project_last", lambda *args: request.param == "last")
    return request.param


# ---- HeteroGraphConv ---------------------------------------------------------------------------------------------------------


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
    monkeypatch.setattr(_relations, "_saves_to_project_last", lambda *args: False)
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
    real = _relations._saves_to_project_last
    monkeypatch.setattr(_relations, "_saves_to_project_last", lambda *args: found.append(real(*args)) or found[-1])
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


# ---- RGAT --------------------------------------------------------------------------------------------------------------------


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
    with pytest.raises(ValueError, match="in which no edge type ends"):
        RGAT(24, 32, 7, list(edges()), "venue")
    with pytest.raises(ValueError, match="norm is 'group'"):
        RGAT(24, 32, 7, list(edges()), "paper", norm="group")
    model = RGAT(24, 32, 7, list(edges()), "paper")
    g, x = hetero_graph(), features(NUM_NODES)
    with pytest.raises(ValueError, match="blocks has 1 graphs; expected 2"):
        model([g], x)
    with pytest.raises(
        TypeError, match=r"feats\['\w+'\] has dtype torch.float16 and the module's parameters torch.float32"
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
