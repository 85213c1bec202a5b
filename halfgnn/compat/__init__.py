"""Interfaces of libraries that no longer install beside a current torch, on halfgnn's operators.

Each is a package of the library's name, written from scratch: ``from halfgnn.compat import dgl``. After ``install("dgl")`` a
program's own ``import dgl`` gets it. Nothing else of halfgnn imports this package.
"""

from ._install import install, uninstall

__all__ = ["install", "uninstall"]
