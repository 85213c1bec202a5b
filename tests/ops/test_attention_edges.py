"""What edges add to dot attention: the accuracy rule of support.py, masks, and what every operator must do besides."""

import pytest
import torch

import halfgnn
from halfgnn import ops, reference
from halfgnn.ops.attention import _terms, dot
from tests import support
from tests.support import DTYPES, GRAPHS, HALVES, IDTYPES, make_graph, randn
from tests.support_attention import fixed_seed
from tests.support_attention_edges import ALL, BIAS, BOTH, KEYS, ONE_ROW, ONE_WEIGHT, ROWS, SCALE, TERMS, VALUES, check
from tests.support_dispatch import Made, beside_fakes, kept

every_kind = pytest.mark.parametrize("terms", TERMS, ids=lambda terms: terms.name)
fused_only = pytest.mark.skipif(support.SIMULATED, reason="CUDA's back end has no kernels for columns beside rows")


def dropped(device, p, terms):
    """The composition, which CUDA has of columns beside rows, draws other numbers."""
    return 0.0 if support.has_cuda_kernels(device) and terms is ALL else p


# ---- the rule ----------------------------------------------------------------------------------------------------------------


@every_kind
@pytest.mark.parametrize("device,dtype", support.devices_and(DTYPES))
@pytest.mark.parametrize("columns,dim", [(1, 8), (3, 1), (8, 33), (16, 32), (17, 7), (33, 16)])
def test_widths(columns, dim, dtype, device, terms):
    g = make_graph("bipartite", IDTYPES[dim % 2], device, identity=dim % 3 == 0)
    heads = support.HEADS[columns % 4]
    check(terms, g, terms.operands(g, heads, dim, columns, dtype, device))


@every_kind
@pytest.mark.parametrize("device,dtype", support.devices_and([*HALVES, torch.float32]))
def test_dropout(dtype, device, terms):
    g = make_graph("skewed", torch.int64, device)
    check(terms, g, terms.operands(g, 6, 16, 5, dtype, device), dropped(device, 0.4, terms))


@pytest.mark.parametrize("identity", [False, True], ids=["edge_ids", "no_edge_ids"])
@pytest.mark.parametrize("idtype", IDTYPES, ids=str)
@pytest.mark.parametrize("name", GRAPHS)
def test_graphs(name, idtype, identity, device):
    g = make_graph(name, idtype, device, identity)
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        for terms in (ALL, BIAS, ROWS):
            check(terms, g, terms.operands(g, 4, 16, 6, dtype, device), dropped(device, 0.3, terms))


@pytest.mark.parametrize("terms", [BIAS, BOTH, ROWS], ids=lambda terms: terms.name)
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_hub(dtype, terms, device):
    g = support.hub_graph(num_edges=5_000 if support.SIMULATED else 30_000, device=device)
    check(terms, g, terms.operands(g, 2, 16, 16, dtype, device), sums=100_000)


@pytest.mark.parametrize("device,dtype", support.devices_and(HALVES))
def test_half_features_with_an_fp32_bias(dtype, device):
    g = make_graph("skewed", torch.int32, device)
    for terms in (BIAS, VALUES):
        check(terms, g, terms.operands(g, 4, 24, 5, dtype, device, bias_dtype=torch.float32))


def test_wide_heads(device):
    """CUDA's kernels take heads of up to 512 bytes."""
    g = make_graph("skewed", torch.int64, device)
    for dim in (128, 131):
        check(BIAS, g, BIAS.operands(g, 1, dim, 0, torch.float32, device))


@pytest.mark.parametrize("layout", [support.misaligned, support.column_major, support.every_other])
def test_memory_layouts(layout, device):
    g = make_graph("bipartite", torch.int64, device)
    for terms in (ALL, BIAS, ROWS):
        operands = terms.operands(g, 3, 16, 5, torch.float16, device)
        check(terms, g, {name: layout(x) for name, x in operands.items()})


@fused_only
@every_kind
def test_gradcheck(terms):
    g = make_graph("duplicates")
    tensors = {name: x.requires_grad_() for name, x in terms.operands(g, 2, 3, 2, torch.float64).items()}
    with fixed_seed():
        for p in (0.0, 0.4):
            torch.autograd.gradcheck(
                lambda *x, p=p: terms.call(ops.dot_attention, g, dict(zip(tensors, x)), p), list(tensors.values())
            )


