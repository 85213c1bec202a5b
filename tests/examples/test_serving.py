"""A model without Python: exported, compiled ahead of time, and run by a C++ program."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("torch_geometric")

from examples.serving.export import Model, export

SERVING = Path(__file__).resolve().parents[2] / "examples" / "serving"

pytestmark = [
    pytest.mark.skipif(
        not os.environ.get("HALFGNN_TEST_ALL"),
        reason="it compiles for a minute; HALFGNN_TEST_ALL=1 (make test-all) runs it",
    ),
    pytest.mark.skipif(shutil.which("make") is None or shutil.which("g++") is None, reason="needs make and g++"),
]


def test_a_program_without_python_serves_a_model(tmp_path):
    package = export(Model(), tmp_path)
    for name in ("Makefile", "serve.cpp"):
        shutil.copy(SERVING / name, tmp_path)
    root = str(SERVING.parents[1])
    outside = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    outside["PYTHONPATH"] = os.pathsep.join(filter(None, [root, outside.get("PYTHONPATH")]))
    subprocess.run(["make", "-s", f"PYTHON={sys.executable}"], cwd=tmp_path, env=outside, check=True, timeout=600)
    run = lambda inputs, *more: subprocess.run(  # noqa: E731
        ["./serve", package, inputs, "out.pt", *more], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert run("inputs.pt").returncode == 0
    load = lambda name: torch.load(tmp_path / name, weights_only=True)  # noqa: E731
    torch.testing.assert_close(load("out.pt"), load("expected.pt"))

    together = run("inputs.pt", "8", "1")  # callers at once
    assert together.returncode == 0 and "8 callers at once" in together.stdout
    assert "all results the same" in together.stdout

    x, edge_index = load("inputs.pt")
    torch.save([x, edge_index + len(x)], tmp_path / "wrong.pt")
    result = run("wrong.pt")
    assert result.returncode == 1 and "edge_index holds an id that is no row of x" in result.stderr
