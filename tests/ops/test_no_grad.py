"""If gradients are disabled, nothing is made or kept for a backward, even if the operands require gradients."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from halfgnn import ops
from tests import support
from tests.support import make_graph, randn

# name: (function of graph and operands, operands' targets and trailing shapes)
CASES = {
    "gspmm": (ops.u_mul_e_sum, [("u", (2, 8)), ("e", (2, 1))]),
    "gspmm, winners": (ops.copy_u_max, [("u", (40,))]),
    "gspmm, winners of messages": (ops.u_add_e_min, [("u", (2, 8)), ("e", (2, 1))]),
    "gsddmm": (ops.u_dot_v, [("u", (2, 8)), ("v", (2, 8))]),
    "gat_attention": (ops.gat_attention, [("u", (2, 8)), ("u", (2,)), ("v", (2,))]),
    "gatv2_attention": (ops.gatv2_attention, [("u", (2, 8)), ("v", (2, 8)), (None, (2, 8))]),
    "dot_attention": (ops.dot_attention, [("v", (2, 8)), ("u", (2, 8)), ("u", (2, 8))]),
}


class Recorder(TorchDispatchMode):
    """Records the halfgnn operators that run, with their results."""

    def __init__(self):
        super().__init__()
        self.results = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if func.namespace == "halfgnn":
            self.results[func._schema.name.removeprefix("halfgnn::")] = out
        return out


def run(name, device, mode):
    """The result, the tensors that the operator returned, and whether the call made the graph's out-edges."""
    function, shapes = CASES[name]
    g = make_graph("bipartite", torch.int32, device)
    operands = []
    for target, shape in shapes:
        rows = () if target is None else (support.rows_of(g, target),)
        operands.append(randn(*rows, *shape, dtype=torch.float16, device=device).requires_grad_())
    with mode(), Recorder() as recorder:
        out = function(g, *operands)
    (results,) = recorder.results.values()
    assert set(recorder.results) == {name.partition(",")[0]}
    return out, results, g._csr is not None


def num_kept(results):
    """Number of elements beside the result itself."""
    return sum(x.numel() for x in results[1:]) if isinstance(results, tuple) else 0


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("name", CASES)
def test_nothing_is_prepared_for_a_backward(name, mode, device):
    out, results, has_out_edges = run(name, device, mode)
    assert not out.requires_grad and not has_out_edges and num_kept(results) == 0


@pytest.mark.parametrize("name", CASES)
def test_a_backward_needs_more(name, device):
    """With gradients the test above would find these tensors."""
    out, results, has_out_edges = run(name, device, torch.enable_grad)
    assert out.requires_grad and has_out_edges
    assert num_kept(results) > 0 or not name.endswith("attention")
