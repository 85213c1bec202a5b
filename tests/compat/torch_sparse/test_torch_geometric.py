"""torch_geometric with both packages, in a process of its own: it looks for them when it is imported."""

import subprocess
import sys
import textwrap

import pytest

pytest.importorskip("torch_geometric")

PROGRAM = """
    import sys
    import torch
    import halfgnn.compat
    assert halfgnn.compat.install("torch_scatter", "torch_sparse", replace=True) == ["torch_scatter", "torch_sparse"]
    import torch_geometric.typing
    from torch_geometric import EdgeIndex, nn
    from torch_geometric.data import Batch, Data
    from torch_geometric.transforms import ToSparseTensor
    from torch_geometric.utils import coalesce, remove_self_loops, spmm
    from torch_sparse import SparseTensor
    import halfgnn.pyg

    assert torch_geometric.typing.WITH_TORCH_SCATTER and torch_geometric.typing.WITH_TORCH_SPARSE
    torch.manual_seed(0)
    edge_index = coalesce(remove_self_loops(torch.randint(0, 300, (2, 6000)))[0])
    data = Data(x=torch.randn(300, 16), edge_index=edge_index, weight=torch.rand(edge_index.shape[1]))
    weighted = ToSparseTensor(attr="weight", remove_edge_index=False)(data)
    x, edge_index, weight, adj_t = weighted.x, weighted.edge_index, weighted.weight, weighted.adj_t

    def check():
        plain = adj_t.set_value(None)
        for conv in (nn.GCNConv(16, 8), nn.SAGEConv(16, 8, aggr="max"), nn.GATConv(16, 8), nn.GINConv(nn.Linear(16, 8))):
            out = [conv(x, edges) for edges in (edge_index, plain)]
            assert torch.allclose(*out, atol=1e-4), conv
        for conv in (nn.GCNConv(16, 8), nn.GraphConv(16, 8)):
            leaves = [weight.clone().requires_grad_() for _ in range(2)]
            outs = conv(x, edge_index, leaves[0]), conv(x, adj_t.set_value(leaves[1], "coo"))
            for out in outs:
                out.square().sum().backward()
            assert torch.allclose(*outs, atol=1e-4) and torch.allclose(leaves[0].grad, leaves[1].grad, atol=1e-2), conv

    check()
    if sys.version_info < (3, 14):
        conv = nn.SAGEConv(16, 8)
        assert torch.allclose(torch.jit.script(conv)(x, edge_index), conv(x, edge_index), atol=1e-5)
    halfgnn.pyg.patch()
    check()
    halfgnn.pyg.unpatch()
    batch = Batch.from_data_list([weighted] * 3)
    assert batch.adj_t.sizes() == [900, 900] and batch[1].adj_t == adj_t
    value = adj_t.storage.value().clone().requires_grad_()
    edges = EdgeIndex(torch.stack(adj_t.coo()[:2]), sparse_size=(300, 300), sort_order="row")
    for reduce in ("sum", "mean", "max"):
        assert torch.allclose(edges.matmul(x, value, reduce=reduce), spmm(adj_t, x, reduce), atol=1e-4)
"""


def test_layers_with_adj_t():
    subprocess.run([sys.executable, "-W", "ignore", "-c", textwrap.dedent(PROGRAM)], check=True)
