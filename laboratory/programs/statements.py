"""Statements of random message functions that compute values."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .draw import Draw

# Functions of every value by itself. Those in TIES map many numbers to one, so that extremes have several winners.
TIES = ("relu()", "abs().clamp(min=0.5)", "heaviside(x_j.new_zeros(()))")
UNARY = (
    "tanh()", "neg()", "sigmoid().exp()", "square()", "sigmoid()", "abs()", "sin()", "clone()", "contiguous()", "detach()",
    "mul(2)", "sub(1)", "rsub(1)", "div(3)", "pow(2)", "to(x_j.dtype)", "requires_grad_(True)", "cos()", "to(e)", "type_as(e)",
    *TIES,
)  # fmt: skip
WRITES = (
    "mul_(2)", "relu_()", "add_(1)", "neg_()", "zero_()", "detach().mul_(2)", "data.mul_(2)", "copy_(2)",
    "masked_fill_({0} > 0, 1)",
    "view(-1).mul_(2)", "[..., :2].zero_()", "[..., 0].add_(1)", "unsqueeze(-1).mul_(2)", "select(-1, 0).zero_()",
    "flatten().mul_(2)", "[..., :2].detach().mul_(3)", "view_as({0}).mul_(2)", "transpose(-1, -2).mul_(2)",
)  # fmt: skip
ASSIGNMENTS = (
    "{0}[:, 0] = 5", "{0}[..., 0] = 5", "{0} *= 2", "{0} += e.sum()", "{0}[{0} > 0] = 1", "{0}.data = {0}.detach() * 2", "{0} /= 2",
    "torch.relu_({0})", "{0}[0] = 1", "{0}[..., :2] *= 2", "torch.neg({0}.detach(), out={0}.detach())",
)  # fmt: skip


def _unary(d: Draw) -> None:
    name, function = d.recent(), d.random.choice(UNARY)
    d.program.has_ties |= function in TIES
    d.add(f"{name}.{function}" if function != "rsub(1)" else f"1 - {name}", d.shapes[name])


def _write(d: Draw) -> None:
    """In place, often through a view."""
    name = d.recent(lambda shape: len(shape) > 1)
    d.program.has_ties = True
    write = d.random.choice(WRITES)
    if write.startswith("data") and name[0] not in "vx":
        return  # PyTorch does not count it, so a message reads the new values of its operands
    code = f"{name}{'' if write[0] == '[' else '.'}{write.format(name)}"
    d.do(d.random.choice(ASSIGNMENTS).format(name) if d.happens(0.4) else code)


def broadcast(first: tuple[int, ...], second: tuple[int, ...]) -> tuple[int, ...] | None:
    rank = max(len(first), len(second))
    pairs = list(zip((1,) * (rank - len(first)) + first, (1,) * (rank - len(second)) + second))
    return tuple(max(pair) for pair in pairs) if all(a == b or 1 in (a, b) for a, b in pairs) else None


def _binary(d: Draw) -> None:
    first = d.recent()
    shape = d.shapes[first]
    shapes = {name: broadcast(shape, other) for name, other in d.shapes.items()}
    alike = [name for name, other in d.shapes.items() if len(other) == len(shape) and shapes[name]]
    names = [name for name, other in shapes.items() if other and len(other) < 5 and math.prod(other) < 10**6]
    second = d.random.choice(names if d.happens(0.2) and names else alike)
    op, out = d.random.choice(("+", "-", "*", "+", "*", "/")), shapes[second]
    assert out is not None
    if op == "-" and d.program.aggr in ("max", "min"):  # of a self-loop: PyTorch halves the gradient of an extreme of 0
        d.program.has_ties = True  # (findings/torch_scatter_reduce_self.sh)
    second = f"(2 + {second}.abs())" if op == "/" else second
    if d.happens(0.3):
        first, second = second, first
        op = "+" if op == "/" else op
    d.add(f"{first} {op} {second}", out)


def _with_all(d: Draw) -> None:
    """A tensor for all edges."""
    name = d.recent(lambda shape: len(shape) > 1 and shape[-1] == d.program.width)
    other = d.random.choice(("p", "p.view(1, -1)", "p[0]", f"{name}.mean({d.edge_dim}, keepdim=True)"))
    d.add(f"{name} {d.random.choice('+*')} {other}", d.shapes[name])


def _view(d: Draw) -> None:
    name = d.of_edges(1, 2, 3)
    rest = d.shapes[name][len(d.rows) :]
    size = math.prod(rest)
    heads = d.divisor(size)
    edges = d.random.choice(("-1", f"{d.rows[-1]}", f"{name}.size({d.edge_dim})"))
    first = ", ".join([*map(str, d.rows[:-1]), edges])
    function = d.random.choice(("view", "reshape", "view"))
    shapes = {
        f"{first}, {heads}, {size // heads}": (*d.rows, heads, size // heads),
        f"{first}, {size}": (*d.rows, size),
    }
    arguments = d.random.choice(list(shapes))
    d.add(f"{name}.{function}({arguments})", shapes[arguments])


def _move(d: Draw) -> None:
    name = d.of_edges(1, 2, 3)
    shape, rank = d.shapes[name], len(d.shapes[name])
    kinds = ("unsqueeze", "squeeze", "slice", "select", "transpose", "expand", "flip", "index", "permute")
    kind, after = d.random.choice(kinds), len(d.rows)
    dim = d.random.randrange(after, rank)
    colons = ":, " * dim
    if kind == "unsqueeze" and rank < 4:
        dim = d.random.randrange(after, rank + 1)
        d.add(f"{name}.unsqueeze({dim})", (*shape[:dim], 1, *shape[dim:]))
    elif kind == "squeeze" and rank > after + 1:
        rest = shape[dim + 1 :]
        d.add(f"{name}.squeeze({dim - rank})", (*shape[:dim], *rest) if shape[dim] == 1 else shape)
    elif kind == "slice":
        start = d.random.randrange(shape[dim])
        d.add(f"{name}[{colons}{start}:]", (*shape[:dim], shape[dim] - start, *shape[dim + 1 :]))
    elif kind == "select":
        d.add(f"{name}.select({dim}, {d.random.randrange(shape[dim])})", (*shape[:dim], *shape[dim + 1 :]))
    elif kind in ("transpose", "permute") and rank > after + 1:
        order = [*range(after), after + 1, after, *range(after + 2, rank)]
        code = f"transpose({after}, {after + 1})" if kind == "transpose" else f"permute{tuple(order)}"
        d.add(f"{name}.{code}", tuple(shape[place] for place in order))
    elif kind == "expand" and shape[dim] == 1:
        size = d.random.choice((3, *(x for x in (d.program.num_edges, *d.program.num_nodes) if x < 1000)))
        sizes = [-1] * rank
        sizes[dim] = size
        d.add(f"{name}.expand({', '.join(map(str, sizes))})", (*shape[:dim], size, *shape[dim + 1 :]))
    elif kind == "flip":
        d.add(f"{name}.flip({dim})", shape)
    elif kind == "index":
        code, size = d.random.choice((("[0, 0]", 2), ("None", 0), ("::2", (shape[dim] + 1) // 2)))
        sizes = [1, shape[dim]] if code == "None" else [size]
        d.add(f"{name}[{colons}{code}]", (*shape[:dim], *sizes, *shape[dim + 1 :]))


def _parts(d: Draw) -> None:
    """Heads or halves, several of them used."""
    name = d.of_edges(1, 2)
    shape = d.shapes[name]
    parts = d.divisor(shape[-1])
    taken = (*shape[:-1], shape[-1] // parts)
    function = d.random.choice((f"chunk({parts}, -1)", f"split({shape[-1] // parts}, -1)"))
    first, last = f"{name}.{function}[0]", f"{name}.{function}[-1]"
    d.add(d.random.choice((first, last, f"{first} * {last}", f"{first} - {last}")), taken)


def _pairs(d: Draw) -> None:
    """All pairs of edges: an expand that adds a dimension in front of the edges."""
    name = d.recent(lambda shape: len(shape) == 2)
    shape = d.shapes[name]
    if len(shape) == 2 and d.is_small and d.is_of_edges(shape):
        pairs = f"({name}.unsqueeze(1) * {name}.expand(len({name}), -1, -1))"
        d.add(f"{pairs}.{d.random.choice(('mean(1)', 'sum(0)', 'sum(1)', 'amax(1)'))}", shape)


def _join(d: Draw) -> None:
    first = d.recent(lambda shape: len(shape) in (2, 3))
    shape = d.shapes[first]
    second = d.recent(lambda other: len(other) == len(shape) and other[:-1] == shape[:-1])
    other = d.shapes[second]
    if d.happens(0.2) and first in d.shapes and d.is_of_edges(shape):
        d.add(f"torch.stack([{first}, {first}], {d.edge_dim + 1})", (*d.rows, 2, *shape[len(d.rows) :]))
    elif len(other) == len(shape) and other[:-1] == shape[:-1]:
        joined = f"torch.cat([{first}, {second}], {d.random.choice((-1, len(shape) - 1))})"
        d.add(joined, (*shape[:-1], shape[-1] + other[-1]))


def _sum(d: Draw) -> None:
    name = d.of_edges(1, 2, 3)
    shape, rank = d.shapes[name], len(d.shapes[name])
    dim = d.random.randrange(len(d.rows), rank)
    function = d.random.choice(("sum", "sum", "sum", "mean", "amax", "prod", "cumsum"))
    dim_code = d.random.choice((dim, dim - rank))
    if function == "cumsum":
        d.add(f"{name}.cumsum({dim_code})", shape)
    elif d.happens(0.5):
        d.add(f"{name}.{function}({dim_code}, keepdim=True)", (*shape[:dim], 1, *shape[dim + 1 :]))
    else:
        d.add(f"{name}.{function}({dim_code})", (*shape[:dim], *shape[dim + 1 :]))


def _linear(d: Draw) -> None:
    name = d.recent(lambda shape: len(shape) in (2, 3) and shape[-1] == d.program.width)
    product = d.random.choice((f"torch.nn.functional.linear({name}, m, p)", f"{name} @ m", f"torch.matmul({name}, m)"))
    d.add(product, d.shapes[name])


def _weighed_joined(d: Draw) -> None:
    """A linear layer of what is joined, as in EdgeConv."""
    first = d.random.choice(("x_i", "x_j", "x_j * w", "x_i - x_j"))
    second = d.random.choice(("x_j - x_i", "x_j", "x_i", "x_j.tanh()"))
    d.add(f"torch.nn.functional.linear(torch.cat([{first}, {second}], -1), torch.cat([m, m], -1))", d.shapes["x_j"])


def _where(d: Draw) -> None:
    name = d.recent()
    d.program.has_ties = True
    d.add(f"torch.where({name} > 0, {name}, 0.1 * {name})", d.shapes[name])


def _softmax(d: Draw) -> None:
    if d.program.batch:
        name = d.of_edges(1)
        d.add(f"softmax({name}, index, num_nodes=num_nodes, dim=-2)", d.shapes[name])
        return
    name = d.recent(lambda shape: len(shape) in (1, 2, 3) and d.is_of_edges(shape))
    d.add(f"softmax({name}, index, num_nodes=num_nodes)", d.shapes[name])


def _attention(d: Draw) -> None:
    """By heads, in forms that the drop-in fuses and in others."""
    if d.program.batch:
        return
    heads = d.divisor(d.program.width)
    size = d.program.width // heads
    q, k, v = (f"{x}.view(-1, {heads}, {size})" for x in ("x_i", "x_j", d.random.choice(("x_j", "x_j", "(x_j + e)"))))
    att = f"p.view(1, {heads}, {size})"
    logits = d.random.choice(
        (
            f"({q} * {k}).sum(-1)", f"({q} * {k}).sum(-1) / 2", f"({q} * ({k} + e.view(-1, {heads}, {size}))).sum(-1) * 0.5",
            f"(torch.nn.functional.leaky_relu({q} + {k}, 0.2) * {att}).sum(-1)",
            f"torch.nn.functional.leaky_relu(({q} * {att}).sum(-1) + ({k} * {att}).sum(-1), 0.2)",
        )
    )  # fmt: skip
    logits = d.add(logits, (*d.rows, heads))
    if d.happens(0.15):
        d.statement()
    alpha = d.add(f"softmax({logits}, index, num_nodes=num_nodes)", (*d.rows, heads))
    if d.happens(0.15):
        d.statement()
    alpha = d.random.choice((f"{alpha}.unsqueeze(-1)", f"{alpha}.view(-1, {heads}, 1)", f"{alpha}[..., None]"))
    d.add(d.random.choice((f"{v} * {alpha}", f"{alpha} * {v}")), (*d.rows, heads, size))


def _read(d: Draw) -> None:
    """What takes its values out of PyTorch's hands, or asks how it lies in memory."""
    name = d.recent()
    number = d.random.choice(
        (
            f"{name}.sum().item()", f"float({name}.stride(0))", f"float({name}.is_contiguous())", f"float({name}.requires_grad)",
            f"float({name}.is_leaf)", f"float(len({name}.tolist()))", f"torch.tensor({name}.detach().float().numpy()).sum()",
            f"float({name}._version)", f"float({name}.grad_fn is None)", f"float(({name} == {name}).all())",
            f"torch.ones_like({name})", f"{name}.new_ones({name}.shape)", f"float({name}.is_inference())",
            f"float({name}.untyped_storage().nbytes())", f"float({name}.storage_offset())", f"float({name}.mean())",
        )
    )  # fmt: skip
    d.add(f"{name} * {number}", d.shapes[name])


def _einsum(d: Draw) -> None:
    name = d.of_edges(1)
    d.add(
        f"torch.einsum('...ef,fg->...eg', {name}, {name}.new_ones({d.shapes[name][-1]}, 2))", (*d.shapes[name][:-1], 2)
    )


STATEMENTS = (
    *[_unary] * 3, *[_binary] * 6, _with_all, *[_view] * 3, *[_move] * 6, _parts, _pairs, *[_join] * 2, *[_sum] * 3, *[_linear] * 2,
    _weighed_joined, _where, _softmax, _attention, _read, _einsum, *[_write] * 2,
)  # fmt: skip
