"""ONNX Runtime runs exported modules without halfgnn, and gives what they give."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.export import Dim, export

import halfgnn
import halfgnn.nn as ours
from halfgnn.serving import decompose
from tests.support_export import ALL

pytest.importorskip("onnx")
pytest.importorskip("onnxscript")
runtime = pytest.importorskip("onnxruntime")

WIDTH, EDGE_WIDTH = 6, 5
TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3}  # the latter: an ulp of the largest results
SIZES = (
    (20, 60),
    (31, 64),
    (60, 40),
)  # nodes and edges: of the export, and others. The last leaves most nodes without in-edges.
AUTO = Dim.AUTO
pytestmark = pytest.mark.filterwarnings("ignore")  # of PyTorch and onnxscript about themselves


class All(nn.Module):
    """Modules by name, each called on the same inputs: one export for all of them."""

    def __init__(self, call, **modules):
        super().__init__()
        self.call, self.all = call, nn.ModuleDict(modules)

    def forward(self, *inputs):
        return tuple(self.call(name, module, *inputs) for name, module in self.all.items())


def to_onnx(model, inputs, shapes):
    """The session of a model, and its ONNX program."""
    with torch.no_grad():
        program = export(model, inputs, dynamic_shapes=shapes)
    made = torch.onnx.export(decompose(program), verbose=False)
    return runtime.InferenceSession(made.model_proto.SerializeToString(), providers=["CPUExecutionProvider"]), made


def check(model, inputs_of, shapes, dtype=torch.float32):
    """That ONNX Runtime gives the model's results on graphs of all sizes."""
    model = model.eval().to(dtype)
    session, made = to_onnx(model, inputs_of(*SIZES[0]), shapes)
    assert {node.domain for node in made.model.graph} == {""}, "operators of the ONNX standard alone"
    assert all(node.op_type != "ScatterND" or "reduction" not in node.attributes for node in made.model.graph)
    for size in SIZES:
        inputs = inputs_of(*size)
        with torch.no_grad():
            expected = model(*inputs)
        found = session.run(None, {slot.name: x.numpy() for slot, x in zip(session.get_inputs(), inputs, strict=True)})
        for name, got, want in zip(model.all, found, expected, strict=True):
            assert got.dtype == want.numpy().dtype
            tolerance = TOLERANCE[dtype]
            np.testing.assert_allclose(got, want.numpy(), rtol=tolerance, atol=tolerance, err_msg=f"{name}, {size}")


def features(num_nodes, num_edges, dtype):
    draw = torch.Generator().manual_seed(num_nodes)
    x, edges = torch.randn(num_nodes, WIDTH, generator=draw), torch.randn(num_edges, EDGE_WIDTH, generator=draw)
    return draw, x.to(dtype), edges.to(dtype)


# ---- halfgnn.pyg -------------------------------------------------------------------------------------------------------------


def pyg_inputs(dtype=torch.float32):
    def make(num_nodes, num_edges):
        draw, x, edges = features(num_nodes, num_edges, dtype)
        return x, torch.randint(num_nodes, (2, num_edges), generator=draw), edges

    return make


def on_edge_index(name, module, x, edge_index, edges):
    return module(x, edge_index, edges) if name.startswith("edges_") else module(x, edge_index)


PYG_SHAPES = ({0: AUTO}, {1: AUTO}, {0: AUTO})


@pytest.fixture
def pyg():
    pytest.importorskip("torch_geometric")
    return pytest.importorskip("halfgnn.pyg")


def _mlp():
    return nn.Sequential(nn.Linear(WIDTH, 4), nn.ReLU(), nn.Linear(4, 4))


PYG = {
    "gcn": lambda k: k.GCNConv(WIDTH, 4),
    "mean": lambda k: k.SAGEConv(WIDTH, 4),
    "max": lambda k: k.SAGEConv(WIDTH, 4, aggr="max"),
    "sum": lambda k: k.SAGEConv(WIDTH, 4, aggr="sum"),
    "gin": lambda k: k.GINConv(_mlp(), train_eps=True),
    "edges_gine": lambda k: k.GINEConv(_mlp(), edge_dim=EDGE_WIDTH),
    "graph": lambda k: k.GraphConv(WIDTH, 4),
    "gat": lambda k: k.GATConv(WIDTH, 3, heads=2),
    "edges_gat": lambda k: k.GATConv(WIDTH, 3, heads=2, edge_dim=EDGE_WIDTH, add_self_loops=False),
    "edges_gatv2": lambda k: k.GATv2Conv(WIDTH, 3, heads=2, edge_dim=EDGE_WIDTH, add_self_loops=False),
    "edges_transformer": lambda k: k.TransformerConv(WIDTH, 3, heads=2, edge_dim=EDGE_WIDTH),
}


def test_modules_of_pyg(pyg):
    names = PYG if ALL else ("max",)
    check(All(on_edge_index, **{name: PYG[name](pyg) for name in names}), pyg_inputs(), ((*PYG_SHAPES,),))


def test_half_precision(pyg):
    """ONNX Runtime adds no halves: sums are those of fp32, rounded once."""
    check(
        All(on_edge_index, edges_gatv2=PYG["edges_gatv2"](pyg)),
        pyg_inputs(torch.float16),
        ((*PYG_SHAPES,),),
        torch.float16,
    )


