"""Second and third derivatives of sums, means, messages and dots."""

import itertools

import pytest
import torch
from torch.func import grad, jacrev, vmap

from halfgnn import Graph, ops, reference
from tests import support
from tests.support import DTYPES, HALVES, SDDMM_OPS, SPMM_OPS, away_from_zero, make_graph, randn
from tests.support_derivatives import check_like_reference, check_precision, gradients, second, small_graph, subsets

LINEAR = ("sum", "mean")
SHAPES = [  # trailing ones, of lhs and rhs
    ((2, 3), (2, 3)),
    ((2, 3), (2, 1)),  # one weight per head
    ((2, 1), (1, 3)),
    ((3,), ()),
    ((), (2, 3)),
    ((2, 1, 3), (4, 1)),
]
DOT_SHAPES = [((2, 3), (2, 3)), ((2, 3), (1, 3)), ((3,), (4, 3)), ((), ())]
TARGETS = ["uv", "vu", "ue", "eu", "ve", "ev", "ee", "uu", "vv"]
READS_ONE = {"copy_lhs": "l", "copy_rhs": "r"}


def rows(g, target):
    return support.rows_of(g, target)


def gspmm_case(g, op, shapes, dtype, rhs_dtype=None, device="cpu"):
    """The operands that op reads, and how to call module.gspmm with them."""
    pair = support.spmm_operands(g, op, *shapes, dtype, device, rhs_dtype)
    return [x for x in pair if x is not None]


def both(op, operands):
    """(lhs, rhs) of the operands that op reads."""
    return {"copy_lhs": (operands[0], None), "copy_rhs": (None, operands[-1])}.get(op, tuple(operands))


def gsddmm_case(g, op, shapes, targets, dtype, device="cpu"):
    pair = [away_from_zero(rows(g, t), *shape, dtype=dtype, device=device) for t, shape in zip(targets, shapes)]
    return {"copy_lhs": pair[:1], "copy_rhs": pair[1:]}.get(op, pair)


def gspmm(module, g, op, reduce, **options):
    return lambda *x: module.gspmm(g, op, reduce, *both(op, x), **options)


def gsddmm(module, g, op, targets, **options):
    return lambda *x: module.gsddmm(g, op, *both(op, x), *targets, **options)


# ---- against differences and against PyTorch, in fp64 -------------------------------------------------------------------------


@pytest.mark.parametrize("reduce", LINEAR)
@pytest.mark.parametrize("op", SPMM_OPS)
def test_gspmm_by_differences(op, reduce):
    g = small_graph()
    for shapes in SHAPES[:3]:
        operands = [x.requires_grad_() for x in gspmm_case(g, op, shapes, torch.float64)]
        assert torch.autograd.gradgradcheck(gspmm(ops, g, op, reduce), operands)


@pytest.mark.parametrize("targets", TARGETS[:4])
@pytest.mark.parametrize("op", SDDMM_OPS)
def test_gsddmm_by_differences(op, targets):
    g = small_graph()
    for shapes in (DOT_SHAPES if op == "dot" else SHAPES)[:2]:
        operands = [x.requires_grad_() for x in gsddmm_case(g, op, shapes, targets, torch.float64)]
        assert torch.autograd.gradgradcheck(gsddmm(ops, g, op, targets), operands)


@pytest.mark.parametrize("reduce", LINEAR)
@pytest.mark.parametrize("op", SPMM_OPS)
def test_gspmm(op, reduce):
    for shapes, identity in zip(SHAPES, itertools.cycle([False, True])):
        g = make_graph("bipartite", support.IDTYPES[identity], identity=identity)
        operands = gspmm_case(g, op, shapes, torch.float64)
        check_like_reference(gspmm(ops, g, op, reduce), gspmm(reference, g, op, reduce), operands)


@pytest.mark.parametrize("name", support.GRAPHS)
def test_graphs(name):
    g = make_graph(name)
    for op, reduce in zip(SPMM_OPS, itertools.cycle(LINEAR)):
        operands = gspmm_case(g, op, ((2, 3), (2, 1)), torch.float64)
        check_like_reference(gspmm(ops, g, op, reduce), gspmm(reference, g, op, reduce), operands)
    for op in SDDMM_OPS:
        operands = gsddmm_case(g, op, ((2, 3), (2, 3)), "uv", torch.float64)
        check_like_reference(gsddmm(ops, g, op, "uv"), gsddmm(reference, g, op, "uv"), operands)


