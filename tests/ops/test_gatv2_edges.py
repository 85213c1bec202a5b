"""What edges add to GATv2: the accuracy rule of support.py, masks, and what every operator must do besides."""

import pytest
import torch

import halfgnn
from halfgnn import ops, reference
from halfgnn.ops.attention import _terms
from tests import support
from tests.support import DTYPES, GRAPHS, HALVES, IDTYPES, make_graph, randn
from tests.support_attention import fixed_seed
from tests.support_dispatch import Made, beside_fakes, kept
from tests.support_gatv2_edges import BIAS, COLUMNS, KINDS, NODES, ROWS, call, check, operands

every_kind = pytest.mark.parametrize("terms", KINDS.values(), ids=KINDS)
fused_only = pytest.mark.skipif(support.SIMULATED, reason="of the CPU's kernels: fp64, fakes, threads")


# ---- the rule ----------------------------------------------------------------------------------------------------------------


@every_kind
@pytest.mark.parametrize("device,dtype", support.devices_and(DTYPES))
@pytest.mark.parametrize("columns,dim", [(1, 8), (3, 1), (8, 33), (16, 32), (17, 7), (33, 16)])
def test_widths(columns, dim, dtype, device, terms):
    g = make_graph("bipartite", IDTYPES[dim % 2], device, identity=dim % 3 == 0)
    check(g, operands(terms, g, support.HEADS[columns % 4], dim, columns, dtype, device))


@every_kind
@pytest.mark.parametrize("device,dtype", support.devices_and([*HALVES, torch.float32]))
def test_dropout(dtype, device, terms):
    g = make_graph("skewed", torch.int64, device)
    check(g, operands(terms, g, 6, 16, 5, dtype, device), 0.4)


@pytest.mark.parametrize("terms", [BIAS, BIAS + ROWS, BIAS + COLUMNS], ids=["bias", "rows", "columns"])
@pytest.mark.parametrize("name", GRAPHS)
def test_graphs(name, terms, device):
    for identity in (False, True):
        g = make_graph(name, IDTYPES[identity], device, identity)
        for dtype in (torch.float16, torch.bfloat16, torch.float32):
            check(g, operands(terms, g, 4, 16, 6, dtype, device), 0.3)


@pytest.mark.parametrize("terms", [BIAS, ROWS, COLUMNS], ids=["bias", "rows", "columns"])
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_hub(dtype, terms, device):
    g = support.hub_graph(num_edges=5_000 if support.SIMULATED else 30_000, device=device)
    check(g, operands(terms, g, 2, 16, 16, dtype, device), sums=100_000)


@pytest.mark.parametrize("layout", [support.misaligned, support.column_major, support.every_other])
def test_memory_layouts(layout, device):
    g = make_graph("bipartite", torch.int64, device)
    for terms in (BIAS, BIAS + ROWS, BIAS + COLUMNS):
        tensors = operands(terms, g, 3, 16, 5, torch.float16, device)
        check(g, {name: layout(x) for name, x in tensors.items()})


@fused_only
@every_kind
def test_gradcheck(terms):
    g = make_graph("duplicates")
    tensors = {name: x.requires_grad_() for name, x in operands(terms, g, 2, 3, 2, torch.float64).items()}
    with fixed_seed():
        for p in (0.0, 0.4):
            torch.autograd.gradcheck(
                lambda *x, p=p: call(ops.gatv2_attention, g, dict(zip(tensors, x)), p), list(tensors.values())
            )


