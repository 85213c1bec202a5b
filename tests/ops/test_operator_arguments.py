"""Other spellings of arguments that operators take, as documented."""

import pytest
import torch

from halfgnn import ops
from tests.support import make_graph, randn

SPELLINGS = {"u": ["u", "src", 0], "e": ["e", "edge", 1], "v": ["v", "dst", 2]}


@pytest.mark.parametrize("left,right", ["uv", "ve", "eu", "vu", "ev", "ue"])
def test_spellings_of_targets(left, right):
    g = make_graph("bipartite")
    rows = {"u": g.num_src, "v": g.num_dst, "e": g.num_edges}
    x, y = (randn(rows[target], 2, dtype=torch.float32) for target in (left, right))
    expected = getattr(ops, f"{left}_sub_{right}")(g, x, y)
    for a, b in zip(SPELLINGS[left], SPELLINGS[right]):
        assert torch.equal(ops.gsddmm(g, "sub", x, y, a, b), expected)


@pytest.mark.parametrize("heads", [1, 3])
def test_attention_vectors_may_have_the_leading_dimension_of_modules(heads):
    g = make_graph("skewed")
    x, y = (randn(g.num_src, heads, 4, dtype=torch.float32) for _ in range(2))
    attn = randn(heads, 4, dtype=torch.float32)
    assert torch.equal(ops.gatv2_attention(g, x, y, attn[None]), ops.gatv2_attention(g, x, y, attn))


def test_documentation_of_named_operators():
    for name, parts in {
        "u_sub_e_max": ("max over", "sub(x[u], y[e])", "x (num_src, *), y (E, *)"),
        "copy_u_mean": ("mean over", "of x[u]", "x (num_src, *)"),
        "copy_e_min": ("min over", "of x[e]", "x (E, *)"),
        "e_div_v": ("div(x[e], y[v])",),
        "copy_v": ("x[v]",),
    }.items():
        function = getattr(ops, name)
        assert function.__name__ == function.__qualname__ == name and function.__module__ == "halfgnn.ops"
        assert all(part in function.__doc__ for part in parts), function.__doc__
