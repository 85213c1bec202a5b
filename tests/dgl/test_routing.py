"""Calls that the stand-ins for DGL's functions leave to DGL: DGL's own function gets every argument, and the reason is
counted."""

import pytest
import torch
from torch._subclasses import FakeTensorMode

dgl = pytest.importorskip("dgl")

import halfgnn.dgl  # noqa: E402
from halfgnn._library import has_cuda  # noqa: E402
from halfgnn.dgl import operators  # noqa: E402

ANSWER = object()

ONE = dgl.graph((torch.tensor([0, 1, 2, 2]), torch.tensor([1, 2, 0, 1])), num_nodes=3)
# Two node types, three edge types.
MANY = dgl.heterograph(
    {
        ("a", "to", "b"): (torch.tensor([0, 1]), torch.tensor([1, 1])),
        ("b", "back", "a"): (torch.tensor([0]), torch.tensor([1])),
        ("a", "again", "b"): (torch.tensor([0, 0]), torch.tensor([1, 0])),
    },
    {"a": 2, "b": 2},
)


def n(dtype=torch.float32, rows=3, width=4):
    return torch.ones(rows, width, dtype=dtype)


def e(dtype=torch.float32, rows=4, width=4):
    return torch.ones(rows, width, dtype=dtype)


@pytest.fixture
def original(monkeypatch):
    """Replaces DGL's function by one that records its arguments."""
    calls = []

    def put(key):
        monkeypatch.setitem(operators.ORIGINALS, key, lambda *args, **kwargs: calls.append((args, kwargs)) or ANSWER)
        return calls

    halfgnn.dgl.reset_stats()
    yield put
    halfgnn.dgl.reset_stats()


def counted():
    assert halfgnn.dgl.stats()["routed"] == {}
    return halfgnn.dgl.stats()["fell_back"]


