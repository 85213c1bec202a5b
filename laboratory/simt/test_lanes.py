"""Results of the CUDA kernels do not depend on the order of lanes, and the simulator notices kernels that are broken or are given
wrong topologies."""

from __future__ import annotations

import itertools

import pytest
import torch

from benchmarks import yardsticks
from halfgnn import ops
from laboratory.simt import control
from laboratory.simt.graphs import PIECE, graph_of
from tests import support
from tests.support import IDTYPES, randn, sddmm_operands
from tests.support_attention import DOT, GAT_EDGE, GATV2, fixed_seed
from tests.support_messages import gated_operands

if not control.SIMULATED:
    pytest.skip("runs on the simulator: laboratory/simt/run.py", allow_module_level=True)

raw = torch.ops.halfgnn

# ---- orders of lanes -----------------------------------------------------------------------------


def _gspmm(op, reduce_op, lhs, rhs):
    return lambda g, dtype: support.evaluate(
        lambda x, y: ops.gspmm(g, op, reduce_op, x, y), support.spmm_operands(g, op, lhs, rhs, dtype), torch.ones_like
    )


def _reduce(names, width):
    return lambda g, dtype: support.evaluate(
        lambda x: torch.cat(ops.copy_u_reduce(g, x, names), dim=1),
        [randn(g.num_src, width, dtype=dtype)],
        torch.ones_like,
    )


def _gsddmm(op, lhs, rhs, targets="uv"):
    return lambda g, dtype: support.evaluate(
        lambda x, y: ops.gsddmm(g, op, x, y, *targets),
        sddmm_operands(g, op, lhs, rhs, dtype, *targets),
        torch.ones_like,
    )


def _softmax(columns, norm_by):
    def run(g, dtype):
        logits = randn(g.num_edges, columns, dtype=dtype)
        upstream = randn(g.num_edges, columns, dtype=dtype)
        return support.evaluate(lambda x: ops.edge_softmax(g, x, norm_by), [logits], upstream)

    return run


def _attention(kind):
    def run(g, dtype):
        with fixed_seed():
            upstream = randn(g.num_dst, 2, 24, dtype=dtype)
            return support.evaluate(
                lambda *x: kind.call(g, *x, dropout_p=0.3), kind.operands(g, 2, 24, dtype), upstream
            )

    return run


def _gated_sum(has_values):
    """normalize, and z."""
    return lambda g, dtype: support.evaluate(
        lambda *x: torch.cat(ops.gated_sum(g, *x, normalize=True, return_edges=True)),
        gated_operands(g, (5,), dtype, has_values=has_values),
        torch.ones_like,
    )


def _segments(reducer):
    return lambda g, dtype: support.evaluate(
        lambda x: ops.segment_reduce(g.csc().indptr.diff(), x, reducer),
        [randn(g.num_edges, 3, dtype=dtype)],
        torch.ones_like,
    )


def _topology(g, dtype):
    return raw.coo_to_csr(g.csc().indices, g.csc().indices.flip(0), g.num_src), list(raw.transpose(*g.csc(), g.num_src))


def _gather(g, dtype):
    return yardsticks.gather_limit(g.csc().indices, randn(g.num_src, 24, dtype=dtype), 0), []


def _gather_rows(g, dtype):
    x = randn(g.num_src, 80, dtype=dtype)
    out = torch.empty(g.num_edges, 77, dtype=dtype)
    raw.gather_rows(x[:, 1:78], g.csc().indices, out)
    return out, []


def _dequantized(g, dtype):
    codes = torch.arange(g.num_src * 80).remainder(256).to(torch.uint8).view(-1, 80)
    parts = []
    for first, scale in ((0, torch.rand(g.num_src, 1)), (1, torch.rand(77))):
        out = torch.empty(g.num_edges, 77, dtype=dtype)
        raw.gather_rows(codes[:, first : first + 77], g.csc().indices, out, 0, scale, torch.ones_like(scale))
        parts.append(out)
    return parts[0], parts[1:]