def test_weights_of_three_dimensions(device):
    g = make_graph("bipartite", torch.int64, device)
    tensors = BOTH.operands(g, 3, 8, 5, torch.float32, device)
    out = BOTH.call(ops.dot_attention, g, tensors)
    for name in ("edge_key_weight", "edge_value_weight"):
        tensors[name] = tensors[name].view(3, 8, 5)
    assert torch.equal(out, BOTH.call(ops.dot_attention, g, tensors))


def test_features_of_no_columns_add_nothing(device):
    g = make_graph("bipartite", torch.int64, device)
    tensors = BOTH.operands(g, 2, 8, 0, torch.float32, device)
    nodes = [tensors[name] for name in ("query", "key", "value")]
    assert torch.equal(BOTH.call(ops.dot_attention, g, tensors), ops.dot_attention(g, *nodes, SCALE))


# ---- masks -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("terms", [BIAS, VALUES], ids=lambda terms: terms.name)
@pytest.mark.parametrize("device,dtype", support.devices_and(DTYPES))
def test_masks(dtype, device, terms):
    """A bias of -inf removes an edge; a row of removed edges gives 0, and gradients stay finite. Rows pass a tile's length."""
    torch.manual_seed(2)
    dst = torch.cat([torch.zeros(3), torch.ones(2000), torch.full((900,), 2)]).long()
    g = halfgnn.Graph.from_edges((torch.arange(len(dst)) % 5).to(device), dst.to(device), num_src=5, num_dst=4)
    tensors = terms.operands(g, 2, 8, 3, dtype, device)
    removed = torch.rand(len(dst), 2, device=device) < 0.9
    removed[dst.to(device) == 2] = True
    tensors["edge_bias"] = tensors["edge_bias"].masked_fill(removed, -torch.inf)
    leaves = {name: x.clone().requires_grad_() for name, x in tensors.items()}
    out, weights = terms.call(ops.dot_attention, g, leaves, return_weights=True)
    assert (weights[removed] == 0).all()
    (out.square().sum() + weights.sum()).backward()
    assert (out[2:] == 0).all() and out[:2].any()
    for name, leaf in leaves.items():
        assert leaf.grad.isfinite().all(), name
    assert (leaves["edge_bias"].grad[removed] == 0).all()
    truth = terms.call(reference.dot_attention, g.to("cpu"), {name: x.cpu().double() for name, x in tensors.items()})
    tolerance = 4 * torch.finfo(dtype).eps
    torch.testing.assert_close(out.detach().cpu().double(), truth, rtol=tolerance, atol=tolerance)


# ---- the other requirements of every operator ------------------------------------------------------------------------------------


def test_the_composition(device):
    """What runs where there is no kernel."""
    g = make_graph("skewed", torch.int64, device)
    for terms in TERMS:
        tensors = terms.operands(g, 3, 8, 5, torch.float32, device)
        names = list(tensors)
        grad = randn(g.num_dst, 3, 8, dtype=torch.float32, device=device)

        def run(*given, terms=terms, names=names):
            return terms.call(ops.dot_attention, g, dict(zip(names, given)))

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(_terms, "LIMITS", {})
            composed = support.evaluate(run, list(tensors.values()), grad)
        fused = support.evaluate(run, list(tensors.values()), grad)
        for x, y in zip((composed[0], *composed[1]), (fused[0], *fused[1])):
            torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("terms", [BIAS, BOTH, ALL], ids=lambda terms: terms.name)
def test_return_weights(terms, device):
    g = make_graph("bipartite", torch.int64, device)
    tensors = {name: x.requires_grad_() for name, x in terms.operands(g, 2, 8, 3, torch.float32, device).items()}
    out, weights = terms.call(ops.dot_attention, g, tensors, return_weights=True)
    assert weights.shape == (g.num_edges, 2)
    sums = ops.copy_e_sum(g, weights)
    torch.testing.assert_close(sums, (g.in_degrees() > 0).float().unsqueeze(1).expand_as(sums))
    if terms is BIAS:
        torch.testing.assert_close(ops.u_mul_e_sum(g, tensors["value"], weights.unsqueeze(-1)), out)
    torch.autograd.grad(weights.square().sum(), tensors["query"])


