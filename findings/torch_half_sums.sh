#!/usr/bin/env bash
# torch 2.13.0, CPU: sums of bf16 and fp16 that are accumulated in half precision and stop growing.
#
# segment_reduce adds in the type of its data: the mean of 5,000 ones in bf16 is 0.0513 instead of 1, the sum in fp16 is 2,048. The
# gradients of x[index] and of torch.nn.functional.embedding stop at 256 in bf16. index_add and scatter_add of the same rows, whose
# results are half too, are not documented to differ; what they give is printed beside. torch_geometric calls segment_reduce for
# aggregations by ptr, and x[index] and embedding are in most programs.
#
# Seen on 2026-11-28, x86-64: mean 0.0513, sum 2048, gradients 256. Fails if one of them has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install -q --disable-pip-version-check torch==2.13.0 numpy
"$folder/env/bin/python" - <<'PYTHON'
import torch

COUNT = 5000
ones = torch.ones(COUNT, 1)
offsets = torch.tensor([0, COUNT])
index = torch.zeros(COUNT, dtype=torch.long)


def gradient(gather):
    x = torch.zeros(1, 1, dtype=torch.bfloat16, requires_grad=True)
    gather(x).sum().backward()
    return x.grad.item()


found = {
    "segment_reduce, mean, bf16": torch.segment_reduce(ones.bfloat16(), "mean", offsets=offsets).item(),
    "segment_reduce, sum, fp16": torch.segment_reduce(ones.half(), "sum", offsets=offsets).item(),
    "gradient of x[index], bf16": gradient(lambda x: x[index]),
    "gradient of embedding, bf16": gradient(lambda x: torch.nn.functional.embedding(index, x)),
}
beside = {
    "index_add, bf16": torch.zeros(1, 1, dtype=torch.bfloat16).index_add(0, index, ones.bfloat16()).item(),
    "scatter_add, bf16": torch.zeros(1, 1, dtype=torch.bfloat16).scatter_add(0, index[:, None], ones.bfloat16()).item(),
    "gradient of index_select, bf16": gradient(lambda x: x.index_select(0, index)),
}
print(torch.__version__)
for name, value in {**found, **beside}.items():
    print(f"{name}: {value:.4g}")
values = list(found.values())
assert 0.05 < values[0] < 0.06, values
assert values[1:] == [2048, 256, 256], values
PYTHON
