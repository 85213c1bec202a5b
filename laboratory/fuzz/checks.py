"""Functions that the programs of cases call: values and layouts of operands, comparisons, and checks of wrong calls."""

import copy
import pickle  # noqa: F401  (for programs, as are other names)
import re

import torch

import halfgnn.nn  # noqa: F401  (before workers are forked: its imports take seconds)
from halfgnn import Graph, HeteroGraph, ops, reference
from halfgnn.ops.coo_softmax import coo_softmax  # noqa: F401
from halfgnn.ops.coo_sum import coo_sum  # noqa: F401
from tests import (
    support,
    support_attention,  # noqa: F401
    support_attention_edges,  # noqa: F401
    support_edge_network,  # noqa: F401
    support_gatv2_edges,  # noqa: F401
    support_messages,  # noqa: F401
)
from tests.support import away_from_zero, column_major, every_other, misaligned, randn  # noqa: F401
from tests.support_nn import assert_near, by_formulas, seeded, with_gradients  # noqa: F401
from tests.support_reduce import check as check_copy_u_reduce  # noqa: F401

raw = torch.ops.halfgnn

# ---- values and layouts --------------------------------------------------------------------------


def whole(x):
    """Small whole numbers, which give many ties."""
    return x.mul(2).round()


def wide(x):
    """Magnitudes over many binades. The product of two still fits the type."""
    span = 4 if x.dtype == torch.float16 else 15
    return x * torch.randint(-span, span + 1, x.shape).double().exp2().to(x.dtype)


def special(x):
    """With a few infinities and NaN."""
    for value in (torch.inf, -torch.inf, torch.nan):
        x[torch.rand(x.shape) < 0.02] = value
    return x


def expanded(x, dim=0):
    """With stride 0 in a dimension."""
    return x.narrow(dim, 0, min(1, x.shape[dim])).expand(x.shape)


def expanded_last(x):
    return expanded(x, -1)


# ---- results -------------------------------------------------------------------------------------


def terms_of(g, *operands):
    """The largest number of terms in the sum of an element of a result or gradient, for the accuracy rule."""
    given = [x for x in operands if x is not None]
    terms = max(64, g.num_edges * max((x[0].numel() for x in given if x.shape[0]), default=1))
    # The reference in float64 has errors too. They all have one direction if it adds the same number many times.
    return terms**2 if any(x.dtype == torch.float64 for x in given) else terms


def assert_identical(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)


def check_bitwise(call, *operands):
    """Results and gradients depend neither on threads, nor on strides of the operands or of the upstream gradient."""

    def one(out):
        return torch.ones((), dtype=out.dtype).expand(out.shape)

    threads = torch.get_num_threads()
    try:
        runs = []
        for count, form, upstream in (
            (1, torch.clone, torch.ones_like),
            (3, lambda x: x, one),
            (2, torch.Tensor.contiguous, one),
        ):
            torch.set_num_threads(count)
            out, grads = support.evaluate(call, [None if x is None else form(x) for x in operands], upstream)
            runs.append([out, *(grad for grad in grads if grad is not None)])
    finally:
        torch.set_num_threads(threads)
    for other in runs[1:]:
        assert_identical(other, runs[0])


def check_edge_softmax(g, logits, norm_by, run=None):
    """run: another way to call it."""
    support.check(
        run or (lambda x: ops.edge_softmax(g, x, norm_by)),
        lambda x: reference.edge_softmax(g, x, norm_by),
        [logits],
        terms=terms_of(g),
    )


def check_segment_reduce(seglen, value, reducer, backward=True):
    bound = "mean" if reducer == "mean" else "sum"
    support.check(
        lambda x: ops.segment_reduce(seglen, x, reducer),
        lambda x: reference.segment_reduce(seglen, x, reducer),
        [value],
        magnitude=lambda x: reference.segment_reduce(seglen, x, bound),
        terms=max(64, value.shape[0]),
        backward=backward,
    )


def check_graph(g, src, dst, num_src, num_dst):
    """g has these edges, in this order, in both adjacencies."""
    assert (g.num_src, g.num_dst, g.num_edges) == (num_src, num_dst, src.numel()), g
    assert_identical(list(g.edges()), [src, dst])
    for (indptr, indices, edge_ids), rows, cols, num_rows in ((g.csc(), dst, src, num_dst), (g.csr(), src, dst,
                                                                                             num_src)):  # fmt: skip
        assert_identical(indptr.diff().long(), rows.long().bincount(minlength=num_rows))
        order = torch.arange(src.numel()) if edge_ids is None else edge_ids.long()
        assert_identical(order.sort().values, torch.arange(src.numel()))
        assert indptr.dtype == indices.dtype == src.dtype
        assert_identical(indices, cols[order])
        assert_identical(torch.arange(num_rows).repeat_interleave(indptr.diff().long()), rows[order].long())
    assert_identical(g.in_degrees().long(), dst.long().bincount(minlength=num_dst))
    assert_identical(g.out_degrees().long(), src.long().bincount(minlength=num_src))


