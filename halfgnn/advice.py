"""Whether halfgnn pays for a model: its training step as it is, under the drop-in, and with attention fused, side by side."""

from __future__ import annotations

import contextlib
import copy
import importlib
import math
import resource
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from .common.arguments import check_number
from .common.dense import TimedProducts
from .common.malloc import seconds_per_fresh_page
from .common.precision import HALF
from .common.products import multiplies_slowly
from .common.saved import SavedMemory
from .drop_in.switch import Switch

SEED = 0  # of each step's random numbers


@dataclass(frozen=True)
class Setting:
    """A way to run a step. dtype: of autocast; None: as the model is."""

    name: str
    dtype: torch.dtype | None
    options: dict[str, Any] | None  # of accelerate(); None: without the drop-in

    @property
    def type_name(self) -> str:
        return "as it is" if self.dtype is None else str(self.dtype).removeprefix("torch.")


@dataclass
class Measured:
    """A setting's step: the median of its milliseconds, their spread (the distance between their quartiles), and of the median the
    milliseconds in which the system cleared fresh pages (on a CPU, estimated from their number), those of PyTorch's dense products
    (on a CPU, without the drop-in), what its forward saves for its backward in MiB, its loss, and the calls that the drop-in took
    and left, as stats() of halfgnn.pyg and halfgnn.dgl says them. error: why it did not run."""

    setting: Setting
    ms: float | None = None
    spread_ms: float = 0.0
    fresh_ms: float | None = None
    products_ms: float | None = None
    kept_mib: float | None = None
    loss: float | None = None
    stats: dict[str, Any] = field(default_factory=dict)
    error: str = ""
    cause: Exception | None = field(default=None, repr=False)


