"""Small calls and first uses under halfgnn.pyg.patch(): what is left to torch_geometric, and that little is asked before."""

from __future__ import annotations

import types

import pytest
import torch
import torch_geometric.nn as upstream
from torch_geometric import utils

import halfgnn.pyg
from halfgnn.common.precision import HALF
from halfgnn.graphs_by_tensor import store
from halfgnn.pyg.drop_in import size, thresholds
from halfgnn.pyg.drop_in.adapters import scatter as _sums
from halfgnn.pyg.drop_in.adapters import spmm as _products
from tests import support
from tests.pyg.test_patch_modules import assert_same, randn

pytestmark = pytest.mark.skipif(not support.supports("cpu", torch.float64), reason="needs float64")
NODES, EDGES = 50, 400
SIZES = {name: getattr(thresholds, name) for name in ("LIMITS", *support.ROUTED_FROM)}  # of users, not of tests


@pytest.fixture(autouse=True)
def _users_sizes(monkeypatch, _routes_small_calls):
    for name, value in SIZES.items():
        monkeypatch.setattr(thresholds, name, value)


def edges():
    return torch.randint(0, NODES, (2, EDGES), generator=torch.Generator().manual_seed(1))


def reasons(name):
    return halfgnn.pyg.stats()["fell_back"].get(name, {})


def assert_equal_or_near(found, expected, is_in_fp32):
    """Halves that are computed in fp32 are rounded once, and those of PyG at every step."""
    for a, b in zip(found, expected, strict=True):
        assert a.dtype is b.dtype
        if is_in_fp32:
            torch.testing.assert_close(a, b, rtol=5e-2, atol=5e-2 * b.abs().max().item())
        else:
            assert torch.equal(a, b)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("reduce", ["sum", "add", "mean"])
