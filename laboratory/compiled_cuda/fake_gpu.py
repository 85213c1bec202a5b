"""Inductor's code for CUDA on a machine without a GPU: of graphs that were traced on the CPU, on a GPU that is only described.

Nothing is run or compiled further than to Inductor's Python code. What is replaced of PyTorch is that of torch 2.11.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from torch import Tensor, fx
from torch._functorch import config as functorch_config
from torch._guards import TracingContext, tracing
from torch._inductor import config
from torch._inductor.compile_fx import compile_fx, compile_fx_inner
from torch._inductor.graph import GraphLowering
from torch._inductor.virtualized import V
from torch.utils._pytree import tree_map

DEVICE = torch.device("cuda", 0)


class _H200:
    name, major, minor, multi_processor_count, warp_size = "NVIDIA H200", 9, 0, 132, 32
    max_threads_per_multi_processor, max_threads_per_block, regs_per_multiprocessor = 2048, 1024, 65_536
    total_memory, L2_cache_size, clock_rate = 150 << 30, 60 << 20, 1_980_000
    shared_memory_per_block, shared_memory_per_block_optin, shared_memory_per_multiprocessor = 49_152, 232_448, 233_472


class _Driver:
    @staticmethod
    def get_current_target() -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 90, 32)


class _NotRun(Exception):
    """Inductor's code is asked for, and not to be run."""


@contextlib.contextmanager
def described(codes: list[str]) -> Iterator[None]:
    """A block in which PyTorch believes in a GPU, and Inductor's code goes to a list instead of being loaded."""
    import triton.runtime

    def written(self: GraphLowering) -> Any:
        code, _ = self.codegen()
        codes.append(code.value)
        raise _NotRun

    replaced = {
        "torch.cuda.is_available": lambda: True,
        "torch.cuda.device_count": lambda: 1,
        "torch.cuda.current_device": lambda: 0,
        "torch.cuda._lazy_init": lambda: None,
        "torch.cuda._exchange_device": lambda index: 0,
        "torch.cuda._maybe_exchange_device": lambda index: 0,
        "torch.cuda.get_device_properties": lambda *args: _H200,
        "torch.cuda._get_device_properties": lambda *args: _H200,
        "torch.cuda.get_device_capability": lambda *args: (9, 0),
        "torch.cuda.random._lazy_init": lambda: None,
        "torch._subclasses.fake_tensor.init_gpu_context": lambda device: None,
        "torch._dynamo.utils.preserve_rng_state": contextlib.nullcontext,
        "torch._inductor.scheduler.has_triton": lambda *args: True,
        "torch.utils._triton.has_triton": lambda *args: True,
        "torch.utils._triton.triton_hash_with_backend": lambda: "none",
    }
    with contextlib.ExitStack() as stack:
        for name, value in replaced.items():
            stack.enter_context(mock.patch(name, value, create=True))
        stack.enter_context(mock.patch.object(type(triton.runtime.driver), "active", _Driver))
        stack.enter_context(mock.patch.object(GraphLowering, "compile_to_module", written))
        yield


def graphs_of(function: Any, *inputs: Any) -> list[tuple[fx.GraphModule, dict[str, Any]]]:
    """The graphs of a step of a module, forward and backward, that a plain torch.compile hands to Inductor."""
    found: list[Any] = []

    def inner(gm: fx.GraphModule, example_inputs: Any, **options: Any) -> Any:
        options = {name: value for name, value in options.items() if name in ("is_backward", "is_inference")}
        found.append((copy.deepcopy(gm), options))
        run = fx.Interpreter(gm).run

        def boxed(args: list[Any]) -> Any:
            return run(*args)

        boxed._boxed_call = True  # type: ignore[attr-defined]
        return boxed

    torch.compiler.reset()
    with config.patch(fx_graph_cache=False), functorch_config.patch(enable_autograd_cache=False):
        out = torch.compile(function, backend=lambda gm, args: compile_fx(gm, args, inner_compile=inner))(*inputs)
        out.float().sum().backward()
    return found


def cuda_code(gm: fx.GraphModule, options: dict[str, Any]) -> str:
    """Inductor's code of a graph whose tensors are moved to the GPU. The graph is changed."""
    values = [node.meta["val"] for node in gm.graph.nodes if isinstance(node.meta.get("val"), Tensor)]
    mode, moved = values[0].fake_mode, {}

    def move(x: Any) -> Any:
        if not isinstance(x, Tensor):
            return x
        if id(x) not in moved:
            with mode:
                moved[id(x)] = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=DEVICE), x
        return moved[id(x)][0]

    codes: list[str] = []
    with described(codes):
        for node in gm.graph.nodes:
            node.args = tuple(DEVICE if isinstance(x, torch.device) else x for x in node.args)
            if node.kwargs.get("device") is not None:
                node.kwargs = {**node.kwargs, "device": DEVICE}
            if "val" in node.meta:
                node.meta["val"] = tree_map(move, node.meta["val"])
        inputs = [node.meta["val"] for node in gm.graph.nodes if node.op == "placeholder"]
        try:
            with tracing(TracingContext(mode)), V.set_fake_mode(mode), config.patch(fx_graph_cache=False):
                compile_fx_inner(gm, inputs, **options)
        except Exception:  # Inductor wraps what stops it
            if not codes:
                raise
    return codes[0]
