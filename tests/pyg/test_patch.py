"""Messages of all kinds under halfgnn.pyg.patch(), what is left to torch_geometric, and patch(), unpatch() and accelerate()."""

from __future__ import annotations

import copy
import io
import subprocess
import sys
import threading

import pytest
import torch
from torch import nn

torch_geometric = pytest.importorskip("torch_geometric", exc_type=ImportError)

import torch_geometric.nn as theirs  # noqa: E402
import torch_geometric.utils as utils  # noqa: E402

import halfgnn.pyg  # noqa: E402
from tests import support  # noqa: E402
from tests.pyg.test_patch_modules import NUM_EDGES, NUM_NODES, WIDTH, assert_same, edges, fell_back, randn, routed  # noqa: E402

pytestmark = pytest.mark.skipif(not support.supports("cpu", torch.float64), reason="needs float64")


class Layer(theirs.MessagePassing):
    """A layer with a user's message function of x_j (E, WIDTH) and w (E, 1)."""

    def __init__(self, function, aggr="sum", **options):
        super().__init__(aggr=aggr, **options)
        self.function = function

    def forward(self, x, edge_index, w):
        return self.propagate(edge_index, x=x, w=w)

    def message(self, x_j, w):
        return self.function(x_j, w)


# ---- messages ----------------------------------------------------------------------------------------------------------------


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        return 2 * ctx.saved_tensors[0] * grad


def written(x, w):
    x *= 2
    x[:, 0] = 1
    return x


def written_through_a_view(x, w):
    x.view(-1).mul_(3)
    return x


def written_after_a_product(x, w):
    product = x * w
    product += 1
    return product


def written_detached(x, w):
    x.detach().mul_(2)
    return x


def with_a_hook(x, w):
    if x.requires_grad:
        x.register_hook(lambda grad: 2 * grad)
    return x * w


def partly_without_gradient(x, w):
    with torch.no_grad():
        product = x * w
    return product + x


def without_gradient(x, w):
    with torch.no_grad():
        return x * w


def a_new_leaf(x, w):
    product = without_gradient(x, w)
    return product.requires_grad_() if x.requires_grad else product


def differentiated(x, w):
    return torch.autograd.grad((x**3).sum(), x, create_graph=True)[0] if x.requires_grad else x


def saved(x, w):
    file = io.BytesIO()
    torch.save(x.detach(), file)
    file.seek(0)
    return x + torch.load(file)


def saved_whole(x, w):
    file = io.BytesIO()
    torch.save(x, file)
    file.seek(0)
    return x + torch.load(file).detach()


def disabled(x, w):
    with torch._C.DisableTorchFunctionSubclass():
        return torch.nn.functional.gelu(x)


