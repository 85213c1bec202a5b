"""What halfgnn's own interface refuses is refused by the packages of halfgnn.compat too: errors name the argument and its value."""

import math

import pytest
import torch

from halfgnn.compat import dgl, torch_scatter, torch_sparse
from halfgnn.compat.pyg_lib import ops, sampler

NAN, INF = math.nan, math.inf
ROWPTR, COL = torch.tensor([0, 2, 4, 5, 6]), torch.tensor([1, 2, 2, 3, 3, 0])
NODES, SRC, INDEX = torch.arange(4), torch.ones(6, 2), torch.tensor([0, 1, 2, 1, 0, 3])
EMPTY = torch.empty(0, dtype=torch.int64)


def ids(*values):
    return torch.tensor(values)


def check(cases):
    for error, match, call in cases:
        with pytest.raises(error, match=match):
            call()


def weighted(*weights):
    g = dgl.graph((ids(0, 1, 2, 3, 0, 1), ids(1, 2, 3, 0, 2, 3)))
    g.edata["w"] = torch.tensor(weights or [1.0] * 6)
    g.ndata["x"] = torch.ones(4, 2)
    return g


def sampled(num_neighbors=(1,), rowptr=ROWPTR, col=COL, seed=NODES, **options):
    return sampler.neighbor_sample(rowptr, col, seed, num_neighbors, **options)


@pytest.mark.parametrize("weight", [-1.0, NAN, INF, -INF])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_weights_of_the_sampler(weight, dtype):
    """The kernel looks at the weights of the rows that it reads, and at no others."""
    weights = torch.tensor([1.0, 1.0, 1.0, weight, 1.0, 1.0], dtype=dtype)
    for options in ({}, {"replace": True}):
        for fanout in (-1, 1):
            with pytest.raises(
                ValueError, match=rf"edge_weight\[0\] holds {weight:.0f} at position 3; expected finite"
            ):
                sampled([fanout], edge_weight=weights, **options)
    assert len(sampled(seed=ids(0, 2, 3), edge_weight=weights)[3]) == 3
    with pytest.raises(ValueError, match="holds"):  # in the second hop
        sampled([1, 1], seed=ids(0), edge_weight=weights.new_tensor([1.0, 0.0, weight, 1.0, 1.0, 1.0]))


def test_sampler():
    check(
        [
            (
                TypeError,
                r"edge_weight has dtype torch.int64; .*edge_weight.float\(\)",
                lambda: sampled(edge_weight=COL),
            ),
            (TypeError, "edge_weight is a list", lambda: sampled(edge_weight=[1.0] * 6)),
            (ValueError, r"num_neighbors\[1\] is -5; .* or -1 for all", lambda: sampled([2, -5])),
            (TypeError, r"num_neighbors\[0\] is 1.5", lambda: sampled([1.5])),
            (TypeError, r"num_neighbors\[0\] is True", lambda: sampled([True])),
            (TypeError, r"num_neighbors is 3; expected .* per hop, as in \[15, 10\]", lambda: sampled(3)),
            (TypeError, "rowptr is a list", lambda: sampled(rowptr=[0, 2])),
            (TypeError, "col has dtype torch.float32", lambda: sampled(col=COL.float())),
            (TypeError, "disjoint is 'no'; expected True or False", lambda: sampled(disjoint="no")),
            (TypeError, "replace is a tensor", lambda: sampled(replace=ids(1, 0))),
        ]
    )
    with pytest.raises(ValueError, match=r"fanouts holds -2; expected numbers of neighbours, or -1 for all"):
        torch.ops.halfgnn.neighbor_sample(
            [ROWPTR], [COL], [None], [0], [0], [NODES], [-2], 5, False, True, False, [None], [None], [None]
        )


