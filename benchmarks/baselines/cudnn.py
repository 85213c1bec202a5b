"""cuDNN's graph operators, by nvidia-cudnn-frontend's cudnn.gnn. Written from its version 1.32.0, which needs a newer
cuDNN than that of torch 2.11. It has no weighted sum and no dot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..graphs import BenchGraph
from ..operators import Problem
from ..optional import Unavailable, import_package
from .composed import SLOPE
from .registry import ANY_DIRECTION, check_messages, competitor

# The first version of cuDNN with these operators, in the frontend's format.
AGGREGATIONS, ATTENTIONS = 92600, 92800
FITTED_ROWS = 4096


def _release(version: int) -> str:
    return f"{version // 10000}.{version // 100 % 100}.{version % 100}"


def _library(needed: int) -> Any:
    """The package cudnn.gnn. Raises Unavailable if the cuDNN that it loads is too old."""
    version = import_package("cudnn").backend_version()
    if version < needed:
        raise Unavailable(f"needs cuDNN {_release(needed)}, but {_release(version)} is loaded")
    return import_package("cudnn.gnn")


def _csc(library: Any, graph: BenchGraph) -> Any:
    indptr, indices, edge_ids = graph.halfgnn.csc()
    return library.CscGraph(indptr, indices, graph.num_nodes, map_csc_to_coo=edge_ids)


cudnn = competitor("cudnn.gnn")


@cudnn.does("copy_u_sum", "copy_u_max", "copy_e_sum", devices=("cuda",))
def _aggregate(problem: Problem, x: Tensor) -> Callable[..., Tensor]:
    """Features and results are matrices."""
    library = _library(AGGREGATIONS)
    csc, aggr = _csc(library, problem.graph), problem.op.rpartition("_")[2]
    what = "edge_features" if problem.op.startswith("copy_e") else "node_features"
    return lambda x: library.agg_simple(csc, **{what: x.flatten(1)}, aggr=aggr).view(-1, *x.shape[1:])


def _fit(x: Tensor, logits: Tensor) -> Tensor:
    """(H, D): the vectors by which the features of sources were multiplied to make their logits."""
    rows = x[:FITTED_ROWS].double().transpose(0, 1)
    wanted = logits[:FITTED_ROWS].double().t().unsqueeze(2)
    attn = torch.linalg.lstsq(rows.cpu(), wanted.cpu()).solution
    if (rows.cpu() @ attn - wanted.cpu()).abs().max() > 0.02 * wanted.abs().max().cpu():
        raise Unavailable("it makes logits from the features that it sums; these logits were made in another way")
    return attn.squeeze(2).to(x)


@cudnn.does("gat_attention", devices=("cuda",))
def _gat(problem: Problem, x: Tensor, src: Tensor, dst: Tensor) -> Callable[..., Tensor]:
    """cudnn.gnn makes the logits itself; the other operators get them as inputs. Here logits of destinations come from
    features with one nonzero entry. Forward only: its gradients are those of features and vectors."""
    library = _library(ATTENTIONS)
    csc, sources = _csc(library, problem.graph), _fit(x, src)
    first, of_dst = torch.zeros_like(sources), torch.zeros_like(x)
    first[:, 0], of_dst[:, :, 0] = 1, dst
    attn, of_dst = torch.cat([sources.flatten(), first.flatten()]), of_dst.flatten(1)

    def work(x: Tensor, src: Tensor, dst: Tensor) -> Tensor:
        out = library.mha_gat(
            csc, (x.flatten(1), of_dst), attn, num_heads=problem.heads, activation="leaky_relu", activation_alpha=SLOPE
        )
        return out.view(x.shape)

    return work


@cudnn.does("gatv2_attention", directions=ANY_DIRECTION, devices=("cuda",))
def _gatv2(problem: Problem, x_src: Tensor, x_dst: Tensor, attn: Tensor) -> Callable[..., Tensor]:
    library = _library(ATTENTIONS)
    check_messages(problem.message_bytes, problem.graph.device)  # saved for a backward even if there is none
    csc = _csc(library, problem.graph)

    def work(x_src: Tensor, x_dst: Tensor, attn: Tensor) -> Tensor:
        features = x_src.flatten(1), x_dst.flatten(1)
        out = library.mha_gat_v2(
            csc, features, attn.flatten(), num_heads=problem.heads, activation="leaky_relu", activation_alpha=SLOPE
        )
        return out.view(x_src.shape)

    return work
