"""Modules made on the meta device, and calls while meta is the default device."""

import contextlib

import pytest
import torch

import halfgnn.pyg
from tests.nn.test_default_device import every_way
from tests.pyg import test_wrapped_layers as layers
from tests.pyg.support_pyg import make_edge_index
from tests.support_nn import assert_close


def leaves_of(name, edge_index):
    return [x.clone().requires_grad_() for x in layers.inputs_of(name, edge_index)]


def results(module, name, edge_index, context):
    leaves = leaves_of(name, edge_index)
    with context:
        out = layers.caller(name, edge_index)(module, *leaves)
        parts = out if isinstance(out, tuple) else (out,)
        loss = sum(part.square().sum() for part in parts)
        return [*parts, *torch.autograd.grad(loss, leaves)]


@every_way
@pytest.mark.parametrize("name", layers.MODULES)
def test_made_on_meta(name, way):
    reference, edge_index = layers.maker(halfgnn.pyg, name)(), make_edge_index()
    with way("meta"):
        module = layers.maker(halfgnn.pyg, name)()
    # torch_geometric makes the bias of ResGatedGraphConv on the CPU.
    assert all(x.is_meta for key, x in module.state_dict().items() if (name[:3], key) != ("Res", "bias"))
    module = module.to_empty(device="cpu")
    module.load_state_dict(reference.state_dict())
    nothing = contextlib.nullcontext()
    assert_close(*(results(conv, name, edge_index, nothing) for conv in (module, reference)))


TYPED = {"RGCNConv", "HeteroLinear"}  # the call makes their types, on the default device


@every_way
@pytest.mark.parametrize("name", sorted(set(layers.MODULES) - TYPED))
def test_calls_under_another_default_device(name, way):
    module = layers.maker(halfgnn.pyg, name)()
    expected = results(module, name, make_edge_index(), contextlib.nullcontext())
    assert_close(results(module, name, make_edge_index(), way("meta")), expected)