def test_walks_and_subgraphs():
    walk, subgraph = sampler.random_walk, sampler.subgraph
    falls, beyond, wrong = ids(0, 4, 2, 5, 6), ids(0, 2, 4, 5, 60), ids(1, 2, 2, 3, 3, -1)
    check(
        [
            (ValueError, "walk_length is -1", lambda: walk(ROWPTR, COL, NODES, -1)),
            (TypeError, "walk_length is 2.5", lambda: walk(ROWPTR, COL, NODES, 2.5)),
            (IndexError, "row 1 of rowptr falls or leaves col", lambda: walk(falls, COL, NODES, 1)),
            (IndexError, "row 3 of rowptr falls or leaves col", lambda: walk(beyond, COL, NODES, 1)),
            (ValueError, "col holds -1", lambda: walk(ROWPTR, wrong, NODES, 1)),
            (
                TypeError,
                "col has dtype torch.int32; expected that of rowptr",
                lambda: walk(ROWPTR, COL.int(), NODES, 1),
            ),
            (IndexError, "row 1 of rowptr falls", lambda: subgraph(falls, COL, NODES)),
            (IndexError, "row 3 of rowptr falls or leaves col", lambda: subgraph(beyond, COL, NODES)),
            (ValueError, "col holds -1", lambda: subgraph(ROWPTR, wrong, NODES)),
            (ValueError, "nodes holds 1 more than once", lambda: subgraph(ROWPTR, COL, ids(0, 1, 1))),
        ]
    )


def test_products_by_segments():
    x, other = torch.ones(7, 3), torch.ones(3, 3, 2)
    check(
        [
            (
                ValueError,
                r"ptr is \[0, 5, 3, 7\]; .* do not fall",
                lambda: ops.segment_matmul(x, ids(0, 5, 3, 7), other),
            ),
            (
                ValueError,
                "bias has 4 rows; expected 3",
                lambda: ops.segment_matmul(x, ids(0, 2, 3, 7), other, torch.ones(4, 2)),
            ),
        ]
    )


@pytest.mark.parametrize("name", ["sum", "mean", "mul", "max", "min", "std", "softmax", "log_softmax", "logsumexp"])
def test_ids_and_sizes_of_scatter(name):
    function, wrong = getattr(torch_scatter, f"scatter_{name}"), ids(0, -1, 2, 1, 0, 3)
    check(
        [
            (IndexError, r"index holds -1; expected ids in \[0, 4\)", lambda: function(SRC, wrong, 0)),
            (
                IndexError,
                r"index holds 3; expected ids in \[0, 2\), dim_size",
                lambda: function(SRC, INDEX, 0, dim_size=2),
            ),
            (
                IndexError,
                r"index holds 3; expected ids in \[0, 2\)",
                lambda: function(SRC, INDEX.view(-1, 1).repeat(1, 2), 0, dim_size=2),
            ),
            (ValueError, "dim_size is -1", lambda: function(SRC, INDEX, 0, dim_size=-1)),
            (TypeError, "dim_size is 4.5", lambda: function(SRC, INDEX, 0, dim_size=4.5)),
            (TypeError, "dim is '0'", lambda: function(SRC, INDEX, "0")),
            (TypeError, r"index is a list; .*: torch.tensor\(index\)", lambda: function(SRC, INDEX.tolist(), 0)),
            (TypeError, r"src is a ndarray; .*: torch.from_numpy\(src\)", lambda: function(SRC.numpy(), INDEX, 0)),
        ]
    )
    if "softmax" not in name:
        check([(TypeError, "out is a list", lambda: function(SRC, INDEX, 0, [1]))])
        if name != "logsumexp":
            assert (
                function(SRC, INDEX, 0, torch.zeros(4, 2), dim_size=9) is not None
            )  # out decides, as in torch_scatter


def test_other_arguments_of_torch_scatter():
    pairs, short, integers = ids(0, 2, 6), torch.zeros(2, 1), torch.zeros(2, 2, dtype=torch.int64)
    logsumexp, segment, gather = torch_scatter.scatter_logsumexp, torch_scatter.segment_csr, torch_scatter.gather_coo
    check(
        [
            *(
                (ValueError, f"eps is {eps}", lambda eps=eps: logsumexp(SRC, INDEX, 0, eps=eps))
                for eps in (NAN, INF, -1.0)
            ),
            (ValueError, "eps is nan", lambda: torch_scatter.scatter_log_softmax(SRC, INDEX, 0, eps=NAN)),
            (ValueError, r"out has shape \(2, 1\); expected .* \(2, 2\)", lambda: segment(SRC, pairs, short)),
            (TypeError, "out is torch.int64", lambda: segment(SRC, pairs, integers)),
            (TypeError, "out is torch.int64", lambda: segment(SRC, pairs, integers, "max")),
            (TypeError, "out is torch.int64", lambda: torch_scatter.gather_csr(SRC[:1], ids(0, 2), integers)),
            (ValueError, r"out has shape \(2, 1\)", lambda: gather(SRC, ids(0, 1), short)),
            (
                IndexError,
                r"index holds -1; expected ids in \[0, 6\), the places of src",
                lambda: gather(SRC, ids(-1, 2)),
            ),
            (IndexError, "index holds 20", lambda: gather(SRC.clone().requires_grad_(), ids(1, 20))),
            (ValueError, r"indptr, of shape \(4,\), falls", lambda: segment(SRC, ids(0, 4, 2, 6), reduce="max")),
            (TypeError, "indptr is a list", lambda: segment(SRC, [0, 6])),
            (TypeError, "index is a list", lambda: torch_scatter.segment_coo(SRC, [0] * 6)),
        ]
    )


