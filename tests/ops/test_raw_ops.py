"""The dispatcher operators torch.ops.halfgnn.*: schema, fake kernels and tracing (opcheck), and results that only they
return."""

import pytest
import torch
from torch.autograd import forward_ad

from halfgnn import Graph, _library, ops, reference
from tests import support
from tests.support import HALVES, IDTYPES, make_graph, randn
from tests.support_messages import gated_operands

raw = torch.ops.halfgnn
NO_GRAD_TESTS = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")


def opcheck(op, *args):
    torch.library.opcheck(op.default, args, test_utils=NO_GRAD_TESTS)


@pytest.fixture(params=[False, True], ids=["edge_ids", "no_edge_ids"])
def g(request, device):
    return make_graph("bipartite", torch.int32, device, identity=request.param)


# ---- opcheck -------------------------------------------------------------------------------------


@pytest.mark.parametrize("idtype", IDTYPES)
def test_opcheck_topology(idtype, device):
    g = make_graph("bipartite", idtype, device)
    src, dst = g.edges()
    opcheck(raw.coo_to_csr, dst, src, g.num_dst)
    opcheck(raw.transpose, *g.csc(), g.num_src)
    opcheck(raw.transpose, *g.csc()[:2], None, g.num_src)


@pytest.mark.parametrize("op,reduce,lhs,rhs", [
    ("mul", "sum", (4, 8), (4, 1)), ("copy_lhs", "mean", (5,), None), ("copy_rhs", "max", None, ()), ("add", "min", (2, 1), (1, 3)),
])  # fmt: skip
def test_opcheck_gspmm(g, op, reduce, lhs, rhs, device):
    x, y = support.spmm_operands(g, op, lhs or (), rhs or (), torch.float16, device)
    opcheck(raw.gspmm, *g.csc(), op, reduce, x, y)
    opcheck(raw.gspmm, *g.csc(), op, reduce, x, y, torch.float32)
    opcheck(raw.gspmm, *g.csc(), op, reduce, x, y, None, True)
    opcheck(raw.gspmm, *g.csc(), op, reduce, x, y, None, False, False)
    if x is not None and y is not None:
        opcheck(raw.gspmm, *g.csc(), op, reduce, x.float(), y)