ints, half, double = torch.int64, torch.float16, torch.float64
one, many = ONE._graph, MANY._graph
nodes, edges = [n(rows=2), n(rows=2)], [e(rows=2), e(rows=1), e(rows=2)]  # of MANY, by type
REFUSED = [
    # stand-in, arguments, name and reason that are counted
    ("gspmm", (one, "mul", "sum", n(ints), e(ints)), "gspmm:u_mul_e_sum", "torch.int64 on cpu"),
    ("gspmm", (one, "pow", "sum", n(), e()), "gspmm:('pow', 'sum')", "no such operator"),
    ("gspmm", (one, "mul", "prod", n(), e()), "gspmm:('mul', 'prod')", "no such operator"),
    ("gspmm", (one, "copy_lhs", "sum", None, e()), "gspmm:copy_u_sum", "missing operand"),
    ("gspmm", (one, "copy_rhs", "max", n(), None), "gspmm:copy_e_max", "missing operand"),
    ("gspmm", (one, "add", "min", n(), None), "gspmm:u_add_e_min", "missing operand"),
    ("gspmm", (one, "div", "mean", n(), e(double)), "gspmm:u_div_e_mean", "torch.float32 with torch.float64"),
    ("gspmm", (one, "sub", "sum", n(half), e(double)), "gspmm:u_sub_e_sum", "torch.float16 with torch.float64"),
    ("gspmm", (many, "copy_lhs", "sum", n(), None), "gspmm:copy_u_sum", "several edge types"),
    ("gsddmm", (one, "dot", n(ints), n(ints), "u", "v"), "gsddmm:u_dot_v", "torch.int64 on cpu"),
    ("gsddmm", (one, "mul", n(half), e(double), "src", "edge"), "gsddmm:u_mul_e", "torch.float16 with torch.float64"),
    ("gsddmm", (one, "copy_lhs", None, n(), "v", "u"), "gsddmm:copy_v", "missing operand"),
    ("gsddmm", (one, "copy_rhs", n(), None, "u", "v"), "gsddmm:copy_v", "missing operand"),
    ("gsddmm", (one, "dot", n(), n(), "v", "dst"), "gsddmm:('dot', 'v', 'dst')", "no such operator"),
    ("gsddmm", (many, "add", n(), n(), "u", "v"), "gsddmm:u_add_v", "several edge types"),
    ("edge_softmax", (one, e(ints), "__ALL__", "dst"), "edge_softmax:dst", "torch.int64 on cpu"),
    ("edge_softmax", (one, None, "__ALL__", "src"), "edge_softmax:src", "missing operand"),
    ("edge_softmax", (one, e(), "__ALL__", "both"), "edge_softmax:both", "no such operator"),
    ("edge_softmax", (many, e(), "__ALL__", "dst"), "edge_softmax:dst", "several edge types"),
    ("edge_softmax", (many, e(), torch.tensor([0]), "dst"), "edge_softmax:dst", "several edge types"),
    ("segment_reduce", ("sum", e(ints), torch.tensor([0, 4])), "segment_reduce:sum", "torch.int64 on cpu"),
    ("segment_reduce", ("prod", e(), torch.tensor([0, 4])), "segment_reduce:prod", "no such operator"),
    ("gspmm_hetero", (many, "mul", "mean", 2, *nodes, *edges), "gspmm_hetero:u_mul_e_mean", "no such operator"),
    ("gspmm_hetero", (many, "pow", "sum", 2, *nodes, *edges), "gspmm_hetero:('pow', 'sum')", "no such operator"),
    (
        "gspmm_hetero",
        (many, "mul", "sum", 2, *nodes, *edges[:2], None),
        "gspmm_hetero:u_mul_e_sum",
        "missing operand",
    ),
    (
        "gspmm_hetero",
        (many, "mul", "sum", 2, nodes[0], n(double, 2), *edges),
        "gspmm_hetero:u_mul_e_sum",
        "torch.float64 with torch.float32",
    ),
    ("gsddmm_hetero", (many, "add", 2, "u", "v", *nodes, None, nodes[1]), "gsddmm_hetero:u_add_v", "missing operand"),
    (
        "gsddmm_hetero",
        (many, "add", 2, "u", "u", *nodes, *nodes),
        "gsddmm_hetero:('add', 'u', 'u')",
        "no such operator",
    ),
    (
        "gsddmm_hetero",
        (many, "mul", 2, "u", "e", *(x.double() for x in nodes), *edges),
        "gsddmm_hetero:u_mul_e",
        "torch.float64 with torch.float32",
    ),
    (
        "edge_softmax_hetero",
        (many, "__ALL__", "dst", *edges[:2], e(rows=2, width=1)),
        "edge_softmax_hetero:dst",
        "logits of several shapes",
    ),
    (
        "edge_softmax_hetero",
        (many, "__ALL__", "src", *edges[:2], e(ints, rows=2)),
        "edge_softmax_hetero:src",
        "torch.float32 with torch.int64",
    ),
    ("edge_softmax_hetero", (many, "__ALL__", "both", *edges), "edge_softmax_hetero:both", "no such operator"),
    ("edge_softmax_hetero", (many, torch.tensor([0]), "src", *edges), "edge_softmax_hetero:src", "eids"),
]


@pytest.mark.parametrize(
    "key,args,name,reason", REFUSED, ids=[f"{i}-{case[2]}-{case[3]}" for i, case in enumerate(REFUSED)]
)
def test_refused_operands_reach_dgl_as_they_are(key, args, name, reason, original):
    calls = original(key)
    assert getattr(operators, key)(*args) is ANSWER
    assert len(calls) == 1 and not calls[0][1]
    assert len(calls[0][0]) == len(args) and all(a is b for a, b in zip(calls[0][0], args))
    assert counted() == {name: {reason: 1}}


def test_defaults_of_the_wrappers_are_dgls(original):
    """For arguments that a caller leaves out, DGL gets its own defaults."""
    for key, args, rest in [
        ("gsddmm", (one, "add", n(ints), n(ints)), ("u", "v")),
        ("edge_softmax", (one, e(ints)), (dgl.ALL, "dst")),
    ]:
        calls = original(key)
        assert getattr(operators, key)(*args) is ANSWER
        assert calls.pop()[0] == (*args, *rest)


def test_functions_of_users(original):
    for key, name in [("invoke_edge_udf", "udf:message"), ("invoke_udf_reduce", "udf:reduce")]:
        calls = original(key)
        assert getattr(operators, key)(1, 2, orig_eid=3) is ANSWER
        assert calls.pop() == ((1, 2), {"orig_eid": 3})
        assert counted()[name] == {"user-defined function": 1}


