"""laboratory/mutants on a package of one function: it finds which mutants tests notice and which they do not."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

PACKAGE = """
LIMIT = 3


def clamp(x, low=0):
    if x < low:
        x = low
    return min(x, LIMIT)


def unused(x):
    return -x
"""
TESTS = """
from toy import clamp


def test_clamp():
    assert (clamp(-1), clamp(1, 0), clamp(9)) == (0, 1, 3)
"""


def test_mutants_of_a_toy(tmp_path):
    (tmp_path / "toy").mkdir()
    (tmp_path / "tests" / "ops").mkdir(parents=True)
    (tmp_path / "toy" / "__init__.py").write_text(PACKAGE)
    (tmp_path / "tests" / "ops" / "test_toy.py").write_text(TESTS)
    command = [sys.executable, "-m", "laboratory.mutants", "--root", str(tmp_path), "--package", "toy", "toy"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=ROOT)
    assert run.returncode == 0, run.stdout + run.stderr
    results = json.loads((tmp_path / "build" / "mutants" / "results.json").read_text())
    statuses = {key.split(": ", 1)[1]: result["status"] for key, result in results.items()}
    expected = {
        "-LIMIT = 3 +LIMIT = 4": "noticed",
        "-def clamp(x, low=0): +def clamp(x, low=1):": "noticed",
        "- if x < low: + if (True):": "noticed",
        "- x = low + pass": None,  # another mutant has the same effect
        "- if x < low: + if (x <= low):": "survived",  # equivalent
        "- return min(x, LIMIT) + return None": "noticed",
        "- return -x + return (x)": "not covered",
    }
    assert {key: statuses.get(key) for key in expected} == expected, run.stdout
    assert "survived, 1 of 1 tests" in run.stdout and "unused" not in run.stdout.split("\n")[-2]
