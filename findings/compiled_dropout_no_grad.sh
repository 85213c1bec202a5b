#!/usr/bin/env bash
# torch 2.13.0, CPU: torch.compile loses the gradient of features that pass F.dropout(x, training=False) inside of torch.no_grad().
#
# Without training, dropout returns its very input, so in eager code the block changes nothing: the result has x's gradient. The result
# of the compiled function needs no gradient, with every backend that traces autograd, and no message says so. contiguous(), which
# also returns its input, keeps the gradient when it is compiled.
# Guess beforehand: what is compiled has the gradients of eager code.
#
# Seen on 2026-11-29, requires_grad of the result: eager True, compiled with the backend eager True, aot_eager False, inductor False;
# of contiguous always True.
# Fails if compiled code keeps the gradient.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install -q --disable-pip-version-check torch==2.13.0 numpy setuptools
TORCHINDUCTOR_CACHE_DIR="$folder/cache" "$folder/env/bin/python" - <<'PYTHON'
import torch
import torch.nn.functional as F


def dropped(x):
    rows = x * 2
    with torch.no_grad():
        return F.dropout(rows, 0.5, training=False)


def contiguous(x):
    rows = x * 2
    with torch.no_grad():
        return rows.contiguous()


for function in (dropped, contiguous):
    found = {}
    for backend in (None, "eager", "aot_eager", "inductor"):
        torch.compiler.reset()
        run = function if backend is None else torch.compile(function, backend=backend)
        out = run(torch.ones(4, 3, requires_grad=True))
        found[str(backend)] = out.requires_grad
    print(torch.__version__, function.__name__, found)
    assert found["None"]
    if function is dropped:
        assert not found["aot_eager"] and not found["inductor"], "the gradient is there now"
    else:
        assert all(found.values())
PYTHON
