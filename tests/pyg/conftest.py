import importlib.util

import pytest

collect_ignore_glob = [] if importlib.util.find_spec("torch_geometric") else ["test_*.py"]


@pytest.fixture(autouse=True)
def _clean():
    import halfgnn.pyg

    halfgnn.pyg.unpatch()
    halfgnn.pyg.reset_stats()
    yield
    halfgnn.pyg.unpatch()


@pytest.fixture(autouse=True)
def _routes_small_calls(monkeypatch):
    from tests import support

    support.route_small_calls(monkeypatch)