def test_entries_of_a_sparse_tensor():
    def made(**options):
        return torch_sparse.SparseTensor(**{"row": ids(0, 0, 1), "col": ids(1, 2, 0), **options})

    check(
        [
            (ValueError, "is_sorted is True, but row falls", lambda: made(row=ids(2, 0, 1), is_sorted=True)),
            (ValueError, r"sparse_sizes\[0\] is -3", lambda: made(row=EMPTY, col=EMPTY, sparse_sizes=(-3, 2))),
            (TypeError, r"sparse_sizes\[0\] is 3.7", lambda: made(sparse_sizes=(3.7, 3))),
            (ValueError, "row holds -1", lambda: made(row=ids(-1, 0, 1))),
            (ValueError, "col holds -2", lambda: made(col=ids(1, 2, -2))),
            (TypeError, "row is a list", lambda: made(row=[0, 0, 1])),
            (
                ValueError,
                r"edge_index has shape \(5, 2\); expected \(2, E\): pass edge_index.t\(\)",
                lambda: torch_sparse.SparseTensor.from_edge_index(torch.zeros(5, 2, dtype=torch.int64)),
            ),
            (ValueError, "M is -1", lambda: torch_sparse.SparseTensor.eye(-1)),
        ]
    )


def test_parts_and_samples_of_a_sparse_tensor():
    a = torch_sparse.SparseTensor(row=ids(0, 0, 1, 2), col=ids(1, 2, 0, 2), value=torch.ones(4), sparse_sizes=(3, 3))
    check(
        [
            (ValueError, r"idx holds -1; expected indices in \[0, 3\)", lambda: a.index_select(0, ids(-1))),
            (ValueError, "idx holds 7", lambda: a.index_select(1, ids(7))),
            (TypeError, "mask has dtype torch.int64; expected torch.bool", lambda: a.masked_select(0, ids(1, 0, 1))),
            (ValueError, "idx holds -1", lambda: a.index_select_nnz(ids(-1), "coo")),
            (ValueError, r"mask has shape \(1,\); expected \(4,\)", lambda: a.masked_select_nnz(ids(1).bool(), "coo")),
            (ValueError, r"perm, of shape \(3,\), is no order", lambda: a.permute(ids(0, 0, 1))),
            (ValueError, r"sparse_sizes\[0\] is -1", lambda: a.sparse_resize((-1, 3))),
            (ValueError, r"values has shape \(2,\); expected \(3,\)", lambda: a.set_diag(torch.ones(2))),
            (ValueError, "reduce is 'prod'", lambda: a.coalesce("prod")),
            (ValueError, "num_neighbors is -2", lambda: a.sample(-2)),
            (ValueError, "subset holds -1", lambda: a.sample(2, ids(-1))),
            (ValueError, "num_neighbors is -5", lambda: a.sample_adj(ids(0), -5)),
            (ValueError, "subset holds -1", lambda: a.sample_adj(ids(-1), 2)),
            (ValueError, "subset holds 1 more than once", lambda: a.sample_adj(ids(1, 1), 2)),
            (ValueError, "start holds -1", lambda: a.random_walk(ids(-1), 2)),
            (ValueError, "walk_length is -2", lambda: a.random_walk(ids(1), -2)),
            (ValueError, "node_idx holds 3", lambda: a.saint_subgraph(ids(3))),
        ]
    )


