"""``python -m halfgnn``: what is installed, what this machine runs, and whether operators are right here.

    python -m halfgnn                         facts for a bug report, and a self-test of a second
    python -m halfgnn --bench                 the same, and how fast some operators are here, in half a minute
    python -m halfgnn advise script.py [...]  runs a program twice, as it is and under the drop-in, and says what that changed;
                                              `advise --plot picture.svg script.py` also draws it

The exit status is 1 if an operator is wrong, or if there is a GPU that the library has no kernels for; of `advise` that of the
program. `halfgnn.advise(model, *inputs)` measures a model in more detail.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from . import Graph, __version__, _library, advice, ops, reference

# ---- facts ---------------------------------------------------------------------------------------------------------------------

HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    facts = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    if "model name" not in facts:
        return platform.processor() or platform.machine()
    return f"{facts['model name']} (family {facts.get('cpu family', '?')} model {facts.get('model', '?')})"


def _package(name: str) -> str:
    """Its version, or why it cannot be imported."""
    os.environ.setdefault("DGLBACKEND", "pytorch")  # otherwise the first import of DGL writes a file
    try:
        return str(importlib.import_module(name).__version__)
    except ModuleNotFoundError as error:
        return "not installed" if error.name == name else f"cannot be imported: {error}"
    except Exception as error:  # a wheel for another torch can fail with any error
        return f"cannot be imported: {str(error).splitlines()[0]}"


def _cuda_back_end() -> str:
    idle = _library.why_cuda_is_idle()
    if idle:
        return f"unusable here: {idle}"
    if _library.has_cuda():
        return f"built for {', '.join(_library.facts().get('archs') or ['an unknown GPU'])}"
    return f"not built ({_library.facts().get('without_cuda') or 'the build does not say why'})"


def _autograd() -> str:
    if _library.has_autograd():
        return "Functions in C++"
    return f"Functions in Python: there are none in C++ for torch {torch.__version__}"


def _gpus() -> Iterator[tuple[str, str | None]]:
    """Each GPU, and why the library has no kernels for it."""
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        device = torch.device("cuda", index)
        yield f"{torch.cuda.get_device_name(device)}", _library.why_unserved(device)


def _facts() -> Iterator[tuple[str, str]]:
    yield "halfgnn", f"{__version__}, {Path(__file__).parent}"
    yield "library", f"{_library.path()}, built for torch {_library.built_for()}"
    yield "torch", f"{torch.__version__}, Python {platform.python_version()}, {platform.platform()}"
    yield "processor", f"{_processor()}, {torch.get_num_threads()} threads"
    yield "CPU kernels", _library.cpu_kernels() or "unknown"
    yield "CUDA back end", _cuda_back_end()
    yield "autograd", _autograd()
    for name, reason in _gpus():
        yield "GPU", f"{name}: {reason or 'served'}"
    if not torch.cuda.is_available():
        yield "GPU", "torch sees none" if torch.version.cuda else "torch sees none: it was built without CUDA"
    yield "DGL", _package("dgl")
    yield "torch_geometric", _package("torch_geometric")
    yield "huge pages", HUGE_PAGES.read_text().strip() if HUGE_PAGES.exists() else "unknown"
    settings = {name: value for name, value in os.environ.items() if name.startswith("HALFGNN_")}
    yield "settings", " ".join(f"{name}={value}" for name, value in sorted(settings.items())) or "none"


# ---- self-test -----------------------------------------------------------------------------------------------------------------

Call = Callable[
    [Any, Graph, Callable[..., Tensor]], Tensor
]  # of halfgnn.ops or halfgnn.reference, and what draws operands
CALLS: dict[str, Call] = {
    "copy_u_sum": lambda lib, g, x: lib.gspmm(g, "copy_lhs", "sum", x("u", 40), None),
    "copy_u_max": lambda lib, g, x: lib.gspmm(g, "copy_lhs", "max", x("u", 40), None),
    "u_mul_e_sum": lambda lib, g, x: lib.gspmm(g, "mul", "sum", x("u", 4, 16), x("e", 4, 1)),
    "u_add_e_mean": lambda lib, g, x: lib.gspmm(g, "add", "mean", x("u", 33), x("e", 33)),
    "u_dot_v": lambda lib, g, x: lib.gsddmm(g, "dot", x("u", 4, 16), x("v", 4, 16)),
    "u_add_v_add_e": lambda lib, g, x: lib.u_add_v_add_e(g, x("u", 24), x("v", 24), x("e", 24)),
    "edge_softmax": lambda lib, g, x: lib.edge_softmax(g, x("e", 4)),
    "gated_sum": lambda lib, g, x: lib.gated_sum(g, x("u", 24), x("u", 24), x("v", 24), x("e", 24)),
    "gat_attention": lambda lib, g, x: lib.gat_attention(g, x("u", 4, 16), x("u", 4), x("v", 4)),
    "gatv2_attention": lambda lib, g, x: lib.gatv2_attention(g, x("u", 4, 16), x("v", 4, 16), x("", 4, 16)),
    "dot_attention": lambda lib, g, x: lib.dot_attention(g, x("v", 4, 16), x("u", 4, 16), x("u", 4, 16), 0.25),
}
TYPES = {
    torch.bfloat16: 2e-2,
    torch.float16: 3e-3,
    torch.float32: 1e-5,
}  # and how far results may be off, of the largest value


def _graph(num_nodes: int, num_edges: int, device: str = "cpu") -> Graph:
    generator = torch.Generator().manual_seed(0)
    src, dst = torch.randint(num_nodes, (2, num_edges), generator=generator).to(device)
    return Graph.from_edges(src, dst, num_src=num_nodes, num_dst=num_nodes)


def _drawn(g: Graph, dtype: torch.dtype, wide: torch.dtype | None = None) -> Callable[..., Tensor]:
    """Draws operands of a call in turn: (rows of the target, *shape), rounded to dtype. wide: the dtype to hold them in."""
    generator = torch.Generator().manual_seed(1)

    def draw(target: str, *shape: int) -> Tensor:
        rows = {"u": (g.num_src,), "v": (g.num_dst,), "e": (g.num_edges,), "": ()}[target]
        x = torch.randn(*rows, *shape, generator=generator).to(g.device, dtype)
        return x if wide is None else x.to(wide)

    return draw


def _is_right(name: str, g: Graph, dtype: torch.dtype) -> bool:
    """Whether an operator agrees with its formula in float64."""
    on_cpu = g.to("cpu")
    result = CALLS[name](ops, g, _drawn(g, dtype)).double().cpu()
    truth = CALLS[name](reference, on_cpu, _drawn(on_cpu, dtype, torch.float64))
    return bool(((result - truth).abs().max() <= TYPES[dtype] * truth.abs().max()).item())


def _wrong(device: str) -> list[str]:
    """The operators that are not right there, each with its dtype."""
    g = _graph(200, 3000, device)
    found = []
    for name in CALLS:
        for dtype in TYPES:
            try:
                right = _is_right(name, g, dtype)
            except Exception as error:
                found.append(f"{name} {dtype}: {type(error).__name__}: {str(error).splitlines()[0]}")
            else:
                found += [] if right else [f"{name} {dtype}: its result is wrong"]
    return found


def _self_test(devices: list[str]) -> list[str]:
    failures = []
    for device in devices:
        start = time.perf_counter()
        wrong = _wrong(device)
        verdict = f"{len(wrong)} of {len(CALLS) * len(TYPES)} calls are wrong" if wrong else "all right"
        print(f"{'self-test':16} {len(CALLS)} operators in {len(TYPES)} types on {device}: {verdict}, "
              f"{time.perf_counter() - start:.1f} s")  # fmt: skip
        failures += [f"{device}: {line}" for line in wrong]
    return failures


# ---- speed ---------------------------------------------------------------------------------------------------------------------

NODES, EDGES = 20_000, 400_000


class _Separate:
    """Operators as index_select, arithmetic and index_add, which is how models write them."""

    def __init__(self, g: Graph):
        (self.src, self.dst), self.num_dst = g.edges(), g.num_dst

    def _sum(self, messages: Tensor) -> Tensor:
        return messages.new_zeros(self.num_dst, *messages.shape[1:]).index_add_(0, self.dst, messages)

    def copy_u_sum(self, x: Tensor) -> Tensor:
        return self._sum(x[self.src])

    def u_mul_e_sum(self, x: Tensor, weight: Tensor) -> Tensor:
        return self._sum(x[self.src] * weight)

    def u_dot_v(self, x: Tensor, y: Tensor) -> Tensor:
        return (x[self.src] * y[self.dst]).sum(-1, keepdim=True)

    def edge_softmax(self, logits: Tensor) -> Tensor:
        ends = self.dst.view(-1, *[1] * (logits.dim() - 1)).expand_as(logits)
        largest = logits.new_zeros(self.num_dst, *logits.shape[1:])
        weights = torch.exp(logits - largest.scatter_reduce_(0, ends, logits, "amax", include_self=False)[self.dst])
        return weights / self._sum(weights)[self.dst]

    def dot_attention(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return self.u_mul_e_sum(value, self.edge_softmax(self.u_dot_v(key, query) * query.shape[-1] ** -0.5))


# Rows and trailing shape of the operands of operators that are timed.
TIMED: dict[str, tuple[tuple[Any, ...], ...]] = {
    "copy_u_sum": (("u", 64),),
    "u_mul_e_sum": (("u", 4, 16), ("e", 4, 1)),
    "u_dot_v": (("u", 4, 16), ("v", 4, 16)),
    "edge_softmax": (("e", 4),),
    "dot_attention": (("v", 4, 16), ("u", 4, 16), ("u", 4, 16)),
}


def _milliseconds(calls: Sequence[Callable[[], Tensor]], device: str, seconds: float = 0.5) -> list[float]:
    """The median of each, which take turns."""
    taken: list[list[float]] = [[] for _ in calls]
    for call in calls:
        call()
    end = time.perf_counter() + seconds * len(calls)
    while time.perf_counter() < end or not taken[-1]:
        for call, times in zip(calls, taken):
            start = time.perf_counter()
            call()
            if device == "cuda":
                torch.cuda.synchronize()
            times.append(1e3 * (time.perf_counter() - start))
    return [statistics.median(times) for times in taken]


def _bench(device: str) -> None:
    g = _graph(NODES, EDGES, device)
    print(f"\n{NODES:,} nodes, {EDGES:,} edges, 64 features, on {device}: milliseconds, median\n")
    print(f"{'operator':16} {'type':9} {'halfgnn':>8} {'PyTorch':>8} {'faster':>8}")
    separate = _Separate(g)
    with torch.no_grad():
        for name, shapes in TIMED.items():
            for dtype in (torch.bfloat16, torch.float32):
                draw = _drawn(g, dtype)
                operands = [draw(*shape) for shape in shapes]
                calls = [functools.partial(getattr(ops, name), g, *operands),
                         functools.partial(getattr(separate, name), *operands)]  # fmt: skip
                fused, plain = _milliseconds(calls, device)
                kind = str(dtype).removeprefix("torch.")
                print(f"{name:16} {kind:9} {fused:8.3g} {plain:8.3g} {plain / fused:6.1f} x", flush=True)


# ---- a program -----------------------------------------------------------------------------------------------------------------

# Runs a program as `python script.py` does. In a file it leaves the most memory that it had, in MiB, and the drop-in's counts.
_PROGRAM = """
import atexit, importlib, json, os, re, runpy, sys
root, drop_in, facts, *sys.argv = sys.argv[1:]
sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
sys.path.append(root)
stats = dict
if drop_in:
    module = importlib.import_module(drop_in)
    module.patch()
    stats = module.stats