@pytest.mark.parametrize("terms", [BOTH, ONE_WEIGHT, KEYS, VALUES], ids=lambda terms: terms.name)
def test_nothing_of_all_edges_and_features_is_made(terms):
    """Neither saved nor materialized on the way, forward or backward, with dropout: an edge has columns, and numbers of heads."""
    g = make_graph("skewed")
    heads, columns = 4, 3
    tensors = {name: x.requires_grad_() for name, x in terms.operands(g, heads, 32, columns, torch.bfloat16).items()}
    given = {x.data_ptr() for x in tensors.values()}
    found = [shape for at, shape in kept(lambda: terms.call(ops.dot_attention, g, tensors)) if at not in given]
    assert all(g.num_edges not in shape[:1] or len(shape) == 1 for shape in found), found
    with Made() as made:
        terms.call(ops.dot_attention, g, tensors, 0.4).square().sum().backward()
    of_edges = {shape for shape in made.shapes if g.num_edges in shape}
    assert of_edges <= {(g.num_edges,), (g.num_edges, columns), (g.num_edges, heads)}, of_edges


@fused_only
@every_kind
def test_fake_kernels(terms):
    g = make_graph("skewed")
    for dtype in (torch.float16, torch.float32):
        tensors = terms.operands(g, 3, 4, 5, dtype, bias_dtype=torch.float32)
        called = beside_fakes(
            lambda *x, names=tuple(tensors): terms.call(ops.dot_attention, g, dict(zip(names, x)), 0.5),
            *tensors.values(),
        )
        assert {"dot_attention", "dot_attention_backward"} <= called


@fused_only
def test_results_do_not_depend_on_threads():
    g = make_graph("skewed")
    g = halfgnn.Graph.from_edges(*(x.repeat(20) for x in g.edges()), num_src=200, num_dst=200)
    tensors = list(ALL.operands(g, 4, 32, 16, torch.bfloat16).items())
    grad = randn(g.num_dst, 4, 32, dtype=torch.bfloat16)
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            names = [name for name, _ in tensors]
            raw = support.evaluate(
                lambda *x, names=names: ALL.call(ops.dot_attention, g, dict(zip(names, x))),
                [x for _, x in tensors],
                grad,
            )
            results.append((raw[0], *raw[1]))
    finally:
        torch.set_num_threads(before)
    # PyTorch's matrix products of projections may differ in their last bits.
    for other in results[1:]:
        for name, x, y in zip(("out", *names), results[0], other):
            assert torch.equal(x, y) or name in ("edge_key_weight", "edge_value_weight"), name


def test_autocast(device):
    g = make_graph("bipartite", torch.int64, device)
    tensors = {name: x.requires_grad_() for name, x in ALL.operands(g, 2, 8, 3, torch.float32, device).items()}
    with torch.autocast(device, torch.bfloat16):
        out = ALL.call(ops.dot_attention, g, tensors)
        (out.float() ** 2).sum().backward()
    assert out.dtype == torch.bfloat16
    rounded = {name: x if name == "edge_bias" else x.detach().bfloat16() for name, x in tensors.items()}
    support.assert_same(out.detach(), ALL.call(ops.dot_attention, g, rounded).detach())
    assert all(x.grad.dtype == torch.float32 for x in tensors.values())


def test_no_gradients_give_the_same(device):
    g = make_graph("bipartite", torch.int64, device)
    for terms in TERMS:
        tensors = terms.operands(g, 2, 8, 3, torch.float16, device)
        with_gradients = terms.call(
            ops.dot_attention, g, {name: x.clone().requires_grad_() for name, x in tensors.items()}
        )
        support.assert_same(terms.call(ops.dot_attention, g, tensors), with_gradients.detach())


