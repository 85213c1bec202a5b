"""The cases of the GPU tests, on the CPU: they run, and every operator is among them."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.gpu import gpu_cases

# Operators for graphs or loading, which have their own tests.
ELSEWHERE = {
    "coo_to_csr",
    "transpose",
    "gather_rows",
    "code_sum",
    "coo_softmax",  # on the CPU alone
    "coo_softmax_backward",
    "coo_sum",
    "coo_sum_backward",
    "head_logits",  # in cover.py
    "head_logits_backward",
    "locality",
    "reorder",
    "neighbor_sample",
}  # the last three: CPU alone


class Recorder(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "halfgnn":
            self.names.add(func._schema.name.removeprefix("halfgnn::"))
        return func(*args, **(kwargs or {}))


def test_no_operator_is_left_out():
    g = gpu_cases.hub_graph()
    with Recorder() as recorder:
        for case in gpu_cases.CASES:
            leaves = [x.requires_grad_() for x in case.operands(g, torch.float32)]
            for result in gpu_cases.with_gradients(case, g, leaves, []):
                assert result.isfinite().all(), case.name
    schemas = {s.name for s in torch._C._jit_get_all_schemas() if s.name.startswith("halfgnn::")}
    names = {name.removeprefix("halfgnn::") for name in schemas}
    assert recorder.names | ELSEWHERE == names | ELSEWHERE


def test_hubs_are_long_enough_to_be_cut():
    g = gpu_cases.hub_graph()
    for degrees in (g.in_degrees(), g.out_degrees()):
        assert degrees.max() >= 3_000 and (degrees == 0).any()


@pytest.mark.parametrize("values,same", [([0.0, float("nan")], True), ([-0.0, float("nan")], False)])
def test_bits_are_compared(values, same):
    a, b = [torch.tensor([0.0, float("nan")])], [torch.tensor(values)]
    if same:
        return gpu_cases.assert_same(a, b)
    with pytest.raises(AssertionError, match="result 0 differs"):
        gpu_cases.assert_same(a, b)
