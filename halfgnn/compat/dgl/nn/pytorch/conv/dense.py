"""GraphConv, SAGEConv and ChebConv on a dense adjacency matrix, whose rows are destinations."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from halfgnn.common.arguments import check_name, check_probability, checked_size

from ._aggregators import add_bias


class DenseGraphConv(nn.Module):
    """Graph convolution (Kipf and Welling, 2017) on a dense adjacency matrix. Arguments: see :class:`GraphConv`."""

    bias: nn.Parameter | None

    def __init__(self, in_feats, out_feats, norm="both", bias=True, activation=None):
        super().__init__()
        check_name(norm, "norm", ("both", "right", "none"))
        self._in_feats = checked_size(in_feats, "in_feats")
        self._out_feats = checked_size(out_feats, "out_feats")
        self._norm = norm
        self.weight = nn.Parameter(torch.empty(in_feats, out_feats))
        add_bias(self, bias, out_feats)
        self.reset_parameters()
        self._activation = activation

    def reset_parameters(self) -> None:
        """Glorot uniform, bias zero."""
        nn.init.xavier_uniform_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, adj: Tensor, feat: Tensor) -> Tensor:
        """adj (num_dst, num_src), feat (num_src, in_feats): (num_dst, out_feats)."""
        adj = adj.to(feat)
        if self._norm == "both":
            feat = feat * adj.sum(0).clamp(min=1).pow(-0.5).unsqueeze(-1)
        is_first = self._in_feats > self._out_feats
        rst = adj @ (feat @ self.weight) if is_first else (adj @ feat) @ self.weight
        if self._norm != "none":
            power = -0.5 if self._norm == "both" else -1.0
            rst = rst * adj.sum(1).clamp(min=1).pow(power).unsqueeze(-1)
        if self.bias is not None:
            rst = rst + self.bias
        return rst if self._activation is None else self._activation(rst)


class DenseSAGEConv(nn.Module):
    """GraphSAGE (Hamilton et al., 2017) with the gcn aggregator on a dense adjacency matrix. Arguments: see :class:`SAGEConv`."""

    def __init__(self, in_feats, out_feats, feat_drop=0.0, bias=True, norm=None, activation=None):
        super().__init__()
        self._in_feats = checked_size(in_feats, "in_feats")
        self._out_feats = checked_size(out_feats, "out_feats")
        self._norm = norm
        self.feat_drop = nn.Dropout(check_probability(feat_drop, "feat_drop"))
        self.activation = activation
        self.fc = nn.Linear(in_feats, out_feats, bias=bias)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Glorot uniform; PyTorch's default for the bias."""
        nn.init.xavier_uniform_(self.fc.weight, gain=nn.init.calculate_gain("relu"))

    def forward(self, adj: Tensor, feat: Any) -> Tensor:
        """adj (num_dst, num_src), feat (num_src, in_feats), or the pair of it and (num_dst, in_feats): (num_dst, out_feats)."""
        if isinstance(feat, tuple):
            src, dst = self.feat_drop(feat[0]), self.feat_drop(feat[1])
        else:
            src = dst = self.feat_drop(feat)
        adj = adj.to(src)
        rst = self.fc((adj @ src + dst) / (adj.sum(1, keepdim=True) + 1))
        rst = rst if self.activation is None else self.activation(rst)
        return rst if self._norm is None else self._norm(rst)


class DenseChebConv(nn.Module):
    """Chebyshev spectral convolution (Defferrard et al., 2016) on a dense adjacency matrix. Arguments: see :class:`ChebConv`."""

    bias: nn.Parameter | None

    def __init__(self, in_feats, out_feats, k, bias=True):
        super().__init__()
        self._in_feats = checked_size(in_feats, "in_feats")
        self._out_feats = checked_size(out_feats, "out_feats")
        self._k = checked_size(k, "k", least=1)
        self.W = nn.Parameter(torch.empty(k, in_feats, out_feats))
        add_bias(self, bias, out_feats)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Glorot normal, bias zero."""
        if self.bias is not None:
            nn.init.zeros_(self.bias)
        for weight in self.W:
            nn.init.xavier_normal_(weight, nn.init.calculate_gain("relu"))

    def forward(self, adj: Tensor, feat: Tensor, lambda_max: Any = None) -> Tensor:
        """adj (N, N), feat (N, in_feats): (N, out_feats). lambda_max: by default computed."""
        adj = adj.to(feat)
        identity = torch.eye(adj.shape[0], dtype=adj.dtype, device=adj.device)
        root = adj.sum(1).clamp(min=1).rsqrt()
        laplacian = identity - root.unsqueeze(1) * adj * root
        if lambda_max is None:
            lambda_max = torch.linalg.eigvals(laplacian).real.max()
        laplacian = 2 * laplacian / lambda_max - identity
        polynomials = [feat]
        for i in range(1, self._k):
            last = laplacian @ polynomials[-1]
            polynomials.append(last if i == 1 else 2 * last - polynomials[-2])
        rst = torch.cat(polynomials, 1) @ self.W.flatten(0, 1)
        return rst if self.bias is None else rst + self.bias
