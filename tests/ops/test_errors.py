"""Wrong arguments raise the right exception, whose message names the argument, its value and what was expected."""

import pytest
import torch

from halfgnn import Graph, ops
from tests import support
from tests.support import make_graph, randn

N_SRC, N_DST, E = 30, 40, 300


@pytest.fixture
def g(device):
    return make_graph("bipartite", torch.int64, device)


def u(*shape, dtype=torch.float16, device="cpu"):
    return torch.ones(N_SRC, *shape, dtype=dtype, device=device)


def v(*shape, dtype=torch.float16, device="cpu"):
    return torch.ones(N_DST, *shape, dtype=dtype, device=device)


def e(*shape, dtype=torch.float16, device="cpu"):
    return torch.ones(E, *shape, dtype=dtype, device=device)


# ---- the graph ----------------------------------------------------------------------------------


def test_what_stands_for_no_graph():
    """The error says how to make a Graph of it."""
    src, dst = torch.tensor([0, 1]), torch.tensor([1, 2])
    sparse = torch.sparse_coo_tensor(torch.stack([dst, src]), torch.ones(2), (3, 3), check_invariants=True)
    cases = [
        (torch.stack([src, dst]), "g is a Tensor; .*: halfgnn.Graph.from_edge_index"),
        ((src, dst), "g is a tuple; .*: halfgnn.Graph.from_edges"),
        (Graph.from_edges(src, dst, sort=True), r"g is a tuple; .*, which is g\[0\]: a constructor with sort=True"),
        (sparse, "g is a Tensor; .*: halfgnn.Graph.from_torch_sparse"),
        (torch.ones(3, 2), r"g is a Tensor; .*: the order of arguments is \(g, features\)$"),
        (torch.zeros(3, 2, dtype=torch.int64), r"g is a Tensor; .*: halfgnn.Graph.from_edge_index\(g.t\(\), num"),
        (torch.stack([src, dst]).numpy(), r"g is a ndarray; .*from_edge_index\(torch.from_numpy\(g\), num_nodes=N\)"),
        ([[0, 1], [1, 2]], r"g is a list; .*: halfgnn.Graph.from_edge_index\(torch.tensor\(g\), num_nodes=N\)"),
    ]
    for wrong, match in cases:
        with pytest.raises(TypeError, match=match):
            ops.copy_u_sum(wrong, torch.ones(3, 2))


def test_a_scipy_matrix_is_no_graph():
    scipy = pytest.importorskip("scipy.sparse")
    with pytest.raises(TypeError, match=r"g is a .*: halfgnn.Graph.from_scipy\(g\) makes one"):
        ops.copy_u_sum(scipy.eye(3, format="csr"), torch.ones(3, 2))


# ---- shapes --------------------------------------------------------------------------------------


def test_wrong_number_of_rows(g, device):
    x, y, w = u(4, device=device), v(4, device=device), e(4, device=device)
    for call, name, got, expected in [
        (lambda: ops.u_mul_e_sum(g, x[1:], w), "x", 29, 30),
        (lambda: ops.u_mul_e_sum(g, x, w[1:]), "y", 299, 300),
        (lambda: ops.u_mul_e_sum(g, w, x), "(x|y)", "(300|30)", "(300|30)"),
        (lambda: ops.copy_u_max(g, y), "x", 40, 30),
        (lambda: ops.copy_e_mean(g, x), "x", 30, 300),
        (lambda: ops.u_dot_v(g, x, x), "y", 30, 40),
        (lambda: ops.v_sub_u(g, x, x), "x", 30, 40),
        (lambda: ops.e_add_v(g, y, y), "x", 40, 300),
        (lambda: ops.copy_v(g, x), "x", 30, 40),
        (lambda: ops.gspmm(g, "mul", "sum", x[1:], w), "lhs_data", 29, 30),
        (lambda: ops.gsddmm(g, "dot", x, x), "rhs_data", 30, 40),
        (lambda: ops.edge_softmax(g, y), "logits", 40, 300),
        (lambda: ops.edge_softmax(g, w[:0], "src"), "logits", 0, 300),
    ]:
        with pytest.raises(ValueError, match=rf"^{name} .*\(?\b{got}\b.*{expected}"):
            call()


