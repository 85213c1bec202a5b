"""The operators as editors and type checkers see them. Written by `python -m tests.stub --update`."""

import torch
from torch import Tensor

from ..graph_argument import GraphLike
from .attention import dot_attention as dot_attention
from .attention import gat_attention as gat_attention
from .attention import gatv2_attention as gatv2_attention
from .copy_u_reduce import copy_u_reduce as copy_u_reduce
from .edge_network import edge_network as edge_network
from .edge_softmax import edge_softmax as edge_softmax
from .gated_sum import gated_sum as gated_sum
from .gather_rows import gather_rows as gather_rows
from .sddmm import gsddmm as gsddmm
from .sddmm import u_add_v_add_e as u_add_v_add_e
from .segment_reduce import segment_reduce as segment_reduce
from .spmm import gspmm as gspmm

__all__ = [
    "copy_e",
    "copy_e_max",
    "copy_e_mean",
    "copy_e_min",
    "copy_e_sum",
    "copy_u",
    "copy_u_max",
    "copy_u_mean",
    "copy_u_min",
    "copy_u_reduce",
    "copy_u_sum",
    "copy_v",
    "dot_attention",
    "e_add_u",
    "e_add_v",
    "e_div_u",
    "e_div_v",
    "e_dot_u",
    "e_dot_v",
    "e_mul_u",
    "e_mul_v",
    "e_sub_u",
    "e_sub_v",
    "edge_network",
    "edge_softmax",
    "gat_attention",
    "gated_sum",
    "gather_rows",
    "gatv2_attention",
    "gsddmm",
    "gspmm",
    "segment_reduce",
    "u_add_e",
    "u_add_e_max",
    "u_add_e_mean",
    "u_add_e_min",
    "u_add_e_sum",
    "u_add_v",
    "u_add_v_add_e",
    "u_div_e",
    "u_div_e_max",
    "u_div_e_mean",
    "u_div_e_min",
    "u_div_e_sum",
    "u_div_v",
    "u_dot_e",
    "u_dot_v",
    "u_mul_e",
    "u_mul_e_max",
    "u_mul_e_mean",
    "u_mul_e_min",
    "u_mul_e_sum",
    "u_mul_v",
    "u_relu_add_e_max",
    "u_relu_add_e_mean",
    "u_relu_add_e_min",
    "u_relu_add_e_sum",
    "u_sub_e",
    "u_sub_e_max",
    "u_sub_e_mean",
    "u_sub_e_min",
    "u_sub_e_sum",
    "u_sub_v",
    "v_add_e",
    "v_add_u",
    "v_div_e",
    "v_div_u",
    "v_dot_e",
    "v_dot_u",
    "v_mul_e",
    "v_mul_u",
    "v_sub_e",
    "v_sub_u",
]

def u_add_e_sum(g: GraphLike, x: Tensor, y: Tensor, *, out_dtype: torch.dtype | None = None) -> Tensor:
    """out[v] = sum over in-edges e = (u, v) of add(x[u], y[e]). x (num_src, *), y (E, *). See gspmm."""

def u_add_e_mean(g: GraphLike, x: Tensor, y: Tensor, *, out_dtype: torch.dtype | None = None) -> Tensor:
    """out[v] = mean over in-edges e = (u, v) of add(x[u], y[e]). x (num_src, *), y (E, *). See gspmm."""

def u_add_e_max(g: GraphLike, x: Tensor, y: Tensor, *, out_dtype: torch.dtype | None = None) -> Tensor:
    """out[v] = max over in-edges e = (u, v) of add(x[u], y[e]). x (num_src, *), y (E, *). See gspmm."""

def u_add_e_min(g: GraphLike, x: Tensor, y: Tensor, *, out_dtype: torch.dtype | None = None) -> Tensor:
    """out[v] = min over in-edges e = (u, v) of add(x[u], y[e]). x (num_src, *), y (E, *). See gspmm."""

def u_sub_e_sum(g: GraphLike, x: Tensor, y: Tensor, *, out_dtype: torch.dtype | None = None) -> Tensor:
    """out[v] = sum over in-edges e = (u, v) of sub(x[u], y[e]). x (num_src, *), y (E, *). See gspmm."""

def u_sub_e_mean(g: GraphLike, x: Tensor, y: Tensor, *, out_dtype: torch.dtype | None = None) -> Tensor:
    """out[v] = mean over in-edges e = (u, v) of sub(x[u], y[e]). x (num_src, *), y (E, *). See gspmm."""

