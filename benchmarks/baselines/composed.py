"""Attentions made of a library's separate operators, as models write them."""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

SLOPE = 0.2


def _leaky(x: Tensor) -> Tensor:
    return torch.nn.functional.leaky_relu(x, SLOPE)


# `on` has u_add_v, u_dot_v, edge_softmax and u_mul_e_sum on one graph.


def _gat(on: Any, x: Tensor, src: Tensor, dst: Tensor) -> Tensor:
    return on.u_mul_e_sum(x, on.edge_softmax(_leaky(on.u_add_v(src.unsqueeze(-1), dst.unsqueeze(-1)))))


def _gatv2(on: Any, x_src: Tensor, x_dst: Tensor, attn: Tensor) -> Tensor:
    logits = (_leaky(on.u_add_v(x_src, x_dst)) * attn).sum(-1, keepdim=True)
    return on.u_mul_e_sum(x_src, on.edge_softmax(logits))


def _dot(on: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return on.u_mul_e_sum(value, on.edge_softmax(on.u_dot_v(key, query) * query.shape[-1] ** -0.5))


COMPOSED = {"gat_attention": _gat, "gatv2_attention": _gatv2, "dot_attention": _dot}
# Rows of features per edge that exist at the same time: the results of u_add_v, of leaky_relu and of the product.
MESSAGES = {"gat_attention": 0, "gatv2_attention": 3, "dot_attention": 0}


def operators_of(library: Any, graph: Any) -> Any:
    """The operators of a library, bound to its graph, which is their first argument."""
    names = ("u_add_v", "u_dot_v", "edge_softmax", "u_mul_e_sum")
    return SimpleNamespace(**{name: functools.partial(getattr(library, name), graph) for name in names})