@dataclass
class Advice:
    """What :func:`advise` measured. Printed, it is a table and the reasons behind it."""

    library: str
    measured: list[Measured]
    device: str = "cpu"  # type of the model's
    own: tuple[str, ...] = ()  # modules of halfgnn in the model, which run on it in every setting

    def baseline(self, setting: Setting) -> Measured:
        """The same type without the drop-in."""
        return next(m for m in self.measured if m.setting.options is None and m.setting.dtype == setting.dtype)

    @property
    def best(self) -> Measured:
        """The fastest setting. Of settings of halfgnn that are as fast within the spread, the one with the fewest options."""
        found = [m for m in self.measured if m.ms is not None]
        fastest = min(found, key=lambda m: m.ms or 0.0)
        near = [m for m in found if _is_near(m, fastest)]
        return min(near, key=lambda m: len(m.setting.options or {})) if near else fastest

    def __str__(self) -> str:
        lines = [
            f"{'setting':{_WIDTH}} {'ms':>9} {'spread':>7} {'faster':>8} {'kept, MiB':>10} {'loss':>12} {'its change':>11}"
        ]
        lines += [self._line(m) for m in self.measured]
        return "\n".join([*lines, "", *self._reasons(), "", self._verdict()])

    def _line(self, m: Measured) -> str:
        name = f"{m.setting.name}, {m.setting.type_name}"
        if m.ms is None or m.loss is None:
            return f"{name:{_WIDTH}} {m.error}"
        plain, spread = self.baseline(m.setting), f"{100 * m.spread_ms / m.ms:.0f} %"
        if m is plain or plain.ms is None or plain.loss is None:
            return f"{name:{_WIDTH}} {m.ms:9.3g} {spread:>7} {'':8} {m.kept_mib:10.1f} {m.loss:12.6g}"
        change = abs(m.loss - plain.loss) / max(abs(plain.loss), 1e-30)
        faster = f"{plain.ms / m.ms:.2f} x"
        return f"{name:{_WIDTH}} {m.ms:9.3g} {spread:>7} {faster:>8} {m.kept_mib:10.1f} {m.loss:12.6g} {change:11.1e}"

    def _reasons(self) -> Iterator[str]:
        best = self.best
        stats = best.stats or next((m.stats for m in self.measured if m.setting.options is not None and m.stats), {})
        yield from reasons(stats, self.library)
        plain = self.baseline(best.setting)
        if plain.ms is not None and plain.products_ms is not None and plain.products_ms > _MOST * plain.ms:
            share = min(plain.products_ms / plain.ms, 1.0)
            yield (
                f"PyTorch's dense products (linear layers, networks on edges, dense attention) take {100 * share:.0f} % of "
                f"{self.library}'s step: halfgnn runs most of them as they are, which limits what it can gain to {1 / share:.1f} x"
            )
        if best.setting.options is None or best.ms is None or best.fresh_ms is None:
            return
        if best.fresh_ms > _MUCH * best.ms:
            times = f"{best.fresh_ms:.3g} of the {best.ms:.3g} ms"
            yield f"try halfgnn.keep_memory(): about {times} of the fastest setting are fresh pages"

    def _verdict(self) -> str:
        """The fastest way, by how much, and the lines that turn it on."""
        best, plain = self.best, self.baseline(self.best.setting)
        if plain.ms is None:  # it does not run in this type
            plain = min((m for m in self.measured if m.setting.options is None), key=lambda m: m.ms or math.inf)
        if best.setting.options is None or plain.ms is None or best.ms is None:
            if self.own:
                return f"patch() does not make this model faster here: {', '.join(self.own)} run on halfgnn already."
            return "halfgnn does not make this model faster here."
        gains = [self._gain(best, plain)]
        first = self.measured[0]
        if first not in (plain, best) and first.setting.options is None and first.ms is not None:
            gains.append(self._gain(best, first))
        text = f"Fastest: patch({_arguments(best.setting)}), {best.setting.type_name}: {', '.join(gains)}."
        if plain.ms - best.ms < max(plain.spread_ms, best.spread_ms):
            text += " The difference is within the spread of the steps: other runs may differ."
        return "\n".join([text, "", *self._program(best.setting)])

    def _gain(self, best: Measured, plain: Measured) -> str:
        assert best.ms is not None and plain.ms is not None
        return f"{plain.ms / best.ms:.2f} x of {plain.setting.name}, {plain.setting.type_name}"

    def _program(self, setting: Setting) -> Iterator[str]:
        """The lines that turn a setting on."""
        module = f"halfgnn.{_MODULES[self.library]}"
        if setting.dtype is not None:
            yield "    import torch"
        yield f"    import {module}"
        yield f"    {module}.patch({_arguments(setting)})"
        if setting.dtype is not None:
            yield f'    with torch.autocast("{self.device}", dtype={setting.dtype}):  # around the forward and the loss'
            yield "        ..."

    def plot(self, path: str) -> None:
        """A picture of the times and of what is kept, in the format that the name of the file ends with.

        Raises:
            ImportError: matplotlib is not installed.
        """
        found = [m for m in self.measured if m.ms is not None]
        names = [f"{m.setting.name}, {m.setting.type_name}" for m in found]
        panels = {
            "ms per step": [m.ms or 0.0 for m in found],
            "MiB saved for the backward": [m.kept_mib or 0.0 for m in found],
        }
        draw(path, names, [m.setting.options is not None for m in found], panels)


def _arguments(setting: Setting) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in (setting.options or {}).items())


def _is_near(m: Measured, fastest: Measured) -> bool:
    """Whether both are settings of halfgnn in one type, of which steps take as long within their spread."""
    if m.setting.options is None or fastest.setting.options is None or m.setting.dtype != fastest.setting.dtype:
        return False
    return (m.ms or 0.0) - (fastest.ms or 0.0) <= max(m.spread_ms, fastest.spread_ms)


STYLE: dict[Any, Any] = {
    "font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "axes.axisbelow": True, "svg.hashsalt": "halfgnn",
}  # fmt: skip
OURS, THEIRS, GRID = "#0072B2", "#D55E00", "#dddddd"  # of Okabe and Ito, whom colour-blind readers can tell apart


