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
    for given in ({}, options):
        torch.manual_seed(3)
        extra = (
            {"allow_zero_in_degree": True} if "allow_zero_in_degree" in parameters(name) else {}
        )  # "random" has some
        found.append(getattr(nn, name)(*arguments, **extra, **given)(g, x))
    return found


def parameters(name):
    return inspect.signature(getattr(nn, name)).parameters


ARGUMENTS = {"GATConv": (6, 4, 2), "GATv2Conv": (6, 4, 2), "GraphConv": (6, 4), "GINConv": ()}


@pytest.mark.parametrize("name", [name for name in MODULES if name != "SAGEConv"])
def test_activation(name):
    plain, activated = results(name, *ARGUMENTS[name], activation=torch.tanh)
    assert (plain.abs() > 1e-3).any() and torch.equal(activated, torch.tanh(plain))


@pytest.mark.parametrize("aggregator", ["mean", "gcn", "pool", "lstm"])
def test_sageconv(aggregator):
    arguments = (6, 4, aggregator)
    plain, activated = results("SAGEConv", *arguments, activation=torch.tanh)
    assert (plain.abs() > 1e-3).any() and torch.equal(activated, torch.tanh(plain))
    assert torch.equal(results("SAGEConv", *arguments, norm=torch.exp)[1], torch.exp(plain))
    both = results("SAGEConv", *arguments, activation=torch.tanh, norm=torch.exp)[1]
    assert torch.equal(both, torch.exp(torch.tanh(plain)))