@pytest.mark.parametrize("has_edge,has_values", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("normalize", [False, True])
def test_opcheck_gated_sum(g, normalize, has_edge, has_values, device):
    operands = gated_operands(g, (8,), torch.float16, device, has_edge, has_values)
    operands += [None] * (5 - len(operands))
    opcheck(raw.gated_sum, *g.csc(), *operands, normalize, 1e-6, False, False)
    opcheck(raw.gated_sum, *g.csc(), *operands, normalize, 1e-6, True, True)
    out, z, scale, quotient = raw.gated_sum(*g.csc(), *operands, normalize, 1e-6, True, True)
    gradients = torch.randn_like(out), torch.randn_like(z), scale, quotient
    for needs in ([True, True, True, has_edge, has_values], [False, False, False, False, has_values]):
        opcheck(raw.gated_sum_backward, *g.csc(), *g.csr(), *operands, normalize, *gradients, *needs)


def test_a_gradient_of_a_term_that_is_not_given_is_an_error(g, device):
    operands = [*gated_operands(g, (8,), torch.float32, device, has_edge=False), None, None]
    out, _, scale, quotient = raw.gated_sum(*g.csc(), *operands, False, 1e-6, False, True)
    for k, name in ((3, "gate_edge"), (4, "edge_value")):
        needs = [i == k for i in range(5)]
        with pytest.raises(ValueError, match=f"{name} is None; it has no gradient"):
            raw.gated_sum_backward(*g.csc(), *g.csr(), *operands, False, out, None, scale, quotient, *needs)


@pytest.mark.parametrize("op,reduce,lhs,rhs", [
    ("mul", "sum", (4, 8), (4, 1)), ("copy_lhs", "mean", (5,), None), ("copy_rhs", "max", None, ()), ("div", "min", (2, 1), (1, 3)),
])  # fmt: skip
def test_opcheck_gspmm_backward(g, op, reduce, lhs, rhs, device):
    x, y = support.spmm_operands(g, op, lhs or (), rhs or (), torch.float16, device)
    out, arg = raw.gspmm(*g.csc(), op, reduce, x, y)
    like = (x if x is not None else y).shape, (y if y is not None else x).shape
    arg = arg if reduce in ("max", "min") else None
    for by_src, need_lhs, need_rhs in [(True, True, True), (True, True, False), (False, False, True)]:
        side = g.csr() if by_src else g.csc()
        need = need_lhs and x is not None, need_rhs and y is not None
        if any(need):
            opcheck(raw.gspmm_backward, *side, g.csc().indptr, by_src, op, reduce, torch.randn_like(out), x, y, arg, *like,
                    torch.float16, torch.float16, *need, by_src)  # fmt: skip


@pytest.mark.parametrize("width", [3, 16])
@pytest.mark.parametrize("reduces", ["max,std", "sum,mean,max,min,var,std"])
def test_opcheck_copy_u_reduce_and_backward(g, reduces, width, device):
    x = randn(g.num_src, width, dtype=torch.float16, device=device)
    opcheck(raw.copy_u_reduce, *g.csc(), x, reduces, 1e-5)
    opcheck(raw.copy_u_reduce, *g.csc(), x, reduces, 1e-5, torch.float32, True)
    *results, arg_max, arg_min, mean, std = raw.copy_u_reduce(*g.csc(), x, reduces, 1e-5, None, True)
    given = [torch.randn_like(r) if r.numel() else None for r in results]
    kept = [k if k.numel() else None for k in (arg_max, arg_min, mean, std)]
    opcheck(raw.copy_u_reduce_backward, *g.csr(), g.csc()[0], x, x.shape, x.dtype, *given, *kept)


@pytest.mark.parametrize(
    "op,targets", [("dot", "uv"), ("add", "uv"), ("mul", "ev"), ("copy_lhs", "uv"), ("copy_rhs", "ue")]
)
def test_opcheck_gsddmm_and_backward(g, op, targets, device):
    x, y = (randn(support.rows_of(g, t), 4, 8, dtype=torch.float16, device=device) for t in targets)
    x, y = (None if op == "copy_rhs" else x), (None if op == "copy_lhs" else y)
    opcheck(raw.gsddmm, *g.csc(), op, x, y, *targets)
    opcheck(raw.gsddmm, *g.csc(), op, x, y, *targets, torch.float32)
    if x is not None and y is not None:
        opcheck(raw.gsddmm, *g.csc(), op, x, y.float(), *targets)
    grad = torch.randn_like(raw.gsddmm(*g.csc(), op, x, y, *targets))
    like = (x if x is not None else y).shape, (y if y is not None else x).shape
    for side, target, operand in (("lhs", targets[0], x), ("rhs", targets[1], y)):
        if operand is not None:
            rows = g.csr() if target == "u" else g.csc()
            by_src = target == "u"
            opcheck(raw.gsddmm_backward, *rows, by_src, op, side, grad, x, y, *targets, *like, torch.float16, by_src)


@pytest.mark.parametrize("shape", [(), (4, 1)])
def test_opcheck_edge_softmax(g, shape, device):
    logits = randn(g.num_edges, *shape, dtype=torch.bfloat16, device=device)
    indptr, _, edge_ids = g.csc()
    opcheck(raw.edge_softmax, indptr, edge_ids, logits)
    opcheck(raw.edge_softmax, indptr, edge_ids, logits, True)
    out = raw.edge_softmax(indptr, edge_ids, logits)
    opcheck(raw.edge_softmax_backward, indptr, edge_ids, out, torch.randn_like(out), True)


@pytest.mark.parametrize("reduce", ["mean", "max"])
def test_opcheck_segment_reduce(reduce, device):
    offsets = torch.tensor([0, 2, 2, 9], device=device)
    value = randn(9, 3, dtype=torch.float16, device=device)
    opcheck(raw.segment_reduce, offsets, value, reduce)
    out, arg = raw.segment_reduce(offsets, value, reduce)
    opcheck(raw.segment_reduce_backward, offsets, torch.randn_like(out), arg if reduce == "max" else None, reduce, 9)


@pytest.mark.parametrize("op, reduce", [("copy_lhs", "mean"), ("mul", "sum"), ("add", "sum"), ("relu_add", "mean")])
def test_opcheck_coo_sum(op, reduce):
    row, col = torch.tensor([[2, 0, 2], [1, 3, 0]])
    feat, shape = randn(4, 3, dtype=torch.float32), {"copy_lhs": None, "mul": (3,)}.get(op, (3, 3))
    rhs = None if shape is None else randn(*shape, dtype=torch.float32)
    opcheck(raw.coo_sum, row, col, feat, rhs, op, reduce, 5)
    grad = randn(5, 3, dtype=torch.float32)
    for needs in ((True, False), (op != "copy_lhs", rhs is not None)):
        opcheck(raw.coo_sum_backward, row, col, grad, feat, rhs, op, reduce, 4, *needs)


@pytest.mark.parametrize("op", ["copy_lhs", "add", "relu_add"])
@pytest.mark.parametrize("has_row", [True, False])
def test_opcheck_coo_sum_of_one_side(op, has_row):
    ends, rows = ((torch.tensor([2, 0, 2]), None), 5) if has_row else ((None, torch.tensor([1, 3, 0])), 3)
    feat, grad = randn(3 if has_row else 4, 2, dtype=torch.float32), randn(rows, 2, dtype=torch.float32)
    rhs = None if op == "copy_lhs" else randn(3, 2, dtype=torch.float32)
    opcheck(raw.coo_sum, *ends, feat, rhs, op, "mean", rows)
    opcheck(raw.coo_sum_backward, *ends, grad, feat, rhs, op, "mean", feat.shape[0], True, rhs is not None)


def test_opcheck_coo_softmax():
    row, logits = torch.tensor([2, 0, 2]), randn(3, 2, dtype=torch.float32)
    opcheck(raw.coo_softmax, row, logits, 5)
    opcheck(raw.coo_softmax_backward, row, logits.sigmoid(), logits, 5)


# ---- no derivative -------------------------------------------------------------------------------

OF_TOPOLOGIES = {"coo_to_csr", "transpose", "reorder", "locality", "neighbor_sample"}  # of integers alone


def test_no_operator_drops_a_derivative_silently():
    names = {name for name in map(str, torch._C._dispatch_get_all_op_names()) if name.startswith("halfgnn::")}
    assert len(names) > len(OF_TOPOLOGIES)
    names -= {f"halfgnn::{name}" for name in OF_TOPOLOGIES}
    if _library.facts().get("abi") == "stable":  # that has no kernels for autograd
        operators = [getattr(raw, x.removeprefix("halfgnn::")).default for x in names]
        calls = {type(operator).__call__.__globals__["__name__"] for operator in operators}
        assert calls == {"halfgnn._stable_abi"}
    else:
        assert not [x for x in names if not torch._C._dispatch_has_kernel_for_dispatch_key(x, "Autograd")]


def test_opcheck_edge_network(g, device):
    """Its two operators, which are defined in Python."""
    src, dst, feat, weight, layer = (
        randn(n, 8, dtype=torch.float32, device=device) for n in (g.num_src, g.num_dst, g.num_edges, 8, 4)
    )
    operands = src, dst, feat, weight, *[None] * 7
    options = "silu", 0.01, 1e-5, "max", False, True, False, 16
    opcheck(raw.edge_network, *g.csc(), *operands, [layer], [None], *options)
    out, edges, position = raw.edge_network(*g.csc(), *operands, [layer], [None], *options)
    needs = [True, False, True, True, *[False] * 5]
    opcheck(raw.edge_network_backward, *g.csc(), *operands, [layer], [None], position, out, edges, needs, *options)


@pytest.mark.parametrize("name", ["gated_sum", "u_add_v_add_e", "u_dot_v", "copy_u_sum", "gather_rows"])
@pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad])
def test_forward_mode_derivatives_raise(g, name, mode, device):
    value, gate_src, gate_dst, gate_edge = gated_operands(g, (8,), torch.float32, device)
    with forward_ad.dual_level(), mode():
        value = forward_ad.make_dual(value, torch.ones_like(value))
        with pytest.raises(NotImplementedError, match="forward AD"):
            if name == "gather_rows":
                ops.gather_rows(value, torch.tensor([0, 1], device=device))
            else:
                rest = {
                    "gated_sum": (gate_src, gate_dst),
                    "u_add_v_add_e": (gate_dst, gate_edge),
                    "u_dot_v": (gate_dst,),
                }
                getattr(ops, name)(g, value, *rest.get(name, ()))


