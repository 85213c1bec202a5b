"""halfgnn.pyg.patch(products="fp32"): PyTorch's products of halves in fp32, on processors where they are slow."""

from __future__ import annotations

import sys
import types

import pytest
import torch
import torch.nn.functional as F
import torch.utils.checkpoint
import torch_geometric.nn as theirs
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import halfgnn.pyg
from halfgnn.common import products
from tests.pyg.support_pyg import Layer
from tests.pyg.test_patch_modules import NUM_EDGES, NUM_NODES, WIDTH, edges, randn
from tests.support import HALVES

every_half = pytest.mark.parametrize("dtype", HALVES, ids=str)
every_mode = pytest.mark.parametrize("is_autocast", [False, True], ids=["half", "autocast"])
FUNCTIONS = [(F, "linear"), *((torch, name) for name in ("matmul", "mm", "addmm"))]
METHODS = [(Tensor, name) for name in ("matmul", "__matmul__", "mm", "addmm")]
ROWS = 300  # two chunks


@pytest.fixture(autouse=True)
def _slow(monkeypatch):
    """As on processors where products of halves are slow."""
    monkeypatch.setattr(products, "_FAST_HALVES", ())
    monkeypatch.setattr(products, "_CHUNK", 1)


def in_fp32(**options):
    return halfgnn.pyg.accelerate(products="fp32", **options)


def multiplied():
    """The products that were made in fp32, by function."""
    return {
        name.removeprefix("fp32:"): calls
        for name, calls in halfgnn.pyg.stats()["routed"].items()
        if name.startswith("fp32:")
    }


def leaves_of(x_shape, *shapes, dtype=torch.float32):
    return [randn(*shape, seed=i).to(dtype).requires_grad_() for i, shape in enumerate((x_shape, *shapes))]


# ---- values --------------------------------------------------------------------------------------------------------------------


CALLS = {  # the function that is counted, shapes of operands, the call
    "linear": ("linear", [(ROWS, 7), (5, 7)], lambda x, w: F.linear(x, w)),
    "linear-bias": ("linear", [(ROWS, 7), (5, 7), (5,)], lambda x, w, b: F.linear(x, w, b)),
    "linear-named": ("linear", [(2, ROWS, 7), (5, 7), (5,)], lambda x, w, b: F.linear(x, bias=b, weight=w)),
    "matmul": ("matmul", [(ROWS, 7), (7, 5)], lambda x, w: torch.matmul(x, w)),
    "@": ("matmul", [(2, ROWS, 7), (5, 7)], lambda x, w: x @ w.t()),
    "Tensor.matmul": ("matmul", [(ROWS, 7), (7, 5)], lambda x, w: x.matmul(w)),
    "mm": ("mm", [(7, ROWS), (7, 5)], lambda x, w: torch.mm(x.t(), w)),
    "Tensor.mm": ("mm", [(ROWS, 7), (7, 5)], lambda x, w: x.mm(w)),
    "addmm": ("addmm", [(ROWS, 7), (7, 5), (5,)], lambda x, w, b: torch.addmm(b, x, w)),
    "addmm-scaled": ("addmm", [(ROWS, 7), (7, 5), (ROWS, 1)], lambda x, w, b: torch.addmm(b, x, w, alpha=0.5, beta=2)),
    "Tensor.addmm": ("addmm", [(ROWS, 7), (7, 5), (ROWS, 5)], lambda x, w, b: b.addmm(x, w)),
}