def test_upper_functions_leave_counting_to_the_lower(original):
    for key, call in [
        ("ops.gspmm", lambda: operators.gspmm_of_graph(ONE, "mul", "sum", n(ints), e(ints))),
        ("ops.segment_reduce", lambda: operators.segment_reduce_of_lengths(torch.tensor([4]), e(), "prod")),
        ("ops.segment_reduce", lambda: operators.segment_reduce_of_lengths(torch.tensor([4]), e(ints), "max")),
    ]:
        calls = original(key)
        assert call() is ANSWER
        args, kwargs = calls.pop()
        assert len(args) + len(kwargs) == (5 if key == "ops.gspmm" else 3) and counted() == {}


def test_types_under_autocast():
    """Autocast casts half and fp32 operands, in any order, to one type. It casts nothing else."""
    pairs = [(n(half), e()), (n(), e(torch.bfloat16)), (n(half), e(torch.bfloat16))]
    assert [operators.operands_reason(pair) is None for pair in pairs] == [False] * 3
    with torch.autocast("cpu", torch.bfloat16):
        assert [operators.operands_reason(pair) for pair in pairs] == [None] * 3
        for pair in [(n(double), e()), (n(), e(double)), (n(), e(ints))]:
            assert "with" in operators.operands_reason(pair)


def test_fp32_goes_with_half_alone():
    for dtype in (half, torch.bfloat16):
        for pair in ((n(dtype), e()), (n(), e(dtype))):
            assert operators.operands_reason(pair, mixed=True) is None
            assert operators.operands_reason(pair) is not None
    for pair in [(n(double), e()), (n(), e(double)), (n(half), e(torch.bfloat16)), (n(half), e(double))]:
        assert operators.operands_reason(pair, mixed=True) is not None


def test_types_by_device():
    """On CUDA the types of its kernels are routed, if the kernels are built. On other devices nothing is."""
    with FakeTensorMode():
        for dtype in (half, torch.bfloat16, torch.float32):
            assert (operators.operands_reason((torch.empty(2, dtype=dtype, device="cuda"),)) is None) == has_cuda()
        assert operators.operands_reason((torch.empty(2, dtype=double, device="cuda"),)) == "torch.float64 on cuda"
        assert operators.operands_reason((torch.empty(2, device="meta"),)) == "torch.float32 on meta"


def test_relations_of_other_shapes_into_one_type():
    w = [torch.ones(MANY.num_edges(etype), 4) for etype in MANY.canonical_etypes]
    w[1] = w[1].unsqueeze(1).expand(-1, 3, 4)  # of the second relation into b
    assert [etype[2] for etype in MANY.canonical_etypes[:2]] == ["b", "b"]
    with pytest.raises(ValueError, match=r"results of shapes .*\(2, 4\).*\(2, 3, 4\)"):
        operators.gspmm_hetero(many, "mul", "sum", 2, *nodes, *w)


@pytest.mark.parametrize(
    "call",
    [
        lambda g: halfgnn.ops.gspmm(g, "mul", "max", n(), e()),
        lambda g: halfgnn.ops.gsddmm(g, "add", n(), e(), "v", "e"),
        lambda g: halfgnn.ops.edge_softmax(g, e().cumsum(0)),
        lambda g: halfgnn.ops.edge_softmax(g, e().cumsum(0), "src"),
        lambda g: halfgnn.ops.gat_attention(g, n().view(3, 1, 4).cumsum(0), n(width=1).cumsum(0), n(width=1)),
        lambda g: halfgnn.ops.gatv2_attention(g, *[n().view(3, 1, 4).cumsum(0)] * 2, torch.ones(1, 4)),
        lambda g: halfgnn.ops.dot_attention(g, *[n().view(3, 1, 4).cumsum(0)] * 3),
    ],
    ids=["gspmm", "gsddmm", "edge_softmax-dst", "edge_softmax-src", "gat", "gatv2", "dot"],
)
def test_public_operators_take_a_dgl_graph(call):
    assert torch.equal(call(ONE), call(halfgnn.Graph.from_dgl(ONE)))
