"""Instructions that warps issue per row of a graph whose rows differ as those of a real one do: those of waiting lanes, of units
that find nothing to do and of kernels that combine pieces among them.

    python -m laboratory.machine_code.sequence [--graph arxiv-size] [--blocks 600] [LIBRARY]      by default halfgnn/_C.so

Of a launch of which only some blocks are executed few pieces are the last of their row: what joins them is counted in full
only with as many blocks as there are.

LIBRARY and the simulator are as in paths.py, whose rows are all of one length. A line for each call, with rows as they are stored
and with a schedule (halfgnn/row_schedule.py): instructions per row of all its launches, and of each.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable

from . import disassembly, launches, paths

WIDTH = 128
NAMES = ("copy_u_sum", "u_mul_e_sum", "copy_u_max", "u_mul_e_sum backward", "gat", "gat backward")


def _call(name: str, g) -> tuple[Callable, object]:
    """The raw operator as a function of a schedule, and the side of the graph whose rows it walks."""
    import torch

    raw = torch.ops.halfgnn
    x, w = torch.randn(g.num_src, WIDTH).half(), torch.randn(g.num_edges, 1).half()
    if name.startswith("gat"):
        return _gat(g, x, name.endswith("backward"))
    if name.endswith("backward"):
        like = x.shape, w.shape, x.dtype, w.dtype
        grad = torch.randn(g.num_dst, WIDTH).half()
        call = (*g.csr(), g.csc().indptr, True, "mul", "sum", grad, x, w, None, *like, True, True, False)
        return lambda schedule: raw.gspmm_backward(*call, None, None, schedule), g.csr()
    op, edge = ("mul", w) if "mul" in name else ("copy_lhs", None)
    reduce = name.rsplit("_", 1)[-1]
    return lambda schedule: raw.gspmm(*g.csc(), op, reduce, x, edge, None, False, False, schedule), g.csc()


def _gat(g, x, is_backward: bool) -> tuple[Callable, object]:
    """The same, of attention with one head."""
    import torch

    raw = torch.ops.halfgnn
    feat, src, dst = x[:, None], torch.randn(g.num_src, 1).half(), torch.randn(g.num_dst, 1).half()
    if not is_backward:
        call = (*g.csc(), feat, src, dst, None, 0.2, 0.0, None, True, True, False)
        return lambda schedule: raw.gat_attention(*call, schedule), g.csc()
    out, lse = torch.randn(g.num_dst, 1, WIDTH).half(), torch.zeros(g.num_dst, 1)
    call = (*g.csr(), feat, src, dst, None, 0.2, 0.0, None, out, out, lse, out, out, False, False)
    return lambda schedule: raw.gat_attention_backward(*call, schedule), g.csr()


def per_row(call: Callable, rows: int, library, blocks: int) -> list[tuple[str, float]]:
    """Of each launch, in order: the kernel's name, and its instructions divided by the rows; nan if the library lacks it.

    blocks: of a launch that are executed, evenly chosen, at most.
    """
    from .emulator import run

    found = []

    def count(launch) -> bool:
        name = launch.kernel.partition("<")[0]
        if library.is_part and launch.kernel not in library.names():
            found.append((name, float("nan")))
            return True
        made = launch.call(library)
        taken = min(blocks, made.blocks)
        counts = run(made, [(2 * k + 1) * made.blocks // (2 * taken) for k in range(taken)])
        found.append((name, counts.total / counts.blocks * made.blocks / rows))
        return True  # as in paths.py: what is counted does not depend on features

    with launches.hooked(count):
        call()
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", nargs="?", default=disassembly.ROOT / "halfgnn" / "_C.so")
    parser.add_argument("--graph", default="arxiv-size", help="of benchmarks.graphs")
    parser.add_argument("--only", nargs="+", default=NAMES, choices=NAMES)
    parser.add_argument("--blocks", type=int, default=600)
    args = parser.parse_args()
    if reason := launches.why_not(args.library):
        sys.exit(reason)
    if not os.environ.get("HALFGNN_SIMT"):
        sys.exit(paths.on_simulator("laboratory.machine_code.sequence", sys.argv[1:]))
    import torch

    from benchmarks import graphs
    from halfgnn.row_schedule import row_schedule

    from .emulator import Library

    library, g = Library(args.library), graphs.named(args.graph, "sorted", torch.int32).halfgnn
    for name in args.only:
        call, side = _call(name, g)
        rows = len(side.indptr) - 1
        for order, schedule in (("as stored", None), ("scheduled", row_schedule(side.indptr, g.num_edges))):
            counted = per_row(lambda schedule=schedule, call=call: call(schedule), rows, library, args.blocks)
            total = sum(number for _, number in counted)
            of_launches = ", ".join(f"{kernel} {number:.1f}" for kernel, number in counted)
            print(f"{name}, {order}: {total:.1f} per row ({of_launches})", flush=True)


if __name__ == "__main__":
    main()
