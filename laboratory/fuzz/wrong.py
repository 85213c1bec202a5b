"""Cases of wrong calls: a right call with one wrong argument. Public operators must name it, raw operators must survive
it."""

from __future__ import annotations

from string import Template

from .draw import Draw

_TENSORS = """[1.0, 2.0] | 'x' | 3 | good.to('meta') | good.sum() | good.to(torch.complex64) | good.bool() | good.int() |
    good.to_sparse() | good[1:] | torch.cat([good, good[:1]]) | torch.nn.Linear(2, 2) | good.to(torch.float8_e5m2)"""
_ACC = "torch.float64 if t == torch.float64 else torch.float32"
_WIDE = f"randn(g.num_dst, 2, 3, dtype={_ACC})"
_SHORT = {
    "WIDE": _WIDE,
    "X": "randn(g.num_src, 2, 8, dtype=t)",
    "Y": "randn(g.num_dst, 2, 8, dtype=t)",
    "W": "randn(g.num_edges, 2, 1, dtype=t)",
    "LOGITS": "randn(g.num_src, 2, dtype=t), randn(g.num_dst, 2, dtype=t), randn(g.num_edges, 2, dtype=t)",
    "LSE": f"randn(g.num_dst, 2, dtype={_ACC})",
    "EDGES": "randn(g.num_edges, 2, dtype=t), randn(g.num_edges, 2, 8, dtype=t), None, True, randn(g.num_edges, 3, dtype=t), "
    + _WIDE,
    "GATV2_EDGES": "randn(g.num_edges, 2, dtype=t), None, randn(g.num_edges, 3, dtype=t), randn(2, 8, 3, dtype=t)",
    "COLUMNS": "randn(g.num_edges, 3, dtype=t)",
    "WEIGHTS": "randn(2, 8, 3, dtype=t), randn(2, 8, 3, dtype=t)",
    "SEED": "torch.tensor([3, 4])",
    "IDS": "torch.tensor([0, 2, 1, 2])",
    "TENSORS": " ".join(_TENSORS.split()),
}


def _table(text: str) -> dict[str, list[str]]:
    """Reads lines `name: item | item`. Indented lines continue the line before."""
    lines = Template(text.strip().replace("\n    ", " ")).substitute(_SHORT).splitlines()
    rows = (line.split(": ", 1) for line in lines)
    return {name: [item.strip() for item in items.split(" | ")] for name, items in rows}


