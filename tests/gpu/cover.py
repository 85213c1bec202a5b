"""Cases that launch every kernel: cover.txt names those of `pool()` that launch one which none before them does.

The sanitizers run it first. laboratory/simt/reached.py finds it, on the simulator, which knows what a case launches:

    python laboratory/simt/reached.py --update
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from halfgnn import Graph, ops
from halfgnn.ops.head_logits import with_head_logits
from tests.gpu import gpu_cases
from tests.gpu.gpu_cases import DTYPES, Case
from tests.support import HALVES
from tests.support_attention import GATV2, KINDS

FILE = Path(__file__).with_name("cover.txt")
# Whole vectors of halves and of floats, halves of them, pairs and single elements; several accesses per lane; wider than registers.
WIDTHS = (64, 128, 8, 40, 4, 12, 2, 33, 3, 100, 130, 256, 266, 520, 1032)
MISALIGNED_WIDTHS = (64, 33)


class Job(NamedTuple):
    """A case on hub_graph(idtype). misaligned: operands begin beside a vector's boundary. has_pieces: hubs are cut.
    in_order: edge data has the order of the destinations' edges. has_folds: hubs have so many pieces that these are folded."""

    case: Case
    dtype: torch.dtype
    idtype: torch.dtype = torch.int32
    misaligned: bool = False
    has_pieces: bool = False
    in_order: bool = False
    has_folds: bool = False

    @property
    def name(self) -> str:
        types = [str(x).removeprefix("torch.") for x in (self.dtype, self.idtype)]
        return " | ".join([self.case.name, *types, *["misaligned"] * self.misaligned, *self.graph_name.split(", ")[1:]])

    @property
    def graph_name(self) -> str:
        """Jobs with the same name have the same graph."""
        parts = ["pieces"] * self.has_pieces + ["in order"] * self.in_order + ["folds"] * self.has_folds
        return ", ".join([f"hubs of {self.idtype}", *parts])

    def graph(self) -> Graph:
        # A softmax of one column in order cuts rows of 32,768 edges.
        hub_edges = (40_000 if self.in_order else 1_500) if self.has_pieces else 140_000 if self.has_folds else 40
        g = gpu_cases.hub_graph(self.idtype, hub_edges=hub_edges, num_edges=90)
        if not self.in_order:
            return g
        src, dst = g.edges()
        return Graph.from_edges(src, dst, num_src=g.num_src, num_dst=g.num_dst, sort=True)[0]