@pytest.mark.parametrize("terms", [BIAS, BIAS + COLUMNS], ids=["bias", "columns"])
@pytest.mark.parametrize("device,dtype", support.devices_and(DTYPES))
def test_masks(dtype, device, terms):
    torch.manual_seed(2)
    dst = torch.cat([torch.zeros(3), torch.ones(2000), torch.full((900,), 2)]).long()
    g = halfgnn.Graph.from_edges((torch.arange(len(dst)) % 5).to(device), dst.to(device), num_src=5, num_dst=4)
    tensors = operands(terms, g, 2, 8, 3, dtype, device)
    removed = torch.rand(len(dst), 2, device=device) < 0.9
    removed[dst.to(device) == 2] = True
    tensors["edge_bias"] = tensors["edge_bias"].masked_fill(removed, -torch.inf)
    leaves = {name: x.clone().requires_grad_() for name, x in tensors.items()}
    out = call(ops.gatv2_attention, g, leaves)
    out.square().sum().backward()
    assert (out[2:] == 0).all() and out[:2].any()
    for name, leaf in leaves.items():
        assert leaf.grad.isfinite().all(), name
    truth = call(reference.gatv2_attention, g.to("cpu"), {name: x.cpu().double() for name, x in tensors.items()})
    tolerance = 4 * torch.finfo(dtype).eps
    torch.testing.assert_close(out.detach().cpu().double(), truth, rtol=tolerance, atol=tolerance)


# ---- the other requirements of every operator ------------------------------------------------------------------------------------


def test_the_composition(device):
    """What runs where there is no kernel."""
    g = make_graph("skewed", torch.int64, device)
    for terms in KINDS.values():
        tensors = operands(terms, g, 3, 8, 5, torch.float32, device)
        grad = randn(g.num_dst, 3, 8, dtype=torch.float32, device=device)

        def run(*given, names=tuple(tensors)):
            return call(ops.gatv2_attention, g, dict(zip(names, given)))

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(_terms, "LIMITS", {})
            composed = support.evaluate(run, list(tensors.values()), grad)
        fused = support.evaluate(run, list(tensors.values()), grad)
        for x, y in zip((composed[0], *composed[1]), (fused[0], *fused[1])):
            torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-4)


def test_return_weights(device):
    g = make_graph("bipartite", torch.int64, device)
    for terms in KINDS.values():
        tensors = operands(terms, g, 2, 8, 3, torch.float32, device)
        out, weights = call(ops.gatv2_attention, g, tensors, return_weights=True)
        torch.testing.assert_close(ops.u_mul_e_sum(g, tensors["feat_src"], weights.unsqueeze(-1)), out)


@pytest.mark.parametrize("terms", [COLUMNS, BIAS + COLUMNS], ids=["columns", "columns_bias"])
def test_nothing_of_all_edges_and_features_is_made(terms):
    """Neither saved nor materialized on the way, forward or backward, with dropout: an edge has columns, and numbers of heads."""
    g = make_graph("skewed")
    heads, columns = 4, 3
    tensors = {n: x.requires_grad_() for n, x in operands(terms, g, heads, 32, columns, torch.bfloat16).items()}
    given = {x.data_ptr() for x in tensors.values()}
    found = [shape for at, shape in kept(lambda: call(ops.gatv2_attention, g, tensors)) if at not in given]
    assert all(g.num_edges not in shape[:1] or len(shape) == 1 for shape in found), found
    with Made() as made:
        call(ops.gatv2_attention, g, tensors, 0.4).square().sum().backward()
    of_edges = {shape for shape in made.shapes if g.num_edges in shape}
    assert of_edges <= {(g.num_edges,), (g.num_edges, columns), (g.num_edges, heads)}, of_edges


@fused_only
@every_kind
def test_fake_kernels(terms):
    g = make_graph("skewed")
    for dtype in (torch.float16, torch.float32):
        tensors = operands(terms, g, 3, 4, 5, dtype, bias_dtype=torch.float32)
        called = beside_fakes(
            lambda *x, names=tuple(tensors): call(ops.gatv2_attention, g, dict(zip(names, x)), 0.5), *tensors.values()
        )
        assert {"gatv2_attention", "gatv2_attention_backward"} <= called


