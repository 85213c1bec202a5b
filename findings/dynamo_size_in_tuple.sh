#!/usr/bin/env bash
# torch 2.13.0, CPU: in compiled code `size in (3, other.shape[1])` is False for a size that equals the second one, if that size is
# known and the other is symbolic. The code goes the other way at an `if`, and no guard or message says so.
#
# Here the size is a parameter's, which is static, and the other that of an input under dynamic=True. `==` of the same two sizes asks
# for a guard and is right. So are memberships where both sizes are symbolic.
# Guess beforehand: `in` of a tuple is any(==), for symbolic sizes too.
#
# Seen on 2026-11-29: `in` is True in eager code and False compiled; `==` is True in both.
# Fails if the two agree.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install -q --disable-pip-version-check torch==2.13.0 numpy setuptools
"$folder/env/bin/python" - <<'PYTHON'
import torch


def is_member(x, weight):
    return x.new_tensor(1 if weight.shape[1] in (3, x.shape[1]) else 0)


def is_equal(x, weight):
    return x.new_tensor(1 if weight.shape[1] == 3 or weight.shape[1] == x.shape[1] else 0)


x, weight = torch.zeros(5, 16), torch.nn.Parameter(torch.zeros(64, 16))
found = {}
for function in (is_member, is_equal):
    torch.compiler.reset()
    compiled = torch.compile(function, dynamic=True, backend="eager")
    found[function.__name__] = bool(function(x, weight)), bool(compiled(x, weight))
print(torch.__version__, "eager, compiled:", found)
assert found["is_equal"] == (True, True)
assert found["is_member"] == (True, False), "compiled code takes sizes for equal now"
PYTHON