# ---- winners -------------------------------------------------------------------------------------


@pytest.mark.parametrize("idtype", IDTYPES)
@pytest.mark.parametrize("reduce", ["max", "min"])
def test_arg_is_the_winning_edge(g, reduce, idtype, device):
    g = g.int() if idtype == torch.int32 else g.long()
    x, y = support.spmm_operands(g, "add", (2, 1), (1, 3), torch.float16, device)
    out, arg = raw.gspmm(*g.csc(), "add", reduce, x, y)
    assert arg.dtype == idtype and arg.shape == out.shape
    message = reference.gsddmm(g, "add", x.float(), y.float(), "u", "e").half()
    dst = g.edges()[1].long()
    assert ((arg == -1) == (g.in_degrees() == 0).view(-1, 1, 1)).all() and (g.in_degrees() == 0).any()
    winners = arg.long().clamp(min=0)
    assert torch.equal(out, torch.where(arg < 0, 0, message.gather(0, winners)))
    assert (dst[winners] == torch.arange(g.num_dst, device=device).view(-1, 1, 1))[arg >= 0].all()


@pytest.mark.parametrize("idtype", IDTYPES)
@pytest.mark.parametrize("reduce", ["max", "min"])
def test_arg_of_rows_without_edges(reduce, idtype, device):
    """Beside rows that have edges, and far from them; with edge ids and without."""
    src, dst = torch.tensor([3, 1, 2, 0, 5, 4]), torch.tensor([70, 2, 2, 70, 0, 0])
    for order in (torch.arange(6), dst.argsort(stable=True)):
        g = Graph.from_edges(src[order].to(idtype), dst[order].to(idtype), num_src=6, num_dst=90).to(device)
        x = randn(6, 8, dtype=torch.float16, device=device)
        out, arg = raw.gspmm(*g.csc(), "copy_lhs", reduce, x, None)
        assert arg.dtype == torch.int32
        assert ((arg == -1) == (g.in_degrees() == 0).view(-1, 1)).all() and (out[arg < 0] == 0).all()
        message = x[g.edges()[0].long()]
        assert torch.equal(out, torch.where(arg < 0, 0, message.gather(0, arg.long().clamp(min=0))))


