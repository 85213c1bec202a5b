"""The options of patch() that are on now."""

from __future__ import annotations


class Options:
    """Attributes:
    fuse: whether attention that messages write by hand is one operator.
    fuse_all: whether patch(fuse=True) is on: also with dropout, and where it is no faster.
    half: whether patch(half=True) is on: under autocast results are in its dtype, not in torch_geometric's.
    """

    fuse = fuse_all = half = False


ON = Options()
