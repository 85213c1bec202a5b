"""examples/full_graph.py: it learns, and resumes with another number of processes as if nothing had happened."""

import json
import os
import subprocess
import sys
from pathlib import Path

import datasets
import full_graph
import pytest

SCRIPT = Path(full_graph.__file__)
OPTIONS = ["--hidden", "16", "--dtype", "fp32", "--model", "gat"]


def torchrun(processes, *options):
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        str(processes),
        SCRIPT,
    ]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*command, *options], env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(datasets.packaged("cora") is None, reason="the wheel is not installed")
def test_it_learns_and_resumes_with_other_processes(tmp_path):
    losses, accuracy = full_graph.main([*OPTIONS, "--epochs", "12"])
    assert len(losses) == 12 and losses[-1] < 0.97 * losses[0] and accuracy > 0.5
    saved = [*OPTIONS, "--checkpoint", str(tmp_path / "gat.pt")]
    assert full_graph.main([*saved, "--epochs", "6"])[0] == losses[:6]
    log = tmp_path / "two.json"
    out = torchrun(2, *saved, "--epochs", "12", "--resume", "--losses", str(log))
    two = json.loads(log.read_text())["losses"]
    assert two == pytest.approx(losses, rel=1e-5) and f"test accuracy {accuracy:.2f}" in out
    full_graph.main(["--draw", str(tmp_path / "losses.png"), str(log)])
    assert (tmp_path / "losses.png").stat().st_size > 1000


def test_resume_needs_a_checkpoint(capsys):
    with pytest.raises(SystemExit):
        full_graph.main(["--resume"])
    assert "argument --resume: needs --checkpoint FILE, of an earlier run" in capsys.readouterr().err