def test_scalar_operands(g, device):
    one = torch.ones((), device=device)
    for call in (
        lambda: ops.copy_u_sum(g, one),
        lambda: ops.u_mul_e_sum(g, u(2, dtype=torch.float32, device=device), one),
        lambda: ops.edge_softmax(g, one),
        lambda: ops.u_dot_v(g, one, v(2, device=device)),
        lambda: ops.segment_reduce(torch.tensor([1], device=device), one),
    ):
        with pytest.raises(ValueError, match=r"^(x|y|logits|value) has"):
            call()


@pytest.mark.parametrize("lhs,rhs", [((4,), (3,)), ((4, 8), (4,)), ((2, 3), (3, 2)), ((0,), (2,))])
def test_shapes_that_do_not_broadcast(g, lhs, rhs, device):
    x, y, w = u(*lhs, device=device), v(*rhs, device=device), e(*rhs, device=device)
    for call in (
        lambda: ops.u_mul_e_sum(g, x, w),
        lambda: ops.u_add_e_max(g, x.float().requires_grad_(), w.float()),
        lambda: ops.u_div_v(g, x, y),
        lambda: ops.e_sub_u(g, w, x),
    ):
        with pytest.raises(ValueError, match=rf"^x and y have .*{', '.join(map(str, lhs))}.*broadcast"):
            call()


def test_dot_of_different_lengths(g, device):
    for lhs, rhs in [((4,), (8,)), ((4,), (1,)), ((3, 4), ()), ((), (8,))]:
        with pytest.raises(ValueError, match=r"^x and y have .*last dimension"):
            ops.u_dot_v(g, u(*lhs, device=device), v(*rhs, device=device))


# ---- dtypes --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "dtype", [torch.int32, torch.int64, torch.complex64, torch.bool, torch.uint8, torch.float8_e4m3fn]
)
def test_unsupported_dtype(g, dtype, device):
    x, w = (t.to(dtype) for t in (u(4, device=device), e(1, device=device)))
    named = str(dtype).removeprefix("torch.")
    c_name = {"int32": "Int", "int64": "Long", "complex64": "ComplexFloat", "bool": "Bool", "uint8": "Byte",
              "float8_e4m3fn": "Float8_e4m3fn"}[named]  # fmt: skip
    for call in (
        lambda: ops.copy_u_sum(g, x),
        lambda: ops.u_mul_e_max(g, x, w),
        lambda: ops.u_add_v(g, x, x[:1].expand(N_DST, 4)),
        lambda: ops.edge_softmax(g, w),
        lambda: ops.segment_reduce(torch.tensor([E], device=device), w),
    ):
        with pytest.raises(TypeError, match=rf"^(x|y|logits|value) .*({named}|{c_name}).*expected.*float16"):
            call()


@pytest.mark.parametrize("left,right", [
    (torch.float16, torch.bfloat16), (torch.bfloat16, torch.float16), (torch.float32, torch.float64),
    (torch.float64, torch.float32), (torch.float16, torch.float64), (torch.float64, torch.bfloat16),
])  # fmt: skip
def test_mixed_dtypes(g, left, right, device):
    if not (support.supports(device, left) and support.supports(device, right)):
        pytest.skip("float64 is for the CPU")
    for call in (
        lambda: ops.u_mul_e_sum(g, u(4, dtype=left, device=device), e(1, dtype=right, device=device)),
        lambda: ops.u_add_v(g, u(4, dtype=left, device=device), v(4, dtype=right, device=device)),
    ):
        with pytest.raises(
            TypeError,
            match=r"^x has dtype [\w.]+ and y [\w.]+; expected equal dtypes, or torch.float32 with torch.float16",
        ):
            call()


def test_out_dtype_of_mixed_types(g, device):
    """It is the dtype that they have by default, or float32."""
    x, wide = u(4, device=device), u(4, dtype=torch.float32, device=device)
    for call in (
        lambda: ops.u_mul_e_sum(g, wide, e(4, device=device), out_dtype=torch.float16),
        lambda: ops.u_mul_v(g, x, v(4, dtype=torch.float32, device=device), out_dtype=torch.float16),
    ):
        with pytest.raises(TypeError, match=r"out_dtype is torch.float16; expected torch.float32"):
            call()


def test_out_dtype(g, device):
    x = u(4, device=device)
    for wrong in (torch.bfloat16, torch.float64, torch.int32):
        with pytest.raises(TypeError, match=r"out_dtype is .*expected"):
            ops.copy_u_sum(g, x, out_dtype=wrong)
        with pytest.raises(TypeError, match=r"out_dtype is .*expected"):
            ops.gsddmm(g, "add", x, v(4, device=device), out_dtype=wrong)
    with pytest.raises(TypeError, match=r"out_dtype is .*expected"):
        ops.copy_u_sum(g, x.float(), out_dtype=torch.float16)