def draw(path: str, names: Sequence[str], ours: Sequence[bool], panels: dict[str, list[float]]) -> None:
    """A bar for each way to run, from top to bottom, in a panel for each quantity. ours: which of them use halfgnn."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(f"the picture {path} needs matplotlib (pip install matplotlib): {error}") from error

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(9, 0.35 * len(names) + 0.9), layout="constrained")
        row = figure.subplots(1, len(panels), sharey=True)
        for axes, (label, values) in zip(row, panels.items()):
            bars = axes.barh(names, values, color=[OURS if mine else THEIRS for mine in ours])
            axes.bar_label(bars, fmt="%.3g", padding=2)
            axes.set_xlabel(label)
            axes.grid(axis="x", color=GRID, linewidth=0.6)
            axes.margins(x=0.12)
        row[0].invert_yaxis()  # of all panels
        figure.savefig(path)


# ---- why -----------------------------------------------------------------------------------------------------------------------


def reasons(stats: dict[str, Any], library: str) -> Iterator[str]:
    """What stats() of a drop-in says, in lines: what ran on halfgnn, what did not and why, and what to try."""
    routed = ", ".join(f"{name} {calls}" for name, calls in stats.get("routed", {}).items())
    yield f"computed by halfgnn: {routed or 'nothing'}"
    for name, counts in stats.get("fell_back", {}).items():
        kind, _, what = name.rpartition(":")
        outcome = _OUTCOMES.get(kind)
        for reason, calls in counts.items():
            yield f"{outcome}: {what} {calls}: {reason}" if outcome else f"left to {library}: {name} {calls}: {reason}"
    for line, read in stats.get("materialized", {}).items():
        yield f"messages materialized at {line}, by {read['read']}: {read['calls']} times, {1e3 * read['seconds']:.1f} ms"
    for option, why in stats.get("advice", {}).items():
        yield f"try {option}: {why}"


# What fell_back counts under such names was not left to the library as a whole: its parts are routed or counted one by one.
_OUTCOMES = {
    "fused": "not one fused operator, but step by step (steps are counted under their own names)",
    "forward": "not halfgnn's forward, but the module's own steps (steps are counted under their own names)",
    "message": "materialized in memory, then reduced",
}


# ---- the library of a model ----------------------------------------------------------------------------------------------------

_MODULES = {"torch_geometric": "pyg", "DGL": "dgl"}
_WIDTH = 36  # of the names of settings
_MOST = 0.5  # of a step: dense products that limit what can be gained
_MUCH = 0.1  # of a step: fresh pages that are worth a word
_TURN = 0.1  # seconds of steps of a setting, at least, before the next one takes its turn


def _library_of(model: nn.Module, inputs: Sequence[Any]) -> str:
    """DGL if its graphs or layers are there and torch_geometric's are not, else torch_geometric."""
    names = {base.__module__.partition(".")[0] for x in inputs for base in type(x).__mro__}
    names |= {base.__module__.partition(".")[0] for layer in model.modules() for base in type(layer).__mro__}
    return "DGL" if "dgl" in names and "torch_geometric" not in names else "torch_geometric"


def _settings(library: str, dtypes: Sequence[torch.dtype | None], device: torch.device) -> Iterator[Setting]:
    for dtype in dtypes:
        yield Setting(library, dtype, None)
        yield Setting("halfgnn", dtype, {})
        yield Setting("halfgnn, fuse=True", dtype, {"fuse": True})
        if dtype is not None and device.type == "cpu" and multiplies_slowly(dtype):
            yield Setting("the same, products='fp32'", dtype, {"fuse": True, "products": "fp32"})


# ---- measuring -----------------------------------------------------------------------------------------------------------------