@pytest.mark.parametrize("reduce", ["sum", "mean"])
def test_sums_have_no_arg(g, reduce, device):
    _, arg = raw.gspmm(*g.csc(), "copy_lhs", reduce, torch.ones(g.num_src, 2, device=device), None)
    assert arg.numel() == 0 and arg.dtype == g.idtype
    _, arg = raw.segment_reduce(torch.tensor([0, 2], device=device), torch.ones(2, 2, device=device), reduce)
    assert arg.numel() == 0


def test_arg_of_segments_is_the_row(device):
    value = torch.tensor([[1.0, 9.0], [3.0, 9.0], [2.0, 0.0]], device=device)
    out, arg = raw.segment_reduce(torch.tensor([0, 2, 2, 3], device=device), value, "max")
    assert out.tolist() == [[3, 9], [0, 0], [2, 0]] and arg.tolist() == [[1, 0], [-1, -1], [2, 2]]


# ---- backward operators --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "op,reduce", [("mul", "sum"), ("mul", "mean"), ("div", "sum"), ("add", "max"), ("mul", "min"), ("copy_rhs", "sum")]
)
def test_gradient_of_edge_data_is_the_same_from_either_side(g, op, reduce, device):
    x, y = support.spmm_operands(g, op, (4, 8), (4, 1), torch.float16, device)
    out, arg = raw.gspmm(*g.csc(), op, reduce, x, y)
    grad = torch.randn_like(out)
    like = (x if x is not None else y).shape, y.shape
    results = []
    for by_src, side in ((True, g.csr()), (False, g.csc())):
        grad_lhs, grad_rhs = raw.gspmm_backward(
            *side, g.csc().indptr, by_src, op, reduce, grad, x, y, arg if arg.numel() else None, *like,
            torch.float16, torch.float16, False, True,
        )  # fmt: skip
        assert grad_lhs.numel() == 0
        results.append(grad_rhs)
    torch.testing.assert_close(*results, rtol=2 * torch.finfo(torch.float16).eps, atol=1e-5)