# Public calls and their arguments, each with its possible errors (a row of WRONG) and a right value.
PUBLIC = _table("""
ops.gspmm: g graph g | op name 'mul' | reduce_op name 'sum' | lhs_data data $X | rhs_data data $W | out_dtype out_dtype None
ops.gsddmm: g graph g | op name 'dot' | lhs_data data $X | rhs_data data $Y | lhs_target name 'u' | rhs_target name 'v' |
    out_dtype out_dtype None
ops.u_add_v: g graph g | x data $X | y data $Y | out_dtype out_dtype None
ops.u_add_v_add_e: g graph g | x data $X | y data $Y | z data randn(g.num_edges, 2, 8, dtype=t) | out_dtype out_dtype None
ops.gated_sum: g graph g | value data $X | gate_src data $X | gate_dst data $Y | gate_edge logit randn(g.num_edges, 2, 8, dtype=t) |
    edge_value logit randn(g.num_edges, 2, 8, dtype=t) | eps number 0.1
ops.edge_network: g graph g | src data randn(g.num_src, 8, dtype=t) | dst data randn(g.num_dst, 8, dtype=t) | reduce name 'sum' |
    activation name 'silu' | eps number 0.1
ops.u_mul_e_max: g graph g | x data $X | y data $W | out_dtype out_dtype None
ops.copy_u_mean: g graph g | x only $X | out_dtype out_dtype None
ops.copy_u_reduce: g graph g | x only $X | reduces names ('max', 'std') | out_dtype out_dtype None
ops.edge_softmax: g graph g | logits only $W | norm_by name 'dst'
ops.segment_reduce: seglen seglen torch.tensor([3, 0, 2]) | value only randn(5, 4, dtype=t) | reducer name 'max'
ops.gat_attention: g graph g | feat feat $X | attn_src logit randn(g.num_src, 2, dtype=t) |
    attn_dst logit randn(g.num_dst, 2, dtype=t) | edge_logits logit randn(g.num_edges, 2, dtype=t) |
    negative_slope number 0.2 | dropout_p probability 0.1
ops.gatv2_attention: g graph g | feat_src feat $X | feat_dst feat $Y | attn feat randn(2, 8, dtype=t) |
    negative_slope number 0.2 | dropout_p probability 0.1
ops.dot_attention: g graph g | query feat $Y | key feat $X | value feat $X | scale number 0.5 | dropout_p probability 0.1 |
    edge_bias logit randn(g.num_edges, 2, dtype=t) | edge_feat feat randn(g.num_edges, 3, dtype=t) |
    edge_key_weight feat randn(16, 3, dtype=t) | edge_value feat randn(g.num_edges, 2, 8, dtype=t)
Graph.from_edges: src ids $IDS | dst ids $IDS | num_src count 3 | num_dst count 3
Graph.from_csc: indptr ids torch.tensor([0, 1, 4]) | indices ids $IDS | edge_ids ids torch.tensor([3, 1, 0, 2]) |
    num_src count 3
Graph.from_csr: indptr ids torch.tensor([0, 1, 4]) | indices ids $IDS | edge_ids ids torch.tensor([3, 1, 0, 2]) |
    num_dst count 3
halfgnn.reorder: g graph support.make_graph('random') | window positive 4 | least_gain number 0.1
halfgnn.locality: g graph support.make_graph('bipartite') | window positive 4
Graph.from_edge_index: edge_index edge_index torch.stack([$IDS, $IDS]) | num_nodes count 3
""")
# Wrong values. `good` is the right value, `t` the dtype of the call, and `other` a dtype that does not go with it.
WRONG = _table("""
graph: None | 'g' | torch.zeros(2, 3) | (1, 2) | type(good) | good.csc() |
    hetero({'a': 3}, {('a', 'r', 'a'): 1, ('a', 's', 'a'): 1}, torch.int64)
name: None | 'pow' | '' | 7 | [] | {} | b'sum' | good.upper() | torch.ones(2) | torch.zeros(()) | float('nan')
names: None | () | 'max' | ('max', 'max') | ('median',) | (1,) | {'max'} | [None] | 7 | torch.ones(2)
data: $TENSORS | None | good.repeat(1, 3, 1) | good.to(other)
only: $TENSORS | None
feat: $TENSORS | None | good.to(other) | good[..., :1, :] | good[..., 0] | good.unsqueeze(1).repeat(1, 3, 1, 1)
logit: $TENSORS | good[:, :1] | good.unsqueeze(-1) | good[:, 0] | good.double() if t != torch.float64 else good.half()
out_dtype: 7 | 'float32' | float | torch.int32 | torch.float64 if t != torch.float64 else torch.float32 | torch.qint8
seglen: None | [3, 2] | good.float() | good - 1 | good + 1 | good[None] | good[:2] | good.to('meta') | good[:0] | good.short() |
    torch.tensor([2**62, 2**62, 2**62, 2**62, 5]) | torch.tensor([2**63 - 1, -(2**63) + 6]) | torch.tensor([-1, 6]) |
    good.to_sparse()
number: 'x' | float('nan') | float('inf') | [1.0] | 1j | torch.ones(2) | 10**400 | torch.ones((), requires_grad=True) | float
probability: 'x' | float('nan') | 1.5 | -0.1 | None | [0.5] | torch.full((2,), 0.5) | 10**400 | -1e-300
ids: good.float() | good.tolist() | good - 1 | good + 9 | good.short() | good.to('meta') | good.int() | good.unsqueeze(0) |
    good.sum() | good.bool() | good[..., 1:] | 'x' | good.to(torch.uint64) | good * 2**60
edge_index: good.float() | good.tolist() | good - 1 | good + 9 | good.short() | good[:1] | good[0] | good.t() | None |
    torch.cat([good, good]) | good.to(torch.uint64) | good.bool() | good.unsqueeze(0)
count: -1 | 2.5 | 2**60 | -2**70 | 2**70 | '3' | True | 0 | 1 | float('nan') | torch.tensor([3, 3]) | [3] | 2**48 | 10**30
size: -1 | 2.5 | 'x' | None | True
positive: -1 | 2.5 | 'x' | None | True | 0
rate: 1.5 | -0.5 | float('nan') | None | 'x'
feature: good[1:] | good[:, :5] | good.to('meta') | good.int() | [1.0] | 'x' | good.to_sparse() | (good,) | good.sum() | None |
    good.repeat(2, 1) | (good, good, good) | (good, None) | {}
weight: good[1:] | good.to('meta') | [1.0] | 'x' | good.sum() | good.to(torch.complex64) | good.repeat(2) | good.to_sparse()
""")
# The names of arguments in the constructor that from_edge_index calls.
ALIASES = {
    "edge_index": ("src", "dst"),
    "num_nodes": ("num_src",),
}
OTHER = {
    "float16": ("bfloat16", "float64"),
    "bfloat16": ("float16", "float64"),
    "float32": ("float64",),
    "float64": ("float16", "bfloat16", "float32"),
}