class _Step:
    """Forward and backward of a model in a setting."""

    def __init__(
        self,
        model: nn.Module,
        inputs: Sequence[Any],
        named: dict[str, Any],
        loss: Callable[[Any], Tensor],
        drop_in: ModuleType,
    ) -> None:
        self.model, self.inputs, self.named, self.loss, self.drop_in = model, inputs, named, loss, drop_in
        self.device = next((p.device for p in model.parameters()), torch.device("cpu"))

    def drop_in_of(self, setting: Setting) -> contextlib.AbstractContextManager[None]:
        """A block with the drop-in of a setting. To enter it takes longer than a step of a small model."""
        return contextlib.nullcontext() if setting.options is None else self.drop_in.accelerate(**setting.options)

    def forward(self, setting: Setting) -> Tensor:
        torch.manual_seed(SEED)
        is_cast = setting.dtype is not None
        with torch.autocast(self.device.type, setting.dtype) if is_cast else contextlib.nullcontext():
            return self.loss(self.model(*self.inputs, **self.named))

    def __call__(self, setting: Setting) -> float:
        """The loss of a step, under the drop-in that is on."""
        loss = self.forward(setting)
        loss.backward()
        self.model.zero_grad(set_to_none=True)
        return loss.item()  # which waits for a GPU

    def turn(self, setting: Setting, at_least: float) -> Iterator[tuple[float, int]]:
        """Seconds and fresh pages of steps in a row. One step before them is not timed: it finds what other settings left."""
        with self.drop_in_of(setting):
            self(setting)
            total = 0.0
            while total < at_least:
                pages, start = _fresh_pages(), time.perf_counter()
                self(setting)
                seconds = time.perf_counter() - start
                total += seconds
                yield seconds, _fresh_pages() - pages

    def kept_mib(self, setting: Setting) -> float:
        with SavedMemory(at_end=True) as kept:
            loss = self.forward(setting)
        del loss
        return kept.mebibytes


def _products_ms(step: _Step, setting: Setting) -> float | None:
    """The milliseconds of dense products in a step without the drop-in; None where they are not known, as on a GPU."""
    if setting.options is not None or step.device.type != "cpu":
        return None
    try:
        with step.drop_in_of(setting), TimedProducts() as products:
            step(setting)
    except Exception:  # of a program that runs under no mode
        return None
    return 1e3 * products.seconds


def _fresh_pages() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def _enter(step: _Step, setting: Setting) -> Measured:
    """Runs a setting twice: first uses build graphs that later steps find."""
    measured = Measured(setting)
    try:
        with step.drop_in_of(setting):
            step(setting)
            step.drop_in.reset_stats()
            measured.loss = step(setting)
            if setting.options is not None:
                measured.stats = step.drop_in.stats()
            measured.kept_mib = step.kept_mib(setting)
    except Exception as error:  # of the model: no fp16 on the CPU, for example
        text = str(error).partition("\n")[0]
        measured.error, measured.cause = f"does not run: {type(error).__name__}: {text[:80]}", error
    return measured


def _square(output: Any) -> Tensor:
    """A loss of any output: the mean of the squares of its floating-point tensors."""
    parts = (
        list(output.values()) if isinstance(output, dict) else output if isinstance(output, (tuple, list)) else [output]
    )
    found = [part.float().square().mean() for part in parts if isinstance(part, Tensor) and part.is_floating_point()]
    if not found:
        raise ValueError(
            f"the model returned {type(output).__name__}; expected floating-point tensors, or a loss(output)"
        )
    return torch.stack(found).sum()


