"""Kernels that every operator launches and memory that it takes from the allocator: the table of docs/operators.md.

Counted on the simulator, where PyTorch's own kernels are not launches: so no call may need one.
"""

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from laboratory.simt import control
from tests.ops.test_operators_doc import DOC
from tests.support_calls import CALLS, graph_of_degrees, told

if not control.SIMULATED:
    pytest.skip("runs on the simulator: laboratory/simt/run.py", allow_module_level=True)

MARK = "<!-- launches: {} -->"
HEADER = (
    "| operator | launches | launches, backward | allocations | allocations, backward |\n"
    "|---|---|---|---|---|\n"
)  # fmt: skip
ALLOCATES = ("aten::empty", "aten::empty_strided")


def counted(function):
    """function()'s value, its launches and its allocations. Fails if it calls an operator of PyTorch that does any work."""
    before = control.get("launches")
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        value = function()
    events = profiler.profiler.kineto_results.events()
    allocations = sum(event.name() == "[memory]" and event.nbytes() > 0 for event in events)
    work = {event.name() for event in events if event.name().startswith("aten::")} - {*ALLOCATES, "aten::detach"}
    assert not work, f"{function} does {work}"
    return value, (control.get("launches") - before, allocations)


def costs(call, g):
    """Of a training step: launches forward, backward; allocations forward, backward."""
    operands = [x.requires_grad_() for x in call.operands(g, torch.float16)]
    grad = torch.ones_like(call.run(g, *operands))
    out, forward = counted(lambda: call.run(g, *operands))
    _, backward = counted(lambda: torch.autograd.grad(out, operands, grad))
    return (forward[0], backward[0], forward[1], backward[1])


def row(call):
    """One line of the table, with what a graph costs that may have long rows in parentheses, if that differs."""
    g = graph_of_degrees(300, 2400)
    short, unknown = costs(call, told(g, 400, 400)), costs(call, told(g, None, None))
    cells = [str(x) if x == y else f"{x} ({y})" for x, y in zip(short, unknown)]
    return f"| {call.name} | {' | '.join(cells)} |\n"


def test_the_table_of_launches():
    expected = HEADER + "".join(row(call) for call in CALLS)
    begin, end = MARK.format("begin"), MARK.format("end")
    table = DOC.read_text().split(begin)[1].split(end)[0].strip()
    assert table == expected.strip(), f"the table of {DOC.name} should be\n{expected}"


def test_sums_are_one_launch_if_rows_are_short():
    g = told(graph_of_degrees(300, 1200), 400, 400)
    for call in CALLS:
        forward, backward, *_ = costs(call, g)
        assert forward == (2 if call.name == "gatv2_attention" else 1), call.name  # whose keys' logits come first
        if "_sum" in call.name or "_mean" in call.name:
            assert backward <= len(call.shapes), call.name  # one for each gradient at most
