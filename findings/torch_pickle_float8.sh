#!/usr/bin/env bash
# torch 2.13.0, CPU: pickle writes tensors of float8 and of uint16, uint32, uint64, and cannot read them back.
#
# pickle.dumps of such a tensor succeeds; pickle.loads raises AttributeError: type object 'torch.storage.UntypedStorage' has no
# attribute 'dtype'. torch.save with torch.load, and copy.deepcopy, keep all of them, and pickle keeps bfloat16 and int16. So what
# a program pickles to a worker of its own is lost where it is read.
#
# Seen on 2026-11-30, x86-64: the error for float8_e4m3fn, float8_e5m2, uint16, uint32 and uint64. Fails if that has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install -q --disable-pip-version-check torch==2.13.0 numpy
"$folder/env/bin/python" - <<'PYTHON'
import copy
import io
import pickle

import torch

print(torch.__version__)
for dtype in (torch.float8_e4m3fn, torch.float8_e5m2, torch.uint16, torch.uint32, torch.uint64, torch.bfloat16, torch.int16):
    x = torch.arange(4.0).to(dtype)
    file = io.BytesIO()
    torch.save(x, file)
    file.seek(0)
    assert torch.equal(torch.load(file).view(torch.uint8), x.view(torch.uint8))
    assert torch.equal(copy.deepcopy(x).view(torch.uint8), x.view(torch.uint8))
    written = pickle.dumps(x)
    try:
        found = str(pickle.loads(written).dtype)
    except AttributeError as error:
        found = f"AttributeError: {error}"
    print(f"{dtype}: {found}")
    is_kept = dtype in (torch.bfloat16, torch.int16)
    assert (found == str(dtype)) if is_kept else ("UntypedStorage" in found and "'dtype'" in found), found
PYTHON