@pytest.mark.parametrize(
    "shape, dim", [((EDGES, 6), 0), ((EDGES, 6), -2), ((EDGES,), -1), ((EDGES, 2, 3), 0), ((6, EDGES), 1)]
)
def test_sums_of_few_rows_are_those_of_pyg(shape, dim, reduce, dtype):
    src, index = randn(*shape, seed=2).to(dtype).requires_grad_(), edges()[1]

    def results():
        out = utils.scatter(src, index, dim, NODES + 2, reduce)
        return out, *torch.autograd.grad(out.pow(2).sum(), src)

    expected = results()
    with halfgnn.pyg.accelerate():
        found = results()
    name, is_in_fp32 = f"gspmm:copy_e_{'mean' if reduce == 'mean' else 'sum'}", reduce == "mean" and dtype in HALF
    routed = {"fp32:scatter": 1} if is_in_fp32 else {}
    assert halfgnn.pyg.stats() == {"routed": routed, "fell_back": {name: {"few values": 1}}}
    assert_equal_or_near(found, expected, is_in_fp32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize(
    "shape, dim", [((EDGES, 4), 0), ((EDGES, 4), -2), ((EDGES,), -1), ((EDGES, 2, 2), 0), ((4, EDGES), 1)]
)
def test_a_softmax_of_few_rows_is_that_of_pyg(shape, dim, dtype):
    src, index = (9 * randn(*shape, seed=2)).to(dtype).requires_grad_(), edges()[1]

    def results():
        out = utils.softmax(src, index, None, NODES + 2, dim)
        return out, *torch.autograd.grad(out.pow(2).sum(), src)

    expected = results()
    with halfgnn.pyg.accelerate():
        found = results()
    if dtype in HALF or dim == 1:
        assert reasons("edge_softmax") == {"few values": 1}
        assert_equal_or_near(found, expected, dtype in HALF)
    else:  # exponentials are rounded otherwise
        assert halfgnn.pyg.stats() == {"routed": {"coo_softmax": 1}, "fell_back": {}}
        torch.testing.assert_close(found, expected)


def test_a_result_of_a_softmax_of_few_rows_may_be_written_to():
    src, index = randn(EDGES, 4, seed=2).requires_grad_(), edges()[1]

    def results():
        out = utils.softmax(src, index, None, NODES)
        with torch.no_grad():
            out.mul_(2)
        return torch.autograd.grad(out.sum(1).pow(2).sum(), src)

    expected = results()
    with halfgnn.pyg.accelerate():
        torch.testing.assert_close(results(), expected)
    assert halfgnn.pyg.stats()["routed"] == {"coo_softmax": 1}


@pytest.mark.parametrize("sizes, order", [((3, EDGES), (1, 0)), ((3, EDGES, 1), (1, 0, 2))])
def test_a_softmax_of_few_rows_has_the_strides_of_pygs(sizes, order):
    src = randn(*sizes, seed=2).permute(order)
    expected = utils.softmax(src, edges()[1], None, NODES)
    with halfgnn.pyg.accelerate():
        found = utils.softmax(src, edges()[1], None, NODES)
    torch.testing.assert_close(found, expected)
    assert found.stride() == expected.stride() and halfgnn.pyg.stats()["routed"] == {"coo_softmax": 1}


@pytest.mark.parametrize("mode", ["functorch", "forward AD", "watched"])
def test_a_softmax_of_few_rows_under_a_mode_is_pytorchs(mode):
    class Watcher(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return func(*args, **kwargs or {})

    src, index = randn(EDGES, 4, seed=2), edges()[1]

    def softmax(x):
        return utils.softmax(x, index, None, NODES)

    def result():
        if mode == "functorch":
            return torch.func.grad(lambda x: softmax(x).pow(2).sum())(src)
        if mode == "forward AD":
            return torch.func.jvp(softmax, (src,), (src.sin(),))[1]
        with Watcher():
            return softmax(src)

    expected = result()
    with halfgnn.pyg.accelerate():
        assert torch.equal(result(), expected)
    assert halfgnn.pyg.stats()["routed"] == {}


@pytest.mark.parametrize("wrong", [-1, NODES])
def test_errors_of_a_softmax_of_few_rows_are_pygs(wrong):
    src, index = randn(EDGES, 4, seed=2), edges()[1]
    index[3] = wrong

    def error():
        with pytest.raises((RuntimeError, IndexError)) as caught:
            utils.softmax(src, index, None, NODES)
        return caught.type, str(caught.value)

    expected = error()
    with halfgnn.pyg.accelerate():
        assert error() == expected


@pytest.mark.parametrize(
    "index", [torch.tensor([0, 9]), torch.tensor([0, -1]), torch.zeros(3, dtype=torch.int64), torch.zeros(2)]
)
def test_errors_of_few_rows_are_pygs(index):
    src = torch.ones(2, 3)

    def error():
        with pytest.raises((RuntimeError, IndexError)) as caught:
            utils.scatter(src, index, 0, 5)
        return caught.type, str(caught.value)

    expected = error()
    with halfgnn.pyg.accelerate():
        assert error() == expected


ROUTED = {"coo_sum:u_mul_e_sum", "coo_sum:copy_e_sum", "coo_softmax"}  # by one operator, which keeps nothing


@pytest.mark.parametrize(
    "use, name, reason",
    [
        (lambda x: utils.scatter(x.repeat(1, 2), edges()[1], 0, NODES), "gspmm:copy_e_sum", "first use of an index"),
        (lambda x: upstream.GCNConv(64, 64)(x[:NODES], edges()), "coo_sum:u_mul_e_sum", "few values"),
        (lambda x: utils.softmax(x[:, :2], edges()[1], None, NODES), "coo_softmax", "few values"),
        (lambda x: upstream.GATConv(64, 64)(x[:NODES], edges()), "propagate", "few values"),
        (lambda x: x[:NODES][edges()[0]], None, None),
        (lambda x: x.repeat(1, 2).view(EDGES, 8, 16)[edges()[0]], None, None),  # of more rows than relations
        (lambda x: edges()[:, x[:, 0] > 0], None, None),
    ],
)
def test_nothing_is_kept_of_first_uses(monkeypatch, use, name, reason):
    noted = []
    monkeypatch.setattr(store.known, "put", lambda index, topology: noted.append(index) or topology)
    x = randn(EDGES, 64, seed=1).float()
    expected = use(x) if name is None or name.startswith("gspmm") else None
    with halfgnn.pyg.accelerate(), torch.no_grad():
        result = use(x)
    assert noted == [] and halfgnn.pyg.stats()["routed"].keys() <= ROUTED
    assert name not in ROUTED or halfgnn.pyg.stats()["routed"].keys() == {name}
    assert name is None or name in ROUTED or reasons(name).keys() == {reason}
    if expected is not None:
        assert_same([result], [expected], 1e-5)


def test_an_index_that_is_used_on_is_routed():
    x, index = randn(EDGES, 128, seed=1).float(), edges()[1]
    with halfgnn.pyg.accelerate():
        for _ in range(100):
            out = utils.scatter(x, index, 0, NODES)
    assert 35 < reasons("gspmm:copy_e_sum")["first use of an index"] < 50  # eight times 262144 values
    assert halfgnn.pyg.stats()["routed"].keys() == {"coo_sum:copy_e_sum", "gspmm:copy_e_sum"}
    assert_same([out], [torch.zeros(NODES, 128).index_add(0, index, x)], 1e-5)


@pytest.mark.parametrize("width, is_routed", [(8, False), (64, True)])
def test_a_softmax_over_new_edges_is_worth_sorting_one_side(width, is_routed):
    """The graph of the edge_index is not made for it."""
    conv, edge_index, x = upstream.SimpleConv(), edges(), randn(EDGES, width, seed=1).float()
    expected = utils.softmax(x, edge_index[1], num_nodes=NODES)
    with halfgnn.pyg.accelerate():
        conv._check_input(edge_index, None)
        result = utils.softmax(x, edge_index[1], num_nodes=NODES)
        assert_same([result], [expected], 1e-5)
        assert not store.has_graph(edge_index)
    assert ("edge_softmax" in halfgnn.pyg.stats()["routed"]) == is_routed


def test_first_uses_of_a_matrix_are_pygs(monkeypatch):
    made = []
    monkeypatch.setattr(_products, "graph_of_matrix", lambda matrix: made.append(matrix) or make(matrix))
    make = _products.Graph.from_torch_sparse
    matrix = torch.sparse_coo_tensor(edges(), torch.ones(EDGES), (NODES, NODES)).coalesce().to_sparse_csr()
    x = randn(NODES, 400, seed=1).float()
    expected = matrix @ x
    with halfgnn.pyg.accelerate():
        for call in range(60):
            assert_same([utils.spmm(matrix, x)], [expected], 1e-5)
            assert call > 20 or not made
    assert reasons("spmm").keys() == {"first uses of a matrix"} and made


def test_self_loops_of_an_edge_index_that_is_used_on_share_a_graph():
    edge_index = edges()
    with halfgnn.pyg.accelerate():
        looped = [utils.add_self_loops(edge_index, num_nodes=NODES)[0] for _ in range(400)]
    assert not store.is_heard_of(looped[0])
    assert store.topology_of(looped[-1]) is store.topology_of(looped[-2])


def test_a_gpu_has_larger_limits():
    def sizes(is_cuda):
        for num_values in (10_000, 100_000, 1_000_000, 10_000_000):
            src = types.SimpleNamespace(
                numel=lambda n=num_values: n,
                is_cuda=is_cuda,
                requires_grad=False,
                dim=lambda: 2,
                shape=(num_values // 64, 64),
            )
            yield num_values, size.is_small(src, "sum")

    assert [small for _, small in sizes(False)] == [True, False, False, False]
    assert [small for _, small in sizes(True)] == [True, True, True, False]
    assert size.weighed(64, types.SimpleNamespace(is_cuda=True)) == 64 // thresholds.GPU_SPEED
    numbers = types.SimpleNamespace(is_cuda=True, shape=(10,), numel=lambda: 10)
    assert size.weighed_rows(numbers, 12_800) == 12_800 * thresholds.SORTED_WIDTH // thresholds.GPU_SPEED
    numbers.is_cuda = False
    assert size.weighed_rows(numbers, 12_800) == 12_800


@pytest.mark.parametrize("count, is_noted", [(768, False), (769, True)])
def test_few_columns_of_an_edge_index_that_is_used_on_are_not_noted(count, is_noted):
    """Messages of usual width along them are few values."""
    conv, x = upstream.SimpleConv(), randn(NODES, 512, seed=1).float()
    edge_index = torch.randint(0, NODES, (2, 2000), generator=torch.Generator().manual_seed(1))
    with halfgnn.pyg.accelerate():
        conv(x, edge_index)
        assert store.has_graph(edge_index)
        columns = edge_index[:, torch.arange(count)]
    assert store.is_heard_of(columns) == is_noted


def test_means_of_few_rows_divide_by_the_size_of_their_group():
    src = torch.tensor([[1.0, 2.0], [3.0, 6.0], [5.0, -7.0]])
    means = _sums.added_up(src, torch.tensor([0, 0, 2]), 4, True)
    assert means.tolist() == [[2.0, 4.0], [0.0, 0.0], [5.0, -7.0], [0.0, 0.0]]
