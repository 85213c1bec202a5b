"""Unmodified dgl.nn modules on CUDA tensors, and DGL's own CPU results as the reference.

DGL from PyPI has no CUDA and can hold no graph on a GPU. Its Python layer only compares devices and leaves the rest to the
functions that halfgnn replaces, so a graph may pose as one on the GPU: halfgnn keeps a copy of its structure there.
"""

import contextlib
import sys
from pathlib import Path
from unittest import mock

import pytest
import torch

from tests.gpu import gpu_cases
from tests.gpu.gpu_cases import DEVICE

dgl = pytest.importorskip("dgl", reason="dgl is not installed", exc_type=ImportError)
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

import gat_amp  # noqa: E402

import halfgnn.dgl  # noqa: E402
from tests.dgl import test_modules as modules  # noqa: E402
from tests.gpu.test_gpu_training import NUM_CLASSES, NUM_NODES, communities  # noqa: E402

pytestmark = gpu_cases.needs_gpu

HALVES = [torch.float16, torch.bfloat16]
# User-defined functions gather rows by the ids of the posing graph, and these ids are on the CPU.
NAMES = [name for name, case in modules.CASES.items() if not case.udf]


def _degrees(name, device):
    """in_degrees or out_degrees of the graph without posing, with the result moved to the GPU."""
    original = getattr(dgl.DGLGraph, name)

    def method(graph, *args, **kwargs):
        with mock.patch.object(dgl.DGLGraph, "device", property(lambda g: torch.device("cpu"))):
            return original(graph, *args, **kwargs).to(device)

    return mock.patch.object(dgl.DGLGraph, name, method)


@contextlib.contextmanager
def graphs_pose_on(device):
    device = torch.device(device)
    with contextlib.ExitStack() as stack:
        for name in ("in_degrees", "out_degrees"):
            stack.enter_context(_degrees(name, device))
        stack.enter_context(mock.patch.object(dgl.DGLGraph, "device", property(lambda g: device)))
        yield


@pytest.fixture(autouse=True)
def _clean():
    halfgnn.dgl.unpatch()
    halfgnn.dgl.reset_stats()
    yield
    halfgnn.dgl.unpatch()


def on_gpu(case, g, dtype, autocast=None):
    """Output and gradients on the GPU, from the same numbers as in modules.run."""
    torch.manual_seed(1)
    module = case.make().to(dtype).to(DEVICE)
    feat = torch.randn(g.num_src_nodes(), modules.IN_FEATS, dtype=torch.float64).to(dtype).to(DEVICE).requires_grad_()
    kwargs = {name: make(g, dtype).to(DEVICE) for name, make in case.edge_data.items()}
    leaves = [feat, *module.parameters()]
    leaves += [value.requires_grad_() for value in kwargs.values() if value.is_floating_point()]
    torch.manual_seed(2)
    entered = contextlib.nullcontext() if autocast is None else torch.autocast(DEVICE, autocast)
    with halfgnn.dgl.accelerate(), graphs_pose_on(DEVICE):
        with entered:
            out = module(g, feat, **kwargs)
        grad = torch.randn(out.shape, dtype=torch.float64).to(out.dtype).to(DEVICE)
        grads = torch.autograd.grad(out, leaves, grad, allow_unused=True)
    assert out.device.type == torch.device(DEVICE).type
    return [None if x is None else x.detach().cpu() for x in (out, *grads)]


@pytest.mark.parametrize("name", NAMES)
def test_fp32_is_dgls(name):
    case, g = modules.CASES[name], modules.make_graph()
    expected = modules.run(case, g, torch.float32)
    modules.assert_all_close(on_gpu(case, g, torch.float32), expected, rtol=1e-3, atol=1e-3)  # tf32 is off by default
    modules.assert_routed(case)


@pytest.mark.parametrize("name", [name for name in NAMES if modules.CASES[name].on_blocks])
def test_blocks(name):
    case, block = modules.CASES[name], modules.make_block()
    expected = modules.run(case, block, torch.float32)
    modules.assert_all_close(on_gpu(case, block, torch.float32), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_half(name, dtype):
    case, g = modules.CASES[name], modules.make_graph(torch.int32)
    actual = on_gpu(case, g, dtype)
    assert all(x is None or x.dtype is dtype for x in actual)
    modules.assert_near(actual, modules.run(case, g, torch.float32), dtype)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_autocast(name, dtype):
    case, g = modules.CASES[name], modules.make_graph()
    actual = on_gpu(case, g, torch.float32, autocast=dtype)
    assert all(x is None or x.dtype is torch.float32 for x in actual[1:]), "gradients of fp32 leaves are fp32"
    modules.assert_near(actual, modules.run(case, g, torch.float32), dtype)


def train_gat(device, dtype, epochs=60):
    """(losses, accuracy) of the guide's GAT, fp16 with a GradScaler."""
    src, dst, features, labels = communities()
    graph = dgl.graph((src, dst), num_nodes=NUM_NODES)
    nodes = torch.arange(NUM_NODES)
    data = gat_amp.datasets.NodeData(
        "communities", "test", src, dst, features, labels, nodes, nodes, nodes, NUM_CLASSES
    )
    torch.manual_seed(0)
    model = gat_amp.GAT(features.shape[1], 16, NUM_CLASSES, [4, 1], final_activation=False).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scaler = gat_amp.make_scaler(torch.device(device).type, dtype)
    options = dict(epochs=epochs, dtype=dtype, scaler=scaler, eval_every=10, clip_norm=5.0)
    history = gat_amp.train(model, graph, data.to(device), optimizer, **options)
    return history.losses, history.test_accuracy


@pytest.mark.parametrize("dtype", [*HALVES, torch.float32], ids=str)
def test_loop_learns_what_dgl_learns(dtype):
    expected_losses, expected_accuracy = train_gat("cpu", torch.float32)
    with halfgnn.dgl.accelerate(), graphs_pose_on(DEVICE):
        losses, accuracy = train_gat(DEVICE, dtype)
    assert not halfgnn.dgl.stats()["fell_back"]
    assert expected_losses[-1] < 0.5 * expected_losses[0]
    assert losses[0] == pytest.approx(expected_losses[0], rel=0.02)
    assert losses[-1] == pytest.approx(expected_losses[-1], rel=0.1)
    assert abs(accuracy - expected_accuracy) <= 0.03


def test_gradients_repeat_bit_for_bit():
    with halfgnn.dgl.accelerate(), graphs_pose_on(DEVICE):
        first, second = (train_gat(DEVICE, torch.bfloat16, epochs=5)[0] for _ in range(2))
    assert first == second
