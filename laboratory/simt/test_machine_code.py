"""What nvcc made of the kernels: results of the compiled machine code, executed by laboratory/machine_code/emulator on the
simulator's memory and launches, held to the accuracy rule. So the machine code is tested without a GPU.

One case or two for each kernel on a fast path: odd sizes, a hub that is cut into pieces, rows without edges.
"""

from __future__ import annotations

import contextlib
import functools

import pytest
import torch

from halfgnn import Graph, ops, reference
from laboratory.machine_code import disassembly, launches
from laboratory.machine_code.emulator import EmulatorError, Library
from laboratory.machine_code.emulator.program import parse
from laboratory.simt import control
from laboratory.simt.graphs import graph_of
from tests import support, support_attention
from tests import support_attention_edges as dot_edges
from tests import support_gatv2_edges as gatv2_edges
from tests.support import HALVES, check_gsddmm, check_gspmm, randn
from tests.support_messages import check_gated_sum, gated_operands

if not control.SIMULATED:
    pytest.skip("runs on the simulator: laboratory/simt/run.py", allow_module_level=True)

LIBRARY = disassembly.ROOT / "halfgnn" / "_C.so"
DEGREES = [3, 0, 7, 1, 50, 0, 2, 33, 1, 5, 0]


_reason = launches.why_not(LIBRARY)
pytestmark = pytest.mark.skipif(_reason is not None, reason=str(_reason))


@functools.cache
def library():
    return Library(LIBRARY)


def graph(degrees, identity=True):
    g = graph_of(degrees, 37, torch.int32, identity)
    g.csc(), g.csr()  # not by the emulator
    return g


@contextlib.contextmanager
def on_machine_code(*kernels):
    """Everything inside runs on the emulator, these kernels too."""
    with launches.executed(library()) as counts:
        yield
    names = {count.call.program.name.split("<")[0] for count in counts}
    assert names >= set(kernels), names


every_half = pytest.mark.parametrize("dtype", HALVES)


@every_half
@pytest.mark.parametrize("op,reduce_op,width", [
    ("copy_lhs", "sum", 128), ("mul", "sum", 41), ("mul", "mean", 16), ("copy_lhs", "max", 24),
])  # fmt: skip
def test_sums_and_maxima(op, reduce_op, width, dtype):
    g = graph(DEGREES, identity=width != 16)
    with on_machine_code("spmm_extremum_kernel" if reduce_op == "max" else "spmm_sum_kernel"):
        check_gspmm(g, op, reduce_op, support.spmm_operands(g, op, (width,), (1,), dtype), backward=op == "mul")


@pytest.mark.parametrize("op,width,dtype", [("relu_add", 128, torch.float16), ("sub", 41, torch.bfloat16)])
def test_messages(op, width, dtype):
    g = graph(DEGREES, identity=width != 41)
    with on_machine_code("edge_sum_kernel", "edge_sum_backward_kernel"):
        check_gspmm(g, op, "mean", support.spmm_operands(g, op, (width,), (width,), dtype))


@pytest.mark.parametrize("has_values", [False, True])
@pytest.mark.parametrize("normalize,width,dtype", [(False, 128, torch.float16), (True, 40, torch.bfloat16)])
def test_gated_sums(normalize, width, dtype, has_values):
    g = graph(DEGREES, identity=width != 40)
    with on_machine_code("gated_sum_kernel", "gated_sum_backward_kernel"):
        check_gated_sum(g, gated_operands(g, (width,), dtype, has_values=has_values), normalize)


@every_half
def test_dots(dtype):
    g = graph(DEGREES)
    with on_machine_code("sddmm_dot_kernel"):
        operands = [randn(n, 128, dtype=dtype) for n in (g.num_src, g.num_dst)]
        check_gsddmm(g, "dot", operands, "u", "v", backward=False)


@every_half
def test_softmax(dtype):
    g = graph(DEGREES)
    with on_machine_code("softmax_rows"):
        logits = [randn(g.num_edges, 1, dtype=dtype)]
        support.check(lambda x: ops.edge_softmax(g, x), lambda x: reference.edge_softmax(g, x), logits)


@pytest.mark.parametrize("dtype,shape", [(torch.float16, (1, 64)), (torch.bfloat16, (3, 8))])
@support_attention.every_kind
def test_attentions(kind, dtype, shape):
    g = graph(DEGREES)
    with on_machine_code():
        support_attention.check(kind, g, kind.operands(g, *shape, dtype), dropout_p=0.2 * (shape[0] > 1))


@pytest.mark.parametrize("terms,dtype", [(dot_edges.BIAS, torch.bfloat16), (dot_edges.BOTH, torch.float16)])
def test_edges_on_tensor_cores(terms, dtype, monkeypatch):
    monkeypatch.setenv("HALFGNN_TENSOR_CORES", "1")
    g = graph([3, 0, 9, 20, 40], identity=terms is dot_edges.BIAS)
    with on_machine_code("pair_tensor_kernel"):
        dot_edges.check(terms, g, terms.operands(g, 2, 72, 13, dtype), 0.2)


def test_columns_of_edges():
    g = graph([3, 0, 9], identity=False)
    with on_machine_code("pair_attention_kernel", "column_gradient_kernel"):
        dot_edges.check(dot_edges.BOTH, g, dot_edges.BOTH.operands(g, 3, 8, 19, torch.float16), 0.2)
    terms = gatv2_edges.BIAS + gatv2_edges.COLUMNS
    with on_machine_code(
        "pair_attention_kernel", "projected_feat_gradient_kernel", "projection_weight_gradient_kernel"
    ):
        gatv2_edges.check(g, gatv2_edges.operands(terms, g, 3, 24, 13, torch.float16), 0.2)


def test_a_hub():
    """Its pieces are joined."""
    g = graph([2, 0, 1030, 5])
    with on_machine_code("spmm_sum_kernel"):
        check_gspmm(g, "copy_lhs", "sum", [randn(37, 24, dtype=torch.float16), None], backward=False, terms=1030)


def test_a_wrong_instruction_is_noticed():
    wrong, g, x = Library(LIBRARY), graph(DEGREES), randn(37, 64, dtype=torch.float16)
    with launches.recorded() as found:
        expected = ops.copy_u_sum(g, x)
    made = wrong.program(found[0].kernel)
    with launches.executed(wrong):
        assert torch.equal(ops.copy_u_sum(g, x), expected)
    made.instructions = [parse(i.text.replace("FADD ", "FMUL ")) for i in made.instructions]
    with launches.executed(wrong):
        assert not torch.equal(ops.copy_u_sum(g, x), expected)
    made.instructions[0] = parse("FROBNICATE R1")
    with pytest.raises(EmulatorError, match="unknown instruction: FROBNICATE"), launches.executed(wrong):
        ops.copy_u_sum(g, x)


def test_an_access_outside_of_an_allocation_is_noticed():
    """AddressSanitizer's shadow memory knows it."""
    x, side = randn(20, 64, dtype=torch.float16), graph([3, 2]).csc()
    wrong = Graph(20, 2, csc=(side.indptr, side.indices + 20, None))
    with pytest.raises(EmulatorError, match="outside of an allocation"), launches.executed(library()):
        ops.copy_u_sum(wrong, x)
