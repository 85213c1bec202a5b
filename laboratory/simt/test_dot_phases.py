"""Dot attention in phases of one gathered matrix each: by the kernels of other operators."""

from functools import partial

import pytest
import torch

from halfgnn import ops
from laboratory.machine_code import launches
from laboratory.simt import control
from laboratory.simt.graphs import PIECE, graph_of
from tests.support import HALVES, IDTYPES, randn
from tests.support_attention import DOT, check, fixed_seed

if not control.SIMULATED:
    pytest.skip("runs on the simulator: laboratory/simt/run.py", allow_module_level=True)

DEGREES = [3, 0, 1, PIECE + 9, 5, 33, 16]


@pytest.fixture
def phases(monkeypatch):
    return lambda count: monkeypatch.setenv("HALFGNN_DOT_PHASES", str(count))


def kernels_of(call):
    with launches.recorded() as found:
        value = call()
    return value, [launch.kernel.split("<")[0] for launch in found]


@pytest.mark.parametrize("idtype", IDTYPES, ids=str)
@pytest.mark.parametrize("heads,dim", [(1, 128), (1, 256), (4, 32), (3, 12), (2, 5), (1, 1032)])
@pytest.mark.parametrize("dtype", [*HALVES, torch.float32], ids=str)
def test_values_and_gradients(phases, dtype, heads, dim, idtype):
    degrees = DEGREES if dim < 500 else [3, 0, 35, 1]
    g = graph_of(degrees, 37, idtype, identity=idtype == torch.int32)
    operands = DOT.operands(g, heads, dim, dtype)
    # Which edge a logit is of is known if edge ids are in order: then entries may be dropped.
    for dropout_p in (0.0, 0.3) if idtype == torch.int32 else (0.0,):
        phases(2)
        with fixed_seed():
            _, kernels = kernels_of(partial(DOT.call, g, *operands, dropout_p=dropout_p))
        assert kernels[:2] == ["sddmm_dot_kernel", "gat_attention_kernel"]
        check(DOT, g, operands, dropout_p=dropout_p, terms=1000)
        with fixed_seed():
            trained = DOT.call(g, *(x.clone().requires_grad_() for x in operands), dropout_p=dropout_p)
        with fixed_seed():
            assert torch.equal(DOT.call(g, *operands, dropout_p=dropout_p), trained)


@pytest.mark.parametrize("dtype", [*HALVES, torch.float32], ids=str)
def test_both_give_the_same(phases, dtype):
    """But for the order of sums: results, and what the backward reads of them."""
    g = graph_of(DEGREES, 37, torch.int64)
    operands = DOT.operands(g, 2, 64, dtype)
    grad = randn(g.num_dst, 2, 64, dtype=dtype)
    found = []
    for count in (1, 2):
        phases(count)
        leaves = [x.clone().requires_grad_() for x in operands]
        out = DOT.call(g, *leaves)
        found.append((out, *torch.autograd.grad(out, leaves, grad)))
    for one, two in zip(*found, strict=True):
        scale = one.detach().abs().max()
        assert ((one - two).abs().max() / scale) < (2e-6 if dtype == torch.float32 else 2 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("heads,dim", [(1, 128), (4, 32), (3, 12)])
@pytest.mark.parametrize("dtype", [*HALVES, torch.float32], ids=str)
def test_the_backward(phases, dtype, heads, dim):
    """Of graphs whose in-edges have their ids in order, and without dropout."""
    phases(2)
    g = graph_of(DEGREES, 37, torch.int32, identity=True)
    operands = DOT.operands(g, heads, dim, dtype)
    check(DOT, g, operands, terms=1000)

    def backward(graph, **how):
        leaves = [x.clone().requires_grad_() for x in operands]
        with fixed_seed():
            out = DOT.call(graph, *leaves, **how)
        return kernels_of(lambda: torch.autograd.grad(out, leaves, torch.ones_like(out)))

    gradients, kernels = backward(g)
    assert [name for name in kernels if name in ("sddmm_dot_kernel", "spmm_sum_kernel")] == [
        *["sddmm_dot_kernel"] * 2,
        *["spmm_sum_kernel"] * 3,
    ]
    assert sum(name.startswith("softmax") for name in kernels) >= 2
    assert not any(name.startswith("pair_attention") for name in kernels)
    for other, how in ((g, {"dropout_p": 0.3}), (graph_of(DEGREES, 37, torch.int32), {})):
        assert "sddmm_dot_kernel" not in backward(other, **how)[1]
    phases(1)
    in_one, kernels = backward(g)
    assert "sddmm_dot_kernel" not in kernels
    for one, several in zip(in_one, gradients, strict=True):
        scale = one.abs().max()
        assert ((one - several).abs().max() / scale) < (2e-6 if dtype == torch.float32 else 2 * torch.finfo(dtype).eps)


def test_calls_that_keep_one_phase(phases):
    phases(2)
    g = graph_of(DEGREES, 37, torch.int32)  # edge ids are not in order
    operands = DOT.operands(g, 2, 8, torch.float16)
    with fixed_seed():
        _, kernels = kernels_of(lambda: DOT.call(g, *operands, dropout_p=0.3))
    assert kernels[0] == "pair_attention_kernel"
    _, kernels = kernels_of(
        lambda: ops.dot_attention(g, *operands, edge_bias=randn(g.num_edges, 2, dtype=torch.float16))
    )
    assert not any(name.startswith(("sddmm", "gat")) for name in kernels)
    empty = graph_of([0, 0, 0], 5, torch.int32)
    assert DOT.call(empty, *DOT.operands(empty, 2, 8, torch.float16)).eq(0).all()
    phases(1)
    _, kernels = kernels_of(lambda: DOT.call(g, *operands))
    assert kernels[0] == "pair_attention_kernel"


def test_two_phases_where_the_model_says_so(monkeypatch):
    """Rows of few edges, so many that they take longer than a launch."""
    monkeypatch.delenv("HALFGNN_DOT_PHASES", raising=False)
    g = graph_of([3] * 15_000, 64, torch.int32)
    operands = DOT.operands(g, 1, 64, torch.float16)
    _, kernels = kernels_of(lambda: DOT.call(g, *operands))
    assert kernels[:2] == ["sddmm_dot_kernel", "gat_attention_kernel"]
    trained = graph_of([2] * 20_000, 20_000, torch.int32, identity=True)
    leaves = [x.requires_grad_() for x in DOT.operands(trained, 1, 16, torch.float16)]
    out = DOT.call(trained, *leaves)
    _, kernels = kernels_of(lambda: torch.autograd.grad(out.sum(), leaves))
    assert kernels.count("sddmm_dot_kernel") == 2
    few = graph_of([3] * 15, 64, torch.int32)
    _, kernels = kernels_of(lambda: DOT.call(few, operands[0][:15], *operands[1:]))
    assert kernels[0] == "pair_attention_kernel"
