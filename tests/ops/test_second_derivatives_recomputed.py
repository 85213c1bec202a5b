"""Derivatives of first derivatives that are computed again from differentiable operators: max, min, softmax, gates, attention."""

import itertools
from functools import partial

import pytest
import torch
from torch.func import grad, jacrev, vmap

from halfgnn import ops, reference
from tests import support
from tests.support import DTYPES, HALVES, SPMM_OPS, devices_and, make_graph, randn
from tests.support_attention import fixed_seed, seed_on
from tests.support_derivatives import check_like_reference, check_precision, second, small_graph

HEADS, DIM, COLUMNS = 2, 3, 4
ROW, HEAD, FEAT, WEIGHT = (HEADS, DIM), (HEADS,), (COLUMNS,), (HEADS * DIM, COLUMNS)
_NODES = {"gatv2": [("u", ROW), ("v", ROW), (None, ROW)], "dot": [("v", ROW), ("u", ROW), ("u", ROW)]}


def _gspmm(op, reduce, module, g, *x):
    return module.gspmm(g, op, reduce, *{"copy_lhs": (x[0], None), "copy_rhs": (None, x[-1])}.get(op, x))


def _segments(reduce, module, g, x):
    return module.segment_reduce(g.in_degrees(), x, reduce)


def _several(reduces, module, g, x):
    return torch.cat(module.copy_u_reduce(g, x, reduces), -1)


def _gated(module, g, *x, **options):
    return module.gated_sum(g, *x, **options)


def _gates_too(module, g, *x):
    return torch.cat(module.gated_sum(g, *x, normalize=True, return_edges=True))


def _attention(name, names, module, g, *x, same=(), scale=(), **options):
    terms = options | dict(zip(names, x[3:]))
    terms |= {other: terms[name] for name, other in same}
    return getattr(module, f"{name}_attention")(g, *x[:3], *scale, **terms)


def _gat(module, g, *x, **options):
    return module.gat_attention(g, *x, **options)


def _gatv2(*terms):
    names, shapes = [t[0] for t in terms], [t[1:] for t in terms]
    return partial(_attention, "gatv2", names), _NODES["gatv2"] + shapes


def _dot(*terms, same=()):
    names, shapes = [t[0] for t in terms], [t[1:] for t in terms]
    return partial(_attention, "dot", names, same=same, scale=(0.5,)), _NODES["dot"] + shapes


BIAS = ("edge_bias", "e", HEAD)
COLUMNS_OF = ("edge_feat", "e", FEAT)
KEY_WEIGHT, VALUE_WEIGHT = ("edge_key_weight", None, WEIGHT), ("edge_value_weight", None, WEIGHT)
KEY, VALUE = ("edge_key", "e", ROW), ("edge_value", "e", ROW)
SHARED = (("edge_key", "edge_value"), ("edge_key_weight", "edge_value_weight"))

# Name -> (call of module, g and operands; target, which is None for a parameter, and trailing shape of each operand).
CASES = {
    "segment_max": (partial(_segments, "max"), [("e", ROW)]),
    "max_min": (partial(_several, ("max", "min")), [("u", ROW)]),
    "sum_std": (partial(_several, ("sum", "std")), [("u", ROW)]),
    "var_mean_max": (partial(_several, ("var", "mean", "max")), [("u", (DIM,))]),
    "edge_softmax": (lambda m, g, x: m.edge_softmax(g, x), [("e", HEAD)]),
    "edge_softmax_src": (lambda m, g, x: m.edge_softmax(g, x, "src"), [("e", (2, 3))]),
    "gated_sum": (_gated, [("u", (DIM,)), ("u", (DIM,)), ("v", (DIM,))]),
    "gated_mean": (partial(_gated, normalize=True), [(t, ROW) for t in "uuvee"]),
    "gates": (_gates_too, [(t, ROW) for t in "uuve"]),
    "gat": (_gat, [("u", ROW), ("u", HEAD), ("v", HEAD)]),
    "gat_logits": (_gat, [("u", ROW), ("u", HEAD), ("v", HEAD), ("e", HEAD)]),
    "gatv2": _gatv2(),
    "gatv2_rows": _gatv2(BIAS, ("edge_feat", "e", ROW)),
    "gatv2_columns": _gatv2(COLUMNS_OF, ("edge_weight", None, WEIGHT)),
    "dot": _dot(),
    "dot_terms": _dot(BIAS, COLUMNS_OF, KEY_WEIGHT, VALUE_WEIGHT, KEY, VALUE),
    "dot_shared": _dot(COLUMNS_OF, KEY_WEIGHT, KEY, same=SHARED),
}
_WEIGHTS = itertools.cycle([(HEADS, 1), (1, DIM), ROW])  # of edges
for _op, _reduce in itertools.product(SPMM_OPS, ("max", "min")):
    _shapes = [("u", (HEADS, 1) if _op == "sub" else ROW), ("e", next(_WEIGHTS))]
    _shapes = {"copy_lhs": _shapes[:1], "copy_rhs": _shapes[1:]}.get(_op, _shapes)
    CASES[f"{_op}_{_reduce}"] = partial(_gspmm, _op, _reduce), _shapes


