"""The names that loaded modules have for functions, which are found once and then kept up to date.

A search of all names of all modules takes tens of milliseconds. After that only those modules are searched whose names may have
changed: modules that were loaded since, modules that have more or fewer names than before, and all modules but those of some large
packages: a program's may be reloaded or edited, and a library may bind a name at its first call.
"""

from __future__ import annotations

import sys
import threading
import types
from typing import Any

# Packages of many modules, which bind no functions of others later.
_SETTLED = frozenset(
    (
        "torch", "torch_geometric", "halfgnn", "dgl", "numpy", "scipy", "sympy", "mpmath", "networkx", "pandas", "pyarrow",
        "sklearn", "matplotlib", "IPython", *sys.stdlib_module_names,
    )
) - {"__main__"}  # fmt: skip

Space = dict[str, Any]  # the names of a module


class Names:
    """Names of functions in the modules of sys.modules. PyTorch's modules in C++ are left out: C++ hands what it finds there to
    __torch_function__."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._wanted: dict[int, Any] = {}  # id -> function
        self._places: dict[tuple[int, str], types.ModuleType] = {}  # (id of a module, name) -> the module
        self._loaded: list[int] = []  # ids of the values of sys.modules
        self._modules: list[types.ModuleType] = []
        self._spaces: list[Space] = []  # of the modules
        self._sizes: list[int] = []  # of the spaces
        self._unsettled: list[types.ModuleType] = []

    def want(self, functions: dict[int, Any]) -> None:
        """Functions whose names will be asked for, by id."""
        with self._lock:
            if not functions.keys() <= self._wanted.keys():
                self._wanted.update(functions)
                self.forget()

    def forget(self) -> None:
        """Makes the next call search all modules."""
        with self._lock:
            self._loaded, self._modules, self._spaces, self._sizes = [], [], [], []

    def of(self, functions: dict[int, Any]) -> list[tuple[types.ModuleType, str, Any]]:
        """The names that are bound to functions now: module, name, function. functions: by id, and wanted."""
        with self._lock:
            self._search_changed()
            places = [(module, name, module.__dict__.get(name)) for (_, name), module in self._places.items()]
        return [place for place in places if functions.get(id(place[2]), self) is place[2]]

    def _search_changed(self) -> None:
        sizes = self._sizes
        if list(map(id, list(sys.modules.values()))) != self._loaded:
            known = {id(module): size for module, size in zip(self._modules, sizes)}
            self._note_loaded()
            sizes = [known.get(id(module), -1) for module in self._modules]
        self._sizes = list(map(len, self._spaces))
        if self._sizes != sizes:
            self._search([module for module, old, new in zip(self._modules, sizes, self._sizes) if old != new])
        self._search(self._unsettled)

    def _note_loaded(self) -> None:
        """Notes which modules are loaded. Names in others are forgotten."""
        loaded = list(sys.modules.items())
        by_id = {
            id(module): module
            for path, module in loaded
            if isinstance(module, types.ModuleType) and not path.startswith("torch._C")
        }
        self._loaded, self._modules = [id(module) for _, module in loaded], list(by_id.values())
        self._spaces = list(map(vars, self._modules))
        self._unsettled = list(filter(_is_unsettled, self._modules))
        self._places = {place: module for place, module in self._places.items() if place[0] in by_id}

    def _search(self, modules: list[types.ModuleType]) -> None:
        wanted = self._wanted
        for module in modules:
            space = vars(module)
            if wanted.keys().isdisjoint(map(id, list(space.values()))):
                continue
            for name, value in list(space.items()):
                if wanted.get(id(value), self) is value:
                    self._places[id(module), name] = module


def _is_unsettled(module: types.ModuleType) -> bool:
    name = vars(module).get("__name__")
    return not isinstance(name, str) or name.partition(".")[0] not in _SETTLED


NAMES = Names()  # of all functions that drop-ins replace