def test_out_dtype_of_float64():
    with pytest.raises(TypeError, match="out_dtype"):
        ops.gspmm(make_graph("bipartite"), "copy_lhs", "sum", u(4, dtype=torch.float64), None, out_dtype=torch.float32)


# ---- names, operands, devices --------------------------------------------------------------------


def test_unknown_names(g, device):
    x, y, w = u(4, device=device), v(4, device=device), e(4, device=device)
    seglen = torch.tensor([E], device=device)
    for call, match in [
        (lambda: ops.gspmm(g, "pow", "sum", x, w), "op is 'pow'.*add.*copy_rhs"),
        (lambda: ops.gspmm(g, "dot", "sum", x, w), "op is 'dot'.*add.*copy_rhs"),
        (lambda: ops.gspmm(g, "mul", "prod", x, w), "reduce.* is 'prod'.*sum.*min"),
        (lambda: ops.gsddmm(g, "pow", x, y), "op is 'pow'.*dot"),
        (lambda: ops.gsddmm(g, "add", x, y, lhs_target="w"), "lhs_target is 'w'.*u, v or e"),
        (lambda: ops.gsddmm(g, "add", x, y, rhs_target="x"), "rhs_target is 'x'.*u, v or e"),
        (lambda: ops.edge_softmax(g, w, norm_by="both"), "norm_by is 'both'.*dst.*src"),
        (lambda: ops.segment_reduce(seglen, w, "prod"), "reduce.* is 'prod'.*sum.*min"),
    ]:
        with pytest.raises(ValueError, match=match):
            call()


def test_missing_operand(g, device):
    x, w = u(4, device=device), e(4, device=device)
    for call, name in [
        (lambda: ops.gspmm(g, "mul", "sum", None, w), "lhs_data"),
        (lambda: ops.gspmm(g, "mul", "sum", x, None), "rhs_data"),
        (lambda: ops.gspmm(g, "copy_lhs", "sum", None, w), "lhs_data"),
        (lambda: ops.gspmm(g, "copy_rhs", "sum", x, None), "rhs_data"),
        (lambda: ops.gsddmm(g, "dot", x, None), "rhs_data"),
        (lambda: ops.gsddmm(g, "copy_lhs", None, x), "lhs_data"),
        (lambda: ops.u_mul_e_sum(g, None, w), "x"),
        (lambda: ops.u_dot_v(g, x, None), "y"),
        (lambda: ops.copy_e_max(g, None), "x"),
        (lambda: ops.copy_v(g, None), "x"),
        (lambda: ops.edge_softmax(g, None), "logits"),
    ]:
        with pytest.raises((TypeError, ValueError), match=f"^{name} is None"):
            call()


def test_unused_operand_is_ignored(g, device):
    """As in DGL, copy_lhs ignores rhs_data."""
    x = u(4, device=device)
    assert torch.equal(ops.gspmm(g, "copy_lhs", "sum", x, x.int()), ops.copy_u_sum(g, x))
    assert torch.equal(ops.gsddmm(g, "copy_lhs", x, x.int()), ops.copy_u(g, x))


def test_arguments_that_are_no_tensors(g):
    for call in (
        lambda: ops.copy_u_sum(g, [1.0] * N_SRC),
        lambda: ops.edge_softmax(g, 3),
        lambda: ops.segment_reduce([E], e()),
    ):
        with pytest.raises(TypeError, match=r"^(x|logits|seglen) is a (list|int).*Tensor"):
            call()


def test_graph_of_another_kind():
    for wrong in (None, "g", torch.zeros(2, 3)):
        with pytest.raises(TypeError, match=r"g is a .*Graph"):
            ops.copy_u_sum(wrong, u(4))


