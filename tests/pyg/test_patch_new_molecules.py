"""Messages of programs on molecules, rows of sources plus rows of edges, under halfgnn.pyg.accelerate(): batches that are new."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
import torch_geometric.nn as upstream
from torch import nn
from torch.nn.functional import relu
from torch_geometric import utils

import halfgnn.pyg
from halfgnn.ops.coo_sum import coo_sum
from halfgnn.pyg.drop_in import call, edge_lists, size, thresholds
from tests import support

pytestmark = pytest.mark.skipif(support.SIMULATED or "cpu" not in support.DEVICES, reason="sizes are those of a CPU")
NODES, EDGES, WIDTH = 800, 2_000, 64  # fewer values than are worth a Graph
SIZES = {name: getattr(thresholds, name) for name in ("LIMITS", *support.ROUTED_FROM)}  # of users, not of tests


@pytest.fixture(autouse=True)
def _users_sizes(monkeypatch, _routes_small_calls):
    for name, value in SIZES.items():
        monkeypatch.setattr(thresholds, name, value)


class Molecules(upstream.MessagePassing):
    def forward(self, x, edge_index, edge_attr):
        return self.propagate(edge_index, x=x, edge_attr=edge_attr)

    def message(self, x_j, edge_attr):
        return F.relu(x_j + edge_attr)


class WithUpdate(Molecules):
    """As in the examples of ogb 1.3.6."""

    def update(self, aggr_out):
        return aggr_out


class OfTorch(Molecules):
    def message(self, x_j, edge_attr):
        return torch.relu(x_j + edge_attr)


class OfPackage(Molecules):
    def message(self, x_j, edge_attr):
        return torch.nn.functional.relu(x_j + edge_attr)


class OfNn(Molecules):
    def message(self, x_j, edge_attr):
        return nn.functional.relu(x_j + edge_attr)


class ByName(Molecules):
    def message(self, x_j, edge_attr):
        return relu(x_j + edge_attr)


class ByMethod(Molecules):
    def message(self, x_j, edge_attr):
        """Of other names."""
        return (x_j + edge_attr).relu()


class Sums(Molecules):
    def message(self, x_j, edge_attr):
        return x_j + edge_attr

    def update(self, inputs):
        return torch.tanh(inputs)


class Relu6(Molecules):
    def message(self, x_j, edge_attr):
        return F.relu6(x_j + edge_attr)


class InPlace(Molecules):
    def message(self, x_j, edge_attr):
        return F.relu(x_j + edge_attr, inplace=True)


class UpdatedByNodes(Molecules):
    def update(self, inputs, x):
        return inputs + x


class UpdatedByKeyword(Molecules):
    def update(self, inputs, *, x):
        return inputs - x


class UpdatedByAnything(Molecules):
    def update(self, *inputs):
        return 2 * inputs[0]


def edges():
    return torch.randint(0, NODES, (2, EDGES), generator=torch.Generator().manual_seed(1))


def operands(dtype=torch.float32):
    torch.manual_seed(2)
    return (torch.randn(n, WIDTH, dtype=dtype).requires_grad_() for n in (NODES, EDGES))


def results(conv, dtype=torch.float32, width=WIDTH):
    x, data = operands(dtype)
    out = conv(x, edges(), data[:, :width])
    return out, *torch.autograd.grad(out.pow(2).sum(), (x, data))


def check(conv, dtype=torch.float32, **kwargs):
    """Returns what was routed. Results are those of torch_geometric to the last bit."""
    expected = results(conv, dtype, **kwargs)
    with halfgnn.pyg.accelerate():
        found = results(conv, dtype, **kwargs)
    for a, b in zip(found, expected, strict=True):
        assert a.dtype is b.dtype and a.stride() == b.stride() and torch.equal(a, b)
    return halfgnn.pyg.stats()["routed"]


RELU_ADD = (Molecules, WithUpdate, OfTorch, OfPackage, OfNn, ByName, ByMethod)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("aggr", ["sum", "mean"])
@pytest.mark.parametrize("make", [*RELU_ADD, Sums])
def test_messages_are_summed_at_once(make, aggr, dtype):
    assert check(make(aggr=aggr), dtype) == {f"coo_sum:u_{'add' if make is Sums else 'relu_add'}_e_{aggr}": 1}


@pytest.mark.parametrize("make", [Relu6, InPlace, UpdatedByNodes, UpdatedByKeyword, UpdatedByAnything])
def test_other_messages_and_updates_take_the_usual_steps(make):
    assert check(make()) == {"coo_sum:copy_e_sum": 1}


def test_rows_of_edges_of_one_column_are_broadcast_by_pyg():
    assert check(Molecules(), width=1) == {"coo_sum:copy_e_sum": 1}


@pytest.mark.parametrize("module", [F, torch])
def test_a_relu_that_a_program_replaces_is_called(monkeypatch, module):
    conv = Molecules() if module is F else OfTorch()
    assert check(conv) == {"coo_sum:u_relu_add_e_sum": 1}
    monkeypatch.setattr(module, "relu", lambda x: x.sigmoid())
    halfgnn.pyg.reset_stats()
    assert check(conv) == {"coo_sum:copy_e_sum": 1}


def test_a_name_that_a_program_gives_to_another_function_is_called(monkeypatch):
    conv = ByName()
    assert check(conv) == {"coo_sum:u_relu_add_e_sum": 1}
    monkeypatch.setitem(globals(), "relu", torch.sigmoid)
    halfgnn.pyg.reset_stats()
    assert check(conv) == {"coo_sum:copy_e_sum": 1}


def test_errors_of_an_update_are_its_own():
    class Wrong(Molecules):
        def update(self, inputs):
            raise KeyError("update")

    with halfgnn.pyg.accelerate(), pytest.raises(KeyError, match="update"):
        results(Wrong())


# ---- messages that are made: rows of sources are gathered, and rows of edges added up, by coo_sum ------------------------------


class Product(Molecules):
    def message(self, x_i, x_j, edge_attr):
        return x_i.sigmoid() * x_j * edge_attr


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("aggr", ["sum", "mean"])
def test_messages_that_are_made(aggr, dtype):
    assert check(Product(aggr=aggr), dtype) == {f"coo_sum:copy_e_{aggr}": 1}


@pytest.mark.parametrize(
    "node_dim, shape",
    [(0, (NODES, 4, 3)), (0, (NODES, 4, 2, 5)), (-2, (4, NODES, 3)), (-2, (64, 64, 2)), (-3, (NODES, 4, 3))],
)
def test_rows_of_more_dimensions(node_dim, shape):
    class Heads(upstream.MessagePassing):
        def forward(self, x, edge_index):
            return self.propagate(edge_index, x=x)

        def message(self, x_i, x_j):
            return x_i - x_j

    conv = Heads(node_dim=node_dim)

    def of(x):
        out = conv(x, edges() % shape[node_dim])
        return out, *torch.autograd.grad(out.pow(2).sum(), x)

    x = torch.randn(shape, generator=torch.Generator().manual_seed(3)).requires_grad_()
    expected = of(x)
    with halfgnn.pyg.accelerate():
        found = of(x)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_gathered_rows_have_gradients_of_every_order():
    x, index = torch.randn(NODES, WIDTH, dtype=torch.float64).requires_grad_(), edges()[0]

    def of(x):
        (slope,) = torch.autograd.grad(x[index].pow(3).sum(), x, create_graph=True)
        return slope, *torch.autograd.grad(slope.sum(), x)

    expected = of(x)
    with halfgnn.pyg.accelerate():
        found = of(x)
        tangent = torch.func.jvp(lambda x: x[index], (x.detach(),), (x.detach(),))
    torch.testing.assert_close(found, expected)
    assert torch.equal(tangent[1], x.detach()[index])


@pytest.mark.parametrize("wrong", [NODES, -1])
@pytest.mark.parametrize("row", [0, 1])
def test_errors_of_ids_are_those_of_pyg(row, wrong):
    conv, index = Product(), edges()
    index[row, 5] = wrong
    x, data = operands()

    def error():
        with pytest.raises((IndexError, RuntimeError)) as caught:
            conv(x, index.clone(), data)
        return caught.type, str(caught.value)

    expected = error()
    with halfgnn.pyg.accelerate():
        assert error() == expected


@pytest.mark.parametrize("num_ids, wrong, num_rows", [(EDGES - 1, 0, 10), (EDGES, 10, 10), (EDGES, 0, -1)])
def test_errors_of_sums_are_those_of_pyg(num_ids, wrong, num_rows):
    index = torch.zeros(num_ids, dtype=torch.int64)
    index[5] = wrong

    def error():
        with pytest.raises((IndexError, RuntimeError)) as caught:
            utils.scatter(torch.ones(EDGES, WIDTH), index, 0, num_rows)
        return caught.type, str(caught.value)

    expected = error()
    with halfgnn.pyg.accelerate():
        assert error() == expected


# ---- what coo_sum is asked to do ---------------------------------------------------------------------------------------------


def test_operands_that_are_left_to_pytorch():
    index, rows = edges()[0], torch.ones(EDGES, WIDTH)
    assert edge_lists.may_add(index, rows, None, rows)
    for operands in ((rows.half(),), (rows, rows.double()), (rows.to_sparse(),), (rows.to("meta"),)):
        assert not edge_lists.may_add(index, *operands)
    with torch.autograd.forward_ad.dual_level():
        assert not edge_lists.may_add(index, rows)
    assert not edge_lists.may_add(index.to("meta"), rows)


def test_few_rows_are_left_to_pytorch():
    few = torch.ones(NODES, 2).requires_grad_()
    assert type(edge_lists.taken(few, edges()[0]).grad_fn).__name__ == "IndexSelectBackward0"
    assert edge_lists.added(torch.ones(EDGES, 2), edges()[0], NODES, False) is None
    scalar = torch.ones(()).requires_grad_()
    assert torch.equal(edge_lists.taken(scalar, torch.tensor([0])), scalar)


def test_what_was_few_of_a_call_answers_for_no_more_values():
    index, (x, data) = edges(), operands()
    with halfgnn.pyg.accelerate():
        Product()(x, index, data)
        before = size.seen_by(index)
        assert call.few_before(index[1], torch.ones(EDGES, WIDTH))
        assert size.seen_by(index) == before + EDGES * WIDTH
        assert not call.few_before(index[1], torch.ones(EDGES, WIDTH + 1))
        assert not call.few_before(edges()[1], torch.ones(EDGES, WIDTH))
    assert size.seen_by(index) == before + EDGES * WIDTH


@pytest.mark.parametrize("op", ["add", "copy_lhs"])
def test_what_a_sum_does_not_read_may_be_modified_in_place(op):
    src, dst = edges()
    x, data = operands()
    rows = 2 * x
    out = coo_sum(dst, src, rows, data if op == "add" else None, "sum", NODES, op=op)
    with torch.no_grad():
        rows += 1
    (found,) = torch.autograd.grad(out.sum(), x)
    assert torch.equal(found[:, 0], 2.0 * src.bincount(minlength=NODES))
