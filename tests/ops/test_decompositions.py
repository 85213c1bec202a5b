"""halfgnn's operators as operators of PyTorch give the results of the kernels."""

import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import halfgnn
from halfgnn import ops
from halfgnn.common.arguments import MESSAGE_OPS, REDUCES
from halfgnn.common.precision import HALF
from halfgnn.dataloading import Codes
from halfgnn.decompositions import OF_HALFGNN, RESULTS

HEADS, DIM, COLUMNS = 2, 3, 5
MESSAGES = (*MESSAGE_OPS, "relu_add", "copy_lhs", "copy_rhs")
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}
# None is in the program of a model: they make mini-batches and orders of nodes, write into an argument, or are called eagerly.
WITHOUT = ("gather_rows", "locality", "neighbor_sample", "reorder", "coo_softmax", "coo_sum")


class Decomposed(TorchDispatchMode):
    """Calls decompositions in place of halfgnn's operators."""

    def __init__(self):
        super().__init__()
        self.called = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func in OF_HALFGNN:
            self.called.add(func)
        return OF_HALFGNN.get(func, func)(*args, **(kwargs or {}))


def graph(idtype, in_order=False):
    """Bipartite, with nodes without edges at both ends of the ids, and edges between equal nodes."""
    draw = torch.Generator().manual_seed(3)
    src, dst = torch.randint(9, (40,), generator=draw), torch.randint(1, 6, (40,), generator=draw)
    made = halfgnn.Graph.from_edges(src.to(idtype), dst.to(idtype), num_src=10, num_dst=8, sort=in_order)
    return made[0] if in_order else made


def u(g, *shape, dtype):
    return torch.randn(g.num_src, *shape).to(dtype)


def v(g, *shape, dtype):
    return torch.randn(g.num_dst, *shape).to(dtype)


def e(g, *shape, dtype):
    return torch.randn(g.num_edges, *shape).to(dtype)


def wide(dtype):
    return torch.promote_types(dtype, torch.float32)


def _layers(dtype):
    return [(torch.randn(4, 6).to(dtype), torch.randn(4).to(dtype)), (torch.randn(COLUMNS, 4).to(dtype), None)]


def _spmm(op, reduce):
    def call(g, d):
        rhs = e(g, 3, dtype=d)
        return ops.gspmm(g, op, reduce, u(g, 2, 3, dtype=d), rhs.abs() + 0.5 if op == "div" else rhs)

    return call


def _sddmm(op, targets):
    def call(g, d):
        lhs, rhs = ({"u": u, "v": v, "e": e}[target](g, 2, 3, dtype=d) for target in targets)
        return ops.gsddmm(g, op, lhs, rhs.abs() + 0.5 if op == "div" else rhs, *targets)

    return call


def _masked(g, d):
    """Logits of -inf: of some edges, and of all edges of a node."""
    logits = e(g, HEADS, dtype=d)
    logits[::3] = -math.inf
    logits[g.edges()[1] == 2] = -math.inf
    return logits


def _gat(**options):
    def call(g, d):
        nodes = u(g, HEADS, DIM, dtype=d), u(g, HEADS, dtype=d), v(g, HEADS, dtype=d)
        return ops.gat_attention(g, *nodes, **{name: make(g, d) for name, make in options.items()})

    return call


def _gatv2(**options):
    def call(g, d):
        nodes = u(g, HEADS, DIM, dtype=d), v(g, HEADS, DIM, dtype=d), torch.randn(HEADS, DIM).to(d)
        return ops.gatv2_attention(g, *nodes, **{name: make(g, d) for name, make in options.items()})

    return call


def _dot(**options):
    def call(g, d):
        nodes = v(g, HEADS, DIM, dtype=d), u(g, HEADS, DIM, dtype=d), u(g, HEADS, DIM, dtype=d)
        return ops.dot_attention(g, *nodes, 0.3, **{name: make(g, d) for name, make in options.items()})

    return call


def _one_tensor_of_edges(g, d):
    rows = e(g, HEADS, DIM, dtype=d)
    return _dot(edge_key=lambda *_: rows, edge_value=lambda *_: rows)(g, d)


def _gated(**options):
    def call(g, d):
        nodes = u(g, 4, dtype=d), u(g, 4, dtype=d), v(g, 4, dtype=d)
        return ops.gated_sum(g, *nodes, e(g, 4, dtype=d), e(g, 4, dtype=d), **options)

    return call


