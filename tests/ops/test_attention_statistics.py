"""What the raw operators of attention save for their backward if a row is empty, or if a value is too large for its
type."""

import pytest
import torch

from tests import support
from tests.support import HALVES, make_graph
from tests.support_attention import DOT, GAT, GAT_EDGE, SEED, SLOPE, every_kind

raw = torch.ops.halfgnn


def forward(kind, g, operands, dropout_p, device, save=True):
    operands = [*operands, None] if kind is GAT else operands
    name = "gat_attention" if kind in (GAT, GAT_EDGE) else "dot_attention" if kind is DOT else "gatv2_attention"
    return getattr(raw, name)(*g.csc(), *operands, SLOPE, dropout_p, torch.tensor(SEED, device=device), save, True)


@every_kind
@pytest.mark.parametrize("device,dtype", support.devices_and([*HALVES, torch.float32]))
def test_nodes_without_edges(dtype, device, kind):
    """Their result is 0, and their lse is that of a single weight of 1."""
    g = make_graph("skewed", torch.int32, device)
    empty = g.in_degrees() == 0
    assert empty.any() and not empty.all()
    out, lse, residual, *_ = forward(kind, g, kind.operands(g, 2, 8, dtype, device), 0.5, device)
    assert not out[empty].any() and not lse[empty].any() and lse[~empty].all()
    assert dtype == torch.float32 or not residual[empty].any()


@every_kind
@pytest.mark.parametrize("device,dtype", support.devices_and(HALVES))
def test_results_that_pass_the_largest_half_have_lost_nothing(dtype, device, kind):
    """The rounding error would be infinite, and NaN when the backward adds it."""
    g = make_graph("skewed", torch.int32, device)
    largest = torch.finfo(dtype).max
    operands = [torch.zeros_like(x) for x in kind.operands(g, 2, 12, dtype, device)]
    operands[2 if kind is DOT else 0].fill_(0.75 * largest)  # half of the weights are dropped, the others doubled
    out, _, residual, *_ = forward(kind, g, operands, 0.5, device)
    assert out.isposinf().any() and out.isfinite().any()
    assert not residual[out.isposinf()].any() and residual.isfinite().all()


@every_kind
@pytest.mark.parametrize("device,dtype", support.devices_and(HALVES))
def test_without_a_backward_nothing_is_kept(dtype, device, kind):
    """Not even if precise is requested."""
    g = make_graph("skewed", torch.int32, device)
    out, *rest = forward(kind, g, kind.operands(g, 2, 8, dtype, device), 0.5, device, save=False)
    assert out.numel() > 0 and [x.numel() for x in rest] == [0] * len(rest)
