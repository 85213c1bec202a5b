"""The kinds of cases and how often each is drawn."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from . import operators, structures, wrong
from .draw import Draw

WEIGHTS: dict[str, tuple[int, Callable[[Draw], None]]] = {
    "gspmm": (16, operators.gspmm),
    "copy_u_reduce": (6, operators.copy_u_reduce),
    "gsddmm": (13, operators.gsddmm),
    "named gspmm": (4, operators.named_gspmm),
    "named gsddmm": (4, operators.named_gsddmm),
    "u_add_v_add_e": (3, operators.u_add_v_add_e),
    "gated_sum": (4, operators.gated_sum),
    "edge_network": (2, operators.edge_network),
    "edge_softmax": (5, operators.edge_softmax),
    "edge list": (4, operators.edge_list),
    "segment_reduce": (4, operators.segment_reduce),
    "attention": (11, operators.attention),
    "attention edges": (6, operators.edge_attention),
    "attention dropout": (4, operators.attention_dropout),
    "bitwise": (7, operators.bitwise),
    "gather_rows": (3, operators.gather_rows),
    "dequantize": (2, operators.dequantize),
    "huge": (1, operators.huge),
    "graph": (6, structures.graph),
    "reorder": (2, structures.reorder),
    "heterograph": (3, structures.hetero_graph),
    "hetero module": (2, structures.hetero_module),
    "module": (7, structures.module),
    "wrong call": (8, wrong.public),
    "wrong module": (3, wrong.module),
    "raw operator": (6, wrong.raw),
}


def draw(seed: int, case: int, kinds: Sequence[str] = tuple(WEIGHTS)) -> tuple[str, str]:
    """The kind and the program of a case."""
    d = Draw(seed, case)
    (kind,) = d.random.choices(kinds, [WEIGHTS[kind][0] for kind in kinds])
    WEIGHTS[kind][1](d)
    return kind, d.program()


def environment(case: int) -> dict[str, str]:
    """A quarter of the cases run on the portable kernels. A process chooses its kernels once."""
    return {"HALFGNN_CPU": "baseline" if case % 4 == 3 else ""}


def run(program: str) -> None:
    """Raises what the program raises."""
    exec(compile(program, "<case>", "exec"), {"__name__": "case"})
