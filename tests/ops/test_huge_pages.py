"""Large results on the CPU are advised to lie in huge pages."""

from __future__ import annotations

import ctypes
import mmap
import os

import pytest
import torch

from halfgnn import Graph, ops
from halfgnn.common import memory

NUM_NODES = 1 << 13
SETTING = "/sys/kernel/mm/transparent_hugepage/enabled"

pytestmark = pytest.mark.skipif(not os.path.exists(SETTING), reason="a system without huge pages")


def is_advised(tensor):
    """Whether the mapping that holds the middle of a tensor has the flag of MADV_HUGEPAGE."""
    return is_advised_at(tensor.data_ptr() + tensor.numel() * tensor.element_size() // 2)


def is_advised_at(address):
    is_inside = False
    with open("/proc/self/smaps") as file:
        for line in file:
            first = line.split()[0]
            if not first.endswith(":"):
                begin, end = (int(x, 16) for x in first.split("-"))
                is_inside = begin <= address < end
            elif is_inside and first == "VmFlags:":
                return "hg" in line.split()
    raise AssertionError("no mapping holds the address")


@pytest.fixture
def graph():
    nodes = torch.arange(NUM_NODES)
    return Graph.from_edges(nodes, nodes.flip(0), num_src=NUM_NODES, num_dst=NUM_NODES)


def test_results_and_gradients(graph):
    feat = torch.ones(NUM_NODES, 4, 64, requires_grad=True)  # 8 MB
    logits = torch.ones(NUM_NODES, 4)
    out = ops.gat_attention(graph, feat, logits, logits)
    (grad,) = torch.autograd.grad(out, feat, torch.ones_like(out).contiguous())
    assert is_advised(out)
    assert is_advised(grad)
    assert is_advised(ops.copy_u_sum(graph, feat.detach()))
    assert torch.equal(out, feat)
    assert torch.equal(grad, feat)


def test_memory_for_pytorchs_operators():
    """What is smaller may lie in memory that was advised for an earlier result."""
    result = memory.empty(torch.zeros(1), (1 << 14, 128), torch.bfloat16)  # 4 MB
    assert result.shape == (1 << 14, 128)
    assert result.dtype == torch.bfloat16
    assert is_advised(result)


def test_small_memory_is_not_advised():
    """In a mapping of its own, which no other result had."""
    with mmap.mmap(-1, 1 << 22) as mapping:
        memory._advise_huge_pages(ctypes.addressof(begin := ctypes.c_char.from_buffer(mapping)), (1 << 22) - 1)
        advised = is_advised_at(ctypes.addressof(begin) + (1 << 21))
        del begin
    assert not advised
