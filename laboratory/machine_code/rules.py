"""What the machine code of every kernel must be like."""

from __future__ import annotations

import re

from . import disassembly
from .disassembly import Kernel

# Of a multiprocessor, whose four parts have a quarter of the registers each. sm_80 and sm_90 differ in shared memory alone, of
# which a block takes 1 KiB beside its own; on sm_90 ptxas counts that as the kernel's.
REGISTERS = 65536
MAX_WARPS = 64
MAX_BLOCKS = 32
SHARED_MEMORY = {"sm_80": 164 << 10, "sm_90": 228 << 10}
# Architectures whose kernels must not spill. Their memory is slower than HBM, so that fewer bytes in flight hide its latency.
OTHER_ARCHS = ("sm_86", "sm_89", "sm_120")
WARP = 32

# Keys of the tables below are names of kernels or, with the beginning of template arguments, patterns. Patterns come first.
_TYPE = r"(__half|__nv_bfloat16|float)"
_PAIR = rf"pair_attention_kernel<PairConfig<\w+, NoEdges, {_TYPE}, \d, "  # of a score, a type and a pass

# Threads of a block, by kernel; 128 where not named.
THREADS = {
    r"pair_attention_kernel<PairConfig<Leaky, ProjectedEdges": 128,
    "pair_attention_kernel": 32,
    "pair_tensor_kernel": 32,
    r"gat_.*_kernel": 64,
    "add_winners_kernel": 256,
    "check_offsets_kernel": 256,
    "combine_attention_kernel": 512,
    "combine_extrema_kernel": 512,
    "combine_gated_kernel": 512,
    "combine_kernel": 512,
    "combine_reductions_kernel": 512,
    "compress_rows_kernel": 256,
    "expand_rows_kernel": 256,
    "finish_long_rows_kernel": 512,
    "mark_winners_kernel": 256,
    "permute_edges_kernel": 256,
    "place_chunk_kernel": 256,
    "reduce_records_kernel": 256,
    "round_sums_kernel": 256,
    "scalar_dot_kernel": 256,
    "scalar_sddmm_kernel": 256,
    "scalar_spmm_kernel": 256,
    "sum_products_kernel": 1024,
    "sum_tiles_kernel": 256,
}

# 16-byte loads in flight hide the latency of memory: bandwidth is bytes in flight / latency. For 3.35 TB/s of HBM (H100) at
# about 700 ns a multiprocessor of 132 needs 18 KB, for 7 TB/s of L2 at about 400 ns 21 KB; twice as much leaves room for
# warps that wait for something else. H200: 4.8 TB/s, 25 KB.
MIN_BYTES_IN_FLIGHT = 40 << 10
# Heads of 257 to 1,024 halves, of which a lane holds 64 bytes per edge, and in fp32 two sums of 16: enough for HBM alone.
# Terms of edges, which take the registers of a block: 32 KiB.
_EDGE_TERMS = r"pair_attention_kernel<PairConfig<\w+, (Bias|Row|Column)Edges, "
# Gated sums of halves whose gradients are fp32: beside six loads of 8 bytes, which are not counted.
_NORMALIZED_TO_SOURCES = r"gated_sum_backward_kernel<GateGradientConfig<true, (__half|__nv_bfloat16), float, 4, 1, "
FEWER_BYTES_IN_FLIGHT = {
    _PAIR + "(8|4), 4": 20 << 10,
    _EDGE_TERMS: 32 << 10,
    _NORMALIZED_TO_SOURCES: 32 << 10,
}