@pytest.mark.parametrize("op", SDDMM_OPS)
@pytest.mark.parametrize("targets", TARGETS)
def test_gsddmm(targets, op):
    for shapes, name in zip(DOT_SHAPES if op == "dot" else SHAPES, itertools.cycle(["bipartite", "duplicates"])):
        g = make_graph(name, torch.int32)
        operands = gsddmm_case(g, op, shapes, targets, torch.float64)
        check_like_reference(gsddmm(ops, g, op, targets), gsddmm(reference, g, op, targets), operands)


@pytest.mark.parametrize("reduce", LINEAR)
def test_segment_reduce(reduce):
    seglen, value = torch.tensor([2, 0, 3]), randn(5, 2, dtype=torch.float64).requires_grad_()
    run, expected = (lambda x, m=m: m.segment_reduce(seglen, x, reduce) for m in (ops, reference))
    check_like_reference(run, expected, [value])
    assert torch.autograd.gradgradcheck(run, [value])


class Disconnected(torch.autograd.Function):
    """The identity, with no gradient at all."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, _):
        return None


@pytest.mark.parametrize("op", ["add", "mul", "div"])
def test_a_gradient_that_nothing_asks_for(op):
    g = small_graph()
    x, w = (t.requires_grad_() for t in gspmm_case(g, op, ((2, 3), (2, 1)), torch.float64))
    first = gradients(
        gspmm(ops, g, op, "sum"), (x, w), torch.ones(4, 2, 3, dtype=torch.float64, requires_grad=True), (0, 1)
    )
    loss = sum(Disconnected.apply(y).sum() for y in first) + x.square().sum()
    assert torch.equal(torch.autograd.grad(loss, x)[0], 2 * x)


@pytest.mark.parametrize("reduce", (*LINEAR, "max", "min"))
def test_a_gradient_that_is_constant_where_relu_is(reduce):
    """Its derivatives by both operands are zeros, as those of PyTorch's relu are, and not None."""
    g = small_graph()
    operands = [t.requires_grad_() for t in gspmm_case(g, "relu_add", ((2, 3), (2, 1)), torch.float64)]
    for module in (ops, reference):
        out = gspmm(module, g, "relu_add", reduce)(*operands)
        for first in torch.autograd.grad(out.sum(), operands, create_graph=True):
            for zeros in torch.autograd.grad(first.square().sum(), operands, retain_graph=True):
                assert torch.equal(zeros, torch.zeros_like(zeros))


def test_one_tensor_on_both_sides():
    g = make_graph("skewed")
    x = randn(g.num_src, 3, dtype=torch.float64)
    for op in ("sub", "mul", "dot"):
        check_like_reference(*(lambda x, m=m: m.gsddmm(g, op, x, x) for m in (ops, reference)), [x])  # noqa: B023


@pytest.mark.parametrize("order", list(itertools.product((0, 1), repeat=3)))
def test_a_third_derivative(order):
    """By one operand after the other. The innermost gradient alone may need no out-edges, those around it need them."""
    g = small_graph()
    cases = [
        (lambda m, x, w: m.gspmm(g, "div", "mean", x, w), gspmm_case(g, "div", ((2, 3), (2, 1)), torch.float64)),
        (lambda m, x, y: m.gsddmm(g, "dot", x, y), gsddmm_case(g, "dot", ((2, 3), (2, 3)), "uv", torch.float64)),
    ]
    for call, operands in cases:
        found = []
        for module in (ops, reference):
            derivative = lambda *x, module=module: call(module, *x)  # noqa: B023, E731
            for i in order:
                derivative = grad(lambda *x, f=derivative: f(*x).sin().sum(), i)
            found.append(derivative(*operands))
        torch.testing.assert_close(*found, rtol=1e-11, atol=1e-11)


