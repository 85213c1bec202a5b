"""Atomic convolution."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from halfgnn import ops
from halfgnn.common.operands import check_operand
from halfgnn.graph_argument import GraphLike

from ._propagation import checked_homograph


class RadialPooling(nn.Module):
    """Radial basis functions of distances, which end at a cutoff.

    Args:
        interaction_cutoffs, rbf_kernel_means, rbf_kernel_scaling: (K,), of each function.
    """

    def __init__(self, interaction_cutoffs, rbf_kernel_means, rbf_kernel_scaling):
        super().__init__()
        self.interaction_cutoffs = nn.Parameter(interaction_cutoffs.reshape(-1, 1, 1))
        self.rbf_kernel_means = nn.Parameter(rbf_kernel_means.reshape(-1, 1, 1))
        self.rbf_kernel_scaling = nn.Parameter(rbf_kernel_scaling.reshape(-1, 1, 1))

    def forward(self, distances: Tensor) -> Tensor:
        """distances (E, 1): (K, E, 1)."""
        bumps = torch.exp(-self.rbf_kernel_scaling * (distances - self.rbf_kernel_means).square())
        cutoff = 0.5 * (torch.cos(math.pi * distances / self.interaction_cutoffs) + 1)
        return bumps * torch.where(distances <= self.interaction_cutoffs, cutoff, 0.0)


class AtomicConv(nn.Module):
    """Atomic convolution (Gomes et al., 2017): radial functions of distances, summed for each atomic number.

    Args:
        interaction_cutoffs, rbf_kernel_means, rbf_kernel_scaling: (K,), see :class:`RadialPooling`.
        features_to_use: (T,), the atomic numbers that are told apart; None takes features as they are.
    """

    def __init__(self, interaction_cutoffs, rbf_kernel_means, rbf_kernel_scaling, features_to_use=None):
        super().__init__()
        self.radial_pooling = RadialPooling(interaction_cutoffs, rbf_kernel_means, rbf_kernel_scaling)
        self.num_channels = 1 if features_to_use is None else len(features_to_use)
        self.features_to_use: nn.Parameter | None = None
        if features_to_use is not None:
            self.features_to_use = nn.Parameter(features_to_use, requires_grad=False)

    def forward(self, graph: GraphLike, feat: Tensor, distances: Tensor) -> Tensor:
        """feat (N, 1), distances (E, 1): (N, K * T).

        Raises:
            ValueError: wrong shapes or devices. TypeError: wrong dtypes.
        """
        g = checked_homograph(graph, feat)
        check_operand(distances, "distances", g, "e")
        radial = self.radial_pooling(distances).to(feat.dtype).squeeze(-1).t()
        if self.features_to_use is not None:
            feat = (feat == self.features_to_use).to(feat.dtype)
        return ops.u_mul_e_sum(g, feat.unsqueeze(2), radial.unsqueeze(1)).flatten(1)
