"""What several tests of examples/mag240m need: options and a trainer that are small."""

import torch
from mag240m.batches import Workers
from mag240m.data import load
from mag240m.options import parse
from mag240m.trainer import Trainer

SMALL = ["--device", "cpu", "--hidden", "16", "--batch-size", "20", "--fanouts", "3", "3", "--features", "file"]
# Options without random differences between runs: all neighbours, no dropout, no statistics of a batch.
EXACT = ["--fanouts", "-1", "-1", "--dropout", "0", "--norm", "layer", "--dtype", "fp32"]


def trainer(folder, *options, workers=None):
    args = parse(["--data", str(folder), *SMALL, *options])
    return Trainer(load(folder), args, torch.device("cpu"), workers or Workers())


def check_close(found, expected):
    """The states of two runs agree except for rounding. Sampling numbers nodes randomly, which changes the order of
    sums, and Adam makes a full step from a gradient of almost zero."""
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert (found[name] - value).float().norm() <= 0.02 * value.float().norm() + 0.02, name
