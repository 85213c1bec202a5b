import pytest

import halfgnn.compiled
from halfgnn.compiled import chains, thresholds


@pytest.fixture(autouse=True)
def lowers_small_graphs(monkeypatch):
    for name in ("MESSAGE", "SOFTMAX", "COUNT"):
        monkeypatch.setattr(thresholds, name, 0)
    monkeypatch.setattr(chains, "_has_one_thread", lambda x: False)  # whatever runs the tests
    halfgnn.compiled.reset_stats()