# name: (message, what is routed)
COPY_E = "gspmm:copy_e_{}"
MESSAGES = {
    "copy": (lambda x, w: x, "gspmm:copy_u_{}"),
    "weighted": (lambda x, w: w * x, "gspmm:u_mul_e_{}"),
    "weighted from the right": (lambda x, w: x * w, "gspmm:u_mul_e_{}"),
    "every value weighted": (lambda x, w: x * w.expand(-1, WIDTH).contiguous(), "gspmm:u_mul_e_{}"),
    "sum": (lambda x, w: x + w, "gspmm:u_add_e_{}"),
    "sum from the right": (lambda x, w: w + x, "gspmm:u_add_e_{}"),
    "difference": (lambda x, w: x - w, "gspmm:u_sub_e_{}"),
    "quotient": (lambda x, w: torch.div(x, w), "gspmm:u_div_e_{}"),
    "difference from the right": (lambda x, w: w - x, COPY_E),
    "quotient from the right": (lambda x, w: w / x, COPY_E),
    "sum with alpha": (lambda x, w: torch.add(x, w, alpha=2), COPY_E),
    "rounded quotient": (lambda x, w: torch.div(x, w, rounding_mode="floor"), COPY_E),
    "number": (lambda x, w: 2 * x, COPY_E),
    "row of all edges": (lambda x, w: x * w[:WIDTH].view(-1), COPY_E),
    "two products": (lambda x, w: x * w * w, COPY_E),
    "relu of a sum": (lambda x, w: (x + w - w).relu() + (w + x).relu(), COPY_E),
    "GINE": (lambda x, w: torch.relu(w + x), "gspmm:u_relu_add_e_{}"),
    "GINE, sum written after": (lambda x, w: (lambda s: (s.relu(), s.mul_(-1))[0])(x + w), None),
    "detached": (lambda x, w: x.detach(), "gspmm:copy_u_{}"),
    "detached product": (lambda x, w: x.detach() * w, "gspmm:u_mul_e_{}"),
    "function": (lambda x, w: x.relu(), COPY_E),
    "columns": (lambda x, w: x[:, :3], COPY_E),
    "concatenated": (lambda x, w: torch.cat([x, w], 1), COPY_E),
    "einsum": (lambda x, w: torch.einsum("ef,eg->ef", x, w), COPY_E),
    "rows one by one": (lambda x, w: torch.stack(list(x)), COPY_E),
    "sparse": (lambda x, w: torch.sparse.mm(torch.eye(NUM_EDGES, dtype=x.dtype).to_sparse(), x), COPY_E),
    "autograd function": (lambda x, w: Square.apply(x), COPY_E),
    "vmap": (lambda x, w: torch.vmap(torch.mul)(x, w), None),
    "checkpoint": (lambda x, w: torch.utils.checkpoint.checkpoint(torch.sin, x, use_reentrant=False), COPY_E),
    "without torch functions": (disabled, COPY_E),
    "written": (written, COPY_E),
    "written with _": (lambda x, w: x.relu_(), COPY_E),
    "written as out": (lambda x, w: x if x.requires_grad else torch.mul(w, 3, out=x.new_empty(NUM_EDGES, 1)), None),
    "written through a view": (written_through_a_view, COPY_E),
    "written after a product": (written_after_a_product, COPY_E),
    "written detached": (written_detached, None),  # see below
    "hook": (with_a_hook, None),
    "partly without gradient": (partly_without_gradient, COPY_E),
    "without gradient": (without_gradient, "gspmm:u_mul_e_{}"),
    "a new leaf": (a_new_leaf, None),
    "differentiated": (differentiated, None),
    "numpy": (lambda x, w: x * torch.from_numpy(x.detach().numpy()), "gspmm:u_mul_e_{}"),
    "list": (lambda x, w: x * torch.tensor(x.tolist(), dtype=x.dtype), "gspmm:u_mul_e_{}"),
    "number of it": (lambda x, w: x * x.sum().item(), COPY_E),
    "printed": (lambda x, w: x * (len(repr(x)) > 100), COPY_E),
    "deep copy": (lambda x, w: x + copy.deepcopy(x.detach()), "gspmm:u_add_e_{}"),
    "pickled": (saved, "gspmm:u_add_e_{}"),
    "pickled whole": (saved_whole, "gspmm:u_add_e_{}"),
    "of its shape": (lambda x, w: x * torch.ones_like(x) + x.new_zeros(x.size(0), 1), COPY_E),
}


def propagated(layer, requires_grad):
    x, w = (randn(rows, width, seed=rows).abs() + 0.5 for rows, width in ((NUM_NODES, WIDTH), (NUM_EDGES, 1)))
    x, w = x.requires_grad_(requires_grad), w.requires_grad_(requires_grad)
    out = layer(x, edges(), w)
    grads = []
    if out.requires_grad:
        grads = torch.autograd.grad(out, (x, w), randn(*out.shape, seed=4), allow_unused=True)
    return [out.requires_grad, out.detach(), *grads]


@pytest.mark.parametrize("requires_grad", [True, False])
@pytest.mark.parametrize("aggr", ["sum", "max"])
@pytest.mark.parametrize("name", MESSAGES)
def test_messages_of_users(name, aggr, requires_grad):
    function, operator = MESSAGES[name]
    if name.startswith("pickled whole") and requires_grad:
        pytest.skip("PyTorch warns about it")
    expected = propagated(Layer(function, aggr), requires_grad)
    with halfgnn.pyg.accelerate():
        actual = propagated(Layer(function, aggr), requires_grad)
    assert actual[0] == expected[0]
    for a, b in zip(actual[1:], expected[1:], strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)
    if operator is not None:
        assert operator.format(aggr) in routed()


def test_a_message_looks_like_the_tensor():
    seen = []

    def look(x, w):
        seen.append(
            [x.shape, x.dim(), x.size(0), len(x), x.dtype, x.device, x.requires_grad, x.is_contiguous(), x.layout]
        )
        seen[-1] += [isinstance(x, torch.Tensor), x.is_leaf, x.numel(), x.stride(), x.is_floating_point(), x._version]
        return x

    propagated(Layer(look), True)
    with halfgnn.pyg.accelerate():
        propagated(Layer(look), True)
    assert seen[0] == seen[1] and fell_back() == set()


