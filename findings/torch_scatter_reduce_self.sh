#!/usr/bin/env bash
# torch 2.13.0, torch_geometric 2.8.1, CPU: gradients of extremes that are 0 are halved.
#
# The backward of scatter_reduce with amax or amin and include_self=False divides the gradient among all that equal the result, and
# counts the tensor that it began with, which takes no part. torch_geometric begins with zeros: an aggregation by max of features
# after a ReLU, or a min of differences with a self-loop, passes on half of the gradient wherever the extreme is 0. The guess was
# that the whole gradient reaches the only winner, as it does where the result began with another number.
#
# Seen on 2026-11-29, x86-64: a gradient of 0.5 for the only winner, 1 beside. Fails if that has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install -q --disable-pip-version-check torch==2.13.0 numpy torch_geometric==2.8.1
"$folder/env/bin/python" - <<'PYTHON'
import torch
import torch_geometric
from torch_geometric.nn.aggr import MaxAggregation

index = torch.tensor([0, 0])


def by_torch(initial):
    x = torch.tensor([0.0, -2.0], requires_grad=True)
    out = torch.full((1,), initial).scatter_reduce(0, index, x, "amax", include_self=False)
    return torch.autograd.grad(out.sum(), x)[0].tolist()


def by_torch_geometric(x):
    x = torch.tensor(x, requires_grad=True)
    return torch.autograd.grad(MaxAggregation()(x, index).sum(), x)[0].flatten().tolist()


found = {
    "scatter_reduce into zeros, winner 0": by_torch(0.0),
    "MaxAggregation, winner 0": by_torch_geometric([[0.0], [-2.0]]),
    "scatter_reduce into sevens, winner 0": by_torch(7.0),
    "MaxAggregation, winner 1": by_torch_geometric([[1.0], [-2.0]]),
}
print(torch.__version__, torch_geometric.__version__)
for name, gradient in found.items():
    print(f"{name}: {gradient}")
assert list(found.values()) == [[0.5, 0.0], [0.5, 0.0], [1.0, 0.0], [1.0, 0.0]], found
PYTHON