# ---- precision -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device,dtype", support.devices_and(HALVES))
@pytest.mark.parametrize("reduce", LINEAR)
def test_half_products(reduce, dtype, device):
    g = make_graph("skewed", device=device)
    specification = gspmm(reference, g.to("cpu"), "mul", reduce)
    for shapes in ((2, 8), (2, 1)), ((9,), (9,)):
        operands = gspmm_case(g, "mul", shapes, dtype, device=device)
        check_precision(gspmm(ops, g, "mul", reduce), specification, operands, specification)


@pytest.mark.parametrize("device,dtype", support.devices_and(HALVES))
@pytest.mark.parametrize("op,shapes", [("dot", ((2, 8), (2, 8))), ("mul", ((9,), (9,))), ("div", ((9,), (9,)))])
def test_half_messages(op, shapes, dtype, device):
    g = make_graph("bipartite", device=device)
    operands = gsddmm_case(g, op, shapes, "uv", dtype, device)
    specification = gsddmm(reference, g.to("cpu"), op, "uv")
    bound = None if op == "div" else specification  # terms of a quotient cancel
    check_precision(gsddmm(ops, g, op, "uv"), specification, operands, bound)


@pytest.mark.parametrize("dtypes", support.MIXED, ids=str)
@pytest.mark.parametrize("name", [*SPMM_OPS, "dot", "u_sub_v"])
@pytest.mark.parametrize("out_dtype", [None, torch.float32])
def test_types(name, out_dtype, dtypes):
    """Of operands of two types each derivative has the type of what it belongs to, and its precision."""
    g = make_graph("bipartite")
    if name in SPMM_OPS:
        operands = gspmm_case(g, name, ((2, 3), (2, 1)), *dtypes)
        run, specification = gspmm(ops, g, name, "mean", out_dtype=out_dtype), gspmm(reference, g, name, "mean")
    else:
        shapes, op = (((2, 3), (2, 3)), "dot") if name == "dot" else (((2, 3), (2, 1)), "sub")
        operands = [x.to(dtype) for x, dtype in zip(gsddmm_case(g, op, shapes, "uv", torch.float32), dtypes)]
        run, specification = gsddmm(ops, g, op, "uv"), gsddmm(reference, g, op, "uv")
    upstream, cotangents = torch.randn_like(run(*operands)), [torch.randn_like(x) for x in operands]
    for wanted in subsets(len(operands)):
        got = second(run, operands, upstream, cotangents, wanted)
        assert [x.dtype for x in got] == [upstream.dtype, *(operands[i].dtype for i in wanted)]
        exact = [x.double() for x in (upstream, *operands, *cotangents)]
        count = len(operands)
        truth = second(specification, exact[1 : 1 + count], exact[0], exact[1 + count :], wanted)
        for a, b in zip(got, truth):
            torch.testing.assert_close(
                a.double(), b, rtol=0, atol=torch.finfo(a.dtype).eps * max(4, 4 * float(b.abs().max()))
            )


def test_autocast_does_not_round_second_derivatives():
    """As with first derivatives: the types are those of the forward."""
    g = make_graph("bipartite")
    operands = gspmm_case(g, "mul", ((2, 3), (2, 1)), torch.float32)
    upstream, cotangents = torch.randn(g.num_dst, 2, 3), [torch.randn_like(x) for x in operands]
    plain = second(gspmm(ops, g, "mul", "sum"), operands, upstream, cotangents, (0, 1))
    leaves = [x.requires_grad_() for x in (upstream, *operands)]
    first = gradients(gspmm(ops, g, "mul", "sum"), leaves[1:], leaves[0], (0, 1))
    with torch.autocast("cpu", torch.bfloat16):
        assert all(torch.equal(a, b) for a, b in zip(plain, torch.autograd.grad(first, leaves, cotangents)))


# ---- first derivatives stay as they were ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_recorded_gradient_has_the_same_bits(dtype):
    g = make_graph("skewed")
    cases = [
        (gspmm(ops, g, op, reduce), gspmm_case(g, op, ((4, 8), (4, 1)), dtype))
        for op in SPMM_OPS
        for reduce in support.REDUCES
    ]
    cases += [(gsddmm(ops, g, op, "uv"), gsddmm_case(g, op, ((4, 8), (4, 8)), "uv", dtype)) for op in SDDMM_OPS]
    for run, operands in cases:
        leaves = [x.requires_grad_() for x in operands]
        out = run(*leaves)
        upstream = torch.randn_like(out).requires_grad_()
        plain = torch.autograd.grad(out, leaves, upstream, retain_graph=True)
        for a, b in zip(plain, torch.autograd.grad(out, leaves, upstream, create_graph=True)):
            assert torch.equal(a, b) and b.requires_grad


