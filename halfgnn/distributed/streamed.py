"""Streamed: training on a whole graph whose rows do not fit into memory, in one process that visits its parts one after another."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..dataloading import FeatureStore
from ..graph import Graph
from .features import open_features
from .partition import read, read_part

Layer = Callable[[Graph, tuple[Tensor, Tensor]], Tensor]


class _Part:
    """A part of the graph. first, num_own: its nodes among those of all parts. ghosts: the rows of its other sources there."""

    def __init__(self, part: dict[str, Tensor], first: int, firsts: Tensor, place: Tensor) -> None:
        self.first, self.num_own, self.nodes = first, part["nodes"].shape[0], part["nodes"].long()
        owners = torch.repeat_interleave(torch.arange(len(firsts)), part["ghost_counts"].long())
        self.ghosts = firsts[owners] + place[part["ghosts"].long()]
        num_src = self.num_own + self.ghosts.shape[0]
        self.graph = Graph(num_src, self.num_own, csc=(part["indptr"], part["indices"], None))

    @property
    def own(self) -> slice:
        return slice(self.first, self.first + self.num_own)


class Streamed:
    """A partition whose parts one process visits one after another, layer by layer. Rows between layers are in files.

        stream = Streamed("parts", scratch="/fast/disk")
        layers = [lambda g, x: conv(g, x).relu(), last]      # each of a Graph and (rows of sources, rows of destinations)
        for epoch in range(10):
            optimizer.zero_grad()
            loss = stream.step(layers, "x", lambda out, nodes: F.cross_entropy(out, labels[nodes], reduction="sum") / N)
            optimizer.step()

    In memory are the topology, and one layer's tensors of one part. `step` runs every layer but the last twice: forward, and again
    in the backward, with the same random numbers. It is sequential aggregation over parts, as GriNNder (2025) trains whole graphs
    from storage.

    Args:
        folder: of :func:`partition`, with features of :func:`cut_features`. More parts need less memory.
        scratch: a folder for files of rows, (layers + 1) * N rows at most; None: a temporary one.

    Attributes:
        num_nodes, num_edges: those of the graph.
        num_parts: how many parts are visited.
    """

    def __init__(self, folder: Any, *, scratch: Any = None) -> None:
        description = read(folder)
        if "node_types" in description:
            raise ValueError(f"{folder} holds a heterograph; expected a graph of one node type and one edge type")
        self._folder, self._description, self.num_parts = Path(folder), description, len(description["parts"])
        self.num_nodes, self.num_edges = description["num_nodes"], description["num_edges"]
        sizes = torch.tensor([part["nodes"] for part in description["parts"]])
        firsts = sizes.cumsum(0) - sizes
        parts = [read_part(folder, number) for number in range(self.num_parts)]
        place = torch.empty(self.num_nodes, dtype=torch.int64)  # of a node among those of its part
        for part in parts:
            place[part["nodes"].long()] = torch.arange(part["nodes"].shape[0])
        self._parts = [_Part(part, int(first), firsts, place) for part, first in zip(parts, firsts)]
        self._scratch = scratch

    # ---- training ------------------------------------------------------------------------------------------------------------

    def step(self, layers: Sequence[Layer], x: str, loss: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """A forward and a backward of all parts. Gradients are added to the `grad` of what the layers are made of.

        Autocast that is on is on in the layers. A GradScaler: let `loss` return `scaler.scale(...)`.

        Args:
            layers: functions of a Graph, and of a pair: the rows (num_src, *) of a part's sources, of which the first num_dst are
                those of its destinations, and these (num_dst, *). They return rows (num_dst, *). A layer sees one part at a time:
                statistics of a batch norm are a part's, and are updated twice.
            x: the name of the features.
            loss: of the last layer's rows (num_dst, *) of a part, and the ids of its nodes in the graph: a tensor of one number.
                Their sum over all parts is the loss. That of a part may be without a gradient.

        Returns:
            The loss, without a gradient.

        Raises:
            TypeError, ValueError: there are no layers, or one returns other rows, or rows that differ in shape or dtype between
                parts; loss returns no number, or none with a gradient. FileNotFoundError: there are no features of this name.
        """
        layers = _checked(layers)
        if not callable(loss):
            raise TypeError(f"loss is {loss!r}; expected a function of rows and ids of nodes")
        with self._files() as files:
            states = self._forward(layers[:-1], x, files)
            return self._backward(layers, x, loss, files, states)

    def predict(self, layers: Sequence[Layer], x: str) -> Tensor:
        """The last layer's rows (N, *) of all nodes, in the order of the graph, without gradients. Arguments as of step."""
        layers = _checked(layers)
        with self._files() as files:
            self._forward(layers, x, files)
            rows = files.rows[len(layers)]
            out = rows.new_empty(rows.shape)
            for part in self._parts:
                out[part.nodes] = rows[part.own]
            return out

    def _forward(self, layers: list[Layer], x: str, files: _Files) -> dict[tuple[int, int], Tensor]:
        """Writes the rows after each layer. Returns the state of random numbers before each of its parts."""
        states = {}
        for number, layer in enumerate(layers):
            for place, part in enumerate(self._parts):
                states[number, place] = torch.get_rng_state()
                with torch.no_grad():
                    files.write(number + 1, part, self._run(layer, number, part, self._rows(number, x, part, files)))
        return states

    def _backward(self, layers: list[Layer], x: str, loss: Any, files: _Files, states: Any) -> Tensor:
        total, has_gradient = torch.zeros(()), False
        for number in reversed(range(len(layers))):
            for place, part in enumerate(self._parts):
                rows = self._rows(number, x, part, files)
                rows.requires_grad_(number > 0 and (rows.is_floating_point() or rows.is_complex()))
                torch.clear_autocast_cache()  # weights that were cast without gradients in the forward
                with torch.enable_grad(), _random_numbers(states.get((number, place))):
                    out = self._run(layers[number], number, part, rows)
                    if number == len(layers) - 1:
                        of_part = _checked_loss(loss(out, part.nodes))
                        total = total + of_part.detach().view(())
                        if of_part.requires_grad:
                            has_gradient = True
                            of_part.backward()
                    elif out.requires_grad and number + 1 in files.grads:  # the layers after it may have none for it
                        out.backward(files.grads[number + 1][part.own].to(out.dtype))
                if rows.grad is not None:
                    files.add_gradient(number, part, rows.grad)
            if not has_gradient:
                raise ValueError(
                    "loss has no gradient in any part; the last layer's rows, or what loss made of them, need one"
                )
            files.grads.pop(number + 1, None)
        return total

    def _run(self, layer: Layer, number: int, part: _Part, rows: Tensor) -> Tensor:
        out = layer(part.graph, (rows, rows[: part.num_own]))
        if not isinstance(out, Tensor) or out.dim() == 0 or out.shape[0] != part.num_own:
            what = f"shape {tuple(out.shape)}" if isinstance(out, Tensor) else f"type {type(out).__name__}"
            raise ValueError(f"layers[{number}] returned {what}; expected a tensor ({part.num_own}, *)")
        return out

    # ---- rows ------------------------------------------------------------------------------------------------------------------

    def _rows(self, number: int, x: str, part: _Part, files: _Files) -> Tensor:
        """The rows of a part's sources before a layer."""
        if number:
            return torch.cat([files.rows[number][part.own], files.rows[number].index_select(0, part.ghosts)])
        stores = self._features(x)
        rows = [stores[self._parts.index(part)].data]
        for other, store in zip(self._parts, stores):
            ids = part.ghosts[(part.ghosts >= other.first) & (part.ghosts < other.first + other.num_own)]
            if ids.numel():
                rows.append(store.gather(ids - other.first))
        return torch.cat(rows)  # ghosts are in the order of parts

    def _features(self, name: str) -> list[FeatureStore]:
        return [open_features(self._folder, self._description, number, name) for number in range(self.num_parts)]

    def _files(self) -> _Files:
        return _Files(self.num_nodes, self._scratch)

    def __repr__(self) -> str:
        return f"Streamed({self.num_parts} parts, num_nodes={self.num_nodes}, num_edges={self.num_edges})"


