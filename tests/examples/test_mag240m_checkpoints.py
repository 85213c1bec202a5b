"""examples/mag240m: resumed and killed runs, and checkpoints that are refused."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from mag240m import train
from mag240m.checkpoints import Saver
from mag240m.data import load

from tests.examples.mag240m_support import SMALL, check_close

PROGRAM = Path(train.__file__)


def weights(folder, checkpoint, *options):
    train.main(["--data", str(folder), *SMALL, "--dtype", "fp32", "--checkpoint", str(checkpoint), *options])
    return torch.load(checkpoint / "checkpoint.pt")


def test_a_resumed_run_is_the_uninterrupted_one(graph_folder, tmp_path):
    """Also in the middle of an epoch, with the same neighbours and the same dropout."""
    options = ["--average", "0.9", "--epochs", "3", "--checkpoint-every", "1"]
    expected = weights(graph_folder, tmp_path / "whole", *options)
    steps = -(-len(load(graph_folder).train) // 20)

    class Killed(BaseException):
        pass

    saved = Saver.after_step

    def dies(self, own):
        saved(self, own)
        if own.num_steps == steps + 2:
            raise Killed

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        patch.setattr(Saver, "after_step", dies)
        weights(graph_folder, tmp_path / "part", *options)
    assert torch.load(tmp_path / "part" / "checkpoint.pt")["progress"]["step"] == 2 < steps
    found = weights(graph_folder, tmp_path / "part", *options, "--resume")
    assert found["progress"]["epoch"] == 3
    assert found["progress"]["losses"] == pytest.approx(expected["progress"]["losses"], rel=1e-3)
    assert found["scheduler"] == expected["scheduler"]
    for part in ("model", "averaged"):
        check_close(found[part], expected[part])


def test_a_killed_run_leaves_a_whole_checkpoint(graph_folder, tmp_path):
    command = [sys.executable, str(PROGRAM), "--data", str(graph_folder), *SMALL]
    command += ["--epochs", "100000", "--checkpoint", str(tmp_path), "--checkpoint-every", "1"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    path, end = tmp_path / "checkpoint.pt", time.monotonic() + 120
    while not path.exists() and process.poll() is None and time.monotonic() < end:
        time.sleep(0.05)
    time.sleep(0.3)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = torch.load(path)["progress"]
    train.main([*command[2:], "--resume", "--epochs", str(before["epoch"] + 1)])
    after = torch.load(path)["progress"]
    assert after["epoch"] == before["epoch"] + 1 and after["losses"][: before["epoch"]] == before["losses"]


def test_checkpoints_that_cannot_be_resumed(graph_folder, tmp_path, capsys):
    common = ["--data", str(graph_folder), *SMALL, "--epochs", "1", "--checkpoint", str(tmp_path)]
    for options, message in (
        (["--resume"], "there is nothing to resume"),
        ([], None),
        (["--resume", "--hidden", "32"], "was trained with --hidden 16, not 32"),
        (["--seed", "7"], "holds the checkpoint of another run: give --resume"),
    ):
        if message is None:
            train.main([*common, *options])
            continue
        with pytest.raises(SystemExit, match=message):
            train.main([*common, *options])
    path = tmp_path / "checkpoint.pt"
    for content, message in ((b"", "cannot be read"), (path.read_bytes()[:1000], "cannot be read")):
        path.write_bytes(content)
        with pytest.raises(SystemExit, match=message):
            train.main([*common, "--resume"])
    torch.save({"x": 1}, path)
    with pytest.raises(SystemExit, match="is not a checkpoint of this program"):
        train.main([*common, "--resume"])
    with pytest.raises(SystemExit, match="cannot be made"):
        train.main([*common[:-1], str(path)])
    path.write_bytes(b"x")
    with pytest.raises(SystemExit, match="cannot be read"):
        train.main([*common, "--resume"])
