"""Random message functions, as source code.

Every variable of a message has the edges in front, and sizes are drawn so that edges, nodes and features are often equally many:
a rule that guesses a dimension from its size meets the wrong one.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

SIZES = (1, 2, 3, 4, 6, 8, 12)
LARGE = (48, 320, 700, 6000)  # of which the drop-in routes some calls and leaves others, as their sizes decide
# Functions of every value by itself. Those in TIES map many numbers to one, so that extremes have several winners.
TIES = ("relu()", "abs().clamp(min=0.5)", "heaviside(x_j.new_zeros(()))")
UNARY = (
    "tanh()", "neg()", "exp()", "square()", "sigmoid()", "abs()", "sin()", "clone()", "contiguous()", "detach()", "mul(2)",
    "sub(1)", "rsub(1)", "div(3)", "pow(2)", "double()", "requires_grad_(True)", "cos()", *TIES,
)  # fmt: skip
WRITES = ("mul_(2)", "relu_()", "add_(1)", "neg_()", "zero_()")
AGGREGATIONS = ("sum", "sum", "mean", "max", "min", "softmax")


@dataclass
class Program:
    """A message function and the sizes of what it gets.

    num_nodes: of sources and of destinations. is_bipartite: whether both sides have features of their own. flow: of MessagePassing.
    style: propagate, or rows taken and added up by PyTorch's own operators. statements: of the message. result: the variable that
    it returns. after: a statement on the result of the aggregation.
    """

    num_nodes: tuple[int, int]
    num_edges: int
    width: int
    aggr: str
    style: str
    is_bipartite: bool = False
    flow: str = "source_to_target"
    statements: list[str] = field(default_factory=list)
    result: str = "x_j"
    after: str = "pass"
    has_ties: bool = False

    def source(self) -> str:
        lines = ["def message(x_i, x_j, e, w, p, m, index, num_nodes):", *self.statements, f"return {self.result}"]
        return "\n    ".join(lines) + "\n"

    def __str__(self) -> str:
        nodes = (
            "{} sources, {} destinations".format(*self.num_nodes) if self.is_bipartite else f"{self.num_nodes[0]} nodes"
        )
        sizes = f"# {nodes}, {self.num_edges} edges, width {self.width}, {self.aggr}, {self.style}, {self.flow}"
        return f"{sizes}; then {self.after}\n{self.source()}"


class Draw:
    def __init__(self, seed: int, case: int, sizes: tuple[int, ...] = SIZES) -> None:
        self.random = random.Random(f"{seed} {case}")
        pick = self.random.choice
        num_edges = pick(sizes)
        num_src = pick((num_edges, pick(sizes)))
        is_bipartite = pick((False, False, True))
        num_dst = pick((num_edges, pick(sizes))) if is_bipartite else num_src
        width = pick((4, 6, 8, min(num_edges, 48), min(num_src, 48)))
        style = pick(("propagate", "propagate", "propagate", "scatter", "index_add"))
        aggr = "sum" if style == "index_add" else pick(AGGREGATIONS if style == "propagate" else AGGREGATIONS[:5])
        self.program = Program((num_src, num_dst), num_edges, width, aggr, style, is_bipartite)
        if style == "propagate" and pick((False, False, True)):
            self.program.flow = "target_to_source"
        row = (num_edges, width)
        self.shapes: dict[str, tuple[int, ...]] = {"w": (num_edges, 1), "e": row, "x_i": row, "x_j": row}
        self.count = 0

    def draw(self) -> Program:
        for _ in range(self.random.randint(1, 7)):
            self.random.choice(_STATEMENTS)(self)
        program = self.program
        program.result = self.recent(
            lambda shape: len(shape) in (2, 3) or (len(shape) == 1 and program.style != "index_add")
        )
        program.after = self.random.choice(
            ("pass", "pass", "out[..., 0] = 5", "out.relu_()", "out.view(-1)", "out += 1")
        )
        return program

    # ---- variables -------------------------------------------------------------------------------------------------------------

    def recent(self, fits=lambda shape: True) -> str:
        """A variable of a shape that fits, mostly the newest; x_j if there is none."""
        names = [name for name, shape in self.shapes.items() if fits(shape)]
        if not names:
            return "x_j"
        return names[-1] if self.random.random() < 0.6 else self.random.choice(names)

    def add(self, code: str, shape: tuple[int, ...]) -> None:
        self.count += 1
        name = f"v{self.count}"
        self.program.statements.append(f"{name} = {code}")
        self.shapes[name] = shape

    def divisor(self, size: int) -> int:
        return self.random.choice([d for d in range(1, size + 1) if size % d == 0])


def _unary(d: Draw) -> None:
    name, function = d.recent(), d.random.choice(UNARY)
    d.program.has_ties |= function in TIES
    d.add(f"{name}.{function}" if function != "rsub(1)" else f"1 - {name}", d.shapes[name])


def _write(d: Draw) -> None:
    name = d.recent()
    d.program.has_ties = True
    code = f"{name}.{d.random.choice(WRITES)}"
    if d.random.random() < 0.3 and len(d.shapes[name]) > 1:
        code = f"{name}[:, 0] = 5"
    d.program.statements.append(code)


def _binary(d: Draw) -> None:
    first = d.recent()
    shape = d.shapes[first]

    def fits(other: tuple[int, ...]) -> bool:
        return len(other) == len(shape) and all(a == b or 1 in (a, b) for a, b in zip(shape, other))

    names = [name for name, other in d.shapes.items() if fits(other)]
    second, op = d.random.choice(names), d.random.choice(("+", "-", "*", "+", "*", "/"))
    other = d.shapes[second]
    second = f"(2 + {second}.abs())" if op == "/" else second
    if d.random.random() < 0.3:
        first, second = second, first
    d.add(f"{first} {op} {second}", tuple(max(a, b) if 0 not in (a, b) else 0 for a, b in zip(shape, other)))


def _with_all(d: Draw) -> None:
    """A tensor for all edges."""
    name = d.recent(lambda shape: len(shape) > 1 and shape[-1] == d.program.width)
    d.add(f"{name} {d.random.choice('+*')} {d.random.choice(('p', 'p.view(1, -1)', 'p[0]'))}", d.shapes[name])


def _view(d: Draw) -> None:
    name = d.recent(lambda shape: len(shape) > 1)
    num_edges, *rest = d.shapes[name]
    size = 1
    for x in rest:
        size *= x
    heads = d.divisor(size)
    first = d.random.choice(("-1", f"{num_edges}", f"len({name})"))
    function = d.random.choice(("view", "reshape", "view"))
    shapes = {
        f"{first}, {heads}, {size // heads}": (num_edges, heads, size // heads),
        f"{first}, {size}": (num_edges, size),
    }
    arguments = d.random.choice(list(shapes))
    d.add(f"{name}.{function}({arguments})", shapes[arguments])


def _move(d: Draw) -> None:
    name = d.recent(lambda shape: len(shape) > 1)
    shape, rank = d.shapes[name], len(d.shapes[name])
    kind = d.random.choice(("unsqueeze", "squeeze", "slice", "select", "transpose", "expand", "flip"))
    dim = d.random.randrange(1, rank)
    if kind == "unsqueeze" and rank < 4:
        dim = d.random.randrange(1, rank + 1)
        d.add(f"{name}.unsqueeze({dim})", (*shape[:dim], 1, *shape[dim:]))
    elif kind == "squeeze" and rank > 2:
        rest = shape[dim + 1 :]
        d.add(f"{name}.squeeze({dim - rank})", (*shape[:dim], *rest) if shape[dim] == 1 else shape)
    elif kind == "slice":
        start = d.random.randrange(shape[dim])
        colons = ":, " * dim
        d.add(f"{name}[{colons}{start}:]", (*shape[:dim], shape[dim] - start, *shape[dim + 1 :]))
    elif kind == "select":
        d.add(f"{name}.select({dim}, {d.random.randrange(shape[dim])})", (*shape[:dim], *shape[dim + 1 :]))
    elif kind == "transpose" and rank > 2:
        shape = (shape[0], shape[2], shape[1], *shape[3:])
        d.add(f"{name}.transpose(1, 2)", shape)
    elif kind == "expand" and shape[dim] == 1:
        size = d.random.choice((3, d.program.num_edges, *d.program.num_nodes))
        sizes = [-1] * rank
        sizes[dim] = size
        d.add(f"{name}.expand({', '.join(map(str, sizes))})", (*shape[:dim], size, *shape[dim + 1 :]))
    elif kind == "flip":
        d.add(f"{name}.flip({dim})", shape)


def _pairs(d: Draw) -> None:
    """All pairs of edges: an expand that adds a dimension in front of the edges."""
    name = d.recent(lambda shape: len(shape) == 2)
    shape = d.shapes[name]
    if len(shape) == 2 and shape[0] <= max(SIZES):
        pairs = f"({name}.unsqueeze(1) * {name}.expand(len({name}), -1, -1))"
        d.add(f"{pairs}.{d.random.choice(('mean(1)', 'sum(0)', 'sum(1)', 'amax(1)'))}", shape)


def _join(d: Draw) -> None:
    first = d.recent(lambda shape: len(shape) in (2, 3))
    shape = d.shapes[first]
    second = d.recent(lambda other: len(other) == len(shape) and other[:-1] == shape[:-1])
    other = d.shapes[second]
    if len(other) == len(shape) and other[:-1] == shape[:-1]:
        d.add(
            f"torch.cat([{first}, {second}], {d.random.choice((-1, len(shape) - 1))})",
            (*shape[:-1], shape[-1] + other[-1]),
        )


def _sum(d: Draw) -> None:
    name = d.recent(lambda shape: len(shape) > 1)
    shape, rank = d.shapes[name], len(d.shapes[name])
    dim, function = (
        d.random.randrange(1, rank),
        d.random.choice(("sum", "sum", "sum", "mean", "amax", "prod", "cumsum")),
    )
    dim_code = d.random.choice((dim, dim - rank))
    if function == "cumsum":
        d.add(f"{name}.cumsum({dim_code})", shape)
    elif d.random.random() < 0.5:
        d.add(f"{name}.{function}({dim_code}, keepdim=True)", (*shape[:dim], 1, *shape[dim + 1 :]))
    else:
        d.add(f"{name}.{function}({dim_code})", (*shape[:dim], *shape[dim + 1 :]))


def _linear(d: Draw) -> None:
    name = d.recent(lambda shape: len(shape) in (2, 3) and shape[-1] == d.program.width)
    d.add(d.random.choice((f"torch.nn.functional.linear({name}, m)", f"{name} @ m")), d.shapes[name])


def _where(d: Draw) -> None:
    name = d.recent()
    d.program.has_ties = True
    d.add(f"torch.where({name} > 0, {name}, 0.1 * {name})", d.shapes[name])


def _softmax(d: Draw) -> None:
    name = d.recent(lambda shape: len(shape) in (1, 2, 3))
    d.add(f"softmax({name}, index, num_nodes=num_nodes)", d.shapes[name])


def _gradient(d: Draw) -> None:
    name = d.recent()
    d.add(f"gradient({name}, x_j)", d.shapes["x_j"])


_STATEMENTS = (
    *[_unary] * 3, *[_binary] * 6, _with_all, *[_view] * 3, *[_move] * 6, _pairs, *[_join] * 2, *[_sum] * 3, *[_linear] * 2, _where,
    _softmax, _write, _gradient,
)  # fmt: skip
