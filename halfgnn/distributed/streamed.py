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
from .blocks import Blocks, Part
from .features import open_features
from .partition import read, read_part

Layer = Callable[[Graph, tuple[Tensor, Tensor]], Tensor]


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
        scratch: a folder for files of rows, (layers + 1) times those of all nodes and of all parts' ghosts at most; None: a
            temporary one.

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
        self._parts: list[Part] = []
        first = 0
        for number in range(self.num_parts):
            self._parts.append(Part(read_part(folder, number), first))
            first += self._parts[-1].num_src
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
        with self._files(x) as files:
            states = self._forward(layers[:-1], files)
            return self._backward(layers, loss, files, states)

    def predict(self, layers: Sequence[Layer], x: str) -> Tensor:
        """The last layer's rows (N, *) of all nodes, in the order of the graph, without gradients. Arguments as of step."""
        layers = _checked(layers)
        with self._files(x) as files:
            self._forward(layers, files)
            rows = files.rows[len(layers)]
            out = torch.empty(self.num_nodes, *rows.shape, dtype=rows.dtype)
            for part in self._parts:
                out[part.nodes] = rows.read_own(part)
            return out

    def _forward(self, layers: list[Layer], files: _Files) -> dict[tuple[int, int], Tensor]:
        """Writes the rows after each layer. Returns the state of random numbers before each of its parts."""
        states = {}
        for number, layer in enumerate(layers):
            for place, part in enumerate(self._parts):
                states[number, place] = torch.get_rng_state()
                with torch.no_grad():
                    files.write(number + 1, place, self._run(layer, number, part, files.read(number, place)))
        return states

    def _backward(self, layers: list[Layer], loss: Any, files: _Files, states: Any) -> Tensor:
        total, has_gradient = torch.zeros(()), False
        for number in reversed(range(len(layers))):
            for place, part in enumerate(self._parts):
                rows = files.read(number, place)
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
                        out.backward(files.grads[number + 1].read_sum(place).to(out.dtype))
                if rows.grad is not None:
                    files.write_gradient(number, place, rows.grad)
            if not has_gradient:
                raise ValueError(
                    "loss has no gradient in any part; the last layer's rows, or what loss made of them, need one"
                )
            files.drop(number + 1)
        return total

    def _run(self, layer: Layer, number: int, part: Part, rows: Tensor) -> Tensor:
        out = layer(part.graph, (rows, rows[: part.num_own]))
        if not isinstance(out, Tensor) or out.dim() == 0 or out.shape[0] != part.num_own:
            what = f"shape {tuple(out.shape)}" if isinstance(out, Tensor) else f"type {type(out).__name__}"
            raise ValueError(f"layers[{number}] returned {what}; expected a tensor ({part.num_own}, *)")
        return out

    def _files(self, name: str) -> _Files:
        stores = [open_features(self._folder, self._description, number, name) for number in range(self.num_parts)]
        return _Files(self._parts, stores, self._scratch)

    def __repr__(self) -> str:
        return f"Streamed({self.num_parts} parts, num_nodes={self.num_nodes}, num_edges={self.num_edges})"


class _Files:
    """Rows of all nodes by the layer that reads them, and their gradients. The files go when the context ends.

    features: of each part's own nodes.
    """

    def __init__(self, parts: list[Part], features: list[FeatureStore], scratch: Any) -> None:
        self._parts, self._features, self._scratch = parts, features, scratch
        self.rows: dict[int, Blocks] = {}
        self.grads: dict[int, Blocks] = {}

    def __enter__(self) -> _Files:
        self._folder = tempfile.TemporaryDirectory(dir=self._scratch)
        return self

    def __exit__(self, *exception: object) -> None:
        for blocks in (*self.rows.values(), *self.grads.values()):
            blocks.close()
        self._folder.cleanup()

    def read(self, layer: int, number: int) -> Tensor:
        """The rows (num_src, *) of a part's sources before a layer."""
        self._read_ahead(layer, (number + 1) % len(self._parts))
        part = self._parts[number]
        if layer:
            return self.rows[layer].read(part)
        own = self._features[number]
        rows = torch.empty(part.num_src, *own.shape[1:], dtype=own.dtype)
        own.gather(torch.arange(part.num_own), rows[: part.num_own])
        for owner, store in enumerate(self._features):
            ghosts = self._parts[owner].sends[number]
            if ghosts.numel():
                first = part.ghosts_of(owner) - part.first
                store.gather(ghosts, rows[first : first + ghosts.shape[0]])
        return rows

    def _read_ahead(self, layer: int, number: int) -> None:
        if layer:
            self.rows[layer].read_ahead(self._parts[number])
        else:
            self._features[number].read_ahead()
        if layer + 1 in self.grads:
            self.grads[layer + 1].read_ahead(self._parts[number])

    def write(self, layer: int, number: int, rows: Tensor) -> None:
        made = self.rows.get(layer) or self.rows.setdefault(layer, self._made(f"rows-{layer}", rows))
        if rows.shape[1:] != made.shape or rows.dtype != made.dtype:
            expected = f"{made.dtype} {(rows.shape[0], *made.shape)}"
            raise ValueError(
                f"layers[{layer - 1}] returned {rows.dtype} {tuple(rows.shape)}; expected {expected}, as for the first part"
            )
        made.write_own(number, rows)

    def write_gradient(self, layer: int, number: int, grad: Tensor) -> None:
        made = self.grads.get(layer) or self.grads.setdefault(layer, self._made(f"gradient-{layer}", grad))
        made.write(self._parts[number], grad)

    def drop(self, layer: int) -> None:
        """Rows and gradients that were read for the last time."""
        for files in (self.rows, self.grads):
            if layer in files:
                files.pop(layer).close()

    def _made(self, name: str, like: Tensor) -> Blocks:
        return Blocks(Path(self._folder.name) / name, self._parts, like.shape[1:], like.dtype)


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