@fused_only
def test_compiled_and_vmapped():
    g = make_graph("bipartite")
    g.csc(), g.csr()
    tensors = ALL.operands(g, 2, 8, 3, torch.float32)
    names = list(tensors)

    def call(*x):
        return ALL.call(ops.dot_attention, g, dict(zip(names, x)))

    grad = randn(g.num_dst, 2, 8, dtype=torch.float32)
    eager = support.evaluate(call, list(tensors.values()), grad)
    compiled = support.evaluate(torch.compile(call, fullgraph=True), list(tensors.values()), grad)
    for x, y in zip((eager[0], *eager[1]), (compiled[0], *compiled[1])):
        torch.testing.assert_close(x, y, rtol=1e-5, atol=1e-5)
    query, *rest = tensors.values()
    batch = torch.stack([query, query * 2])
    mapped = torch.vmap(call, in_dims=(0, *[None] * len(rest)))(batch, *rest)
    for x, y in zip(mapped, batch):
        torch.testing.assert_close(x, call(y, *rest), rtol=1e-5, atol=1e-5)


def test_errors(device):
    g = make_graph("bipartite", torch.int64, device)
    given = {terms.name: terms.operands(g, 2, 8, 3, torch.float32, device) for terms in TERMS}
    x = given["all"]
    nodes = [x[name] for name in ("query", "key", "value")]
    feat, weight, bias, rows = x["edge_feat"], x["edge_key_weight"], x["edge_bias"], x["edge_key"]
    cases = [
        ({"edge_bias": bias[1:]}, ValueError, r"edge_bias has shape \(299, 2\); expected 300 rows, one per edge"),
        ({"edge_bias": bias[:, :1]}, ValueError, r"edge_bias has shape \(300, 1\); expected \(edges, heads\) = \(300, 2\)"),
        ({"edge_bias": bias.double()}, TypeError, "edge_bias has dtype torch.float64; expected that of the features"),
        ({"key": nodes[1].double(), "edge_bias": bias}, TypeError, "edge_bias has dtype torch.float32; expected that of the fea"),
        ({"edge_bias": 3.0}, TypeError, "edge_bias is a float; expected a torch.Tensor"),
        ({"edge_feat": feat}, ValueError, "edge_feat is given; expected also edge_key_weight, edge_value_weight or both"),
        ({"edge_key_weight": weight}, ValueError, "edge_key_weight is given, but edge_feat is None; expected both"),
        ({"edge_feat": feat[:, 0], "edge_key_weight": weight}, ValueError, r"edge_feat has shape \(300,\); expected \(edges"),
        ({"edge_feat": feat, "edge_key_weight": weight.T}, ValueError, r"edge_key_weight has shape \(3, 16\); .* = \(16, 3\)"),
        ({"edge_feat": feat.half(), "edge_value_weight": weight}, TypeError, "edge_feat has dtype torch.float16"),
        ({"edge_feat": feat, "edge_value_weight": weight.half()}, TypeError, "edge_value_weight has dtype torch.float16"),
        ({"edge_feat": feat, "edge_key_weight": weight.to("meta")}, ValueError, "edge_key_weight is on meta; expected the gra"),
        ({"query": nodes[0].half(), "edge_bias": bias}, TypeError, "query has dtype torch.float16 and key torch.float32"),
        ({"edge_key": rows[:, :, 1:]}, ValueError, r"edge_key has shape \(300, 2, 7\); expected \(edges, heads, dim\)"),
        ({"edge_value": rows[:5]}, ValueError, "edge_value has shape .* one per edge"),
        ({"edge_value": rows.double()}, TypeError, "edge_value has dtype torch.float64; expected that of key"),
    ]  # fmt: skip
    for options, error, message in cases:
        with pytest.raises(error, match=message):
            ops.dot_attention(g, **{**dict(zip(("query", "key", "value"), nodes)), **options})


def test_one_tensor_for_key_and_value_has_one_gradient(device):
    g = make_graph("bipartite", torch.int64, device)
    for terms in (ONE_ROW, ONE_WEIGHT, KEYS):
        check(terms, g, terms.operands(g, 2, 8, 4, torch.float32, device))


@pytest.mark.parametrize("heads", [1, 3, 8, 11])
def test_gradients_of_weights_by_products_of_several_heads(heads):
    """As GPUs make them."""
    rows, columns = randn(50, heads, 6, dtype=torch.float64), randn(50, heads, 4, dtype=torch.float64)
    expected = torch.einsum("nhd,nhc->hdc", rows, columns)
    for found in (dot._of_weight(rows, columns), dot._diagonal_products(rows, columns)):
        assert found.shape == expected.shape
        torch.testing.assert_close(found, expected)
