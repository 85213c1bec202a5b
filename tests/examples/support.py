"""What several tests of the examples need: where Cora is, and a small graph whose classes can be learnt."""

import os
from pathlib import Path

import datasets
import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
PLANETOID = Path(os.environ.get("HALFGNN_DATA") or ROOT.parent / "shared" / "data" / "planetoid")
has_planetoid = datasets.planetoid_folder("cora", PLANETOID) is not None
has_packaged = datasets.packaged("cora") is not None
needs_cora = pytest.mark.skipif(
    not (has_planetoid or has_packaged),
    reason="no Cora: no Planetoid folder in HALFGNN_DATA, no graphdatascience wheel with pyarrow",
)
needs_planetoid = pytest.mark.skipif(not has_planetoid, reason="no Planetoid folder in HALFGNN_DATA")
needs_packaged = pytest.mark.skipif(not has_packaged, reason="the graphdatascience wheel or pyarrow is not installed")


def random_data(num_nodes=60, num_edges=400, num_feats=12, num_classes=4):
    generator = torch.Generator().manual_seed(1)
    loops = torch.arange(num_nodes, dtype=torch.int32)
    src, dst = torch.randint(num_nodes, (2, num_edges), generator=generator, dtype=torch.int32)
    features = torch.randn(num_nodes, num_feats, generator=generator)
    labels = features[:, :num_classes].argmax(1)
    ids = torch.arange(num_nodes)
    split = (ids[:40], ids[40:50], ids[50:])
    edges = (torch.cat([src, loops]), torch.cat([dst, loops]))
    return datasets.NodeData("random", "test", *edges, features, labels, *split, num_classes)