def stored_by(layer, x, change=None):
    """The message that a layer stored, read after it was reduced."""
    stored = []
    layer.function = lambda x_j, w: stored.append(x_j) or x_j
    layer(x, edges(), torch.ones(NUM_EDGES, 1, dtype=x.dtype))
    if change is not None:
        with torch.no_grad():
            change(x)
    return stored[0]


def test_a_stored_message_is_the_tensor():
    x = randn(NUM_NODES, WIDTH, seed=1).requires_grad_()
    with halfgnn.pyg.accelerate():
        stored = stored_by(Layer(None), x)
    expected = x[edges()[0]]
    assert torch.equal(stored, expected)
    for function in (lambda m: (m * m).sum(), lambda m: Square.apply(m).sum()):
        first, second = (torch.autograd.grad(function(m), x, retain_graph=True) for m in (stored, expected))
        assert_same(first, second)
    first, second = (torch.autograd.grad((m**3).sum(), x, create_graph=True)[0].sum() for m in (stored, expected))
    assert_same(torch.autograd.grad(first, x), torch.autograd.grad(second, x))


def test_a_stored_message_whose_features_changed_is_an_error():
    x = randn(NUM_NODES, WIDTH, seed=1)
    with halfgnn.pyg.accelerate():
        stored = stored_by(Layer(None), x, lambda x: x.add_(1))
    with pytest.raises(RuntimeError, match="modified in place"):
        stored + 1


def test_gradients_of_leaves_are_ordinary_tensors():
    x, w = randn(NUM_NODES, WIDTH, seed=1).requires_grad_(), randn(NUM_EDGES, WIDTH, seed=2).requires_grad_()
    with halfgnn.pyg.accelerate():
        Layer(lambda x_j, w: (x_j * w).relu())(x, edges(), w).sum().backward()
    assert type(x.grad) is type(w.grad) is torch.Tensor


# ---- reductions of what users have ---------------------------------------------------------------------------------------------


def test_reductions_and_softmax_of_known_edges():
    edge_index, values = edges(), randn(NUM_EDGES, 3, seed=1).requires_grad_()

    def results():
        row, index = edge_index
        outs = [
            utils.scatter(values, ids, 0, NUM_NODES, r) for ids in (row, index) for r in ("sum", "mean", "max", "min")
        ]
        outs += [utils.softmax(values, index, num_nodes=NUM_NODES), utils.softmax(values, index)]
        outs[-1].mul_(2)  # may be written into
        return [*outs, *torch.autograd.grad(sum(out.pow(2).sum() for out in outs), values)]

    expected = results()
    with halfgnn.pyg.accelerate():
        results()
        assert routed() == set(), "nobody knows yet that these are edges"
        theirs.SAGEConv(WIDTH, 2).double()(randn(NUM_NODES, WIDTH, seed=1), edge_index)
        halfgnn.pyg.reset_stats()
        assert_same(results(), expected)
    assert halfgnn.pyg.stats() == {
        "routed": {**{f"gspmm:copy_e_{r}": 2 for r in ("sum", "mean", "max", "min")}, "edge_softmax": 2},
        "fell_back": {},
    }


def test_edges_that_are_written_to_are_new():
    edge_index, x, conv = edges(), randn(NUM_NODES, WIDTH, seed=1), theirs.GCNConv(WIDTH, 4).double()
    with halfgnn.pyg.accelerate():
        conv(x, edge_index)
        edge_index.copy_(edge_index.flip(0))
        actual = conv(x, edge_index)
    assert_same([actual], [conv(x, edge_index)])


def test_self_loops_are_sorted_once(monkeypatch):
    made = []
    make = halfgnn.pyg._graph._make
    monkeypatch.setattr(halfgnn.pyg._graph, "_make", lambda *args: made.append(args) or make(*args))
    edge_index, x = edges(), randn(NUM_NODES, WIDTH, seed=1)
    with halfgnn.pyg.accelerate():
        for conv in [theirs.GCNConv(WIDTH, 4), theirs.GCNConv(WIDTH, 4), theirs.GATConv(WIDTH, 4)]:
            for _ in range(3):
                conv.double()(x, edge_index)
    assert len(made) == 2  # add_remaining_self_loops, and add_self_loops after remove_self_loops


