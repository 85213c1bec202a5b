"""Fused graph attention: GAT, GATv2 and dot-product, in memory proportional to nodes, not edges.

A softmax of message passing makes and keeps several tensors of one number per edge and head. Here one pass over the edges makes
logits, softmax, dropout and weighted sum. The backward recomputes the weights from one log-sum-exp per node and head.
docs/attention.md has the method, and says why GAT's backward needs no dot product per edge. The forward follows flash-attention
(Dao et al., 2022).
"""

from . import _fakes  # noqa: F401  (registers fake kernels)
from .dot import dot_attention
from .gat import gat_attention, gat_weights
from .gatv2 import gatv2_attention, gatv2_weights

__all__ = ["dot_attention", "gat_attention", "gat_weights", "gatv2_attention", "gatv2_weights"]
