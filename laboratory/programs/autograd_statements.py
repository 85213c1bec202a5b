"""Statements of random message functions that ask for gradients, hide from autograd, or hand messages to what is beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .draw import Draw

_FUNCTIONS = (
    "torch.sin",
    "lambda a: a * a",
    "lambda a: a.sigmoid() * 2",
    "lambda a: a.clone().mul_(a)",
    "lambda a: a + e.mean()",
)


def _gradient(d: Draw) -> None:
    """That of a message with regard to one that it was made of, or is none of."""
    of, to = d.recent(), d.recent() if d.happens(0.4) else d.random.choice(("x_j", "x_j", "x_i"))
    d.add(f"gradient({of}, {to})", d.shapes[to])


def _hook(d: Draw) -> None:
    """Before or after the message is used: other statements come before and after."""
    name = d.recent()
    d.do(d.random.choice((f"doubled({name})", f"seen({name}, '{name}')", f"retained({name})")))


def _checkpoint(d: Draw) -> None:
    name, function = d.recent(), d.random.choice(_FUNCTIONS)
    if d.happens(0.5):
        d.add(f"checkpoint({function}, {name}, use_reentrant={d.happens(0.3)})", d.shapes[name])
    else:
        other = d.recent(lambda shape: shape == d.shapes[name])
        code = d.random.choice(("a * b", "(a * b).tanh()", "(a + b).relu() * a", "torch.where(a > b, a, b)"))
        d.add(f"checkpoint(lambda a, b: {code}, {name}, {other}, use_reentrant={d.happens(0.3)})", d.shapes[name])


def _function(d: Draw) -> None:
    """Autograd functions of the program's own."""
    name = d.recent()
    function = d.random.choice(("Straight", "Reversed", "Written"))
    d.program.has_ties |= function == "Written"
    d.add(f"{function}.apply({name})", d.shapes[name])


def _transform(d: Draw) -> None:
    name = d.recent(lambda shape: len(shape) > 1)
    other = d.recent(lambda shape: shape == d.shapes[name])
    code = d.random.choice(
        (
            f"torch.vmap(torch.sin)({name})", f"torch.vmap(lambda a: a * {name}[0])({name})",
            f"torch.vmap(torch.mul)({name}, {other})",
            f"torch.vmap(torch.tanh, in_dims=1, out_dims=1)({name})", f"torch.func.grad(lambda a: (a * a * {other}).sum())({name})",
            f"torch.func.grad(lambda a: (a * {name}).sum())({other})", f"torch.func.vjp(torch.sin, {name})[1]({other})[0]",
            f"torch.func.jvp(torch.sin, ({name},), ({other},))[1]",
        )
    )  # fmt: skip
    d.add(code, d.shapes[name])


def _copy(d: Draw) -> None:
    name = d.recent()
    codes = (
        f"copy.deepcopy({name}.detach())",
        f"copy.copy({name})",
        f"pickled({name}.detach())",
        f"copy.deepcopy({name})",
    )
    d.add(d.random.choice(codes), d.shapes[name])


def _keep(d: Draw) -> None:
    """For the program around the message, which reads it after it was reduced."""
    name = d.recent()
    d.do(f"kept.append({name})")


def _block(d: Draw) -> None:
    """Statements in a block that sets whether gradients are recorded, or autocast."""
    if d.indent:
        return
    blocks = ("torch.no_grad()", "torch.enable_grad()", "torch.set_grad_enabled(False)")
    if d.program.precision == "autocast":
        blocks += ("torch.autocast('cpu', dtype=torch.bfloat16)", "torch.autocast('cpu', enabled=False)")
    d.do(f"with {d.random.choice(blocks)}:")
    d.do("    pass")
    d.indent = "    "
    for _ in range(d.random.randint(1, 2)):
        d.statement()
    d.indent = ""


def _dropout(d: Draw) -> None:
    name = d.recent()
    d.program.has_ties = True  # zeros
    d.add(f"torch.nn.functional.dropout({name}, {d.random.choice((0.0, 0.5))}, {d.happens(0.7)})", d.shapes[name])


STATEMENTS = (
    *[_gradient] * 3, *[_hook] * 4, *[_checkpoint] * 2, *[_function] * 2, *[_transform] * 2, _copy, *[_keep] * 3, *[_block] * 3,
    _dropout,
)  # fmt: skip
