"""gather_limit, which is for measurements, reads every word that an SpMM reads, once per edge."""

import pytest
import torch

from benchmarks.yardsticks import gather_limit, has_kernels
from tests import support

DEVICES = [device for device in support.DEVICES if has_kernels(device)]


def mixed(words):
    """The exclusive or of any number of int32 words."""
    words = words.flatten().cpu()
    while words.numel() > 1:
        half = words.numel() // 2
        words = torch.cat([words[:half] ^ words[half : 2 * half], words[2 * half :]])
    return words.sum().item()


def check(g, feat, tile_bytes=0):
    indices = g.csc().indices
    read = feat[indices.long()].contiguous().view(torch.int32)
    assert mixed(gather_limit(indices, feat, tile_bytes)) == mixed(read)


def features(num_rows, width, dtype, device):
    return support.randn(num_rows, width, dtype=dtype, device=device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("width", [8, 16, 24, 64, 128, 200, 256, 264, 600])
def test_reads_every_word_once(device, width):
    for name in ("skewed", "star", "bipartite", "one_edge"):
        g = support.make_graph(name, support.IDTYPES[width % 16 // 8], device)
        feat = features(g.num_src, width, torch.float16, device)
        for tile_bytes in (0, 16, 48, 128, 512):
            check(g, feat, tile_bytes)


@pytest.mark.parametrize("device", DEVICES)
def test_many_indices(device):
    g = support.hub_graph(20_000, device=device)
    check(g, features(g.num_src, 64, torch.bfloat16, device))
    check(g.reverse(), features(g.num_dst, 64, torch.float32, device), 128)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["edgeless", "no_source", "no_destination", "empty"])
def test_nothing_to_read(device, name):
    g = support.make_graph(name, device=device)
    for width in (0, 64):
        words = gather_limit(g.csc().indices, features(g.num_src, width, torch.float16, device))
        assert words.dtype == torch.int32 and not words.any()


@pytest.mark.parametrize("device", DEVICES)
def test_refuses_what_is_no_vector(device):
    g = support.make_graph("random", device=device)
    indices = g.csc().indices
    with pytest.raises(ValueError, match="feat has rows of 14 bytes"):
        gather_limit(indices, features(g.num_src, 7, torch.float16, device))
    with pytest.raises(ValueError, match="aligned"):
        gather_limit(indices, support.misaligned(features(g.num_src, 8, torch.float16, device)))
    with pytest.raises(ValueError, match="tile_bytes is 24"):
        gather_limit(indices, features(g.num_src, 16, torch.float16, device), 24)


@pytest.mark.skipif(has_kernels("cpu"), reason="CUDA's kernels are simulated on the CPU")
def test_there_is_none_on_the_cpu():
    g = support.make_graph("random")
    with pytest.raises(NotImplementedError, match="gather_limit"):
        gather_limit(g.csc().indices, torch.ones(g.num_src, 8))


def test_every_yardstick_has_a_fake_kernel():
    schemas = [s.name for s in torch._C._jit_get_all_schemas() if s.name.startswith("halfgnn_yardsticks::")]
    assert sorted(schemas) == [
        f"halfgnn_yardsticks::{name}" for name in ("gather_limit", *support.NAIVE, "scalar_sddmm", "scalar_spmm")
    ]
    assert all(torch._C._dispatch_has_kernel_for_dispatch_key(name, "Meta") for name in schemas)
