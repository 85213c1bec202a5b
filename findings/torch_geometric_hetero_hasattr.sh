#!/usr/bin/env bash
# torch_geometric 2.8.1: hasattr(data, "x_dict") of a HeteroData without x raises KeyError, and getattr with a default does, too.
#
# Python's protocol wants AttributeError for a name that is not there; Data, and HeteroData with other names, raise it. Code that
# looks for an attribute of any data object by getattr(data, name, None) meets it for names that end in "_dict", also private ones.
# Guess beforehand: hasattr is False.
#
# Seen on 2026-11-29: KeyError for "x_dict" and "_slice_dict" of an empty HeteroData; False and None for Data and for "x".
# Fails if that changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install -q --disable-pip-version-check torch==2.13.0 numpy torch_geometric==2.8.1
"$folder/env/bin/python" - <<'PYTHON'
import torch_geometric
from torch_geometric.data import Data, HeteroData


def kind(function):
    try:
        return repr(function())
    except KeyError:
        return "KeyError"


print("torch_geometric", torch_geometric.__version__)
for name, expected in (("x_dict", "KeyError"), ("_slice_dict", "KeyError"), ("x", "False")):
    found = kind(lambda: hasattr(HeteroData(), name))
    print(f"HeteroData, {name}: {found}, with a default {kind(lambda: getattr(HeteroData(), name, None))}")
    assert found == expected, "it is another now"
    assert kind(lambda: hasattr(Data(), name)) in ("False", "True")
assert kind(lambda: getattr(HeteroData(), "x_dict", None)) == "KeyError"
PYTHON
