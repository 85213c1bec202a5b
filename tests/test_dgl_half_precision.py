"""examples/dgl_half_precision.py: halfgnn's column is correct, and docs/dgl.md shows it."""

import re
import sys
from pathlib import Path

import pytest

pytest.importorskip("dgl")
ROOT = Path(__file__).resolve().parents[1]
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
