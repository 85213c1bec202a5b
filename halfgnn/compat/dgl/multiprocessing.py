"""torch.multiprocessing, by DGL's name."""

from torch.multiprocessing import *  # noqa: F403
