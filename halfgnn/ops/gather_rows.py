"""torch.ops.halfgnn.gather_rows, out[i] = table[ids[i]] in place: its fake kernel. halfgnn.dataloading calls the operator."""

from __future__ import annotations

from ..common.fake import register_fake


@register_fake("gather_rows", on_cpu=("table",))
def _(table, ids, out, num_threads=0):
    return None
