"""Cases of operators: right calls compared with the reference, and changes that must not change their results."""

from __future__ import annotations

from .draw import DTYPES, HALVES, Draw

ARITHMETIC = ("add", "sub", "mul", "mul", "mul", "div", "relu_add")
TARGETS = {"u": ("u", "src", 0), "v": ("v", "dst", 2), "e": ("e", "edge", 1)}
ROWS = {"u": "g.num_src", "v": "g.num_dst", "e": "g.num_edges"}


def _spmm(d: Draw):
    """Writes g and the operands x and w of a gspmm. Returns op, reduce, out_dtype, and whether to check the
    backward."""
    d.graph()
    op, reduce = d.one(*ARITHMETIC, "copy_lhs", "copy_lhs", "copy_rhs"), d.one("sum", "sum", "mean", "max", "min")
    dtype, values = d.dtype(), d.values()
    lhs_shape, rhs_shape = d.broadcast()
    rhs_dtype = dtype if op == "copy_rhs" else _beside(d, dtype)
    for name, rows, shape, kind, unused in (
        ("x", "g.num_src", lhs_shape, dtype, "copy_rhs"),
        ("w", "g.num_edges", rhs_shape, rhs_dtype, "copy_lhs"),
    ):
        is_divisor = name == "w" and op == "div"
        d.line(f"{name} = {None if op == unused else d.operand(rows, shape, kind, values, is_divisor)}")
    out_dtype = "torch.float32" if dtype in HALVES and d.chance(0.2) else None
    # Sums of numbers of many magnitudes may be equal in float32 but not in float64. Then another edge wins.
    backward = not (reduce in ("max", "min") and values == "wide" and op in ("add", "sub", "relu_add"))
    return op, reduce, out_dtype, backward


def _beside(d: Draw, dtype: str) -> str:
    """The dtype of the other operand."""
    if dtype == "float64" or not d.chance(0.2):
        return dtype
    return "float32" if dtype in HALVES else d.one(*HALVES)


def gspmm(d: Draw) -> None:
    op, reduce, out_dtype, backward = _spmm(d)
    options = f"out_dtype={out_dtype}, backward={backward}, terms=terms_of(g, x, w)"
    d.line(f"support.check_gspmm(g, {op!r}, {reduce!r}, [x, w], {options})")


def named_gspmm(d: Draw) -> None:
    op, reduce, out_dtype, backward = _spmm(d)
    name, arguments = f"u_{op}_e_{reduce}", "x, w"
    if op.startswith("copy"):
        arguments = "x" if op == "copy_lhs" else "w"
        name = f"copy_{'u' if op == 'copy_lhs' else 'e'}_{reduce}"
    run = f"lambda x, w: ops.{name}(g, {arguments}, out_dtype={out_dtype})"
    options = f"out_dtype={out_dtype}, backward={backward}, terms=terms_of(g, x, w)"
    d.line(f"support.check_gspmm(g, {op!r}, {reduce!r}, [x, w], run={run}, {options})")


def copy_u_reduce(d: Draw) -> None:
    d.graph()
    reduces = tuple(d.random.sample(("sum", "mean", "max", "min", "var", "std"), d.one(1, 2, 3, 4, 6)))
    dtype = d.dtype()
    d.line(f"x = {d.operand('g.num_src', d.shape(), dtype)}")
    out_dtype = "torch.float32" if dtype in HALVES and d.chance(0.2) else None
    d.line(f"check_copy_u_reduce(g, x, {reduces!r}, eps={d.one(1e-5, 1e-5, 0.5)}, out_dtype={out_dtype})")


def _sddmm(d: Draw, targets) -> tuple[str, str | None]:
    d.graph()
    op = d.one("add", "sub", "mul", "div", "dot", "dot", "dot", "copy_lhs", "copy_rhs")
    dtype, values = d.dtype(), d.values()
    shapes = d.broadcast(is_dot=op == "dot")
    dtypes = dtype, dtype if op.startswith("copy") else _beside(d, dtype)
    for name, target, shape, kind, unused in zip("xy", targets, shapes, dtypes, ("copy_rhs", "copy_lhs")):
        is_divisor = name == "y" and op == "div"
        d.line(f"{name} = {None if op == unused else d.operand(ROWS[target], shape, kind, values, is_divisor)}")
    return op, "torch.float32" if dtype in HALVES and d.chance(0.2) else None