class _Files:
    """Rows of all nodes, in the order of parts, in files that go when the context ends. By the layer that reads them."""

    def __init__(self, num_nodes: int, scratch: Any) -> None:
        self._num_nodes, self._scratch = num_nodes, scratch
        self.rows: dict[int, Tensor] = {}
        self.grads: dict[int, Tensor] = {}  # in fp32, or fp64

    def __enter__(self) -> _Files:
        self._folder = tempfile.TemporaryDirectory(dir=self._scratch)
        return self

    def __exit__(self, *exception: object) -> None:
        self.rows.clear()
        self.grads.clear()
        self._folder.cleanup()

    def write(self, number: int, part: _Part, rows: Tensor) -> None:
        if number not in self.rows:
            self.rows[number] = self._made(f"rows-{number}", rows.shape[1:], rows.dtype)
        made = self.rows[number]
        if rows.shape[1:] != made.shape[1:] or rows.dtype != made.dtype:
            expected = f"{made.dtype} ({part.num_own}, {', '.join(map(str, made.shape[1:]))})"
            raise ValueError(
                f"layers[{number - 1}] returned {rows.dtype} {tuple(rows.shape)}; expected {expected}, as for the first part"
            )
        made[part.own] = rows

    def add_gradient(self, number: int, part: _Part, grad: Tensor) -> None:
        if number not in self.grads:
            dtype = torch.promote_types(grad.dtype, torch.float32)
            self.grads[number] = self._made(f"gradient-{number}", grad.shape[1:], dtype)
        total = self.grads[number]
        total[part.own] += grad[: part.num_own]
        total.index_add_(0, part.ghosts, grad[part.num_own :].to(total.dtype))  # no row twice

    def _made(self, name: str, shape: torch.Size, dtype: torch.dtype) -> Tensor:
        """Zeros (N, *shape) in a new file."""
        size = self._num_nodes * shape.numel()
        if not size:
            return torch.zeros(self._num_nodes, *shape, dtype=dtype)
        path = Path(self._folder.name) / name
        return torch.from_file(str(path), shared=True, size=size, dtype=dtype).view(self._num_nodes, *shape)


def _checked(layers: Sequence[Layer]) -> list[Layer]:
    if not isinstance(layers, Iterable):
        raise TypeError(f"layers is {layers!r}; expected a list of functions")
    layers = list(layers)
    if not layers or not all(callable(layer) for layer in layers):
        raise ValueError(f"layers is {layers!r}; expected one function or more")
    return layers


def _checked_loss(loss: Any) -> Tensor:
    if not isinstance(loss, Tensor):
        raise TypeError(f"loss returned a {type(loss).__name__}; expected a tensor of one number")
    if loss.numel() != 1:
        raise ValueError(f"loss returned shape {tuple(loss.shape)}; expected a tensor of one number")
    return loss


@contextlib.contextmanager
def _random_numbers(state: Tensor | None) -> Iterator[None]:
    """A context that draws the numbers that follow a state; None: those that follow now."""
    if state is None:
        yield
        return
    with torch.random.fork_rng(devices=[]):
        torch.set_rng_state(state)
        yield
