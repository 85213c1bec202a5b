"""Runs every kernel path on small sizes with odd shapes, for compute-sanitizer. run.py calls it.

    PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool memcheck --kernel-name kns=halfgnn python tests/gpu/sanitize.py

Without the caching allocator every tensor has its own allocation, so that a read or write past its end is found.
Results are compared with the CPU's with a wide tolerance; other tests check their accuracy.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

import halfgnn
from benchmarks import yardsticks
from halfgnn import ops
from halfgnn.ops import codes
from tests import support
from tests.gpu import cover, gpu_cases
from tests.gpu.gpu_cases import Case, with_gradients
from tests.support_attention import KINDS

WIDTHS = (1, 3, 7, 8, 12, 31, 33, 64, 72, 100, 128, 130, 256, 520)


def _width_cases(width: int) -> list[Case]:
    """The operators that have vector kernels, at one width."""

    def case(name, call, *shapes):
        return Case(f"{name} {width}", call, shapes)

    wide = (width,)
    return [
        case("copy_u_sum", ops.copy_u_sum, ("u", wide)),
        case("copy_u_max", ops.copy_u_max, ("u", wide)),
        case("u_mul_e_sum", ops.u_mul_e_sum, ("u", wide), ("e", (1,))),
        case("u_mul_e_sum 3 heads", ops.u_mul_e_sum, ("u", (3, width)), ("e", (3, 1))),
        case("u_dot_v", ops.u_dot_v, ("u", wide), ("v", wide)),
        case("u_dot_v 3 heads", ops.u_dot_v, ("u", (3, width)), ("v", (3, width))),
        case("u_add_v", ops.u_add_v, ("u", wide), ("v", wide)),
        case("e_sub_v", ops.e_sub_v, ("e", wide), ("v", wide)),
        case("edge_softmax", ops.edge_softmax, ("e", wide)),
        case("edge_softmax src", lambda g, x: ops.edge_softmax(g, x, "src"), ("e", wide)),
        *(gpu_cases.attention(kind, 1, width, dropout_p=0.3) for kind in KINDS),
        *(gpu_cases.attention(kind, 3, width) for kind in KINDS),
    ]


# Hubs of this many edges have more pieces than one warp combines, so blocks combine them (test_gpu_sanitize.py).
BLOCK_HUB_EDGES = 9_000


def _block_cases() -> list[Case]:
    """The operators that cut rows into pieces and combine them. They are narrow, because the hub is long."""

    def case(name, call, *shapes):
        return Case(f"{name} by blocks", call, shapes)

    return [
        case("copy_u_sum", ops.copy_u_sum, ("u", (33,))),
        case("copy_u_mean", ops.copy_u_mean, ("u", (8,))),
        case("copy_u_max", ops.copy_u_max, ("u", (33,))),
        case("u_mul_e_sum 3 heads", ops.u_mul_e_sum, ("u", (3, 8)), ("e", (3, 1))),
        case("u_add_e_sum", ops.u_add_e_sum, ("u", (3,)), ("e", (3,))),
        case("u_add_e_min", ops.u_add_e_min, ("u", (3,)), ("e", (3,))),
        case("u_dot_v", ops.u_dot_v, ("u", (8,)), ("v", (8,))),
        *(case(f"edge_softmax of {columns}", ops.edge_softmax, ("e", (columns,))) for columns in (1, 6)),
        *(gpu_cases.attention(kind, 2, 12, dropout_p=0.3) for kind in KINDS),
        *(gpu_cases.attention(kind, 1, 40) for kind in KINDS),
    ]


def _graphs():
    """(name, graph on the CPU)"""
    yield "hubs", gpu_cases.hub_graph(torch.int32, hub_edges=1_500, num_edges=300)
    yield "hubs int64", gpu_cases.hub_graph(torch.int64, hub_edges=1_500, num_edges=300)
    yield "sorted", support.make_graph("skewed", torch.int32, identity=True)
    for name in ("bipartite", "one_edge", "edgeless", "empty"):
        yield name, support.make_graph(name, torch.int64)


def check(case: Case, graph, on_gpu, dtype: torch.dtype, misaligned: bool, device: str) -> None:
    """Raises AssertionError unless results and gradients are close to the CPU's."""
    operands = case.operands(graph, dtype)
    upstream: list[torch.Tensor] = []
    expected = with_gradients(case, graph, [x.clone().requires_grad_() for x in operands], upstream)
    leaves = [cover.place(x, misaligned, device) for x in operands]
    results = with_gradients(case, on_gpu, leaves, [upstream[0].to(device)])
    results.append(cover.forward_alone(case, on_gpu, leaves))
    expected.append(expected[0])
    tolerance = {torch.float16: 2e-2, torch.bfloat16: 1e-1, torch.float32: 1e-3}[dtype]
    for got, right in zip(results, expected):
        scale = right.float().abs().max().item() if right.numel() else 0.0
        torch.testing.assert_close(got.cpu(), right, rtol=tolerance, atol=tolerance * max(scale, 1e-3))