# The kernels that read whole 16-byte vectors in their innermost loops, and how many a lane must have in flight in each of
# them: one less than the loop's batch where the last load may be issued after the first use.
_WIDEST = r"(__half, 8|__nv_bfloat16, 8|float, 4)"
_FULL_VECTOR = (
    r"(<(__half|__nv_bfloat16), (__half, |__nv_bfloat16, )?8|<(__half|__nv_bfloat16), float, 4|<float, (float, )?4), "
)
_MESSAGE_VECTOR = (
    r"<\d, (__half, __half, __half, 8|__nv_bfloat16, __nv_bfloat16, __nv_bfloat16, 8|float, float, float, 4), 1>"
)
_GATED_VECTOR = r"(__half, __half, 8|__nv_bfloat16, __nv_bfloat16, 8|float, float, 4), 1, "
MIN_LOADS = {
    r"spmm_sum_kernel<GatherConfig" + _FULL_VECTOR: 4,  # rows of four edges
    r"code_sum_kernel<IntegerLane<GatherConfig<unsigned char, 16, ": 4,  # rows of four edges
    r"edge_sum_kernel<EdgeSumConfig" + _MESSAGE_VECTOR: 8,  # rows of four edges and of their nodes
    r"edge_sum_backward_kernel<EdgeSumConfig" + _MESSAGE_VECTOR.replace(r"\d", "[02]"): 8,
    r"edge_sum_backward_kernel<EdgeSumConfig" + _MESSAGE_VECTOR.replace(r"\d", "1"): 4,  # rows of edges are not read
    r"gated_sum_kernel<GatedConfig<" + _WIDEST: 6,  # two edges: both rows of their nodes, and their own
    r"gated_sum_backward_kernel<GateGradientConfig<false, " + _GATED_VECTOR + "false": 8,  # two rows of both
    r"gated_sum_backward_kernel<GateGradientConfig<false, " + _GATED_VECTOR + "true": 5,  # as below
    r"gated_sum_backward_kernel<GateGradientConfig<true, " + _GATED_VECTOR: 5,  # some of the second edge's after a use
    _NORMALIZED_TO_SOURCES: 4,  # gradients and shifts of two edges
    r"spmm_extremum_kernel<GatherConfig" + _FULL_VECTOR: 4,
    r"copy_reduce_kernel<GatherConfig" + _FULL_VECTOR: 4,
    r"copy_reduce_backward_kernel<GatherConfig<(__half|__nv_bfloat16|float), 4, ": 7,  # all of two edges; winners of eight
    r"sddmm_dot_kernel<DotConfig" + _FULL_VECTOR + "2>": 3,  # the row, and two edges' columns
    r"sddmm_dot_kernel<DotConfig" + _FULL_VECTOR + "8>": 8,
    r"sddmm_elementwise_kernel<ElementwiseConfig" + _FULL_VECTOR: 3,
    r"mul_backward_kernel<MulConfig" + _FULL_VECTOR + "1>": 4,
    r"mul_backward_kernel<MulConfig" + _FULL_VECTOR + "4>": 8,
    rf"softmax_(rows|pieces)<SoftmaxConfig<{_WIDEST}, 0, ": 8,  # edges; both arrays of them in the backward
    r"softmax_(rows|pieces)<SoftmaxConfig" + _FULL_VECTOR: 3,  # four items; both arrays of two in the backward
    rf"gat_attention(_backward)?_kernel<GatConfig<{_WIDEST}, ": 4,
    rf"gat_edge_gradient_kernel<{_WIDEST}>": 8,
    rf"gat_prepare_backward_kernel<{_WIDEST}>": 3,
    r"pair_attention_kernel<PairConfig<\w+, NoEdges, (__half, \d, 8|__nv_bfloat16, \d, 8|float, \d, 4), 1": 3,
    r"pair_attention_kernel<PairConfig<\w+, NoEdges, (__half, \d, 8|__nv_bfloat16, \d, 8|float, \d, 4), 4": 5,
    _EDGE_TERMS.replace("Bias|Row|Column", "Row"): 7,  # rows of two edges, and of their nodes, or of four of GATv2
    _EDGE_TERMS: 3,
    "pair_tensor_kernel": 8,  # of 16 edges: keys, or keys and values of narrow heads
    "gather_limit_kernel": 8,
    "gather_rows_kernel<uint4>": 4,
}
# A loop of fewer loads that a warp enters once, for what is left over, or if there may be a nan.
REMAINDER = {"gather_limit_kernel": 2, "copy_reduce_kernel": 1, "spmm_extremum_kernel": 1}
# Of these the loop with most counts: the others read what edges have beside their rows, or run once per row.
ONE_LOOP = ("gat_attention_kernel", "gat_attention_backward_kernel", "pair_attention_kernel")


def family(name: str) -> str:
    return name.split("<")[0]


def lookup(table: dict[str, int], name: str, default: int | None = None) -> int | None:
    """The first entry for a kernel of this name."""
    for key, value in table.items():
        if key == family(name) or ("<" in key and re.match(key, name)):
            return value
    return default


def min_loads(name: str) -> int:
    return lookup(MIN_LOADS, name, 0)


def warps(kernel: Kernel) -> int:
    """Warps of a multiprocessor that its registers and its static shared memory allow. Registers are handed out 8 per lane."""
    of_block = lookup(THREADS, kernel.name, 128) // WARP
    by_registers = 4 * (REGISTERS // 4 // (-(-kernel.registers // 8) * 8 * WARP)) // of_block
    by_shared_memory = SHARED_MEMORY[kernel.arch] // (kernel.shared + (1024 if kernel.arch == "sm_80" else 0) or 1024)
    return min(MAX_WARPS // of_block, MAX_BLOCKS, by_registers, by_shared_memory) * of_block


def loads_in_flight(kernel: Kernel) -> int:
    """Of a lane, in the worst of the loops that matter."""
    loads = kernel.loads_in_flight()
    remainder = REMAINDER.get(family(kernel.name))
    if remainder in loads:
        loads.remove(remainder)
    choose = max if family(kernel.name) in ONE_LOOP else min
    return choose(loads, default=0)


def serial_batches(kernel: Kernel, min_loads: int) -> list[str]:
    """Of straight code with at least min_loads loads, which is what is left over from loops, one load may wait for another."""
    found = []
    for run in kernel.straight_runs():
        loads, total = disassembly.loads_in_flight(run), sum(disassembly.is_wide_load(i) for i in run)
        if total >= min_loads > loads + 1:
            found.append(f"a batch outside of loops with {loads} of its {total} 16-byte loads in flight")
    return found


def bytes_in_flight(kernel: Kernel) -> int:
    """On a multiprocessor full of warps."""
    return warps(kernel) * WARP * 16 * loads_in_flight(kernel)


def violations(kernel: Kernel, min_loads: int) -> list[str]:
    found = []
    if kernel.stack or kernel.local:
        found.append(
            f"{kernel.stack} bytes of stack and {kernel.local} of local memory: spilled, or an array indexed at run time"
        )
    local = kernel.count(r"(LDL|STL)\b")
    if local:
        found.append(f"{local} accesses to local memory")
    if min_loads and kernel.arch not in OTHER_ARCHS:
        loads = loads_in_flight(kernel)
        if loads < min_loads:
            found.append(f"{loads} 16-byte loads in flight, at least {min_loads} wanted")
        least = lookup(FEWER_BYTES_IN_FLIGHT, kernel.name, MIN_BYTES_IN_FLIGHT)
        if loads >= min_loads and bytes_in_flight(kernel) < least:
            found.append(f"{bytes_in_flight(kernel)} bytes in flight per multiprocessor, {least} wanted")
        found += serial_batches(kernel, min_loads)
    return found
