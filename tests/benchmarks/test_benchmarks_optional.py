"""The competitors that few machines have: cudnn.gnn and turbo_gnn. The stand-ins here have their signatures, and
compute what their documentation says. If the packages can be imported, the signatures are compared."""

import inspect
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch

from benchmarks import optional as imports
from benchmarks.baselines import ALL, Unavailable, turbo
from halfgnn import Graph, reference
from tests.benchmarks.test_benchmarks_baselines import assert_right, operands_of, problem_of

CUDNN, TURBO = (next(c for c in ALL if c.name == name) for name in ("cudnn.gnn", "turbo_gnn"))


# ---- cudnn.gnn -------------------------------------------------------------------------------------------------------------------


class CscGraph:
    """map_csc_to_coo has the row of edge data of each edge."""

    def __init__(self, offsets, indices, num_src_nodes, map_csc_to_coo=None, csc_rev_offsets=None, map_rev_to_coo=None):
        self.graph = Graph(num_src_nodes, offsets.numel() - 1, csc=(offsets, indices, map_csc_to_coo))


def agg_simple(graph, *, node_features=None, edge_features=None, concat_features=None, aggr="sum"):
    assert concat_features is None and (node_features is None) != (edge_features is None)
    x = edge_features if node_features is None else node_features
    assert x.dim() == 2 and x.is_contiguous()
    op = "copy_rhs" if node_features is None else "copy_lhs"
    return reference.gspmm(graph.graph, op, aggr, node_features, edge_features)


def mha_gat(
    graph, features, attn_weights, *, edge_features=None, dropout_mask=None, num_heads=1, concat_heads=True,
    activation="leaky_relu", activation_alpha=0.2, return_attention_weights=False, deterministic=False,
    high_precision_dgrad=False, high_precision_wgrad=False,
):  # fmt: skip
    assert activation == "leaky_relu" and activation_alpha == 0.2
    src, dst = (x.view(x.shape[0], num_heads, -1) for x in features)
    assert attn_weights.shape == (2 * features[0].shape[1],)
    of_src, of_dst = (attn.view(num_heads, -1) for attn in attn_weights.chunk(2))
    logits = (src * of_src).sum(-1), (dst * of_dst).sum(-1)
    return reference.gat_attention(graph.graph, src, *logits, None, activation_alpha).flatten(1)


def mha_gat_v2(
    graph, features, attn_weights, *, edge_features=None, dropout_mask=None, num_heads=1, concat_heads=True,
    activation="leaky_relu", activation_alpha=0.2, return_attention_weights=False, deterministic=False,
    high_precision_grad=False,
):  # fmt: skip
    assert activation == "leaky_relu" and attn_weights.shape == (features[0].shape[1],)
    src, dst = (x.view(x.shape[0], num_heads, -1) for x in features)
    attn = attn_weights.view(num_heads, -1)
    return reference.gatv2_attention(graph.graph, src, dst, attn, activation_alpha).flatten(1)


def install(monkeypatch, **modules):
    """Replaces modules that may be installed."""
    for name, members in modules.items():
        module = ModuleType(name.replace("__", "."))
        vars(module).update(members)
        monkeypatch.setitem(sys.modules, module.__name__, module)
    imports._attempt.cache_clear()


@pytest.fixture
def cudnn(monkeypatch):
    names = dict(CscGraph=CscGraph, agg_simple=agg_simple, mha_gat=mha_gat, mha_gat_v2=mha_gat_v2)
    install(monkeypatch, cudnn=dict(backend_version=lambda: 92800), cudnn__gnn=names)
    yield sys.modules["cudnn"]
    imports._attempt.cache_clear()


@pytest.mark.parametrize("order", ["insertion", "sorted"])
@pytest.mark.parametrize("op", CUDNN.abilities)
def test_cudnn_is_given_what_it_takes(cudnn, op, order):
    for heads, dim in ((1, 12), (3, 8)):
        for direction in CUDNN.abilities[op].directions:
            assert_right(CUDNN, problem_of(op, heads, dim, direction=direction, order=order))


def test_cudnn_must_be_new_enough(cudnn):
    cudnn.backend_version = lambda: 91900
    with pytest.raises(Unavailable, match=r"^needs cuDNN 9\.26\.0, but 9\.19\.0 is loaded$"):
        CUDNN.prepare(problem_of("copy_u_sum"), operands_of(problem_of("copy_u_sum")))
    cudnn.backend_version = lambda: 92601
    problem = problem_of("gatv2_attention")
    with pytest.raises(Unavailable, match=r"^needs cuDNN 9\.28\.0, but 9\.26\.1 is loaded$"):
        CUDNN.prepare(problem, operands_of(problem))
    assert_right(CUDNN, problem_of("copy_u_sum"))


def test_cudnn_gat_refuses_logits_that_are_no_products(cudnn):
    problem = problem_of("gat_attention", 2, 8)
    x, src, dst = operands_of(problem)
    for dtype in (torch.float16, torch.bfloat16):  # rounded logits still count as products
        CUDNN.prepare(problem, tuple(t.to(dtype) for t in (x, src, dst)))
    with pytest.raises(Unavailable, match="these logits were made in another way"):
        CUDNN.prepare(problem, (x, src.roll(1, 0), dst))