def test_a_backward_keeps_tensors_only_if_it_is_recorded():
    g = make_graph("bipartite")
    x, w = (t.requires_grad_() for t in gspmm_case(g, "mul", ((2, 3), (2, 1)), torch.float32))
    for run in (gspmm(ops, g, "mul", "sum"), gspmm(ops, g, "mul", "max"), gsddmm(ops, g, "mul", "ue")):
        for create_graph in (False, True):
            out, found = run(x, w), []
            with torch.autograd.graph.saved_tensors_hooks(lambda t: (found.append(t), t)[1], lambda t: t):  # noqa: B023
                torch.autograd.grad(out, [x, w], torch.randn_like(out), create_graph=create_graph)
            assert create_graph or not found


def test_a_forward_keeps_each_side_of_the_graph_at_most_once():
    g = make_graph("bipartite")
    topology = [t.data_ptr() for side in (g.csc(), g.csr()) for t in side]
    x, w = (t.requires_grad_() for t in gspmm_case(g, "mul", ((2, 3), (2, 1)), torch.float32))
    for run, kept in (
        (lambda: ops.copy_u_sum(g, x), 0),
        (lambda: ops.u_mul_e_sum(g, x, w), 2),
        (lambda: ops.copy_e_sum(g, w), 0),
    ):
        found = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: (found.append(t.data_ptr()), t)[1], lambda t: t):  # noqa: B023
            run()
        assert len(set(found)) == len(found) and len([p for p in found if p not in topology]) == kept


# ---- torch.func ------------------------------------------------------------------------------------------------------------------


def energies():
    """Name -> (function of module and operands, operands)."""
    g = small_graph()
    x, w = gspmm_case(g, "div", ((2, 3), (2, 1)), torch.float64)
    y = away_from_zero(g.num_dst, 2, 3, dtype=torch.float64)
    found = {}
    for op in SPMM_OPS[:4]:
        found[f"u_{op}_e_mean"] = lambda m, x, w, op=op: m.gspmm(g, op, "mean", x, w).sin().sum(), (x, w)
    for op in SDDMM_OPS[:5]:
        found[f"u_{op}_v"] = lambda m, x, y, op=op: m.gsddmm(g, op, x, y).sin().sum(), (x, y)
    z = randn(g.num_dst, 2, 3, dtype=torch.float64)
    found["copy_u_sum times z"] = lambda m, x, z: (m.gspmm(g, "copy_lhs", "sum", x, None) * z).sin().sum(), (x, z)
    found["copy_u_sum"] = lambda m, x: m.gspmm(g, "copy_lhs", "sum", x, None).sin().sum(), (x,)
    found["segments"] = lambda m, w: m.segment_reduce(torch.tensor([4, 0, 5]), w, "mean").sin().sum(), (w,)
    return found


def hessians(energy, operands):
    every = tuple(range(len(operands)))
    return jacrev(jacrev(energy, every), every)(*operands)


def nested(energy, operands):
    """The inner gradient is of one operand alone, the outer one of another: the inner forward keeps what it needs, not more."""
    each = range(len(operands))
    return [grad(lambda *x: grad(energy, i)(*x).sin().sum(), j)(*operands) for i in each for j in each]  # noqa: B023


def batched(energy, operands):
    def forces(*x):
        return [
            f.sin()
            for f in grad(lambda *y: sum(f.square().sum() for f in grad(energy, tuple(range(len(y))))(*y)), 0)(*x)
        ]

    return vmap(forces)(*(torch.stack([x, 2 - x.cos()]) for x in operands))


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("what", [hessians, nested, batched], ids=lambda f: f.__name__)
@pytest.mark.parametrize("name", energies())
def test_transforms(name, what):
    torch.manual_seed(3)
    energy, operands = energies()[name]
    got, expected = (what(lambda *x, m=m: energy(m, *x), operands) for m in (ops, reference))
    leaves = torch.utils._pytree.tree_leaves
    for a, b in zip(leaves(got), leaves(expected), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-11)


