"""The fused attentions: what they take and what they refuse."""

import pytest
import torch

from halfgnn import ops
from tests.support import make_graph
from tests.support_attention import (
    GAT,
    GAT_EDGE,
    GATV2,
    KINDS,
    SEED,
    SLOPE,
    every_kind,
)

raw = torch.ops.halfgnn


def refuse(error, match, call, *args, **kwargs):
    with pytest.raises(error, match=match):
        call(*args, **kwargs)


def test_bad_arguments(device):
    g = make_graph("bipartite", torch.int64, device)

    def zeros(rows, *shape, dtype=torch.float16, where=device):
        return torch.zeros(rows, *shape, dtype=dtype, device=where)

    feat, src, dst = zeros(g.num_src, 2, 8), zeros(g.num_src, 2), zeros(g.num_dst, 2)
    gat, gatv2, dot = ops.gat_attention, ops.gatv2_attention, ops.dot_attention
    refuse(TypeError, "g is a int", gat, 3, feat, src, dst)
    refuse(TypeError, "feat is None", gat, g, None, src, dst)
    refuse(ValueError, r"feat has shape \(30, 16\); expected \(rows, heads, dim\)", gat, g, zeros(30, 16), src, dst)
    refuse(ValueError, "feat has shape .*; expected 30 rows", gat, g, feat[:-1], src, dst)
    refuse(ValueError, r"attn_src has shape \(30, 3\)", gat, g, feat, zeros(g.num_src, 3), dst)
    refuse(ValueError, "attn_dst has shape .*; expected 40 rows", gat, g, feat, src, src)
    refuse(ValueError, "edge_logits has shape .*; expected 300 rows", gat, g, feat, src, dst, zeros(5, 2))
    refuse(ValueError, "edge_logits has shape", gat, g, feat, src, dst, zeros(g.num_edges, 2, 1))
    refuse(ValueError, "dropout_p is 1.5", gat, g, feat, src, dst, dropout_p=1.5)
    refuse(ValueError, "dropout_p is nan", dot, g, zeros(40, 2, 8), feat, feat, dropout_p=float("nan"))
    refuse(TypeError, "feat has dtype torch.int64", gat, g, feat.long(), src, dst)
    refuse(TypeError, "attn_src has dtype torch.int64", gat, g, feat, src.long(), dst.long())
    refuse(TypeError, "attn_", gat, g, feat, src.double(), dst)
    refuse(TypeError, "attn_src has dtype torch.float16|feat has dtype torch.float64", gat, g, feat.double(), src, dst)
    refuse(ValueError, "feat_dst has shape", gatv2, g, feat, zeros(g.num_dst, 2, 4), zeros(2, 8))
    refuse(ValueError, r"attn has shape \(8,\)", gatv2, g, feat, zeros(g.num_dst, 2, 8), zeros(8))
    refuse(ValueError, "attn is on meta", gatv2, g, feat, zeros(g.num_dst, 2, 8), zeros(2, 8, where="meta"))
    refuse(TypeError, "attn is None", gatv2, g, feat, zeros(g.num_dst, 2, 8), None)
    refuse(TypeError, "feat_dst has dtype torch.float32", gatv2, g, feat, zeros(g.num_dst, 2, 8).float(), zeros(2, 8))
    refuse(ValueError, "value has shape", dot, g, zeros(g.num_dst, 2, 8), feat, zeros(g.num_src, 2, 4))
    refuse(ValueError, "query has shape", dot, g, zeros(g.num_dst, 1, 8), feat, feat)
    refuse(ValueError, "query has shape .*; expected 40 rows", dot, g, feat, feat, feat)
    refuse(TypeError, "value has dtype torch.bfloat16", dot, g, zeros(g.num_dst, 2, 8), feat, feat.bfloat16())