def public(d: Draw) -> None:
    call, dtype = d.one(*PUBLIC), d.dtype()
    arguments = [item.split(" ", 2) for item in PUBLIC[call]]
    name, kind, good = d.one(*arguments)
    d.line(f"t, other = torch.{dtype}, torch.{d.one(*OTHER[dtype])}")
    if call.startswith("ops") and "segment" not in call:
        d.line(f"g = support.make_graph({d.one('bipartite', 'random', 'star')!r}, torch.{d.one('int32', 'int64')})")
    d.line(f"good = {good}")
    d.line(f"wrong = {d.one(*WRONG[kind])}")
    text = ", ".join(f"{n}=wrong" if n == name else f"{n}={right}" for n, _, right in arguments)
    # An error may name another argument that the wrong one disagrees with.
    others = (n for n, kind, _ in arguments if kind not in ("name", "number", "probability", "out_dtype"))
    named = dict.fromkeys([name, *others, *(alias for n, _, _ in arguments for alias in ALIASES.get(n, ()))])
    d.line(f"refused(lambda: {call}({text}), {', '.join(map(repr, named))})")


# ---- modules ---------------------------------------------------------------------------------------------------------------------

CONSTRUCTORS = _table("""
GATConv: in_feats size 7 | out_feats positive 5 | num_heads positive 3 | feat_drop rate 0 | attn_drop rate 0 | negative_slope rate 0
GATv2Conv: in_feats size 7 | out_feats positive 5 | num_heads positive 3 | feat_drop rate 0 | attn_drop rate 0
DotGatConv: in_feats size 7 | out_feats positive 5 | num_heads positive 3
TransformerConv: in_channels size 7 | out_channels positive 5 | heads positive 3 | dropout rate 0
SAGEConv: in_feats size 7 | out_feats size 5 | aggregator_type name 'mean' | feat_drop rate 0
GINConv: aggregator_type name 'sum'
GraphConv: in_feats size 7 | out_feats size 5 | norm name 'both'
""")
FORWARDS = (
    "GATConv(7, 5, 3)", "GATv2Conv(7, 5, 3)", "DotGatConv(7, 5, 3)", "TransformerConv(7, 5, 3)", "SAGEConv(7, 5, 'mean')",
    "SAGEConv(7, 5, 'pool')", "SAGEConv(7, 5, 'lstm')", "GINConv(torch.nn.Linear(7, 5))", "GraphConv(7, 5)", "GraphConv(7, 20)",
)  # fmt: skip
WEIGHTED = ("GATConv", "SAGEConv(7, 5, 'mean')", "GIN", "Graph")