def _cases(width: int) -> list[Case]:
    """The operators that have vector kernels, at one width."""

    def case(name, call, *shapes, **options):
        return Case(f"{name} {width}", call, shapes, **options)

    def spmm(op, reduce, **options):
        return lambda g, *operands: ops.gspmm(
            g, op, reduce, operands[0], operands[-1] if len(operands) > 1 else None, **options
        )

    def gated(**options):
        return lambda g, *operands: torch.cat(ops.gated_sum(g, *operands, return_edges=True, **options))

    def several(name):
        names = ("mean", "max", "min", "std")
        return lambda g, x: ops.copy_u_reduce(g, x, names)[names.index(name)]

    u, v, e, three = ("u", (width,)), ("v", (width,)), ("e", (width,)), ("u", (3, width))
    found = [
        case("copy_u_sum", spmm("copy_lhs", "sum"), u),
        case("copy_u_max", spmm("copy_lhs", "max"), u),
        case("u_add_e_max", spmm("add", "max"), u, e),
        case("u_mul_e_sum", spmm("mul", "sum"), u, ("e", (1,))),
        case("u_mul_e_sum 3 heads", spmm("mul", "sum"), three, ("e", (3, 1))),
        case("u_mul_e_sum, fp32 weights", spmm("mul", "sum"), u, ("e", (1,)), float_rhs=True),
        case("u_mul_e_sum, fp32 weights, 3 heads", spmm("mul", "sum"), three, ("e", (3, 1)), float_rhs=True),
        case("u_mul_e_sum, fp32 result", spmm("mul", "sum", out_dtype=torch.float32), u, ("e", (1,))),
        case("copy_u_sum, fp32 result", spmm("copy_lhs", "sum", out_dtype=torch.float32), u),
        *(case(f"u_{op}_e_sum of rows", spmm(op, "sum"), u, e) for op in ("add", "sub", "mul", "relu_add")),
        case("u_dot_v", ops.u_dot_v, u, v),
        case("u_dot_v 3 heads", ops.u_dot_v, three, ("v", (3, width))),
        *(case(f"u_{op}_v", getattr(ops, f"u_{op}_v"), u, v) for op in ("add", "mul")),
        case("u_add_v_add_e", ops.u_add_v_add_e, u, v, e),
        case("edge_softmax", ops.edge_softmax, e),
        case("head_logits", lambda g, x: torch.cat(with_head_logits(x, x[:1].float())[1:]), three),
        case("edge_softmax src", lambda g, x: ops.edge_softmax(g, x, "src"), e),
        *(case(f"several, {name}", several(name), u) for name in ("max", "std")),
        case("gated_sum", gated(), u, u, v, e),
        case("gated_sum, normalized", gated(normalize=True), u, u, v, e),
        case("gated_sum of values of edges", gated(), u, u, v, e, e),
        case("gated_sum of values of edges, normalized", gated(normalize=True), u, u, v, e, e),
        *(
            gpu_cases.attention(kind, heads, width, 0.3)
            for kind in KINDS
            for heads in ((1, 3) if width < 200 else (1,))
        ),
    ]
    if width <= 256:
        found += [*gpu_cases.attention_edges(1, width), *gpu_cases.attention_edges(1, width, columns=16)]
    if width in (40, 64, 128):
        found += [
            case
            for unit in (True, False)
            for case in (
                *gpu_cases.attention_edges(1, width, tensor_cores=unit),
                *gpu_cases.attention_edges(1, width, columns=16, tensor_cores=unit),
            )
        ]
    return found


def _copy(op: str) -> Callable[..., Tensor]:
    operands = (lambda x: (x, None)) if op == "copy_lhs" else (lambda x: (None, x))
    return lambda g, x: ops.gsddmm(g, op, *operands(x), "u", "e")


def _mixed(width: int) -> Iterator[Job]:
    """Operands and results of several types."""
    rows = ("u", (width,)), ("e", (width,))
    heads = ("u", (3, width)), ("e", (3, 1))

    def call(op: str, out: torch.dtype | None, rhs: torch.dtype | None) -> Callable[..., Tensor]:
        return lambda g, x, y: ops.gspmm(g, op, "sum", x, y if rhs is None else y.to(rhs), out_dtype=out)

    for op in ("add", "mul", "relu_add"):
        for half in HALVES:
            for out, float_rhs in ((torch.float32, False), (None, True), (torch.float32, True)):
                name = f"u_{op}_e_sum of rows, {'fp32 rows' if float_rhs else ''} {out} {width}"
                yield Job(Case(name, call(op, out, None), rows, float_rhs=float_rhs), half)
            yield Job(Case(f"u_{op}_e_sum of rows, {half} rows {width}", call(op, None, half), rows), torch.float32)
    for half in HALVES:
        yield Job(Case(f"u_mul_e_sum, {half} weights, 3 heads {width}", call("mul", None, half), heads), torch.float32)