def u_sub_e_max(g: GraphLike, x: Tensor, y: Tensor, *, out_dtype: torch.dtype | None = None) -> Tensor:
    """out[v] = max over in-edges e = (u, v) of sub(x[u], y[e]). x (num_src, *), y (E, *). See gspmm."""

def u_sub_e_min(g: GraphLike, x: Tensor, y: Tensor, *, out_dtype: torch.dtype | None = None) -> Tensor:
    """out[v] = min over in-edges e = (u, v) of sub(x[u], y[e]). x (num_src, *), y (E, *). See gspmm."""

def u_mul_e_sum(g: GraphLike, x: Tensor, y: Tensor, *, out_dtype: torch.dtype | None = None) -> Tensor:
    """out[v] = sum over in-edges e = (u, v) of mul(x[u], y[e]). x (num_src, *), y (E, *). See gspmm."""

def u_mul_e_mean(g: GraphLike, x: Tensor, y: Tensor, *, out_dtype: torch.dtype | None = None) -> Tensor:
    """out[v] = mean over in-edges e = (u, v) of mul(x[u], y[e]). x (num_src, *), y (E, *). See gspmm."""

def u_mul_e_max(g: GraphLike, x: Tensor, y: Tensor, *, out_dtype: torch.dtype | None = None) -> Tensor:
    """out[v] = max over in-edges e = (u, v) of mul(x[u], y[e]). x (num_src, *), y (E, *). See gspmm."""

def u_mul_e_min(g: GraphLike, x: Tensor, y: Tensor, *, out_dtype: torch.dtype | None = None) -> Tensor:
    """out[v] = min over in-edges e = (u, v) of mul(x[u], y[e]). x (num_src, *), y (E, *). See gspmm."""

def u_div_e_sum(g: GraphLike, x: Tensor, y: Tensor, *, out_dtype: torch.dtype | None = None) -> Tensor:
    """out[v] = sum over in-edges e = (u, v) of div(x[u], y[e]). x (num_src, *), y (E, *). See gspmm."""

def u_div_e_mean(g: GraphLike, x: Tensor, y: Tensor, *, out_dtype: torch.dtype | None = None) -> Tensor:
    """out[v] = mean over in-edges e = (u, v) of div(x[u], y[e]). x (num_src, *), y (E, *). See gspmm."""

def u_div_e_max(g: GraphLike, x: Tensor, y: Tensor, *, out_dtype: torch.dtype | None = None) -> Tensor:
    """out[v] = max over in-edges e = (u, v) of div(x[u], y[e]). x (num_src, *), y (E, *). See gspmm."""

def u_div_e_min(g: GraphLike, x: Tensor, y: Tensor, *, out_dtype: torch.dtype | None = None) -> Tensor:
    """out[v] = min over in-edges e = (u, v) of div(x[u], y[e]). x (num_src, *), y (E, *). See gspmm."""

def u_relu_add_e_sum(g: GraphLike, x: Tensor, y: Tensor, *, out_dtype: torch.dtype | None = None) -> Tensor:
    """out[v] = sum over in-edges e = (u, v) of relu_add(x[u], y[e]). x (num_src, *), y (E, *). See gspmm."""

def u_relu_add_e_mean(g: GraphLike, x: Tensor, y: Tensor, *, out_dtype: torch.dtype | None = None) -> Tensor:
    """out[v] = mean over in-edges e = (u, v) of relu_add(x[u], y[e]). x (num_src, *), y (E, *). See gspmm."""

def u_relu_add_e_max(g: GraphLike, x: Tensor, y: Tensor, *, out_dtype: torch.dtype | None = None) -> Tensor:
    """out[v] = max over in-edges e = (u, v) of relu_add(x[u], y[e]). x (num_src, *), y (E, *). See gspmm."""

def u_relu_add_e_min(g: GraphLike, x: Tensor, y: Tensor, *, out_dtype: torch.dtype | None = None) -> Tensor:
    """out[v] = min over in-edges e = (u, v) of relu_add(x[u], y[e]). x (num_src, *), y (E, *). See gspmm."""

def copy_u_sum(g: GraphLike, x: Tensor, *, out_dtype: torch.dtype | None = None) -> Tensor:
    """out[v] = sum over in-edges e = (u, v) of x[u]. x (num_src, *). See gspmm."""

def copy_u_mean(g: GraphLike, x: Tensor, *, out_dtype: torch.dtype | None = None) -> Tensor:
    """out[v] = mean over in-edges e = (u, v) of x[u]. x (num_src, *). See gspmm."""

