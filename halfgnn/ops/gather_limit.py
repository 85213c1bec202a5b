"""The measuring aid torch.ops.halfgnn.gather_limit: its fake kernel. The benchmarks call the operator."""

from __future__ import annotations

import torch

from ._fake import register_fake


@register_fake("gather_limit")
def _(indices, feat, tile_bytes=0):
    # How many words there are is the kernel's own affair.
    return feat.new_empty(torch.library.get_ctx().new_dynamic_size(), dtype=torch.int32)
