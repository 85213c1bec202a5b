"""examples/backends.py and report.py: where a backend runs, and what a step costs."""

import backends
import datasets
import gat_amp
import pytest
import report
import torch
from training import DTYPES

from halfgnn.drop_in import gate

dgl = pytest.importorskip("dgl")


def test_modes_on_the_cpu():
    cpu = torch.device("cpu")
    for dtype in DTYPES.values():
        halfgnn = backends.find_mode("halfgnn", cpu, dtype)
        assert (halfgnn.dtype, halfgnn.reason) == (dtype, None)
        dgl = backends.find_mode("dgl", cpu, dtype)
        assert dgl.dtype == torch.float32
        assert (dgl.reason is None) == (dtype == torch.float32)


def test_halfgnn_computes_where_the_features_are(monkeypatch):
    """DGL's graph stays on the CPU. Meta tensors, which have no data, stand in for a GPU's tensors."""
    meta = torch.device("meta")
    monkeypatch.setattr(gate, "types_on", lambda device: gate.CASTABLE_TYPES)
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda *device: False)  # raises for meta
    mode = backends.Mode(meta, torch.float32, features_only=True)
    ids = torch.arange(5, dtype=torch.int32)
    graph = mode.place(dgl.graph((ids, ids)))
    model = gat_amp.GAT(8, 4, 3, [2, 1]).to(meta)
    with backends.kernels_of("halfgnn", mode):
        logits = model(graph, torch.empty(5, 8, device=meta))
        logits.sum().backward()
    assert (logits.device, logits.shape) == (meta, (5, 3))
    assert all(parameter.grad.device == meta for parameter in model.parameters())
    assert graph.device == torch.device("cpu")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_halfgnn_trains_on_the_gpu(dtype):
    if not gate.types_on("cuda"):
        pytest.skip("not every operator has a CUDA kernel")
    mode = backends.find_mode("halfgnn", torch.device("cuda"), dtype)
    assert (mode.device.type, mode.dtype) == ("cuda", dtype)


def test_no_mode_at_all_is_an_error(monkeypatch):
    monkeypatch.setattr(backends, "probe", lambda backend, mode: f"DGLError: no {mode.dtype}")
    with pytest.raises(RuntimeError, match=r"dgl cannot train in fp16 on cpu: DGLError: no torch.float16"):
        backends.find_mode("dgl", torch.device("cpu"), torch.float16)


def test_peak_memory_of_a_step_on_the_cpu():
    nodes = torch.arange(1000)
    data = datasets.NodeData("x", "", nodes, nodes, torch.ones(1000, 16), nodes, nodes, nodes, nodes, 2)
    model = torch.nn.Linear(16, 4)
    optimizer = torch.optim.Adam(model.parameters())
    mib = 2**20

    def step():
        a = torch.empty(6 * mib, dtype=torch.uint8)
        b = torch.empty(5 * mib, dtype=torch.uint8)
        del a
        torch.empty(3 * mib, dtype=torch.uint8)
        del b

    resident = 1000 * 16 * 4 + 4 * 1000 * 8 + (16 * 4 + 4) * 4
    peak, matmul = report.measure_step(step, model, data, optimizer)
    assert matmul == 0
    assert 11 * mib + resident <= peak <= 11 * mib + resident + 64 * 1024