@pytest.mark.parametrize("name", ["dropout_p", "negative_slope", "scale"])
def test_bad_numbers(name):
    g = make_graph("bipartite", torch.int64)
    feat, other, logits = (torch.zeros(rows, 2, 8)[:, :, :dim] for rows, dim in ((30, 8), (40, 8), (30, 1)))
    calls = {
        "gat": lambda **number: ops.gat_attention(g, feat, logits[..., 0], other[..., 0], **number),
        "gatv2": lambda **number: ops.gatv2_attention(g, feat, other, feat[0], **number),
        "dot": lambda **number: ops.dot_attention(g, other, feat, feat, **number),
    }
    for kind in {"negative_slope": ("gat", "gatv2"), "scale": ("dot",)}.get(name, calls):
        call = calls[kind]
        for wrong in ("0.2", [0.2], 1j, torch.zeros(2), torch.zeros(1, dtype=torch.complex64)):
            refuse(TypeError, f"{name} is .*; expected a number", call, **{name: wrong})
        for wrong in (float("nan"), -float("inf"), torch.tensor(float("nan"))):
            refuse(ValueError, f"{name} is (nan|-inf); expected a finite number", call, **{name: wrong})
        refuse(TypeError, f"{name} .* gradient", call, **{name: torch.nn.Parameter(torch.tensor(0.2))})
        if name != "scale":
            refuse(TypeError, f"{name} is None; expected a number", call, **{name: None})
        expected = call(**{name: 0.0})
        for number in (0, False, torch.zeros(1), torch.zeros((), dtype=torch.int64)):
            assert torch.equal(call(**{name: number}), expected)


def test_raw_operators_check_what_they_are_given(device):
    g = make_graph("bipartite", torch.int64, device)
    feat, src, dst = GAT.operands(g, 2, 8, torch.float16, device)
    common = (None, SLOPE)
    gat = raw.gat_attention
    refuse(ValueError, "seed is None", gat, *g.csc(), feat, src, dst, *common, 0.5, None, False, False)
    refuse(TypeError, "seed has dtype", gat, *g.csc(), feat, src, dst, *common, 0.5, src[0], False, False)
    refuse(ValueError, "seed has shape", gat, *g.csc(), feat, src, dst, *common, 0.5, g.csc()[0], False, False)
    refuse(ValueError, "attn_dst has shape", gat, *g.csc(), feat, src, src, *common, 0.0, None, False, False)
    saved = gat(*g.csc(), feat, src, dst, *common, 0.0, None, True, True)
    out, lse, *rest = saved
    grad = torch.ones_like(out)

    def backward(grad=grad, out=out, lse=lse, rest=rest, feat=feat):
        return raw.gat_attention_backward(*g.csr(), feat, src, dst, *common, 0.0, None, grad, out, lse, *rest, False)

    backward()
    refuse(ValueError, "grad has shape", backward, grad=grad[:-1])
    refuse(TypeError, "grad has dtype", backward, grad=grad.float())
    refuse(ValueError, "lse has shape", backward, lse=lse[:, :1])
    refuse(TypeError, "lse has dtype", backward, lse=lse.half())
    refuse(ValueError, "out_residual has shape", backward, rest=[rest[0][:-1], *rest[1:]])
    refuse(ValueError, "positive has shape", backward, rest=[rest[0], rest[1][:-1]])
    refuse(ValueError, "feat has shape", backward, feat=feat[:-1])


@every_kind
def test_opcheck(kind, device):
    g = make_graph("skewed", torch.int64, device)
    operands = kind.operands(g, 2, 8, torch.float16, device)
    seed = torch.tensor(SEED, device=device)
    tests = ("test_schema", "test_faketensor")
    if kind.logits:
        operands = [*operands, None] if kind is GAT else operands
        forward, backward, side = raw.gat_attention, raw.gat_attention_backward, g.csr()
        need, kept = (kind is GAT_EDGE,), 4
    else:
        forward = raw.gatv2_attention if kind is GATV2 else raw.dot_attention
        backward = raw.gatv2_attention_backward if kind is GATV2 else raw.dot_attention_backward
        side, need, kept = (*g.csc(), *g.csr()), (False,), 3  # short_rows, and out_short_rows; results that are saved
    for save, precise in ((True, True), (True, False), (False, False)):
        args = (*g.csc(), *operands, SLOPE, 0.5, seed, save, precise)
        torch.library.opcheck(forward.default, (*args, True), test_utils=tests)
        if save:
            saved = forward(*args)
            args = (*side, *operands, SLOPE, 0.5, seed, torch.ones_like(saved[0]), *saved[:kept], *need, True)
            torch.library.opcheck(backward.default, args, test_utils=tests)


def test_takes_a_dgl_graph():
    dgl = pytest.importorskip("dgl")
    g = make_graph("skewed")
    other = dgl.graph(g.edges(), num_nodes=g.num_src)
    for kind in KINDS:
        operands = kind.operands(g, 2, 8, torch.float32)
        assert torch.equal(kind.call(g, *operands), kind.call(other, *operands))