def test_unwanted_gradients_are_empty(g, device):
    x, y = support.spmm_operands(g, "mul", (4, 8), (4, 1), torch.float16, device)
    grad = torch.ones(g.num_dst, 4, 8, dtype=torch.float16, device=device)
    for need in [(True, False), (False, True), (True, True)]:
        grads = raw.gspmm_backward(*g.csr(), g.csc().indptr, True, "mul", "sum", grad, x, y, None, x.shape, y.shape,
                                   x.dtype, y.dtype, *need)  # fmt: skip
        for wanted, result, like in zip(need, grads, (x, y)):
            assert result.shape == (like.shape if wanted else (0,)) and result.dtype == like.dtype


@pytest.mark.parametrize("device,dtype", support.devices_and(HALVES))
def test_edge_softmax_backward_divides_by_the_sum_of_rounded_weights(dtype, device):
    """ds = a (da - sum(a da) / sum(a)), rounded once. Its sum over a row is zero, although the weights were rounded."""
    g = make_graph("skewed", torch.int32, device)
    indptr, _, edge_ids = g.csc()
    weights = raw.edge_softmax(indptr, edge_ids, randn(g.num_edges, 3, dtype=dtype, device=device))
    grad = (randn(g.num_edges, 3, dtype=torch.float64) + 10).to(dtype).to(device)
    a, da, host = weights.cpu().double(), grad.cpu().double(), g.to("cpu")
    dst = host.edges()[1].long()

    def row_sum(x):
        return reference.gspmm(host, "copy_rhs", "sum", None, x)[dst]

    truth = a * (da - row_sum(a * da) / row_sum(a))
    magnitude = a * (da.abs() + row_sum(a * da.abs()) / row_sum(a))
    got = raw.edge_softmax_backward(indptr, edge_ids, weights, grad)
    support.assert_accurate(got, support.Yardstick(truth, None, magnitude, 100))


# ---- arguments -----------------------------------------------------------------------------------


def test_topology_of_wrong_form(g, device):
    indptr, indices, _ = g.csc()
    x = torch.ones(g.num_src, 2, device=device)
    for bad, error in [
        ((indptr.long(), indices, None), TypeError),
        ((indptr.float(), indices, None), TypeError),
        ((indptr, indices, indices[1:]), ValueError),
        ((indptr.view(1, -1), indices, None), ValueError),
        ((indptr[:0], indices, None), ValueError),
        ((indptr, indices.repeat_interleave(2)[::2], None), ValueError),
    ]:
        with pytest.raises(error, match=r"indptr|indices|edge_ids"):
            raw.gspmm(*bad, "copy_lhs", "sum", x, None)


def skip_if_unchecked(device):
    if support.has_cuda_kernels(device):
        pytest.skip("CUDA looks at no index: that would need a synchronisation")


def test_coo_to_csr_refuses_rows_out_of_range(device):
    skip_if_unchecked(device)
    row = torch.tensor([0, 3], device=device)
    with pytest.raises(ValueError, match=r"row holds 3.*\[0, 3\)"):
        raw.coo_to_csr(row, row, 3)
    with pytest.raises(ValueError, match="row holds -1"):
        raw.coo_to_csr(row - 1, row, 3)
    with pytest.raises(ValueError, match="row has shape"):
        raw.coo_to_csr(row, row[:1], 9)


def test_transpose_refuses_what_would_write_out_of_bounds(device):
    skip_if_unchecked(device)
    indptr, indices = torch.tensor([0, 1, 2], device=device), torch.tensor([0, 3], device=device)
    with pytest.raises(ValueError, match="indices holds 3"):
        raw.transpose(indptr, indices, None, 3)
    with pytest.raises(ValueError, match="indptr"):
        raw.transpose(torch.tensor([0, 1, 3], device=device), indices, None, 4)
    with pytest.raises(ValueError, match="indptr"):
        raw.transpose(torch.tensor([0, 3, 2], device=device), indices, None, 4)


