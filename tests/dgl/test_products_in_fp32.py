"""halfgnn.dgl.patch(products="fp32"): PyTorch's products of halves in fp32, on processors where they are slow."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

dgl = pytest.importorskip("dgl", reason="dgl is not installed", exc_type=ImportError)

import dgl.nn as dglnn  # noqa: E402

import halfgnn.dgl  # noqa: E402
from halfgnn.common import products  # noqa: E402
from tests.dgl.support_dgl import heterograph, homogeneous, node_operands  # noqa: E402
from tests.support import HALVES  # noqa: E402

WIDTH = 7
every_half = pytest.mark.parametrize("dtype", HALVES, ids=str)
every_mode = pytest.mark.parametrize("is_autocast", [False, True], ids=["half", "autocast"])


@pytest.fixture(autouse=True)
def _slow(monkeypatch):
    """As on processors where products of halves are slow."""
    monkeypatch.setattr(products, "_FAST_HALVES", ())


def multiplied():
    """The products that were made in fp32, by function."""
    return {name: calls for name, calls in halfgnn.dgl.stats()["routed"].items() if name.startswith("fp32:")}


MODULES = {  # how many products a call makes
    "GraphConv": (lambda: dglnn.GraphConv(WIDTH, 5), {"fp32:matmul": 1}),
    "GATConv": (lambda: dglnn.GATConv(WIDTH, 5, 2), {"fp32:linear": 1}),
    "SAGEConv": (lambda: dglnn.SAGEConv(WIDTH, 5, "mean"), {"fp32:linear": 2}),
    "GCN2Conv": (lambda: dglnn.GCN2Conv(WIDTH, 1, project_initial_features=False), {"fp32:matmul": 2}),
}


@every_mode
@every_half
@pytest.mark.parametrize("name", MODULES)
def test_unmodified_modules(name, dtype, is_autocast):
    make, counts = MODULES[name]
    torch.manual_seed(0)
    g, conv, x = dgl.add_self_loop(homogeneous()), make(), torch.randn(30, WIDTH)
    initial = (x,) if name == "GCN2Conv" else ()
    expected = conv(g, x, *initial)
    wide = torch.autograd.grad(expected.square().sum(), conv.parameters())
    if not is_autocast:
        conv, x, initial = conv.to(dtype), x.to(dtype), [x.to(dtype) for x in initial]
    with halfgnn.dgl.accelerate(), torch.autocast("cpu", dtype, enabled=is_autocast):
        without = conv(g, x, *initial)
    assert multiplied() == {}
    with halfgnn.dgl.accelerate(products="fp32"):
        with torch.autocast("cpu", dtype, enabled=is_autocast):
            out = conv(g, x, *initial)
        grads = torch.autograd.grad(out.float().square().sum(), conv.parameters())
    assert multiplied() == counts and out.dtype == without.dtype
    for actual, right in zip((out, *grads), (expected, *wide)):
        assert (actual.float() - right).norm() <= 8 * torch.finfo(dtype).eps * right.norm()


def test_unpatch_restores_everything():
    before, own = (F.linear, torch.matmul, torch.mm, torch.addmm, torch.Tensor.__matmul__), set(vars(torch.Tensor))
    halfgnn.dgl.patch()
    assert F.linear is before[0]
    halfgnn.dgl.patch(products="fp32")
    with halfgnn.dgl.accelerate(products="fp32"):
        pass
    assert F.linear is not before[0]
    halfgnn.dgl.unpatch()
    assert (F.linear, torch.matmul, torch.mm, torch.addmm, torch.Tensor.__matmul__) == before
    assert set(vars(torch.Tensor)) == own


@pytest.mark.parametrize("dgl_is_off_first", [False, True])
def test_both_drop_ins_share_the_wrappers(dgl_is_off_first):
    """Each counts the products that are made while it asks for them, and the last one restores PyTorch's functions."""
    pytest.importorskip("torch_geometric")
    import halfgnn.pyg

    original, x = F.linear, torch.ones(4, 4).bfloat16()
    halfgnn.pyg.reset_stats()
    first, second = (halfgnn.dgl, halfgnn.pyg) if dgl_is_off_first else (halfgnn.pyg, halfgnn.dgl)
    halfgnn.dgl.patch(products="fp32")
    F.linear(x, x)
    halfgnn.pyg.patch(products="fp32")
    F.linear(x, x)
    first.unpatch()
    F.linear(x, x)
    second.unpatch()
    F.linear(x, x)
    assert F.linear is original
    calls = [library.stats()["routed"]["fp32:linear"] for library in (halfgnn.dgl, halfgnn.pyg)]
    assert calls == ([2, 2] if dgl_is_off_first else [3, 1])


@pytest.mark.parametrize("value", ["fp16", True, torch.float32], ids=str)
@pytest.mark.parametrize("call", [halfgnn.dgl.patch, halfgnn.dgl.accelerate])
def test_wrong_values(call, value):
    with pytest.raises(ValueError, match=r"products is .*; expected None or 'fp32'"):
        call(products=value)
    assert halfgnn.dgl._switch.active() is None


# ---- advice --------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_hetero", [False, True], ids=["graph", "heterograph"])
@every_mode
@every_half
def test_advice(dtype, is_autocast, is_hetero, monkeypatch):
    g = heterograph() if is_hetero else homogeneous()
    x = {t: x.detach().float() for t, x in node_operands(g, (3,)).items()} if is_hetero else torch.rand(30, 3)

    def advice(fast=(), dtype=dtype, **options):
        monkeypatch.setattr(products, "_FAST_HALVES", fast)
        halfgnn.dgl.reset_stats()
        own = torch.float32 if is_autocast else dtype
        operands = [x.to(own)] if not is_hetero else [{t: value.to(own) for t, value in x.items()}]
        is_half = is_autocast and dtype in HALVES
        with (
            halfgnn.dgl.accelerate(**options),
            torch.autocast("cpu", torch.bfloat16 if not is_half else dtype, enabled=is_half),
        ):
            dgl.ops.copy_u_sum(g, *operands) if not is_hetero else hetero_sum(g, *operands)
        return halfgnn.dgl.stats().get("advice")

    assert advice() == {'products="fp32"': f"matrix products of {dtype} are slow on this processor"}
    assert advice(products="fp32") is None
    assert advice(fast=(dtype,)) is None
    assert advice(dtype=torch.float32) is None


def hetero_sum(g, x):
    g.srcdata["x"] = x
    g.update_all(dgl.function.copy_u("x", "m"), dgl.function.sum("m", "y"))
