"""Errors of classic mistakes say what to type instead."""

import pytest
import torch

from halfgnn import Graph, ops
from tests.support import make_graph

N_SRC, N_DST = 30, 40


@pytest.fixture
def g():
    return make_graph("bipartite", torch.int64)


def u(*shape, dtype=torch.float32):
    return torch.ones(N_SRC, *shape, dtype=dtype)


def v(*shape, dtype=torch.float32):
    return torch.ones(N_DST, *shape, dtype=dtype)


def ids(*values):
    return torch.tensor(values)


def test_tensors_of_other_libraries(g):
    for wrong, remedy in [
        (u(2).numpy(), r"x is a ndarray; expected a torch.Tensor: torch.from_numpy\(x\)"),
        (u(2).tolist(), r"x is a list; expected a torch.Tensor: torch.tensor\(x\)"),
        (g, "x is a Graph; expected a torch.Tensor$"),
    ]:
        with pytest.raises(TypeError, match=remedy):
            ops.copy_u_sum(g, wrong)


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool])
def test_integer_features(g, dtype):
    x = u(4, dtype=dtype)
    for call in (ops.copy_u_sum, ops.copy_u_mean, ops.copy_u):
        with pytest.raises(TypeError, match=rf"x has dtype {dtype}; expected torch.float16.*: x.float\(\)$"):
            call(g, x)
    with pytest.raises(TypeError, match=r"expected torch.float16.*float64$"):
        ops.copy_u_sum(g, x.to(torch.complex64))


def test_heads_that_are_joined(g):
    query, key = v(2, 4), u(8)
    with pytest.raises(ValueError, match=r"key has shape \(30, 8\); expected .*: key.view\(30, heads, dim\)"):
        ops.dot_attention(g, query, key, key)
    key = key.view(30, 2, 4)
    with pytest.raises(ValueError, match=r"query has shape \(40, 8\); .*: query.view\(40, 2, 4\)"):
        ops.dot_attention(g, query.flatten(1), key, key)
    with pytest.raises(ValueError, match=r"value has shape \(30, 7\); expected .* = \(30, 2, 4\)$"):
        ops.dot_attention(g, query, key, u(7))


def test_names_that_are_not_there():
    for name, similar in [
        ("u_mul_e_add", "; did you mean u_mul_e_sum or "),
        ("copy_u_avg", "; did you mean copy_u_mean or "),
        ("gat_atention", "; did you mean gat_attention or "),
        ("something", "$"),
        ("__path_", "$"),
    ]:
        with pytest.raises(AttributeError, match=f"module 'halfgnn.ops' has no attribute '{name}'{similar}"):
            getattr(ops, name)
    assert not hasattr(ops, "spmm_sum") and set(ops.__all__) <= set(dir(ops))


def test_a_number_that_is_a_tensor():
    with pytest.raises(TypeError, match=r"num_src is a tensor of shape \(300,\); expected an integer"):
        Graph.from_edges(ids(0), ids(0), num_src=torch.zeros(300))