def test_max_gives_the_gradient_to_the_first_of_equal_messages():
    edge_index, x = torch.tensor([[0, 1], [2, 2]]), torch.ones(3, 1, requires_grad=True)
    conv = theirs.SimpleConv(aggr="max")
    with halfgnn.pyg.accelerate():
        (grad,) = torch.autograd.grad(conv(x, edge_index).sum(), x)
    assert grad.flatten().tolist() == [1, 0, 0]


# ---- what is left to PyG -----------------------------------------------------------------------------------------------------


def call(**options):
    layer = Layer(lambda x, w: x, **options)
    return lambda x, edge_index: layer(x, edge_index, None)


def explained(x, edge_index):
    layer = Layer(lambda x, w: x)
    layer.explain = True
    layer._edge_mask, layer._loop_mask, layer._apply_sigmoid = (
        torch.ones(NUM_EDGES),
        torch.ones(NUM_EDGES).bool(),
        False,
    )
    return layer(x, edge_index, None)


def with_hooks(x, edge_index):
    layer = Layer(lambda x, w: x)
    layer.register_aggregate_forward_hook(lambda module, inputs, out: 2 * out)
    return layer(x, edge_index, None)


def sparse(x, edge_index):
    return call()(
        x, torch.sparse_coo_tensor(edge_index, torch.ones(NUM_EDGES, dtype=x.dtype), (NUM_NODES, NUM_NODES)).coalesce()
    )


def transformed(x, edge_index):
    return torch.func.vmap(lambda x: call(node_dim=0)(x, edge_index))(torch.stack([x, x]))[0]


def dual(x, edge_index):
    return torch.func.jvp(lambda x: call()(x, edge_index), (x,), (x,))[1]


LEFT = {
    "explain": explained,
    "hooks": with_hooks,
    "sparse edge_index": sparse,
    "functorch": transformed,
    "torch.int64 on cpu": lambda x, edge_index: call()((10 * x).long(), edge_index),
    "node_dim -2 of 3 dimensions": lambda x, edge_index: call()(x[None], edge_index)[0],
    "no edges": lambda x, edge_index: call()(x, edge_index[:, :0]),
}


@pytest.mark.parametrize("reason", LEFT)
def test_what_is_left_to_pyg(reason):
    x = randn(NUM_NODES, WIDTH, seed=1)
    expected = LEFT[reason](x, edges())
    with halfgnn.pyg.accelerate():
        assert_same([LEFT[reason](x, edges())], [expected])
    stats = halfgnn.pyg.stats()
    assert list(stats["fell_back"]["propagate"]) == [reason] and stats["routed"] == {}


def test_forward_mode_is_left_to_pyg():
    x = randn(NUM_NODES, WIDTH, seed=1)
    expected = dual(x, edges())
    with halfgnn.pyg.accelerate():
        assert_same([dual(x, edges())], [expected])
    assert routed() == set()


@pytest.mark.parametrize("edge_index", [torch.tensor([[0, NUM_NODES], [0, 1]]), torch.tensor([[0, -1], [0, 1]])])
def test_ids_out_of_range_raise_pygs_error(edge_index):
    with halfgnn.pyg.accelerate(), pytest.raises(IndexError, match="edge_index"):
        call()(randn(NUM_NODES, WIDTH, seed=1), edge_index)


def test_compiled_and_scripted_code_is_pygs():
    conv, x = theirs.SAGEConv(WIDTH, 4).double(), randn(NUM_NODES, WIDTH, seed=1)
    expected = conv(x, edges())
    with halfgnn.pyg.accelerate():
        scripted = torch.jit.script(conv)
        traced = torch.jit.trace(conv, (x, edges()), check_trace=False)
        compiled = torch.compile(conv, backend="eager")
        assert_same([scripted(x, edges()), traced(x, edges()), compiled(x, edges())], 3 * [expected])
    assert routed() == set()


# ---- patching ----------------------------------------------------------------------------------------------------------------


def bound():
    """Every function and method that torch_geometric and this module bind."""
    names = {
        (module, name): value
        for module, namespace in list(sys.modules.items())
        if module.split(".")[0] == "torch_geometric" or module == __name__
        for name, value in vars(namespace).items()
        if callable(value)
    }
    owners = (theirs.MessagePassing, theirs.GATConv, theirs.GATv2Conv, theirs.TransformerConv)
    return {**names, **{(owner, name): value for owner in owners for name, value in vars(owner).items()}}


