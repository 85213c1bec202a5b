"""Training under AMP on the GPU, without DGL: a GAT of halfgnn.ops learns what the CPU learns in fp32."""

import functools

import pytest
import torch
import torch.nn.functional as F

import halfgnn
from tests.gpu import gpu_cases
from tests.gpu.test_gpu_capture import Attention

pytestmark = gpu_cases.needs_gpu

NUM_NODES, NUM_CLASSES, WIDTH = 600, 4, 24
HALVES = [torch.float16, torch.bfloat16]


@functools.lru_cache(maxsize=1)
def communities():
    """(src, dst, features, labels). Nodes cite mostly their own class, and features show the class only weakly."""
    generator = torch.Generator().manual_seed(3)
    labels = torch.arange(NUM_NODES) % NUM_CLASSES
    src = torch.randint(NUM_NODES, (6_000,), generator=generator)
    own = torch.randint(NUM_NODES // NUM_CLASSES, (6_000,), generator=generator) * NUM_CLASSES + labels[src]
    anywhere = torch.randint(NUM_NODES, (6_000,), generator=generator)
    dst = torch.where(torch.rand(6_000, generator=generator) < 0.8, own, anywhere)
    loops = torch.arange(NUM_NODES)
    features = torch.randn(NUM_NODES, WIDTH, generator=generator)
    features[:, :NUM_CLASSES] += F.one_hot(labels, NUM_CLASSES)
    return torch.cat([src, loops]), torch.cat([dst, loops]), features, labels


def model_on(device):
    torch.manual_seed(0)
    src, dst, features, labels = (t.to(device) for t in communities())
    g = halfgnn.Graph.from_edges(src, dst, num_src=NUM_NODES, num_dst=NUM_NODES)
    layers = [Attention(g, WIDTH, 4, 16), torch.nn.ELU(), Attention(g, 64, 1, NUM_CLASSES)]
    return torch.nn.Sequential(*layers).to(device), features, labels


def train(device, dtype, epochs=60, init_scale=2.0**16):
    """(losses, accuracy, skipped steps)"""
    model, features, labels = model_on(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler(device, init_scale=init_scale, enabled=dtype == torch.float16)
    losses, skipped = [], 0
    for _ in range(epochs):
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device, dtype, enabled=dtype != torch.float32):
            logits = model(features)
        assert logits.dtype == dtype
        loss = F.cross_entropy(logits.float(), labels)
        scaler.scale(loss).backward()
        assert all(p.grad.dtype == torch.float32 for p in model.parameters())
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        before = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        skipped += scaler.get_scale() < before
        losses.append(loss.item())
    return losses, (logits.argmax(1) == labels).float().mean().item(), skipped


@functools.lru_cache(maxsize=1)
def on_the_cpu():
    return train("cpu", torch.float32)


@pytest.mark.parametrize("dtype", [*HALVES, torch.float32], ids=str)
def test_learns_what_the_cpu_learns_in_fp32(dtype):
    losses, accuracy, skipped = train(gpu_cases.DEVICE, dtype)
    expected_losses, expected_accuracy, _ = on_the_cpu()
    assert expected_losses[-1] < 0.5 * expected_losses[0] and skipped <= 1
    assert losses[0] == pytest.approx(expected_losses[0], rel=0.02)
    assert losses[-1] == pytest.approx(expected_losses[-1], rel=0.1)
    assert abs(accuracy - expected_accuracy) <= 0.03


def test_an_overflow_skips_the_step():
    losses, _, skipped = train(gpu_cases.DEVICE, torch.float16, epochs=40, init_scale=2.0**40)
    assert 1 <= skipped <= 30
    assert losses[-1] < losses[0]
