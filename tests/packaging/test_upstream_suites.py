"""tests/upstream_suites.py: a project's tests that pass with halfgnn alone, without it alone, or both ways."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[1] / "upstream_suites.py"
OF_A_DROP_IN = """
import pytest
import torch
from torch_geometric.utils import scatter

def is_routed():
    from halfgnn import pyg
    x, index = torch.randn(4, 8), torch.tensor([0, 1, 1, 0])
    before = sum(pyg.stats()["routed"].values())
    assert scatter(x, index).shape == (2, 8)
    return sum(pyg.stats()["routed"].values()) > before

import packaging.requirements  # which a folder beside upstream_suites.py is named after

def test_both(): assert scatter(torch.ones(2, 1), torch.zeros(2, dtype=torch.long)).item() == 2
def test_without_alone(): assert not is_routed()
def test_with_alone(): assert is_routed()
def test_neither(): assert False
@pytest.mark.skip
def test_skipped(): pass
"""
OF_A_PACKAGE = """
def test_ours():
    import torch_scatter
    assert torch_scatter.__file__.endswith("halfgnn/compat/torch_scatter/__init__.py")
"""


def run(folder, *arguments):
    command = [sys.executable, SCRIPT, "their tests", "--jobs", "0", "--out", folder / "out", *arguments]
    return subprocess.run(list(map(str, command)), cwd=folder, capture_output=True, text=True, check=False)


@pytest.fixture
def their_tests(tmp_path):
    (tmp_path / "their tests").mkdir()
    return tmp_path / "their tests"


@pytest.mark.skipif(
    not os.environ.get("HALFGNN_TEST_ALL"),
    reason="it runs upstream's tests for most of a minute; HALFGNN_TEST_ALL=1 (make test-all) runs it",
)
def test_what_passes_without_halfgnn_alone_fails(their_tests):
    (their_tests / "test_scatter.py").write_text(OF_A_DROP_IN)
    done = run(their_tests.parent, "--with", "pyg", "--all-sizes")
    assert done.returncode == 1, done.stderr
    assert done.stdout.splitlines() == [
        "without: 2 passed, 2 failed, 1 skipped",
        "with halfgnn: 2 passed, 2 failed, 1 skipped",
        "passes without alone: test_scatter::test_without_alone",
        "passes with halfgnn alone: test_scatter::test_with_alone",
    ]


def test_chosen_tests_that_pass_both_ways(their_tests):
    (their_tests / "test_scatter.py").write_text(OF_A_DROP_IN)
    done = run(their_tests.parent, "--with", "pyg", "--", "test_scatter.py", "-k", "both or skipped")
    assert (done.returncode, done.stdout.splitlines()) == (
        0,
        [f"{way}: 1 passed, 0 failed, 1 skipped" for way in ("without", "with halfgnn")],
    )


def test_a_package_of_compat_stands_in(their_tests):
    (their_tests / "test_ours.py").write_text(OF_A_PACKAGE)
    done = run(their_tests.parent, "--with", "torch_scatter")
    assert "passes with halfgnn alone: test_ours::test_ours" in done.stdout
    assert done.stdout.endswith("No test passed without halfgnn, so this shows nothing.\n") and done.returncode == 1
