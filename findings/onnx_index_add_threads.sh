#!/usr/bin/env bash
# torch 2.13.0, onnxscript 0.7.2, onnxruntime 1.32.0, CPU: an exported index_add loses terms when several threads add to one row.
#
# The exporter translates index_add to ScatterND with reduction "add". With one thread ONNX Runtime's sums are right; with four a run
# is wrong now and then, without a warning. Terms are small integers, so that any order of adding gives the same floats.
# Guess beforehand: the number of threads changes the time alone. Sums over the edges of a node are index_add in most plain programs.
#
# Seen on 2026-11-29, x86-64, AMD EPYC family 23 model 1, two cores, 40,000 x 32 values into 200 of 2,000 rows: of 100 runs 0 were wrong
# with one thread, 4 with four.
# Fails if no run of 2,000 is wrong with four threads, or one of 100 is with one thread.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install -q --disable-pip-version-check torch==2.13.0 numpy onnx==1.23.2 onnxscript==0.7.2 onnxruntime==1.32.0
"$folder/env/bin/python" - <<'PYTHON'
import numpy as np
import onnxruntime
import torch


class Sum(torch.nn.Module):
    def forward(self, x, index):
        return x.new_zeros(2000, 32).index_add(0, index, x)


generator = torch.Generator().manual_seed(0)
x = torch.randint(-8, 8, (40_000, 32), generator=generator).float()
index = torch.randint(200, (40_000,), generator=generator)
made = torch.onnx.export(Sum(), (x, index), dynamo=True, verbose=False)
print("operators:", ", ".join(node.op_type for node in made.model.graph))
expected = Sum()(x, index).numpy()


def wrong(threads, most, enough):
    """Of how many runs how many were wrong, until enough were."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(made.model_proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    inputs = {slot.name: value.numpy() for slot, value in zip(session.get_inputs(), (x, index), strict=True)}
    found = 0
    for run in range(1, most + 1):
        found += not np.array_equal(session.run(None, inputs)[0], expected)
        if found == enough:
            break
    print(f"onnxruntime {onnxruntime.__version__}, {threads} threads: {found} of {run} runs are wrong")
    return found


assert wrong(1, 100, 1) == 0, "one thread is wrong, too"
assert wrong(4, 2000, 3) > 0, "sums are right now"
PYTHON
