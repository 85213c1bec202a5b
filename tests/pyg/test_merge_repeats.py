"""Programs of torch.export in which repeated computations are merged."""

import collections

import pytest
import torch
from torch import nn
from torch.export import Dim, export

from halfgnn.serving import merge_repeats

pytest.importorskip("torch_geometric")


def calls(program):
    return collections.Counter(str(node.target) for node in program.graph.nodes if node.op == "call_function")


def exported(function, *inputs, train=False):
    class Module(nn.Module):
        def forward(self, *inputs):
            return function(*inputs)

    return export(Module().train(train), inputs)


@pytest.mark.parametrize(
    "name,strict", [("GCNConv", False), ("GCNConv", True), ("SAGEConv", False), ("GATConv", False)]
)
def test_layers_share_an_adjacency(name, strict):
    from halfgnn import pyg

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = (getattr(pyg, name)(8, 8) for _ in range(2))

        def forward(self, x, edge_index):
            return self.second(self.first(x, edge_index).relu(), edge_index)

    model, x, edge_index = Model().eval(), torch.randn(30, 8), torch.randint(30, (2, 120))
    shapes = ({0: Dim.AUTO}, {1: Dim.AUTO})
    with torch.no_grad():
        program = export(model, (x, edge_index), dynamic_shapes=shapes, strict=strict)
        before = calls(program)
        merged = merge_repeats(program)
        assert calls(program) == before
        sort = "halfgnn.coo_to_csr.default"
        assert 2 * calls(merged)[sort] == before[sort] > 0
        for nodes, edges in ((30, 120), (41, 77)):
            inputs = torch.randn(nodes, 8), torch.randint(nodes, (2, edges))
            assert torch.equal(merged.module()(*inputs), program.module()(*inputs))
            torch.testing.assert_close(merged.module()(*inputs), model(*inputs))  # whose logits are made otherwise
        with pytest.raises(RuntimeError, match="no row of x"):
            merged.module()(torch.randn(3, 8), torch.tensor([[0, 3], [1, 1]]))


def test_what_is_not_the_same_stays():
    x = torch.tensor([1.0, -2.0, 0.0])
    program = exported(lambda x: ((x * 0.0).atan2(x * -0.0), x + 1, x.add(1.0), x.sum(0), x.sum(0, keepdim=True)), x)
    merged = merge_repeats(program)
    assert calls(merged) == calls(program.run_decompositions({}))
    for got, expected in zip(merged.module()(x), program.module()(x)):
        assert torch.equal(got, expected)


def test_results_and_random_numbers_stay():
    x = torch.randn(4, 4)
    twice = merge_repeats(exported(lambda x: (x.exp(), x.exp(), x.exp().sin()), x))
    assert calls(twice)["aten.exp.default"] == 2
    assert all(torch.equal(got, x.exp()) for got in twice.module()(x)[:2])
    drawn = merge_repeats(exported(lambda x: torch.rand_like(x) - torch.rand_like(x), x))
    assert bool(drawn.module()(x).ne(0).any())
    dropped = merge_repeats(exported(lambda x: nn.functional.dropout(x) - nn.functional.dropout(x), x, train=True))
    assert bool(dropped.module()(x).ne(0).any())


def test_what_is_written_to_is_read_again():
    def function(x):
        y = x.clone()
        before = y.sum()
        y.add_(1)
        return before, y.sum()

    x = torch.randn(5)
    before, after = merge_repeats(exported(function, x)).module()(x)
    assert torch.equal(before, x.sum())
    assert torch.allclose(after, x.sum() + 5)


def test_results_share_memory_as_before():
    x = torch.randn(3, 3)
    first, second = merge_repeats(exported(lambda x: (x.exp(), x.exp().t()), x)).module()(x)
    first.zero_()
    assert torch.equal(second, x.exp().t())


def test_sizes_that_depend_on_values(tmp_path):
    def function(x):
        a, b = x[x > 0], x[x > 0]
        torch._check(a.shape[0] == b.shape[0])
        return a * b

    x = torch.randn(6, 4)
    torch.export.save(merge_repeats(exported(function, x)), tmp_path / "program.pt2")
    assert torch.equal(torch.export.load(tmp_path / "program.pt2").module()(x), x[x > 0] ** 2)


def test_operators_of_others_stay():
    with torch.library._scoped_library("halfgnn_test_repeats", "DEF") as library:
        library.define("tick(Tensor x) -> Tensor")
        ticks = []

        def tick(x):
            ticks.append(1)
            return x + len(ticks)

        library.impl("tick", tick, "CPU")
        library.impl("tick", torch.empty_like, "Meta")
        op = torch.ops.halfgnn_test_repeats.tick
        program = merge_repeats(exported(lambda x: op(x) - op(x), torch.zeros(1)))
        assert program.module()(torch.zeros(1)).item() == -1


def test_preserved_modules_are_refused():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.part = nn.Linear(2, 2)

        def forward(self, x):
            return self.part(x) + self.part(x)

    program = export(Model(), (torch.randn(2, 2),), preserve_module_call_signature=("part",))
    with pytest.raises(ValueError, match="program keeps the signatures of part"):
        merge_repeats(program)


def test_another_object_is_refused():
    with pytest.raises(TypeError, match=r"program is a Linear; expected a torch\.export\.ExportedProgram"):
        merge_repeats(nn.Linear(2, 2))