def gsddmm(d: Draw) -> None:
    targets = d.one("uv", "vu", "ue", "eu", "ve", "ev", "uu", "vv", "ee")
    op, out_dtype = _sddmm(d, targets)
    spelled = [d.one(*TARGETS[target]) for target in targets]
    run = f"lambda x, y: ops.gsddmm(g, {op!r}, x, y, {spelled[0]!r}, {spelled[1]!r}, out_dtype={out_dtype})"
    d.line(f"run = {run}")
    options = f"out_dtype={out_dtype}, terms=terms_of(g, x, y)"
    d.line(f"support.check_gsddmm(g, {op!r}, [x, y], *{targets!r}, run=run, {options})")


def named_gsddmm(d: Draw) -> None:
    targets = d.one("uv", "vu", "ue", "eu", "ve", "ev")
    op, out_dtype = _sddmm(d, targets)
    name, arguments = f"{targets[0]}_{op}_{targets[1]}", "x, y"
    if op.startswith("copy"):
        arguments = "x" if op == "copy_lhs" else "y"
        name = f"copy_{targets[op == 'copy_rhs']}"
    d.line(f"run = lambda x, y: ops.{name}(g, {arguments}, out_dtype={out_dtype})")
    options = f"out_dtype={out_dtype}, terms=terms_of(g, x, y)"
    d.line(f"support.check_gsddmm(g, {op!r}, [x, y], *{targets!r}, run=run, {options})")


def u_add_v_add_e(d: Draw) -> None:
    d.graph()
    dtype, shape, values = d.dtype(), d.shape(), d.values()
    for name, rows in zip("xyz", ROWS.values()):
        d.line(f"{name} = {d.operand(rows, shape, dtype, values)}")
    out_dtype = "torch.float32" if dtype in HALVES and d.chance(0.2) else None
    options = f"out_dtype={out_dtype}, terms=terms_of(g, x, y, z)"
    d.line(f"support_messages.check_u_add_v_add_e(g, [x, y, z], {options})")


def gated_sum(d: Draw) -> None:
    """Large arguments of sigmoid differ by float32 rounding."""
    d.graph()
    dtype, shape, has_edge, has_values = d.dtype(), d.shape(), d.chance(0.7), d.chance(0.5)
    names = ["value", "gate_src", "gate_dst", *["gate_edge"] * has_edge, *["edge_value"] * has_values]
    for name in names:
        target = {"value": "u", "gate_src": "u", "gate_dst": "v"}.get(name, "e")
        d.line(f"{name} = {d.operand(ROWS[target], shape, dtype)}")
    if has_values and not has_edge:
        names.insert(3, "gate_edge")
        d.line("gate_edge = None")
    operands = ", ".join(names)
    options = f"normalize={d.chance(0.5)}, eps={d.one(1e-6, 0.1)}, terms=terms_of(g, {operands})"
    d.line(f"support_messages.check_gated_sum(g, [{operands}], {options})")


def edge_network(d: Draw) -> None:
    """Maxima of equal messages may be of another edge than PyTorch's, whose products round otherwise: sums and means alone."""
    d.graph()
    names = ("norm", "factors", "distances", "dst", "feat", "return_edges")
    options = ", ".join(f"{name}={d.chance(0.6)}" for name in names)
    options += f", reduce={d.one('sum', 'mean')!r}, activation={d.one('silu', 'tanh', 'gelu')!r}"
    d.line(f"given = support_edge_network.arguments(g, torch.{d.dtype()}, {options})")
    d.line(f"support_edge_network.compare(g, given, tile_edges={d.one(1, 7, 64)})")


