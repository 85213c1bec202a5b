"""What is left to DGL; patch(), unpatch() and accelerate()."""

import subprocess
import sys

import pytest
import torch
import torch.utils.checkpoint

dgl = pytest.importorskip("dgl", reason="dgl is not installed", exc_type=ImportError)

import dgl.function as fn  # noqa: E402

import halfgnn  # noqa: E402
import halfgnn.dgl  # noqa: E402
from tests.dgl.support_dgl import (  # noqa: E402
    assert_propagates_as_dgl,
    assert_same,
    edge_operands,
    fell_back,
    heterograph,
    homogeneous,
    node_operands,
    propagate,
)
from tests.support import MIXED  # noqa: E402

# ---- what is left to DGL -------------------------------------------------------------------------


def test_mixed_types_are_refused_by_dgl(patched):
    g = homogeneous()
    x, w, y = torch.rand(30, 4), torch.rand(100, 1).double(), torch.rand(30, 4).double()
    with pytest.raises(dgl.DGLError, match="data type"):
        dgl.ops.u_mul_e_sum(g, x, w)
    with pytest.raises(dgl.DGLError, match="data type"):
        dgl.ops.u_mul_e_mean(g, x, w)
    with pytest.raises(dgl.DGLError, match="data type"):
        dgl.ops.u_add_v(g, x, y)
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(dgl.DGLError, match="data type"):
        dgl.ops.u_mul_e_sum(g, x, w)
    assert fell_back() == {
        "gspmm:u_mul_e_sum": {"torch.float32 with torch.float64": 3},
        "gsddmm:u_add_v": {"torch.float32 with torch.float64": 1},
    }
    assert halfgnn.dgl.stats()["routed"] == {}


@pytest.mark.parametrize("dtypes", MIXED, ids=str)
def test_half_and_fp32_go_together(dtypes, patched):
    """DGL refuses them. Sums have the dtype of the nodes, results of edges are fp32."""
    g = homogeneous()
    x, y, w = (torch.rand(rows, 4).to(dtype) for rows, dtype in zip((30, 30, 100), (dtypes[0], *2 * [dtypes[1]])))
    for call, operands, dtype in (
        (dgl.ops.u_mul_e_sum, (x, w), dtypes[0]),
        (dgl.ops.u_add_e_max, (x, w), dtypes[0]),
        (dgl.ops.u_add_v, (x, y), torch.float32),
        (dgl.ops.u_dot_v, (x, y), torch.float32),
    ):
        out = call(g, *operands)
        assert out.dtype == dtype
        expected = call(g, *(operand.float() for operand in operands))
        torch.testing.assert_close(out, expected.to(dtype), rtol=torch.finfo(dtype).eps, atol=1e-6)
    assert fell_back() == {}


def test_integers_are_left_to_dgl(patched):
    with pytest.raises(dgl.DGLError):
        dgl.ops.copy_u_sum(homogeneous(), torch.ones(30, 4, dtype=torch.int64))
    assert fell_back() == {"gspmm:copy_u_sum": {"torch.int64 on cpu": 1}}


def test_operands_of_one_side_are_left_to_dgl():
    g, x = homogeneous(), torch.rand(30, 4)
    expected = dgl.ops.gsddmm(g, "add", x, x, "u", "u")
    with halfgnn.dgl.accelerate():
        assert_same([dgl.ops.gsddmm(g, "add", x, x, "u", "u")], [expected])
    assert fell_back() == {"gsddmm:('add', 'u', 'u')": {"no such operator": 1}}


def test_user_defined_functions_are_left_to_dgl():
    g = homogeneous()
    g.ndata["x"] = torch.rand(30, 4)

    def run():
        g.update_all(lambda edges: {"m": edges.src["x"] * 2}, fn.sum("m", "a"))
        g.update_all(fn.copy_u("x", "m"), lambda nodes: {"b": nodes.mailbox["m"].sum(1)})
        g.apply_edges(lambda edges: {"s": edges.src["x"] - edges.dst["x"]})
        return [g.ndata["a"], g.ndata["b"], g.edata["s"]]

    expected = run()
    with halfgnn.dgl.accelerate():
        assert_same(run(), expected, rtol=1e-5, atol=1e-5)
    assert halfgnn.dgl.stats() == {
        "routed": {"gspmm:copy_e_sum": 1, "gsddmm:copy_u": 1},
        "fell_back": {
            "udf:message": {"user-defined function": 2},
            "udf:reduce": {"user-defined function": 1},
        },
    }


def test_heterograph_calls_that_are_left_to_dgl(patched):
    g = heterograph()
    with pytest.raises(NotImplementedError):
        g.ndata["x"] = {t: x.detach() for t, x in node_operands(g, (3,)).items()}
        g.update_all(fn.copy_u("x", "m"), fn.mean("m", "y"))
    logits = [x.detach() for x in edge_operands(g, (1,)).values()]
    with pytest.raises(dgl.DGLError):
        dgl.backend.edge_softmax_hetero(g._graph, torch.tensor([0]), "dst", *logits)
    assert fell_back() == {"edge_softmax_hetero:dst": {"eids": 1}}


def test_reset_stats(patched):
    dgl.ops.copy_u_sum(homogeneous(), torch.rand(30, 4))
    taken = halfgnn.dgl.stats()
    halfgnn.dgl.reset_stats()
    assert taken == {"routed": {"gspmm:copy_u_sum": 1}, "fell_back": {}}
    assert halfgnn.dgl.stats() == {"routed": {}, "fell_back": {}}


# ---- patching ------------------------------------------------------------------------------------


