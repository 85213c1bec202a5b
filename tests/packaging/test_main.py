"""python -m halfgnn: its facts, its self-test, and the exit status that scripts read."""

import subprocess
import sys

import pytest
import torch

from halfgnn import __main__ as command
from halfgnn import _library


@pytest.fixture(autouse=True)
def _few_calls(monkeypatch):
    names = ("u_mul_e_sum", "edge_softmax")
    monkeypatch.setattr(command, "CALLS", {name: command.CALLS[name] for name in names})
    monkeypatch.setattr(command, "_package", lambda name: "not installed")


def test_as_a_program():
    done = subprocess.run([sys.executable, "-m", "halfgnn"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = dict(line.split(maxsplit=1) for line in done.stdout.splitlines())
    assert lines["torch"].startswith(torch.__version__) and _library.path() in lines["library"]
    assert "all right" in lines["self-test"]
    assert lines["autograd"].startswith("Functions in C++" if _library.has_autograd() else "Functions in Python")


def test_every_call_is_right_and_names_what_it_tests(capsys):
    assert command.main([]) == 0
    assert "2 operators in 3 types on cpu: all right" in capsys.readouterr().out


@pytest.mark.parametrize("mistake", ["wrong", "refused"])
def test_a_wrong_operator_is_named(monkeypatch, capsys, mistake):
    right = command.CALLS["edge_softmax"]

    def call(lib, g, x):
        if lib is command.reference:
            return right(lib, g, x)
        if mistake == "refused":
            raise RuntimeError("no such kernel\nmore")
        return right(lib, g, x) * 1.1

    monkeypatch.setitem(command.CALLS, "edge_softmax", call)
    assert command.main([]) == 1
    text = capsys.readouterr().out
    reason = "its result is wrong" if mistake == "wrong" else "RuntimeError: no such kernel"
    assert "3 of 6 calls are wrong" in text and f"cpu: edge_softmax torch.bfloat16: {reason}" in text


def test_a_gpu_without_kernels_is_told(monkeypatch, capsys):
    monkeypatch.setattr(command, "_gpus", lambda: iter([("An old GPU", "halfgnn was built for sm_90.")]))
    assert command.main([]) == 1
    assert "An old GPU: halfgnn was built for sm_90." in capsys.readouterr().out


def test_speed_is_of_the_same_operators(monkeypatch, capsys):
    """Both sides of the table compute the same."""
    g = command._graph(50, 400)
    separate = command._Separate(g)
    for name, shapes in command.TIMED.items():
        draw = command._drawn(g, torch.float32)
        operands = [draw(*shape) for shape in shapes]
        ours = getattr(command.ops, name)(g, *operands)
        torch.testing.assert_close(getattr(separate, name)(*operands), ours, rtol=1e-4, atol=1e-5)
    monkeypatch.setattr(command, "NODES", 50)
    monkeypatch.setattr(command, "EDGES", 400)
    monkeypatch.setattr(command, "_milliseconds", lambda calls, device: [call().numel() or 1.0 for call in calls])
    assert command.main(["--bench"]) == 0
    assert capsys.readouterr().out.count(" 1.0 x") == 2 * len(command.TIMED)


def test_packages_that_cannot_be_imported_say_why(monkeypatch, tmp_path):
    monkeypatch.undo()
    assert command._package("torch") == torch.__version__
    assert command._package("halfgnn_is_not_there") == "not installed"
    (tmp_path / "halfgnn_broken.py").write_text("raise OSError('undefined symbol')")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert command._package("halfgnn_broken") == "cannot be imported: undefined symbol"
