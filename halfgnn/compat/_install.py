"""install(): imports of a library get halfgnn's package of that name."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import warnings
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

NAMES = ("dgl", "pyg_lib", "torch_scatter", "torch_sparse")


def install(*names: str, replace: bool = False) -> list[str]:
    """Make ``import name`` and ``import name.submodule`` give ``halfgnn.compat.name`` and its submodules in this process.

    Call it before the program imports the library, or anything that looks for it, as torch_geometric does. If torch_geometric has
    looked and not found it, a UserWarning says so.

    Args:
        names: of ``halfgnn.compat.NAMES``; by default all of them.
        replace: also if the library is installed. By default an installed library is left in place.

    Returns:
        The names that are halfgnn's now.

    Raises:
        ValueError: halfgnn has no package of that name. RuntimeError: the library has been imported already.
    """
    for name in names:
        if name not in NAMES:
            raise ValueError(f"names has {name!r}; expected some of {list(NAMES)}")
    taken = [name for name in names or NAMES if name in _finder.names or replace or not _is_installed(name)]
    for name in taken:
        if name in sys.modules and not _is_ours(sys.modules[name]):
            raise RuntimeError(f"{name} is imported already; call halfgnn.compat.install({name!r}) before that")
    _finder.names.update(taken)
    if taken and _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
    missed = _missed_by_torch_geometric(taken)
    if missed:
        warnings.warn(
            f"torch_geometric is imported already, and did not find {', '.join(missed)}: it will not use halfgnn's. Call "
            f"halfgnn.compat.install({', '.join(map(repr, missed))}) before anything imports torch_geometric, as halfgnn.pyg does",
            stacklevel=2,
        )
    return taken


def _missed_by_torch_geometric(names: Sequence[str]) -> list[str]:
    """Those that torch_geometric looked for when it was imported, without finding them. It does not look again."""
    found = sys.modules.get("torch_geometric.typing")
    return [name for name in names if getattr(found, f"WITH_{name.upper()}", True) is False]


def uninstall(*names: str) -> None:
    """Undo :func:`install`, by default for all names. Modules that were imported stay what they are where they are in use."""
    for name in names or NAMES:
        _finder.names.discard(name)
        for known in [known for known in sys.modules if known == name or known.startswith(f"{name}.")]:
            if _is_ours(sys.modules[known]):
                del sys.modules[known]
    if not _finder.names and _finder in sys.meta_path:
        sys.meta_path.remove(_finder)


def _is_installed(name: str) -> bool:
    if name in sys.modules:
        return not _is_ours(sys.modules[name])
    return importlib.util.find_spec(name) is not None


def _is_ours(module: ModuleType) -> bool:
    return module.__name__.startswith("halfgnn.")


class _Finder(MetaPathFinder):
    """Finds ``dgl.x`` where ``halfgnn.compat.dgl.x`` is."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> Any:
        if fullname.partition(".")[0] not in self.names:
            return None
        if importlib.util.find_spec(f"{_PACKAGE}.{fullname}") is None:
            return None
        return ModuleSpec(fullname, _Alias())


class _Alias(Loader):
    """The module of halfgnn.compat itself, so that a class has one identity under both names."""

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(f"{_PACKAGE}.{spec.name}")
        self.spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self.spec  # the import system has put that of the alias there


_PACKAGE = "halfgnn.compat"
_finder = _Finder()
