"""What the modules of halfgnn.pyg refuse, and how the error reads."""

from __future__ import annotations

import pytest
import torch
from torch_geometric import EdgeIndex, utils

import halfgnn
import halfgnn.pyg
from halfgnn.pyg.drop_in.adapters.refused_graphs import refuse_graph
from halfgnn.pyg.drop_in.gate import FallBack
from tests.pyg.support_pyg import (
    KINDS,
    inputs_of,
    make,
    make_edge_index,
    theirs,
)
from tests.support_nn import (
    IN_FEATS,
    NUM_NODES,
    assert_close,
    randn,
)


def test_errors():
    x, edge_index = randn(NUM_NODES, IN_FEATS), make_edge_index()
    for kind in ("GATConv", "GATv2Conv", "TransformerConv"):
        conv = getattr(halfgnn.pyg, kind)(IN_FEATS, 5)
        with pytest.raises(ValueError, match="expected indices in"):
            conv(x, edge_index + NUM_NODES)
        if kind != "GATConv":
            with pytest.raises(ValueError, match="edge_dim"):
                conv(x, edge_index, randn(edge_index.shape[1], 2))
    with pytest.raises(TypeError, match="from_torch_sparse"):
        halfgnn.pyg.graph_of(torch.eye(NUM_NODES).to_sparse(), NUM_NODES, NUM_NODES)
    conv = halfgnn.pyg.GATConv(4, 5, edge_dim=2, fill_value=torch.zeros(3))
    with pytest.raises(ValueError, match=r"fill_value has shape \(3,\); expected one that expands to \(3, 2\)"):
        conv(randn(3, 4), torch.tensor([[0, 1], [1, 2]]), randn(2, 2))


@pytest.mark.parametrize("name", KINDS)
def test_a_list_of_widths(name):
    their, our = (make(lib, name, [IN_FEATS, 4]) for lib in (theirs, halfgnn.pyg))
    assert repr(our) == repr(their)
    x, edge_index = [randn(NUM_NODES, IN_FEATS), randn(NUM_NODES, 4)], make_edge_index()
    assert_close([our(x, edge_index)], [their(x, edge_index)], 1e-4)


def refuse(error, match, module, *arguments, **options):
    with pytest.raises(error, match=match):
        module(*arguments, **options)


@pytest.mark.parametrize("name", KINDS)
def test_wrong_features(name):
    module, x, edge_index = make(halfgnn.pyg, name), randn(NUM_NODES, IN_FEATS), make_edge_index()
    refuse(TypeError, "x is None; expected a torch.Tensor", module, None, edge_index)
    refuse(TypeError, "x is a str; expected a torch.Tensor", module, "x", edge_index)
    refuse(TypeError, r"x is a list; expected a torch.Tensor: torch.tensor\(x\)", module, x.tolist(), edge_index)
    refuse(TypeError, r"x is a ndarray; expected a torch.Tensor: torch.from_numpy\(x\)", module, x.numpy(), edge_index)
    refuse(ValueError, "x is a tuple of 3; expected a tensor or the pair", module, (x, x, x), edge_index)
    refuse(TypeError, r"x\[0\] is None; expected a torch.Tensor", module, (None, x), edge_index)
    refuse(ValueError, r"x has shape \(\); expected \(nodes, 12\)", module, torch.tensor(1.0), edge_index)
    refuse(ValueError, r"x has shape \(40, 1, 12\); expected \(nodes, 12\)", module, x.unsqueeze(1), edge_index)
    refuse(ValueError, r"x has shape \(40, 11\); expected \(40, 12\)", module, x[:, 1:], edge_index)
    refuse(ValueError, r"x\[1\] has shape \(40, 11\); expected \(40, 12\)", module, (x, x[:, 1:]), edge_index)
    refuse(TypeError, r"x has dtype torch.int64; expected .*: x.float\(\)", module, x.long(), edge_index)
    refuse(TypeError, "x has layout torch.sparse_coo", module, x.to_sparse(), edge_index)
    on_meta = make(halfgnn.pyg, name).to("meta")
    refuse(ValueError, "edge_index is on cpu; expected the device of x, meta", on_meta, x.to("meta"), edge_index)
    refuse(ValueError, "edge_index is on meta; expected the device of x, cpu", module, x, edge_index.to("meta"))
    refuse(ValueError, r"x\[1\] is on meta; expected the device of x\[0\], cpu", module, (x, x.to("meta")), edge_index)
    of_pairs = make(halfgnn.pyg, name, (IN_FEATS, 4))
    refuse(ValueError, "x is one tensor, but the module takes 12 features of sources and 4 of", of_pairs, x, edge_index)
    if name != "GATConv-plain":
        refuse(TypeError, r"x\[1\] is None; expected a torch.Tensor", module, (x, None), edge_index)


