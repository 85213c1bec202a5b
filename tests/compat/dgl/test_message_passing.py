"""Message passing of halfgnn.compat.dgl beside DGL's: built-in and user-defined functions, several edge types, dgl.ops."""

from __future__ import annotations

import pytest
import torch

from halfgnn.compat import dgl as ours
from halfgnn.compat.dgl import DGLError, cross_types
from halfgnn.compat.dgl import function as fn

theirs = pytest.importorskip("dgl")

NUM_NODES, NUM_EDGES = 12, 50
COUNTS = {"game": 5, "shop": 4, "user": 6}
ETYPES = [("shop", "sells", "game"), ("user", "follows", "user"), ("user", "plays", "game")]


def one_type():
    """The same graph of both, whose last node has no edges, with features that require gradients."""
    ends = torch.randint(NUM_NODES - 1, (NUM_EDGES,)), torch.randint(NUM_NODES - 1, (NUM_EDGES,))
    x, w = torch.randn(NUM_NODES, 4), torch.rand(NUM_EDGES, 4) + 0.5
    return [with_data(dgl.graph(ends, num_nodes=NUM_NODES), x, w) for dgl in (ours, theirs)]


def with_data(g, x, w):
    g.ndata["x"], g.edata["w"] = x.clone().requires_grad_(), w.clone().requires_grad_()
    g.ndata["z"] = g.ndata["x"].detach().abs() + 0.5
    return g


def several_types():
    edges = {
        etype: (torch.randint(COUNTS[etype[0]], (20,)), torch.randint(COUNTS[etype[2]], (20,))) for etype in ETYPES
    }
    graphs = [dgl.heterograph(edges, COUNTS) for dgl in (ours, theirs)]
    for ntype, count in COUNTS.items():
        x = torch.randn(count, 4)
        for g in graphs:
            g.nodes[ntype].data["x"] = x.clone().requires_grad_()
    for etype in ETYPES:
        w = torch.rand(20, 4) + 0.5
        for g in graphs:
            g.edges[etype].data["w"] = w.clone().requires_grad_()
    return graphs


def check(compute, graphs, names=("x", "w")):
    """compute(g, functions) is the same for both, and so are gradients of the features `names`."""
    mine, other = (compute(g, functions) for g, functions in zip(graphs, (fn, theirs.function)))
    torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-5)
    weights = torch.randn(mine.shape)
    gradients = []
    for g, result in zip(graphs, (mine, other)):
        leaves = [g.ndata["x"], *[g.edata["w"]] * ("w" in names)]
        leaves = [t for leaf in leaves for t in (leaf.values() if isinstance(leaf, dict) else [leaf])]
        gradients.append(torch.autograd.grad((result * weights).sum(), leaves, allow_unused=True))
    for own, expected in zip(*gradients):
        if expected is not None:  # DGL leaves out gradients that are zero
            torch.testing.assert_close(own, expected, rtol=1e-4, atol=1e-5)


def message(functions, name):
    if name.startswith("copy"):
        return getattr(functions, name)("x" if name == "copy_u" else "w", "m")
    lhs, _, rhs = name.split("_")
    return getattr(functions, name)("w" if lhs == "e" else "x", "w" if rhs == "e" else "z", "m")


@pytest.mark.parametrize("reduce", ["sum", "mean", "max", "min"])
@pytest.mark.parametrize("name", ["copy_u", "copy_e", "u_mul_e", "u_sub_e", "e_add_u", "e_sub_u", "u_div_v", "v_dot_e"])
def test_update_all(name, reduce):
    def compute(g, functions):
        g.update_all(message(functions, name), getattr(functions, reduce)("m", "y"))
        return g.ndata["y"]

    check(compute, one_type())


@pytest.mark.parametrize("name", ["copy_u", "u_dot_v", "e_div_v", "v_sub_u"])
def test_apply_edges(name):
    def compute(g, functions):
        g.apply_edges(message(functions, name))
        return g.edata["m"]

    check(compute, one_type())