def advise(
    model: nn.Module,
    *inputs: Any,
    loss: Callable[[Any], Tensor] | None = None,
    dtypes: Sequence[torch.dtype | None] = (None, torch.bfloat16),
    seconds: float = 1.0,
    progress: bool = True,
    **named: Any,
) -> Advice:
    """Measures a training step of a model of torch_geometric or DGL, as it is and under the drop-in.

    What patch() and accelerate() have turned on, in halfgnn.pyg and halfgnn.dgl, is off meanwhile and then on again.

    Args:
        model: in training mode or not. Its parameters and buffers are as before afterwards, and its gradients are None.
        inputs, named: what model() takes.
        loss: of the model's output; by default the mean of its squares.
        dtypes: of autocast, one after the other: torch.bfloat16, torch.float16; None: without autocast.
        seconds: of timed steps per setting, in at least three turns of at most a tenth of a second, or of one step.
        progress: show a bar, if tqdm is installed.

    Returns:
        Advice: print it. ``.measured`` has the numbers, ``.best`` the fastest setting, ``.plot(path)`` draws them.

    Raises:
        TypeError: model is not a module, loss not a function, dtypes not a list. ValueError: the model runs in no setting, or
            returns no floating-point tensor and loss is None; a dtype that autocast does not have; seconds is not positive.
    """
    _check_arguments(model, loss, dtypes, seconds)
    library = _library_of(model, [*inputs, *named.values()])
    step = _Step(model, inputs, named, loss or _square, importlib.import_module(f"halfgnn.{_MODULES[library]}"))
    before = {name: copy.deepcopy(buffer) for name, buffer in model.named_buffers()}
    settings = list(_settings(library, dtypes, step.device))
    rng = torch.random.fork_rng(devices=[step.device] if step.device.type == "cuda" else [])
    with Switch.all_suspended(), rng, _bar(progress, 2 * len(settings)) as advance:
        measured = []
        for setting in settings:
            measured.append(_enter(step, setting))
            advance()
        if all(m.error for m in measured):
            cause = measured[0].cause
            raise ValueError(f"the model does not run: {type(cause).__name__}: {cause}") from cause
        _time([m for m in measured if not m.error], step, seconds, advance)
    for name, buffer in model.named_buffers():
        buffer.copy_(before[name])
    own = {type(layer).__name__: None for layer in model.modules() if type(layer).__module__.startswith("halfgnn.")}
    return Advice(library, measured, step.device.type, tuple(own))


def _check_arguments(model: Any, loss: Any, dtypes: Any, seconds: Any) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"model is {type(model).__name__}; expected a torch.nn.Module")
    if loss is not None and not callable(loss):
        raise TypeError(f"loss is a {type(loss).__name__}; expected a function of the model's output")
    if not isinstance(dtypes, (tuple, list)):
        raise TypeError(f"dtypes is {dtypes!r}; expected a tuple such as (None, torch.bfloat16)")
    if not dtypes or any(dtype not in (None, *HALF) for dtype in dtypes):
        raise ValueError(f"dtypes is {dtypes!r}; expected some of None, torch.bfloat16 and torch.float16")
    if not check_number(seconds, "seconds") > 0:
        raise ValueError(f"seconds is {seconds}; expected a positive number")


def _time(measured: list[Measured], step: _Step, seconds: float, advance: Callable[[], None]) -> None:
    """Settings take turns, so that other work on the machine slows all of them."""
    taken: list[list[tuple[float, int]]] = [[] for _ in measured]  # seconds and fresh pages of each step
    turn = 0
    while turn < 3 or (sum(s for steps in taken for s, _ in steps) < seconds * len(measured) and turn < 1000):
        for m, steps in zip(measured, taken):
            steps.extend(step.turn(m.setting, min(_TURN, seconds / 3)))
        turn += 1
    per_page = seconds_per_fresh_page()
    for m, steps in zip(measured, taken):
        times, pages = zip(*steps)
        low, median, high = statistics.quantiles(times, n=4)
        m.ms, m.spread_ms = 1e3 * median, 1e3 * (high - low)
        m.products_ms = _products_ms(step, m.setting)
        m.fresh_ms = 1e3 * per_page * statistics.median(pages) if step.device.type == "cpu" else None
        advance()


@contextlib.contextmanager
def _bar(progress: bool, total: int) -> Iterator[Callable[[], None]]:
    try:
        from tqdm import tqdm
    except ImportError:
        progress = False
    if not progress:
        yield lambda: None
        return
    with tqdm(total=total, desc="advise", leave=False) as bar:
        yield lambda: bar.update() and None