def edge_softmax(d: Draw) -> None:
    d.graph()
    # Equal weights have the same rounding error, so half gradients lean to one side. Large logits differ by float32
    # rounding.
    dtype = d.dtype()
    values = d.one("plain", "wide") if dtype in HALVES else "plain"
    d.line(f"logits = {d.operand('g.num_edges', d.shape(), dtype, values, may_repeat=dtype not in HALVES)}")
    if d.chance(0.15):
        d.line("logits = logits.masked_fill(torch.rand(logits.shape) < 0.3, -torch.inf)")
    d.line(f"check_edge_softmax(g, logits, {d.one('dst', 'src')!r})")


def edge_list(d: Draw) -> None:
    """coo_sum and coo_softmax over the edges of a Graph in any order; coo_sum also of rows of edges."""
    d.graph()
    d.line("src, dst = (ends[order] for order in [torch.randperm(g.num_edges)] for ends in g.edges())")
    d.line("g = Graph.from_edges(src, dst, num_src=g.num_src, num_dst=g.num_dst)")
    dtype, shape = d.dtype(), d.shape()
    if d.chance(0.3):
        d.line(f"logits = {d.operand('g.num_edges', shape, dtype, may_repeat=dtype not in HALVES)}")
        d.line("check_edge_softmax(g, logits, 'dst', lambda x: coo_softmax(dst, x, g.num_dst))")
        return
    op, reduce = d.one("copy_lhs", "mul", "add", "relu_add"), d.one("sum", "mean")
    d.line(f"x = {d.operand('g.num_src', shape, dtype)}")
    if d.chance(0.2):
        d.line(f"run = lambda _, x: coo_sum(dst, None, x, None, {reduce!r}, g.num_dst)")
        d.line(f"w = {d.operand('g.num_edges', shape, dtype)}")
        d.line(f"support.check_gspmm(g, 'copy_rhs', {reduce!r}, [None, w], run=run, terms=terms_of(g, w))")
        return
    of_edges = (1,) * len(shape) if op == "mul" else shape
    d.line(f"w = {None if op == 'copy_lhs' else d.operand('g.num_edges', of_edges, dtype)}")
    rhs = "w.flatten()" if op == "mul" else "w"
    d.line(f"run = lambda x, w: coo_sum(dst, src, x, {rhs}, {reduce!r}, g.num_dst, op={op!r})")
    d.line(f"support.check_gspmm(g, {op!r}, {reduce!r}, [x, w], run=run, terms=terms_of(g, x, w))")


def segment_reduce(d: Draw) -> None:
    reducer, count = d.one("sum", "mean", "max", "min"), d.one(0, 1, 2, 9, 40)
    d.line(f"seglen = torch.randint({d.one(1, 3, 12, 100)}, ({count},), dtype=torch.{d.one('int32', 'int64')})")
    if count and d.chance(0.2):
        d.line(f"seglen[{d.random.randrange(count)}] = {d.one(65, 1000)}")
        d.is_large = True
    d.line(f"value = {d.operand('int(seglen.sum())', d.shape(), d.dtype(), d.values())}")
    d.line(f"check_segment_reduce(seglen, value, {reducer!r})")


def _attention(d: Draw, dtype: str) -> str:
    """Writes g and the list `operands` of an attention. Returns its name in support_attention."""
    d.graph()
    kind, dim = d.one("GAT", "GAT", "GAT_EDGE", "GATV2", "DOT"), d.width()
    d.line(f"kind = support_attention.{kind}")
    logits = ", logit_dtype=torch.float32" if dtype in HALVES and d.chance(0.3) else ""
    d.line(f"operands = kind.operands(g, {d.random.randint(1, 8)}, {dim}, torch.{dtype}{logits})")
    if d.chance(0.3):
        layout = d.one("misaligned", "column_major", "every_other", "expanded")
        at = d.one(0, 1, 2)
        d.line(f"operands[{at}] = {layout}(operands[{at}])")
    return kind


def attention(d: Draw) -> None:
    _attention(d, d.dtype())
    dropout = d.one(0.0, 0.0, 0.25, 0.9)
    d.line(f"support_attention.check(kind, g, operands, dropout_p={dropout}, terms=max(10_000, terms_of(g)))")