@every_mode
@every_half
@pytest.mark.parametrize("name", CALLS)
def test_products_are_rounded_once(name, dtype, is_autocast):
    counted, shapes, call = CALLS[name]
    leaves = leaves_of(*shapes, dtype=torch.float32 if is_autocast else dtype)
    with in_fp32():
        with torch.autocast("cpu", dtype, enabled=is_autocast):
            out = call(*leaves)
        upstream = randn(*out.shape, seed=9).to(dtype)
        grads = torch.autograd.grad(out, leaves, upstream)
    assert multiplied() == {counted: 1} and out.dtype == dtype
    wide = [x.detach().double().requires_grad_() for x in (leaves[0].to(dtype), *leaves[1:])]
    exact = call(*wide)
    for actual, expected, like in zip(
        (out, *grads), (exact, *torch.autograd.grad(exact, wide, upstream.double())), (out, *leaves)
    ):
        assert actual.dtype == like.dtype and actual.shape == like.shape
        eps = 1e-5 if actual.dtype == torch.float32 and like is not leaves[0] else torch.finfo(dtype).eps
        assert ((actual.double() - expected).abs() <= 0.51 * eps * expected.abs() + 1e-5).all()


@every_half
def test_second_derivatives(dtype):
    def twice(x, w):
        first = torch.autograd.grad(F.linear(x, w).to(torch.float64).sin().sum(), (x, w), create_graph=True)
        return torch.autograd.grad(sum(grad.double().square().sum() for grad in first), (x, w))

    leaves = [x.detach().mul(0.3).to(dtype).requires_grad_() for x in leaves_of((ROWS, 7), (5, 7))]
    with in_fp32():
        actual = twice(*leaves)
    expected = twice(*(x.detach().double().requires_grad_() for x in leaves))
    assert multiplied() == {"linear": 1}
    for a, b in zip(actual, expected):
        assert (a.double() - b).norm() < 8 * torch.finfo(dtype).eps * b.norm()


MODULES = {  # how many products a call makes
    "GCNConv": (lambda: theirs.GCNConv(WIDTH, 5), {"linear": 1}),
    "GATConv": (lambda: theirs.GATConv(WIDTH, 5, heads=2), {"linear": 1}),
    "SAGEConv": (lambda: theirs.SAGEConv(WIDTH, 5), {"linear": 2}),
    "GCN2Conv": (lambda: theirs.GCN2Conv(WIDTH, 0.1, 0.5, 1, shared_weights=False), {"addmm": 2}),
    "GatedGraphConv": (lambda: theirs.GatedGraphConv(WIDTH, 1), {"matmul": 1}),
}


@every_mode
@every_half
@pytest.mark.parametrize("name", MODULES)
def test_unmodified_modules(name, dtype, is_autocast):
    make, counts = MODULES[name]
    torch.manual_seed(0)
    conv, x = make().float(), randn(NUM_NODES, WIDTH, seed=1).float()
    arguments = (x, x) if name == "GCN2Conv" else (x,)
    expected = conv(*arguments, edges())
    wide = torch.autograd.grad(expected.square().sum(), conv.parameters())
    if not is_autocast:
        conv, arguments = conv.to(dtype), [x.to(dtype) for x in arguments]
    # Fused modules know by themselves which products are slow.
    with halfgnn.pyg.accelerate(fuse=False), torch.autocast("cpu", dtype, enabled=is_autocast):
        without = conv(*arguments, edges())
    assert multiplied() == {}
    with in_fp32(fuse=False):
        with torch.autocast("cpu", dtype, enabled=is_autocast):
            out = conv(*arguments, edges())
        grads = torch.autograd.grad(out.float().square().sum(), conv.parameters())
    assert multiplied() == counts and out.dtype == without.dtype
    for actual, right in zip((out, *grads), (expected, *wide)):
        assert (actual.float() - right).norm() <= 8 * torch.finfo(dtype).eps * right.norm()


@every_half
def test_messages_are_multiplied_in_fp32(dtype):
    weight, x = randn(WIDTH, 5, seed=2).to(dtype), randn(NUM_NODES, WIDTH, seed=1).to(dtype).requires_grad_()
    layer, w = Layer(lambda x_j, w: torch.matmul(x_j, weight)), randn(NUM_EDGES, 1, seed=3)

    def run(x):
        out = layer(x, edges(), w)
        return out, *torch.autograd.grad(out.sum(), x)

    with in_fp32():
        actual = run(x)
    assert multiplied() == {"matmul": 1}
    for a, b in zip(actual, run(x)):
        assert (a.float() - b.float()).norm() <= 4 * torch.finfo(dtype).eps * b.float().norm()