def _scalar(g, dtype):
    x, y = randn(g.num_src, 40, dtype=dtype), randn(g.num_dst, 40, dtype=dtype)
    weights = randn(g.num_edges, 1, dtype=dtype)
    out, arg = yardsticks.scalar_spmm(*g.csc(), "copy_lhs", "max", x, None)
    dots = yardsticks.scalar_sddmm(*g.edges(), "dot", x, y, "u", "v")
    return out, [arg, dots, yardsticks.scalar_spmm(*g.csc(), "mul", "sum", x, weights)[0]]


def _naive(g, dtype):
    csc = [ids.int() for ids in g.csc()[:2]]
    x, y = randn(g.num_src, 2, 20, dtype=dtype), randn(g.num_dst, 2, 20, dtype=dtype)
    weights = randn(g.num_edges, 2, dtype=dtype)
    out, winner = yardsticks.naive_max(*csc, x)
    others = [yardsticks.naive_sum(*csc, x, weights), yardsticks.naive_dot(*csc, x, y)]
    others += [yardsticks.naive_softmax(csc[0], weights), yardsticks.naive_attention(*csc, "dot", x, y, None, x, 0.2)]
    return out, [winner, *others]


CALLS = {
    "copy_u_sum": _gspmm("copy_lhs", "sum", (9,), ()),
    "u_mul_e_sum": _gspmm("mul", "sum", (8,), (1,)),
    "u_mul_e_sum of rows": _gspmm("mul", "sum", (24,), (24,)),
    "u_relu_add_e_mean": _gspmm("relu_add", "mean", (5,), (5,)),
    "gated_sum": _gated_sum(False),
    "gated_sum of values of edges": _gated_sum(True),
    "u_mul_e_mean of heads": _gspmm("mul", "mean", (3, 8), (3, 1)),
    "copy_e_mean": _gspmm("copy_rhs", "mean", (), (3,)),
    "copy_u_max": _gspmm("copy_lhs", "max", (8,), ()),
    "copy_u_reduce": _reduce(("mean", "max", "min", "std"), 8),
    "copy_u_reduce of extremes": _reduce(("max", "min"), 3),
    "u_add_e_min": _gspmm("add", "min", (4,), (4,)),
    "u_div_e_sum": _gspmm("div", "sum", (3,), (3,)),
    "u_dot_v": _gsddmm("dot", (2, 8), (2, 8)),
    "u_add_v": _gsddmm("add", (5,), (5,)),
    "v_sub_u of two shapes": _gsddmm("sub", (3, 1), (1, 4), "vu"),
    "edge_softmax": _softmax(1, "dst"),
    "edge_softmax by source": _softmax(6, "src"),
    "edge_softmax of many columns": _softmax(40, "dst"),
    "gat_attention": _attention(GAT_EDGE),
    "gatv2_attention": _attention(GATV2),
    "dot_attention": _attention(DOT),
    "segment_reduce sum": _segments("sum"),
    "segment_reduce max": _segments("max"),
    "gather_limit": _gather,
    "gather_rows": _gather_rows,
    "gather_rows of codes": _dequantized,
    "scalar baseline": _scalar,
    "naive": _naive,
    "graph": _topology,
}


@pytest.fixture(scope="module")
def cut():
    return graph_of([PIECE + 1, 4, 0, 2 * PIECE, 33, 17 * PIECE + 1, 1], 37, torch.int32)


def results_of(name, g, dtype):
    torch.manual_seed(5)
    out, others = CALLS[name](g, dtype)
    return [x for x in (*(out if isinstance(out, tuple) else (out,)), *others) if x is not None]


@pytest.mark.parametrize("name,dtype", list(zip(CALLS, itertools.cycle([torch.float16, torch.float32]))))
def test_results_do_not_depend_on_the_order_of_lanes(cut, name, dtype):
    with control.setting(seed=11):
        expected = results_of(name, cut, dtype)
    for seed in (12, 13):
        with control.setting(seed=seed):
            for a, b in zip(results_of(name, cut, dtype), expected):
                assert torch.equal(a.view(torch.uint8), b.view(torch.uint8))


# ---- broken kernels are noticed ------------------------------------------------------------------