@pytest.mark.parametrize("name", KINDS)
def test_wrong_edge_index(name):
    module, x, edge_index = make(halfgnn.pyg, name), randn(NUM_NODES, IN_FEATS), make_edge_index()
    count = edge_index.shape[1]
    for wrong, error, match in [
        (None, TypeError, "edge_index is a NoneType; expected a tensor"),
        (edge_index.tolist(), TypeError, r"edge_index is a list; expected a tensor .*: torch.tensor\(edge_index\)"),
        (
            edge_index.numpy(),
            TypeError,
            r"edge_index is a ndarray; expected a tensor .*: torch.from_numpy\(edge_index\)",
        ),
        (edge_index.t(), ValueError, rf"edge_index has shape \({count}, 2\); expected \(2, E\): pass edge_index.t\(\)"),
        (edge_index[0], ValueError, rf"edge_index has shape \({count},\); expected \(2, E\)"),
        (edge_index.float(), TypeError, "edge_index has dtype torch.float32; expected torch.int32 or torch.int64"),
        (edge_index.short(), TypeError, "edge_index has dtype torch.int16; expected torch.int32 or torch.int64"),
        (edge_index == 0, TypeError, "edge_index has dtype torch.bool; expected torch.int32 or torch.int64"),
        (
            edge_index - 1,
            ValueError,
            r"edge_index\[0\] holds -1; expected indices in \[0, 40\), the source nodes: x has",
        ),
    ]:
        for _ in range(2):  # nothing is kept from the first time
            refuse(error, match, module, x, wrong)
    beyond = edge_index.clone()
    beyond[1, 7] = NUM_NODES
    refuse(
        ValueError,
        r"edge_index\[1\] holds 40; expected indices in \[0, 40\), the destination nodes: x",
        module,
        x,
        beyond,
    )
    g = halfgnn.Graph.from_edge_index(edge_index, num_nodes=NUM_NODES + 1)
    refuse(ValueError, "edge_index is a graph of 41 source and 41 destination nodes; expected 40 and 40", module, x, g)
    empty = edge_index[:, :0]
    assert module(x, empty).shape == module(x, edge_index).shape


@pytest.mark.parametrize("name", ["GATConv-plain", "GATv2Conv-plain", "TransformerConv", "GINConv", "GINEConv"])
def test_a_module_on_another_device(name):
    """As one that was left on the CPU while its inputs moved."""
    module = getattr(halfgnn.pyg, name)(mlp()) if name.startswith("GIN") else make(halfgnn.pyg, name)
    module, edge_index = module.to("meta"), make_edge_index()
    x, match = randn(NUM_NODES, IN_FEATS), "is on cpu, but the module's parameters are on meta; expected one device"
    edge = [randn(edge_index.shape[1], IN_FEATS)] if name == "GINEConv" else []
    refuse(ValueError, f"^x {match}", module, x, edge_index, *edge)
    refuse(ValueError, rf"^x\[0\] {match}", module, (x, x), edge_index, *edge)


@pytest.mark.parametrize("name", KINDS)
def test_a_module_of_another_dtype(name):
    module, edge_index, x = make(halfgnn.pyg, name), make_edge_index(), randn(NUM_NODES, IN_FEATS)
    for dtype in (torch.float16, torch.float64):
        match = f"has dtype {dtype} and the module's parameters have torch.float32; expected one dtype"
        refuse(TypeError, f"^x {match}", module, x.to(dtype), edge_index)
        refuse(TypeError, rf"^x\[1\] {match}", module, (x, x.to(dtype)), edge_index)
    with torch.autocast("cpu", torch.bfloat16):
        assert module(x.half(), edge_index).isfinite().all()


@pytest.mark.parametrize("name", ["GATConv-edge", "GATConv-edge-no-loops", "GATv2Conv-edge", "TransformerConv-edge"])
def test_wrong_edge_attr(name):
    module, edge_index = make(halfgnn.pyg, name), make_edge_index()
    count = edge_index.shape[1]
    x, edge_attr = inputs_of(name, edge_index)
    for wrong, error, match in [
        (edge_attr.tolist(), TypeError, "edge_attr is a list; expected a torch.Tensor"),
        (torch.tensor(1.0), ValueError, rf"edge_attr has shape \(\); expected {count} rows, one per edge"),
        (edge_attr[1:], ValueError, rf"edge_attr has shape .*; expected {count} rows, one per edge"),
        (edge_attr[:, 1:], ValueError, rf"edge_attr has shape \({count}, 5\); expected \({count}, 6\)"),
        (edge_attr[:, 0], ValueError, rf"edge_attr has shape \({count},\); expected \({count}, 6\)"),
        (edge_attr.unsqueeze(1), ValueError, rf"edge_attr has shape .*; expected \({count}, 6\)"),
        (edge_attr.long(), TypeError, "edge_attr has dtype torch.int64; expected a floating-point type"),
        (edge_attr.to("meta"), ValueError, "edge_attr is on meta; expected the graph's device, cpu"),
    ]:
        refuse(error, match, module, x, edge_index, wrong)
    if name == "TransformerConv-edge":
        refuse(
            ValueError,
            "edge_attr is None; expected edge features of 6 columns, as edge_dim says",
            module,
            x,
            edge_index,
        )