def test_mixed_devices(g, device):
    x, w = u(4, device=device), e(4, device=device)
    for call, name in [
        (lambda: ops.copy_u_sum(g, x.to("meta")), "x"),
        (lambda: ops.u_mul_e_sum(g, x, w.to("meta")), "y"),
        (lambda: ops.u_dot_v(g, x, v(4, device="meta")), "y"),
        (lambda: ops.edge_softmax(g, w.to("meta")), "logits"),
    ]:
        with pytest.raises(ValueError, match=rf"{name} is on meta.*{device}"):
            call()
    with pytest.raises(ValueError, match=r"is on .*meta"):
        ops.segment_reduce(torch.tensor([E], device=device), w.to("meta"))
    with pytest.raises(ValueError, match=r"dst is on meta.*src"):
        Graph.from_edges(
            torch.zeros(3, dtype=torch.int64, device=device), torch.zeros(3, dtype=torch.int64, device="meta")
        )


def test_a_meta_tensor_among_others_of_a_raw_operator(g, device):
    """A meta tensor would take the call to the fake kernel, whose result is never computed."""
    raw, (indptr, indices, edge_ids) = torch.ops.halfgnn, g.csc()
    x, w, meta = u(2, 4, device=device), e(2, 1, device=device), {"device": "meta"}
    query, logits = v(2, 4, device=device), v(2, device=device)
    seglen = torch.tensor([0, E], device=device)
    for call, name in [
        (lambda: raw.coo_to_csr(indices, indices.to("meta"), N_SRC), "col"),
        (lambda: raw.transpose(indptr, indices, edge_ids.to("meta"), N_SRC), "edge_ids"),
        (lambda: raw.gspmm(*g.csc(), "mul", "sum", x, e(2, 1, **meta)), "rhs"),
        (lambda: raw.gspmm(*g.csc(), op="mul", reduce="sum", lhs=u(2, 4, **meta), rhs=w), "lhs"),
        (lambda: raw.gsddmm(*g.csc(), "dot", x, v(2, 4, **meta), "u", "v"), "rhs"),
        (lambda: raw.edge_softmax(indptr, edge_ids, e(2, **meta)), "logits"),
        (lambda: raw.segment_reduce(seglen.to("meta"), w, "sum"), "value"),
        (lambda: raw.gat_attention(*g.csc(), x, u(2, **meta), logits, None, 0.2, 0.0, None, False, False), "attn_src"),
        (lambda: raw.gatv2_attention(*g.csc(), x, v(2, 4, **meta), x[0], 0.2, 0.0, None, False, False), "feat_dst"),
        (lambda: raw.dot_attention(*g.csc(), query, u(2, 4, **meta), x, 0.2, 0.0, None, False, False), "key"),
    ]:
        with pytest.raises(ValueError, match=rf"{name} is on (meta|{device}).*; expected the device of"):
            call()
    out, arg = raw.gspmm(*(ids.to("meta") for ids in g.csc()), "mul", "max", x.to("meta"), w.to("meta"))
    assert out.shape == (N_DST, 2, 4) and out.device == arg.device == torch.device("meta")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_cpu_graph_with_cuda_features():
    with pytest.raises(ValueError, match=r"^x is on cuda.*cpu"):
        ops.copy_u_sum(make_graph("bipartite"), u(4, device="cuda"))


# ---- segments ------------------------------------------------------------------------------------


@pytest.mark.parametrize("lengths", [[2, 2], [2, 4], [], [6, -1], [-1, 6]])
def test_segments_that_do_not_cover_the_rows(lengths, device):
    if device == "cuda":
        pytest.skip("an assertion of the kernel fails, and the CUDA context is lost")
    with pytest.raises(RuntimeError if support.SIMULATED else ValueError, match="seglen"):
        ops.segment_reduce(torch.tensor(lengths, dtype=torch.int64, device=device), torch.ones(5, 2, device=device))


def test_seglen_itself(device):
    value = torch.ones(5, 2, device=device)
    with pytest.raises(TypeError, match=r"seglen .*float32.*torch.int32 or torch.int64"):
        ops.segment_reduce(torch.tensor([5.0], device=device), value)
    with pytest.raises(ValueError, match=r"seglen has shape \(1, 1\)"):
        ops.segment_reduce(torch.tensor([[5]], device=device), value)


def test_sparse_segments(device):
    seglen, value = torch.tensor([2, 3], device=device), torch.ones(5, 2, device=device)
    with pytest.raises(TypeError, match=r"value has layout torch.sparse_coo.*dense"):
        ops.segment_reduce(seglen, value.to_sparse())
    with pytest.raises(TypeError, match=r"seglen has layout torch.sparse_coo.*dense"):
        ops.segment_reduce(seglen.to_sparse(), value)


# ---- derivatives ---------------------------------------------------------------------------------


