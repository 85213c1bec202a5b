"""Results that are too large for the caches are stored past them. Their values are those of small results."""

import pytest
import torch

from halfgnn import Graph, ops

DIM, EDGES = 64, 1 << 17  # 16 MB in half precision


def randn(*shape, dtype):
    return torch.randn(*shape).to(dtype)


@pytest.fixture(scope="module")
def ends():
    torch.manual_seed(1)
    return torch.randint(500, (2, EDGES))


def of_parts(ends, call, *edge_rows):
    """What `call` returns for the graph, and joined for graphs of an eighth of its edges each."""
    parts = [(ends, *edge_rows), *zip(ends.chunk(8, 1), *(x.chunk(8) for x in edge_rows))]
    whole, *others = (call(Graph.from_edges(*part, num_src=500, num_dst=500), *rows) for part, *rows in parts)
    return whole, torch.cat(others)


@pytest.mark.parametrize(
    "op,dtype", [("mul", torch.float16), ("add", torch.bfloat16), ("sub", torch.float32), ("relu_add", torch.bfloat16)]
)
def test_gradients_of_edges(op, dtype, ends):
    x, e, grad = randn(500, DIM, dtype=dtype), randn(EDGES, DIM, dtype=dtype), randn(500, DIM, dtype=dtype)

    def call(g, e):
        e = e.clone().requires_grad_()
        return torch.autograd.grad(ops.gspmm(g, op, "sum", x.requires_grad_(), e), e, grad)[0]

    assert torch.equal(*of_parts(ends, call, e))


@pytest.mark.parametrize("wanted", ["edges", "gate", "value"])
def test_gated_sum(wanted, ends):
    rows = [randn(500, DIM, dtype=torch.bfloat16) for _ in range(4)]

    def call(g, e):
        e = e.clone().requires_grad_()
        terms = (e.detach(), e) if wanted == "value" else (e, None)
        out, edges = ops.gated_sum(g, *rows[:3], *terms, return_edges=True)
        return edges.detach() if wanted == "edges" else torch.autograd.grad(out, e, rows[3])[0]

    assert torch.equal(*of_parts(ends, call, randn(EDGES, DIM, dtype=torch.bfloat16)))


def test_operators_of_edges(ends):
    x, y, e = (randn(n, DIM, dtype=torch.float16) for n in (500, 500, EDGES))
    assert torch.equal(*of_parts(ends, lambda g: ops.u_sub_v(g, x, y)))
    assert torch.equal(*of_parts(ends, lambda g, e: ops.u_add_v_add_e(g, x, y, e), e))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_edge_softmax(dtype, ends):
    """Columns are independent: half of them have small results."""
    g = Graph.from_edges(*ends, num_src=500, num_dst=500)
    logits, grad = randn(EDGES, DIM, dtype=dtype), randn(EDGES, DIM, dtype=dtype)

    def call(columns):
        leaf = logits[:, columns].contiguous().requires_grad_()
        out = ops.edge_softmax(g, leaf)
        return out, torch.autograd.grad(out, leaf, grad[:, columns])[0]

    lower, upper = call(slice(0, DIM // 2)), call(slice(DIM // 2, DIM))
    for whole, *parts in zip(call(slice(0, DIM)), lower, upper):
        assert torch.equal(whole, torch.cat(parts, 1))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_several_reductions(dtype):
    """Rows of nodes: 10,000 with six results, and what the backward keeps of them, are 17 MB of halves."""
    nodes, reduces = 10_000, ("sum", "mean", "max", "min", "var", "std")
    g = Graph.from_edges(torch.randint(500, (EDGES,)), torch.randint(nodes, (EDGES,)), num_src=500, num_dst=nodes)
    x, grads = randn(500, DIM, dtype=dtype), randn(6, nodes, DIM, dtype=dtype)

    def call(columns):
        leaf = x[:, columns].contiguous().requires_grad_()
        results = ops.copy_u_reduce(g, leaf, reduces)
        return [*results, *torch.autograd.grad(results, leaf, list(grads[:, :, columns]))]

    lower, upper = call(slice(0, DIM // 2)), call(slice(DIM // 2, DIM))
    for whole, *parts in zip(call(slice(0, DIM)), lower, upper):
        assert torch.equal(whole, torch.cat(parts, -1))