def test_every_operator_has_a_fake_kernel():
    """Every operator of the library can be traced."""
    names = [
        s.name.removeprefix("halfgnn::") for s in torch._C._jit_get_all_schemas() if s.name.startswith("halfgnn::")
    ]
    assert {"gspmm", "gsddmm", "edge_softmax", "segment_reduce", "coo_to_csr", "transpose"} <= set(names)
    for name in names:
        op = getattr(raw, name).default
        assert torch._C._dispatch_has_kernel_for_dispatch_key(op._schema.name, "Meta"), name


# ---- sizes and types are checked, also of operators that only halfgnn.ops calls ---------------------


@pytest.mark.parametrize("name, call", [
    ("indices", lambda g: raw.gspmm(g.csc().indptr, None, None, "copy_lhs", "sum", torch.ones(g.num_src, 8), None)),
    ("indices", lambda g: raw.reorder(*g.csc()[:2], g.csr().indptr, None)),
    ("indices", lambda g: raw.transpose(g.csc().indptr, None, None, g.num_src)),
    ("logits", lambda g: raw.coo_softmax(g.csc().indices, None, g.num_src)),
    ("feat", lambda g: raw.coo_sum(g.csc().indices, g.csc().indices, None, None, "copy_lhs", "sum", g.num_src)),
])  # fmt: skip
@pytest.mark.skipif(support.SIMULATED, reason="some of these operators are the CPU's own")
def test_none_for_a_tensor_that_is_not_optional(name, call):
    is_stable = _library.facts().get("abi") == "stable"  # whose undefined tensors answer no question
    errors, message = ((TypeError, ValueError, RuntimeError), "") if is_stable else (TypeError, f"{name} is None")
    with pytest.raises(errors, match=message):
        call(make_graph("random", torch.int64))


def gspmm_backward_arguments(**changes):
    """A valid call of gspmm_backward (mul, max: it reads everything), with some arguments changed."""
    g = make_graph("bipartite", torch.int64)
    x, y = randn(g.num_src, 2, 8, dtype=torch.float32), randn(g.num_edges, 2, 1, dtype=torch.float32)
    out, arg = raw.gspmm(*g.csc(), "mul", changes.get("reduce", "max"), x, y)
    indptr, indices, edge_ids = g.csr()
    arguments = {
        "indptr": indptr, "indices": indices, "edge_ids": edge_ids, "in_indptr": g.csc().indptr, "by_src": True, "op": "mul",
        "reduce": "max", "grad": torch.ones_like(out), "lhs": x, "rhs": y, "arg": arg, "lhs_shape": x.shape,
        "rhs_shape": y.shape, "lhs_dtype": x.dtype, "rhs_dtype": y.dtype, "need_lhs": True, "need_rhs": True,
        "short_rows": False, "in_indices": g.csc().indices, "in_edge_ids": g.csc().edge_ids,
    }  # fmt: skip
    return arguments | {
        name: change(arguments[name]) if callable(change) else change for name, change in changes.items()
    }


def test_gspmm_backward_accepts_what_fits():
    for grad in raw.gspmm_backward(*gspmm_backward_arguments().values()):
        assert grad.isfinite().all()


