"""The planners of csrc/cuda/kernels/plan, compiled for the host and called through ctypes. See planners.cpp."""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections import namedtuple
from ctypes import c_bool, c_double, c_int, c_int64
from pathlib import Path

CXX = os.environ.get("CXX", "g++")
FLAGS = ["-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
MB = 1 << 20
SKEW = 0.36  # that planners take
# Of Times.expected(): an exponent (1: parts do not overlap; infinite: perfectly), and how many times as long instructions take as
# without a wait. Both are fitted to an H200 (measured.py), to few digits.
OVERLAP, DELAY = 2.5, 1.2
# Of a kernel of sums: bytes of an access, accesses per slice, edges in flight.
ACCESSES = [(16, 1, 4), (8, 2, 4), (4, 1, 4), (4, 4, 2), (2, 4, 2)]
PASSES = ("forward", "destinations", "sources")
TERMS = ("bias", "columns", "other")
# Kernels whose instructions work.h has, in the order of planners.cpp. "gather" has none.
KERNELS = [
    "gather",
    "sum",
    "weighted_sum",
    "edge_sum",
    "edge_sum_backward",
    *(f"{kind}_{which}" for kind in ("gated_sum", "gated_values") for which in PASSES),
    "extremum",
    "copy_reduce",
    "copy_reduce_backward",
    "mul_backward",
    "dot",
    "gat",
    "gat_training",
    "gat_backward",
    *(f"{kind}_{which}" for kind in ("dot_attention", "gatv2") for which in PASSES),
    *(f"recorded_gatv2_{which}" for which in PASSES[1:]),
    # With terms of edges. On tensor cores, of heads of 65 to 128 elements: a batch is 16 edges.
    *(f"dot_bias_{which}" for which in PASSES),
    *(f"dot_columns_{which}" for which in PASSES[:2]),
    *(f"dot_bias_tensor_{which}" for which in PASSES[:2]),
    *(f"dot_columns_tensor_{which}" for which in PASSES[:2]),
    *(f"gatv2_bias_{which}" for which in PASSES[:2]),
]

Lanes = namedtuple("Lanes", "log2_lanes log2_team team_edges slices")
Layout = namedtuple("Layout", "log2_lanes log2_heads slices tiles by_slice log2_groups")


class _Struct(ctypes.Structure):
    def __repr__(self):
        return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)}' for name, _ in self._fields_)})"


class Device(_Struct):
    _fields_ = [("l2_bytes", c_int64), ("memory_bytes", c_int64), ("multiprocessors", c_int64)]
    _fields_ += [("cache", c_double), ("memory", c_double), ("issue", c_double)]


class Slices(_Struct):
    _fields_ = [("count", c_int64), ("bytes", c_int64), ("one_by_one", c_bool)]
    _fields_ += [
        ("cached_per_edge", c_double),
        ("streamed", c_double),
        ("instructions", c_double),
        ("node_bytes", c_double),
    ]


class Times(_Struct):
    """Seconds."""

    _fields_ = [("cache", c_double), ("memory", c_double), ("issue", c_double)]

    def bound(self):
        return max(self.cache, self.memory, self.issue)

    def total(self):
        return self.cache + self.memory + self.issue

    def expected(self, overlap=OVERLAP, delay=DELAY):
        """What a kernel takes, whose parts are busy for these times and overlap in part."""
        return (self.cache**overlap + self.memory**overlap + (delay * self.issue) ** overlap) ** (1 / overlap)


class Work(_Struct):
    _fields_ = [("row", c_double), ("batch", c_double), ("sharing", c_int)]


def compile_planners(folder, defines=()) -> Path:
    library = Path(folder) / "planners.so"
    source = Path(__file__).with_name("planners.cpp")
    subprocess.run([CXX, *FLAGS, *defines, source, "-o", library], check=True)
    return library


