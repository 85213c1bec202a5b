"""Padding to buckets, on plain tensors: sizes, what real rows read, losses and norms with masks."""

from __future__ import annotations

import copy
import itertools
import math

import pytest
import torch
from torch import nn

from halfgnn import Graph, ops
from halfgnn.padding import Buckets, MaskedBatchNorm, mask_norms, masked_mean, pad_graph, pad_tensor, real_rows

# ---- sizes -----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("buckets", [Buckets(), Buckets(1.1, 16, 100), Buckets(2, 1, 1)])
def test_sizes_are_a_geometric_series(buckets):
    sizes = sorted({buckets.size(count) for count in range(3000)})
    assert all(buckets.size(count) == min(size for size in sizes if size >= count) for count in range(3000))
    assert all(size % buckets.multiple == 0 for size in sizes)
    assert all(after <= size * buckets.factor + buckets.multiple for size, after in itertools.pairwise(sizes))
    assert len(sizes) <= 2 + math.log(3000 / buckets.smallest, buckets.factor)


def test_sizes_with_factor_1_are_multiples():
    assert [Buckets(1, 1024, 1).size(count) for count in (0, 1024, 1025, 5000)] == [1024, 1024, 2048, 5120]


def test_largest_is_the_last_size():
    buckets = Buckets(largest=1001)
    assert [buckets.size(count) for count in (945, 1001)] == [1001, 1001]
    with pytest.raises(ValueError, match=r"the number of nodes is 1002; expected at most 1001"):
        buckets.size(1002, "the number of nodes")


@pytest.mark.parametrize(
    "options, message",
    [
        ({"factor": 0.9}, "factor is 0.9; expected at least 1"),
        ({"factor": math.nan}, "factor is nan"),
        ({"multiple": 0}, "multiple is 0; expected at least 1"),
        ({"smallest": 64, "largest": 32}, "smallest is 64; expected at most largest, which is 32"),
    ],
)
def test_wrong_buckets(options, message):
    with pytest.raises(ValueError, match=message):
        Buckets(**options)


# ---- graphs ----------------------------------------------------------------------------------------------------------------------


def edges_of(num_nodes, num_edges, by=1):
    """Random edges, sorted by their destinations, or by their sources."""
    edge_index = torch.randint(num_nodes, (2, num_edges))
    return edge_index[:, edge_index[by].argsort(stable=True)]


@pytest.mark.parametrize(
    "num_nodes, num_edges", [(5, 0), (14, 24), (15, 24), (16, 20), (24, 24), (20, 3000), (22, 5000), (3000, 9000)]
)
@pytest.mark.parametrize("by", [0, 1])
def test_padding_edges_join_padding_nodes_only(num_nodes, num_edges, by):
    edge_index = edges_of(num_nodes, num_edges, by)
    padded = pad_graph(edge_index, num_nodes)
    real, padding = padded.edge_index[:, :num_edges], padded.edge_index[:, num_edges:]
    assert torch.equal(real, edge_index) and padded.edge_index.shape == (2, padded.num_edges)
    assert padding.numel() == 0 or num_nodes <= padding.min() <= padding.max() < padded.num_nodes
    assert (padding[0] != padding[1]).all()
    assert all(ends.bincount().max() <= 256 for ends in padding if ends.numel())
    assert (padded.edge_index[by].diff() >= 0).all()
    assert padded.node_mask.tolist() == [node < num_nodes for node in range(padded.num_nodes)]
    assert padded.edge_mask.tolist() == [edge < num_edges for edge in range(padded.num_edges)]
    assert padded.num_nodes - num_nodes >= 2 and padded.num_nodes != padded.num_edges


def test_tensors_are_padded_by_their_names():
    node_data = {
        "x": torch.ones(3, 2).half(),
        "pos": torch.ones(3, 3),
        "seen": torch.ones(3).bool(),
        "y": torch.ones(3).int(),
    }
    padded = pad_graph(
        torch.tensor([[0, 1], [1, 2]], dtype=torch.int32),
        3,
        node_data,
        {"weight": torch.ones(2, dtype=torch.float64)},
        {"u": torch.ones(2, 5)},
        batch=torch.tensor([0, 0, 1]),
        num_graphs=2,
        nodes=6,
        edges=8,
        graphs=4,
        fill={"y": -100},
    )
    assert padded.edge_index.dtype == torch.int32
    assert {name: x.dtype for name, x in padded.node_data.items()} == {name: x.dtype for name, x in node_data.items()}
    assert padded.node_data["x"][:, 0].tolist() == [1, 1, 1, 0, 0, 0]
    assert padded.node_data["pos"][3:].tolist() == [[0, 0, 0], [1, 0, 0], [2, 0, 0]]
    assert padded.node_data["seen"].tolist() == [True] * 3 + [False] * 3
    assert padded.node_data["y"].tolist() == [1] * 3 + [-100] * 3
    assert padded.edge_data["weight"].tolist() == [1] * 2 + [0] * 6
    assert padded.graph_data["u"].sum(1).tolist() == [5, 5, 0, 0]
    assert padded.batch.tolist() == [0, 0, 1, 2, 2, 2] and padded.graph_mask.tolist() == [True, True, False, False]