def check_module(module, call, inputs, dtype=None):
    """call(module, *inputs) with all gradients equals that of the module in float64, except for rounding to dtype."""
    dtype = dtype or inputs[0].dtype
    actual = with_gradients(module, lambda *x: call(module, *x), inputs)
    exact = copy.deepcopy(module).double()
    expected = with_gradients(exact, lambda *x: call(exact, *x), [x.double() for x in inputs])
    for a, x in zip(actual, [None, *inputs, *module.parameters()]):
        assert a is None or x is None or (a.shape == x.shape and a.dtype == x.dtype)
        assert a is None or a.isfinite().all()
    if dtype in support.HALVES:
        with by_formulas():
            formula = with_gradients(module, lambda *x: call(module, *x), inputs)
        return assert_near(actual, expected, formula, dtype, most=None)  # random data may be ill-conditioned
    for a, b in zip(actual, expected):
        assert (a is None) == (b is None)
        if a is not None:
            torch.testing.assert_close(a.double(), b, rtol=1e-3, atol=1e-4 * (1 + b.abs().sum().item()))


def hetero(counts, edges, idtype):
    """counts: {node type: number}; edges: {edge type: number of edges}."""
    relations = {}
    for (src, name, dst), count in edges.items():
        ends = [torch.randint(max(1, counts[end]), (count,), dtype=idtype) for end in (src, dst)]
        relations[src, name, dst] = Graph.from_edges(*ends, num_src=counts[src], num_dst=counts[dst])
    return HeteroGraph(relations, num_src=counts, num_dst=counts)


def check_hetero(module, g, inputs):
    """A HeteroGraphConv(sum) on g equals the sum of its modules in float64, for any way to run its relations."""
    got = module(g, inputs)
    exact = copy.deepcopy(module).double()
    expected = {}
    for etype in g:
        feats = tuple(inputs[etype[i]].double() for i in (0, 2))
        part = exact.mods[etype[1]](g[etype], feats)
        expected[etype[2]] = expected.get(etype[2], 0) + part
    assert set(got) == set(expected)
    for ntype, out in got.items():
        dtype = inputs[ntype].dtype
        tolerance = 1e-4 if dtype == torch.float32 else 16 * torch.finfo(dtype).eps
        size = expected[ntype].abs().max().item() if out.numel() else 0
        torch.testing.assert_close(out.double(), expected[ntype], rtol=tolerance, atol=tolerance * (1 + size))


# ---- wrong calls ---------------------------------------------------------------------------------


def refused(call, *names, errors=(TypeError, ValueError)):
    """call must raise one of the errors, with one of the names in the message."""
    try:
        result = call()
    except Exception as error:
        message = f"{type(error).__name__}: {error}"
        assert isinstance(error, errors) and "INTERNAL ASSERT" not in message, f"raised {message}"
        assert not names or re.search(rf"\b({'|'.join(names)})\b", str(error)), f"{names} not named by {message}"
        return
    raise AssertionError(f"gave a {type(result).__name__}; expected an error that names {' or '.join(names)}")


def survives(call):
    """A call of a raw operator may return a result or raise an error about its arguments (gather_rows also about ids).
    Nothing else is allowed."""
    try:
        call()
    except (TypeError, ValueError, RuntimeError, IndexError) as error:
        assert "INTERNAL ASSERT" not in str(error), f"raised {error}"


# Forms of a tensor (floating point, or ids) that are unusual for an operator or that it must refuse.
DATA_FORMS = [
    lambda x: x.to(torch.float64), lambda x: x.half(), lambda x: x.int(), lambda x: x.to("meta"), lambda x: x.sum(),
    lambda x: None, lambda x: x[..., :1], lambda x: x[..., None], lambda x: x[..., 0] if x.shape[-1] else x,
    lambda x: torch.cat([x, x]), lambda x: x.repeat(*[1] * (x.dim() - 1), 3), lambda x: x.to_sparse(), lambda x: x[..., :0],
    expanded, every_other, misaligned, column_major,
]  # fmt: skip
FEWER_ROWS = [lambda x: x[1:], lambda x: x[:0]]
ID_FORMS = [
    lambda x: x.float(), lambda x: x.int(), lambda x: x.long(), lambda x: x[None], lambda x: x.to("meta"),
    lambda x: x.repeat_interleave(2)[::2], lambda x: x.sum(), misaligned, lambda x: x.short(),
]  # fmt: skip
OTHERS = {
    str: ("pow", "", "v", "e", "u", "copy_lhs", "sum", "div"), bool: (True, False), int: (-1, 0, 2, 2**40, 2**62),
    list: ([], [0], [-1, 2, 8], [1, 2, 8], [2**60, 2**60]), float: (torch.nan, 2.0, -1.0),
    torch.dtype: (torch.float16, torch.float32, torch.int32),
}  # fmt: skip


def distorted(arguments, which, how, nodes):
    """The arguments of a raw operator with one of them changed. nodes: numbers of rows that ids of the topology are
    trusted not to exceed."""
    at = which % len(arguments)
    value = arguments[at]
    is_plain = isinstance(value, torch.Tensor) and value.layout is torch.strided and not value.is_meta
    if not is_plain or value.dim() == 0:
        forms = OTHERS.get(type(value), (None,))
        new = forms[how % len(forms)]
    else:
        forms = DATA_FORMS if value.is_floating_point() else ID_FORMS
        if value.is_floating_point() and value.shape[0] not in nodes:
            forms = DATA_FORMS + FEWER_ROWS
        new = forms[how % len(forms)](value)
    return [*arguments[:at], new, *arguments[at + 1 :]]
