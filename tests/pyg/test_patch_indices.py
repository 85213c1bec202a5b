"""Reductions by any index under halfgnn.pyg.patch(): batch vectors, rows of an edge_index that nobody propagated along, offsets."""

from __future__ import annotations

import contextlib
import gc

import pytest
import torch
import torch_geometric.nn as upstream
from torch_geometric import utils

import halfgnn.pyg
from halfgnn.graphs_by_tensor import index as _index
from halfgnn.graphs_by_tensor import store
from tests import support
from tests.pyg.test_patch_modules import assert_same, randn

pytestmark = pytest.mark.skipif(not support.supports("cpu", torch.float64), reason="needs float64")
ROWS, SEGMENTS = 40, 7
REDUCTIONS = ("sum", "mean", "max", "min")


def ids(dtype=torch.int64):
    """Unsorted; no id is 3."""
    index = torch.randint(0, SEGMENTS, (ROWS,), generator=torch.Generator().manual_seed(1))
    return torch.where(index == 3, 4, index).to(dtype)


INDICES = {
    "unsorted": ids(),
    "sorted": ids().sort()[0],
    "one segment": torch.zeros(ROWS, dtype=torch.int64),
    "expanded": torch.tensor([2]).expand(ROWS),
    "int32": ids(torch.int32),
    "sorted int32": ids(torch.int32).sort()[0],
    "row": torch.stack([ids(), ids().flip(0)])[1],
    "column": torch.stack([ids(), ids().flip(0)], 1)[:, 1],
    "flattened": ids().view(ROWS, 1).view(-1),
    "segment per row": torch.arange(ROWS),
}
SHAPES = {"matrix": ((ROWS, 3), 0), "vector": ((ROWS,), 0), "heads": ((ROWS, 2, 3), 0), "negative dim": ((ROWS, 3), -2)}
SHAPES.update({"last dim": ((3, ROWS), -1), "middle dim": ((2, ROWS, 3), 1)})


def results(index, shape, dim, num_rows):
    src = randn(*shape, seed=2).requires_grad_()
    outs = [utils.scatter(src, index, dim, num_rows, reduce) for reduce in REDUCTIONS]
    outs.append(utils.softmax(src, index, num_nodes=num_rows, dim=dim))
    loss = sum((randn(*out.shape, seed=3) * out.pow(2)).sum() for out in outs)
    return [*outs, *torch.autograd.grad(loss, src)]


def stats():
    return halfgnn.pyg.stats()


