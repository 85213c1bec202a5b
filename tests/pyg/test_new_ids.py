"""Modules of halfgnn.pyg under torch.compile without the drop-in: whose ids are inputs, by which Graphs may be cached."""

import pytest
import torch
from torch._dynamo.backends.debugging import aot_eager
from torch.utils.checkpoint import checkpoint

import halfgnn.pyg
from tests.support_compiled import count_graphs

N, E, C = 40, 300, 8


def inputs():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(N, C, generator=generator), torch.randint(N, (2, E), generator=generator)


def given(conv, x, ids):
    return conv(x, ids)


def computed(conv, x, ids):
    return conv(x, ids.flip(0))


def modified(conv, x, ids):
    ids[1].add_(1).remainder_(N)
    return conv(x, ids)


def modified_result(conv, x, ids):
    ids = torch.ops.halfgnn_pyg.self_loops(ids, "add_self_loops", N)[0]
    ids[1].add_(1).remainder_(N)
    return conv(x, ids)


def checkpointed(conv, x, ids):
    return checkpoint(conv, x, ids, use_reentrant=False)


def computed_before_checkpoint(conv, x, ids):
    return checkpoint(conv, x, ids.flip(0), use_reentrant=False)


def lookups(gm):
    """Of every lookup of a Graph in a graph and in those within it, whether it is by a copy of ids."""
    nodes = [node for module in gm.modules() if isinstance(module, torch.fx.GraphModule) for node in module.graph.nodes]
    return {"copied_ids" in str(node.args[0].target) for node in nodes if "graph_side" in str(node.target)}


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        (given, False),
        (computed, True),
        (modified, True),
        (modified_result, True),
        (checkpointed, False),
        (computed_before_checkpoint, True),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_which_ids_are_new(program, expected):
    found, conv, (x, ids) = set(), halfgnn.pyg.SAGEConv(C, C), inputs()
    actual_ids = ids.clone()

    def backend(gm, example_inputs):
        found.update(lookups(gm))
        return aot_eager(gm, example_inputs)

    torch.compiler.reset()
    actual = torch.compile(program, backend=backend)(conv, x, actual_ids)
    torch.testing.assert_close(actual, program(conv, x, ids))
    assert found == {expected}


def test_ids_in_memory_that_inductor_uses_again():
    """The second ids are written to the memory of the first ones, which nothing reads any more (torch 2.11)."""
    first, second = halfgnn.pyg.SAGEConv(C, C), halfgnn.pyg.SAGEConv(C, C)

    def program(x, ids):
        h = first(x, (ids * 7 + 1) % N).relu()
        return second(h, (ids * 11 + (h.sum() > 0)) % N)

    torch.compiler.reset()
    compiled = torch.compile(program)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(compiled(*inputs()), program(*inputs()))


@pytest.mark.parametrize("make", [halfgnn.pyg.GCNConv, halfgnn.pyg.GATConv, halfgnn.pyg.SAGEConv])
def test_computed_ids_are_sorted_as_often_as_in_eager_code(make, monkeypatch):
    """Forward and backward, self-loops and weights find the graph of one copy of the ids."""
    made = {how: count_graphs(monkeypatch, how) for how in ("from_edge_index", "from_edges")}
    conv, (x, ids) = make(C, C), inputs()
    torch.compiler.reset()
    compiled, counts = torch.compile(computed, backend="aot_eager"), []
    for run in (compiled, compiled, computed):
        for graphs in made.values():
            graphs.clear()
        run(conv, x.requires_grad_(), ids).sum().backward()
        counts.append([len(graphs) for graphs in made.values()])
    assert counts[0] == counts[1] == counts[2] and sum(counts[2]) > 0
