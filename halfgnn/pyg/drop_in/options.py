"""The options of patch() that are on now."""

from __future__ import annotations


class Options:
    """Attributes:
    fuse: whether attention that messages write out is one operator.
    fuse_all: whether patch(fuse=True) is on: also with dropout, and where it is no faster.
    tile: the most edges of a tile, or its size as "512MiB"; None: calls are not done in tiles.
    half: whether patch(half=True) is on: under autocast results are in its dtype, not in torch_geometric's.
    """

    fuse = fuse_all = half = False
    tile: int | str | None = None


ON = Options()