def leave():
    most = re.search("VmHWM:[^0-9]*([0-9]+)", open("/proc/self/status").read())
    json.dump({"mib": int(most[1]) / 1024, "stats": stats()}, open(facts, "w"))
atexit.register(leave)
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def _advise(script: list[str], library: str, plot: str | None) -> int:
    """The program's own status, of the first run that fails. plot: a file for the picture."""
    seconds, memory, root = [], [], str(Path(__file__).parents[1])
    with tempfile.TemporaryDirectory() as folder:
        counts = Path(folder, "counts.json")
        for drop_in in ("", f"halfgnn.{library}"):
            print(f"--- {' '.join(script)}{f', under {drop_in}.patch()' if drop_in else ''}", flush=True)
            start = time.perf_counter()
            status = subprocess.run(
                [sys.executable, "-c", _PROGRAM, root, drop_in, str(counts), *script], check=False
            ).returncode
            seconds.append(time.perf_counter() - start)
            if status:
                print(f"--- ended with {status}")
                return status
            left = json.loads(counts.read_text())
            memory.append(left["mib"])
        plain, routed = seconds
        print(
            f"--- {plain:.1f} s as it is, {routed:.1f} s under the drop-in: {plain / routed:.2f} x, start and end included;"
            f" at most {memory[0]:.0f} and {memory[1]:.0f} MiB of memory"
        )
        for line in advice.reasons(left["stats"], "the program's library"):
            print(line)
    if plot:
        panels = {"seconds": seconds, "MiB of memory at most": memory}
        advice.draw(plot, ["as it is", f"halfgnn.{library}.patch()"], [False, True], panels)
    return 0