# First derivatives that do not depend on operands: their own derivatives are elements of cotangents.
CONSTANT = ("add_", "sub_", "relu_add_", "copy_", "segment_", "max_min")


def operands_of(name, g, dtype=torch.float64, device="cpu"):
    """Weights of columns are small, as those of a layer are, and divisors are not."""
    found = []
    for target, shape in CASES[name][1]:
        first = () if target is None else (support.rows_of(g, target),)
        make = support.away_from_zero if name.startswith("div") else randn
        found.append(make(*first, *shape, dtype=dtype, device=device))
    return [x / 2 if shape == WEIGHT else x for x, (_, shape) in zip(found, CASES[name][1])]


def calls_of(name, g):
    """The operator and the reference, of operands."""
    return [partial(CASES[name][0], module, g) for module in (ops, reference)]


@pytest.mark.parametrize("name", CASES)
def test_by_differences(name):
    g = small_graph()
    operands = [x.requires_grad_() for x in operands_of(name, g)]
    assert torch.autograd.gradgradcheck(calls_of(name, g)[0], operands)


@pytest.mark.parametrize("name", CASES)
def test_each_choice_of_operands(name):
    g = make_graph("bipartite", torch.int32, identity=len(name) % 2 == 0)
    operands = operands_of(name, g)
    count = len(operands)
    choices = [*([i] for i in range(count)), range(count - 1), range(count)] if count > 1 else [[0]]
    check_like_reference(*calls_of(name, g), operands, choices)


@pytest.mark.parametrize("graph", support.GRAPHS)
def test_graphs(graph):
    g = make_graph(graph)
    for name in CASES:
        operands = operands_of(name, g)
        check_like_reference(*calls_of(name, g), operands, [range(len(operands))])


@pytest.mark.parametrize("name", CASES)
def test_a_third_derivative(name):
    """By create_graph=True of the first operand's, then of the last one's; and by torch.func."""
    g, found = small_graph(), []
    operands = operands_of(name, g)
    for call in calls_of(name, g):
        leaves = [x.detach().requires_grad_() for x in operands]
        derivative, last = call(*leaves).sin().sum(), len(leaves) - 1
        for i in (0, last, 0):
            (derivative,) = torch.autograd.grad(derivative, leaves[i], create_graph=True)
            derivative = derivative.sin().sum()
        composed = lambda *x, call=call: call(*x).sin().sum()  # noqa: E731
        for i in (0, last, 0):
            composed = lambda *x, f=composed, i=i: grad(f, i)(*x).sin().sum()  # noqa: E731
        found += [derivative.detach(), composed(*operands)]
    for value in found[:3]:
        torch.testing.assert_close(value, found[3], rtol=1e-11, atol=1e-11)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize(
    "name", ["mul_max", "segment_max", "sum_std", "edge_softmax", "gates", "gat", "gatv2_rows", "dot_shared"]
)
def test_transforms(name):
    g, found = small_graph(), []
    operands = operands_of(name, g)
    every = tuple(range(len(operands)))
    for call in calls_of(name, g):
        energy = lambda *x, call=call: call(*x).sin().sum()  # noqa: E731
        slope = lambda *x, f=energy: grad(lambda *y: sum(s.square().sum() for s in grad(f, every)(*y)))(*x)  # noqa: E731
        hessian = torch.autograd.functional.hessian(energy, tuple(operands), vectorize=call.args[0] is ops)
        batch = [torch.stack([x, x.cos()]) for x in operands]
        results = jacrev(jacrev(energy, every), every)(*operands), vmap(slope)(*batch), hessian
        found.append(torch.utils._pytree.tree_leaves(results))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("device,dtype", devices_and([*HALVES, torch.float32]))
