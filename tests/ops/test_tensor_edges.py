"""Dot attention whose edges add a bias or columns, on tensor cores: forced with HALFGNN_TENSOR_CORES=1, under the accuracy rule of
support.py. CUDA's kernels read the variable at every call. On the CPU the tests see that it changes nothing."""

import itertools

import pytest
import torch

from halfgnn import Graph, ops
from tests import support
from tests.ops.test_attention_numbers import DEGREES, RUNS, graph_of
from tests.support import HALVES, IDTYPES
from tests.support_attention import fixed_seed
from tests.support_attention_edges import BIAS, BOTH, FEAT, KEYS, SCALE, VALUES, Terms, check

raw = torch.ops.halfgnn
COLUMNS_AND_BIAS = Terms("columns_bias", ("edge_bias", *FEAT))
every_kind = pytest.mark.parametrize("terms", [BIAS, COLUMNS_AND_BIAS], ids=lambda terms: terms.name)


@pytest.fixture(autouse=True)
def on_tensor_cores(monkeypatch):
    monkeypatch.setenv("HALFGNN_TENSOR_CORES", "1")


# ---- the accuracy rule ------------------------------------------------------------------------------------------

# One parameter, so that a sample of the cases has every kernel; without tensor cores there is one for all widths.
KERNELS = [
    *itertools.product("1", (BIAS, BOTH), HALVES, (64, 128)),
    *itertools.product("0", (BIAS, BOTH), HALVES, (64,)),
]


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: f"{kernel[0]}-{kernel[1].name}-{kernel[2]}-{kernel[3]}")
def test_every_kernel(kernel, device, monkeypatch):
    wanted, terms, dtype, dim = kernel
    monkeypatch.setenv("HALFGNN_TENSOR_CORES", wanted)
    g = graph_of([3, 20, 40], device=device)
    check(terms, g, terms.operands(g, 1, dim, 16, dtype, device))


# Elements of a head, and columns: some are padded, and the last are too many for tensor cores.
SHAPES = [(8, 16), (16, 1), (24, 5), (40, 16), (64, 8), (72, 13), (96, 4), (128, 16), (120, 12), (104, 3), (128, 9)]


