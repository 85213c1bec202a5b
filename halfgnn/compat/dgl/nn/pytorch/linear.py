"""A linear layer per type."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from halfgnn.common.arguments import checked_size
from halfgnn.common.operands import check_columns, check_parameter, check_tensor
from halfgnn.nn.relation_rows import taken
from halfgnn.nn.typed_linear import typed_linear

__all__ = ["TypedLinear"]


class TypedLinear(nn.Module):
    """Each row times the matrix of its type.

    Args:
        in_size, out_size: widths of input and output.
        num_types: number of types.
        regularizer: "basis" makes the matrices as combinations of num_bases (Schlichtkrull et al., 2018), "bdd" of num_bases
            diagonal blocks each. None has a matrix per type.
        num_bases: number of bases or blocks.
    """

    def __init__(self, in_size, out_size, num_types, regularizer=None, num_bases=None):
        super().__init__()
        self.in_size = checked_size(in_size, "in_size")
        self.out_size = checked_size(out_size, "out_size")
        self.num_types = checked_size(num_types, "num_types", least=1)
        if regularizer not in (None, "basis", "bdd"):
            raise ValueError(f"regularizer is {regularizer!r}; expected 'basis', 'bdd' or None")
        self.regularizer = regularizer
        shape: tuple[int, ...] = (num_types, in_size, out_size)
        if regularizer is not None:
            self.num_bases = checked_size(num_bases, "num_bases", least=1)
        if regularizer == "basis":
            shape = (num_bases, in_size, out_size)
        elif regularizer == "bdd":
            if in_size % num_bases or out_size % num_bases:
                raise ValueError(
                    f"in_size is {in_size}, out_size {out_size}; expected multiples of num_bases, {num_bases}"
                )
            self.submat_in, self.submat_out = in_size // num_bases, out_size // num_bases
            shape = (num_types, num_bases * self.submat_in * self.submat_out)
        self.W = nn.Parameter(torch.empty(shape))
        if regularizer == "basis":
            self.coeff = nn.Parameter(torch.empty(num_types, num_bases))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Uniform up to the inverse root of the width; Glorot uniform for the coefficients of bases."""
        width = self.submat_in if self.regularizer == "bdd" else self.in_size
        bound = 1 / math.sqrt(max(width, 1))
        nn.init.uniform_(self.W, -bound, bound)
        if self.regularizer == "basis":
            nn.init.xavier_uniform_(self.coeff, gain=nn.init.calculate_gain("relu"))

    def get_weight(self) -> Tensor:
        """The matrices (num_types, in_size, out_size); the blocks under "bdd"."""
        if self.regularizer == "basis":
            return (self.coeff @ self.W.flatten(1)).view(self.num_types, self.in_size, self.out_size)
        return self.W

    def forward(self, x: Tensor, x_type: Tensor, sorted_by_type: bool = False) -> Tensor:
        """The projected rows, in the order of x.

        Args:
            x: (N, in_size).
            x_type: (N,) of integers in [0, num_types).
            sorted_by_type: whether x_type rises.

        Returns:
            (N, out_size)

        Raises:
            ValueError: wrong shapes or types. TypeError: wrong dtypes.
        """
        check_tensor(x, "x")
        check_columns(x, "x", self.in_size)
        check_parameter(x, "x", self.W)
        check_tensor(x_type, "x_type")
        if x_type.shape != x.shape[:1]:
            raise ValueError(f"x_type has shape {tuple(x_type.shape)}; expected {(x.shape[0],)}, a type per row")
        counts = torch.bincount(x_type, minlength=self.num_types)
        if counts.numel() > self.num_types:
            raise ValueError(f"x_type holds {counts.numel() - 1}; expected types in [0, {self.num_types})")
        ends = counts.cumsum(0).tolist()
        if sorted_by_type:
            return self.projected(x, ends)
        order = torch.argsort(x_type, stable=True)
        return taken(self.projected(taken(x, None, order), ends), None, torch.argsort(order))

    def projected(self, x: Tensor, ends: list[int]) -> Tensor:
        """The projected rows of x (N, in_size), which are sorted. ends: number of rows of each type and of those before it."""
        if self.regularizer != "bdd":
            return typed_linear(x, ends, self.get_weight())
        blocks = self.W.view(self.num_types, self.num_bases, self.submat_in, self.submat_out)
        parts = [
            torch.bmm(rows.unflatten(1, (self.num_bases, self.submat_in)).transpose(0, 1), block).transpose(0, 1)
            for rows, block in zip(x.split(_counts(ends)), blocks)
        ]
        return torch.cat(parts).flatten(1)

    def __repr__(self) -> str:
        sizes = f"in_size={self.in_size}, out_size={self.out_size}, num_types={self.num_types}"
        if self.regularizer is not None:
            sizes += f", regularizer={self.regularizer}, num_bases={self.num_bases}"
        return f"TypedLinear({sizes})"


def _counts(ends: list[int]) -> list[int]:
    return [end - begin for begin, end in zip([0, *ends], ends)]
