#!/usr/bin/env bash
# torch_geometric 2.8.1, torch 2.13.0, CPU: a layer that calls propagate() by another name than `self` raises TypeError.
#
# The arguments of propagate() are looked for in the source of the class: in the text "self.propagate(" or in a comment
# "# propagate_type: (...)". Python does not prescribe the name of the first parameter. If neither is found, the propagate() that is
# generated for the class takes no features, and the call raises "propagate() got an unexpected keyword argument".
#
# Seen on 2026-12-01, x86-64: TypeError; with "self", or with the comment, a sum. Expected: the same sum whatever the parameter is
# called. Fails if that has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install -q --disable-pip-version-check torch==2.13.0 torch_geometric==2.8.1
cat > "$folder/layers.py" <<'PYTHON'
import torch
import torch_geometric
from torch_geometric.nn import MessagePassing

print(torch.__version__, torch_geometric.__version__)


class Usual(MessagePassing):
    def forward(self, x, edge_index):
        return self.propagate(edge_index, x=x)


class Other(MessagePassing):
    def forward(layer, x, edge_index):
        return layer.propagate(edge_index, x=x)


class Commented(MessagePassing):
    def forward(layer, x, edge_index):
        # propagate_type: (x: Tensor)
        return layer.propagate(edge_index, x=x)


x, edge_index = torch.eye(3), torch.tensor([[0, 1, 2], [1, 1, 0]])
expected = torch.tensor([[0.0, 0, 1], [1, 1, 0], [0, 0, 0]])
for kind in (Usual, Commented):
    assert torch.equal(kind()(x, edge_index), expected)
    print(kind.__name__, "-> the sum of neighbours")
try:
    Other()(x, edge_index)
    raise SystemExit("Other is summed, too")
except TypeError as error:
    print(Other.__name__, "->", f"TypeError: {error}")
    assert "propagate() got an unexpected keyword argument 'x'" in str(error)
PYTHON
"$folder/env/bin/python" "$folder/layers.py"
