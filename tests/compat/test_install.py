"""install(): what it warns of."""

import sys
import warnings

import pytest

from halfgnn import compat
from halfgnn.compat import _install

typing = pytest.importorskip("torch_geometric.typing")
FLAGS = {"pyg_lib": "WITH_PYG_LIB", "torch_scatter": "WITH_TORCH_SCATTER", "torch_sparse": "WITH_TORCH_SPARSE"}


@pytest.fixture(autouse=True)
def not_installed(monkeypatch):
    """As in a process of its own: no name is halfgnn's, and torch_geometric has found no library."""
    finder = _install._Finder()
    monkeypatch.setattr(_install, "_finder", finder)
    for flag in FLAGS.values():
        assert hasattr(typing, flag)
        monkeypatch.setattr(typing, flag, False)
    yield
    sys.meta_path.remove(finder)


@pytest.mark.parametrize("name", FLAGS)
def test_what_torch_geometric_did_not_find_comes_too_late(name):
    call = rf"compat.install\('{name}'\) before anything imports torch_geometric"
    with pytest.warns(
        UserWarning, match=rf"torch_geometric is imported already, and did not find {name}: .*{call}"
    ) as caught:
        compat.install(name, replace=True)
    assert caught[0].filename == __file__


def test_no_warning_of_what_it_found_or_does_not_look_for(monkeypatch):
    monkeypatch.setattr(typing, "WITH_PYG_LIB", True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert compat.install("pyg_lib", replace=True) == ["pyg_lib"]
        compat.install("dgl")
    with pytest.warns(UserWarning, match="did not find torch_scatter, torch_sparse: "):
        compat.install("torch_scatter", "torch_sparse", "pyg_lib", replace=True)