def test_pad_tensor_along_any_dimension():
    x = torch.randn(2, 3, requires_grad=True)
    padded = pad_tensor(x, 5, 7.0, dim=-1)
    assert padded.shape == (2, 5) and (padded[:, 3:] == 7).all()
    padded.sum().backward()
    assert torch.equal(x.grad, torch.ones(2, 3))
    with pytest.raises(ValueError, match=r"x has shape \(2, 3\); expected at most 2 along dimension 1"):
        pad_tensor(x, 2, dim=1)


EDGES = torch.tensor([[0, 1, 2], [1, 2, 0]])


@pytest.mark.parametrize(
    "arguments, options, message",
    [
        ((EDGES[0], 3), {}, r"edge_index has shape \(3,\); expected \(2, number of edges\)"),
        ((EDGES, 3, {"x": torch.ones(4, 2)}), {}, r"'x' of node_data has shape \(4, 2\); expected 3 rows"),
        ((EDGES, 3, None, {"w": torch.ones(2)}), {}, r"'w' of edge_data has shape \(2,\); expected 3 rows"),
        ((EDGES, 3, None, None, {"u": torch.ones(1)}), {}, r"graph_data has \['u'\]; expected none without batch"),
        ((EDGES, 3), {"batch": torch.zeros(3).long()}, "num_graphs is None; expected the number of graphs"),
        ((EDGES, 3), {"nodes": 4}, "the number of nodes with 2 padding nodes is 5; expected at most 4"),
        ((EDGES, 3), {"edges": 2}, "the number of edges is 3; expected at most 2"),
        (
            (EDGES, 3),
            {"batch": torch.zeros(3).long(), "num_graphs": 1, "graphs": 1},
            "with a padding graph is 2; expected at most 1",
        ),
    ],
)
def test_wrong_arguments(arguments, options, message):
    with pytest.raises(ValueError, match=message):
        pad_graph(*arguments, **options)


# ---- real rows -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["sum", "max", "softmax", "attention"])
def test_real_rows_are_bitwise_the_same(name, dtype):
    num_nodes, edge_index = 90, torch.randint(90, (2, 500))
    x, e = torch.randn(num_nodes, 2, 8).to(dtype), torch.randn(500, 2, 1).to(dtype)
    grad = torch.randn(num_nodes, 2, 8).to(dtype)
    functions = {
        "sum": lambda g, x, e: ops.gspmm(g, "mul", "sum", x, e),
        "max": lambda g, x, e: ops.gspmm(g, "mul", "max", x, e),
        "softmax": lambda g, x, e: ops.gspmm(g, "mul", "sum", x, ops.edge_softmax(g, e)),
        "attention": lambda g, x, e: ops.gat_attention(g, x, x[..., 0], x[..., 1]) + 0 * e.sum(),
    }

    def run(edge_index, x, e, grad):
        x, e = x.clone().requires_grad_(), e.clone().requires_grad_()
        out = functions[name](Graph.from_edge_index(edge_index, num_src=len(x), num_dst=len(x)), x, e)
        return [out, *torch.autograd.grad(out, [x, e], grad)]

    expected = run(edge_index, x, e, grad)
    p = pad_graph(edge_index, num_nodes, {"x": x, "grad": grad}, {"e": e})
    actual = run(p.edge_index, p.node_data["x"], p.edge_data["e"], p.node_data["grad"])
    for real, padded, mask in zip(expected, actual, [p.node_mask, p.node_mask, p.edge_mask]):
        assert torch.equal(padded[mask], real)
    assert all(gradient[~mask].count_nonzero() == 0 for gradient, mask in zip(actual[1:], [p.node_mask, p.edge_mask]))


# ---- losses ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(7,), (7, 3)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_masked_mean_is_that_of_real_rows(shape, dtype):
    real = torch.randn(shape).to(dtype).requires_grad_()
    expected = real.double().mean()
    means = []
    for size in (7, 8, 300):
        values = pad_tensor(real, size, math.nan)
        mean = masked_mean(values, torch.arange(size) < 7)
        (gradient,) = torch.autograd.grad(mean, real)
        torch.testing.assert_close(gradient, torch.full_like(real, 1 / real.numel()))
        means.append(mean)
    assert means[0].dtype == (torch.float32 if dtype == torch.bfloat16 else dtype)
    torch.testing.assert_close(means[0].double(), expected, rtol=1e-6, atol=1e-6)
    assert means[0] == means[1] == means[2]


