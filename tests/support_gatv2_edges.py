"""Shared by the tests of what edges add to GATv2: its operands, and the rule of support.py."""

import torch

from halfgnn import ops, reference
from tests import support
from tests.support import randn
from tests.support_attention import SEED, SLOPE, fixed_seed

NODES = ("feat_src", "feat_dst", "attn")
ROWS, COLUMNS, BIAS = ("edge_feat",), ("edge_feat", "edge_weight"), ("edge_bias",)
KINDS = {"bias": BIAS, "rows": ROWS, "columns": COLUMNS, "rows_bias": BIAS + ROWS, "columns_bias": BIAS + COLUMNS}


def operands(terms, g, heads, dim, columns, dtype, device="cpu", bias_dtype=None):
    shapes = {
        "feat_src": (g.num_src, heads, dim),
        "feat_dst": (g.num_dst, heads, dim),
        "attn": (heads, dim),
        "edge_bias": (g.num_edges, heads),
        "edge_feat": (g.num_edges, columns) if "edge_weight" in terms else (g.num_edges, heads, dim),
        "edge_weight": (heads * dim, columns),
    }
    made = {name: randn(*shapes[name], dtype=dtype, device=device) for name in (*NODES, *terms)}
    made["attn"] = (
        made["attn"] / 4
    )  # weights of 1e-8, of a row whose others are dropped, would make results too small for fp16
    if "edge_weight" in made:
        made["edge_weight"] = made["edge_weight"] / max(1, columns) ** 0.5
    if bias_dtype is not None and "edge_bias" in made:
        made["edge_bias"] = made["edge_bias"].to(bias_dtype)
    return made


def call(function, g, tensors, *args, **options):
    named = {name: x for name, x in tensors.items() if name not in NODES}
    return function(g, *(tensors[name] for name in NODES), SLOPE, *args, **named, **options)


def magnitudes(g, mask, tensors, grad):
    """Sums of the magnitudes of all terms, for the result and for the tensors' gradients, as support.check takes them."""
    heads, dim = tensors["attn"].shape
    sizes = {name: x.abs() for name, x in tensors.items()}

    def hidden(given):
        x = reference.gsddmm(g, "add", given["feat_src"], given["feat_dst"])
        if "edge_weight" in given:
            weight = given["edge_weight"].view(heads, dim, -1)
            return x + torch.einsum("ec,hdc->ehd", given["edge_feat"], weight)
        return x + given.get("edge_feat", 0)

    bias = tensors.get("edge_bias", torch.zeros(()))
    logits = (torch.nn.functional.leaky_relu(hidden(tensors), SLOPE) * tensors["attn"]).sum(-1) + bias
    inside = hidden(sizes)
    size = (inside * sizes["attn"]).sum(-1) + bias.abs().nan_to_num(posinf=0)
    weights = reference._masked_softmax(g, logits)
    kept = weights if mask is None else weights * mask
    if g.num_edges:  # an error in the last place of a logit becomes a relative error of the weight
        kept, weights = (x * (1 + size.amax(0)) for x in (kept, weights))
    out = reference.gspmm(g, "mul", "sum", sizes["feat_src"], kept.unsqueeze(-1))
    to_value = reference.gspmm(g.reverse(), "mul", "sum", grad.abs(), kept.unsqueeze(-1))
    delta = reference.gsddmm(g, "copy_rhs", None, (grad.abs() * out).sum(-1))
    term = kept * reference.gsddmm(g, "dot", sizes["feat_src"], grad.abs()).squeeze(-1) + weights * delta
    rows = sizes["attn"] * term.unsqueeze(-1)
    found = {
        "feat_src": to_value + reference.gspmm(g.reverse(), "copy_rhs", "sum", None, rows),
        "feat_dst": reference.gspmm(g, "copy_rhs", "sum", None, rows),
        "attn": (term.unsqueeze(-1) * inside).sum(0),
        "edge_bias": term,
        "edge_feat": rows,
    }
    if "edge_weight" in sizes:
        found["edge_weight"] = torch.einsum("ehd,ec->hdc", rows, sizes["edge_feat"]).flatten(0, 1)
        found["edge_feat"] = torch.einsum("ehd,hdc->ec", rows, sizes["edge_weight"].view(heads, dim, -1))
    return [out, *(found[name] for name in tensors)]


def check(g, tensors, dropout_p=0.0, sums=10_000):
    """Forward and all gradients under the rule."""
    host, names, heads = g.to("cpu"), list(tensors), tensors["attn"].shape[0]
    mask = reference.dropout_mask(SEED, g.num_edges, heads, dropout_p) if dropout_p else None

    def specified(*given):
        kind = given[0].dtype
        by_name = dict(
            zip(names, (x.to(kind) for x in given))
        )  # PyTorch's formula takes a half bias with half features
        return call(reference.gatv2_attention, host, by_name, mask=None if mask is None else mask.to(kind))

    with fixed_seed():
        return support.check(
            lambda *x: call(ops.gatv2_attention, g, dict(zip(names, x)), dropout_p),
            specified,
            list(tensors.values()),
            bounds=lambda *x: [bound + 1e-32 for bound in magnitudes(host, mask, dict(zip(names, x[:-1])), x[-1])],
            terms=sums,
        )
