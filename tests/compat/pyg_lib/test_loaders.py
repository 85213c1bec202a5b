"""torch_geometric's loaders on halfgnn.compat.pyg_lib, in a process that has neither pyg-lib nor torch-sparse."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch_geometric")

PROGRAM = """
import pathlib
import re

import halfgnn.compat

assert halfgnn.compat.install("pyg_lib") == ["pyg_lib"]

import torch
import torch_geometric.typing
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import LinkNeighborLoader, NeighborLoader

assert torch_geometric.typing.WITH_PYG_LIB and not torch_geometric.typing.WITH_TORCH_SPARSE
assert not torch_geometric.typing.WITH_SOFTMAX and not torch_geometric.typing.WITH_METIS

edge_index = torch.randint(100, (2, 900))
data = Data(x=torch.randn(100, 2), edge_index=edge_index, time=torch.arange(100))
for options in ({}, {"disjoint": True}, {"time_attr": "time"}, {"subgraph_type": "bidirectional"}):
    for batch in NeighborLoader(data, [3, 2], batch_size=30, **options):
        assert batch.x.equal(data.x[batch.n_id])
        ends = batch.n_id[batch.edge_index]
        assert ends.equal(edge_index[:, batch.e_id]) or "subgraph_type" in options
        if "time_attr" in options:
            assert (batch.time <= batch.time[batch.batch]).all()
for batch in LinkNeighborLoader(data, [3, 2], batch_size=30, neg_sampling="binary"):
    pass
assert batch.edge_label.sum() * 2 == batch.edge_label.numel()

hetero = HeteroData()
hetero["a"].x, hetero["b"].x = torch.randn(50, 2), torch.randn(30, 2)
hetero["a", "to", "b"].edge_index = torch.stack([torch.randint(50, (300,)), torch.randint(30, (300,))])
hetero["b", "to", "a"].edge_index = hetero["a", "to", "b"].edge_index.flip(0)
for batch in NeighborLoader(hetero, [3, 2], batch_size=20, input_nodes="a"):
    for source, _, target in batch.edge_types:
        store = batch[source, "to", target]
        ids = torch.stack([batch[source].n_id[store.edge_index[0]], batch[target].n_id[store.edge_index[1]]])
        assert ids.equal(hetero[source, "to", target].edge_index[:, store.e_id])

# The loader of docs/pyg.md, after the call that the page names for it.
import halfgnn.dataloading
import halfgnn.pyg

page = pathlib.Path("docs/pyg.md").read_text()
block = next(block for block in re.findall("```python\\n(.*?)```", page, re.DOTALL) if "NeighborLoader(" in block)
assert 'halfgnn.compat.install("pyg_lib")' in page[page.index(block) :][:1000]
device, model, outs = "cpu", halfgnn.pyg.SAGEConv(2, 3), []
exec(block.replace(chr(34) + "cuda" + chr(34), "device").replace("num_workers=2", "batch_size=30") + "    outs.append(out)")
assert sum(map(len, outs)) >= 100
print("sampled")
"""


def test_loaders_run_without_pyg_lib():
    root = Path(__file__).resolve().parents[3]
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=root, capture_output=True, text=True, check=False)
    assert done.stdout.endswith("sampled\n"), done.stderr