def edge_attention(d: Draw) -> None:
    """Dot attention and GATv2 with terms of edges."""
    dtype = d.dtype()
    d.graph()
    heads, dim, columns = d.random.randint(1, 8), d.one(1, 3, 8, 16, 17, 33, 40), d.one(1, 2, 7, 8, 9, 16, 17, 40)
    dropout = d.one(0.0, 0.0, 0.25, 0.9)
    if d.chance(0.4):
        d.line(f"terms = list(support_gatv2_edges.KINDS.values())[{d.random.randrange(5)}]")
        d.line(f"tensors = support_gatv2_edges.operands(terms, g, {heads}, {dim}, {columns}, torch.{dtype})")
        return d.line(f"support_gatv2_edges.check(g, tensors, {dropout}, sums=max(10_000, terms_of(g)))")
    d.line(f"terms = support_attention_edges.TERMS[{d.random.randrange(8)}]")
    bias = ", bias_dtype=torch.float32" if dtype in HALVES and d.chance(0.3) else ""
    d.line(f"tensors = terms.operands(g, {heads}, {dim}, {columns}, torch.{dtype}{bias})")
    if d.chance(0.3):
        d.line(f"name = list(tensors)[{d.one(0, 1, 2, 3, -1, -1)}]")
        d.line(f"tensors[name] = {d.one('misaligned', 'column_major', 'every_other', 'expanded')}(tensors[name])")
    if d.chance(0.3):
        d.line("if 'edge_bias' in tensors:")
        d.line("    tensors['edge_bias'][torch.rand(tensors['edge_bias'].shape) < 0.5] = -torch.inf")
    d.line(f"support_attention_edges.check(terms, g, tensors, {dropout}, sums=max(10_000, terms_of(g)))")


def attention_dropout(d: Draw) -> None:
    """One seed of PyTorch gives the same result for all threads and strides."""
    _attention(d, d.dtype())
    d.line("def call(*operands):")
    d.line("    torch.manual_seed(7)")
    d.line(f"    return kind.call(g, *operands, dropout_p={d.one(0.1, 0.5, 1.0)}, precise={d.chance(0.5)})")
    d.line("check_bitwise(call, *operands)")


def bitwise(d: Draw) -> None:
    if d.chance(0.5):
        op, reduce, out_dtype, _ = _spmm(d)
        d.line(f"check_bitwise(lambda x, w: ops.gspmm(g, {op!r}, {reduce!r}, x, w, out_dtype={out_dtype}), x, w)")
    else:
        targets = d.one("uv", "ue", "ev", "uu")
        op, out_dtype = _sddmm(d, targets)
        d.line(f"check_bitwise(lambda x, y: ops.gsddmm(g, {op!r}, x, y, *{targets!r}, out_dtype={out_dtype}), x, y)")


def gather_rows(d: Draw) -> None:
    rows, count = d.one(1, 2, 9, 200), d.one(0, 1, 7, 300, 5000)
    dtype = d.one(*DTYPES, "int8", "bool", "int64")
    d.line(f"table = (torch.randn({rows}, {', '.join(str(n) for n in d.shape((1, 1, 2)))}) * 9).to(torch.{dtype})")
    d.line(
        d.one("", "table = table[::2]", "table = table[:, 1:]", "table = misaligned(table)", "table = expanded(table)")
    )
    d.line(f"ids = torch.randint(table.shape[0], ({count},), dtype=torch.{d.one('int32', 'int64')})")
    d.line(d.one("", "ids = ids[::2]", "ids = misaligned(ids)", "ids = ids.expand(2, -1)[1]"))
    d.line("out = torch.full((len(ids) + 2, *table.shape[1:]), 3).to(table.dtype)")
    d.line(f"raw.gather_rows(table, ids, out[1:-1], {d.one(0, 1, 2, 3)})")
    d.line(
        "assert_identical(out, torch.cat([torch.full_like(out[:1], 3), table[ids.long()], torch.full_like(out[:1], 3)]))"
    )