@pytest.mark.parametrize("name,change,message", [
    ("lhs_shape", lambda s: (s[0] - 1, *s[1:]), "lhs"),
    ("rhs_shape", lambda s: (s[0] - 1, *s[1:]), "rhs"),
    ("lhs_shape", (), "shape"),
    ("lhs_dtype", torch.float16, "lhs has dtype"),
    ("rhs_dtype", torch.float64, "rhs has dtype"),
    ("grad", lambda t: t.double(), "grad has dtype"),
    ("grad", lambda t: t[1:], "grad has shape"),
    ("grad", lambda t: t[..., 1:], "grad has shape"),
    ("arg", lambda t: t[1:], "arg has shape"),
    ("arg", lambda t: t.short(), "arg has dtype"),
    ("arg", None, "arg is None"),
    ("in_indptr", lambda t: t[1:], "grad has shape"),
    ("in_indptr", lambda t: t[:0], "in_indptr has shape"),
    ("in_indptr", lambda t: t.int(), "in_indptr has dtype"),
    ("in_indptr", lambda t: t.repeat_interleave(2)[::2], "in_indptr is not contiguous"),
    ("lhs", None, "lhs is None"),
    ("rhs", None, "rhs is None"),
    ("lhs", lambda t: t[..., 1:], "lhs has shape"),
    ("edge_ids", lambda t: t[1:], "edge_ids has shape"),
    ("in_indices", lambda t: t[1:], "indices has shape"),
    ("in_indices", lambda t: t.int(), "indices has dtype"),
    ("op", "copy_lhs", "need_rhs is True; expected False"),
    ("op", "copy_rhs", "need_lhs is True; expected False"),
    ("in_edge_ids", torch.zeros(3, dtype=torch.int64), "edge_ids has shape"),
])  # fmt: skip
@pytest.mark.parametrize("reduce", ["max", "sum"])
def test_gspmm_backward_checks(name, change, message, reduce):
    if name == "arg" and reduce == "sum":
        pytest.skip("a sum has no winners to read")
    arguments = gspmm_backward_arguments(reduce=reduce)
    value = arguments[name]
    arguments[name] = change(value) if callable(change) else change
    with pytest.raises((ValueError, TypeError), match=message):
        raw.gspmm_backward(*arguments.values())


@pytest.mark.parametrize("name,change,message", [
    ("rhs", None, "rhs is None"),
    ("rhs", lambda t: t[..., 1:], "rhs has shape"),
    ("rhs", lambda t: t.double(), r"rhs (has dtype )?torch.float64"),
    ("lhs_shape", lambda s: (s[0] + 1, *s[1:]), "lhs"),
    ("lhs_shape", (), "shape"),
    ("grad", lambda t: t[1:], "grad has shape"),
    ("dtype", torch.float64, "dtype"),
    ("side", "both", "side is"),
    ("by_src", False, "by_src|rows"),
])  # fmt: skip
def test_gsddmm_backward_checks(name, change, message):
    g = make_graph("bipartite", torch.int64)
    x, y = randn(g.num_src, 2, 8, dtype=torch.float32), randn(g.num_dst, 2, 8, dtype=torch.float32)
    indptr, indices, edge_ids = g.csr()
    arguments = {
        "indptr": indptr, "indices": indices, "edge_ids": edge_ids, "by_src": True, "op": "dot", "side": "lhs",
        "grad": torch.ones(g.num_edges, 2, 1), "lhs": x, "rhs": y, "lhs_target": "u", "rhs_target": "v", "lhs_shape": x.shape,
        "rhs_shape": y.shape, "dtype": torch.float32,
    }  # fmt: skip
    assert raw.gsddmm_backward(*arguments.values()).shape == x.shape
    value = arguments[name]
    arguments[name] = change(value) if callable(change) else change
    with pytest.raises((ValueError, TypeError), match=message):
        raw.gsddmm_backward(*arguments.values())


@pytest.mark.parametrize(
    "offsets,arg_rows,num_rows", [([0, 2, 2**40], 2, 5), ([0, 3, 2], 2, 5), ([0, 2, 5], 1, 5), ([0, 2, 5], 2, 6)]
)
def test_segment_reduce_backward_checks(offsets, arg_rows, num_rows):
    # On CUDA an assertion in a kernel checks the offsets.
    with pytest.raises((ValueError, RuntimeError) if support.SIMULATED else ValueError):
        raw.segment_reduce_backward(
            torch.tensor(offsets), torch.ones(2, 3), torch.zeros(arg_rows, 3, dtype=torch.int64), "max", num_rows
        )


@pytest.mark.parametrize("reduces", ["", "max,", ",max", "max,mean,max", "max, mean", "maximum"])
def test_copy_u_reduce_refuses_names(g, reduces):
    with pytest.raises(ValueError, match="reduces"):
        raw.copy_u_reduce(*g.csc(), torch.randn(g.num_src, 3), reduces, 1e-5)
