"""The activation of a module, and the norm of SAGEConv, are applied to its result, in that order."""

import inspect

import pytest
import torch

from halfgnn import nn
from tests.support import make_graph, randn

MODULES = [name for name in nn.__all__ if "activation" in inspect.signature(getattr(nn, name)).parameters]


def results(name, *arguments, **options):
    """The results of the module without and with `options`, with the same seed."""
    torch.manual_seed(2)
    x, g = randn(30, 6, dtype=torch.float32), make_graph("random")
    found = []
    edges = [randn(g.num_edges, 5, dtype=torch.float32)] if name in WITH_EDGES else []
    for given in ({}, options):
        torch.manual_seed(3)
        extra = (
            {"allow_zero_in_degree": True} if "allow_zero_in_degree" in parameters(name) else {}
        )  # "random" has some
        found.append(getattr(nn, name)(*arguments, **extra, **given)(g, x, *edges))
    return found


def parameters(name):
    return inspect.signature(getattr(nn, name)).parameters


ARGUMENTS = {
    "GATConv": (6, 4, 2),
    "GATv2Conv": (6, 4, 2),
    "GraphConv": (6, 4),
    "GINConv": (),
    "EdgeGATConv": (6, 5, 4, 2),
}
WITH_EDGES = ("EdgeGATConv", "GatedGCNConv")


@pytest.mark.parametrize("name", [name for name in MODULES if name not in ("SAGEConv", "GatedGCNConv")])
def test_activation(name):
    plain, activated = results(name, *ARGUMENTS[name], activation=torch.tanh)
    assert (plain.abs() > 1e-3).any() and torch.equal(activated, torch.tanh(plain))


def test_gatedgcnconv():
    """Its activation is relu unless another one, or none, is given."""
    arguments = (6, 5, 4, 0, False, False)
    rectified, plain = results("GatedGCNConv", *arguments, activation=None)
    _, activated = results("GatedGCNConv", *arguments, activation=torch.tanh)
    for default, none, tanh in zip(rectified, plain, activated):
        assert (none < -1e-3).any() and torch.equal(tanh, torch.tanh(none)) and torch.equal(default, torch.relu(none))


@pytest.mark.parametrize("aggregator", ["mean", "gcn", "pool", "lstm"])
def test_sageconv(aggregator):
    arguments = (6, 4, aggregator)
    plain, activated = results("SAGEConv", *arguments, activation=torch.tanh)
    assert (plain.abs() > 1e-3).any() and torch.equal(activated, torch.tanh(plain))
    assert torch.equal(results("SAGEConv", *arguments, norm=torch.exp)[1], torch.exp(plain))
    both = results("SAGEConv", *arguments, activation=torch.tanh, norm=torch.exp)[1]
    assert torch.equal(both, torch.exp(torch.tanh(plain)))
