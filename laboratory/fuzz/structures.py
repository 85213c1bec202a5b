"""Cases of graphs, heterographs and modules."""

from __future__ import annotations

from .draw import HALVES, Draw


def graph(d: Draw) -> None:
    """Every constructor and form keeps the edges and their order."""
    num_src, num_dst, _ = d.edges()
    counts = f"num_src={num_src}, num_dst={num_dst}"
    is_default = d.chance(0.15)
    if is_default:
        d.line("num_src, num_dst = (int(x.max()) + 1 if len(x) else 0 for x in (src, dst))")
    else:
        d.line(f"num_src, num_dst = {num_src}, {num_dst}")
    check = d.one("", "", ", check=False")
    kind = d.one("edges", "sort", "sorted", "index", "csc", "csr", "coo", "sparse")
    if kind == "sort":
        d.line(f"g, perm = Graph.from_edges(src, dst, {counts}, sort=True{check})")
        d.line(f"src, dst, num_src, num_dst = src[perm.long()], dst[perm.long()], {num_src}, {num_dst}")
    elif kind == "sorted":
        d.line("dst = dst.sort().values")
        d.line(f"g = Graph.from_edges(src, dst, {'' if is_default else counts + ', '}is_sorted=True{check})")
    elif kind == "index":
        layout = d.one("torch.stack([src, dst])", "torch.stack([src, dst], 1).t()")
        d.line(f"num_src, num_dst = {num_src}, {num_dst}; g = Graph.from_edge_index({layout}, {counts}{check})")
    elif kind in ("csc", "csr"):
        rows, cols, count = ("dst", "src", "num_src") if kind == "csc" else ("src", "dst", "num_dst")
        d.line(f"order = torch.randperm(src.numel()); order = order[{rows}[order].argsort(stable=True)]")
        num_rows = num_dst if kind == "csc" else num_src
        d.line(f"num_src, num_dst = {num_src}, {num_dst}; num_rows = {num_rows}")
        d.line(f"indptr = {rows}.long().bincount(minlength=num_rows).cumsum(0).to(src.dtype)")
        d.line("indptr = torch.nn.functional.pad(indptr, (1, 0))")
        d.line(f"edge_ids = {d.one('order.to(src.dtype)', 'order.to(src.dtype)', 'None')}")
        d.line("if edge_ids is None: src, dst = src[order], dst[order]; order = torch.arange(len(order))")
        d.line(f"g = Graph.from_{kind}(indptr, {cols}[order], edge_ids, {count}={count}{check})")
    elif kind == "coo":
        d.line(f"src, dst, num_src, num_dst = src.long(), dst.long(), {num_src}, {num_dst}")
        d.line("ends, shape = torch.stack([dst, src]), (num_dst, num_src)")
        d.line("g = Graph.from_torch_sparse(torch.sparse_coo_tensor(ends, torch.ones(len(src)), shape))")
    elif kind == "sparse":
        d.line(f"num_src, num_dst = {num_src}, {num_dst}; dense = torch.zeros(num_dst, num_src)")
        d.line("dense[dst.long(), src.long()] = 1")
        layout = d.one("csr", "csc")
        d.line(f"g = Graph.from_torch_sparse(dense.to_sparse_{layout}())")
        d.line("dst, src = dense.nonzero().t()" if layout == "csr" else "src, dst = dense.t().nonzero().t()")
    else:
        ends = d.one("src, dst", "misaligned(src), dst")
        d.line(f"g = Graph.from_edges({ends}{'' if is_default else ', ' + counts}{check})")
    for _ in range(d.one(0, 1, 1, 2)):
        d.line(
            d.one(
                "g = pickle.loads(pickle.dumps(g))",
                "g.csr(); g = pickle.loads(pickle.dumps(g))",
                "g = g.reverse(); src, dst, num_src, num_dst = dst, src, num_dst, num_src",
                "g = g.int(); src, dst = src.int(), dst.int()",
                "g = g.long(); src, dst = src.long(), dst.long()",
                "g = Graph(g.num_src, g.num_dst, csr=g.csr())",
                "g = copy.deepcopy(g)",
            )
        )
    d.line("check_graph(g, src, dst, num_src, num_dst)")


