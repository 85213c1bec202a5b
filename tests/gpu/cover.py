"""Cases that launch every kernel: `COVER`, the shortest list that was found among `pool()`, is in cover.txt.

The sanitizers run it first. laboratory/simt/reached.py finds it, on the simulator, which knows what a case launches:

    python laboratory/simt/reached.py --update
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch

from halfgnn import Graph, ops
from tests.gpu import gpu_cases
from tests.gpu.gpu_cases import DTYPES, Case
from tests.support_attention import DOT, GATV2, KINDS

FILE = Path(__file__).with_name("cover.txt")
# Whole vectors of halves and of floats, halves of them, pairs and single elements; several accesses per lane; wider than registers.
WIDTHS = (64, 128, 8, 40, 4, 12, 2, 33, 3, 100, 130, 256, 266, 520, 1032)
MISALIGNED_WIDTHS = (64, 33)


class Job(NamedTuple):
    """A case on hub_graph(idtype). misaligned: operands begin beside a vector's boundary."""

    case: Case
    dtype: torch.dtype
    idtype: torch.dtype = torch.int32
    misaligned: bool = False

    @property
    def name(self) -> str:
        parts = [self.case.name, *(str(x).removeprefix("torch.") for x in (self.dtype, self.idtype))]
        return " | ".join([*parts, "misaligned"] if self.misaligned else parts)

    def graph(self) -> Graph:
        """Its hubs have pieces."""
        return gpu_cases.hub_graph(self.idtype, hub_edges=600, num_edges=300)


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
                *(gpu_cases.attention(kind, 1, width, 0.3, unit) for kind in (GATV2, DOT)),
                *gpu_cases.attention_edges(1, width, tensor_cores=unit),
                *gpu_cases.attention_edges(1, width, columns=16, tensor_cores=unit),
            )
        ]
    return found


def pool() -> Iterator[Job]:
    """What the list is drawn from. What is named first is likelier to be in it."""
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