def dgl_globals():
    """Every name bound in a module of DGL, and the methods of its graph index."""
    bound = {
        (module, name): value
        for module, namespace in list(sys.modules.items())
        if module.split(".")[0] == "dgl"
        for name, value in vars(namespace).items()
        if callable(value)
    }
    index = dgl.heterograph_index.HeteroGraphIndex
    return {**bound, **{(index, name): value for name, value in vars(index).items()}}


def changed(before):
    return {key for key, value in dgl_globals().items() if before.get(key) is not value}


def test_unpatch_restores_everything():
    before = dgl_globals()
    halfgnn.dgl.patch()
    patched = changed(before)
    assert ("dgl.ops.spmm", "gspmm_internal") in patched
    assert ("dgl.ops.edge_softmax", "edge_softmax_internal") in patched
    halfgnn.dgl.patch()
    assert changed(before) == patched
    halfgnn.dgl.unpatch()
    assert changed(before) == set()
    halfgnn.dgl.unpatch()
    assert changed(before) == set()


def test_nothing_of_the_originals_stays_bound():
    """No module of DGL has another name for a replaced function."""
    before = dgl_globals()
    halfgnn.dgl.patch()
    originals = {id(before[key]): key for key in changed(before)}
    kept = {key for key, value in dgl_globals().items() if id(value) in originals}
    assert kept == set()


def test_accelerate_nests():
    before = dgl_globals()
    with halfgnn.dgl.accelerate():
        patched = changed(before)
        assert patched
        with halfgnn.dgl.accelerate():
            assert changed(before) == patched
        assert changed(before) == patched
    assert changed(before) == set()
    halfgnn.dgl.patch()
    with halfgnn.dgl.accelerate():
        pass
    assert changed(before) == patched, "was patched before"


def test_accelerate_ends_with_an_exception_and_decorates():
    before = dgl_globals()
    with pytest.raises(KeyError), halfgnn.dgl.accelerate():
        raise KeyError
    assert changed(before) == set()

    @halfgnn.dgl.accelerate()
    def run():
        return bool(changed(before))

    assert run()
    assert changed(before) == set()


def test_graph_made_and_used_before_and_after():
    g = homogeneous()
    assert_propagates_as_dgl(g)
    assert_propagates_as_dgl(g)
    x, w = torch.rand(30, 4).double(), torch.rand(100, 1).double()
    expected = propagate(g, x, w)
    with halfgnn.dgl.accelerate():
        out = dgl.ops.u_mul_e_sum(g, x.requires_grad_(), w)
    out.sum().backward()  # outside: the backward of calls that were routed inside
    assert_same(propagate(g, x, w), expected)


@pytest.mark.parametrize("use_reentrant", [False, True])
@pytest.mark.parametrize("fuse", [False, True])
def test_checkpoints_are_recomputed_after_the_block(fuse, use_reentrant):
    conv, g = dgl.nn.GATConv(4, 5, 2, allow_zero_in_degree=True).double(), homogeneous()
    x = torch.rand(30, 4).double().requires_grad_()
    expected = torch.autograd.grad(conv(g, x).pow(2).sum(), x)[0]
    with halfgnn.dgl.accelerate(fuse=fuse):
        out = torch.utils.checkpoint.checkpoint(conv, g, x, use_reentrant=use_reentrant)
    halfgnn.dgl.reset_stats()
    out.pow(2).sum().backward()
    torch.testing.assert_close(x.grad, expected)
    assert ("fused:GATConv" if fuse else "gspmm:u_mul_e_sum") in halfgnn.dgl.stats()["routed"]


def run_python(code: str) -> str:
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def test_import_does_not_import_dgl():
    code = "import sys, halfgnn, halfgnn.dgl; print('dgl' in sys.modules)"
    assert run_python(code) == "False"


def test_without_dgl(monkeypatch):
    monkeypatch.setitem(sys.modules, "dgl", None)  # as if it were not installed
    with pytest.raises(ImportError, match=r"halfgnn\.dgl\.patch\(\) needs DGL"):
        halfgnn.dgl.patch()
    with pytest.raises(ImportError), halfgnn.dgl.accelerate():
        pass
    halfgnn.dgl.unpatch()
    assert halfgnn.dgl.stats() == {"routed": {}, "fell_back": {}}


# ---- blocks that overlap, modes that outlive a call ------------------------------------------------


def is_routed():
    halfgnn.dgl.reset_stats()
    g = dgl.graph(([0, 1], [1, 0]))
    dgl.ops.copy_u_sum(g, torch.ones(2, 1))
    return bool(halfgnn.dgl.stats()["routed"])


def test_overlapping_blocks():
    """Two blocks overlap, for example in two threads. The first to end must not end the other."""
    first, second = halfgnn.dgl.accelerate(), halfgnn.dgl.accelerate()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert is_routed()
    second.__exit__(None, None, None)
    assert not is_routed()


def test_patch_inside_a_block_stays():
    with halfgnn.dgl.accelerate():
        halfgnn.dgl.patch()
    assert is_routed()
    with halfgnn.dgl.accelerate():
        halfgnn.dgl.unpatch()
        assert is_routed()
    assert not is_routed()


def test_inference_then_training():
    """Data that is kept with DGL's graph works in training even if it was made in inference mode."""
    g = dgl.add_self_loop(dgl.rand_graph(10, 40))
    conv, x = dgl.nn.GATConv(8, 8, 2), torch.randn(10, 8)
    with halfgnn.dgl.accelerate():
        with torch.inference_mode():
            expected = conv(g, x)
        actual = conv(g, x)
        actual.sum().backward()
    assert torch.equal(actual, expected)
    assert conv.fc.weight.grad.abs().sum() > 0