def test_cudnn_that_is_not_there(monkeypatch):
    monkeypatch.setitem(sys.modules, "cudnn", None)
    imports._attempt.cache_clear()
    with pytest.raises(Unavailable, match="cudnn cannot be imported: "):
        CUDNN.prepare(problem_of("copy_u_sum"), operands_of(problem_of("copy_u_sum")))
    imports._attempt.cache_clear()


def test_signatures_of_cudnn():
    real = pytest.importorskip("cudnn.gnn", exc_type=ImportError)
    for ours in (agg_simple, mha_gat, mha_gat_v2, CscGraph):
        theirs = inspect.signature(getattr(real, ours.__name__)).parameters.values()
        expected = [(p.name, p.kind, p.default) for p in inspect.signature(ours).parameters.values()]
        assert [(p.name, p.kind, p.default) for p in theirs] == expected
    release = sys.modules["cudnn"].backend_version()
    assert isinstance(release, int) and release > 90000


# ---- turbo_gnn -------------------------------------------------------------------------------------------------------------------


class AdjacencyForwardBackwardWithNodeBuckets(SimpleNamespace):
    @classmethod
    def from_csr(cls, fwd_indptr, fwd_indices, bwd_indptr, bwd_indices, quantile=0.99, index_dtype=None):
        assert len({t.dtype for t in (fwd_indptr, fwd_indices, bwd_indptr, bwd_indices)}) == 1
        num_src = bwd_indptr.numel() - 1
        assert torch.equal(fwd_indices.bincount(minlength=num_src), bwd_indptr.diff())
        return cls(graph=Graph.from_csc(fwd_indptr, fwd_indices, num_src=num_src))


def reduction_aggr(
    graph, X, warps_per_block=8, edges_per_block_heavy_nodes=128, use_2d_kernel=False, features_per_block=32, tiles_y=8,
    reduce="min",
):  # fmt: skip
    assert warps_per_block in (1, 2, 4, 8) and warps_per_block * 32 * 4 < 2 * max(128, X[0].nbytes)
    return reference.gspmm(graph.graph, "copy_lhs", reduce, X, None)


def gatv2_aggr(graph, x, x_neighbors, attention_weights, negative_slope=0.2, grad_A_reduce_row_chunk_size=512):
    assert x.shape == x_neighbors.shape and x.shape[1:] == attention_weights.shape
    return reference.gatv2_attention(graph.graph, x_neighbors, x, attention_weights, negative_slope)


def graph_transformer_aggr(graph, x, Q, K, V, scale=None):
    assert x.shape == Q.flatten(1).shape
    return reference.dot_attention(graph.graph, K, Q, V, scale)


def spmm_aggr(x, forward_indptr, forward_indices, norm_type, cu_sparse_algorithm_id, block_dim):
    assert norm_type == "none" and forward_indptr.dtype == forward_indices.dtype == torch.int32
    return reference.gspmm(Graph.from_csc(forward_indptr, forward_indices, num_src=len(x)), "copy_lhs", "sum", x, None)


FUNCTIONS = (reduction_aggr, gatv2_aggr, graph_transformer_aggr, spmm_aggr)


@pytest.fixture
def cleared(monkeypatch):
    """The number of times that turbo_gnn's cache was cleared."""
    calls = []
    names = {f.__name__: f for f in (*FUNCTIONS, AdjacencyForwardBackwardWithNodeBuckets)}
    install(monkeypatch, turbo_gnn=names, turbo_gnn___C=dict(clear_graph_cache=lambda: calls.append(1)))
    monkeypatch.setattr(turbo, "_adjacencies", type(turbo._adjacencies)())
    yield calls
    imports._attempt.cache_clear()


@pytest.mark.parametrize("order", ["insertion", "sorted"])
@pytest.mark.parametrize("op", TURBO.abilities)
def test_turbo_is_given_what_it_takes(cleared, op, order):
    for heads, dim in ((1, 64), (2, 32)):
        for direction in TURBO.abilities[op].directions:
            if heads == 1 or "attention" in op:
                assert_right(TURBO, problem_of(op, heads, dim, direction=direction, order=order))


def test_turbo_forgets_the_workspace_of_another_width(cleared):
    for dim in (64, 128):
        TURBO.prepare(problem_of("copy_u_sum", dim=dim), operands_of(problem_of("copy_u_sum", dim=dim)))
    assert len(cleared) == 2


@pytest.mark.parametrize("op,dim,dtype,message", [
    ("copy_u_sum", 64, torch.float16, "its sums are fp32 only"),
    ("gatv2_attention", 48, torch.float16, "heads of width 48; it has those of 32, 64, 128, 256"),
    ("dot_attention", 16, torch.float16, "heads of width 16; it has"),
])  # fmt: skip
def test_turbo_cannot(cleared, op, dim, dtype, message):
    problem = problem_of(op, dim=dim, dtype=dtype)
    with pytest.raises(Unavailable, match=message):
        TURBO.prepare(problem, operands_of(problem))


def test_signatures_of_turbo():
    real = pytest.importorskip("turbo_gnn", exc_type=ImportError)
    made = AdjacencyForwardBackwardWithNodeBuckets
    pairs = [(f, getattr(real, f.__name__)) for f in FUNCTIONS]
    pairs.append((made.from_csr, getattr(real, made.__name__).from_csr))
    for ours, theirs in pairs:
        expected, found = (
            [(p.name, p.default) for p in inspect.signature(f).parameters.values()] for f in (ours, theirs)
        )
        assert found == expected
