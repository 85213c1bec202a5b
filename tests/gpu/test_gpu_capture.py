"""CUDA graphs: every operator, forward and backward, is captured once and replayed on other numbers."""

import pytest
import torch

import halfgnn
from halfgnn import ops
from tests.gpu import gpu_cases
from tests.gpu.gpu_cases import DEVICE, DTYPES, assert_same, every_case, with_gradients

pytestmark = gpu_cases.needs_gpu


def warm_up(function):
    """Runs on a side stream, as captures require, so that allocations and autograd threads exist when the capture
    begins."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            function()
    torch.cuda.current_stream().wait_stream(stream)


def capture(function, before=None):
    """(CUDA graph, results of `function` that a replay fills). before: runs first, outside; by default the function
    itself."""
    warm_up(before or function)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = function()
    return graph, results


@every_case
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_replay_is_eager(case, dtype):
    g, leaves = gpu_cases.setup(case, dtype, torch.int64 if dtype == torch.bfloat16 else torch.int32)
    upstream = []
    graph, results = capture(lambda: with_gradients(case, g, leaves, upstream))
    for _ in range(2):
        fresh = case.operands(g, dtype, DEVICE)
        with torch.no_grad():
            for leaf, values in zip(leaves, fresh):
                leaf.copy_(values)
        graph.replay()
        replayed = [x.clone() for x in results]
        assert_same(replayed, with_gradients(case, g, leaves, upstream), "after replay")


@every_case
@pytest.mark.filterwarnings("ignore:part of a graph's topology")
def test_sides_are_first_needed_inside(case):
    """Warms up on another graph with the same edges. The capture makes the CSR, and must not leave one that is not
    computed."""
    g, leaves = gpu_cases.setup(case, torch.float16)
    upstream = []
    expected = with_gradients(case, g, leaves, upstream)
    fresh = halfgnn.Graph(g.num_src, g.num_dst, csc=g.csc())
    graph, results = capture(
        lambda: with_gradients(case, fresh, leaves, upstream), lambda: with_gradients(case, g, leaves, upstream)
    )
    assert_same(with_gradients(case, fresh, leaves, upstream), expected, "before the first replay")
    graph.replay()
    assert_same(results, expected, "after it")


@pytest.mark.filterwarnings("ignore:part of a graph's topology")
@pytest.mark.parametrize("idtype", [torch.int32, torch.int64], ids=str)
def test_topology_is_made_inside(idtype):
    src, dst = (ids.to(DEVICE, idtype) for ids in gpu_cases.hub_ends())

    def make():
        made = halfgnn.Graph.from_edges(src, dst, num_src=150, num_dst=150, check=False)
        return [*made.csc(), *made.csr()]

    graph, results = capture(make)
    src.copy_(src.flip(0)), dst.copy_(dst.roll(7))
    graph.replay()
    replayed = [x.clone() for x in results]
    assert_same(replayed, make(), "after replay")


@pytest.mark.parametrize("call", [
    lambda g, x: ops.gat_attention(g, x, x[..., 0], x[..., 1], dropout_p=0.5),
    lambda g, x: ops.gatv2_attention(g, x, x, x[0], dropout_p=0.5),
    lambda g, x: ops.dot_attention(g, x, x, x, dropout_p=0.5),
], ids=["gat", "gatv2", "dot"])  # fmt: skip
def test_every_replay_drops_others(call):
    """The seed is drawn inside the capture, so that it follows the generator like torch's own dropout."""
    g = gpu_cases.hub_graph(device=DEVICE)
    x = torch.randn(g.num_src, 2, 8, device=DEVICE, dtype=torch.float16)
    graph, result = capture(lambda: call(g, x))
    replayed = []
    for _ in range(3):
        graph.replay()
        replayed.append(result.clone())
    assert not any(torch.equal(a, b) for a, b in zip(replayed, [*replayed[1:], replayed[0]]))


class Attention(torch.nn.Module):
    """A GAT layer on halfgnn.ops."""

    def __init__(self, g, width, heads, dim):
        super().__init__()
        self.g, self.heads, self.dim = g, heads, dim
        self.linear = torch.nn.Linear(width, heads * dim, bias=False)
        self.left = torch.nn.Parameter(torch.randn(heads, dim) / dim)
        self.right = torch.nn.Parameter(torch.randn(heads, dim) / dim)

    def forward(self, x):
        h = self.linear(x).view(-1, self.heads, self.dim)
        left, right = ((h * a).sum(-1, keepdim=True) for a in (self.left, self.right))
        score = torch.nn.functional.leaky_relu(ops.u_add_v(self.g, left, right), 0.2)
        return ops.u_mul_e_sum(self.g, h, ops.edge_softmax(self.g, score)).flatten(1)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_make_graphed_callables(dtype):
    torch.manual_seed(0)
    g = gpu_cases.hub_graph(device=DEVICE)
    eager = Attention(g, 32, 4, 16).to(DEVICE, dtype)
    graphed = Attention(g, 32, 4, 16).to(DEVICE, dtype)
    graphed.load_state_dict(eager.state_dict())
    example = torch.randn(g.num_src, 32, device=DEVICE, dtype=dtype, requires_grad=True)
    graphed = torch.cuda.make_graphed_callables(graphed, (example,))
    for _ in range(3):
        x = torch.randn_like(example)
        results = []
        for layer in (graphed, eager):
            layer.zero_grad(set_to_none=True)
            leaf = x.clone().requires_grad_()
            out = layer(leaf)
            out.float().square().mean().backward()
            results.append([out.detach().clone(), leaf.grad, *(p.grad.clone() for p in layer.parameters())])
        for a, b in zip(*results, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-2, atol=1e-3)  # cuBLAS may choose another algorithm
