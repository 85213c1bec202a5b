"""A compiled step launches few kernels on CUDA, by Inductor's code for a GPU that is only described."""

import pytest
import torch

pytest.importorskip("torch_geometric")
pytest.importorskip("triton")
if not torch.__version__.startswith("2.11.") or torch.version.cuda is None:
    pytest.skip("fake_gpu.py replaces parts of torch 2.11 with CUDA", allow_module_level=True)

from laboratory.compiled_cuda import __main__ as program


@pytest.mark.parametrize("name, most, operator", [("GCNConv", 12, "gspmm"), ("GATConv", 16, "gat_attention")])
def test_launches(name, most, operator):
    forward, backward = counts = program.calls(program.layers()[name])
    assert forward[f"halfgnn.{operator}"] == backward[f"halfgnn.{operator}_backward"] == 1
    assert (forward["extern_kernels.mm"], backward["extern_kernels.mm"]) == (1, 2)
    assert sum(program.launches(counts)) <= most
