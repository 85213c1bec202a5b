"""index_add, scatter_add and scatter_reduce of PyTorch, as programs call them, under halfgnn.pyg.patch()."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from torch_geometric import utils

import halfgnn.pyg
from tests import support
from tests.pyg.test_patch_indices import INDICES, ROWS, SEGMENTS
from tests.pyg.test_patch_modules import assert_same, randn

pytestmark = pytest.mark.skipif(not support.supports("cpu", torch.float64), reason="needs float64")
SHAPES = [(5,), (2, 3)]  # of a row


def expanded(index, src):
    return index.long().view(-1, *[1] * (src.dim() - 1)).expand_as(src)


# name -> f(out, index, src): the rows of src added to those of out
CALLS = {
    "index_add": lambda out, index, src: out.index_add(0, index, src),
    "index_add_": lambda out, index, src: out.clone().index_add_(0, index, src),
    "index_add by name": lambda out, index, src: out.index_add(dim=-src.dim(), index=index, source=src),
    "torch.index_add": lambda out, index, src: torch.index_add(out, 0, index, src),
    "torch.index_add by name": lambda out, index, src: torch.index_add(input=out, dim=0, index=index, source=src),
    "scatter_add": lambda out, index, src: out.scatter_add(0, expanded(index, src), src),
    "scatter_add_": lambda out, index, src: out.clone().scatter_add_(0, expanded(index, src), src),
    "torch.scatter_add": lambda out, index, src: torch.scatter_add(out, 0, expanded(index, src), src),
    "scatter_reduce": lambda out, index, src: out.scatter_reduce(0, expanded(index, src), src, "sum"),
    "scatter_reduce_": lambda out, index, src: out.clone().scatter_reduce_(0, expanded(index, src), src, reduce="sum"),
    "torch.scatter_reduce": lambda out, index, src: torch.scatter_reduce(out, 0, expanded(index, src), src, "sum"),
}
# Those of rows that nobody differentiates by.
EXCLUSIVE = {
    f"scatter_reduce{suffix} {reduce}": lambda out, index, src, suffix=suffix, reduce=reduce: getattr(
        out.detach().clone(), f"scatter_reduce{suffix}"
    )(0, expanded(index, src), src, reduce, include_self=False)
    for suffix in ("", "_")
    for reduce in ("sum", "mean")
}


def routed():
    return sum(halfgnn.pyg.stats()["routed"].values())


def results(call, index, row):
    num_rows = SEGMENTS + 2 if int(index.max()) < SEGMENTS else ROWS
    src, out = (randn(n, *row, seed=n).requires_grad_() for n in (ROWS, num_rows))
    total = call(out, index, src)
    inputs = [src, out] if total.grad_fn is not None and call not in EXCLUSIVE.values() else [src]
    return [total, *torch.autograd.grad((randn(*total.shape, seed=4) * total.pow(2)).sum(), inputs)]


@pytest.mark.parametrize("row", SHAPES, ids=str)
@pytest.mark.parametrize("name", INDICES)
@pytest.mark.parametrize("call", [*CALLS, *EXCLUSIVE])
def test_sums_and_gradients(call, name, row):
    function, index = {**CALLS, **EXCLUSIVE}[call], INDICES[name]
    if name == "expanded":
        index = index.clone()  # else scatter's index has rows of one line, and PyTorch's gradient is wrong for int32
    expected = results(function, index, row)
    with halfgnn.pyg.accelerate():
        for calls in (1, 2):  # the second with the graph that was kept
            assert_same(results(function, index, row), expected)
            assert routed() == calls or index.dtype is torch.int32, "an int32 index is copied for scatter"


def test_an_index_is_sorted_once_whatever_reads_it(monkeypatch):
    from halfgnn.graphs_by_tensor import index as _index

    made, make = [], _index._make
    monkeypatch.setattr(_index, "_make", lambda *args: made.append(1) or make(*args))
    index, x = INDICES["unsorted"].clone(), randn(SEGMENTS, 5, seed=1).requires_grad_()
    with halfgnn.pyg.accelerate():
        messages = x[index].tanh()
        total = torch.zeros_like(x).index_add_(0, index, messages)
        total = total + torch.zeros_like(x).scatter_add_(0, index[:, None].expand(-1, 5), messages)
        total = total + utils.scatter(messages, index, 0, SEGMENTS)
        total.sum().backward()
    assert len(made) == 1


LEFT = {
    "alpha": lambda out, index, src: out.index_add(0, index, src, alpha=2),
    "another dimension": lambda out, index, src: out.t().index_add(1, index, src.t()),
    "other index per column": lambda out, index, src: out.scatter_add(0, expanded(index, src).contiguous(), src),
    "fewer columns": lambda out, index, src: out.scatter_add(0, expanded(index, src)[:, :4], src),
    "fewer rows": lambda out, index, src: out.scatter_add(0, expanded(index, src)[:9], src),
    "mean with what is there": lambda out, index, src: out.scatter_reduce(0, expanded(index, src), src, "mean"),
    "maximum": lambda out, index, src: out.scatter_reduce(0, expanded(index, src), src, "amax"),
    "sum that replaces": lambda out, index, src: out.requires_grad_().scatter_reduce(
        0, expanded(index, src), src, "sum", include_self=False
    ),
}


@pytest.mark.parametrize("name", LEFT)
def test_other_calls_are_pytorchs(name):
    arguments = randn(SEGMENTS, 5, seed=1), INDICES["unsorted"], randn(ROWS, 5, seed=2)
    expected = LEFT[name](*arguments)
    with halfgnn.pyg.accelerate():
        assert torch.equal(LEFT[name](*arguments), expected)
    assert routed() == 0


def test_in_place_rules_of_autograd_hold():
    index, src = INDICES["unsorted"], randn(ROWS, 5, seed=1).requires_grad_()
    leaf = torch.zeros(SEGMENTS, 5, dtype=src.dtype, requires_grad=True)
    with halfgnn.pyg.accelerate():
        with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
            leaf.index_add_(0, index, src)
        out = torch.zeros(SEGMENTS, 5, dtype=src.dtype)
        version, view = out._version, out.view(-1)
        assert out.index_add_(0, index, src) is out and out._version == version + 1
        assert view.requires_grad and torch.equal(view, out.view(-1))
    assert routed() >= 1


@pytest.mark.parametrize("call", ["index_add_", "scatter_add_", "scatter_reduce_"])
def test_wrong_calls_raise_pytorchs_errors(call):
    src, out = randn(ROWS, 5, seed=1), torch.zeros(SEGMENTS, 5, dtype=torch.float64)
    beyond = INDICES["unsorted"].clone()
    beyond[3] = SEGMENTS
    wrong = [(out, beyond, src), (out, INDICES["unsorted"], src.float()), (out[:, :4], INDICES["unsorted"], src)]
    for arguments in wrong[: 2 if call != "index_add_" else 3]:
        errors = []
        for way in (halfgnn.pyg.accelerate, contextlib.nullcontext):
            with way(), pytest.raises((RuntimeError, IndexError)) as error:
                CALLS[call](*arguments)
            errors.append(str(error.value))
        assert errors[0] == errors[1]
    assert routed() == 0


@pytest.mark.parametrize("call", EXCLUSIVE)
def test_scatters_index_may_be_int32(call):
    src, out, index = randn(ROWS, 5, seed=1), randn(SEGMENTS, 5, seed=2), INDICES["int32"].clone()
    ids = index[:, None].expand(-1, 5)
    reduce, method = call.split()[1], call.split()[0]
    expected = getattr(out.clone(), method)(0, ids.long(), src, reduce, include_self=False)
    with halfgnn.pyg.accelerate():
        assert_same([getattr(out.clone(), method)(0, ids, src, reduce, include_self=False)], [expected])
    assert routed() == 1


def test_half_sums_are_rounded_once():
    src, index = torch.full((4096, 8), 0.125, dtype=torch.bfloat16), torch.zeros(4096, dtype=torch.int64)
    with halfgnn.pyg.accelerate():
        out = torch.zeros(1, 8, dtype=torch.bfloat16).index_add_(0, index, src)
    assert (out == 512).all(), "one by one they would stay at 32"


def test_calls_of_torch_geometric_are_asked_once():
    """What utils.scatter leaves to torch_geometric is not routed from inside it."""
    src = randn(ROWS, 5, seed=1)
    with halfgnn.pyg.accelerate():
        utils.scatter(src, INDICES["unsorted"], 0, SEGMENTS, "mul")
        halfgnn.pyg.reset_stats()
        utils.degree(INDICES["unsorted"], SEGMENTS)
    assert not {"index_add", "scatter_add", "scatter_reduce"} & halfgnn.pyg.stats()["fell_back"].keys()


def test_a_program_without_torch_geometrics_functions_gains_them(tmp_path):
    """The package that calls decides: here it is the program's own, in a process of its own."""
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent("""
        import torch
        import halfgnn.pyg

        halfgnn.pyg.patch()
        index, src = torch.randint(0, 500, (20_000,)), torch.randn(20_000, 32, requires_grad=True)
        for _ in range(10):  # an unsorted index that is new may not come again
            out = torch.zeros(500, 32).index_add_(0, index, src.relu())
            out.sum().backward()
        assert halfgnn.pyg.stats()["routed"]["index_add"] >= 2, halfgnn.pyg.stats()
        """)
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(halfgnn.__file__).parents[1])}
    done = subprocess.run([sys.executable, program], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("call", ["index_add", "scatter_add", "scatter_reduce", "scatter_reduce mean"])
def test_results_are_contiguous(call):
    src, out = randn(ROWS, 5, seed=1), randn(5, SEGMENTS, seed=2).t()
    with halfgnn.pyg.accelerate():
        assert {**CALLS, **EXCLUSIVE}[call](out, INDICES["unsorted"], src).is_contiguous()
    assert routed() == 1


def test_gradients_inside_scripted_code(tmp_path):
    """TorchScript knows torch.autograd.grad by its identity."""
    (tmp_path / "forces_of_a_test.py").write_text(
        textwrap.dedent("""
        import torch

        def force(x: torch.Tensor):
            gradient = torch.autograd.grad([(x * x).sum()], [x], create_graph=True)[0]
            assert gradient is not None
            return gradient
        """)
    )
    sys.path.insert(0, str(tmp_path))
    try:
        with halfgnn.pyg.accelerate():
            import forces_of_a_test

            x = torch.ones(3, requires_grad=True)
            assert torch.equal(torch.jit.script(forces_of_a_test.force)(x), 2 * x)
    finally:
        sys.path.remove(str(tmp_path))


def test_compiled_index_select_is_one_graph():
    index, x = INDICES["unsorted"].clone(), randn(SEGMENTS, 5, seed=1).requires_grad_()
    with halfgnn.pyg.accelerate():
        rows = torch.compile(lambda x: torch.index_select(x, 0, index) * 2, backend="eager", fullgraph=True)(x)
    assert torch.equal(rows, x[index] * 2)