def test_functions_of_torch_sparse():
    index, value, x, raw = ids([0, 5], [1, 0]), torch.ones(2), torch.ones(3, 2), torch.ops.torch_sparse
    check(
        [
            (ValueError, r"index\[0\] holds 5; .*\[0, 3\)", lambda: torch_sparse.spmm(index, value, 3, 3, x)),
            (ValueError, r"index\[1\] holds 5", lambda: torch_sparse.spmm(index.flip(0), value, 3, 3, x)),
            (
                ValueError,
                r"value has shape \(3,\); expected \(2,\)",
                lambda: torch_sparse.spmm(index, x[:, 0], 9, 3, x),
            ),
            (
                ValueError,
                r"index has shape \(3, 2\); .*index.t\(\)",
                lambda: torch_sparse.spmm(x.long(), value, 3, 3, x),
            ),
            # Others would be written beyond the result.
            (ValueError, "ind holds 7", lambda: raw.ind2ptr(ids(0, 1, 7), 3)),
            (ValueError, "ind falls", lambda: raw.ind2ptr(ids(2, 0, 1), 3)),
            (ValueError, r"ptr, of shape \(3,\), falls", lambda: raw.ptr2ind(ids(0, 3, 1), 1)),
            (ValueError, "does not run from 0 to E, which is 3", lambda: raw.ptr2ind(ids(0, 3, 5), 3)),
            (ValueError, "col holds -1", lambda: raw.spmm_max(ids(0, 1, 2), ids(0, -1), None, x)),
        ]
    )


@pytest.mark.parametrize("weight", [NAN, INF])
def test_weights_of_dgl_that_are_not_finite(weight):
    g, holds = weighted(1.0, weight, 1.0, 1.0, 1.0, 1.0), rf"holds {weight} at place 1; expected \(6,\), finite numbers"
    check(
        [
            (dgl.DGLError, holds, lambda: dgl.random_walk_pe(g, 2, "w")),
            (dgl.DGLError, holds, lambda: dgl.transforms.GCNNorm("w")(g)),
            (dgl.DGLError, holds, lambda: dgl.transforms.PPR(eweight_name="w")(g)),
            (dgl.DGLError, holds, lambda: dgl.transforms.SIGNDiffusion(1, "x", eweight_name="w")(g)),
        ]
    )


def test_negative_weights_that_are_only_multiplied():
    g = weighted(1.0, -0.5, 1.0, 1.0, 1.0, 1.0)
    g.ndata["x"] = torch.ones(g.num_nodes(), 2)
    out = dgl.transforms.SIGNDiffusion(1, "x", eweight_name="w", diffuse_op="raw")(g).ndata["out_feat_1"]
    assert torch.equal(out[:, 0], dgl.ops.copy_e_sum(g, g.edata["w"]))


@pytest.mark.parametrize("weight", [-1.0, NAN, INF])
def test_weights_of_dgl(weight):
    g, walk, loading = weighted(1.0, weight, 1.0, 1.0, 1.0, 1.0), dgl.sampling.random_walk, dgl.dataloading
    prob, holds = g.edata["w"], rf"holds {weight} at place 1; expected \(6,\), finite numbers of at least 0"
    check(
        [
            (ValueError, "negative or not finite", lambda: dgl.sampling.sample_neighbors(g, NODES, 1, prob="w")),
            (
                ValueError,
                "negative or not finite",
                lambda: loading.NeighborSampler([1], prob="w").sample_blocks(g, NODES),
            ),
            (dgl.DGLError, f"the feature 'w' {holds}", lambda: walk(g, NODES, length=1, prob="w")),
            (dgl.DGLError, f"prob {holds}", lambda: dgl.random.choice(6, 2, prob=prob)),
            (dgl.DGLError, f"prob {holds}", lambda: dgl.random.choice(6, 2, replace=False, prob=prob)),
            (ValueError, "restart_prob is", lambda: walk(g, NODES, length=2, restart_prob=weight)),
            (
                ValueError,
                r"restart_prob\[1\] is",
                lambda: walk(g, NODES, length=2, restart_prob=torch.tensor([0.0, weight])),
            ),
            (ValueError, "p is", lambda: dgl.transforms.DropEdge(weight)),
            (ValueError, "ratio is", lambda: dgl.transforms.AddEdge(weight)),
            (ValueError, "edge_drop is", lambda: dgl.nn.APPNPConv(2, 0.1, edge_drop=weight)),
            (
                ValueError,
                "redundancy is",
                lambda: dgl.sampling.global_uniform_negative_sampling(g, 2, redundancy=weight),
            ),
        ]
    )