@pytest.mark.parametrize("name", [name for name in CASES if not name.startswith(CONSTANT)])
def test_precision(name, dtype, device):
    g = make_graph("bipartite", device=device)
    specification = calls_of(name, g.to("cpu"))[1]
    check_precision(calls_of(name, g)[0], specification, operands_of(name, g, dtype, device))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_recorded_gradient_has_the_same_bits(dtype):
    g = make_graph("skewed")
    for name in CASES:
        leaves = [x.requires_grad_() for x in operands_of(name, g, dtype)]
        out = calls_of(name, g)[0](*leaves)
        upstream = torch.randn_like(out).requires_grad_()
        plain = torch.autograd.grad(out, leaves, upstream, retain_graph=True)
        for a, b in zip(plain, torch.autograd.grad(out, leaves, upstream, create_graph=True)):
            assert torch.equal(a, b) and b.requires_grad and not a.requires_grad


def test_a_backward_keeps_tensors_only_if_it_is_recorded():
    g = make_graph("bipartite")
    for name in CASES:
        leaves = [x.requires_grad_() for x in operands_of(name, g)]
        for create_graph in (False, True):
            out, found = calls_of(name, g)[0](*leaves), []
            with torch.autograd.graph.saved_tensors_hooks(lambda t: (found.append(t), t)[1], lambda t: t):  # noqa: B023
                torch.autograd.grad(out, leaves, torch.ones_like(out, requires_grad=True), create_graph=create_graph)
            assert bool(found) == create_graph, name


@pytest.mark.parametrize("name", ["mul_max", "edge_softmax", "gates", "gat", "gatv2_rows", "dot_terms"])
def test_autocast_does_not_round_second_derivatives(name):
    g = make_graph("bipartite")
    run, operands = calls_of(name, g)[0], operands_of(name, g, torch.float32)
    leaves = [x.requires_grad_() for x in operands]
    first = torch.autograd.grad(run(*leaves).sin().sum(), leaves, create_graph=True)
    loss = sum(x.square().sum() for x in first)
    plain = torch.autograd.grad(loss, leaves, retain_graph=True)
    with torch.autocast("cpu", torch.bfloat16):
        assert all(torch.equal(a, b) for a, b in zip(plain, torch.autograd.grad(loss, leaves)))


@pytest.mark.parametrize("name,masked", [("gat_logits", 3), ("gatv2_rows", 3), ("dot_terms", 3)])
def test_removed_edges(name, masked):
    """A logit of -inf, of some edges of a row and of all, gives second derivatives that are finite."""
    g = small_graph()
    operands = operands_of(name, g)
    operands[masked][g.edges()[1] == 0] = -torch.inf
    operands[masked][1, 0] = -torch.inf
    run, expected = calls_of(name, g)
    upstream, wanted = torch.randn_like(run(*operands)), range(len(operands))
    cotangents = [torch.randn_like(x) for x in operands]
    for a, b in zip(*(second(f, operands, upstream, cotangents, wanted) for f in (run, expected)), strict=True):
        assert a.isfinite().all()
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("name", ["gat_logits", "gatv2", "gatv2_rows", "dot", "dot_shared"])
def test_dropout(name):
    """Differences of calls that drop the same weights, and those of the reference with the kernels' mask."""
    g, p = small_graph(), 0.4
    operands = operands_of(name, g)
    mask = reference.dropout_mask(seed_on("cpu"), g.num_edges, HEADS, p)
    run, expected = (
        partial(f, **{key: value}) for f, key, value in zip(calls_of(name, g), ("dropout_p", "mask"), (p, mask))
    )
    with fixed_seed():
        check_like_reference(run, expected, operands, [range(len(operands))])
        assert torch.autograd.gradgradcheck(run, [x.requires_grad_() for x in operands])


def test_an_operand_modified_in_place():
    g = make_graph("bipartite")
    x, w = (t.requires_grad_() for t in operands_of("mul_max", g))
    y = x * 2
    (first,) = torch.autograd.grad(ops.u_mul_e_max(g, y, w).sum(), w, create_graph=True)
    with torch.no_grad():
        y.add_(1)
    with pytest.raises(RuntimeError, match="the gradient of gspmm reads an operand that was modified in place"):
        first.sum().backward()
