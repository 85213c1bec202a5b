"""Random message functions, and programs around them, as source code.

Sizes are drawn so that edges, nodes and features are often equally many: a rule that guesses a dimension from its size meets the
wrong one.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from . import around, autograd_statements, statements

SIZES = (1, 2, 3, 4, 6, 8, 12)
LARGE = (48, 320, 700, 6000)  # of which the drop-in routes some calls and leaves others, as their sizes decide
AGGREGATIONS = ("sum", "sum", "mean", "max", "min", "softmax")
BATCH = 2


@dataclass
class Program:
    """A message function, the program around it, and the sizes of what they get.

    num_nodes: of sources and of destinations. batch: of how many copies of the graph with features of their own, the first
    dimension; 0: there is no such dimension. is_bipartite: whether both sides have features of their own. flow: of MessagePassing.
    style: propagate, or rows taken and added up by PyTorch's own operators. precision: of features; "autocast": that to bf16, of
    features of fp32. id_dtype: of edge_index. backward: whether gradients are those of .backward(), and not of autograd.grad().
    ends_before: "backward" or "read": what happens only after the drop-in is off; None: nothing. statements: of the message.
    result: the variable that it returns. around: statements of what calls it, and updates edges.
    """

    num_nodes: tuple[int, int]
    num_edges: int
    width: int
    aggr: str
    style: str
    batch: int = 0
    is_bipartite: bool = False
    flow: str = "source_to_target"
    precision: str = "float64"
    is_near: bool = False
    id_dtype: str = "int64"
    backward: bool = False
    ends_before: str | None = None
    statements: list[str] = field(default_factory=list)
    result: str = "x_j"
    update: str = "e"
    around: list[str] = field(default_factory=lambda: ["out = step(x, x_dst, e)"])
    has_ties: bool = False

    def source(self) -> str:
        functions = {
            "message(x_i, x_j, e, w, p, m, index, num_nodes)": [*self.statements, f"return {self.result}"],
            "edge_update(x_i, x_j, e, index, num_nodes)": [f"return {self.update}"],
            "forward(x, x_dst, e)": [*self.around, "return out"],
        }
        lines = ["\n    ".join([f"def {name}:", *body]) for name, body in functions.items()]
        return "\n\n".join(lines) + "\n"

    def __str__(self) -> str:
        nodes = (
            "{} sources, {} destinations".format(*self.num_nodes) if self.is_bipartite else f"{self.num_nodes[0]} nodes"
        )
        batch = f"batch of {self.batch}, " if self.batch else ""
        sizes = f"# {batch}{nodes}, {self.num_edges} edges, width {self.width}, {self.aggr}, {self.style}, {self.flow}"
        near = "of nearly equal features, " if self.is_near else ""
        ways = (
            f"# {self.precision}, {near}ids of {self.id_dtype}, {'.backward()' if self.backward else 'autograd.grad()'}"
        )
        return f"{sizes}\n{ways}, the drop-in ends before {self.ends_before}\n{self.source()}"


class Draw:
    """Attributes:
    shapes: of the variables so far. edge_dim: which dimension has the edges. rows: sizes up to that one.
    """

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
        self.program = program = Program((num_src, num_dst), num_edges, width, aggr, style, is_bipartite=is_bipartite)
        if style == "propagate" and pick((False, False, True)):
            program.flow = "target_to_source"
        if style == "propagate" and aggr != "softmax" and self.happens(0.12):
            program.batch = BATCH
        if self.happens(0.15):
            program.precision = pick(("autocast", "autocast", "float32", "bfloat16"))
            program.is_near = program.precision == "autocast" and self.happens(0.5)
        program.id_dtype = pick(("int64", "int64", "int64", "int32")) if style == "propagate" else "int64"
        self.rows: tuple[int, ...] = (BATCH, num_edges) if program.batch else (num_edges,)
        self.edge_dim = len(self.rows) - 1
        row = (num_edges, width)
        node = (*self.rows, width)
        self.shapes: dict[str, tuple[int, ...]] = {"w": (num_edges, 1), "e": row, "x_i": node, "x_j": node}
        self.is_small, self.count, self.indent = num_edges <= max(SIZES), 0, ""

    def draw(self) -> Program:
        for _ in range(self.random.randint(1, 7)):
            self.statement()
        self.program.result = self.recent(self.may_be_returned)
        around.draw(self)
        return self.program

    def statement(self) -> None:
        rarely = self.happens(0.25)
        self.random.choice(autograd_statements.STATEMENTS if rarely else statements.STATEMENTS)(self)

    def happens(self, probability: float) -> bool:
        return self.random.random() < probability

    # ---- variables -------------------------------------------------------------------------------------------------------------

    def recent(self, fits: Callable[[tuple[int, ...]], bool] = lambda shape: True) -> str:
        """A variable of a shape that fits, mostly the newest; x_j if there is none."""
        names = [name for name, shape in self.shapes.items() if fits(shape)]
        if not names:
            return "x_j"
        return names[-1] if self.happens(0.6) else self.random.choice(names)

    def of_edges(self, *ranks: int) -> str:
        """A variable with the edges in their dimension, of so many dimensions after it; x_j if there is none."""
        return self.recent(lambda shape: self.is_of_edges(shape) and len(shape) - len(self.rows) in ranks)

    def is_of_edges(self, shape: tuple[int, ...]) -> bool:
        return shape[: len(self.rows)] == self.rows

    def may_be_returned(self, shape: tuple[int, ...]) -> bool:
        rank = len(shape)
        if self.program.batch:
            return rank == 3 and self.is_of_edges(shape)
        return self.is_of_edges(shape) and (rank in (2, 3) or (rank == 1 and self.program.style != "index_add"))

    def add(self, code: str, shape: tuple[int, ...]) -> str:
        """A statement that makes a variable, whose name it returns."""
        self.count += 1
        name = f"v{self.count}"
        self.do(f"{name} = {code}")
        self.shapes[name] = shape
        return name

    def do(self, code: str) -> None:
        self.program.statements.append(self.indent + code)

    def divisor(self, size: int) -> int:
        return self.random.choice([d for d in range(1, size + 1) if size % d == 0])
