"""The time of PyTorch's dense products, which no operator of halfgnn replaces."""

from __future__ import annotations

import time
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

# Names of operators, without their namespace: matrix products, convolutions, recurrent layers and dense attention.
_PRODUCTS = frozenset(
    (
        "mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "_addmm_activation", "convolution", "convolution_backward",
        "mkldnn_rnn_layer", "mkldnn_rnn_layer_backward", "_scaled_dot_product_flash_attention_for_cpu",
        "_scaled_dot_product_flash_attention_for_cpu_backward", "_scaled_dot_product_attention_math", "_softmax",
        "_softmax_backward_data",
    )
)  # fmt: skip


class TimedProducts(TorchDispatchMode):
    """A block that adds up the seconds of dense products on a CPU, as PyTorch calls them. ``_softmax`` is that of dense attention,
    of at least three dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds = 0.0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """PyTorch would import torch._dynamo, which takes seconds, to keep it from compiling this."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.name().split("::")[-1].split(".")[0]
        if name not in _PRODUCTS or ("softmax" in name and args[0].dim() < 3):
            return func(*args, **(kwargs or {}))
        start = time.perf_counter()
        result = func(*args, **(kwargs or {}))
        self.seconds += time.perf_counter() - start
        return result
