"""DGL's half precision beside halfgnn's on one graph whose correct results are known: prints the table of docs/dgl.md.

    python examples/dgl_half_precision.py

The graph has one node with 10,000 in-edges, like the hubs of real graphs. Needs DGL. The DGL of PyPI runs only on CPUs.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.append(str(Path(__file__).resolve().parents[1]))  # a checkout that is not installed

import torch
from packages import explained

try:
    import dgl
    import dgl.nn as dglnn
    import dgl.ops
except ImportError as error:
    sys.exit(f"dgl_half_precision: {explained(error)}")

import halfgnn
import halfgnn.dgl

NUM_EDGES = 10_000


def hub() -> dgl.DGLGraph:
    """A graph in which all nodes point at node 0."""
    return dgl.graph((torch.arange(NUM_EDGES), torch.zeros(NUM_EDGES, dtype=torch.int64)), num_nodes=NUM_EDGES)


def shown(compute, *args) -> str:
    """The number, or the error's message."""
    try:
        return f"{compute(*args):.6g}"
    except Exception as error:
        message = str(error).splitlines()[0]
        return f"{type(error).__name__}: {message.rpartition('.cc:')[2].partition(': ')[2] or message}".partition(
            ", please"
        )[0]


def operator_cases(dtype: torch.dtype):
    """(description, correct result, a function that computes it with given operators)"""
    g, generator = hub(), torch.Generator().manual_seed(0)
    ones = torch.ones(NUM_EDGES, 1, dtype=dtype)
    wide = (20 * torch.randn(NUM_EDGES, 256, generator=generator)).to(dtype)
    logits = torch.randn(NUM_EDGES, 1, generator=generator).to(dtype)
    dot = (wide[5].double() * wide[0].double()).sum().item()
    yield "sum of 10,000 ones", 10_000, lambda ops: ops.copy_u_sum(g, ones)[0].item()
    yield "u_dot_v of 256 values", dot, lambda ops: ops.u_dot_v(g, wide, wide)[5].item()
    yield "sum of edge_softmax over the hub", 1, lambda ops: ops.edge_softmax(g, logits).double().sum().item()
    yield "relative error of its gradient", 0, lambda ops: softmax_gradient_error(ops, g, logits)


def softmax_gradient_error(ops, g: dgl.DGLGraph, logits: torch.Tensor) -> float:
    """Largest error of the gradient of sum(softmax ** 2), relative to the largest value of the gradient."""
    logits, exact = logits.clone().requires_grad_(), logits.double().requires_grad_()
    ops.edge_softmax(g, logits).float().square().sum().backward()
    torch.softmax(exact, 0).square().sum().backward()
    return ((logits.grad.double() - exact.grad).abs().max() / exact.grad.abs().max()).item()


def gat_loss(dtype: torch.dtype) -> float:
    """The loss of dgl.nn's GATConv after a backward, under autocast unless dtype is float32."""
    torch.manual_seed(0)
    g = dgl.add_self_loop(dgl.graph((torch.arange(49), torch.arange(1, 50)), num_nodes=50))
    module, feat = dglnn.GATConv(8, 4, num_heads=2), torch.randn(50, 8)
    with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
        loss = module(g, feat).float().square().mean()
    loss.backward()
    return loss.item()


def rows(dtype: torch.dtype):
    """(description, correct result, DGL's result, halfgnn's result)"""
    for what, correct, compute in operator_cases(dtype):
        yield what, f"{correct:.6g}", shown(compute, dgl.ops), shown(compute, halfgnn.ops)
    theirs = shown(gat_loss, dtype)
    with halfgnn.dgl.accelerate():
        ours = shown(gat_loss, dtype)
    yield "loss of dgl.nn.GATConv under autocast", f"{gat_loss(torch.float32):.6g} in fp32", theirs, ours


def main() -> None:
    print("| | type | correct | DGL | halfgnn |\n|---|---|---:|---:|---:|")
    for name, dtype in {"bf16": torch.bfloat16, "fp16": torch.float16}.items():
        for what, *results in rows(dtype):
            print("|", " | ".join([what, name, *results]), "|")


if __name__ == "__main__":
    main()
