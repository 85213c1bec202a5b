"""RGCNConv of small graphs that are new in every step: all relations are reduced at once, and nothing is kept of the edges."""

from __future__ import annotations

import pytest
import torch
import torch_geometric.nn as upstream

import halfgnn.pyg
from tests.pyg.test_patch_new_batches import EDGES, NODES, WIDTH, _users_sizes, edges, features, pytestmark  # noqa: F401

RELATIONS = 4
RGCN = {
    "mean": {},
    "sum": {"aggr": "sum", "root_weight": False, "bias": False},
    "bases": {"num_bases": 2},
    "blocks": {"num_blocks": 2},
}


def relations():
    """The last one has no edge."""
    return torch.randint(RELATIONS - 1, (EDGES,), generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", RGCN)
def test_relations_are_reduced_at_once(name, dtype):
    torch.manual_seed(4)
    conv, x = upstream.RGCNConv(WIDTH, 6, RELATIONS, **RGCN[name]).to(dtype), features(dtype)

    def results():
        out = conv(x, edges(), relations())
        return out, *torch.autograd.grad(out.pow(2).sum(), (x, *conv.parameters()))

    expected = results()
    with halfgnn.pyg.accelerate():
        found = results()
    assert halfgnn.pyg.stats() == {"routed": {"coo_sum:RGCNConv": 1}, "fell_back": {}}
    for a, b in zip(found, expected, strict=True):
        assert a.dtype is b.dtype
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5 * float(b.abs().max()))


def test_relations_between_nodes_of_two_kinds():
    torch.manual_seed(4)
    conv, x = upstream.RGCNConv((WIDTH, 7), 6, RELATIONS), (features().detach(), torch.randn(NODES // 2, 7))
    index = edges(NODES // 2)
    expected = conv(x, index, relations())
    with halfgnn.pyg.accelerate():
        torch.testing.assert_close(conv(x, index, relations()), expected, rtol=1e-4, atol=1e-5)
    assert halfgnn.pyg.stats()["routed"] == {"coo_sum:RGCNConv": 1}


@pytest.mark.parametrize("wrong", [-1, RELATIONS])
def test_edges_of_no_relation_are_left_out_as_pyg_does(wrong):
    torch.manual_seed(4)
    conv, x, kinds = upstream.RGCNConv(WIDTH, 6, RELATIONS, num_blocks=2), features().detach(), relations()
    kinds[:7] = wrong
    expected = conv(x, edges(), kinds)
    with halfgnn.pyg.accelerate():
        torch.testing.assert_close(conv(x, edges(), kinds), expected)
    assert "coo_sum:RGCNConv" not in halfgnn.pyg.stats()["routed"]


@pytest.mark.parametrize("when", ["modified", "inference mode"])
def test_edges_of_relations_that_are_not_kept(when):
    torch.manual_seed(4)
    conv, x = upstream.RGCNConv(WIDTH, 6, RELATIONS), features()

    def result():
        with torch.inference_mode(when == "inference mode"):
            index = edges()
        out = conv(x, index, relations())
        if when == "modified":
            index.zero_()
        return torch.autograd.grad(out.pow(2).sum(), x)

    expected = result()
    with halfgnn.pyg.accelerate():
        torch.testing.assert_close(result(), expected, rtol=1e-4, atol=1e-4)
    assert halfgnn.pyg.stats()["routed"] == {"coo_sum:RGCNConv": 1}


@pytest.mark.parametrize("rows, width", [(0, 6), (NODES, 0)])
def test_relations_without_results(rows, width):
    conv = upstream.RGCNConv((WIDTH, 7), width, RELATIONS)
    index = edges()[:, : EDGES if rows else 0]
    with halfgnn.pyg.accelerate():
        out = conv((features(), torch.ones(rows, 7)), index, relations()[: index.shape[1]])
    assert out.shape == (rows, width)


@pytest.mark.parametrize("row, wrong", [(0, NODES), (0, -1), (1, NODES), (1, -1), (1, 2**62)])
def test_errors_of_ids_of_relations_are_those_of_pyg(row, wrong):
    conv, x, index = upstream.RGCNConv(WIDTH, 6, RELATIONS, num_bases=2), features(), edges()
    index[row, 5] = wrong

    def error():
        with pytest.raises((IndexError, RuntimeError, ValueError)) as caught:
            conv(x, index, relations())
        return str(caught.value)

    expected = error()
    with halfgnn.pyg.accelerate():
        assert error() == expected


@pytest.mark.parametrize("change", ["dtype of features", "width of features", "number of types", "no destinations"])
def test_errors_of_operands_of_relations_are_those_of_pyg(change):
    conv, x, index, kinds = upstream.RGCNConv(WIDTH, 6, RELATIONS, num_bases=2), features(), edges(), relations()
    x = {"dtype of features": x.double(), "width of features": x[:, 1:], "no destinations": (x, None)}.get(change, x)
    kinds = kinds[1:] if change == "number of types" else kinds

    def error():
        with pytest.raises((IndexError, RuntimeError, ValueError, AttributeError)) as caught:
            conv(x, index, kinds)
        return caught.type, str(caught.value)

    expected = error()
    with halfgnn.pyg.accelerate():
        assert error() == expected


def test_relations_under_a_transform_are_those_of_pyg():
    torch.manual_seed(4)
    conv, x = upstream.RGCNConv(WIDTH, 6, RELATIONS, num_blocks=2), features().detach()

    def gradient():
        return torch.func.grad(lambda x: conv(x, edges(), relations()).pow(2).sum())(x)

    expected = gradient()
    with halfgnn.pyg.accelerate():
        torch.testing.assert_close(gradient(), expected)
    assert halfgnn.pyg.stats()["routed"] == {}


@pytest.mark.parametrize("change", ["max", "many pairs", "half", "hooks"])
def test_relations_that_are_not_reduced_at_once(change):
    torch.manual_seed(4)
    conv = upstream.RGCNConv(
        WIDTH, 6, 200 if change == "many pairs" else RELATIONS, **({"aggr": "max"} if change == "max" else {})
    )
    dtype = torch.bfloat16 if change == "half" else torch.float32
    if change == "hooks":
        conv.register_message_forward_hook(lambda module, inputs, out: None)
    with halfgnn.pyg.accelerate(), torch.no_grad():
        conv.to(dtype)(features(dtype), edges(), relations())
    assert "coo_sum:RGCNConv" not in halfgnn.pyg.stats()["routed"]
