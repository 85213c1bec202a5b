#!/usr/bin/env bash
# torch 2.13.0, CPU: torch.gather by an expanded int32 index gathers wrong rows, and says nothing.
#
# gather accepts int32 ids, and gathers the right rows by a contiguous index. By the same ids as an expanded view,
# ids.view(-1, 1).expand(-1, columns), which is how rows are gathered, every row of the result is the row of the first id. scatter_add,
# scatter_reduce and index_select by the same view are right; take_along_dim refuses int32.
#
# Seen on 2026-11-28, x86-64: [[9, 10, 11], [9, 10, 11], [9, 10, 11]] for ids 3, 1, 2. Fails if that has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install -q --disable-pip-version-check torch==2.13.0 numpy
"$folder/env/bin/python" - <<'PYTHON'
import torch

x = torch.arange(12.0).view(4, 3)
ids = torch.tensor([3, 1, 2], dtype=torch.int32)
expanded = ids.view(-1, 1).expand(-1, 3)
found = x.gather(0, expanded)
print(torch.__version__)
print("expanded int32:", found.tolist())
print("contiguous int32:", x.gather(0, expanded.contiguous()).tolist())
print("expanded int64:", x.gather(0, expanded.long()).tolist())
assert torch.equal(x.gather(0, expanded.contiguous()), x[ids.long()])
assert torch.equal(x.gather(0, ids.long().view(-1, 1).expand(-1, 3)), x[ids.long()])
assert torch.equal(found, x[[3, 3, 3]]), found
PYTHON
