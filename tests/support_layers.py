"""Layers that a user has hooked, pruned, normalised, wrapped or frozen: a module must call them as its host does."""

from __future__ import annotations

import os

import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune, spectral_norm, weight_norm

from halfgnn.common.operands import is_linear
from tests.support_nn import randn, seeded


class LoRA(nn.Module):
    """A frozen layer and a trained product of two narrow matrices. It has no weight of its own."""

    def __init__(self, base):
        super().__init__()
        self.base = base.requires_grad_(False)
        rows, columns = base.weight.shape
        self.A = nn.Parameter(randn(2, columns, seed=11).to(base.weight))
        self.B = nn.Parameter(randn(rows, 2, seed=12).to(base.weight))

    def forward(self, x):
        return self.base(x) + x @ self.A.t() @ self.B.t()


class Called(nn.Module):
    """A layer from which nothing can be read: it can only be called."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, *args, **kwargs):
        return self.layer(*args, **kwargs)


class Softened(nn.Module):
    """A parametrization."""

    def forward(self, weight):
        return weight.tanh()


# ---- changes -----------------------------------------------------------------------------------------------------------------


def _softened(out):
    return tuple(map(_softened, out)) if isinstance(out, tuple) else out.tanh()


def _tripled(gradients):
    return tuple(None if grad is None else grad * 3 for grad in gradients)


def _changed_input(module, inputs):
    return tuple(x.sin() if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in inputs)


# A function may return the layer that takes its place.
HOOKS = {
    "hook": lambda layer: layer.register_forward_hook(lambda module, inputs, out: _softened(out)) and None,
    "pre-hook": lambda layer: layer.register_forward_pre_hook(_changed_input) and None,
    "backward hook": lambda layer: layer.register_full_backward_hook(lambda module, grads, _: _tripled(grads)) and None,
    "backward pre-hook": lambda layer: layer.register_full_backward_pre_hook(lambda _, grads: _tripled(grads)) and None,
}
# Of a linear layer's weight, or of a module's own parameter.
OF_WEIGHTS = {
    "prune": lambda layer, name="weight": prune.l1_unstructured(layer, name, 0.4) and None,
    "spectral_norm": lambda layer, name="weight": spectral_norm(layer, name) and None,
    "weight_norm": lambda layer, name="weight": weight_norm(layer, name) and None,
    "parametrized": lambda layer, name="weight": parametrize.register_parametrization(layer, name, Softened()) and None,
    "parametrized weight_norm": lambda layer, name="weight": parametrizations.weight_norm(layer, name) and None,
}
ALL = bool(os.environ.get("HALFGNN_TEST_ALL"))
CHANGES = {
    **HOOKS,
    **OF_WEIGHTS,
    "parametrized spectral_norm": lambda layer: parametrizations.spectral_norm(layer) and None,
    "LoRA": LoRA,
    "Sequential": nn.Sequential,
    "Sequential of two": lambda layer: nn.Sequential(layer, nn.Tanh()),
    "frozen": lambda layer: layer.requires_grad_(False) and None,
}


def layers_of(module, how):
    """The names of the layers to which a change applies: of more than six, as relations have them, every third, and of the next
    change the next ones. With HALFGNN_TEST_ALL=1 (make test-all) all of them."""
    named = [(name, layer) for name, layer in module.named_modules() if name]
    names = [name for name, layer in named if how in HOOKS or is_linear(layer)]
    return names if ALL or len(names) <= 6 else names[[*CHANGES].index(how) % 3 :: 3]


def change(module, name, how):
    """Changes the layer of that name."""
    new = seeded(lambda: CHANGES[how](module.get_submodule(name)))  # spectral_norm draws
    if new is not None:
        replace(module, name, new)


def replace(module, name, layer):
    path, _, leaf = name.rpartition(".")
    module.get_submodule(path)._modules[leaf] = layer


def only_called(module):
    """Puts every linear layer of a module behind one from which nothing can be read."""
    for name in [name for name, layer in module.named_modules() if name and is_linear(layer)]:
        replace(module, name, Called(module.get_submodule(name)))
    return module


# ---- results -----------------------------------------------------------------------------------------------------------------


def outcome(module, call, inputs):
    """The results of call(module, *inputs), the gradients of inputs and of parameters, and what is left in buffers."""
    inputs = [x.detach().clone().requires_grad_() for x in inputs]
    out = call(module, *inputs)
    parts = out if isinstance(out, tuple) else (out,)
    loss = sum((part * randn(*part.shape, seed=5).to(part)).sum() for part in parts)
    parameters = {name: p for name, p in module.named_parameters() if p.requires_grad}
    gradients = torch.autograd.grad(loss, [*inputs, *parameters.values()], allow_unused=True)
    names = [*(f"input {i}" for i in range(len(inputs))), *parameters]
    results = {f"result {i}": part.detach() for i, part in enumerate(parts)}
    return {**results, **dict(zip(names, gradients)), **dict(module.named_buffers())}


def assert_same_outcome(actual, expected, what, tolerance=1e-5):
    expected = {name.replace(".layer.", "."): value for name, value in expected.items()}  # of Called
    assert set(actual) == set(expected), what
    for name, value in expected.items():
        got = actual[name]
        if value is None or got is None:  # a gradient of zero may be None
            assert all(x is None or not x.any() for x in (value, got)), f"{name} of {what}"
            continue
        torch.testing.assert_close(
            got, value, rtol=tolerance, atol=tolerance, msg=lambda text, name=name: f"{name} of {what}: {text}"
        )


def assert_near_quantised(actual, expected):
    """A sum in another order, or in half precision, may move a feature to the next of 256 steps."""
    parts = [out if isinstance(out, tuple) else (out,) for out in (actual, expected)]
    for got, wanted in zip(*parts, strict=True):
        assert (got.float() - wanted).norm() <= 0.03 * wanted.norm()


def check_changes(make_theirs, make_ours, how, call_theirs, call_ours, inputs):
    """Changes each layer by itself, and compares with the host's module, changed in the same way, in a step after a step.

    make_theirs, make_ours: make the modules, in fp64.
    """
    for name in layers_of(make_theirs(), how):
        theirs, ours = make_theirs(), make_ours()
        ours.load_state_dict(theirs.state_dict())
        for module in (theirs, ours):
            change(module, name, how)
        check_steps(theirs, ours, call_theirs, call_ours, inputs, f"{how} of {name}")


def check_own_parameters(make_theirs, make_ours, how, call_theirs, call_ours, inputs):
    """The same for parameters that are the module's own, of two dimensions and more."""
    names = [name for name, p in make_theirs().named_parameters(recurse=False) if p.dim() > 1]
    for name in names:
        theirs, ours = make_theirs(), make_ours()
        ours.load_state_dict(theirs.state_dict())
        for module in (theirs, ours):
            seeded(lambda module=module, name=name: OF_WEIGHTS[how](module, name))
        check_steps(theirs, ours, call_theirs, call_ours, inputs, f"{how} of {name}")


def check_steps(theirs, ours, call_theirs, call_ours, inputs, what):
    for _ in range(2):
        expected = seeded(lambda: outcome(theirs, call_theirs, inputs))
        assert_same_outcome(seeded(lambda: outcome(ours, call_ours, inputs)), expected, what)
