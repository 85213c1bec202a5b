#!/usr/bin/env bash
# torch 2.13.0, torch_geometric 2.8.1, CPU: a median fails if the first node has no in-edge.
#
# MedianAggregation and QuantileAggregation fill groups without elements with fill_value. The place of such a group's quantile is
# half an element before its begin, which is in the group before; of the first group it is -1. The guess was that the first group is
# filled as the others are. It raises an IndexError: any layer with aggr="median" on a graph whose node 0 has no in-edge.
#
# Seen on 2026-11-29, x86-64. Fails if that has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install -q --disable-pip-version-check torch==2.13.0 numpy torch_geometric==2.8.1
"$folder/env/bin/python" - <<'PYTHON'
import torch
import torch_geometric
from torch_geometric.nn import SimpleConv
from torch_geometric.nn.aggr import MedianAggregation, QuantileAggregation

x = torch.tensor([[1.0], [5.0], [2.0]])


def outcome(function):
    try:
        return function().flatten().tolist()
    except IndexError as error:
        return type(error).__name__


found = {
    "median, group 1 is empty": outcome(lambda: MedianAggregation()(x, torch.tensor([0, 0, 2]), dim_size=3)),
    "median, the last is empty": outcome(lambda: MedianAggregation()(x, torch.tensor([0, 0, 1]), dim_size=3)),
    "median, the first is empty": outcome(lambda: MedianAggregation()(x, torch.tensor([1, 1, 2]), dim_size=3)),
    "quantile 0.3, the first is empty": outcome(lambda: QuantileAggregation(0.3)(x, torch.tensor([1, 1, 2]), dim_size=3)),
    "SimpleConv, no edge into node 0": outcome(lambda: SimpleConv(aggr="median")(x, torch.tensor([[0, 1], [1, 2]]))),
}
print(torch.__version__, torch_geometric.__version__)
for name, value in found.items():
    print(f"{name}: {value}")
expected = [[1.0, 0.0, 2.0], [1.0, 2.0, 0.0], "IndexError", "IndexError", "IndexError"]
assert list(found.values()) == expected, found
PYTHON