def in_order(nodes):
    """A reduce function that depends on the order of messages and on the node's own feature."""
    y = nodes.data["x"]
    for place in range(nodes.mailbox["m"].shape[1]):
        y = torch.tanh(y + 2 * nodes.mailbox["m"][:, place])
    assert nodes.mailbox["m"].shape[0] == nodes.batch_size() == len(nodes.nodes())
    return {"y": y}


def of_both_ends(edges):
    src, dst, ids = edges.edges()
    assert len(edges) == src.numel() == dst.numel() == ids.numel()
    return {
        "m": edges.src["x"] * edges.data["w"] + edges.dst["x"] + src.unsqueeze(1) - dst.unsqueeze(1) + ids.unsqueeze(1)
    }


def test_functions_of_users():
    def compute(g, functions):
        g.update_all(of_both_ends, in_order, lambda nodes: {"y": nodes.data["y"] + nodes.data["x"]})
        g.update_all(of_both_ends, functions.max("m", "a"))
        g.update_all(functions.u_mul_e("x", "w", "m"), in_order)
        g.apply_nodes(lambda nodes: {"b": nodes.data["y"] * nodes.nodes().unsqueeze(1)})
        g.apply_edges(of_both_ends)
        return torch.cat([g.ndata["y"], g.ndata["a"], g.ndata["b"], g.edata["m"]])

    check(compute, one_type())


def test_some_edges_and_nodes():
    edges = torch.tensor([3, 9, 30, 31, 44])

    def compute(g, functions):
        results = []
        for reduce in (functions.sum("m", "x"), in_order):
            with g.local_scope():
                g.send_and_recv(edges, functions.u_mul_e("x", "w", "m"), reduce)
                g.pull([1, 5, NUM_NODES - 1], functions.copy_u("x", "m"), functions.mean("m", "x"))
                g.push(
                    [2, 7],
                    lambda edges: {"m": edges.src["x"] * edges.data["w"]},
                    reduce,
                    lambda nodes: {"x": nodes.data["x"] + nodes.nodes().unsqueeze(1)},
                )
                g.apply_edges(functions.u_add_e("x", "w", "w"), edges)
                g.apply_edges(
                    lambda edges: {"w": edges.data["w"] + edges.dst["x"]}, ([*g.edges()[0][:2]], [*g.edges()[1][:2]])
                )
                results += [g.ndata["x"], g.edata["w"]]
        return torch.cat(results)

    graphs = one_type()
    check(compute, graphs)
    mine = graphs[0]
    of_one = mine.out_edges(2, "all")
    mine.push(2, lambda edges: {"m": torch.stack(edges.edges(), 1)}, lambda nodes: {"seen": nodes.mailbox["m"].sum(1)})
    assert mine.ndata["seen"].sum(0).tolist() == [int(ends.sum()) for ends in of_one]
    for nodes in (ours.ALL, [1, 4, 5, 8]):
        found = [g.filter_nodes(lambda nodes: nodes.data["x"][:, 0] > 0, nodes) for g in graphs]
        assert torch.equal(*found)
    assert torch.equal(
        *[g.filter_edges(lambda edges: edges.src["x"][:, 0] > edges.data["w"][:, 0], edges) for g in graphs]
    )


@pytest.mark.parametrize("reduce", ["sum", "max"])
def test_all_edge_types_at_once(reduce):
    def compute(g, functions):
        message = (
            functions.u_mul_e("x", "w", "m") if reduce == "sum" else functions.copy_u("x", "m")
        )  # DGL fails otherwise
        g.update_all(message, getattr(functions, reduce)("m", "y"))
        g.apply_edges(functions.u_add_v("x", "x", "s"))
        return torch.cat(
            [*(g.ndata["y"][ntype] for ntype in ("game", "user")), *(g.edata["s"][etype] for etype in ETYPES)]
        )

    check(compute, several_types())


