"""Diffusion: graphs of the largest entries of a diffusion matrix, and features spread over several steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from .... import ops
from ....common.arguments import check_number, check_probability, checked_size
from ..base import DGLError, check_weights
from ..convert import graph
from ..heterograph import DGLGraph
from .module import BaseTransform, GCNNorm

__all__ = ["GDC", "PPR", "HeatKernel", "SIGNDiffusion"]


class _Diffusion(BaseTransform):
    """Edges of the largest entries of a dense matrix (N, N), with the entries in the feature `eweight_name`.

    eps: the least entry that becomes an edge. Without it as many become edges as give nodes `avg_degree` in-edges on average.
    """

    def __init__(self, eweight_name: str = "w", eps: float | None = None, avg_degree: int = 5):
        self.eweight_name = eweight_name
        self.eps = None if eps is None else check_number(eps, "eps")
        self.avg_degree = checked_size(avg_degree, "avg_degree", least=1)

    def _matrix(self, adjacency: Tensor) -> Tensor:
        """The diffusion matrix of a weighted adjacency matrix, whose rows are destinations."""
        raise NotImplementedError

    def __call__(self, g: DGLGraph) -> DGLGraph:
        src, dst = (ends.long() for ends in g.all_edges())
        adjacency = torch.zeros(g.num_nodes(), g.num_nodes(), device=g.device)
        if self.eweight_name in g.edata:
            check_weights(g.edata[self.eweight_name], g.num_edges(), f"the feature {self.eweight_name!r}")
        adjacency[dst, src] = g.edata[self.eweight_name].float() if self.eweight_name in g.edata else 1.0
        matrix = self._matrix(adjacency)
        dst, src = (matrix >= self._least(matrix)).nonzero(as_tuple=True)
        made = graph((src, dst), num_nodes=g.num_nodes(), idtype=g.idtype, device=g.device)
        made._node_frames = [g._node_frames[0].clone()]
        made.edata[self.eweight_name] = matrix[dst, src]
        return made

    def _least(self, matrix: Tensor) -> float | Tensor:
        if self.eps is not None:
            return self.eps
        if self.avg_degree > len(matrix):
            return -torch.inf
        return matrix.flatten().sort(descending=True).values[self.avg_degree * len(matrix) - 1]


class PPR(_Diffusion):
    """Personalized PageRank with the probability `alpha` of a restart."""

    def __init__(self, alpha: float = 0.15, eweight_name: str = "w", eps: float | None = None, avg_degree: int = 5):
        super().__init__(eweight_name, eps, avg_degree)
        self.alpha = check_probability(alpha, "alpha")

    def _matrix(self, adjacency: Tensor) -> Tensor:
        return self.alpha * torch.linalg.inv(torch.eye(len(adjacency)).to(adjacency) - (1 - self.alpha) * adjacency)


class HeatKernel(_Diffusion):
    """The heat kernel exp(t (A - 1))."""

    def __init__(self, t: float = 2.0, eweight_name: str = "w", eps: float | None = None, avg_degree: int = 5):
        super().__init__(eweight_name, eps, avg_degree)
        self.t = check_number(t, "t")

    def _matrix(self, adjacency: Tensor) -> Tensor:
        return torch.linalg.matrix_exp(self.t * (adjacency - torch.eye(len(adjacency)).to(adjacency)))


class GDC(_Diffusion):
    """The sum of powers of the adjacency matrix with the coefficients `coefs`, from the power 0 on."""

    def __init__(self, coefs: Sequence[float], eweight_name: str = "w", eps: float | None = None, avg_degree: int = 5):
        super().__init__(eweight_name, eps, avg_degree)
        self.coefs = [check_number(coef, f"coefs[{i}]") for i, coef in enumerate(coefs)]

    def _matrix(self, adjacency: Tensor) -> Tensor:
        power = torch.eye(len(adjacency)).to(adjacency)
        total = self.coefs[0] * power
        for coefficient in self.coefs[1:]:
            power = power @ adjacency
            total = total + coefficient * power
        return total


class SIGNDiffusion(BaseTransform):
    """Put the feature, spread over 1, ..., k steps, into the node features ``{out_feat_name}_1``, ..., ``_k``.

    Args:
        k: number of steps.
        in_feat_name, out_feat_name: names of node features.
        eweight_name: the edge feature (E,) or (E, 1) with weights; by default 1.
        diffuse_op: "raw" sums over in-edges; "rw" divides the sum by that of the weights; "gcn" sums with the weights of
            :class:`GCNNorm`; "ppr" mixes `alpha` times the first feature into each step of "gcn".
    """

    def __init__(
        self,
        k: int,
        in_feat_name: str = "feat",
        out_feat_name: str = "out_feat",
        eweight_name: str | None = None,
        diffuse_op: str = "raw",
        alpha: float = 0.2,
    ):
        if diffuse_op not in ("raw", "rw", "gcn", "ppr"):
            raise DGLError(f"diffuse_op is {diffuse_op!r}; expected 'raw', 'rw', 'gcn' or 'ppr'")
        self.k = checked_size(k, "k", least=1)
        self.in_feat_name = in_feat_name
        self.out_feat_name = out_feat_name
        self.eweight_name = eweight_name
        self.diffuse_op = diffuse_op
        self.alpha = check_probability(alpha, "alpha")

    def __call__(self, g: DGLGraph) -> DGLGraph:
        for i, values in enumerate(self._steps(g), 1):
            g.ndata[f"{self.out_feat_name}_{i}"] = values
        return g

    def _steps(self, g: DGLGraph) -> Iterator[Tensor]:
        first = values = g.ndata[self.in_feat_name]
        weights = self._weights(g)
        shape = (-1, *[1] * (values.dim() - 1))
        for _ in range(self.k):
            if weights is None:
                values = ops.copy_u_mean(g, values) if self.diffuse_op == "rw" else ops.copy_u_sum(g, values)
            else:
                values = ops.u_mul_e_sum(g, values, weights.to(values.dtype).view(shape))
            if self.diffuse_op == "ppr":
                values = (1 - self.alpha) * values + self.alpha * first
            yield values

    def _weights(self, g: DGLGraph) -> Tensor | None:
        """Weights (E,) of edges; None for those of copies."""
        weights = g.edata.get(self.eweight_name) if self.eweight_name else None
        if weights is not None:
            check_weights(weights.reshape(-1), g.num_edges(), f"the feature {self.eweight_name!r}", True)
        if self.diffuse_op in ("gcn", "ppr"):
            with g.local_scope():
                if weights is None:
                    g.edata.pop("w", None)
                return GCNNorm(self.eweight_name or "w")(g).edata[self.eweight_name or "w"].reshape(-1)
        if weights is not None and self.diffuse_op == "rw":
            total = ops.copy_e_sum(g, weights)
            return (weights / total[g.all_edges()[1].long()]).reshape(-1)
        return weights if weights is None else weights.reshape(-1)
