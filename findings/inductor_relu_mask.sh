#!/usr/bin/env bash
# torch 2.13.0, CPU: compiled, a relu that needs a gradient is many times slower than PyTorch's own.
#
# Inductor keeps a mask of bool for the gradient and stores it value by value, with AVX-512 and with 256-bit vectors; without a gradient
# the same relu is as fast as PyTorch's. leaky_relu, clamp, dropout and where are alike.
# Guess beforehand: compiled and eager take the same time, both are bound by memory. Networks on edges under torch.compile spend most
# of their time there.
#
# Seen on 2026-11-29, x86-64, one thread, 45,000 x 64 values, milliseconds of a forward: AMD EPYC family 25 model 17 (AVX-512) PyTorch
# 0.9, compiled 28, compiled without a gradient 0.8; family 23 model 1 (256-bit) 5.6, 59.8 and 2.3 (a busy machine).
# Fails if the compiled forward is less than 4 times as slow.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install -q --disable-pip-version-check torch==2.13.0 numpy setuptools
TORCHINDUCTOR_CACHE_DIR="$folder/cache" "$folder/env/bin/python" - <<'PYTHON'
import time

import torch

torch.set_num_threads(1)


def milliseconds(function):
    times = []
    for _ in range(12):
        start = time.process_time()
        function()
        times.append(time.process_time() - start)
    return 1e3 * sorted(times)[3]


x = torch.randn(45_000, 64)
needing = x.clone().requires_grad_()
compiled = torch.compile(torch.relu)
eager_ms = milliseconds(lambda: torch.relu(needing))
found_ms = milliseconds(lambda: compiled(needing))
plain_ms = milliseconds(lambda: compiled(x))
print(torch.__version__, f"eager {eager_ms:.1f}, compiled {found_ms:.1f}, compiled without a gradient {plain_ms:.1f}")
assert torch.equal(compiled(needing), torch.relu(needing))
assert found_ms > 4 * eager_ms, "it is fast now"
PYTHON
