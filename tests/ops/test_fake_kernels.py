"""Fake kernels return the shapes and types of their operators, also if operands, gradients and results differ in
type."""

from itertools import product
from pathlib import Path

import pytest
import torch

import halfgnn
from halfgnn import ops
from halfgnn.common import fake
from tests import support
from tests.support import make_graph, randn
from tests.support_dispatch import beside_fakes

TYPES = [(torch.float16, None), (torch.float16, torch.float32), (torch.float32, None)]  # type of operands, out_dtype
TYPES_OF_TWO = [
    *((dtype, dtype, out_dtype) for dtype, out_dtype in TYPES),
    *((*pair, None) for pair in support.MIXED),
    (torch.float16, torch.float32, torch.float32),
]


@pytest.mark.parametrize("op", support.SPMM_OPS)
def test_gspmm(op):
    g = make_graph("bipartite")
    for reduce_op, (dtype, rhs_dtype, out_dtype) in product(support.REDUCES, TYPES_OF_TWO):
        x, w = support.spmm_operands(g, op, (3, 4), (3, 1), dtype, rhs_dtype=dtype if op == "copy_rhs" else rhs_dtype)
        called = beside_fakes(lambda x, w: ops.gspmm(g, op, reduce_op, x, w, out_dtype=out_dtype), x, w)  # noqa: B023
        assert {"gspmm", "gspmm_backward"} <= called


@pytest.mark.parametrize("op", support.SDDMM_OPS)
def test_gsddmm(op):
    g = make_graph("bipartite")
    for targets, (*dtypes, out_dtype) in product(("uv", "ve", "eu"), TYPES_OF_TWO):
        if op.startswith("copy"):
            out_dtype = None
        sides = zip(targets, [(3, 4), (1, 4)], dtypes)
        x, y = (randn(support.rows_of(g, target), *shape, dtype=dtype) for target, shape, dtype in sides)
        called = beside_fakes(lambda x, y: ops.gsddmm(g, op, x, y, *targets, out_dtype=out_dtype), x, y)  # noqa: B023
        is_passed_on = {"copy_lhs": targets[0], "copy_rhs": targets[1]}.get(
            op
        ) == "e"  # a gradient that is the result's own
        assert ({"gsddmm"} if is_passed_on else {"gsddmm", "gsddmm_backward"}) <= called


def test_softmax_and_segments():
    g = make_graph("bipartite")
    logits = randn(4, g.num_edges, dtype=torch.float16).T  # results are contiguous anyway
    assert {"edge_softmax", "edge_softmax_backward"} <= beside_fakes(lambda x: ops.edge_softmax(g, x), logits)
    lengths = torch.tensor([2, 0, g.num_edges - 2])
    for reducer in support.REDUCES:
        called = beside_fakes(lambda x: ops.segment_reduce(lengths, x, reducer), logits)  # noqa: B023
        assert {"segment_reduce", "segment_reduce_backward"} <= called


def test_several_reductions():
    g = make_graph("bipartite")
    for dtype, out_dtype in TYPES:
        x = randn(g.num_src, 12, dtype=dtype)
        called = beside_fakes(lambda x: ops.copy_u_reduce(g, x, ("std", "max"), out_dtype=out_dtype)[0], x)  # noqa: B023
        assert {"copy_u_reduce", "copy_u_reduce_backward"} <= called


@pytest.mark.parametrize("return_weights", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_attentions(dtype, return_weights):
    g = make_graph("skewed")
    x, y, z = (randn(g.num_src, 3, 4, dtype=dtype) for _ in range(3))
    src, dst = (randn(g.num_src, 3, dtype=torch.float32) for _ in range(2))
    edge, attn = randn(g.num_edges, 3, dtype=torch.float32), randn(3, 4, dtype=dtype)
    options = {"dropout_p": 0.5, "return_weights": return_weights}
    first = (lambda out: out[0]) if return_weights else (lambda out: out)
    called = beside_fakes(lambda *of: first(ops.gat_attention(g, *of, **options)), x, src, dst, edge)
    called |= beside_fakes(lambda *of: first(ops.gatv2_attention(g, *of, **options)), x, y, attn)
    called |= beside_fakes(lambda *of: first(ops.dot_attention(g, *of, **options)), x, y, z)
    names = {f"{name}_attention" for name in ("gat", "gatv2", "dot")}
    assert return_weights or names | {f"{name}_backward" for name in names} <= called


@pytest.mark.skipif(not hasattr(getattr(torch.compiler, "config", None), "cache_key_tag"), reason="needs torch 2.7")
def test_compiled_code_of_other_sources_is_not_used(tmp_path):
    """torch.compile's keys on disk have this tag, and know nothing of gradients and schemas of operators (PyTorch#144344)."""
    config, g = torch.compiler.config, make_graph("bipartite")
    with config.patch(cache_key_tag="user's"):
        fake.tag_compiled_code.cache_clear()
        for _ in range(2):
            beside_fakes(lambda x: ops.copy_u_sum(g, x), randn(g.num_src, 4, dtype=torch.float32))
        assert config.cache_key_tag == f"user's halfgnn:{fake.digest_of_sources(Path(halfgnn.__file__).parent)}"
    fake.tag_compiled_code.cache_clear()

    (tmp_path / "ops").mkdir()
    digests = {fake.digest_of_sources(tmp_path)}
    for text in ("a = 1", "a = 2"):
        (tmp_path / "ops" / "spmm.py").write_text(text)
        digests.add(fake.digest_of_sources(tmp_path))
    assert len(digests) == 3
