"""Statements of random programs around a message function: how it is called, how often, and what is written in between."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .draw import Draw

_AFTER = ("out[..., 0] = 5", "out.relu_()", "out.view(-1)", "out += 1", "out = out * out.mean()", "out = out.clone()")
# Of features that an operator has made.
_WRITES = (
    "x.add_(1)",
    "x.mul_(2)",
    "x[..., 0] = 1",
    "x.detach().mul_(2)",
    "e.mul_(2)",
    "x_dst.add_(1)",
    "x.relu_()",
    "x += x_dst.mean()",
)
_UPDATES = (
    "x_j", "x_i * x_j", "x_j - x_i", "e * x_j", "softmax(x_i * x_j, index, num_nodes=num_nodes) * e", "(x_j + e).relu()",
    "x_j.mul_(2)",
)  # fmt: skip


def draw(d: Draw) -> None:
    program, lines = d.program, []
    plain = d.shapes[program.result] == d.shapes["x_j"]  # so that the results are features too
    if d.happens(0.1):
        lines.append(d.random.choice(_WRITES))
    if program.style == "propagate" and not program.batch and d.happens(0.1):
        program.update = d.random.choice(_UPDATES)
        lines.append("e = update(x, x_dst, e)")
        if d.happens(0.3):
            lines.append(d.random.choice(_WRITES))
    lines.append(_call(d, "x", "x_dst"))
    for _ in range(d.random.choice((0, 0, 0, 1, 1, 2))):
        lines.append(_next(d, plain))
    if d.happens(0.1) and not program.batch:
        lines.append("out = out.sum(0)")
    program.around = lines
    source = program.source()
    program.backward = "use_reentrant=True" in source or d.happens(0.15)
    program.ends_before = d.random.choice((None, None, None, "backward", "read" if "kept" in source else None))


def _call(d: Draw, x: str, x_dst: str) -> str:
    if d.happens(0.1):
        return f"out = checkpoint(step, {x}, {x_dst}, e, use_reentrant={d.happens(0.3)})"
    return f"out = step({x}, {x_dst}, e)"


def _next(d: Draw, plain: bool) -> str:
    program = d.program
    has_kept = any("kept.append" in line for line in program.statements)
    choices = [d.random.choice(_AFTER), d.random.choice(_WRITES)]
    if plain:
        destination = "x_dst" if program.is_bipartite else "x"
        choices += [
            f"out += {destination}",
            f"out.add_({destination})",
            f"{destination} += out",
            f"out = {destination} + out",
        ]
        choices += [_call(d, *(("x", "out") if program.is_bipartite else ("out", "out"))), _call(d, "x", "x_dst")] * 2
        if program.update == "e" and d.happens(0.5):
            choices.append(_call(d, "x.detach()", "x_dst"))
        if has_kept and program.num_edges >= max(program.num_nodes) and not program.batch:
            choices += ["out = out.sum() + features(kept[-1], step, x, x_dst, e)"] * 4
    if has_kept:
        choices += [
            "out = out * kept[-1].sum()",
            "kept[-1].mul_(2)",
            "out = out + kept[0].mean()",
            "retained(kept[-1])",
        ] * 2
        choices += [
            "doubled(kept[0])",
            "out = out * kept[-1].detach().tanh().mean()",
            "out = out + gradient(out, kept[-1]).mean()",
        ]
    return d.random.choice(choices)