@every_kind
@pytest.mark.parametrize("device,dtype", support.devices_and(HALVES))
@pytest.mark.parametrize("dim,columns", [*SHAPES, (64, 17)])
def test_widths(dim, columns, dtype, device, terms):
    heads = {8: 8, 16: 3, 24: 5, 40: 2}.get(dim, 1 + (dim == 64))
    g = graph_of(DEGREES, idtype=IDTYPES[dim // 8 % 2], device=device, identity=dim % 16 == 0)
    check(terms, g, terms.operands(g, heads, dim, columns, dtype, device))


@pytest.mark.parametrize("terms", [KEYS, VALUES], ids=lambda terms: terms.name)
@pytest.mark.parametrize("device,dtype", support.devices_and(HALVES))
def test_one_weight(dtype, device, terms):
    g = graph_of(DEGREES, device=device)
    check(terms, g, terms.operands(g, 2, 24, 16, dtype, device, bias_dtype=torch.float32))


@every_kind
@pytest.mark.parametrize("device,dtype", support.devices_and(HALVES))
@pytest.mark.parametrize("heads,dim", [(1, 128), (3, 40), (8, 8), (2, 128)])
def test_dropout(heads, dim, dtype, device, terms):
    g = graph_of([*DEGREES, 40], device=device)
    tensors = terms.operands(g, heads, dim, 16, dtype, device)
    check(terms, g, tensors, 0.4)
    leaves = {name: x.clone().requires_grad_() for name, x in tensors.items()}
    out = terms.call(ops.dot_attention, g, leaves, 1.0)
    assert (out == 0).all()
    out.sum().backward()
    assert all((x.grad == 0).all() for x in leaves.values())


@every_kind
@pytest.mark.parametrize("dtype,heads,dim", [(torch.float16, 1, 72), (torch.bfloat16, 2, 16), (torch.bfloat16, 1, 128)])
@pytest.mark.parametrize("reverse", [False, True], ids=["rows", "columns"])
def test_long_rows(reverse, dtype, heads, dim, device, terms):
    """Rows of several runs, and rows that are cut into pieces, of which a bias removes one, or all."""
    g = graph_of([*RUNS, 1300, 700], device=device, identity=True)
    g = g.reverse() if reverse else g
    tensors = terms.operands(g, heads, dim, 16, dtype, device)
    if not reverse:  # edges come row by row
        first = sum(RUNS)
        tensors["edge_bias"][first : first + 520] = -torch.inf
        tensors["edge_bias"][first + 1300 :] = -torch.inf
    check(terms, g, tensors, 0.2, sums=1300)


# ---- the edges of the number range ------------------------------------------------------------------------------------------


def of_columns(g, query, columns, dtype, device, dim=16):
    """(lse, sums of columns) of edges that have columns alone, and what they are in fp64. query: (N, 1, C)."""
    zeros = [torch.zeros(n, 1, dim, dtype=dtype, device=device) for n in (g.num_dst, g.num_src, g.num_src)]
    _, lse, _, sums = raw.dot_attention(
        *g.csc(), *zeros, SCALE, 0.0, None, True, False, edge_feat=columns, edge_query=query, need_edge_out=True
    )
    dst = g.edges()[1].cpu().long()
    logits = SCALE * (query.cpu().double()[dst, 0] * columns.cpu().double()).sum(1)
    want = torch.stack([logits[dst == row].logsumexp(0) for row in range(g.num_dst)])
    weights = (logits - want[dst]).exp().unsqueeze(1)
    rows = torch.zeros(g.num_dst, columns.shape[1], dtype=torch.float64)
    return lse[:, 0].cpu().double(), sums[:, 0].cpu().double(), want, rows.index_add(0, dst, weights * columns.cpu())


@pytest.mark.parametrize("device,dtype", support.devices_and(HALVES))
@pytest.mark.parametrize("size", [1e-6, 1.0, 1e7])
def test_projected_queries_of_any_size(size, dtype, device):
    """They are fp32: halves neither overflow nor lose small ones, and more than their own bits are kept."""
    g = graph_of([5, 20, 40], device=device)
    torch.manual_seed(4)
    query = torch.randn(g.num_dst, 1, 16, device=device) * size
    query[0] = 0
    columns = (torch.randn(g.num_edges, 16, device=device) / size).to(dtype) if size > 1 else torch.randn(
        g.num_edges, 16, device=device
    ).to(dtype)  # fmt: skip
    lse, sums, lse_wanted, sums_wanted = of_columns(g, query, columns, dtype, device)
    tolerance = 4e-6 if dtype == torch.float16 else 1e-4
    torch.testing.assert_close(lse, lse_wanted, rtol=tolerance, atol=tolerance)
    scale = columns.double().abs().max().item()
    torch.testing.assert_close(sums, sums_wanted, rtol=0, atol=10 * tolerance * scale)


@pytest.mark.parametrize("device,dtype", support.devices_and(HALVES))
def test_infinite_columns_of_keys(dtype, device):
    """A column of -inf removes its edge where what it meets is positive."""
    g = graph_of([40], num_src=40, device=device)
    tensors = KEYS.operands(g, 1, 16, 16, dtype, device)
    removed = torch.arange(40, device=device) % 5 == 2
    tensors["query"] = tensors["query"].abs()
    tensors["edge_key_weight"] = tensors["edge_key_weight"].abs()
    tensors["edge_feat"][removed, 3] = -torch.inf
    out = KEYS.call(ops.dot_attention, g, tensors)
    src, dst = g.edges()
    kept = Graph.from_edges(src[~removed], dst[~removed], num_src=40, num_dst=1)
    expected = KEYS.call(ops.dot_attention, kept, tensors | {"edge_feat": tensors["edge_feat"][~removed]})
    torch.testing.assert_close(out, expected, rtol=2 * torch.finfo(dtype).eps, atol=1e-3)


@pytest.mark.parametrize("device,dtype", support.devices_and(HALVES))
@pytest.mark.parametrize("degree", [5, 8, 40, 300])
def test_infinite_columns_of_values(degree, dtype, device):
    """They stay in their columns, and keep their sign."""
    g = graph_of([degree], num_src=40, device=device)
    query = torch.zeros(1, 1, 16, device=device)
    columns = torch.randn(degree, 16, device=device).to(dtype)
    finite = of_columns(g, query, columns, dtype, device)[1]
    columns[::3, 3], columns[2, 6], columns[degree - 1, 14] = torch.inf, -torch.inf, torch.nan
    zeros = [torch.zeros(n, 1, 16, dtype=dtype, device=device) for n in (1, 40, 40)]
    sums = raw.dot_attention(*g.csc(), *zeros, SCALE, 0.0, None, True, False, edge_feat=columns, need_edge_out=True)[3][
        0, 0
    ].cpu()
    others = [column for column in range(16) if column not in (3, 6, 14)]
    assert sums[3] == torch.inf and sums[6] == -torch.inf and sums[14].isnan()
    torch.testing.assert_close(sums[others].double(), finite[0, others], rtol=1e-5, atol=1e-6)


# ---- beside the other kernels ------------------------------------------------------------------------------------------


@every_kind
@pytest.mark.parametrize("device,dtype", support.devices_and(HALVES))
@pytest.mark.parametrize("heads,dim", [(1, 128), (1, 64), (4, 24), (2, 128)])
def test_both_kinds_agree(heads, dim, dtype, device, terms, monkeypatch):
    g = graph_of([*DEGREES, 530], device=device)
    tensors = terms.operands(g, heads, dim, 16, dtype, device)

    def results(wanted):
        monkeypatch.setenv("HALFGNN_TENSOR_CORES", wanted)
        with fixed_seed():
            out, grads = support.evaluate(
                lambda *x: terms.call(ops.dot_attention, g, dict(zip(tensors, x)), 0.2),
                list(tensors.values()),
                torch.ones_like,
            )
        return [out, *grads]

    on_tensor_cores, others = results("1"), results("0")
    for name, got, other in zip(("out", *tensors), on_tensor_cores, others):
        size = max(1, other.abs().max().item())
        torch.testing.assert_close(
            got, other, rtol=2 * torch.finfo(dtype).eps, atol=4e-5 * size, msg=lambda m, name=name: f"{name}: {m}"
        )
    if support.has_cuda_kernels(device):  # they are two
        assert any(not torch.equal(a, b) for a, b in zip(on_tensor_cores, others))
        assert all(torch.equal(a, b) for a, b in zip(on_tensor_cores, results("1")))