class Planners:
    """Devices are Device, or bytes of the L2 cache of an otherwise ordinary one."""

    def __init__(self, path):
        self.library = ctypes.CDLL(str(path))

    def _call(self, name, *arguments, result=None):
        types = {int: c_int64, float: c_double, bool: c_bool, str: lambda text: ctypes.c_char_p(text.encode())}
        values = [types[type(a)](a) if type(a) in types else ctypes.byref(a) for a in arguments]
        function = getattr(self.library, name)
        function.restype = result
        return function(*values)

    # ---- devices

    def default_device(self) -> Device:
        device = Device()
        self._call("default_device", device)
        return device

    def device(self, device) -> Device:
        if isinstance(device, Device):
            return device
        found = self.default_device()
        found.l2_bytes = device
        return found

    def gpus(self) -> dict[str, Device]:
        """Of the table, by the names that CUDA gives them."""
        found = {}
        while True:
            name, device = ctypes.create_string_buffer(256), Device()
            if not self._call("known_gpu", len(found), name, device, result=c_bool):
                return found
            found[name.value.decode()] = device

    def device_from_facts(self, name="?", capability=(9, 0), l2=50 * MB, memory=80 << 30, multiprocessors=132, clock=0.0,
                          memory_clock=0.0, bus_bits=0) -> Device:  # fmt: skip
        device = Device()
        numbers = (l2, memory, multiprocessors, float(clock), float(memory_clock), bus_bits)
        self._call("device_from_facts", name, *capability, *numbers, device)
        return device

    # ---- the model

    def miss_rate(self, l2, size, share=0.75, skew=SKEW):
        return self._call("miss_rate", l2, share, float(skew), float(size), result=c_double)

    def work(self, kernel) -> Work:
        work = Work()
        self._call("work_of", KERNELS.index(kernel), work)
        return work

    def instructions(self, work, num_rows, num_edges, batch_edges, rows_at_once=1, batch_accesses=4, across_rows=False):
        walk = (num_rows, num_edges, batch_edges, rows_at_once, batch_accesses, across_rows)
        return self._call("instructions", float(work[0]), float(work[1]), *walk, result=c_double)

    def times(self, device, nodes, row_bytes, edges, slices: Slices, once=0.0, read_once=False, skew=SKEW) -> Times:
        times = Times()
        values = [getattr(slices, name) for name, _ in Slices._fields_]
        self._call(
            "times", self.device(device), nodes, row_bytes, edges, read_once, float(skew), *values, float(once), times
        )
        return times

    # ---- planners; what they chose, and its slices

    def tensor_cores(self, heads, dim, degree, *, wanted=2, major=9, size=2, aligned=True, direction=0, terms="bias"):
        """wanted: 0 never, 1 where possible, 2 where cheaper; direction: 0 forward, 1 to destinations, 2 to sources; terms:
        what edges add to dot attention, of TERMS."""
        function = self.library.tensor_cores
        function.restype = c_bool
        function.argtypes = [c_int, c_int, *[c_int64] * 3, c_bool, c_int, *[c_int64] * 2, c_int]
        sizes = (heads, dim, size, aligned, direction, 1000, 1000 * degree)
        return function(wanted, major, *sizes, TERMS.index(terms))

    def takes_edge_records(self, heads, dim, degree, *, size=2, nodes=200_000, device=None):
        """As attention's backward asks on a device (an H100)."""
        device = device or self.gpus()["NVIDIA H100 80GB HBM3"]
        sizes = (heads, dim, size, nodes, nodes * degree)
        return self._call("edge_records", device, *sizes, result=c_bool)

    def lanes(self, device, nodes, edges, row_bytes, access=ACCESSES[0], stream=6, read_once=False,
              kernel="weighted_sum") -> Lanes:  # fmt: skip
        return self.lanes_and_slices(device, nodes, edges, row_bytes, access, stream, read_once, kernel)[0]

    def lanes_and_slices(self, device, nodes, edges, row_bytes, access=ACCESSES[0], stream=6, read_once=False,
                         kernel="weighted_sum") -> tuple[Lanes, Slices]:  # fmt: skip
        sizes = (nodes, row_bytes, edges, read_once, nodes, stream, *access, KERNELS.index(kernel))
        return self._plan("lanes", Lanes, device, sizes)

    def whole_heads(self, device, nodes, edges, heads, vectors, repeat=1, max_log2_groups=3, kernel="mul_backward"):
        return self.whole_heads_and_slices(device, nodes, edges, heads, vectors, repeat, max_log2_groups, kernel)[0]

    def whole_heads_and_slices(self, device, nodes, edges, heads, vectors, repeat=1, max_log2_groups=3,
                               kernel="mul_backward", rows_per_edge=1) -> tuple[Layout, Slices]:  # fmt: skip
        row_bytes = 16 * heads * vectors * rows_per_edge
        sizes = (nodes, row_bytes, edges, heads, vectors, repeat, max_log2_groups, nodes, KERNELS.index(kernel))
        return self._plan("whole_heads", Layout, device, sizes)

    def ordered_weights(self, device, nodes, edges, row_bytes, weight_bytes=2):
        """Whether a sum with a scattered weight per edge puts them in order, its slices, and its times if not and as chosen."""
        times, slices = (Times * 2)(), c_int64()
        sizes = (nodes, nodes, edges, row_bytes, weight_bytes)
        ordered = self._call("ordered_weights", self.device(device), *sizes, slices, times, result=c_bool)
        return ordered, slices.value, list(times)

    def weighted_backward(self, device, nodes, edges, row_bytes, weight_bytes=2, id_bytes=4, in_order=True):
        """Whether two gathers are taken, and the times of one gather, of dots and of sums."""
        times = (Times * 3)()
        sizes = (nodes, nodes, edges, row_bytes, weight_bytes, id_bytes, in_order)
        return self._call("weighted_backward", self.device(device), *sizes, times, result=c_bool), list(times)

    def dot_phases(self, device, nodes, edges, heads, dim, backward=False):
        """Whether dot attention has phases, in fp16, and the times of planners.cpp."""
        times = (Times * (6 if backward else 3))()
        sizes = (nodes, nodes, edges, heads, dim, backward)
        return self._call("dot_phases", self.device(device), *sizes, times, result=c_bool), list(times)

    def winners(self, device, nodes, edges, dim, gathered_bytes, streamed_bytes, extremes=1, searches=False):
        """Columns of a slice of the gradient of maxima, 0 if it is gathered; seconds of additions, and of a gather; bytes."""
        seconds, workspace = (c_double * 2)(), c_int64()
        sizes = (nodes, edges, dim, extremes, searches, gathered_bytes, streamed_bytes)
        columns = self._call("winners", self.device(device), *sizes, seconds, workspace, result=c_int64)
        return columns, *seconds, workspace.value

    def parts_of_heads(self, device, nodes, edges, heads, vectors, whole_heads=False, kernel="gat"):
        return self.parts_of_heads_and_slices(device, nodes, edges, heads, vectors, whole_heads, kernel)[0]

    def parts_of_heads_and_slices(self, device, nodes, edges, heads, vectors, whole_heads=False, kernel="gat"):
        sizes = (nodes, 16 * heads * vectors, edges, heads, vectors, 3, whole_heads, nodes, KERNELS.index(kernel))
        return self._plan("parts_of_heads", Layout, device, sizes)

    def _plan(self, name, result, device, sizes):
        out, slices = (c_int64 * len(result._fields))(), Slices()
        self._call(name, self.device(device), *sizes, out, slices)
        return result(*out), slices

    def slice_bytes(self, device, nodes, edges, row_bytes, vector_bytes=16):
        sizes = (nodes, row_bytes, edges, vector_bytes)
        return vector_bytes * self._call("slice_vectors", self.device(device), *sizes, result=c_int64)

    def edge_record_bytes(self, memory_bytes, edges, heads, vectors):
        device = self.default_device()
        device.memory_bytes = memory_bytes
        return self._call("edge_record_bytes", device, edges, heads, vectors, result=c_int64)

    def dot_unit_edges(self, edges, slices, multiprocessors=132):
        return self._call("unit_of_dots", self._of_size(multiprocessors), edges, slices, result=c_int64)

    def elementwise_unit_edges(self, edges, vectors, multiprocessors=132):
        return self._call("unit_of_elementwise", self._of_size(multiprocessors), edges, vectors, result=c_int64)

    def _of_size(self, multiprocessors):
        device = self.default_device()
        device.multiprocessors = multiprocessors
        return device

    def term_chunks(self, edges):
        return self._call("chunks_of_terms", edges, result=c_int64)

    def copy_batches(self, batches):
        return self._call("batches_of_copies", batches, result=c_int64)

    def are_whole(self, device, nodes, edges):
        """Whether all planners leave rows of 512 bytes whole."""
        return (
            self.lanes(device, nodes, edges, 512).slices == 1
            and not self.whole_heads(device, nodes, edges, 4, 8).by_slice
            and not self.parts_of_heads(device, nodes, edges, 4, 8).by_slice
            and self.slice_bytes(device, nodes, edges, 512) == 512
        )
