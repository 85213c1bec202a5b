"""An LSTM over the in-edges of each node, for torch.export."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..common.precision import computed_type, without_autocast
from ..graph import Graph
from .checks import check_edge_weight


def exported_lstm(lstm: nn.Module, g: Graph, h_src: Tensor, edge_weight: Tensor | None) -> Tensor:
    """The last state (num_dst, width) of an LSTM over each node's messages; zero for a node without in-edges.

    Eager code groups nodes by degree, and an exported program cannot know how many groups there are. Here all nodes take one step
    per position among their in-edges, as many steps as the largest degree. A node keeps its state after its last edge.

    Raises:
        TypeError: the LSTM is not a plain nn.LSTM of one layer, for example quantised.
    """
    from torch._higher_order_ops.while_loop import while_loop  # its import takes seconds

    if (
        not isinstance(lstm, nn.LSTM)
        or type(lstm) is not nn.LSTM
        or lstm.num_layers != 1
        or lstm.bidirectional
        or lstm.proj_size
        or not lstm.bias
    ):
        raise TypeError(f"lstm is {lstm}; torch.export of SAGEConv expects a plain nn.LSTM of one layer")
    indptr, indices, edge_ids = g.csc()
    if edge_weight is not None:
        check_edge_weight(g, edge_weight, h_src)
    dtype = computed_type(h_src)
    wide = torch.promote_types(dtype, torch.float32)  # of the cell and the gates
    with without_autocast(h_src.device):
        of_input, of_state, *biases = (parameter.to(dtype) for parameter in lstm.all_weights[0])
        bias = biases[0] + biases[1]
        # One edge more than there are: what a node without in-edges reads, and does not use.
        sources = F.pad(indices.long(), (0, 1))
        rows = F.pad(h_src.to(dtype), (0, 0, 0, 1))
        if edge_weight is not None:
            by_position = edge_weight if edge_ids is None else edge_weight[edge_ids]
            weight = F.pad(by_position.reshape(sources.shape[0] - 1, -1).to(dtype), (0, 0, 0, 1))
        begin, degrees = indptr[:-1].long(), g.in_degrees().long()
        last = (degrees - 1).clamp(min=0)
        most = F.pad(degrees, (0, 1)).max()

        def is_left(step: Tensor, hidden: Tensor, cell: Tensor) -> Tensor:
            return step < most

        def advance(step: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            at = begin + torch.minimum(step, last)
            messages = rows[sources[at]] if edge_weight is None else rows[sources[at]] * weight[at]
            gates = F.linear(messages, of_input, bias) + F.linear(hidden, of_state)
            to_add, to_keep, new, to_show = gates.to(wide).chunk(4, 1)
            next_cell = to_keep.sigmoid() * cell + to_add.sigmoid() * new.tanh()
            next_hidden = (to_show.sigmoid() * next_cell.tanh()).to(dtype)
            has_edge = (step < degrees).unsqueeze(1)
            return step + 1, torch.where(has_edge, next_hidden, hidden), torch.where(has_edge, next_cell, cell)

        zeros = torch.zeros((degrees.shape[0], lstm.hidden_size), dtype=wide, device=h_src.device)
        step = torch.zeros((), dtype=torch.long, device=h_src.device)
        _, hidden, _ = while_loop(is_left, advance, (step, zeros.to(dtype), zeros.clone()))
    return hidden