def test_masked_mean_of_nothing_is_0_and_wrong_masks_raise():
    assert masked_mean(torch.full((3,), math.inf), torch.zeros(3).bool()) == 0
    for mask in (torch.ones(3), torch.ones(2).bool(), torch.ones(3, 1).bool()):
        with pytest.raises(ValueError, match=r"expected bool, one for each row of values, which has shape \(3, 2\)"):
            masked_mean(torch.ones(3, 2), mask)


# ---- norms -----------------------------------------------------------------------------------------------------------------------


def close(actual, expected, dtype):
    tolerance = {torch.float64: 1e-12, torch.float32: 2e-5}.get(dtype, 2e-2)
    torch.testing.assert_close(actual, expected.to(actual.dtype), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "shape, options",
    [
        ((50, 6), {}),
        ((50, 6, 3), {}),
        ((50, 6), {"momentum": None}),
        ((50, 6), {"affine": False}),
        ((50, 6), {"track_running_stats": False}),
    ],
    ids=str,
)
def test_masked_norm_is_that_of_real_rows(shape, options, dtype):
    wide = dtype if dtype == torch.float64 else torch.float32
    baseline, ours = nn.BatchNorm1d(6, **options).double(), MaskedBatchNorm(6, **options).to(wide)
    for parameter in baseline.parameters():
        nn.init.normal_(parameter)
    ours.load_state_dict(baseline.state_dict())
    for step in range(3):
        x = (torch.randn(shape) * 3 + 5 * step).to(dtype)
        grad = torch.randn(shape).to(dtype)
        expected = with_gradients(
            baseline, x.double(), grad.double()
        )  # in fp32 torch's own differs more from it than ours
        padded = pad_tensor(x, 64, math.nan)
        actual = with_gradients(ours, padded, pad_tensor(grad, 64), torch.arange(64) < 50)
        assert actual[0].dtype == dtype and actual[0].isfinite().all()
        assert actual[1][50:].count_nonzero() == 0
        close(actual[0][:50], expected[0], dtype)
        close(actual[1][:50], expected[1], dtype)
        for mine, other in zip(actual[2:], expected[2:]):
            close(mine, other, dtype)
    for name, value in baseline.state_dict().items():
        close(ours.state_dict()[name], value, wide)
    ours.eval(), baseline.eval()
    close(ours(x), baseline(x.double()), dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_masked_norm_has_the_dtype_of_torch_s(dtype):
    x = torch.randn(9, 4).to(dtype)
    assert MaskedBatchNorm(4)(x, torch.ones(9).bool()).dtype == nn.BatchNorm1d(4)(x).dtype == dtype


def with_gradients(norm, x, grad, *mask):
    x = x.clone().requires_grad_()
    out = norm(x, *mask)
    return [out.detach(), *torch.autograd.grad(out, [x, *norm.parameters()], grad)]


def test_a_norm_without_masks_is_torch_s():
    x, baseline, ours = torch.randn(30, 4), nn.BatchNorm1d(4), MaskedBatchNorm(4)
    assert torch.equal(ours(x), baseline(x)) and torch.equal(ours.running_var, baseline.running_var)


def test_norms_take_the_mask_of_as_many_rows():
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.BatchNorm1d(4), nn.LayerNorm(4)))
    reference, parameters = copy.deepcopy(model), dict(model.named_parameters())
    assert mask_norms(model) is model and type(model[1][0]) is MaskedBatchNorm
    assert all(parameters[name] is parameter for name, parameter in model.named_parameters())
    nodes, graphs = torch.arange(32) < 20, torch.arange(8) < 5
    for mask in (nodes, graphs):
        x = torch.randn(len(mask), 4)
        with real_rows(nodes, None, graphs):
            out = model(x)
        torch.testing.assert_close(out[mask], reference(x[mask]))
    torch.testing.assert_close(model.state_dict(), reference.state_dict())


def test_masks_that_do_not_fit_raise():
    norm, x = MaskedBatchNorm(4), torch.randn(8, 4)
    mask = torch.ones(8).bool()
    with (
        real_rows(mask),
        pytest.raises(ValueError, match=r"x has shape \(9, 4\), and 0 of the masks .* they have \[8\]"),
    ):
        norm(torch.randn(9, 4))
    with real_rows(mask, mask.clone()):
        with pytest.raises(ValueError, match="and 2 of the masks"):
            norm(x)
        norm(x, mask)
        norm.eval()(x)
    norm.train()(torch.randn(9, 4))  # out of the block
    with pytest.raises(ValueError, match="expected bool, one for each row of x"):
        norm(x, mask[1:])
    with pytest.raises(ValueError, match="1 is a SyncBatchNorm; expected nn"):
        mask_norms(nn.Sequential(nn.Linear(4, 4), nn.SyncBatchNorm(4)))