def changed(before):
    return {key for key, value in bound().items() if before.get(key) is not value}


def test_unpatch_restores_everything():
    before = bound()
    halfgnn.pyg.patch()
    patched = changed(before)
    assert ("torch_geometric.nn.aggr.base", "scatter") in patched
    assert ("torch_geometric.nn.conv.gcn_conv", "add_self_loops_fn") in patched
    originals = {id(before[key]) for key in patched}
    assert not [key for key, value in bound().items() if id(value) in originals], "another name for an original"
    halfgnn.pyg.patch(fuse=True)
    assert (theirs.GATConv, "forward") in changed(before) - patched
    halfgnn.pyg.unpatch()
    halfgnn.pyg.unpatch()
    assert changed(before) == set()


def test_modules_that_are_imported_meanwhile_get_the_originals():
    original = utils.scatter
    with halfgnn.pyg.accelerate():
        module = type(sys)("torch_geometric.later")
        module.scatter = utils.scatter
        assert module.scatter is not original
        sys.modules[module.__name__] = module
    del sys.modules[module.__name__]
    assert module.scatter is original


def test_accelerate_nests_and_ends_with_an_exception():
    before = bound()
    with pytest.raises(KeyError), halfgnn.pyg.accelerate(), halfgnn.pyg.accelerate(fuse=True):
        raise KeyError
    assert changed(before) == set()
    with halfgnn.pyg.accelerate():
        with halfgnn.pyg.accelerate(fuse=True):
            pass
        patched = changed(before)
        assert patched and (theirs.GATConv, "forward") not in patched
        halfgnn.pyg.patch()
    assert changed(before) == patched
    halfgnn.pyg.unpatch()
    assert changed(before) == set()


def test_backward_after_the_block():
    conv, x = theirs.GraphConv(WIDTH, 4).double(), randn(NUM_NODES, WIDTH, seed=1).requires_grad_()
    expected = torch.autograd.grad(conv(x, edges()).sum(), x)
    with halfgnn.pyg.accelerate():
        out = conv(x, edges())
    assert_same(torch.autograd.grad(out.sum(), x), expected)


def test_threads():
    conv = theirs.GAT(WIDTH, 6, 2, 4, heads=2).double()
    inputs = [(randn(n, WIDTH, seed=n), edges(n, n)) for n in (30, 40, 50)]
    expected = [conv(*args).detach() for args in inputs]
    wrong = []

    def work(args, out):
        for _ in range(10):
            if not torch.allclose(conv(*args), out):
                wrong.append(args)

    with halfgnn.pyg.accelerate():
        threads = [threading.Thread(target=work, args=pair) for pair in zip(inputs, expected)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == [] and fell_back() == set()


def test_inference_then_training():
    conv, x, edge_index = theirs.GCN(WIDTH, 6, 2, 4).double(), randn(NUM_NODES, WIDTH, seed=1), edges()
    with halfgnn.pyg.accelerate():
        with torch.inference_mode():
            expected = conv(x, edge_index)
        actual = conv(x, edge_index)
        actual.sum().backward()
    assert_same([actual], [expected])


def run_python(code: str) -> str:
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def test_import_does_not_import_torch_geometric():
    assert run_python("import sys, halfgnn.pyg; print('torch_geometric' in sys.modules)") == "False"


def test_without_torch_geometric(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch_geometric.nn", None)  # as if it were not installed
    with pytest.raises(ImportError, match=r"halfgnn\.pyg\.patch\(\) needs torch_geometric"):
        halfgnn.pyg.patch()
    halfgnn.pyg.unpatch()
    assert halfgnn.pyg.stats() == {"routed": {}, "fell_back": {}}


def test_modules_in_a_container_are_routed():
    model = theirs.Sequential(
        "x, edge_index",
        [(theirs.GCNConv(WIDTH, 6), "x, edge_index -> x"), nn.ReLU(inplace=True), (nn.Linear(6, 2), "x -> x")],
    ).double()
    x = randn(NUM_NODES, WIDTH, seed=1)
    expected = model(x, edges())
    with halfgnn.pyg.accelerate():
        assert_same([model(x, edges())], [expected])
    assert "gspmm:u_mul_e_sum" in routed()