def test_autograd_around_a_transform():
    """The transform's forward needs no out-edges, and the last backward, which is not recorded, walks them."""
    energy, (x, w) = energies()["u_mul_e_mean"]
    found = []
    for module in (ops, reference):
        leaf = x.clone().requires_grad_()
        inner = grad(lambda *operands, m=module: energy(m, *operands), 1)(leaf, w)
        (middle,) = torch.autograd.grad(inner.sin().sum(), leaf, create_graph=True)
        found.append(torch.autograd.grad(middle.square().sum(), leaf)[0])
    torch.testing.assert_close(*found, rtol=1e-11, atol=1e-11)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_a_vectorized_hessian():
    energy, (x, w) = energies()["u_mul_e_mean"]
    call = torch.autograd.functional.hessian
    got = call(lambda *operands: energy(ops, *operands), (x, w), vectorize=True)
    expected = call(lambda *operands: energy(reference, *operands), (x, w))
    torch.testing.assert_close(got, expected)


# ---- what they are for -----------------------------------------------------------------------------------------------------------


class Potential(torch.nn.Module):
    """Energy of atoms by continuous-filter convolutions (Schütt et al., 2017) over an edge list of neighbours."""

    def __init__(self, width=5):
        super().__init__()
        self.embedding = torch.nn.Parameter(torch.randn(4, width))
        self.filters = torch.nn.ModuleList(torch.nn.Linear(6, width) for _ in range(2))
        self.updates = torch.nn.ModuleList(torch.nn.Linear(width, width) for _ in range(2))
        self.energy = torch.nn.Linear(width, 1)

    def forward(self, module, g, kind, position):
        edge = module.gsddmm(g, "sub", position, position, "u", "v")
        distance = module.gsddmm(g, "dot", edge, edge, "e", "e").sqrt()
        basis = torch.exp(-((distance - torch.linspace(0, 2, 6)) ** 2)) / (
            1 + module.gsddmm(g, "div", edge, distance, "e", "e").sum(-1, True) ** 2
        )
        h = self.embedding[kind]
        for filter, update in zip(self.filters, self.updates):
            h = h + torch.tanh(update(module.gspmm(g, "mul", "mean", h, torch.tanh(filter(basis)))))
        return self.energy(h).sum()


def test_training_on_forces():
    """Gradients of a loss of energies and forces equal those of plain PyTorch."""
    torch.set_default_dtype(torch.float64)
    try:
        model, position, kind = Potential(), torch.rand(30, 3) * 3, torch.randint(4, (30,))
        src, dst = ((torch.cdist(position, position) < 1.2) & ~torch.eye(30, dtype=torch.bool)).nonzero().t()
        g, target = Graph.from_edges(src, dst, num_src=30, num_dst=30), torch.randn(30, 3)
        found = []
        for module in (ops, reference):
            model.zero_grad()
            x = position.clone().requires_grad_()
            energy = model(module, g, kind, x)
            (slope,) = torch.autograd.grad(energy, x, create_graph=True)
            (energy.square() + (-slope - target).square().sum()).backward()
            found.append([energy.detach(), slope.detach(), x.grad, *(p.grad.clone() for p in model.parameters())])
        for a, b in zip(*found):
            torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)
        assert all(x.abs().max() > 1e-3 for x in found[0])
    finally:
        torch.set_default_dtype(torch.float32)


# ---- what has none ---------------------------------------------------------------------------------------------------------------


def test_compiled_code_says_so():
    """torch.compile's backward cannot be differentiated, whatever it compiles. PyTorch raises an error."""
    g, x, upstream = small_graph(), torch.randn(6, 2, requires_grad=True), torch.ones(4, 2, requires_grad=True)
    out = torch.compile(lambda x: ops.copy_u_sum(g, x).sin(), backend="aot_eager", fullgraph=True)(x)
    (first,) = torch.autograd.grad(out, x, upstream, create_graph=True)
    with pytest.raises(RuntimeError, match="double backward"):
        first.sum().backward()
