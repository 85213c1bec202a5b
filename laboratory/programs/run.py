"""What a program computes."""

from __future__ import annotations

import contextlib
import copy
import gc
import io
import weakref
from collections.abc import Callable
from typing import Any

import torch
import torch.utils.checkpoint
from torch import Tensor
from torch_geometric.nn import MessagePassing
from torch_geometric.nn.aggr import SoftmaxAggregation
from torch_geometric.utils import scatter, softmax

from .draw import Program

DTYPES = {"float64": torch.float64, "autocast": torch.float32, "float32": torch.float32, "bfloat16": torch.bfloat16}


class Outcome:
    """values: by name: tensors, and what is said of them. error: type and words of what was raised. is_freed: whether all features
    are once the program has ended, without a search for cycles."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.error: tuple[type, str] | None = None
        self.is_freed = True


class _Layer(MessagePassing):
    def __init__(self, program: Program, names: dict[str, Any]) -> None:
        aggr = SoftmaxAggregation() if program.aggr == "softmax" else program.aggr
        super().__init__(aggr=aggr, flow=program.flow, node_dim=-2 if program.batch else 0)
        self.function, self.update_function = names["message"], names["edge_update"]

    def forward(self, x: Any, edge_index: Tensor, e: Tensor, w: Tensor, p: Tensor, m: Tensor) -> Tensor:
        return self.propagate(edge_index, x=x, e=e, w=w, p=p, m=m)

    def updated(self, x: Any, edge_index: Tensor, e: Tensor) -> Tensor:
        return self.edge_updater(edge_index, x=x, e=e)

    def message(self, x_i, x_j, e, w, p, m, index, size_i):  # type: ignore[no-untyped-def]
        return self.function(x_i, x_j, e, w, p, m, index, size_i)

    def edge_update(self, x_i, x_j, e, index, size_i):  # type: ignore[no-untyped-def]
        return self.update_function(x_i, x_j, e, index, size_i)


# ---- names of programs ---------------------------------------------------------------------------------------------------------


def _checkpoint(*args: Any, **kwargs: Any) -> Any:
    """Found when it is called: a checkpoint that was taken from its module before is documented to be another thing."""
    return torch.utils.checkpoint.checkpoint(*args, **kwargs)


def _gradient(y: Tensor, x: Tensor) -> Tensor:
    """Of the sum of y, which the program goes on with; zeros where y does not depend on x."""
    if not y.requires_grad or not x.requires_grad:
        return torch.zeros_like(x)
    (found,) = torch.autograd.grad(y.sum(), x, create_graph=True, allow_unused=True)
    return torch.zeros_like(x) if found is None else found


def _has_history(x: Tensor) -> bool:
    """PyTorch crashes in hooks of views that are made without gradients of what requires one."""
    return x.requires_grad and not x.is_leaf


def _doubled(x: Tensor) -> None:
    if _has_history(x):
        x.register_hook(lambda grad: 2 * grad)


def _features(kept: Tensor, step: Callable[..., Tensor], x: Tensor, x_dst: Tensor, e: Tensor) -> Any:
    """What is made of a message as features of nodes."""
    if kept.shape[1:] != x.shape[1:] or len(kept) < len(x) or kept.dtype is not x.dtype:
        return 0
    return step(kept, kept if x is x_dst else x_dst, e).sum()


def _pickled(x: Tensor) -> Tensor:
    file = io.BytesIO()
    torch.save(x, file)
    file.seek(0)
    return torch.load(file)


class _Straight(torch.autograd.Function):
    """Its gradient is not that of its formula."""

    @staticmethod
    def forward(ctx, x):  # type: ignore[no-untyped-def]
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        return 3 * ctx.saved_tensors[0] * grad


class _Reversed(torch.autograd.Function):
    """Its result is its input."""

    @staticmethod
    def forward(ctx, x):  # type: ignore[no-untyped-def]
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        return -grad


class _Written(torch.autograd.Function):
    """Its result is its input, modified in place."""

    @staticmethod
    def forward(ctx, x):  # type: ignore[no-untyped-def]
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        return 2 * grad


class _Names:
    """What a program's names are, and what it has kept."""

    def __init__(self, program: Program) -> None:
        self.kept: list[Tensor] = []
        self.retained: list[Tensor] = []
        self.seen: dict[str, Tensor] = {}
        self.names: dict[str, Any] = {
            "torch": torch, "copy": copy, "softmax": softmax, "checkpoint": _checkpoint, "gradient": _gradient, "doubled": _doubled,
            "features": _features, "pickled": _pickled, "Straight": _Straight, "Reversed": _Reversed, "Written": _Written,
            "compile": lambda step: step, "kept": self.kept, "retained": self._retain, "seen": self._watch,
        }  # fmt: skip
        exec(compile(program.source(), "<program>", "exec"), self.names)

    def _retain(self, x: Tensor) -> None:
        if _has_history(x):
            x.retain_grad()
            self.retained.append(x)

    def _watch(self, x: Tensor, name: str) -> None:
        seen = self.seen

        def hook(grad: Tensor) -> None:
            seen[name] = seen[name] + grad.detach() if name in seen else grad.detach().clone()

        if _has_history(x):
            x.register_hook(hook)

    def clear(self) -> None:
        self.kept.clear()
        self.retained.clear()


# ---- running -------------------------------------------------------------------------------------------------------------------


