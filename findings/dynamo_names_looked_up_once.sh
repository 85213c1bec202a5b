#!/usr/bin/env bash
# Dynamo looks up PyTorch's functions by name once, when it first traces. A function whose name is bound to a wrapper at that
# moment, as by a profiler or a test's mock, is unknown to it from then on: after the name is bound to the function again,
# torch.compile(fullgraph=True) raises Unsupported, "Attempted to call function marked as skipped", and without fullgraph the graph
# ends there. torch.compiler.reset() does not help, clear_lru_cache() of torch._dynamo.trace_rules does.
#
# We expected that a wrapper that is gone leaves no trace. halfgnn's drop-in wraps torch.index_add while it is on
# (halfgnn/common/compat.py: forget_names_without).
#
# Seen on 2026-11-30 with torch 2.13.0. Fails if this changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 numpy==2.2.6
"$folder/venv/bin/python" - <<'PY'
import torch

x, index = torch.ones(3, 2), torch.arange(3)


def program(x):
    return torch.index_add(x, 0, index, x)


def works():
    torch.compiler.reset()
    try:
        return torch.compile(program, backend="eager", fullgraph=True)(x).sum().item() == 12
    except torch._dynamo.exc.Unsupported as error:
        print(str(error).splitlines()[0])
        return False


original = torch.index_add
torch.index_add = lambda *args: original(*args)
torch.compile(lambda x: torch.add(x, 1), backend="eager")(x)  # the first trace of the process
torch.index_add = original
after = works()
torch._dynamo.trace_rules.clear_lru_cache()
print(f"torch {torch.__version__}: after the wrapper {after}, after clear_lru_cache() {works()}")
assert not after and works()
PY
