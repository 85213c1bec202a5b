"""Rows that are padded to a width that kernels like."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import pytest
import torch

import halfgnn
import halfgnn.nn
from halfgnn import ops
from halfgnn.nn import projections
from tests.nn.support_modules import (
    WIDE_DTYPES,
    WIDTH_41,
    features_for,
    make_graph,
)
from tests.support_nn import (
    IN_FEATS,
    assert_close,
    seeded,
    tolerance_of,
    with_gradients,
)

PADDED = {**WIDTH_41, "GATv2Conv-shared": lambda: halfgnn.nn.GATv2Conv(IN_FEATS, 41, 2, share_weights=True)}


@pytest.mark.parametrize("name", PADDED)
def test_padding_changes_nothing(name, request):
    dtype = WIDE_DTYPES[-1]
    g, conv = make_graph(), seeded(PADDED[name]).to(dtype)
    x = features_for(name).to(dtype)
    expected = with_gradients(conv, lambda x: conv(g, x), [x])
    keys = list(conv.state_dict())
    request.getfixturevalue("always_padded")
    with widths_seen() as widths:
        actual = with_gradients(conv, lambda x: conv(g, x), [x])
        assert conv(g, x).is_contiguous()
    assert widths == {48}
    assert_close(actual, expected, tolerance_of(dtype))
    assert list(conv.state_dict()) == keys
    if hasattr(conv, "attn_drop"):
        assert_close([conv(g, x, get_attention=True)[0]], expected[:1], tolerance_of(dtype))


@contextlib.contextmanager
def widths_seen():
    """The widths of the rows that are passed to the operators."""
    seen = set()

    def spy(function, position):
        def call(*args, **kwargs):
            seen.add(args[position].shape[-1])
            return function(*args, **kwargs)

        return call

    names = {"gat_attention": 1, "gatv2_attention": 1, "dot_attention": 3, "gspmm": 3}
    with pytest.MonkeyPatch.context() as patch:
        for name, position in names.items():
            patch.setattr(ops, name, spy(getattr(ops, name), position))
        yield seen


@pytest.mark.parametrize(
    "dim, dtype, device, weighted, width",
    [
        (41, torch.bfloat16, "cuda", True, 48),
        (47, torch.float16, "cuda", False, 48),
        (48, torch.float16, "cuda", True, 48),
        (44, torch.float16, "cuda", True, 48),
        (4, torch.float16, "cuda", True, 4),
        (3, torch.float16, "cuda", True, 3),
        (41, torch.float32, "cuda", True, 41),
        (41, torch.bfloat16, "cpu", True, 41),
        (7, torch.bfloat16, "cpu", True, 8),
        (3, torch.float32, "cpu", True, 8),
        (7, torch.float32, "cpu", False, 7),
        (7, torch.float64, "cpu", True, 7),
        (1, torch.float32, "cpu", True, 1),
    ],
)
def test_when_rows_are_padded(dim, dtype, device, weighted, width):
    x = SimpleNamespace(is_cuda=device == "cuda", device=torch.device(device), dtype=dtype)
    assert projections.padded(dim, x, weighted) == width