def _network(reduce, **options):
    def call(g, d):
        return ops.edge_network(
            g, u(g, 6, dtype=d), v(g, 6, dtype=d), _layers(d), edge_feat=e(g, COLUMNS, dtype=d),
            edge_weight=torch.randn(6, COLUMNS).to(d), norm=(torch.rand(COLUMNS).to(d), torch.rand(COLUMNS).to(d)), reduce=reduce,
            **{name: make(g, d) for name, make in options.items()},
        )  # fmt: skip

    return call


def _codes(g):
    data = torch.randint(256, (g.num_src, HEADS, 3), dtype=torch.uint8)
    return Codes(data, torch.rand(g.num_src, 1, 1), torch.randint(256, (g.num_src, 1, 1)).float())


def _positions(g, d):
    return u(g, 3, dtype=d), v(g, 3, dtype=d)


bias = lambda g, d: e(g, HEADS, dtype=d)  # noqa: E731
rows = lambda g, d: e(g, HEADS, DIM, dtype=d)  # noqa: E731
columns = lambda g, d: e(g, COLUMNS, dtype=d)  # noqa: E731
weight = lambda g, d: torch.randn(HEADS * DIM, COLUMNS).to(d)  # noqa: E731
yes = lambda g, d: True  # noqa: E731

CASES = {
    **{f"{op} {reduce}": _spmm(op, reduce) for op in MESSAGES for reduce in REDUCES},
    **{f"{op} {''.join(t)}": _sddmm(op, t) for op in ("add", "sub", "mul", "div", "dot") for t in ("uv", "ue", "ev")},
    "copy_rhs uv": _sddmm("copy_rhs", "uv"),
    "dot of numbers": lambda g, d: ops.gsddmm(g, "dot", u(g, dtype=d), v(g, dtype=d)),
    "half and fp32": lambda g, d: ops.u_mul_e_sum(g, u(g, 3, dtype=d), e(g, 1, dtype=wide(d))),
    "out_dtype": lambda g, d: ops.copy_u_sum(g, u(g, 3, dtype=d), out_dtype=wide(d)),
    "rows of numbers": lambda g, d: ops.u_mul_e_sum(g, u(g, dtype=d), e(g, dtype=d)),
    "copy_u_reduce": lambda g, d: ops.copy_u_reduce(g, u(g, 3, dtype=d), ["std", "max", "sum", "min", "var", "mean"]),
    "code_sum": lambda g, d: ops.copy_u_mean(g, _codes(g)),
    "code_sum, weighted": lambda g, d: ops.u_mul_e_sum(g, _codes(g), e(g, HEADS, 1, dtype=torch.half)),
    "u_add_v_add_e": lambda g, d: ops.u_add_v_add_e(g, u(g, 3, dtype=d), v(g, 3, dtype=d), e(g, 3, dtype=d)),
    "edge_softmax": lambda g, d: ops.edge_softmax(g, e(g, HEADS, dtype=d)),
    "edge_softmax of sources": lambda g, d: ops.edge_softmax(g, e(g, HEADS, dtype=d), norm_by="src"),
    "masked edge_softmax": lambda g, d: ops.edge_softmax(g, _masked(g, d)),
    "segment_reduce": lambda g, d: ops.segment_reduce(torch.tensor([0, 7, 0, 33, 0]), e(g, 3, dtype=d), "mean"),
    "gat_attention": _gat(),
    "gat_attention, edges": _gat(edge_logits=bias),
    "gat_attention, masked": _gat(edge_logits=_masked),
    "gatv2_attention": _gatv2(),
    "gatv2_attention, rows": _gatv2(edge_bias=bias, edge_feat=rows),
    "gatv2_attention, columns": _gatv2(edge_bias=_masked, edge_feat=columns, edge_weight=weight),
    "dot_attention": _dot(),
    "dot_attention, rows": _dot(edge_bias=bias, edge_key=rows, edge_value=rows),
    "dot_attention, one tensor": _one_tensor_of_edges,
    "dot_attention, columns": _dot(edge_bias=_masked, edge_feat=columns, edge_key_weight=weight, edge_value_weight=weight),
    "gated_sum": _gated(),
    "gated_sum, normalized": _gated(normalize=True, return_edges=True),
    "edge_network": _network("sum", factor=lambda g, d: u(g, COLUMNS, dtype=d), edge_factor=lambda g, d: e(g, dtype=d)),
    "edge_network, positions": _network(
        "max", positions=_positions, distance_weight=lambda g, d: torch.randn(6).to(d), squared=lambda g, d: False
    ),
    "edge_network, edges": _network("none", return_edges=yes),
    "edge_network, residual": _network("mean", return_edges=yes, residual=yes),
}  # fmt: skip


