"""HeteroLinear of torch_geometric."""

from __future__ import annotations

import torch
from torch_geometric import nn

from ...common.compat import is_exporting
from ...common.ids import exported_ids
from ...common.operands import check_columns, check_parameter, check_rows
from ...common.precision import computed_type
from ...nn.typed_linear import typed_linear


class HeteroLinear(nn.HeteroLinear):
    """A linear layer per type, torch_geometric.nn.HeteroLinear on :func:`halfgnn.nn.typed_linear.typed_linear`."""

    def forward(self, x, type_vec):
        """
        Args:
            x: (N, in_channels).
            type_vec: (N,) integers, the type of every row; in rising order if the layer was made with is_sorted.

        Returns:
            (N, out_channels)

        Raises:
            ValueError: wrong shapes, devices or types. TypeError: wrong dtypes.
        """
        check_columns(x, "x", self.weight.shape[1])
        check_parameter(x, "x", self.weight)
        check_rows(type_vec, "type_vec", x.shape[0], "u", x.device)
        if type_vec.dim() != 1 or type_vec.is_floating_point() or type_vec.dtype == torch.bool:
            raise TypeError(
                f"type_vec has shape {tuple(type_vec.shape)} and dtype {type_vec.dtype}; expected (N,) of integers"
            )
        if is_exporting():
            return self._exported(x, type_vec)
        if type_vec.numel() and not 0 <= int(type_vec.min()) <= int(type_vec.max()) < self.num_types:
            raise ValueError(f"type_vec holds other types than those in [0, {self.num_types})")
        ends = torch.bincount(type_vec, minlength=self.num_types).cumsum(0).tolist()
        order = None if self.is_sorted else type_vec.argsort(stable=True)
        out = typed_linear(x if order is None else x.index_select(0, order), ends, self.weight)
        out = out if order is None else torch.empty_like(out).index_copy(0, order, out)
        return out if self.bias is None else out + self.bias[type_vec].to(out.dtype)

    def __prepare_scriptable__(self):
        """What torch.jit.script compiles: torch_geometric's module of the same parameters."""
        if type(self) is not HeteroLinear:
            return self
        module = object.__new__(nn.HeteroLinear)
        module.__dict__.update(self.__dict__)
        return module

    def _exported(self, x, type_vec):
        """The same in an exported program, which cannot know how many rows a type has: it multiplies each row by all matrices."""
        message = f"type_vec holds other types than those in [0, {self.num_types})"
        kind = exported_ids(type_vec.long(), self.num_types, message)
        dtype = computed_type(x)
        out = torch.matmul(x.to(dtype), self.weight.to(dtype))[kind, torch.arange(x.shape[0], device=x.device)]
        return out if self.bias is None else out + self.bias[kind].to(out.dtype)