@pytest.mark.parametrize("cross", ["sum", "mean", "min", "max", "stack", lambda results: results[0] * results[1]])
def test_edge_types_with_functions_of_their_own(cross):
    def compute(g, functions):
        passed = {
            "plays": (functions.u_mul_e("x", "w", "m"), functions.sum("m", "y")),
            ("shop", "sells", "game"): (
                lambda edges: {"m": edges.src["x"]},
                in_order,
                lambda nodes: {"y": 2 * nodes.data["y"]},
            ),
            "follows": (functions.copy_u("x", "m"), functions.mean("m", "y")),
        }
        g.multi_update_all(passed, cross, lambda nodes: {"y": nodes.data["y"] + 1})
        return torch.cat([g.nodes[ntype].data["y"].flatten() for ntype in ("game", "user")])

    check(compute, several_types())


def test_extremes_leave_out_edge_types_without_edges():
    g = ours.heterograph({("a", "r", "b"): ([0, 1], [0, 1]), ("c", "s", "b"): ([0], [0])}, {"a": 2, "b": 3, "c": 1})
    g.srcdata["x"] = {"a": torch.tensor([-1.0, -2.0]), "c": torch.tensor([-3.0])}
    copy, greatest = fn.copy_u("x", "m"), fn.max("m", "y")
    g.update_all(copy, greatest)
    assert g.dstdata["y"].tolist() == [-1, -2, 0]
    g.multi_update_all({"r": (copy, greatest), "s": (copy, greatest)}, "max")
    assert g.dstdata["y"].tolist() == [-1, -2, 0]
    with pytest.raises(NotImplementedError, match="mean over several edge types"):
        g.update_all(copy, fn.mean("m", "y"))
    with pytest.raises(DGLError, match="cross_reducer is 'median'"):
        cross_types.merged([{}, {}], "median", [0, 1])


def test_halves_are_summed_in_fp32():
    g = ours.graph((torch.zeros(5000, dtype=torch.int64), torch.zeros(5000, dtype=torch.int64)))
    g.ndata["x"] = torch.ones(1, 2, dtype=torch.bfloat16)
    g.update_all(fn.copy_u("x", "m"), fn.sum("m", "y"))
    assert g.ndata["y"].dtype == torch.bfloat16 and g.ndata["y"].tolist() == [[4992.0, 4992.0]]


@pytest.mark.parametrize("norm_by", ["dst", "src"])
@pytest.mark.parametrize("eids", [None, [0, 3, 5, 8, 20]])
def test_edge_softmax(norm_by, eids):
    graphs = one_type()
    ids = ours.ALL if eids is None else torch.tensor(eids)
    logits = [(g.edata["w"] if eids is None else g.edata["w"][ids]) for g in graphs]
    results = [dgl.ops.edge_softmax(g, x, ids, norm_by) for dgl, g, x in zip((ours, theirs), graphs, logits)]
    torch.testing.assert_close(*results)
    hetero = several_types()
    found, expected = (
        dgl.ops.edge_softmax(g, {etype: g.edges[etype].data["w"] for etype in ETYPES}, norm_by=norm_by)
        for dgl, g in zip((ours, theirs), hetero)
    )
    for etype in ETYPES:
        torch.testing.assert_close(found[etype], expected[etype])


def test_segments_and_products():
    lengths, x = torch.tensor([3, 0, 5, 2]), torch.randn(10, 4)
    torch.testing.assert_close(ours.ops.segment_softmax(lengths, x), theirs.ops.segment_softmax(lengths, x))
    weights, which = torch.randn(4, 4, 3), torch.randint(4, (10,))
    torch.testing.assert_close(ours.ops.segment_mm(x, weights, lengths), theirs.ops.segment_mm(x, weights, lengths))
    torch.testing.assert_close(
        ours.ops.gather_mm(x, weights, idx_b=which), theirs.ops.gather_mm(x, weights, idx_b=which)
    )
    names = [name for name in vars(theirs.ops) if callable(getattr(theirs.ops, name)) and name[0] != "_"]
    lacking = {name for name in names if not hasattr(ours.ops, name)}
    assert lacking <= {"reshape_lhs_rhs"}, lacking