def test_numbers_of_dgl():
    g, sampling, choice = weighted(), dgl.sampling, dgl.random.choice
    uniform = dgl.dataloading.negative_sampler.Uniform
    check(
        [
            (dgl.DGLError, "prob, .*, holds zeros only", lambda: choice(3, 2, prob=torch.zeros(3))),
            (ValueError, "size is -1", lambda: choice(3, -1)),
            (TypeError, "size is 1.5", lambda: choice(3, 1.5)),
            (ValueError, "a is -3", lambda: choice(-3, 1)),
            (ValueError, "num_edges is -2", lambda: dgl.rand_graph(3, -2)),
            (ValueError, "length is -1", lambda: sampling.random_walk(g, NODES, length=-1)),
            (
                TypeError,
                r"is 2.5; expected a number of neighbours",
                lambda: sampling.sample_neighbors(g, NODES, {"_E": 2.5}),
            ),
            (ValueError, "k is -5; .* or -1 for all", lambda: sampling.select_topk(g, -5, "w")),
            (TypeError, "k is 1.5", lambda: sampling.select_topk(g, {"_E": 1.5}, "w")),
            (dgl.DGLError, "'w' has shape .*, not nan", lambda: sampling.select_topk(weighted(*[NAN] * 6), 1, "w")),
            (ValueError, "num_samples is -5", lambda: sampling.global_uniform_negative_sampling(g, -5)),
            (ValueError, "k is -2", lambda: uniform(-2)),
            (TypeError, "num_nodes is 2.7", lambda: dgl.graph((EMPTY, EMPTY), num_nodes=2.7)),
            (
                TypeError,
                r"num_nodes_dict\['a'\] is 2.7",
                lambda: dgl.heterograph({("a", "b", "a"): ([], [])}, {"a": 2.7}),
            ),
            (TypeError, "num_src_nodes is 2.7", lambda: dgl.create_block(([], []), 2.7, 2)),
            (TypeError, "num is 1.5", lambda: dgl.add_nodes(g, 1.5)),
            (ValueError, "k is -2", lambda: dgl.khop_in_subgraph(g, 0, -2)),
            (ValueError, "k is -1", lambda: dgl.khop_graph(g, -1)),
            (ValueError, "k is -1", lambda: dgl.topk_nodes(g, "x", -1)),
            (ValueError, "k is 0", lambda: dgl.lap_pe(g, 0)),
            (ValueError, "r is nan", lambda: dgl.radius_graph(torch.ones(3, 2), NAN)),
            (TypeError, "k is 1.5", lambda: dgl.knn_graph(torch.ones(3, 2), 1.5)),
            (ValueError, "alpha is nan", lambda: dgl.nn.GCN2Conv(4, 1, NAN)),
        ]
    )


def test_ids_of_dgl():
    g, x, matrices = weighted(), torch.ones(5, 2), torch.ones(2, 2, 3)
    whole = dgl.dataloading.NeighborSampler([-1])
    loader = dgl.dataloading.DataLoader
    check(
        [
            (
                dgl.DGLError,
                r"exclude_edges has an edge 77; expected ids in \[0, 6\)",
                lambda: dgl.sampling.sample_neighbors(g, NODES, -1, exclude_edges=ids(77)),
            ),
            (dgl.DGLError, "exclude_edges has an edge -1", lambda: whole.sample_blocks(g, NODES, ids(-1))),
            (dgl.DGLError, "indices has dtype torch.float32", lambda: loader(g, torch.tensor([1.7]), whole)),
            (dgl.DGLError, "eids has an edge -1", lambda: dgl.ops.edge_softmax(g, torch.ones(1, 2), eids=ids(-1))),
            (dgl.DGLError, "of lengths that add up", lambda: dgl.ops.segment_mm(x, matrices, ids(-1, 6))),
            (dgl.DGLError, "idx_b has a matrix 5", lambda: dgl.ops.gather_mm(x, matrices, idx_b=ids(0, 1, 5, 0, 0))),
            (dgl.DGLError, r"idx_b has shape \(2,\)", lambda: dgl.ops.gather_mm(x, matrices, idx_b=ids(0, 1))),
            (dgl.DGLError, "sortby is 9", lambda: dgl.topk_nodes(g, "x", 2, sortby=9)),
            (dgl.DGLError, "root has a node -1", lambda: dgl.shortest_dist(g, root=-1)),
            (dgl.DGLError, "src or dst has a node 9", lambda: dgl.double_radius_node_labeling(g, 0, 9)),
            (ValueError, r"indices has shape \(3, 2\)", lambda: dgl.sparse.spmatrix(torch.ones(3, 2).long())),
        ]
    )