def reorder(d: Draw) -> None:
    """Another order has the same edges, and the same sums in another order."""
    d.graph(square=True)
    d.line(f"window = {d.one(1, 2, 5, 30, 4096)}")
    d.line(f"r = halfgnn.reorder(g, window=window, least_gain={d.one(-1, -1, 0.0, 0.02, 1)})")
    d.line("src, dst = g.edges()")
    d.line("new_src, new_dst = r.new_ids[src.long()], r.new_ids[dst.long()]")
    d.line("check_graph(r.graph, new_src, new_dst, g.num_src, g.num_dst)")
    d.line(f"x = randn(g.num_src, {d.one(1, 5, 8, 33)}, dtype=torch.{d.dtype()})")
    d.line(f"assert_identical(r.restore(r.permute(x)), x); op = ops.copy_u_{d.one('sum', 'max', 'mean')}")
    d.line("assert_identical(r.restore(op(r.graph, r.permute(x))), op(g, x))")
    d.line("assert r.is_identity or halfgnn.locality(r.graph, window) == r.locality_after")


def _relations(d: Draw) -> tuple[dict[str, int], list[tuple[str, str, str]]]:
    """Writes g, a HeteroGraph. Returns the numbers of nodes and the edge types."""
    counts = {name: d.one(0, 1, 3, 12, 40) for name in "abc"[: d.one(1, 2, 2, 3)]}
    types = [(d.one(*counts), f"r{i}", d.one(*counts)) for i in range(d.one(1, 2, 3, 4))]
    edges = {t: d.one(0, 1, 5, 60) if counts[t[0]] and counts[t[2]] else 0 for t in types}
    d.line(f"g = hetero({counts}, {edges}, torch.{d.one('int32', 'int64')})")
    return counts, types


def hetero_graph(d: Draw) -> None:
    """Relations are the same before and after they are stacked, moved, and taken out of the stack."""
    _, types = _relations(d)
    d.line("before = {etype: g[etype] for etype in g}")
    for _ in range(d.one(1, 2, 3)):
        some = tuple(t for t in types if d.chance(0.6)) or types[:1]
        d.line(
            d.one(
                "g.stack()",
                f"g.stack({tuple(some)})",
                "g = pickle.loads(pickle.dumps(g))",
                "g = g._map(torch.clone)",
                "g = g.int() if g.idtype == torch.int64 else g.long()",
                "g = g.int()",
            )
        )
    d.line("for etype, known in before.items():")
    d.line("    known = known.int() if g.idtype == torch.int32 else known.long()")
    d.line("    check_graph(g[etype], *known.edges(), known.num_src, known.num_dst)")


def hetero_module(d: Draw) -> None:
    counts, types = _relations(d)
    width, heads, dim, dtype = (
        d.one(1, 4, 9, 24),
        d.one(1, 2, 3),
        d.one(1, 4, 8, 9),
        d.dtype(*HALVES, "float32", "float32"),
    )
    options = f"{dim}, {heads}, residual={d.chance(0.3)}"
    slopes = [d.one(0.2, 0.2, 0.1) for _ in types]
    convs = ", ".join(
        f"{name!r}: halfgnn.nn.GATConv(({width}, {width}), {options}, negative_slope={slope})"
        for (_, name, _), slope in zip(types, slopes)
    )
    d.line(f"module = halfgnn.nn.HeteroGraphConv({{{convs}}}, 'sum').to(torch.{dtype})")
    d.line(f"inputs = {{name: randn(n, {width}, dtype=torch.{dtype}) for name, n in {counts}.items()}}")
    d.line(d.one("", "g = pickle.loads(pickle.dumps(g))", "g.stack(); g = g._map(torch.clone)"))
    d.line("check_hetero(module, g, inputs)")