def copy_u_max(g: GraphLike, x: Tensor, *, out_dtype: torch.dtype | None = None) -> Tensor:
    """out[v] = max over in-edges e = (u, v) of x[u]. x (num_src, *). See gspmm."""

def copy_u_min(g: GraphLike, x: Tensor, *, out_dtype: torch.dtype | None = None) -> Tensor:
    """out[v] = min over in-edges e = (u, v) of x[u]. x (num_src, *). See gspmm."""

def copy_e_sum(g: GraphLike, x: Tensor, *, out_dtype: torch.dtype | None = None) -> Tensor:
    """out[v] = sum over in-edges e = (u, v) of x[e]. x (E, *). See gspmm."""

def copy_e_mean(g: GraphLike, x: Tensor, *, out_dtype: torch.dtype | None = None) -> Tensor:
    """out[v] = mean over in-edges e = (u, v) of x[e]. x (E, *). See gspmm."""

def copy_e_max(g: GraphLike, x: Tensor, *, out_dtype: torch.dtype | None = None) -> Tensor:
    """out[v] = max over in-edges e = (u, v) of x[e]. x (E, *). See gspmm."""

def copy_e_min(g: GraphLike, x: Tensor, *, out_dtype: torch.dtype | None = None) -> Tensor:
    """out[v] = min over in-edges e = (u, v) of x[e]. x (E, *). See gspmm."""

def u_add_v(g: GraphLike, x: Tensor, y: Tensor, *, out_dtype: torch.dtype | None = None) -> Tensor:
    """out[e] = add(x[u], y[v]) for every edge e = (u, v). See gsddmm."""

def u_add_e(g: GraphLike, x: Tensor, y: Tensor, *, out_dtype: torch.dtype | None = None) -> Tensor:
    """out[e] = add(x[u], y[e]) for every edge e = (u, v). See gsddmm."""

def v_add_u(g: GraphLike, x: Tensor, y: Tensor, *, out_dtype: torch.dtype | None = None) -> Tensor:
    """out[e] = add(x[v], y[u]) for every edge e = (u, v). See gsddmm."""

def v_add_e(g: GraphLike, x: Tensor, y: Tensor, *, out_dtype: torch.dtype | None = None) -> Tensor:
    """out[e] = add(x[v], y[e]) for every edge e = (u, v). See gsddmm."""

def e_add_u(g: GraphLike, x: Tensor, y: Tensor, *, out_dtype: torch.dtype | None = None) -> Tensor:
    """out[e] = add(x[e], y[u]) for every edge e = (u, v). See gsddmm."""

def e_add_v(g: GraphLike, x: Tensor, y: Tensor, *, out_dtype: torch.dtype | None = None) -> Tensor:
    """out[e] = add(x[e], y[v]) for every edge e = (u, v). See gsddmm."""

def u_sub_v(g: GraphLike, x: Tensor, y: Tensor, *, out_dtype: torch.dtype | None = None) -> Tensor:
    """out[e] = sub(x[u], y[v]) for every edge e = (u, v). See gsddmm."""

def u_sub_e(g: GraphLike, x: Tensor, y: Tensor, *, out_dtype: torch.dtype | None = None) -> Tensor:
    """out[e] = sub(x[u], y[e]) for every edge e = (u, v). See gsddmm."""

def v_sub_u(g: GraphLike, x: Tensor, y: Tensor, *, out_dtype: torch.dtype | None = None) -> Tensor:
    """out[e] = sub(x[v], y[u]) for every edge e = (u, v). See gsddmm."""

def v_sub_e(g: GraphLike, x: Tensor, y: Tensor, *, out_dtype: torch.dtype | None = None) -> Tensor:
    """out[e] = sub(x[v], y[e]) for every edge e = (u, v). See gsddmm."""

def e_sub_u(g: GraphLike, x: Tensor, y: Tensor, *, out_dtype: torch.dtype | None = None) -> Tensor:
    """out[e] = sub(x[e], y[u]) for every edge e = (u, v). See gsddmm."""

def e_sub_v(g: GraphLike, x: Tensor, y: Tensor, *, out_dtype: torch.dtype | None = None) -> Tensor:
    """out[e] = sub(x[e], y[v]) for every edge e = (u, v). See gsddmm."""

def u_mul_v(g: GraphLike, x: Tensor, y: Tensor, *, out_dtype: torch.dtype | None = None) -> Tensor:
    """out[e] = mul(x[u], y[v]) for every edge e = (u, v). See gsddmm."""

def u_mul_e(g: GraphLike, x: Tensor, y: Tensor, *, out_dtype: torch.dtype | None = None) -> Tensor:
    """out[e] = mul(x[u], y[e]) for every edge e = (u, v). See gsddmm."""