def _general() -> Iterator[Job]:
    """Operands that broadcast against one another."""

    def spmm(op: str, reduce: str) -> Callable[..., Tensor]:
        return lambda g, x, y: ops.gspmm(g, op, reduce, x, y)

    for width in (5, 8, 16):
        u, v, e = ((target, shape) for target, shape in zip("uve", ((3, 1, width), (1, 4, width), (1, 4, width))))
        whole, row = (3, width), (1, width)  # gradients of the first are summed over nothing
        cases = [
            Case(f"u_dot_v that broadcasts {width}", lambda g, x, y: ops.gsddmm(g, "dot", x, y, "u", "v"), (u, v)),
            Case(f"u_dot_e that broadcasts {width}", lambda g, x, y: ops.gsddmm(g, "dot", x, y, "u", "e"), (u, e)),
            *(
                Case(f"u_{op}_e_{reduce} that broadcasts {width}", spmm(op, reduce), (u, e))
                for op in ("add", "mul")
                for reduce in ("sum", "max")
            ),
            *(
                Case(f"u_{op}_e_{reduce}, {target} whole {width}", spmm(op, reduce), operands)
                for op, reduce in (("add", "sum"), ("mul", "max"))
                for target, operands in (("u", (("u", whole), ("e", row))), ("e", (("u", row), ("e", whole))))
            ),
            Case(f"copy_e_sum {width}", lambda g, y: ops.gspmm(g, "copy_rhs", "sum", None, y), (e,)),
            Case(f"copy_e_max {width}", lambda g, y: ops.gspmm(g, "copy_rhs", "max", None, y), (e,)),
        ]
        for case in cases:
            yield Job(case, torch.float16)
            yield Job(case, torch.float16, misaligned=True)


def pool() -> Iterator[Job]:
    """What the list is drawn from. What is named first is likelier to be in it."""
    for case in gpu_cases.CASES:
        yield Job(case, torch.float16, has_pieces=True)
    for case in gpu_cases.CASES:
        for dtype in DTYPES:
            yield Job(case, dtype)
    for width in WIDTHS:
        for case in _cases(width):
            for dtype in DTYPES:
                yield Job(case, dtype)
                if width in MISALIGNED_WIDTHS:
                    yield Job(case, dtype, misaligned=True)
    for case in gpu_cases.CASES:
        yield Job(case, torch.float16, torch.int64)
    for width in (64, 33, 2):
        yield from _mixed(width)
    yield from _general()
    for dtype in DTYPES:  # softmax and records of edges in longer rows, copies of one operand
        for width in (1, 8, 33, 64, 256):
            yield Job(Case(f"edge_softmax {width}", ops.edge_softmax, (("e", (width,)),)), dtype, has_pieces=True)
        for width in (1, 2, 4):
            for has_pieces in (False, True):
                case = Case(f"edge_softmax {width}", ops.edge_softmax, (("e", (width,)),))
                yield Job(case, dtype, has_pieces=has_pieces, in_order=True)
        for width in (33, 34, 36, 64):
            for copied, target in (("copy_lhs", "u"), ("copy_rhs", "e")):
                name, shapes = f"{copied} {width}", ((target, (width,)),)
                yield Job(Case(name, _copy(copied), shapes), dtype)
        yield Job(gpu_cases.attention(GATV2, 1, 128, 0.3), dtype, has_pieces=True)
    attentions = ("gat_attention_1x2_dropout", "gatv2_attention_1x2_dropout")
    folded = ("copy_u_sum 2", "copy_u_max 2", "u_add_e_max 2", "several, std 2", "gated_sum, normalized 2", *attentions)
    for case in _cases(2):
        if case.name in folded:
            yield Job(case, torch.float16, has_folds=True)


def cover() -> list[Job]:
    """The jobs that cover.txt names."""
    jobs = {job.name: job for job in pool()}
    return [jobs[name] for name in FILE.read_text().splitlines()]


def place(x: torch.Tensor, misaligned: bool, device: str) -> torch.Tensor:
    """A leaf on the device. It is copied there from the host, so that every tool sees it as initialised."""
    if not misaligned:
        return x.to(device).requires_grad_()
    storage = torch.cat([x.new_zeros(1), x.reshape(-1)]).to(device)
    return storage[1:].view(x.shape).requires_grad_()


def forward_alone(case: Case, g: Graph, leaves: list[torch.Tensor]) -> torch.Tensor:
    """Without a gradient some operators have kernels of their own."""
    with torch.no_grad(), case.environment():
        return case.call(g, *leaves)
