"""examples/meshgraphnet.py in this process, on a small cloth."""

import sys

import meshgraphnet
import pytest
import torch

SMALL = ["--device", "cpu", "--side", "6", "--waves", "4", "--steps", "3", "--layers", "2", "--hidden", "8"]


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
def test_both_backends_train_alike(dtype, tmp_path, capsys):
    (plain, kept), (ours, kept_by_ours) = meshgraphnet.main(
        [*SMALL, "--dtype", dtype, "--out", str(tmp_path / "a.png")]
    )
    assert ours.history.losses == pytest.approx(plain.history.losses, rel=1e-4 if dtype == "fp32" else 0.05)
    assert ours.history.losses[-1] < ours.history.losses[0]
    assert kept_by_ours < kept and ours.peak_bytes > 0
    assert "kept MiB" in capsys.readouterr().out and (tmp_path / "a.png").exists()


def test_the_cloth_is_held_at_its_border():
    cloth = meshgraphnet.Cloth(5, seed=1)
    states, changes = cloth.waves(3, seed=1)
    assert cloth.src.shape == (2 * (2 * 5 * 4 + 4 * 4),) and torch.equal(cloth.src.bincount(), cloth.dst.bincount())
    assert not (changes * cloth.border).any() and not (states[..., :1] * cloth.border).any()


def test_arguments(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["meshgraphnet.py", "--side", "2"])
    with pytest.raises(SystemExit):
        meshgraphnet.main()
    assert "--side: must be >= 3" in capsys.readouterr().err