def topology(graph, device: str) -> None:
    """Both adjacencies built on the GPU are equal to the CPU's."""
    src, dst = graph.edges()
    sizes = dict(num_src=graph.num_src, num_dst=graph.num_dst)
    here, there = (halfgnn.Graph.from_edges(src.to(d), dst.to(d), **sizes) for d in ("cpu", device))
    for a, b in zip((*here.csc(), *here.csr()), (*there.csc(), *there.csr())):
        assert torch.equal(a, b.cpu())


def gather_limit(graph, device: str) -> None:
    feat = torch.randn(max(1, graph.num_src), 72, dtype=torch.float16).to(device)
    for tile_bytes in (0, 48):
        yardsticks.gather_limit(graph.csc().indices.to(device), feat, tile_bytes)


def gather_rows(graph, device: str) -> None:
    for width in (1, 7, 33, 72, 768):
        table = torch.randn(max(1, graph.num_src), width + 1, dtype=torch.float16)
        for given in (table.to(device)[:, 1:], table.pin_memory()[:, :width]):
            ids = torch.cat([graph.csc().indices, torch.tensor([-1, table.shape[0]])]).to(device)
            out = torch.empty(ids.shape[0], width, dtype=torch.float16, device=device)
            torch.ops.halfgnn.gather_rows(given, ids, out)
            out.cpu()
    for width in (1, 33, 72, 768):
        codes = torch.randint(256, (max(1, graph.num_src), width), dtype=torch.uint8)
        for scale in (torch.rand(codes.shape[0], 1), torch.rand(width)):
            for place in (lambda x: x.to(device), torch.Tensor.pin_memory):
                out = torch.empty(ids.shape[0], width, dtype=torch.float16, device=device)
                torch.ops.halfgnn.gather_rows(place(codes), ids, out, 0, place(scale), place(torch.ones_like(scale)))
                out.cpu()


def code_sums(on_gpu) -> None:
    for width, code in itertools.product((7, 36, 96), codes.CODES):
        data = torch.randint(0x70, (on_gpu.num_src, width), dtype=torch.uint8, device=on_gpu.device).view(code)
        for shape, weight in (((), ()), ((width,), (1,)), ((on_gpu.num_src, 1), None)):
            scale = torch.rand(shape, device=on_gpu.device)
            zero = torch.full_like(scale, 100) if code in (torch.uint8, torch.int8) else None
            x = codes.Codes(data, scale, zero)
            ops.copy_u_mean(on_gpu, x)
            if weight is not None:
                ops.u_mul_e_sum(on_gpu, x, torch.rand(on_gpu.num_edges, *weight, device=on_gpu.device))
        heads = codes.Codes(data.unsqueeze(1), torch.ones((), device=on_gpu.device))
        ops.u_mul_e_sum(on_gpu, heads, torch.rand(on_gpu.num_edges, 1, 1, device=on_gpu.device))


def winners(device: str) -> None:
    """The gradient of maxima that is added to the sources of winners, which takes a graph of many edges."""
    num_nodes, num_edges = 300, 2_000_000
    ends = (torch.randint(num_nodes, (num_edges,), device=device) for _ in range(2))
    g = halfgnn.Graph.from_edges(*ends, num_src=num_nodes, num_dst=num_nodes)
    for width in (7, 16):
        x = torch.randn(num_nodes, width, dtype=torch.float16, device=device).requires_grad_()
        ops.copy_u_max(g, x).sum().backward()