@fused_only
def test_results_do_not_depend_on_threads():
    g = make_graph("skewed")
    g = halfgnn.Graph.from_edges(*(x.repeat(20) for x in g.edges()), num_src=200, num_dst=200)
    tensors = operands(BIAS + COLUMNS, g, 4, 32, 16, torch.bfloat16)
    grad = randn(g.num_dst, 4, 32, dtype=torch.bfloat16)
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            out, grads = support.evaluate(
                lambda *x: call(ops.gatv2_attention, g, dict(zip(tensors, x))), list(tensors.values()), grad
            )
            results.append((out, *grads))
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        assert all(torch.equal(x, y) for x, y in zip(results[0], other))


def test_autocast(device):
    g = make_graph("bipartite", torch.int64, device)
    tensors = {n: x.requires_grad_() for n, x in operands(BIAS + COLUMNS, g, 2, 8, 3, torch.float32, device).items()}
    with torch.autocast(device, torch.bfloat16):
        out = call(ops.gatv2_attention, g, tensors)
        (out.float() ** 2).sum().backward()
    rounded = {name: x if name == "edge_bias" else x.detach().bfloat16() for name, x in tensors.items()}
    support.assert_same(out.detach(), call(ops.gatv2_attention, g, rounded).detach())
    assert all(x.grad.dtype == torch.float32 for x in tensors.values())


@fused_only
def test_compiled_and_vmapped():
    g = make_graph("bipartite")
    g.csc(), g.csr()
    tensors = operands(BIAS + COLUMNS, g, 2, 8, 3, torch.float32)

    def run(*x):
        return call(ops.gatv2_attention, g, dict(zip(tensors, x)))

    grad = randn(g.num_dst, 2, 8, dtype=torch.float32)
    eager = support.evaluate(run, list(tensors.values()), grad)
    compiled = support.evaluate(torch.compile(run, fullgraph=True), list(tensors.values()), grad)
    for x, y in zip((eager[0], *eager[1]), (compiled[0], *compiled[1])):
        torch.testing.assert_close(x, y, rtol=1e-5, atol=1e-5)
    first, *rest = tensors.values()
    batch = torch.stack([first, first * 2])
    mapped = torch.vmap(run, in_dims=(0, *[None] * len(rest)))(batch, *rest)
    for x, y in zip(mapped, batch):
        torch.testing.assert_close(x, run(y, *rest), rtol=1e-5, atol=1e-5)


def test_errors(device):
    g = make_graph("bipartite", torch.int64, device)
    x = operands(BIAS + COLUMNS, g, 2, 8, 3, torch.float32, device)
    nodes, bias, feat, weight = [x[name] for name in NODES], x["edge_bias"], x["edge_feat"], x["edge_weight"]
    cases = [
        ({"edge_bias": bias[:, :1]}, ValueError, r"edge_bias has shape \(300, 1\); expected \(edges, heads\)"),
        ({"edge_weight": weight}, ValueError, "edge_weight is given, but edge_feat is None"),
        ({"edge_feat": feat}, ValueError, r"edge_feat has shape \(300, 3\); expected \(edges, heads, dim\) = \(300, 2, 8\)"),
        ({"edge_feat": feat[1:], "edge_weight": weight}, ValueError, "edge_feat has shape .* one per edge"),
        ({"edge_feat": feat[:, 0], "edge_weight": weight}, ValueError, r"edge_feat has shape \(300,\); expected \(edges"),
        ({"edge_feat": feat, "edge_weight": weight[1:]}, ValueError, r"edge_weight has shape \(15, 3\); .* = \(16, 3\)"),
        ({"edge_feat": feat.half(), "edge_weight": weight}, TypeError, "edge_feat has dtype torch.float16"),
        ({"edge_feat": feat, "edge_weight": weight.double()}, TypeError, "edge_weight has dtype torch.float64"),
    ]  # fmt: skip
    for options, error, message in cases:
        with pytest.raises(error, match=message):
            ops.gatv2_attention(g, *nodes, **options)