# ---- what is left to PyTorch ---------------------------------------------------------------------------------------------------


class Subclass(Tensor):
    functions: list = []  # noqa: RUF012

    @classmethod
    def __torch_function__(cls, function, *args, **kwargs):
        cls.functions.append(function)
        return super().__torch_function__(function, *args, **kwargs)


def dual(x, w):
    with torch.autograd.forward_ad.dual_level():
        return torch.autograd.forward_ad.unpack_dual(torch.autograd.forward_ad.make_dual(x, x) @ w).tangent


def dispatched(x, w):
    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            return function(*args, **(kwargs or {}))

    with Mode():
        return x @ w


LEFT = {
    "fp32": lambda x, w: x.float() @ w.float(),
    "fp64": lambda x, w: F.linear(x.double(), w.double().t()),
    "vector": lambda x, w: x[0] @ w,
    "vectors": lambda x, w: x @ w[:, 0],
    "batches": lambda x, w: torch.matmul(x[None], w[None]),
    "nothing": lambda x, w: x[:0] @ w,
    "out": lambda x, w: torch.mm(x, w, out=x.new_empty(len(x), w.shape[1])),
    "no summand": lambda x, w: torch.addmm(x.new_full((1,), torch.nan), x, w, beta=0),
    "sparse": lambda x, w: x.float().to_sparse() @ w.float(),
    "functorch": lambda x, w: torch.func.vmap(lambda row: torch.mm(row[None], w))(x),
    "forward-mode AD": dual,
    "dispatch mode": dispatched,
    "subclass": lambda x, w: x.as_subclass(Subclass).matmul(w).as_subclass(Tensor),
    "meta": lambda x, w: torch.zeros((x.to("meta") @ w.to("meta")).shape),
    "trace": lambda x, w: torch.jit.trace(torch.mm, (x, w), check_trace=False)(x, w),
}


@pytest.mark.parametrize("name", LEFT)
def test_what_is_left_to_pytorch(name):
    x, w = randn(8, 7, seed=1).bfloat16(), randn(7, 5, seed=2).bfloat16()
    expected = LEFT[name](x, w)
    with in_fp32():
        assert torch.equal(LEFT[name](x, w), expected)
    assert multiplied() == {}


def test_fast_products_are_left_to_pytorch(monkeypatch):
    monkeypatch.setattr(products, "_FAST_HALVES", (torch.bfloat16,))
    x = randn(8, 8, seed=1)
    with in_fp32():
        x.bfloat16() @ x.bfloat16()
        assert multiplied() == {}
        x.half() @ x.half()
    assert multiplied() == {"matmul": 1}


WRONG = {
    "shape": lambda x, w: F.linear(x, w[:, 1:]),
    "bias": lambda x, w: F.linear(x, w, w[0]),
    "dtype": lambda x, w: torch.mm(x, w.t().float()),
    "summand": lambda x, w: torch.addmm(w, x, w.t()),
    "argument": lambda x, w: torch.matmul(x, w.t(), x),
}


@pytest.mark.parametrize("name", WRONG)
def test_errors_are_those_of_pytorch(name):
    x, w = randn(8, 7, seed=1).bfloat16(), randn(5, 7, seed=2).bfloat16()
    with pytest.raises((RuntimeError, TypeError)) as expected:
        WRONG[name](x, w)
    with in_fp32(), pytest.raises(expected.type) as actual:
        WRONG[name](x, w)
    assert str(actual.value) == str(expected.value)


def test_subclasses_see_the_originals():
    x, w = randn(8, 7, seed=1).bfloat16().as_subclass(Subclass), randn(7, 5, seed=2).bfloat16()
    Subclass.functions.clear()
    expected = [getattr(owner, name) for owner, name in (FUNCTIONS[1], FUNCTIONS[0], *METHODS[:3])]
    with in_fp32():
        torch.matmul(x, w), F.linear(x, w.t()), x.matmul(w), x @ w, x.mm(w)
    seen = [function for function in Subclass.functions if not isinstance(function, types.MethodWrapperType)]
    assert seen == expected


