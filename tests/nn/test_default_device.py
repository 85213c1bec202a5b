"""A default device, or a default dtype, makes parameters there; what is made inside a call is on the data's device."""

import contextlib

import pytest
import torch

import halfgnn
import halfgnn.nn
from tests.nn import test_wrapped_layers as layers
from tests.support_nn import NUM_NODES, assert_close, random_edges

MODULES = {**layers.MODULES, **layers.OWN}


@contextlib.contextmanager
def set_default_device(device):
    torch.set_default_device(device)
    try:
        yield
    finally:
        torch.set_default_device(None)


every_way = pytest.mark.parametrize("way", [torch.device, set_default_device])


@every_way
@pytest.mark.parametrize("name", MODULES)
def test_made_on_meta(name, way):
    reference = layers.maker(halfgnn.nn, name)()
    with way("meta"):
        module = layers.maker(halfgnn.nn, name)()
    assert all(x.is_meta for x in module.state_dict().values())
    module = module.to_empty(device="cpu")
    module.load_state_dict(reference.state_dict())
    call = layers.caller(name, layers.make_graph())
    results = [call(conv, *layers.inputs_of(name)) for conv in (module.eval(), reference.eval())]
    assert_close(*(out if isinstance(out, tuple) else (out,) for out in results))


@pytest.mark.parametrize("name", MODULES)
def test_default_dtype(name):
    torch.set_default_dtype(torch.float64)
    try:
        make, _ = MODULES[name]
        module = make(halfgnn.nn)
    finally:
        torch.set_default_dtype(torch.float32)
    assert {x.dtype for x in module.state_dict().values() if x.is_floating_point()} <= {torch.float64}
    layers.caller(name, layers.make_graph())(module, *layers.inputs_of(name))


@every_way
@pytest.mark.parametrize("name", MODULES)
def test_calls_under_another_default_device(name, way):
    """The graph is made there too."""
    module, inputs = layers.maker(halfgnn.nn, name)().eval(), layers.inputs_of(name)
    results = []
    for context in (contextlib.nullcontext(), way("meta")):
        edges = random_edges()
        leaves = [x.clone().requires_grad_() for x in inputs]
        with context:
            one = halfgnn.Graph.from_edges(*edges, num_src=NUM_NODES, num_dst=NUM_NODES)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(layers, "make_graph", lambda one=one: one)
                out = layers.caller(name, one)(module, *leaves)
            parts = out if isinstance(out, tuple) else (out,)
            loss = sum(part.square().sum() for part in parts)
            results.append([*parts, *torch.autograd.grad(loss, leaves)])
    assert_close(*results)


@every_way
def test_stacks_under_another_default_device(way):
    src, dst = random_edges(num_edges=20)
    with way("meta"):
        one = halfgnn.Graph.from_edges(src % 5, dst, num_src=NUM_NODES, num_dst=NUM_NODES)
        stack = halfgnn.HeteroGraph({("a", "x", "a"): one, ("a", "y", "a"): one}).stack()
    assert stack.graph.device.type == "cpu" and all(ids is None or ids.device.type == "cpu" for ids in stack.src_ids)