def results_of(call, g, dtype):
    torch.manual_seed(1)
    found = call(g, dtype)
    return found if isinstance(found, tuple) else (found,)


@pytest.mark.parametrize("name", CASES)
@torch.no_grad()
def test_same_as_the_kernels(name):
    graphs = graph(torch.int64), graph(torch.int32), graph(torch.int64, in_order=True), graph(torch.int32)
    for (dtype, tolerance), g in zip(TOLERANCE.items(), graphs):
        expected = results_of(CASES[name], g, dtype)
        with Decomposed() as mode:
            found = results_of(CASES[name], g, dtype)
        assert mode.called
        for actual, wanted in zip(found, expected, strict=True):
            assert actual.dtype == wanted.dtype
            # Of a network, half-precision results of products are rounded at each layer.
            is_rounded_often = name.startswith("edge_network") and dtype in HALF
            limit = 4 * tolerance if is_rounded_often else tolerance
            torch.testing.assert_close(actual, wanted, rtol=limit, atol=limit, equal_nan=True)


@pytest.mark.parametrize("idtype", [torch.int32, torch.int64])
def test_adjacencies_are_the_same(idtype):
    g = graph(idtype)
    csc = g.csc()
    src, dst = g.edges()
    halfgnn_ops = torch.ops.halfgnn
    calls = (
        lambda: halfgnn_ops.coo_to_csr(dst, src, g.num_dst),
        lambda: halfgnn_ops.transpose(*csc, g.num_src),
        lambda: halfgnn_ops.transpose(*csc[:2], None, g.num_src),
    )
    for call in calls:
        expected = call()
        with Decomposed():
            found = call()
        for actual, wanted in zip(found, expected, strict=True):
            assert actual.dtype == wanted.dtype and torch.equal(actual, wanted)


@pytest.mark.parametrize("count", [1, 2])
def test_head_logits(count):
    feat, attns = torch.randn(5, HEADS, DIM).half(), torch.randn(count, 1, HEADS, DIM).unbind()
    expected = torch.ops.halfgnn.head_logits(feat, *attns)
    with Decomposed() as mode:
        found = torch.ops.halfgnn.head_logits(feat, *attns)
    assert mode.called
    for actual, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(actual, wanted)


def test_no_edges_and_no_nodes():
    g = halfgnn.Graph.from_edges(torch.zeros(0).long(), torch.zeros(0).long(), num_src=3, num_dst=2)
    none = halfgnn.Graph.from_edges(torch.zeros(0).long(), torch.zeros(0).long(), num_src=0, num_dst=0)
    with Decomposed(), torch.no_grad():
        assert torch.equal(ops.copy_u_max(g, torch.ones(3, 4)), torch.zeros(2, 4))
        assert torch.equal(_gat()(g, torch.float32), torch.zeros(2, HEADS, DIM))
        assert ops.copy_u_mean(none, torch.ones(0, 4)).shape == (0, 4)


def test_arguments_and_results_are_those_of_the_operators():
    for operator, decomposition in OF_HALFGNN.items():
        schema, code = operator._schema, decomposition.__code__
        names = [argument.name for argument in schema.arguments]
        assert list(code.co_varnames[: code.co_argcount]) == names
        defaults = [a.default_value for a in schema.arguments if a.has_default_value()]
        assert list(decomposition.__defaults__ or ()) == defaults
        assert set(RESULTS[operator]) <= set(range(len(schema.returns)))


def test_every_forward_has_one():
    names = {name.split("::")[1] for name in torch._C._dispatch_get_all_op_names() if name.startswith("halfgnn::")}
    forwards = {name for name in names if not name.endswith("_backward")} - set(WITHOUT)
    assert {operator._schema.name.split("::")[1] for operator in OF_HALFGNN} == forwards