def module(d: Draw) -> None:
    if d.chance(0.4):
        name = d.one(*CONSTRUCTORS)
        arguments = [item.split(" ", 2) for item in CONSTRUCTORS[name]]
        argument, kind, good = d.one(*arguments)
        wrong = [w for w in WRONG[kind] if argument != "negative_slope" or w not in ("1.5", "-0.5")]
        d.line(f"good = {good}")
        d.line(f"wrong = {d.one(*wrong)}")
        text = ", ".join(f"{n}={'wrong' if n == argument else right}" for n, _, right in arguments)
        d.line(f"refused(lambda: halfgnn.nn.{name}({text}), {argument!r})")
        return
    conv = d.one(*FORWARDS)
    d.line("g = support.make_graph('self_loops')")
    d.line(f"conv = halfgnn.nn.{conv}")
    kind = d.one("graph", "feature", "feature", "weight" if conv.startswith(WEIGHTED) else "feature")
    x = "randn(9, 7, dtype=torch.float32)"
    d.line(f"good = {dict(graph='g', feature=x, weight='torch.rand(9)')[kind]}")
    # GraphConv does not read the second of a pair.
    wrong = [w for w in WRONG[kind] if not conv.startswith("GraphConv") or w != "(good, None)"]
    d.line(f"wrong = {d.one(*wrong[:5]) if kind == 'graph' else d.one(*wrong)}")
    d.line(f"x = {'wrong' if kind == 'feature' else x}")
    call = f"conv({'wrong' if kind == 'graph' else 'g'}, x{', edge_weight=wrong' if kind == 'weight' else ''})"
    named = [dict(graph="graph", feature="feat", weight="edge_weight")[kind], "g"]
    if conv.startswith("GIN"):  # GINConv does not check its features
        named.append("lhs_data")
    d.line(f"refused(lambda: {call}, {', '.join(map(repr, named))})")


# ---- raw operators -------------------------------------------------------------------------------------------------------------

