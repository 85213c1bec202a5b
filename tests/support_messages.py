"""Operands, references and bounds of the operators with three operands and more per edge, for tests and random calls."""

from __future__ import annotations

import torch

from halfgnn import ops, reference
from tests import support
from tests.support import randn


def rows_of(g):
    """Of the operands of u_add_v_add_e."""
    return g.num_src, g.num_dst, g.num_edges


def check_u_add_v_add_e(g, operands, out_dtype=None, terms=64):
    """Checks u_add_v_add_e by the rule of support.py."""
    host = g.to("cpu")
    return support.check(
        lambda x, y, z: ops.u_add_v_add_e(g, x, y, z, out_dtype=out_dtype),
        lambda x, y, z: reference.u_add_v_add_e(host, x, y, z),
        operands,
        formula=lambda x, y, z: reference.u_add_v_add_e(host, x, y, z, out_dtype=out_dtype),
        magnitude=lambda x, y, z: reference.u_add_v_add_e(host, x, y, z),
        out_dtype=out_dtype,
        terms=terms,
    )


def gated_operands(g, shape, dtype, device="cpu", has_edge=True, has_values=False):
    """value, gate_src, gate_dst, gate_edge if has_edge (otherwise None if values follow), edge_value if has_values."""

    def rows(count):
        return randn(count, *shape, dtype=dtype, device=device)

    of_nodes = [rows(count) for count in (g.num_src, g.num_src, g.num_dst)]
    gate_edge = [rows(g.num_edges) if has_edge else None] if has_edge or has_values else []
    return [*of_nodes, *gate_edge, *[rows(g.num_edges)] * has_values]


def gated_bounds(g, normalize, eps, is_double):
    """Of the magnitudes of all terms. An error of z is at most its rounding times the magnitudes of its terms.

    is_double: the result is float64, like the truth, whose slope gate (1 - gate) cancels.
    """
    src, dst = (x.long() for x in g.edges())

    def summed(x, rows, count):
        return x.new_zeros(count, *x.shape[1:]).index_add(0, rows, x)

    def function(value, gate_src, gate_dst, *rest):
        *of_edges, grad = rest
        gate_edge, edge_value = [*of_edges, None, None][:2]
        parts = [gate_src[src], gate_dst[dst], *[gate_edge] * (gate_edge is not None)]
        z, slack = sum(parts), 1 + sum(x.abs() for x in parts)
        gate = z.sigmoid()
        slope = gate if is_double else gate * (-z).sigmoid()
        scale = 1 / (summed(gate, dst, g.num_dst) + eps) if normalize else gate_dst.new_ones(())
        message = value.abs()[src] + (0 if edge_value is None else edge_value.abs())
        out = scale * summed(gate * slack * message, dst, g.num_dst)
        upstream = (grad.abs() * scale)[dst]
        of_z = slope * slack * upstream * (message + (out[dst] if normalize else 0))
        of_ends = summed(of_z, src, g.num_src), summed(of_z, dst, g.num_dst)
        of_message = gate * slack * upstream
        return [out, summed(of_message, src, g.num_src), *of_ends, *[of_z, of_message][: len(of_edges)]]

    return function


def check_gated_sum(g, operands, normalize=False, eps=1e-6, terms=64):
    """Checks gated_sum by the rule of support.py."""
    host = g.to("cpu")
    return support.check(
        lambda *x: ops.gated_sum(g, *x, normalize=normalize, eps=eps),
        lambda *x: reference.gated_sum(host, *x, normalize=normalize, eps=eps),
        operands,
        bounds=gated_bounds(host, normalize, eps, operands[0].dtype == torch.float64),
        terms=terms,
    )