def dequantize(d: Draw) -> None:
    rows, count, width = d.one(1, 2, 9, 200), d.one(0, 1, 7, 300, 5000), d.one(1, 5, 16, 33, 64, 200)
    d.line(f"codes = torch.randint(256, ({rows}, {width}), dtype=torch.uint8)")
    d.line(f"table = codes.view(torch.{d.one('uint8', 'int8', 'float8_e4m3fn', 'float8_e5m2')})")
    d.line(d.one("", "table = table[::2]", "table = table[:, 1:]"))
    d.line(f"ids = torch.randint(table.shape[0], ({count},), dtype=torch.{d.one('int32', 'int64')})")
    d.line(f"scale = torch.randn({d.one('()', '(table.shape[0], 1)', 'table.shape[1:]')})")
    d.line("zero = torch.randn(scale.shape) if not table.is_floating_point() else None")
    d.line(
        f"out = torch.full((len(ids) + 2, table.shape[1]), 3, dtype=torch.{d.one('float16', 'bfloat16', 'float32')})"
    )
    d.line(f"raw.gather_rows(table, ids, out[1:-1], {d.one(0, 1, 2, 3)}, scale, zero)")
    d.line("values = reference.gather_rows(table, ids, scale=scale, zero_point=zero, out_dtype=out.dtype)")
    d.line("assert_identical(out, torch.cat([torch.full_like(out[:1], 3), values, torch.full_like(out[:1], 3)]))")


def huge(d: Draw) -> None:
    """Many empty rows, rows of thousands of values, and sizes that fit no memory."""
    kind = d.one("rows", "width", "declared", "declared", "product")
    dtype = d.dtype(*HALVES, "float32")
    if kind == "rows":
        rows, side = d.one(1_000_003, 2_500_000), d.one("num_src", "num_dst")
        other = "num_dst" if side == "num_src" else "num_src"
        d.line(f"src, dst = torch.randint(50, (2, 40), dtype=torch.{d.one('int32', 'int64')})")
        d.line(f"g = Graph.from_edges(src, dst, {side}={rows}, {other}=50)")
        d.line(f"x, w = randn(g.num_src, dtype=torch.{dtype}), randn(40, dtype=torch.{dtype})")
        d.line(f"support.check_gspmm(g, 'mul', {d.one('sum', 'mean', 'max')!r}, [x, w])")
    elif kind == "width":
        d.line("g = support.make_graph('duplicates')")
        d.line(f"x, y = (randn(n, {d.one(2000, 4099, 8192)}, dtype=torch.{dtype}) for n in (g.num_src, g.num_dst))")
        d.line("support.check_gsddmm(g, 'dot', [x, y], 'u', 'v', terms=10_000)")
        d.line("support.check_gspmm(g, 'copy_lhs', 'mean', [x, None])")
    elif kind == "declared":
        d.line("ids = torch.tensor([0, 1])")
        count = d.one("2**42", "2**45", "2**48 - 1")
        d.line(
            d.one(
                f"call = lambda: Graph.from_edges(ids, ids, num_dst={count})",
                f"call = lambda: Graph.from_edges(ids, ids, num_src={count}).csr()",
                f"call = lambda: raw.coo_to_csr(ids, ids, {count})",
                f"call = lambda: raw.transpose(ids, ids[:1], None, {count})",
            )
        )
        d.line("refused(call, 'allocate', errors=(RuntimeError, ValueError))")
    else:
        d.line(f"g = support.make_graph({d.one('bipartite', 'one_edge', 'no_source', 'edgeless', 'empty')!r})")
        d.line(f"one = torch.zeros((), dtype=torch.{dtype})")
        d.line("x, w = one.expand(g.num_src, 2**40), one.expand(g.num_edges, 2**40)")
        d.line(
            d.one(
                f"survives(lambda: ops.gspmm(g, 'mul', {d.one('sum', 'max')!r}, x, w))",
                "survives(lambda: ops.gsddmm(g, 'add', x, w, 'u', 'e'))",
                "survives(lambda: ops.edge_softmax(g, w))",
            )
        )