def scalar_baseline(graph, device: str) -> None:
    csc, (src, dst) = [None if t is None else t.to(device) for t in graph.csc()], (t.to(device) for t in graph.edges())
    for width in (1, 33, 70):
        x = torch.randn(graph.num_src, 3, width, dtype=torch.float16).to(device)
        y = torch.randn(graph.num_dst, 3, width, dtype=torch.float16).to(device)
        weights = torch.ones(graph.num_edges, 3, 1, dtype=torch.float16).to(device)
        yardsticks.scalar_spmm(*csc, "mul", "sum", x, weights)
        yardsticks.scalar_spmm(*csc, "copy_lhs", "max", x, None)
        yardsticks.scalar_sddmm(src, dst, "dot", x, y, "u", "v")


def naive(graph, device: str) -> None:
    indptr, indices = (ids.int().to(device) for ids in graph.csc()[:2])
    for dim in (1, 33):
        x = torch.randn(graph.num_src, 3, dim, dtype=torch.float16).to(device)
        y = torch.randn(graph.num_dst, 3, dim, dtype=torch.float16).to(device)
        weights = torch.ones(graph.num_edges, 3, dtype=torch.float16).to(device)
        yardsticks.naive_sum(indptr, indices, x, weights)
        yardsticks.naive_max(indptr, indices, x)
        yardsticks.naive_dot(indptr, indices, x, y)
        yardsticks.naive_softmax(indptr, weights)
        yardsticks.naive_attention(indptr, indices, "gatv2", x, y, x[0].contiguous() if len(x) else y[0], x, 0.2)


def plan(stride: int):
    """(graph name, graph, case, dtype, misaligned). First those of cover.py, which launch every kernel. Then each graph has every
    stride-th of the cases by width, starting at another."""
    for job in cover.cover():
        yield job.graph_name, job.graph(), job.case, job.dtype, job.misaligned
    dtypes = itertools.cycle(gpu_cases.DTYPES)
    shifted = itertools.cycle([False, True, False])
    block_hubs = gpu_cases.hub_graph(torch.int32, hub_edges=BLOCK_HUB_EDGES, num_edges=300)
    for case in _block_cases():
        yield "hubs for blocks", block_hubs, case, next(dtypes), next(shifted)
    widths = [case for width in WIDTHS for case in _width_cases(width)]
    for turn, (name, graph) in enumerate(_graphs()):
        # Three graphs have all general cases and a part of the cases by width. The others have a seventh of all cases.
        cases = gpu_cases.CASES + widths[turn % stride :: stride] if turn < 3 else (gpu_cases.CASES + widths)[turn::7]
        for case in cases:
            yield name, graph, case, next(dtypes), next(shifted)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--seconds", type=float, default=200, help="stop cleanly after this time, and say so (200)")
    parser.add_argument("--stride", type=int, default=2, help="run every STRIDE-th of the cases by width (2)")
    parser.add_argument("--device", default="cuda", help="cpu: a rehearsal, which checks only this script")
    args = parser.parse_args()
    torch.manual_seed(0)
    start, done, failed = time.monotonic(), 0, []
    copies: dict[str, halfgnn.Graph] = {}
    jobs = list(plan(args.stride))
    if args.device != "cpu":
        winners(args.device)
    for name, graph, case, dtype, misaligned in jobs:
        if time.monotonic() - start > args.seconds:
            break
        try:
            if name not in copies:
                copies[name] = graph.to(args.device)
                topology(graph, args.device)
                if args.device != "cpu":
                    gather_limit(graph, args.device)
                    gather_rows(graph, args.device)
                    code_sums(copies[name])
                    scalar_baseline(graph, args.device)
                    naive(graph, args.device)
            check(case, graph, copies[name], dtype, misaligned, args.device)
        except AssertionError as error:
            failed.append(f"{case.name} {dtype} on {name}: {str(error).splitlines()[0]}")
        done += 1
    for line in failed:
        print("FAILED", line)
    print(f"{done} of {len(jobs)} cases, {len(failed)} failed, {time.monotonic() - start:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