@pytest.mark.skipif(not ALL, reason="exports take seconds each; HALFGNN_TEST_ALL=1 (make test-all) runs it")
def test_unmodified_modules_of_torch_geometric(pyg):
    upstream = pytest.importorskip("torch_geometric.nn")
    with pyg.accelerate():
        model = All(
            on_edge_index, **{name: PYG[name](upstream) for name in ("gcn", "max", "gin", "gat", "edges_gatv2")}
        )
        check(model, pyg_inputs(), ((*PYG_SHAPES,),))


# ---- halfgnn.nn --------------------------------------------------------------------------------------------------------------


def block_inputs(num_nodes, num_edges):
    """A block: destinations are the first two thirds of the nodes."""
    draw, x, edges = features(num_nodes, num_edges, torch.float32)
    num_dst = 2 * num_nodes // 3
    src, dst = (
        torch.randint(num_nodes, (num_edges,), generator=draw),
        torch.randint(num_dst, (num_edges,), generator=draw),
    )
    g = halfgnn.Graph.from_edges(src, dst, num_src=num_nodes, num_dst=num_dst)
    return x, x[:num_dst].clone(), edges, *g.csc()


def on_block(name, module, x, x_dst, edges, indptr, indices, edge_ids):
    g = halfgnn.Graph.from_csc(indptr, indices, edge_ids, num_src=x.shape[0], check=False)
    return module(g, (x, x_dst), edges) if name.startswith("edges_") else module(g, (x, x_dst))


NN = {
    "graph": lambda: ours.GraphConv(WIDTH, 4, allow_zero_in_degree=True),
    "mean": lambda: ours.SAGEConv(WIDTH, 4, "mean"),
    "max": lambda: ours.SAGEConv(WIDTH, 4, "pool"),
    "gin": lambda: ours.GINConv(nn.Linear(WIDTH, 4), "max", learn_eps=True),
    "gat": lambda: ours.GATConv(WIDTH, 3, 2, allow_zero_in_degree=True),
    "gatv2": lambda: ours.GATv2Conv(WIDTH, 3, 2, allow_zero_in_degree=True),
    "edges_transformer": lambda: ours.TransformerConv(WIDTH, 3, 2, edge_dim=EDGE_WIDTH),
}


@pytest.mark.skipif(not ALL, reason="exports take seconds each; HALFGNN_TEST_ALL=1 (make test-all) runs it")
def test_blocks_of_nn():
    check(All(on_block, **{name: make() for name, make in NN.items()}), block_inputs, (({0: AUTO},) * 6,))


# ---- what PyTorch translates wrongly, and what is refused --------------------------------------------------------------------


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.eps = nn.Parameter(torch.zeros(1))

    def forward(self, x, counts):
        ids = torch.repeat_interleave(torch.arange(counts.shape[0]), counts, output_size=x.shape[0])
        return (1 + self.eps) * x.new_zeros(counts.shape[0], x.shape[1]).index_add(0, ids, x, alpha=2)


def test_operators_of_pytorch():
    model, x, counts = Plain().eval(), torch.randn(7, 3), torch.tensor([3, 0, 4])
    session, made = to_onnx(model, (x, counts), ({0: AUTO}, {0: AUTO}))
    assert "ScatterND" not in {node.op_type for node in made.model.graph}
    for rows, repeats in ((x, counts), (torch.randn(4, 3), torch.tensor([0, 1, 3, 0]))):
        (found,) = session.run(None, {"x": rows.numpy(), "counts": repeats.numpy()})
        np.testing.assert_allclose(found, model(rows, repeats).detach().numpy(), rtol=1e-6)


@pytest.fixture
def g():
    return halfgnn.Graph.from_edges(torch.tensor([0, 1, 2]), torch.tensor([1, 2, 0]), num_src=3, num_dst=3)


def exported(function, *inputs, train=False):
    class Module(nn.Module):
        def forward(self, *inputs):
            return function(*inputs)

    return export(Module().train(train), inputs)


def test_operators_without_a_decomposition_are_named(g):
    def backward(logits, indptr, ids):
        return torch.ops.halfgnn.edge_softmax_backward(indptr, ids, logits, logits)

    indptr, _, ids = g.csc()
    with pytest.raises(NotImplementedError, match=r"halfgnn\.edge_softmax_backward has no decomposition"):
        decompose(exported(backward, torch.randn(3, 2), indptr, ids))


def test_results_that_are_not_made_are_named(g):
    def winners(x, indptr, indices, ids):
        return torch.ops.halfgnn.gspmm(indptr, indices, ids, "copy_lhs", "max", x, None)

    with pytest.raises(NotImplementedError, match=r"the program reads arg of halfgnn\.gspmm"):
        decompose(exported(winners, torch.randn(3, 2), *g.csc()))


def test_dropout_is_refused(g):
    model = ours.GATConv(WIDTH, 3, 2, attn_drop=0.5)

    def call(x, *csc):
        return model(halfgnn.Graph.from_csc(*csc, num_src=3, check=False), x)

    with (
        torch.no_grad(),
        pytest.raises(NotImplementedError, match=r"halfgnn\.gat_attention has dropout 0\.5.*model\.eval\(\)"),
    ):
        decompose(exported(call, torch.randn(3, WIDTH), *g.csc(), train=True))


def test_what_is_no_program_is_refused():
    with pytest.raises(TypeError, match=r"Linear; expected a torch\.export\.ExportedProgram"):
        decompose(nn.Linear(2, 2))