def test_raw_operators_have_no_derivative(g, device):
    """They raise an error and are not silently zero."""
    x = randn(N_SRC, 4, dtype=torch.float32, device=device).requires_grad_()
    out, _ = torch.ops.halfgnn.gspmm(*g.csc(), "copy_lhs", "sum", x, None)
    with pytest.raises(RuntimeError, match=r"derivative.*not implemented"):
        out.sum().backward()


# ---- graphs --------------------------------------------------------------------------------------


def ids(*values, dtype=torch.int64, device="cpu"):
    return torch.tensor(values, dtype=dtype, device=device)


def test_edges_out_of_range(device):
    src, dst = ids(0, 1, 2, device=device), ids(0, 1, 5, device=device)
    for kwargs, match in [
        ({"num_src": 2}, r"src holds 2.*\[0, 2\)"),
        ({"num_dst": 5}, r"dst holds 5.*\[0, 5\)"),
        ({"num_src": 0, "num_dst": 6}, r"src holds 2.*\[0, 0\)"),
    ]:
        with pytest.raises(ValueError, match=match):
            Graph.from_edges(src, dst, **kwargs)
    with pytest.raises(ValueError, match="src holds -1"):
        Graph.from_edges(src - 1, dst)
    with pytest.raises(ValueError, match="dst holds -1"):
        Graph.from_edges(src, dst - 1)
    edge_index = torch.stack([src, dst])
    for kwargs, match in [
        ({"num_nodes": 4}, r"edge_index\[1\] holds 5; expected indices in \[0, 4\), num_nodes of them"),
        ({"num_src": 2, "num_nodes": 9}, r"edge_index\[0\] holds 2; expected indices in \[0, 2\), num_src of them"),
        ({"num_src": 9, "num_dst": 4}, r"edge_index\[1\] holds 5; expected indices in \[0, 4\), num_dst of them"),
    ]:
        with pytest.raises(ValueError, match=match):
            Graph.from_edge_index(edge_index, **kwargs)
    with pytest.raises(ValueError, match=r"edge_index has shape \(3, 2\); expected \(2, E\): pass edge_index.t\(\)"):
        Graph.from_edge_index(edge_index.t())


def test_edges_of_wrong_form(device):
    src = ids(0, 1, 2, device=device)
    for call, error, match in [
        (lambda: Graph.from_edges(src, src[:2]), ValueError, r"\(3,\).*\(2,\).*equal"),
        (lambda: Graph.from_edges(src, src.int()), TypeError, "dst has dtype torch.int32.*torch.int64"),
        (lambda: Graph.from_edges(src.float(), src), TypeError, "src has dtype torch.float32.*int32 or torch.int64"),
        (lambda: Graph.from_edges(src.short(), src.short()), TypeError, "src has dtype torch.int16"),
        (
            lambda: Graph.from_edges(src.view(3, 1), src.view(3, 1)),
            ValueError,
            r"src has shape \(3, 1\).*one dimension",
        ),
        (lambda: Graph.from_edges([0, 1], src), TypeError, "src is a list.*Tensor"),
        (lambda: Graph.from_edges(src, src, num_src=-1), ValueError, "num_src is -1"),
        (lambda: Graph.from_edges(src, src, num_dst=2.5), TypeError, "num_dst is 2.5.*integer"),
        (lambda: Graph.from_edge_index([[0, 1], [1, 0]]), TypeError, "edge_index is a list; expected a torch.Tensor"),
        (lambda: Graph(src, src), TypeError, r"num_src is a Tensor; .*Graph.from_edges\(src, dst\)"),
        (lambda: Graph.from_edge_index(src), ValueError, r"edge_index has shape \(3,\).*\(2, E\)"),
        (lambda: Graph.from_edge_index(src.expand(3, 3)), ValueError, r"edge_index has shape \(3, 3\).*\(2, E\)"),
        (lambda: Graph.from_edge_index([[0], [1]]), TypeError, "edge_index is a list.*Tensor"),
        (
            lambda: Graph.from_edge_index(src.expand(2, 3).float()),
            TypeError,
            "edge_index has dtype torch.float32.*int64",
        ),
        (
            lambda: Graph.from_edge_index(src.expand(2, 3).to_sparse()),
            TypeError,
            "edge_index has layout torch.sparse_coo",
        ),
        (lambda: Graph.from_torch_sparse([[0]]), TypeError, "tensor is a list.*Tensor"),
        (
            lambda: Graph.from_torch_sparse(src.expand(1, 2, 3).to_sparse()),
            ValueError,
            r"tensor has shape \(1, 2, 3\).*two",
        ),
    ]:
        with pytest.raises(error, match=match):
            call()