@pytest.mark.parametrize("is_first_on", [False, True])
def test_compiled_and_scripted_code_is_pytorchs(is_first_on):
    """torch.compile and TorchScript look up functions by name, once: before or while the option is on."""
    if "torch._dynamo" in sys.modules:
        torch._dynamo.trace_rules.clear_lru_cache()
    layer, x, w = torch.nn.Linear(7, 5).bfloat16(), randn(8, 7, seed=1).bfloat16(), randn(7, 5, seed=2).bfloat16()

    def function(x, w):
        return torch.matmul(x, w) + x.mm(w) + x @ w + torch.addmm(torch.mm(x, w), x, w) + F.linear(x, w.t())

    def check():
        compiled = torch.compile(lambda x: layer(x) + function(x, w), backend="aot_eager", fullgraph=True)
        torch._dynamo.reset()
        actual = compiled(x), torch.jit.script(layer)(x) + torch.jit.script(function)(x, w)
        for out in actual:
            torch.testing.assert_close(out, expected)
        kinds = [node.kind() for node in torch.jit.script(function).graph.nodes()]
        assert {"aten::matmul", "aten::mm", "aten::addmm", "aten::linear"} <= set(kinds)

    expected = layer(x) + function(x, w)
    if not is_first_on:
        check()
    with in_fp32():
        check()
    assert multiplied() == {}
    check()


# ---- patching ------------------------------------------------------------------------------------------------------------------


def bound():
    return {(owner, name): getattr(owner, name) for owner, name in (*FUNCTIONS, *METHODS)}


def test_unpatch_restores_everything():
    before, own = bound(), set(vars(Tensor))
    halfgnn.pyg.patch()
    assert bound() == before
    halfgnn.pyg.patch(products="fp32")
    assert {key for key, value in bound().items() if before[key] is value} == set()
    halfgnn.pyg.unpatch()
    assert bound() == before and set(vars(Tensor)) == own


def test_accelerate_nests():
    before = bound()
    with halfgnn.pyg.accelerate(fuse=True):
        with in_fp32():
            during = bound()
            with in_fp32():
                pass
            assert bound() == during != before
        assert bound() == before


@pytest.mark.parametrize("value", ["fp16", True, False, torch.float32, "FP32"], ids=str)
@pytest.mark.parametrize("call", [halfgnn.pyg.patch, halfgnn.pyg.accelerate])
def test_wrong_values(call, value):
    before = bound()
    with pytest.raises(ValueError, match=r"products is .*; expected None or 'fp32'"):
        call(products=value)
    assert bound() == before


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpoints_are_recomputed_in_fp32(use_reentrant):
    layer, x = torch.nn.Linear(7, 5).bfloat16(), randn(8, 7, seed=1).bfloat16().requires_grad_()
    with in_fp32():
        out = torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=use_reentrant)
    before = bound()
    out.sum().backward()
    assert multiplied() == {"linear": 2} and bound() == before


# ---- advice --------------------------------------------------------------------------------------------------------------------


@every_mode
@every_half
def test_advice(dtype, is_autocast, monkeypatch):
    conv, x = theirs.GraphConv(WIDTH, 5).float(), randn(NUM_NODES, WIDTH, seed=1).float()

    def advice(fast=(), **options):
        monkeypatch.setattr(products, "_FAST_HALVES", fast)
        halfgnn.pyg.reset_stats()
        module, features = (conv, x) if is_autocast else (conv.to(dtype), x.to(dtype))
        with halfgnn.pyg.accelerate(**options), torch.autocast("cpu", dtype, enabled=is_autocast):
            module(features, edges())
        return halfgnn.pyg.stats().get("advice")

    assert advice() == {'products="fp32"': f"matrix products of {dtype} are slow on this processor"}
    assert advice(products="fp32") is None
    assert advice(fast=(dtype,)) is None
    halfgnn.pyg.reset_stats()
    with halfgnn.pyg.accelerate():
        conv.float()(x, edges())
    assert "advice" not in halfgnn.pyg.stats()