def _module(d: Draw, width: int, dst_width: int, is_pair: bool) -> tuple[str, str, str]:
    """A constructor, further arguments of the call, and the shape of the edge data in these arguments (or nothing)."""
    widths = f"({width}, {dst_width})" if is_pair else str(width)
    heads, dim = d.one(1, 2, 3, 5), d.one(1, 2, 5, 8, 11)
    slope, residual, bias = d.one(0.2, 0.05), d.chance(0.4), d.chance(0.7)
    kind = d.one("GATConv", "GATConv", "GATv2Conv", "DotGatConv", "TransformerConv", "SAGEConv", "GINConv", "GraphConv")
    zero = "allow_zero_in_degree=True"
    weights = ("edge_weight=w", "") if d.chance(0.3) else ("", "")
    if kind == "GATConv":
        text = f"GATConv({widths}, {dim}, {heads}, negative_slope={slope}, residual={residual}, bias={bias}, {zero})"
        return text, *weights
    if kind == "GATv2Conv":
        text = f"GATv2Conv({widths}, {dim}, {heads}, negative_slope={slope}, residual={residual}, bias={bias}, {zero}"
        return f"{text}, share_weights={d.chance(0.3) and not is_pair})", "", ""
    if kind == "DotGatConv":
        return f"DotGatConv({widths}, {dim}, {heads}, {zero})", "", ""
    if kind == "TransformerConv":
        edge_dim = d.one(None, None, 1, 6)
        concat, beta, root = d.chance(0.7), d.chance(0.3), d.chance(0.7)
        text = f"TransformerConv({widths}, {dim}, {heads}, concat={concat}, beta={beta}, bias={bias}"
        text += f", edge_dim={edge_dim}, root_weight={root})"
        return text, *(("edge_feat=w", f"{edge_dim}, ") if edge_dim else ("", ""))
    if kind == "SAGEConv":
        aggregators = ["mean", "pool"] + ["gcn"] * (not is_pair or width == dst_width)
        aggregator = d.one(*aggregators, *["lstm"] * (not d.is_large))  # an LSTM takes the edges of a hub one by one
        return f"SAGEConv({widths}, {dim}, {aggregator!r}, bias={bias})", *weights
    if kind == "GINConv":
        function = d.one("None", f"torch.nn.Linear({width}, {dim})")
        return (
            f"GINConv({function}, {d.one('sum', 'max', 'mean')!r}, init_eps=0.3, learn_eps={d.chance(0.5)})",
            *weights,
        )
    norm = d.one("both", "right", "left", "none")
    return f"GraphConv({width}, {d.one(1, 5, 20)}, norm={norm!r}, bias={bias}, {zero})", *weights


def module(d: Draw) -> None:
    is_pair = d.chance(0.4)
    d.graph(square=not is_pair)
    width, dtype = d.one(1, 2, 8, 12, 19), d.dtype(*HALVES, "float32", "float32")
    dst_width = d.one(width, width, 3)
    constructor, argument, shape = _module(d, width, dst_width, is_pair)
    if constructor.startswith("GIN"):
        dst_width = width
    is_pair = is_pair and not constructor.startswith("GraphConv")
    under_autocast = dtype in HALVES and d.chance(0.3)
    own = "float32" if under_autocast else dtype
    d.line(f"conv = seeded(lambda: halfgnn.nn.{constructor}).to(torch.{own})")
    d.line(f"x = {d.operand('g.num_src', (width,), own)}")
    inputs, feat = ["x"], "x"
    if is_pair:
        d.line(f"y = {d.operand('g.num_dst', (dst_width,), own)}")
        inputs, feat = ["x", "y"], "(x, y)"
    if argument:
        d.line(f"w = torch.rand(g.num_edges, {shape}dtype=torch.float64).add(0.5).to(torch.{own})")
        inputs.append("w")
    call = f"conv(g, {feat}{', ' + argument if argument else ''})"
    d.line(f"def call(conv, {', '.join(inputs)}):")
    if under_autocast:
        d.line(f"    with torch.autocast('cpu', torch.{dtype}):")
        d.line(f"        return {call}.to(torch.{dtype} if x.dtype != torch.float64 else x.dtype)")
        d.line(f"check_module(conv, call, [{', '.join(inputs)}], torch.{dtype})")
    else:
        d.line(f"    return {call}")
        d.line(f"check_module(conv, call, [{', '.join(inputs)}])")