def v_mul_u(g: GraphLike, x: Tensor, y: Tensor, *, out_dtype: torch.dtype | None = None) -> Tensor:
    """out[e] = mul(x[v], y[u]) for every edge e = (u, v). See gsddmm."""

def v_mul_e(g: GraphLike, x: Tensor, y: Tensor, *, out_dtype: torch.dtype | None = None) -> Tensor:
    """out[e] = mul(x[v], y[e]) for every edge e = (u, v). See gsddmm."""

def e_mul_u(g: GraphLike, x: Tensor, y: Tensor, *, out_dtype: torch.dtype | None = None) -> Tensor:
    """out[e] = mul(x[e], y[u]) for every edge e = (u, v). See gsddmm."""

def e_mul_v(g: GraphLike, x: Tensor, y: Tensor, *, out_dtype: torch.dtype | None = None) -> Tensor:
    """out[e] = mul(x[e], y[v]) for every edge e = (u, v). See gsddmm."""

def u_div_v(g: GraphLike, x: Tensor, y: Tensor, *, out_dtype: torch.dtype | None = None) -> Tensor:
    """out[e] = div(x[u], y[v]) for every edge e = (u, v). See gsddmm."""

def u_div_e(g: GraphLike, x: Tensor, y: Tensor, *, out_dtype: torch.dtype | None = None) -> Tensor:
    """out[e] = div(x[u], y[e]) for every edge e = (u, v). See gsddmm."""

def v_div_u(g: GraphLike, x: Tensor, y: Tensor, *, out_dtype: torch.dtype | None = None) -> Tensor:
    """out[e] = div(x[v], y[u]) for every edge e = (u, v). See gsddmm."""

def v_div_e(g: GraphLike, x: Tensor, y: Tensor, *, out_dtype: torch.dtype | None = None) -> Tensor:
    """out[e] = div(x[v], y[e]) for every edge e = (u, v). See gsddmm."""

def e_div_u(g: GraphLike, x: Tensor, y: Tensor, *, out_dtype: torch.dtype | None = None) -> Tensor:
    """out[e] = div(x[e], y[u]) for every edge e = (u, v). See gsddmm."""

def e_div_v(g: GraphLike, x: Tensor, y: Tensor, *, out_dtype: torch.dtype | None = None) -> Tensor:
    """out[e] = div(x[e], y[v]) for every edge e = (u, v). See gsddmm."""

def u_dot_v(g: GraphLike, x: Tensor, y: Tensor, *, out_dtype: torch.dtype | None = None) -> Tensor:
    """out[e] = dot(x[u], y[v]) for every edge e = (u, v). See gsddmm."""

def u_dot_e(g: GraphLike, x: Tensor, y: Tensor, *, out_dtype: torch.dtype | None = None) -> Tensor:
    """out[e] = dot(x[u], y[e]) for every edge e = (u, v). See gsddmm."""

def v_dot_u(g: GraphLike, x: Tensor, y: Tensor, *, out_dtype: torch.dtype | None = None) -> Tensor:
    """out[e] = dot(x[v], y[u]) for every edge e = (u, v). See gsddmm."""

def v_dot_e(g: GraphLike, x: Tensor, y: Tensor, *, out_dtype: torch.dtype | None = None) -> Tensor:
    """out[e] = dot(x[v], y[e]) for every edge e = (u, v). See gsddmm."""

def e_dot_u(g: GraphLike, x: Tensor, y: Tensor, *, out_dtype: torch.dtype | None = None) -> Tensor:
    """out[e] = dot(x[e], y[u]) for every edge e = (u, v). See gsddmm."""

def e_dot_v(g: GraphLike, x: Tensor, y: Tensor, *, out_dtype: torch.dtype | None = None) -> Tensor:
    """out[e] = dot(x[e], y[v]) for every edge e = (u, v). See gsddmm."""

def copy_u(g: GraphLike, x: Tensor, *, out_dtype: torch.dtype | None = None) -> Tensor:
    """out[e] = x[u] for every edge e = (u, v). See gsddmm."""

def copy_v(g: GraphLike, x: Tensor, *, out_dtype: torch.dtype | None = None) -> Tensor:
    """out[e] = x[v] for every edge e = (u, v). See gsddmm."""

def copy_e(g: GraphLike, x: Tensor, *, out_dtype: torch.dtype | None = None) -> Tensor:
    """out[e] = x[e] for every edge e = (u, v). See gsddmm."""