def _inputs(program: Program, seed: int, dtype: torch.dtype) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    (num_src, num_dst), num_edges, f = program.num_nodes, program.num_edges, program.width
    batch = (program.batch,) if program.batch else ()
    shapes = [(*batch, num_src, f), (*batch, num_dst, f), (num_edges, f), (num_edges, 1), (f,), (f, f)]
    made = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    if program.is_near:
        made[:2] = [16 + 0.1 * x for x in made[:2]]
    made = [x.to(dtype) for x in made]
    rows = [torch.randint(n, (num_edges,), generator=generator) for n in program.num_nodes]
    return [torch.stack(rows), *made]


def _step(program: Program, names: dict[str, Any], edge_index: Tensor, rest: list[Tensor]) -> tuple[Any, Any]:
    """Functions of features of both sides and of edges: the message that is reduced, and the update of edges."""
    num_dst = program.num_nodes[1]
    if program.style == "propagate":
        layer = _Layer(program, names)
        ids = edge_index.flip(0) if program.flow == "target_to_source" else edge_index

        def both(x: Tensor, x_dst: Tensor) -> Any:
            if not program.is_bipartite:
                return x
            return (x, x_dst) if ids is edge_index else (x_dst, x)

        return (
            lambda x, x_dst, e: layer(both(x, x_dst), ids, e, *rest),
            lambda x, x_dst, e: layer.updated(both(x, x_dst), ids, e),
        )
    (src, dst), message = edge_index, names["message"]

    def step(x: Tensor, x_dst: Tensor, e: Tensor) -> Tensor:
        n = num_dst if program.is_bipartite else len(x)
        rows = message(x_dst[dst], x.index_select(0, src), e, *rest, dst, n)
        if program.style == "scatter":
            return scatter(rows, dst, dim=0, dim_size=n, reduce=program.aggr)
        return rows.new_zeros(n, *rows.shape[1:]).index_add_(0, dst, rows)

    return step, None


def out_of(
    program: Program, names: dict[str, Any], edge_index: Tensor, x: Tensor, x_dst: Tensor, e: Tensor, *rest: Tensor
) -> Tensor:
    names["step"], names["update"] = _step(program, names, edge_index, list(rest))
    names["step"] = names["compile"](names["step"])
    try:
        return names["forward"](x, x_dst if program.is_bipartite else x, e)
    finally:
        del names["step"], names["update"]


def run(
    program: Program,
    seed: int,
    order: int,
    drop_in: contextlib.AbstractContextManager[Any],
    compile: Callable[[Any], Any] = lambda step: step,
) -> Outcome:
    """order: of the derivatives; 0: without gradients. compile: what the function that propagates messages is replaced by."""
    outcome, references = Outcome(), []
    gc.disable()
    try:
        names = _Names(program)
        names.names["compile"] = compile
        with contextlib.ExitStack() as block:
            block.enter_context(drop_in)
            try:
                _fill(outcome, program, names, seed, order, block, references)
            except Exception as error:
                outcome.error = type(error), str(error)
        if torch._C._autograd._top_saved_tensors_default_hooks(True) is not None:
            gc.collect()  # a checkpoint ends when its frames do
        names.clear()
        del names
        outcome.is_freed = outcome.error is not None or not any(reference() is not None for reference in references)
    finally:
        gc.enable()
    return outcome


def _fill(
    outcome: Outcome, program: Program, names: _Names, seed: int, order: int, block: contextlib.ExitStack, references: list[Any]
) -> None:  # fmt: skip
    torch.manual_seed(seed)
    edge_index, *leaves = _inputs(program, seed, DTYPES[program.precision])
    if program.id_dtype == "int32":
        edge_index = edge_index.int()
    for x in leaves:
        x.requires_grad_(order > 0)
    autocast = torch.autocast("cpu", dtype=torch.bfloat16, enabled=program.precision == "autocast")
    with contextlib.nullcontext() if order else torch.no_grad(), autocast:
        made = [x * 1 for x in leaves]
        references.extend(weakref.ref(x) for x in made)
        out = out_of(program, names.names, edge_index, *made)
    kept, values = [*names.kept], outcome.values
    values["result"] = out.detach().clone()
    values["strides"] = [stride for stride, size in zip(out.stride(), out.shape) if size > 1] if out.numel() > 1 else []
    values["requires_grad"] = out.requires_grad
    if program.ends_before == "backward":
        block.close()
    if order:
        _differentiate(values, program, out, leaves, order)
    block.close()
    for place, x in enumerate(kept):
        values[f"kept {place}"] = torch.empty(x.shape, dtype=x.dtype).copy_(x.detach())  # which is no message
        values[f"kept {place} requires_grad"] = x.requires_grad
    values |= {f"gradient of retained {place}": _copied(x.grad) for place, x in enumerate(names.retained)}
    values |= {f"gradient of {name}": x for name, x in names.seen.items()}


def _differentiate(values: dict[str, Any], program: Program, out: Tensor, leaves: list[Tensor], order: int) -> None:
    cotangent = torch.randn(out.shape, generator=torch.Generator().manual_seed(7), dtype=torch.float64).to(out.dtype)
    if not out.requires_grad:
        grads: list[Tensor | None] = [None for _ in leaves]
    elif program.backward:
        out.backward(cotangent)
        grads = [x.grad for x in leaves]
    else:
        grads = list(torch.autograd.grad(out, leaves, cotangent, create_graph=order > 1, allow_unused=True))
    values |= {f"gradient {place}": _copied(x) for place, x in enumerate(grads)}
    force = grads[0]
    if order > 1 and force is not None and force.requires_grad:
        again = torch.autograd.grad(force.square().sum(), leaves, allow_unused=True)
        values |= {f"second derivative {place}": _copied(x) for place, x in enumerate(again)}


def _copied(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.detach().clone()