def test_wrong_size():
    module, x, edge_index = make(halfgnn.pyg, "GATConv-plain"), randn(NUM_NODES, IN_FEATS), make_edge_index()
    for wrong in (40, (40,), (40, 40, 40), ("40", "40"), (None, 40)):
        refuse(TypeError, "size is .*; expected two integers", module, x, edge_index, size=wrong)
    for features, wrong in [
        (x, (40, 30)),
        (x, (41, 40)),
        ((x, x), (40, 41)),
        ((x, None), (30, 40)),
        ((x, None), (40, -1)),
    ]:
        refuse(ValueError, r"size is \(.*\); expected the rows of x, \(40, ", module, features, edge_index, size=wrong)
    assert torch.equal(module(x, edge_index, size=(40, 40)), module(x, edge_index))


@pytest.mark.parametrize("rows", [2, 7])
@pytest.mark.parametrize("conv", [halfgnn.pyg.GATConv, halfgnn.pyg.GATv2Conv])
def test_edge_attr_needs_a_row_an_edge_also_beside_self_loops(conv, rows):
    edge_index = torch.tensor([[0, 1, 2], [1, 1, 0]])
    with pytest.raises(ValueError, match=f"edge_attr has shape .{rows}, 2.; expected 3 rows"):
        conv(6, 3, edge_dim=2)(torch.randn(5, 6), edge_index, torch.randn(rows, 2))


@pytest.mark.parametrize(
    ("sizes", "error", "name"),
    [(("3", 3), TypeError, "num_src"), ((3, None), TypeError, "num_dst"), ((3, -1), ValueError, "num_dst")],
)
def test_numbers_of_nodes_of_an_edge_index(sizes, error, name):
    with pytest.raises(error, match=f"^{name} is "):
        halfgnn.pyg.graph_of(torch.zeros(2, 3, dtype=torch.long), *sizes)


def mlp():
    return torch.nn.Linear(IN_FEATS, 3)


@pytest.mark.parametrize(
    "make_conv",
    [
        lambda: halfgnn.pyg.GATv2Conv(IN_FEATS, 5, edge_dim=6),
        lambda: halfgnn.pyg.GINEConv(mlp(), edge_dim=6),
        lambda: halfgnn.pyg.PNAConv(IN_FEATS, 5, ["mean"], ["identity"], torch.ones(9).long(), edge_dim=6),
        lambda: halfgnn.pyg.ResGatedGraphConv(IN_FEATS, 5, edge_dim=6),
    ],
    ids=["GATv2Conv", "GINEConv", "PNAConv", "ResGatedGraphConv"],
)
def test_edge_attr_of_another_dtype_or_width(make_conv):
    module, x, edge_index = make_conv(), randn(NUM_NODES, IN_FEATS), make_edge_index()
    edge_attr = randn(edge_index.shape[1], 6)
    match = "^edge_attr has dtype torch.float16 and the module's parameters have torch.float32; expected one dtype"
    refuse(TypeError, match, module, x, edge_index, edge_attr.half())
    refuse(ValueError, r"^edge_attr has shape \(.*, 5\); expected \(.*, 6\)", module, x, edge_index, edge_attr[:, 1:])


def test_features_that_are_not_projected():
    x, edge_index = randn(NUM_NODES, IN_FEATS), make_edge_index()
    for module, rest in [
        (halfgnn.pyg.GINConv(mlp()), ()),
        (halfgnn.pyg.GINEConv(mlp(), edge_dim=6), (randn(edge_index.shape[1], 6),)),
    ]:
        refuse(
            TypeError, "^x has dtype torch.int64; expected a floating-point type", module, x.long(), edge_index, *rest
        )
        refuse(ValueError, "^x is a tuple of 3; expected a tensor or the pair", module, (x, x, x), edge_index, *rest)
        refuse(TypeError, r"^x\[0\] is None; expected a torch.Tensor", module, (None, x), edge_index, *rest)
    refuse(ValueError, r"^x has shape \(40, 11\); expected \(40, 12\)", module, x[:, 1:], edge_index, *rest)