@pytest.mark.parametrize("has_size", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", INDICES)
def test_any_index(name, shape, has_size):
    index = INDICES[name]
    num_rows = max(SEGMENTS, int(index.max()) + 1) + 2 if has_size else None
    args = index, *SHAPES[shape], num_rows
    expected = results(index.long(), *args[1:])  # PyTorch 2.11 gathers a wrong gradient by an expanded index of int32
    with halfgnn.pyg.accelerate():
        assert_same(results(*args), expected)
        assert_same(results(*args), expected)  # with the graph that was kept
    counts = stats()
    assert counts["routed"]["gspmm:copy_e_sum"] >= 2 and counts["routed"]["gspmm:copy_e_max"] >= 2
    assert set(counts["fell_back"]) <= {"edge_softmax"}, "which is left to PyG in another dimension"


@pytest.mark.parametrize("wrong", [-1, SEGMENTS])
@pytest.mark.parametrize("index", [ids(), ids().sort()[0]], ids=["unsorted", "sorted"])
def test_ids_out_of_range_are_left_to_pyg(index, wrong):
    index = index.clone()
    index[0 if wrong < 0 else -1] = wrong
    for _ in range(2):
        with halfgnn.pyg.accelerate(), pytest.raises((RuntimeError, IndexError), match="out of bounds"):
            utils.scatter(randn(ROWS, 3, seed=1), index, 0, SEGMENTS)
    assert stats() == {"routed": {}, "fell_back": {"gspmm:copy_e_sum": {"ids out of range": 2}}}


@pytest.mark.parametrize("is_view", [False, True])
def test_an_index_that_is_written_to_is_new(is_view):
    base, src = torch.stack([ids(), ids()]), randn(ROWS, 3, seed=1)
    whole = base[0].clone()
    with halfgnn.pyg.accelerate():
        for k in range(3):
            index = base[1] if is_view else whole
            index.copy_(index.roll(1) if k else index.sort()[0])
            assert_same(
                [utils.scatter(src, index, 0, SEGMENTS)], [torch.zeros(SEGMENTS, 3).double().index_add(0, index, src)]
            )


def test_an_index_is_sorted_once_and_not_kept_alive(monkeypatch):
    made = []
    make = _index._make
    monkeypatch.setattr(_index, "_make", lambda *args: made.append(args[1]) or make(*args))
    edge_index, src = torch.stack([ids(), ids().flip(0)]), randn(ROWS, 3, seed=1)
    gc.collect()
    known = len(store.known)
    with halfgnn.pyg.accelerate():
        for _ in range(3):
            row, col = edge_index  # other tensors at each call
            for index in (row, col):
                utils.scatter(src, index, 0, SEGMENTS)
        assert made == [SEGMENTS, SEGMENTS]
        del edge_index, row, col, index
        made.clear()
        gc.collect()
        assert len(store.known) == known


def test_first_uses_of_an_index_are_pytorchs(monkeypatch):
    limits = halfgnn.pyg.drop_in.thresholds.Limits((1, 1), (100 * ROWS, 100 * ROWS), 1, 1)
    monkeypatch.setattr(halfgnn.pyg.drop_in.thresholds, "LIMITS", {"message": limits})
    index, uses = ids(), [4] * 202 + [104]  # columns of the features
    with halfgnn.pyg.accelerate():
        seen = [is_gathered(randn(SEGMENTS, width, seed=1), index) for width in uses]
        assert is_gathered(randn(SEGMENTS, 104, seed=1), ids())  # so many pay at once
    assert seen == [False] * 200 + [True] * 3


GATHERS = {"x[index]": lambda x, index: x[index], "index_select": lambda x, index: torch.index_select(x, 0, index)}


def gathered(gather, x, index):
    """Rows, their gradient, and the gradient of that."""
    x = x.detach().requires_grad_()
    rows = gather(x, index)
    rows.mul_(2)  # may be written into
    (grad,) = torch.autograd.grad(rows.pow(3).sum(), x, create_graph=True)
    return [rows, grad, *torch.autograd.grad(grad.pow(2).sum(), x)]


def is_gathered(x, index):
    return "Gather" in type(x.requires_grad_()[index].grad_fn).__name__


@pytest.mark.parametrize("gather", GATHERS)
@pytest.mark.parametrize("shape", [(3,), (2, 3)], ids=str)
@pytest.mark.parametrize("name", INDICES)
def test_rows_by_any_index(name, shape, gather):
    index, x = INDICES[name].clone() if name == "unsorted" else INDICES[name], randn(ROWS + 2, *shape, seed=1)
    expected = gathered(GATHERS[gather], x, index)
    with torch.no_grad():
        expected.append(x[index])
    with halfgnn.pyg.accelerate():
        for _ in range(3):
            actual = gathered(GATHERS[gather], x, index)
            with torch.no_grad():
                actual.append(GATHERS[gather](x, index))
            assert_same(actual, expected)
        assert is_gathered(x, index) == ("int32" not in name)


@pytest.mark.parametrize("row", [0, 1])
def test_rows_by_edges_use_their_graph(monkeypatch, row):
    edge_index, x = torch.stack([ids(), ids().flip(0)]), randn(SEGMENTS, 3, seed=1).requires_grad_()
    (expected,) = torch.autograd.grad(x[edge_index[row]].pow(2).sum(), x)
    with halfgnn.pyg.accelerate():
        upstream.SimpleConv()(x, edge_index).sum().backward()
        monkeypatch.setattr(_index, "_make", None)
        for _ in range(2):
            assert_same(torch.autograd.grad(x[edge_index[row]].pow(2).sum(), x), [expected])
        assert is_gathered(x, edge_index[row])


def test_ids_that_are_negative_or_out_of_range_are_pytorchs():
    x, index = randn(SEGMENTS, 3, seed=1).requires_grad_(), ids() - SEGMENTS
    expected = gathered(GATHERS["x[index]"], x, index)
    with halfgnn.pyg.accelerate():
        for _ in range(3):
            assert_same(gathered(GATHERS["x[index]"], x, index), expected)
            with pytest.raises(IndexError):
                x[ids() + SEGMENTS]
        index += SEGMENTS
        assert is_gathered(x, index)
        index[0] = SEGMENTS
        with pytest.raises(IndexError):
            x[index]


@pytest.fixture
def first_uses(monkeypatch):
    """Are PyTorch's, in one thread: two add up a gradient of x[index] in an order that changes."""
    limits = halfgnn.pyg.drop_in.thresholds.Limits((1, 1), (10**9, 10**9), 1, 1)
    monkeypatch.setattr(halfgnn.pyg.drop_in.thresholds, "LIMITS", {"message": limits})
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("shape", [(SEGMENTS, 64), (SEGMENTS, 8, 8)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.bfloat16])
@pytest.mark.parametrize("wrong", [None, -1, SEGMENTS, -SEGMENTS - 1])
def test_first_uses_of_an_index_are_read_by_index_select(first_uses, shape, dtype, wrong):
    """torch 2.11 takes 242 us for x[index] of 1,760 rows of 64 values and its gradient, and 143 for index_select."""
    x, index = randn(*shape, seed=1).to(dtype), torch.arange(512) % SEGMENTS
    if wrong is not None:
        index[7] = wrong

    def run():
        leaf = x.clone().requires_grad_(dtype.is_floating_point and dtype != torch.bfloat16)
        rows = leaf[index.clone()]
        return rows, torch.autograd.grad(rows.sin().sum(), leaf)[0] if leaf.requires_grad else None

    if wrong is not None and not -SEGMENTS <= wrong < SEGMENTS:
        messages = []
        for patched in (False, True):
            with halfgnn.pyg.accelerate() if patched else contextlib.nullcontext(), pytest.raises(IndexError) as caught:
                run()
            messages.append(str(caught.value))
        assert messages[0] == messages[1]
        return
    expected, of_expected = run()
    with halfgnn.pyg.accelerate():
        rows, gradient = run()
        kind = type(run()[0].grad_fn).__name__
    assert torch.equal(rows, expected) and rows.stride() == expected.stride()
    assert gradient is None or torch.equal(gradient, of_expected)
    has_gradient = of_expected is not None
    assert (kind == "NoneType") == (not has_gradient)
    assert (kind == "IndexBackward0") == bool(has_gradient and wrong)


def test_rows_of_what_is_not_contiguous_are_pytorchs(first_uses):
    x = randn(64, SEGMENTS, seed=1).t().requires_grad_()
    with halfgnn.pyg.accelerate():
        rows = x[torch.arange(512) % SEGMENTS]
    assert type(rows.grad_fn).__name__ == "IndexBackward0"


def test_many_views_of_one_tensor():
    base, src = torch.arange(3 * ROWS) % SEGMENTS, randn(ROWS, 3, seed=1)
    with halfgnn.pyg.accelerate():
        for begin in range(2 * ROWS):
            index = base[begin : begin + ROWS]
            expected = torch.zeros(SEGMENTS, 3).double().index_add(0, index, src)
            assert_same([utils.scatter(src, index, 0, SEGMENTS)], [expected])
    assert len(store.topology_of(base).readings) <= store.MOST


def test_rows_of_edges_before_and_after_they_are_propagated_along():
    edge_index, x = torch.stack([ids(), ids().flip(0)]), randn(SEGMENTS, 3, seed=1).requires_grad_()

    def layer():
        src, dst = edge_index
        return utils.scatter(x[src], dst, 0, SEGMENTS, "mean")

    expected = layer()
    with halfgnn.pyg.accelerate():
        assert_same([layer(), layer()], [expected] * 2)
        upstream.SimpleConv()(x, edge_index)
        assert_same([layer()], [expected])
    assert stats()["fell_back"] == {}


@pytest.mark.parametrize("reduce", ["sum", "mean"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_gradients_of_gradients_and_of_half(reduce, dtype):
    index = ids()

    def run(src, dtype):
        src = src.to(dtype).requires_grad_()
        out = utils.scatter(src, index, 0, SEGMENTS, reduce)
        (grad,) = torch.autograd.grad((out**3).sum(), src, create_graph=True)
        (second,) = torch.autograd.grad(grad.pow(2).sum(), src)
        return [x.double() for x in (out, grad, second)]

    src = randn(ROWS, 3, seed=1).to(dtype)
    expected = run(src, torch.float64)
    with halfgnn.pyg.accelerate():
        assert_same(run(src, dtype), expected, 1e-9 if dtype is torch.float64 else 5e-2)
    assert stats()["fell_back"] == {}


def test_inference_mode_does_not_keep_what_may_change():
    src = randn(ROWS, 3, seed=1)
    with halfgnn.pyg.accelerate(), torch.inference_mode():
        index = ids().clone()
        for _ in range(2):
            assert_same(
                [utils.scatter(src, index, 0, SEGMENTS)], [torch.zeros(SEGMENTS, 3).double().index_add(0, index, src)]
            )
            index.copy_(index.roll(1))
    assert stats()["routed"] == {"gspmm:copy_e_sum": 2, "index_add": 2}


def test_a_graph_made_in_inference_mode_serves_training():
    index, src = ids(), randn(ROWS, 3, seed=1).requires_grad_()
    with halfgnn.pyg.accelerate():
        with torch.inference_mode():
            utils.scatter(src, index, 0, SEGMENTS, "max")
        utils.scatter(src, index, 0, SEGMENTS, "max").sum().backward()
    assert stats()["routed"] == {"gspmm:copy_e_max": 2}


def test_what_is_left_to_pyg():
    index, src = ids(), randn(ROWS, 3, seed=1)
    calls = [
        lambda: utils.scatter(src.long(), index, 0, SEGMENTS),
        lambda: utils.scatter(src, index, 0, SEGMENTS, "mul"),
        lambda: utils.scatter(src[:0], index[:0], 0, SEGMENTS),
        lambda: torch.func.vmap(lambda x: utils.scatter(x, index, 0, SEGMENTS))(torch.stack([src, src])),
        lambda: torch.compile(utils.scatter, backend="eager")(src, index, 0, SEGMENTS),
    ]
    expected = [call() for call in calls]
    with halfgnn.pyg.accelerate():
        assert_same([call() for call in calls], expected)
    assert stats()["routed"] == {}


# ---- offsets -----------------------------------------------------------------------------------------------------------------

PTR = torch.tensor([0, 4, 4, 30, ROWS])


def test_offsets():
    src = randn(ROWS, 3, seed=2).requires_grad_()

    def run():
        outs = [utils.segment(src, PTR, reduce) for reduce in REDUCTIONS] + [utils.softmax(src, ptr=PTR)]
        outs += [
            upstream.MeanAggregation()(src, ptr=PTR),
            upstream.SoftmaxAggregation(learn=True).double()(src, ptr=PTR),
        ]
        return [*outs, *torch.autograd.grad(sum(out.pow(2).sum() for out in outs), src)]

    expected = run()
    with halfgnn.pyg.accelerate():
        assert_same(run(), expected)
        assert_same(run(), expected)
    assert stats()["fell_back"] == {} and stats()["routed"]["edge_softmax"] == 4


@pytest.mark.parametrize("ptr", [[1, 4, ROWS], [0, 4, ROWS - 1]], ids=str)
def test_offsets_of_some_rows_are_left_to_pyg(ptr):
    src, ptr = randn(ROWS, 3, seed=2), torch.tensor(ptr)
    expected = utils.segment(src, ptr)
    with halfgnn.pyg.accelerate():
        assert_same([utils.segment(src, ptr)], [expected])
    assert stats()["routed"] == {}


# ---- modules -----------------------------------------------------------------------------------------------------------------

BATCH = ids().sort()[0]
WIDTH = 4


def modules():
    aggr = upstream.aggr
    return {
        "GraphNorm": upstream.GraphNorm(WIDTH),
        "InstanceNorm": upstream.InstanceNorm(WIDTH, affine=True),
        "LayerNorm": upstream.LayerNorm(WIDTH, mode="graph"),
        "add pool": upstream.global_add_pool,
        "mean pool": upstream.global_mean_pool,
        "max pool": upstream.global_max_pool,
        "SoftmaxAggregation": aggr.SoftmaxAggregation(learn=True),
        "AttentionalAggregation": aggr.AttentionalAggregation(torch.nn.Linear(WIDTH, 1)),
        "Set2Set": aggr.Set2Set(WIDTH, 2),
        "MultiAggregation": aggr.MultiAggregation(["mean", "max", "std"]),
    }


@pytest.mark.parametrize("name", modules())
def test_modules(name):
    torch.manual_seed(1)
    module = modules()[name]
    module = module.double() if isinstance(module, torch.nn.Module) else module
    x = randn(ROWS, WIDTH, seed=4).requires_grad_()

    def run():
        out = module(x, BATCH)
        return [out, *torch.autograd.grad((randn(*out.shape, seed=5) * out).sum(), x)]

    expected = run()
    with halfgnn.pyg.accelerate():
        assert_same(run(), expected)
        assert_same(run(), expected)
    assert stats()["fell_back"] == {}


def test_median_is_pygs():
    x = randn(ROWS, WIDTH, seed=4)
    expected = upstream.MedianAggregation()(x, BATCH)
    with halfgnn.pyg.accelerate():
        assert_same([upstream.MedianAggregation()(x, BATCH)], [expected])


# ---- what is worth it --------------------------------------------------------------------------------------------------------


LIMITS = {"sum": halfgnn.pyg.drop_in.thresholds.Limits((60, 120), (120, 240), 2, 6)}


@pytest.mark.parametrize("is_sorted", [True, False])
@pytest.mark.parametrize(
    "width,has_gradient,uses",
    [(1, False, []), (2, False, [1]), (3, False, [0, 1]), (3, True, [1]), (6, True, [0, 1]), (2, True, [])],
)
def test_small_calls_are_left_to_pyg(monkeypatch, width, has_gradient, uses, is_sorted):
    """uses: which of two calls are routed."""
    monkeypatch.setattr(halfgnn.pyg.drop_in.thresholds, "LIMITS", LIMITS)
    monkeypatch.setattr(halfgnn.pyg.drop_in.thresholds, "REUSE", 0)
    if not is_sorted and width < 6:
        uses = [use for use in uses if use > 0]
    index, src = ids().sort()[0] if is_sorted else ids(), randn(ROWS, width, seed=1).requires_grad_(has_gradient)
    expected = torch.zeros(SEGMENTS, width).double().index_add(0, index, src)
    counts = []
    with halfgnn.pyg.accelerate():
        for _ in range(2):
            assert_same([utils.scatter(src, index, 0, SEGMENTS)], [expected])
            counts.append(sum(stats()["routed"].values()))
    assert [use for use in range(2) if counts[use] > sum(counts[:use][-1:])] == uses


@pytest.mark.parametrize("with_loops", [False, True])
def test_an_edge_index_that_is_used_on_is_routed(monkeypatch, with_loops):
    """First uses are PyG's: batches of new graphs never pay for upstream. Self-loops that are added at each call count too."""
    monkeypatch.setattr(
        halfgnn.pyg.drop_in.thresholds,
        "LIMITS",
        {"message": halfgnn.pyg.drop_in.thresholds.Limits((1, 1), (10**4, 10**4), 1, 1)},
    )
    monkeypatch.setattr(halfgnn.pyg.drop_in.thresholds, "REUSE", 1)
    x, edge_index = randn(ROWS, WIDTH, seed=1).float(), torch.stack([torch.arange(ROWS), torch.arange(ROWS).flip(0)])
    conv = upstream.GCNConv(WIDTH, WIDTH, add_self_loops=with_loops)
    with halfgnn.pyg.accelerate():
        for _ in range(100):
            conv(x, edge_index.clone())
        assert "gspmm:u_mul_e_sum" not in stats()["routed"]
        for call in range(100):
            conv(x, edge_index)
            assert call > 5 or "gspmm:u_mul_e_sum" not in stats()["routed"]
        assert "gspmm:u_mul_e_sum" in stats()["routed"]
