"""The former name of :mod:`dgl.transforms`."""

from .transforms import *  # noqa: F403