def test_traversals():
    tree = torch.randint(10**6, (11,)) % torch.arange(1, 12)
    edges = torch.cat([tree, torch.arange(3)]), torch.cat([torch.arange(1, 12), torch.arange(3) + 5])
    graphs = [dgl.graph(edges) for dgl in (ours, theirs)]
    for name, args in (("bfs_nodes_generator", [[0]]), ("topological_nodes_generator", [])):
        found, expected = (
            [set(ids.tolist()) for ids in getattr(dgl, name)(g, *args)] for dgl, g in zip((ours, theirs), graphs)
        )
        assert found == expected
    for dgl, g in zip((ours, theirs), graphs):
        g.ndata["x"] = torch.arange(12.0)
        functions = dgl.function
        dgl.prop_nodes_topo(g, functions.copy_u("x", "m"), functions.sum("m", "x"))
    assert torch.equal(graphs[0].ndata["x"], graphs[1].ndata["x"])


def test_compiled():
    g, _ = one_type()

    def compute(x, w):
        with g.local_scope():
            g.ndata["x"], g.edata["w"] = x, w
            g.update_all(fn.u_mul_e("x", "w", "m"), fn.sum("m", "y"))
            return g.ndata["y"]

    args = g.ndata["x"], g.edata["w"]
    compiled = torch.compile(compute, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(*args), compute(*args))


def test_errors_name_what_is_wrong():
    g, _ = one_type()
    hetero, _ = several_types()
    wrong = [
        (lambda: g.update_all(fn.copy_u("q", "m"), fn.sum("m", "y")), "have no feature 'q'"),
        (lambda: g.update_all(fn.copy_u("x", "m"), fn.sum("n", "y")), "expected one name"),
        (lambda: g.update_all(fn.copy_u("x", "m"), fn.copy_u("m", "y")), "the reduce function is copy_u"),
        (lambda: hetero.update_all(of_both_ends, in_order), "expected etype"),
        (lambda: hetero.apply_edges(of_both_ends), "expected etype"),
    ]
    for call, match in wrong:
        with pytest.raises(DGLError, match=match):
            call()
    g.ndata["n"] = torch.arange(NUM_NODES)
    for call in (fn.copy_u("n", "m"), fn.u_mul_e("n", "w", "m")):
        with pytest.raises(TypeError, match=r"the feature .n. has dtype torch\.int64"):
            g.update_all(call, fn.sum("m", "y"))
    with pytest.raises(TypeError, match=r"the feature .n. has dtype torch\.int64"):
        g.apply_edges(fn.u_add_v("x", "n", "y"))


def test_what_evaluation_kept_serves_training():
    g = ours.graph(("csc", ([0, 1, 3], [0, 0, 1], [2, 0, 1])))
    g.ndata["x"] = torch.ones(2, 3)
    part = ours.node_subgraph(g, [1, 0])
    with torch.inference_mode():
        part.update_all(fn.u_add_v("x", "x", "m"), fn.sum("m", "y"))
        part.update_all(lambda edges: {"m": edges.src["x"]}, in_order)
        part.has_edges_between(0, 1)
    weight = torch.ones(3, requires_grad=True)
    part.ndata["h"] = part.ndata["x"] * weight
    part.update_all(lambda edges: {"m": edges.src["h"]}, fn.sum("m", "y"))
    part.ndata["y"].sum().backward()
    assert weight.grad.tolist() == [3, 3, 3]


@pytest.mark.parametrize("reduce, infinity", [("max", -torch.inf), ("min", torch.inf)])
def test_infinities_over_several_edge_types_stay(reduce, infinity):
    """DGL makes 0 of them, because it marks nodes without edges by infinities; only these nodes get 0 here."""
    g = ours.heterograph({("a", "r", "a"): ([0, 1], [0, 1]), ("a", "s", "a"): ([0, 2], [0, 2])}, {"a": 4})
    g.ndata["x"] = torch.tensor([infinity, -infinity, torch.nan, 5.0])
    copy, extreme = fn.copy_u("x", "m"), getattr(fn, reduce)("m", "y")
    expected = [str(x) for x in [infinity, -infinity, torch.nan, 0.0]]
    g.update_all(copy, extreme)
    assert [str(x) for x in g.ndata["y"].tolist()] == expected
    g.multi_update_all({"r": (copy, extreme), "s": (copy, extreme)}, reduce)
    assert [str(x) for x in g.ndata["y"].tolist()] == expected