RAW = _table("""
gspmm: *csc, 'mul', 'max', $X, $W, None
gspmm_backward: *csr, csc[0], True, 'mul', 'max', $Y, $X, $W, torch.zeros(g.num_dst, 2, 8, dtype=csc[0].dtype),
    [g.num_src, 2, 8], [g.num_edges, 2, 1], t, t, True, True
copy_u_reduce: *csc, $X, 'max,std', 0.0, None, True
copy_u_reduce_backward: *csr, csc[0], $X, [g.num_src, 2, 8], t, None, $Y, $Y, None, None, $Y,
    torch.zeros(g.num_dst, 2, 8, dtype=torch.int32), None, $Y.to(torch.float64 if t == torch.float64 else torch.float32),
    $Y.to(torch.float64 if t == torch.float64 else torch.float32)
gsddmm: *csc, 'dot', $X, $Y, 'u', 'v', None
gsddmm_backward: *csr, True, 'dot', 'lhs', $W, $X, $Y, 'u', 'v', [g.num_src, 2, 8], [g.num_dst, 2, 8], t
edge_softmax: csc[0], csc[2], $W
edge_softmax_backward: csc[0], csc[2], $W, $W
coo_sum: csc[1], csc[1], $W, $W, 'relu_add', 'mean', g.num_src
coo_sum_backward: csc[1], csc[1], $W, $W, $W, 'relu_add', 'mean', g.num_edges, True, True
coo_softmax: csc[1], $W, g.num_src
coo_softmax_backward: csc[1], $W, $W, g.num_src
segment_reduce: torch.tensor([0, 3, 5]), randn(5, 4, dtype=t), 'max'
segment_reduce_backward: torch.tensor([0, 3, 5]), randn(2, 4, dtype=t), torch.zeros(2, 4, dtype=torch.int64), 'max', 5
gat_attention: *csc, $X, $LOGITS, 0.2, 0.3, $SEED, True, True
gat_attention_backward: *csr, $X, $LOGITS, 0.2, 0.3, $SEED, $Y, $Y, $LSE, $Y, $Y, True
gatv2_attention: *csc, $X, $Y, randn(2, 8, dtype=t), 0.2, 0.3, $SEED, True, True | *csc, $X, $Y, randn(2, 8, dtype=t), 0.2, 0.3,
    $SEED, True, True, False, $GATV2_EDGES
gatv2_attention_backward: *csc, *csr, $X, $Y, randn(2, 8, dtype=t), 0.2, 0.3, $SEED, $Y, $Y, $LSE, $Y | *csc, *csr, $X, $Y,
    randn(2, 8, dtype=t), 0.2, 0.3, $SEED, $Y, $Y, $LSE, $Y, False, False, $GATV2_EDGES, True, False, True, True
dot_attention: *csc, $Y, $X, $X, 0.2, 0.3, $SEED, True, True | *csc, $Y, $X, $X, 0.2, 0.3, $SEED, True, True, False, $EDGES, True
    | *csc, $Y, $X, $X, 0.2, 0.3, $SEED, True, True, False, None, None, None, False, $COLUMNS, None, True, $WEIGHTS
dot_attention_backward: *csc, *csr, $Y, $X, $X, 0.2, 0.3, $SEED, $Y, $Y, $LSE, $Y | *csc, *csr, $Y, $X, $X, 0.2, 0.3, $SEED, $Y, $Y,
    $LSE, $Y, False, False, $EDGES, $WIDE, True, True, False, True
    | *csc, *csr, $Y, $X, $X, 0.2, 0.3, $SEED, $Y, $Y, $LSE, $Y, False, False, None, None, None, False, $COLUMNS, None, None,
    False, False, False, True, $WEIGHTS
head_logits: $X, randn(1, 2, 8, dtype=torch.float32), randn(1, 2, 8, dtype=torch.float32)
head_logits_backward: $X, randn(1, 2, 8, dtype=torch.float32), randn(1, 2, 8, dtype=torch.float32),
    randn(g.num_src, 2, dtype=torch.float32), randn(g.num_src, 2, dtype=torch.float32), $X, True, True
gather_rows: randn(9, 4, dtype=t), torch.tensor([0, 8, 3]), torch.empty(3, 4, dtype=t), 1
    | torch.ones(9, 4, dtype=torch.uint8), torch.tensor([0, 8, 3]), torch.empty(3, 4, dtype=t), 1,
    torch.ones(9, 1), torch.ones(9, 1)
coo_to_csr: $IDS, $IDS, 3
transpose: *csc, g.num_src
reorder: csc[0], csc[1], csr[0], csr[1]
locality: csc[1], g.num_src, 4
neighbor_sample: [csc[0]], [csc[1]], [csc[2]], [0], [0], [csc[0][:0]], [2], 5, False, True, False, [None], [None], [None]
""")


def raw(d: Draw) -> None:
    name = d.one(*RAW)
    d.line(f"g = support.make_graph({d.one('bipartite', 'random', 'star')!r}, torch.{d.one('int32', 'int64')})")
    d.line(f"csc, csr, t = g.csc(), g.csr(), torch.{d.dtype()}")
    d.line(f"arguments = [{d.one(*RAW[name])}]")
    for _ in range(d.one(1, 1, 2)):
        which, how = d.random.randrange(100), d.random.randrange(100)
        d.line(f"arguments = distorted(arguments, {which}, {how}, (g.num_src, g.num_dst))")
    d.line(f"survives(lambda: raw.{name}(*arguments))")