def main(argv: list[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    if argv[:1] == ["advise"]:
        parser = argparse.ArgumentParser(
            prog="python -m halfgnn advise", description="Runs a program with and without halfgnn."
        )
        parser.add_argument("--library", choices=("pyg", "dgl"), default="pyg", help="the drop-in (pyg)")
        parser.add_argument(
            "--plot", metavar="FILE", help="a picture of time and memory (.svg, .png). Needs matplotlib"
        )
        parser.add_argument("script", nargs=argparse.REMAINDER, help="the program and its arguments")
        chosen = parser.parse_args(argv[1:])
        if not chosen.script or not Path(chosen.script[0]).is_file():
            parser.error(f"script is {' '.join(chosen.script) or 'missing'}; expected a file, and its arguments")
        return _advise(chosen.script, chosen.library, chosen.plot)
    parser = argparse.ArgumentParser(
        prog="python -m halfgnn", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bench", action="store_true", help="how fast some operators are here")
    options = parser.parse_args(argv)
    for name, value in _facts():
        print(f"{name:16} {value}")
    served = [reason is None for _, reason in _gpus()]
    failures = _self_test(["cpu", *["cuda"] * any(served)])
    for failure in failures:
        print(f"    {failure}")
    if options.bench:
        _bench("cuda" if any(served) else "cpu")
    return 1 if failures or not all(served) else 0


if __name__ == "__main__":
    sys.exit(main())