def test_features_and_edge_attr_of_two_dtypes():
    x, edge_index = randn(NUM_NODES, IN_FEATS), make_edge_index()
    module, edge_attr = halfgnn.pyg.GINEConv(mlp()), randn(edge_index.shape[1], IN_FEATS).double()
    refuse(
        TypeError,
        "^x has dtype torch.float32 and edge_attr torch.float64; expected equal dtypes",
        module,
        x,
        edge_index,
        edge_attr,
    )
    refuse(
        TypeError,
        r"^x\[0\] has dtype torch.float32 and edge_attr torch.float64; expected equal dtypes",
        module,
        (x, None),
        edge_index,
        edge_attr,
    )


def test_features_of_relations():
    module, x, edge_index = halfgnn.pyg.RGCNConv(IN_FEATS, 5, 2), randn(NUM_NODES, IN_FEATS), make_edge_index()
    edge_type = torch.zeros(edge_index.shape[1], dtype=torch.long)
    for wrong, error, match in [
        (x.numpy(), TypeError, "x is a ndarray; expected a torch.Tensor"),
        (
            x.long(),
            TypeError,
            r"x has shape \(40, 12\) and dtype torch.int64; expected features of a floating-point type",
        ),
        ((x, None), TypeError, r"x\[1\] is None; expected a torch.Tensor"),
        ((x, x, x), ValueError, "x is a tuple of 3; expected a tensor or the pair"),
    ]:
        refuse(error, "^" + match, module, wrong, edge_index, edge_type)


@pytest.mark.parametrize("name", KINDS)
def test_arguments_in_another_order(name):
    module, x, edge_index = make(halfgnn.pyg, name), randn(NUM_NODES, IN_FEATS), make_edge_index()
    g = halfgnn.Graph.from_edge_index(edge_index, num_nodes=NUM_NODES)
    order = r"the order of arguments is \(x, edge_index\)"
    refuse(TypeError, f"x is a Graph; expected a torch.Tensor: {order}", module, g, x)
    refuse(TypeError, f"x has dtype torch.int64 and edge_index torch.float32; .*: {order}", module, edge_index, x)
    module.explain = True  # what torch_geometric's forward takes is checked too
    refuse(TypeError, f"x is a Graph; expected a torch.Tensor: {order}", module, g, x)


@pytest.mark.parametrize("name", ["GCNConv", "SAGEConv", "GATConv", "ChebConv"])
def test_graphs_in_modules_of_torch_geometric(name):
    """What MessagePassing._check_input is given under patch()."""
    sizes = (IN_FEATS, 5, 2) if name == "ChebConv" else (IN_FEATS, 5)
    kind = getattr(theirs, name)
    module, g = kind(*sizes), halfgnn.Graph.from_edge_index(make_edge_index(), num_nodes=NUM_NODES)
    takes = f"halfgnn.pyg.{name} takes a Graph" if name != "ChebConv" else "halfgnn.pyg has no module of that name"
    for cls in (kind, type("Mine", (kind,), {})):
        with pytest.raises(
            TypeError, match=rf"edge_index of {cls.__name__}, .* is a Graph; expected .*: {takes}, .*stack"
        ):
            refuse_graph(cls(*sizes), g)
    refuse_graph(module, make_edge_index())


@pytest.mark.parametrize("name", ["spmm", "edge_index_spmm", "segment", "softmax"])
def test_errors_of_the_library_do_not_name_the_drop_in(name):
    """Such as torch_geometric 2.8.1's examples/rev_gnn.py gets under bf16 autocast, of an fp32 matrix and bf16 features."""
    x, edge_index = randn(NUM_NODES, 4), make_edge_index()
    shape = (NUM_NODES, NUM_NODES)
    calls = {
        "spmm": lambda: utils.spmm(torch.eye(NUM_NODES).to_sparse_csr(), x.bfloat16(), "mean"),
        "edge_index_spmm": lambda: EdgeIndex(edge_index, sparse_size=shape).matmul(x[1:]),
        "segment": lambda: utils.segment(x, torch.tensor([0, 2, 9]).view(1, 1, 3)),
        "softmax": lambda: utils.softmax(x, edge_index[1]),
    }
    with pytest.raises((RuntimeError, ValueError, IndexError, ImportError)) as expected:
        calls[name]()
    with halfgnn.pyg.accelerate(), pytest.raises(type(expected.value)) as actual:
        calls[name]()
    assert not isinstance(actual.value.__context__, FallBack)
    assert str(actual.value) == str(expected.value)
