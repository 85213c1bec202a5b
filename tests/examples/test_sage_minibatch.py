"""examples/sage_minibatch.py: it learns, resumes and refuses to resume from nothing."""

import datasets
import pytest
import sage_minibatch
import torch


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_sage_learns_and_resumes(tmp_path, dtype):
    if datasets.packaged("cora") is None:
        pytest.skip("the wheel is not installed")
    checkpoint = ["--checkpoint", str(tmp_path / "sage.pt"), "--dtype", dtype]
    assert sage_minibatch.main([*checkpoint, "--epochs", "4", "--hidden", "64"]) > 0.3
    assert sage_minibatch.main([*checkpoint, "--epochs", "8", "--hidden", "64", "--resume"]) > 0.5
    assert torch.load(tmp_path / "sage.pt")["epoch"] == 7


def test_sage_learns_from_codes():
    if datasets.packaged("cora") is None:
        pytest.skip("the wheel is not installed")
    assert sage_minibatch.main(["--codes", "--epochs", "4", "--hidden", "64"]) > 0.3


def test_resume_needs_a_checkpoint(tmp_path, capsys):
    for options, message in (
        (["--resume"], "argument --resume: needs --checkpoint FILE"),
        (["--resume", "--checkpoint", str(tmp_path / "no.pt")], "no.pt does not exist; start without --resume"),
    ):
        with pytest.raises(SystemExit):
            sage_minibatch.main(options)
        assert message in capsys.readouterr().err
