"""Shared by the tests of what edges add to the fused attentions: their operands, and the rule of support.py for them."""

from dataclasses import dataclass

import torch

from halfgnn import ops, reference
from tests import support
from tests.support import randn
from tests.support_attention import SEED, fixed_seed

SCALE = 0.3
NODES = ("query", "key", "value")


@dataclass(frozen=True)
class Terms:
    """Names of the arguments that are given. same: an argument that has the tensor of another."""

    name: str
    arguments: tuple[str, ...]
    same: tuple[tuple[str, str], ...] = ()

    def operands(self, g, heads, dim, columns, dtype, device="cpu", bias_dtype=None):
        """Tensors by name. Weights are small, as those of a layer are."""
        shapes = {
            "query": (g.num_dst, heads, dim),
            "key": (g.num_src, heads, dim),
            "value": (g.num_src, heads, dim),
            "edge_bias": (g.num_edges, heads),
            "edge_feat": (g.num_edges, columns),
            "edge_key_weight": (heads * dim, columns),
            "edge_value_weight": (heads * dim, columns),
            "edge_key": (g.num_edges, heads, dim),
            "edge_value": (g.num_edges, heads, dim),
        }
        made = {}
        for name in (*NODES, *self.arguments):
            kind = bias_dtype if name == "edge_bias" and bias_dtype else dtype
            made[name] = randn(*shapes[name], dtype=kind, device=device)
            if name.endswith("weight"):
                made[name] = made[name] / max(1, columns) ** 0.5
        return made

    def call(self, function, g, tensors, *args, **options):
        """function(g, query, key, value, SCALE, ..., terms of edges)"""
        named = {name: tensors[name] for name in self.arguments}
        named |= {name: named[other] for name, other in self.same}
        return function(g, *(tensors[name] for name in NODES), SCALE, *args, **named, **options)


FEAT = ("edge_feat", "edge_key_weight", "edge_value_weight")
BIAS = Terms("bias", ("edge_bias",))
BOTH = Terms("feat", FEAT)
ONE_WEIGHT = Terms("one_weight", FEAT[:2], (("edge_value_weight", "edge_key_weight"),))
KEYS = Terms("keys", FEAT[:2])
VALUES = Terms("values", ("edge_bias", FEAT[0], FEAT[2]))
ROWS = Terms("rows", ("edge_key", "edge_value"))
ONE_ROW = Terms("one_row", ("edge_key",), (("edge_value", "edge_key"),))
ALL = Terms("all", ("edge_bias", *FEAT, "edge_key", "edge_value"))
TERMS = [BIAS, BOTH, ONE_WEIGHT, KEYS, VALUES, ROWS, ONE_ROW, ALL]


def magnitudes(terms, g, mask, tensors, grad):
    """Sums of the magnitudes of all terms, for the result and for the tensors' gradients, as support.check takes them."""
    heads, dim = tensors["query"].shape[1:]
    sizes = {name: x.abs() for name, x in tensors.items()}
    named = sizes | {name: sizes[other] for name, other in terms.same}
    feat = named.get("edge_feat")

    def of_edges(rows, edge_rows, weight):
        rows = reference.gsddmm(g, "copy_lhs", rows, None, "u") + (0 if edge_rows is None else edge_rows)
        return rows if weight is None else rows + torch.einsum("ec,hdc->ehd", feat, weight.view(heads, dim, -1))

    key = of_edges(named["key"], named.get("edge_key"), named.get("edge_key_weight"))
    value = of_edges(named["value"], named.get("edge_value"), named.get("edge_value_weight"))
    query, upstream = (reference.gsddmm(g, "copy_rhs", None, x) for x in (named["query"], grad.abs()))
    size = SCALE * (key * query).sum(-1) + named.get("edge_bias", torch.zeros(())).nan_to_num(posinf=0)
    weights = terms.call(_weights, g, tensors)
    kept = weights if mask is None else weights * mask
    if g.num_edges:  # an error in the last place of a logit becomes a relative error of the weight
        kept, weights = (x * (1 + size.amax(0)) for x in (kept, weights))
    kept, weights = kept.unsqueeze(-1), weights.unsqueeze(-1)
    out = reference.gspmm(g, "copy_rhs", "sum", None, kept * value)
    delta = reference.gsddmm(g, "copy_rhs", None, (grad.abs() * out).sum(-1, keepdim=True))
    term = kept * (value * upstream).sum(-1, keepdim=True) + weights * delta
    to_key, to_value = SCALE * term * query, kept * upstream  # of an edge's key and value

    def by_source(rows):
        return reference.gspmm(g.reverse(), "copy_rhs", "sum", None, rows)

    found = {
        "query": reference.gspmm(g, "copy_rhs", "sum", None, SCALE * term * key),
        "key": by_source(to_key),
        "value": by_source(to_value),
        "edge_bias": term.squeeze(-1),
        "edge_key": to_key,
        "edge_value": to_value,
    }
    if feat is not None:
        rows = {"edge_key_weight": to_key, "edge_value_weight": to_value}
        of_feat = torch.zeros_like(feat)
        for name, x in rows.items():
            if name in named:
                found[name] = torch.einsum("ehd,ec->hdc", x, feat).reshape(named[name].shape)
                of_feat = of_feat + torch.einsum("ehd,hdc->ec", x, named[name].view(heads, dim, -1))
        found["edge_feat"] = of_feat
    for name, other in terms.same:
        found[other] = found[other] + found[name]
    return [out, *(found[name] for name in tensors)]


def _weights(g, query, key, value, scale, **terms):
    """The softmax (E, H) of reference.dot_attention."""
    kept = {name: x for name, x in terms.items() if name in ("edge_bias", "edge_key", "edge_feat", "edge_key_weight")}
    if "edge_key_weight" not in kept:
        kept.pop("edge_feat", None)
    src = reference.gsddmm(g, "copy_lhs", key, None, "u")
    logits = (src + kept.get("edge_key", 0)) * reference.gsddmm(g, "copy_rhs", None, query)
    logits = logits.sum(-1) * scale
    if "edge_feat" in kept:
        weight = kept["edge_key_weight"].view(*query.shape[1:], -1)
        edge = torch.einsum("ec,hdc->ehd", kept["edge_feat"], weight)
        logits = logits + scale * (edge * reference.gsddmm(g, "copy_rhs", None, query)).sum(-1)
    return reference._masked_softmax(g, logits + kept.get("edge_bias", 0))


def check(terms, g, tensors, dropout_p=0.0, sums=10_000, **options):
    """Forward and all gradients under the rule."""
    host, names = g.to("cpu"), list(tensors)
    heads = tensors["query"].shape[1]
    mask = reference.dropout_mask(SEED, g.num_edges, heads, dropout_p) if dropout_p else None

    def specified(*given):
        kind = given[0].dtype
        by_name = dict(
            zip(names, (x.to(kind) for x in given))
        )  # PyTorch's formula takes a half bias with half features
        return terms.call(reference.dot_attention, host, by_name, mask=None if mask is None else mask.to(kind))

    with fixed_seed():
        return support.check(
            lambda *x: terms.call(ops.dot_attention, g, dict(zip(names, x)), dropout_p, **options),
            specified,
            list(tensors.values()),
            bounds=lambda *x: [
                bound + 1e-32 for bound in magnitudes(terms, host, mask, dict(zip(names, x[:-1])), x[-1])
            ],
            terms=sums,
        )