WITHOUT = [
    *((name, "shuffles") for name in CALLS if not name.startswith(("segment_reduce", "gather_rows", "naive"))),
    *((name, "warp_barriers") for name in ("u_add_v",)),
    *((name, "block_barriers") for name in ("copy_u_reduce", "u_add_e_min", "u_div_e_sum", "edge_softmax")),
]


@pytest.mark.parametrize("name,missing", WITHOUT)
def test_kernels_without(cut, name, missing):
    """Negative control: the kernels need their shuffles and barriers, and tests of results see that they are missing."""
    expected = results_of(name, cut, torch.float16)

    def still_right():
        with control.setting(**{missing: 0, "races": 0}):
            return all(map(torch.equal, results_of(name, cut, torch.float16), expected))

    assert not control.forked(still_right)[0]
    assert all(map(torch.equal, results_of(name, cut, torch.float16), expected))


WITH_BARRIERS = [
    *((name, "warp_barriers") for name in ("u_add_v", "copy_u_sum", "copy_u_max", "gat_attention", "gatv2_attention")),
    *((name, "block_barriers") for name in (
        "copy_u_reduce", "u_add_e_min", "u_div_e_sum", "edge_softmax", "gat_attention",
        "gatv2_attention",
        "dot_attention",
    )),
    ("copy_u_sum", "fences"),
    ("copy_u_max", "fences"),
]  # fmt: skip


@pytest.mark.parametrize("name,missing", WITH_BARRIERS)
def test_kernels_race_without(cut, name, missing):
    """Whatever the order of lanes happens to be: the simulator sees accesses that nothing orders. One that it does not watch may
    come first, and what it brings ends the process: an address or an index that the sanitizers refuse."""

    def has_no_race():
        try:
            results_of(name, cut, torch.float16)
        except RuntimeError as error:
            return "a race over" not in str(error)
        return True

    with control.setting(**{missing: 0}):
        result, report = control.forked(has_no_race)
    refused = "AddressSanitizer" in report or "runtime error:" in report
    assert result is False or (result is None and refused), report
    assert has_no_race()


@pytest.mark.parametrize("what", ["indices", "edge_ids", "indptr"])
def test_kernels_on_a_wrong_topology(what):
    """Topologies are trusted: one that is wrong makes a kernel read or write where nothing is, and that is seen."""
    g = graph_of([3, 4, 5], 6, torch.int64)
    topology = {name: x.clone() for name, x in g.csc()._asdict().items()}
    x, y = randn(6, 8, dtype=torch.float16), randn(12, 8, dtype=torch.float16)
    call = lambda: raw.gspmm(*topology.values(), "div", "sum", x, y, None)[0].isfinite().all()  # noqa: E731
    assert call()
    topology[what][-1] = {"indices": 6, "edge_ids": 12, "indptr": 13}[what]
    result, report = control.forked(call)
    assert result is None and "AddressSanitizer: heap-buffer-overflow" in report and "halfgnn::cuda::" in report


def test_offsets_are_asserted(cut):
    """The one check that kernels make: lengths that do not add up fail the kernel, whatever the type of ids."""
    for idtype in IDTYPES:
        for lengths in ([3, 3], [8, -1], [-1, 8]):
            with pytest.raises(RuntimeError, match=r"assertion .*seglen.* failed at graph\.cu"):
                ops.segment_reduce(torch.tensor(lengths, dtype=idtype), torch.ones(7, 2))
        for offsets in ([1, 3, 7], [-1, 3, 7], [0, 3, 6]):
            with pytest.raises(RuntimeError, match=r"assertion .*seglen.* failed at graph\.cu"):
                raw.segment_reduce(torch.tensor(offsets, dtype=idtype), torch.ones(7, 2), "sum")


def test_topologies_that_are_not_checked():
    """CUDA cannot raise for indices out of range without waiting; it must not touch what is not its own either, and counts
    such edges as if they were at the nearer end."""
    ends = torch.tensor([0, 3, 7, -1])
    assert raw.coo_to_csr(ends, ends, 3)[0].tolist() == [0, 2, 2, 4]
    for indptr in ([0, 1, 2], [0, 3, 2], [0, 1, 3], [1, 1, 1]):
        raw.transpose(torch.tensor(indptr), torch.tensor([0, 3]), None, 3)
