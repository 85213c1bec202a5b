"""What a graph knows of its degrees changes how work is divided, not the results: kernels may not trust it."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from halfgnn import Graph, ops
from halfgnn.graph import LONG_ROW_EDGES
from tests.support import devices_and, randn
from tests.support_calls import CALLS, graph_of_degrees, told

DTYPES = [torch.float16, torch.float32]


def results(call, graphs, dtype, device):
    """For each graph, the result of the call and the gradients, from the same operands."""
    torch.manual_seed(5)
    operands = call.operands(graphs[0], dtype, device)
    upstream = randn(*call.run(graphs[0], *operands).shape, dtype=dtype, device=device)
    return [call.evaluate(g, operands, upstream) for g in graphs]


@pytest.mark.parametrize("device,dtype", devices_and(DTYPES))
@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.name)
def test_same_bits_if_no_row_is_long(call, device, dtype):
    """The graph has enough edges for a long row, and rows of up to 300 edges.

    The gradient of a parameter is a sum over all rows, in an order that follows from how rows are divided among warps.
    """
    g = graph_of_degrees(300, 1200, device)
    graphs = [told(g, None, None), told(g, 400, 400), told(g, 400, None), told(g, None, 400)]
    plain, *hinted = results(call, graphs, dtype, device)
    for got in hinted:
        for (target, _), x, expected in zip([("out", ()), *call.shapes], got, plain):
            if target is None:
                torch.testing.assert_close(x, expected, rtol=1e-3 if dtype == torch.float16 else 1e-5, atol=1e-5)
            else:
                assert torch.equal(x, expected)


@pytest.mark.parametrize("device,dtype", devices_and(DTYPES))
@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.name)
def test_right_if_the_bound_is_wrong(call, device, dtype):
    """Rows of more edges than the graph was told: three pieces of a long row, and a part of one."""
    g = graph_of_degrees(3 * LONG_ROW_EDGES + 100, 4000, device)
    right, wrong = results(call, [told(g, None, None), told(g, 0, 0)], dtype, device)
    tolerance = 2e-3 if dtype == torch.float16 else 1e-5
    for x, expected in zip(wrong, right):
        largest = expected.abs().max().item()
        torch.testing.assert_close(x, expected, rtol=tolerance, atol=tolerance * largest)


class Words(TorchDispatchMode):
    """Collects, for every adjacency that a raw operator takes, the address of its indptr and what is said of its rows."""

    def __init__(self):
        super().__init__()
        self.collected = []

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        arguments = {x.name: x.default_value for x in op._schema.arguments} | (kwargs or {})
        arguments |= {x.name: value for x, value in zip(op._schema.arguments, args)}
        for side in ("", "out_"):
            if f"{side}short_rows" in arguments:
                where = arguments[f"{side}indptr"].data_ptr()
                self.collected.append((where, arguments[f"{side}short_rows"]))
        return op(*args, **(kwargs or {}))


@pytest.mark.parametrize("bounds", [(400, None), (None, 400)])
@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.name)
def test_operators_hear_of_the_rows_that_they_walk(call, bounds, device):
    g = told(graph_of_degrees(3, 50, device), *bounds)
    known = {g.csc().indptr.data_ptr(): g.short_csc, g.csr().indptr.data_ptr(): g.short_csr}
    operands = [x.requires_grad_() for x in call.operands(g, torch.float16, device)]
    with Words() as words:
        out = call.run(g, *operands)
        call.run(g, *(x.detach() for x in operands))
        torch.autograd.grad(out, operands, torch.ones_like(out))
    assert words.collected
    for where, is_short in words.collected:
        assert is_short is known[where]


def test_softmax_by_source_hears_of_out_edges(device):
    g = told(graph_of_degrees(3, 50, device), None, 400)
    logits = randn(g.num_edges, 2, dtype=torch.float16, device=device).requires_grad_()
    with Words() as words:
        ops.edge_softmax(g, logits, "src").sum().backward()
    assert words.collected == [(g.csr().indptr.data_ptr(), True)] * 2


@pytest.mark.parametrize("columns", [8, 264])
def test_softmax_of_many_columns(columns, device):
    """Wide rows are cut into pieces of fewer edges than a bound speaks of, whatever the graph was told."""
    g = graph_of_degrees(400, 1200, device)
    (call,) = (call for call in CALLS if call.name == "edge_softmax")
    logits = randn(g.num_edges, columns, dtype=torch.float16, device=device)
    grad = randn(g.num_edges, columns, dtype=torch.float16, device=device)
    plain, hinted = (call.evaluate(x, [logits], grad) for x in (told(g, None, None), told(g, 400, 400)))
    assert all(torch.equal(x, expected) for x, expected in zip(hinted, plain))


def test_bound_below_which_rows_are_short(device):
    ends = torch.zeros(3, dtype=torch.int32, device=device)
    for bound, is_short in ((0, True), (LONG_ROW_EDGES - 1, True), (LONG_ROW_EDGES, False), (None, False)):
        g = Graph.from_edges(ends, ends, max_in_degree=bound, max_out_degree=bound)
        assert (g.short_csc, g.short_csr) == (is_short, is_short)
