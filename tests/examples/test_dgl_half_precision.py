"""examples/dgl_half_precision.py: halfgnn's column is correct, and docs/dgl.md shows it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("dgl")
ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "examples"))

import dgl_half_precision  # noqa: E402

DOCUMENT = ROOT / "docs" / "dgl.md"


def table_of(text):
    """{(what, type): (correct, halfgnn's)}"""
    lines = [line.strip("| ").split(" | ") for line in text.splitlines() if re.match(r"\| .* \| (bf16|fp16) \|", line)]
    return {(what, dtype): (float(correct.split()[0]), float(ours)) for what, dtype, correct, _, ours in lines}


def test_halfgnn_is_correct_to_rounding_and_as_documented(capsys):
    dgl_half_precision.main()
    found = table_of(capsys.readouterr().out)
    assert len(found) == 10
    for (what, dtype), (correct, ours) in found.items():
        assert abs(ours - correct) <= 0.004 * max(1, abs(correct)), (what, dtype)
    assert table_of(DOCUMENT.read_text()).keys() == found.keys()


def test_it_runs_in_a_checkout_that_is_not_installed(tmp_path):
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [
        sys.executable,
        "-c",
        f"import runpy; runpy.run_path({str(ROOT / 'examples' / 'dgl_half_precision.py')!r})",
    ]
    subprocess.run(command, env=environment, cwd=tmp_path, check=True, timeout=300)
