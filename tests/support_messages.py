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


def gated_rows(g, has_edge=True):
    """Of the operands of gated_sum."""
    return g.num_src, g.num_src, g.num_dst, *[g.num_edges] * has_edge


def gated_operands(g, shape, dtype, device="cpu", has_edge=True):
    return [randn(rows, *shape, dtype=dtype, device=device) for rows in gated_rows(g, has_edge)]


def gated_bounds(g, normalize, eps, is_double):
    """Of the magnitudes of all terms. An error of z is at most its rounding times the magnitudes of its terms.

    is_double: the result is float64, like the truth, whose slope gate (1 - gate) cancels.
    """
    src, dst = (x.long() for x in g.edges())

    def summed(x, rows, count):
        return x.new_zeros(count, *x.shape[1:]).index_add(0, rows, x)

    def function(value, gate_src, gate_dst, *rest):
        *gate_edge, grad = rest
        parts = [gate_src[src], gate_dst[dst], *gate_edge]
        z, slack = sum(parts), 1 + sum(x.abs() for x in parts)
        gate = z.sigmoid()
        slope = gate if is_double else gate * (-z).sigmoid()
        scale = 1 / (summed(gate, dst, g.num_dst) + eps) if normalize else gate_dst.new_ones(())
        out = scale * summed(gate * slack * value.abs()[src], dst, g.num_dst)
        upstream = (grad.abs() * scale)[dst]
        reached = value.abs()[src] + (out[dst] if normalize else 0)
        of_edges = slope * slack * upstream * reached
        of_ends = summed(of_edges, src, g.num_src), summed(of_edges, dst, g.num_dst)
        return [out, summed(gate * slack * upstream, src, g.num_src), *of_ends, *[of_edges] * len(gate_edge)]

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
