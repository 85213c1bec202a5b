"""Shared by all kinds of cases: the lines of a program, graphs, and operands of any shape, layout and value."""

from __future__ import annotations

import random

HEADER = 'import sys; sys.path.insert(0, ".")\nfrom laboratory.fuzz.checks import *\n'
HALVES = ("float16", "bfloat16")
DTYPES = (*HALVES, "float32", "float64")
ZOO = ("bipartite", "duplicates", "edgeless", "empty", "no_destination", "no_source", "one_edge", "out_star", "random",
       "self_loops", "skewed", "star")  # fmt: skip
NODES = (0, 1, 2, 3, 5, 8, 17, 40, 90)
EDGES = (0, 1, 2, 7, 8, 9, 30, 100, 300)
HUB_EDGES = (65, 1000, 4000)  # sums of more than 64 edges consist of several runs
WIDTHS = (1, 1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 24, 31, 33, 64, 100, 130)
LAYOUTS = ("misaligned", "column_major", "every_other", "expanded", "expanded_last")


class Draw:
    """One case: its random choices, and the program made from them."""

    def __init__(self, seed: int, case: int):
        self.random = random.Random(f"{seed}/{case}")
        self.lines: list[str] = []
        self.is_large = False  # whether operands should be narrow
        self.line(f"torch.manual_seed({case})")
        self.line(f"torch.set_num_threads({self.one(1, 1, 2, 3)})")

    def line(self, text: str) -> None:
        self.lines.append(text)

    def program(self) -> str:
        return HEADER + "\n".join(self.lines) + "\n"

    def one(self, *options):
        return self.random.choice(options)

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def dtype(self, *dtypes: str) -> str:
        return self.one(*(dtypes or DTYPES))

    # ---- graphs --------------------------------------------------------------------------------------------------------------

    def edges(self, nodes=NODES, square=False) -> tuple[int, int, int]:
        """Writes src and dst. Returns the numbers of sources, destinations and edges."""
        num_src, num_dst = self.one(*nodes), self.one(*nodes)
        num_dst = num_src if square else num_dst
        is_hub = self.chance(0.15)
        num_edges = self.one(*(HUB_EDGES if is_hub else EDGES)) if num_src and num_dst else 0
        self.is_large = num_edges > 1000
        idtype = self.one("int32", "int64")
        self.line(
            ", ".join(f"torch.randint({max(1, n)}, ({num_edges},), dtype=torch.{idtype})" for n in (num_src, num_dst))
        )
        self.lines[-1] = f"src, dst = {self.lines[-1]}"
        if is_hub:
            self.line(f"{self.one('src', 'dst')}[torch.rand({num_edges}) < 0.9] = 0")
        return num_src, num_dst, num_edges

    def graph(self, square: bool = False) -> None:
        """Writes g, with any constructor. Either adjacency may be made lazily."""
        if self.chance(0.5):
            name = self.one(*(("random", "skewed", "self_loops", "one_edge", "empty") if square else ZOO))
            self.is_large = name == "skewed"
            self.line(
                f"g = support.make_graph({name!r}, torch.{self.one('int32', 'int64')}, identity={self.chance(0.3)})"
            )
        else:
            num_src, num_dst, _ = self.edges(square=square)
            call = f"num_src={num_src}, num_dst={num_dst}"
            self.line(
                self.one(
                    f"g = Graph.from_edges(src, dst, {call})",
                    f"g, _ = Graph.from_edges(src, dst, {call}, sort=True)",
                    f"g = Graph.from_edges(src, dst.sort().values, {call}, is_sorted=True)",
                    f"g = Graph.from_edge_index(torch.stack([src, dst]), {call})",
                )
            )
        if self.chance(0.15):
            self.line("g = Graph.from_csr(*g.csr(), num_dst=g.num_dst)")
        if self.chance(0.1):
            self.line("g = g.reverse()")
        if self.chance(0.1):
            self.line("g = pickle.loads(pickle.dumps(g))")

    # ---- operands ------------------------------------------------------------------------------------------------------------

    def width(self) -> int:
        return self.one(*WIDTHS[: 8 if self.is_large else None])

    def shape(self, ranks=(0, 1, 1, 1, 2, 2, 3)) -> tuple[int, ...]:
        """A trailing shape, sometimes with a dimension of size 0."""
        rank = self.one(*ranks)
        heads = [self.one(1, 2, 3, 4, 8) for _ in range(rank - 1)]
        shape = [*heads, self.width()] if rank else []
        if shape and self.chance(0.04):
            shape[self.random.randrange(rank)] = 0
        return tuple(shape)

    def broadcast(self, is_dot: bool = False) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Two trailing shapes that broadcast. With is_dot their last dimensions are equal."""
        whole = self.shape()
        kind = self.one("equal", "equal", "per_head", "per_row", "mixed")
        if kind == "equal" or not whole:
            return whole, whole
        keep = 1 if is_dot else 0
        sides = []
        for _ in range(2):
            side = [1 if i < len(whole) - keep and self.chance(0.5) else n for i, n in enumerate(whole)]
            sides.append(tuple(side[self.one(0, 0, self.random.randrange(len(whole) - keep + 1)) :]))
        if kind == "mixed" or is_dot:
            return sides[0], sides[1]
        narrow = (*whole[:-1], 1) if kind == "per_head" else self.one((), (1,))
        return self.one((whole, narrow), (whole, narrow), (narrow, whole))

    def operand(
        self, rows: str, shape: tuple[int, ...], dtype: str, values="plain", divisor=False, may_repeat=True
    ) -> str:
        """An expression for (rows, *shape). values: plain, whole (ties), wide (many magnitudes) or special (inf and
        nan)."""
        sizes = "".join(f"{n}, " for n in (rows, *shape))
        text = f"{'away_from_zero' if divisor else 'randn'}({sizes}dtype=torch.{dtype})"
        if values != "plain" and not divisor:
            text = f"{values}({text})"
        layouts = LAYOUTS if may_repeat else LAYOUTS[:3]
        return f"{self.one(*layouts)}({text})" if self.chance(0.3) else text

    def values(self) -> str:
        return self.one("plain", "plain", "plain", "whole", "wide", "special")
