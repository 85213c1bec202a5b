#!/usr/bin/env bash
# torch_geometric 2.8.1 with torch 2.13.0: a layer with flow="target_to_source" and a pair of feature tensors gathers other rows in
# explain mode than without.
#
# The propagate that torch_geometric generates per layer gathers x_j from x[0] by row 1 of edge_index under this flow, and notes the
# number of rows of x[0] for row 0: the result has one row per row of x[0]. The generic code, which runs in explain mode, gathers x_j
# from x[1] by row 1. So the same layer with the same weights returns zeros here (x[0] is zeros) and ones there (x[1] is ones).
#
# Seen on 2026-11-28: [0, 0, 0] and [1, 1, 1]. Fails if that has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install -q --disable-pip-version-check torch==2.13.0 numpy torch_geometric==2.8.1
"$folder/env/bin/python" - <<'PYTHON'
import torch
import torch_geometric
from torch_geometric.explain.algorithm.utils import set_masks
from torch_geometric.nn import SimpleConv

x = torch.zeros(3, 1), torch.ones(3, 1)
edge_index = torch.tensor([[0, 1, 2], [2, 0, 1]])
layer = SimpleConv(aggr="sum", flow="target_to_source")
plain = layer(x, edge_index).flatten().tolist()
set_masks(layer, torch.ones(3), edge_index, apply_sigmoid=False)  # explain mode, in which every edge counts in full
explained = layer(x, edge_index).flatten().tolist()
print(f"torch {torch.__version__}, torch_geometric {torch_geometric.__version__}: {plain}, in explain mode {explained}")
assert plain == [0, 0, 0] and explained == [1, 1, 1]
PYTHON
