#!/usr/bin/env bash
# torch 2.13.0, CPU: an operator of torch.library whose schema has a Tensor takes None for it, where PyTorch's own operators refuse.
#
# The dispatcher checks the arguments of a call by the schema: 3 or a string for a Tensor is refused for every operator, and None for
# an int. None for a Tensor is handed on, as None to a kernel in Python and as an undefined tensor to one in C++. PyTorch's own
# operators refuse it in code that is generated for them ("Expected a proper Tensor but got None"), which an operator of a program
# does not have. So it has to ask every tensor that is not optional.
#
# Seen on 2026-12-01, x86-64: the kernel gets None. Expected: the error that a string gets. Fails if that has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install -q --disable-pip-version-check torch==2.13.0 numpy
"$folder/env/bin/python" - <<'PYTHON'
import torch

print(torch.__version__)
library = torch.library.Library("finding", "DEF")
library.define("kind(Tensor x, int n) -> str")
library.impl("kind", lambda x, n: type(x).__name__, "CompositeExplicitAutograd")


def result(operator, *arguments):
    try:
        return operator(*arguments)
    except RuntimeError as error:
        return f"RuntimeError: {str(error).splitlines()[0]}"


for arguments in ((torch.ones(1), 1), (None, 1), ("x", 1), (3, 1), (torch.ones(1), None)):
    print(arguments, "->", result(torch.ops.finding.kind, *arguments))
assert result(torch.ops.finding.kind, torch.ones(1), 1) == "Tensor"
assert result(torch.ops.finding.kind, None, 1) == "NoneType"
for arguments in (("x", 1), (3, 1), (torch.ones(1), None)):
    assert result(torch.ops.finding.kind, *arguments).startswith("RuntimeError: finding::kind() Expected a value of type"), arguments
own = result(torch.ops.aten.sin, None)
print("aten::sin(None) ->", own)
assert "Expected a proper Tensor but got None" in own
PYTHON