@pytest.mark.parametrize("build", [Graph.from_csc, Graph.from_csr])
def test_compressed_of_wrong_form(build, device):
    indices = ids(0, 1, 2, 0, device=device)
    good = ids(0, 2, 4, device=device)
    columns = "num_src" if build == Graph.from_csc else "num_dst"
    assert build(good, indices).num_edges == 4
    for call, error, match in [
        (lambda: build(ids(1, 2, 4, device=device), indices), ValueError, "indptr runs from 1 to 4.*0 to 4"),
        (lambda: build(ids(0, 2, 3, device=device), indices), ValueError, "indptr runs from 0 to 3.*0 to 4"),
        (lambda: build(ids(0, 2, 5, device=device), indices), ValueError, "indptr runs from 0 to 5.*0 to 4"),
        (lambda: build(ids(0, 3, 2, 4, device=device), indices), ValueError, "indptr falls from 3 to 2 at row 1"),
        (lambda: build(ids(0, 7, 4, device=device), indices), ValueError, "indptr falls from 7 to 4 at row 1"),
        (lambda: build(ids(device=device), indices), ValueError, "indptr is empty"),
        (lambda: build(good, indices - 1), ValueError, "indices holds -1"),
        (lambda: build(good, indices, **{columns: 2}), ValueError, r"indices holds 2.*\[0, 2\)"),
        (lambda: build(good, indices.int()), TypeError, "indices has dtype torch.int32.*indptr.*torch.int64"),
        (lambda: build(good.float(), indices), TypeError, "indptr has dtype torch.float32"),
        (lambda: build(good, indices.view(2, 2)), ValueError, r"indices has shape \(2, 2\).*one dimension"),
        (lambda: build(good, indices, ids(0, 1, 2, device=device)), ValueError, r"edge_ids has shape \(3,\).*\(4,\)"),
        (lambda: build(good, indices, ids(0, 1, 2, 2, device=device)), ValueError, "edge_ids misses 3.*permutation"),
        (lambda: build(good, indices, ids(0, 1, 2, 4, device=device)), ValueError, r"edge_ids holds 4.*\[0, 4\)"),
        (lambda: build(good, indices, ids(0, 1, -1, 2, device=device)), ValueError, "edge_ids holds -1"),
        (lambda: build(good, indices, indices.int()), TypeError, "edge_ids has dtype torch.int32"),
    ]:
        with pytest.raises(error, match=match):
            call()


def test_too_large_for_int32(device):
    """Counts are compared with the index type before anything of that size is allocated."""
    small = ids(0, 1, dtype=torch.int32, device=device)
    big = 2**31 + 5
    with pytest.raises(ValueError, match=rf"num_src is {big}.*int32.*int64"):
        Graph.from_edges(small, small, num_src=big)
    with pytest.raises(ValueError, match=rf"num_dst is {big}.*int32.*int64"):
        Graph.from_edges(small, small, num_dst=big)
    with pytest.raises(ValueError, match=rf"num_src is {big}.*int32"):
        Graph.from_csc(ids(0, 2, dtype=torch.int32, device=device), small, num_src=big)
    with pytest.raises(ValueError, match=rf"num_dst is {big}.*int32"):
        Graph.from_csr(ids(0, 2, dtype=torch.int32, device=device), small, num_dst=big)
    wide = Graph.from_csc(ids(0, 2, device=device), small.long(), num_src=big)
    assert wide.num_src == big
    with pytest.raises(ValueError, match=rf"num_src is {big}.*int32"):
        wide.int()


def test_graph_needs_a_side():
    with pytest.raises(ValueError, match="csc and csr"):
        Graph(3, 3)


def test_foreign_matrices():
    with pytest.raises(TypeError, match=r"layout torch.strided"):
        Graph.from_torch_sparse(torch.ones(2, 2))
    with pytest.raises(TypeError, match=r"tensor is a list; expected a torch\.Tensor"):
        Graph.from_torch_sparse([[0, 1]])
    with pytest.raises(ValueError, match=r"tensor has shape \(2,\); expected two dimensions"):
        Graph.from_torch_sparse(torch.ones(2))
